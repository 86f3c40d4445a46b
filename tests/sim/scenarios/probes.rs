//! Probes of whole pods: what failing ones lead to, and what a restart of the agent makes of good ones.

use std::rc::Rc;

use edge_agent::model::api::pod::ContainerStatus;
use edge_agent::model::source::SourcePod;
use edge_agent::model::types::PodSource;
use edge_agent::runtime::ExecOutput;
use edge_agent::runtime::fake::{ExecScript, OnStop, Program};

use super::{MINUTE, SECOND, node, running, status};
use crate::sim::node::{Node, simulate};
use crate::sim::pods::{Act, parse_text};

/// A pod of one container with these probes, each an exec of its own name.
fn probed(probes: &[&str]) -> SourcePod {
    let fields: Vec<String> = probes
        .iter()
        .map(|kind| format!(r#""{kind}Probe": {{"exec": {{"command": ["{kind}"]}}, "periodSeconds": 5}}"#))
        .collect();
    let text = format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "web"}},
          "spec": {{"containers": [{{"name": "c0", "image": "{}", "imagePullPolicy": "IfNotPresent", {}}}]}}}}"#,
        Act::Forever.image(),
        fields.join(", ")
    );
    parse_text("web", &text, PodSource::File)
}

fn script(node: &Node, kind: &str, exit_code: i32) {
    let output = ExecOutput { exit_code, output: b"no".to_vec() };
    node.fake.change(|world, _| world.set_exec("c0", kind, ExecScript { takes: SECOND / 10, output }));
}

fn shown(node: &Node, pod: &SourcePod) -> ContainerStatus {
    status(node, pod).container_statuses[0].clone()
}

fn told(node: &Node) -> Vec<String> {
    let agent = node.agent.as_ref().expect("the agent runs");
    agent.events.recent().into_iter().map(|event| event.key.message).collect()
}

/// Probes that have been carried out.
fn runs(node: &Node) -> usize {
    node.fake.calls().iter().filter(|call| call.call == "ExecSync").count()
}

#[test]
fn failed_liveness_probe_restarts_container_and_probing() {
    simulate(async {
        let mut node = node().await;
        let web = probed(&["liveness"]);
        node.want(PodSource::File, std::slice::from_ref(&web));
        node.wait(MINUTE).await;
        let first = running(&node, "web");
        script(&node, "liveness", 1);
        node.wait(17 * SECOND).await;
        script(&node, "liveness", 0);
        node.wait(MINUTE).await;
        let second = running(&node, "web");
        assert_ne!(first, second);
        let after = shown(&node, &web);
        assert_eq!((after.restart_count, after.ready, second.len()), (1, true, 1));
        let told = told(&node);
        for words in ["Liveness probe failed: no", "Container c0 failed liveness probe, will be restarted"] {
            assert!(told.iter().any(|message| message == words), "{words:?} in {told:?}");
        }
    });
}

#[test]
fn readiness_follows_its_probe_and_restarts_nothing() {
    simulate(async {
        let mut node = node().await;
        let web = probed(&["startup", "readiness"]);
        script(&node, "startup", 1);
        node.want(PodSource::File, std::slice::from_ref(&web));
        node.wait(8 * SECOND).await;
        assert_eq!((shown(&node, &web).started, shown(&node, &web).ready), (Some(false), false));
        script(&node, "startup", 0);
        node.wait(6 * SECOND).await;
        assert_eq!((shown(&node, &web).started, shown(&node, &web).ready), (Some(true), true));
        let before = running(&node, "web");
        script(&node, "readiness", 1);
        node.wait(17 * SECOND).await;
        assert_eq!((shown(&node, &web).started, shown(&node, &web).ready), (Some(true), false));
        script(&node, "readiness", 0);
        node.wait(6 * SECOND).await;
        assert!(shown(&node, &web).ready);
        assert_eq!(running(&node, "web"), before);
    });
}

#[test]
fn agent_restart_keeps_readiness_and_skips_startup_probe() {
    simulate(async {
        let mut node = node().await;
        let web = probed(&["startup", "readiness", "liveness"]);
        node.want(PodSource::File, std::slice::from_ref(&web));
        node.wait(2 * MINUTE).await;
        let (before, since) = (running(&node, "web"), status(&node, &web).conditions);
        let started = status(&node, &web).start_time;
        assert!(shown(&node, &web).ready);
        node.crash();
        // A startup probe that ran again would kill the container.
        script(&node, "startup", 1);
        node.start().await;
        node.want(PodSource::File, std::slice::from_ref(&web));
        let runs_before = runs(&node);
        for _ in 0..60 {
            node.wait(SECOND).await;
            assert_eq!((shown(&node, &web).started, shown(&node, &web).ready), (Some(true), true));
        }
        assert_eq!((running(&node, "web"), status(&node, &web).conditions), (before, since));
        assert_eq!(status(&node, &web).start_time, started, "as an API server has it");
        let runs = runs(&node) - runs_before;
        assert!((22..=24).contains(&runs), "two probes every five seconds for a minute: {runs}");
    });
}

#[test]
fn readiness_is_shown_and_liveness_is_quiet_while_a_pod_ends() {
    simulate(async {
        let mut node = node().await;
        let mut web = probed(&["readiness", "liveness"]);
        Rc::make_mut(&mut web.pod).spec.containers[0].image = Act::Stubborn.image();
        node.want(PodSource::File, std::slice::from_ref(&web));
        node.wait(MINUTE).await;
        assert!(shown(&node, &web).ready);
        script(&node, "readiness", 1);
        script(&node, "liveness", 1);
        node.want(PodSource::File, &[]);
        node.wait(20 * SECOND).await;
        let ready = |node: &Node| {
            let condition = status(node, &web).conditions.into_iter().find(|one| one.type_ == "Ready");
            condition.expect("the condition").status
        };
        assert_eq!(running(&node, "web").len(), 1, "its grace is thirty seconds");
        assert_eq!((shown(&node, &web).ready, ready(&node).as_str()), (false, "False"));
        script(&node, "readiness", 0);
        node.wait(6 * SECOND).await;
        assert_eq!((shown(&node, &web).ready, ready(&node).as_str()), (true, "True"));
        let told = told(&node);
        assert!(!told.iter().any(|message| message.starts_with("Liveness")), "{told:?}");
    });
}

#[test]
fn readiness_is_shown_while_another_container_starts() {
    simulate(async {
        let mut node = node().await;
        let mut web = probed(&["readiness"]);
        let spec = &mut Rc::make_mut(&mut web.pod).spec;
        let mut slow = spec.containers[0].clone();
        (slow.name, slow.image, slow.readiness_probe) = ("slow".to_owned(), Act::Slow.image(), None);
        node.want(PodSource::File, &[web.clone()]);
        node.wait(20 * SECOND).await;
        assert!(shown(&node, &web).ready);
        Rc::make_mut(&mut web.pod).spec.containers.push(slow);
        node.want(PodSource::File, &[web.clone()]);
        script(&node, "readiness", 1);
        node.wait(25 * SECOND).await;
        let [first, second] = &status(&node, &web).container_statuses[..] else { panic!("two containers") };
        assert!(second.state.running.is_none(), "its image takes forty seconds: {second:?}");
        assert!(first.state.running.is_some() && !first.ready, "{first:?}");
    });
}

#[test]
fn probes_end_with_their_pod() {
    simulate(async {
        let mut node = node().await;
        let web = probed(&["readiness", "liveness"]);
        node.want(PodSource::File, std::slice::from_ref(&web));
        node.wait(MINUTE).await;
        node.want(PodSource::File, &[]);
        node.wait(MINUTE).await;
        let runs_before = runs(&node);
        node.wait(10 * MINUTE).await;
        assert_eq!(runs(&node), runs_before);
        assert!(told(&node).iter().all(|message| !message.contains("probe")), "{:?}", told(&node));
    });
}

#[test]
fn liveness_kill_counts_as_failure_even_with_exit_code_0() {
    simulate(async {
        let mut node = node().await;
        let graceful = Program { on_stop: OnStop::Exits { after: SECOND, code: 0 }, ..Program::forever() };
        node.fake.script(&Act::Forever.image(), graceful);
        let mut web = probed(&["liveness"]);
        Rc::make_mut(&mut web.pod).spec.restart_policy = "OnFailure".to_owned();
        script(&node, "liveness", 1);
        node.want(PodSource::File, std::slice::from_ref(&web));
        node.wait(27 * SECOND).await;
        let waiting = shown(&node, &web).state.waiting.expect("its second restart waits");
        assert_eq!(
            (waiting.reason.as_str(), status(&node, &web).phase.as_str()),
            ("CrashLoopBackOff", "Running")
        );
        script(&node, "liveness", 0);
        node.wait(MINUTE).await;
        let after = shown(&node, &web);
        assert_eq!((after.restart_count, after.ready, running(&node, "web").len()), (2, true, 1));
    });
}
