use super::{check, faults, with};

#[test]
fn store_and_database_urls_are_judged_and_never_repeated() {
    let redis = "is not the URL of a Redis, allowed is redis[s]://[user:password@]host[:port][/database]";
    for bad in [
        "",
        "127.0.0.1:6379",
        "http://:${PASSWORD}@h",
        "redis://:s3cret@h:99999",
        "redis://:s3cret@h/x",
        "redis://:s3cret@h/-1",
        "redis://user@h",
        "redis://:s3cret@h?protocol=resp2",
        "rediss://:s3cret@h#insecure",
        "redis://h:0",
        "redis+unix:///run/redis.sock",
    ] {
        let found = faults(&with(&format!("[store]\nurl = {bad:?}\n")));
        assert_eq!(found, [format!("t:11: store.url: {redis}")], "{bad}");
        let found = faults(&with(&format!("[store]\ntopology = \"cluster\"\nnodes = [{bad:?}]\n")));
        assert_eq!(found, [format!("t:12: store.nodes[1]: {redis}")], "{bad}");
    }
    let postgres = "is not the URL of a PostgreSQL, allowed is postgres://user:password@host[:port]/database";
    for bad in ["", "mysql://u:s3cret@h/d", "postgres://u:${PASSWORD}@h:x/d", "dbname=d password=s3cret"] {
        let found = faults(&with(&format!("[rules]\ndatabase_url = {bad:?}\n")));
        assert_eq!(found, [format!("t:11: rules.database_url: {postgres}")]);
    }
    check(&[("[store]\nurl = 5\n", &["t:11: store.url: is an integer, allowed is a string"])]);
}

#[test]
fn each_topology_of_the_store_needs_its_own_keys_and_no_others() {
    let nodes = "allowed are URLs of servers like [\"redis://10.0.0.1\", \"redis://10.0.0.2\"]";
    let in_nodes = "allowed with store.topology = \"single\"; the servers of others stand in store.nodes";
    check(&[
        (
            "[store]\ntopology = \"ring\"\nkey_prefix = \"a{b}\"\nurl = \"redis://h\"\nnodes = [\"redis://h\"]\n",
            &[
                "t:11: store.topology: \"ring\" is not a topology, allowed are \"single\", \"cluster\", \"sentinel\"",
                "t:12: store.key_prefix: \"a{b}\" is not a key prefix, allowed are 1 to 64 of A-Z a-z 0-9 . _ ~ - :",
            ],
        ),
        (
            "[store]\nnodes = [\"redis://h\"]\nmaster_name = \"m\"\nsentinel_password = \"p\"\nca_file = \"/no\"\n",
            &[
                "t:11: store.nodes: is of no use, allowed with store.topology = \"cluster\" or \"sentinel\"",
                "t:12: store.master_name: is of no use, allowed with store.topology = \"sentinel\"",
                "t:13: store.sentinel_password: is of no use, allowed with store.topology = \"sentinel\"",
                "t:14: store.ca_file: is of no use, allowed with rediss://",
            ],
        ),
        (
            "[store]\ntopology = \"cluster\"\nurl = \"redis://h\"\n",
            &[
                &format!("t:10: store.nodes: is missing, {nodes}"),
                &format!("t:12: store.url: is of no use, {in_nodes}"),
            ],
        ),
        ("[store]\ntopology = \"cluster\"\nnodes = []\n", &[&format!("t:12: store.nodes: is missing, {nodes}")]),
        (
            "[store]\ntopology = \"cluster\"\nnodes = \"redis://h\"\n",
            &["t:12: store.nodes: is a string, allowed is an array of strings"],
        ),
        (
            "[store]\ntopology = \"sentinel\"\nnodes = [\"redis://h\"]\n",
            &["t:10: store.master_name: is missing, but required with store.topology = \"sentinel\""],
        ),
        (
            "[store]\ntopology = \"sentinel\"\nnodes = [\"redis://h\"]\nmaster_name = \"\"\nsentinel_user = \"u\"\n",
            &[
                "t:13: store.master_name: is empty, allowed is the name under which the sentinels watch the master",
                "t:14: store.sentinel_user: has no password, allowed with store.sentinel_password",
            ],
        ),
        (
            "[store]\nurl = \"rediss://h\"\nca_file = \"/dev/null\"\n",
            &["t:12: store.ca_file: file \"/dev/null\" holds no certificate, allowed is a chain in PEM"],
        ),
    ]);
}

#[test]
fn nodes_of_one_store_agree_in_scheme_login_and_database() {
    let nodes = |topology: &str, nodes: &[&str], expected: &[&str]| {
        let text = format!("[store]\ntopology = {topology:?}\nmaster_name = \"m\"\nnodes = {nodes:?}\n");
        let text = if topology == "cluster" { text.replace("master_name = \"m\"", "") } else { text };
        let expected: Vec<String> = expected.iter().map(|fault| format!("t:13: store.nodes{fault}")).collect();
        assert_eq!(faults(&with(&text)), expected, "{text}");
    };
    nodes(
        "cluster",
        &["redis://h:1", "rediss://h:2", "redis://:s3cret@h:3", "redis://h:1"],
        &[
            "[2]: has another scheme than the first node, allowed is one for all",
            "[3]: has another user, password or database than the first node, allowed is one for all",
            "[4]: is given twice, allowed is each server once",
        ],
    );
    nodes("cluster", &["redis://h/1"], &["[1]: names a database, allowed is none: a cluster has only number 0"]);
    nodes("sentinel", &["redis://h/1", "redis://i/1"], &[]);
    nodes(
        "sentinel",
        &["redis://h/1", "redis://i"],
        &["[2]: has another user, password or database than the first node, allowed is one for all"],
    );
}
