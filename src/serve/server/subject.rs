//! The user and groups of a certificate.
//!
//! Owns the parsing of a distinguished name, and of the expiry.

use crate::model::types::Timestamp;

/// The parts of a subject that Kubernetes uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The last CN: the user.
    pub common_name: String,
    /// O, in order: the groups.
    pub organizations: Vec<String>,
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// The string types in use whose bytes are UTF-8 or a subset of it: UTF8String, NumericString,
/// PrintableString, IA5String.
const STRINGS: [u8; 4] = [0x0c, 0x12, 0x13, 0x16];
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];

impl Subject {
    /// Parses the content of an RDNSequence (DER). Unknown parts are ignored: they grant no rights.
    #[must_use]
    pub(crate) fn parse(mut names: &[u8]) -> Self {
        let mut subject = Self::default();
        while let Some((SET, mut set, rest)) = element(names) {
            names = rest;
            while let Some((SEQUENCE, pair, rest)) = element(set) {
                set = rest;
                let Some((OBJECT_IDENTIFIER, kind, value)) = element(pair) else { continue };
                let Some((tag, value, [])) = element(value) else { continue };
                let text = std::str::from_utf8(value).ok().filter(|_| STRINGS.contains(&tag));
                match text {
                    Some(text) if kind == COMMON_NAME => text.clone_into(&mut subject.common_name),
                    Some(text) if kind == ORGANIZATION => subject.organizations.push(text.to_owned()),
                    _ => {}
                }
            }
        }
        subject
    }
}

/// The expiry of a certificate (DER); `None` if it cannot be parsed.
#[must_use]
pub(in crate::serve) fn not_after(certificate: &[u8]) -> Option<Timestamp> {
    let (SEQUENCE, certificate, _) = element(certificate)? else { return None };
    let (SEQUENCE, mut fields, _) = element(certificate)? else { return None };
    // The optional version; serial number, algorithm, issuer.
    let (first, _, rest) = element(fields)?;
    if first == VERSION {
        fields = rest;
    }
    for _ in 0..3 {
        fields = element(fields)?.2;
    }
    let (SEQUENCE, validity, _) = element(fields)? else { return None };
    let (tag, end, _) = element(element(validity)?.2)?;
    // `YYMMDDHHMMSSZ`, whose years are 1950 to 2049, or `YYYYMMDDHHMMSSZ`.
    let end = std::str::from_utf8(end).ok().filter(|end| end.is_ascii())?;
    let end = match tag {
        UTC_TIME => format!("{}{end}", if end < "5" { "20" } else { "19" }),
        GENERALIZED_TIME => end.to_owned(),
        _ => return None,
    };
    let part = |from: usize| end.get(from..from + 2);
    let (year, [month, day, hour, minute, second]) =
        (end.get(..4)?, [part(4)?, part(6)?, part(8)?, part(10)?, part(12)?]);
    Timestamp::parse_rfc3339(&format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z"))
}

/// The tag, the content and the remaining bytes.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let count = usize::from(first & 0x7f);
        // The length of a certificate fits into two bytes.
        if !(1..=2).contains(&count) {
            return None;
        }
        let (digits, rest) = rest.split_at_checked(count)?;
        (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).expect("short");
        let head = if length < 0x80 { vec![tag, length] } else { vec![tag, 0x81, length] };
        [&head[..], content].concat()
    }

    fn name(kind: [u8; 3], tag: u8, text: &[u8]) -> Vec<u8> {
        let pair = [tlv(OBJECT_IDENTIFIER, &kind), tlv(tag, text)].concat();
        tlv(SET, &tlv(SEQUENCE, &pair))
    }

    #[test]
    fn names_and_groups_are_read_and_everything_else_gives_nothing() {
        let long = "g".repeat(200);
        let names = [
            name(ORGANIZATION, 0x0c, b"system:masters"),
            name([0x55, 0x04, 0x06], 0x13, b"DE"),
            name(COMMON_NAME, 0x13, b"first"),
            name(COMMON_NAME, 0x0c, "j\u{fc}rgen".as_bytes()),
            name(ORGANIZATION, 0x0c, long.as_bytes()),
            // UTF-16 and broken UTF-8.
            name(ORGANIZATION, 0x1e, &[0, 120]),
            name(ORGANIZATION, 0x0c, &[0xff]),
        ]
        .concat();
        let subject = Subject::parse(&names);
        assert_eq!(subject.common_name, "j\u{fc}rgen");
        assert_eq!(subject.organizations, ["system:masters".to_owned(), long]);
        assert_eq!(Subject::parse(&[]), Subject::default());
        assert_eq!(Subject::parse(&names[1..]), Subject::default());
    }

    #[test]
    fn the_end_of_a_certificate_is_read_in_both_forms() {
        let ends = |year: i32| {
            let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
            parameters.not_after = rcgen::date_time_ymd(year, 3, 4);
            let key = rcgen::KeyPair::generate().unwrap();
            not_after(parameters.self_signed(&key).unwrap().der()).map(Timestamp::to_rfc3339)
        };
        assert_eq!(ends(2027).as_deref(), Some("2027-03-04T00:00:00Z"));
        assert_eq!(ends(2061).as_deref(), Some("2061-03-04T00:00:00Z"));
        assert_eq!(not_after(b"junk"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Subject::parse(&bytes);
            let _ = not_after(&bytes);
        }
    }
}
