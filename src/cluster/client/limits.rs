//! How many requests the apiserver gets a second, and how long a request waits for it.
//!
//! Pure: time is an argument, as the time since any fixed moment. Owns the token bucket and the times of waiting.

use std::time::Duration;

use crate::cluster::client::error::{ApiError, ApiErrorKind};

/// Longest wait for a turn.
pub(crate) const LONGEST_TURN: Duration = Duration::from_secs(30);
/// Longest wait that a server may ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);
/// The wait after a 429 that names none.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);
/// How often a request is sent again because the server asked for it.
pub(crate) const RETRIES: u32 = 3;

/// `kubeAPIQPS` and `kubeAPIBurst`, or those of events. Without a limit when `qps` is 0 or less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub qps: i32,
    pub burst: i32,
}

/// Turns that are taken in order; a turn may lie in the future.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    limit: Limit,
    /// Below zero: turns that were given and have not come yet.
    tokens: f64,
    filled: Duration,
}

impl TokenBucket {
    pub(crate) fn new(limit: Limit) -> Self {
        Self { limit, tokens: burst(limit), filled: Duration::ZERO }
    }

    /// Takes the next turn and returns the time until it comes; `None`, without taking it, when that is too long.
    pub(crate) fn take(&mut self, now: Duration) -> Option<Duration> {
        if self.limit.qps <= 0 {
            return Some(Duration::ZERO);
        }
        let qps = f64::from(self.limit.qps);
        let passed = now.saturating_sub(self.filled).as_secs_f64();
        self.filled = now.max(self.filled);
        self.tokens = (self.tokens + passed * qps).min(burst(self.limit));
        let wait = Duration::from_secs_f64((1.0 - self.tokens).max(0.0) / qps);
        if wait > LONGEST_TURN {
            return None;
        }
        self.tokens -= 1.0;
        Some(wait)
    }
}

/// At least one, or no request would ever have its turn.
fn burst(limit: Limit) -> f64 {
    f64::from(limit.burst.max(1))
}

/// How long to wait before a request is sent again; `None` for an error that is the answer. `sent` counts from 1.
pub(crate) fn retry_after(error: &ApiError, sent: u32, unit: f64) -> Option<Duration> {
    let wait = match (error.kind, error.retry_after) {
        _ if sent > RETRIES => return None,
        (ApiErrorKind::TooMany, wait) => wait.unwrap_or(DEFAULT_RETRY_AFTER),
        (ApiErrorKind::Server, Some(wait)) if error.status == 503 => wait,
        _ => return None,
    };
    Some(wait.min(LONGEST_RETRY_AFTER).mul_f64(1.0 + 0.2 * unit))
}
