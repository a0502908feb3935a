//! `[usage]` and `[access_log]`

use super::value::{Parsed, file_path};
use crate::config::fault::{At, Report};
use crate::config::{AccessLog, IdentityMode, LogTarget, Usage, file};

/// Checks `[usage]` and fills in its defaults.
pub(super) fn usage(raw: &file::Usage, report: &Report) -> Usage {
    let default = Usage::default();
    Usage {
        enabled: raw.enabled.as_ref().map_or(default.enabled, |enabled| enabled.value),
        shared: raw.shared.as_ref().map_or(default.shared, |shared| shared.value),
        max_series: report.integer(&raw.max_series, 100..=1_000_000).unwrap_or(default.max_series),
    }
}

/// Checks `[access_log]`. Where keys are secrets, who their tenants are is not for everybody either.
pub(super) fn access_log(raw: &file::AccessLog, mode: &IdentityMode, report: &Report) -> Option<AccessLog> {
    let sample = raw.sample.as_ref().map(|At { value, place }| {
        if !(*value > 0.0 && *value <= 1.0) {
            report.note(place, format!("{value} is out of range, allowed is more than 0 up to 1"));
        }
        *value
    });
    let hash_by_default = matches!(mode, IdentityMode::Registered { .. });
    Some(AccessLog {
        target: report.parse(&raw.path, target)?,
        sample: sample.unwrap_or(1.0),
        hash_tenants: raw.hash_tenants.as_ref().map_or(hash_by_default, |hash| hash.value),
    })
}

fn target(text: &str) -> Parsed<LogTarget> {
    match text {
        "-" => Ok(LogTarget::Stdout),
        path => file_path(path).map(LogTarget::File),
    }
}
