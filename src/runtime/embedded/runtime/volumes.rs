//! Images mounted as volumes: a single layer is mounted as it is, several are merged first.
//!
//! Owns mounts below a container's directory. Everything here blocks.

use std::fs::DirBuilder;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::super::images::ImageStore;
use super::super::layout::ContainerDir;
use super::{Failure, files};
use crate::platform::sys::dir::{Handle, Mounts};
use crate::platform::sys::mount;
use crate::runtime::{ErrorKind, Mount};

/// Sets the source path of every mount that names an image.
pub(super) fn resolve_images(
    images: &ImageStore,
    dir: &ContainerDir,
    mounts: &mut [Mount],
) -> Result<(), Failure> {
    let wanted = mounts.iter_mut().filter(|mount| mount.image.is_some());
    for (number, wanted) in wanted.enumerate() {
        let Some(image) = &wanted.image else { continue };
        let failed = |error: &dyn std::error::Error| {
            Failure::because(&format!("failed to mount image {:?}", image.image), error)
        };
        let found = images.resolve(&image.image).map_err(|error| failed(&error))?.ok_or_else(|| {
            Failure::new(
                ErrorKind::NotFound,
                format!("failed to mount image {:?}: image not found", image.image),
            )
        })?;
        let root = match found.layers.as_slice() {
            [only] => only.clone(),
            layers => merged(dir, number, layers)?,
        };
        let path = if image.sub_path.is_empty() { root } else { below(dir, number, &root, &image.sub_path)? };
        wanted.host_path = path.display().to_string();
        wanted.readonly = true;
    }
    Ok(())
}

/// Creates missing directories for the pod's host path mounts, as containerd does.
pub(super) fn make_sources(mounts: &[Mount]) -> Result<(), Failure> {
    for mount in mounts.iter().filter(|mount| mount.host_path.starts_with('/')) {
        let path = Path::new(&mount.host_path);
        if matches!(path.symlink_metadata(), Err(error) if error.kind() == std::io::ErrorKind::NotFound) {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
            made.map_err(|error| {
                Failure::because(&format!("failed to create the host path {:?}", mount.host_path), &error)
            })?;
        }
    }
    Ok(())
}

/// Mounts all layers as one tree.
fn merged(dir: &ContainerDir, number: usize, layers: &[PathBuf]) -> Result<PathBuf, Failure> {
    let target = dir.0.join(format!("image-{number}"));
    files::make_new_dir(&target, 0o755)?;
    let lower: Vec<String> = layers.iter().map(|layer| layer.display().to_string()).collect();
    let options = [format!("ro,lowerdir={}", lower.join(":"))];
    mount::mount_remote("overlay", "overlay", &target, &options)
        .map_err(|error| Failure::because("failed to mount image", &error))?;
    Ok(target)
}

/// A directory of an image. Links in it could lead out of the image, so none is followed; the directory is
/// bound to a place that no container can change.
fn below(dir: &ContainerDir, number: usize, root: &Path, sub_path: &str) -> Result<PathBuf, Failure> {
    let failed = |error: std::io::Error| {
        Failure::because(&format!("failed to mount sub path {sub_path:?} of the image"), &error)
    };
    let found =
        Handle::open(root).and_then(|root| root.below(Path::new(sub_path), Mounts::Cross)).map_err(failed)?;
    let target = dir.0.join(format!("image-{number}-part"));
    if found.metadata().map_err(failed)?.is_dir() {
        files::make_new_dir(&target, 0o755)?;
    } else {
        std::fs::write(&target, "").map_err(failed)?;
    }
    let source = std::os::fd::AsFd::as_fd(&found);
    debug_assert!(source.as_raw_fd() >= 0, "open");
    mount::bind_descriptor(source, &target).map_err(failed)?;
    Ok(target)
}
