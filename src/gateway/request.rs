//! The head of a request, before anything is decided by it: framing that nobody may read in two ways, one host, one
//! spelling of the path.

use std::borrow::Cow;

use bytes::Bytes;
use http::{Version, header};
use pingora::http::RequestHeader;
use pingora::http::authority::{RawTargetAuthority, raw_target_authority};
use pingora_proxy::Session;

use super::path;
use super::reply::Problem;

/// Refuses a head that could be understood in two ways, and brings its path into normal form for matching and
/// forwarding. (Differing hosts and bad lengths have been refused by Pingora.)
///
/// # Errors
/// 400
pub fn admit(session: &mut Session) -> Result<(), Problem> {
    let head = session.req_header();
    // RFC 9112 section 6.1: both lengths at once are likely an attempt at request smuggling. Pingora drops
    // Content-Length before anybody sees it.
    if head.headers.contains_key(header::TRANSFER_ENCODING)
        && session.as_http1().is_some_and(|http1| names_content_length(&http1.get_headers_raw_bytes()))
    {
        return Err(Problem::BadRequest("both Content-Length and Transfer-Encoding are given".into()));
    }
    // RFC 9112 section 3.2.
    if head.version == Version::HTTP_11 && !head.headers.contains_key(header::HOST) {
        return Err(Problem::BadRequest("the Host header is missing".into()));
    }
    if head.headers.get(header::HOST).is_some_and(|host| !is_authority(host.as_bytes())) {
        return Err(Problem::BadRequest("the Host header is not a host".into()));
    }
    // RFC 9110 section 8.6: a list of equal lengths may be read as one, or refused; who comes behind may read another.
    let mut lengths = head.headers.get_all(header::CONTENT_LENGTH).iter();
    let length = lengths.next();
    if lengths.next().is_some() || length.is_some_and(|length| !length.as_bytes().iter().all(u8::is_ascii_digit)) {
        // Nobody knows where its body ends.
        session.set_keepalive(None);
        return Err(Problem::BadRequest("Content-Length is not one number".into()));
    }
    normalise(session.req_header_mut())
}

/// The host a request is for: lower or upper case as sent, without port and final dot.
pub fn host(head: &RequestHeader) -> Option<&str> {
    let authority = match head.uri.authority() {
        Some(authority) => authority.as_str(),
        None => head.headers.get(header::HOST)?.to_str().ok()?,
    };
    without_port(authority)
}

/// The host of an authority such as `example.com:8080` or `[::1]:8080`, without final dot.
pub fn without_port(authority: &str) -> Option<&str> {
    let host = match authority.strip_prefix('[') {
        Some(address) => address.split_once(']').map_or(authority, |(address, _)| &authority[..address.len() + 2]),
        None => authority.split_once(':').map_or(authority, |(host, _)| host),
    };
    Some(host.strip_suffix('.').unwrap_or(host)).filter(|host| !host.is_empty())
}

/// Whether a host is one by its characters: RFC 3986 section 3.2, a name or address and perhaps a port. It may be empty.
fn is_authority(host: &[u8]) -> bool {
    let (name, port) = match host.iter().rposition(|&byte| byte == b':') {
        Some(at) if !host[at..].contains(&b']') => (&host[..at], &host[at + 1..]),
        _ => (host, &b""[..]),
    };
    let in_name = |&byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(&byte);
    name.iter().all(in_name) && port.iter().all(u8::is_ascii_digit)
}

/// Whether a head as received, request line and all, has a line that starts with `Content-Length:`.
fn names_content_length(head: &Bytes) -> bool {
    const NAME: &[u8] = b"content-length:";
    head.split(|&byte| byte == b'\n')
        .any(|line| line.get(..NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME)))
}

fn normalise(head: &mut RequestHeader) -> Result<(), Problem> {
    let target = head.raw_path();
    let (target, authority) = match raw_target_authority(target) {
        RawTargetAuthority::Absolute { path_and_query, authority, .. } => {
            (path_and_query, Some(Bytes::copy_from_slice(authority)))
        }
        RawTargetAuthority::None | RawTargetAuthority::AmbiguousAuthority => (target, None),
    };
    let (path, query) = match target.iter().position(|&byte| byte == b'?') {
        Some(at) => target.split_at(at),
        None => (target, &b""[..]),
    };
    let absolute = authority.is_some();
    let normal = match path {
        b"" if absolute => Cow::Borrowed("/"),
        path => path::normalise(path)?,
    };
    if absolute || matches!(normal, Cow::Owned(_)) {
        // Forwarded in origin form, whatever form it came in.
        let target = [normal.as_bytes(), query].concat();
        head.set_raw_path(&target).map_err(|_| Problem::BadRequest("the request target is malformed".into()))?;
    }
    if let Some(authority) = authority
        && !head.headers.contains_key(header::HOST)
    {
        head.insert_header(header::HOST, authority.as_ref())
            .map_err(|_| Problem::BadRequest("the request target is malformed".into()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(target: &[u8], host: Option<&str>) -> RequestHeader {
        let mut head = RequestHeader::build("GET", target, None).unwrap();
        if let Some(host) = host {
            head.insert_header(header::HOST, host).unwrap();
        }
        head
    }

    fn normal(target: &[u8]) -> Vec<u8> {
        let mut head = head(target, Some("example.com"));
        normalise(&mut head).unwrap();
        head.raw_path().to_vec()
    }

    #[test]
    fn the_path_is_normalised_and_the_query_left_alone() {
        assert_eq!(normal(b"/a/../b?x=%2e%2e//./&y=%zz"), b"/b?x=%2e%2e//./&y=%zz");
        assert_eq!(normal(b"/a?"), b"/a?");
        assert_eq!(normal(b"/\xff?\xfe"), b"/%FF?\xfe");
        assert_eq!(normal(b"/a?/../b"), b"/a?/../b");
    }

    #[test]
    fn the_absolute_form_is_forwarded_in_origin_form() {
        assert_eq!(normal(b"http://example.com/a//b?q"), b"/a/b?q");
        assert_eq!(normal(b"http://example.com"), b"/");
        assert_eq!(normal(b"http://example.com?q"), b"/?q");
        let mut old = head(b"http://example.com:8080/a", None);
        normalise(&mut old).unwrap();
        assert_eq!(host(&old), Some("example.com"));
    }

    #[test]
    fn targets_without_a_path_are_refused() {
        for target in [&b"*"[..], b"?q", b"a:b"] {
            assert!(matches!(normalise(&mut head(target, None)), Err(Problem::BadRequest(_))), "{target:?}");
        }
    }

    #[test]
    fn a_path_that_grows_beyond_what_a_uri_can_hold_is_refused() {
        let mut long = vec![b'/'];
        long.extend(std::iter::repeat_n(b'|', 30_000));
        assert!(matches!(normalise(&mut head(&long, None)), Err(Problem::BadRequest(_))));
    }

    #[test]
    fn the_host_is_without_port_and_final_dot() {
        for (sent, expected) in [
            ("example.com", Some("example.com")),
            ("Example.com:8080", Some("Example.com")),
            ("example.com.", Some("example.com")),
            ("[::1]:80", Some("[::1]")),
            ("[::1]", Some("[::1]")),
            ("[::1", Some("[::1")),
            (":80", None),
            ("", None),
        ] {
            assert_eq!(host(&head(b"/", Some(sent))), expected, "{sent}");
        }
    }

    #[test]
    fn a_host_is_known_by_its_characters() {
        for host in
            ["example.com", "example.com:8080", "example.com:", "10.0.0.1", "[::1]", "[::1]:80", "a_b", "%C3%A9", ""]
        {
            assert!(is_authority(host.as_bytes()), "{host}");
        }
        for host in ["a b", "a/b", "a?b", "a#b", "a@b", "a:80x", "a\\b", "\u{e9}", "<a>", "a\"b"] {
            assert!(!is_authority(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn content_length_is_found_in_a_raw_head_whatever_its_case() {
        let raw = |text: &'static str| Bytes::from_static(text.as_bytes());
        assert!(names_content_length(&raw("POST / HTTP/1.1\r\nHost: a\r\ncONTENT-lENGTH: 3\r\n\r\n")));
        assert!(names_content_length(&raw("POST / HTTP/1.1\nContent-Length:3\n\n")));
        assert!(!names_content_length(&raw("POST /content-length: HTTP/1.1\r\nX-Content-Length: 3\r\n\r\n")));
    }
}
