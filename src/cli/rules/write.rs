//! `sekisho rules set`, `delete` and `import`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{Connection, Failure, INVALID, Name, output};
use crate::rules::edit::format::{self, Format};
use crate::rules::edit::{Patch, Plan, Selection, Table};

#[derive(Debug, Args)]
pub(super) struct Set {
    #[command(flatten)]
    name: Name,
    /// Tokens: the burst. A new rule needs it.
    #[arg(long)]
    capacity: Option<String>,
    /// Tokens per second, or '100/s', '100/min', '5000/h', '10000/day'. A new rule needs it.
    #[arg(long, alias = "refill-per-second")]
    refill: Option<String>,
    /// Tokens one request takes; 'default': the route's.
    #[arg(long)]
    cost: Option<String>,
    /// When the store does not answer: local, open, closed; 'default': limiter.on_store_failure.
    #[arg(long)]
    on_store_failure: Option<String>,
    /// Sub-buckets, 1 to 100.
    #[arg(long)]
    shards: Option<String>,
    /// true, or false: skipped, the next rule of the chain applies.
    #[arg(long)]
    enabled: Option<String>,
    /// For people; '': none.
    #[arg(long)]
    comment: Option<String>,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
pub(super) struct Delete {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
pub(super) struct Import {
    /// A .json or .csv file; with --format any other, such as /dev/stdin.
    file: PathBuf,
    /// What the file is, where its name does not tell.
    #[arg(long)]
    format: Option<Format>,
    /// Also delete every rule that is not in the file.
    #[arg(long)]
    replace: bool,
    /// Even if more than half of the rules go away.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
struct How {
    /// Print what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

impl Set {
    pub(super) async fn run(self, connection: &Connection) -> Result<(), Failure> {
        let id = self.name.id()?;
        let Self { capacity, refill, cost, on_store_failure, shards, enabled, comment, how, .. } = self;
        let patch = Patch { capacity, refill, cost, on_store_failure, shards, enabled, comment };
        let mut table = connection.open().await?;
        let row = table.get(&id).await?;
        let before = row.as_ref().and_then(|row| row.rule.as_ref().ok());
        let rule = patch.over(&id, before).map_err(|fault| Failure::Said(format!("rule {id}: {fault}")))?;
        let plan = Plan::new(Vec::from_iter(row), [rule], false);
        carry_out(table, &plan, &how).await
    }
}

impl Delete {
    pub(super) async fn run(self, connection: &Connection) -> Result<(), Failure> {
        let id = self.name.id()?;
        let mut table = connection.open().await?;
        let row = table.get(&id).await?.ok_or_else(|| Failure::Said(format!("rule {id}: there is none")))?;
        carry_out(table, &Plan::delete(row), &self.how).await
    }
}

impl Import {
    pub(super) async fn run(self, connection: &Connection) -> Result<(), Failure> {
        let file = self.file.display();
        let format = self.format.or_else(|| Format::of(&self.file)).ok_or_else(|| {
            Failure::Said(format!("{file}: its name does not tell what it is, allowed are .json, .csv, or --format"))
        })?;
        let rules = format::read(&self.file, format).map_err(|faults| {
            faults.iter().for_each(|fault| eprintln!("{fault}"));
            eprintln!("{file}: {} faults, nothing was changed", faults.len());
            Failure::Told(ExitCode::from(INVALID))
        })?;
        let mut table = connection.open().await?;
        let plan = Plan::new(table.read(&Selection::default()).await?, rules, self.replace);
        if plan.deletes_most() && !self.force {
            print(&plan)?;
            let (.., deleted) = plan.counts();
            let problem = format!("{deleted} of {} rules would go away, allowed with --force", plan.present);
            return Err(Failure::Said(format!("{file}: {problem}; nothing was changed")));
        }
        carry_out(table, &plan, &self.how).await
    }
}

/// Prints a plan, then does it.
async fn carry_out(mut table: Table, plan: &Plan, how: &How) -> Result<(), Failure> {
    print(plan)?;
    if !how.dry_run {
        table.apply(plan).await?;
    }
    table.close().await;
    let (added, changed, deleted) = plan.counts();
    let unchanged = plan.unchanged;
    let end = if how.dry_run { "; dry run: nothing was changed" } else { "" };
    let mut out = output();
    writeln!(out, "{added} added, {changed} changed, {deleted} deleted, {unchanged} unchanged{end}")?;
    Ok(out.flush()?)
}

fn print(plan: &Plan) -> Result<(), Failure> {
    let mut out = output();
    plan.changes.iter().try_for_each(|change| writeln!(out, "{change}"))?;
    Ok(out.flush()?)
}
