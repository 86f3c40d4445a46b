//! `agent reset`: undoes `init`, in kubeadm's order: ask, stop the service, stop the pods, remove.
//!
//! Guarantees: what is mounted below the root directory is unmounted, never emptied. Data of claims is
//! deleted with `--volumes` only. Files that differ from what `init` or the agent wrote are kept and listed.
//!
//! Owns what is removed, and the list of what is kept.

use std::fs;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};
use std::time::Duration;

mod plane;

use super::args::InitOptions;
use super::facts::InitSystem;
use super::install::File;
use super::{
    CONFIG_FILE, DEFAULTS_FILE, InitError, InitSession, install, join, machine_of, preflight, resolve,
    service, write,
};
use crate::agent::config::Resolved;
use crate::agent::kubelet::previous_runtimes;
use crate::agent::kubelet::setup::configs;
use crate::cmd::control_plane::api::{self, Api};
use crate::cmd::control_plane::etcd::{EtcdRemoval, endpoints, remove_local};
use crate::model::objects::{SNAPSHOTS_DIR, VOLUMES_DIR};
use crate::model::ordered::Sortable as _;
use crate::platform::logging::chain;
use crate::platform::sys::{dir, lock, mount, node};
use crate::platform::{logind, rt};
use crate::pod::volume::{MOUNT_MARK, unshare_mounts_below};
use crate::service::driver::remove_if_present;
use crate::service::kernel::KernelNames;
use crate::store;

use plane::{PlaneFacts, ResetExtras};

/// The phase of the member of etcd.
const MEMBER: &str = "remove-etcd-member";
/// How long etcd is asked when no API server answers: the whole cluster may be gone.
const ALONE: Duration = Duration::from_secs(10);

pub(super) struct ResetPhase {
    /// The name for `--skip-phases`.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    run: fn(&mut ResetRun<'_, '_>) -> Result<(), InitError>,
}

/// In the order of execution.
pub(super) const PHASES: &[ResetPhase] = &[
    ResetPhase {
        name: "preflight",
        help: "Ask for confirmation, and check for root",
        run: |run| run.preflight(),
    },
    ResetPhase {
        name: MEMBER,
        help: "Remove this node's member of the cluster's etcd, and its data",
        run: |run| run.remove_etcd_member(),
    },
    ResetPhase { name: "stop", help: "Stop the service and disable it", run: |run| run.stop() },
    ResetPhase { name: "pods", help: "Stop and remove all pods", run: |run| run.pods() },
    ResetPhase {
        name: "cleanup-node",
        help: "Remove state, certificates and the files that init wrote",
        run: |run| run.cleanup_node(),
    },
];

/// The entries of the root directory that belong to the agent; all others are kept.
const STATE: [&str; 14] = [
    "pods",
    "runtime",
    "pki",
    "config.yaml",
    "config.yaml.before-join",
    "kubeadm-flags.env",
    "instance-config.yaml",
    "upgrade",
    "upgrade.lock",
    "device-plugins",
    "plugins_registry",
    "pod-resources",
    "image_manager",
    MOUNT_MARK,
];

/// Whether a file is as `init` wrote it.
type IsOurs<'a> = &'a dyn Fn(&str) -> bool;

struct ResetRun<'a, 'b> {
    session: &'a mut InitSession<'b>,
    options: &'a InitOptions,
    extras: ResetExtras,
    resolved: Resolved,
    init_system: InitSystem,
    plane: PlaneFacts,
    /// What could not be removed, each with the reason.
    failed: Vec<String>,
}

pub(super) fn run(session: &mut InitSession<'_>, given: &InitOptions) -> Result<(), InitError> {
    let (mut options, extras) = plane::with_config(given)?;
    session.warn(&extras.warnings);
    let plane = PlaneFacts::of(&options);
    // Those of a node of its own; a control plane's are elsewhere.
    let is_of_agent = !plane.is_there;
    let directory = options.cert_dir.as_ref().filter(|_| is_of_agent);
    options.agent_flags.extend(directory.map(|directory| format!("--cert-dir={}", directory.display())));
    let options = &options;
    let resolved = match resolve(options) {
        Ok(resolved) => resolved,
        // An unreadable configuration must not prevent the reset of a machine.
        Err(error) if options.agent_flags.is_empty() => {
            let why = chain(&error);
            session.print_error(&format!("\t[WARNING reset]: the configuration is ignored: {why}\n"));
            resolve(&InitOptions { rootfs: PathBuf::from("/nonexistent"), ..InitOptions::default() })?
        }
        Err(error) => return Err(error),
    };
    let init_system = machine_of(options, session);
    let mut run = ResetRun { session, options, extras, resolved, init_system, plane, failed: Vec::new() };
    for phase in PHASES.iter().filter(|phase| options.has_phase(phase.name)) {
        (phase.run)(&mut run)
            .map_err(|error| InitError::Phase { phase: phase.name, source: Box::new(error) })?;
    }
    if !run.failed.is_empty() {
        return Err(InitError::RemovalFailed(run.failed.join(", ")));
    }
    if run.plane.is_there && options.phase.is_none() { run.print(plane::NOT_CLEANED) } else { Ok(()) }
}

impl ResetRun<'_, '_> {
    fn print(&mut self, text: &str) -> Result<(), InitError> {
        self.session.print(text)
    }

    fn preflight(&mut self) -> Result<(), InitError> {
        if !self.options.force && !self.options.dry_run {
            let volumes = if self.options.volumes { " and the data of claims" } else { "" };
            let root = self.options.rooted(&self.resolved.flags.root_dir);
            if self.plane.has_static_pods() {
                self.session.print_error(
                    "[reset] WARNING: the control plane of this machine will be removed: its certificates and keys, and \
                     etcd's data.\n",
                );
            }
            self.session.print_error(&format!(
                "[reset] WARNING: all pods of this machine and the agent's state in {}{volumes} will be removed.\n",
                root.display()
            ));
            self.print("[reset] Are you sure you want to proceed? [y/N]: ")?;
            let mut line = String::new();
            let _ = io::stdin().lock().read_line(&mut line);
            if !matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
                return Err(InitError::Aborted);
            }
        }
        self.print("[preflight] Running pre-flight checks\n")?;
        let mut findings = vec![preflight::privileged(node::user_id())];
        self.options.ignored.apply(&mut findings);
        self.session.judge(&findings)
    }

    /// As kubeadm, a member that cannot be removed is a warning: the others may be gone.
    fn remove_etcd_member(&mut self) -> Result<(), InitError> {
        if !self.plane.has_static_pods() {
            return Ok(());
        }
        let Some(data) = self.plane.data_dir(self.options) else {
            return self.print(
                "[reset] No etcd config found. Assuming external etcd\n[reset] Please, manually reset etcd to prevent \
                 further issues\n",
            );
        };
        let shown = data.display().to_string();
        if self.options.dry_run {
            return self.print(&format!(
                "[dryrun] Would remove the etcd member on this node from the etcd cluster\n[dryrun] Would delete \
                 contents of the etcd data directory: {shown}\n"
            ));
        }
        if self.options.is_live() {
            match self.leave_etcd() {
                Ok(EtcdRemoval::Done) => {
                    self.print("[reset] Removed the etcd member on this node from the etcd cluster\n")?;
                }
                Ok(_) => {}
                Err(why) => self.session.print_error(&format!(
                    "W [reset] Failed to remove etcd member: {why}, please manually remove this etcd member using etcdctl\n"
                )),
            }
        }
        if plane::is_empty(&data) {
            return Ok(());
        }
        match plane::empty(&data) {
            Ok(()) => self.print(&format!("[reset] Deleted contents of the etcd data directory: {shown}\n")),
            Err(why) => {
                self.session.print_error(&format!(
                    "W [reset] Failed to delete contents of the etcd directory: {shown:?}, error: {why}\n"
                ));
                Ok(())
            }
        }
    }

    fn leave_etcd(&mut self) -> Result<EtcdRemoval, String> {
        let Some(local) = self.plane.etcd.clone() else { return Ok(EtcdRemoval::Absent) };
        let path = self.options.kubeconfig.clone().unwrap_or_else(|| install::ADMIN_CONF.into());
        let (cert_dir, limit) = (&self.plane.cert_dir, self.extras.etcd_call);
        let work = async {
            let now = tokio::time::Instant::now();
            // The manifest names the members of the time when it was made; the API server knows the others.
            let shown = async {
                let client = api::client(api::transport(api::kubeconfig(&path, None)?));
                endpoints(&Api::new(Some(client), &|_| {}, now)).await
            };
            let (shown, limit) = match Box::pin(shown).await {
                Ok(shown) => (shown, limit),
                Err(_) => (Vec::new(), limit.min(ALONE)),
            };
            Box::pin(remove_local(&local, &shown, cert_dir, now + limit)).await
        };
        let done = rt::run(async { Box::pin(work).await }).map_err(|error| error.to_string())?;
        done.map_err(|error| chain(&error))
    }

    fn stop(&mut self) -> Result<(), InitError> {
        let link = match self.init_system {
            InitSystem::OpenRc => install::RUNLEVEL,
            _ => install::WANTS,
        };
        let is_installed = [install::UNIT, install::SCRIPT]
            .iter()
            .chain(&install::PACKAGED_UNITS)
            .any(|path| self.options.rooted(path).exists());
        if self.options.is_live() && is_installed {
            let commands = service::stop(self.init_system);
            if self.options.dry_run {
                self.print("[dryrun] Would stop the agent service\n")?;
            } else if !commands.is_empty() {
                self.print("[reset] Stopping the agent service\n")?;
                service::call(self.init_system, commands)?;
            }
        }
        let removed = self.remove_file(&self.options.rooted(link))?;
        if removed { self.print("[reset] Disabled the service\n") } else { Ok(()) }
    }

    fn pods(&mut self) -> Result<(), InitError> {
        if !self.options.is_live() {
            return Ok(());
        }
        if self.options.dry_run {
            return self.print("[dryrun] Would stop and remove all pods\n");
        }
        self.free()?;
        let is_embedded = self.resolved.kubelet.container_runtime_endpoint == "embedded";
        let records = self.resolved.flags.runtime_state_dir.clone();
        if is_embedded && !records.exists() {
            return self.print("[reset] No pods are running\n");
        }
        self.print("[reset] Stopping and removing pods\n")?;
        let (runtimes, cgroups) =
            (configs::runtimes(&self.resolved), configs::cgroups(&self.resolved.kubelet));
        let cleared = rt::run(async { Box::pin(previous_runtimes::clear_node(runtimes, cgroups)).await });
        let cleared = cleared.map_err(|error| InitError::Pods(error.to_string()))?;
        let cleared = cleared.map_err(InitError::Pods)?;
        self.failed.extend(cleared.left);
        let names = KernelNames::of(&self.resolved.flags.bridge_name);
        self.failed.extend(remove_if_present(&names).err());
        self.print(&format!("[reset] Pods removed: {}\n", cleared.pods))
    }

    /// Checks that no agent is using the state.
    fn free(&self) -> Result<(), InitError> {
        let root = self.options.rooted(&self.resolved.flags.root_dir);
        let path = root.join(format!("{}.lock", store::FILE_NAME));
        if !path.exists() {
            return Ok(());
        }
        match lock::try_acquire(&path) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(InitError::Running(root)),
            Err(error) => {
                let source = io::Error::other(chain(&error));
                Err(InitError::File { action: "lock", path, source })
            }
        }
    }

    /// kubeadm's phase stops the kubelet and its pods itself.
    fn cleanup_node(&mut self) -> Result<(), InitError> {
        if self.plane.is_there && self.options.phase.is_some() {
            self.stop()?;
            self.pods()?;
        }
        self.cleanup()
    }

    fn cleanup(&mut self) -> Result<(), InitError> {
        // A dry run has not stopped it.
        if !self.options.dry_run {
            self.free()?;
        }
        let root = self.options.rooted(&self.resolved.flags.root_dir);
        self.unmount(&root)?;
        if self.options.is_live() && !self.options.dry_run {
            rt::run(unshare_mounts_below(&root)).map_err(|error| InitError::Pods(error.to_string()))?;
        }
        let state = self.options.rooted(&self.resolved.flags.runtime_state_dir);
        self.unmount(&state)?;
        let mut directories: Vec<PathBuf> = STATE.iter().map(|name| root.join(name)).collect();
        directories.push(self.options.rooted(&self.resolved.flags.cert_dir));
        directories.push(state);
        directories.push(self.options.rooted(&self.resolved.flags.agent_socket));
        if self.options.volumes {
            directories.extend([VOLUMES_DIR, SNAPSHOTS_DIR].map(|name| root.join(name)));
        }
        let database = names(&root).into_iter().filter(|name| name.starts_with(store::FILE_NAME));
        directories.extend(database.map(|name| root.join(name)));
        let restored = self.restore()?;
        if restored {
            directories.retain(|path| *path != root.join("config.yaml"));
        }
        let defaults = self.options.rooted(DEFAULTS_FILE);
        let text = fs::read_to_string(&defaults).unwrap_or_default();
        if let (Some(alone), false) = (plane::defaults_alone(self.options, &text), self.options.dry_run) {
            write(&File::new(defaults, 0o644, alone))?;
        }
        directories.extend(self.plane.files(self.options));
        directories.extend(self.options.cleans_temporary.then(|| plane::temporary(self.options)));
        directories.retain(|path| path.symlink_metadata().is_ok());
        directories.order_by(Ord::cmp);
        directories.dedup();
        let shown: Vec<String> = directories.iter().map(|path| path.display().to_string()).collect();
        if !shown.is_empty() {
            let would = if self.options.dry_run { "[dryrun] Would delete" } else { "[reset] Deleting" };
            self.print(&format!("{would}: {}\n", shown.join(" ")))?;
        }
        if !self.options.dry_run {
            self.failed.extend(directories.iter().filter_map(|path| remove(path).err()));
        }
        let mut left = self.files(restored)?;
        let data = self.plane.data_dir(self.options).filter(|_| self.options.has_phase(MEMBER));
        if let (Some(data), false) = (data, self.options.dry_run) {
            // What etcd has written since its data was deleted. The directory may be a disk of its own.
            self.failed.extend(plane::empty(&data).err().filter(|_| data.exists()));
        }
        let mut empty = self.plane.directories(self.options);
        empty.extend([
            self.options.rooted(&self.resolved.flags.images_dir),
            root.clone(),
            self.options.rooted("/etc/kubernetes/pki"),
            self.options.rooted(install::MANIFESTS),
            self.options.rooted("/etc/kubernetes"),
        ]);
        if !self.options.dry_run {
            // Empty directories are removed, too.
            for path in &empty {
                let _ = fs::remove_dir(path);
            }
        }
        left.extend(self.leftovers(&root));
        if !left.is_empty() {
            let lines: String = left.iter().map(|line| ["  ", line, "\n"].concat()).collect();
            self.print(&format!("[reset] Kept:\n{lines}"))?;
        }
        Ok(())
    }

    /// Brings back the user's own configuration of the time before the node joined or became a control plane. False: there
    /// was none.
    fn restore(&mut self) -> Result<bool, InitError> {
        let (before, file) = (self.options.rooted(join::BEFORE), self.options.rooted(CONFIG_FILE));
        let text = match fs::read_to_string(&before) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other.map_err(|source| InitError::File { action: "read", path: before, source })?,
        };
        if text.starts_with(install::CONFIGURATION_HEADER) {
            return Ok(false);
        }
        let shown = file.display().to_string();
        if self.options.dry_run {
            self.print(&format!("[dryrun] Would restore the previous configuration in {shown:?}\n"))?;
        } else {
            write(&File::new(file, 0o644, text))?;
            self.print(&format!("[reset] Restoring the previous configuration in {shown:?}\n"))?;
        }
        Ok(true)
    }

    /// Removes the files that `init` wrote, if they are unchanged. Returns the files that are kept, each with
    /// the reason.
    fn files(&mut self, keeps_configuration: bool) -> Result<Vec<String>, InitError> {
        let program = service::program(self.options);
        let always = |_: &str| true;
        let is_unit = |text: &str| text == install::unit(&program);
        let is_script = |text: &str| text == install::script(&program);
        let is_modules = |text: &str| text == install::MODULES_TEXT;
        let is_defaults = |text: &str| text.starts_with(install::DEFAULTS_HEADER);
        let is_example = |text: &str| text == install::EXAMPLE;
        let is_logind = |text: &str| text.starts_with(logind::DROP_IN_HEADER);
        let files: [(&str, IsOurs<'_>); 11] = [
            (join::KUBECONFIG, &always),
            (join::BOOTSTRAP, &always),
            (join::AUTHORITY, &always),
            (install::ADMIN_CONF, &always),
            (CONFIG_FILE, &always),
            (install::UNIT, &is_unit),
            (install::SCRIPT, &is_script),
            (install::MODULES, &is_modules),
            (DEFAULTS_FILE, &is_defaults),
            (install::EXAMPLE_FILE, &is_example),
            (logind::DROP_IN, &is_logind),
        ];
        let mut left = Vec::new();
        for (path, is_ours) in files {
            if path == CONFIG_FILE && keeps_configuration {
                continue;
            }
            let path = self.options.rooted(path);
            let Ok(text) = fs::read_to_string(&path) else { continue };
            if !is_ours(&text) {
                left.push(format!("{} (modified since init wrote it)", path.display()));
                continue;
            }
            let shown = path.display().to_string();
            if self.remove_file(&path)? {
                self.print(&format!("[reset] Deleting file: {shown}\n"))?;
            }
        }
        Ok(left)
    }

    /// False when it does not exist, or in a dry run.
    fn remove_file(&mut self, path: &Path) -> Result<bool, InitError> {
        if path.symlink_metadata().is_err() {
            return Ok(false);
        }
        if self.options.dry_run {
            self.print(&format!("[dryrun] Would delete file: {}\n", path.display()))?;
            return Ok(false);
        }
        fs::remove_file(path).map(|()| true).map_err(|source| InitError::File {
            action: "remove",
            path: path.to_owned(),
            source,
        })
    }

    fn unmount(&mut self, below: &Path) -> Result<(), InitError> {
        // Without the mount table nothing may be removed: a bind mount below may be a user's directory, on
        // the same disk.
        let points = mount::mount_points().map_err(|source| InitError::File {
            action: "read",
            path: PathBuf::from("/proc/self/mountinfo"),
            source,
        })?;
        // A mount on the root directory itself is the disk provided for it: it stays, as with kubeadm.
        let is_below = |point: &PathBuf| point != below && point.starts_with(below);
        // An offline system's tree may have mounts of the tools that prepare it; only mounts below the root
        // directory count, deepest first.
        let points: Vec<PathBuf> = points.into_iter().rev().filter(is_below).collect();
        if points.is_empty() {
            return Ok(());
        }
        let would = if self.options.dry_run { "[dryrun] Would unmount" } else { "[reset] Unmounting" };
        self.print(&format!("{would} mounted directories in {:?}\n", below.display().to_string()))?;
        if self.options.dry_run {
            return Ok(());
        }
        for path in points {
            let unmount = if self.extras.forces_unmount { mount::unmount_by_force } else { mount::unmount };
            match unmount(&path) {
                // Ended meanwhile, or below a later mount on one of its parents, which hides it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.map_err(|source| InitError::File { action: "unmount", path, source })?,
            }
        }
        Ok(())
    }

    /// What remains on the machine, and whose it is.
    fn leftovers(&self, root: &Path) -> Vec<String> {
        let mut left = Vec::new();
        let mut say = |path: PathBuf, why: &str| {
            if !names(&path).is_empty() || path.is_file() {
                left.push(format!("{} ({why})", path.display()));
            }
        };
        if !self.options.volumes {
            say(root.join(VOLUMES_DIR), "data of claims: use --volumes to delete it");
        }
        say(self.options.rooted(&self.resolved.kubelet.static_pod_path), "your manifests");
        say(self.options.rooted(&self.resolved.kubelet.pod_logs_dir), "container logs");
        say(self.options.rooted(service::program(self.options)), "the program");
        for name in names(root) {
            let is_agents = [VOLUMES_DIR, SNAPSHOTS_DIR].contains(&name.as_str())
                || STATE.contains(&name.as_str())
                || name.starts_with(store::FILE_NAME);
            if !is_agents {
                say(root.join(name), "not created by the agent");
            }
        }
        if self.options.is_live() && self.resolved.kubelet.container_runtime_endpoint != "embedded" {
            left.push("images of the container runtime, and its CNI configuration".to_owned());
        }
        left
    }
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.order_by(Ord::cmp);
    names
}

/// Removes a file, or a directory with everything in it on the same file system.
fn remove(path: &Path) -> Result<(), String> {
    let is_dir = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    let said = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    if !is_dir {
        return fs::remove_file(path).map_err(|error| said(path, error));
    }
    dir::remove_contents(path).map_err(|error| said(&path.join(error.path), error.source))?;
    fs::remove_dir(path).map_err(|error| said(path, error))
}
