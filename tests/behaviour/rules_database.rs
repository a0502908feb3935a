//! Rules from PostgreSQL.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Database, FaultProxy, Gateway, PrivatePostgres, Setup, Upstream, eventually, redis_url};

const REFRESH: Duration = Duration::from_secs(1);

fn setup(upstream: &Upstream, database: &str) -> Setup {
    Setup::new(upstream.address)
        .set("rules", "database_url", &format!("{database:?}"))
        .set("rules", "refresh", "\"1s\"")
        .set("limiter", "default_rule", "{ capacity = 77, refill_per_second = 1 }")
}

async fn limit_of(gateway: &Gateway, tenant: &str) -> u64 {
    gateway.get("/orders", tenant).await.number("X-RateLimit-Limit")
}

#[tokio::test]
async fn an_update_takes_effect_on_every_gateway_within_refresh() {
    let upstream = Upstream::normal().await;
    let database = Database::create().await;
    database
        .execute("INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second) VALUES ('shop-a', 'orders', 5, 1)")
        .await;
    let gateways = setup(&upstream, &database.url).redis(&redis_url()).start_many(3).await;
    for gateway in &gateways {
        assert_eq!(limit_of(gateway, "shop-a").await, 5);
        assert_eq!(limit_of(gateway, "shop-b").await, 77);
    }
    for (sql, limit) in [
        ("UPDATE rate_limit_rule SET capacity = 9 WHERE tenant_id = 'shop-a'", 9),
        ("DELETE FROM rate_limit_rule", 77),
        ("INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second) VALUES ('*', '*', 6, 1)", 6),
    ] {
        database.execute(sql).await;
        let start = Instant::now();
        for gateway in &gateways {
            // A second on top for a busy machine.
            eventually(sql, REFRESH + Duration::from_secs(1), || async {
                (limit_of(gateway, "shop-a").await == limit).then_some(())
            })
            .await;
        }
        assert!(start.elapsed() < REFRESH + Duration::from_secs(1), "{sql}: {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn a_stopped_database_changes_nothing_for_requests_and_the_snapshot_serves_the_next_start() {
    let upstream = Upstream::normal().await;
    let mut server = PrivatePostgres::start();
    let database = Database::create_on(&server.url).await;
    database
        .execute("INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second) VALUES ('shop-a', '*', 5, 1)")
        .await;
    let dir = tempfile::tempdir().unwrap();
    let snapshot = dir.path().join("snapshot.json");
    let setup = setup(&upstream, &database.url)
        .set("rules", "snapshot", &format!("{:?}", snapshot.display().to_string()))
        .limit(33, 1.0);
    let gateway = setup.start().await;
    assert_eq!(limit_of(&gateway, "shop-a").await, 5);
    assert_eq!(limit_of(&gateway, "shop-b").await, 77, "with a database the file does not count");
    eventually("the snapshot is written", Duration::from_secs(5), || async { snapshot.exists().then_some(()) }).await;

    server.stop();
    let start = Instant::now();
    while start.elapsed() < 3 * REFRESH {
        let asked = Instant::now();
        let answer = gateway.get("/orders", &format!("tenant-{}", start.elapsed().as_nanos())).await;
        assert_eq!(answer.status, 200);
        assert!(asked.elapsed() < Duration::from_millis(500), "{:?}", asked.elapsed());
        assert_eq!(limit_of(&gateway, "shop-a").await, 5);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(gateway.metric("sekisho_rules_age_seconds", &[]).await >= 1.0, "{}", gateway.metrics().await);
    let failed = gateway.log().lines().filter(|l| l.to_lowercase().contains("rules")).count();
    assert!(failed >= 1, "the fault is not named:\n{}", gateway.log());

    let next = setup.start().await;
    assert_eq!(limit_of(&next, "shop-a").await, 5, "from the snapshot");
    assert_eq!(limit_of(&next, "shop-b").await, 77, "the snapshot, not the file");

    std::fs::remove_file(&snapshot).unwrap();
    let without = setup.start().await;
    assert_eq!(limit_of(&without, "shop-a").await, 33, "neither database nor snapshot: the file");
}

#[tokio::test]
async fn a_damaged_snapshot_is_not_believed() {
    let upstream = Upstream::normal().await;
    let dir = tempfile::tempdir().unwrap();
    let snapshot = dir.path().join("snapshot.json");
    let nobody = crate::support::free_address();
    let setup = setup(&upstream, &format!("postgres://postgres@{nobody}/none"))
        .set("rules", "snapshot", &format!("{:?}", snapshot.display().to_string()))
        .limit(33, 1.0);
    let good: &[u8] = br#"[{"tenant_id":"shop-a","route_id":"*","capacity":5,"refill_per_second":1}"#;
    for damage in [&b""[..], b"[", good, b"\x7fELF\x00\xff\xfe", b"{\"version\": 2, \"rules\": []}", b"null"] {
        std::fs::write(&snapshot, damage).unwrap();
        let gateway = setup.start().await;
        assert_eq!(limit_of(&gateway, "shop-a").await, 33, "{:?}", String::from_utf8_lossy(damage));
        assert!(gateway.log().contains("snapshot.json"), "{}", gateway.log());
    }
}

/// PostgreSQL behind a proxy that can swallow everything, and the URL through it.
async fn behind_proxy(database: &Database) -> (FaultProxy, String) {
    let (server, name) = database.url.rsplit_once('/').unwrap();
    let (_, address) = server.rsplit_once('@').unwrap();
    let proxy = FaultProxy::start(address, 1).await;
    let url = database.url.replace(address, &proxy.address.to_string());
    assert!(url.ends_with(name));
    (proxy, url)
}

async fn insert(database: &Database, tenant: &str, capacity: u32) {
    let columns = "tenant_id, route_id, capacity, refill_per_second";
    database.execute(&format!("INSERT INTO rate_limit_rule ({columns}) VALUES ('{tenant}', '*', {capacity}, 1)")).await;
}

/// Asks for a while: always served, by this limit.
async fn serves(gateway: &Gateway, tenant: &str, limit: u64) {
    for n in 0..20 {
        let asked = Instant::now();
        assert_eq!(limit_of(gateway, tenant).await, limit, "request {n}");
        assert!(asked.elapsed() < Duration::from_millis(500), "a request waited for the database");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn last_error(gateway: &Gateway) -> Option<String> {
    gateway.status().await["rules"]["last_error"].as_str().map(str::to_owned)
}

/// Times that the log speaks of the database's failure.
fn told(gateway: &Gateway) -> usize {
    gateway.log().lines().filter(|line| line.contains(" ERROR ") && line.contains("rules database")).count()
}

#[tokio::test]
async fn a_database_that_hangs_at_start_delays_it_by_seconds_and_is_read_when_it_answers() {
    let upstream = Upstream::normal().await;
    let database = Database::create().await;
    insert(&database, "shop-a", 5).await;
    let (proxy, url) = behind_proxy(&database).await;
    let dir = tempfile::tempdir().unwrap();
    let snapshot = dir.path().join("snapshot.json");
    let setup = setup(&upstream, &url).set("rules", "snapshot", &format!("{:?}", snapshot.display().to_string()));
    proxy.swallow(true);
    let without = setup.start().await;
    serves(&without, "shop-a", 77).await;
    assert!(without.log().contains("starting with the rules of"), "{}", without.log());
    let rule = r#"[{"tenant_id":"shop-a","route_id":"*","capacity":6,"refill_per_second":1}]"#;
    std::fs::write(&snapshot, rule).unwrap();
    let gateway = setup.start().await;
    serves(&gateway, "shop-a", 6).await;
    assert_eq!(gateway.status().await["rules"]["source"], "snapshot");
    assert!(gateway.log().contains("no answer within"), "{}", gateway.log());
    proxy.swallow(false);
    for gateway in [&without, &gateway] {
        // The attempt that hangs has to be given up first.
        eventually("the rules of the database", Duration::from_secs(15), || async {
            (limit_of(gateway, "shop-a").await == 5).then_some(())
        })
        .await;
        assert_eq!(last_error(gateway).await, None);
    }
}

#[tokio::test]
async fn a_database_that_hangs_later_leaves_the_last_good_rules_and_is_told_once() {
    let upstream = Upstream::normal().await;
    let database = Database::create().await;
    insert(&database, "shop-a", 5).await;
    let (proxy, url) = behind_proxy(&database).await;
    let gateway = setup(&upstream, &url).set("rules", "refresh", "\"100ms\"").start().await;
    serves(&gateway, "shop-a", 5).await;
    proxy.swallow(true);
    database.execute("UPDATE rate_limit_rule SET capacity = 9").await;
    eventually("the fault is in the status", Duration::from_secs(45), || async { last_error(&gateway).await }).await;
    serves(&gateway, "shop-a", 5).await;
    assert!(gateway.metric("sekisho_rules_reloads_total", &["postgres", "error"]).await >= 1.0);
    let failures = gateway.metric("sekisho_rules_reloads_total", &["postgres", "error"]).await;
    eventually("it fails again", Duration::from_secs(15), || async {
        (gateway.metric("sekisho_rules_reloads_total", &["postgres", "error"]).await > failures).then_some(())
    })
    .await;
    assert!((1..=2).contains(&told(&gateway)), "once for a statement, once for a connection:\n{}", gateway.log());
    proxy.swallow(false);
    eventually("it is read again", Duration::from_secs(15), || async {
        (limit_of(&gateway, "shop-a").await == 9).then_some(())
    })
    .await;
    assert_eq!(last_error(&gateway).await, None);
}

#[tokio::test]
async fn a_server_that_is_no_database_is_a_fault_like_any_other() {
    let upstream = Upstream::normal().await;
    for answer in
        [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"S\x00\xff\xff", b"NR\x00\x00\x00\x08\x00\x00\x00\x63", b""]
    {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://postgres@{}/none", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let _ = client.write_all(answer).await;
                // Closing with bytes unread would reset the connection now and then: a fault of another text.
                let _ = client.shutdown().await;
                tokio::spawn(async move { client.read_to_end(&mut Vec::new()).await });
            }
        });
        let gateway = setup(&upstream, &url).set("rules", "refresh", "\"50ms\"").limit(33, 1.0).start().await;
        serves(&gateway, "shop-a", 33).await;
        let error = last_error(&gateway).await.unwrap();
        assert!(error.starts_with("rules database: "), "{error}");
        assert!((1..=3).contains(&told(&gateway)), "{:?}:\n{}", String::from_utf8_lossy(answer), gateway.log());
    }
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_written_is_told_once_and_harms_nobody() {
    let upstream = Upstream::normal().await;
    let database = Database::create().await;
    insert(&database, "shop-a", 5).await;
    let dir = tempfile::tempdir().unwrap();
    let snapshot = dir.path().join("missing/snapshot.json");
    let gateway = setup(&upstream, &database.url)
        .set("rules", "refresh", "\"50ms\"")
        .set("rules", "snapshot", &format!("{:?}", snapshot.display().to_string()))
        .start()
        .await;
    serves(&gateway, "shop-a", 5).await;
    let lines = |text: &str| gateway.log().lines().filter(|line| line.contains(text)).count();
    assert_eq!(lines("the snapshot cannot be written"), 1, "{}", gateway.log());
    let error = gateway.status().await["rules"]["snapshot_error"].as_str().unwrap().to_owned();
    assert!(error.contains("missing/snapshot.json"), "{error}");
    std::fs::create_dir(snapshot.parent().unwrap()).unwrap();
    eventually("it is written when it can be", Duration::from_secs(5), || async {
        (snapshot.exists() && gateway.status().await["rules"]["snapshot_error"].is_null()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_bad_row_is_named_and_left_out_and_the_others_work() {
    let upstream = Upstream::normal().await;
    let database = Database::create().await;
    database
        .execute(
            "ALTER TABLE rate_limit_rule DROP CONSTRAINT rate_limit_rule_capacity_check,
                 DROP CONSTRAINT rate_limit_rule_refill_per_second_check,
                 DROP CONSTRAINT rate_limit_rule_tenant_id_route_id_key;
             INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second) VALUES
                 ('good-one', '*', 3, 1), ('bad-zero', '*', 0, 1), ('bad-negative', '*', -1, 1),
                 ('bad-refill', '*', 5, 0), ('', 'bad-empty', 5, 1),
                 ('bad-twice', '*', 5, 1), ('bad-twice', '*', 6, 1), ('good-two', '*', 4, 1)",
        )
        .await;
    let gateway = setup(&upstream, &database.url).start().await;
    assert_eq!(limit_of(&gateway, "good-one").await, 3);
    assert_eq!(limit_of(&gateway, "good-two").await, 4);
    let (log, status) = (gateway.log(), gateway.status().await.to_string());
    for name in ["bad-zero", "bad-negative", "bad-refill", "bad-empty", "bad-twice"] {
        assert_eq!(limit_of(&gateway, name).await, 77, "{name}");
        assert!(log.contains(name), "{name} is not named in the log:\n{log}");
        assert!(status.contains(name), "{name} is not named in /api/v1/status: {status}");
    }
    // Changed to something bad: the last good version stays.
    database.execute("UPDATE rate_limit_rule SET capacity = 0 WHERE tenant_id = 'good-one'").await;
    database.execute("UPDATE rate_limit_rule SET capacity = 8 WHERE tenant_id = 'good-two'").await;
    eventually("good-two has 8", Duration::from_secs(3), || async {
        (limit_of(&gateway, "good-two").await == 8).then_some(())
    })
    .await;
    assert_eq!(limit_of(&gateway, "good-one").await, 3);
}

#[tokio::test]
async fn a_missing_table_leaves_the_last_good_rules() {
    let upstream = Upstream::normal().await;
    let database = Database::create().await;
    database
        .execute(
            "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second) VALUES ('*', '*', 5, 1)",
        )
        .await;
    let gateway = setup(&upstream, &database.url).set("rules", "refresh", "\"200ms\"").start().await;
    assert_eq!(limit_of(&gateway, "shop-a").await, 5);
    database.execute("ALTER TABLE rate_limit_rule RENAME TO gone").await;
    gateway.logged("rate_limit_rule").await;
    assert_eq!(limit_of(&gateway, "shop-b").await, 5);
    database.execute("UPDATE gone SET capacity = 6; ALTER TABLE gone RENAME TO rate_limit_rule").await;
    eventually("the rules are read again", Duration::from_secs(5), || async {
        (limit_of(&gateway, "shop-a").await == 6).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_shipped_schema_holds_every_field_of_a_rule() {
    let upstream = Upstream::normal().await;
    let database = Database::create().await;
    database.execute("DROP TABLE rate_limit_rule").await;
    let schema = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/conf/schema.sql")).unwrap();
    database.execute(&schema).await;
    database.execute(&schema).await;
    database
        .execute(
            "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second) VALUES ('plain', '*', 5, 1);
             INSERT INTO rate_limit_rule
                 (tenant_id, route_id, capacity, refill_per_second, cost, on_store_failure, mode, enabled, comment)
             VALUES ('full', '*', 9, 0.001, 4, 'closed', 'enforce', true, 'a big one'),
                    ('off', '*', 9, 0.5, NULL, NULL, 'enforce', false, NULL)",
        )
        .await;
    let gateway = setup(&upstream, &database.url).start().await;
    assert_eq!(limit_of(&gateway, "plain").await, 5);
    assert_eq!(gateway.get("/orders", "full").await.number("X-RateLimit-Remaining"), 5, "9 less a cost of 4");
    assert_eq!(limit_of(&gateway, "off").await, 77);
}
