//! What sources say, and what they do not say.

use edge_agent::model::source::SourceAnswer;
use edge_agent::model::types::PodSource;

use super::{MINUTE, SECOND, files, is_empty, node, node_with, running, status};
use crate::sim::node::simulate;
use crate::sim::pods::{Act, Manifest};

#[test]
fn nothing_is_removed_by_silence() {
    simulate(async {
        let mut node = node().await;
        node.want(PodSource::File, &files(&[&Manifest::new("web", "Always", Act::Forever)]));
        node.wait(10 * SECOND).await;
        let before = running(&node, "web");
        assert_eq!(before.len(), 1);
        for speaks in [true, false] {
            node.crash();
            node.start().await;
            if speaks {
                assert!(node.say(PodSource::File, SourceAnswer::Unknown));
            }
            node.wait(60 * MINUTE).await;
            assert_eq!(running(&node, "web"), before);
        }
        node.want(PodSource::File, &[]);
        node.wait(MINUTE).await;
        assert!(is_empty(&node), "a valid answer without the pod removes it");
    });
}

#[test]
fn a_pod_waits_for_an_earlier_one_of_its_name() {
    simulate(async {
        let mut node = node().await;
        let old = Manifest::new("web", "Always", Act::Stubborn);
        let new = Manifest { version: 1, containers: vec![Act::Forever], ..old.clone() };
        node.want(PodSource::File, &files(&[&old]));
        node.wait(10 * SECOND).await;
        let before = running(&node, "web");
        let new = files(&[&new]);
        node.want(PodSource::File, &new);
        node.wait(29 * SECOND).await;
        assert_eq!(running(&node, "web"), before, "it has thirty seconds to end");
        let waiting = status(&node, &new[0]);
        assert_eq!(waiting.phase, "Pending");
        assert_eq!(waiting.message, "waiting for a previous pod of the same name to terminate");
        node.wait(5 * SECOND).await;
        let after = running(&node, "web");
        assert!(after.len() == 1 && after != before, "{after:?} after {before:?}");
        let now = status(&node, &new[0]);
        assert_eq!((now.phase.as_str(), now.message.as_str()), ("Running", ""));
    });
}

#[test]
fn the_pod_that_has_the_name_keeps_it_through_a_restart() {
    simulate(async {
        let mut node = node_with(&[PodSource::File, PodSource::Http]).await;
        let manifest = Manifest {
            containers: vec![Act::Done, Act::Forever],
            ..Manifest::new("web", "Never", Act::Forever)
        };
        let (first, second) = (manifest.parse(PodSource::Http), manifest.parse(PodSource::File));
        node.want(PodSource::Http, std::slice::from_ref(&first));
        node.wait(10 * SECOND).await;
        let before = running(&node, "web");
        assert_eq!(before.len(), 1);
        node.want(PodSource::File, std::slice::from_ref(&second));
        for _ in 0..2 {
            node.wait(MINUTE).await;
            assert_eq!(running(&node, "web"), before);
            assert_eq!(status(&node, &first).phase, "Running");
            assert_eq!(status(&node, &second).phase, "Pending");
            node.crash();
            node.start().await;
        }
    });
}

#[test]
fn a_new_pod_starts_before_the_running_ones_are_compared() {
    const RUNNING: usize = 30;
    simulate(async {
        let mut node = node().await;
        let names: Vec<String> = (0..RUNNING).map(|number| format!("old{number}")).collect();
        let mut manifests: Vec<Manifest> =
            names.iter().map(|name| Manifest::new(name, "Always", Act::Forever)).collect();
        node.want(PodSource::File, &files(&manifests.iter().collect::<Vec<_>>()));
        node.wait(MINUTE).await;
        node.crash();
        node.fake.clear_calls();
        node.start().await;
        // Read before the agent has started a worker. Its name is the last, as its file is.
        manifests.push(Manifest::new("young", "Always", Act::Forever));
        node.want(PodSource::File, &files(&manifests.iter().collect::<Vec<_>>()));
        node.wait(MINUTE).await;
        let calls = node.fake.calls();
        let compared = calls.iter().take_while(|call| call.call != "RunPodSandbox");
        let compared = compared.filter(|call| call.call == "PodSandboxStatus").count();
        assert!(compared < RUNNING / 2, "{compared} of {RUNNING} came first");
        assert_eq!(calls.iter().filter(|call| call.call == "RunPodSandbox").count(), 1);
        assert!(names.iter().chain([&"young".to_owned()]).all(|name| running(&node, name).len() == 1));
    });
}

#[test]
fn a_pod_that_goes_and_comes_back_during_a_start_runs() {
    simulate(async {
        let mut node = node().await;
        let web = files(&[&Manifest::new("web", "Always", Act::Forever)]);
        for pods in [web.as_slice(), &[], &web] {
            node.want(PodSource::File, pods);
        }
        node.wait(MINUTE).await;
        assert_eq!(running(&node, "web").len(), 1);
        node.crash();
        node.start().await;
        for pods in [[].as_slice(), &web, &[], &web] {
            node.want(PodSource::File, pods);
        }
        node.wait(MINUTE).await;
        assert_eq!(running(&node, "web").len(), 1);
    });
}

#[test]
fn orphans_are_removed_only_after_every_source_has_spoken() {
    simulate(async {
        let mut node = node_with(&[PodSource::File, PodSource::Http]).await;
        node.want(PodSource::File, &files(&[&Manifest::new("web", "Always", Act::Forever)]));
        node.wait(10 * SECOND).await;
        let before = running(&node, "web");
        node.stop().await;
        std::fs::remove_file(node.store_path()).expect("lose the store");
        node.start().await;
        node.want(PodSource::File, &[]);
        node.wait(30 * MINUTE).await;
        assert_eq!(running(&node, "web"), before, "the other source may want it");
        assert!(node.say(PodSource::Http, SourceAnswer::Unknown));
        node.wait(MINUTE).await;
        assert_eq!(running(&node, "web"), before, "no answer is not an answer");
        node.want(PodSource::Http, &[]);
        node.wait(MINUTE).await;
        assert!(is_empty(&node));
    });
}

#[test]
fn pods_of_a_source_no_longer_configured_are_removed() {
    simulate(async {
        let mut node = node_with(&[PodSource::File, PodSource::Http]).await;
        node.want(PodSource::File, &files(&[&Manifest::new("web", "Always", Act::Forever)]));
        let other = Manifest::new("other", "Always", Act::Forever).parse(PodSource::Http);
        node.want(PodSource::Http, &[other]);
        node.wait(10 * SECOND).await;
        let before = running(&node, "web");
        node.stop().await;
        node.sources = vec![PodSource::File];
        node.start().await;
        node.wait(MINUTE).await;
        assert_eq!(running(&node, "web"), before);
        assert!(running(&node, "other").is_empty());
    });
}
