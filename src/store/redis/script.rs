//! The bucket script: its call as a Redis command, its reply as a bucket's.

use redis::{Cmd, Script, ServerErrorKind, Value};

use super::Message;
use crate::bucket::{Reply, Report};
use crate::store::{Kind, StoreError};

const TEXT: &str = include_str!("../../../scripts/redis/token_bucket.lua");

/// The script, by its text and by the hash that Redis caches it under.
#[derive(Clone, Debug)]
pub(super) struct BucketScript {
    hash: String,
}

/// What Redis said to one call.
#[derive(Debug)]
pub(super) enum Answer {
    /// The bucket's reply; `healed`: the key held something that is not a bucket, and was started full.
    Reply { reply: Reply, healed: bool },
    /// Redis lost the script (restart, failover, `SCRIPT FLUSH`); nothing was executed.
    NoScript,
    /// Redis was demoted; another server must be found.
    Demoted,
    /// Anything else.
    Failed(StoreError),
}

impl BucketScript {
    pub(super) fn new() -> Self {
        Self { hash: Script::new(TEXT).get_hash().to_owned() }
    }

    /// Loads the script into Redis's cache, where only `SCRIPT FLUSH` or a restart removes it.
    pub(super) fn load() -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(TEXT);
        command
    }

    /// The call by the script's hash.
    pub(super) fn by_hash(&self, key: &str, call: &Message) -> Cmd {
        arguments(redis::cmd("EVALSHA").arg(&self.hash), key, call)
    }

    /// The call with the script's text, which works whatever is cached.
    pub(super) fn by_text(key: &str, call: &Message) -> Cmd {
        arguments(redis::cmd("EVAL").arg(TEXT), key, call)
    }
}

fn arguments(command: &mut Cmd, key: &str, call: &Message) -> Cmd {
    command.arg(1).arg(key).arg(call.limit.capacity()).arg(call.limit.refill_per_second()).arg(call.demand.len());
    for demand in &call.demand {
        command.arg(demand.cost).arg(demand.count);
    }
    // Most calls are for keys that are not leased: what they have nothing to say of need not be read.
    let Report { generation, used, held, back, owed } = call.report;
    if call.prefetch + used + held + back + owed > 0 {
        command.arg(call.prefetch).arg(generation).arg(used).arg(held).arg(back).arg(owed);
    }
    std::mem::take(command)
}

/// Reads one element of a pipeline's reply.
pub(super) fn read(value: Value) -> Answer {
    match value {
        Value::ServerError(error) => match error.kind() {
            Some(ServerErrorKind::NoScript) => Answer::NoScript,
            Some(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => Answer::Demoted,
            _ => Answer::Failed(Kind::Refused(error.to_string()).into()),
        },
        Value::Array(fields) => match numbers(&fields) {
            Some((reply, healed)) => Answer::Reply { reply, healed },
            None => Answer::Failed(Kind::Garbled(format!("{fields:?}")).into()),
        },
        other => Answer::Failed(Kind::Garbled(format!("{other:?}")).into()),
    }
}

fn numbers(fields: &[Value]) -> Option<(Reply, bool)> {
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
    Some((reply, healed == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_is_not_a_buckets_is_named_never_believed() {
        let int = |values: &[i64]| Value::Array(values.iter().map(|&v| Value::Int(v)).collect());
        for garbled in [int(&[1, 0, 5]), int(&[1, -1, 5, 1, 9, 0, 0]), Value::Okay, Value::Nil] {
            assert!(matches!(read(garbled), Answer::Failed(_)));
        }
        let Answer::Reply { reply, healed } = read(int(&[1, 2, 3, 1, 4, -1, 1])) else { panic!("a reply") };
        assert_eq!((reply.granted, reply.prefetched, reply.generation, reply.tokens), (1, 2, 3, 4));
        assert_eq!((reply.stash_known, reply.wait_ms, healed), (true, None, true));
    }
}
