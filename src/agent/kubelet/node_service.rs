//! The node as its server sees it: the loop's view, the runtime, and streams of either kind of runtime.
//!
//! Owns the implementation of the server's interface.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::agent::kubelet::report::LoopView;
use crate::cluster::pods::set::REPLACED as REASON_REPLACED;
use crate::desired::pod_config::edit::{ApiChange, Editor};
use crate::desired::source::{Accept, REASON_EMPTY};
use crate::model::api::pod::Pod;
use crate::model::observed::ObservedContainer;
use crate::model::types::{ContainerId, ContainerName, PodSource, PodUid, SandboxId};
use crate::node::stats::{Ask, AskRuntime, RuntimeAnswer, Stats};
use crate::node::usage::Summary;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::rt::live::Live;
use crate::platform::sys::dir::make_dir;
use crate::pod::events::EventRecorder;
use crate::pod::status::StatusManager;
use crate::runtime::chosen::NodeRuntime;
use crate::runtime::cri::CriRuntime;
use crate::runtime::docker::DockerRuntime;
use crate::runtime::embedded::runtime::EmbeddedRuntime;
use crate::runtime::socket::FoundRuntime;
use crate::runtime::{ErrorKind, Runtime, RuntimeError};
use crate::serve::cri::streams;
use crate::serve::docker;
use crate::serve::server::node::{LoopHealth, Node, Output, StreamKind, StreamServer};
use crate::serve::server::{AgentReport, ObjectDetail};
use crate::serve::streaming::{Action, Pending, Streams};
use crate::store::StoreHandle;

/// Below the root directory, as of the kubelet.
const CHECKPOINTS_DIR: &str = "checkpoints";

/// A runtime that supports exec, attach and port-forward.
pub(in crate::agent) trait SandboxStreams: Runtime {
    /// Opens a stream. The sandbox is the pod's ready one.
    fn open_stream(self: Rc<Self>, wanted: StreamTarget) -> Pending<Result<StreamServer, String>>;
    /// Disk usage that only the runtime knows, if requested, of these containers.
    fn usage(self: Rc<Self>, disks: bool, of: Vec<ContainerId>) -> RuntimeAnswer;
}

/// As [`StreamKind`], with the sandbox resolved.
pub(in crate::agent) enum StreamTarget {
    /// A new program.
    Exec(ContainerId, Vec<String>, Streams),
    /// The container's main program.
    Attach(ContainerId, Streams),
    PortForward(SandboxId, Vec<u16>),
}

impl SandboxStreams for EmbeddedRuntime {
    fn open_stream(self: Rc<Self>, wanted: StreamTarget) -> Pending<Result<StreamServer, String>> {
        let runtime = EmbeddedRuntime::clone(&self);
        let action = match wanted {
            StreamTarget::Exec(id, command, wanted) => Action::Command {
                streams: wanted,
                open: Box::pin(streams::exec(runtime, id, command, wanted)),
            },
            StreamTarget::Attach(id, wanted) => {
                Action::Command { streams: wanted, open: Box::pin(streams::attach(runtime, id, wanted)) }
            }
            StreamTarget::PortForward(sandbox, ports) => {
                Action::Forward { ports, dial: streams::dialer(runtime, sandbox) }
            }
        };
        Box::pin(async { Ok(StreamServer::Agent(action)) })
    }

    fn usage(self: Rc<Self>, disks: bool, of: Vec<ContainerId>) -> RuntimeAnswer {
        Box::pin(async move { Ok(EmbeddedRuntime::usage(&self, disks, &of).await) })
    }
}

impl SandboxStreams for CriRuntime {
    fn open_stream(self: Rc<Self>, wanted: StreamTarget) -> Pending<Result<StreamServer, String>> {
        Box::pin(async move {
            let url = match wanted {
                StreamTarget::Exec(id, command, streams) => self.exec_url(&id, &command, streams).await,
                StreamTarget::Attach(id, streams) => self.attach_url(&id, streams).await,
                StreamTarget::PortForward(sandbox, ports) => self.port_forward_url(&sandbox, &ports).await,
            };
            url.map(StreamServer::Runtime).map_err(|error| chain(&error))
        })
    }

    fn usage(self: Rc<Self>, disks: bool, _: Vec<ContainerId>) -> RuntimeAnswer {
        Box::pin(async move { CriRuntime::usage(&self, disks).await.map_err(|error| chain(&error)) })
    }
}

impl SandboxStreams for DockerRuntime {
    fn open_stream(self: Rc<Self>, wanted: StreamTarget) -> Pending<Result<StreamServer, String>> {
        let action = match wanted {
            StreamTarget::Exec(id, command, streams) => {
                Action::Command { streams, open: Box::pin(docker::exec(self, id, command, streams)) }
            }
            StreamTarget::Attach(id, streams) => {
                Action::Command { streams, open: Box::pin(docker::attach(self, id, streams)) }
            }
            StreamTarget::PortForward(sandbox, ports) => {
                Action::Forward { ports, dial: docker::dialer(self, sandbox) }
            }
        };
        Box::pin(async { Ok(StreamServer::Agent(action)) })
    }

    fn usage(self: Rc<Self>, disks: bool, _: Vec<ContainerId>) -> RuntimeAnswer {
        Box::pin(async move { DockerRuntime::usage(&self, disks).await.map_err(|error| chain(&error)) })
    }
}

impl SandboxStreams for NodeRuntime {
    fn open_stream(self: Rc<Self>, wanted: StreamTarget) -> Pending<Result<StreamServer, String>> {
        match &*self {
            Self::Embedded(runtime) => Rc::clone(runtime).open_stream(wanted),
            Self::Socket(runtime) => {
                let runtime = Rc::clone(runtime);
                Box::pin(async move {
                    match runtime.found().await.map_err(|error| chain(&error))? {
                        FoundRuntime::Cri(runtime) => Rc::clone(runtime).open_stream(wanted).await,
                        FoundRuntime::Docker(runtime) => Rc::clone(runtime).open_stream(wanted).await,
                    }
                })
            }
        }
    }

    fn usage(self: Rc<Self>, disks: bool, of: Vec<ContainerId>) -> RuntimeAnswer {
        match &*self {
            Self::Embedded(runtime) => SandboxStreams::usage(Rc::clone(runtime), disks, of),
            Self::Socket(runtime) => {
                let runtime = Rc::clone(runtime);
                Box::pin(async move {
                    match runtime.found().await.map_err(|error| chain(&error))? {
                        FoundRuntime::Cri(runtime) => {
                            SandboxStreams::usage(Rc::clone(runtime), disks, of).await
                        }
                        FoundRuntime::Docker(runtime) => {
                            SandboxStreams::usage(Rc::clone(runtime), disks, of).await
                        }
                    }
                })
            }
        }
    }
}

pub(in crate::agent) struct NodeService<R> {
    pub name: String,
    /// The effective configuration, with secrets masked.
    pub configuration: Live<Value>,
    pub flags: Vec<(String, String)>,
    /// `streamingConnectionIdleTimeout`.
    pub stream_idle_timeout: Duration,
    pub view: Rc<LoopView>,
    pub statuses: Rc<StatusManager>,
    pub events: EventRecorder,
    /// Sources whose empty answers can be confirmed.
    pub accepts: BTreeMap<PodSource, mpsc::Sender<Accept>>,
    pub runtime: Rc<R>,
    pub stats: Rc<Stats>,
    pub editor: Editor,
    pub store: StoreHandle,
}

impl<R> NodeService<R> {
    /// The source that is to accept its current answer, and its origin; or why there is nothing to accept.
    fn source_to_accept(&self, name: &str) -> Result<(mpsc::Sender<Accept>, String), String> {
        let Some((source, sender)) = self.accepts.iter().find(|(source, _)| source.as_str() == name) else {
            let known: Vec<_> = self.accepts.keys().map(|source| source.as_str()).collect();
            return Err(format!("source {name:?} not found; configured sources: {}", known.join(", ")));
        };
        let views = self.view.sources();
        let problems = views.get(source).map(|view| view.problems.as_slice()).unwrap_or_default();
        match problems
            .iter()
            .find(|problem| [REASON_EMPTY, REASON_REPLACED].contains(&problem.reason.as_str()))
        {
            Some(problem) => Ok((sender.clone(), problem.origin.clone())),
            None => Err(format!("source {name} has no pending empty response to accept")),
        }
    }
}

fn error_message(error: &RuntimeError) -> String {
    chain(error)
}

impl<R: SandboxStreams> Node for NodeService<R> {
    fn name(&self) -> &str {
        &self.name
    }

    fn report(&self, detail: ObjectDetail) -> AgentReport {
        self.view.report(&self.statuses, &self.events, detail)
    }

    fn pods(&self) -> Vec<Pod> {
        self.statuses.all_pods()
    }

    fn pod(&self, namespace: &str, name: &str, uid: Option<&PodUid>) -> Option<Pod> {
        self.statuses.find(namespace, name, uid)
    }

    fn plugin_health(&self) -> Result<(), String> {
        self.view.plugin_trouble().map_or(Ok(()), Err)
    }

    fn loop_health(&self) -> LoopHealth {
        self.view.loop_health()
    }

    fn served(&self) {
        self.view.set_served();
    }

    fn configuration(&self) -> Value {
        Value::clone(&self.configuration.get())
    }

    fn flags(&self) -> Vec<(String, String)> {
        self.flags.clone()
    }

    fn containers(&self, pod: Option<PodUid>) -> Pending<Result<Vec<ObservedContainer>, String>> {
        let runtime = Rc::clone(&self.runtime);
        Box::pin(
            async move { runtime.list_containers(pod.as_ref()).await.map_err(|error| error_message(&error)) },
        )
    }

    fn container(&self, id: ContainerId) -> Pending<Result<Option<ObservedContainer>, String>> {
        let runtime = Rc::clone(&self.runtime);
        Box::pin(async move {
            match runtime.container_status(&id).await {
                Ok(found) => Ok(Some(found)),
                Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error_message(&error)),
            }
        })
    }

    fn run(&self, id: ContainerId, command: Vec<String>) -> Pending<Result<Output, String>> {
        let runtime = Rc::clone(&self.runtime);
        Box::pin(async move {
            let output =
                runtime.exec_sync(&id, &command, None).await.map_err(|error| error_message(&error))?;
            Ok(Output { text: output.output, code: output.exit_code })
        })
    }

    fn checkpoint(
        &self,
        id: ContainerId,
        archive: String,
        timeout: Option<Duration>,
    ) -> Pending<Result<String, String>> {
        let runtime = Rc::clone(&self.runtime);
        let directory = self.view.volumes_dir().with_file_name(CHECKPOINTS_DIR);
        Box::pin(async move {
            let (location, made) = (directory.join(archive), directory.clone());
            rt::blocking("make the directory of checkpoints", move || make_dir(&made, 0o700))
                .await
                .map_err(|error| format!("make {}: {error}", directory.display()))?;
            let written = runtime.checkpoint_container(&id, &location, timeout).await;
            written.map_err(|error| error_message(&error))?;
            Ok(location.display().to_string())
        })
    }

    fn stats(&self, ask: Ask) -> Pending<Result<Summary, String>> {
        let (runtime, stats, pods) = (Rc::clone(&self.runtime), Rc::clone(&self.stats), self.pods());
        Box::pin(async move {
            let containers = runtime.list_containers(None).await.map_err(|error| error_message(&error))?;
            let asked: AskRuntime = Rc::new(move |disks, of| Rc::clone(&runtime).usage(disks, of));
            Ok(stats.measure(ask, pods, containers, asked).await)
        })
    }

    fn restart(&self, pod: PodUid, containers: Vec<ContainerName>) -> Pending<Result<(), String>> {
        let editor = self.editor.clone();
        Box::pin(async move {
            let change = ApiChange { restart: Some((pod, containers)), ..ApiChange::default() };
            editor.edit(|_| (change, ())).await.map_err(|error| chain(&error))
        })
    }

    fn accept_source(&self, name: &str) -> Pending<Result<String, String>> {
        let asked = self.source_to_accept(name);
        let name = name.to_owned();
        Box::pin(async move {
            let (source, origin) = asked?;
            let (done, answered) = oneshot::channel();
            let ended = || format!("source {name} has stopped");
            source.send(done).await.map_err(|_| ended())?;
            if answered.await.map_err(|_| ended())? {
                log::info!(source = name.as_str(), origin = origin.as_str(); "Empty response of a source \
                     was accepted manually");
                return Ok(format!("source {name}: accepted the current content of {origin}"));
            }
            Err(format!("source {name}: {origin} has no valid content; see agent status"))
        })
    }

    fn leave_cluster(&self, forgets: bool) -> Pending<Result<Vec<String>, String>> {
        let (cluster, store, statuses) = (self.view.cluster(), self.store.clone(), Rc::clone(&self.statuses));
        Box::pin(async move {
            if forgets {
                store.forget_cluster().await.map_err(|error| chain(&error))?;
                log::info!("The cluster is forgotten; its pods end at the next start without a kubeconfig");
                return Ok(Vec::new());
            }
            let cluster = cluster.ok_or("this node is in no cluster")?;
            cluster.drain(&statuses.all_pods()).await
        })
    }

    fn stream_idle_timeout(&self) -> Duration {
        self.stream_idle_timeout
    }

    fn stream(&self, wanted: StreamKind) -> Pending<Result<StreamServer, String>> {
        let runtime = Rc::clone(&self.runtime);
        Box::pin(async move {
            let entry = match wanted {
                StreamKind::Exec(id, command, streams) => StreamTarget::Exec(id, command, streams),
                StreamKind::Attach(id, streams) => StreamTarget::Attach(id, streams),
                StreamKind::PortForward(uid, ports) => {
                    let sandboxes =
                        runtime.list_sandboxes(Some(&uid)).await.map_err(|error| error_message(&error))?;
                    let ready = sandboxes.into_iter().find(|sandbox| sandbox.ready);
                    let ready = ready.ok_or("the pod has no ready sandbox")?;
                    StreamTarget::PortForward(ready.id, ports)
                }
            };
            runtime.open_stream(entry).await
        })
    }
}
