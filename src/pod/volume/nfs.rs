//! `nfs`: an export of another machine.
//!
//! Owns `volumes/kubernetes.io~nfs` of a pod. The system's `mount.nfs` mounts if it is installed: it
//! negotiates versions and starts the lock daemon of NFS 3. Without it the agent calls the kernel directly,
//! version by version, with an address looked up here. Either may wait for a dead server without a limit, in
//! a thread of its own: the pod's worker waits only for [`PATIENCE`] and retries later.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::remote::{self, RemoteJobs};
use super::{MountedVolume, VolumeError, make_dir, plugin_dir, set_up_error};
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::sys::mount;

/// The directory name of the plugin, as the kubelet has it on disk.
const PLUGIN: &str = "kubernetes.io~nfs";
/// The longest wait of the pod's worker per attempt. The mount itself continues.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Where the helper is installed.
const HELPERS: [&str; 2] = ["/sbin/mount.nfs", "/usr/sbin/mount.nfs"];
/// Versions to try, newest first, when the mount options name none.
const VERSIONS: [&str; 4] = ["4.2", "4.1", "4.0", "3"];
const PORT: u16 = 2049;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Export {
    pub(super) server: String,
    pub(super) path: String,
    pub(super) read_only: bool,
    /// `mountOptions`.
    pub(super) options: Vec<String>,
}

/// Why an export could not be mounted.
#[derive(Debug, thiserror::Error)]
pub(super) enum NfsError {
    #[error("resolve {server}")]
    Lookup {
        server: String,
        #[source]
        source: io::Error,
    },
    #[error("the kernel has no NFS client (module nfs), and mount.nfs is not installed")]
    NoClient,
    #[error("mount {export} with options {options:?}")]
    Kernel {
        export: String,
        options: String,
        #[source]
        source: io::Error,
    },
    #[error("run {0}")]
    Start(&'static str, #[source] io::Error),
    #[error("mount.nfs: {0}")]
    Helper(String),
}

impl Export {
    /// `server:/path`; the colons of an IPv6 address are not the one that separates.
    fn source(&self) -> String {
        let is_bare_v6 = self.server.contains(':') && !self.server.starts_with('[');
        if is_bare_v6 {
            format!("[{}]:{}", self.server, self.path)
        } else {
            format!("{}:{}", self.server, self.path)
        }
    }

    /// `ro`, then the volume's own.
    fn options(&self) -> Vec<String> {
        let read_only = self.read_only.then(|| "ro".to_owned());
        read_only.into_iter().chain(self.options.iter().cloned()).collect()
    }

    /// The versions to try; the one in the mount options is the only one.
    fn versions(&self) -> Vec<Option<&'static str>> {
        let is_choice = |option: &str| {
            let word = option.split('=').next().unwrap_or_default();
            ["vers", "nfsvers", "v3", "v4", "v4.0", "v4.1", "v4.2"].contains(&word)
        };
        let chosen = self.options.iter().flat_map(|option| option.split(',')).any(is_choice);
        if chosen { vec![None] } else { VERSIONS.into_iter().map(Some).collect() }
    }

    /// Mount options for the kernel that the helper would have added.
    fn kernel_options(
        &self,
        version: Option<&str>,
        server: SocketAddr,
        client: Option<SocketAddr>,
    ) -> Vec<String> {
        let mut options = self.options();
        options.extend(version.map(|version| format!("vers={version}")));
        // Without a lock daemon, which the helper would have started, locks are the node's own.
        if version == Some("3") && !options.iter().any(|option| option == "lock" || option == "nolock") {
            options.push("nolock".to_owned());
        }
        options.push(format!("addr={}", server.ip()));
        options.extend(client.map(|client| format!("clientaddr={}", client.ip())));
        options
    }
}

pub(super) async fn ensure(
    jobs: &RemoteJobs,
    pod_dir: &Path,
    name: &str,
    volume: &str,
    export: Export,
) -> Result<MountedVolume, VolumeError> {
    let target = plugin_dir(pod_dir, PLUGIN).join(volume);
    let (owned_name, to) = (name.to_owned(), target.clone());
    if !rt::blocking("stat NFS volume", move || prepare(&owned_name, &to)).await? {
        let to = target.clone();
        let mounted = remote::run(jobs, &target, PATIENCE, move || mount_export(&export, &to)).await;
        let failed = |message| VolumeError::Remote { volume: name.to_owned(), message };
        match mounted {
            Ok(result) => result.map_err(|error| failed(chain(&error)))?,
            Err(error) => return Err(failed(error.to_string())),
        }
    }
    Ok(MountedVolume { host_path: target, remote: true, ..MountedVolume::default() })
}

/// True when it is mounted.
fn prepare(name: &str, target: &Path) -> Result<bool, VolumeError> {
    let parent = target.parent().unwrap_or(target);
    make_dir(parent, 0o750).map_err(|error| set_up_error(name, "create directory", parent, error))?;
    let failed = |action| move |error| set_up_error(name, action, target, error);
    if mount::is_mount_point(target).map_err(failed("list mounts below"))? {
        return Ok(true);
    }
    make_dir(target, 0o750).map_err(failed("create directory"))?;
    Ok(false)
}

fn mount_export(export: &Export, target: &Path) -> Result<(), NfsError> {
    match HELPERS.into_iter().find(|helper| Path::new(helper).exists()) {
        Some(helper) => run_helper(helper, export, target),
        None => mount_by_kernel(export, target),
    }
}

fn helper_arguments(export: &Export, target: &Path) -> Vec<PathBuf> {
    let mut arguments = vec![PathBuf::from(export.source()), target.to_owned()];
    let options = export.options();
    if !options.is_empty() {
        arguments.extend(["-o".into(), options.join(",").into()]);
    }
    arguments
}

fn run_helper(helper: &'static str, export: &Export, target: &Path) -> Result<(), NfsError> {
    let output = Command::new(helper)
        .args(helper_arguments(export, target))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| NfsError::Start(helper, error))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(NfsError::Helper(if text.is_empty() { output.status.to_string() } else { text }))
}

fn mount_by_kernel(export: &Export, target: &Path) -> Result<(), NfsError> {
    let host = export.server.trim_start_matches('[').trim_end_matches(']');
    let lookup = |source| NfsError::Lookup { server: export.server.clone(), source };
    let mut found = (host, PORT).to_socket_addrs().map_err(lookup)?;
    let server = found.next().ok_or_else(|| lookup(io::ErrorKind::NotFound.into()))?;
    let client = own_address(server);
    let mut last = NfsError::NoClient;
    for version in export.versions() {
        let options = export.kernel_options(version, server, client);
        match mount::mount_remote("nfs", &export.source(), target, &options) {
            Ok(()) => return Ok(()),
            Err(error) if mount::is_unknown_file_system(&error) => return Err(NfsError::NoClient),
            Err(source) => {
                let goes_on = mount::is_protocol_unsupported(&source);
                last = NfsError::Kernel { export: export.source(), options: options.join(","), source };
                if !goes_on {
                    break;
                }
            }
        }
    }
    Err(last)
}

/// The local address towards the server: NFS 4.0 calls back there. Connecting a datagram socket sends
/// nothing.
fn own_address(server: SocketAddr) -> Option<SocketAddr> {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(server).ok()?;
    socket.local_addr().ok()
}

#[cfg(test)]
mod tests {
    use super::super::{run, tear_down_dir};
    use super::*;
    use crate::platform::testing::TempDir;

    fn export(server: &str, options: &[&str]) -> Export {
        Export {
            server: server.to_owned(),
            path: "/srv/data".to_owned(),
            read_only: false,
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        }
    }

    #[test]
    fn addresses_of_the_sixth_version_are_bracketed() {
        for (server, expected) in [
            ("nas", "nas:/srv/data"),
            ("10.0.0.1", "10.0.0.1:/srv/data"),
            ("fd00::1", "[fd00::1]:/srv/data"),
            ("[fd00::1]", "[fd00::1]:/srv/data"),
        ] {
            assert_eq!(export(server, &[]).source(), expected);
        }
    }

    #[test]
    fn the_helper_gets_source_target_and_options() {
        let words = |export: &Export| -> Vec<String> {
            let arguments = helper_arguments(export, Path::new("/pods/u/v"));
            arguments.iter().map(|word| word.display().to_string()).collect()
        };
        assert_eq!(words(&export("nas", &[])), ["nas:/srv/data", "/pods/u/v"]);
        let read_only = Export { read_only: true, ..export("nas", &["soft", "timeo=30"]) };
        assert_eq!(words(&read_only), ["nas:/srv/data", "/pods/u/v", "-o", "ro,soft,timeo=30"]);
    }

    #[test]
    fn the_kernel_gets_what_the_helper_would_have_found_out() {
        let server: SocketAddr = "10.0.0.1:2049".parse().unwrap();
        let client: SocketAddr = "10.0.0.9:1".parse().unwrap();
        let of = |version| export("nas", &["hard"]).kernel_options(version, server, Some(client)).join(",");
        assert_eq!(of(Some("4.2")), "hard,vers=4.2,addr=10.0.0.1,clientaddr=10.0.0.9");
        assert_eq!(of(Some("3")), "hard,vers=3,nolock,addr=10.0.0.1,clientaddr=10.0.0.9");
        assert_eq!(export("nas", &[]).versions(), [Some("4.2"), Some("4.1"), Some("4.0"), Some("3")]);
        for chosen in ["nfsvers=3", "vers=4.1", "hard,vers=4", "v3"] {
            assert_eq!(export("nas", &[chosen]).versions(), [None], "{chosen}");
        }
    }

    #[test]
    fn a_kernel_without_nfs_says_so() {
        let known = std::fs::read_to_string("/proc/filesystems").unwrap();
        if known.contains("\tnfs") || HELPERS.iter().any(|helper| Path::new(helper).exists()) {
            return;
        }
        let scratch = TempDir::new();
        let pod_dir = scratch.0.join("uid");
        let jobs = RemoteJobs::default();
        let made = run(ensure(&jobs, &pod_dir, "data", "data", export("127.0.0.1", &[])));
        let text = made.unwrap_err().to_string();
        tear_down_dir(&pod_dir).unwrap();
        let why = "the kernel has no NFS client (module nfs), and mount.nfs is not installed";
        assert_eq!(text, format!("MountVolume.SetUp failed for volume \"data\" : {why}"));
    }
}
