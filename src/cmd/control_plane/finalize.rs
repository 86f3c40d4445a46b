//! The phase `kubelet-finalize`: from then on kubelet.conf names the certificate that the kubelet renews itself, not the one of
//! its first day.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use super::api::{ApiPhaseError, Say};
use crate::cmd::cli::yaml;
use crate::codec::yaml::yaml_to_values;
use crate::platform::sys::durable::write_durably;

/// The kubeconfig whose current user has its certificate and key at `pem`; `None` if it has already.
///
/// # Errors
/// The current context leads to no user.
fn pointed(mut kubeconfig: Value, pem: &str) -> Result<Option<Value>, String> {
    let current = kubeconfig["current-context"].clone();
    let contexts = kubeconfig["contexts"].as_array().into_iter().flatten();
    let context = contexts.clone().find(|context| context["name"] == current);
    let name = context.map(|context| context["context"]["user"].clone()).unwrap_or_default();
    let mut users = kubeconfig["users"].as_array_mut().into_iter().flatten();
    let Some(user) = users.find(|user| user["name"] == name).and_then(|user| user["user"].as_object_mut())
    else {
        return Err(format!("the context {current} leads to no user"));
    };
    let before = user.clone();
    for key in ["client-certificate", "client-key"] {
        user.remove(&format!("{key}-data"));
        user.insert(key.to_owned(), pem.into());
    }
    let is_same = *user == before;
    Ok((!is_same).then_some(kubeconfig))
}

/// Returns whether the kubelet has to read it again. Without a certificate of the kubelet nothing is done.
pub(crate) fn run(say: Say<'_>, kubeconfig: &Path, pem: &Path) -> Result<bool, ApiPhaseError> {
    if !pem.exists() {
        return Ok(false);
    }
    let file = |action| move |source| ApiPhaseError::File { action, path: kubeconfig.to_owned(), source };
    let text = match fs::read_to_string(kubeconfig) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        other => other.map_err(file("read"))?,
    };
    let parse = |source| ApiPhaseError::Yaml { path: kubeconfig.to_owned(), source };
    let value = yaml_to_values(&text, false).map_err(parse)?.into_iter().next().unwrap_or_default();
    let broken = |why: String| ApiPhaseError::Broken(format!("{}: {why}", kubeconfig.display()));
    let Some(value) = pointed(value, &pem.display().to_string()).map_err(broken)? else { return Ok(false) };
    say(&format!(
        "[kubelet-finalize] Updating {:?} to point to a rotatable kubelet client certificate and key\n",
        kubeconfig.display().to_string()
    ));
    write_durably(kubeconfig, yaml::to_string(&value).as_bytes(), 0o600).map_err(file("write"))?;
    Ok(true)
}

#[cfg(test)]
mod tests;
