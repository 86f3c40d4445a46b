//! The view of the loop for the rest of the process: the local API and the run-once report read it, the loop
//! writes it.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::agent::kubelet::embedded::ImageProblems;
use crate::agent::kubelet::open_store::ObjectTrouble;
use crate::cluster::ClusterState;
use crate::desired::pod_config::SourceView;
use crate::desired::pod_config::edit::API_ORIGIN;
use crate::desired::pod_config::notes::{Mirror, Notes};
use crate::managers::ResourceManagers;
use crate::model::disruption::Pressure;
use crate::model::objects::LocalObjects;
use crate::model::objects::volumes::Binding;
use crate::model::types::{PodSource, PodUid, Timestamp};
use crate::node::health::Health;
use crate::pod::events::EventRecorder;
use crate::pod::status::StatusManager;
use crate::runtime::{RuntimeError, RuntimeStatus, RuntimeVersion};
use crate::serve::server::report::{
    AgentMode, AgentReport, ApiReport, EventReport, ObjectCounts, ObjectDetail, PressureReport,
    ProblemReport, RuntimeReport, SourceReport, SourceState, StoreReport,
};

/// Facts that are constant during the life of the process.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    pub version: String,
    pub node_name: String,
    pub started_at: Timestamp,
    pub endpoint: String,
    pub store_path: String,
    /// The path or URL of each source.
    pub origins: BTreeMap<PodSource, String>,
    /// The directory of claims.
    pub volumes_dir: PathBuf,
    pub object_trouble: ObjectTrouble,
    pub api: ApiReport,
}

#[derive(Default)]
struct ReportState {
    runtime: RuntimeReport,
    /// Unknown before the first observation.
    runtime_up: Option<bool>,
    sources: BTreeMap<PodSource, SourceView>,
    notes: Notes,
    /// The runtime's features, once it has reported them.
    features: Option<RuntimeStatus>,
    /// Whether the sources are known, which the loop sets at its start.
    begun: bool,
    reported_sources: BTreeSet<PodSource>,
    store_trouble: Option<String>,
    /// Problems by server.
    serving: BTreeMap<&'static str, String>,
    image_problems: ImageProblems,
    /// Of the configuration file since the start.
    configuration_problems: Vec<ProblemReport>,
    /// Since when the loop has been handling an event; `None` while it waits.
    busy_since: Option<Instant>,
}

/// A loop that handles one event for longer than this is stuck: upstream's twice its resync period.
const STUCK_AFTER: Duration = Duration::from_secs(120);

/// The state of the loop for readers.
pub struct LoopView {
    identity: Identity,
    state: RefCell<ReportState>,
    /// The effective objects.
    objects: OnceCell<Rc<LocalObjects>>,
    /// The scheme of container ids in statuses; shared with workers.
    runtime_name: Rc<RefCell<String>>,
    health: Rc<Health>,
    version: watch::Sender<u64>,
    served: Notify,
    plugin_trouble: RefCell<Option<String>>,
    managers: OnceCell<ResourceManagers>,
    cluster: RefCell<Option<Rc<ClusterState>>>,
}

impl LoopView {
    /// The view of a loop that has not started.
    #[must_use]
    pub fn new(identity: Identity, runtime_name: Rc<RefCell<String>>) -> Self {
        let runtime = RuntimeReport { endpoint: identity.endpoint.clone(), ..RuntimeReport::default() };
        let state = ReportState { runtime, ..ReportState::default() };
        Self {
            identity,
            state: RefCell::new(state),
            objects: OnceCell::new(),
            runtime_name,
            health: Rc::default(),
            version: watch::Sender::new(0),
            served: Notify::new(),
            plugin_trouble: RefCell::default(),
            managers: OnceCell::new(),
            cluster: RefCell::default(),
        }
    }

    /// Why device plugins cannot register, if so.
    #[must_use]
    pub(in crate::agent) fn plugin_trouble(&self) -> Option<String> {
        self.plugin_trouble.borrow().clone()
    }

    /// The node has joined a cluster.
    pub(in crate::agent) fn set_cluster(&self, cluster: Rc<ClusterState>) {
        *self.cluster.borrow_mut() = Some(cluster);
    }

    pub(in crate::agent) fn cluster(&self) -> Option<Rc<ClusterState>> {
        self.cluster.borrow().clone()
    }

    /// Records that device plugins cannot register.
    pub(in crate::agent) fn set_plugin_trouble(&self, why: String) {
        *self.plugin_trouble.borrow_mut() = Some(why);
    }

    /// A counter that changes whenever something in here does.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// The node's pressure conditions and its images.
    #[must_use]
    pub fn health(&self) -> &Rc<Health> {
        &self.health
    }

    /// Whether the runtime answered the last relist.
    #[must_use]
    pub fn runtime_is_up(&self) -> bool {
        self.state.borrow().runtime_up == Some(true)
    }

    /// Why the runtime does not answer, if so.
    #[must_use]
    pub fn runtime_trouble(&self) -> Option<String> {
        let state = self.state.borrow();
        (state.runtime_up == Some(false)).then(|| state.runtime.message.clone())
    }

    #[must_use]
    pub fn sources(&self) -> BTreeMap<PodSource, SourceView> {
        self.state.borrow().sources.clone()
    }

    /// Whether the loop makes progress. It is unhealthy after two minutes with one event.
    pub(crate) fn loop_health(&self) -> Result<(), String> {
        let state = self.state.borrow();
        if !state.begun {
            return Err("the sync loop has not started yet".to_owned());
        }
        match state.busy_since.map(|since| since.elapsed()) {
            Some(busy) if busy > STUCK_AFTER => {
                Err(format!("the sync loop has been blocked for {} seconds", busy.as_secs()))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn set_served(&self) {
        self.served.notify_one();
    }

    /// Waits until a client has been served since the last time.
    pub(super) async fn served(&self) {
        self.served.notified().await;
    }

    /// Records why a server cannot run now; true when that has changed.
    pub(super) fn set_serving_trouble(&self, server: &'static str, trouble: Option<&str>) -> bool {
        let mut state = self.state.borrow_mut();
        match trouble {
            None => state.serving.remove(server).is_some(),
            Some(trouble) => {
                state.serving.insert(server, trouble.to_owned()).is_none_or(|before| before != trouble)
            }
        }
    }

    /// Who has which CPUs is shown from now on.
    pub(super) fn show_managers(&self, managers: &ResourceManagers) {
        let _ = self.managers.set(managers.clone());
    }

    pub(super) fn set_image_problems(&self, problems: ImageProblems) {
        self.state.borrow_mut().image_problems = problems;
    }

    /// Records what is wrong with the configuration since the start. `true` if that is new.
    pub(super) fn set_configuration_problems(&self, problems: Vec<ProblemReport>) -> bool {
        let mut state = self.state.borrow_mut();
        let is_new = state.configuration_problems != problems;
        state.configuration_problems = problems;
        is_new
    }

    /// Records that the loop handles an event, or waits again.
    pub(super) fn set_busy(&self, busy: bool) {
        self.state.borrow_mut().busy_since = busy.then(Instant::now);
    }

    /// Waits until the pods have been restored from the store. An earlier report would show no pods.
    pub(crate) async fn wait_until_restored(&self) {
        let mut version = self.version.subscribe();
        while !self.state.borrow().begun {
            // The sender lives as long as this view.
            let _ = version.changed().await;
        }
    }

    /// True when each source has reported something since the start, even an error.
    #[must_use]
    pub(crate) fn all_sources_reported(&self) -> bool {
        let state = self.state.borrow();
        state.begun && state.sources.keys().all(|source| state.reported_sources.contains(source))
    }

    pub(super) fn mark_source_reported(&self, source: PodSource) {
        self.state.borrow_mut().reported_sources.insert(source);
    }

    pub(super) fn set_sources(&self, sources: &BTreeMap<PodSource, SourceView>) {
        {
            let mut state = self.state.borrow_mut();
            state.begun = true;
            state.sources.clone_from(sources);
        }
        self.changed();
    }

    /// From now on these are the effective objects.
    pub(super) fn show_objects(&self, objects: &Rc<LocalObjects>) {
        // Set once, by setup.
        let _ = self.objects.set(Rc::clone(objects));
    }

    pub(super) fn set_notes(&self, notes: Notes) {
        self.state.borrow_mut().notes = notes;
        self.changed();
    }

    /// Changes of the node and of mirror pods by clients.
    #[must_use]
    pub(crate) fn notes(&self) -> Notes {
        self.state.borrow().notes.clone()
    }

    /// The mirror pod that replaced a deleted one.
    #[must_use]
    pub(crate) fn mirror(&self, uid: &PodUid) -> Option<Mirror> {
        self.state.borrow().notes.mirrors.get(uid).cloned()
    }

    pub(super) fn set_features(&self, status: RuntimeStatus) {
        self.state.borrow_mut().features = Some(status);
        self.changed();
    }

    #[must_use]
    pub(crate) fn features(&self) -> Option<RuntimeStatus> {
        self.state.borrow().features.clone()
    }

    /// The runtime's last observed state.
    #[must_use]
    pub(crate) fn runtime(&self) -> RuntimeReport {
        self.state.borrow().runtime.clone()
    }

    #[must_use]
    pub(crate) fn volumes_dir(&self) -> &Path {
        &self.identity.volumes_dir
    }

    pub(super) fn set_store_trouble(&self, trouble: Option<&str>) {
        self.state.borrow_mut().store_trouble = trouble.map(str::to_owned);
    }

    pub(super) fn set_runtime_up(&self, version: &RuntimeVersion, now: Timestamp) {
        if !version.name.is_empty() {
            self.runtime_name.borrow_mut().clone_from(&version.name);
        }
        {
            let mut state = self.state.borrow_mut();
            state.runtime_up = Some(true);
            state.runtime.name.clone_from(&version.name);
            state.runtime.version.clone_from(&version.version);
            state.runtime.ready = true;
            state.runtime.message.clear();
            state.runtime.since = Some(now);
        }
        self.changed();
    }

    /// True when that has changed.
    pub(super) fn set_runtime_down(&self, error: &RuntimeError, now: Timestamp) -> bool {
        let news = {
            let mut state = self.state.borrow_mut();
            let news = state.runtime_up != Some(false);
            state.runtime_up = Some(false);
            state.runtime.ready = false;
            state.runtime.message = error.to_string();
            if news {
                state.runtime.since = Some(now);
            }
            news
        };
        self.changed();
        news
    }

    /// Readers see something else from now on.
    pub(super) fn changed(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    #[must_use]
    pub fn report(
        &self,
        statuses: &StatusManager,
        events: &EventRecorder,
        detail: ObjectDetail,
    ) -> AgentReport {
        let state = self.state.borrow();
        let identity = &self.identity;
        let object_trouble = &identity.object_trouble;
        // Once all sources have answered, lost objects have been replaced or removed.
        let lost = object_trouble.lost.as_ref().filter(|_| !state.sources.values().all(|view| view.seen));
        let trouble = state.store_trouble.as_ref().or(object_trouble.key.as_ref()).or(lost);
        let objects = self.objects.get().map(|objects| objects.all()).unwrap_or_default();
        let pods = statuses.all_pods();
        let name = |uid: &PodUid| {
            let pod = pods.iter().find(|pod| pod.metadata.uid == *uid);
            pod.map_or_else(
                || uid.to_string(),
                |pod| format!("{}/{}", pod.metadata.namespace, pod.metadata.name),
            )
        };
        let (cpus, memory) = self.managers.get().map(|managers| managers.drawn(&name)).unwrap_or_default();
        AgentReport {
            cpus,
            memory,
            version: identity.version.clone(),
            pid: std::process::id(),
            started_at: Some(identity.started_at),
            node_name: identity.node_name.clone(),
            mode: AgentMode::Running,
            runtime: state.runtime.clone(),
            cluster: self.cluster.borrow().as_ref().map(|cluster| cluster.report()),
            sources: state.sources.iter().map(|(source, view)| self.source_report(*source, view)).collect(),
            pods,
            object_counts: ObjectCounts::of(objects.iter().map(|known| &known.object.key)),
            objects: detail.reports(
                objects.iter().map(|known| (&*known.object, &*known.origin)),
                &identity.volumes_dir,
                &|claim| self.objects.get().map_or(Binding::Directory, |objects| objects.binding(claim)),
            ),
            pressure: self.pressure(),
            problems: {
                let images = state.image_problems.borrow();
                state.configuration_problems.iter().chain(&*images).cloned().collect()
            },
            serving: state.serving.iter().map(|(server, trouble)| format!("{server}: {trouble}")).collect(),
            api: identity.api.clone(),
            events: events.recent().into_iter().map(EventReport::from).collect(),
            store: StoreReport {
                path: identity.store_path.clone(),
                ok: trouble.is_none(),
                message: trouble.cloned().unwrap_or_default(),
            },
        }
    }

    fn pressure(&self) -> Vec<PressureReport> {
        let held = |of: &Pressure| {
            let (holds, since) = self.health.pressure(*of);
            let (_, message) = of.reason_and_message(true);
            holds.then(|| PressureReport {
                condition: of.condition().to_owned(),
                message: message.to_owned(),
                since,
            })
        };
        Pressure::ALL.iter().filter_map(held).collect()
    }

    fn server(&self) -> String {
        self.cluster.borrow().as_ref().map(|cluster| cluster.server()).unwrap_or_default()
    }

    fn source_report(&self, source: PodSource, view: &SourceView) -> SourceReport {
        SourceReport {
            name: source.as_str().to_owned(),
            origin: match source {
                PodSource::Api => API_ORIGIN.to_owned(),
                PodSource::Cluster if !self.server().is_empty() => self.server(),
                _ => self.identity.origins.get(&source).cloned().unwrap_or_default(),
            },
            state: match (view.seen, view.answering) {
                (_, true) if view.rolling_out => SourceState::Trial,
                (_, true) => SourceState::Ok,
                (true, false) => SourceState::Failing,
                (false, false) => SourceState::Waiting,
            },
            last_answer: match &*self.cluster.borrow() {
                // A watch is silent while nothing changes.
                Some(cluster) if source == PodSource::Cluster => cluster.last_answer().max(view.last_answer),
                _ => view.last_answer,
            },
            pods: u32::try_from(view.pods).unwrap_or(u32::MAX),
            objects: u32::try_from(view.objects).unwrap_or(u32::MAX),
            problems: view.problems.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// A client of an agent that has just restarted must not get an empty list of pods.
    #[test]
    fn requests_wait_until_the_store_is_loaded() {
        let view = LoopView::new(Identity::default(), Rc::default());
        let mut begun = pin!(view.wait_until_restored());
        let mut context = Context::from_waker(Waker::noop());
        assert!(begun.as_mut().poll(&mut context).is_pending());
        view.set_runtime_down(
            &RuntimeError::new("Version", crate::runtime::ErrorKind::Unavailable, ""),
            Timestamp::default(),
        );
        assert!(begun.as_mut().poll(&mut context).is_pending(), "news of something else");
        view.set_sources(&BTreeMap::new());
        assert!(begun.as_mut().poll(&mut context).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_is_healthy_while_it_goes_round() {
        let view = LoopView::new(Identity::default(), Rc::default());
        assert_eq!(view.loop_health().unwrap_err(), "the sync loop has not started yet");
        view.set_sources(&BTreeMap::new());
        view.set_busy(true);
        tokio::time::advance(STUCK_AFTER).await;
        assert_eq!(view.loop_health(), Ok(()));
        tokio::time::advance(Duration::from_secs(1)).await;
        let said = view.loop_health().unwrap_err();
        assert_eq!(said, "the sync loop has been blocked for 121 seconds");
        view.set_busy(false);
        tokio::time::advance(STUCK_AFTER * 10).await;
        assert_eq!(view.loop_health(), Ok(()), "it waits for something to do");
    }
}
