//! Rules and keys from a real PostgreSQL.

// A test fails by panicking, and measures real time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sekisho::bucket::Limit;
use sekisho::config::{self, IdentityMode, Secret};
use sekisho::rules::{FailurePolicy, Loader, Mode, Rule, Source};
use tokio_postgres::{Client, NoTls};

const SCHEMA: &str = include_str!("../conf/schema.sql");

/// The table as many teams already have it.
const PLAIN_TABLE: &str = "CREATE TABLE rate_limit_rule (
    id BIGSERIAL PRIMARY KEY, tenant_id VARCHAR(64) NOT NULL, route_id VARCHAR(64) NOT NULL,
    capacity INT NOT NULL CHECK (capacity > 0), refill_per_second INT NOT NULL CHECK (refill_per_second > 0),
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now(), UNIQUE (tenant_id, route_id));";

/// A table that keeps nothing out.
const LAX_TABLE: &str = "CREATE TABLE rate_limit_rule (tenant_id TEXT, route_id TEXT, capacity BIGINT,
    refill_per_second NUMERIC, cost INT, mode TEXT, enabled BOOLEAN, shards INT, on_store_failure TEXT);";

/// A database of its own for each test.
struct Database {
    url: String,
    client: Client,
}

impl Database {
    async fn create(sql: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let server = std::env::var("SEKISHO_TEST_POSTGRES_URL")
            .expect("SEKISHO_TEST_POSTGRES_URL is not set: run through `make test`");
        let name = format!("rules_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        connect(&server).await.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        let client = connect(&url).await;
        client.batch_execute(sql).await.unwrap();
        Self { url, client }
    }

    async fn execute(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    fn settings(&self) -> config::Rules {
        let refresh = Duration::from_secs(3600);
        config::Rules { database_url: Some(Secret(self.url.clone())), refresh, ..Default::default() }
    }

    fn loader(&self) -> Loader {
        loader(&self.settings(), &IdentityMode::Direct)
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn loader(settings: &config::Rules, identity: &IdentityMode) -> Loader {
    let default_rule = Rule::new("*", "*", Limit::new(77, 1.0).unwrap());
    Loader::new(settings, &default_rule, identity, &[])
}

fn get(loader: &Loader, tenant: &str) -> Option<Rule> {
    let rules = loader.rules().load();
    let of = |mode| rules.get(tenant, "*", mode).map(|rule| (**rule).clone());
    of(Mode::Enforce).or_else(|| of(Mode::Shadow))
}

fn capacity(loader: &Loader, tenant: &str) -> Option<u32> {
    get(loader, tenant).map(|rule| rule.limit.capacity())
}

fn insert(tenant: &str, capacity: i64) -> String {
    format!(
        "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second)
         VALUES ('{tenant}', '*', {capacity}, 1);"
    )
}

#[tokio::test]
async fn a_plain_table_works_as_it_is() {
    let database = Database::create(PLAIN_TABLE).await;
    database.execute(&insert("a", 5)).await;
    let loader = database.loader();
    loader.start().await.unwrap();
    let rule = get(&loader, "a").unwrap();
    assert_eq!(rule.limit, Limit::new(5, 1.0).unwrap());
    assert_eq!(
        (rule.cost, rule.on_store_failure, rule.shards, rule.mode, rule.enabled),
        (None, None, 1, Mode::Enforce, true)
    );
    let status = loader.rules().status();
    assert_eq!((status.source, status.loaded, status.rejected.total), (Some(Source::Postgres), 1, 0));
}

#[tokio::test]
async fn the_shipped_schema_holds_every_field() {
    let database = Database::create(SCHEMA).await;
    database
        .execute(
            "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second, cost, on_store_failure, mode,
                 enabled, comment)
             VALUES ('full', '*', 9, 0.001, 4, 'closed', 'shadow', false, 'why'), ('plain', '*', 9, 1.5, NULL, NULL,
                 DEFAULT, DEFAULT, NULL)",
        )
        .await;
    let loader = database.loader();
    loader.start().await.unwrap();
    let full = get(&loader, "full").unwrap();
    assert_eq!(full.limit, Limit::new(9, 0.001).unwrap());
    assert_eq!(full.cost.map(u32::from), Some(4));
    assert_eq!((full.on_store_failure, full.mode, full.enabled), (Some(FailurePolicy::Closed), Mode::Shadow, false));
    assert_eq!(full.comment.as_deref(), Some("why"));
    let plain = get(&loader, "plain").unwrap();
    assert_eq!((plain.limit, plain.cost, plain.enabled), (Limit::new(9, 1.5).unwrap(), None, true));
}

#[tokio::test]
async fn the_schema_upgrades_a_plain_table_without_losing_rows_and_may_be_applied_again() {
    let database = Database::create(PLAIN_TABLE).await;
    database.execute(&insert("a", 5)).await;
    for _ in 0..2 {
        database.execute(SCHEMA).await;
        database.execute("UPDATE rate_limit_rule SET refill_per_second = 0.25, mode = 'shadow'").await;
    }
    let loader = database.loader();
    loader.start().await.unwrap();
    let rule = get(&loader, "a").unwrap();
    assert_eq!((rule.limit, rule.mode), (Limit::new(5, 0.25).unwrap(), Mode::Shadow));
}

#[tokio::test]
async fn bad_rows_are_named_and_left_out_or_keep_their_last_good_version() {
    let database = Database::create(LAX_TABLE).await;
    database.execute(&(insert("good", 5) + &insert("changes", 6))).await;
    let loader = database.loader();
    loader.start().await.unwrap();
    database
        .execute(
            "UPDATE rate_limit_rule SET capacity = 0 WHERE tenant_id = 'changes';
             UPDATE rate_limit_rule SET capacity = 8 WHERE tenant_id = 'good';
             INSERT INTO rate_limit_rule VALUES
                 ('null-capacity', '*', NULL, 1), ('null-refill', '*', 1, NULL), ('large', '*', 2147483648, 1),
                 ('not-a-number', '*', 5, 'NaN'), ('negative', '*', 5, -1), ('', 'empty', 5, 1),
                 (repeat('x', 65), 'long', 5, 1), ('twice', '*', 5, 1), ('twice', '*', 6, 1);
             INSERT INTO rate_limit_rule VALUES
                 ('cost', '*', 5, 1, 6, NULL, NULL, NULL, NULL), ('mode', '*', 5, 1, 1, 'off', true, 1, 'local'),
                 ('shards', '*', 30, 1, 1, NULL, true, 2, NULL), ('policy', '*', 5, 1, 1, NULL, NULL, NULL, 'maybe')",
        )
        .await;
    assert!(loader.reload().await);
    assert_eq!((capacity(&loader, "good"), capacity(&loader, "changes")), (Some(8), Some(6)));
    let status = loader.rules().status();
    assert_eq!((status.loaded, status.rejected.total), (2, 13), "{:#?}", status.rejected.faults);
    for fault in [
        "rules database: changes/*: capacity is 0, allowed are integers from 1 to 2147483647",
        "rules database: null-capacity/*: capacity is missing",
        "rules database: null-refill/*: neither refill_per_second nor refill is given",
        "rules database: large/*: capacity is 2147483648",
        "rules database: not-a-number/*: refill is NaN",
        "rules database: negative/*: refill is -1",
        "rules database: /empty: tenant_id is empty",
        "long: tenant_id has 65 characters",
        "rules database: cost/*: cost is 6, allowed is at most the capacity, 5",
        "rules database: mode/*: mode is \"off\"",
        "rules database: shards/*: shards is 2",
        "rules database: policy/*: on_store_failure is \"maybe\"",
        "rules database: twice/*: is there more than once",
    ] {
        assert!(status.rejected.faults.iter().any(|f| f.contains(fault)), "{fault}: {:#?}", status.rejected.faults);
    }
}

#[tokio::test]
async fn a_row_for_nobody_lets_no_rule_go_away() {
    let database = Database::create(LAX_TABLE).await;
    database.execute(&insert("a", 5)).await;
    let loader = database.loader();
    loader.start().await.unwrap();
    database.execute("UPDATE rate_limit_rule SET tenant_id = NULL").await;
    loader.reload().await;
    assert_eq!(capacity(&loader, "a"), Some(5));
    assert!(loader.rules().status().rejected.faults[0].starts_with("rules database: ?/*: tenant_id is missing"));
}

#[tokio::test]
async fn a_table_or_column_that_is_missing_leaves_the_last_good_rules() {
    let database = Database::create(PLAIN_TABLE).await;
    database.execute(&insert("a", 5)).await;
    let loader = database.loader();
    loader.start().await.unwrap();
    for (damage, repair, expected) in [
        (
            "ALTER TABLE rate_limit_rule RENAME TO gone",
            "ALTER TABLE gone RENAME TO rate_limit_rule",
            "rules database: there is no table rate_limit_rule, conf/schema.sql creates it",
        ),
        (
            "ALTER TABLE rate_limit_rule RENAME capacity TO burst",
            "ALTER TABLE rate_limit_rule RENAME burst TO capacity",
            "rules database: table rate_limit_rule has no column capacity, conf/schema.sql shows what it needs",
        ),
    ] {
        database.execute(damage).await;
        assert!(!loader.reload().await);
        let status = loader.rules().status();
        assert_eq!((status.last_error.as_deref(), capacity(&loader, "a")), (Some(expected), Some(5)));
        database.execute(repair).await;
        assert!(loader.reload().await);
        assert_eq!(loader.rules().status().last_error, None);
    }
}

#[tokio::test]
async fn what_the_server_says_is_told() {
    let database = Database::create(PLAIN_TABLE).await;
    database.execute("CREATE ROLE nobody_may LOGIN").await;
    let mut settings = database.settings();
    settings.database_url = Some(Secret(database.url.replace("postgres@", "nobody_may:hush-hush@")));
    let loader = loader(&settings, &IdentityMode::Direct);
    loader.start().await.unwrap();
    database.execute("DROP ROLE nobody_may").await;
    let error = loader.rules().status().last_error.unwrap();
    assert!(error.contains("permission denied for table rate_limit_rule") && !error.contains("hush"), "{error}");
}

/// What comes of connecting with these options.
async fn error_with(url: &str, options: &str) -> Option<String> {
    let refresh = Duration::from_secs(3600);
    let database_url = Some(Secret(format!("{url}?{options}")));
    let settings = config::Rules { database_url, refresh, ..Default::default() };
    let loader = loader(&settings, &IdentityMode::Direct);
    loader.start().await.unwrap();
    loader.rules().status().last_error
}

/// A certificate for `localhost` that vouches for itself: (certificate, key).
fn certificate(folder: &Path) -> (PathBuf, PathBuf) {
    let (certificate, key) = (folder.join("server.crt"), folder.join("server.key"));
    let made = std::process::Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost"])
        .arg("-out")
        .arg(&certificate)
        .arg("-keyout")
        .arg(&key)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (certificate, key)
}

#[tokio::test]
async fn tls_is_required_and_verified_as_sslmode_says() {
    let database = Database::create(PLAIN_TABLE).await;
    let by_address = database.url.clone();
    let by_name = database.url.replace("127.0.0.1", "localhost");
    for (mode, works) in [("disable", true), ("prefer", true), ("require", false), ("verify-full", false)] {
        let error = error_with(&by_address, &format!("sslmode={mode}")).await;
        assert_eq!(error.is_none(), works, "without TLS, {mode}: {error:?}");
    }

    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = certificate(folder.path());
    for path in [&certificate, &key] {
        let (pem, name) = (std::fs::read_to_string(path).unwrap(), path.file_name().unwrap().to_str().unwrap());
        let lines = format!("SELECT unnest(string_to_array('{}', E'\\n'))", pem.trim_end());
        database.execute(&format!("COPY ({lines}) TO PROGRAM 'umask 077; cat > {name}'")).await;
    }
    database.execute("ALTER SYSTEM SET ssl = on").await;
    database.execute("SELECT pg_reload_conf()").await;
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Some(error) = error_with(&by_address, "sslmode=require").await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let roots = format!("&sslrootcert={}", certificate.display());
    for (url, mode, roots, works) in [
        (&by_address, "prefer", "", true),
        (&by_address, "verify-ca", "", false),
        (&by_address, "verify-ca", &*roots, true),
        (&by_address, "verify-full", &*roots, false),
        (&by_name, "verify-full", &*roots, true),
        (&by_name, "verify-full", "", false),
    ] {
        let error = error_with(url, &format!("sslmode={mode}{roots}")).await;
        assert_eq!(error.is_none(), works, "{mode}{roots}: {error:?}");
        assert!(error.is_none_or(|error| error.contains("certificate verify failed")));
    }
    database.execute("ALTER SYSTEM RESET ssl").await;
    database.execute("SELECT pg_reload_conf()").await;
}

fn inode(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().ino()
}

#[tokio::test]
async fn the_snapshot_is_written_when_rules_change_and_serves_a_start_without_database() {
    let database = Database::create(PLAIN_TABLE).await;
    database.execute(&insert("a", 5)).await;
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("snapshot.json");
    let mut settings = database.settings();
    settings.snapshot = Some(path.clone());
    let first = loader(&settings, &IdentityMode::Direct);
    first.start().await.unwrap();
    let written = inode(&path);
    first.reload().await;
    assert_eq!(inode(&path), written, "nothing changed");
    database.execute("UPDATE rate_limit_rule SET capacity = 6").await;
    first.reload().await;
    assert_ne!(inode(&path), written);

    let away = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = settings.database_url.replace(Secret(format!("postgres://{away}/rules")));
    let second = loader(&settings, &IdentityMode::Direct);
    second.start().await.unwrap();
    assert_eq!((capacity(&second, "a"), second.rules().status().source), (Some(6), Some(Source::Snapshot)));

    std::fs::remove_file(&path).unwrap();
    settings.database_url = url;
    let third = loader(&settings, &IdentityMode::Direct);
    third.start().await.unwrap();
    std::fs::remove_file(&path).unwrap();
    third.reload().await;
    assert!(path.exists(), "a snapshot that somebody removed is written again");
}

#[tokio::test]
async fn keys_come_from_the_database_where_there_is_no_file() {
    let database = Database::create(SCHEMA).await;
    database
        .execute("INSERT INTO api_key (key_sha256, tenant_id) VALUES (encode(sha256('the key'), 'hex'), 'shop-a')")
        .await;
    let loader = loader(&database.settings(), &IdentityMode::Registered { keys_file: None });
    loader.start().await.unwrap();
    let hash: [u8; 32] =
        sha2::Digest::finalize(sha2::Digest::chain_update(<sha2::Sha256 as sha2::Digest>::new(), b"the key")).into();
    assert_eq!(loader.keys().tenant(&hash).as_deref(), Some("shop-a"));

    database.execute("ALTER TABLE api_key RENAME TO gone").await;
    assert!(!loader.reload().await);
    assert_eq!(loader.keys().tenant(&hash).as_deref(), Some("shop-a"));
    let error = loader.keys().status().last_error.unwrap();
    assert_eq!(error, "rules database: there is no table api_key, conf/schema.sql creates it");

    database.execute("ALTER TABLE gone RENAME TO api_key; DELETE FROM api_key").await;
    assert!(loader.reload().await);
    assert_eq!(loader.keys().tenant(&hash), None);
}

#[tokio::test]
async fn a_hundred_thousand_tenants_load_in_less_than_five_seconds() {
    let database = Database::create(PLAIN_TABLE).await;
    database
        .execute(
            "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second)
             SELECT 'tenant-' || t, 'route-' || r, 200, 100 FROM generate_series(1, 100000) t, generate_series(1, 4) r",
        )
        .await;
    let loader = database.loader();
    let before = Instant::now();
    loader.start().await.unwrap();
    println!("loaded {} rules in {:?}", loader.rules().status().loaded, before.elapsed());
    assert_eq!(loader.rules().status().loaded, 400_000);
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    assert!(loader.rules().load().get("tenant-100000", "route-4", Mode::Enforce).is_some());
}

/// A database URL that leads nowhere.
fn away() -> Option<Secret> {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    Some(Secret(format!("postgres://{nobody}/rules")))
}

#[tokio::test]
async fn keys_from_the_database_have_a_snapshot_too() {
    let database = Database::create(SCHEMA).await;
    database
        .execute("INSERT INTO api_key (key_sha256, tenant_id) VALUES (encode(sha256('the key'), 'hex'), 'shop-a')")
        .await;
    let folder = tempfile::tempdir().unwrap();
    let mut settings = database.settings();
    settings.snapshot = Some(folder.path().join("rules.json"));
    let registered = IdentityMode::Registered { keys_file: None };
    let first = loader(&settings, &registered);
    first.start().await.unwrap();
    let path = folder.path().join("rules.keys.json");
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);

    settings.database_url = away();
    let hash: [u8; 32] =
        sha2::Digest::finalize(sha2::Digest::chain_update(<sha2::Sha256 as sha2::Digest>::new(), b"the key")).into();
    let second = loader(&settings, &registered);
    second.start().await.unwrap();
    assert_eq!(second.keys().tenant(&hash).as_deref(), Some("shop-a"));
    assert_eq!(second.keys().status().source, Some(Source::Snapshot));
    assert!(second.keys().status().last_error.is_none(), "it was read well");
    assert!(!second.reload().await);
    assert!(second.keys().status().last_error.is_some());
    assert_eq!(second.keys().tenant(&hash).as_deref(), Some("shop-a"));

    std::fs::write(&path, b"\x00\xff").unwrap();
    let third = loader(&settings, &registered);
    third.start().await.unwrap();
    assert_eq!(third.keys().tenant(&hash), None);
    let error = third.keys().status().last_error.unwrap();
    assert!(error.contains("rules.keys.json"), "{error}");
}

#[tokio::test]
async fn an_old_snapshot_serves_and_its_age_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot.json");
    std::fs::write(&path, r#"[{"tenant_id": "a", "route_id": "*", "capacity": 5, "refill_per_second": 1}]"#).unwrap();
    let old = std::time::SystemTime::now() - Duration::from_secs(86_400);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
    let settings = config::Rules { database_url: away(), snapshot: Some(path), ..Default::default() };
    let loader = loader(&settings, &IdentityMode::Direct);
    loader.start().await.unwrap();
    assert_eq!(capacity(&loader, "a"), Some(5));
    let age = loader.rules().status().age.unwrap();
    assert!(age >= Duration::from_secs(86_000), "{age:?}");
}

#[tokio::test]
async fn a_statement_that_takes_minutes_delays_a_start_by_seconds() {
    let database = Database::create(
        "CREATE VIEW rate_limit_rule AS SELECT 'a' AS tenant_id, '*' AS route_id, 5 AS capacity,
             1 AS refill_per_second FROM (SELECT pg_sleep(100)) AS slow",
    )
    .await;
    let folder = tempfile::tempdir().unwrap();
    let mut settings = database.settings();
    let path = folder.path().join("snapshot.json");
    std::fs::write(&path, r#"[{"tenant_id": "a", "route_id": "*", "capacity": 6, "refill_per_second": 1}]"#).unwrap();
    settings.snapshot = Some(path);
    let loader = loader(&settings, &IdentityMode::Direct);
    let start = Instant::now();
    loader.start().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let status = loader.rules().status();
    assert_eq!((capacity(&loader, "a"), status.source), (Some(6), Some(Source::Snapshot)));
}

#[tokio::test]
async fn columns_of_the_wrong_type_are_faults_of_their_rows() {
    let table = "CREATE TABLE rate_limit_rule (tenant_id JSON, route_id TEXT, capacity TEXT,
                     refill_per_second DOUBLE PRECISION, cost TEXT, enabled TEXT)";
    let database = Database::create(table).await;
    database
        .execute(
            r#"INSERT INTO rate_limit_rule VALUES
                 ('5', '*', '5', 1, NULL, 'true'), ('"a"', '*', 'many', 1, NULL, NULL),
                 ('6', '*', '5', 'Infinity', NULL, NULL), ('7', '*', '5', 1, 'lots', NULL),
                 ('8', '*', '5', 1, NULL, 'perhaps'), ('9', '*', '5.5', 1, NULL, NULL)"#,
        )
        .await;
    let loader = database.loader();
    loader.start().await.unwrap();
    let status = loader.rules().status();
    assert_eq!((status.loaded, status.rejected.total), (1, 5), "{:#?}", status.rejected.faults);
    assert_eq!(capacity(&loader, "5"), Some(5), "text that says a number is one");
    for fault in ["capacity is", "refill", "cost is", "enabled is"] {
        assert!(status.rejected.faults.iter().any(|f| f.contains(fault)), "{fault}: {:#?}", status.rejected.faults);
    }

    // A table of the same name that has nothing to do with it.
    database.execute("DROP TABLE rate_limit_rule; CREATE TABLE rate_limit_rule (rule POINT)").await;
    assert!(!loader.reload().await);
    assert_eq!(capacity(&loader, "5"), Some(5));
    assert!(loader.rules().status().last_error.unwrap().contains("has no column tenant_id"));
}
