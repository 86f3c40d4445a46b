//! Tables for counting, targets and first results.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::api::decode::decode;
use crate::pod::target::HttpTarget;

fn container(json: &Value) -> Container {
    let pod = decode::<Pod>(json!({"spec": {"containers": [json]}})).unwrap().object;
    pod.spec.containers.into_iter().next().unwrap()
}

fn probe(success_threshold: i32, failure_threshold: i32) -> Probe {
    Probe { success_threshold, failure_threshold, ..Probe::default() }
}

/// `+` is a success, `-` a failure; the answer shows what is published after each run, `.` for nothing yet,
/// and ends with `!` on hold.
fn publish(kind: ProbeKind, probe: &Probe, start: Option<ProbeResult>, runs: &str) -> String {
    let mut counter = ProbeCounter::new(kind, start);
    let mut shown = String::new();
    for run in runs.chars() {
        let result = if run == '+' { ProbeResult::Success } else { ProbeResult::Failure };
        counter = counter.record(kind, probe, result);
        shown.push(match counter.published {
            Some(ProbeResult::Success) => '+',
            Some(ProbeResult::Failure) => '-',
            None => '.',
        });
    }
    if counter.on_hold {
        shown.push('!');
    }
    shown
}

#[test]
fn results_are_published_at_their_thresholds() {
    use ProbeKind::{Liveness, Readiness, Startup};
    let (up, down) = (Some(ProbeResult::Success), Some(ProbeResult::Failure));
    for (kind, probe, start, runs, published) in [
        (Readiness, probe(1, 3), down, "--+--+---+", "--++++++-+".to_owned()),
        (Readiness, probe(2, 1), down, "+-++-+", "---+--".to_owned()),
        (Liveness, probe(1, 3), up, "--+---", "+++++-!".to_owned()),
        (Liveness, probe(1, 3), up, "---+++", "++----!".to_owned()),
        (Startup, probe(1, 3), None, "--+--", "..+++!".to_owned()),
        (Startup, probe(1, 2), None, "--+", ".--!".to_owned()),
        (Startup, probe(1, 1), up, "---", "+++!".to_owned()),
    ] {
        assert_eq!(publish(kind, &probe, start, runs), published, "{kind:?} {runs}");
    }
}

proptest! {
    #[test]
    fn probe_result_changes_only_after_threshold_equal_results(
        runs in "[+-]{0,40}", success in 1..5_i32, failure in 1..5_i32,
    ) {
        let probe = probe(success, failure);
        let published = publish(ProbeKind::Readiness, &probe, Some(ProbeResult::Failure), &runs);
        let mut before = '-';
        for (index, now) in published.char_indices() {
            let equal = runs[..=index].chars().rev().take_while(|run| *run == now).count();
            let threshold = usize::try_from(if now == '+' { success } else { failure }).unwrap();
            if now != before {
                prop_assert_eq!(equal, threshold, "{} {}", runs, published);
            }
            let last = runs.as_bytes()[index] as char;
            let run = runs[..=index].chars().rev().take_while(|run| *run == last).count();
            let wanted = usize::try_from(if last == '+' { success } else { failure }).unwrap();
            prop_assert!(run < wanted || now == last, "a reached threshold is published: {} {}", runs, published);
            before = now;
        }
    }
}

#[test]
fn failure_is_reported_to_the_threshold_then_less_often() {
    let told: Vec<u32> = (1..=40).filter(|times| is_reported(*times, 3)).collect();
    assert_eq!(told, [1, 2, 3, 4, 8, 16, 32]);
}

#[test]
fn invalid_probe_port_is_reported_like_upstream() {
    let container = container(&json!({"name": "a"}));
    let asked = |port: Value| {
        let probe = decode::<Probe>(json!({"httpGet": {"port": port}})).unwrap().object;
        probe_target(&probe, &container, "").unwrap_err()
    };
    assert_eq!(asked(json!("dns")), "strconv.Atoi: parsing \"dns\": invalid syntax");
    assert_eq!(asked(json!(65536)), "invalid port number: 65536");
}

#[test]
fn targets_come_from_the_probe_the_container_and_the_pod() {
    let host = |host: &str| host.to_owned();
    for (probe, target) in [
        (
            json!({"httpGet": {"port": "web", "path": "/a?b", "scheme": "HTTPS",
                "httpHeaders": [{"name": "X", "value": "1"}]}}),
            Ok(ProbeTarget::HttpGet(HttpTarget {
                https: true,
                host: host("10.0.0.1"),
                port: 8080,
                path: "/a?b".to_owned(),
                headers: vec![("X".to_owned(), "1".to_owned())],
            })),
        ),
        (
            json!({"tcpSocket": {"port": 5, "host": "db.example"}}),
            Ok(ProbeTarget::TcpSocket { host: host("db.example"), port: 5 }),
        ),
        (json!({"tcpSocket": {"port": 5}}), Ok(ProbeTarget::TcpSocket { host: host("10.0.0.1"), port: 5 })),
        (
            json!({"grpc": {"port": 7, "service": "s"}}),
            Ok(ProbeTarget::Grpc { host: host("10.0.0.1"), port: 7, service: "s".to_owned() }),
        ),
        (
            json!({"exec": {"command": ["$(A)", "$(B)", "$(C)", "$$(A)", "$(D)"]}}),
            Ok(ProbeTarget::Exec(["1", "$(A)", "", "$(A)", "$(D)"].map(str::to_owned).to_vec())),
        ),
        (json!({"httpGet": {"port": "x"}}), Err("strconv.Atoi: parsing \"x\": invalid syntax".to_owned())),
        (json!({}), Err("missing probe handler for container a".to_owned())),
    ] {
        let shown = probe.to_string();
        let container = container(&json!({
            "name": "a",
            "ports": [{"name": "web", "containerPort": 8080}],
            "env": [
                {"name": "A", "value": "1"},
                {"name": "B", "value": "$(A)"},
                {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ],
            "livenessProbe": probe,
        }));
        let probe = container.liveness_probe.as_ref().unwrap();
        assert_eq!(probe_target(probe, &container, "10.0.0.1"), target, "{shown}");
    }
}

#[test]
fn what_an_earlier_process_said_of_the_same_instance_holds() {
    let all = container(&json!({"name": "a", "startupProbe": {}, "readinessProbe": {}, "livenessProbe": {}}));
    let said = |id: &str, started: bool, ready: bool| {
        let status = json!({"name": "a", "containerID": id, "started": started, "ready": ready});
        decode::<Pod>(json!({"status": {"containerStatuses": [status]}})).unwrap().object.status
    };
    let (up, down) = (Some(ProbeResult::Success), Some(ProbeResult::Failure));
    let fresh = InstanceProbes { startup: None, readiness: down, liveness: up };
    let id = ContainerId::from("c1");
    for (remembered, results) in [
        (None, fresh),
        (Some(said("containerd://c0", true, true)), fresh),
        (Some(said("", true, true)), fresh),
        (Some(said("containerd://c1", false, false)), fresh),
        (Some(said("containerd://c1", true, false)), InstanceProbes { startup: up, ..fresh }),
        (Some(said("cri-o://c1", true, true)), InstanceProbes { startup: up, readiness: up, liveness: up }),
    ] {
        assert_eq!(initial_results(&all, &id, remembered.as_ref()), results, "{remembered:?}");
    }
    let none = container(&json!({"name": "a"}));
    let remembered = said("containerd://c1", true, true);
    assert_eq!(initial_results(&none, &id, Some(&remembered)), InstanceProbes::default());
}

#[test]
fn only_ordinary_containers_and_sidecars_are_probed() {
    let with_probe = json!({"livenessProbe": {}});
    let named = |name: &str, more: Value| {
        let mut object = with_probe.clone();
        object["name"] = json!(name);
        for (key, value) in more.as_object().unwrap() {
            object[key] = value.clone();
        }
        object
    };
    let pod = decode::<Pod>(json!({"spec": {
        "initContainers": [named("init", json!({})), named("sidecar", json!({"restartPolicy": "Always"}))],
        "containers": [named("app", json!({})), {"name": "plain"}],
    }}));
    let pod = pod.unwrap().object;
    let found: Vec<&str> = probed_containers(&pod).map(|(container, _)| container.name.as_str()).collect();
    assert_eq!(found, ["sidecar", "app"]);
}
