//! What the engine reports, in this crate's types.
//!
//! Pure: from the engine's JSON. Containers without the labels of a kubelet's pod are left out.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::request::{ANNOTATION, CONTAINER, KIND, SANDBOX, SANDBOX_ID, annotations};
use crate::codec::json;
use crate::model::image_name::{repository_of, split_reference};
use crate::model::observed::{ContainerStateKind, ObservedContainer, ObservedMount, ObservedSandbox};
use crate::model::ordered::Ordered as _;
use crate::model::types::{ContainerId, SandboxId, Timestamp};
use crate::runtime::convert::{may_name_files, pod_from_labels};
use crate::runtime::{ImageStatus, RuntimeImage, labels};

/// The exit code of a container that could not be started, if the engine reports none.
const START_FAILED: i32 = 128;

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}

/// The first process of an inspected container, while one runs.
pub(super) fn process_of(object: &Value) -> Option<i32> {
    object["State"]["Pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0)
}

fn time(value: &Value) -> Timestamp {
    let parsed = value.as_str().and_then(Timestamp::parse_rfc3339);
    // Go's zero is in the year 1.
    parsed.filter(|time| time.as_nanos() > 0).unwrap_or_default()
}

/// `Labels` of a list's item, or of `Config` in an inspection.
pub(super) fn labels_of(object: &Value) -> BTreeMap<String, String> {
    let labels = object["Labels"].as_object().into_iter().flatten();
    labels.map(|(key, value)| (key.clone(), text(value))).into_map()
}

/// Whether one of the engine's runtimes has recursive read-only mounts: the engine needs to know it, too.
pub(super) fn has_recursive_read_only(runtime: &Value) -> bool {
    let features = runtime["status"]["org.opencontainers.runtime-spec.features"].as_str().unwrap_or_default();
    let features = json::parse_lean(features.as_bytes()).unwrap_or_default();
    features["mountOptions"].as_array().into_iter().flatten().any(|option| option == "rro")
}

/// The sixth part of `k8s_<container>_<pod>_<namespace>_<uid>_<attempt>`: no part before it may contain `_`.
fn attempt(name: &str) -> u32 {
    name.split('_').nth(5).and_then(|part| part.parse().ok()).unwrap_or_default()
}

fn state(word: &str) -> ContainerStateKind {
    match word {
        "created" | "initialized" | "configured" => ContainerStateKind::Created,
        "running" | "paused" | "restarting" | "stopping" => ContainerStateKind::Running,
        "exited" | "dead" | "removing" | "stopped" => ContainerStateKind::Exited,
        _ => ContainerStateKind::Unknown,
    }
}

/// True for an item of a list that the agent, or another kubelet, has made.
pub(super) fn is_of_pod(item: &Value) -> bool {
    item["Labels"].get(KIND).is_some() && item["Labels"].get(labels::POD_UID).is_some()
}

/// An item of a list. `is_connected` says whether the sandbox has the network that it is to have.
pub(super) fn sandbox_from_list(
    item: &Value,
    is_connected: impl Fn(&SandboxId) -> bool,
) -> Option<ObservedSandbox> {
    if item["Labels"][KIND] != SANDBOX {
        return None;
    }
    let id = SandboxId::from(text(&item["Id"]));
    let host_network = item["HostConfig"]["NetworkMode"] == "host";
    let runs = state(item["State"].as_str().unwrap_or_default()) == ContainerStateKind::Running;
    Some(ObservedSandbox {
        pod: pod_from_labels(&labels_of(item))?,
        ready: runs && (host_network || is_connected(&id)),
        attempt: attempt(item["Names"][0].as_str().unwrap_or_default()),
        created_at: Timestamp::from_secs(item["Created"].as_i64().unwrap_or_default()),
        ips: Vec::new(),
        host_network: false,
        id,
    })
}

/// An inspected sandbox; `ips` are those of the pods' network, `None` when it is not connected.
pub(super) fn sandbox_from_inspection(object: &Value, ips: Option<Vec<String>>) -> Option<ObservedSandbox> {
    let host_network = object["HostConfig"]["NetworkMode"] == "host";
    let runs = object["State"]["Running"] == true;
    Some(ObservedSandbox {
        id: SandboxId::from(text(&object["Id"])),
        pod: pod_from_labels(&labels_of(&object["Config"]))?,
        ready: runs && (host_network || ips.is_some()),
        attempt: attempt(object["Name"].as_str().unwrap_or_default()),
        created_at: time(&object["Created"]),
        ips: if host_network { Vec::new() } else { ips.unwrap_or_default() },
        host_network,
    })
}

/// An item of a list.
pub(super) fn container_from_list(item: &Value) -> Option<ObservedContainer> {
    if item["Labels"][KIND] != CONTAINER {
        return None;
    }
    let labels = labels_of(item);
    let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
    let name = label(labels::CONTAINER_NAME);
    let container = ObservedContainer {
        id: ContainerId::from(text(&item["Id"])),
        pod: pod_from_labels(&labels)?,
        sandbox: SandboxId::from(label(SANDBOX_ID)),
        state: state(item["State"].as_str().unwrap_or_default()),
        attempt: attempt(item["Names"][0].as_str().unwrap_or_default()),
        hash: label(&format!("{ANNOTATION}{}", labels::CONTAINER_HASH)),
        image: text(&item["Image"]),
        image_id: text(&item["ImageID"]),
        created_at: Timestamp::from_secs(item["Created"].as_i64().unwrap_or_default()),
        name: name.as_str().into(),
        ..ObservedContainer::default()
    };
    may_name_files(&name).then_some(container)
}

/// The name of a container's image, and its digest if it has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ImageNames {
    /// In full, with its tag.
    pub name: String,
    /// `<repository>@<digest>`, else the id.
    pub reference: String,
}

pub(super) fn image_names(image: &Value) -> ImageNames {
    let first = |names: &Value| names[0].as_str().map(full_name);
    let id = text(&image["Id"]);
    ImageNames {
        name: first(&image["RepoTags"]).unwrap_or_else(|| id.clone()),
        reference: first(&image["RepoDigests"]).unwrap_or(id),
    }
}

/// An inspected container.
pub(super) fn container_from_inspection(object: &Value, image: ImageNames) -> Option<ObservedContainer> {
    let labels = labels_of(&object["Config"]);
    let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
    let found = &object["State"];
    let created_at = time(&object["Created"]);
    let code = i32::try_from(found["ExitCode"].as_i64().unwrap_or_default()).unwrap_or(START_FAILED);
    let (started_at, finished_at) = (time(&found["StartedAt"]), time(&found["FinishedAt"]));
    let is_oom = found["OOMKilled"] == true;
    let mounts = object["Mounts"].as_array().into_iter().flatten();
    let mut container = ObservedContainer {
        id: ContainerId::from(text(&object["Id"])),
        pod: pod_from_labels(&labels)?,
        name: label(labels::CONTAINER_NAME).into(),
        sandbox: SandboxId::from(label(SANDBOX_ID)),
        state: state(found["Status"].as_str().unwrap_or_default()),
        attempt: attempt(object["Name"].as_str().unwrap_or_default()),
        image: image.name,
        image_id: image.reference,
        created_at,
        annotations: annotations(&labels),
        log_path: text(&object["LogPath"]),
        mounts: mounts.map(|it| mount(it, &object["HostConfig"]["Mounts"])).collect(),
        message: text(&found["Error"]),
        ..ObservedContainer::default()
    };
    container.hash = container.annotations.get(labels::CONTAINER_HASH).cloned().unwrap_or_default();
    match container.state {
        ContainerStateKind::Exited => {
            let reason = match code {
                _ if is_oom => "OOMKilled",
                0 => "Completed",
                _ => "Error",
            };
            reason.clone_into(&mut container.reason);
            (container.started_at, container.exit_code) = (started_at, code);
            container.finished_at = if finished_at.is_zero() { created_at } else { finished_at };
        }
        // The engine's word for one whose program could not be started stays `created`.
        ContainerStateKind::Created if code != 0 || !container.message.is_empty() => {
            container.state = ContainerStateKind::Exited;
            "ContainerCannotRun".clone_into(&mut container.reason);
            container.exit_code = if code == 0 { START_FAILED } else { code };
            container.finished_at = created_at;
        }
        ContainerStateKind::Running => container.started_at = started_at,
        _ => {}
    }
    Some(container)
}

/// `requested` are those of the container's request.
fn mount(mount: &Value, requested: &Value) -> ObservedMount {
    let container_path = text(&mount["Destination"]);
    let is_recursive = |it: &Value| {
        it["BindOptions"]["ReadOnlyForceRecursive"] == true
            && Path::new(it["Target"].as_str().unwrap_or_default()) == Path::new(&container_path)
    };
    ObservedMount {
        recursive_read_only: requested.as_array().into_iter().flatten().any(is_recursive),
        host_path: text(&mount["Source"]),
        container_path,
    }
}

/// `docker.io/library/busybox:1` for `busybox:1`, as the other runtimes name images.
fn full_name(name: &str) -> String {
    let (_, tag, digest) = split_reference(name);
    let mut full = repository_of(name);
    for (before, part) in [(':', tag), ('@', digest)] {
        if let Some(part) = part {
            full.push(before);
            full.push_str(part);
        }
    }
    full
}

/// An inspected image.
pub(super) fn image_status(image: &Value) -> ImageStatus {
    let user = text(&image["Config"]["User"]);
    let user = user.split(':').next().unwrap_or_default();
    let uid = user.parse::<i64>().ok();
    ImageStatus {
        id: text(&image["Id"]),
        uid,
        username: if uid.is_some() { String::new() } else { user.to_owned() },
        size_bytes: image["Size"].as_u64().unwrap_or_default(),
    }
}

/// An image of a list; `pinned` says by its id and names whether it must stay.
pub(super) fn listed_image(image: &Value, pinned: impl Fn(&str, &[String]) -> bool) -> RuntimeImage {
    let id = text(&image["Id"]);
    let all = strings(&image["RepoDigests"]).into_iter().chain(strings(&image["RepoTags"]));
    let names: Vec<String> =
        all.filter(|name| !name.contains("<none>")).map(|name| full_name(&name)).collect();
    RuntimeImage {
        pinned: pinned(&id, &names),
        size_bytes: image["Size"].as_u64().unwrap_or_default(),
        names,
        id,
    }
}

#[cfg(test)]
mod tests;
