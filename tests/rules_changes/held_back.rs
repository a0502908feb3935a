//! A change after which more than half of all rules would be gone is held back.

use sekisho::config;
use sekisho::rules::Source;

use super::support::{self, Database};
use super::{LONG, Running, insert, of_database};

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
