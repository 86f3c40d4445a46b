//! X.509: what Kubernetes reads of certificates and of requests for them.
//!
//! Owns the parsing of DER: names, validity, public key, alternative names. Nothing is verified here.

use std::net::IpAddr;

use sha2::{Digest, Sha256};

use crate::codec::base64;
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
const BOOLEAN: u8 = 0x01;
const OCTET_STRING: u8 = 0x04;
const EXTENSIONS: u8 = 0xa3;
/// Members of `GeneralName`.
const DNS_NAME: u8 = 0x82;
const IP_ADDRESS: u8 = 0x87;
/// The string types in use whose bytes are UTF-8 or a subset of it: UTF8String, NumericString,
/// PrintableString, IA5String.
const STRINGS: [u8; 4] = [0x0c, 0x12, 0x13, 0x16];
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];
const SUBJECT_ALTERNATIVE_NAME: [u8; 3] = [0x55, 0x1d, 0x11];
const SUBJECT_KEY_IDENTIFIER: [u8; 3] = [0x55, 0x1d, 0x0e];
/// The label of a certificate in PEM.
pub(crate) const CERTIFICATE: &str = "CERTIFICATE";

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

/// The first fields of a certificate, each with its tag's content; `key` is whole.
struct Fields<'a> {
    validity: &'a [u8],
    subject: &'a [u8],
    key: &'a [u8],
    after: &'a [u8],
}

fn fields(certificate: &[u8]) -> Option<Fields<'_>> {
    let (SEQUENCE, certificate, _) = element(certificate)? else { return None };
    let (SEQUENCE, mut rest, _) = element(certificate)? else { return None };
    // The optional version; serial number, algorithm, issuer.
    let (first, _, after) = element(rest)?;
    if first == VERSION {
        rest = after;
    }
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (SEQUENCE, validity, rest) = element(rest)? else { return None };
    let (SEQUENCE, subject, key) = element(rest)? else { return None };
    let (SEQUENCE, _, after) = element(key)? else { return None };
    Some(Fields { validity, subject, key: key.get(..key.len() - after.len())?, after })
}

/// The expiry of a certificate (DER); `None` if it cannot be parsed.
#[must_use]
pub(crate) fn not_after(certificate: &[u8]) -> Option<Timestamp> {
    let (tag, end, _) = element(element(fields(certificate)?.validity)?.2)?;
    moment(tag, end)
}

/// When a certificate (DER) begins to be valid.
#[must_use]
pub(crate) fn not_before(certificate: &[u8]) -> Option<Timestamp> {
    let (tag, start, _) = element(fields(certificate)?.validity)?;
    moment(tag, start)
}

/// The subject of a certificate (DER).
#[must_use]
pub(crate) fn subject(certificate: &[u8]) -> Option<Subject> {
    Some(Subject::parse(fields(certificate)?.subject))
}

/// The SubjectPublicKeyInfo of a certificate (DER).
#[must_use]
pub(crate) fn public_key(certificate: &[u8]) -> Option<&[u8]> {
    Some(fields(certificate)?.key)
}

/// The attributes of a certificate's subject: OID, tag and value. `None`: two of them are in one set.
#[must_use]
pub(crate) fn subject_parts(certificate: &[u8]) -> Option<Vec<(&[u8], u8, &[u8])>> {
    let mut rest = fields(certificate)?.subject;
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let (SET, set, after) = element(rest)? else { return None };
        rest = after;
        let (SEQUENCE, pair, []) = element(set)? else { return None };
        let (OBJECT_IDENTIFIER, kind, value) = element(pair)? else { return None };
        let (tag, value, []) = element(value)? else { return None };
        parts.push((kind, tag, value));
    }
    Some(parts)
}

/// The identifier by which certificates name the key that signed them.
#[must_use]
pub(crate) fn subject_key_identifier(certificate: &[u8]) -> Option<&[u8]> {
    let (OCTET_STRING, identifier, _) = element(extension(certificate, SUBJECT_KEY_IDENTIFIER)?)? else {
        return None;
    };
    Some(identifier)
}

/// SHA-256 of a certificate's SubjectPublicKeyInfo: what the pins of `--discovery-token-ca-cert-hash` are.
#[must_use]
pub(crate) fn spki_sha256(certificate: &[u8]) -> Option<[u8; 32]> {
    Some(Sha256::digest(fields(certificate)?.key).into())
}

/// The DNS names and the addresses that a certificate (DER) is for.
#[must_use]
pub(crate) fn alternative_names(certificate: &[u8]) -> (Vec<String>, Vec<IpAddr>) {
    let (mut names, mut addresses) = (Vec::new(), Vec::new());
    let found = extension(certificate, SUBJECT_ALTERNATIVE_NAME).and_then(element);
    let mut rest = found.filter(|(tag, ..)| *tag == SEQUENCE).map_or(&[][..], |(_, names, _)| names);
    while let Some((tag, value, after)) = element(rest) {
        rest = after;
        match tag {
            DNS_NAME => names.extend(std::str::from_utf8(value).map(str::to_owned)),
            IP_ADDRESS => {
                let four = <[u8; 4]>::try_from(value).map(IpAddr::from);
                addresses.extend(four.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from)));
            }
            _ => {}
        }
    }
    (names, addresses)
}

/// What the extension of this OID holds.
fn extension(certificate: &[u8], wanted: [u8; 3]) -> Option<&[u8]> {
    let mut rest = fields(certificate)?.after;
    // The optional unique ids of issuer and subject come first.
    let extensions = loop {
        let (tag, content, after) = element(rest)?;
        rest = after;
        if tag == EXTENSIONS {
            break content;
        }
    };
    let (SEQUENCE, mut extensions, _) = element(extensions)? else { return None };
    while let Some((SEQUENCE, one, after)) = element(extensions) {
        extensions = after;
        let (OBJECT_IDENTIFIER, kind, mut value) = element(one)? else { return None };
        if kind != wanted {
            continue;
        }
        if let Some((BOOLEAN, _, after)) = element(value) {
            value = after;
        }
        let (OCTET_STRING, value, _) = element(value)? else { return None };
        return Some(value);
    }
    None
}

/// Subject and SubjectPublicKeyInfo of a request for a certificate (PKCS #10, DER).
#[must_use]
pub(crate) fn of_request(request: &[u8]) -> Option<(Subject, &[u8])> {
    let (SEQUENCE, request, _) = element(request)? else { return None };
    let (SEQUENCE, info, _) = element(request)? else { return None };
    let version = element(info)?;
    let (SEQUENCE, subject, key) = element(version.2)? else { return None };
    let (SEQUENCE, _, after) = element(key)? else { return None };
    Some((Subject::parse(subject), key.get(..key.len() - after.len())?))
}

/// The blocks of a PEM text with this label, decoded. Broken ones are left out.
#[must_use]
pub(crate) fn pem_blocks(text: &str, label: &str) -> Vec<Vec<u8>> {
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    let blocks = text.split(begin.as_str()).skip(1);
    blocks.filter_map(|block| base64::decode(block.split_once(end.as_str())?.0.trim())).collect()
}

/// `YYMMDDHHMMSSZ`, whose years are 1950 to 2049, or `YYYYMMDDHHMMSSZ`.
fn moment(tag: u8, text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.is_ascii())?;
    let text = match tag {
        UTC_TIME => format!("{}{text}", if text < "5" { "20" } else { "19" }),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let part = |from: usize| text.get(from..from + 2);
    let (year, [month, day, hour, minute, second]) =
        (text.get(..4)?, [part(4)?, part(6)?, part(8)?, part(10)?, part(12)?]);
    Timestamp::parse_rfc3339(&format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z"))
}

/// The tag, the content and the remaining bytes.
#[must_use]
pub(crate) fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
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

    #[test]
    fn names_key_and_validity_of_a_certificate_are_read() {
        let names = ["edge-7".to_owned(), "10.0.0.7".to_owned(), "fd00::7".to_owned()];
        let mut parameters = rcgen::CertificateParams::new(names).unwrap();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "system:node:edge-7");
        parameters.not_before = rcgen::date_time_ymd(2026, 1, 2);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        let der = certificate.der();
        let node =
            Subject { common_name: "system:node:edge-7".into(), organizations: vec!["system:nodes".into()] };
        assert_eq!(subject(der).as_ref(), Some(&node));
        assert_eq!(not_before(der).map(Timestamp::to_rfc3339).as_deref(), Some("2026-01-02T00:00:00Z"));
        let (dns, addresses) = alternative_names(der);
        assert_eq!(dns, ["edge-7"]);
        assert_eq!(addresses, ["10.0.0.7", "fd00::7"].map(|address| address.parse::<IpAddr>().unwrap()));
        let public = rcgen::PublicKeyData::subject_public_key_info(&key);
        assert_eq!(spki_sha256(der), Some(Sha256::digest(&public).into()));
        let plain = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
        assert_eq!(alternative_names(plain.der()), (Vec::new(), Vec::new()));

        let request = parameters.serialize_request(&key).unwrap();
        assert_eq!(of_request(request.der()), Some((node, &public[..])));
        let text = format!("{}{}", certificate.pem(), plain.pem());
        assert_eq!(pem_blocks(&text, CERTIFICATE), [der.to_vec(), plain.der().to_vec()]);
        assert_eq!(pem_blocks(&request.pem().unwrap(), "CERTIFICATE REQUEST"), [request.der().to_vec()]);
        assert_eq!(pem_blocks("-----BEGIN CERTIFICATE-----\nAA", CERTIFICATE), [[0_u8; 0]; 0]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Subject::parse(&bytes);
            let _ = (not_after(&bytes), spki_sha256(&bytes), alternative_names(&bytes), of_request(&bytes));
        }
    }
}
