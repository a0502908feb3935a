use super::{check, faults, with};

#[test]
fn route_ids_are_short_and_unique() {
    check(&[
        (
            "[[route]]\nid = \"first\"\npath = \"/2\"\nupstream = \"demo\"\n",
            &["t:11: route[2].id: \"first\" is the id of the route in line 4 too, allowed are unique ids"],
        ),
        (
            "[[route]]\n",
            &[
                "t:10: route[2].id: is missing, but required",
                "t:10: route[2].path: is missing, but required",
                "t:10: route[2].upstream: is missing, but required",
            ],
        ),
    ]);
    let allowed = "allowed are 1 to 64 characters, no control characters, and not \"*\"";
    for bad in ["", "*", "a\tb", &"x".repeat(65)] {
        let route = format!("[[route]]\nid = {bad:?}\npath = \"/2\"\nupstream = \"demo\"\n");
        assert_eq!(faults(&with(&route)), [format!("t:11: route[2].id: {bad:?} is not a route id, {allowed}")]);
    }
    assert!(
        faults(&with(&format!("[[route]]\nid = {:?}\npath = \"/2\"\nupstream = \"demo\"\n", "é".repeat(64))))
            .is_empty()
    );
}

/// A second route with these keys, in lines 10 to 12, then `more` from line 13 on.
fn second_route(path: &str, more: &str) -> Vec<String> {
    faults(&with(&format!("[[route]]\nid = \"second\"\npath = {path:?}\nupstream = \"demo\"\n{more}\n")))
}

#[test]
fn route_path_follows_the_pattern_syntax_and_is_normal() {
    let example = "allowed are patterns like \"/orders\", \"/orders/{id}\", \"/files/{*rest}\"";
    let segment = "allowed as a whole segment are {param}, and {*rest} at the end";
    let cases = [
        ("orders", format!("does not start with \"/\", {example}")),
        ("", format!("does not start with \"/\", {example}")),
        ("/a?b=1", format!("has a query or fragment, {example}")),
        ("/a/x{id}", format!("has the segment \"x{{id}}\", {segment}")),
        ("/a/{}", format!("has the segment \"{{}}\", {segment}")),
        ("/a/{b", format!("has the segment \"{{b\", {segment}")),
        ("/{*rest}/a", format!("has {{*rest}} before its end, {example}")),
        ("/100%", "has a \"%\" that two hexadecimal digits do not follow, write \"%25\"".to_owned()),
        ("/a//b", "matches nothing, write its normal form \"/a/b\"".to_owned()),
        ("/a/./b/../c", "matches nothing, write its normal form \"/a/c\"".to_owned()),
        ("/../a/..", "matches nothing, write its normal form \"/\"".to_owned()),
        ("/%7euser/%2fx", "matches nothing, write its normal form \"/~user/%2Fx\"".to_owned()),
        ("/%2e%2E/a", "matches nothing, write its normal form \"/a\"".to_owned()),
        ("/straße", "matches nothing, write its normal form \"/stra%C3%9Fe\"".to_owned()),
    ];
    for (path, what) in cases {
        assert_eq!(second_route(path, ""), [format!("t:12: route[2].path: {path:?} {what}")]);
    }
    for fine in ["/", "/a/", "/a/{b}/c", "/{a}", "/{*rest}", "/a%2Fb", "/a:b@c,d"] {
        assert!(second_route(fine, "").is_empty(), "{fine}");
    }
}

#[test]
fn routes_in_one_line_are_compared_too() {
    let route = "{ id = \"a\", path = \"/a\", upstream = \"demo\" }";
    let text =
        format!("route = [{route}, {route}]\nserver.listen = [\"[::1]:80\"]\nupstream.demo.builtin = \"echo\"\n");
    let expected = [
        "t:1: route[2].id: \"a\" is the id of the route in line 1 too, allowed are unique ids",
        "t:1: route[2].path: \"/a\" is the path of the route in line 1 too, for the same host and method, allowed is one \
         route for each",
    ];
    assert_eq!(faults(&text), expected);
}

#[test]
fn two_routes_for_the_same_requests_are_refused() {
    let clash = |path: &str| {
        let what =
            "is the path of the route in line 5 too, for the same host and method, allowed is one route for each";
        vec![format!("t:12: route[2].path: {path:?} {what}")]
    };
    assert_eq!(second_route("/first", ""), clash("/first"));
    assert_eq!(second_route("/first", "methods = [\"GET\"]"), clash("/first"));
    assert!(second_route("/first", "host = \"a\"").is_empty());
    let what = "t:14: route[2].methods: is a string, allowed is an array of strings";
    assert_eq!(second_route("/first", "methods = \"GET\""), [what]);
    assert_eq!(second_route("/first", "host = \"a:1\"").len(), 1);
    let third = |methods: &str, path: &str, host: &str| {
        let third = "[[route]]\nid = \"third\"\nupstream = \"demo\"\n";
        second_route(
            "/a/{b}",
            &format!(
                "host = \"a\"\nmethods = [\"GET\", \"PUT\"]\n{third}path = {path:?}\nhost = {host:?}\nmethods = {methods}"
            ),
        )
    };
    let what = "is the path of the route in line 12 too, for the same host and method, allowed is one route for each";
    assert_eq!(third("[\"PUT\"]", "/a/{c}", "A"), [format!("t:19: route[3].path: \"/a/{{c}}\" {what}")]);
    assert!(third("[\"POST\"]", "/a/{c}", "a").is_empty());
    assert!(third("[\"PUT\"]", "/a/{*c}", "a").is_empty());
    assert!(third("[\"PUT\"]", "/a/{c}", "b").is_empty());
}

#[test]
fn route_takes_methods_a_host_a_known_upstream_and_a_cost() {
    let cases = [
        ("methods = []", "methods: is empty, allowed are methods like [\"GET\", \"POST\"], or no key for any method"),
        ("methods = [\"get\"]", "methods[1]: \"get\" is not the method \"GET\", allowed is upper case"),
        ("methods = [\"G T\"]", "methods[1]: \"G T\" is not a method, allowed are tokens like \"GET\", \"POST\""),
        ("cost = 0", "cost: 0 is out of range, allowed are integers from 1 to 2147483647"),
        (
            "limit = false\ncost = 2",
            "cost: is of no use, because limit = false exempts the route, allowed is one of the two",
        ),
    ];
    for (more, what) in cases {
        let line = 13 + more.matches('\n').count() + 1;
        assert_eq!(second_route("/2", more), [format!("t:{line}: route[2].{what}")]);
    }
    for bad in ["http://a", "a:80", "a/b", "", "*.a", "a.", "[::1", "1.2.3"] {
        let what = "is not a host, allowed are names and addresses without scheme, port and path like \
                    \"api.example.com\", \"10.0.0.1\", \"[::1]\"";
        assert_eq!(second_route("/2", &format!("host = {bad:?}")), [format!("t:14: route[2].host: {bad:?} {what}")]);
    }
    check(&[(
        "[[route]]\nid = \"2\"\npath = \"/2\"\nupstream = \"dmeo\"\n[upstream.unused]\nservers = [\"a:1\"]\n",
        &["t:13: route[2].upstream: \"dmeo\" is not an upstream, allowed are demo, unused"],
    )]);
}

#[test]
fn upstream_is_either_builtin_or_a_pool_of_servers() {
    check(&[
        ("[upstream.p]\n", &["t:10: upstream.p.servers: is missing, allowed are servers or builtin = \"echo\""]),
        (
            "[upstream.p]\nbuiltin = \"proxy\"\n",
            &["t:11: upstream.p.builtin: \"proxy\" is not built in, allowed is \"echo\""],
        ),
        (
            "[upstream.p]\nbuiltin = \"echo\"\nservers = [\"a:1\"]\nread_timeout = \"1s\"\n",
            &[
                "t:12: upstream.p.servers: is of no use beside builtin, allowed is either builtin or servers",
                "t:13: upstream.p.read_timeout: is of no use beside builtin, allowed is either builtin or servers",
            ],
        ),
        (
            "[upstream.p]\nservers = []\n",
            &["t:11: upstream.p.servers: is empty, allowed are host:port like [\"10.0.0.1:9001\"]"],
        ),
        (
            "[upstream.p]\nservers = [\"a:1\",\n\"a:1\"]\n",
            &["t:12: upstream.p.servers[2]: \"a:1\" is named twice, allowed is once"],
        ),
        (
            "[upstream.\"\"]\nservers = [\"a:1\"]\n",
            &["t:10: upstream.\"\": is not a name, allowed are 1 to 64 characters, no control characters"],
        ),
        (
            "[upstream.p]\nservers = [\"a:1\"]\nbalance = \"random\"\n",
            &["t:12: upstream.p.balance: \"random\" is not a balance, allowed are \"round_robin\", \"least_conn\", \
             \"hash:<header>\""],
        ),
        (
            "[upstream.p]\nservers = [\"a:1\"]\nbalance = \"hash:\"\n",
            &[
                "t:12: upstream.p.balance: \"\" is not a header name, allowed are letters, digits and -, as in \"X-Api-Key\"",
            ],
        ),
        (
            "[upstream.p]\nservers = [\"a:1\"]\nhealth_check = { path = \"up\" }\ntls = { sni = \"10.0.0.1\" }\n",
            &[
                "t:12: upstream.p.health_check.path: \"up\" is not a path to ask for, allowed are paths like \"/healthz\"",
                "t:13: upstream.p.tls.sni: \"10.0.0.1\" is not a server name, allowed are DNS names like \
             \"orders.internal\"",
            ],
        ),
        (
            "[upstream.p]\nservers = [\"a:1\"]\nhealth_check = {}\ntls = {}\n",
            &[
                "t:12: upstream.p.health_check.path: is missing, but required",
                "t:13: upstream.p.tls.sni: is missing, but required",
            ],
        ),
    ]);
    let allowed = "allowed are host:port like \"orders.internal:9001\", \"10.0.0.1:9001\", \"[::1]:9001\"";
    for bad in ["a", "a:", "a:0", "10.0.0.256:1", "a:65536", "a:+1", ":1", "::1:1", "http://a:1", "a b:1"] {
        let expected = [format!("t:11: upstream.p.servers[1]: {bad:?} is not a server, {allowed}")];
        assert_eq!(faults(&with(&format!("[upstream.p]\nservers = [{bad:?}]\n"))), expected);
    }
}
