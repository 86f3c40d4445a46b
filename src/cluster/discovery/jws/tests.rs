use serde_json::json;

use super::*;

const SIGNATURE: &str =
    "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..ySxVNWg8m2xXV_OoxGY7nZgbtP2ggfqe2Gi66ENguwY";

fn token() -> BootstrapToken {
    BootstrapToken::parse("abcdef.0123456789abcdef").ok().unwrap()
}

#[test]
fn the_jws_vector_verifies() {
    assert!(verify(&token(), "edge\n", SIGNATURE));
    assert!(!verify(&token(), "edge", SIGNATURE));
    assert!(!verify(&token(), "edge\n", &SIGNATURE.replace("..", ".ZWRnZQo.")), "not detached");
    for other in ["abcdeg.0123456789abcdef", "abcdef.0123456789abcdee"] {
        assert!(!verify(&BootstrapToken::parse(other).ok().unwrap(), "edge\n", SIGNATURE), "{other}");
    }
}

#[test]
fn tokens_have_one_form() {
    for bad in ["", "abcdef", "abcdef.0123456789abcde", "Abcdef.0123456789abcdef", "abcdef.0123456789abcdef."]
    {
        assert!(BootstrapToken::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_kubeconfig_counts_with_its_signature_only() {
    let said = |data: Value| signed_kubeconfig(&json!({ "data": data }), &token());
    let signed = json!({ "kubeconfig": "edge\n", "jws-kubeconfig-abcdef": SIGNATURE });
    assert!(is_signed(&json!({ "data": signed }), &token()));
    assert_eq!(said(signed), Ok("edge\n".to_owned()));
    assert!(said(json!({})).unwrap_err().contains("isn't set up for token bootstrapping"));
    let other = json!({ "kubeconfig": "edge\n", "jws-kubeconfig-other0": SIGNATURE });
    assert!(!is_signed(&json!({ "data": other }), &token()));
    assert!(said(other).unwrap_err().starts_with("token id \"abcdef\" is invalid for this cluster"));
    let forged = json!({ "kubeconfig": "edge", "jws-kubeconfig-abcdef": SIGNATURE });
    assert!(said(forged).unwrap_err().starts_with("failed to verify JWS signature"));
}

#[test]
fn a_bad_pin_is_refused() {
    let authority = |name: &str| {
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap()
    };
    let (one, other) = (authority("one"), authority("other"));
    let pin = shown_pin(one.der());
    let parsed = parse_pin(&pin).unwrap();
    assert_eq!(parse_pin(&pin.to_uppercase()), Ok(parsed));
    assert_eq!(check_pins(&format!("{}{}", other.pem(), one.pem()), &[parsed]), Ok(()));
    let refused = check_pins(&other.pem(), &[parsed]).unwrap_err();
    let wanted = format!("none of the public keys {:?} are pinned", shown_pin(other.der()));
    assert!(refused.starts_with("cluster CA found in cluster-info ConfigMap is invalid: "), "{refused}");
    assert!(refused.ends_with(&wanted), "{refused}");
    assert!(check_pins("", &[parsed]).unwrap_err().starts_with("failed to parse cluster CA"));
    for (bad, said) in [
        ("00", "invalid hash, expected"),
        ("sha256:00:11", "invalid hash, expected"),
        ("md5:00", "unknown hash format \"md5\""),
        ("sha256:0011", "expected a 32 byte SHA-256 hash, found 2 bytes"),
    ] {
        assert!(parse_pin(bad).unwrap_err().contains(said), "{bad}");
    }
    for bad in
        [pin.replace("sha256:", "sha256:g")[..71].to_owned(), format!("{pin}0"), "sha256:\u{e9}".to_owned()]
    {
        assert!(parse_pin(&bad).is_err(), "{bad}");
    }
}
