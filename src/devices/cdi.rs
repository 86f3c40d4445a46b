//! The Container Device Interface, for the runtime that does not implement it: maps device names to container
//! edits.
//!
//! Owns the reading of specifications (`/etc/cdi`, `/var/run/cdi`), which happens only when a container
//! requests a device. An edit that cannot be applied is an error; it is never dropped.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::codec::yaml::yaml_to_values;
use crate::model::ordered::Sortable as _;
use crate::runtime::{ContainerConfig, Device, Mount};

/// Directories of specifications; later ones win.
pub(crate) const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// Annotations of a container whose values are names, separated by commas.
const ANNOTATION: &str = "cdi.k8s.io/";
/// Far more than a machine full of cards needs.
const MAX_SPEC_BYTES: u64 = 4 << 20;
/// Edits that need features which this runtime lacks.
const REFUSED: [&str; 3] = ["hooks", "intelRdt", "netDevices"];

/// Why a container cannot get a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CdiError {
    #[error("unresolvable CDI device {name:?}: not found in any specification in {places}{trouble}")]
    Unknown {
        name: String,
        places: String,
        /// Files that could not be read, and why.
        trouble: String,
    },
    #[error("unresolvable CDI device {name:?}: defined in both {one} and {other}")]
    Conflict {
        /// As asked for.
        name: String,
        one: String,
        other: String,
    },
    #[error("CDI device {name:?} of {file}: {why}")]
    Edit {
        /// As asked for.
        name: String,
        file: String,
        why: String,
    },
}

/// A specification that could be read.
struct Spec {
    directory: usize,
    file: String,
    value: Value,
}

/// All readable specifications, and the errors of the others.
struct Registry {
    specs: Vec<Spec>,
    trouble: Vec<String>,
}

/// Names of devices in a container's annotations.
#[must_use]
pub(crate) fn annotated(config: &ContainerConfig) -> Vec<String> {
    let values = config.annotations.iter().filter(|(key, _)| key.starts_with(ANNOTATION));
    let names = values.flat_map(|(_, names)| names.split(','));
    names.map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Applies the edits of all devices that the container requests by name, and removes the names. Blocks.
///
/// # Errors
/// The first device that is not available. Unreadable specifications that no requested device needs are only
/// logged.
pub(crate) fn apply(directories: &[PathBuf], config: &mut ContainerConfig) -> Result<(), CdiError> {
    let mut names = std::mem::take(&mut config.cdi_devices);
    names.extend(annotated(config));
    if names.is_empty() {
        return Ok(());
    }
    let registry = Registry::read(directories, &names);
    for trouble in &registry.trouble {
        log::warn!(err = trouble; "Failed to read CDI specification, ignoring it");
    }
    let mut edited: Vec<&str> = Vec::new();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            continue;
        }
        let (spec, device) = registry.find(name, directories)?;
        let failed = |why| CdiError::Edit { name: name.clone(), file: spec.file.clone(), why };
        if !edited.contains(&spec.file.as_str()) {
            edited.push(&spec.file);
            edit(&spec.value["containerEdits"], config).map_err(failed)?;
        }
        edit(&device["containerEdits"], config).map_err(failed)?;
    }
    Ok(())
}

impl Registry {
    /// Keeps only specifications that may define one of the `names`.
    fn read(directories: &[PathBuf], names: &[String]) -> Self {
        let kinds: BTreeSet<&str> =
            names.iter().map(|name| name.split_once('=').map_or(name.as_str(), |(kind, _)| kind)).collect();
        let mut all = Self { specs: Vec::new(), trouble: Vec::new() };
        for (number, directory) in directories.iter().enumerate() {
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            let mut paths: Vec<PathBuf> =
                entries.map(|entry| entry.path()).filter(|path| is_spec(path)).collect();
            paths.order_by(Ord::cmp);
            for path in paths {
                let file = path.display().to_string();
                match read_spec(&path) {
                    Ok(value) if value["kind"].as_str().is_some_and(|kind| kinds.contains(kind)) => {
                        all.specs.push(Spec { directory: number, file, value });
                    }
                    Ok(_) => {}
                    Err(why) => all.trouble.push(format!("{file}: {why}")),
                }
            }
        }
        all
    }

    /// The specification and the device in it. The last directory wins.
    fn find(&self, name: &str, directories: &[PathBuf]) -> Result<(&Spec, &Value), CdiError> {
        let (kind, device) = name.split_once('=').unwrap_or((name, ""));
        let mut found: Option<(&Spec, &Value)> = None;
        for spec in self.specs.iter().filter(|spec| spec.value["kind"] == kind) {
            let devices = spec.value["devices"].as_array().into_iter().flatten();
            for it in devices.filter(|it| it["name"] == device) {
                if let Some((other, _)) = found
                    && other.directory == spec.directory
                {
                    return Err(CdiError::Conflict {
                        name: name.to_owned(),
                        one: other.file.clone(),
                        other: spec.file.clone(),
                    });
                }
                found = Some((spec, it));
            }
        }
        found.ok_or_else(|| {
            let places: Vec<String> = directories.iter().map(|path| path.display().to_string()).collect();
            let trouble = if self.trouble.is_empty() {
                String::new()
            } else {
                format!("; unreadable: {}", self.trouble.join("; "))
            };
            CdiError::Unknown { name: name.to_owned(), places: places.join(", "), trouble }
        })
    }
}

fn is_spec(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| matches!(extension, "json" | "yaml" | "yml"))
}

fn read_spec(path: &Path) -> Result<Value, String> {
    use std::io::Read;
    let file = crate::platform::sys::open::open_without_waiting(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    file.take(MAX_SPEC_BYTES + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_SPEC_BYTES {
        return Err(format!("file is larger than {MAX_SPEC_BYTES} bytes"));
    }
    let mut values = yaml_to_values(&text, false).map_err(|error| error.to_string())?;
    let value = if values.len() == 1 {
        values.remove(0)
    } else {
        return Err("must contain exactly one document".to_owned());
    };
    for field in ["cdiVersion", "kind"] {
        if value[field].as_str().is_none_or(str::is_empty) {
            return Err(format!("{field}: Required value"));
        }
    }
    if !crate::devices::rules::is_cdi_name(&format!("{}=x", value["kind"].as_str().unwrap_or_default())) {
        return Err(format!("kind: {} must be vendor.com/class", value["kind"]));
    }
    Ok(value)
}

fn edit(edits: &Value, config: &mut ContainerConfig) -> Result<(), String> {
    for field in REFUSED {
        let wanted = &edits[field];
        if !wanted.is_null() && wanted.as_array().is_none_or(|list| !list.is_empty()) {
            return Err(format!("containerEdits.{field}: not supported by the embedded runtime"));
        }
    }
    let list = |field: &str| edits[field].as_array().map(Vec::as_slice).unwrap_or_default();
    for variable in list("env") {
        let (name, value) = variable
            .as_str()
            .and_then(|text| text.split_once('='))
            .ok_or_else(|| format!("containerEdits.env: {variable} must be NAME=value"))?;
        config.envs.push((name.to_owned(), value.to_owned()));
    }
    for node in list("deviceNodes") {
        config.devices.push(device(node)?);
    }
    for wanted in list("mounts") {
        config.mounts.push(mount(wanted)?);
    }
    for group in list("additionalGids") {
        let group = group
            .as_i64()
            .ok_or_else(|| format!("containerEdits.additionalGids: {group} is not a number"))?;
        // The specification has no use for group 0.
        if group > 0 && !config.security.supplemental_groups.contains(&group) {
            config.security.supplemental_groups.push(group);
        }
    }
    Ok(())
}

/// Type and numbers are read from the node: a specification with other values is wrong about this machine.
fn device(node: &Value) -> Result<Device, String> {
    let text = |field: &str| node[field].as_str().unwrap_or_default().to_owned();
    let number = |field: &str| node[field].as_u64().and_then(|number| u32::try_from(number).ok());
    let container_path = text("path");
    if !container_path.starts_with('/') {
        return Err(format!("containerEdits.deviceNodes.path: {container_path:?} is not an absolute path"));
    }
    let host_path = Some(text("hostPath")).filter(|path| !path.is_empty());
    if host_path.as_ref().is_some_and(|path| !path.starts_with('/')) {
        return Err(format!(
            "containerEdits.deviceNodes.hostPath: {} is not an absolute path",
            node["hostPath"]
        ));
    }
    Ok(Device {
        host_path: host_path.unwrap_or_else(|| container_path.clone()),
        container_path,
        permissions: Some(text("permissions")).filter(|text| !text.is_empty()).unwrap_or("rwm".to_owned()),
        file_mode: number("fileMode"),
        uid: number("uid"),
        gid: number("gid"),
    })
}

fn mount(wanted: &Value) -> Result<Mount, String> {
    let text = |field: &str| wanted[field].as_str().unwrap_or_default().to_owned();
    if !matches!(text("type").as_str(), "" | "none" | "bind") {
        return Err(format!(
            "containerEdits.mounts.type: {:?}: only bind mounts are supported",
            text("type")
        ));
    }
    let (host_path, container_path) = (text("hostPath"), text("containerPath"));
    if !host_path.starts_with('/') || !container_path.starts_with('/') {
        return Err("containerEdits.mounts: hostPath and containerPath must be absolute paths".to_owned());
    }
    let options = wanted["options"].as_array().map(Vec::as_slice).unwrap_or_default();
    let readonly = options.iter().any(|option| option == "ro");
    Ok(Mount { container_path, host_path, readonly, ..Mount::default() })
}

#[cfg(test)]
mod tests;
