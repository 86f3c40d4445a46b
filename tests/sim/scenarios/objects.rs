//! Objects that come late, change and go while pods use them.

use std::path::PathBuf;

use edge_agent::model::source::{SourceAnswer, SourcePod};
use edge_agent::model::types::PodSource;

use super::{MINUTE, SECOND, node, running, status};
use crate::sim::node::{Node, simulate};
use crate::sim::pods::{Act, config_map, parse_text};

/// A pod with a ConfigMap as volume and in a variable.
fn pod(volume: &str, variable: &str) -> SourcePod {
    let text = format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "web", "namespace": "default"}},
          "spec": {{"volumes": [{{"name": "config", "configMap": {{"name": "{volume}"}}}}],
            "containers": [{{"name": "c0", "image": "{}", "imagePullPolicy": "IfNotPresent",
              "env": [{{"name": "K", "valueFrom": {{"configMapKeyRef": {{"name": "{variable}", "key": "k"}}}}}}],
              "volumeMounts": [{{"name": "config", "mountPath": "/etc/app"}}]}}]}}}}"#,
        Act::Forever.image()
    );
    parse_text("web", &text, PodSource::File)
}

/// What the file source defines from its next word on.
fn define(node: &mut Node, objects: &[(&str, &str)]) {
    let objects = objects.iter().map(|(name, value)| config_map(name, value, PodSource::File));
    node.defined.insert(PodSource::File, objects.collect());
}

fn volume(node: &Node, pod: &SourcePod) -> PathBuf {
    let uid = pod.pod.metadata.uid.as_str();
    node.path("pods").join(uid).join("volumes/kubernetes.io~configmap/config")
}

fn content(node: &Node, pod: &SourcePod) -> Option<String> {
    std::fs::read_to_string(volume(node, pod).join("k")).ok()
}

#[test]
fn a_pod_waits_for_its_objects_and_starts_by_itself() {
    simulate(async {
        let mut node = node().await;
        let web = pod("files", "variables");
        node.want(PodSource::File, std::slice::from_ref(&web));
        node.wait(5 * MINUTE).await;
        let waiting = status(&node, &web);
        let message = "MountVolume.SetUp failed for volume \"config\" : configmap \"files\" not found";
        assert_eq!((waiting.phase.as_str(), waiting.message.as_str()), ("Pending", message));
        define(&mut node, &[("files", "1")]);
        node.want(PodSource::File, std::slice::from_ref(&web));
        node.wait(SECOND).await;
        assert_eq!(content(&node, &web).as_deref(), Some("1"));
        let waiting = status(&node, &web).container_statuses[0].state.waiting.clone().expect("it waits");
        assert_eq!(
            (waiting.reason.as_str(), waiting.message.as_str()),
            ("CreateContainerConfigError", "configmap \"variables\" not found")
        );
        define(&mut node, &[("files", "1"), ("variables", "x")]);
        node.want(PodSource::File, std::slice::from_ref(&web));
        node.wait(SECOND).await;
        assert_eq!(running(&node, "web").len(), 1, "told of new objects it does not wait out its pause");
    });
}

#[test]
fn a_changed_object_reaches_the_files_of_a_running_pod() {
    simulate(async {
        let mut node = node().await;
        let web = pod("files", "files");
        let want = |node: &Node| node.want(PodSource::File, std::slice::from_ref(&web));
        define(&mut node, &[("files", "1")]);
        want(&node);
        node.wait(10 * SECOND).await;
        let before = running(&node, "web");
        assert_eq!(before.len(), 1);
        define(&mut node, &[("files", "2")]);
        want(&node);
        node.wait(SECOND).await;
        assert_eq!(content(&node, &web).as_deref(), Some("2"));

        let version = std::fs::read_link(volume(&node, &web).join("..data")).unwrap();
        node.crash();
        node.start().await;
        node.wait(MINUTE).await;
        assert_eq!(std::fs::read_link(volume(&node, &web).join("..data")).unwrap(), version);

        define(&mut node, &[]);
        want(&node);
        node.wait(SECOND).await;
        assert_eq!(content(&node, &web).as_deref(), Some("2"), "an object that goes takes nothing along");
        assert_eq!(running(&node, "web"), before);

        define(&mut node, &[("files", "3")]);
        node.crash();
        node.start().await;
        want(&node);
        node.wait(SECOND).await;
        assert_eq!(content(&node, &web).as_deref(), Some("3"), "changed while no agent was there");
        assert_eq!(running(&node, "web"), before);
    });
}

#[test]
fn power_cut_without_sources_keeps_a_pods_objects() {
    simulate(async {
        let mut node = node().await;
        let web = pod("files", "files");
        define(&mut node, &[("files", "1")]);
        node.want(PodSource::File, std::slice::from_ref(&web));
        node.wait(10 * SECOND).await;
        assert_eq!(running(&node, "web").len(), 1);
        node.crash();
        node.fake.reboot();
        std::fs::remove_dir_all(node.path("pods")).unwrap();
        node.start().await;
        assert!(node.say(PodSource::File, SourceAnswer::Unknown));
        node.wait(20 * SECOND).await;
        assert_eq!(running(&node, "web").len(), 1);
        assert_eq!(content(&node, &web).as_deref(), Some("1"));
    });
}
