//! An upstream that counts what reaches it and misbehaves on demand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::client::find;

/// How the upstream answers.
#[derive(Clone, Debug)]
pub(crate) enum Behaviour {
    /// 200 with a small body.
    Normal,
    /// 200 with `X-RateLimit-*` headers of its own, twice.
    OwnLimitHeaders,
    /// 200 after this long.
    Slow(Duration),
    /// Reads the request, then closes without a word.
    CloseEarly,
    /// Promises more body than it sends, then closes.
    PromisesTooMuch,
    /// Sends more body than it promised.
    SendsTooMuch,
    /// Bytes that are not HTTP.
    Garbage,
    /// A 103 with limit headers of its own, then a 200.
    EarlyHints,
    /// 200 with a body that ends with the connection.
    UntilClose,
}

#[derive(Debug)]
struct Shared {
    requests: AtomicU64,
    connections: AtomicU64,
    heads: Mutex<Vec<String>>,
    behaviour: Mutex<Behaviour>,
    /// Requests whose head contains this line are counted apart.
    mark: Option<&'static str>,
    marked: AtomicU64,
}

/// A server on a port of its own; ends with the test's runtime.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

impl Upstream {
    pub(crate) async fn start(behaviour: Behaviour) -> Self {
        Self::new(behaviour, None).await
    }

    /// A normal one that also counts requests with this header line.
    pub(crate) async fn marking(line: &'static str) -> Self {
        Self::new(Behaviour::Normal, Some(line)).await
    }

    async fn new(behaviour: Behaviour, mark: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            requests: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            heads: Mutex::new(Vec::new()),
            behaviour: Mutex::new(behaviour),
            mark,
            marked: AtomicU64::new(0),
        });
        let of_task = shared.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                of_task.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, of_task.clone()));
            }
        });
        Self { address, shared }
    }

    pub(crate) async fn normal() -> Self {
        Self::start(Behaviour::Normal).await
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) {
        *self.shared.behaviour.lock() = behaviour;
    }

    /// Requests that arrived with a whole head.
    pub(crate) fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// Those of them with the line to look for.
    pub(crate) fn marked(&self) -> u64 {
        self.shared.marked.load(Ordering::SeqCst)
    }

    /// The heads of the first requests, as they arrived.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.shared.heads.lock().clone()
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let mut unread = Vec::new();
    while let Some(end) = head_end(&mut stream, &mut unread).await {
        let head = String::from_utf8_lossy(&unread[..end]).into_owned();
        unread.drain(..end);
        shared.requests.fetch_add(1, Ordering::SeqCst);
        let lower = head.to_ascii_lowercase();
        if shared.mark.is_some_and(|mark| lower.contains(&mark.to_ascii_lowercase())) {
            shared.marked.fetch_add(1, Ordering::SeqCst);
        }
        {
            let mut heads = shared.heads.lock();
            if heads.len() < 1000 {
                heads.push(head);
            }
        }
        // RFC 9110 section 10.1.1: a server that has not seen the body yet asks for it.
        let asks = lower.contains("\r\nexpect: 100-continue\r\n") && unread.is_empty();
        if asks && stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.is_err() {
            return;
        }
        if !skip_body(&mut stream, &mut unread, &lower).await {
            return;
        }
        let behaviour = shared.behaviour.lock().clone();
        let (answer, close): (&[u8], bool) = match behaviour {
            Behaviour::Normal => (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n", false),
            Behaviour::OwnLimitHeaders => (
                b"HTTP/1.1 200 OK\r\nX-RateLimit-Remaining: 777777\r\nX-RateLimit-Limit: 999999\r\n\
                  x-ratelimit-remaining: 888888\r\nContent-Length: 3\r\n\r\nok\n",
                false,
            ),
            Behaviour::Slow(wait) => {
                tokio::time::sleep(wait).await;
                (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n", false)
            }
            Behaviour::CloseEarly => (b"", true),
            Behaviour::PromisesTooMuch => (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nok\n", true),
            Behaviour::SendsTooMuch => (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\nHTTP/1.1 200 smuggled", true),
            Behaviour::EarlyHints => (
                b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nX-RateLimit-Limit: 999999\r\n\r\n\
                  HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n",
                false,
            ),
            Behaviour::UntilClose => (b"HTTP/1.1 200 OK\r\n\r\nok\n", true),
            Behaviour::Garbage => (b"\x00\x01\x02 this is not HTTP \xff\xfe\r\n\r\n", true),
        };
        if stream.write_all(answer).await.is_err() || close {
            return;
        }
    }
}

async fn head_end(stream: &mut TcpStream, unread: &mut Vec<u8>) -> Option<usize> {
    loop {
        if let Some(at) = find(unread, b"\r\n\r\n") {
            return Some(at + 4);
        }
        if stream.read_buf(unread).await.ok()? == 0 {
            return None;
        }
    }
}

/// Reads over the request's body; `false` when the gateway broke off within it.
async fn skip_body(stream: &mut TcpStream, unread: &mut Vec<u8>, head: &str) -> bool {
    let value = |name: &str| head.split("\r\n").find_map(|line| line.strip_prefix(name)).map(str::trim);
    let length = value("content-length:").and_then(|v| v.parse::<usize>().ok());
    let chunked = value("transfer-encoding:").is_some();
    loop {
        let end = match length {
            _ if chunked => {
                if unread.starts_with(b"0\r\n\r\n") {
                    Some(5)
                } else {
                    find(unread, b"\r\n0\r\n\r\n").map(|at| at + 7)
                }
            }
            Some(length) => (unread.len() >= length).then_some(length),
            None => Some(0),
        };
        if let Some(end) = end {
            unread.drain(..end);
            return true;
        }
        if !matches!(stream.read_buf(unread).await, Ok(n) if n > 0) {
            return false;
        }
    }
}
