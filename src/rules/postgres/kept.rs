//! Reads the rules of some tenants and routes, on a connection that is kept for the next time.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::{COLUMNS, Database, DatabaseError, READ_TIMEOUT, RULE_COLUMNS, rule_of, select_list, whole};
use crate::rules::change::{Pair, Pairs};
use crate::rules::merge::{Merge, Place};

const TABLE: &str = "rate_limit_rule";

/// So many pairs in one statement: few enough for the index.
const BATCH: usize = 500;

/// On a connection that may have died in the meantime; then there is a second try on a new one.
const KEPT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection that is kept, if there is one.
#[derive(Default)]
pub(in crate::rules) struct Kept {
    database: Option<Database>,
    /// What to select, as the table was when it was last looked at.
    list: Option<String>,
    wanted: bool,
}

impl Kept {
    /// A connection that is not needed any more serves the next reads, if there are to be any. Gives back the one to close.
    #[must_use]
    pub(in crate::rules) fn offer(&mut self, database: Database) -> Option<Database> {
        if self.wanted { self.database.replace(database) } else { Some(database) }
    }

    /// There are going to be reads.
    pub(in crate::rules) fn want(&mut self) {
        self.wanted = true;
    }

    /// Adds every row of these tenants and routes to `merge`, which is of no use if that fails.
    pub(in crate::rules) async fn read(
        &mut self,
        url: &str,
        pairs: &Pairs,
        merge: &mut Merge,
    ) -> Result<(), DatabaseError> {
        let asked: Vec<&Pair> = pairs.iter().collect();
        let kept = match self.database.take().filter(|database| !database.client.is_closed()) {
            Some(database) => {
                timeout(KEPT_TIMEOUT, self.rows(&database, &asked)).await.ok().map(|rows| (database, rows))
            }
            None => None,
        };
        let (database, rows) = match kept {
            Some((database, Ok(rows))) => (database, rows),
            _ => {
                self.list = None;
                let database = Database::connect(url).await?;
                let rows = timeout(READ_TIMEOUT, self.rows(&database, &asked)).await.map_err(|_| {
                    DatabaseError::Read { table: TABLE, problem: format!("not done within {READ_TIMEOUT:?}") }
                })??;
                (database, rows)
            }
        };
        self.database = Some(database);
        for row in &rows {
            let entry = rule_of(row).map_err(|error| failed(&error))?;
            merge.add(Place::Row, entry);
        }
        Ok(())
    }

    async fn rows(&mut self, database: &Database, pairs: &[&Pair]) -> Result<Vec<Row>, DatabaseError> {
        let mut rows = Vec::new();
        for batch in pairs.chunks(BATCH) {
            rows.append(&mut self.batch(database, batch).await?);
        }
        Ok(rows)
    }

    /// Reads one batch. The columns are asked for along with the rows, and after them: where they are not those that were
    /// selected, the rows are read again. Nothing is prepared, so that a connection pooler may stand between.
    async fn batch(&mut self, database: &Database, pairs: &[&Pair]) -> Result<Vec<Row>, DatabaseError> {
        let (tenants, routes): (Vec<&str>, Vec<&str>) =
            pairs.iter().map(|(tenant, route)| (&**tenant, &**route)).unzip();
        loop {
            let list = match &self.list {
                Some(list) => list.clone(),
                None => columns(database).await?,
            };
            let select = format!(
                "SELECT {list} FROM unnest($1, $2) AS asked (tenant, route) \
                 JOIN {TABLE} ON {TABLE}.tenant_id = asked.tenant AND {TABLE}.route_id = asked.route"
            );
            let asked: [(&(dyn ToSql + Sync), Type); 2] = [(&tenants, Type::TEXT_ARRAY), (&routes, Type::TEXT_ARRAY)];
            let read = database.client.query_typed(&select, &asked);
            let (rows, columns) = tokio::join!(read, columns(database));
            let (rows, columns) = (rows.map_err(|error| failed(&error))?, columns?);
            let is_same = list == columns;
            self.list = Some(columns);
            if is_same {
                return Ok(rows);
            }
        }
    }
}

async fn columns(database: &Database) -> Result<String, DatabaseError> {
    let there = database.client.query_typed(COLUMNS, &[(&TABLE, Type::TEXT)]).await.map_err(|error| failed(&error))?;
    select_list(TABLE, &RULE_COLUMNS, &there)
}

fn failed(error: &tokio_postgres::Error) -> DatabaseError {
    DatabaseError::Read { table: TABLE, problem: whole(error) }
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("connected", &self.database.is_some()).finish_non_exhaustive()
    }
}
