//! The access log: a line of JSON for each request, or for some of them, written beside the requests. Where the writer
//! does not keep up, or the file cannot be written, lines are lost and counted (`sekisho_access_log_dropped_total`); no
//! request waits or fails.

mod entry;
mod sink;

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

pub use self::entry::{Charged, Entry, hashed};
use self::sink::Sink;
use crate::config;
use crate::handover::Handover;
use crate::metrics;

/// How often lines are written.
const WRITE_EVERY: Duration = Duration::from_millis(100);
/// Bytes gathered before they are written.
const BLOCK: usize = 256 * 1024;

/// Takes requests that have been answered, and writes lines about them.
#[derive(Debug)]
pub struct AccessLog {
    handover: Handover<Entry>,
    /// Share of the requests that have a line, 0 < x ≤ 1.
    sample: f64,
    hash_tenants: bool,
    /// By their place in the configuration.
    routes: Arc<[Arc<str>]>,
    writer: Mutex<Writer>,
}

#[derive(Debug)]
struct Writer {
    sink: Sink,
    spare: Vec<Entry>,
    block: Vec<u8>,
}

impl AccessLog {
    /// A log of requests for these routes, served by so many threads. Nothing is opened yet.
    pub fn new(settings: &config::AccessLog, routes: &[config::Route], threads: usize) -> Self {
        let writer = Writer { sink: Sink::new(settings.target.clone()), spare: Vec::new(), block: Vec::new() };
        Self {
            handover: Handover::new(threads),
            sample: settings.sample,
            hash_tenants: settings.hash_tenants,
            routes: routes.iter().map(|route| route.id.as_str().into()).collect(),
            writer: Mutex::new(writer),
        }
    }

    /// Whether this request, by chance, has a line.
    #[inline]
    pub fn wants(&self) -> bool {
        self.sample >= 1.0 || rand::random::<f64>() < self.sample
    }

    /// Hands over what the line says.
    #[inline]
    pub fn log(&self, entry: Entry) {
        if !self.handover.put(entry) {
            metrics::ACCESS_LOG_DROPPED.inc();
        }
    }

    /// Writes lines as long as the process runs. After SIGHUP it opens the file anew, for who has moved it away.
    pub async fn run(&self) {
        let mut tick = interval(WRITE_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut hangups = signal(SignalKind::hangup())
            .inspect_err(|error| tracing::error!(%error, "SIGHUP will not open the access log anew"))
            .ok();
        loop {
            let hangup = async {
                match &mut hangups {
                    Some(hangups) => hangups.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = tick.tick() => self.write(),
                _ = hangup => {
                    self.write();
                    self.writer.lock().sink.open_anew();
                }
            }
        }
    }

    /// Writes everything that has been handed over. Blocks as long as the file does.
    pub fn write(&self) {
        let Writer { sink, spare, block } = &mut *self.writer.lock();
        let mut lines = 0;
        self.handover.take(spare, |entry| {
            // Nothing here cannot be written as JSON.
            if serde_json::to_writer(&mut *block, &entry.line(&self.routes, self.sample, self.hash_tenants)).is_ok() {
                let _ = block.write_all(b"\n");
                lines += 1;
            }
            if block.len() >= BLOCK {
                sink.write(block, std::mem::take(&mut lines));
                block.clear();
            }
        });
        if lines > 0 {
            sink.write(block, lines);
            block.clear();
        }
    }
}
