//! `[[route]]`

use std::collections::HashMap;

use http::Method;

use super::path;
use super::value::{Parsed, host};
use crate::config::fault::{At, Report};
use crate::config::{Route, file};

/// Checks every route by itself and against those before it.
pub(super) fn routes(raw: &[file::Route], upstreams: &[&str], report: &Report) -> Vec<Route> {
    let mut earlier = Earlier::default();
    let checked = raw.iter().filter_map(|raw| {
        let id = report.parse(&raw.id, id);
        let methods = methods(&raw.methods, report);
        let path_shape = report.parse(&raw.path, path::shape);
        let host = report.parse(&raw.host, host);
        let upstream = report.parse(&raw.upstream, |name| known_upstream(name, upstreams));
        let limit = raw.limit.as_ref().is_none_or(|limit| limit.value);
        if let (false, Some(cost)) = (limit, &raw.cost) {
            let what = "is of no use, because limit = false exempts the route, allowed is one of the two";
            report.note(&cost.place, what);
        }
        let cost = report.integer(&raw.cost, 1..=i64::from(i32::MAX)).unwrap_or(1);
        earlier.compare_id(raw, report);
        if let Some(path_shape) = path_shape {
            earlier.compare_requests(raw, &methods, host.clone(), path_shape, report);
        }
        Some(Route { id: id?, methods, path: raw.path.as_ref()?.value.clone(), host, upstream: upstream?, cost, limit })
    });
    checked.collect()
}

/// Methods (empty: any), and the line of the route that takes them.
type Taken = (Vec<Method>, usize);

/// What the routes before this one have taken, and the lines they stand in.
#[derive(Default)]
struct Earlier<'a> {
    ids: HashMap<&'a str, usize>,
    /// By host and shape of the path.
    requests: HashMap<(Option<String>, String), Vec<Taken>>,
}

impl<'a> Earlier<'a> {
    fn compare_id(&mut self, raw: &'a file::Route, report: &Report) {
        let Some(At { value, place }) = &raw.id else { return };
        match self.ids.get(value.as_str()) {
            Some(line) => {
                let what = format!("{value:?} is the id of the route in line {line} too, allowed are unique ids");
                report.note(place, what);
            }
            None => drop(self.ids.insert(value, place.line)),
        }
    }

    fn compare_requests(
        &mut self,
        raw: &file::Route,
        methods: &[Method],
        host: Option<String>,
        path_shape: String,
        report: &Report,
    ) {
        // A host or methods that are at fault would pass for "any".
        if ["host", "methods"].into_iter().any(|key| report.is_at_fault(&raw.place.child(key))) {
            return;
        }
        let Some(At { value, place }) = &raw.path else { return };
        let taken = self.requests.entry((host, path_shape)).or_default();
        let overlap = |(taken, _): &&Taken| {
            taken.is_empty() || methods.is_empty() || methods.iter().any(|method| taken.contains(method))
        };
        if let Some((_, line)) = taken.iter().find(overlap) {
            let what = format!(
                "{value:?} is the path of the route in line {line} too, for the same host and method, allowed is one \
                 route for each"
            );
            report.note(place, what);
        }
        taken.push((methods.to_vec(), place.line));
    }
}

fn id(text: &str) -> Parsed<String> {
    if text != "*" && (1..=64).contains(&text.chars().count()) && !text.contains(char::is_control) {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is not a route id, allowed are 1 to 64 characters, no control characters, and not \"*\""))
}

fn methods(raw: &file::Texts, report: &Report) -> Vec<Method> {
    let Some(At { value: names, place }) = raw else { return Vec::new() };
    if names.is_empty() {
        report.note(place, "is empty, allowed are methods like [\"GET\", \"POST\"], or no key for any method");
    }
    names.iter().filter_map(|name| report.parse_at(name, method)).collect()
}

fn method(text: &str) -> Parsed<Method> {
    const COMMON: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"];
    // Methods are case-sensitive (RFC 9110, section 9.1): "get" would match no request that anybody sends.
    let meant = COMMON.into_iter().find(|common| text != *common && text.eq_ignore_ascii_case(common));
    match (Method::from_bytes(text.as_bytes()), meant) {
        (_, Some(meant)) => Err(format!("{text:?} is not the method {meant:?}, allowed is upper case")),
        (Ok(method), None) => Ok(method),
        (Err(_), None) => Err(format!("{text:?} is not a method, allowed are tokens like \"GET\", \"POST\"")),
    }
}

fn known_upstream(name: &str, upstreams: &[&str]) -> Parsed<String> {
    if upstreams.contains(&name) {
        return Ok(name.to_owned());
    }
    let allowed = match upstreams {
        [] => "there is no [upstream.NAME]".to_owned(),
        names => format!("allowed are {}", names.join(", ")),
    };
    Err(format!("{name:?} is not an upstream, {allowed}"))
}
