//! Private keys in PEM: PKCS #8 as this program writes them, and the older forms that kubeadm and openssl write.
//!
//! Pure: a text in, a key out.

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, SignatureAlgorithm};

use crate::platform::x509::{element, pem_blocks};

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const PARAMETERS: u8 = 0xa0;
/// AlgorithmIdentifier of RSA: its OID, then NULL.
const RSA: &[u8] = &[0x06, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 0x05, 0];
/// The OID of keys on curves.
const ON_A_CURVE: &[u8] = &[0x06, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const P256: &[u8] = &[0x06, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];

/// The algorithm of keys that are made. RSA keys cannot be: the default is made instead.
pub(crate) fn algorithm(name: &str) -> &'static SignatureAlgorithm {
    if name == "ECDSA-P384" { &PKCS_ECDSA_P384_SHA384 } else { &PKCS_ECDSA_P256_SHA256 }
}

/// Reads a key; the complaint says what is wrong with it.
pub(crate) fn read(text: &str) -> Result<KeyPair, String> {
    let block = |label: &str| pem_blocks(text, label).into_iter().next();
    let der = if let Some(der) = block("PRIVATE KEY") {
        der
    } else if let Some(der) = block("RSA PRIVATE KEY") {
        wrap(RSA, &der)
    } else if let Some(der) = block("EC PRIVATE KEY") {
        let algorithm = [ON_A_CURVE, curve(&der).unwrap_or(P256)].concat();
        wrap(&algorithm, &der)
    } else {
        return Err("data does not contain a valid RSA or ECDSA private key".to_owned());
    };
    KeyPair::try_from(der.as_slice()).map_err(|error| format!("unusable private key: {error}"))
}

/// PKCS #8 around a key.
fn wrap(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    let parts = [vec![INTEGER, 1, 0], tlv(SEQUENCE, algorithm), tlv(OCTET_STRING, key)];
    tlv(SEQUENCE, &parts.concat())
}

fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let digits: Vec<u8> = length.into_iter().skip_while(|digit| *digit == 0).collect();
    let count = u8::try_from(digits.len()).unwrap_or_default();
    let head = match digits.as_slice() {
        [] => vec![tag, 0],
        [short] if *short < 0x80 => vec![tag, *short],
        _ => [&[tag, 0x80 | count], digits.as_slice()].concat(),
    };
    [head.as_slice(), content].concat()
}

/// The OID of the curve that an ECPrivateKey names.
fn curve(key: &[u8]) -> Option<&[u8]> {
    let (_, content, _) = element(key)?;
    let (_, _, rest) = element(content)?;
    let (_, _, rest) = element(rest)?;
    element(rest).filter(|(tag, ..)| *tag == PARAMETERS).map(|(_, oid, _)| oid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::base64;

    /// PEM of PKCS #8 as the older form of the same key.
    fn older(pem: &str, label: &str) -> String {
        let der = pem_blocks(pem, "PRIVATE KEY").remove(0);
        let (_, content, _) = element(&der).unwrap();
        let after_version = element(content).unwrap().2;
        let key = element(element(after_version).unwrap().2).unwrap().1;
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", base64::encode(key))
    }

    #[test]
    fn older_forms_are_the_same_key() {
        for name in ["ECDSA-P256", "ECDSA-P384"] {
            let key = KeyPair::generate_for(algorithm(name)).unwrap();
            assert_eq!(read(&key.serialize_pem()).unwrap().public_key_raw(), key.public_key_raw(), "{name}");
        }
        // Without the name of its curve, as PKCS #8 holds it, an ECPrivateKey is taken for P-256.
        let key = KeyPair::generate_for(algorithm("ECDSA-P256")).unwrap();
        let old = older(&key.serialize_pem(), "EC PRIVATE KEY");
        assert_eq!(read(&old).unwrap().public_key_raw(), key.public_key_raw());
        for bad in ["", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lengths_are_encoded_as_der_demands() {
        for (length, head) in
            [(0, vec![4, 0]), (127, vec![4, 127]), (128, vec![4, 0x81, 128]), (700, vec![4, 0x82, 2, 188])]
        {
            let whole = tlv(OCTET_STRING, &vec![7; length]);
            assert_eq!(whole[..head.len()], head);
            assert_eq!(element(&whole).unwrap().1.len(), length);
        }
    }
}
