//! The Prometheus series.

use std::time::Duration;

use crate::limiter::Decision;

/// One request ended. `route` is its place in the configuration, `None` where none matched; 499 stands for a client
/// that left before the answer.
pub fn observe_request(_route: Option<usize>, _status: u16, _elapsed: Duration) {}

/// One decision of the limiter about a request to this route; `shadow`: by a rule that is only counted.
pub fn observe_decision(_route: usize, _decision: &Decision, _shadow: bool) {}

/// One attempt at an upstream failed; `kind` is one of a few constants.
pub fn observe_upstream_failure(_upstream: &str, _kind: &'static str) {}
