//! What the kernel holds for Services: one link with the routes and the address of the DNS server, one table for each
//! address family, and the connections that its rules no longer stand for.
//!
//! Every function may be called again after it was interrupted at any point. All block.

use std::collections::BTreeMap;
use std::net::IpAddr;

use sha2::{Digest as _, Sha256};

use super::table::{AFFINITY, Frontend, Frontends, Place, stale};
use crate::codec::hex;
use crate::model::cidr::Cidr;
use crate::platform::sys::netlink::NetlinkError;
use crate::platform::sys::netlink::conntrack;
use crate::platform::sys::netlink::nftables::{DataType, Family, Map, Table, delete, kept};
use crate::platform::sys::netlink::route::{Address, Link, Network};
use crate::runtime::embedded::network::NetworkError;
use crate::runtime::embedded::network::bridge::{self, Ipv6};

const MAC: [u8; 6] = [0x0a, 0x58, 0, 0, 0, 1];
const MTU: u32 = 1500;
/// An empty set of the table; the rest of its name is a hash of the table.
const CONTENT: &str = "content-";
const UDP: u8 = 17;
const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// The names of what there is in the kernel, after the pods' bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelNames {
    pub link: String,
    pub table: String,
}

/// Before the bridge's name, which is at most fifteen bytes long, as all names of links.
const PREFIX: &str = "svc-";
const MAX_NAME: usize = 15;

impl KernelNames {
    #[must_use]
    pub(crate) fn of(bridge: &str) -> Self {
        let link = if PREFIX.len() + bridge.len() <= MAX_NAME {
            format!("{PREFIX}{bridge}")
        } else {
            format!("{PREFIX}{}", &hex::encode(&Sha256::digest(bridge))[..8])
        };
        Self { link, table: format!("{bridge}-services") }
    }
}

/// Addresses of the node for Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinkConfig {
    pub name: String,
    pub ranges: Vec<Cidr>,
    /// Of the DNS server, one for each range.
    pub addresses: Vec<IpAddr>,
}

/// Makes the link: packets to addresses of Services have a route, whatever other routes there are. Returns what of the
/// node's network is in one of the ranges and cannot be reached from now on.
pub(super) fn ensure_link(config: &LinkConfig) -> Result<Vec<String>, NetworkError> {
    let mut network = Network::open()?;
    if is_of_other_ranges(&mut network, config)? {
        network.delete_link(&config.name)?;
    }
    if network.link(&config.name)?.is_none() {
        // Without ports. Kernels that can have pods have bridges.
        network.add_bridge(&config.name, MAC, MTU)?;
    }
    let missing = || NetworkError::Vanished { name: config.name.clone() };
    let link = network.link(&config.name)?.ok_or_else(missing)?;
    let has_ipv6 = config.ranges.iter().any(|range| range.network().is_ipv6());
    bridge::prepare_ipv6(&config.name, if has_ipv6 { Ipv6::Given } else { Ipv6::Off })?;
    if !link.up {
        network.set_up(link.index)?;
    }
    let (links, known) = (network.links()?, network.addresses()?);
    let routes = network.routes()?;
    for ip in &config.addresses {
        let address = Address { link: link.index, ip: *ip, prefix: Cidr::single(*ip).prefix() };
        if !known.contains(&address) {
            network.add_address(address)?;
        }
    }
    for range in &config.ranges {
        let is_it = |route: &&crate::platform::sys::netlink::route::Route| {
            route.link == link.index && route.destination == range.network() && route.prefix == range.prefix()
        };
        if !routes.iter().any(|route| is_it(&route)) {
            network.add_route(link.index, range.network(), range.prefix())?;
        }
    }
    let name = |index: u32| {
        links.iter().find(|link| link.index == index).map_or_else(String::new, |link| link.name.clone())
    };
    let of_others = |index: u32, ip: IpAddr, prefix: u8| {
        let other: Option<Cidr> = format!("{ip}/{prefix}").parse().ok();
        index != link.index
            && prefix != 0
            && other.is_some_and(|other| config.ranges.iter().any(|range| range.overlaps(other)))
    };
    let addresses = known
        .iter()
        .filter(|it| of_others(it.link, it.ip, it.prefix))
        .map(|it| format!("address {}/{} of {}", it.ip, it.prefix, name(it.link)));
    let routes = routes
        .iter()
        .filter(|it| of_others(it.link, it.destination, it.prefix))
        .map(|it| format!("route {}/{} by {}", it.destination, it.prefix, name(it.link)));
    Ok(addresses.chain(routes).collect())
}

/// The link has addresses of a configuration that no longer holds.
fn is_of_other_ranges(network: &mut Network, config: &LinkConfig) -> Result<bool, NetlinkError> {
    let Some(link) = network.link(&config.name)? else { return Ok(false) };
    let is_automatic = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let mut own = network.addresses()?.into_iter().filter(|address| address.link == link.index);
    Ok(own.any(|address| !config.addresses.contains(&address.ip) && !is_automatic(address.ip)))
}

/// Makes the node pass packets on between its networks.
pub(super) fn forward(families: &[Family]) -> Result<(), NetworkError> {
    bridge::forward(families.contains(&Family::Ipv4), families.contains(&Family::Ipv6))
}

/// Removes tables and link; missing ones are no error. Rules without a link would still rewrite packets: the link goes
/// last.
pub(super) fn remove_all(names: &KernelNames) -> Result<(), NetlinkError> {
    for family in FAMILIES {
        match delete(family, &names.table) {
            Err(error) if error.is_unsupported() => {}
            other => other?,
        }
    }
    Network::open()?.delete_link(&names.link)
}

/// Removes the tables of families that are no longer configured.
pub(super) fn remove_others(table: &str, families: &[Family]) -> Result<(), NetlinkError> {
    for family in FAMILIES {
        if !families.contains(&family) && has_table(family, table) {
            delete(family, table)?;
        }
    }
    Ok(())
}

/// Whether there may be something to remove.
pub(super) fn is_present(names: &KernelNames) -> bool {
    link_of(names).is_ok_and(|link| link.is_some())
        || FAMILIES.into_iter().any(|family| has_table(family, &names.table))
}

/// Whether rules are in force for all of these families, such as those of an earlier process.
pub(super) fn has_rules(names: &KernelNames, families: &[Family]) -> bool {
    families.iter().all(|family| has_table(*family, &names.table))
}

/// Whether no other program has removed link or rules.
pub(super) fn is_intact(names: &KernelNames, families: &[Family]) -> bool {
    link_of(names).is_ok_and(|link| link.is_some_and(|link| link.up)) && has_rules(names, families)
}

fn link_of(names: &KernelNames) -> Result<Option<Link>, NetlinkError> {
    Network::open()?.link(&names.link)
}

/// A table of the agent's own is never without a set.
fn has_table(family: Family, name: &str) -> bool {
    kept::set_names(family, name).is_ok_and(|names| !names.is_empty())
}

/// Why rules are not in force.
#[derive(Debug, thiserror::Error)]
pub(super) enum RulesError {
    #[error(
        "the kernel does not support nf_tables with NAT (CONFIG_NF_TABLES, NF_TABLES_IPV4, NFT_NAT, NFT_MASQ, \
         NFT_FIB_IPV4, NFT_CT, NFT_NUMGEN, NFT_REJECT; the same with IPV6): use such a kernel, or switch Services off \
         with --service-cidr \"\""
    )]
    Unsupported(#[source] NetlinkError),
    #[error(transparent)]
    Netlink(NetlinkError),
}

impl RulesError {
    fn of(error: NetlinkError) -> Self {
        if error.is_unsupported() { Self::Unsupported(error) } else { Self::Netlink(error) }
    }
}

/// The rules of one family, and where they come from.
pub(super) struct Rules {
    pub family: Family,
    pub table: Table,
    pub frontends: Frontends,
}

/// Puts rules into force, all at once, if they are not. True when something has changed.
pub(super) fn apply(rules: Vec<Table>) -> Result<bool, RulesError> {
    let mut changed = Vec::new();
    for mut table in rules {
        let present = kept::set_names(table.family, &table.name).map_err(RulesError::of)?;
        let name = format!("{CONTENT}{}", hash(&table));
        if present.contains(&name) {
            continue;
        }
        table.maps.push(Map { name: name.into(), key: vec![DataType::Number], ..Map::default() });
        changed.push((table, present));
    }
    if changed.is_empty() {
        return Ok(false);
    }
    kept::replace(&changed).map(|()| true).map_err(RulesError::of)
}

fn hash(table: &Table) -> String {
    hex::encode(&Sha256::digest(format!("{table:?}"))[..8])
}

/// Clients whose target is gone get another one.
pub(super) fn forget_clients(rules: &[Rules]) -> Result<(), NetlinkError> {
    for Rules { family, table, frontends } in rules {
        for map in table.maps.iter().filter(|map| map.is_dynamic) {
            let Some(seconds) = map.name.strip_prefix(AFFINITY).and_then(|text| text.parse().ok()) else {
                continue;
            };
            let known = kept::elements(table, &map.name)?;
            kept::remove(table, &map.name, stale(*family, frontends, seconds, known.iter()))?;
        }
    }
    Ok(())
}

/// UDP has no end that the kernel could see: packets of a client that keeps sending would continue to go to a target that
/// is gone, or past a Service that is new.
pub(super) fn forget_connections(changed: &BTreeMap<Place, Frontend>) -> Result<(), NetlinkError> {
    conntrack::forget(|connection| {
        let protocol = super::spec::Protocol::Udp;
        let at = changed.get(&Place::Address(connection.destination, protocol, connection.port));
        let found = at.or_else(|| changed.get(&Place::Node(protocol, connection.port)));
        connection.protocol == UDP
            && found.is_some_and(|frontend| {
                !frontend.targets.contains(&(connection.replier, connection.replier_port))
            })
    })
    .map(drop)
}

#[cfg(test)]
mod tests;
