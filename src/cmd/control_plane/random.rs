//! Random bytes of the kernel, for tokens, keys and nonces.

use ring::rand::{SecureRandom, SystemRandom};

use super::api::ApiPhaseError;

pub(super) fn fill(bytes: &mut [u8]) -> Result<(), ApiPhaseError> {
    let filled = SystemRandom::new().fill(bytes);
    filled.map_err(|_| ApiPhaseError::Broken("the kernel gives no random bytes".to_owned()))
}
