//! The phase `preflight`: kubeadm's checks for the settings of a control plane, and the pull of its images.
//!
//! Owns what the settings demand of the machine, and the talk with the runtime about images.

use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::Paths;
use super::args::ControlPlaneOptions;
use super::config::{Etcd, InitSettings};
use super::context::Context;
use super::images::{images, pause_image};
use crate::agent::config::{Resolved, is_own_socket};
use crate::cmd::init::args::InitOptions;
use crate::cmd::init::facts::etcd::ExternalEtcdAccess;
use crate::cmd::init::preflight::{ClusterNeeds, PreflightFinding, PreflightTask, Purpose, WantedPort};
use crate::cmd::init::{InitError, InitSession, joining, local_pods, resolve};
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::runtime::chosen::NodeRuntime;
use crate::runtime::cri::CriConfig;
use crate::runtime::docker::DockerConfig;
use crate::runtime::{Runtime as _, SandboxConfig};

/// The socket that the agent serves as a node of a cluster.
pub(super) const OWN_SOCKET: &str = "unix:///run/agent/cri.sock";
const IMAGE_PULL: &str = "ImagePull";
/// kubeadm's, without a pause.
const TRIES: u32 = 5;
/// The kubelet's limit: a slow card must not make an image seem absent.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// What the settings demand of this machine.
fn needs(settings: &InitSettings, paths: &Paths) -> ClusterNeeds {
    let cluster = &settings.cluster;
    let subnets = [&cluster.service_subnet, &cluster.pod_subnet].into_iter();
    let cidrs = subnets.flat_map(|list| list.split(',')).map(|cidr| cidr.trim().to_owned());
    let (etcd_dir, external_etcd) = match &cluster.etcd {
        Etcd::Local(local) => (Some(local.data_dir.clone()), None),
        Etcd::External(etcd) => (
            None,
            Some(ExternalEtcdAccess {
                endpoints: etcd.http_endpoints.clone(),
                ca_file: etcd.ca_file.clone(),
                cert_file: etcd.cert_file.clone(),
                key_file: etcd.key_file.clone(),
            }),
        ),
    };
    ClusterNeeds {
        host: settings.endpoint.advertise_address.to_string(),
        version: cluster.version.clone(),
        bind_port: settings.endpoint.bind_port,
        cidrs: cidrs.filter(|cidr| !cidr.is_empty()).collect(),
        manifests: paths.manifests(),
        etcd_dir,
        external_etcd,
    }
}

/// The kubelet is checked as the settings make it, and not as it runs now.
fn purpose(settings: &InitSettings, paths: &Paths, now: &Resolved) -> Purpose {
    let kubelet = &settings.kubelet;
    let ports = [("healthzPort", "healthzBindAddress", 10248), ("port", "address", 10250)];
    let port = |(field, address, default): (&'static str, &str, u16)| WantedPort {
        address: kubelet[address]
            .as_str()
            .and_then(|text| text.parse().ok())
            .unwrap_or(IpAddr::from([0, 0, 0, 0])),
        port: kubelet[field]
            .as_u64()
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port > 0)
            .unwrap_or(default),
        setting: field,
    };
    Purpose {
        task: PreflightTask::Init,
        needs: needs(settings, paths),
        node_name: settings.node.name.clone(),
        ports: ports.map(port).into(),
        fail_swap_on: kubelet["failSwapOn"] == true,
        ..Purpose::of(now)
    }
}

/// The options of the checks: those of the command line with the configuration's.
fn check_options(settings: &InitSettings, options: &ControlPlaneOptions) -> Result<InitOptions, InitError> {
    let mut ignored = options.ignored.clone();
    for name in &settings.node.ignore_preflight_errors {
        ignored.add(name).map_err(InitError::ControlPlane)?;
    }
    let socket = settings.node.cri_socket.as_str();
    let endpoint = if is_own_socket(socket, OWN_SOCKET) { "embedded" } else { socket };
    Ok(InitOptions {
        endpoint: Some(endpoint.to_owned()),
        ignored,
        no_self_test: options.no_self_test,
        json: options.json,
        verbose: options.verbose,
        agent_flags: options.agent_flags.clone(),
        rootfs: "/".into(),
        ..InitOptions::default()
    })
}

/// The phase of `agent init --control-plane`.
pub(super) fn run(context: &mut Context<'_, '_>, options: &ControlPlaneOptions) -> Result<(), InitError> {
    context.say("[preflight] Running pre-flight checks\n")?;
    let checks = check_options(&context.settings, options)?;
    let resolved = resolve(&checks)?;
    let wanted = purpose(&context.settings, &context.paths, &resolved);
    let mut findings = context.session.check(&checks, &resolved, &wanted);
    findings.push(local_pods(&resolved));
    checks.ignored.apply(&mut findings);
    context.session.judge(&findings)?;
    pull(context, &checks)
}

/// `agent preflight --control-plane`: the same, without the images.
pub(super) fn show(
    session: &mut InitSession<'_>,
    settings: &InitSettings,
    paths: &Paths,
    options: &ControlPlaneOptions,
) -> Result<(), InitError> {
    let checks = check_options(settings, options)?;
    let resolved = resolve(&checks)?;
    session.say_checks(checks.json)?;
    let mut findings = session.check(&checks, &resolved, &purpose(settings, paths, &resolved));
    findings.push(local_pods(&resolved));
    checks.ignored.apply(&mut findings);
    findings.push(PreflightFinding::skipped(IMAGE_PULL, "agent preflight pulls no images"));
    session.show_checks(&findings, &checks)
}

/// The checks of `agent join --control-plane` before the cluster is asked. `host`: of the discovery's endpoint; empty with
/// a file.
pub(in crate::cmd) fn before_joining(
    session: &mut InitSession<'_>,
    checks: &InitOptions,
    name: &str,
    host: &str,
) -> Result<(), InitError> {
    let resolved = resolve(checks)?;
    let wanted = joining(&resolved, PreflightTask::JoinControlPlane, name, host);
    let mut findings = session.check(checks, &resolved, &wanted);
    findings.push(local_pods(&resolved));
    checks.ignored.apply(&mut findings);
    session.judge(&findings)
}

/// Those after it, and the images. `has_key`: the certificates are downloaded, so they are not here.
pub(in crate::cmd) fn before_instance(
    context: &mut Context<'_, '_>,
    checks: &InitOptions,
    has_key: bool,
) -> Result<(), InitError> {
    context
        .say("[preflight] Running pre-flight checks before initializing the new control plane instance\n")?;
    let resolved = resolve(checks)?;
    let wanted = instance(purpose(&context.settings, &context.paths, &resolved), has_key);
    let findings = context.session.check(checks, &resolved, &wanted);
    context.session.judge(&findings)?;
    pull(context, checks)
}

/// Those of `agent upgrade apply` and `agent upgrade node`.
pub(super) fn before_upgrade(context: &mut Context<'_, '_>, checks: &InitOptions) -> Result<(), InitError> {
    let resolved = resolve(checks)?;
    let mut wanted = purpose(&context.settings, &context.paths, &resolved);
    wanted.task = PreflightTask::Upgrade;
    let findings = context.session.check(checks, &resolved, &wanted);
    context.session.judge(&findings)
}

fn instance(mut wanted: Purpose, has_key: bool) -> Purpose {
    wanted.task = PreflightTask::Instance;
    wanted.needs.external_etcd = wanted.needs.external_etcd.filter(|_| !has_key);
    wanted
}

pub(super) fn pull(context: &mut Context<'_, '_>, checks: &InitOptions) -> Result<(), InitError> {
    let node = context.settings.node.clone();
    let is_own = is_own_socket(&node.cri_socket, OWN_SOCKET);
    let path = node.cri_socket.trim_start_matches("unix://");
    let answers = || UnixStream::connect(path).is_ok();
    if let Some(why) = reason_to_skip(&node.image_pull_policy, context.is_dry(), is_own, &answers) {
        return context.say(&format!("[preflight] {why}\n"));
    }
    context.say(
        "[preflight] Pulling images required for setting up a Kubernetes cluster\n[preflight] This might take a minute or \
         two, depending on the speed of your internet connection\n[preflight] You can also perform this action beforehand \
         using 'agent image pull', or without a network with 'agent image import'\n",
    )?;
    let wanted = wanted_images(&context.settings, is_own);
    let is_always = node.image_pull_policy == "Always";
    let pulled = rt::run(async { Box::pin(pull_all(&node.cri_socket, &wanted, is_always)).await });
    let mut findings = pulled.map_err(|error| InitError::ControlPlane(error.to_string()))?;
    checks.ignored.apply(&mut findings);
    context.session.judge(&findings)
}

/// Why no image is pulled, if none is.
fn reason_to_skip(
    policy: &str,
    is_dry: bool,
    is_own: bool,
    answers: &dyn Fn() -> bool,
) -> Option<&'static str> {
    match policy {
        "Never" => Some("No image is pulled: imagePullPolicy is Never"),
        _ if is_dry => Some("Would pull the required images (like 'agent image pull')"),
        _ if is_own && !answers() => Some(
            "No image is pulled now: no agent serves CRI yet. The kubelet gets the images when the static pods start",
        ),
        _ => None,
    }
}

/// The agent's own runtime has no infrastructure containers.
fn wanted_images(settings: &InitSettings, is_own: bool) -> Vec<String> {
    let mut wanted = images(&settings.cluster);
    wanted.retain(|image| !is_own || *image != pause_image(&settings.cluster));
    wanted
}

/// No registry is asked for an image that is there, unless `is_always`.
async fn pull_all(endpoint: &str, wanted: &[String], is_always: bool) -> Vec<PreflightFinding> {
    let config = CriConfig {
        endpoint: endpoint.to_owned(),
        image_endpoint: String::new(),
        request_timeout: ANSWER_WITHIN,
    };
    let runtime = match NodeRuntime::connect(config, DockerConfig::default()) {
        Ok(runtime) => runtime,
        Err(error) => return vec![failed(chain(&error))],
    };
    let mut findings = Vec::new();
    for image in wanted {
        if !is_always && matches!(runtime.image_status(image).await, Ok(Some(_))) {
            findings.push(PreflightFinding::ok(IMAGE_PULL, format!("{image} is there")));
            continue;
        }
        let mut tries = 0;
        findings.push(loop {
            tries += 1;
            match runtime.pull_image(image, None, &SandboxConfig::default()).await {
                Ok(_) => break PreflightFinding::ok(IMAGE_PULL, format!("pulled {image}")),
                Err(error) if tries == TRIES => {
                    break failed(format!("failed to pull image {image}: {}", chain(&error)));
                }
                Err(_) => {}
            }
        });
    }
    findings
}

fn failed(why: String) -> PreflightFinding {
    PreflightFinding::error(IMAGE_PULL, "absent", why)
        .required("the images of the control plane")
        .fix("bring the network up, or import the images from an archive")
        .command("agent image import FILE")
}

#[cfg(test)]
mod tests;
