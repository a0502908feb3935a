//! How a messenger stands: is it connected, what went wrong last, how much did it bring.

use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

use crate::metrics::RulesChannel;
use crate::rule::shown;
use crate::telemetry::Seldom;

/// Bad messages are told at most once in this time, with their number.
const TELL_BAD_EVERY: Duration = Duration::from_secs(1);

/// One messenger, as others see it.
#[derive(Debug)]
pub struct Channel {
    name: &'static str,
    state: Mutex<State>,
    bad: Seldom,
    metrics: RulesChannel,
}

/// What `/api/v1/status` shows of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct State {
    /// Whether changes are heard of at this moment.
    pub open: bool,
    /// Why not, or why it was not the last time.
    pub last_error: Option<String>,
    /// The last message that meant nothing: where it was, and what is wrong with it.
    pub last_bad_message: Option<String>,
}

impl Channel {
    /// Not open yet. `name` is the label of its metrics.
    pub fn new(name: &'static str) -> Self {
        let metrics = RulesChannel::new(name);
        Self { name, state: Mutex::default(), bad: Seldom::new(TELL_BAD_EVERY), metrics }
    }

    /// `postgres`, `redis` or `kafka`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How it stands.
    pub fn state(&self) -> State {
        self.state.lock().clone()
    }

    /// Changes are heard of from now on.
    pub(super) fn opened(&self) {
        let was_open = std::mem::replace(&mut self.state.lock().open, true);
        self.metrics.open.set(1);
        if !was_open {
            tracing::info!(channel = self.name, "listening for changed rules");
        }
    }

    /// They are not. Told once for each reason.
    pub(super) fn closed(&self, why: String) {
        let mut state = self.state.lock();
        self.metrics.open.set(0);
        let was_open = std::mem::replace(&mut state.open, false);
        if was_open || state.last_error.as_ref() != Some(&why) {
            tracing::warn!(channel = self.name, "{why}; changed rules are found by rules.refresh meanwhile");
        }
        state.last_error = Some(why);
    }

    /// A message that was understood.
    pub(super) fn good(&self) {
        self.metrics.ok.inc();
    }

    /// One that was not.
    pub(super) fn bad(&self, place: &str, why: &str, message: &[u8]) {
        self.metrics.bad.inc();
        let fault = format!("{place}: {why}");
        if let Some(times) = self.bad.tell() {
            let text = String::from_utf8_lossy(&message[..message.len().min(400)]);
            tracing::error!(channel = self.name, times, "{fault}; left out: \"{}\"", shown(&text));
        }
        self.state.lock().last_bad_message = Some(fault);
    }
}
