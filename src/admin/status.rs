//! `/readyz`, `/metrics` and `/api/v1/status`: how this gateway is.

use std::sync::atomic::Ordering;

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::Admin;
use super::reply::text;
use crate::limiter::StoreState;
use crate::metrics;
use crate::rules::Status;

impl Admin {
    pub(super) fn not_ready(&self) -> Option<&'static str> {
        if self.draining.load(Ordering::Relaxed) {
            return Some("draining\n");
        }
        if !self.listening.load(Ordering::Relaxed) {
            return Some("starting: not listening yet\n");
        }
        (self.limiter.store_state() == StoreState::Starting).then_some("starting: the store has not been tried yet\n")
    }

    pub(super) fn metrics(&self) -> Response<Vec<u8>> {
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

    pub(super) fn status(&self) -> Value {
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
