//! Services as variables of containers: names, ports, and the form that Docker's links had.
//!
//! Pure: Services in, variables out.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{ObjectKey, ObjectKind};

/// The Services of this namespace and name are variables of every pod.
const MASTER: (&str, &str) = ("default", "kubernetes");

/// What variables need of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServiceFacts {
    pub namespace: String,
    pub name: String,
    /// `spec.clusterIP`.
    pub ip: String,
    pub ports: Vec<ServicePort>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServicePort {
    /// Empty if it has none.
    pub name: String,
    pub port: i64,
    /// `TCP`, `UDP`, `SCTP`.
    pub protocol: String,
}

/// A Service as the API server or [`to_row`] writes it; `None` when it has no address of its own.
#[must_use]
pub(crate) fn from_server(service: &Value) -> Option<ServiceFacts> {
    let text = |field: &str| service["metadata"][field].as_str().unwrap_or_default().to_owned();
    let key = ObjectKey { kind: ObjectKind::Service, namespace: text("namespace"), name: text("name") };
    ServiceFacts::of(&key, service)
}

impl ServiceFacts {
    /// The same of an object with its members.
    #[must_use]
    pub(crate) fn of(key: &ObjectKey, service: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let ip = text(&service["spec"]["clusterIP"]);
        if ip.is_empty() || ip == "None" {
            return None;
        }
        let port = |port: &Value| ServicePort {
            name: text(&port["name"]),
            port: port["port"].as_i64().unwrap_or_default(),
            protocol: Some(text(&port["protocol"]))
                .filter(|it| !it.is_empty())
                .unwrap_or_else(|| "TCP".into()),
        };
        Some(Self {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            ip,
            ports: service["spec"]["ports"].as_array().into_iter().flatten().map(port).collect(),
        })
    }
}

/// Whether a Service is among the variables of the pods of `namespace`.
#[must_use]
pub(crate) fn is_visible(of: &str, name: &str, namespace: &str, links: bool) -> bool {
    (links && of == namespace) || (of, name) == MASTER
}

/// For the store: a Service of these fields only.
#[must_use]
pub(crate) fn to_row(service: &ServiceFacts) -> Value {
    let port =
        |port: &ServicePort| json!({ "name": port.name, "port": port.port, "protocol": port.protocol });
    let ports: Vec<Value> = service.ports.iter().map(port).collect();
    json!({
        "metadata": { "namespace": service.namespace, "name": service.name },
        "spec": { "clusterIP": service.ip, "ports": ports },
    })
}

/// The variables of the containers of a pod: of `default/kubernetes` always, of the Services in the pod's
/// namespace with `links` (`enableServiceLinks`). A Service named `kubernetes` in the pod's own namespace
/// hides the one in `default`. By name, because upstream's order is that of a Go map.
#[must_use]
pub(crate) fn variables(services: &[ServiceFacts], namespace: &str, links: bool) -> Vec<(String, String)> {
    let mut chosen: BTreeMap<&str, &ServiceFacts> = BTreeMap::new();
    for service in services {
        let is_own = links && service.namespace == namespace;
        let is_master = (service.namespace.as_str(), service.name.as_str()) == MASTER;
        if is_own || (is_master && !chosen.contains_key(service.name.as_str())) {
            chosen.insert(&service.name, service);
        }
    }
    let mut variables = BTreeMap::new();
    for service in chosen.into_values() {
        add_variables(service, &mut variables);
    }
    variables.into_iter().collect()
}

fn add_variables(service: &ServiceFacts, variables: &mut BTreeMap<String, String>) {
    let prefix = variable_name(&service.name);
    let ip = &service.ip;
    variables.insert(format!("{prefix}_SERVICE_HOST"), ip.clone());
    for (index, port) in service.ports.iter().enumerate() {
        let number = port.port.to_string();
        // The first port has the name from when Services had one port.
        if index == 0 {
            variables.insert(format!("{prefix}_SERVICE_PORT"), number.clone());
        }
        if !port.name.is_empty() {
            let name = format!("{prefix}_SERVICE_PORT_{}", variable_name(&port.name));
            variables.insert(name, number.clone());
        }
        let protocol = port.protocol.to_lowercase();
        let url = if ip.contains(':') {
            format!("{protocol}://[{ip}]:{number}")
        } else {
            format!("{protocol}://{ip}:{number}")
        };
        if index == 0 {
            variables.insert(format!("{prefix}_PORT"), url.clone());
        }
        let link = format!("{prefix}_PORT_{number}_{}", port.protocol.to_uppercase());
        variables.insert(format!("{link}_PROTO"), protocol);
        variables.insert(format!("{link}_PORT"), number);
        variables.insert(format!("{link}_ADDR"), ip.clone());
        variables.insert(link, url);
    }
}

fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests;
