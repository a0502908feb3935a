//! Conditional requests (RFC 9110 section 13).

use http::header::HeaderName;
use http::{HeaderMap, StatusCode, header};

use super::super::reply::Refusal;

/// May a request with these headers write over what has the tag `current`, or, `None`, where nothing is?
pub(super) fn check(headers: &HeaderMap, current: Option<&str>) -> Result<(), Refusal> {
    let failed = |detail| Err(Refusal::new(StatusCode::PRECONDITION_FAILED, detail));
    let matches = |name| current.is_some_and(|tag| tags(headers, name).any(|given| given == "*" || given == tag));
    if headers.contains_key(header::IF_MATCH) {
        if !matches(header::IF_MATCH) {
            return failed("the rule is not, or no more, as If-Match says; read it again");
        }
    } else if !headers.contains_key(header::IF_NONE_MATCH) && current.is_some() {
        let detail = "there is such a rule: If-Match has to say, by the ETag of GET, which content of it is meant";
        return Err(Refusal::new(StatusCode::PRECONDITION_REQUIRED, detail));
    }
    if matches(header::IF_NONE_MATCH) { failed("there is such a rule already") } else { Ok(()) }
}

/// Does the client have what has this tag?
pub(super) fn is_unchanged(headers: &HeaderMap, current: &str) -> bool {
    tags(headers, header::IF_NONE_MATCH).any(|given| given == "*" || given.trim_start_matches("W/") == current)
}

/// The tags of all lines of a header. Ours contain no comma.
fn tags(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(name).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(headers: &[(HeaderName, &str)], current: Option<&str>) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, value.parse().unwrap());
        }
        check(&map, current).map_or_else(|refusal| refusal.status.as_u16(), |()| 200)
    }

    #[test]
    fn who_overwrites_has_to_say_what() {
        let (a, b) = (Some("\"a\""), Some("\"b\""));
        let if_match = |tags| (header::IF_MATCH, tags);
        let none_match = |tags| (header::IF_NONE_MATCH, tags);
        for (headers, current, expected) in [
            (vec![], None, 200),
            (vec![], a, 428),
            (vec![if_match("\"a\"")], a, 200),
            (vec![if_match("\"b\", \"a\"")], a, 200),
            (vec![if_match("\"b\""), if_match("\"a\"")], b, 200),
            (vec![if_match("*")], a, 200),
            (vec![if_match("\"a\"")], b, 412),
            (vec![if_match("W/\"a\"")], a, 412),
            (vec![if_match("\"a\"")], None, 412),
            (vec![if_match("*")], None, 412),
            (vec![none_match("*")], None, 200),
            (vec![none_match("*")], a, 412),
            (vec![if_match("\"a\""), none_match("*")], a, 412),
        ] {
            assert_eq!(status(&headers, current), expected, "{headers:?} {current:?}");
        }
    }
}
