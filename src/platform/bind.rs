//! Creating the local socket: its permissions, and handling of an existing socket.
//!
//! Owns the socket file.

use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use tokio::net::{UnixListener, UnixStream};

/// Root only: the socket shows environment variables of pods.
const SOCKET_MODE: u32 = 0o600;
/// Other users may see the directory.
const DIRECTORY_MODE: u32 = 0o755;
/// A running agent accepts at once; one whose queue is full is alive too.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The local socket could not be created.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("another agent is listening on {}: stop it, or use another socket", path.display())]
    InUse { path: PathBuf },
    #[error("{} exists and is not a socket: move it, or use another socket", path.display())]
    NotASocket { path: PathBuf },
    #[error("{action} {}", path.display())]
    File {
        action: &'static str,
        /// The file concerned.
        path: PathBuf,
        source: io::Error,
    },
}

/// Listens on `path`. A socket that no process serves any more is replaced.
pub(crate) async fn bind(path: &Path) -> Result<UnixListener, BindError> {
    let fail = |action: &'static str, path: &Path, source: io::Error| BindError::File {
        action,
        path: path.to_owned(),
        source,
    };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(directory) = directory {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(DIRECTORY_MODE)
            .create(directory)
            .map_err(|error| fail("create the directory", directory, error))?;
    }
    remove_stale_socket(path).await?;
    // Bound under another name first, so that it is never reachable with the umask's mode, and so that it
    // replaces a stale socket in one step.
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let young = PathBuf::from(name);
    let _ = fs::remove_file(&young);
    let listener = UnixListener::bind(&young).map_err(|error| fail("listen on", &young, error))?;
    let placed = fs::set_permissions(&young, fs::Permissions::from_mode(SOCKET_MODE))
        .map_err(|error| fail("set the mode of", &young, error))
        .and_then(|()| fs::rename(&young, path).map_err(|error| fail("create the socket at", path, error)));
    if let Err(error) = placed {
        let _ = fs::remove_file(&young);
        return Err(error);
    }
    Ok(listener)
}

async fn remove_stale_socket(path: &Path) -> Result<(), BindError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(BindError::File { action: "check", path: path.to_owned(), source });
        }
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(BindError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match tokio::time::timeout(PROBE_TIMEOUT, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(Err(source)) => Err(BindError::File { action: "connect to", path: path.to_owned(), source }),
        Ok(Ok(_)) | Err(_) => Err(BindError::InUse { path: path.to_owned() }),
    }
}
