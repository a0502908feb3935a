//! Where buckets live.
