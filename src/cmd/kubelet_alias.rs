//! The program under the name `kubelet`, as kubeadm and its unit call it: the agent with the version text that kubeadm
//! parses, which waits for the configuration file that `kubeadm join` has yet to write.
//!
//! Expected flow: kubeadm's preflight checks ask the CRI socket before there is a configuration, so the socket is served
//! while the file is missing. When it is there, the program executes itself again.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::agent::config::{ConfigError, CriFlags, FileError, Resolved, is_own_socket};
use crate::agent::kubelet::setup::cri::{self, CriError};
use crate::platform::rt;
use crate::platform::rt::notify::Notifier;
use crate::platform::rt::shutdown;
use crate::platform::sys::inotify::{InotifyError, Interest, Watcher};

const NAME: &str = "kubelet";
/// The release of Kubernetes that this program follows.
pub(crate) const KUBERNETES: &str = "1.36.0";
/// Flags that name files of `kubeadm join`; each has a value.
const FILES: [&str; 3] = ["config", "kubeconfig", "bootstrap-kubeconfig"];
/// How often a file is looked for where inotify does not work.
const RETRY: Duration = Duration::from_secs(1);

/// Whether `argv[0]` is the name of the kubelet.
#[must_use]
pub fn is_kubelet(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == NAME)
}

/// `kubelet --version`. kubeadm accepts `Kubernetes v`, a semantic version, and nothing else.
#[must_use]
pub fn version() -> String {
    format!("Kubernetes v{KUBERNETES}+agent-{}\n", env!("CARGO_PKG_VERSION"))
}

/// The configuration file that is missing, if that is the error.
#[must_use]
pub fn missing_file(error: &ConfigError) -> Option<&Path> {
    match error {
        ConfigError::File { path, error: FileError::Read { error } }
            if error.kind() == io::ErrorKind::NotFound =>
        {
            Some(path)
        }
        _ => None,
    }
}

/// The arguments without the files that kubeadm writes.
#[must_use]
pub fn without_files(arguments: &[OsString]) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        let flag = text.strip_prefix("--").unwrap_or_default().replace('_', "-");
        let (name, has_value) = flag.split_once('=').map_or((flag.as_str(), false), |(name, _)| (name, true));
        if !FILES.contains(&name) {
            kept.push(argument.clone());
        } else if !has_value {
            arguments.next();
        }
    }
    kept
}

/// Waits until the file is there and not empty; true then, false when the process was asked to stop. Serves CRI
/// meanwhile, unless the flags name another runtime.
///
/// # Errors
/// The socket or the signals cannot be served.
pub async fn wait(
    resolved: &Resolved,
    missing: PathBuf,
    notify_socket: Option<&str>,
) -> Result<bool, CriError> {
    let (trigger, shutdown) = shutdown::channel();
    rt::spawn("signals", shutdown::watch_signals(trigger).map_err(CriError::Signals)?);
    let notifier = Notifier::connect(notify_socket)?;
    log::info!(path:% = missing.display(); "Waiting for the configuration file");
    let end = async {
        tokio::select! {
            biased;
            // Nothing is lost with the other arm: the next start looks for the file again.
            () = shutdown.requested() => false,
            () = appears(&missing) => true,
        }
    };
    let flags = CriFlags { listen: resolved.flags.cri_socket.clone(), ..CriFlags::default() };
    let endpoint = &resolved.kubelet.container_runtime_endpoint;
    let is_own = endpoint == "embedded" || is_own_socket(endpoint, &flags.listen);
    if is_own && !flags.listen.is_empty() {
        return cri::serve_until(resolved, &flags, &notifier, end).await;
    }
    notifier.ready();
    Ok(end.await)
}

async fn appears(path: &Path) {
    let is_there = || path.metadata().is_ok_and(|about| about.len() > 0);
    loop {
        let changed = change_on_the_way(path);
        if is_there() {
            return;
        }
        match changed {
            Ok((watcher, _)) => {
                if watcher.read(&mut Vec::new()).await.is_err() {
                    tokio::time::sleep(RETRY).await;
                }
            }
            Err(error) => {
                log::debug!(err:% = error; "Failed to watch for the configuration file");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// A watch of the nearest directory that exists.
fn change_on_the_way(path: &Path) -> Result<(Watcher, PathBuf), InotifyError> {
    let nearest = path.ancestors().skip(1).find(|directory| directory.is_dir());
    let nearest = nearest.unwrap_or(Path::new("/")).to_owned();
    let watcher = Watcher::new()?;
    watcher.watch(&nearest, Interest::Contents)?;
    Ok((watcher, nearest))
}

/// Replaces this process by a new start of the program, under the name of the kubelet; returns only the error.
#[must_use]
pub fn restart(arguments: &[OsString]) -> io::Error {
    Command::new("/proc/self/exe").arg0(NAME).args(arguments).exec()
}

#[cfg(test)]
mod tests;
