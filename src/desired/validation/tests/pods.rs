//! Metadata, spec and security contexts.

use serde_json::{Value, json};

use super::{base, errors_of, table};
use crate::desired::validation::validate_placement;
use crate::model::api::decode::decode;
use crate::model::api::pod::Pod;

#[test]
fn the_base_pod_is_good() {
    assert_eq!(errors_of(base()), Vec::<String>::new());
}

#[test]
fn every_broken_rule_is_reported_not_only_the_first() {
    let errors = errors_of(
        json!({"metadata": {"name": "A", "namespace": "b_"}, "spec": {"restartPolicy": "x", "hostname": "-"}}),
    );
    assert_eq!(errors.len(), 5, "{errors:#?}");
    assert!(errors.contains(&"spec.containers: Required value".to_owned()));
}

#[test]
fn metadata_rules() {
    let subdomain = "metadata.name: Invalid value: \"Web\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    let long = "a".repeat(254);
    table(
        "/metadata",
        vec![
            ("name", json!("Web"), subdomain),
            ("name", json!("web.site-1"), ""),
            (
                "name",
                json!("web..site"),
                "metadata.name: Invalid value: \"web..site\": a lowercase RFC 1123 subdomain…",
            ),
            (
                "name",
                json!(long),
                &format!("metadata.name: Invalid value: {long:?}: must be no more than 253 characters"),
            ),
            ("name", json!(""), "metadata.name: Required value: name or generateName is required"),
            (
                "namespace",
                json!("a.b"),
                "metadata.namespace: Invalid value: \"a.b\": a lowercase RFC 1123 label must…",
            ),
            ("uid", json!("../../etc"), "metadata.uid: Invalid value: \"../../etc\": must consist…"),
            ("uid", json!("0c0e-1"), ""),
            ("labels", json!({"app.kubernetes.io/name": "Web_1"}), ""),
            (
                "labels",
                json!({"a/b/c": ""}),
                "metadata.labels: Invalid value: \"a/b/c\": a qualified name must…",
            ),
            (
                "labels",
                json!({"/x": ""}),
                "metadata.labels: Invalid value: \"/x\": prefix part must be non-empty",
            ),
            (
                "labels",
                json!({"a": "-"}),
                "metadata.labels: Invalid value: \"-\": a valid label must be an empty string…",
            ),
            ("labels", json!({"a": "b".repeat(64)}), "metadata.labels: Invalid value: \"bb…"),
            ("annotations", json!({"AnyCase.X/Y_z": "any text\n"}), ""),
            (
                "annotations",
                json!({"a": "x".repeat(300_000)}),
                "metadata.annotations: Too long: may not be more than 262144 bytes",
            ),
        ],
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn spec_rules() {
    let many: Vec<String> = (0..33).map(|n| format!("d{n}")).collect();
    table(
        "",
        vec![
            (
                "restartPolicy",
                json!("Sometimes"),
                "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"Never\", \"OnFailure\"",
            ),
            (
                "dnsPolicy",
                json!("Best"),
                "spec.dnsPolicy: Unsupported value: \"Best\": supported values: \"ClusterFirst\", \"ClusterFirstWithHostNet\", \"Default\", \"None\"",
            ),
            (
                "dnsPolicy",
                json!("None"),
                "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
            ),
            (
                "dnsConfig",
                json!({"nameservers": ["1.1.1.1", "::1", "1.1.1.2", "1.1.1.3"]}),
                "spec.dnsConfig.nameservers: Invalid value: [\"1.1.1.1\", \"::1\", \"1.1.1.2\", \"1.1.1.3\"]: must not have more than 3 nameservers",
            ),
            (
                "dnsConfig",
                json!({"nameservers": ["dns"]}),
                "spec.dnsConfig.nameservers[0]: Invalid value: \"dns\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ),
            ("dnsConfig", json!({"searches": many}), "spec.dnsConfig.searches: Invalid value: …"),
            (
                "dnsConfig",
                json!({"searches": ["a b"]}),
                "spec.dnsConfig.searches[0]: Invalid value: \"a b\": …",
            ),
            ("dnsConfig", json!({"searches": [".", "_x.example."]}), ""),
            (
                "dnsConfig",
                json!({"options": [{"value": "1"}]}),
                "spec.dnsConfig.options[0]: Required value: must not be empty",
            ),
            (
                "activeDeadlineSeconds",
                json!(0),
                "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
            ),
            (
                "terminationGracePeriodSeconds",
                json!(-1),
                "spec.terminationGracePeriodSeconds: Invalid value: -1: must be greater than or equal to 0",
            ),
            ("nodeSelector", json!({"a": "-"}), "spec.nodeSelector: Invalid value: \"-\": …"),
            (
                "hostname",
                json!("a.b"),
                "spec.hostname: Invalid value: \"a.b\": a lowercase RFC 1123 label must…",
            ),
            (
                "subdomain",
                json!("A"),
                "spec.subdomain: Invalid value: \"A\": a lowercase RFC 1123 label must…",
            ),
            ("hostnameOverride", json!("a".repeat(65)), "spec.hostnameOverride: …"),
            (
                "hostAliases",
                json!([{"ip": "1.2.3"}]),
                "spec.hostAliases[0].ip: Invalid value: \"1.2.3\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ),
            (
                "hostAliases",
                json!([{"ip": "1.2.3.4", "hostnames": ["A"]}]),
                "spec.hostAliases[0].hostnames[0]: Invalid value: \"A\": …",
            ),
            (
                "os",
                json!({"name": "plan9"}),
                "spec.os.name: Unsupported value: \"plan9\": supported values: \"linux\", \"windows\"",
            ),
            ("imagePullSecrets", json!([{}]), "spec.imagePullSecrets[0].name: Required value"),
            ("preemptionPolicy", json!("Now"), "spec.preemptionPolicy: Unsupported value: \"Now\": …"),
            ("priorityClassName", json!("A"), "spec.priorityClassName: Invalid value: …"),
            ("runtimeClassName", json!("A"), "spec.runtimeClassName: Invalid value: …"),
            ("readinessGates", json!([{}]), "spec.readinessGates[0].conditionType: Required value"),
            (
                "overhead",
                json!({"cpu": "-1"}),
                "spec.overhead[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
            ),
            (
                "ephemeralContainers",
                json!([{"name": "e", "image": "x"}]),
                "spec.ephemeralContainers: Forbidden: cannot be set on create",
            ),
            (
                "resourceClaims",
                json!([{"name": "a"}, {"name": "a"}]),
                "spec.resourceClaims[1].name: Duplicate value: \"a\"",
            ),
        ],
    );
    let mut pod = base();
    pod["spec"]["dnsPolicy"] = json!("None");
    pod["spec"]["dnsConfig"] = json!({});
    assert_eq!(
        errors_of(pod),
        [
            "spec.dnsConfig.nameservers: Required value: must provide at least one DNS nameserver when `dnsPolicy` is None"
        ]
    );
    let mut pod = base();
    pod["spec"]["nodeName"] = json!("n");
    pod["spec"]["schedulingGates"] = json!([{"name": "g"}]);
    let pod = decode::<Pod>(pod).unwrap().object;
    let misplaced: Vec<String> = validate_placement(&pod).iter().map(ToString::to_string).collect();
    assert_eq!(
        misplaced,
        ["spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"]
    );
}

#[test]
fn affinity_rules() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let at = "spec.affinity";
    let node = |term: Value| json!({"nodeAffinity": {(required): {"nodeSelectorTerms": [term]}}});
    let label = |requirement: Value| node(json!({"matchExpressions": [requirement]}));
    let field = |requirement: Value| node(json!({"matchFields": [requirement]}));
    let one = format!("{at}.nodeAffinity.{required}.nodeSelectorTerms[0].matchExpressions[0]");
    let name = format!("{at}.nodeAffinity.{required}.nodeSelectorTerms[0].matchFields[0]");
    let rows = [
        (label(json!({"key": "a", "operator": "In", "values": ["b"]})), String::new()),
        (
            json!({"nodeAffinity": {(required): {}}}),
            format!(
                "{at}.nodeAffinity.{required}.nodeSelectorTerms: Required value: must have at least one node selector term"
            ),
        ),
        (
            label(json!({"key": "a", "operator": "In"})),
            format!("{one}.values: Required value: must be specified when `operator` is 'In' or 'NotIn'"),
        ),
        (
            label(json!({"key": "a", "operator": "Exists", "values": ["b"]})),
            format!(
                "{one}.values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            ),
        ),
        (
            label(json!({"key": "a", "operator": "Gt", "values": ["1", "2"]})),
            format!(
                "{one}.values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'"
            ),
        ),
        (
            label(json!({"key": "a", "operator": "Like"})),
            format!("{one}.operator: Invalid value: \"Like\": not a valid selector operator"),
        ),
        (label(json!({"key": "-", "operator": "Exists"})), format!("{one}.key: Invalid value: \"-\": …")),
        (
            label(json!({"key": "a", "operator": "NotIn", "values": ["b", "c d"]})),
            format!("{one}.values[1]: Invalid value: \"c d\": a valid label must be…"),
        ),
        (field(json!({"key": "metadata.name", "operator": "In", "values": ["n"]})), String::new()),
        (
            field(json!({"key": "metadata.name", "operator": "In", "values": []})),
            format!(
                "{name}.values: Required value: must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            ),
        ),
        (
            field(json!({"key": "metadata.uid", "operator": "In", "values": ["n"]})),
            format!("{name}.key: Invalid value: \"metadata.uid\": not a valid field selector key"),
        ),
        (
            field(json!({"key": "metadata.name", "operator": "Exists"})),
            format!("{name}.operator: Invalid value: \"Exists\": not a valid selector operator"),
        ),
        (
            json!({"nodeAffinity": {(preferred): [{"weight": 0, "preference": {}}]}}),
            format!("{at}.nodeAffinity.{preferred}[0].weight: Invalid value: 0: must be in the range 1-100"),
        ),
        (
            json!({"podAffinity": {(preferred): [{"weight": 101, "podAffinityTerm": {"topologyKey": "a"}}]}}),
            format!("{at}.podAffinity.{preferred}[0].weight: Invalid value: 101: must be in the range 1-100"),
        ),
    ];
    for (affinity, expected) in rows {
        table("", vec![("affinity", affinity, &expected)]);
    }
}

#[test]
fn pod_affinity_rules() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let at = "spec.affinity";
    let pods = |term: Value| json!({"podAntiAffinity": {(required): [term]}});
    let selected = |requirement: Value| {
        pods(json!({"topologyKey": "a", "labelSelector": {"matchExpressions": [requirement]}}))
    };
    let term = format!("{at}.podAntiAffinity.{required}[0]");
    let pod_label = format!("{term}.labelSelector.matchExpressions[0]");
    let rows = [
        (pods(json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {}})), String::new()),
        (
            pods(json!({"topologyKey": "a", "namespaces": ["A"]})),
            format!("{term}.namespace: Invalid value: \"A\": a lowercase RFC 1123 label…"),
        ),
        (
            pods(json!({"topologyKey": "a", "matchLabelKeys": ["x"]})),
            format!("{term}.matchLabelKeys: Forbidden: must not be specified when labelSelector is not set"),
        ),
        (
            pods(
                json!({"topologyKey": "a", "labelSelector": {}, "matchLabelKeys": ["x"], "mismatchLabelKeys": ["x"]}),
            ),
            format!(
                "{term}.matchLabelKeys[0]: Invalid value: \"x\": exists in both matchLabelKeys and mismatchLabelKeys"
            ),
        ),
        (
            selected(json!({"key": "a", "operator": "In"})),
            format!(
                "{pod_label}.values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
            ),
        ),
        (
            selected(json!({"key": "a", "operator": "Gt", "values": ["1"]})),
            format!("{pod_label}.operator: Invalid value: \"Gt\": not a valid selector operator"),
        ),
        (
            pods(json!({"topologyKey": "a", "labelSelector": {"matchLabels": {"a": "b c"}}})),
            format!("{term}.labelSelector.matchLabels: Invalid value: \"b c\": a valid label must be…"),
        ),
    ];
    for (affinity, expected) in rows {
        table("", vec![("affinity", affinity, &expected)]);
    }
    let nowhere = super::changed("", "affinity", pods(json!({"labelSelector": {}})));
    assert_eq!(nowhere[0], format!("{term}.topologyKey: Required value: can not be empty"));
}

#[test]
fn topology_spread_and_gate_rules() {
    let good = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"});
    let with = |fields: Value| {
        let mut constraint = good.clone();
        constraint.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!([constraint])
    };
    let at = "spec.topologySpreadConstraints[0]";
    for (constraints, expected) in [
        (with(json!({"minDomains": 2, "labelSelector": {}, "matchLabelKeys": ["a"]})), String::new()),
        (with(json!({"maxSkew": 0})), format!("{at}.maxSkew: Invalid value: 0: must be greater than zero")),
        (with(json!({"topologyKey": ""})), format!("{at}.topologyKey: Required value: can not be empty")),
        (
            with(json!({"whenUnsatisfiable": "Never"})),
            format!(
                "{at}.whenUnsatisfiable: Unsupported value: \"Never\": supported values: \"DoNotSchedule\", \"ScheduleAnyway\""
            ),
        ),
        (
            json!([good, good]),
            format!("{at}.{{topologyKey, whenUnsatisfiable}}: Duplicate value: \"{{zone, DoNotSchedule}}\""),
        ),
        (
            with(json!({"minDomains": 0})),
            format!("{at}.minDomains: Invalid value: 0: must be greater than 0"),
        ),
        (
            with(json!({"minDomains": 2, "whenUnsatisfiable": "ScheduleAnyway"})),
            format!(
                "{at}.minDomains: Invalid value: 2: can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway"
            ),
        ),
        (
            with(json!({"nodeTaintsPolicy": "Never"})),
            format!(
                "{at}.nodeTaintsPolicy: Unsupported value: \"Never\": supported values: \"Honor\", \"Ignore\""
            ),
        ),
        (
            with(json!({"matchLabelKeys": ["a"]})),
            format!("{at}.matchLabelKeys: Forbidden: must not be specified when labelSelector is not set"),
        ),
        (
            with(json!({"matchLabelKeys": ["a"], "labelSelector": {"matchLabels": {"a": "b"}}})),
            format!(
                "{at}.matchLabelKeys[0]: Invalid value: \"a\": exists in both matchLabelKeys and labelSelector"
            ),
        ),
        (
            with(json!({"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}})),
            format!(
                "{at}.labelSelector.matchExpressions[0].operator: Invalid value: \"Like\": not a valid selector operator"
            ),
        ),
    ] {
        table("", vec![("topologySpreadConstraints", constraints, &expected)]);
    }
    table(
        "",
        vec![
            ("schedulingGates", json!([{"name": "example.com/a"}, {"name": "b"}]), ""),
            (
                "schedulingGates",
                json!([{"name": "a"}, {"name": "a"}]),
                "spec.schedulingGates[1]: Duplicate value: \"a\"",
            ),
            (
                "schedulingGates",
                json!([{"name": "a b"}]),
                "spec.schedulingGates[0]: Invalid value: \"a b\": …",
            ),
            ("schedulerName", json!("Mine"), "spec.schedulerName: Invalid value: \"Mine\": …"),
        ],
    );
}

#[test]
fn owner_reference_rules() {
    let owner =
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true});
    let at = "metadata.ownerReferences";
    table(
        "/metadata",
        vec![
            ("ownerReferences", json!([owner]), ""),
            (
                "ownerReferences",
                json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r"}]),
                &format!("{at}[0].uid: Invalid value: \"\": uid must not be empty"),
            ),
            (
                "ownerReferences",
                json!([{"apiVersion": "apps/", "kind": "ReplicaSet", "name": "r", "uid": "u"}]),
                &format!("{at}[0].apiVersion: Invalid value: \"apps/\": version must not be empty"),
            ),
            ("ownerReferences", json!([owner, owner]), &format!("{at}: Invalid value: …")),
        ],
    );
}

#[test]
fn toleration_rules() {
    table(
        "",
        [
            (json!({"operator": "Exists"}), ""),
            (json!({"key": "a", "value": "b", "effect": "NoSchedule"}), ""),
            (json!({}), "spec.tolerations[0].operator: Invalid value: \"\": operator must be Exists when `key` is empty, which means \"match all values and all keys\""),
            (json!({"key": "a", "operator": "Exists", "value": "b"}), "spec.tolerations[0].operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'"),
            (json!({"key": "a", "operator": "Like"}), "spec.tolerations[0].operator: Unsupported value: \"Like\": supported values: \"Equal\", \"Exists\""),
            (json!({"key": "a", "effect": "Never"}), "spec.tolerations[0].effect: Unsupported value: \"Never\": …"),
            (json!({"key": "a", "tolerationSeconds": 1}), "spec.tolerations[0].effect: Invalid value: \"\": effect must be 'NoExecute' when `tolerationSeconds` is set"),
            (json!({"key": "-"}), "spec.tolerations[0].key: Invalid value: \"-\": …"),
        ]
        .map(|(row, expected)| ("tolerations", json!([row]), expected))
        .to_vec(),
    );
}

#[test]
fn security_rules() {
    table(
        "/containers/0",
        [
            (json!({"privileged": true, "allowPrivilegeEscalation": false}), "spec.containers[0].securityContext: Invalid value: {}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true"),
            (json!({"capabilities": {"add": ["CAP_SYS_ADMIN"]}, "allowPrivilegeEscalation": false}), "spec.containers[0].securityContext: Invalid value: {}: cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"),
            (json!({"runAsUser": -1}), "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive"),
            (json!({"runAsGroup": 4_294_967_295_i64}), "spec.containers[0].securityContext.runAsGroup: Invalid value: 4294967295: must be…"),
            (json!({"procMount": "Unmasked"}), "spec.containers[0].securityContext.procMount: Forbidden: `hostUsers` must be false to use `Unmasked`"),
            (json!({"seccompProfile": {"type": "Localhost"}}), "spec.containers[0].securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost"),
            (json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "../x"}}), "spec.containers[0].securityContext.seccompProfile.localhostProfile: Invalid value: \"../x\": must not contain '..'"),
            (json!({"seccompProfile": {"type": "Unconfined", "localhostProfile": "x"}}), "spec.containers[0].securityContext.seccompProfile.localhostProfile: Invalid value: \"x\": can only be set when seccomp type is Localhost"),
            (json!({"seccompProfile": {"type": "Strict"}}), "spec.containers[0].securityContext.seccompProfile.type: Unsupported value: \"Strict\": …"),
            (json!({"appArmorProfile": {"type": "Localhost"}}), "spec.containers[0].securityContext.appArmorProfile.localhostProfile: Required value: must be set when AppArmor type is Localhost"),
        ]
        .map(|(context, expected)| ("securityContext", context, expected))
        .to_vec(),
    );
    table(
        "",
        vec![
            ("securityContext", json!({"fsGroup": -1}), "spec.securityContext.fsGroup: Invalid value: -1: …"),
            (
                "securityContext",
                json!({"supplementalGroups": [1, -1]}),
                "spec.securityContext.supplementalGroups[1]: Invalid value: -1: …",
            ),
            (
                "securityContext",
                json!({"fsGroupChangePolicy": "Never"}),
                "spec.securityContext.fsGroupChangePolicy: Unsupported value: \"Never\": …",
            ),
            (
                "securityContext",
                json!({"sysctls": [{"name": "net..x"}]}),
                "spec.securityContext.sysctls[0].name: Invalid value: \"net..x\": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9]$",
            ),
            (
                "securityContext",
                json!({"sysctls": [{"name": "net.a"}, {"name": "net/a"}]}),
                "spec.securityContext.sysctls[1].name: Duplicate value: \"net/a\"",
            ),
        ],
    );
    let with = |fields: Value| {
        let mut pod = base();
        pod["spec"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        errors_of(pod)
    };
    assert_eq!(
        with(json!({"hostNetwork": true, "securityContext": {"sysctls": [{"name": "net.a"}]}})),
        [
            "spec.securityContext.sysctls[0].name: Invalid value: \"net.a\": may not be specified when 'hostNetwork' is true"
        ]
    );
    assert_eq!(
        with(json!({"hostPID": true, "hostUsers": false})),
        ["spec.hostPID: Forbidden: when `hostUsers` is false"]
    );
    assert_eq!(
        with(json!({"hostPID": true, "shareProcessNamespace": true})),
        [
            "spec.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled"
        ]
    );
}
