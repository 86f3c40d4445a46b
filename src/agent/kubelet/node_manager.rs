//! The node manager, the kernel's log, and the machine's shutdown, from the resolved configuration.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::agent::config::{KubeletConfiguration, Resolved};
use crate::agent::kubelet::report::LoopView;
use crate::agent::kubelet::serving;
use crate::model::duration::GoDuration;
use crate::model::objects::ObjectLookup;
use crate::model::ordered::Ordered as _;
use crate::node::eviction::{EvictionConfig, ThresholdTexts, thresholds};
use crate::node::image_gc::ImageLimits;
use crate::node::shutdown::rules::{Period, periods};
use crate::node::shutdown::{InitSystem, NodeShutdown, ShutdownParts};
use crate::node::stats::{Ask, Measured};
use crate::node::{NodeConfig, NodeManager, NodeParts, oom};
use crate::platform::clock::Clock;
use crate::platform::rt;
use crate::platform::rt::notify::Notifier;
use crate::platform::rt::shutdown::{self, Shutdown};
use crate::pod::events::EventRecorder;
use crate::pod::status::StatusManager;
use crate::pod::workers::PodPressure;
use crate::runtime::Runtime;
use crate::serve::server::node::SharedNode;

/// The parts of the kubelet that the node manager needs.
pub(super) struct NodeManagerParts<'a, R> {
    pub(super) runtime: &'a Rc<R>,
    pub(super) node: &'a SharedNode,
    pub(super) view: &'a LoopView,
    pub(super) statuses: &'a Rc<StatusManager>,
    pub(super) events: &'a EventRecorder,
    pub(super) objects: Rc<dyn ObjectLookup>,
    pub(super) clock: &'a Clock,
}

/// Starts both. They run as long as the tasks live.
pub(super) fn start<R: Runtime>(
    resolved: &Resolved,
    pods: Rc<dyn PodPressure>,
    needs: NodeManagerParts<'_, R>,
) -> [JoinHandle<()>; 2] {
    let NodeManagerParts { runtime, node, view, statuses, events, objects, clock } = needs;
    let (node, shown) = (Rc::clone(node), Rc::clone(node));
    let ask = Ask { disks: Measured::Everything, ..Ask::default() };
    let keeper = NodeManager::new(NodeParts {
        config: config(resolved),
        clock: clock.clone(),
        events: events.clone(),
        statuses: Rc::clone(statuses),
        health: Rc::clone(view.health()),
        pods,
        runtime: Rc::<R>::clone(runtime),
        stats: serving::stats(resolved, objects, clock),
        measure: Rc::new(move || node.stats(ask)),
        looked: Rc::new(move || shown.served()),
    });
    [rt::spawn("node", keeper.run()), rt::spawn("kernel log", oom::watch(events.clone()))]
}

/// Starts graceful node shutdown. When the returned flag is set the kubelet's loop ends: after the pods if
/// the machine shuts down, otherwise as soon as it was requested.
pub(super) fn end_with_machine<R>(
    resolved: &Resolved,
    pods: Rc<dyn PodPressure>,
    needs: &NodeManagerParts<'_, R>,
    (notifier, asked, ruler): (Rc<Notifier>, Shutdown, InitSystem),
) -> ([JoinHandle<()>; 2], Shutdown) {
    let shutdown = Rc::new(NodeShutdown::new(ShutdownParts {
        periods: grace_periods(resolved),
        ruler,
        clock: needs.clock.clone(),
        events: needs.events.clone(),
        statuses: Rc::clone(needs.statuses),
        health: Rc::clone(needs.view.health()),
        pods,
    }));
    let (trigger, end) = shutdown::channel();
    let following = rt::spawn("logind", Rc::clone(&shutdown).follow());
    let gate = rt::spawn("end", async move {
        asked.asked().await;
        if shutdown.machine_goes_down().await {
            log::info!("Machine is shutting down, terminating pods first");
            shutdown.end_with_machine(|by| notifier.extend(by)).await;
        } else {
            log::info!("Exiting, pods keep running");
        }
        trigger.ask();
    });
    ([following, gate], end)
}

fn grace_periods(resolved: &Resolved) -> Vec<Period> {
    let kubelet = &resolved.kubelet;
    if !resolved.feature_gates.enabled("GracefulNodeShutdown") {
        return Vec::new();
    }
    let seconds = |duration: GoDuration| i64::try_from(duration.to_std().as_secs()).unwrap_or(i64::MAX);
    let listed = kubelet.shutdown_grace_period_by_pod_priority.iter();
    let listed: Vec<Period> = listed
        .map(|entry| Period { priority: entry.priority, seconds: entry.shutdown_grace_period_seconds })
        .collect();
    let (all, critical) = (kubelet.shutdown_grace_period, kubelet.shutdown_grace_period_critical_pods);
    periods(seconds(all), seconds(critical), &listed)
}

fn config(resolved: &Resolved) -> NodeConfig {
    let kubelet = &resolved.kubelet;
    let percent = |percent: i32| u64::try_from(percent).unwrap_or(100);
    NodeConfig {
        eviction: eviction(kubelet),
        images: ImageLimits {
            high_percent: percent(kubelet.image_gc_high_threshold_percent),
            low_percent: percent(kubelet.image_gc_low_threshold_percent),
            minimum_age: kubelet.image_minimum_gc_age.to_std(),
            maximum_age: kubelet.image_maximum_gc_age.to_std(),
        },
        isolates_storage: kubelet.local_storage_capacity_isolation,
        root_dir: resolved.flags.root_dir.clone(),
    }
}

fn eviction(kubelet: &KubeletConfiguration) -> EvictionConfig {
    let texts = ThresholdTexts {
        hard: kubelet.eviction_hard.clone(),
        soft: kubelet.eviction_soft.clone(),
        grace: graces(&kubelet.eviction_soft_grace_period),
        minimum_reclaim: kubelet.eviction_minimum_reclaim.clone(),
        pods_are_limited: kubelet.enforce_node_allocatable.iter().any(|word| word == "pods"),
    };
    EvictionConfig {
        thresholds: thresholds(&texts),
        transition: kubelet.eviction_pressure_transition_period.to_std(),
        max_pod_grace_seconds: i64::from(kubelet.eviction_max_pod_grace_period),
    }
}

/// Strings already validated with the configuration.
fn graces(texts: &BTreeMap<String, String>) -> BTreeMap<String, Duration> {
    let of = |(name, text): (&String, &String)| Some((name.clone(), GoDuration::parse(text).ok()?.to_std()));
    texts.iter().filter_map(of).into_map()
}
