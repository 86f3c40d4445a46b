//! The effects of an upgrade on this machine: manifests, backups, the record, certificates, and the wait for pods.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::sleep;

use super::record::ReplacementRecord;
use super::replace::{UpgradeWorld, WaitedHash};
use super::view::Reach;
use crate::agent::control_plane::renewal::{self, Directories, Place, Renewed};
use crate::agent::control_plane::sign::Terms;
use crate::cluster::client::request::ResourcePath;
use crate::cmd::cli::yaml;
use crate::cmd::control_plane::Paths;
use crate::cmd::control_plane::api::AGAIN;
use crate::cmd::control_plane::config::{ClusterConfig, Etcd, InitSettings};
use crate::cmd::control_plane::manifests::{API_SERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER};
use crate::cmd::init::{InitError, InitSession};
use crate::codec::yaml::yaml_to_values;
use crate::model::provenance::CONFIG_HASH_ANNOTATION;
use crate::model::types::Timestamp;
use crate::platform::logging::chain;
use crate::platform::sys::durable::{sync_dir, write_durably};
use crate::platform::sys::{dir, layer};

/// Whose certificates are whose, in kubeadm's order.
const CERTIFICATES: [(&str, &[&str]); 4] = [
    (ETCD, &["etcd-server", "etcd-peer", "etcd-healthcheck-client"]),
    (API_SERVER, &["apiserver", "apiserver-kubelet-client", "front-proxy-client", "apiserver-etcd-client"]),
    (CONTROLLER_MANAGER, &["controller-manager.conf"]),
    (SCHEDULER, &["scheduler.conf"]),
];
/// Beside a copy of etcd's data, this much of the disk stays free.
const SPARE: u64 = 32 * 1024 * 1024;
/// For what is asked once.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct UpgradeMachine<'a, 'b> {
    pub session: &'a mut InitSession<'b>,
    pub paths: &'a Paths,
    /// `None` while an interrupted upgrade is brought to an end: the cluster has not been asked yet.
    pub settings: Option<&'a InitSettings>,
    pub reach: &'a Reach,
    /// For one component.
    pub limit: Duration,
    /// Of the whole upgrade. The way back has its own time.
    pub deadline: Instant,
}

/// A directory for what was before, as kubeadm names it.
pub(super) fn backup_dir(kubernetes: &Path, name: &str, now: Timestamp) -> PathBuf {
    let time: String = now.to_rfc3339().trim_end_matches('Z').replace(['T', ':'], "-");
    kubernetes.join("tmp").join(format!("{name}-{time}"))
}

pub(super) fn record_file(kubernetes: &Path) -> PathBuf {
    kubernetes.join("tmp/agent-upgrade.json")
}

/// The record of an upgrade that was interrupted.
pub(super) fn interrupted(kubernetes: &Path) -> Result<Option<ReplacementRecord>, InitError> {
    let path = record_file(kubernetes);
    let Some(text) = text_of(&path)? else { return Ok(None) };
    let wrong = |why| {
        InitError::ControlPlane(format!(
            "{}: {why}: compare the manifests with their backups in the directories beside this file, and remove it",
            path.display()
        ))
    };
    ReplacementRecord::parse(&text).map(Some).map_err(wrong)
}

pub(super) fn text_of(path: &Path) -> Result<Option<String>, InitError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(InitError::File { action: "read", path: path.to_owned(), source }),
    }
}

/// Writes a file of the owner alone, and the directories above it.
pub(super) fn store(path: &Path, text: &str) -> Result<(), InitError> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let made = dir::make_dir(parent, 0o700).and_then(|()| {
        // The new directory's name, too.
        sync_dir(parent.parent().unwrap_or(Path::new("/")))
    });
    let written = made.and_then(|()| write_durably(path, text.as_bytes(), 0o600));
    written.map_err(|source| InitError::File { action: "write", path: path.to_owned(), source })
}

/// Renews certificates by their names. What an authority elsewhere has signed stays.
pub(super) fn renew(
    session: &mut InitSession<'_>,
    cluster: &ClusterConfig,
    kubernetes: &Path,
    names: &[&str],
) -> Result<(), InitError> {
    let directories = Directories { certs: cluster.cert_dir.clone(), confs: kubernetes.to_owned() };
    let (algorithm, validity, now) = (own_algorithm(cluster), cluster.validity, session.environment.now);
    let all = Place::all();
    for name in names {
        let Some(entry) = all.iter().find(|(known, _)| known == name) else { continue };
        let renewed = renewal::renew(entry, &directories, Terms { algorithm, validity, now });
        match renewed.map_err(|error| InitError::ControlPlane(chain(&error)))? {
            Renewed::Done => session.print(&format!("[upgrade/staticpods] Renewing {name} certificate\n"))?,
            Renewed::External => session.print(&format!(
                "[upgrade/staticpods] External CA detected, {name} certificate can't be renewed\n"
            ))?,
            // Of an etcd elsewhere, or of a node that is not the first.
            Renewed::Missing => {}
        }
    }
    Ok(())
}

/// That of new keys.
fn own_algorithm(cluster: &ClusterConfig) -> &str {
    if cluster.algorithm.starts_with("RSA-") { "ECDSA-P256" } else { &cluster.algorithm }
}

/// Whether two manifests are the same pod.
pub(super) fn is_same_pod(one: &str, other: &str) -> bool {
    plain(one) == plain(other)
}

/// A manifest in one form, so that two can be compared: without comments and empty members. What is no YAML stays.
pub(super) fn plain(manifest: &str) -> String {
    let Ok(mut values) = yaml_to_values(manifest, false) else { return manifest.to_owned() };
    values.iter_mut().for_each(without_empty);
    values.iter().map(yaml::to_string).collect::<Vec<_>>().join("---\n")
}

fn without_empty(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.values_mut().for_each(without_empty);
            members.retain(|_, member| match member {
                Value::Null => false,
                Value::Object(inner) => !inner.is_empty(),
                _ => true,
            });
        }
        Value::Array(items) => items.iter_mut().for_each(without_empty),
        _ => {}
    }
}

/// What is wrong with a component's mirror pod.
fn judge(pod: Option<&Value>, component: &str, hash: WaitedHash<'_>) -> Result<(), String> {
    let Some(pod) = pod else { return Err("the API server shows no such pod".to_owned()) };
    let shown = pod["metadata"]["annotations"][CONFIG_HASH_ANNOTATION].as_str().unwrap_or_default();
    let is_waited = match hash {
        WaitedHash::Not(before) => shown != before,
        WaitedHash::Is(before) => before.is_empty() || shown == before,
    };
    if !is_waited {
        return Err("the kubelet has not taken the manifest yet".to_owned());
    }
    let status = &pod["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    if conditions.into_iter().any(|one| one["type"] == "Ready" && one["status"] == "True") {
        return Ok(());
    }
    let mut containers = status["containerStatuses"].as_array().into_iter().flatten();
    let container = containers.find(|container| container["name"] == component).unwrap_or(&Value::Null);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let state = &container["state"];
    let ended = match &container["lastState"]["terminated"] {
        Value::Null => &state["terminated"],
        last => last,
    };
    let mut why = match (&state["waiting"], &state["running"]) {
        (Value::Null, Value::Null) => "the container does not run".to_owned(),
        (Value::Null, _) => "the container runs and is not ready".to_owned(),
        (waiting, _) => format!("{}: {}", text(&waiting["reason"]), text(&waiting["message"])),
    };
    if let Some(code) = ended["exitCode"].as_i64() {
        why = format!("{why}; it ended with exit code {code}");
        let message = text(&ended["message"]);
        if !message.is_empty() {
            why = format!("{why} ({})", message.trim());
        }
    }
    Err(why)
}

impl UpgradeWorld for UpgradeMachine<'_, '_> {
    fn say(&mut self, text: &str) -> Result<(), InitError> {
        self.session.print(text)
    }

    fn read(&self, path: PathBuf) -> Result<Option<String>, InitError> {
        text_of(&path)
    }

    fn manifest(&self, component: &str) -> PathBuf {
        self.paths.manifests().join(format!("{component}.yaml"))
    }

    fn write(&mut self, path: PathBuf, text: &str) -> Result<(), InitError> {
        store(&path, text)
    }

    fn save(&mut self, record: &ReplacementRecord) -> Result<(), InitError> {
        store(&record_file(&self.paths.kubernetes), &record.to_text())
    }

    fn forget(&mut self) -> Result<(), InitError> {
        let path = record_file(&self.paths.kubernetes);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(source) => Err(InitError::File { action: "remove", path, source }),
            Ok(()) => {
                let parent = path.parent().unwrap_or(Path::new("/")).to_owned();
                sync_dir(&parent).map_err(|source| InitError::File { action: "sync", path: parent, source })
            }
        }
    }

    fn hash(&mut self, component: &str) -> Result<String, InitError> {
        let name = format!("{component}-{}", self.reach.name);
        let of = ResourcePath::namespaced("", "pods", "kube-system", &name);
        let pod = self.reach.talk(PATIENCE, async |api| api.get(&of).await)?;
        let hash = pod.and_then(|pod| {
            pod["metadata"]["annotations"][CONFIG_HASH_ANNOTATION].as_str().map(str::to_owned)
        });
        hash.ok_or_else(|| {
            InitError::ControlPlane(format!(
                "the API server shows no pod kube-system/{name} with the annotation {CONFIG_HASH_ANNOTATION:?}: does the \
                 kubelet run?"
            ))
        })
    }

    fn wait(&mut self, component: &str, hash: WaitedHash<'_>) -> Result<(), String> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let limit = match hash {
            WaitedHash::Not(_) => self.limit.min(left),
            WaitedHash::Is(_) => self.limit,
        };
        let name = format!("{component}-{}", self.reach.name);
        let of = ResourcePath::namespaced("", "pods", "kube-system", &name);
        let until = Instant::now() + limit;
        // Each question once: the server itself is replaced.
        let waited = self.reach.talk(Duration::ZERO, async |api| {
            loop {
                let why = match api.get(&of).await {
                    Ok(pod) => match judge(pod.as_ref(), component, hash) {
                        Ok(()) => return Ok(Ok(())),
                        Err(why) => why,
                    },
                    Err(error) => chain(&error),
                };
                if Instant::now() + AGAIN > until {
                    return Ok(Err(why));
                }
                sleep(AGAIN).await;
            }
        });
        let time = crate::model::types::go_duration(Duration::from_secs(limit.as_secs()));
        waited.map_err(|error| chain(&error))?.map_err(|why| format!("not healthy within {time}: {why}"))
    }

    fn renew(&mut self, component: &str) -> Result<(), InitError> {
        let names = CERTIFICATES.iter().find(|(of, _)| *of == component).map_or(&[][..], |(_, names)| names);
        let Some(settings) = self.settings else { return Ok(()) };
        renew(self.session, &settings.cluster, &self.paths.kubernetes, names)
    }

    fn back_up_etcd(&mut self) -> Result<Option<PathBuf>, InitError> {
        let Some(Etcd::Local(local)) = self.settings.map(|settings| &settings.cluster.etcd) else {
            return Ok(None);
        };
        let from = local.data_dir.clone();
        let kubernetes = self.paths.kubernetes.clone();
        let to = backup_dir(&kubernetes, "kubeadm-backup-etcd", self.session.environment.now);
        let failed = |path: &Path, action: &'static str| {
            let path = path.to_owned();
            move |source| InitError::File { action, path, source }
        };
        let parent = kubernetes.join("tmp");
        dir::make_dir(&parent, 0o700).map_err(failed(&parent, "create directory"))?;
        let needed = size(&from).map_err(failed(&from, "read"))?;
        let free = layer::free_space(&parent).map_err(failed(&parent, "read the free space of"))?.bytes;
        if needed.saturating_add(SPARE) > free {
            self.session.print_error(&format!(
                "W etcd's data is not backed up: {} has {} MB free, the copy of {} needs {} MB and {} MB to spare\n",
                parent.display(),
                free >> 20,
                from.display(),
                needed >> 20,
                SPARE >> 20
            ));
            return Ok(None);
        }
        self.say(&format!("[upgrade/etcd] Backing up etcd's data to {:?}\n", to.display().to_string()))?;
        copy(&from, &to).map_err(|source| {
            // Half a copy is none.
            let _ = fs::remove_dir_all(&to);
            failed(&from, "back up etcd's data in")(source)
        })?;
        Ok(Some(to))
    }

    fn is_same(&self, one: &str, other: &str) -> bool {
        is_same_pod(one, other)
    }
}

/// Bytes of all files. What goes in the meantime counts nothing.
fn size(directory: &Path) -> io::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let about = match entry.metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            about => about?,
        };
        sum += if about.is_dir() { size(&entry.path())? } else { about.len() };
    }
    Ok(sum)
}

/// Directories and files, durably. etcd removes old files at any time.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    dir::make_dir(to, 0o700)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy(&path, &to)?;
            continue;
        }
        match fs::copy(&path, &to) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            copied => {
                copied?;
                fs::File::open(&to)?.sync_all()?;
            }
        }
    }
    sync_dir(to)
}

#[cfg(test)]
mod tests;
