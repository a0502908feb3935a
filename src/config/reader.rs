//! Reads tables key by key and notes, with its line, everything that has the wrong type, is missing or is unknown,
//! instead of stopping at the first.

use toml::de::{DeTable, DeValue};

use super::environment::{Environment, expand};
use super::fault::{At, Place, Report};

/// What all sections of one file share.
pub(super) struct Source<'a> {
    pub(super) report: &'a Report,
    environment: Environment<'a>,
    line_starts: Vec<usize>,
}

impl<'a> Source<'a> {
    pub(super) fn new(text: &str, report: &'a Report, environment: Environment<'a>) -> Self {
        let line_starts = text.match_indices('\n').map(|(offset, _)| offset + 1).collect();
        Self { report, environment, line_starts }
    }

    /// The line of a byte, counted from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        1 + self.line_starts.partition_point(|start| *start <= offset)
    }
}

/// One table. Every key asked for counts as known; [`Section::finish`] notes the others.
pub(super) struct Section<'a> {
    source: &'a Source<'a>,
    table: Option<&'a DeTable<'a>>,
    known: Vec<&'static str>,
    pub(super) place: Place,
}

type Value<'a> = At<&'a DeValue<'a>>;

impl<'a> Section<'a> {
    /// The whole file.
    pub(super) fn root(source: &'a Source<'a>, table: &'a DeTable<'a>) -> Self {
        Self { source, table: Some(table), known: Vec::new(), place: Place { line: 1, key: String::new() } }
    }

    /// Notes unknown keys.
    pub(super) fn finish(self) {
        for key in self.table.into_iter().flat_map(|table| table.keys()) {
            let name = key.get_ref().as_ref();
            if !self.known.contains(&name) {
                let place = Place { line: self.source.line(key.span().start), ..self.place.child(&quoted(name)) };
                self.source.report.note(&place, unknown(name, &self.known));
            }
        }
    }

    /// A string, variables replaced.
    pub(super) fn string(&mut self, key: &'static str) -> Option<At<String>> {
        self.string_such_as(key, "a string")
    }

    /// A string that means a duration.
    pub(super) fn duration(&mut self, key: &'static str) -> Option<At<String>> {
        self.string_such_as(key, "a string such as \"5ms\", \"30s\", \"2m\", \"1h\"")
    }

    /// A string that has to be there.
    pub(super) fn required_string(&mut self, key: &'static str) -> Option<At<String>> {
        self.require(key);
        self.string(key)
    }

    /// An array of strings, variables replaced. What is not a string is noted and left out.
    pub(super) fn strings(&mut self, key: &'static str) -> Option<At<Vec<At<String>>>> {
        let At { value, place } = self.value(key)?;
        let Some(array) = value.as_array() else {
            return self.wrong_type(value, &place, "an array of strings");
        };
        let elements = array.iter().enumerate().filter_map(|(index, element)| {
            let key = format!("{}[{}]", place.key, index + 1);
            let at = Place { line: self.source.line(element.span().start), key };
            self.expanded(element.get_ref(), at, "a string")
        });
        Some(At { value: elements.collect(), place })
    }

    /// An integer of 64 bits.
    pub(super) fn integer(&mut self, key: &'static str) -> Option<At<i64>> {
        let At { value, place } = self.value(key)?;
        let Some(integer) = value.as_integer() else {
            return self.wrong_type(value, &place, "an integer");
        };
        match i64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(value) => Some(At { value, place }),
            Err(_) => {
                self.source.report.note(&place, format!("{integer} is out of range, allowed are integers of 64 bits"));
                None
            }
        }
    }

    /// An integer or a float.
    pub(super) fn number(&mut self, key: &'static str) -> Option<At<f64>> {
        let At { value, place } = self.value(key)?;
        let number = match value {
            DeValue::Float(float) => float.as_str().parse().ok(),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str().parse().ok(),
            _ => None,
        };
        match number {
            Some(value) => Some(At { value, place }),
            None => self.wrong_type(value, &place, "a number"),
        }
    }

    /// `true` or `false`.
    pub(super) fn boolean(&mut self, key: &'static str) -> Option<At<bool>> {
        let At { value, place } = self.value(key)?;
        match value.as_bool() {
            Some(value) => Some(At { value, place }),
            None => self.wrong_type(value, &place, "true or false"),
        }
    }

    /// The place of a key whose value does not matter.
    pub(super) fn mention(&mut self, key: &'static str) -> Option<Place> {
        self.value(key).map(|value| value.place)
    }

    /// A table, if it is there.
    pub(super) fn table<T>(&mut self, key: &'static str, read: impl FnOnce(&mut Section<'a>) -> T) -> Option<T> {
        let At { value, place } = self.value(key)?;
        match value.as_table() {
            Some(table) => Some(self.inner(Some(table), place, read)),
            None => self.wrong_type(value, &place, "a table"),
        }
    }

    /// A table; one that is not there is read as an empty one.
    pub(super) fn table_or_empty<T>(&mut self, key: &'static str, read: impl Fn(&mut Section<'a>) -> T) -> T {
        let absent = self.place.child(key);
        self.table(key, &read).unwrap_or_else(|| self.inner(None, absent, &read))
    }

    /// An array of tables, `[[key]]`.
    pub(super) fn tables<T>(&mut self, key: &'static str, read: impl Fn(&mut Section<'a>) -> T) -> Vec<T> {
        let Some(At { value, place }) = self.value(key) else { return Vec::new() };
        let Some(array) = value.as_array() else {
            self.wrong_type::<()>(value, &place, &format!("an array of tables, [[{}]]", place.key));
            return Vec::new();
        };
        let elements = array.iter().enumerate().filter_map(|(index, element)| {
            let key = format!("{}[{}]", place.key, index + 1);
            let at = Place { line: self.source.line(element.span().start), key };
            match element.get_ref().as_table() {
                Some(table) => Some(self.inner(Some(table), at, &read)),
                None => self.wrong_type(element.get_ref(), &at, "a table"),
            }
        });
        elements.collect()
    }

    /// Tables under names of the operator's choosing, `[key.NAME]`.
    pub(super) fn named<T>(&mut self, key: &'static str, read: impl Fn(&mut Section<'a>) -> T) -> Vec<(At<String>, T)> {
        let Some(At { value, place }) = self.value(key) else { return Vec::new() };
        let Some(table) = value.as_table() else {
            self.wrong_type::<()>(value, &place, &format!("a table, [{}.NAME]", place.key));
            return Vec::new();
        };
        let mut entries = Vec::new();
        for (name, entry) in table {
            let line = self.source.line(name.span().start);
            let name = name.get_ref().as_ref();
            let at = Place { line, ..place.child(&quoted(name)) };
            match entry.get_ref().as_table() {
                Some(table) => {
                    let name = At { value: name.to_owned(), place: at.clone() };
                    entries.push((name, self.inner(Some(table), at, &read)));
                }
                None => drop(self.wrong_type::<()>(entry.get_ref(), &at, "a table")),
            }
        }
        entries
    }

    /// A table of strings under names of somebody else's choosing, variables replaced.
    pub(super) fn texts(&mut self, key: &'static str) -> Vec<(String, At<String>)> {
        let Some(At { value, place }) = self.value(key) else { return Vec::new() };
        let Some(table) = value.as_table() else {
            self.wrong_type::<()>(value, &place, "a table of strings");
            return Vec::new();
        };
        let texts = table.iter().filter_map(|(name, text)| {
            let line = self.source.line(name.span().start);
            let name = name.get_ref().as_ref();
            let at = Place { line, ..place.child(&quoted(name)) };
            Some((name.to_owned(), self.expanded(text.get_ref(), at, "a string")?))
        });
        texts.collect()
    }

    /// Notes a key that is not there but has to be.
    pub(super) fn require(&mut self, key: &'static str) {
        if self.value(key).is_none() {
            self.source.report.note(&self.place.child(key), "is missing, but required");
        }
    }

    fn value(&mut self, key: &'static str) -> Option<Value<'a>> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        let (name, value) = self.table?.get_key_value(key)?;
        let place = Place { line: self.source.line(name.span().start), ..self.place.child(key) };
        Some(At { value: value.get_ref(), place })
    }

    fn inner<T>(&self, table: Option<&'a DeTable<'a>>, place: Place, read: impl FnOnce(&mut Self) -> T) -> T {
        let mut section = Section { source: self.source, table, known: Vec::new(), place };
        let read = read(&mut section);
        section.finish();
        read
    }

    fn string_such_as(&mut self, key: &'static str, allowed: &str) -> Option<At<String>> {
        let At { value, place } = self.value(key)?;
        self.expanded(value, place, allowed)
    }

    fn expanded(&self, value: &DeValue<'_>, place: Place, allowed: &str) -> Option<At<String>> {
        let Some(text) = value.as_str() else {
            return self.wrong_type(value, &place, allowed);
        };
        match expand(text, self.source.environment) {
            Ok(value) => Some(At { value, place }),
            Err(what) => {
                self.source.report.note(&place, what);
                None
            }
        }
    }

    fn wrong_type<T>(&self, value: &DeValue<'_>, place: &Place, allowed: &str) -> Option<T> {
        let found = match value {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a float",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Datetime(_) => "a date or time",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        self.source.report.note(place, format!("is {found}, allowed is {allowed}"));
        None
    }
}

/// A key as TOML would write it.
fn quoted(key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if bare { key.to_owned() } else { format!("{key:?}") }
}

fn unknown(name: &str, known: &[&str]) -> String {
    // One slip in a short key, two in a longer one.
    let close = |key: &&&str| strsim::damerau_levenshtein(name, key) <= if key.len() > 4 { 2 } else { 1 };
    match known.iter().filter(close).min_by_key(|key| strsim::damerau_levenshtein(name, key)) {
        Some(nearest) => format!("unknown key, did you mean \"{nearest}\"?"),
        None => format!("unknown key, allowed are {}", known.join(", ")),
    }
}
