//! `hostPath`: a path of the node, checked against its type and created if the type requires it.
//!
//! Owns nothing: the path is the user's and stays after the pod.

use std::fs::FileType;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{MountedVolume, VolumeError, make_dir, set_up_error};
use crate::model::api::pod::HostPathVolumeSource;

pub(super) fn ensure(name: &str, source: &HostPathVolumeSource) -> Result<MountedVolume, VolumeError> {
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
    match std::fs::metadata(&path) {
        Ok(metadata) if is_expected(&metadata.file_type()) => {
            Ok(MountedVolume { host_path: path, ..MountedVolume::default() })
        }
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(set_up_error(name, "stat host path", &path, error))
        }
        Ok(_) | Err(_) => Err(VolumeError::HostPathType { volume: name.to_owned(), path, expected }),
    }
}

fn make_file(path: &Path) -> std::io::Result<()> {
    let file = std::fs::File::create_new(path)?;
    // The umask must not decide.
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;

    fn host_path(path: &Path, type_: &str) -> Result<MountedVolume, VolumeError> {
        ensure("v", &HostPathVolumeSource { path: path.display().to_string(), type_: type_.to_owned() })
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
        assert!(host_path(Path::new("/dev/null"), "CharDevice").is_ok());
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
}
