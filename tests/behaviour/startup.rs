//! Faults before the first request: what is said, where it points, which exit code.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::support::{Run, Setup, Upstream, free_address, sekisho};

fn nobody() -> SocketAddr {
    ([127, 0, 0, 1], 9).into()
}

fn said(run: &Run) -> String {
    format!("{}{}", run.stdout, run.stderr)
}

fn write(dir: &Path, text: &str) -> PathBuf {
    let config = dir.join("sekisho.toml");
    std::fs::write(&config, text).unwrap();
    std::fs::write(dir.join("rules.json"), "[]").unwrap();
    config
}

const FAULTS: &str = r#"[server]
listen = ["127.0.0.1:8080"]
threads = "four"
[admin]
listen = "0.0.0.0:9180"
[store]
timeuot = "5ms"
timeout = "soon"
[limiter]
default_rule = { capacity = 0, refill_per_second = 10 }
on_store_failure = "panic"
[[route]]
id = "a"
path = "/a"
upstream = "nowhere"
[[route]]
id = "a"
path = "no-slash"
upstream = "main"
[upstream.main]
servers = ["127.0.0.1"]
balance = "fastest"
"#;

/// Line and key of every fault above.
const PLACES: &[(usize, &str)] = &[
    (3, "threads"),
    (5, "listen"),
    (7, "timeuot"),
    (8, "timeout"),
    (10, "default_rule"),
    (11, "on_store_failure"),
    (15, "upstream"),
    (17, "id"),
    (18, "path"),
    (21, "servers"),
    (22, "balance"),
];

#[test]
fn every_fault_is_named_in_one_go_by_file_line_and_key() {
    let dir = TempDir::new().unwrap();
    let config = write(dir.path(), FAULTS);
    let config = config.to_str().unwrap();
    for arguments in [vec!["check", "-c", config], vec!["run", "-t", "-c", config], vec!["run", "-c", config]] {
        let run = sekisho(&arguments);
        assert_eq!(run.code, Some(1), "{arguments:?}: {}", said(&run));
        let said = said(&run);
        for (line, key) in PLACES {
            let place = format!("{config}:{line}: ");
            let named = said.lines().any(|l| l.starts_with(&place) && l[place.len()..].contains(key));
            assert!(named, "{arguments:?} does not name {key} in line {line}:\n{said}");
        }
    }
}

#[test]
fn a_syntax_error_points_at_its_line() {
    let dir = TempDir::new().unwrap();
    let config = write(dir.path(), "[server]\nlisten = [\"127.0.0.1:8080\"\n[admin]\n");
    let run = sekisho(&["check", "-c", config.to_str().unwrap()]);
    assert_eq!(run.code, Some(1));
    let said = said(&run);
    assert!(said.contains("sekisho.toml:2:") || said.contains("sekisho.toml:3:"), "{said}");
}

#[test]
fn an_unreadable_file_is_named() {
    let dir = TempDir::new().unwrap();
    for path in [dir.path().join("absent.toml"), dir.path().to_path_buf()] {
        for command in ["check", "run"] {
            let run = sekisho(&[command, "-c", path.to_str().unwrap()]);
            assert_eq!(run.code, Some(1), "{}", said(&run));
            assert!(said(&run).contains(path.to_str().unwrap()), "{}", said(&run));
        }
    }
    let config = dir.path().join("latin1.toml");
    std::fs::write(&config, b"[server]\n# caf\xe9\n").unwrap();
    let run = sekisho(&["check", "-c", config.to_str().unwrap()]);
    assert_eq!(run.code, Some(1), "{}", said(&run));
    assert!(said(&run).contains("latin1.toml"), "{}", said(&run));
}

#[test]
fn bad_usage_is_exit_code_2() {
    for arguments in [vec![], vec!["rnu"], vec!["run", "--no-such-flag"], vec!["explain"]] {
        let run = sekisho(&arguments);
        assert_eq!(run.code, Some(2), "{arguments:?}: {}", said(&run));
        assert!(!run.stderr.is_empty());
    }
}

#[test]
fn a_port_in_use_is_exit_code_3_with_one_line_that_names_it() {
    let listener = TcpListener::bind(free_address()).unwrap();
    let address = listener.local_addr().unwrap();
    for (listen, admin) in [(address, free_address()), (free_address(), address)] {
        let dir = TempDir::new().unwrap();
        let config = Setup::new(nobody()).write(dir.path(), listen, admin);
        let run = sekisho(&["run", "-c", config.to_str().unwrap()]);
        assert_eq!(run.code, Some(3), "{}", said(&run));
        let lines = run.stderr.lines().filter(|line| line.contains(&address.to_string())).count();
        assert_eq!(lines, 1, "{}", said(&run));
        assert!(!said(&run).contains("panicked"), "{}", said(&run));
    }
}

#[test]
fn a_pid_file_that_cannot_be_written_ends_the_start_in_the_background_with_one_line_that_names_it() {
    let dir = TempDir::new().unwrap();
    let pid_file = dir.path().join("no-such-folder/pid");
    let config = Setup::new(nobody()).write(dir.path(), free_address(), free_address());
    let text = std::fs::read_to_string(&config).unwrap();
    let at = format!("{:?}", dir.path().join("pid").display().to_string());
    std::fs::write(&config, text.replace(&at, &format!("{:?}", pid_file.display().to_string()))).unwrap();
    let run = sekisho(&["run", "-d", "-c", config.to_str().unwrap()]);
    assert_eq!(run.code, Some(3), "{}", said(&run));
    let lines = run.stderr.lines().filter(|line| line.contains(&pid_file.display().to_string())).count();
    assert_eq!(lines, 1, "{}", said(&run));
    assert!(!said(&run).contains("panicked"), "{}", said(&run));
}

#[test]
fn strings_come_from_the_environment() {
    let dir = TempDir::new().unwrap();
    let config = Setup::new(nobody()).set("store", "key_prefix", "\"${SEKISHO_TEST_NO_SUCH_NAME:-fallback}\"").write(
        dir.path(),
        nobody(),
        free_address(),
    );
    let run = sekisho(&["check", "-c", config.to_str().unwrap()]);
    assert_eq!(run.code, Some(0), "{}", said(&run));
    let config = Setup::new(nobody()).set("store", "key_prefix", "\"${SEKISHO_TEST_NO_SUCH_NAME}\"").write(
        dir.path(),
        nobody(),
        free_address(),
    );
    let run = sekisho(&["check", "-c", config.to_str().unwrap()]);
    assert_eq!(run.code, Some(1), "{}", said(&run));
    assert!(said(&run).contains("SEKISHO_TEST_NO_SUCH_NAME"), "{}", said(&run));
}

#[test]
fn a_secret_in_the_configuration_is_not_repeated_in_a_fault() {
    let dir = TempDir::new().unwrap();
    let config = Setup::new(nobody())
        .set("store", "url", "\"redis://:hunter2@127.0.0.1:not-a-port\"")
        .set("rules", "database_url", "\"postgres://user:hunter3@:::/x?nonsense=1\"")
        .write(dir.path(), nobody(), free_address());
    let run = sekisho(&["check", "-c", config.to_str().unwrap()]);
    assert_eq!(run.code, Some(1), "{}", said(&run));
    assert!(said(&run).contains("url"), "{}", said(&run));
    assert!(!said(&run).contains("hunter"), "{}", said(&run));
}

#[tokio::test]
async fn a_good_configuration_passes_with_one_line() {
    let upstream = Upstream::normal().await;
    let dir = TempDir::new().unwrap();
    let config = Setup::new(upstream.address).write(dir.path(), free_address(), free_address());
    for arguments in [["check", "-c"], ["run", "-tc"]] {
        let run = sekisho(&[&arguments[..], &[config.to_str().unwrap()]].concat());
        assert_eq!(run.code, Some(0), "{}", said(&run));
        assert_eq!(run.stdout.lines().count(), 1, "{}", said(&run));
    }
}
