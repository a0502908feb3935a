//! The registered API keys: SHA-256 of the secret → tenant. Messages name a key by the first digits of its hash, and
//! never show a hash that is none: it may be the secret itself, put there by mistake.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::ANY;
use super::file::{FileError, read_array};
use super::merge::Place;
use super::raw::{check_id, unquote, without_position};
use super::rejected::Rejected;
use super::report::{Extent, LoadError, Record, SnapshotState, Source, Status};
use crate::rule::shown;

// Its keys are SHA-256 already: nobody chooses where they fall.
pub(super) type KeyMap = HashMap<[u8; 32], Arc<str>, FixedState>;

/// The keys in force, replaced as a whole when their source changes.
#[derive(Debug)]
pub struct Keys {
    current: ArcSwap<KeyMap>,
    record: Mutex<Record>,
}

impl Default for Keys {
    fn default() -> Self {
        Self::new([])
    }
}

impl Keys {
    /// These keys, which no source has to confirm.
    pub fn new(keys: impl IntoIterator<Item = ([u8; 32], Arc<str>)>) -> Self {
        Self { current: ArcSwap::from_pointee(keys.into_iter().collect()), record: Mutex::new(Record::new("API keys")) }
    }

    /// The tenant that a key belongs to, by the SHA-256 of the key.
    pub fn tenant(&self, sha256: &[u8; 32]) -> Option<Arc<str>> {
        self.current.load().get(sha256).cloned()
    }

    /// How the keys stand.
    pub fn status(&self) -> Status {
        self.record.lock().status(self.current.load().len())
    }

    /// Those in force.
    pub(super) fn in_force(&self) -> Arc<KeyMap> {
        self.current.load_full()
    }

    pub(super) fn merge(&self, rejected: Rejected) -> KeyMerge {
        KeyMerge {
            in_force: self.current.load_full(),
            building: KeyMap::default(),
            refused: HashSet::default(),
            rejected,
        }
    }

    /// Puts what a source gave in force; says whether anything changed.
    pub(super) fn replace(&self, source: Source, merged: KeyMerge) -> bool {
        let KeyMerge { in_force, building, rejected, .. } = merged;
        let (changed, loaded) = (building != *in_force, building.len());
        if changed {
            self.current.store(Arc::new(building));
        }
        let mut record = self.record.lock();
        record.count_good(source, 1);
        record.good(source, Extent::Whole, loaded, rejected, changed);
        changed
    }

    /// The snapshot that was read is this old, or could not be written.
    pub(super) fn snapshot(&self, state: SnapshotState) {
        self.record.lock().snapshot(state);
    }

    /// A source failed; what is in force stays.
    pub(super) fn failed(&self, source: Source, error: &LoadError) {
        self.record.lock().failed(source, error);
    }
}

/// The next keys in the making. As with rules, an invalid entry keeps the version in force, and so do duplicates.
#[derive(Debug)]
pub(super) struct KeyMerge {
    in_force: Arc<KeyMap>,
    building: KeyMap,
    refused: HashSet<[u8; 32], FixedState>,
    rejected: Rejected,
}

impl KeyMerge {
    /// Adds one entry; `shape` is what was wrong with it before its fields could be told.
    pub(super) fn add(&mut self, place: Place<'_>, key: Option<&str>, tenant: Option<&str>, shape: Option<String>) {
        let Some(hash) = key.and_then(parse_sha256) else {
            let problem = shape.unwrap_or_else(|| match key {
                None => "key_sha256 is missing, allowed are 64 hexadecimal digits".to_owned(),
                Some(key) => format!(
                    "key_sha256 is not a SHA-256, allowed are 64 hexadecimal digits; it has {} characters",
                    key.chars().count()
                ),
            });
            return self.rejected.push(|| format!("{place}key of {}: {problem}", shown(tenant.unwrap_or("?"))));
        };
        let problem = if self.building.contains_key(&hash) || self.refused.contains(&hash) {
            Some("is there more than once, allowed is one entry for a key; none of them counts".to_owned())
        } else if tenant == Some(ANY) {
            Some(format!("tenant is \"{ANY}\", allowed is the id of one tenant"))
        } else {
            shape.or(check_id("tenant", tenant).err())
        };
        match (problem, tenant) {
            (None, Some(tenant)) => {
                let before = self.in_force.get(&hash).filter(|before| ***before == *tenant);
                self.building.insert(hash, before.map_or_else(|| tenant.into(), Arc::clone));
            }
            (problem, _) => {
                let problem = problem.unwrap_or_default();
                self.rejected.push(|| format!("{place}key {:.8}…: {problem}", key.unwrap_or_default()));
                self.refused.insert(hash);
                match self.in_force.get(&hash) {
                    Some(before) => self.building.insert(hash, Arc::clone(before)),
                    None => self.building.remove(&hash),
                };
            }
        }
    }

    /// What was left out so far.
    pub(super) fn rejected(&self) -> &Rejected {
        &self.rejected
    }

    /// How many keys there are so far.
    pub(super) fn len(&self) -> usize {
        self.building.len()
    }
}

/// An entry of `identity.keys_file`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonKey<'a> {
    #[serde(borrow)]
    key_sha256: Option<&'a RawValue>,
    tenant: Option<&'a RawValue>,
}

/// Adds every key of a file to `merge`.
pub(super) fn read_keys(path: &Path, merge: &mut KeyMerge) -> Result<(), FileError> {
    let name = path.display().to_string();
    read_array(path, |line, element| {
        let place = Place::Line(&name, line);
        if !element.starts_with('{') {
            return merge.add(place, None, None, Some("the entry is not a JSON object".to_owned()));
        }
        match serde_json::from_str::<JsonKey<'_>>(element) {
            Ok(JsonKey { key_sha256, tenant }) => {
                let key = key_sha256.map(|key| unquote(key.get()));
                let tenant = tenant.map(|tenant| unquote(tenant.get()));
                let shape = [("key_sha256", &key), ("tenant", &tenant)]
                    .into_iter()
                    .find_map(|(field, value)| matches!(value, Some(None)).then_some(field))
                    .map(|field| format!("{field} is not text, allowed is text"));
                merge.add(place, key.flatten().as_deref(), tenant.flatten().as_deref(), shape);
            }
            Err(error) => merge.add(place, None, None, Some(without_position(&error))),
        }
    })
}

fn parse_sha256(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let nibble = |digit: u8| char::from(digit).to_digit(16);
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::try_from(nibble(pair[0])? << 4 | nibble(pair[1])?).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(byte: u8) -> String {
        format!("{byte:02x}").repeat(32)
    }

    fn read(keys: &Keys, content: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        std::fs::write(&path, content).unwrap();
        let mut merge = keys.merge(Rejected::default());
        read_keys(&path, &mut merge).unwrap();
        keys.replace(Source::File, merge);
        let prefix = format!("{}/", folder.path().display());
        keys.status().rejected.faults.iter().map(|fault| fault.replace(&prefix, "")).collect()
    }

    #[test]
    fn a_key_is_found_by_its_hash() {
        let keys = Keys::default();
        let upper = hex(0xab).to_uppercase();
        let faults = read(
            &keys,
            &format!(
                r#"[{{"key_sha256": "{}", "tenant": "shop-a"}}, {{"key_sha256": "{upper}", "tenant": "shop-a"}}]"#,
                hex(1)
            ),
        );
        assert_eq!(faults, [] as [String; 0]);
        assert_eq!(keys.tenant(&[1; 32]).as_deref(), Some("shop-a"));
        assert_eq!(keys.tenant(&[0xab; 32]).as_deref(), Some("shop-a"));
        assert_eq!(keys.tenant(&[2; 32]), None);
        assert_eq!(keys.status().loaded, 2);
    }

    #[test]
    fn bad_entries_are_named_without_showing_a_secret_and_others_load() {
        let keys = Keys::default();
        let good = hex(9);
        let faults = read(
            &keys,
            &format!(
                r#"[
{{"key_sha256": "my-secret", "tenant": "a"}},
{{"key_sha256": "{}", "tenant": "b"}},
{{"tenant": "c"}},
{{"key_sha256": 5, "tenant": "d"}},
{{"key_sha256": "{good}", "tenant": ""}},
{{"key_sha256": "{}", "tenant": "*"}},
{{"key_sha256": "{}", "tenant": "e", "expires": 5}},
7,
{{"key_sha256": "{}", "tenant": "good"}}
]"#,
                "g".repeat(64),
                hex(8),
                hex(7),
                hex(1)
            ),
        );
        let starts = [
            "keys.json:2: key of a: key_sha256 is not a SHA-256, allowed are 64 hexadecimal digits; it has 9 characters",
            "keys.json:3: key of b: key_sha256 is not a SHA-256",
            "keys.json:4: key of c: key_sha256 is missing",
            "keys.json:5: key of d: key_sha256 is not text",
            "keys.json:6: key 09090909…: tenant is empty",
            "keys.json:7: key 08080808…: tenant is \"*\"",
            "keys.json:8: key of ?: unknown field `expires`",
            "keys.json:9: key of ?: the entry is not a JSON object",
        ];
        assert_eq!(faults.len(), starts.len(), "{faults:#?}");
        for (fault, start) in faults.iter().zip(starts) {
            assert!(fault.starts_with(start), "{fault}");
            assert!(!fault.contains("my-secret"), "{fault}");
        }
        assert_eq!(keys.tenant(&[1; 32]).as_deref(), Some("good"));
        assert_eq!(keys.status().loaded, 1);
    }

    #[test]
    fn duplicates_and_invalid_changes_leave_what_is_in_force() {
        let keys = Keys::default();
        let entry = |byte, tenant: &str| format!(r#"{{"key_sha256": "{}", "tenant": "{tenant}"}}"#, hex(byte));
        read(&keys, &format!("[{}, {}]", entry(1, "a"), entry(2, "b")));
        let faults = read(
            &keys,
            &format!("[{}, {}, {}, {}, {}]", entry(1, "x"), entry(1, "y"), entry(2, ""), entry(3, "n"), entry(3, "n")),
        );
        assert_eq!(faults.len(), 3, "{faults:#?}");
        assert_eq!(keys.tenant(&[1; 32]).as_deref(), Some("a"));
        assert_eq!(keys.tenant(&[2; 32]).as_deref(), Some("b"));
        assert_eq!(keys.tenant(&[3; 32]), None);
    }

    #[test]
    fn a_key_that_is_gone_from_the_source_is_no_longer_known() {
        let keys = Keys::default();
        read(&keys, &format!(r#"[{{"key_sha256": "{}", "tenant": "a"}}]"#, hex(1)));
        read(&keys, "[]");
        assert_eq!(keys.tenant(&[1; 32]), None);
    }
}
