//! `[limiter]`

use std::num::NonZeroU32;

use super::value::{Between, duration, failure_policy};
use crate::bucket::Limit;
use crate::config::fault::{At, Report};
use crate::config::{Breaker, Limiter, Prefetch, file};
use crate::rule::{ANY, Rule, parse_refill};

/// Checks the section and fills in its defaults.
pub(super) fn limiter(raw: &file::Limiter, report: &Report) -> Limiter {
    let default = Limiter::default();
    Limiter {
        default_rule: default_rule(raw.default_rule.as_ref(), report),
        max_keys: report.integer(&raw.max_keys, 1000..=100_000_000).unwrap_or(default.max_keys),
        instances: report.integer(&raw.instances, 1..=10_000).unwrap_or(default.instances),
        on_store_failure: report.parse(&raw.on_store_failure, failure_policy).unwrap_or(default.on_store_failure),
        prefetch: prefetch(&raw.prefetch, default.prefetch, report),
        breaker: breaker(&raw.breaker, report),
    }
}

fn prefetch(raw: &file::Prefetch, default: Prefetch, report: &Report) -> Prefetch {
    let horizon = report.parse(&raw.horizon, |text| duration(text, Between::up_to_seconds(10)));
    Prefetch {
        batch: report.integer(&raw.batch, 1..=10_000).unwrap_or(default.batch),
        horizon: horizon.unwrap_or(default.horizon),
        enabled: raw.enabled.as_ref().map_or(default.enabled, |enabled| enabled.value),
    }
}

fn breaker(raw: &file::Breaker, report: &Report) -> Breaker {
    let up_to_an_hour = |text: &str| duration(text, Between::up_to_seconds(3600));
    let failure_rate = raw.failure_rate.as_ref().map(|At { value, place }| {
        if !(*value > 0.0 && *value <= 1.0) {
            report.note(place, format!("{value} is out of range, allowed is more than 0 up to 1"));
        }
        *value
    });
    let default = Breaker::default();
    Breaker {
        window: report.parse(&raw.window, up_to_an_hour).unwrap_or(default.window),
        minimum_calls: report.integer(&raw.minimum_calls, 1..=1_000_000).unwrap_or(default.minimum_calls),
        failure_rate: failure_rate.unwrap_or(default.failure_rate),
        failures_in_a_row: report.integer(&raw.failures_in_a_row, 1..=1_000_000).unwrap_or(default.failures_in_a_row),
        open_for: report.parse(&raw.open_for, up_to_an_hour).unwrap_or(default.open_for),
        probes: report.integer(&raw.probes, 1..=1000).unwrap_or(default.probes),
    }
}

fn default_rule(raw: Option<&file::DefaultRule>, report: &Report) -> Rule {
    let limit = raw.and_then(|raw| limit(raw, report));
    let cost = raw.and_then(|raw| {
        let most = limit.map_or(Limit::MAX, |limit| limit.capacity());
        report.integer(&raw.cost, 1..=i64::from(most)).and_then(NonZeroU32::new)
    });
    Rule {
        cost,
        on_store_failure: raw.and_then(|raw| report.parse(&raw.on_store_failure, failure_policy)),
        ..Rule::new(ANY, ANY, limit.unwrap_or_else(standard_limit))
    }
}

#[expect(clippy::expect_used, reason = "two constants that are well within the bounds")]
pub(in crate::config) fn standard_limit() -> Limit {
    Limit::new(20, 10.0).expect("within the bounds")
}

fn limit(raw: &file::DefaultRule, report: &Report) -> Option<Limit> {
    if let (Some(_), Some(refill)) = (&raw.refill_per_second, &raw.refill) {
        report.note(&refill.place, "stands beside refill_per_second, allowed is one of the two");
    }
    if !raw.has_refill {
        let at = raw.place.child("refill_per_second");
        report.note(&at, "is missing, allowed is either refill_per_second, or refill like \"100/min\"");
    }
    let from_text = raw
        .refill
        .as_ref()
        .and_then(|refill| Some(At { value: report.parse_at(refill, parse_refill)?, place: refill.place.clone() }));
    let refill = raw.refill_per_second.clone().or(from_text);
    // By itself first, so that faults in both numbers are told at once.
    let refill = refill.filter(|At { value, place }| match Limit::new(1, *value) {
        Ok(_) => true,
        Err(error) => {
            report.note(place, error.to_string());
            false
        }
    });
    let capacity = raw.capacity.as_ref()?;
    match Limit::new(capacity.value, refill.map_or(f64::from(Limit::MAX), |refill| refill.value)) {
        Ok(limit) => Some(limit),
        Err(error) => {
            report.note(&capacity.place, error.to_string());
            None
        }
    }
}
