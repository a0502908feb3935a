//! PgBouncer before the PostgreSQL of the tests.

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::{eventually, free_address};

/// Killed when dropped.
pub(crate) struct PgBouncer {
    child: Child,
    /// Of the database, through the pooler.
    pub(crate) url: String,
    _dir: TempDir,
}

impl PgBouncer {
    /// Before the database of this URL; `mode` is its `pool_mode`.
    pub(crate) async fn start(url: &str, mode: &str) -> Self {
        let (server, name) = url.rsplit_once('/').unwrap();
        let (_, server) = server.rsplit_once('@').unwrap();
        let (host, port) = server.rsplit_once(':').unwrap();
        let (dir, address) = (TempDir::new().unwrap(), free_address());
        let file = dir.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n{name} = host={host} port={port} dbname={name} user=postgres\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {}\nauth_type = any\npool_mode = {mode}\nunix_socket_dir =\n",
            address.port()
        );
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = "/usr/sbin/pgbouncer";
        // It refuses to run as root.
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
        let mut command = if is_root {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups", program]);
            command
        } else {
            Command::new(program)
        };
        let child = command
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("pgbouncer is not installed: run through scripts/services.sh");
        eventually("the pooler listens", Duration::from_secs(10), || async {
            std::net::TcpStream::connect(address).ok().map(drop)
        })
        .await;
        Self { child, url: format!("postgres://postgres@{address}/{name}"), _dir: dir }
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
