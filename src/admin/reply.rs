//! Answers of the admin listener.

use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json as value};

/// One line for people and probes.
pub(super) fn text(status: StatusCode, body: &str) -> Response<Vec<u8>> {
    response(status, "text/plain; charset=utf-8", body.as_bytes().to_vec())
}

/// JSON, laid out for people too.
pub(super) fn object(status: StatusCode, value: &Value) -> Response<Vec<u8>> {
    response(status, "application/json", format!("{value:#}\n").into_bytes())
}

/// As [`object`], with the fields in their own order.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Response<Vec<u8>> {
    match serde_json::to_string_pretty(value) {
        Ok(text) => response(status, "application/json", (text + "\n").into_bytes()),
        Err(error) => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into(),
    }
}

/// Why not; answered as `application/problem+json` (RFC 9457).
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    detail: String,
    /// The methods that are allowed, where this one is not.
    allowed: Option<&'static str>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), allowed: None }
    }

    pub(super) fn not_allowed(allowed: &'static str, detail: &str) -> Self {
        Self { allowed: Some(allowed), ..Self::new(StatusCode::METHOD_NOT_ALLOWED, detail) }
    }
}

impl From<Refusal> for Response<Vec<u8>> {
    fn from(Refusal { status, detail, allowed }: Refusal) -> Self {
        let problem = value!({ "title": status.canonical_reason(), "status": status.as_u16(), "detail": detail });
        let mut answer = response(status, "application/problem+json", format!("{problem:#}\n").into_bytes());
        if let Some(allowed) = allowed {
            answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
        }
        answer
    }
}

fn response(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Response<Vec<u8>> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
