//! The log: lines on stderr; `RUST_LOG` chooses what is told (default `info`).

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Never more than this of Pingora's own log: below it stand whole request heads, API keys included.
const QUIET: [&str; 4] = ["pingora_core", "pingora_proxy", "pingora_http", "pingora_load_balancing"];

/// Starts logging. A second call changes nothing.
pub fn init() {
    let chosen = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    let filter =
        QUIET.iter().filter_map(|target| format!("{target}=warn").parse().ok()).fold(chosen, EnvFilter::add_directive);
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}
