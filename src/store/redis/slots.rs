//! Which slot of a cluster a key lives in, and which node holds that slot.

use redis::Value;

use crate::config::Address;

/// Slots of every cluster.
pub(super) const SLOTS: usize = 16_384;

/// The slot of a key: CRC16/XMODEM of its hash tag, or of the whole key where there is none.
/// [Cluster specification](https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags)
pub(super) fn slot(key: &str) -> u16 {
    let key = key.as_bytes();
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let inside = &key[open + 1..];
        inside.iter().position(|&byte| byte == b'}').map(|close| &inside[..close])
    });
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key)) % SLOTS as u16
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)])
}

/// The remainders of all bytes by the polynomial 0x1021.
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Slots `first ..= last` and the master that holds them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) master: Address,
}

/// Reads the reply to `CLUSTER SLOTS` of the server at `asked`; `None` if it is not one.
///
/// A node that does not know its own address, or that is meant to be reached as the one asked is, gives none.
pub(super) fn ranges(reply: &Value, asked: &Address) -> Option<Vec<Range>> {
    let Value::Array(entries) = reply else { return None };
    entries.iter().map(|entry| range(entry, asked)).collect()
}

fn range(entry: &Value, asked: &Address) -> Option<Range> {
    let Value::Array(fields) = entry else { return None };
    let [first, last, Value::Array(master), ..] = fields.as_slice() else { return None };
    let [host, port, ..] = master.as_slice() else { return None };
    let host = match host {
        Value::Nil => "",
        host => text(host)?,
    };
    let (first, last) = (number(first)?, number(last)?);
    if first > last || usize::from(last) >= SLOTS {
        return None;
    }
    let port = number(port)?;
    Some(Range { first, last, master: address(host, port, asked)? })
}

/// The address that a node is given by; no host, or one that is not known, is the host that was asked.
fn address(host: &str, port: u16, asked: &Address) -> Option<Address> {
    let host = if host.is_empty() || host == "?" { &asked.host } else { host };
    (port != 0).then(|| Address { host: host.to_owned(), port })
}

/// Where `MOVED` and `ASK` point to: `SLOT HOST:PORT`, said by the server at `asked`. The host of IPv6 has no brackets.
pub(super) fn redirection(detail: &str, asked: &Address) -> Option<(u16, Address)> {
    let (slot, to) = detail.split_once(' ')?;
    let (host, port) = to.rsplit_once(':')?;
    Some((slot.parse().ok()?, address(host, port.parse().ok()?, asked)?))
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::key::KeyRef;

    fn address(text: &str) -> Address {
        let (host, port) = text.rsplit_once(':').unwrap();
        Address { host: host.to_owned(), port: port.parse().unwrap() }
    }

    /// Slots by `CLUSTER KEYSLOT` of Redis 7.0; 0x31C3 is the check value of CRC16/XMODEM.
    #[test]
    fn slot_is_the_one_that_redis_computes() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, expected) in [
            ("", 0),
            ("123456789", 12739),
            ("foo", 12182),
            ("{foo}bar", 12182),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
            ("foo{bar}{zap}", 5061),
            ("{open", 7674),
        ] {
            assert_eq!(slot(key), expected, "{key}");
        }
    }

    #[test]
    fn all_buckets_of_a_tenant_share_a_slot_whatever_its_id_holds() {
        for tenant in ["shop-a", "{", "}", "{}", "a}b{c", ":", "é ü"] {
            let slots = ["one", "two}", "{three"].map(|route| {
                let route: Arc<str> = route.into();
                let [plain, shadow] = [false, true]
                    .map(|shadow| slot(&KeyRef { tenant, route: &route, shadow, shard: None }.to_key().in_redis("rl")));
                assert_eq!(plain, shadow);
                plain
            });
            assert!(slots.iter().all(|&slot| slot == slots[0]), "{tenant}: {slots:?}");
        }
        let spread = |shard| {
            let route: Arc<str> = "one".into();
            slot(&KeyRef { tenant: "shop-a", route: &route, shadow: false, shard: Some(shard) }.to_key().in_redis("rl"))
        };
        assert_ne!(spread(0), spread(1), "the sub-buckets of a sharded rule are to spread");
    }

    fn node(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), Value::SimpleString("id".to_owned()), Value::Array(Vec::new())])
    }

    fn entry(first: i64, last: i64, master: Value) -> Value {
        Value::Array(vec![Value::Int(first), Value::Int(last), master, node(Value::Nil, 7009)])
    }

    #[test]
    fn a_node_without_a_host_is_where_the_one_that_was_asked_is() {
        let asked = address("asked:7000");
        let hosts = [Value::BulkString(b"10.0.0.1".to_vec()), Value::Nil, Value::BulkString(Vec::new())];
        let reply = Value::Array(hosts.into_iter().map(|host| entry(0, 16383, node(host, 7001))).collect());
        let masters: Vec<String> =
            ranges(&reply, &asked).unwrap().iter().map(|range| range.master.to_string()).collect();
        assert_eq!(masters, ["10.0.0.1:7001", "asked:7001", "asked:7001"]);
    }

    #[test]
    fn a_reply_that_is_not_a_map_of_slots_is_none() {
        let asked = address("asked:7000");
        let good = || node(Value::Nil, 7001);
        for bad in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![entry(5, 4, good())]),
            Value::Array(vec![entry(0, 16384, good())]),
            Value::Array(vec![entry(-1, 5, good())]),
            Value::Array(vec![entry(0, 5, node(Value::Nil, 0))]),
            Value::Array(vec![entry(0, 5, node(Value::Int(1), 7001))]),
        ] {
            assert_eq!(ranges(&bad, &asked), None, "{bad:?}");
        }
    }

    #[test]
    fn a_redirection_names_the_node_to_ask() {
        let asked = address("asked:7000");
        let to = |detail| redirection(detail, &asked).map(|(_, address)| address.to_string());
        assert_eq!(to("3999 127.0.0.1:6381").as_deref(), Some("127.0.0.1:6381"));
        assert_eq!(to("3999 ::1:6381").as_deref(), Some("[::1]:6381"));
        assert_eq!(to("3999 :6381").as_deref(), Some("asked:6381"));
        assert_eq!(to("3999 ?:6381").as_deref(), Some("asked:6381"));
        for bad in ["", "3999", "3999 host", "3999 host:x", "3999 host:0"] {
            assert_eq!(to(bad), None, "{bad}");
        }
    }
}
