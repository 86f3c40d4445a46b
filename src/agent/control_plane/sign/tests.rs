//! Certificates by their fields, authorities of others, clocks that are wrong.

use std::time::Duration;

use rcgen::{CertificateParams, DnType, DnValue, IsCa, KeyIdMethod};

use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_795_305_600);

fn terms(now: Timestamp) -> Terms<'static> {
    Terms { algorithm: "ECDSA-P256", validity: GoDuration::from_secs(8760 * 3600), now }
}

fn der(pem: &str) -> Vec<u8> {
    pem_blocks(pem, CERTIFICATE).remove(0)
}

fn leaf() -> Leaf {
    Leaf {
        common_name: "kubernetes-admin".to_owned(),
        organizations: vec!["kubeadm:cluster-admins".to_owned(), "other".to_owned()],
        is_server: true,
        is_client: true,
        names: vec!["edge".to_owned(), "*.example.com".to_owned()],
        addresses: vec![IpAddr::from([192, 0, 2, 10])],
    }
}

#[test]
fn a_leaf_has_the_fields_that_it_is_for() {
    for algorithm in ["ECDSA-P256", "ECDSA-P384", "RSA-2048"] {
        let terms = Terms { algorithm, ..terms(NOW) };
        let (authority, key) = Signer::create("kubernetes", terms).unwrap();
        let again = Signer::existing(&authority.certificate, Some(&key)).unwrap();
        assert!(again.has_key());
        for signer in [&authority, &again] {
            let pair = signer.sign(&leaf(), terms).unwrap();
            verify_chain(&pair.certificate, &authority.certificate, NOW).unwrap();
            let der = der(&pair.certificate);
            let subject = x509::subject(&der).unwrap();
            assert_eq!(subject.common_name, "kubernetes-admin");
            assert_eq!(subject.organizations, ["kubeadm:cluster-admins", "other"]);
            let names = vec!["edge".to_owned(), "*.example.com".to_owned()];
            assert_eq!(x509::alternative_names(&der), (names, vec![IpAddr::from([192, 0, 2, 10])]));
            assert_eq!(x509::not_before(&der), Some(FLOOR));
            assert_eq!(x509::not_after(&der), Some(NOW.saturating_add(Duration::from_secs(8760 * 3600))));
            assert!(keys::read(&pair.key).is_ok());
            assert_eq!(x509::subject_key_identifier(&der), None);
        }
    }
}

/// Go compares names byte by byte, and writes them as PrintableString.
#[test]
fn an_authority_of_another_program_signs_under_its_own_name() {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let printable = |text: &str| DnValue::PrintableString(text.try_into().unwrap());
    params.distinguished_name.push(DnType::CountryName, printable("DE"));
    params.distinguished_name.push(DnType::OrganizationName, "Caf\u{e9}");
    params.distinguished_name.push(DnType::CommonName, printable("kubernetes"));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_identifier_method = KeyIdMethod::PreSpecified(vec![7; 20]);
    let certificate = params.self_signed(&key).unwrap().pem();
    let signer = Signer::existing(&certificate, Some(&key.serialize_pem())).unwrap();
    let pair = signer.sign(&leaf(), terms(NOW)).unwrap();
    let (root, leaf) = (der(&certificate), der(&pair.certificate));
    assert_eq!(x509::subject_key_identifier(&root), Some(&[7_u8; 20][..]));
    // The identifier of the key that signed, in the leaf.
    assert!(leaf.windows(20).any(|bytes| bytes == [7; 20]));
    verify_chain(&pair.certificate, &certificate, NOW).unwrap();
}

#[test]
fn a_key_of_another_authority_is_refused() {
    let (one, _) = Signer::create("kubernetes", terms(NOW)).unwrap();
    let (_, other) = Signer::create("kubernetes", terms(NOW)).unwrap();
    let said = |certificate: &str, key: &str| Signer::existing(certificate, Some(key)).map(drop).unwrap_err();
    assert!(said(&one.certificate, &other).contains("do not belong together"));
    assert!(said("", &other).contains("does not contain any valid"));
    assert!(said(&one.certificate, "").contains("does not contain a valid"));
    let keyless = Signer::existing(&one.certificate, None).unwrap();
    assert!(!keyless.has_key() && keyless.sign(&leaf(), terms(NOW)).is_err());
    let three = Leaf { organizations: vec![String::new(); 3], ..leaf() };
    assert!(one.sign(&three, terms(NOW)).map(drop).unwrap_err().contains("two organizations"));
}

#[test]
fn what_is_signed_in_1970_is_valid_then_and_now() {
    let early = Timestamp::from_secs(300);
    let (authority, _) = Signer::create("kubernetes", terms(early)).unwrap();
    let pair = authority.sign(&leaf(), terms(early)).unwrap();
    for certificate in [&authority.certificate, &pair.certificate] {
        let der = der(certificate);
        assert_eq!(x509::not_before(&der), Some(Timestamp::from_secs(0)));
        assert_eq!(x509::not_after(&der), Some(FLOOR.saturating_add(Duration::from_secs(8760 * 3600))));
    }
}
