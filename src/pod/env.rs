//! A container's environment, and the expansion of `$(VAR)` in it, in command and args.
//!
//! Owns values.
//!
//! Pure: what it returns depends on its arguments alone.

mod file;

use std::collections::{BTreeMap, BTreeSet};

use crate::model::api::pod::{
    Container, EnvVarSource, FileKeySelector, KeySelector, OptionalObjectReference, Pod,
    ResourceFieldSelector,
};
use crate::model::api::quantity::Quantity;
use crate::model::containers::find_container;
use crate::model::objects::{Absence, ObjectData, ObjectKey, ObjectKind, ObjectLookup};
use crate::model::ordered::Ordered as _;
use crate::model::provenance::realm;
use crate::model::types::ContainerName;
use crate::pod::resources::{NodeCapacity, effective_limits};

/// The inputs of an environment besides the pod.
#[derive(Clone, Copy)]
pub(super) struct EnvContext<'a> {
    /// `spec.nodeName` for pods that do not set it.
    pub node_name: &'a str,
    pub host_ips: &'a [String],
    /// Primary first; the node's addresses for a host-network pod.
    pub pod_ips: &'a [String],
    /// What unlimited containers are shown as their limit: the node's allocatable.
    pub allocatable: &'a NodeCapacity,
    /// Of all realms.
    pub objects: &'a dyn ObjectLookup,
    /// The files that [`env_files`] listed.
    pub files: &'a EnvFiles,
}

/// Env files by volume and path; `None`: the volume exists, but the file cannot be read.
pub(super) type EnvFiles = BTreeMap<(String, String), Option<Vec<u8>>>;

/// The env files a container's variables are read from, by volume and path: only volumes of kind emptyDir
/// have any.
#[must_use]
pub(super) fn env_files(pod: &Pod, container: &Container) -> BTreeSet<(String, String)> {
    let is_empty_dir =
        |name: &str| pod.spec.volumes.iter().any(|volume| volume.name == name && volume.empty_dir.is_some());
    let sources = container.env.iter().filter_map(|variable| variable.value_from.as_ref());
    sources
        .filter_map(|source| source.file_key_ref.as_ref())
        .filter(|selector| is_empty_dir(&selector.volume_name))
        .map(|selector| (selector.volume_name.clone(), selector.path.clone()))
        .into_set()
}

/// A variable has no value: the container cannot start (`CreateContainerConfigError`). Texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnvError {
    #[error("configmap {0:?} not found")]
    ConfigMapNotFound(String),
    #[error("secret {0:?} not found")]
    SecretNotFound(String),
    /// The API server has not given it, or refuses it.
    #[error("{0}")]
    Unread(String),
    #[error("services have not yet been read at least once, cannot construct envvars")]
    ServicesNotRead,
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    KeyNotFound {
        /// `ConfigMap` or `Secret`.
        kind: &'static str,
        namespace: String,
        name: String,
        key: String,
    },
    /// `fieldRef` to a field that upstream does not support.
    #[error("unsupported fieldPath: {0}")]
    UnsupportedField(String),
    /// `resourceFieldRef` to an unsupported resource.
    #[error("unsupported container resource : {0}")]
    UnsupportedResource(String),
    /// `resourceFieldRef.containerName` names no container of the pod.
    #[error("container {0} not found")]
    ContainerNotFound(String),
    /// `fileKeyRef` to a volume that does not exist or is not an emptyDir.
    #[error("cannot find the volume {0:?} referenced by FileKeyRef")]
    EnvFileVolume(String),
    /// The file does not exist, or its syntax is invalid.
    #[error("couldn't parse env file")]
    EnvFile,
    #[error("environment variable key {key:?} not found in file {path:?}")]
    EnvFileKey {
        key: String,
        /// In its volume.
        path: String,
    },
}

/// Variables in order of definition, `envFrom` first; a later definition replaces the value of an earlier
/// one. Those of Services come last and replace none.
pub(super) fn make_environment(
    pod: &Pod,
    container: &Container,
    context: &EnvContext<'_>,
) -> Result<Vec<(String, String)>, EnvError> {
    let services = service_variables(pod, context)?;
    let mut environment = Environment::default();
    for source in &container.env_from {
        let is_optional = |reference: &OptionalObjectReference| reference.optional == Some(true);
        let data = if let Some(reference) = &source.config_map_ref {
            data_of(pod, ObjectKind::ConfigMap, &reference.name, is_optional(reference), context)?
        } else if let Some(reference) = &source.secret_ref {
            data_of(pod, ObjectKind::Secret, &reference.name, is_optional(reference), context)?
        } else {
            None
        };
        for (key, value) in data.unwrap_or_default() {
            environment.set(&format!("{}{key}", source.prefix), text(&value));
        }
    }
    for variable in &container.env {
        let value = match &variable.value_from {
            Some(source) if variable.value.is_empty() => value_from(pod, container, source, context)?,
            _ => Some(expand(&variable.value, |name| {
                environment.get(name).or_else(|| services.get(name).map(String::as_str))
            })),
        };
        if let Some(value) = value {
            environment.set(&variable.name, value);
        }
    }
    for (name, value) in services {
        if environment.get(&name).is_none() {
            environment.set(&name, value);
        }
    }
    Ok(environment.variables)
}

/// What Services add; nothing to pods of this node.
fn service_variables(pod: &Pod, context: &EnvContext<'_>) -> Result<BTreeMap<String, String>, EnvError> {
    let objects = context.objects.of(realm(pod));
    let links = pod.spec.enable_service_links.unwrap_or(true);
    match objects.service_variables(&pod.metadata.namespace, links) {
        Ok(variables) => Ok(variables.into_iter().into_map()),
        Err(Absence::Refused(message)) => Err(EnvError::Unread(message)),
        Err(_) => Err(EnvError::ServicesNotRead),
    }
}

#[derive(Default)]
struct Environment {
    variables: Vec<(String, String)>,
    positions: BTreeMap<String, usize>,
}

impl Environment {
    fn get(&self, name: &str) -> Option<&str> {
        let variable = self.variables.get(*self.positions.get(name)?)?;
        Some(variable.1.as_str())
    }

    fn set(&mut self, name: &str, value: String) {
        if let Some(variable) = self.positions.get(name).and_then(|at| self.variables.get_mut(*at)) {
            variable.1 = value;
        } else {
            self.positions.insert(name.to_owned(), self.variables.len());
            self.variables.push((name.to_owned(), value));
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The values of a ConfigMap or Secret; `None` if it is optional and does not exist.
fn data_of(
    pod: &Pod,
    kind: ObjectKind,
    name: &str,
    is_optional: bool,
    context: &EnvContext<'_>,
) -> Result<Option<ObjectData>, EnvError> {
    let (namespace, objects) = (pod.metadata.namespace.as_str(), context.objects.of(realm(pod)));
    let found = match kind {
        ObjectKind::ConfigMap => objects.config_map(namespace, name).map(|found| found.data),
        _ => objects.secret(namespace, name),
    };
    if found.is_some() {
        return Ok(found);
    }
    let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
    match objects.absence(&key).message(kind) {
        Some(message) => Err(EnvError::Unread(message)),
        None if is_optional => Ok(None),
        None if kind == ObjectKind::ConfigMap => Err(EnvError::ConfigMapNotFound(key.name)),
        None => Err(EnvError::SecretNotFound(key.name)),
    }
}

/// `None` leaves the variable out: an optional object or key is absent.
fn value_from(
    pod: &Pod,
    container: &Container,
    source: &EnvVarSource,
    context: &EnvContext<'_>,
) -> Result<Option<String>, EnvError> {
    if let Some(field) = &source.field_ref {
        return pod_field(pod, &field.field_path, context).map(Some);
    }
    if let Some(selector) = &source.resource_field_ref {
        return resource_value(pod, Some(container), selector, context.allocatable).map(Some);
    }
    if let Some(selector) = &source.config_map_key_ref {
        return key_value(pod, ObjectKind::ConfigMap, selector, context);
    }
    if let Some(selector) = &source.secret_key_ref {
        return key_value(pod, ObjectKind::Secret, selector, context);
    }
    if let Some(selector) = &source.file_key_ref {
        return file_value(selector, context.files);
    }
    Ok(Some(String::new()))
}

/// Upstream does not distinguish an empty value from none.
fn file_value(selector: &FileKeySelector, files: &EnvFiles) -> Result<Option<String>, EnvError> {
    let place = (selector.volume_name.clone(), selector.path.clone());
    let content = files.get(&place).ok_or_else(|| EnvError::EnvFileVolume(place.0.clone()))?;
    let found = content.as_ref().and_then(|content| file::find(&text(content), &selector.key).ok());
    let value = found.ok_or(EnvError::EnvFile)?.filter(|value| !value.is_empty());
    if value.is_none() && selector.optional != Some(true) {
        return Err(EnvError::EnvFileKey { key: selector.key.clone(), path: place.1 });
    }
    Ok(value)
}

fn key_value(
    pod: &Pod,
    kind: ObjectKind,
    selector: &KeySelector,
    context: &EnvContext<'_>,
) -> Result<Option<String>, EnvError> {
    let optional = selector.optional == Some(true);
    let Some(data) = data_of(pod, kind, &selector.name, optional, context)? else { return Ok(None) };
    match data.get(&selector.key) {
        Some(value) => Ok(Some(text(value))),
        None if optional => Ok(None),
        None => Err(EnvError::KeyNotFound {
            kind: kind.as_str(),
            namespace: pod.metadata.namespace.clone(),
            name: selector.name.clone(),
            key: selector.key.clone(),
        }),
    }
}

/// The value of a variable's `fieldRef`.
pub(super) fn pod_field(pod: &Pod, path: &str, context: &EnvContext<'_>) -> Result<String, EnvError> {
    let first = |ips: &[String]| ips.first().cloned().unwrap_or_default();
    Ok(match path {
        "spec.nodeName" if pod.spec.node_name.is_empty() => context.node_name.to_owned(),
        "spec.nodeName" => pod.spec.node_name.clone(),
        "spec.serviceAccountName" => pod.spec.service_account_name.clone(),
        "status.hostIP" => first(context.host_ips),
        "status.hostIPs" => context.host_ips.join(","),
        "status.podIP" => first(context.pod_ips),
        "status.podIPs" => context.pod_ips.join(","),
        _ => return metadata_field(pod, path),
    })
}

/// The value of a `fieldRef` to the pod's metadata, the only fields that volumes may use. Whole label and
/// annotation maps become lines `key="value"`, quoted as in Go.
pub(super) fn metadata_field(pod: &Pod, path: &str) -> Result<String, EnvError> {
    let unsupported = || EnvError::UnsupportedField(path.to_owned());
    let metadata = &pod.metadata;
    if let Some((map, rest)) = path.split_once("['") {
        let key = rest.strip_suffix("']").ok_or_else(unsupported)?;
        let map = match map {
            "metadata.annotations" => &metadata.annotations,
            "metadata.labels" => &metadata.labels,
            _ => return Err(unsupported()),
        };
        return Ok(map.get(key).cloned().unwrap_or_default());
    }
    let lines = |map: &BTreeMap<String, String>| {
        let lines: Vec<String> =
            map.iter().map(|(key, value)| format!("{key}={}", go_quoted(value))).collect();
        lines.join("\n")
    };
    Ok(match path {
        "metadata.name" => metadata.name.clone(),
        "metadata.namespace" => metadata.namespace.clone(),
        "metadata.uid" => metadata.uid.to_string(),
        "metadata.annotations" => lines(&metadata.annotations),
        "metadata.labels" => lines(&metadata.labels),
        _ => return Err(unsupported()),
    })
}

/// Go's `%q`.
fn go_quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            ' '..='~' => quoted.push(c),
            c if !c.is_ascii() && is_printable(c) => quoted.push(c),
            c => quoted.push_str(&go_escape(c)),
        }
    }
    quoted.push('"');
    quoted
}

fn go_escape(c: char) -> String {
    match u32::from(c) {
        code @ ..0x80 => format!("\\x{code:02x}"),
        code @ ..0x1_0000 => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}

/// As in the standard library's escaping, which treats a combining mark by the character before it.
fn is_printable(c: char) -> bool {
    !format!("a{c}").escape_debug().to_string().contains("\\u{")
}

/// The value of a `resourceFieldRef`; `container` is the default for its `containerName`.
pub(super) fn resource_value(
    pod: &Pod,
    container: Option<&Container>,
    selector: &ResourceFieldSelector,
    allocatable: &NodeCapacity,
) -> Result<String, EnvError> {
    let missing = || EnvError::ContainerNotFound(selector.container_name.clone());
    let container = if selector.container_name.is_empty() {
        container.ok_or_else(missing)?
    } else {
        let name = ContainerName::from(selector.container_name.as_str());
        find_container(pod, &name).ok_or_else(missing)?.0
    };
    let unsupported = || EnvError::UnsupportedResource(selector.resource.clone());
    let (list, name) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let known = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    let amount = match list {
        "limits" if known => effective_limits(pod, container, allocatable).get(name).copied(),
        "requests" if known => container.resources.requests.get(name).copied(),
        _ => return Err(unsupported()),
    };
    let amount = amount.unwrap_or_default();
    let divisor =
        selector.divisor.filter(|divisor| !divisor.is_zero()).unwrap_or_else(|| Quantity::from_units(1));
    let (amount, divisor) = if name == "cpu" {
        (amount.milli_value(), divisor.milli_value())
    } else {
        (amount.value(), divisor.value())
    };
    let divisor = divisor.max(1);
    let whole = amount / divisor + i64::from(amount % divisor > 0);
    Ok(whole.to_string())
}

/// Replaces `$(NAME)` by its value where there is one. `$$` is a dollar sign and ends the meaning of what
/// follows: `$$(NAME)` gives `$(NAME)`.
pub(super) fn expand<'a>(input: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut output = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        output.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            output.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            match lookup(name) {
                Some(value) => output.push_str(value),
                None => output.extend(["$(", name, ")"]),
            }
            rest = after;
        } else {
            output.push('$');
        }
    }
    output.push_str(rest);
    output
}

/// `command` or `args` with the container's variables.
#[must_use]
pub(super) fn expand_arguments(words: &[String], environment: &[(String, String)]) -> Vec<String> {
    let variables: BTreeMap<&str, &str> =
        environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).into_map();
    words.iter().map(|word| expand(word, |name| variables.get(name).copied())).collect()
}

#[cfg(test)]
mod tests;
