//! One table per object: a change to a good pod, and exactly the errors it must bring.

use serde_json::{Value, json};

use super::*;
use crate::api::decode::decode;
use crate::reconcile::defaults::default_pod;

/// A good pod with a second container, an init container and a volume, for changes to aim at.
fn base() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "volumes": [{"name": "v", "emptyDir": {}}],
            "initContainers": [{"name": "i", "image": "x:1"}],
            "containers": [
                {"name": "c", "image": "x:1", "ports": [{"name": "http", "containerPort": 80}],
                 "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
                {"name": "d", "image": "x:1"},
            ],
        },
    })
}

fn errors_of(pod: Value) -> Vec<String> {
    let pod = default_pod(decode::<Pod>(pod).unwrap().object);
    validate_pod(&pod).iter().map(ToString::to_string).collect()
}

/// Sets `field` of the object at `pointer`; an empty pointer is the spec.
fn changed(pointer: &str, field: &str, value: Value) -> Vec<String> {
    let mut pod = base();
    let full = if pointer.starts_with("/metadata") { pointer.to_owned() } else { format!("/spec{pointer}") };
    pod.pointer_mut(&full).unwrap()[field] = value;
    errors_of(pod)
}

/// Rows of (field, value, what the only error is; empty for none). A text that ends in `…` is a beginning.
fn table(pointer: &str, rows: Vec<(&str, Value, &str)>) {
    for (field, value, expected) in rows {
        let shown = value.to_string();
        let errors = changed(pointer, field, value);
        let good = match expected.strip_suffix('…') {
            _ if expected.is_empty() => errors.is_empty(),
            Some(start) => errors.len() == 1 && errors[0].starts_with(start),
            None => errors == [expected],
        };
        assert!(good, "{pointer}/{field} = {shown}\n expected {expected:?}\n got {errors:#?}");
    }
}

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
    assert_eq!(
        errors_of(pod),
        ["spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"]
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
fn container_rules() {
    table(
        "/containers/0",
        vec![
            ("name", json!(""), "spec.containers[0].name: Required value"),
            (
                "name",
                json!("C"),
                "spec.containers[0].name: Invalid value: \"C\": a lowercase RFC 1123 label must…",
            ),
            ("name", json!("d"), "spec.containers[1].name: Duplicate value: \"d\""),
            ("name", json!("i"), "spec.initContainers[0].name: Duplicate value: \"i\""),
            ("image", json!(""), "spec.containers[0].image: Required value"),
            (
                "image",
                json!(" x"),
                "spec.containers[0].image: Invalid value: \" x\": must not have leading or trailing whitespace",
            ),
            (
                "imagePullPolicy",
                json!("Maybe"),
                "spec.containers[0].imagePullPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
            ),
            (
                "terminationMessagePolicy",
                json!("Log"),
                "spec.containers[0].terminationMessagePolicy: Unsupported value: \"Log\": …",
            ),
            (
                "restartPolicy",
                json!("Sometimes"),
                "spec.containers[0].restartPolicy: Unsupported value: \"Sometimes\": …",
            ),
            (
                "restartPolicyRules",
                json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]),
                "spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used",
            ),
            ("targetContainerName", json!("d"), "spec.containers[0].targetContainerName: Forbidden: …"),
            (
                "lifecycle",
                json!({"stopSignal": "SIGTERM"}),
                "spec.containers[0].lifecycle.stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`",
            ),
        ],
    );
}

#[test]
fn port_rules() {
    let port = |port: Value, expected: &'static str| ("ports", json!([port]), expected);
    table(
        "/containers/0",
        vec![
            port(json!({}), "spec.containers[0].ports[0].containerPort: Required value"),
            port(
                json!({"containerPort": 65536}),
                "spec.containers[0].ports[0].containerPort: Invalid value: 65536: must be between 1 and 65535, inclusive",
            ),
            port(
                json!({"containerPort": 1, "hostPort": -1}),
                "spec.containers[0].ports[0].hostPort: Invalid value: -1: must be between 1 and 65535, inclusive",
            ),
            port(
                json!({"containerPort": 1, "protocol": "ICMP"}),
                "spec.containers[0].ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
            ),
            port(
                json!({"containerPort": 1, "hostIP": "localhost"}),
                "spec.containers[0].ports[0].hostIP: Invalid value: …",
            ),
            port(
                json!({"containerPort": 1, "name": "much-too-long-name"}),
                "spec.containers[0].ports[0].name: Invalid value: \"much-too-long-name\": must be no more than 15 characters",
            ),
            port(
                json!({"containerPort": 1, "name": "80"}),
                "spec.containers[0].ports[0].name: Invalid value: \"80\": must contain at least one letter (a-z)",
            ),
            port(
                json!({"containerPort": 1, "name": "a--b"}),
                "spec.containers[0].ports[0].name: Invalid value: \"a--b\": must not contain consecutive hyphens",
            ),
            port(
                json!({"containerPort": 1, "name": "a-"}),
                "spec.containers[0].ports[0].name: Invalid value: \"a-\": must not begin or end with a hyphen",
            ),
            (
                "ports",
                json!([{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]),
                "spec.containers[0].ports[1].name: Duplicate value: \"a\"",
            ),
            (
                "ports",
                json!([{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9}]),
                "spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//9\"",
            ),
            (
                "ports",
                json!([{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9, "protocol": "UDP"}]),
                "",
            ),
        ],
    );
    let mut pod = base();
    pod["spec"]["hostNetwork"] = json!(true);
    pod["spec"]["containers"][0]["ports"][0]["hostPort"] = json!(81);
    assert_eq!(
        errors_of(pod),
        [
            "spec.containers[0].ports[0].containerPort: Invalid value: 80: must match `hostPort` when `hostNetwork` is true"
        ]
    );
}

#[test]
fn environment_rules() {
    let from = |source: Value, expected: &'static str| {
        ("env", json!([{"name": "A", "valueFrom": source}]), expected)
    };
    table(
        "/containers/0",
        vec![
            ("env", json!([{"name": "a.b-c d"}]), ""),
            ("env", json!([{}]), "spec.containers[0].env[0].name: Required value"),
            (
                "env",
                json!([{"name": "A=B"}]),
                "spec.containers[0].env[0].name: Invalid value: \"A=B\": a valid environment variable name must consist only of printable ASCII characters other than '='",
            ),
            from(
                json!({}),
                "spec.containers[0].env[0].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            ),
            from(
                json!({"fieldRef": {"fieldPath": "metadata.name"}, "secretKeyRef": {"name": "s", "key": "k"}}),
                "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not have more than one field specified at a time",
            ),
            from(
                json!({"fieldRef": {}}),
                "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Required value",
            ),
            from(
                json!({"fieldRef": {"fieldPath": "spec.containers"}}),
                "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: \"spec.containers\": …",
            ),
            from(json!({"fieldRef": {"fieldPath": "metadata.labels['a/b']"}}), ""),
            from(
                json!({"fieldRef": {"fieldPath": "spec.x['a']"}}),
                "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.x['a']\": does not support subscript: \"spec.x\"",
            ),
            from(
                json!({"resourceFieldRef": {}}),
                "spec.containers[0].env[0].valueFrom.resourceFieldRef.resource: Required value",
            ),
            from(
                json!({"resourceFieldRef": {"resource": "limits.gpu"}}),
                "spec.containers[0].env[0].valueFrom.resourceFieldRef.resource: Unsupported value: \"limits.gpu\": …",
            ),
            from(
                json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}}),
                "spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor: Invalid value: \"2\": only divisor's values 1m and 1 are supported with the cpu resource",
            ),
            from(json!({"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}), ""),
            from(
                json!({"secretKeyRef": {"name": "s"}}),
                "spec.containers[0].env[0].valueFrom.secretKeyRef.key: Required value",
            ),
            from(
                json!({"configMapKeyRef": {"key": "k"}}),
                "spec.containers[0].env[0].valueFrom.configMapKeyRef.name: Required value",
            ),
            from(
                json!({"configMapKeyRef": {"name": "c", "key": "a/b"}}),
                "spec.containers[0].env[0].valueFrom.configMapKeyRef.key: Invalid value: \"a/b\": a valid config key must consist…",
            ),
            (
                "env",
                json!([{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
                "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
            ),
            (
                "envFrom",
                json!([{}]),
                "spec.containers[0].envFrom[0]: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`",
            ),
            (
                "envFrom",
                json!([{"configMapRef": {"name": "a"}, "secretRef": {"name": "b"}}]),
                "spec.containers[0].envFrom[0]: Invalid value: \"\": may not have more than one field specified at a time",
            ),
            (
                "envFrom",
                json!([{"configMapRef": {}}]),
                "spec.containers[0].envFrom[0].configMapRef.name: Required value",
            ),
        ],
    );
}

#[test]
fn resource_rules() {
    table(
        "/containers/0",
        [
            (json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}), "spec.containers[0].resources.requests[cpu]: Invalid value: \"2\": must be less than or equal to cpu limit of 1"),
            (json!({"requests": {"memory": "-1"}}), "spec.containers[0].resources.requests[memory]: Invalid value: \"-1\": must be greater than or equal to 0"),
            (json!({"limits": {"hugepages-2Mi": "2Mi"}}), "spec.containers[0].resources: Forbidden: HugePages require cpu or memory"),
            (json!({"limits": {"cpu": "1", "hugepages-2Mi": "4Mi"}, "requests": {"hugepages-2Mi": "2Mi"}}), "spec.containers[0].resources.requests[hugepages-2Mi]: Invalid value: \"2Mi\": must be equal to hugepages-2Mi limit of 4Mi"),
            (json!({"requests": {"example.com/gpu": "1"}}), "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources"),
            (json!({"limits": {"gpu": "1"}, "requests": {}}), "spec.containers[0].resources.limits[gpu]: …"),
            (json!({"limits": {"example.com/gpu": "1"}}), ""),
            (json!({"claims": [{"name": "x"}]}), "spec.containers[0].resources.claims[0]: Not found: \"x\""),
        ]
        .into_iter()
        .filter(|(resources, _)| resources.pointer("/limits/gpu").is_none())
        .map(|(resources, expected)| ("resources", resources, expected))
        .collect(),
    );
    let unknown = changed("/containers/0", "resources", json!({"limits": {"gpu": "1"}}));
    assert!(unknown.iter().all(|error| {
        error.ends_with("[gpu]: Invalid value: \"gpu\": must be a standard resource for containers")
    }));
    assert_eq!(unknown.len(), 2, "limit and defaulted request: {unknown:?}");
}

#[test]
fn pod_level_resource_rules() {
    let with = |resources: Value| {
        let mut pod = base();
        pod["spec"]["resources"] = resources;
        pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}});
        errors_of(pod)
    };
    assert_eq!(with(json!({"limits": {"cpu": "3"}})), Vec::<String>::new());
    assert_eq!(
        with(json!({"requests": {"cpu": "500m"}})),
        [
            "spec.resources.requests[cpu]: Invalid value: \"500m\": must be greater than or equal to aggregate container requests of 1"
        ]
    );
    assert_eq!(
        with(json!({"limits": {"cpu": "1500m"}})),
        [
            "spec.containers[0].resources.limits[cpu]: Invalid value: \"2\": must be less than or equal to pod limits of 1500m"
        ]
    );
    let errors = with(json!({"requests": {"ephemeral-storage": "1Gi"}}));
    assert!(
        errors[0].starts_with("spec.resources.requests[ephemeral-storage]: Unsupported value"),
        "{errors:?}"
    );
}

#[test]
fn probe_and_lifecycle_rules() {
    let exec = json!({"command": ["x"]});
    table(
        "/containers/0",
        vec![
            (
                "livenessProbe",
                json!({}),
                "spec.containers[0].livenessProbe: Required value: must specify a handler type",
            ),
            (
                "livenessProbe",
                json!({"exec": exec, "tcpSocket": {"port": 1}}),
                "spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
            ),
            (
                "livenessProbe",
                json!({"exec": {}}),
                "spec.containers[0].livenessProbe.exec.command: Required value",
            ),
            (
                "livenessProbe",
                json!({"exec": exec, "successThreshold": 2}),
                "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
            ),
            ("readinessProbe", json!({"exec": exec, "successThreshold": 2}), ""),
            (
                "startupProbe",
                json!({"exec": exec, "periodSeconds": -1}),
                "spec.containers[0].startupProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "startupProbe",
                json!({"exec": exec, "terminationGracePeriodSeconds": 0}),
                "spec.containers[0].startupProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0",
            ),
            (
                "readinessProbe",
                json!({"exec": exec, "terminationGracePeriodSeconds": 5}),
                "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 5: must not be set for readinessProbes",
            ),
            (
                "livenessProbe",
                json!({"httpGet": {"port": 0}}),
                "spec.containers[0].livenessProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive",
            ),
            (
                "livenessProbe",
                json!({"httpGet": {"port": "a--b"}}),
                "spec.containers[0].livenessProbe.httpGet.port: Invalid value: \"a--b\": must not contain consecutive hyphens",
            ),
            (
                "livenessProbe",
                json!({"httpGet": {"port": 1, "scheme": "FTP"}}),
                "spec.containers[0].livenessProbe.httpGet.scheme: Unsupported value: \"FTP\": supported values: \"HTTP\", \"HTTPS\"",
            ),
            (
                "livenessProbe",
                json!({"httpGet": {"port": 1, "httpHeaders": [{"name": "a b"}]}}),
                "spec.containers[0].livenessProbe.httpGet.httpHeaders[0].name: Invalid value: \"a b\": a valid HTTP header…",
            ),
            (
                "livenessProbe",
                json!({"grpc": {"port": 70000}}),
                "spec.containers[0].livenessProbe.grpc.port: Invalid value: 70000: must be between 1 and 65535, inclusive",
            ),
            (
                "lifecycle",
                json!({"preStop": {}}),
                "spec.containers[0].lifecycle.preStop: Required value: must specify a handler type",
            ),
            (
                "lifecycle",
                json!({"preStop": {"sleep": {"seconds": 31}}}),
                "spec.containers[0].lifecycle.preStop.sleep.seconds: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)",
            ),
            ("lifecycle", json!({"postStart": {"sleep": {"seconds": 0}}}), ""),
        ],
    );
    table(
        "/initContainers/0",
        vec![
            (
                "livenessProbe",
                json!({"exec": exec}),
                "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
            ),
            (
                "lifecycle",
                json!({"preStop": {"exec": exec}}),
                "spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers without restartPolicy=Always",
            ),
        ],
    );
    let mut pod = base();
    pod["spec"]["initContainers"][0]["restartPolicy"] = json!("Always");
    pod["spec"]["initContainers"][0]["startupProbe"] = json!({"exec": exec});
    assert_eq!(errors_of(pod), Vec::<String>::new());
}

#[test]
fn mount_rules() {
    let mount = |more: Value, expected: &'static str| {
        let mut mount = json!({"name": "v", "mountPath": "/v"});
        mount.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("volumeMounts", json!([mount]), expected)
    };
    table(
        "/containers/0",
        vec![
            mount(json!({"name": "w"}), "spec.containers[0].volumeMounts[0].name: Not found: \"w\""),
            mount(json!({"name": ""}), "spec.containers[0].volumeMounts[0].name: Required value"),
            mount(json!({"mountPath": ""}), "spec.containers[0].volumeMounts[0].mountPath: Required value"),
            mount(
                json!({"subPath": "a/../b"}),
                "spec.containers[0].volumeMounts[0].subPath: Invalid value: \"a/../b\": must not contain '..'",
            ),
            mount(json!({"subPath": "a..b/..c"}), ""),
            mount(
                json!({"subPathExpr": "/a"}),
                "spec.containers[0].volumeMounts[0].subPathExpr: Invalid value: \"/a\": must be a relative path",
            ),
            mount(
                json!({"subPath": "a", "subPathExpr": "b"}),
                "spec.containers[0].volumeMounts[0].subPathExpr: Invalid value: \"b\": subPathExpr and subPath are mutually exclusive",
            ),
            mount(
                json!({"mountPropagation": "Bidirectional"}),
                "spec.containers[0].volumeMounts[0].mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers",
            ),
            mount(
                json!({"mountPropagation": "Sideways"}),
                "spec.containers[0].volumeMounts[0].mountPropagation: Unsupported value: \"Sideways\": …",
            ),
            mount(
                json!({"recursiveReadOnly": "Enabled"}),
                "spec.containers[0].volumeMounts[0].recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
            ),
            mount(json!({"readOnly": true, "recursiveReadOnly": "IfPossible"}), ""),
            (
                "volumeMounts",
                json!([{"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/v"}]),
                "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/v\": must be unique",
            ),
            (
                "volumeDevices",
                json!([{"name": "v", "devicePath": "/d"}]),
                "spec.containers[0].volumeDevices[0].name: Invalid value: \"v\": can only use volume source type of…",
            ),
        ],
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

#[test]
fn volume_rules() {
    let volume = |source: Value, expected: &'static str| {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        ("volumes", json!([volume]), expected)
    };
    table(
        "",
        vec![
            (
                "volumes",
                json!([{"name": "v"}, {"name": "v"}]),
                "spec.volumes[1].name: Duplicate value: \"v\"",
            ),
            ("volumes", json!([{"name": "v"}, {}]), "spec.volumes[1].name: Required value"),
            volume(json!({}), ""),
            volume(
                json!({"emptyDir": {}, "hostPath": {"path": "/x"}}),
                "spec.volumes[0].emptyDir: Forbidden: may not specify more than 1 volume type",
            ),
            volume(json!({"hostPath": {}}), "spec.volumes[0].hostPath.path: Required value"),
            volume(
                json!({"hostPath": {"path": "/a/../b"}}),
                "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
            ),
            volume(
                json!({"hostPath": {"path": "/a", "type": "Pipe"}}),
                "spec.volumes[0].hostPath.type: Unsupported value: \"Pipe\": …",
            ),
            volume(
                json!({"emptyDir": {"medium": "Disk"}}),
                "spec.volumes[0].emptyDir.medium: Unsupported value: \"Disk\": …",
            ),
            volume(
                json!({"emptyDir": {"sizeLimit": "-1"}}),
                "spec.volumes[0].emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity",
            ),
            volume(json!({"secret": {}}), "spec.volumes[0].secret.secretName: Required value"),
            volume(
                json!({"secret": {"secretName": "s", "defaultMode": 512}}),
                "spec.volumes[0].secret.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
            ),
            volume(json!({"configMap": {}}), "spec.volumes[0].configMap.name: Required value"),
            volume(
                json!({"configMap": {"name": "c", "items": [{"path": "p"}]}}),
                "spec.volumes[0].configMap.items[0].key: Required value",
            ),
            volume(
                json!({"configMap": {"name": "c", "items": [{"key": "k", "path": "..data"}]}}),
                "spec.volumes[0].configMap.items[0].path: Invalid value: \"..data\": must not start with '..'",
            ),
            volume(
                json!({"configMap": {"name": "c", "items": [{"key": "k", "path": "/p", "mode": 1}]}}),
                "spec.volumes[0].configMap.items[0].path: Invalid value: \"/p\": must be a relative path",
            ),
            volume(
                json!({"downwardAPI": {"items": [{"path": "p"}]}}),
                "spec.volumes[0].downwardAPI.items[0]: Required value: one of fieldRef and resourceFieldRef is required",
            ),
            volume(
                json!({"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "status.podIP"}}]}}),
                "spec.volumes[0].downwardAPI.items[0].fieldRef.fieldPath: Unsupported value: \"status.podIP\": …",
            ),
            volume(
                json!({"downwardAPI": {"items": [{"path": "p", "resourceFieldRef": {"resource": "limits.cpu"}}]}}),
                "spec.volumes[0].downwardAPI.items[0].resourceFieldRef.containerName: Required value",
            ),
            volume(
                json!({"projected": {"sources": [{}]}}),
                "spec.volumes[0].projected.sources[0]: Required value: must specify a volume type",
            ),
            volume(
                json!({"projected": {"sources": [{"secret": {"name": "s", "items": [{"key": "a", "path": "p"}]}}, {"configMap": {"name": "c", "items": [{"key": "a", "path": "p"}]}}]}}),
                "spec.volumes[0].projected.sources[1].configMap.items[0].path: Invalid value: \"p\": conflicting duplicate paths",
            ),
            volume(
                json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 5}}]}}),
                "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes",
            ),
            volume(
                json!({"persistentVolumeClaim": {}}),
                "spec.volumes[0].persistentVolumeClaim.claimName: Required value",
            ),
            volume(
                json!({"nfs": {"server": "s", "path": "p"}}),
                "spec.volumes[0].nfs.path: Invalid value: \"p\": must be an absolute path",
            ),
            volume(json!({"image": {}}), "spec.volumes[0].image.reference: Required value"),
        ],
    );
}
