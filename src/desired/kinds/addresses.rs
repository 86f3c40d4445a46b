//! The addresses and node ports of Services, given in the edit that creates them.
//!
//! Owns the choice: by a hash of the name, and the next free one; and the refusals (upstream: `ipallocator`,
//! `portallocator`). Given ones are kept with the object, so that they stay.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::service::{carry_over, family_name, is_headless, items, text};
use crate::model::cidr::Cidr;
use crate::model::field_error::{Errors, FieldError, Path};
use crate::model::objects::{LocalObject, ObjectContent, ObjectKey, ObjectKind, PlainBody};
use crate::model::ordered::Ordered as _;

/// What Services may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRanges {
    /// One for each family; the first is that of Services which name none.
    pub cidrs: Vec<Cidr>,
    /// The first and the last node port.
    pub node_ports: (u16, u16),
}

/// Reads `--service-cidr`.
pub(crate) fn cidrs(text: &str) -> Result<Vec<Cidr>, String> {
    let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
    let read = |text: &str| {
        let range: Cidr =
            text.parse().map_err(|_| format!("{text:?} is not a range such as 10.96.0.0/16"))?;
        let (is_ipv4, prefix) = (range.network().is_ipv4(), range.prefix());
        let allowed = if is_ipv4 { 8..=27 } else { 64..=122 };
        if allowed.contains(&prefix) {
            Ok(range)
        } else {
            Err(format!("{text:?}: the length must be 8 to 27 (IPv4) or 64 to 122 (IPv6)"))
        }
    };
    let ranges = texts.map(read).collect::<Result<Vec<Cidr>, String>>()?;
    match ranges[..] {
        [] | [_] => Ok(ranges),
        [one, other] if one.network().is_ipv4() != other.network().is_ipv4() => Ok(ranges),
        _ => Err("at most one range of each address family".to_owned()),
    }
}

/// Reads `--service-node-port-range`.
pub(crate) fn port_range(text: &str) -> Result<(u16, u16), String> {
    let parse = || {
        let (first, last) = text.split_once('-')?;
        Some((first.trim().parse::<u16>().ok()?, last.trim().parse::<u16>().ok()?))
    };
    parse()
        .filter(|(first, last)| *first > 0 && first < last)
        .ok_or_else(|| format!("{text:?} is not a range of ports such as 30000-32767"))
}

/// What Services have, and whose it is; `None` for what no Service of a user may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    ips: BTreeMap<IpAddr, Option<ObjectKey>>,
    ports: BTreeMap<u16, ObjectKey>,
}

impl Taken {
    #[must_use]
    pub(crate) fn by<'o>(objects: impl Iterator<Item = &'o LocalObject>, ranges: &ServiceRanges) -> Self {
        let mut taken = Self::default();
        for range in &ranges.cidrs {
            // Of the agent's own Services; the network's own address, and the last one.
            let reserved = [0, 1, 10, range.len() - 1].into_iter().filter_map(|position| range.at(position));
            taken.ips.extend(reserved.map(|ip| (ip, None)));
        }
        objects.for_each(|object| taken.add(object));
        taken
    }

    /// The first that has something keeps it.
    pub(crate) fn add(&mut self, object: &LocalObject) {
        if object.key.kind != ObjectKind::Service {
            return;
        }
        let body = object.content.body();
        let spec = &body["spec"];
        for ip in items(&spec["clusterIPs"]).filter_map(|ip| text(ip).parse::<IpAddr>().ok()) {
            self.ips.entry(ip).or_insert_with(|| Some(object.key.clone()));
        }
        let ports = items(&spec["ports"]).map(|port| &port["nodePort"]).chain([&spec["healthCheckNodePort"]]);
        for port in ports.filter_map(number) {
            self.ports.entry(port).or_insert_with(|| object.key.clone());
        }
    }

    fn has_ip(&self, ip: IpAddr, key: &ObjectKey) -> bool {
        self.ips.get(&ip).is_some_and(|owner| owner.as_ref() != Some(key))
    }

    fn has_port(&self, port: u16, key: &ObjectKey) -> bool {
        self.ports.get(&port).is_some_and(|owner| owner != key)
    }
}

fn number(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0)
}

/// Gives a valid Service what it lacks; `old` is the object that it replaces. Empty when it has all it needs, otherwise
/// why it cannot have it.
#[must_use]
pub(crate) fn assign(
    object: &mut LocalObject,
    old: Option<&LocalObject>,
    taken: &Taken,
    ranges: &ServiceRanges,
) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if object.key.kind != ObjectKind::Service {
        return errors.0;
    }
    let mut body = object.content.body();
    let before = old.map(|old| old.content.body()).unwrap_or_default();
    if old.is_some() {
        carry_over(&before, &mut body);
    }
    let choice = Choice { key: &object.key, taken, ranges };
    let spec = &mut body["spec"];
    if text(&spec["type"]) != "ExternalName" {
        families(spec, &before["spec"], ranges, &mut errors);
        if errors.0.is_empty() && !is_headless(spec) {
            cluster_ips(spec, &before["spec"], &choice, &mut errors);
        }
    }
    if errors.0.is_empty() {
        node_ports(spec, &before["spec"], &choice, &mut errors);
    }
    if errors.0.is_empty() {
        object.content = ObjectContent::Plain(PlainBody::new(&body));
    }
    errors.0
}

/// Upstream: `initIPFamilyFields`.
fn families(spec: &mut Value, old: &Value, ranges: &ServiceRanges, errors: &mut Errors) {
    let root = Path::Root("spec");
    let at = root.child("ipFamilyPolicy");
    let known: Vec<&str> = ranges.cidrs.iter().map(|range| family_name(range.network())).collect();
    let is_free = is_headless(spec) && spec["selector"].as_object().is_none_or(serde_json::Map::is_empty);
    if text(&spec["ipFamilyPolicy"]).is_empty() {
        let inherited = text(&old["ipFamilyPolicy"]);
        let policy = match inherited {
            "" if is_free => "RequireDualStack",
            "" => "SingleStack",
            inherited => inherited,
        };
        spec["ipFamilyPolicy"] = json!(policy);
    }
    let policy = text(&spec["ipFamilyPolicy"]).to_owned();
    let mut chosen: Vec<String> = items(&spec["ipFamilies"]).map(|family| text(family).to_owned()).collect();
    let ips: Vec<IpAddr> = items(&spec["clusterIPs"]).filter_map(|ip| text(ip).parse().ok()).collect();
    if policy == "SingleStack" {
        for (count, what) in [(ips.len(), "cluster IPs"), (chosen.len(), "IP families")] {
            if count > 1 {
                let why = format!(
                    "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
                );
                errors.invalid(&at, &policy, why);
            }
        }
    }
    for (index, ip) in ips.iter().enumerate().skip(chosen.len()) {
        let family = family_name(*ip);
        if !known.contains(&family) {
            let why = format!("{family} is not configured on this cluster");
            errors.invalid_number(&root.child("clusterIPs").index(index), &spec["clusterIPs"], why);
        }
        chosen.push(family.to_owned());
    }
    if !is_free {
        if policy == "RequireDualStack" && known.len() < 2 {
            errors.invalid(&at, &policy, "this cluster is not configured for dual-stack services");
        }
        for (index, family) in
            chosen.iter().enumerate().filter(|(_, family)| !known.contains(&family.as_str()))
        {
            let why = "not configured on this cluster";
            errors.invalid(&root.child("ipFamilies").index(index), family, why);
        }
    }
    if chosen.is_empty() {
        chosen.extend(known.first().map(|family| (*family).to_owned()));
    }
    if policy != "SingleStack" && chosen.len() == 1 && (is_free || known.len() > 1) {
        chosen.push(if chosen[0] == "IPv4" { "IPv6" } else { "IPv4" }.to_owned());
    }
    spec["ipFamilies"] = json!(chosen);
}

/// What a Service may get.
struct Choice<'a> {
    key: &'a ObjectKey,
    taken: &'a Taken,
    ranges: &'a ServiceRanges,
}

fn cluster_ips(spec: &mut Value, old: &Value, choice: &Choice<'_>, errors: &mut Errors) {
    let root = Path::Root("spec");
    let at = root.child("clusterIPs");
    let given: Vec<String> = items(&spec["clusterIPs"]).map(|ip| text(ip).to_owned()).collect();
    let mut ips = Vec::new();
    let wanted: Vec<String> = items(&spec["ipFamilies"]).map(|family| text(family).to_owned()).collect();
    for (position, family) in wanted.iter().enumerate() {
        let Some(range) = choice.ranges.cidrs.iter().find(|range| family_name(range.network()) == family)
        else {
            continue;
        };
        let Some(text) = given.get(position) else {
            match choice.free_ip(*range) {
                Some(ip) => ips.push(ip.to_string()),
                None => errors.invalid_number(&at, json!(given), "failed to allocate IP: range is full"),
            }
            continue;
        };
        let is_kept = items(&old["clusterIPs"]).any(|ip| ip == text);
        let refused = match text.parse::<IpAddr>() {
            _ if is_kept => None,
            Ok(ip) if !range.contains(ip) => Some(format!(
                "the provided IP ({ip}) is not in the valid range. The range of valid IPs is {range}"
            )),
            Ok(ip) if choice.taken.has_ip(ip, choice.key) => {
                Some("provided IP is already allocated".to_owned())
            }
            _ => None,
        };
        if let Some(why) = refused {
            errors.invalid_number(&at, json!(given), format!("failed to allocate IP {text}: {why}"));
        }
        ips.push(text.clone());
    }
    spec["clusterIP"] = json!(ips.first());
    spec["clusterIPs"] = json!(ips);
}

impl Choice<'_> {
    fn seed(&self) -> String {
        format!("{}/{}", self.key.namespace, self.key.name)
    }

    /// Upstream leaves a part at the begin of the range to Services that name their address.
    fn free_ip(&self, range: Cidr) -> Option<IpAddr> {
        let reserved = (range.len() / 16).clamp(16, 256).min(range.len() / 2);
        let room = range.len() - reserved;
        let first = hash(&self.seed()) % room;
        // As many tries as there may be taken ones, and one more.
        let taken = u64::try_from(self.taken.ips.len()).unwrap_or(u64::MAX);
        let candidate = |attempt: u64| range.at(reserved + first.wrapping_add(attempt) % room);
        let is_free = |ip: &IpAddr| !self.taken.has_ip(*ip, self.key);
        (0..room.min(taken.saturating_add(1))).filter_map(candidate).find(is_free)
    }

    /// The same for ports.
    fn free_port(&self, seed: &str, own: &BTreeSet<u16>) -> Option<u16> {
        let (first, last) = self.ranges.node_ports;
        let size = u64::from(last.saturating_sub(first)) + 1;
        let reserved = (size / 32).clamp(16, 128).min(size / 2);
        let room = size - reserved;
        let start = hash(seed) % room;
        let candidate =
            |attempt: u64| u16::try_from(u64::from(first) + reserved + (start + attempt) % room).ok();
        let is_free = |port: &u16| !self.taken.has_port(*port, self.key) && !own.contains(port);
        (0..room).filter_map(candidate).find(is_free)
    }

    fn refused_port(&self, port: u16, known: &BTreeSet<u16>) -> Option<String> {
        let (first, last) = self.ranges.node_ports;
        if known.contains(&port) {
            return None;
        }
        if !(first..=last).contains(&port) {
            return Some(format!(
                "provided port is not in the valid range. The range of valid ports is {first}-{last}"
            ));
        }
        self.taken.has_port(port, self.key).then(|| "provided port is already allocated".to_owned())
    }
}

fn hash(seed: &str) -> u64 {
    let digest = Sha256::digest(seed);
    digest[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Upstream: `initNodePorts`, `updateNodePorts`, `allocHealthCheckNodePort`.
fn node_ports(spec: &mut Value, old: &Value, choice: &Choice<'_>, errors: &mut Errors) {
    let kind = text(&spec["type"]).to_owned();
    if !matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        return;
    }
    let allocates = kind == "NodePort" || spec["allocateLoadBalancerNodePorts"] != false;
    let needs_check = kind == "LoadBalancer" && text(&spec["externalTrafficPolicy"]) == "Local";
    let mut known: BTreeSet<u16> =
        items(&old["ports"]).filter_map(|port| number(&port["nodePort"])).collect();
    known.extend(number(&old["healthCheckNodePort"]));
    let mut own: BTreeSet<u16> =
        items(&spec["ports"]).filter_map(|port| number(&port["nodePort"])).into_set();
    let root = Path::Root("spec");
    let ports = root.child("ports");
    let mut by_port: Vec<(u64, u16)> = Vec::new();
    for (index, port) in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten().enumerate()
    {
        let at = ports.index(index);
        let service_port = port["port"].as_u64().unwrap_or_default();
        if let Some(given) = number(&port["nodePort"]) {
            if let Some(why) = choice.refused_port(given, &known) {
                errors.invalid_number(&at.child("nodePort"), given, why);
            }
            by_port.push((service_port, given));
            continue;
        }
        if !allocates {
            continue;
        }
        // The same port of two protocols has one node port.
        let same = by_port.iter().find(|(port, _)| *port == service_port).map(|(_, given)| *given);
        let seed = format!("{}/{}/{service_port}", choice.seed(), text(&port["name"]));
        match same.or_else(|| choice.free_port(&seed, &own)) {
            Some(given) => {
                port["nodePort"] = json!(given);
                own.insert(given);
                by_port.push((service_port, given));
            }
            None => errors.invalid_number(
                &at.child("nodePort"),
                0,
                "failed to allocate a nodePort: range is full",
            ),
        }
    }
    let check = number(&spec["healthCheckNodePort"]);
    if !needs_check {
        return;
    }
    match check {
        Some(given) => {
            if let Some(why) = choice.refused_port(given, &known) {
                errors.invalid_number(&root.child("healthCheckNodePort"), given, why);
            }
        }
        None => {
            if let Some(given) = choice.free_port(&format!("{}//check", choice.seed()), &own) {
                spec["healthCheckNodePort"] = json!(given);
            }
        }
    }
}

#[cfg(test)]
mod tests;
