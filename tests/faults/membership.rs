//! Gateways count each other through the store, and keep the count while it is away.

use std::time::Duration;

use crate::beside_others;
use crate::support::{Gateway, PrivateRedis, Setup, Upstream, eventually};

/// Waits until every gateway says that so many are alive.
pub(crate) async fn live(gateways: &[Gateway], count: u64, within: Duration) {
    for gateway in gateways {
        eventually(&format!("{count} gateways alive"), within, || async {
            (gateway.metric("sekisho_gateways_live", &[]).await == count as f64).then_some(())
        })
        .await;
        assert_eq!(gateway.status().await["gateways_live"], count);
    }
}

/// Fails as soon as one of them says anything else.
async fn live_all_along(gateways: &[Gateway], count: u64, time: Duration) {
    let until = tokio::time::Instant::now() + time;
    while tokio::time::Instant::now() < until {
        for gateway in gateways {
            assert_eq!(gateway.metric("sekisho_gateways_live", &[]).await, count as f64);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn gateways_that_come_count_at_once_and_those_that_stop_or_die_after_a_while() {
    let _beside = beside_others().await;
    let (upstream, redis) = (Upstream::normal().await, PrivateRedis::start().await);
    let setup = Setup::new(upstream.address).redis(&redis.url());
    let mut gateways = setup.start_many(3).await;
    live(&gateways, 3, Duration::from_secs(3)).await;
    let mut stopping = gateways.remove(0);
    stopping.signal("TERM");
    assert!(stopping.ended(Duration::from_secs(5)).await.is_some_and(|status| status.success()));
    // It said that it leaves: no need to wait until it has expired, too.
    live(&gateways, 2, Duration::from_secs(8)).await;
    drop(gateways.remove(0));
    live(&gateways, 1, Duration::from_secs(14)).await;
    gateways.push(setup.start().await);
    live(&gateways, 2, Duration::from_secs(3)).await;
}

#[tokio::test]
async fn the_count_is_kept_while_the_store_hangs_and_when_everybody_has_expired_there() {
    let _beside = beside_others().await;
    let (upstream, redis) = (Upstream::normal().await, PrivateRedis::start().await);
    let gateways = Setup::new(upstream.address).redis(&redis.url()).start_many(3).await;
    live(&gateways, 3, Duration::from_secs(3)).await;
    redis.signal("STOP");
    live_all_along(&gateways, 3, Duration::from_secs(6)).await;
    redis.signal("CONT");
    live_all_along(&gateways, 3, Duration::from_secs(6)).await;
}

#[tokio::test]
async fn a_gateway_that_shares_with_nobody_is_one_whatever_it_was_told() {
    let _beside = beside_others().await;
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).set("limiter", "instances", "7").start().await;
    live(&[gateway], 1, Duration::from_secs(1)).await;
}
