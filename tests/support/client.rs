//! A raw HTTP/1.1 client: what goes out is written byte by byte, what comes back is kept as it came, so that doubled
//! headers, closed connections and malformed answers show.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than anything the gateway should ever take, shorter than a person's patience.
const PATIENCE: Duration = Duration::from_secs(15);

/// One answer.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// In the order of the wire, duplicates and all.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// All values of a header.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str()).collect()
    }

    /// The value of a header that must not be there twice.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() <= 1, "{name} is there {} times: {self:?}", all.len());
        all.first().copied()
    }

    /// A header that must be there once and be a plain number: `^\d+$`.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let text = self.header(name).unwrap_or_else(|| panic!("no {name}: {self:?}"));
        assert!(!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()), "{name} is {text:?}");
        text.parse().unwrap()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("not JSON ({e}): {self:?}"))
    }

    pub(crate) fn closes(&self) -> bool {
        self.all("connection").iter().any(|v| v.eq_ignore_ascii_case("close"))
    }
}

/// The bytes of a request without a body.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: gateway.test\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.into_bytes()
}

/// One GET on a connection of its own.
pub(crate) async fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Response {
    send(address, &request("GET", path, headers)).await
}

/// Any bytes on a connection of their own, and the first answer to them.
pub(crate) async fn send(address: SocketAddr, bytes: &[u8]) -> Response {
    let mut connection = Connection::open(address).await;
    connection.write(bytes).await;
    connection
        .read(bytes.starts_with(b"HEAD "))
        .await
        .unwrap_or_else(|e| panic!("no answer to {:?}: {e}", String::from_utf8_lossy(&bytes[..bytes.len().min(200)])))
}

/// A connection that stays open for as long as the gateway lets it.
pub(crate) struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap_or_else(|e| panic!("connecting to {address}: {e}"));
        stream.set_nodelay(true).unwrap();
        Self { stream, unread: Vec::new() }
    }

    /// Which connection this is, as the other side sees it.
    pub(crate) fn local_address(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }

    /// Sends bytes; a gateway that has already closed shows when the answer is read.
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        let _ = tokio::time::timeout(PATIENCE, self.stream.write_all(bytes)).await.expect("the gateway reads nothing");
    }

    /// Sends bytes for as long as the gateway takes them; `false` when it closed.
    pub(crate) async fn try_write(&mut self, bytes: &[u8]) -> bool {
        matches!(tokio::time::timeout(PATIENCE, self.stream.write_all(bytes)).await, Ok(Ok(())))
    }

    /// GET and read the answer.
    pub(crate) async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Result<Response, String> {
        self.write(&request("GET", path, headers)).await;
        self.read(false).await
    }

    /// Reads one answer, interim ones included.
    pub(crate) async fn read(&mut self, to_head: bool) -> Result<Response, String> {
        tokio::time::timeout(PATIENCE, self.read_unbounded(to_head))
            .await
            .unwrap_or_else(|_| Err(format!("nothing complete within {PATIENCE:?}: {:?}", self.seen())))
    }

    /// Reads everything until the gateway closes.
    pub(crate) async fn read_to_end(&mut self) -> Vec<u8> {
        tokio::time::timeout(PATIENCE, async { while self.fill().await.unwrap_or(0) > 0 {} })
            .await
            .expect("the gateway keeps the connection open");
        std::mem::take(&mut self.unread)
    }

    async fn read_unbounded(&mut self, to_head: bool) -> Result<Response, String> {
        let end = loop {
            if let Some(at) = find(&self.unread, b"\r\n\r\n") {
                break at + 4;
            }
            if self.fill().await? == 0 {
                return Err(format!("closed before a whole head: {:?}", self.seen()));
            }
        };
        let head = String::from_utf8_lossy(&self.unread[..end]).into_owned();
        self.unread.drain(..end);
        let mut lines = head.trim_end().split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let status = status_line
            .strip_prefix("HTTP/1.1 ")
            .or_else(|| status_line.strip_prefix("HTTP/1.0 "))
            .and_then(|rest| rest.get(..3))
            .and_then(|code| code.parse().ok())
            .ok_or_else(|| format!("not a status line: {status_line:?}"))?;
        let headers = lines
            .map(|line| line.split_once(':').map(|(n, v)| (n.to_owned(), v.trim().to_owned())))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| format!("not a header: {head:?}"))?;
        let mut response = Response { status, headers, body: Vec::new() };
        let bodiless = to_head || status < 200 || status == 204 || status == 304;
        if !bodiless {
            response.body = self.body(&response).await?;
        }
        Ok(response)
    }

    async fn body(&mut self, response: &Response) -> Result<Vec<u8>, String> {
        if response.header("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked")) {
            let mut body = Vec::new();
            loop {
                let size = self.line().await?;
                let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)
                    .map_err(|_| format!("not a chunk size: {size:?}"))?;
                body.extend(self.exactly(size).await?);
                self.line().await?;
                if size == 0 {
                    return Ok(body);
                }
            }
        }
        if let Some(length) = response.header("content-length") {
            let length = length.parse().map_err(|_| format!("not a length: {length:?}"))?;
            return self.exactly(length).await;
        }
        while self.fill().await? > 0 {}
        Ok(std::mem::take(&mut self.unread))
    }

    async fn line(&mut self) -> Result<String, String> {
        loop {
            if let Some(at) = find(&self.unread, b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..at + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            if self.fill().await? == 0 {
                return Err("closed within a chunked body".into());
            }
        }
    }

    async fn exactly(&mut self, length: usize) -> Result<Vec<u8>, String> {
        while self.unread.len() < length {
            if self.fill().await? == 0 {
                return Err(format!("closed after {} of {length} bytes of body", self.unread.len()));
            }
        }
        Ok(self.unread.drain(..length).collect())
    }

    async fn fill(&mut self) -> Result<usize, String> {
        self.stream.read_buf(&mut self.unread).await.map_err(|e| format!("reading: {e}"))
    }

    fn seen(&self) -> String {
        String::from_utf8_lossy(&self.unread[..self.unread.len().min(300)]).into_owned()
    }
}

pub(crate) fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}
