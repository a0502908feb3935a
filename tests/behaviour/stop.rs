//! Stopping.

use std::time::{Duration, Instant};

use crate::support::{Behaviour, Connection, HARDLY, Setup, Upstream, request};

#[tokio::test]
async fn sigterm_lets_what_is_in_flight_finish_and_then_ends() {
    let upstream = Upstream::start(Behaviour::Slow(Duration::from_millis(800))).await;
    let mut gateway =
        Setup::new(upstream.address).set("server", "grace_period", "\"20s\"").limit(10, HARDLY).start().await;
    let mut connection = Connection::open(gateway.address).await;
    connection.write(&request("GET", "/orders", &[("X-Api-Key", "shop-a")])).await;
    crate::support::eventually("the upstream has it", Duration::from_secs(5), || async {
        (upstream.requests() == 1).then_some(())
    })
    .await;
    let start = Instant::now();
    gateway.signal("TERM");
    let answer = connection.read(false).await.unwrap();
    assert_eq!(answer.status, 200);
    assert!(answer.closes(), "or its next request would go into a closed connection: {answer:?}");
    let status = gateway.ended(Duration::from_secs(15)).await.expect("it ends early when nothing is in flight");
    assert!(status.success(), "{status}");
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

#[tokio::test]
async fn sigterm_does_not_wait_longer_than_grace_period() {
    let upstream = Upstream::start(Behaviour::Slow(Duration::from_secs(60))).await;
    let mut gateway =
        Setup::new(upstream.address).set("server", "grace_period", "\"1s\"").limit(10, HARDLY).start().await;
    let mut connection = Connection::open(gateway.address).await;
    connection.write(&request("GET", "/orders", &[("X-Api-Key", "shop-a")])).await;
    crate::support::eventually("the upstream has it", Duration::from_secs(5), || async {
        (upstream.requests() == 1).then_some(())
    })
    .await;
    gateway.signal("TERM");
    gateway.ended(Duration::from_secs(10)).await.expect("it ends after its grace period");
}

#[tokio::test]
async fn an_idle_gateway_stops_quickly() {
    let upstream = Upstream::normal().await;
    let mut gateway =
        Setup::new(upstream.address).set("server", "grace_period", "\"20s\"").limit(10, HARDLY).start().await;
    // An idle keep-alive connection is nothing in flight.
    let mut connection = Connection::open(gateway.address).await;
    assert_eq!(connection.get("/orders", &[("X-Api-Key", "shop-a")]).await.unwrap().status, 200);
    gateway.signal("TERM");
    let status = gateway.ended(Duration::from_secs(10)).await.expect("it ends early when nothing is in flight");
    assert!(status.success(), "{status}");
}
