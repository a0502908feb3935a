//! Applies what messengers say has changed, without reading the rest.

use std::slice;
use std::sync::atomic::Ordering;

use super::Loader;
use crate::config::Secret;
use crate::rules::change::{Pairs, Pending, Told};
use crate::rules::merge::{Heard, Merge};
use crate::rules::raw::{Entry, check_id};
use crate::rules::report::{Extent, LoadError, Source};

/// What is to be done once changes were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing: they are in force.
    Nothing,
    /// Everything is to be read.
    ReadAll,
    /// What changed could not be read or put in force: everything is to be read after a pause.
    Retry,
}

impl Loader {
    /// With a database, what it says of the tenants and routes that changed comes into force, whoever told of them;
    /// without one, what was told.
    pub(super) async fn apply(&self, pending: Pending) -> Next {
        let Pending { all, pairs, told } = pending;
        self.kept.lock().want();
        let Some(url) = &self.settings.database_url else {
            if !pairs.is_empty() {
                let why = "rules changed in a database, and there is no rules.database_url to read them from";
                tracing::warn!(changes = pairs.len(), "{why}");
            }
            self.tell_all(&told);
            return if all { Next::ReadAll } else { Next::Nothing };
        };
        if all {
            return Next::ReadAll;
        }
        let pairs = self.pairs_of(pairs, told);
        match pairs.is_empty() || self.pairs_from_database(url, pairs).await.is_ok() {
            true => Next::Nothing,
            false => Next::Retry,
        }
    }

    /// All tenants and routes that changes are about, without those that no rule can be about.
    fn pairs_of(&self, mut pairs: Pairs, told: Vec<Told>) -> Pairs {
        pairs.retain(|(tenant, route)| match ids(Some(tenant), Some(route)) {
            Ok(()) => true,
            Err(problem) => {
                tracing::warn!("a change of rules names none: {problem}");
                false
            }
        });
        for told in told {
            match told {
                Told::Delete { tenant_id, route_id, .. } => {
                    pairs.insert((tenant_id, route_id));
                }
                Told::Put { source, place, json } => {
                    let Entry { tenant_id, route_id, .. } = Entry::from_json(&json);
                    match (ids(tenant_id.as_deref(), route_id.as_deref()), tenant_id, route_id) {
                        (Ok(()), Some(tenant), Some(route)) => {
                            pairs.insert((tenant.into(), route.into()));
                        }
                        (problem, ..) => {
                            self.rules.count_bad(source, 1);
                            tracing::error!("{place}: {}", problem.err().unwrap_or_default());
                        }
                    }
                }
            }
        }
        pairs
    }

    async fn pairs_from_database(&self, url: &Secret, pairs: Pairs) -> Result<(), LoadError> {
        let mut merge = Merge::of_pairs(self.rules.in_force(), self.rules.rejected(), &pairs);
        // Taken out, so that nothing is locked while this waits.
        let mut kept = std::mem::take(&mut *self.kept.lock());
        let read = kept.read(&url.0, &pairs, &mut merge).await;
        *self.kept.lock() = kept;
        let merged = read.map_err(LoadError::from).and_then(|()| {
            let merged = merge.finish();
            self.admit(&merged, Extent::Part)?;
            Ok(merged)
        });
        let merged = merged.inspect_err(|error| self.rules.failed(Source::Postgres, error))?;
        self.rules.count_good(Source::Postgres, 1);
        if self.rules.replace(Source::Postgres, Extent::Part, merged) {
            if let Some(snapshot) = &self.rules_snapshot {
                // Written when everything is read the next time: that is much where little has changed.
                snapshot.set_current(false);
            }
            let set = self.rules.load();
            self.tell_unknown_routes_of(pairs.iter().filter(|(t, r)| set.contains(t, r)).map(|(_, route)| route));
        }
        if let Some(meanwhile) = &mut *self.meanwhile.lock() {
            meanwhile.extend(pairs);
        }
        Ok(())
    }

    /// Puts what was told in force: all of it together, or, where that may not be, what may be of it.
    fn tell_all(&self, told: &[Told]) {
        let Some(first) = told.first() else { return };
        if self.tell(told).is_ok() {
            return self.rules.recovered(first.source());
        }
        for one in told {
            if let Err(error) = self.tell(slice::from_ref(one)) {
                self.rules.failed(one.source(), &error);
            }
        }
    }

    fn tell(&self, told: &[Told]) -> Result<(), LoadError> {
        let mut merge = Merge::of_changes(self.rules.in_force(), self.rules.rejected());
        let heard: Vec<(Source, Heard)> = told.iter().map(|told| (told.source(), merge.tell(told))).collect();
        let merged = merge.finish();
        self.admit(&merged, Extent::Part)?;
        let mut routes = Vec::new();
        for (source, heard) in heard {
            match heard {
                Heard::Put(route) => {
                    self.rules.count_good(source, 1);
                    routes.push(route);
                }
                Heard::Deleted => self.rules.count_good(source, 1),
                Heard::Bad => self.rules.count_bad(source, 1),
                Heard::Nameless(fault) => {
                    self.rules.count_bad(source, 1);
                    tracing::error!(source = source.name(), "{fault}; left out");
                }
            }
        }
        let source = told.last().map_or(Source::Kafka, Told::source);
        if self.rules.replace(source, Extent::Part, merged) {
            self.told.store(true, Ordering::Relaxed);
            self.tell_unknown_routes_of(routes.iter());
        }
        Ok(())
    }
}

fn ids(tenant: Option<&str>, route: Option<&str>) -> Result<(), String> {
    check_id("tenant_id", tenant).and_then(|()| check_id("route_id", route))
}
