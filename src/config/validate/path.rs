//! Path patterns of routes: literals, `{param}`, and `{*rest}` at the end.

use std::fmt::Write as _;

use super::value::Parsed;

/// Checks a pattern and gives its shape: the pattern without the names of its parameters. Two patterns of one shape
/// match the same paths.
///
/// # Errors
/// What is wrong; for a pattern that no normalised path can match, its normal form.
pub(super) fn shape(pattern: &str) -> Parsed<String> {
    let example = "allowed are patterns like \"/orders\", \"/orders/{id}\", \"/files/{*rest}\"";
    let Some(relative) = pattern.strip_prefix('/') else {
        return Err(format!("{pattern:?} does not start with \"/\", {example}"));
    };
    if pattern.contains(['?', '#']) {
        return Err(format!("{pattern:?} has a query or fragment, {example}"));
    }
    let segments: Vec<&str> = relative.split('/').collect();
    let mut shape = String::with_capacity(pattern.len());
    let mut normal: Vec<String> = Vec::with_capacity(segments.len());
    for (index, segment) in segments.iter().enumerate() {
        let is_last = index + 1 == segments.len();
        shape.push('/');
        match Segment::parse(segment) {
            None => {
                let allowed = "allowed as a whole segment are {param}, and {*rest} at the end";
                return Err(format!("{pattern:?} has the segment {segment:?}, {allowed}"));
            }
            Some(Segment::Rest) if !is_last => {
                return Err(format!("{pattern:?} has {segment} before its end, {example}"));
            }
            Some(Segment::Rest) => shape.push_str("{*}"),
            Some(Segment::Param) => shape.push_str("{}"),
            Some(Segment::Literal) => {
                let Some(literal) = normal_literal(segment) else {
                    let what = "has a \"%\" that two hexadecimal digits do not follow, write \"%25\"";
                    return Err(format!("{pattern:?} {what}"));
                };
                shape.push_str(&literal);
                push_literal(&mut normal, literal, is_last);
                continue;
            }
        }
        normal.push((*segment).to_owned());
    }
    let normal = format!("/{}", normal.join("/"));
    if normal == pattern {
        Ok(shape)
    } else {
        Err(format!("{pattern:?} matches nothing, write its normal form {normal:?}"))
    }
}

enum Segment {
    Literal,
    Param,
    Rest,
}

impl Segment {
    fn parse(segment: &str) -> Option<Self> {
        let Some(inside) = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else {
            return (!segment.contains(['{', '}'])).then_some(Self::Literal);
        };
        let (name, kind) = match inside.strip_prefix('*') {
            Some(name) => (name, Self::Rest),
            None => (inside, Self::Param),
        };
        let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        is_name.then_some(kind)
    }
}

/// Dot segments and doubled slashes go (RFC 3986, section 5.2.4); a slash at the end stays.
fn push_literal(normal: &mut Vec<String>, literal: String, is_last: bool) {
    match literal.as_str() {
        "" | "." if is_last => normal.push(String::new()),
        "" | "." => {}
        ".." => {
            normal.pop();
            if is_last {
                normal.push(String::new());
            }
        }
        _ => normal.push(literal),
    }
}

/// Unreserved characters plain, everything that may not stand in a path percent-encoded in upper case (RFC 3986,
/// sections 3.3 and 6.2.2); `None` where a `%` is not followed by two hexadecimal digits.
fn normal_literal(segment: &str) -> Option<String> {
    let mut normal = String::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        let (byte, encoded) = match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                (u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?, true)
            }
            _ => (byte, false),
        };
        let unreserved = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let allowed = unreserved || (!encoded && b"!$&'()*+,;=:@".contains(&byte));
        if allowed {
            normal.push(char::from(byte));
        } else {
            write!(normal, "%{byte:02X}").ok()?;
        }
    }
    Some(normal)
}
