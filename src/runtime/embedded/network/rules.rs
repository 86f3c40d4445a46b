//! The table of rules that the attached pods need: masquerade, host ports, and a guard. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::records::{HostPort, NetworkRecord};
use super::subnet::Subnet;
use crate::platform::sys::netlink::nftables::{
    Chain, ChainKind, DataType, Expression, Family, Hook, Map, REGISTER, SHORT_REGISTER, Table,
};

/// Ports on all addresses of the node.
const PORTS: &str = "host-ports";
const PORTS_AT: &str = "host-ports-at";
/// `RTN_LOCAL`: the address is one of the node's own.
const LOCAL: u32 = 2;
/// `IPS_DST_NAT`.
const REWRITTEN: u32 = 0x20;
/// Priority of the guard: before connections are tracked.
const RAW: i32 = -300;
const DESTINATION_NAT: i32 = -100;
const SOURCE_NAT: i32 = 100;

/// One table per family that has a subnet, named after the bridge.
#[must_use]
pub(crate) fn tables(bridge: &str, subnets: &[Subnet], records: &[NetworkRecord]) -> Vec<Table> {
    let of = |wanted: Family| {
        let own: Vec<Subnet> = subnets.iter().copied().filter(|subnet| family(*subnet) == wanted).collect();
        (!own.is_empty()).then(|| table(bridge, wanted, own, records))
    };
    let mut families: Vec<Family> = subnets.iter().map(|subnet| family(*subnet)).collect();
    families.dedup();
    families.truncate(2);
    families.into_iter().filter_map(of).collect()
}

/// The guard for IPv6 where pods have no IPv6 addresses: blocks all IPv6 from pods to the node or through it.
#[must_use]
pub(in crate::runtime) fn ipv6_guard(bridge: &str, subnets: &[Subnet]) -> Option<Table> {
    if subnets.iter().any(|subnet| family(*subnet) == Family::Ipv6) {
        return None;
    }
    let rule = vec![Expression::InputInterface, Expression::Equal(padded_name(bridge)), Expression::Drop];
    let guard = Chain {
        name: "guard",
        kind: ChainKind::Filter,
        hook: Hook::Prerouting,
        priority: RAW,
        rules: vec![rule],
    };
    Some(Table { family: Family::Ipv6, name: bridge.to_owned(), maps: Vec::new(), chains: vec![guard] })
}

#[must_use]
pub(crate) fn family(subnet: Subnet) -> Family {
    if subnet.network().is_ipv4() { Family::Ipv4 } else { Family::Ipv6 }
}

fn table(bridge: &str, family: Family, subnets: Vec<Subnet>, records: &[NetworkRecord]) -> Table {
    let header = Header { family, bridge, subnets };
    let maps = maps(header.family, records);
    let rewrite = |output: bool| maps.iter().map(|map| header.rewrite(map, output)).collect::<Vec<_>>();
    let chain = |name, kind, hook, priority, rules| Chain { name, kind, hook, priority, rules };
    let mut chains = vec![
        chain("guard", ChainKind::Filter, Hook::Prerouting, RAW, header.guard()),
        chain("masquerade", ChainKind::Nat, Hook::Postrouting, SOURCE_NAT, header.masquerade()),
    ];
    if !maps.is_empty() {
        chains.push(chain(
            "host-ports-in",
            ChainKind::Nat,
            Hook::Prerouting,
            DESTINATION_NAT,
            rewrite(false),
        ));
        chains.push(chain("host-ports-out", ChainKind::Nat, Hook::Output, DESTINATION_NAT, rewrite(true)));
    }
    Table { family: header.family, name: bridge.to_owned(), maps, chains }
}

/// The number of a transport protocol that host ports may have.
#[must_use]
pub(in crate::runtime) fn protocol_number(name: &str) -> Option<u8> {
    match name {
        "TCP" => Some(6),
        "UDP" => Some(17),
        "SCTP" => Some(132),
        _ => None,
    }
}

/// Addresses with their ports. The map for single addresses comes first: the more specific entry wins.
fn maps(family: Family, records: &[NetworkRecord]) -> Vec<Map> {
    let address = if family == Family::Ipv4 { DataType::Ipv4Address } else { DataType::Ipv6Address };
    let (mut everywhere, mut somewhere) = (BTreeMap::new(), BTreeMap::new());
    for record in records {
        let Some(pod) = record.addresses.iter().find(|ip| is_of(family, **ip)) else { continue };
        for port in &record.ports {
            let Some((at, tail)) = place(family, port) else { continue };
            let mut target = octets(*pod);
            target.extend(padded(&port.container_port.to_be_bytes()));
            match at {
                None => everywhere.insert(tail, target),
                Some(ip) => somewhere.insert([octets(ip), tail].concat(), target),
            };
        }
    }
    let data = vec![address, DataType::Port];
    let map = |name: &'static str, key, elements: BTreeMap<_, _>| Map {
        name: name.into(),
        key,
        data: data.clone(),
        elements: elements.into_iter().collect(),
        ..Map::default()
    };
    let at = map(PORTS_AT, vec![address, DataType::Protocol, DataType::Port], somewhere);
    let all = map(PORTS, vec![DataType::Protocol, DataType::Port], everywhere);
    [at, all].into_iter().filter(|map| !map.elements.is_empty()).collect()
}

/// Where a port is open in this family: its address, if it has one, and the rest of the key.
fn place(family: Family, port: &HostPort) -> Option<(Option<IpAddr>, Vec<u8>)> {
    let mut tail = padded(&[protocol_number(&port.protocol)?]);
    tail.extend(padded(&port.host_port.to_be_bytes()));
    match port.host_ip {
        None => Some((None, tail)),
        Some(ip) if !is_of(family, ip) => None,
        Some(ip) if ip.is_unspecified() => Some((None, tail)),
        Some(ip) => Some((Some(ip), tail)),
    }
}

fn is_of(family: Family, ip: IpAddr) -> bool {
    ip.is_ipv4() == (family == Family::Ipv4)
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(4, 0);
    bytes
}

/// Names are compared as a whole, including the zeros after them.
fn padded_name(name: &str) -> Vec<u8> {
    let mut name = name.as_bytes().to_vec();
    name.resize(16, 0);
    name
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Which header fields the rules of one family match.
struct Header<'a> {
    family: Family,
    bridge: &'a str,
    /// The range of new pods, and those in which older pods still are.
    subnets: Vec<Subnet>,
}

impl Header<'_> {
    fn width(&self) -> u32 {
        u32::from(self.family.width())
    }

    fn source(&self) -> Expression {
        let offset = if self.family == Family::Ipv4 { 12 } else { 8 };
        Expression::NetworkHeader(offset, self.width(), REGISTER)
    }

    fn destination(&self) -> Expression {
        let offset = if self.family == Family::Ipv4 { 16 } else { 24 };
        Expression::NetworkHeader(offset, self.width(), REGISTER)
    }

    fn bridge(&self) -> Vec<u8> {
        padded_name(self.bridge)
    }

    fn within(what: Expression, range: Subnet) -> [Expression; 3] {
        [what, Expression::Mask(octets(range.mask())), Expression::Equal(octets(range.network()))]
    }

    /// In none of the ranges.
    fn outside(&self, what: impl Fn() -> Expression) -> Vec<Expression> {
        let not_in = |range: &Subnet| {
            [what(), Expression::Mask(octets(range.mask())), Expression::NotEqual(octets(range.network()))]
        };
        self.subnets.iter().flat_map(not_in).collect()
    }

    /// Pods may send only from pod addresses. They cannot reach services of the node on 127.0.0.1, although
    /// host ports there need `route_localnet`, which would let them through (CVE-2020-8558 in Kubernetes).
    fn guard(&self) -> Vec<Vec<Expression>> {
        let from_bridge = [Expression::InputInterface, Expression::Equal(self.bridge())];
        let mut foreign = from_bridge.to_vec();
        foreign.extend(self.outside(|| self.source()));
        if self.family == Family::Ipv6 {
            // Neighbour discovery uses link-local addresses, and the unspecified one before there is any.
            let link_local = [
                self.source(),
                Expression::Mask([&[0xff, 0xc0][..], &[0; 14]].concat()),
                Expression::NotEqual([&[0xfe, 0x80][..], &[0; 14]].concat()),
            ];
            foreign.extend(link_local);
            foreign.extend([self.source(), Expression::NotEqual(vec![0; 16])]);
            foreign.push(Expression::Drop);
            return vec![foreign];
        }
        foreign.push(Expression::Drop);
        let mut loopback = from_bridge.to_vec();
        loopback.extend([
            self.destination(),
            Expression::Mask(vec![255, 0, 0, 0]),
            Expression::Equal(vec![127, 0, 0, 0]),
        ]);
        loopback.push(Expression::Drop);
        vec![foreign, loopback]
    }

    fn masquerade(&self) -> Vec<Vec<Expression>> {
        let rewritten = [
            Expression::OutputInterface,
            Expression::Equal(self.bridge()),
            Expression::ConnectionStatus,
            Expression::Mask(REWRITTEN.to_ne_bytes().to_vec()),
            Expression::NotEqual(vec![0; 4]),
        ];
        let mut rules = Vec::new();
        // A pod that connects to a host port which leads back onto the bridge: the reply must come back
        // through the node.
        for range in &self.subnets {
            let mut back = rewritten.to_vec();
            back.extend(Self::within(self.source(), *range));
            back.push(Expression::Masquerade);
            rules.push(back);
        }
        if self.family == Family::Ipv4 {
            // The node connects to 127.0.0.1: a pod could not reply to that address.
            let mut loopback = rewritten.to_vec();
            loopback.extend([
                self.source(),
                Expression::Mask(vec![255, 0, 0, 0]),
                Expression::Equal(vec![127, 0, 0, 0]),
            ]);
            loopback.push(Expression::Masquerade);
            rules.push(loopback);
        }
        // Other hosts do not know pods' addresses, so they are masqueraded. Multicast is left alone.
        let (mask, groups) = match self.family {
            Family::Ipv4 => (vec![0xf0, 0, 0, 0], vec![0xe0, 0, 0, 0]),
            Family::Ipv6 => ([&[0xff][..], &[0; 15]].concat(), [&[0xff][..], &[0; 15]].concat()),
        };
        for range in &self.subnets {
            let mut out = Self::within(self.source(), *range).to_vec();
            out.extend(self.outside(|| self.destination()));
            let groups = (Expression::Mask(mask.clone()), Expression::NotEqual(groups.clone()));
            out.extend([self.destination(), groups.0, groups.1]);
            out.push(Expression::Masquerade);
            rules.push(out);
        }
        rules
    }

    /// Packets to an address of the node and a port in the map go to the pod.
    fn rewrite(&self, map: &Map, output: bool) -> Vec<Expression> {
        let mut rule = Vec::new();
        if output && self.family == Family::Ipv6 {
            // The kernel never routes packets from ::1 to another interface.
            let loopback = [&[0; 15][..], &[1]].concat();
            rule.extend([self.destination(), Expression::NotEqual(loopback)]);
        }
        rule.extend([Expression::DestinationKind, Expression::Equal(LOCAL.to_ne_bytes().to_vec())]);
        let mut next = SHORT_REGISTER;
        if map.name == PORTS_AT {
            rule.push(self.destination());
            next += self.width() / 4;
        }
        rule.push(Expression::TransportProtocol(next));
        rule.push(Expression::TransportHeader(2, 2, next + 1));
        rule.push(Expression::Lookup(map.name.clone(), REGISTER, Some(REGISTER)));
        rule.push(Expression::DestinationNat(self.family, REGISTER, SHORT_REGISTER + self.width() / 4));
        rule
    }
}
