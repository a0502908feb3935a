//! `sekisho rules list`, `get` and `export`.

use std::process::ExitCode;

use clap::Args;

use super::{Connection, Failure, INVALID, Name, print};
use crate::rule::Rule;
use crate::rules::edit::format::Format;
use crate::rules::edit::{Row, RuleId, Selection};

#[derive(Debug, Args)]
pub(super) struct List {
    /// Of this tenant alone.
    #[arg(long)]
    tenant: Option<String>,
    /// For this route alone.
    #[arg(long)]
    route: Option<String>,
    /// At most so many.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Only those behind this one: TENANT/ROUTE or TENANT/ROUTE/shadow, as the page before names it.
    #[arg(long, value_name = "CURSOR", value_parser = RuleId::from_cursor)]
    after: Option<RuleId>,
    #[arg(long, default_value = "table")]
    format: Format,
}

#[derive(Debug, Args)]
pub(super) struct Get {
    #[command(flatten)]
    name: Name,
    #[arg(long, default_value = "json")]
    format: Format,
}

#[derive(Debug, Args)]
pub(super) struct Export {
    #[arg(long, default_value = "json")]
    format: Format,
}

impl List {
    pub(super) async fn run(self, connection: &Connection) -> Result<(), Failure> {
        let Self { tenant, route, limit, after, format } = self;
        // One more tells whether there are more.
        let limit_and_one = limit.map(|limit| limit.saturating_add(1));
        let rows = read(connection, &Selection { tenant, route, after, limit: limit_and_one }).await?;
        let page = rows.len().min(limit.map_or(usize::MAX, |limit| limit as usize));
        let printed = print_rows(&rows[..page], format);
        if let (true, Some(last)) = (page < rows.len(), rows[..page].last()) {
            eprintln!("there are more: --after '{}'", last.id.cursor());
        }
        printed
    }
}

impl Get {
    pub(super) async fn run(self, connection: &Connection) -> Result<(), Failure> {
        let id = self.name.id()?;
        let rows = read(connection, &Selection::of(&id)).await?;
        let row = rows.into_iter().find(|row| row.id == id);
        print_rows(&[row.ok_or_else(|| Failure::Said(format!("rule {id}: there is none")))?], self.format)
    }
}

impl Export {
    pub(super) async fn run(self, connection: &Connection) -> Result<(), Failure> {
        print_rows(&read(connection, &Selection::default()).await?, self.format)
    }
}

async fn read(connection: &Connection, selection: &Selection) -> Result<Vec<Row>, Failure> {
    let mut table = connection.open().await?;
    let rows = table.read(selection).await?;
    table.close().await;
    Ok(rows)
}

/// Prints the rules among the rows; a row that is none is named, and an error in the end.
fn print_rows(rows: &[Row], format: Format) -> Result<(), Failure> {
    let rules: Vec<Rule> = rows.iter().filter_map(|row| row.rule.clone().ok()).collect();
    print(format, &rules)?;
    let broken = || rows.iter().filter_map(|row| Some((&row.id, row.rule.as_ref().err()?)));
    broken().for_each(|(id, broken)| eprintln!("rule {id}: left out: {}", broken.fault));
    if broken().next().is_some() { Err(Failure::Told(ExitCode::from(INVALID))) } else { Ok(()) }
}
