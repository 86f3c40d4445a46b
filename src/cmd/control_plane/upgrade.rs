//! `agent upgrade plan|apply|node|diff`: what `kubeadm upgrade` does (1.36) to a control plane that `agent init --control-plane`
//! or kubeadm has made. The configuration is the cluster's.
//!
//! Expected flow: the ConfigMaps of kubeadm become settings with another version; from them follow manifests, which
//! `replace` puts into the place of those there, one after the other, each with its way back; then the phases of `init` write
//! the objects of the cluster.
//!
//! Guarantees: a manifest is the one before or the new one, whole. A component that does not become healthy gets its manifest
//! back, with those replaced before it. An interrupted upgrade is gone on with, or undone, by the next run.
//!
//! | module | what |
//! |---|---|
//! | `args`, `wishes` | the command line, and with the file what is to be done (pure) |
//! | `phases` | names (pure) |
//! | `versions` | which version may follow which (pure) |
//! | `view` | what the cluster says |
//! | `plan`, `diff` | tables and differences (pure) |
//! | `replace`, `record` | the order of steps, and what is remembered of it |
//! | `machine` | the effects |
//! | `apply` | the phases |

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::config::complete;
use super::context::{Context, Mode};
use super::manifests::{API_SERVER, CONTROLLER_MANAGER, SCHEDULER};
use super::output::Output;
use super::phases::{host, in_phase};
use super::{Paths, static_pods};
use crate::cmd::cli::{Environment, yaml};
use crate::cmd::init::args::UsageError;
use crate::cmd::init::{InitError, InitSession, finish};
use crate::platform::sys::lock;
use crate::platform::sys::node;

mod apply;
mod args;
mod diff;
mod machine;
mod phases;
mod plan;
mod record;
mod replace;
mod versions;
mod view;
mod wishes;

use args::{ClusterUpgradeOptions, UpgradeVerb, VERBS};
use machine::{UpgradeMachine, text_of};
use record::ReplacementRecord;
use view::{ClusterView, Reach};
use wishes::UpgradeWishes;

/// For what is asked of the cluster before anything is changed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether the arguments of `agent upgrade` are for a control plane.
#[must_use]
pub fn selects(arguments: &[String]) -> bool {
    let word = arguments.iter().find(|argument| !argument.starts_with('-'));
    word.is_some_and(|word| VERBS.iter().any(|(verb, _)| verb == word))
}

/// Runs these commands; returns the exit code.
pub fn run(arguments: &[String], environment: Environment<'_>) -> u8 {
    let mut session = InitSession { environment };
    let result = ClusterUpgradeOptions::parse(arguments).map_err(InitError::from).and_then(|options| {
        if options.help {
            return session.print(&args::help());
        }
        command(&mut session, &options, &Paths::system())
    });
    finish(&mut session, "upgrade plan", result)
}

/// What the phases share.
struct UpgradeRun<'a> {
    wishes: &'a UpgradeWishes,
    is_node: bool,
    /// This machine has no control plane.
    is_worker: bool,
    reach: Reach,
    given_kubeconfig: Option<PathBuf>,
    view: ClusterView,
    /// The release that the agent is made for.
    own: String,
    /// Of an interrupted upgrade.
    record: Option<ReplacementRecord>,
    deadline: Instant,
}

fn command(
    session: &mut InitSession<'_>,
    options: &ClusterUpgradeOptions,
    paths: &Paths,
) -> Result<(), InitError> {
    let wishes = wishes(session, options, paths)?;
    let is_node = options.verb == UpgradeVerb::Node;
    let form = options.text("output").map_or(Ok(Output::Text), Output::parse)?;
    let server = paths.manifests().join(format!("{API_SERVER}.yaml"));
    let manifest = text_of(&server)?;
    let endpoint = manifest.as_deref().map(|text| view::endpoint(&server, text)).transpose()?;
    let is_worker = endpoint.is_none();
    if is_worker && options.verb == UpgradeVerb::Apply {
        return Err(InitError::ControlPlane(format!(
            "this machine has no control plane: {} is not there. Use agent upgrade node",
            server.display()
        )));
    }
    let changes = matches!(options.verb, UpgradeVerb::Apply | UpgradeVerb::Node);
    let chosen = if changes {
        phases::select(options.phase, &wishes.skip_phases, is_node).map_err(UsageError::Option)?
    } else {
        Vec::new()
    };
    let given_kubeconfig = options.text("kubeconfig").map(PathBuf::from);
    let is_kubelets = is_node && is_worker;
    let default = paths.conf(if is_kubelets { "kubelet.conf" } else { "admin.conf" });
    let name = match view::node_name(&paths.conf("kubelet.conf")) {
        Err(error) if changes => return Err(error),
        name => name.or_else(|_| host().map(|host| host.hostname))?,
    };
    let reach = Reach {
        server: endpoint.filter(|_| given_kubeconfig.is_none()).map(|at| format!("https://{at}")),
        kubeconfig: given_kubeconfig.clone().unwrap_or(default),
        name: name.clone(),
    };
    let deadline = Instant::now() + wishes.whole;
    let is_real = changes && !wishes.dry_run;
    let _lock = if is_real && node::user_id() == 0 { Some(locked(paths)?) } else { None };
    let mut record = if changes { machine::interrupted(&paths.kubernetes)? } else { None };
    if let Some(found) = record.take_if(|_| is_real && chosen.contains(&"control-plane")) {
        let mut machine = UpgradeMachine {
            session,
            paths,
            settings: None,
            reach: &reach,
            limit: wishes.manifests,
            deadline,
        };
        record = Some(replace::resume(&mut machine, found)?);
    }
    if form == Output::Text {
        session.print(
            "[upgrade/config] Reading configuration from the \"kubeadm-config\" ConfigMap in namespace \"kube-system\"...\n",
        )?;
    }
    let view = reach.talk(PATIENCE, async |api| view::read(api, &name, is_kubelets).await)?;
    if changes && view.node.is_null() {
        return Err(InitError::ControlPlane(format!(
            "the cluster has no node {name:?}, which this machine is"
        )));
    }
    let facts = host()?;
    let own = facts.version.clone();
    // The first control-plane node has set it.
    let current = if is_node { configured(&view) } else { view.version() };
    let target = if is_node { current } else { wishes.target(&own, &current) };
    let settled = view.settings(&wishes, (&name, &target), endpoint, &facts, paths);
    let (settings, warnings) = settled.map_err(InitError::ControlPlane)?;
    session.warn(&warnings);
    if wishes.prints_config {
        let text = yaml::to_string(&settings.cluster.document());
        let lines: String = text.lines().map(|line| ["\t", line, "\n"].concat()).collect();
        session.print(&["[upgrade/config] Configuration used:\n", &lines].concat())?;
    }
    if options.verb == UpgradeVerb::Plan {
        let made = plan::plan(&view, &settings, &own, wishes.has_etcd);
        return show_plan(session, &made, form, [&view.version(), &own, &target]);
    }
    let mode = if wishes.dry_run { Mode::Dry } else { Mode::Real };
    let mut context = Context {
        session,
        settings,
        paths: paths.clone(),
        kubeconfig_dir: paths.kubernetes.clone(),
        mode,
        drafts: BTreeMap::new(),
        patches: None,
    };
    if options.verb == UpgradeVerb::Diff {
        return differences(&mut context, wishes.context_lines);
    }
    let mut run = UpgradeRun {
        wishes: &wishes,
        is_node,
        is_worker,
        reach,
        given_kubeconfig,
        view,
        own,
        record,
        deadline,
    };
    go(&mut run, &mut context, &chosen, options.phase.is_none())
}

fn go(
    run: &mut UpgradeRun<'_>,
    context: &mut Context<'_, '_>,
    chosen: &[&'static str],
    is_whole: bool,
) -> Result<(), InitError> {
    for name in chosen {
        apply::phase(run, context, name).map_err(|error| match error {
            error @ InitError::Phase { .. } => error,
            error => in_phase(name)(error),
        })?;
    }
    if run.wishes.dry_run {
        return context.say("[upgrade/successful] Finished dryrunning successfully!\n");
    }
    if run.is_node || !is_whole {
        return Ok(());
    }
    let target = context.settings.cluster.version.clone();
    context.say(&format!(
        "\n[upgrade] SUCCESS! A control plane node of your cluster was upgraded to {target:?}.\n\n[upgrade] Now please proceed \
         with upgrading the rest of the nodes by following the right order.\n"
    ))
}

fn show_plan(
    session: &mut InitSession<'_>,
    plan: &Value,
    form: Output,
    [cluster, own, target]: [&str; 3],
) -> Result<(), InitError> {
    if form != Output::Text {
        return session.print(&form.documents(std::slice::from_ref(plan)));
    }
    session.print(&format!(
        "[upgrade/versions] Cluster version: {cluster}\n[upgrade/versions] Release of the agent: {own}\n[upgrade/versions] \
         Target version: {target}\n\n"
    ))?;
    session.print(&plan::text(plan))
}

fn configured(view: &ClusterView) -> String {
    view.documents.cluster["kubernetesVersion"].as_str().unwrap_or_default().to_owned()
}

/// Flags with the file of `--config`.
fn wishes(
    session: &mut InitSession<'_>,
    options: &ClusterUpgradeOptions,
    paths: &Paths,
) -> Result<UpgradeWishes, InitError> {
    const KIND: &str = "UpgradeConfiguration";
    let mut document = Value::Null;
    if let Some(file) = options.text("config") {
        let wrong = |why: String| InitError::ControlPlane(format!("{file}: {why}"));
        let failed = |source| InitError::File { action: "read", path: file.into(), source };
        let text = std::fs::read_to_string(file).map_err(failed)?;
        let (documents, warnings) = complete::file(&text, &host()?, paths).map_err(wrong)?;
        session.warn(&warnings);
        let found = documents.into_iter().find(|document| document["kind"] == KIND);
        document = found.ok_or_else(|| wrong(format!("no {KIND} found in the file")))?;
    }
    UpgradeWishes::of(options, &document).map_err(|why| InitError::Usage(UsageError::Option(why)))
}

/// One upgrade at a time.
fn locked(paths: &Paths) -> Result<lock::FileLock, InitError> {
    let directory = paths.kubernetes.join("tmp");
    let failed = |source| InitError::File { action: "create directory", path: directory.clone(), source };
    crate::platform::sys::dir::make_dir(&directory, 0o700).map_err(failed)?;
    let taken = lock::try_acquire(&directory.join("agent-upgrade.lock"));
    let busy = || InitError::ControlPlane("another upgrade of this control plane is running".to_owned());
    taken.map_err(|error| InitError::ControlPlane(crate::platform::logging::chain(&error)))?.ok_or_else(busy)
}

/// `agent upgrade diff`. As kubeadm's, it leaves etcd out.
fn differences(context: &mut Context<'_, '_>, lines: usize) -> Result<(), InitError> {
    for component in [API_SERVER, CONTROLLER_MANAGER, SCHEDULER] {
        let file = context.paths.manifests().join(format!("{component}.yaml"));
        let Some(there) = text_of(&file)? else {
            let why = format!("the manifest file {:?} does not exist", file.display().to_string());
            return Err(InitError::ControlPlane(why));
        };
        let Some(new) = static_pods::manifest(context, component)? else { continue };
        let from = file.display().to_string();
        // Otherwise a manifest of kubeadm would differ in every line.
        let (there, new) = (machine::plain(&there), machine::plain(&new));
        let text = diff::unified((&from, &there), ("new manifest", &new), lines);
        context.session.print(&text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
