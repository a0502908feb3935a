//! What Redis's reply to one call says: of the call, and of the node.

use redis::{RedisError, ServerError, Value};

use super::job::Answer;
use super::script::Command;
use crate::bucket::Reply;
use crate::store::{Kind, StoreError};

/// One reply.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Answered; `healed`: the key held something that is not a bucket, and was started full.
    Answered { answer: Answer, healed: bool },
    /// Redis lost the script (restart, failover, `SCRIPT FLUSH`); nothing was executed.
    NoScript,
    /// Another node of a cluster has the key; nothing was executed.
    Elsewhere(Redirect),
    /// The node cannot be written to: another has to be found.
    Demoted(StoreError),
    /// The node cannot serve calls.
    Unwell(StoreError),
    /// This call cannot be served; that says nothing of others.
    Refused(StoreError),
}

/// Where a cluster says that a key is, for good (`MOVED`) or for this call (`ASK`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirect {
    pub(super) asking: bool,
    /// The slot and the address, as Redis writes them.
    pub(super) to: String,
}

impl From<Redirect> for StoreError {
    fn from(redirect: Redirect) -> Self {
        Kind::Refused(format!("{} {}", if redirect.asking { "ASK" } else { "MOVED" }, redirect.to)).into()
    }
}

/// Codes of a node that is no master, or none with a master.
const DEMOTED: [&str; 2] = ["READONLY", "MASTERDOWN"];
/// Codes of a node that cannot serve calls, whatever their key.
const UNWELL: [&str; 9] =
    ["LOADING", "CLUSTERDOWN", "OOM", "BUSY", "NOREPLICAS", "MISCONF", "NOAUTH", "NOPERM", "TRYAGAIN"];

/// Reads one element of the reply to a pipeline.
pub(super) fn read(command: &Command, value: Value) -> Outcome {
    let answer = match (command, value) {
        (_, Value::ServerError(error)) => return refusal(&error),
        (Command::Bucket { .. }, Value::Array(fields)) => bucket(&fields).ok_or(Value::Array(fields)),
        (Command::Beat { .. }, Value::Int(alive)) => {
            u32::try_from(alive).map(|alive| (Answer::Alive(alive), false)).map_err(|_| Value::Int(alive))
        }
        (_, other) => Err(other),
    };
    match answer {
        Ok((answer, healed)) => Outcome::Answered { answer, healed },
        Err(garbled) => Outcome::Unwell(Kind::Garbled(format!("{garbled:?}")).into()),
    }
}

/// What an error says.
pub(super) fn refusal(error: &ServerError) -> Outcome {
    let details = error.details().unwrap_or_default();
    let refused = || StoreError::from(Kind::Refused(format!("{} {details}", error.code())));
    let redirect = |asking| Outcome::Elsewhere(Redirect { asking, to: details.to_owned() });
    match error.code() {
        "NOSCRIPT" => Outcome::NoScript,
        "MOVED" => redirect(false),
        "ASK" => redirect(true),
        code if says(code, details, &DEMOTED) => Outcome::Demoted(refused()),
        code if says(code, details, &UNWELL) => Outcome::Unwell(refused()),
        _ => Outcome::Refused(refused()),
    }
}

/// An error as Redis writes it, with its code.
pub(super) fn text(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

/// Before Redis 7 an error inside a script has the code `ERR`, and its own further back, after a dash.
fn says(code: &str, details: &str, codes: &[&str]) -> bool {
    let inside = || details.rsplit_once(": -").and_then(|(_, error)| error.split(' ').next());
    codes.contains(&code) || (code == "ERR" && inside().is_some_and(|code| codes.contains(&code)))
}

fn bucket(fields: &[Value]) -> Option<(Answer, bool)> {
    let mut numbers = [0_i64; 7];
    if fields.len() != numbers.len() {
        return None;
    }
    for (number, field) in numbers.iter_mut().zip(fields) {
        let Value::Int(value) = field else { return None };
        *number = *value;
    }
    let [granted, prefetched, generation, known, tokens, wait, healed] = numbers;
    let reply = Reply {
        granted: granted.try_into().ok()?,
        prefetched: prefetched.try_into().ok()?,
        generation: generation.try_into().ok()?,
        stash_known: known == 1,
        tokens: tokens.try_into().ok()?,
        wait_ms: if wait < 0 { None } else { Some(wait as u64) },
    };
    Some((Answer::Bucket(reply), healed == 1))
}

#[cfg(test)]
mod tests {
    use redis::parse_redis_value;

    use super::*;
    use crate::bucket::{Limit, Report};
    use crate::store::redis::Message;

    fn call() -> Command {
        let limit = Limit::new(10, 1.0).unwrap();
        let call = Message { limit, demand: [].into_iter().collect(), prefetch: 0, report: Report::default() };
        Command::Bucket { key: "rl:{a}:b".to_owned(), call }
    }

    fn int(values: &[i64]) -> Value {
        Value::Array(values.iter().map(|&v| Value::Int(v)).collect())
    }

    fn error(text: &str) -> Outcome {
        read(&call(), parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap())
    }

    #[test]
    fn a_reply_that_is_not_a_buckets_is_named_never_believed_and_says_that_the_node_is_unwell() {
        for garbled in [int(&[1, 0, 5]), int(&[1, -1, 5, 1, 9, 0, 0]), Value::Okay, Value::Nil, Value::Int(3)] {
            assert!(matches!(read(&call(), garbled), Outcome::Unwell(_)));
        }
        let beat = Command::Beat { key: "rl:gateways".to_owned(), id: "a".to_owned(), leaves: false };
        for garbled in [int(&[1, 2, 3, 1, 4, -1, 1]), Value::Int(-1)] {
            assert!(matches!(read(&beat, garbled), Outcome::Unwell(_)));
        }
        assert!(matches!(read(&beat, Value::Int(3)), Outcome::Answered { answer: Answer::Alive(3), .. }));
    }

    #[test]
    fn a_buckets_reply_is_read() {
        let read = read(&call(), int(&[1, 2, 3, 1, 4, -1, 1]));
        let Outcome::Answered { answer: Answer::Bucket(reply), healed } = read else { panic!("a reply: {read:?}") };
        assert_eq!((reply.granted, reply.prefetched, reply.generation, reply.tokens), (1, 2, 3, 4));
        assert_eq!((reply.stash_known, reply.wait_ms, healed), (true, None, true));
    }

    #[test]
    fn errors_of_a_node_are_told_from_errors_of_a_key_and_from_redirections() {
        assert!(matches!(error("NOSCRIPT No matching script."), Outcome::NoScript));
        let Outcome::Elsewhere(moved) = error("MOVED 3999 127.0.0.1:6381") else { panic!("moved") };
        assert_eq!(moved, Redirect { asking: false, to: "3999 127.0.0.1:6381".to_owned() });
        let Outcome::Elsewhere(ask) = error("ASK 3999 127.0.0.1:6381") else { panic!("ask") };
        assert!(ask.asking);
        for demoted in [
            "READONLY You can't write against a read only replica.",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "ERR Error running script (call to f_01): @user_script:90: @user_script: 90: -READONLY You can't write \
             against a read only replica.",
        ] {
            assert!(matches!(error(demoted), Outcome::Demoted(_)), "{demoted}");
        }
        for unwell in [
            "LOADING Redis is loading the dataset in memory",
            "CLUSTERDOWN The cluster is down",
            "OOM command not allowed when used memory > 'maxmemory'. script: 01, on @user_script:90.",
            "ERR Error running script (call to f_01): @user_script:90: @user_script: 90: -OOM command not allowed when \
             used memory > 'maxmemory'.",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            "NOREPLICAS Not enough good replicas to write.",
            "MISCONF Errors writing to disk.",
            "NOAUTH Authentication required.",
        ] {
            assert!(matches!(error(unwell), Outcome::Unwell(_)), "{unwell}");
        }
        for of_the_key in
            ["ERR user_script:12: attempt to compare nil with number", "WRONGTYPE Operation against a key"]
        {
            assert!(matches!(error(of_the_key), Outcome::Refused(_)), "{of_the_key}");
        }
    }
}
