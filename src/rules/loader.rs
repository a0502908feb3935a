//! When to read which source: at start, every `rules.refresh`, on SIGHUP, and sooner after a failure.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::file::read_rules;
use super::keys::{KeyMerge, Keys, read_keys};
use super::merge::{Merge, Merged};
use super::postgres::{Database, DatabaseError};
use super::report::{LoadError, Rejected, Source};
use super::{ANY, Rule, RuleSet, Rules, snapshot};
use crate::config::{self, IdentityMode, Route, Secret};

/// The pause after a first failure; doubled with each further one, up to `rules.refresh`.
const FIRST_RETRY: Duration = Duration::from_secs(1);

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
    /// Is the snapshot on disk what is in force?
    saved: AtomicBool,
    /// What the log was told last, so that it is not told again.
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    unknown_routes: BTreeSet<Arc<str>>,
    snapshot_fault: Option<String>,
}

impl Loader {
    /// A loader that has read nothing yet: until it has, the default rule applies to all.
    pub fn new(settings: &config::Rules, default_rule: &Rule, identity: &IdentityMode, routes: &[Route]) -> Self {
        let key_source = match identity {
            IdentityMode::Direct => KeySource::None,
            IdentityMode::Registered { keys_file: Some(path) } => KeySource::File(path.clone()),
            IdentityMode::Registered { keys_file: None } => KeySource::Database,
        };
        Self {
            settings: settings.clone(),
            key_source,
            routes: routes.iter().map(|route| route.id.clone()).collect(),
            rules: Arc::new(Rules::new(default_rule.clone())),
            keys: Arc::default(),
            saved: AtomicBool::new(false),
            told: Mutex::default(),
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
        match self.reload_keys().await {
            Err(LoadError::Database(error)) if !error.is_final() => {
                tracing::error!("no API keys are known until the rules database answers: requests get 401");
                Ok(())
            }
            result => result,
        }
    }

    async fn start_from_database(&self, url: &Secret, file: Option<&Path>) -> Result<(), LoadError> {
        match self.rules_from_database(url).await {
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
                _ = shutdown.changed() => return,
            }
            tokio::select! {
                good = self.reload() => failures = if good { 0 } else { failures.saturating_add(1) },
                _ = shutdown.changed() => return,
            }
        }
    }

    /// Reads every source there is and judges it, putting nothing in force. Not for use inside a runtime.
    pub fn check(&self) -> Checked {
        let mut checked = Checked::default();
        match temporary_runtime() {
            Ok(runtime) => runtime.block_on(self.check_sources(&mut checked)),
            Err(error) => checked.faults.push(LoadError::from(error).to_string()),
        }
        checked
    }

    async fn check_sources(&self, checked: &mut Checked) {
        if let Some(url) = &self.settings.database_url {
            let merge = Merge::new(self.rules.in_force(), Rejected::unbounded());
            self.check_rules(checked, database_rules(url, merge).await);
        }
        // Last, so that with both the count is that of the file only where the database is away.
        if let Some(file) = &self.settings.file {
            let merge = Merge::new(self.rules.in_force(), Rejected::unbounded());
            self.check_rules(checked, file_rules(file, merge).await);
        }
        match self.read_keys(self.keys.merge(Rejected::unbounded())).await {
            Ok(Some((_, merge))) => {
                checked.keys = merge.len();
                checked.faults.extend_from_slice(&merge.rejected().faults);
            }
            Ok(None) => {}
            Err(error) => checked.failed(&error),
        }
    }

    fn check_rules(&self, checked: &mut Checked, outcome: Result<Merged, LoadError>) {
        match outcome {
            Ok(Merged { set, rejected }) => {
                checked.rules = checked.rules.max(set.len());
                checked.faults.extend(rejected.faults);
                checked.warnings.extend(
                    self.unknown_routes(&set)
                        .iter()
                        .map(|route| format!("rules for route {route}: this configuration has no such route")),
                );
            }
            Err(error) => checked.failed(&error),
        }
    }

    async fn rules_from_file(&self, source: Source, path: &Path) -> Result<(), LoadError> {
        let outcome = file_rules(path, Merge::new(self.rules.in_force(), Rejected::default())).await;
        let whole = outcome.as_ref().is_ok_and(|merged| merged.rejected.total == 0);
        self.settle(source, outcome)?;
        if source == Source::Snapshot && whole {
            self.saved.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn rules_from_database(&self, url: &Secret) -> Result<(), LoadError> {
        let outcome = database_rules(url, Merge::new(self.rules.in_force(), Rejected::default())).await;
        if self.settle(Source::Postgres, outcome)? {
            self.saved.store(false, Ordering::Relaxed);
        }
        self.save().await;
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

    /// Writes the snapshot, if it is not on disk already.
    async fn save(&self) {
        let Some(path) = self.settings.snapshot.clone() else { return };
        if self.saved.load(Ordering::Relaxed) && path.exists() {
            return;
        }
        let set = self.rules.in_force();
        let name = path.display().to_string();
        let written = blocking(move || Ok(snapshot::write(&path, &set)?)).await;
        self.saved.store(written.is_ok(), Ordering::Relaxed);
        let fault = written.err().map(|error| format!("{name}: the snapshot of the rules cannot be written: {error}"));
        let mut told = self.told.lock();
        if let Some(fault) = fault.as_ref().filter(|fault| told.snapshot_fault.as_ref() != Some(fault)) {
            tracing::error!("{fault}");
        }
        told.snapshot_fault = fault;
    }

    async fn reload_keys(&self) -> Result<(), LoadError> {
        let source = match self.key_source {
            KeySource::None => return Ok(()),
            KeySource::File(_) => Source::File,
            KeySource::Database => Source::Postgres,
        };
        match self.read_keys(self.keys.merge(Rejected::default())).await {
            Ok(Some((source, merge))) => {
                self.keys.replace(source, merge);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => {
                self.keys.failed(source, &error);
                Err(error)
            }
        }
    }

    async fn read_keys(&self, mut merge: KeyMerge) -> Result<Option<(Source, KeyMerge)>, LoadError> {
        match (&self.key_source, &self.settings.database_url) {
            (KeySource::None, _) => Ok(None),
            (KeySource::File(path), _) => {
                let path = path.clone();
                let read = move || {
                    read_keys(&path, &mut merge)?;
                    Ok(merge)
                };
                Ok(Some((Source::File, blocking(read).await?)))
            }
            (KeySource::Database, Some(url)) => {
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
        let mut told = self.told.lock();
        if !unknown.is_empty() && unknown != told.unknown_routes {
            let names: Vec<&str> = unknown.iter().take(MOST_ROUTES_NAMED).map(|route| &**route).collect();
            tracing::warn!(count = unknown.len(), "rules name routes that this gateway does not have: {names:?}");
        }
        told.unknown_routes = unknown;
    }
}

/// What [`Loader::check`] found.
#[derive(Debug, Default)]
pub struct Checked {
    /// Good rules.
    pub rules: usize,
    /// Good keys.
    pub keys: usize,
    /// One line each: what keeps a rule, a key or a whole source from being used.
    pub faults: Vec<String>,
    /// One line each: what may be meant as it is.
    pub warnings: Vec<String>,
}

impl Checked {
    fn failed(&mut self, error: &LoadError) {
        let line = error.to_string();
        let list = match error {
            // A check may run where the database cannot be reached from.
            LoadError::Database(DatabaseError::Connect(_)) => &mut self.warnings,
            _ => &mut self.faults,
        };
        if !list.contains(&line) {
            list.push(line);
        }
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
