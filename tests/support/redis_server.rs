//! Redis: the one that all tests share, and servers of their own for tests that stop them.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

use super::{eventually, free_address};

/// The Redis that all tests share.
pub(crate) fn redis_url() -> String {
    std::env::var("SEKISHO_TEST_REDIS_URL")
        .expect("SEKISHO_TEST_REDIS_URL is not set: run `make test`, or `scripts/services.sh run cargo test`")
}

/// A name that no other test uses: a key prefix, a database.
pub(crate) fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("t{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) async fn connect(url: &str) -> MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

/// The program to test against: Redis, or what speaks like it, such as Valkey.
pub(crate) fn server_program() -> String {
    std::env::var("SEKISHO_TEST_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

/// A Redis of the test's own; killed when dropped.
pub(crate) struct PrivateRedis {
    child: Option<Child>,
    pub(crate) address: SocketAddr,
    pub(crate) dir: TempDir,
    options: Vec<String>,
}

impl PrivateRedis {
    /// A server that answers.
    pub(crate) async fn start() -> Self {
        let mut server = Self::absent();
        server.restart().await;
        server
    }

    /// An address where no server is yet.
    pub(crate) fn absent() -> Self {
        Self { child: None, address: free_address(), dir: TempDir::new().unwrap(), options: Vec::new() }
    }

    /// The same with more options, as on the command line of the server; the last of one name counts.
    pub(crate) fn with(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(|&option| option.to_owned()));
        self
    }

    /// The value of an option, as it was given.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        let at = self.options.iter().position(|option| option == name)?;
        self.options.get(at + 1).map(String::as_str)
    }

    /// With its password, if it asks for one.
    pub(crate) fn url(&self) -> String {
        match self.option("--requirepass") {
            Some(password) => format!("redis://:{password}@{}", self.address),
            None => format!("redis://{}", self.address),
        }
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGSTOP, SIGCONT: it hangs and goes on.
    pub(crate) fn signal(&self, name: &str) {
        let child = self.child.as_ref().expect("no server");
        assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
    }

    /// Starts it, empty, on the same port, and waits until it answers.
    pub(crate) async fn restart(&mut self) {
        self.spawn();
        let url = self.url();
        eventually("Redis answers", Duration::from_secs(10), || async {
            let client = redis::Client::open(url.as_str()).ok()?;
            let mut connection = client.get_multiplexed_async_connection().await.ok()?;
            redis::cmd("PING").query_async::<String>(&mut connection).await.ok()
        })
        .await;
    }

    /// Starts it on the same port and in the same folder, and waits for nothing.
    pub(crate) fn spawn(&mut self) {
        self.kill();
        self.child = Some(
            Command::new(server_program())
                .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"])
                .arg(self.address.port().to_string())
                .arg("--dir")
                .arg(self.dir.path())
                .args(&self.options)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("redis-server is not installed: run through scripts/services.sh"),
        );
    }
}

impl Drop for PrivateRedis {
    fn drop(&mut self) {
        self.kill();
    }
}
