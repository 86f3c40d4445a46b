//! `agent init --control-plane`: the phases, one after the other or one alone.
//!
//! Owns the way from the command line to the settings, and what each phase calls.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use super::api_phases::{ApiOptions, ApiPhase, ApiPhases};
use super::args::{self, ControlPlaneOptions};
use super::config::read::{Documents, HostFacts, settle};
use super::config::{InitSettings, path};
use super::context::{Context, Mode};
use super::patches::{self, Patches};
use super::{Paths, certs, kubeconfigs, kubelet_files, manifests, preflight, select, static_pods, tokens};
use crate::cmd::cli::Environment;
use crate::cmd::init::args::UsageError;
use crate::cmd::init::{InitError, InitSession, finish, restart_node, standalone_phases};
use crate::cmd::kubelet_alias::KUBERNETES;
use crate::platform::logging::chain;
use crate::platform::sys::node;

/// Whether the arguments of `agent init` are for a control plane.
#[must_use]
pub fn selects(arguments: &[String]) -> bool {
    args::selects(arguments, &standalone_phases())
}

/// Runs `agent init` for a control plane. The exit code is 0, 1 on failure, 2 for an invalid command line.
pub fn run(arguments: &[String], environment: Environment<'_>) -> u8 {
    let mut session = InitSession { environment };
    let result = ControlPlaneOptions::parse(arguments, false).map_err(InitError::from).and_then(|options| {
        if options.help {
            return session.print(&args::help());
        }
        init(&mut session, &options, Paths::system())
    });
    finish(&mut session, "init --control-plane", result)
}

/// Whether the arguments of `agent preflight` are for a control plane.
#[must_use]
pub fn is_check(arguments: &[String]) -> bool {
    arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--control-plane")
}

/// Runs `agent preflight` for a control plane.
pub fn check(arguments: &[String], environment: Environment<'_>) -> u8 {
    let mut session = InitSession { environment };
    let result = ControlPlaneOptions::parse(arguments, true).map_err(InitError::from).and_then(|options| {
        if options.help {
            return session.print(&args::help());
        }
        let paths = Paths::system();
        let (settings, warnings) = read(&options, &paths)?;
        session.warn(&warnings);
        preflight::show(&mut session, &settings, &paths, &options)
    });
    finish(&mut session, "preflight", result)
}

pub(super) fn init(
    session: &mut InitSession<'_>,
    options: &ControlPlaneOptions,
    paths: Paths,
) -> Result<(), InitError> {
    let (mut settings, warnings) = read(options, &paths)?;
    let skipped = if options.skip_phases.is_empty() {
        settings.skip_phases.clone()
    } else {
        options.skip_phases.clone()
    };
    let mut chosen = select::INIT.select(options.phase, &skipped).map_err(UsageError::Option)?;
    if options.phase.is_none() {
        settings.cluster.dns_disabled |= !chosen.contains(&"addon/coredns");
        settings.cluster.proxy_disabled |= !chosen.contains(&"addon/kube-proxy");
    }
    // An addon that is disabled is applied only by its own phase.
    if chosen.len() > 1 {
        chosen.retain(|phase| match *phase {
            "addon/coredns" => !settings.cluster.dns_disabled,
            "addon/kube-proxy" => !settings.cluster.proxy_disabled,
            _ => true,
        });
    }
    let mode = match (options.dry_run || settings.dry_run, options.yaml) {
        (false, _) => Mode::Real,
        (true, false) => Mode::Dry,
        (true, true) => Mode::DryYaml,
    };
    let kubeconfig_dir = options.kubeconfig_dir.clone().unwrap_or_else(|| paths.kubernetes.clone());
    let mut context =
        Context { session, settings, paths, kubeconfig_dir, mode, drafts: BTreeMap::new(), patches: None };
    for warning in &warnings {
        context.warn(warning);
    }
    begin(&mut context, options)?;
    // Those that talk to the API server are the last, and share a deadline.
    let (talks, writes): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|name| talking(name).is_some());
    for phase in writes {
        write(&mut context, options, phase).map_err(in_phase(phase))?;
    }
    talk(&mut context, options, &talks)
}

pub(super) fn in_phase(phase: &'static str) -> impl Fn(InitError) -> InitError {
    move |error| InitError::Phase { phase, source: Box::new(error) }
}

/// The settings of the file or the flags, with the flags that go with a file.
fn read(options: &ControlPlaneOptions, paths: &Paths) -> Result<(InitSettings, Vec<String>), InitError> {
    let mut documents = match &options.config {
        None => options.documents.clone(),
        Some(file) => {
            let failed = |source| InitError::File { action: "read", path: file.clone(), source };
            let text = std::fs::read_to_string(file).map_err(failed)?;
            let wrong = |why| InitError::ControlPlane(format!("{}: {why}", file.display()));
            Documents::parse(&text).map_err(wrong)?
        }
    };
    if let Some(name) = &options.node_name {
        documents.init["nodeRegistration"]["name"] = name.as_str().into();
    }
    settle(&documents, &host()?, paths).map_err(InitError::ControlPlane)
}

pub(super) fn host() -> Result<HostFacts, InitError> {
    let failed =
        |source| InitError::File { action: "read", path: PathBuf::from("/proc/sys/kernel/hostname"), source };
    Ok(HostFacts {
        hostname: node::hostname().map_err(failed)?,
        addresses: node::default_route_addresses(),
        token: tokens::random().map_err(|error| InitError::ControlPlane(chain(&error)))?,
        version: format!("v{KUBERNETES}"),
        cri_socket: preflight::OWN_SOCKET.to_owned(),
    })
}

/// What is said and refused before the first phase.
fn begin(context: &mut Context<'_, '_>, options: &ControlPlaneOptions) -> Result<(), InitError> {
    if options.phase.is_none() {
        let version = context.settings.cluster.version.clone();
        context.say(&format!("[init] Using Kubernetes version: {version}\n"))?;
    }
    certs::check_external(context)?;
    let is_external = |base: &str| certs::is_external(context, base);
    if options.upload_certs && (is_external("ca") || is_external("front-proxy-ca")) {
        let why = "can't use upload-certs with an external CA or an external front-proxy CA";
        return Err(InitError::ControlPlane(why.to_owned()));
    }
    if is_external("ca") {
        kubeconfigs::check_external(context)?;
    }
    Ok(())
}

/// A phase that writes files of this machine. Parents say where.
fn write(
    context: &mut Context<'_, '_>,
    options: &ControlPlaneOptions,
    phase: &'static str,
) -> Result<(), InitError> {
    let folder = |at: &PathBuf| path(at);
    match phase.split_once('/') {
        Some(("certs", name)) => certs::run(context, name),
        Some(("kubeconfig", name)) => kubeconfigs::run(context, name),
        Some(("etcd", _)) => static_pods::run(context, manifests::ETCD),
        Some(("control-plane", "apiserver")) => static_pods::run(context, manifests::API_SERVER),
        Some(("control-plane", "controller-manager")) => {
            static_pods::run(context, manifests::CONTROLLER_MANAGER)
        }
        Some(("control-plane", _)) => static_pods::run(context, manifests::SCHEDULER),
        Some(_) => Ok(()),
        None => match phase {
            "preflight" => preflight::run(context, options),
            "certs" => {
                let at = folder(&context.settings.cluster.cert_dir);
                context.say(&format!("[certs] Using certificateDir folder {at:?}\n"))
            }
            "kubeconfig" => {
                let at = folder(&context.kubeconfig_dir);
                context.say(&format!("[kubeconfig] Using kubeconfig folder {at:?}\n"))
            }
            "control-plane" => {
                let at = folder(&context.paths.manifests());
                context.say(&format!("[control-plane] Using manifest folder {at:?}\n"))
            }
            "kubelet-start" => kubelet_files::start(context),
            _ => Ok(()),
        },
    }
}

/// The phases that talk to the API server, or only show what the cluster is.
fn talking(name: &str) -> Option<ApiPhase> {
    Some(match name {
        "wait-control-plane" => ApiPhase::WaitControlPlane,
        "upload-config/kubeadm" => ApiPhase::UploadConfigKubeadm,
        "upload-config/kubelet" => ApiPhase::UploadConfigKubelet,
        "upload-certs" => ApiPhase::UploadCerts,
        "mark-control-plane" => ApiPhase::MarkControlPlane,
        "bootstrap-token" => ApiPhase::BootstrapToken,
        "bootstrap-token/rules" => ApiPhase::BootstrapRules,
        "kubelet-finalize/enable-client-cert-rotation" => ApiPhase::KubeletFinalize,
        "addon/coredns" => ApiPhase::AddonCoreDns,
        "addon/kube-proxy" => ApiPhase::AddonKubeProxy,
        "show-join-command" => ApiPhase::ShowJoinCommand,
        _ => return None,
    })
}

pub(super) fn talk(
    context: &mut Context<'_, '_>,
    options: &ControlPlaneOptions,
    names: &[&'static str],
) -> Result<(), InitError> {
    let patches = if names.contains(&"addon/coredns") { context.patches()? } else { Patches::default() };
    let settings = context.settings.clone();
    let paths = context.paths.clone();
    let api = ApiOptions {
        kubeconfig: options.kubeconfig.clone(),
        upload_certs: options.upload_certs,
        skip_token_print: options.hides_token,
        skip_certificate_key_print: options.hides_key,
        print_manifest: options.prints_manifest,
        dry_run: context.is_dry(),
        bare: context.mode == Mode::DryYaml,
        is_kubelet_given: settings.given_kubelet.is_some(),
        is_proxy_given: settings.given_kube_proxy.is_some(),
        proxies: static_pods::proxies(),
        timeout: options.timeout,
    };
    let (now, shared) = (context.now(), RefCell::new(context));
    // Objects of a dry run are what standard output is for.
    let say = |text: &str| {
        let mut context = shared.borrow_mut();
        let _ = if text.starts_with("---\n") { context.session.print(text) } else { context.say(text) };
    };
    let patch = |object| {
        let (object, kinds) = patches.applied(patches::COREDNS, object)?;
        for kind in kinds {
            say(&kind.applied_to(patches::COREDNS));
        }
        Ok(object)
    };
    let phases = ApiPhases::new((&settings, &api, &paths), &say, now, &patch);
    for name in names {
        let Some(phase) = talking(name) else { continue };
        let failed = |error: InitError| in_phase(name)(error);
        phases.run(phase).map_err(|error| failed(InitError::ControlPlane(chain(&error))))?;
        if phases.restarts_kubelet.take() {
            restart_node(shared.borrow_mut().session).map_err(failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
