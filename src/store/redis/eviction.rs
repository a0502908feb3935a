//! Whether a server may evict buckets: one that runs out of memory and drops a bucket has forgotten what was spent.

use std::collections::HashMap;
use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;

/// It may be configured anew at any time.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// What a server does when its memory is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Eviction {
    /// `maxmemory-policy`
    pub(super) policy: String,
    /// `maxmemory` in bytes; 0: no bound.
    pub(super) max_memory: u64,
}

impl Eviction {
    /// Buckets have a time to live, so that every policy but `noeviction` picks from them.
    pub(super) fn can_evict(&self) -> bool {
        self.max_memory > 0 && self.policy != "noeviction"
    }

    /// Asks the server; users that may not read its configuration find it in `INFO`. `None` if neither says it.
    ///
    /// # Errors
    /// When the server does not answer.
    pub(super) async fn ask(connection: &mut MultiplexedConnection) -> RedisResult<Option<Self>> {
        let mut config = redis::cmd("CONFIG");
        // One pattern, since before Redis 7 there could be no second.
        match config.arg("GET").arg("maxmemory*").query_async(connection).await {
            Ok(settings) => return Ok(Self::from_config(&settings)),
            Err(error) if error.is_io_error() => return Err(error),
            Err(_) => {}
        }
        match redis::cmd("INFO").arg("memory").query_async::<String>(connection).await {
            Ok(info) => Ok(Self::from_info(&info)),
            Err(error) if error.is_io_error() => Err(error),
            Err(_) => Ok(None),
        }
    }

    fn from_config(settings: &HashMap<String, String>) -> Option<Self> {
        let max_memory = settings.get("maxmemory")?.parse().ok()?;
        Some(Self { policy: settings.get("maxmemory-policy")?.clone(), max_memory })
    }

    fn from_info(info: &str) -> Option<Self> {
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Some(Self { policy: field("maxmemory_policy")?.to_owned(), max_memory: field("maxmemory")?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eviction(policy: &str, max_memory: u64) -> Eviction {
        Eviction { policy: policy.to_owned(), max_memory }
    }

    #[test]
    fn only_a_bound_and_a_policy_that_picks_keys_evict() {
        assert!(eviction("allkeys-lru", 1).can_evict());
        assert!(eviction("volatile-ttl", 1 << 30).can_evict());
        assert!(!eviction("allkeys-lru", 0).can_evict());
        assert!(!eviction("noeviction", 1).can_evict());
    }

    #[test]
    fn configuration_and_info_say_the_same() {
        let config = [("maxmemory", "100"), ("maxmemory-policy", "allkeys-lfu"), ("maxmemory-samples", "5")];
        let config = config.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
        let info =
            "# Memory\r\nused_memory:5\r\nmaxmemory:100\r\nmaxmemory_human:100B\r\nmaxmemory_policy:allkeys-lfu\r\n";
        assert_eq!(Eviction::from_config(&config), Some(eviction("allkeys-lfu", 100)));
        assert_eq!(Eviction::from_info(info), Some(eviction("allkeys-lfu", 100)));
        assert_eq!((Eviction::from_config(&HashMap::new()), Eviction::from_info("")), (None, None));
    }
}
