//! Certificates with kubeadm's fields, signed by an authority of this program, of kubeadm or of the user.
//!
//! Pure: what a certificate is for and the time in, PEM out. (The key's bits are random.)

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType, DnValue,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PublicKeyData as _,
    SanType,
};
use time::OffsetDateTime;

use super::keys;
use crate::model::duration::GoDuration;
use crate::model::types::Timestamp;
use crate::platform::x509::{self, CERTIFICATE, pem_blocks};
use crate::serve::server::pki::{FLOOR, Pair, plausible, verify_chain};

const BASIC_CONSTRAINTS: [u64; 4] = [2, 5, 29, 19];
/// An empty sequence: no authority.
const NO_AUTHORITY: [u8; 2] = [0x30, 0];

/// What a certificate is for.
#[derive(Clone, Default)]
pub(crate) struct Leaf {
    pub common_name: String,
    /// At most two.
    pub organizations: Vec<String>,
    pub is_server: bool,
    pub is_client: bool,
    pub names: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

/// The kind and the lifetime of what is signed.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    /// `ECDSA-P256`.
    pub algorithm: &'a str,
    pub validity: GoDuration,
    pub now: Timestamp,
}

/// An authority, with or without its key.
pub(crate) struct Signer {
    pub certificate: String,
    issuer: Option<Issuer<'static, KeyPair>>,
}

impl Signer {
    /// A new authority, and its key in PEM.
    pub(crate) fn create(common_name: &str, terms: Terms<'_>) -> Result<(Self, String), String> {
        let key = generate(terms.algorithm)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
            KeyUsagePurpose::KeyCertSign,
        ];
        params.subject_alt_names = alternative_names(&[common_name.to_owned()], &[]);
        (params.not_before, params.not_after) = window(terms);
        let certificate = params.self_signed(&key).map_err(made)?.pem();
        let text = key.serialize_pem();
        Ok((Self { certificate, issuer: Some(Issuer::new(params, key)) }, text))
    }

    /// An existing authority. A key that is given must be its own.
    pub(crate) fn existing(certificate: &str, key: Option<&str>) -> Result<Self, String> {
        let blocks = pem_blocks(certificate, CERTIFICATE);
        let der = blocks.first().ok_or("data does not contain any valid RSA or ECDSA certificates")?;
        let issuer = match key {
            None => None,
            Some(key) => {
                let key = key_of(der, key)?;
                let mut params = CertificateParams::default();
                params.distinguished_name =
                    subject(der).ok_or("its subject has a form that cannot be signed for")?;
                if let Some(identifier) = x509::subject_key_identifier(der) {
                    params.key_identifier_method = KeyIdMethod::PreSpecified(identifier.to_vec());
                }
                params.key_usages = Vec::new();
                Some(Issuer::new(params, key))
            }
        };
        Ok(Self { certificate: certificate.to_owned(), issuer })
    }

    pub(crate) fn has_key(&self) -> bool {
        self.issuer.is_some()
    }

    /// Signs a certificate for a new key.
    pub(crate) fn sign(&self, leaf: &Leaf, terms: Terms<'_>) -> Result<Pair, String> {
        let issuer = self.issuer.as_ref().ok_or("the key of the certificate authority is not there")?;
        let key = generate(terms.algorithm)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        // One place per type: the second organization has the same type by its numbers.
        let types = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
        if leaf.organizations.len() > types.len() {
            return Err("more than two organizations in one certificate are not supported".to_owned());
        }
        for (kind, organization) in types.into_iter().zip(&leaf.organizations) {
            params.distinguished_name.push(kind, organization.as_str());
        }
        params.distinguished_name.push(DnType::CommonName, leaf.common_name.as_str());
        // As Go writes it: with the identifier of its own key, the library would say more.
        let mut no_authority = CustomExtension::from_oid_content(&BASIC_CONSTRAINTS, NO_AUTHORITY.to_vec());
        no_authority.set_criticality(true);
        params.custom_extensions.push(no_authority);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        let usages = [
            (leaf.is_server, ExtendedKeyUsagePurpose::ServerAuth),
            (leaf.is_client, ExtendedKeyUsagePurpose::ClientAuth),
        ];
        params.extended_key_usages =
            usages.into_iter().filter_map(|(wanted, usage)| wanted.then_some(usage)).collect();
        params.use_authority_key_identifier_extension = true;
        params.subject_alt_names = alternative_names(&leaf.names, &leaf.addresses);
        (params.not_before, params.not_after) = window(terms);
        let certificate = params.signed_by(&key, issuer).map_err(made)?.pem();
        // The issuer's name was taken from its certificate: what is signed must lead there.
        verify_chain(&certificate, &self.certificate, terms.now)?;
        Ok(Pair { certificate, key: key.serialize_pem() })
    }
}

/// Reads the key of a certificate (DER).
///
/// # Errors
/// It is no key, or another's.
pub(crate) fn key_of(certificate: &[u8], key: &str) -> Result<KeyPair, String> {
    let key = keys::read(key)?;
    if x509::public_key(certificate) != Some(key.subject_public_key_info().as_slice()) {
        return Err("the certificate and the private key do not belong together".to_owned());
    }
    Ok(key)
}

fn generate(algorithm: &str) -> Result<KeyPair, String> {
    KeyPair::generate_for(keys::algorithm(algorithm)).map_err(made)
}

/// A new key pair: the private and the public key in PEM.
pub(crate) fn key_pair(algorithm: &str) -> Result<(String, String), String> {
    let key = generate(algorithm)?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn made(error: rcgen::Error) -> String {
    format!("generate a certificate: {error}")
}

/// Since when, until when. A clock that is behind 2026 is wrong: what is signed then is valid by that clock, and a whole
/// lifetime longer than the agent's first possible day.
fn window(terms: Terms<'_>) -> (OffsetDateTime, OffsetDateTime) {
    let start = if terms.now < FLOOR { Timestamp::from_secs(0) } else { FLOOR };
    let end = plausible(terms.now).saturating_add(terms.validity.to_std());
    (moment(start), moment(end))
}

fn moment(at: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(at.as_nanos() / 1_000_000_000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn alternative_names(names: &[String], addresses: &[IpAddr]) -> Vec<SanType> {
    let names = names.iter().filter_map(|name| name.as_str().try_into().ok().map(SanType::DnsName));
    names.chain(addresses.iter().copied().map(SanType::IpAddress)).collect()
}

/// The subject of a certificate (DER), byte for byte. `None`: it has a form that the library does not write.
fn subject(der: &[u8]) -> Option<DistinguishedName> {
    let mut name = DistinguishedName::new();
    for (oid, tag, value) in x509::subject_parts(der)? {
        let kind = DnType::CustomDnType(numbers(oid)?);
        let text = std::str::from_utf8(value).ok()?;
        let value = match tag {
            0x0c => DnValue::Utf8String(text.to_owned()),
            0x13 => DnValue::PrintableString(text.try_into().ok()?),
            0x16 => DnValue::Ia5String(text.try_into().ok()?),
            _ => return None,
        };
        if name.get(&kind).is_some() {
            return None;
        }
        name.push(kind, value);
    }
    Some(name)
}

/// The numbers of an OID.
fn numbers(oid: &[u8]) -> Option<Vec<u64>> {
    let (first, rest) = oid.split_first()?;
    let mut numbers = vec![u64::from(*first) / 40, u64::from(*first) % 40];
    let mut number = 0_u64;
    for byte in rest {
        number = number.checked_mul(128)? + u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            numbers.push(number);
            number = 0;
        }
    }
    Some(numbers)
}

#[cfg(test)]
mod tests;
