//! The registered API keys: SHA-256 of the secret → tenant.

use std::sync::Arc;

/// The keys in force, replaced as a whole when their source changes.
#[derive(Debug, Default)]
pub struct Keys {
    current: arc_swap::ArcSwap<std::collections::HashMap<[u8; 32], Arc<str>>>,
}

impl Keys {
    /// The tenant that a key belongs to, by the SHA-256 of the key.
    pub fn tenant(&self, sha256: &[u8; 32]) -> Option<Arc<str>> {
        self.current.load().get(sha256).cloned()
    }
}
