//! PostgreSQL: a database of its own for each test, and a server of its own for tests that stop it.

use std::process::Command;

use tokio_postgres::{Client, NoTls};

use super::redis_server::unique;

/// The table as many teams already have it, without the newer columns.
const TABLE: &str = "CREATE TABLE rate_limit_rule (
    id BIGSERIAL PRIMARY KEY, tenant_id VARCHAR(64) NOT NULL, route_id VARCHAR(64) NOT NULL,
    capacity INT NOT NULL CHECK (capacity > 0), refill_per_second INT NOT NULL CHECK (refill_per_second > 0),
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now(), UNIQUE (tenant_id, route_id));";

/// A fresh database with the plain rules table.
pub(crate) struct Database {
    pub(crate) url: String,
    pub(crate) client: Client,
}

impl Database {
    /// On the server that all tests share.
    pub(crate) async fn create() -> Self {
        let server = std::env::var("SEKISHO_TEST_POSTGRES_URL")
            .expect("SEKISHO_TEST_POSTGRES_URL is not set: run `make test`, or `scripts/services.sh run cargo test`");
        Self::create_on(&server).await
    }

    /// On the server with this URL.
    pub(crate) async fn create_on(server: &str) -> Self {
        let name = unique();
        connect(server).await.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        let client = connect(&url).await;
        client.batch_execute(TABLE).await.unwrap();
        Self { url, client }
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A PostgreSQL server of the test's own; ended when dropped.
pub(crate) struct PrivatePostgres {
    pub(crate) url: String,
    dir: Option<String>,
}

impl PrivatePostgres {
    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/services.sh");

    pub(crate) fn start() -> Self {
        let output = Command::new(Self::SCRIPT).args(["start", "postgres"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("export {name}="))).unwrap();
            line.trim_matches('\'').to_owned()
        };
        Self { url: value("SEKISHO_TEST_POSTGRES_URL"), dir: Some(value("SEKISHO_TEST_SERVICES")) }
    }

    /// Ends it for good.
    pub(crate) fn stop(&mut self) {
        if let Some(dir) = self.dir.take() {
            assert!(Command::new(Self::SCRIPT).args(["stop", &dir]).status().unwrap().success());
        }
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        self.stop();
    }
}
