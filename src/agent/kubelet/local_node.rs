//! The node as its local API sees it: objects and events of this process, and the `Node` object.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::agent::kubelet::report::LoopView;
use crate::desired::pod_config::edit::Editor;
use crate::desired::pod_config::notes::Mirror;
use crate::devices::DeviceManager;
use crate::model::api::pod::StringMap;
use crate::model::disruption::Pressure;
use crate::model::node_changes::NodeBase;
use crate::model::objects::volumes::Binding;
use crate::model::objects::{LocalObject, LocalObjects, ObjectKey, ObjectKind, VersionedObject};
use crate::model::ordered::Sortable as _;
use crate::model::revisions::Revisions;
use crate::model::types::{PodUid, Timestamp};
use crate::node::object::{Condition, Image, NodeState};
use crate::node::shutdown::rules::NODE_MESSAGE;
use crate::platform::clock::Clock;
use crate::platform::rt::changes::Changes;
use crate::pod::events::EventRecorder;
use crate::pod::status::StatusManager;
use crate::runtime::RuntimeImage;
use crate::serve::accounts::Accounts;
use crate::serve::localapi::local_node::LocalNode;
use crate::serve::localapi::resource::Store;
use crate::serve::localapi::{ApiOptions, LocalApi};
use crate::serve::roles::Roles;
use crate::serve::server::delegate::SharedDelegate;
use crate::serve::server::node::SharedNode;
use crate::serve::server::report::RuntimeReport;
use crate::store::StoredEvent;

struct LocalCluster {
    view: Rc<LoopView>,
    statuses: Rc<StatusManager>,
    objects: Rc<LocalObjects>,
    events: EventRecorder,
    clock: Clock,
    /// The part that does not change.
    node: NodeState,
    devices: Option<DeviceManager>,
    /// `status.volumesInUse`; `None` on a node of no cluster.
    volumes_in_use: Option<VolumesInUse>,
    /// `nodeStatusMaxImages`; `None` for all.
    max_images: Option<usize>,
}

/// The volumes of CSI drivers that the node uses, now.
pub(super) type VolumesInUse = Rc<dyn Fn() -> Vec<String>>;

/// The most names shown per image (upstream).
const MOST_NAMES: usize = 5;

/// The local API of this node, which the servers delegate its paths to, and the facts of the node for a cluster.
/// `state` is the part of the `Node` that does not change.
#[expect(clippy::too_many_arguments, reason = "each is another part's")]
pub(crate) fn local_api(
    state: NodeState,
    max_images: Option<usize>,
    devices: Option<DeviceManager>,
    volumes_in_use: Option<VolumesInUse>,
    node: &SharedNode,
    (view, statuses, objects, events, clock): (
        &Rc<LoopView>,
        &Rc<StatusManager>,
        &Rc<LocalObjects>,
        &EventRecorder,
        &Clock,
    ),
    (editor, revisions, options): (&Editor, &Revisions, ApiOptions),
    access: (Option<Rc<Accounts>>, Rc<Roles>),
) -> (SharedDelegate, Rc<dyn Fn() -> NodeState>) {
    let cluster = Rc::new(LocalCluster {
        view: Rc::clone(view),
        statuses: Rc::clone(statuses),
        objects: Rc::clone(objects),
        events: events.clone(),
        clock: clock.clone(),
        node: state,
        devices,
        volumes_in_use,
        max_images,
    });
    let own = Rc::clone(&cluster);
    let (node, clock) = (Rc::clone(node), clock.clone());
    let api = LocalApi::new(node, cluster, editor.clone(), clock, revisions.clone(), options, access);
    (api, Rc::new(move || own.own_node()))
}

/// Whether the runtime answers, and otherwise why not. With upstream's message when it does.
fn ready(view: &LoopView, runtime: &RuntimeReport, started: Timestamp) -> Condition {
    let shutdown = view.health().shutting_down();
    let is_going_down = shutdown.is_some_and(|(is_going_down, _)| is_going_down);
    let holds = !is_going_down && view.runtime_is_up() && view.loop_health().is_ok();
    let (reason, message) = if holds {
        ("KubeletReady", "kubelet is posting ready status".to_owned())
    } else {
        let why = view.runtime_trouble().map(|trouble| format!("container runtime is down: {trouble}"));
        let why = why.or_else(|| view.loop_health().err());
        let why = why.or_else(|| is_going_down.then(|| NODE_MESSAGE.to_owned()));
        let unknown = || "container runtime status check may not have completed yet".to_owned();
        ("KubeletNotReady", why.unwrap_or_else(unknown))
    };
    let since =
        shutdown.map_or(Timestamp::default(), |(_, since)| since).max(runtime.since.unwrap_or(started));
    Condition { kind: "Ready", holds, reason: reason.to_owned(), message, since }
}

/// The largest images, each with at most so many names (upstream).
fn shown_images(images: Vec<RuntimeImage>, most: Option<usize>) -> Vec<Image> {
    let shown = |mut image: RuntimeImage| {
        image.names.truncate(MOST_NAMES);
        Image { names: image.names, size: image.size_bytes }
    };
    let mut images: Vec<Image> = images.into_iter().map(shown).collect();
    images.order_by_key(|image| Reverse(image.size));
    images.truncate(most.unwrap_or(usize::MAX));
    images
}

impl LocalCluster {
    /// The node without the changes by clients of its own API: in a cluster these are made there.
    fn own_node(&self) -> NodeState {
        let NodeBase { labels, taints } = self.node_base();
        let volumes_in_use = Some(self.volumes_in_use.as_ref().map_or_else(Vec::new, |in_use| in_use()));
        let (annotations, unschedulable) = (StringMap::new(), false);
        NodeState { labels, taints, annotations, unschedulable, volumes_in_use, ..self.node() }
    }

    /// In upstream's order.
    fn conditions(&self, runtime: &RuntimeReport) -> Vec<Condition> {
        let pressure = Pressure::ALL.iter().map(|of| {
            let (holds, since) = self.view.health().pressure(*of);
            let (reason, message) = of.reason_and_message(holds);
            Condition {
                kind: of.condition(),
                holds,
                reason: reason.to_owned(),
                message: message.to_owned(),
                since: since.unwrap_or(self.node.created),
            }
        });
        pressure.chain([ready(&self.view, runtime, self.node.created)]).collect()
    }
}

impl LocalNode for LocalCluster {
    fn objects_of(&self, kind: ObjectKind) -> Vec<VersionedObject> {
        self.objects.of_kind(kind)
    }

    fn object(&self, key: &ObjectKey) -> Option<VersionedObject> {
        self.objects.find(key)
    }

    fn namespaces_in_use(&self) -> BTreeSet<String> {
        self.objects.namespaces()
    }

    fn events(&self) -> Vec<StoredEvent> {
        self.events.recent()
    }

    fn binding(&self, claim: &LocalObject) -> Binding {
        self.objects.binding(claim)
    }

    fn claim_directory(&self, claim: &LocalObject) -> String {
        claim.claim_directory(self.view.volumes_dir()).display().to_string()
    }

    fn node(&self) -> NodeState {
        let runtime = self.view.runtime();
        let mut node = NodeState {
            conditions: self.conditions(&runtime),
            images: shown_images(self.view.health().images(), self.max_images),
            now: self.clock.now(),
            ..self.node.clone()
        };
        let (base, changes) = (self.node_base(), self.view.notes().node);
        node.labels = changes.labels(&base);
        node.taints = changes.taints(&base).to_vec();
        node.annotations = changes.annotations;
        node.unschedulable = changes.unschedulable;
        node.features = self.view.features();
        let ranges = self.view.cluster().map(|cluster| cluster.pod_cidrs()).unwrap_or_default();
        if !ranges.is_empty() {
            node.pod_cidrs = ranges;
        }
        // Clients rely on the field, whether the runtime has answered or not.
        let version = match runtime.name.as_str() {
            "" => String::new(),
            name => format!("{name}://{}", runtime.version),
        };
        node.info.push(("containerRuntimeVersion", version));
        if let Some(devices) = &self.devices {
            let (all, healthy) = devices.totals();
            node.capacity.extend(all);
            node.allocatable.extend(healthy);
        }
        node
    }

    fn node_base(&self) -> NodeBase {
        NodeBase { labels: self.node.labels.clone(), taints: self.node.taints.clone() }
    }

    fn mirror(&self, uid: &PodUid) -> Option<Mirror> {
        self.view.mirror(uid)
    }

    fn pod_version(&self, uid: &PodUid) -> u64 {
        self.statuses.resource_version(uid)
    }

    fn deleted_namespaces(&self) -> BTreeMap<String, Timestamp> {
        self.view.notes().namespaces
    }

    fn changes(&self, store: Store) -> Changes {
        Changes(match store {
            Store::Events => vec![self.events.watch()],
            Store::Pods | Store::Namespaces => vec![self.statuses.watch(), self.view.watch()],
            Store::Nodes => {
                let cluster = self.view.cluster().map(|cluster| cluster.watch());
                [self.view.watch(), self.view.health().watch()].into_iter().chain(cluster).collect()
            }
            _ => vec![self.view.watch()],
        })
    }
}
