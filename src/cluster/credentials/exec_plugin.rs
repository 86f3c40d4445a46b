//! A program that prints credentials (`client.authentication.k8s.io`).
//!
//! Owns the child and the reading of what it prints, which must not reach a message.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::kubeconfig::ExecPlugin;
use crate::codec::base64;
use crate::model::types::Timestamp;
use crate::platform::rt::child::TalkingChild;

/// A login at a cloud, over a slow link.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);
/// A token and a certificate chain.
const MAX_OUTPUT_BYTES: usize = 1024 * 1024;

/// What a plugin gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExecCredential {
    pub token: String,
    /// PEM: certificate chain and key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    /// `None`: valid until the server refuses it.
    pub expires: Option<Timestamp>,
}

/// Runs the plugin.
///
/// # Errors
/// In words, without anything that it printed.
pub(super) async fn run(plugin: &ExecPlugin, authorities: Option<&[u8]>) -> Result<ExecCredential, String> {
    let mut command = Command::new(&plugin.command);
    command.args(&plugin.args).envs(plugin.env.iter().map(|(name, value)| (name, value)));
    command.env("KUBERNETES_EXEC_INFO", exec_info(plugin, authorities).to_string());
    let output = tokio::time::timeout(RUN_TIMEOUT, output(&mut command)).await;
    let output = output.unwrap_or_else(|_| Err("no output within a minute".to_owned()));
    let output = output.map_err(|reason| match plugin.install_hint.as_str() {
        "" => format!("exec plugin {}: {reason}", plugin.command),
        hint => format!("exec plugin {}: {reason}; {hint}", plugin.command),
    })?;
    parse(&output, &plugin.api_version)
}

fn exec_info(plugin: &ExecPlugin, authorities: Option<&[u8]>) -> Value {
    let mut spec = json!({"interactive": false});
    if let Some(cluster) = &plugin.cluster {
        spec["cluster"] = cluster.clone();
        if let Some(pem) = authorities {
            spec["cluster"]["certificate-authority-data"] = base64::encode(pem).into();
        }
    }
    json!({"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec})
}

async fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let child = TalkingChild::start(command, b"").map_err(|error| format!("failed to start: {error}"))?;
    let mut output = Vec::new();
    let mut buffer = vec![0; 4096];
    loop {
        match child.read(&mut buffer).await.map_err(|error| error.to_string())? {
            0 => break,
            count => output.extend_from_slice(&buffer[..count]),
        }
        if output.len() > MAX_OUTPUT_BYTES {
            return Err("it printed more than 1 MiB".to_owned());
        }
    }
    match child.wait().await {
        how if how == "exit status: 0" => Ok(output),
        how => Err(format!("it ended with {how}; its standard error is in the agent's log")),
    }
}

/// What the plugin printed.
fn parse(output: &[u8], api_version: &str) -> Result<ExecCredential, String> {
    let value: Value = serde_json::from_slice(output)
        .map_err(|_| "decoding stdout: the exec plugin's output is not JSON".to_owned())?;
    let returned = value["apiVersion"].as_str().unwrap_or_default();
    if value["kind"] != "ExecCredential" || returned != api_version {
        return Err(format!(
            "exec plugin is configured to use API version {api_version}, plugin returned version {returned}"
        ));
    }
    let status = &value["status"];
    if !status.is_object() {
        return Err("exec plugin didn't return a status field".to_owned());
    }
    let text = |name: &str| status[name].as_str().unwrap_or_default().to_owned();
    let (certificate, key) = (text("clientCertificateData"), text("clientKeyData"));
    let token = text("token");
    if token.is_empty() && certificate.is_empty() && key.is_empty() {
        return Err("exec plugin didn't return a token or cert/key pair".to_owned());
    }
    if certificate.is_empty() != key.is_empty() {
        return Err("exec plugin returned only certificate or key, not both".to_owned());
    }
    let expires = match status["expirationTimestamp"].as_str() {
        Some(text) => {
            let moment = Timestamp::parse_rfc3339(text);
            Some(moment.ok_or("exec plugin returned an expirationTimestamp that is not RFC 3339")?)
        }
        None => None,
    };
    let client = (!key.is_empty()).then(|| (certificate.into_bytes(), key.into_bytes()));
    Ok(ExecCredential { token, client, expires })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "client.authentication.k8s.io/v1";

    #[test]
    fn what_a_plugin_prints_is_checked() {
        let parsed = |status: Value| {
            let text = json!({"kind": "ExecCredential", "apiVersion": V1, "status": status}).to_string();
            parse(text.as_bytes(), V1)
        };
        let whole = parsed(json!({"token": "t", "expirationTimestamp": "2026-01-01T00:00:00Z",
            "clientCertificateData": "c", "clientKeyData": "k"}));
        let wanted = ExecCredential {
            token: "t".to_owned(),
            client: Some((b"c".to_vec(), b"k".to_vec())),
            expires: Some(Timestamp::from_secs(1_767_225_600)),
        };
        assert_eq!(whole, Ok(wanted));
        for (status, words) in [
            (json!(null), "didn't return a status field"),
            (json!({}), "didn't return a token or cert/key pair"),
            (json!({"clientKeyData": "hush"}), "only certificate or key, not both"),
            (json!({"token": "hush", "expirationTimestamp": "soon"}), "not RFC 3339"),
        ] {
            let error = parsed(status).unwrap_err();
            assert!(error.contains(words) && !error.contains("hush"), "{error}");
        }
        assert!(parse(b"hush", V1).unwrap_err().contains("not JSON"));
        let other = parse(br#"{"kind":"ExecCredential","apiVersion":"v2"}"#, V1).unwrap_err();
        assert!(other.ends_with("plugin returned version v2"), "{other}");
    }

    #[test]
    fn the_cluster_is_shown_to_a_plugin_that_asks() {
        let mut plugin = ExecPlugin {
            command: String::new(),
            args: Vec::new(),
            env: Vec::new(),
            api_version: V1.to_owned(),
            install_hint: String::new(),
            cluster: None,
        };
        assert_eq!(exec_info(&plugin, Some(b"ca"))["spec"], json!({"interactive": false}));
        plugin.cluster = Some(json!({"server": "https://h"}));
        let wanted = json!({"server": "https://h", "certificate-authority-data": "Y2E="});
        assert_eq!(exec_info(&plugin, Some(b"ca"))["spec"]["cluster"], wanted);
    }
}
