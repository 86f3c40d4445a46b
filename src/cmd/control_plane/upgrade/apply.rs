//! The phases of `agent upgrade apply` and `agent upgrade node`.

use std::io::BufRead as _;
use std::time::Instant;

use serde_json::json;

use super::UpgradeRun;
use super::machine::{UpgradeMachine, backup_dir, is_same_pod, renew, store, text_of};
use super::record::ReplacementRecord;
use super::replace::{Replacement, replace};
use super::versions::{KubeVersion, SkewFacts, complaints, tag_of};
use super::view;
use crate::cluster::client::request::ResourcePath;
use crate::cmd::cli::yaml;
use crate::cmd::control_plane::args::ControlPlaneOptions;
use crate::cmd::control_plane::config::{Etcd, path};
use crate::cmd::control_plane::context::{Context, Visibility};
use crate::cmd::control_plane::manifests::{API_SERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER};
use crate::cmd::control_plane::{etcd, kubelet_files, patches, phases, preflight, static_pods};
use crate::cmd::init::InitError;
use crate::cmd::init::args::InitOptions;
use crate::cmd::init::preflight::{Ignored, PreflightFinding};
use crate::codec::yaml::yaml_to_values;
use crate::model::types::go_duration;

/// For what is asked once.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// One phase by its name.
pub(super) fn phase(
    run: &mut UpgradeRun<'_>,
    context: &mut Context<'_, '_>,
    name: &'static str,
) -> Result<(), InitError> {
    match name {
        "preflight" => checks(run, context),
        "control-plane" => control_plane(run, context),
        "kubeconfig" => kubelet_server(run, context),
        "kubelet-config" => kubelet_config(run, context),
        // kubeadm has nothing to do here in this release.
        "post-upgrade" => Ok(()),
        "bootstrap-token" => {
            context
                .say("[upgrade/bootstrap-token] Configuring bootstrap token and cluster-info RBAC rules\n")?;
            talk(run, context, "bootstrap-token/rules")
        }
        "upload-config/kubelet" => {
            talk(run, context, name)?;
            forget_socket(run, context)
        }
        "addon/coredns" | "addon/kube-proxy" => addon(run, context, name),
        _ => talk(run, context, name),
    }
}

/// A phase that `agent init` has, too.
fn talk(run: &UpgradeRun<'_>, context: &mut Context<'_, '_>, name: &'static str) -> Result<(), InitError> {
    let options = ControlPlaneOptions {
        kubeconfig: run.given_kubeconfig.clone(),
        timeout: run.deadline.saturating_duration_since(Instant::now()),
        ..ControlPlaneOptions::default()
    };
    phases::talk(context, &options, &[name])
}

fn checks(run: &mut UpgradeRun<'_>, context: &mut Context<'_, '_>) -> Result<(), InitError> {
    let said = if run.is_node { "pre-flight" } else { "preflight" };
    context.say(&format!("[upgrade/preflight] Running {said} checks\n"))?;
    let mut ignored = Ignored::default();
    for name in &run.wishes.ignored {
        ignored.add(name).map_err(InitError::ControlPlane)?;
    }
    let socket = context.settings.node.cri_socket.clone();
    let is_own = crate::agent::config::is_own_socket(&socket, preflight::OWN_SOCKET);
    let checks = InitOptions {
        endpoint: Some(if is_own { "embedded".to_owned() } else { socket }),
        ignored,
        no_self_test: true,
        rootfs: "/".into(),
        ..InitOptions::default()
    };
    preflight::before_upgrade(context, &checks)?;
    if !run.is_node {
        context.say("[upgrade] Running cluster health checks\n")?;
        let mut findings = health(run, context);
        checks.ignored.apply(&mut findings);
        context.session.judge(&findings)?;
        versions(run, context)?;
        if !run.wishes.yes && !run.wishes.dry_run {
            confirm(context)?;
        }
    }
    if run.is_worker {
        return context.say("[upgrade/preflight] Skipping prepull. Not a control plane node.\n");
    }
    preflight::pull(context, &checks)
}

/// kubeadm also runs a Job, for which it would need one more image.
fn health(run: &UpgradeRun<'_>, context: &Context<'_, '_>) -> Vec<PreflightFinding> {
    const NODES: &str = "ControlPlaneNodesReady";
    const MANIFESTS: &str = "StaticPodManifest";
    let mut findings = Vec::new();
    let not_ready = run.view.not_ready().join(" ");
    findings.push(if not_ready.is_empty() {
        PreflightFinding::ok(NODES, "all are ready")
    } else {
        let message = format!("there are NotReady control-planes in the cluster: [{not_ready}]");
        PreflightFinding::error(NODES, not_ready, message)
    });
    let directory = context.paths.manifests();
    let files =
        [API_SERVER, CONTROLLER_MANAGER, SCHEDULER].map(|name| directory.join(format!("{name}.yaml")));
    let missing: Vec<String> = files.iter().filter(|file| !file.exists()).map(|file| path(file)).collect();
    findings.push(if missing.is_empty() {
        PreflightFinding::ok(MANIFESTS, "all are there")
    } else {
        let missing = missing.join(" ");
        PreflightFinding::error(MANIFESTS, "absent", format!("manifest files not found: [{missing}]"))
    });
    findings
}

fn versions(run: &UpgradeRun<'_>, context: &mut Context<'_, '_>) -> Result<(), InitError> {
    let target = context.settings.cluster.version.clone();
    let cluster = run.view.version();
    context.say(&format!(
        "[upgrade/preflight] You have chosen to upgrade the cluster version to {target:?}\n[upgrade/versions] Cluster \
         version: {cluster}\n[upgrade/versions] Release of the agent: {}\n",
        run.own
    ))?;
    let found = complaints(&SkewFacts {
        target: &target,
        cluster: &cluster,
        own: &run.own,
        kubelets: &run.view.kubelets(),
        allows_experimental: run.wishes.allows_experimental,
        allows_candidates: run.wishes.allows_candidates,
    });
    let listed = |all: &[String]| all.iter().map(|one| ["\t- ", one, "\n"].concat()).collect::<String>();
    if !found.fatal.is_empty() {
        return Err(InitError::ControlPlane(format!(
            "the version argument is invalid due to these fatal errors:\n\n{}\nPlease fix the misalignments highlighted \
             above and try upgrading again",
            listed(&found.fatal)
        )));
    }
    if found.skippable.is_empty() {
        return Ok(());
    }
    if !run.wishes.force {
        return Err(InitError::ControlPlane(format!(
            "the version argument is invalid due to these errors:\n\n{}\nCan be bypassed if you pass the --force flag",
            listed(&found.skippable)
        )));
    }
    context.say(&format!(
        "[upgrade/preflight] Found {} potential version compatibility errors but skipping since the --force flag is set: \
         \n\n{}",
        found.skippable.len(),
        listed(&found.skippable)
    ))
}

fn confirm(context: &mut Context<'_, '_>) -> Result<(), InitError> {
    context.say("[upgrade] Are you sure you want to proceed? [y/N]: ")?;
    let mut line = String::new();
    let _ = std::io::stdin().lock().read_line(&mut line);
    if matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    let why = "won't proceed; the user didn't answer (Y|y) in order to continue";
    Err(InitError::ControlPlane(why.to_owned()))
}

fn control_plane(run: &mut UpgradeRun<'_>, context: &mut Context<'_, '_>) -> Result<(), InitError> {
    if run.is_worker {
        return context.say("[upgrade/control-plane] Skipping phase. Not a control plane node.\n");
    }
    let version = context.settings.cluster.version.clone();
    let limit = go_duration(run.wishes.manifests);
    if context.is_dry() {
        context.say(&format!(
            "[dryrun] Would upgrade your static Pod-hosted control plane to version {version:?}\n"
        ))?;
    } else {
        context.say(&format!(
            "[upgrade/control-plane] Upgrading your static Pod-hosted control plane to version {version:?} (timeout: \
             {limit})...\n"
        ))?;
    }
    let is_local = matches!(context.settings.cluster.etcd, Etcd::Local(_));
    let has_etcd = is_local && run.wishes.has_etcd && is_newer_etcd(context)?;
    let mut wanted = Vec::new();
    for component in has_etcd.then_some(ETCD).into_iter().chain([API_SERVER, CONTROLLER_MANAGER, SCHEDULER]) {
        let Some(text) = static_pods::manifest(context, component)? else { continue };
        wanted.push((component, text));
    }
    if context.is_dry() {
        for (component, text) in wanted {
            let file = context.paths.manifests().join(format!("{component}.yaml"));
            match context.read(&file)? {
                Some(there) if is_same_pod(&there, &text) => {
                    context.say(&format!("[dryrun] {component} is not changed\n"))?;
                }
                _ => context.put(file, 0o600, text, Visibility::Shown)?,
            }
        }
        return Ok(());
    }
    let now = context.now();
    let fresh = ReplacementRecord {
        version: version.clone(),
        began: now.to_rfc3339(),
        backup: backup_dir(&context.paths.kubernetes, "kubeadm-backup-manifests", now),
        etcd_backup: None,
        replaced: Vec::new(),
        replacing: None,
        hashes: std::collections::BTreeMap::new(),
    };
    let record = run.record.take().filter(|record| record.version == version).unwrap_or(fresh);
    let task = Replacement { wanted, record, renews: run.wishes.renews, backs_up_etcd: has_etcd, limit };
    let mut machine = UpgradeMachine {
        session: context.session,
        paths: &context.paths,
        settings: Some(&context.settings),
        reach: &run.reach,
        limit: run.wishes.manifests,
        deadline: run.deadline,
    };
    replace(&mut machine, task)?;
    if run.wishes.renews {
        let kubernetes = &context.paths.kubernetes;
        renew(context.session, &context.settings.cluster, kubernetes, &["admin.conf", "super-admin.conf"])?;
    }
    context
        .say("[upgrade/control-plane] The control plane instance for this node was successfully upgraded!\n")
}

/// Whether etcd's manifest may be replaced: an older version cannot be sure to read what the newer one has written. What a
/// member was made with stays.
fn is_newer_etcd(context: &mut Context<'_, '_>) -> Result<bool, InitError> {
    let Some(pod) = etcd::component_of(&context.paths.manifests().join("etcd.yaml"), ETCD) else {
        return Ok(true);
    };
    if let Etcd::Local(local) = &mut context.settings.cluster.etcd
        && etcd::argument(&pod, "initial-cluster-state") == "existing"
    {
        etcd::argument(&pod, "initial-cluster").clone_into(&mut local.initial_cluster);
    }
    let image = pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default();
    let (current, desired) = (tag_of(image), tag_of(&context.settings.cluster.etcd_image()));
    let (Some(there), Some(new)) = (KubeVersion::parse(&current), KubeVersion::parse(&desired)) else {
        return Ok(true);
    };
    if new < there {
        context.say(&format!(
            "[upgrade/etcd] Non fatal issue encountered during upgrade: the desired etcd version {desired:?} is older than \
             the currently installed {current:?}. Skipping etcd upgrade\n"
        ))?;
    }
    Ok(new >= there)
}

/// A kubelet beside an API server asks that one.
fn kubelet_server(run: &UpgradeRun<'_>, context: &mut Context<'_, '_>) -> Result<(), InitError> {
    if run.is_worker {
        return context.say("[upgrade/kubeconfig] Skipping phase. Not a control plane node.\n");
    }
    let file = context.paths.conf("kubelet.conf");
    let (cluster, own) =
        (context.settings.cluster.server(&context.settings.endpoint), context.settings.endpoint.url());
    let text = text_of(&file)?.unwrap_or_default();
    let wrong = |error: String| InitError::ControlPlane(format!("{}: {error}", file.display()));
    let mut values = yaml_to_values(&text, false).map_err(|error| wrong(error.to_string()))?;
    let clusters = values.first_mut().and_then(|conf| conf["clusters"].as_array_mut()).into_iter().flatten();
    let mut changed = false;
    for entry in clusters.filter(|_| cluster != own) {
        if entry["cluster"]["server"] == cluster.as_str() {
            entry["cluster"]["server"] = own.as_str().into();
            changed = true;
        }
    }
    if let (true, Some(conf)) = (changed, values.first()) {
        if context.is_dry() {
            context.say(&format!(
                "[dryrun] Would change the Server URL from {cluster:?} to {own:?} in {}\n",
                file.display()
            ))?;
        } else {
            store(&file, &yaml::to_string(conf))?;
            context.say(
                "[upgrade/kubeconfig] Restart the kubelet, so that it asks the API server of this node\n",
            )?;
        }
    }
    context.say("[upgrade/kubeconfig] The kubeconfig files for this node were successfully upgraded!\n")
}

fn kubelet_config(run: &UpgradeRun<'_>, context: &mut Context<'_, '_>) -> Result<(), InitError> {
    let kubelet = context.paths.kubelet.clone();
    let instance = kubelet.join("instance-config.yaml");
    let socket = json!({ "containerRuntimeEndpoint": context.settings.node.cri_socket });
    if !context.has(&instance) {
        context.put(instance, 0o644, yaml::to_string(&socket), Visibility::Shown)?;
    }
    let file = kubelet.join("config.yaml");
    let there = context.read(&file)?.unwrap_or_default();
    let mut made = kubelet_files::on_this_machine(&context.settings);
    // A driver without systemd was chosen for this machine.
    let before = yaml_to_values(&there, false).unwrap_or_default().into_iter().next().unwrap_or_default();
    if before["cgroupDriver"] == "cgroupfs" {
        made["cgroupDriver"] = before["cgroupDriver"].clone();
    }
    let mut made = context.patched(patches::KUBELET, made)?;
    made["containerRuntimeEndpoint"] = socket["containerRuntimeEndpoint"].clone();
    if made == before {
        context
            .say("[upgrade/kubelet-config] The kubelet configuration for this node is as it should be\n")?;
        return forget_socket(run, context);
    }
    let backup = backup_dir(&context.paths.kubernetes, "kubeadm-kubelet-config", context.now());
    let backup = backup.join("config.yaml");
    if context.is_dry() {
        context.say(&format!("[dryrun] Would back up kubelet config file to {}\n", backup.display()))?;
    } else if !there.is_empty() {
        context.say(&format!("[upgrade] Backing up kubelet config file to {}\n", backup.display()))?;
        store(&backup, &there)?;
    }
    context.put(file, 0o644, yaml::to_string(&made), Visibility::Shown)?;
    forget_socket(run, context)?;
    if context.is_dry() {
        return Ok(());
    }
    context.say(
        "[upgrade/kubelet-config] The kubelet configuration for this node was successfully upgraded! Restart the kubelet to \
         use it; pods go on running\n",
    )
}

/// The runtime is in a file of the node now.
fn forget_socket(run: &UpgradeRun<'_>, context: &Context<'_, '_>) -> Result<(), InitError> {
    if context.is_dry() || !run.view.has_noted_socket() {
        return Ok(());
    }
    let of = ResourcePath::whole("", "nodes", &run.reach.name);
    let change = json!({ "metadata": { "annotations": { view::CRI_SOCKET: null } } });
    run.reach.talk(PATIENCE, async |api| api.patch(&of, &change).await.map(drop))
}

fn addon(run: &UpgradeRun<'_>, context: &mut Context<'_, '_>, name: &'static str) -> Result<(), InitError> {
    let skipped = |why: &str| format!("[upgrade/addon] Skipping the {name} phase. {why}\n");
    if run.is_worker {
        return context.say(&skipped("Not a control plane node."));
    }
    let cluster = &context.settings.cluster;
    let is_disabled = if name == "addon/coredns" { cluster.dns_disabled } else { cluster.proxy_disabled };
    if is_disabled {
        return context.say(&skipped("The addon is disabled."));
    }
    if !context.is_dry() {
        let own = &run.reach.name;
        let view = run.reach.talk(PATIENCE, async |api| view::read(api, own, false).await)?;
        let others = view.not_upgraded(own).join(" ");
        if !others.is_empty() {
            return context.say(&format!(
                "[upgrade/addon] Skipping upgrade of addons because control plane instances [{others}] have not been \
                 upgraded\n"
            ));
        }
    }
    talk(run, context, name)
}

#[cfg(test)]
mod tests;
