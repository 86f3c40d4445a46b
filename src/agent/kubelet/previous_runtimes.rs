//! A runtime that differs from the one of the last run: its pods are stopped there before any pod is started
//! here.
//!
//! Expected flow: the store's record is compared with the configuration. A runtime that held pods until now
//! is added durably to those to be cleared, before anything else; each is removed from that list once it is
//! cleared.
//!
//! Guarantees: while an earlier runtime is unreachable its pods are not forgotten: every start tries again
//! and reports it. The same socket under another name is not a change.
//!
//! Caveats: containers get their pod's grace period, thirty seconds at most, and no preStop hooks, because
//! these pods have no worker.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::embedded;
use crate::model::labels;
use crate::model::observed::{ContainerStateKind, ObservedContainer};
use crate::model::ordered::Ordered as _;
use crate::model::types::SandboxId;
use crate::platform::cgroup::{self, CgroupConfig};
use crate::platform::clock::Clock;
use crate::platform::logging::chain;
use crate::pod::resources::{CgroupLayout, QosClass, class_cgroup_path};
use crate::runtime::chosen::NodeRuntime;
use crate::runtime::cri::CriConfig;
use crate::runtime::docker::DockerConfig;
use crate::runtime::embedded::network::subnet::SubnetError;
use crate::runtime::embedded::runtime::{EmbeddedConfig, EmbeddedRuntime};
use crate::runtime::{Runtime, RuntimeError};
use crate::store::{StoreHandle, meta};

/// The longest grace period of a container in the earlier runtime.
const MAX_GRACE: Duration = Duration::from_secs(30);
/// A running runtime answers at once, one that starts with the machine after a while; the new runtime's pods
/// wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// A killed process needs a moment to leave its cgroup.
const KILL_PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct RuntimesConfig {
    /// The current one: `containerRuntimeEndpoint`.
    pub(crate) endpoint: String,
    /// `runtimeRequestTimeout`.
    pub(crate) request_timeout: Duration,
    /// The embedded one, if its pod subnets are valid.
    pub(crate) embedded: Result<EmbeddedConfig, SubnetError>,
    /// For an endpoint at which a Docker Engine answers.
    pub(crate) docker: DockerConfig,
}

/// Clears earlier runtimes, and records the current one.
pub(super) async fn clear_previous(
    config: &RuntimesConfig,
    store: &StoreHandle,
    known: &BTreeMap<String, String>,
) {
    let now = config.endpoint.as_str();
    let mut waiting = endpoints_to_clear(known, now, real_path);
    store_endpoints(store, meta::EARLIER_RUNTIMES, &waiting).await;
    if let Err(error) = store.put_meta(meta::RUNTIME_ENDPOINT, Some(now)).await {
        log::warn!(key = meta::RUNTIME_ENDPOINT, err:% = error; "Failed to write to the store");
    }
    for earlier in waiting.clone() {
        log::warn!(earlier = earlier, now = now; "Runtime endpoint has changed; stopping pods on the \
             previous runtime first");
        let cleared = clear(config, &earlier).await;
        match cleared.and_then(|cleared| cleared.left.into_iter().next().map_or(Ok(cleared.pods), Err)) {
            Ok(pods) => {
                log::info!(earlier = earlier, pods = pods; "Stopped all pods on the previous runtime");
                waiting.remove(&earlier);
                store_endpoints(store, meta::EARLIER_RUNTIMES, &waiting).await;
            }
            Err(why) => {
                log::error!(earlier = earlier, err = why; "Failed to stop pods on the previous runtime; \
                     they may still be running, retrying at the next start");
            }
        }
    }
}

async fn store_endpoints(store: &StoreHandle, key: &str, endpoints: &BTreeSet<String>) {
    let words: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    let value = Some(words.join(" ")).filter(|value| !value.is_empty());
    if let Err(error) = store.put_meta(key, value.as_deref()).await {
        log::warn!(key = key, err:% = error; "Failed to write to the store");
    }
}

/// The runtimes that may have pods and are not the current one.
fn endpoints_to_clear(
    known: &BTreeMap<String, String>,
    now: &str,
    real_path: impl Fn(&str) -> PathBuf,
) -> BTreeSet<String> {
    let words = |key: &str| known.get(key).map(String::as_str).unwrap_or_default().split_whitespace();
    let held = words(meta::EARLIER_RUNTIMES).chain(words(meta::RUNTIME_ENDPOINT));
    held.filter(|earlier| real_path(earlier) != real_path(now)).map(str::to_owned).into_set()
}

/// The canonical path of a socket; any other endpoint is returned unchanged.
fn real_path(endpoint: &str) -> PathBuf {
    let path = Path::new(endpoint.strip_prefix("unix://").unwrap_or(endpoint));
    // A socket that does not exist is compared by its name; its directory may still be a link, as /var/run
    // is.
    let whole = path.canonicalize().ok();
    let by_parent = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    whole.or_else(by_parent).unwrap_or_else(|| path.to_owned())
}

#[derive(Debug, Default)]
pub(crate) struct Cleared {
    /// Pods that were stopped and removed.
    pub pods: usize,
    /// What could not be removed, as messages. None of it runs.
    pub left: Vec<String>,
}

/// Stops and removes all pods of the configured runtime, and the cgroup above them, to decommission the node.
/// No other process may be using the runtime.
///
/// # Errors
/// The runtime does not answer, or a pod still runs. The error is a message for the user.
pub(crate) async fn clear_node(
    config: RuntimesConfig,
    (mut layout, mut tree): (CgroupLayout, CgroupConfig),
) -> Result<Cleared, String> {
    let mut cleared = clear(&config, &config.endpoint).await?;
    if config.endpoint == embedded::ENDPOINT
        && let Ok(embedded) = config.embedded
    {
        tree = embedded.cgroup;
        layout.driver = tree.driver;
    }
    let top = class_cgroup_path(QosClass::Guaranteed, &layout);
    if layout.per_qos && cgroup::exists(&tree, &top) {
        if !cleared.left.is_empty() {
            // Monitors of pods that could not be removed.
            let _ = cgroup::kill_all(&tree, &top);
            tokio::time::sleep(KILL_PAUSE).await;
        }
        if !cgroup::is_populated(&tree, &top) {
            cleared.left.extend(cgroup::remove(&tree, &top).iter().map(|error| chain(error)));
        }
    }
    Ok(cleared)
}

async fn clear(config: &RuntimesConfig, endpoint: &str) -> Result<Cleared, String> {
    if endpoint == embedded::ENDPOINT {
        let embedded = config.embedded.clone().map_err(|error| chain(&error))?;
        let runtime = Box::pin(EmbeddedRuntime::open(embedded, Clock::System)).await;
        let runtime = Rc::new(runtime.map_err(|error| chain(&error))?);
        return Box::pin(clear_runtime(Rc::new(NodeRuntime::Embedded(runtime)))).await;
    }
    let docker = config.docker.clone();
    let config = CriConfig {
        endpoint: endpoint.to_owned(),
        image_endpoint: String::new(),
        request_timeout: config.request_timeout,
    };
    let runtime = Rc::new(NodeRuntime::connect(config, docker).map_err(|error| chain(&error))?);
    let answers = async {
        while runtime.version().await.is_err() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    if tokio::time::timeout(PATIENCE, answers).await.is_err() {
        return Err(format!("{endpoint} does not respond"));
    }
    Box::pin(clear_runtime(runtime)).await
}

async fn clear_runtime(runtime: Rc<NodeRuntime>) -> Result<Cleared, String> {
    let listed = async {
        let containers = runtime.list_containers(None).await?;
        Ok::<_, RuntimeError>((containers, runtime.list_sandboxes(None).await?))
    };
    let (containers, sandboxes) = listed.await.map_err(|error| chain(&error))?;
    let mut outcome = Cleared::default();
    let mut pods = JoinSet::new();
    for sandbox in sandboxes {
        let own = containers.iter().filter(|container| container.sandbox == sandbox.id);
        let running: Vec<ObservedContainer> =
            own.filter(|container| container.state == ContainerStateKind::Running).cloned().collect();
        pods.spawn_local(clear_pod(Rc::clone(&runtime), sandbox.id, running));
    }
    while let Some(cleared) = pods.join_next().await {
        let cleared = cleared.map_err(|error| error.to_string());
        match cleared.and_then(|cleared| cleared.map_err(|error| chain(&error))) {
            Ok(()) => outcome.pods += 1,
            Err(error) => outcome.left.push(error),
        }
    }
    if let Some(why) = outcome.left.first() {
        let left = runtime.list_containers(None).await.map_err(|error| chain(&error))?;
        if left.iter().any(|container| container.state == ContainerStateKind::Running) {
            return Err(why.clone());
        }
    }
    Ok(outcome)
}

async fn clear_pod(
    runtime: Rc<NodeRuntime>,
    sandbox: SandboxId,
    running: Vec<ObservedContainer>,
) -> Result<(), RuntimeError> {
    let mut stops = JoinSet::new();
    for container in running {
        let runtime = Rc::clone(&runtime);
        stops.spawn_local(async move {
            // The full status: lists may omit annotations.
            let grace = runtime.container_status(&container.id).await.map_or(MAX_GRACE, |full| grace(&full));
            runtime.stop_container(&container.id, grace).await
        });
    }
    // A container that does not stop is killed with its sandbox.
    while stops.join_next().await.is_some() {}
    runtime.stop_sandbox(&sandbox).await?;
    runtime.remove_sandbox(&sandbox).await
}

fn grace(container: &ObservedContainer) -> Duration {
    let seconds = container.annotations.get(labels::POD_TERMINATION_GRACE_PERIOD);
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    seconds.map_or(MAX_GRACE, Duration::from_secs).min(MAX_GRACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn every_earlier_runtime_but_the_present_one_is_cleared() {
        let by_name = |endpoint: &str| PathBuf::from(endpoint.trim_start_matches("unix://"));
        let cri = "unix:///run/c.sock";
        for (held, earlier, now, expected) in [
            ("", "", "embedded", &[][..]),
            ("embedded", "", "embedded", &[]),
            ("embedded", "", cri, &["embedded"]),
            (cri, "", "embedded", &[cri]),
            (cri, "", "/run/c.sock", &[]),
            // One that could not be reached, then another change; then back to the first.
            ("embedded", cri, "unix:///run/d.sock", &["embedded", cri]),
            ("embedded", cri, cri, &["embedded"]),
        ] {
            let known = known(&[(meta::RUNTIME_ENDPOINT, held), (meta::EARLIER_RUNTIMES, earlier)]);
            let found = endpoints_to_clear(&known, now, by_name);
            assert_eq!(
                found.iter().map(String::as_str).collect::<Vec<_>>(),
                expected,
                "{held} {earlier} {now}"
            );
        }
    }

    #[test]
    fn a_container_gets_its_pods_grace_but_not_for_ever() {
        let of = |text: &str| {
            let annotations = known(&[(labels::POD_TERMINATION_GRACE_PERIOD, text)]);
            grace(&ObservedContainer { annotations, ..ObservedContainer::default() }).as_secs()
        };
        assert_eq!((of("2"), of("0"), of("3600"), of("x")), (2, 0, 30, 30));
        assert_eq!(grace(&ObservedContainer::default()), MAX_GRACE);
    }
}
