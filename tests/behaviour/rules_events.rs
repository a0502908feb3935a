//! Changed rules that are told of: by PostgreSQL, and by a channel of Redis. Nothing here waits for a refresh.

use std::time::{Duration, Instant};

use redis::AsyncCommands;

use crate::support::changes::{AT_ONCE, REPLACED, channel, database, enforced, limit_of, open, set_limit};
use crate::support::{
    Database, FaultProxy, PgBouncer, PrivateRedis, RedisCluster, RedisSentinel, Setup, Upstream, connect, eventually,
    redis_url, unique,
};

fn setup(upstream: &Upstream, database: &Database) -> Setup {
    Setup::new(upstream.address)
        .set("rules", "database_url", &format!("{:?}", database.url))
        .set("rules", "refresh", "\"1h\"")
        .set("limiter", "default_rule", "{ capacity = 77, refill_per_second = 1 }")
}

/// The same, told by a channel of this Redis alone.
fn by_redis(setup: Setup, channel: &str) -> Setup {
    setup.set("rules", "listen", "false").set("rules", "redis_channel", &format!("{channel:?}"))
}

#[tokio::test]
async fn a_change_in_postgresql_is_enforced_on_every_gateway_at_once() {
    let upstream = Upstream::normal().await;
    let database = database().await;
    let gateways = setup(&upstream, &database).redis(&redis_url()).start_many(3).await;
    open(&gateways, "postgres").await;
    for (sql, limit) in [
        ("UPDATE rate_limit_rule SET capacity = 9", 9),
        ("DELETE FROM rate_limit_rule", 77),
        ("INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second) VALUES ('*', '*', 6, 1)", 6),
        ("TRUNCATE rate_limit_rule", 77),
    ] {
        database.execute(sql).await;
        enforced(&gateways, limit, AT_ONCE, sql).await;
    }
    for gateway in &gateways {
        assert_eq!(gateway.metric("sekisho_rules_events_total", &["postgres", "\"ok\""]).await, 4.0);
        assert_eq!(gateway.metric("sekisho_rules_events_total", &["postgres", "\"bad\""]).await, 0.0);
    }
    database.execute("UPDATE rate_limit_rule SET capacity = capacity").await;
    let rows = database.client.query("SELECT operation FROM rate_limit_rule_history ORDER BY id", &[]).await.unwrap();
    let operations: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(operations, ["INSERT", "UPDATE", "DELETE", "INSERT", "TRUNCATE"]);
}

#[tokio::test]
async fn a_new_api_key_is_known_at_once() {
    let upstream = Upstream::normal().await;
    let database = database().await;
    let gateway = setup(&upstream, &database).set("identity", "mode", "\"registered\"").start().await;
    open(std::slice::from_ref(&gateway), "postgres").await;
    assert_eq!(gateway.get("/orders", "the key").await.status, 401);
    database
        .execute("INSERT INTO api_key (key_sha256, tenant_id) VALUES (encode(sha256('the key'), 'hex'), 'shop-a')")
        .await;
    eventually("the key is known", AT_ONCE, || async {
        (gateway.get("/orders", "the key").await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_changed_while_the_connection_to_postgresql_was_cut_is_enforced_when_it_is_back() {
    let upstream = Upstream::normal().await;
    let database = database().await;
    let gateways = setup(&upstream, &database).start_many(2).await;
    open(&gateways, "postgres").await;
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    database.execute(&format!("{cut}; UPDATE rate_limit_rule SET capacity = 9")).await;
    enforced(&gateways, 9, AT_ONCE, "a connection cut in the moment of the change").await;

    let (server, name) = database.url.rsplit_once('/').unwrap();
    let (elsewhere, connection) =
        tokio_postgres::connect(&format!("{server}/postgres"), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    elsewhere.batch_execute(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false")).await.unwrap();
    database.execute(cut).await;
    for gateway in &gateways {
        eventually("the channel is closed", REPLACED, || async {
            let state = channel(gateway, "postgres").await;
            let why = state["last_error"].as_str().unwrap_or_default().to_owned();
            (state["open"] == false && why.contains("not currently accepting connections")).then_some(())
        })
        .await;
        assert_eq!(limit_of(gateway).await, 9);
    }
    set_limit(&database, 11).await;
    elsewhere.batch_execute(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true")).await.unwrap();
    enforced(&gateways, 11, REPLACED, "a change while no connection was allowed").await;
    set_limit(&database, 12).await;
    enforced(&gateways, 12, AT_ONCE, "a change after it").await;
    for gateway in &gateways {
        let told = gateway.log().matches("not currently accepting connections").count();
        assert!((1..=4).contains(&told), "told again and again:\n{}", gateway.log());
    }
}

#[tokio::test]
async fn a_connection_that_swallows_everything_is_replaced() {
    let upstream = Upstream::normal().await;
    let database = database().await;
    let address = database.url.rsplit_once('/').unwrap().0.rsplit_once('@').unwrap().1;
    let proxy = FaultProxy::start(address, 1).await;
    let url = database.url.replace(address, &proxy.address.to_string());
    let gateway = setup(&upstream, &database).set("rules", "listen_url", &format!("{url:?}")).start().await;
    let gateways = [gateway];
    open(&gateways, "postgres").await;
    proxy.swallow(true);
    set_limit(&database, 9).await;
    let swallowed = Instant::now();
    eventually("the connection is given up", Duration::from_secs(10), || async {
        (gateways[0].metric("sekisho_rules_channel_open", &["postgres"]).await == 0.0).then_some(())
    })
    .await;
    println!("given up after {:?}", swallowed.elapsed());
    assert_eq!(limit_of(&gateways[0]).await, 5, "nobody told of it");
    proxy.swallow(false);
    enforced(&gateways, 9, REPLACED, "a change that was swallowed").await;
    set_limit(&database, 10).await;
    enforced(&gateways, 10, AT_ONCE, "a change after it").await;
}

#[tokio::test]
async fn a_pooler_that_delivers_no_notifications_is_found_out_and_a_session_pool_serves() {
    let upstream = Upstream::normal().await;
    let database = database().await;
    for (mode, delivers) in [("transaction", false), ("session", true)] {
        let pooler = PgBouncer::start(&database.url, mode).await;
        let setup = setup(&upstream, &database).set("rules", "listen_url", &format!("{:?}", pooler.url));
        let gateways = [setup.start().await];
        open(&gateways, "postgres").await;
        if delivers {
            set_limit(&database, 9).await;
            enforced(&gateways, 9, AT_ONCE, "a change told through a session pool").await;
        } else {
            gateways[0].logged("notifications do not arrive: through PgBouncer").await;
            assert_eq!(channel(&gateways[0], "postgres").await["open"], false);
        }
    }
}

#[tokio::test]
async fn garbage_in_a_notification_is_named_and_counted_and_makes_everything_be_read() {
    let upstream = Upstream::normal().await;
    let database = database().await;
    let gateways = [setup(&upstream, &database).start().await];
    open(&gateways, "postgres").await;
    database.execute("ALTER TABLE rate_limit_rule DISABLE TRIGGER USER; UPDATE rate_limit_rule SET capacity = 9").await;
    database.execute("NOTIFY sekisho_rules, 'hear ye'").await;
    enforced(&gateways, 9, AT_ONCE, "a change hidden in garbage").await;
    let [gateway] = &gateways;
    assert_eq!(gateway.metric("sekisho_rules_events_total", &["postgres", "\"bad\""]).await, 1.0);
    gateway.logged("hear ye is no message about rules").await;
    let state = channel(gateway, "postgres").await;
    assert!(state["last_bad_message"].as_str().unwrap().contains("hear ye"), "{state}");
    database.execute("ALTER TABLE rate_limit_rule ENABLE TRIGGER USER").await;
    set_limit(&database, 10).await;
    enforced(&gateways, 10, AT_ONCE, "a change after it").await;
}

#[tokio::test]
async fn a_message_on_the_channel_of_redis_is_heeded_on_every_gateway_at_once() {
    let upstream = Upstream::normal().await;
    let (database, name) = (database().await, unique());
    let gateways = by_redis(setup(&upstream, &database).redis(&redis_url()), &name).start_many(3).await;
    open(&gateways, "redis").await;
    let mut redis = connect(&redis_url()).await;
    for (limit, message) in [
        (9, r#"{"tenant_id": "shop-a", "route_id": "*"}"#),
        (10, r#"{"tenant_id": "shop-a", "route_id": "*", "capacity": 1, "refill": "1/s"}"#),
        (11, r#"[{"tenant_id": "shop-a", "route_id": "*", "deleted": true}]"#),
        (12, r#"{"all": true}"#),
    ] {
        set_limit(&database, limit).await;
        let _: () = redis.publish(&name, message).await.unwrap();
        enforced(&gateways, limit, AT_ONCE, message).await;
    }
    for (bad, garbage) in [(1.0, "hear ye"), (2.0, r#"{"tenant_id": "shop-a"}"#), (3.0, "\u{7f}ELF")] {
        let _: () = redis.publish(&name, garbage).await.unwrap();
        for gateway in &gateways {
            eventually("it is counted", AT_ONCE, || async {
                (gateway.metric("sekisho_rules_events_total", &["redis", "\"bad\""]).await == bad).then_some(())
            })
            .await;
            let state = channel(gateway, "redis").await.to_string();
            assert!(state.contains(&name), "the place is not named: {state}");
        }
    }
    set_limit(&database, 13).await;
    let _: () = redis.publish(&name, r#"{"tenant_id": "shop-a", "route_id": "*"}"#).await.unwrap();
    enforced(&gateways, 13, AT_ONCE, "a change after garbage").await;
}

#[tokio::test]
async fn without_a_database_messages_bring_the_rules_themselves() {
    let upstream = Upstream::normal().await;
    let name = unique();
    let setup = Setup::new(upstream.address).redis(&redis_url()).limit(33, 1.0).set("rules", "refresh", "\"1h\"").set(
        "rules",
        "redis_channel",
        &format!("{name:?}"),
    );
    let gateways = setup.start_many(2).await;
    open(&gateways, "redis").await;
    let mut redis = connect(&redis_url()).await;
    for (limit, message) in [
        (9, r#"{"tenant_id": "shop-a", "route_id": "*", "capacity": 9, "refill": "1/s"}"#),
        (9, r#"{"tenant_id": "shop-a", "route_id": "*", "capacity": 1, "refill": "1/s", "mode": "shadow"}"#),
        (33, r#"{"tenant_id": "shop-a", "route_id": "*", "mode": "enforce", "deleted": true}"#),
    ] {
        let _: () = redis.publish(&name, message).await.unwrap();
        enforced(&gateways, limit, AT_ONCE, message).await;
    }
    for gateway in &gateways {
        let rule = r#"[{"tenant_id": "shop-a", "route_id": "*", "capacity": 12, "refill": "1/s"}]"#;
        gateway.write_rules(rule);
    }
    let _: () = redis.publish(&name, r#"{"tenant_id": "shop-a", "route_id": "*"}"#).await.unwrap();
    enforced(&gateways, 12, AT_ONCE, "a file that is read again").await;
}

#[tokio::test]
async fn what_changed_while_the_connection_to_redis_was_cut_is_enforced_when_it_is_back() {
    let upstream = Upstream::normal().await;
    let (database, mut server) = (database().await, PrivateRedis::start().await);
    let gateways = by_redis(setup(&upstream, &database).redis(&server.url()), "rl:rules-changed").start_many(2).await;
    open(&gateways, "redis").await;
    let mut redis = connect(&server.url()).await;
    set_limit(&database, 9).await;
    let killed: u64 = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).query_async(&mut redis).await.unwrap();
    assert_eq!(killed, 2);
    enforced(&gateways, 9, AT_ONCE, "a connection cut in the moment of the change").await;

    server.kill();
    for gateway in &gateways {
        eventually("the channel is closed", REPLACED, || async {
            (channel(gateway, "redis").await["open"] == false).then_some(())
        })
        .await;
    }
    set_limit(&database, 10).await;
    server.restart().await;
    enforced(&gateways, 10, REPLACED, "a change while Redis was away").await;

    // A server that hangs: its connections stand, and say nothing.
    server.signal("STOP");
    for gateway in &gateways {
        eventually("the connection is given up", Duration::from_secs(10), || async {
            (channel(gateway, "redis").await["open"] == false).then_some(())
        })
        .await;
    }
    set_limit(&database, 11).await;
    server.signal("CONT");
    enforced(&gateways, 11, REPLACED, "a change while Redis hung").await;
}

#[tokio::test]
async fn any_node_of_a_cluster_and_the_master_that_sentinels_know_carry_messages() {
    let upstream = Upstream::normal().await;
    let (database, cluster, sentinel) =
        (database().await, RedisCluster::start(3).await, RedisSentinel::start(Some("hush-hush")).await);
    let base = || by_redis(setup(&upstream, &database), "rl:rules-changed");
    let in_cluster = base().redis_nodes("cluster", &cluster.urls()).start().await;
    let with_sentinel = base()
        .redis_nodes("sentinel", &sentinel.urls())
        .set("store", "master_name", &format!("{:?}", RedisSentinel::MASTER))
        .set("store", "sentinel_password", &format!("{:?}", RedisSentinel::sentinel_password("hush-hush")))
        .start()
        .await;
    let message = r#"{"tenant_id": "shop-a", "route_id": "*"}"#;
    for (gateway, server, limit) in [(in_cluster, &cluster.nodes[2], 9), (with_sentinel, &sentinel.servers[0], 10)] {
        let gateways = [gateway];
        open(&gateways, "redis").await;
        set_limit(&database, limit).await;
        let _: () = connect(&server.url()).await.publish("rl:rules-changed", message).await.unwrap();
        enforced(&gateways, limit, AT_ONCE, &server.url()).await;
    }
}
