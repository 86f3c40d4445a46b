#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use super::*;
use crate::desired::kinds::rules;
use crate::model::objects::{ObjectKey, ObjectKind, PlainBody, wire};

/// The errors of a Service of this spec, with its defaults.
fn errors_of(kind: ObjectKind, name: &str, body: Value) -> Vec<String> {
    let mut body = body;
    let rules = rules(kind);
    (rules.defaults)(&mut body);
    let key = ObjectKey { kind, namespace: "shop".to_owned(), name: name.to_owned() };
    let object = wire::plain_object(key, PlainBody::new(&body));
    let mut errors = Errors::default();
    (rules.validate)(&object, &body, &mut errors);
    errors.0.iter().map(ToString::to_string).collect()
}

fn errors(spec: Value) -> Vec<String> {
    errors_of(ObjectKind::Service, "web", json!({ "spec": spec }))
}

fn with(edit: Value) -> Vec<String> {
    let mut spec = json!({"ports": [{"port": 80}]});
    for (name, value) in edit.as_object().unwrap() {
        spec[name] = value.clone();
    }
    errors(spec)
}

fn defaulted(spec: Value) -> Value {
    let mut body = json!({ "spec": spec });
    service_defaults(&mut body);
    body["spec"].clone()
}

#[test]
fn defaults_are_those_of_the_api_server() {
    assert_eq!(
        defaulted(json!({"ports": [{"port": 80}], "clusterIP": "10.96.1.1"})),
        json!({
            "clusterIP": "10.96.1.1", "clusterIPs": ["10.96.1.1"], "internalTrafficPolicy": "Cluster",
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
            "sessionAffinity": "None", "type": "ClusterIP",
        })
    );
    let balancer = defaulted(
        json!({"type": "LoadBalancer", "ports": [{"port": 53, "protocol": "UDP", "targetPort": "dns"}],
        "sessionAffinity": "ClientIP"}),
    );
    assert_eq!(
        balancer,
        json!({
            "allocateLoadBalancerNodePorts": true, "externalTrafficPolicy": "Cluster",
            "internalTrafficPolicy": "Cluster",
            "ports": [{"port": 53, "protocol": "UDP", "targetPort": "dns"}], "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10_800}}, "type": "LoadBalancer",
        })
    );
    assert_eq!(
        defaulted(json!({"type": "ExternalName", "externalName": "a.b"})),
        json!({"type": "ExternalName", "externalName": "a.b", "sessionAffinity": "None"})
    );
    assert_eq!(defaulted(json!({"clusterIPs": ["None"]}))["clusterIP"], "None");
}

#[test]
fn valid_services_have_no_errors() {
    for spec in [
        json!({"ports": [{"port": 80}]}),
        json!({"clusterIP": "None"}),
        json!({"type": "ExternalName", "externalName": "db.example.com."}),
        json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_080, "name": "a"}, {"port": 80, "protocol": "UDP", "name": "b"}]}),
        json!({"type": "LoadBalancer", "ports": [{"port": 80}], "loadBalancerSourceRanges": [" 10.0.0.0/8 "],
            "externalTrafficPolicy": "Local", "loadBalancerClass": "example.com/lb"}),
        json!({"ports": [{"port": 80}], "externalIPs": ["203.0.113.1"], "externalTrafficPolicy": "Local"}),
        json!({"ports": [{"port": 80}], "ipFamilyPolicy": "PreferDualStack", "clusterIPs": ["10.0.0.1", "fd00::1"], "clusterIP": "10.0.0.1"}),
    ] {
        assert_eq!(errors(spec.clone()), [] as [&str; 0], "{spec}");
    }
}

#[test]
fn invalid_services_are_refused_in_upstreams_words() {
    let label = "a lowercase RFC 1123 label must consist of";
    for (edit, wanted) in [
        (json!({"ports": []}), "spec.ports: Required value"),
        (
            json!({"type": "Other"}),
            "spec.type: Unsupported value: \"Other\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"",
        ),
        (
            json!({"ports": [{"port": 0}]}),
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
        ),
        (json!({"ports": [{"port": 80}, {"port": 81}]}), "spec.ports[0].name: Required value"),
        (
            json!({"ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "a"}]}),
            "spec.ports[1].name: Duplicate value: \"a\"",
        ),
        (json!({"ports": [{"port": 80, "name": "A"}]}), label),
        (
            json!({"ports": [{"port": 80, "name": "a"}, {"port": 80, "name": "b"}]}),
            "spec.ports[1]: Duplicate value: ",
        ),
        (
            json!({"ports": [{"port": 80, "protocol": "ICMP"}]}),
            "spec.ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ),
        (
            json!({"ports": [{"port": 80, "targetPort": "no_name"}]}),
            "spec.ports[0].targetPort: Invalid value: \"no_name\"",
        ),
        (
            json!({"ports": [{"port": 80, "nodePort": 30_080}]}),
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        (
            json!({"clusterIP": "None", "type": "NodePort"}),
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services",
        ),
        (
            json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.2"]}),
            "spec.clusterIPs: Invalid value: [\"10.0.0.2\"]: first value must match `clusterIP`",
        ),
        (
            json!({"clusterIP": "nope"}),
            "spec.clusterIPs[0]: Invalid value: \"nope\": must be a valid IP address",
        ),
        (
            json!({"clusterIPs": ["10.0.0.1", "10.0.0.2"]}),
            "may specify no more than one IP for each IP family",
        ),
        (json!({"clusterIPs": ["None", "10.0.0.2"]}), "'None' must be the first and only value"),
        (
            json!({"clusterIP": "10.0.0.1", "ipFamilies": ["IPv6"]}),
            "spec.clusterIPs[0]: Invalid value: \"10.0.0.1\": expected an IPv6 value as indicated by `ipFamilies[0]`",
        ),
        (json!({"ipFamilies": ["IPv4", "IPv4"]}), "spec.ipFamilies[1]: Duplicate value: \"IPv4\""),
        (json!({"ipFamilyPolicy": "Both"}), "spec.ipFamilyPolicy: Unsupported value: \"Both\""),
        (json!({"type": "ExternalName"}), "spec.externalName: Required value"),
        (json!({"type": "ExternalName", "externalName": "a_b"}), "spec.externalName: Invalid value: \"a_b\""),
        (
            json!({"type": "ExternalName", "externalName": "a", "clusterIP": "10.0.0.1"}),
            "spec.clusterIPs: Forbidden: may not be set for ExternalName services",
        ),
        (json!({"sessionAffinity": "Cookie"}), "spec.sessionAffinity: Unsupported value: \"Cookie\""),
        (
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 90_000}}}),
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 90000: must be greater than 0 and less than 86400",
        ),
        (
            json!({"externalIPs": ["127.0.0.1"]}),
            "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
        ),
        (
            json!({"externalTrafficPolicy": "Local"}),
            "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services",
        ),
        (json!({"internalTrafficPolicy": "Node"}), "spec.internalTrafficPolicy: Unsupported value: \"Node\""),
        (json!({"trafficDistribution": "Far"}), "spec.trafficDistribution: Unsupported value: \"Far\""),
        (
            json!({"healthCheckNodePort": 30_001}),
            "spec.healthCheckNodePort: Invalid value: 30001: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        ),
        (
            json!({"loadBalancerClass": "a.b/c"}),
            "spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ),
        (
            json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]}),
            "spec.LoadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ),
        (
            json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0"]}),
            "spec.LoadBalancerSourceRanges[0]: Invalid value: \"10.0.0.0\": must be a valid CIDR value",
        ),
        (json!({"selector": {"a b": "c"}}), "spec.selector: Invalid value: \"a b\""),
    ] {
        let found = with(edit.clone());
        assert!(found.iter().any(|error| error.contains(wanted)), "{edit}: {found:?}");
    }
    let found = errors_of(ObjectKind::Service, "a.b", json!({"spec": {"ports": [{"port": 80}]}}));
    assert!(found[0].starts_with("metadata.name: Invalid value: \"a.b\": "), "{found:?}");
}

#[test]
fn what_may_not_change_is_refused() {
    let update = |old: Value, new: Value| {
        let mut errors = Errors::default();
        service_update(&json!({"spec": old}), &json!({"spec": new}), &mut errors);
        errors.0.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let old = || json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"]});
    assert_eq!(update(old(), old()), [] as [&str; 0]);
    let mut other = old();
    other["clusterIP"] = json!("10.0.0.2");
    other["clusterIPs"] = json!(["10.0.0.2"]);
    assert_eq!(
        update(old(), other),
        ["spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set"]
    );
    let name = json!({"type": "ExternalName", "externalName": "a"});
    assert_eq!(update(old(), name.clone()), [] as [&str; 0]);
    assert_eq!(update(name, old()), [] as [&str; 0]);
    let dual = json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"]});
    assert!(
        update(dual.clone(), old())[0]
            .contains("must be set to 'SingleStack' when releasing the secondary clusterIP")
    );
    let mut single = old();
    single["ipFamilyPolicy"] = json!("SingleStack");
    assert_eq!(update(dual, single), [] as [&str; 0]);
    let balancer = |class: &str| json!({"type": "LoadBalancer", "loadBalancerClass": class});
    assert_eq!(
        update(balancer("a"), balancer("b")),
        ["spec.loadBalancerClass: Invalid value: \"b\": may not change once set"]
    );
}

#[test]
fn slices_and_endpoints_are_checked() {
    let slice = |body: Value| errors_of(ObjectKind::EndpointSlice, "plc", body);
    let good =
        json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.5"]}], "ports": [{"port": 502}]});
    assert_eq!(slice(good), [] as [&str; 0]);
    for (body, wanted) in [
        (json!({"addressType": "IPv5"}), "addressType: Unsupported value: \"IPv5\""),
        (
            json!({"addressType": "IPv4", "endpoints": [{"addresses": []}]}),
            "endpoints[0].addresses: Required value: must contain at least 1 address",
        ),
        (
            json!({"addressType": "IPv4", "endpoints": [{"addresses": ["fd00::1"]}]}),
            "endpoints[0].addresses[0]: Invalid value: \"fd00::1\": must be an IPv4 address",
        ),
        (
            json!({"addressType": "IPv4", "endpoints": [{"addresses": ["169.254.1.1"]}]}),
            "may not be in the link-local range",
        ),
        (
            json!({"addressType": "IPv4", "ports": [{"port": 1}, {"port": 2}]}),
            "ports[1].name: Duplicate value: \"\"",
        ),
        (
            json!({"addressType": "IPv4", "ports": [{"port": 70_000}]}),
            "ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
    ] {
        let found = slice(body.clone());
        assert!(found.iter().any(|error| error.contains(wanted)), "{body}: {found:?}");
    }
    let endpoints = |body: Value| errors_of(ObjectKind::Endpoints, "plc", body);
    assert_eq!(
        endpoints(json!({"subsets": [{"addresses": [{"ip": "10.0.0.5"}], "ports": [{"port": 502}]}]})),
        [] as [&str; 0]
    );
    assert_eq!(
        endpoints(json!({"subsets": [{"addresses": [{"ip": "0.0.0.0"}], "ports": [{"port": 502}]}]})),
        ["subsets[0].addresses[0].ip: Invalid value: \"0.0.0.0\": may not be unspecified (0.0.0.0)"]
    );
}

#[test]
fn a_type_that_changes_leaves_its_fields_behind() {
    let old = json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30_080}], "clusterIP": "10.0.0.1",
        "clusterIPs": ["10.0.0.1"], "allocateLoadBalancerNodePorts": true, "externalTrafficPolicy": "Cluster"}});
    let mut new = old.clone();
    new["spec"]["type"] = json!("ClusterIP");
    carry_over(&old, &mut new);
    assert_eq!(
        new["spec"],
        json!({"type": "ClusterIP", "ports": [{"port": 80}], "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]})
    );
}
