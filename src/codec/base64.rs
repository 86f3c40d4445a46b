//! Base64 as Kubernetes' and Docker's JSON carries it: the standard alphabet with padding.
//!
//! Owns the alphabet. Must not know what is carried.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// With padding.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let at = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            if place <= group.len() {
                text.push(char::from(LETTERS[(bits >> (18 - 6 * place)) as usize & 63]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// Padding may be missing; line ends are skipped, as Go does. `None` when it is not base64.
#[must_use]
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let mut bits = 0_u32;
    let mut held = 0;
    let letters = text.bytes().filter(|byte| !matches!(byte, b'\n' | b'\r'));
    let mut padding = 0;
    for letter in letters {
        if letter == b'=' {
            padding += 1;
            continue;
        }
        let value = LETTERS.iter().position(|known| *known == letter).filter(|_| padding == 0)?;
        bits = bits << 6 | u32::try_from(value).ok()?;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from(bits >> held & 255).ok()?);
        }
    }
    (held != 6 && padding <= 2).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_examples_of_the_rfc() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(plain.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(plain.as_bytes()));
            assert_eq!(decode(text.trim_end_matches('=')).as_deref(), Some(plain.as_bytes()));
        }
        for text in ["Zg=a", "Z", "Zm9v!", "Zg===", "Zm 9v"] {
            assert_eq!(decode(text), None, "{text}");
        }
        assert_eq!(decode("Zm9v\nYmFy\r\n").as_deref(), Some(&b"foobar"[..]));
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }
}
