//! `agent upgrade plan`: what an upgrade would change, in kubeadm's tables.
//!
//! Pure: the cluster's state in, documents and text out.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::versions::{KubeVersion, tag_of};
use super::view::ClusterView;
use crate::cmd::cli::columns;
use crate::cmd::control_plane::config::{Etcd, InitSettings};
use crate::cmd::control_plane::manifests::{API_SERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER};

const KUBELET: &str = "kubelet";
/// The program that upgrades, by kubeadm's name for it.
const UPGRADER: &str = "kubeadm";
const LINE: &str = "_____________________________________________________________________\n\n";

/// kubeadm's `UpgradePlan`. Without a later version nothing is available. `own`: the release that the agent is made for.
pub(super) fn plan(view: &ClusterView, settings: &InitSettings, own: &str, has_etcd: bool) -> Value {
    let (cluster, target) = (view.version(), settings.cluster.version.as_str());
    let parse = KubeVersion::parse;
    let mut available = Vec::new();
    if parse(target) > parse(&cluster) {
        available.push(upgrade(view, settings, own, has_etcd));
    }
    let version = |document: &Value, group: &str, preferred: &str| {
        let current = document["apiVersion"].as_str().and_then(|version| version.rsplit('/').next());
        json!({
            "group": group,
            "currentVersion": current.unwrap_or_default(),
            "preferredVersion": preferred,
            "manualUpgradeRequired": current.is_some_and(|current| current != preferred),
        })
    };
    json!({
        "apiVersion": "output.kubeadm.k8s.io/v1alpha3",
        "kind": "UpgradePlan",
        "availableUpgrades": available,
        "configVersions": [
            version(&view.documents.kube_proxy, "kubeproxy.config.k8s.io", "v1alpha1"),
            version(&view.documents.kubelet, "kubelet.config.k8s.io", "v1beta1"),
        ],
    })
}

fn upgrade(view: &ClusterView, settings: &InitSettings, own: &str, has_etcd: bool) -> Value {
    let (cluster, target) = (view.version(), settings.cluster.version.as_str());
    let mut components = Vec::new();
    let mut add = |name: &str, current: &str, new: &str, node: &str| {
        let mut component = json!({ "name": name, "currentVersion": current, "newVersion": new });
        if !node.is_empty() {
            component["nodeName"] = node.into();
        }
        components.push(component);
    };
    let mut each = |name: &str, versions: &BTreeMap<String, Vec<String>>, new: &str| {
        for (version, nodes) in versions {
            for node in nodes {
                add(name, version, new, node);
            }
        }
    };
    let kubelets = view.kubelets();
    if kubelets.len() > 1 || !kubelets.contains_key(target) {
        each(KUBELET, &kubelets, target);
    }
    for name in [API_SERVER, CONTROLLER_MANAGER, SCHEDULER] {
        each(name, &view.versions(name), target);
    }
    if let (Etcd::Local(_), true) = (&settings.cluster.etcd, has_etcd) {
        each(ETCD, &view.versions(ETCD), &tag_of(&settings.cluster.etcd_image()));
    }
    if !settings.cluster.proxy_disabled {
        add("kube-proxy", &cluster, target, "");
    }
    if !settings.cluster.dns_disabled {
        add("CoreDNS", &view.dns, &tag_of(&settings.cluster.dns_image()), "");
    }
    let minor = |version: &str| KubeVersion::parse(version).map(|version| version.minor());
    add(UPGRADER, own, if minor(target) > minor(own) { target } else { own }, "");
    let series = target.trim_start_matches('v').splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
    let is_same_series = minor(target) == minor(&cluster);
    let description = format!("version in the v{series} series");
    json!({
        "description": if is_same_series { description.as_str() } else { "stable version" },
        "components": components,
    })
}

/// The text of a plan.
pub(super) fn text(plan: &Value) -> String {
    let mut out = String::new();
    for upgrade in plan["availableUpgrades"].as_array().into_iter().flatten() {
        let components = upgrade["components"].as_array().map(Vec::as_slice).unwrap_or_default();
        let cell = |of: &Value| of.as_str().unwrap_or_default().to_owned();
        let find = |name: &str| components.iter().find(|component| component["name"] == name);
        let target = find(API_SERVER).or(components.first()).map_or(&Value::Null, |one| &one["newVersion"]);
        let target = cell(target);
        let table = |is_shown: &dyn Fn(&str) -> bool| {
            let mut rows = vec![["COMPONENT", "NODE", "CURRENT", "TARGET"].map(str::to_owned).to_vec()];
            for component in components.iter().filter(|one| one["name"].as_str().is_some_and(is_shown)) {
                rows.push(
                    ["name", "nodeName", "currentVersion", "newVersion"]
                        .map(|field| cell(&component[field]))
                        .to_vec(),
                );
            }
            columns(&rows)
        };
        let flag = match KubeVersion::parse(&target).map(|version| version.pre).unwrap_or_default() {
            pre if pre.is_empty() => "",
            pre if pre.starts_with("rc") => " --allow-release-candidate-upgrades",
            _ => " --allow-experimental-upgrades",
        };
        let _ = write!(
            out,
            "Components that must be upgraded manually after you have upgraded the control plane with 'agent upgrade \
             apply':\n{}\nUpgrade to the latest {}:\n\n{}\nYou can now apply the upgrade by executing the following \
             command:\n\n\tagent upgrade apply {target}{flag}\n\n",
            table(&|name| name == KUBELET),
            cell(&upgrade["description"]),
            table(&|name| name != KUBELET && name != UPGRADER),
        );
        if let Some(own) = find(UPGRADER).filter(|own| own["currentVersion"] != own["newVersion"]) {
            let _ = write!(
                out,
                "Note: Before you can perform this upgrade, you have to install an agent that is made for {}.\n\n",
                cell(&own["newVersion"])
            );
        }
        out.push_str(LINE);
    }
    if out.is_empty() {
        return "[upgrade/plan] There is nothing to upgrade to: name a later version, or install a newer agent\n".to_owned();
    }
    let mut rows = vec![
        ["API GROUP", "CURRENT VERSION", "PREFERRED VERSION", "MANUAL UPGRADE REQUIRED"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for state in plan["configVersions"].as_array().into_iter().flatten() {
        let or_dash = |field: &str| match state[field].as_str() {
            None | Some("") => "-".to_owned(),
            Some(text) => text.to_owned(),
        };
        let manual = if state["manualUpgradeRequired"] == true { "yes" } else { "no" };
        rows.push(vec![
            or_dash("group"),
            or_dash("currentVersion"),
            or_dash("preferredVersion"),
            manual.to_owned(),
        ]);
    }
    let _ = write!(
        out,
        "The table below shows the current state of component configs as understood by this version of the agent.\n\
         Configs that have a \"yes\" mark in the \"MANUAL UPGRADE REQUIRED\" column require manual config upgrade or\n\
         resetting to kubeadm defaults before a successful upgrade can be performed. The version to manually\n\
         upgrade to is denoted in the \"PREFERRED VERSION\" column.\n\n{}{LINE}",
        columns(&rows)
    );
    out
}

#[cfg(test)]
mod tests;
