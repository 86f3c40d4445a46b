//! Authentication at a registry: challenges, tokens, basic authentication.
//!
//! Owns the grammar of `WWW-Authenticate` and of token servers.

use super::PullError;
use super::error::invalid;
use crate::codec::base64;
use crate::model::api::decode::decode;
use crate::model::api::record::record;
use crate::platform::http::stream::{Method, StreamClient};
use crate::platform::http::url::{Url, is_loopback_host, query_escape};
use crate::runtime::ImageAuth;

/// A token is a few kilobytes.
const MAX_TOKEN_BYTES: usize = 256 * 1024;
/// The client id sent to token servers.
const CLIENT_ID: &str = "edge-agent";

/// One authentication method that a server offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Challenge {
    /// In lower case: `bearer`, `basic`.
    pub scheme: String,
    parameters: Vec<(String, String)>,
}

impl Challenge {
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// All challenges of a header: `Bearer realm="…",service="…", Basic realm="…"`.
pub(super) fn challenges(header: &str) -> Vec<Challenge> {
    let mut found: Vec<Challenge> = Vec::new();
    let mut rest = header;
    loop {
        rest = rest.trim_start_matches([' ', ',', '\t']);
        let end = rest.find([' ', ',', '=', '\t']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.is_empty() {
            // Nothing, or a misplaced '=': the rest cannot be parsed.
            return found;
        }
        match (after.trim_start().strip_prefix('='), found.last_mut()) {
            (Some(value), Some(challenge)) => {
                let (value, after) = parameter_value(value.trim_start());
                challenge.parameters.push((word.to_ascii_lowercase(), value));
                rest = after;
            }
            (Some(_), None) => return found,
            (None, _) => {
                found.push(Challenge { scheme: word.to_ascii_lowercase(), parameters: Vec::new() });
                rest = after;
            }
        }
    }
}

/// A token or quoted string, and what follows it.
fn parameter_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut letters = quoted.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(letters.next().map(|(_, letter)| letter)),
            other => value.push(other),
        }
    }
    (value, "")
}

record! {
    #[derive(Default)]
    struct TokenAnswer as snake_case {
        token: String,
        access_token: String,
    }
}

/// The `Authorization` that answers one of these challenges.
///
/// `from` is the registry itself: a token server without TLS is used only by a registry without TLS, and on
/// its own host.
pub(super) fn authorization(
    offered: &[Challenge],
    auth: Option<&ImageAuth>,
    scope: &str,
    from: &Url,
    client: &mut StreamClient,
) -> Result<String, PullError> {
    let denied = |reason: &str| Err(PullError::Denied { reason: reason.to_owned() });
    if let Some(auth) = auth.filter(|auth| !auth.registry_token.is_empty()) {
        return Ok(format!("Bearer {}", auth.registry_token));
    }
    if let Some(bearer) = offered.iter().find(|challenge| challenge.scheme == "bearer") {
        let token = fetch_token(bearer, auth, scope, from, client)?;
        return Ok(format!("Bearer {token}"));
    }
    if offered.iter().any(|challenge| challenge.scheme == "basic") {
        return match basic(auth) {
            Some(value) => Ok(value),
            None => denied("authorization failed: no basic auth credentials"),
        };
    }
    denied("the registry responded 401 Unauthorized without a supported authentication scheme")
}

fn basic(auth: Option<&ImageAuth>) -> Option<String> {
    let auth = auth.filter(|auth| !auth.username.is_empty())?;
    Some(format!("Basic {}", base64::encode(format!("{}:{}", auth.username, auth.password).as_bytes())))
}

/// Credentials sent there in clear text go no further than those sent to the registry itself.
fn is_near(realm: &Url, registry: &Url) -> bool {
    let host = |url: &Url| -> String {
        let port = url.authority.rfind(':').filter(|at| !url.authority[*at..].contains(']'));
        url.authority[..port.unwrap_or(url.authority.len())].to_ascii_lowercase()
    };
    let here = is_loopback_host(&realm.authority) && is_loopback_host(&registry.authority);
    !registry.is_encrypted() && (here || host(realm) == host(registry))
}

fn fetch_token(
    challenge: &Challenge,
    auth: Option<&ImageAuth>,
    scope: &str,
    from: &Url,
    client: &mut StreamClient,
) -> Result<String, PullError> {
    let realm = challenge.parameter("realm").unwrap_or_default();
    let Some(mut url) = Url::parse(realm) else {
        return Err(invalid(from.shown(), format!("no usable token server: realm {realm:?}")));
    };
    if !url.is_encrypted() && !is_near(&url, from) {
        return Err(PullError::Redirect {
            url: url.shown(),
            problem: "token server without TLS is only allowed on the same host as a registry without TLS",
        });
    }
    let service = challenge.parameter("service").unwrap_or_default();
    let scope = challenge.parameter("scope").filter(|scope| !scope.is_empty()).unwrap_or(scope);
    // As containerd: a user and password take precedence.
    let identity = auth.filter(|auth| auth.username.is_empty() && !auth.identity_token.is_empty());
    let answer = if let Some(auth) = identity {
        let form = format!(
            "grant_type=refresh_token&service={}&scope={}&client_id={CLIENT_ID}&refresh_token={}",
            query_escape(service),
            query_escape(scope),
            query_escape(&auth.identity_token)
        );
        client.send(Method::Post(&form), &url, &[])
    } else {
        let glue = if url.path.contains('?') { '&' } else { '?' };
        let mut query = format!("{glue}scope={}", query_escape(scope));
        if !service.is_empty() {
            query.push_str("&service=");
            query.push_str(&query_escape(service));
        }
        url.path.push_str(&query);
        let headers: Vec<_> =
            basic(auth).map(|value| ("Authorization".to_owned(), value)).into_iter().collect();
        client.send(Method::Get, &url, &headers)
    };
    let mut answer = answer.map_err(|error| PullError::from_http(error, &url.authority))?;
    match answer.status {
        200 => {}
        400 | 401 | 403 => {
            let reason = super::error::error_message(&answer.reason());
            let status = answer.status;
            return Err(PullError::Denied {
                reason: format!(
                    "failed to authorize: failed to fetch token from {}: {status}{reason}",
                    url.shown()
                ),
            });
        }
        status => {
            let reason = super::error::error_message(&answer.reason());
            return Err(PullError::Status { method: "GET", url: url.shown(), status, reason });
        }
    }
    let body =
        answer.read_all(MAX_TOKEN_BYTES).map_err(|error| PullError::from_http(error, &url.authority))?;
    let bad = || invalid(url.shown(), "the token server's response contains no token");
    let value = serde_json::from_slice(&body).map_err(|_| bad())?;
    let found = decode::<TokenAnswer>(value).map_err(|_| bad())?.object;
    let token = if found.token.is_empty() { found.access_token } else { found.token };
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(bad());
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_token_server_without_tls_is_trusted_on_its_host_alone() {
        for (realm, registry, expected) in [
            ("http://127.0.0.1:5001/t", "http://127.0.0.1:5000/v2", true),
            ("http://localhost:5001/t", "http://127.0.0.1:5000/v2", true),
            ("http://10.0.0.9/t", "http://10.0.0.9:5000/v2", true),
            ("http://10.0.0.8/t", "http://10.0.0.9:5000/v2", false),
            ("http://tokens.example/t", "http://127.0.0.1:5000/v2", false),
            ("http://127.0.0.1/t", "http://10.0.0.9:5000/v2", false),
            ("http://[fd00::1]:1/t", "http://[fd00::1]:2/v2", true),
            ("http://[fd00::2]:1/t", "http://[fd00::1]:2/v2", false),
            ("http://r.example/t", "https://r.example/v2", false),
        ] {
            let url = |text: &str| Url::parse(text).unwrap();
            assert_eq!(is_near(&url(realm), &url(registry)), expected, "{realm} of {registry}");
        }
    }

    #[test]
    fn auth_challenges_are_parsed_separately() {
        let found = challenges(
            "Bearer realm=\"https://a.example/token?x=1,2\",service=r, scope=\"repository:a/b:pull,push\", Basic \
             realm=\"a \\\"b\\\"\"",
        );
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].scheme, "bearer");
        assert_eq!(found[0].parameter("realm"), Some("https://a.example/token?x=1,2"));
        assert_eq!(found[0].parameter("service"), Some("r"));
        assert_eq!(found[0].parameter("scope"), Some("repository:a/b:pull,push"));
        assert_eq!(found[1].scheme, "basic");
        assert_eq!(found[1].parameter("realm"), Some("a \"b\""));
        assert_eq!(challenges("Negotiate")[0].scheme, "negotiate");
        assert!(challenges("=x").is_empty() && challenges("").is_empty());
    }

    proptest! {
        #[test]
        fn no_header_is_too_strange(header in "[a-zA-Z=\", \\\\\té]{0,60}") {
            let _ = challenges(&header);
        }
    }
}
