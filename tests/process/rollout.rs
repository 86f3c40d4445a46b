//! A server's new set that does not start: the last good one comes back, is told, and stays over restarts of the agent.

use serde_json::{Value, json};

use super::node::{Node, pod};
use crate::support::agent::PATIENCE;
use crate::support::http_server::{Answer, HttpServer};
use crate::support::wait::wait_until;

fn answer(pods: &[Value]) -> Answer {
    Answer::manifest(&json!({"apiVersion": "v1", "kind": "PodList", "items": pods}).to_string())
}

fn unpullable(name: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["image"] = json!("localhost/nowhere:1");
    pod["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    pod
}

#[test]
fn a_set_that_does_not_start_is_given_up_for_the_last_good_one() {
    let server = HttpServer::start(answer(&[pod("web")]));
    let mut node = Node::new();
    node.agent.argument(format!("--manifest-url={}", server.url("/pods.yaml")));
    node.agent.argument("--manifest-url-rollback-after=20s");
    let neighbour = node.start_with_neighbour();
    let web = node.running("web");
    // Good after five seconds without a break; until then there would be nothing to go back to.
    node.logged(&["First pod set started"]);

    server.answer(answer(&[unpullable("web"), pod("extra")]));
    node.logged(&["Started trial of new pod set", "20s"]);
    let extra = node.running("extra");
    let status = node.agent.cli(&["status", "--exit-zero"]).expect("the agent answers");
    assert!(status.contains("http     trial"), "{status}");
    node.keeps_running("extra", &extra);
    let problem = node.problem(&["did not start within 20s", "default/web", "ErrImageNeverPull"]);
    assert!(problem.starts_with(&server.url("/pods.yaml")), "{problem}");
    let back = node.running_other_than("web", Some(&web));
    node.stopped("extra");
    node.keeps_running("neighbour", &neighbour);
    assert_eq!(node.log_lines(&["Problem with a pod source", "RolledBack"]).len(), 1);
    let events = node.agent.cli(&["status", "-o", "json", "--exit-zero"]).expect("the agent answers");
    assert!(events.contains("RolledBack"), "{events}");

    // The server still says it; neither this agent nor the next tries it again.
    let before = server.requests();
    wait_until("the server to be asked again", PATIENCE, || server.requests() > before + 5);
    node.keeps_running("web", &back);
    node.agent.kill9();
    node.agent.start();
    node.problem(&["did not start within 20s"]);
    let before = server.requests();
    wait_until("the server to be asked again", PATIENCE, || server.requests() > before + 5);
    node.keeps_running("web", &back);

    // Another answer is another try.
    let mut newer = pod("web");
    newer["spec"]["containers"][0]["args"] = json!(["newer"]);
    server.answer(answer(&[newer]));
    let newer = node.running_other_than("web", Some(&back));
    node.no_problems();
    node.logged(&["New pod set started"]);
    node.keeps_running("web", &newer);
    node.keeps_running("neighbour", &neighbour);
}

#[test]
fn a_trial_goes_on_in_the_next_life_of_the_agent() {
    let server = HttpServer::start(answer(&[pod("web")]));
    let mut node = Node::new();
    node.agent.argument(format!("--manifest-url={}", server.url("/pods.yaml")));
    node.agent.argument("--manifest-url-rollback-after=20s");
    node.agent.start();
    let web = node.running("web");
    node.logged(&["First pod set started"]);
    server.answer(answer(&[unpullable("web")]));
    node.logged(&["Started trial of new pod set"]);
    // Its successor has a sandbox at once, so the pod itself is seen stopped by chance only.
    wait_until("the good one to be stopped", PATIENCE, || {
        !node.all_running().values().flatten().any(|running| *running == web)
    });
    node.agent.kill9();
    // Without its server: what was good is in the store.
    drop(server);
    node.agent.start();
    node.problem(&["did not start within 20s"]);
    node.running_other_than("web", Some(&web));
}

#[test]
fn a_time_that_makes_no_sense_is_refused_by_name() {
    for (time, why) in [("-1s", "must not be negative"), ("1m", "cannot be used with --runonce")] {
        let mut node = Node::new();
        node.agent.argument(format!("--manifest-url-rollback-after={time}"));
        let output = node.agent.run_once(&[]);
        let said = super::node::said(&output);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("--manifest-url-rollback-after") && said.contains(why), "{said}");
    }
}
