//! What names a rule: no two have the same tenant, route and mode. Pages of rules are in the order of these.

use std::fmt;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha2::{Digest, Sha256};

use super::super::raw::check_id;
use super::super::{Mode, Rule};
use super::Row;
use crate::rule::shown;

/// Every byte but these is escaped in a cursor, by `~` and two digits: a cursor needs no further escaping in a query.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-').remove(b'*');

/// Names a rule. Ordered by the bytes of tenant and route, enforcing before shadow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId {
    /// Whose rule it is, or `*`.
    pub tenant_id: Arc<str>,
    /// For which route, or `*`.
    pub route_id: Arc<str>,
    /// Whether it decides.
    pub mode: Mode,
}

impl RuleId {
    /// Checks both ids.
    ///
    /// # Errors
    /// One sentence: what is wrong and what is allowed.
    pub fn new(tenant_id: &str, route_id: &str, mode: Mode) -> Result<Self, String> {
        check_id("tenant_id", Some(tenant_id))?;
        check_id("route_id", Some(route_id))?;
        Ok(Self { tenant_id: tenant_id.into(), route_id: route_id.into(), mode })
    }

    /// That of a rule.
    pub fn of(rule: &Rule) -> Self {
        Self { tenant_id: Arc::clone(&rule.tenant_id), route_id: Arc::clone(&rule.route_id), mode: rule.mode }
    }

    /// As text from which [`from_cursor`](Self::from_cursor) reads it: `shop-a/orders`, `shop-a/orders/shadow`.
    pub fn cursor(&self) -> String {
        let escaped = |id| utf8_percent_encode(id, SEGMENT).to_string().replace('%', "~");
        let [tenant, route] = [&self.tenant_id, &self.route_id].map(|id| escaped(id));
        match self.mode {
            Mode::Enforce => format!("{tenant}/{route}"),
            Mode::Shadow => format!("{tenant}/{route}/shadow"),
        }
    }

    /// Reads what [`cursor`](Self::cursor) wrote.
    ///
    /// # Errors
    /// One sentence: what is wrong and what is allowed.
    pub fn from_cursor(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{}\" is no cursor, allowed is TENANT/ROUTE or TENANT/ROUTE/shadow", shown(text));
        let (ids, mode) = match text.strip_suffix("/shadow") {
            Some(ids) if ids.contains('/') => (ids, Mode::Shadow),
            _ => (text, Mode::Enforce),
        };
        let (tenant, route) = ids.split_once('/').filter(|(_, route)| !route.contains('/')).ok_or_else(wrong)?;
        let decode = |id: &str| match percent_decode_str(&id.replace('~', "%")).decode_utf8() {
            Ok(id) if !text.contains('%') => Ok(id.into_owned()),
            _ => Err(wrong()),
        };
        Self::new(&decode(tenant)?, &decode(route)?, mode)
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.mode == Mode::Shadow { " (shadow)" } else { "" };
        write!(f, "{}/{}{mode}", shown(&self.tenant_id), shown(&self.route_id))
    }
}

/// A strong entity tag (RFC 9110 section 8.8.3), quotes included: the same for the same content, whoever asks.
pub fn etag(row: &Row) -> String {
    let content = match &row.rule {
        Ok(rule) => super::format::to_json(rule).to_string(),
        Err(broken) => format!("{:?}", broken.values),
    };
    let digest = Sha256::digest(content.as_bytes());
    let hex: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(tenant: &str, route: &str, mode: Mode) -> RuleId {
        RuleId::new(tenant, route, mode).unwrap()
    }

    #[test]
    fn a_cursor_reads_back_whatever_the_ids_are() {
        for (tenant, route) in
            [("shop-a", "orders"), ("*", "*"), ("a/b", "c/shadow"), ("café %2F~2f", "\u{1F600}"), ("x", "shadow")]
        {
            for mode in [Mode::Enforce, Mode::Shadow] {
                let id = id(tenant, route, mode);
                assert_eq!(RuleId::from_cursor(&id.cursor()), Ok(id));
            }
        }
        assert_eq!(id("shop-a", "*", Mode::Shadow).cursor(), "shop-a/*/shadow");
    }

    #[test]
    fn what_is_no_cursor_is_named() {
        for text in ["", "shop-a", "a/b/c", "a/b/c/shadow", "~ff/b", "%61/b", "/b", "a/"] {
            let error = RuleId::from_cursor(text).unwrap_err();
            assert!(error.contains("allowed"), "{text}: {error}");
        }
    }

    #[test]
    fn the_order_is_that_of_bytes() {
        let mut ids = [("b", "a"), ("a", "b"), ("B", "a"), ("*", "z"), ("é", "a"), ("a", "*")]
            .map(|(tenant, route)| id(tenant, route, Mode::Enforce));
        ids.sort();
        let tenants: Vec<&str> = ids.iter().map(|id| &*id.tenant_id).collect();
        assert_eq!(tenants, ["*", "B", "a", "a", "b", "é"]);
        assert!(id("a", "b", Mode::Enforce) < id("a", "b", Mode::Shadow));
    }
}
