//! Who is asking: the tenant behind an API key, and the client's address behind trusted proxies.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use ipnet::IpNet;
use sha2::{Digest, Sha256};

use crate::config::{self, IdentityMode};
use crate::rules::keys::Keys;

/// The longest tenant id and the longest secret, in characters (Unicode scalar values).
const LONGEST_TENANT: usize = 64;
const LONGEST_SECRET: usize = 512;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// A tenant, known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tenant<'a> {
    /// The key is the tenant id.
    Direct(&'a str),
    /// The tenant that a registered key belongs to.
    Registered(Arc<str>),
}

impl Tenant<'_> {
    /// The tenant id.
    pub fn id(&self) -> &str {
        match self {
            Self::Direct(id) => id,
            Self::Registered(id) => id,
        }
    }
}

/// Why there is no tenant. The messages never contain the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// 401
    #[error("an API key is required")]
    Missing,
    /// 401
    #[error("the API key is not known")]
    Unknown,
    /// 400
    #[error("the API key is given more than once")]
    Repeated,
    /// 400
    #[error("the API key is too long")]
    TooLong,
    /// 400
    #[error("the API key contains control characters or is not UTF-8")]
    Characters,
}

/// Finds out who is asking.
#[derive(Debug)]
pub struct Identity {
    settings: config::Identity,
    keys: Arc<Keys>,
}

impl Identity {
    /// By these settings; `keys` counts in mode `registered` only.
    pub fn new(settings: config::Identity, keys: Arc<Keys>) -> Self {
        Self { settings, keys }
    }

    /// The tenant behind the API key. Allocates nothing.
    ///
    /// # Errors
    /// See [`IdentityError`]: 401 or 400.
    pub fn tenant<'a>(&self, headers: &'a HeaderMap) -> Result<Tenant<'a>, IdentityError> {
        let mut values = headers.get_all(&self.settings.header).iter();
        let value = values.next().ok_or(IdentityError::Missing)?;
        if values.next().is_some() {
            return Err(IdentityError::Repeated);
        }
        // Nearly every key is printable ASCII, which is cheaper to see than UTF-8.
        let key = value.to_str().or_else(|_| std::str::from_utf8(value.as_bytes()));
        // RFC 9110 section 5.5: optional whitespace around a value is no part of it.
        let key = key.map_err(|_| IdentityError::Characters)?.trim_matches([' ', '\t']);
        if key.is_empty() {
            return Err(IdentityError::Missing);
        }
        let longest = match self.settings.mode {
            IdentityMode::Direct => LONGEST_TENANT,
            IdentityMode::Registered { .. } => LONGEST_SECRET,
        };
        // There are no more characters than bytes.
        if key.len() > longest && key.chars().nth(longest).is_some() {
            return Err(IdentityError::TooLong);
        }
        if !key.bytes().all(|byte| matches!(byte, b' '..=b'~')) && key.chars().any(char::is_control) {
            return Err(IdentityError::Characters);
        }
        match self.settings.mode {
            IdentityMode::Direct => Ok(Tenant::Direct(key)),
            IdentityMode::Registered { .. } => {
                let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
                self.keys.tenant(&digest).map(Tenant::Registered).ok_or(IdentityError::Unknown)
            }
        }
    }

    /// The client's address: the first from the right in `X-Forwarded-For` that is no trusted proxy, or the peer itself
    /// when that is none. What stands left of an untrusted address is hearsay and never looked at.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        for value in headers.get_all(FORWARDED_FOR).iter().rev() {
            for element in value.as_bytes().rsplit(|&byte| byte == b',') {
                if !self.is_trusted(client) {
                    return client;
                }
                match address(element) {
                    Some(before) => client = before,
                    None => return client,
                }
            }
        }
        client
    }

    /// What one client is, for limits by address: an IPv4 address, or an IPv6 prefix.
    pub fn client_prefix(&self, client: IpAddr) -> IpNet {
        let client = client.to_canonical();
        let length = if client.is_ipv6() { self.settings.ipv6_prefix } else { 32 };
        IpNet::new(client, length).map_or(client.into(), |network| network.trunc())
    }

    /// `X-Forwarded-For` for the upstream: the peer appended to what a trusted peer sent, the peer alone otherwise, so
    /// that a client cannot choose its address.
    pub fn forwarded_for(&self, peer: IpAddr, headers: &HeaderMap) -> Option<HeaderValue> {
        let peer = peer.to_canonical();
        let mut list = Vec::with_capacity(48);
        if self.is_trusted(peer) {
            for value in headers.get_all(FORWARDED_FOR) {
                list.extend_from_slice(value.as_bytes());
                list.extend_from_slice(b", ");
            }
        }
        write!(list, "{peer}").ok()?;
        HeaderValue::from_bytes(&list).ok()
    }

    fn is_trusted(&self, address: IpAddr) -> bool {
        self.settings.trusted_proxies.iter().any(|network| network.contains(&address))
    }
}

/// One element of `X-Forwarded-For`: an address, some proxies add a port.
fn address(element: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(element).ok()?.trim_matches([' ', '\t']);
    let address = text
        .parse()
        .ok()
        .or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
        .or_else(|| text.strip_prefix('[')?.strip_suffix(']')?.parse().ok())?;
    Some(IpAddr::to_canonical(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(mode: IdentityMode) -> Identity {
        let settings = config::Identity {
            header: HeaderName::from_static("x-api-key"),
            mode,
            trusted_proxies: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
            ipv6_prefix: 64,
        };
        Identity::new(settings, Arc::new(Keys::default()))
    }

    fn direct() -> Identity {
        identity(IdentityMode::Direct)
    }

    fn headers(name: &'static str, values: &[&[u8]]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    fn tenant(identity: &Identity, values: &[&[u8]]) -> Result<String, IdentityError> {
        identity.tenant(&headers("x-api-key", values)).map(|tenant| tenant.id().to_owned())
    }

    #[test]
    fn the_value_is_the_tenant_in_direct_mode() {
        assert_eq!(tenant(&direct(), &[b"shop-a"]), Ok("shop-a".to_owned()));
        assert_eq!(tenant(&direct(), &[b" \tshop a "]), Ok("shop a".to_owned()));
        assert_eq!(tenant(&direct(), &["caf\u{e9}".as_bytes()]), Ok("caf\u{e9}".to_owned()));
    }

    #[test]
    fn no_key_and_an_empty_key_are_missing() {
        for values in [&[][..], &[&b""[..]], &[&b" \t"[..]]] {
            assert_eq!(tenant(&direct(), values), Err(IdentityError::Missing));
        }
    }

    #[test]
    fn a_key_given_twice_is_refused_even_if_equal_or_empty() {
        assert_eq!(tenant(&direct(), &[b"a", b"a"]), Err(IdentityError::Repeated));
        assert_eq!(tenant(&direct(), &[b"a", b""]), Err(IdentityError::Repeated));
    }

    #[test]
    fn length_counts_characters_not_bytes() {
        let longest = "\u{e9}".repeat(64);
        assert_eq!(tenant(&direct(), &[longest.as_bytes()]), Ok(longest.clone()));
        assert_eq!(tenant(&direct(), &[(longest + "x").as_bytes()]), Err(IdentityError::TooLong));
        let registered = identity(IdentityMode::Registered { keys_file: None });
        assert_eq!(tenant(&registered, &["x".repeat(512).as_bytes()]), Err(IdentityError::Unknown));
        assert_eq!(tenant(&registered, &["x".repeat(513).as_bytes()]), Err(IdentityError::TooLong));
    }

    #[test]
    fn control_characters_and_bytes_that_are_not_utf8_are_refused() {
        for value in [&b"a\tb"[..], b"\xff", b"a\xc3", "a\u{85}b".as_bytes()] {
            assert_eq!(tenant(&direct(), &[value]), Err(IdentityError::Characters), "{value:?}");
        }
    }

    #[test]
    fn an_untrusted_peer_is_the_client_whatever_it_claims() {
        let headers = headers("x-forwarded-for", &[b"1.1.1.1"]);
        let peer = "203.0.113.9".parse().unwrap();
        assert_eq!(direct().client(peer, &headers), peer);
        assert_eq!(direct().forwarded_for(peer, &headers).unwrap(), "203.0.113.9");
    }

    #[test]
    fn trusted_proxies_are_walked_from_right_to_left() {
        let client = |values: &[&[u8]]| {
            direct().client("10.0.0.1".parse().unwrap(), &headers("x-forwarded-for", values)).to_string()
        };
        assert_eq!(client(&[b"1.1.1.1, 2.2.2.2"]), "2.2.2.2");
        assert_eq!(client(&[b"1.1.1.1, 2.2.2.2, 10.1.1.1"]), "2.2.2.2");
        assert_eq!(client(&[b"1.1.1.1", b"10.2.2.2", b"10.1.1.1"]), "1.1.1.1");
        assert_eq!(client(&[b"2.2.2.2:80,\t[2001:db8::1]:443"]), "2001:db8::1");
        assert_eq!(client(&[b"2.2.2.2, ::ffff:10.1.1.1"]), "2.2.2.2");
        assert_eq!(client(&[b"10.3.3.3, 10.2.2.2"]), "10.3.3.3");
        assert_eq!(client(&[b"1.1.1.1, garbage, 10.2.2.2"]), "10.2.2.2");
        assert_eq!(client(&[b""]), "10.0.0.1");
        assert_eq!(client(&[]), "10.0.0.1");
    }

    #[test]
    fn a_trusted_peer_is_appended() {
        let headers = headers("x-forwarded-for", &[b"1.1.1.1", b"2.2.2.2"]);
        let value = direct().forwarded_for("10.0.0.1".parse().unwrap(), &headers).unwrap();
        assert_eq!(value, "1.1.1.1, 2.2.2.2, 10.0.0.1");
    }

    #[test]
    fn an_ipv6_client_is_its_prefix_and_an_ipv4_client_itself() {
        let prefix = |text: &str| direct().client_prefix(text.parse().unwrap()).to_string();
        assert_eq!(prefix("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(prefix("192.0.2.7"), "192.0.2.7/32");
        assert_eq!(prefix("::ffff:192.0.2.7"), "192.0.2.7/32");
    }
}
