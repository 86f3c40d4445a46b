//! The phases `etcd/local` and `control-plane/...`: manifests with the user's patches, in the directory of the kubelet.

use std::path::Path;

use serde_json::Value;

use super::certs;
use super::config::Etcd;
use super::context::{Context, Visibility};
use super::manifests::{self, PodFacts, TRUST};
use crate::cmd::cli::yaml;
use crate::cmd::init::InitError;

/// Names and values of the variables of this process that name a proxy.
pub(super) fn proxies() -> Vec<(String, String)> {
    let is_proxy =
        |(name, value): &(String, String)| name.to_ascii_lowercase().ends_with("_proxy") && !value.is_empty();
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(is_proxy)
        .collect()
}

/// A component's manifest with the user's patches. With an external etcd there is none of etcd.
pub(super) fn manifest(
    context: &mut Context<'_, '_>,
    component: &'static str,
) -> Result<Option<String>, InitError> {
    let Some(pod) = pod(context, component) else { return Ok(None) };
    Ok(Some(yaml::to_string(&context.patched(component, pod)?)))
}

fn pod(context: &Context<'_, '_>, component: &'static str) -> Option<Value> {
    let facts = PodFacts {
        trust: TRUST.into_iter().filter(|place| Path::new(place).is_dir()).collect(),
        proxies: proxies(),
        is_external_ca: certs::is_external(context, "ca"),
    };
    manifests::pod(component, &context.settings, &context.paths, &facts)
}

/// The phase of one component.
pub(super) fn run(context: &mut Context<'_, '_>, component: &'static str) -> Result<(), InitError> {
    let Some(pod) = pod(context, component) else { return Ok(()) };
    let directory = context.paths.manifests();
    let said = if component == manifests::ETCD {
        if let Etcd::Local(local) = &context.settings.cluster.etcd {
            let data = local.data_dir.clone();
            context.directory(&data, 0o700)?;
        }
        format!(
            "[etcd] Creating static Pod manifest for local etcd in {:?}\n",
            directory.display().to_string()
        )
    } else {
        format!("[control-plane] Creating static Pod manifest for {component:?}\n")
    };
    context.say(&said)?;
    let pod = context.patched(component, pod)?;
    context.directory(&directory, 0o700)?;
    context.put(directory.join(format!("{component}.yaml")), 0o600, yaml::to_string(&pod), Visibility::Shown)
}
