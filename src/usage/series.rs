//! What is counted: decisions by tenant, route, rule and outcome.

use compact_str::CompactString;
use percent_encoding::percent_decode_str;

use crate::decision::Outcome;
use crate::key::encoded;
use crate::rule::Scope;

/// How a decision is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Counted {
    /// It passed.
    Allowed,
    /// The limit was reached.
    Denied,
    /// A rule in shadow mode would have denied it. Counted beside what was decided.
    ShadowDenied,
    /// The store did not answer, and the rule said `closed`.
    Unavailable,
}

impl Counted {
    pub(super) const ALL: [Self; 4] = [Self::Allowed, Self::Denied, Self::ShadowDenied, Self::Unavailable];

    /// As in `sekisho_decisions_total`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::ShadowDenied => "shadow_denied",
            Self::Unavailable => "unavailable",
        }
    }
}

impl From<Outcome> for Counted {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Allowed => Self::Allowed,
            Outcome::Denied { .. } => Self::Denied,
            Outcome::Unavailable => Self::Unavailable,
        }
    }
}

/// A series without its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct What {
    /// Its place in the configuration.
    pub(super) route: u32,
    pub(super) rule: Scope,
    pub(super) counted: Counted,
}

/// What one counter counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Series {
    pub(super) tenant: CompactString,
    pub(super) what: What,
}

/// A counter of a tenant as it is shown: route, and tenant and route of the rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) route: String,
    pub(super) rule: (String, String),
}

impl Name {
    pub(super) fn new(tenant: &str, route: &str, rule: Scope) -> Self {
        let ids = rule.ids(tenant, route);
        Self { route: route.to_owned(), rule: (ids.0.to_owned(), ids.1.to_owned()) }
    }

    /// `route|tenant/route|outcome`, each id percent-encoded: a field of the hashes in Redis.
    pub(super) fn field(&self, counted: Counted) -> String {
        let (tenant, route) = &self.rule;
        format!("{}|{}/{}|{}", encoded(&self.route), encoded(tenant), encoded(route), counted.name())
    }

    /// The inverse; `None` if it is none of ours.
    pub(super) fn parse(field: &str) -> Option<(Self, Counted)> {
        let mut parts = field.split('|');
        let (Some(route), Some(rule), Some(counted), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return None;
        };
        let (rule_tenant, rule_route) = rule.split_once('/')?;
        let decoded = |id: &str| percent_decode_str(id).decode_utf8().ok().map(|id| id.into_owned());
        let counted = Counted::ALL.into_iter().find(|known| known.name() == counted)?;
        Some((Self { route: decoded(route)?, rule: (decoded(rule_tenant)?, decoded(rule_route)?) }, counted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_in_redis_names_route_rule_and_outcome_whatever_the_ids_hold() {
        let any = |any_tenant, any_route| Scope { any_tenant, any_route };
        let name = Name::new("shop-a", "export", any(true, false));
        assert_eq!(name.field(Counted::Denied), "export|%2A/export|denied");
        for (tenant, route) in [("shop-a", "export"), ("a|b/c", "|"), ("%7C", "/"), ("é ü", "*")] {
            for rule in [any(false, false), any(false, true), any(true, false), any(true, true)] {
                for counted in Counted::ALL {
                    let name = Name::new(tenant, route, rule);
                    assert_eq!(Name::parse(&name.field(counted)), Some((name, counted)));
                }
            }
        }
        for foreign in ["", "a", "a|b|allowed", "a|b/c|other", "a|b/c|allowed|x", "%FF|a/b|allowed"] {
            assert_eq!(Name::parse(foreign), None, "{foreign}");
        }
    }
}
