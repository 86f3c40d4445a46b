//! READY, STATUS and RESTARTS of a pod, computed as kubectl's printer does.
//!
//! Owns the columns of pods. Matches the table printer of Kubernetes 1.36.

use super::age;
use crate::model::api::pod::{ContainerState, ContainerStatus, Pod};
use crate::model::types::Timestamp;
use crate::pod::scheduling::gated_reason;

/// The columns of a pod's row besides its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodColumns {
    /// The number of ready containers of all: `1/2`.
    pub ready: String,
    pub status: String,
    /// The number of restarts and the time since the last one.
    pub restarts: String,
    pub age: String,
    pub ip: String,
    pub node: String,
}

/// The number of restarts and the time of the last one.
#[derive(Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, status: &ContainerStatus) {
        self.count += i64::from(status.restart_count);
        let finished = status.last_state.terminated.as_ref().and_then(|terminated| terminated.finished_at);
        self.last = self.last.max(finished);
    }

    fn show(self, now: Timestamp) -> String {
        match self.last {
            Some(last) if self.count != 0 && !last.is_zero() => {
                format!("{} ({} ago)", self.count, age::since(last, now))
            }
            _ => self.count.to_string(),
        }
    }
}

/// The progress of the init containers.
struct Init {
    /// The status text while an init container is pending or failing.
    holding: Option<String>,
    all: Restarts,
    sidecars: Restarts,
    ready_sidecars: usize,
}

#[must_use]
pub(crate) fn columns(pod: &Pod, now: Timestamp) -> PodColumns {
    let sidecars = pod.spec.init_containers.iter().filter(|container| is_always(container)).count();
    let total = pod.spec.containers.len() + sidecars;
    let init = init_progress(pod);
    let mut ready = init.ready_sidecars;
    let mut restarts = init.all;
    let mut status = first_of(&[&pod.status.reason, &pod.status.phase, "Pending"]);
    if let Some(gated) = gated_reason(&pod.status) {
        gated.clone_into(&mut status);
    }
    let initialized = condition_is_true(pod, "Initialized");
    if let Some(holding) = &init.holding {
        status.clone_from(holding);
    }
    if init.holding.is_none() || initialized {
        restarts = init.sidecars;
        let mut running = false;
        // From the last to the first, so that the reason of the first container that has one is shown.
        for container in pod.status.container_statuses.iter().rev() {
            restarts.add(container);
            if let Some(reason) = stopped_reason(&container.state) {
                status = reason;
            } else if container.ready && container.state.running.is_some() {
                running = true;
                ready += 1;
            }
        }
        if status == "Completed" && running {
            let word = if condition_is_true(pod, "Ready") { "Running" } else { "NotReady" };
            word.clone_into(&mut status);
        }
    }
    if pod.metadata.deletion_timestamp.is_some() {
        if pod.status.reason == "NodeLost" {
            "Unknown".clone_into(&mut status);
        } else if !matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut status);
        }
    }
    let ip = pod.status.pod_ips.first().map_or(pod.status.pod_ip.as_str(), |holder| &holder.ip);
    PodColumns {
        ready: format!("{ready}/{total}"),
        status,
        restarts: restarts.show(now),
        age: age::since_or_unknown(pod.metadata.creation_timestamp.or(pod.status.start_time), now),
        ip: first_of(&[ip, "<none>"]),
        node: first_of(&[&pod.spec.node_name, "<none>"]),
    }
}

fn init_progress(pod: &Pod) -> Init {
    let mut init =
        Init { holding: None, all: Restarts::default(), sidecars: Restarts::default(), ready_sidecars: 0 };
    let count = pod.spec.init_containers.len();
    for (position, status) in pod.status.init_container_statuses.iter().enumerate() {
        let sidecar = pod.spec.init_containers.iter().any(|c| c.name == status.name && is_always(c));
        init.all.add(status);
        if sidecar {
            init.sidecars.add(status);
        }
        let state = &status.state;
        if state.terminated.as_ref().is_some_and(|terminated| terminated.exit_code == 0) {
            continue;
        }
        if sidecar && status.started == Some(true) {
            init.ready_sidecars += usize::from(status.ready);
            continue;
        }
        let reason = match &state.waiting {
            Some(waiting) if waiting.reason == "PodInitializing" => None,
            _ => stopped_reason(state),
        };
        init.holding = Some(match reason {
            Some(reason) => format!("Init:{reason}"),
            None => format!("Init:{position}/{count}"),
        });
        break;
    }
    init
}

/// Why a container does not run, in one word. `None` while it runs, or when the reason is unknown.
fn stopped_reason(state: &ContainerState) -> Option<String> {
    if let Some(waiting) = &state.waiting
        && !waiting.reason.is_empty()
    {
        return Some(waiting.reason.clone());
    }
    let terminated = state.terminated.as_ref()?;
    Some(match (terminated.reason.as_str(), terminated.signal) {
        ("", 0) => format!("ExitCode:{}", terminated.exit_code),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    })
}

fn is_always(container: &crate::model::api::pod::Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn condition_is_true(pod: &Pod, type_: &str) -> bool {
    pod.status.conditions.iter().any(|condition| condition.type_ == type_ && condition.status == "True")
}

fn first_of(texts: &[&str]) -> String {
    texts.iter().find(|text| !text.is_empty()).copied().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::decode::decode;
    use serde_json::{Value, json};

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn check(what: &str, pod: Value, ready: &str, status: &str, restarts: &str) {
        let pod: Pod = decode(pod).unwrap().object;
        let columns = columns(&pod, NOW);
        assert_eq!(
            (&*columns.ready, &*columns.status, &*columns.restarts),
            (ready, status, restarts),
            "{what}"
        );
    }

    fn running(name: &str, ready: bool) -> Value {
        json!({"name": name, "ready": ready, "started": true, "state": {"running": {}}})
    }

    fn terminated(name: &str, code: i32, reason: &str) -> Value {
        json!({"name": name, "state": {"terminated": {"exitCode": code, "reason": reason}}})
    }

    fn waiting(name: &str, reason: &str) -> Value {
        json!({"name": name, "state": {"waiting": {"reason": reason}}})
    }

    fn pod(init: &[&str], phase: &str, init_statuses: &[Value], statuses: &[Value]) -> Value {
        let containers = |names: &[&str]| -> Vec<Value> {
            names
                .iter()
                .map(|name| match name.strip_prefix('+') {
                    Some(name) => json!({"name": name, "restartPolicy": "Always"}),
                    None => json!({"name": name}),
                })
                .collect()
        };
        json!({
            "spec": {"initContainers": containers(init), "containers": containers(&["a", "b"])},
            "status": {"phase": phase, "initContainerStatuses": init_statuses, "containerStatuses": statuses},
        })
    }

    #[test]
    fn the_status_column_is_kubectls() {
        check("no status yet", pod(&[], "", &[], &[]), "0/2", "Pending", "0");
        check(
            "running",
            pod(&[], "Running", &[], &[running("a", true), running("b", true)]),
            "2/2",
            "Running",
            "0",
        );
        check(
            "one unready",
            pod(&[], "Running", &[], &[running("a", true), running("b", false)]),
            "1/2",
            "Running",
            "0",
        );
        let crash = pod(&[], "Running", &[], &[waiting("a", "CrashLoopBackOff"), running("b", true)]);
        check("crash loop", crash, "1/2", "CrashLoopBackOff", "0");
        let two = pod(&[], "Pending", &[], &[waiting("a", "ErrImagePull"), waiting("b", "ImagePullBackOff")]);
        check("first container wins", two, "0/2", "ErrImagePull", "0");
        let done = [terminated("a", 0, "Completed"), terminated("b", 0, "Completed")];
        check("succeeded", pod(&[], "Succeeded", &[], &done), "0/2", "Completed", "0");
        let half = pod(&[], "Running", &[], &[terminated("a", 0, "Completed"), running("b", true)]);
        check("half done", half.clone(), "1/2", "NotReady", "0");
        let mut half_ready = half;
        half_ready["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
        check("half done, ready", half_ready, "1/2", "Running", "0");
        check("error", pod(&[], "Failed", &[], &[terminated("a", 1, "Error")]), "0/2", "Error", "0");
        check("exit code", pod(&[], "Failed", &[], &[terminated("a", 7, "")]), "0/2", "ExitCode:7", "0");
        let mut signal = terminated("a", 137, "");
        signal["state"]["terminated"]["signal"] = json!(9);
        check("signal", pod(&[], "Failed", &[], &[signal]), "0/2", "Signal:9", "0");
        let mut evicted = pod(&[], "Failed", &[], &[]);
        evicted["status"]["reason"] = json!("Evicted");
        check("evicted", evicted, "0/2", "Evicted", "0");
    }

    #[test]
    fn init_containers_show_their_progress_until_they_are_done() {
        let init = ["i", "j"];
        let creating = [waiting("a", "PodInitializing"), waiting("b", "PodInitializing")];
        let show = |statuses: &[Value], status: &str| {
            check(status, pod(&init, "Pending", statuses, &creating), "0/2", status, "0");
        };
        show(&[waiting("i", "PodInitializing"), waiting("j", "PodInitializing")], "Init:0/2");
        show(&[running("i", false), waiting("j", "PodInitializing")], "Init:0/2");
        show(&[terminated("i", 0, "Completed"), running("j", false)], "Init:1/2");
        show(&[terminated("i", 1, "Error")], "Init:Error");
        show(&[terminated("i", 3, "")], "Init:ExitCode:3");
        show(&[waiting("i", "CrashLoopBackOff")], "Init:CrashLoopBackOff");
        let done = [terminated("i", 0, "Completed"), terminated("j", 0, "Completed")];
        show(&done, "PodInitializing");
    }

    #[test]
    fn sidecars_count_as_containers() {
        let up = [running("a", true), running("b", true)];
        check("sidecar up", pod(&["+s"], "Running", &[running("s", true)], &up), "3/3", "Running", "0");
        check("sidecar unready", pod(&["+s"], "Running", &[running("s", false)], &up), "2/3", "Running", "0");
        let crashing = pod(&["+s"], "Pending", &[waiting("s", "CrashLoopBackOff")], &[]);
        check("sidecar crashes", crashing, "0/3", "Init:CrashLoopBackOff", "0");
    }

    #[test]
    fn a_pod_being_deleted_terminates_unless_it_has_ended() {
        let mut pod = pod(&[], "Running", &[], &[running("a", true)]);
        pod["metadata"] = json!({"deletionTimestamp": "2023-11-14T22:13:20Z"});
        check("terminating", pod.clone(), "1/2", "Terminating", "0");
        pod["status"]["phase"] = json!("Failed");
        check("failed", pod.clone(), "1/2", "Failed", "0");
        pod["status"]["reason"] = json!("NodeLost");
        check("lost", pod, "1/2", "Unknown", "0");
    }

    #[test]
    fn restarts_tell_when_the_last_one_was() {
        let mut a = running("a", true);
        a["restartCount"] = json!(3);
        a["lastState"] = json!({"terminated": {"exitCode": 1, "finishedAt": "2023-11-14T22:08:20Z"}});
        let mut b = running("b", true);
        b["restartCount"] = json!(1);
        check("both", pod(&[], "Running", &[], &[a, b.clone()]), "2/2", "Running", "4 (5m ago)");
        check("no time", pod(&[], "Running", &[], &[b]), "1/2", "Running", "1");
        let mut i = terminated("i", 0, "Completed");
        i["restartCount"] = json!(2);
        let finished = pod(&["i"], "Running", &[i], &[running("a", true)]);
        check("restarts of finished init containers no longer count", finished, "1/2", "Running", "0");
    }
}
