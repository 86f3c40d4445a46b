//! Bootstrap tokens: new ones, and the phase `bootstrap-token`, which lets machines that know one join.

pub mod command;
pub(crate) mod record;

use super::api::{Api, ApiPhaseError, Say};
use super::{objects, random};
use crate::cluster::client::transport::Transport;
use record::Record;

/// A new token.
pub(crate) fn random() -> Result<String, ApiPhaseError> {
    loop {
        let mut bytes = [0; 64];
        random::fill(&mut bytes)?;
        if let Some(token) = record::from_random(&bytes) {
            return Ok(token);
        }
    }
}

/// The parts of a token that is known to be one; nothing else is set.
pub(crate) fn split(token: &str) -> Record {
    let (id, secret) = token.split_once('.').unwrap_or_default();
    Record { id: id.to_owned(), secret: secret.to_owned(), ..Record::default() }
}

/// kubeadm's steps and what it says of each.
const STEPS: [(&str, &str); 5] = [
    ("get-nodes", "Configured RBAC rules to allow Node Bootstrap tokens to get nodes"),
    (
        "kubelet-bootstrap",
        "Configured RBAC rules to allow Node Bootstrap tokens to post CSRs in order for nodes to get long term certificate credentials",
    ),
    (
        "autoapprove-bootstrap",
        "Configured RBAC rules to allow the csrapprover controller automatically approve CSRs from a Node Bootstrap Token",
    ),
    (
        "autoapprove-rotation",
        "Configured RBAC rules to allow certificate rotation for all node client certificates in the cluster",
    ),
    (
        "kubelet-client",
        "Configured RBAC rules to allow the API server kubelet client certificate to access the kubelet API",
    ),
];

/// `bootstrap-token`. The cluster, as machines that join are to see it, is `server` and its authorities (base64 of PEM).
pub(crate) async fn bootstrap<T: Transport>(
    api: &Api<'_, T>,
    records: &[Record],
    (server, authorities): (&str, &str),
    prints_tokens: bool,
) -> Result<(), ApiPhaseError> {
    if prints_tokens {
        print(api.say, records);
    }
    (api.say)("[bootstrap-token] Configuring bootstrap tokens, cluster-info ConfigMap, RBAC Roles\n");
    for record in records {
        api.apply(&record.to_secret()).await?;
    }
    rules(api).await?;
    (api.say)("[bootstrap-token] Creating the \"cluster-info\" ConfigMap in the \"kube-public\" namespace\n");
    let config = objects::cluster_info(server, authorities);
    let texts = objects::step("cluster-info", &[("config", &config)]);
    let mut texts = texts.iter();
    if let Some(info) = texts.next() {
        // The signatures in it stay until the controller has made others.
        api.merge(info).await?;
    }
    for object in texts {
        api.apply(object).await?;
    }
    Ok(())
}

/// What machines with a token may do.
async fn rules<T: Transport>(api: &Api<'_, T>) -> Result<(), ApiPhaseError> {
    for (step, said) in STEPS {
        for object in &objects::step(step, &[]) {
            api.apply(object).await?;
        }
        (api.say)(&["[bootstrap-token] ", said, "\n"].concat());
    }
    Ok(())
}

/// The phase `bootstrap-token` of an upgrade: all rules, neither tokens nor what `cluster-info` says.
pub(crate) async fn all_rules<T: Transport>(api: &Api<'_, T>) -> Result<(), ApiPhaseError> {
    rules(api).await?;
    for object in objects::step("cluster-info", &[]).iter().filter(|object| object["kind"] != "ConfigMap") {
        api.apply(object).await?;
    }
    Ok(())
}

fn print(say: Say<'_>, records: &[Record]) {
    let texts: Vec<_> = records.iter().map(Record::text).collect();
    match &texts[..] {
        [] => {}
        [one] => say(&format!("[bootstrap-token] Using token: {one}\n")),
        all => say(&format!("[bootstrap-token] Using tokens: [{}]\n", all.join(" "))),
    }
}

#[cfg(test)]
mod tests;
