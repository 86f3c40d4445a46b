//! Many probes at once.

use super::*;

/// `hung` containers whose probe hangs until its timeout, then as many quick ones.
fn containers(hung: usize, quick: usize) -> Value {
    let second = json!({"periodSeconds": 1, "failureThreshold": 1000});
    let of = |prefix: &'static str, count: usize, second: Value| {
        (0..count).map(move |number| {
            let probe = exec(prefix, &second);
            json!({"name": format!("{prefix}{number}"), "readinessProbe": probe})
        })
    };
    of("hung", hung, second.clone()).chain(of("quick", quick, second)).collect()
}

#[test]
fn hanging_probes_hold_up_the_others_for_one_timeout_at_most() {
    bench(containers(100, 40), async |bench| {
        let mut ids = Vec::new();
        for container in &bench.pod.spec.containers {
            if container.name.starts_with("hung") {
                let script = ExecScript { takes: 60 * SECOND, output: ExecOutput::default() };
                bench.fake.change(|world, _| world.set_exec(&container.name, "hung", script));
            } else {
                ids.push(bench.start(&container.name, 0).await);
            }
        }
        for container in bench.pod.spec.containers.iter().take(100) {
            bench.start(&container.name, 0).await;
        }
        bench.observe().await;
        pass(60.5).await;
        let calls = bench.fake.calls();
        for id in &ids {
            let runs: Vec<f64> = calls
                .iter()
                .filter(|call| call.call == "ExecSync" && call.subject == id.as_str())
                .map(|call| call.at.saturating_since(START).as_secs_f64())
                .collect();
            let late = |run: &f64| *run - run.floor();
            assert!(runs.iter().filter(|run| **run > 5.0).all(|run| late(run) < 0.001), "{runs:?}");
            assert!(runs.len() >= 57, "of 61 moments, those of the first seconds may be missing: {runs:?}");
        }
    });
}

#[test]
fn runs_under_way_are_bounded_and_none_is_forgotten() {
    bench(containers(200, 0), async |bench| {
        for container in &bench.pod.spec.containers {
            let script = ExecScript { takes: 60 * SECOND, output: ExecOutput::default() };
            bench.fake.change(|world, _| world.set_exec(&container.name, "hung", script));
            bench.start(&container.name, 0).await;
        }
        bench.observe().await;
        pass(60.5).await;
        let calls = bench.fake.calls();
        let mut moments: Vec<f64> = Vec::new();
        let mut per_container = std::collections::BTreeMap::new();
        for call in calls.iter().filter(|call| call.call == "ExecSync") {
            let moment = call.at.saturating_since(START).as_secs_f64();
            moments.push(moment);
            // The first runs of all of them take some seconds; then the order is settled.
            if moment > 20.0 {
                *per_container.entry(call.subject.clone()).or_insert(0) += 1;
            }
        }
        for moment in &moments {
            let under_way = moments.iter().filter(|other| (0.0..0.999).contains(&(moment - **other))).count();
            assert!(under_way <= 64, "{under_way} at {moment}");
        }
        assert_eq!(per_container.len(), 200);
        let (least, most) = (per_container.values().min().unwrap(), per_container.values().max().unwrap());
        assert!(most - least <= 1, "first come, first served: between {least} and {most}");
    });
}
