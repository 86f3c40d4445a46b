//! Signatures of images as cosign stores them beside an image: a payload that names the image's digest, and a
//! signature of the payload by a known key.
//!
//! Owns keys and the check (pure but for reading key files).

use std::path::{Path, PathBuf};

use ring::signature::{ECDSA_P256_SHA256_ASN1, ED25519, UnparsedPublicKey};
use serde_json::Value;

use super::manifest::{self, Descriptor};
use crate::codec::base64;
use crate::model::api::decode::decode;
use crate::model::api::record::record;

/// Where the signature of a payload is: in the annotations of the layer that is the payload.
const ANNOTATION: &str = "dev.cosignproject.cosign/signature";
/// The payload's declared type.
const TYPE: &str = "cosign container image signature";
/// A payload names an image and a few things for people.
pub(super) const MAX_PAYLOAD_BYTES: usize = 64 * 1024;
/// More signatures of one image are not checked.
const MAX_SIGNATURES: usize = 32;
/// The bytes before the point of a P-256 key in its DER form (RFC 5480), and before an Ed25519 key (RFC
/// 8410).
const P256_PREFIX: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
const ED25519_PREFIX: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// ECDSA on P-256 with SHA-256: what `cosign generate-key-pair` makes.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// One signature and its payload.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Claim {
    pub payload: Descriptor,
    signature: Vec<u8>,
}

/// Where cosign keeps the signatures of a manifest or index: a tag of the same repository.
pub(super) fn tag_of(digest: &str) -> String {
    format!("{}.sig", digest.replace(':', "-"))
}

/// Reads all keys of these PEM files.
pub(super) fn read_keys(files: &[PathBuf]) -> Result<Vec<Key>, (PathBuf, String)> {
    let mut keys = Vec::new();
    for file in files {
        let of_file = |problem: String| (file.clone(), problem);
        let text = read(file).map_err(|error| of_file(format!("cannot be read: {error}")))?;
        keys.extend(parse_keys(&text).map_err(of_file)?);
    }
    Ok(keys)
}

fn read(file: &Path) -> std::io::Result<String> {
    if std::fs::metadata(file)?.len() > MAX_PAYLOAD_BYTES as u64 {
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "larger than 64 KiB"));
    }
    std::fs::read_to_string(file)
}

fn parse_keys(pem: &str) -> Result<Vec<Key>, String> {
    let mut keys = Vec::new();
    for part in pem.split("-----BEGIN PUBLIC KEY-----").skip(1) {
        let (body, _) = part.split_once("-----END PUBLIC KEY-----").ok_or("unterminated PEM block")?;
        let body: String = body.split_whitespace().collect();
        let der = base64::decode(&body).ok_or("PEM block is not base64")?;
        let rest = |prefix: &[u8], length: usize| {
            der.strip_prefix(prefix).filter(|key| key.len() == length).map(<[u8]>::to_vec)
        };
        let known = rest(P256_PREFIX, 65).map(Key::P256);
        let known = known.or_else(|| rest(ED25519_PREFIX, 32).map(Key::Ed25519));
        keys.push(known.ok_or("unsupported public key type: must be ECDSA P-256 or Ed25519")?);
    }
    if keys.is_empty() {
        return Err("contains no PEM block \"PUBLIC KEY\"".to_owned());
    }
    Ok(keys)
}

/// The signatures that their manifest lists, each on its own: a malformed one must not hide a good one. Layers without
/// a signature are left out.
pub(super) fn claims(manifest: &[u8]) -> Vec<Result<Claim, String>> {
    let mut manifest: Value = serde_json::from_slice(manifest).unwrap_or_default();
    let Some(Value::Array(layers)) = manifest.get_mut("layers").map(Value::take) else {
        return vec![Err("its signature tag is not a manifest of signatures".to_owned())];
    };
    let mut counts = [0, 0];
    let signed = layers.into_iter().filter_map(|layer| {
        let encoded = layer.get("annotations")?.get(ANNOTATION)?.clone();
        Some(claim(&encoded, layer))
    });
    signed
        .filter(|claim| {
            let count = &mut counts[usize::from(claim.is_ok())];
            *count += 1;
            *count <= MAX_SIGNATURES
        })
        .collect()
}

fn claim(encoded: &Value, layer: Value) -> Result<Claim, String> {
    let signature = encoded.as_str().and_then(base64::decode).ok_or("a signature is not base64")?;
    // The text of a type error quotes the value, which may be long.
    let payload: Descriptor = decode(layer)
        .map_err(|error| format!("a signature's payload is malformed at {}", error.path))?
        .object;
    manifest::check_digest(&payload.digest).map_err(|error| format!("a signature's payload: {error}"))?;
    Ok(Claim { payload, signature })
}

record! {
    #[derive(Default)]
    struct Payload as snake_case {
        critical: Critical,
    }

    #[derive(Default)]
    struct Critical as snake_case {
        image: SignedImage,
        #[serde(rename = "type")]
        kind: String,
    }

    #[derive(Default)]
    struct SignedImage as snake_case {
        #[serde(rename = "docker-manifest-digest")]
        digest: String,
    }
}

/// Whether one of the keys signed this payload, and the payload names one of these digests. The image name in
/// it is not compared, as in cosign: mirrors copy signatures unchanged.
pub(super) fn check(claim: &Claim, payload: &[u8], keys: &[Key], digests: &[&str]) -> Result<(), String> {
    let is_by = |key: &Key| match key {
        Key::P256(point) => {
            UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point).verify(payload, &claim.signature).is_ok()
        }
        Key::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(payload, &claim.signature).is_ok(),
    };
    // Checked before anything in the payload is used.
    if !keys.iter().any(is_by) {
        return Err("signature does not match any of the keys".to_owned());
    }
    let value: Value = serde_json::from_slice(payload).unwrap_or_default();
    let Ok(payload) = decode::<Payload>(value) else {
        return Err("invalid signed payload".to_owned());
    };
    let critical = payload.object.critical;
    if critical.kind != TYPE {
        return Err(format!("signed payload has type {:?}, expected {TYPE:?}", critical.kind));
    }
    if !digests.contains(&critical.image.digest.as_str()) {
        return Err(format!("signature is for another image, {:?}", critical.image.digest));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
    use serde_json::json;

    const DIGEST: &str = "sha256:aaaa";

    fn payload(kind: &str, digest: &str) -> Vec<u8> {
        json!({"critical": {"identity": {"docker-reference": "r.example/a"}, "image": {"docker-manifest-digest": digest},
            "type": kind}, "optional": null})
        .to_string()
        .into_bytes()
    }

    fn pem(prefix: &[u8], key: &[u8]) -> String {
        let body = base64::encode(&[prefix, key].concat());
        format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n")
    }

    fn claim(signature: &[u8]) -> Claim {
        Claim { payload: Descriptor::default(), signature: signature.to_vec() }
    }

    #[test]
    fn both_kinds_of_keys_are_read_and_verify_what_they_signed() {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
        let secret = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let p256 = EcdsaKeyPair::from_pkcs8(algorithm, secret.as_ref(), &random).unwrap();
        let secret = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let ed25519 = Ed25519KeyPair::from_pkcs8(secret.as_ref()).unwrap();
        let text = pem(P256_PREFIX, p256.public_key().as_ref())
            + &pem(ED25519_PREFIX, ed25519.public_key().as_ref());
        let keys = parse_keys(&text).unwrap();
        assert_eq!(keys.len(), 2);
        let good = payload(TYPE, DIGEST);
        let by_p256 = claim(p256.sign(&random, &good).unwrap().as_ref());
        let by_ed25519 = claim(ed25519.sign(&good).as_ref());
        for one in [&by_p256, &by_ed25519] {
            assert_eq!(check(one, &good, &keys, &["sha256:index", DIGEST]), Ok(()));
        }
        let none = Err("signature does not match any of the keys".to_owned());
        assert_eq!(check(&by_p256, &good, &keys[1..], &[DIGEST]), none);
        assert_eq!(check(&by_ed25519, &good, &keys[..1], &[DIGEST]), none);
        assert_eq!(check(&claim(b""), &good, &keys, &[DIGEST]), none);
        assert_eq!(check(&by_p256, &payload(TYPE, "sha256:bbbb"), &keys, &["sha256:bbbb"]), none);
        assert!(
            check(&by_p256, &good, &keys, &["sha256:bbbb"])
                .unwrap_err()
                .contains("another image, \"sha256:aaaa\"")
        );
        for (bytes, words) in [
            (payload("atomic container signature", DIGEST), "has type \"atomic"),
            (payload(TYPE, ""), "another image, \"\""),
            (b"{}".to_vec(), "has type \"\""),
            (b"[1]".to_vec(), "invalid signed payload"),
        ] {
            let signed = claim(ed25519.sign(&bytes).as_ref());
            let problem = check(&signed, &bytes, &keys, &[DIGEST]).unwrap_err();
            assert!(problem.contains(words), "{problem}");
        }
    }

    #[test]
    fn keys_of_other_kinds_are_refused_by_name() {
        let rsa = pem(b"\x30\x82\x01\x22", &[0; 290]);
        for (text, words) in [
            ("", "no PEM block"),
            ("-----BEGIN PUBLIC KEY-----\nAAAA", "unterminated"),
            ("-----BEGIN PUBLIC KEY-----\n!!\n-----END PUBLIC KEY-----", "not base64"),
            (&rsa, "must be ECDSA P-256"),
        ] {
            assert!(parse_keys(text).unwrap_err().contains(words), "{text}");
        }
        let (file, problem) = read_keys(&["/nonexistent/k.pem".into()]).unwrap_err();
        assert!(file.ends_with("k.pem") && problem.starts_with("cannot be read"));
    }

    #[test]
    fn a_manifest_of_signatures_lists_what_has_one() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let manifest = json!({"schemaVersion": 2, "layers": [
            {"mediaType": "x", "digest": digest, "size": 3, "annotations": {ANNOTATION: "aGk="}},
            {"mediaType": "x", "digest": digest, "size": 3, "annotations": {"other": "aGk="}},
            {"mediaType": "x", "digest": digest, "size": 3},
        ]});
        let found = claims(manifest.to_string().as_bytes());
        let hi = found[0].as_ref().unwrap();
        assert_eq!((found.len(), hi.signature.as_slice(), hi.payload.size), (1, &b"hi"[..], 3));
        assert_eq!(tag_of("sha256:ab"), "sha256-ab.sig");
    }

    #[test]
    fn malformed_claims_hide_no_other_claim() {
        let good = json!({"digest": format!("sha256:{}", "a".repeat(64)), "size": 3, "annotations": {ANNOTATION: "aGk="}});
        let with = |key: &str, value: Value| {
            let mut layer = good.clone();
            layer[key] = value;
            layer
        };
        let malformed = [
            (with("annotations", json!({ANNOTATION: 7})), "a signature is not base64"),
            (with("annotations", json!({ANNOTATION: "!"})), "a signature is not base64"),
            (with("size", json!(-1)), "a signature's payload is malformed at size"),
            (with("digest", json!({})), "a signature's payload is malformed at digest"),
            (with("digest", json!("sha512:ab")), "a signature's payload: sha512:ab: digests of sha512"),
            (with("digest", json!("../x")), "a signature's payload: ../x: not a sha256 digest"),
        ];
        for (bad, words) in &malformed {
            for layers in [[bad, &good], [&good, bad]] {
                let found = claims(json!({"layers": layers}).to_string().as_bytes());
                assert_eq!(found.len(), 2, "{bad}");
                let (good, bad): (Vec<_>, Vec<_>) = found.into_iter().partition(Result::is_ok);
                assert_eq!(good.len(), 1, "{layers:?}");
                assert!(bad[0].as_ref().unwrap_err().starts_with(words), "{bad:?}");
            }
        }
        // Neither kind uses up the other's limit.
        let many = [vec![&malformed[0].0; 50], vec![&good; 50]].concat();
        let found = claims(json!({"layers": many}).to_string().as_bytes());
        assert_eq!(found.iter().filter(|claim| claim.is_ok()).count(), MAX_SIGNATURES);
        assert_eq!(found.len(), 2 * MAX_SIGNATURES);
        for text in ["nonsense", "[]", "{}", r#"{"layers": {}}"#] {
            assert!(claims(text.as_bytes())[0].is_err(), "{text}");
        }
        assert!(claims(br#"{"layers": []}"#).is_empty());
    }
}
