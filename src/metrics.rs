//! The Prometheus series.
