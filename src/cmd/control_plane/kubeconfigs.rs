//! The five kubeconfigs: admin, super-admin, kubelet, controller-manager, scheduler.
//!
//! Owns these files, and the rules for those that exist.

use serde_json::{Value, json};

use super::certs;
use super::config::InitSettings;
use super::context::{Context, Visibility};
pub(crate) use crate::agent::control_plane::certificates::{CONFS, ConfSpec};
use crate::cmd::cli::yaml;
use crate::cmd::init::InitError;
use crate::codec::base64;
use crate::codec::yaml::yaml_to_values;
use crate::platform::x509::{CERTIFICATE, pem_blocks};
use crate::serve::server::pki::Pair;

/// The server that a kubeconfig names.
pub(crate) fn server(spec: &ConfSpec, settings: &InitSettings) -> String {
    if spec.is_for_cluster {
        return settings.cluster.server(&settings.endpoint);
    }
    settings.endpoint.url()
}

/// A kubeconfig with embedded certificates, in kubeadm's form.
pub(crate) fn document(
    cluster: &str,
    server: &str,
    user: &str,
    authorities: &str,
    credentials: &Value,
) -> Value {
    let context = format!("{user}@{cluster}");
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": cluster,
            "cluster": { "certificate-authority-data": data(authorities), "server": server },
        }],
        "users": [{ "name": user, "user": credentials }],
        "contexts": [{ "name": context, "context": { "cluster": cluster, "user": user } }],
        "current-context": context,
    })
}

pub(crate) fn data(text: &str) -> String {
    base64::encode(text.as_bytes())
}

/// The credentials of a certificate.
pub(crate) fn certificate(pair: &Pair) -> Value {
    json!({ "client-certificate-data": data(&pair.certificate), "client-key-data": data(&pair.key) })
}

/// The phase `kubeconfig/NAME`.
pub(super) fn run(context: &mut Context<'_, '_>, phase: &str) -> Result<(), InitError> {
    let Some(spec) = CONFS.iter().find(|spec| spec.phase == phase) else { return Ok(()) };
    let (name, place) = (spec.file(), context.kubeconfig_dir.join(spec.file()));
    let shown = place.display().to_string();
    if certs::is_external(context, "ca") {
        check(context, spec)?;
        return context.say(&format!("[kubeconfig] External CA mode: Using user provided {shown}\n"));
    }
    if context.has(&place) {
        check(context, spec)?;
        return context.say(&format!("[kubeconfig] Using existing kubeconfig file: {shown:?}\n"));
    }
    let authority = certs::signer(context, "ca")?;
    let cluster = context.settings.cluster.clone();
    let leaf = spec.leaf(&context.settings.node.name);
    let pair = authority.sign(&leaf, certs::terms(&cluster, context)).map_err(InitError::ControlPlane)?;
    let server = server(spec, &context.settings);
    let made =
        document(&cluster.name, &server, &leaf.common_name, &authority.certificate, &certificate(&pair));
    context.say(&format!("[kubeconfig] Writing {name:?} kubeconfig file\n"))?;
    context.put(place, 0o600, yaml::to_string(&made), Visibility::Secret)
}

/// All that must be there when the authority's key is elsewhere.
pub(super) fn check_external(context: &mut Context<'_, '_>) -> Result<(), InitError> {
    CONFS.iter().try_for_each(|spec| check(context, spec))
}

/// A file that exists must lead to this cluster's authority; another server deserves a warning.
fn check(context: &mut Context<'_, '_>, spec: &ConfSpec) -> Result<(), InitError> {
    let path = context.kubeconfig_dir.join(spec.file());
    let refused =
        |why: String| InitError::ControlPlane(format!("the file {:?} {why}", path.display().to_string()));
    let text = context.read(&path)?.ok_or_else(|| refused("does not exist".to_owned()))?;
    let values = yaml_to_values(&text, false).map_err(|error| refused(format!("cannot be read: {error}")))?;
    let found =
        values.first().and_then(cluster_of).ok_or_else(|| refused("has no current cluster".to_owned()))?;
    let embedded = found["certificate-authority-data"].as_str().unwrap_or_default();
    let authorities = match found["certificate-authority"].as_str() {
        Some(file) if embedded.is_empty() => {
            let file = path.parent().unwrap_or(&path).join(file);
            context.read(&file)?.unwrap_or_default()
        }
        _ => String::from_utf8(base64::decode(embedded).unwrap_or_default()).unwrap_or_default(),
    };
    let first = pem_blocks(&authorities, CERTIFICATE).into_iter().next();
    let expected = pem_blocks(&certs::signer(context, "ca")?.certificate, CERTIFICATE);
    if !first.is_some_and(|first| expected.contains(&first)) {
        return Err(refused(format!(
            "contains a CA certificate that does not match any of the {} of the cluster: remove the file to generate it \
             again",
            expected.len()
        )));
    }
    let server = server(spec, &context.settings);
    let given = found["server"].as_str().unwrap_or_default().to_owned();
    if given != server {
        context.warn(&format!(
            "a kubeconfig file {:?} exists already but has an unexpected API Server URL: expected: {server}, got: {given}",
            path.display().to_string()
        ));
    }
    Ok(())
}

/// The cluster of the current context.
fn cluster_of(conf: &Value) -> Option<&Value> {
    let named = |list: &str, name: &Value| conf[list].as_array()?.iter().find(|one| one["name"] == *name);
    let context = named("contexts", &conf["current-context"])?;
    Some(&named("clusters", &context["context"]["cluster"])?["cluster"])
}
