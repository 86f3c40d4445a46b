//! Kubernetes quantities (`500m`, `1Gi`, `1e3`): parsed exactly, printed in canonical form as upstream does.
//!
//! Owns the number and its format.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::record::plain;

const NANOS: i128 = 1_000_000_000;

/// Which suffix family a quantity was written in; printing keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Format {
    /// `n u m k M G T P E`.
    #[default]
    DecimalSi,
    /// `Ki Mi Gi Ti Pi Ei`.
    BinarySi,
    /// `e3`, `E-6`.
    DecimalExponent,
}

/// A resource quantity. Equality and order are by value, not by spelling. The smallest step is a nano; finer
/// fractions round up, values beyond ±2^63 are clamped to it, both as upstream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "quantity {text:?} must match '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$', for example 500m, 1.5 or 64Mi"
)]
pub struct QuantityError {
    text: String,
}

impl Quantity {
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        parse(text).ok_or_else(|| QuantityError { text: text.chars().take(64).collect() })
    }

    /// A whole number in decimal format.
    #[must_use]
    pub fn from_units(units: i64) -> Self {
        Self { nanos: i128::from(units) * NANOS, format: Format::DecimalSi }
    }

    /// Thousandths in decimal format, as CPU is counted.
    #[must_use]
    pub fn from_milli(milli: i64) -> Self {
        Self { nanos: i128::from(milli) * (NANOS / 1000), format: Format::DecimalSi }
    }

    /// A whole number of bytes in binary format.
    #[must_use]
    pub fn from_bytes(bytes: i64) -> Self {
        Self { nanos: i128::from(bytes) * NANOS, format: Format::BinarySi }
    }

    /// The value in whole units, rounded away from zero.
    #[must_use]
    pub fn value(self) -> i64 {
        scaled(self.nanos, NANOS)
    }

    /// The value in thousandths, rounded away from zero.
    #[must_use]
    pub fn milli_value(self) -> i64 {
        scaled(self.nanos, NANOS / 1000)
    }

    /// True for zero however it is written.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    #[must_use]
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Sum, in the format of the left side.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self { nanos: clamp(self.nanos.saturating_add(other.nanos)), format: self.format }
    }

    /// The same, rounded up to thousandths, as API defaulting does.
    #[must_use]
    pub fn rounded_up_to_milli(self) -> Self {
        let step = NANOS / 1000;
        Self { nanos: div_away(self.nanos, step) * step, format: self.format }
    }
}

fn clamp(nanos: i128) -> i128 {
    let most = i128::from(i64::MAX) * NANOS;
    nanos.clamp(-most, most)
}

fn div_away(value: i128, step: i128) -> i128 {
    let quotient = value / step;
    if value % step == 0 { quotient } else { quotient + value.signum() }
}

fn scaled(nanos: i128, step: i128) -> i64 {
    i64::try_from(div_away(nanos, step)).unwrap_or(if nanos < 0 { i64::MIN } else { i64::MAX })
}

fn parse(text: &str) -> Option<Quantity> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let digits_end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(digits_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (format, scale) = parse_suffix(suffix)?;
    let nanos = clamp(magnitude(whole, fraction, scale));
    Some(Quantity { nanos: if negative { -nanos } else { nanos }, format })
}

/// What a suffix multiplies by.
#[derive(Clone, Copy)]
enum Scale {
    Pow10(i32),
    Pow1024(u32),
}

fn parse_suffix(suffix: &str) -> Option<(Format, Scale)> {
    let decimal = |power| Some((Format::DecimalSi, Scale::Pow10(power)));
    let binary = |power| Some((Format::BinarySi, Scale::Pow1024(power)));
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if unsigned.is_empty() || !unsigned.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            let power: i64 = unsigned.parse().ok()?;
            let power = i32::try_from(power.min(1000)).ok()?;
            Some((
                Format::DecimalExponent,
                Scale::Pow10(if exponent.starts_with('-') { -power } else { power }),
            ))
        }
    }
}

/// `whole.fraction × scale` in nanos, rounded up, saturating.
fn magnitude(whole: &str, fraction: &str, scale: Scale) -> i128 {
    let digits = whole.bytes().chain(fraction.bytes()).map(|b| i128::from(b - b'0'));
    let mut mantissa: i128 = 0;
    let mut power = -i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let mut lost = false;
    for digit in digits {
        // The largest value has 28 digits in nanos: 30 are beyond its precision, the rest only rounds. Binary
        // scales multiply, so fewer fit; 25 digits are beyond any real quantity.
        if mantissa < 10_i128.pow(if matches!(scale, Scale::Pow10(_)) { 29 } else { 24 }) {
            mantissa = mantissa * 10 + digit;
        } else {
            power = power.saturating_add(1);
            lost |= digit != 0;
        }
    }
    let factor = match scale {
        Scale::Pow10(more) => {
            power = power.saturating_add(more);
            1
        }
        Scale::Pow1024(more) => 1024_i128.pow(more),
    };
    power = power.saturating_add(9);
    if mantissa == 0 {
        return i128::from(lost);
    }
    // Divide before multiplying only where the product could overflow; there the loss is below one nano of
    // rounding.
    let product = mantissa.checked_mul(factor);
    match (product, power) {
        (Some(product), 0..) => 10_i128
            .checked_pow(power.unsigned_abs())
            .and_then(|scale| product.checked_mul(scale))
            .unwrap_or(i128::MAX),
        (Some(product), _) => match 10_i128.checked_pow(power.unsigned_abs()) {
            // Lost digits round up as well, where the kept ones come out even.
            Some(scale) => div_away(product, scale) + i128::from(lost && product % scale == 0),
            None => 1,
        },
        (None, 0..) => i128::MAX,
        (None, _) => match 10_i128.checked_pow(power.unsigned_abs()) {
            Some(scale) => div_away(mantissa, scale).saturating_mul(factor),
            None => 1,
        },
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return formatter.write_str("0");
        }
        match self.format {
            Format::BinarySi if self.nanos.abs() >= 1024 * NANOS => {
                let mut value = div_away(self.nanos, NANOS);
                let suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
                let mut step = 0;
                while value % 1024 == 0 && step + 1 < suffixes.len() {
                    value /= 1024;
                    step += 1;
                }
                write!(formatter, "{value}{}", suffixes[step])
            }
            Format::BinarySi | Format::DecimalSi => {
                let (value, step) = thousands(self.nanos, 9);
                write!(formatter, "{value}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][step])
            }
            Format::DecimalExponent => {
                let (value, step) = thousands(self.nanos, 9);
                match i32::try_from(step).unwrap_or_default() * 3 - 9 {
                    0 => write!(formatter, "{value}"),
                    power => write!(formatter, "{value}e{power}"),
                }
            }
        }
    }
}

/// Strips whole factors of a thousand, at most `most` of them.
fn thousands(mut value: i128, most: usize) -> (i128, usize) {
    let mut step = 0;
    while value % 1000 == 0 && step < most {
        value /= 1000;
        step += 1;
    }
    (value, step)
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    /// Accepts a string or a bare number, as `cpu: 1` is common.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => Self::parse(text.trim()).map_err(D::Error::custom),
            serde_json::Value::Number(number) => Self::parse(&number.to_string()).map_err(D::Error::custom),
            other => Err(D::Error::custom(format_args!("{other} is not a quantity"))),
        }
    }
}

plain! { Quantity }

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, canonical: &str, milli: i64) {
        let quantity = Quantity::parse(text).unwrap();
        assert_eq!(quantity.to_string(), canonical, "canonical form of {text}");
        assert_eq!(quantity.milli_value(), milli, "milli value of {text}");
    }

    #[test]
    fn quantities_print_in_upstreams_canonical_form() {
        check("0", "0", 0);
        check("100m", "100m", 100);
        check("1000m", "1", 1000);
        check("0.5", "500m", 500);
        check(".5", "500m", 500);
        check("1.5Gi", "1536Mi", 1_610_612_736_000);
        check("1024Mi", "1Gi", 1_073_741_824_000);
        check("512Ki", "512Ki", 524_288_000);
        check("1000", "1k", 1_000_000);
        check("1e3", "1e3", 1_000_000);
        check("12E-3", "12e-3", 12);
        check("-2", "-2", -2000);
        check("1n", "1n", 1);
        check("0.0001m", "100n", 1);
    }

    #[test]
    fn digits_beyond_a_nano_round_up_also_behind_many_others() {
        let quantity = Quantity::parse("6854775758078079.2233720368572036477").unwrap();
        assert_eq!(quantity.to_string(), "6854775758078079223372037n");
    }

    #[test]
    fn malformed_quantities_are_refused() {
        for text in ["", "m", "1.2.3", "1ki", "1 Gi", "abc", "1e", "--1", "+", ".", "1Ei3", "0x10"] {
            assert!(Quantity::parse(text).is_err(), "{text:?} must be refused");
        }
    }

    #[test]
    fn huge_quantities_clamp_instead_of_overflowing() {
        assert_eq!(Quantity::parse("99999999999999999999999999E").unwrap().value(), i64::MAX);
        assert_eq!(Quantity::parse("1e999999999999").map(Quantity::value), Ok(i64::MAX));
        assert_eq!(Quantity::parse("1e-400").unwrap().value(), 1);
    }

    proptest::proptest! {
        #[test]
        fn what_is_printed_reads_back_as_the_same_value(number in -1_000_000_000_i64..1_000_000_000, suffix in "|n|u|m|k|M|Ki|Mi|Gi|e3|e-3") {
            if let Ok(quantity) = Quantity::parse(&format!("{number}{suffix}")) {
                proptest::prop_assert_eq!(Quantity::parse(&quantity.to_string()), Ok(quantity));
            }
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,40}") {
            let _ = Quantity::parse(&text);
        }
    }
}
