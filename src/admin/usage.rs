//! `/api/v1/top` and `/api/v1/tenants/{tenant}`: who was limited.

use http::{Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde_json::json;

use super::reply::object;
use crate::rule::LONGEST_ID;
use crate::usage::Usage;

/// What stands before a tenant.
pub(super) const TENANTS: &str = "/api/v1/tenants/";
/// How many are shown where nobody says.
const SHOWN: usize = 20;
/// The most that are shown.
const MOST_SHOWN: usize = 1000;

pub(super) fn top(usage: Option<&Usage>, query: &str) -> Response<Vec<u8>> {
    let Some(usage) = usage else { return disabled() };
    match limit(query) {
        Ok(limit) => shown(&usage.top(limit)),
        Err(why) => bad(&why),
    }
}

pub(super) async fn tenant(usage: Option<&Usage>, path: &str, query: &str) -> Response<Vec<u8>> {
    let Some(usage) = usage else { return disabled() };
    if !query.is_empty() {
        return bad("there are no parameters");
    }
    let decoded = percent_decode_str(path.strip_prefix(TENANTS).unwrap_or_default()).decode_utf8();
    match decoded {
        Ok(id) if (1..=LONGEST_ID).contains(&id.chars().count()) && !id.chars().any(char::is_control) => {
            shown(&usage.tenant(&id).await)
        }
        _ => bad("tenant: is no id, allowed are 1 to 64 characters, percent-encoded, none of them a control character"),
    }
}

fn limit(query: &str) -> Result<usize, String> {
    let mut limit = SHOWN;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name != "limit" {
            return Err(format!("{name}: unknown, allowed is limit"));
        }
        limit = value.parse().ok().filter(|limit| (1..=MOST_SHOWN).contains(limit)).ok_or_else(|| {
            format!("limit: \"{value}\" is out of range, allowed are integers from 1 to {MOST_SHOWN}")
        })?;
    }
    Ok(limit)
}

fn shown(answer: &impl Serialize) -> Response<Vec<u8>> {
    object(StatusCode::OK, &json!(answer))
}

fn bad(why: &str) -> Response<Vec<u8>> {
    object(StatusCode::BAD_REQUEST, &json!({ "error": why }))
}

fn disabled() -> Response<Vec<u8>> {
    let why = "nothing is counted: usage.enabled is false in the configuration";
    object(StatusCode::NOT_FOUND, &json!({ "error": why }))
}
