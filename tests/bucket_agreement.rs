//! The bucket in Rust and the script in Redis are the same bucket: random calls at random times get the same replies and
//! leave the same tokens. Only `TIME` is replaced in the script's text, so that the test owns the clock.

#![allow(clippy::unwrap_used, missing_docs)]

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sekisho::bucket::{Bucket, Call, Demand, GENERATION_MS, Limit, Report};

const SCRIPT: &str = include_str!("../scripts/redis/token_bucket.lua");
const START: u64 = 1_764_000_000_000;

#[derive(Clone, Debug)]
struct Step {
    /// Milliseconds; the clock may step back.
    pause: i64,
    limit: Limit,
    demand: Vec<(u32, u32)>,
    prefetch: u32,
    /// Generations ago.
    age: u64,
    used: u32,
    held: u32,
    back: u32,
    owed: u32,
}

fn limits() -> impl Strategy<Value = Limit> {
    let capacity = prop_oneof![1_i64..20, 1_i64..1000, Just(i64::from(i32::MAX))];
    let rate = prop_oneof![0.5_f64..3.0, 1.0_f64..2000.0, Just(100.0 / 60.0)];
    (capacity, rate).prop_filter_map("fills within a year", |(capacity, rate)| Limit::new(capacity, rate).ok())
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pause = prop_oneof![8 => 0_i64..300, 4 => 0_i64..5_000, 1 => -1_500_i64..0, 1 => -3_600_000_i64..3_600_000];
    let pair = prop_oneof![4 => (1_u32..6, 1_u32..40), 1 => (1_u32..1000, 1_u32..3)];
    let demand = prop::collection::vec(pair, 0..4);
    let report = (0_u64..4, 0_u32..12, 0_u32..12, 0_u32..12, 0_u32..5);
    let report = prop_oneof![1 => Just((0, 0, 0, 0, 0)), 2 => report];
    let step =
        (pause, demand, 0_u32..120, report).prop_map(|(pause, demand, prefetch, (age, used, held, back, owed))| Step {
            pause,
            limit: Limit::new(1, 1.0).unwrap(),
            demand,
            prefetch,
            age,
            used,
            held,
            back,
            owed,
        });
    // One rule for most of a sequence, changed once in between.
    (limits(), limits(), prop::collection::vec(step, 1..60), 0_usize..60).prop_map(
        |(first, second, mut steps, change)| {
            for (i, step) in steps.iter_mut().enumerate() {
                step.limit = if i < change { first } else { second };
            }
            steps
        },
    )
}

#[test]
fn the_script_and_the_bucket_in_rust_agree() {
    let url =
        std::env::var("SEKISHO_TEST_REDIS_URL").expect("a Redis at SEKISHO_TEST_REDIS_URL: run through `make test`");
    let client = redis::Client::open(url).unwrap();
    let text = SCRIPT.replace("call('TIME')", "{ KEYS[2], KEYS[3] }");
    assert_ne!(text, SCRIPT);
    let script = redis::Script::new(&text);
    let key = format!("agreement:{}", std::process::id());

    let mut runner = TestRunner::new(Config { cases: 150, failure_persistence: None, ..Config::default() });
    let result = runner.run(&steps(), |steps| {
        let mut redis = client.get_connection().unwrap();
        let _: () = redis::cmd("DEL").arg(&key).query(&mut redis).unwrap();
        let mut now = START;
        let mut bucket: Option<Bucket> = None;
        for step in steps {
            now = now.saturating_add_signed(step.pause);
            let demand: Vec<_> = step.demand.iter().map(|&(cost, count)| Demand { cost, count }).collect();
            let generation = now / GENERATION_MS - step.age;
            let report = Report { generation, used: step.used, held: step.held, back: step.back, owed: step.owed };
            let call = Call { limit: step.limit, demand: &demand, prefetch: step.prefetch, report };
            let rust = bucket.get_or_insert_with(|| Bucket::full(step.limit, now)).call(now, &call);

            let mut lua = script.prepare_invoke();
            lua.key(&key).key(now / 1000).key(now % 1000 * 1000);
            lua.arg(step.limit.capacity()).arg(step.limit.refill_per_second()).arg(demand.len());
            for demand in &demand {
                lua.arg(demand.cost).arg(demand.count);
            }
            if step.prefetch + step.used + step.held + step.back + step.owed > 0 {
                lua.arg(step.prefetch).arg(generation);
                lua.arg(step.used).arg(step.held).arg(step.back).arg(step.owed);
            }
            let lua: Vec<i64> = lua.invoke(&mut redis).unwrap();
            let wait = rust.wait_ms.map_or(-1, |wait| wait as i64);
            let expected = [
                i64::from(rust.granted),
                i64::from(rust.prefetched),
                rust.generation as i64,
                i64::from(rust.stash_known),
                i64::from(rust.tokens),
                wait,
                0,
            ];
            prop_assert_eq!(lua, expected);
            let (stored, ttl): (f64, i64) = redis::pipe().hget(&key, "tokens").pttl(&key).query(&mut redis).unwrap();
            prop_assert_eq!(stored, bucket.as_ref().unwrap().tokens(), "to the last bit");
            let longest = (2000.0 * f64::from(step.limit.capacity()) / step.limit.refill_per_second()).ceil() as i64;
            prop_assert!(0 < ttl && ttl <= longest.max(4000));
        }
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
