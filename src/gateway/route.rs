//! Which route a request takes: by host, method and path in normal form.
//!
//! Routes with a host come before those without. Of the paths that match, the more specific wins, segment by segment
//! from the left: a literal before `{param}` before `{*rest}`; routes whose methods do not fit do not count. There is one
//! path table for each host and method, so that a look-up neither allocates nor tries routes in turn.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use http::Method;

use crate::config;

/// A route, as the phases of a request see it.
#[derive(Clone, Debug)]
pub struct RouteRef {
    /// Its id.
    pub id: Arc<str>,
    /// Its place in [`config::Settings::routes`].
    pub index: usize,
    /// A key of [`config::Settings::upstreams`].
    pub upstream: Arc<str>,
    /// Tokens one request takes where the rule does not say, ≥ 1.
    pub cost: u32,
    /// `false`: exempt, no key asked for, no bucket consulted.
    pub limit: bool,
}

/// Why routes do not make a router.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Two routes answer the same requests.
    #[error("routes \"{first}\" and \"{second}\" both answer {method} {path}")]
    Conflict {
        /// The id of the earlier one.
        first: String,
        /// The id of the later one.
        second: String,
        /// A method both answer, or `*`.
        method: String,
        /// The path of the later one.
        path: String,
    },
    /// A path that is no pattern.
    #[error("route \"{route}\": path \"{path}\": {reason}")]
    Pattern {
        /// The route's id.
        route: String,
        /// Its path.
        path: String,
        /// What is wrong.
        reason: String,
    },
}

/// All routes, indexed.
#[derive(Debug)]
pub struct Router {
    routes: Vec<RouteRef>,
    by_host: HashMap<Box<str>, Methods>,
    any_host: Methods,
}

impl Router {
    /// Indexes the routes of the configuration.
    ///
    /// # Errors
    /// Names the routes that contradict each other, or the path that is no pattern.
    pub fn new(routes: &[config::Route]) -> Result<Self, RouteError> {
        let order = specificity(routes);
        let on_host = |host: Option<&str>| -> Vec<usize> {
            (0..routes.len()).filter(|&index| routes[index].host.as_deref() == host).collect()
        };
        let hosts: BTreeSet<&str> = routes.iter().filter_map(|route| route.host.as_deref()).collect();
        let mut by_host = HashMap::with_capacity(hosts.len());
        for host in hosts {
            by_host.insert(host.into(), Methods::new(routes, &on_host(Some(host)), &order)?);
        }
        let any_host = Methods::new(routes, &on_host(None), &order)?;
        let mut upstreams: HashSet<Arc<str>> = HashSet::new();
        let mut upstream = |name: &str| match upstreams.get(name) {
            Some(known) => Arc::clone(known),
            None => {
                let name: Arc<str> = name.into();
                upstreams.insert(Arc::clone(&name));
                name
            }
        };
        let routes = routes
            .iter()
            .enumerate()
            .map(|(index, route)| RouteRef {
                id: route.id.as_str().into(),
                index,
                upstream: upstream(&route.upstream),
                cost: route.cost,
                limit: route.limit,
            })
            .collect();
        Ok(Self { routes, by_host, any_host })
    }

    /// The route of a request. `host` is without port, in any case; `path` is in normal form ([`super::path`]).
    pub fn find(&self, host: Option<&str>, method: &Method, path: &str) -> Option<&RouteRef> {
        let on_host = || {
            // Most gateways have no routes by host, and most clients send lower case.
            let host = host.filter(|_| !self.by_host.is_empty())?;
            let host = match host.bytes().any(|byte| byte.is_ascii_uppercase()) {
                true => Cow::Owned(host.to_ascii_lowercase()),
                false => Cow::Borrowed(host),
            };
            self.by_host.get(host.as_ref())?.find(method, path)
        };
        let index = on_host().or_else(|| self.any_host.find(method, path))?;
        self.routes.get(index)
    }

    /// All routes, in the order of the configuration: [`RouteRef::index`] is the place.
    pub fn routes(&self) -> &[RouteRef] {
        &self.routes
    }
}

/// The routes of one host, by method.
#[derive(Debug)]
struct Methods {
    /// For each method that some route lists (and `HEAD` where `GET` is listed): every route that answers it.
    listed: Vec<(Method, Paths)>,
    /// For all others: the routes of any method.
    other: Paths,
}

impl Methods {
    fn new(routes: &[config::Route], members: &[usize], order: &[usize]) -> Result<Self, RouteError> {
        let mut methods: HashSet<&Method> = members.iter().flat_map(|&index| &routes[index].methods).collect();
        if methods.contains(&Method::GET) {
            methods.insert(&Method::HEAD);
        }
        let listed = methods
            .into_iter()
            .map(|method| Ok((method.clone(), Paths::new(routes, members, order, Some(method))?)))
            .collect::<Result<_, RouteError>>()?;
        Ok(Self { listed, other: Paths::new(routes, members, order, None)? })
    }

    fn find(&self, method: &Method, path: &str) -> Option<usize> {
        let paths = self.listed.iter().find(|(listed, _)| listed == method).map_or(&self.other, |(_, paths)| paths);
        paths.find(path)
    }
}

/// How well a route's methods fit; the better takes a path from the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    Listed,
    HeadOfGet,
    Any,
}

fn fit(route: &config::Route, method: Option<&Method>) -> Option<Fit> {
    match method {
        _ if route.methods.is_empty() => Some(Fit::Any),
        Some(method) if route.methods.contains(method) => Some(Fit::Listed),
        // RFC 9110 section 9.3.2: HEAD is GET without the content.
        Some(&Method::HEAD) if route.methods.contains(&Method::GET) => Some(Fit::HeadOfGet),
        _ => None,
    }
}

/// The paths that one method has on one host. `{param}` and `{*rest}` at the same place are two tables, because one
/// table refuses them; the more specific of the two answers counts.
#[derive(Debug, Default)]
struct Paths {
    whole: matchit::Router<Entry>,
    rest: matchit::Router<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Less is more specific.
    order: usize,
    index: usize,
}

impl Paths {
    fn new(
        routes: &[config::Route],
        members: &[usize],
        order: &[usize],
        method: Option<&Method>,
    ) -> Result<Self, RouteError> {
        let mut candidates: Vec<(Fit, usize)> =
            members.iter().filter_map(|&index| Some((fit(&routes[index], method)?, index))).collect();
        candidates.sort_unstable();
        let mut paths = Self::default();
        let mut taken: HashMap<String, (Fit, usize)> = HashMap::new();
        for (fit, index) in candidates {
            let route = &routes[index];
            match taken.get(&nameless(&route.path)) {
                Some((earlier, first)) if *earlier == fit => {
                    return Err(RouteError::Conflict {
                        first: routes[*first].id.clone(),
                        second: route.id.clone(),
                        method: method.map_or("*", Method::as_str).to_owned(),
                        path: route.path.clone(),
                    });
                }
                Some(_) => continue,
                None => taken.insert(nameless(&route.path), (fit, index)),
            };
            paths.insert(&route.path, Entry { order: order[index], index }).map_err(|error| RouteError::Pattern {
                route: route.id.clone(),
                path: route.path.clone(),
                reason: error.to_string(),
            })?;
        }
        Ok(paths)
    }

    fn insert(&mut self, path: &str, entry: Entry) -> Result<(), matchit::InsertError> {
        match path.rfind("{*") {
            None => self.whole.insert(path, entry),
            Some(at) => {
                // The rest may be empty: `/a/{*rest}` is also `/a/`.
                self.rest.insert(&path[..at], entry)?;
                self.rest.insert(path, entry)
            }
        }
    }

    fn find(&self, path: &str) -> Option<usize> {
        let whole = self.whole.at(path).ok().map(|found| *found.value);
        let rest = self.rest.at(path).ok().map(|found| *found.value);
        whole.into_iter().chain(rest).min_by_key(|entry| entry.order).map(|entry| entry.index)
    }
}

/// The pattern without the names of its parameters, which distinguish nothing.
fn nameless(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((literal, parameter)) = rest.split_once('{') {
        let (name, after) = parameter.split_once('}').unwrap_or((parameter, ""));
        out.push_str(literal);
        out.push_str(if name.starts_with('*') { "{*}" } else { "{}" });
        rest = after;
    }
    out + rest
}

/// For each route its rank among all by how specific its path is; less is more specific.
fn specificity(routes: &[config::Route]) -> Vec<usize> {
    let kinds = |route: &config::Route| -> Vec<u8> {
        route
            .path
            .split('/')
            .map(|segment| match segment {
                _ if !segment.contains('{') => 0,
                _ if segment.starts_with("{*") => 3,
                _ if segment.starts_with('{') && segment.ends_with('}') => 2,
                _ => 1,
            })
            .collect()
    };
    let mut sorted: Vec<usize> = (0..routes.len()).collect();
    sorted.sort_by_cached_key(|&index| kinds(&routes[index]));
    let mut order = vec![0; routes.len()];
    for (rank, index) in sorted.into_iter().enumerate() {
        order[index] = rank;
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(id: &str, methods: &[&str], host: Option<&str>, path: &str) -> config::Route {
        config::Route {
            id: id.to_owned(),
            methods: methods.iter().map(|method| method.parse().unwrap()).collect(),
            path: path.to_owned(),
            host: host.map(str::to_owned),
            upstream: "demo".to_owned(),
            cost: 1,
            limit: true,
        }
    }

    fn router(routes: &[(&str, &[&str], Option<&str>, &str)]) -> Result<Router, RouteError> {
        Router::new(&routes.iter().map(|(id, methods, host, path)| route(id, methods, *host, path)).collect::<Vec<_>>())
    }

    fn found<'r>(router: &'r Router, method: &str, path: &str) -> Option<&'r str> {
        router.find(None, &method.parse().unwrap(), path).map(|route| &*route.id)
    }

    #[test]
    fn the_more_specific_path_wins_segment_by_segment() {
        let router = router(&[
            ("rest", &[], None, "/{*rest}"),
            ("order", &[], None, "/orders/{id}"),
            ("order-rest", &[], None, "/orders/{*rest}"),
            ("order-new", &[], None, "/orders/new"),
            ("new-rest", &[], None, "/orders/new/{*rest}"),
            ("item", &[], None, "/orders/{id}/items"),
            ("any-items", &[], None, "/{kind}/{id}/items"),
        ])
        .unwrap();
        for (path, id) in [
            ("/", "rest"),
            ("/orders", "rest"),
            ("/orders/", "order-rest"),
            ("/orders/7", "order"),
            ("/orders/new", "order-new"),
            ("/orders/new/", "new-rest"),
            ("/orders/new/items", "new-rest"),
            ("/orders/7/items", "item"),
            ("/orders/7/other", "order-rest"),
            ("/carts/7/items", "any-items"),
            ("/carts/7/other", "rest"),
        ] {
            assert_eq!(found(&router, "GET", path), Some(id), "{path}");
        }
    }

    #[test]
    fn a_trailing_slash_is_another_path() {
        let router = router(&[("orders", &[], None, "/orders"), ("order", &[], None, "/orders/{id}")]).unwrap();
        assert_eq!(found(&router, "GET", "/orders"), Some("orders"));
        assert_eq!(found(&router, "GET", "/orders/"), None);
        assert_eq!(found(&router, "GET", "/orders/7/"), None);
    }

    #[test]
    fn a_route_whose_methods_do_not_fit_leaves_the_request_to_a_less_specific_one() {
        let router = router(&[
            ("post", &["POST"], None, "/orders/new"),
            ("get", &["GET"], None, "/orders/{id}"),
            ("rest", &[], None, "/{*rest}"),
        ])
        .unwrap();
        assert_eq!(found(&router, "POST", "/orders/new"), Some("post"));
        assert_eq!(found(&router, "GET", "/orders/new"), Some("get"));
        assert_eq!(found(&router, "PUT", "/orders/new"), Some("rest"));
        assert_eq!(found(&router, "BREW", "/orders/new"), Some("rest"));
    }

    #[test]
    fn a_listed_method_comes_before_any_method_on_the_same_path() {
        let router = router(&[("any", &[], None, "/a/{x}"), ("get", &["GET"], None, "/a/{y}")]).unwrap();
        assert_eq!(found(&router, "GET", "/a/1"), Some("get"));
        assert_eq!(found(&router, "HEAD", "/a/1"), Some("get"));
        assert_eq!(found(&router, "POST", "/a/1"), Some("any"));
    }

    #[test]
    fn head_goes_where_get_goes_unless_a_route_lists_it() {
        let router =
            router(&[("get", &["GET"], None, "/a"), ("b", &["GET"], None, "/b"), ("h", &["HEAD"], None, "/b")]);
        let router = router.unwrap();
        assert_eq!(found(&router, "HEAD", "/a"), Some("get"));
        assert_eq!(found(&router, "HEAD", "/b"), Some("h"));
        assert_eq!(found(&router, "POST", "/a"), None);
    }

    #[test]
    fn a_host_comes_first_in_any_case_and_falls_back_to_routes_without() {
        let router =
            router(&[("api", &["GET"], Some("api.example.com"), "/{*rest}"), ("exact", &[], None, "/exact")]).unwrap();
        let find = |host, method: Method| router.find(host, &method, "/exact").map(|route| &*route.id);
        assert_eq!(find(Some("API.example.com"), Method::GET), Some("api"));
        assert_eq!(find(Some("api.example.com"), Method::POST), Some("exact"));
        assert_eq!(find(Some("other"), Method::GET), Some("exact"));
        assert_eq!(find(None, Method::GET), Some("exact"));
    }

    #[test]
    fn names_of_parameters_do_not_distinguish_routes() {
        let conflict = router(&[("a", &["GET", "PUT"], None, "/o/{id}"), ("b", &["PUT"], None, "/o/{name}")]);
        let text = conflict.unwrap_err().to_string();
        assert_eq!(text, "routes \"a\" and \"b\" both answer PUT /o/{name}");
        assert!(router(&[("a", &[], None, "/o/{id}/x"), ("b", &[], None, "/o/{name}/y")]).is_ok());
        assert!(router(&[("a", &["GET"], None, "/o"), ("b", &["PUT"], None, "/o")]).is_ok());
        assert!(router(&[("a", &[], Some("x"), "/o"), ("b", &[], Some("y"), "/o")]).is_ok());
        assert!(router(&[("a", &[], None, "/{*r}"), ("b", &[], None, "/{*s}")]).is_err());
    }

    #[test]
    fn a_path_that_is_no_pattern_is_named() {
        let error = router(&[("a", &[], None, "/{a}{b}")]).unwrap_err();
        assert!(matches!(error, RouteError::Pattern { ref route, .. } if route == "a"), "{error}");
    }
}
