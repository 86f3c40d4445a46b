//! Pods' cgroups over a pod's life and over the agent's.

use std::path::PathBuf;

use edge_agent::model::source::SourcePod;
use edge_agent::model::types::PodSource;

use super::{MINUTE, SECOND, files, node, running, status};
use crate::sim::node::{Node, simulate};
use crate::sim::pods::{Act, Manifest};

fn besteffort(node: &Node, name: &str) -> PathBuf {
    node.path("cgroup/kubepods/besteffort").join(name)
}

fn cgroup(node: &Node, pod: &SourcePod) -> PathBuf {
    besteffort(node, &format!("pod{}", pod.pod.metadata.uid))
}

#[test]
fn a_pods_cgroup_is_there_while_the_pod_is_and_not_longer() {
    simulate(async {
        let mut node = node().await;
        node.wait(5 * SECOND).await;
        assert!(node.path("cgroup/kubepods/burstable").is_dir(), "the classes are there before any pod");
        let wanted = files(&[&Manifest::new("web", "Always", Act::Forever)]);
        node.want(PodSource::File, &wanted);
        node.wait(10 * SECOND).await;
        assert_eq!(running(&node, "web").len(), 1);
        assert!(cgroup(&node, &wanted[0]).is_dir());
        node.want(PodSource::File, &[]);
        node.wait(MINUTE).await;
        assert!(!cgroup(&node, &wanted[0]).exists());
    });
}

#[test]
fn a_pod_whose_cgroup_cannot_be_made_waits_for_it_and_says_why() {
    simulate(async {
        let mut node = node().await;
        node.wait(5 * SECOND).await;
        let wanted = files(&[&Manifest::new("web", "Always", Act::Forever)]);
        std::fs::remove_dir_all(node.path("cgroup")).unwrap();
        std::fs::write(node.path("cgroup"), "in the way").unwrap();
        node.want(PodSource::File, &wanted);
        node.wait(5 * SECOND).await;
        assert!(node.fake.world().sandboxes.is_empty(), "nothing runs outside its limits");
        let shown = status(&node, &wanted[0]);
        let expected = format!(
            "unable to ensure pod container exists: failed to create container for [kubepods besteffort pod{}] : ",
            wanted[0].pod.metadata.uid
        );
        assert!(shown.message.starts_with(&expected), "{}", shown.message);
        assert_eq!(shown.reason, "FailedCreatePodContainer");
        std::fs::remove_file(node.path("cgroup")).unwrap();
        std::fs::create_dir(node.path("cgroup")).unwrap();
        node.wait(15 * SECOND).await;
        assert_eq!(running(&node, "web").len(), 1);
    });
}

#[test]
fn orphaned_cgroup_goes_only_after_all_sources_report() {
    simulate(async {
        let mut node = node().await;
        let wanted = files(&[&Manifest::new("web", "Always", Act::Forever)]);
        node.want(PodSource::File, &wanted);
        node.wait(10 * SECOND).await;
        assert!(cgroup(&node, &wanted[0]).is_dir());
        node.crash();
        let lost = besteffort(&node, "podlost");
        std::fs::create_dir_all(lost.join("container")).unwrap();
        let foreign = besteffort(&node, "somebody-else");
        std::fs::create_dir(&foreign).unwrap();
        node.start().await;
        node.wait(MINUTE).await;
        assert!(lost.is_dir(), "no source has spoken");
        node.want(PodSource::File, &wanted);
        node.wait(MINUTE).await;
        assert!(!lost.exists());
        assert!(foreign.is_dir(), "no pod's name");
        assert!(cgroup(&node, &wanted[0]).is_dir(), "a pod that is wanted keeps its own");
        assert_eq!(running(&node, "web").len(), 1);
    });
}
