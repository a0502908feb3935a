//! Answers that the gateway writes itself: RFC 9457 `application/problem+json`. They say what the client did or may do,
//! and nothing about addresses, keys or internals.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, Version, header};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorSource, ErrorType};
use pingora_proxy::Session;

use super::identity::IdentityError;
use super::path::PathError;
use super::stamp::{self, Verdict};
use crate::decision::Outcome;

/// A body the client still sends is read to its end, and the connection kept, up to this size (bytes) …
const KEPT_BODY: u64 = 64 << 10;
/// … and thrown away up to this size (bytes) otherwise: closing while bytes arrive makes the kernel send a reset, which
/// can take the answer with it before the client has read it.
const DISCARDED_BODY: usize = 16 << 20;
/// The longest either takes.
const DISCARD_TIME: Duration = Duration::from_secs(1);

/// Why a request is not answered by its upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// 400, and what is wrong.
    BadRequest(Cow<'static, str>),
    /// 401, and what is missing.
    Unauthorized(Cow<'static, str>),
    /// 404: no route for host, path and method.
    NotFound,
    /// 408: the rest of the request did not come.
    RequestTimeout,
    /// 429
    TooManyRequests {
        /// `tenant/route` of the rule.
        policy: String,
        /// Seconds; absent where waiting does not help.
        retry_after: Option<u32>,
    },
    /// 500: a fault of the gateway.
    Internal,
    /// 502: the upstream refused, broke off, or did not speak HTTP.
    BadGateway,
    /// 503: the store does not answer and the rule says `closed`.
    Unavailable,
    /// 504: the upstream did not connect or answer in time.
    GatewayTimeout,
}

#[derive(serde::Serialize)]
struct Body<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    violated_policies: Option<[&'a str; 1]>,
}

impl Problem {
    /// The refusal that a verdict means, if it is one.
    pub fn of(verdict: &Verdict) -> Option<Self> {
        match verdict.decision.outcome {
            Outcome::Allowed => None,
            Outcome::Denied { retry_after } => {
                Some(Self::TooManyRequests { policy: verdict.policy(), retry_after: retry_after.map(|s| s.max(1)) })
            }
            Outcome::Unavailable => Some(Self::Unavailable),
        }
    }

    /// What a failed exchange means to the client; `None` when there is no client any more.
    pub fn of_failure(error: &Error) -> Option<Self> {
        use ErrorType::{
            ConnectTimedout, ConnectionClosed, H2Error, ReadError, ReadTimedout, TLSHandshakeTimedout, WriteError,
            WriteTimedout,
        };
        match (error.esource(), error.etype()) {
            (ErrorSource::Upstream, ConnectTimedout | TLSHandshakeTimedout | ReadTimedout | WriteTimedout) => {
                Some(Self::GatewayTimeout)
            }
            (ErrorSource::Upstream, _) => Some(Self::BadGateway),
            (ErrorSource::Downstream, ReadTimedout) => Some(Self::RequestTimeout),
            (ErrorSource::Downstream, WriteError | ReadError | WriteTimedout | ConnectionClosed | H2Error) => None,
            (ErrorSource::Downstream, _) => Some(Self::BadRequest("the request is malformed".into())),
            (ErrorSource::Internal | ErrorSource::Unset, _) => Some(Self::Internal),
        }
    }

    /// Its status code.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::Unauthorized(_) => StatusCode::UNAUTHORIZED,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::TooManyRequests { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::BadGateway => StatusCode::BAD_GATEWAY,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::GatewayTimeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// One sentence for the client.
    pub fn detail(&self) -> &str {
        match self {
            Self::BadRequest(detail) | Self::Unauthorized(detail) => detail,
            Self::NotFound => "no route for this host, path and method",
            Self::RequestTimeout => "the rest of the request did not arrive in time",
            Self::TooManyRequests { retry_after: Some(_), .. } => "the rate limit is exceeded",
            Self::TooManyRequests { retry_after: None, .. } => "the request costs more than the limit ever allows",
            Self::Internal => "the gateway could not handle the request",
            Self::BadGateway => "the upstream did not give a valid answer",
            Self::Unavailable => "the rate limit cannot be checked at the moment",
            Self::GatewayTimeout => "the upstream did not answer in time",
        }
    }

    fn body(&self) -> Bytes {
        let (kind, policy) = match self {
            Self::TooManyRequests { policy, .. } => {
                ("https://iana.org/assignments/http-problem-types#quota-exceeded", Some([policy.as_str()]))
            }
            _ => ("about:blank", None),
        };
        let body = Body {
            r#type: kind,
            title: self.status().canonical_reason().unwrap_or_default(),
            status: self.status().as_u16(),
            detail: self.detail(),
            violated_policies: policy,
        };
        // Strings and numbers always serialise.
        serde_json::to_vec(&body).unwrap_or_default().into()
    }

    fn response(&self, verdict: Option<&Verdict>, draft: bool) -> pingora::Result<(ResponseHeader, Bytes)> {
        let body = self.body();
        let mut response = ResponseHeader::build(self.status(), Some(10))?;
        response.insert_header(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"))?;
        response.insert_header(header::CONTENT_LENGTH, HeaderValue::from(body.len()))?;
        response.insert_header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))?;
        match self {
            Self::TooManyRequests { retry_after: Some(seconds), .. } => {
                response.insert_header("Retry-After", HeaderValue::from(*seconds))?;
            }
            Self::Unavailable => response.insert_header("Retry-After", HeaderValue::from(1))?,
            // RFC 9110 section 11.6.1: a 401 carries a challenge.
            Self::Unauthorized(_) => response.insert_header("WWW-Authenticate", HeaderValue::from_static("ApiKey"))?,
            _ => {}
        }
        stamp::stamp(&mut response, verdict, draft);
        Ok((response, body))
    }
}

impl From<IdentityError> for Problem {
    fn from(error: IdentityError) -> Self {
        let detail = error.to_string().into();
        match error {
            IdentityError::Missing | IdentityError::Unknown => Self::Unauthorized(detail),
            IdentityError::Repeated | IdentityError::TooLong | IdentityError::Characters => Self::BadRequest(detail),
        }
    }
}

impl From<PathError> for Problem {
    fn from(error: PathError) -> Self {
        Self::BadRequest(error.to_string().into())
    }
}

/// Writes a problem as the answer, stamped. The connection is kept where the rest of the request is small; a client that
/// sends more gets the answer before the connection closes.
///
/// # Errors
/// When the client is gone.
pub async fn send(
    session: &mut Session,
    problem: &Problem,
    verdict: Option<&Verdict>,
    draft: bool,
) -> pingora::Result<()> {
    let (response, body) = problem.response(verdict, draft)?;
    let rest = Rest::of(session);
    match rest {
        // Otherwise Pingora announces that it closes while any of the body is unread.
        Rest::Small => session.set_close_on_response_before_downstream_finish(false),
        Rest::Done | Rest::Withheld | Rest::Large => {}
    }
    write(session, response, body).await?;
    rest.read(session).await;
    Ok(())
}

/// Announces the end of the connection: a client that is not told sends its next request into a closed one.
fn end_when_stopping(session: &mut Session) {
    if session.is_process_shutting_down() {
        session.set_keepalive(None);
    }
}

/// Fits an upstream's answer to the connection it goes out on.
pub fn suit(session: &mut Session, response: &mut ResponseHeader) {
    end_when_stopping(session);
    // Pingora would close the connection of every client that sends its body only after this 100.
    session.set_close_on_response_before_downstream_finish(!stamp::is_interim(response));
    // RFC 9112 section 6.1: HTTP/1.0 knows no chunks; there the end of the connection is the end of the body.
    if session.req_header().version == Version::HTTP_10 && response.headers.contains_key(header::TRANSFER_ENCODING) {
        response.remove_header(&header::TRANSFER_ENCODING);
        session.set_keepalive(None);
    }
}

/// Writes an answer with a body of known length; none goes out to a `HEAD`.
///
/// # Errors
/// When the client is gone.
pub async fn write(session: &mut Session, response: ResponseHeader, body: Bytes) -> pingora::Result<()> {
    end_when_stopping(session);
    let body = (session.req_header().method != Method::HEAD).then_some(body).filter(|body| !body.is_empty());
    session.write_response_header(Box::new(response), body.is_none()).await?;
    session.write_response_body(body, true).await
}

/// What of the request has not been read when it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// Nothing.
    Done,
    /// A body that waits for a 100: it will not come. (Over HTTP/2 it is read like any other: ending the stream early
    /// takes the answer with it, and the client ends its half when it has the answer.)
    Withheld,
    /// A body of at most [`KEPT_BODY`].
    Small,
    /// A longer body, or one of unknown length.
    Large,
}

impl Rest {
    fn of(session: &mut Session) -> Self {
        if session.is_body_done() {
            return Self::Done;
        }
        let headers = &session.req_header().headers;
        if !session.is_http2() && headers.contains_key(header::EXPECT) {
            return Self::Withheld;
        }
        let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        match length {
            Some(length) if length <= KEPT_BODY => Self::Small,
            _ => Self::Large,
        }
    }

    async fn read(self, session: &mut Session) {
        match self {
            Self::Done | Self::Withheld => {}
            Self::Small | Self::Large => {
                let all = tokio::time::timeout(DISCARD_TIME, discard(session)).await.unwrap_or(false);
                if !all {
                    session.set_keepalive(None);
                }
            }
        }
    }
}

/// Reads and drops the rest of the body; `true` at its end.
async fn discard(session: &mut Session) -> bool {
    let mut bytes = 0;
    while bytes <= DISCARDED_BODY {
        match session.read_request_body().await {
            Ok(Some(chunk)) => bytes += chunk.len(),
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bucket::Limit;
    use crate::decision::{Decision, Quota, Source};
    use crate::rule::Rule;

    fn verdict(outcome: Outcome, quota: Option<Quota>) -> Verdict {
        let rule = Rule::new("shop \"a\"\n", "*", Limit::new(2, 1.0).unwrap());
        Verdict { decision: Decision { outcome, source: Source::Store, quota }, rule: Arc::new(rule) }
    }

    fn text(response: &ResponseHeader, name: &str) -> Option<String> {
        response.headers.get(name).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_denial_is_a_429_with_all_its_headers_and_the_rule_in_the_body() {
        let quota = Quota::new(Limit::new(2, 1.0).unwrap(), 0);
        let verdict = verdict(Outcome::Denied { retry_after: Some(3) }, Some(quota));
        let (response, body) = Problem::of(&verdict).unwrap().response(Some(&verdict), false).unwrap();
        assert_eq!(response.status, 429);
        for (name, value) in [
            ("Retry-After", "3"),
            ("Cache-Control", "no-store"),
            ("Content-Type", "application/problem+json"),
            ("X-RateLimit-Limit", "2"),
            ("X-RateLimit-Remaining", "0"),
            ("Content-Length", &body.len().to_string()),
        ] {
            assert_eq!(text(&response, name).as_deref(), Some(value), "{name}");
        }
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["status"], 429);
        assert_eq!(body["violated-policies"], serde_json::json!(["shop \"a\"\n/*"]));
    }

    #[test]
    fn a_request_that_can_never_pass_is_not_told_to_wait() {
        let quota = Quota::new(Limit::new(2, 1.0).unwrap(), 2);
        let verdict = verdict(Outcome::Denied { retry_after: None }, Some(quota));
        let (response, _) = Problem::of(&verdict).unwrap().response(Some(&verdict), false).unwrap();
        assert_eq!(response.status, 429);
        assert_eq!(text(&response, "Retry-After"), None);
    }

    #[test]
    fn an_unavailable_store_is_a_503_that_may_be_retried_in_a_second() {
        let verdict = verdict(Outcome::Unavailable, None);
        let (response, _) = Problem::of(&verdict).unwrap().response(Some(&verdict), true).unwrap();
        assert_eq!(response.status, 503);
        assert_eq!(text(&response, "Retry-After").as_deref(), Some("1"));
        assert_eq!(text(&response, "X-RateLimit-Limit"), None);
        assert_eq!(text(&response, "RateLimit"), None);
    }

    #[test]
    fn an_allowed_request_is_no_problem() {
        assert_eq!(Problem::of(&verdict(Outcome::Allowed, None)), None);
    }

    #[test]
    fn failures_tell_time_from_breakage_and_a_client_that_left_from_one_that_waits() {
        let problem = |source, kind| Problem::of_failure(&Error::create(kind, source, None, None));
        for kind in [ErrorType::ConnectTimedout, ErrorType::ReadTimedout, ErrorType::TLSHandshakeTimedout] {
            assert_eq!(problem(ErrorSource::Upstream, kind), Some(Problem::GatewayTimeout));
        }
        for kind in [ErrorType::ConnectRefused, ErrorType::ConnectionClosed, ErrorType::InvalidHTTPHeader] {
            assert_eq!(problem(ErrorSource::Upstream, kind), Some(Problem::BadGateway));
        }
        assert_eq!(problem(ErrorSource::Downstream, ErrorType::ConnectionClosed), None);
        assert_eq!(problem(ErrorSource::Downstream, ErrorType::WriteError), None);
        assert_eq!(problem(ErrorSource::Downstream, ErrorType::ReadTimedout), Some(Problem::RequestTimeout));
        assert!(matches!(problem(ErrorSource::Downstream, ErrorType::InvalidHTTPHeader), Some(Problem::BadRequest(_))));
        assert_eq!(problem(ErrorSource::Internal, ErrorType::InternalError), Some(Problem::Internal));
    }

    #[test]
    fn every_problem_has_a_body_of_the_announced_length() {
        for problem in [
            Problem::BadRequest("x".into()),
            IdentityError::Unknown.into(),
            PathError::Escape.into(),
            Problem::NotFound,
            Problem::BadGateway,
            Problem::GatewayTimeout,
            Problem::Internal,
        ] {
            let (response, body) = problem.response(None, true).unwrap();
            let parsed: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(parsed["status"], problem.status().as_u16());
            assert_eq!(text(&response, "Content-Length"), Some(body.len().to_string()));
            assert_eq!(text(&response, "X-RateLimit-Limit"), None);
        }
    }
}
