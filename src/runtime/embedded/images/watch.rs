//! The directory of image archives: imports those that exist at the start and those that are added later.
//!
//! Owns when a file is examined. Removing a file removes no image. A broken file waits for a complete one in
//! its place; after a failure of the machine (no room, an I/O error) the same file is tried again.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::index::Archive;
use super::{Image, ImageError, ImageStore, LayerError, io_error};
use crate::model::back_off::Retry;
use crate::model::ordered::Sortable as _;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::sys::inotify::{Change, InotifyError, InotifyEvent, Interest, Watcher};

/// A file's identity when it was examined: size, time in nanoseconds, inode. A change of any of them makes it
/// a new file.
type Stamp = (u64, i64, u64);

/// When to try an archive again after a failure of the machine: the first delay, and, doubled each time, the
/// longest.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LONGEST_RETRY: Duration = Duration::from_secs(300);

/// Archives that could not be imported, with their identity: each is reported once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Broken(BTreeMap<PathBuf, Failed>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Failed {
    stamp: Stamp,
    /// The archive was not at fault.
    again: bool,
    message: String,
}

impl Broken {
    /// Whether a retry may help some of them although they did not change.
    #[must_use]
    pub(in crate::runtime) fn may_retry(&self) -> bool {
        self.0.values().any(|failed| failed.again)
    }

    /// The archives, each with the reason and what to do.
    pub(crate) fn problems(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.0.iter().map(|(path, failed)| (path.as_path(), failed.message.as_str()))
    }
}

/// What one scan of the directory found.
#[derive(Debug, Default)]
pub(in crate::runtime) struct Imported {
    /// Images of archives that are new.
    pub images: Vec<Image>,
    /// Archives that could not be imported, since they changed last.
    pub failed: Vec<(PathBuf, ImageError)>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum WatchError {
    #[error("create the images directory {path:?}")]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("watch the images directory")]
    Watch(#[source] InotifyError),
}

impl ImageStore {
    /// Imports archives of `directory` that are new or changed. Files that begin with a dot or end in `.tmp`
    /// or `.part` are still being written. Blocks until all are done.
    ///
    /// # Errors
    /// When the directory or the store cannot be read; a broken archive is no error.
    pub(in crate::runtime) fn import_new(
        &self,
        directory: &Path,
        broken: &mut Broken,
    ) -> Result<Imported, ImageError> {
        let mut imported = Imported::default();
        let mut paths: Vec<PathBuf> = match std::fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(imported),
            other => {
                other.map_err(io_error("list", directory))?.flatten().map(|entry| entry.path()).collect()
            }
        };
        paths.retain(|path| !is_unfinished(path));
        paths.order_by(Ord::cmp);
        let index = self.load()?;
        // Images that were removed stay removed; damaged ones are read again.
        let is_damaged =
            |id: &String| index.images.iter().any(|record| record.id == *id && self.image(record).is_err());
        broken.0.retain(|path, _| paths.contains(path));
        for path in paths {
            let Some(stamp) = stamp(&path) else { continue };
            let name = path.display().to_string();
            let is_known = index.archives.iter().any(|archive| {
                archive.path == name
                    && (archive.size, archive.mtime, archive.inode) == stamp
                    && !archive.images.iter().any(is_damaged)
            });
            let before =
                broken.0.get(&path).filter(|failed| failed.stamp == stamp).map(|failed| failed.again);
            if is_known || before == Some(false) {
                continue;
            }
            let result = self.import(&path).and_then(|images| {
                let (size, mtime, inode) = stamp;
                let ids = images.iter().map(|image| image.id.clone()).collect();
                self.change(|index| {
                    index.archives.retain(|archive| archive.path != name);
                    index.archives.push(Archive { path: name, size, mtime, inode, images: ids });
                    Ok(())
                })?;
                Ok(images)
            });
            match result {
                Ok(images) => {
                    broken.0.remove(&path);
                    imported.images.extend(images);
                }
                Err(error) => {
                    let cause = if let ImageError::Import { source, .. } = &error { source } else { &error };
                    let (again, why) = (is_machine_error(&error), chain(cause));
                    let message = if again {
                        format!("the image archive cannot be imported and is tried again: {why}")
                    } else {
                        format!("the image archive cannot be imported: {why}: replace it with a complete one")
                    };
                    broken.0.insert(path.clone(), Failed { stamp, again, message });
                    if before != Some(again) {
                        imported.failed.push((path, error));
                    }
                }
            }
        }
        Ok(imported)
    }
}

/// The kernel refused something, or there is no room: the same archive may work the next time.
fn is_machine_error(error: &ImageError) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        let is_of_kernel =
            error.downcast_ref::<io::Error>().is_some_and(|error| error.raw_os_error().is_some());
        let is_room = matches!(error.downcast_ref(), Some(LayerError::Space { .. }));
        let is_gone = matches!(error.downcast_ref(), Some(ImageError::LayerMissing(_)));
        if is_of_kernel || is_room || is_gone {
            return true;
        }
        next = error.source();
    }
    false
}

fn is_unfinished(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with('.') || name.ends_with(".tmp") || name.ends_with(".part")
}

fn stamp(path: &Path) -> Option<Stamp> {
    // An unpacked layout is as new as its index.
    let metadata = path.metadata().ok()?;
    if metadata.is_dir() && !path.join("oci-layout").is_file() {
        return None;
    }
    let metadata = if metadata.is_dir() { path.join("index.json").metadata().ok()? } else { metadata };
    let mtime = metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
    metadata.is_file().then(|| (metadata.len(), mtime, metadata.ino()))
}

/// Imports what is in `directory` and what is added later, forever. `scanned` gets the archives that could not be
/// imported after each scan of the directory, which is created if it is missing.
pub(crate) async fn watch_images(
    store: ImageStore,
    directory: PathBuf,
    mut scanned: impl FnMut(&Broken),
) -> Result<(), WatchError> {
    crate::platform::sys::dir::make_dir(&directory, 0o755)
        .map_err(|source| WatchError::Directory { path: directory.clone(), source })?;
    let watcher = Watcher::new().map_err(WatchError::Watch)?;
    watcher.watch(&directory, Interest::Contents).map_err(WatchError::Watch)?;
    let mut broken = Broken::default();
    let mut retry = Retry::new(FIRST_RETRY, LONGEST_RETRY);
    loop {
        let (store, place, before) = (store.clone(), directory.clone(), std::mem::take(&mut broken));
        let (result, after) = rt::blocking("import images", move || {
            let mut broken = before;
            (store.import_new(&place, &mut broken), broken)
        })
        .await;
        broken = after;
        log_result(&directory, result);
        scanned(&broken);
        if broken.may_retry() {
            // Whichever comes first; pending events are not lost.
            if let Ok(news) = tokio::time::timeout(retry.delay(), wait_for_archive(&watcher)).await {
                news?;
            }
        } else {
            retry.reset();
            wait_for_archive(&watcher).await?;
        }
    }
}

async fn wait_for_archive(watcher: &Watcher) -> Result<(), WatchError> {
    let mut events = Vec::new();
    while !events.iter().any(is_complete_file) {
        events.clear();
        watcher.read(&mut events).await.map_err(WatchError::Watch)?;
    }
    Ok(())
}

/// One line for each archive.
fn log_result(directory: &Path, result: Result<Imported, ImageError>) {
    let imported = match result {
        Ok(imported) => imported,
        Err(error) => {
            log::error!(path = directory.display().to_string(), err = chain(&error); "Failed to import \
                 image archives");
            return;
        }
    };
    for (path, error) in &imported.failed {
        let (path, err) = (path.display().to_string(), chain(error));
        if is_machine_error(error) {
            log::error!(path = path, err = err; "Failed to import image archive, retrying");
        } else {
            log::error!(
                path = path, err = err;
                "Failed to import image archive; replace it with a complete one to retry"
            );
        }
    }
    for image in &imported.images {
        let name = image.repo_tags.first().unwrap_or(&image.id);
        log::info!(image = name.as_str(), source = image.source.as_str(); "Imported image");
    }
}

/// A file that is complete, or may be; or one that is gone, which may have been a broken one.
fn is_complete_file(event: &InotifyEvent) -> bool {
    match event {
        InotifyEvent::Entry { change, .. } => {
            matches!(change, Change::Written | Change::MovedIn | Change::Gone)
        }
        InotifyEvent::Overflow => true,
        InotifyEvent::Directory { .. } => false,
    }
}
