//! A message about changed rules, whoever brings it: JSON in, what it says out.
//!
//! | message | says |
//! |---|---|
//! | a rule, as in `rules.json` | this rule is new or changed |
//! | `{"tenant_id": …, "route_id": …}`, with `mode` or without | something about these rules changed |
//! | `{"tenant_id": …, "route_id": …, "deleted": true}`, with `mode` or without | these rules are gone |
//! | `{"all": true}` | anything may have changed |
//! | `{"keys": true}` | the API keys changed |
//! | `{"ping": …}` | nothing: somebody finds out whether messages arrive |
//! | an array of these | all of it |
//!
//! In Kafka the key of a message without value says, in the second form, which rules are gone.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::Mode;
use super::raw::{Entry, check_id, unquote, without_position};
use crate::rule::shown;

/// The longest message, in bytes.
pub(crate) const LONGEST: usize = 16 * 1024;

/// One thing that a message says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    /// Anything may have changed, keys included.
    All,
    /// Something about the rules of this tenant and route changed.
    Pair(Ids),
    /// A rule, well-formed.
    Put {
        /// Whose.
        ids: Ids,
        /// Itself, as it came.
        json: String,
    },
    /// Rules are gone.
    Delete {
        /// Whose.
        ids: Ids,
        /// Of this mode only, if one is named.
        mode: Option<Mode>,
    },
    /// Somebody tries out the channel.
    Ping(String),
}

/// Tenant and route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) tenant: String,
    pub(crate) route: String,
}

type Object<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

const FORMS: &str = "allowed are a rule, {\"tenant_id\", \"route_id\"} with or without \"deleted\": true, \
                     {\"all\": true} and arrays of these";

/// What a message says, in its order; else what is wrong with it, in one sentence.
pub(crate) fn parse(message: &[u8]) -> Result<Vec<Said>, String> {
    let text = text("the message", message)?.trim();
    if !text.starts_with('[') {
        return Ok(vec![object(text)?]);
    }
    let elements: Vec<&RawValue> = serde_json::from_str(text).map_err(|error| not_json(&error))?;
    if elements.is_empty() {
        return Err(format!("an empty array says nothing, {FORMS}"));
    }
    elements.into_iter().map(|element| object(element.get())).collect()
}

/// What the key of a message without value says.
#[cfg_attr(not(feature = "kafka"), allow(dead_code, reason = "only Kafka's messages have keys"))]
pub(crate) fn parse_tombstone(key: Option<&[u8]>) -> Result<Said, String> {
    const KEY: &str = "allowed is {\"tenant_id\": …, \"route_id\": …} with or without \"mode\"";
    let key = key.ok_or_else(|| format!("there is neither value nor key; as key of a message without value {KEY}"))?;
    let key = text("the key", key)?.trim();
    let (fields, ids) = named(key).map_err(|why| format!("the key: {why}; {KEY}"))?;
    match fields.keys().find(|name| !is_id(name)) {
        Some(other) => Err(format!("the key: unknown field `{}`; {KEY}", shown(other))),
        None => Ok(Said::Delete { mode: mode(&fields)?, ids }),
    }
}

/// Whether a message that says this may have that key. Only the last message of each key is kept in a compacted topic,
/// so a rule under the key of another would take its place.
#[cfg_attr(not(feature = "kafka"), allow(dead_code, reason = "only Kafka's messages have keys"))]
pub(crate) fn check_key(key: Option<&[u8]>, said: &[Said]) -> Result<(), String> {
    let key = key.and_then(|key| std::str::from_utf8(key).ok()).and_then(|key| named(key.trim()).ok());
    let Some((_, key)) = key else { return Ok(()) };
    for said in said {
        if let Said::Put { ids, .. } | Said::Delete { ids, .. } = said
            && *ids != key
        {
            let shown = |ids: &Ids| format!("{}/{}", shown(&ids.tenant), shown(&ids.route));
            return Err(format!("the key is that of {}, allowed is that of the rule, {}", shown(&key), shown(ids)));
        }
    }
    Ok(())
}

fn text<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a str, String> {
    if bytes.len() > LONGEST {
        return Err(format!("{what} is longer than {LONGEST} bytes"));
    }
    std::str::from_utf8(bytes).map_err(|_| format!("{what} is not UTF-8, {FORMS}"))
}

fn not_json(error: &serde_json::Error) -> String {
    format!("it is not JSON: {}, {FORMS}", without_position(error))
}

fn object(json: &str) -> Result<Said, String> {
    let fields: Object<'_> = if json.starts_with('{') {
        serde_json::from_str(json).map_err(|error| not_json(&error))?
    } else {
        return Err(format!("{} is no message about rules, {FORMS}", shown(json)));
    };
    if let (Some((name, value)), 1) = (fields.first_key_value(), fields.len()) {
        match (&**name, value.get()) {
            ("all" | "keys", "true") => return Ok(Said::All),
            ("all" | "keys", other) => return Err(format!("{name} is {}, allowed is true", shown(other))),
            ("ping", id) => return Ok(Said::Ping(id.to_owned())),
            _ => {}
        }
    }
    if let Some(deleted) = fields.get("deleted") {
        if deleted.get() != "true" {
            return Err(format!("deleted is {}, allowed is true", shown(deleted.get())));
        }
        if let Some(other) = fields.keys().find(|name| *name != "deleted" && !is_id(name)) {
            let allowed = "allowed are tenant_id, route_id, mode";
            return Err(format!("{} beside deleted, {allowed}", shown(other)));
        }
        return Ok(Said::Delete { ids: ids(&fields)?, mode: mode(&fields)? });
    }
    if fields.keys().all(|name| is_id(name)) {
        mode(&fields)?;
        return Ok(Said::Pair(ids(&fields)?));
    }
    let Entry { tenant_id, route_id, terms, .. } = Entry::from_json(json);
    check_id("tenant_id", tenant_id.as_deref())?;
    check_id("route_id", route_id.as_deref())?;
    let ids =
        Ids { tenant: tenant_id.unwrap_or_default().into_owned(), route: route_id.unwrap_or_default().into_owned() };
    match terms {
        Ok(_) => Ok(Said::Put { ids, json: json.to_owned() }),
        Err(why) => Err(format!("rule {}/{}: {why}", shown(&ids.tenant), shown(&ids.route))),
    }
}

fn named(json: &str) -> Result<(Object<'_>, Ids), String> {
    let fields: Object<'_> = serde_json::from_str(json).map_err(|error| without_position(&error))?;
    let ids = ids(&fields)?;
    Ok((fields, ids))
}

fn is_id(field: &str) -> bool {
    matches!(field, "tenant_id" | "route_id" | "mode")
}

fn ids(fields: &Object<'_>) -> Result<Ids, String> {
    let id = |field: &str| {
        let id = fields.get(field).and_then(|id| unquote(id.get()));
        check_id(field, id.as_deref())?;
        Ok::<_, String>(id.unwrap_or_default().into_owned())
    };
    Ok(Ids { tenant: id("tenant_id")?, route: id("route_id")? })
}

fn mode(fields: &Object<'_>) -> Result<Option<Mode>, String> {
    match fields.get("mode").map(|mode| mode.get()) {
        None | Some("null") => Ok(None),
        Some(r#""enforce""#) => Ok(Some(Mode::Enforce)),
        Some(r#""shadow""#) => Ok(Some(Mode::Shadow)),
        Some(other) => Err(format!("mode is {}, allowed are \"enforce\", \"shadow\"", shown(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(tenant: &str, route: &str) -> Ids {
        Ids { tenant: tenant.to_owned(), route: route.to_owned() }
    }

    fn said(message: &str) -> Vec<Said> {
        parse(message.as_bytes()).unwrap()
    }

    const RULE: &str = r#"{"tenant_id": "a", "route_id": "r", "capacity": 5, "refill": "30/min"}"#;

    #[test]
    fn every_form_is_understood() {
        let rule = Said::Put { ids: ids("a", "r"), json: RULE.to_owned() };
        let delete = |mode| Said::Delete { ids: ids("a", "r"), mode };
        for (message, expected) in [
            (RULE, vec![rule.clone()]),
            (r#"{"tenant_id": "caf\u00e9", "route_id": "*"}"#, vec![Said::Pair(ids("café", "*"))]),
            (r#"{"tenant_id": "a", "route_id": "r", "mode": "shadow"}"#, vec![Said::Pair(ids("a", "r"))]),
            (r#"{"tenant_id": "a", "route_id": "r", "deleted": true}"#, vec![delete(None)]),
            (r#"{"tenant_id":"a","route_id":"r","deleted":true,"mode":"shadow"}"#, vec![delete(Some(Mode::Shadow))]),
            (r#" {"all": true}"#, vec![Said::All]),
            (r#"{"keys":true}"#, vec![Said::All]),
            (r#"{"ping":"7f"}"#, vec![Said::Ping("\"7f\"".to_owned())]),
            (&format!(r#"[{RULE}, {{"tenant_id": "b", "route_id": "r"}}]"#), vec![rule, Said::Pair(ids("b", "r"))]),
        ] {
            assert_eq!(said(message), expected, "{message}");
        }
    }

    #[test]
    fn a_bad_message_gets_one_sentence_that_says_why() {
        let too_long = "x".repeat(LONGEST + 1);
        for (message, expected) in [
            ("", " is no message about rules, allowed are a rule, "),
            ("hello", "hello is no message about rules"),
            ("{", "it is not JSON: EOF while parsing"),
            ("[1]", "1 is no message about rules"),
            ("[]", "an empty array says nothing"),
            ("{}", "tenant_id is missing"),
            (r#"{"all": 1}"#, "all is 1, allowed is true"),
            (r#"{"all": true, "tenant_id": "a", "route_id": "r"}"#, "unknown field `all`"),
            (r#"{"tenant_id": "a"}"#, "route_id is missing"),
            (r#"{"tenant_id": null, "route_id": "r"}"#, "tenant_id is missing"),
            (r#"{"tenant_id": "a", "route_id": "r", "mode": "off"}"#, "mode is \"off\", allowed are"),
            (r#"{"tenant_id": "a", "route_id": "r", "deleted": false}"#, "deleted is false, allowed is true"),
            (r#"{"tenant_id": "a", "route_id": "r", "deleted": true, "capacity": 1}"#, "capacity beside deleted"),
            (r#"{"tenant_id": "a", "route_id": "r", "capacity": 0, "refill": "1/s"}"#, "rule a/r: capacity is 0"),
            (r#"{"tenant_id": "", "route_id": "r", "capacity": 1, "refill": "1/s"}"#, "tenant_id is empty"),
            (&too_long, "the message is longer than 16384 bytes"),
        ] {
            let why = parse(message.as_bytes()).unwrap_err();
            assert!(why.contains(expected), "{message}: {why}");
        }
        assert!(parse(b"\xff").unwrap_err().contains("not UTF-8"));
    }

    #[test]
    fn a_rule_comes_under_its_own_key_or_one_that_names_no_rule() {
        let rule = said(RULE);
        for key in
            [r#"{"tenant_id": "a", "route_id": "r"}"#, r#"{"route_id":"r","tenant_id":"a","mode":"enforce"}"#, "a/r"]
        {
            assert_eq!(check_key(Some(key.as_bytes()), &rule), Ok(()), "{key}");
        }
        assert_eq!(check_key(None, &rule), Ok(()));
        let why = check_key(Some(br#"{"tenant_id": "b", "route_id": "r"}"#), &rule).unwrap_err();
        assert_eq!(why, "the key is that of b/r, allowed is that of the rule, a/r");
    }

    #[test]
    fn a_tombstone_needs_a_key_that_says_whose_rules_are_gone() {
        let tombstone = |key: &str| parse_tombstone(Some(key.as_bytes()));
        let delete = |mode| Ok(Said::Delete { ids: ids("a", "r"), mode });
        assert_eq!(tombstone(r#"{"tenant_id": "a", "route_id": "r"}"#), delete(None));
        assert_eq!(tombstone(r#"{"tenant_id": "a", "route_id": "r", "mode": "enforce"}"#), delete(Some(Mode::Enforce)));
        assert!(parse_tombstone(None).unwrap_err().contains("neither value nor key"));
        for key in ["", "a/r", r#"{"tenant_id": "a"}"#, r#"{"tenant_id": "a", "route_id": "r", "x": 1}"#, "[]"] {
            assert!(tombstone(key).unwrap_err().starts_with("the key"), "{key}");
        }
    }
}
