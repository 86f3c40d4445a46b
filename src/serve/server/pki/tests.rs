use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::platform::testing::TempDir;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn names() -> Vec<String> {
    ["box", "localhost", "127.0.0.1", "::1", "under_score"].map(str::to_owned).into()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn an_authority_is_made_once_and_found_again() {
    let directory = TempDir::new();
    let pki = directory.join("pki");
    let first = Authority::open(&pki, "box").unwrap();
    let again = Authority::open(&pki, "renamed").unwrap();
    assert_eq!(first.certificate(), again.certificate());
    assert_eq!((mode(&authority_file(&pki)), mode(&authority_key_file(&pki))), (0o644, 0o600));
    let pair = again.client("jane", "system:masters", DAY, NOW).unwrap();
    let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
    let parsed = EndEntityCert::try_from(&der).unwrap();
    let subject = Subject::parse(parsed.subject());
    assert_eq!(
        (subject.common_name.as_str(), subject.organizations),
        ("jane", vec!["system:masters".to_owned()])
    );
    assert_eq!(fs::read_dir(&pki).unwrap().count(), 3, "nothing half-made stays beside the lock");
}

#[test]
fn missing_ca_certificate_is_reissued_and_lost_key_reported() {
    let directory = TempDir::new();
    let first = Authority::open(directory.path(), "box").unwrap();
    fs::remove_file(authority_file(directory.path())).unwrap();
    let again = Authority::open(directory.path(), "box").unwrap();
    let key = |authority: &Authority| {
        let der = CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap();
        EndEntityCert::try_from(&der).unwrap().subject_public_key_info().as_ref().to_vec()
    };
    assert_eq!(key(&first), key(&again), "the key is the authority");
    let said = |text: &str| {
        let error = Authority::open(directory.path(), "box").map(drop).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    let key_file = authority_key_file(directory.path());
    let kept = fs::read(&key_file).unwrap();
    fs::remove_file(&key_file).unwrap();
    said("agent-ca.key is missing: restore it");
    fs::write(&key_file, "no key").unwrap();
    said("agent-ca.key: no private key in PEM");
    fs::write(&key_file, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    said("does not match agent-ca.key");
    fs::write(&key_file, kept).unwrap();
    fs::write(authority_file(directory.path()), "").unwrap();
    said("agent-ca.crt: no certificate in PEM");
}

#[test]
fn serving_pair_is_renewed_near_expiry_or_for_a_new_name() {
    let directory = TempDir::new();
    let authority = Authority::open(directory.path(), "box").unwrap();
    let at = |names: &[String], now| serving_pair(directory.path(), &authority, "box", names, now).unwrap();
    let first = at(&names(), NOW);
    assert!(at(&names(), NOW) == first);
    assert!(at(&names(), NOW.saturating_add(290 * DAY)) == first);
    assert!(!is_due(&first, &authority, &[], NOW.saturating_add(290 * DAY)));
    assert!(is_due(&first, &authority, &[], NOW.saturating_add(293 * DAY)));
    let renewed = at(&names(), NOW.saturating_add(293 * DAY));
    assert!(renewed != first);
    let more: Vec<String> = [names(), vec!["192.0.2.7".to_owned()]].concat();
    let named = at(&more, NOW.saturating_add(293 * DAY));
    assert!(named != renewed, "the node has a new address");
    assert!(at(&names(), NOW.saturating_add(293 * DAY)) == named, "a name too many is none too few");
    fs::write(directory.join("kubelet.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert!(at(&names(), NOW.saturating_add(293 * DAY)) != named, "a torn pair is made anew");
    assert_eq!((mode(&directory.join("kubelet.crt")), mode(&directory.join("kubelet.key"))), (0o644, 0o600));
}

#[test]
fn a_pair_of_an_authority_that_is_no_more_is_replaced() {
    let directory = TempDir::new();
    let old = Authority::open(&directory.join("old"), "box").unwrap();
    let pair = serving_pair(directory.path(), &old, "box", &names(), NOW).unwrap();
    let new = Authority::open(&directory.join("new"), "box").unwrap();
    assert!(serving_pair(directory.path(), &new, "box", &names(), NOW).unwrap() != pair);
}

#[test]
fn certificates_made_in_1970_are_valid_at_the_real_time() {
    let directory = TempDir::new();
    let authority = Authority::open(directory.path(), "box").unwrap();
    let early =
        serving_pair(directory.path(), &authority, "box", &names(), Timestamp::from_secs(60)).unwrap();
    assert!(!is_due(&early, &authority, &[], Timestamp::from_secs(60)));
    assert!(!is_due(&early, &authority, &[], FLOOR.saturating_add(100 * DAY)));
    assert!(
        is_due(&early, &authority, &[], FLOOR.saturating_add(400 * DAY)),
        "it is replaced once the time is known"
    );
}

#[test]
fn foreign_serving_pair_is_used_unchanged() {
    let directory = TempDir::new();
    let authority = Authority::open(directory.path(), "box").unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = leaf("somebody", DAY, NOW).self_signed(&key).unwrap().pem();
    let foreign = Pair { certificate, key: key.serialize_pem() };
    fs::write(directory.join("kubelet.crt"), &foreign.certificate).unwrap();
    fs::write(directory.join("kubelet.key"), &foreign.key).unwrap();
    let late = NOW.saturating_add(5000 * DAY);
    let pair = serving_pair(directory.path(), &authority, "box", &["new".to_owned()], late).unwrap();
    assert!(pair == foreign);
    assert!(!is_due(&pair, &authority, &[], late));
}
