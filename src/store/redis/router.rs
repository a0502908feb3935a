//! Which node a call goes to, and where it goes on when a cluster says that its key is elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use super::job::Job;
use super::node::{Link, Node};
use super::reply::Redirect;
use super::slots::{self, SLOTS};
use crate::clock::Clock;
use crate::config::Address;
use crate::key::KeyRef;
use crate::store::away::AwayClock;
use crate::store::{Kind, StoreError};

/// So often a call goes on to another node. Where a map is old and its slot moves at this very moment, a call is sent on
/// twice: to the node that had the slot since, and to the one that is about to have it.
const HOPS: u8 = 3;
/// Redirections that may wait for whoever keeps the map.
const NEWS: usize = 1024;
/// Of a slot that no node is known to hold.
const NOBODY: u16 = u16::MAX;

/// The nodes, and which of them holds which slot.
#[derive(Clone, Debug)]
pub(super) struct Routes {
    pub(super) nodes: Vec<Arc<Node>>,
    /// The place in `nodes` of each slot's holder; `None`: the one node has all keys.
    slots: Option<Box<[u16]>>,
}

impl Routes {
    /// One node, which has all keys.
    pub(super) fn one(node: Node) -> Self {
        Self { nodes: vec![Arc::new(node)], slots: None }
    }

    /// A cluster of which nothing is known yet.
    pub(super) fn unknown() -> Self {
        Self { nodes: Vec::new(), slots: Some(vec![NOBODY; SLOTS].into()) }
    }

    /// Says that `nodes[node]` holds a slot.
    pub(super) fn assign(&mut self, slot: u16, node: usize) {
        if let Some(holder) = self.slots.as_mut().and_then(|slots| slots.get_mut(usize::from(slot))) {
            *holder = u16::try_from(node).unwrap_or(NOBODY);
        }
    }

    /// Whether each slot has a node.
    pub(super) fn is_complete(&self) -> bool {
        self.slots.as_ref().is_none_or(|slots| !slots.contains(&NOBODY))
    }

    /// The node at an address, and its place.
    pub(super) fn at(&self, address: &Address) -> Option<(usize, &Arc<Node>)> {
        self.nodes.iter().enumerate().find(|(_, node)| node.address().as_ref() == Some(address))
    }

    /// Whether the node at this place holds a slot.
    pub(super) fn holds(&self, slot: u16, place: Option<usize>) -> bool {
        let holder = self.slots.as_ref().and_then(|slots| slots.get(usize::from(slot)));
        holder.is_some_and(|&holder| Some(usize::from(holder)) == place)
    }

    /// The node that holds a slot, which is only worked out where it makes a difference.
    fn holder(&self, slot: impl FnOnce() -> u16) -> Option<&Arc<Node>> {
        match &self.slots {
            None => self.nodes.first(),
            Some(slots) => self.nodes.get(usize::from(*slots.get(usize::from(slot()))?)),
        }
    }
}

/// A cluster said where a key is.
#[derive(Debug)]
pub(super) struct News {
    pub(super) slot: u16,
    pub(super) holder: Address,
    /// The slot has moved; otherwise it is about to, key by key.
    pub(super) moved: bool,
    /// The call that found out, where its new node is not known yet.
    pub(super) job: Option<Job>,
}

/// Hands each call to its node. Shared by those who call, the drivers, and who keeps the map.
#[derive(Debug)]
pub(super) struct Router {
    routes: ArcSwap<Routes>,
    prefix: String,
    news: mpsc::Sender<News>,
    /// Somebody has tried to find the nodes.
    tried: AtomicBool,
    /// Runs while a slot has no node.
    unassigned: AwayClock,
}

impl Router {
    /// The router, and what the drivers learn of the map.
    pub(super) fn new(routes: Routes, prefix: String) -> (Self, mpsc::Receiver<News>) {
        let (news, learned) = mpsc::channel(NEWS);
        let unassigned = AwayClock::new(Clock::monotonic());
        unassigned.set(!routes.is_complete());
        let tried = AtomicBool::new(false);
        (Self { routes: ArcSwap::from_pointee(routes), prefix, news, tried, unassigned }, learned)
    }

    /// Whether its nodes are those of a cluster.
    pub(super) fn is_cluster(&self) -> bool {
        self.routes.load().slots.is_some()
    }

    pub(super) fn routes(&self) -> arc_swap::Guard<Arc<Routes>> {
        self.routes.load()
    }

    /// Calls go this way from now on.
    pub(super) fn publish(&self, routes: Routes) {
        self.unassigned.set(!routes.is_complete());
        self.routes.store(Arc::new(routes));
    }

    /// The nodes have been looked for, in vain or not.
    pub(super) fn tried(&self) {
        self.tried.store(true, Ordering::Relaxed);
    }

    /// The store as a whole: [`Link::Starting`] while a node has not been tried, then [`Link::Connected`] while calls
    /// for every key are let through.
    pub(super) fn link(&self) -> Link {
        let routes = self.routes.load();
        let known = match (routes.is_complete(), self.tried.load(Ordering::Relaxed)) {
            (true, _) => Link::Connected,
            (false, true) => Link::Away,
            (false, false) => Link::Starting,
        };
        let links = routes.nodes.iter().map(|node| node.link());
        std::iter::once(known).chain(links).find(|&link| link != Link::Connected).unwrap_or(Link::Connected)
    }

    /// Hands a job to the node that holds its key.
    pub(super) fn send(&self, mut job: Job) {
        let routes = self.routes.load();
        match routes.holder(|| slots::slot(job.key(&self.prefix))) {
            Some(node) => node.send(job),
            None => job.finish(Err(Kind::Away.into())),
        }
    }

    /// Whether calls for `key` are let through: its node is not known to be away or to fail.
    pub(super) fn lets_through(&self, key: KeyRef<'_>) -> bool {
        let routes = self.routes.load();
        let node = routes.holder(|| slots::slot(&key.to_key().in_redis(&self.prefix)));
        node.is_some_and(|node| node.lets_through())
    }

    /// Where the node that holds a key in Redis is; `None` where that is not known, or no calls are let through to it.
    pub(super) fn address_of(&self, key: &str) -> Option<Address> {
        self.routes.load().holder(|| slots::slot(key)).filter(|node| node.lets_through())?.address()
    }

    /// Milliseconds that calls for `key` were not let through, in total.
    pub(super) fn away_ms(&self, key: KeyRef<'_>) -> u64 {
        let routes = self.routes.load();
        let node = routes.holder(|| slots::slot(&key.to_key().in_redis(&self.prefix)));
        node.map_or_else(|| self.unassigned.total_ms(), |node| node.away_ms())
    }

    /// Sends a job on to where the cluster said that its key is: the node `from` did not execute it.
    pub(super) fn redirect(&self, mut job: Job, redirect: Redirect, from: Option<&Address>) {
        let to = from.and_then(|from| slots::redirection(&redirect.to, from));
        let (Some((slot, holder)), true) = (to, job.hop(redirect.asking) <= HOPS) else {
            return job.finish(Err(StoreError::from(redirect)));
        };
        let news = News { slot, holder, moved: !redirect.asking, job: None };
        match self.routes.load().at(&news.holder) {
            Some((_, node)) => {
                node.send(job);
                // More of the same is under way where there is no room for it.
                let _ = self.news.try_send(news);
            }
            None => {
                let news = News { job: Some(job), ..news };
                if let Err(mpsc::error::TrySendError::Full(news) | mpsc::error::TrySendError::Closed(news)) =
                    self.news.try_send(news)
                    && let Some(job) = news.job
                {
                    job.finish(Err(Kind::Overloaded.into()));
                }
            }
        }
    }
}
