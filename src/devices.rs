//! The node's device plugins: their devices, the allocations, and what a container gets with its devices
//! (upstream: `devicemanager`).
//!
//! Owns the resources that plugins report, all allocations and their checkpoint, and a task for each plugin.
//! Which device is chosen is decided in `allocation`. Nothing runs without a plugin.

pub mod allocation;
pub mod cdi;
pub mod plugins;
pub mod rules;

mod checkpoint;
pub mod client;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use prost::Message;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::devices::allocation::{
    Allocation, Devices, Need, PluginDevice, Resources, by_node, choice, choose_devices, is_extended,
    next_need, totals,
};
use crate::model::api::pod::{Pod, ResourceList};
use crate::model::names::qualified_name;
use crate::model::ordered::Ordered as _;
use crate::model::types::PodUid;
use crate::platform::metrics::{self, Family};
use crate::platform::proto::device_plugin as wire;
use crate::platform::rt;
use crate::runtime::{Device, Mount};
use client::{Messages, PluginClient};

/// How long the devices of a disconnected plugin are kept (upstream).
const GRACE: Duration = Duration::from_secs(5 * 60);
/// Upstream's limit for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Upstream has no limit; a plugin that is silent for so long will not answer.
const ALLOCATE_LIMIT: Duration = Duration::from_secs(60);
const PRE_START_LIMIT: Duration = Duration::from_secs(30);
/// Pause between two lists of a plugin. A list may have megabytes, and one with other ids is written to disk.
const LIST_PAUSE: Duration = Duration::from_millis(100);
/// The pause is this many times the time that the last list took: a tenth of the one thread at most.
const LIST_SHARE: u32 = 9;
/// Devices of one list. Plugins that share a card by count have thousands.
const MAX_DEVICES: usize = 1 << 16;
/// Resources of plugins that are remembered. A node has a few; each is a permanent line in the Node and in
/// the checkpoint.
const MAX_RESOURCES: usize = 256;
/// The only version there is.
pub(crate) const API_VERSION: &str = "v1beta1";

static REGISTRATIONS: Family = Family::counter(
    "kubelet_device_plugin_registration_total",
    "Cumulative number of device plugin registrations",
    &["resource_name"],
);
static ALLOCATIONS: Family = Family::seconds(
    "kubelet_device_plugin_alloc_duration_seconds",
    "Duration in seconds to serve a device plugin Allocation request",
    &["resource_name"],
);

/// What a container gets with its devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RunOptions {
    pub envs: Vec<(String, String)>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    pub annotations: Vec<(String, String)>,
    /// Names of the Container Device Interface.
    pub cdi: Vec<String>,
}

/// A handle; clones share everything.
#[derive(Clone)]
pub struct DeviceManager(Rc<DeviceManagerInner>);

struct DeviceManagerInner {
    state: RefCell<DeviceState>,
    changes: watch::Sender<u64>,
    /// Locked while the checkpoint is written, so that writes do not overlap.
    file: Mutex<checkpoint::File>,
}

#[derive(Default)]
struct DeviceState {
    resources: Resources,
    plugins: BTreeMap<String, Plugin>,
    allocated: Vec<Allocation>,
    registrations: u64,
}

/// A plugin that is connected, or was until a moment ago.
struct Plugin {
    client: PluginClient,
    pre_start: bool,
    prefers: bool,
    registration: u64,
    /// The connection has not ended.
    lives: bool,
}

impl DeviceManager {
    /// Starts from the checkpoint in this directory, and stores allocations there. Blocks shortly.
    #[must_use]
    pub fn open(directory: &Path) -> Self {
        let mut file = checkpoint::File::new(directory);
        let (allocated, resources) = file.read();
        let state = DeviceState { resources, allocated, ..DeviceState::default() };
        Self(Rc::new(DeviceManagerInner {
            state: RefCell::new(state),
            changes: watch::channel(0).0,
            file: Mutex::new(file),
        }))
    }

    /// Registers a plugin: queries its options and listens to it from then on. Replaces an earlier plugin of
    /// the resource.
    ///
    /// # Errors
    /// What is wrong with the plugin, in upstream's words.
    pub(crate) async fn register(
        &self,
        resource: &str,
        versions: &[String],
        socket: PathBuf,
    ) -> Result<(), String> {
        if !versions.iter().any(|version| version == API_VERSION) {
            let asked = versions.join(" ");
            return Err(format!(
                "requested API version {asked:?} is not supported by kubelet. Supported version is [{API_VERSION:?}]"
            ));
        }
        if !is_extended(resource) || !qualified_name(resource).is_empty() {
            return Err(format!("the ResourceName {resource:?} is invalid"));
        }
        {
            let resources = &self.0.state.borrow().resources;
            if resources.len() >= MAX_RESOURCES && !resources.contains_key(resource) {
                return Err(format!("the limit of {MAX_RESOURCES} device plugin resources is reached"));
            }
        }
        metrics::count(&REGISTRATIONS, &[resource]);
        let client = PluginClient::new(socket.clone());
        let options = options_of(&client).await?;
        log::info!(resource = resource, socket:% = socket.display(); "Registered device plugin");
        self.add_plugin(resource, client, options);
        Ok(())
    }

    fn add_plugin(&self, resource: &str, client: PluginClient, options: wire::DevicePluginOptions) {
        let registration = self.change(|state| {
            state.registrations += 1;
            let registration = state.registrations;
            let plugin = Plugin {
                client: client.clone(),
                pre_start: options.pre_start_required,
                prefers: options.get_preferred_allocation_available,
                registration,
                lives: true,
            };
            state.plugins.insert(resource.to_owned(), plugin);
            state.resources.entry(resource.to_owned()).or_default();
            registration
        });
        rt::spawn("device plugin", self.clone().follow(resource.to_owned(), client, registration));
    }

    /// Listens until the plugin's connection ends. Its devices are then unhealthy and not allocated, and they
    /// are forgotten unless the plugin registers again. The resource itself stays, with a capacity of zero
    /// (upstream).
    async fn follow(self, resource: String, client: PluginClient, registration: u64) {
        let path = "/v1beta1.DevicePlugin/ListAndWatch";
        let why = async {
            match client.stream(path, CONNECT_LIMIT).await {
                Ok(mut messages) => self.listen(&resource, &mut messages).await,
                Err(why) => why,
            }
        };
        let why = tokio::select! {
            biased;
            // Otherwise each registration would leave a connection open for as long as its plugin is silent.
            () = self.superseded(&resource, registration) => return,
            why = why => why,
        };
        if !self.is_current(&resource, registration) {
            return;
        }
        log::warn!(resource = resource, err = why; "Device plugin disconnected; its devices are unavailable \
             until it registers again");
        self.change(|state| {
            if let Some(plugin) = state.plugins.get_mut(&resource) {
                plugin.lives = false;
            }
            for device in state.resources.entry(resource.clone()).or_default().values_mut() {
                device.healthy = false;
            }
        });
        tokio::select! {
            biased;
            // Otherwise the waits of a plugin that registers and ends repeatedly would pile up.
            () = self.superseded(&resource, registration) => return,
            () = tokio::time::sleep(GRACE) => {}
        }
        if self.is_current(&resource, registration) {
            log::info!(resource = resource; "Device plugin did not register again, removing its devices");
            self.change(|state| {
                state.plugins.remove(&resource);
                state.resources.insert(resource.clone(), Devices::new());
            });
            self.save_or_warn().await;
        }
    }

    async fn listen(&self, resource: &str, messages: &mut Messages) -> String {
        loop {
            let message = match messages.next().await {
                Ok(Some(message)) => message,
                Ok(None) => return "the plugin closed its ListAndWatch stream".to_owned(),
                Err(why) => return why,
            };
            let began = Instant::now();
            let list = match wire::ListAndWatchResponse::decode(message.as_slice()) {
                Ok(list) => list,
                Err(error) => return error.to_string(),
            };
            drop(message);
            if list.devices.len() > MAX_DEVICES {
                return format!(
                    "its list has {} devices, and the node takes {MAX_DEVICES} of a resource",
                    list.devices.len()
                );
            }
            let mut devices = Devices::new();
            for device in list.devices {
                let nodes = device.topology.unwrap_or_default().nodes;
                let nodes = nodes.iter().map(|node| node.id).collect();
                devices.insert(device.id, PluginDevice { healthy: device.health == "Healthy", nodes });
            }
            let known = self.change(|state| {
                let before = state.resources.insert(resource.to_owned(), devices);
                before.is_some_and(|before| before.keys().eq(state.resources[resource].keys()))
            });
            if !known {
                self.save_or_warn().await;
            }
            // The next list waits in the plugin's connection: an endless stream of lists costs no more than
            // its share.
            tokio::time::sleep(LIST_PAUSE.max(began.elapsed() * LIST_SHARE)).await;
        }
    }

    /// Returns when another plugin has registered for the resource.
    async fn superseded(&self, resource: &str, registration: u64) {
        let mut changes = self.changes();
        // Cancel safe: the version stays changed until it is read.
        while self.is_current(resource, registration) && changes.changed().await.is_ok() {}
    }

    fn is_current(&self, resource: &str, registration: u64) -> bool {
        let state = self.0.state.borrow();
        state.plugins.get(resource).is_some_and(|plugin| plugin.registration == registration)
    }

    /// Changes the state and notifies all subscribers.
    fn change<T>(&self, change: impl FnOnce(&mut DeviceState) -> T) -> T {
        let result = change(&mut self.0.state.borrow_mut());
        self.0.changes.send_modify(|version| *version = version.wrapping_add(1));
        result
    }

    /// Changes whenever the capacity or the health of a resource changes.
    #[must_use]
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Capacity and allocatable devices of the node.
    #[must_use]
    pub(crate) fn totals(&self) -> (ResourceList, ResourceList) {
        totals(&self.0.state.borrow().resources)
    }

    /// All allocations, and all devices.
    #[must_use]
    pub(crate) fn all(&self) -> (Vec<Allocation>, Resources) {
        let state = self.0.state.borrow();
        (state.allocated.clone(), state.resources.clone())
    }

    /// Allocates the devices that each container of the pod requests, unless it has them already. A pod keeps
    /// its devices even when the plugin disconnects.
    pub(crate) async fn allocate(&self, pod: &Pod) -> Result<(), String> {
        self.allocate_until(pod, None, None)
            .await
            .map_err(|why| format!("Allocate failed due to {why}, which is unexpected"))
    }

    /// The same up to the container `last`, with devices near these NUMA nodes before others. The error is the bare
    /// cause.
    pub(crate) async fn allocate_until(
        &self,
        pod: &Pod,
        last: Option<&str>,
        near: Option<u64>,
    ) -> Result<(), String> {
        loop {
            let need = next_need(pod, &self.0.state.borrow().allocated);
            let Some(mut need) = need.filter(|need| last.is_none_or(|last| need.container == last)) else {
                return Ok(());
            };
            need.near = near;
            let began = Instant::now();
            let allocated = Box::pin(self.allocate_one(pod, &need)).await;
            metrics::observe(&ALLOCATIONS, &[&need.resource], began.elapsed());
            allocated?;
        }
    }

    async fn allocate_one(&self, pod: &Pod, need: &Need) -> Result<(), String> {
        let preferred = self.preferred(need).await?;
        let (client, ids) = {
            let mut state = self.0.state.borrow_mut();
            let choice = choice(need, &state.resources, &state.allocated)?;
            let ids = choose_devices(&choice, need, &preferred);
            let unregistered = || format!("cannot allocate unregistered device {}", need.resource);
            let client = state.connected_plugin(&need.resource).ok_or_else(unregistered)?.client.clone();
            let devices = by_node(&ids, &state.resources[&need.resource]);
            // Recorded before the next await: from here on no other container gets these devices.
            state.allocated.push(Allocation {
                pod: pod.metadata.uid.clone(),
                container: need.container.clone(),
                resource: need.resource.clone(),
                devices,
                response: None,
            });
            (client, ids)
        };
        let asked = wire::AllocateRequest {
            container_requests: vec![wire::ContainerAllocateRequest { devices_ids: ids }],
        };
        let path = "/v1beta1.DevicePlugin/Allocate";
        let answer = client.call(path, asked.encode_to_vec(), ALLOCATE_LIMIT).await;
        let answer = answer.and_then(|answer| first_response(&answer));
        let is_it = |allocation: &Allocation| {
            allocation.pod == pod.metadata.uid
                && allocation.container == need.container
                && allocation.resource == need.resource
        };
        let outcome = match answer {
            Ok(response) => {
                for allocation in self.0.state.borrow_mut().allocated.iter_mut().filter(|each| is_it(each)) {
                    allocation.response = Some(response.clone());
                }
                self.write().await
            }
            Err(why) => Err(why),
        };
        if outcome.is_err() {
            self.0.state.borrow_mut().allocated.retain(|allocation| !is_it(allocation));
        }
        outcome
    }

    /// The plugin's preferred allocation, if it has one.
    async fn preferred(&self, need: &Need) -> Result<Vec<String>, String> {
        let (client, choice) = {
            let state = self.0.state.borrow();
            let choice = choice(need, &state.resources, &state.allocated)?;
            match state.connected_plugin(&need.resource) {
                Some(plugin) if plugin.prefers => (plugin.client.clone(), choice),
                _ => return Ok(Vec::new()),
            }
        };
        let mut available = choice.taken.clone();
        let taken: BTreeSet<&String> = choice.taken.iter().into_set();
        available.extend(choice.available.into_iter().filter(|id| !taken.contains(id)));
        let asked = wire::PreferredAllocationRequest {
            container_requests: vec![wire::ContainerPreferredAllocationRequest {
                available_device_i_ds: available,
                must_include_device_i_ds: choice.taken,
                allocation_size: i32::try_from(need.count).unwrap_or(i32::MAX),
            }],
        };
        let path = "/v1beta1.DevicePlugin/GetPreferredAllocation";
        let answer = client.call(path, asked.encode_to_vec(), ALLOCATE_LIMIT).await?;
        let answer = wire::PreferredAllocationResponse::decode(answer.as_slice())
            .map_err(|error| error.to_string())?;
        Ok(answer.container_responses.into_iter().next().map(|first| first.device_i_ds).unwrap_or_default())
    }

    /// The run options for the container's devices. Calls `PreStartContainer` first on plugins that ask for
    /// it.
    pub(crate) async fn run_options(&self, uid: &PodUid, container: &str) -> Result<RunOptions, String> {
        let mine: Vec<Allocation> = {
            let state = self.0.state.borrow();
            let is_mine = |each: &&Allocation| each.pod == *uid && each.container == container;
            state.allocated.iter().filter(is_mine).cloned().collect()
        };
        let mut options = RunOptions::default();
        for allocation in mine {
            let client = {
                let state = self.0.state.borrow();
                let plugin = state.connected_plugin(&allocation.resource).filter(|plugin| plugin.pre_start);
                plugin.map(|plugin| plugin.client.clone())
            };
            if let Some(client) = client {
                let ids: BTreeSet<&str> = allocation.ids().into_set();
                let devices_ids = ids.into_iter().map(str::to_owned).collect();
                let asked = wire::PreStartContainerRequest { devices_ids };
                let path = "/v1beta1.DevicePlugin/PreStartContainer";
                client.call(path, asked.encode_to_vec(), PRE_START_LIMIT).await?;
            }
            options.add(&allocation.response.unwrap_or_default());
        }
        Ok(options)
    }

    pub(crate) async fn release(&self, uid: &PodUid) {
        self.retain_allocations(|allocation| allocation.pod != *uid).await;
    }

    /// Frees the allocations of all pods but these.
    pub(crate) async fn retain(&self, known: &BTreeSet<PodUid>) {
        self.retain_allocations(|allocation| known.contains(&allocation.pod)).await;
    }

    async fn retain_allocations(&self, wanted: impl Fn(&Allocation) -> bool) {
        let before = self.0.state.borrow().allocated.len();
        if self.0.state.borrow().allocated.iter().all(&wanted) {
            return;
        }
        let left = self.change(|state| {
            state.allocated.retain(&wanted);
            state.allocated.len()
        });
        log::info!(allocations = before - left; "Released devices of removed pod");
        self.save_or_warn().await;
    }

    async fn save_or_warn(&self) {
        if let Err(why) = self.write().await {
            log::warn!(err = why; "Failed to save device allocations");
        }
    }

    /// The file is as new as the state when the write began.
    async fn write(&self) -> Result<(), String> {
        let mut file = self.0.file.lock().await;
        let text = {
            let state = self.0.state.borrow();
            crate::devices::allocation::checkpoint(&state.allocated, &state.resources)
        };
        file.write(text).await
    }
}

impl DeviceState {
    fn connected_plugin(&self, resource: &str) -> Option<&Plugin> {
        self.plugins.get(resource).filter(|plugin| plugin.lives)
    }
}

/// The options of a plugin. One that does not answer is rejected.
async fn options_of(client: &PluginClient) -> Result<wire::DevicePluginOptions, String> {
    let path = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
    let answer = client.call(path, Vec::new(), CONNECT_LIMIT).await;
    let options = answer.and_then(|answer| {
        wire::DevicePluginOptions::decode(answer.as_slice()).map_err(|error| error.to_string())
    });
    options.map_err(|why| format!("failed to get device plugin options: {why}"))
}

fn first_response(answer: &[u8]) -> Result<Vec<u8>, String> {
    let answer = wire::AllocateResponse::decode(answer).map_err(|error| error.to_string())?;
    match answer.container_responses.as_slice() {
        [one] => Ok(one.encode_to_vec()),
        _ => Err("no containers return in allocation response".to_owned()),
    }
}

impl RunOptions {
    /// The first relative path of the node: its meaning would depend on the agent's working directory.
    #[must_use]
    pub(crate) fn relative_path(&self) -> Option<&str> {
        let mounts = self.mounts.iter().map(|mount| mount.host_path.as_str());
        let devices = self.devices.iter().map(|device| device.host_path.as_str());
        mounts.chain(devices).find(|path| !path.starts_with('/'))
    }

    /// The first value of a name or path wins (upstream).
    fn add(&mut self, response: &[u8]) {
        let Ok(response) = wire::ContainerAllocateResponse::decode(response) else { return };
        for (name, value) in response.envs {
            if !self.envs.iter().any(|(other, _)| *other == name) {
                self.envs.push((name, value));
            }
        }
        for mount in response.mounts {
            if !self.mounts.iter().any(|other| other.container_path == mount.container_path) {
                self.mounts.push(Mount {
                    container_path: mount.container_path,
                    host_path: mount.host_path,
                    readonly: mount.read_only,
                    ..Mount::default()
                });
            }
        }
        for device in response.devices {
            if !self.devices.iter().any(|other| other.container_path == device.container_path) {
                self.devices.push(Device {
                    container_path: device.container_path,
                    host_path: device.host_path,
                    permissions: device.permissions,
                    ..Device::default()
                });
            }
        }
        for (key, value) in response.annotations {
            if !self.annotations.iter().any(|(other, _)| *other == key) {
                self.annotations.push((key, value));
            }
        }
        for device in response.cdi_devices {
            if !self.cdi.contains(&device.name) {
                self.cdi.push(device.name);
            }
        }
    }
}
