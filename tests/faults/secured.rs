//! A store behind TLS and passwords, and one that may forget.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::{
    Gateway, HARDLY, PrivateRedis, Setup, Upstream, connect, eventually, free_address, get, write_certificate,
};
use crate::{decided_by_the_store, local};

const PASSWORD: &str = "s3cret-p4ss";

/// What the README lets a gateway's user do.
fn documented_user() -> String {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let (_, from) = readme.split_once("```\nuser sekisho").expect("README names the user");
    format!("user sekisho{}", from.split("```").next().unwrap_or_default())
}

/// A Redis with a plain port for the test, and one with TLS that has a certificate for `localhost`. User `app` may do
/// what the README says, in keys of any prefix, but not read the configuration.
async fn secured() -> (PrivateRedis, SocketAddr) {
    let (tls, redis) = (free_address(), PrivateRedis::absent());
    write_certificate(redis.dir.path(), "localhost");
    let path = |name: &str| redis.dir.path().join(name).display().to_string();
    let (certificate, key, port) = (path("cert.pem"), path("key.pem"), tls.port().to_string());
    let user = documented_user().replace("user sekisho", "app").replace("PASSWORD", PASSWORD).replace("~rl:*", "~*");
    let user = user.replace("+config|get", "resetchannels");
    let mut arguments = vec!["--tls-port", &port, "--tls-cert-file", &certificate, "--tls-key-file", &key];
    arguments.extend(["--tls-auth-clients", "no", "--user"]);
    arguments.extend(user.split_whitespace());
    let mut redis = redis.with(&arguments);
    redis.restart().await;
    (redis, tls)
}

fn url(tls: SocketAddr, host: &str, password: &str) -> String {
    format!("rediss://app:{password}@{host}:{}/3", tls.port())
}

fn setup(upstream: &Upstream, redis: &PrivateRedis, url: &str) -> Setup {
    let ca_file = redis.dir.path().join("cert.pem").display().to_string();
    Setup::new(upstream.address).redis(url).set("store", "ca_file", &format!("{ca_file:?}")).limit(20, HARDLY)
}

async fn tells_no_secret(gateway: &Gateway) {
    let told = format!("{}{}{}", gateway.log(), gateway.status().await, gateway.metrics().await);
    assert!(!told.contains(PASSWORD), "{told}");
}

#[tokio::test]
async fn tls_user_password_and_database_are_used() {
    let (upstream, (redis, tls)) = (Upstream::normal().await, secured().await);
    let setup = setup(&upstream, &redis, &url(tls, "localhost", PASSWORD));
    let gateways = setup.start_many(2).await;
    for (n, gateway) in gateways.iter().enumerate() {
        let answer = gateway.get("/orders", "shop-a").await;
        assert_eq!((answer.status, answer.number("X-RateLimit-Remaining")), (200, 19 - n as u64), "{}", gateway.log());
        assert_eq!(local(gateway).await, 0.0);
        tells_no_secret(gateway).await;
    }
    for gateway in &gateways {
        eventually("both are counted", Duration::from_secs(5), || async {
            (gateway.status().await["gateways_live"] == 2).then_some(())
        })
        .await;
        eventually("the counts of both are shared", Duration::from_secs(10), || async {
            let told = get(gateway.admin, "/api/v1/tenants/shop-a", &[]).await.json();
            (told["complete"] == true && told["last_10_minutes"][0]["allowed"] == 2).then_some(())
        })
        .await;
        assert!(!gateway.log().contains("refused"), "{}", gateway.log());
    }
    let keys = async |database: u32| {
        let mut connection = connect(&format!("{}/{database}", redis.url())).await;
        let pattern = format!("{}:*", setup.prefix());
        redis::cmd("KEYS").arg(pattern).query_async::<Vec<String>>(&mut connection).await.unwrap()
    };
    assert!(keys(3).await.contains(&format!("{}:{{shop-a}}:orders", setup.prefix())));
    assert!(keys(0).await.is_empty());
}

/// Never a secret, always a reason, and every request answered.
async fn refused(gateway: &Gateway, reason: &str) {
    gateway.logged(reason).await;
    assert_eq!((gateway.get("/orders", "shop-a").await.status, local(gateway).await), (200, 1.0));
    let status = gateway.status().await;
    let told = status["store_nodes"][0]["reason"].as_str().unwrap_or_default();
    assert!(told.contains(reason), "{status}");
    tells_no_secret(gateway).await;
}

#[tokio::test]
async fn a_wrong_password_is_named_and_never_told() {
    let (upstream, (redis, tls)) = (Upstream::normal().await, secured().await);
    let wrong = format!("{PASSWORD}-not");
    let gateway = setup(&upstream, &redis, &url(tls, "localhost", &wrong)).start().await;
    refused(&gateway, "WRONGPASS").await;
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_or_of_another_name_is_refused() {
    let (upstream, (redis, tls)) = (Upstream::normal().await, secured().await);
    let by_address = setup(&upstream, &redis, &url(tls, "127.0.0.1", PASSWORD)).start().await;
    refused(&by_address, "the certificate is not accepted: IP address mismatch").await;
    // Only the system's certificates.
    let untrusted = setup(&upstream, &redis, &url(tls, "localhost", PASSWORD)).unset("store", "ca_file");
    refused(&untrusted.start().await, "the certificate is not accepted: self-signed certificate").await;
}

async fn can_evict(gateway: &Gateway) -> (f64, serde_json::Value) {
    let node = gateway.status().await["store_nodes"][0].clone();
    (gateway.metric("sekisho_store_can_evict", &[]).await, node["can_evict"].clone())
}

#[tokio::test]
async fn a_store_that_may_evict_buckets_is_warned_of() {
    let (upstream, (redis, tls)) = (Upstream::normal().await, secured().await);
    let mut admin = connect(&redis.url()).await;
    let mut configure = async |name: &str, value: &str| {
        redis::cmd("CONFIG").arg(&["SET", name, value]).exec_async(&mut admin).await.unwrap();
    };
    configure("maxmemory", "100mb").await;
    configure("maxmemory-policy", "allkeys-lru").await;
    // One user may read the configuration, the other finds it elsewhere.
    let plain = Setup::new(upstream.address).redis(&redis.url()).start().await;
    let other = setup(&upstream, &redis, &url(tls, "localhost", PASSWORD)).start().await;
    for gateway in [&plain, &other] {
        gateway.logged("the store may evict buckets").await;
        assert!(gateway.log().contains("allkeys-lru"), "{}", gateway.log());
        assert_eq!(can_evict(gateway).await, (1.0, true.into()));
        decided_by_the_store(gateway, "shop-a", Duration::from_secs(5)).await;
    }
    // It is looked at again with each new connection.
    configure("maxmemory-policy", "noeviction").await;
    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).exec_async(&mut admin).await.unwrap();
    for gateway in [&plain, &other] {
        eventually("nothing can be evicted", Duration::from_secs(5), || async {
            (can_evict(gateway).await == (0.0, false.into())).then_some(())
        })
        .await;
    }
}
