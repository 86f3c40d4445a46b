//! The built-in network's effects: the bridge, a pod's link, and the node's kernel settings.
//!
//! Every function may be called again after it was interrupted at any point.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use sha2::Digest;

use super::subnet::Subnet;
use super::{NetworkConfig, NetworkError, faults};
use crate::platform::sys::netlink::route::{Address, Link, Mac, Network, Veth};
use crate::platform::sys::netlink::{NetlinkError, namespace};

pub(in crate::runtime) const POD_LINK: &str = "eth0";
/// Prefix of the names of the node's side of pods' links; the bridge's name must not begin with it.
const VETH_PREFIX: &str = "agent";
/// When the default route's interface does not give one.
const DEFAULT_MTU: u32 = 1500;
/// The minimum for IPv6.
const MIN_MTU: u32 = 1280;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime) struct Bridge {
    pub index: u32,
    /// Of the bridge and of the links attached to it.
    pub mtu: u32,
}

/// The wanted state of a pod's link.
#[derive(Debug)]
pub(in crate::runtime) struct PodLink<'a> {
    /// On the node's side.
    pub veth: &'a str,
    /// Of the pod, each with its subnet.
    pub addresses: Vec<(IpAddr, Subnet)>,
}

/// Name of the node's side for a sandbox. `salt` gives another name where two sandboxes would have the same.
#[must_use]
pub(in crate::runtime) fn veth_name(sandbox: &str, salt: u32) -> String {
    let digest = digest(&[sandbox.as_bytes(), &salt.to_be_bytes()].concat());
    format!("{VETH_PREFIX}{:02x}{:02x}{:02x}{:02x}", digest[0], digest[1], digest[2], digest[3])
}

/// Whether a name is that of a link made by this agent.
#[must_use]
pub(crate) fn is_veth_name(name: &str) -> bool {
    name.strip_prefix(VETH_PREFIX)
        .is_some_and(|rest| rest.len() == 8 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The configured subnets that this node supports: without IPv6, those of IPv4.
#[must_use]
pub(in crate::runtime) fn usable(subnets: &[Subnet]) -> Vec<Subnet> {
    let ipv6 = has_ipv6();
    subnets.iter().copied().filter(|subnet| ipv6 || subnet.network().is_ipv4()).collect()
}

/// Whether the kernel has IPv6 and it is not switched off.
#[must_use]
pub(in crate::runtime) fn has_ipv6() -> bool {
    fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6").is_ok_and(|text| text.trim() == "0")
}

/// Makes the bridge, and brings an existing one into the wanted state.
///
/// # Errors
/// When another interface has its addresses, or at the first step that fails.
pub(in crate::runtime) fn ensure_bridge(
    config: &NetworkConfig,
    subnets: &[Subnet],
) -> Result<Bridge, NetworkError> {
    let mut network = Network::open()?;
    let link = match network.link(&config.bridge)? {
        Some(link) if link.kind != "bridge" => {
            return Err(NetworkError::NotABridge { name: link.name, kind: link.kind });
        }
        Some(link) => link,
        None => make_bridge(&mut network, config, subnets)?,
    };
    // A bridge that is up may be from an agent that left IPv6 open on it.
    prepare_bridge(&config.bridge, subnets)?;
    let present = network.addresses()?;
    for subnet in subnets {
        let address = Address { link: link.index, ip: subnet.gateway(), prefix: subnet.prefix() };
        if !present.contains(&address) {
            find_overlap(&mut network, link.index, *subnet)?;
            faults::step("add the gateway address")?;
            network.add_address(address)?;
        }
    }
    if !link.up {
        faults::step("bring the bridge up")?;
        network.set_up(link.index)?;
    }
    let has = |ipv4: bool| subnets.iter().any(|subnet| subnet.network().is_ipv4() == ipv4);
    forward(has(true), has(false))?;
    Ok(Bridge { index: link.index, mtu: link.mtu })
}

/// Removes the gateway addresses of ranges that no pod uses any more.
///
/// # Errors
/// At the first address that cannot be removed.
pub(in crate::runtime) fn drop_ranges(bridge: u32, ranges: &[Subnet]) -> Result<(), NetlinkError> {
    let mut network = Network::open()?;
    let mut gone = ranges.iter();
    gone.try_for_each(|range| {
        network.delete_address(Address { link: bridge, ip: range.gateway(), prefix: range.prefix() })
    })
}

fn make_bridge(
    network: &mut Network,
    config: &NetworkConfig,
    subnets: &[Subnet],
) -> Result<Link, NetworkError> {
    for subnet in subnets {
        find_overlap(network, 0, *subnet)?;
    }
    let mtu = match config.mtu {
        Some(mtu) => mtu,
        None => default_mtu(network)?,
    };
    let mac = subnets.first().map_or([0x0a, 0x58, 0, 0, 0, 1], |subnet| mac_of(subnet.gateway()));
    faults::step("create the bridge")?;
    match network.add_bridge(&config.bridge, mac, mtu) {
        Err(error) if error.is_unsupported() => return Err(NetworkError::NoBridges(error)),
        other => other?,
    }
    let made = network.link(&config.bridge)?;
    made.ok_or_else(|| NetworkError::Vanished { name: config.bridge.clone() })
}

/// The MTU of the default route's interface: packets of pods must fit there, too.
fn default_mtu(network: &mut Network) -> Result<u32, NetlinkError> {
    let routes = network.routes()?;
    let default = routes.iter().filter(|route| route.prefix == 0).min_by_key(|route| route.metric);
    let links = network.links()?;
    let mtu =
        default.and_then(|route| links.iter().find(|link| link.index == route.link)).map(|link| link.mtu);
    Ok(mtu.unwrap_or(DEFAULT_MTU).clamp(MIN_MTU, 65_535))
}

/// A range in which the node already has neighbours, or to which it has routes of its own, would make those
/// unreachable. A wider route by a gateway is no conflict: in a cluster there is one for all nodes' pods.
fn find_overlap(network: &mut Network, bridge: u32, subnet: Subnet) -> Result<(), NetworkError> {
    let links = network.links()?;
    let name = |index: u32| {
        links
            .iter()
            .find(|link| link.index == index)
            .map_or_else(|| index.to_string(), |link| link.name.clone())
    };
    let addresses = network.addresses()?;
    if let Some(other) =
        addresses.iter().find(|address| address.link != bridge && subnet.overlaps(address.ip, address.prefix))
    {
        let other = format!("address {}/{} of {}", other.ip, other.prefix, name(other.link));
        return Err(NetworkError::Overlap { subnet, other });
    }
    let routes = network.routes()?;
    if let Some(other) = routes.iter().find(|route| {
        let wider = route.prefix < subnet.prefix() && route.gateway.is_some();
        route.prefix != 0
            && route.link != bridge
            && !wider
            && subnet.overlaps(route.destination, route.prefix)
    }) {
        let other = format!("route {}/{} by {}", other.destination, other.prefix, name(other.link));
        return Err(NetworkError::Overlap { subnet, other });
    }
    Ok(())
}

fn prepare_bridge(bridge: &str, subnets: &[Subnet]) -> Result<(), NetworkError> {
    if subnets.iter().any(|subnet| subnet.network().is_ipv4()) {
        // Packets to host ports on 127.0.0.1 are routed from there onto the bridge. The rules' guard blocks
        // the other direction.
        set(&format!("ipv4/conf/{bridge}/route_localnet"), "1")?;
    }
    let used = subnets.iter().any(|subnet| subnet.network().is_ipv6());
    prepare_ipv6(bridge, if used { Ipv6::Given } else { Ipv6::Off })
}

/// Which IPv6 addresses an interface has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ipv6 {
    /// Addresses assigned by the agent.
    Given,
    LinkLocal,
    Off,
}

/// Called before an interface is set up: whatever IPv6 addresses it has, no neighbour on the link can make
/// itself a router of it (CVE-2020-10749). Addresses assigned by the agent are used at once, without
/// duplicate address detection.
pub(crate) fn prepare_ipv6(link: &str, ipv6: Ipv6) -> Result<(), NetworkError> {
    if !sysctl(&format!("ipv6/conf/{link}")).exists() && ipv6 != Ipv6::Given {
        // A kernel without IPv6.
        return Ok(());
    }
    let settings: &[(&str, &str)] = match ipv6 {
        Ipv6::Given => &[("accept_ra", "0"), ("disable_ipv6", "0"), ("accept_dad", "0")],
        Ipv6::LinkLocal => &[("accept_ra", "0")],
        Ipv6::Off => &[("accept_ra", "0"), ("disable_ipv6", "1")],
    };
    for (name, value) in settings {
        set(&format!("ipv6/conf/{link}/{name}"), value)?;
    }
    Ok(())
}

/// Whether the kernel has IPv6, switched on or off.
#[must_use]
pub(in crate::runtime) fn kernel_has_ipv6() -> bool {
    sysctl("ipv6").exists()
}

/// Makes the node a router, once. An interface that has its IPv6 routes from router advertisements would lose
/// them by that, unless it is set to keep accepting advertisements.
pub(crate) fn forward(ipv4: bool, ipv6: bool) -> Result<(), NetworkError> {
    if ipv4 && set("ipv4/ip_forward", "1")? {
        log::info!(sysctl = "net.ipv4.ip_forward"; "Enabled IP forwarding for pods");
    }
    let all = "ipv6/conf/all/forwarding";
    if ipv6 && get(all).as_deref() != Some("1") {
        for entry in fs::read_dir("/proc/sys/net/ipv6/conf").into_iter().flatten().flatten() {
            let link = entry.file_name().to_string_lossy().into_owned();
            let name = format!("ipv6/conf/{link}/accept_ra");
            if link != "all" && get(&name).as_deref() == Some("1") {
                set(&name, "2")?;
            }
        }
        set(all, "1")?;
        log::info!(sysctl = "net.ipv6.conf.all.forwarding"; "Enabled IP forwarding for pods");
    }
    Ok(())
}

/// Connects a pod.
///
/// # Errors
/// At the first step that fails; [`unplug`] undoes what was done.
pub(in crate::runtime) fn plug(bridge: Bridge, pod: &PodLink<'_>, netns: &Path) -> Result<(), NetworkError> {
    let error = |source| NetworkError::Namespace { path: netns.to_owned(), source };
    let file = namespace::open(netns).map_err(error)?;
    let mut network = Network::open()?;
    let primary = pod.addresses.first().map(|(ip, _)| *ip);
    let veth = Veth {
        name: pod.veth,
        master: bridge.index,
        peer: POD_LINK,
        peer_namespace: &file,
        peer_mac: primary.map_or([0x0a, 0x58, 0, 0, 0, 2], mac_of),
        mtu: bridge.mtu,
    };
    faults::step("create the pod's link")?;
    network.add_veth(&veth)?;
    let link = network.link(pod.veth)?.ok_or_else(|| NetworkError::Vanished { name: pod.veth.to_owned() })?;
    faults::step("set hairpin mode")?;
    network.set_hairpin(link.index)?;
    // This side only forwards packets between the bridge and the pod.
    prepare_ipv6(pod.veth, Ipv6::Off)?;
    faults::step("bring the host side up")?;
    network.set_up(link.index)?;
    faults::step("enter the pod's network namespace")?;
    // Test faults are counted per calling thread.
    let inside = faults::carry();
    namespace::inside(&file, move || {
        inside.enter();
        configure(pod)
    })
    .map_err(error)?
}

/// In the pod.
fn configure(pod: &PodLink<'_>) -> Result<(), NetworkError> {
    let mut network = Network::open()?;
    let link_of = |network: &mut Network, name: &str| {
        network.link(name)?.ok_or_else(|| NetworkError::Vanished { name: name.to_owned() })
    };
    let loopback = link_of(&mut network, "lo")?;
    if !loopback.up {
        network.set_up(loopback.index)?;
    }
    let link = link_of(&mut network, POD_LINK)?;
    let used = pod.addresses.iter().any(|(ip, _)| ip.is_ipv6());
    prepare_ipv6(POD_LINK, if used { Ipv6::Given } else { Ipv6::LinkLocal })?;
    if used {
        // Docker before 26 switches IPv6 off in sandboxes.
        set("ipv6/conf/lo/disable_ipv6", "0")?;
    }
    network.set_up(link.index)?;
    for (ip, subnet) in &pod.addresses {
        faults::step("assign the pod an IP address")?;
        network.add_address(Address { link: link.index, ip: *ip, prefix: subnet.prefix() })?;
        network.add_default_route(link.index, subnet.gateway())?;
    }
    Ok(())
}

/// Sets up loopback only, for pods whose network is made by plugins.
pub(crate) fn loopback(netns: &Path) -> Result<(), NetworkError> {
    let error = |source| NetworkError::Namespace { path: netns.to_owned(), source };
    let file = namespace::open(netns).map_err(error)?;
    namespace::inside(&file, || -> Result<(), NetlinkError> {
        let mut network = Network::open()?;
        match network.link("lo")? {
            Some(link) if !link.up => network.set_up(link.index),
            _ => Ok(()),
        }
    })
    .map_err(error)??;
    Ok(())
}

/// Disconnects a pod. Succeeds when it is already disconnected.
pub(in crate::runtime) fn unplug(veth: &str) -> Result<(), NetlinkError> {
    Network::open()?.delete_link(veth)
}

/// Removes the bridge, if it is a bridge. Succeeds when it is already gone.
pub(in crate::runtime) fn remove_bridge(name: &str) -> Result<(), NetlinkError> {
    let mut network = Network::open()?;
    match network.link(name)? {
        Some(link) if link.kind == "bridge" => network.delete_link(name),
        _ => Ok(()),
    }
}

/// The index of the bridge, if it exists.
pub(in crate::runtime) fn find_bridge(name: &str) -> Result<Option<u32>, NetlinkError> {
    let link = Network::open()?.link(name)?;
    Ok(link.filter(|link| link.kind == "bridge").map(|link| link.index))
}

/// Makes the bridge's ports match the records: removes unrecorded links of this agent, and reattaches those
/// that lost the bridge.
pub(crate) fn tidy(bridge: u32, wanted: &[&str]) -> Result<(), NetlinkError> {
    let mut network = Network::open()?;
    for link in network.links()? {
        if link.kind != "veth" || !is_veth_name(&link.name) {
            continue;
        }
        let (is_wanted, is_port) = (wanted.contains(&link.name.as_str()), link.master == Some(bridge));
        if is_port && !is_wanted {
            network.delete_link(&link.name)?;
        } else if is_wanted && !is_port {
            network.set_master(link.index, bridge)?;
        }
    }
    Ok(())
}

/// A locally administered address, always the same for the same IP: neighbours' caches stay valid.
fn mac_of(ip: IpAddr) -> Mac {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            [0x0a, 0x58, a, b, c, d]
        }
        IpAddr::V6(ip) => {
            let digest = digest(&ip.octets());
            [0x0a, 0x58, digest[0], digest[1], digest[2], digest[3]]
        }
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    sha2::Sha256::digest(bytes).into()
}

fn sysctl(name: &str) -> PathBuf {
    // `/proc/sys/net` shows the network namespace of the thread.
    Path::new("/proc/sys/net").join(name)
}

fn get(name: &str) -> Option<String> {
    fs::read_to_string(sysctl(name)).ok().map(|text| text.trim().to_owned())
}

/// True when the value was a different one.
fn set(name: &str, value: &str) -> Result<bool, NetworkError> {
    if get(name).as_deref() == Some(value) {
        return Ok(false);
    }
    let path = sysctl(name);
    let error =
        |source: io::Error| NetworkError::Sysctl { path: path.clone(), value: value.to_owned(), source };
    fs::write(&path, value).map_err(error)?;
    Ok(true)
}
