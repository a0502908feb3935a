//! Memory and descriptors of the gateways over a run.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::support::Gateway;

/// Memory that may come and go, in kB: arenas of the allocator, buffers.
const BREATHING_KB: u64 = 8192;
/// Descriptors that may come and go: connections to Redis and to the upstream.
const BREATHING_FILES: u64 = 64;

#[derive(Clone, Copy, Debug)]
struct Sample {
    memory_kb: u64,
    files: u64,
}

/// Samples of each gateway, taken all along.
pub(crate) struct Watch {
    sampling: JoinHandle<Vec<Vec<Sample>>>,
}

impl Watch {
    pub(crate) fn start(gateways: &[Gateway], duration: Duration) -> Self {
        let processes: Vec<u32> = gateways.iter().map(Gateway::process).collect();
        let start = Instant::now();
        let sampling = tokio::spawn(async move {
            let mut samples = vec![Vec::new(); processes.len()];
            for step in 1..=60 {
                sleep_until(start + duration * step / 60).await;
                for (process, samples) in processes.iter().zip(&mut samples) {
                    samples.push(Sample::of(*process));
                }
            }
            samples
        });
        Self { sampling }
    }

    /// Fails the test unless the last third of the time was like the second.
    pub(crate) async fn judge(self) -> String {
        let mut lines = Vec::new();
        for samples in self.sampling.await.unwrap() {
            let third = samples.len() / 3;
            let most = |samples: &[Sample]| Sample {
                memory_kb: samples.iter().map(|sample| sample.memory_kb).max().unwrap(),
                files: samples.iter().map(|sample| sample.files).max().unwrap(),
            };
            let (second, last) = (most(&samples[third..2 * third]), most(&samples[2 * third..]));
            lines.push(format!("most in the second and in the last third: {second:?}, {last:?}"));
            assert!(last.memory_kb <= second.memory_kb + BREATHING_KB, "memory grows: {lines:?}");
            assert!(last.files <= second.files + BREATHING_FILES, "descriptors leak: {lines:?}");
        }
        lines.join("\n")
    }
}

impl Sample {
    fn of(process: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        Self {
            memory_kb: line.trim().trim_end_matches(" kB").parse().unwrap(),
            files: std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count() as u64,
        }
    }
}
