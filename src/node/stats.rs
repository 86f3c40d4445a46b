//! What the node, its pods and their containers use: CPU, memory, network, disk. There is no cAdvisor:
//! numbers are read on request, from the files of cgroups and procfs, from the runtime where only it knows,
//! and by walks of directories.
//!
//! Owns what is kept between two requests: the readings that rates are computed from, and the results of
//! walks. Both are kept only while requests keep coming.
//!
//! | file | what |
//! |---|---|
//! | `disks` | file systems, writable layers, logs, volumes |
//! | `machine` | procfs |
//! | `pages` | `/metrics/resource` and `/metrics/cadvisor` |
//! | `pods` | the cgroups of pods and their containers |
//! | `rates` | from CPU time to cores |
//! | `wire` | `/stats/summary` |

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::api::pod::Pod;
use crate::model::objects::ObjectLookup;
use crate::model::observed::ObservedContainer;
use crate::model::ordered::Ordered as _;
use crate::model::types::ContainerId;
use crate::node::usage::{NodeUse, PodUse, Summary, Usage};
use crate::platform::cgroup::CgroupConfig;
use crate::platform::clock::Clock;
use crate::platform::rt;
use crate::pod::resources::CgroupLayout;
use crate::pod::volume::csi::CsiVolumes;
use crate::runtime::RuntimeUse;

mod disks;
pub mod machine;
pub mod pages;
mod pods;
pub(super) mod rates;
pub mod wire;

use disks::{Disks, Places};
use pods::MeasuredPod;
use rates::{Rates, Reading};

/// The runtime's timeout; beyond it its figures are left out.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(10);

/// What is requested beside CPU time and memory. Each part has a cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ask {
    /// Cores in use now. The first request for a while takes a second longer: a rate needs two readings.
    pub rates: bool,
    /// Interfaces of the node and of pods.
    pub network: bool,
    /// File systems, writable layers, logs, volumes: walks of directories.
    pub disks: Measured,
    /// Figures that only `/metrics/cadvisor` shows.
    pub details: bool,
    /// Time lost waiting, for `/stats/summary`.
    pub pressure: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Measured {
    #[default]
    Nothing,
    /// Logs of containers and the volumes of claims.
    Claims,
    Everything,
}

impl Ask {
    /// For `agent top` and metrics.k8s.io.
    pub(crate) const CPU_AND_MEMORY: Self =
        Self { rates: true, network: false, disks: Measured::Nothing, details: false, pressure: false };
    /// Everything that `/stats/summary` has.
    pub(crate) const SUMMARY: Self =
        Self { rates: true, network: true, disks: Measured::Everything, details: false, pressure: true };
}

#[derive(Clone, Debug)]
pub struct StatsConfig {
    pub node_name: String,
    pub cgroup: CgroupConfig,
    /// How pods' cgroups are named. Those of either driver are found, for the runtime may have overruled the
    /// configured one.
    pub layout: CgroupLayout,
    /// `/proc`, or a fake in tests.
    pub proc: PathBuf,
    /// `<root-dir>`: the node's file system.
    pub root_dir: PathBuf,
    /// `--runtime-cgroups`: the container runtime's cgroup; empty to leave it out.
    pub runtime_cgroup: String,
    pub pod_logs_dir: PathBuf,
    /// `volumeStatsAggPeriod`: a younger result of a directory's walk is used as it is. `None`: no directory is walked.
    pub walk_period: Option<Duration>,
}

pub struct Stats {
    config: Arc<StatsConfig>,
    clock: Clock,
    origin: Instant,
    objects: Rc<dyn ObjectLookup>,
    rates: RefCell<Rates>,
    disks: Rc<Disks>,
    csi: RefCell<Option<Rc<dyn CsiVolumes>>>,
    forgetting: Cell<bool>,
}

pub(crate) type RuntimeAnswer = Pin<Box<dyn Future<Output = Result<RuntimeUse, String>>>>;

/// Asks the runtime what only it knows: disk usage, if wanted, and the containers whose cgroups were not
/// found.
pub(crate) type AskRuntime = Rc<dyn Fn(bool, Vec<ContainerId>) -> RuntimeAnswer>;

impl Stats {
    /// Reads nothing before the first request.
    #[must_use]
    pub fn new(config: StatsConfig, objects: Rc<dyn ObjectLookup>, clock: Clock) -> Rc<Self> {
        let disks = Rc::new(Disks::new(config.walk_period));
        let (config, origin) = (Arc::new(config), Instant::now());
        Rc::new(Self {
            config,
            clock,
            origin,
            objects,
            rates: RefCell::default(),
            disks,
            csi: RefCell::default(),
            forgetting: Cell::new(false),
        })
    }

    /// CSI drivers measure their volumes from now on.
    pub(crate) fn set_csi(&self, csi: Rc<dyn CsiVolumes>) {
        *self.csi.borrow_mut() = Some(csi);
    }

    /// The current usage of the node, of these pods and of the running ones of these containers.
    pub(crate) async fn measure(
        self: Rc<Self>,
        ask: Ask,
        pods: Vec<Pod>,
        containers: Vec<ObservedContainer>,
        runtime: AskRuntime,
    ) -> Summary {
        let (root_dir, csi) = (self.config.root_dir.clone(), self.csi.borrow().clone());
        let mut places = Places { root_dir, volumes: BTreeMap::new(), csi };
        if ask.disks != Measured::Nothing {
            let pods_dir = self.config.root_dir.join("pods");
            let of = |pod: &Pod| {
                let mut found = disks::measurable(&pods_dir, pod, &*self.objects);
                found.retain(|volume| ask.disks == Measured::Everything || volume.claim.is_some());
                (pod.metadata.uid.to_string(), found)
            };
            places.volumes = pods.iter().map(of).into_map();
        }
        let subjects: Arc<[MeasuredPod]> = pods::subjects(&self.config.layout, pods, containers).into();
        let (mut summary, known) = self.read(ask, &subjects, &runtime).await;
        if ask.rates {
            let mut rates = self.take_rates(&summary);
            let wait = self.rates.borrow().wait(self.origin.elapsed());
            if let Some(wait) = wait {
                tokio::time::sleep(wait).await;
                rates = self.take_rates(&self.read(Ask::default(), &subjects, &runtime).await.0);
            }
            set_rates(&mut summary, &rates);
        }
        if ask.disks != Measured::Nothing {
            self.disks.fill(self.clock.now(), &mut summary, places, &known).await;
        }
        if ask.rates || ask.disks != Measured::Nothing {
            self.expire_later();
        }
        summary
    }

    /// The machine and all pods together, now.
    pub(crate) async fn node(&self) -> NodeUse {
        let (config, at) = (Arc::clone(&self.config), self.clock.now());
        rt::blocking("read statistics", move || pods::node(&config, Ask::default(), at)).await
    }

    async fn read(
        &self,
        ask: Ask,
        subjects: &Arc<[MeasuredPod]>,
        runtime: &AskRuntime,
    ) -> (Summary, RuntimeUse) {
        let (config, at, subjects) = (Arc::clone(&self.config), self.clock.now(), Arc::clone(subjects));
        let read = rt::blocking("read statistics", move || Summary {
            node: pods::node(&config, ask, at),
            pods: subjects.iter().map(|subject| pods::pod(&config, ask, at, subject)).collect(),
        });
        let mut summary = read.await;
        let containers = summary.pods.iter().flat_map(|pod| &pod.containers);
        let unseen = containers.filter(|container| container.usage.counted.memory_usage.is_none());
        let unseen: Vec<ContainerId> = unseen.map(|container| container.id.as_str().into()).collect();
        let disks = ask.disks == Measured::Everything;
        if !disks && unseen.is_empty() {
            return (summary, RuntimeUse::default());
        }
        let known = match tokio::time::timeout(RUNTIME_PATIENCE, runtime(disks, unseen)).await {
            Ok(Ok(known)) => known,
            Ok(Err(error)) => {
                log::debug!(err = error; "Failed to get container stats from runtime");
                RuntimeUse::default()
            }
            Err(_) => {
                log::debug!("Timed out getting container stats from runtime");
                RuntimeUse::default()
            }
        };
        pods::complete(&mut summary, &known);
        (summary, known)
    }

    fn take_rates(&self, summary: &Summary) -> Reading {
        let mut reading = Reading::new();
        for_each(summary, |key, usage| {
            if let Some(nanos) = usage.counted.cpu_ns {
                reading.insert(key, nanos);
            }
        });
        self.rates.borrow_mut().add_reading(self.origin.elapsed(), reading)
    }

    /// Drops the kept state after a long time without requests. One timer, started only by a request.
    fn expire_later(self: &Rc<Self>) {
        if self.forgetting.replace(true) {
            return;
        }
        let stats = Rc::clone(self);
        rt::spawn("delete statistics", async move {
            loop {
                tokio::time::sleep(rates::LONGEST).await;
                let no_rates = stats.rates.borrow_mut().forget(stats.origin.elapsed());
                if stats.disks.forget() && no_rates {
                    break;
                }
            }
            stats.forgetting.set(false);
        });
    }
}

/// The keys of a reading: the node, `pods` and `kubelet`, pods, containers.
fn for_each(summary: &Summary, mut each: impl FnMut(String, &Usage)) {
    each("/".to_owned(), &summary.node.usage);
    for system in &summary.node.system {
        each(system.cgroup.clone(), &system.usage);
    }
    for pod in &summary.pods {
        each(pod_key(pod), &pod.usage);
        for container in &pod.containers {
            each(container.id.clone(), &container.usage);
        }
    }
}

fn pod_key(pod: &PodUse) -> String {
    format!("/pod/{}", pod.pod.uid)
}

fn set_rates(summary: &mut Summary, rates: &Reading) {
    let rate = |key: &str| rates.get(key).copied();
    summary.node.usage.nano_cores = rate("/");
    for system in &mut summary.node.system {
        system.usage.nano_cores = rate(&system.cgroup);
    }
    for pod in &mut summary.pods {
        pod.usage.nano_cores = rate(&pod_key(pod));
        for container in &mut pod.containers {
            container.usage.nano_cores = rate(&container.id);
        }
    }
}

#[cfg(test)]
mod tests;
