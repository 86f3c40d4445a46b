//! Announced requests that clients are about to claim, each under a secret that works once.
//!
//! Owns the pending requests and their bounds.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use tokio::time::Instant;

/// Upstream's: longer than any client takes to connect after the answer.
pub(in crate::serve) const LIFETIME: Duration = Duration::from_secs(60);
/// Upstream's: more than any client announces within [`LIFETIME`].
pub(in crate::serve) const MAX_WAITING: usize = 1000;
const TOKEN_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::serve) enum TokenError {
    #[error(
        "maximum number of in-flight requests exceeded: {MAX_WAITING} streams were requested within a \
         minute; retry later"
    )]
    TooMany,
    #[error("failed to read random numbers from the kernel")]
    Random,
}

/// The pending requests by secret.
pub(in crate::serve) struct Tokens<T> {
    waiting: BTreeMap<String, T>,
    /// The oldest first.
    ages: VecDeque<(Instant, String)>,
}

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), ages: VecDeque::new() }
    }
}

impl<T> Tokens<T> {
    /// Stores `request` and returns its secret.
    pub(in crate::serve) fn insert(&mut self, request: T) -> Result<String, TokenError> {
        self.forget();
        if self.waiting.len() >= MAX_WAITING {
            return Err(TokenError::TooMany);
        }
        let mut random = [0_u8; TOKEN_BYTES];
        SystemRandom::new().fill(&mut random).map_err(|_| TokenError::Random)?;
        let token = format!("{:032x}", u128::from_be_bytes(random));
        self.ages.push_back((Instant::now(), token.clone()));
        self.waiting.insert(token.clone(), request);
        Ok(token)
    }

    /// Removes and returns the request of a secret.
    pub(in crate::serve) fn take(&mut self, token: &str) -> Option<T> {
        self.forget();
        self.waiting.remove(token)
    }

    fn forget(&mut self) {
        while let Some((since, token)) = self.ages.front()
            && (since.elapsed() >= LIFETIME || !self.waiting.contains_key(token))
        {
            self.waiting.remove(token);
            self.ages.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_works_once_and_not_for_long() {
        let mut tokens = Tokens::default();
        let first = tokens.insert(1).expect("there is room");
        let second = tokens.insert(2).expect("there is room");
        assert_ne!(first, second);
        assert_eq!((tokens.take(&first), tokens.take(&first), tokens.take("no")), (Some(1), None, None));
        tokio::time::advance(LIFETIME).await;
        assert_eq!(tokens.take(&second), None);
        assert!(tokens.ages.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_wait_than_there_is_room_for() {
        let mut tokens = Tokens::default();
        for request in 0..MAX_WAITING {
            tokens.insert(request).expect("there is room");
        }
        assert_eq!(tokens.insert(0), Err(TokenError::TooMany));
        tokio::time::advance(LIFETIME).await;
        assert!(tokens.insert(0).is_ok(), "the others are forgotten");
    }
}
