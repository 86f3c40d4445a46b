//! Quantities once more, slowly and with as many digits as it takes: the grammar by hand, numbers as rows of decimal digits.

/// Largest value of a quantity: 2^63 - 1, in nanos.
const MOST: &str = "9223372036854775807000000000";
/// Beyond this many places everything is nothing or too much.
const FAR: i64 = 1000;

/// The value in nanos as a decimal text, fractions rounded away from zero, clamped; `None` when it is no quantity.
pub fn nanos(text: &str) -> Option<String> {
    let (sign, unsigned) = match text.chars().next()? {
        '-' => ("-", &text[1..]),
        '+' => ("", &text[1..]),
        _ => ("", text),
    };
    let number: String =
        unsigned.chars().take_while(|letter| letter.is_ascii_digit() || *letter == '.').collect();
    let suffix = &unsigned[number.len()..];
    if number.matches('.').count() > 1 || !number.contains(|letter: char| letter.is_ascii_digit()) {
        return None;
    }
    let (ten, kibi) = scale(suffix)?;
    let fraction = number.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let mut digits: Vec<u8> = number.bytes().filter(u8::is_ascii_digit).map(|digit| digit - b'0').collect();
    for _ in 0..kibi {
        digits = times_1024(&digits);
    }
    // The point stands `fraction` places from the right; nanos and the suffix move it.
    let places = ten + 9 - i64::try_from(fraction).ok()?;
    if places >= 0 {
        digits.extend(std::iter::repeat_n(0, usize::try_from(places).ok()?));
    } else {
        let cut = digits.len().saturating_sub(usize::try_from(-places).ok()?);
        let lost = digits.split_off(cut).iter().any(|digit| *digit != 0);
        if lost {
            add_one(&mut digits);
        }
    }
    let text: String =
        digits.iter().skip_while(|digit| **digit == 0).map(|digit| char::from(b'0' + digit)).collect();
    let text = match (text.len().cmp(&MOST.len()), text.as_str() > MOST) {
        (std::cmp::Ordering::Greater, _) | (std::cmp::Ordering::Equal, true) => MOST.to_owned(),
        _ => text,
    };
    Some(if text.is_empty() { "0".to_owned() } else { format!("{sign}{text}") })
}

/// Nanos rounded away from zero to whole units.
pub fn whole_units(nanos: &str) -> String {
    let (sign, digits) = nanos.strip_prefix('-').map_or(("", nanos), |digits| ("-", digits));
    let cut = digits.len().saturating_sub(9);
    let mut whole: Vec<u8> = digits[..cut].bytes().map(|digit| digit - b'0').collect();
    if digits[cut..].bytes().any(|digit| digit != b'0') {
        add_one(&mut whole);
    }
    let whole: String = whole.iter().map(|digit| char::from(b'0' + digit)).collect();
    if whole.is_empty() { "0".to_owned() } else { format!("{sign}{whole}000000000") }
}

/// Powers of ten and of 1024 that a suffix stands for.
fn scale(suffix: &str) -> Option<(i64, usize)> {
    const TENS: [(&str, i64); 10] = [
        ("n", -9),
        ("u", -6),
        ("m", -3),
        ("", 0),
        ("k", 3),
        ("M", 6),
        ("G", 9),
        ("T", 12),
        ("P", 15),
        ("E", 18),
    ];
    const KIBIS: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some((_, power)) = TENS.iter().find(|(name, _)| *name == suffix) {
        return Some((*power, 0));
    }
    if let Some(index) = KIBIS.iter().position(|name| *name == suffix) {
        return Some((0, index + 1));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let (negative, digits) = match exponent.chars().next()? {
        '-' => (true, &exponent[1..]),
        '+' => (false, &exponent[1..]),
        _ => (false, exponent),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    // The parser's own bound: an exponent that does not fit 64 bits is none.
    let power = digits.parse::<i64>().ok()?.min(FAR);
    Some((if negative { -power } else { power }, 0))
}

fn times_1024(digits: &[u8]) -> Vec<u8> {
    let mut carry = 0_u32;
    let mut result = Vec::new();
    for digit in digits.iter().rev() {
        let value = u32::from(*digit) * 1024 + carry;
        result.push(u8::try_from(value % 10).unwrap_or(0));
        carry = value / 10;
    }
    while carry > 0 {
        result.push(u8::try_from(carry % 10).unwrap_or(0));
        carry /= 10;
    }
    result.reverse();
    result
}

fn add_one(digits: &mut Vec<u8>) {
    for digit in digits.iter_mut().rev() {
        if *digit < 9 {
            *digit += 1;
            return;
        }
        *digit = 0;
    }
    digits.insert(0, 1);
}
