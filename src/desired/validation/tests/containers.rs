//! Containers, ports, environment, resources, probes.

use serde_json::{Value, json};

use super::{base, changed, errors_of, table};

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
