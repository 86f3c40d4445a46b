//! Values of Secrets on the disk: in the clear without a key, sealed (ChaCha20-Poly1305) with one.
//!
//! Owns keys, nonces and what a sealed value is bound to.
//!
//! Guarantees: every sealing uses a fresh random nonce, so the same value never has the same sealed form
//! twice; a value is bound to its source, Secret and key, so a row cannot be moved to another one. Nothing in
//! here prints a key or a value.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest, Sha256};

use super::error::StoreError;
use crate::codec::base64;
use crate::codec::hex;

pub(super) const KEY_BYTES: usize = 32;
/// The `key_id` of a value that is stored in the clear.
pub(crate) const PLAIN: &str = "";

/// How values of Secrets are kept.
#[derive(Clone, Default)]
pub enum StoreKey {
    /// No key is configured: in the clear, where only its owner can read the file. A store that is encrypted
    /// stays so, as with [`Self::Unusable`].
    #[default]
    None,
    /// In the clear on purpose, in a store that was encrypted as well.
    Off,
    Sealed(Box<SealingKey>),
    /// A key is configured and cannot be used: sealed values stay sealed, and nothing is written in the clear
    /// instead.
    Unusable {
        /// Why, with the way out.
        reason: String,
    },
}

impl std::fmt::Debug for StoreKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => formatter.write_str("None"),
            Self::Off => formatter.write_str("Off"),
            Self::Sealed(key) => write!(formatter, "Sealed({})", key.id),
            Self::Unusable { reason } => write!(formatter, "Unusable({reason})"),
        }
    }
}

#[derive(Clone)]
pub struct SealingKey {
    key: LessSafeKey,
    id: String,
    /// The key's name at values that are not bound to their source: earlier programs sealed them.
    earlier_id: String,
    /// All bytes are text: a person has typed it, or a program that avoids other bytes.
    is_text: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "must hold a key of {KEY_BYTES} bytes as base64 or hex, for example from \"openssl rand -base64 32\", and nothing else"
)]
pub(crate) struct BadKey;

impl SealingKey {
    /// From the content of a key file: base64 or hex of 32 bytes, or these bytes themselves.
    ///
    /// # Errors
    /// It is none of these. The message contains no part of it.
    pub(crate) fn parse(content: &[u8]) -> Result<Self, BadKey> {
        if content.len() == KEY_BYTES {
            let is_text = content.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace());
            return Ok(Self { is_text, ..Self::new(content)? });
        }
        let text = std::str::from_utf8(content).map_err(|_| BadKey)?.trim();
        let bytes = if text.len() == 2 * KEY_BYTES { from_hex(text) } else { base64::decode(text) };
        Self::new(&bytes.ok_or(BadKey)?)
    }

    fn new(bytes: &[u8]) -> Result<Self, BadKey> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, bytes).map_err(|_| BadKey)?;
        // Distinguishes keys and reveals nothing about them.
        let id = |label: &str| {
            let digest = Sha256::new().chain_update(label).chain_update(bytes).finalize();
            hex::encode(&digest[..8])
        };
        let (id, earlier_id) = (id("agent store key, bound to sources: "), id("agent store key"));
        Ok(Self { key: LessSafeKey::new(key), id, earlier_id, is_text: false })
    }

    /// Names of values that this key opens: sealed now, and by earlier programs.
    pub(super) fn ids(&self) -> [&str; 2] {
        [&self.id, &self.earlier_id]
    }

    /// As programs did before values were bound to their source.
    #[cfg(test)]
    pub(super) fn seal_without_source(&self, place: SealContext<'_>, value: &[u8]) -> (String, Vec<u8>) {
        let (nonce, mut sealed) = ([7; NONCE_LEN], value.to_vec());
        let unique = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(unique, place.aad(false), &mut sealed).unwrap();
        (self.earlier_id.clone(), [&nonce[..], &sealed].concat())
    }

    /// Whether the bytes are text, which has less than 256 bits of chance in it, and may have very little.
    pub(super) fn is_text(&self) -> bool {
        self.is_text
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    Some(digits?.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// What a value belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealContext<'a> {
    pub source: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub key: &'a str,
}

impl SealContext<'_> {
    /// None of the parts can hold a NUL byte, so the two forms, with and without the source, never agree.
    fn aad(&self, has_source: bool) -> Aad<Vec<u8>> {
        let Self { source, namespace, name, key } = self;
        let row = format!("{namespace}\0{name}\0{key}");
        Aad::from(if has_source { format!("{source}\0{row}") } else { row }.into_bytes())
    }
}

/// Why a value cannot be decoded. Becomes a row of [`super::UnreadableRow`].
pub(crate) type Unreadable = String;

impl StoreKey {
    /// The id of the current key.
    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Sealed(key) => &key.id,
            Self::None | Self::Off | Self::Unusable { .. } => PLAIN,
        }
    }

    /// A value in its stored form; `None` when it must not be written.
    pub(crate) fn seal(&self, place: SealContext<'_>, value: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let key = match self {
            Self::None | Self::Off => return Ok(Some(value.to_vec())),
            Self::Unusable { .. } => return Ok(None),
            Self::Sealed(key) => key,
        };
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| StoreError::Seal)?;
        let mut sealed = value.to_vec();
        key.key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), place.aad(true), &mut sealed)
            .map_err(|_| StoreError::Seal)?;
        Ok(Some([&nonce[..], &sealed].concat()))
    }

    /// The value of a row.
    pub(crate) fn open(
        &self,
        place: SealContext<'_>,
        key_id: &str,
        stored: &[u8],
    ) -> Result<Vec<u8>, Unreadable> {
        if key_id == PLAIN {
            return Ok(stored.to_vec());
        }
        let what = format!("the value of {:?} is encrypted with store key {key_id}", place.key);
        match self {
            Self::None | Self::Off => Err(format!("{what}, and no key is configured: set --store-key-file")),
            Self::Unusable { reason } => Err(format!("{what}: {reason}")),
            Self::Sealed(key) if !key.ids().contains(&key_id) => Err(format!(
                "{what}, but the configured key is {}: restore the previous key, or wait for the source to \
                 deliver the Secret again",
                key.id
            )),
            Self::Sealed(key) => {
                let damaged = || format!("{what} and is damaged");
                let (nonce, sealed) = stored.split_at_checked(NONCE_LEN).ok_or_else(damaged)?;
                let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damaged())?;
                let mut value = sealed.to_vec();
                let aad = place.aad(key_id == key.id);
                let length = key.key.open_in_place(nonce, aad, &mut value).map_err(|_| damaged())?.len();
                value.truncate(length);
                Ok(value)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: SealContext<'_> =
        SealContext { source: "file", namespace: "default", name: "db", key: "password" };

    fn key(byte: u8) -> StoreKey {
        StoreKey::Sealed(Box::new(SealingKey::parse(&[byte; KEY_BYTES]).unwrap()))
    }

    #[test]
    fn a_key_is_read_in_every_usual_form_and_has_one_name() {
        let bytes: Vec<u8> = (0..32).collect();
        let hex = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
        let base64 = base64::encode(&bytes);
        let ids: Vec<String> = [&bytes[..], hex.as_bytes(), format!("{base64}\n").as_bytes()]
            .map(|content| SealingKey::parse(content).unwrap().id)
            .to_vec();
        assert_eq!(ids[0], ids[1]);
        assert_eq!(ids[0], ids[2]);
        for content in [&b""[..], b"short", &[0xff; 33], "0".repeat(63).as_bytes()] {
            assert_eq!(SealingKey::parse(content).err(), Some(BadKey));
        }
    }

    #[test]
    fn a_value_comes_back_only_with_its_key_and_at_its_place() {
        let sealed = key(1).seal(PLACE, b"hunter2").unwrap().unwrap();
        let again = key(1).seal(PLACE, b"hunter2").unwrap().unwrap();
        assert_ne!(sealed, again, "a fresh nonce every time");
        assert!(!sealed.windows(7).any(|part| part == b"hunter2"));
        let id = key(1).id().to_owned();
        assert_eq!(key(1).open(PLACE, &id, &sealed).unwrap(), b"hunter2");
        for moved in [SealContext { name: "other", ..PLACE }, SealContext { source: "http", ..PLACE }] {
            assert!(key(1).open(moved, &id, &sealed).unwrap_err().ends_with("is damaged"));
        }
        assert!(key(1).open(PLACE, &id, &sealed[..5]).unwrap_err().ends_with("is damaged"));
        let mut bent = sealed.clone();
        bent[NONCE_LEN] ^= 1;
        assert!(key(1).open(PLACE, &id, &bent).unwrap_err().ends_with("is damaged"));
        assert!(key(2).open(PLACE, &id, &sealed).unwrap_err().contains("but the configured key is"));
        assert!(StoreKey::None.open(PLACE, &id, &sealed).unwrap_err().contains("--store-key-file"));
    }

    #[test]
    fn value_sealed_by_an_earlier_program_opens_by_its_key_id() {
        let StoreKey::Sealed(sealing) = key(1) else { unreachable!() };
        let (id, sealed) = sealing.seal_without_source(PLACE, b"hunter2");
        for source in ["file", "http"] {
            let place = SealContext { source, ..PLACE };
            assert_eq!(key(1).open(place, &id, &sealed).unwrap(), b"hunter2");
            assert!(key(1).open(place, key(1).id(), &sealed).unwrap_err().ends_with("is damaged"));
        }
        let (now, bound) = (key(1).id().to_owned(), key(1).seal(PLACE, b"hunter2").unwrap().unwrap());
        assert_ne!(now, id);
        assert!(key(1).open(PLACE, &id, &bound).unwrap_err().ends_with("is damaged"));
    }

    #[test]
    fn a_key_that_cannot_be_used_writes_nothing_in_the_clear() {
        let unusable = StoreKey::Unusable { reason: "the file is gone".to_owned() };
        assert_eq!(unusable.seal(PLACE, b"x").unwrap(), None);
        assert!(unusable.open(PLACE, "0123", b"x").unwrap_err().ends_with("the file is gone"));
        assert_eq!(unusable.open(PLACE, PLAIN, b"x").unwrap(), b"x");
    }
}
