//! What the black-box tests share: gateways as processes, a raw HTTP client, upstreams that count, Redis, PostgreSQL,
//! and load.

mod certificate;
pub(crate) mod changes;
mod client;
mod fault_proxy;
mod gateway;
mod load;
mod pgbouncer;
mod redis_cluster;
mod redis_sentinel;
mod redis_server;
mod rules_database;
mod upstream;

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

pub(crate) use certificate::write_certificate;
pub(crate) use client::{Connection, Response, get, request, send};
pub(crate) use fault_proxy::{Fault, FaultProxy, Plan};
pub(crate) use gateway::{BINARY, Gateway, HARDLY, Run, Setup, sekisho};
pub(crate) use load::{Load, Report};
pub(crate) use pgbouncer::PgBouncer;
pub(crate) use redis_cluster::RedisCluster;
pub(crate) use redis_sentinel::RedisSentinel;
pub(crate) use redis_server::{PrivateRedis, connect, redis_url, unique};
pub(crate) use rules_database::{Database, PrivatePostgres};
pub(crate) use upstream::{Behaviour, Upstream};

/// A loopback address nobody listens on, below the range the kernel hands out to clients, never given twice.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 9_000;
    // Test processes start at different places, so that they do not race for the same ports.
    let start = std::process::id() as u16 % COUNT;
    loop {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let address = SocketAddr::from(([127, 0, 0, 1], FIRST + (start.wrapping_add(n)) % COUNT));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// Asks again and again until the answer is something, and fails the test when it never is.
pub(crate) async fn eventually<T, F>(what: &str, within: Duration, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + within;
    loop {
        if let Some(value) = ask().await {
            return value;
        }
        assert!(Instant::now() < deadline, "did not come true within {within:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
