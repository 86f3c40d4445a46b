//! Who judges a request to the kubelet's API, what the cluster is asked, and how long its answers hold.
//!
//! Pure: questions, answers and the time in, decisions out. Times are those since the boot: a clock that is
//! set back must not make an old permission valid again.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Answers that are kept: some hundred bytes each. Tokens that clients make up fill it at worst.
const MOST_ANSWERS: usize = 4096;
/// As upstream: of a question, with 500 ms, times 1.5, between them.
const TRIES: u32 = 5;
const FIRST_DELAY: Duration = Duration::from_millis(500);

/// Whose word for a user the node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UserRealm {
    /// The node's own CA, `--token-auth-file`, or the local socket.
    Node,
    /// `clientCAFile`, a token that the cluster knows, or none at all.
    #[default]
    Cluster,
}

/// Who decides what a user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judge {
    /// The user's groups, by the node's own policy.
    Groups,
    /// The cluster: a SubjectAccessReview for each subresource.
    Cluster,
    /// Denied without a question.
    Refused,
}

/// Who judges a request. With `webhook` (`authorization.mode: Webhook`), groups that the cluster vouches for mean
/// nothing on the node, and the API of the box itself is not the cluster's.
#[must_use]
pub(crate) fn judge(realm: UserRealm, webhook: bool, is_kubelet_path: bool) -> Judge {
    match realm {
        UserRealm::Cluster if webhook && is_kubelet_path => Judge::Cluster,
        UserRealm::Cluster if webhook => Judge::Refused,
        UserRealm::Node | UserRealm::Cluster => Judge::Groups,
    }
}

/// A user as a TokenReview names it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReviewedUser {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// `status.user.extra`, passed on as it is; null when there is none.
    pub extra: Value,
}

/// The body of a TokenReview.
#[must_use]
pub(crate) fn token_review(token: &str) -> Value {
    json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": { "token": token } })
}

/// The body of a SubjectAccessReview: always on this node, as upstream's `GetRequestAttributes`.
#[must_use]
pub(crate) fn access_review(user: &ReviewedUser, verb: &str, subresource: &str, node_name: &str) -> Value {
    let mut spec = json!({
        "resourceAttributes": {
            "verb": verb,
            "version": "v1",
            "resource": "nodes",
            "subresource": subresource,
            "name": node_name,
        },
        "user": user.name,
        "groups": user.groups,
    });
    if !user.uid.is_empty() {
        spec["uid"] = user.uid.as_str().into();
    }
    if !user.extra.is_null() {
        spec["extra"] = user.extra.clone();
    }
    json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec })
}

/// An answer of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ReviewAnswer {
    User(Rc<ReviewedUser>),
    /// The token is of no user.
    Unknown,
    Allowed,
    /// With the reason, which may be empty.
    Denied(String),
}

/// The answer of a TokenReview.
///
/// # Errors
/// The server could not tell: not an answer, and not kept.
pub(crate) fn read_token_review(review: &Value) -> Result<ReviewAnswer, String> {
    let status = &review["status"];
    if status["authenticated"] != true {
        return match status["error"].as_str() {
            Some(error) if !error.is_empty() => Err(error.to_owned()),
            _ => Ok(ReviewAnswer::Unknown),
        };
    }
    let user = &status["user"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // Kubernetes has no user without a name.
    if text(&user["username"]).is_empty() {
        return Ok(ReviewAnswer::Unknown);
    }
    Ok(ReviewAnswer::User(Rc::new(ReviewedUser {
        name: text(&user["username"]),
        uid: text(&user["uid"]),
        groups: user["groups"].as_array().into_iter().flatten().map(text).collect(),
        extra: user["extra"].clone(),
    })))
}

/// The answer of a SubjectAccessReview.
///
/// # Errors
/// Not a review: no answer.
pub(crate) fn read_access_review(review: &Value) -> Result<ReviewAnswer, String> {
    let status = &review["status"];
    let Some(allowed) = status["allowed"].as_bool() else {
        return Err("the answer is no SubjectAccessReview with a status".to_owned());
    };
    if allowed && status["denied"] == true {
        return Err("webhook subject access review returned both allow and deny response".to_owned());
    }
    if allowed {
        return Ok(ReviewAnswer::Allowed);
    }
    Ok(ReviewAnswer::Denied(status["reason"].as_str().unwrap_or_default().to_owned()))
}

/// How long answers hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReviewTimes {
    /// `authentication.webhook.cacheTTL`.
    pub token: Duration,
    /// `authorization.webhook.cacheAuthorizedTTL`.
    pub allowed: Duration,
    /// `authorization.webhook.cacheUnauthorizedTTL`.
    pub denied: Duration,
}

impl ReviewTimes {
    /// As configured; zero is the default.
    #[must_use]
    pub(crate) fn of(token: Duration, allowed: Duration, denied: Duration) -> Self {
        let or = |time: Duration, seconds| if time.is_zero() { Duration::from_secs(seconds) } else { time };
        Self { token: or(token, 120), allowed: or(allowed, 300), denied: or(denied, 30) }
    }
}

/// A question, by the SHA-256 of its body: no token is kept.
pub(crate) type QuestionKey = [u8; 32];

/// The key of a review's body.
#[must_use]
pub(crate) fn key(review: &Value) -> QuestionKey {
    Sha256::digest(review.to_string()).into()
}

/// What to do with a question.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Asked {
    Known(ReviewAnswer),
    /// Another caller waits for the same answer: wait with it.
    Join,
    /// Ask the cluster, then call [`ReviewCache::answered`].
    Ask,
}

/// Answers that still hold, and the questions that are being asked.
pub(crate) struct ReviewCache {
    times: ReviewTimes,
    entries: BTreeMap<QuestionKey, ReviewEntry>,
    /// Counts uses, for the order of leaving.
    used: u64,
}

struct ReviewEntry {
    /// `None`: being asked.
    answer: Option<(ReviewAnswer, Duration)>,
    used: u64,
}

impl ReviewCache {
    #[must_use]
    pub(crate) fn new(times: ReviewTimes) -> Self {
        Self { times, entries: BTreeMap::new(), used: 0 }
    }

    /// A question at the time `now` since the boot.
    pub(crate) fn ask(&mut self, key: QuestionKey, now: Duration) -> Asked {
        self.used += 1;
        match self.entries.get_mut(&key) {
            Some(ReviewEntry { answer: None, .. }) => return Asked::Join,
            Some(ReviewEntry { answer: Some((answer, until)), used }) if now < *until => {
                *used = self.used;
                return Asked::Known(answer.clone());
            }
            _ => {}
        }
        self.make_room(now);
        self.entries.insert(key, ReviewEntry { answer: None, used: self.used });
        Asked::Ask
    }

    /// The cluster's answer; `None` when there is none, also when the caller that asked is gone. An answer is kept
    /// for its time, no answer is not: the next question is asked, and until there is an answer nothing is allowed.
    pub(crate) fn answered(&mut self, key: QuestionKey, answer: Option<&ReviewAnswer>, now: Duration) {
        let Some(answer) = answer else {
            self.entries.remove(&key);
            return;
        };
        let time = match answer {
            ReviewAnswer::User(_) | ReviewAnswer::Unknown => self.times.token,
            ReviewAnswer::Allowed => self.times.allowed,
            ReviewAnswer::Denied(_) => self.times.denied,
        };
        let until = now.saturating_add(time);
        self.entries.insert(key, ReviewEntry { answer: Some((answer.clone(), until)), used: self.used });
    }

    /// Removes what no longer holds, and then the answer that was used longest ago. Questions that are being asked
    /// stay: as many as there are connections at most.
    fn make_room(&mut self, now: Duration) {
        if self.entries.len() < MOST_ANSWERS {
            return;
        }
        self.entries.retain(|_, entry| entry.answer.as_ref().is_none_or(|(_, until)| now < *until));
        if self.entries.len() >= MOST_ANSWERS {
            let known = self.entries.iter().filter(|(_, entry)| entry.answer.is_some());
            if let Some(oldest) = known.min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key) {
                self.entries.remove(&oldest);
            }
        }
    }
}

/// Whether a question that got this status is asked again, as upstream's `DefaultShouldRetry`; `None`: the
/// connection broke.
#[must_use]
pub(crate) fn is_asked_again(status: Option<u16>, has_retry_after: bool) -> bool {
    has_retry_after || status.is_none_or(|status| matches!(status, 429 | 500 | 504))
}

/// The wait after this many tries; `None`: no further one. `unit` (0 to 1) adds up to a fifth.
#[must_use]
pub(crate) fn next_try(tries: u32, unit: f64) -> Option<Duration> {
    let factor = 1.5_f64.powi(i32::try_from(tries).ok()? - 1) * (1.0 + unit.clamp(0.0, 1.0) / 5.0);
    (1..TRIES).contains(&tries).then(|| FIRST_DELAY.mul_f64(factor))
}

#[cfg(test)]
mod tests;
