//! The tables of Deployments, Jobs and their kin.
//!
//! Owns their columns and cells (upstream: `printDeployment`, `printReplicaSet`, `printStatefulSet`, `printDaemonSet`,
//! `printJob`, `printCronJob`, `printControllerRevision`). Pure.

use serde_json::{Value, json};

use super::super::{age, text};
use super::cell::{Cell, Table, count, or_none, selector, words};
use super::{AGE, Column, NAME};
use crate::model::types::Timestamp;

const SELECTOR: (Column, Cell) =
    (("Selector", "Labels of the pods.", true), Cell::Of(|of| json!(selector(&of["spec"]["selector"]))));
const CONTAINERS: (Column, Cell) = (
    ("Containers", "Names of the containers.", true),
    Cell::Of(|of| templated(of, "/spec/template", "/name")),
);
const IMAGES: (Column, Cell) =
    (("Images", "Images of the containers.", true), Cell::Of(|of| templated(of, "/spec/template", "/image")));
const READY: (Column, Cell) =
    (("Ready", "Ready pods.", false), Cell::Of(|of| count(of, "/status/readyReplicas")));
const READY_OF: (Column, Cell) =
    (("Ready", "Ready pods of those that are wanted.", false), Cell::Of(ready_of));

pub(super) const DEPLOYMENTS: Table = &[
    (NAME, Cell::Name),
    READY_OF,
    (
        ("Up-to-date", "Pods of the newest template.", false),
        Cell::Of(|of| count(of, "/status/updatedReplicas")),
    ),
    (("Available", "Available pods.", false), Cell::Of(|of| count(of, "/status/availableReplicas"))),
    (AGE, Cell::Age),
    CONTAINERS,
    IMAGES,
    SELECTOR,
];
pub(super) const REPLICA_SETS: Table = &[
    (NAME, Cell::Name),
    (("Desired", "Pods that are wanted.", false), Cell::Of(|of| count(of, "/spec/replicas"))),
    (("Current", "Pods that exist.", false), Cell::Of(|of| count(of, "/status/replicas"))),
    READY,
    (AGE, Cell::Age),
    CONTAINERS,
    IMAGES,
    SELECTOR,
];
pub(super) const STATEFUL_SETS: Table = &[(NAME, Cell::Name), READY_OF, (AGE, Cell::Age), CONTAINERS, IMAGES];
pub(super) const DAEMON_SETS: Table = &[
    (NAME, Cell::Name),
    (("Desired", "Pods that are wanted.", false), Cell::Of(|of| count(of, "/status/desiredNumberScheduled"))),
    (("Current", "Pods that exist.", false), Cell::Of(|of| count(of, "/status/currentNumberScheduled"))),
    (("Ready", "Ready pods.", false), Cell::Of(|of| count(of, "/status/numberReady"))),
    (
        ("Up-to-date", "Pods of the newest template.", false),
        Cell::Of(|of| count(of, "/status/updatedNumberScheduled")),
    ),
    (("Available", "Available pods.", false), Cell::Of(|of| count(of, "/status/numberAvailable"))),
    (("Node Selector", "Labels of the nodes.", false), Cell::Of(node_selector)),
    (AGE, Cell::Age),
    CONTAINERS,
    IMAGES,
    SELECTOR,
];
pub(super) const JOBS: Table = &[
    (NAME, Cell::Name),
    (("Status", "Status of the Job.", false), Cell::Of(|of| json!(job_status(of)))),
    (("Completions", "Pods that succeeded, of those that must.", false), Cell::Of(completions)),
    (("Duration", "How long it ran.", false), Cell::Timed(duration)),
    (AGE, Cell::Age),
    CONTAINERS,
    IMAGES,
    SELECTOR,
];
pub(super) const CRON_JOBS: Table = &[
    (NAME, Cell::Name),
    (("Schedule", "When it starts Jobs.", false), Cell::At("/spec/schedule", "")),
    (("Timezone", "Time zone of the schedule.", false), Cell::At("/spec/timeZone", "<none>")),
    (("Suspend", "Whether it is suspended.", false), Cell::Of(suspended)),
    (("Active", "Jobs that run.", false), Cell::Of(active)),
    (("Last Schedule", "Time since it last started a Job.", false), Cell::Timed(last_schedule)),
    (AGE, Cell::Age),
    (CONTAINERS.0, Cell::Of(|of| templated(of, JOB_POD, "/name"))),
    (IMAGES.0, Cell::Of(|of| templated(of, JOB_POD, "/image"))),
    (SELECTOR.0, Cell::Of(|of| json!(selector(&of["spec"]["jobTemplate"]["spec"]["selector"])))),
];
pub(super) const REVISIONS: Table = &[
    (NAME, Cell::Name),
    (("Controller", "The object that it is a version of.", false), Cell::Of(controller)),
    (("Revision", "Number of the version.", false), Cell::Of(|of| count(of, "/revision"))),
    (AGE, Cell::Age),
];

/// The template of a `CronJob`'s pods.
const JOB_POD: &str = "/spec/jobTemplate/spec/template";

fn templated(object: &Value, template: &str, field: &str) -> Value {
    let containers = object.pointer(template).and_then(|template| template.pointer("/spec/containers"));
    json!(words(containers.and_then(Value::as_array).into_iter().flatten(), field).join(","))
}

fn ready_of(object: &Value) -> Value {
    json!(format!("{}/{}", count(object, "/status/readyReplicas"), count(object, "/spec/replicas")))
}

fn node_selector(set: &Value) -> Value {
    let labels = set.pointer("/spec/template/spec/nodeSelector").and_then(Value::as_object);
    let shown = |(name, value): (&String, &Value)| format!("{name}={}", value.as_str().unwrap_or_default());
    json!(or_none(labels.into_iter().flatten().map(shown).collect::<Vec<_>>().join(",")))
}

fn is_true(job: &Value, kind: &str) -> bool {
    let conditions = job.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == kind && condition["status"] == "True")
}

fn job_status(job: &Value) -> &'static str {
    let goes = !text(job, "/metadata/deletionTimestamp").is_empty();
    match () {
        () if is_true(job, "Complete") => "Complete",
        () if is_true(job, "Failed") => "Failed",
        () if goes => "Terminating",
        () if is_true(job, "Suspended") => "Suspended",
        () if is_true(job, "FailureTarget") => "FailureTarget",
        () if is_true(job, "SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

fn completions(job: &Value) -> Value {
    let succeeded = count(job, "/status/succeeded");
    let parallelism = job.pointer("/spec/parallelism").and_then(Value::as_i64).unwrap_or_default();
    json!(match job.pointer("/spec/completions").and_then(Value::as_i64) {
        Some(completions) => format!("{succeeded}/{completions}"),
        None if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        None => format!("{succeeded}/1"),
    })
}

fn duration(job: &Value, now: Timestamp) -> Value {
    let at = |place: &str| Timestamp::parse_rfc3339(text(job, place));
    json!(match at("/status/startTime") {
        Some(start) => age::since(start, at("/status/completionTime").unwrap_or(now)),
        None => String::new(),
    })
}

fn suspended(cron_job: &Value) -> Value {
    let is_suspended = cron_job.pointer("/spec/suspend").and_then(Value::as_bool).unwrap_or_default();
    json!(if is_suspended { "True" } else { "False" })
}

fn active(cron_job: &Value) -> Value {
    json!(cron_job.pointer("/status/active").and_then(Value::as_array).map_or(0, Vec::len))
}

fn last_schedule(cron_job: &Value, now: Timestamp) -> Value {
    let last = Timestamp::parse_rfc3339(text(cron_job, "/status/lastScheduleTime"));
    json!(last.map_or_else(|| "<none>".to_owned(), |last| age::since(last, now)))
}

fn controller(revision: &Value) -> Value {
    let owners = revision.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let Some(owner) = owners.into_iter().flatten().find(|owner| owner["controller"] == true) else {
        return json!("<none>");
    };
    let group = text(owner, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
    let dot = if group.is_empty() { "" } else { "." };
    json!(format!("{}{dot}{group}/{}", text(owner, "/kind").to_lowercase(), text(owner, "/name")))
}

#[cfg(test)]
mod tests {
    use super::super::kinds::{cells, table};
    use super::*;
    use crate::model::objects::ObjectKind;

    fn row(kind: ObjectKind, object: &Value) -> Vec<String> {
        let now = Timestamp::parse_rfc3339("2026-01-02T00:00:00Z").unwrap();
        let cells = cells(table(kind), object, now);
        cells.iter().map(|cell| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned)).collect()
    }

    #[test]
    fn rows_of_workloads_read_as_an_apiservers() {
        let metadata = json!({"name": "w", "creationTimestamp": "2026-01-01T00:00:00Z"});
        let pods = json!({"spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "j"}],
            "nodeSelector": {"disk": "ssd"}}});
        let selector = json!({"matchLabels": {"app": "w"}});
        let spec = json!({"replicas": 3, "selector": selector, "template": pods});
        let status = json!({"replicas": 3, "readyReplicas": 2, "updatedReplicas": 1});
        let object = json!({"metadata": metadata, "spec": spec, "status": status});
        let tail = ["24h", "a,b", "i,j", "app=w"];
        for (kind, head) in [
            (ObjectKind::Deployment, &["w", "2/3", "1", "0"][..]),
            (ObjectKind::ReplicaSet, &["w", "3", "3", "2"]),
        ] {
            assert_eq!(row(kind, &object), [head, &tail].concat(), "{kind:?}");
        }
        assert_eq!(row(ObjectKind::StatefulSet, &object), ["w", "2/3", "24h", "a,b", "i,j"]);
        let status = json!({"desiredNumberScheduled": 1, "numberReady": 1});
        let set = json!({"metadata": metadata, "spec": spec, "status": status});
        assert_eq!(
            row(ObjectKind::DaemonSet, &set),
            [&["w", "1", "0", "1", "0", "0", "disk=ssd"][..], &tail].concat()
        );
    }

    #[test]
    fn rows_of_jobs_read_as_an_apiservers() {
        let job = |spec: Value, status: Value| {
            row(ObjectKind::Job, &json!({"spec": spec, "status": status}))[1..4].join(" ")
        };
        let condition = |kind: &str| json!([{"type": kind, "status": "True"}]);
        let start = "2026-01-01T23:00:00Z";
        for (spec, status, expected) in [
            (json!({"completions": 5}), json!({"succeeded": 2, "startTime": start}), "Running 2/5 60m"),
            (json!({"parallelism": 3}), json!({}), "Running 0/1 of 3 "),
            (
                json!({"parallelism": 1}),
                json!({"conditions": condition("Complete"), "startTime": start,
                    "completionTime": "2026-01-01T23:00:07Z"}),
                "Complete 0/1 7s",
            ),
            (json!({"completions": 1}), json!({"conditions": condition("Suspended")}), "Suspended 0/1 "),
            (json!({"completions": 1}), json!({"conditions": condition("Failed")}), "Failed 0/1 "),
        ] {
            assert_eq!(job(spec, status), expected);
        }
        let spec = json!({"schedule": "@daily", "jobTemplate": {"spec": {"template": {"spec": {
            "containers": [{"name": "a", "image": "i"}]}}}}});
        let cron = json!({"metadata": {"name": "c", "creationTimestamp": start}, "spec": spec,
            "status": {"active": [{}], "lastScheduleTime": "2026-01-01T23:59:00Z"}});
        assert_eq!(
            row(ObjectKind::CronJob, &cron),
            ["c", "@daily", "<none>", "False", "1", "60s", "60m", "a", "i", "<none>"]
        );
        let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "controller": true});
        let revision = json!({"metadata": {"name": "r", "creationTimestamp": start, "ownerReferences": [owner]},
            "revision": 4});
        assert_eq!(row(ObjectKind::ControllerRevision, &revision), ["r", "statefulset.apps/db", "4", "60m"]);
    }
}
