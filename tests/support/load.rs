//! Load at an offered rate over several gateways.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::client::Connection;

/// What to send, where, how fast.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) targets: Vec<SocketAddr>,
    /// Requests per second over all targets; sent late rather than not at all when the machine is busy.
    pub(crate) rate: f64,
    pub(crate) duration: Duration,
    /// Keep-alive connections per target.
    pub(crate) connections: usize,
    /// The bytes of the n-th request, which must be a GET without a body.
    pub(crate) request: Arc<dyn Fn(u64) -> Vec<u8> + Send + Sync>,
}

/// What came back.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Requests without a whole answer, by what went wrong.
    pub(crate) broken: Vec<String>,
    /// Connections opened over the whole run.
    pub(crate) opened: u64,
    /// From the first request sent to the last answer read.
    pub(crate) elapsed: Duration,
}

impl Report {
    pub(crate) fn count(&self, status: u16) -> u64 {
        self.statuses.get(&status).copied().unwrap_or(0)
    }

    pub(crate) fn offered(&self) -> u64 {
        self.statuses.values().sum::<u64>() + self.broken.len() as u64
    }

    /// Fails the test unless every request was answered with one of these.
    pub(crate) fn only(&self, allowed: &[u16]) {
        let bad: Vec<_> = self.statuses.iter().filter(|(status, _)| !allowed.contains(status)).collect();
        let broken = &self.broken[..self.broken.len().min(3)];
        assert!(bad.is_empty() && broken.is_empty(), "only {allowed:?} expected, also got {bad:?} and {broken:?}");
    }
}

impl Load {
    pub(crate) async fn run(&self) -> Report {
        let start = Instant::now();
        let next = Arc::new(AtomicU64::new(0));
        let workers: Vec<_> = (0..self.connections)
            .flat_map(|_| self.targets.clone())
            .map(|target| tokio::spawn(worker(self.clone(), target, start, next.clone())))
            .collect();
        let mut total = Report::default();
        for one in workers {
            let part = one.await.unwrap();
            for (status, count) in part.statuses {
                *total.statuses.entry(status).or_default() += count;
            }
            total.broken.extend(part.broken);
            total.opened += part.opened;
        }
        total.elapsed = start.elapsed();
        total
    }
}

async fn worker(load: Load, target: SocketAddr, start: Instant, next: Arc<AtomicU64>) -> Report {
    let mut report = Report::default();
    let mut connection: Option<Connection> = None;
    loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        let due = start + Duration::from_secs_f64(n as f64 / load.rate);
        if due > start + load.duration || start.elapsed() > load.duration {
            return report;
        }
        tokio::time::sleep_until(due.into()).await;
        let mut open = match connection.take() {
            Some(open) => open,
            None => {
                report.opened += 1;
                Connection::open(target).await
            }
        };
        open.write(&(load.request)(n)).await;
        match open.read(false).await {
            Ok(response) => {
                *report.statuses.entry(response.status).or_default() += 1;
                if !response.closes() {
                    connection = Some(open);
                }
            }
            Err(e) => report.broken.push(e),
        }
    }
}
