//! A rule as a source wrote it, every field still text, and its judgement: the parts of a [`Rule`], or one sentence that
//! says what is wrong and what is allowed. All bounds of a rule are here and in [`Limit::new`].

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{FailurePolicy, Mode, Rule, parse_refill};
use crate::bucket::Limit;
use crate::rule::{LONGEST_ID, shown};

/// The greatest number of shards.
const MOST_SHARDS: i64 = 100;

/// The smallest capacity of a shard, in tokens, unless there is only one.
const SMALLEST_SHARD: u32 = 20;

/// One entry of a source: for whom it is, as far as that can be told, and what it says.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) tenant_id: Option<Cow<'a, str>>,
    pub(super) route_id: Option<Cow<'a, str>>,
    /// `None`: it cannot be told.
    pub(super) mode: Option<Mode>,
    pub(super) terms: Result<Terms, String>,
}

/// A [`Rule`] without its ids.
#[derive(Debug, PartialEq)]
pub(super) struct Terms {
    limit: Limit,
    cost: Option<NonZeroU32>,
    on_store_failure: Option<FailurePolicy>,
    shards: u8,
    mode: Mode,
    enabled: bool,
    comment: Option<Box<str>>,
}

impl Terms {
    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Names whom they are for.
    pub(super) fn into_rule(self, tenant_id: Arc<str>, route_id: Arc<str>) -> Rule {
        let Self { limit, cost, on_store_failure, shards, mode, enabled, comment } = self;
        Rule { tenant_id, route_id, limit, cost, on_store_failure, shards, mode, enabled, comment }
    }
}

/// The fields of a rule beside its ids; numbers and booleans as written, text without quotes.
#[derive(Debug, Default)]
pub(super) struct RawTerms<'a> {
    pub(super) capacity: Option<&'a str>,
    pub(super) refill_per_second: Option<&'a str>,
    pub(super) refill: Option<Cow<'a, str>>,
    pub(super) cost: Option<&'a str>,
    pub(super) on_store_failure: Option<Cow<'a, str>>,
    pub(super) shards: Option<&'a str>,
    pub(super) mode: Option<Cow<'a, str>>,
    pub(super) enabled: Option<&'a str>,
    pub(super) comment: Option<Cow<'a, str>>,
}

impl RawTerms<'_> {
    /// Judges them; the first fault in one sentence.
    pub(super) fn judge(&self) -> Result<Terms, String> {
        let capacity = self.capacity.ok_or("capacity is missing, allowed are integers from 1 to 2147483647")?;
        let refill = self.refill()?;
        let limit = Limit::new(integer("capacity", capacity, 1, i64::from(Limit::MAX))?, refill)
            .map_err(|error| error.to_string())?;

        let cost = match self.cost {
            None => None,
            Some(text) => {
                let cost = integer("cost", text, 1, i64::from(Limit::MAX))?;
                if cost > i64::from(limit.capacity()) {
                    return Err(format!("cost is {cost}, allowed is at most the capacity, {}", limit.capacity()));
                }
                u32::try_from(cost).ok().and_then(NonZeroU32::new)
            }
        };
        let on_store_failure = match self.on_store_failure.as_deref() {
            None => None,
            Some("local") => Some(FailurePolicy::Local),
            Some("open") => Some(FailurePolicy::Open),
            Some("closed") => Some(FailurePolicy::Closed),
            Some(other) => {
                return Err(format!(
                    "on_store_failure is \"{}\", allowed are \"local\", \"open\", \"closed\"",
                    shown(other)
                ));
            }
        };
        let mode = self.mode()?;
        let enabled = match self.enabled {
            None | Some("true") => true,
            Some("false") => false,
            Some(other) => return Err(format!("enabled is {}, allowed are true, false", shown(other))),
        };
        let comment = self.comment.as_deref().filter(|comment| !comment.is_empty()).map(Box::from);
        Ok(Terms { limit, cost, on_store_failure, shards: self.shards(limit, cost)?, mode, enabled, comment })
    }

    /// Known also of a rule that is wrong in something else.
    pub(super) fn mode(&self) -> Result<Mode, String> {
        match self.mode.as_deref() {
            None | Some("enforce") => Ok(Mode::Enforce),
            Some("shadow") => Ok(Mode::Shadow),
            Some(other) => Err(format!("mode is \"{}\", allowed are \"enforce\", \"shadow\"", shown(other))),
        }
    }

    /// Tokens per second, from whichever of the two fields is there.
    fn refill(&self) -> Result<f64, String> {
        match (self.refill_per_second, self.refill.as_deref()) {
            (Some(text), None) => text.parse().map_err(|_| {
                format!("refill_per_second is {}, allowed are numbers greater than 0 up to 2147483647", shown(text))
            }),
            (None, Some(text)) => parse_refill(text),
            (None, None) => Err("neither refill_per_second nor refill is given, allowed is exactly one of them".into()),
            (Some(_), Some(_)) => {
                Err("both refill_per_second and refill are given, allowed is exactly one of them".into())
            }
        }
    }

    /// Each sub-bucket must hold what one request takes, and enough to be of use.
    fn shards(&self, limit: Limit, cost: Option<NonZeroU32>) -> Result<u8, String> {
        let Some(text) = self.shards else { return Ok(1) };
        let shards = integer("shards", text, 1, MOST_SHARDS)?;
        let least = cost.map_or(1, u32::from).max(SMALLEST_SHARD);
        let most = (limit.capacity() / least).max(1);
        match u8::try_from(shards) {
            Ok(shards) if u32::from(shards) <= most => Ok(shards),
            _ => Err(format!(
                "shards is {shards}: a shard holds at least {least} tokens, allowed are integers from 1 to {most}"
            )),
        }
    }
}

/// Checks an id: `field` names it in the sentence about what is wrong.
pub(super) fn check_id(field: &str, id: Option<&str>) -> Result<(), String> {
    let problem = match id {
        None => "is missing".to_owned(),
        Some("") => "is empty".to_owned(),
        Some(id) if id.chars().any(char::is_control) => "contains control characters".to_owned(),
        // A character is at least one byte, so that most ids need no counting.
        Some(id) if id.len() > LONGEST_ID && id.chars().count() > LONGEST_ID => {
            format!("has {} characters", id.chars().count())
        }
        Some(_) => return Ok(()),
    };
    Err(format!("{field} {problem}, allowed are 1 to {LONGEST_ID} characters, none of them a control character"))
}

fn integer(field: &str, text: &str, least: i64, most: i64) -> Result<i64, String> {
    text.parse()
        .ok()
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("{field} is {}, allowed are integers from {least} to {most}", shown(text)))
}

/// The shape of a rule in JSON. Values stay unparsed, so that each wrong type gets a sentence of its own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRule<'a> {
    #[serde(borrow)]
    tenant_id: Option<&'a RawValue>,
    route_id: Option<&'a RawValue>,
    capacity: Option<&'a RawValue>,
    refill_per_second: Option<&'a RawValue>,
    refill: Option<&'a RawValue>,
    cost: Option<&'a RawValue>,
    on_store_failure: Option<&'a RawValue>,
    shards: Option<&'a RawValue>,
    mode: Option<&'a RawValue>,
    enabled: Option<&'a RawValue>,
    comment: Option<&'a RawValue>,
}

/// What can be told of an object that is no rule, so that the message can name it.
#[derive(Default, Deserialize)]
struct JsonIds<'a> {
    #[serde(borrow)]
    tenant_id: Option<&'a RawValue>,
    route_id: Option<&'a RawValue>,
    mode: Option<&'a RawValue>,
}

impl<'a> Entry<'a> {
    /// Reads one JSON value.
    pub(super) fn from_json(json: &'a str) -> Self {
        if !json.starts_with('{') {
            let problem = format!("{} is not a rule, allowed are JSON objects", shown(json));
            return Self { tenant_id: None, route_id: None, mode: None, terms: Err(problem) };
        }
        let rule: JsonRule<'a> = match serde_json::from_str(json) {
            Ok(rule) => rule,
            Err(error) => {
                let ids: JsonIds<'a> = serde_json::from_str(json).unwrap_or_default();
                let known = |id: Option<&'a RawValue>| id.and_then(|id| unquote(id.get()));
                let mode = RawTerms { mode: known(ids.mode), ..RawTerms::default() }.mode().ok();
                return Self {
                    tenant_id: known(ids.tenant_id),
                    route_id: known(ids.route_id),
                    mode: mode.filter(|_| ids.mode.is_none_or(|mode| unquote(mode.get()).is_some())),
                    terms: Err(without_position(&error)),
                };
            }
        };
        let mut fault = None;
        let mut text = |field: &str, value: Option<&'a RawValue>| {
            let value = value?;
            let text = unquote(value.get());
            if text.is_none() && fault.is_none() {
                fault = Some(format!("{field} is {}, allowed is text", shown(value.get())));
            }
            text
        };
        let (tenant_id, route_id) = (text("tenant_id", rule.tenant_id), text("route_id", rule.route_id));
        let terms = RawTerms {
            capacity: rule.capacity.map(RawValue::get),
            refill_per_second: rule.refill_per_second.map(RawValue::get),
            refill: text("refill", rule.refill),
            cost: rule.cost.map(RawValue::get),
            on_store_failure: text("on_store_failure", rule.on_store_failure),
            shards: rule.shards.map(RawValue::get),
            mode: text("mode", rule.mode),
            enabled: rule.enabled.map(RawValue::get),
            comment: text("comment", rule.comment),
        };
        let mode = terms.mode().ok().filter(|_| rule.mode.is_none() || terms.mode.is_some());
        let terms = match fault {
            Some(fault) => Err(fault),
            None => terms.judge(),
        };
        Self { tenant_id, route_id, mode, terms }
    }
}

/// The text of a JSON string, copied only where it contains escapes.
pub(super) fn unquote(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') { serde_json::from_str(json).ok().map(Cow::Owned) } else { Some(Cow::Borrowed(inner)) }
}

/// serde_json counts lines from the start of the value; the reader of a file knows the line in the file.
pub(crate) fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests;
