//! Copies a directory of an image: the initial content of a volume that the image declares.
//!
//! Owns what a copy keeps: content, owner, mode and time of directories and files, and links as they are.
//! Extended attributes, pipes, devices and sockets are left out.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use super::merged::{Merged, MergedNode, lookup, resolve, roots};
use super::{Image, ImageError, io_error};
use crate::platform::sys::dir::Handle;

impl Image {
    pub(crate) fn has_path(&self, path: &str) -> Result<bool, ImageError> {
        let found = resolve(roots(self)?, Path::new(path));
        Ok(found.map_err(io_error("look up in the image", Path::new(path)))?.is_some())
    }

    /// Copies what the image has at `path` into `target`, an existing empty directory that takes on the owner
    /// and mode of the image's. Owners are shifted by `first_id`, for pods with user namespaces. Nothing
    /// happens when the image has no such directory.
    ///
    /// # Errors
    /// When something cannot be read or written; `target` may be half full then.
    pub(crate) fn copy_directory(&self, path: &str, target: &Path, first_id: u32) -> Result<(), ImageError> {
        let found = resolve(roots(self)?, Path::new(path));
        match found.map_err(io_error("look up in the image", Path::new(path)))? {
            Some(MergedNode::Directory(from)) => {
                copy_tree(&from, target, first_id).map_err(io_error("copy from the image to", target))
            }
            _ => Ok(()),
        }
    }
}

/// Holds open no more than the directories of one path, however wide the tree is.
fn copy_tree(from: &Merged, target: &Path, first_id: u32) -> io::Result<()> {
    let mut waiting = vec![PathBuf::new()];
    while let Some(relative) = waiting.pop() {
        let below = descend(from, &relative)?;
        let here = below.as_ref().unwrap_or(from);
        let to = target.join(&relative);
        let mut names = BTreeSet::new();
        for layer in here {
            for name in layer.names()? {
                names.insert(name?);
            }
        }
        for name in names {
            let new = to.join(&name);
            match lookup(here, &name)? {
                Some(MergedNode::Directory(_)) => {
                    DirBuilder::new().mode(0o700).create(&new)?;
                    waiting.push(relative.join(&name));
                }
                Some(MergedNode::Link(link, node)) => {
                    symlink(link, &new)?;
                    let metadata = node.metadata()?;
                    lchown(&new, Some(metadata.uid() + first_id), Some(metadata.gid() + first_id))?;
                }
                Some(MergedNode::Other(node)) => copy_file(&node, &new, first_id)?,
                None => {}
            }
        }
        if let Some(top) = here.first() {
            adopt(&top.metadata()?, &to, first_id)?;
        }
    }
    Ok(())
}

/// The directory at `relative`, which existed just before; `None` for `from` itself.
fn descend(from: &Merged, relative: &Path) -> io::Result<Option<Merged>> {
    let mut here: Option<Merged> = None;
    for name in relative.components() {
        match lookup(here.as_ref().unwrap_or(from), name.as_os_str())? {
            Some(MergedNode::Directory(directory)) => here = Some(directory),
            _ => return Err(io::ErrorKind::NotFound.into()),
        }
    }
    Ok(here)
}

fn copy_file(node: &Handle, new: &Path, first_id: u32) -> io::Result<()> {
    let metadata = node.metadata()?;
    if !metadata.is_file() {
        return Ok(());
    }
    let mut from = File::open(format!("/proc/self/fd/{}", node.as_fd().as_raw_fd()))?;
    let mut to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    io::copy(&mut from, &mut to)?;
    to.set_modified(metadata.modified()?)?;
    adopt(&metadata, new, first_id)
}

/// The owner first: changing it clears setuid.
fn adopt(metadata: &fs::Metadata, path: &Path, first_id: u32) -> io::Result<()> {
    chown(path, Some(metadata.uid() + first_id), Some(metadata.gid() + first_id))?;
    fs::set_permissions(path, fs::Permissions::from_mode(metadata.mode() & 0o7777))
}

#[cfg(test)]
mod tests {
    use super::super::testing::directory;
    use super::*;

    #[test]
    fn a_directory_is_copied_as_a_container_would_see_it() {
        let root = directory("copy");
        let [top, bottom, target] = ["top", "bottom", "target"].map(|name| root.join(name));
        for path in [top.join("data/deep"), bottom.join("data/deep"), target.clone()] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(bottom.join("data/both"), "old").unwrap();
        fs::write(top.join("data/both"), "new").unwrap();
        fs::write(bottom.join("data/deep/below"), "below").unwrap();
        fs::write(top.join("data/deep/above"), "above").unwrap();
        fs::write(bottom.join("data/tool"), "#!").unwrap();
        fs::set_permissions(bottom.join("data/tool"), fs::Permissions::from_mode(0o4750)).unwrap();
        fs::set_permissions(top.join("data"), fs::Permissions::from_mode(0o1777)).unwrap();
        symlink("/etc/shadow", bottom.join("data/link")).unwrap();
        symlink("data", top.join("other")).unwrap();
        fs::write(bottom.join("secret"), "not in it").unwrap();
        let image = Image { layers: vec![top, bottom.clone()], ..Image::default() };

        image.copy_directory("/other", &target, 0).unwrap();
        let read = |name: &str| fs::read_to_string(target.join(name)).unwrap();
        assert_eq!(
            (read("both"), read("deep/below"), read("deep/above")),
            ("new".into(), "below".into(), "above".into())
        );
        assert_eq!(fs::read_link(target.join("link")).unwrap(), Path::new("/etc/shadow"));
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&target), mode(&target.join("tool"))), (0o1777, 0o4750));
        let modified = |path: PathBuf| fs::metadata(path).unwrap().modified().unwrap();
        assert_eq!(modified(target.join("tool")), modified(bottom.join("data/tool")));
        assert_eq!(fs::read_dir(&target).unwrap().count(), 4);

        let has = |path: &str| image.has_path(path).unwrap();
        assert_eq!(["/data", "/other/deep", "/secret", "/nowhere"].map(has), [true, true, true, false]);
        let empty = root.join("empty");
        fs::create_dir(&empty).unwrap();
        for path in ["/nowhere", "/secret"] {
            image.copy_directory(path, &empty, 0).unwrap();
            assert_eq!(fs::read_dir(&empty).unwrap().count(), 0, "{path}");
        }
        fs::remove_dir_all(root).unwrap();
    }
}
