//! Directories of unknown pods: left behind by a crash, or by the loss of the store.
//!
//! Owns the lock by which a directory that a pod uses, or begins to use meanwhile, is not removed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::Path;

use tokio::sync::Notify;

use super::{VolumeError, Volumes, ephemeral, pod_dir, tear_down_dir};
use crate::model::objects::EPHEMERAL_DIR;
use crate::model::ordered::Ordered as _;
use crate::model::types::PodUid;
use crate::platform::logging::chain;
use crate::platform::rt;

/// The directories in use, and the one being removed.
#[derive(Default)]
pub(super) struct Guard {
    /// A complete scan has found nothing that prevents a removal.
    swept: Cell<bool>,
    /// The problems that the last scan reported.
    reported: RefCell<BTreeSet<String>>,
    /// The last look has found no data of ephemeral volumes, and none was made since.
    no_ephemeral: Cell<bool>,
    /// Such data is being removed.
    is_sweeping: Cell<bool>,
    used: RefCell<BTreeSet<PodUid>>,
    removing: RefCell<Option<PodUid>>,
    removed: Notify,
}

impl Guard {
    /// Marks the pod's directory as used. Waits while an orphaned one of that uid is being removed.
    pub(super) async fn claim(&self, uid: &PodUid) {
        self.used.borrow_mut().insert(uid.clone());
        while self.removing.borrow().as_ref() == Some(uid) {
            self.removed.notified().await;
        }
    }

    /// The directory has been removed.
    pub(super) fn release(&self, uid: &PodUid) {
        self.used.borrow_mut().remove(uid);
    }

    /// The directory of a claim is there.
    pub(super) fn note_claim(&self, directory: &Path) {
        if directory.parent().is_some_and(|parent| parent.ends_with(EPHEMERAL_DIR)) {
            self.no_ephemeral.set(false);
        }
    }

    fn begin_removal(&self, uid: &PodUid) -> Option<Removing<'_>> {
        if self.used.borrow().contains(uid) {
            return None;
        }
        *self.removing.borrow_mut() = Some(uid.clone());
        Some(Removing(self))
    }
}

/// Marks the end of the removal on drop, also when the future is cancelled: the blocking job continues then,
/// but that happens only when the whole process ends.
struct Removing<'a>(&'a Guard);

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        *self.0.removing.borrow_mut() = None;
        self.0.removed.notify_waiters();
    }
}

/// The removal of data of ephemeral volumes, which may be given up in between.
struct Sweeping<'a>(&'a Cell<bool>);

impl Drop for Sweeping<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Volumes {
    /// Whether directories of unknown pods may exist: at the start, and while something prevents a removal.
    #[must_use]
    pub(crate) fn may_have_orphans(&self) -> bool {
        !self.guard.swept.get()
    }

    /// Removes the directories of pods that are not `known`, with the protections of [`Volumes::tear_down`].
    /// Returns how many were removed, and the problems that the last call did not report. Call it only after
    /// every source has answered, with every pod that is wanted, being taken down, or present in the runtime.
    pub(crate) async fn clean_orphans(&self, known: &BTreeSet<PodUid>) -> (usize, Vec<VolumeError>) {
        let mut errors = Vec::new();
        let mut removed = 0;
        let pods_dir = self.config.pods_dir.clone();
        let found = rt::blocking("list pod directories", move || list(&pods_dir)).await;
        let found = found.unwrap_or_else(|error| {
            errors.push(error);
            Vec::new()
        });
        for uid in found.into_iter().filter(|uid| !known.contains(uid)) {
            let Some(_removing) = self.guard.begin_removal(&uid) else { continue };
            let directory = pod_dir(&self.config, &uid);
            let unmounted = self.unmount_attached(&directory).await;
            let remove = move || unmounted.and_then(|()| tear_down_dir(&directory));
            match rt::blocking("remove orphaned pod directory", remove).await {
                Ok(()) => removed += 1,
                Err(error) => errors.push(error),
            }
        }
        let shown = self.clean_ephemeral(&mut errors).await + self.clean_devices(&mut errors).await;
        self.guard.swept.set(errors.is_empty() && shown == 0);
        let told = self.guard.reported.replace(errors.iter().map(|error| chain(error)).into_set());
        errors.retain(|error| !told.contains(&chain(error)));
        (removed, errors)
    }
}

impl Volumes {
    /// Removes the data of ephemeral volumes whose claims are gone, after the end of a pod or of a claim. What cannot be
    /// removed is tried again, and reported, with directories of unknown pods.
    pub(crate) async fn clean_unclaimed(&self) {
        let guard = &self.guard;
        if guard.no_ephemeral.get() {
            return;
        }
        let mut errors = Vec::new();
        let shown = self.clean_ephemeral(&mut errors).await;
        if shown > 0 || !errors.is_empty() {
            guard.swept.set(false);
        }
    }

    /// Unmounts devices after the end of a pod, with the same care.
    pub(super) async fn release_devices(&self) {
        let mut errors = Vec::new();
        if self.clean_devices(&mut errors).await > 0 || !errors.is_empty() {
            self.guard.swept.set(false);
        }
    }

    /// Returns how much of the data without a claim is left because pods show it.
    async fn clean_ephemeral(&self, errors: &mut Vec<VolumeError>) -> usize {
        let Some((directory, _)) = self.objects.ephemeral_claims() else { return 0 };
        if self.guard.is_sweeping.replace(true) {
            // What the other leaves, or does not see, is looked for again.
            return 1;
        }
        let _sweeping = Sweeping(&self.guard.is_sweeping);
        // A claim whose directory is created meanwhile is noted again.
        self.guard.no_ephemeral.set(true);
        let place = directory.clone();
        let listed = rt::blocking("list ephemeral volumes", move || ephemeral::list(&place)).await;
        let found = listed.unwrap_or_else(|error| {
            errors.push(error);
            Vec::new()
        });
        let mut shown = 0;
        if !found.is_empty() {
            self.guard.no_ephemeral.set(false);
        }
        if let Some((_, claims)) = self.objects.ephemeral_claims().filter(|_| !found.is_empty()) {
            let remove = move || ephemeral::remove(&directory, &found, &claims);
            let (left, more) = rt::blocking("remove ephemeral volumes", remove).await;
            errors.extend(more);
            shown = left;
        }
        shown
    }
}

fn list(pods_dir: &Path) -> Result<Vec<PodUid>, VolumeError> {
    let failed = |source| VolumeError::TearDown {
        action: "list pod directories in",
        path: pods_dir.to_owned(),
        source,
    };
    let mut uids = Vec::new();
    for entry in std::fs::read_dir(pods_dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let uid = PodUid::from(entry.file_name().to_string_lossy().as_ref());
        // Other names are not pod uids: `lost+found` belongs to the file system.
        if uid.is_safe() && entry.file_type().map_err(failed)?.is_dir() {
            uids.push(uid);
        }
    }
    Ok(uids)
}
