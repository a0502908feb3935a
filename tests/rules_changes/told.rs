//! Without a database, what messages say comes into force beside what the file says.

use sekisho::config;
use sekisho::rules::change::Told;
use sekisho::rules::{Mode, Source};
use tempfile::TempDir;

use super::{Running, json};

fn of_file(rules: &[String]) -> (TempDir, config::Rules) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.json");
    std::fs::write(&path, format!("[{}]", rules.join(","))).unwrap();
    // Often, so that it would undo what messages said.
    let refresh = std::time::Duration::from_millis(20);
    (folder, config::Rules { file: Some(path), refresh, ..Default::default() })
}

fn put(json: String) -> Told {
    Told::Put { source: Source::Kafka, place: "kafka rules[0]@7".into(), json }
}

fn delete(tenant: &str, mode: Option<Mode>) -> Told {
    let place = "kafka rules[0]@8".into();
    Told::Delete { source: Source::Kafka, place, tenant_id: tenant.into(), route_id: "*".into(), mode }
}

#[tokio::test]
async fn what_is_told_applies_and_stays_through_refreshes_until_the_file_changes() {
    let (folder, settings) = of_file(&[json("a", 5), json("b", 6)]);
    let rules = Running::start(settings).await;
    rules.loader.changes().tell(put(json("a", 15))).await;
    rules.loader.changes().tell(put(json("new", 8))).await;
    rules.loader.changes().tell(delete("b", None)).await;
    rules.becomes("a", Some(15)).await;
    for _ in 0..20 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        assert_eq!((rules.capacity("a"), rules.capacity("b"), rules.capacity("new")), (Some(15), None, Some(8)));
    }
    std::fs::write(folder.path().join("rules.json"), format!("[{},{}]", json("a", 5), json("b", 666))).unwrap();
    rules.becomes("b", Some(666)).await;
    assert_eq!((rules.capacity("a"), rules.capacity("new")), (Some(5), None), "the file counts as a whole");

    rules.loader.changes().tell(put(json("a", 16))).await;
    rules.becomes("a", Some(16)).await;
    rules.hangup.notify_one();
    rules.becomes("a", Some(5)).await;
    rules.end().await;
}

#[tokio::test]
async fn a_bad_message_is_named_and_counted_and_harms_no_other() {
    let (_folder, settings) = of_file(&[json("a", 5), json("b", 6)]);
    let rules = Running::start(settings).await;
    for message in [json("a", 0), r#"{"capacity": 1}"#.into(), "[]".into(), "\0\u{7f}".into(), json("b", 7)] {
        rules.loader.changes().tell(put(message)).await;
    }
    rules.becomes("b", Some(7)).await;
    let status = rules.loader.rules().status();
    let reads = status.reloads[Source::Kafka as usize];
    assert_eq!((rules.capacity("a"), reads.ok, reads.error, status.rejected.total), (Some(5), 1, 4, 1));
    assert!(status.rejected.faults[0].starts_with("kafka rules[0]@7: rule a/*: capacity is 0"), "{status:?}");
    rules.loader.changes().tell(put(json("a", 9))).await;
    rules.becomes("a", Some(9)).await;
    assert_eq!(rules.loader.rules().status().rejected.total, 0);
}

#[tokio::test]
async fn one_mode_can_be_deleted_alone() {
    let shadow = json("a", 3).replace('}', r#", "mode": "shadow"}"#);
    let (_folder, settings) = of_file(&[json("a", 5), shadow]);
    let rules = Running::start(settings).await;
    assert_eq!(rules.capacity_of("a", Mode::Shadow), Some(3));
    rules.loader.changes().tell(delete("a", Some(Mode::Enforce))).await;
    rules.becomes("a", None).await;
    assert_eq!(rules.capacity_of("a", Mode::Shadow), Some(3));
}

#[tokio::test]
async fn too_many_deletions_are_held_back_and_other_messages_are_not() {
    let all: Vec<String> = (0..20).map(|n| json(&n.to_string(), 5)).collect();
    let (_folder, settings) = of_file(&all);
    let rules = Running::start(settings).await;
    for n in 0..20 {
        rules.loader.changes().tell(delete(&n.to_string(), None)).await;
    }
    rules.loader.changes().tell(put(json("last", 7))).await;
    rules.becomes("last", Some(7)).await;
    let status = rules.loader.rules().status();
    assert!((10..=12).contains(&status.loaded), "{status:?}");
    assert!(status.reloads[Source::Kafka as usize].held >= 8, "{status:?}");
    assert!(rules.last_error().is_some_and(|error| error.contains("held back")), "{status:?}");
    rules.loader.changes().tell(put(json("last", 8))).await;
    rules.becomes("last", Some(8)).await;
    assert_eq!(rules.last_error(), None, "that was put in force");
}

#[tokio::test]
async fn changes_in_a_database_that_is_not_configured_change_nothing() {
    let (_folder, settings) = of_file(&[json("a", 5)]);
    let rules = Running::start(settings).await;
    rules.loader.changes().pair("a", "*");
    rules.loader.changes().tell(put(json("b", 6))).await;
    rules.becomes("b", Some(6)).await;
    assert_eq!((rules.capacity("a"), rules.last_error()), (Some(5), None));
}
