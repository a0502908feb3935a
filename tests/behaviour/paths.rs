//! One resource has one bucket, however its path is spelt.

use crate::support::{HARDLY, Setup, Upstream, request, send};

const SAME: &[&str] = &[
    "/orders",
    "//orders",
    "///orders",
    "/./orders",
    "/x/../orders",
    "/x/y/../../orders",
    "/../orders",
    "/%6frders",
    "/%6Frders",
    "/%6f%72%64%65%72%73",
    "/%2e/orders",
    "/x/%2e%2e/orders",
    "/x/%2E./orders",
    "/orders?page=2",
    "/orders?x=/../y",
    "http://gateway.test/orders",
];

const OTHER: &[&str] = &[
    "/orders/",
    "/orders//",
    "/ORDERS",
    "/%2Forders",
    "/orders%2F",
    "/orders%00",
    "/orders%20",
    "/orders;v=1",
    "/orders/.",
    "/orders/x/..",
    "/x/orders",
    "/%256frders",
    "/\\orders",
    "/orders%3Fx",
    "/orders%23",
];

#[tokio::test]
async fn no_spelling_of_a_path_gets_a_bucket_of_its_own() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(1, HARDLY).start().await;
    assert_eq!(gateway.get("/orders", "spent").await.status, 200);
    for path in SAME.iter().chain(OTHER) {
        let before = upstream.requests();
        let answer = gateway.get(path, "spent").await;
        assert!([429, 404, 400].contains(&answer.status), "{path}: {answer:?}");
        assert_eq!(upstream.requests(), before, "{path} went past the limit");
    }
}

#[tokio::test]
async fn every_spelling_reaches_the_upstream_in_one_form() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(1000, HARDLY).start().await;
    for path in SAME {
        let answer = gateway.get(path, "shop-a").await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        let head = upstream.heads().pop().unwrap();
        let target = head.split(' ').nth(1).unwrap();
        let (seen, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
        assert_eq!(seen, "/orders", "{path} was forwarded as {target}");
        assert_eq!(query, path.split_once('?').map(|(_, q)| q), "the query of {path} is forwarded as it is");
    }
}

#[tokio::test]
async fn another_resource_is_not_this_one() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(1000, HARDLY).start().await;
    for path in OTHER {
        let answer = gateway.get(path, "shop-a").await;
        assert!([404, 400].contains(&answer.status), "{path}: {answer:?}");
    }
    assert_eq!(upstream.requests(), 0);
}

#[tokio::test]
async fn dot_segments_do_not_leave_a_route_for_another_ones_upstream() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .route("files", "/files/{*rest}")
        .route("item", "/items/{id}")
        .rules(
            r#"[{"tenant_id":"*","route_id":"orders","capacity":3,"refill_per_second":0.001},
                {"tenant_id":"*","route_id":"files","capacity":5,"refill_per_second":0.001},
                {"tenant_id":"*","route_id":"item","capacity":7,"refill_per_second":0.001}]"#,
        )
        .start()
        .await;
    for (path, limit) in [
        ("/files/../orders", 3),
        ("/files/a/../../orders", 3),
        ("/files/%2e%2e/orders", 3),
        ("/files/a/b", 5),
        ("/orders/../files/a", 5),
        ("/items/1", 7),
        ("/items/a%2Fb", 7),
    ] {
        let answer = gateway.get(path, path).await;
        assert_eq!(answer.number("X-RateLimit-Limit"), limit, "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn literals_go_before_parameters_and_hosts_before_none() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .route("rest", "/v1/{*rest}")
        .route("param", "/v1/{id}")
        .route("literal", "/v1/me")
        .table("[[route]]\nid = \"hosted\"\npath = \"/v1/me\"\nhost = \"api.example.com\"\nupstream = \"main\"\n")
        .table("[[route]]\nid = \"posted\"\nmethods = [\"POST\"]\npath = \"/posted\"\nupstream = \"main\"\n")
        .rules(
            r#"[{"tenant_id":"*","route_id":"rest","capacity":11,"refill_per_second":1},
                {"tenant_id":"*","route_id":"param","capacity":12,"refill_per_second":1},
                {"tenant_id":"*","route_id":"literal","capacity":13,"refill_per_second":1},
                {"tenant_id":"*","route_id":"hosted","capacity":14,"refill_per_second":1}]"#,
        )
        .start()
        .await;
    for (path, limit) in [("/v1/a/b", 11), ("/v1/you", 12), ("/v1/me", 13)] {
        assert_eq!(gateway.get(path, "shop-a").await.number("X-RateLimit-Limit"), limit, "{path}");
    }
    for host in ["api.example.com", "API.Example.COM", "api.example.com:8080"] {
        let bytes = format!("GET /v1/me HTTP/1.1\r\nHost: {host}\r\nX-Api-Key: shop-a\r\n\r\n");
        assert_eq!(send(gateway.address, bytes.as_bytes()).await.number("X-RateLimit-Limit"), 14, "{host}");
    }
    assert_eq!(send(gateway.address, &request("GET", "/posted", &[("X-Api-Key", "a")])).await.status, 404);
    assert_eq!(send(gateway.address, &request("POST", "/posted", &[("X-Api-Key", "a")])).await.status, 200);
}
