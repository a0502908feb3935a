//! What is wrong with a configuration, and where.

use std::cell::RefCell;
use std::fmt;

/// One fault of a configuration file. Displays as `FILE:LINE: section.key: what is wrong, what is allowed`.
///
/// Elements of arrays are counted from 1: `route[2].upstream` is the upstream of the second `[[route]]`. Never holds
/// the value of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file, as it was named by the caller.
    pub file: String,
    /// Counted from 1; `None` where the file could not be read at all.
    pub line: Option<usize>,
    /// `section.key`; empty where the fault is one of syntax.
    pub key: String,
    /// What is wrong and what is allowed.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for Fault {}

/// Where something stands in the file.
#[derive(Clone)]
pub(super) struct Place {
    /// Counted from 1.
    pub(super) line: usize,
    /// `section.key`
    pub(super) key: String,
}

impl Place {
    /// A key of the table at this place; the line stays that of the table.
    pub(super) fn child(&self, key: &str) -> Self {
        let key = if self.key.is_empty() { key.to_owned() } else { format!("{}.{key}", self.key) };
        Self { line: self.line, key }
    }
}

/// A value and where it stands.
#[derive(Clone)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

/// Collects the faults of one file.
pub(super) struct Report {
    file: String,
    faults: RefCell<Vec<Fault>>,
}

impl Report {
    pub(super) fn new(file: &str) -> Self {
        Self { file: file.to_owned(), faults: RefCell::default() }
    }

    /// Notes a fault, unless this key, a table that holds it or an element of its array is at fault already: the first
    /// is the cause, what follows from it would only confuse.
    pub(super) fn note(&self, place: &Place, what: impl Into<String>) {
        let mut faults = self.faults.borrow_mut();
        let is_cause = |known: &Fault| match place.key.strip_prefix(known.key.as_str()) {
            Some(inside) => inside.is_empty() || inside.starts_with(['.', '[']),
            None => known.key.strip_prefix(place.key.as_str()).is_some_and(|inside| inside.starts_with('[')),
        };
        if !faults.iter().any(is_cause) {
            let (line, key) = (Some(place.line), place.key.clone());
            faults.push(Fault { file: self.file.clone(), line, key, what: what.into() });
        }
    }

    /// Is this key, or something in it, at fault?
    pub(super) fn is_at_fault(&self, place: &Place) -> bool {
        let inside = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
        self.faults.borrow().iter().any(|known| known.key.strip_prefix(place.key.as_str()).is_some_and(inside))
    }

    /// All faults, in the order of the file.
    pub(super) fn into_faults(self) -> Vec<Fault> {
        let mut faults = self.faults.into_inner();
        faults.sort_by_key(|fault| fault.line);
        faults
    }
}
