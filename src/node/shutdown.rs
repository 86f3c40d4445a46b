//! Machine shutdown: its pods end first, in order, and the node reports that it is shutting down (upstream:
//! `nodeshutdown.Manager`).
//!
//! Owns the notifications to pods. Which pods end when is decided in `rules`; a shutdown is detected by
//! `logind` and `openrc`. A signal from logind starts the configured periods. SIGTERM during a shutdown
//! grants the remaining work a period of its own, with or without a configuration.

pub mod rules;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::model::back_off::Retry;
use crate::model::disruption::{MESSAGE, MESSAGE_OFFLINE, TERMINATED};
use crate::model::ordered::Ordered as _;
use crate::model::provenance::is_of_cluster;
use crate::model::types::PodUid;
use crate::node::health::Health;
use crate::node::shutdown::rules::{NODE_MESSAGE, Period, Turn, or_default_periods, shutdown_groups, total};
use crate::platform::clock::Clock;
use crate::platform::dbus::DbusError;
use crate::platform::logging::chain;
use crate::platform::logind::{self, LogindConfig, News};
use crate::platform::metrics::{self, Family};
use crate::platform::{openrc, rt};
use crate::pod::events::{EventRecorder, EventType};
use crate::pod::inbox::Eviction;
use crate::pod::status::StatusManager;
use crate::pod::workers::PodPressure;

static START: Family = Family::gauge(
    "kubelet_graceful_shutdown_start_time_seconds",
    "Last graceful shutdown start time since unix epoch in seconds",
    &[],
);
static END: Family = Family::gauge(
    "kubelet_graceful_shutdown_end_time_seconds",
    "Last graceful shutdown end time since unix epoch in seconds",
    &[],
);

/// Between attempts to reconnect to a bus that was available (upstream); doubles up to the longest.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// The time that shutdown needs besides: logind's own work, the agent's end.
const RESERVE: Duration = Duration::from_secs(5);

/// How to reach the init system.
#[derive(Clone, Debug, Default)]
pub(crate) struct InitSystem {
    /// `DBUS_SYSTEM_BUS_ADDRESS`: systemd and logind.
    pub bus_address: Option<String>,
    /// `RC_SVCDIR`: `OpenRC`.
    pub openrc_state: Option<String>,
}

pub(crate) struct ShutdownParts {
    /// The configured groups, ascending; empty: the machine is not asked to delay its shutdown.
    pub periods: Vec<Period>,
    pub ruler: InitSystem,
    pub clock: Clock,
    pub events: EventRecorder,
    pub statuses: Rc<StatusManager>,
    /// Publishes that the node shuts down.
    pub health: Rc<Health>,
    pub pods: Rc<dyn PodPressure>,
    /// The cluster answers: its pods fail for good, as upstream. Without it, they end as in a power cut.
    pub is_online: Rc<dyn Fn() -> bool>,
}

pub(crate) struct NodeShutdown {
    parts: ShutdownParts,
    /// The shutdown was cancelled while pods ended.
    is_called_off: Cell<bool>,
    /// Delays the machine's shutdown as long as it is open.
    lock: RefCell<Option<std::os::fd::OwnedFd>>,
}

impl NodeShutdown {
    /// Contacts no service before [`Self::follow`].
    #[must_use]
    pub(crate) fn new(parts: ShutdownParts) -> Self {
        Self { parts, is_called_off: Cell::new(false), lock: RefCell::default() }
    }

    /// Follows logind as long as the task lives, if a grace is configured.
    pub(crate) async fn follow(self: Rc<Self>) {
        let delay = seconds(total(&self.parts.periods));
        if delay.is_zero() {
            return;
        }
        let config = LogindConfig { bus_address: self.parts.ruler.bus_address.clone(), delay };
        let mut retry = Retry::new(FIRST_RETRY, LONGEST_RETRY);
        let mut was_there = false;
        loop {
            let (sender, mut news) = mpsc::unbounded_channel();
            let (ended, end) = oneshot::channel();
            let config = config.clone();
            let thread = rt::spawn_thread("logind", move || {
                let tell = |news| sender.send(news).is_ok();
                // The receiver may be gone: then the agent is ending.
                let _ = ended.send(logind::follow(&config, tell));
            });
            if let Err(error) = thread {
                log::error!(err:% = error; "Failed to start the logind watch thread; machine shutdown will \
                     not wait for pods");
                return;
            }
            while let Some(event) = news.recv().await {
                was_there = true;
                retry.reset();
                self.on_logind_event(event, &mut news).await;
            }
            // The lock, if any, holds as long as logind runs.
            let why = end.await.ok().and_then(Result::err);
            let why = why.as_ref().map(|error: &DbusError| chain(error)).unwrap_or_default();
            if !was_there {
                log::warn!(err = why; "Failed to connect to logind; machine shutdown will not wait for pods");
                return;
            }
            let delay = retry.delay();
            log::warn!(err = why, retrySeconds = delay.as_secs(); "Lost connection to logind");
            tokio::time::sleep(delay).await;
        }
    }

    async fn on_logind_event(&self, event: News, news: &mut mpsc::UnboundedReceiver<News>) {
        match event {
            News::Locked(lock) => {
                log::info!("Machine shutdown will wait for pods");
                self.lock.replace(Some(lock));
            }
            News::Preparing(false) => self.resume(),
            News::Preparing(true) => {
                log::info!("Machine is about to shut down");
                let mut ending = pin!(self.end_pods(&self.parts.periods));
                let mut next_lock = None;
                loop {
                    tokio::select! {
                        biased;
                        () = &mut ending => break,
                        // Losing it is safe: unreceived messages stay in the channel.
                        Some(event) = news.recv() => match event {
                            News::Preparing(begins) => self.is_called_off.set(!begins),
                            News::Locked(lock) => next_lock = Some(lock),
                        },
                    }
                }
                log::info!("Machine shutdown no longer waits for pods");
                self.lock.replace(next_lock);
                if self.is_called_off.replace(false) {
                    self.resume();
                }
            }
        }
    }

    /// The agent is stopped by a machine shutdown: the remaining pods end first.
    pub(crate) async fn end_pods_for_shutdown(&self, extend: impl Fn(Duration)) {
        let periods = or_default_periods(&self.parts.periods);
        extend(seconds(total(&periods)) + RESERVE);
        self.end_pods(&periods).await;
        self.lock.replace(None);
    }

    /// Whether systemd or `OpenRC` is shutting the machine down.
    pub(crate) async fn machine_goes_down(&self) -> bool {
        let InitSystem { bus_address, openrc_state } = self.parts.ruler.clone();
        let ask = move || {
            openrc::machine_goes_down(openrc_state.as_deref())
                || logind::machine_goes_down(bus_address.as_deref())
        };
        rt::blocking("query the init system", ask).await
    }

    async fn end_pods(&self, periods: &[Period]) {
        let parts = &self.parts;
        if parts.health.set_shutting_down(true, parts.clock.now()) {
            metrics::set(&START, &[], unix_seconds(&parts.clock));
            parts.events.node_event(
                EventType::Normal,
                "Shutdown",
                "Shutdown manager detected shutdown event",
            );
        }
        parts.pods.set_shutting_down(true);
        let pods = parts.statuses.all_pods();
        let of_cluster = pods.iter().filter(|pod| is_of_cluster(pod)).map(|pod| pod.metadata.uid.clone());
        let of_cluster: BTreeSet<PodUid> = of_cluster.into_set();
        for turn in shutdown_groups(periods, &pods) {
            if self.is_called_off.get() {
                break;
            }
            self.end_group(turn, &of_cluster).await;
        }
        metrics::set(&END, &[], unix_seconds(&parts.clock));
    }

    /// Ends the pods of a group and waits for them, at most for the group's period.
    async fn end_group(&self, turn: Turn, of_cluster: &BTreeSet<PodUid>) {
        let deadline = Instant::now() + seconds(turn.seconds);
        log::info!(pods = turn.pods.len(), seconds = turn.seconds; "Terminating pods, {NODE_MESSAGE}");
        let is_online = (self.parts.is_online)();
        let end = |(uid, grace_seconds)| {
            let (done, ended) = oneshot::channel::<()>();
            let message =
                if of_cluster.contains(&uid) && !is_online { MESSAGE_OFFLINE } else { MESSAGE }.to_owned();
            let eviction = Eviction { is_shutdown: true, reason: TERMINATED, message, grace_seconds, done };
            self.parts.pods.evict(&uid, eviction);
            ended
        };
        let ends: Vec<_> = turn.pods.into_iter().map(end).collect();
        let mut late = 0;
        for ended in ends {
            late += usize::from(tokio::time::timeout_at(deadline, ended).await.is_err());
        }
        if late > 0 {
            log::warn!(pods = late; "Shutdown grace period of a pod group expired before its pods terminated");
        }
    }

    fn resume(&self) {
        let parts = &self.parts;
        if parts.health.set_shutting_down(false, parts.clock.now()) {
            log::info!("Machine shutdown was cancelled, restarting pods");
            parts.pods.set_shutting_down(false);
        }
    }
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn unix_seconds(clock: &Clock) -> f64 {
    Duration::from_nanos(u64::try_from(clock.now().as_nanos()).unwrap_or(0)).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::model::api::decode::decode;
    use crate::model::disruption::Pressure;
    use crate::model::revisions::Revisions;
    use crate::model::types::Timestamp;
    use crate::node::shutdown::rules::periods;
    use crate::store::{Mode, OpenOptions, StoreHandle};

    /// Records which pod was notified, and after how long; pods of this name never end.
    struct Notes {
        began: Instant,
        told: RefCell<Vec<(String, i64, u64)>>,
        kept: RefCell<Vec<Eviction>>,
        is_down: Cell<bool>,
    }

    impl PodPressure for Notes {
        fn evict(&self, uid: &PodUid, eviction: Eviction) {
            assert!(eviction.is_shutdown && self.is_down.get());
            self.told.borrow_mut().push((
                uid.to_string(),
                eviction.grace_seconds,
                self.began.elapsed().as_secs(),
            ));
            if uid.as_str() == "stubborn" {
                self.kept.borrow_mut().push(eviction);
            }
        }

        fn set_pressure(&self, _: BTreeSet<Pressure>) {}

        fn set_short_of_disk(&self, _: bool) {}

        fn set_shutting_down(&self, is_shutting_down: bool) {
            self.is_down.set(is_shutting_down);
        }
    }

    fn bench(total_seconds: i64, critical_seconds: i64) -> (NodeShutdown, Rc<Notes>) {
        let clock = Clock::manual(Timestamp::from_secs(1_795_190_400));
        let options = OpenOptions { mode: Mode::Inline, ..OpenOptions::default() };
        let store = StoreHandle::open_in_memory(options).unwrap();
        let events = EventRecorder::new("n".into(), clock.clone(), store.clone(), vec![]);
        let statuses =
            Rc::new(StatusManager::new(store, BTreeMap::new(), Revisions::since(Timestamp::default())));
        for (name, priority) in [("stubborn", 0), ("quick", 0), ("vital", 2_000_000_000)] {
            let raw = json!({
                "metadata": {"name": name, "uid": name},
                "spec": {"priority": priority, "containers": [{"name": "c"}]},
            });
            statuses.expect(&Rc::new(decode(raw).unwrap().object));
        }
        let notes = Rc::new(Notes {
            began: Instant::now(),
            told: RefCell::default(),
            kept: RefCell::default(),
            is_down: Cell::new(false),
        });
        let shutdown = NodeShutdown::new(ShutdownParts {
            periods: periods(total_seconds, critical_seconds, &[]),
            ruler: InitSystem::default(),
            clock,
            events,
            statuses,
            health: Rc::default(),
            pods: Rc::<Notes>::clone(&notes),
            is_online: Rc::new(|| true),
        });
        (shutdown, notes)
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_group_starts_when_the_previous_ends_or_times_out() {
        let (shutdown, notes) = bench(40, 10);
        let (sender, mut news) = mpsc::unbounded_channel();
        drop(sender);
        shutdown.on_logind_event(News::Preparing(true), &mut news).await;
        let told = notes.told.borrow().clone();
        let expected = [("quick", 30, 0), ("stubborn", 30, 0), ("vital", 10, 30)];
        assert_eq!(told, expected.map(|(name, grace, at)| (name.to_owned(), grace, at)));
        assert_eq!(notes.began.elapsed().as_secs(), 30, "the last group did not wait");
        assert!(shutdown.parts.health.shutting_down().is_some_and(|(is_down, _)| is_down));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_called_off_ends_no_further_group_and_runs_again() {
        let (shutdown, notes) = bench(40, 10);
        let (sender, mut news) = mpsc::unbounded_channel();
        sender.send(News::Preparing(false)).unwrap();
        shutdown.on_logind_event(News::Preparing(true), &mut news).await;
        let told: Vec<String> = notes.told.borrow().iter().map(|(name, ..)| name.clone()).collect();
        assert_eq!(told, ["quick", "stubborn"]);
        assert!(!notes.is_down.get());
        assert!(shutdown.parts.health.shutting_down().is_some_and(|(is_down, _)| !is_down));
    }

    #[tokio::test(start_paused = true)]
    async fn unconfigured_shutdown_uses_short_grace_periods() {
        let (shutdown, notes) = bench(0, 0);
        let told = Cell::new(Duration::ZERO);
        shutdown.end_pods_for_shutdown(|by| told.set(by)).await;
        assert_eq!(told.get(), Duration::from_secs(20));
        let graces: Vec<i64> = notes.told.borrow().iter().map(|(_, grace, _)| *grace).collect();
        assert_eq!(graces, [10, 10, 5]);
    }
}
