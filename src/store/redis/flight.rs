//! Pipelines on their way to one node and back.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::connection;
use super::job::Job;
use super::script::{By, Command, Scripts};

/// A job whose command has been decided.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) job: Job,
    pub(super) command: Command,
}

/// What comes back.
#[derive(Debug)]
pub(super) enum Landed {
    /// The replies to these calls.
    Calls(Vec<Sent>, RedisResult<Vec<Value>>),
    /// The reply to the probe.
    Probe(Probe, RedisResult<Value>),
}

/// The driver's own call, while the breaker is half-open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// When it will have taken too long.
    pub(super) slow_at: Instant,
    /// The breaker knows already what became of it.
    pub(super) judged: bool,
}

/// All that is on its way over one connection. Dropped with it: then each call is answered as lost.
#[derive(Debug, Default)]
pub(super) struct Flights {
    replies: JoinSet<(u64, RedisResult<Vec<Value>>)>,
    /// In the order in which they were sent.
    calls: Vec<(u64, Vec<Sent>)>,
    probe: Option<(u64, Probe)>,
    next: u64,
}

impl Flights {
    /// Pipelines of calls on their way.
    pub(super) fn pipelines(&self) -> usize {
        self.calls.len()
    }

    /// No calls are on their way.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The probe on its way.
    pub(super) fn probe(&mut self) -> Option<&mut Probe> {
        self.probe.as_mut().map(|(_, probe)| probe)
    }

    /// The calls on their way.
    pub(super) fn jobs(&mut self) -> impl Iterator<Item = &mut Job> {
        self.calls.iter_mut().flat_map(|(_, calls)| calls).map(|sent| &mut sent.job)
    }

    /// When the next call will have taken too long that the breaker does not know of.
    pub(super) fn slow_at(&self) -> Option<Instant> {
        let first = |calls: &[Sent]| calls.iter().find(|sent| !sent.job.judged).map(|sent| sent.job.slow_at());
        self.calls.iter().filter_map(|(_, calls)| first(calls)).min()
    }

    /// Sends calls in one pipeline.
    pub(super) fn send(&mut self, connection: &MultiplexedConnection, scripts: &Scripts, by: By, calls: Vec<Sent>) {
        let commands = calls.iter().flat_map(|sent| {
            let asking = sent.job.asking.then(|| redis::cmd("ASKING"));
            asking.into_iter().chain(std::iter::once(scripts.command(&sent.command, by)))
        });
        let number = self.depart(connection, commands);
        self.calls.push((number, calls));
    }

    /// Sends a probe.
    pub(super) fn send_probe(&mut self, connection: &MultiplexedConnection, key: &str, slow_at: Instant) {
        let number = self.depart(connection, std::iter::once(connection::probe(key)));
        self.probe = Some((number, Probe { slow_at, judged: false }));
    }

    fn depart(&mut self, connection: &MultiplexedConnection, commands: impl Iterator<Item = Cmd>) -> u64 {
        let mut pipeline = Pipeline::with_capacity(commands.size_hint().0);
        for command in commands {
            pipeline.add_command(command);
        }
        let (number, mut connection) = (self.next, connection.clone());
        self.next += 1;
        self.replies
            .spawn(async move { (number, connection.send_packed_commands(&pipeline, 0, pipeline.len()).await) });
        number
    }

    /// The next that comes back; never, while nothing is on its way. Nothing is lost when this is dropped.
    pub(super) async fn land(&mut self) -> Landed {
        loop {
            let Some(landed) = self.replies.join_next().await else { std::future::pending().await };
            // One that was cancelled or panicked has no number; its calls are answered with the connection.
            let Ok((number, result)) = landed else { continue };
            if let Some((_, probe)) = self.probe.take_if(|(probe, _)| *probe == number) {
                let reply = result.map(|values| values.into_iter().next().unwrap_or(Value::Nil));
                return Landed::Probe(probe, reply);
            }
            if let Some(at) = self.calls.iter().position(|(sent, _)| *sent == number) {
                return Landed::Calls(self.calls.remove(at).1, result);
            }
        }
    }
}
