//! Volumes of pods on this node: makes what a pod's spec asks for and takes it away with the pod.
//!
//! Owns `<root>/pods/<uid>/volumes`. In this version: `hostPath` and `emptyDir`; every other kind is refused by name. Must
//! not know containers: it hands out host paths.

use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::api::pod::{EmptyDirVolumeSource, HostPathVolumeSource, Pod, Volume};
use crate::rt;
use crate::sys::mount;
use crate::types::PodUid;

/// The directory name of the plugin, as the kubelet has it on disk.
const EMPTY_DIR_PLUGIN: &str = "kubernetes.io~empty-dir";

/// Where pods' directories are.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// `<root-dir>/pods`.
    pub pods_dir: PathBuf,
}

/// A volume that is ready to be mounted into containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedVolume {
    /// On the node.
    pub host_path: PathBuf,
    /// Volumes that can only be read.
    pub read_only: bool,
}

/// Ready volumes by the name the pod gives them.
pub type MountedVolumes = BTreeMap<String, MountedVolume>;

/// A volume could not be made or taken away.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A kind this version does not have.
    #[error("volume {volume:?}: no volume plugin matched: this version supports hostPath and emptyDir")]
    UnsupportedKind {
        /// Its name in the pod.
        volume: String,
    },
    /// A kind of emptyDir this version does not have.
    #[error(
        "volume {volume:?}: emptyDir medium {medium:?} is not supported by this version: use \"Memory\", or none for the disk"
    )]
    UnsupportedMedium {
        /// Its name in the pod.
        volume: String,
        /// As written.
        medium: String,
    },
    /// The path is not what `hostPath.type` says.
    #[error("volume {volume:?}: hostPath type check failed: {path:?} is not {expected}")]
    HostPathType {
        /// Its name in the pod.
        volume: String,
        /// On the node.
        path: PathBuf,
        /// For example "a directory".
        expected: &'static str,
    },
    /// A directory, file or mount could not be made.
    #[error("volume {volume:?}: {action} {path:?}")]
    SetUp {
        /// Its name in the pod.
        volume: String,
        /// What was being done.
        action: &'static str,
        /// On the node.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// The pod's directory could not be removed.
    #[error("{action} {path:?}")]
    TearDown {
        /// What was being done.
        action: &'static str,
        /// On the node.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// Somebody mounted something below the pod's directory; nothing is deleted across a mount point.
    #[error("{path:?} is still a mount point: unmount it, its data is not deleted")]
    StillMounted {
        /// The mount point.
        path: String,
    },
}

/// `<pods>/<uid>`.
#[must_use]
pub fn pod_dir(config: &VolumeConfig, uid: &PodUid) -> PathBuf {
    config.pods_dir.join(uid.as_str())
}

/// Makes the pod's directory and all its volumes; fine on ones that exist. Repeat until it succeeds.
///
/// # Errors
/// The first volume that cannot be made, in the order of the spec.
pub async fn ensure_volumes(config: &VolumeConfig, pod: &Pod) -> Result<MountedVolumes, VolumeError> {
    let pod_dir = pod_dir(config, &pod.metadata.uid);
    let volumes = pod.spec.volumes.clone();
    rt::blocking("set up volumes", move || {
        make_dir(&pod_dir, 0o750)
            .map_err(|source| set_up_error("", "create pod directory", &pod_dir, source))?;
        volumes.iter().map(|volume| Ok((volume.name.clone(), ensure_volume(&pod_dir, volume)?))).collect()
    })
    .await
}

fn ensure_volume(pod_dir: &Path, volume: &Volume) -> Result<MountedVolume, VolumeError> {
    if let Some(host_path) = &volume.host_path {
        return ensure_host_path(&volume.name, host_path);
    }
    if let Some(empty_dir) = &volume.empty_dir {
        return ensure_empty_dir(pod_dir, &volume.name, empty_dir);
    }
    Err(VolumeError::UnsupportedKind { volume: volume.name.clone() })
}

fn ensure_host_path(name: &str, source: &HostPathVolumeSource) -> Result<MountedVolume, VolumeError> {
    let path = PathBuf::from(&source.path);
    let mounted = MountedVolume { host_path: path.clone(), read_only: false };
    let created = match source.type_.as_str() {
        "DirectoryOrCreate" => make_dir(&path, 0o755),
        "FileOrCreate" if !path.exists() => std::fs::File::create_new(&path)
            .and_then(|file| file.set_permissions(std::fs::Permissions::from_mode(0o644))),
        _ => Ok(()),
    };
    created.map_err(|error| set_up_error(name, "create host path", &path, error))?;
    let (expected, check): (&'static str, fn(&std::fs::FileType) -> bool) = match source.type_.as_str() {
        "" => return Ok(mounted),
        "Directory" | "DirectoryOrCreate" => ("a directory", std::fs::FileType::is_dir),
        "File" | "FileOrCreate" => ("a file", std::fs::FileType::is_file),
        "Socket" => ("a socket file", FileTypeExt::is_socket),
        "CharDevice" => ("a character device", FileTypeExt::is_char_device),
        "BlockDevice" => ("a block device", FileTypeExt::is_block_device),
        _ => ("of a known hostPath type", |_| false),
    };
    match std::fs::metadata(&path) {
        Ok(metadata) if check(&metadata.file_type()) => Ok(mounted),
        Ok(_) => Err(VolumeError::HostPathType { volume: name.to_owned(), path, expected }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(VolumeError::HostPathType { volume: name.to_owned(), path, expected })
        }
        Err(error) => Err(set_up_error(name, "look at host path", &path, error)),
    }
}

fn ensure_empty_dir(
    pod_dir: &Path,
    name: &str,
    source: &EmptyDirVolumeSource,
) -> Result<MountedVolume, VolumeError> {
    let path = pod_dir.join("volumes").join(EMPTY_DIR_PLUGIN).join(name);
    make_dir(&path, 0o750).map_err(|error| set_up_error(name, "create directory", &path, error))?;
    match source.medium.as_str() {
        "Memory" => {
            let mounted = mount::mount_points()
                .map_err(|error| set_up_error(name, "read mounts below", &path, error))?;
            if !mounted.iter().any(|point| Path::new(point) == path) {
                let size =
                    source.size_limit.map(crate::api::quantity::Quantity::value).filter(|size| *size > 0);
                mount::mount_tmpfs(&path, size)
                    .map_err(|error| set_up_error(name, "mount tmpfs on", &path, error))?;
            }
        }
        "" => {}
        medium => {
            return Err(VolumeError::UnsupportedMedium {
                volume: name.to_owned(),
                medium: medium.to_owned(),
            });
        }
    }
    // Mode by chmod: the umask must not decide who may write.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777))
        .map_err(|error| set_up_error(name, "set mode of", &path, error))?;
    Ok(MountedVolume { host_path: path, read_only: false })
}

fn make_dir(path: &Path, mode: u32) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}

fn set_up_error(volume: &str, action: &'static str, path: &Path, source: std::io::Error) -> VolumeError {
    VolumeError::SetUp { volume: volume.to_owned(), action, path: path.to_owned(), source }
}

/// Takes away what [`ensure_volumes`] made and the whole directory of the pod. Fine when it is gone. Only tmpfs mounts of
/// `emptyDir` are unmounted; anything else mounted below stops the removal, so that no foreign data is deleted.
///
/// # Errors
/// What is in the way. Repeat later.
pub async fn tear_down(config: &VolumeConfig, uid: &PodUid) -> Result<(), VolumeError> {
    let pod_dir = pod_dir(config, uid);
    rt::blocking("tear down volumes", move || tear_down_dir(&pod_dir)).await
}

fn tear_down_dir(pod_dir: &Path) -> Result<(), VolumeError> {
    let error = |action, source| VolumeError::TearDown { action, path: pod_dir.to_owned(), source };
    if !pod_dir.exists() {
        return Ok(());
    }
    let own = pod_dir.join("volumes").join(EMPTY_DIR_PLUGIN);
    let below = |point: &str| Path::new(point).starts_with(pod_dir);
    let points = mount::mount_points().map_err(|source| error("read mounts below", source))?;
    for point in points.iter().filter(|point| Path::new(point).starts_with(&own)) {
        mount::unmount(Path::new(point)).map_err(|source| error("unmount volumes of", source))?;
    }
    let left = mount::mount_points().map_err(|source| error("read mounts below", source))?;
    if let Some(point) = left.into_iter().find(|point| below(point)) {
        return Err(VolumeError::StillMounted { path: point });
    }
    match std::fs::remove_dir_all(pod_dir) {
        Ok(()) => Ok(()),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(error("remove pod directory", source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("edge-agent-volume-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn host_path(path: &Path, type_: &str) -> Result<MountedVolume, VolumeError> {
        ensure_host_path(
            "v",
            &HostPathVolumeSource { path: path.display().to_string(), type_: type_.to_owned() },
        )
    }

    #[test]
    fn a_host_path_is_checked_against_its_type_and_made_only_when_asked() {
        let scratch = Scratch::new("hostpath");
        let missing = scratch.0.join("missing");
        assert!(host_path(&missing, "").is_ok(), "no type, no check");
        assert!(matches!(host_path(&missing, "Directory"), Err(VolumeError::HostPathType { .. })));
        assert!(!missing.exists());
        assert!(host_path(&missing, "DirectoryOrCreate").is_ok());
        assert!(missing.is_dir());
        assert!(matches!(host_path(&missing, "File"), Err(VolumeError::HostPathType { .. })));
        let file = scratch.0.join("file");
        assert!(host_path(&file, "FileOrCreate").is_ok());
        assert!(file.is_file());
        assert!(host_path(Path::new("/dev/null"), "CharDevice").is_ok());
        assert!(matches!(host_path(&file, "Socket"), Err(VolumeError::HostPathType { .. })));
    }

    #[test]
    fn an_empty_dir_is_writable_by_anybody_and_goes_with_the_pod() {
        let scratch = Scratch::new("emptydir");
        let pod_dir = scratch.0.join("uid");
        let mounted = ensure_empty_dir(&pod_dir, "cache", &EmptyDirVolumeSource::default()).unwrap();
        let mode = std::fs::metadata(&mounted.host_path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o777);
        std::fs::write(mounted.host_path.join("kept"), "x").unwrap();
        ensure_empty_dir(&pod_dir, "cache", &EmptyDirVolumeSource::default()).unwrap();
        assert!(mounted.host_path.join("kept").exists(), "ensuring twice must not empty it");
        tear_down_dir(&pod_dir).unwrap();
        assert!(!pod_dir.exists());
        tear_down_dir(&pod_dir).unwrap();
    }

    #[test]
    fn removing_a_pod_directory_never_crosses_a_foreign_mount() {
        let scratch = Scratch::new("foreign");
        let pod_dir = scratch.0.join("uid");
        let foreign = pod_dir.join("data");
        std::fs::create_dir_all(&foreign).unwrap();
        mount::mount_tmpfs(&foreign, Some(1 << 20)).unwrap();
        std::fs::write(foreign.join("precious"), "x").unwrap();
        let result = tear_down_dir(&pod_dir);
        let survived = foreign.join("precious").exists();
        mount::unmount(&foreign).unwrap();
        assert!(matches!(result, Err(VolumeError::StillMounted { .. })));
        assert!(survived);
    }

    #[test]
    fn a_memory_backed_empty_dir_is_a_tmpfs_of_its_size_and_is_unmounted() {
        let scratch = Scratch::new("memory");
        let pod_dir = scratch.0.join("uid");
        let source = EmptyDirVolumeSource {
            medium: "Memory".to_owned(),
            size_limit: crate::api::quantity::Quantity::parse("1Mi").ok(),
        };
        let path = ensure_empty_dir(&pod_dir, "ram", &source).unwrap().host_path;
        ensure_empty_dir(&pod_dir, "ram", &source).unwrap();
        let count = || mount::mount_points().unwrap().iter().filter(|point| Path::new(point) == path).count();
        assert_eq!(count(), 1, "one mount, however often it is ensured");
        assert!(std::fs::write(path.join("big"), vec![0; 2 << 20]).is_err(), "the size limit holds");
        tear_down_dir(&pod_dir).unwrap();
        assert_eq!(count(), 0);
    }
}
