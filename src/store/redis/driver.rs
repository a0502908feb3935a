//! What talks to Redis: for each node one task with a connection of its own.

use std::fmt::Display;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::warn;

use super::cluster::ClusterWatch;
use super::connection::{self, Connection};
use super::dial::{CONNECT_TIMEOUT, Dialer};
use super::eviction::{self, Eviction};
use super::flight::{Flights, Landed, Probe, Sent};
use super::job::Job;
use super::node::{Health, Link};
use super::reply::{self, Outcome};
use super::router::Router;
use super::script::{By, Scripts};
use super::sentinel::SentinelWatch;
use super::{BATCH, PIPELINES};
use crate::config::{self, Address};
use crate::store::breaker::{Breaker, State};
use crate::store::{Kind, StoreError};

const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_LONGEST: Duration = Duration::from_secs(1);

/// Owns the connections to Redis and answers every call handed to it. Runs on a runtime of its own.
#[derive(Debug)]
pub struct Driver(Drivers);

/// What has to run, by the store's topology.
#[derive(Debug)]
pub(super) enum Drivers {
    /// One server.
    Single(Box<NodeDriver>),
    /// A cluster, whose nodes come and go.
    Cluster(Box<ClusterWatch>),
    /// A master, and who finds it.
    Sentinel(Box<NodeDriver>, SentinelWatch),
}

impl Driver {
    pub(super) fn new(drivers: Drivers) -> Self {
        Self(drivers)
    }

    /// Serves until nobody can send any more.
    pub async fn run(self) {
        match self.0 {
            Drivers::Single(node) => node.run().await,
            Drivers::Cluster(watch) => watch.run().await,
            Drivers::Sentinel(node, watch) => {
                tokio::join!(node.run(), watch.run());
            }
        }
    }
}

/// Talks to one node.
#[derive(Debug)]
pub(super) struct NodeDriver {
    dialer: Dialer,
    address: watch::Receiver<Option<Address>>,
    router: Weak<Router>,
    scripts: Scripts,
    prefix: String,
    /// Longer is slow.
    timeout: Duration,
    jobs: mpsc::Receiver<Job>,
    /// The next pipeline.
    gathered: Vec<Job>,
    breaker: Breaker,
    health: Arc<Health>,
    /// The last call was refused, though the node is well: logged once.
    refused: bool,
    backoff: Duration,
    /// The breaker's time counts from here.
    started: Instant,
}

/// Why a connection is of no more use.
type Lost = String;

impl NodeDriver {
    pub(super) fn new(
        dialer: Dialer,
        settings: &config::Store,
        breaker: config::Breaker,
        jobs: mpsc::Receiver<Job>,
        health: Arc<Health>,
        router: Weak<Router>,
    ) -> Self {
        Self {
            dialer,
            address: health.watch_address(),
            router,
            scripts: Scripts::new(),
            prefix: settings.key_prefix.clone(),
            timeout: settings.timeout,
            jobs,
            gathered: Vec::new(),
            breaker: Breaker::new(breaker, rand::random()),
            health,
            refused: false,
            backoff: BACKOFF_FIRST,
            started: Instant::now(),
        }
    }

    /// Serves until nobody can send any more. The first calls wait for the first connection; later ones wait for none.
    pub(super) async fn run(mut self) {
        let mut opened = connect(&self.dialer, &mut self.address, &self.health).await;
        loop {
            let lost = match opened {
                Ok(connection) => {
                    self.breaker.half_open();
                    self.publish(None);
                    self.health.set_link(Link::Connected);
                    match self.serve(connection).await {
                        Some(lost) => lost,
                        None => return,
                    }
                }
                Err(error) => error,
            };
            self.breaker.open(self.now());
            self.publish(Some(lost));
            self.health.set_link(Link::Away);
            self.refuse_gathered();
            let pause = self.backoff.mul_f64(rand::random_range(0.5..1.0));
            self.backoff = (self.backoff * 2).min(BACKOFF_LONGEST);
            let again = async {
                tokio::select! {
                    () = sleep(pause) => {}
                    // The sender is held by this very driver.
                    _ = self.address.changed() => {}
                }
                connect(&self.dialer, &mut self.address, &self.health).await
            };
            opened = tokio::select! {
                opened = again => opened,
                () = refuse(&mut self.jobs) => return,
            };
        }
    }

    /// Sends what has gathered, until the connection is of no more use (and says why) or nobody can send (`None`).
    async fn serve(&mut self, mut connection: Connection) -> Option<Lost> {
        let (mut flights, mut closed) = (Flights::default(), false);
        let mut aside = JoinSet::new();
        aside.spawn(watch_eviction(connection.commands.clone(), Arc::clone(&self.health)));
        loop {
            self.depart(&connection, &mut flights);
            if closed && self.gathered.is_empty() && flights.is_empty() {
                return None;
            }
            let look_at = self.look_at(&mut flights);
            let room = BATCH - self.gathered.len();
            tokio::select! {
                biased;
                landed = flights.land() => {
                    let landed = match landed {
                        Landed::Calls(calls, replies) => self.calls(calls, replies, &connection, &mut flights),
                        Landed::Probe(probe, reply) => self.probe(probe, reply),
                    };
                    if let Err(lost) = landed {
                        return Some(lost);
                    }
                }
                () = connection.broken() => return Some("the connection broke".to_owned()),
                _ = self.address.changed() => return Some(format!("the master is {} now", self.health.name())),
                () = sleep_until(look_at.unwrap_or(self.started)), if look_at.is_some() => self.look(&mut flights),
                received = self.jobs.recv_many(&mut self.gathered, room), if room > 0 && !closed => closed = received == 0,
            }
        }
    }

    /// Sends the next pipeline if there is room on the way; while the breaker is not closed, the probes instead.
    fn depart(&mut self, connection: &Connection, flights: &mut Flights) {
        match self.breaker.state() {
            State::Closed if flights.pipelines() < PIPELINES && !self.gathered.is_empty() => {
                let begin = |mut job: Job| job.begin(&self.prefix).map(|command| Sent { job, command });
                let calls: Vec<Sent> = self.gathered.drain(..).filter_map(begin).collect();
                if !calls.is_empty() {
                    flights.send(&connection.commands, &self.scripts, By::Hash, calls);
                }
            }
            State::Closed => {}
            State::HalfOpen if flights.probe().is_none() => {
                self.refuse_gathered();
                flights.send_probe(&connection.commands, &self.health.probe_key(), Instant::now() + self.timeout);
            }
            State::HalfOpen | State::Open => self.refuse_gathered(),
        }
    }

    /// When [`Self::look`] has something to do.
    fn look_at(&self, flights: &mut Flights) -> Option<Instant> {
        let call = match self.breaker.state() {
            State::Closed => {
                let gathered = self.gathered.iter().find(|job| !job.judged).map(Job::slow_at);
                flights.slow_at().into_iter().chain(gathered).min()
            }
            State::HalfOpen | State::Open => None,
        };
        let probe = match flights.probe() {
            Some(probe) => Some(probe.slow_at).filter(|_| !probe.judged),
            None => self.breaker.probe_at().map(|at| self.started + Duration::from_millis(at)),
        };
        call.into_iter().chain(probe).min()
    }

    /// Tells the breaker of what has become too slow, and half-opens it when its time has come.
    fn look(&mut self, flights: &mut Flights) {
        let (now, now_ms) = (Instant::now(), self.now());
        let slow = flights.jobs().chain(&mut self.gathered).filter(|job| !job.judged && job.slow_at() <= now);
        let mut opened = None;
        for job in slow {
            job.judged = true;
            opened = opened.or(self.breaker.call(now_ms, true));
        }
        if let Some(opened) = opened {
            self.publish(Some(format!("{opened}; the last was not answered within {:?}", self.timeout)));
        }
        match flights.probe() {
            Some(probe) if !probe.judged && probe.slow_at <= now => {
                probe.judged = true;
                self.breaker.probe(now_ms, true);
                self.publish(Some(format!("a probe was not answered within {:?}", self.timeout)));
            }
            None if self.breaker.probe_at().is_some_and(|at| at <= now_ms) => {
                self.breaker.half_open();
                self.publish(None);
            }
            _ => {}
        }
    }

    /// Answers calls; those whose script was not cached are sent again, with its text: another flush may come between
    /// any two of them.
    fn calls(
        &mut self,
        calls: Vec<Sent>,
        replies: RedisResult<Vec<Value>>,
        connection: &Connection,
        flights: &mut Flights,
    ) -> Result<(), Lost> {
        let replies = match replies {
            Ok(replies) => replies,
            Err(error) => {
                let kind = if error.is_timeout() { Kind::Timeout } else { Kind::Lost };
                calls.into_iter().for_each(|sent| sent.job.finish(Err(kind.clone().into())));
                return Err(reply::text(&error));
            }
        };
        let (mut again, mut demoted, mut replies) = (Vec::new(), None, replies.into_iter());
        for mut sent in calls {
            if sent.job.asking {
                replies.next();
            }
            let reply = replies.next().unwrap_or(Value::Nil);
            let key = sent.command.key();
            let result = match reply::read(&sent.command, reply) {
                Outcome::Answered { answer, healed } => {
                    if healed {
                        warn!(key, "the key held something that is not a bucket; it starts full");
                    }
                    self.judge(&mut sent.job, None);
                    self.refused = false;
                    Ok(answer)
                }
                Outcome::NoScript => {
                    again.push(sent);
                    continue;
                }
                Outcome::Demoted(error) => {
                    demoted = Some(error.to_string());
                    Err(error)
                }
                Outcome::Unwell(error) => {
                    self.judge(&mut sent.job, Some(&error));
                    Err(error)
                }
                Outcome::Elsewhere(redirect) => match self.router.upgrade().filter(|router| router.is_cluster()) {
                    Some(router) => {
                        sent.job.take_back(sent.command);
                        router.redirect(sent.job, redirect, self.health.address().as_ref());
                        continue;
                    }
                    None => Err(self.refused(key, redirect.into())),
                },
                Outcome::Refused(error) => Err(self.refused(key, error)),
            };
            sent.job.finish(result);
        }
        if !again.is_empty() {
            flights.send(&connection.commands, &self.scripts, By::Text, again);
        }
        demoted.map_or(Ok(()), Err)
    }

    /// Tells the breaker what became of a call, if it does not know.
    fn judge(&mut self, job: &mut Job, failure: Option<&StoreError>) {
        if std::mem::replace(&mut job.judged, true) {
            return;
        }
        let slow = job.slow_at() < Instant::now();
        let opened = self.breaker.call(self.now(), slow || failure.is_some());
        let Some(opened) = opened else { return };
        let last: &dyn Display = match &failure {
            Some(error) => error,
            None => &"not answered in time",
        };
        self.publish(Some(format!("{opened}; the last: {last}")));
    }

    /// Logs a call that was refused, once until one is answered.
    fn refused(&mut self, key: &str, error: StoreError) -> StoreError {
        if !std::mem::replace(&mut self.refused, true) {
            warn!(key, "{error}; the rule's on_store_failure applies");
        }
        error
    }

    fn probe(&mut self, probe: Probe, reply: RedisResult<Value>) -> Result<(), Lost> {
        let failure = match reply.map_err(|error| reply::text(&error))? {
            Value::ServerError(error) if !connection::is_elsewhere(&error) => match reply::refusal(&error) {
                Outcome::Demoted(error) => return Err(error.to_string()),
                Outcome::Unwell(error) | Outcome::Refused(error) => Some(error.to_string()),
                other => Some(format!("a probe: {other:?}")),
            },
            _ if probe.slow_at < Instant::now() => Some(format!("a probe took longer than {:?}", self.timeout)),
            _ => None,
        };
        if !probe.judged {
            self.breaker.probe(self.now(), failure.is_some());
            self.publish(failure);
        }
        Ok(())
    }

    fn publish(&mut self, why: Option<String>) {
        if self.breaker.state() == State::Closed {
            self.backoff = BACKOFF_FIRST;
        }
        self.health.set_breaker(self.breaker.state(), why);
    }

    /// Nobody waits for a node that is away.
    fn refuse_gathered(&mut self) {
        self.gathered.drain(..).for_each(|job| job.finish(Err(Kind::Away.into())));
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

/// A connection that calls can be sent over. Waits for the node's address, if that is not known yet.
async fn connect(
    dialer: &Dialer,
    address: &mut watch::Receiver<Option<Address>>,
    health: &Health,
) -> Result<Connection, Lost> {
    let opened = async {
        let known = address.wait_for(Option::is_some).await.ok().and_then(|known| known.clone());
        let address = known.ok_or_else(|| "its address is not known".to_owned())?;
        Connection::open(dialer, &address, &health.probe_key()).await.map_err(|error| error.to_string())
    };
    match timeout(CONNECT_TIMEOUT, opened).await {
        Ok(opened) => opened,
        Err(_) => Err(format!("connecting took longer than {CONNECT_TIMEOUT:?}")),
    }
}

/// Looks again and again whether the node may evict buckets, as long as there is the connection.
async fn watch_eviction(mut commands: MultiplexedConnection, health: Arc<Health>) {
    while let Ok(eviction) = Eviction::ask(&mut commands).await {
        health.set_eviction(eviction);
        sleep(eviction::LOOK_AGAIN).await;
    }
}

/// Answers every call at once. Returns when nobody can send any more.
async fn refuse(jobs: &mut mpsc::Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        job.finish(Err(Kind::Away.into()));
    }
}
