use serde_json::json;

use super::*;
use crate::cluster::fake::FakeApiserver;
use crate::cmd::init::args::UsageError;
use crate::cmd::init::preflight::has_errors;
use crate::model::types::Timestamp;

const PIN: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn parse(line: &str) -> Result<JoinOptions, String> {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    JoinOptions::parse(&words).map_err(|error: UsageError| error.to_string())
}

#[test]
fn the_line_that_kubeadm_prints_is_understood() {
    let line = format!("10.0.0.1:6443 --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash {PIN}");
    let options = parse(&line).ok().unwrap();
    assert_eq!(options.endpoint.as_deref(), Some("10.0.0.1:6443"));
    assert_eq!((options.pins.as_slice(), options.token.unwrap().id.as_str()), (&[[0xaa; 32]][..], "abcdef"));
    assert_eq!(
        parse("--discovery-file /f --node-name Edge-7").ok().unwrap().node_name.as_deref(),
        Some("edge-7")
    );
    for (line, said) in [
        ("", "HOST:PORT"),
        ("10.0.0.1 --token abcdef.0123456789abcdef", "HOST:PORT"),
        ("a:1", "--token is required"),
        ("a:1 --token abcdef.0123456789abcdef", "--discovery-token-unsafe-skip-ca-verification"),
        ("a:1 --token nonsense", "--token:"),
        ("a:1 --discovery-token-ca-cert-hash sha256:ab", "32 byte"),
        ("a:1 --discovery-file /f", "cannot both be set"),
        ("--discovery-file http://h/f", "only https"),
        ("--discovery-file /f --link-profile slow", "metered"),
        ("a:1 b:2", "b:2"),
    ] {
        assert!(parse(line).err().unwrap().contains(said), "{line}");
    }
}

#[test]
fn the_clusters_settings_go_over_ones_own() {
    let there = json!({
        "kind": "KubeletConfiguration", "address": "127.0.0.1", "maxPods": 20,
        "containerRuntimeEndpoint": "unix:///run/crio/crio.sock", "authentication": { "webhook": { "cacheTTL": "1m" } },
        "systemReserved": { "memory": "64Mi" }, "clusterDNS": [],
    });
    let cluster = json!({
        "kind": "KubeletConfiguration", "clusterDNS": ["10.96.0.10"], "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": "", "syncFrequency": "0s", "memorySwap": {}, "maxPods": 0,
        "authentication": { "anonymous": { "enabled": false }, "webhook": { "cacheTTL": "0s", "enabled": true } },
    });
    let (merged, notes) = rules::configuration(Some(there), &cluster);
    assert_eq!(
        merged,
        json!({
            "kind": "KubeletConfiguration", "address": "0.0.0.0", "maxPods": 20, "clusterDNS": ["10.96.0.10"],
            "containerRuntimeEndpoint": "unix:///run/crio/crio.sock", "clusterDomain": "cluster.local",
            "authentication": { "anonymous": { "enabled": false }, "webhook": { "cacheTTL": "1m", "enabled": true } },
            "systemReserved": { "memory": "64Mi" }, "syncFrequency": "0s", "memorySwap": {},
        })
    );
    assert_eq!(notes.len(), 1);
    assert_eq!(rules::configuration(None, &cluster), (cluster, Vec::new()));
}

#[test]
fn the_authority_of_users_is_there_before_the_node_joins() {
    let with = |file: &str| json!({ "authentication": { "x509": { "clientCAFile": file } } });
    let check = |file: &str| rules::check_authority(&with(file), &|path| path == Path::new(AUTHORITY));
    assert_eq!(check(""), Ok(()));
    assert_eq!(rules::check_authority(&json!({}), &|_| false), Ok(()));
    assert_eq!(check(AUTHORITY), Ok(()));
    let said = check("/etc/other/ca.crt").unwrap_err();
    for words in
        ["authentication.x509.clientCAFile to \"/etc/other/ca.crt\"", "copy", AUTHORITY, "kubelet-config"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn joining_changes_only_its_own_flags_of_the_service() {
    let text = "# mine\nHTTP_PROXY=http://p\nAGENT_ARGS=\"--v=2 --kubeconfig /old --root-dir=/data\"\n";
    let joined = rules::with_cluster(text, Some("edge-7"), false);
    assert_eq!(
        joined,
        format!(
            "# mine\nHTTP_PROXY=http://p\nAGENT_ARGS=\"--v=2 --root-dir=/data --bootstrap-kubeconfig={BOOTSTRAP} \
             --kubeconfig={KUBECONFIG} --hostname-override=edge-7\"\n"
        )
    );
    assert_eq!(rules::with_cluster(&joined, Some("edge-7"), false), joined);
    let alone = rules::without_cluster(&joined).unwrap();
    assert_eq!(
        alone,
        "# mine\nHTTP_PROXY=http://p\nAGENT_ARGS=\"--v=2 --root-dir=/data --hostname-override=edge-7\"\n"
    );
    assert_eq!(rules::without_cluster(&alone), None);
    let metered = rules::with_cluster(&alone, None, true);
    assert!(metered.contains("--link-profile=metered\""), "{metered}");
    assert_eq!(rules::without_cluster(&metered), Some(alone));
    assert!(rules::with_cluster("", None, false).starts_with(install::DEFAULTS_HEADER));
}

fn ask(world: &FakeApiserver) -> Result<Value, String> {
    let client = discover::client(world.transport("system:bootstrap:abcdef"), Dice::seeded(1));
    let asked = rt::run(async { discover::ask(&client, "edge-7").await }).unwrap();
    asked.map_err(|error| chain(&error))
}

#[test]
fn join_refuses_a_ready_node_of_that_name() {
    let world = FakeApiserver::new(Clock::manual(Timestamp::from_secs(1_795_305_600)), 1);
    assert!(ask(&world).unwrap_err().contains("cannot get ConfigMap \"kubelet-config\""));
    world.put(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "namespace": "kube-system", "name": "kubelet-config" },
        "data": { "kubelet": "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 7\n" },
    }));
    assert_eq!(ask(&world).unwrap()["maxPods"], 7);
    let mut node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "edge-7" },
        "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] },
    });
    world.put(node.clone());
    assert_eq!(ask(&world).unwrap()["maxPods"], 7);
    node["status"]["conditions"][0]["status"] = "True".into();
    world.put(node);
    let said = ask(&world).unwrap_err();
    assert!(said.starts_with("a Node with name \"edge-7\" and status \"Ready\" already exists"), "{said}");
}

#[test]
fn pods_of_the_nodes_own_api_prevent_joining() {
    assert!(!has_errors(&[rules::local_pods(&[])]));
    let finding = rules::local_pods(&["default/web".to_owned()]);
    assert!(has_errors(std::slice::from_ref(&finding)) && finding.text().contains("default/web"));
}

#[test]
fn the_wait_ends_with_a_certificate_that_is_there() {
    let text = "users:\n- name: default-auth\n  user:\n    client-certificate: /pki/current.pem\n";
    assert!(rules::has_certificate(text, &|path| path == Path::new("/pki/current.pem")));
    assert!(!rules::has_certificate(text, &|_| false));
    assert!(!rules::has_certificate("", &|_| true));
}

#[test]
fn a_clock_far_from_the_servers_is_a_warning() {
    let at = |seconds: i64| Timestamp::from_secs(1_795_305_600 + seconds);
    for (now, server, said) in [
        (at(0), None, None),
        (at(0), Some(at(299)), None),
        (at(0), Some(at(301)), Some("is 301 s behind")),
        (at(86_400), Some(at(0)), Some("is 86400 s ahead of")),
    ] {
        let warning = rules::clock_warning(now, server);
        match said {
            Some(said) => assert!(warning.is_some_and(|warning| warning.contains(said)), "{said}"),
            None => assert_eq!(warning, None),
        }
    }
}

#[test]
fn the_host_of_an_endpoint_has_no_port_and_no_brackets() {
    for (endpoint, host) in [
        ("10.0.0.1:6443", "10.0.0.1"),
        ("[fd00::1]:6443", "fd00::1"),
        ("api.example.com:6443", "api.example.com"),
    ] {
        assert_eq!(rules::host(endpoint), Some(host));
    }
}
