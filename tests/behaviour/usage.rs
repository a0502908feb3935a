//! Who was limited: `/api/v1/top` and `/api/v1/tenants/{tenant}`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Connection, Gateway, HARDLY, PrivateRedis, RedisCluster, Setup, Upstream, connect, eventually, get, redis_url,
};

const PATIENCE: Duration = Duration::from_secs(15);

async fn tenant(gateway: &Gateway, tenant: &str) -> Value {
    let answer = get(gateway.admin, &format!("/api/v1/tenants/{tenant}"), &[]).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

async fn top(gateway: &Gateway, query: &str) -> Value {
    get(gateway.admin, &format!("/api/v1/top{query}"), &[]).await.json()
}

fn sum(route: &str, rule: &str, allowed: u64, denied: u64) -> Value {
    let (shadow_denied, unavailable) = (0, 0);
    json!({ "route": route, "rule": rule, "allowed": allowed, "denied": denied, "shadow_denied": shadow_denied,
            "unavailable": unavailable })
}

/// Waits until what every gateway says of a tenant, for minutes and hours, is this.
async fn says(gateways: &[Gateway], who: &str, expected: &Value) {
    for gateway in gateways {
        let mut last = Value::Null;
        for _ in 0..150 {
            last = tenant(gateway, who).await;
            if last["last_10_minutes"] == *expected && last["last_24_hours"] == *expected {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!((&last["last_10_minutes"], &last["last_24_hours"]), (expected, expected), "{last}");
    }
}

#[tokio::test]
async fn the_counts_of_a_tenant_are_those_of_the_whole_fleet() {
    let upstream = Upstream::normal().await;
    let setup = Setup::new(upstream.address).redis(&redis_url()).route("export", "/export").rules(
        r#"[{"tenant_id":"*","route_id":"*","capacity":10,"refill_per_second":0.001},
            {"tenant_id":"shop-a","route_id":"export","capacity":2,"refill_per_second":0.001}]"#,
    );
    let gateways = setup.start_many(3).await;
    for gateway in &gateways {
        gateway.spend("/orders", "shop-a", 6).await;
        gateway.spend("/export", "shop-a", 2).await;
        gateway.spend("/orders", "other", 1).await;
    }
    let expected = json!([sum("export", "shop-a/export", 2, 4), sum("orders", "*/*", 10, 8)]);
    says(&gateways, "shop-a", &expected).await;
    says(&gateways[..1], "other", &json!([sum("orders", "*/*", 3, 0)])).await;
    says(&gateways[..1], "nobody", &json!([])).await;

    let answer = tenant(&gateways[0], "shop-a").await;
    assert_eq!((&answer["scope"], &answer["complete"], &answer["why"]), (&json!("fleet"), &json!(true), &Value::Null));
    for (slices, end) in [("per_minute", ":00.000Z"), ("per_hour", ":00:00.000Z")] {
        let slices = answer[slices].as_array().unwrap();
        let counted: u64 = slices
            .iter()
            .flat_map(|slice| slice["decisions"].as_array().unwrap())
            .map(|sum| sum["allowed"].as_u64().unwrap() + sum["denied"].as_u64().unwrap())
            .sum();
        assert_eq!(counted, 24, "{answer}");
        assert!(slices.iter().all(|slice| slice["time"].as_str().unwrap().ends_with(end)), "{answer}");
    }
}

#[tokio::test]
async fn counts_in_redis_are_named_after_tenant_and_time_and_do_not_stay() {
    let upstream = Upstream::normal().await;
    let setup = Setup::new(upstream.address).redis(&redis_url()).limit(10, HARDLY);
    let gateway = setup.start().await;
    gateway.spend("/orders", "a}b", 3).await;
    let mut redis = connect(&redis_url()).await;
    let pattern = format!("{}:usage:*", setup.prefix());
    let keys = eventually("counts in Redis", PATIENCE, || {
        let mut redis = redis.clone();
        let pattern = pattern.clone();
        async move {
            let keys: Vec<String> = redis::cmd("KEYS").arg(&pattern).query_async(&mut redis).await.unwrap();
            (keys.len() >= 2).then_some(keys)
        }
    })
    .await;
    for key in keys {
        let (kind, least, most) = if key.contains(":m:") { ("m", 600, 900) } else { ("h", 24 * 3600, 25 * 3600) };
        assert!(key.starts_with(&format!("{}:usage:{{a%7Db}}:{kind}:", setup.prefix())), "{key}");
        let ttl: i64 = redis::cmd("TTL").arg(&key).query_async(&mut redis).await.unwrap();
        assert!((least..=most).contains(&ttl), "{key} lives for {ttl} s");
        let fields: Vec<(String, u64)> = redis::cmd("HGETALL").arg(&key).query_async(&mut redis).await.unwrap();
        assert!(fields.iter().all(|(field, _)| field == "orders|%2A/%2A|allowed"), "{fields:?}");
    }
    says(&[gateway], "a%7Db", &json!([sum("orders", "*/*", 3, 0)])).await;
}

#[tokio::test]
async fn what_shadow_rules_and_failure_policies_do_is_counted_by_their_rule() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .rules(
            r#"[{"tenant_id":"shop-a","route_id":"*","capacity":1,"refill_per_second":0.001,"mode":"shadow"},
                {"tenant_id":"*","route_id":"orders","capacity":5,"refill_per_second":0.001}]"#,
        )
        .start()
        .await;
    gateway.spend("/orders", "shop-a", 4).await;
    let mut shadow = sum("orders", "shop-a/*", 0, 0);
    shadow["shadow_denied"] = json!(3);
    says(&[gateway], "shop-a", &json!([sum("orders", "*/orders", 4, 0), shadow])).await;

    let mut redis = PrivateRedis::start().await;
    let closed = Setup::new(upstream.address)
        .redis(&redis.url())
        .limit(5, HARDLY)
        .set("limiter", "on_store_failure", "\"closed\"")
        .start()
        .await;
    redis.kill();
    eventually("the store is known to be away", PATIENCE, || async {
        (closed.get("/orders", "warm-up").await.status == 503).then_some(())
    })
    .await;
    closed.spend("/orders", "shop-a", 3).await;
    let mut unavailable = sum("orders", "*/*", 0, 0);
    unavailable["unavailable"] = json!(3);
    says(&[closed], "shop-a", &json!([unavailable])).await;
}

#[tokio::test]
async fn without_redis_the_counts_are_those_of_this_gateway_and_it_says_so() {
    let upstream = Upstream::normal().await;
    let mut redis = PrivateRedis::start().await;
    let setup = Setup::new(upstream.address).redis(&redis.url()).limit(5, HARDLY);
    let gateways = setup.start_many(2).await;
    gateways[0].spend("/orders", "shop-a", 2).await;
    gateways[1].spend("/orders", "shop-a", 2).await;
    says(&gateways, "shop-a", &json!([sum("orders", "*/*", 4, 0)])).await;
    redis.kill();
    let answer = eventually("the answer is of this gateway alone", PATIENCE, || async {
        Some(tenant(&gateways[0], "shop-a").await).filter(|answer| answer["scope"] == "gateway")
    })
    .await;
    assert_eq!(answer["last_10_minutes"], json!([sum("orders", "*/*", 2, 0)]));
    assert_eq!(answer["complete"], json!(false));
    assert!(answer["why"].as_str().unwrap().starts_with("the store does not answer"), "{answer}");

    // What is counted meanwhile is told when it is back.
    gateways[1].spend("/orders", "shop-b", 3).await;
    redis.restart().await;
    eventually("the answer is the fleet's", PATIENCE, || async {
        let answer = tenant(&gateways[0], "shop-b").await;
        (answer["scope"] == "fleet" && answer["last_10_minutes"] == json!([sum("orders", "*/*", 3, 0)])).then_some(())
    })
    .await;

    let alone = Setup::new(upstream.address).limit(5, HARDLY);
    for setup in [alone.clone(), alone.redis(&redis.url()).set("usage", "shared", "false")] {
        let gateway = setup.start().await;
        gateway.spend("/orders", "shop-a", 7).await;
        let answer = tenant(&gateway, "shop-a").await;
        assert_eq!((&answer["scope"], &answer["complete"]), (&json!("gateway"), &json!(true)));
        assert_eq!(answer["last_24_hours"], json!([sum("orders", "*/*", 5, 2)]));
    }
}

#[tokio::test]
async fn the_counts_of_a_cluster_are_found_on_whatever_node_they_are() {
    let (upstream, cluster) = (Upstream::normal().await, RedisCluster::start(3).await);
    let setup = Setup::new(upstream.address).redis_nodes("cluster", &cluster.urls()[..1]).limit(10, HARDLY);
    let gateways = setup.start_many(2).await;
    let tenants: Vec<String> = (0..12).map(|n| format!("shop-{n}")).collect();
    for tenant in &tenants {
        gateways[0].spend("/orders", tenant, 1).await;
        gateways[1].spend("/orders", tenant, 1).await;
    }
    for tenant in &tenants {
        says(&gateways[1..], tenant, &json!([sum("orders", "*/*", 2, 0)])).await;
    }
}

#[tokio::test]
async fn the_heaviest_tenants_and_routes_are_named_with_what_they_did() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(5, HARDLY).route("export", "/export").start().await;
    for n in 0..30 {
        gateway.spend("/orders", &format!("shop-{n:02}"), 1).await;
    }
    gateway.spend("/orders", "heavy", 20).await;
    gateway.spend("/export", "busy", 12).await;
    let heavy =
        |tenant: &str, route: &str, count: u64| json!({ "tenant": tenant, "route": route, "count": count, "error": 0 });
    let answer = top(&gateway, "").await;
    assert_eq!(answer["denied"], json!([heavy("heavy", "orders", 15), heavy("busy", "export", 7)]), "{answer}");
    assert_eq!(answer["requests"].as_array().unwrap().len(), 20);
    assert_eq!(answer["requests"][0], heavy("heavy", "orders", 20));
    assert!(answer["window_seconds"].as_u64().unwrap() <= 600 && answer["since"].is_string(), "{answer}");
    let answer = top(&gateway, "?limit=1").await;
    assert_eq!(answer["requests"], json!([heavy("heavy", "orders", 20)]));
    assert_eq!(answer["denied"].as_array().unwrap().len(), 1);
    for (query, what) in [("?limit=0", "limit: \"0\""), ("?limit=1001", "from 1 to 1000"), ("?most=1", "most: unknown")]
    {
        let answer = get(gateway.admin, &format!("/api/v1/top{query}"), &[]).await;
        assert!(
            answer.status == 400 && answer.text().contains(what.replace('"', "\\\"").as_str()),
            "{}",
            answer.text()
        );
    }
    for path in ["", "a%0Ab", "%FF", &"x".repeat(65), "a?b=c"] {
        assert_eq!(get(gateway.admin, &format!("/api/v1/tenants/{path}"), &[]).await.status, 400, "{path}");
    }
}

#[tokio::test]
async fn nothing_is_counted_where_the_configuration_says_so() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(5, HARDLY).set("usage", "enabled", "false").start().await;
    gateway.spend("/orders", "shop-a", 2).await;
    for path in ["/api/v1/top", "/api/v1/tenants/shop-a"] {
        let answer = get(gateway.admin, path, &[]).await;
        assert!(answer.status == 404 && answer.text().contains("usage.enabled"), "{}", answer.text());
    }
}

/// One request each of so many tenants.
async fn visit(gateway: &Gateway, tenants: std::ops::Range<usize>) {
    let next = Arc::new(std::sync::atomic::AtomicUsize::new(tenants.start));
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (next, address, end) = (Arc::clone(&next), gateway.address, tenants.end);
            tokio::spawn(async move {
                let mut connection = Connection::open(address).await;
                loop {
                    let n = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if n >= end {
                        return;
                    }
                    let answer = connection.get("/orders", &[("X-Api-Key", &format!("visitor-{n}"))]).await.unwrap();
                    assert_eq!(answer.status, 200);
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_tenants_leave_memory_and_metrics_as_they_are() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .redis(&redis_url())
        .unset("upstream.main", "servers")
        .set("upstream.main", "builtin", "\"echo\"")
        .set("limiter", "max_keys", "1000")
        .limit(5, HARDLY)
        .start()
        .await;
    visit(&gateway, 0..30_000).await;
    let (memory, series) = (gateway.memory_kb("VmRSS"), gateway.metrics().await.lines().count());
    visit(&gateway, 30_000..100_000).await;
    gateway.spend("/orders", "heavy", 500).await;
    let (memory_after, series_after) = (gateway.memory_kb("VmRSS"), gateway.metrics().await.lines().count());
    assert!(memory_after < memory + 30_000, "{memory} kB after 30,000 tenants, {memory_after} kB after 100,000");
    assert!(series_after <= series + 4, "{series} lines of metrics, then {series_after}");
    let answer = top(&gateway, "?limit=1").await;
    let heaviest = &answer["denied"][0];
    assert_eq!(
        (&heaviest["tenant"], &heaviest["count"], &heaviest["error"]),
        (&json!("heavy"), &json!(495), &json!(0))
    );
    // Of 100,500 requests a sketch may be wrong by a thousandth.
    let busiest = &answer["requests"][0];
    assert_eq!(busiest["tenant"], "heavy");
    let (count, error) = (busiest["count"].as_u64().unwrap(), busiest["error"].as_u64().unwrap());
    assert!(error <= 101 && (count - error..=count).contains(&500), "{busiest}");
}
