//! Sandboxes: a container that waits and holds the pod's namespaces, and the pods' network in them.
//!
//! Owns the order of effects. Guarantees: a sandbox is ready only once it has its network; one that could not be made whole
//! is removed again; stopping and removing may be repeated. The engine holds all records but the network's.

use std::path::PathBuf;

use serde_json::Value;

use super::client::{Payload, forgive_not_found};
use super::observed::{labels_of, process_of, text};
use super::request::{self, CONTAINER, SANDBOX_ID};
use super::{Engine, container, pause};
use crate::model::types::SandboxId;
use crate::platform::rt;
use crate::runtime::embedded::pod_network::netns_of;
use crate::runtime::{ErrorKind, NamespaceMode, RuntimeError, SandboxConfig};

/// Makes and starts a sandbox.
pub(super) async fn run(engine: &Engine, config: &SandboxConfig) -> Result<SandboxId, RuntimeError> {
    let call = "RunPodSandbox";
    engine.recover().await?;
    let facts = engine.facts(call).await?;
    let refused = |message| RuntimeError::new(call, ErrorKind::Refused, message);
    let body = request::sandbox(config, &facts).map_err(refused)?;
    let name = request::sandbox_name(config);
    let made = container::make(engine, call, &name, &body).await;
    let id = match made {
        Err(error) if error.kind == ErrorKind::NotFound => {
            // The image is the only thing that can be missing: it was never there, or a user has pruned it.
            load_pause(engine, call).await?;
            container::make(engine, call, &name, &body).await?
        }
        made => made?,
    };
    let id = SandboxId::from(id);
    match connect(engine, &id, config).await {
        Ok(()) => Ok(id),
        Err(error) => {
            if let Err(left) = remove_own(engine, &id).await {
                // It is listed as not ready, so that the caller requests its removal.
                log::debug!(sandbox:% = id, err:% = left; "Failed to clean up after failed sandbox creation");
            }
            Err(error)
        }
    }
}

async fn load_pause(engine: &Engine, call: &'static str) -> Result<(), RuntimeError> {
    // Podman ignores a tag beside the name.
    let path = format!("/images/create?fromSrc=-&repo={}", request::PAUSE_IMAGE);
    engine.client.post(call, &path, Payload::Tar(pause::archive())).await.map(drop)
}

/// Starts the sandbox's container, and gives it what the engine would not.
async fn connect(engine: &Engine, id: &SandboxId, config: &SandboxConfig) -> Result<(), RuntimeError> {
    let call = "RunPodSandbox";
    engine.client.post(call, &format!("/containers/{id}/start"), Payload::None).await?;
    let object = engine.inspect(call, id.as_str()).await?;
    let refused = |message: String| RuntimeError::new(call, ErrorKind::Refused, message);
    let pid =
        process_of(&object).ok_or_else(|| refused("the sandbox's process has ended at once".to_owned()))?;
    if let Some(content) = config.dns.as_ref().and_then(crate::runtime::DnsConfig::resolv_conf) {
        let path = PathBuf::from(text(&object["ResolvConfPath"]));
        let (at, file) = (path.clone(), path.is_absolute());
        // In place: containers mount this file.
        let written =
            rt::blocking(
                "write resolv.conf",
                move || if file { std::fs::write(path, content) } else { Ok(()) },
            );
        written.await.map_err(|error| refused(format!("write {}: {error}", at.display())))?;
    }
    if config.namespaces.network != NamespaceMode::Node {
        let network = engine.network(call)?;
        let ips = network.attach(id, config, pid).await.map_err(refused)?;
        engine.set_addresses(id, Some(ips));
    }
    Ok(())
}

/// Stops everything in a sandbox, then the sandbox. Does nothing when it is gone, but for its network.
pub(super) async fn stop(engine: &Engine, id: &SandboxId) -> Result<(), RuntimeError> {
    let call = "StopPodSandbox";
    engine.recover().await?;
    for container in containers_of(engine, call, id).await? {
        if container["State"] == "running" || container["State"] == "paused" {
            kill(engine, call, &text(&container["Id"])).await?;
        }
    }
    disconnect(engine, call, id).await?;
    kill(engine, call, id.as_str()).await
}

async fn containers_of(
    engine: &Engine,
    call: &'static str,
    id: &SandboxId,
) -> Result<Vec<Value>, RuntimeError> {
    engine.list(call, CONTAINER, Some(&format!("{SANDBOX_ID}={id}"))).await
}

/// By SIGKILL, at once.
async fn kill(engine: &Engine, call: &'static str, id: &str) -> Result<(), RuntimeError> {
    let path = format!("/containers/{id}/stop?t=0");
    forgive_not_found(engine.client.post(call, &path, Payload::None).await)
}

/// While the namespace still exists, as CNI's plugins prefer.
pub(super) async fn disconnect(
    engine: &Engine,
    call: &'static str,
    id: &SandboxId,
) -> Result<(), RuntimeError> {
    let Ok(network) = engine.network(call) else { return Ok(()) };
    let object = match engine.inspect(call, id.as_str()).await {
        Ok(object) => object,
        Err(error) if error.kind == ErrorKind::NotFound => Value::Null,
        Err(error) => return Err(error),
    };
    let detached = network.detach(id, process_of(&object).map(netns_of)).await;
    detached.map_err(|message| RuntimeError::new(call, ErrorKind::Refused, message))?;
    engine.set_addresses(id, None);
    Ok(())
}

/// Removes a sandbox with everything in it.
pub(super) async fn remove(engine: &Engine, id: &SandboxId) -> Result<(), RuntimeError> {
    engine.recover().await?;
    for item in containers_of(engine, "RemovePodSandbox", id).await? {
        container::remove(engine, &text(&item["Id"]), &labels_of(&item)).await?;
    }
    remove_own(engine, id).await
}

async fn remove_own(engine: &Engine, id: &SandboxId) -> Result<(), RuntimeError> {
    let call = "RemovePodSandbox";
    disconnect(engine, call, id).await?;
    forgive_not_found(engine.client.delete(call, &format!("/containers/{id}?v=1&force=1")).await)
}
