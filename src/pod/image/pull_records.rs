//! Which pods may use a present image, by the records of earlier pulls (upstream: pull manager, 1.36).
//!
//! Owns the format of the records, which is the kubelet's own on disk (`ImagePulledRecord`), and the rules.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::image_name::repository_of;
use crate::model::ordered::Sortable as _;
use crate::model::types::Timestamp;

/// Upstream's group and version since 1.35.
pub(crate) const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// A Secret that was only compared is added to the record while it has fewer Secrets than this (upstream).
const MOST_COMPARED: usize = 100;

/// `imagePullCredentialsVerificationPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    /// Every pod may use every present image.
    Never,
    /// Images that the agent did not pull are free for all pods.
    #[default]
    NotPreloaded,
    /// Images that match one of these names are free for all pods: without tag and digest, or ending in `/*`.
    NotListed(Vec<String>),
    /// Every image is checked for each pod.
    Always,
}

impl Verification {
    /// From the configuration, which is validated.
    #[must_use]
    pub(crate) fn from_config(policy: &str, allowlist: &[String]) -> Self {
        match policy {
            "NeverVerify" => Self::Never,
            "NeverVerifyAllowlistedImages" => {
                Self::NotListed(allowlist.iter().map(|name| in_full(name)).collect())
            }
            "AlwaysVerify" => Self::Always,
            _ => Self::NotPreloaded,
        }
    }

    fn applies_to(&self, name: &str, is_pulled: bool) -> bool {
        let means = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == pattern,
        };
        match self {
            Self::Never => false,
            Self::NotPreloaded => is_pulled,
            Self::NotListed(patterns) => !patterns.iter().any(means),
            Self::Always => true,
        }
    }
}

/// `busybox` becomes `docker.io/library/busybox`; a pattern ending in `/*` is a prefix and stays as it is.
fn in_full(pattern: &str) -> String {
    if pattern.ends_with("/*") { pattern.to_owned() } else { repository_of(pattern) }
}

/// A Secret with a login in it, as a record names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PullSecret {
    pub namespace: String,
    pub name: String,
    /// Distinguishes it from an earlier one of the same name; empty if there is no uid.
    pub uid: String,
    /// SHA-256 of the login, in hex.
    pub credential_hash: String,
}

impl PullSecret {
    fn is_same_object(&self, other: &Self) -> bool {
        !self.uid.is_empty()
            && (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }

    fn is_same_login(&self, other: &Self) -> bool {
        !self.credential_hash.is_empty() && self.credential_hash == other.credential_hash
    }
}

/// The credentials with which an image was pulled under one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in crate::pod) struct PullCredentials {
    /// Secrets of pods, ordered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_secrets: Vec<PullSecret>,
    /// Accounts whose tokens pulled it: `uid`, `namespace` and `name`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_service_accounts: Vec<Value>,
    /// The pull needed no credentials of the pod: all pods may use the image.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_pods_accessible: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PulledRecord {
    kind: String,
    api_version: String,
    last_updated_time: String,
    /// The runtime's id of it.
    pub image_ref: String,
    /// By name without tag and digest.
    credential_mapping: BTreeMap<String, PullCredentials>,
}

/// The credentials with which a pull succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "each says by whom")]
pub(in crate::pod) enum Opened {
    /// The node's own credentials, or none.
    ByNode,
    /// A Secret of the pod.
    BySecret(PullSecret),
    /// A token of the pod's service account, which is in the record's form.
    ByAccount(Value),
}

/// What is known of a present image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Preloaded,
    /// The agent pulled it, or tried to, with unknown credentials.
    Pulled,
    Recorded(PulledRecord),
}

impl Known {
    /// The service accounts whose tokens pulled the image under this name.
    pub(in crate::pod) fn accounts(&self, image: &str) -> &[Value] {
        let Self::Recorded(record) = self else { return &[] };
        let credentials = record.credential_mapping.get(&repository_of(image));
        credentials.map_or(&[], |known| &known.kubernetes_service_accounts)
    }
}

/// Whether the pod may use the present image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Free,
    /// It may, and this Secret of the pod is added to the record.
    Record(PullSecret),
    /// Only after a successful pull with the pod's credentials.
    Pull,
}

/// Decides about a present image. `secrets` are those of the pod that match the image's name. A pod may also use it as
/// one of its [accounts](Known::accounts).
#[must_use]
pub(crate) fn access(policy: &Verification, image: &str, known: &Known, secrets: &[PullSecret]) -> Access {
    let name = repository_of(image);
    if !policy.applies_to(&name, *known != Known::Preloaded) {
        return Access::Free;
    }
    let Known::Recorded(record) = known else { return Access::Pull };
    let Some(credentials) = record.credential_mapping.get(&name) else { return Access::Pull };
    if credentials.node_pods_accessible {
        return Access::Free;
    }
    let remembered = &credentials.kubernetes_secrets;
    for secret in secrets {
        for one in remembered {
            let (object, login) = (one.is_same_object(secret), one.is_same_login(secret));
            match (object, login) {
                (true, true) => return Access::Free,
                (false, false) => {}
                // A further Secret with the same login, or a new login in the same Secret.
                _ if remembered.len() < MOST_COMPARED => return Access::Record(secret.clone()),
                _ if login => return Access::Free,
                _ => {}
            }
        }
    }
    Access::Pull
}

impl PulledRecord {
    /// A record of an image that the agent pulled with unknown credentials.
    #[must_use]
    pub(in crate::pod) fn new(image_ref: &str, now: Timestamp) -> Self {
        Self {
            kind: "ImagePulledRecord".to_owned(),
            api_version: API_VERSION.to_owned(),
            last_updated_time: now.to_rfc3339(),
            image_ref: image_ref.to_owned(),
            credential_mapping: BTreeMap::new(),
        }
    }

    /// Records the credentials that pulled the image under this name. False when they were recorded before.
    pub(in crate::pod) fn note(&mut self, image: &str, opened: Opened, now: Timestamp) -> bool {
        let credentials = self.credential_mapping.entry(repository_of(image)).or_default();
        let is_new = match opened {
            _ if credentials.node_pods_accessible => false,
            Opened::ByNode => {
                *credentials = PullCredentials { node_pods_accessible: true, ..PullCredentials::default() };
                true
            }
            Opened::ByAccount(account) => {
                let accounts = &mut credentials.kubernetes_service_accounts;
                let is_new = !accounts.contains(&account);
                if is_new {
                    accounts.push(account);
                }
                is_new
            }
            Opened::BySecret(secret) if credentials.kubernetes_secrets.contains(&secret) => false,
            Opened::BySecret(secret) => {
                let place = |one: &PullSecret| (one.namespace.clone(), one.name.clone(), one.uid.clone());
                credentials.kubernetes_secrets.retain(|one| place(one) != place(&secret));
                credentials.kubernetes_secrets.push(secret);
                credentials.kubernetes_secrets.order_by(Ord::cmp);
                true
            }
        };
        if is_new {
            self.last_updated_time = now.to_rfc3339();
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const IMAGE: &str = "r.example/team/app:v1";
    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn secret(name: &str, uid: &str, hash: &str) -> PullSecret {
        PullSecret {
            namespace: "default".into(),
            name: name.into(),
            uid: uid.into(),
            credential_hash: hash.into(),
        }
    }

    fn recorded(opened: Opened) -> Known {
        let mut record = PulledRecord::new("sha256:1", NOW);
        assert!(record.note(IMAGE, opened, NOW));
        Known::Recorded(record)
    }

    #[test]
    fn policies_decide_which_images_are_verified() {
        let listed = Verification::from_config(
            "NeverVerifyAllowlistedImages",
            &["r.example/team/app".to_owned(), "busybox".to_owned(), "docker.io/team/*".to_owned()],
        );
        let words = |text: &str| Verification::from_config(text, &[]);
        let empty = Known::Recorded(PulledRecord::new("sha256:1", NOW));
        for (policy, image, known, expected) in [
            (words("NeverVerify"), IMAGE, &Known::Pulled, Access::Free),
            (words("NeverVerifyPreloadedImages"), IMAGE, &Known::Preloaded, Access::Free),
            (words("NeverVerifyPreloadedImages"), IMAGE, &Known::Pulled, Access::Pull),
            (words(""), IMAGE, &empty, Access::Pull),
            (listed.clone(), IMAGE, &Known::Pulled, Access::Free),
            (listed.clone(), "busybox:1.36", &Known::Pulled, Access::Free),
            (listed.clone(), "team/any", &Known::Pulled, Access::Free),
            (listed.clone(), "teams/any", &Known::Pulled, Access::Pull),
            (listed.clone(), "r.example/team/app2", &Known::Preloaded, Access::Pull),
            (words("AlwaysVerify"), IMAGE, &Known::Preloaded, Access::Pull),
        ] {
            assert_eq!(access(&policy, image, known, &[]), expected, "{policy:?} {image} {known:?}");
        }
    }

    #[test]
    fn recorded_image_is_accessible_with_matching_credentials() {
        let policy = Verification::NotPreloaded;
        let free = recorded(Opened::ByNode);
        assert_eq!(access(&policy, "r.example/team/app@sha256:1", &free, &[]), Access::Free);
        // Under another name it is another image: it must be pulled from the registry.
        assert_eq!(access(&policy, "r.example/other/app", &free, &[]), Access::Pull);
        let by_secret = recorded(Opened::BySecret(secret("one", "u1", "h1")));
        for (secrets, expected) in [
            (vec![], Access::Pull),
            (vec![secret("one", "u1", "h1")], Access::Free),
            (vec![secret("two", "u2", "h2")], Access::Pull),
            (vec![secret("two", "u2", "h2"), secret("one", "u1", "h1")], Access::Free),
            // The same login under another name, a new login in the same Secret.
            (vec![secret("two", "u2", "h1")], Access::Record(secret("two", "u2", "h1"))),
            (vec![secret("one", "u1", "h9")], Access::Record(secret("one", "u1", "h9"))),
            // Made again with another login: another Secret.
            (vec![secret("one", "u3", "h9")], Access::Pull),
            (vec![secret("one", "", "")], Access::Pull),
        ] {
            assert_eq!(access(&policy, IMAGE, &by_secret, &secrets), expected, "{secrets:?}");
        }
    }

    #[test]
    fn an_image_pulled_by_an_account_is_for_that_account() {
        let account = |uid: &str| json!({"uid": uid, "namespace": "shop", "name": "web"});
        let known = recorded(Opened::ByAccount(account("1")));
        assert_eq!(known.accounts(IMAGE), [account("1")]);
        assert!(known.accounts("r.example/other/app").is_empty());
        assert!(recorded(Opened::ByNode).accounts(IMAGE).is_empty());
        assert_eq!(access(&Verification::NotPreloaded, IMAGE, &known, &[]), Access::Pull);
        let Known::Recorded(mut record) = known else { panic!("it is recorded") };
        assert!(!record.note(IMAGE, Opened::ByAccount(account("1")), NOW));
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.contains(r#":{"kubernetesServiceAccounts":[{"#), "{text}");
        assert!(
            record.note(IMAGE, Opened::ByNode, NOW)
                && !record.note(IMAGE, Opened::ByAccount(account("3")), NOW)
        );
    }

    #[test]
    fn a_record_grows_and_is_the_kubelets_on_the_wire() {
        let mut record = PulledRecord::new("sha256:1", NOW);
        for (opened, is_new) in [
            (Opened::BySecret(secret("b", "u", "h")), true),
            (Opened::BySecret(secret("b", "u", "h")), false),
            (Opened::BySecret(secret("b", "u", "h2")), true),
            (Opened::BySecret(secret("a", "u", "h")), true),
        ] {
            assert_eq!(record.note(IMAGE, opened.clone(), NOW), is_new, "{opened:?}");
        }
        let expected = r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"2027-01-15T08:00:00Z","imageRef":"sha256:1","credentialMapping":{"r.example/team/app":{"kubernetesSecrets":[{"namespace":"default","name":"a","uid":"u","credentialHash":"h"},{"namespace":"default","name":"b","uid":"u","credentialHash":"h2"}]}}}"#;
        assert_eq!(serde_json::to_string(&record).unwrap(), expected);
        assert!(record.note("r.example/team/app", Opened::ByNode, NOW));
        assert!(!record.note(IMAGE, Opened::BySecret(secret("c", "u", "h")), NOW));
        assert!(serde_json::to_string(&record).unwrap().contains(r#":{"nodePodsAccessible":true}}"#));
    }
}
