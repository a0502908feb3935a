//! Single values: text → what it means, or one sentence that says what is wrong and what is allowed.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;
use http::uri::PathAndQuery;
use ipnet::IpNet;

use crate::config::Secret;
use crate::config::fault::{At, Report};
use crate::config::file::Text;
use crate::rule::FailurePolicy;

/// What parsing one value comes to.
pub(super) type Parsed<T> = Result<T, String>;

impl Report {
    /// What the text means; `None` where there is none, or where it is at fault, which is noted.
    pub(super) fn parse<T>(&self, text: &Text, parse: impl FnOnce(&str) -> Parsed<T>) -> Option<T> {
        self.parse_at(text.as_ref()?, parse)
    }

    /// What this text means; `None` where it is at fault, which is noted.
    pub(super) fn parse_at<T>(&self, text: &At<String>, parse: impl FnOnce(&str) -> Parsed<T>) -> Option<T> {
        match parse(&text.value) {
            Ok(value) => Some(value),
            Err(what) => {
                self.note(&text.place, what);
                None
            }
        }
    }

    /// The number; `None` where there is none, or where it is outside the range, which is noted.
    pub(super) fn integer<T: TryFrom<i64>>(&self, number: &Option<At<i64>>, range: RangeInclusive<i64>) -> Option<T> {
        let At { value, place } = number.as_ref()?;
        let in_range = range.contains(value).then(|| T::try_from(*value).ok()).flatten();
        if in_range.is_none() {
            let (least, most) = range.into_inner();
            self.note(place, format!("{value} is out of range, allowed are integers from {least} to {most}"));
        }
        in_range
    }
}

/// Bounds of a duration.
#[derive(Clone, Copy)]
pub(super) struct Between(pub(super) Duration, pub(super) Duration);

impl Between {
    /// From one millisecond up.
    pub(super) const fn up_to_seconds(seconds: u64) -> Self {
        Self(Duration::from_millis(1), Duration::from_secs(seconds))
    }

    /// From nothing up.
    pub(super) const fn zero_to_seconds(seconds: u64) -> Self {
        Self(Duration::ZERO, Duration::from_secs(seconds))
    }
}

/// `"5ms"`, `"1.5s"`, `"2m"`, `"1h"`.
pub(super) fn duration(text: &str, Between(shortest, longest): Between) -> Parsed<Duration> {
    let unit_at = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit_seconds = match unit {
        "ms" => Some(0.001),
        "s" => Some(1.0),
        "m" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    };
    let seconds = unit_seconds.zip(number.parse::<f64>().ok()).map(|(unit, number)| unit * number);
    let seconds = seconds.ok_or_else(|| {
        format!("{text:?} is not a duration, allowed are numbers with a unit like \"5ms\", \"30s\", \"2m\", \"1h\"")
    })?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|duration| (shortest..=longest).contains(duration))
        .ok_or_else(|| format!("{text:?} is out of range, allowed are {} to {}", Short(shortest), Short(longest)))
}

/// A duration of whole milliseconds in the largest unit that divides it.
struct Short(Duration);

impl Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.as_millis() {
            0 => f.write_str("0s"),
            ms if ms % 3_600_000 == 0 => write!(f, "{}h", ms / 3_600_000),
            ms if ms % 60_000 == 0 => write!(f, "{}m", ms / 60_000),
            ms if ms % 1000 == 0 => write!(f, "{}s", ms / 1000),
            ms => write!(f, "{ms}ms"),
        }
    }
}

/// An address to listen on.
pub(super) fn listener(text: &str) -> Parsed<SocketAddr> {
    text.parse().ok().filter(|address: &SocketAddr| address.port() != 0).ok_or_else(|| {
        format!(
            "{text:?} is not an address, allowed are an IP address and a port like \"127.0.0.1:8080\", \"[::1]:8080\""
        )
    })
}

/// `host:port` of an upstream server; host is a name or an address.
pub(super) fn server(text: &str) -> Parsed<String> {
    let port = text.rsplit_once(':').filter(|(name, port)| is_host(name) && port.bytes().all(|b| b.is_ascii_digit()));
    if port.and_then(|(_, port)| port.parse::<u16>().ok()).is_some_and(|port| port != 0) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{text:?} is not a server, allowed are host:port like \"orders.internal:9001\", \"10.0.0.1:9001\", \
         \"[::1]:9001\""
    ))
}

/// The host of a route: a name or an address, lower-cased.
pub(super) fn host(text: &str) -> Parsed<String> {
    if is_host(text) {
        return Ok(text.to_ascii_lowercase());
    }
    Err(format!(
        "{text:?} is not a host, allowed are names and addresses without scheme, port and path like \
         \"api.example.com\", \"10.0.0.1\", \"[::1]\""
    ))
}

/// The name that an upstream's certificate has to bear.
pub(super) fn server_name(text: &str) -> Parsed<String> {
    if is_host(text) && text.parse::<IpAddr>().is_err() && !text.starts_with('[') {
        return Ok(text.to_ascii_lowercase());
    }
    Err(format!("{text:?} is not a server name, allowed are DNS names like \"orders.internal\""))
}

fn is_host(text: &str) -> bool {
    if let Some(address) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return address.parse::<Ipv6Addr>().is_ok();
    }
    // No top-level domain is a number: what ends in one is meant as an address.
    if text.rsplit('.').next().is_some_and(|last| !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit())) {
        return text.parse::<Ipv4Addr>().is_ok();
    }
    let is_label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// A network, or one address.
pub(super) fn network(text: &str) -> Parsed<IpNet> {
    let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    network.map(|network| network.trunc()).map_err(|_| {
        format!(
            "{text:?} is not a network, allowed are addresses and CIDRs like \"10.0.0.0/8\", \
             \"192.0.2.7\", \"fd00::/8\""
        )
    })
}

/// The name of a header.
pub(super) fn header(text: &str) -> Parsed<HeaderName> {
    HeaderName::from_bytes(text.as_bytes())
        .map_err(|_| format!("{text:?} is not a header name, allowed are letters, digits and -, as in \"X-Api-Key\""))
}

/// `local`, `open` or `closed`.
pub(super) fn failure_policy(text: &str) -> Parsed<FailurePolicy> {
    match text {
        "local" => Ok(FailurePolicy::Local),
        "open" => Ok(FailurePolicy::Open),
        "closed" => Ok(FailurePolicy::Closed),
        _ => Err(format!("{text:?} is not a failure policy, allowed are \"local\", \"open\", \"closed\"")),
    }
}

/// A path in the file system.
pub(super) fn file_path(text: &str) -> Parsed<PathBuf> {
    if text.is_empty() || text.contains('\0') {
        return Err(format!(
            "{text:?} is not the path of a file, allowed are paths like \"/etc/sekisho/sekisho.toml\""
        ));
    }
    Ok(PathBuf::from(text))
}

/// What a server is asked for in a health check.
pub(super) fn request_target(text: &str) -> Parsed<String> {
    if text.starts_with('/') && !text.contains('#') && text.is_ascii() && PathAndQuery::try_from(text).is_ok() {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is not a path to ask for, allowed are paths like \"/healthz\""))
}

/// First part of the keys in Redis.
pub(super) fn key_prefix(text: &str) -> Parsed<String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._~-:".contains(&b);
    if (1..=64).contains(&text.len()) && text.bytes().all(fits) {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is not a key prefix, allowed are 1 to 64 of A-Z a-z 0-9 . _ ~ - :"))
}

/// Where PostgreSQL is. The text may hold a password and is never repeated. How its certificate is verified is for the
/// one who connects to judge: tokio-postgres does not know these options.
pub(super) fn database_url(text: &str) -> Parsed<Secret> {
    let (base, query) = text.split_once('?').unwrap_or((text, ""));
    let verifies = |option: &&str| option.starts_with("sslmode=verify-") || option.starts_with("sslrootcert=");
    let others: Vec<&str> = query.split('&').filter(|option| !option.is_empty() && !verifies(option)).collect();
    let known = if others.is_empty() { base.to_owned() } else { format!("{base}?{}", others.join("&")) };
    match known.parse::<tokio_postgres::Config>() {
        Ok(config) if !config.get_hosts().is_empty() => Ok(Secret(text.to_owned())),
        _ => Err("is not the URL of a PostgreSQL, allowed is postgres://user:password@host[:port]/database".to_owned()),
    }
}

/// Reads the file that holds a bearer token.
pub(super) fn token_file(text: &str) -> Parsed<Secret> {
    let content = read(text)?;
    match std::str::from_utf8(&content).map(str::trim) {
        Ok("") => Err(format!("file {text:?} is empty, allowed is one token")),
        Ok(token) if token.bytes().all(|b| b.is_ascii_graphic()) => Ok(Secret(token.to_owned())),
        _ => Err(format!("file {text:?} holds no token, allowed is one of visible ASCII characters")),
    }
}

/// Reads a whole file.
pub(super) fn read(path: &str) -> Parsed<Vec<u8>> {
    std::fs::read(path).map_err(|error| format!("file {path:?} cannot be read: {error}"))
}
