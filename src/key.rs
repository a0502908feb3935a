//! The name of a bucket: borrowed while a request looks for it, owned where it is kept, text in Redis.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use compact_str::CompactString;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};

/// Every byte but these is percent-encoded in a key, so that no id can end a hash tag or imitate another key.
const ID: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'~').remove(b'-');

/// An id as it stands in a key.
pub fn encoded(id: &str) -> PercentEncode<'_> {
    utf8_percent_encode(id, ID)
}

/// A bucket's name, borrowed from a request.
#[derive(Clone, Copy, Debug)]
pub struct KeyRef<'a> {
    /// Who asks.
    pub tenant: &'a str,
    /// For which route.
    pub route: &'a Arc<str>,
    /// The bucket of a rule in shadow mode, beside the one that decides.
    pub shadow: bool,
    /// The sub-bucket of a sharded rule.
    pub shard: Option<u8>,
}

/// A bucket's name, kept. A tenant of up to 24 bytes stands in the key itself, one cache miss nearer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    tenant: CompactString,
    route: Arc<str>,
    shadow: bool,
    shard: Option<u8>,
}

impl KeyRef<'_> {
    /// The name to keep.
    pub fn to_key(self) -> Key {
        Key { tenant: self.tenant.into(), route: Arc::clone(self.route), shadow: self.shadow, shard: self.shard }
    }
}

/// Tenants differ more than routes, and most routes are the very same text.
impl PartialEq for KeyRef<'_> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.tenant == other.tenant
            && (self.shadow, self.shard) == (other.shadow, other.shard)
            && (Arc::ptr_eq(self.route, other.route) || self.route == other.route)
    }
}

impl Eq for KeyRef<'_> {}

/// Not derived: the route is hashed by its text, so that [`Key`] and [`KeyRef`] hash alike wherever the text lives.
impl Hash for KeyRef<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.tenant.hash(state);
        self.route.hash(state);
        state.write_u16(self.shard.map_or(0, |shard| u16::from(shard) + 1) << 1 | u16::from(self.shadow));
    }
}

impl Key {
    /// The same name, borrowed.
    #[inline]
    pub fn as_ref(&self) -> KeyRef<'_> {
        KeyRef { tenant: &self.tenant, route: &self.route, shadow: self.shadow, shard: self.shard }
    }

    /// The name in Redis: `rl:{tenant}:route`, tenant and route percent-encoded, the tenant being the cluster's hash
    /// tag; a shadow rule's bucket ends in `:shadow`. The sub-buckets of a sharded rule have no hash tag, so that they
    /// spread over the cluster: `rl:tenant:route:0` …
    pub fn in_redis(&self, prefix: &str) -> String {
        let (tenant, route) = (encoded(&self.tenant), encoded(&self.route));
        let suffix = if self.shadow { ":shadow" } else { "" };
        match self.shard {
            None => format!("{prefix}:{{{tenant}}}:{route}{suffix}"),
            Some(shard) => format!("{prefix}:{tenant}:{route}:{shard}{suffix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_redis(tenant: &str, route: &str, shadow: bool, shard: Option<u8>) -> String {
        KeyRef { tenant, route: &route.into(), shadow, shard }.to_key().in_redis("rl")
    }

    #[test]
    fn names_a_bucket_as_documented() {
        assert_eq!(in_redis("shop-a", "create-order", false, None), "rl:{shop-a}:create-order");
        assert_eq!(in_redis("shop-a", "create-order", true, None), "rl:{shop-a}:create-order:shadow");
        assert_eq!(in_redis("shop-a", "create-order", false, Some(0)), "rl:shop-a:create-order:0");
        assert_eq!(in_redis("shop-a", "create-order", true, Some(9)), "rl:shop-a:create-order:9:shadow");
    }

    #[test]
    fn no_id_can_break_the_hash_tag_or_imitate_another_key() {
        assert_eq!(in_redis("}a{:b", "x:shadow", false, None), "rl:{%7Da%7B%3Ab}:x%3Ashadow");
        assert_eq!(in_redis("%7D", "é ", false, None), "rl:{%257D}:%C3%A9%20");
    }
}
