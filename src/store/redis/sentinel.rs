//! Finds the master that sentinels know, and follows it.
//! [Guidelines for clients](https://redis.io/docs/latest/develop/reference/sentinel-clients/)

use std::sync::Weak;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::dial::Dialer;
use super::node::Link;
use super::reply;
use super::router::Router;
use crate::config::Address;

/// Between two questions while the master answers: one that sentinels gave up may still serve those that know no better.
const CALM: Duration = Duration::from_secs(2);
/// Between two looks at whether the master answers.
const TICK: Duration = Duration::from_millis(100);
/// Between two questions while it does not, at first.
const URGENT: Duration = Duration::from_millis(250);
/// Between two questions once it has not answered for long: after so many of them.
const PATIENT: Duration = Duration::from_secs(1);
const LONG: u32 = 40;
/// The longest wait for a sentinel's answer, beside that for the connection.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Keeps the one node at the address of the master.
#[derive(Debug)]
pub(super) struct SentinelWatch {
    /// The one that is asked first comes first.
    sentinels: Vec<Address>,
    master_name: String,
    dialer: Dialer,
    router: Weak<Router>,
}

impl SentinelWatch {
    pub(super) fn new(sentinels: Vec<Address>, master_name: String, dialer: Dialer, router: Weak<Router>) -> Self {
        Self { sentinels, master_name, dialer, router }
    }

    /// Runs as long as there is somebody who calls.
    pub(super) async fn run(mut self) {
        let (mut silent, mut in_vain) = (false, 0_u32);
        loop {
            let found = self.master().await;
            let Some(router) = self.router.upgrade() else { return };
            match found {
                Ok(master) => {
                    silent = false;
                    router.routes().nodes.iter().for_each(|node| node.move_to(master.clone()));
                }
                Err(why) => {
                    if !std::mem::replace(&mut silent, true) {
                        tracing::warn!("no sentinel names the master: {why}");
                    }
                }
            }
            drop(router);
            if self.is_well() {
                in_vain = 0;
                let again_at = Instant::now() + CALM;
                while self.is_well() && Instant::now() < again_at {
                    sleep(TICK).await;
                }
            } else {
                // Another may know better.
                self.sentinels.rotate_left(1);
                in_vain = in_vain.saturating_add(1);
                sleep(if in_vain < LONG { URGENT } else { PATIENT }).await;
            }
        }
    }

    /// Whether the master answers.
    fn is_well(&self) -> bool {
        self.router.upgrade().is_some_and(|router| router.link() == Link::Connected)
    }

    /// What the first sentinel that answers says. That one is asked first from now on.
    async fn master(&mut self) -> Result<Address, String> {
        let mut why = String::new();
        for _ in 0..self.sentinels.len() {
            match master_of(&self.dialer, &self.sentinels[0], &self.master_name).await {
                Ok(master) => return Ok(master),
                Err(error) => why = error,
            }
            self.sentinels.rotate_left(1);
        }
        Err(why)
    }
}

/// Where the master of this name is, in the words of one sentinel.
pub(super) async fn master_of(dialer: &Dialer, sentinel: &Address, name: &str) -> Result<Address, String> {
    let mut connection = dialer.dial(sentinel).await.map_err(|error| error.to_string())?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let asked = command.query_async::<Option<(String, u16)>>(&mut connection.link);
    match timeout(ANSWER_TIMEOUT, asked).await {
        Ok(Ok(Some((host, port)))) => Ok(Address { host, port }),
        Ok(Ok(None)) => Err(format!("{sentinel}: watches no master named {name:?}")),
        Ok(Err(error)) => Err(format!("{sentinel}: {}", reply::text(&error))),
        Err(_) => Err(format!("{sentinel}: no answer within {ANSWER_TIMEOUT:?}")),
    }
}
