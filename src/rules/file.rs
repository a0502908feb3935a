//! JSON files: an array of which each element is judged alone.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::{Deserializer as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::merge::{Merge, Merged, Place};
use super::raw::{Entry, without_position};
use super::rejected::Rejected;
use super::{Rule, RuleSet};

/// Why a file fails as a whole.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read, or is not UTF-8.
    #[error("{}: cannot be read: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// It is not a JSON array.
    #[error("{}:{line}: {problem}, allowed is one JSON array of objects", path.display())]
    NotAnArray {
        /// The file.
        path: PathBuf,
        /// Where reading stopped, from 1.
        line: usize,
        /// What was found there.
        problem: String,
    },
}

/// The rules of a file by themselves, and every fault by name. `default_rule` applies where none of them does.
///
/// # Errors
/// When the file cannot be read as a whole.
pub fn read_rule_set(path: &Path, default_rule: Rule) -> Result<(RuleSet, Vec<String>), FileError> {
    let nothing = Arc::new(RuleSet::new(Arc::new(default_rule), []));
    let mut merge = Merge::new(nothing, Rejected::unbounded());
    read_rules(path, &mut merge)?;
    let Merged { set, rejected } = merge.finish();
    Ok((set, rejected.faults))
}

/// Adds every rule of a file to `merge`.
pub(super) fn read_rules(path: &Path, merge: &mut Merge) -> Result<(), FileError> {
    let name = path.display().to_string();
    read_array(path, |line, element| merge.add(Place::Line(&name, line), Entry::from_json(element)))
}

/// Hands every element of a JSON array, with its line, to `each`. On an error `each` has seen a part of them.
pub(crate) fn read_array(path: &Path, each: impl FnMut(usize, &str)) -> Result<(), FileError> {
    let text = std::fs::read_to_string(path).map_err(|error| FileError::Read { path: path.into(), error })?;
    let not_an_array = |line, problem| FileError::NotAnArray { path: path.into(), line, problem };
    if text.trim_ascii().is_empty() {
        return Err(not_an_array(1, "the file is empty".into()));
    }
    let mut deserializer = serde_json::Deserializer::from_str(&text);
    deserializer
        .deserialize_seq(Elements { lines: Lines::of(&text), each })
        .and_then(|()| deserializer.end())
        .map_err(|error| not_an_array(error.line(), without_position(&error)))
}

struct Elements<'a, F> {
    lines: Lines<'a>,
    each: F,
}

impl<'a, F: FnMut(usize, &str)> Visitor<'a> for Elements<'a, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'a>>(mut self, mut elements: A) -> Result<(), A::Error> {
        while let Some(element) = elements.next_element::<&'a RawValue>()? {
            (self.each)(self.lines.line_of(element.get()), element.get());
        }
        Ok(())
    }
}

/// Counts lines up to ever later parts of a text.
struct Lines<'a> {
    text: &'a str,
    counted: usize,
    line: usize,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Self {
        Self { text, counted: 0, line: 1 }
    }

    /// The line on which `part`, a slice of the text, starts.
    fn line_of(&mut self, part: &str) -> usize {
        let offset = part.as_ptr().addr().saturating_sub(self.text.as_ptr().addr());
        let between = self.text.as_bytes().get(self.counted..offset).unwrap_or_default();
        self.line += between.iter().filter(|byte| **byte == b'\n').count();
        self.counted = offset.max(self.counted);
        self.line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &[u8]) -> (Vec<(usize, String)>, Result<(), String>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.json");
        std::fs::write(&path, content).unwrap();
        let mut seen = Vec::new();
        let result = read_array(&path, |line, element| seen.push((line, element.to_owned())));
        let prefix = format!("{}/", folder.path().display());
        (seen, result.map_err(|error| error.to_string().replace(&prefix, "")))
    }

    #[test]
    fn every_element_comes_with_its_line() {
        let (seen, result) = read(b"[\n  {\"a\": [1,\n 2]},\n\n{}, 5,\n\"x\"]\n");
        result.unwrap();
        let lines: Vec<usize> = seen.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 5, 5, 6]);
        assert_eq!(seen[1].1, "{}");
    }

    #[test]
    fn an_empty_array_is_no_fault() {
        assert_eq!(read(b" [] \n"), (vec![], Ok(())));
    }

    #[test]
    fn what_is_not_a_whole_array_fails_with_its_line() {
        for (content, expected) in [
            (&b""[..], "rules.json:1: the file is empty"),
            (b" \n\n", "rules.json:1: the file is empty"),
            (b"[{},\n{\"a\":", "rules.json:2: EOF while parsing a value"),
            (b"[{},\n{}", "rules.json:2: EOF while parsing a list"),
            (b"[{},\n{}\n{}]", "rules.json:3: expected `,` or `]`"),
            (b"[{}]\nx", "rules.json:2: trailing characters"),
            (b"{\"a\": 1}", "rules.json:1: invalid type: map, expected an array"),
            (b"[\xff]", "rules.json: cannot be read"),
        ] {
            let error = read(content).1.unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = read_array(Path::new("/nowhere/rules.json"), |_, _| ()).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/rules.json: cannot be read: No such file"), "{error}");
    }
}
