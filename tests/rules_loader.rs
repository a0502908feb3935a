//! Loading rules and keys from files: at start, on change, on damage, in great number.

// A test fails by panicking, and measures real time.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sekisho::bucket::Limit;
use sekisho::config::{self, IdentityMode, Secret};
use sekisho::rules::{Loader, Rule, Source};
use tempfile::TempDir;
use tokio::sync::{Notify, watch};

fn default_rule() -> Rule {
    Rule::new("*", "*", Limit::new(77, 1.0).unwrap())
}

struct Case {
    folder: TempDir,
    settings: config::Rules,
}

impl Case {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = Some(folder.path().join("rules.json"));
        let refresh = Duration::from_secs(3600);
        Self { folder, settings: config::Rules { file, refresh, ..Default::default() } }
    }

    /// With a database that is away, and a snapshot.
    fn without_database() -> Self {
        let mut case = Self::new();
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        case.settings.database_url = Some(Secret(format!("postgres://me:hush-hush@{nobody}/rules")));
        case.settings.snapshot = Some(case.path("snapshot.json"));
        case
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).unwrap();
    }

    fn loader(&self) -> Loader {
        Loader::new(&self.settings, &default_rule(), &IdentityMode::Direct, &[])
    }
}

fn rule(tenant: &str, capacity: i64) -> String {
    format!(r#"{{"tenant_id": "{tenant}", "route_id": "*", "capacity": {capacity}, "refill_per_second": 1}}"#)
}

fn limit(loader: &Loader, tenant: &str) -> u32 {
    loader.rules().load().resolve(tenant, "orders").enforce.limit.capacity()
}

#[test]
fn the_file_is_loaded_and_bad_rules_are_named_with_their_line() {
    let case = Case::new();
    case.write("rules.json", &format!("[\n{},\n{}]", rule("a", 5), rule("b", 0)));
    let loader = case.loader();
    loader.initial_load().unwrap();
    assert_eq!((limit(&loader, "a"), limit(&loader, "b")), (5, 77));
    let status = loader.rules().status();
    assert_eq!((status.loaded, status.source, status.rejected.total), (1, Some(Source::File), 1));
    let fault = format!("{}:3: rule b/*: capacity is 0", case.path("rules.json").display());
    assert!(status.rejected.faults[0].starts_with(&fault), "{:?}", status.rejected.faults);
}

#[test]
fn a_damaged_file_is_an_error_at_start() {
    let case = Case::new();
    for content in [None, Some(""), Some("[{"), Some("{}")] {
        if let Some(content) = content {
            case.write("rules.json", content);
        }
        let error = case.loader().initial_load().unwrap_err().to_string();
        assert!(error.contains("rules.json"), "{error}");
    }
}

#[tokio::test]
async fn a_damaged_file_later_leaves_the_last_good_rules_and_is_told() {
    let case = Case::new();
    case.write("rules.json", &format!("[{}]", rule("a", 5)));
    let loader = case.loader();
    loader.start().await.unwrap();
    for damage in ["", "[", "{}", "[1]"] {
        case.write("rules.json", damage);
        loader.reload().await;
        assert_eq!(limit(&loader, "a"), 5, "{damage}");
    }
    case.write("rules.json", "");
    assert!(!loader.reload().await);
    assert!(loader.rules().status().last_error.is_some_and(|error| error.contains("rules.json:1: the file is empty")));
    case.write("rules.json", &format!("[{}]", rule("a", 6)));
    assert!(loader.reload().await);
    assert_eq!((limit(&loader, "a"), loader.rules().status().last_error), (6, None));
}

#[tokio::test]
async fn a_reload_without_changes_keeps_the_very_set() {
    let case = Case::new();
    case.write("rules.json", &format!("[{}]", rule("a", 5)));
    let loader = case.loader();
    loader.start().await.unwrap();
    let before = Arc::clone(&loader.rules().load());
    assert!(loader.reload().await);
    assert!(Arc::ptr_eq(&before, &loader.rules().load()));
}

#[test]
fn without_the_database_the_snapshot_counts_then_the_file_then_the_default_rule() {
    let case = Case::without_database();
    case.write("snapshot.json", &format!("[{}]", rule("a", 5)));
    case.write("rules.json", &format!("[{}]", rule("a", 6)));
    let start = || {
        let loader = case.loader();
        loader.initial_load().unwrap();
        (limit(&loader, "a"), loader.rules().status().source)
    };
    assert_eq!(start(), (5, Some(Source::Snapshot)));
    case.write("snapshot.json", "[{");
    assert_eq!(start(), (6, Some(Source::File)));
    case.write("rules.json", "");
    assert_eq!(start(), (77, None));
}

#[test]
fn a_database_url_that_means_nothing_is_an_error_at_start() {
    let mut case = Case::without_database();
    case.settings.database_url = Some(Secret("postgres://me:hush-hush@host/db?sslmode=maybe".into()));
    let error = case.loader().initial_load().unwrap_err().to_string();
    assert!(error.contains("rules.database_url: sslmode") && !error.contains("hush"), "{error}");
}

#[test]
fn keys_come_from_their_file_or_the_start_fails() {
    let case = Case::new();
    case.write("rules.json", "[]");
    let registered =
        |keys_file| Loader::new(&case.settings, &default_rule(), &IdentityMode::Registered { keys_file }, &[]);
    let loader = registered(Some(case.path("keys.json")));
    assert!(loader.initial_load().unwrap_err().to_string().contains("keys.json"));
    case.write("keys.json", &format!(r#"[{{"key_sha256": "{}", "tenant": "shop-a"}}]"#, "0f".repeat(32)));
    loader.initial_load().unwrap();
    assert_eq!(loader.keys().tenant(&[0x0f; 32]).as_deref(), Some("shop-a"));
    assert!(registered(None).initial_load().is_err(), "nothing knows keys");
}

#[test]
fn check_names_every_fault_of_every_source_and_warns_of_what_it_cannot_reach() {
    let case = Case::without_database();
    case.write("rules.json", &format!("[{},\n{},\n{}]", rule("a", 0), rule("b", 5), rule("c", -1)));
    let checked = case.loader().check();
    assert_eq!((checked.rules, checked.faults.len(), checked.warnings.len()), (1, 2, 1), "{checked:?}");
    assert!(checked.faults[1].contains("rules.json:3: rule c/*: capacity is -1"), "{checked:?}");
    assert!(checked.warnings[0].starts_with("rules database: no connection") && !checked.warnings[0].contains("hush"));

    case.write("rules.json", r#"[{"tenant_id": "a", "route_id": "nowhere", "capacity": 1, "refill_per_second": 1}]"#);
    let checked = case.loader().check();
    assert_eq!(checked.faults, [] as [String; 0]);
    assert!(checked.warnings.iter().any(|warning| warning.contains("nowhere")), "{checked:?}");
}

#[tokio::test]
async fn run_reloads_when_told_and_ends_at_shutdown() {
    let case = Case::new();
    case.write("rules.json", &format!("[{}]", rule("a", 5)));
    let loader = Arc::new(case.loader());
    loader.start().await.unwrap();
    let (stop, stopped) = watch::channel(false);
    let hangup = Arc::new(Notify::new());
    let running = tokio::spawn({
        let (loader, hangup) = (Arc::clone(&loader), Arc::clone(&hangup));
        async move { loader.run(&hangup, stopped).await }
    });
    case.write("rules.json", &format!("[{}]", rule("a", 6)));
    hangup.notify_one();
    let deadline = Instant::now() + Duration::from_secs(10);
    while limit(&loader, "a") != 6 {
        assert!(Instant::now() < deadline, "not reloaded");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.send(true).unwrap();
    tokio::time::timeout(Duration::from_secs(10), running).await.unwrap().unwrap();
}

/// Kilobytes of this process: (now, at most so far).
fn resident() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kilobytes = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    (kilobytes("VmRSS:"), kilobytes("VmHWM:"))
}

fn many_rules(path: &Path, capacity: u32) {
    let mut out = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    let mut comma = "[";
    for tenant in 0..100_000 {
        for route in ["create-order", "list-orders", "export", "search"] {
            let ids = format!(r#""tenant_id": "tenant-{tenant:06}", "route_id": "{route}""#);
            writeln!(out, r#"{comma}{{{ids}, "capacity": {capacity}, "refill_per_second": 100}}"#).unwrap();
            comma = ",";
        }
    }
    writeln!(out, "]").unwrap();
}

/// In a process of its own, where nothing else takes memory:
/// `cargo test --test rules_loader -- --ignored --nocapture hundred_thousand`
#[test]
#[ignore = "measures the whole process, so has to run alone"]
fn a_hundred_thousand_tenants_load_fast_and_stay_small() {
    let case = Case::new();
    many_rules(&case.path("rules.json"), 200);
    let loader = case.loader();
    let before = Instant::now();
    loader.initial_load().unwrap();
    println!("loaded {} rules in {:?}, {:?} kB", loader.rules().status().loaded, before.elapsed(), resident());
    assert!(before.elapsed() < Duration::from_secs(5));

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for capacity in [200, 201, 202, 203] {
        many_rules(&case.path("rules.json"), capacity);
        let before = Instant::now();
        assert!(runtime.block_on(loader.reload()));
        println!("reloaded (capacity {capacity}) in {:?}, {:?} kB", before.elapsed(), resident());
        assert_eq!(loader.rules().load().resolve("tenant-099999", "search").enforce.limit.capacity(), capacity);
    }
    assert!(resident().1 < 200_000, "{:?}", resident());
}
