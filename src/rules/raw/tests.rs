//! What a rule may say, and what is said about it where it says something else.

use super::*;

fn fault(json: &str) -> String {
    let entry = Entry::from_json(json);
    for (field, id) in [("tenant_id", &entry.tenant_id), ("route_id", &entry.route_id)] {
        if let (Err(problem), Ok(_)) = (check_id(field, id.as_deref()), &entry.terms) {
            return problem;
        }
    }
    entry.terms.expect_err(json)
}

fn with(fields: &str) -> String {
    format!(r#"{{"tenant_id": "a", "route_id": "b", {fields}}}"#)
}

#[test]
fn reads_every_field() {
    let entry = Entry::from_json(
        r#"{"tenant_id": "caf\u00e9", "route_id": "*", "capacity": 200, "refill": "30/min", "cost": 3,
            "on_store_failure": "closed", "shards": 1, "mode": "shadow", "enabled": false, "comment": "why"}"#,
    );
    assert_eq!(entry.tenant_id.as_deref(), Some("café"));
    let rule = entry.terms.unwrap().into_rule("café".into(), "*".into());
    assert_eq!(rule.limit, Limit::new(200, 0.5).unwrap());
    assert_eq!(rule.cost, NonZeroU32::new(3));
    assert_eq!(rule.on_store_failure, Some(FailurePolicy::Closed));
    assert_eq!((rule.shards, rule.mode, rule.enabled), (1, Mode::Shadow, false));
    assert_eq!(rule.comment.as_deref(), Some("why"));
}

#[test]
fn absent_and_null_fields_take_their_defaults() {
    let json = with(r#""capacity": 2, "refill_per_second": 0.1, "cost": null, "comment": null"#);
    let rule = Entry::from_json(&json).terms.unwrap().into_rule("a".into(), "b".into());
    assert_eq!((rule.cost, rule.on_store_failure, rule.comment), (None, None, None));
    assert_eq!((rule.shards, rule.mode, rule.enabled), (1, Mode::Enforce, true));
}

#[test]
fn every_fault_says_what_is_wrong_and_what_is_allowed() {
    let integers = "allowed are integers from 1 to 2147483647";
    for (fields, expected) in [
        (r#""capacity": 0, "refill_per_second": 1"#, format!("capacity is 0, {integers}")),
        (r#""capacity": -5, "refill_per_second": 1"#, format!("capacity is -5, {integers}")),
        (r#""capacity": "9", "refill_per_second": 1"#, format!("capacity is \"9\", {integers}")),
        (r#""capacity": 2147483648, "refill_per_second": 1"#, format!("capacity is 2147483648, {integers}")),
        (
            r#""capacity": 99999999999999999999, "refill_per_second": 1"#,
            format!("capacity is 99999999999999999999, {integers}"),
        ),
        (r#""capacity": 2.5, "refill_per_second": 1"#, format!("capacity is 2.5, {integers}")),
        (r#""capacity": true, "refill_per_second": 1"#, format!("capacity is true, {integers}")),
        (r#""refill_per_second": 1"#, format!("capacity is missing, {integers}")),
        (
            r#""capacity": 9, "refill_per_second": 0"#,
            "refill is 0 tokens per second, allowed is more than 0 up to 2147483647".into(),
        ),
        (
            r#""capacity": 9, "refill_per_second": -1"#,
            "refill is -1 tokens per second, allowed is more than 0 up to 2147483647".into(),
        ),
        (
            r#""capacity": 9, "refill_per_second": "1""#,
            "refill_per_second is \"1\", allowed are numbers greater than 0 up to 2147483647".into(),
        ),
        (
            r#""capacity": 9, "refill": "1/fortnight""#,
            "\"1/fortnight\" is not a refill, allowed are \"100/s\", \"100/min\", \"5000/h\", \"10000/day\"".into(),
        ),
        (r#""capacity": 9, "refill": 5"#, "refill is 5, allowed is text".into()),
        (r#""capacity": 9"#, "neither refill_per_second nor refill is given, allowed is exactly one of them".into()),
        (
            r#""capacity": 9, "refill_per_second": 1, "refill": "1/s""#,
            "both refill_per_second and refill are given, allowed is exactly one of them".into(),
        ),
        (
            r#""capacity": 9, "refill_per_second": 1, "cost": 10"#,
            "cost is 10, allowed is at most the capacity, 9".into(),
        ),
        (r#""capacity": 9, "refill_per_second": 1, "cost": 0"#, format!("cost is 0, {integers}")),
        (
            r#""capacity": 9, "refill_per_second": 1, "shards": 0"#,
            "shards is 0, allowed are integers from 1 to 100".into(),
        ),
        (
            r#""capacity": 9, "refill_per_second": 1, "shards": 4"#,
            "shards is 4: a shard holds at least 20 tokens, allowed are integers from 1 to 1".into(),
        ),
        (
            r#""capacity": 9, "refill_per_second": 1, "mode": "off""#,
            "mode is \"off\", allowed are \"enforce\", \"shadow\"".into(),
        ),
        (
            r#""capacity": 9, "refill_per_second": 1, "on_store_failure": "panic""#,
            "on_store_failure is \"panic\", allowed are \"local\", \"open\", \"closed\"".into(),
        ),
        (
            r#""capacity": 9, "refill_per_second": 1, "enabled": "yes""#,
            "enabled is \"yes\", allowed are true, false".into(),
        ),
    ] {
        assert_eq!(fault(&with(fields)), expected, "{fields}");
    }
}

#[test]
fn a_refill_that_takes_longer_than_a_year_is_refused() {
    assert!(fault(&with(r#""capacity": 2147483647, "refill_per_second": 1"#)).contains("longer than a year"));
}

#[test]
fn a_misspelt_field_is_named_and_the_rule_too() {
    let json = with(r#""capasity": 5, "refill_per_second": 1"#);
    let entry = Entry::from_json(&json);
    assert_eq!((entry.tenant_id.as_deref(), entry.route_id.as_deref()), (Some("a"), Some("b")));
    let fault = entry.terms.unwrap_err();
    assert!(fault.starts_with("unknown field `capasity`, expected one of"), "{fault}");
    assert!(!fault.contains("line"), "{fault}");
}

#[test]
fn ids_are_checked() {
    let terms = r#""capacity": 5, "refill_per_second": 1"#;
    for (ids, expected) in [
        (r#""route_id": "b""#, "tenant_id is missing"),
        (r#""tenant_id": "", "route_id": "b""#, "tenant_id is empty"),
        (r#""tenant_id": "a\u0007", "route_id": "b""#, "tenant_id contains control characters"),
        (r#""tenant_id": 5, "route_id": "b""#, "tenant_id is 5, allowed is text"),
    ] {
        let fault = fault(&format!("{{{ids}, {terms}}}"));
        assert!(fault.starts_with(expected), "{ids}: {fault}");
    }
    assert!(check_id("route_id", Some(&"é".repeat(64))).is_ok());
    assert!(check_id("route_id", Some(&"é".repeat(65))).unwrap_err().starts_with("route_id has 65 characters"));
}

#[test]
fn what_is_no_object_is_a_fault() {
    for json in ["5", "null", "[]", r#""text""#] {
        let fault = Entry::from_json(json).terms.unwrap_err();
        assert_eq!(fault, format!("{} is not a rule, allowed are JSON objects", shown(json)));
    }
}

#[test]
fn messages_stay_on_one_short_line() {
    let fault = fault(&with(&format!(r#""capacity": ["{}"], "refill_per_second": 1"#, "x\n".repeat(500))));
    assert!(fault.len() < 250 && !fault.contains('\n'), "{fault}");
}
