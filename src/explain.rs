//! Which route, tenant and limits apply to a request, and why: what the request itself would find, spending nothing.

mod chain;

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
use crate::limiter::Limiter;
use crate::rule::{FailurePolicy, Mode, Rule};
use crate::rules::Rules;
use crate::rules::keys::Keys;

/// Answers from the same parts as the gateway.
#[derive(Debug)]
pub struct Explainer {
    router: Router,
    identity: Identity,
    header: http::HeaderName,
    key_prefix: String,
    on_store_failure: FailurePolicy,
    /// Gateways that share the limits, until they are counted; `None`: buckets are in this process.
    instances: Option<u32>,
    rules: Arc<Rules>,
    limiter: Option<Arc<Limiter>>,
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
            instances: settings.store.redis.is_some().then_some(settings.limiter.instances),
            rules: Arc::clone(rules),
            limiter: None,
        })
    }

    /// Also says how the running gateway is.
    pub fn with_limiter(self, limiter: Arc<Limiter>) -> Self {
        Self { limiter: Some(limiter), ..self }
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
        answer["chain"] = chain::chain(&rules, tenant.id(), &route.id, &resolved);
        let limits = [Some(resolved.enforce), resolved.shadow];
        let limit = |rule: &Arc<Rule>| self.limit(tenant.id(), route, rule, chain::why(rule, &rules));
        answer["limits"] = limits.into_iter().flatten().map(limit).collect();
        answer["rules"] = self.origin();
        if let Some(limiter) = &self.limiter {
            answer["gateway"] = json!({
                "store": limiter.store_state(),
                "degraded": limiter.is_degraded(),
                "gateways_live": limiter.gateways_live(),
            });
        }
        Ok(())
    }

    /// How many share a limit while the store is away; `None`: the store is this process.
    fn gateways(&self) -> Option<u32> {
        let instances = self.instances?;
        Some(self.limiter.as_ref().map_or(instances, |limiter| limiter.gateways_live()).max(1))
    }

    /// Where the rules in force were read.
    fn origin(&self) -> Value {
        let status = self.rules.status();
        json!({
            "source": status.source.map(|source| source.name()),
            "age_seconds": status.age.map(|age| age.as_secs()),
            "last_error": status.last_error,
        })
    }

    fn limit(&self, tenant: &str, route: &RouteRef, rule: &Rule, why: &str) -> Value {
        let shadow = rule.mode == Mode::Shadow;
        let bucket = |shard| KeyRef { tenant, route: &route.id, shadow, shard }.to_key().in_redis(&self.key_prefix);
        let from = |own: bool, other: &'static str| if own { "the rule" } else { other };
        let (capacity, refill) = (rule.limit.capacity(), rule.limit.refill_per_second());
        let cost = rule.cost.map_or(route.cost, u32::from);
        let mut limit = json!({
            "rule": format!("{}/{}", rule.tenant_id, rule.route_id),
            "why": why,
            "mode": rule.mode,
            "capacity": capacity,
            "refill_per_second": refill,
            "cost": cost,
            "cost_from": from(rule.cost.is_some(), "the route"),
            "requests_at_once": capacity / cost.max(1),
            "requests_per_second": refill / f64::from(cost.max(1)),
            "on_store_failure": rule.on_store_failure.unwrap_or(self.on_store_failure),
            "on_store_failure_from": from(rule.on_store_failure.is_some(), "limiter.on_store_failure"),
            "comment": rule.comment,
        });
        if let (Some(gateways), FailurePolicy::Local) =
            (self.gateways(), rule.on_store_failure.unwrap_or(self.on_store_failure))
        {
            let share = |whole: f64| whole / f64::from(gateways);
            limit["share_without_store"] = json!({
                "gateways": gateways,
                "capacity": share(f64::from(capacity)),
                "refill_per_second": share(refill),
            });
        }
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
