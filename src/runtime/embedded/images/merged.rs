//! One file of an image, as a container would see it, without mounting anything.
//!
//! Owns how layers hide each other: whiteouts, opaque directories, links across layers.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use super::unpack::OPAQUE;
use super::{Image, ImageError, ImageStore, compression, io_error};
use crate::platform::sys::dir::Handle;
use crate::platform::sys::layer::has_extended;

const MAX_LINKS: usize = 40;
/// Components of a path, including those of followed links.
const MAX_STEPS: usize = 4096;

/// A directory of the merged image: the layers' directories that make it up, topmost first.
pub(super) type Merged = Vec<Handle>;

pub(super) enum MergedNode {
    Directory(Merged),
    /// Where it leads, and the link itself.
    Link(PathBuf, Handle),
    Other(Handle),
}

impl ImageStore {
    /// The content of a regular file of the image, links resolved inside it. `None` when there is none.
    pub fn image_file(&self, image: &Image, path: &str, max: usize) -> Result<Option<Vec<u8>>, ImageError> {
        let place = || PathBuf::from(path);
        let found = resolve(roots(image)?, Path::new(path));
        let Some(MergedNode::Other(node)) = found.map_err(io_error("look up in the image", &place()))? else {
            return Ok(None);
        };
        let metadata = node.metadata().map_err(io_error("stat", &place()))?;
        if !metadata.is_file() {
            return Ok(None);
        }
        let mut file = File::open(format!("/proc/self/fd/{}", node.as_fd().as_raw_fd()))
            .map_err(io_error("open", &place()))?;
        compression::read_bounded(&mut file, max).map(Some).map_err(io_error("read", &place()))
    }
}

/// The root of the merged image.
pub(super) fn roots(image: &Image) -> Result<Merged, ImageError> {
    image.layers.iter().map(|layer| Handle::open(layer).map_err(io_error("open", layer))).collect()
}

/// What is at a path, links resolved inside the image.
pub(super) fn resolve(roots: Merged, path: &Path) -> io::Result<Option<MergedNode>> {
    let mut way = vec![roots];
    let mut rest: Vec<PathBuf> = Vec::new();
    push(&mut rest, path);
    let mut links = 0;
    for _ in 0..MAX_STEPS {
        let Some(step) = rest.pop() else { return Ok(way.pop().map(MergedNode::Directory)) };
        match step.components().next() {
            Some(Component::RootDir) => way.truncate(1),
            Some(Component::ParentDir) if way.len() > 1 => drop(way.pop()),
            Some(Component::Normal(name)) => {
                let Some(here) = way.last() else { return Ok(None) };
                match lookup(here, name)? {
                    None => return Ok(None),
                    Some(MergedNode::Directory(directory)) => way.push(directory),
                    Some(MergedNode::Link(target, _)) => {
                        links += 1;
                        if links > MAX_LINKS {
                            return Ok(None);
                        }
                        push(&mut rest, &target);
                    }
                    Some(MergedNode::Other(node)) => {
                        // A file must be the last component.
                        return Ok(rest.is_empty().then_some(MergedNode::Other(node)));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(None)
}

fn push(rest: &mut Vec<PathBuf>, path: &Path) {
    rest.extend(path.components().rev().map(|component| PathBuf::from(component.as_os_str())));
}

pub(super) fn lookup(here: &Merged, name: &OsStr) -> io::Result<Option<MergedNode>> {
    let mut directories = Merged::new();
    for layer in here {
        let node = match layer.entry(name) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound) => continue,
            other => other?,
        };
        let metadata = node.metadata()?;
        if metadata.is_dir() {
            let is_opaque = has_extended(&node, OPAQUE, b"y")?;
            directories.push(node);
            if is_opaque {
                break;
            }
        } else if !directories.is_empty() || is_whiteout(&metadata) {
            break;
        } else if metadata.is_symlink() {
            let target = std::fs::read_link(own_path(layer, name))?;
            return Ok(Some(MergedNode::Link(target, node)));
        } else {
            return Ok(Some(MergedNode::Other(node)));
        }
    }
    Ok((!directories.is_empty()).then_some(MergedNode::Directory(directories)))
}

fn is_whiteout(metadata: &std::fs::Metadata) -> bool {
    metadata.file_type().is_char_device() && metadata.rdev() == 0
}

/// `name` in the very directory that is held.
fn own_path(directory: &Handle, name: &OsStr) -> OsString {
    Path::new(&format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd())).join(name).into_os_string()
}
