//! `/api/v1/rules`: the rules in force, page by page, and single rules in the database, read and written with optimistic
//! concurrency (RFC 9110 section 13): who overwrites or deletes a rule says by `If-Match` which content is meant.
//!
//! Writing goes to PostgreSQL, never to memory: what is written comes back as it does on every other gateway.

mod conditions;
mod request;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, Response, StatusCode, header};
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use serde::Serialize;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::reply::{Refusal, json, object};
use crate::config::Secret;
use crate::rule::Rule;
use crate::rules::change::Changes;
use crate::rules::edit::format::{Json, from_json};
use crate::rules::edit::{EditError, Plan, Row, RuleId, Table, etag};
use crate::rules::{Rules, page};

/// For everything that one request asks of the database.
const DATABASE_PATIENCE: Duration = Duration::from_secs(15);

type Answer = Response<Vec<u8>>;

/// What answers below `/api/v1/rules`.
pub(super) struct RulesApi {
    rules: Arc<Rules>,
    changes: Arc<Changes>,
    database: Option<Secret>,
    /// Whoever reaches the listener may write.
    open: bool,
    /// A page looks at every rule: one at a time.
    paging: Semaphore,
}

impl fmt::Debug for RulesApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RulesApi").field("open", &self.open).finish_non_exhaustive()
    }
}

/// A page, as it is answered.
#[derive(Serialize)]
struct Page<'a> {
    rules: Vec<Json<'a>>,
    /// `after` of the next page; `None`: this is the last.
    next: Option<String>,
}

impl RulesApi {
    /// `changes` is told what is written to `database`. `open`: no token is asked for.
    pub(super) fn new(rules: Arc<Rules>, changes: Arc<Changes>, database: Option<Secret>, open: bool) -> Self {
        Self { rules, changes, database, open, paging: Semaphore::new(1) }
    }

    /// `below`: the path behind `/api/v1/rules`, of which `/TENANT/ROUTE` and nothing are understood.
    pub(super) async fn answer(&self, head: &RequestHeader, session: &mut ServerSession, below: &str) -> Answer {
        let answer = if below.is_empty() { self.list(head).await } else { self.one(head, session, below).await };
        answer.unwrap_or_else(Into::into)
    }

    async fn list(&self, head: &RequestHeader) -> Result<Answer, Refusal> {
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return Err(Refusal::not_allowed(
                "GET, HEAD",
                "rules are written one by one, at /api/v1/rules/{tenant}/{route}",
            ));
        }
        let (filter, limit) = request::page(head.uri.query().unwrap_or_default())?;
        // Never closed; and if it were, the page would do no harm.
        let _turn = self.paging.acquire().await.ok();
        let set = Arc::clone(&self.rules.load());
        let (rules, more) = tokio::task::spawn_blocking(move || page(&set, &filter, limit))
            .await
            .map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        let next = rules.last().filter(|_| more).map(|rule| RuleId::of(rule).cursor());
        Ok(json(StatusCode::OK, &Page { rules: rules.iter().map(|rule| Json(rule)).collect(), next }))
    }

    async fn one(&self, head: &RequestHeader, session: &mut ServerSession, below: &str) -> Result<Answer, Refusal> {
        let id = request::rule(below, head.uri.query().unwrap_or_default())?;
        match (&head.method, &self.database) {
            (&Method::GET | &Method::HEAD, database) => self.get(head, &id, database.as_ref()).await,
            (&Method::PUT | &Method::DELETE, None) => Err(Refusal::not_allowed(
                "GET, HEAD",
                "rules of a file are changed in the file; PUT and DELETE need rules.database_url",
            )),
            (&Method::PUT | &Method::DELETE, Some(database)) => {
                if self.open {
                    request::no_foreign_page(&head.headers)?;
                }
                let actor = request::actor(session);
                if head.method == Method::PUT {
                    let body = request::body(&head.headers, session).await?;
                    let rule =
                        from_json(&body, &id).map_err(|fault| Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, fault))?;
                    within(self.put(head, rule, database, &actor)).await
                } else {
                    within(self.delete(head, &id, database, &actor)).await
                }
            }
            _ => Err(Refusal::not_allowed("GET, HEAD, PUT, DELETE", "allowed are GET, PUT and DELETE")),
        }
    }

    /// From the database, which is what a PUT is compared with; without one, the rule in force.
    async fn get(&self, head: &RequestHeader, id: &RuleId, database: Option<&Secret>) -> Result<Answer, Refusal> {
        let row = match database {
            Some(Secret(url)) => within(async { read(&mut connect(url, "").await?, id).await }).await?,
            None => self.in_force(id).map(|rule| Row { id: id.clone(), rule: Ok(rule) }),
        };
        let row = row.ok_or_else(|| none(id))?;
        let tag = etag(&row);
        if conditions::is_unchanged(&head.headers, &tag) {
            return Ok(tagged(Response::default(), StatusCode::NOT_MODIFIED, &tag));
        }
        let answer = match &row.rule {
            Ok(rule) => json(StatusCode::OK, &Json(rule)),
            Err(broken) => object(
                StatusCode::OK,
                &json!({ "tenant_id": *id.tenant_id, "route_id": *id.route_id, "mode": id.mode, "fault": broken.fault }),
            ),
        };
        Ok(tagged(answer, StatusCode::OK, &tag))
    }

    fn in_force(&self, id: &RuleId) -> Option<Rule> {
        let set = self.rules.load();
        set.get(&id.tenant_id, &id.route_id, id.mode).map(|rule| (**rule).clone())
    }

    async fn put(&self, head: &RequestHeader, rule: Rule, database: &Secret, actor: &str) -> Result<Answer, Refusal> {
        let id = RuleId::of(&rule);
        let mut table = connect(&database.0, actor).await?;
        let before = read(&mut table, &id).await?;
        conditions::check(&head.headers, before.as_ref().map(etag).as_deref())?;
        let status = if before.is_some() { StatusCode::OK } else { StatusCode::CREATED };
        self.apply(table, &Plan::new(Vec::from_iter(before), [rule.clone()], false), actor).await?;
        let tag = etag(&Row { id, rule: Ok(rule.clone()) });
        Ok(tagged(json(status, &Json(&rule)), status, &tag))
    }

    async fn delete(
        &self,
        head: &RequestHeader,
        id: &RuleId,
        database: &Secret,
        actor: &str,
    ) -> Result<Answer, Refusal> {
        let mut table = connect(&database.0, actor).await?;
        let row = read(&mut table, id).await?.ok_or_else(|| none(id))?;
        conditions::check(&head.headers, Some(&etag(&row)))?;
        self.apply(table, &Plan::delete(row), actor).await?;
        let mut answer = Answer::default();
        *answer.status_mut() = StatusCode::NO_CONTENT;
        Ok(answer)
    }

    async fn apply(&self, mut table: Table, plan: &Plan, actor: &str) -> Result<(), Refusal> {
        table.apply(plan).await.map_err(|error| refused(&error))?;
        table.close().await;
        for change in &plan.changes {
            let id = change.id();
            tracing::info!(actor, "{change}");
            self.changes.pair(&id.tenant_id, &id.route_id);
        }
        Ok(())
    }
}

async fn connect(url: &str, actor: &str) -> Result<Table, Refusal> {
    Table::connect(url, actor).await.map_err(|error| refused(&error))
}

async fn read(table: &mut Table, id: &RuleId) -> Result<Option<Row>, Refusal> {
    table.get(id).await.map_err(|error| refused(&error))
}

async fn within<T>(work: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    timeout(DATABASE_PATIENCE, work).await.unwrap_or_else(|_| {
        let detail =
            format!("the rules database does not answer within {DATABASE_PATIENCE:?}; look before trying again");
        Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, detail))
    })
}

/// What the database says, as an answer.
fn refused(error: &EditError) -> Refusal {
    let status = match error {
        error if error.is_conflict() => StatusCode::PRECONDITION_FAILED,
        error if error.is_invalid_input() => StatusCode::UNPROCESSABLE_ENTITY,
        _ => {
            tracing::warn!("the admin API cannot use the rules database: {error}");
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    Refusal::new(status, error.to_string())
}

fn none(id: &RuleId) -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, format!("rule {id}: there is none"))
}

fn tagged(mut answer: Answer, status: StatusCode, tag: &str) -> Answer {
    *answer.status_mut() = status;
    if let Ok(tag) = HeaderValue::from_str(tag) {
        answer.headers_mut().insert(header::ETAG, tag);
    }
    answer
}
