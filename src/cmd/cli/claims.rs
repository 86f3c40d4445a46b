//! `agent delete pvc --yes`, and claims whose data remains although no manifest defines them any more.
//!
//! Owns the conditions for deleting data permanently. Data is deleted by this process, not by the agent:
//! nothing that the agent does by itself can lose it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::args::{CliOptions, Command, UsageError};
use super::table::printable;
use super::{CliError, EXIT_FAILED, EXIT_OK, Environment, offline, print};
use crate::model::names;
use crate::model::objects::{ObjectKey, ObjectKind, VOLUMES_DIR, wire};
use crate::model::ordered::Sortable as _;
use crate::platform::logging::chain;
use crate::platform::sys::dir::remove_contents;
use crate::platform::sys::mount;
use crate::serve::server::AgentReport;
use crate::serve::server::report::{ObjectDetail, ObjectReport};

/// A directory that is being deleted: it is no valid name of a claim.
const DELETED_PREFIX: &str = ".deleted-";

/// Why the data of a claim is not deleted.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("snapshot {name:?}: {why}")]
    Snapshot { name: String, why: String },
    #[error("claim {name:?} in namespace {namespace:?}: {why}")]
    Name { name: String, namespace: String, why: String },
    #[error("claim {name:?} is still defined in {origin}: remove it there first")]
    Defined { name: String, origin: String },
    #[error("claim {name:?} is still used by pod {pod}: remove the pod and wait until it is deleted")]
    Used { name: String, pod: String },
    #[error("no data found for claim {name:?} in namespace {namespace:?}: {path:?} does not exist")]
    Missing { name: String, namespace: String, path: PathBuf },
    #[error("claim {name:?} is still mounted on {point:?}: remove its pod and wait until it is deleted")]
    Mounted { name: String, point: PathBuf },
    #[error("{point:?} is a mount point: unmount it first, mounted file systems are not deleted")]
    MountPoint { point: PathBuf },
    #[error("this permanently deletes {files} files, {bytes} bytes, in {path:?}: use --yes to confirm")]
    Unconfirmed { files: u64, bytes: u64, path: PathBuf },
    #[error("{action} {path:?}")]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let options = CliOptions::parse(Command::Delete, arguments).map_err(CliError::Usage)?;
    let names = claim_names(&options).map_err(CliError::Usage)?;
    let report = offline::report(&options, ObjectDetail::Hidden, environment)?;
    let root_dir = root_dir(&report).unwrap_or_else(|| options.root_dir.clone());
    let namespace = options.namespace.as_deref().unwrap_or("default");
    let mut code = EXIT_OK;
    for name in names {
        let claim = ObjectKey {
            kind: ObjectKind::PersistentVolumeClaim,
            namespace: namespace.to_owned(),
            name: name.clone(),
        };
        match delete(&claim, &report, &root_dir, options.yes) {
            Ok(path) => {
                let path = printable(&path.display().to_string());
                print(
                    environment,
                    &format!("persistentvolumeclaim {name:?} deleted, with its data in {path}\n"),
                )?;
            }
            Err(refusal) => {
                let _ = writeln!(environment.err, "error: {}", chain(&refusal));
                code = EXIT_FAILED;
            }
        }
    }
    Ok(code)
}

/// The names in `pvc a b` or `pvc/a`.
fn claim_names(options: &CliOptions) -> Result<Vec<String>, UsageError> {
    let mut words = options.words.iter();
    let first = words.next().ok_or(UsageError::NothingToDelete)?;
    let (word, name) =
        first.split_once('/').map_or((first.as_str(), None), |(word, name)| (word, Some(name)));
    let is_claims = |word: &str| matches!(word, "pvc" | "persistentvolumeclaim" | "persistentvolumeclaims");
    if !is_claims(word) {
        return Err(UsageError::NoData { given: word.to_owned() });
    }
    // Also `pvc/a pvc/b`.
    let names = words.map(|word| match word.split_once('/') {
        Some((kind, name)) if is_claims(kind) => name.to_owned(),
        _ => word.clone(),
    });
    let names: Vec<String> = name.map(str::to_owned).into_iter().chain(names).collect();
    if names.is_empty() { Err(UsageError::NothingToDelete) } else { Ok(names) }
}

/// The root directory, in which the store is, whatever the agent's flags.
pub(super) fn root_dir(report: &AgentReport) -> Option<PathBuf> {
    Path::new(&report.store.path).parent().filter(|path| path.is_absolute()).map(Path::to_owned)
}

fn delete(
    claim: &ObjectKey,
    report: &AgentReport,
    root_dir: &Path,
    is_confirmed: bool,
) -> Result<PathBuf, Refusal> {
    let name = || claim.name.clone();
    check_names(claim)?;
    if let Some(defined) = report.objects.iter().find(|object| is_claim(object, claim)) {
        return Err(Refusal::Defined { name: name(), origin: defined.origin.clone() });
    }
    check_unused(claim, report)?;
    let path = root_dir.join(VOLUMES_DIR).join(&claim.namespace).join(&claim.name);
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| Refusal::Io { action, path, source }
    };
    let deleted = path.with_file_name(format!("{DELETED_PREFIX}{}", claim.name));
    let left_over = deleted.symlink_metadata().is_ok();
    match path.symlink_metadata() {
        Ok(_) => {}
        // An earlier deletion was interrupted after the first step.
        Err(error) if error.kind() == io::ErrorKind::NotFound && left_over => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Refusal::Missing { name: name(), namespace: claim.namespace.clone(), path });
        }
        Err(error) => return Err(failed("read", &path)(error)),
    }
    check_mounts(claim, root_dir, &path)?;
    check_mounts(claim, root_dir, &deleted)?;
    if !is_confirmed {
        let mut size = Size::default();
        size.add(&path);
        size.add(&deleted);
        return Err(Refusal::Unconfirmed { files: size.files, bytes: size.bytes, path });
    }
    remove(&deleted).map_err(failed("delete", &deleted))?;
    // Atomically: a pod that starts now gets a new directory, not half of the old one.
    match fs::rename(&path, &deleted) {
        Ok(()) => remove(&deleted).map_err(failed("delete", &deleted))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("set aside", &path)(error)),
    }
    // It fails when other claims are in there.
    let _ = path.parent().map(fs::remove_dir);
    Ok(path)
}

/// Both become parts of a path.
pub(super) fn check_names(claim: &ObjectKey) -> Result<(), Refusal> {
    let mut complaints =
        names::dns_subdomain(&claim.name).into_iter().chain(names::dns_label(&claim.namespace));
    match complaints.next() {
        Some(why) => Err(Refusal::Name { name: claim.name.clone(), namespace: claim.namespace.clone(), why }),
        None => Ok(()),
    }
}

/// No pod uses the claim.
pub(super) fn check_unused(claim: &ObjectKey, report: &AgentReport) -> Result<(), Refusal> {
    let uses = |pod: &&crate::model::api::pod::Pod| {
        let mut claims = pod.spec.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
        pod.metadata.namespace == claim.namespace && claims.any(|used| used.claim_name == claim.name)
    };
    match report.pods.iter().find(uses) {
        Some(pod) => Err(Refusal::Used { name: claim.name.clone(), pod: pod.metadata.name.clone() }),
        None => Ok(()),
    }
}

/// A symlink is removed; its target stays. So does what is mounted there or below.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(_) if mount::is_mount_point(path)? => Err(io::ErrorKind::ResourceBusy.into()),
        Ok(metadata) if metadata.is_dir() => {
            remove_contents(path).map_err(|error| error.source).and_then(|()| fs::remove_dir(path))
        }
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

pub(super) fn check_mounts(claim: &ObjectKey, root_dir: &Path, path: &Path) -> Result<(), Refusal> {
    check_mounts_if(claim, root_dir, path, &|_| true)
}

/// Of the claim's mounts in pods, only those that are `its`.
pub(super) fn check_mounts_if(
    claim: &ObjectKey,
    root_dir: &Path,
    path: &Path,
    its: &dyn Fn(&Path) -> bool,
) -> Result<(), Refusal> {
    let failed = |source| Refusal::Io { action: "list the mounts below", path: path.to_owned(), source };
    let points = mount::mount_points().map_err(failed)?;
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let own = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => path.to_owned(),
    };
    if let Some(point) = points.iter().find(|point| point.starts_with(&own)) {
        return Err(Refusal::MountPoint { point: point.clone() });
    }
    let (pods_dir, volume) = (real(&root_dir.join("pods")), wire::volume_name(claim));
    let is_pods =
        |point: &&PathBuf| point.starts_with(&pods_dir) && point.ends_with(&volume) && its(point.as_path());
    match points.iter().find(is_pods) {
        Some(point) => Err(Refusal::Mounted { name: claim.name.clone(), point: point.clone() }),
        None => Ok(()),
    }
}

/// The size of the data to be deleted.
#[derive(Debug, Default)]
pub(super) struct Size {
    pub(super) files: u64,
    pub(super) bytes: u64,
}

impl Size {
    /// Unreadable entries are not counted.
    pub(super) fn add(&mut self, path: &Path) {
        let Ok(metadata) = path.symlink_metadata() else { return };
        if !metadata.is_dir() {
            self.files += 1;
            self.bytes += metadata.len();
            return;
        }
        let mut directories = vec![path.to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                match entry.metadata() {
                    Ok(metadata) if metadata.is_dir() => directories.push(entry.path()),
                    Ok(metadata) => {
                        self.files += 1;
                        self.bytes += metadata.len();
                    }
                    Err(_) => {}
                }
            }
        }
    }
}

fn is_claim(object: &ObjectReport, claim: &ObjectKey) -> bool {
    text(&object.object, "/kind") == claim.kind.as_str()
        && text(&object.object, "/metadata/namespace") == claim.namespace
        && text(&object.object, "/metadata/name") == claim.name
}

/// The claims that no manifest defines and whose data exists, as claims in phase `Released` (upstream's phase
/// of a volume). Empty when the directory cannot be read; only root can.
pub(super) fn released(report: &AgentReport) -> Vec<ObjectReport> {
    let Some(volumes_dir) = root_dir(report).map(|root_dir| root_dir.join(VOLUMES_DIR)) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for namespace in entries(&volumes_dir) {
        for name in entries(&volumes_dir.join(&namespace)) {
            let directory = volumes_dir.join(&namespace).join(&name);
            let claim =
                ObjectKey { kind: ObjectKind::PersistentVolumeClaim, namespace: namespace.clone(), name };
            if !report.objects.iter().any(|object| is_claim(object, &claim)) {
                found.push(ObjectReport {
                    origin: String::new(),
                    directory: directory.display().to_string(),
                    object: released_value(&claim),
                });
            }
        }
    }
    found
}

fn released_value(claim: &ObjectKey) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": claim.kind.as_str(),
        "metadata": {"name": claim.name, "namespace": claim.namespace},
        "spec": {"volumeName": wire::volume_name(claim)},
        "status": {"phase": "Released"},
    })
}

/// The sorted names of the subdirectories, except those that are being deleted.
pub(super) fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.order_by(Ord::cmp);
    names
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
