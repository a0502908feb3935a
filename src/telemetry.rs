//! The log: lines on stderr, as text; `RUST_LOG` chooses what is told (default `info`).

use tracing_subscriber::EnvFilter;

/// Pingora reports each client that breaks off, and each start and stop in detail; what an operator has to know of
/// that, the gateway says itself.
const DEFAULT: &str = "info,pingora_core=warn,pingora_proxy=warn,pingora_load_balancing=warn";

/// Starts logging. A second call changes nothing.
pub fn init() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT));
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}
