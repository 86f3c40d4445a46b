//! JSON web tokens signed with ES256, the one algorithm that is accepted.
//!
//! Owns their form and their signature.

use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::codec::base64;

pub(crate) const ALGORITHM: &str = "ES256";
/// Longer ones are not read: no token of this node is half as long.
const MAX_BYTES: usize = 8 * 1024;
/// What precedes a point of P-256 in a SubjectPublicKeyInfo (RFC 5480).
const SPKI_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Deliberately without `Debug`: it is a secret.
pub(crate) struct SigningKey {
    pair: EcdsaKeyPair,
    id: String,
}

impl SigningKey {
    /// From PKCS #8 (DER). `None`: it is no key of P-256.
    #[must_use]
    pub(crate) fn from_pkcs8(key: &[u8]) -> Option<Self> {
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key, &SystemRandom::new()).ok()?;
        // As upstream.
        let id = Sha256::digest([&SPKI_HEAD, pair.public_key().as_ref()].concat());
        Some(Self { id: base64::encode_url(&id), pair })
    }

    /// A token with these claims. `None`: the kernel gives no random numbers.
    #[must_use]
    pub(crate) fn sign(&self, claims: &Value) -> Option<String> {
        let encoded = |part: &Value| base64::encode_url(part.to_string().as_bytes());
        let header = encoded(&json!({"alg": ALGORITHM, "kid": self.id}));
        let signed = [&header, ".", &encoded(claims)].concat();
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes()).ok()?;
        Some([&signed, ".", &base64::encode_url(signature.as_ref())].concat())
    }

    /// The claims of a token that this key has signed.
    #[must_use]
    pub(crate) fn verify(&self, token: &str) -> Option<Value> {
        let token = Some(token).filter(|token| token.len() <= MAX_BYTES)?;
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let header = decoded(header)?;
        if header["alg"] != ALGORITHM || header["kid"] != self.id.as_str() {
            return None;
        }
        let signature = base64::decode_url(signature)?;
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.pair.public_key().as_ref());
        key.verify(signed.as_bytes(), &signature).ok()?;
        decoded(claims)
    }

    /// The public half (RFC 7517).
    #[must_use]
    pub(crate) fn jwk(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let half = |from: usize| base64::encode_url(point.get(from..from + 32).unwrap_or_default());
        json!({"use": "sig", "kty": "EC", "kid": self.id, "crv": "P-256", "alg": ALGORITHM, "x": half(1), "y": half(33)})
    }
}

fn decoded(part: &str) -> Option<Value> {
    serde_json::from_slice(&base64::decode_url(part)?).ok()
}
