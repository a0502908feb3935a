//! PostgreSQL: the tables `rate_limit_rule` and `api_key` (`conf/schema.sql`).
//!
//! `sslmode` in the URL means what it means to libpq: `disable`, `prefer` (the default), `require` (encrypted, not
//! verified unless `sslrootcert` is given), `verify-ca`, `verify-full`. Where a certificate is verified and no
//! `sslrootcert` is given, the system's certificates are trusted. Client certificates and `sslmode=allow` are refused.

mod kept;
mod table;

use std::borrow::Cow;
use std::collections::HashSet;
use std::error::Error as _;
use std::future::{Future, ready};
use std::time::Duration;

use futures_util::stream::TryReadyChunksError;
use futures_util::{StreamExt, TryStreamExt, pin_mut};
use openssl::ssl::{SslConnector, SslMethod, SslVerifyMode};
use postgres_openssl::{MakeTlsConnector, TlsStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Row, Socket};

pub(super) use self::kept::Kept;
use super::keys::KeyMerge;
use super::merge::Place;
use super::raw::{Entry, RawTerms};

/// For a connection, from name look-up to the end of authentication.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// For reading a whole table.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// For saying good-bye.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// So many rows are handed over at once.
const CHUNK: usize = 1000;

/// The columns of a rule, in the order of [`rule_of`], and whether a table has to have them.
pub(super) const RULE_COLUMNS: [(&str, bool); 10] = [
    ("tenant_id", true),
    ("route_id", true),
    ("capacity", true),
    ("refill_per_second", true),
    ("cost", false),
    ("on_store_failure", false),
    ("shards", false),
    ("mode", false),
    ("enabled", false),
    ("comment", false),
];

const KEY_COLUMNS: [(&str, bool); 2] = [("key_sha256", true), ("tenant_id", true)];

/// Why the rules database failed as a whole. Never contains the URL.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The URL cannot be understood.
    #[error("rules.database_url: {0}")]
    Url(String),
    /// No connection.
    #[error("no connection: {0}")]
    Connect(String),
    /// A statement failed.
    #[error("while reading table {table}: {problem}")]
    Read {
        /// Which table.
        table: &'static str,
        /// What the server says.
        problem: String,
    },
    /// It takes longer than a start may wait that has a snapshot.
    #[error("not read within {0:?}")]
    Slow(Duration),
    /// There is no such table.
    #[error("there is no table {0}, conf/schema.sql creates it")]
    NoTable(&'static str),
    /// A table lacks a column without which there is no rule.
    #[error("table {0} has no column {1}, conf/schema.sql shows what it needs")]
    NoColumn(&'static str, &'static str),
}

impl DatabaseError {
    /// Is it no use to try again with the same configuration?
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Url(_))
    }

    fn connect(error: &tokio_postgres::Error) -> Self {
        Self::Connect(whole(error))
    }
}

/// The side of a connection that moves its bytes.
pub(crate) type Connection = tokio_postgres::Connection<Socket, TlsStream<Socket>>;

/// Connects to the database of a URL.
pub(crate) async fn dial(limit: Duration, url: &str) -> Result<(Client, Connection), DatabaseError> {
    let (config, tls) = parse_url(url)?;
    timeout(limit, config.connect(tls))
        .await
        .map_err(|_| DatabaseError::Connect(format!("no answer within {limit:?}")))?
        .map_err(|error| DatabaseError::connect(&error))
}

/// A connection to the rules database.
pub(super) struct Database {
    client: Client,
    driver: Driver,
}

/// Moves the bytes of a connection; ends with it.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Database {
    /// Connects; gives up after [`CONNECT_TIMEOUT`].
    pub(super) async fn connect(url: &str) -> Result<Self, DatabaseError> {
        Self::connect_within(CONNECT_TIMEOUT, url).await
    }

    async fn connect_within(limit: Duration, url: &str) -> Result<Self, DatabaseError> {
        let (client, connection) = dial(limit, url).await?;
        let driver = Driver(tokio::spawn(async move {
            // Its error is also the error of the statement that waits for an answer.
            let _ = connection.await;
        }));
        Ok(Self { client, driver })
    }

    /// For statements of other modules.
    pub(super) fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Adds every row of `api_key` to `merge`.
    pub(super) async fn read_keys(&mut self, merge: &mut KeyMerge) -> Result<(), DatabaseError> {
        self.read("api_key", &KEY_COLUMNS, |rows| {
            let add = |row: &Row| {
                merge.add(Place::Row, row.try_get(0)?, row.try_get(1)?, None);
                Ok(())
            };
            ready(rows.iter().try_for_each(add).map_err(|error: tokio_postgres::Error| whole(&error)))
        })
        .await
    }

    /// Takes leave of the server.
    pub(super) async fn close(self) {
        let Self { client, mut driver } = self;
        drop(client);
        // A server that does not listen any more is no fault of what was read.
        let _ = timeout(CLOSE_TIMEOUT, &mut driver.0).await;
    }

    /// Streams a table in chunks, every value as text, so that INT and NUMERIC, VARCHAR and CHAR are one. Columns that the table
    /// does not have are NULL.
    async fn read<T>(
        &mut self,
        table: &'static str,
        columns: &[(&'static str, bool)],
        mut each: impl FnMut(Vec<Row>) -> T,
    ) -> Result<(), DatabaseError>
    where
        T: Future<Output = Result<(), String>>,
    {
        let failed = |error: tokio_postgres::Error| DatabaseError::Read { table, problem: whole(&error) };
        let reading = async {
            let transaction = self.client.build_transaction().read_only(true).start().await.map_err(failed)?;
            // LOCAL, so that a connection pooler hands no setting of ours to anybody else.
            let limit = format!("SET LOCAL statement_timeout = {}", READ_TIMEOUT.as_millis());
            transaction.batch_execute(&limit).await.map_err(failed)?;

            let there = transaction.query(COLUMNS, &[&table]).await.map_err(failed)?;
            let select = format!("SELECT {} FROM {table}", select_list(table, columns, &there)?);
            let rows = transaction.query_raw(&select, std::iter::empty::<&dyn ToSql>()).await.map_err(failed)?;
            let chunks = rows.try_ready_chunks(CHUNK);
            pin_mut!(chunks);
            while let Some(chunk) = chunks.next().await {
                // What comes before an error is of no use without the rest.
                let chunk = chunk.map_err(|TryReadyChunksError(_, error)| failed(error))?;
                each(chunk).await.map_err(|problem| DatabaseError::Read { table, problem })?;
            }
            transaction.commit().await.map_err(failed)
        };
        timeout(READ_TIMEOUT, reading).await.unwrap_or_else(|_| {
            Err(DatabaseError::Read { table, problem: format!("not done within {READ_TIMEOUT:?}") })
        })
    }
}

/// Which columns a table has.
const COLUMNS: &str = "SELECT attname::text FROM pg_attribute \
                       WHERE attrelid = to_regclass($1::text) AND attnum > 0 AND NOT attisdropped";

/// What to select of `columns`, given the answer to [`COLUMNS`].
fn select_list(table: &'static str, columns: &[(&'static str, bool)], there: &[Row]) -> Result<String, DatabaseError> {
    let there: Result<HashSet<&str>, _> = there.iter().map(|row| row.try_get(0)).collect();
    let there = there.map_err(|error| DatabaseError::Read { table, problem: whole(&error) })?;
    if there.is_empty() {
        return Err(DatabaseError::NoTable(table));
    }
    if let Some((column, _)) = columns.iter().find(|(column, needed)| *needed && !there.contains(column)) {
        return Err(DatabaseError::NoColumn(table, column));
    }
    let text = |(column, _): &(&str, bool)| -> Cow<'_, str> {
        if there.contains(column) { format!("{table}.{column}::text").into() } else { "NULL::text".into() }
    };
    Ok(columns.iter().map(text).collect::<Vec<_>>().join(", "))
}

pub(super) fn rule_of(row: &Row) -> Result<Entry<'_>, tokio_postgres::Error> {
    let text = |column: usize| row.try_get::<_, Option<&str>>(column);
    let terms = RawTerms {
        capacity: text(2)?,
        refill_per_second: text(3)?,
        refill: None,
        cost: text(4)?,
        on_store_failure: text(5)?.map(Cow::Borrowed),
        shards: text(6)?,
        mode: text(7)?.map(Cow::Borrowed),
        enabled: text(8)?,
        comment: text(9)?.map(Cow::Borrowed),
    };
    let (tenant_id, route_id) = (text(0)?.map(Cow::Borrowed), text(1)?.map(Cow::Borrowed));
    Ok(Entry { tenant_id, route_id, mode: terms.mode().ok(), terms: terms.judge() })
}

/// How much of TLS a URL asks for, beyond what tokio-postgres itself understands.
#[derive(Default)]
struct Verify {
    chain: bool,
    host: bool,
    roots: Option<String>,
}

/// Takes `sslmode` and `sslrootcert` out of the URL; the rest is tokio-postgres's.
fn parse_url(url: &str) -> Result<(Config, MakeTlsConnector), DatabaseError> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(DatabaseError::Url("allowed is postgres://user:password@host:port/database".into()));
    }
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let mut verify = Verify::default();
    let mut kept = Vec::new();
    for option in query.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("sslmode", "verify-ca")) => {
                verify.chain = true;
                kept.push("sslmode=require");
            }
            Some(("sslmode", "verify-full")) => {
                (verify.chain, verify.host) = (true, true);
                kept.push("sslmode=require");
            }
            Some(("sslmode", "disable" | "prefer" | "require")) => kept.push(option),
            Some(("sslmode", _)) => {
                let allowed = "sslmode: allowed are disable, prefer, require, verify-ca, verify-full";
                return Err(DatabaseError::Url(allowed.into()));
            }
            Some(("sslrootcert", path)) => {
                verify.chain = true;
                verify.roots = Some(percent_encoding::percent_decode_str(path).decode_utf8_lossy().into_owned());
            }
            _ => kept.push(option),
        }
    }
    let config = format!("{base}?{}", kept.join("&")).parse().map_err(|error| DatabaseError::Url(whole(&error)))?;
    let tls = connector(&verify).map_err(|error| DatabaseError::Url(format!("sslrootcert: {error}")))?;
    Ok((config, tls))
}

fn connector(verify: &Verify) -> Result<MakeTlsConnector, openssl::error::ErrorStack> {
    let mut builder = SslConnector::builder(SslMethod::tls_client())?;
    builder.set_verify(if verify.chain { SslVerifyMode::PEER } else { SslVerifyMode::NONE });
    if let Some(roots) = &verify.roots {
        builder.set_ca_file(roots)?;
    }
    let mut connector = MakeTlsConnector::new(builder.build());
    let host = verify.host;
    connector.set_callback(move |connection, _| {
        connection.set_verify_hostname(host);
        Ok(())
    });
    Ok(connector)
}

/// An error with its causes: tokio-postgres keeps what the server said in the cause.
pub(crate) fn whole(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // OpenSSL repeats itself at each level.
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::SslMode;

    use super::*;

    fn mode(query: &str) -> Result<SslMode, String> {
        let url = format!("postgres://me:hush-hush@127.0.0.1:1/db{query}");
        parse_url(&url).map(|(config, _)| config.get_ssl_mode()).map_err(|error| error.to_string())
    }

    #[test]
    fn sslmode_is_understood_as_by_libpq() {
        for (query, expected) in [
            ("", SslMode::Prefer),
            ("?sslmode=disable", SslMode::Disable),
            ("?connect_timeout=3&sslmode=prefer", SslMode::Prefer),
            ("?sslmode=require&application_name=x", SslMode::Require),
            ("?sslmode=verify-ca", SslMode::Require),
            ("?sslmode=verify-full", SslMode::Require),
        ] {
            assert_eq!(mode(query), Ok(expected), "{query}");
        }
    }

    #[test]
    fn a_url_that_cannot_be_understood_is_an_error_without_its_password() {
        for (query, expected) in [
            ("?sslmode=allow", "sslmode: allowed are disable, prefer, require, verify-ca, verify-full"),
            ("?sslcert=/x", "sslcert"),
            ("?sslrootcert=/nowhere/ca.pem", "sslrootcert: "),
            ("?connect_timeout=soon", "connect_timeout"),
        ] {
            let error = mode(query).unwrap_err();
            assert!(error.starts_with("rules.database_url: ") && error.contains(expected), "{error}");
            assert!(!error.contains("hush"), "{error}");
        }
        for url in
            ["host=localhost password=hush-hush", "mysql://me:hush-hush@host/db", "postgres://me:hush-hush@host:x/db"]
        {
            let error = parse_url(url).err().unwrap().to_string();
            assert!(!error.contains("hush"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_database_that_is_away_is_an_error_without_its_password() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = Database::connect(&format!("postgres://me:hush-hush@{closed}/db")).await.err().unwrap().to_string();
        assert!(error.contains("Connection refused") && !error.contains("hush"), "{error}");
    }

    #[tokio::test]
    async fn a_database_that_accepts_and_says_nothing_is_given_up() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://me:hush-hush@{}/db", silent.local_addr().unwrap());
        let error = Database::connect_within(Duration::from_millis(20), &url).await.err().unwrap().to_string();
        assert_eq!(error, "no connection: no answer within 20ms");
    }
}
