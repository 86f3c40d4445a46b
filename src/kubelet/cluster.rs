//! The node as its local API sees it: objects and events of this process, and the facts a `Node` object is made of.
//!
//! Owns where each fact comes from. Must not know requests, nor what is shown of it.

use std::rc::Rc;

use serde_json::Value;

use crate::clock::Clock;
use crate::config::Resolved;
use crate::desired::SourceObject;
use crate::events::EventRecorder;
use crate::executor::ExecutorConfig;
use crate::kubelet::report::View;
use crate::localapi::LocalApi;
use crate::localapi::cluster::{Changes, Cluster};
use crate::localapi::node::{Condition, NodeState};
use crate::localapi::resource::Store;
use crate::objects::{ObjectKind, wire};
use crate::pod_config::edit::Editor;
use crate::reconcile::admission::{go_arch, node_labels};
use crate::reconcile::allocatable::capacity;
use crate::server::guest::SharedGuest;
use crate::server::node::SharedNode;
use crate::status::StatusManager;
use crate::store::StoredEvent;
use crate::sys::node;
use crate::types::Timestamp;

struct LocalCluster {
    view: Rc<View>,
    statuses: Rc<StatusManager>,
    events: EventRecorder,
    clock: Clock,
    /// What of it does not change.
    node: NodeState,
}

/// The local API of this node, to be offered its paths by the servers.
pub(super) fn local_api(
    resolved: &Resolved,
    executor: Option<&ExecutorConfig>,
    node: &SharedNode,
    (view, statuses, events, clock, editor): (&Rc<View>, &Rc<StatusManager>, &EventRecorder, &Clock, &Editor),
) -> SharedGuest {
    let cluster = LocalCluster {
        view: Rc::clone(view),
        statuses: Rc::clone(statuses),
        events: events.clone(),
        clock: clock.clone(),
        node: facts(resolved, executor, clock.now()),
    };
    LocalApi::new(Rc::clone(node), Rc::new(cluster), editor.clone(), clock.clone())
}

fn facts(resolved: &Resolved, executor: Option<&ExecutorConfig>, now: Timestamp) -> NodeState {
    let kubelet = &resolved.kubelet;
    let (most, per_core) = (i64::from(kubelet.max_pods), i64::from(kubelet.pods_per_core));
    let arch = go_arch(std::env::consts::ARCH);
    let mut state = NodeState {
        name: resolved.node_name.clone(),
        labels: node_labels(&resolved.node_name, arch, &resolved.flags.node_labels),
        created: now,
        hostname: node::hostname().unwrap_or_default(),
        port: u16::try_from(kubelet.port).unwrap_or_default(),
        ..NodeState::default()
    };
    if let Some(executor) = executor {
        let has = &executor.capacity;
        state.capacity = capacity(has, most, per_core, has.ephemeral_bytes);
        let pods = state.capacity.get("pods").map_or(most, |pods| pods.value());
        state.allocatable = capacity(&executor.allocatable, pods, 0, executor.allocatable.ephemeral_bytes);
        state.addresses.clone_from(&executor.node_ips);
    }
    state
}

impl Cluster for LocalCluster {
    fn objects(&self) -> Vec<SourceObject> {
        let mut objects = self.view.objects();
        objects.retain(|object| object.object.key.kind != ObjectKind::Namespace);
        objects
    }

    fn events(&self) -> Vec<StoredEvent> {
        self.events.recent()
    }

    fn namespaces(&self) -> Vec<Value> {
        let made =
            self.view.objects().into_iter().filter(|object| object.object.key.kind == ObjectKind::Namespace);
        made.map(|object| wire::to_value(&object.object, wire::Values::Shown)).collect()
    }

    fn claim_directory(&self, namespace: &str, name: &str) -> String {
        self.view.volumes_dir().join(namespace).join(name).display().to_string()
    }

    fn node(&self) -> NodeState {
        let now = self.clock.now();
        let ready = Condition {
            kind: "Ready",
            holds: self.view.runtime_is_up(),
            since: self.node.created,
            ..Condition::default()
        };
        NodeState { conditions: vec![ready], now, ..self.node.clone() }
    }

    fn changes(&self, store: Store) -> Changes {
        Changes(match store {
            Store::Events => vec![self.events.watch()],
            Store::Pods => vec![self.statuses.watch()],
            Store::Namespaces => vec![self.statuses.watch(), self.view.watch()],
            _ => vec![self.view.watch()],
        })
    }
}
