//! Which devices of the node a container requests, by annotation and by volume, and whether the node allows
//! them.
//!
//! Owns the annotation's syntax and the matching of the node's list.
//!
//! Pure: what it returns depends on its arguments alone.

use crate::model::api::pod::{Container, Pod, VolumeMount};
use crate::model::containers::all_with_ephemeral;
use crate::model::runtime_config::Device;

/// Prefix of the annotation key; a container's name follows, and the value lists its devices.
pub(super) const DEVICES_ANNOTATION: &str = "devices.agent.edge/";
/// The pod requests a device that the node does not allow.
pub(crate) const NOT_ALLOWED: &str = "DeviceNotAllowed";
/// A container waits for a missing device.
pub(crate) const NOT_FOUND: &str = "DeviceNotFound";
/// Open for reading and writing. `mknod` needs no rule here: it is allowed to all containers and opens
/// nothing.
const READ_WRITE: &str = "rw";

/// One entry of the annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceRequest {
    /// A path of the node: a device, or a directory with devices.
    Path(Device),
    /// A name of the Container Device Interface: `vendor.com/class=name`.
    Cdi(String),
}

impl DeviceRequest {
    fn name(&self) -> &str {
        match self {
            Self::Path(device) => &device.host_path,
            Self::Cdi(name) => name,
        }
    }
}

/// Entries of an annotation, separated by commas or white space: `/dev/x`, `/dev/x:/dev/y`, `/dev/x:r`,
/// `/dev/x:/dev/y:rw`, or a name of the Container Device Interface. Colons in paths (`/dev/serial/by-path/…`)
/// are fine.
pub(crate) fn parse(text: &str) -> Result<Vec<DeviceRequest>, String> {
    let entries = text.split(|letter: char| letter == ',' || letter.is_ascii_whitespace());
    entries.filter(|entry| !entry.is_empty()).map(parse_entry).collect()
}

fn parse_entry(entry: &str) -> Result<DeviceRequest, String> {
    if !entry.starts_with('/') {
        if is_cdi_name(entry) {
            return Ok(DeviceRequest::Cdi(entry.to_owned()));
        }
        return Err(format!(
            "{entry:?} must be an absolute path (/dev/x, /dev/x:/dev/y, /dev/x:rw) or a CDI name \
             (vendor.com/class=name)"
        ));
    }
    let (paths, letters) = match entry.rsplit_once(':') {
        Some((paths, letters)) if is_permissions(letters) => (paths, letters),
        _ => (entry, READ_WRITE),
    };
    let (host, container) = match paths.split_once(":/") {
        Some((host, container)) => (host.to_owned(), format!("/{container}")),
        None => (paths.to_owned(), paths.to_owned()),
    };
    if host.ends_with(':') || container.ends_with(':') {
        return Err(format!("{entry:?} must have permissions of the letters rwm after its last colon"));
    }
    for path in [&host, &container] {
        if path.split('/').any(|part| part == "..") {
            return Err(format!("{path:?} must not contain '..'"));
        }
    }
    if container.trim_end_matches('/').matches('/').count() < 2 {
        return Err(format!(
            "{container:?} is not a valid device path in a container: use a path such as /dev/x"
        ));
    }
    Ok(DeviceRequest::Path(Device {
        host_path: host,
        container_path: container,
        permissions: letters.to_owned(),
        ..Device::default()
    }))
}

/// Letters of `rwm`, each once.
fn is_permissions(text: &str) -> bool {
    let once = |letter: char| text.matches(letter).count() == 1 && "rwm".contains(letter);
    !text.is_empty() && text.chars().all(once)
}

/// `vendor.com/class=name`, with the characters that the specification allows.
#[must_use]
pub(super) fn is_cdi_name(text: &str) -> bool {
    let Some((kind, name)) = text.split_once('=') else { return false };
    let Some((vendor, class)) = kind.split_once('/') else { return false };
    let of = |text: &str, inner: &str| {
        let ends = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_alphanumeric());
        let fits = |letter: char| letter.is_ascii_alphanumeric() || inner.contains(letter);
        ends(text.chars().next()) && ends(text.chars().last()) && text.chars().all(fits)
    };
    of(vendor, "_-.") && of(class, "_-") && of(name, "_-.:")
}

/// The devices that the annotation of this container requests. Validation of the pod has checked its syntax.
#[must_use]
pub(crate) fn by_annotation(pod: &Pod, container: &str) -> Vec<DeviceRequest> {
    let annotations = &pod.metadata.annotations;
    let named = |key: &String| key.strip_prefix(DEVICES_ANNOTATION) == Some(container);
    let text = annotations.iter().find(|(key, _)| named(key)).map(|(_, text)| text.as_str());
    parse(text.unwrap_or_default()).unwrap_or_default()
}

/// Volume mounts of device types, with the name of their volume: the container may also open the device, which
/// upstream forbids. A read-only mount gives read permission only.
#[must_use]
pub(crate) fn by_volume<'a>(pod: &Pod, container: &'a Container) -> Vec<(&'a str, Device)> {
    let device = |mount: &'a VolumeMount| {
        let volume = pod.spec.volumes.iter().find(|volume| volume.name == mount.name)?;
        let source = volume.host_path.as_ref().filter(|source| is_device_type(&source.type_))?;
        let device = Device {
            host_path: source.path.clone(),
            container_path: crate::model::runtime_config::absolute(&mount.mount_path),
            permissions: if mount.read_only { "r" } else { READ_WRITE }.to_owned(),
            ..Device::default()
        };
        Some((mount.name.as_str(), device))
    };
    container.volume_mounts.iter().filter_map(device).collect()
}

/// `CharDevice` and `BlockDevice` of hostPath.
#[must_use]
pub(super) fn is_device_type(type_: &str) -> bool {
    matches!(type_, "CharDevice" | "BlockDevice")
}

/// Paths that must exist before the pod's volumes can be set up.
#[must_use]
pub(crate) fn volume_paths(pod: &Pod) -> Vec<String> {
    let sources = pod.spec.volumes.iter().filter_map(|volume| volume.host_path.as_ref());
    sources.filter(|source| is_device_type(&source.type_)).map(|source| source.path.clone()).collect()
}

/// Errors in annotations about devices: key and message.
#[must_use]
pub(crate) fn annotation_problems(pod: &Pod) -> Vec<(&str, String)> {
    let mut problems = Vec::new();
    for (key, text) in &pod.metadata.annotations {
        let Some(name) = key.strip_prefix(DEVICES_ANNOTATION) else { continue };
        if !all_with_ephemeral(pod).any(|(container, _)| container.name == name) {
            problems.push((key.as_str(), format!("container {name:?} not found in pod")));
        } else if let Err(why) = parse(text) {
            problems.push((key.as_str(), why));
        }
    }
    problems
}

/// Whether the node allows the pod's devices. `allowed` holds paths and CDI names, in which `*` stands for
/// anything. A privileged container has every device anyhow.
pub(crate) fn check_allowed(pod: &Pod, allowed: &[String]) -> Result<(), String> {
    for (container, _) in all_with_ephemeral(pod) {
        let security = container.security_context.as_ref();
        if security.is_some_and(|security| security.privileged == Some(true)) {
            continue;
        }
        let mut wanted = by_annotation(pod, &container.name);
        wanted.extend(by_volume(pod, container).into_iter().map(|(_, device)| DeviceRequest::Path(device)));
        let is_refused =
            |wanted: &&DeviceRequest| !allowed.iter().any(|pattern| matches_pattern(pattern, wanted.name()));
        if let Some(refused) = wanted.iter().find(is_refused) {
            return Err(format!(
                "container {:?} requests device {:?}, which --allowed-devices of this node does not include",
                container.name,
                refused.name()
            ));
        }
    }
    Ok(())
}

/// `*` stands for any text, slashes included.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests;
