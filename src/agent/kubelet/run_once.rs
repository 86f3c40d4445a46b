//! `--runonce`: start every pod of the sources, wait until each runs or has ended, report, leave them
//! running.
//!
//! Owns the conditions for that. Upstream removed run-once; reference 4.1 has its history, design 6 the
//! contract here.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::agent::kubelet::report::LoopView;
use crate::model::api::pod::Pod;
use crate::pod::admission::Admission;

use crate::model::containers::is_terminal;
use crate::model::observed::ObservedSandbox;
use crate::model::types::PodUid;
use crate::pod::admission::rules::is_rejected;
use crate::pod::scheduling::is_gated;
use crate::pod::status::StatusManager;
use crate::pod::volume::unshare_mounts_below;
use crate::pod::workers::has_only_object;
use crate::runtime::Runtime;

/// A pod that has been running this long has started: a program that fails at once has failed by then.
const SETTLE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug)]
pub(crate) struct RunOnceConfig {
    /// `--runonce-timeout`.
    pub timeout: Duration,
    /// `--runonce-wait=completed`: pods that can complete have to.
    pub wait_for_completion: bool,
}

#[derive(Clone, Debug)]
pub struct RunOnceOutcome {
    /// Every pod with its last status.
    pub pods: Vec<Pod>,
    /// The failures, one line each; empty means exit code 0.
    pub failures: Vec<String>,
}

impl RunOnceOutcome {
    /// Restores the machine's state once every pod has ended and the runtime runs none, of any agent:
    /// `clearing` removes the cgroups above the pods'.
    pub(crate) async fn clear<R: Runtime>(
        &self,
        runtime: &R,
        clearing: impl Future<Output = ()>,
        root_dir: &Path,
    ) {
        let has_ended = |pods: &[ObservedSandbox]| pods.iter().all(|sandbox| !sandbox.ready);
        let is_left = self.pods.iter().any(|pod| !is_terminal(&pod.status));
        if !is_left && runtime.list_sandboxes(None).await.is_ok_and(|sandboxes| has_ended(&sandboxes)) {
            clearing.await;
            unshare_mounts_below(root_dir).await;
        }
    }
}

/// What a pod's status means for run-once.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RunOnceVerdict {
    /// Not finished; the text is what it waits for.
    Starting(String),
    Running,
    Succeeded,
    Failed(String),
    Rejected(String),
}

/// Waits until every pod has reached its target or the time is up.
pub(crate) async fn wait(
    config: RunOnceConfig,
    view: Rc<LoopView>,
    statuses: Rc<StatusManager>,
    admission: Admission,
) -> RunOnceOutcome {
    let deadline = tokio::time::Instant::now() + config.timeout;
    let mut view_changes = view.watch();
    let mut status_changes = statuses.watch();
    let mut running_since: BTreeMap<PodUid, tokio::time::Instant> = BTreeMap::new();
    loop {
        let now = tokio::time::Instant::now();
        let pods = statuses.snapshot();
        let mut settled_at = None;
        let mut open = !all_started(&view, &pods);
        for pod in &pods {
            match classify(pod) {
                RunOnceVerdict::Starting(_) => {
                    running_since.remove(&pod.metadata.uid);
                    open = true;
                }
                RunOnceVerdict::Running => {
                    let since = *running_since.entry(pod.metadata.uid.clone()).or_insert(now);
                    let settled = since + SETTLE;
                    settled_at = settled_at.max((settled > now).then_some(settled));
                    open |= config.wait_for_completion && pod.spec.restart_policy != "Always";
                }
                // It was admitted a moment ago, or a pod that has ended is about to free its resources.
                RunOnceVerdict::Rejected(_) if admission.holds(&pod.metadata.uid) => open = true,
                RunOnceVerdict::Rejected(_)
                    if pods.iter().any(|other| holds_resources(other, &admission)) =>
                {
                    settled_at = settled_at.max(Some(now + SETTLE));
                }
                // Its resources on the node are about to be freed.
                RunOnceVerdict::Succeeded | RunOnceVerdict::Failed(_) if holds_resources(pod, &admission) => {
                    settled_at = settled_at.max(Some(now + SETTLE));
                }
                RunOnceVerdict::Rejected(_) | RunOnceVerdict::Succeeded | RunOnceVerdict::Failed(_) => {}
            }
        }
        let timed_out = now >= deadline;
        if timed_out || (!open && settled_at.is_none()) {
            return outcome(config, &view, pods, timed_out);
        }
        // Dropping any arm is safe: the state is read again in each round.
        tokio::select! {
            biased;
            _ = view_changes.changed() => {}
            _ = status_changes.changed() => {}
            () = tokio::time::sleep_until(settled_at.unwrap_or(deadline).min(deadline)) => {}
        }
    }
}

/// Each source has answered, each desired pod has a status, and that status is current: the runtime has
/// answered.
fn all_started(view: &LoopView, pods: &[Pod]) -> bool {
    let wanted: usize = view.sources().values().map(|source| source.pods).sum();
    let known = pods.iter().filter(|pod| !is_terminating(pod)).count();
    view.all_sources_reported() && known >= wanted && (pods.is_empty() || view.runtime_is_up())
}

/// The pod is no longer desired and has not been removed yet.
fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// It has ended and its resources are not free yet.
fn holds_resources(pod: &Pod, admission: &Admission) -> bool {
    is_terminal(&pod.status) && admission.holds(&pod.metadata.uid)
}

fn outcome(config: RunOnceConfig, view: &LoopView, pods: Vec<Pod>, timed_out: bool) -> RunOnceOutcome {
    let mut failures = Vec::new();
    for (source, state) in view.sources() {
        if timed_out && !state.seen && state.problems.is_empty() {
            failures.push(format!("source {source}: no response after {}s", config.timeout.as_secs()));
        }
        failures.extend(state.problems.iter().map(|problem| {
            let named = problem.message.starts_with(&problem.origin);
            if named { problem.message.clone() } else { format!("{}: {}", problem.origin, problem.message) }
        }));
    }
    for pod in &pods {
        let name = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
        match classify(pod) {
            RunOnceVerdict::Failed(why) | RunOnceVerdict::Rejected(why) => {
                failures.push(format!("pod {name}: {why}"));
            }
            RunOnceVerdict::Starting(why) => {
                failures.push(format!("pod {name}: not running after {}s: {why}", config.timeout.as_secs()));
            }
            RunOnceVerdict::Running
                if timed_out && config.wait_for_completion && pod.spec.restart_policy != "Always" =>
            {
                failures.push(format!("pod {name}: still running after {}s", config.timeout.as_secs()));
            }
            RunOnceVerdict::Running | RunOnceVerdict::Succeeded => {}
        }
    }
    if timed_out && let Some(trouble) = view.runtime_trouble() {
        failures.insert(0, format!("container runtime is down: {trouble}"));
    }
    RunOnceOutcome { pods, failures }
}

fn classify(pod: &Pod) -> RunOnceVerdict {
    let status = &pod.status;
    // Its object remains until its finalizers are removed.
    if has_only_object(pod) {
        return RunOnceVerdict::Succeeded;
    }
    if is_terminating(pod) {
        return RunOnceVerdict::Starting("the pod is no longer defined and still terminating".to_owned());
    }
    match status.phase.as_str() {
        "Succeeded" => return RunOnceVerdict::Succeeded,
        _ if is_rejected(status) => {
            return RunOnceVerdict::Rejected(format!("{}: {}", status.reason, status.message));
        }
        "Failed" => return RunOnceVerdict::Failed(why_failed(pod)),
        _ if is_gated(&pod.spec) => {
            return RunOnceVerdict::Failed(
                "the pod has schedulingGates; remove them from the manifest".to_owned(),
            );
        }
        _ => {}
    }
    let names = pod.spec.containers.iter().map(|container| container.name.as_str());
    for name in names {
        let state =
            status.container_statuses.iter().find(|status| status.name == name).map(|status| &status.state);
        let Some(state) = state else {
            return RunOnceVerdict::Starting("container states are not known yet".to_owned());
        };
        if state.running.is_some() {
            continue;
        }
        if let Some(ended) = &state.terminated {
            // One of several containers of a pod that does not restart it: the pod has not ended with it.
            if pod.spec.restart_policy != "Always" && ended.exit_code == 0 {
                continue;
            }
            return RunOnceVerdict::Starting(format!(
                "container {name} exited with code {}",
                ended.exit_code
            ));
        }
        let waiting = state.waiting.clone().unwrap_or_default();
        let why = format!("container {name}: {}: {}", waiting.reason, waiting.message);
        let init = status.init_container_statuses.iter().find_map(|init| {
            let waiting = init.state.waiting.as_ref().filter(|waiting| !waiting.message.is_empty())?;
            Some(format!("init container {}: {}: {}", init.name, waiting.reason, waiting.message))
        });
        return match waiting.reason.as_str() {
            // Waiting does not fix an invalid image name or an image that may not be pulled.
            "InvalidImageName" | "ErrImageNeverPull" => RunOnceVerdict::Failed(why),
            _ => RunOnceVerdict::Starting(init.unwrap_or(why).trim_end_matches(": ").to_owned()),
        };
    }
    RunOnceVerdict::Running
}

fn why_failed(pod: &Pod) -> String {
    let status = &pod.status;
    if !status.reason.is_empty() || !status.message.is_empty() {
        return format!("{}: {}", status.reason, status.message);
    }
    let ended =
        status.init_container_statuses.iter().chain(&status.container_statuses).find_map(|container| {
            let ended = container.state.terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
            Some(format!(
                "container {} exited with code {} ({})",
                container.name, ended.exit_code, ended.reason
            ))
        });
    ended.unwrap_or_else(|| "failed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::decode::decode;
    use serde_json::json;

    fn pod(policy: &str, status: &serde_json::Value) -> Pod {
        let raw = json!({
            "metadata": {"name": "p", "namespace": "default"},
            "spec": {"restartPolicy": policy, "containers": [{"name": "a"}, {"name": "b"}]},
            "status": status,
        });
        decode(raw).unwrap().object
    }

    fn container(name: &str, state: &serde_json::Value) -> serde_json::Value {
        json!({"name": name, "state": state})
    }

    #[test]
    fn a_pod_runs_when_every_container_does() {
        let running = json!({"running": {}});
        let both = json!({"phase": "Running", "containerStatuses": [container("a", &running), container("b", &running)]});
        assert_eq!(classify(&pod("Always", &both)), RunOnceVerdict::Running);
        let crashing = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}});
        let one = json!({"phase": "Running", "containerStatuses": [container("a", &running), container("b", &crashing)]});
        assert_eq!(
            classify(&pod("Always", &one)),
            RunOnceVerdict::Starting("container b: CrashLoopBackOff: back-off 10s".to_owned())
        );
    }

    #[test]
    fn a_pod_that_ended_counts_by_how_it_ended() {
        assert_eq!(classify(&pod("Never", &json!({"phase": "Succeeded"}))), RunOnceVerdict::Succeeded);
        let failed = json!({"phase": "Failed", "containerStatuses": [
            container("a", &json!({"terminated": {"exitCode": 3, "reason": "Error"}})),
        ]});
        assert_eq!(
            classify(&pod("Never", &failed)),
            RunOnceVerdict::Failed("container a exited with code 3 (Error)".to_owned())
        );
    }

    #[test]
    fn run_once_waits_for_a_terminating_pod_despite_its_status() {
        let mut going = pod("Always", &json!({"phase": "Succeeded"}));
        going.metadata.deletion_timestamp = Some(crate::model::types::Timestamp::from_secs(1));
        assert!(matches!(classify(&going), RunOnceVerdict::Starting(_)));
    }

    #[test]
    fn run_once_reports_a_rejected_pod_as_rejected() {
        let status = json!({"phase": "Pending", "reason": "OutOfcpu", "message": "Pod was rejected: no cpu"});
        assert_eq!(
            classify(&pod("Always", &status)),
            RunOnceVerdict::Rejected("OutOfcpu: Pod was rejected: no cpu".to_owned())
        );
    }

    #[test]
    fn what_waiting_cannot_mend_fails_at_once() {
        let hopeless = json!({"waiting": {"reason": "InvalidImageName", "message": "bad"}});
        let status = json!({"phase": "Pending", "containerStatuses": [container("a", &hopeless)]});
        assert_eq!(
            classify(&pod("Always", &status)),
            RunOnceVerdict::Failed("container a: InvalidImageName: bad".to_owned())
        );
    }
}
