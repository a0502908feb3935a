//! `sekisho replay`: what other rules would have done to the requests of an access log.

// A test fails by panicking and measures with the wall clock; not every test crate uses all of `support`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    dead_code,
    unused_imports
)]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::{Just, Strategy, prop, prop_assert_eq, prop_oneof, proptest};
use sekisho::access_log::hashed;
use sekisho::bucket::Limit;
use sekisho::clock::Clock;
use sekisho::config;
use sekisho::limiter::{Check, Limiter, Outcome};
use sekisho::replay::{self, Line, Replay, Sorted};
use sekisho::rules::{FailurePolicy, Rule, RuleSet};
use sekisho::wall::Rfc3339;
use serde_json::{Value, json};
use support::{HARDLY, Run, Setup, Upstream, eventually, sekisho};
use tempfile::TempDir;

const BEGIN_MS: u64 = 1_700_000_000_000;
const STRICT: &str = r#"[{"tenant_id":"shop-a","route_id":"orders","capacity":2,"refill_per_second":1}]"#;

fn line(after_ms: u64, tenant: &str, route: &str, cost: u32, decision: &str) -> String {
    let time = Rfc3339(BEGIN_MS + after_ms);
    json!({ "time": time, "method": "GET", "route": route, "tenant": tenant, "decision": decision, "cost": cost,
            "status": 200 })
    .to_string()
        + "\n"
}

/// Writes log and rules to a folder and runs the command with them and these arguments.
fn run(log: &str, rules: &str, arguments: &[&str]) -> Run {
    let dir = TempDir::new().unwrap();
    let [log_file, rules_file] = ["access.log", "rules.json"].map(|name| dir.path().join(name));
    fs::write(&log_file, log).unwrap();
    fs::write(&rules_file, rules).unwrap();
    let [log_file, rules_file] = [&log_file, &rules_file].map(|path| path.to_str().unwrap());
    sekisho(&[&["replay", "--log", log_file, "--rules", rules_file], arguments].concat())
}

fn json_of(run: &Run) -> Value {
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {}", run.stdout))
}

#[test]
fn each_tenant_and_route_is_told_with_what_the_rules_would_have_denied_and_when_first() {
    let mut log = String::new();
    for n in 0..5 {
        log += &line(n * 100, "shop-a", "orders", 1, "allowed");
        log += &line(n * 100, "shop-b", "orders", 1, if n == 4 { "denied" } else { "allowed" });
    }
    log += r#"{"time":"2023-11-14T22:13:20.000Z","method":"GET","route":null,"decision":null,"status":404}"#;
    let answer = json_of(&run(&log, STRICT, &["--format", "json"]));
    let counts = ["lines", "unlimited", "bad", "late"].map(|field| answer[field].as_u64());
    assert_eq!(counts, [Some(11), Some(1), Some(0), Some(0)], "{answer}");
    let first = Rfc3339(BEGIN_MS + 200);
    let expected = json!([
        { "tenant": "shop-a", "route": "orders", "requests": 5, "denied_before": 0, "denied": 3, "newly_denied": 3,
          "shadow_denied": 0, "first_denied": first },
        { "tenant": "shop-b", "route": "orders", "requests": 5, "denied_before": 1, "denied": 0, "newly_denied": 0,
          "shadow_denied": 0, "first_denied": null },
    ]);
    assert_eq!(answer["tenants"], expected, "{answer}");
    assert_eq!((&answer["total"]["requests"], &answer["total"]["denied"]), (&json!(10), &json!(3)));

    let table = run(&log, STRICT, &[]);
    assert_eq!(table.code, Some(0), "{}", table.stderr);
    let row = |name: &str| -> Vec<String> {
        let row = table.stdout.lines().find(|line| line.starts_with(name)).unwrap();
        row.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(row("shop-a"), ["shop-a", "orders", "5", "0", "3", "3", &first.to_string()]);
    assert_eq!(row("total"), ["total", "10", "1", "3", "3", &first.to_string()]);
}

#[test]
fn lines_out_of_order_count_as_if_they_were_in_order() {
    let in_order = [
        line(0, "shop-a", "orders", 1, "allowed"),
        line(500, "shop-a", "orders", 1, "allowed"),
        line(1000, "shop-a", "orders", 1, "allowed"),
        line(30_000, "shop-a", "orders", 1, "allowed"),
    ];
    let rules = r#"[{"tenant_id":"*","route_id":"*","capacity":1,"refill_per_second":1}]"#;
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 3, 0, 1]] {
        let log: String = order.iter().map(|&at| in_order[at].as_str()).collect();
        let answer = json_of(&run(&log, rules, &["--format", "json"]));
        assert_eq!((&answer["total"]["denied"], &answer["late"]), (&json!(1), &json!(0)), "{order:?}: {answer}");
        assert_eq!(answer["total"]["first_denied"], json!(Rfc3339(BEGIN_MS + 500)));
    }
    // An hour late is too late.
    let log = line(3_600_000, "shop-a", "orders", 1, "allowed")
        + &line(3_700_000, "shop-a", "orders", 1, "allowed")
        + &in_order[0];
    let late = run(&log, rules, &["--format", "json"]);
    assert_eq!(json_of(&late)["late"], 1);
    assert!(late.stderr.contains("1 requests stand too late"), "{}", late.stderr);
}

#[test]
fn costs_are_those_of_rule_route_and_log_in_this_order() {
    let log: String = (0..10).map(|_| line(0, "shop-a", "orders", 2, "allowed")).collect();
    let rules =
        |cost: &str| format!(r#"[{{"tenant_id":"*","route_id":"*","capacity":10,"refill_per_second":1{cost}}}]"#);
    let denied = |run: Run| json_of(&run)["total"]["denied"].as_u64();
    assert_eq!(denied(run(&log, &rules(""), &["--format", "json"])), Some(5), "the log says 2");
    let dir = TempDir::new().unwrap();
    let config = dir.path().join("sekisho.toml");
    let toml = "[server]\nlisten = [\"127.0.0.1:1\"]\n[limiter]\ndefault_rule = { capacity = 4, refill_per_second = 1 }\n\
                [[route]]\nid = \"orders\"\npath = \"/orders\"\nupstream = \"main\"\ncost = 1\n\
                [upstream.main]\nbuiltin = \"echo\"\n";
    fs::write(&config, toml).unwrap();
    let with_config = ["--format", "json", "-c", config.to_str().unwrap()];
    assert_eq!(denied(run(&log, &rules(""), &with_config)), Some(0), "the route says 1");
    assert_eq!(denied(run(&log, &rules(r#","cost":5"#), &with_config)), Some(8), "the rule says 5");
    assert_eq!(denied(run(&log, "[]", &with_config)), Some(6), "the default rule is the configuration's");
    assert_eq!(denied(run(&log, "[]", &["--format", "json"])), Some(0), "the default rule is the built-in one");
}

#[test]
fn rules_apply_to_hashed_tenants_too_and_those_that_are_named_are_shown_by_name() {
    let of = |tenant: &'static str| {
        (0..5).map(move |_| {
            let text = line(0, "TENANT", "orders", 1, "allowed");
            text.replace(r#""tenant":"TENANT""#, &format!(r#""tenant_sha256":"{}""#, hashed(tenant)))
        })
    };
    let log: String = of("shop-a").chain(of("shop-b")).collect();
    let answer = json_of(&run(&log, STRICT, &["--format", "json"]));
    let rows: Vec<_> =
        answer["tenants"].as_array().unwrap().iter().map(|row| (&row["tenant"], &row["denied"])).collect();
    assert_eq!(rows, [(&json!("shop-a"), &json!(3)), (&json!(hashed("shop-b")), &json!(0))]);
}

#[test]
fn shadow_rules_deny_nothing_and_are_counted() {
    let log: String = (0..5).map(|_| line(0, "shop-a", "orders", 1, "allowed")).collect();
    let rules = STRICT.replace('}', r#","mode":"shadow"}"#);
    let answer = json_of(&run(&log, &rules, &["--format", "json"]));
    assert_eq!((&answer["total"]["denied"], &answer["total"]["shadow_denied"]), (&json!(0), &json!(3)));
}

#[test]
fn bad_lines_are_counted_and_the_first_of_them_named() {
    let bad: String = (0..20).map(|n| format!("garbage {n}\n")).collect();
    let log = line(0, "shop-a", "orders", 1, "allowed") + &bad + &line(1, "shop-a", "orders", 1, "allowed");
    let partly = run(&log, STRICT, &["--format", "json"]);
    let answer = json_of(&partly);
    assert_eq!((&answer["lines"], &answer["bad"], &answer["total"]["requests"]), (&json!(22), &json!(20), &json!(2)));
    assert!(partly.stderr.contains("access.log:2: is no line of an access log"), "{}", partly.stderr);
    assert_eq!(partly.stderr.matches("is no line").count(), 5, "{}", partly.stderr);
    assert!(partly.stderr.contains("20 of 22 lines are bad"), "{}", partly.stderr);

    for (log, rules, why) in [
        (bad.as_str(), STRICT, "holds no request to which a limit applied, of 20 lines"),
        ("", STRICT, "of 0 lines"),
        (&log, "[{}]", "rules.json:1:"),
        (&log, "{", "rules.json:1:"),
        (
            &line(0, "a", "r", 1, "allowed").replace('}', r#","sample":0.5}"#),
            STRICT,
            "access.log:1: the log holds a sample",
        ),
    ] {
        let run = run(log, rules, &[]);
        assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
        assert!(run.stderr.contains(why) && run.stdout.is_empty(), "{why}: {}", run.stderr);
    }
    let missing = sekisho(&["replay", "--log", "/nowhere/access.log", "--rules", "conf/rules.json"]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.stderr.contains("/nowhere/access.log: cannot be read"), "{}", missing.stderr);
}

#[test]
fn progress_is_told_where_it_is_asked_for() {
    let log: String = (0..100_000).map(|n| line(n, "shop-a", "orders", 1, "allowed")).collect();
    let told = run(&log, STRICT, &["--progress"]);
    assert!(told.code == Some(0) && told.stderr.contains("100000 lines, 100 %"), "{}", told.stderr);
    assert_eq!(run(&log, STRICT, &[]).stderr, "");
}

#[tokio::test]
async fn what_a_gateway_denied_is_denied_again_by_the_same_rules() {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("access.log");
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .limit(7, HARDLY)
        .set("access_log", "path", &format!("{:?}", log.display().to_string()))
        .start()
        .await;
    for tenant in ["shop-a", "shop-b", "shop-a"] {
        gateway.spend("/orders", tenant, 10).await;
    }
    let lines = || fs::read_to_string(&log).map_or(0, |text| text.lines().count());
    eventually("all lines", Duration::from_secs(10), || async { (lines() == 30).then_some(()) }).await;
    let rules = gateway.file("rules.json");
    let arguments = ["replay", "--log", log.to_str().unwrap(), "--rules", rules.to_str().unwrap(), "--format", "json"];
    let answer = json_of(&sekisho(&arguments));
    let total = &answer["total"];
    assert_eq!(
        (&total["denied_before"], &total["denied"], &total["newly_denied"]),
        (&json!(16), &json!(16), &json!(0))
    );
}

/// Milliseconds after the begin, tenant, route, cost.
type Asked = (u64, u8, u8, u32);

fn rule() -> impl Strategy<Value = Rule> {
    let id = |letter: char| prop_oneof![Just("*".to_owned()), (0_u8..3).prop_map(move |n| format!("{letter}{n}"))];
    let cost = prop_oneof![Just(None), (1_u32..4).prop_map(std::num::NonZeroU32::new)];
    (id('t'), id('r'), 4_i64..12, 0.1_f64..20.0, cost).prop_map(|(tenant, route, capacity, refill, cost)| Rule {
        cost,
        ..Rule::new(&tenant, &route, Limit::new(capacity, refill).unwrap())
    })
}

proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

    #[test]
    fn denials_are_those_of_the_in_process_limiter_for_the_same_requests_and_times(
        rules in prop::collection::vec(rule(), 0..6),
        asked in prop::collection::vec((0_u64..50_000, 0_u8..4, 0_u8..4, 1_u32..4), 1..300),
    ) {
        let mut named = BTreeMap::new();
        for rule in rules {
            named.insert((rule.tenant_id.clone(), rule.route_id.clone()), rule);
        }
        let settings = config::Limiter::default();
        let set = RuleSet::new(Arc::new(settings.default_rule.clone()), named.into_values());

        let mut expected: BTreeMap<(String, String), u64> = BTreeMap::new();
        let clock = Arc::new(AtomicU64::new(0));
        let store = config::Store { redis: None, timeout: Duration::from_secs(1), key_prefix: "rl".to_owned() };
        let (limiter, _) = Limiter::new(&store, &settings, Clock::manual(Arc::clone(&clock))).unwrap();
        let mut in_order: Vec<Asked> = asked.clone();
        in_order.sort_by_key(|&(after_ms, ..)| after_ms);
        for (after_ms, tenant, route, cost) in in_order {
            clock.store(BEGIN_MS + after_ms, Ordering::Relaxed);
            let (tenant, route): (String, Arc<str>) = (format!("t{tenant}"), format!("r{route}").into());
            let rule = set.resolve(&tenant, &route).enforce;
            let check = Check {
                tenant: &tenant,
                route: &route,
                limit: rule.limit,
                cost: rule.cost.map_or(cost, u32::from),
                on_store_failure: FailurePolicy::Local,
                shadow: false,
                shards: 1,
            };
            let denied = matches!(limiter.decide_at_once(&check).unwrap().outcome, Outcome::Denied { .. });
            *expected.entry((tenant, route.to_string())).or_default() += u64::from(denied);
        }

        let (mut replay, mut sorted) = (Replay::new(set, &[], &settings).unwrap(), Sorted::default());
        for (after_ms, tenant, route, cost) in asked {
            let text = line(after_ms, &format!("t{tenant}"), &format!("r{route}"), cost, "allowed");
            let Ok(Line::Request(request)) = replay::read(text.as_bytes()) else { panic!("{text}") };
            sorted.push(request, |request| replay.request(request));
        }
        sorted.finish(|request| replay.request(request));
        let report = replay.report();
        prop_assert_eq!(report.late, 0);
        let denied: BTreeMap<(String, String), u64> =
            report.tenants.into_iter().map(|row| ((row.tenant, row.route), row.tally.denied)).collect();
        prop_assert_eq!(denied, expected);
    }
}
