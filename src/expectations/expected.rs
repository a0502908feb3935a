//! What a request should find, and how that differs from what it finds.

use serde::{Deserialize, Deserializer};

use super::Found;
use crate::rule::{Rule, parse_refill, shown};

/// Refills as written in two ways are the same within this share.
const SAME: f64 = 1e-9;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawExpected {
    status: Option<u16>,
    route: Option<String>,
    tenant: Option<String>,
    #[serde(default, deserialize_with = "given")]
    rule: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    shadow: Option<Option<String>>,
    capacity: Option<u32>,
    refill_per_second: Option<f64>,
    refill: Option<String>,
}

/// `null` is something else than nothing.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// What a request should find; of what is `None` nothing is expected.
#[derive(Debug, PartialEq)]
pub(super) enum Expected {
    /// It is stopped with this status before any rule is looked for.
    Stopped(u16),
    /// It finds these.
    Limits {
        route: Option<String>,
        tenant: Option<String>,
        /// `Some(None)`: none, as the route is exempt.
        rule: Option<Option<String>>,
        shadow: Option<Option<String>>,
        capacity: Option<u32>,
        /// Tokens per second.
        refill: Option<f64>,
    },
}

impl RawExpected {
    /// Judges it; the first fault in one sentence.
    pub(super) fn judge(self) -> Result<Expected, String> {
        let Self { status, route, tenant, rule, shadow, capacity, refill_per_second, refill } = self;
        let refill = match (refill_per_second, refill) {
            (Some(_), Some(_)) => {
                return Err("expect: both refill_per_second and refill are given, allowed is one of them".into());
            }
            (number, None) => number,
            (None, Some(text)) => Some(parse_refill(&text).map_err(|problem| format!("expect: refill: {problem}"))?),
        };
        for (field, rule) in [("rule", &rule), ("shadow", &shadow)] {
            if let Some(Some(name)) = rule
                && !name.contains('/')
                && (field, &**name) != ("rule", "default")
            {
                let allowed = "allowed is \"tenant/route\" or null, and \"default\" for rule";
                return Err(format!("expect: {field} is \"{}\", {allowed}", shown(name)));
            }
        }
        let is_limit = rule.is_some() || shadow.is_some() || capacity.is_some() || refill.is_some();
        match status {
            None if !is_limit && route.is_none() && tenant.is_none() => {
                Err("expect: nothing is expected, allowed are \
                status, route, tenant, rule, shadow, capacity, refill_per_second, refill"
                    .into())
            }
            None => Ok(Expected::Limits { route, tenant, rule, shadow, capacity, refill }),
            Some(status) if is_limit || route.is_some() || tenant.is_some() => {
                Err(format!("expect: status is {status}, and more: a request that is stopped finds nothing else"))
            }
            Some(status @ (400 | 401 | 404)) => Ok(Expected::Stopped(status)),
            Some(status) => Err(format!("expect: status is {status}, allowed are 400, 401, 404")),
        }
    }
}

impl Expected {
    /// Everything in which `found` is something else.
    pub(super) fn differences(&self, found: &Found<'_>) -> Vec<String> {
        let mut differences = Vec::new();
        let mut compare = |what: &str, expected: &str, is: &str| {
            if expected != is {
                differences.push(format!("expected {what} {}, is {}", shown(expected), shown(is)));
            }
        };
        match (self, found) {
            (Self::Stopped(status), Found::Stopped(problem)) => {
                compare("status", &status.to_string(), &problem.status().as_u16().to_string());
            }
            (Self::Stopped(status), Found::Exempt(route) | Found::Limited { route, .. }) => {
                compare("status", &status.to_string(), &format!("not stopped, route {}", route.id));
            }
            (Self::Limits { .. }, Found::Stopped(problem)) => {
                let is = format!("status {}: {}", problem.status().as_u16(), problem.detail());
                compare("limits", "found", &is);
            }
            (Self::Limits { route: expected, tenant, rule, shadow, capacity, refill }, Found::Exempt(route)) => {
                expected.iter().for_each(|id| compare("route", id, &route.id));
                let exempt = "none, the route is exempt";
                tenant.iter().for_each(|id| compare("tenant", id, exempt));
                rule.iter().chain(shadow).flatten().for_each(|name| compare("rule", name, exempt));
                capacity.iter().for_each(|capacity| compare("capacity", &capacity.to_string(), exempt));
                refill.iter().for_each(|refill| compare("refill_per_second", &refill.to_string(), exempt));
            }
            (
                Self::Limits { route: expected, tenant: whose, rule, shadow, capacity, refill },
                Found::Limited { route, tenant, rules, is_default },
            ) => {
                expected.iter().for_each(|id| compare("route", id, &route.id));
                whose.iter().for_each(|id| compare("tenant", id, tenant));
                let applies = if *is_default { "default".to_owned() } else { name(rules.enforce) };
                let none = || "none".to_owned();
                if let Some(rule) = rule {
                    compare("rule", &rule.clone().unwrap_or_else(none), &applies);
                }
                if let Some(shadow) = shadow {
                    let is = rules.shadow.map_or_else(none, |rule| name(rule));
                    compare("shadow", &shadow.clone().unwrap_or_else(none), &is);
                }
                let limit = rules.enforce.limit;
                capacity.iter().for_each(|expected| {
                    compare("capacity", &expected.to_string(), &limit.capacity().to_string());
                });
                let is = limit.refill_per_second();
                refill.iter().filter(|refill| (*refill - is).abs() > SAME * is).for_each(|refill| {
                    compare("refill_per_second", &refill.to_string(), &is.to_string());
                });
            }
        }
        differences
    }
}

fn name(rule: &Rule) -> String {
    format!("{}/{}", rule.tenant_id, rule.route_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(json: &str) -> Result<Expected, String> {
        serde_json::from_str::<RawExpected>(json).map_err(|error| error.to_string())?.judge()
    }

    #[test]
    fn null_is_an_expectation_and_absence_is_none() {
        let limits = |rule, shadow| Expected::Limits {
            route: Some("r".into()),
            tenant: None,
            rule,
            shadow,
            capacity: None,
            refill: None,
        };
        assert_eq!(judge(r#"{"route": "r"}"#), Ok(limits(None, None)));
        assert_eq!(judge(r#"{"route": "r", "rule": null}"#), Ok(limits(Some(None), None)));
        assert_eq!(judge(r#"{"route": "r", "shadow": "a/b"}"#), Ok(limits(None, Some(Some("a/b".into())))));
    }

    #[test]
    fn what_means_nothing_is_named() {
        for (json, expected) in [
            ("{}", "expect: nothing is expected, allowed are status"),
            (r#"{"status": 429}"#, "expect: status is 429, allowed are 400, 401, 404"),
            (r#"{"status": 404, "rule": null}"#, "expect: status is 404, and more"),
            (r#"{"rule": "shop-a"}"#, "expect: rule is \"shop-a\", allowed is \"tenant/route\""),
            (r#"{"shadow": "default"}"#, "expect: shadow is \"default\""),
            (r#"{"refill": "5/fortnight"}"#, "expect: refill: \"5/fortnight\" is not a refill"),
            (r#"{"refill": "5/s", "refill_per_second": 5}"#, "expect: both refill_per_second and refill"),
            (r#"{"capacty": 5}"#, "unknown field `capacty`"),
        ] {
            let problem = judge(json).unwrap_err();
            assert!(problem.starts_with(expected), "{json}: {problem}");
        }
    }
}
