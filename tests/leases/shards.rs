//! Sharded rules: the sum never exceeds the whole, and little of it is denied.

use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::fleet::{Fleet, Setting, Subject, limit, tally};
use crate::judge::{GRAIN, admitted, central, excess};
use crate::support::PrivateRedis;
use crate::{alone, traffic};

#[tokio::test]
async fn the_shards_of_a_rule_admit_together_what_the_rule_says() {
    let _alone = alone().await;
    let redis = PrivateRedis::start().await;
    let whole = limit(400, 400.0);
    for (gateways, load, least) in [(1, 3.0, 0.93), (2, 0.9, 0.99), (8, 3.0, 0.95)] {
        let fleet = Fleet::start(&redis.url(), Setting::patient(gateways)).await;
        let subjects: Arc<[Subject]> = [Subject { shards: 4, ..Subject::new("shop-a", whole) }].into();
        let arrivals = traffic::steady(&mut SmallRng::seed_from_u64(3), 2.0, 400.0 * load, gateways);
        let served = fleet.play(&subjects, &arrivals).await;
        let (admitted, central) = (admitted(&served), central(&served, whole));
        let ratio = admitted as f64 / central as f64;
        println!("{gateways} gateways, load {load}: {admitted} of {central}, {ratio:.4}; {}", tally(&served));
        let excess = excess(&served, whole);
        // Each of the four clocks its own milliseconds.
        assert!(excess <= 2.0 * GRAIN * 400.0 + 0.01, "{excess} tokens too many");
        assert!(ratio >= least, "{gateways} gateways, load {load}: {ratio} of one central bucket; {}", tally(&served));
    }
}
