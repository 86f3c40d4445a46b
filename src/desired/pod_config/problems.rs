//! What is wrong with the sources: said once when it appears and once when it is gone.

use std::collections::{BTreeMap, BTreeSet};

use super::PodConfig;
use crate::desired::local_objects::ObjectFinding;
use crate::desired::merge::SetFinding;
use crate::model::ordered::Ordered as _;
use crate::model::source::SourceProblem;
use crate::model::types::{PodSource, Timestamp};
use crate::pod::events::EventType;

/// Event and problem reason of a pod that is dropped.
const FAILED_VALIDATION: &str = "FailedValidation";

/// Log lines about the problems of one update; a directory of thousands of broken files must not flood the log.
const LOGGED_PROBLEMS: usize = 20;

impl PodConfig {
    /// Findings of the merge are problems of the source too; a known one keeps its first time.
    pub(super) fn note_findings(
        &self,
        source: PodSource,
        findings: Vec<SetFinding>,
        now: Timestamp,
    ) -> Vec<SourceProblem> {
        let known = self.known_problems(source);
        findings
            .into_iter()
            .map(|finding| {
                let since = known.get(&(finding.origin.as_str(), finding.message.as_str())).copied();
                if since.is_none() {
                    self.events.event(
                        &finding.pod,
                        None,
                        EventType::Warning,
                        FAILED_VALIDATION,
                        &finding.message,
                    );
                }
                SourceProblem {
                    since: since.unwrap_or(now),
                    origin: finding.origin,
                    reason: FAILED_VALIDATION.to_owned(),
                    message: finding.message,
                    pod: String::new(),
                }
            })
            .collect()
    }

    /// The same for objects, which have no events of their own.
    pub(super) fn note_object_findings(
        &self,
        source: PodSource,
        findings: Vec<ObjectFinding>,
        now: Timestamp,
    ) -> Vec<SourceProblem> {
        let known = self.known_problems(source);
        let problem = |finding: ObjectFinding| SourceProblem {
            since: known.get(&(finding.origin.as_str(), finding.message.as_str())).copied().unwrap_or(now),
            origin: finding.origin,
            reason: FAILED_VALIDATION.to_owned(),
            message: finding.message,
            pod: String::new(),
        };
        findings.into_iter().map(problem).collect()
    }

    /// Since when each problem of a source is known.
    fn known_problems(&self, source: PodSource) -> BTreeMap<(&str, &str), Timestamp> {
        let known = self.views.get(&source).map(|view| view.problems.as_slice()).unwrap_or_default();
        known.iter().map(|problem| (identity(problem), problem.since)).into_map()
    }

    pub(super) async fn publish_problems(&mut self, source: PodSource, problems: Vec<SourceProblem>) {
        self.report_problems(source, &problems);
        if let Err(error) = self.store.put_problems(source, &problems).await {
            log::debug!(source = source.as_str(), err:% = error; "Failed to store source problems");
        }
        self.views.entry(source).or_default().problems = problems;
    }

    /// Says each problem once when it appears and once when nothing is wrong with its origin any more. The one place that
    /// logs them.
    fn report_problems(&self, source: PodSource, problems: &[SourceProblem]) {
        let before = self.views.get(&source).map(|view| view.problems.as_slice()).unwrap_or_default();
        let known: BTreeSet<_> = before.iter().map(identity).into_set();
        let new: Vec<_> = problems.iter().filter(|problem| !known.contains(&identity(problem))).collect();
        for problem in new.iter().take(LOGGED_PROBLEMS) {
            log::error!(source = source.as_str(), origin = problem.origin, reason = problem.reason, err = problem.message; "Problem with a pod source");
            let text = format!("{}: {}", problem.origin, problem.message);
            let pod =
                problem.pod.split_once('/').and_then(|(namespace, name)| self.find_pod(namespace, name));
            match pod {
                Some((_, pod)) => {
                    let pod = pod.pod.pod_ref();
                    self.events.event(&pod, None, EventType::Warning, &problem.reason, &text);
                }
                None => self.events.node_event(EventType::Warning, &problem.reason, &text),
            }
        }
        if new.len() > LOGGED_PROBLEMS {
            log::error!(source = source.as_str(), more = new.len() - LOGGED_PROBLEMS; "More problems with a \
                 pod source, see agent status for all");
        }
        let broken: BTreeSet<_> = problems.iter().map(|problem| problem.origin.as_str()).into_set();
        let were_broken: BTreeSet<_> = before.iter().map(|problem| problem.origin.as_str()).into_set();
        let mended: Vec<_> = were_broken.difference(&broken).collect();
        for origin in mended.iter().take(LOGGED_PROBLEMS) {
            log::info!(source = source.as_str(), origin = **origin; "Problem with a pod source is resolved");
        }
        if mended.len() > LOGGED_PROBLEMS {
            log::info!(source = source.as_str(), more = mended.len() - LOGGED_PROBLEMS; "More problems with \
                 a pod source are resolved");
        }
    }
}

/// What makes two problems the same one.
fn identity(problem: &SourceProblem) -> (&str, &str) {
    (&problem.origin, &problem.message)
}
