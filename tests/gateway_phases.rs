//! The phases of a request against a gateway in this process, over real sockets: what clients and upstreams see when all
//! is well, and when one of them misbehaves.

#![allow(clippy::unwrap_used, reason = "also in the functions that tests call")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server, ShutdownSignal, ShutdownSignalWatch};
use pingora_proxy::http_proxy_service;
use sekisho::bucket::Limit;
use sekisho::clock::Clock;
use sekisho::config::{self, Balance, IdentityMode, Settings};
use sekisho::gateway::Gateway;
use sekisho::limiter::Limiter;
use sekisho::rules::keys::Keys;
use sekisho::rules::{FailurePolicy, Rule, Rules};
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(10);

/// Stops the server when the test drops its end.
struct UntilDropped(tokio::sync::watch::Receiver<()>);

#[async_trait]
impl ShutdownSignalWatch for UntilDropped {
    async fn recv(&self) -> ShutdownSignal {
        while self.0.clone().changed().await.is_ok() {}
        ShutdownSignal::FastShutdown
    }
}

struct Running {
    address: SocketAddr,
    in_flight: Arc<AtomicUsize>,
    _stop: tokio::sync::watch::Sender<()>,
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A gateway with routes `/echo` (and all below), `/free` (exempt) and `/up/…` to `servers`, 2 tokens per key.
fn gateway(servers: &[SocketAddr]) -> Running {
    let address = free_port();
    let route = |id: &str, path: &str, upstream: &str, limit| config::Route {
        id: id.to_owned(),
        methods: Vec::new(),
        path: path.to_owned(),
        host: None,
        upstream: upstream.to_owned(),
        cost: 1,
        limit,
    };
    let pool = config::Pool {
        servers: servers.iter().map(SocketAddr::to_string).collect(),
        balance: Balance::RoundRobin,
        connect_timeout: Duration::from_secs(1),
        read_timeout: Duration::from_millis(300),
        health_check: None,
        tls: None,
    };
    let settings = settings(
        address,
        vec![
            route("echo", "/echo/{*rest}", "echo", true),
            route("free", "/free", "echo", false),
            route("up", "/up/{*rest}", "up", true),
        ],
        [("echo".to_owned(), config::Upstream::Echo), ("up".to_owned(), config::Upstream::Pool(pool))],
    );
    let (limiter, _) = Limiter::new(&settings.store, &settings.limiter, Clock::monotonic()).unwrap();
    let rules = Arc::new(Rules::new(settings.limiter.default_rule.clone()));
    let (gateway, _upkeep) = Gateway::new(&settings, rules, Arc::new(Keys::default()), Arc::new(limiter)).unwrap();
    let in_flight = gateway.in_flight();
    let (stop, stopped) = tokio::sync::watch::channel(());
    std::thread::spawn(move || {
        let conf = ServerConf { threads: 1, max_retries: 2, ..ServerConf::default() };
        let mut server = Server::new_with_opt_and_conf(None, conf);
        server.bootstrap();
        let mut service = http_proxy_service(&server.configuration, gateway);
        service.add_tcp(&address.to_string());
        server.add_service(service);
        server.run(RunArgs { shutdown_signal: Box::new(UntilDropped(stopped)) });
    });
    wait_until(|| TcpStream::connect(address).is_ok());
    Running { address, in_flight, _stop: stop }
}

fn settings(
    address: SocketAddr,
    routes: Vec<config::Route>,
    upstreams: impl IntoIterator<Item = (String, config::Upstream)>,
) -> Settings {
    let default_rule = Rule::new("*", "*", Limit::new(2, 0.001).unwrap());
    Settings {
        server: config::Server {
            listen: vec![address],
            threads: 1,
            grace_period: Duration::ZERO,
            client: config::ClientTimeouts {
                header: Duration::from_secs(10),
                body: Duration::from_secs(60),
                keepalive: Duration::from_secs(60),
            },
            pid_file: "/dev/null".into(),
            upgrade_socket: "/dev/null".into(),
            tls: Vec::new(),
        },
        admin: config::Admin { listen: address, token: None },
        identity: config::Identity {
            header: "x-api-key".parse().unwrap(),
            mode: IdentityMode::Direct,
            trusted_proxies: Vec::new(),
            ipv6_prefix: 64,
        },
        usage: config::Usage::default(),
        access_log: None,
        store: config::Store { redis: None, timeout: Duration::from_millis(5), key_prefix: "rl".to_owned() },
        headers: config::Headers { ratelimit_draft: false },
        limiter: config::Limiter {
            default_rule,
            max_keys: 1000,
            instances: 1,
            on_store_failure: FailurePolicy::Local,
            prefetch: config::Prefetch { batch: 50, horizon: Duration::from_millis(100), enabled: true },
            breaker: config::Breaker::default(),
        },
        rules: config::Rules::default(),
        routes,
        upstreams: upstreams.into_iter().collect(),
    }
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// An upstream that handles each connection with `serve`, given its number.
fn upstream(serve: impl Fn(usize, &mut Connection) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            serve(number, &mut Connection::over(stream.unwrap()));
        }
    });
    address
}

/// An upstream that answers the only request on each connection with these bytes, and closes.
fn answering(answer: &'static [u8]) -> SocketAddr {
    upstream(move |_, connection| {
        connection.head();
        connection.send(answer);
    })
}

struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(": "))
            .find_map(|(key, value)| key.eq_ignore_ascii_case(name).then_some(value))
    }

    fn remaining(&self) -> Option<&str> {
        self.header("X-RateLimit-Remaining")
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

struct Connection(BufReader<TcpStream>);

impl Connection {
    fn to(gateway: &Running) -> Self {
        Self::over(TcpStream::connect(gateway.address).unwrap())
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// Reads a head, line ends included; empty at the end of the stream.
    fn head(&mut self) -> String {
        let mut head = String::new();
        while self.0.read_line(&mut head).unwrap_or(0) > 2 {}
        head
    }

    fn answer(&mut self, has_body: bool) -> Answer {
        let head = self.head();
        let status = head.split(' ').nth(1).unwrap_or("0").parse().unwrap();
        let mut answer = Answer { status, head, body: Vec::new() };
        let length: usize = answer.header("Content-Length").map_or(0, |text| text.parse().unwrap());
        if has_body {
            answer.body.resize(length, 0);
            self.0.read_exact(&mut answer.body).unwrap();
        }
        answer
    }

    fn exchange(&mut self, request: impl AsRef<[u8]>) -> Answer {
        self.send(request.as_ref());
        self.answer(true)
    }

    fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0))
    }
}

fn request(method: &str, path: &str, key: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: a\r\nX-Api-Key: {key}\r\n\r\n")
}

fn post(path: &str, key: &str, extra: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nX-Api-Key: {key}\r\nContent-Length: {length}\r\n{extra}\r\n{body}")
}

#[test]
fn two_pass_and_the_third_is_denied_all_on_one_connection() {
    let gateway = gateway(&[]);
    let mut client = Connection::to(&gateway);
    for remaining in ["1", "0"] {
        let answer = client.exchange(post("/echo/./a//%62?q=1", "a", "", "12345"));
        assert_eq!((answer.status, answer.remaining()), (200, Some(remaining)));
        let echo =
            serde_json::json!({"method": "POST", "path": "/echo/a/b", "query": "q=1", "host": "a", "body_bytes": 5});
        assert_eq!(answer.json(), echo);
    }
    for _ in 0..2 {
        let denied = client.exchange(post("/echo/a", "a", "", "12345"));
        assert_eq!((denied.status, denied.remaining()), (429, Some("0")));
        assert_eq!(denied.header("X-RateLimit-Limit"), Some("2"));
        assert_eq!(denied.header("Connection"), Some("keep-alive"));
        assert_eq!(denied.json()["violated-policies"], serde_json::json!(["*/*"]));
    }
    client.send(request("HEAD", "/echo/a", "a").as_bytes());
    assert_eq!(client.answer(false).status, 429);
    assert_eq!(client.exchange(request("GET", "/echo/a", "b")).status, 200);
    wait_until(|| gateway.in_flight.load(Ordering::Relaxed) == 0);
}

#[test]
fn a_denial_reaches_a_client_that_is_still_sending_ten_megabytes() {
    let gateway = gateway(&[]);
    for _ in 0..2 {
        Connection::to(&gateway).exchange(request("GET", "/echo/a", "a"));
    }
    let mut client = Connection::to(&gateway);
    client.send(post("/echo/a", "a", "", "").replace("Length: 0", "Length: 10000000").as_bytes());
    for _ in 0..1000 {
        client.send(&[b'x'; 10_000]);
    }
    let answer = client.answer(true);
    assert_eq!((answer.status, answer.header("Connection")), (429, Some("close")));
    assert!(client.is_closed());
}

#[test]
fn a_client_that_waits_for_a_100_gets_the_final_status_at_once() {
    let gateway = gateway(&[]);
    let expecting = |key| {
        format!(
            "POST /echo/a HTTP/1.1\r\nHost: a\r\nX-Api-Key: {key}\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        )
    };
    for remaining in ["1", "0"] {
        let mut client = Connection::to(&gateway);
        assert_eq!(client.exchange(expecting("a")).status, 100);
        let answer = client.exchange("abc");
        assert_eq!((answer.status, answer.remaining()), (200, Some(remaining)));
        assert_eq!(answer.json()["body_bytes"], 3);
    }
    let mut client = Connection::to(&gateway);
    assert_eq!(client.exchange(expecting("a")).status, 429);
    assert!(client.is_closed());
}

#[test]
fn requests_that_name_no_tenant_or_no_route_are_refused_and_spend_nothing() {
    let gateway = gateway(&[]);
    let status = |request: &[u8]| {
        let answer = Connection::to(&gateway).exchange(request);
        assert_eq!(answer.header("X-RateLimit-Limit"), None);
        answer.status
    };
    assert_eq!(status(b"GET /echo/a HTTP/1.1\r\nHost: a\r\n\r\n"), 401);
    assert_eq!(status(request("GET", "/echo/a", " ").as_bytes()), 401);
    assert_eq!(status(request("GET", "/echo/a", "a\r\nX-Api-Key: a").as_bytes()), 400);
    assert_eq!(status(request("GET", "/echo/a", &"a".repeat(65)).as_bytes()), 400);
    assert_eq!(status(b"GET /echo/a HTTP/1.1\r\nHost: a\r\nX-Api-Key: \xff\xfe\r\n\r\n"), 400);
    assert_eq!(status(request("GET", "/other", "a").as_bytes()), 404);
    assert_eq!(status(request("GET", "/echo/%zz", "a").as_bytes()), 400);
    let answer = Connection::to(&gateway).exchange(request("GET", "/echo/a", "a"));
    assert_eq!(answer.remaining(), Some("1"));
}

#[test]
fn an_exempt_route_asks_for_no_key_and_consults_no_bucket() {
    let gateway = gateway(&[]);
    let mut client = Connection::to(&gateway);
    for _ in 0..5 {
        let answer = client.exchange("GET /free HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!((answer.status, answer.remaining()), (200, None));
    }
}

#[test]
fn heads_that_can_be_read_in_two_ways_are_refused() {
    let gateway = gateway(&[]);
    let status = |request: &[u8]| Connection::to(&gateway).exchange(request).status;
    let both = "Transfer-Encoding: chunked\r\n";
    assert_eq!(status(post("/echo/a", "a", both, "0\r\n\r\n").as_bytes()), 400);
    assert_eq!(status(b"GET /echo/a HTTP/1.1\r\nX-Api-Key: a\r\n\r\n"), 400);
    assert_eq!(status(request("GET", "/echo/a", "a\r\nHost: b").as_bytes()), 400);
    let many: String = (0..300).map(|n| format!("\r\nX-{n}: 1")).collect();
    assert_eq!(status(request("GET", "/echo/a", &format!("a{many}")).as_bytes()), 400);
    for length in [60_000, 70_000] {
        let long = status(request("GET", &format!("/echo/{}", "^".repeat(length)), "a").as_bytes());
        assert_eq!(long, 400);
    }
    assert_eq!(status(b"GET /echo/\xff\x80 HTTP/1.1\r\nHost: a\r\nX-Api-Key: a\r\n\r\n"), 400);
    assert_eq!(status(request("GET", "/echo/caf\u{e9}", "a").as_bytes()), 200);
}

#[test]
fn the_upstream_gets_the_normal_path_and_the_true_client_and_its_limit_headers_are_replaced() {
    let upstream = upstream(|_, connection| {
        let head = connection.head();
        let length = head.len();
        connection.send(
            format!("HTTP/1.1 200 OK\r\nX-RateLimit-Limit: 9\r\nX-RateLimit-Limit: 8\r\nContent-Length: {length}\r\n\r\n{head}")
                .as_bytes(),
        );
    });
    let gateway = gateway(&[upstream]);
    let answer =
        Connection::to(&gateway).exchange(request("GET", "/x/..//up/%41?x=%41", "a\r\nX-Forwarded-For: 6.6.6.6"));
    let head = String::from_utf8(answer.body).unwrap();
    assert!(head.starts_with("GET /up/A?x=%41 HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("X-Forwarded-For: 127.0.0.1\r\n") && !head.contains("6.6.6.6"), "{head}");
    assert_eq!(answer.head.matches("X-RateLimit-Limit").count(), 1);
    assert!(answer.head.contains("X-RateLimit-Limit: 2\r\n"), "{}", answer.head);
}

#[test]
fn a_server_that_refuses_is_passed_over_for_any_method() {
    let healthy = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let gateway = gateway(&[free_port(), healthy]);
    for key in ["a", "b", "c", "d"] {
        let answer = Connection::to(&gateway).exchange(post("/up/a", key, "", "12345"));
        assert_eq!((answer.status, answer.remaining()), (200, Some("1")));
    }
}

#[test]
fn failures_of_the_upstream_are_502_or_504_with_the_token_spent_and_nothing_told() {
    let silent = upstream(|_, connection| assert!(connection.head().starts_with("GET") && connection.is_closed()));
    for (servers, expected) in [
        (vec![], 502),
        (vec![free_port()], 502),
        (vec![answering(b"garbage\r\n\r\n")], 502),
        (vec![answering(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n")], 502),
        (vec![answering(b"")], 502),
        (vec![silent], 504),
    ] {
        let gateway = gateway(&servers);
        let answer = Connection::to(&gateway).exchange(request("GET", "/up/a", "secret-key"));
        assert_eq!((answer.status, answer.remaining()), (expected, Some("1")), "{servers:?}");
        assert_eq!(answer.header("Content-Type"), Some("application/problem+json"));
        let said = answer.head + &String::from_utf8(answer.body).unwrap();
        assert!(!said.contains("127.0.0.1") && !said.contains("secret-key"), "{said}");
        wait_until(|| gateway.in_flight.load(Ordering::Relaxed) == 0);
    }
}

#[test]
fn an_answer_shorter_than_announced_is_cut_off_and_not_completed() {
    let gateway = gateway(&[answering(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort")]);
    let mut client = Connection::to(&gateway);
    client.send(request("GET", "/up/a", "a").as_bytes());
    let answer = client.answer(false);
    assert_eq!((answer.status, answer.remaining()), (200, Some("1")));
    let mut body = Vec::new();
    let _ = client.0.read_to_end(&mut body);
    assert_eq!(body, b"short");
}

#[test]
fn a_kept_connection_that_breaks_is_replaced_for_a_get_and_charged_once() {
    let upstream = upstream(|number, connection| {
        connection.head();
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        if number == 0 {
            // Takes the second request on the first connection, and breaks off.
            connection.head();
        }
    });
    let gateway = gateway(&[upstream]);
    for (key, remaining) in [("a", "1"), ("a", "0")] {
        let answer = Connection::to(&gateway).exchange(request("GET", "/up/a", key));
        assert_eq!((answer.status, answer.remaining()), (200, Some(remaining)));
    }
}

#[test]
fn a_kept_connection_that_breaks_is_a_502_for_a_post() {
    let upstream = upstream(|number, connection| {
        connection.head();
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        if number == 0 {
            connection.head();
        }
    });
    let gateway = gateway(&[upstream]);
    assert_eq!(Connection::to(&gateway).exchange(post("/up/a", "a", "", "")).status, 200);
    let answer = Connection::to(&gateway).exchange(post("/up/a", "a", "", ""));
    assert_eq!((answer.status, answer.remaining()), (502, Some("0")));
}
