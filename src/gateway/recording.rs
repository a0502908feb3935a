//! What is told of each request, beside it: who was limited, and the access log.

use std::sync::Arc;

use pingora::http::RequestHeader;

use super::Ctx;
use super::stamp::Verdict;
use crate::access_log::{AccessLog, Entry};
use crate::rule::Rule;
use crate::usage::{Counted, Usage};
use crate::wall;

/// Who is told. The default is nobody.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Told of each decision.
    pub usage: Option<Arc<Usage>>,
    /// Told of each answer.
    pub access_log: Option<Arc<AccessLog>>,
}

impl Recording {
    /// `rule` decided about a request of this tenant, for the route at this place.
    #[inline]
    pub(super) fn decided(&self, tenant: &str, route: usize, rule: &Rule, counted: Counted) {
        if let Some(usage) = &self.usage {
            usage.count(tenant, route, rule, counted);
        }
    }

    /// A request was answered, so many seconds after its head was there.
    pub(super) fn answered(&self, head: &RequestHeader, ctx: &mut Ctx, status: u16, seconds: f64) {
        let Some(log) = self.access_log.as_ref().filter(|log| log.wants()) else { return };
        let charged = ctx.charged.take();
        let decided = |verdict: &Verdict| Some((charged?, verdict.rule.scope(), verdict.decision));
        log.log(Entry {
            at_ms: wall::now_ms().saturating_sub((seconds * 1000.0) as u64),
            method: head.method.clone(),
            route: ctx.route,
            decided: ctx.verdict.as_ref().and_then(decided),
            status,
            seconds,
        });
    }
}
