//! `sekisho check`: validate.

use std::path::Path;
use std::process::ExitCode;

use super::{INVALID, load, loader};

/// Reads the configuration and all that it names, and says what is wrong with it.
pub(super) fn check(path: &Path) -> ExitCode {
    let settings = match load(path) {
        Ok(settings) => settings,
        Err(code) => return code,
    };
    let checked = loader(&settings).check();
    for warning in &checked.warnings {
        eprintln!("warning: {warning}");
    }
    for fault in &checked.faults {
        eprintln!("{fault}");
    }
    if !checked.faults.is_empty() {
        return ExitCode::from(INVALID);
    }
    let (routes, upstreams) = (settings.routes.len(), settings.upstreams.len());
    println!("{}: fine: {routes} routes, {upstreams} upstreams, {} rules", path.display(), checked.rules);
    ExitCode::SUCCESS
}
