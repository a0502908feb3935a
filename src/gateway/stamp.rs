//! The limit headers, and the only place that writes them: Pingora's `response_filter` does not see answers that the
//! gateway writes itself, so upstream answers, refusals and errors all come through here.

use std::fmt::Write as _;
use std::sync::Arc;

use http::{HeaderValue, StatusCode};
use pingora::http::ResponseHeader;

use crate::decision::{Decision, Outcome};
use crate::rule::Rule;

const LIMIT: &str = "X-RateLimit-Limit";
const REMAINING: &str = "X-RateLimit-Remaining";
const DRAFT_POLICY: &str = "RateLimit-Policy";
const DRAFT_STATE: &str = "RateLimit";

/// What was decided about a request, by which rule.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The decision.
    pub decision: Decision,
    /// The rule it enforces.
    pub rule: Arc<Rule>,
}

impl Verdict {
    /// `tenant/route` of the rule.
    pub fn policy(&self) -> String {
        format!("{}/{}", self.rule.tenant_id, self.rule.route_id)
    }
}

/// Writes the limit headers of a verdict and removes an upstream's own. `draft` adds `RateLimit-Policy` and `RateLimit`
/// of draft-ietf-httpapi-ratelimit-headers-11. A verdict without a bucket (`open`, `closed`) leaves none of them; a
/// request without a verdict keeps the upstream's. An interim response (100, 103) is no answer yet and carries none.
pub fn stamp(response: &mut ResponseHeader, verdict: Option<&Verdict>, draft: bool) {
    let Some(verdict) = verdict else { return };
    let Some(quota) = verdict.decision.quota.filter(|_| !is_interim(response)) else {
        for name in [LIMIT, REMAINING, DRAFT_POLICY, DRAFT_STATE] {
            response.remove_header(name);
        }
        return;
    };
    put(response, LIMIT, quota.limit.capacity().into());
    put(response, REMAINING, quota.remaining.into());
    if draft {
        // `Retry-After` should not point before the end of `t`: a refusal gives the same time in both.
        let seconds = match verdict.decision.outcome {
            Outcome::Denied { retry_after: Some(seconds) } => seconds.into(),
            _ => quota.reset(),
        };
        let name = structured_string(&verdict.policy());
        let limit = verdict.rule.limit;
        let window = (f64::from(limit.capacity()) / limit.refill_per_second()).ceil().max(1.0);
        put_text(response, DRAFT_POLICY, format!("{name};q={};w={window}", quota.limit.capacity()));
        put_text(response, DRAFT_STATE, format!("{name};r={};t={seconds}", quota.remaining));
    }
}

/// Whether the answer is still to come: after a 101 nothing does.
pub fn is_interim(response: &ResponseHeader) -> bool {
    response.status.is_informational() && response.status != StatusCode::SWITCHING_PROTOCOLS
}

/// An RFC 9651 String: printable ASCII in quotes. Other bytes, and the percent sign, are percent-encoded.
fn structured_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend(['\\', char::from(byte)]),
            b'%' => out.push_str("%25"),
            b' '..=b'~' => out.push(char::from(byte)),
            _ => {
                // Writing to a String cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out.push('"');
    out
}

fn put_text(response: &mut ResponseHeader, name: &'static str, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        put(response, name, value);
    }
}

fn put(response: &mut ResponseHeader, name: &'static str, value: HeaderValue) {
    // The names are constants and valid; an error here must not become a failed response.
    if let Err(error) = response.insert_header(name, value) {
        tracing::error!(%error, name, "could not write a header");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::Limit;
    use crate::decision::{Quota, Source};

    fn verdict(outcome: Outcome, source: Source, quota: Option<Quota>) -> Verdict {
        let rule = Rule::new("shop-a", "create\"order\u{e9}", Limit::new(200, 150.0).unwrap());
        Verdict { decision: Decision { outcome, source, quota }, rule: Arc::new(rule) }
    }

    fn quota(remaining: u32) -> Option<Quota> {
        Some(Quota::new(Limit::new(200, 150.0).unwrap(), remaining))
    }

    fn upstream_response() -> ResponseHeader {
        let mut response = ResponseHeader::build(200, None).unwrap();
        for value in ["999", "998"] {
            response.append_header("X-RATELIMIT-LIMIT", value).unwrap();
            response.append_header("x-ratelimit-remaining", value).unwrap();
        }
        response.append_header("RateLimit", "\"theirs\";r=9").unwrap();
        response
    }

    fn values(response: &ResponseHeader, name: &str) -> Vec<String> {
        response.headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn an_upstreams_copies_are_replaced() {
        let mut response = upstream_response();
        stamp(&mut response, Some(&verdict(Outcome::Allowed, Source::Store, quota(7))), false);
        assert_eq!(values(&response, LIMIT), ["200"]);
        assert_eq!(values(&response, REMAINING), ["7"]);
    }

    #[test]
    fn an_interim_response_carries_none_and_the_answer_after_it_does() {
        for (status, limit) in [(100, &[][..]), (103, &[]), (101, &["200"]), (200, &["200"])] {
            let mut response = upstream_response();
            response.set_status(status).unwrap();
            stamp(&mut response, Some(&verdict(Outcome::Allowed, Source::Store, quota(7))), false);
            assert_eq!(values(&response, LIMIT), limit, "{status}");
        }
    }

    #[test]
    fn without_a_bucket_no_limit_header_is_left() {
        let mut response = upstream_response();
        stamp(&mut response, Some(&verdict(Outcome::Allowed, Source::Open, None)), true);
        assert!(response.headers.is_empty(), "{:?}", response.headers);
    }

    #[test]
    fn an_exempt_route_keeps_the_upstreams_headers() {
        let mut response = upstream_response();
        stamp(&mut response, None, true);
        assert_eq!(values(&response, LIMIT), ["999", "998"]);
    }

    #[test]
    fn the_draft_fields_name_the_policy_as_a_structured_string() {
        let mut response = upstream_response();
        stamp(&mut response, Some(&verdict(Outcome::Allowed, Source::Store, quota(7))), true);
        assert_eq!(values(&response, DRAFT_POLICY), [r#""shop-a/create\"order%C3%A9";q=200;w=2"#]);
        assert_eq!(values(&response, DRAFT_STATE), [r#""shop-a/create\"order%C3%A9";r=7;t=2"#]);
    }

    #[test]
    fn a_refusal_gives_the_same_time_in_the_draft_field_as_in_retry_after() {
        let mut response = ResponseHeader::build(429, None).unwrap();
        let denied = Outcome::Denied { retry_after: Some(1) };
        stamp(&mut response, Some(&verdict(denied, Source::Hold, quota(0))), true);
        assert_eq!(values(&response, DRAFT_STATE), [r#""shop-a/create\"order%C3%A9";r=0;t=1"#]);
        assert_eq!(values(&response, REMAINING), ["0"]);
    }
}
