use super::{SHORTEST, check, faults, with};

#[test]
fn syntax_error_names_its_line() {
    check(&[
        ("x = \n", &["t:10: is not TOML: string values must be quoted, expected literal string"]),
        ("listen = []\n", &["t:10: is not TOML: duplicate key"]),
    ]);
}

#[test]
fn unknown_key_names_the_nearest_or_all_that_are_known() {
    check(&[
        ("[store]\ntimeuot = \"5ms\"\n", &["t:11: store.timeuot: unknown key, did you mean \"timeout\"?"]),
        ("[headers]\nserver = 1\n", &["t:11: headers.server: unknown key, allowed are ratelimit_draft"]),
        ("[sever]\n", &["t:10: sever: unknown key, did you mean \"server\"?"]),
        ("[admin]\n\"a b\" = 1\n", &["t:11: admin.\"a b\": unknown key, allowed are listen, token_file"]),
        (
            "[limiter]\ndefault_rule = { capacity = 5, refil = \"1/s\", refill = \"1/s\" }\n",
            &["t:11: limiter.default_rule.refil: unknown key, did you mean \"refill\"?"],
        ),
        (
            "[upstream.p]\nservers = [\"a:1\"]\nport = 1\n",
            &[
                "t:12: upstream.p.port: unknown key, allowed are builtin, servers, balance, connect_timeout, read_timeout, \
             health_check, tls",
            ],
        ),
    ]);
}

#[test]
fn an_access_log_needs_a_path_and_a_share_of_the_requests() {
    check(&[
        ("[access_log]\n", &["t:10: access_log.path: is missing, but required"]),
        (
            "[access_log]\npath = \"\"\nsample = 0\n",
            &[
                "t:11: access_log.path: \"\" is not the path of a file, allowed are paths like \
                 \"/etc/sekisho/sekisho.toml\"",
                "t:12: access_log.sample: 0 is out of range, allowed is more than 0 up to 1",
            ],
        ),
        (
            "[usage]\nmax_series = 5\n",
            &["t:11: usage.max_series: 5 is out of range, allowed are integers from 100 to 1000000"],
        ),
    ]);
}

#[test]
fn wrong_type_says_what_is_found_and_what_is_allowed() {
    check(&[
        ("threads = \"2\"\n", &["t:10: server.threads: is a string, allowed is an integer"]),
        ("pid_file = 1.5\n", &["t:10: server.pid_file: is a float, allowed is a string"]),
        (
            "grace_period = 10\n",
            &["t:10: server.grace_period: is an integer, allowed is a string such as \"5ms\", \"30s\", \"2m\", \"1h\""],
        ),
        (
            "threads = 99999999999999999999\n",
            &["t:10: server.threads: 99999999999999999999 is out of range, allowed are integers of 64 bits"],
        ),
        (
            "[headers]\nratelimit_draft = 1\n",
            &["t:11: headers.ratelimit_draft: is an integer, allowed is true or false"],
        ),
        (
            "[identity]\ntrusted_proxies = \"::1\"\n",
            &["t:11: identity.trusted_proxies: is a string, allowed is an array of strings"],
        ),
        (
            "[identity]\ntrusted_proxies = [\n\"::1\",\n7]\n",
            &["t:13: identity.trusted_proxies[2]: is an integer, allowed is a string"],
        ),
        (
            "[limiter.breaker]\nfailure_rate = \"x\"\n",
            &["t:11: limiter.breaker.failure_rate: is a string, allowed is a number"],
        ),
        ("[limiter]\nprefetch = true\n", &["t:11: limiter.prefetch: is a boolean, allowed is a table"]),
        ("tls = []\n[rules]\nfile = 2020-01-01\n", &["t:12: rules.file: is a date or time, allowed is a string"]),
        ("tls = {}\n", &["t:10: server.tls: is a table, allowed is an array of tables, [[server.tls]]"]),
        ("[upstream]\nx = 1\n", &["t:11: upstream.x: is an integer, allowed is a table"]),
    ]);
    let no_tables = "upstream = 1\nroute = 2\nstore = []\n[server]\nlisten = \"127.0.0.1:80\"\n";
    let expected = [
        "t:1: upstream: is an integer, allowed is a table, [upstream.NAME]",
        "t:2: route: is an integer, allowed is an array of tables, [[route]]",
        "t:3: store: is an array, allowed is a table",
        "t:5: server.listen: is a string, allowed is an array of strings",
    ];
    assert_eq!(faults(no_tables), expected);
}

#[test]
fn array_whose_elements_are_at_fault_is_not_called_empty() {
    let unset = "environment variable NOPE is not set, set it or give a default as in \"${NOPE:-default}\"";
    let text = SHORTEST.replace("127.0.0.1:8080", "${NOPE}");
    assert_eq!(faults(&text), [format!("t:8: server.listen[1]: {unset}")]);
    check(&[("[upstream.p]\nservers = [1]\n", &["t:11: upstream.p.servers[1]: is an integer, allowed is a string"])]);
}

#[test]
fn duration_needs_a_unit_and_a_sane_length() {
    let allowed = "allowed are numbers with a unit like \"5ms\", \"30s\", \"2m\", \"1h\"";
    for bad in ["5", "", "s", "5 s", "-5s", "5d", "1.2.3s", "1e3s", "5S"] {
        let expected = [format!("t:11: store.timeout: {bad:?} is not a duration, {allowed}")];
        assert_eq!(faults(&with(&format!("[store]\ntimeout = {bad:?}\n"))), expected);
    }
    for bad in ["0s", "0.5ms", "11s", "99999999999999999999999h"] {
        let expected = [format!("t:11: store.timeout: {bad:?} is out of range, allowed are 1ms to 10s")];
        assert_eq!(faults(&with(&format!("[store]\ntimeout = {bad:?}\n"))), expected);
    }
    check(&[
        ("grace_period = \"2h\"\n", &["t:10: server.grace_period: \"2h\" is out of range, allowed are 0s to 1h"]),
        (
            "header_timeout = \"0s\"\nbody_timeout = \"2h\"\nkeepalive_timeout = \"0.9s\"\n",
            &[
                "t:10: server.header_timeout: \"0s\" is out of range, allowed are 1ms to 1h",
                "t:11: server.body_timeout: \"2h\" is out of range, allowed are 1ms to 1h",
                "t:12: server.keepalive_timeout: \"0.9s\" is out of range, allowed are 1s to 1h",
            ],
        ),
        (
            "[rules]\nfile = \"f\"\nrefresh = \"25h\"\n",
            &["t:12: rules.refresh: \"25h\" is out of range, allowed are 1ms to 24h"],
        ),
        (
            "[limiter]\nprefetch = { horizon = \"1m\" }\nbreaker = { window = \"0s\", open_for = \"x\" }\n",
            &[
                "t:11: limiter.prefetch.horizon: \"1m\" is out of range, allowed are 1ms to 10s",
                "t:12: limiter.breaker.window: \"0s\" is out of range, allowed are 1ms to 1h",
                "t:12: limiter.breaker.open_for: \"x\" is not a duration, allowed are numbers with a unit like \"5ms\", \
             \"30s\", \"2m\", \"1h\"",
            ],
        ),
    ]);
}

#[test]
fn number_out_of_range_names_the_range() {
    check(&[
        ("threads = -1\n", &["t:10: server.threads: -1 is out of range, allowed are integers from 0 to 1024"]),
        (
            "[identity]\nipv6_prefix = 129\n",
            &["t:11: identity.ipv6_prefix: 129 is out of range, allowed are integers from 1 to 128"],
        ),
        (
            "[limiter]\nmax_keys = 999\ninstances = 0\nprefetch.batch = 10_001\n",
            &[
                "t:11: limiter.max_keys: 999 is out of range, allowed are integers from 1000 to 100000000",
                "t:12: limiter.instances: 0 is out of range, allowed are integers from 1 to 10000",
                "t:13: limiter.prefetch.batch: 10001 is out of range, allowed are integers from 1 to 10000",
            ],
        ),
        (
            "[limiter.breaker]\nminimum_calls = 0\nfailure_rate = 0\nfailures_in_a_row = 0\nprobes = 0\n",
            &[
                "t:11: limiter.breaker.minimum_calls: 0 is out of range, allowed are integers from 1 to 1000000",
                "t:12: limiter.breaker.failure_rate: 0 is out of range, allowed is more than 0 up to 1",
                "t:13: limiter.breaker.failures_in_a_row: 0 is out of range, allowed are integers from 1 to 1000000",
                "t:14: limiter.breaker.probes: 0 is out of range, allowed are integers from 1 to 1000",
            ],
        ),
        (
            "[limiter.breaker]\nfailure_rate = nan\n",
            &["t:11: limiter.breaker.failure_rate: NaN is out of range, allowed is more than 0 up to 1"],
        ),
    ]);
}

#[test]
fn variable_that_is_not_set_is_named_and_a_default_helps() {
    check(&[
        (
            "pid_file = \"${HOST}/${NOPE}\"\n",
            &["t:10: server.pid_file: environment variable NOPE is not set, set it or give a default as in \
             \"${NOPE:-default}\""],
        ),
        ("pid_file = \"${NOPE:-a}${EMPTY:-b}$c$\"\n", &[]),
        (
            "pid_file = \"${EMPTY}\"\n",
            &["t:10: server.pid_file: \"\" is not the path of a file, allowed are paths like \
             \"/etc/sekisho/sekisho.toml\""],
        ),
        (
            "pid_file = \"a${HOST\"\n",
            &["t:10: server.pid_file: \"${\" has no \"}\", allowed are \"${NAME}\" and \"${NAME:-default}\""],
        ),
        (
            "pid_file = \"${9-A}\"\n",
            &["t:10: server.pid_file: \"${…}\" holds no name of an environment variable, allowed are letters, digits \
             and _, as in \"${NAME}\" and \"${NAME:-default}\""],
        ),
    ]);
}

#[test]
fn listeners_are_addresses_with_a_port_each_used_once() {
    let allowed = "allowed are an IP address and a port like \"127.0.0.1:8080\", \"[::1]:8080\"";
    for bad in ["localhost:80", "127.0.0.1", "127.0.0.1:0", "::1:80", "http://127.0.0.1:80"] {
        let expected = [format!("t:11: admin.listen: {bad:?} is not an address, {allowed}")];
        assert_eq!(faults(&with(&format!("[admin]\nlisten = {bad:?}\n"))), expected);
    }
    check(&[
        (
            "[admin]\nlisten = \"127.0.0.1:8080\"\n",
            &[
                "t:11: admin.listen: \"127.0.0.1:8080\" is the address of server.listen[1] in line 8 too, allowed is one \
             listener",
            ],
        ),
        (
            "[admin]\nlisten = \"[::]:1\"\ntoken_file = 1\n",
            &["t:12: admin.token_file: is an integer, allowed is a string"],
        ),
        (
            "[[server.tls]]\nlisten = \"127.0.0.1:9180\"\ncertificate = \"/no\"\nkey = \"${NOPE}\"\n",
            &[
                "t:1: admin.listen: \"127.0.0.1:9180\" is the address of server.tls[1].listen in line 11 too, allowed is \
                 one listener",
                "t:12: server.tls[1].certificate: file \"/no\" cannot be read: No such file or directory (os error 2)",
                "t:13: server.tls[1].key: environment variable NOPE is not set, set it or give a default as in \
                 \"${NOPE:-default}\"",
            ],
        ),
        (
            "[admin]\nlisten = \"[::]:9180\"\n",
            &[
                "t:11: admin.listen: \"[::]:9180\" is not a loopback address, allowed only where admin.token_file is set",
            ],
        ),
        (
            "[admin]\nlisten = \"[::]:9180\"\ntoken_file = \"/no/token\"\n",
            &["t:12: admin.token_file: file \"/no/token\" cannot be read: No such file or directory (os error 2)"],
        ),
        (
            "[admin]\ntoken_file = \"/dev/null\"\n",
            &["t:11: admin.token_file: file \"/dev/null\" is empty, allowed is one token"],
        ),
        (
            "[[server.tls]]\nlisten = \"127.0.0.1:8080\"\n",
            &[
                "t:10: server.tls[1].certificate: is missing, but required",
                "t:10: server.tls[1].key: is missing, but required",
                "t:11: server.tls[1].listen: \"127.0.0.1:8080\" is the address of server.listen[1] in line 8 too, allowed \
             is one listener",
            ],
        ),
        (
            "[[server.tls]]\nlisten = \"0.0.0.0:1\"\ncertificate = \"/dev/null\"\nkey = \"/no/key\"\n",
            &[
                "t:12: server.tls[1].certificate: file \"/dev/null\" holds no certificate, allowed is a chain in PEM",
                "t:13: server.tls[1].key: file \"/no/key\" cannot be read: No such file or directory (os error 2)",
            ],
        ),
    ]);
}

#[test]
fn file_without_listener_or_route_is_refused() {
    let listener = "there is no listener, allowed are addresses like [\"127.0.0.1:8080\"], or [[server.tls]]";
    let route = "there is no route, allowed are one [[route]] or more";
    assert_eq!(faults(""), [format!("t:1: server.listen: {listener}"), format!("t:1: route: {route}")]);
    assert_eq!(faults(&SHORTEST.replace("\"127.0.0.1:8080\"", "")), [format!("t:8: server.listen: {listener}")]);
}

#[test]
fn identity_needs_a_header_a_mode_and_for_registered_its_keys() {
    check(&[
        (
            "[identity]\nheader = \"X Key\"\n",
            &[
                "t:11: identity.header: \"X Key\" is not a header name, allowed are letters, digits and -, as in \"X-Api-Key\"",
            ],
        ),
        (
            "[identity]\nmode = \"jwt\"\nkeys_file = \"k\"\n",
            &["t:11: identity.mode: \"jwt\" is not a mode, allowed are \"direct\", \"registered\""],
        ),
        (
            "[identity]\nmode = \"registered\"\n",
            &["t:11: identity.mode: \"registered\" needs known keys, allowed with identity.keys_file or \
             rules.database_url"],
        ),
        (
            "[identity]\nmode = \"registered\"\nkeys_file = 1\n",
            &["t:12: identity.keys_file: is an integer, allowed is a string"],
        ),
        ("[identity]\nmode = \"registered\"\n[rules]\ndatabase_url = \"postgres://h/d\"\n", &[]),
        (
            "[identity]\nkeys_file = \"k\"\n",
            &["t:11: identity.keys_file: is of no use, allowed with identity.mode = \"registered\""],
        ),
        (
            "[identity]\ntrusted_proxies = [\"10.0.0.0/33\"]\n",
            &[
                "t:11: identity.trusted_proxies[1]: \"10.0.0.0/33\" is not a network, allowed are addresses and CIDRs like \
             \"10.0.0.0/8\", \"192.0.2.7\", \"fd00::/8\"",
            ],
        ),
    ]);
}

#[test]
fn default_rule_keeps_the_bounds_of_rules() {
    let rule = |fields: &str, expected: &[&str]| {
        let expected: Vec<String> =
            expected.iter().map(|fault| format!("t:11: limiter.default_rule.{fault}")).collect();
        assert_eq!(faults(&with(&format!("[limiter]\ndefault_rule = {{ {fields} }}\n"))), expected, "{fields}");
    };
    rule(
        "",
        &[
            "capacity: is missing, but required",
            "refill_per_second: is missing, allowed is either refill_per_second, or refill like \"100/min\"",
        ],
    );
    rule(
        "capacity = 0, refill_per_second = 0",
        &[
            "refill_per_second: refill is 0 tokens per second, allowed is more than 0 up to 2147483647",
            "capacity: capacity is 0, allowed are integers from 1 to 2147483647",
        ],
    );
    rule(
        "capacity = 2147483648, refill_per_second = inf",
        &[
            "refill_per_second: refill is inf tokens per second, allowed is more than 0 up to 2147483647",
            "capacity: capacity is 2147483648, allowed are integers from 1 to 2147483647",
        ],
    );
    rule(
        "capacity = 2000, refill = \"1/day\"",
        &[
            "capacity: a capacity of 2000 refilled at 0.000011574074074074073 tokens per second takes longer than a year \
         to fill",
        ],
    );
    rule(
        "capacity = 5, refill_per_second = 1, refill = \"1/s\"",
        &["refill: stands beside refill_per_second, allowed is one of the two"],
    );
    rule(
        "capacity = 5, refill = \"1 per s\", cost = 6",
        &[
            "refill: \"1 per s\" is not a refill, allowed are \"100/s\", \"100/min\", \"5000/h\", \"10000/day\"",
            "cost: 6 is out of range, allowed are integers from 1 to 5",
        ],
    );
    rule(
        "capacity = 5, refill = 7, on_store_failure = \"fail\"",
        &[
            "refill: is an integer, allowed is a string",
            "on_store_failure: \"fail\" is not a failure policy, allowed are \"local\", \"open\", \"closed\"",
        ],
    );
}

#[test]
fn rules_have_switches_of_the_right_type() {
    let found = faults(&with("[rules]\nfile = \"f\"\ntests = 5\nallow_mass_delete = \"yes\"\n"));
    let expected = [
        "t:12: rules.tests: is an integer, allowed is a string",
        "t:13: rules.allow_mass_delete: is a string, allowed is true or false",
    ];
    assert_eq!(found, expected);
}

#[test]
fn rules_need_a_source() {
    check(&[
        (
            "[rules]\nrefresh = \"1m\"\n",
            &[
                "t:10: rules.file: is missing, allowed are file, database_url, kafka or several of them, or no [rules] at all",
            ],
        ),
        (
            "[rules]\nfile = \"f\"\nsnapshot = \"s\"\n",
            &["t:12: rules.snapshot: is of no use, allowed with rules.database_url"],
        ),
        ("[rules]\nfile = \"f\"\ndatabase_url = \"host=h user=u\"\nsnapshot = \"s\"\n", &[]),
    ]);
}

#[test]
fn faults_of_every_kind_are_told_in_one_go_in_the_order_of_the_file() {
    let text = "[upstream.demo]\nbuiltin = \"ehco\"\n[store]\ntimeout = \"5\"\nurll = \"redis://:s3cret@h\"\n\
                [[route]]\nid = \"*\"\npath = \"x\"\nupstream = \"demo\"\nlimit = \"no\"\n[server]\nthreads = 9999\n\
                pid_file = \"${NOPE}\"\n";
    let keys: Vec<String> =
        faults(text).iter().map(|fault| fault.split(": ").take(2).collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "t:2 upstream.demo.builtin",
        "t:4 store.timeout",
        "t:5 store.urll",
        "t:7 route[1].id",
        "t:8 route[1].path",
        "t:10 route[1].limit",
        "t:11 server.listen",
        "t:12 server.threads",
        "t:13 server.pid_file",
    ];
    assert_eq!(keys, expected);
}
