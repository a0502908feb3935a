//! The gateway from outside: the real binary, real Redis, real PostgreSQL, raw sockets, upstreams that count.
//!
//! Needs the services: `make test`, or `scripts/services.sh run cargo test --test behaviour`.

// A test fails by panicking and measures with the wall clock; not every test crate uses all of `support`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    dead_code,
    unused_imports
)]

#[path = "../support/mod.rs"]
mod support;

mod access_log;
mod admin;
mod buckets;
mod clients;
mod headers;
mod http2;
mod identity;
mod malformed;
mod overload;
mod paths;
mod quickstart;
mod rule_tests;
mod rules_api;
mod rules_database;
mod rules_events;
mod rules_file;
mod startup;
mod stop;
mod tls;
mod upstreams;
mod usage;
