//! When probes run.

use super::*;
use crate::pod::prober::instance::{next_run, spread};

#[test]
fn first_probe_runs_after_initial_delay_then_every_period() {
    let probe = exec("check", &json!({"initialDelaySeconds": 5}));
    bench(json!([{"name": "main", "livenessProbe": probe}]), async |bench| {
        bench.start("main", 0).await;
        pass(2.0).await;
        for _ in 0..3 {
            bench.observe().await;
        }
        pass(40.5).await;
        assert_eq!(bench.runs(), [5.0, 15.0, 25.0, 35.0]);
    });
}

#[test]
fn a_long_run_moves_no_later_one_and_is_not_overtaken() {
    let probe = exec("check", &json!({"timeoutSeconds": 30}));
    bench(json!([{"name": "main", "readinessProbe": probe}]), async |bench| {
        bench.script_slow("check", 0, 13 * SECOND);
        bench.start("main", 0).await;
        bench.observe().await;
        pass(14.0).await;
        bench.script("check", 0);
        pass(20.0).await;
        assert_eq!(bench.runs(), [0.0, 13.0, 26.0, 30.0], "at once when late, then where they belong");
    });
}

#[tokio::test(start_paused = true)]
async fn what_was_missed_is_left_out() {
    let zero = Instant::now();
    for (now, next) in [(0, 10), (9, 10), (10, 10), (19, 10), (20, 20), (57, 50)] {
        assert_eq!(next_run(zero, 10 * SECOND, zero + now * SECOND) - zero, next * SECOND, "{now}");
    }
}

#[test]
fn startup_probe_runs_alone_until_success() {
    let containers = json!([{
        "name": "main",
        "startupProbe": exec("up", &json!({"periodSeconds": 4, "failureThreshold": 30})),
        "readinessProbe": exec("ready", &json!({})),
        "livenessProbe": exec("alive", &json!({})),
    }]);
    bench(containers, async |bench| {
        bench.script("up", 1);
        let id = bench.start("main", 0).await;
        bench.observe().await;
        pass(7.0).await;
        let (up, down) = (Some(ProbeResult::Success), Some(ProbeResult::Failure));
        assert_eq!(bench.results(&id), InstanceProbes { startup: None, readiness: down, liveness: up });
        assert!(!bench.was_woken());
        bench.script("up", 0);
        pass(1.5).await;
        assert_eq!(bench.results(&id), InstanceProbes { startup: up, readiness: up, liveness: up });
        assert!(bench.was_woken());
        assert_eq!(bench.runs(), [0.0, 4.0, 8.0, 8.0]);
        pass(14.0).await;
        assert_eq!(bench.runs()[4..], [10.0, 18.0, 20.0], "liveness in its own rhythm, startup never again");
    });
}

#[test]
fn what_an_earlier_process_left_running_is_spread_over_a_period() {
    let probe = exec("check", &json!({}));
    bench(json!([{"name": "main", "livenessProbe": probe}]), async |mut bench| {
        let id = bench.start("main", 0).await;
        pass(100.0).await;
        bench.prober = prober(&bench.fake, &bench.clock, &bench.events);
        bench.observe().await;
        pass(25.0).await;
        let first = 100.0 + spread(&id, ProbeKind::Liveness, 10 * SECOND).as_secs_f64();
        let runs = bench.runs();
        assert_eq!(runs.len(), 2, "{runs:?}");
        assert!((runs[0] - first).abs() < 0.002 && (runs[1] - runs[0] - 10.0).abs() < 0.002, "{runs:?}");
    });
}

#[test]
fn the_spread_is_even() {
    let mut tenths = [0; 10];
    for number in 0..1000 {
        let id = ContainerId::from(format!("{number:064x}"));
        let spread = spread(&id, ProbeKind::Readiness, 10 * SECOND);
        assert!(spread < 10 * SECOND);
        tenths[usize::try_from(spread.as_secs()).unwrap()] += 1;
    }
    assert!(tenths.iter().all(|count| (60..=140).contains(count)), "{tenths:?}");
}

#[test]
fn nothing_is_left_to_wake_up_for_when_the_pod_is_gone() {
    let probe = exec("check", &json!({}));
    bench(json!([{"name": "main", "livenessProbe": probe}, {"name": "plain"}]), async |bench| {
        assert!(bench.prober.task.borrow().is_none());
        bench.start("plain", 0).await;
        bench.observe().await;
        assert!(bench.prober.task.borrow().is_none(), "what is probed does not run yet");
        bench.start("main", 0).await;
        bench.observe().await;
        pass(1.0).await;
        bench.prober.remove(&bench.pod.metadata.uid);
        let (jobs, next) = bench.prober.shared.schedule.borrow_mut().begin_due(Instant::now() + 100 * SECOND);
        assert_eq!((jobs.len(), next), (0, None));
        pass(100.0).await;
        assert_eq!(bench.runs(), [0.0]);
    });
}

#[test]
fn pods_without_probes_cost_nothing() {
    bench(json!([{"name": "main"}]), async |bench| {
        bench.start("main", 0).await;
        bench.observe().await;
        assert!(bench.prober.task.borrow().is_none());
        assert!(bench.prober.results(&bench.pod.metadata.uid).is_empty());
    });
}
