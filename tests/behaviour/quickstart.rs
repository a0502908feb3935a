//! The configuration as shipped, and the first commands of the documentation.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{BINARY, eventually, free_address, request, sekisho, send};

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[tokio::test]
async fn the_shipped_configuration_answers_200_200_429() {
    let dir = TempDir::new().unwrap();
    let (listen, admin) = (free_address(), free_address());
    fs::create_dir(dir.path().join("conf")).unwrap();
    let shipped = fs::read_to_string(Path::new(ROOT).join("conf/sekisho.toml")).unwrap();
    assert!(shipped.contains("127.0.0.1:8080"), "the documentation promises port 8080");
    let placed = shipped.replace("127.0.0.1:8080", &listen.to_string()).replace("127.0.0.1:9180", &admin.to_string());
    fs::write(dir.path().join("conf/sekisho.toml"), placed).unwrap();
    fs::copy(Path::new(ROOT).join("conf/rules.json"), dir.path().join("conf/rules.json")).unwrap();

    let log = File::create(dir.path().join("log")).unwrap();
    let _gateway = Killed(
        Command::new(BINARY)
            .arg("run")
            .current_dir(dir.path())
            .env_remove("SEKISHO_DATABASE_URL")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap(),
    );
    eventually("it listens", Duration::from_secs(20), || async { TcpStream::connect(listen).ok() }).await;

    let ask = request("POST", "/orders", &[("X-Api-Key", "shop-demo")]);
    let answers = [send(listen, &ask).await, send(listen, &ask).await, send(listen, &ask).await];
    let statuses: Vec<u16> = answers.iter().map(|a| a.status).collect();
    assert_eq!(statuses, [200, 200, 429], "{}", fs::read_to_string(dir.path().join("log")).unwrap());
    let denied = &answers[2];
    assert_eq!(denied.number("X-RateLimit-Limit"), 2);
    assert_eq!(denied.number("X-RateLimit-Remaining"), 0);
    assert!(denied.number("Retry-After") >= 1);
    assert_eq!(denied.header("Cache-Control"), Some("no-store"));
    assert_eq!(denied.number("Content-Length"), denied.body.len() as u64);
    assert_eq!(denied.header("Content-Type"), Some("application/problem+json"));
    assert!(!denied.closes(), "{denied:?}");
    let problem = denied.json();
    assert_eq!(problem["status"], 429, "{problem}");
    let policies = problem["violated-policies"].as_array().unwrap_or_else(|| panic!("{problem}"));
    assert!(policies.iter().all(|name| name.as_str().is_some_and(|name| name.contains('/'))), "{problem}");
    assert_eq!(policies.len(), 1, "{problem}");
}

#[test]
fn the_shipped_configuration_and_rules_pass_the_check() {
    let run = Command::new(BINARY).arg("check").current_dir(ROOT).output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert_eq!(run.status.code(), Some(0), "{said}{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(said.lines().count(), 1, "one summary line: {said}");
}

#[test]
fn version_and_help_are_as_usual() {
    let version = sekisho(&["--version"]);
    assert_eq!((version.code, version.stdout.trim()), (Some(0), concat!("sekisho ", env!("CARGO_PKG_VERSION"))));
    let help = sekisho(&["--help"]);
    assert_eq!(help.code, Some(0));
    for command in ["run", "check", "explain"] {
        assert!(help.stdout.contains(command), "{}", help.stdout);
    }
}
