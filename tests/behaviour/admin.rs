//! What operators see: health, metrics, status, explain.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{Behaviour, Connection, HARDLY, Setup, Upstream, get, redis_url, request, sekisho};

/// Name and labels of every series that a gateway with traffic must have.
const SERIES: &[(&str, &[&str])] = &[
    ("sekisho_decisions_total", &["route=\"orders\"", "outcome=\"allowed\"", "source=\"store\""]),
    ("sekisho_decisions_total", &["route=\"orders\"", "outcome=\"denied\""]),
    ("sekisho_decision_seconds_bucket", &["source=\"store\"", "le=\"0.002\""]),
    ("sekisho_decision_seconds_bucket", &["source=\"store\"", "le=\"0.005\""]),
    ("sekisho_decision_seconds_count", &["source=\"store\""]),
    ("sekisho_store_calls_total", &["result=\"ok\""]),
    ("sekisho_store_call_seconds_count", &[]),
    ("sekisho_degraded", &[]),
    ("sekisho_rules_loaded", &[]),
    ("sekisho_rules_rejected", &[]),
    ("sekisho_rules_age_seconds", &[]),
    ("sekisho_rules_reloads_total", &["source=\"file\"", "result="]),
    ("sekisho_requests_total", &["route=\"orders\"", "code=\"200\""]),
    ("sekisho_requests_total", &["route=\"orders\"", "code=\"429\""]),
    ("sekisho_request_seconds_count", &["route=\"orders\""]),
    ("sekisho_upstream_failures_total", &["upstream=\"main\"", "kind="]),
];

#[tokio::test]
async fn the_promised_series_are_there_with_their_labels() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).redis(&redis_url()).limit(2, HARDLY).start().await;
    gateway.spend("/orders", "shop-a", 3).await;
    upstream.behave(Behaviour::CloseEarly);
    gateway.ask("POST", "/orders", "shop-b").await;
    let text = gateway.metrics().await;
    for (name, labels) in SERIES {
        let there = text.lines().any(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label))
        });
        assert!(there, "{name} with {labels:?} is missing:\n{text}");
    }
    for line in text.lines().filter(|line| line.starts_with("sekisho_")) {
        let value = line.rsplit(' ').next().unwrap();
        assert!(value.parse::<f64>().is_ok_and(|v| v >= 0.0), "{line}");
    }
    assert_eq!(gateway.metric("sekisho_decisions_total", &["outcome=\"denied\""]).await, 1.0);
    assert_eq!(gateway.metric("sekisho_decisions_total", &["outcome=\"allowed\""]).await, 3.0);
    assert_eq!(gateway.metric("sekisho_degraded", &[]).await, 0.0);
}

#[tokio::test]
async fn the_number_of_series_does_not_grow_with_tenants_or_paths() {
    let upstream = Upstream::normal().await;
    let gateway =
        Setup::new(upstream.address).redis(&redis_url()).route("item", "/items/{id}").limit(1, HARDLY).start().await;
    let mut connection = Connection::open(gateway.address).await;
    async fn visit(connection: &mut Connection, from: usize, to: usize) {
        for n in from..to {
            let tenant = format!("visitor-{n}");
            connection.get("/orders", &[("X-Api-Key", &tenant)]).await.unwrap();
            connection.get("/orders", &[("X-Api-Key", &tenant)]).await.unwrap();
            connection.get(&format!("/items/{n}"), &[("X-Api-Key", &tenant)]).await.unwrap();
            connection.get(&format!("/nowhere/{n}"), &[("X-Api-Key", &tenant)]).await.unwrap();
        }
    }
    let names = |text: &str| -> BTreeSet<String> {
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.rsplit_once(' ').map_or(line, |(name, _)| name).to_owned())
            .collect()
    };
    visit(&mut connection, 0, 10).await;
    let few = names(&gateway.metrics().await);
    visit(&mut connection, 10, 2000).await;
    let text = gateway.metrics().await;
    let many = names(&text);
    assert_eq!(few, many, "new: {:?}", many.difference(&few).collect::<Vec<_>>());
    assert!(!text.contains("visitor-"), "a tenant is in the metrics");
    assert!(!text.contains("/nowhere"), "a path is in the metrics");
}

#[tokio::test]
async fn health_readiness_and_status_answer() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).redis(&redis_url()).limit(2, HARDLY).start().await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get(gateway.admin, path, &[]).await.status, 200, "{path}");
    }
    let status = gateway.status().await;
    let text = status.to_string();
    assert!(text.contains(env!("CARGO_PKG_VERSION")), "{text}");
    for word in ["store", "rules", "degraded"] {
        assert!(text.contains(word), "{word} is missing: {text}");
    }
    assert!(!text.contains("shop-a"));
    assert_eq!(get(gateway.admin, "/no/such/page", &[]).await.status, 404);
    let metrics = get(gateway.admin, "/metrics", &[]).await;
    assert!(metrics.header("Content-Type").is_some_and(|v| v.starts_with("text/plain")), "{metrics:?}");
}

#[tokio::test]
async fn explain_says_which_limit_applies_and_why_and_spends_nothing() {
    let upstream = Upstream::normal().await;
    let setup = Setup::new(upstream.address).redis(&redis_url()).rules(
        r#"[{"tenant_id":"shop-a","route_id":"*","capacity":3,"refill_per_second":0.001},
            {"tenant_id":"*","route_id":"orders","capacity":9,"refill_per_second":1}]"#,
    );
    let gateway = setup.start().await;
    let over_http = get(gateway.admin, "/api/v1/explain?method=GET&path=/x/../orders&api_key=shop-a", &[]).await;
    assert_eq!(over_http.status, 200, "{over_http:?}");
    let config = gateway.file("sekisho.toml");
    let run = sekisho(&[
        "explain",
        "-c",
        config.to_str().unwrap(),
        "--method",
        "GET",
        "--path",
        "//orders",
        "--api-key",
        "shop-a",
    ]);
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    let by_command: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    for answer in [over_http.json(), by_command] {
        assert_eq!(answer["route"], "orders", "{answer}");
        assert_eq!(answer["tenant"], "shop-a", "{answer}");
        assert_eq!(answer["upstream"], "main", "{answer}");
        let text = answer.to_string();
        assert!(text.contains(&format!("{}:{{shop-a}}:orders", setup.prefix())), "no bucket key: {text}");
        assert!(text.contains("shop-a/*"), "no rule: {text}");
    }
    assert_eq!(gateway.get("/orders", "shop-a").await.number("X-RateLimit-Remaining"), 2, "nothing was spent");
    let nowhere = sekisho(&["explain", "-c", config.to_str().unwrap(), "--method", "GET", "--path", "/nowhere"]);
    assert_ne!(nowhere.code, Some(2), "{}", nowhere.stderr);
    assert!(!nowhere.stdout.contains("\"orders\""), "{}", nowhere.stdout);
}

#[tokio::test]
async fn explain_chooses_the_route_by_host_as_a_request_would() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .table("[[route]]\nid = \"api\"\nhost = \"api.example.com\"\npath = \"/orders\"\nupstream = \"main\"\n")
        .table("[[route]]\nid = \"six\"\nhost = \"[::1]\"\npath = \"/orders\"\nupstream = \"main\"\n")
        .limit(100, HARDLY)
        .start()
        .await;
    let config = gateway.file("sekisho.toml");
    let hosts =
        [("api.example.com", "api"), ("API.example.com:8080", "api"), ("api.example.com.", "api"), ("[::1]:80", "six")];
    for (host, route) in hosts.into_iter().chain([("other", "orders")]) {
        let over_http = get(gateway.admin, &format!("/api/v1/explain?path=/orders&api_key=a&host={host}"), &[]).await;
        assert_eq!(over_http.json()["route"], route, "{host}");
        let header = format!("Host: {host}");
        let command =
            ["explain", "-c", config.to_str().unwrap(), "--method", "GET", "--path", "/orders", "-H", &header];
        let by_header: serde_json::Value = serde_json::from_str(&sekisho(&command).stdout).unwrap();
        assert_eq!(by_header["route"], route, "{header}");
        let before = gateway.metric("sekisho_requests_total", &[&format!("route=\"{route}\"")]).await;
        let head = format!("GET /orders HTTP/1.1\r\nHost: {host}\r\nX-Api-Key: a\r\n\r\n");
        assert_eq!(crate::support::send(gateway.address, head.as_bytes()).await.status, 200);
        let after = || async {
            let now = gateway.metric("sekisho_requests_total", &[&format!("route=\"{route}\"")]).await;
            (now > before).then_some(())
        };
        crate::support::eventually("the request itself took that route", Duration::from_secs(5), after).await;
    }
}

#[tokio::test]
async fn explain_names_the_buckets_that_are_in_redis_and_what_each_rule_does() {
    let upstream = Upstream::normal().await;
    let setup = Setup::new(upstream.address).redis(&redis_url()).rules(
        r#"[{"tenant_id":"off","route_id":"orders","capacity":3,"refill_per_second":1,"enabled":false},
            {"tenant_id":"off","route_id":"*","capacity":4,"refill_per_second":1,"mode":"shadow"},
            {"tenant_id":"*","route_id":"orders","capacity":5,"refill_per_second":1},
            {"tenant_id":"*","route_id":"*","capacity":6,"refill_per_second":1},
            {"tenant_id":"big","route_id":"orders","capacity":100,"refill_per_second":1,"shards":3}]"#,
    );
    let gateway = setup.start().await;
    let explain = async |tenant: &str| {
        get(gateway.admin, &format!("/api/v1/explain?path=/orders&api_key={tenant}"), &[]).await.json()
    };
    let answer = explain("off").await;
    let states: Vec<_> =
        answer["chain"].as_array().unwrap().iter().map(|link| link["state"].as_str().unwrap()).collect();
    let expected = ["disabled: skipped", "shadow: counted, decides nothing", "enforces"];
    assert_eq!(states[..3], expected, "{answer}");
    assert!(states[3].starts_with("not reached"), "{answer}");

    let answer = explain("big").await;
    let buckets: Vec<_> =
        answer["limits"][0]["buckets"].as_array().unwrap().iter().map(|b| b.as_str().unwrap()).collect();
    let prefix = setup.prefix();
    assert_eq!(buckets, [0, 1, 2].map(|shard| format!("{prefix}:big:orders:{shard}")));
    assert_eq!(gateway.get("/orders", "big").await.status, 200);
    let mut redis = crate::support::connect(&redis_url()).await;
    let keys: Vec<String> = redis::cmd("KEYS").arg(format!("{prefix}:*big*")).query_async(&mut redis).await.unwrap();
    assert!(!keys.is_empty() && keys.iter().all(|key| buckets.contains(&key.as_str())), "{keys:?}");
}

#[tokio::test]
async fn explain_says_where_each_part_of_a_limit_comes_from() {
    let upstream = Upstream::normal().await;
    let setup = Setup::new(upstream.address)
        .redis(&redis_url())
        .set("limiter", "instances", "4")
        .table("[[route]]\nid = \"dear\"\npath = \"/dear\"\nupstream = \"main\"\ncost = 5\n")
        .rules(
            r#"[{"tenant_id":"a","route_id":"dear","capacity":40,"refill_per_second":10,"mode":"shadow"},
                {"tenant_id":"*","route_id":"dear","capacity":100,"refill_per_second":10},
                {"tenant_id":"*","route_id":"orders","capacity":8,"refill_per_second":2,"cost":2,"on_store_failure":"closed"}]"#,
        );
    let gateway = setup.start().await;
    let config = gateway.file("sekisho.toml");
    let explain = ["explain", "-c", config.to_str().unwrap(), "--method", "GET", "--api-key", "a", "--path"];
    let by_command = |path: &str| -> serde_json::Value {
        serde_json::from_str(&sekisho(&[&explain[..], &[path]].concat()).stdout).unwrap()
    };
    let answer = by_command("/dear");
    let links: Vec<(&str, &str)> = answer["chain"]
        .as_array()
        .unwrap()
        .iter()
        .map(|link| (link["rule"].as_str().unwrap(), link["state"].as_str().unwrap()))
        .collect();
    let not_reached = "not reached: a rule before it applies";
    assert_eq!(
        links,
        [
            ("a/dear", "shadow: counted, decides nothing"),
            ("a/*", "absent"),
            ("*/dear", "enforces"),
            ("*/*", "absent"),
            ("limiter.default_rule", not_reached),
        ]
    );
    let limit = &answer["limits"][0];
    assert_eq!((&limit["cost"], &limit["cost_from"]), (&5.into(), &"the route".into()), "{limit}");
    assert_eq!((&limit["requests_at_once"], &limit["requests_per_second"]), (&20.into(), &2.0.into()), "{limit}");
    assert_eq!(limit["on_store_failure_from"], "limiter.on_store_failure");
    let share = serde_json::json!({ "gateways": 4, "capacity": 25.0, "refill_per_second": 2.5 });
    assert_eq!(limit["share_without_store"], share);
    assert_eq!(answer["limits"][1]["bucket"], format!("{}:{{a}}:dear:shadow", setup.prefix()));
    assert_eq!(answer["rules"]["source"], "file");

    let limit = &by_command("/orders")["limits"][0];
    assert_eq!((&limit["cost"], &limit["cost_from"]), (&2.into(), &"the rule".into()), "{limit}");
    assert_eq!((&limit["on_store_failure"], &limit["on_store_failure_from"]), (&"closed".into(), &"the rule".into()));
    assert_eq!(limit["share_without_store"], serde_json::Value::Null, "closed: there is no share");

    let live = get(gateway.admin, "/api/v1/explain?path=/dear&api_key=a", &[]).await.json();
    assert_eq!(
        (&live["gateway"]["store"], &live["gateway"]["degraded"]),
        (&"connected".into(), &false.into()),
        "{live}"
    );
    assert_eq!(live["limits"][0]["share_without_store"]["gateways"], live["gateway"]["gateways_live"]);
}

#[tokio::test]
async fn explain_refuses_what_is_no_request_and_names_the_parameter() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(2, HARDLY).start().await;
    for (query, parameter) in [("", "path"), ("?path=/orders&method=G%20T", "method"), ("?path=/orders&ip=x", "ip")] {
        let answer = get(gateway.admin, &format!("/api/v1/explain{query}"), &[]).await;
        assert_eq!(answer.status, 400, "{query}: {answer:?}");
        assert!(answer.json()["error"].as_str().unwrap().starts_with(&format!("{parameter}: ")), "{query}: {answer:?}");
    }
    let config = gateway.file("sekisho.toml");
    let explain = ["explain", "-c", config.to_str().unwrap(), "--path", "/orders", "--method"];
    let run = sekisho(&[&explain[..], &["G T"]].concat());
    assert_eq!(run.code, Some(2), "{}{}", run.stdout, run.stderr);
    assert!(run.stderr.contains("--method"), "{}", run.stderr);
    let twice = sekisho(&[&explain[..], &["GET", "--api-key", "a", "-H", "X-Api-Key: b"]].concat());
    let twice: serde_json::Value = serde_json::from_str(&twice.stdout).unwrap();
    assert_eq!(twice["status"], 400, "as the request itself: {twice}");
}

#[tokio::test]
async fn the_admin_listener_survives_nonsense() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(2, HARDLY).start().await;
    let explained = get(gateway.admin, "/api/v1/explain?method=%zz&path=", &[]).await;
    assert!(explained.status == 200 && explained.json()["status"] == 400 || explained.status == 400, "{explained:?}");
    for bytes in [
        b"\x00\x01\x02\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        request("DELETE", "/metrics", &[]),
        request("GET", &format!("/{}", "a".repeat(100_000)), &[]),
    ] {
        let mut connection = Connection::open(gateway.admin).await;
        connection.write(&bytes).await;
        if let Ok(answer) = connection.read(false).await {
            let what = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
            assert!((400..500).contains(&answer.status), "{what:?}: {answer:?}");
        }
        assert_eq!(get(gateway.admin, "/healthz", &[]).await.status, 200);
    }
}

#[tokio::test]
async fn with_a_token_nothing_is_told_without_it() {
    let upstream = Upstream::normal().await;
    let dir = tempfile::TempDir::new().unwrap();
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, "the-token\n").unwrap();
    let setup =
        Setup::new(upstream.address).set("admin", "token_file", &format!("{:?}", token_file.display().to_string()));
    let gateway = setup.spawn();
    let ask =
        async |path: &str, authorization: &str| get(gateway.admin, path, &[("Authorization", authorization)]).await;
    crate::support::eventually("it takes connections", Duration::from_secs(20), || async {
        tokio::net::TcpStream::connect(gateway.admin).await.ok()
    })
    .await;
    for probe in ["/healthz", "/readyz"] {
        assert_ne!(ask(probe, "").await.status, 401, "load balancers have no token: {probe}");
    }
    for path in ["/api/v1/status", "/api/v1/explain?path=/orders", "/metrics", "/nowhere"] {
        for wrong in ["", "Bearer", "Bearer ", "Bearer the-toke", "Bearer the-token-", "Basic the-token", "the-token"] {
            let answer = ask(path, wrong).await;
            assert_eq!(answer.status, 401, "{path} {wrong:?}");
            assert_eq!(answer.header("WWW-Authenticate"), Some("Bearer"));
        }
    }
    for right in ["Bearer the-token", "bearer the-token"] {
        assert_eq!(ask("/api/v1/status", right).await.status, 200, "{right}");
    }
    assert!(!gateway.log().contains("the-token"));
}
