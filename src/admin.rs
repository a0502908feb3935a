//! Health, readiness, metrics, status, explain, rules and usage over HTTP. Here: who may ask, and what answers.

mod explain;
mod reply;
mod rules;
mod status;
mod usage;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use openssl::memcmp;
use pingora::apps::http_app::ServeHttp;
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;

use self::reply::{object, text};
use self::rules::RulesApi;
use crate::config::{Secret, Settings};
use crate::explain::Explainer;
use crate::limiter::Limiter;
use crate::messengers::Channel;
use crate::rules::keys::Keys;
use crate::rules::{Loader, Rules};
use crate::usage::Usage;

/// For what is left of a body that nobody wants.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);

/// The admin listener.
#[derive(Debug)]
pub struct Admin {
    token: Option<Secret>,
    rules: Arc<Rules>,
    keys: Arc<Keys>,
    channels: Vec<Arc<Channel>>,
    limiter: Arc<Limiter>,
    explainer: Explainer,
    rules_api: RulesApi,
    usage: Option<Arc<Usage>>,
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
        let rules_api = RulesApi::new(
            Arc::clone(loader.rules()),
            Arc::clone(loader.changes()),
            settings.rules.database_url.clone(),
            settings.admin.token.is_none(),
        );
        Self {
            token: settings.admin.token.clone(),
            rules: Arc::clone(loader.rules()),
            keys: Arc::clone(loader.keys()),
            channels: Vec::new(),
            limiter,
            explainer,
            rules_api,
            usage: None,
            listening,
            draining,
        }
    }

    /// With what is counted of requests.
    #[must_use]
    pub fn with_usage(self, usage: Option<Arc<Usage>>) -> Self {
        Self { usage, ..self }
    }

    /// Shows how the messengers of rule changes stand.
    #[must_use]
    pub fn with_channels(mut self, channels: &[Arc<Channel>]) -> Self {
        self.channels = channels.to_vec();
        self
    }

    async fn answer(&self, request: &RequestHeader, session: &mut ServerSession) -> Response<Vec<u8>> {
        let (path, query) = (request.uri.path(), request.uri.query().unwrap_or_default());
        // Load balancers ask for these two, and learn nothing from them.
        let open = matches!(path, "/healthz" | "/readyz");
        if !open && !self.is_authorized(&request.headers) {
            let mut answer = text(StatusCode::UNAUTHORIZED, "a bearer token is required\n");
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return answer;
        }
        if let Some(below) =
            path.strip_prefix("/api/v1/rules").filter(|below| below.is_empty() || below.starts_with('/'))
        {
            return self.rules_api.answer(request, session, below).await;
        }
        if !matches!(request.method, Method::GET | Method::HEAD) {
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
            "/api/v1/explain" => explain::answer(&self.explainer, query),
            "/api/v1/top" => usage::top(self.usage.as_deref(), query),
            path if path.starts_with(usage::TENANTS) => usage::tenant(self.usage.as_deref(), path, query).await,
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
}

#[async_trait]
impl ServeHttp for Admin {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        // Owned: a session cannot be shared across an await.
        let request = session.req_header().clone();
        session.set_total_drain_timeout(Some(DRAIN_PATIENCE));
        let mut answer = self.answer(&request, session).await;
        // RFC 9110 section 8.6: these have no content, and so no length of it.
        if !matches!(answer.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
            let length = answer.body().len();
            answer.headers_mut().insert(header::CONTENT_LENGTH, length.into());
        }
        if request.method == Method::HEAD {
            answer.body_mut().clear();
        }
        answer
    }
}
