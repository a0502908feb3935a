//! Rules over the admin API: pages of those in force, and changes with optimistic concurrency.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Connection, Database, FaultProxy, Gateway, HARDLY, Response, Setup, Upstream, eventually, free_address, get, send,
};

const RULE: &str = r#"{"capacity": 5, "refill_per_second": 1}"#;
const JSON: (&str, &str) = ("Content-Type", "application/json");

fn bytes(host: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    format!("{text}\r\n{body}").into_bytes()
}

async fn ask(admin: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
    send(admin, &bytes(&admin.to_string(), method, path, headers, body)).await
}

/// PUT of a rule; `condition` is one more header.
async fn put(gateway: &Gateway, path: &str, condition: (&str, &str), body: &str) -> Response {
    let condition = Some(condition).filter(|(name, _)| !name.is_empty());
    let headers: Vec<_> = [JSON].into_iter().chain(condition).collect();
    ask(gateway.admin, "PUT", &format!("/api/v1/rules/{path}"), &headers, body).await
}

const FREELY: (&str, &str) = ("", "");

fn detail(answer: &Response) -> String {
    assert_eq!(answer.header("Content-Type"), Some("application/problem+json"), "{answer:?}");
    assert_eq!(answer.json()["status"], answer.status, "{answer:?}");
    answer.json()["detail"].as_str().unwrap().to_owned()
}

async fn limit_of(gateway: &Gateway, tenant: &str) -> u64 {
    gateway.get("/orders", tenant).await.number("X-RateLimit-Limit")
}

async fn with_database(upstream: &Upstream, database: &Database) -> Gateway {
    database.execute(sekisho::rules::edit::SCHEMA).await;
    setup(upstream, &database.url).start().await
}

fn setup(upstream: &Upstream, url: &str) -> Setup {
    Setup::new(upstream.address).set("rules", "database_url", &format!("{url:?}")).set(
        "limiter",
        "default_rule",
        "{ capacity = 77, refill_per_second = 1 }",
    )
}

#[tokio::test]
async fn a_rule_is_created_changed_and_deleted_and_each_comes_into_force() {
    let (upstream, database) = (Upstream::normal().await, Database::create().await);
    let gateway = with_database(&upstream, &database).await;
    let in_force = async |limit: u64| {
        let what = format!("the limit is {limit}");
        eventually(&what, Duration::from_secs(5), || async {
            (limit_of(&gateway, "shop-a").await == limit).then_some(())
        })
        .await;
    };
    assert_eq!(limit_of(&gateway, "shop-a").await, 77);
    let path = "/api/v1/rules/shop-a/orders";
    assert_eq!(get(gateway.admin, path, &[]).await.status, 404);

    let created = put(&gateway, "shop-a/orders", ("If-None-Match", "*"), RULE).await;
    assert_eq!(created.status, 201, "{created:?}");
    let expected = json!({"tenant_id": "shop-a", "route_id": "orders", "capacity": 5, "refill_per_second": 1});
    assert_eq!(created.json(), expected);
    let tag = created.header("ETag").unwrap();
    in_force(5).await;

    let read = get(gateway.admin, path, &[]).await;
    assert_eq!((read.status, read.json(), read.header("ETag")), (200, expected, Some(tag)));
    let again = get(gateway.admin, path, &[("If-None-Match", tag)]).await;
    assert_eq!((again.status, again.body.len()), (304, 0));

    let change = r#"{"tenant_id": "shop-a", "capacity": 6, "refill": "30/min", "comment": "more"}"#;
    let changed = put(&gateway, "shop-a/orders", ("If-Match", tag), change).await;
    assert_eq!((changed.status, &changed.json()["refill_per_second"]), (200, &json!(0.5)), "{changed:?}");
    let newer = changed.header("ETag").unwrap();
    assert_ne!(newer, tag);
    in_force(6).await;

    assert_eq!(ask(gateway.admin, "DELETE", path, &[("If-Match", tag)], "").await.status, 412);
    assert_eq!(ask(gateway.admin, "DELETE", path, &[], "").await.status, 428);
    let deleted = ask(gateway.admin, "DELETE", path, &[("If-Match", newer)], "").await;
    assert_eq!((deleted.status, deleted.header("Content-Length")), (204, None));
    in_force(77).await;
    assert_eq!(ask(gateway.admin, "DELETE", path, &[("If-Match", newer)], "").await.status, 404);
}

#[tokio::test]
async fn what_is_written_here_is_in_force_here_at_once_whatever_the_refresh() {
    let (upstream, database) = (Upstream::normal().await, Database::create().await);
    let gateway = setup(&upstream, &database.url).set("rules", "refresh", "\"1h\"").start().await;
    assert_eq!(limit_of(&gateway, "shop-a").await, 77);
    assert_eq!(put(&gateway, "shop-a/*", FREELY, RULE).await.status, 201, "also in the table that has no trigger");
    eventually("it is in force", Duration::from_secs(2), || async {
        (limit_of(&gateway, "shop-a").await == 5).then_some(())
    })
    .await;
}

#[tokio::test]
async fn of_two_writers_one_loses() {
    let (upstream, database) = (Upstream::normal().await, Database::create().await);
    let gateway = with_database(&upstream, &database).await;
    let created = put(&gateway, "shop-a/orders", FREELY, RULE).await;
    assert_eq!(created.status, 201, "{created:?}");
    let tag = created.header("ETag").unwrap();
    let without = put(&gateway, "shop-a/orders", FREELY, r#"{"capacity": 6, "refill_per_second": 1}"#).await;
    assert_eq!(without.status, 428);
    assert!(detail(&without).contains("If-Match"), "{without:?}");

    for round in 0..5 {
        let read = get(gateway.admin, "/api/v1/rules/shop-a/orders", &[]).await;
        let current = read.header("ETag").unwrap();
        let writers = (0..6).map(|n| {
            let body = format!(r#"{{"capacity": {}, "refill_per_second": 1}}"#, 100 + round * 10 + n);
            let gateway = &gateway;
            async move { put(gateway, "shop-a/orders", ("If-Match", current), &body).await }
        });
        let answers = futures_util::future::join_all(writers).await;
        let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        let winners: Vec<&Response> = answers.iter().filter(|answer| answer.status == 200).collect();
        assert_eq!(winners.len(), 1, "{statuses:?}");
        assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 412)), "{statuses:?}");
        let now = get(gateway.admin, "/api/v1/rules/shop-a/orders", &[]).await;
        assert_eq!((now.json(), now.header("ETag")), (winners[0].json(), winners[0].header("ETag")));
        assert_eq!(put(&gateway, "shop-a/orders", ("If-Match", tag), RULE).await.status, 412);
    }

    let creators = (0..6).map(|n| {
        let body = format!(r#"{{"capacity": {}, "refill_per_second": 1}}"#, 10 + n);
        let gateway = &gateway;
        async move { put(gateway, "new/orders", ("If-None-Match", "*"), &body).await.status }
    });
    let mut statuses = futures_util::future::join_all(creators).await;
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 412, 412, 412, 412, 412]);
}

async fn page(gateway: &Gateway, query: &str) -> (Vec<String>, Option<String>) {
    let answer = get(gateway.admin, &format!("/api/v1/rules?{query}"), &[]).await;
    assert_eq!(answer.status, 200, "{query}: {answer:?}");
    let answer = answer.json();
    let name = |rule: &Value| format!("{}/{}", rule["tenant_id"].as_str().unwrap(), rule["route_id"].as_str().unwrap());
    let rules = answer["rules"].as_array().unwrap().iter().map(name).collect();
    (rules, answer["next"].as_str().map(str::to_owned))
}

#[tokio::test]
async fn pages_show_every_rule_that_stays_once_while_others_come_and_go() {
    let upstream = Upstream::normal().await;
    let rules = |round: usize| {
        let stay = (0..300).map(|n| format!("stay {n:03}/é"));
        let go = (0..100).map(|n| format!("{} {n}", if (n + round).is_multiple_of(2) { "a" } else { "z" }));
        let rule = |tenant| json!({"tenant_id": tenant, "route_id": "orders", "capacity": 5, "refill_per_second": 1});
        Value::from(stay.chain(go).map(rule).collect::<Vec<_>>()).to_string()
    };
    let gateway = Setup::new(upstream.address).rules(&rules(0)).start().await;
    let (mut seen, mut after, mut round) = (BTreeMap::<String, usize>::new(), String::new(), 0);
    let mut last = String::new();
    loop {
        let (names, next) = page(&gateway, &format!("limit=37&after={after}")).await;
        for name in names {
            assert!(name > last, "{name} after {last}");
            *seen.entry(name.clone()).or_default() += 1;
            last = name;
        }
        let Some(next) = next else { break };
        after = next;
        round += 1;
        gateway.write_rules(&rules(round));
        let came = format!("{} 0/orders", if round.is_multiple_of(2) { "a" } else { "z" });
        eventually("the new rules are in force", Duration::from_secs(10), || async {
            let tenant = came.split('/').next().unwrap().replace(' ', "%20");
            (page(&gateway, &format!("tenant={tenant}")).await.0 == [came.as_str()]).then_some(())
        })
        .await;
    }
    assert!(round >= 8, "{round}");
    for n in 0..300 {
        assert_eq!(seen.get(&format!("stay {n:03}/é/orders")), Some(&1), "{n}");
    }
    assert!(seen.values().all(|times| *times == 1));
}

#[tokio::test]
async fn pages_are_of_one_tenant_or_route_and_within_bounds() {
    let upstream = Upstream::normal().await;
    let rule = |tenant: String, route: &str| json!({"tenant_id": tenant, "route_id": route, "capacity": 5, "refill_per_second": 1});
    let rules: Vec<Value> =
        (0..150).flat_map(|n| ["orders", "*"].map(|route| rule(format!("t{n:03}"), route))).collect();
    let gateway = Setup::new(upstream.address).rules(&Value::from(rules).to_string()).start().await;
    let (names, next) = page(&gateway, "").await;
    assert_eq!((names.len(), names[0].as_str(), next.as_deref()), (100, "t000/*", Some("t049/orders")));
    assert_eq!(page(&gateway, "limit=1000").await.0.len(), 300);
    assert_eq!(page(&gateway, "limit=1000").await.1, None);
    assert_eq!(page(&gateway, "tenant=t007").await, (vec!["t007/*".into(), "t007/orders".into()], None));
    assert_eq!(page(&gateway, "route=*&limit=1").await, (vec!["t000/*".into()], Some("t000/*".into())));
    assert_eq!(page(&gateway, "tenant=nobody").await, (vec![], None));
    for (query, parameter) in
        [("limit=0", "limit"), ("limit=1001", "limit"), ("after=x", "after"), ("tenat=a", "tenat")]
    {
        let answer = get(gateway.admin, &format!("/api/v1/rules?{query}"), &[]).await;
        assert_eq!(answer.status, 400, "{query}");
        assert!(
            detail(&answer).starts_with(&format!("{parameter}: ")) && detail(&answer).contains("allowed"),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn rules_of_a_file_are_shown_but_not_written() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(5, HARDLY).start().await;
    let shown = get(gateway.admin, "/api/v1/rules/*/*", &[]).await;
    assert_eq!((shown.status, &shown.json()["capacity"]), (200, &json!(5)));
    for method in ["PUT", "DELETE"] {
        let answer = ask(gateway.admin, method, "/api/v1/rules/a/orders", &[JSON], RULE).await;
        assert_eq!((answer.status, answer.header("Allow")), (405, Some("GET, HEAD")), "{answer:?}");
        assert!(detail(&answer).contains("rules.database_url"), "{answer:?}");
    }
    assert_eq!(ask(gateway.admin, "POST", "/api/v1/rules", &[JSON], RULE).await.status, 405);
    assert_eq!(get(gateway.admin, "/api/v1/rulesome", &[]).await.status, 404);
    assert_eq!(get(gateway.admin, "/api/v1/rules/a", &[]).await.status, 404);
}

#[tokio::test]
async fn what_is_no_rule_or_not_this_one_is_refused_with_a_reason_and_nothing_is_written() {
    let (upstream, database) = (Upstream::normal().await, Database::create().await);
    let gateway = with_database(&upstream, &database).await;
    for (path, body, status, expected) in [
        ("a/orders", r#"{"capacity": 0, "refill_per_second": 1}"#, 422, "capacity is 0, allowed are"),
        ("a/orders", r#"{"capacity": 5, "refill_per_second": 1, "burst": 1}"#, 422, "unknown field `burst`"),
        (
            "a/orders",
            r#"{"tenant_id": "b", "capacity": 5, "refill_per_second": 1}"#,
            422,
            "tenant_id is \"b\", the path says",
        ),
        (
            "a/orders?mode=shadow",
            r#"{"mode": "enforce", "capacity": 5, "refill_per_second": 1}"#,
            422,
            "the query says \"shadow\"",
        ),
        ("a/orders", "[]", 422, "[] is not a rule"),
        ("a/orders", "{", 422, "EOF"),
        ("a/orders?mode=maybe", RULE, 400, "mode: \"maybe\", allowed are"),
        ("%ff/orders", RULE, 400, "the path is not UTF-8"),
        ("a%00/orders", RULE, 400, "tenant_id contains control characters"),
    ] {
        let answer = put(&gateway, path, FREELY, body).await;
        assert_eq!(answer.status, status, "{path} {body}: {answer:?}");
        assert!(detail(&answer).contains(expected), "{path} {body}: {answer:?}");
    }
    let path = "/api/v1/rules/a/orders";
    for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
        assert_eq!(ask(gateway.admin, "PUT", path, &[("Content-Type", kind)], RULE).await.status, 415, "{kind}");
    }
    let long = format!(r#"{{"capacity": 5, "refill_per_second": 1, "comment": "{}"}}"#, "x".repeat(70_000));
    let refused = put(&gateway, "a/orders", FREELY, &long).await;
    assert!(refused.status == 413 && refused.closes(), "{refused:?}");
    let chunked = [JSON, ("Transfer-Encoding", "chunked")];
    let mut head = bytes(&gateway.admin.to_string(), "PUT", path, &chunked, "");
    head.extend_from_slice(format!("{:x}\r\n{long}\r\n0\r\n\r\n", long.len()).as_bytes());
    assert_eq!(send(gateway.admin, &head).await.status, 413);
    let count = database.client.query_one("SELECT count(*) FROM rate_limit_rule", &[]).await.unwrap();
    assert_eq!(count.get::<_, i64>(0), 0);
    // What the database cannot keep is the rule's fault.
    database.execute("ALTER TABLE rate_limit_rule DROP COLUMN comment").await;
    let answer = put(&gateway, "a/orders", FREELY, r#"{"capacity": 5, "refill_per_second": 1, "comment": "x"}"#).await;
    assert!(answer.status == 422 && detail(&answer).contains("`sekisho rules migrate`"), "{answer:?}");
}

#[tokio::test]
async fn a_body_in_small_parts_is_taken_and_one_that_never_ends_is_given_up() {
    let (upstream, database) = (Upstream::normal().await, Database::create().await);
    let gateway = with_database(&upstream, &database).await;
    let whole =
        bytes(&gateway.admin.to_string(), "PUT", "/api/v1/rules/a%2Fb/*", &[JSON, ("Expect", "100-continue")], RULE);
    let mut connection = Connection::open(gateway.admin).await;
    let head = whole.len() - RULE.len();
    connection.write(&whole[..head]).await;
    assert_eq!(connection.read(false).await.unwrap().status, 100);
    for byte in &whole[head..] {
        connection.write(&[*byte]).await;
    }
    let answer = connection.read(false).await.unwrap();
    assert_eq!((answer.status, &answer.json()["tenant_id"]), (201, &json!("a/b")), "{answer:?}");

    let mut slow = Connection::open(gateway.admin).await;
    let start = bytes(&gateway.admin.to_string(), "PUT", "/api/v1/rules/slow/*", &[JSON, ("Content-Length", "40")], "");
    slow.write(&start).await;
    slow.write(b"{\"capacity\"").await;
    assert_eq!(get(gateway.admin, "/healthz", &[]).await.status, 200, "others are served meanwhile");
    let answer = slow.read(false).await.unwrap();
    assert!(answer.status == 408 && answer.closes(), "{answer:?}");
}

#[tokio::test]
async fn without_a_token_no_page_of_another_site_may_write() {
    let (upstream, database) = (Upstream::normal().await, Database::create().await);
    let gateway = with_database(&upstream, &database).await;
    let path = "/api/v1/rules/a/orders";
    let own = gateway.admin.to_string();
    for (host, headers, what) in [
        ("rebound.example:9180", vec![JSON], "Host"),
        (own.as_str(), vec![JSON, ("Origin", "https://evil.example")], "Origin"),
        (own.as_str(), vec![JSON, ("Origin", "null")], "Origin"),
    ] {
        let answer = send(gateway.admin, &bytes(host, "PUT", path, &headers, RULE)).await;
        assert_eq!(answer.status, 403, "{host} {headers:?}: {answer:?}");
        assert!(detail(&answer).contains(what), "{answer:?}");
    }
    let preflight = ask(
        gateway.admin,
        "OPTIONS",
        path,
        &[("Origin", "https://evil.example"), ("Access-Control-Request-Method", "PUT")],
        "",
    )
    .await;
    assert!(preflight.status == 405 && preflight.header("Access-Control-Allow-Origin").is_none(), "{preflight:?}");
    let origin = format!("http://{own}");
    assert_eq!(ask(gateway.admin, "PUT", path, &[JSON, ("Origin", &origin)], RULE).await.status, 201);
}

#[tokio::test]
async fn with_a_token_nobody_writes_without_it() {
    let (upstream, database) = (Upstream::normal().await, Database::create().await);
    database.execute(sekisho::rules::edit::SCHEMA).await;
    let dir = tempfile::TempDir::new().unwrap();
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, "the-token\n").unwrap();
    let token_file = format!("{:?}", token_file.display().to_string());
    let gateway = setup(&upstream, &database.url).set("admin", "token_file", &token_file).start().await;
    let path = "/api/v1/rules/a/orders";
    for authorization in ["", "Bearer wrong"] {
        for method in ["GET", "PUT", "DELETE"] {
            let answer = ask(gateway.admin, method, path, &[JSON, ("Authorization", authorization)], RULE).await;
            assert_eq!(answer.status, 401, "{method} {authorization}");
        }
        assert_eq!(get(gateway.admin, "/api/v1/rules", &[("Authorization", authorization)]).await.status, 401);
    }
    let token = ("Authorization", "Bearer the-token");
    let by_name = bytes("admin.example", "PUT", path, &[JSON, token], RULE);
    assert_eq!(send(gateway.admin, &by_name).await.status, 201, "with a token any name will do");
    assert_eq!(get(gateway.admin, path, &[token]).await.status, 200);
}

#[tokio::test]
async fn while_the_database_is_away_rules_are_shown_and_nothing_is_written() {
    let (upstream, database) = (Upstream::normal().await, Database::create().await);
    database
        .execute(
            "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second) VALUES ('a', '*', 5, 1)",
        )
        .await;
    let (server, _) = database.url.rsplit_once('/').unwrap();
    let (_, address) = server.rsplit_once('@').unwrap();
    let proxy = FaultProxy::start(address, 1).await;
    let gateway = setup(&upstream, &database.url.replace(address, &proxy.address.to_string())).start().await;
    assert_eq!(get(gateway.admin, "/api/v1/rules/a/*", &[]).await.status, 200);
    proxy.retarget(&free_address().to_string());
    for method in ["GET", "PUT", "DELETE"] {
        let answer = ask(gateway.admin, method, "/api/v1/rules/a/*", &[JSON, ("If-Match", "*")], RULE).await;
        assert_eq!(answer.status, 503, "{method}: {answer:?}");
        assert!(detail(&answer).starts_with("rules database: no connection"), "{answer:?}");
    }
    assert_eq!(page(&gateway, "").await, (vec!["a/*".into()], None));
}

#[tokio::test]
async fn a_row_that_is_no_rule_is_shown_with_its_fault_and_can_be_mended() {
    let (upstream, database) = (Upstream::normal().await, Database::create().await);
    let gateway = with_database(&upstream, &database).await;
    database.execute("INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second) VALUES ('a', 'r', 1000000, 0.001)").await;
    let shown = get(gateway.admin, "/api/v1/rules/a/r", &[]).await;
    assert!(shown.json()["fault"].as_str().unwrap().contains("longer than a year"), "{shown:?}");
    let mended = put(&gateway, "a/r", ("If-Match", shown.header("ETag").unwrap()), RULE).await;
    assert_eq!(mended.status, 200, "{mended:?}");
}

#[tokio::test]
async fn history_and_log_say_who_wrote_over_the_api() {
    let (upstream, database) = (Upstream::normal().await, Database::create().await);
    let gateway = with_database(&upstream, &database).await;
    assert_eq!(put(&gateway, "a/orders", FREELY, RULE).await.status, 201);
    let history = "SELECT actor FROM rate_limit_rule_history";
    let seen = database.client.query(history, &[]).await.unwrap();
    assert_eq!(seen.iter().map(|row| row.get(0)).collect::<Vec<String>>(), ["127.0.0.1@admin-api"]);
    gateway.logged("+ a/orders: capacity 5, refill_per_second 1").await;
}
