//! Gateways as processes: the real binary, a configuration of its own, ports of its own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::client::{Response, get, request, send};
use super::redis_server::unique;
use super::{eventually, free_address};

/// Tokens per second: so slow that nothing comes back within a test.
pub(crate) const HARDLY: f64 = 0.001;

/// The program under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_sekisho");

/// What a command that ends by itself said.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `sekisho ARGS…` to its end, which must come within 20 s.
pub(crate) fn sekisho(arguments: &[&str]) -> Run {
    let dir = TempDir::new().unwrap();
    let (out, err) = (dir.path().join("out"), dir.path().join("err"));
    let mut child = Command::new(BINARY)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap())
        .spawn()
        .unwrap();
    let status = wait(&mut child, Duration::from_secs(20));
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let read = |path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
    let run = Run { code: status.and_then(|s| s.code()), stdout: read(out), stderr: read(err) };
    assert!(status.is_some(), "sekisho {arguments:?} did not end: {} {}", run.stdout, run.stderr);
    run
}

fn wait(child: &mut Child, within: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + within;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

/// A configuration in the making. Starts as one route, `orders` on `/orders` for any method, in-process store, file
/// rules, and a store timeout that a busy test machine does not run into by accident.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    sections: BTreeMap<String, BTreeMap<String, String>>,
    tables: String,
    rules: String,
    prefix: String,
    environment: Vec<(String, String)>,
    descriptors: Option<u32>,
}

impl Setup {
    pub(crate) fn new(upstream: SocketAddr) -> Self {
        let prefix = unique();
        let rules = "[]".to_owned();
        let empty = Self {
            sections: BTreeMap::new(),
            tables: String::new(),
            rules,
            prefix: prefix.clone(),
            environment: Vec::new(),
            descriptors: None,
        };
        empty
            .set("server", "threads", "1")
            .set("server", "grace_period", "\"1s\"")
            .set("store", "timeout", "\"500ms\"")
            .set("store", "key_prefix", &format!("{prefix:?}"))
            .set("rules", "refresh", "\"200ms\"")
            .set("upstream.main", "servers", &format!("[\"{upstream}\"]"))
            .route("orders", "/orders")
    }

    /// Buckets in this Redis, under a prefix that no other test uses.
    pub(crate) fn redis(self, url: &str) -> Self {
        self.set("store", "url", &format!("{url:?}"))
    }

    /// Buckets in the Redis Cluster, or in the master that these sentinels know.
    pub(crate) fn redis_nodes(self, topology: &str, urls: &[String]) -> Self {
        self.set("store", "topology", &format!("{topology:?}")).set("store", "nodes", &format!("{urls:?}"))
    }

    /// Sets one key of one section; the value is TOML.
    pub(crate) fn set(mut self, section: &str, key: &str, value: &str) -> Self {
        self.sections.entry(section.to_owned()).or_default().insert(key.to_owned(), value.to_owned());
        self
    }

    /// Takes one key away.
    pub(crate) fn unset(mut self, section: &str, key: &str) -> Self {
        self.sections.entry(section.to_owned()).or_default().remove(key);
        self
    }

    /// One more route to upstream `main`.
    pub(crate) fn route(self, id: &str, path: &str) -> Self {
        self.table(&format!("[[route]]\nid = \"{id}\"\npath = \"{path}\"\nupstream = \"main\"\n"))
    }

    /// An environment variable of the process.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The most descriptors that the process may have.
    pub(crate) fn descriptors(mut self, most: u32) -> Self {
        self.descriptors = Some(most);
        self
    }

    /// Any TOML tables, as they are.
    pub(crate) fn table(mut self, toml: &str) -> Self {
        self.tables.push('\n');
        self.tables.push_str(toml);
        self
    }

    /// The text of the rules file.
    pub(crate) fn rules(mut self, json: &str) -> Self {
        json.clone_into(&mut self.rules);
        self
    }

    /// One rule for every tenant on every route.
    pub(crate) fn limit(self, capacity: u32, refill_per_second: f64) -> Self {
        self.rules(&format!(
            r#"[{{"tenant_id":"*","route_id":"*","capacity":{capacity},"refill_per_second":{refill_per_second}}}]"#
        ))
    }

    /// The prefix of every key of these gateways in Redis.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    fn toml(&self, dir: &Path, listen: SocketAddr, admin: SocketAddr) -> String {
        let path = |name: &str| format!("{:?}", dir.join(name).display().to_string());
        let placed = self
            .clone()
            .set("server", "listen", &format!("[\"{listen}\"]"))
            .set("server", "pid_file", &path("pid"))
            .set("server", "upgrade_socket", &path("upgrade.sock"))
            .set("admin", "listen", &format!("\"{admin}\""));
        let placed = if placed.sections["rules"].contains_key("file") {
            placed
        } else {
            placed.set("rules", "file", &path("rules.json"))
        };
        let mut text = String::new();
        for (section, keys) in &placed.sections {
            writeln!(text, "[{section}]").unwrap();
            for (key, value) in keys {
                writeln!(text, "{key} = {value}").unwrap();
            }
        }
        text + &self.tables
    }

    /// Writes the files of one gateway to a folder, and says where its configuration is.
    pub(crate) fn write(&self, dir: &Path, listen: SocketAddr, admin: SocketAddr) -> PathBuf {
        let config = dir.join("sekisho.toml");
        fs::write(&config, self.toml(dir, listen, admin)).unwrap();
        fs::write(dir.join("rules.json"), &self.rules).unwrap();
        config
    }

    /// Starts a gateway and waits until it is ready to take traffic.
    pub(crate) async fn start(&self) -> Gateway {
        // A port can be taken between the look and the start.
        for _ in 0..3 {
            let mut gateway = self.spawn();
            if gateway.ready().await {
                return gateway;
            }
            assert!(gateway.code() == Some(3), "the gateway does not start:\n{}", gateway.log());
        }
        panic!("three times a port was taken");
    }

    /// Starts several gateways on the same Redis or database.
    pub(crate) async fn start_many(&self, count: usize) -> Vec<Gateway> {
        let mut gateways = Vec::new();
        for _ in 0..count {
            gateways.push(self.start().await);
        }
        gateways
    }

    /// Starts the process and waits for nothing.
    pub(crate) fn spawn(&self) -> Gateway {
        let dir = TempDir::new().unwrap();
        let (listen, admin) = (free_address(), free_address());
        let config = self.write(dir.path(), listen, admin);
        let log = File::create(dir.path().join("log")).unwrap();
        let mut command = match self.descriptors {
            None => Command::new(BINARY),
            Some(most) => {
                // It becomes the gateway, so the process stays the same.
                let mut command = Command::new("prlimit");
                command.arg(format!("--nofile={most}:{most}")).arg(BINARY);
                command
            }
        };
        let child = command
            .arg("run")
            .arg("-c")
            .arg(&config)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Gateway { child, address: listen, admin, dir }
    }
}

/// One gateway process; killed when dropped.
pub(crate) struct Gateway {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    dir: TempDir,
}

impl Gateway {
    async fn ready(&mut self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if self.code().is_some() {
                return false;
            }
            if TcpStream::connect_timeout(&self.admin, Duration::from_millis(200)).is_ok()
                && get(self.admin, "/readyz", &[]).await.status == 200
            {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("not ready within 20 s:\n{}", self.log());
    }

    /// The exit code, when it has ended.
    pub(crate) fn code(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap().and_then(|status| status.code())
    }

    /// Everything it has written to standard output and error.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.path().join("log")).unwrap()).into_owned()
    }

    /// A file of its folder, such as `rules.json`.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write_rules(&self, json: &str) {
        fs::write(self.file("rules.json"), json).unwrap();
    }

    /// GET for a tenant, on a connection of its own.
    pub(crate) async fn get(&self, path: &str, tenant: &str) -> Response {
        get(self.address, path, &[("X-Api-Key", tenant)]).await
    }

    /// Any method for a tenant, on a connection of its own.
    pub(crate) async fn ask(&self, method: &str, path: &str, tenant: &str) -> Response {
        send(self.address, &request(method, path, &[("X-Api-Key", tenant)])).await
    }

    /// How many of so many requests, one after the other on one connection, get this status.
    pub(crate) async fn spend(&self, path: &str, tenant: &str, requests: usize) -> Vec<Response> {
        let mut connection = super::Connection::open(self.address).await;
        let mut answers = Vec::with_capacity(requests);
        for _ in 0..requests {
            answers.push(connection.get(path, &[("X-Api-Key", tenant)]).await.unwrap());
        }
        answers
    }

    pub(crate) async fn metrics(&self) -> String {
        get(self.admin, "/metrics", &[]).await.text()
    }

    /// The sum of all series of a metric whose labels contain every one of these texts.
    pub(crate) async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.metrics().await;
        text.lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
            .filter(|line| labels.iter().all(|label| line.contains(label)))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    pub(crate) async fn status(&self) -> serde_json::Value {
        get(self.admin, "/api/v1/status", &[]).await.json()
    }

    /// Waits until the log contains a text.
    pub(crate) async fn logged(&self, text: &str) {
        eventually(&format!("{text:?} in the log"), Duration::from_secs(10), || async {
            self.log().contains(text).then_some(())
        })
        .await;
    }

    /// Its process id.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// A line of `/proc/PID/status` that counts in kB, such as `VmRSS`.
    pub(crate) fn memory_kb(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Open file descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for it to end by itself.
    pub(crate) async fn ended(&mut self, within: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + within;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        None
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // At once: a drain would only cost time, and there is nothing to lose.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let from = lines.len().saturating_sub(40);
            eprintln!("--- end of the log of gateway {} ---\n{}", self.address, lines[from..].join("\n"));
        }
    }
}
