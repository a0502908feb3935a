//! One line of an access log.

use compact_str::CompactString;
use serde::Deserialize;

use crate::wall::Rfc3339;

/// A request as the log tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it began: milliseconds since 1970.
    pub at_ms: u64,
    /// Who asked.
    pub tenant: Tenant,
    /// For which route.
    pub route: CompactString,
    /// Tokens that it took.
    pub cost: u32,
    /// Whether it was denied.
    pub denied: bool,
}

/// A tenant as the log names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tenant {
    /// By its id.
    Plain(CompactString),
    /// By a [hash](crate::access_log::hashed) of it.
    Hashed(CompactString),
}

/// What a line is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A request that was limited, or not.
    Request(Request),
    /// One to which no limit applied.
    Unlimited,
}

/// Why a line cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It is none of an access log.
    #[error("is no line of an access log: {0}")]
    Garbled(String),
    /// Only some of the requests are in the log: a bucket would seem fuller than it was.
    #[error(
        "the log holds a sample of the requests; to be replayed it has to hold all of them (access_log.sample = 1.0)"
    )]
    Sampled,
}

/// Fields that are not asked for are of no matter here.
#[derive(Deserialize)]
struct Raw<'a> {
    time: &'a str,
    route: Option<CompactText>,
    tenant: Option<CompactText>,
    tenant_sha256: Option<CompactText>,
    decision: Option<CompactText>,
    cost: Option<u32>,
    sample: Option<f64>,
}

/// Text that may be escaped in the line, so that it cannot be borrowed from it.
struct CompactText(CompactString);

impl<'de> Deserialize<'de> for CompactText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = CompactText;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, text: &str) -> Result<CompactText, E> {
                Ok(CompactText(text.into()))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

/// Reads one line.
///
/// # Errors
/// Says what is wrong with it.
pub fn read(line: &[u8]) -> Result<Line, Fault> {
    let garbled = |what: &str| Fault::Garbled(what.to_owned());
    let raw: Raw<'_> = serde_json::from_slice(line).map_err(|error| garbled(&error.to_string()))?;
    let time = Rfc3339::parse(raw.time);
    let Rfc3339(at_ms) = time.ok_or_else(|| garbled("time is no time like 2026-01-31T23:59:59.999Z"))?;
    if raw.sample.is_some() {
        return Err(Fault::Sampled);
    }
    let Some(CompactText(decision)) = raw.decision else { return Ok(Line::Unlimited) };
    let denied = match decision.as_str() {
        "denied" => true,
        "allowed" | "unavailable" => false,
        _ => return Err(garbled("decision is none of \"allowed\", \"denied\", \"unavailable\"")),
    };
    let tenant = match (raw.tenant, raw.tenant_sha256) {
        (Some(CompactText(id)), None) => Tenant::Plain(id),
        (None, Some(CompactText(hash))) => Tenant::Hashed(hash),
        _ => return Err(garbled("there is a decision, but not one of tenant and tenant_sha256")),
    };
    let CompactText(route) = raw.route.ok_or_else(|| garbled("there is a decision, but no route"))?;
    let cost = raw.cost.filter(|cost| *cost > 0);
    let cost = cost.ok_or_else(|| garbled("there is a decision, but no cost of 1 or more"))?;
    Ok(Line::Request(Request { at_ms, tenant, route, cost, denied }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"time":"2023-11-14T22:13:20.123Z","method":"POST","route":"a\"b","tenant":"shop-a","decision":"denied","source":"hold","rule":"*/*","limit":20,"remaining":0,"cost":5,"status":429,"seconds":0.001,"decision_seconds":0.00002}"#;

    #[test]
    fn a_line_is_read_with_all_that_the_replay_needs() {
        let expected = Request {
            at_ms: 1_700_000_000_123,
            tenant: Tenant::Plain("shop-a".into()),
            route: "a\"b".into(),
            cost: 5,
            denied: true,
        };
        assert_eq!(read(GOOD.as_bytes()), Ok(Line::Request(expected.clone())));
        let hidden = GOOD.replace(r#""tenant":"shop-a""#, r#""tenant_sha256":"5402""#);
        assert_eq!(
            read(hidden.as_bytes()),
            Ok(Line::Request(Request { tenant: Tenant::Hashed("5402".into()), ..expected }))
        );
        let unlimited =
            r#"{"time":"2023-11-14T22:13:20.123Z","method":"GET","route":null,"decision":null,"status":404}"#;
        assert_eq!(read(unlimited.as_bytes()), Ok(Line::Unlimited));
    }

    #[test]
    fn a_line_that_cannot_be_used_says_why() {
        for (from, to, why) in [
            ("{", "", "is no line of an access log"),
            ("2023-11-14T22", "yesterday", "time is no time"),
            ("\"denied\"", "\"maybe\"", "decision is none of"),
            (r#""tenant":"shop-a","#, "", "not one of tenant and tenant_sha256"),
            (r#""route":"a\"b","#, "", "no route"),
            (r#""cost":5,"#, "", "no cost"),
            (r#""cost":5"#, r#""cost":0"#, "no cost"),
            (r#""cost":5"#, r#""cost":5,"sample":0.1"#, "holds a sample"),
        ] {
            let error = read(GOOD.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
