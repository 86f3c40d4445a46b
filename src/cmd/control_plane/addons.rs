//! The phase `addon`: CoreDNS and kube-proxy.

use serde_json::{Value, json};

use super::api::{Api, ApiPhaseError};
use super::objects;
use crate::cluster::client::transport::Transport;
use crate::cmd::cli::yaml;

/// `addon/coredns` for the cluster's domain; the address is that of the Service `kube-dns`. What the user has made of the
/// Corefile and of the number of replicas stays. `patch` is applied to the Deployment.
pub(crate) async fn coredns<T: Transport>(
    api: &Api<'_, T>,
    (domain, image, address): (&str, &str, &str),
    patch: &dyn Fn(Value) -> Result<Value, String>,
) -> Result<(), ApiPhaseError> {
    for mut object in coredns_objects(domain, image, address) {
        match object["kind"].as_str() {
            Some("ConfigMap") => {
                api.create(&object).await?;
                continue;
            }
            Some("Deployment") => {
                let there = match objects::path_of(&object) {
                    Some(of) => api.get(&of).await?,
                    None => None,
                };
                keep_replicas(&mut object, there.as_ref());
                object = patch(object).map_err(ApiPhaseError::Broken)?;
            }
            _ => {}
        }
        api.apply(&object).await?;
    }
    (api.say)("[addons] Applied essential addon: CoreDNS\n");
    Ok(())
}

/// What `--print-manifest` prints.
pub(crate) fn coredns_objects(domain: &str, image: &str, address: &str) -> Vec<Value> {
    objects::step("coredns", &[("domain", domain), ("image", image), ("address", address)])
}

fn keep_replicas(object: &mut Value, there: Option<&Value>) {
    if let Some(count) = there.map(|there| &there["spec"]["replicas"]).filter(|count| count.is_number()) {
        object["spec"]["replicas"] = count.clone();
    }
}

/// `addon/kube-proxy`.
pub(crate) async fn kube_proxy<T: Transport>(
    api: &Api<'_, T>,
    objects: &[Value],
) -> Result<(), ApiPhaseError> {
    for object in objects {
        api.apply(object).await?;
    }
    (api.say)("[addons] Applied essential addon: kube-proxy\n");
    Ok(())
}

/// kube-proxy's objects: its configuration, whether the user has written that, the server that it asks, its image, and the
/// machine's variables that name proxies.
pub(crate) fn kube_proxy_objects(
    (config, is_given): (&Value, bool),
    server: &str,
    image: &str,
    variables: &[(String, String)],
) -> Vec<Value> {
    let config = yaml::to_string(config);
    // kubeadm ends it without a newline.
    let arguments = [("config", config.trim_end()), ("server", server), ("image", image)];
    let mut made = objects::step("kube-proxy", &arguments);
    for object in &mut made {
        match object["kind"].as_str() {
            Some("ConfigMap") if !is_given => objects::mark(object),
            Some("DaemonSet") => {
                let container = &mut object["spec"]["template"]["spec"]["containers"][0];
                let env = container["env"].as_array_mut().into_iter();
                env.for_each(|env| {
                    env.extend(variables.iter().map(|(name, value)| json!({"name": name, "value": value})));
                });
            }
            _ => {}
        }
    }
    made
}

#[cfg(test)]
mod tests;
