//! File → settings, or every fault in it.

use std::path::Path;

use toml::de::DeTable;

use super::Settings;
use super::environment::Environment;
use super::fault::{Fault, Place, Report};
use super::file::File;
use super::reader::{Section, Source};
use super::validate::validate;

/// Reads and validates a configuration file. Variables come from the environment of the process; relative paths in the
/// file are relative to its working directory.
///
/// # Errors
/// All faults in the order of the file; where the file cannot be read or is not TOML, only the first.
pub fn load(path: &Path) -> Result<Settings, Vec<Fault>> {
    let file = path.display().to_string();
    let unreadable = |line, what| vec![Fault { file: file.clone(), line, key: String::new(), what }];
    let bytes = std::fs::read(path).map_err(|error| unreadable(None, format!("cannot be read: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        unreadable(Some(line), "is not UTF-8, allowed is TOML".to_owned())
    })?;
    load_str(&file, &text, &|name| std::env::var(name).ok())
}

/// As [`load`], with the text and the environment given. `file_name` is what faults are reported under.
///
/// # Errors
/// As [`load`].
pub fn load_str(file_name: &str, text: &str, environment: Environment<'_>) -> Result<Settings, Vec<Fault>> {
    let report = Report::new(file_name);
    let source = Source::new(text, &report, environment);
    let table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => {
            let line = source.line(error.span().map_or(0, |span| span.start));
            report.note(&Place { line, key: String::new() }, format!("is not TOML: {}", error.message()));
            return Err(report.into_faults());
        }
    };
    let mut root = Section::root(&source, table.get_ref());
    let file = File::read(&mut root);
    root.finish();
    let settings = validate(&file, &report);
    let faults = report.into_faults();
    if faults.is_empty() { Ok(settings) } else { Err(faults) }
}
