//! The node manager, the kernel's log, and the machine's shutdown.

use std::rc::Rc;

use tokio::task::JoinHandle;

use crate::agent::kubelet::report::LoopView;
use crate::node::shutdown::rules::Period;
use crate::node::shutdown::{InitSystem, NodeShutdown, ShutdownParts};
use crate::node::stats::{Ask, Measured, Stats};
use crate::node::{NodeConfig, NodeManager, NodeParts, oom};
use crate::platform::clock::Clock;
use crate::platform::rt;
use crate::platform::rt::live::Live;
use crate::platform::rt::notify::Notifier;
use crate::platform::rt::shutdown::{self, Shutdown};
use crate::pod::events::EventRecorder;
use crate::pod::status::StatusManager;
use crate::pod::workers::PodPressure;
use crate::runtime::Runtime;
use crate::serve::server::node::SharedNode;

/// The parts of the kubelet that the node manager needs.
pub(super) struct NodeManagerParts<'a, R> {
    /// The cluster that the node has joined answers.
    pub(super) is_online: &'a Rc<dyn Fn() -> bool>,
    pub(super) runtime: &'a Rc<R>,
    pub(super) node: &'a SharedNode,
    pub(super) view: &'a LoopView,
    pub(super) statuses: &'a Rc<StatusManager>,
    pub(super) events: &'a EventRecorder,
    pub(super) clock: &'a Clock,
}

/// Starts both. They run as long as the tasks live.
pub(super) fn start<R: Runtime>(
    (config, stats): (Live<NodeConfig>, Rc<Stats>),
    pods: Rc<dyn PodPressure>,
    needs: &NodeManagerParts<'_, R>,
) -> [JoinHandle<()>; 2] {
    let NodeManagerParts { runtime, node, view, statuses, events, clock, .. } = *needs;
    let (node, shown) = (Rc::clone(node), Rc::clone(node));
    let ask = Ask { disks: Measured::Everything, ..Ask::default() };
    let keeper = NodeManager::new(NodeParts {
        config,
        clock: clock.clone(),
        events: events.clone(),
        statuses: Rc::clone(statuses),
        health: Rc::clone(view.health()),
        pods,
        runtime: Rc::<R>::clone(runtime),
        stats,
        measure: Rc::new(move || node.stats(ask)),
        on_checked: Rc::new(move || shown.served()),
    });
    [rt::spawn("node", keeper.run()), rt::spawn("kernel log", oom::watch(events.clone()))]
}

/// Starts graceful node shutdown. When the returned flag is set the kubelet's loop ends: after the pods if
/// the machine shuts down, otherwise as soon as it was requested.
pub(super) fn start_node_shutdown<R>(
    periods: Vec<Period>,
    pods: Rc<dyn PodPressure>,
    needs: &NodeManagerParts<'_, R>,
    (notifier, asked, ruler): (Rc<Notifier>, Shutdown, InitSystem),
) -> ([JoinHandle<()>; 2], Shutdown) {
    let shutdown = Rc::new(NodeShutdown::new(ShutdownParts {
        periods,
        ruler,
        clock: needs.clock.clone(),
        events: needs.events.clone(),
        statuses: Rc::clone(needs.statuses),
        health: Rc::clone(needs.view.health()),
        pods,
        is_online: Rc::clone(needs.is_online),
    }));
    let (trigger, end) = shutdown::channel();
    let following = rt::spawn("logind", Rc::clone(&shutdown).follow());
    let gate = rt::spawn("end", async move {
        asked.requested().await;
        if shutdown.machine_goes_down().await {
            log::info!("Machine is shutting down, terminating pods first");
            shutdown.end_pods_for_shutdown(|by| notifier.extend(by)).await;
        } else {
            log::info!("Exiting, pods keep running");
        }
        trigger.request();
    });
    ([following, gate], end)
}
