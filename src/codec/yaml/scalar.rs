//! What a scalar means: YAML 1.1 as Kubernetes reads it.

use serde_json::{Number, Value};

use super::events::{YamlTag, printable};
use crate::codec::base64;

const NOT_TEXT: &str = "cannot deserialize tagged scalar into string";

pub(super) fn value(text: &str, tag: &YamlTag, plain: bool) -> Result<Value, String> {
    match tag {
        YamlTag::Null => return Ok(Value::Null),
        YamlTag::Bool => return boolean(text).map(Value::Bool).ok_or_else(|| "invalid boolean".to_owned()),
        YamlTag::Int => {
            let kind = if trim(text).starts_with('-') { "i64" } else { "u64" };
            return integer(text).ok_or_else(|| format!("invalid {kind}"));
        }
        YamlTag::Float => {
            return float(text)
                .ok_or_else(|| "invalid floating point".to_owned())
                .and_then(|it| finite(it, text));
        }
        _ => {}
    }
    if is_null(text, tag, plain) {
        return Ok(Value::Null);
    }
    if *tag == YamlTag::Binary {
        return binary(text).map(Value::String);
    }
    if !is_textual(tag) {
        return Err(NOT_TEXT.to_owned());
    }
    if !plain || forces_text(tag) {
        return Ok(Value::String(text.to_owned()));
    }
    if let Some(value) = boolean(text) {
        return Ok(Value::Bool(value));
    }
    if let Some(value) = integer(text) {
        return Ok(value);
    }
    float(text).map_or_else(|| Ok(Value::String(text.to_owned())), |value| finite(value, text))
}

/// The text of a key, which is not typed: `1: x` is the member "1".
pub(super) fn name(text: &str, tag: &YamlTag, plain: bool) -> Result<String, String> {
    if *tag == YamlTag::Null || is_nullish(text, plain) && !forces_text(tag) {
        return Err("cannot deserialize null into string; use Option<String>".to_owned());
    }
    if *tag == YamlTag::Binary {
        return binary(text);
    }
    if is_textual(tag) { Ok(text.to_owned()) } else { Err(NOT_TEXT.to_owned()) }
}

/// Equal for keys that are the same; and whether the key is a whole number.
pub(super) fn identity(text: &str, tag: &YamlTag, plain: bool) -> (String, bool) {
    let may_be_number = *tag == YamlTag::Int || *tag == YamlTag::None && plain;
    if let Some((negative, magnitude)) = whole_number(text).filter(|_| may_be_number) {
        let sign = if negative && magnitude != 0 { "-" } else { "" };
        return (format!("{sign}{magnitude}"), true);
    }
    let identity = match tag {
        YamlTag::Other(tag) => format!("{tag:?}{text}"),
        YamlTag::Binary => format!("={text}"),
        _ => format!("'{text}"),
    };
    (identity, false)
}

pub(super) fn is_merge(text: &str, tag: &YamlTag, plain: bool) -> bool {
    text == "<<" && (*tag == YamlTag::Merge || *tag == YamlTag::None && plain)
}

/// The tag leaves a scalar a text, or lets it be one.
pub(super) fn is_textual(tag: &YamlTag) -> bool {
    forces_text(tag) || matches!(tag, YamlTag::None | YamlTag::Merge | YamlTag::Scalar | YamlTag::Other(_))
}

fn forces_text(tag: &YamlTag) -> bool {
    matches!(tag, YamlTag::Text | YamlTag::Unspecific)
}

pub(super) fn is_null(text: &str, tag: &YamlTag, plain: bool) -> bool {
    let typed = matches!(tag, YamlTag::Bool | YamlTag::Int | YamlTag::Float | YamlTag::Binary);
    *tag == YamlTag::Null || !typed && !forces_text(tag) && is_nullish(text, plain)
}

fn is_nullish(text: &str, plain: bool) -> bool {
    plain && (text.is_empty() || text == "~" || text.eq_ignore_ascii_case("null"))
}

fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t', '\r', '\n'])
}

fn is_one_of(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.eq_ignore_ascii_case(word))
}

fn boolean(text: &str) -> Option<bool> {
    let text = trim(text);
    if is_one_of(text, &["true", "yes", "y", "on"]) {
        return Some(true);
    }
    is_one_of(text, &["false", "no", "n", "off"]).then_some(false)
}

fn integer(text: &str) -> Option<Value> {
    let (negative, magnitude) = whole_number(text)?;
    if negative {
        return i64::try_from(0_i128.checked_sub_unsigned(magnitude)?).ok().map(Value::from);
    }
    u64::try_from(magnitude).ok().map(Value::from)
}

/// Sign and magnitude, within 128 bits.
fn whole_number(text: &str) -> Option<(bool, u128)> {
    let text = trim(text);
    let negative = text.starts_with('-');
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (radix, digits) = match unsigned.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &unsigned[2..]),
        [b'0', b'o' | b'O', ..] => (8, &unsigned[2..]),
        [b'0', b'b' | b'B', ..] => (2, &unsigned[2..]),
        [b'0', _, ..] => (8, &unsigned[1..]),
        _ => (10, unsigned),
    };
    let digits = if radix == 10 { digits } else { digits.strip_prefix('_').unwrap_or(digits) };
    let mut magnitude = 0_u128;
    let mut after_digit = false;
    for digit in digits.chars() {
        if digit == '_' && after_digit {
            after_digit = false;
            continue;
        }
        let digit = digit.to_digit(radix)?;
        magnitude = magnitude.checked_mul(u128::from(radix))?.checked_add(u128::from(digit))?;
        after_digit = true;
    }
    let fits = !negative || magnitude <= 1 << 127;
    (after_digit && fits).then_some((negative, magnitude))
}

/// Infinite for a number that is beyond 64 bits; `None` for words such as `inf`.
fn float(text: &str) -> Option<f64> {
    let text = trim(text);
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if is_one_of(text, &[".nan", "+.nan", "-.nan"]) {
        return Some(f64::NAN);
    }
    if is_one_of(text, &[".inf", "+.inf", "-.inf"]) {
        return Some(f64::INFINITY);
    }
    let value: f64 = text.parse().ok()?;
    (value.is_finite() || unsigned.starts_with(|first: char| first.is_ascii_digit())).then_some(value)
}

fn finite(value: f64, text: &str) -> Result<Value, String> {
    let refused = || printable(&format!("non-finite float `{text}` rejected by the configured policy"));
    Number::from_f64(value).map(Value::Number).ok_or_else(refused)
}

fn binary(text: &str) -> Result<String, String> {
    let compact: String = text.split_ascii_whitespace().collect();
    let bytes = base64::decode(&compact).filter(|bytes| base64::encode(bytes) == compact);
    let bytes = bytes.ok_or_else(|| "invalid !!binary base64".to_owned())?;
    String::from_utf8(bytes).map_err(|_| "!!binary scalar is not valid UTF-8".to_owned())
}
