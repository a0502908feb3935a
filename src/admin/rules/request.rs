//! What a request to `/api/v1/rules` says, or the answer to one that says something else.

use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use percent_encoding::percent_decode_str;
use pingora::protocols::http::ServerSession;
use tokio::time::timeout;

use super::super::reply::Refusal;
use crate::gateway::request::without_port;
use crate::rule::{Mode, shown};
use crate::rules::Filter;
use crate::rules::edit::RuleId;

/// Rules on a page where the request does not say.
const PAGE: usize = 100;
const LONGEST_PAGE: usize = 1000;

/// Bytes of a rule, comment and all.
const LONGEST_BODY: usize = 64 * 1024;

/// For the whole body.
const BODY_PATIENCE: Duration = Duration::from_secs(5);

fn bad(detail: &str) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, detail)
}

/// `?tenant=&route=&after=&limit=`, each of which may be absent or empty.
pub(super) fn page(query: &str) -> Result<(Filter, usize), Refusal> {
    let (mut filter, mut limit) = (Filter::default(), PAGE);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let given = Some(&*value).filter(|value| !value.is_empty());
        match &*name {
            "tenant" => filter.tenant = given.map(str::to_owned),
            "route" => filter.route = given.map(str::to_owned),
            "after" => {
                let after = given.map(RuleId::from_cursor).transpose();
                filter.after = after.map_err(|fault| bad(&format!("after: {fault}")))?;
            }
            "limit" => {
                let number = given.map_or(Ok(PAGE), str::parse).ok().filter(|limit| (1..=LONGEST_PAGE).contains(limit));
                let fault = || bad(&format!("limit: \"{}\", allowed are 1 to {LONGEST_PAGE}", shown(&value)));
                limit = number.ok_or_else(fault)?;
            }
            other => return Err(bad(&format!("{}: unknown, allowed are tenant, route, after, limit", shown(other)))),
        }
    }
    Ok((filter, limit))
}

/// `/{tenant}/{route}?mode=`
pub(super) fn rule(below: &str, query: &str) -> Result<RuleId, Refusal> {
    let mut mode = Mode::Enforce;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        mode = match (&*name, &*value) {
            ("mode", "enforce") => Mode::Enforce,
            ("mode", "shadow") => Mode::Shadow,
            ("mode", other) => return Err(bad(&format!("mode: \"{}\", allowed are enforce, shadow", shown(other)))),
            (other, _) => return Err(bad(&format!("{}: unknown, allowed is mode", shown(other)))),
        };
    }
    let mut segments = below.strip_prefix('/').unwrap_or_default().split('/');
    let (Some(tenant), Some(route), None) = (segments.next(), segments.next(), segments.next()) else {
        return Err(Refusal::new(StatusCode::NOT_FOUND, "allowed is /api/v1/rules/{tenant}/{route}"));
    };
    let decode = |id| percent_decode_str(id).decode_utf8().map_err(|_| bad("the path is not UTF-8"));
    RuleId::new(&decode(tenant)?, &decode(route)?, mode).map_err(|fault| bad(&fault))
}

/// Who a history of changes says it was.
pub(super) fn actor(session: &ServerSession) -> String {
    let address = session.client_addr().and_then(|address| address.as_inet());
    address.map_or_else(|| "admin-api".to_owned(), |address| format!("{}@admin-api", address.ip().to_canonical()))
}

/// Without a token, being on this machine is what gives the right to write, and so is every page in a browser on it. One
/// of another site cannot send PUT or DELETE: the browser asks first, and hears of no permission. One whose name was made
/// to point here could: its name is in `Host`.
pub(super) fn no_foreign_page(headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = text(header::HOST).unwrap_or_default();
    let name = without_port(host).unwrap_or_default().trim_matches(['[', ']']);
    let forbidden = |detail: &str| Err(Refusal::new(StatusCode::FORBIDDEN, detail));
    if !name.eq_ignore_ascii_case("localhost") && name.parse::<IpAddr>().is_err() {
        return forbidden("without admin.token_file, Host has to be localhost or an address");
    }
    let same =
        |origin: &str| origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host));
    if text(header::ORIGIN).is_some_and(|origin| !same(origin)) {
        return forbidden("without admin.token_file, Origin has to be this listener");
    }
    Ok(())
}

/// The JSON body, read whole.
pub(super) async fn body(headers: &HeaderMap, session: &mut ServerSession) -> Result<String, Refusal> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let kind = text(header::CONTENT_TYPE).unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "allowed is Content-Type: application/json"));
    }
    let length = text(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if length.is_some_and(|length| length > LONGEST_BODY as u64) {
        return Err(too_long(session));
    }
    if text(header::EXPECT).is_some_and(|expected| expected.eq_ignore_ascii_case("100-continue")) {
        // A client that is gone shows when its body is read.
        let _ = session.write_continue_response().await;
    }
    let read = timeout(BODY_PATIENCE, read_whole(session)).await;
    let whole = read.unwrap_or_else(|_| {
        session.set_keepalive(None);
        Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, format!("the body is not whole within {BODY_PATIENCE:?}")))
    })?;
    String::from_utf8(whole).map_err(|_| bad("the body is not UTF-8"))
}

async fn read_whole(session: &mut ServerSession) -> Result<Vec<u8>, Refusal> {
    let mut whole = Vec::new();
    loop {
        match session.read_request_body().await {
            Ok(Some(part)) if whole.len() + part.len() > LONGEST_BODY => return Err(too_long(session)),
            Ok(Some(part)) => whole.extend_from_slice(&part),
            Ok(None) => return Ok(whole),
            Err(_) => {
                session.set_keepalive(None);
                return Err(bad("the body breaks off"));
            }
        }
    }
}

fn too_long(session: &mut ServerSession) -> Refusal {
    session.set_keepalive(None);
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, format!("allowed are {LONGEST_BODY} bytes of body"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_names_a_rule_whatever_its_ids_are() {
        let id = |below: &str, query: &str| rule(below, query).map(|id| id.to_string()).map_err(|a| a.status.as_u16());
        assert_eq!(id("/shop-a/orders", ""), Ok("shop-a/orders".into()));
        assert_eq!(id("/*/a%2Fb", "mode=shadow"), Ok("*/a/b (shadow)".into()));
        assert_eq!(id("/caf%C3%A9/%2a", "mode=enforce"), Ok("café/*".into()));
        for (below, query, status) in [
            ("/a", "", 404),
            ("/a/b/c", "", 404),
            ("x", "", 404),
            ("/a/", "", 400),
            ("//b", "", 400),
            ("/%ff/b", "", 400),
            ("/%00/b", "", 400),
            ("/a/b", "mode=maybe", 400),
            ("/a/b", "node=shadow", 400),
        ] {
            assert_eq!(id(below, query), Err(status), "{below}?{query}");
        }
    }

    #[test]
    fn a_page_is_asked_for_within_bounds() {
        let limit = |query: &str| page(query).map(|(_, limit)| limit).map_err(|answer| answer.status.as_u16());
        assert_eq!(
            (limit(""), limit("tenant=&route=&after=&limit="), limit("limit=1000")),
            (Ok(100), Ok(100), Ok(1000))
        );
        for query in ["limit=0", "limit=1001", "limit=-1", "limit=x", "after=x", "tenants=a"] {
            assert_eq!(limit(query), Err(400), "{query}");
        }
        let (filter, _) = page("tenant=a%20b&route=*&after=*/r/shadow").map_err(|_| ()).unwrap();
        assert_eq!((filter.tenant.as_deref(), filter.route.as_deref()), (Some("a b"), Some("*")));
        assert_eq!(filter.after, Some(RuleId::new("*", "r", Mode::Shadow).unwrap()));
    }

    #[test]
    fn a_page_of_another_site_may_not_write() {
        let allowed = |host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            no_foreign_page(&headers).is_ok()
        };
        for host in ["localhost", "LOCALHOST:9180", "127.0.0.1:9180", "[::1]:9180", "[::1]"] {
            assert!(allowed(host, None), "{host}");
        }
        for host in ["", "rebound.example", "localhost.example:9180", "127.0.0.1.example"] {
            assert!(!allowed(host, None), "{host}");
        }
        assert!(allowed("localhost:9180", Some("http://localhost:9180")));
        for origin in ["null", "https://evil.example", "http://localhost:8080", "http://localhost"] {
            assert!(!allowed("localhost:9180", Some(origin)), "{origin}");
        }
    }
}
