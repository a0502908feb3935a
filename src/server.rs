//! Assembles the process: listeners, background services, signals, shutdown.

mod connections;
mod drain;
mod recording;
mod room;
mod services;

use std::convert::Infallible;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pingora::listeners::ListenerConfig;
use pingora::listeners::tls::TlsSettings;
use pingora::protocols::l4::stream::L4BufferSettings;
use pingora::server::configuration::{Opt, ServerConf};
use pingora::server::{RunArgs, Server};
use pingora::services::background::background_service;
use pingora::services::listening::Service;

use self::connections::Connections;
use self::room::Room;
use crate::admin::Admin;
use crate::clock::Clock;
use crate::config::Settings;
use crate::expectations::{Expectations, ExpectationsError};
use crate::explain::Explainer;
use crate::gateway::{Gateway, GatewayError};
use crate::limiter::Limiter;
use crate::messengers::Messengers;
use crate::metrics;
use crate::rules::LoadError;
use crate::rules::Loader;
use crate::store::redis::SetupError;

/// Idle connections to upstreams kept for reuse, per worker thread.
const UPSTREAM_POOL: usize = 256;
/// Bytes of each client connection's read buffer. Pingora's 64 KiB would be most of what an idle connection takes; what
/// does not fit, such as bodies, is read past it.
const READ_BUFFER: usize = 4096;
/// Exit code of a process that could not start.
const NOT_STARTED: i32 = 3;

/// How to start.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// In the background.
    pub daemon: bool,
    /// With the sockets of a running gateway.
    pub upgrade: bool,
}

/// Why the gateway could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// See [`LoadError`].
    #[error(transparent)]
    Rules(#[from] LoadError),
    /// See [`ExpectationsError`].
    #[error(transparent)]
    Expectations(#[from] ExpectationsError),
    /// See [`GatewayError`].
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    /// See [`SetupError`].
    #[error(transparent)]
    Store(#[from] SetupError),
    /// A listener's address is taken or not ours.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        error: std::io::Error,
    },
    /// A file of the process itself cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    File {
        /// `server.pid_file`
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// Certificate or key do not make a TLS listener.
    #[error("cannot serve TLS on {address}: {error}")]
    Tls {
        /// The address.
        address: SocketAddr,
        /// OpenSSL's reason.
        error: Box<pingora::Error>,
    },
}

impl StartError {
    /// Whether the input is at fault, not the machine.
    pub fn is_invalid_input(&self) -> bool {
        !matches!(self, Self::Listen { .. } | Self::File { .. })
    }
}

/// Serves until a signal ends the process: SIGTERM after a drain, SIGQUIT after handing over its sockets, SIGINT at
/// once. SIGHUP reloads the rules.
///
/// # Errors
/// When it cannot start.
pub fn run(settings: Settings, start: Start) -> Result<Infallible, StartError> {
    metrics::register();
    let room = Room::raise();
    let mut loader =
        Loader::new(&settings.rules, &settings.limiter.default_rule, &settings.identity.mode, &settings.routes);
    if let Some(path) = &settings.rules.tests {
        loader.judge_by(Arc::new(Expectations::read(path, &settings, loader.keys())?));
    }
    loader.initial_load()?;

    let (limiter, store) = Limiter::new(&settings.store, &settings.limiter, Clock::monotonic())?;
    let limiter = Arc::new(limiter);
    let (gateway, upkeep) =
        Gateway::new(&settings, Arc::clone(loader.rules()), Arc::clone(loader.keys()), Arc::clone(&limiter))?;
    let recording = recording::of(&settings, &limiter);
    let gateway = gateway.recorded_by(recording.clone());
    let messengers = Messengers::new(&settings.rules, settings.store.redis.as_ref(), loader.changes())?;
    let explainer = Explainer::new(&settings, loader.rules(), loader.keys()).map_err(GatewayError::from)?;
    let explainer = explainer.with_limiter(Arc::clone(&limiter));
    if !start.upgrade {
        probe(&settings)?;
    }
    if start.daemon {
        probe_pid_file(&settings.server.pid_file)?;
    }
    exit_without_listeners();

    let options = Opt { daemon: start.daemon, upgrade: start.upgrade, ..Opt::default() };
    let mut server = Server::new_with_opt_and_conf(options, server_conf(&settings, start));
    server.bootstrap();

    let (listening, draining) = (Arc::new(AtomicBool::new(false)), gateway.draining());
    let farewell = drain::Farewell::new(Arc::clone(&draining), settings.server.grace_period);
    let drain =
        drain::Drain::new(gateway.in_flight(), Arc::clone(&limiter), recording.clone(), settings.server.grace_period);
    let admin = Admin::new(&settings, &loader, Arc::clone(&limiter), explainer, Arc::clone(&listening), draining)
        .with_usage(recording.usage.clone())
        .with_channels(messengers.channels());
    let mut admin = Service::new("admin".to_owned(), admin);
    admin.add_tcp(&settings.admin.listen.to_string());
    admin.threads = Some(1);

    let connections = Connections::new(&server.configuration, gateway, settings.server.client, room.clone());
    let mut proxy = Service::new("proxy".to_owned(), connections);
    proxy.endpoints().set_pre_tls_callback(Arc::new(room));
    let buffers = L4BufferSettings::default().read(READ_BUFFER);
    for address in &settings.server.listen {
        proxy.add_listener(ListenerConfig::tcp(address.to_string()).l4_buffer(buffers));
    }
    for listener in &settings.server.tls {
        let (certificate, key) = (listener.certificate.to_string_lossy(), listener.key.to_string_lossy());
        let mut tls = TlsSettings::intermediate(&certificate, &key)
            .map_err(|error| StartError::Tls { address: listener.listen, error })?;
        tls.enable_h2();
        proxy.add_listener(ListenerConfig::tcp(listener.listen.to_string()).tls(tls).l4_buffer(buffers));
    }

    server.add_service(proxy);
    server.add_service(admin);
    server.add_service(background_service("upstreams", upkeep));
    server.add_service(background_service("rules", services::RulesService::new(loader, messengers)));
    server.add_service(background_service("drain", drain));
    let listening = services::ListeningService::new(public_addresses(&settings).collect(), listening);
    server.add_service(background_service("listening", listening));
    if let Some(store) = store {
        server.add_service(background_service("store", services::StoreService::new(store)));
    }
    if let Some(usage) = &recording.usage {
        let service = recording::UsageService::new(Arc::clone(usage));
        server.add_service(background_service("usage", service));
    }
    if let Some(log) = &recording.access_log {
        server.add_service(background_service("access log", recording::AccessLogService::new(Arc::clone(log))));
    }
    server.run(RunArgs { shutdown_signal: Box::new(farewell) });
    if let Some(log) = &recording.access_log {
        log.write();
    }
    exit(0)
}

/// Where clients connect.
fn public_addresses(settings: &Settings) -> impl Iterator<Item = SocketAddr> {
    let tls = settings.server.tls.iter().map(|listener| listener.listen);
    settings.server.listen.iter().copied().chain(tls)
}

/// Binds every listener once, so that an address that is taken ends the start with one clear line.
fn probe(settings: &Settings) -> Result<(), StartError> {
    for address in public_addresses(settings).chain([settings.admin.listen]) {
        TcpListener::bind(address).map_err(|error| StartError::Listen { address, error })?;
    }
    Ok(())
}

/// Opens the pid file for writing, so that one that cannot be written ends the start with one clear line: in the
/// background nobody would hear of it.
fn probe_pid_file(path: &Path) -> Result<(), StartError> {
    let is_new = !path.exists();
    let opened = File::options().append(true).create(true).open(path);
    let probed = opened.and_then(|_| if is_new { fs::remove_file(path) } else { Ok(()) });
    probed.map_err(|error| StartError::File { path: path.to_owned(), error })
}

/// Pingora builds listeners in a task of their own, whose panic would leave a process without listeners. (Addresses
/// were probed; this is for one taken in the meantime, or not handed over in an upgrade.)
fn exit_without_listeners() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        let message = panic.payload().downcast_ref::<String>().map_or("", String::as_str);
        if message.contains("Failed to build listeners") {
            eprintln!("cannot listen: {message}");
            exit(NOT_STARTED);
        }
    }));
}

fn server_conf(settings: &Settings, start: Start) -> ServerConf {
    ServerConf {
        daemon: start.daemon,
        threads: settings.server.threads,
        // One runtime a thread, nothing handed from one to another: a quarter less CPU than work stealing.
        work_stealing: false,
        pid_file: settings.server.pid_file.to_string_lossy().into_owned(),
        upgrade_sock: settings.server.upgrade_socket.to_string_lossy().into_owned(),
        grace_period_seconds: Some(settings.server.grace_period.as_secs_f64().ceil() as u64),
        graceful_shutdown_timeout_seconds: Some(1),
        upstream_keepalive_pool_size: UPSTREAM_POOL,
        // Attempts are bounded by the gateway itself; this is only the loop's own bound.
        max_retries: 2,
        ..ServerConf::default()
    }
}
