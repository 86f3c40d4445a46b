//! `agent init --control-plane`: the phases, one after the other or one alone.
//!
//! Owns the way from the command line to the settings, and what each phase calls.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use super::args::{self, ControlPlaneOptions};
use super::config::read::{Documents, HostFacts, settle};
use super::config::{InitSettings, path};
use super::context::{Context, Mode};
use super::{Paths, api_phases, certs, kubeconfigs, kubelet_files, manifests, select, static_pods};
use crate::cmd::cli::Environment;
use crate::cmd::init::args::UsageError;
use crate::cmd::init::preflight::Ignored;
use crate::cmd::init::{InitError, InitSession, check_control_plane, finish, restart_node, standalone_phases};
use crate::cmd::kubelet_alias::KUBERNETES;
use crate::model::cidr::is_global_unicast;
use crate::platform::sys::node;
use crate::serve::random;

/// The socket that the agent serves as a node of a cluster.
const OWN_SOCKET: &str = "unix:///run/agent/cri.sock";

/// Whether the arguments of `agent init` are for a control plane.
#[must_use]
pub fn selects(arguments: &[String]) -> bool {
    args::selects(arguments, &standalone_phases())
}

/// Runs `agent init` for a control plane and returns the exit code, as [`init::run`](crate::cmd::init::run) does.
pub fn run(arguments: &[String], environment: Environment<'_>) -> u8 {
    let mut session = InitSession { environment };
    let result = ControlPlaneOptions::parse(arguments).map_err(InitError::from).and_then(|options| {
        if options.help {
            return session.print(&args::help());
        }
        init(&mut session, &options)
    });
    finish(&mut session, "init --control-plane", result)
}

fn init(session: &mut InitSession<'_>, options: &ControlPlaneOptions) -> Result<(), InitError> {
    let paths = Paths::system();
    let (mut settings, warnings) = read(options, &paths)?;
    let skipped = if options.skip_phases.is_empty() { settings.skip_phases.clone() } else { options.skip_phases.clone() };
    let chosen = select::select(options.phase, &skipped).map_err(|why| InitError::Usage(UsageError::Option(why)))?;
    if options.phase.is_none() {
        let has = |name: &str| chosen.contains(&name);
        settings.cluster.dns_disabled |= !has("addon/coredns");
        settings.cluster.proxy_disabled |= !has("addon/kube-proxy");
    }
    let mode = match (options.dry_run || settings.dry_run, options.yaml) {
        (false, _) => Mode::Real,
        (true, false) => Mode::Dry,
        (true, true) => Mode::DryYaml,
    };
    let kubeconfig_dir = options.kubeconfig_dir.clone().unwrap_or_else(|| paths.kubernetes.clone());
    let mut context = Context {
        session,
        settings,
        paths,
        kubeconfig_dir,
        mode,
        drafts: Default::default(),
        patches: None,
    };
    warnings.iter().for_each(|warning| context.warn(warning));
    begin(&mut context, options)?;
    for phase in chosen {
        run_phase(&mut context, options, phase)
            .map_err(|error| InitError::Phase { phase, source: Box::new(error) })?;
    }
    Ok(())
}

/// The settings of the file or the flags, with the flags that go with a file.
fn read(options: &ControlPlaneOptions, paths: &Paths) -> Result<(InitSettings, Vec<String>), InitError> {
    let mut documents = match &options.config {
        None => options.documents.clone(),
        Some(file) => {
            let failed = |source| InitError::File { action: "read", path: file.clone(), source };
            let text = std::fs::read_to_string(file).map_err(failed)?;
            Documents::parse(&text)
                .map_err(|why| InitError::ControlPlane(format!("{}: {why}", file.display())))?
        }
    };
    if let Some(name) = &options.node_name {
        documents.init["nodeRegistration"]["name"] = name.as_str().into();
    }
    settle(&documents, &host()?, paths).map_err(InitError::ControlPlane)
}

fn host() -> Result<HostFacts, InitError> {
    let failed = |source| InitError::File { action: "read", path: PathBuf::from("/proc/sys/kernel/hostname"), source };
    Ok(HostFacts {
        hostname: node::hostname().map_err(failed)?,
        addresses: node::default_route_addresses(),
        token: random_token()?,
        version: format!("v{KUBERNETES}"),
        cri_socket: OWN_SOCKET.to_owned(),
    })
}
