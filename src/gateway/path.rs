//! The normal form of a request path, so that no spelling of a path gets past a route or a bucket of its own.
//!
//! [RFC 3986 section 6.2.2](https://www.rfc-editor.org/rfc/rfc3986#section-6.2.2): percent-encoded unreserved characters
//! are decoded, other escapes get upper-case digits (`%2F` stays an escape), dot segments are removed. Beyond the RFC,
//! doubled slashes are merged and bytes that may not stand in a path are percent-encoded. Nothing else is decoded:
//! `/orders/` is not `/orders`.

use std::borrow::Cow;

/// Why a path has no normal form: a 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It is not absolute.
    #[error("the request target has no path that starts with a slash")]
    NotAbsolute,
    /// A `%` without two hexadecimal digits after it.
    #[error("the path contains a percent sign without two hexadecimal digits after it")]
    Escape,
}

/// The normal form of `path`, borrowed when it is in normal form already. `path` is without query.
///
/// # Errors
/// See [`PathError`].
pub fn normalise(path: &[u8]) -> Result<Cow<'_, str>, PathError> {
    if path.first() != Some(&b'/') {
        return Err(PathError::NotAbsolute);
    }
    if let Some(normal) = as_normal(path) {
        return Ok(Cow::Borrowed(normal));
    }
    Ok(Cow::Owned(without_dot_segments(&canonical_escapes(path)?)))
}

/// `path` itself if it is in normal form; in doubt `None`.
fn as_normal(path: &[u8]) -> Option<&str> {
    let mut bytes = path.iter().copied().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            // Hidden files such as `/.well-known` take the long way too; they are rare.
            b'/' if matches!(path.get(at + 1), Some(b'/' | b'.')) => return None,
            b'%' => {
                let (high, low) = (*path.get(at + 1)?, *path.get(at + 2)?);
                let digits = [high, low];
                if digits.iter().any(u8::is_ascii_lowercase) || is_unreserved(escaped(high, low)?) {
                    return None;
                }
                bytes.nth(1);
            }
            _ if !may_stand(byte) => return None,
            _ => {}
        }
    }
    std::str::from_utf8(path).ok()
}

/// Decodes what need not be escaped, escapes what must be.
fn canonical_escapes(path: &[u8]) -> Result<String, PathError> {
    let mut out = String::with_capacity(path.len() + 16);
    let mut bytes = path.iter().copied();
    while let Some(byte) = bytes.next() {
        let (byte, was_escaped) = match byte {
            b'%' => {
                let (high, low) = bytes.next().zip(bytes.next()).ok_or(PathError::Escape)?;
                (escaped(high, low).ok_or(PathError::Escape)?, true)
            }
            _ => (byte, false),
        };
        if is_unreserved(byte) || (!was_escaped && may_stand(byte)) {
            out.push(char::from(byte));
        } else {
            out.push_str(percent_encoding::percent_encode_byte(byte));
        }
    }
    Ok(out)
}

/// Merges slashes and removes dot segments; `..` at the root stays at the root.
fn without_dot_segments(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut ends_with_slash = false;
    for segment in path.split('/') {
        match segment {
            "" | "." => ends_with_slash = true,
            ".." => {
                out.truncate(out.rfind('/').unwrap_or(0));
                ends_with_slash = true;
            }
            _ => {
                out.push('/');
                out.push_str(segment);
                ends_with_slash = false;
            }
        }
    }
    if ends_with_slash {
        out.push('/');
    }
    out
}

fn escaped(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// [RFC 3986 section 2.3](https://www.rfc-editor.org/rfc/rfc3986#section-2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Whether a byte may stand unescaped in a path: `pchar` and the slash,
/// [RFC 3986 section 3.3](https://www.rfc-editor.org/rfc/rfc3986#section-3.3).
fn may_stand(byte: u8) -> bool {
    is_unreserved(byte)
        || matches!(
            byte,
            b'/' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' | b':' | b'@'
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn normal(path: &str) -> String {
        normalise(path.as_bytes()).unwrap().into_owned()
    }

    #[test]
    fn a_normal_path_is_borrowed() {
        for path in ["/", "/orders", "/orders/", "/a/b;v=1/c:d@e", "/a%2Fb%20c", "/a.b/..c"] {
            // `/..c` begins like a dot segment and takes the long way, with the same result.
            let same = normalise(path.as_bytes()).unwrap();
            assert_eq!(same, path);
            assert_eq!(matches!(same, Cow::Borrowed(_)), !path.contains("/."), "{path}");
        }
    }

    #[test]
    fn spellings_of_one_path_have_one_form() {
        for (spelling, form) in [
            ("/%6frders", "/orders"),
            ("/%6Frders", "/orders"),
            ("//orders", "/orders"),
            ("/./orders", "/orders"),
            ("/x/../orders", "/orders"),
            ("/x/%2e%2E/orders", "/orders"),
            ("/x//../orders", "/orders"),
            ("/../../orders", "/orders"),
            ("/orders/.", "/orders/"),
            ("/orders/x/..", "/orders/"),
            ("/orders//", "/orders/"),
            ("/..", "/"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%2e%2fb", "/a.%2Fb"),
            ("/a b\"<>\\^`{|}", "/a%20b%22%3C%3E%5C%5E%60%7B%7C%7D"),
            ("/caf\u{e9}", "/caf%C3%A9"),
            ("/.well-known/x", "/.well-known/x"),
            ("/...", "/..."),
        ] {
            assert_eq!(normal(spelling), form, "{spelling}");
        }
    }

    #[test]
    fn an_escaped_percent_sign_is_not_decoded_twice() {
        assert_eq!(normal("/%252e%252e/a"), "/%252e%252e/a");
        assert_eq!(normal("/%25"), "/%25");
    }

    #[test]
    fn bytes_that_are_not_utf8_are_escaped() {
        assert_eq!(normalise(b"/\xff\x80").unwrap(), "/%FF%80");
    }

    #[test]
    fn bad_escapes_and_relative_paths_are_refused() {
        for path in ["/%", "/%2", "/%zz", "/%+1", "/a%2", "/%-f"] {
            assert_eq!(normalise(path.as_bytes()), Err(PathError::Escape), "{path}");
        }
        for path in ["", "*", "orders", "?x"] {
            assert_eq!(normalise(path.as_bytes()), Err(PathError::NotAbsolute), "{path}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_normal_form_is_normal(mut path in proptest::collection::vec(any::<u8>(), 0..40)) {
            path.insert(0, b'/');
            if let Ok(form) = normalise(&path) {
                prop_assert!(form.is_ascii() && form.starts_with('/'));
                prop_assert!(!form.contains("//") && !form.contains("/./") && !form.contains("/../"));
                prop_assert_eq!(normalise(form.as_bytes()).unwrap(), form.as_ref());
            }
        }

        #[test]
        fn equivalent_spellings_share_a_form(
            segments in proptest::collection::vec(("[a-zA-Z0-9._~!$&:@-]{1,6}", any::<[bool; 6]>(), 0..4u8), 0..6),
        ) {
            let plain: String = segments.iter().map(|(text, ..)| format!("/{text}")).collect();
            let spelled: String = segments.iter().map(|(text, escape, decoration)| {
                let text: String = text.bytes().zip(escape).map(|(byte, escape)| match byte {
                    _ if *escape && is_unreserved(byte) => format!("%{byte:02x}"),
                    _ => char::from(byte).to_string(),
                }).collect();
                let before = ["", "/", "/.", "/gone/%2e."][usize::from(*decoration)];
                format!("{before}/{text}")
            }).collect();
            prop_assert_eq!(normal(&format!("/{spelled}")), normal(&format!("/{plain}")));
        }
    }
}
