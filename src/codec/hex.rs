//! Bytes as digits.

/// In lower case.
#[must_use]
pub(crate) fn encode(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_two_digits() {
        assert_eq!(encode(&[0, 0xab, 7, 255]), "00ab07ff");
        assert_eq!(encode(&[]), "");
    }
}
