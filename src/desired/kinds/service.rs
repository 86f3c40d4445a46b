//! The rules of Services, EndpointSlices and Endpoints.
//!
//! Owns them. Addresses and node ports are given in [`super::addresses`]. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::KindRules;
use crate::model::cidr::Cidr;
use crate::model::field_error::{Errors, Path};
use crate::model::names;
use crate::model::objects::LocalObject;
use crate::model::ordered::Ordered as _;

const AFFINITY_SECONDS: i64 = 10_800;
const MAX_AFFINITY_SECONDS: i64 = 86_400;
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const MAX_ENDPOINTS: usize = 1_000;
const MAX_SLICE_PORTS: usize = 20_000;
const MAX_SLICE_ADDRESSES: usize = 100;

/// Upstream: `SetDefaults_Service`, `ValidateService`, `ValidateServiceUpdate`.
pub(super) const SERVICE: KindRules =
    KindRules { defaults: service_defaults, validate: service, validate_update: service_update };

/// Upstream: `SetDefaults_EndpointPort`, `ValidateEndpointSlice`.
pub(super) const ENDPOINT_SLICE: KindRules = KindRules {
    defaults: |body| {
        for port in body.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            default(port, "protocol", json!("TCP"));
            default(port, "name", json!(""));
        }
    },
    validate: endpoint_slice,
    validate_update: |old, new, errors| {
        if old["addressType"] != new["addressType"] {
            errors.invalid(&Path::Root("addressType"), text(&new["addressType"]), "field is immutable");
        }
    },
};

/// Upstream: `SetDefaults_Endpoints`, `ValidateEndpoints`.
pub(super) const ENDPOINTS: KindRules = KindRules {
    defaults: |body| {
        for subset in body.get_mut("subsets").and_then(Value::as_array_mut).into_iter().flatten() {
            for port in subset.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                default(port, "protocol", json!("TCP"));
            }
        }
    },
    validate: endpoints,
    validate_update: |_, _, _| {},
};

#[must_use]
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// The fields that are set.
fn is_set(value: &Value, field: &str) -> bool {
    value.get(field).is_some_and(|value| !value.is_null())
}

pub(super) fn default(spec: &mut Value, field: &str, value: Value) {
    if !is_set(spec, field) || spec[field] == "" {
        spec[field] = value;
    }
}

fn service_defaults(body: &mut Value) {
    let Some(members) = body.as_object_mut() else { return };
    let spec = members.entry("spec").or_insert_with(|| json!({}));
    if !spec.is_object() {
        return;
    }
    default(spec, "type", json!("ClusterIP"));
    default(spec, "sessionAffinity", json!("None"));
    match text(&spec["sessionAffinity"]) {
        "None" => drop(spec.as_object_mut().map(|spec| spec.remove("sessionAffinityConfig"))),
        "ClientIP" if spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"].is_null() => {
            spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}});
        }
        _ => {}
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        default(port, "protocol", json!("TCP"));
        if matches!(&port["targetPort"], Value::Null) || port["targetPort"] == 0 || port["targetPort"] == "" {
            port["targetPort"] = port["port"].clone();
        }
    }
    let kind = text(&spec["type"]).to_owned();
    if is_external(spec) {
        default(spec, "externalTrafficPolicy", json!("Cluster"));
    }
    if kind != "ExternalName" {
        default(spec, "internalTrafficPolicy", json!("Cluster"));
    }
    if kind == "LoadBalancer" {
        default(spec, "allocateLoadBalancerNodePorts", json!(true));
    }
    // Clients may set either.
    let (one, all) = (text(&spec["clusterIP"]).to_owned(), items(&spec["clusterIPs"]).next().cloned());
    match all {
        None if !one.is_empty() => spec["clusterIPs"] = json!([one]),
        Some(first) if one.is_empty() => spec["clusterIP"] = first,
        _ => {}
    }
    for field in ["clusterIP", "clusterIPs"] {
        if spec[field].is_null() || spec[field] == "" || spec[field] == json!([]) {
            spec.as_object_mut().map(|spec| spec.remove(field));
        }
    }
}

/// It is reached from outside (upstream: `ExternallyAccessible`).
fn is_external(spec: &Value) -> bool {
    matches!(text(&spec["type"]), "LoadBalancer" | "NodePort")
        || (text(&spec["type"]) == "ClusterIP" && items(&spec["externalIPs"]).next().is_some())
}

#[must_use]
pub(super) fn is_headless(spec: &Value) -> bool {
    text(&spec["clusterIP"]) == "None"
}

fn service(object: &LocalObject, body: &Value, errors: &mut Errors) {
    let (metadata, root) = (Path::Root("metadata"), Path::Root("spec"));
    errors.all(&metadata.child("name"), &object.key.name, names::dns_label(&object.key.name));
    let spec = &body["spec"];
    let kind = text(&spec["type"]);
    errors.one_of(&root.child("type"), kind, &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
    let ports: Vec<&Value> = items(&spec["ports"]).collect();
    if ports.is_empty() && !is_headless(spec) && kind != "ExternalName" {
        errors.required(&root.child("ports"), "");
    }
    if is_headless(spec) && matches!(kind, "LoadBalancer" | "NodePort") {
        let why = format!("may not be set to 'None' for {kind} services");
        errors.invalid(&root.child("clusterIPs").index(0), "None", why);
    }
    if kind == "ExternalName" {
        external_name(spec, errors);
    } else {
        cluster_ips(spec, errors);
    }
    service_ports(&ports, kind, errors);
    for (key, value) in spec["selector"].as_object().into_iter().flatten() {
        errors.all(&root.child("selector"), key, names::qualified_name(key));
        errors.all(&root.child("selector"), text(value), names::label_value(text(value)));
    }
    affinity(spec, errors);
    for (index, ip) in items(&spec["externalIPs"]).enumerate() {
        endpoint_ip(&root.child("externalIPs").index(index), text(ip), errors);
    }
    policies(spec, kind, errors);
    let ranges = root.child("LoadBalancerSourceRanges");
    for (index, range) in items(&spec["loadBalancerSourceRanges"]).enumerate() {
        if index == 0 && kind != "LoadBalancer" {
            errors.forbidden(&ranges, "may only be used when `type` is 'LoadBalancer'");
        }
        if text(range).trim().parse::<Cidr>().is_err() {
            let why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            errors.invalid(&ranges.index(index), text(range), why);
        }
    }
}

fn external_name(spec: &Value, errors: &mut Errors) {
    let root = Path::Root("spec");
    for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        if is_set(spec, field) && spec[field] != json!([]) {
            errors.forbidden(&root.child(field), "may not be set for ExternalName services");
        }
    }
    let name = text(&spec["externalName"]);
    errors.name(&root.child("externalName"), name.strip_suffix('.').unwrap_or(name), names::dns_subdomain);
}

/// Upstream: `ValidateServiceClusterIPsRelatedFields`.
fn cluster_ips(spec: &Value, errors: &mut Errors) {
    let root = Path::Root("spec");
    let (at, families_at) = (root.child("clusterIPs"), root.child("ipFamilies"));
    let ips: Vec<&str> = items(&spec["clusterIPs"]).map(text).collect();
    let mut wrong = |why: &str| errors.invalid_number(&at, &spec["clusterIPs"], why);
    if ips.first().is_some_and(|first| *first != text(&spec["clusterIP"])) {
        wrong("first value must match `clusterIP`");
    }
    if ips.len() > 2 {
        wrong("may only hold up to 2 values");
    }
    if ips.len() > 1 && ips.contains(&"None") {
        wrong("'None' must be the first and only value");
        return;
    }
    let mut seen = BTreeSet::new();
    let families: Vec<&str> = items(&spec["ipFamilies"]).map(text).collect();
    for (index, family) in families.iter().enumerate() {
        errors.one_of(&families_at.index(index), family, &FAMILIES);
        if !seen.insert(*family) {
            errors.duplicate(&families_at.index(index), family);
        }
    }
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    errors.optional_of(&root.child("ipFamilyPolicy"), spec["ipFamilyPolicy"].as_str(), &policies);
    if ips == ["None"] {
        return;
    }
    let mut parsed: Vec<IpAddr> = Vec::new();
    for (index, ip) in ips.iter().enumerate() {
        let Ok(address) = ip.parse::<IpAddr>() else {
            errors.all(&at.index(index), ip, names::ip(ip));
            continue;
        };
        parsed.push(address);
        let wanted = families.get(index).filter(|family| **family != family_name(address));
        if let Some(wanted) = wanted {
            let why = format!("expected an {wanted} value as indicated by `ipFamilies[{index}]`");
            errors.invalid(&at.index(index), ip, why);
        }
    }
    if let [one, other] = parsed[..]
        && one.is_ipv4() == other.is_ipv4()
    {
        let why = "may specify no more than one IP for each IP family";
        errors.invalid_number(&at, &spec["clusterIPs"], why);
    }
}

#[must_use]
pub(super) fn family_name(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn service_ports(ports: &[&Value], kind: &str, errors: &mut Errors) {
    let root = Path::Root("spec");
    let all = root.child("ports");
    let (mut names_seen, mut seen, mut node_ports) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (index, port) in ports.iter().enumerate() {
        let at = all.index(index);
        let name = text(&port["name"]);
        if name.is_empty() && ports.len() > 1 {
            errors.required(&at.child("name"), "");
        } else if !name.is_empty() {
            errors.all(&at.child("name"), name, names::dns_label(name));
            if !names_seen.insert(name) {
                errors.duplicate(&at.child("name"), name);
            }
        }
        port_number(&at.child("port"), &port["port"], errors);
        let protocol = text(&port["protocol"]);
        errors.one_of(&at.child("protocol"), protocol, &PROTOCOLS);
        match port["targetPort"].as_str() {
            Some(name) => errors.all(&at.child("targetPort"), name, names::port_name(name)),
            None => port_number(&at.child("targetPort"), &port["targetPort"], errors),
        }
        if let Some(protocol) = port["appProtocol"].as_str() {
            errors.all(&at.child("appProtocol"), protocol, names::qualified_name(protocol));
        }
        let number = port["nodePort"].as_i64().unwrap_or_default();
        if number != 0 && kind == "ClusterIP" {
            errors.forbidden(&at.child("nodePort"), "may not be used when `type` is 'ClusterIP'");
        }
        if number != 0 && !node_ports.insert((protocol, number)) {
            errors.duplicate(&at.child("nodePort"), &number.to_string());
        }
        if !seen.insert((protocol, port["port"].as_i64())) {
            errors.duplicate(&at, &format!("{protocol} {}", port["port"]));
        }
    }
}

fn port_number(at: &Path<'_>, value: &Value, errors: &mut Errors) {
    let number = value.as_i64().and_then(|number| i32::try_from(number).ok()).unwrap_or_default();
    errors.all_number(at, number, names::port_number(number));
}

fn affinity(spec: &Value, errors: &mut Errors) {
    let root = Path::Root("spec");
    errors.one_of(&root.child("sessionAffinity"), text(&spec["sessionAffinity"]), &["ClientIP", "None"]);
    let timeout = &spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"];
    if text(&spec["sessionAffinity"]) == "ClientIP"
        && !timeout.as_i64().is_some_and(|seconds| (1..=MAX_AFFINITY_SECONDS).contains(&seconds))
    {
        let config = root.child("sessionAffinityConfig");
        let client = config.child("clientIP");
        let why = format!("must be greater than 0 and less than {MAX_AFFINITY_SECONDS}");
        errors.invalid_number(&client.child("timeoutSeconds"), timeout, why);
    }
}

fn policies(spec: &Value, kind: &str, errors: &mut Errors) {
    let root = Path::Root("spec");
    let external = root.child("externalTrafficPolicy");
    let policy = text(&spec["externalTrafficPolicy"]);
    if is_external(spec) {
        errors.one_of(&external, policy, &["Cluster", "Local"]);
    } else if !policy.is_empty() {
        errors.invalid(&external, policy, "may only be set for externally-accessible services");
    }
    let internal = spec["internalTrafficPolicy"].as_str();
    errors.optional_of(&root.child("internalTrafficPolicy"), internal, &["Cluster", "Local"]);
    let distributions = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    errors.optional_of(
        &root.child("trafficDistribution"),
        spec["trafficDistribution"].as_str(),
        &distributions,
    );
    let needs_check = kind == "LoadBalancer" && policy == "Local";
    if !needs_check && spec["healthCheckNodePort"].as_i64().is_some_and(|port| port != 0) {
        let why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.invalid_number(&root.child("healthCheckNodePort"), &spec["healthCheckNodePort"], why);
    }
    for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
        if kind != "LoadBalancer" && is_set(spec, field) {
            errors.forbidden(&root.child(field), "may only be used when `type` is 'LoadBalancer'");
        }
    }
    if let Some(class) = spec["loadBalancerClass"].as_str() {
        errors.all(&root.child("loadBalancerClass"), class, names::qualified_name(class));
    }
}

/// Upstream: `validateUpgradeDowngradeClusterIPs`, `validateUpgradeDowngradeIPFamilies` and the class.
fn service_update(old: &Value, new: &Value, errors: &mut Errors) {
    let (old, new) = (&old["spec"], &new["spec"]);
    let root = Path::Root("spec");
    let is_name = |spec: &Value| text(&spec["type"]) == "ExternalName";
    let is_balancer = |spec: &Value| text(&spec["type"]) == "LoadBalancer";
    if is_balancer(old) && is_balancer(new) && old["loadBalancerClass"] != new["loadBalancerClass"] {
        let class = text(&new["loadBalancerClass"]);
        errors.invalid(&root.child("loadBalancerClass"), class, "may not change once set");
    }
    if is_name(old) || is_name(new) || (is_headless(old) && is_headless(new)) {
        return;
    }
    let is_single = text(&new["ipFamilyPolicy"]) == "SingleStack";
    let mut compare = |field: &str| {
        let (before, after): (Vec<&str>, Vec<&str>) =
            (items(&old[field]).map(text).collect(), items(&new[field]).map(text).collect());
        let all = root.child(field);
        let changed = before.iter().zip(&after).position(|(before, after)| before != after);
        if let Some(at) = changed {
            errors.invalid_number(&all.index(at), &new[field], "may not change once set");
        } else if after.is_empty() && !before.is_empty() {
            let what = if field == "clusterIPs" {
                "primary clusterIP can not be unset"
            } else {
                "primary ipFamily can not be unset"
            };
            errors.invalid_number(&all.index(0), &new[field], what);
        } else if after.len() < before.len() && !is_single {
            let what = if field == "clusterIPs" { "clusterIP" } else { "ipFamily" };
            let why = format!("must be set to 'SingleStack' when releasing the secondary {what}");
            errors.invalid(&root.child("ipFamilyPolicy"), text(&new["ipFamilyPolicy"]), why);
        }
    };
    compare("clusterIPs");
    if is_headless(old) == is_headless(new) {
        compare("ipFamilies");
    }
}

/// What a client that replaces a Service may leave out, and what belongs to its old type (upstream:
/// `patchAllocatedValues`, `dropTypeDependentFields`).
pub(super) fn carry_over(old: &Value, new: &mut Value) {
    let old = &old["spec"];
    let Some(new) = new.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    let kind = match text(&new["type"]) {
        "" => "ClusterIP".to_owned(),
        kind => kind.to_owned(),
    };
    let drop_same = |new: &mut Value, field: &str| {
        if new[field] == old[field] {
            new.as_object_mut().map(|spec| spec.remove(field));
        }
    };
    if text(&old["type"]) != "ExternalName" {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if kind == "ExternalName" {
                drop_same(new, field);
            } else if field != "ipFamilies" && !is_set(new, field) && is_set(old, field) {
                new[field] = old[field].clone();
            }
        }
        if kind != "ExternalName" && text(&new["ipFamilyPolicy"]) == "SingleStack" {
            for field in ["clusterIPs", "ipFamilies"] {
                if new[field] == old[field]
                    && let Some(list) = new[field].as_array_mut()
                {
                    list.truncate(1);
                }
            }
        }
    }
    let has_node_ports = |kind: &str| matches!(kind, "NodePort" | "LoadBalancer");
    let before: Vec<&Value> = items(&old["ports"]).collect();
    let used: BTreeSet<i64> = items(&new["ports"]).filter_map(|port| port["nodePort"].as_i64()).into_set();
    for port in new.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let known = before.iter().find(|it| text(&it["name"]) == text(&port["name"]));
        let number = port["nodePort"].as_i64().unwrap_or_default();
        if !has_node_ports(&kind) {
            if number != 0 && before.iter().any(|it| it["nodePort"] == number) {
                port.as_object_mut().map(|port| port.remove("nodePort"));
            }
        } else if number == 0
            && let Some(known) = known.and_then(|known| known["nodePort"].as_i64())
            && !used.contains(&known)
        {
            port["nodePort"] = json!(known);
        }
    }
    if kind != "LoadBalancer" {
        drop_same(new, "allocateLoadBalancerNodePorts");
        drop_same(new, "loadBalancerClass");
    }
    if !is_external(new) {
        drop_same(new, "externalTrafficPolicy");
    }
}

/// Upstream: `ValidateEndpointIP`.
fn endpoint_ip(at: &Path<'_>, ip: &str, errors: &mut Errors) {
    let Ok(address) = ip.parse::<IpAddr>() else {
        errors.all(at, ip, names::ip(ip));
        return;
    };
    let is_link_local = match address {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    if address.is_unspecified() {
        errors.invalid(at, ip, format!("may not be unspecified ({ip})"));
    }
    if address.is_loopback() {
        errors.invalid(at, ip, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    if is_link_local {
        errors.invalid(at, ip, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if address.is_multicast() {
        errors.invalid(at, ip, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

fn endpoint_slice(_object: &LocalObject, body: &Value, errors: &mut Errors) {
    let root = |name| Path::Root(name);
    let kind = text(&body["addressType"]);
    errors.one_of(&root("addressType"), kind, &["FQDN", "IPv4", "IPv6"]);
    let endpoints = root("endpoints");
    let count = items(&body["endpoints"]).count();
    if count > MAX_ENDPOINTS {
        errors.too_many(&endpoints, count, MAX_ENDPOINTS);
        return;
    }
    for (index, endpoint) in items(&body["endpoints"]).enumerate() {
        let at = endpoints.index(index);
        let addresses = at.child("addresses");
        let count = items(&endpoint["addresses"]).count();
        if count == 0 {
            errors.required(&addresses, "must contain at least 1 address");
        } else if count > MAX_SLICE_ADDRESSES {
            errors.too_many(&addresses, count, MAX_SLICE_ADDRESSES);
        }
        for (index, address) in items(&endpoint["addresses"]).map(text).enumerate() {
            let at = addresses.index(index);
            match (kind, address.parse::<IpAddr>()) {
                ("FQDN", _) => errors.all(&at, address, names::dns_subdomain(address)),
                ("IPv4", Ok(ip)) if !ip.is_ipv4() => errors.invalid(&at, address, "must be an IPv4 address"),
                ("IPv6", Ok(ip)) if ip.is_ipv4() => errors.invalid(&at, address, "must be an IPv6 address"),
                _ => endpoint_ip(&at, address, errors),
            }
        }
        if let Some(hostname) = endpoint["hostname"].as_str() {
            errors.all(&at.child("hostname"), hostname, names::dns_label(hostname));
        }
    }
    slice_ports(&root("ports"), &body["ports"], errors);
}

fn slice_ports(at: &Path<'_>, ports: &Value, errors: &mut Errors) {
    let count = items(ports).count();
    if count > MAX_SLICE_PORTS {
        errors.too_many(at, count, MAX_SLICE_PORTS);
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, port) in items(ports).enumerate() {
        let at = at.index(index);
        let name = text(&port["name"]);
        if !name.is_empty() {
            errors.all(&at.child("name"), name, names::dns_label(name));
        }
        if !seen.insert(name) {
            errors.duplicate(&at.child("name"), name);
        }
        errors.one_of(&at.child("protocol"), text(&port["protocol"]), &PROTOCOLS);
        if is_set(port, "port") {
            port_number(&at.child("port"), &port["port"], errors);
        }
    }
}

fn endpoints(_object: &LocalObject, body: &Value, errors: &mut Errors) {
    let subsets = Path::Root("subsets");
    for (index, subset) in items(&body["subsets"]).enumerate() {
        let at = subsets.index(index);
        for list in ["addresses", "notReadyAddresses"] {
            for (index, address) in items(&subset[list]).enumerate() {
                let all = at.child(list);
                let one = all.index(index);
                endpoint_ip(&one.child("ip"), text(&address["ip"]), errors);
            }
        }
        slice_ports(&at.child("ports"), &subset["ports"], errors);
    }
}

#[cfg(test)]
mod tests;
