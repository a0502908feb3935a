//! Rules as JSON, as CSV, and as a table for people.

mod csv;

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use super::super::file::read_array;
use super::super::raw::{Entry, check_id};
use super::super::snapshot::{Line, write_array};
use super::RuleId;
use crate::rule::{Mode, Rule, shown};

/// A format of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// That of `rules.json`.
    Json,
    /// One line a rule under a line of names; an empty value is the default.
    Csv,
    /// For people.
    Table,
}

impl Format {
    /// The one that the name of a file ends in.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "json" => Some(Self::Json),
            "csv" => Some(Self::Csv),
            _ => None,
        }
    }
}

/// A rule as in `rules.json`, without the fields that have their default.
#[derive(Clone, Copy, Debug)]
pub struct Json<'a>(pub &'a Rule);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Line::from(self.0).serialize(serializer)
    }
}

/// [`Json`] on one line.
pub(super) fn to_json(rule: &Rule) -> String {
    // Text and numbers only: nothing that JSON could refuse.
    serde_json::to_string(&Json(rule)).unwrap_or_default()
}

/// Writes rules in the order in which they come.
///
/// # Errors
/// Those of `out`.
pub fn write(mut out: &mut dyn Write, format: Format, rules: &[Rule]) -> io::Result<()> {
    match format {
        Format::Json => write_array(&mut out, rules.iter().map(Json)),
        Format::Csv => csv::write(out, rules),
        Format::Table => write_table(out, rules),
    }
}

/// The fields of a rule beside ids and mode; `None` for those that have their default.
pub(super) fn fields(rule: &Rule) -> [(&'static str, Option<String>); 7] {
    let word = |value: Option<serde_json::Value>| value.and_then(|value| value.as_str().map(str::to_owned));
    [
        ("capacity", Some(rule.limit.capacity().to_string())),
        // Display of a float is the shortest decimal that reads back the same, never with an exponent.
        ("refill_per_second", Some(rule.limit.refill_per_second().to_string())),
        ("cost", rule.cost.map(|cost| cost.to_string())),
        ("on_store_failure", word(rule.on_store_failure.and_then(|policy| serde_json::to_value(policy).ok()))),
        ("shards", (rule.shards != 1).then(|| rule.shards.to_string())),
        ("enabled", (!rule.enabled).then(|| "false".to_owned())),
        ("comment", rule.comment.as_deref().map(str::to_owned)),
    ]
}

/// The word for a mode.
pub(super) fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
    }
}

fn write_table(out: &mut dyn Write, rules: &[Rule]) -> io::Result<()> {
    let head = ["TENANT", "ROUTE", "MODE", "CAPACITY", "REFILL/S", "COST", "ON_STORE_FAILURE", "SHARDS", "ENABLED"];
    let row = |rule: &Rule| {
        let values = fields(rule).map(|(_, value)| value.map_or_else(|| "-".to_owned(), |value| shown(&value)));
        let [capacity, refill, cost, failure, shards, enabled, comment] = values;
        let (tenant, route) = (shown(&rule.tenant_id), shown(&rule.route_id));
        ([tenant, route, mode(rule.mode).to_owned(), capacity, refill, cost, failure, shards, enabled], comment)
    };
    let rows: Vec<_> = rules.iter().map(row).collect();
    let mut widths = head.map(|name| name.len());
    for (cells, _) in &rows {
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut line = |cells: &[&str], last: &str| {
        for (cell, width) in cells.iter().zip(widths) {
            write!(out, "{cell:width$}  ")?;
        }
        writeln!(out, "{last}")
    };
    line(&head, "COMMENT")?;
    rows.iter().try_for_each(|(cells, comment)| line(&cells.each_ref().map(String::as_str), comment))
}

/// Reads a file of rules, all of which have to be good.
///
/// # Errors
/// Every fault with its line: `FILE:LINE: rule a/r: what is wrong, what is allowed`.
pub fn read(path: &Path, format: Format) -> Result<Vec<Rule>, Vec<String>> {
    let mut reading = Reading { file: path.display().to_string(), ..Reading::default() };
    let whole = match format {
        Format::Json => read_array(path, |line, element| reading.add(line, Entry::from_json(element)))
            .map_err(|error| error.to_string()),
        Format::Csv => csv::read(path, &mut reading),
        Format::Table => Err("a table for people cannot be read, allowed are json, csv".to_owned()),
    };
    reading.faults.extend(whole.err());
    if reading.faults.is_empty() { Ok(reading.rules) } else { Err(reading.faults) }
}

/// The rules of a file and its faults, so far.
#[derive(Default)]
struct Reading {
    file: String,
    rules: Vec<Rule>,
    faults: Vec<String>,
    /// The line on which each rule was.
    lines: HashMap<RuleId, usize>,
}

impl Reading {
    fn fault(&mut self, line: usize, problem: &str) {
        self.faults.push(format!("{}:{line}: {problem}", self.file));
    }

    fn add(&mut self, line: usize, entry: Entry<'_>) {
        let [tenant, route] = [&entry.tenant_id, &entry.route_id].map(|id| shown(id.as_deref().unwrap_or("?")));
        let added = rule(entry).and_then(|rule| match self.lines.insert(RuleId::of(&rule), line) {
            None => Ok(rule),
            Some(first) => Err(format!("is there more than once, first on line {first}")),
        });
        match added {
            Ok(rule) => self.rules.push(rule),
            Err(problem) => self.fault(line, &format!("rule {tenant}/{route}: {problem}")),
        }
    }
}

/// A rule that the table can keep.
fn rule(entry: Entry<'_>) -> Result<Rule, String> {
    let Entry { tenant_id, route_id, mode: _, terms } = entry;
    let terms = terms?;
    check_id("tenant_id", tenant_id.as_deref())?;
    check_id("route_id", route_id.as_deref())?;
    let [tenant, route] = [tenant_id, route_id].map(|id| id.unwrap_or_default().into());
    let rule = terms.into_rule(tenant, route);
    storable(&rule)?;
    Ok(rule)
}

/// PostgreSQL keeps every character of a text but one.
pub(super) fn storable(rule: &Rule) -> Result<(), String> {
    match rule.comment.as_deref() {
        Some(comment) if comment.contains('\0') => {
            Err("comment contains the character U+0000, which PostgreSQL does not keep".to_owned())
        }
        _ => Ok(()),
    }
}

/// What a JSON rule may repeat of its name.
#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    tenant_id: Option<&'a RawValue>,
    route_id: Option<&'a RawValue>,
    mode: Option<&'a RawValue>,
}

/// The rule `id` from a JSON object, which need not repeat tenant, route and mode, but must not contradict.
///
/// # Errors
/// One sentence: what is wrong and what is allowed.
pub fn from_json(json: &str, id: &RuleId) -> Result<Rule, String> {
    let json = json.trim();
    let entry = Entry::from_json(json);
    let terms = entry.terms?;
    let named: Named<'_> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let [tenant, route] = [(&entry.tenant_id, named.tenant_id), (&entry.route_id, named.route_id)]
        .map(|(id, given)| if given.is_some() { id.as_deref() } else { None });
    for (field, given, expected) in [("tenant_id", tenant, &id.tenant_id), ("route_id", route, &id.route_id)] {
        if given.is_some_and(|given| *given != **expected) {
            let (given, expected) = (shown(given.unwrap_or_default()), shown(expected));
            return Err(format!("{field} is \"{given}\", the path says \"{expected}\""));
        }
    }
    let mut rule = terms.into_rule(id.tenant_id.clone(), id.route_id.clone());
    if named.mode.is_some() && rule.mode != id.mode {
        return Err(format!("mode is \"{}\", the query says \"{}\"", mode(rule.mode), mode(id.mode)));
    }
    rule.mode = id.mode;
    storable(&rule)?;
    Ok(rule)
}

#[cfg(test)]
mod tests;
