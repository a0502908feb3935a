//! Keeps the map of a Redis Cluster: which masters there are, and which of them holds which slot. Masters get a driver
//! as they appear and lose it as they go.
//!
//! The map is read from any node that answers: at the start, every [`CALM`], and every [`URGENT`] while something is
//! wrong: a call was sent on, a node is away, a slot has no node. So a failover is followed within [`URGENT`] of the
//! moment when the cluster's own nodes know of it. What stays wrong for long is looked at every [`PATIENT`].

use std::sync::{Arc, Weak};
use std::time::Duration;

use rand::seq::SliceRandom;
use redis::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::{error, info, warn};

use super::dial::Dialer;
use super::node::{Link, Node, NodeFactory};
use super::reply;
use super::router::{News, Router, Routes};
use super::slots::{self, Range};
use crate::config::Address;
use crate::store::Kind;

/// Between two looks at whether the map has to be read.
const TICK: Duration = Duration::from_millis(100);
/// Between two readings while something is wrong.
const URGENT: Duration = Duration::from_millis(250);
/// Between two readings once something has been wrong for [`LONG`].
const PATIENT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(10);
/// Between two readings while all is well.
const CALM: Duration = Duration::from_secs(10);
/// Nodes asked in one reading, the first that answers last.
const ASKED: usize = 5;
/// The longest wait for a node's answer, beside that for the connection.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// A node that calls were sent on to is kept for so long, even if the map does not name it: slots are on their way there.
const EXPECTED: Duration = Duration::from_secs(30);
/// Masters of one cluster, and so nodes with a queue and a driver. Redis advises against more.
const MOST_NODES: usize = 1000;

/// Reads the map and has the nodes' drivers run.
#[derive(Debug)]
pub(super) struct ClusterWatch {
    /// The nodes of the configuration.
    seeds: Vec<Address>,
    dialer: Dialer,
    factory: NodeFactory,
    router: Weak<Router>,
    news: mpsc::Receiver<News>,
    drivers: JoinSet<()>,
    /// Nodes that calls were sent on to, and when last.
    expected: Vec<(Address, Instant)>,
    /// The map is known to be old.
    outdated: bool,
    /// When something was first found wrong.
    unwell: Option<Instant>,
    /// Nothing could be read the last time; logged once.
    blind: bool,
}

type Reading = Result<Vec<Range>, String>;

impl ClusterWatch {
    pub(super) fn new(
        seeds: Vec<Address>,
        dialer: Dialer,
        factory: NodeFactory,
        router: Weak<Router>,
        news: mpsc::Receiver<News>,
    ) -> Self {
        let (drivers, expected) = (JoinSet::new(), Vec::new());
        Self { seeds, dialer, factory, router, news, drivers, expected, outdated: true, unwell: None, blind: false }
    }

    /// Runs as long as there is somebody who calls.
    pub(super) async fn run(mut self) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut reading, mut read_at): (JoinSet<Reading>, Option<Instant>) = (JoinSet::new(), None);
        loop {
            tokio::select! {
                Some(read) = reading.join_next() => {
                    let Some(router) = self.router.upgrade() else { break };
                    self.take(read.unwrap_or_else(|ended| Err(ended.to_string())), &router);
                    router.tried();
                }
                learned = self.news.recv() => {
                    let (Some(news), Some(router)) = (learned, self.router.upgrade()) else { break };
                    self.learn(news, &router);
                }
                _ = tick.tick() => {
                    let Some(router) = self.router.upgrade() else { break };
                    let pause = self.pause(&router.routes());
                    if reading.is_empty() && read_at.is_none_or(|at| at.elapsed() >= pause) {
                        read_at = Some(Instant::now());
                        self.outdated = false;
                        reading.spawn(read(self.dialer.clone(), self.to_ask(&router.routes())));
                    }
                }
                Some(ended) = self.drivers.join_next() => {
                    if let Err(ended) = ended {
                        error!("the driver of a node of the store ended: {ended}");
                    }
                }
            }
        }
        // Nobody calls any more: the drivers finish what is under way.
        while self.drivers.join_next().await.is_some() {}
    }

    /// Between two readings, as things stand.
    fn pause(&mut self, routes: &Routes) -> Duration {
        if is_well(routes) {
            self.unwell = None;
            return if self.outdated { URGENT } else { CALM };
        }
        let since = self.unwell.get_or_insert_with(Instant::now);
        if self.outdated || since.elapsed() < LONG { URGENT } else { PATIENT }
    }

    /// In this order: those that answer, then all that have been heard of.
    fn to_ask(&self, routes: &Routes) -> Vec<Address> {
        let mut random = rand::rng();
        let (mut asked, mut others) = (Vec::new(), self.seeds.clone());
        for node in &routes.nodes {
            let well = node.link() == Link::Connected;
            if well { &mut asked } else { &mut others }.extend(node.address());
        }
        asked.shuffle(&mut random);
        others.shuffle(&mut random);
        // Were those that answer not able to tell, one more of the others would be asked each time.
        asked.truncate(ASKED - 1);
        for address in others {
            if !asked.contains(&address) {
                asked.push(address);
            }
        }
        asked.truncate(ASKED);
        asked
    }

    fn take(&mut self, read: Reading, router: &Router) {
        match read {
            Ok(ranges) => {
                self.blind = false;
                self.apply(&ranges, router);
            }
            Err(why) => {
                if !std::mem::replace(&mut self.blind, true) {
                    warn!("the map of the cluster cannot be read, what is known of it is kept: {why}");
                }
            }
        }
    }

    /// Takes over the map that a node has told.
    fn apply(&mut self, ranges: &[Range], router: &Router) {
        let before = Arc::clone(&router.routes());
        self.expected.retain(|(_, at)| at.elapsed() < EXPECTED);
        let mut routes = Routes::unknown();
        // Nodes keep their queue, breaker and connection.
        for node in &before.nodes {
            let address = node.address();
            let is_master = ranges.iter().any(|range| Some(&range.master) == address.as_ref());
            let is_expected = || self.expected.iter().any(|(expected, _)| Some(expected) == address.as_ref());
            if is_master || (node.link() == Link::Connected && is_expected()) {
                routes.nodes.push(Arc::clone(node));
            }
        }
        for range in ranges {
            let Some(place) = self.place(&range.master, &mut routes) else { continue };
            for slot in range.first..=range.last {
                routes.assign(slot, place);
            }
            if let Some(node) = routes.nodes.get(place) {
                node.probe_slot(range.first);
            }
        }
        for gone in before.nodes.iter().filter(|node| !routes.nodes.iter().any(|kept| Arc::ptr_eq(kept, node))) {
            info!(node = gone.index(), address = gone.name(), "no master of the cluster any more");
        }
        router.publish(routes);
    }

    /// Takes note of one slot, and sends on the call that found out.
    fn learn(&mut self, news: News, router: &Router) {
        let News { slot, holder, moved, job } = news;
        self.outdated |= moved;
        self.expected.retain(|(expected, at)| *expected != holder && at.elapsed() < EXPECTED);
        self.expected.push((holder.clone(), Instant::now()));
        let known = router.routes().at(&holder).map(|(place, _)| place);
        let is_new = known.is_none();
        if is_new || (moved && !router.routes().holds(slot, known)) {
            let mut routes = Routes::clone(&router.routes());
            let place = self.place(&holder, &mut routes);
            if let (Some(place), true) = (place, moved) {
                routes.assign(slot, place);
            }
            if let (Some(node), true) = (place.and_then(|place| routes.nodes.get(place)), is_new) {
                node.probe_slot(slot);
            }
            router.publish(routes);
        }
        if let Some(job) = job {
            match router.routes().at(&holder) {
                Some((_, node)) => node.send(job),
                None => job.finish(Err(Kind::Overloaded.into())),
            }
        }
    }

    /// The place of the node at an address, which is there from now on; `None` where there are too many.
    fn place(&mut self, address: &Address, routes: &mut Routes) -> Option<usize> {
        if let Some((place, _)) = routes.at(address) {
            return Some(place);
        }
        if routes.nodes.len() >= MOST_NODES {
            return None;
        }
        let (node, driver) = self.factory.node(self.index(address, &routes.nodes), Some(address.clone()));
        info!(node = node.index(), %address, "a master of the cluster");
        self.drivers.spawn(driver.run());
        routes.nodes.push(Arc::new(node));
        Some(routes.nodes.len() - 1)
    }

    /// A node of the configuration has its place there, if it is known by the same address; any other the first number
    /// behind those that no other has. So there are never more numbers than nodes in the configuration and masters.
    fn index(&self, address: &Address, nodes: &[Arc<Node>]) -> usize {
        let is_taken = |index: &usize| nodes.iter().any(|node| node.index() == *index);
        let configured = self.seeds.iter().position(|seed| seed == address);
        let behind = self.seeds.len()..self.seeds.len() + MOST_NODES;
        configured.into_iter().chain(behind).find(|index| !is_taken(index)).unwrap_or(usize::MAX)
    }
}

fn is_well(routes: &Routes) -> bool {
    routes.is_complete() && routes.nodes.iter().all(|node| node.link() == Link::Connected)
}

/// What the first says that finds the cluster well; if none does, what the first says that answers.
async fn read(dialer: Dialer, nodes: Vec<Address>) -> Reading {
    let (mut unwell, mut why) = (None, "no node is known".to_owned());
    for address in nodes {
        match ask(&dialer, &address).await {
            Ok((true, ranges)) => return Ok(ranges),
            Ok((false, ranges)) => unwell = unwell.or(Some(ranges)),
            Err(error) => why = error,
        }
    }
    unwell.ok_or(why)
}

/// Whether this node finds the cluster well, and the map as it sees it.
async fn ask(dialer: &Dialer, address: &Address) -> Result<(bool, Vec<Range>), String> {
    let mut connection = dialer.dial(address).await.map_err(|error| error.to_string())?;
    let mut pipeline = redis::pipe();
    pipeline.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
    let asked = pipeline.query_async::<(String, Value)>(&mut connection.link);
    let (info, map) = match timeout(ANSWER_TIMEOUT, asked).await {
        Ok(answer) => answer.map_err(|error| format!("{address}: {}", reply::text(&error)))?,
        Err(_) => return Err(format!("{address}: no answer within {ANSWER_TIMEOUT:?}")),
    };
    let ranges = slots::ranges(&map, address).ok_or_else(|| format!("{address}: not a map of slots: {map:?}"))?;
    if ranges.is_empty() {
        return Err(format!("{address}: no slot has a node"));
    }
    Ok((info.contains("cluster_state:ok"), ranges))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::config::Login;

    fn address(port: u16) -> Address {
        Address { host: "127.0.0.1".to_owned(), port }
    }

    fn watch(seeds: &[u16]) -> (Arc<Router>, ClusterWatch) {
        let settings = config::Store { redis: None, timeout: Duration::from_millis(5), key_prefix: "rl".to_owned() };
        let dialer = Dialer::new(&Login::default(), None).unwrap();
        let (router, news) = Router::new(Routes::unknown(), "rl".to_owned());
        let router = Arc::new(router);
        let factory = NodeFactory::new(dialer.clone(), &settings, config::Breaker::default(), Arc::downgrade(&router));
        let seeds = seeds.iter().map(|&port| address(port)).collect();
        let watch = ClusterWatch::new(seeds, dialer, factory, Arc::downgrade(&router), news);
        (router, watch)
    }

    fn ranges(masters: &[(u16, u16, u16)]) -> Vec<Range> {
        masters.iter().map(|&(first, last, port)| Range { first, last, master: address(port) }).collect()
    }

    /// Index and port of each node.
    fn nodes(router: &Router) -> Vec<(usize, u16)> {
        router.routes().nodes.iter().map(|node| (node.index(), node.address().unwrap().port)).collect()
    }

    #[tokio::test]
    async fn nodes_of_the_configuration_have_their_place_and_others_the_first_free_number_behind() {
        let (router, mut watch) = watch(&[1, 2]);
        watch.apply(&ranges(&[(0, 99, 2), (100, 9999, 3), (10_000, 16_383, 4), (16_000, 16_001, 2)]), &router);
        assert_eq!(nodes(&router), [(1, 2), (2, 3), (3, 4)]);
        // Failovers on and on: as many numbers as nodes in the configuration and masters.
        for port in 5..50 {
            watch.apply(&ranges(&[(0, 99, 2), (100, 9999, port), (10_000, 16_383, 4)]), &router);
            let indices: Vec<usize> = nodes(&router).into_iter().map(|(index, _)| index).collect();
            assert_eq!(indices, [1, 3, 2], "{port}");
        }
        assert!(router.routes().is_complete());
    }

    #[tokio::test]
    async fn a_slot_that_has_moved_is_known_before_the_map_is_read_again() {
        let (router, mut watch) = watch(&[1]);
        watch.apply(&ranges(&[(0, 9999, 1), (10_000, 16_383, 2)]), &router);
        watch.outdated = false;
        let place = |port| router.routes().at(&address(port)).map(|(place, _)| place);
        watch.learn(News { slot: 7, holder: address(2), moved: false, job: None }, &router);
        assert!(router.routes().holds(7, place(1)) && !watch.outdated, "only asked there");
        watch.learn(News { slot: 7, holder: address(3), moved: true, job: None }, &router);
        assert!(router.routes().holds(7, place(3)) && watch.outdated);
        assert!(router.routes().holds(8, place(1)));
    }

    #[tokio::test]
    async fn a_slot_without_a_node_leaves_the_map_incomplete() {
        let (router, mut watch) = watch(&[1]);
        watch.apply(&ranges(&[(0, 16_382, 1)]), &router);
        router.tried();
        assert!(!router.routes().is_complete());
        assert!(!router.routes().holds(16_383, Some(0)));
    }
}
