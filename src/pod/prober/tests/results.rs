//! Results of probes, and their notifications.

use super::*;

const UP: Option<ProbeResult> = Some(ProbeResult::Success);
const DOWN: Option<ProbeResult> = Some(ProbeResult::Failure);

#[test]
fn worker_is_woken_only_when_a_published_result_changes() {
    let probe = exec("check", &json!({}));
    bench(json!([{"name": "main", "readinessProbe": probe}]), async |bench| {
        let id = bench.start("main", 0).await;
        bench.observe().await;
        assert_eq!(bench.results(&id).readiness, DOWN);
        pass(1.0).await;
        assert_eq!((bench.results(&id).readiness, bench.was_woken()), (UP, true));
        pass(10.0).await;
        bench.script("check", 1);
        pass(20.0).await;
        assert_eq!((bench.results(&id).readiness, bench.was_woken()), (UP, false), "two of three failures");
        pass(10.0).await;
        assert_eq!((bench.results(&id).readiness, bench.was_woken()), (DOWN, true));
        pass(100.0).await;
        assert!(!bench.was_woken());
    });
}

#[test]
fn failed_instance_is_not_probed_and_successor_starts_fresh() {
    let probe = exec("check", &json!({"failureThreshold": 2}));
    bench(json!([{"name": "main", "livenessProbe": probe}]), async |bench| {
        bench.script("check", 1);
        let first = bench.start("main", 0).await;
        bench.observe().await;
        assert_eq!(bench.results(&first).liveness, UP);
        pass(50.0).await;
        assert_eq!((bench.results(&first).liveness, bench.was_woken()), (DOWN, true));
        assert_eq!(bench.runs(), [0.0, 10.0], "on hold");

        bench.fake.stop_container(&first, Duration::ZERO).await.unwrap();
        bench.observe().await;
        assert_eq!(bench.results(&first).liveness, DOWN, "why it ended is known as long as it is the newest");
        let second = bench.start("main", 1).await;
        bench.observe().await;
        assert_eq!(bench.prober.results(&bench.pod.metadata.uid).len(), 1);
        assert_eq!(bench.results(&second).liveness, UP);
        pass(5.0).await;
        assert_eq!(bench.runs(), [0.0, 10.0, 50.0]);
        assert_eq!(bench.results(&second).liveness, UP, "one failure of its own");
    });
}

#[test]
fn probe_added_to_the_manifest_runs_on_the_running_container() {
    bench(json!([{"name": "main", "livenessProbe": exec("alive", &json!({}))}]), async |mut bench| {
        let id = bench.start("main", 0).await;
        bench.observe().await;
        pass(1.0).await;
        let probe = decode(exec("ready", &json!({}))).unwrap().object;
        Rc::make_mut(&mut bench.pod).spec.containers[0].readiness_probe = Some(probe);
        bench.observe().await;
        pass(11.0).await;
        let all = InstanceProbes { startup: None, readiness: UP, liveness: UP };
        assert_eq!(bench.results(&id), all);
        Rc::make_mut(&mut bench.pod).spec.containers[0].liveness_probe = None;
        bench.observe().await;
        assert_eq!(bench.results(&id).liveness, None);
    });
}

#[test]
fn exited_failed_instance_is_not_probed_during_termination() {
    let containers = json!([{
        "name": "main",
        "startupProbe": exec("up", &json!({"failureThreshold": 1})),
        "readinessProbe": exec("ready", &json!({})),
    }]);
    bench(containers, async |bench| {
        bench.script("up", 1);
        let id = bench.start("main", 0).await;
        bench.observe().await;
        pass(1.0).await;
        bench.fake.stop_container(&id, Duration::ZERO).await.unwrap();
        bench.observe().await;
        bench.prober.keep_only_readiness(&bench.pod.metadata.uid);
        pass(25.0).await;
        assert_eq!((bench.results(&id).startup, bench.runs()), (DOWN, vec![0.0]));
    });
}

#[test]
fn late_probe_result_of_a_replaced_instance_is_dropped() {
    let probe = exec("check", &json!({"failureThreshold": 1, "timeoutSeconds": 5}));
    bench(json!([{"name": "main", "livenessProbe": probe}]), async |bench| {
        bench.script_slow("check", 1, 3 * SECOND);
        let first = bench.start("main", 0).await;
        bench.observe().await;
        pass(1.0).await;
        bench.script("check", 0);
        bench.fake.stop_container(&first, Duration::ZERO).await.unwrap();
        let second = bench.start("main", 1).await;
        bench.observe().await;
        pass(5.0).await;
        assert_eq!(bench.results(&second).liveness, UP);
        assert_eq!((bench.said(), bench.was_woken()), (Vec::new(), false));
    });
}

#[test]
fn probe_results_survive_an_agent_restart_until_contradicted() {
    let containers = json!([{
        "name": "main",
        "startupProbe": exec("up", &json!({})),
        "readinessProbe": exec("ready", &json!({})),
    }]);
    bench(containers, async |mut bench| {
        bench.script("up", 1);
        bench.script("ready", 1);
        let id = bench.start("main", 0).await;
        let said =
            json!({"name": "main", "containerID": format!("fake://{id}"), "started": true, "ready": true});
        let status = decode::<Pod>(json!({"status": {"containerStatuses": [said]}})).unwrap().object.status;
        pass(1.0).await;
        bench.prober = prober(&bench.fake, &bench.clock, &bench.events);
        bench.observe_after(Some(&status)).await;
        let before = InstanceProbes { startup: UP, readiness: UP, liveness: None };
        assert_eq!(bench.results(&id), before);
        pass(20.0).await;
        assert_eq!((bench.results(&id), bench.was_woken()), (before, false), "two failures are not three");
        pass(10.0).await;
        assert_eq!(bench.results(&id), InstanceProbes { readiness: DOWN, ..before });
        assert!(bench.said().iter().all(|(_, words)| words == "Readiness probe failed: ready says 1"));
    });
}

#[test]
fn errors_are_tried_three_times_and_do_not_count() {
    let probe = exec("check", &json!({"failureThreshold": 1}));
    bench(json!([{"name": "main", "livenessProbe": probe}]), async |bench| {
        let id = bench.start("main", 0).await;
        bench.observe().await;
        bench.fake.faults().unavailable = true;
        pass(15.0).await;
        assert_eq!(bench.runs(), [0.0, 0.0, 0.0, 10.0, 10.0, 10.0]);
        assert_eq!((bench.results(&id).liveness, bench.was_woken()), (UP, false));
        let words = "Liveness probe errored and resulted in unknown state: connect: connection refused";
        assert_eq!(bench.said(), [(2, words.to_owned())]);
    });
}

#[test]
fn slow_probe_command_fails_and_a_silent_runtime_is_unknown() {
    let probe = exec("check", &json!({"failureThreshold": 1}));
    bench(json!([{"name": "main", "livenessProbe": probe}]), async |bench| {
        let first = bench.start("main", 0).await;
        bench.observe().await;
        pass(5.0).await;
        bench.fake.faults().hang.insert("ExecSync");
        pass(20.0).await;
        assert_eq!(bench.results(&first).liveness, UP);
        let silent =
            "Liveness probe errored and resulted in unknown state: the container runtime does not respond";
        assert_eq!(bench.said().last().unwrap().1, silent);
        bench.fake.faults().hang.clear();
        bench.script_slow("check", 0, 60 * SECOND);
        pass(10.0).await;
        assert_eq!(bench.results(&first).liveness, DOWN);
        let late = "Liveness probe failed: command timed out: \"check\" timed out after 1s";
        assert_eq!(bench.said().last().unwrap().1, late);
    });
}

#[test]
fn lasting_probe_failure_is_reported_ever_less_often() {
    let probe = exec("check", &json!({"periodSeconds": 1}));
    bench(json!([{"name": "main", "readinessProbe": probe}]), async |bench| {
        bench.script("check", 1);
        bench.start("main", 0).await;
        bench.observe().await;
        pass(1000.5).await;
        assert_eq!(bench.runs().len(), 1001);
        assert_eq!(bench.said(), [(11, "Readiness probe failed: check says 1".to_owned())]);
        assert_eq!(bench.events.recent()[0].key.field_path, "spec.containers{main}");
        bench.script("check", 2);
        pass(1.0).await;
        assert_eq!(bench.said()[1], (1, "Readiness probe failed: check says 2".to_owned()), "news are told");
    });
}

#[test]
fn a_pod_that_is_taken_down_is_asked_for_readiness_alone() {
    let containers = json!([{
        "name": "main",
        "startupProbe": exec("up", &json!({"failureThreshold": 1})),
        "readinessProbe": exec("ready", &json!({})),
        "livenessProbe": exec("alive", &json!({})),
    }]);
    bench(containers, async |bench| {
        bench.script_slow("up", 1, SECOND / 2);
        let id = bench.start("main", 0).await;
        bench.observe().await;
        pass(0.2).await;
        bench.prober.keep_only_readiness(&bench.pod.metadata.uid);
        let quiet = InstanceProbes { startup: UP, readiness: DOWN, liveness: UP };
        assert_eq!(bench.results(&id), quiet);
        pass(25.0).await;
        assert_eq!(bench.results(&id), InstanceProbes { readiness: UP, ..quiet });
        let commands = bench.runs();
        assert_eq!(commands.len(), 4, "startup once, readiness at 0.2, 10.2 and 20.2 seconds: {commands:?}");
        assert_eq!(bench.said(), Vec::new());
    });
}
