//! The command line. Exit codes: 0 fine, 1 invalid input or configuration, 2 bad usage, 3 could not start.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use crate::config::{self, Settings};
use crate::explain::{Explainer, Query};
use crate::rules::Loader;
use crate::{server, telemetry};

/// Invalid input or configuration.
const INVALID: u8 = 1;
/// Could not start.
const NOT_STARTED: u8 = 3;

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
    Run(Run),
    /// Validate the configuration and every rule it can reach.
    Check(ConfigFile),
    /// Print which route, tenant and limits apply to a request, and why; spends nothing.
    Explain(Explain),
}

#[derive(Debug, Args)]
struct ConfigFile {
    /// The configuration file.
    #[arg(short, long, default_value = "conf/sekisho.toml")]
    config: PathBuf,
}

#[derive(Debug, Args)]
struct Run {
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

#[derive(Debug, Args)]
struct Explain {
    #[command(flatten)]
    file: ConfigFile,
    /// The request's method.
    #[arg(long)]
    method: Method,
    /// The request's path.
    #[arg(long)]
    path: String,
    /// The request's host.
    #[arg(long)]
    host: Option<String>,
    /// The API key.
    #[arg(long)]
    api_key: Option<String>,
    /// The address it comes from.
    #[arg(long)]
    ip: Option<IpAddr>,
    /// A header, 'Name: value'; may be repeated.
    #[arg(short = 'H', long = "header", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("allowed is 'Name: value'")?;
    let name = name.trim().parse().map_err(|_| format!("\"{}\" is not a header's name", name.trim()))?;
    let value = value.trim().parse().map_err(|_| "not a header's value".to_owned())?;
    Ok((name, value))
}

impl Cli {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Run(run) if run.test => check(&run.file.config),
            Command::Run(run) => serve(&run),
            Command::Check(file) => check(&file.config),
            Command::Explain(request) => explain(request),
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

fn check(path: &Path) -> ExitCode {
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

fn explain(request: Explain) -> ExitCode {
    let settings = match load(&request.file.config) {
        Ok(settings) => settings,
        Err(code) => return code,
    };
    let loader = loader(&settings);
    let explainer = loader
        .initial_load()
        .map_err(|error| error.to_string())
        .and_then(|()| Explainer::new(&settings, loader.rules(), loader.keys()).map_err(|error| error.to_string()));
    let explainer = match explainer {
        Ok(explainer) => explainer,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(INVALID);
        }
    };
    let query = Query {
        method: request.method,
        path: request.path,
        host: request.host,
        api_key: request.api_key,
        ip: request.ip,
        headers: HeaderMap::from_iter(request.headers),
    };
    println!("{:#}", explainer.explain(&query));
    ExitCode::SUCCESS
}

fn loader(settings: &Settings) -> Loader {
    Loader::new(&settings.rules, &settings.limiter.default_rule, &settings.identity.mode, &settings.routes)
}
