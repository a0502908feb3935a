//! Expectations that rules have to meet: in `sekisho check`, and before rules come into force.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{Gateway, Setup, Upstream, eventually, sekisho};

/// One rule for `shop-a`, and one expectation about it.
fn rules(capacity: u32) -> String {
    format!(r#"[{{"tenant_id":"shop-a","route_id":"*","capacity":{capacity},"refill_per_second":1}}]"#)
}

const TESTS: &str = r#"[
  {"request": {"method": "GET", "path": "/orders", "tenant": "shop-a"},
   "expect": {"rule": "shop-a/*", "capacity": 5}, "comment": "as agreed"}
]"#;

fn written(content: &str) -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rules.test.json");
    std::fs::write(&path, content).unwrap();
    let path = path.display().to_string();
    (dir, path)
}

fn setup(upstream: &Upstream, tests: &str) -> Setup {
    Setup::new(upstream.address).set("rules", "refresh", "\"50ms\"").set("rules", "tests", &format!("{tests:?}")).set(
        "limiter",
        "default_rule",
        "{ capacity = 77, refill_per_second = 1 }",
    )
}

async fn limit_of(gateway: &Gateway) -> u64 {
    gateway.get("/orders", "shop-a").await.number("X-RateLimit-Limit")
}

#[test]
fn the_shipped_rules_pass_the_shipped_tests() {
    let run = sekisho(&["check", "-c", "conf/sekisho.toml", "--rules-test", "conf/rules.test.json"]);
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
}

#[test]
fn check_names_every_expectation_that_fails_in_a_line_and_exits_with_1() {
    let tests = r#"[
      {"request": {"method": "POST", "path": "/orders", "tenant": "shop-a"}, "expect": {"rule": "*/create-order"}},
      {"request": {"method": "POST", "path": "/orders", "tenant": "shop-a"}, "expect": {"capacity": 200}},
      {"request": {"method": "POST", "path": "//orders", "tenant": "shop-a"},
       "expect": {"capacity": 201, "refill": "5/min"}, "comment": "why"},
      {"request": {"method": "GET", "path": "/ping"}, "expect": {"rule": "default"}},
      {"request": {"method": "GET", "path": "/nowhere"}, "expect": {"rule": "default"}},
      {"request": {"method": "POST", "path": "/orders"}, "expect": {"status": 404}},
      {"request": {"method": "POST", "path": "/orders", "headers": {"x-api-key": "shop-a"}}, "expect": {"status": 401}},
      {"request": {"method": "POST", "path": "/orders", "tenant": "x"}, "expect": {"shadow": "x/create-order"}}
    ]"#;
    let (_dir, path) = written(tests);
    let run = sekisho(&["check", "-c", "conf/sekisho.toml", "--rules-test", &path]);
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    let expected = [
        "2: POST /orders of shop-a: expected rule */create-order, is shop-a/create-order",
        "4: POST //orders of shop-a (why): expected capacity 201, is 200, expected refill_per_second 0.083",
        "6: GET /ping: expected rule default, is none, the route is exempt",
        "7: GET /nowhere: expected limits found, is status 404",
        "8: POST /orders: expected status 404, is 401",
        "9: POST /orders: expected status 401, is not stopped, route create-order",
        "10: POST /orders of x: expected shadow x/create-order, is none",
    ];
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{}", run.stderr);
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(&format!("{path}:{expected}")), "{line}\n{expected}");
    }
}

#[test]
fn expectations_that_mean_nothing_are_named_with_their_line() {
    for (tests, line, problem) in [
        (
            "[\n{\"request\": {\"method\": \"GET\",\n\"path\": \"/\", \"pth\": 1}, \"expect\": {}}]",
            3,
            "unknown field `pth`",
        ),
        ("[\n\n5]", 3, "invalid type"),
        (
            "[{\"request\": {\"method\": \"G T\", \"path\": \"/\"}, \"expect\": {\"status\": 404}}]",
            1,
            "request: method",
        ),
        ("[{\"request\": {\"method\": \"GET\", \"path\": \"/\"}, \"expect\": {}}]", 1, "expect: nothing is expected"),
        ("{}", 1, "invalid type: map, expected an array"),
    ] {
        let (_dir, path) = written(tests);
        let run = sekisho(&["check", "-c", "conf/sekisho.toml", "--rules-test", &path]);
        assert_eq!(run.code, Some(1), "{tests}: {}{}", run.stdout, run.stderr);
        assert!(run.stderr.contains(&format!("{path}:{line}: {problem}")), "{tests}: {}", run.stderr);
    }
    let run = sekisho(&["check", "-c", "conf/sekisho.toml", "--rules-test", "/nowhere.json"]);
    assert!(run.code == Some(1) && run.stderr.contains("/nowhere.json: cannot be read"), "{}", run.stderr);
}

#[tokio::test]
async fn rules_that_fail_their_tests_leave_the_old_ones_in_force() {
    let upstream = Upstream::normal().await;
    let (_dir, path) = written(TESTS);
    let gateway = setup(&upstream, &path).rules(&rules(5)).start().await;
    assert_eq!(limit_of(&gateway).await, 5);
    gateway.write_rules(&rules(6));
    let error = eventually("it is in the status", Duration::from_secs(5), || async {
        gateway.status().await["rules"]["last_error"].as_str().map(str::to_owned)
    })
    .await;
    let expected = format!("rule tests fail: {path}:2: GET /orders of shop-a (as agreed): expected capacity 5, is 6");
    assert_eq!(error, expected);
    assert_eq!(limit_of(&gateway).await, 5);
    assert!(gateway.log().contains(&expected), "{}", gateway.log());
    assert!(gateway.metric("sekisho_rules_reloads_total", &["file", "held"]).await >= 1.0);

    // The tests change with the rules.
    std::fs::write(&path, TESTS.replace("\"capacity\": 5", "\"capacity\": 6")).unwrap();
    eventually("the rules are in force", Duration::from_secs(5), || async {
        (limit_of(&gateway).await == 6).then_some(())
    })
    .await;
    assert!(gateway.status().await["rules"]["last_error"].is_null());
    std::fs::write(&path, "[").unwrap();
    gateway.write_rules(&rules(7));
    gateway.logged(&format!("{path}:1: EOF")).await;
    assert_eq!(limit_of(&gateway).await, 6, "without tests nothing changes");
}

#[tokio::test]
async fn a_file_that_fails_its_tests_ends_the_start() {
    let upstream = Upstream::normal().await;
    let (dir, path) = written(TESTS);
    let nobody = ([127, 0, 0, 1], 9).into();
    let run = |setup: Setup, dir: &Path| {
        let config = setup.write(dir, nobody, ([127, 0, 0, 1], 10).into());
        sekisho(&["run", "-c", config.to_str().unwrap()])
    };
    let failing = run(setup(&upstream, &path).rules(&rules(6)), dir.path());
    assert_eq!(failing.code, Some(1), "{}", failing.stderr);
    assert!(failing.stderr.contains("expected capacity 5, is 6"), "{}", failing.stderr);
    std::fs::write(&path, "[{}]").unwrap();
    let wrong = run(setup(&upstream, &path).rules(&rules(5)), dir.path());
    assert_eq!(wrong.code, Some(1), "{}", wrong.stderr);
    assert!(wrong.stderr.contains(&format!("{path}:1: missing field `request`")), "{}", wrong.stderr);
}
