//! The table `rate_limit_rule`: reading rows, and writing a plan, all of it or nothing.
//!
//! Nothing is believed of the table but the four columns that a rule needs: others may be missing, types may be narrower,
//! triggers may change what is written. So what was written is read back and compared before it is committed. Nothing is
//! prepared, so that a connection pooler may stand between.

mod columns;

use std::collections::HashMap;
use std::time::Duration;

use futures_util::{StreamExt, pin_mut};
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row as Record, Transaction};

use self::columns::{Arrays, Columns, NAME, Parameters};
use super::super::postgres::{Database, RULE_COLUMNS, rule_of, whole};
use super::super::raw::Entry;
use super::format::mode;
use super::plan::{Change, Plan, differences};
use super::{Broken, EditError, Row, Rule, RuleId};
use crate::rule::shown;

/// So many rules are written with one statement.
const BATCH: usize = 10_000;

/// For others who change rules, or the table, at the same time.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// For reading all that a command asks for: longer than millions of rules take.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// For writing all of it, triggers and all.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1800);

/// Which rows to read; the default is all.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Of this tenant alone, which may be `*`.
    pub tenant: Option<String>,
    /// For this route alone, which may be `*`.
    pub route: Option<String>,
    /// Only those behind this one.
    pub after: Option<RuleId>,
    /// At most so many.
    pub limit: Option<u32>,
}

impl Selection {
    /// The rows of one rule and of its counterpart in the other mode.
    pub fn of(id: &RuleId) -> Self {
        Self { tenant: Some(id.tenant_id.to_string()), route: Some(id.route_id.to_string()), ..Self::default() }
    }
}

/// The table, over a connection of its own.
pub struct Table {
    pub(super) database: Database,
    pub(super) actor: String,
}

impl Table {
    /// Connects. `actor` is who a history of changes says it was (setting `sekisho.actor` of the session).
    ///
    /// # Errors
    /// When there is no connection.
    pub async fn connect(url: &str, actor: &str) -> Result<Self, EditError> {
        Ok(Self { database: Database::connect(url).await?, actor: actor.to_owned() })
    }

    /// Takes leave of the server.
    pub async fn close(self) {
        self.database.close().await;
    }

    /// Reads rows in the order of their ids.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub async fn read(&mut self, selection: &Selection) -> Result<Vec<Row>, EditError> {
        within(READ_TIMEOUT, async {
            let client = self.database.client();
            let failed = statement("reading rules");
            let transaction = client.build_transaction().read_only(true).start().await.map_err(failed)?;
            let rows = read(&transaction, selection).await?;
            transaction.commit().await.map_err(failed)?;
            Ok(rows)
        })
        .await
    }

    /// The row of one rule.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub async fn get(&mut self, id: &RuleId) -> Result<Option<Row>, EditError> {
        Ok(self.read(&Selection::of(id)).await?.into_iter().find(|row| row.id == *id))
    }

    /// Makes the changes of a plan, if every rule it changes is as the plan found it.
    ///
    /// # Errors
    /// When one is not, when the table cannot keep what is to be written, when the server refuses. Then nothing has
    /// changed.
    pub async fn apply(&mut self, plan: &Plan) -> Result<(), EditError> {
        if plan.changes.is_empty() {
            return Ok(());
        }
        within(WRITE_TIMEOUT, async {
            let failed = statement("preparing to write rules");
            let Self { database, actor } = self;
            let transaction = database.client().transaction().await.map_err(failed)?;
            prepare(&transaction, actor).await.map_err(failed)?;
            // Readers go on; who writes too waits, so that what is compared stays as it is.
            let lock = format!("LOCK TABLE {NAME} IN SHARE ROW EXCLUSIVE MODE");
            transaction.batch_execute(&lock).await.map_err(failed)?;
            match write(&transaction, plan).await {
                Ok(()) => transaction.commit().await.map_err(statement("committing rules")),
                Err(error) => {
                    // The lock goes at once; where even that fails, it goes with the connection.
                    let _ = transaction.rollback().await;
                    Err(error)
                }
            }
        })
        .await
    }
}

async fn write(transaction: &Transaction<'_>, plan: &Plan) -> Result<(), EditError> {
    let columns = Columns::read(transaction).await?;
    for changes in plan.changes.chunks(BATCH) {
        columns.check(changes)?;
        compare(transaction, &columns, changes).await?;
        delete(transaction, &columns, changes).await?;
        update(transaction, &columns, changes).await?;
        insert(transaction, &columns, changes).await?;
    }
    Ok(())
}

/// Settings of this transaction alone, so that a connection pooler hands none to anybody else.
pub(super) async fn prepare(transaction: &Transaction<'_>, actor: &str) -> Result<(), Error> {
    let settings = "SELECT set_config('sekisho.actor', $1, true), set_config('application_name', 'sekisho', true), \
                    set_config('lock_timeout', $2, true)";
    let lock_timeout = LOCK_TIMEOUT.as_millis().to_string();
    transaction.execute_typed(settings, &[(&actor, Type::TEXT), (&lock_timeout, Type::TEXT)]).await.map(drop)
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, EditError>>) -> Result<T, EditError> {
    let late =
        |_| EditError::Statement { doing: "waiting for the server", problem: format!("not done within {limit:?}") };
    timeout(limit, work).await.map_err(late)?
}

pub(super) fn statement(doing: &'static str) -> impl Fn(Error) -> EditError + Copy {
    move |error| match error.code() {
        Some(&SqlState::UNIQUE_VIOLATION) => EditError::OneRule(whole(&error)),
        _ => EditError::Statement { doing, problem: whole(&error) },
    }
}

/// A record of all columns of a rule as text.
fn row_of(record: &Record) -> Result<Row, EditError> {
    let failed = statement("reading a row");
    let values = || (0..RULE_COLUMNS.len()).map(|column| record.try_get(column)).collect::<Result<Vec<_>, _>>();
    let Entry { tenant_id, route_id, mode, terms } = rule_of(record).map_err(failed)?;
    let [tenant_id, route_id] = [tenant_id, route_id].map(|id| id.unwrap_or_default());
    let Some(mode) = mode else {
        let fault = terms.err().unwrap_or_default();
        return Err(EditError::Unnamed(format!("rule {}/{}: {fault}", shown(&tenant_id), shown(&route_id))));
    };
    let id = RuleId { tenant_id: (&*tenant_id).into(), route_id: (&*route_id).into(), mode };
    // Ids that no rule can have are a fault of the row.
    let judged = RuleId::new(&id.tenant_id, &id.route_id, mode).and(terms);
    let rule = match judged {
        Ok(terms) => Ok(terms.into_rule(id.tenant_id.clone(), id.route_id.clone())),
        Err(fault) => Err(Broken { fault, values: values().map_err(failed)? }),
    };
    Ok(Row { id, rule })
}

async fn read(transaction: &Transaction<'_>, selection: &Selection) -> Result<Vec<Row>, EditError> {
    let columns = Columns::read(transaction).await?;
    let order = format!(r#"t.tenant_id COLLATE "C", t.route_id COLLATE "C", {} COLLATE "C""#, columns.mode());
    let Selection { tenant, route, after, limit } = selection;
    let after = after.as_ref().map(|id| [&*id.tenant_id, &*id.route_id, mode(id.mode)].map(str::to_owned));
    let (mut conditions, mut parameters): (Vec<String>, Parameters<'_>) = (Vec::new(), Vec::new());
    for (column, id) in [("tenant_id", tenant), ("route_id", route)] {
        if let Some(id) = id {
            parameters.push((id, Type::TEXT));
            conditions.push(format!("t.{column} = ${}", parameters.len()));
        }
    }
    if let Some(after) = &after {
        parameters.extend(after.iter().map(|id| (id as &(dyn ToSql + Sync), Type::TEXT)));
        let last = parameters.len();
        conditions.push(format!("({order}) > (${}, ${}, ${last})", last - 2, last - 1));
    }
    let condition = if conditions.is_empty() { "true".to_owned() } else { conditions.join(" AND ") };
    let limit = limit.map_or_else(|| "ALL".to_owned(), |limit| limit.to_string());
    let select = format!("SELECT {} FROM {NAME} t WHERE {condition} ORDER BY {order} LIMIT {limit}", columns.list());
    stream(transaction, &select, parameters, "reading rules").await
}

async fn stream(
    transaction: &Transaction<'_>,
    sql: &str,
    parameters: Parameters<'_>,
    doing: &'static str,
) -> Result<Vec<Row>, EditError> {
    let failed = statement(doing);
    let records = transaction.query_typed_raw(sql, parameters).await.map_err(failed)?;
    pin_mut!(records);
    let mut rows = Vec::new();
    while let Some(record) = records.next().await {
        rows.push(row_of(&record.map_err(failed)?)?);
    }
    Ok(rows)
}

/// Every rule has to be as the plan found it.
async fn compare(transaction: &Transaction<'_>, columns: &Columns, changes: &[Change]) -> Result<(), EditError> {
    let ids: Vec<RuleId> = changes.iter().map(Change::id).collect();
    let arrays = Arrays::ids(ids.iter());
    let list = columns.list();
    let select = format!("SELECT {list} FROM {NAME} t JOIN {} ON {}", arrays.table(), columns.same());
    let rows = stream(transaction, &select, arrays.parameters(), "comparing rules").await?;
    let there: HashMap<&RuleId, &Row> = rows.iter().map(|row| (&row.id, row)).collect();
    match changes.iter().zip(&ids).find(|(change, id)| change.before() != there.get(id).copied()) {
        Some((_, id)) => Err(EditError::Conflict(id.clone())),
        None => Ok(()),
    }
}

async fn delete(transaction: &Transaction<'_>, columns: &Columns, changes: &[Change]) -> Result<(), EditError> {
    let deleted = |change: &'_ Change| matches!(change, Change::Delete(_)).then(|| change.id());
    let ids: Vec<RuleId> = changes.iter().filter_map(deleted).collect();
    let arrays = Arrays::ids(ids.iter());
    if arrays.is_empty() {
        return Ok(());
    }
    let sql = format!("DELETE FROM {NAME} t USING {} WHERE {}", arrays.table(), columns.same());
    let count = transaction.execute_typed(&sql, &arrays.parameters()).await;
    match count.map_err(statement("deleting rules"))? {
        count if count >= ids.len() as u64 => Ok(()),
        count => Err(EditError::Statement {
            doing: "deleting rules",
            problem: format!("the table kept {} of {}", ids.len() as u64 - count, ids.len()),
        }),
    }
}

async fn update(transaction: &Transaction<'_>, columns: &Columns, changes: &[Change]) -> Result<(), EditError> {
    let replaced = changes.iter().filter_map(|change| match change {
        Change::Replace { after, .. } => Some(after),
        _ => None,
    });
    let arrays = Arrays::rules(replaced.clone());
    if arrays.is_empty() {
        return Ok(());
    }
    let terms = columns.there().filter(|column| !matches!(*column, "tenant_id" | "route_id" | "mode"));
    let mut assignments: Vec<String> = terms.map(|column| format!("{column} = {}", columns.cast(column))).collect();
    if columns.updated_at {
        assignments.push("updated_at = now()".to_owned());
    }
    let sql = format!(
        "UPDATE {NAME} t SET {} FROM {} WHERE {} RETURNING {}",
        assignments.join(", "),
        arrays.table(),
        columns.same(),
        columns.list()
    );
    kept(replaced, stream(transaction, &sql, arrays.parameters(), "changing rules").await?)
}

async fn insert(transaction: &Transaction<'_>, columns: &Columns, changes: &[Change]) -> Result<(), EditError> {
    let added = changes.iter().filter_map(|change| match change {
        Change::Add(rule) => Some(rule),
        _ => None,
    });
    let arrays = Arrays::rules(added.clone());
    if arrays.is_empty() {
        return Ok(());
    }
    let (there, values): (Vec<&str>, Vec<String>) =
        columns.there().map(|column| (column, columns.cast(column))).unzip();
    let sql = format!(
        "INSERT INTO {NAME} AS t ({}) SELECT {} FROM {} RETURNING {}",
        there.join(", "),
        values.join(", "),
        arrays.table(),
        columns.list()
    );
    kept(added, stream(transaction, &sql, arrays.parameters(), "adding rules").await?)
}

/// The table has to keep what was written.
fn kept<'a>(written: impl Iterator<Item = &'a Rule>, rows: Vec<Row>) -> Result<(), EditError> {
    let rows: HashMap<RuleId, Row> = rows.into_iter().map(|row| (row.id.clone(), row)).collect();
    for rule in written {
        let id = RuleId::of(rule);
        let differences = match rows.get(&id).map(|row| &row.rule) {
            Some(Ok(there)) if there == rule => continue,
            Some(Ok(there)) => differences(rule, there),
            Some(Err(broken)) => broken.fault.clone(),
            None => "another rule, or none".to_owned(),
        };
        return Err(EditError::NotKept { rule: id, differences });
    }
    Ok(())
}
