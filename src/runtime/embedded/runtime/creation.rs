//! From a container's configuration to everything that its start needs: image, user, writable layer, cgroup,
//! filter, bundle.
//!
//! Owns the order of effects when a container is made; `oci` decides the bundle's content. Everything here
//! blocks.

use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;

use super::super::apparmor::{AppArmor, DEFAULT_PROFILE};
use super::super::client::write_bundle;
use super::super::images::{Image, ImageStore};
use super::super::layout::{ContainerDir, Layout, SandboxDir};
use super::super::oci;
use super::facts::{NodeAbilities, resolve_devices};
use super::record::{ContainerRecord, RecordedUser, SandboxRecord};
use super::state::ContainerPhase;
use super::{Failure, RuntimeInner, fault, files, filters, volumes};
use crate::model::types::{ContainerId, SandboxId, Timestamp};
use crate::platform::cgroup::{CgroupConfig, Skipped, container as cgroup};
use crate::platform::logging::chain;
use crate::runtime::{ContainerConfig, ErrorKind, SandboxConfig};

/// Most of `/etc/passwd` and `/etc/group` that is read from an image.
const MAX_ACCOUNTS: usize = 1 << 20;

/// Everything needed to make one container, passed to threads that may block.
pub(super) struct Creation {
    layout: Layout,
    images: ImageStore,
    facts: Arc<NodeAbilities>,
    apparmor: AppArmor,
    cgroup: CgroupConfig,
    external_runtime: Vec<String>,
    sandbox: SandboxId,
    id: ContainerId,
    config: ContainerConfig,
    created_at: Timestamp,
    monitor: i32,
    target: Option<i32>,
}

impl Creation {
    /// Collects what it needs from the runtime's state.
    pub(super) fn new(
        shared: &Rc<RuntimeInner>,
        sandbox: &SandboxId,
        id: &ContainerId,
        config: ContainerConfig,
        created_at: Timestamp,
        monitor: i32,
    ) -> Self {
        let target = config.security.target.as_ref().and_then(|target| {
            match shared.state.borrow().containers.get(target)?.phase {
                ContainerPhase::Running(started) => Some(started.pid),
                _ => None,
            }
        });
        Self {
            layout: shared.config.layout.clone(),
            images: shared.images.clone(),
            facts: Arc::clone(&shared.facts),
            apparmor: AppArmor::of_node(),
            cgroup: shared.config.cgroup.clone(),
            external_runtime: Vec::new(),
            sandbox: sandbox.clone(),
            id: id.clone(),
            config,
            created_at,
            monitor,
            target,
        }
        .with_handler(shared)
    }

    fn with_handler(mut self, shared: &RuntimeInner) -> Self {
        let handler = shared.state.borrow().sandboxes.get(&self.sandbox).map(|found| found.handler.clone());
        let program = handler.and_then(|handler| shared.config.handlers.get(&*handler).cloned());
        self.external_runtime =
            program.iter().flat_map(|program| program.split_whitespace()).map(str::to_owned).collect();
        self
    }

    /// Makes the container. After a failure the caller removes what was made.
    pub(super) fn carry_out(mut self) -> Result<(ContainerRecord, Vec<Skipped>), Failure> {
        let sandbox_dir = self.layout.sandbox(&self.sandbox);
        let sandbox = SandboxRecord::read(&sandbox_dir)
            .map_err(|error| Failure::because("failed to load sandbox", &error))?;
        let image = self.image()?;
        let dir = sandbox_dir.container(self.id.as_str());
        let mut record = self.first_record(&image, &sandbox.config);
        files::make_new_dir(&dir.0, 0o711)?;
        let remember = |record: &ContainerRecord| {
            record.write(&dir).map_err(|error| Failure::because("store container record", &error))
        };
        remember(&record)?;
        fault::point("create:record")?;
        let user = self.user(&image)?;
        record.user =
            Some(RecordedUser { uid: user.uid, gid: user.gid, groups: user.additional_gids.clone() });
        self.make_layer(&dir, &sandbox.config)?;
        fault::point("create:layer")?;
        volumes::resolve_images(&self.images, &dir, &mut self.config.mounts)?;
        volumes::make_sources(&self.config.mounts)?;
        fault::point("create:volumes")?;
        let skipped = self.make_bundle(&sandbox_dir, &sandbox, &image, &user, &mut record)?;
        fault::point("create:bundle")?;
        record.is_made = true;
        remember(&record)?;
        Ok((record, skipped))
    }

    fn image(&self) -> Result<Image, Failure> {
        let reference = &self.config.image;
        let found = self
            .images
            .resolve(reference)
            .map_err(|error| Failure::because("failed to get image", &error))?;
        found.ok_or_else(|| {
            Failure::new(ErrorKind::NotFound, format!("failed to get image {reference:?}: image not found"))
        })
    }

    fn first_record(&self, image: &Image, sandbox: &SandboxConfig) -> ContainerRecord {
        let log_path = match (sandbox.log_directory.as_str(), self.config.log_path.as_str()) {
            ("", _) | (_, "") => PathBuf::new(),
            (directory, file) => PathBuf::from(directory).join(file),
        };
        let named =
            [&self.config.user_specified_image, &self.config.image].into_iter().find(|name| !name.is_empty());
        ContainerRecord {
            id: self.id.clone(),
            sandbox: self.sandbox.clone(),
            created_at: self.created_at.as_nanos(),
            image: image.repo_tags.first().or(named).cloned().unwrap_or_default(),
            image_ref: image.repo_digests.first().unwrap_or(&image.id).clone(),
            image_id: image.id.clone(),
            stop_signal: stop_signal(&self.config.stop_signal, &image.defaults.stop_signal),
            log_path,
            config: self.config.clone(),
            ..ContainerRecord::default()
        }
    }

    fn user(&self, image: &Image) -> Result<oci::ResolvedUser, Failure> {
        let file = |path: &str| -> Result<String, Failure> {
            let bytes = self.images.image_file(image, path, MAX_ACCOUNTS);
            let bytes = bytes.map_err(|error| Failure::because("failed to resolve user", &error))?;
            Ok(String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned())
        };
        let (passwd, group) = (file("/etc/passwd")?, file("/etc/group")?);
        oci::resolve(&self.config.security, &image.defaults.user, &passwd, &group)
            .map_err(|error| Failure::because("failed to resolve user", &error))
    }

    /// Makes the writable layer, and the directory that the root is mounted at.
    fn make_layer(&self, dir: &ContainerDir, sandbox: &SandboxConfig) -> Result<(), Failure> {
        files::make_new_dir(&dir.rootfs(), 0o755)?;
        let layer = self.layout.writable_layer(&self.id);
        files::make_new_dir(&layer, 0o711)?;
        let upper = layer.join("upper");
        files::make_new_dir(&upper, 0o755)?;
        files::make_new_dir(&layer.join("work"), 0o711)?;
        if let Some(users) = sandbox.user_namespace {
            chown(&upper, Some(users.host), Some(users.host))
                .map_err(|error| Failure::because(&format!("change owner of {}", upper.display()), &error))?;
        }
        Ok(())
    }

    fn make_bundle(
        &self,
        sandbox_dir: &SandboxDir,
        sandbox: &SandboxRecord,
        image: &Image,
        user: &oci::ResolvedUser,
        record: &mut ContainerRecord,
    ) -> Result<Vec<Skipped>, Failure> {
        let failed =
            |error: &dyn std::error::Error| Failure::because("failed to generate container spec", error);
        let parent = &sandbox.cgroup;
        let leaf =
            cgroup::make_leaf(&self.cgroup, parent, self.id.as_str()).map_err(|error| failed(&error))?;
        record.cgroups = leaf.dirs;
        fault::point("create:cgroup")?;
        let mut node = self.facts.for_container(self.config.security.privileged);
        node.requested_devices = resolve_devices(&self.config.devices)?;
        let mut skipped = self.apparmor(&mut node)?;
        let layer = self.layout.writable_layer(&self.id);
        let image_volumes = self.image_volumes(image, &sandbox.config)?;
        let mut input = oci::Input {
            sandbox: &sandbox.config,
            sandbox_id: &self.sandbox,
            container: &self.config,
            id: &self.id,
            image: &image.defaults,
            layers: &image.layers,
            sandbox_dir,
            writable_layer: &layer,
            image_volumes: &image_volumes,
            monitor_pid: self.monitor,
            pod_init: Some(sandbox.pod_init).filter(|pid| *pid > 0),
            target_pid: self.target,
            user,
            node: &node,
            cgroup_parent: parent,
            cgroups: &record.cgroups,
            seccomp_filter: None,
            seccomp_profile: None,
            external_runtime: &self.external_runtime,
        };
        let capabilities = oci::capabilities(&input);
        let wants_profile = !self.external_runtime.is_empty();
        let filter = filters::of(&self.layout, &self.config.security.seccomp, &capabilities, wants_profile)?;
        let (path, profile): (Option<PathBuf>, Option<Value>) =
            filter.map_or((None, None), |filter| (Some(filter.path), filter.profile));
        input.seccomp_filter = path.as_deref();
        input.seccomp_profile = profile.as_ref();
        let bundle = oci::bundle(&input).map_err(|error| failed(&error))?;
        let rules = oci::cgroup_rules(&bundle.oci.linux.resources.devices);
        let limited = cgroup::limit(&self.cgroup, &record.cgroups, &self.config.resources, &rules)
            .map_err(|error| Failure::because("failed to create the container's cgroup", &error))?;
        write_bundle(&sandbox_dir.container(self.id.as_str()), &bundle)
            .map_err(|error| Failure::because("write bundle", &error))?;
        skipped.extend(leaf.skipped);
        skipped.extend(limited);
        Ok(skipped)
    }

    /// The profile that the container asks for must be loaded. Without a default one the container has none,
    /// which is logged.
    fn apparmor(&self, node: &mut oci::NodeFacts) -> Result<Vec<Skipped>, Failure> {
        let security = &self.config.security;
        match oci::apparmor_profile(security, node.apparmor) {
            oci::AppArmorProfile::Default => match self.apparmor.ensure_default() {
                Ok(()) => DEFAULT_PROFILE.clone_into(&mut node.apparmor_default),
                Err(error) => {
                    let why = chain(&error);
                    oci::may_lack_default_profile(security, &why)
                        .map_err(|error| Failure::refused(error.to_string()))?;
                    let what = "the default AppArmor profile, containers run without one".to_owned();
                    return Ok(vec![Skipped { what, why }]);
                }
            },
            oci::AppArmorProfile::Named(name) if !self.apparmor.is_loaded(name) => {
                return Err(Failure::refused(format!(
                    "failed to get container spec opts: failed to generate apparmor spec opts: apparmor profile not found {name}"
                )));
            }
            _ => {}
        }
        Ok(Vec::new())
    }

    /// Directories for the image's volumes, filled with the image's content there: for all volumes with a
    /// read-only root, else for those that the image has no content for. The others are visible in place.
    fn image_volumes(
        &self,
        image: &Image,
        sandbox: &SandboxConfig,
    ) -> Result<Vec<(String, PathBuf)>, Failure> {
        let failed = |destination: &str| {
            let what = format!("failed to fill the image's volume {destination:?}");
            move |error: &dyn std::error::Error| Failure::because(&what, error)
        };
        let mut wanted = Vec::new();
        for destination in &image.defaults.volumes {
            let is_writable = !self.config.security.readonly_rootfs;
            let has = || image.has_path(destination);
            if !is_writable || !has().map_err(|error| failed(destination)(&error))? {
                wanted.push(destination);
            }
        }
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let root = self.layout.writable_layer(&self.id).join("volumes");
        files::make_new_dir(&root, 0o711)?;
        let first_id = sandbox.user_namespace.map_or(0, |users| users.host);
        let make = |(number, destination): (usize, &String)| -> Result<(String, PathBuf), Failure> {
            let path = root.join(number.to_string());
            files::make_new_dir(&path, 0o755)?;
            chown(&path, Some(first_id), Some(first_id)).map_err(|error| failed(destination)(&error))?;
            let copied = image.copy_directory(destination, &path, first_id);
            copied.map_err(|error| failed(destination)(&error))?;
            Ok((destination.clone(), path))
        };
        wanted.into_iter().enumerate().map(make).collect()
    }
}

/// `SIGTERM`, `TERM`, `15`, `SIGRTMIN+3`: of the pod, else of the image, else SIGTERM.
fn stop_signal(pod: &str, image: &str) -> i32 {
    const SIGTERM: i32 = 15;
    let text = if pod.is_empty() { image } else { pod };
    signal_number(text).unwrap_or(SIGTERM)
}

/// Signal numbers are the same on all architectures that are supported for containers.
fn signal_number(text: &str) -> Option<i32> {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
        "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
        "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    const FIRST_REALTIME: i32 = 34;
    const LAST_REALTIME: i32 = 64;
    if let Ok(number) = text.parse::<i32>() {
        return (1..=LAST_REALTIME).contains(&number).then_some(number);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let realtime = |base: i32, rest: &str| -> Option<i32> {
        let number = if rest.is_empty() { base } else { base.checked_add(rest.parse().ok()?)? };
        (FIRST_REALTIME..=LAST_REALTIME).contains(&number).then_some(number)
    };
    if let Some(rest) = name.strip_prefix("RTMIN") {
        return realtime(FIRST_REALTIME, rest);
    }
    if let Some(rest) = name.strip_prefix("RTMAX") {
        return realtime(LAST_REALTIME, rest);
    }
    let position = match name {
        "POLL" => NAMES.iter().position(|known| *known == "IO"),
        "IOT" => NAMES.iter().position(|known| *known == "ABRT"),
        "CLD" => NAMES.iter().position(|known| *known == "CHLD"),
        _ => NAMES.iter().position(|known| *known == name),
    };
    i32::try_from(position? + 1).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stop_signal_is_the_pods_then_the_images_then_sigterm() {
        for (pod, image, number) in [
            ("", "", 15),
            ("SIGUSR1", "SIGQUIT", 10),
            ("", "SIGQUIT", 3),
            ("", "3", 3),
            ("", "quit", 3),
            ("SIGRTMIN+3", "", 37),
            ("SIGRTMAX-1", "", 63),
            ("", "SIGRTMAX+1", 15),
            ("", "0", 15),
            ("", "SIGNONSENSE", 15),
        ] {
            assert_eq!(stop_signal(pod, image), number, "{pod:?} {image:?}");
        }
    }
}
