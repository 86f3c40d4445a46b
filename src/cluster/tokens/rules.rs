//! When a token is asked for again, and what serves until there is a new one.
//!
//! Pure: a token, an answer and the time in, a decision out.

use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::model::objects::TokenRequest;
use crate::model::types::Timestamp;

/// As upstream: older ones are renewed whatever their time is.
const LONGEST_USE: Duration = Duration::from_secs(24 * 3600);
/// As upstream: nodes that started together ask at different moments.
const JITTER: Duration = Duration::from_secs(10);
/// Flash wears out: the newest token of a pod is written at most this often.
const WRITE_EVERY: Duration = Duration::from_secs(24 * 3600);

/// Deliberately without `Debug`: it is a secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub value: Rc<str>,
    /// When it arrived, by this machine's clock.
    pub received: Timestamp,
    /// `status.expirationTimestamp`, by the API server's clock.
    pub expires: Timestamp,
    /// What the API server granted.
    pub seconds: i64,
}

/// The body of the request, which goes to `serviceaccounts/NAME/token`.
#[must_use]
pub(crate) fn body(request: &TokenRequest) -> Value {
    let audiences: Vec<&str> =
        Some(request.audience.as_str()).filter(|it| !it.is_empty()).into_iter().collect();
    json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": audiences,
            "expirationSeconds": request.seconds,
            "boundObjectRef": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": request.pod.name,
                "uid": request.pod.uid,
            },
        },
    })
}

/// The token of an answer.
///
/// # Errors
/// The answer has no token, or no end.
pub(crate) fn from_answer(answer: &Value, request: &TokenRequest, now: Timestamp) -> Result<Token, String> {
    let status = &answer["status"];
    let value = status["token"].as_str().filter(|token| !token.is_empty());
    let expires = status["expirationTimestamp"].as_str().and_then(Timestamp::parse_rfc3339);
    let (Some(value), Some(expires)) = (value, expires) else {
        return Err("failed to fetch token: the answer has no status.token or expirationTimestamp".to_owned());
    };
    let seconds = answer["spec"]["expirationSeconds"].as_i64().unwrap_or(request.seconds);
    Ok(Token { value: value.into(), received: now, expires, seconds })
}

/// When the token is to be renewed: after 80 percent of its time, at most a day, up to ten seconds earlier by
/// `unit` (0 to 1). Counted from its arrival, so that a clock that differs from the API server's neither
/// renews it all the time nor never.
#[must_use]
pub(crate) fn renew_at(token: &Token, unit: f64) -> Timestamp {
    let time = Duration::from_secs(u64::try_from(token.seconds).unwrap_or_default());
    let use_for = (time * 4 / 5).min(LONGEST_USE).saturating_sub(JITTER.mul_f64(unit.clamp(0.0, 1.0)));
    token.received.saturating_add(use_for)
}

/// Whether the token is to be renewed; also when the clock was set back to before its arrival.
#[must_use]
pub(crate) fn due(token: &Token, now: Timestamp, unit: f64) -> bool {
    now >= renew_at(token, unit) || now < token.received
}

/// Why there is no new token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoToken {
    /// The link is down, or the server cannot serve.
    Offline,
    /// 404: the pod or the account is gone.
    Gone,
    /// The server answered, and the answer is no.
    Refused,
}

/// What a pod gets after a request that failed, with upstream's texts. While the link is down a token past
/// its time is still given: the API server accepts it for a year when it is one of its own, and pods
/// that call it need no more.
///
/// # Errors
/// There is no token to give; the caller drops the one it has when it is [`NoToken::Gone`].
pub(crate) fn after_failure(
    token: Option<&Token>,
    request: &TokenRequest,
    why: NoToken,
    message: &str,
    now: Timestamp,
) -> Result<Rc<str>, String> {
    match token {
        Some(token) if why == NoToken::Offline || (why == NoToken::Refused && now <= token.expires) => {
            Ok(Rc::clone(&token.value))
        }
        Some(_) if why == NoToken::Refused => {
            let TokenRequest { namespace, account, .. } = request;
            Err(format!("token {account:?}/{namespace:?} expired and refresh failed: {message}"))
        }
        _ => Err(format!("failed to fetch token: {message}")),
    }
}

/// Whether a new token is written to the store, whose last one was written then.
#[must_use]
pub(crate) fn is_written(last: Option<Timestamp>, now: Timestamp) -> bool {
    last.is_none_or(|last| now < last || now.saturating_since(last) >= WRITE_EVERY)
}

/// The name of the token's row, whose uid is the pod's.
#[must_use]
pub(crate) fn row_name(request: &TokenRequest) -> String {
    format!("{}/{}/{}/{}", request.pod.name, request.account, request.seconds, request.audience)
}

/// The value of the token's row; it is sealed.
#[must_use]
pub(crate) fn to_row(token: &Token) -> Value {
    json!({
        "token": *token.value,
        "received": token.received,
        "expires": token.expires,
        "seconds": token.seconds,
    })
}

/// A token from its row; `None` when it is of another form.
#[must_use]
pub(crate) fn from_row(row: &Value) -> Option<Token> {
    let time = |name: &str| Timestamp::parse_rfc3339(row[name].as_str()?);
    Some(Token {
        value: row["token"].as_str()?.into(),
        received: time("received")?,
        expires: time("expires")?,
        seconds: row["seconds"].as_i64()?,
    })
}

#[cfg(test)]
mod tests;
