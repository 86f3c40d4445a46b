//! The phases `etcd/local` and `control-plane/...`: manifests with the user's patches, in the directory of the kubelet.

use std::path::Path;

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

/// The phase of one component.
pub(super) fn run(context: &mut Context<'_, '_>, component: &'static str) -> Result<(), InitError> {
    let facts = PodFacts {
        trust: TRUST.into_iter().filter(|place| Path::new(place).is_dir()).collect(),
        proxies: proxies(),
        is_external_ca: certs::is_external(context, "ca"),
    };
    let Some(pod) = manifests::pod(component, &context.settings, &context.paths, &facts) else {
        // With an external etcd there is none here.
        return Ok(());
    };
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
