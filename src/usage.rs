//! Who was limited: decisions counted by tenant, route, rule and outcome, beside the requests. What was counted is kept
//! here in bounded memory, and added up over the fleet in Redis.
//!
//! | what | bound |
//! |---|---|
//! | decisions not collected yet | 16,384 for each worker thread, collected every [`COLLECT_EVERY`] |
//! | counters of one minute (of ten) and of one hour (of 24) in this process | `usage.max_series` each |
//! | counters that wait for Redis | [`MOST_PENDING`] |
//! | tenants written to Redis at a time | [`TENANTS_AT_A_TIME`], every 1 to 2 s |
//! | tenants and routes in `/api/v1/top` | see `window` |
//!
//! What finds no room is counted in `sekisho_usage_dropped_total`.

mod pending;
mod report;
mod series;
mod shared;
mod sketch;
mod slices;
mod window;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use self::pending::{Batch, Pending};
pub use self::report::{Heavy, Slice, Sum, TenantUsage, Top};
pub use self::series::Counted;
use self::series::{Series, What};
use self::shared::Shared;
use self::slices::Slices;
use self::window::{MINUTES, Window};
use crate::config;
use crate::handover::Handover;
use crate::metrics;
use crate::rule::Rule;
use crate::store::redis::RedisStore;
use crate::telemetry::Seldom;
use crate::wall;

/// How often what was handed over is collected.
const COLLECT_EVERY: Duration = Duration::from_millis(100);
/// After so many collections what is known is brought up to date.
const COLLECTIONS: u64 = 10;
/// What is collected but not settled yet is settled at once where it is so many counters.
const MOST_FRESH: usize = 50_000;
/// Counters that wait for Redis.
const MOST_PENDING: usize = 100_000;
/// Tenants whose counters are written at a time; the others wait, and their counts add up meanwhile.
const TENANTS_AT_A_TIME: usize = 2_000;
/// Between two writes, before jitter: half of it to once and a half.
const FLUSH_EVERY: Duration = Duration::from_millis(1_333);
const MINUTE_MS: u64 = 60_000;
/// Hours that are looked back over, the current one among them.
const HOURS: u64 = 24;
/// How often failing writes are told.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Counts decisions.
#[derive(Debug)]
pub struct Usage {
    handover: Handover<Series>,
    /// By their place in the configuration.
    routes: Arc<[Arc<str>]>,
    collected: Mutex<Collected>,
    /// Where the fleet adds up its counts.
    shared: Option<Shared>,
    dropped: AtomicU64,
    failing: Seldom,
    started_ms: u64,
}

/// What has been taken from the requests.
#[derive(Debug)]
struct Collected {
    spare: Vec<Series>,
    /// Not in any of the others yet.
    fresh: HashMap<Series, u32, RandomState>,
    minutes: Slices,
    hours: Slices,
    requests: Window,
    denied: Window,
    /// Not in Redis yet; `None` without one.
    pending: Option<Pending>,
}

impl Usage {
    /// Counts decisions of requests for these routes, made by so many threads.
    pub fn new(
        settings: &config::Usage,
        routes: &[config::Route],
        threads: usize,
        key_prefix: &str,
        store: Option<&RedisStore>,
    ) -> Self {
        let store = store.filter(|_| settings.shared);
        Self {
            handover: Handover::new(threads),
            routes: routes.iter().map(|route| route.id.as_str().into()).collect(),
            collected: Mutex::new(Collected {
                spare: Vec::new(),
                fresh: HashMap::default(),
                minutes: Slices::new(1, MINUTES, settings.max_series),
                hours: Slices::new(60, HOURS, settings.max_series),
                requests: Window::default(),
                denied: Window::default(),
                pending: store.map(|_| Pending::new(MOST_PENDING)),
            }),
            shared: store.map(|store| Shared::new(key_prefix, store.side_line(), store.side_line())),
            dropped: AtomicU64::new(0),
            failing: Seldom::new(TELL_EVERY),
            started_ms: wall::now_ms(),
        }
    }

    /// Counts one decision by `rule`, on the route at this place of the configuration.
    #[inline]
    pub fn count(&self, tenant: &str, route: usize, rule: &Rule, counted: Counted) {
        let what = What { route: route as u32, rule: rule.scope(), counted };
        if !self.handover.put(Series { tenant: tenant.into(), what }) {
            self.lose(1);
        }
    }

    /// Collects as long as the process runs, and writes to Redis what was collected.
    pub async fn run(&self) {
        let collect = async {
            let mut tick = interval(COLLECT_EVERY);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            for count in 1_u64.. {
                tick.tick().await;
                let mut collected = self.collected.lock();
                self.collect(&mut collected);
                if count.is_multiple_of(COLLECTIONS) {
                    self.settle(&mut collected);
                }
            }
        };
        let flush = async {
            while let Some(shared) = &self.shared {
                sleep(FLUSH_EVERY.mul_f64(rand::random_range(0.75..1.5))).await;
                self.flush(shared).await;
            }
        };
        tokio::join!(collect, flush);
    }

    /// Writes what there is, for the end of the process.
    pub async fn close(&self, longest: Duration) {
        drop(self.up_to_date());
        if let Some(shared) = &self.shared {
            let _ = timeout(longest, self.flush(shared)).await;
        }
    }

    /// Decisions that this gateway could not count since it started.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn lose(&self, decisions: u64) {
        if decisions > 0 {
            self.dropped.fetch_add(decisions, Ordering::Relaxed);
            metrics::USAGE_DROPPED.inc_by(decisions);
        }
    }

    /// All that requests have handed over until now.
    fn up_to_date(&self) -> MutexGuard<'_, Collected> {
        let mut collected = self.collected.lock();
        self.collect(&mut collected);
        self.settle(&mut collected);
        collected
    }

    /// Takes what requests handed over.
    fn collect(&self, collected: &mut Collected) {
        let Collected { spare, fresh, .. } = collected;
        self.handover.take(spare, |series| *fresh.entry(series).or_default() += 1);
        if fresh.len() > MOST_FRESH {
            self.settle(collected);
        }
    }

    /// Adds what was collected to everything that is known.
    fn settle(&self, collected: &mut Collected) {
        let minute = wall::now_ms() / MINUTE_MS;
        let mut dropped = 0;
        for (series, count) in collected.fresh.drain() {
            let place = || (series.tenant.clone(), series.what.route);
            match series.what.counted {
                Counted::Allowed | Counted::Unavailable => collected.requests.add(minute, place(), count.into()),
                Counted::Denied => {
                    collected.requests.add(minute, place(), count.into());
                    collected.denied.add(minute, place(), count.into());
                }
                Counted::ShadowDenied => {}
            }
            let has_room = [
                collected.minutes.add(minute, &series, count),
                collected.hours.add(minute, &series, count),
                collected.pending.as_mut().is_none_or(|pending| pending.add(minute, &series, count)),
            ];
            // With Redis it is the counts there that are shown.
            let is_kept = if collected.pending.is_some() { has_room[2] } else { has_room[0] && has_room[1] };
            dropped += if is_kept { 0 } else { u64::from(count) };
        }
        self.lose(dropped);
    }

    /// Writes the counts of some tenants to Redis.
    async fn flush(&self, shared: &Shared) {
        let batches = match &mut self.collected.lock().pending {
            Some(pending) => pending.take(TENANTS_AT_A_TIME),
            None => return,
        };
        if batches.is_empty() {
            return;
        }
        let written = shared.write(&self.routes, batches).await;
        if let Some(why) = written.why
            && self.failing.tell().is_some()
        {
            tracing::warn!("counts of usage cannot be written to the store: {why}");
        }
        self.lose(written.lost);
        self.give_back(written.unsent);
    }

    fn give_back(&self, unsent: Vec<Batch>) {
        if let Some(pending) = &mut self.collected.lock().pending {
            self.lose(pending.give_back(unsent));
        }
    }

    fn route(&self, place: u32) -> &str {
        self.routes.get(place as usize).map_or("", |route| &**route)
    }
}
