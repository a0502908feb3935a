//! Rules from a file: bad ones, changes, damage.

use std::time::Duration;

use crate::support::{Gateway, HARDLY, Setup, Upstream, eventually, redis_url, sekisho};

const BAD: &str = r#"[
  {"tenant_id":"good-one","route_id":"*","capacity":3,"refill_per_second":1},
  {"tenant_id":"bad-zero","route_id":"*","capacity":0,"refill_per_second":1},
  {"tenant_id":"bad-negative","route_id":"*","capacity":-5,"refill_per_second":1},
  {"tenant_id":"bad-text","route_id":"*","capacity":"many","refill_per_second":1},
  {"tenant_id":"bad-large","route_id":"*","capacity":4294967296,"refill_per_second":1},
  {"tenant_id":"bad-fraction","route_id":"*","capacity":1.5,"refill_per_second":1},
  {"tenant_id":"bad-refill","route_id":"*","capacity":5,"refill_per_second":0},
  {"tenant_id":"bad-both","route_id":"*","capacity":5,"refill_per_second":1,"refill":"1/s"},
  {"tenant_id":"bad-neither","route_id":"*","capacity":5},
  {"tenant_id":"bad-unit","route_id":"*","capacity":5,"refill":"5/fortnight"},
  {"tenant_id":"bad-unknown","route_id":"*","capacity":5,"refill_per_second":1,"burst":9},
  {"tenant_id":"bad-policy","route_id":"*","capacity":5,"refill_per_second":1,"on_store_failure":"maybe"},
  {"tenant_id":"bad-cost","route_id":"*","capacity":5,"refill_per_second":1,"cost":6},
  {"tenant_id":"bad-shards","route_id":"*","capacity":5,"refill_per_second":1,"shards":2},
  {"tenant_id":"bad-slow","route_id":"*","capacity":1000000,"refill":"1/day"},
  {"tenant_id":"","route_id":"bad-empty","capacity":5,"refill_per_second":1},
  {"tenant_id":"bad-long","route_id":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","capacity":5,"refill_per_second":1},
  {"tenant_id":"bad-twice","route_id":"*","capacity":5,"refill_per_second":1},
  {"tenant_id":"bad-twice","route_id":"*","capacity":6,"refill_per_second":1},
  {"tenant_id":"good-two","route_id":"*","capacity":4,"refill":"100/min"}
]"#;

const NAMES: &[&str] = &[
    "bad-zero",
    "bad-negative",
    "bad-text",
    "bad-large",
    "bad-fraction",
    "bad-refill",
    "bad-both",
    "bad-neither",
    "bad-unit",
    "bad-unknown",
    "bad-policy",
    "bad-cost",
    "bad-shards",
    "bad-slow",
    "bad-empty",
    "bad-long",
    "bad-twice",
];

async fn limit_of(gateway: &Gateway, tenant: &str) -> u64 {
    gateway.get("/orders", tenant).await.number("X-RateLimit-Limit")
}

async fn limit_becomes(gateway: &Gateway, tenant: &str, limit: u64) {
    eventually(&format!("the limit of {tenant} is {limit}"), Duration::from_secs(5), || async {
        (limit_of(gateway, tenant).await == limit).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_bad_rule_is_named_and_left_out_and_the_others_work() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .rules(BAD)
        .set("limiter", "default_rule", "{ capacity = 77, refill_per_second = 1 }")
        .start()
        .await;
    assert_eq!(limit_of(&gateway, "good-one").await, 3);
    assert_eq!(limit_of(&gateway, "good-two").await, 4);
    let status = gateway.status().await.to_string();
    let log = gateway.log();
    for name in NAMES {
        assert_eq!(limit_of(&gateway, name).await, 77, "{name} falls through to the default");
        assert!(log.contains(name), "{name} is not named in the log");
        assert!(status.contains(name), "{name} is not named in /api/v1/status: {status}");
    }
    assert_eq!(gateway.metric("sekisho_rules_loaded", &[]).await, 2.0);
    assert!(gateway.metric("sekisho_rules_rejected", &[]).await >= NAMES.len() as f64);
}

#[test]
fn check_names_every_bad_rule_by_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = ([127, 0, 0, 1], 9).into();
    let config = Setup::new(nobody).rules(BAD).write(dir.path(), nobody, ([127, 0, 0, 1], 10).into());
    let run = sekisho(&["check", "-c", config.to_str().unwrap()]);
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    let said = format!("{}{}", run.stdout, run.stderr);
    for (index, line) in BAD.lines().enumerate().filter(|(_, line)| line.contains("bad-")) {
        let place = format!("rules.json:{}:", index + 1);
        // Of two that contradict each other, naming one place is enough.
        if line.contains("bad-twice") {
            assert!(said.contains("bad-twice"), "{said}");
        } else {
            assert!(said.lines().any(|l| l.contains(&place)), "{place} ({line}) is not named:\n{said}");
        }
    }
    assert!(!said.contains("good-one") && !said.contains("good-two"), "{said}");
}

#[tokio::test]
async fn a_changed_rule_that_is_bad_keeps_its_last_good_version() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .rules(
            r#"[{"tenant_id":"a","route_id":"*","capacity":3,"refill_per_second":1},
                   {"tenant_id":"b","route_id":"*","capacity":4,"refill_per_second":1}]"#,
        )
        .start()
        .await;
    gateway.write_rules(
        r#"[{"tenant_id":"a","route_id":"*","capacity":0,"refill_per_second":1},
            {"tenant_id":"b","route_id":"*","capacity":5,"refill_per_second":1}]"#,
    );
    limit_becomes(&gateway, "b", 5).await;
    assert_eq!(limit_of(&gateway, "a").await, 3);
    gateway.write_rules(
        r#"[{"tenant_id":"a","route_id":"*","capacity":8,"refill_per_second":1},
            {"tenant_id":"a","route_id":"*","capacity":9,"refill_per_second":1},
            {"tenant_id":"b","route_id":"*","capacity":6,"refill_per_second":1}]"#,
    );
    limit_becomes(&gateway, "b", 6).await;
    assert_eq!(limit_of(&gateway, "a").await, 3, "of duplicates none changes anything");
}

#[tokio::test]
async fn a_file_that_is_truncated_emptied_or_gone_changes_nothing() {
    let upstream = Upstream::normal().await;
    let rules = r#"[{"tenant_id":"*","route_id":"*","capacity":2,"refill_per_second":0.001}]"#;
    let gateway = Setup::new(upstream.address)
        .set("limiter", "default_rule", "{ capacity = 1000, refill_per_second = 1000 }")
        .set("rules", "refresh", "\"100ms\"")
        .rules(rules)
        .start()
        .await;
    gateway.spend("/orders", "shop-a", 2).await;
    let mut faults = 0;
    // A rule that lost its name may be any rule: then none of those in force goes.
    let misspelt = rules.replace("tenant_id", "tenantid");
    for damage in ["", "[", &rules[..40], "{}", "null", "\"[]\"", "not JSON", "\u{feff}", "[[]", "[1]", &misspelt] {
        gateway.write_rules(damage);
        let log = gateway.log().len();
        for _ in 0..10 {
            let answer = gateway.get("/orders", "shop-a").await;
            assert_eq!(answer.status, 429, "{damage:?}: {answer:?}");
            assert_eq!(answer.number("X-RateLimit-Limit"), 2, "{damage:?}");
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        if gateway.log()[log..].contains("rules.json") {
            faults += 1;
        }
    }
    std::fs::remove_file(gateway.file("rules.json")).unwrap();
    for _ in 0..10 {
        assert_eq!(gateway.get("/orders", "shop-a").await.status, 429, "without the file");
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    assert!(faults >= 1, "the fault is not named:\n{}", gateway.log());
    gateway.write_rules(r#"[{"tenant_id":"*","route_id":"*","capacity":9,"refill_per_second":1}]"#);
    limit_becomes(&gateway, "shop-a", 9).await;
}

#[tokio::test]
async fn rewriting_in_place_is_never_seen_half_done() {
    let upstream = Upstream::normal().await;
    let old = r#"[{"tenant_id":"*","route_id":"*","capacity":2,"refill_per_second":0.001}]"#;
    let new = r#"[{"tenant_id":"*","route_id":"*","capacity":6,"refill_per_second":0.001}]"#;
    let gateway = Setup::new(upstream.address).set("rules", "refresh", "\"100ms\"").rules(old).start().await;
    let file = gateway.file("rules.json");
    for end in [0, 20, 60] {
        std::fs::write(&file, &new[..end]).unwrap();
        for _ in 0..8 {
            assert_eq!(limit_of(&gateway, "shop-a").await, 2, "after {end} bytes");
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }
    std::fs::write(&file, new).unwrap();
    limit_becomes(&gateway, "shop-a", 6).await;
}

#[tokio::test]
async fn an_empty_list_is_a_choice_and_the_default_rule_applies() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .set("limiter", "default_rule", "{ capacity = 7, refill_per_second = 1 }")
        .limit(3, 1.0)
        .start()
        .await;
    assert_eq!(limit_of(&gateway, "shop-a").await, 3);
    gateway.write_rules("[]");
    limit_becomes(&gateway, "shop-a", 7).await;
}

#[tokio::test]
async fn a_raised_limit_admits_an_exhausted_key_at_once_on_every_gateway() {
    let upstream = Upstream::normal().await;
    let gateways = Setup::new(upstream.address).redis(&redis_url()).limit(3, HARDLY).start_many(2).await;
    let answers = gateways[0].spend("/orders", "shop-a", 4).await;
    assert_eq!(answers[3].status, 429);
    assert_eq!(gateways[1].get("/orders", "shop-a").await.status, 429);
    for gateway in &gateways {
        gateway.write_rules(r#"[{"tenant_id":"*","route_id":"*","capacity":30,"refill_per_second":20}]"#);
    }
    for gateway in &gateways {
        eventually("admitted at the new rate", Duration::from_secs(2), || async {
            let answer = gateway.get("/orders", "shop-a").await;
            (answer.status == 200 && answer.number("X-RateLimit-Limit") == 30).then_some(())
        })
        .await;
    }
    for gateway in &gateways {
        gateway.write_rules(r#"[{"tenant_id":"*","route_id":"*","capacity":2,"refill_per_second":0.001}]"#);
        limit_becomes(gateway, "other", 2).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let after: Vec<u16> = gateways[0].spend("/orders", "shop-a", 4).await.iter().map(|a| a.status).collect();
    assert!(after.iter().filter(|s| **s == 200).count() <= 2, "tokens are clamped to the lowered capacity: {after:?}");
}

#[tokio::test]
async fn an_unchanged_rule_keeps_its_bucket_through_reloads() {
    let upstream = Upstream::normal().await;
    for setup in [Setup::new(upstream.address), Setup::new(upstream.address).redis(&redis_url())] {
        let gateway = setup.set("rules", "refresh", "\"50ms\"").limit(3, HARDLY).start().await;
        gateway.spend("/orders", "shop-a", 3).await;
        for n in 0..10 {
            gateway.write_rules(&format!(
                r#"[{{"tenant_id":"*","route_id":"*","capacity":3,"refill_per_second":0.001}},
                    {{"tenant_id":"other","route_id":"*","capacity":{},"refill_per_second":1}}]"#,
                10 + n
            ));
            limit_becomes(&gateway, "other", 10 + n).await;
            assert_eq!(gateway.get("/orders", "shop-a").await.status, 429);
        }
    }
}

#[tokio::test]
async fn sighup_reads_the_rules_at_once() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).set("rules", "refresh", "\"1h\"").limit(3, 1.0).start().await;
    gateway.write_rules(r#"[{"tenant_id":"*","route_id":"*","capacity":8,"refill_per_second":1}]"#);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(limit_of(&gateway, "shop-a").await, 3);
    gateway.signal("HUP");
    limit_becomes(&gateway, "shop-a", 8).await;
}

#[tokio::test]
async fn a_disabled_or_shadow_rule_leaves_the_decision_to_the_next() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .rules(
            r#"[{"tenant_id":"off","route_id":"orders","capacity":1,"refill_per_second":0.001,"enabled":false},
                {"tenant_id":"shadow","route_id":"orders","capacity":1,"refill_per_second":0.001,"mode":"shadow"},
                {"tenant_id":"*","route_id":"*","capacity":4,"refill_per_second":0.001}]"#,
        )
        .start()
        .await;
    for tenant in ["off", "shadow"] {
        let answers = gateway.spend("/orders", tenant, 5).await;
        let seen: Vec<_> = answers.iter().map(|a| (a.status, a.number("X-RateLimit-Limit"))).collect();
        assert_eq!(seen, [(200, 4), (200, 4), (200, 4), (200, 4), (429, 4)], "{tenant}");
    }
    assert!(gateway.metric("sekisho_decisions_total", &["outcome=\"shadow_denied\""]).await >= 3.0);
}

#[tokio::test]
async fn a_shadow_rule_beside_the_enforcing_one_is_counted_and_denies_nothing() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .rules(
            r#"[{"tenant_id":"shop-a","route_id":"orders","capacity":4,"refill_per_second":0.001},
                {"tenant_id":"shop-a","route_id":"orders","capacity":1,"refill_per_second":0.001,"mode":"shadow"}]"#,
        )
        .start()
        .await;
    let answers = gateway.spend("/orders", "shop-a", 5).await;
    let seen: Vec<_> = answers.iter().map(|a| (a.status, a.number("X-RateLimit-Limit"))).collect();
    assert_eq!(seen, [(200, 4), (200, 4), (200, 4), (200, 4), (429, 4)]);
    assert_eq!(gateway.metric("sekisho_decisions_total", &["outcome=\"shadow_denied\""]).await, 4.0);
    assert_eq!(gateway.metric("sekisho_rules_loaded", &[]).await, 2.0);
}
