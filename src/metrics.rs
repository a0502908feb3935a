//! The Prometheus series.

use crate::limiter::{Outcome, Source};

/// The handles of one route.
#[derive(Debug)]
pub struct RouteMetrics {}

impl RouteMetrics {
    /// The handles of `route`; requests that match none use an empty name.
    pub fn new(_route: &str) -> Self {
        Self {}
    }

    /// Counts a decision.
    pub fn decided(&self, _outcome: Outcome, _source: Source) {}

    /// Counts a denial of a rule in shadow mode.
    pub fn shadow_denied(&self, _source: Source) {}

    /// Counts an answered request and its time in seconds.
    pub fn answered(&self, _code: u16, _seconds: f64) {}
}

/// Observes the time a decision took, in seconds.
pub fn decision_seconds(_source: Source, _seconds: f64) {}

/// Counts one failure of an upstream.
pub fn upstream_failure(_upstream: &str, _kind: &str) {}
