//! The file of expectations: a JSON array of requests, each with what it should find.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use serde::Deserialize;

use super::ExpectationsError;
use super::expected::{Expected, RawExpected};
use crate::gateway::request::without_port;
use crate::rule::shown;
use crate::rules::{read_array, without_position};

/// A request, and what it should find.
#[derive(Debug)]
pub(super) struct Expectation {
    pub(super) line: usize,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) tenant: Option<Tenant>,
    pub(super) expected: Expected,
    host: Option<String>,
    comment: Option<String>,
}

/// Who asks.
#[derive(Debug)]
pub(super) enum Tenant {
    /// Whatever key it has.
    Id(String),
    /// Who has this key.
    Key(String),
}

impl Expectation {
    /// The host that routes are chosen by.
    pub(super) fn host(&self) -> Option<&str> {
        let header = || self.headers.get(header::HOST)?.to_str().ok();
        without_port(self.host.as_deref().or_else(header)?)
    }
}

/// The request, and who asks; never a key.
impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, shown(&self.path))?;
        if let Some(Tenant::Id(tenant)) = &self.tenant {
            write!(f, " of {}", shown(tenant))?;
        }
        self.comment.iter().try_for_each(|comment| write!(f, " ({})", shown(comment)))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExpectation {
    request: RawRequest,
    expect: RawExpected,
    comment: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRequest {
    method: String,
    path: String,
    host: Option<String>,
    api_key: Option<String>,
    tenant: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

/// All expectations of a file.
///
/// # Errors
/// Names every one that means nothing.
pub(super) fn read(path: &Path) -> Result<Vec<Expectation>, ExpectationsError> {
    let (mut good, mut faults) = (Vec::new(), Vec::new());
    read_array(path, |line, element| match expectation(line, element) {
        Ok(expectation) => good.push(expectation),
        Err((line, problem)) => faults.push(format!("{}:{line}: {problem}", path.display())),
    })?;
    if faults.is_empty() { Ok(good) } else { Err(ExpectationsError::Wrong(faults)) }
}

fn expectation(line: usize, json: &str) -> Result<Expectation, (usize, String)> {
    let raw: RawExpectation = serde_json::from_str(json).map_err(|error| {
        let at = line + error.line().saturating_sub(1);
        (at, format!("{}, allowed is {{\"request\": …, \"expect\": …}}", without_position(&error)))
    })?;
    let RawExpectation { request, expect, comment } = raw;
    let here = |problem| (line, problem);
    let tenant = match (request.tenant, request.api_key) {
        (Some(_), Some(_)) => {
            return Err(here("request: both tenant and api_key are given, allowed is one of them".into()));
        }
        (Some(tenant), None) => Some(Tenant::Id(tenant)),
        (None, Some(key)) => Some(Tenant::Key(key)),
        (None, None) => None,
    };
    let method = request
        .method
        .parse()
        .map_err(|_| here(format!("request: method: \"{}\" is not a method", shown(&request.method))))?;
    Ok(Expectation {
        line,
        method,
        path: request.path,
        headers: headers(&request.headers).map_err(here)?,
        tenant,
        expected: expect.judge().map_err(here)?,
        host: request.host,
        comment,
    })
}

fn headers(raw: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let header = |(name, value): (&String, &String)| {
        let parsed = name.parse::<HeaderName>().ok().zip(HeaderValue::from_bytes(value.as_bytes()).ok());
        parsed.ok_or_else(|| format!("request: headers: \"{}\" and its value are not a header", shown(name)))
    };
    raw.iter().map(header).collect()
}
