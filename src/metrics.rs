//! The Prometheus series, each name as documented. No label carries a tenant, key or address, so the number of series
//! does not grow with traffic; handles of the hot path are made once per route.

use std::sync::OnceLock;

use once_cell::sync::Lazy;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, TextEncoder,
    histogram_opts, opts,
};

use crate::decision::{Outcome, Source};
use crate::rules::Reads;
use crate::store::breaker::State;

/// Seconds, 10 µs … 100 ms, with bounds on the objectives of 2 ms and 5 ms.
const DECISION_BUCKETS: [f64; 13] =
    [1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1];
const REQUEST_BUCKETS: [f64; 14] =
    [5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 2.5e-1, 5e-1, 1.0, 2.5, 5.0, 10.0];

static DECISIONS: Lazy<IntCounterVec> = Lazy::new(|| {
    let opts = opts!("sekisho_decisions_total", "Limits decided");
    counters(opts, &["route", "outcome", "source"])
});
static DECISION_SECONDS: Lazy<HistogramVec> = Lazy::new(|| {
    let opts = histogram_opts!(
        "sekisho_decision_seconds",
        "Time from the head of a request to its decision",
        DECISION_BUCKETS.to_vec()
    );
    histograms(opts, &["source"])
});
static STORE_CALLS: Lazy<IntCounterVec> =
    Lazy::new(|| counters(opts!("sekisho_store_calls_total", "Calls to the shared store"), &["result"]));
static STORE_CALL_SECONDS: Lazy<Histogram> = Lazy::new(|| {
    let opts = histogram_opts!("sekisho_store_call_seconds", "Time of a store call", DECISION_BUCKETS.to_vec());
    registered(Histogram::with_opts(opts))
});
/// 1 while calls to every node of the shared store are let through.
pub static STORE_CONNECTED: Lazy<IntGauge> =
    Lazy::new(|| gauge("sekisho_store_connected", "1 while every node of the shared store is connected and answers"));
static BREAKER_STATE: Lazy<IntGaugeVec> = Lazy::new(|| {
    let opts = opts!("sekisho_breaker_state", "Circuit breaker of a node of the store: 0 closed, 1 half-open, 2 open");
    registered(IntGaugeVec::new(opts, &["node"]))
});
/// 1 while a node of the shared store may evict buckets.
pub static STORE_CAN_EVICT: Lazy<IntGauge> =
    Lazy::new(|| gauge("sekisho_store_can_evict", "1 while a node of the shared store may evict buckets"));
/// 1 while any decision is made without the store.
pub static DEGRADED: Lazy<IntGauge> =
    Lazy::new(|| gauge("sekisho_degraded", "1 while any decision is made without the store"));
/// Keys tracked in this process.
pub static KEYS_TRACKED: Lazy<IntGauge> = Lazy::new(|| gauge("sekisho_keys_tracked", "Keys tracked in this process"));
/// Keys forgotten for want of room although their bucket was not full.
pub static KEYS_FORGOTTEN: Lazy<IntGauge> =
    Lazy::new(|| gauge("sekisho_keys_forgotten", "Keys forgotten for want of room before their bucket was full again"));
/// Gateways that share the limits.
pub static GATEWAYS_LIVE: Lazy<IntGauge> =
    Lazy::new(|| gauge("sekisho_gateways_live", "Gateways that share the limits"));
/// Leased tokens that this gateway may spend without asking.
pub static LEASE_TOKENS: Lazy<IntGauge> =
    Lazy::new(|| gauge("sekisho_lease_tokens", "Leased tokens that may be spent without asking the store"));
/// Rules in force.
pub static RULES_LOADED: Lazy<IntGauge> = Lazy::new(|| gauge("sekisho_rules_loaded", "Rules in force"));
/// Rules left out or kept at their last good version.
pub static RULES_REJECTED: Lazy<IntGauge> =
    Lazy::new(|| gauge("sekisho_rules_rejected", "Rules left out, or kept at their last good version"));
/// Seconds since the rules were last read without fault of the source.
pub static RULES_AGE: Lazy<IntGauge> =
    Lazy::new(|| gauge("sekisho_rules_age_seconds", "Seconds since the rules were last read"));
/// Client connections for which there was no room.
pub static CONNECTIONS_REFUSED: Lazy<IntCounter> = Lazy::new(|| {
    registered(IntCounter::new("sekisho_connections_refused_total", "Client connections for which there was no room"))
});
/// Decisions that are in no count of usage.
pub static USAGE_DROPPED: Lazy<IntCounter> = Lazy::new(|| {
    let help = "Decisions that found no room in the counts of usage, or were lost on their way to Redis";
    registered(IntCounter::new("sekisho_usage_dropped_total", help))
});
/// Lines that are missing in the access log.
pub static ACCESS_LOG_DROPPED: Lazy<IntCounter> = Lazy::new(|| {
    let help = "Lines of the access log that found no room, or could not be written";
    registered(IntCounter::new("sekisho_access_log_dropped_total", help))
});
static RULES_RELOADS: Lazy<IntCounterVec> =
    Lazy::new(|| counters(opts!("sekisho_rules_reloads_total", "Reads of the rules"), &["source", "result"]));
static RULES_CHANNEL_OPEN: Lazy<IntGaugeVec> = Lazy::new(|| {
    let opts = opts!("sekisho_rules_channel_open", "1 while changes of rules are heard of by this channel");
    registered(IntGaugeVec::new(opts, &["channel"]))
});
static RULES_EVENTS: Lazy<IntCounterVec> =
    Lazy::new(|| counters(opts!("sekisho_rules_events_total", "Messages about changed rules"), &["channel", "result"]));
static REQUESTS: Lazy<IntCounterVec> =
    Lazy::new(|| counters(opts!("sekisho_requests_total", "Requests answered"), &["route", "code"]));
static REQUEST_SECONDS: Lazy<HistogramVec> = Lazy::new(|| {
    let opts = histogram_opts!("sekisho_request_seconds", "Time of a request", REQUEST_BUCKETS.to_vec());
    histograms(opts, &["route"])
});
static UPSTREAM_FAILURES: Lazy<IntCounterVec> =
    Lazy::new(|| counters(opts!("sekisho_upstream_failures_total", "Upstream failures"), &["upstream", "kind"]));

/// The `result` label of `sekisho_store_calls_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreCall {
    /// Answered.
    Ok,
    /// Not answered in `store.timeout`.
    Timeout,
    /// Answered with an error, or the connection broke.
    Error,
    /// Not sent: the node is known to be away or to fail, or the queue was full.
    Rejected,
}

/// Sets what the circuit breaker of each node does, by the node's index. A node that is not there any more has no series.
pub fn breaker_states(nodes: impl Iterator<Item = (usize, State)>) {
    BREAKER_STATE.reset();
    for (node, state) in nodes {
        BREAKER_STATE.with_label_values(&[&node.to_string()]).set(state as i64);
    }
}

/// Counts one call to the shared store, which took so many seconds from the queue to its reply.
pub fn store_call(result: StoreCall, seconds: f64) {
    static HANDLES: Lazy<[IntCounter; 4]> =
        Lazy::new(|| ["ok", "timeout", "error", "rejected"].map(|result| STORE_CALLS.with_label_values(&[result])));
    HANDLES[result as usize].inc();
    if result != StoreCall::Rejected {
        STORE_CALL_SECONDS.observe(seconds);
    }
}

/// Sets how often the rules were read, in the order of [`Source::ALL`](crate::rules::Source).
pub fn rules_reloads(reads: &[Reads]) {
    for (source, reads) in crate::rules::Source::ALL.iter().zip(reads) {
        for (result, count) in [("ok", reads.ok), ("error", reads.error), ("held", reads.held)] {
            let counter = RULES_RELOADS.with_label_values(&[source.name(), result]);
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }
}

/// The handles of one channel by which changed rules are heard of.
#[derive(Debug)]
pub struct RulesChannel {
    /// 1 while it is connected.
    pub open: IntGauge,
    /// Messages that were understood.
    pub ok: IntCounter,
    /// Messages that were not.
    pub bad: IntCounter,
}

impl RulesChannel {
    /// `name` is the label.
    pub fn new(name: &str) -> Self {
        let events = |result| RULES_EVENTS.with_label_values(&[name, result]);
        Self { open: RULES_CHANNEL_OPEN.with_label_values(&[name]), ok: events("ok"), bad: events("bad") }
    }
}

/// Counts one failure of an upstream.
pub fn upstream_failure(upstream: &str, kind: &str) {
    UPSTREAM_FAILURES.with_label_values(&[upstream, kind]).inc();
}

/// The handles of one route.
#[derive(Debug)]
pub struct RouteMetrics {
    route: String,
    decisions: [[OnceLock<IntCounter>; SOURCES.len()]; OUTCOMES.len()],
    requests: Box<[OnceLock<IntCounter>]>,
    request_seconds: Histogram,
}

const OUTCOMES: [&str; 4] = ["allowed", "denied", "shadow_denied", "unavailable"];
const SOURCES: [&str; 6] = ["lease", "store", "hold", "local", "open", "closed"];
/// Pairs of outcome and source that exist from the start, at 0, so that a rate over them needs no first event.
const USUAL: [(usize, usize); 4] = [(0, 1), (1, 1), (0, 3), (1, 3)];

impl RouteMetrics {
    /// The handles of `route`; requests that match none use an empty name.
    pub fn new(route: &str) -> Self {
        let handles = Self {
            route: route.to_owned(),
            decisions: Default::default(),
            requests: (0..1000).map(|_| OnceLock::new()).collect(),
            request_seconds: REQUEST_SECONDS.with_label_values(&[route]),
        };
        if !route.is_empty() {
            for (outcome, source) in USUAL {
                handles.decision_handle(outcome, source);
            }
        }
        handles
    }

    fn decision_handle(&self, outcome: usize, source: usize) -> &IntCounter {
        self.decisions[outcome][source]
            .get_or_init(|| DECISIONS.with_label_values(&[&self.route, OUTCOMES[outcome], SOURCES[source]]))
    }

    /// Counts a decision.
    pub fn decided(&self, outcome: Outcome, source: Source) {
        let outcome = match outcome {
            Outcome::Allowed => 0,
            Outcome::Denied { .. } => 1,
            Outcome::Unavailable => 3,
        };
        self.decision_handle(outcome, source as usize).inc();
    }

    /// Counts a denial of a rule in shadow mode.
    pub fn shadow_denied(&self, source: Source) {
        self.decision_handle(2, source as usize).inc();
    }

    /// Counts an answered request and its time in seconds.
    pub fn answered(&self, code: u16, seconds: f64) {
        if let Some(handle) = self.requests.get(usize::from(code)) {
            handle.get_or_init(|| REQUESTS.with_label_values(&[&self.route, &code.to_string()])).inc();
        }
        self.request_seconds.observe(seconds);
    }
}

/// Observes the time from the head of a request to its decision, in seconds.
pub fn decision_seconds(source: Source, seconds: f64) {
    static HANDLES: Lazy<[Histogram; SOURCES.len()]> =
        Lazy::new(|| SOURCES.map(|source| DECISION_SECONDS.with_label_values(&[source])));
    HANDLES[source as usize].observe(seconds);
}

/// All series in Prometheus's text format.
///
/// # Errors
/// When the registry holds a series that cannot be written.
pub fn text() -> Result<String, prometheus::Error> {
    TextEncoder::new().encode_to_string(&prometheus::gather())
}

/// Registers every series, so that each is exported from the first scrape.
pub fn register() {
    for gauge in [
        &STORE_CONNECTED,
        &STORE_CAN_EVICT,
        &DEGRADED,
        &KEYS_TRACKED,
        &KEYS_FORGOTTEN,
        &GATEWAYS_LIVE,
        &LEASE_TOKENS,
        &RULES_LOADED,
        &RULES_REJECTED,
        &RULES_AGE,
    ] {
        Lazy::force(gauge);
    }
    for counters in [&DECISIONS, &STORE_CALLS, &RULES_RELOADS, &RULES_EVENTS, &REQUESTS, &UPSTREAM_FAILURES] {
        Lazy::force(counters);
    }
    Lazy::force(&BREAKER_STATE);
    Lazy::force(&RULES_CHANNEL_OPEN);
    for counter in [&CONNECTIONS_REFUSED, &USAGE_DROPPED, &ACCESS_LOG_DROPPED] {
        Lazy::force(counter);
    }
    Lazy::force(&STORE_CALL_SECONDS);
    Lazy::force(&DECISION_SECONDS);
    Lazy::force(&REQUEST_SECONDS);
}

fn counters(opts: Opts, labels: &[&str]) -> IntCounterVec {
    registered(IntCounterVec::new(opts, labels))
}

fn histograms(opts: HistogramOpts, labels: &[&str]) -> HistogramVec {
    registered(HistogramVec::new(opts, labels))
}

fn gauge(name: &str, help: &str) -> IntGauge {
    registered(IntGauge::new(name, help))
}

/// A wrong name, or one given twice, is a fault of this file that the first start shows.
#[allow(clippy::expect_used, reason = "start-up invariant")]
fn registered<C: prometheus::core::Collector + Clone + 'static>(made: Result<C, prometheus::Error>) -> C {
    let collector = made.expect("a valid name and labels");
    prometheus::register(Box::new(collector.clone())).expect("a name used once");
    collector
}
