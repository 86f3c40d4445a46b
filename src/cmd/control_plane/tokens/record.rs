//! Bootstrap tokens: what one is, the Secret that holds it, the table that lists them.
//!
//! Pure: values, random bytes and the time in. Owns kubeadm's words about tokens.

use serde_json::{Map, Value, json};

use crate::cluster::discovery::jws;
use crate::cmd::cli::columns;
use crate::codec::base64;
use crate::model::types::Timestamp;

/// Of the group in which kubeadm's rights of joining nodes are.
pub(crate) const GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
/// In the order of kubeadm's default.
pub(crate) const USAGES: [&str; 2] = ["signing", "authentication"];
/// Of tokens that only end an upload of certificates.
pub(crate) const UPLOAD: &str = "Proxy for managing TTL for the kubeadm-certs secret";

const PREFIX: &str = "bootstrap-token-";
const USAGE: &str = "usage-bootstrap-";
const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
const COLUMNS: [&str; 6] = ["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"];

/// Without `Debug`: it contains the secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub id: String,
    pub secret: String,
    pub description: String,
    /// `None`: never.
    pub expires: Option<Timestamp>,
    pub usages: Vec<String>,
    pub groups: Vec<String>,
}

/// A token from random bytes; `None` if there are too few that can be used: all letters are equally likely.
#[must_use]
pub(crate) fn from_random(bytes: &[u8]) -> Option<String> {
    let whole = 256 / LETTERS.len() * LETTERS.len();
    let letters = bytes.iter().map(|byte| usize::from(*byte)).filter(|byte| *byte < whole);
    let mut text: String = letters.map(|byte| char::from(LETTERS[byte % LETTERS.len()])).take(22).collect();
    (text.len() == 22).then(|| {
        text.insert(6, '.');
        text
    })
}

/// The name of the Secret of a token, given the token or its id.
///
/// # Errors
/// It is neither.
pub(crate) fn id_of(text: &str) -> Result<String, String> {
    let whole = if text.len() == 6 { format!("{text}.0000000000000000") } else { text.to_owned() };
    jws::BootstrapToken::parse(&whole).map(|token| token.id).map_err(|_| {
        r#"given token didn't match pattern "\\A([a-z0-9]{6})\\.([a-z0-9]{16})\\z" or "\\A([a-z0-9]{6})\\z""#
            .to_owned()
    })
}

#[must_use]
pub(crate) fn secret_name(id: &str) -> String {
    [PREFIX, id].concat()
}

impl Record {
    #[must_use]
    pub(crate) fn text(&self) -> String {
        [&self.id, ".", &self.secret].concat()
    }

    /// # Errors
    /// In kubeadm's words.
    pub(crate) fn check(&self) -> Result<(), String> {
        let invalid = |field: &str, value: &[String], why: String| {
            Err(format!("bootstrapTokens.0.{field}: Invalid value: {value:?}: {why}"))
        };
        if let Some(usage) = self.usages.iter().find(|usage| !USAGES.contains(&usage.as_str())) {
            let why = format!(
                "invalid bootstrap token usage string: {usage}, valid usage options: signing,authentication"
            );
            return invalid("usages", &self.usages, why);
        }
        if !self.groups.is_empty() && !self.usages.iter().any(|usage| usage == USAGES[1]) {
            let why =
                "token groups cannot be specified unless --usages includes \"authentication\"".to_owned();
            return invalid("groups", &self.groups, why);
        }
        match self.groups.iter().find(|group| !is_group(group)) {
            None => Ok(()),
            Some(group) => {
                let pattern = r"\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z";
                let why = format!("bootstrap group {group:?} is invalid (must match {pattern})");
                invalid("groups", &self.groups, why)
            }
        }
    }

    #[must_use]
    pub(crate) fn to_secret(&self) -> Value {
        let mut data = Map::new();
        let mut put = |name: &str, value: &str| {
            if !value.is_empty() {
                data.insert(name.to_owned(), base64::encode(value.as_bytes()).into());
            }
        };
        put("token-id", &self.id);
        put("token-secret", &self.secret);
        put("description", &self.description);
        put("expiration", &self.expires.map(Timestamp::to_rfc3339).unwrap_or_default());
        put("auth-extra-groups", &self.groups.join(","));
        for usage in &self.usages {
            put(&[USAGE, usage].concat(), "true");
        }
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token", "data": data,
            "metadata": {"name": secret_name(&self.id), "namespace": "kube-system"},
        })
    }

    /// # Errors
    /// The Secret is no token's, by kubeadm's rules.
    pub(crate) fn from_secret(secret: &Value) -> Result<Self, String> {
        let name = secret["metadata"]["name"].as_str().unwrap_or_default();
        let text = |key: &str| {
            let value = secret["data"][key].as_str().and_then(base64::decode);
            value.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
        };
        let wrong = |what: &str| format!("bootstrap token has no or an invalid {what} (Secret {name:?})");
        let token = jws::BootstrapToken::parse(&[&text("token-id"), ".", &text("token-secret")].concat());
        let token = token.map_err(|_| wrong("token-id or token-secret"))?;
        if secret_name(&token.id) != name {
            return Err(format!(
                "bootstrap token name is not of the form '{PREFIX}(token-id)' (Secret {name:?})"
            ));
        }
        let expiration = text("expiration");
        let expires = match expiration.as_str() {
            "" => None,
            text => Some(Timestamp::parse_rfc3339(text).ok_or_else(|| wrong("expiration"))?),
        };
        let keys = secret["data"].as_object().into_iter().flat_map(|data| data.keys());
        let usages = keys.filter_map(|key| key.strip_prefix(USAGE).filter(|_| text(key) == "true"));
        let list = |text: &str| text.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        Ok(Self {
            id: token.id,
            secret: token.secret,
            description: text("description"),
            expires,
            // In the order of the alphabet, as the data.
            usages: usages.map(str::to_owned).collect(),
            groups: list(&text("auth-extra-groups")),
        })
    }

    /// For `-o json` and `-o yaml`.
    #[must_use]
    pub(crate) fn shown(&self) -> Value {
        let mut shown = json!({
            "apiVersion": "output.kubeadm.k8s.io/v1alpha3", "kind": "BootstrapToken", "token": self.text(),
        });
        if !self.description.is_empty() {
            shown["description"] = self.description.clone().into();
        }
        if let Some(expires) = self.expires {
            shown["expires"] = expires.to_rfc3339().into();
        }
        for (name, values) in [("usages", &self.usages), ("groups", &self.groups)] {
            if !values.is_empty() {
                shown[name] = values.clone().into();
            }
        }
        shown
    }
}

fn is_group(group: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    group.strip_prefix("system:bootstrappers:").is_some_and(|rest| {
        rest.len() <= 256
            && rest.bytes().all(|byte| is_plain(byte) || byte == b':' || byte == b'-')
            && rest.bytes().next_back().is_some_and(is_plain)
    })
}

/// The columns of `kubeadm token list`, one line for each token.
#[must_use]
pub(crate) fn table(records: &[Record], now: Timestamp) -> String {
    let or = |text: String, none: &str| if text.is_empty() { none.to_owned() } else { text };
    let row = |record: &Record| {
        let left = |expires: Timestamp| match expires.saturating_since(now) {
            left if left.is_zero() => "<invalid>".to_owned(),
            left => human(left.as_secs()),
        };
        vec![
            record.text(),
            record.expires.map_or("<forever>".to_owned(), left),
            record.expires.map_or("<never>".to_owned(), Timestamp::to_rfc3339),
            or(record.usages.join(","), "<none>"),
            or(record.description.clone(), "<none>"),
            or(record.groups.join(","), "<none>"),
        ]
    };
    let mut rows = vec![COLUMNS.map(str::to_owned).to_vec()];
    rows.extend(records.iter().map(row));
    columns(&rows)
}

/// Kubernetes' short form of a duration: one unit.
#[must_use]
pub(crate) fn human(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m"),
        3600..86400 => format!("{hours}h"),
        _ if days < 365 => format!("{days}d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests;
