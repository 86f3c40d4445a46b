//! The pod and container of a command.
//!
//! Owns kubectl's rules for their choice.

use std::fs;
use std::path::{Path, PathBuf};

use super::{CliError, Environment, client};
use crate::desired::source::file::read::read_manifest_file;
use crate::desired::source::manifest::Types;
use crate::desired::static_pod::static_pod_name;
use crate::model::api::pod::Pod;
use crate::model::ordered::Sortable as _;
use crate::model::provenance::CONFIG_SOURCE_ANNOTATION;
use crate::model::types::PodSource;
use crate::serve::server::{AgentReport, ObjectDetail};

const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

pub(super) struct FoundPod {
    pod: Pod,
    manifest: Option<Manifest>,
}

/// The origin of a static pod.
enum Manifest {
    File(PathBuf),
    /// The file was not found in this directory.
    Directory(String),
    Url(String),
}

/// Requests a pod from the agent. The name may omit the suffix of the node's name, and may be written
/// `pod/NAME`.
pub(super) async fn find(socket: &Path, namespace: &str, name: &str) -> Result<FoundPod, CliError> {
    let report = client::fetch_report(socket, ObjectDetail::Counted).await.map_err(CliError::Client)?;
    let short = ["pod/", "pods/", "po/"].iter().find_map(|kind| name.strip_prefix(kind)).unwrap_or(name);
    let pod = among(&report.pods, namespace, short, &report.node_name).cloned();
    let (name, place) = (short.to_owned(), namespace.to_owned());
    let pod = pod.ok_or(CliError::NotFound { kind: "pods", name, namespace: place })?;
    Ok(FoundPod { manifest: manifest(&pod, &report), pod })
}

fn manifest(pod: &Pod, report: &AgentReport) -> Option<Manifest> {
    let source = pod.metadata.annotations.get(CONFIG_SOURCE_ANNOTATION)?;
    let origin = report.sources.iter().find(|found| found.name == *source)?.origin.clone();
    if *source == PodSource::Http.as_str() {
        return Some(Manifest::Url(origin));
    }
    if *source != PodSource::File.as_str() {
        return None;
    }
    let file = manifest_file(Path::new(&origin), pod, &report.node_name);
    Some(file.map_or(Manifest::Directory(origin), Manifest::File))
}

/// The file in the agent's directory of manifests that defines the pod.
fn manifest_file(path: &Path, pod: &Pod, node: &str) -> Option<PathBuf> {
    if path.is_file() {
        return Some(path.to_owned());
    }
    let mut files: Vec<PathBuf> = fs::read_dir(path).ok()?.flatten().map(|entry| entry.path()).collect();
    files.order_by(Ord::cmp);
    let types = Types::default();
    let names_it = |file: &PathBuf| {
        let Ok((bytes, _)) = read_manifest_file(file) else { return false };
        types.decode(&bytes).pods.iter().any(|found| {
            let metadata = &found.pod.metadata;
            let namespace = if metadata.namespace.is_empty() { "default" } else { &metadata.namespace };
            namespace == pod.metadata.namespace && static_pod_name(&metadata.name, node) == pod.metadata.name
        })
    };
    files.into_iter().find(names_it)
}

impl FoundPod {
    /// The name in the API.
    pub(super) fn name(&self) -> &str {
        &self.pod.metadata.name
    }

    pub(super) fn pod(&self) -> &Pod {
        &self.pod
    }

    /// The manifest of a static pod; `None` for one that came through the API.
    pub(super) fn manifest(&self) -> Option<String> {
        Some(match self.manifest.as_ref()? {
            Manifest::File(file) => format!("the manifest {}", file.display()),
            Manifest::Directory(origin) => format!("a manifest in {origin}"),
            Manifest::Url(url) => format!("the manifests of {url}"),
        })
    }

    /// How the user can end a static pod, as a message.
    pub(super) fn stop_hint(&self) -> String {
        match &self.manifest {
            Some(Manifest::File(file)) => {
                // A directory that the agent does not read.
                let elsewhere = file.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
                let (file, elsewhere) = (file.display(), elsewhere.display());
                format!("  mv {file} {elsewhere}        stops it; move the file back to start it again")
            }
            Some(Manifest::Directory(origin)) => format!("Move the manifest out of {origin}"),
            Some(Manifest::Url(url)) => format!("Remove it from what {url} serves"),
            None => String::new(),
        }
    }

    /// `NAMESPACE/NAME`, as in the API's paths.
    pub(super) fn path(&self) -> String {
        let metadata = &self.pod.metadata;
        format!("{}/{}", client::escaped(&metadata.namespace), client::escaped(&metadata.name))
    }

    /// The named container, otherwise the pod's default one. Prints a note when the default was chosen among
    /// several.
    pub(super) fn container(&self, named: Option<&str>, environment: &mut Environment<'_>) -> String {
        if let Some(named) = named {
            return named.to_owned();
        }
        let (chosen, others) = default_container(&self.pod);
        if let Some(others) = others {
            // kubectl's message. The write may fail: standard error may be closed.
            let _ = writeln!(environment.err, "Defaulted container {chosen:?} out of: {others}");
        }
        chosen
    }

    /// The number of a named port of the pod's containers.
    pub(super) fn port(&self, name: &str) -> Option<u16> {
        let spec = &self.pod.spec;
        let mut ports =
            spec.containers.iter().chain(&spec.init_containers).flat_map(|container| &container.ports);
        ports.find(|port| port.name == name).and_then(|port| u16::try_from(port.container_port).ok())
    }

    /// Whether the container has a terminal, and whether it has stdin.
    pub(super) fn is_interactive(&self, container: &str) -> (bool, bool) {
        let spec = &self.pod.spec;
        let mut all = spec.containers.iter().chain(&spec.init_containers).chain(&spec.ephemeral_containers);
        all.find(|found| found.name == container).map_or((false, false), |found| (found.tty, found.stdin))
    }
}

/// By its full name, otherwise by the name without the node's.
fn among<'a>(pods: &'a [Pod], namespace: &str, name: &str, node: &str) -> Option<&'a Pod> {
    let of_namespace = || pods.iter().filter(|pod| pod.metadata.namespace == namespace);
    let full = static_pod_name(name, node);
    of_namespace()
        .find(|pod| pod.metadata.name == name)
        .or_else(|| of_namespace().find(|pod| pod.metadata.name == full))
}

/// The default container, and all names if it was chosen among several.
fn default_container(pod: &Pod) -> (String, Option<String>) {
    let spec = &pod.spec;
    let named = pod.metadata.annotations.get(DEFAULT_CONTAINER);
    if let Some(named) = named.filter(|named| spec.containers.iter().any(|found| found.name == **named)) {
        return (named.clone(), None);
    }
    let first = spec.containers.first().map(|found| found.name.clone()).unwrap_or_default();
    let inits = spec.init_containers.iter().map(|found| format!("{} (init)", found.name));
    let all: Vec<String> = spec.containers.iter().map(|found| found.name.clone()).chain(inits).collect();
    (first, (all.len() > 1).then(|| all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::decode::decode;
    use crate::platform::testing::TempDir;

    fn pod(name: &str, containers: &[&str]) -> Pod {
        let containers: Vec<_> = containers.iter().map(|name| serde_json::json!({ "name": name })).collect();
        let pod = serde_json::json!({
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "containers": containers, "initContainers": [{ "name": "setup" }] },
        });
        decode::<Pod>(pod).unwrap().object
    }

    #[test]
    fn pod_is_found_with_or_without_the_node_name_suffix() {
        let pods = [pod("web-box", &["main", "side"]), pod("web", &["x"])];
        let name = |asked| among(&pods, "default", asked, "box").map(|pod| pod.metadata.name.as_str());
        assert_eq!((name("web"), name("web-box"), name("we")), (Some("web"), Some("web-box"), None));
        assert!(among(&pods, "other", "web", "box").is_none());
        let upper = among(&pods[..1], "default", "web", "Box").map(|pod| pod.metadata.name.as_str());
        assert_eq!(upper, Some("web-box"), "the agent writes the node's name in lower case");
        let others = "main, side, setup (init)".to_owned();
        assert_eq!(default_container(&pods[0]), ("main".to_owned(), Some(others)));
        let mut chosen = pod("a", &["main", "side"]);
        chosen.metadata.annotations.insert(DEFAULT_CONTAINER.to_owned(), "side".to_owned());
        assert_eq!(default_container(&chosen), ("side".to_owned(), None));
        chosen.metadata.annotations.insert(DEFAULT_CONTAINER.to_owned(), "none".to_owned());
        assert_eq!(default_container(&chosen).0, "main");
    }

    #[test]
    fn manifest_is_found_whatever_else_is_in_its_directory() {
        let directory = TempDir::new();
        let manifest =
            "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n";
        let big = fs::File::create(directory.join("a-big.yaml")).unwrap();
        big.set_len(1 << 40).unwrap();
        fs::create_dir(directory.join("b-directory")).unwrap();
        directory.put("c.yaml", manifest);
        let found = manifest_file(directory.path(), &pod("web-box", &["c"]), "Box");
        assert_eq!(found, Some(directory.join("c.yaml")));
        assert_eq!(manifest_file(directory.path(), &pod("other-box", &["c"]), "Box"), None);
    }
}
