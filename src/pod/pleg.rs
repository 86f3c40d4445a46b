//! Detects changes in the runtime (upstream: pod lifecycle event generator): waits for the runtime's hints,
//! relists, and reports the pods that changed.
//!
//! Owns the last relist of the whole runtime and the runtime's health.

pub mod rules;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::model::back_off::Retry;
use crate::model::ordered::Ordered as _;
use crate::model::types::PodUid;
use crate::platform::clock::Clock;
use crate::platform::metrics::{self, Family};
use crate::pod::pleg::rules::{PlegSnapshot, diff, pods_to_wake};
use crate::runtime::{ErrorKind, Runtime, RuntimeError, RuntimeVersion};

static RELIST_DURATION: Family = Family::seconds(
    "kubelet_pleg_relist_duration_seconds",
    "Duration in seconds for relisting pods in PLEG",
    &[],
);
static LAST_SEEN: Family = Family::gauge(
    "kubelet_pleg_last_seen_seconds",
    "Timestamp in seconds when PLEG was last seen active",
    &[],
);
static RELIST_INTERVAL: Family = Family::seconds(
    "kubelet_pleg_relist_interval_seconds",
    "Interval in seconds between relisting in PLEG, up to a minute while the runtime sends events",
    &[],
)
.with_buckets(&[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0]);

#[derive(Clone, Debug)]
pub struct PlegConfig {
    /// While the runtime gives hints: only the safety net for a lost one.
    pub period_with_hints: Duration,
    /// While it gives none: upstream's period.
    pub period_without_hints: Duration,
    /// Minimum time between two relists, however many hints arrive: a start of fifty pods gives hundreds.
    pub shortest_gap: Duration,
}

impl Default for PlegConfig {
    fn default() -> Self {
        Self {
            period_with_hints: Duration::from_secs(60),
            period_without_hints: Duration::from_secs(1),
            shortest_gap: Duration::from_millis(100),
        }
    }
}

#[derive(Debug)]
pub enum PlegUpdate {
    /// The runtime answered; these pods changed since the last relist (all that it holds, the first time).
    Relisted {
        /// Pods whose containers or sandboxes changed.
        changed: BTreeSet<PodUid>,
        /// The complete relist, for finding orphans.
        snapshot: Rc<PlegSnapshot>,
        /// The runtime's version, on the first relist and on the first after a failure: it may be another
        /// runtime by now.
        version: Option<RuntimeVersion>,
    },
    RuntimeDown(RuntimeError),
}

/// First wait after the runtime did not answer, doubling to [`LONGEST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(5);
/// Without hints, the agent tries to subscribe to them this often: the runtime may have been replaced by a
/// newer one.
const ASK_FOR_HINTS_AGAIN: Duration = Duration::from_secs(300);

/// Relists until the receiver is dropped. A relist without changes is not reported, except the first after a
/// failure.
pub async fn run<R: Runtime>(
    runtime: Rc<R>,
    clock: Clock,
    config: PlegConfig,
    updates: mpsc::Sender<PlegUpdate>,
) {
    let mut last: Option<Rc<PlegSnapshot>> = None;
    let mut healthy = false;
    let mut retry = Retry::new(FIRST_RETRY, LONGEST_RETRY);
    let mut hints = Hints { missing_since: None };
    let mut before: Option<Instant> = None;
    loop {
        let looked_at = Instant::now();
        if let Some(before) = before.replace(looked_at) {
            metrics::observe(&RELIST_INTERVAL, &[], looked_at - before);
        }
        let looked = relist(&*runtime, healthy).await;
        metrics::observe(&RELIST_DURATION, &[], looked_at.elapsed());
        let update = match looked {
            Ok((snapshot, version)) => {
                let now = Duration::from_nanos(u64::try_from(clock.now().as_nanos()).unwrap_or_default());
                metrics::set(&LAST_SEEN, &[], now.as_secs_f64().trunc());
                let snapshot = Rc::new(snapshot);
                let changed = match &last {
                    Some(last) => pods_to_wake(&diff(last, &snapshot)),
                    None => snapshot.uids().cloned().into_set(),
                };
                let news = !healthy || last.is_none() || !changed.is_empty();
                last = Some(Rc::clone(&snapshot));
                healthy = true;
                retry.reset();
                news.then_some(PlegUpdate::Relisted { changed, snapshot, version })
            }
            Err(error) => {
                healthy = false;
                Some(PlegUpdate::RuntimeDown(error))
            }
        };
        if let Some(update) = update
            && updates.send(update).await.is_err()
        {
            return;
        }
        if healthy {
            let took = looked_at.elapsed();
            hints.wait(&*runtime, &config).await;
            // With thousands of pods a relist takes long: relists get at most a tenth of the time.
            tokio::time::sleep_until(looked_at + config.shortest_gap.max(took * 10)).await;
        } else {
            tokio::time::sleep(retry.delay()).await;
        }
    }
}

async fn relist<R: Runtime>(
    runtime: &R,
    is_known: bool,
) -> Result<(PlegSnapshot, Option<RuntimeVersion>), RuntimeError> {
    let version = if is_known { None } else { Some(runtime.version().await?) };
    let sandboxes = runtime.list_sandboxes(None).await?;
    let containers = runtime.list_containers(None).await?;
    Ok((PlegSnapshot::new(&sandboxes, &containers), version))
}

/// Whether the runtime sends hints about changes.
struct Hints {
    missing_since: Option<Instant>,
}

impl Hints {
    /// Returns when it is time to relist.
    async fn wait<R: Runtime>(&mut self, runtime: &R, config: &PlegConfig) {
        if let Some(since) = self.missing_since {
            tokio::time::sleep(config.period_without_hints).await;
            if since.elapsed() > ASK_FOR_HINTS_AGAIN {
                self.missing_since = None;
            }
            return;
        }
        // A lost hint is caught by the period; a hint during a relist is kept by the runtime.
        let hint = tokio::time::timeout(config.period_with_hints, runtime.next_change()).await;
        match hint {
            Ok(Err(error)) if error.kind == ErrorKind::Unimplemented => {
                log::info!(err:% = error, periodMs = config.period_without_hints.as_millis(); "Container \
                     runtime sends no events, relisting frequently");
                self.missing_since = Some(Instant::now());
            }
            Ok(Err(_)) => tokio::time::sleep(config.period_without_hints).await,
            Ok(Ok(())) | Err(_) => {}
        }
    }
}
