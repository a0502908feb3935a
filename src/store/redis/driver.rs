//! The one task that talks to Redis.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, PushInfo, RedisError};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

use super::dial::{Connection, Dialer};
use super::script::{self, Answer, BucketScript};
use super::{Job, Link, LinkCell, Message};
use crate::config::Address;
use crate::store::{Kind, StoreError};

/// Calls sent in one pipeline.
const BATCH: usize = 256;
/// Pipelines on their way at once: while one is answered, the next already travels.
const PIPELINES: usize = 2;
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_LONGEST: Duration = Duration::from_secs(1);

/// Owns the connection to Redis and answers every call handed to it. Runs on a runtime of its own.
#[derive(Debug)]
pub struct Driver {
    dialer: Dialer,
    address: Address,
    script: BucketScript,
    prefix: String,
    jobs: mpsc::Receiver<Job>,
    link: Arc<LinkCell>,
}

impl Driver {
    pub(super) fn new(
        dialer: Dialer,
        address: Address,
        prefix: String,
        jobs: mpsc::Receiver<Job>,
        link: Arc<LinkCell>,
    ) -> Self {
        Self { dialer, address, script: BucketScript::new(), prefix, jobs, link }
    }

    /// Serves until nobody can send any more.
    pub async fn run(mut self) {
        let mut backoff = BACKOFF_FIRST;
        loop {
            let connected = tokio::select! {
                connected = connect(&self.dialer, &self.address) => connected,
                () = refuse(&mut self.jobs) => return,
            };
            let lost = match connected {
                Ok(mut connection) => {
                    self.link.set(Link::Connected);
                    info!("connected to the store");
                    backoff = BACKOFF_FIRST;
                    match self.serve(connection.link.clone(), &mut connection.pushes).await {
                        Some(lost) => lost,
                        None => return,
                    }
                }
                Err(error) => error,
            };
            if self.link.set(Link::Away) != Link::Away {
                warn!("the store is away, each rule's on_store_failure applies: {lost}");
            }
            tokio::select! {
                () = sleep(backoff.mul_f64(rand::random_range(0.5..1.0))) => {}
                () = refuse(&mut self.jobs) => return,
            }
            backoff = (backoff * 2).min(BACKOFF_LONGEST);
        }
    }

    /// Sends what has gathered, until the connection is of no more use (and says why) or nobody can send (`None`).
    async fn serve(
        &mut self,
        connection: MultiplexedConnection,
        broken: &mut mpsc::UnboundedReceiver<PushInfo>,
    ) -> Option<String> {
        let mut on_their_way = JoinSet::new();
        loop {
            let mut gathered = Vec::new();
            tokio::select! {
                biased;
                Some(sent) = on_their_way.join_next() => match sent {
                    Ok(Ok(())) => {}
                    Ok(Err(lost)) => return Some(lost),
                    Err(panicked) => return Some(panicked.to_string()),
                },
                Some(push) = broken.recv() => {
                    if push.kind == redis::PushKind::Disconnection {
                        return Some("the connection broke".to_owned());
                    }
                }
                received = self.jobs.recv_many(&mut gathered, BATCH), if on_their_way.len() < PIPELINES => {
                    if received == 0 {
                        return None;
                    }
                    let calls: Vec<Sent> = gathered.into_iter().filter_map(|job| Sent::begin(job, &self.prefix)).collect();
                    if !calls.is_empty() {
                        let exchange = Exchange {
                            connection: connection.clone(),
                            script: self.script.clone(),
                            link: Arc::clone(&self.link),
                        };
                        on_their_way.spawn(exchange.run(calls));
                    }
                }
            }
        }
    }
}

/// While there is no connection: every call is answered at once. Returns when nobody can send any more.
async fn refuse(jobs: &mut mpsc::Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        job.finish(Err(Kind::Disconnected.into()));
    }
}

async fn connect(dialer: &Dialer, address: &Address) -> Result<Connection, String> {
    let mut connection = dialer.dial(address).await.map_err(|error| error.to_string())?;
    let loaded = BucketScript::load().exec_async(&mut connection.link).await;
    loaded.map_err(|error| error.to_string())?;
    Ok(connection)
}

/// A job whose call has been decided.
struct Sent {
    job: Job,
    key: String,
    call: Message,
}

impl Sent {
    fn begin(mut job: Job, prefix: &str) -> Option<Self> {
        let mut work = job.work.take()?;
        let call = work.begin()?;
        let key = work.key().in_redis(prefix);
        job.work = Some(work);
        Some(Self { job, key, call })
    }
}

/// One pipeline there and back.
struct Exchange {
    connection: MultiplexedConnection,
    script: BucketScript,
    link: Arc<LinkCell>,
}

impl Exchange {
    /// Answers every call. An error says why the connection is of no more use.
    async fn run(mut self, calls: Vec<Sent>) -> Result<(), String> {
        let commands = calls.iter().map(|sent| self.script.by_hash(&sent.key, &sent.call)).collect();
        let without_script = self.send(commands, calls).await?;
        if without_script.is_empty() {
            return Ok(());
        }
        // The script's text goes with each call: another flush may come between any two of them.
        let commands = without_script.iter().map(|sent| BucketScript::by_text(&sent.key, &sent.call)).collect();
        for sent in self.send(commands, without_script).await? {
            sent.job.finish(Err(Kind::Refused("NOSCRIPT to a call with the script's text".to_owned()).into()));
        }
        Ok(())
    }

    /// Sends one command for each call and answers all but those whose script was not cached: those come back.
    async fn send(&mut self, commands: Vec<redis::Cmd>, calls: Vec<Sent>) -> Result<Vec<Sent>, String> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command);
        }
        let values = match self.connection.send_packed_commands(&pipeline, 0, calls.len()).await {
            Ok(values) => values,
            Err(error) => return Err(fail(calls, &error)),
        };
        let (mut again, mut lost) = (Vec::new(), None);
        for (sent, value) in calls.into_iter().zip(values) {
            let result = match script::read(value) {
                Answer::Reply { reply, healed } => {
                    if healed {
                        warn!(sent.key, "the key held something that is not a bucket; it starts full");
                    }
                    Ok(reply)
                }
                Answer::NoScript => {
                    again.push(sent);
                    continue;
                }
                Answer::Demoted => {
                    lost = Some("the server is no master any more".to_owned());
                    Err(StoreError::from(Kind::Disconnected))
                }
                Answer::Failed(error) => Err(error),
            };
            self.link.note(&sent.key, result.as_ref().err());
            sent.job.finish(result);
        }
        match lost {
            None => Ok(again),
            Some(lost) => {
                again.into_iter().for_each(|sent| sent.job.finish(Err(Kind::Disconnected.into())));
                Err(lost)
            }
        }
    }
}

fn fail(calls: Vec<Sent>, error: &RedisError) -> String {
    let kind = if error.is_timeout() { Kind::Timeout } else { Kind::Disconnected };
    for sent in calls {
        sent.job.finish(Err(kind.clone().into()));
    }
    error.to_string()
}
