//! A change after which more than half of all rules would be gone is held back.

use std::sync::Arc;

use sekisho::bucket::Limit;
use sekisho::config::{self, IdentityMode};
use sekisho::rules::judge::Judge;
use sekisho::rules::{Loader, Mode, Rule, RuleSet, Source};

use super::support::{self, Database};
use super::{LONG, Running, insert, json, of_database, update};

async fn of_twenty(more: config::Rules) -> (Database, Running) {
    let database = Database::create().await;
    let all: String = (0..20).map(|n| insert(&n.to_string(), 5)).collect();
    database.execute(&all).await;
    let settings = config::Rules { allow_mass_delete: more.allow_mass_delete, ..of_database(&database) };
    let rules = Running::start(settings).await;
    (database, rules)
}

#[tokio::test]
async fn a_table_that_was_emptied_leaves_the_rules_until_it_is_filled_again() {
    let (database, rules) = of_twenty(config::Rules::default()).await;
    database.execute("CREATE TABLE copy AS SELECT * FROM rate_limit_rule; DELETE FROM rate_limit_rule").await;
    for _ in 0..3 {
        assert!(!rules.loader.reload().await);
        assert_eq!(rules.loader.rules().status().loaded, 20);
    }
    let error = rules.last_error().unwrap();
    assert!(error.contains("20 of 20 rules") && error.contains("rules.allow_mass_delete"), "{error}");
    let reads = rules.loader.rules().status().reloads[Source::Postgres as usize];
    assert_eq!((reads.ok, reads.error, reads.held), (1, 0, 3));
    database.execute("INSERT INTO rate_limit_rule SELECT * FROM copy WHERE id > 5").await;
    assert!(rules.loader.reload().await);
    assert_eq!((rules.loader.rules().status().loaded, rules.last_error()), (15, None));
}

#[tokio::test]
async fn deletions_that_come_one_by_one_are_held_back_too_and_other_changes_are_not() {
    let (database, rules) = of_twenty(config::Rules::default()).await;
    for n in 0..20 {
        database.execute(&format!("DELETE FROM rate_limit_rule WHERE tenant_id = '{n}'")).await;
        rules.changed(&n.to_string()).await;
    }
    assert_eq!(rules.loader.rules().status().loaded, 10);
    assert!(rules.last_error().unwrap().contains("11 of 20"), "{:?}", rules.last_error());
    database.execute(&insert("new", 8)).await;
    rules.loader.changes().pair("new", "*");
    rules.becomes("new", Some(8)).await;
    assert!(rules.last_error().is_some(), "the others are still held back");
}

#[tokio::test]
async fn who_allows_it_may_delete_all() {
    let allowed = config::Rules { allow_mass_delete: true, ..Default::default() };
    let (database, rules) = of_twenty(allowed).await;
    database.execute("DELETE FROM rate_limit_rule").await;
    rules.loader.changes().all();
    support::eventually("all are gone", LONG, || async { rules.loader.rules().load().is_empty().then_some(()) }).await;
}

/// Nobody may have more than ten.
#[derive(Debug)]
struct AtMostTen;

impl Judge for AtMostTen {
    fn prepare(&self) -> Result<(), String> {
        Ok(())
    }

    fn failures(&self, set: &RuleSet) -> Vec<String> {
        let more = set.iter().filter(|rule| rule.limit.capacity() > 10);
        more.map(|rule| format!("{} has {}", rule.tenant_id, rule.limit.capacity())).collect()
    }
}

fn judged(settings: &config::Rules) -> Loader {
    let default_rule = Rule::new("*", "*", Limit::new(77, 1.0).unwrap());
    let mut loader = Loader::new(settings, &default_rule, &IdentityMode::Direct, &[]);
    loader.judge_by(Arc::new(AtMostTen));
    loader
}

fn capacity(loader: &Loader, tenant: &str) -> Option<u32> {
    loader.rules().load().get(tenant, "*", Mode::Enforce).map(|rule| rule.limit.capacity())
}

#[tokio::test]
async fn a_change_that_fails_the_rule_tests_is_refused_alone() {
    let database = Database::create().await;
    database.execute(&(insert("a", 5) + &insert("b", 6))).await;
    let rules = Running::run(judged(&of_database(&database))).await;
    database.execute(&(update("a", 11) + &update("b", 7))).await;
    rules.changed("a").await;
    assert_eq!(rules.capacity("a"), Some(5));
    assert_eq!(rules.last_error().as_deref(), Some("rule tests fail: a has 11"));
    rules.loader.changes().pair("b", "*");
    rules.becomes("b", Some(7)).await;
    assert!(rules.last_error().is_some(), "the other still fails");
    database.execute(&update("a", 8)).await;
    rules.loader.changes().pair("a", "*");
    rules.becomes("a", Some(8)).await;
    support::eventually("everything is read anew", LONG, || async { rules.last_error().is_none().then_some(()) }).await;
}

#[tokio::test]
async fn a_start_with_rules_that_fail_their_tests_goes_on_with_the_snapshot_then_the_file() {
    let database = Database::create().await;
    database.execute(&insert("a", 11)).await;
    let folder = tempfile::tempdir().unwrap();
    let (snapshot, file) = (folder.path().join("snapshot.json"), folder.path().join("rules.json"));
    std::fs::write(&snapshot, format!("[{}]", json("a", 6))).unwrap();
    std::fs::write(&file, format!("[{}]", json("a", 7))).unwrap();
    let settings =
        config::Rules { snapshot: Some(snapshot.clone()), file: Some(file.clone()), ..of_database(&database) };
    for (expected, source) in [(Some(6), Some(Source::Snapshot)), (Some(7), Some(Source::File)), (None, None)] {
        let loader = judged(&settings);
        loader.start().await.unwrap();
        assert_eq!((capacity(&loader, "a"), loader.rules().status().source), (expected, source));
        let spoilt = if expected == Some(6) { &snapshot } else { &file };
        std::fs::write(spoilt, format!("[{}]", json("a", 12))).unwrap();
    }
}
