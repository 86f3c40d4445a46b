//! Steps, conditions and messages of resizes.

use serde_json::{Value, json};

use super::*;
use crate::pod::plan::{PodPlan, compute_pod_plan};

fn pod(containers: &Value) -> Pod {
    let raw = json!({"metadata": {"name": "p", "namespace": "default", "uid": "p", "generation": 2},
        "spec": {"restartPolicy": "Always", "hostNetwork": true, "containers": containers}});
    decode(raw).unwrap().object
}

fn one(resources: &Value) -> Pod {
    pod(&json!([{"name": "c", "image": "i", "resources": resources}]))
}

fn requirements(raw: &Value) -> ResourceRequirements {
    decode(raw.clone()).unwrap().object
}

/// Every container runs, each as `made` says.
fn running(made: &Pod) -> (ObservedPod, Actuated) {
    let containers = made.spec.containers.iter().map(|container| ObservedContainer {
        id: format!("id-{}", container.name).as_str().into(),
        name: container.name.as_str().into(),
        sandbox: "s".into(),
        state: ContainerStateKind::Running,
        hash: crate::model::containers::container_hash(container),
        annotations: [(CONTAINER_RESOURCES.to_owned(), annotation(container))].into(),
        ..ObservedContainer::default()
    });
    let sandbox = crate::model::observed::ObservedSandbox {
        id: "s".into(),
        ready: true,
        ..crate::model::observed::ObservedSandbox::default()
    };
    let observed = ObservedPod { sandboxes: vec![sandbox], containers: containers.collect() };
    let known = observed.containers.iter();
    let actuated = known.filter_map(|record| Some((record.id.clone(), remembered(record, None)?))).collect();
    (observed, actuated)
}

fn plan(made: &Pod, wanted: &Pod) -> PodPlan {
    let (observed, actuated) = running(made);
    compute_pod_plan(wanted, &observed, &PlanContext { actuated, ..PlanContext::default() })
}

#[test]
fn memory_changes_before_cpu_and_what_shrinks_before_what_grows() {
    let both =
        |a: &Value, b: &Value| pod(&json!([{"name": "a", "resources": a}, {"name": "b", "resources": b}]));
    let made = both(
        &json!({"limits": {"cpu": "1", "memory": "1Gi"}}),
        &json!({"limits": {"cpu": "2", "memory": "2Gi"}}),
    );
    let wanted = both(
        &json!({"limits": {"cpu": "2", "memory": "2Gi"}}),
        &json!({"limits": {"cpu": "1", "memory": "1Gi"}}),
    );
    let expected = "\
resize memory of container b (id-b)
resize memory of container a (id-a)
resize cpu of container b (id-b)
resize cpu of container a (id-a)
";
    let plan_to = plan(&made, &wanted);
    assert_eq!(plan_to.to_string(), expected);
    let Action::ResizeContainer(first) = &plan_to.actions[0] else { panic!("{plan_to}") };
    assert_eq!(first.resources, requirements(&json!({"limits": {"cpu": "2", "memory": "1Gi"}})));
    assert_eq!(plan(&made, &made), PodPlan::default(), "what is as wanted plans nothing");
}

#[test]
fn a_resource_whose_policy_says_so_restarts_the_container() {
    let with = |cpu: &str, memory: &str| {
        pod(
            &json!([{"name": "c", "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}],
            "resources": {"requests": {"cpu": cpu, "memory": memory}}}]),
        )
    };
    assert_eq!(
        plan(&with("1", "1Gi"), &with("1", "2Gi")).to_string(),
        "stop within 30s: c (id-c: Container c resize requires restart)\nstart Regular container c, attempt 1\n"
    );
    assert_eq!(plan(&with("1", "1Gi"), &with("2", "1Gi")).to_string(), "resize cpu of container c (id-c)\n");
}

#[test]
fn unknown_resources_stay_and_status_beats_annotation() {
    let made = one(&json!({"limits": {"cpu": "1"}}));
    let (mut observed, _) = running(&made);
    let record = &mut observed.containers[0];
    let status: PodStatus = decode(json!({"containerStatuses": [
        {"name": "c", "containerID": "fake://id-c", "resources": {"limits": {"cpu": "3"}}}]}))
    .unwrap()
    .object;
    assert_eq!(remembered(record, Some(&status)), Some(requirements(&json!({"limits": {"cpu": "3"}}))));
    assert_eq!(remembered(record, None), Some(requirements(&json!({"limits": {"cpu": "1"}}))));
    record.annotations.clear();
    assert_eq!(remembered(record, None), None);
    let wanted = one(&json!({"limits": {"cpu": "2"}}));
    assert_eq!(compute_pod_plan(&wanted, &observed, &PlanContext::default()), PodPlan::default());
}

#[test]
fn some_resizes_can_never_be() {
    let made =
        one(&json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}));
    let why = |wanted: Value| infeasible(&made, &one(&wanted), (false, false));
    assert_eq!(
        why(json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "2", "memory": "1Gi"}})),
        None
    );
    let quality = "Pod QOS Class may not change as a result of resizing".to_owned();
    assert_eq!(
        why(json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}})),
        Some(quality)
    );
    let burstable = one(&json!({"limits": {"cpu": "1"}, "requests": {"memory": "1Gi"}}));
    let removed = one(&json!({"requests": {"memory": "1Gi"}}));
    assert_eq!(
        infeasible(&burstable, &removed, (false, false)),
        Some("resource limits cannot be removed".to_owned())
    );
    let forgotten = one(&json!({"limits": {"cpu": "1"}}));
    assert_eq!(
        infeasible(&burstable, &forgotten, (false, false)),
        Some("resource requests cannot be removed".to_owned())
    );
}

#[test]
fn the_pod_as_it_is_has_what_its_containers_were_given() {
    let made = one(&json!({"limits": {"cpu": "1"}, "requests": {"cpu": "500m"}}));
    let wanted = one(
        &json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "500m", "ephemeral-storage": "1Gi"}}),
    );
    let (observed, actuated) = running(&made);
    let current = as_actuated(&wanted, &observed, &actuated);
    assert_eq!(
        current.spec.containers[0].resources,
        requirements(
            &json!({"limits": {"cpu": "1"}, "requests": {"cpu": "500m", "ephemeral-storage": "1Gi"}})
        )
    );
    assert_eq!(as_actuated(&made, &observed, &actuated), made);
    let smaller = one(&json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "600m"}}));
    assert_eq!(
        widest(&smaller, &observed, &actuated).spec.containers[0].resources,
        requirements(&json!({"limits": {"cpu": "1"}, "requests": {"cpu": "600m"}}))
    );
}

#[test]
fn resize_conditions_and_events_cover_its_whole_course() {
    let made = one(&json!({"requests": {"cpu": "1"}}));
    let wanted = one(&json!({"requests": {"cpu": "2"}}));
    let (observed, actuated) = running(&made);
    let before = PodStatus::default();
    let shown =
        |allocated: &Pod, actuated: &Actuated, pending: Option<&PendingResize>, error: Option<&str>| {
            let mut status: PodStatus = decode(json!({"conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}))
            .unwrap()
            .object;
            let now = Timestamp::from_secs(7);
            let view = ResizeView { allocated, actuated, pending, error, previous: Some(&before), now };
            show(&mut status, &observed, &view);
            status
        };
    let tell = |before: &PodStatus, after: &PodStatus| -> Vec<String> {
        let news = events_between(before, after, &wanted, &wanted).into_iter();
        news.map(|news| format!("{} {}: {}", news.warning, news.reason, news.message)).collect()
    };
    let json = |extra: &str| {
        format!(
            "{{\"containers\":[{{\"name\":\"c\",\"resources\":{{\"requests\":{{\"cpu\":\"2\"}}}}}}],\"generation\":2{extra}}}"
        )
    };

    let pending = PendingResize::deferred("no cpu".to_owned());
    let deferred = shown(&made, &actuated, Some(&pending), None);
    let types: Vec<&str> = deferred.conditions.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(types, ["PodResizePending", "Ready"]);
    assert_eq!(deferred.container_statuses[0].allocated_resources["cpu"].to_string(), "1");
    let actual = deferred.container_statuses[0].resources.clone().unwrap();
    assert_eq!(actual.requests["cpu"].to_string(), "1");
    let told = format!("true ResizeDeferred: Pod resize Deferred: {}", json(",\"error\":\"no cpu\""));
    assert_eq!(tell(&before, &deferred), [told]);
    assert!(tell(&deferred, &deferred).is_empty());

    let started = shown(&wanted, &actuated, None, None);
    assert_eq!(started.conditions[0].type_, "PodResizeInProgress");
    assert_eq!(started.container_statuses[0].allocated_resources["cpu"].to_string(), "2");
    assert_eq!(tell(&deferred, &started), [format!("false ResizeStarted: Pod resize started: {}", json(""))]);
    let failed = shown(&wanted, &actuated, None, Some("busy"));
    assert_eq!(
        (failed.conditions[0].reason.as_str(), failed.conditions[0].message.as_str()),
        ("Error", "busy")
    );
    let told = format!("true ResizeError: Pod resize error: {}", json(",\"error\":\"busy\""));
    assert_eq!(tell(&started, &failed), [told]);

    let done: Actuated = [("id-c".into(), wanted.spec.containers[0].resources.clone())].into();
    let completed = shown(&wanted, &done, None, None);
    assert_eq!(completed.conditions.len(), 1);
    assert_eq!(
        tell(&failed, &completed),
        [format!("false ResizeCompleted: Pod resize completed: {}", json(""))]
    );
}
