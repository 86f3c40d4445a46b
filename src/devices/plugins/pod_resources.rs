//! The pod resources API, v1 and v1alpha1: which container has which devices, for monitors.
//!
//! Owns its messages and its limit of calls. Dynamic resources are left out.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use hyper::body::Bytes;
use prost::Message;
use tokio::time::Instant;

use crate::devices::DeviceManager;
use crate::devices::allocation::{Allocation, by_node};
use crate::model::api::pod::Pod;
use crate::model::types::PodUid;
use crate::platform::grpc::{Code, GrpcReply, Status, decoded};
use crate::platform::proto::pod_resources as wire;

/// Upstream's limits: so many calls at once, and so many per second from then on.
const BURST: u32 = 10;
const PER_SECOND: u32 = 100;
/// The one call of the older version, which monitors still fall back to.
const LIST_ALPHA: &str = "/v1alpha1.PodResourcesLister/List";

/// The pods of the node, as their statuses have them.
pub(super) type PodList = Rc<dyn Fn() -> Vec<Pod>>;

/// CPUs, and blocks of memory: kind, bytes, NUMA nodes.
pub(crate) type OwnResources = (Vec<i64>, Vec<(String, u64, Vec<i64>)>);

/// What a container has to itself; without one, what containers may have.
pub(crate) type Owned = Rc<dyn Fn(Option<(&PodUid, &str)>) -> OwnResources>;

pub(super) struct PodResources {
    devices: DeviceManager,
    pods: PodList,
    owned: Owned,
    /// Thousandths of calls that are left, and the time of that count.
    left: Cell<(u64, Instant)>,
}

impl PodResources {
    pub(super) fn new(devices: DeviceManager, pods: PodList, owned: Owned) -> Self {
        Self { devices, pods, owned, left: Cell::new((u64::from(BURST) * 1000, Instant::now())) }
    }

    pub(super) fn answer(&self, path: &str, message: Bytes) -> Result<GrpcReply, Status> {
        if !path.starts_with("/v1.PodResourcesLister/") && path != LIST_ALPHA {
            return unknown(path);
        }
        if !self.may_call() {
            return Err(Status::new(Code::ResourceExhausted, "rejected by rate limit"));
        }
        let answer = match path.trim_start_matches("/v1.PodResourcesLister/") {
            "List" => {
                let pod_resources = self.pods().iter().map(|pod| self.of_pod(pod)).collect();
                wire::ListPodResourcesResponse { pod_resources }.encode_to_vec()
            }
            LIST_ALPHA => {
                let pod_resources = self.pods().iter().map(|pod| as_alpha(pod, self.of_pod(pod))).collect();
                wire::ListPodResourcesResponse { pod_resources }.encode_to_vec()
            }
            "Get" => {
                let asked: wire::GetPodResourcesRequest = decoded(message)?;
                let is_it = |pod: &&Pod| {
                    pod.metadata.name == asked.pod_name && pod.metadata.namespace == asked.pod_namespace
                };
                let pods = self.pods();
                let missing = || {
                    let words =
                        format!("pod {} in namespace {} not found", asked.pod_name, asked.pod_namespace);
                    Status::new(Code::Unknown, words)
                };
                let pod_resources = Some(self.of_pod(pods.iter().find(is_it).ok_or_else(missing)?));
                wire::GetPodResourcesResponse { pod_resources }.encode_to_vec()
            }
            "GetAllocatableResources" => {
                let devices = self.allocatable();
                let (cpu_ids, memory) = (self.owned)(None);
                let memory = memory.into_iter().map(block).collect();
                wire::AllocatableResourcesResponse { devices, cpu_ids, memory }.encode_to_vec()
            }
            _ => return unknown(path),
        };
        Ok(GrpcReply::One(answer))
    }

    /// A token bucket.
    fn may_call(&self) -> bool {
        let (left, counted) = self.left.get();
        let now = Instant::now();
        let passed = u64::try_from(now.duration_since(counted).as_millis()).unwrap_or(u64::MAX);
        let left =
            left.saturating_add(passed.saturating_mul(u64::from(PER_SECOND))).min(u64::from(BURST) * 1000);
        let may = left >= 1000;
        self.left.set((if may { left - 1000 } else { left }, now));
        may
    }

    fn pods(&self) -> Vec<Pod> {
        (self.pods)()
    }

    fn of_pod(&self, pod: &Pod) -> wire::PodResources {
        let (allocated, _) = self.devices.all();
        let containers = pod
            .spec
            .init_containers
            .iter()
            .filter(|container| crate::model::containers::is_sidecar(container));
        let containers = containers.chain(&pod.spec.containers);
        let of = |container: &crate::model::api::pod::Container| {
            let is_its =
                |each: &&Allocation| each.pod == pod.metadata.uid && each.container == container.name;
            let its = allocated.iter().filter(is_its);
            let (cpu_ids, memory) = (self.owned)(Some((&pod.metadata.uid, &container.name)));
            wire::ContainerResources {
                cpu_ids,
                memory: memory.into_iter().map(block).collect(),
                name: container.name.clone(),
                devices: its.flat_map(|each| listed(&each.resource, &each.devices)).collect(),
            }
        };
        wire::PodResources {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            containers: containers.map(of).collect(),
        }
    }

    /// All healthy devices.
    fn allocatable(&self) -> Vec<wire::ContainerDevices> {
        let (_, resources) = self.devices.all();
        let mut all = Vec::new();
        for (resource, devices) in &resources {
            let healthy = devices.iter().filter(|(_, device)| device.healthy);
            let ids: Vec<String> = healthy.map(|(id, _)| id.clone()).collect();
            all.extend(listed(resource, &by_node(&ids, devices)));
        }
        all
    }
}

/// The same in the older version: no sidecars and no topology. Its field numbers are the same.
fn as_alpha(pod: &Pod, mut resources: wire::PodResources) -> wire::PodResources {
    resources.containers.retain(|own| pod.spec.containers.iter().any(|container| container.name == own.name));
    for device in resources.containers.iter_mut().flat_map(|container| &mut container.devices) {
        device.topology = None;
    }
    for own in &mut resources.containers {
        own.cpu_ids.clear();
        own.memory.clear();
    }
    resources
}

fn block((memory_type, size, nodes): (String, u64, Vec<i64>)) -> wire::ContainerMemory {
    let nodes = nodes.into_iter().map(|id| wire::NumaNode { id }).collect();
    wire::ContainerMemory { memory_type, size, topology: Some(wire::TopologyInfo { nodes }) }
}

/// One entry for each NUMA node.
fn listed(resource: &str, devices: &BTreeMap<i64, Vec<String>>) -> Vec<wire::ContainerDevices> {
    let mut all = Vec::new();
    for (node, ids) in devices {
        let topology = (*node >= 0).then(|| wire::TopologyInfo { nodes: vec![wire::NumaNode { id: *node }] });
        all.push(wire::ContainerDevices {
            resource_name: resource.to_owned(),
            device_ids: ids.clone(),
            topology,
        });
    }
    all
}

fn unknown(path: &str) -> Result<GrpcReply, Status> {
    Err(Status::new(Code::Unimplemented, format!("unknown method {path}")))
}
