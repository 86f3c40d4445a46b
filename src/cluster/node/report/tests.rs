use super::*;
use crate::node::object::{Condition, Image};
use crate::runtime::RuntimeStatus;

const TIMES: StatusTimes = StatusTimes { update: Duration::from_secs(10), report: Duration::from_secs(300) };

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn state(now: i64) -> NodeState {
    let condition =
        |kind, holds| Condition { kind, holds, since: Timestamp::from_secs(50), ..Condition::default() };
    NodeState {
        name: "n1".to_owned(),
        addresses: vec!["10.0.0.1".to_owned()],
        hostname: "n1".to_owned(),
        conditions: vec![condition("MemoryPressure", false), condition("Ready", true)],
        now: Timestamp::from_secs(now),
        ..NodeState::default()
    }
}

fn posted(state: &NodeState) -> Posted {
    let status = own_status(state, &Posted::default());
    Posted::of(&status, at(100), StatusChange::None, &TIMES, 0.0)
}

fn change(last: &Posted, state: &NodeState) -> StatusChange {
    last.change(&own_status(state, last))
}

#[test]
fn an_unchanged_node_posts_every_5_minutes() {
    let last = posted(&state(1000));
    let unchanged = change(&last, &state(1250));
    assert_eq!((unchanged, when(&last, unchanged, &TIMES)), (StatusChange::None, at(400)));
    for (unit, due) in [(0.0, 250), (0.5, 400), (1.0, 550)] {
        let status = own_status(&state(1000), &last);
        let after_change = Posted::of(&status, at(100), StatusChange::Facts, &TIMES, unit);
        assert_eq!(when(&after_change, StatusChange::None, &TIMES), at(due));
    }
}

#[test]
fn a_condition_is_posted_at_once_and_other_facts_together() {
    let last = posted(&state(1000));
    let mut facts = state(1001);
    facts.images.push(Image { names: vec!["a".to_owned()], size: 1 });
    assert_eq!(change(&last, &facts), StatusChange::Facts);
    assert_eq!(when(&last, StatusChange::Facts, &TIMES), at(110));
    facts.conditions[1].holds = false;
    assert_eq!(change(&last, &facts), StatusChange::Urgent);
    assert_eq!(when(&last, StatusChange::Urgent, &TIMES), at(100));
    let slow = StatusTimes { update: at(900), report: at(300) };
    assert_eq!(when(&last, StatusChange::Facts, &slow), at(400), "never later than an equal status");
}

#[test]
fn a_transition_keeps_its_time_over_a_restart() {
    let server = json!({"status": {"conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:07Z", "lastHeartbeatTime": "x"},
        {"type": "MemoryPressure", "status": "Unknown", "lastTransitionTime": "1970-01-01T00:15:00Z"},
        {"type": "NetworkUnavailable", "status": "False"},
    ]}});
    let before = Posted::of_server(&server, at(7));
    let status = own_status(&state(1000), &before);
    assert_eq!(status["conditions"][1]["lastTransitionTime"], "1970-01-01T00:00:07Z");
    assert_eq!(
        status["conditions"][0]["lastTransitionTime"], "1970-01-01T00:16:40Z",
        "later than the last one"
    );
    assert_eq!(status["conditions"].as_array().unwrap().len(), 2);
    assert_eq!(when(&before, change(&before, &state(1000)), &TIMES), at(7));
    let mut later = state(1000);
    later.conditions[0].since = Timestamp::from_secs(950);
    assert_eq!(own_status(&later, &before)["conditions"][0]["lastTransitionTime"], "1970-01-01T00:15:50Z");
}

#[test]
fn a_condition_that_another_writer_changed_is_seen() {
    let last = posted(&state(1000));
    let shown = |ready: &str| {
        json!({"status": {"conditions": [{"type": "Ready", "status": ready, "reason": "r"},
            {"type": "MemoryPressure", "status": "False"}, {"type": "NetworkUnavailable", "status": "True"}]}})
    };
    assert!(!last.was_overwritten(&shown("True")));
    assert!(last.was_overwritten(&shown("Unknown")));
    assert!(last.was_overwritten(&json!({})));
}

#[test]
fn foreign_conditions_survive_a_status() {
    let amount = |units| crate::model::api::quantity::Quantity::from_units(units);
    let mut before = state(1000);
    for name in ["cpu", "hugepages-2Mi", "example.org/gpu"] {
        before.capacity.insert(name.to_owned(), amount(4));
    }
    let last = posted(&before);
    let mut now = state(1000);
    now.capacity.insert("cpu".to_owned(), amount(4));
    let patch = status_patch(own_status(&now, &last), &last, false);
    assert_eq!(
        patch["status"]["capacity"],
        json!({"cpu": "4", "hugepages-2Mi": null, "example.org/gpu": "0"}),
        "resources of others are not named"
    );
    let kinds: Vec<&Value> =
        patch["status"]["conditions"].as_array().unwrap().iter().map(|one| &one["type"]).collect();
    assert_eq!(kinds, ["MemoryPressure", "Ready"]);
    assert_eq!(patch["status"]["addresses"][2], json!({"$patch": "replace"}));
    assert_eq!((patch.get("metadata"), patch.get("spec")), (None, None));
    let cloud = status_patch(own_status(&now, &last), &last, true);
    assert_eq!(cloud["status"].get("addresses"), None);
}

#[test]
fn network_trouble_is_not_ready() {
    let features = |network_ready: Result<(), String>| {
        Some(RuntimeStatus {
            runtime_ready: Ok(()),
            network_ready,
            handlers: Vec::new(),
            supplemental_groups_policy: None,
        })
    };
    let ready = |mut state: NodeState| {
        require_network(&mut state);
        (state.conditions[1].holds, state.conditions[1].message.clone())
    };
    assert!(ready(state(0)).0, "the runtime has not answered: its own condition says so");
    assert!(ready(NodeState { features: features(Ok(())), ..state(0) }).0);
    let why = Err("NetworkPluginNotReady: cni plugin not initialized".to_owned());
    let troubled = NodeState { features: features(why), ..state(0) };
    let said = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni \
                plugin not initialized";
    assert_eq!(ready(troubled.clone()), (false, said.to_owned()));
    let mut shutting = troubled;
    shutting.conditions[1] =
        Condition { kind: "Ready", message: "node is shutting down".to_owned(), ..Condition::default() };
    assert_eq!(ready(shutting), (false, "node is shutting down".to_owned()));
}

#[test]
fn conditions_make_upstreams_events() {
    let of = |all: &[(&str, &str)]| {
        all.iter().map(|(kind, status)| json!({"type": kind, "status": status})).collect::<Vec<_>>()
    };
    let sufficient = ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"];
    let fine =
        [("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False"), ("Ready", "True")];
    let unknown = fine.map(|(kind, _)| (kind, "Unknown"));
    let with = |kind, status| fine.map(|one| if one.0 == kind { (kind, status) } else { one });
    let all = [&sufficient[..], &["NodeReady"]].concat();
    for (before, now, is_first, expected) in [
        (&[][..], fine, true, &all[..]),
        (&fine, fine, true, &[]),
        (&unknown, fine, false, &all),
        (&with("Ready", "False"), fine, false, &["NodeReady"]),
        (&fine, with("Ready", "False"), false, &["NodeNotReady"]),
        (&[], with("Ready", "False"), true, &sufficient),
        (&with("MemoryPressure", "True"), fine, true, &["NodeHasSufficientMemory"]),
        // The eviction manager's own.
        (&with("MemoryPressure", "True"), fine, false, &[]),
        (&fine, with("MemoryPressure", "True"), false, &[]),
    ] {
        let status = json!({"conditions": of(&now)});
        assert_eq!(condition_events(&of(before), &status, is_first), expected, "{before:?} {now:?}");
    }
}
