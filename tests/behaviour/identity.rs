//! Who is asking: keys that are tenants, keys that are secrets.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::support::{HARDLY, Setup, Upstream, connect, free_address, redis_url, request, sekisho, send};

#[tokio::test]
async fn a_request_without_a_usable_key_is_refused_and_spends_nothing() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(5, HARDLY).start().await;
    let long = "k".repeat(65);
    let cases: &[(&[u8], u16)] = &[
        (b"", 401),
        (b"X-Api-Key: \r\n", 401),
        (b"X-Api-Key:   \r\n", 401),
        (b"X-Api-Key: a\r\nX-Api-Key: b\r\n", 400),
        (b"X-Api-Key: a\r\nx-api-key: a\r\n", 400),
        (b"X-Api-Key: a\tb\r\n", 400),
        (b"X-Api-Key: a\x01b\r\n", 400),
        (b"X-Api-Key: a\x7fb\r\n", 400),
        (b"X-Api-Key: a\xff\xfeb\r\n", 400),
        (b"X-Api-Key: \xc3\x28\r\n", 400),
    ];
    for (header, status) in cases {
        let mut bytes = b"GET /orders HTTP/1.1\r\nHost: gateway.test\r\n".to_vec();
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(b"\r\n");
        let answer = send(gateway.address, &bytes).await;
        assert_eq!(answer.status, *status, "{:?}: {answer:?}", String::from_utf8_lossy(header));
        assert!(answer.header("X-RateLimit-Limit").is_none());
    }
    let answer = send(gateway.address, &request("GET", "/orders", &[("X-Api-Key", &long)])).await;
    assert_eq!(answer.status, 400);
    assert!(!answer.text().contains(&long), "the key comes back: {}", answer.text());
    assert_eq!(upstream.requests(), 0);
    assert_eq!(gateway.get("/orders", "a").await.number("X-RateLimit-Remaining"), 4);
    assert_eq!(gateway.get("/orders", &"k".repeat(64)).await.status, 200, "64 characters are allowed");
}

#[tokio::test]
async fn tenants_with_unusual_ids_have_buckets_of_their_own_and_encoded_keys() {
    let upstream = Upstream::normal().await;
    let setup = Setup::new(upstream.address).redis(&redis_url()).limit(2, HARDLY);
    let gateway = setup.start().await;
    // 64 characters, not bytes: beyond ASCII a key may be longer on the wire.
    let tenants = ["a{b}c", "}", "{", "a:b", "a", "b c", "日本", "*", "%41", "A", &"é".repeat(64), "a\"'\\"];
    for tenant in tenants {
        let seen: Vec<u16> = gateway.spend("/orders", tenant, 3).await.iter().map(|a| a.status).collect();
        assert_eq!(seen, [200, 200, 429], "{tenant}");
    }
    let mut redis = connect(&redis_url()).await;
    let keys: Vec<String> =
        redis::cmd("KEYS").arg(format!("{}:*", setup.prefix())).query_async(&mut redis).await.unwrap();
    let buckets: Vec<_> = keys.iter().filter(|key| key.ends_with(":orders")).collect();
    assert_eq!(buckets.len(), tenants.len(), "{keys:?}");
    for key in buckets {
        let tenant = key.strip_prefix(&format!("{}:{{", setup.prefix())).and_then(|k| k.strip_suffix("}:orders"));
        let tenant = tenant.unwrap_or_else(|| panic!("{key}"));
        assert!(tenant.bytes().all(|b| b.is_ascii_alphanumeric() || b"._~-%".contains(&b)), "{key}");
    }
}

fn hex_sha256(key: &str) -> String {
    Sha256::digest(key).iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

const SECRET: &str = "sk_live_Zq8vN3xW5pT7yR2mK9";

fn registered(upstream: &Upstream, keys_file: &std::path::Path) -> Setup {
    Setup::new(upstream.address).redis(&redis_url()).limit(2, HARDLY).set("identity", "mode", "\"registered\"").set(
        "identity",
        "keys_file",
        &format!("{:?}", keys_file.display().to_string()),
    )
}

#[tokio::test]
async fn a_registered_key_is_its_tenant_and_the_secret_shows_nowhere() {
    let upstream = Upstream::normal().await;
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys.json");
    let second = "another-key-of-the-same-shop";
    let json = format!(
        r#"[{{"key_sha256":"{}","tenant":"shop-a"}},{{"key_sha256":"{}","tenant":"shop-a"}}]"#,
        hex_sha256(SECRET),
        hex_sha256(second)
    );
    std::fs::write(&keys, json).unwrap();
    let setup = registered(&upstream, &keys);
    let gateway = setup.start().await;

    assert_eq!(gateway.get("/orders", SECRET).await.number("X-RateLimit-Remaining"), 1);
    assert_eq!(gateway.get("/orders", second).await.number("X-RateLimit-Remaining"), 0, "one tenant, one bucket");
    let denied = gateway.get("/orders", SECRET).await;
    assert_eq!(denied.status, 429);
    let unknown = gateway.get("/orders", "shop-a").await;
    assert_eq!(unknown.status, 401, "a tenant's name is not a key");
    let long_unknown = gateway.get("/orders", &"x".repeat(512)).await;
    assert_eq!(long_unknown.status, 401, "up to 512 characters are a key");
    assert_eq!(gateway.get("/orders", &"x".repeat(513)).await.status, 400);

    let mut redis = connect(&redis_url()).await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut redis).await.unwrap();
    assert!(keys.contains(&format!("{}:{{shop-a}}:orders", setup.prefix())), "{keys:?}");
    let places = [
        ("Redis", keys.join("\n")),
        ("the log", gateway.log()),
        ("/metrics", gateway.metrics().await),
        ("/api/v1/status", gateway.status().await.to_string()),
        ("the 429", format!("{denied:?}")),
        ("the 401", format!("{unknown:?}")),
    ];
    for (place, text) in places {
        assert!(!text.contains(SECRET), "the secret is in {place}");
        assert!(!text.contains(&hex_sha256(SECRET)), "the secret's hash is in {place}");
    }
}

#[tokio::test]
async fn a_damaged_keys_file_is_named() {
    let upstream = Upstream::normal().await;
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys.json");
    std::fs::write(&keys, r#"[{"key_sha256":"not a hash","tenant":"shop-a"}]"#).unwrap();
    let config = registered(&upstream, &keys).write(dir.path(), free_address(), free_address());
    let run = sekisho(&["check", "-c", config.to_str().unwrap()]);
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    assert!(format!("{}{}", run.stdout, run.stderr).contains("keys.json"), "{}{}", run.stdout, run.stderr);
}
