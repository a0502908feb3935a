//! `builtin = "echo"`: an upstream inside the process, for trying things out. It says what arrived, and never the key.

use bytes::Bytes;
use http::{HeaderValue, StatusCode, Version, header};
use pingora::http::ResponseHeader;
use pingora_proxy::Session;

use super::stamp::{self, Verdict};
use super::{reply, request};

#[derive(serde::Serialize)]
struct Echo<'a> {
    method: &'a str,
    path: &'a str,
    query: Option<&'a str>,
    host: Option<&'a str>,
    body_bytes: u64,
}

/// Reads the request to its end and answers 200 with a small JSON object.
///
/// # Errors
/// When the client breaks off.
pub async fn answer(session: &mut Session, verdict: Option<&Verdict>, draft: bool) -> pingora::Result<()> {
    if session.req_header().version == Version::HTTP_11 && session.req_header().headers.contains_key(header::EXPECT) {
        session.write_continue_response().await.map_err(|error| error.into_down())?;
    }
    let mut body_bytes = 0;
    while let Some(chunk) = session.read_request_body().await.map_err(|error| error.into_down())? {
        body_bytes += chunk.len() as u64;
    }
    let head = session.req_header();
    let echo = Echo {
        method: head.method.as_str(),
        path: head.uri.path(),
        query: head.uri.query(),
        host: request::host(head),
        body_bytes,
    };
    // Strings and numbers always serialise.
    let body = Bytes::from(serde_json::to_vec(&echo).unwrap_or_default());
    let mut response = ResponseHeader::build(StatusCode::OK, Some(8))?;
    response.insert_header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))?;
    response.insert_header(header::CONTENT_LENGTH, HeaderValue::from(body.len()))?;
    stamp::stamp(&mut response, verdict, draft);
    reply::write(session, response, body).await.map_err(|error| error.into_down())
}
