//! Base64: the standard alphabet with padding (RFC 4648), as JSON of Kubernetes and Docker and WebSocket
//! frames carry it.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

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

/// The alphabet for URLs, without padding: JSON web signatures, names of certificate requests.
#[must_use]
pub(crate) fn encode_url(bytes: &[u8]) -> String {
    encode(bytes).trim_end_matches('=').replace('+', "-").replace('/', "_")
}

/// What [`encode_url`] writes; `None` for anything else.
#[must_use]
pub(crate) fn decode_url(text: &str) -> Option<Vec<u8>> {
    let is_other = |letter: char| matches!(letter, '+' | '/' | '=' | '\n' | '\r');
    if text.contains(is_other) { None } else { decode(&text.replace('-', "+").replace('_', "/")) }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotBase64;

/// Decodes text that arrives in pieces.
#[derive(Default)]
pub(crate) struct Decoder {
    word: u32,
    digits: u8,
    padding: u8,
}

impl Decoder {
    /// The bytes that are complete with this piece; the `last` piece must complete all of them.
    pub(crate) fn push(&mut self, piece: &[u8], last: bool) -> Result<Vec<u8>, NotBase64> {
        let mut bytes = Vec::with_capacity(piece.len() / 4 * 3 + 3);
        for letter in piece {
            let digit = match letter {
                b'=' if self.digits >= 2 => {
                    self.padding += 1;
                    0
                }
                // Nothing follows padding, not even another group.
                _ if self.padding > 0 => return Err(NotBase64),
                letter => LETTERS
                    .iter()
                    .position(|each| each == letter)
                    .and_then(|digit| u32::try_from(digit).ok())
                    .ok_or(NotBase64)?,
            };
            self.word = self.word << 6 | digit;
            self.digits += 1;
            if self.digits == 4 {
                let [_, whole @ ..] = self.word.to_be_bytes();
                bytes.extend(whole.iter().take(3 - usize::from(self.padding)));
                (self.word, self.digits) = (0, 0);
            }
        }
        if last {
            let complete = self.digits == 0;
            *self = Self::default();
            if !complete {
                return Err(NotBase64);
            }
        }
        Ok(bytes)
    }
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

    #[test]
    fn pieces_are_read_with_padding_alone() {
        for (plain, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(Decoder::default().push(text.as_bytes(), true).as_deref(), Ok(plain.as_bytes()));
        }
        for wrong in ["Z", "Zg", "Zg=", "Zg==Zg==", "=", "Z===", "Zg=a", "Z g=", "Zm8===="] {
            assert_eq!(Decoder::default().push(wrong.as_bytes(), true), Err(NotBase64), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn bytes_come_back_however_the_text_is_cut(
            bytes in proptest::collection::vec(any::<u8>(), 0..99),
            cut in 1..9_usize,
        ) {
            let (text, mut decoder, mut back) = (encode(&bytes), Decoder::default(), Vec::new());
            for piece in text.as_bytes().chunks(cut) {
                back.extend(decoder.push(piece, false).expect("it is base64"));
            }
            back.extend(decoder.push(b"", true).expect("it is complete"));
            prop_assert_eq!(back, bytes);
        }

        #[test]
        fn what_goes_in_comes_out(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }
}
