//! The log: lines on stderr; `RUST_LOG` chooses what is told (default `info`).

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Never more than this of Pingora's own log: below it stand whole request heads, API keys included.
const QUIET: [&str; 4] = ["pingora_core", "pingora_proxy", "pingora_http", "pingora_load_balancing"];

/// Says at level ERROR, and nothing more, that a connection from the pool was not free yet and a new one is made: with
/// several workers many times a second.
const SILENT: &str = "pingora_core::connectors";

/// Starts logging. A second call changes nothing.
pub fn init() {
    let chosen = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    let quiet = QUIET.iter().map(|target| format!("{target}=warn")).chain([format!("{SILENT}=off")]);
    let filter = quiet.filter_map(|directive| directive.parse().ok()).fold(chosen, EnvFilter::add_directive);
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}
