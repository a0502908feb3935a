//! `conf/schema.sql` in a real PostgreSQL: applying it, what it tells listeners, and the history it keeps.

// A test fails by panicking and measures with the wall clock; not every test crate uses all of `support`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    dead_code,
    unused_imports
)]

#[path = "support/mod.rs"]
mod support;

use std::future::poll_fn;
use std::time::Duration;

use serde_json::{Value, json};
use support::Database;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, NoTls};

const SCHEMA: &str = include_str!("../conf/schema.sql");

/// Hears what is sent on the channel.
struct Ear {
    client: Client,
    heard: mpsc::UnboundedReceiver<String>,
}

impl Ear {
    async fn at(database: &Database) -> Self {
        let (client, mut connection) = tokio_postgres::connect(&database.url, NoTls).await.unwrap();
        let (sender, heard) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(told) = message {
                    let _ = sender.send(told.payload().to_owned());
                }
            }
        });
        client.batch_execute("LISTEN sekisho_rules; LISTEN mark").await.unwrap();
        Self { client, heard }
    }

    /// All that came until now. Notifications come in the order of commits, so after a mark of ours nothing is missing.
    async fn payloads(&mut self) -> Vec<String> {
        self.client.batch_execute("NOTIFY mark, 'mark'").await.unwrap();
        let mut payloads = Vec::new();
        loop {
            let payload = timeout(Duration::from_secs(10), self.heard.recv()).await.unwrap().unwrap();
            if payload == "mark" {
                return payloads;
            }
            payloads.push(payload);
        }
    }

    /// The same as JSON.
    async fn told(&mut self) -> Vec<Value> {
        self.payloads().await.iter().map(|payload| serde_json::from_str(payload).unwrap()).collect()
    }
}

/// A database with the shipped schema.
async fn database() -> Database {
    let database = Database::create().await;
    database.execute(SCHEMA).await;
    database
}

fn pair(tenant: &str, route: &str) -> Value {
    json!({ "tenant_id": tenant, "route_id": route })
}

fn insert(tenant: &str, mode: &str) -> String {
    format!(
        "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second, mode)
         VALUES ('{tenant}', 'orders', 5, 1, '{mode}')"
    )
}

/// The history, oldest first: operation, tenant, mode, capacity before and after.
async fn history(database: &Database) -> Vec<Value> {
    let rows = database
        .client
        .query(
            "SELECT jsonb_build_array(operation, tenant_id, mode, old->'capacity', new->'capacity')::text
             FROM rate_limit_rule_history ORDER BY id",
            &[],
        )
        .await
        .unwrap();
    rows.iter().map(|row| serde_json::from_str(row.get(0)).unwrap()).collect()
}

#[tokio::test]
async fn a_contract_table_keeps_its_rows_and_lets_a_shadow_rule_stand_beside_the_enforcing_one() {
    let database = Database::create().await;
    database
        .execute(
            "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second) VALUES
                 ('a', 'orders', 5, 1), ('b', '*', 6, 2)",
        )
        .await;
    for _ in 0..3 {
        database.execute(SCHEMA).await;
    }
    let rows = database.client.query("SELECT capacity FROM rate_limit_rule ORDER BY tenant_id", &[]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>(), [5, 6]);
    assert_eq!(history(&database).await, [json!(null); 0], "applying it is no change");
    database.execute(&insert("a", "shadow")).await;
    for mode in ["enforce", "shadow"] {
        let error = database.client.batch_execute(&insert("a", mode)).await.unwrap_err();
        assert!(error.as_db_error().unwrap().message().contains("tenant_id_route_id_mode_key"), "{error:?}");
    }
}

#[tokio::test]
async fn a_constraint_that_a_foreign_key_needs_stays() {
    let database = Database::create().await;
    database
        .execute(
            "CREATE TABLE contract (tenant TEXT, route TEXT,
                 FOREIGN KEY (tenant, route) REFERENCES rate_limit_rule (tenant_id, route_id))",
        )
        .await;
    database.execute(SCHEMA).await;
    database.execute(&insert("a", "enforce")).await;
    assert!(database.client.batch_execute(&insert("a", "shadow")).await.is_err());
    assert_eq!(history(&database).await.len(), 1, "all else works");
}

#[tokio::test]
async fn rows_that_are_there_twice_stop_the_schema_and_nothing_has_happened() {
    let database = Database::create().await;
    database
        .execute(
            "ALTER TABLE rate_limit_rule DROP CONSTRAINT rate_limit_rule_tenant_id_route_id_key;
             INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second) VALUES
                 ('a', 'orders', 5, 1), ('a', 'orders', 6, 1)",
        )
        .await;
    let error = database.client.batch_execute(SCHEMA).await.unwrap_err();
    let error = error.as_db_error().unwrap();
    assert!(error.detail().unwrap().contains("(a, orders, enforce) is duplicated"), "{error:?}");
    database.execute("ROLLBACK").await;
    database.execute("DO $$ BEGIN ASSERT to_regclass('rate_limit_rule_history') IS NULL; END $$").await;
}

#[tokio::test]
async fn each_change_tells_whose_rules_changed_and_never_a_rule() {
    let database = database().await;
    let mut ear = Ear::at(&database).await;
    for (sql, told) in [
        (insert("a", "enforce"), vec![pair("a", "orders")]),
        (insert("a", "shadow"), vec![pair("a", "orders")]),
        ("UPDATE rate_limit_rule SET capacity = 7".into(), vec![pair("a", "orders")]),
        ("UPDATE rate_limit_rule SET capacity = 7, comment = NULL, refill_per_second = 1.0".into(), vec![]),
        ("UPDATE rate_limit_rule SET capacity = 8 WHERE mode = 'shadow'".into(), vec![pair("a", "orders")]),
        ("UPDATE rate_limit_rule SET capacity = 9 WHERE false".into(), vec![]),
        (
            "UPDATE rate_limit_rule SET tenant_id = 'b' WHERE mode = 'enforce'".into(),
            vec![json!([pair("a", "orders"), pair("b", "orders")])],
        ),
        (
            "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second) VALUES ('b', 'orders', 1, 1)
             ON CONFLICT (tenant_id, route_id, mode) DO UPDATE SET capacity = excluded.capacity"
                .into(),
            vec![pair("b", "orders")],
        ),
        ("DELETE FROM rate_limit_rule WHERE tenant_id = 'b'".into(), vec![pair("b", "orders")]),
        ("DELETE FROM rate_limit_rule WHERE false".into(), vec![]),
        (format!("BEGIN; {}; ROLLBACK", insert("c", "enforce")), vec![]),
        (format!("BEGIN; {}; {}; COMMIT", insert("c", "enforce"), insert("c", "shadow")), vec![pair("c", "orders")]),
        ("TRUNCATE rate_limit_rule".into(), vec![json!({ "all": true })]),
        (
            "INSERT INTO api_key (key_sha256, tenant_id) VALUES (repeat('0a', 32), 'a')".into(),
            vec![json!({ "keys": true })],
        ),
        ("UPDATE api_key SET tenant_id = 'b'".into(), vec![json!({ "keys": true })]),
        ("DELETE FROM api_key".into(), vec![json!({ "keys": true })]),
    ] {
        database.execute(&sql).await;
        let mut heard = ear.told().await;
        if let [Value::Array(pairs)] = &mut heard[..] {
            pairs.sort_by_key(Value::to_string);
        }
        assert_eq!(heard, told, "{sql}");
    }
}

#[tokio::test]
async fn a_bulk_change_names_up_to_a_thousand_pairs_in_payloads_that_fit_and_then_says_all() {
    let database = database().await;
    let mut ear = Ear::at(&database).await;
    // Characters of four bytes, and some that JSON escapes.
    let fill = |count: u32| {
        format!(
            "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second)
             SELECT n || rpad('', 60, U&'\\+01F600\\0001'), n || rpad('', 60, U&'\\0001'), 5, 1
             FROM generate_series(1, {count}) n"
        )
    };
    let pairs = |payloads: &[String]| -> usize {
        let named = |payload: &String| match serde_json::from_str(payload).unwrap() {
            Value::Array(pairs) => pairs.len(),
            _ => 1,
        };
        payloads.iter().map(named).sum()
    };
    for (sql, expected) in [
        (fill(1000), Some(1000)),
        ("UPDATE rate_limit_rule SET capacity = 6".into(), Some(1000)),
        ("UPDATE rate_limit_rule SET capacity = 6".into(), Some(0)),
        ("DELETE FROM rate_limit_rule".into(), Some(1000)),
        (fill(1001), None),
        ("UPDATE rate_limit_rule SET capacity = 6".into(), None),
        ("DELETE FROM rate_limit_rule".into(), None),
    ] {
        database.execute(&sql).await;
        let payloads = ear.payloads().await;
        match expected {
            Some(count) => {
                assert_eq!((pairs(&payloads), payloads.len()), (count, count / 8), "{sql}");
            }
            None => assert_eq!(payloads, [r#"{"all": true}"#], "{sql}"),
        }
    }
    let rows = database.client.query_one("SELECT count(*) FROM rate_limit_rule_history", &[]).await.unwrap();
    assert_eq!(rows.get::<_, i64>(0), 3000 + 3003, "a row each");
}

#[tokio::test]
async fn every_change_leaves_a_row_of_history_and_what_changes_nothing_leaves_none() {
    let database = database().await;
    for sql in [
        &*insert("a", "enforce"),
        "UPDATE rate_limit_rule SET capacity = 9",
        "UPDATE rate_limit_rule SET capacity = 9",
        &insert("a", "shadow"),
        "UPDATE rate_limit_rule SET tenant_id = 'b' WHERE mode = 'shadow'",
        "BEGIN; DELETE FROM rate_limit_rule; ROLLBACK",
        "DELETE FROM rate_limit_rule WHERE mode = 'enforce'",
        "TRUNCATE rate_limit_rule",
        "TRUNCATE rate_limit_rule",
    ] {
        database.execute(sql).await;
    }
    assert_eq!(
        history(&database).await,
        [
            json!(["INSERT", "a", "enforce", null, 5]),
            json!(["UPDATE", "a", "enforce", 5, 9]),
            json!(["INSERT", "a", "shadow", null, 5]),
            json!(["UPDATE", "b", "shadow", 5, 5]),
            json!(["DELETE", "a", "enforce", 9, null]),
            json!(["TRUNCATE", "b", "shadow", 5, null]),
        ]
    );
}

#[tokio::test]
async fn updated_at_is_the_time_of_the_last_real_change() {
    let database = database().await;
    database
        .execute(
            "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second, updated_at) VALUES
                 ('a', 'orders', 5, 1, '2020-01-01')",
        )
        .await;
    let age = async || -> f64 {
        let age = "SELECT extract(epoch FROM clock_timestamp() - updated_at)::float8 FROM rate_limit_rule";
        database.client.query_one(age, &[]).await.unwrap().get(0)
    };
    database.execute("UPDATE rate_limit_rule SET capacity = 5").await;
    assert!(age().await > 1e6);
    database.execute("UPDATE rate_limit_rule SET capacity = 6").await;
    assert!(age().await < 60.0);
}

#[tokio::test]
async fn who_may_write_rules_needs_no_right_to_their_history_and_is_named_in_it() {
    let database = database().await;
    let role = format!("writer_{}", support::unique());
    database
        .execute(&format!(
            "CREATE ROLE {role} LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON rate_limit_rule TO {role};
             GRANT USAGE ON SEQUENCE rate_limit_rule_id_seq TO {role};
             CREATE SCHEMA elsewhere; GRANT USAGE ON SCHEMA elsewhere TO {role};"
        ))
        .await;
    let (writer, connection) =
        tokio_postgres::connect(&database.url.replace("postgres@", &format!("{role}@")), NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    writer.batch_execute(&insert("a", "enforce")).await.unwrap();
    // A session that looks elsewhere first is recorded all the same.
    writer
        .batch_execute(
            "SET search_path = elsewhere; SET sekisho.actor = 'alice'; UPDATE public.rate_limit_rule SET capacity = 9",
        )
        .await
        .unwrap();
    assert!(writer.batch_execute("DELETE FROM public.rate_limit_rule_history").await.is_err());
    database.execute(&format!("SET ROLE {role}")).await;
    database.execute("TRUNCATE rate_limit_rule; RESET ROLE").await;
    let rows = database
        .client
        .query("SELECT who, role, actor, operation FROM rate_limit_rule_history ORDER BY id", &[])
        .await
        .unwrap();
    let rows: Vec<[Option<String>; 4]> = rows.iter().map(|row| [0, 1, 2, 3].map(|column| row.get(column))).collect();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        rows,
        [
            [text(&role), None, None, text("INSERT")],
            [text(&role), None, text("alice"), text("UPDATE")],
            [text("postgres"), text(&role), None, text("TRUNCATE")],
        ]
    );
    drop(writer);
    connection.await.unwrap().unwrap();
    database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}
