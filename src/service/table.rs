//! The kernel's rules for Services: one nftables table per address family.
//!
//! A frontend is an address with a port, or a port of the node, behind which targets are. Frontends with equally many
//! targets share maps, whose keys are the frontend and a number below that many: a rule draws the number and looks up
//! the target, so the number of rules does not grow with the number of Services. `affinity-SECONDS` maps a client and
//! its frontend to the target that it got; rules fill it.
//!
//! Sources are kept, but where a reply would not come back through this node: to a target elsewhere, and (in the
//! bridge's own table) from pod to pod of one bridge.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;

use super::spec::{Endpoint, Protocol, ServicePort, ServiceSpec, ServiceType, Slice, family_of};
use crate::model::cidr::Cidr;
use crate::platform::sys::netlink::nftables::{
    Chain, ChainKind, DataType, Expression, Family, Hook, Map, REGISTER, SHORT_REGISTER, Table,
};

/// Maps of clients and their targets; the seconds follow.
pub(crate) const AFFINITY: &str = "affinity-";
/// Before host ports (-100): which of two claims to a port counts has been decided.
const DESTINATION_NAT: i32 = -101;
const SOURCE_NAT: i32 = 100;
const FILTER: i32 = 0;
/// `RTN_LOCAL`: the address is one of the node's own.
const LOCAL: u32 = 2;
/// `IPS_DST_NAT`.
const REWRITTEN: u32 = 0x20;
/// Targets of a frontend; a map has one entry for each.
const MAX_TARGETS: usize = 1_000;

/// A Service with what is behind it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub service: Rc<ServiceSpec>,
    pub slices: Vec<Slice>,
}

/// What the rules need to know of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeNetwork {
    /// Name of the tables.
    pub table: String,
    /// The link that routes to addresses of Services lead to. It has no other end.
    pub link: String,
    /// Addresses of Services, one range per family.
    pub ranges: Vec<Cidr>,
    /// Ports of the node that Services of type `LoadBalancer` do not get.
    pub claimed: BTreeSet<Claim>,
    /// Addresses of pods that are not on the agent's own bridge. They may share another one.
    pub foreign_pods: BTreeSet<IpAddr>,
    /// Packets from 127.0.0.0/8 reach pods.
    pub routes_loopback: bool,
}

pub(crate) type Target = (IpAddr, u16);
/// The uid of a Service, and a port.
pub(crate) type Claim = (String, Protocol, u16);

/// The part of the node that a Service is reached at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frontend {
    /// None: connections are refused.
    pub targets: Vec<Target>,
    pub affinity: Option<u32>,
    /// Clients outside of these are dropped; empty for all clients.
    pub sources: Vec<Cidr>,
}

/// Where a Service is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Address(IpAddr, Protocol, u16),
    /// At all addresses of the node.
    Node(Protocol, u16),
}

/// A port of a `LoadBalancer` that something else has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Conflict {
    pub namespace: String,
    pub service: String,
    pub uid: String,
    pub protocol: Protocol,
    pub port: u16,
}

/// Everything that is reachable in one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frontends {
    pub places: BTreeMap<Place, Frontend>,
    /// Targets on other machines.
    remote: BTreeSet<(IpAddr, Protocol, u16)>,
    pub conflicts: BTreeSet<Conflict>,
}

/// The frontends of one family. Of two Services that want one place, the first in `entries` gets it.
#[must_use]
pub(crate) fn frontends(family: Family, entries: &[Rc<Entry>], node: &NodeNetwork) -> Frontends {
    let mut all = Frontends::default();
    // A node port is reserved for its Service; a port of a load balancer is what is left.
    for entry in entries {
        all.add(family, entry, node, false);
    }
    for entry in entries.iter().filter(|entry| entry.service.kind == ServiceType::LoadBalancer) {
        all.add(family, entry, node, true);
    }
    all
}

impl Frontends {
    /// Packets are passed on to other machines.
    #[must_use]
    pub(crate) fn has_remote(&self) -> bool {
        !self.remote.is_empty()
    }

    fn add(&mut self, family: Family, entry: &Entry, node: &NodeNetwork, as_balancer: bool) {
        let service = &entry.service;
        let is_served = service.kind != ServiceType::ExternalName && service.families.contains(&family);
        if !is_served || service.is_headless() {
            return;
        }
        for port in &service.ports {
            let outside = targets(family, entry, port, service.is_external_local);
            let outside = |sources: &[Cidr]| Frontend {
                targets: outside.clone(),
                affinity: service.affinity,
                sources: sources
                    .iter()
                    .copied()
                    .filter(|range| family_of(range.network()) == family)
                    .collect(),
            };
            if as_balancer {
                let place = Place::Node(port.protocol, port.port);
                let claim = (service.uid.clone(), port.protocol, port.port);
                if node.claimed.contains(&claim) || self.places.contains_key(&place) {
                    self.conflicts.insert(Conflict {
                        namespace: service.namespace.clone(),
                        service: service.name.clone(),
                        uid: service.uid.clone(),
                        protocol: port.protocol,
                        port: port.port,
                    });
                } else {
                    self.places.insert(place, outside(&service.source_ranges));
                }
                continue;
            }
            let inside = Frontend {
                targets: targets(family, entry, port, service.is_internal_local),
                affinity: service.affinity,
                sources: Vec::new(),
            };
            for ip in service.cluster_ips.iter().filter(|ip| family_of(**ip) == family) {
                self.places
                    .entry(Place::Address(*ip, port.protocol, port.port))
                    .or_insert_with(|| inside.clone());
            }
            for ip in service.external_ips.iter().filter(|ip| family_of(**ip) == family) {
                self.places
                    .entry(Place::Address(*ip, port.protocol, port.port))
                    .or_insert_with(|| outside(&[]));
            }
            if port.node_port != 0 {
                self.places.entry(Place::Node(port.protocol, port.node_port)).or_insert_with(|| outside(&[]));
            }
            self.remote.extend(remote(family, entry, port));
        }
    }
}

/// Upstream's choice: ready endpoints; without any, those that still serve while they terminate.
fn targets(family: Family, entry: &Entry, port: &ServicePort, only_local: bool) -> Vec<Target> {
    let find = |wanted: &dyn Fn(&Endpoint) -> bool| {
        let mut found: BTreeSet<Target> = BTreeSet::new();
        for (endpoint, number) in behind(family, entry, port) {
            if wanted(endpoint) && (!only_local || endpoint.is_local) && found.len() < MAX_TARGETS {
                found.insert((endpoint.address, number));
            }
        }
        found.into_iter().collect::<Vec<_>>()
    };
    let ready = find(&|endpoint| endpoint.ready);
    if ready.is_empty() { find(&|endpoint| endpoint.serving && endpoint.terminating) } else { ready }
}

fn remote(family: Family, entry: &Entry, port: &ServicePort) -> Vec<(IpAddr, Protocol, u16)> {
    let elsewhere = behind(family, entry, port).filter(|(endpoint, _)| !endpoint.is_local);
    elsewhere.map(|(endpoint, number)| (endpoint.address, port.protocol, number)).collect()
}

/// The endpoints behind a port of a Service, each with its own port.
fn behind<'e>(
    family: Family,
    entry: &'e Entry,
    port: &'e ServicePort,
) -> impl Iterator<Item = (&'e Endpoint, u16)> {
    entry.slices.iter().filter(move |slice| slice.family == family).flat_map(move |slice| {
        let found = slice.ports.iter().find(|it| it.name == port.name && it.protocol == port.protocol);
        found.into_iter().flat_map(|it| slice.endpoints.iter().map(|endpoint| (endpoint, it.port)))
    })
}

/// The table of one family.
#[must_use]
pub(crate) fn table(family: Family, frontends: &Frontends, node: &NodeNetwork) -> Table {
    let writer = Writer::new(family, node);
    let maps = writer.maps(frontends);
    let chain = |name, kind, hook, priority, rules| Chain { name, kind, hook, priority, rules };
    let (filter, nat) = (ChainKind::Filter, ChainKind::Nat);
    let [forward, output, input] = writer.refuse(&maps);
    let chains = vec![
        chain("services-in", nat, Hook::Prerouting, DESTINATION_NAT, writer.rewrite(frontends, &maps, false)),
        chain("services-out", nat, Hook::Output, DESTINATION_NAT, writer.rewrite(frontends, &maps, true)),
        chain("masquerade", nat, Hook::Postrouting, SOURCE_NAT, writer.masquerade(&maps)),
        chain("refuse-forward", filter, Hook::Forward, FILTER, forward),
        chain("refuse-out", filter, Hook::Output, FILTER, output),
        chain("refuse-in", filter, Hook::Input, FILTER, input),
    ];
    Table { family, name: node.table.clone(), maps, chains }
}

/// The elements of an affinity map that no longer lead to a target of their frontend.
#[must_use]
pub(crate) fn stale<'e>(
    family: Family,
    frontends: &Frontends,
    seconds: u32,
    elements: impl Iterator<Item = &'e (Vec<u8>, Vec<u8>)>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let width = usize::from(family.width());
    let mut valid: BTreeSet<Vec<u8>> = BTreeSet::new();
    for (place, frontend) in &frontends.places {
        if frontend.affinity == Some(seconds) {
            let key = key(*place);
            valid.extend(frontend.targets.iter().map(|target| [&key[..], &data(*target)].concat()));
        }
    }
    let is_valid = |(key, data): &(Vec<u8>, Vec<u8>)| {
        // Client, destination, protocol, port: a port of the node is at any destination.
        let [at, on_node] = [width, 2 * width].map(|start| key.get(start..).unwrap_or_default());
        [at, on_node].iter().any(|key| valid.contains(&[*key, &data[..]].concat()))
    };
    elements.filter(|element| !is_valid(element)).cloned().collect()
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn padded_port(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

/// The key of a place in the maps.
fn key(place: Place) -> Vec<u8> {
    let (mut key, protocol, port) = match place {
        Place::Address(ip, protocol, port) => (octets(ip), protocol, port),
        Place::Node(protocol, port) => (Vec::new(), protocol, port),
    };
    key.extend([protocol.number(), 0, 0, 0]);
    key.extend(padded_port(port));
    key
}

fn data((ip, port): Target) -> Vec<u8> {
    [&octets(ip)[..], &padded_port(port)].concat()
}

/// Frontends that share rules: a port of the node or an address, the same affinity, equally many targets. Addresses are
/// first: that of the DNS server is one of the node's, too.
type Group = (bool, Option<u32>, usize);

fn group(place: Place, frontend: &Frontend) -> Group {
    (matches!(place, Place::Node(..)), frontend.affinity, frontend.targets.len())
}

fn group_name((on_node, affinity, targets): Group) -> String {
    let kind = if on_node { "on-node" } else { "at" };
    match affinity {
        None => format!("{kind}-{targets}"),
        Some(seconds) => format!("{kind}-{targets}-{seconds}"),
    }
}

const REMOTE: &str = "remote";
const FOREIGN_PODS: &str = "pods";
const REFUSED_AT: &str = "refused-at";
const REFUSED_ON_NODE: &str = "refused-on-node";

/// Where rules of one family find and keep values. In registers of four bytes: the client's address, the destination,
/// protocol, port, and then the drawn number, or the target that was found.
struct Writer<'n> {
    family: Family,
    node: &'n NodeNetwork,
    destination: u32,
    protocol: u32,
    found: u32,
}

impl<'n> Writer<'n> {
    fn new(family: Family, node: &'n NodeNetwork) -> Self {
        let width = u32::from(family.width()) / 4;
        let (destination, protocol) = (SHORT_REGISTER + width, SHORT_REGISTER + 2 * width);
        Self { family, node, destination, protocol, found: protocol + 2 }
    }

    fn address_type(&self) -> DataType {
        if self.family == Family::Ipv4 { DataType::Ipv4Address } else { DataType::Ipv6Address }
    }

    fn maps(&self, frontends: &Frontends) -> Vec<Map> {
        let address = self.address_type();
        let at = vec![address, DataType::Protocol, DataType::Port];
        let on_node = vec![DataType::Protocol, DataType::Port];
        let data_type = vec![address, DataType::Port];
        let mut groups: BTreeMap<Group, Map> = BTreeMap::new();
        let mut dynamic: BTreeSet<u32> = BTreeSet::new();
        for (place, frontend) in &frontends.places {
            let group @ (is_on_node, affinity, count) = group(*place, frontend);
            let map = groups.entry(group).or_insert_with(|| {
                let key = if is_on_node { on_node.clone() } else { at.clone() };
                match count {
                    0 => {
                        let name = if is_on_node { REFUSED_ON_NODE } else { REFUSED_AT };
                        Map { name: name.into(), key, ..Map::default() }
                    }
                    count => {
                        let number = (count > 1).then_some(DataType::Number);
                        let key = key.into_iter().chain(number).collect();
                        Map { name: group_name(group).into(), key, data: data_type.clone(), ..Map::default() }
                    }
                }
            });
            if count == 0 {
                map.elements.push((key(*place), Vec::new()));
            }
            dynamic.extend(affinity.filter(|_| count > 0));
            for (position, target) in (0_u32..).zip(&frontend.targets) {
                let mut key = key(*place);
                if count > 1 {
                    key.extend(position.to_ne_bytes());
                }
                map.elements.push((key, data(*target)));
            }
        }
        let mut maps = merged(groups.into_values());
        let client: Vec<DataType> = [address].into_iter().chain(at.clone()).collect();
        maps.extend(dynamic.into_iter().map(|seconds| Map {
            name: format!("{AFFINITY}{seconds}").into(),
            key: client.clone(),
            data: data_type.clone(),
            is_dynamic: true,
            ..Map::default()
        }));
        let remote = frontends
            .remote
            .iter()
            .map(|(ip, protocol, port)| (key(Place::Address(*ip, *protocol, *port)), Vec::new()));
        let pods = self.node.foreign_pods.iter().filter(|ip| family_of(**ip) == self.family);
        let pods = pods.map(|ip| (octets(*ip), Vec::new()));
        maps.push(Map { name: REMOTE.into(), key: at, elements: remote.collect(), ..Map::default() });
        maps.push(Map {
            name: FOREIGN_PODS.into(),
            key: vec![address],
            elements: pods.collect(),
            ..Map::default()
        });
        maps.retain(|map| map.is_dynamic || !map.elements.is_empty());
        maps
    }

    /// Loads bytes of an address of the packet.
    fn source(&self, register: u32) -> Expression {
        let offset = if self.family == Family::Ipv4 { 12 } else { 8 };
        Expression::NetworkHeader(offset, u32::from(self.family.width()), register)
    }

    fn destination(&self, register: u32) -> Expression {
        let offset = if self.family == Family::Ipv4 { 16 } else { 24 };
        Expression::NetworkHeader(offset, u32::from(self.family.width()), register)
    }

    /// Loads protocol and port of the packet's destination.
    fn port(&self) -> [Expression; 2] {
        [Expression::TransportProtocol(self.protocol), Expression::TransportHeader(2, 2, self.protocol + 1)]
    }

    /// Loads all that a rule may need to know of the packet.
    fn packet(&self) -> Vec<Expression> {
        let mut rule = vec![self.source(SHORT_REGISTER), self.destination(self.destination)];
        rule.extend(self.port());
        rule
    }

    /// Continues for packets to the node's own addresses from which pods can be reached.
    fn to_node(&self, output: bool) -> Vec<Expression> {
        let mut rule = Vec::new();
        if output && self.family == Family::Ipv6 {
            // The kernel never routes packets from ::1 to another interface.
            let loopback = [&[0; 15][..], &[1]].concat();
            rule.extend([self.destination(REGISTER), Expression::NotEqual(loopback)]);
        }
        if output && self.family == Family::Ipv4 && !self.node.routes_loopback {
            let (mask, network) =
                (Expression::Mask(vec![255, 0, 0, 0]), Expression::NotEqual(vec![127, 0, 0, 0]));
            rule.extend([self.destination(REGISTER), mask, network]);
        }
        rule.extend([Expression::DestinationKind, Expression::Equal(LOCAL.to_ne_bytes().to_vec())]);
        rule
    }

    fn to_target(&self) -> Expression {
        Expression::DestinationNat(self.family, self.found, self.found + u32::from(self.family.width()) / 4)
    }

    /// The rules that rewrite destinations, of packets from outside and from pods, or of the node's own.
    fn rewrite(&self, frontends: &Frontends, maps: &[Map], output: bool) -> Vec<Vec<Expression>> {
        let mut rules = Vec::new();
        if !output {
            rules.extend(
                frontends.places.iter().filter_map(|(place, frontend)| self.drop_others(*place, frontend)),
            );
        }
        for map in maps.iter().filter(|map| map.is_dynamic) {
            let Some(seconds) = map.name.strip_prefix(AFFINITY).and_then(|text| text.parse().ok()) else {
                continue;
            };
            let mut rule = self.packet();
            rule.push(Expression::Lookup(map.name.clone(), SHORT_REGISTER, Some(self.found)));
            rule.push(Expression::Remember(map.name.clone(), SHORT_REGISTER, self.found, seconds));
            rule.push(self.to_target());
            rules.push(rule);
        }
        let groups: BTreeSet<Group> =
            frontends.places.iter().map(|(place, frontend)| group(*place, frontend)).collect();
        for group @ (is_on_node, affinity, count) in groups.into_iter().filter(|(_, _, count)| *count > 0) {
            let mut rule = if is_on_node { self.to_node(output) } else { Vec::new() };
            rule.extend(self.packet());
            if count > 1 {
                rule.push(Expression::Random(u32::try_from(count).unwrap_or(u32::MAX), self.found));
            }
            let key = if is_on_node { self.protocol } else { self.destination };
            rule.push(Expression::Lookup(group_name(group).into(), key, Some(self.found)));
            if let Some(seconds) = affinity {
                let map = format!("{AFFINITY}{seconds}").into();
                let mut remembered = rule.clone();
                remembered.push(Expression::Remember(map, SHORT_REGISTER, self.found, seconds));
                remembered.push(self.to_target());
                rules.push(remembered);
                // When the map is full, the next rule gives a target without affinity.
            }
            rule.push(self.to_target());
            rules.push(rule);
        }
        rules
    }

    /// Drops packets of clients that `loadBalancerSourceRanges` leaves out.
    fn drop_others(&self, place: Place, frontend: &Frontend) -> Option<Vec<Expression>> {
        let Place::Node(protocol, port) = place else { return None };
        if frontend.sources.is_empty() {
            return None;
        }
        let mut rule = self.to_node(false);
        rule.extend([Expression::TransportProtocol(REGISTER), Expression::Equal(vec![protocol.number()])]);
        rule.extend([
            Expression::TransportHeader(2, 2, REGISTER),
            Expression::Equal(port.to_be_bytes().to_vec()),
        ]);
        for range in &frontend.sources {
            rule.push(self.source(REGISTER));
            rule.push(Expression::Mask(octets(range.mask())));
            rule.push(Expression::NotEqual(octets(range.network())));
        }
        rule.push(Expression::Drop);
        Some(rule)
    }

    fn masquerade(&self, maps: &[Map]) -> Vec<Vec<Expression>> {
        let has = |name: &str| maps.iter().any(|map| map.name == name);
        let rewritten = || {
            let mask = Expression::Mask(REWRITTEN.to_ne_bytes().to_vec());
            vec![Expression::ConnectionStatus, mask, Expression::NotEqual(vec![0; 4])]
        };
        let mut rules = Vec::new();
        if has(REMOTE) {
            let mut rule = rewritten();
            rule.push(self.destination(self.destination));
            rule.extend(self.port());
            rule.push(Expression::Lookup(REMOTE.into(), self.destination, None));
            rule.push(Expression::Masquerade);
            rules.push(rule);
        }
        if has(FOREIGN_PODS) {
            let mut rule = rewritten();
            for address in [self.source(REGISTER), self.destination(REGISTER)] {
                rule.extend([address, Expression::Lookup(FOREIGN_PODS.into(), REGISTER, None)]);
            }
            rule.push(Expression::Masquerade);
            rules.push(rule);
        }
        rules
    }

    /// Rules for what has no target, by hook: forward, output, input. A packet to an address of Services that was not
    /// rewritten leaves by the link that has their route.
    fn refuse(&self, maps: &[Map]) -> [Vec<Vec<Expression>>; 3] {
        let has = |name: &str| maps.iter().any(|map| map.name == name);
        // ICMP is limited in rate, and a reset is not.
        let refuse = |packets: Vec<Expression>| {
            let is_tcp =
                [Expression::TransportProtocol(REGISTER), Expression::Equal(vec![Protocol::Tcp.number()])];
            let tcp = packets.iter().cloned().chain(is_tcp).chain([Expression::Reset]);
            let others = packets.iter().cloned().chain([Expression::Reject(self.family)]);
            [tcp.collect::<Vec<_>>(), others.collect::<Vec<_>>()]
        };
        let mut link = self.node.link.as_bytes().to_vec();
        link.resize(16, 0);
        let mut routed = Vec::new();
        for range in self.node.ranges.iter().filter(|range| family_of(range.network()) == self.family) {
            // After a destination has been rewritten, the kernel still shows the first route's link.
            routed.extend(refuse(vec![
                Expression::OutputInterface,
                Expression::Equal(link.clone()),
                self.destination(REGISTER),
                Expression::Mask(octets(range.mask())),
                Expression::Equal(octets(range.network())),
            ]));
        }
        let mut input = Vec::new();
        if has(REFUSED_AT) {
            let mut rule = vec![self.destination(self.destination)];
            rule.extend(self.port());
            rule.push(Expression::Lookup(REFUSED_AT.into(), self.destination, None));
            routed.extend(refuse(rule.clone()));
            input.extend(refuse(rule));
        }
        if has(REFUSED_ON_NODE) {
            let mut rule = self.to_node(false);
            rule.extend(self.port());
            rule.push(Expression::Lookup(REFUSED_ON_NODE.into(), self.protocol, None));
            input.extend(refuse(rule));
        }
        [routed.clone(), routed, input]
    }
}

/// Maps of one name as one.
fn merged(maps: impl Iterator<Item = Map>) -> Vec<Map> {
    let mut all: Vec<Map> = Vec::new();
    for map in maps {
        match all.iter_mut().find(|known| known.name == map.name) {
            Some(known) => known.elements.extend(map.elements),
            None => all.push(map),
        }
    }
    all
}

#[cfg(test)]
mod tests;
