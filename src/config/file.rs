//! The raw shape of the file: what it says, each value with its place, nothing judged and no defaults.

use super::fault::{At, Place};
use super::reader::Section;

/// A string, if the file gives it.
pub(super) type Text = Option<At<String>>;

/// An array of strings, if the file gives it.
pub(super) type Texts = Option<At<Vec<At<String>>>>;

/// The whole file.
pub(super) struct File {
    pub(super) server: Server,
    pub(super) admin: Admin,
    pub(super) identity: Identity,
    pub(super) store: Store,
    pub(super) ratelimit_draft: Option<At<bool>>,
    pub(super) limiter: Limiter,
    pub(super) rules: Option<Rules>,
    pub(super) usage: Usage,
    pub(super) access_log: Option<AccessLog>,
    pub(super) routes: Vec<Route>,
    /// Of `[[route]]`.
    pub(super) routes_place: Place,
    pub(super) upstreams: Vec<(At<String>, Upstream)>,
}

impl File {
    pub(super) fn read(root: &mut Section<'_>) -> Self {
        Self {
            server: root.table_or_empty("server", Server::read),
            admin: root.table_or_empty("admin", Admin::read),
            identity: root.table_or_empty("identity", Identity::read),
            store: root.table_or_empty("store", Store::read),
            ratelimit_draft: root.table_or_empty("headers", |s| s.boolean("ratelimit_draft")),
            limiter: root.table_or_empty("limiter", Limiter::read),
            rules: root.table("rules", Rules::read),
            usage: root.table_or_empty("usage", Usage::read),
            access_log: root.table("access_log", AccessLog::read),
            routes: root.tables("route", Route::read),
            routes_place: root.place.child("route"),
            upstreams: root.named("upstream", Upstream::read),
        }
    }
}

/// `[server]`
pub(super) struct Server {
    pub(super) place: Place,
    pub(super) listen: Texts,
    pub(super) threads: Option<At<i64>>,
    pub(super) grace_period: Text,
    pub(super) header_timeout: Text,
    pub(super) body_timeout: Text,
    pub(super) keepalive_timeout: Text,
    pub(super) pid_file: Text,
    pub(super) upgrade_socket: Text,
    pub(super) tls: Vec<TlsListener>,
}

impl Server {
    fn read(s: &mut Section<'_>) -> Self {
        Self {
            place: s.place.clone(),
            listen: s.strings("listen"),
            threads: s.integer("threads"),
            grace_period: s.duration("grace_period"),
            header_timeout: s.duration("header_timeout"),
            body_timeout: s.duration("body_timeout"),
            keepalive_timeout: s.duration("keepalive_timeout"),
            pid_file: s.string("pid_file"),
            upgrade_socket: s.string("upgrade_socket"),
            tls: s.tables("tls", TlsListener::read),
        }
    }
}

/// `[[server.tls]]`
pub(super) struct TlsListener {
    pub(super) listen: Text,
    pub(super) certificate: Text,
    pub(super) key: Text,
}

impl TlsListener {
    fn read(s: &mut Section<'_>) -> Self {
        Self {
            listen: s.required_string("listen"),
            certificate: s.required_string("certificate"),
            key: s.required_string("key"),
        }
    }
}

/// `[admin]`
pub(super) struct Admin {
    pub(super) place: Place,
    pub(super) listen: Text,
    pub(super) token_file: Text,
}

impl Admin {
    fn read(s: &mut Section<'_>) -> Self {
        Self { place: s.place.clone(), listen: s.string("listen"), token_file: s.string("token_file") }
    }
}

/// `[identity]`
pub(super) struct Identity {
    pub(super) place: Place,
    pub(super) header: Text,
    pub(super) mode: Text,
    pub(super) keys_file: Text,
    pub(super) trusted_proxies: Texts,
    pub(super) ipv6_prefix: Option<At<i64>>,
}

impl Identity {
    fn read(s: &mut Section<'_>) -> Self {
        Self {
            place: s.place.clone(),
            header: s.string("header"),
            mode: s.string("mode"),
            keys_file: s.string("keys_file"),
            trusted_proxies: s.strings("trusted_proxies"),
            ipv6_prefix: s.integer("ipv6_prefix"),
        }
    }
}

/// `[store]`
pub(super) struct Store {
    pub(super) place: Place,
    pub(super) url: Text,
    /// Of `url`, be it of the right type or not.
    pub(super) url_place: Option<Place>,
    pub(super) topology: Text,
    pub(super) nodes: Texts,
    /// Of `nodes`, be they of the right type or not.
    pub(super) nodes_place: Option<Place>,
    pub(super) master_name: Text,
    pub(super) sentinel_user: Text,
    pub(super) sentinel_password: Text,
    pub(super) ca_file: Text,
    pub(super) timeout: Text,
    pub(super) key_prefix: Text,
}

impl Store {
    fn read(s: &mut Section<'_>) -> Self {
        Self {
            place: s.place.clone(),
            url: s.string("url"),
            url_place: s.mention("url"),
            topology: s.string("topology"),
            nodes: s.strings("nodes"),
            nodes_place: s.mention("nodes"),
            master_name: s.string("master_name"),
            sentinel_user: s.string("sentinel_user"),
            sentinel_password: s.string("sentinel_password"),
            ca_file: s.string("ca_file"),
            timeout: s.duration("timeout"),
            key_prefix: s.string("key_prefix"),
        }
    }
}

/// `[limiter]`
pub(super) struct Limiter {
    pub(super) default_rule: Option<DefaultRule>,
    pub(super) max_keys: Option<At<i64>>,
    pub(super) instances: Option<At<i64>>,
    pub(super) on_store_failure: Text,
    pub(super) prefetch: Prefetch,
    pub(super) breaker: Breaker,
}

impl Limiter {
    fn read(s: &mut Section<'_>) -> Self {
        Self {
            default_rule: s.table("default_rule", DefaultRule::read),
            max_keys: s.integer("max_keys"),
            instances: s.integer("instances"),
            on_store_failure: s.string("on_store_failure"),
            prefetch: s.table_or_empty("prefetch", Prefetch::read),
            breaker: s.table_or_empty("breaker", Breaker::read),
        }
    }
}

/// `limiter.default_rule`
pub(super) struct DefaultRule {
    pub(super) place: Place,
    pub(super) capacity: Option<At<i64>>,
    pub(super) refill_per_second: Option<At<f64>>,
    pub(super) refill: Text,
    /// Does the file give either refill, be it of the right type or not?
    pub(super) has_refill: bool,
    pub(super) cost: Option<At<i64>>,
    pub(super) on_store_failure: Text,
}

impl DefaultRule {
    fn read(s: &mut Section<'_>) -> Self {
        s.require("capacity");
        Self {
            place: s.place.clone(),
            capacity: s.integer("capacity"),
            refill_per_second: s.number("refill_per_second"),
            refill: s.string("refill"),
            has_refill: s.mention("refill_per_second").or_else(|| s.mention("refill")).is_some(),
            cost: s.integer("cost"),
            on_store_failure: s.string("on_store_failure"),
        }
    }
}

/// `[limiter.prefetch]`
pub(super) struct Prefetch {
    pub(super) batch: Option<At<i64>>,
    pub(super) horizon: Text,
    pub(super) enabled: Option<At<bool>>,
}

impl Prefetch {
    fn read(s: &mut Section<'_>) -> Self {
        Self { batch: s.integer("batch"), horizon: s.duration("horizon"), enabled: s.boolean("enabled") }
    }
}

/// `[limiter.breaker]`
pub(super) struct Breaker {
    pub(super) window: Text,
    pub(super) minimum_calls: Option<At<i64>>,
    pub(super) failure_rate: Option<At<f64>>,
    pub(super) failures_in_a_row: Option<At<i64>>,
    pub(super) open_for: Text,
    pub(super) probes: Option<At<i64>>,
}

impl Breaker {
    fn read(s: &mut Section<'_>) -> Self {
        Self {
            window: s.duration("window"),
            minimum_calls: s.integer("minimum_calls"),
            failure_rate: s.number("failure_rate"),
            failures_in_a_row: s.integer("failures_in_a_row"),
            open_for: s.duration("open_for"),
            probes: s.integer("probes"),
        }
    }
}

/// `[rules]`
pub(super) struct Rules {
    /// Does the file give `file`, `database_url` or `kafka`, be it of the right type or not?
    pub(super) has_source: bool,
    /// Does it give `database_url`?
    pub(super) has_database: bool,
    pub(super) place: Place,
    pub(super) file: Text,
    pub(super) database_url: Text,
    pub(super) refresh: Text,
    pub(super) snapshot: Text,
    pub(super) tests: Text,
    pub(super) allow_mass_delete: Option<At<bool>>,
    pub(super) listen: Option<At<bool>>,
    pub(super) listen_url: Text,
    pub(super) redis_channel: Text,
    pub(super) kafka: Option<Kafka>,
}

impl Rules {
    fn read(s: &mut Section<'_>) -> Self {
        Self {
            has_source: ["file", "database_url", "kafka"].into_iter().any(|source| s.mention(source).is_some()),
            has_database: s.mention("database_url").is_some(),
            place: s.place.clone(),
            file: s.string("file"),
            database_url: s.string("database_url"),
            refresh: s.duration("refresh"),
            snapshot: s.string("snapshot"),
            tests: s.string("tests"),
            allow_mass_delete: s.boolean("allow_mass_delete"),
            listen: s.boolean("listen"),
            listen_url: s.string("listen_url"),
            redis_channel: s.string("redis_channel"),
            kafka: s.table("kafka", Kafka::read),
        }
    }
}

/// `[rules.kafka]`
pub(super) struct Kafka {
    pub(super) place: Place,
    pub(super) brokers: Texts,
    pub(super) topic: Text,
    /// Each at the place of its name.
    pub(super) options: Vec<(String, At<String>)>,
}

impl Kafka {
    fn read(s: &mut Section<'_>) -> Self {
        s.require("brokers");
        Self {
            place: s.place.clone(),
            brokers: s.strings("brokers"),
            topic: s.required_string("topic"),
            options: s.texts("options"),
        }
    }
}

/// `[usage]`
pub(super) struct Usage {
    pub(super) enabled: Option<At<bool>>,
    pub(super) shared: Option<At<bool>>,
    pub(super) max_series: Option<At<i64>>,
}

impl Usage {
    fn read(s: &mut Section<'_>) -> Self {
        Self { enabled: s.boolean("enabled"), shared: s.boolean("shared"), max_series: s.integer("max_series") }
    }
}

/// `[access_log]`
pub(super) struct AccessLog {
    pub(super) path: Text,
    pub(super) sample: Option<At<f64>>,
    pub(super) hash_tenants: Option<At<bool>>,
}

impl AccessLog {
    fn read(s: &mut Section<'_>) -> Self {
        Self { path: s.required_string("path"), sample: s.number("sample"), hash_tenants: s.boolean("hash_tenants") }
    }
}

/// `[[route]]`
pub(super) struct Route {
    pub(super) place: Place,
    pub(super) id: Text,
    pub(super) methods: Texts,
    pub(super) path: Text,
    pub(super) host: Text,
    pub(super) upstream: Text,
    pub(super) cost: Option<At<i64>>,
    pub(super) limit: Option<At<bool>>,
}

impl Route {
    fn read(s: &mut Section<'_>) -> Self {
        Self {
            place: s.place.clone(),
            id: s.required_string("id"),
            methods: s.strings("methods"),
            path: s.required_string("path"),
            host: s.string("host"),
            upstream: s.required_string("upstream"),
            cost: s.integer("cost"),
            limit: s.boolean("limit"),
        }
    }
}

/// `[upstream.NAME]`
pub(super) struct Upstream {
    pub(super) builtin: Text,
    pub(super) servers: Texts,
    /// Is there a `builtin` or `servers`, be it of the right type or not?
    pub(super) has_kind: bool,
    /// Keys that mean something for servers only.
    pub(super) for_servers: Vec<Place>,
    pub(super) balance: Text,
    pub(super) connect_timeout: Text,
    pub(super) read_timeout: Text,
    pub(super) health_check: Option<HealthCheck>,
    pub(super) tls_sni: Option<Text>,
}

impl Upstream {
    fn read(s: &mut Section<'_>) -> Self {
        let builtin = s.string("builtin");
        let servers = s.strings("servers");
        let has_kind = s.mention("builtin").or_else(|| s.mention("servers")).is_some();
        let for_servers = ["servers", "balance", "connect_timeout", "read_timeout", "health_check", "tls"];
        Self {
            builtin,
            servers,
            has_kind,
            for_servers: for_servers.into_iter().filter_map(|key| s.mention(key)).collect(),
            balance: s.string("balance"),
            connect_timeout: s.duration("connect_timeout"),
            read_timeout: s.duration("read_timeout"),
            health_check: s.table("health_check", |s| HealthCheck {
                path: s.required_string("path"),
                interval: s.duration("interval"),
            }),
            tls_sni: s.table("tls", |s| s.required_string("sni")),
        }
    }
}

/// `health_check` of an upstream.
pub(super) struct HealthCheck {
    pub(super) path: Text,
    pub(super) interval: Text,
}
