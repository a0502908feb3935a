//! The API keys: where they are read, and what serves until they are.

use std::path::Path;

use tokio::time::timeout;

use super::{KeySource, Loader, patience};
use crate::rules::background::in_background;
use crate::rules::keys::{KeyMerge, read_keys};
use crate::rules::postgres::{Database, DatabaseError};
use crate::rules::rejected::Rejected;
use crate::rules::report::{LoadError, SnapshotState, Source};
use crate::rules::snapshot::{Snapshot, write_keys};

impl Loader {
    pub(super) async fn start_keys(&self) -> Result<(), LoadError> {
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

    pub(super) async fn reload_keys(&self) -> Result<(), LoadError> {
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

    pub(super) async fn read_keys(&self, merge: KeyMerge) -> Result<Option<(Source, KeyMerge)>, LoadError> {
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
}

async fn file_keys(path: &Path, mut merge: KeyMerge) -> Result<KeyMerge, LoadError> {
    let path = path.to_owned();
    in_background(move || {
        read_keys(&path, &mut merge)?;
        Ok(merge)
    })
    .await
}
