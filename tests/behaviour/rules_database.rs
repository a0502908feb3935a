//! Rules from PostgreSQL.

use std::time::{Duration, Instant};

use crate::support::{Database, Gateway, PrivatePostgres, Setup, Upstream, eventually, redis_url};

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
    std::fs::write(&snapshot, r#"[{"tenant_id":"shop-a","route"#).unwrap();
    let nobody = crate::support::free_address();
    let gateway = setup(&upstream, &format!("postgres://postgres@{nobody}/none"))
        .set("rules", "snapshot", &format!("{:?}", snapshot.display().to_string()))
        .limit(33, 1.0)
        .start()
        .await;
    assert_eq!(limit_of(&gateway, "shop-a").await, 33);
    assert!(gateway.log().contains("snapshot.json"), "{}", gateway.log());
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
