//! Rules as CSV (RFC 4180): names of fields on the first line, in any order; an empty value is the default.

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;

use csv::{Position, ReaderBuilder, StringRecord};

use super::{Entry, Reading, fields, mode};
use crate::rule::{Rule, shown};
use crate::rules::raw::RawTerms;

/// The fields that are written, in this order.
const WRITTEN: [&str; 10] = [
    "tenant_id",
    "route_id",
    "mode",
    "capacity",
    "refill_per_second",
    "cost",
    "on_store_failure",
    "shards",
    "enabled",
    "comment",
];

pub(super) fn write(out: &mut dyn Write, rules: &[Rule]) -> io::Result<()> {
    let mut out = csv::Writer::from_writer(out);
    out.write_record(WRITTEN)?;
    for rule in rules {
        let fields = fields(rule).map(|(_, value)| value.unwrap_or_default());
        let name = [&*rule.tenant_id, &*rule.route_id, mode(rule.mode)];
        out.write_record(name.into_iter().chain(fields.iter().map(String::as_str)))?;
    }
    out.flush()
}

/// Adds every line to `reading`; a fault that ends it is returned.
pub(super) fn read(path: &Path, reading: &mut Reading) -> Result<(), String> {
    let failed = |error: csv::Error| match error.kind() {
        csv::ErrorKind::Io(error) => format!("{}: cannot be read: {error}", path.display()),
        csv::ErrorKind::Utf8 { .. } => format!("{}:{}: is not UTF-8", path.display(), line(error.position())),
        _ => format!("{}: {error}", path.display()),
    };
    let mut file = ReaderBuilder::new().from_path(path).map_err(failed)?;
    let names = file.headers().map_err(failed)?.clone();
    check_names(&names).map_err(|problem| format!("{}:1: {problem}", path.display()))?;
    for record in file.records() {
        match record {
            Ok(record) => reading.add(line(record.position()), entry(&names, &record)),
            Err(error) => {
                let place = line(error.position());
                match error.kind() {
                    csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                        reading.fault(place, &format!("{len} values under {expected_len} names"));
                    }
                    csv::ErrorKind::Utf8 { .. } => reading.fault(place, "is not UTF-8"),
                    _ => return Err(failed(error)),
                }
            }
        }
    }
    Ok(())
}

fn line(position: Option<&Position>) -> usize {
    position.map_or(1, |position| usize::try_from(position.line()).unwrap_or(usize::MAX))
}

fn check_names(names: &StringRecord) -> Result<(), String> {
    let allowed = || format!("allowed are {}, refill", WRITTEN.join(", "));
    for (index, name) in names.iter().enumerate() {
        if !WRITTEN.contains(&name) && name != "refill" {
            return Err(format!("\"{}\" is no field of a rule, {}", shown(name), allowed()));
        }
        if names.iter().take(index).any(|before| before == name) {
            return Err(format!("{name} is there more than once"));
        }
    }
    if names.is_empty() { Err(format!("the names of the fields are missing, {}", allowed())) } else { Ok(()) }
}

fn entry<'a>(names: &StringRecord, record: &'a StringRecord) -> Entry<'a> {
    let value = |name: &str| {
        let index = names.iter().position(|candidate| candidate == name)?;
        record.get(index).filter(|value| !value.is_empty())
    };
    let text = |name| value(name).map(Cow::Borrowed);
    // Spreadsheets shout.
    let enabled = value("enabled").map(str::to_ascii_lowercase);
    let terms = RawTerms {
        capacity: value("capacity"),
        refill_per_second: value("refill_per_second"),
        refill: text("refill"),
        cost: value("cost"),
        on_store_failure: text("on_store_failure"),
        shards: value("shards"),
        mode: text("mode"),
        enabled: enabled.as_deref(),
        comment: text("comment"),
    };
    let (tenant_id, route_id) = (text("tenant_id"), text("route_id"));
    Entry { tenant_id, route_id, mode: terms.mode().ok(), terms: terms.judge() }
}
