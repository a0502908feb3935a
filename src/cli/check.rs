//! `sekisho check`: validate.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;

use super::{ConfigFile, INVALID, load, loader};
use crate::expectations::Expectations;

#[derive(Debug, Args)]
pub(super) struct Check {
    #[command(flatten)]
    file: ConfigFile,
    /// Expectations to hold against the rules, in place of rules.tests.
    #[arg(long)]
    rules_test: Option<PathBuf>,
}

impl Check {
    pub(super) fn run(&self) -> ExitCode {
        check(&self.file.config, self.rules_test.as_deref())
    }
}

/// Reads the configuration and all that it names, and says what is wrong with it.
pub(super) fn check(path: &Path, tests: Option<&Path>) -> ExitCode {
    let settings = match load(path) {
        Ok(settings) => settings,
        Err(code) => return code,
    };
    let mut loader = loader(&settings);
    if let Some(tests) = tests.or(settings.rules.tests.as_deref()) {
        match Expectations::read(tests, &settings, loader.keys()) {
            Ok(expectations) => loader.judge_by(Arc::new(expectations)),
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(INVALID);
            }
        }
    }
    let checked = loader.check();
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
