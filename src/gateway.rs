//! The phases of a proxied request: route, identity, rule, decision, upstream, answer. What each phase does lives in the
//! modules below; here is only their order.

pub mod echo;
pub mod head;
pub mod identity;
pub mod path;
mod recording;
pub mod reply;
pub mod request;
pub mod route;
pub mod stamp;
pub mod upstream;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http::header;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType};
use pingora_proxy::{FailToProxy, ProxyHttp, Session};
use tokio::time::Instant;

use self::identity::Identity;
pub use self::recording::Recording;
use self::reply::Problem;
use self::route::{RouteError, RouteRef, Router};
use self::stamp::Verdict;
use self::upstream::{Choice, InFlight, Pool, Upkeep, Upstream, UpstreamError, Upstreams};
use crate::access_log::Charged;
use crate::config::{ClientTimeouts, Settings};
use crate::decision::Outcome;
use crate::limiter::{Check, Limiter};
use crate::metrics::{self, RouteMetrics};
use crate::rule::{FailurePolicy, Rule};
use crate::rules::Rules;
use crate::rules::keys::Keys;
use crate::usage::Counted;

/// The longest wait for what is left of a request after its answer.
const CLIENT_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The most attempts at an upstream: one, and one retry where it is safe.
const ATTEMPTS: u8 = 2;
/// Stands in logs and metrics for a client that left before the answer, as in nginx.
const CLIENT_GONE: u16 = 499;

/// A gateway that cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// See [`RouteError`].
    #[error(transparent)]
    Route(#[from] RouteError),
    /// See [`UpstreamError`].
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// A route leads nowhere.
    #[error("route \"{route}\": there is no upstream \"{upstream}\"")]
    UnknownUpstream {
        /// Its id.
        route: String,
        /// The name it gives.
        upstream: String,
    },
}

/// Where the requests of one route go, and where they are counted.
#[derive(Debug)]
struct Destination {
    upstream: Upstream,
    metrics: RouteMetrics,
}

/// The proxy; clones share everything.
#[derive(Clone, Debug)]
pub struct Gateway {
    router: Arc<Router>,
    /// By [`RouteRef::index`].
    destinations: Arc<[Destination]>,
    unrouted: Arc<RouteMetrics>,
    identity: Arc<Identity>,
    rules: Arc<Rules>,
    limiter: Arc<Limiter>,
    on_store_failure: FailurePolicy,
    ratelimit_draft: bool,
    client: ClientTimeouts,
    in_flight: Arc<AtomicUsize>,
    draining: Arc<AtomicBool>,
    recording: Recording,
}

impl Gateway {
    /// Sets up routes and upstreams; resolves names, blocking. The second value is a background service to run beside
    /// the proxy.
    ///
    /// # Errors
    /// See [`GatewayError`].
    pub fn new(
        settings: &Settings,
        rules: Arc<Rules>,
        keys: Arc<Keys>,
        limiter: Arc<Limiter>,
    ) -> Result<(Self, Upkeep), GatewayError> {
        let router = Router::new(&settings.routes)?;
        let (by_name, upkeep) = Upstreams::new(&settings.upstreams)?;
        let destination = |route: &RouteRef| match by_name.get(&route.upstream) {
            Some(upstream) => Ok(Destination { upstream: upstream.clone(), metrics: RouteMetrics::new(&route.id) }),
            None => {
                Err(GatewayError::UnknownUpstream { route: route.id.to_string(), upstream: route.upstream.to_string() })
            }
        };
        let gateway = Self {
            destinations: router.routes().iter().map(destination).collect::<Result<_, _>>()?,
            unrouted: Arc::new(RouteMetrics::new("")),
            router: Arc::new(router),
            identity: Arc::new(Identity::new(settings.identity.clone(), keys)),
            rules,
            limiter,
            on_store_failure: settings.limiter.on_store_failure,
            ratelimit_draft: settings.headers.ratelimit_draft,
            client: settings.server.client,
            in_flight: Arc::default(),
            draining: Arc::default(),
            recording: Recording::default(),
        };
        Ok((gateway, upkeep))
    }

    /// Tells these of requests, which know the routes by the same settings.
    #[must_use]
    pub fn recorded_by(self, recording: Recording) -> Self {
        Self { recording, ..self }
    }

    /// Turns true when the shutdown begins: from then on, clients are told to ask elsewhere.
    pub fn draining(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.draining)
    }

    /// The number of requests in flight, for a drain that ends when there are none; stays valid after the gateway has
    /// been handed to a service.
    pub fn in_flight(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.in_flight)
    }

    /// Decides whether a request goes on: everything up to its upstream.
    async fn admit(&self, session: &mut Session, ctx: &mut Ctx) -> Result<(), Problem> {
        request::admit(session)?;
        let head = session.req_header();
        let route = self.router.find(request::host(head), &head.method, head.uri.path()).ok_or(Problem::NotFound)?;
        ctx.route = Some(route.index);
        // A background revalidation repeats a request that has been charged.
        if !route.limit || session.subrequest_ctx.is_some() {
            return Ok(());
        }
        self.decide(head, route, ctx).await?;
        ctx.verdict.as_ref().and_then(Problem::of).map_or(Ok(()), Err)
    }

    /// Charges the request once: retries at upstreams come later and do not charge again.
    async fn decide(&self, head: &RequestHeader, route: &RouteRef, ctx: &mut Ctx) -> Result<(), Problem> {
        let tenant = self.identity.tenant(&head.headers)?;
        let (enforce, shadow) = {
            // Kept no longer than this: a snapshot must not outlive a wait.
            let rules = self.rules.load();
            let resolved = rules.resolve(tenant.id(), &route.id);
            (Arc::clone(resolved.enforce), resolved.shadow.cloned())
        };
        let check = |rule: &Rule, shadow: bool| Check {
            tenant: tenant.id(),
            route: &route.id,
            limit: rule.limit,
            cost: rule.cost.map_or(route.cost, u32::from),
            on_store_failure: rule.on_store_failure.unwrap_or(self.on_store_failure),
            shadow,
            shards: rule.shards,
        };
        let count = |rule: &Rule, counted| self.recording.decided(tenant.id(), route.index, rule, counted);
        let enforced = check(&enforce, false);
        let mut shadow_denied = false;
        let decision = match &shadow {
            None => match self.limiter.decide_at_once(&enforced) {
                Ok(decision) => decision,
                Err(unknown) => self.limiter.find_out(&enforced, unknown).await,
            },
            Some(rule) => {
                let shadow = check(rule, true);
                let (decision, shadow) = tokio::join!(self.limiter.decide(&enforced), self.limiter.decide(&shadow));
                shadow_denied = shadow.outcome != Outcome::Allowed;
                if shadow_denied {
                    self.metrics(Some(route.index)).shadow_denied(shadow.source);
                    count(rule, Counted::ShadowDenied);
                }
                decision
            }
        };
        let seconds = ctx.started.elapsed().as_secs_f64();
        metrics::decision_seconds(decision.source, seconds);
        self.metrics(Some(route.index)).decided(decision.outcome, decision.source);
        count(&enforce, decision.outcome.into());
        if self.recording.access_log.is_some() {
            let tenant = tenant.id().into();
            ctx.charged = Some(Charged { tenant, cost: enforced.cost, shadow_denied, seconds });
        }
        ctx.verdict = Some(Verdict { decision, rule: enforce });
        Ok(())
    }

    fn metrics(&self, route: Option<usize>) -> &RouteMetrics {
        route.and_then(|index| self.destinations.get(index)).map_or(&self.unrouted, |destination| &destination.metrics)
    }

    fn pool(&self, ctx: &Ctx) -> Option<&Arc<Pool>> {
        match &self.destinations.get(ctx.route?)?.upstream {
            Upstream::Pool(pool) => Some(pool),
            Upstream::Echo => None,
        }
    }

    /// Writes a problem; a client that left in the meantime is no error worth a line in the log.
    async fn refuse(&self, session: &mut Session, ctx: &Ctx, problem: &Problem) {
        if let Err(error) = reply::send(session, problem, ctx.verdict.as_ref(), self.ratelimit_draft).await {
            tracing::debug!(%error, "could not write an answer");
            session.set_keepalive(None);
        }
    }
}

/// What is known about one request, from phase to phase.
#[derive(Debug)]
pub struct Ctx {
    started: Instant,
    _in_flight: InFlight,
    route: Option<usize>,
    verdict: Option<Verdict>,
    /// For the access log.
    charged: Option<Charged>,
    attempts: u8,
    /// The server of the current attempt, or of the next when the last could not be connected.
    choice: Option<Choice>,
}

fn peer_address(session: &Session) -> Option<IpAddr> {
    Some(session.client_addr()?.as_inet()?.ip())
}

/// Whether the upstream cannot answer yet because the client still owes it the body.
fn waits_for_client(session: &mut Session) -> bool {
    // One that asks first waits for the upstream's word.
    !session.is_body_done() && !session.req_header().headers.contains_key(header::EXPECT)
}

/// The `kind` of a failed attempt.
fn failure_kind(error: &Error) -> &'static str {
    use ErrorType::{
        ConnectTimedout, ConnectionClosed, H1Error, H2Error, InvalidCert, InvalidH2, InvalidHTTPHeader, ReadError,
        ReadTimedout, TLSHandshakeFailure, TLSHandshakeTimedout, WriteError, WriteTimedout,
    };
    match error.etype() {
        ConnectTimedout | TLSHandshakeTimedout => "connect_timeout",
        TLSHandshakeFailure | InvalidCert => "tls",
        ReadTimedout | WriteTimedout => "timeout",
        ConnectionClosed | ReadError | WriteError => "closed",
        InvalidHTTPHeader | H1Error | H2Error | InvalidH2 => "protocol",
        _ => "connect",
    }
}

#[async_trait]
impl ProxyHttp for Gateway {
    type CTX = Ctx;

    fn new_ctx(&self) -> Ctx {
        head::arrived();
        Ctx {
            started: Instant::now(),
            _in_flight: InFlight::new(&self.in_flight),
            route: None,
            verdict: None,
            charged: None,
            attempts: 0,
            choice: None,
        }
    }

    fn init_downstream_modules(&self, _modules: &mut HttpModules) {
        // The default is compression, switched off: answers pass as the upstream wrote them.
    }

    async fn request_filter(&self, session: &mut Session, ctx: &mut Ctx) -> pingora::Result<bool> {
        session.set_read_timeout(Some(self.client.body));
        session.set_write_timeout(Some(self.client.body));
        session.set_total_drain_timeout(Some(CLIENT_DRAIN_TIMEOUT));
        // Pingora waits for ever for the next request of a client that asks for keep-alive by name.
        if session.get_keepalive() == Some(0) {
            session.set_keepalive(Some(self.client.keepalive_seconds()));
        }
        if self.draining.load(Ordering::Relaxed) {
            session.set_keepalive(None);
        }
        if let Err(problem) = self.admit(session, ctx).await {
            self.refuse(session, ctx, &problem).await;
            return Ok(true);
        }
        if self.pool(ctx).is_none() {
            echo::answer(session, ctx.verdict.as_ref(), self.ratelimit_draft).await?;
            return Ok(true);
        }
        Ok(false)
    }

    async fn upstream_peer(&self, session: &mut Session, ctx: &mut Ctx) -> pingora::Result<Box<HttpPeer>> {
        let Some(pool) = self.pool(ctx) else {
            return Err(Error::explain(ErrorType::InternalError, "a request without route reached its upstream"));
        };
        ctx.attempts += 1;
        // After a failed connection the next server has been chosen already.
        let Some(choice) = ctx.choice.take().or_else(|| pool.choose(&session.req_header().headers, None)) else {
            pool.failed("no_server", &"no healthy server");
            return Err(Error::create(
                ErrorType::ConnectNoRoute,
                ErrorSource::Upstream,
                Some("no healthy server".into()),
                None,
            ));
        };
        let peer = pool.peer(choice.address);
        ctx.choice = Some(choice);
        Ok(peer)
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        upstream_request: &mut RequestHeader,
        _ctx: &mut Ctx,
    ) -> pingora::Result<()> {
        let peer = peer_address(session);
        match peer.and_then(|peer| self.identity.forwarded_for(peer, &session.req_header().headers)) {
            Some(value) => upstream_request.insert_header("X-Forwarded-For", value)?,
            None => drop(upstream_request.remove_header("X-Forwarded-For")),
        }
        Ok(())
    }

    fn fail_to_connect(&self, session: &mut Session, _peer: &HttpPeer, ctx: &mut Ctx, mut e: Box<Error>) -> Box<Error> {
        let failed = ctx.choice.take().map(|choice| choice.address);
        if let Some(pool) = self.pool(ctx) {
            pool.failed(failure_kind(&e), &e);
            // Nothing has been sent: any method may go to another server, if there is one.
            let next = (ctx.attempts < ATTEMPTS).then(|| pool.choose(&session.req_header().headers, failed)).flatten();
            e.set_retry(next.is_some());
            ctx.choice = next;
        }
        e
    }

    fn error_while_proxy(
        &self,
        peer: &HttpPeer,
        session: &mut Session,
        e: Box<Error>,
        ctx: &mut Ctx,
        client_reused: bool,
    ) -> Box<Error> {
        let mut e = e;
        if *e.etype() == ErrorType::ReadTimedout && waits_for_client(session) {
            e.as_down();
        }
        if *e.esource() == ErrorSource::Upstream
            && let Some(pool) = self.pool(ctx)
        {
            pool.failed(failure_kind(&e), &e);
        }
        ctx.choice = None;
        // Pingora's own policy: only idempotent methods whose body can be sent again, and where the connection was
        // reused only if that is why it broke.
        let mut e = e.more_context(format!("Peer: {peer}"));
        if ctx.attempts >= ATTEMPTS
            || !session.req_header().method.is_idempotent()
            || session.as_ref().retry_buffer_truncated()
        {
            e.set_retry(false);
        } else {
            e.retry.decide_reuse(client_reused);
        }
        e
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        upstream_response: &mut ResponseHeader,
        ctx: &mut Ctx,
    ) -> pingora::Result<()> {
        stamp::stamp(upstream_response, ctx.verdict.as_ref(), self.ratelimit_draft);
        reply::suit(session, upstream_response);
        Ok(())
    }

    async fn fail_to_proxy(&self, session: &mut Session, e: &Error, ctx: &mut Ctx) -> FailToProxy {
        let problem = Problem::of_failure(e);
        if problem == Some(Problem::Internal) {
            tracing::error!(error = %e, "a fault of the gateway");
        }
        // The connection is in no state to be used again, and the answer must say so.
        session.set_keepalive(None);
        let begun = session.response_written().is_some_and(|response| !response.status.is_informational());
        if let Some(problem) = problem.as_ref().filter(|_| !begun) {
            self.refuse(session, ctx, problem).await;
        }
        FailToProxy { error_code: problem.map_or(0, |problem| problem.status().as_u16()), can_reuse_downstream: false }
    }

    /// Any client could fill the log, and so could a server that is down: what matters is told where it happens.
    fn suppress_error_log(&self, _session: &Session, _ctx: &Ctx, _error: &Error) -> bool {
        true
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, ctx: &mut Ctx) {
        ctx.choice = None;
        let status = session.response_written().map_or(CLIENT_GONE, |response| response.status.as_u16());
        let seconds = ctx.started.elapsed().as_secs_f64();
        self.metrics(ctx.route).answered(status, seconds);
        let head = session.req_header();
        self.recording.answered(head, ctx, status, seconds);
        tracing::debug!(
            method = head.method.as_str(),
            path = head.uri.path(),
            route = ctx.route.and_then(|index| self.router.routes().get(index)).map(|route| &*route.id),
            status,
            seconds,
            client = peer_address(session)
                .map(|peer| self.identity.client(peer, &head.headers))
                .map(tracing::field::display),
            decided_by = ctx.verdict.as_ref().map(|verdict| tracing::field::debug(verdict.decision.source)),
            error = error.map(tracing::field::display),
            "request"
        );
    }
}
