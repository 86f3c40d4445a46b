//! The plugin registry: the agent calls `GetInfo` on each socket that appears in a directory.
//!
//! Owns the watch and the list of known sockets. Device plugins are registered, storage (CSI) plugins on a node of a
//! cluster; dynamic resource (DRA) plugins are rejected as unsupported. Idle while no socket appears.

use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use prost::Message;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::devices::DeviceManager;
use crate::devices::client::PluginClient;
use crate::devices::plugins::CsiPlugins;
use crate::model::back_off::Retry;
use crate::platform::logging::chain;
use crate::platform::proto::plugin_registration as wire;
use crate::platform::rt;
use crate::platform::sys::inotify::{Interest, Watcher};

/// How many levels of directories are searched for sockets.
const DEEPEST: usize = 3;
/// Upstream's limits, for an answer and for a connection.
const INFO_LIMIT: Duration = Duration::from_secs(10);
const NOTIFY_LIMIT: Duration = Duration::from_secs(5);
/// The type of storage plugins.
const CSI: &str = "CSIPlugin";
/// Pause before a plugin that did not answer is called again; doubles.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(122);

enum Socket {
    /// The plugin answered and was notified of its registration status.
    Answered,
    /// The plugin did not answer; it is called again at this time, then after the next pause.
    Silent(Instant, Retry),
}

/// What plugins are registered with.
#[derive(Clone)]
struct Registrars {
    devices: DeviceManager,
    csi: Option<Rc<dyn CsiPlugins>>,
}

/// Watches until it is dropped.
pub(super) async fn watch(directory: PathBuf, devices: DeviceManager, csi: Option<Rc<dyn CsiPlugins>>) {
    let registrars = Registrars { devices, csi };
    if let Err(error) = crate::platform::sys::dir::make_dir(&directory, 0o750) {
        log::warn!(path:% = directory.display(), err:% = error; "Failed to create plugin registry \
             directory, plugins cannot register");
        return;
    }
    let watcher = match Watcher::new() {
        Ok(watcher) => watcher,
        Err(error) => {
            log::warn!(err:% = chain(&error); "Failed to watch plugin registry, plugins cannot register");
            return;
        }
    };
    let mut known: BTreeMap<PathBuf, Socket> = BTreeMap::new();
    // Registered CSI drivers by socket: they are removed with it.
    let mut drivers: BTreeMap<PathBuf, String> = BTreeMap::new();
    let mut events = Vec::new();
    loop {
        let sockets = scan_sockets(&watcher, &directory).await;
        known.retain(|path, _| sockets.contains(path));
        remove_drivers(&mut drivers, &sockets, &registrars);
        // Concurrently: a hanging plugin delays no other.
        let mut asked = JoinSet::new();
        for path in sockets {
            let retry = match known.get(&path) {
                Some(Socket::Answered) => continue,
                Some(Socket::Silent(until, _)) if *until > Instant::now() => continue,
                Some(Socket::Silent(_, retry)) => *retry,
                None => Retry::new(FIRST_RETRY, LONGEST_RETRY),
            };
            let registrars = registrars.clone();
            asked.spawn_local(async move {
                let answer = register_socket(&path, &registrars).await;
                (path, retry, answer)
            });
        }
        while let Some(Ok((path, mut retry, answer))) = asked.join_next().await {
            let state = match answer {
                Ok(driver) => {
                    if let Some(driver) = driver {
                        drivers.insert(path.clone(), driver);
                    }
                    Socket::Answered
                }
                Err(why) => {
                    log::warn!(socket:% = path.display(), err = why; "Failed to register plugin");
                    Socket::Silent(Instant::now() + retry.delay(), retry)
                }
            };
            known.insert(path, state);
        }
        let retry = known.values().filter_map(|socket| match socket {
            Socket::Silent(until, _) => Some(*until),
            Socket::Answered => None,
        });
        let retry = retry.min();
        events.clear();
        // Cancel safe: events stay in the kernel's queue, and the deadline stays the same.
        let read = tokio::select! {
            biased;
            read = watcher.read(&mut events) => read,
            () = until(retry) => Ok(()),
        };
        if let Err(error) = read {
            log::warn!(err:% = chain(&error); "Lost the watch of the plugin registry, plugins can no longer \
                 register");
            return;
        }
        // A recreated socket belongs to another plugin.
        for event in &events {
            if let crate::platform::sys::inotify::InotifyEvent::Entry { name, .. } = event {
                known.retain(|path, _| path.file_name() != Some(name));
            }
        }
    }
}

/// Removes the drivers whose socket is gone, unless they have another one.
fn remove_drivers(drivers: &mut BTreeMap<PathBuf, String>, sockets: &[PathBuf], registrars: &Registrars) {
    let gone: Vec<PathBuf> = drivers.keys().filter(|path| !sockets.contains(path)).cloned().collect();
    let gone: Vec<String> = gone.iter().filter_map(|path| drivers.remove(path)).collect();
    let Some(csi) = &registrars.csi else { return };
    for name in gone.into_iter().filter(|name| !drivers.values().any(|other| other == name)) {
        csi.remove(&name);
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Lists all sockets and watches their directories.
async fn scan_sockets(watcher: &Watcher, directory: &Path) -> Vec<PathBuf> {
    let mut sockets = Vec::new();
    let mut directories = vec![(directory.to_owned(), 0)];
    while let Some((directory, depth)) = directories.pop() {
        // The watch is added before the directory is read, so an entry that appears in between is not missed.
        if let Err(error) = watcher.watch(&directory, Interest::Names) {
            log::debug!(err:% = chain(&error); "Plugin registry directory was removed");
        }
        let listed = directory.clone();
        let list = move || {
            let entries = std::fs::read_dir(&listed).into_iter().flatten().flatten();
            entries.filter_map(|entry| Some((entry.path(), entry.file_type().ok()?))).collect::<Vec<_>>()
        };
        for (path, kind) in rt::blocking("read the plugin registry", list).await {
            let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if kind.is_dir() && !is_hidden && depth < DEEPEST {
                directories.push((path, depth + 1));
            } else if kind.is_socket() && !is_hidden {
                sockets.push(path);
            }
        }
    }
    sockets
}

/// Calls `GetInfo`, registers the plugin and notifies it of the result. Returns the name of a CSI driver.
async fn register_socket(socket: &Path, registrars: &Registrars) -> Result<Option<String>, String> {
    let client = PluginClient::new(socket.to_owned());
    let answer = client.call("/pluginregistration.Registration/GetInfo", Vec::new(), INFO_LIMIT).await?;
    let info = wire::PluginInfo::decode(answer.as_slice()).map_err(|error| error.to_string())?;
    let verdict = register(socket, &info, registrars).await;
    if let Err(why) = &verdict {
        log::warn!(plugin = info.name, socket:% = socket.display(), err = why; "Rejected plugin registration");
    }
    let driver = (verdict.is_ok() && info.r#type == CSI).then(|| info.name.clone());
    let status = wire::RegistrationStatus {
        plugin_registered: verdict.is_ok(),
        error: verdict.err().unwrap_or_default(),
    };
    let path = "/pluginregistration.Registration/NotifyRegistrationStatus";
    // A failed notification does not change the registration.
    if let Err(why) = client.call(path, status.encode_to_vec(), NOTIFY_LIMIT).await {
        log::debug!(plugin = info.name, err = why; "Failed to notify plugin of its registration status");
    }
    Ok(driver)
}

async fn register(socket: &Path, info: &wire::PluginInfo, registrars: &Registrars) -> Result<(), String> {
    let endpoint = if info.endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(&info.endpoint) };
    match (info.r#type.as_str(), &registrars.csi) {
        ("DevicePlugin", _) => {
            registrars.devices.register(&info.name, &info.supported_versions, endpoint).await
        }
        (CSI, Some(csi)) => {
            let versions = info.supported_versions.clone();
            Rc::clone(csi).register(info.name.clone(), versions, endpoint).await
        }
        ("DRAPlugin", Some(_)) => {
            Err("plugins of type DRAPlugin are not supported: this node has no dynamic resource allocation"
                .to_owned())
        }
        (CSI | "DRAPlugin", _) => Err(format!(
            "plugins of type {} are not supported on this node: volume attachments and resource claims need a \
             cluster",
            info.r#type
        )),
        (other, _) => {
            Err(format!("no handler registered for plugin type: {other} at socket {}", socket.display()))
        }
    }
}

#[cfg(test)]
mod tests;
