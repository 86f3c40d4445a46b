//! Sizes of claims: each directory is a project with a limit, where its file system has project quotas.
//!
//! Owns the ids of the agent's projects. A directory's id is read back from it: nothing else remembers it.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tokio::sync::Mutex;

use super::{Volumes, claim};
use crate::model::api::pod::Pod;
use crate::model::objects::{ClaimedSource, ClaimedVolume, ObjectKey, ObjectKind};
use crate::model::provenance::realm;
use crate::model::types::PodUid;
use crate::platform::rt;
use crate::platform::sys::dir::{Handle, Mounts};
use crate::platform::sys::project_quota::{
    Project, UNIT, is_enforced, project, set_limit, set_project, usage,
};
use crate::pod::events::{EventRecorder, EventType};
use crate::pod::volume::rules::claim_of;

/// Upstream's ids begin with 1048576, those of people and of other programs are small.
const FIRST: u32 = 2_000_000_000;
const COUNT: u32 = 65_536;
/// Where ids are written down that are in use, or are to be used.
const LISTS: [&str; 2] = ["/etc/projects", "/etc/projid"];
/// Files per slice; after that other jobs get the thread.
const SLICE: usize = 4096;

const NO_QUOTAS: &str = "the file system has no project quotas";
const FOREIGN: &str = "the directory is in a project that is not the agent's";
const LATER: &str = "it is set when a pod starts and no other uses the claim";

fn is_own(id: u32) -> bool {
    (FIRST..FIRST + COUNT).contains(&id)
}

/// The numbers in lines such as `id:directory` and `name:id`.
fn listed(lists: &str) -> Vec<u32> {
    let parts = lists.lines().flat_map(|line| line.split(':').take(2));
    parts.filter_map(|part| part.trim().parse().ok()).collect()
}

/// What has become of a directory's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limited {
    /// There is none, for this reason.
    No(&'static str),
    /// It has the limit.
    Yes,
    /// It has the limit, and had a smaller one.
    Grown,
}

enum Step {
    Done(Limited),
    Walk(Marking),
}

/// Puts everything in a directory into its project.
struct Marking {
    root: Handle,
    id: u32,
    bytes: u64,
    /// Directories whose entries are not in it, relative to the root, which is the empty path.
    pending: Vec<PathBuf>,
}

/// `is_unused`: no pod uses the directory, so that its files can get their project.
fn begin(directory: &Path, bytes: u64, is_unused: bool) -> io::Result<Step> {
    let place = File::open(directory)?;
    if !is_enforced(&place) {
        return Ok(Step::Done(Limited::No(NO_QUOTAS)));
    }
    let found = project(&place)?;
    if found.id != 0 && !is_own(found.id) {
        return Ok(Step::Done(Limited::No(FOREIGN)));
    }
    if found.id != 0 && found.inherits {
        return limit(&place, found.id, bytes).map(Step::Done);
    }
    if !is_unused {
        return Ok(Step::Done(Limited::No(LATER)));
    }
    let id = if found.id == 0 { free_id(&place)? } else { found.id };
    // The id is in use from now on. While the project is not inherited, the rest is not done.
    set_project(&place, Project { id, inherits: false })?;
    Ok(Step::Walk(Marking { root: Handle::open(directory)?, id, bytes, pending: vec![PathBuf::new()] }))
}

/// An id that is not written down and has no files.
fn free_id(place: &File) -> io::Result<u32> {
    let listed = listed(&LISTS.map(|path| fs::read_to_string(path).unwrap_or_default()).join("\n"));
    // Far from that of another directory, also if another agent picks one now.
    let start = place.metadata()?.ino();
    for step in 0..COUNT {
        let id =
            FIRST + u32::try_from(start.wrapping_add(step.into()) % u64::from(COUNT)).unwrap_or_default();
        if !listed.contains(&id) && usage(place, id)?.inodes == 0 {
            return Ok(id);
        }
    }
    Err(io::Error::other("all ids of projects are in use"))
}

/// Writes only what differs.
fn limit(place: &File, id: u32, bytes: u64) -> io::Result<Limited> {
    let before = usage(place, id)?.limit;
    if before == bytes.next_multiple_of(UNIT) {
        return Ok(Limited::Yes);
    }
    set_limit(place, id, bytes)?;
    Ok(if before > 0 && before < bytes { Limited::Grown } else { Limited::Yes })
}

impl Marking {
    /// Handles about `most` files, at least one directory. Links, devices and other mounts are left as they are.
    fn slice(mut self, most: usize) -> io::Result<Step> {
        let (id, mut seen) = (self.id, 0);
        while seen < most {
            let Some(path) = self.pending.pop() else {
                let place = self.root.reopen()?;
                let done = limit(&place, id, self.bytes)?;
                set_project(&place, Project { id, inherits: true })?;
                return Ok(Step::Done(done));
            };
            let is_root = path.as_os_str().is_empty();
            let dir = if is_root { self.root.duplicate()? } else { self.root.below(&path, Mounts::Stay)? };
            for name in dir.names()? {
                let name = name?;
                seen += 1;
                let Ok(node) = dir.below(Path::new(&name), Mounts::Stay) else { continue };
                let kind = node.metadata()?.file_type();
                if !kind.is_dir() && !kind.is_file() {
                    continue;
                }
                let path = path.join(name);
                let named = |error| io::Error::other(format!("{}: {error}", path.display()));
                set_project(&node.reopen()?, Project { id, inherits: kind.is_dir() }).map_err(named)?;
                if kind.is_dir() {
                    self.pending.push(path);
                }
            }
        }
        Ok(Step::Walk(self))
    }
}

/// Makes sure of a directory's limit.
async fn enforce(directory: &Path, bytes: u64, is_unused: bool) -> io::Result<Limited> {
    let owned = directory.to_owned();
    let mut step = rt::blocking("set size of claim", move || begin(&owned, bytes, is_unused)).await?;
    loop {
        step = match step {
            Step::Done(done) => return Ok(done),
            Step::Walk(walk) => rt::blocking("set size of claim", move || walk.slice(SLICE)).await?,
        }
    }
}

/// The copy of a claim's data takes part in the claim's project.
pub(crate) fn share(directory: &Path, copy: &Path) -> io::Result<()> {
    let place = File::open(directory)?;
    if !is_enforced(&place) {
        return Ok(());
    }
    let Project { id, .. } = project(&place)?;
    if is_own(id) {
        let (root, bytes) = (Handle::open(copy)?, usage(&place, id)?.limit);
        Marking { root, id, bytes, pending: vec![PathBuf::new()] }.slice(usize::MAX)?;
    }
    Ok(())
}

/// The limit of a claim's directory, for people.
pub(crate) fn shown(directory: &Path) -> String {
    let why = match File::open(directory).map(|place| (is_enforced(&place), project(&place), place)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => LATER,
        Err(_) => "the directory cannot be read",
        Ok((false, ..)) => NO_QUOTAS,
        Ok((true, Ok(Project { id, inherits: true }), place)) if is_own(id) => {
            let found = usage(&place, id).unwrap_or_default();
            return format!("{} bytes, {} in use (project {id})", found.limit, found.bytes);
        }
        Ok((true, Ok(Project { id, .. }), _)) if id != 0 && !is_own(id) => FOREIGN,
        Ok(_) => LATER,
    };
    format!("<none>: {why}")
}

/// What is known of limits in this run.
#[derive(Default)]
pub(super) struct Limits {
    events: OnceCell<EventRecorder>,
    /// One directory at a time gets its project: no two get the same id.
    marking: Mutex<()>,
    /// That there are none has been logged.
    is_logged: Cell<bool>,
    /// The objects for which those of a pod were set last.
    checked: RefCell<BTreeMap<PodUid, u64>>,
}

impl Limits {
    /// The pod's volumes have been removed.
    pub(super) fn forget(&self, uid: &PodUid) {
        self.checked.borrow_mut().remove(uid);
    }
}

impl Volumes {
    /// From now on the growth of claims is reported.
    pub(in crate::pod) fn set_events(&self, events: EventRecorder) {
        let _ = self.limits.events.set(events);
    }

    /// Sets the limit of a claim's directory. The claim can be used without one. `pod_dir` is given when the pod does
    /// not use the volume yet.
    pub(super) async fn limit_claim(
        &self,
        pod: &Pod,
        name: String,
        volume: &ClaimedVolume,
        pod_dir: Option<&Path>,
    ) {
        let ClaimedSource::Directory { path, bytes, uid } = &volume.source else { return };
        let directory = Path::new(path);
        let mut done = enforce(directory, *bytes, false).await;
        if let (Ok(Limited::No(LATER)), Some(pod_dir)) = (&done, pod_dir)
            && claim::is_unused(pod_dir, volume, directory).await
        {
            let _one = self.limits.marking.lock().await;
            done = enforce(directory, *bytes, true).await;
        }
        let (event, reason, message) = match done {
            Ok(Limited::Yes | Limited::No(LATER)) => return,
            Ok(Limited::No(why)) => {
                if !self.limits.is_logged.replace(true) {
                    log::info!(directory = path, why; "Sizes of claims are not enforced");
                }
                return;
            }
            Ok(Limited::Grown) => {
                let done = format!("MountVolume.NodeExpandVolume succeeded for volume {:?}", volume.name);
                (EventType::Normal, "FileSystemResizeSuccessful", done)
            }
            Err(error) => {
                let volume = &volume.name;
                let why = format!(
                    "NodeExpandVolume.NodeExpandVolume failed for volume {volume:?} : limit {path}: {error}"
                );
                (EventType::Warning, "VolumeResizeFailed", why)
            }
        };
        let Some(events) = self.limits.events.get() else { return };
        let message = format!("{message} {}", events.node_name());
        events.event(&pod.pod_ref(), None, event, reason, &message);
        let (kind, namespace) = (ObjectKind::PersistentVolumeClaim, pod.metadata.namespace.clone());
        events.object_event(&ObjectKey { kind, namespace, name }, uid, event, reason, &message);
    }

    /// Sets the limits of the claims that a pod uses, once objects have changed.
    pub(super) async fn refresh_limits(&self, pod: &Pod) {
        let (uid, generation) = (&pod.metadata.uid, self.objects.of(realm(pod)).generation());
        let claims =
            pod.spec.volumes.iter().filter_map(|volume| Some((&volume.name, claim_of(pod, volume)?.0)));
        let claims: Vec<_> = claims.collect();
        if claims.is_empty()
            || self.limits.checked.borrow_mut().insert(uid.clone(), generation) == Some(generation)
        {
            return;
        }
        for (name, claim) in claims {
            if let Ok(found) = self.claimed_volume(pod, name, &claim) {
                self.limit_claim(pod, claim, &found, None).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_are_written_down_are_found() {
        let lists = "# by hand\n7:/srv/films\n2000000001 : /srv/a:b\n\nfilms:7\nmusic:2000000002\n:\n";
        assert_eq!(listed(lists), [7, 2_000_000_001, 7, 2_000_000_002]);
    }

    #[test]
    fn only_the_agents_own_ids_are_taken_as_such() {
        assert!([0, 7, 1_048_576, FIRST - 1, FIRST + COUNT].into_iter().all(|id| !is_own(id)));
        assert!(is_own(FIRST) && is_own(FIRST + COUNT - 1));
    }
}
