//! The rollout of one source's new sets, as part of the desired state: what a rollout replaces is known here, and so
//! is what comes back.
//!
//! Owns no state: it is in [`Rollout`], and on disk with the set it belongs to.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::{PodConfig, log_changes};
use crate::desired::merge::{PodChange, merge};
use crate::desired::rollout::rules::{Progress, RolloutVerdict, answer_digest, progress};
use crate::desired::rollout::{Rollout, RolloutConfig, shown};
use crate::model::api::pod::PodStatus;
use crate::model::source::{SourceAnswer, SourceProblem, SourceSet, SourceUpdate};
use crate::model::types::{PodSource, PodUid};
use crate::store::rollout::RolloutPhase;

/// An answer to be rolled out: its digest, and the previous set.
pub(super) struct NewAnswer {
    digest: String,
    known: Option<SourceSet>,
}

impl PodConfig {
    /// Rolls new sets of one source out before they count as good, resuming from the rollouts in the store.
    /// `None`: the source's answer takes effect at once, and earlier rollouts are forgotten.
    #[must_use]
    pub fn with_rollout(
        mut self,
        config: Option<RolloutConfig>,
        mut stored: BTreeMap<PodSource, RolloutPhase>,
    ) -> Self {
        self.rollout = config.map(|config| {
            let phase = stored.remove(&config.source).unwrap_or_default();
            Rollout::new(config, phase)
        });
        self.stored_rollouts = stored;
        self
    }

    /// Must be called once, before anything else. Each start uses up a part of a rollout, and that is on disk
    /// before the pods of the rollout start, because they may be what makes the machine restart.
    pub(crate) async fn resume_rollout(&mut self) {
        let stored = std::mem::take(&mut self.stored_rollouts);
        let mut phases: Vec<_> = stored.into_keys().map(|source| (source, RolloutPhase::Good)).collect();
        if let Some(rollout) = &mut self.rollout {
            let phase = std::mem::take(&mut rollout.phase).after_start();
            rollout.set_phase(phase.clone());
            let source = rollout.config.source;
            phases.push((source, phase));
            self.count(source);
        }
        for (source, phase) in phases {
            if let Err(error) = self.store.put_rollout(source, &phase).await {
                log::warn!(source = source.as_str(), err:% = error; "Failed to store pod set on trial");
            }
        }
    }

    /// When to call [`Self::check_rollout`] next, if no status changes before. `None`: nothing is rolled out, or no
    /// timer affects it.
    #[must_use]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.rollout.as_ref().and_then(|rollout| rollout.next_deadline)
    }

    /// True while a change of any status is a reason to call [`Self::check_rollout`].
    #[must_use]
    pub(crate) fn is_rolling_out(&self) -> bool {
        self.rollout.as_ref().is_some_and(|rollout| rollout.phase.is_open())
    }

    /// Checks the progress of the rollout. When it has failed, the last good set is on disk as the desired
    /// one when this returns, and the changes may be acted on. While the runtime does not answer, no time is
    /// used up.
    pub(crate) async fn check_rollout(
        &mut self,
        runtime_is_up: bool,
        status_of: impl Fn(&PodUid) -> Option<PodStatus>,
    ) -> Vec<PodChange> {
        let Some(rollout) = self.rollout.as_mut().filter(|rollout| rollout.phase.is_open()) else {
            return Vec::new();
        };
        let source = rollout.config.source;
        let wanted = self.desired.sources.get(&source).map(|state| &state.pods);
        let pods: Vec<(String, Progress)> = rollout
            .phase
            .new_pods(wanted.into_iter().flat_map(BTreeMap::values))
            .map(|pod| {
                let metadata = &pod.metadata;
                let name = format!("{}/{}", metadata.namespace, metadata.name);
                (name, progress(status_of(&metadata.uid).as_ref()))
            })
            .collect();
        let all_started = runtime_is_up && pods.iter().all(|(_, progress)| *progress == Progress::Started);
        let times = rollout.times(all_started);
        match rollout.phase.verdict(&pods, times) {
            RolloutVerdict::Wait(time) => rollout.next_deadline = time.map(|time| Instant::now() + time),
            RolloutVerdict::EndPart | RolloutVerdict::RollBack(_) if !runtime_is_up => {
                rollout.restart_part();
            }
            RolloutVerdict::EndPart => {
                rollout.end_part();
                if let Err(error) = self.store.put_rollout(source, &rollout.phase).await {
                    log::debug!(source = source.as_str(), err:% = error; "Failed to store pod set on trial");
                }
            }
            RolloutVerdict::Good => {
                let origin = rollout.config.origin.as_str();
                if matches!(rollout.phase, RolloutPhase::Progressing { .. }) {
                    log::info!(source = source.as_str(), origin = origin; "New pod set started, recording it \
                         as last good");
                } else {
                    log::info!(source = source.as_str(), origin = origin; "First pod set started, recording \
                         it as last good");
                }
                rollout.set_phase(RolloutPhase::Good);
                if let Err(error) = self.store.put_rollout(source, &RolloutPhase::Good).await {
                    log::warn!(source = source.as_str(), err:% = error; "Failed to store the result of a \
                         pod set trial");
                }
                self.count(source);
            }
            RolloutVerdict::RollBack(why) => return self.roll_back(why).await,
        }
        Vec::new()
    }

    async fn roll_back(&mut self, why: String) -> Vec<PodChange> {
        let now = self.clock.now();
        let Some(rollout) = &mut self.rollout else { return Vec::new() };
        let source = rollout.config.source;
        let RolloutPhase::Progressing { last_good, digest, .. } = std::mem::take(&mut rollout.phase) else {
            return Vec::new();
        };
        rollout.set_phase(RolloutPhase::RolledBack { digest, why, since: now });
        let merged = merge(&self.desired, source, Some(last_good.pods), now);
        self.desired = merged.desired;
        // As if the objects had been removed and recreated: otherwise immutable ones would stay.
        self.object_sets.replace(source, Vec::new());
        self.object_sets.replace(source, last_good.objects);
        // Without a validator: after a restart the source has to send its answer again, since that is not
        // what runs.
        self.write(source, None).await;
        self.publish_objects();
        let before = self.views.get(&source).map(|view| view.problems.clone()).unwrap_or_default();
        self.publish_problems(source, self.with_rollback_problem(source, before)).await;
        self.count(source);
        log_changes(source, &merged.changes);
        merged.changes
    }

    pub(super) fn rollout_of(&self, source: PodSource) -> Option<&Rollout> {
        self.rollout.as_ref().filter(|rollout| rollout.config.source == source)
    }

    pub(super) fn with_rollback_problem(
        &self,
        source: PodSource,
        mut problems: Vec<SourceProblem>,
    ) -> Vec<SourceProblem> {
        problems.extend(self.rollout_of(source).and_then(Rollout::problem));
        problems
    }

    /// The answer to roll out, of the source that does so. One that failed before is replaced by the set that
    /// runs instead.
    pub(super) fn new_answer(&self, update: &mut SourceUpdate) -> Option<NewAnswer> {
        let rollout = self.rollout_of(update.source)?;
        let SourceAnswer::Pods(pods) = &update.answer else { return None };
        let digest = answer_digest(pods, &update.objects);
        let known = self.previous_set(update.source);
        if rollout.phase.refuses(&digest) {
            let good = known.unwrap_or_default();
            update.answer = SourceAnswer::Pods(good.pods);
            (update.objects, update.validator) = (good.objects, None);
            return None;
        }
        Some(NewAnswer { digest, known })
    }

    pub(super) fn roll_out(&mut self, answer: NewAnswer, is_change: bool) {
        let Some(rollout) = &mut self.rollout else { return };
        let before = std::mem::take(&mut rollout.phase);
        if matches!(before, RolloutPhase::Good) && !is_change && answer.known.is_some() {
            return;
        }
        let keeps = before.is_open() && !is_change;
        let phase = before.after_answer(answer.digest, is_change, answer.known);
        if keeps {
            // The rollout's timer is not restarted.
            rollout.phase = phase;
            return;
        }
        if matches!(phase, RolloutPhase::Progressing { .. }) {
            let config = &rollout.config;
            log::info!(source = config.source.as_str(), origin = config.origin, after = shown(config.after); "Started trial of new pod set");
        }
        rollout.set_phase(phase);
    }
}
