//! What a line says.

use std::fmt::Write as _;
use std::sync::Arc;

use compact_str::CompactString;
use http::Method;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::decision::{Decision, Source};
use crate::rule::Scope;
use crate::usage::Counted;
use crate::wall::Rfc3339;

/// What is known of a request whose tokens were asked for, beside the decision.
#[derive(Clone, Debug)]
pub struct Charged {
    /// Who asked.
    pub tenant: CompactString,
    /// Tokens that it takes.
    pub cost: u32,
    /// A rule in shadow mode would have denied it.
    pub shadow_denied: bool,
    /// From the head of the request to the decision.
    pub seconds: f64,
}

/// A request that has been answered.
#[derive(Clone, Debug)]
pub struct Entry {
    /// When its head was there: milliseconds since 1970.
    pub at_ms: u64,
    /// Its method.
    pub method: Method,
    /// The place of its route in the configuration.
    pub route: Option<usize>,
    /// The decision and its rule, where a limit applied.
    pub decided: Option<(Charged, Scope, Decision)>,
    /// Of the answer; 499 where the client left before.
    pub status: u16,
    /// From its head to the end of its answer.
    pub seconds: f64,
}

/// A line, in the order of its fields. The time comes first, so that sorting lines sorts them by time. Neither path nor
/// query nor address stands here: they name people, and hold secrets.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    time: Rfc3339,
    method: &'a str,
    route: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant_sha256: Option<String>,
    decision: Option<&'static str>,
    source: Option<&'static str>,
    rule: Option<String>,
    limit: Option<u32>,
    remaining: Option<u32>,
    cost: Option<u32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    shadow_denied: bool,
    status: u16,
    seconds: f64,
    decision_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<f64>,
}

impl Entry {
    pub(super) fn line<'a>(&'a self, routes: &'a [Arc<str>], sample: f64, hash_tenants: bool) -> Line<'a> {
        let route = self.route.and_then(|place| routes.get(place)).map(|route| &**route);
        let charged = self.decided.as_ref().map(|(charged, ..)| charged);
        let decision = self.decided.as_ref().map(|(.., decision)| decision);
        let tenant = charged.map(|charged| charged.tenant.as_str());
        let quota = decision.and_then(|decision| decision.quota);
        let rule = self.decided.as_ref().map(|(charged, rule, _)| {
            let (tenant, route) = rule.ids(&charged.tenant, route.unwrap_or_default());
            if hash_tenants && !rule.any_tenant {
                format!("{}/{route}", hashed(tenant))
            } else {
                format!("{tenant}/{route}")
            }
        });
        Line {
            time: Rfc3339(self.at_ms),
            method: self.method.as_str(),
            route,
            tenant: tenant.filter(|_| !hash_tenants),
            tenant_sha256: tenant.filter(|_| hash_tenants).map(hashed),
            decision: decision.map(|decision| Counted::from(decision.outcome).name()),
            source: decision.map(|decision| source(decision.source)),
            rule,
            limit: quota.map(|quota| quota.limit.capacity()),
            remaining: quota.map(|quota| quota.remaining),
            cost: charged.map(|charged| charged.cost),
            shadow_denied: charged.is_some_and(|charged| charged.shadow_denied),
            status: self.status,
            seconds: microseconds(self.seconds),
            decision_seconds: charged.map(|charged| microseconds(charged.seconds)),
            sample: Some(sample).filter(|sample| *sample < 1.0),
        }
    }
}

/// A tenant's id as the log shows it where it hides ids: the first 16 bytes of its SHA-256, in hexadecimal. The same for
/// ever and everywhere, so that lines of one tenant can be told; who can guess an id can see whether it is there.
pub fn hashed(tenant: &str) -> String {
    let digest = Sha256::digest(tenant.as_bytes());
    digest.iter().take(16).fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// As in `sekisho_decisions_total`.
fn source(source: Source) -> &'static str {
    match source {
        Source::Lease => "lease",
        Source::Store => "store",
        Source::Hold => "hold",
        Source::Local => "local",
        Source::Open => "open",
        Source::Closed => "closed",
    }
}

/// Rounded to what is worth writing.
fn microseconds(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::Limit;
    use crate::decision::{Outcome, Quota};

    fn entry() -> Entry {
        let charged = Charged { tenant: "shop-a".into(), cost: 5, shadow_denied: false, seconds: 0.000_021_4 };
        let quota = Some(Quota::new(Limit::new(20, 10.0).unwrap(), 15));
        let decision = Decision { outcome: Outcome::Allowed, source: Source::Lease, quota };
        let rule = Scope { any_tenant: false, any_route: true };
        Entry {
            at_ms: 1_700_000_000_123,
            method: Method::POST,
            route: Some(0),
            decided: Some((charged, rule, decision)),
            status: 200,
            seconds: 0.001_234_567,
        }
    }

    fn line(entry: &Entry, sample: f64, hash_tenants: bool) -> String {
        serde_json::to_string(&entry.line(&["export".into()], sample, hash_tenants)).unwrap()
    }

    #[test]
    fn a_line_says_what_was_decided_and_by_which_rule() {
        let expected = r#"{"time":"2023-11-14T22:13:20.123Z","method":"POST","route":"export","tenant":"shop-a","decision":"allowed","source":"lease","rule":"shop-a/*","limit":20,"remaining":15,"cost":5,"status":200,"seconds":0.001235,"decision_seconds":0.000021}"#;
        assert_eq!(line(&entry(), 1.0, false), expected);
    }

    #[test]
    fn a_request_without_limit_has_a_line_too() {
        let entry = Entry { route: None, decided: None, status: 404, ..entry() };
        let expected = r#"{"time":"2023-11-14T22:13:20.123Z","method":"POST","route":null,"decision":null,"source":null,"rule":null,"limit":null,"remaining":null,"cost":null,"status":404,"seconds":0.001235,"decision_seconds":null,"sample":0.1}"#;
        assert_eq!(line(&entry, 0.1, true), expected);
    }

    #[test]
    fn a_hashed_tenant_is_nowhere_in_the_line() {
        let text = line(&entry(), 1.0, true);
        assert!(!text.contains("shop-a"), "{text}");
        // printf shop-a | sha256sum
        let hash = "5402d12940530e52f016e2a49ada62cb";
        assert_eq!((text.matches(hash).count(), hashed("shop-a").as_str()), (2, hash), "{text}");
    }
}
