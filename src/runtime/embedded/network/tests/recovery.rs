//! What is left after a stop, a change of the range, or a failure, and what is restored.

use super::*;

#[test]
fn stopped_at_any_step_nothing_is_left_after_the_next_start() {
    let host = Host::new(&["10.86.0.0/24", "fd00:86::/64"]);
    let ports = [("TCP", 8080, 80, ""), ("UDP", 53, 53, "")];
    let mut stops = Vec::new();
    for after in 0.. {
        let pod = Pod::new("pod");
        let (attachment, network) = (pod.attachment(&ports), &host.network);
        let stopped = host.run(|| {
            faults::stop_after(Some(after));
            network.attach(&attachment).and_then(|_| network.detach(&attachment.sandbox, None))
        });
        match stopped {
            Ok(()) => break,
            Err(NetworkError::Stopped(Stopped(step))) => stops.push(step),
            Err(other) => panic!("{other}"),
        }
        match after % 3 {
            // The pod is not wanted any more.
            0 => assert!(host.run(|| network.recover(&[])).is_empty()),
            // The pod and its namespace are gone before it is detached.
            1 => {
                drop(pod);
                host.run(|| network.detach(&attachment.sandbox, None)).unwrap();
                assert!(host.run(|| network.recover(&[])).is_empty());
            }
            // The pod is still wanted, and attached again.
            _ => {
                assert!(host.run(|| network.recover(&["pod".into()])).is_empty());
                let addresses = host.run(|| network.attach(&attachment)).unwrap();
                assert_eq!(addresses.len(), 2);
                host.run(|| network.detach(&attachment.sandbox, None)).unwrap();
            }
        }
        host.assert_nothing_is_left();
    }
    assert!(stops.len() >= 14 && stops.contains(&"assign the pod an IP address"), "{stops:?}");
    host.assert_nothing_is_left();
}

#[test]
fn recovery_keeps_live_pod_networks_and_restores_lost_rules() {
    let host = Host::new(&["10.86.0.0/24"]);
    let (web, _dead) =
        (host.attach("web", &[("TCP", 8080, 80, "")]).unwrap(), host.attach("dead", &[]).unwrap());
    let before = host.rules();
    host.run(|| sh("nft flush ruleset; ip link set $(ip -o link show master agent0 | head -1 | cut -d: -f2 | cut -d@ -f1) nomaster"));
    assert!(host.run(|| host.network.recover(&["web".into()])).is_empty());
    assert_eq!(host.rules(), before);
    assert_eq!((host.records(), host.links().len()), (vec!["web.json".to_owned()], 3));
    let server = web.run(|| listen("0.0.0.0:80"));
    host.run(|| call(&server, at("127.0.0.1", 8080))).unwrap();
    let elsewhere = Network::new(NetworkConfig {
        subnets: vec!["10.87.0.0/24".parse().unwrap()],
        ..host.network.config.clone()
    });
    assert_eq!(elsewhere.addresses(&web.sandbox), None, "its range is gone: it is made again");
    host.run(|| host.network.recover(&[]));
    host.assert_nothing_is_left();
}

#[test]
fn a_pod_cidr_moves_new_pods_only() {
    let mut host = Host::new(&["10.86.0.0/24"]);
    let before = host.attach("before", &[("TCP", 8080, 80, "")]).unwrap();
    host.network = host.network.with_subnets(vec!["10.244.3.0/24".parse().unwrap()]);
    let after = host.attach("after", &[("TCP", 8081, 80, "")]).unwrap();
    assert_eq!(
        (before.ip().to_string(), after.ip().to_string()),
        ("10.86.0.2".to_owned(), "10.244.3.2".to_owned())
    );
    let talk = || {
        for (server, client) in [(&before, &after), (&after, &before)] {
            let listener = server.run(|| listen("0.0.0.0:80"));
            client.run(|| call(&listener, at(server.ip(), 80))).unwrap();
            host.run(|| call(&listener, at(server.ip(), 80))).unwrap();
        }
        let listener = before.run(|| listen("0.0.0.0:80"));
        host.run(|| call(&listener, at("127.0.0.1", 8080))).unwrap();
    };
    talk();
    // A restart finds the old range in the records.
    assert!(host.run(|| host.network.recover(&["before".into(), "after".into()])).is_empty());
    talk();
    host.detach(&before);
    let left = host.rules() + &host.run(|| sh("ip address; ip route"));
    assert!(left.contains("10.244.3.") && !left.contains("10.86.0."), "{left}");
    host.detach(&after);
    host.assert_nothing_is_left();
}

#[test]
fn a_failed_attempt_leaves_nothing_and_says_what_is_wrong() {
    let host = Host::new(&["10.86.0.0/30"]);
    let mut gone = Pod::new("gone").attachment(&[]);
    gone.netns = "/proc/0/ns/net".to_owned();
    let error = host.run(|| host.network.attach(&gone)).unwrap_err();
    assert!(error.is_namespace_gone(), "{error}");
    host.assert_nothing_is_left();
    let only = host.attach("only", &[]).unwrap();
    let error = host.attach("more", &[]).err().unwrap().to_string();
    assert!(error.starts_with("no free IP address in 10.86.0.0/30") && error.contains("podCIDR"), "{error}");
    host.detach(&only);
    host.run(|| sh("ip link add dummy0 type veth peer name dummy1; ip addr add 10.86.0.9/16 dev dummy0; ip link set dummy0 up"));
    let error = host.attach("pod", &[]).err().unwrap().to_string();
    assert_eq!(
        error,
        "pod network 10.86.0.0/30 overlaps with address 10.86.0.9/16 of dummy0; set podCIDR to an unused range"
    );
    host.run(|| {
        sh("ip addr del 10.86.0.9/16 dev dummy0; ip link set dummy1 up; ip route add 10.86.0.0/24 dev dummy0")
    });
    let error = host.attach("pod", &[]).err().unwrap().to_string();
    assert!(error.contains("overlaps with route 10.86.0.0/24 by dummy0"), "{error}");
    host.run(|| sh("ip link del dummy0"));
    for (port, problem) in [
        (("TCP", 70_000, 80, ""), "it must be 1 to 65535"),
        (("ICMP", 7, 80, ""), "the protocol must be TCP, UDP or SCTP"),
        (("TCP", 7, 80, "here"), "hostIP \"here\" is not an IP address"),
        (("TCP", 7, 80, "::1"), "hostIP ::1 is not supported"),
    ] {
        let error = host.attach("pod", &[port]).err().unwrap().to_string();
        assert!(error.contains(problem), "{error}");
    }
    host.assert_nothing_is_left();
}
