//! The time of day, for people: it stands in logs and names the minutes that usage is counted in. It decides nothing.

use std::fmt;

use rustix::time::{ClockId, clock_gettime};

const DAY_MS: u64 = 86_400_000;
/// Years 0 … 9999 are what RFC 3339 can write; this is the end of the last.
const END_MS: u64 = 253_402_300_800_000;

/// Milliseconds since 1970, UTC.
pub fn now_ms() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Milliseconds since 1970; displays as `2026-01-31T23:59:59.999Z` (RFC 3339).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rfc3339(pub u64);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.min(END_MS - 1);
        let (year, month, day) = date(ms / DAY_MS);
        let of_day = ms % DAY_MS;
        let (hour, minute, second) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", of_day % 1000)
    }
}

impl serde::Serialize for Rfc3339 {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Rfc3339 {
    /// Reads a time in UTC, with or without a fraction of the second; what is beyond milliseconds is cut off.
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = match text.strip_suffix('Z')?.split_once('.') {
            Some((whole, fraction)) => (whole, fraction),
            None => (text.strip_suffix('Z')?, "0"),
        };
        let bytes = whole.as_bytes();
        let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
        if bytes.len() != 19 || separators.iter().any(|&(at, separator)| bytes[at] != separator) {
            return None;
        }
        let number = |from: usize, to: usize| digits(&bytes[from..to]);
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let ms = (0..3).fold(0, |ms, at| ms * 10 + fraction.as_bytes().get(at).map_or(0, |b| u64::from(b - b'0')));
        let days = days(year, month, day)?;
        // A leap second is written as 60.
        if date(days) != (year, month, day) || hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        Some(Self(days * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000 + ms))
    }
}

fn digits(bytes: &[u8]) -> Option<u64> {
    bytes.iter().try_fold(0, |number, byte| byte.is_ascii_digit().then(|| number * 10 + u64::from(byte - b'0')))
}

/// Year, month and day of a day counted from 1970-01-01.
/// [The algorithm](https://howardhinnant.github.io/date_algorithms.html#civil_from_days): years begin in March, so
/// that the leap day comes last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// The inverse; `None` before 1970 and for months that are none.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = year - u64::from(month <= 2);
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339_says() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
            (4_102_444_799_999, "2099-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Rfc3339(ms).to_string(), text);
        }
        assert_eq!(Rfc3339(u64::MAX).to_string(), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn what_is_no_time_in_utc_is_not_read_as_one() {
        for text in [
            "",
            "Z",
            "2023-11-14",
            "2023-11-14T22:13:20",
            "2023-11-14T22:13:20+01:00",
            "2023-11-14 22:13:20Z",
            "2023-02-29T00:00:00Z",
            "2023-13-01T00:00:00Z",
            "2023-01-01T24:00:00Z",
            "2023-01-01T00:00:00.Z",
            "2023-01-01T00:00:00.1xZ",
            "20é3-01-01T00:00:0Z",
        ] {
            assert_eq!(Rfc3339::parse(text), None, "{text}");
        }
        assert_eq!(Rfc3339::parse("2023-11-14T22:13:20Z"), Some(Rfc3339(1_700_000_000_000)));
        assert_eq!(Rfc3339::parse("2023-11-14T22:13:20.1239Z"), Some(Rfc3339(1_700_000_000_123)));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_the_same_time(ms in 0..END_MS) {
            prop_assert_eq!(Rfc3339::parse(&Rfc3339(ms).to_string()), Some(Rfc3339(ms)));
        }
    }
}
