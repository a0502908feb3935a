//! Brings the tables up to `conf/schema.sql`, and says what that changes.

use std::collections::BTreeSet;

use tokio_postgres::Transaction;

use super::EditError;
use super::table::{Table, prepare, statement};

/// The tables, as `conf/schema.sql` ships them.
pub const SCHEMA: &str = include_str!("../../../conf/schema.sql");

/// Everything in the schema that a migration may change, one line each.
const CATALOGUE: &str = "
    SELECT 'table ' || relname FROM pg_class
        WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p')
    UNION ALL
    SELECT 'column ' || relname || '.' || attname || ' ' || format_type(atttypid, atttypmod)
            || CASE WHEN attnotnull THEN ' NOT NULL' ELSE '' END
            || coalesce(' DEFAULT ' || pg_get_expr(adbin, adrelid), '')
        FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') AND attnum > 0
            AND NOT attisdropped
    UNION ALL
    SELECT 'constraint ' || conname || ' of ' || conrelid::regclass || ': ' || pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = current_schema()::regnamespace AND conrelid <> 0
            AND contype <> 'n'
    UNION ALL
    SELECT 'index: ' || pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
        WHERE relnamespace = current_schema()::regnamespace
            AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
    UNION ALL
    SELECT 'trigger: ' || pg_get_triggerdef(pg_trigger.oid) FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
        WHERE relnamespace = current_schema()::regnamespace AND NOT tgisinternal
    UNION ALL
    SELECT 'function ' || oid::regprocedure || ' (' || left(md5(pg_get_functiondef(oid)), 8) || ')' FROM pg_proc
        WHERE pronamespace = current_schema()::regnamespace AND prokind IN ('f', 'p')
            AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_proc.oid AND deptype = 'e')";

impl Table {
    /// Applies `conf/schema.sql`; says what came (`+ …`) and went (`- …`). `dry_run`: finds that out, and takes it back.
    ///
    /// # Errors
    /// When the server refuses; then nothing has changed.
    pub async fn migrate(&mut self, dry_run: bool) -> Result<Vec<String>, EditError> {
        let failed = statement("migrating the tables");
        let Self { database, actor } = self;
        let transaction = database.client().transaction().await.map_err(failed)?;
        prepare(&transaction, actor).await.map_err(failed)?;
        let before = catalogue(&transaction).await?;
        transaction.batch_execute(script()).await.map_err(failed)?;
        let after = catalogue(&transaction).await?;
        let end = if dry_run { transaction.rollback().await } else { transaction.commit().await };
        end.map_err(failed)?;
        let gone = before.difference(&after).map(|line| format!("- {line}"));
        let new = after.difference(&before).map(|line| format!("+ {line}"));
        Ok(gone.chain(new).collect())
    }
}

/// The script without its own transaction.
fn script() -> &'static str {
    let (_, rest) = SCHEMA.split_once("\nBEGIN;\n").unwrap_or(("", SCHEMA));
    rest.trim_end().strip_suffix("\nCOMMIT;").unwrap_or(rest)
}

async fn catalogue(transaction: &Transaction<'_>) -> Result<BTreeSet<String>, EditError> {
    let failed = statement("reading the catalogue");
    let rows = transaction.query_typed(CATALOGUE, &[]).await.map_err(failed)?;
    rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_one_transaction_that_can_be_taken_back() {
        assert!(script().len() < SCHEMA.len());
        let statements = || script().lines().map(str::trim);
        assert!(!statements().any(|line| line.starts_with("COMMIT") || line == "BEGIN;"), "{}", script());
        assert!(statements().any(|line| line.starts_with("CREATE TABLE")));
    }
}
