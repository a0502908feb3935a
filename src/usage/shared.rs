//! Counts of the whole fleet in Redis: for each tenant a hash a minute, `rl:usage:{tenant}:m:<minute since 1970>`, and one
//! an hour, `rl:usage:{tenant}:h:<hour since 1970>`. Each of their fields is a counter, `route|tenant/route of the
//! rule|outcome`. The tenant is the cluster's hash tag, so that all hashes of a tenant are on one node.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue as _, Pipeline, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::pending::Batch;
use super::report::Tally;
use super::series::Name;
use super::{HOURS, MINUTES};
use crate::config::Address;
use crate::key::encoded;
use crate::store::redis::{SideError, SideLine};

/// Time to live of a minute's hash: its minute, those it is looked at for, and some for clocks that differ.
const MINUTE_LIVES_S: u64 = 60 * (MINUTES + 5);
/// Time to live of an hour's hash.
const HOUR_LIVES_S: u64 = 3600 * (HOURS + 1);
/// Tenants in one pipeline.
const TENANTS_IN_A_PIPELINE: usize = 200;
/// The longest that somebody who looks waits.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// The hashes in Redis. Whoever looks does not wait for whoever writes.
#[derive(Debug)]
pub(super) struct Shared {
    prefix: String,
    writer: Mutex<SideLine>,
    reader: Mutex<SideLine>,
}

/// What became of counts.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// To be tried again.
    pub(super) unsent: Vec<Batch>,
    /// Decisions of which nobody knows whether they were counted: trying again might count them twice.
    pub(super) lost: u64,
    /// Why there are any of either.
    pub(super) why: Option<String>,
}

impl Shared {
    pub(super) fn new(key_prefix: &str, writer: SideLine, reader: SideLine) -> Self {
        Self { prefix: key_prefix.to_owned(), writer: Mutex::new(writer), reader: Mutex::new(reader) }
    }

    /// Adds counts to those of the fleet.
    pub(super) async fn write(&self, routes: &[Arc<str>], batches: Vec<Batch>) -> Written {
        let mut line = self.writer.lock().await;
        let mut written = Written::default();
        let mut by_node: HashMap<Address, Vec<Batch>> = HashMap::new();
        for batch in batches {
            match line.node(&self.key(&batch.0, 'h', 0)) {
                Some(node) => by_node.entry(node).or_default().push(batch),
                None => {
                    written.why.get_or_insert_with(|| "a node of the store is known to be away or to fail".to_owned());
                    written.unsent.push(batch);
                }
            }
        }
        for (node, mut batches) in by_node {
            while !batches.is_empty() {
                let rest = batches.split_off(batches.len().min(TENANTS_IN_A_PIPELINE));
                let batch = std::mem::replace(&mut batches, rest);
                let mut pipeline = Pipeline::new();
                batch.iter().for_each(|batch| self.add(&mut pipeline, routes, batch));
                match line.send(&node, &pipeline).await {
                    Ok(replies) => written.refused(&batch, &replies),
                    Err(SideError::Unsent(why)) => {
                        written.why = Some(why);
                        written.unsent.extend(batch);
                        written.unsent.append(&mut batches);
                    }
                    Err(SideError::Lost(why)) => {
                        written.why = Some(why);
                        written.lost += decisions(&batch);
                        written.unsent.append(&mut batches);
                    }
                }
            }
        }
        written
    }

    /// The commands for the counts of one tenant.
    fn add(&self, pipeline: &mut Pipeline, routes: &[Arc<str>], (tenant, rows): &Batch) {
        let (mut minutes, mut hours) = (BTreeMap::new(), BTreeMap::new());
        for row in rows {
            let route = routes.get(row.what.route as usize).map_or("", |route| &**route);
            let field = Name::new(tenant, route, row.what.rule).field(row.what.counted);
            let fields: &mut BTreeMap<String, u64> = hours.entry(row.minute / 60).or_default();
            *fields.entry(field.clone()).or_default() += u64::from(row.count);
            let fields: &mut BTreeMap<String, u64> = minutes.entry(row.minute).or_default();
            *fields.entry(field).or_default() += u64::from(row.count);
        }
        for (slices, kind, lives) in [(minutes, 'm', MINUTE_LIVES_S), (hours, 'h', HOUR_LIVES_S)] {
            for (number, fields) in slices {
                let key = self.key(tenant, kind, number);
                for (field, count) in fields {
                    pipeline.cmd("HINCRBY").arg(&key).arg(field).arg(count);
                }
                pipeline.cmd("EXPIRE").arg(&key).arg(lives);
            }
        }
    }

    /// The counts of the fleet for a tenant as of `minute`, added to `tally`.
    ///
    /// # Errors
    /// When Redis does not say.
    pub(super) async fn read(&self, tenant: &str, minute: u64, tally: Tally) -> Result<Tally, String> {
        let hour = minute / 60;
        let minutes = minute.saturating_sub(MINUTES - 1)..=minute;
        let hours = hour.saturating_sub(HOURS - 1)..=hour;
        let mut pipeline = Pipeline::new();
        for (kind, numbers) in [('m', minutes.clone()), ('h', hours.clone())] {
            for number in numbers {
                pipeline.cmd("HGETALL").arg(self.key(tenant, kind, number));
            }
        }
        let asked = async {
            let mut line = self.reader.lock().await;
            let node = line.node(&self.key(tenant, 'h', 0)).ok_or("its node is known to be away or to fail")?;
            line.send(&node, &pipeline).await.map_err(|error| error.to_string())
        };
        let replies = timeout(READ_TIMEOUT, asked).await;
        let mut replies = replies.map_err(|_| format!("no answer within {READ_TIMEOUT:?}"))??.into_iter();
        let mut tally = tally;
        for (slices, numbers) in [(&mut tally.minutes, minutes), (&mut tally.hours, hours)] {
            for (number, reply) in numbers.zip(replies.by_ref()) {
                if let Value::ServerError(error) = reply {
                    return Err(format!("{} {}", error.code(), error.details().unwrap_or_default()));
                }
                let fields = Vec::<(String, u64)>::from_redis_value(reply).map_err(|error| error.to_string())?;
                for (field, count) in fields {
                    if let Some((name, counted)) = Name::parse(&field) {
                        Tally::add(slices, number, name, counted, count);
                    }
                }
            }
        }
        Ok(tally)
    }

    fn key(&self, tenant: &str, kind: char, number: u64) -> String {
        format!("{}:usage:{{{}}}:{kind}:{number}", self.prefix, encoded(tenant))
    }
}

impl Written {
    /// Takes note of commands that were refused, as all of them are where Redis has no memory left, or a slot has moved.
    fn refused(&mut self, batch: &[Batch], replies: &[Value]) {
        let mut errors = replies.iter().filter_map(|reply| match reply {
            Value::ServerError(error) => Some(error),
            _ => None,
        });
        if let Some(error) = errors.next() {
            self.why = Some(format!("{} {}", error.code(), error.details().unwrap_or_default()));
            let share = (1 + errors.count()) as f64 / replies.len() as f64;
            self.lost += (decisions(batch) as f64 * share).ceil() as u64;
        }
    }
}

fn decisions(batches: &[Batch]) -> u64 {
    batches.iter().flat_map(|(_, rows)| rows).map(|row| u64::from(row.count)).sum()
}
