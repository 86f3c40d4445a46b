//! The server's interface to the node.
//!
//! Owns the methods.

use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

use crate::model::api::pod::Pod;
use crate::model::observed::ObservedContainer;
use crate::model::types::{ContainerId, ContainerName, PodUid};
use crate::node::stats::Ask;
use crate::node::usage::Summary;
use crate::pod::status::is_named;
use crate::serve::streaming::{Action, IDLE_TIMEOUT, Pending, Streams};

use super::report::{AgentReport, ObjectDetail};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// A new program in a container.
    Exec(ContainerId, Vec<String>, Streams),
    /// The main program of a container.
    Attach(ContainerId, Streams),
    /// Ports of a pod, those that were named.
    PortForward(PodUid, Vec<u16>),
}

pub(crate) enum StreamServer {
    Agent(Action),
    /// The runtime's streaming server, under this URL.
    Runtime(String),
}

/// A command's output, both streams together, and its exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    pub text: Vec<u8>,
    pub code: i32,
}

/// The state of the loop for `/healthz/syncloop`; the error is why it is unhealthy.
pub(crate) type LoopHealth = Result<(), String>;

/// The node, as its server sees it. Errors are messages for the user.
pub(crate) trait Node {
    fn name(&self) -> &str;
    fn report(&self, detail: ObjectDetail) -> AgentReport;
    /// Desired and terminating pods with their statuses.
    fn pods(&self) -> Vec<Pod>;
    /// One pod; of several with the same name the one with this uid, or the first.
    fn pod(&self, namespace: &str, name: &str, uid: Option<&PodUid>) -> Option<Pod> {
        self.pods().into_iter().find(|pod| is_named(pod, namespace, name, uid))
    }
    /// Whether the loop makes progress.
    fn loop_health(&self) -> LoopHealth;
    /// Whether device plugins can register.
    fn plugin_health(&self) -> Result<(), String> {
        Ok(())
    }
    /// A connection has ended: its memory may be returned to the system.
    fn served(&self);
    /// The configuration in force, as KubeletConfiguration.
    fn configuration(&self) -> Value;
    fn flags(&self) -> Vec<(String, String)>;
    /// The runtime's containers, of this pod or of all.
    fn containers(&self, pod: Option<PodUid>) -> Pending<Result<Vec<ObservedContainer>, String>>;
    /// One of the runtime's containers; `None`: it is gone.
    fn container(&self, id: ContainerId) -> Pending<Result<Option<ObservedContainer>, String>>;
    /// Runs a command to its end.
    fn run(&self, id: ContainerId, command: Vec<String>) -> Pending<Result<Output, String>>;
    /// Writes a running container's state to the archive of this name; its path.
    fn checkpoint(
        &self,
        _id: ContainerId,
        _archive: String,
        _timeout: Option<Duration>,
    ) -> Pending<Result<String, String>> {
        Box::pin(async { Err("this node has no runtime".to_owned()) })
    }
    /// The current usage of the node, its pods and their containers. It costs nothing unless it is requested.
    fn stats(&self, ask: Ask) -> Pending<Result<Summary, String>>;
    /// Restarts containers of a pod, whatever its restart policy. It is done once the statuses show it.
    fn restart(&self, pod: PodUid, containers: Vec<ContainerName>) -> Pending<Result<(), String>>;
    /// Accepts an empty answer of a source as intended. Returns the outcome, for the user.
    fn accept_source(&self, name: &str) -> Pending<Result<String, String>> {
        let message = format!("source {name:?} not found");
        Box::pin(async { Err(message) })
    }
    /// One round of draining the node: what it still waits for, empty when the pods of the cluster are gone. With `forgets`,
    /// the cluster is forgotten instead.
    fn leave_cluster(&self, _forgets: bool) -> Pending<Result<Vec<String>, String>> {
        Box::pin(async { Err("this node is in no cluster".to_owned()) })
    }
    /// A stream without traffic for this long is closed; never if it is zero.
    /// `streamingConnectionIdleTimeout`.
    fn stream_idle_timeout(&self) -> Duration {
        IDLE_TIMEOUT
    }
    fn stream(&self, wanted: StreamKind) -> Pending<Result<StreamServer, String>>;
}

/// Shared by all connections.
pub(crate) type SharedNode = Rc<dyn Node>;

#[cfg(test)]
pub mod testing {
    //! A node that serves a report and has no runtime.

    use super::*;

    /// The report, as a node.
    pub(crate) struct Shown(pub AgentReport);

    fn nothing<T: 'static>() -> Pending<Result<T, String>> {
        Box::pin(async { Err("this node has no runtime".to_owned()) })
    }

    impl Node for Shown {
        fn name(&self) -> &str {
            &self.0.node_name
        }

        fn report(&self, _: ObjectDetail) -> AgentReport {
            self.0.clone()
        }

        fn pods(&self) -> Vec<Pod> {
            self.0.pods.clone()
        }

        fn loop_health(&self) -> LoopHealth {
            Ok(())
        }

        fn served(&self) {}

        fn configuration(&self) -> Value {
            serde_json::json!({ "kind": "KubeletConfiguration" })
        }

        fn flags(&self) -> Vec<(String, String)> {
            vec![("v".to_owned(), "0".to_owned())]
        }

        fn containers(&self, _: Option<PodUid>) -> Pending<Result<Vec<ObservedContainer>, String>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn container(&self, _: ContainerId) -> Pending<Result<Option<ObservedContainer>, String>> {
            Box::pin(async { Ok(None) })
        }

        fn run(&self, _: ContainerId, _: Vec<String>) -> Pending<Result<Output, String>> {
            nothing()
        }

        fn stats(&self, _: Ask) -> Pending<Result<Summary, String>> {
            nothing()
        }

        fn restart(&self, _: PodUid, _: Vec<ContainerName>) -> Pending<Result<(), String>> {
            nothing()
        }

        fn stream(&self, _: StreamKind) -> Pending<Result<StreamServer, String>> {
            nothing()
        }
    }
}
