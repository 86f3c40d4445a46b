//! Services of both families, from pods, from the node and from outside, in network namespaces: the node's is the test's own,
//! and what one agent does to the node's network another one does not see.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Node, pod, service, with_names_of};
use crate::support::agent::{PATIENCE, binary, pod_name};
use crate::support::netns::{LIMIT, NetworkNamespace, client_of, page, router_of, udp_client, udp_server};
use crate::support::runtime::{TestRuntime, on_the_embedded_runtime};
use crate::support::wait::wait_for;

/// Says which pod it is, and whom it sees.
const WHO: &str = "mkdir -p /tmp/www/cgi-bin; cd /tmp/www/cgi-bin; \
    printf '#!/bin/sh\\necho Content-Type: text/plain; echo; echo $(hostname) $REMOTE_ADDR\\n' > who; \
    chmod +x who; exec httpd -f -p 8080 -h /tmp/www";
/// What a pod's own addresses are from.
const PODS: &str = "10.80.0.0/24,fd64:80::/64";
const SERVICES: &str = "10.81.0.0/24,fd64:81::/112";
const NODE_PORT: u16 = 30_080;
/// Long enough for an answer, shorter than a client waits for a server that is silent.
const AT_ONCE: Duration = Duration::from_millis(500);

/// A node with two clients outside of it, each on a network of its own.
struct Site {
    // Before the namespaces: the agent is gone first.
    node: Node,
    machine: NetworkNamespace,
    near: NetworkNamespace,
    far: NetworkNamespace,
}

impl Site {
    fn new() -> Self {
        let machine = NetworkNamespace::new();
        let (near, far) = (machine.joined(1), machine.joined(2));
        let runtime = TestRuntime::start();
        runtime.scratch().dir("out");
        let program = machine.program(&binary(), runtime.scratch().path());
        let mut agent = runtime.agent().with_program(&program);
        agent.argument(format!("--pod-cidr={PODS}"));
        agent.argument(format!("--service-cidr={SERVICES}"));
        Self { node: Node { agent, runtime }, machine, near, far }
    }

    /// Writes a pod that says [`WHO`] it is, with these labels.
    fn serve(&self, name: &str, app: &str) {
        let mut pod = pod(&self.node, name, WHO);
        pod["metadata"]["labels"] = json!({"app": app});
        self.node.apply(&pod);
    }

    /// Writes a Service of both families with addresses that end in `last`.
    fn expose(&self, name: &str, last: u8, mut spec: Value) {
        spec["ipFamilyPolicy"] = json!("RequireDualStack");
        spec["clusterIPs"] = json!(cluster_ips(last));
        self.node.agent.write_manifest(&format!("{name}-service.yaml"), &service(name, spec).to_string());
    }

    fn pid_of(&self, pod: &str) -> u32 {
        self.node.running(pod).pid.expect("it runs")
    }

    /// Waits until a server answers, and returns what it says.
    fn answered(&self, from: u32, server: SocketAddr) -> Answer {
        wait_for(&format!("an answer of {server}"), PATIENCE, || {
            ask(from, server).map_err(|error| format!("{error}; {}", self.node.agent.log_tail()))
        })
    }

    /// Waits until connections are refused by a reset.
    fn refused(&self, from: u32, server: SocketAddr) {
        wait_for(&format!("{server} to refuse"), PATIENCE, || {
            let started = Instant::now();
            match ask(from, server) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused && started.elapsed() < AT_ONCE => {
                    Ok(())
                }
                other => Err(format!("{other:?}; {}", self.node.agent.log_tail())),
            }
        });
    }
}

/// A pod, and the client as it sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    pod: String,
    client: IpAddr,
}

fn ask(from: u32, server: SocketAddr) -> std::io::Result<Answer> {
    ask_within(from, server, LIMIT)
}

fn ask_within(from: u32, server: SocketAddr, limit: Duration) -> std::io::Result<Answer> {
    let said = page(from, server, "/cgi-bin/who", limit)?;
    let (pod, client) = said.trim().split_once(' ').unwrap_or((&said, ""));
    let client = client.trim_matches(['[', ']']).parse::<IpAddr>();
    let client = client.map_err(|error| std::io::Error::other(format!("{error}: {said:?}")))?;
    Ok(Answer { pod: pod.to_owned(), client: client.to_canonical() })
}

fn cluster_ips(last: u8) -> [IpAddr; 2] {
    let ipv6 = Ipv6Addr::new(0xfd64, 0x81, 0, 0, 0, 0, 0, last.into());
    [Ipv4Addr::new(10, 81, 0, last).into(), ipv6.into()]
}

fn at(addresses: [IpAddr; 2], port: u16) -> [SocketAddr; 2] {
    addresses.map(|ip| SocketAddr::new(ip, port))
}

fn clients_outside_keep_their_address_and_source_ranges_hold() {
    let mut site = Site::new();
    let [near, _] = client_of(1);
    site.serve("web", "web");
    site.expose(
        "web",
        80,
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "selector": {"app": "web"},
            "loadBalancerSourceRanges": [format!("{near}/24"), "fd64:0:0:1::/64"],
            "ports": [{"port": 80, "targetPort": 8080, "nodePort": NODE_PORT}]}),
    );
    site.node.agent.start();
    let (inside, outside) = (site.near.pid(), site.far.pid());
    let check = |site: &Site| {
        // All addresses of the node: those of its other network as well.
        for router in [router_of(1), router_of(2)] {
            for (client, port) in [(1, 80), (1, NODE_PORT), (2, NODE_PORT)] {
                let from = if client == 1 { inside } else { outside };
                for (server, client) in at(router, port).into_iter().zip(client_of(client)) {
                    let expected = Answer { pod: pod_name("web"), client };
                    assert_eq!(site.answered(from, server), expected, "{server}");
                }
            }
            for server in at(router, 80) {
                let said = ask_within(outside, server, AT_ONCE).map_err(|error| error.kind());
                assert_eq!(said, Err(ErrorKind::TimedOut), "{server}: dropped, as upstream does it");
            }
        }
    };
    check(&site);
    site.node.agent.kill9();
    check(&site);
    site.node.agent.start();
    site.node.agent.wait_for_phase("web", "Running");
    check(&site);

    site.node.delete("web");
    for port in [80, NODE_PORT] {
        for server in at(router_of(1), port) {
            site.refused(inside, server);
        }
    }
}

fn a_service_of_both_families_is_reached_from_everywhere() {
    let mut site = Site::new();
    site.serve("web", "web");
    site.serve("client", "client");
    let spec = json!({"type": "NodePort", "ipFamilyPolicy": "PreferDualStack", "selector": {"app": "web"},
        "ports": [{"port": 80, "targetPort": 8080, "nodePort": NODE_PORT}]});
    // Its addresses are chosen.
    site.node.agent.write_manifest("web-service.yaml", &service("web", spec).to_string());
    site.node.agent.start();
    let client = site.node.running("client");
    let names = |arguments: &str| {
        let arguments: Vec<&str> = ["dig", "+short"].into_iter().chain(arguments.split(' ')).collect();
        with_names_of(&client, &arguments)
    };
    let address = |kind: &str| {
        wait_for(&format!("an {kind} record"), PATIENCE, || {
            let said = names(&format!("+search {kind} web"));
            said.trim().parse::<IpAddr>().map_err(|_| said)
        })
    };
    let addresses = [address("A"), address("AAAA")];
    assert!(addresses[0].is_ipv4() && addresses[1].is_ipv6(), "{addresses:?}");
    let resolved = site.node.agent.ask(&["resolve", "web"]).expect("the node asks, too");
    for address in addresses {
        assert!(resolved.contains(&address.to_string()), "{resolved}");
        assert_eq!(names(&format!("-x {address}")), "web.default.svc.cluster.local.\n");
    }
    // The server's second address.
    let [_, server] = cluster_ips(10);
    let said = names(&format!("@{server} AAAA web.default.svc.cluster.local"));
    assert_eq!(said.trim().parse(), Ok(addresses[1]), "{said}");

    let (hairpin, client) = (site.pid_of("web"), site.pid_of("client"));
    let check = |site: &Site| {
        let on_node = at(router_of(1), NODE_PORT);
        for from in [hairpin, client, site.machine.pid(), site.near.pid()] {
            let is_outside = from == site.near.pid();
            let servers = if is_outside { on_node.to_vec() } else { [at(addresses, 80), on_node].concat() };
            for server in servers {
                assert_eq!(site.answered(from, server).pod, pod_name("web"), "{server}");
            }
        }
    };
    check(&site);
    site.node.agent.kill9();
    check(&site);
    site.node.agent.start();
    assert_eq!([address("A"), address("AAAA")], addresses);
    check(&site);
}

fn affinity_keeps_a_clients_pod_until_that_is_gone() {
    let mut site = Site::new();
    let pods = ["one", "two", "three"];
    for pod in pods {
        site.serve(pod, "web");
    }
    site.serve("client", "client");
    let ports = |node_port: u16| json!([{"port": 80, "targetPort": 8080, "nodePort": node_port}]);
    let mut sticky = json!({"type": "NodePort", "selector": {"app": "web"}, "ports": ports(NODE_PORT)});
    site.expose("loose", 81, {
        let mut loose = sticky.clone();
        loose["ports"] = ports(NODE_PORT + 1);
        loose
    });
    sticky["sessionAffinity"] = json!("ClientIP");
    site.expose("sticky", 80, sticky);
    site.node.agent.start();
    for pod in pods {
        site.node.running(pod);
    }
    // A client's place, an address of the Service with affinity, and one of that without.
    let mut ways: Vec<(u32, SocketAddr, SocketAddr)> = Vec::new();
    for from in [site.pid_of("client"), site.machine.pid()] {
        ways.extend(
            at(cluster_ips(80), 80)
                .into_iter()
                .zip(at(cluster_ips(81), 80))
                .map(|(sticky, loose)| (from, sticky, loose)),
        );
    }
    let outside = at(router_of(1), NODE_PORT).into_iter().zip(at(router_of(1), NODE_PORT + 1));
    ways.extend(outside.map(|(sticky, loose)| (site.near.pid(), sticky, loose)));
    for (from, _, loose) in &ways {
        let mut seen = BTreeSet::new();
        wait_for(&format!("all pods by {loose}"), PATIENCE, || {
            seen.extend(ask(*from, *loose).map(|answer| answer.pod));
            if seen.len() == pods.len() { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }
    let chosen: Vec<String> =
        ways.iter().map(|(from, sticky, _)| site.answered(*from, *sticky).pod).collect();
    let stay = |chosen: &[String], when: &str| {
        for ((from, sticky, _), pod) in ways.iter().zip(chosen) {
            for _ in 0..8 {
                let said = ask(*from, *sticky).map(|answer| answer.pod).map_err(|error| error.to_string());
                assert_eq!(said.as_ref(), Ok(pod), "{sticky} {when}");
            }
        }
    };
    stay(&chosen, "at first");
    site.node.agent.kill9();
    stay(&chosen, "without the agent");
    site.node.agent.start();
    site.node.agent.wait_for_phase("client", "Running");
    stay(&chosen, "with the agent again");
    site.node.agent.remove_manifest("loose-service.yaml");
    let [loose, _] = at(cluster_ips(81), 80);
    site.refused(site.machine.pid(), loose);
    stay(&chosen, "after a change of rules");

    let gone = chosen[0].clone();
    site.node.delete(gone.strip_suffix("-edge").expect("the node's name"));
    let later: Vec<String> = ways
        .iter()
        .zip(&chosen)
        .map(|((from, sticky, _), before)| {
            wait_for(&format!("another pod at {sticky}"), PATIENCE, || match ask(*from, *sticky) {
                Ok(Answer { pod, .. }) if pod != gone => Ok(pod),
                other => Err(format!("{other:?}, not {before}; {}", site.node.agent.log_tail())),
            })
        })
        .collect();
    for (before, after) in chosen.iter().zip(&later).filter(|(before, _)| **before != gone) {
        assert_eq!(before, after, "a client keeps a pod that is there");
    }
    stay(&later, "after its pod was gone");
}

/// Sends a packet to a Service, has the pods answer what comes to them, and returns which of them has answered.
fn exchange(client: &UdpSocket, pods: &[(&str, UdpSocket)]) -> Result<String, ErrorKind> {
    let mut buffer = [0; 64];
    client.send(b"?").map_err(|error| error.kind())?;
    // The packet is there within a millisecond or, on a busy machine, a round later.
    let deadline = Instant::now() + Duration::from_millis(10);
    while Instant::now() < deadline {
        for (name, pod) in pods {
            if let Ok((_, sender)) = pod.recv_from(&mut buffer) {
                pod.send_to(name.as_bytes(), sender).map_err(|error| error.kind())?;
            }
        }
    }
    let length = client.recv(&mut buffer).map_err(|error| error.kind())?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

fn udp_clients_follow_the_endpoint_and_are_refused_without() {
    const PORT: u16 = 5_000;
    let mut site = Site::new();
    for name in ["red", "blue", "client"] {
        site.serve(name, name);
    }
    let select = |site: &Site, app: &str| {
        site.expose(
            "echo",
            80,
            json!({"type": "NodePort", "selector": {"app": app}, "ports": [
                {"name": "udp", "protocol": "UDP", "port": PORT, "nodePort": NODE_PORT},
                {"name": "tcp", "port": 80, "targetPort": 8080, "nodePort": NODE_PORT}]}),
        );
    };
    select(&site, "red");
    site.node.agent.start();
    let serve = |site: &Site, name| (name, udp_server(site.pid_of(name), PORT).expect("bind"));
    let mut pods = vec![serve(&site, "red"), serve(&site, "blue")];
    let inside = [site.pid_of("client"), site.machine.pid()];
    let ways: Vec<(u32, [SocketAddr; 2], [SocketAddr; 2])> = inside
        .iter()
        .map(|from| (*from, at(cluster_ips(80), PORT), at(cluster_ips(80), 80)))
        .chain([(site.near.pid(), at(router_of(1), NODE_PORT), at(router_of(1), NODE_PORT))])
        .collect();
    // Sockets that live as long as the test, and send all the time.
    let clients: Vec<(String, UdpSocket)> = ways
        .iter()
        .flat_map(|(from, udp, _)| udp.map(|server| (from, server)))
        .map(|(from, server)| (format!("{server} from {from}"), udp_client(*from, server).expect("connect")))
        .collect();
    let reach = |site: &Site, pods: &[(&str, UdpSocket)], expected: Result<&str, ErrorKind>, when: &str| {
        for (what, client) in &clients {
            wait_for(&format!("{expected:?} at {what}, {when}"), PATIENCE, || {
                let said = exchange(client, pods);
                let is_it = said.as_ref().map(String::as_str) == expected.as_ref().copied();
                if is_it { Ok(()) } else { Err(format!("{said:?}; {}", site.node.agent.log_tail())) }
            });
        }
    };
    reach(&site, &pods, Ok("red"), "at first");
    // Both pods would answer: rules and connections alone decide.
    select(&site, "blue");
    reach(&site, &pods, Ok("blue"), "after a change");
    site.node.agent.kill9();
    reach(&site, &pods, Ok("blue"), "without the agent");
    select(&site, "red");
    site.node.agent.start();
    reach(&site, &pods, Ok("red"), "after a change while the agent was not there");

    site.node.delete("red");
    site.node.gone("red");
    reach(&site, &pods, Err(ErrorKind::ConnectionRefused), "without endpoints");
    for (from, _, servers) in &ways {
        for server in servers {
            site.refused(*from, *server);
        }
    }
    // A pod of the same name and a new address.
    site.serve("red", "red");
    pods.remove(0);
    pods.push(serve(&site, "red"));
    reach(&site, &pods, Ok("red"), "with a new pod");
}

on_the_embedded_runtime! {
    a_service_of_both_families_is_reached_from_everywhere,
    affinity_keeps_a_clients_pod_until_that_is_gone,
    clients_outside_keep_their_address_and_source_ranges_hold,
    udp_clients_follow_the_endpoint_and_are_refused_without,
}
