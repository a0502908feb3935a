//! `sekisho run`: serve.

use std::process::ExitCode;

use clap::Args;

use super::check::check;
use super::{ConfigFile, INVALID, load};
use crate::{server, telemetry};

/// Could not start.
const NOT_STARTED: u8 = 3;

#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    file: ConfigFile,
    /// Run in the background.
    #[arg(short, long)]
    daemon: bool,
    /// Take over the sockets of a running gateway.
    #[arg(short, long)]
    upgrade: bool,
    /// Only validate, as `check` does.
    #[arg(short, long)]
    test: bool,
}

impl Run {
    pub(super) fn run(&self) -> ExitCode {
        if self.test { check(&self.file.config, None) } else { serve(self) }
    }
}

fn serve(run: &Run) -> ExitCode {
    let settings = match load(&run.file.config) {
        Ok(settings) => settings,
        Err(code) => return code,
    };
    telemetry::init();
    let error = match server::run(settings, server::Start { daemon: run.daemon, upgrade: run.upgrade }) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    eprintln!("{error}");
    ExitCode::from(if error.is_invalid_input() { INVALID } else { NOT_STARTED })
}
