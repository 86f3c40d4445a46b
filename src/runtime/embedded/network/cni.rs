//! CNI: the configuration in force, and its plugins as programs.
//!
//! Owns the protocol (specification 0.3.0 to 1.1). What plugins need again when a pod is removed is in its
//! record ([`CniRecord`]), so that neither a changed configuration nor a restart matters.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, io};

use serde_json::{Map, Value, json};

use super::records::CniRecord;
use super::{Attachment, Configured};
use crate::model::api::quantity::Quantity;
use crate::platform::sys::command;

/// Supported versions of the specification, oldest first.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// From this version on, DEL gets the cached result.
const DELETE_WITH_RESULT: &str = "0.4.0";
/// From this version on, plugins report whether they are ready (STATUS).
const WITH_STATUS: &str = "1.1.0";
const POD_LINK: &str = "eth0";
/// A plugin that takes longer hangs: it is killed with all that it started.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The same for STATUS.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// A configuration or a result is some kilobytes.
const MAX_BYTES: u64 = 1024 * 1024;
/// Longest part of a plugin's error that is kept.
const MAX_COMPLAINT: usize = 2000;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CniError {
    #[error("cni config load failed: {path:?}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cni config load failed: {path:?}: {problem}")]
    Config { path: PathBuf, problem: String },
    #[error("failed to find plugin {plugin:?} in path {directories:?}")]
    NotFound { plugin: String, directories: Vec<PathBuf> },
    #[error("run plugin {plugin:?} ({command})")]
    Run {
        plugin: String,
        /// `ADD`, `DEL`…
        command: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("plugin type={plugin:?} name={network:?} failed ({command}): {message}")]
    Refused {
        plugin: String,
        network: String,
        /// `ADD`, `DEL`…
        command: &'static str,
        message: String,
    },
    #[error("plugin type={plugin:?}: {problem}")]
    Result { plugin: String, problem: String },
    #[error("annotation {name}: {value:?} is not a quantity")]
    Annotation { name: &'static str, value: String },
}

/// A chain of plugins, as configured.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::runtime) struct List(Value);

#[derive(Clone, Copy, Debug)]
pub(in crate::runtime) struct CniPod<'a> {
    pub sandbox: &'a str,
    pub pod: &'a crate::model::types::PodRef,
    /// Path of its namespace; empty when the namespace is gone.
    pub netns: &'a str,
}

/// The configuration in force: the first file by name. `None` where there is no file. Read on every call, so
/// that a change takes effect at once.
pub(in crate::runtime) fn load(directory: &Path) -> Result<Option<List>, CniError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| CniError::Read { path, source }
    };
    let Some(path) = first_file(directory).map_err(failed(directory))? else { return Ok(None) };
    if fs::metadata(&path).map_err(failed(&path))?.len() > MAX_BYTES {
        return Err(CniError::Config { path, problem: "it is larger than 1 MiB".to_owned() });
    }
    let text = fs::read(&path).map_err(failed(&path))?;
    parse(&text).map(Some).map_err(|problem| CniError::Config { path, problem })
}

/// The file in force, with what distinguishes one version of it from another. `None` also when the directory
/// cannot be read: [`load`] returns the reason.
#[must_use]
pub(in crate::runtime) fn identity(directory: &Path) -> Configured {
    let path = first_file(directory).ok()??;
    let metadata = fs::metadata(&path).ok()?;
    Some((path, metadata.len(), metadata.modified().ok()))
}

fn first_file(directory: &Path) -> io::Result<Option<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let is_configuration = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("conf" | "conflist" | "json")) && path.is_file()
    };
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_configuration).min())
}

/// A list, or a single plugin, which is a list of one.
fn parse(text: &[u8]) -> Result<List, String> {
    let mut value: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if value.get("plugins").is_none() {
        value = json!({"name": value["name"], "cniVersion": value["cniVersion"], "plugins": [value]});
    }
    let list = List(value);
    if list.name().is_empty() {
        return Err("name is missing".to_owned());
    }
    if !VERSIONS.contains(&list.version()) {
        return Err(format!(
            "unsupported cniVersion {:?}: must be one of {}",
            list.version(),
            VERSIONS.join(", ")
        ));
    }
    if list.plugins().is_empty() {
        return Err("plugins is empty".to_owned());
    }
    for plugin in list.plugins() {
        let kind = kind_of(plugin);
        if kind.is_empty() || kind.contains('/') || kind.starts_with('.') {
            return Err(format!("plugin type {kind:?} is not a program name"));
        }
    }
    Ok(list)
}

fn kind_of(plugin: &Value) -> &str {
    plugin["type"].as_str().unwrap_or_default()
}

impl List {
    /// The JSON form, for the record.
    #[must_use]
    pub(in crate::runtime) fn into_value(self) -> Value {
        self.0
    }

    fn name(&self) -> &str {
        self.0["name"].as_str().unwrap_or_default()
    }

    fn version(&self) -> &str {
        self.0["cniVersion"].as_str().unwrap_or_default()
    }

    fn plugins(&self) -> &[Value] {
        self.0["plugins"].as_array().map_or(&[], Vec::as_slice)
    }

    fn is_at_least(&self, version: &str) -> bool {
        let place = |version: &str| VERSIONS.iter().position(|known| *known == version);
        place(self.version()) >= place(version)
    }

    /// Whether the plugins are ready; those of older versions cannot report it and count as ready.
    pub(in crate::runtime) fn status(&self, directories: &[PathBuf]) -> Result<(), CniError> {
        for plugin in self.plugins() {
            find(kind_of(plugin), directories)?;
            if self.is_at_least(WITH_STATUS) {
                let request = self.request(plugin, None, &BTreeMap::new());
                self.call("STATUS", plugin, &request, None, directories)?;
            }
        }
        Ok(())
    }

    /// A plugin's input.
    fn request(
        &self,
        plugin: &Value,
        previous: Option<&Value>,
        capabilities: &BTreeMap<String, Value>,
    ) -> Value {
        let mut request = plugin.as_object().cloned().unwrap_or_default();
        request.insert("name".to_owned(), self.name().into());
        request.insert("cniVersion".to_owned(), self.version().into());
        let wants = |name: &&String| plugin["capabilities"][name.as_str()].as_bool() == Some(true);
        let wanted: Map<String, Value> = capabilities
            .keys()
            .filter(wants)
            .map(|name| (name.clone(), capabilities[name].clone()))
            .collect();
        if !wanted.is_empty() {
            request.insert("runtimeConfig".to_owned(), wanted.into());
        }
        if let Some(previous) = previous {
            request.insert("prevResult".to_owned(), previous.clone());
        }
        request.into()
    }

    fn call(
        &self,
        command: &'static str,
        plugin: &Value,
        request: &Value,
        subject: Option<CniPod<'_>>,
        directories: &[PathBuf],
    ) -> Result<Vec<u8>, CniError> {
        let kind = kind_of(plugin);
        let path = find(kind, directories)?;
        let directories: Vec<&str> = directories.iter().filter_map(|path| path.to_str()).collect();
        let mut program = Command::new(path);
        program.env("CNI_COMMAND", command).env("CNI_PATH", directories.join(":"));
        if let Some(subject) = subject {
            program
                .env("CNI_CONTAINERID", subject.sandbox)
                .env("CNI_NETNS", subject.netns)
                .env("CNI_IFNAME", POD_LINK)
                .env("CNI_ARGS", arguments(subject));
        }
        let timeout = if command == "STATUS" { STATUS_TIMEOUT } else { TIMEOUT };
        let answer = command::run(&mut program, request.to_string().as_bytes(), MAX_BYTES, timeout)
            .map_err(|source| CniError::Run { plugin: kind.to_owned(), command, source })?;
        if answer.status.success() {
            return Ok(answer.output);
        }
        Err(CniError::Refused {
            plugin: kind.to_owned(),
            network: self.name().to_owned(),
            command,
            message: complaint(&answer),
        })
    }
}

fn arguments(subject: CniPod<'_>) -> String {
    let pod = subject.pod;
    format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
        pod.namespace, pod.name, subject.sandbox, pod.uid
    )
}

fn find(plugin: &str, directories: &[PathBuf]) -> Result<PathBuf, CniError> {
    let found = directories.iter().map(|directory| directory.join(plugin)).find(|path| path.is_file());
    found.ok_or_else(|| CniError::NotFound { plugin: plugin.to_owned(), directories: directories.to_vec() })
}

/// The error a plugin prints, else what it wrote to standard error.
fn complaint(answer: &command::CommandOutput) -> String {
    let text = match serde_json::from_slice::<Value>(&answer.output) {
        Ok(error) if error["msg"].is_string() => {
            let words = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
            let mut text = words("msg");
            if !words("details").is_empty() {
                text = format!("{text}: {}", words("details"));
            }
            error["code"].as_u64().map_or(text.clone(), |code| format!("{text} (code {code})"))
        }
        _ => {
            let said = String::from_utf8_lossy(&answer.errors).trim().to_owned();
            format!("{}{}{said}", answer.status, if said.is_empty() { "" } else { ": " })
        }
    };
    text.chars().take(MAX_COMPLAINT).collect()
}

/// The capability arguments of a pod, for plugins that ask for them.
pub(in crate::runtime) fn capabilities(attachment: &Attachment) -> Result<BTreeMap<String, Value>, CniError> {
    let mut found = BTreeMap::new();
    let ports: Vec<Value> = attachment
        .ports
        .iter()
        .filter(|port| port.host_port > 0)
        .map(|port| {
            json!({
                "hostPort": port.host_port,
                "containerPort": port.container_port,
                "protocol": port.protocol.to_lowercase(),
                "hostIP": port.host_ip,
            })
        })
        .collect();
    if !ports.is_empty() {
        found.insert("portMappings".to_owned(), ports.into());
    }
    if let Some(dns) = &attachment.dns {
        let value = json!({"servers": dns.servers, "searches": dns.searches, "options": dns.options});
        found.insert("dns".to_owned(), value);
    }
    let mut bandwidth = Map::new();
    for (name, direction) in
        [("kubernetes.io/ingress-bandwidth", "ingress"), ("kubernetes.io/egress-bandwidth", "egress")]
    {
        let Some(text) = attachment.annotations.get(name) else { continue };
        let rate = Quantity::parse(text).ok().map(Quantity::value).filter(|rate| *rate > 0);
        let rate = rate.ok_or_else(|| CniError::Annotation { name, value: text.clone() })?;
        bandwidth.insert(format!("{direction}Rate"), rate.into());
        bandwidth.insert(format!("{direction}Burst"), u32::MAX.into());
    }
    if !bandwidth.is_empty() {
        found.insert("bandwidth".to_owned(), bandwidth.into());
    }
    Ok(found)
}

/// Runs the chain; the result of the last plugin is left in `record`. After an error [`delete`] undoes what
/// was done.
pub(in crate::runtime) fn add(
    record: &mut CniRecord,
    subject: CniPod<'_>,
    directories: &[PathBuf],
) -> Result<Vec<IpAddr>, CniError> {
    let list = List(record.list.clone());
    let mut result: Option<Value> = None;
    for plugin in list.plugins() {
        let request = list.request(plugin, result.as_ref(), &record.capabilities);
        let output = list.call("ADD", plugin, &request, Some(subject), directories)?;
        let problem = |problem: String| CniError::Result { plugin: kind_of(plugin).to_owned(), problem };
        let value: Value =
            serde_json::from_slice(&output).map_err(|error| problem(format!("result: {error}")))?;
        result = Some(value);
    }
    record.result = result;
    let ips = record.result.as_ref().map(addresses).unwrap_or_default();
    if ips.is_empty() {
        let plugin = list.plugins().last().map(kind_of).unwrap_or_default().to_owned();
        return Err(CniError::Result { plugin, problem: "the result has no IP address for eth0".to_owned() });
    }
    Ok(ips)
}

/// Undoes the chain, last plugin first; continues after errors.
///
/// # Errors
/// The first failure; the call may be repeated.
pub(in crate::runtime) fn delete(
    record: &CniRecord,
    subject: CniPod<'_>,
    directories: &[PathBuf],
) -> Result<(), CniError> {
    let list = List(record.list.clone());
    let previous = record.result.as_ref().filter(|_| list.is_at_least(DELETE_WITH_RESULT));
    let mut first = Ok(());
    for plugin in list.plugins().iter().rev() {
        let request = list.request(plugin, previous, &record.capabilities);
        let done = list.call("DEL", plugin, &request, Some(subject), directories).map(drop);
        first = first.and(done);
    }
    first
}

/// Addresses of the pod's interface, in the plugin's order.
fn addresses(result: &Value) -> Vec<IpAddr> {
    let is_pods = |ip: &&Value| match ip["interface"].as_u64().and_then(|index| usize::try_from(index).ok()) {
        None => true,
        Some(index) => {
            let interface = &result["interfaces"][index];
            interface["name"] == POD_LINK && !interface["sandbox"].as_str().unwrap_or_default().is_empty()
        }
    };
    let ips = result["ips"].as_array().map_or(&[][..], Vec::as_slice).iter().filter(is_pods);
    ips.filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests;
