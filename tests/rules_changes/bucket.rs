//! What a change of rules does to buckets: nothing, unless the rule itself changed. With leases of a shared Redis, and in
//! this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sekisho::bucket::Limit;
use sekisho::clock::Clock;
use sekisho::config;
use sekisho::limiter::{Check, Limiter, Outcome, StoreState};
use sekisho::rules::{FailurePolicy, Rule};
use tokio::task::JoinHandle;

use super::support::{self, Database, redis_url, unique};
use super::{LONG, Running, of_database};

/// A limiter asked as a gateway asks it: by the rule of this very moment.
struct Asked {
    limiter: Arc<Limiter>,
    route: Arc<str>,
    upkeep: Option<JoinHandle<()>>,
}

impl Asked {
    async fn start(redis: Option<&str>) -> Self {
        let settings = config::Limiter {
            default_rule: Rule::new("*", "*", Limit::new(77, 1.0).unwrap()),
            max_keys: 1000,
            instances: 1,
            on_store_failure: FailurePolicy::Closed,
            prefetch: config::Prefetch { batch: 50, horizon: Duration::from_millis(100), enabled: true },
            breaker: config::Breaker::default(),
        };
        let redis = redis.map(|url| config::Redis::single(url).unwrap());
        let store = config::Store { redis, timeout: Duration::from_millis(500), key_prefix: unique() };
        let (limiter, upkeep) = Limiter::new(&store, &settings, Clock::monotonic()).unwrap();
        let limiter = Arc::new(limiter);
        let upkeep = upkeep.map(|upkeep| tokio::spawn(upkeep.run()));
        let asked = Self { limiter, route: "orders".into(), upkeep };
        support::eventually("the store is there", LONG, || async {
            matches!(asked.limiter.store_state(), StoreState::Connected | StoreState::InProcess).then_some(())
        })
        .await;
        asked
    }

    async fn admits(&self, rules: &Running) -> bool {
        let rule = Arc::clone(rules.loader.rules().load().resolve("a", "orders").enforce);
        let check = Check {
            tenant: "a",
            route: &self.route,
            limit: rule.limit,
            cost: 1,
            on_store_failure: FailurePolicy::Closed,
            shadow: false,
            shards: 1,
        };
        self.limiter.decide(&check).await.outcome == Outcome::Allowed
    }

    async fn admitted_of(&self, rules: &Running, count: usize) -> usize {
        let mut admitted = 0;
        for _ in 0..count {
            admitted += usize::from(self.admits(rules).await);
        }
        admitted
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.upkeep.iter().for_each(JoinHandle::abort);
    }
}

/// A rule of `capacity` for tenant `a` that hardly refills.
async fn hardly(capacity: u32) -> (Database, Running) {
    let database = Database::create().await;
    database
        .execute(&format!(
            "ALTER TABLE rate_limit_rule ALTER COLUMN refill_per_second TYPE NUMERIC;
             INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second)
             VALUES ('a', '*', {capacity}, 0.001), ('b', '*', 5, 1)"
        ))
        .await;
    let rules = Running::start(of_database(&database)).await;
    (database, rules)
}

#[tokio::test]
async fn a_hundred_updates_that_change_nothing_leave_what_is_admitted_unchanged() {
    for redis in [None, Some(redis_url())] {
        let (database, rules) = hardly(50).await;
        let asked = Asked::start(redis.as_deref()).await;
        let mut admitted = 0;
        for update in 0..100 {
            database.execute("UPDATE rate_limit_rule SET updated_at = now()").await;
            if update % 10 == 9 {
                assert!(rules.loader.reload().await);
            } else {
                rules.changed("a").await;
            }
            admitted += asked.admitted_of(&rules, 2).await;
        }
        assert_eq!(admitted, 50, "{redis:?}");
    }
}

#[tokio::test]
async fn changes_of_other_rules_leave_a_bucket_alone() {
    for redis in [None, Some(redis_url())] {
        let (database, rules) = hardly(20).await;
        let asked = Asked::start(redis.as_deref()).await;
        let mut admitted = 0;
        for capacity in 10..50 {
            database.execute(&super::update("b", capacity)).await;
            rules.changed("b").await;
            admitted += asked.admitted_of(&rules, 1).await;
        }
        assert_eq!((admitted, rules.capacity("b")), (20, Some(49)), "{redis:?}");
    }
}

#[tokio::test]
async fn a_raised_limit_admits_an_exhausted_tenant_within_a_second_and_a_lowered_one_clamps_its_tokens() {
    for redis in [None, Some(redis_url())] {
        let (database, rules) = hardly(3).await;
        let asked = Asked::start(redis.as_deref()).await;
        assert_eq!(asked.admitted_of(&rules, 10).await, 3);
        database
            .execute("UPDATE rate_limit_rule SET capacity = 30, refill_per_second = 20 WHERE tenant_id = 'a'")
            .await;
        let changed = Instant::now();
        rules.loader.changes().pair("a", "*");
        support::eventually("it is admitted", Duration::from_secs(1), || async {
            asked.admits(&rules).await.then_some(())
        })
        .await;
        assert!(changed.elapsed() < Duration::from_secs(1), "{:?}", changed.elapsed());

        // Time for more tokens than the next rule lets anybody keep.
        tokio::time::sleep(Duration::from_millis(500)).await;
        database
            .execute("UPDATE rate_limit_rule SET capacity = 2, refill_per_second = 0.001 WHERE tenant_id = 'a'")
            .await;
        rules.changed("a").await;
        let admitted = asked.admitted_of(&rules, 10).await;
        assert!(admitted <= 2, "{admitted} {redis:?}");
    }
}
