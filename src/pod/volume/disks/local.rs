//! Block devices of `local` volumes: each is mounted once on the node, and bound into each pod that has it.
//!
//! Owns `plugins/kubernetes.io/local-volume/mounts` of the root directory. Which pods have a device is what is mounted.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tokio::sync::OwnedMutexGuard;

use super::{BlockHost, NetworkDisks, PATIENCE, VolumeError, Volumes, make_dir, remote};
use crate::platform::rt;
use crate::platform::sys::mount;

const MOUNTS: &str = "local-volume/mounts";

/// While it is there, a device is not unmounted.
pub(in crate::pod::volume) type Held = Option<OwnedMutexGuard<()>>;

impl Volumes {
    /// What is to be bound at `target`: a directory, or the place where its device is mounted. A device stays mounted
    /// until it is bound.
    pub(in crate::pod::volume) async fn local_source(
        &self,
        name: &str,
        target: &Path,
        (path, fs_type, options): (&Path, &str, &[String]),
        read_only: bool,
    ) -> Result<(PathBuf, Held), VolumeError> {
        let (source, at) = (path.to_owned(), path.to_owned());
        let is_device = move || at.metadata().is_ok_and(|found| found.file_type().is_block_device());
        if !rt::blocking("stat local volume", is_device).await {
            return Ok((source, None));
        }
        let place = self.disks.plugins.join(MOUNTS).join(target.file_name().unwrap_or_default());
        let (held, disks) = (Rc::new(Cell::new(None)), Rc::clone(&self.disks));
        let (fs_type, options) = (fs_type.to_owned(), options.to_owned());
        let (slot, key, at) = (Rc::clone(&held), target.to_owned(), place.clone());
        let mounted = self.disks.attempt(target.to_owned(), async move {
            let lock = disks.lock(&at).lock_owned().await;
            let job =
                move |host: &BlockHost| mount_device(host, &source, &at, (&fs_type, &options), read_only);
            disks.run(&key, job).await?;
            slot.set(Some(lock));
            Ok(())
        });
        let failed = |message| VolumeError::Remote { volume: name.to_owned(), message };
        mounted.await.map_err(failed)?;
        Ok((place, held.take()))
    }

    /// Unmounts devices that no pod has. Returns how many are not known yet.
    pub(in crate::pod::volume) async fn clean_devices(&self, errors: &mut Vec<VolumeError>) -> usize {
        let NetworkDisks { plugins, pods, jobs, .. } = &*self.disks;
        let (directory, mut left) = (plugins.join(MOUNTS), 0);
        let list = move || -> Vec<PathBuf> {
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect()
        };
        for place in rt::blocking("list mounted devices", list).await {
            let Ok(held) = self.disks.lock(&place).try_lock_owned() else {
                left += 1;
                continue;
            };
            let (pods, at) = (pods.clone(), place.clone());
            let job = move || {
                let _held = held;
                unmount_unused(&pods, &at)
            };
            match remote::run(jobs, &place, PATIENCE, job).await {
                Ok(Ok(())) => {}
                Ok(Err(source)) => {
                    errors.push(VolumeError::TearDown { action: "unmount", path: place, source });
                }
                Err(_) => left += 1,
            }
        }
        left
    }
}

fn mount_device(
    host: &BlockHost,
    device: &Path,
    place: &Path,
    (fs_type, options): (&str, &[String]),
    read_only: bool,
) -> Result<(), String> {
    let failed = |error: io::Error| format!("create {}: {error}", place.display());
    make_dir(place, 0o750).map_err(failed)?;
    if mount::is_mount_point(place).map_err(failed)? {
        return Ok(());
    }
    let found = if fs_type.is_empty() { host.format_of(&device.to_string_lossy())? } else { None };
    let known = found.as_deref().filter(|kind| !kind.contains(' ')).unwrap_or(fs_type);
    host.format_and_mount(device, place, (known, options), read_only)
}

fn unmount_unused(pods: &Path, place: &Path) -> io::Result<()> {
    let (pods, place, mounts) = (pods.canonicalize()?, place.canonicalize()?, mount::mounted_devices()?);
    if let Some((_, device)) = mounts.iter().rfind(|(point, _)| *point == place) {
        if mounts.iter().any(|(point, of)| of == device && point.starts_with(&pods)) {
            return Ok(());
        }
        mount::unmount_written(&place)?;
    }
    match std::fs::remove_dir(&place) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
