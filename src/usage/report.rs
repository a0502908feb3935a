//! What operators are shown.

use std::collections::BTreeMap;

use super::series::{Counted, Name};
use super::window::Window;
use super::{HOURS, MINUTE_MS, MINUTES, Usage};
use crate::wall::{self, Rfc3339};

const HOUR_MS: u64 = 60 * MINUTE_MS;

/// The tenants and routes with the most requests and denials on this gateway.
#[derive(Debug, serde::Serialize)]
pub struct Top {
    /// Nothing from before counts.
    pub since: Rfc3339,
    /// From then until now.
    pub window_seconds: u64,
    /// Decisions that this gateway could not count since it started.
    pub dropped: u64,
    /// Most denials first.
    pub denied: Vec<Heavy>,
    /// Most requests first.
    pub requests: Vec<Heavy>,
}

/// One of the heaviest.
#[derive(Debug, serde::Serialize)]
pub struct Heavy {
    /// Who asks.
    pub tenant: String,
    /// For which route.
    pub route: String,
    /// How often, at most.
    pub count: u64,
    /// By so much `count` may be too high.
    pub error: u64,
}

/// What was decided for one tenant.
#[derive(Debug, serde::Serialize)]
pub struct TenantUsage {
    /// Its id.
    pub tenant: String,
    /// `fleet`, or `gateway` where only this gateway's own decisions are known.
    pub scope: &'static str,
    /// Whether these are all decisions of the time that is shown, as far as this gateway knows.
    pub complete: bool,
    /// Why they are not.
    pub why: Option<String>,
    /// The current minute and the nine before.
    pub last_10_minutes: Vec<Sum>,
    /// The current hour and the 23 before.
    pub last_24_hours: Vec<Sum>,
    /// The same, by minute.
    pub per_minute: Vec<Slice>,
    /// The same, by hour.
    pub per_hour: Vec<Slice>,
}

/// Decisions of one minute or hour.
#[derive(Debug, serde::Serialize)]
pub struct Slice {
    /// Its beginning.
    pub time: Rfc3339,
    /// By route and rule.
    pub decisions: Vec<Sum>,
}

/// Decisions by one rule on one route.
#[derive(Debug, serde::Serialize)]
pub struct Sum {
    /// The route.
    pub route: String,
    /// `tenant/route` of the rule.
    pub rule: String,
    /// How many passed.
    pub allowed: u64,
    /// How many were over the limit.
    pub denied: u64,
    /// How many a rule in shadow mode would have denied.
    pub shadow_denied: u64,
    /// How many were refused because the store did not answer.
    pub unavailable: u64,
}

/// Counts by route and rule.
type Counts = BTreeMap<Name, [u64; Counted::ALL.len()]>;

/// Counts of one tenant, by minute and by hour since 1970.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) minutes: BTreeMap<u64, Counts>,
    pub(super) hours: BTreeMap<u64, Counts>,
}

impl Tally {
    /// Adds counts to one of its maps.
    pub(super) fn add(slices: &mut BTreeMap<u64, Counts>, number: u64, name: Name, counted: Counted, count: u64) {
        slices.entry(number).or_default().entry(name).or_default()[counted as usize] += count;
    }
}

impl Usage {
    /// The `most` heaviest of the last ten minutes, or since the start.
    pub fn top(&self, most: usize) -> Top {
        let mut collected = self.up_to_date();
        let now = wall::now_ms();
        let minute = now / MINUTE_MS;
        let heaviest = |window: &mut Window| {
            let top = window.top(minute, most).into_iter();
            top.map(|((tenant, route), estimate)| Heavy {
                tenant: tenant.into_string(),
                route: self.route(route).to_owned(),
                count: estimate.count,
                error: estimate.error,
            })
            .collect()
        };
        let since = self.started_ms.max((minute + 1).saturating_sub(MINUTES) * MINUTE_MS);
        Top {
            since: Rfc3339(since),
            window_seconds: now.saturating_sub(since).div_ceil(1000),
            dropped: self.dropped(),
            denied: heaviest(&mut collected.denied),
            requests: heaviest(&mut collected.requests),
        }
    }

    /// What was decided for a tenant: by the whole fleet where the store can say so, else by this gateway.
    pub async fn tenant(&self, tenant: &str) -> TenantUsage {
        let now_minute = wall::now_ms() / MINUTE_MS;
        let (own, waiting) = {
            let collected = self.up_to_date();
            let (mut own, mut waiting) = (Tally::default(), Tally::default());
            let name = |what: super::What| Name::new(tenant, self.route(what.route), what.rule);
            for (minute, what, count) in collected.minutes.of(tenant) {
                Tally::add(&mut own.minutes, minute, name(what), what.counted, count.into());
            }
            for (hour, what, count) in collected.hours.of(tenant) {
                Tally::add(&mut own.hours, hour, name(what), what.counted, count.into());
            }
            for row in collected.pending.iter().flat_map(|pending| pending.of(tenant)) {
                let (what, count) = (row.what, u64::from(row.count));
                Tally::add(&mut waiting.minutes, row.minute, name(what), what.counted, count);
                Tally::add(&mut waiting.hours, row.minute / 60, name(what), what.counted, count);
            }
            (own, waiting)
        };
        let (scope, tally, away) = match &self.shared {
            None => ("gateway", own, None),
            Some(shared) => match shared.read(tenant, now_minute, waiting).await {
                Ok(fleet) => ("fleet", fleet, None),
                Err(why) => ("gateway", own, Some(format!("the store does not answer: {why}"))),
            },
        };
        let dropped = match self.dropped() {
            0 => None,
            dropped => Some(format!("{dropped} decisions of this gateway could not be counted since it started")),
        };
        let why = away.or(dropped);
        let minutes = recent(tally.minutes, now_minute, MINUTES);
        let hours = recent(tally.hours, now_minute / 60, HOURS);
        TenantUsage {
            tenant: tenant.to_owned(),
            scope,
            complete: why.is_none(),
            why,
            last_10_minutes: sums(&total(&minutes)),
            last_24_hours: sums(&total(&hours)),
            per_minute: slices(&minutes, MINUTE_MS),
            per_hour: slices(&hours, HOUR_MS),
        }
    }
}

/// The slices up to `now`, `keep` of them.
fn recent(mut slices: BTreeMap<u64, Counts>, now: u64, keep: u64) -> BTreeMap<u64, Counts> {
    slices.retain(|&number, _| number + keep > now);
    slices
}

fn total(slices: &BTreeMap<u64, Counts>) -> Counts {
    let mut total = Counts::new();
    for (name, counts) in slices.values().flatten() {
        let sums = total.entry(name.clone()).or_default();
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    total
}

fn sums(counts: &Counts) -> Vec<Sum> {
    let sum = |(name, counts): (&Name, &[u64; 4])| {
        let [allowed, denied, shadow_denied, unavailable] = *counts;
        let (tenant, route) = &name.rule;
        Sum {
            route: name.route.clone(),
            rule: format!("{tenant}/{route}"),
            allowed,
            denied,
            shadow_denied,
            unavailable,
        }
    };
    counts.iter().map(sum).collect()
}

fn slices(slices: &BTreeMap<u64, Counts>, length_ms: u64) -> Vec<Slice> {
    let slice =
        |(&number, counts): (&u64, &Counts)| Slice { time: Rfc3339(number * length_ms), decisions: sums(counts) };
    slices.iter().map(slice).collect()
}
