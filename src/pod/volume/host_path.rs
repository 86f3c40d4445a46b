//! `hostPath`: a path of the node, checked against its type and created if the type requires it.
//!
//! Owns `volumes/kubernetes.io~host-path` of a pod, where its devices are bound. The path itself is the user's
//! and stays after the pod.

use std::fs::{File, FileType};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::sub_path::{bind_open, make_place};
use super::{MountedVolume, VolumeError, make_dir, set_up_error};
use crate::model::api::pod::HostPathVolumeSource;
use crate::platform::sys::container_root::point_at;

/// The directory name of the plugin, as the kubelet would have it on disk.
const PLUGIN: &str = "kubernetes.io~host-path";

/// A device is bound below the pod's directory, from the descriptor whose type was checked: its mount and the
/// rule that allows it are made from there, whatever happens to the path.
pub(super) fn ensure(
    pod_dir: &Path,
    name: &str,
    source: &HostPathVolumeSource,
) -> Result<MountedVolume, VolumeError> {
    let path = PathBuf::from(&source.path);
    let created = match source.type_.as_str() {
        "DirectoryOrCreate" if !path.exists() => make_dir(&path, 0o755),
        "FileOrCreate" if !path.exists() => make_file(&path),
        _ => Ok(()),
    };
    created.map_err(|error| set_up_error(name, "create host path", &path, error))?;
    let (expected, is_expected): (&'static str, fn(&FileType) -> bool) = match source.type_.as_str() {
        "Directory" | "DirectoryOrCreate" => ("a directory", FileType::is_dir),
        "File" | "FileOrCreate" => ("a file", FileType::is_file),
        "Socket" => ("a socket file", FileTypeExt::is_socket),
        "CharDevice" => ("a character device", FileTypeExt::is_char_device),
        "BlockDevice" => ("a block device", FileTypeExt::is_block_device),
        // Validation knows all types.
        _ => return Ok(MountedVolume { host_path: path, ..MountedVolume::default() }),
    };
    let opened = point_at(&path).map(File::from).and_then(|file| Ok((file.metadata()?.file_type(), file)));
    let host_path = match opened {
        Ok((found, file)) if is_expected(&found) => {
            if found.is_char_device() || found.is_block_device() {
                bind_device(pod_dir, name, &file)
                    .map_err(|error| set_up_error(name, "bind device", &path, error))?
            } else {
                path
            }
        }
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(set_up_error(name, "stat host path", &path, error));
        }
        Ok(_) | Err(_) => return Err(VolumeError::HostPathType { volume: name.to_owned(), path, expected }),
    };
    Ok(MountedVolume { host_path, ..MountedVolume::default() })
}

fn bind_device(pod_dir: &Path, name: &str, device: &File) -> std::io::Result<PathBuf> {
    make_place(pod_dir, &["volumes", PLUGIN])?;
    let target = super::plugin_dir(pod_dir, PLUGIN).join(name);
    bind_open(device.as_fd(), &target, false)?;
    Ok(target)
}

fn make_file(path: &Path) -> std::io::Result<()> {
    let file = std::fs::File::create_new(path)?;
    // The umask must not decide.
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::sys::dir::exchange;
    use crate::platform::testing::TempDir;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::fs::symlink;

    fn host_path(path: &Path, type_: &str) -> Result<MountedVolume, VolumeError> {
        in_pod(Path::new("/nonexistent"), path, type_)
    }

    fn in_pod(pod_dir: &Path, path: &Path, type_: &str) -> Result<MountedVolume, VolumeError> {
        let source = HostPathVolumeSource { path: path.display().to_string(), type_: type_.to_owned() };
        ensure(pod_dir, "v", &source)
    }

    #[test]
    fn host_path_type_is_checked_and_created_only_on_request() {
        let scratch = TempDir::new();
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
        assert!(
            host_path(&scratch.0.join("none/file"), "FileOrCreate").is_err(),
            "its directory is not made"
        );
        let refused = [
            (&scratch.0, "File", "file"),
            (&file, "Directory", "directory"),
            (&file, "DirectoryOrCreate", "directory"),
            (&file, "Socket", "socket file"),
            (&file, "CharDevice", "character device"),
            (&file, "BlockDevice", "block device"),
        ];
        for (path, type_, expected) in refused {
            let text = host_path(path, type_).unwrap_err().to_string();
            let words = format!("hostPath type check failed: {} is not a {expected}", path.display());
            assert_eq!(text, format!("MountVolume.SetUp failed for volume \"v\" : {words}"));
        }
    }

    struct Pod(TempDir);

    impl Pod {
        fn new() -> Self {
            let scratch = TempDir::new();
            std::fs::create_dir_all(scratch.0.join("pods/uid")).unwrap();
            Self(scratch)
        }

        fn dir(&self) -> PathBuf {
            self.0.0.join("pods/uid")
        }
    }

    impl Drop for Pod {
        fn drop(&mut self) {
            super::super::tear_down_dir(&self.dir()).unwrap();
        }
    }

    fn number(path: &Path) -> u64 {
        path.metadata().unwrap().rdev()
    }

    #[test]
    fn device_whose_path_is_replaced_after_the_check_stays() {
        let pod = Pod::new();
        let path = pod.0.0.join("sensor");
        symlink("/dev/null", &path).unwrap();
        let bound = in_pod(&pod.dir(), &path, "CharDevice").unwrap().host_path;
        assert_eq!(bound, pod.dir().join("volumes/kubernetes.io~host-path/v"));
        for other in ["/dev", "/dev/zero"] {
            std::fs::remove_file(&path).unwrap();
            symlink(other, &path).unwrap();
            assert_eq!(number(&bound), number(Path::new("/dev/null")), "{other}");
        }
        let again = in_pod(&pod.dir(), &path, "CharDevice").unwrap().host_path;
        assert_eq!((number(&again), again), (number(Path::new("/dev/zero")), bound), "of the next start");
        std::fs::remove_file(&path).unwrap();
        symlink("/dev", &path).unwrap();
        let refused = in_pod(&pod.dir(), &path, "CharDevice");
        assert!(matches!(refused, Err(VolumeError::HostPathType { .. })), "{refused:?}");
    }

    #[test]
    fn device_swapped_for_a_directory_in_a_race_is_never_bound() {
        const ROUNDS: u32 = 300;
        let pod = Pod::new();
        let (path, other) = (pod.0.0.join("sensor"), pod.0.0.join("other"));
        symlink("/dev/null", &path).unwrap();
        symlink("/dev", &other).unwrap();
        let (ends, over) = std::sync::mpsc::channel::<()>();
        let target = path.clone();
        let attack = move || {
            while matches!(over.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty)) {
                exchange(&target, &other).unwrap();
            }
        };
        let attacker = crate::platform::rt::spawn_thread("attacker", attack).unwrap();
        for _ in 0..ROUNDS {
            match in_pod(&pod.dir(), &path, "CharDevice") {
                Ok(mounted) => assert_eq!(number(&mounted.host_path), number(Path::new("/dev/null"))),
                Err(error) => assert!(matches!(error, VolumeError::HostPathType { .. }), "{error}"),
            }
        }
        drop(ends);
        attacker.join().unwrap();
    }
}
