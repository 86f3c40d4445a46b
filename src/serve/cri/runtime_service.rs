//! CRI's RuntimeService: sandboxes, containers, streams, events.
//!
//! Owns the meaning of the calls: which object is meant, what counts as done.

#![expect(clippy::unused_async, reason = "the table of calls wants all of them alike")]

mod events;
mod lists;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::select::{Unfound, one};
use super::{CriServer, failed, messages, streams};
use crate::devices::cdi;
use crate::model::observed::ContainerStateKind;
use crate::model::ordered::Ordered as _;
use crate::model::runtime_config::CgroupDriver;
use crate::model::types::{ContainerId, SandboxId, go_duration};
use crate::platform::grpc::{Code, Status};
use crate::platform::proto::runtime as cri;
use crate::platform::rt;
use crate::runtime::embedded::runtime::api::{ContainerView, SandboxView};
use crate::runtime::{Runtime, convert};
use crate::serve::streaming::server::StreamUrlKind;
use crate::serve::streaming::tokens::TokenError;
use crate::serve::streaming::{Action, MAX_PORTS, Session, Streams};

/// CRI's own version in the answer to `Version`, on both sides.
const API_VERSION: &str = "0.1.0";

fn invalid(message: impl Into<String>) -> Status {
    Status::new(Code::InvalidArgument, message)
}

fn lookup_error(what: &str, wanted: &str, why: &Unfound) -> Status {
    match why {
        Unfound::None => {
            let message = format!("an error occurred when try to find {what} \"{wanted}\": not found");
            Status::new(Code::NotFound, message)
        }
        Unfound::Several => invalid(format!("{what} id prefix \"{wanted}\" is ambiguous")),
    }
}

fn forgive_missing<T>(found: Result<T, Status>) -> Result<Option<T>, Status> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(status) if status.code == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn invalid_request(error: convert::RequestError) -> Status {
    invalid(error.to_string())
}

fn token_error(error: TokenError) -> Status {
    Status::new(Code::ResourceExhausted, error.to_string())
}

impl CriServer {
    /// The sandbox with this id or unique id prefix.
    fn sandbox(&self, wanted: &str) -> Result<SandboxView, Status> {
        if let Ok(view) = self.runtime.sandbox(&SandboxId::from(wanted)) {
            return Ok(view);
        }
        let all = self.runtime.sandboxes();
        let id = one(wanted, all.iter().map(|view| view.id.as_str()));
        let id = id.map_err(|why| lookup_error("sandbox", wanted, &why))?.to_owned();
        all.into_iter()
            .find(|view| view.id.as_str() == id)
            .ok_or_else(|| lookup_error("sandbox", wanted, &Unfound::None))
    }

    /// The container with this id or unique id prefix.
    fn container(&self, wanted: &str) -> Result<ContainerView, Status> {
        if let Ok(view) = self.runtime.container(&ContainerId::from(wanted)) {
            return Ok(view);
        }
        let all = self.runtime.containers();
        let id = one(wanted, all.iter().map(|view| view.id.as_str()));
        let id = id.map_err(|why| lookup_error("container", wanted, &why))?.to_owned();
        all.into_iter()
            .find(|view| view.id.as_str() == id)
            .ok_or_else(|| lookup_error("container", wanted, &Unfound::None))
    }

    fn running(&self, wanted: &str) -> Result<ContainerView, Status> {
        let view = self.container(wanted)?;
        if view.state == ContainerStateKind::Running {
            return Ok(view);
        }
        let state = messages::container_state(&view).as_str_name();
        Err(Status::new(Code::Unknown, format!("container is in {state} state")))
    }

    pub(super) async fn version(&self, _: cri::VersionRequest) -> Result<cri::VersionResponse, Status> {
        let version = self.runtime.version().await.map_err(failed)?;
        Ok(cri::VersionResponse {
            version: API_VERSION.to_owned(),
            runtime_name: version.name,
            runtime_version: version.version,
            runtime_api_version: version.api_version,
        })
    }

    pub(super) async fn status(&self, request: cri::StatusRequest) -> Result<cri::StatusResponse, Status> {
        let status = self.runtime.status().await.map_err(failed)?;
        let condition = |kind: &str, ready: &Result<(), String>, reason: &str| {
            let message = ready.as_ref().err().cloned().unwrap_or_default();
            // The runtime's message may have the form `Reason: message`.
            let message = message.strip_prefix(&format!("{reason}: ")).unwrap_or(&message).to_owned();
            cri::RuntimeCondition {
                r#type: kind.to_owned(),
                status: ready.is_ok(),
                reason: if ready.is_ok() { String::new() } else { reason.to_owned() },
                message,
            }
        };
        let conditions = vec![
            condition("RuntimeReady", &status.runtime_ready, "RuntimeNotReady"),
            condition("NetworkReady", &status.network_ready, "NetworkPluginNotReady"),
        ];
        let handler = |handler: crate::runtime::RuntimeHandler| cri::RuntimeHandler {
            name: handler.name,
            features: Some(cri::RuntimeHandlerFeatures {
                recursive_read_only_mounts: handler.recursive_read_only_mounts,
                user_namespaces: handler.user_namespaces,
            }),
        };
        let config = self.runtime.config();
        let info = json!({
            "images": config.layout.images(),
            "containers": config.layout.writable_layers(),
            "sandboxes": config.layout.sandboxes(),
            "bridge": config.network.bridge,
            "cniConfDir": config.network.cni_conf_dir,
            "runtimeHandlers": config.handlers,
            "registryHostsDirs": config.registry_hosts_dirs,
        });
        let info = request.verbose.then(|| ("config".to_owned(), info.to_string()));
        Ok(cri::StatusResponse {
            status: Some(cri::RuntimeStatus { conditions }),
            info: info.into_iter().into_map(),
            runtime_handlers: status.handlers.into_iter().map(handler).collect(),
            features: Some(cri::RuntimeFeatures {
                supplemental_groups_policy: status.supplemental_groups_policy.unwrap_or_default(),
                user_namespaces_host_network: false,
            }),
        })
    }

    pub(super) async fn runtime_config(
        &self,
        _: cri::RuntimeConfigRequest,
    ) -> Result<cri::RuntimeConfigResponse, Status> {
        let driver = match self.runtime.cgroup_driver().await.map_err(failed)? {
            Some(CgroupDriver::Systemd) => cri::CgroupDriver::Systemd,
            Some(CgroupDriver::Cgroupfs) | None => cri::CgroupDriver::Cgroupfs,
        };
        let linux = cri::LinuxRuntimeConfiguration { cgroup_driver: driver.into() };
        Ok(cri::RuntimeConfigResponse { linux: Some(linux) })
    }

    /// The pod addresses are fixed at the start; a request for the same range succeeds.
    pub(super) async fn update_runtime_config(
        &self,
        request: cri::UpdateRuntimeConfigRequest,
    ) -> Result<cri::UpdateRuntimeConfigResponse, Status> {
        let wanted = request.runtime_config.and_then(|config| config.network_config).unwrap_or_default();
        let subnets = &self.runtime.config().network.subnets;
        let has = |wanted: &str| subnets.iter().any(|subnet| subnet.to_string() == wanted);
        if wanted.pod_cidr.split(',').filter(|cidr| !cidr.is_empty()).all(|cidr| has(cidr.trim())) {
            return Ok(cri::UpdateRuntimeConfigResponse {});
        }
        let message =
            format!("pod CIDR {:?} must be set when the runtime starts: --pod-cidr", wanted.pod_cidr);
        Err(Status::new(Code::FailedPrecondition, message))
    }

    pub(super) async fn run_pod_sandbox(
        &self,
        request: cri::RunPodSandboxRequest,
    ) -> Result<cri::RunPodSandboxResponse, Status> {
        let config = request.config.ok_or_else(|| invalid("config: Required value"))?;
        let config = convert::requested_sandbox(config, &request.runtime_handler).map_err(invalid_request)?;
        let id = self.runtime.run_sandbox(&config).await.map_err(failed)?;
        Ok(cri::RunPodSandboxResponse { pod_sandbox_id: id.to_string() })
    }

    pub(super) async fn stop_pod_sandbox(
        &self,
        request: cri::StopPodSandboxRequest,
    ) -> Result<cri::StopPodSandboxResponse, Status> {
        if let Some(view) = forgive_missing(self.sandbox(&request.pod_sandbox_id))? {
            self.runtime.stop_sandbox(&view.id).await.map_err(failed)?;
        }
        Ok(cri::StopPodSandboxResponse {})
    }

    /// Removes all of its containers too, running or not.
    pub(super) async fn remove_pod_sandbox(
        &self,
        request: cri::RemovePodSandboxRequest,
    ) -> Result<cri::RemovePodSandboxResponse, Status> {
        if let Some(view) = forgive_missing(self.sandbox(&request.pod_sandbox_id))? {
            self.runtime.stop_sandbox(&view.id).await.map_err(failed)?;
            for container in self.runtime.containers() {
                if container.sandbox == view.id {
                    self.runtime.remove_container(&container.id).await.map_err(failed)?;
                }
            }
            self.runtime.remove_sandbox(&view.id).await.map_err(failed)?;
        }
        Ok(cri::RemovePodSandboxResponse {})
    }

    pub(super) async fn pod_sandbox_status(
        &self,
        request: cri::PodSandboxStatusRequest,
    ) -> Result<cri::PodSandboxStatusResponse, Status> {
        let view = self.sandbox(&request.pod_sandbox_id)?;
        Ok(cri::PodSandboxStatusResponse {
            status: Some(messages::sandbox_status(&view)),
            info: if request.verbose { messages::sandbox_info(&view) } else { BTreeMap::new() },
            // Only consumers of events use these two fields, and they get them with the events.
            containers_statuses: Vec::new(),
            timestamp: 0,
        })
    }

    pub(super) async fn create_container(
        &self,
        request: cri::CreateContainerRequest,
    ) -> Result<cri::CreateContainerResponse, Status> {
        let sandbox = self.sandbox(&request.pod_sandbox_id)?;
        let config = request.config.ok_or_else(|| invalid("config: Required value"))?;
        let mut config = convert::requested_container(config).map_err(invalid_request)?;
        if !config.cdi_devices.is_empty() || !cdi::annotated(&config).is_empty() {
            let directories = cdi::DIRECTORIES.map(PathBuf::from);
            let (edited, result) = rt::blocking("read CDI specifications", move || {
                let result = cdi::apply(&directories, &mut config);
                (config, result)
            })
            .await;
            result.map_err(|error| {
                Status::new(Code::Unknown, format!("CDI device injection failed: {error}"))
            })?;
            config = edited;
        }
        // The configuration that the sandbox was created with is used, even if the client sends a different
        // one.
        let created = self.runtime.create_container(&sandbox.id, &config, &sandbox.config).await;
        Ok(cri::CreateContainerResponse { container_id: created.map_err(failed)?.to_string() })
    }

    pub(super) async fn start_container(
        &self,
        request: cri::StartContainerRequest,
    ) -> Result<cri::StartContainerResponse, Status> {
        let view = self.container(&request.container_id)?;
        if view.state != ContainerStateKind::Created {
            let state = messages::container_state(&view).as_str_name();
            return Err(Status::new(Code::Unknown, format!("container is in {state} state")));
        }
        self.runtime.start_container(&view.id).await.map_err(failed)?;
        Ok(cri::StartContainerResponse {})
    }

    pub(super) async fn stop_container(
        &self,
        request: cri::StopContainerRequest,
    ) -> Result<cri::StopContainerResponse, Status> {
        if let Some(view) = forgive_missing(self.container(&request.container_id))? {
            let grace = Duration::from_secs(u64::try_from(request.timeout).unwrap_or(0));
            self.runtime.stop_container(&view.id, grace).await.map_err(failed)?;
        }
        Ok(cri::StopContainerResponse {})
    }

    /// A running container is killed first, as containerd does.
    pub(super) async fn remove_container(
        &self,
        request: cri::RemoveContainerRequest,
    ) -> Result<cri::RemoveContainerResponse, Status> {
        if let Some(view) = forgive_missing(self.container(&request.container_id))? {
            if view.state == ContainerStateKind::Running {
                self.runtime.stop_container(&view.id, Duration::ZERO).await.map_err(failed)?;
            }
            self.runtime.remove_container(&view.id).await.map_err(failed)?;
        }
        Ok(cri::RemoveContainerResponse {})
    }

    pub(super) async fn container_status(
        &self,
        request: cri::ContainerStatusRequest,
    ) -> Result<cri::ContainerStatusResponse, Status> {
        let view = self.container(&request.container_id)?;
        Ok(cri::ContainerStatusResponse {
            status: Some(messages::container_status(&view)),
            info: if request.verbose { messages::container_info(&view) } else { BTreeMap::new() },
        })
    }

    pub(super) async fn update_container_resources(
        &self,
        request: cri::UpdateContainerResourcesRequest,
    ) -> Result<cri::UpdateContainerResourcesResponse, Status> {
        let view = self.container(&request.container_id)?;
        let resources = convert::requested_resources(request.linux.unwrap_or_default());
        self.runtime.update_container_resources(&view.id, &resources).await.map_err(failed)?;
        Ok(cri::UpdateContainerResourcesResponse {})
    }

    pub(super) async fn reopen_container_log(
        &self,
        request: cri::ReopenContainerLogRequest,
    ) -> Result<cri::ReopenContainerLogResponse, Status> {
        let view = self.running(&request.container_id)?;
        self.runtime.reopen_log(&view.id).await.map_err(failed)?;
        Ok(cri::ReopenContainerLogResponse {})
    }

    pub(super) async fn exec_sync(
        &self,
        request: cri::ExecSyncRequest,
    ) -> Result<cri::ExecSyncResponse, Status> {
        let view = self.running(&request.container_id)?;
        let wanted = Streams { stdout: true, stderr: true, ..Streams::default() };
        let command = command(request.cmd)?;
        let run = async {
            let session = streams::exec(self.runtime.clone(), view.id, command, wanted).await?;
            streams::collect(session).await
        };
        let said = match u64::try_from(request.timeout) {
            Ok(seconds @ 1..) => {
                let timeout = Duration::from_secs(seconds);
                // Dropping the session kills the program.
                tokio::time::timeout(timeout, run).await.map_err(|_| {
                    let words = go_duration(timeout);
                    let message = format!(
                        "failed to exec in container: timeout {words} exceeded: context deadline exceeded"
                    );
                    Status::new(Code::DeadlineExceeded, message)
                })?
            }
            _ => run.await,
        };
        let said = said.map_err(|message| Status::new(Code::Unknown, message))?;
        Ok(cri::ExecSyncResponse { stdout: said.stdout, stderr: said.stderr, exit_code: said.code })
    }

    pub(super) async fn exec(&self, request: cri::ExecRequest) -> Result<cri::ExecResponse, Status> {
        let view = self.running(&request.container_id)?;
        let wanted = Streams {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            tty: request.tty,
        };
        check(wanted)?;
        let command = command(request.cmd)?;
        let runtime = self.runtime.clone();
        let url = self.announce(StreamUrlKind::Exec, wanted, move || {
            streams::exec(runtime, view.id, command, wanted)
        })?;
        Ok(cri::ExecResponse { url })
    }

    pub(super) async fn attach(&self, request: cri::AttachRequest) -> Result<cri::AttachResponse, Status> {
        let view = self.running(&request.container_id)?;
        let wanted = Streams {
            // A container without a stdin has nothing to write to.
            stdin: request.stdin && view.config.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            tty: request.tty,
        };
        check(Streams { stdin: request.stdin, ..wanted })?;
        if request.tty != view.config.tty {
            return Err(invalid(format!(
                "tty must be {}, as in the container's configuration",
                view.config.tty
            )));
        }
        let runtime = self.runtime.clone();
        // The client opens the streams it asked for, whether anything is attached to them or not.
        let promised = Streams { stdin: request.stdin, ..wanted };
        let url = self
            .announce(StreamUrlKind::Attach, promised, move || streams::attach(runtime, view.id, wanted))?;
        Ok(cri::AttachResponse { url })
    }

    fn announce<F>(
        &self,
        kind: StreamUrlKind,
        streams: Streams,
        open: impl FnOnce() -> F + 'static,
    ) -> Result<String, Status>
    where
        F: Future<Output = Result<Session, String>> + 'static,
    {
        let begin = move || Action::Command { streams, open: Box::pin(async move { open().await }) };
        self.streams.announce(kind, begin).map_err(token_error)
    }

    pub(super) async fn port_forward(
        &self,
        request: cri::PortForwardRequest,
    ) -> Result<cri::PortForwardResponse, Status> {
        let view = self.sandbox(&request.pod_sandbox_id)?;
        if !view.ready {
            let message = format!("sandbox container \"{}\" is not running", view.id);
            return Err(Status::new(Code::Unknown, message));
        }
        if request.port.len() > MAX_PORTS {
            return Err(invalid(format!("port: at most {MAX_PORTS}")));
        }
        let ports = request.port.iter().map(|port| u16::try_from(*port).ok().filter(|port| *port != 0));
        let ports: Vec<u16> =
            ports.collect::<Option<_>>().ok_or_else(|| invalid("port: must be between 1 and 65535"))?;
        let runtime = self.runtime.clone();
        let begin = move || Action::Forward { ports, dial: streams::dialer(runtime, view.id) };
        let url = self.streams.announce(StreamUrlKind::PortForward, begin).map_err(token_error)?;
        Ok(cri::PortForwardResponse { url })
    }
}

fn command(command: Vec<String>) -> Result<Vec<String>, Status> {
    if command.is_empty() { Err(invalid("cmd: Required value")) } else { Ok(command) }
}

/// The same rules as in upstream's streaming server.
fn check(streams: Streams) -> Result<(), Status> {
    if streams.tty && streams.stderr {
        return Err(invalid("tty and stderr cannot both be true"));
    }
    if !streams.stdin && !streams.stdout && !streams.stderr {
        return Err(invalid("one of stdin, stdout, or stderr must be set"));
    }
    Ok(())
}
