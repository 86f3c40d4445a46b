//! Base64 with padding, as the handshake and the text protocols need it.

use super::WebSocketError;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// To text.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let word = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4_usize {
            let digit = usize::try_from(word >> (18 - 6 * place) & 63).unwrap_or(0);
            text.push(if place > chunk.len() { '=' } else { char::from(ALPHABET[digit]) });
        }
    }
    text
}

/// From text that arrives in pieces.
#[derive(Default)]
pub struct Decoder {
    word: u32,
    digits: u8,
    padding: u8,
}

impl Decoder {
    /// The bytes that are complete with this piece; with the `last` one none may be left over.
    ///
    /// # Errors
    /// When it is not base64.
    pub fn push(&mut self, piece: &[u8], last: bool) -> Result<Vec<u8>, WebSocketError> {
        let mut bytes = Vec::with_capacity(piece.len() / 4 * 3 + 3);
        for letter in piece {
            let digit = match letter {
                b'=' if self.digits >= 2 => {
                    self.padding += 1;
                    0
                }
                // Nothing follows padding, not even another group.
                _ if self.padding > 0 => return Err(WebSocketError::Base64),
                letter => ALPHABET
                    .iter()
                    .position(|each| each == letter)
                    .and_then(|digit| u32::try_from(digit).ok())
                    .ok_or(WebSocketError::Base64)?,
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
                return Err(WebSocketError::Base64);
            }
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_is_as_the_standard_has_it() {
        let cases = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (plain, text) in cases {
            assert_eq!(encode(plain.as_bytes()), text);
            assert_eq!(Decoder::default().push(text.as_bytes(), true).as_deref(), Ok(plain.as_bytes()));
        }
        for wrong in ["Z", "Zg", "Zg=", "Zg==Zg==", "=", "Z===", "Zg=a", "Z g=", "Zm8===="] {
            assert_eq!(
                Decoder::default().push(wrong.as_bytes(), true),
                Err(WebSocketError::Base64),
                "{wrong}"
            );
        }
    }

    proptest! {
        #[test]
        fn bytes_come_back_however_the_text_is_cut(bytes in proptest::collection::vec(any::<u8>(), 0..99), cut in 1..9_usize) {
            let (text, mut decoder, mut back) = (encode(&bytes), Decoder::default(), Vec::new());
            for piece in text.as_bytes().chunks(cut) {
                back.extend(decoder.push(piece, false).expect("it is base64"));
            }
            back.extend(decoder.push(b"", true).expect("it is complete"));
            prop_assert_eq!(back, bytes);
        }
    }
}
