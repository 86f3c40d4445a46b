//! Durations as Go writes them: `1m30s`, `300ms`, `2h45m0s`.
//!
//! Owns the grammar and the canonical form.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use crate::model::api::record::{Shown, plain};

use crate::model::types::go_duration;

/// A signed duration in nanoseconds, Go's `time.Duration`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(i64);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration like 1m30s, 300ms or 2h (units: ns, us, ms, s, m, h)")]
pub struct DurationError {
    text: String,
}

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// Longest spelling first: `ms` must not be read as `m`.
const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", NANOS_PER_SECOND),
    ("m", 60 * NANOS_PER_SECOND),
    ("h", 3_600 * NANOS_PER_SECOND),
];

impl GoDuration {
    /// From whole seconds.
    #[must_use]
    pub(crate) const fn from_secs(seconds: i64) -> Self {
        Self(seconds.saturating_mul(NANOS_PER_SECOND))
    }

    #[must_use]
    pub(crate) const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds, negative ones included.
    #[must_use]
    pub(crate) const fn as_nanos(self) -> i64 {
        self.0
    }

    #[must_use]
    pub(crate) const fn is_zero(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    pub(crate) const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// The std form; a negative duration is zero.
    #[must_use]
    pub(crate) fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }

    /// Reads Go's grammar: an optional sign, then `0` or one or more decimal numbers each followed by a unit.
    pub fn parse(text: &str) -> Result<Self, DurationError> {
        let error = || DurationError { text: text.chars().take(64).collect() };
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self(0));
        }
        if rest.is_empty() {
            return Err(error());
        }
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let (nanos, after) = number_with_unit(rest).ok_or_else(error)?;
            total += nanos;
            if total > i128::from(i64::MAX) + 1 {
                return Err(error());
            }
            rest = after;
        }
        let signed = if negative { -total } else { total };
        i64::try_from(signed).map(Self).map_err(|_| error())
    }
}

/// Takes one `12.5ms` off the front; `None` when there is none or it is out of range.
fn number_with_unit(text: &str) -> Option<(i128, &str)> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, rest) = text.split_at(digits(text));
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits(rest)),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let (unit, scale) = UNITS.iter().find(|(unit, _)| rest.starts_with(unit)).filter(|(unit, _)| {
        // A unit ends where the next number starts: `1mx` and `1mss` are invalid.
        rest[unit.len()..].chars().next().is_none_or(|next| next.is_ascii_digit() || next == '.')
    })?;
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Exact digits, then truncated as Go truncates. Eighteen are finer than any unit can show.
    let (mut numerator, mut denominator) = (0_i128, 1_i128);
    for digit in fraction.bytes().take(18) {
        numerator = numerator * 10 + i128::from(digit - b'0');
        denominator *= 10;
    }
    let scale = i128::from(*scale);
    let nanos = i128::from(whole) * scale + numerator * scale / denominator;
    Some((nanos, &rest[unit.len()..]))
}

/// Go's canonical form.
impl fmt::Display for GoDuration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0 {
            formatter.write_str("-")?;
        }
        formatter.write_str(&go_duration(Duration::from_nanos(self.0.unsigned_abs())))
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

plain! { GoDuration: value => Shown::Made(Ok(value.to_string().into())); }

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_read_and_written_as_go_does() {
        for (text, nanos, canonical) in [
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("-0", 0, "0s"),
            ("+5s", 5_000_000_000, "5s"),
            ("1m", 60_000_000_000, "1m0s"),
            ("1m30s", 90_000_000_000, "1m30s"),
            ("2h45m", 9_900_000_000_000, "2h45m0s"),
            ("4h", 14_400_000_000_000, "4h0m0s"),
            ("300ms", 300_000_000, "300ms"),
            ("1.5s", 1_500_000_000, "1.5s"),
            (".5s", 500_000_000, "500ms"),
            ("1.s", 1_000_000_000, "1s"),
            ("-1.5h", -5_400_000_000_000, "-1h30m0s"),
            ("1500us", 1_500_000, "1.5ms"),
            ("7\u{3bc}s", 7_000, "7\u{b5}s"),
            ("12ns", 12, "12ns"),
            ("90s", 90_000_000_000, "1m30s"),
            ("9223372036854775807ns", i64::MAX, "2562047h47m16.854775807s"),
            ("-9223372036854775808ns", i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            let duration = GoDuration::parse(text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(duration.as_nanos(), nanos, "{text}");
            assert_eq!(duration.to_string(), canonical, "{text}");
        }
    }

    #[test]
    fn what_go_refuses_is_refused() {
        for text in [
            "",
            "-",
            "5",
            "1d",
            "s",
            ".s",
            "1m5",
            " 1s",
            "1s ",
            "1mss",
            "--1s",
            "1e3s",
            "9223372036854775808ns",
        ] {
            assert!(GoDuration::parse(text).is_err(), "{text:?}");
        }
        let error = GoDuration::parse("20").unwrap_err().to_string();
        assert!(error.contains("\"20\"") && error.contains("1m30s"), "{error}");
    }

    proptest! {
        #[test]
        fn every_duration_survives_being_written_and_read(nanos in any::<i64>()) {
            let duration = GoDuration::from_nanos(nanos);
            prop_assert_eq!(GoDuration::parse(&duration.to_string()), Ok(duration));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "[-+.0-9a-z\u{b5}]{0,24}") {
            let _ = GoDuration::parse(&text);
        }
    }
}
