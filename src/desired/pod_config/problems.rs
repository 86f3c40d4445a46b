//! Problems of the sources: each is reported once when it appears and once when it is resolved.

use std::collections::{BTreeMap, BTreeSet};

use super::PodConfig;
use crate::desired::merge::SetFinding;
use crate::model::ordered::Ordered as _;
use crate::model::source::SourceProblem;
use crate::model::types::{PodSource, Timestamp};
use crate::pod::events::EventType;

/// The event and problem reason of a rejected pod.
const FAILED_VALIDATION: &str = "FailedValidation";

/// The most log lines about the problems of one update; a directory of thousands of broken files must not
/// flood the log.
const LOGGED_PROBLEMS: usize = 20;

impl PodConfig {
    /// Findings of the merge and of the objects are problems of the source too; a known one keeps its time.
    /// Objects have no events of their own.
    pub(super) fn note_findings(
        &self,
        source: PodSource,
        of_pods: Vec<SetFinding>,
        now: Timestamp,
    ) -> Vec<SourceProblem> {
        let known = self.first_seen_times(source);
        let since = |origin: &str, message: &str| known.get(&(origin, message)).copied();
        for finding in of_pods.iter().filter(|finding| since(&finding.origin, &finding.message).is_none()) {
            self.events.event(&finding.pod, None, EventType::Warning, FAILED_VALIDATION, &finding.message);
        }
        let of_pods = of_pods.into_iter().map(|finding| (finding.origin, finding.message));
        let of_objects = self.object_sets.findings().into_iter();
        let of_objects = of_objects.map(|finding| (finding.origin, finding.message));
        let problem = |(origin, message): (String, String)| SourceProblem {
            since: since(&origin, &message).unwrap_or(now),
            origin,
            reason: FAILED_VALIDATION.to_owned(),
            message,
            pod: String::new(),
        };
        of_pods.chain(of_objects).map(problem).collect()
    }

    /// The time at which each current problem of a source was first seen.
    fn first_seen_times(&self, source: PodSource) -> BTreeMap<(&str, &str), Timestamp> {
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

    /// Reports each problem once when it appears, and once when its origin has no problems any more. Only
    /// this function logs them.
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

fn identity(problem: &SourceProblem) -> (&str, &str) {
    (&problem.origin, &problem.message)
}
