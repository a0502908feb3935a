//! What becomes of entries good, bad, doubled and nameless.

use super::*;
use crate::rules::Source;

fn empty() -> Arc<RuleSet> {
    let default = Entry::from_json(r#"{"capacity": 1, "refill_per_second": 1}"#).terms.unwrap();
    Arc::new(RuleSet::new(Arc::new(default.into_rule("*".into(), "*".into())), []))
}

fn merge(in_force: &Arc<RuleSet>, entries: &[&str]) -> (Arc<RuleSet>, Vec<String>) {
    let mut merge = Merge::new(Arc::clone(in_force), Rejected::default());
    for (index, entry) in entries.iter().enumerate() {
        merge.add(Place::Line("rules.json", index + 1), Entry::from_json(entry));
    }
    let merged = merge.finish();
    assert_eq!(merged.rejected.total, merged.rejected.faults.len());
    (Arc::new(merged.set), merged.rejected.faults)
}

fn rule(tenant: &str, capacity: i64) -> String {
    format!(r#"{{"tenant_id": "{tenant}", "route_id": "r", "capacity": {capacity}, "refill_per_second": 1}}"#)
}

fn capacity(set: &RuleSet, tenant: &str) -> Option<u32> {
    set.get(tenant, "r", Mode::Enforce).map(|rule: &Arc<Rule>| rule.limit.capacity())
}

#[test]
fn a_new_invalid_rule_is_named_and_left_out_and_others_load() {
    let (set, faults) = merge(&empty(), &[&rule("a", 5), &rule("b", 0), &rule("c", 7)]);
    assert_eq!((capacity(&set, "a"), capacity(&set, "b"), capacity(&set, "c")), (Some(5), None, Some(7)));
    let expected = "rules.json:2: rule b/r: capacity is 0, allowed are integers from 1 to 2147483647";
    assert_eq!(faults, [expected]);
}

#[test]
fn a_changed_invalid_rule_keeps_its_last_good_version() {
    let (before, _) = merge(&empty(), &[&rule("a", 5), &rule("b", 6)]);
    let (after, faults) = merge(&before, &[&rule("a", -1), &rule("b", 7)]);
    assert_eq!((capacity(&after, "a"), capacity(&after, "b")), (Some(5), Some(7)));
    assert_eq!(faults.len(), 1);
    let (again, _) = merge(&after, &[&rule("a", -1), &rule("b", 7)]);
    assert_eq!(capacity(&again, "a"), Some(5));
}

#[test]
fn of_duplicates_none_changes_anything() {
    let (before, _) = merge(&empty(), &[&rule("a", 5)]);
    let [a6, a7, n1, n2, bad] = [rule("a", 6), rule("a", 7), rule("new", 1), rule("new", 2), rule("new", 0)];
    for order in [[&a6, &a7, &n1, &n2, &bad], [&bad, &n1, &a7, &n2, &a6], [&n2, &bad, &n1, &a6, &a7]] {
        let (after, faults) = merge(&before, &order.map(String::as_str));
        assert_eq!((capacity(&after, "a"), capacity(&after, "new")), (Some(5), None));
        assert_eq!(faults.iter().filter(|fault| fault.contains("more than once")).count(), 3, "{faults:?}");
    }
}

#[test]
fn a_rule_that_is_gone_from_the_source_is_gone() {
    let (before, _) = merge(&empty(), &[&rule("a", 5), &rule("b", 6)]);
    let (after, _) = merge(&before, &[&rule("b", 6)]);
    assert_eq!((capacity(&after, "a"), after.len()), (None, 1));
}

#[test]
fn while_an_entry_may_be_any_rule_no_rule_goes_away() {
    let (before, _) = merge(&empty(), &[&rule("a", 5), &rule("b", 6)]);
    for anonymous in ["1", "{}", r#"{"route_id": "r", "capacity": 5, "refill_per_second": 1}"#] {
        let (after, faults) = merge(&before, &[&rule("b", 7), anonymous]);
        assert_eq!((capacity(&after, "a"), capacity(&after, "b"), faults.len()), (Some(5), Some(7), 1));
    }
    let (after, _) = merge(&before, &[&rule("b", 7), &rule("", 1)]);
    assert_eq!(capacity(&after, "a"), None, "an id that no rule can have stands for no rule in force");
}

#[test]
fn unchanged_rules_keep_their_allocation_and_new_ones_share_names() {
    let (before, _) = merge(&empty(), &[&rule("a", 5), &rule("b", 6)]);
    let (after, _) = merge(&before, &[&rule("a", 5), &rule("b", 7)]);
    assert!(Arc::ptr_eq(before.get("a", "r", Mode::Enforce).unwrap(), after.get("a", "r", Mode::Enforce).unwrap()));
    assert!(!Arc::ptr_eq(before.get("b", "r", Mode::Enforce).unwrap(), after.get("b", "r", Mode::Enforce).unwrap()));
    assert!(Arc::ptr_eq(
        &before.get("a", "r", Mode::Enforce).unwrap().route_id,
        &after.get("b", "r", Mode::Enforce).unwrap().route_id
    ));
    assert!(!after.same_as(&before));
    assert!(merge(&after, &[&rule("b", 7), &rule("a", 5)]).0.same_as(&after));
}

#[test]
fn an_entry_without_a_usable_id_is_named_as_far_as_it_can_be() {
    let (_, faults) = merge(
        &empty(),
        &[
            r#"{"route_id": "r", "capacity": 5, "refill_per_second": 1}"#,
            r#"{"tenant_id": "", "route_id": "r", "capacity": 5, "refill_per_second": 1}"#,
            r#"{"tenant_id": "a\nb", "route_id": "r", "capacity": 5, "refill_per_second": 1}"#,
            "17",
        ],
    );
    assert!(faults[0].starts_with("rules.json:1: rule ?/r: tenant_id is missing"), "{faults:?}");
    assert!(faults[1].starts_with("rules.json:2: rule /r: tenant_id is empty"), "{faults:?}");
    assert!(faults[2].starts_with(r"rules.json:3: rule a\nb/r: tenant_id contains control"), "{faults:?}");
    assert_eq!(faults[3], "rules.json:4: rule ?/?: 17 is not a rule, allowed are JSON objects");
}

fn shadow(tenant: &str, capacity: i64) -> String {
    rule(tenant, capacity).replace('}', r#", "mode": "shadow"}"#)
}

fn shadow_capacity(set: &RuleSet, tenant: &str) -> Option<u32> {
    set.get(tenant, "r", Mode::Shadow).map(|rule| rule.limit.capacity())
}

#[test]
fn a_shadow_rule_stands_beside_the_enforcing_one_and_fails_alone() {
    let (before, faults) = merge(&empty(), &[&rule("a", 5), &shadow("a", 6)]);
    assert_eq!((capacity(&before, "a"), shadow_capacity(&before, "a"), before.len()), (Some(5), Some(6), 2));
    assert_eq!(faults, [] as [String; 0]);
    let (after, faults) = merge(&before, &[&rule("a", 7), &shadow("a", 0)]);
    assert_eq!((capacity(&after, "a"), shadow_capacity(&after, "a"), faults.len()), (Some(7), Some(6), 1));
    let (after, faults) = merge(&before, &[&rule("a", 7), &shadow("a", 8), &shadow("a", 9)]);
    assert_eq!((capacity(&after, "a"), shadow_capacity(&after, "a"), faults.len()), (Some(7), Some(6), 1));
    let (after, _) = merge(&before, &[&shadow("a", 6)]);
    assert_eq!((capacity(&after, "a"), shadow_capacity(&after, "a"), after.len()), (None, Some(6), 1));
}

#[test]
fn while_an_entry_may_be_in_either_mode_no_rule_of_its_pair_goes_away() {
    let (before, _) = merge(&empty(), &[&rule("a", 5), &shadow("a", 6), &rule("b", 7)]);
    let unclear = rule("a", 9).replace('}', r#", "mode": "off"}"#);
    let (after, faults) = merge(&before, &[&unclear, &rule("a", 8)]);
    assert_eq!((capacity(&after, "a"), shadow_capacity(&after, "a"), faults.len()), (Some(8), Some(6), 1));
    assert_eq!(capacity(&after, "b"), None);
}

fn pairs(tenants: &[&str]) -> Pairs {
    tenants.iter().map(|tenant| ((*tenant).into(), "r".into())).collect()
}

#[test]
fn some_pairs_read_anew_leave_the_others_and_their_faults_alone() {
    let before = merge(&empty(), &[&rule("a", 5), &shadow("a", 6), &rule("b", 7), &rule("c", 8)]).0;
    let (before, rejected) = {
        let mut merge = Merge::new(before, Rejected::default());
        for entry in [rule("a", 0), rule("b", 0), rule("c", 8), rule("gone", 0)] {
            merge.add(Place::Row, Entry::from_json(&entry));
        }
        let Merged { set, rejected } = merge.finish();
        (Arc::new(set), rejected)
    };
    assert_eq!((rejected.total, shadow_capacity(&before, "a")), (3, None));
    let mut merge = Merge::of_pairs(Arc::clone(&before), rejected, &pairs(&["a", "c", "new", "gone"]));
    for entry in [rule("a", 15), shadow("a", 16), rule("new", 0)] {
        merge.add(Place::Row, Entry::from_json(&entry));
    }
    let Merged { set, rejected } = merge.finish();
    assert_eq!((capacity(&set, "a"), shadow_capacity(&set, "a"), capacity(&set, "b")), (Some(15), Some(16), Some(7)));
    assert_eq!((capacity(&set, "c"), capacity(&set, "new"), set.len()), (None, None, 3));
    assert!(Arc::ptr_eq(set.get("b", "r", Mode::Enforce).unwrap(), before.get("b", "r", Mode::Enforce).unwrap()));
    assert_eq!(rejected.total, 2);
    assert!(rejected.faults[0].contains("b/r") && rejected.faults[1].contains("new/r"), "{rejected:?}");
}

#[test]
fn a_pair_read_anew_that_is_bad_keeps_its_last_good_version() {
    let (before, _) = merge(&empty(), &[&rule("a", 5)]);
    let mut merge = Merge::of_pairs(Arc::clone(&before), Rejected::default(), &pairs(&["a"]));
    merge.add(Place::Row, Entry::from_json(&rule("a", -1)));
    let Merged { set, rejected } = merge.finish();
    assert_eq!((capacity(&set, "a"), rejected.total), (Some(5), 1));
    assert!(set.same_as(&before));
}

fn put(json: &str) -> Told {
    Told::Put { source: Source::Kafka, place: "kafka rules[0]@17".into(), json: json.into() }
}

fn delete(tenant: &str, mode: Option<Mode>) -> Told {
    let place = "kafka rules[0]@18".into();
    Told::Delete { source: Source::Kafka, place, tenant_id: tenant.into(), route_id: "r".into(), mode }
}

#[test]
fn what_is_told_applies_in_its_order_and_what_is_bad_is_named_until_it_is_good() {
    let (before, _) = merge(&empty(), &[&rule("a", 5), &shadow("a", 6), &rule("b", 7)]);
    let mut merge = Merge::of_changes(before, Rejected::default());
    for told in [put(&rule("a", 8)), put(&rule("a", 9)), put(&rule("b", 0)), delete("a", Some(Mode::Shadow))] {
        let bad = matches!(&told, Told::Put { json, .. } if *json == rule("b", 0));
        assert_eq!(merge.tell(&told) == Heard::Bad, bad);
    }
    let nobody = merge.tell(&put(r#"{"route_id": "r", "capacity": 5, "refill_per_second": 1}"#));
    let Heard::Nameless(nobody) = nobody else { panic!("{nobody:?}") };
    assert!(nobody.starts_with("kafka rules[0]@17: rule ?/r: tenant_id is missing"), "{nobody}");
    let Merged { set, rejected } = merge.finish();
    assert_eq!((capacity(&set, "a"), shadow_capacity(&set, "a"), capacity(&set, "b")), (Some(9), None, Some(7)));
    assert!(rejected.faults[0].starts_with("kafka rules[0]@17: rule b/r: capacity is 0"), "{rejected:?}");

    let mut merge = Merge::of_changes(Arc::new(set), rejected);
    assert_eq!(merge.tell(&put(&rule("b", 11))), Heard::Put("r".into()));
    assert_eq!(merge.tell(&delete("a", None)), Heard::Deleted);
    let Merged { set, rejected } = merge.finish();
    assert_eq!((capacity(&set, "a"), capacity(&set, "b"), rejected.total, set.len()), (None, Some(11), 0, 1));
}

#[test]
fn what_was_read_of_a_pair_while_all_was_read_stays() {
    let (old, _) = merge(&empty(), &[&rule("a", 5), &shadow("a", 6), &rule("b", 7), &rule("c", 8)]);
    let whole = {
        let mut merge = Merge::new(Arc::clone(&old), Rejected::default());
        [rule("a", 5), shadow("a", 6), rule("b", 9), rule("c", 0)]
            .iter()
            .for_each(|entry| merge.add(Place::Row, Entry::from_json(entry)));
        merge.finish()
    };
    let mut merge = Merge::of_pairs(old, Rejected::default(), &pairs(&["a", "c", "new"]));
    [rule("a", 15), rule("c", 18), rule("new", 0)]
        .iter()
        .for_each(|entry| merge.add(Place::Row, Entry::from_json(entry)));
    let now = merge.finish();
    let mut merged = whole;
    merged.keep(&now.set, &now.rejected, &pairs(&["a", "c", "new"]));
    let set = &merged.set;
    assert_eq!((capacity(set, "a"), shadow_capacity(set, "a")), (Some(15), None));
    assert_eq!((capacity(set, "b"), capacity(set, "c"), set.len()), (Some(9), Some(18), 3));
    assert!(merged.rejected.total == 1 && merged.rejected.faults[0].contains("new/r"), "{:?}", merged.rejected);
}
