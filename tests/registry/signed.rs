//! Images that must be signed, against Debian's docker-registry, with keys and signatures that openssl makes.

use std::path::{Path, PathBuf};

use edge_agent::codec::base64;
use edge_agent::platform::rt;
use edge_agent::runtime::embedded::registry::{PullErrorKind, PullRequest, pull_in_child};
use serde_json::{Value, json};

use super::docker::{Registry, agent, openssl};
use super::fake::{FakeRegistry, answer};
use super::image::{Blob, INDEX, MANIFEST, TestImage, failure, pull_here, request, tar_of};
use crate::support::scratch::Scratch;

const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const TYPE: &str = "cosign container image signature";

/// A registry with a signed image, and the keys.
struct Signed {
    scratch: Scratch,
    registry: Registry,
    keys: PathBuf,
    image: TestImage,
}

impl Signed {
    fn new() -> Self {
        let scratch = Scratch::new();
        let registry = Registry::start(&scratch, "open", "");
        let keys = scratch.dir("keys");
        for name in ["good", "other"] {
            openssl(&keys, &format!("ecparam -name prime256v1 -genkey -noout -out {name}.key"));
            openssl(&keys, &format!("ec -in {name}.key -pubout -out {name}.pub"));
        }
        openssl(&keys, "genpkey -algorithm ed25519 -out ed.key");
        openssl(&keys, "pkey -in ed.key -pubout -out ed.pub");
        let image = TestImage::of(&[tar_of("hello", b"signed")], "amd64");
        registry.push("a/b", "v1", &image);
        Self { scratch, registry, keys, image }
    }

    /// openssl's signature of these bytes.
    fn sign(&self, key: &str, bytes: &[u8]) -> Vec<u8> {
        std::fs::write(self.keys.join("payload"), bytes).unwrap();
        let how = if key == "ed" {
            "pkeyutl -sign -rawin -inkey ed.key -in payload -out signature".to_owned()
        } else {
            format!("dgst -sha256 -sign {key}.key -out signature payload")
        };
        openssl(&self.keys, &how);
        std::fs::read(self.keys.join("signature")).unwrap()
    }

    /// Puts these payloads with their signatures where cosign puts those of `digest`.
    fn publish(&self, digest: &str, signed: &[(Vec<u8>, Vec<u8>)]) {
        let config = Blob::new(b"{}".to_vec());
        self.registry.push_blob("a/b", &config);
        let layers: Vec<Value> = signed
            .iter()
            .map(|(payload, signature)| {
                let blob = Blob::new(payload.clone());
                self.registry.push_blob("a/b", &blob);
                let mut layer = blob.descriptor(PAYLOAD);
                layer["annotations"] =
                    json!({"dev.cosignproject.cosign/signature": base64::encode(signature)});
                layer
            })
            .collect();
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST,
            "config": config.descriptor("application/vnd.oci.image.config.v1+json"), "layers": layers});
        let tag = format!("{}.sig", digest.replace(':', "-"));
        let target = format!("/v2/a/b/manifests/{tag}");
        self.registry.send("PUT", &target, MANIFEST, manifest.to_string().as_bytes());
    }

    /// Signs `digest` as cosign does.
    fn publish_good(&self, key: &str, digest: &str) {
        let payload = payload(TYPE, digest);
        let signature = self.sign(key, &payload);
        self.publish(digest, &[(payload, signature)]);
    }

    /// A request under a policy that wants this of everything in the registry.
    fn asked(&self, rule: &Value, store: &str) -> PullRequest {
        self.asked_of(self.registry.port, rule, store)
    }

    fn asked_of(&self, port: u16, rule: &Value, store: &str) -> PullRequest {
        let host = format!("127.0.0.1:{port}");
        let image = format!("{host}/a/b:v1");
        let policy = json!({"images": {host: rule}});
        let file = self.keys.join("policy.json");
        std::fs::write(&file, policy.to_string()).unwrap();
        PullRequest { policy: Some(file), ..request(&image, &self.scratch.dir(store)) }
    }

    /// With a key named beside the policy.
    fn with_key(&self, key: &str, store: &str) -> PullRequest {
        self.asked(&json!({"keys": [format!("{key}.pub")]}), store)
    }
}

fn payload(kind: &str, digest: &str) -> Vec<u8> {
    let critical = json!({"identity": {"docker-reference": "registry.example/a/b"},
        "image": {"docker-manifest-digest": digest}, "type": kind});
    json!({"critical": critical, "optional": null}).to_string().into_bytes()
}

#[track_caller]
fn refused(request: &PullRequest, words: &str) {
    let message = failure(request);
    assert!(message.starts_with("SignatureValidationFailed: 127.0.0.1:"), "{message}");
    assert!(message.contains(words), "{words:?} in {message:?}");
}

#[test]
fn only_images_signed_by_a_key_of_the_policy_are_pulled() {
    let signed = Signed::new();
    let digest = &signed.image.manifest.digest;
    refused(&signed.with_key("good", "none"), "is not signed (signature tag sha256-");

    signed.publish_good("good", digest);
    refused(&signed.with_key("other", "none"), "signature does not match any of the keys");
    assert_eq!(pull_here(&signed.with_key("good", "p256")).unwrap().0.image_id, signed.image.config.digest);
    let either = json!({"keys": ["other.pub", "good.pub"]});
    assert!(pull_here(&signed.asked(&either, "either")).is_ok());

    signed.publish_good("ed", digest);
    assert!(pull_here(&signed.with_key("ed", "ed25519")).is_ok());
    refused(&signed.with_key("good", "none"), "signature does not match any of the keys");

    // Several signatures: one that fits is enough.
    let good = payload(TYPE, digest);
    let pair = |key: &str| (good.clone(), signed.sign(key, &good));
    signed.publish(digest, &[pair("other"), pair("good")]);
    assert!(pull_here(&signed.with_key("good", "several")).is_ok());
}

#[test]
fn a_signature_of_something_else_is_none() {
    let signed = Signed::new();
    let digest = &signed.image.manifest.digest;
    let other = format!("sha256:{}", "0".repeat(64));
    let with = |kind: &str, named: &str| {
        let payload = payload(kind, named);
        let signature = signed.sign("good", &payload);
        (payload, signature)
    };
    signed.publish(digest, &[with(TYPE, &other)]);
    refused(&signed.with_key("good", "none"), &format!("signature is for another image, {other:?}"));
    signed.publish(digest, &[with("atomic container signature", digest)]);
    refused(&signed.with_key("good", "none"), "has type \"atomic container signature\"");
    // A good signature above a payload that was put in the place of the signed one.
    let (_, signature) = with(TYPE, &other);
    signed.publish(digest, &[(payload(TYPE, digest), signature)]);
    refused(&signed.with_key("good", "none"), "signature does not match any of the keys");
    signed.publish(digest, &[(payload(TYPE, digest), Vec::new())]);
    refused(&signed.with_key("good", "none"), "signature does not match any of the keys");
    signed.publish(digest, &[]);
    refused(&signed.with_key("good", "none"), "is not signed");
}

/// A layer of a manifest of signatures, and its payload.
fn claim(payload: &Blob, signature: &str) -> Value {
    let mut layer = payload.descriptor(PAYLOAD);
    layer["annotations"] = json!({"dev.cosignproject.cosign/signature": signature});
    layer
}

#[test]
fn malformed_claim_hides_no_good_one_in_either_order() {
    let signed = Signed::new();
    let digest = &signed.image.manifest.digest;
    let good_payload = Blob::new(payload(TYPE, digest));
    let good = claim(&good_payload, &base64::encode(&signed.sign("good", &good_payload.bytes)));
    // Signed by the right key, and yet no payload.
    let nonsense = Blob::new(b"nonsense".to_vec());
    let signed_nonsense = base64::encode(&signed.sign("good", &nonsense.bytes));
    let with = |key: &str, value: Value| {
        let mut layer = good.clone();
        layer[key] = value;
        layer
    };
    let rule = json!({"keys": ["good.pub"]});
    let serve = |layers: &[&Value]| {
        let manifest = json!({"schemaVersion": 2, "layers": layers}).to_string().into_bytes();
        let tag = format!("/v2/a/b/manifests/{}.sig", digest.replace(':', "-"));
        let payloads = [good_payload.clone(), nonsense.clone()];
        FakeRegistry::start(&signed.image, move |asked, stream| {
            let payload = payloads.iter().find(|blob| asked.path.ends_with(&blob.digest));
            let known = if asked.path == tag { Some(&manifest) } else { payload.map(|blob| &blob.bytes) };
            if let Some(bytes) = known {
                answer(stream, "200 OK", &[], bytes);
            }
            known.is_some()
        })
    };
    let bad = [
        (with("annotations", json!({"dev.cosignproject.cosign/signature": 7})), "a signature is not base64"),
        (with("size", json!("x")), "a signature's payload is malformed at size"),
        (with("digest", json!("sha512:ab")), "digests of sha512 are not supported"),
        (with("digest", json!(format!("sha256:{}", "0".repeat(64)))), "not found"),
        (with("size", json!(70_000)), "more than the limit of 65536"),
        (with("size", json!(nonsense.bytes.len())), &*good_payload.digest),
        (claim(&nonsense, &signed_nonsense), "invalid signed payload"),
    ];
    for (number, (bad, words)) in bad.iter().enumerate() {
        for (order, layers) in [[bad, &good], [&good, bad]].into_iter().enumerate() {
            let registry = serve(&layers);
            let store = format!("{number}-{order}");
            let pulled = pull_here(&signed.asked_of(registry.port, &rule, &store));
            assert!(pulled.is_ok(), "{bad}, order {order}: {pulled:?}");
        }
        let registry = serve(&[bad]);
        refused(&signed.asked_of(registry.port, &rule, "none"), words);
    }
    let nothing = FakeRegistry::start(&signed.image, |asked, stream| {
        let is_signature = asked.path.contains("/manifests/sha256-");
        if is_signature {
            answer(stream, "200 OK", &[], b"{}");
        }
        is_signature
    });
    refused(
        &signed.asked_of(nothing.port, &rule, "none"),
        "its signature tag is not a manifest of signatures",
    );
}

#[test]
fn malformed_index_signature_does_not_hide_the_manifests() {
    let signed = Signed::new();
    let index = TestImage::index(&[(&signed.image, json!({"os": "linux", "architecture": "amd64"}))]);
    signed.registry.send("PUT", "/v2/a/b/manifests/v1", INDEX, &index.bytes);
    signed.publish_good("good", &signed.image.manifest.digest);
    signed.publish(&index.digest, &[(b"nonsense".to_vec(), b"x".to_vec())]);
    assert!(pull_here(&signed.with_key("good", "manifest")).is_ok());
}

#[test]
fn an_index_or_the_image_in_it_may_be_what_is_signed() {
    let signed = Signed::new();
    let index = TestImage::index(&[(&signed.image, json!({"os": "linux", "architecture": "amd64"}))]);
    signed.registry.send("PUT", "/v2/a/b/manifests/v1", INDEX, &index.bytes);
    refused(&signed.with_key("good", "none"), &format!("{} is not signed", index.digest));
    signed.publish_good("good", &signed.image.manifest.digest);
    assert!(pull_here(&signed.with_key("good", "manifest")).is_ok());
    let second = Signed::new();
    second.registry.send("PUT", "/v2/a/b/manifests/v1", INDEX, &index.bytes);
    second.publish_good("good", &index.digest);
    assert!(pull_here(&second.with_key("good", "index")).is_ok());
}

#[test]
fn policy_applies_to_local_images_and_without_a_registry() {
    let signed = Signed::new();
    let accept = json!("accept");
    assert!(pull_here(&signed.asked(&accept, "images")).is_ok());
    // It is here, unchanged; now a signature is wanted.
    let message = super::image::failure_of(&signed.with_key("good", "images"));
    assert!(message.contains("is not signed"), "{message}");
    refused(&signed.asked(&json!("reject"), "none"), "is rejected by");
    let elsewhere = PullRequest { image: "nowhere.example/a".into(), ..signed.asked(&accept, "none") };
    let message = failure(&elsewhere);
    assert!(
        message.starts_with(
            "SignatureValidationFailed: nowhere.example/a:latest: not matched by any pattern of"
        ),
        "{message}"
    );

    let missing = signed.asked(&json!({"keys": ["missing.pub"]}), "none");
    assert!(failure(&missing).contains("missing.pub: cannot be read"), "{}", failure(&missing));
    let missing = PullRequest { policy: Some(Path::new("/nonexistent/p.json").to_owned()), ..missing };
    assert!(failure(&missing).starts_with("/nonexistent/p.json: cannot be read"));

    // As the agent pulls: the kind comes through, and the words with their first one.
    let request = signed.asked(&json!("reject"), "none");
    let error = rt::run(pull_in_child(&agent(), &request, |_| ())).unwrap().unwrap_err();
    assert_eq!(error.kind(), PullErrorKind::Signature);
    assert!(error.to_string().starts_with("SignatureValidationFailed: "), "{error}");
}
