//! The tables of Services and of what is behind them.
//!
//! Owns their columns and cells (upstream: `printService`, `printEndpoints`, `printEndpointSlice`). Pure.

use serde_json::{Value, json};

use super::super::text;
use super::cell::{Cell, Table};
use super::{AGE, NAME};

/// Addresses and ports that upstream shows before it counts the others.
const MOST: usize = 3;

pub(super) const SERVICES: Table = &[
    (NAME, Cell::Name),
    (("Type", "How the Service is exposed.", false), Cell::At("/spec/type", "")),
    (("Cluster-IP", "Address of the Service.", false), Cell::At("/spec/clusterIP", "<none>")),
    (("External-IP", "Addresses for clients outside.", false), Cell::Of(external)),
    (("Port(s)", "Ports of the Service, each with its node port.", false), Cell::Of(ports)),
    (AGE, Cell::Age),
    (("Selector", "Labels of the pods that get the traffic.", true), Cell::Of(selector)),
];
pub(super) const ENDPOINTS: Table = &[
    (NAME, Cell::Name),
    (("Endpoints", "Addresses and ports of ready pods.", false), Cell::Of(endpoints)),
    (AGE, Cell::Age),
];
pub(super) const SLICES: Table = &[
    (NAME, Cell::Name),
    (("AddressType", "Kind of the addresses.", false), Cell::At("/addressType", "")),
    (("Ports", "Ports of the endpoints.", false), Cell::Of(slice_ports)),
    (("Endpoints", "Addresses of the endpoints.", false), Cell::Of(slice_endpoints)),
    (AGE, Cell::Age),
];

fn items<'v>(of: &'v Value, place: &str) -> impl Iterator<Item = &'v Value> + use<'v> {
    of.pointer(place).and_then(Value::as_array).into_iter().flatten()
}

fn external(service: &Value) -> Value {
    let kind = text(service, "/spec/type");
    if kind == "ExternalName" {
        return json!(text(service, "/spec/externalName"));
    }
    let ingress = items(service, "/status/loadBalancer/ingress").map(|one| match text(one, "/ip") {
        "" => text(one, "/hostname"),
        ip => ip,
    });
    let own = items(service, "/spec/externalIPs").filter_map(Value::as_str);
    let all: Vec<&str> = ingress.filter(|_| kind == "LoadBalancer").chain(own).collect();
    match (all.is_empty(), kind) {
        (true, "LoadBalancer") => json!("<pending>"),
        (true, _) => json!("<none>"),
        _ => json!(all.join(",")),
    }
}

fn ports(service: &Value) -> Value {
    let port = |port: &Value| match port["nodePort"].as_u64() {
        None | Some(0) => format!("{}/{}", port["port"], text(port, "/protocol")),
        Some(node_port) => format!("{}:{node_port}/{}", port["port"], text(port, "/protocol")),
    };
    let all: Vec<String> = items(service, "/spec/ports").map(port).collect();
    json!(if all.is_empty() { "<none>".to_owned() } else { all.join(",") })
}

fn selector(service: &Value) -> Value {
    let labels = service.pointer("/spec/selector").and_then(Value::as_object).into_iter().flatten();
    let all: Vec<String> =
        labels.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default())).collect();
    json!(if all.is_empty() { "<none>".to_owned() } else { all.join(",") })
}

/// The first few, and how many more there are.
fn shortened(all: &[String], none: &str) -> Value {
    json!(match all.len() {
        0 => none.to_owned(),
        count if count > MOST => format!("{} + {} more...", all[..MOST].join(","), count - MOST),
        _ => all.join(","),
    })
}

fn endpoints(object: &Value) -> Value {
    let mut all = Vec::new();
    for subset in items(object, "/subsets") {
        let ips = || items(subset, "/addresses").map(|address| text(address, "/ip"));
        let at = |ip: &str, port: &Value| {
            if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
        };
        let mut with_ports = items(subset, "/ports").peekable();
        if with_ports.peek().is_none() {
            all.extend(ips().map(str::to_owned));
        }
        for port in with_ports {
            all.extend(ips().map(|ip| at(ip, &port["port"])));
        }
    }
    shortened(&all, "<none>")
}

fn slice_ports(slice: &Value) -> Value {
    let port = |port: &Value| match &port["port"] {
        Value::Null if text(port, "/name").is_empty() => "*".to_owned(),
        Value::Null => text(port, "/name").to_owned(),
        number => number.to_string(),
    };
    shortened(&items(slice, "/ports").map(port).collect::<Vec<_>>(), "<unset>")
}

fn slice_endpoints(slice: &Value) -> Value {
    let addresses = items(slice, "/endpoints").flat_map(|endpoint| items(endpoint, "/addresses"));
    let all: Vec<String> = addresses.filter_map(Value::as_str).map(str::to_owned).collect();
    shortened(&all, "<unset>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_shown_as_kubectl_shows_them() {
        let port = json!({"port": 80, "protocol": "TCP", "nodePort": 30_080});
        let ingress = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
        let spec = json!({"type": "LoadBalancer", "ports": [port, {"port": 53, "protocol": "UDP"}],
            "externalIPs": ["203.0.113.1"], "selector": {"app": "web"}});
        let service = json!({"spec": spec, "status": ingress});
        assert_eq!(external(&service), "192.0.2.1,203.0.113.1");
        assert_eq!(ports(&service), "80:30080/TCP,53/UDP");
        assert_eq!(selector(&service), "app=web");
        let of = |spec: Value| external(&json!({"spec": spec}));
        assert_eq!(of(json!({"type": "LoadBalancer"})), "<pending>");
        assert_eq!(of(json!({"type": "ClusterIP"})), "<none>");
        assert_eq!(of(json!({"type": "ExternalName", "externalName": "a.b"})), "a.b");
        assert_eq!((ports(&json!({})), selector(&json!({}))), (json!("<none>"), json!("<none>")));
    }

    #[test]
    fn endpoints_are_counted_beyond_the_third() {
        let addresses: Vec<Value> = (2..7).map(|last| json!({"ip": format!("10.86.0.{last}")})).collect();
        let object = json!({"subsets": [{"addresses": addresses, "ports": [{"port": 80}]}]});
        assert_eq!(endpoints(&object), "10.86.0.2:80,10.86.0.3:80,10.86.0.4:80 + 2 more...");
        assert_eq!(endpoints(&json!({"subsets": [{"addresses": [{"ip": "10.0.0.5"}]}]})), "10.0.0.5");
        assert_eq!(endpoints(&json!({})), "<none>");
        let slice =
            json!({"ports": [{"port": 80}, {"name": "a"}, {}], "endpoints": [{"addresses": ["fd00::2"]}]});
        assert_eq!((slice_ports(&slice), slice_endpoints(&slice)), (json!("80,a,*"), json!("fd00::2")));
        assert_eq!(
            (slice_ports(&json!({})), slice_endpoints(&json!({}))),
            (json!("<unset>"), json!("<unset>"))
        );
    }
}
