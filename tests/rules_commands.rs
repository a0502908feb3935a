//! `sekisho rules`: the real program on a real PostgreSQL.
//!
//! Needs the services: `make test`, or `scripts/services.sh run cargo test --test rules_commands`.

// A test fails by panicking; not every test crate uses all of `support`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    dead_code,
    unused_imports
)]

#[path = "support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::Command;

use sekisho::rules::edit::{EditError, Patch, Plan, RuleId, SCHEMA, Table};
use sekisho::rules::{Mode, Rule};
use support::{BINARY, Database, Run, free_address, sekisho};

/// A database with the tables as shipped.
async fn migrated() -> Database {
    let database = Database::create().await;
    database.execute(SCHEMA).await;
    database
}

/// `sekisho rules ARGUMENTS` on this database.
fn rules(database: &Database, arguments: &[&str]) -> Run {
    sekisho(&[&["rules", "--database-url", &database.url], arguments].concat())
}

/// As [`rules`], and all goes well: what it prints.
fn fine(database: &Database, arguments: &[&str]) -> String {
    let run = rules(database, arguments);
    assert_eq!((run.code, &*run.stderr), (Some(0), ""), "{arguments:?}: {}", run.stdout);
    run.stdout
}

/// As [`rules`], and it fails: what it says about that.
fn fault(database: &Database, arguments: &[&str]) -> String {
    let run = rules(database, arguments);
    assert_eq!(run.code, Some(1), "{arguments:?}: {}{}", run.stdout, run.stderr);
    run.stderr
}

/// Every row, as text.
async fn dump(database: &Database) -> Vec<String> {
    let rows = database
        .client
        .query(
            "SELECT (to_jsonb(r) - 'id' - 'updated_at')::text FROM rate_limit_rule r
             ORDER BY tenant_id, route_id, to_jsonb(r)->>'mode'",
            &[],
        )
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

struct File {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl File {
    fn new(name: &str, content: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        Self { _folder: folder, path }
    }

    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

fn json_rules(tenants: impl IntoIterator<Item = String>, capacity: u32) -> String {
    let rule =
        |tenant| format!(r#"{{"tenant_id": "{tenant}", "route_id": "r", "capacity": {capacity}, "refill": "1/s"}}"#);
    format!("[{}]", tenants.into_iter().map(rule).collect::<Vec<_>>().join(",\n"))
}

#[tokio::test]
async fn set_adds_a_rule_changes_what_is_given_and_prints_the_difference() {
    let database = migrated().await;
    let added = fine(
        &database,
        &["set", "shop-a", "orders", "--capacity", "200", "--refill", "30/min", "--comment", "why not"],
    );
    assert_eq!(
        added,
        "+ shop-a/orders: capacity 200, refill_per_second 0.5, comment \"why not\"\n1 added, 0 changed, 0 deleted, 0 unchanged\n"
    );
    let changed = fine(
        &database,
        &["set", "shop-a", "orders", "--capacity", "300", "--on-store-failure", "closed", "--cost", "2"],
    );
    assert_eq!(
        changed,
        "~ shop-a/orders: capacity 200 → 300, cost – → 2, on_store_failure – → closed\n0 added, 1 changed, 0 deleted, 0 unchanged\n"
    );
    let back = fine(&database, &["set", "shop-a", "orders", "--cost", "default", "--comment", ""]);
    assert!(back.starts_with("~ shop-a/orders: cost 2 → –, comment \"why not\" → –\n"), "{back}");
    let same = fine(&database, &["set", "shop-a", "orders", "--capacity", "300"]);
    assert_eq!(same, "0 added, 0 changed, 0 deleted, 1 unchanged\n");

    let rule: serde_json::Value = serde_json::from_str(&fine(&database, &["get", "shop-a", "orders"])).unwrap();
    let expected = serde_json::json!([{
        "tenant_id": "shop-a", "route_id": "orders", "capacity": 300, "refill_per_second": 0.5, "on_store_failure": "closed"
    }]);
    assert_eq!(rule, expected);

    let deleted = fine(&database, &["delete", "shop-a", "orders"]);
    assert!(
        deleted.starts_with("- shop-a/orders: capacity 300, refill_per_second 0.5, on_store_failure closed\n"),
        "{deleted}"
    );
    assert_eq!(dump(&database).await, [] as [String; 0]);
}

#[tokio::test]
async fn what_is_absent_or_invalid_is_said_and_fails() {
    let database = migrated().await;
    for arguments in [&["get", "nobody", "orders"][..], &["delete", "nobody", "orders"]] {
        assert_eq!(fault(&database, arguments), "rule nobody/orders: there is none\n");
    }
    assert!(
        fault(&database, &["get", "nobody", "orders", "--mode", "shadow"]).starts_with("rule nobody/orders (shadow): ")
    );
    for (arguments, expected) in [
        (&["set", "a", "r", "--capacity", "5"][..], "rule a/r: neither refill_per_second nor refill is given"),
        (&["set", "a", "r", "--capacity", "0", "--refill", "1"], "rule a/r: capacity is 0, allowed are integers"),
        (&["set", "a", "r", "--capacity", "5", "--refill", "1/fortnight"], "rule a/r: \"1/fortnight\" is not a refill"),
        (&["set", "a", "r", "--capacity", "5", "--refill", "1", "--enabled", "maybe"], "rule a/r: enabled is maybe"),
        (&["set", "", "r", "--capacity", "5", "--refill", "1"], "tenant_id is empty"),
    ] {
        let said = fault(&database, arguments);
        assert!(said.starts_with(expected) && said.lines().count() == 1, "{arguments:?}: {said}");
    }
    assert_eq!(dump(&database).await, [] as [String; 0]);
    let usage = rules(&database, &["get", "a", "r", "--mode", "maybe"]);
    assert_eq!(usage.code, Some(2), "{}", usage.stderr);
}

#[tokio::test]
async fn a_dry_run_changes_nothing_and_says_what_would() {
    let database = migrated().await;
    fine(&database, &["set", "a", "r", "--capacity", "5", "--refill", "1"]);
    let file = File::new("rules.json", &json_rules(["b".into(), "c".into()], 7));
    let before = dump(&database).await;
    for (arguments, expected) in [
        (&["set", "a", "r", "--capacity", "6"][..], "~ a/r: capacity 5 → 6\n0 added, 1 changed"),
        (&["delete", "a", "r"], "- a/r: capacity 5, refill_per_second 1\n0 added, 0 changed, 1 deleted"),
        (&["import", file.path()], "+ b/r: capacity 7, refill_per_second 1\n+ c/r"),
        (&["import", file.path(), "--replace", "--force"], "- a/r: capacity 5, refill_per_second 1\n+ b/r"),
    ] {
        let said = fine(&database, &[arguments, &["--dry-run"]].concat());
        assert!(
            said.starts_with(expected) && said.ends_with("; dry run: nothing was changed\n"),
            "{arguments:?}: {said}"
        );
        assert_eq!(dump(&database).await, before);
    }
}

#[tokio::test]
async fn every_bad_entry_of_an_import_is_named_and_nothing_is_applied() {
    let database = migrated().await;
    fine(&database, &["set", "a", "r", "--capacity", "5", "--refill", "1"]);
    let before = dump(&database).await;
    let json = r#"[{"tenant_id": "a", "route_id": "r", "capacity": 6, "refill": "1/s"},
{"tenant_id": "b", "route_id": "r", "capacity": 0, "refill": "1/s"},
{"tenant_id": "c", "route_id": "r", "capacity": 5},
{"tenant_id": "a", "route_id": "r", "capacity": 7, "refill": "1/s"}]"#;
    let file = File::new("rules.json", json);
    let said = fault(&database, &["import", file.path()]);
    let lines: Vec<String> = said.lines().map(|line| line.replace(file.path(), "FILE")).collect();
    assert!(lines[0].starts_with("FILE:2: rule b/r: capacity is 0, allowed are"), "{said}");
    assert!(lines[1].starts_with("FILE:3: rule c/r: neither refill_per_second"), "{said}");
    assert!(lines[2].starts_with("FILE:4: rule a/r: is there more than once, first on line 1"), "{said}");
    assert_eq!(lines[3..], ["FILE: 3 faults, nothing was changed"]);
    for (name, content, expected) in [
        ("rules.csv", "tenant_id,route_id,capacity,refill\na,r,6,1/s\nb,r,-1,1/s\n", ":3: rule b/r: capacity is -1"),
        ("rules.json", "[{\"tenant_id\":", ":1: EOF while parsing"),
        ("rules.txt", "", ": its name does not tell what it is"),
    ] {
        let file = File::new(name, content);
        let said = fault(&database, &["import", file.path()]);
        assert!(said.starts_with(&format!("{}{expected}", file.path())), "{said}");
    }
    let missing = fault(&database, &["import", "/nowhere/rules.csv"]);
    assert!(missing.starts_with("/nowhere/rules.csv: cannot be read: "), "{missing}");
    assert_eq!(dump(&database).await, before);
}

#[tokio::test]
async fn what_the_database_refuses_half_way_leaves_nothing_behind() {
    let database = migrated().await;
    fine(&database, &["set", "a", "r", "--capacity", "5", "--refill", "1"]);
    database
        .execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN IF NEW.tenant_id = 'poison' THEN RAISE 'no poison here'; END IF; RETURN NEW; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON rate_limit_rule FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await;
    let before = dump(&database).await;
    // Longer than what is written with one statement.
    let tenants = (0..11_000).map(|n| format!("t{n:05}")).chain(["poison".into(), "a".into()]);
    let file = File::new("rules.json", &json_rules(tenants, 7));
    let said = fault(&database, &["import", file.path()]);
    assert!(said.contains("no poison here"), "{said}");
    assert_eq!(dump(&database).await, before);
}

#[tokio::test]
async fn an_import_adds_and_changes_and_replaces_only_when_told_and_forced() {
    let database = migrated().await;
    let ten = File::new("rules.json", &json_rules((0..10).map(|n| format!("t{n}")), 5));
    assert!(fine(&database, &["import", ten.path()]).ends_with("\n10 added, 0 changed, 0 deleted, 0 unchanged\n"));
    assert_eq!(fine(&database, &["import", ten.path()]), "0 added, 0 changed, 0 deleted, 10 unchanged\n");

    let three = File::new("rules.json", &json_rules(["t0".into(), "t1".into(), "new".into()], 6));
    assert!(fine(&database, &["import", three.path()]).ends_with("\n1 added, 2 changed, 0 deleted, 0 unchanged\n"));
    let before = dump(&database).await;
    let said = rules(&database, &["import", three.path(), "--replace"]);
    assert_eq!(said.code, Some(1));
    assert!(
        said.stderr.contains("8 of 11 rules would go away, allowed with --force; nothing was changed"),
        "{}",
        said.stderr
    );
    assert!(said.stdout.contains("- t9/r: capacity 5, refill_per_second 1\n"), "{}", said.stdout);
    assert_eq!(dump(&database).await, before);
    let forced = fine(&database, &["import", three.path(), "--replace", "--force"]);
    assert!(forced.ends_with("\n0 added, 0 changed, 8 deleted, 3 unchanged\n"), "{forced}");
    assert_eq!(dump(&database).await.len(), 3);
    // Half of them is not most of them.
    let two = File::new("rules.csv", "tenant_id,route_id,capacity,refill\nt0,r,6,1/s\nt1,r,6,1/s\n");
    assert!(fine(&database, &["import", two.path(), "--replace"]).ends_with("1 deleted, 2 unchanged\n"));
    let none = File::new("rules.json", "[]");
    assert!(fault(&database, &["import", none.path(), "--replace"]).contains("2 of 2 rules would go away"));
}

#[tokio::test]
async fn what_is_exported_imports_as_the_same_rules() {
    let database = migrated().await;
    database
        .execute(
            r#"INSERT INTO rate_limit_rule
                   (tenant_id, route_id, capacity, refill_per_second, cost, on_store_failure, shards, mode, enabled, comment)
               VALUES ('plain', 'r', 5, 1, NULL, NULL, 1, 'enforce', true, NULL),
                      ('*', '*', 2147483647, 2147483647, 7, 'open', 100, 'enforce', false, 'all of it'),
                      ('a, b', 'say "r"', 9, 0.11574074074074074, NULL, 'closed', 1, 'shadow', true, E'two\nlines, and a "quote"'),
                      ('café ☕', '=1+1', 40, 0.1, 3, 'local', 2, 'enforce', true, E'\r\n'),
                      (' spaced ', 'tab' , 9, 1e-6, NULL, NULL, 1, 'enforce', true, E'\ttab; semicolon '' apostrophe \\ '),
                      ('日本', '/', 9, 1234.5678, NULL, NULL, 1, 'shadow', false, ',')"#,
        )
        .await;
    let before = dump(&database).await;
    assert_eq!(before.len(), 6);
    for format in ["json", "csv"] {
        let file = File::new(&format!("rules.{format}"), &fine(&database, &["export", "--format", format]));
        assert_eq!(
            fine(&database, &["import", file.path()]),
            "0 added, 0 changed, 0 deleted, 6 unchanged\n",
            "{format}"
        );
        database.execute("DELETE FROM rate_limit_rule").await;
        assert!(fine(&database, &["import", file.path()]).ends_with("\n6 added, 0 changed, 0 deleted, 0 unchanged\n"));
        assert_eq!(dump(&database).await, before, "{format}");
        assert_eq!(fine(&database, &["export", "--format", format]), std::fs::read_to_string(&file.path).unwrap());
    }
}

#[tokio::test]
async fn a_list_in_pages_shows_every_rule_once_in_a_stable_order() {
    let database = migrated().await;
    let ids = ["a", "B", "*", "é", "a b", "a/b", "z", "A"];
    let tenants = ids.iter().flat_map(|tenant| ["", "-1", "-2"].map(|suffix| format!("{tenant}{suffix}")));
    let file = File::new("rules.json", &json_rules(tenants, 5));
    fine(&database, &["import", file.path()]);
    let whole = fine(&database, &["list", "--format", "csv"]);
    let mut expected: Vec<&str> = whole.lines().skip(1).collect();
    let listed = expected.clone();
    expected.sort_by_key(|line| line.split(',').next());
    assert_eq!((listed.len(), &listed), (24, &expected));

    let (mut pages, mut after) = (Vec::new(), None::<String>);
    loop {
        let cursor = after.iter().flat_map(|after| ["--after", after]);
        let page = rules(
            &database,
            &["list", "--format", "csv", "--limit", "5"].into_iter().chain(cursor).collect::<Vec<_>>(),
        );
        assert_eq!(page.code, Some(0), "{}", page.stderr);
        pages.extend(page.stdout.lines().skip(1).map(str::to_owned));
        match page.stderr.split_once("--after '") {
            Some((_, rest)) => after = Some(rest.trim_end().trim_end_matches('\'').to_owned()),
            None => break,
        }
    }
    assert_eq!(pages, listed);

    let table = fine(&database, &["list", "--tenant", "a b", "--route", "r"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..5], ["TENANT", "ROUTE", "MODE", "CAPACITY", "REFILL/S"]);
    assert_eq!((lines.len(), &lines[1][..6]), (2, &["a", "b", "r", "enforce", "5", "1"][..]));
    let wrong = rules(&database, &["list", "--after", "nonsense"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("allowed is TENANT/ROUTE"), "{}", wrong.stderr);
}

#[tokio::test]
async fn a_table_with_only_the_columns_of_a_rule_works_until_it_needs_more() {
    let database = Database::create().await;
    fine(&database, &["set", "a", "r", "--capacity", "5", "--refill", "1"]);
    fine(&database, &["set", "a", "r", "--capacity", "6"]);
    assert!(fine(&database, &["list"]).contains("a       r      enforce  6"));
    let before = dump(&database).await;
    for (arguments, expected) in [
        (
            &["set", "a", "r", "--comment", "x"][..],
            "rule a/r: table rate_limit_rule has no column comment; `sekisho rules migrate`",
        ),
        (
            &["set", "a", "r", "--cost", "2"],
            "rule a/r: table rate_limit_rule has no column cost; `sekisho rules migrate`",
        ),
        (
            &["set", "a", "r", "--mode", "shadow", "--capacity", "5", "--refill", "1"],
            "rule a/r (shadow): table rate_limit_rule has no column mode; `sekisho rules migrate`",
        ),
        (&["set", "b", "r", "--capacity", "5", "--refill", "30/min"], "rule b/r: table rate_limit_rule makes it "),
    ] {
        let said = fault(&database, arguments);
        assert!(said.starts_with(expected) && said.contains("`sekisho rules migrate`"), "{arguments:?}: {said}");
        assert_eq!(dump(&database).await, before);
    }
    let file = File::new("rules.json", &json_rules(["b".into(), "c".into()], 7));
    fine(&database, &["import", file.path(), "--replace", "--force"]);
    assert_eq!(dump(&database).await.len(), 2);

    assert!(fine(&database, &["migrate"]).contains("+ column rate_limit_rule.comment text"));
    fine(&database, &["set", "b", "r", "--refill", "30/min", "--comment", "x"]);
    assert_eq!(fine(&database, &["get", "b", "r", "--format", "csv"]).lines().last(), Some("b,r,enforce,7,0.5,,,,,x"));
}

#[tokio::test]
async fn a_table_without_what_makes_a_rule_is_named() {
    let database = Database::create().await;
    database.execute("ALTER TABLE rate_limit_rule DROP COLUMN capacity").await;
    assert!(fault(&database, &["list"]).starts_with("rules database: table rate_limit_rule has no column capacity"));
    database.execute("DROP TABLE rate_limit_rule").await;
    for arguments in [&["list"][..], &["set", "a", "r", "--capacity", "5", "--refill", "1"]] {
        assert!(fault(&database, arguments).starts_with("rules database: there is no table rate_limit_rule"));
    }
}

#[tokio::test]
async fn migrate_says_what_changes_and_the_second_time_that_nothing_does() {
    let database = Database::create().await;
    database
        .execute(
            "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second) VALUES ('a', 'r', 5, 1)",
        )
        .await;
    let dry = fine(&database, &["migrate", "--dry-run"]);
    assert!(dry.contains("+ column rate_limit_rule.shards smallint NOT NULL DEFAULT 1\n"), "{dry}");
    assert!(dry.contains("- column rate_limit_rule.refill_per_second integer NOT NULL\n"), "{dry}");
    assert!(dry.contains("+ table api_key\n") && dry.ends_with("\ndry run: nothing was changed\n"), "{dry}");
    assert!(fault(&database, &["set", "a", "r", "--comment", "x"]).contains("has no column comment"));

    let real = fine(&database, &["migrate"]);
    assert_eq!(real.replace("the tables were brought up to date", "dry run: nothing was changed"), dry);
    fine(&database, &["set", "a", "r", "--comment", "x"]);
    assert_eq!(fine(&database, &["migrate"]), "the tables are up to date\n");
    assert_eq!(fine(&database, &["migrate", "--sql"]), SCHEMA);

    let empty = Database::create().await;
    empty.execute("DROP TABLE rate_limit_rule").await;
    assert!(fine(&empty, &["migrate"]).contains("+ table rate_limit_rule\n"));
    fine(&empty, &["set", "a", "r", "--capacity", "5", "--refill", "1"]);
}

#[tokio::test]
async fn a_shadow_rule_is_another_rule() {
    let database = migrated().await;
    let limit = ["--capacity", "5", "--refill", "1"];
    fine(&database, &[&["set", "a", "r"], &limit[..]].concat());
    fine(&database, &[&["set", "a", "r", "--mode", "shadow"], &limit[..]].concat());
    fine(&database, &["set", "a", "r", "--mode", "shadow", "--capacity", "9"]);
    assert_eq!(fine(&database, &["get", "a", "r", "--format", "csv"]).lines().last(), Some("a,r,enforce,5,1,,,,,"));
    assert_eq!(fine(&database, &["list"]).lines().count(), 3);
    let export = File::new("rules.csv", &fine(&database, &["export", "--format", "csv"]));
    assert_eq!(fine(&database, &["import", export.path()]), "0 added, 0 changed, 0 deleted, 2 unchanged\n");
    fine(&database, &["delete", "a", "r"]);
    assert!(fine(&database, &["get", "a", "r", "--mode", "shadow"]).contains("\"capacity\":9"));
}

#[tokio::test]
async fn a_table_with_room_for_one_rule_says_how_to_make_room_for_a_shadow_rule() {
    let database = Database::create().await;
    database.execute("ALTER TABLE rate_limit_rule ADD COLUMN mode TEXT NOT NULL DEFAULT 'enforce'").await;
    let limit = ["--capacity", "5", "--refill", "1"];
    fine(&database, &[&["set", "a", "r"], &limit[..]].concat());
    let shadow = [&["set", "a", "r", "--mode", "shadow"], &limit[..]].concat();
    assert!(fault(&database, &shadow).contains("`sekisho rules migrate` allows a shadow rule"));
    fine(&database, &["migrate"]);
    fine(&database, &shadow);
}

#[tokio::test]
async fn a_row_that_is_no_rule_is_named_and_can_be_mended_or_deleted() {
    let database = migrated().await;
    fine(&database, &["set", "good", "r", "--capacity", "5", "--refill", "1"]);
    database
        .execute(
            "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second)
             VALUES ('a', 'r', 1000000, 0.001), ('b', 'r', 1000000, 0.001)",
        )
        .await;
    for command in [&["list", "--format", "csv"][..], &["export", "--format", "csv"]] {
        let run = rules(&database, command);
        assert_eq!(run.code, Some(1));
        assert!(run.stdout.contains("\ngood,r,") && run.stdout.lines().count() == 2, "{}", run.stdout);
        assert!(run.stderr.starts_with("rule a/r: left out: a capacity of 1000000 refilled"), "{}", run.stderr);
    }
    let mended = fine(&database, &["set", "a", "r", "--capacity", "5", "--refill", "1"]);
    assert!(mended.starts_with("~ a/r: invalid (a capacity of 1000000"), "{mended}");
    assert!(fine(&database, &["delete", "b", "r"]).starts_with("- b/r: invalid (a capacity of"));
    assert_eq!(fine(&database, &["list"]).lines().count(), 3);
}

#[tokio::test]
async fn of_two_who_change_the_same_rule_the_later_fails_and_changes_nothing() {
    let database = migrated().await;
    fine(&database, &["set", "a", "r", "--capacity", "5", "--refill", "1"]);
    let id = RuleId::new("a", "r", Mode::Enforce).unwrap();
    let change = async |capacity: &str| {
        let mut table = Table::connect(&database.url, "somebody").await.unwrap();
        let row = table.get(&id).await.unwrap().unwrap();
        let patch = Patch { capacity: Some(capacity.to_owned()), ..Patch::default() };
        let rule = patch.over(&id, row.rule.as_ref().ok()).unwrap();
        let other = Rule { tenant_id: "new".into(), ..rule.clone() };
        (table, Plan::new(vec![row], [rule, other], false))
    };
    let ((mut first, one), (mut second, two)) = (change("6").await, change("7").await);
    first.apply(&one).await.unwrap();
    let error = second.apply(&two).await.unwrap_err();
    assert!(matches!(&error, EditError::Conflict(rule) if *rule == id), "{error}");
    assert!(error.to_string().contains("a/r was changed by somebody else meanwhile; nothing was changed"), "{error}");
    assert!(fine(&database, &["get", "a", "r"]).contains("\"capacity\":6"));
    // One that somebody else added, and one that somebody else deleted.
    let error = second
        .apply(&Plan::new(vec![], [Rule { tenant_id: "new".into(), ..two_rule(&two) }], false))
        .await
        .unwrap_err();
    assert!(error.is_conflict(), "{error}");
    fine(&database, &["delete", "a", "r"]);
    assert!(second.apply(&two).await.unwrap_err().is_conflict());
}

fn two_rule(plan: &Plan) -> Rule {
    match &plan.changes[0] {
        sekisho::rules::edit::Change::Replace { after, .. } => after.clone(),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn the_history_says_who_changed_a_rule() {
    let database = migrated().await;
    let run = Command::new(BINARY)
        .args(["rules", "set", "a", "r", "--capacity", "5", "--refill", "1"])
        .env("SEKISHO_DATABASE_URL", &database.url)
        .env("USER", "alice")
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let history = "SELECT actor, operation, tenant_id FROM rate_limit_rule_history";
    let seen = database.client.query(history, &[]).await.unwrap();
    let seen: Vec<[String; 3]> = seen.iter().map(|row| [0, 1, 2].map(|column| row.get(column))).collect();
    assert_eq!(seen, [["alice@cli", "INSERT", "a"]]);
}

#[tokio::test]
async fn the_database_is_named_by_flag_configuration_or_environment() {
    let database = migrated().await;
    fine(&database, &["set", "a", "r", "--capacity", "5", "--refill", "1"]);
    let config = File::new(
        "sekisho.toml",
        "[server]\nlisten = [\"127.0.0.1:8080\"]\n[rules]\ndatabase_url = \"${DATABASE_FOR_TEST}\"\n[[route]]\nid = \"r\"\npath = \"/\"\nupstream = \"u\"\n\
         [upstream.u]\nbuiltin = \"echo\"\n",
    );
    let list = |arguments: &[&str], environment: &[(&str, &str)]| {
        let output = Command::new(BINARY)
            .args(["rules", "list"])
            .args(arguments)
            .env_remove("SEKISHO_DATABASE_URL")
            .envs(environment.iter().copied())
            .current_dir(config.path.parent().unwrap())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let nobody = format!("postgres://me:hush-hush@{}/none", free_address());
    let url = database.url.as_str();
    for (arguments, environment) in [
        (&["--database-url", url][..], &[("SEKISHO_DATABASE_URL", nobody.as_str())][..]),
        (&["-c", config.path()], &[("DATABASE_FOR_TEST", url), ("SEKISHO_DATABASE_URL", &nobody)]),
        (&[], &[("SEKISHO_DATABASE_URL", url)]),
    ] {
        let (code, stdout, stderr) = list(arguments, environment);
        assert!(code == Some(0) && stdout.contains("\na "), "{arguments:?}: {stderr}");
    }
    let (code, _, stderr) = list(&[], &[]);
    assert!(code == Some(1) && stderr.starts_with("conf/sekisho.toml: cannot be read"), "{stderr}");
    let (code, _, stderr) = list(&[], &[("SEKISHO_DATABASE_URL", &nobody)]);
    assert!(
        code == Some(1) && stderr.starts_with("rules database: no connection") && !stderr.contains("hush"),
        "{stderr}"
    );
    let (code, ..) = list(&["--database-url", url, "-c", config.path()], &[]);
    assert_eq!(code, Some(2));
    let plain = File::new(
        "sekisho.toml",
        "[server]\nlisten = [\"127.0.0.1:8080\"]\n[rules]\nfile = \"rules.json\"\n[[route]]\nid = \"r\"\npath = \"/\"\nupstream = \"u\"\n[upstream.u]\nbuiltin = \"echo\"\n",
    );
    let (code, _, stderr) = list(&["-c", plain.path()], &[]);
    assert!(code == Some(1) && stderr.contains("rules.database_url is not set"), "{stderr}");
}
