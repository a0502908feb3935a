//! The command line. Exit codes: 0 fine, 1 invalid input or configuration, 2 bad usage, 3 could not start.

mod check;
mod explain;
mod replay;
mod rules;
mod run;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{self, Settings};
use crate::rules::Loader;

/// Invalid input or configuration.
const INVALID: u8 = 1;
/// The configuration where none is named.
const DEFAULT_CONFIG: &str = "conf/sekisho.toml";

/// An API gateway that enforces one rate limit per tenant and route over a whole fleet.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve.
    Run(run::Run),
    /// Validate the configuration and every rule it can reach.
    Check(check::Check),
    /// Print which route, tenant and limits apply to a request, and why; spends nothing.
    Explain(explain::Explain),
    /// Say what other rules would have done to the requests of an access log.
    Replay(replay::Replay),
    /// Manage the rules in PostgreSQL.
    Rules(rules::Rules),
}

#[derive(Debug, Args)]
struct ConfigFile {
    /// The configuration file.
    #[arg(short, long, default_value = DEFAULT_CONFIG)]
    config: PathBuf,
}

impl Cli {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Run(command) => command.run(),
            Command::Check(check) => check.run(),
            Command::Explain(request) => request.run(),
            Command::Replay(command) => command.run(),
            Command::Rules(rules) => rules.run(),
        }
    }
}

fn load(path: &Path) -> Result<Settings, ExitCode> {
    config::load(path).map_err(|faults| {
        for fault in faults {
            eprintln!("{fault}");
        }
        ExitCode::from(INVALID)
    })
}

fn loader(settings: &Settings) -> Loader {
    Loader::new(&settings.rules, &settings.limiter.default_rule, &settings.identity.mode, &settings.routes)
}
