//! The agent or the runtime goes away and comes back.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use super::Node;
use super::restarts::kill_instance;
use crate::support::agent::PATIENCE;
use crate::support::containerd::Instance;
use crate::support::runtime::TestRuntime;
use crate::support::wait::{stays, wait_for};

#[test]
fn task_unknown_to_cri_does_not_block_pod_removal() {
    let mut node = Node::new();
    // Once `again` is there the container's command runs for ever: started behind CRI's back, as after a start whose caller died.
    let mut pod = node.pod("lost", "[ -f /out/again ] && sleep 1000; touch /out/again");
    pod["spec"]["restartPolicy"] = json!("OnFailure");
    let other = node.container("other", "sleep 1000");
    pod["spec"]["containers"].as_array_mut().expect("a list").push(other);
    node.apply(&pod);
    node.agent.start();
    let id = node.agent.wait_for_pod("lost", "half done", |pod| {
        let mut statuses = pod["status"]["containerStatuses"].as_array()?.iter();
        let main = statuses.find(|status| status["name"] == "main")?;
        main["state"]["terminated"].as_object()?;
        Some(main["containerID"].as_str()?.trim_start_matches("containerd://").to_owned())
    });
    node.runtime.containerd().ctr(&["tasks", "start", "--detach", "--null-io", &id]);
    let task = || node.runtime.containerd().ctr(&["tasks", "list"]).lines().any(|line| line.starts_with(&id));
    assert!(task(), "the task runs");
    node.delete("lost");
    node.gone("lost");
    assert!(!task(), "and is gone with the pod");
}

fn pods_outlive_the_agent_and_a_new_one_adopts_them() {
    let mut node = Node::new();
    node.apply(&node.pod("web", "sleep 1000"));
    node.agent.start();
    node.running("web");
    let before = node.runtime.instances();

    assert!(node.agent.terminate().success());
    assert_eq!(node.runtime.instances(), before, "ending the agent ends nothing else");

    node.agent.start();
    node.agent.wait_for_phase("web", "Running");
    stays("the pod", Duration::from_secs(2), || {
        let now = node.runtime.instances();
        if now == before { Ok(()) } else { Err(format!("{now:?} instead of {before:?}")) }
    });
}

fn a_restart_of_the_runtime_restarts_only_what_died_meanwhile() {
    let mut node = Node::new();
    node.apply(&node.pod("stable", "sleep 1000"));
    node.apply(&node.pod("dying", "sleep 1000"));
    node.agent.start();
    let stable = node.running("stable");
    let dying = node.running("dying");

    node.runtime.end_daemon(Signal::SIGTERM);
    kill_instance(&dying);
    stays("the agent", Duration::from_secs(2), || {
        node.agent.assert_alive();
        Ok(())
    });
    node.runtime.start_daemon();

    let replaced = node.running_other_than("dying", &dying.id);
    assert_eq!(replaced.uid, dying.uid);
    assert_eq!(node.running("stable"), stable);
}

/// Killed while it works for several pods; what it was asked meanwhile is done once when it is back, and its events come again.
fn a_killed_runtime_comes_back_and_nothing_is_made_twice() {
    let mut node = Node::new();
    let mut bridged = node.pod("stable", "sleep 1000");
    bridged["spec"]["hostNetwork"] = json!(false);
    node.apply(&bridged);
    node.apply(&node.pod("dying", "sleep 1000"));
    node.apply(&node.pod("goes", "sleep 1000"));
    node.agent.start();
    let [stable, dying, _] = ["stable", "dying", "goes"].map(|name| node.running(name));
    let address = |node: &mut Node| {
        node.agent.wait_for_pod("stable", "with an address", |pod| {
            pod["status"]["podIP"].as_str().map(str::to_owned)
        })
    };
    let before = address(&mut node);

    // In the middle of the work for one pod, and with a change of every sort until it is back.
    node.apply(&node.pod("early", "sleep 1000"));
    node.runtime.end_daemon(Signal::SIGKILL);
    kill_instance(&dying);
    node.apply(&node.pod("late", "sleep 1000"));
    node.delete("goes");
    stays("the agent", Duration::from_secs(3), || {
        node.agent.assert_alive();
        Ok(())
    });
    node.runtime.start_daemon();

    let replaced = node.running_other_than("dying", &dying.id);
    node.running("early");
    node.running("late");
    node.gone("goes");
    assert_eq!(replaced.uid, dying.uid);
    assert_eq!(node.running("stable"), stable);
    assert_eq!(address(&mut node), before);
    let sandboxes: Vec<String> =
        node.runtime.instances().into_iter().filter(Instance::is_sandbox).map(|found| found.pod).collect();
    let expected = ["dying", "early", "late", "stable"].map(super::full_name);
    assert_eq!(sandboxes, expected, "one sandbox for each pod: {}", node.agent.log_tail());

    // Long before all is listed again, which happens once a minute.
    let killed = Instant::now();
    kill_instance(&stable);
    node.running_other_than("stable", &stable.id);
    assert!(killed.elapsed() < Duration::from_secs(30), "{:?}: {}", killed.elapsed(), node.agent.log_tail());
}

fn a_sandbox_removed_by_docker_rm_gives_its_network_back() {
    let mut node = Node::new();
    let mut pod = node.pod("web", "sleep 1000");
    pod["spec"]["hostNetwork"] = json!(false);
    node.apply(&pod);
    node.agent.start();
    let container = node.running("web");
    let TestRuntime::Docker(docker) = &node.runtime else { panic!("this is about Docker") };
    let sandbox = docker.instances().into_iter().find(Instance::is_sandbox).expect("the pod has one");
    let gone = docker.call("DELETE", &format!("/containers/{}?force=1", sandbox.id), &[]);
    assert!(gone.as_ref().is_ok_and(|answer| answer.0 == 204), "{gone:?}");
    node.running_other_than("web", &container.id);
    let records = node.runtime.scratch().path().join("state/network");
    wait_for("its record to go", PATIENCE, || {
        let files = std::fs::read_dir(&records).expect("list the records").flatten();
        let found: Vec<String> = files
            .filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".json")?.to_owned()))
            .collect();
        if found.len() == 1 && found[0] != sandbox.id { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

mod only_docker {
    use crate::support::runtime::{Kind, on};

    #[test]
    fn a_sandbox_removed_by_docker_rm_gives_its_network_back() {
        on(Kind::Docker, super::a_sandbox_removed_by_docker_rm_gives_its_network_back);
    }
}

fn manifest_removed_while_the_agent_is_down_stops_its_pod() {
    let mut node = Node::new();
    node.apply(&node.pod("stays", "sleep 1000"));
    node.apply(&node.pod("goes", "sleep 1000"));
    node.agent.start();
    let stays = node.running("stays");
    let goes = node.running("goes");
    node.agent.kill9();
    node.delete("goes");

    node.agent.start();

    node.gone("goes");
    let directory = node.agent.root_dir().join("pods").join(&goes.uid);
    wait_for("the pod's directory to go", PATIENCE, || {
        if directory.exists() { Err(directory.display().to_string()) } else { Ok(()) }
    });
    assert_eq!(node.running("stays"), stays);
}

fn a_manifest_directory_that_disappears_stops_nothing() {
    let mut node = Node::new();
    node.apply(&node.pod("web", "sleep 1000"));
    node.agent.start();
    let before = node.running("web");
    let away = node.agent.manifest_dir().with_extension("away");
    std::fs::rename(node.agent.manifest_dir(), &away).expect("move the directory away");
    stays("the pod", Duration::from_secs(3), || {
        let now = node.runtime.running("web-edge");
        if now == [before.clone()] { Ok(()) } else { Err(format!("{now:?}")) }
    });
    node.agent.kill9();
    node.agent.start();
    stays("the pod", Duration::from_secs(3), || {
        let now = node.runtime.running("web-edge");
        if now == [before.clone()] { Ok(()) } else { Err(format!("{now:?}")) }
    });
    std::fs::rename(&away, node.agent.manifest_dir()).expect("move the directory back");
    node.delete("web");
    node.gone("web");
}

super::on_every_daemon! {
    a_restart_of_the_runtime_restarts_only_what_died_meanwhile,
    a_killed_runtime_comes_back_and_nothing_is_made_twice,
}
super::on_every_runtime! {
    pods_outlive_the_agent_and_a_new_one_adopts_them,
    manifest_removed_while_the_agent_is_down_stops_its_pod,
    a_manifest_directory_that_disappears_stops_nothing,
}
