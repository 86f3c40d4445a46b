//! The mounts of a container, in the order of its spec: from volume mounts and ready volumes to the runtime's
//! configuration.
//!
//! Owns content and order of mounts and the expansion of `subPathExpr`. Texts are upstream's.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::api::pod::{Container, VolumeMount};
use crate::model::ordered::Ordered as _;
use crate::model::runtime_config::{Mount, MountPropagation, absolute};
use crate::pod::env::expand;

/// A mount is invalid: `CreateContainerConfigError`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MountError {
    #[error("cannot find volume {volume:?} to mount into container {container:?}")]
    NoVolume {
        /// As the mount names it.
        volume: String,
        container: String,
    },
    /// `subPathExpr` names variables that are empty or not there.
    #[error("missing value for {}", .0.join(", "))]
    MissingVariables(Vec<String>),
    #[error("error SubPath `{0}` must not be an absolute path")]
    AbsoluteSubPath(String),
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    Backsteps(String),
    /// `recursiveReadOnly` on a mount that can be written.
    #[error(
        "failed to resolve recursive read-only mode: volume {0:?} requested recursive read-only mode, but it is not read-only"
    )]
    NotReadOnly(String),
    /// `recursiveReadOnly` on a mount with propagation.
    #[error(
        "failed to resolve recursive read-only mode: volume {volume:?} requested recursive read-only mode, \
         but it is not compatible with propagation {propagation:?}"
    )]
    Propagates { volume: String, propagation: String },
    /// `recursiveReadOnly: Enabled` on a runtime without it.
    #[error(
        "failed to resolve recursive read-only mode: volume {0:?} requested recursive read-only mode, but it is not supported by the runtime"
    )]
    NotSupported(String),
    #[error("failed to resolve recursive read-only mode: unknown recursive read-only mode {0:?}")]
    UnknownMode(String),
}

/// The directory or file of the volume that a mount is about, expanded with the container's variables and
/// checked; empty for the whole volume.
pub(crate) fn sub_path(mount: &VolumeMount, environment: &[(String, String)]) -> Result<String, MountError> {
    let path = if mount.sub_path_expr.is_empty() {
        mount.sub_path.clone()
    } else {
        expand_sub_path(&mount.sub_path_expr, environment)?
    };
    if path.starts_with('/') {
        return Err(MountError::AbsoluteSubPath(path));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(MountError::Backsteps(path));
    }
    Ok(path)
}

fn expand_sub_path(expression: &str, environment: &[(String, String)]) -> Result<String, MountError> {
    let variables: BTreeMap<&str, &str> =
        environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).into_map();
    let missing = std::cell::RefCell::new(BTreeSet::new());
    let expanded = expand(expression, |name| {
        let value = variables.get(name).copied().filter(|value| !value.is_empty());
        if value.is_none() {
            missing.borrow_mut().insert(name.to_owned());
        }
        value
    });
    let missing: Vec<String> = missing.into_inner().into_iter().collect();
    if missing.is_empty() { Ok(expanded) } else { Err(MountError::MissingVariables(missing)) }
}

/// Whether the mount is recursively read-only.
pub(crate) fn recursive_read_only(mount: &VolumeMount, runtime_can: bool) -> Result<bool, MountError> {
    let mode = match mount.recursive_read_only.as_deref() {
        None | Some("" | "Disabled") => return Ok(false),
        Some(mode) => mode,
    };
    let name = || mount.name.clone();
    if !mount.read_only {
        return Err(MountError::NotReadOnly(name()));
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|word| !matches!(*word, "" | "None"))
    {
        return Err(MountError::Propagates { volume: name(), propagation: propagation.to_owned() });
    }
    match mode {
        "IfPossible" => Ok(runtime_can),
        "Enabled" if runtime_can => Ok(true),
        "Enabled" => Err(MountError::NotSupported(name())),
        other => Err(MountError::UnknownMode(other.to_owned())),
    }
}

/// Whether any mount of the container depends on what the runtime can do about read-only mounts.
#[must_use]
pub(super) fn asks_for_recursive_read_only(container: &Container) -> bool {
    let asks =
        |mount: &VolumeMount| matches!(mount.recursive_read_only.as_deref(), Some("IfPossible" | "Enabled"));
    container.volume_mounts.iter().any(asks)
}

/// The mount without its source: the caller fills in path, image and labels of the volume.
pub(super) fn make_mount(mount: &VolumeMount, runtime_can: bool) -> Result<Mount, MountError> {
    Ok(Mount {
        container_path: absolute(&mount.mount_path),
        readonly: mount.read_only,
        propagation: match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => MountPropagation::HostToContainer,
            Some("Bidirectional") => MountPropagation::Bidirectional,
            _ => MountPropagation::Private,
        },
        recursive_read_only: recursive_read_only(mount, runtime_can)?,
        ..Mount::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(set: impl FnOnce(&mut VolumeMount)) -> VolumeMount {
        let mut mount =
            VolumeMount { name: "data".to_owned(), mount_path: "srv".to_owned(), ..VolumeMount::default() };
        set(&mut mount);
        mount
    }

    #[test]
    fn sub_path_expr_needs_its_variables_and_cannot_escape() {
        let environment = [("POD", "web"), ("EMPTY", ""), ("UP", ".."), ("ROOT", "/etc")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let of = |expression: &str| {
            sub_path(&mount(|mount| mount.sub_path_expr = expression.to_owned()), &environment)
                .map_err(|error| error.to_string())
        };
        assert_eq!(of("logs/$(POD)"), Ok("logs/web".to_owned()));
        assert_eq!(of("$$(POD)"), Ok("$(POD)".to_owned()));
        assert_eq!(of("$(NOPE)/$(EMPTY)/$(POD)"), Err("missing value for EMPTY, NOPE".to_owned()));
        assert_eq!(
            of("a/$(UP)/b"),
            Err("unable to provision SubPath `a/../b`: must not contain '..'".to_owned())
        );
        assert_eq!(of("$(ROOT)"), Err("error SubPath `/etc` must not be an absolute path".to_owned()));
        let plain = |path: &str| sub_path(&mount(|mount| mount.sub_path = path.to_owned()), &environment);
        assert_eq!(plain("$(POD)"), Ok("$(POD)".to_owned()), "subPath is not expanded");
        assert_eq!(plain(""), Ok(String::new()));
        assert_eq!(plain("..a/b.."), Ok("..a/b..".to_owned()));
    }

    #[test]
    fn recursive_read_only_is_optional_if_possible_else_required() {
        let of = |mode: &str, read_only: bool, propagation: Option<&str>, runtime_can: bool| {
            let mount = mount(|mount| {
                mount.recursive_read_only = Some(mode.to_owned());
                mount.read_only = read_only;
                mount.mount_propagation = propagation.map(str::to_owned);
            });
            recursive_read_only(&mount, runtime_can).map_err(|error| error.to_string())
        };
        let failed = |words: &str| Err(format!("failed to resolve recursive read-only mode: {words}"));
        assert_eq!(of("Disabled", false, None, true), Ok(false));
        assert_eq!(of("IfPossible", true, None, false), Ok(false));
        assert_eq!(of("IfPossible", true, Some("None"), true), Ok(true));
        assert_eq!(of("Enabled", true, None, true), Ok(true));
        let asked = "volume \"data\" requested recursive read-only mode, but it is not";
        assert_eq!(of("Enabled", true, None, false), failed(&format!("{asked} supported by the runtime")));
        assert_eq!(of("IfPossible", false, None, true), failed(&format!("{asked} read-only")));
        assert_eq!(
            of("Enabled", true, Some("HostToContainer"), true),
            failed(&format!("{asked} compatible with propagation \"HostToContainer\""))
        );
        assert_eq!(of("Always", true, None, true), failed("unknown recursive read-only mode \"Always\""));
    }

    #[test]
    fn a_mount_is_what_the_spec_says_with_an_absolute_path() {
        let made = make_mount(
            &mount(|mount| {
                mount.read_only = true;
                mount.mount_propagation = Some("HostToContainer".to_owned());
            }),
            true,
        );
        let expected = Mount {
            container_path: "/srv".to_owned(),
            readonly: true,
            propagation: MountPropagation::HostToContainer,
            ..Mount::default()
        };
        assert_eq!(made, Ok(expected));
    }
}
