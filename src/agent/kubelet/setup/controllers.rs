//! The controllers and the Services of a node without a cluster.
//!
//! Owns which parts of the agent each gets.

use std::rc::Rc;

use tokio::task::JoinHandle;

use super::AgentParts;
use crate::agent::config::Resolved;
use crate::agent::kubelet::report::LoopView;
use crate::agent::kubelet::services;
use crate::platform::dice::Dice;
use crate::platform::rt;
use crate::pod::status::StatusManager;
use crate::runtime::Runtime;
use crate::workload::{self, WorkloadParts};

impl<R: Runtime> AgentParts<R> {
    /// The controllers of workloads: those of a node of a cluster are the cluster's.
    pub(super) fn start_controllers(
        &self,
        view: &Rc<LoopView>,
        statuses: &Rc<StatusManager>,
    ) -> Option<JoinHandle<()>> {
        if self.joined.is_some() {
            return None;
        }
        let features = Rc::clone(view);
        let parts = WorkloadParts {
            node_name: self.events.node_name().to_owned(),
            clock: self.clock.clone(),
            editor: self.editor.clone(),
            objects: Rc::clone(&self.objects),
            statuses: Rc::clone(statuses),
            events: self.events.clone(),
            admission: self.admission.clone(),
            desired: view.watch(),
            handlers: Rc::new(move || {
                let handlers = features.features().into_iter().flat_map(|features| features.handlers);
                handlers.map(|handler| handler.name).collect()
            }),
            dice: Dice::System,
        };
        Some(rt::spawn("controllers", workload::run(parts)))
    }

    /// Before the first pod starts.
    pub(super) async fn start_services(&self, resolved: &Resolved, has_pods: bool) -> Option<JoinHandle<()>> {
        let needs = services::ServiceNeeds {
            objects: &self.objects,
            statuses: &self.statuses,
            events: &self.events,
            clock: &self.clock,
            view: &self.view,
            node_ips: &self.node_ips,
            has_pods,
        };
        services::start(resolved, self.services.as_ref(), needs).await
    }
}
