//! Detached signatures over manifests.
//!
//! Owns the formats of keys and signatures.

use minisign_verify::{PublicKey, Signature};
use sha2::{Digest, Sha256};

/// An invalid key file, or a signature that is rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum SignatureError {
    #[error("not a minisign public key; use the .pub file written by minisign -G")]
    Key,
    #[error("not a minisign signature; sign the body with minisign -S")]
    Format,
    #[error("signed with a key other than the configured one")]
    OtherKey,
    #[error("the signature does not match the content; sign the content again")]
    Mismatch,
    #[error(
        "signed with timestamp:{signed}, older than timestamp:{seen} served before: an old version is \
         served; sign the intended one again"
    )]
    Older {
        /// Of this one.
        signed: u64,
        /// The newest one so far.
        seen: u64,
    },
    #[error(
        "signed without a timestamp: in its trusted comment, but timestamp:{seen} was served before; sign \
         it with one"
    )]
    Undated {
        /// The newest one so far.
        seen: u64,
    },
}

/// The newest signature of a key. Its timestamp never decreases, so that an old body with its old, valid
/// signature is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Newest {
    /// Which key: that of [`VerifyKey::fingerprint`].
    pub key: String,
    /// `timestamp:` of its trusted comment. Any counter will do.
    pub timestamp: u64,
}

impl Newest {
    /// From its stored form.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (key, timestamp) = text.split_once(' ')?;
        Some(Self { key: key.to_owned(), timestamp: timestamp.parse().ok()? })
    }

    /// The stored form.
    #[must_use]
    pub(crate) fn to_text(&self) -> String {
        format!("{} {}", self.key, self.timestamp)
    }
}

/// The public key with which manifests must be signed.
pub(crate) struct VerifyKey {
    key: PublicKey,
    fingerprint: String,
}

impl VerifyKey {
    /// Suffix of a manifest's path for the path of its signature.
    pub(crate) const EXTENSION: &'static str = ".minisig";

    /// Reads a minisign public key: the whole file, or its second line alone.
    pub(crate) fn parse(text: &str) -> Result<Self, SignatureError> {
        let text = text.trim();
        let key = PublicKey::decode(text).or_else(|_| PublicKey::from_base64(text));
        let key = key.map_err(|_| SignatureError::Key)?;
        let digest = Sha256::digest(text.lines().last().unwrap_or_default().trim());
        let fingerprint = digest.iter().take(8).fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        Ok(Self { key, fingerprint })
    }

    #[must_use]
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Checks that `signature`, a file written by minisign, is this key's over `body`, and not older than the
    /// newest one of this key. The trusted comment is verified too. Returns the newest signature from now on,
    /// if any signature so far had a timestamp.
    pub(crate) fn verify_newer(
        &self,
        body: &[u8],
        signature: &[u8],
        newest: Option<&Newest>,
    ) -> Result<Option<Newest>, SignatureError> {
        let timestamp = self.timestamp_of(body, signature)?;
        let seen = newest.filter(|newest| newest.key == self.fingerprint).map(|newest| newest.timestamp);
        match (timestamp, seen) {
            (Some(signed), Some(seen)) if signed < seen => Err(SignatureError::Older { signed, seen }),
            (None, Some(seen)) => Err(SignatureError::Undated { seen }),
            (timestamp, _) => {
                Ok(timestamp.map(|timestamp| Newest { key: self.fingerprint.clone(), timestamp }))
            }
        }
    }

    /// Verifies a signature without comparing its age.
    pub(crate) fn verify(&self, body: &[u8], signature: &[u8]) -> Result<(), SignatureError> {
        self.timestamp_of(body, signature).map(drop)
    }

    /// The timestamp of the trusted comment, if there is one.
    fn timestamp_of(&self, body: &[u8], signature: &[u8]) -> Result<Option<u64>, SignatureError> {
        let text = std::str::from_utf8(signature).map_err(|_| SignatureError::Format)?;
        let signature = Signature::decode(text.trim_end()).map_err(|_| SignatureError::Format)?;
        // Old versions of minisign signed the body itself and not its hash; both are accepted.
        self.key.verify(body, &signature, true).map_err(|error| match error {
            minisign_verify::Error::UnexpectedKeyId => SignatureError::OtherKey,
            _ => SignatureError::Mismatch,
        })?;
        Ok(timestamp(signature.trusted_comment()))
    }
}

/// minisign writes `timestamp:1700000000`, a tab and more, unless it is given another comment.
fn timestamp(trusted_comment: &str) -> Option<u64> {
    trusted_comment.split_ascii_whitespace().find_map(|word| word.strip_prefix("timestamp:")?.parse().ok())
}

#[cfg(test)]
pub mod testing;

#[cfg(test)]
mod tests {
    use super::testing::{BODY, KEY, LEGACY, OTHER_KEY, SIGNATURE};
    use super::*;

    #[test]
    fn a_signature_is_good_for_its_key_and_body_alone() {
        let key = VerifyKey::parse(KEY).unwrap();
        for signature in [SIGNATURE, LEGACY] {
            assert_eq!(key.verify(BODY.as_bytes(), signature.as_bytes()), Ok(()));
            assert_eq!(key.verify(b"a=2", signature.as_bytes()), Err(SignatureError::Mismatch));
            let other = VerifyKey::parse(OTHER_KEY).unwrap();
            assert_eq!(other.verify(BODY.as_bytes(), signature.as_bytes()), Err(SignatureError::OtherKey));
        }
    }

    #[test]
    fn a_trusted_comment_that_was_changed_is_refused() {
        let forged = SIGNATURE.replace("trusted comment: fleet", "trusted comment: flees");
        assert_ne!(forged, SIGNATURE);
        let key = VerifyKey::parse(KEY).unwrap();
        assert_eq!(key.verify(BODY.as_bytes(), forged.as_bytes()), Err(SignatureError::Mismatch));
    }

    #[test]
    fn what_is_no_signature_is_said_to_be_none() {
        let key = VerifyKey::parse(KEY).unwrap();
        let cut = &SIGNATURE[..SIGNATURE.len() / 2];
        for broken in [&b""[..], b"\xff", b"<html>404</html>", cut.as_bytes(), KEY.as_bytes()] {
            assert_eq!(key.verify(BODY.as_bytes(), broken), Err(SignatureError::Format));
        }
    }

    #[test]
    fn a_key_is_read_with_and_without_its_comment_and_is_the_same() {
        let bare = KEY.lines().nth(1).unwrap();
        let (whole, bare) = (VerifyKey::parse(KEY).unwrap(), VerifyKey::parse(bare).unwrap());
        assert_eq!(whole.fingerprint(), bare.fingerprint());
        assert_ne!(whole.fingerprint(), VerifyKey::parse(OTHER_KEY).unwrap().fingerprint());
        for broken in ["", "untrusted comment: x\n", "hello", "-----BEGIN PUBLIC KEY-----\n"] {
            assert_eq!(VerifyKey::parse(broken).err(), Some(SignatureError::Key), "{broken:?}");
        }
    }
}
