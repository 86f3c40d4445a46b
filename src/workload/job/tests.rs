#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::model::objects::ObjectKind::Job;
use crate::workload::testing::{FakeNode, document, template};

fn job(more: Value) -> Value {
    let mut spec = json!({"template": template("a:1", "Never")});
    for (name, value) in more.as_object().into_iter().flatten() {
        spec[name] = value.clone();
    }
    document("Job", "work", spec)
}

fn start(more: Value) -> FakeNode {
    let mut node = FakeNode::new();
    node.apply(job(more));
    node.pass();
    node
}

/// One of the active pods ends.
fn end_one(node: &mut FakeNode, code: i32) {
    let uid = node.active().first().map(|pod| pod.uid().clone()).expect("an active pod");
    node.end_pod(&uid, code);
    node.pass();
}

fn end_index(node: &mut FakeNode, index: i64, code: i32) {
    let uids = node.uids(|pod| pod.is_active() && pod.annotation(INDEX) == Some(&index.to_string()));
    node.end_pod(uids.first().unwrap_or_else(|| panic!("index {index} does not run")), code);
    node.pass();
}

fn indexes(node: &FakeNode) -> Vec<String> {
    let mut indexes: Vec<String> =
        node.active().iter().map(|pod| pod.annotation(INDEX).unwrap_or_default().to_owned()).collect();
    indexes.sort();
    indexes
}

fn number(node: &FakeNode, field: &str) -> i64 {
    node.status(Job, "work")[field].as_i64().unwrap_or_default()
}

#[test]
fn a_job_runs_its_pods_and_completes_once() {
    let mut node = start(json!({"completions": 3, "parallelism": 2}));
    assert_eq!(node.active().len(), 2);
    let pod = node.active()[0].clone();
    assert!(pod.name().starts_with("work-"), "{}", pod.name());
    for (label, value) in [
        ("batch.kubernetes.io/job-name", "work"),
        ("job-name", "work"),
        ("batch.kubernetes.io/controller-uid", "uid-1"),
        ("controller-uid", "uid-1"),
    ] {
        assert_eq!(pod.label(label), value);
    }
    assert_eq!(pod.pod.metadata.finalizers, [TRACKING]);
    let spec = &node.get(Job, "work")["spec"];
    assert_eq!(spec["selector"], json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "uid-1"}}));
    end_one(&mut node, 0);
    assert_eq!((number(&node, "succeeded"), number(&node, "active")), (1, 2));
    end_one(&mut node, 0);
    assert_eq!((number(&node, "succeeded"), number(&node, "active")), (2, 1), "no more than are needed");
    end_one(&mut node, 0);
    assert_eq!(
        node.condition(Job, "work", "Complete"),
        ["True", "CompletionsReached", "Reached expected number of succeeded pods"]
    );
    assert_eq!(node.condition(Job, "work", "SuccessCriteriaMet")[0], "True");
    let status = node.status(Job, "work");
    assert_eq!(status["completionTime"], status["startTime"]);
    assert!(node.pods.values().all(|pod| pod.pod.metadata.finalizers.is_empty()));
    assert!(node.take_events().contains(&"Job/work Completed: Job completed".to_owned()));
    node.wait(100_000);
    assert_eq!((number(&node, "succeeded"), node.pods.len()), (3, 3), "its pods stay for their logs");
}

#[test]
fn failures_are_retried_with_a_growing_delay_up_to_the_limit() {
    let mut node = start(json!({"backoffLimit": 3}));
    let mut delays = Vec::new();
    while node.condition(Job, "work", "Failed")[0].is_empty() {
        end_one(&mut node, 1);
        let mut seconds = 0;
        while node.active().is_empty() && node.condition(Job, "work", "Failed")[0].is_empty() {
            seconds += 1;
            node.wait(1);
        }
        delays.push(seconds);
    }
    assert_eq!(delays, [10, 20, 40, 0]);
    assert_eq!(number(&node, "failed"), 4);
    let expected = ["True", "BackoffLimitExceeded", "Job has reached the specified backoff limit"];
    assert_eq!(node.condition(Job, "work", "Failed"), expected);
    assert!(
        node.take_events().iter().any(
            |event| event == "Job/work BackoffLimitExceeded: Job has reached the specified backoff limit"
        )
    );
}

#[test]
fn a_success_resets_the_delay() {
    let mut node = start(json!({"completions": 4, "backoffLimit": 6}));
    end_one(&mut node, 1);
    node.wait(10);
    end_one(&mut node, 1);
    node.wait(20);
    node.now = node.now.saturating_add(Duration::from_secs(1));
    end_one(&mut node, 0);
    assert_eq!(node.active().len(), 1, "at once");
    node.now = node.now.saturating_add(Duration::from_secs(1));
    end_one(&mut node, 1);
    node.wait(9);
    assert!(node.active().is_empty());
    node.wait(1);
    assert_eq!(node.active().len(), 1);
}

#[test]
fn restarts_count_with_the_policy_on_failure() {
    let mut node = start(json!({"backoffLimit": 2, "template": template("a:1", "OnFailure")}));
    let uid = node.active()[0].uid().clone();
    let restarted = |count: i32| {
        let status = json!({"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": count}]});
        Rc::new(
            crate::model::api::decode::decode::<crate::model::api::pod::PodStatus>(status).unwrap().object,
        )
    };
    node.pods.get_mut(&uid).unwrap().status = restarted(1);
    node.pass();
    assert_eq!(node.active().len(), 1);
    node.pods.get_mut(&uid).unwrap().status = restarted(2);
    node.pass();
    assert!(node.active().is_empty());
    assert_eq!(node.condition(Job, "work", "FailureTarget")[1], "BackoffLimitExceeded");
    assert_eq!(node.condition(Job, "work", "Failed")[0], "", "it still ends");
    node.end_deleted();
    node.pass();
    assert_eq!(node.condition(Job, "work", "Failed")[1], "BackoffLimitExceeded");
}

#[test]
fn a_work_queue_is_done_when_one_succeeded_and_none_is_active() {
    let mut node = start(json!({"parallelism": 3}));
    assert_eq!(node.active().len(), 3);
    end_one(&mut node, 0);
    assert_eq!(node.active().len(), 2, "no new ones, and the others finish");
    end_one(&mut node, 0);
    assert_eq!(node.condition(Job, "work", "Complete")[0], "");
    end_one(&mut node, 0);
    assert_eq!(node.condition(Job, "work", "Complete")[0], "True");
    assert_eq!(number(&node, "succeeded"), 3);
}

#[test]
fn indexed_jobs_give_each_index_a_pod_of_its_own() {
    let mut node = start(json!({"completions": 4, "parallelism": 2, "completionMode": "Indexed"}));
    assert_eq!(indexes(&node), ["0", "1"]);
    let pod = node.uids(|pod| pod.annotation(INDEX) == Some("1"))[0].clone();
    let pod = node.pods[&pod].clone();
    assert!(pod.name().starts_with("work-1-"), "{}", pod.name());
    assert_eq!((pod.pod.spec.hostname.as_str(), pod.label(INDEX)), ("work-1", "1"));
    let variable = &pod.pod.spec.containers[0].env[0];
    let path = &variable.value_from.as_ref().unwrap().field_ref.as_ref().unwrap().field_path;
    assert_eq!(
        (variable.name.as_str(), path.as_str()),
        ("JOB_COMPLETION_INDEX", "metadata.labels['batch.kubernetes.io/job-completion-index']")
    );
    end_index(&mut node, 1, 0);
    assert_eq!(indexes(&node), ["0", "2"]);
    end_index(&mut node, 2, 0);
    assert_eq!(node.status(Job, "work")["completedIndexes"], "1,2");
    end_index(&mut node, 0, 1);
    node.wait(10);
    assert_eq!(indexes(&node), ["0", "3"]);
    end_index(&mut node, 0, 0);
    end_index(&mut node, 3, 0);
    assert_eq!(node.status(Job, "work")["completedIndexes"], "0-3");
    assert_eq!(node.condition(Job, "work", "Complete")[0], "True");
}

#[test]
fn an_index_fails_by_its_own_limit() {
    let mut node = start(
        json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1}),
    );
    end_index(&mut node, 0, 1);
    node.wait(10);
    let retried = node.uids(|pod| pod.is_active() && pod.annotation(INDEX) == Some("0"));
    assert_eq!(node.pods[&retried[0]].annotation(FAILURES), Some("1"));
    end_index(&mut node, 0, 1);
    assert_eq!(node.status(Job, "work")["failedIndexes"], "0");
    assert_eq!(node.condition(Job, "work", "Failed")[0], "", "the other index goes on");
    end_index(&mut node, 1, 0);
    assert_eq!(node.condition(Job, "work", "Failed"), ["True", "FailedIndexes", "Job has failed indexes"]);
    assert_eq!(node.status(Job, "work")["completedIndexes"], "1");

    let mut node = start(json!({"completions": 5, "parallelism": 5, "completionMode": "Indexed",
        "backoffLimitPerIndex": 0, "maxFailedIndexes": 1}));
    end_index(&mut node, 0, 1);
    assert_eq!(node.active().len(), 4);
    end_index(&mut node, 3, 1);
    assert!(node.active().is_empty());
    node.end_deleted();
    node.pass();
    assert_eq!(node.condition(Job, "work", "Failed")[1], "MaxFailedIndexesExceeded");
}

#[test]
fn a_failure_policy_decides_by_exit_codes_and_conditions() {
    let policy = json!({"rules": [
        {"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [42]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Count", "onExitCodes": {"operator": "NotIn", "values": [1, 2]}},
    ]});
    let mut node = start(json!({"backoffLimit": 0, "podFailurePolicy": policy}));
    assert_eq!(node.get(Job, "work")["spec"]["podReplacementPolicy"], "Failed");
    // Evicted: it does not count.
    let uid = node.active()[0].uid().clone();
    let status = json!({"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True"}]});
    let status =
        crate::model::api::decode::decode::<crate::model::api::pod::PodStatus>(status).unwrap().object;
    node.pods.get_mut(&uid).unwrap().status = Rc::new(status);
    node.pass();
    node.wait(10);
    assert_eq!((number(&node, "failed"), node.active().len()), (0, 1));
    let name = node.active()[0].name().to_owned();
    end_one(&mut node, 42);
    let message = format!(
        "Container c for pod default/{name} failed with exit code 42 matching FailJob rule at index 0"
    );
    assert_eq!(node.condition(Job, "work", "Failed"), ["True", "PodFailurePolicy", &message]);
}

#[test]
fn a_success_policy_ends_a_job_before_all_indexes() {
    let policy = json!({"rules": [{"succeededIndexes": "0,2-3", "succeededCount": 2}]});
    let mut node = start(
        json!({"completions": 5, "parallelism": 5, "completionMode": "Indexed", "successPolicy": policy}),
    );
    end_index(&mut node, 1, 0);
    end_index(&mut node, 0, 0);
    assert_eq!(node.condition(Job, "work", "SuccessCriteriaMet")[0], "");
    end_index(&mut node, 3, 0);
    assert!(node.active().is_empty(), "the rest is not needed");
    node.end_deleted();
    node.pass();
    assert_eq!(
        node.condition(Job, "work", "Complete"),
        ["True", "SuccessPolicy", "Matched rules at index 0"]
    );
    assert_eq!(number(&node, "failed"), 0);
}

#[test]
fn a_suspended_job_has_no_pods_and_no_start_time() {
    let mut node = start(json!({"suspend": true, "activeDeadlineSeconds": 60}));
    assert!(node.pods.is_empty());
    assert_eq!(node.condition(Job, "work", "Suspended"), ["True", "JobSuspended", "Job suspended"]);
    node.edit(Job, "work", |job| job["spec"]["suspend"] = json!(false));
    node.wait(3_600);
    assert_eq!(node.active().len(), 1);
    assert_eq!(node.condition(Job, "work", "Suspended")[..2], ["False", "JobResumed"]);
    assert_eq!(node.status(Job, "work")["startTime"], node.now.to_rfc3339());
    node.edit(Job, "work", |job| job["spec"]["suspend"] = json!(true));
    node.wait(10);
    assert!(node.active().is_empty());
    assert_eq!((number(&node, "failed"), node.status(Job, "work").get("startTime")), (0, None));
    let events = node.take_events();
    let reasons: Vec<&str> = events.iter().filter_map(|event| event.split([' ', ':']).nth(1)).collect();
    assert_eq!(reasons, ["Suspended", "SuccessfulCreate", "Resumed", "SuccessfulDelete", "Suspended"]);
}

#[test]
fn pods_that_the_job_has_deleted_count_as_nothing() {
    let mut node = start(json!({"parallelism": 7, "completions": 7}));
    node.edit(Job, "work", |job| job["spec"]["parallelism"] = json!(1));
    node.wait(1);
    node.wait(1);
    assert_eq!((node.active().len(), number(&node, "failed"), number(&node, "terminating")), (1, 0, 6));
    node.edit(Job, "work", |job| job["spec"]["suspend"] = json!(true));
    node.wait(1);
    node.wait(1);
    assert_eq!((number(&node, "failed"), number(&node, "terminating")), (0, 7));
    assert_eq!(node.condition(Job, "work", "FailureTarget")[0], "");
    // They end as killed ones.
    for uid in node.uids(|pod| pod.is_deleted) {
        node.end_pod(&uid, 137);
    }
    node.wait(1);
    node.end_deleted();
    node.edit(Job, "work", |job| job["spec"]["suspend"] = json!(false));
    node.wait(1);
    assert_eq!((node.active().len(), number(&node, "failed")), (1, 0));
}

#[test]
fn an_active_deadline_ends_a_job() {
    let mut node = start(json!({"activeDeadlineSeconds": 60, "parallelism": 2, "completions": 2}));
    node.wait(59);
    assert_eq!(node.active().len(), 2);
    node.wait(1);
    assert!(node.active().is_empty());
    node.end_deleted();
    node.pass();
    assert_eq!(
        node.condition(Job, "work", "Failed"),
        ["True", "DeadlineExceeded", "Job was active longer than specified deadline"]
    );
    assert_eq!(number(&node, "failed"), 2);
}

#[test]
fn a_finished_job_is_removed_after_its_time_to_live() {
    let mut node = start(json!({"ttlSecondsAfterFinished": 100}));
    end_one(&mut node, 0);
    node.wait(99);
    assert!(node.has(Job, "work"));
    node.wait(1);
    assert!(!node.has(Job, "work"));
    node.end_deleted();
    assert!(node.pods.is_empty());
}

#[test]
fn pods_are_replaced_when_they_begin_or_when_they_have_ended() {
    for (policy, replaced_early) in [("TerminatingOrFailed", true), ("Failed", false)] {
        let mut node = start(json!({"podReplacementPolicy": policy, "backoffLimit": 3}));
        let uid = node.active()[0].uid().clone();
        node.set_pod(&uid, "Running", true);
        node.delete_pod(&uid);
        node.wait(10);
        assert_eq!(!node.active().is_empty(), replaced_early, "{policy}");
        assert_eq!(number(&node, "failed"), i64::from(replaced_early), "{policy}");
        let is_counted = node.pods[&uid].pod.metadata.finalizers.is_empty();
        assert_eq!(is_counted, replaced_early, "{policy}");
        node.end_pod(&uid, 143);
        node.wait(10);
        node.end_deleted();
        node.wait(10);
        assert_eq!((node.active().len(), number(&node, "failed")), (1, 1), "{policy}");
    }
}

#[test]
fn a_job_of_another_controller_is_left_alone() {
    let node = start(json!({"managedBy": "example.com/queue"}));
    assert!(node.pods.is_empty() && node.status(Job, "work").is_null());
    let node = start(json!({"managedBy": CONTROLLER}));
    assert_eq!(node.pods.len(), 1);
}

#[test]
fn pods_of_a_job_that_is_gone_lose_their_finalizer() {
    let mut node = start(json!({}));
    node.delete(Job, "work");
    node.end_deleted();
    assert_eq!(node.pods.len(), 1, "the finalizer keeps it");
    node.pass();
    node.end_deleted();
    assert!(node.pods.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn a_job_never_runs_more_than_it_may_and_counts_each_pod_once(
        acts in proptest::collection::vec((0_u8..8, 0_usize..16), 1..80),
        completions in 1_i64..6,
        parallelism in 0_i64..5,
        indexed in any::<bool>(),
        late in any::<bool>(),
    ) {
        let mode = if indexed { "Indexed" } else { "NonIndexed" };
        let policy = if late { "Failed" } else { "TerminatingOrFailed" };
        let mut node = start(json!({"completions": completions, "parallelism": parallelism, "completionMode": mode,
            "podReplacementPolicy": policy, "backoffLimit": 100}));
        let (mut ended, mut counted): (BTreeMap<_, bool>, i64) = (BTreeMap::new(), 0);
        for (act, number_of) in acts {
            let uids = node.uids(PodView::is_active);
            let pick = uids.get(number_of % uids.len().max(1)).cloned();
            match (act, pick) {
                (0..=2, Some(uid)) => {
                    node.end_pod(&uid, 0);
                    ended.insert(uid, true);
                }
                (3 | 4, Some(uid)) => {
                    node.end_pod(&uid, 1);
                    ended.insert(uid, false);
                }
                (5, Some(uid)) => node.delete_pod(&uid),
                (6, _) => node.end_deleted(),
                _ => node.rests.clear(),
            }
            node.now = node.now.saturating_add(Duration::from_secs(601));
            node.pass();
            let running = i64::try_from(node.active().len()).unwrap();
            prop_assert!(running <= parallelism, "{running} of {parallelism}");
            let succeeded = i64::try_from(ended.values().filter(|succeeded| **succeeded).count()).unwrap();
            let shown = number(&node, "succeeded");
            prop_assert!(shown <= succeeded && shown >= counted, "{shown} shown, {succeeded} have");
            if !indexed {
                prop_assert_eq!(shown, succeeded);
            }
            counted = shown;
            let unique: BTreeSet<&str> = node.active().iter().filter_map(|pod| pod.annotation(INDEX)).collect();
            prop_assert!(!indexed || unique.len() == node.active().len(), "an index runs twice");
        }
    }
}
