//! Containers: created, started, stopped, removed.
//!
//! Owns the link from a pod's log directory to the engine's log file, and what is done about names in use.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use super::Engine;
use super::client::{Payload, escaped, forgive_not_found};
use super::observed::{labels_of, text};
use super::request::{self, KIND, LOG_PATH};
use crate::model::types::{ContainerId, SandboxId};
use crate::platform::dice::Dice;
use crate::platform::rt;
use crate::platform::sys::dir::make_dir;
use crate::runtime::convert::grace_seconds;
use crate::runtime::{
    ContainerConfig, ErrorKind, LinuxResources, RuntimeError, SandboxConfig, SeccompChoice,
};

/// The largest seccomp profile that is read.
const MAX_PROFILE: u64 = 4 << 20;

/// Creates a container. A name that is in use is freed if what has it does not run, and was made by a kubelet.
pub(super) async fn make(
    engine: &Engine,
    call: &'static str,
    name: &str,
    body: &Value,
) -> Result<String, RuntimeError> {
    let conflict = match create(engine, call, name, body).await {
        Err(error) if error.kind == ErrorKind::AlreadyExists => error,
        made => return made,
    };
    match engine.inspect(call, name).await {
        Ok(object)
            if object["State"]["Running"] == false && object["Config"]["Labels"].get(KIND).is_some() =>
        {
            let path = format!("/containers/{}?v=1&force=1", text(&object["Id"]));
            forgive_not_found(engine.client.delete(call, &path).await)?;
            create(engine, call, name, body).await
        }
        Ok(_) => Err(conflict),
        // The engine may keep the name of a container that it no longer has.
        Err(error) if error.kind == ErrorKind::NotFound => {
            let suffix = Dice::System.word() & 0xffff_ffff;
            create(engine, call, &format!("{name}_{suffix:08x}"), body).await
        }
        Err(error) => Err(error),
    }
}

async fn create(
    engine: &Engine,
    call: &'static str,
    name: &str,
    body: &Value,
) -> Result<String, RuntimeError> {
    let path = format!("/containers/create?name={}", escaped(name));
    let limit = engine.client.limit().saturating_mul(2);
    let made = engine.client.call(call, Method::POST, &path, Payload::Json(body), limit).await?;
    Ok(text(&made["Id"]))
}

pub(super) async fn create_container(
    engine: &Engine,
    sandbox: &SandboxId,
    config: &ContainerConfig,
    pod: &SandboxConfig,
) -> Result<ContainerId, RuntimeError> {
    let call = "CreateContainer";
    let refused = |message: String| RuntimeError::new(call, ErrorKind::Refused, message);
    let facts = engine.facts(call).await?;
    let profile = match &config.security.seccomp {
        SeccompChoice::Localhost(path) => {
            let (path, shown) = (PathBuf::from(path), path.clone());
            let read = rt::blocking("read seccomp profile", move || read_profile(&path)).await;
            Some(read.map_err(|error| refused(format!("cannot load seccomp profile {shown:?}: {error}")))?)
        }
        _ => None,
    };
    let body = request::container(sandbox, config, pod, profile.as_deref(), &facts).map_err(refused)?;
    let sources: Vec<PathBuf> = config.mounts.iter().map(|mount| PathBuf::from(&mount.host_path)).collect();
    let missing = rt::blocking("make mounted directories", move || make_sources(&sources)).await;
    missing.map_err(|(path, error)| refused(format!("create {}: {error}", path.display())))?;
    make(engine, call, &request::container_name(config, pod), &body).await.map(ContainerId::from)
}

fn read_profile(path: &Path) -> io::Result<String> {
    let length = std::fs::metadata(path)?.len();
    if length > MAX_PROFILE {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    std::fs::read_to_string(path)
}

/// As the other runtimes, which make a directory of the node that a pod mounts and that does not exist.
fn make_sources(sources: &[PathBuf]) -> Result<(), (PathBuf, io::Error)> {
    let missing = sources.iter().filter(|path| path.is_absolute() && !path.exists());
    for path in missing {
        make_dir(path, 0o755).map_err(|error| (path.clone(), error))?;
    }
    Ok(())
}

pub(super) async fn start(engine: &Engine, id: &ContainerId) -> Result<(), RuntimeError> {
    let call = "StartContainer";
    let path = format!("/containers/{id}/start");
    let limit = engine.client.limit().saturating_mul(2);
    let started = engine.client.call(call, Method::POST, &path, Payload::None, limit).await;
    started.map_err(|error| match error.kind {
        // The container exists: something that it needs does not.
        ErrorKind::NotFound | ErrorKind::AlreadyExists if !error.message.contains("No such container") => {
            RuntimeError { kind: ErrorKind::Refused, ..error }
        }
        _ => error,
    })?;
    let object = engine.inspect(call, id.as_str()).await?;
    let target = PathBuf::from(text(&object["LogPath"]));
    if let Some(link) = labels_of(&object["Config"]).get(LOG_PATH).map(PathBuf::from)
        && target.is_absolute()
        && let Err(error) = rt::blocking("link log", move || replace_link(&target, &link)).await
    {
        log::warn!(container:% = id, err:% = error; "Failed to link container log of Docker");
    }
    Ok(())
}

fn replace_link(target: &Path, link: &Path) -> io::Result<()> {
    remove_link(link);
    std::os::unix::fs::symlink(target, link)
}

/// Never removes a file.
fn remove_link(link: &Path) {
    if std::fs::symlink_metadata(link).is_ok_and(|found| found.is_symlink()) {
        let _ = std::fs::remove_file(link);
    }
}

pub(super) async fn stop(engine: &Engine, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
    let path = format!("/containers/{id}/stop?t={}", grace_seconds(grace));
    let limit = engine.client.limit().saturating_add(grace).saturating_add(Duration::from_secs(1));
    let stopped = engine.client.call("StopContainer", Method::POST, &path, Payload::None, limit).await;
    forgive_not_found(stopped)
}

/// Removes a container with its log, which belongs to the engine, and the link to it.
pub(super) async fn remove(
    engine: &Engine,
    id: &str,
    labels: &BTreeMap<String, String>,
) -> Result<(), RuntimeError> {
    let path = format!("/containers/{id}?v=1&force=1");
    forgive_not_found(engine.client.delete("RemoveContainer", &path).await)?;
    if let Some(link) = labels.get(LOG_PATH).map(PathBuf::from) {
        rt::blocking("remove link to log", move || remove_link(&link)).await;
    }
    Ok(())
}

pub(super) async fn update(
    engine: &Engine,
    id: &ContainerId,
    resources: &LinuxResources,
) -> Result<(), RuntimeError> {
    let body = Value::from(request::resources(resources));
    if body == json!({}) {
        return Ok(());
    }
    let path = format!("/containers/{id}/update");
    engine.client.post("UpdateContainerResources", &path, Payload::Json(&body)).await.map(drop)
}
