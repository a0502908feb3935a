//! Sekisho (関所, the checkpoint on an old highway): an API gateway on Pingora that enforces one rate limit per tenant
//! and route over a whole fleet of gateways.
//!
//! # Layout
//!
//! Data flows from the top of this list to the bottom; nothing lower imports anything higher.
//!
//! | module | its one purpose |
//! |---|---|
//! | [`cli`] | the command line: `run`, `check`, `explain`, `rules`, `replay` |
//! | [`server`] | assembles listeners, services, signals and shutdown |
//! | [`admin`] | health, readiness, metrics, status, explain and rules over HTTP |
//! | [`expectations`] | rule tests: what requests should find, held against rules before they come into force |
//! | [`explain`] | which route, tenant and limits a request would find, and why |
//! | [`replay`] | what other rules would have done to the requests of an access log |
//! | [`gateway`] | the phases of a proxied request: route, identity, limit, upstream, reply |
//! | [`usage`] | who was limited: counts by tenant, route and rule, over the fleet |
//! | [`access_log`] | a line of JSON for each request |
//! | [`handover`] | from requests to a thread beside them: bounded, lossy |
//! | [`limiter`] | `decide`: spends a leased token, asks the store, or falls back when it does not answer |
//! | [`messengers`] | who tells that rules have changed: PostgreSQL, Redis, Kafka |
//! | [`store`] | where buckets live: Redis (shared) or this process (one gateway alone) |
//! | [`metrics`] | the Prometheus series |
//! | [`rules`] | which limit applies: immutable indexed snapshots, read from a file or PostgreSQL |
//! | [`config`] | one TOML file, read into raw shape, validated into settings |
//! | [`ledger`] | a bounded map from bucket to what this process knows of it |
//! | [`decision`], [`rule`], [`key`] | the words that all of these speak: what was decided, by which rule, for which bucket |
//! | [`bucket`] | the arithmetic of one token bucket and its leases: no clock, no I/O |
//! | [`clock`], [`wall`], [`telemetry`] | time, injected; the time of day, for people; the log |
//!
//! The scripts that run inside Redis are `scripts/redis/*.lua`.

pub mod access_log;
pub mod admin;
pub mod bucket;
pub mod cli;
pub mod clock;
pub mod config;
pub mod decision;
pub mod expectations;
pub mod explain;
pub mod gateway;
pub mod handover;
pub mod key;
pub mod ledger;
pub mod limiter;
pub mod messengers;
pub mod metrics;
pub mod replay;
pub mod rule;
pub mod rules;
pub mod server;
pub mod store;
pub mod telemetry;
pub mod usage;
pub mod wall;
