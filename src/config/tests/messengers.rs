//! `rules.listen`, `rules.redis_channel`, `[rules.kafka]`.

use super::{faults, with};

#[test]
fn messengers_of_rule_changes_need_what_they_come_from() {
    let database = "[rules]\ndatabase_url = \"postgres://h/d\"\n";
    let file = "[rules]\nfile = \"f\"\n";
    for (more, expected) in [
        (format!("{database}listen = true\nlisten_url = \"postgres://h/d?sslmode=verify-full\"\n"), vec![]),
        (format!("{database}listen = false\n"), vec![]),
        (
            format!("{database}listen = false\nlisten_url = \"postgres://h/d\"\n"),
            vec!["t:13: rules.listen_url: is of no use, allowed with rules.listen = true"],
        ),
        (
            format!("{database}listen_url = \"mysql://h/d\"\n"),
            vec![
                "t:12: rules.listen_url: is not the URL of a PostgreSQL, allowed is \
                 postgres://user:password@host[:port]/database",
            ],
        ),
        (
            format!("{file}listen = true\nlisten_url = \"postgres://h/d\"\n"),
            vec![
                "t:12: rules.listen: is of no use, allowed with rules.database_url",
                "t:13: rules.listen_url: is of no use, allowed with rules.database_url",
            ],
        ),
        (format!("{file}listen = false\n"), vec![]),
        (
            format!("{file}redis_channel = \"rl:rules-changed\"\n"),
            vec!["t:12: rules.redis_channel: is of no use, allowed where the store is a Redis"],
        ),
        (format!("{file}redis_channel = \"rl:rules-changed\"\n[store]\nurl = \"redis://h\"\n"), vec![]),
        (
            format!("{file}redis_channel = \"\"\n[store]\nurl = \"redis://h\"\n"),
            vec![
                "t:12: rules.redis_channel: \"\" is not a channel, allowed are 1 to 256 bytes without control characters",
            ],
        ),
    ] {
        assert_eq!(faults(&with(&more)), expected, "{more}");
    }
}

#[test]
#[cfg(not(feature = "kafka"))]
fn kafka_is_refused_by_a_program_that_was_built_without_it() {
    let more = "[rules]\nfile = \"f\"\n[rules.kafka]\nbrokers = [\"127.0.0.1:9092\"]\ntopic = \"rules\"\n";
    let expected =
        "t:12: rules.kafka: this program was built without Kafka, allowed after cargo build --features kafka";
    assert_eq!(faults(&with(more)), [expected]);
}

#[test]
#[cfg(feature = "kafka")]
fn kafka_names_its_brokers_and_topic_and_options_that_librdkafka_takes() {
    let kafka = |more: &str| faults(&with(&format!("[rules]\nfile = \"f\"\n[rules.kafka]\n{more}")));
    let good = "brokers = [\"127.0.0.1:9092\", \"kafka.internal:9092\"]\ntopic = \"rules\"\n";
    let options =
        "[rules.kafka.options]\n\"security.protocol\" = \"sasl_ssl\"\n\"sasl.mechanism\" = \"SCRAM-SHA-512\"\n";
    assert_eq!(kafka(&format!("{good}{options}")), [] as [&str; 0]);
    let found = kafka(&format!(
        "{good}[rules.kafka.options]\n\"group.id\" = \"x\"\n\"no.such\" = \"x\"\n\"session.timeout.ms\" = \"soon\"\n\
         \"client.rack\" = 7\n"
    ));
    assert_eq!(
        found,
        [
            "t:16: rules.kafka.options.\"group.id\": is set by the gateway, allowed are other settings of librdkafka",
            "t:17: rules.kafka.options.\"no.such\": is no setting of librdkafka, allowed are those of its \
             CONFIGURATION.md",
            "t:18: rules.kafka.options.\"session.timeout.ms\": has a value that librdkafka does not take, see its \
             CONFIGURATION.md",
            "t:19: rules.kafka.options.\"client.rack\": is an integer, allowed is a string",
        ]
    );
    for (more, expected) in [
        ("", "t:12: rules.kafka.brokers: is missing, but required"),
        ("brokers = []\ntopic = \"r\"\n", "t:13: rules.kafka.brokers: is empty"),
        ("brokers = [\"h\"]\ntopic = \"r\"\n", "t:13: rules.kafka.brokers[1]: \"h\" is not a server"),
        ("brokers = [\"h:1\"]\ntopic = \"a b\"\n", "t:14: rules.kafka.topic: \"a b\" is not a topic"),
    ] {
        let found = kafka(more);
        assert!(found[0].starts_with(expected), "{found:?}");
    }
}
