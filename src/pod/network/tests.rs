//! Tables for names, hosts files, DNS and ports.
#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use super::*;
use crate::model::api::decode::decode;
use crate::model::runtime_config::DnsConfig;
use serde_json::{Value, json};

fn pod(spec: Value) -> Pod {
    let pod = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u"}, "spec": spec});
    decode::<Pod>(pod).unwrap().object
}

#[test]
fn hostname_is_override_spec_or_name_cut_to_a_dns_label() {
    let long = format!("{}-tail", "x".repeat(62));
    let cases = [
        (json!({}), "web", ""),
        (json!({"hostname": "h"}), "h", ""),
        (json!({"hostname": "h", "subdomain": "sub"}), "h", "sub.ns.svc.cluster.local"),
        (json!({"hostname": "h", "hostnameOverride": "o"}), "o", ""),
        (json!({"hostname": long}), &"x".repeat(62), ""),
    ];
    for (spec, host, domain) in cases {
        let expected = PodHostname { host: host.to_owned(), domain: domain.to_owned() };
        assert_eq!(hostname_and_domain(&pod(spec), "cluster.local"), expected);
    }
}

#[test]
fn a_fully_qualified_hostname_must_fit_into_the_kernels() {
    let spec = |subdomain: &str| json!({"subdomain": subdomain, "setHostnameAsFQDN": true});
    assert_eq!(sandbox_hostname(&pod(spec("sub")), "c.local").unwrap(), "web.sub.ns.svc.c.local");
    let error = sandbox_hostname(&pod(spec(&"s".repeat(60))), "c.local").unwrap_err();
    assert!(error.to_string().contains("is too long (64 characters is the max, 79"), "{error}");
    assert_eq!(sandbox_hostname(&pod(json!({"hostNetwork": true})), "c.local").unwrap(), "");
}

#[test]
fn the_hosts_file_names_every_address_and_the_aliases() {
    let aliases = [HostAlias { ip: "1.2.3.4".into(), hostnames: vec!["a".into(), "b".into()] }];
    let name = PodHostname { host: "web".into(), domain: "sub.ns.svc.c".into() };
    let content = hosts_file(&["10.0.0.2".into(), "fd00::2".into()], &name, &aliases);
    let (head, tail) = content.split_once("fe00::2\tip6-allrouters\n").unwrap();
    assert!(head.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"));
    assert_eq!(
        tail,
        "10.0.0.2\tweb.sub.ns.svc.c\tweb\nfd00::2\tweb.sub.ns.svc.c\tweb\n\n\
         # Entries added by HostAliases.\n1.2.3.4\ta\tb\n"
    );
    assert_eq!(
        host_network_hosts_file("127.0.0.1 box\n", &[]),
        "# Kubernetes-managed hosts file (host network).\n127.0.0.1 box\n"
    );
}

#[test]
fn pod_ips_follow_the_node_family_order_with_one_per_family() {
    let rows: [(&[&str], &[&str], &[&str]); 6] = [
        (&["10.1.0.2"], &["10.0.0.1"], &["10.1.0.2"]),
        (&["fd00::2", "10.1.0.2"], &["10.0.0.1", "fd00::1"], &["10.1.0.2", "fd00::2"]),
        (&["10.1.0.2", "fd00::2"], &["fd00::1"], &["fd00::2", "10.1.0.2"]),
        (&["fd00::2", "10.1.0.2"], &[], &["10.1.0.2", "fd00::2"]),
        (&["10.1.0.2", "10.1.0.3", "fd00::2"], &["10.0.0.1"], &["10.1.0.2", "fd00::2"]),
        (&["fd00::2"], &["10.0.0.1"], &["fd00::2"]),
    ];
    let owned = |ips: &[&str]| ips.iter().map(|ip| (*ip).to_owned()).collect::<Vec<_>>();
    for (ips, node, expected) in rows {
        assert_eq!(sort_pod_ips(&owned(ips), &owned(node)), expected, "{ips:?} on {node:?}");
    }
}

#[test]
fn a_fully_qualified_name_of_64_characters_just_fits() {
    // `web.` and `.ns.svc.c` around it.
    for (subdomain, fits) in [(51, true), (52, false)] {
        let spec = json!({"subdomain": "s".repeat(subdomain), "setHostnameAsFQDN": true});
        let name = sandbox_hostname(&pod(spec), "c");
        assert_eq!(name.map(|name| name.len()).ok(), fits.then_some(64));
    }
    let without_domain = json!({"setHostnameAsFQDN": true});
    assert_eq!(sandbox_hostname(&pod(without_domain), "c").unwrap(), "web", "there is no domain to add");
}

#[test]
fn ports_are_the_same_by_name_or_by_what_they_map() {
    let rows = [
        (json!([{"name": "a", "containerPort": 1}, {"name": "a", "containerPort": 2}]), vec!["TCP :0->1"]),
        (json!([{"name": "a", "containerPort": 1}, {"containerPort": 1}]), vec!["TCP :0->1", "TCP :0->1"]),
        (
            json!([{"containerPort": 1, "protocol": "TCP"}, {"containerPort": 1, "protocol": "SCTP"}]),
            vec!["TCP :0->1", "SCTP :0->1"],
        ),
        (
            json!([{"containerPort": 1, "hostPort": 5, "hostIP": "10.0.0.1"}, {"containerPort": 1, "hostPort": 5}]),
            vec!["TCP 10.0.0.1:5->1", "TCP :5->1"],
        ),
    ];
    for (ports, expected) in rows {
        let spec = json!({"hostNetwork": true, "containers": [{"name": "c", "ports": ports}]});
        assert_eq!(shown_ports(&port_mappings(&pod(spec))), expected, "{ports}");
    }
    let twice = json!({"containers": [
        {"name": "c", "ports": [{"containerPort": 1}]}, {"name": "d", "ports": [{"containerPort": 1}]},
    ]});
    assert_eq!(port_mappings(&pod(twice)).len(), 2, "once per container");
}

fn shown_ports(mappings: &[PortMapping]) -> Vec<String> {
    let shown = |port: &PortMapping| {
        format!("{} {}:{}->{}", port.protocol, port.host_ip, port.host_port, port.container_port)
    };
    mappings.iter().map(shown).collect()
}

#[test]
fn ports_of_regular_containers_are_mapped_once() {
    let ports = json!([{"containerPort": 80, "hostPort": 8080}, {"containerPort": 80, "hostPort": 8080},
        {"containerPort": 80, "hostPort": 8080, "hostIP": "::1"}, {"containerPort": 53, "protocol": "UDP"}]);
    let init = json!([{"name": "i", "ports": [{"containerPort": 1}]}]);
    let mappings = port_mappings(&pod(json!({
        "initContainers": init, "containers": [{"name": "c", "ports": ports}],
    })));
    assert_eq!(shown_ports(&mappings), ["TCP :8080->80", "TCP ::1:8080->80", "UDP :0->53"]);
}

fn shown(config: &DnsConfig) -> String {
    format!("{} | {} | {}", config.servers.join(" "), config.searches.join(" "), config.options.join(" "))
}

#[test]
fn resolv_conf_is_read_as_upstream_reads_it() {
    let text = "# comment\nnameserver 1.1.1.1\nnameserver 8.8.8.8 # second\nsearch old\nsearch a.b. . c\n\
                options x\noptions ndots:2 rotate\njunk\n";
    assert_eq!(shown(&parse_resolv_conf(text)), "1.1.1.1 8.8.8.8 | a.b c | ndots:2 rotate");
}

#[test]
fn every_dns_policy_gives_its_servers_searches_and_options() {
    let host = ResolvConfSource::Parsed(parse_resolv_conf("nameserver 1.1.1.1\nsearch lan\noptions rotate"));
    let cluster = ["10.96.0.10".to_owned()];
    let in_cluster = "10.96.0.10 | ns.svc.c svc.c c lan | ndots:5";
    let own = json!({"nameservers": ["9.9.9.9"], "searches": ["lan", "own"],
        "options": [{"name": "ndots", "value": "1"}, {"name": "edns0"}]});
    let cases = [
        (json!({"dnsPolicy": "Default"}), "1.1.1.1 | lan | rotate"),
        (json!({"dnsPolicy": "ClusterFirst"}), in_cluster),
        (json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}), "1.1.1.1 | lan | rotate"),
        (json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}), in_cluster),
        (json!({"dnsPolicy": "None", "dnsConfig": own}), "9.9.9.9 | lan own | ndots:1 edns0"),
        (
            json!({"dnsPolicy": "ClusterFirst", "dnsConfig": own}),
            "10.96.0.10 9.9.9.9 | ns.svc.c svc.c c lan own | ndots:1 edns0",
        ),
    ];
    for (spec, expected) in cases {
        let context = DnsContext { host: &host, cluster_dns: &cluster, cluster_domain: "c", node_ips: &[] };
        let (config, problems) = pod_dns(&pod(spec.clone()), &context);
        assert_eq!((shown(&config).as_str(), problems), (expected, vec![]), "{spec}");
    }
}

#[test]
fn without_cluster_dns_only_pods_that_ask_for_it_are_warned() {
    let host = ResolvConfSource::Disabled;
    let ips = ["10.0.0.1".to_owned(), "fd00::1".to_owned()];
    let context = DnsContext { host: &host, cluster_dns: &[], cluster_domain: "c", node_ips: &ips };
    let (config, problems) = pod_dns(&pod(json!({"dnsPolicy": "ClusterFirst"})), &context);
    assert_eq!((shown(&config).as_str(), problems), ("127.0.0.1 ::1 | . | ", vec![]));
    assert_eq!(pod_dns(&pod(json!({})), &context).1, []);
    let asks = json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true});
    let (config, problems) = pod_dns(&pod(asks), &context);
    assert_eq!(shown(&config), "127.0.0.1 ::1 | . | ");
    assert_eq!(problems[0].reason, "MissingClusterDNS");
    assert!(problems[0].message.starts_with("pod: \"web_ns(u)\". kubelet does not have ClusterDNS IP"));
}

#[test]
fn what_exceeds_the_resolvers_limits_is_left_out_and_named() {
    let searches: Vec<String> = (0..40).map(|at| format!("s{at}")).collect();
    let own = json!({"nameservers": ["1", "2", "3", "4"], "searches": searches});
    let host = ResolvConfSource::Disabled;
    let context = DnsContext { host: &host, cluster_dns: &[], cluster_domain: "", node_ips: &[] };
    let (config, problems) = pod_dns(&pod(json!({"dnsPolicy": "None", "dnsConfig": own})), &context);
    assert_eq!((config.servers.len(), config.searches.len()), (3, 32));
    assert!(problems[0].message.ends_with("the applied nameserver line is: 1 2 3"));
    let long = json!({"searches": ["x".repeat(1500), "y".repeat(547), "z"]});
    let (config, problems) = pod_dns(&pod(json!({"dnsPolicy": "None", "dnsConfig": long})), &context);
    assert_eq!((config.searches.len(), problems.len()), (2, 1));
}

#[test]
fn a_pod_is_reached_at_the_address_its_status_names_first() {
    let owned = |ips: &[&str]| ips.iter().map(|ip| (*ip).to_owned()).collect::<Vec<_>>();
    let (sandbox, node) = (owned(&["fd00::5", "10.0.0.5"]), owned(&["192.168.1.2", "fd00::1"]));
    assert_eq!(pod_address(false, &sandbox, &node).as_deref(), Some("10.0.0.5"));
    assert_eq!(pod_address(true, &sandbox, &node).as_deref(), Some("192.168.1.2"));
    assert_eq!(pod_address(false, &[], &node), None);
}
