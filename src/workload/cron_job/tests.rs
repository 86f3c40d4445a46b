#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::model::objects::ObjectKind::{CronJob, Job};
use crate::workload::pods::PodView;
use crate::workload::testing::{FakeNode, START, document, template};

fn cron(schedule: &str, more: Value) -> Value {
    let mut spec = json!({
        "schedule": schedule,
        "jobTemplate": {"metadata": {"labels": {"kind": "backup"}}, "spec": {"template": template("a:1", "Never")}},
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        spec[name] = value.clone();
    }
    document("CronJob", "backup", spec)
}

fn at(time: &str) -> Timestamp {
    Timestamp::parse_rfc3339(time).unwrap()
}

fn start(schedule: &str, more: Value) -> FakeNode {
    let mut node = FakeNode::new();
    node.apply(cron(schedule, more));
    node.pass();
    node
}

fn go(node: &mut FakeNode, time: &str) {
    node.now = at(time);
    node.pass();
}

/// The Jobs that were ever made, by the UTC time in their names.
fn made(node: &FakeNode) -> Vec<String> {
    let names = node.made.iter().filter_map(|name| name.strip_prefix("Job/backup-"));
    names.map(|minutes| Timestamp::from_secs(minutes.parse::<i64>().unwrap() * 60).to_rfc3339()).collect()
}

fn end_all(node: &mut FakeNode, code: i32) {
    for uid in node.uids(PodView::is_active) {
        node.end_pod(&uid, code);
    }
    node.pass();
}

#[test]
fn a_job_is_made_at_its_time_with_its_names_and_owner() {
    let mut node = start("30 16 * * *", json!({"timeZone": "Europe/Berlin"}));
    assert_eq!(
        node.rests.values().next().unwrap().wake,
        Some(at("2026-11-21T15:30:00Z").saturating_add(AFTER))
    );
    go(&mut node, "2026-11-21T15:30:00Z");
    assert_eq!(made(&node), ["2026-11-21T15:30:00Z"]);
    let name = format!("backup-{}", seconds(at("2026-11-21T15:30:00Z")) / 60);
    let job = node.get(Job, &name);
    assert_eq!(job["metadata"]["labels"], json!({"kind": "backup"}));
    assert_eq!(job["metadata"]["annotations"][SCHEDULED], "2026-11-21T16:30:00+01:00");
    assert_eq!(job["metadata"]["ownerReferences"][0]["kind"], "CronJob");
    assert_eq!(job["spec"]["backoffLimit"], 6, "with the defaults of a Job");
    assert_eq!(node.active().len(), 1, "in the same pass");
    let status = node.status(CronJob, "backup");
    assert_eq!(
        (&status["lastScheduleTime"], &status["active"][0]["name"]),
        (&json!("2026-11-21T15:30:00Z"), &json!(name))
    );
    end_all(&mut node, 0);
    let status = node.status(CronJob, "backup");
    assert_eq!((status.get("active"), &status["lastSuccessfulTime"]), (None, &json!("2026-11-21T15:30:00Z")));
    let events = node.take_events();
    assert!(events.contains(&format!("CronJob/backup SuccessfulCreate: Created job {name}")), "{events:?}");
    assert!(events.contains(&format!(
        "CronJob/backup SawCompletedJob: Saw completed job: {name}, condition: Complete"
    )));
}

#[test]
fn policies_decide_when_the_job_before_still_runs() {
    for (policy, jobs, pods) in [("Allow", 2, 2), ("Forbid", 1, 1), ("Replace", 2, 1)] {
        let mut node = start("0 * * * *", json!({"concurrencyPolicy": policy}));
        go(&mut node, "2026-11-20T17:00:00Z");
        go(&mut node, "2026-11-20T18:00:01Z");
        node.end_deleted();
        assert_eq!((made(&node).len(), node.active().len()), (jobs, pods), "{policy}");
        let said = node.take_events().iter().any(|event| event.contains("JobAlreadyActive"));
        assert_eq!(said, policy == "Forbid");
        // The time that was passed over is made up for when the other has ended.
        node.now = at("2026-11-20T18:10:00Z");
        end_all(&mut node, 0);
        assert_eq!(made(&node).len(), 2, "{policy}");
    }
}

#[test]
fn finished_jobs_beyond_the_limits_are_removed() {
    let mut node = start("0 * * * *", json!({"successfulJobsHistoryLimit": 2, "failedJobsHistoryLimit": 0}));
    for hour in 17..21 {
        go(&mut node, &format!("2026-11-20T{hour}:00:00Z"));
        end_all(&mut node, 0);
        node.end_deleted();
    }
    assert_eq!((made(&node).len(), node.names(Job).len(), node.pods.len()), (4, 2, 2));
}

#[test]
fn only_the_newest_missed_time_runs_and_not_after_its_deadline() {
    let mut node = start("0 * * * *", json!({}));
    go(&mut node, "2026-11-21T05:20:00Z");
    assert_eq!(made(&node), ["2026-11-21T05:00:00Z"]);
    let mut node = start("0 * * * *", json!({"startingDeadlineSeconds": 600}));
    go(&mut node, "2026-11-21T05:20:00Z");
    assert_eq!(made(&node), Vec::<String>::new());
    go(&mut node, "2026-11-21T06:05:00Z");
    assert_eq!(made(&node), ["2026-11-21T06:00:00Z"]);
    let mut node = start("* * * * *", json!({}));
    go(&mut node, "2026-11-21T16:00:00Z");
    assert_eq!(made(&node).len(), 1);
    assert!(node.take_events().iter().any(|event| event.contains("TooManyMissedTimes")));
}

#[test]
fn every_keeps_its_times_whatever_happens_between() {
    let wake = |node: &FakeNode| {
        let rest = node.rests.iter().find(|(key, _)| key.kind == CronJob);
        rest.and_then(|(_, rest)| rest.wake)
    };
    let hour = |time: &str| Some(at(time).saturating_add(AFTER));
    let mut node = start("@every 1h", json!({}));
    go(&mut node, "2026-11-20T16:20:00Z");
    assert_eq!(wake(&node), hour("2026-11-20T17:00:00Z"));
    go(&mut node, "2026-11-20T17:00:01Z");
    node.now = at("2026-11-20T17:40:00Z");
    end_all(&mut node, 0);
    assert_eq!(made(&node), ["2026-11-20T17:00:00Z"]);
    assert_eq!(wake(&node), hour("2026-11-20T18:00:00Z"));
    // A deadline that is shorter than the time between.
    let mut node = start("@every 1h", json!({"startingDeadlineSeconds": 600}));
    go(&mut node, "2026-11-20T16:59:00Z");
    assert_eq!(wake(&node), hour("2026-11-20T17:00:00Z"));
    go(&mut node, "2026-11-20T17:00:05Z");
    go(&mut node, "2026-11-20T18:30:00Z");
    assert_eq!(made(&node), ["2026-11-20T17:00:00Z"]);
    assert_eq!(wake(&node), hour("2026-11-20T19:00:00Z"));
}

#[test]
fn a_suspended_or_wrong_cron_job_starts_nothing() {
    let mut node = start("* * * * *", json!({"suspend": true}));
    go(&mut node, "2026-11-20T17:00:00Z");
    assert!(node.made.is_empty());
    let mut node = start("0 * * * *", json!({"timeZone": "Mars/Olympus"}));
    go(&mut node, "2026-11-20T17:00:00Z");
    assert!(node.made.is_empty());
    let wake = node.rests.values().next().and_then(|rest| rest.wake);
    assert_eq!(wake, Some(node.now.saturating_add(NO_ZONE)), "it may be installed");
    assert!(
        node.take_events()[0]
            .ends_with("UnknownTimeZone: invalid timeZone: \"Mars/Olympus\": unknown time zone Mars/Olympus")
    );
}

#[test]
fn a_job_made_from_a_cron_job_by_hand_is_told_and_kept() {
    let mut node = start("0 0 1 1 *", json!({}));
    let owner = node.get(CronJob, "backup");
    let mut job = document("Job", "by-hand", json!({"template": template("a:1", "Never")}));
    job["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "CronJob", "name": "backup", "uid": owner["metadata"]["uid"], "controller": true}]);
    node.apply(job);
    node.pass();
    assert!(node.take_events().iter().any(|event| {
        event.contains("UnexpectedJob: Saw a job that the controller did not create or forgot: by-hand")
    }));
    assert_eq!(node.status(CronJob, "backup")["active"][0]["name"], "by-hand");
    node.delete(Job, "by-hand");
    node.pass();
    assert!(
        node.take_events().iter().any(|event| event.contains("MissingJob: Active job went missing: by-hand"))
    );
}

#[test]
fn a_boot_in_1970_starts_nothing_until_the_clock_is_set() {
    let mut node = FakeNode::new();
    node.now = Timestamp::from_secs(30);
    node.environment.clock_since = None;
    node.apply(cron("* * * * *", json!({})));
    node.pass();
    node.wait(300);
    assert!(
        node.made.is_empty() && node.rests.values().all(|rest| rest.wake.is_none_or(|wake| wake >= FLOOR))
    );
    // NTP: 56 years later. What was made in 1970 has missed nothing.
    node.now = START;
    node.environment.clock_since = Some(START);
    node.pass();
    assert!(node.made.is_empty());
    node.wait(60);
    assert_eq!(made(&node), ["2026-11-20T16:01:00Z"]);
    // The power fails, and the clock is back in 1970.
    node.now = Timestamp::from_secs(30);
    node.environment.clock_since = None;
    node.rests.clear();
    node.pass();
    node.wait(600);
    assert_eq!(made(&node).len(), 1);
    node.now = at("2026-11-20T18:30:20Z");
    node.environment.clock_since = Some(node.now);
    node.pass();
    assert_eq!(made(&node)[1..], ["2026-11-20T18:30:00Z"], "one for the hours without power");
}

#[test]
fn a_clock_that_is_set_back_starts_nothing_twice() {
    let mut node = start("*/10 * * * *", json!({}));
    go(&mut node, "2026-11-20T16:30:00Z");
    go(&mut node, "2026-11-20T16:05:00Z");
    go(&mut node, "2026-11-20T16:20:00Z");
    go(&mut node, "2026-11-20T16:30:00Z");
    assert_eq!(made(&node), ["2026-11-20T16:30:00Z"]);
    go(&mut node, "2026-11-20T16:40:00Z");
    assert_eq!(made(&node).len(), 2);
    // Years ahead by mistake, and back: it goes on all the same.
    go(&mut node, "2031-01-01T00:00:00Z");
    go(&mut node, "2026-11-20T16:45:00Z");
    node.environment.clock_since = Some(node.now);
    go(&mut node, "2026-11-20T16:50:00Z");
    assert_eq!(made(&node)[2..], ["2031-01-01T00:00:00Z", "2026-11-20T16:50:00Z"]);
}

#[test]
fn missed_starts_wait_for_a_right_clock_and_for_each_other() {
    let mut node = FakeNode::new();
    for name in ["a", "b", "c"] {
        let mut one = cron("0 * * * *", json!({}));
        one["metadata"]["name"] = json!(name);
        node.apply(one);
    }
    node.environment.is_settled = false;
    node.pass();
    node.now = at("2026-11-21T05:20:00Z");
    node.pass();
    assert!(node.made.is_empty(), "nothing keeps the clock right yet");
    node.environment.is_settled = true;
    node.wait(60);
    assert_eq!(node.names(Job).len(), 1);
    node.wait(10);
    node.wait(10);
    assert_eq!(node.names(Job).len(), 3);
    assert_eq!(
        node.rests.values().filter_map(|rest| rest.wake).min(),
        Some(at("2026-11-21T06:00:00Z").saturating_add(AFTER))
    );
}

#[test]
fn a_name_that_is_taken_is_not_started() {
    let mut node = start("0 * * * *", json!({}));
    let name = format!("backup-{}", seconds(at("2026-11-20T17:00:00Z")) / 60);
    node.apply(document("Job", &name, json!({"template": template("a:1", "Never")})));
    go(&mut node, "2026-11-20T17:00:00Z");
    assert!(node.take_events().iter().any(|event| event.contains("FailedCreate: Error creating job")));
    assert_eq!(node.names(Job).len(), 1);
}

#[test]
fn berlin_runs_once_on_both_days_on_which_clocks_change() {
    let mut node = FakeNode::new();
    node.now = at("2026-10-24T12:00:00Z");
    node.environment.clock_since = Some(node.now);
    node.apply(cron("30 2 * * *", json!({"timeZone": "Europe/Berlin", "successfulJobsHistoryLimit": 0})));
    node.pass();
    let walk = |node: &mut FakeNode, from: &str, to: &str| {
        node.now = at(from);
        while node.now < at(to) {
            node.wait(300);
            end_all(node, 0);
            node.end_deleted();
        }
    };
    walk(&mut node, "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z");
    assert_eq!(made(&node), ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
    node.made.clear();
    walk(&mut node, "2027-03-27T12:00:00Z", "2027-03-29T12:00:00Z");
    assert_eq!(made(&node)[1..], ["2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// The clock goes on, is set forward and back, the agent restarts, Jobs are deleted.
    #[test]
    fn no_time_ever_starts_twice(
        acts in proptest::collection::vec((0_u8..10, -40_000_i64..40_000), 1..80),
        policy in "Allow|Forbid|Replace",
        zone in "Etc/None|Europe/Berlin",
    ) {
        let mut more = json!({"concurrencyPolicy": policy});
        if zone.starts_with("Europe") {
            more["timeZone"] = json!(zone);
        }
        let mut node = start("*/20 * * * *", more);
        for (act, seconds) in acts {
            match act {
                0 => node.now = Timestamp::from_nanos(node.now.as_nanos() + seconds * 1_000_000_000),
                1 => node.rests.clear(),
                2 => if let Some(name) = node.names(Job).first().cloned() { node.delete(Job, &name) },
                3 | 4 => end_all(&mut node, i32::from(act == 3)),
                _ => node.now = node.now.saturating_add(Duration::from_secs(seconds.unsigned_abs() % 1_500)),
            }
            node.end_deleted();
            let before = node.made.len();
            node.pass();
            prop_assert!(node.made.len() <= before + 1, "a crowd");
        }
        let unique: BTreeSet<&String> = node.made.iter().collect();
        prop_assert_eq!(unique.len(), node.made.len(), "{:?}", node.made);
    }
}
