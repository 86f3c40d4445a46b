//! Networks made by CNI plugins.

use super::*;

/// Addresses assigned by the plugin host-local.
fn leases(data: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(data.join("net")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("10.")).collect()
}

#[test]
fn plugins_are_used_where_they_are_configured() {
    let (host, far) = (Host::new(&["10.86.0.0/24"]), Host::new(&[]));
    cable(&host, &far);
    let directory = host.directory.0.join("net.d");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("10-broken.conflist"), r#"{"name":"x"}"#).unwrap();
    let status = host.run(|| host.network.status()).unwrap_err();
    assert!(status.starts_with("cni plugin not initialized: cni config load failed"), "{status}");
    let data = host.directory.0.join("ipam");
    let list = serde_json::json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "ipam": {
            "type": "host-local", "dataDir": data, "ranges": [[{"subnet": "10.99.0.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]});
    std::fs::write(directory.join("10-broken.conflist"), list.to_string()).unwrap();
    host.run(|| host.network.status()).unwrap();
    let web = host.attach("web", &[("TCP", 8080, 80, "")]).unwrap();
    assert_eq!(web.ip().to_string(), "10.99.0.2");
    assert_eq!(host.network.addresses(&web.sandbox), Some(web.addresses.clone()));
    let server = web.run(|| listen("0.0.0.0:80"));
    far.run(|| call(&server, at("192.0.2.1", 8080))).unwrap();
    web.run(|| call(&server, at("127.0.0.1", 80))).unwrap();
    // The configuration used at ADD counts, not the current one.
    std::fs::remove_dir_all(&directory).unwrap();
    host.detach(&web);
    host.detach(&web);
    assert!(host.records().is_empty() && leases(&data).is_empty());
    assert!(host.run(|| host.network.status()).is_ok());
    assert_eq!(host.attach("next", &[]).unwrap().ip().to_string(), "10.86.0.2");
}

#[test]
fn a_plugin_that_fails_leaves_nothing_of_those_before_it() {
    let host = Host::new(&["10.86.0.0/24"]);
    let directory = host.directory.0.join("net.d");
    std::fs::create_dir_all(&directory).unwrap();
    let data = host.directory.0.join("ipam");
    let list = serde_json::json!({"cniVersion": "0.4.0", "name": "net", "plugins": [
        {"type": "ptp", "ipam": {"type": "host-local", "dataDir": data, "ranges": [[{"subnet": "10.99.0.0/24"}]]}},
        {"type": "refuses"},
    ]});
    std::fs::write(directory.join("net.conflist"), list.to_string()).unwrap();
    let (bin, plugin) = (host.directory.0.join("bin"), host.directory.0.join("bin/refuses"));
    std::fs::create_dir_all(&bin).unwrap();
    let script = r#"[ $CNI_COMMAND = DEL ] || { echo '{"code":100,"msg":"not today"}'; exit 1; }"#;
    std::fs::write(&plugin, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
    let error = host.attach("web", &[]).err().unwrap().to_string();
    assert_eq!(error, "plugin type=\"refuses\" name=\"net\" failed (ADD): not today (code 100)");
    assert!(leases(&data).is_empty());
    assert_eq!((host.links(), host.records().len()), (vec!["lo".to_owned()], 0));
}

#[test]
fn interrupted_cni_calls_are_cleaned_up_on_recovery() {
    let host = Host::new(&["10.86.0.0/24"]);
    let directory = host.directory.0.join("net.d");
    std::fs::create_dir_all(&directory).unwrap();
    let data = host.directory.0.join("ipam");
    let list = serde_json::json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "ptp", "ipam": {"type": "host-local", "dataDir": data, "ranges": [[{"subnet": "10.99.0.0/24"}]]}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]});
    std::fs::write(directory.join("net.conflist"), list.to_string()).unwrap();
    let mut stops = Vec::new();
    for after in 0.. {
        let pod = Pod::new("pod");
        let (attachment, network) = (pod.attachment(&[("TCP", 8080, 80, "")]), &host.network);
        let stopped = host.run(|| {
            faults::stop_after(Some(after));
            network
                .attach(&attachment)
                .and_then(|_| network.detach(&attachment.sandbox, Some(&attachment.netns)))
        });
        match stopped {
            Ok(()) => break,
            Err(NetworkError::Stopped(Stopped(step))) => stops.push(step),
            Err(other) => panic!("{other}"),
        }
        drop(pod);
        assert!(host.run(|| network.recover(&[])).is_empty());
        assert!(host.records().is_empty(), "{stops:?}");
        assert!(!data.exists() || leases(&data).is_empty(), "{stops:?}");
    }
    assert_eq!(stops, ["write the record", "run the plugins", "write the result", "delete the record"]);
    assert!(!host.rules().contains("dport 8080"));
}
