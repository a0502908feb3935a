//! The last good rules and keys on disk, in the formats of `rules.json` and `keys.json`.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::{FailurePolicy, Mode, Rule, RuleSet};

/// A rule as `rules.json` has it, without the fields that have their default.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    tenant_id: &'a str,
    route_id: &'a str,
    capacity: u32,
    #[serde(serialize_with = "plain")]
    refill_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_store_failure: Option<FailurePolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shards: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<Mode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<&'a str>,
}

impl<'a> From<&'a Rule> for Line<'a> {
    fn from(rule: &'a Rule) -> Self {
        Self {
            tenant_id: &rule.tenant_id,
            route_id: &rule.route_id,
            capacity: rule.limit.capacity(),
            refill_per_second: rule.limit.refill_per_second(),
            cost: rule.cost.map(Into::into),
            on_store_failure: rule.on_store_failure,
            shards: (rule.shards != 1).then_some(rule.shards),
            mode: (rule.mode != Mode::Enforce).then_some(rule.mode),
            enabled: (!rule.enabled).then_some(false),
            comment: rule.comment.as_deref(),
        }
    }
}

/// A whole number without the decimal point that JSON does not need.
fn plain<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if number.fract() == 0.0 { serializer.serialize_u64(*number as u64) } else { serializer.serialize_f64(*number) }
}

/// A key as `keys.json` has it.
#[derive(Serialize)]
struct KeyLine<'a> {
    key_sha256: String,
    tenant: &'a str,
}

/// A file that keeps what is in force for a start while the database is away.
#[derive(Debug)]
pub(super) struct Snapshot {
    path: PathBuf,
    /// Does it hold what is in force?
    current: AtomicBool,
}

impl Snapshot {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, current: AtomicBool::new(false) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Says whether it holds what is in force.
    pub(super) fn set_current(&self, current: bool) {
        self.current.store(current, Ordering::Relaxed);
    }

    /// How long ago it was written; `None` where there is none.
    pub(super) fn age(&self) -> Option<Duration> {
        let written = std::fs::metadata(&self.path).ok()?.modified().ok()?;
        // A clock that was set back makes it new.
        Some(written.elapsed().unwrap_or_default())
    }

    /// Writes it, unless it holds what is in force already; what went wrong, in one sentence.
    pub(super) async fn save(
        &self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
    ) -> Option<String> {
        if self.current.load(Ordering::Relaxed) && self.path.exists() {
            return None;
        }
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || replace(&path, write)).await;
        let fault = written.map_err(io::Error::other).and_then(|written| written).err();
        self.set_current(fault.is_none());
        fault.map(|error| format!("{}: the snapshot cannot be written: {error}", self.path.display()))
    }
}

/// Writes a file so that at any moment, also after a crash, it is either the old one or the new one.
fn replace(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut name = path.file_name().ok_or_else(|| io::Error::other("the path names no file"))?.to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = write_synced(&temporary, write).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // What is left of it would only mislead; that it may not exist is no second fault.
        let _ = std::fs::remove_file(&temporary);
    }
    written?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn write_synced(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let mut out = BufWriter::new(file);
    write(&mut out)?;
    out.into_inner()?.sync_all()
}

/// The rules, in the format of `rules.json`.
pub(super) fn write_rules(mut out: &mut dyn Write, set: &RuleSet) -> io::Result<()> {
    write_array(&mut out, set.iter().map(|rule| Line::from(&**rule)))
}

/// The keys, in the format of `keys.json`.
pub(super) fn write_keys<'a>(
    mut out: &mut dyn Write,
    keys: impl Iterator<Item = (&'a [u8; 32], &'a str)>,
) -> io::Result<()> {
    let hex = |hash: &[u8; 32]| hash.iter().map(|byte| format!("{byte:02x}")).collect();
    write_array(&mut out, keys.map(|(hash, tenant)| KeyLine { key_sha256: hex(hash), tenant }))
}

/// One entry a line, so that a fault can be named by its line.
pub(super) fn write_array(out: &mut impl Write, entries: impl Iterator<Item = impl Serialize>) -> io::Result<()> {
    out.write_all(b"[")?;
    for (index, entry) in entries.enumerate() {
        out.write_all(if index == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut *out, &entry)?;
    }
    out.write_all(b"\n]\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use super::*;
    use crate::rules::file::read_rules;
    use crate::rules::merge::Merge;
    use crate::rules::rejected::Rejected;

    fn write(path: &Path, set: &RuleSet) -> io::Result<()> {
        replace(path, |out| write_rules(out, set))
    }

    fn read(path: &Path) -> RuleSet {
        let default: Rule = crate::rules::raw::Entry::from_json(r#"{"capacity": 1, "refill_per_second": 1}"#)
            .terms
            .unwrap()
            .into_rule("*".into(), "*".into());
        let mut merge = Merge::new(Arc::new(RuleSet::new(Arc::new(default), [])), Rejected::default());
        read_rules(path, &mut merge).unwrap();
        let merged = merge.finish();
        assert_eq!(merged.rejected.faults, [] as [String; 0]);
        merged.set
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (source, copy) = (folder.path().join("rules.json"), folder.path().join("copy.json"));
        let rules = r#"[
            {"tenant_id": "a", "route_id": "r", "capacity": 5, "refill": "10000/day"},
            {"tenant_id": "b \"quoted\"", "route_id": "*", "capacity": 2147483647, "refill_per_second": 1e9, "cost": 7,
             "on_store_failure": "closed", "mode": "shadow", "enabled": false, "comment": "line\nbreak"}]"#;
        std::fs::write(&source, rules).unwrap();
        let before = read(&source);
        write(&copy, &before).unwrap();
        let after = read(&copy);
        assert_eq!(after.len(), 2);
        for rule in before.iter() {
            assert_eq!(after.get(&rule.tenant_id, &rule.route_id, rule.mode), Some(rule));
        }
        assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file is left");
    }

    #[test]
    fn a_set_without_rules_is_an_empty_array() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.json");
        std::fs::write(&path, "[]").unwrap();
        write(&path, &read(&path)).unwrap();
        assert!(read(&path).is_empty());
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rules.json"), "[]").unwrap();
        let set = read(&folder.path().join("rules.json"));
        assert!(write(&folder.path().join("missing/rules.json"), &set).is_err());
    }
}
