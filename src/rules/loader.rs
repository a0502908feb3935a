//! When to read which source: at start, every `rules.refresh`, on SIGHUP, and sooner after a failure.

mod check;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

pub use self::check::Checked;
use super::change::Changes;
use super::file::read_rules;
use super::keys::{KeyMerge, Keys, read_keys};
use super::merge::{Merge, Merged};
use super::postgres::{Database, DatabaseError};
use super::report::{LoadError, Rejected, SnapshotState, Source};
use super::snapshot::{Snapshot, write_keys, write_rules};
use super::{ANY, Rule, RuleSet, Rules};
use crate::config::{self, IdentityMode, Route, Secret};

/// The pause after a first failure; doubled with each further one, up to `rules.refresh`.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The longest that a start waits for the database where there is a snapshot to start from.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// So many unknown routes are named in one line of the log.
const MOST_ROUTES_NAMED: usize = 10;

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
    changes: Arc<Changes>,
    rules_snapshot: Option<Snapshot>,
    /// Beside that of the rules, where keys come from the database too.
    keys_snapshot: Option<Snapshot>,
    /// The unknown routes that the log was told of, so that it is not told again.
    told_routes: Mutex<BTreeSet<Arc<str>>>,
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
            changes: Arc::default(),
            rules_snapshot: snapshot.map(Snapshot::new),
            keys_snapshot: keys_snapshot.map(|path| Snapshot::new(path.with_extension("keys.json"))),
            told_routes: Mutex::default(),
        }
    }

    /// The rules in force.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// The keys in force.
    pub fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    /// Where messengers leave what changed.
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
    /// default rule, all of which [`run`](Self::run) mends as soon as the database answers. Without: from the file.
    ///
    /// # Errors
    /// What a restart would not mend: a file, being the only source, that cannot be read as a whole; a database URL
    /// that means nothing.
    pub async fn start(&self) -> Result<(), LoadError> {
        match (&self.settings.database_url, &self.settings.file) {
            (Some(url), file) => self.start_from_database(url, file.as_deref()).await?,
            (None, Some(file)) => self.rules_from_file(Source::File, file).await?,
            (None, None) => tracing::warn!("no source of rules is configured: the default rule applies to all"),
        }
        self.start_keys().await
    }

    async fn start_keys(&self) -> Result<(), LoadError> {
        let read = match patience(self.keys_snapshot.as_ref()) {
            None => self.reload_keys().await,
            Some(patience) => timeout(patience, self.reload_keys()).await.unwrap_or_else(|_| {
                let error = DatabaseError::Slow(patience).into();
                self.keys.failed(Source::Postgres, &error);
                Err(error)
            }),
        };
        match read {
            Err(LoadError::Database(error)) if !error.is_final() => {}
            result => return result,
        }
        if let Some(snapshot) = &self.keys_snapshot
            && self.keys_from_snapshot(snapshot).await.is_ok()
        {
            tracing::warn!("starting with the API keys of {} until the database answers", snapshot.path().display());
            return Ok(());
        }
        tracing::error!("no API keys are known until the rules database answers: requests get 401");
        Ok(())
    }

    async fn keys_from_snapshot(&self, snapshot: &Snapshot) -> Result<(), LoadError> {
        let merge = file_keys(snapshot.path(), self.keys.merge(Rejected::default())).await;
        let merge = merge.inspect_err(|error| self.keys.failed(Source::Snapshot, error))?;
        self.keys.replace(Source::Snapshot, merge);
        self.keys.snapshot(SnapshotState::Read { age: snapshot.age().unwrap_or_default() });
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
            Err(LoadError::Database(error)) if !error.is_final() => {}
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

    /// Reads rules and keys anew; on a failure what is in force stays. Says whether all went well. One at a time.
    pub async fn reload(&self) -> bool {
        let rules = match (&self.settings.database_url, &self.settings.file) {
            (Some(url), _) => self.rules_from_database(url).await,
            (None, Some(file)) => self.rules_from_file(Source::File, file).await,
            (None, None) => Ok(()),
        };
        // Errors are already in the record, and logged.
        self.reload_keys().await.is_ok() & rules.is_ok()
    }

    /// Reloads every `rules.refresh`, whenever `hangup` is notified, and sooner after a failure, until `shutdown`
    /// changes.
    pub async fn run(&self, hangup: &Notify, mut shutdown: watch::Receiver<bool>) {
        let healthy = |record: super::Status| record.last_error.is_none();
        let mut failures = u32::from(!(healthy(self.rules.status()) && healthy(self.keys.status())));
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause(failures, self.settings.refresh)) => {}
                () = hangup.notified() => tracing::info!("reloading rules"),
                _ = self.changes.take() => {}
                _ = shutdown.changed() => return,
            }
            tokio::select! {
                good = self.reload() => failures = if good { 0 } else { failures.saturating_add(1) },
                _ = shutdown.changed() => return,
            }
        }
    }

    async fn rules_from_file(&self, source: Source, path: &Path) -> Result<(), LoadError> {
        let outcome = file_rules(path, Merge::new(self.rules.in_force(), Rejected::default())).await;
        let whole = outcome.as_ref().is_ok_and(|merged| merged.rejected.total == 0);
        self.settle(source, outcome)?;
        if let (Source::Snapshot, Some(snapshot)) = (source, &self.rules_snapshot) {
            snapshot.set_current(whole);
            self.rules.snapshot(SnapshotState::Read { age: snapshot.age().unwrap_or_default() });
        }
        Ok(())
    }

    async fn rules_from_database(&self, url: &Secret) -> Result<(), LoadError> {
        let outcome = database_rules(url, Merge::new(self.rules.in_force(), Rejected::default())).await;
        let changed = self.settle(Source::Postgres, outcome)?;
        if let Some(snapshot) = &self.rules_snapshot {
            if changed {
                snapshot.set_current(false);
            }
            let set = self.rules.in_force();
            let fault = snapshot.save(move |out| write_rules(out, &set)).await;
            self.rules.snapshot(SnapshotState::Written { fault });
        }
        Ok(())
    }

    /// Puts an outcome on record and, if it is good, in force; says whether anything changed.
    fn settle(&self, source: Source, outcome: Result<Merged, LoadError>) -> Result<bool, LoadError> {
        let merged = outcome.inspect_err(|error| self.rules.failed(source, error))?;
        let changed = self.rules.replace(source, merged);
        if changed {
            self.tell_unknown_routes();
        }
        Ok(changed)
    }

    async fn reload_keys(&self) -> Result<(), LoadError> {
        let source = match self.key_source {
            KeySource::None => return Ok(()),
            KeySource::File(_) => Source::File,
            KeySource::Database => Source::Postgres,
        };
        match self.read_keys(self.keys.merge(Rejected::default())).await {
            Ok(Some((source, merge))) => {
                let changed = self.keys.replace(source, merge);
                if let Some(snapshot) = &self.keys_snapshot {
                    if changed {
                        snapshot.set_current(false);
                    }
                    let keys = self.keys.in_force();
                    let fault = snapshot
                        .save(move |out| write_keys(out, keys.iter().map(|(hash, tenant)| (hash, &**tenant))))
                        .await;
                    self.keys.snapshot(SnapshotState::Written { fault });
                }
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => {
                self.keys.failed(source, &error);
                Err(error)
            }
        }
    }

    async fn read_keys(&self, merge: KeyMerge) -> Result<Option<(Source, KeyMerge)>, LoadError> {
        match (&self.key_source, &self.settings.database_url) {
            (KeySource::None, _) => Ok(None),
            (KeySource::File(path), _) => Ok(Some((Source::File, file_keys(path, merge).await?))),
            (KeySource::Database, Some(url)) => {
                let mut merge = merge;
                let mut database = Database::connect(&url.0).await?;
                database.read_keys(&mut merge).await?;
                database.close().await;
                Ok(Some((Source::Postgres, merge)))
            }
            (KeySource::Database, None) => Err(LoadError::NoKeys),
        }
    }

    /// Rules are shared by gateways with different routes: one for a route this gateway does not have is no fault, but
    /// may be a misspelling.
    fn unknown_routes(&self, set: &RuleSet) -> BTreeSet<Arc<str>> {
        let mut unknown = BTreeSet::new();
        for rule in set.iter().filter(|rule| &*rule.route_id != ANY && !self.routes.contains(&*rule.route_id)) {
            if !unknown.contains(&rule.route_id) {
                unknown.insert(Arc::clone(&rule.route_id));
            }
        }
        unknown
    }

    fn tell_unknown_routes(&self) {
        let unknown = self.unknown_routes(&self.rules.load());
        let mut told = self.told_routes.lock();
        if !unknown.is_empty() && unknown != *told {
            let names: Vec<&str> = unknown.iter().take(MOST_ROUTES_NAMED).map(|route| &**route).collect();
            tracing::warn!(count = unknown.len(), "rules name routes that this gateway does not have: {names:?}");
        }
        *told = unknown;
    }
}

async fn file_rules(path: &Path, mut merge: Merge) -> Result<Merged, LoadError> {
    let path = path.to_owned();
    blocking(move || {
        read_rules(&path, &mut merge)?;
        Ok(merge.finish())
    })
    .await
}

async fn file_keys(path: &Path, mut merge: KeyMerge) -> Result<KeyMerge, LoadError> {
    let path = path.to_owned();
    blocking(move || {
        read_keys(&path, &mut merge)?;
        Ok(merge)
    })
    .await
}

async fn database_rules(url: &Secret, mut merge: Merge) -> Result<Merged, LoadError> {
    let mut database = Database::connect(&url.0).await?;
    database.read_rules(&mut merge).await?;
    database.close().await;
    Ok(merge.finish())
}

/// Reading a great file takes long: not on the thread that serves others.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<T, LoadError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| LoadError::System(std::io::Error::other(error)))?
}

/// How long a start waits for the database: not long where there is something else to start from.
fn patience(snapshot: Option<&Snapshot>) -> Option<Duration> {
    snapshot?.age().map(|_| START_PATIENCE)
}

fn temporary_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Until the next reload. A little less than `refresh`, at random, so that the gateways of a fleet do not ask the
/// database all at once.
fn pause(failures: u32, refresh: Duration) -> Duration {
    let longest = match failures {
        0 => refresh,
        some => FIRST_RETRY.saturating_mul(1 << (some - 1).min(16)).min(refresh),
    };
    longest.mul_f64(rand::random_range(0.9..=1.0))
}
