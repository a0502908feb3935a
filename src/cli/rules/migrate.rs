//! `sekisho rules migrate`

use std::io::Write;

use clap::Args;

use super::{Connection, Failure, output};
use crate::rules::edit::SCHEMA;

#[derive(Debug, Args)]
pub(super) struct Migrate {
    /// Print what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print the SQL, for who applies it otherwise; needs no database.
    #[arg(long, conflicts_with = "dry_run")]
    sql: bool,
}

impl Migrate {
    pub(super) async fn run(self, connection: &Connection) -> Result<(), Failure> {
        let mut out = output();
        if self.sql {
            out.write_all(SCHEMA.as_bytes())?;
            return Ok(out.flush()?);
        }
        let mut table = connection.open().await?;
        let lines = table.migrate(self.dry_run).await?;
        table.close().await;
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        let end = match (lines.is_empty(), self.dry_run) {
            (true, _) => "the tables are up to date",
            (false, true) => "dry run: nothing was changed",
            (false, false) => "the tables were brought up to date",
        };
        writeln!(out, "{end}")?;
        Ok(out.flush()?)
    }
}
