//! One pod against one node, reason by reason, in upstream's words.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::model::api::decode::decode;
use crate::model::api::quantity::Quantity;

fn pod(spec: &Value) -> Pod {
    let raw = json!({"metadata": {"name": "p", "namespace": "default", "uid": "p"}, "spec": spec});
    decode(raw).unwrap().object
}

fn asking(requests: &Value) -> Pod {
    pod(&json!({"containers": [{"name": "c", "resources": {"requests": requests}}]}))
}

fn node() -> NodeFacts {
    let amounts = [
        ("cpu", "2"),
        ("memory", "1Gi"),
        ("pods", "3"),
        ("ephemeral-storage", "10Gi"),
        ("hugepages-2Mi", "4Mi"),
    ];
    NodeFacts {
        name: "n1".to_owned(),
        labels: node_labels("host", "amd64", &[("zone".to_owned(), "7".to_owned())].into()),
        allocatable: amounts
            .into_iter()
            .map(|(name, amount)| (name.to_owned(), Quantity::parse(amount).unwrap()))
            .collect(),
        kernel: (4, 10),
        allowed_unsafe_sysctls: vec!["kernel.msg*".to_owned(), "net.core.somaxconn".to_owned()],
        ..NodeFacts::default()
    }
}

fn verdict(pod: &Pod, others: &[&Pod]) -> String {
    match admit(pod, others, &node()) {
        Ok(()) => "fits".to_owned(),
        Err(rejection) => format!("{}: {}", rejection.reason, rejection.message),
    }
}

#[test]
fn requests_are_summed_and_refused_with_upstream_messages() {
    let other = asking(&json!({"cpu": "1m", "memory": "512Mi", "ephemeral-storage": "9Gi"}));
    for (requests, expected) in [
        (json!({"cpu": "1999m"}), "fits"),
        (
            json!({"cpu": "4", "memory": "2Gi"}),
            "OutOfcpu: Node didn't have enough resource: cpu, requested: 4000, used: 1, capacity: 2000",
        ),
        (
            json!({"memory": "600Mi"}),
            "OutOfmemory: Node didn't have enough resource: memory, requested: 629145600, used: 536870912, capacity: 1073741824",
        ),
        (
            json!({"ephemeral-storage": "2Gi"}),
            "OutOfephemeral-storage: Node didn't have enough resource: ephemeral-storage, requested: 2147483648, used: 9663676416, capacity: 10737418240",
        ),
        (
            json!({"hugepages-2Mi": "6Mi"}),
            "OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 6291456, used: 0, capacity: 4194304",
        ),
        // Upstream admits it, since a scheduler has checked it; here its plugin may register later.
        (
            json!({"example.com/gpu": "8"}),
            "OutOfexample.com/gpu: Node didn't have enough resource: example.com/gpu, requested: 8, used: 0, capacity: 0",
        ),
    ] {
        assert_eq!(verdict(&asking(&requests), &[&other]), expected, "{requests}");
    }
    let nothing = asking(&json!({}));
    let full = "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3";
    assert_eq!(verdict(&nothing, &[&nothing, &nothing]), "fits");
    assert_eq!(verdict(&nothing, &[&nothing, &nothing, &nothing]), full);
}

#[test]
fn overhead_sidecars_limits_and_pod_level_requests_count() {
    let with = |extra: Value| {
        let mut spec = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1500m"}}}]});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        verdict(&pod(&spec), &[])
    };
    let out = |requested: &str| {
        format!(
            "OutOfcpu: Node didn't have enough resource: cpu, requested: {requested}, used: 0, capacity: 2000"
        )
    };
    assert_eq!(with(json!({"overhead": {"cpu": "600m"}})), out("2100"));
    let sidecar = json!([{"name": "s", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}]);
    assert_eq!(with(json!({"initContainers": sidecar})), out("2500"));
    let init = json!([{"name": "i", "resources": {"requests": {"cpu": "2"}}}]);
    assert_eq!(with(json!({"initContainers": init})), "fits");
    assert_eq!(with(json!({"resources": {"requests": {"cpu": "3"}}})), out("3000"));
}

#[test]
fn only_safe_or_allowed_sysctls_pass_and_none_of_the_host() {
    let forbidden = |name: &str, why: &str| format!("SysctlForbidden: forbidden sysctl: {name:?} {why}");
    let asked = |name: &str, host: &str| {
        let mut spec =
            json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}, "containers": []});
        spec[host] = json!(!host.is_empty());
        verdict(&pod(&spec), &[])
    };
    for name in ["kernel.shm_rmid_forced", "net/ipv4/tcp_syncookies", "kernel.msgmax", "net.core.somaxconn"] {
        assert_eq!(asked(name, "none"), "fits", "{name}");
    }
    let unlisted = "not allowlisted";
    assert_eq!(asked("kernel.panic", "none"), forbidden("kernel.panic", unlisted));
    assert_eq!(
        asked("net.ipv4.tcp_rmem", "none"),
        forbidden("net.ipv4.tcp_rmem", unlisted),
        "needs kernel 4.15"
    );
    assert_eq!(asked("net.ipv4.tcp_fin_timeout", "none"), "fits", "needs kernel 4.6");
    let net = "not allowed with host Net enabled";
    assert_eq!(asked("net/core/somaxconn", "hostNetwork"), forbidden("net.core.somaxconn", net));
    let ipc = "not allowed with host IPC enabled";
    assert_eq!(asked("kernel.msgmax", "hostIPC"), forbidden("kernel.msgmax", ipc));
    assert_eq!(asked("kernel.msgmax", "hostNetwork"), "fits");
}

#[test]
fn host_ports_of_the_agent_are_not_given_away() {
    let own =
        |address: &str, port: i32, setting: &'static str| OwnPort { address: address.into(), port, setting };
    let node = NodeFacts {
        agent_ports: vec![own("127.0.0.1", 10250, "port"), own("0.0.0.0", 10255, "readOnlyPort")],
        ..NodeFacts::default()
    };
    let asked = |address: &str, protocol: &str, number: i32| {
        let pod = pod(&json!({"containers": [{"name": "c", "ports": [
            {"containerPort": 80, "hostPort": number, "protocol": protocol, "hostIP": address}]}]}));
        check_own_ports(&pod, &node.agent_ports).map_err(|rejection| (rejection.reason, rejection.message))
    };
    let refused = |port: i32, setting: &str| {
        let message = format!(
            "Predicate NodePorts failed: host port {port}/TCP is used by the agent ({setting}); \
             use another hostPort, or set {setting} to another port"
        );
        Err(("NodePorts".to_owned(), message))
    };
    assert_eq!(asked("", "TCP", 10250), refused(10250, "port"));
    assert_eq!(asked("127.0.0.1", "", 10250), refused(10250, "port"));
    assert_eq!(asked("::", "", 10250), refused(10250, "port"));
    assert_eq!(asked("10.0.0.1", "TCP", 10250), Ok(()));
    assert_eq!(asked("10.0.0.1", "TCP", 10255), refused(10255, "readOnlyPort"));
    assert_eq!(asked("", "UDP", 10250), Ok(()));
    assert_eq!(asked("", "TCP", 10248), Ok(()));
}

#[test]
fn host_ports_clash_by_number_protocol_and_address() {
    let port = |address: &str, protocol: &str, number: i32| {
        pod(&json!({"containers": [{"name": "c", "ports": [
            {"containerPort": 80, "hostPort": number, "protocol": protocol, "hostIP": address}]}]}))
    };
    let clash =
        "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    for (wanted, used, expected) in [
        (("", "TCP", 80), ("", "TCP", 80), clash),
        (("", "", 80), ("10.0.0.1", "TCP", 80), clash),
        (("10.0.0.1", "TCP", 80), ("0.0.0.0", "TCP", 80), clash),
        (("10.0.0.1", "TCP", 80), ("10.0.0.2", "TCP", 80), "fits"),
        (("", "UDP", 80), ("", "TCP", 80), "fits"),
        (("", "TCP", 81), ("", "TCP", 80), "fits"),
        (("", "TCP", 0), ("", "TCP", 0), "fits"),
    ] {
        let (wanted, used) = (port(wanted.0, wanted.1, wanted.2), port(used.0, used.1, used.2));
        assert_eq!(verdict(&wanted, &[&used]), expected, "{wanted:?} {used:?}");
    }
}

#[test]
fn node_selector_and_required_affinity_must_match_the_labels() {
    let mismatch =
        "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    let selected = |selector: Value| verdict(&pod(&json!({"nodeSelector": selector, "containers": []})), &[]);
    assert_eq!(selected(json!({"zone": "7", "kubernetes.io/arch": "amd64"})), "fits");
    assert_eq!(selected(json!({"kubernetes.io/arch": "arm64"})), mismatch);
    assert_eq!(
        selected(json!({"kubernetes.io/os": "windows"})),
        "PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
    );
    let with_terms = |terms: Value| {
        let required =
            json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        verdict(&pod(&json!({"affinity": {"nodeAffinity": required}, "containers": []})), &[])
    };
    let zone = |operator: &str, values: Value| json!([{"matchExpressions": [{"key": "zone", "operator": operator, "values": values}]}]);
    for (terms, expected) in [
        (zone("In", json!(["6", "7"])), "fits"),
        (zone("In", json!(["6"])), mismatch),
        (zone("NotIn", json!(["6"])), "fits"),
        (zone("NotIn", json!(["7"])), mismatch),
        (zone("Exists", json!([])), "fits"),
        (zone("DoesNotExist", json!([])), mismatch),
        (zone("Gt", json!(["6"])), "fits"),
        (zone("Gt", json!(["7"])), mismatch),
        (zone("Lt", json!(["8"])), "fits"),
        (zone("Lt", json!(["x"])), mismatch),
        (zone("Near", json!(["7"])), mismatch),
        (json!([]), mismatch),
        (json!([{}]), mismatch),
        (json!([{}, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]), "fits"),
        (json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]), "fits"),
        (json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]), mismatch),
        (
            json!([{"matchFields": [{"key": "metadata.uid", "operator": "NotIn", "values": ["n2"]}]}]),
            mismatch,
        ),
    ] {
        assert_eq!(with_terms(terms.clone()), expected, "{terms}");
    }
    let preferred =
        json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}});
    assert_eq!(verdict(&pod(&json!({"affinity": preferred, "containers": []})), &[]), "fits");
    assert_eq!(
        verdict(&pod(&json!({"nodeName": "n2", "containers": []})), &[]),
        "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name"
    );
}

#[test]
fn unsupported_features_are_refused_and_unknown_ones_tried() {
    let os = pod(&json!({"os": {"name": "windows"}, "containers": []}));
    assert_eq!(
        verdict(&os, &[]),
        "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS"
    );
    let apparmor = |type_: &str| {
        let profile = json!({"appArmorProfile": {"type": type_}});
        pod(&json!({"containers": [{"name": "c", "securityContext": profile}]}))
    };
    assert_eq!(
        verdict(&apparmor("RuntimeDefault"), &[]),
        "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host"
    );
    assert_eq!(verdict(&apparmor("Unconfined"), &[]), "fits");
    let enforcing = NodeFacts { apparmor: true, ..node() };
    assert_eq!(admit(&apparmor("RuntimeDefault"), &[], &enforcing), Ok(()));

    let wishes = pod(&json!({"hostUsers": false, "containers": [],
        "securityContext": {"supplementalGroupsPolicy": "Strict"}}));
    assert!(needs_runtime_features(&wishes) && !needs_runtime_features(&os));
    assert_eq!(verdict(&wishes, &[]), "fits");
    let mut knowing = NodeFacts { supplemental_groups_policy: Some(false), ..node() };
    let reason = |node: &NodeFacts| admit(&wishes, &[], node).unwrap_err().reason;
    assert_eq!(reason(&knowing), "SupplementalGroupsPolicyNotSupported");
    knowing.supplemental_groups_policy = Some(true);
    knowing.user_namespaces = Some(BTreeSet::new());
    assert_eq!(reason(&knowing), "PodFeatureUnsupported");
    // The pod's own handler counts, not the default one.
    knowing.user_namespaces = Some(BTreeSet::from(["able".to_owned()]));
    assert_eq!(reason(&knowing), "PodFeatureUnsupported");
    let mut elsewhere = wishes.clone();
    elsewhere.spec.runtime_class_name = Some("able".to_owned());
    assert_eq!(admit(&elsewhere, &[], &knowing), Ok(()));
}

#[test]
fn waiting_pods_are_ordered_by_priority_then_first_seen() {
    let waiting = |name: &str, class: &str, seen: &str| {
        let raw = json!({"metadata": {"uid": name, "annotations": {"kubernetes.io/config.seen": seen}},
            "spec": {"priorityClassName": class, "containers": []}});
        decode::<Pod>(raw).unwrap().object
    };
    let mut pods = [
        waiting("late", "", "2026-01-01T00:00:02Z"),
        waiting("early", "", "2026-01-01T00:00:01Z"),
        waiting("critical", "system-node-critical", "2026-01-01T00:00:03Z"),
    ];
    pods.sort_by_key(waiting_order);
    assert_eq!(pods.map(|pod| pod.metadata.uid.to_string()), ["critical", "early", "late"]);
}

#[test]
fn a_rejected_pod_says_why_and_waits_or_has_failed() {
    let status: PodStatus =
        decode(json!({"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{"name": "c", "containerID": "fake://1"}]}))
        .unwrap()
        .object;
    assert!(was_admitted(&status) && !is_rejected(&status));
    let failed = rejected_status(status.clone(), false, &Rejection::new("AppArmor", "none"), false);
    assert_eq!((failed.phase.as_str(), failed.reason.as_str()), ("Failed", "AppArmor"));
    assert!(is_rejected(&failed) && !has_never_run(&failed), "{failed:?}");
    let rejected = rejected_status(status, false, &Rejection::new("OutOfcpu", "no cpu"), true);
    assert!(is_rejected(&rejected) && !was_admitted(&rejected));
    assert_eq!((rejected.phase.as_str(), rejected.reason.as_str()), ("Pending", "OutOfcpu"));
    assert_eq!(rejected.message, "Pod was rejected: no cpu");
    assert_eq!(rejected.conditions.len(), 1, "PodScheduled stays");
}

#[test]
fn node_pressure_admits_critical_and_memory_requesting_pods() {
    let tolerant =
        |toleration: Value| pod(&json!({"tolerations": [toleration], "containers": [{"name": "c"}]}));
    let mut critical = asking(&json!({}));
    critical.metadata.annotations.insert("kubernetes.io/config.source".to_owned(), "file".to_owned());
    #[expect(clippy::useless_vec, reason = "an array of them is too large for a stack")]
    let pods = vec![
        asking(&json!({})),
        asking(&json!({"memory": "1Mi"})),
        tolerant(
            json!({"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"}),
        ),
        tolerant(json!({"operator": "Exists"})),
        tolerant(json!({"key": "node.kubernetes.io/disk-pressure", "operator": "Exists"})),
        tolerant(json!({"key": "node.kubernetes.io/memory-pressure", "effect": "NoExecute"})),
        pod(&json!({"priorityClassName": "system-node-critical", "containers": []})),
        critical,
    ];
    let under = |pressure: &[Pressure]| {
        let node = NodeFacts { pressure: pressure.iter().copied().collect(), ..node() };
        pods.iter().map(|pod| admit(pod, &[], &node).is_ok()).collect::<Vec<_>>()
    };
    assert_eq!(under(&[]), [true; 8]);
    assert_eq!(under(&[Pressure::Memory]), [false, true, true, true, false, false, true, true]);
    for worse in [&[Pressure::Disk][..], &[Pressure::Pid], &[Pressure::Memory, Pressure::Pid]] {
        assert_eq!(under(worse), [false, false, false, false, false, false, true, true]);
    }
    let node = NodeFacts { pressure: [Pressure::Disk, Pressure::Memory].into(), ..node() };
    let why = admit(&pods[0], &[], &node).unwrap_err();
    assert_eq!(
        (why.reason.as_str(), why.message.as_str()),
        ("Evicted", "The node had condition: [MemoryPressure DiskPressure]. ")
    );
}

#[test]
fn only_what_can_pass_is_waited_for() {
    let of = |source: &str| {
        let mut pod = asking(&json!({}));
        pod.metadata.annotations.insert("kubernetes.io/config.source".to_owned(), source.to_owned());
        pod
    };
    // Reason; whether a pod of a file and one of the API wait.
    let cases = [
        ("OutOfcpu", true, true),
        ("OutOfacme.com/sensor", true, true),
        ("NodePorts", true, true),
        ("Evicted", true, true),
        ("NodeShutdown", true, true),
        ("PodFeatureUnsupported", true, false),
        ("SupplementalGroupsPolicyNotSupported", true, false),
        ("UnexpectedAdmissionError", true, false),
        ("SysctlForbidden", false, false),
        ("PodOSNotSupported", false, false),
        ("PodOSSelectorNodeLabelDoesNotMatch", false, false),
        ("NodeAffinity", false, false),
        ("NodeName", false, false),
        ("AppArmor", false, false),
        ("DeviceNotAllowed", false, false),
    ];
    for (reason, of_file, of_api) in cases {
        let waits = |source| may_wait(&of(source), &Rejection::new(reason, ""), false);
        assert_eq!((waits("file"), waits("http"), waits("api")), (of_file, of_file, of_api), "{reason}");
        assert!(!waits("cluster"), "{reason}: a controller replaces it");
        let had_place = may_wait(&of("cluster"), &Rejection::new(reason, ""), true);
        assert_eq!(had_place, of_file, "{reason}: it ran before a restart");
    }
}

#[test]
fn a_static_pod_that_was_rejected_is_judged_by_each_process() {
    let mut pod = asking(&json!({}));
    let rejected = rejected_status(PodStatus::pending(), false, &Rejection::new("AppArmor", "none"), false);
    let ended = PodStatus { phase: "Failed".to_owned(), ..PodStatus::default() };
    for (source, again) in [("file", true), ("http", true), ("api", false)] {
        pod.metadata.annotations.insert("kubernetes.io/config.source".to_owned(), source.to_owned());
        assert_eq!(may_be_readmitted(&pod, &rejected), again, "{source}");
        assert!(!may_be_readmitted(&pod, &ended), "{source}: it has run");
    }
}
