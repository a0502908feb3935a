//! `[[route]]`

use std::collections::HashMap;

use http::Method;

use super::path;
use super::value::{Parsed, host};
use crate::config::fault::{At, Report};
use crate::config::{Route, file};

/// Checks every route by itself and against those before it.
pub(super) fn routes(raw: &[file::Route], upstreams: &[&str], report: &Report) -> Vec<Route> {
    let mut ids: HashMap<&str, usize> = HashMap::new();
    let mut taken: HashMap<(Option<String>, String), Vec<Taken>> = HashMap::new();
    let mut routes = Vec::with_capacity(raw.len());
    for route in raw {
        let id = report.parse(&route.id, id);
        if let Some(At { value, place }) = &route.id {
            if let Some(line) = ids.get(value.as_str()) {
                report.note(
                    place,
                    format!("{value:?} is the id of the route in line {line} too, allowed are unique ids"),
                );
            }
            ids.entry(value).or_insert(place.line);
        }
        let (methods, methods_are_known) = methods(route.methods.as_ref(), report);
        let host_name = report.parse(&route.host, host);
        let shape = report.parse(&route.path, path::shape);
        if let (Some(shape), Some(At { value, place }), true) = (shape, &route.path, methods_are_known) {
            let earlier = taken.entry((host_name.clone(), shape)).or_default();
            let this = Taken { methods: methods.clone(), line: place.line };
            if let Some(other) = earlier.iter().find(|other| other.overlaps(&this)) {
                let what = format!(
                    "{value:?} is the path of the route in line {} too, for the same host and method, allowed is one \
                     route for each",
                    other.line
                );
                report.note(place, what);
            }
            earlier.push(this);
        }
        let upstream = report.parse(&route.upstream, |name| known_upstream(name, upstreams));
        let limit = route.limit.as_ref().is_none_or(|limit| limit.value);
        if let (false, Some(cost)) = (limit, &route.cost) {
            report
                .note(&cost.place, "is of no use, because limit = false exempts the route, allowed is one of the two");
        }
        let cost = report.integer(&route.cost, 1..=i64::from(i32::MAX)).unwrap_or(1);
        if let (Some(id), Some(path), Some(upstream)) = (id, &route.path, upstream) {
            routes.push(Route { id, methods, path: path.value.clone(), host: host_name, upstream, cost, limit });
        }
    }
    routes
}

/// What an earlier route of the same host and path shape takes.
struct Taken {
    methods: Vec<Method>,
    line: usize,
}

impl Taken {
    fn overlaps(&self, other: &Self) -> bool {
        let any = self.methods.is_empty() || other.methods.is_empty();
        any || self.methods.iter().any(|method| other.methods.contains(method))
    }
}

fn id(text: &str) -> Parsed<String> {
    if text != "*" && (1..=64).contains(&text.chars().count()) && !text.contains(char::is_control) {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is not a route id, allowed are 1 to 64 characters, no control characters, and not \"*\""))
}

/// The methods, and whether all of them could be read.
fn methods(raw: Option<&At<Vec<At<String>>>>, report: &Report) -> (Vec<Method>, bool) {
    let Some(At { value: names, place }) = raw else { return (Vec::new(), true) };
    if names.is_empty() {
        report.note(place, "is empty, allowed are methods like [\"GET\", \"POST\"], or no key for any method");
    }
    let methods: Vec<Method> = names.iter().filter_map(|name| report.parse_at(name, method)).collect();
    let all_known = !names.is_empty() && methods.len() == names.len();
    (methods, all_known)
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
