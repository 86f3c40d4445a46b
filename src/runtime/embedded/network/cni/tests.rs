use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::model::runtime_config::PortMapping;
use crate::platform::testing::TempDir;

fn write(directory: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn first_cni_file_by_name_wins_and_changes_apply_at_once() {
    let directory = TempDir::new();
    assert_eq!(load(&directory.0.join("none")).unwrap(), None);
    write(&directory, "README", "no");
    assert_eq!(load(&directory.0).unwrap(), None);
    write(&directory, "20-b.conflist", r#"{"name":"b","cniVersion":"1.0.0","plugins":[{"type":"x"}]}"#);
    assert_eq!(load(&directory.0).unwrap().unwrap().name(), "b");
    write(&directory, "10-a.conf", r#"{"name":"a","cniVersion":"0.3.1","type":"y","mtu":9}"#);
    let list = load(&directory.0).unwrap().unwrap();
    assert_eq!((list.name(), list.version(), kind_of(&list.plugins()[0])), ("a", "0.3.1", "y"));
    let path = write(&directory, "00-bad.json", "{");
    let error = load(&directory.0).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cni config load failed: {path:?}: EOF")), "{error}");
}

#[test]
fn what_is_no_configuration_says_why() {
    for (text, problem) in [
        ("[]", "name is missing"),
        (r#"{"cniVersion":"1.0.0","plugins":[]}"#, "name is missing"),
        (
            r#"{"name":"n","plugins":[]}"#,
            "unsupported cniVersion \"\": must be one of 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0",
        ),
        (r#"{"name":"n","cniVersion":"1.0.0","plugins":[]}"#, "plugins is empty"),
        (
            r#"{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"../sh"}]}"#,
            "plugin type \"../sh\" is not a program name",
        ),
    ] {
        assert_eq!(parse(text.as_bytes()).unwrap_err(), problem);
    }
}

/// A plugin that records its input and answers with a result.
const PLUGIN: &str = r#"#!/bin/sh
here=$(dirname "$0"); name=$(basename "$0")
{ echo "$name $CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $CNI_ARGS $CNI_PATH"; cat; echo; } >> "$here/log"
[ "$CNI_COMMAND" != STATUS ] || exit 0
[ "$name" != bad ] || { echo '{"cniVersion":"1.0.0","code":7,"msg":"no","details":"really"}'; exit 1; }
echo '{"cniVersion":"1.0.0","by":"'$name'","interfaces":[{"name":"br"},{"name":"eth0","sandbox":"/x"}],
"ips":[{"address":"10.1.0.9/24","interface":0},{"address":"10.1.0.2/24","interface":1},{"address":"fd00::2/64"}]}'
"#;

#[test]
fn a_chain_hands_results_on_and_is_undone_backwards() {
    let directory = TempDir::new();
    for name in ["one", "two", "bad"] {
        write(&directory, name, PLUGIN);
    }
    let log = directory.0.join("log");
    let list = parse(
        br#"{"name":"n","cniVersion":"1.1.0","plugins":[{"type":"one","capabilities":{"portMappings":true,"dns":false}},{"type":"two","x":1}]}"#,
    )
    .unwrap();
    let attachment = Attachment {
        ports: vec![
            PortMapping {
                protocol: "TCP".into(),
                container_port: 80,
                host_port: 8080,
                host_ip: String::new(),
            },
            PortMapping { protocol: "TCP".into(), container_port: 81, host_port: 0, host_ip: String::new() },
        ],
        annotations: [("kubernetes.io/ingress-bandwidth".to_owned(), "10M".to_owned())].into(),
        dns: Some(crate::model::runtime_config::DnsConfig::default()),
        ..Attachment::default()
    };
    let capabilities = capabilities(&attachment).unwrap();
    assert_eq!(capabilities["bandwidth"]["ingressRate"], 10_000_000);
    let mut record = CniRecord { list: list.clone().into_value(), capabilities, result: None };
    let pod = crate::model::types::PodRef { namespace: "ns".into(), name: "web".into(), uid: "u1".into() };
    let subject = CniPod { sandbox: "s1", pod: &pod, netns: "/proc/1/ns/net" };
    let directories = [Path::new("/nowhere").to_owned(), directory.0.clone()];

    list.status(&directories).unwrap();
    fs::remove_file(&log).unwrap();
    let ips = add(&mut record, subject, &directories).unwrap();
    let ips: Vec<String> = ips.iter().map(ToString::to_string).collect();
    assert_eq!(ips, ["10.1.0.2", "fd00::2"]);
    assert_eq!(record.result.as_ref().unwrap()["by"], "two");
    delete(&record, CniPod { netns: "", ..subject }, &directories).unwrap();

    let log = fs::read_to_string(log).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    let args =
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=s1;K8S_POD_UID=u1";
    let path = format!("/nowhere:{}", directory.0.display());
    assert_eq!(lines[0], format!("one ADD s1 /proc/1/ns/net eth0 {args} {path}"));
    let request = |line: usize| serde_json::from_str::<Value>(lines[line]).unwrap();
    let ports =
        json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}]});
    assert_eq!((&request(1)["runtimeConfig"], &request(1)["prevResult"]), (&ports, &Value::Null));
    assert_eq!(
        (&request(3)["runtimeConfig"], &request(3)["prevResult"]["by"]),
        (&Value::Null, &json!("one"))
    );
    assert_eq!(
        (&request(3)["x"], &request(3)["name"], &request(3)["cniVersion"]),
        (&json!(1), &json!("n"), &json!("1.1.0"))
    );
    assert_eq!(lines[4], format!("two DEL s1  eth0 {args} {path}"));
    assert_eq!(
        (&request(5)["prevResult"]["by"], &request(7)["prevResult"]["by"]),
        (&json!("two"), &json!("two"))
    );
    assert_eq!((&request(7)["runtimeConfig"], lines.len()), (&ports, 8));
}

#[test]
fn a_plugin_that_refuses_or_is_not_there_is_named() {
    let directory = TempDir::new();
    write(&directory, "bad", PLUGIN);
    let directories = [directory.0.clone()];
    let pod = crate::model::types::PodRef::default();
    let subject = CniPod { sandbox: "s1", pod: &pod, netns: "" };
    let run = |text: &str| {
        let list = parse(text.as_bytes()).unwrap().into_value();
        add(&mut CniRecord { list, ..CniRecord::default() }, subject, &directories).unwrap_err().to_string()
    };
    assert_eq!(
        run(r#"{"name":"n","cniVersion":"1.0.0","type":"bad"}"#),
        "plugin type=\"bad\" name=\"n\" failed (ADD): no: really (code 7)"
    );
    assert_eq!(
        run(r#"{"name":"n","cniVersion":"1.0.0","type":"gone"}"#),
        format!("failed to find plugin \"gone\" in path {directories:?}")
    );
    let attachment = Attachment {
        annotations: [("kubernetes.io/egress-bandwidth".to_owned(), "fast".to_owned())].into(),
        ..Attachment::default()
    };
    let error = capabilities(&attachment).unwrap_err().to_string();
    assert_eq!(error, "annotation kubernetes.io/egress-bandwidth: \"fast\" is not a quantity");
}
