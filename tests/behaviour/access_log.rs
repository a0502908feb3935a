//! The access log: a line for each request, whatever its answer, and never in a request's way.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::support::{Behaviour, HARDLY, PrivateRedis, Setup, Upstream, eventually};

const PATIENCE: Duration = Duration::from_secs(10);

fn logging(setup: Setup, path: &Path) -> Setup {
    setup.set("access_log", "path", &format!("{:?}", path.display().to_string()))
}

fn place() -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("access.log");
    (dir, path)
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// The lines, once there are so many.
async fn logged(path: &Path, count: usize) -> Vec<Value> {
    eventually(&format!("{count} lines"), PATIENCE, || async { Some(lines(path)).filter(|lines| lines.len() >= count) })
        .await
}

#[tokio::test]
async fn every_kind_of_answer_has_a_line_with_what_was_decided() {
    let (_dir, path) = place();
    let upstream = Upstream::normal().await;
    let setup = Setup::new(upstream.address)
        .rules(
            r#"[{"tenant_id":"*","route_id":"*","capacity":4,"refill_per_second":0.001},
                {"tenant_id":"shop-a","route_id":"dear","capacity":4,"refill_per_second":0.001,"cost":3}]"#,
        )
        .route("dear", "/dear")
        .table("[[route]]\nid = \"free\"\npath = \"/free\"\nupstream = \"main\"\nlimit = false\n");
    let gateway = logging(setup, &path).start().await;

    assert_eq!(gateway.ask("POST", "/orders?secret=1", "shop-a").await.status, 200);
    assert_eq!(gateway.get("/dear", "shop-a").await.status, 200);
    assert_eq!(gateway.get("/dear", "shop-a").await.status, 429);
    assert_eq!(gateway.get("/free", "shop-a").await.status, 200);
    assert_eq!(gateway.get("/nowhere", "shop-a").await.status, 404);
    assert_eq!(gateway.get("/orders", "").await.status, 401);
    upstream.behave(Behaviour::CloseEarly);
    assert_eq!(gateway.ask("POST", "/orders", "shop-a").await.status, 502);

    let lines = logged(&path, 7).await;
    assert_eq!(lines.len(), 7, "{lines:?}");
    // method, route, tenant, decision, source, rule, limit, remaining, cost, status
    let none = Value::Null;
    let expected = [
        serde_json::json!(["POST", "orders", "shop-a", "allowed", "store", "*/*", 4, 3, 1, 200]),
        serde_json::json!(["GET", "dear", "shop-a", "allowed", "store", "shop-a/dear", 4, 1, 3, 200]),
        serde_json::json!(["GET", "dear", "shop-a", "denied", "store", "shop-a/dear", 4, 1, 3, 429]),
        serde_json::json!(["GET", "free", none, none, none, none, none, none, none, 200]),
        serde_json::json!(["GET", none, none, none, none, none, none, none, none, 404]),
        serde_json::json!(["GET", "orders", none, none, none, none, none, none, none, 401]),
        serde_json::json!(["POST", "orders", "shop-a", "allowed", "store", "*/*", 4, 2, 1, 502]),
    ];
    let fields = ["method", "route", "tenant", "decision", "source", "rule", "limit", "remaining", "cost", "status"];
    for (line, expected) in lines.iter().zip(expected) {
        assert_eq!(fields.iter().map(|field| line[field].clone()).collect::<Value>(), expected, "{line}");
        assert!(line["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0 && seconds < 60.0), "{line}");
        let decided = line["decision_seconds"].as_f64();
        assert_eq!(decided.is_some(), line["decision"].is_string(), "{line}");
        assert!(decided.is_none_or(|decided| decided <= line["seconds"].as_f64().unwrap()), "{line}");
        let time = sekisho::wall::Rfc3339::parse(line["time"].as_str().unwrap()).unwrap();
        assert!(time.0.abs_diff(sekisho::wall::now_ms()) < 60_000, "{line}");
        assert!(line.get("sample").is_none() && line.get("shadow_denied").is_none(), "{line}");
    }
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains("secret") && !text.contains("127.0.0.1"), "{text}");
}

#[tokio::test]
async fn decisions_without_the_store_and_those_of_shadow_rules_show_in_the_line() {
    let (_dir, path) = place();
    let upstream = Upstream::normal().await;
    let mut redis = PrivateRedis::start().await;
    let setup = Setup::new(upstream.address).redis(&redis.url()).route("open", "/open").rules(
        r#"[{"tenant_id":"*","route_id":"orders","capacity":5,"refill_per_second":0.001,"on_store_failure":"closed"},
            {"tenant_id":"*","route_id":"open","capacity":5,"refill_per_second":0.001,"on_store_failure":"open"},
            {"tenant_id":"shop-a","route_id":"orders","capacity":1,"refill_per_second":0.001,"mode":"shadow"}]"#,
    );
    let gateway = logging(setup, &path).start().await;
    gateway.get("/orders", "shop-a").await;
    gateway.get("/orders", "shop-a").await;
    let before = logged(&path, 2).await;
    assert_eq!((before[0].get("shadow_denied"), &before[1]["shadow_denied"]), (None, &Value::Bool(true)), "{before:?}");
    assert_eq!(before[1]["decision"], "allowed");

    redis.kill();
    eventually("the store is known to be away", PATIENCE, || async {
        (gateway.get("/orders", "shop-b").await.status == 503).then_some(())
    })
    .await;
    assert_eq!(gateway.get("/open", "shop-b").await.status, 200);
    let after = eventually("a line of the last request", PATIENCE, || async {
        Some(lines(&path)).filter(|lines| lines.last().is_some_and(|line| line["route"] == "open"))
    })
    .await;
    let [.., closed, open] = &after[..] else { panic!("{after:?}") };
    let decided = |line: &Value| ["decision", "source", "remaining", "status"].map(|field| line[field].clone());
    assert_eq!(decided(closed), ["unavailable".into(), "closed".into(), Value::Null, 503.into()]);
    assert_eq!(decided(open), ["allowed".into(), "open".into(), Value::Null, 200.into()]);
}

#[tokio::test]
async fn a_sample_has_about_that_share_of_the_lines_and_says_so() {
    let (_dir, path) = place();
    let upstream = Upstream::normal().await;
    let setup = Setup::new(upstream.address).limit(10_000, HARDLY).set("access_log", "sample", "0.25");
    let mut gateway = logging(setup, &path).start().await;
    gateway.spend("/orders", "shop-a", 800).await;
    gateway.signal("TERM");
    gateway.ended(PATIENCE).await.expect("it ends");
    let lines = lines(&path);
    // Five standard deviations.
    assert!((139..=261).contains(&lines.len()), "{}", lines.len());
    assert!(lines.iter().all(|line| line["sample"] == 0.25));
}

#[tokio::test]
async fn where_keys_are_secrets_the_tenant_is_hashed_unless_configured() {
    let (_dir, path) = place();
    let upstream = Upstream::normal().await;
    let keys = path.with_file_name("keys.json");
    let digest: String = Sha256::digest("s3cret").iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(&keys, format!(r#"[{{"key_sha256":"{digest}","tenant":"shop-a"}}]"#)).unwrap();
    let setup = Setup::new(upstream.address).limit(10, HARDLY).set("identity", "mode", "\"registered\"").set(
        "identity",
        "keys_file",
        &format!("{:?}", keys.display().to_string()),
    );
    let hashed = logging(setup.clone(), &path).start().await;
    assert_eq!(hashed.get("/orders", "s3cret").await.status, 200);
    let line = logged(&path, 1).await.remove(0);
    let hash: String = Sha256::digest("shop-a").iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((&line["tenant_sha256"], line.get("tenant")), (&Value::from(hash), None), "{line}");
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains("shop-a") && !text.contains("s3cret"), "{text}");

    let plain = path.with_file_name("plain.log");
    let gateway = logging(setup, &plain).set("access_log", "hash_tenants", "false").start().await;
    assert_eq!(gateway.get("/orders", "s3cret").await.status, 200);
    let line = logged(&plain, 1).await.remove(0);
    assert_eq!((&line["tenant"], line.get("tenant_sha256")), (&Value::from("shop-a"), None), "{line}");
}

#[tokio::test]
async fn after_a_hangup_lines_go_to_a_new_file_and_none_is_lost() {
    let (_dir, path) = place();
    let upstream = Upstream::normal().await;
    let gateway = logging(Setup::new(upstream.address).limit(1000, HARDLY), &path).start().await;
    gateway.spend("/orders", "shop-a", 10).await;
    logged(&path, 10).await;
    let moved = path.with_file_name("access.log.1");
    fs::rename(&path, &moved).unwrap();
    gateway.spend("/orders", "shop-a", 10).await;
    gateway.signal("HUP");
    eventually("a new file", PATIENCE, || async { path.exists().then_some(()) }).await;
    gateway.spend("/orders", "shop-a", 10).await;
    let new = logged(&path, 10).await;
    assert_eq!((lines(&moved).len(), new.len()), (20, 10));
}

#[tokio::test]
async fn what_is_not_written_yet_is_written_at_the_end() {
    let (_dir, path) = place();
    let upstream = Upstream::normal().await;
    let mut gateway = logging(Setup::new(upstream.address).limit(1000, HARDLY), &path).start().await;
    gateway.spend("/orders", "shop-a", 50).await;
    gateway.signal("TERM");
    gateway.ended(PATIENCE).await.expect("it ends");
    assert_eq!(lines(&path).len(), 50);
}

#[tokio::test]
async fn standard_output_is_a_place_for_lines_too() {
    let upstream = Upstream::normal().await;
    let setup = Setup::new(upstream.address).limit(10, HARDLY).set("access_log", "path", "\"-\"");
    let gateway = setup.start().await;
    gateway.get("/orders", "shop-a").await;
    gateway.logged(r#""tenant":"shop-a","decision":"allowed""#).await;
}

#[tokio::test]
async fn a_full_disk_and_a_missing_folder_lose_lines_and_no_request() {
    let upstream = Upstream::normal().await;
    let missing = TempDir::new().unwrap().path().join("missing/access.log");
    for path in [Path::new("/dev/full"), &missing] {
        let gateway = logging(Setup::new(upstream.address).limit(1000, HARDLY), path).start().await;
        let answers = gateway.spend("/orders", "shop-a", 100).await;
        assert!(answers.iter().all(|answer| answer.status == 200));
        eventually("all lines are counted as lost", PATIENCE, || async {
            (gateway.metric("sekisho_access_log_dropped_total", &[]).await == 100.0).then_some(())
        })
        .await;
        gateway.logged("the access log cannot be written").await;
        assert_eq!(gateway.log().matches("the access log cannot be written").count(), 1, "{}", gateway.log());
    }
}
