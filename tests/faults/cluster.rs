//! A Redis Cluster whose slots move and whose masters die: each costs the keys that it holds, and no others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{HARDLY, Load, RedisCluster, Setup, Upstream, eventually, request};
use crate::{alone, decided_by_the_store, local};

/// Tokens of each tenant; next to none come back.
const CAPACITY: u32 = 100;

/// Ids that would break a hash tag if they stood in a key as they are.
const ODD: [&str; 6] = ["{", "}", "{}", "a}b{c", "x:y", "{shop}:orders"];

/// The key of a tenant's bucket for route `orders`.
fn key(prefix: &str, tenant: &str) -> String {
    let id = tenant.replace('{', "%7B").replace('}', "%7D").replace(':', "%3A");
    format!("{prefix}:{{{id}}}:orders")
}

fn setup(upstream: &Upstream, cluster: &RedisCluster) -> Setup {
    // The gateways are to find the others through the first.
    Setup::new(upstream.address).redis_nodes("cluster", &cluster.urls()[..1]).limit(CAPACITY, HARDLY)
}

/// Some tenants of each master, the odd ones among them.
async fn tenants(cluster: &RedisCluster, prefix: &str, of_each: usize) -> [Vec<String>; 3] {
    let mut tenants: [Vec<String>; 3] = Default::default();
    let plain = (0..).map(|n| format!("shop-{n}"));
    for tenant in ODD.map(str::to_owned).into_iter().chain(plain) {
        let master = cluster.master_of(&key(prefix, &tenant)).await;
        if tenants[master].len() < of_each {
            tenants[master].push(tenant);
        }
        if tenants.iter().all(|tenants| tenants.len() == of_each) {
            break;
        }
    }
    tenants
}

/// Requests of these tenants in turn, marked where `mark` says so.
fn load(
    gateways: &[crate::support::Gateway],
    tenants: Vec<String>,
    rate: f64,
    seconds: u64,
    mark: impl Fn(&str) -> bool + Send + Sync + 'static,
) -> Load {
    Load {
        targets: gateways.iter().map(|gateway| gateway.address).collect(),
        rate,
        duration: Duration::from_secs(seconds),
        connections: 8,
        request: Arc::new(move |n| {
            let tenant = &tenants[n as usize % tenants.len()];
            let mark = if mark(tenant) { "1" } else { "0" };
            request("GET", "/orders", &[("X-Api-Key", tenant), ("X-Mark", mark)])
        }),
    }
}

async fn slots_move_under_load(prefetch: bool) {
    let _alone = alone().await;
    let (upstream, cluster) = (Upstream::normal().await, RedisCluster::start(3).await);
    let setup = setup(&upstream, &cluster).set("limiter.prefetch", "enabled", &prefetch.to_string());
    let gateways = setup.start_many(2).await;
    let tenants = tenants(&cluster, setup.prefix(), 4).await.concat();
    for odd in ODD {
        assert!(tenants.iter().any(|tenant| tenant == odd), "{odd}");
    }
    // Twice what each is allowed.
    let load = load(&gateways, tenants.clone(), f64::from(CAPACITY) * 4.0, 6, |_| false);
    let running = tokio::spawn(async move { load.run().await });
    let mut moved = 0;
    while !running.is_finished() {
        // Round and round: each slot is at home, one further, two further.
        for tenant in &tenants {
            let key = key(setup.prefix(), tenant);
            let home = cluster.master_of(&key).await;
            let (from, to) = ((home + moved) % 3, (home + moved + 1) % 3);
            cluster.move_slot(cluster.slot(&key).await, from, to, Duration::from_millis(5)).await;
        }
        moved += 1;
    }
    assert!(moved > 1, "{moved} rounds");
    let report = running.await.unwrap();
    report.only(&[200, 429]);
    let (admitted, allowed) = (report.count(200), u64::from(CAPACITY) * tenants.len() as u64);
    println!("{moved} rounds of moves, {} requests, {admitted} of {allowed} admitted", report.offered());
    assert!(admitted <= allowed, "{admitted} of {allowed}");
    assert!(admitted as f64 >= allowed as f64 * if prefetch { 0.97 } else { 1.0 }, "{admitted} of {allowed}");
    for gateway in &gateways {
        assert_eq!(local(gateway).await, 0.0, "{}", gateway.log());
        assert!(!gateway.log().contains("CROSSSLOT"), "{}", gateway.log());
        assert_eq!(gateway.status().await["store"], "connected");
        assert_eq!(gateway.status().await["store_nodes"].as_array().unwrap().len(), 3);
        for tenant in &tenants {
            if !prefetch {
                assert_eq!(gateway.get("/orders", tenant).await.status, 429, "{tenant}");
            }
        }
    }
}

#[tokio::test]
async fn slots_that_move_under_load_cost_neither_an_answer_nor_a_token() {
    slots_move_under_load(false).await;
}

#[tokio::test]
async fn leases_survive_slots_that_move_under_load() {
    slots_move_under_load(true).await;
}

async fn a_master_is_lost_under_load(signal: &str) {
    let _alone = alone().await;
    let (upstream, cluster) = (Upstream::marking("X-Mark: 1").await, RedisCluster::start(3).await);
    let setup = setup(&upstream, &cluster)
        .set("limiter.prefetch", "enabled", "false")
        .set("store", "timeout", "\"100ms\"")
        .set("limiter", "instances", "2");
    let gateways = setup.start_many(2).await;
    let [lost, healthy @ ..] = tenants(&cluster, setup.prefix(), 4).await;
    let (healthy, of_lost) = (healthy.concat(), lost[0].clone());
    let all = [lost.clone(), healthy.clone()].concat();
    let load = load(&gateways, all, f64::from(CAPACITY) * 4.0, 6, move |tenant| !lost.iter().any(|t| t == tenant));
    let running = tokio::spawn(async move { load.run().await });
    tokio::time::sleep(Duration::from_millis(1500)).await;
    cluster.nodes[0].signal(signal);
    for gateway in &gateways {
        eventually("the lost node is away", Duration::from_secs(3), || async {
            (gateway.status().await["store"] == "away").then_some(())
        })
        .await;
    }
    let report = running.await.unwrap();
    report.only(&[200, 429]);
    let (admitted, allowed) = (upstream.marked(), u64::from(CAPACITY) * healthy.len() as u64);
    println!("SIG{signal}: {} requests, {admitted} of {allowed} admitted on the healthy nodes", report.offered());
    assert_eq!(admitted, allowed, "healthy nodes go on as if nothing had happened");
    for gateway in &gateways {
        let before = local(gateway).await;
        assert!(before > 0.0, "the lost node's keys are decided by this gateway's share");
        for tenant in &healthy {
            assert_eq!(gateway.get("/orders", tenant).await.status, 429, "{tenant}");
        }
        assert_eq!(local(gateway).await, before, "no decision on a healthy node is made without the store");
        let status = gateway.status().await;
        let away: Vec<_> =
            status["store_nodes"].as_array().unwrap().iter().filter(|node| node["breaker"] != "closed").collect();
        let address = cluster.nodes[0].address.to_string();
        assert!(away.len() == 1 && away[0]["address"] == address.as_str(), "{status}");
        // The first is the only one that the configuration names.
        let breaker = gateway.metric("sekisho_breaker_state", &["node=\"0\""]).await;
        assert!(breaker > 0.0, "{}", gateway.metrics().await);
        assert_eq!(gateway.metric("sekisho_breaker_state", &[]).await, breaker, "{}", gateway.metrics().await);
        gateway.get("/orders", &of_lost).await;
        assert_eq!(local(gateway).await, before + 1.0);
    }
    if signal == "STOP" {
        cluster.nodes[0].signal("CONT");
        for gateway in &gateways {
            decided_by_the_store(gateway, &of_lost, Duration::from_secs(5)).await;
        }
    }
}

#[tokio::test]
async fn a_master_that_is_killed_under_load_costs_its_own_keys_only() {
    a_master_is_lost_under_load("KILL").await;
}

#[tokio::test]
async fn a_master_that_hangs_under_load_costs_its_own_keys_only() {
    a_master_is_lost_under_load("STOP").await;
}

#[tokio::test]
async fn a_replica_that_is_promoted_is_followed_with_the_password_of_all() {
    let _alone = alone().await;
    let (upstream, cluster) = (Upstream::normal().await, RedisCluster::start_with(3, true, Some("s3cret")).await);
    let setup = setup(&upstream, &cluster).set("limiter.prefetch", "enabled", "false").limit(30_000, HARDLY);
    let gateways = setup.start_many(2).await;
    let [lost, healthy @ ..] = tenants(&cluster, setup.prefix(), 2).await;
    let tenant = lost[0].clone();
    let load = load(&gateways, [lost, healthy.concat()].concat(), 200.0, 8, |_| false);
    let running = tokio::spawn(async move { load.run().await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    cluster.nodes[0].signal("KILL");
    cluster.promoted(3).await;
    let promoted = Instant::now();
    for gateway in &gateways {
        decided_by_the_store(gateway, &tenant, Duration::from_secs(2)).await;
    }
    println!("followed {:?} after the promotion", promoted.elapsed());
    running.await.unwrap().only(&[200]);
    for gateway in &gateways {
        let status = gateway.status().await;
        assert_eq!((&status["store"], status["store_nodes"].as_array().unwrap().len()), (&"connected".into(), 3));
        assert!(!status.to_string().contains(&cluster.nodes[0].address.to_string()), "{status}");
    }
}

#[tokio::test]
async fn a_cluster_that_is_absent_at_start_is_used_when_it_comes() {
    let (upstream, mut cluster) = (Upstream::normal().await, RedisCluster::start(3).await);
    cluster.nodes.iter_mut().for_each(crate::support::PrivateRedis::kill);
    let gateway = setup(&upstream, &cluster).start().await;
    assert_eq!(gateway.get("/orders", "shop-a").await.status, 200);
    assert_eq!((local(&gateway).await, gateway.status().await["store"].as_str()), (1.0, Some("away")));
    for node in &mut cluster.nodes {
        node.restart().await;
    }
    for tenant in tenants(&cluster, "any", 1).await.concat() {
        decided_by_the_store(&gateway, &tenant, Duration::from_secs(8)).await;
    }
}
