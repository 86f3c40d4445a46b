//! What makes a ConfigMap of a stranger trustworthy: its signature by the token, and the pins of its authorities.
//!
//! Pure: texts in, a verdict out. Messages are kubeadm's.

use ring::hmac;
use serde_json::Value;

use crate::codec::base64;
use crate::codec::hex;
use crate::platform::x509::{CERTIFICATE, pem_blocks, spki_sha256};

/// The name of the ConfigMap in the namespace `kube-public`.
pub(crate) const CLUSTER_INFO: &str = "cluster-info";

/// `abcdef.0123456789abcdef`. Deliberately without `Debug`: it is a secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BootstrapToken {
    pub id: String,
    pub secret: String,
}

impl BootstrapToken {
    /// # Errors
    /// It is of another form.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let is_plain = |part: &str, length: usize| {
            part.len() == length
                && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        match text.split_once('.') {
            Some((id, secret)) if is_plain(id, 6) && is_plain(secret, 16) => {
                Ok(Self { id: id.to_owned(), secret: secret.to_owned() })
            }
            _ => {
                Err(r#"the bootstrap token is not of the form "\A([a-z0-9]{6})\.([a-z0-9]{16})\z""#
                    .to_owned())
            }
        }
    }
}

/// Whether `signature` is the detached JWS (HS256) of a text by this token, as the controller
/// `bootstrapsigner` writes it: texts are compared, so exactly its form counts.
#[must_use]
pub(crate) fn verify(token: &BootstrapToken, text: &str, signature: &str) -> bool {
    let header = base64::encode_url(format!(r#"{{"alg":"HS256","kid":"{}"}}"#, token.id).as_bytes());
    let signed = format!("{header}.{}", base64::encode_url(text.as_bytes()));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret.as_bytes());
    let tag = hmac::sign(&key, signed.as_bytes());
    signature == format!("{header}..{}", base64::encode_url(tag.as_ref()))
}

/// Whether the ConfigMap has the token's signature yet: it arrives some time after the ConfigMap.
#[must_use]
pub(crate) fn is_signed(cluster_info: &Value, token: &BootstrapToken) -> bool {
    !cluster_info["data"][format!("jws-kubeconfig-{}", token.id)].is_null()
}

/// The kubeconfig of the ConfigMap `cluster-info`, whose signature by the token is checked.
///
/// # Errors
/// There is none, or the signature is missing or another one.
pub(crate) fn signed_kubeconfig(cluster_info: &Value, token: &BootstrapToken) -> Result<String, String> {
    let data = |key: &str| cluster_info["data"][key].as_str().unwrap_or_default();
    let kubeconfig = data("kubeconfig");
    if kubeconfig.is_empty() {
        return Err(format!(
            "there is no kubeconfig key in the {CLUSTER_INFO} ConfigMap. This API Server isn't set up for token \
             bootstrapping, can't connect"
        ));
    }
    let signature = data(&format!("jws-kubeconfig-{}", token.id));
    if signature.is_empty() {
        return Err(format!(
            "token id {:?} is invalid for this cluster or it has expired. Use \"kubeadm token create\" on the \
             control-plane node to create a new valid token",
            token.id
        ));
    }
    if !verify(token, kubeconfig, signature) {
        return Err(
            "failed to verify JWS signature of received cluster info object, can't trust this API Server"
                .to_owned(),
        );
    }
    Ok(kubeconfig.to_owned())
}

/// The SHA-256 of an authority's SubjectPublicKeyInfo.
pub(crate) type CaPin = [u8; 32];

/// A pin as `--discovery-token-ca-cert-hash` has it: `sha256:` and 64 hexadecimal digits, in either case.
///
/// # Errors
/// It is of another form or length.
pub(crate) fn parse_pin(text: &str) -> Result<CaPin, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let [format, value] = parts[..] else {
        return Err("invalid hash, expected \"format:hex-value\". Known format(s) are: sha256".to_owned());
    };
    if !format.eq_ignore_ascii_case("sha256") {
        return Err(format!("unknown hash format {format:?}. Known format(s) are: sha256"));
    }
    if value.len() / 2 != 32 {
        let found = value.len() / 2;
        return Err(format!("invalid hash {text:?}, expected a 32 byte SHA-256 hash, found {found} bytes"));
    }
    let mut pin = [0; 32];
    let digits = value.as_bytes();
    let all = digits.len() == 64
        && pin.iter_mut().zip(digits.chunks(2)).all(|(byte, pair)| {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            let read = digit(0).zip(digit(1)).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
            read.map(|read| *byte = read).is_some()
        });
    all.then_some(pin).ok_or_else(|| format!("invalid hash {text:?}, could not decode SHA-256 from hex"))
}

/// The pin of a certificate (DER); empty when it is none.
pub(crate) fn shown_pin(certificate: &[u8]) -> String {
    "sha256:".to_owned() + &hex::encode(&spki_sha256(certificate).unwrap_or_default())
}

/// Checks that one of the authorities (PEM) has a pinned key.
///
/// # Errors
/// None has; the message lists the pins they would have.
pub(crate) fn check_pins(authorities: &str, pins: &[CaPin]) -> Result<(), String> {
    let authorities = pem_blocks(authorities, CERTIFICATE);
    if authorities.is_empty() {
        return Err(format!("failed to parse cluster CA from the {CLUSTER_INFO} ConfigMap"));
    }
    let is_pinned = |der: &Vec<u8>| spki_sha256(der).is_some_and(|found| pins.contains(&found));
    if authorities.iter().any(is_pinned) {
        return Ok(());
    }
    let found: Vec<String> = authorities.iter().map(|der| shown_pin(der)).collect();
    Err(format!(
        "cluster CA found in {CLUSTER_INFO} ConfigMap is invalid: none of the public keys {:?} are pinned",
        found.join(":")
    ))
}

#[cfg(test)]
mod tests;
