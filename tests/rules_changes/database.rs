//! What a messenger announces is read from the database, and nothing else.

use std::time::Duration;

use sekisho::rules::{Mode, Source};
use tokio_postgres::Client;

use super::support::{self, Database};
use super::{LONG, Running, insert, json, of_database, update};

/// Ends every connection to the database but that of the test.
async fn cut(client: &Client) {
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    client.batch_execute(sql).await.unwrap();
}

#[tokio::test]
async fn an_announced_change_is_read_alone() {
    let database = Database::create().await;
    database.execute(&(insert("a", 5) + &insert("b", 6) + &insert("c", 7))).await;
    let rules = Running::start(of_database(&database)).await;
    database.execute(&(update("a", 15) + &update("b", 16) + &insert("new", 8))).await;
    database.execute("DELETE FROM rate_limit_rule WHERE tenant_id = 'c'").await;
    for (tenant, capacity) in [("a", Some(15)), ("c", None), ("new", Some(8))] {
        rules.loader.changes().pair(tenant, "*");
        rules.becomes(tenant, capacity).await;
    }
    assert_eq!(rules.capacity("b"), Some(6), "nobody spoke of it");
    assert_eq!(rules.loader.rules().status().loaded, 3);
    rules.loader.changes().all();
    rules.becomes("b", Some(16)).await;
    rules.end().await;
}

#[tokio::test]
async fn a_changed_row_that_is_bad_keeps_its_last_good_version_until_it_is_good_or_gone() {
    let database = Database::create().await;
    database.execute("ALTER TABLE rate_limit_rule DROP CONSTRAINT rate_limit_rule_capacity_check").await;
    database.execute(&(insert("a", 5) + &insert("bad", -1) + &insert("other", 0))).await;
    let rules = Running::start(of_database(&database)).await;
    assert_eq!(rules.loader.rules().status().rejected.total, 2);
    database.execute(&(update("a", 0) + &update("bad", 6))).await;
    rules.changed("a").await;
    assert_eq!(rules.capacity("a"), Some(5));
    let status = rules.loader.rules().status();
    assert_eq!((status.rejected.total, status.last_error.is_none()), (3, true));
    assert!(status.rejected.faults.iter().any(|fault| fault.contains("a/*: capacity is 0")), "{status:?}");
    rules.changed("bad").await;
    assert_eq!((rules.capacity("bad"), rules.loader.rules().status().rejected.total), (Some(6), 2));
    database.execute("DELETE FROM rate_limit_rule WHERE tenant_id = 'a'").await;
    rules.changed("a").await;
    let status = rules.loader.rules().status();
    assert_eq!((rules.capacity("a"), status.rejected.total), (None, 1));
    assert!(status.rejected.faults[0].contains("other/*"), "{status:?}");
}

#[tokio::test]
async fn both_modes_of_a_pair_are_read_together() {
    let database = Database::create().await;
    let more = "ALTER TABLE rate_limit_rule DROP CONSTRAINT rate_limit_rule_tenant_id_route_id_key;";
    database.execute(&(more.to_owned() + &insert("a", 5))).await;
    let rules = Running::start(of_database(&database)).await;
    rules.changed("a").await;
    // A column that was not there when the connection was made.
    database.execute("ALTER TABLE rate_limit_rule ADD COLUMN mode TEXT NOT NULL DEFAULT 'enforce'").await;
    let shadow = "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second, mode)
                  VALUES ('a', '*', 3, 1, 'shadow')";
    database.execute(shadow).await;
    rules.changed("a").await;
    assert_eq!((rules.capacity("a"), rules.capacity_of("a", Mode::Shadow)), (Some(5), Some(3)));
    database.execute("DELETE FROM rate_limit_rule WHERE mode = 'enforce'").await;
    rules.changed("a").await;
    assert_eq!((rules.capacity("a"), rules.capacity_of("a", Mode::Shadow)), (None, Some(3)));
    assert_eq!(rules.loader.rules().status().rejected.total, 0);
}

#[tokio::test]
async fn a_connection_that_was_cut_is_made_anew_and_no_change_is_lost() {
    let database = Database::create().await;
    database.execute(&insert("a", 5)).await;
    let rules = Running::start(of_database(&database)).await;
    for capacity in 6..12 {
        cut(&database.client).await;
        database.execute(&update("a", capacity)).await;
        rules.loader.changes().pair("a", "*");
        rules.becomes("a", u32::try_from(capacity).ok()).await;
    }
    assert_eq!(rules.last_error(), None);
}

#[tokio::test]
async fn a_change_that_cannot_be_read_is_read_with_all_others_later() {
    let database = Database::create().await;
    database.execute(&(insert("a", 5) + &insert("b", 5))).await;
    let rules = Running::start(of_database(&database)).await;
    database.execute("ALTER TABLE rate_limit_rule RENAME TO gone").await;
    rules.changed("a").await;
    assert_eq!(rules.capacity("a"), Some(5));
    let error = rules.last_error().unwrap();
    assert!(error.contains("rate_limit_rule"), "{error}");
    database.execute("ALTER TABLE gone RENAME TO rate_limit_rule").await;
    database.execute(&(update("a", 6) + &update("b", 6))).await;
    rules.becomes("a", Some(6)).await;
    assert_eq!((rules.capacity("b"), rules.last_error()), (Some(6), None));
}

#[tokio::test]
async fn garbage_on_the_channel_reads_and_breaks_nothing() {
    let database = Database::create().await;
    database.execute(&insert("a", 5)).await;
    let rules = Running::start(of_database(&database)).await;
    let long = "x".repeat(65);
    for (tenant, route) in [("", "*"), ("a", ""), ("a\0b", "*"), (&*long, "*"), ("'; DROP TABLE x; --", "*")] {
        rules.loader.changes().pair(tenant, route);
    }
    database.execute(&update("a", 6)).await;
    rules.loader.changes().pair("a", "*");
    rules.becomes("a", Some(6)).await;
    let status = rules.loader.rules().status();
    let reads = status.reloads[Source::Postgres as usize];
    assert_eq!((status.loaded, status.last_error, reads.error), (1, None, 0));
}

#[tokio::test]
async fn what_is_told_beside_a_database_is_only_a_hint() {
    use sekisho::rules::change::Told;
    let database = Database::create().await;
    database.execute(&(insert("a", 5) + &insert("b", 5))).await;
    let rules = Running::start(of_database(&database)).await;
    database.execute(&(update("a", 6) + &update("b", 6))).await;
    let changes = rules.loader.changes();
    let place = || "redis rules".to_owned();
    changes.tell(Told::Put { source: Source::Redis, place: place(), json: json("a", 999) }).await;
    changes
        .tell(Told::Delete {
            source: Source::Redis,
            place: place(),
            tenant_id: "b".into(),
            route_id: "*".into(),
            mode: None,
        })
        .await;
    changes.tell(Told::Put { source: Source::Redis, place: place(), json: "[]".into() }).await;
    rules.becomes("a", Some(6)).await;
    rules.becomes("b", Some(6)).await;
    assert_eq!(rules.loader.rules().status().reloads[Source::Redis as usize].error, 1);
}

/// Reads of the table take seconds, so that changes come in their midst.
#[tokio::test]
async fn a_change_during_a_full_read_is_in_force_before_that_ends_and_stays_so_after_it() {
    let database = Database::create().await;
    database.execute(&insert("a", 5)).await;
    // The view is slow only for whoever reads all of it: the full read is the one with a timeout of its own.
    database
        .execute(
            "ALTER TABLE rate_limit_rule RENAME TO kept;
             CREATE VIEW rate_limit_rule AS SELECT k.* FROM kept k
             LEFT JOIN LATERAL (SELECT CASE WHEN current_setting('statement_timeout') = '30s' THEN pg_sleep(2) END AS slept)
                 AS slow ON true WHERE slow.slept IS NULL OR slow.slept::text = ''",
        )
        .await;
    let rules = Running::start(of_database(&database)).await;
    rules.loader.changes().all();
    let before = rules.loader.rules().status().reloads[Source::Postgres as usize].ok;
    // Until the full read has taken its snapshot.
    support::eventually("the full read is under way", LONG, || async {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()";
        (database.client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) > 0).then_some(())
    })
    .await;
    database.execute("UPDATE kept SET capacity = 6 WHERE tenant_id = 'a'").await;
    rules.loader.changes().pair("a", "*");
    rules.becomes("a", Some(6)).await;
    let reads = || rules.loader.rules().status().reloads[Source::Postgres as usize].ok;
    assert_eq!(reads(), before + 1, "the full read is still under way");
    support::eventually("the full read ends", LONG, || async { (reads() == before + 2).then_some(()) }).await;
    assert_eq!(rules.capacity("a"), Some(6), "it does not bring back what it had read before");
}

#[tokio::test]
async fn thousands_of_changes_are_read_in_batches() {
    let database = Database::create().await;
    database
        .execute(
            "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second)
             SELECT 't' || n, '*', 5, 1 FROM generate_series(1, 3000) n",
        )
        .await;
    let rules = Running::start(of_database(&database)).await;
    database.execute("UPDATE rate_limit_rule SET capacity = 6; DELETE FROM rate_limit_rule WHERE id % 10 = 0").await;
    for n in 1..=3000 {
        rules.loader.changes().pair(&format!("t{n}"), "*");
    }
    rules.becomes("t2999", Some(6)).await;
    let status = rules.loader.rules().status();
    assert_eq!((status.loaded, status.last_error), (2700, None));
    let capacities: Vec<_> = (1..=3000).map(|n| rules.capacity(&format!("t{n}"))).collect();
    assert!(capacities.iter().enumerate().all(|(n, c)| *c == ((n + 1) % 10 != 0).then_some(6)));
}

#[tokio::test]
async fn changed_rows_are_found_by_index_however_many_there_are() {
    let database = Database::create().await;
    database
        .execute(
            "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second)
             SELECT 't' || n, '*', 5, 1 FROM generate_series(1, 50000) n",
        )
        .await;
    let rules = Running::start(of_database(&database)).await;
    let scans = || async {
        let sql = "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'rate_limit_rule'";
        let row = database.client.query_one(sql, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    // A server process tells its statistics when it ends, at the latest.
    let ended = || async {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()";
        (database.client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 1).then_some(())
    };
    support::eventually("the full read has ended", LONG, ended).await;
    for n in 1..=20 {
        rules.changed(&format!("t{n}")).await;
    }
    cut(&database.client).await;
    support::eventually("the reads have ended", LONG, ended).await;
    assert_eq!(scans().await, (50_000, 20), "rows read one after the other: those of the full read; and by index");
}

#[tokio::test]
async fn full_reads_and_changes_without_end_do_not_stop_each_other() {
    let database = Database::create().await;
    database.execute(&insert("a", 5)).await;
    let rules = Running::start(of_database(&database)).await;
    for capacity in 6..106 {
        rules.loader.changes().all();
        database.execute(&update("a", capacity)).await;
        tokio::time::sleep(Duration::from_millis(capacity.unsigned_abs() % 7)).await;
        rules.loader.changes().pair("a", "*");
        rules.becomes("a", u32::try_from(capacity).ok()).await;
    }
    assert_eq!(rules.last_error(), None);
}
