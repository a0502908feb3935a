//! Which route, tenant and limits apply to a request, and why: what the request itself would find, spending nothing.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, header};
use serde_json::{Value, json};

use crate::config::Settings;
use crate::gateway::identity::Identity;
use crate::gateway::path::normalise;
use crate::gateway::reply::Problem;
use crate::gateway::request::without_port;
use crate::gateway::route::{RouteError, RouteRef, Router};
use crate::key::KeyRef;
use crate::rule::{FailurePolicy, Mode, Rule};
use crate::rules::keys::Keys;
use crate::rules::{Resolved, Rules};

/// Answers from the same parts as the gateway.
#[derive(Debug)]
pub struct Explainer {
    router: Router,
    identity: Identity,
    header: http::HeaderName,
    key_prefix: String,
    on_store_failure: FailurePolicy,
    rules: Arc<Rules>,
}

/// A request, as somebody describes it.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Its method.
    pub method: Method,
    /// Its path, perhaps with a query string.
    pub path: String,
    /// Its host, perhaps with a port; absent: what its headers say.
    pub host: Option<String>,
    /// The API key, one more header; never repeated in the answer.
    pub api_key: Option<String>,
    /// The address it comes from.
    pub ip: Option<IpAddr>,
    /// Further headers.
    pub headers: HeaderMap,
}

impl Explainer {
    /// Over these settings, rules and keys.
    ///
    /// # Errors
    /// When the routes are no routes; a validated configuration has none such.
    pub fn new(settings: &Settings, rules: &Arc<Rules>, keys: &Arc<Keys>) -> Result<Self, RouteError> {
        Ok(Self {
            router: Router::new(&settings.routes)?,
            identity: Identity::new(settings.identity.clone(), Arc::clone(keys)),
            header: settings.identity.header.clone(),
            key_prefix: settings.store.key_prefix.clone(),
            on_store_failure: settings.limiter.on_store_failure,
            rules: Arc::clone(rules),
        })
    }

    /// One JSON object. What stops the request early (`status`) is explained in place of its limits.
    pub fn explain(&self, query: &Query) -> Value {
        let mut answer = json!({ "method": query.method.as_str(), "host": query.host(), "route": null, "limits": [] });
        if let Some(ip) = query.ip {
            answer["client"] = json!(self.identity.client_prefix(self.identity.client(ip, &query.headers)).to_string());
        }
        if let Err(problem) = self.fill(query, &mut answer) {
            answer["status"] = json!(problem.status().as_u16());
            answer["why"] = json!(problem.detail());
        }
        answer
    }

    fn fill(&self, query: &Query, answer: &mut Value) -> Result<(), Problem> {
        let path = query.path.split('?').next().unwrap_or_default();
        let path = normalise(path.as_bytes())?;
        answer["path"] = json!(path);
        let route = self.router.find(query.host(), &query.method, &path).ok_or(Problem::NotFound)?;
        answer["route"] = json!(&*route.id);
        answer["upstream"] = json!(&*route.upstream);
        if !route.limit {
            answer["why"] = json!("the route is exempt (limit = false): no key asked for, no bucket consulted");
            return Ok(());
        }
        let mut headers = query.headers.clone();
        if let Some(key) = &query.api_key {
            let value = HeaderValue::from_bytes(key.as_bytes());
            headers.append(
                &self.header,
                value.map_err(|_| Problem::BadRequest("the API key is no header's value".into()))?,
            );
        }
        let tenant = self.identity.tenant(&headers)?;
        answer["tenant"] = json!(tenant.id());
        let rules = self.rules.load();
        let resolved = rules.resolve(tenant.id(), &route.id);
        let chain = rules.chain(tenant.id(), &route.id);
        answer["chain"] = chain.into_iter().flatten().map(|rule| link(rule, &resolved)).collect();
        let limits = [Some(resolved.enforce), resolved.shadow];
        let limit = |rule: &Arc<Rule>| {
            let why = if Arc::ptr_eq(rule, rules.default_rule()) {
                "no rule applies; limiter.default_rule"
            } else {
                why(rule)
            };
            self.limit(tenant.id(), route, rule, why)
        };
        answer["limits"] = limits.into_iter().flatten().map(limit).collect();
        Ok(())
    }

    fn limit(&self, tenant: &str, route: &RouteRef, rule: &Rule, why: &str) -> Value {
        let shadow = rule.mode == Mode::Shadow;
        let bucket = |shard| KeyRef { tenant, route: &route.id, shadow, shard }.to_key().in_redis(&self.key_prefix);
        let mut limit = json!({
            "rule": format!("{}/{}", rule.tenant_id, rule.route_id),
            "why": why,
            "mode": rule.mode,
            "capacity": rule.limit.capacity(),
            "refill_per_second": rule.limit.refill_per_second(),
            "cost": rule.cost.map_or(route.cost, u32::from),
            "on_store_failure": rule.on_store_failure.unwrap_or(self.on_store_failure),
            "comment": rule.comment,
        });
        match rule.shards {
            0 | 1 => limit["bucket"] = json!(bucket(None)),
            shards => limit["buckets"] = (0..shards).map(|shard| bucket(Some(shard))).collect(),
        }
        limit
    }
}

impl Query {
    /// The host that routes are chosen by.
    fn host(&self) -> Option<&str> {
        let header = || self.headers.get(header::HOST)?.to_str().ok();
        without_port(self.host.as_deref().or_else(header)?)
    }
}

fn why(rule: &Rule) -> &'static str {
    match (&*rule.tenant_id, &*rule.route_id) {
        ("*", "*") => "no rule of this tenant or route applies; a rule for everybody",
        ("*", _) => "no rule of this tenant applies; a rule for this route",
        (_, "*") => "no rule for this tenant and route applies; a rule for this tenant",
        _ => "a rule for this tenant and route",
    }
}

/// A rule that was looked at, and what it does about this request.
fn link(rule: &Arc<Rule>, resolved: &Resolved<'_>) -> Value {
    let state = if !rule.enabled {
        "disabled: skipped"
    } else if Arc::ptr_eq(rule, resolved.enforce) {
        "enforces"
    } else if resolved.shadow.is_some_and(|shadow| Arc::ptr_eq(rule, shadow)) {
        "shadow: counted, decides nothing"
    } else {
        "not reached: a rule before it applies"
    };
    json!({ "rule": format!("{}/{}", rule.tenant_id, rule.route_id), "state": state })
}
