//! Health, readiness, metrics, status and explain over HTTP, for operators.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use http::{HeaderMap, Method, Response, StatusCode, header};
use openssl::memcmp;
use pingora::apps::http_app::ServeHttp;
use pingora::protocols::http::ServerSession;
use serde_json::{Value, json};

use crate::config::{Secret, Settings};
use crate::explain::{Explainer, Query};
use crate::limiter::{Limiter, StoreState};
use crate::messengers::Channel;
use crate::metrics;
use crate::rules::keys::Keys;
use crate::rules::{Loader, Rules, Status};

/// The admin listener.
#[derive(Debug)]
pub struct Admin {
    token: Option<Secret>,
    rules: Arc<Rules>,
    keys: Arc<Keys>,
    channels: Vec<Arc<Channel>>,
    limiter: Arc<Limiter>,
    explainer: Explainer,
    listening: Arc<AtomicBool>,
    draining: Arc<AtomicBool>,
}

impl Admin {
    /// Over the parts of the running gateway. `listening` turns true when clients can connect, `draining` when the
    /// process is about to stop.
    pub fn new(
        settings: &Settings,
        loader: &Loader,
        limiter: Arc<Limiter>,
        explainer: Explainer,
        listening: Arc<AtomicBool>,
        draining: Arc<AtomicBool>,
    ) -> Self {
        Self {
            token: settings.admin.token.clone(),
            rules: Arc::clone(loader.rules()),
            keys: Arc::clone(loader.keys()),
            channels: Vec::new(),
            limiter,
            explainer,
            listening,
            draining,
        }
    }

    /// Shows how the messengers of rule changes stand.
    #[must_use]
    pub fn with_channels(mut self, channels: &[Arc<Channel>]) -> Self {
        self.channels = channels.to_vec();
        self
    }

    fn answer(&self, method: &Method, path: &str, query: Option<&str>, headers: &HeaderMap) -> Response<Vec<u8>> {
        // Load balancers ask for these two, and learn nothing from them.
        let open = matches!(path, "/healthz" | "/readyz");
        if !open && !self.is_authorized(headers) {
            let mut answer = text(StatusCode::UNAUTHORIZED, "a bearer token is required\n");
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
            return answer;
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "allowed is GET\n");
        }
        match path {
            "/healthz" => text(StatusCode::OK, "alive\n"),
            "/readyz" => match self.not_ready() {
                None => text(StatusCode::OK, "ready\n"),
                Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, why),
            },
            "/metrics" => self.metrics(),
            "/api/v1/status" => object(StatusCode::OK, &self.status()),
            "/api/v1/explain" => match explain_query(query.unwrap_or_default()) {
                Ok(query) => object(StatusCode::OK, &self.explainer.explain(&query)),
                Err(why) => object(StatusCode::BAD_REQUEST, &json!({ "error": why })),
            },
            _ => text(StatusCode::NOT_FOUND, "nothing here\n"),
        }
    }

    fn is_authorized(&self, headers: &HeaderMap) -> bool {
        let Some(Secret(token)) = &self.token else { return true };
        let given = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        // RFC 9110 section 11.1: the scheme's name is the same in any case.
        let given = match given.split_at_checked(b"Bearer ".len()) {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"Bearer ") => token,
            _ => b"",
        };
        given.len() == token.len() && memcmp::eq(given, token.as_bytes())
    }

    fn not_ready(&self) -> Option<&'static str> {
        if self.draining.load(Ordering::Relaxed) {
            return Some("draining\n");
        }
        if !self.listening.load(Ordering::Relaxed) {
            return Some("starting: not listening yet\n");
        }
        (self.limiter.store_state() == StoreState::Starting).then_some("starting: the store has not been tried yet\n")
    }

    fn metrics(&self) -> Response<Vec<u8>> {
        let (tracked, forgotten) = self.limiter.keys();
        metrics::KEYS_TRACKED.set(tracked as i64);
        metrics::KEYS_FORGOTTEN.set(forgotten as i64);
        metrics::LEASE_TOKENS.set(self.limiter.leased_tokens() as i64);
        metrics::STORE_CONNECTED.set(i64::from(self.limiter.store_state() == StoreState::Connected));
        let nodes = self.limiter.store_nodes();
        metrics::STORE_CAN_EVICT.set(i64::from(nodes.iter().any(|node| node.can_evict == Some(true))));
        metrics::breaker_states(nodes.iter().map(|node| (node.index, node.breaker)));
        metrics::DEGRADED.set(i64::from(self.limiter.is_degraded()));
        metrics::GATEWAYS_LIVE.set(i64::from(self.limiter.gateways_live()));
        let rules = self.rules.status();
        metrics::RULES_LOADED.set(rules.loaded as i64);
        metrics::RULES_REJECTED.set(rules.rejected.total as i64);
        metrics::RULES_AGE.set(rules.age.map_or(-1, |age| age.as_secs() as i64));
        metrics::rules_reloads(&rules.reloads);
        match metrics::text() {
            Ok(series) => {
                let mut answer = text(StatusCode::OK, "");
                *answer.body_mut() = series.into_bytes();
                answer
            }
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
        }
    }

    fn status(&self) -> Value {
        let mut rules = sources(&self.rules.status());
        rules["channels"] = self.channels.iter().map(|channel| (channel.name(), json!(channel.state()))).collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "ready": self.not_ready().is_none(),
            "gateways_live": self.limiter.gateways_live(),
            "degraded": self.limiter.is_degraded(),
            "store": self.limiter.store_state(),
            "store_nodes": self.limiter.store_nodes(),
            "keys_tracked": self.limiter.keys().0,
            "rules": rules,
            "keys": sources(&self.keys.status()),
        })
    }
}

fn sources(status: &Status) -> Value {
    json!({
        "loaded": status.loaded,
        "source": status.source.map(|source| source.name()),
        "age_seconds": status.age.map(|age| age.as_secs()),
        "rejected": status.rejected.total,
        "faults": status.rejected.faults,
        "last_error": status.last_error,
        "snapshot_error": status.snapshot_error,
    })
}

fn explain_query(query: &str) -> Result<Query, String> {
    let mut request = Query::default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let value = value.into_owned();
        match &*name {
            "method" => request.method = value.parse().map_err(|_| format!("method: \"{value}\" is not a method"))?,
            "path" => request.path = value,
            "host" => request.host = Some(value),
            "api_key" => request.api_key = Some(value),
            "ip" => request.ip = Some(value.parse().map_err(|_| format!("ip: \"{value}\" is not an address"))?),
            other => return Err(format!("{other}: unknown, allowed are method, path, host, api_key, ip")),
        }
    }
    if request.path.is_empty() {
        return Err("path: is missing".to_owned());
    }
    Ok(request)
}

fn text(status: StatusCode, body: &str) -> Response<Vec<u8>> {
    response(status, "text/plain; charset=utf-8", body.as_bytes().to_vec())
}

fn object(status: StatusCode, value: &Value) -> Response<Vec<u8>> {
    response(status, "application/json", format!("{value:#}\n").into_bytes())
}

fn response(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Response<Vec<u8>> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response.headers_mut().insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    response
}

#[async_trait]
impl ServeHttp for Admin {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let request = session.req_header();
        let mut answer = self.answer(&request.method, request.uri.path(), request.uri.query(), &request.headers);
        let length = answer.body().len();
        answer.headers_mut().insert(header::CONTENT_LENGTH, length.into());
        if request.method == Method::HEAD {
            answer.body_mut().clear();
        }
        answer
    }
}
