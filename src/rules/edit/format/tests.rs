//! Formats lose nothing, and name what is wrong with its line.

use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::bucket::Limit;
use crate::rule::FailurePolicy;

fn file(name: &str, content: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    (folder, path)
}

fn faults(name: &str, content: &str) -> Vec<String> {
    let (folder, path) = file(name, content.as_bytes());
    let faults = read(&path, Format::of(&path).unwrap()).unwrap_err();
    let prefix = format!("{}/", folder.path().display());
    faults.into_iter().map(|fault| fault.replace(&prefix, "")).collect()
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let id = || prop_oneof![Just("*".to_owned()), "[^\\p{Cc}]{1,64}"];
    let refill = prop_oneof![1e-3..1e6_f64, (1..1000u32).prop_map(f64::from), Just(10_000.0 / 86_400.0)];
    let policy =
        prop::option::of(prop::sample::select(vec![FailurePolicy::Local, FailurePolicy::Open, FailurePolicy::Closed]));
    let comment = prop::option::of(prop_oneof!["[^\\x00]{1,80}", "[a,;\"' \r\n\t=]{1,20}", "\\PC{1,20}"]);
    (id(), id(), 100..30_000i64, refill, prop::option::of(1..5u32), policy, 1..=5u8, any::<(bool, bool)>(), comment)
        .prop_map(|(tenant, route, capacity, refill, cost, on_store_failure, shards, (shadow, enabled), comment)| {
            Rule {
                cost: cost.and_then(NonZeroU32::new),
                on_store_failure,
                shards,
                mode: if shadow { Mode::Shadow } else { Mode::Enforce },
                enabled,
                comment: comment.map(Into::into),
                ..Rule::new(&tenant, &route, Limit::new(capacity, refill).unwrap())
            }
        })
}

proptest! {
    #[test]
    fn what_is_written_reads_back_the_same(rules in prop::collection::vec(any_rule(), 0..8)) {
        let mut rules = rules;
        rules.sort_by_cached_key(RuleId::of);
        rules.dedup_by_key(|rule| RuleId::of(rule));
        for (format, name) in [(Format::Json, "rules.json"), (Format::Csv, "rules.csv")] {
            let mut text = Vec::new();
            write(&mut text, format, &rules).unwrap();
            let (_folder, path) = file(name, &text);
            prop_assert_eq!(read(&path, format), Ok(rules.clone()), "{}", String::from_utf8_lossy(&text));
        }
    }
}

#[test]
fn csv_takes_fields_in_any_order_and_empty_values_as_defaults() {
    let text = "\u{feff}capacity,refill,route_id,tenant_id,enabled,comment\r\n5,30/min,r,a,FALSE,\"x, \"\"y\"\"\"\r\n6,1/s,r,b,,\r\n";
    let (_folder, path) = file("rules.CSV", text.as_bytes());
    let rules = read(&path, Format::of(&path).unwrap()).unwrap();
    let first =
        Rule { enabled: false, comment: Some("x, \"y\"".into()), ..Rule::new("a", "r", Limit::new(5, 0.5).unwrap()) };
    assert_eq!(rules, [first, Rule::new("b", "r", Limit::new(6, 1.0).unwrap())]);
}

#[test]
fn every_bad_line_of_a_csv_is_named() {
    let text = "tenant_id,route_id,capacity,refill_per_second,comment\na,r,0,1,\na,r,5,1,\"two\nlines\"\n,r,5,1,\nb,r,5\na,r,6,1,\n";
    assert_eq!(
        faults("rules.csv", text),
        [
            "rules.csv:2: rule a/r: capacity is 0, allowed are integers from 1 to 2147483647",
            "rules.csv:5: rule ?/r: tenant_id is missing, allowed are 1 to 64 characters, none of them a control character",
            "rules.csv:6: 3 values under 5 names",
            "rules.csv:7: rule a/r: is there more than once, first on line 3",
        ]
    );
    assert!(
        faults("rules.csv", "tenant;route\n")[0]
            .starts_with("rules.csv:1: \"tenant;route\" is no field of a rule, allowed are")
    );
    assert!(faults("rules.csv", "cost,cost\n")[0].starts_with("rules.csv:1: cost is there more than once"));
    assert!(faults("rules.csv", "")[0].starts_with("rules.csv:1: the names of the fields are missing"));
}

#[test]
fn every_bad_entry_of_a_json_file_is_named() {
    let text = "[{\"tenant_id\": \"a\", \"route_id\": \"r\", \"capacity\": 5, \"refill\": \"1/s\", \"burst\": 1},\n17,\n\
                {\"tenant_id\": \"b\", \"route_id\": \"r\", \"capacity\": 5, \"refill\": \"1/s\", \"comment\": \"\\u0000\"}]";
    let faults = faults("rules.json", text);
    assert!(faults[0].starts_with("rules.json:1: rule a/r: unknown field `burst`"), "{faults:?}");
    assert_eq!(faults[1], "rules.json:2: rule ?/?: 17 is not a rule, allowed are JSON objects");
    assert!(faults[2].starts_with("rules.json:3: rule b/r: comment contains the character U+0000"), "{faults:?}");
}

#[test]
fn a_rule_of_a_request_need_not_repeat_its_name_but_must_not_contradict() {
    let id = RuleId::new("a", "r", Mode::Shadow).unwrap();
    let limit = r#""capacity": 5, "refill_per_second": 1"#;
    let expected = Rule { mode: Mode::Shadow, ..Rule::new("a", "r", Limit::new(5, 1.0).unwrap()) };
    for names in ["", r#""tenant_id": "a", "#, r#""route_id": "r", "mode": "shadow", "#, r#""mode": null, "#] {
        assert_eq!(from_json(&format!(" {{{names}{limit}}}\n"), &id), Ok(expected.clone()), "{names}");
    }
    for (names, fault) in [
        (r#""tenant_id": "b", "#, "tenant_id is \"b\", the path says \"a\""),
        (r#""route_id": "x", "#, "route_id is \"x\", the path says \"r\""),
        (r#""mode": "enforce", "#, "mode is \"enforce\", the query says \"shadow\""),
        (r#""tenant_id": 5, "#, "tenant_id is 5, allowed is text"),
        (r#""cost": 9, "#, "cost is 9, allowed is at most the capacity, 5"),
    ] {
        assert_eq!(from_json(&format!("{{{names}{limit}}}"), &id), Err(fault.to_owned()));
    }
    assert!(from_json("[]", &id).is_err() && from_json("", &id).is_err());
}
