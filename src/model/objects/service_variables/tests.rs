use super::*;

fn service(namespace: &str, name: &str, ip: &str, ports: &Value) -> ServiceFacts {
    let metadata = json!({ "namespace": namespace, "name": name, "uid": "u", "labels": { "a": "b" } });
    from_server(&json!({ "metadata": metadata, "spec": { "clusterIP": ip, "ports": ports } })).unwrap()
}

fn lines(services: &[ServiceFacts], namespace: &str, links: bool) -> String {
    let pairs = variables(services, namespace, links).into_iter();
    pairs.map(|(name, value)| name + "=" + &value + "\n").collect::<Vec<_>>().concat()
}

#[test]
fn services_become_variables_as_upstream() {
    // Upstream's TestFromServices, and an address of IPv6.
    let ports = json!([
        { "port": 8081, "protocol": "TCP" },
        { "port": 8083, "protocol": "UDP", "name": "udp-port" },
    ]);
    let found = lines(&[service("ns", "abc-123", "1.2.3.4", &ports)], "ns", true);
    assert_eq!(
        found,
        "ABC_123_PORT=tcp://1.2.3.4:8081\n\
         ABC_123_PORT_8081_TCP=tcp://1.2.3.4:8081\n\
         ABC_123_PORT_8081_TCP_ADDR=1.2.3.4\n\
         ABC_123_PORT_8081_TCP_PORT=8081\n\
         ABC_123_PORT_8081_TCP_PROTO=tcp\n\
         ABC_123_PORT_8083_UDP=udp://1.2.3.4:8083\n\
         ABC_123_PORT_8083_UDP_ADDR=1.2.3.4\n\
         ABC_123_PORT_8083_UDP_PORT=8083\n\
         ABC_123_PORT_8083_UDP_PROTO=udp\n\
         ABC_123_SERVICE_HOST=1.2.3.4\n\
         ABC_123_SERVICE_PORT=8081\n\
         ABC_123_SERVICE_PORT_UDP_PORT=8083\n"
    );
    let six = service("ns", "six", "fd00::1", &json!([{ "port": 80 }]));
    let found = lines(std::slice::from_ref(&six), "ns", true);
    assert!(found.contains("SIX_PORT_80_TCP=tcp://[fd00::1]:80\n"), "{found}");
    assert!(found.contains("SIX_PORT_80_TCP_ADDR=fd00::1\n"), "{found}");
    assert_eq!(from_server(&to_row(&six)), Some(six));
}

#[test]
fn only_the_masters_service_crosses_namespaces() {
    let ports = || json!([{ "port": 443 }]);
    let services = [
        service("default", "kubernetes", "10.96.0.1", &ports()),
        service("default", "other", "10.96.0.2", &ports()),
        service("shop", "web", "10.96.0.3", &ports()),
    ];
    let hosts = |services: &[ServiceFacts], namespace: &str, links: bool| -> Vec<String> {
        let variables = variables(services, namespace, links).into_iter();
        let hosts = variables.filter(|(name, _)| name.ends_with("_SERVICE_HOST"));
        hosts.map(|(name, value)| format!("{name}={value}")).collect()
    };
    let master = "KUBERNETES_SERVICE_HOST=10.96.0.1";
    assert_eq!(hosts(&services, "shop", true), [master, "WEB_SERVICE_HOST=10.96.0.3"]);
    assert_eq!(hosts(&services, "shop", false), [master]);
    assert_eq!(hosts(&services, "default", true), [master, "OTHER_SERVICE_HOST=10.96.0.2"]);
    let own = service("shop", "kubernetes", "10.96.0.9", &ports());
    for services in [[services[0].clone(), own.clone()], [own, services[0].clone()]] {
        assert_eq!(hosts(&services, "shop", true), ["KUBERNETES_SERVICE_HOST=10.96.0.9"]);
    }
}

#[test]
fn a_service_without_an_address_has_no_variables() {
    for ip in ["", "None"] {
        assert_eq!(from_server(&json!({ "spec": { "clusterIP": ip } })), None);
    }
    assert_eq!(from_server(&json!({ "spec": {} })), None);
    assert_eq!(lines(&[service("ns", "a", "1.2.3.4", &json!(null))], "ns", true), "A_SERVICE_HOST=1.2.3.4\n");
}
