//! Reads rules and keys from their sources.
//!
//! | module | its one purpose |
//! |---|---|
//! | [`run`](Loader::run) | when to read what |
//! | `read` | a source of rules as a whole |
//! | `changes` | of the rules what has changed |
//! | `keys` | the API keys |
//! | `routes` | rules for routes that are not there |
//! | `check` | every source, nothing put in force |

mod changes;
mod check;
mod keys;
mod read;
mod routes;
mod run;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::timeout;

pub use self::check::Checked;
use self::read::Stamp;
use super::change::{Changes, Pairs};
use super::hold_back::HoldBack;
use super::judge::Judge;
use super::keys::Keys;
use super::postgres::{DatabaseError, Kept};
use super::report::{LoadError, Source};
use super::snapshot::Snapshot;
use super::{Rule, Rules};
use crate::config::{self, IdentityMode, Route, Secret};

/// The longest that a start waits for the database where there is a snapshot to start from.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// Where keys come from.
#[derive(Clone, Debug)]
enum KeySource {
    /// `identity.mode = "direct"`: there are none.
    None,
    File(PathBuf),
    Database,
}

/// Reads rules and keys from their sources into [`Rules`] and [`Keys`].
#[derive(Debug)]
pub struct Loader {
    settings: config::Rules,
    key_source: KeySource,
    routes: BTreeSet<String>,
    rules: Arc<Rules>,
    keys: Arc<Keys>,
    rules_snapshot: Option<Snapshot>,
    /// Beside that of the rules, where keys come from the database too.
    keys_snapshot: Option<Snapshot>,
    /// The unknown routes that the log was told of, so that it is not told again.
    told_routes: Mutex<BTreeSet<Arc<str>>>,
    changes: Arc<Changes>,
    /// The connection over which changed rules are read.
    kept: Mutex<Kept>,
    /// What was read of the changed while everything is being read.
    meanwhile: Mutex<Option<Pairs>>,
    /// The file as it was when it was read.
    file_read: Mutex<Option<Stamp>>,
    /// Did messages change rules since the file was read?
    told: AtomicBool,
    hold_back: Option<Mutex<HoldBack>>,
    judge: Option<Arc<dyn Judge>>,
}

impl Loader {
    /// A loader that has read nothing yet: until it has, the default rule applies to all.
    pub fn new(settings: &config::Rules, default_rule: &Rule, identity: &IdentityMode, routes: &[Route]) -> Self {
        let key_source = match identity {
            IdentityMode::Direct => KeySource::None,
            IdentityMode::Registered { keys_file: Some(path) } => KeySource::File(path.clone()),
            IdentityMode::Registered { keys_file: None } => KeySource::Database,
        };
        let snapshot = settings.snapshot.clone();
        let keys_snapshot = snapshot.clone().filter(|_| matches!(key_source, KeySource::Database));
        Self {
            settings: settings.clone(),
            key_source,
            routes: routes.iter().map(|route| route.id.clone()).collect(),
            rules: Arc::new(Rules::new(default_rule.clone())),
            keys: Arc::default(),
            rules_snapshot: snapshot.map(Snapshot::new),
            keys_snapshot: keys_snapshot.map(|path| Snapshot::new(path.with_extension("keys.json"))),
            told_routes: Mutex::default(),
            changes: Arc::default(),
            kept: Mutex::default(),
            meanwhile: Mutex::default(),
            file_read: Mutex::default(),
            told: AtomicBool::new(false),
            hold_back: (!settings.allow_mass_delete).then(|| Mutex::new(HoldBack::new(settings.refresh))),
            judge: None,
        }
    }

    /// From now on no rules come into force that `judge` has anything against.
    pub fn judge_by(&mut self, judge: Arc<dyn Judge>) {
        self.judge = Some(judge);
    }

    /// The rules in force.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// The keys in force.
    pub fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    /// Where messengers leave what changed, for [`run`](Self::run) to apply.
    pub fn changes(&self) -> &Arc<Changes> {
        &self.changes
    }

    /// [`start`](Self::start) on a runtime of its own that ends before this returns: no thread stays behind that a
    /// fork would lose. Not for use inside a runtime.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn initial_load(&self) -> Result<(), LoadError> {
        temporary_runtime()?.block_on(self.start())
    }

    /// The first load. With a database: from there, else from the snapshot, else from the file, else (loudly) only the
    /// default rule, all of which [`run`](Self::run) mends as soon as the database answers. Rules that are
    /// [judged](Self::judge_by) to be wrong are as good as none. Without: from the file.
    ///
    /// # Errors
    /// What a restart would not mend: a file, being the only source, that cannot be read as a whole or is judged to be
    /// wrong; a database URL that means nothing.
    pub async fn start(&self) -> Result<(), LoadError> {
        // Keys first: rules may be judged by them.
        self.start_keys().await?;
        match (&self.settings.database_url, &self.settings.file) {
            (Some(url), file) => self.start_from_database(url, file.as_deref()).await?,
            (None, Some(file)) => self.rules_from_file(Source::File, file).await?,
            (None, None) => tracing::warn!("no source of rules is configured: the default rule applies to all"),
        }
        Ok(())
    }

    async fn start_from_database(&self, url: &Secret, file: Option<&Path>) -> Result<(), LoadError> {
        let read = match patience(self.rules_snapshot.as_ref()) {
            None => self.rules_from_database(url).await,
            Some(patience) => timeout(patience, self.rules_from_database(url)).await.unwrap_or_else(|_| {
                let error = DatabaseError::Slow(patience).into();
                self.rules.failed(Source::Postgres, &error);
                Err(error)
            }),
        };
        match read {
            Err(error) if !error.is_final() => {}
            result => return result,
        }
        let fallbacks = [(Source::Snapshot, self.settings.snapshot.as_deref()), (Source::File, file)];
        for (source, path) in fallbacks.into_iter().filter_map(|(source, path)| Some((source, path?))) {
            if self.rules_from_file(source, path).await.is_ok() {
                tracing::warn!("starting with the rules of {} until the rules database answers", path.display());
                return Ok(());
            }
        }
        tracing::error!("NO RULES: the default rule applies to all until the rules database answers");
        Ok(())
    }
}

/// How long a start waits for the database: not long where there is something else to start from.
fn patience(snapshot: Option<&Snapshot>) -> Option<Duration> {
    snapshot?.age().map(|_| START_PATIENCE)
}

fn temporary_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
