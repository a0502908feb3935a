//! `sekisho rules`: manage the rules in PostgreSQL. What was printed is what is done: whatever somebody else changes
//! between the two is an error, and then nothing is done.

mod migrate;
mod read;
mod write;

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::{DEFAULT_CONFIG, INVALID, load};
use crate::rule::Mode;
use crate::rules::edit::format::Format;
use crate::rules::edit::{EditError, RuleId, Table};

#[derive(Debug, Args)]
pub(super) struct Rules {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print rules, in the order of tenant, route and mode.
    List(read::List),
    /// Print one rule.
    Get(read::Get),
    /// Print every rule, as `import` takes it.
    Export(read::Export),
    /// Add a rule, or change some fields of one.
    Set(write::Set),
    /// Delete a rule.
    Delete(write::Delete),
    /// Add and change the rules of a file, all of them or none.
    Import(write::Import),
    /// Create the tables, or bring them up to date; loses no row.
    Migrate(migrate::Migrate),
}

/// Where the rules are. Without any of these: SEKISHO_DATABASE_URL, else what conf/sekisho.toml says.
#[derive(Debug, Args)]
struct Connection {
    /// PostgreSQL; better in SEKISHO_DATABASE_URL, where other users of the machine do not see its password.
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<String>,
    /// The configuration whose rules.database_url it is.
    #[arg(short, long, global = true, value_name = "FILE", conflicts_with = "database_url")]
    config: Option<PathBuf>,
}

/// The name of one rule.
#[derive(Debug, Args)]
struct Name {
    /// Whose rule it is; '*': of every tenant without one of its own.
    tenant: String,
    /// The id of the route; '*': every route without a rule of its own.
    route: String,
    /// The rule that decides, or the one that is only counted beside it.
    #[arg(long, default_value = "enforce", value_parser = mode)]
    mode: Mode,
}

impl Name {
    fn id(&self) -> Result<RuleId, Failure> {
        RuleId::new(&self.tenant, &self.route, self.mode).map_err(Failure::Said)
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "enforce" => Ok(Mode::Enforce),
        "shadow" => Ok(Mode::Shadow),
        _ => Err("allowed are enforce, shadow".to_owned()),
    }
}

/// Why a command fails.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Edit(#[from] EditError),
    #[error("{0}")]
    Said(String),
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
    /// Everything is said already, of which the code is the sum.
    #[error("")]
    Told(ExitCode),
}

impl Rules {
    pub(super) fn run(self) -> ExitCode {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime.map_err(Failure::Output).and_then(|runtime| runtime.block_on(self.execute())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(Failure::Told(code)) => code,
            // Who reads no further, as `head`, has what was wanted.
            Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("{failure}");
                ExitCode::from(INVALID)
            }
        }
    }

    async fn execute(self) -> Result<(), Failure> {
        let Self { connection, command } = self;
        match command {
            Command::List(list) => list.run(&connection).await,
            Command::Get(get) => get.run(&connection).await,
            Command::Export(export) => export.run(&connection).await,
            Command::Set(set) => set.run(&connection).await,
            Command::Delete(delete) => delete.run(&connection).await,
            Command::Import(import) => import.run(&connection).await,
            Command::Migrate(migrate) => migrate.run(&connection).await,
        }
    }
}

impl Connection {
    async fn open(&self) -> Result<Table, Failure> {
        let user = std::env::var("USER").unwrap_or_default();
        let actor = if user.is_empty() { "cli".to_owned() } else { format!("{user}@cli") };
        Ok(Table::connect(&self.url()?, &actor).await?)
    }

    fn url(&self) -> Result<String, Failure> {
        if let Some(url) = &self.database_url {
            return Ok(url.clone());
        }
        let from_environment = std::env::var("SEKISHO_DATABASE_URL").ok().filter(|url| !url.is_empty());
        match (&self.config, from_environment) {
            (Some(path), _) => Self::configured(path),
            (None, Some(url)) => Ok(url),
            (None, None) => Self::configured(Path::new(DEFAULT_CONFIG)),
        }
    }

    fn configured(path: &Path) -> Result<String, Failure> {
        let settings = load(path).map_err(Failure::Told)?;
        let url = settings.rules.database_url.map(|url| url.0);
        url.ok_or_else(|| {
            let path = path.display();
            Failure::Said(format!(
                "{path}: rules.database_url is not set, and rules in a file are changed there; allowed are also \
                 --database-url and SEKISHO_DATABASE_URL"
            ))
        })
    }
}

/// Standard output, which may be a pipe that nobody reads any more.
fn output() -> BufWriter<io::StdoutLock<'static>> {
    BufWriter::new(io::stdout().lock())
}

/// One rule, or the rules of a page.
fn print(format: Format, rules: &[crate::rule::Rule]) -> Result<(), Failure> {
    let mut out = output();
    crate::rules::edit::format::write(&mut out, format, rules)?;
    Ok(out.flush()?)
}
