//! When to read what: all at start, every `rules.refresh`, on SIGHUP, and sooner after a failure; what has changed at
//! once, also while all is being read.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::Loader;
use super::changes::Next;
use crate::rules::report::{Source, Status};

/// The pause after a first failure; doubled with each further one, up to `rules.refresh`.
const FIRST_RETRY: Duration = Duration::from_secs(1);

type Reading<'a> = Pin<Box<dyn Future<Output = bool> + Send + 'a>>;

impl Loader {
    /// Reads rules and keys anew; on a failure what is in force stays. Says whether all went well. One at a time.
    pub async fn reload(&self) -> bool {
        let keys = self.reload_keys().await;
        let rules = match (&self.settings.database_url, &self.settings.file) {
            (Some(url), _) => self.rules_from_database(url).await,
            (None, Some(file)) => self.rules_from_file(Source::File, file).await,
            (None, None) => Ok(()),
        };
        // Errors are already in the record, and logged.
        keys.is_ok() & rules.is_ok()
    }

    /// As [`reload`](Self::reload), but a file that is as it was does not undo what messages said since.
    async fn refresh(&self) -> bool {
        match (&self.settings.database_url, &self.settings.file) {
            (None, Some(file)) if self.is_overtaken(file) => self.reload_keys().await.is_ok(),
            _ => self.reload().await,
        }
    }

    /// Reloads every `rules.refresh`, whenever `hangup` is notified, and sooner after a failure, and applies
    /// [changes](Self::changes) as they come, until `shutdown` changes.
    pub async fn run(&self, hangup: &Notify, mut shutdown: watch::Receiver<bool>) {
        let healthy = |record: Status| record.last_error.is_none();
        let mut failures = u32::from(!(healthy(self.rules.status()) && healthy(self.keys.status())));
        let mut due = Instant::now() + pause(failures, self.settings.refresh);
        let mut reading: Option<Reading<'_>> = None;
        // Only what a database says of a pair can be put beside what is being read.
        let at_any_time = self.settings.database_url.is_some();
        // Something happened that the read under way may have missed.
        let mut again = false;
        loop {
            tokio::select! {
                () = sleep_until(due), if reading.is_none() => reading = Some(Box::pin(self.refresh())),
                () = hangup.notified(), if reading.is_none() => {
                    tracing::info!("reloading rules");
                    reading = Some(Box::pin(self.reload()));
                }
                good = read(&mut reading), if reading.is_some() => {
                    reading = std::mem::take(&mut again).then(|| Box::pin(self.refresh()) as Reading<'_>);
                    failures = if good { 0 } else { failures.saturating_add(1) };
                    due = Instant::now() + pause(failures, self.settings.refresh);
                }
                pending = self.changes.take(), if at_any_time || reading.is_none() => {
                    let next = tokio::select! {
                        next = self.apply(pending) => next,
                        _ = shutdown.changed() => return,
                    };
                    match next {
                        Next::Nothing => {}
                        Next::ReadAll if reading.is_some() => again = true,
                        Next::ReadAll => reading = Some(Box::pin(self.refresh())),
                        Next::Retry => {
                            again |= reading.is_some();
                            failures = failures.saturating_add(1);
                            due = Instant::now() + pause(failures, self.settings.refresh);
                        }
                    }
                }
                _ = shutdown.changed() => return,
            }
        }
    }
}

async fn read(reading: &mut Option<Reading<'_>>) -> bool {
    match reading {
        Some(reading) => reading.await,
        None => std::future::pending().await,
    }
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
