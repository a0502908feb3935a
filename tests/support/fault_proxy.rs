//! A TCP proxy between a gateway and Redis that loses, delays and cuts.
//!
//! TCP loses nothing from the middle of a stream, so neither does this: what is lost is the rest of a connection in one
//! direction. What a gateway sent and was delayed reaches Redis also when the gateway has closed in the meantime.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::sleep;

/// What happens to a connection at the next bytes that the gateway sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// They arrive late, and so does what follows them.
    LateRequest(Duration),
    /// They arrive, the reply does so late.
    LateReply(Duration),
    /// They are lost, and all that follows.
    LoseRequest,
    /// They arrive and are executed; the reply is lost, and every later one.
    LoseReply,
    /// They arrive and are executed; instead of the reply the connection closes.
    HangUp,
    /// They are lost, and the connection is reset.
    Reset,
    /// They are lost; each command in them is answered with these bytes.
    Answer(&'static str),
}

/// Faults that come by themselves: each connection meets one of `faults` again and again, `every` so often.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) every: Range<Duration>,
    pub(crate) faults: Vec<Fault>,
}

#[derive(Debug)]
struct Shared {
    target: Mutex<SocketAddr>,
    always: Mutex<Option<Fault>>,
    plan: Mutex<Option<Plan>>,
    random: Mutex<SmallRng>,
    connections: Mutex<Vec<Arc<Connection>>>,
    swallow: AtomicBool,
    struck: AtomicU64,
}

/// The faults of one connection.
#[derive(Debug, Default)]
struct Connection {
    next: Mutex<Option<Fault>>,
    /// How late the next reply is.
    late: Mutex<Option<Duration>>,
    /// Nothing reaches the gateway any more.
    deaf: AtomicBool,
    /// Both ends are to be closed.
    cut: tokio::sync::Notify,
    over: AtomicBool,
}

/// Listens on a port of its own; ends with the runtime that it was started on.
#[derive(Clone, Debug)]
pub(crate) struct FaultProxy {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

impl FaultProxy {
    /// Passes everything to Redis at this URL, until told otherwise.
    pub(crate) async fn start(url: &str, seed: u64) -> Self {
        let target = address_of(url);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            always: Mutex::new(None),
            plan: Mutex::new(None),
            random: Mutex::new(SmallRng::seed_from_u64(seed)),
            connections: Mutex::default(),
            swallow: AtomicBool::new(false),
            struck: AtomicU64::new(0),
        });
        let of_task = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&of_task).carry(client));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// From now on this plan, or no more faults, for connections to come; those that lost something stay as they are.
    pub(crate) fn plan(&self, plan: Option<Plan>) {
        if plan.is_none() {
            for connection in &*self.shared.connections.lock() {
                *connection.next.lock() = None;
            }
        }
        *self.shared.plan.lock() = plan;
    }

    /// Every open connection meets this fault at its next bytes.
    pub(crate) fn strike(&self, fault: Fault) {
        for connection in &*self.shared.connections.lock() {
            *connection.next.lock() = Some(fault);
        }
    }

    /// From now on every connection meets this fault at all bytes, or none any more.
    pub(crate) fn always(&self, fault: Option<Fault>) {
        *self.shared.always.lock() = fault;
    }

    /// Connections to come are carried to Redis at this URL; open ones stay where they are.
    pub(crate) fn retarget(&self, url: &str) {
        *self.shared.target.lock() = address_of(url);
    }

    /// Whether everything is swallowed, in both directions; connections that lost bytes by it stay lost.
    pub(crate) fn swallow(&self, swallow: bool) {
        self.shared.swallow.store(swallow, Ordering::SeqCst);
    }

    /// Faults that have happened.
    pub(crate) fn struck(&self) -> u64 {
        self.shared.struck.load(Ordering::SeqCst)
    }
}

fn address_of(url: &str) -> SocketAddr {
    url.trim_start_matches("redis://").parse().expect("an address")
}

/// Whole commands at the start of what a client sent.
fn commands(bytes: &[u8]) -> usize {
    fn skip(bytes: &[u8]) -> Option<&[u8]> {
        let (head, mut rest) = line(bytes)?;
        for _ in 0..number(head.strip_prefix(b"*")?)? {
            let (head, body) = line(rest)?;
            rest = body.get(number(head.strip_prefix(b"$")?)? + 2..)?;
        }
        Some(rest)
    }
    fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        Some((&bytes[..end], &bytes[end + 2..]))
    }
    fn number(digits: &[u8]) -> Option<usize> {
        std::str::from_utf8(digits).ok()?.parse().ok()
    }
    std::iter::successors(skip(bytes), |rest| skip(rest)).count()
}

impl Shared {
    async fn carry(self: Arc<Self>, client: TcpStream) {
        // Like a server that is away: the connection closes.
        let target = *self.target.lock();
        let Ok(server) = TcpStream::connect(target).await else { return };
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
        }
        let connection = Arc::new(Connection::default());
        self.connections.lock().push(Arc::clone(&connection));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let (own_answers, answers) = mpsc::unbounded_channel();
        tokio::join!(
            self.requests(&connection, from_client, to_server, own_answers),
            self.replies(&connection, from_server, to_client, answers),
            self.mishaps(&connection),
        );
        self.connections.lock().retain(|other| !Arc::ptr_eq(other, &connection));
    }

    /// Draws a fault from the plan again and again.
    async fn mishaps(&self, connection: &Connection) {
        while !connection.over.load(Ordering::SeqCst) {
            let drawn = self.plan.lock().as_ref().map(|plan| {
                let mut random = self.random.lock();
                let fault = plan.faults[random.random_range(0..plan.faults.len())];
                (random.random_range(plan.every.clone()), fault)
            });
            let Some((wait, fault)) = drawn else {
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            sleep(wait).await;
            *connection.next.lock() = Some(fault);
        }
    }

    async fn requests(
        &self,
        connection: &Connection,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        answers: mpsc::UnboundedSender<Vec<u8>>,
    ) {
        let mut lost = false;
        let mut bytes = vec![0; 65_536];
        loop {
            let count = tokio::select! {
                count = from.read(&mut bytes) => count.unwrap_or(0),
                () = connection.cut.notified() => 0,
            };
            if count == 0 {
                break;
            }
            if self.swallow.load(Ordering::SeqCst) {
                (lost, _) = (true, connection.deaf.store(true, Ordering::SeqCst));
            }
            let fault = connection.next.lock().take().or(*self.always.lock());
            let mut passes = true;
            self.struck.fetch_add(u64::from(fault.is_some()), Ordering::SeqCst);
            match fault {
                None => {}
                Some(Fault::LateRequest(late)) => sleep(late).await,
                Some(Fault::LateReply(late)) => *connection.late.lock() = Some(late),
                Some(Fault::LoseRequest) => lost = true,
                Some(Fault::LoseReply) => connection.deaf.store(true, Ordering::SeqCst),
                Some(Fault::HangUp) => {
                    connection.deaf.store(true, Ordering::SeqCst);
                    let _ = to.write_all(&bytes[..count]).await;
                    sleep(Duration::from_millis(2)).await;
                    break;
                }
                Some(Fault::Reset) => {
                    let _ = from.as_ref().set_zero_linger();
                    break;
                }
                Some(Fault::Answer(answer)) => {
                    passes = false;
                    let _ = answers.send(answer.repeat(commands(&bytes[..count])).into_bytes());
                }
            }
            if passes && !lost && to.write_all(&bytes[..count]).await.is_err() {
                break;
            }
        }
        connection.over.store(true, Ordering::SeqCst);
        connection.cut.notify_waiters();
    }

    async fn replies(
        &self,
        connection: &Connection,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        mut answers: mpsc::UnboundedReceiver<Vec<u8>>,
    ) {
        let mut bytes = vec![0; 65_536];
        while !connection.over.load(Ordering::SeqCst) {
            let count = tokio::select! {
                count = from.read(&mut bytes) => count.unwrap_or(0),
                Some(answer) = answers.recv() => {
                    if to.write_all(&answer).await.is_err() {
                        break;
                    }
                    continue;
                }
                () = connection.cut.notified() => 0,
            };
            let late = connection.late.lock().take();
            if let Some(late) = late {
                sleep(late).await;
            }
            let deaf = connection.deaf.load(Ordering::SeqCst) || self.swallow.load(Ordering::SeqCst);
            connection.deaf.store(deaf, Ordering::SeqCst);
            if count == 0 || (!deaf && to.write_all(&bytes[..count]).await.is_err()) {
                break;
            }
        }
        // The gateway hears of the end; what it sent before still reaches Redis.
        if !connection.deaf.load(Ordering::SeqCst) || connection.over.load(Ordering::SeqCst) {
            let _ = to.shutdown().await;
        }
    }
}
