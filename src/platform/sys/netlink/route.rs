//! rtnetlink: links, addresses, routes.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use super::{
    CREATE, DUMP, EXCLUSIVE, Message, NetlinkAttributes, NetlinkError, Protocol, Socket, number, text,
};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_PROTINFO: u16 = 12;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_BRPORT_MODE: u16 = 4;
const VETH_INFO_PEER: u16 = 1;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_NODAD: u8 = 0x02;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_TABLE: u16 = 15;
const RT_TABLE_MAIN: u32 = 254;
const RTN_UNICAST: u8 = 1;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_LINK: u8 = 253;

const AF_INET: u8 = 2;
const AF_BRIDGE: u8 = 7;
const AF_INET6: u8 = 10;
const IFF_UP: u32 = 1;

pub(crate) type Mac = [u8; 6];

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// Number in its namespace.
    pub index: u32,
    pub name: String,
    /// `bridge`, `veth`…; empty for hardware.
    pub kind: String,
    pub mtu: u32,
    /// The bridge whose port it is.
    pub master: Option<u32>,
    pub up: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// The index of its interface.
    pub link: u32,
    pub ip: IpAddr,
    pub prefix: u8,
}

/// A unicast route of the main table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The destination; the unspecified address with prefix 0 is the default route.
    pub destination: IpAddr,
    pub prefix: u8,
    /// The outgoing interface; 0 for several.
    pub link: u32,
    /// The next hop; `None` when the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The route with the smaller metric wins.
    pub metric: u32,
}

/// A pair of virtual interfaces to make.
#[derive(Debug)]
pub(crate) struct Veth<'a> {
    /// On this side.
    pub name: &'a str,
    /// Bridge of this side.
    pub master: u32,
    /// On the other side.
    pub peer: &'a str,
    /// Namespace of the other side.
    pub peer_namespace: &'a File,
    /// Of the other side.
    pub peer_mac: Mac,
    pub mtu: u32,
}

/// Links, addresses and routes of one network namespace: that of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Network(Socket);

impl Network {
    /// Opens a socket in this thread's network namespace.
    pub(crate) fn open() -> Result<Self, NetlinkError> {
        Socket::open(Protocol::Route).map(Self)
    }

    pub(crate) fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        let mut found = Vec::new();
        let message = Message::new(RTM_GETLINK, DUMP, &link_header(0, 0));
        self.0.query("list links", message, |kind, body| {
            found.extend((kind == RTM_NEWLINK).then(|| parse_link(body)).flatten());
        })?;
        Ok(found)
    }

    /// The interface of that name.
    ///
    /// # Errors
    /// The kernel's answer; none when there is no such link.
    pub(crate) fn link(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        let mut found = None;
        let message = Message::new(RTM_GETLINK, 0, &link_header(0, 0)).text(IFLA_IFNAME, name);
        let answer = self.0.query(&format!("look up link {name}"), message, |kind, body| {
            if kind == RTM_NEWLINK {
                found = parse_link(body);
            }
        });
        match answer {
            Err(error) if error.is_gone() => Ok(None),
            other => other.map(|()| found),
        }
    }

    /// Makes a bridge, switched off.
    pub(crate) fn add_bridge(&mut self, name: &str, mac: Mac, mtu: u32) -> Result<(), NetlinkError> {
        let message = Message::new(RTM_NEWLINK, CREATE | EXCLUSIVE, &link_header(0, 0))
            .text(IFLA_IFNAME, name)
            .bytes(IFLA_ADDRESS, &mac)
            .number(IFLA_MTU, mtu)
            .nested(IFLA_LINKINFO, |info| info.text(IFLA_INFO_KIND, "bridge"));
        self.0.request(&format!("create bridge {name}"), message)
    }

    /// Makes a pair: this side is a port of its bridge, the other one is created in its namespace. Both are
    /// down.
    pub(crate) fn add_veth(&mut self, veth: &Veth<'_>) -> Result<(), NetlinkError> {
        let namespace = u32::try_from(veth.peer_namespace.as_raw_fd()).unwrap_or(u32::MAX);
        let message = Message::new(RTM_NEWLINK, CREATE | EXCLUSIVE, &link_header(0, 0))
            .text(IFLA_IFNAME, veth.name)
            .number(IFLA_MTU, veth.mtu)
            .number(IFLA_MASTER, veth.master)
            .nested(IFLA_LINKINFO, |info| {
                info.text(IFLA_INFO_KIND, "veth").nested(IFLA_INFO_DATA, |data| {
                    data.nested_with(VETH_INFO_PEER, &link_header(0, 0), |peer| {
                        peer.text(IFLA_IFNAME, veth.peer)
                            .bytes(IFLA_ADDRESS, &veth.peer_mac)
                            .number(IFLA_MTU, veth.mtu)
                            .number(IFLA_NET_NS_FD, namespace)
                    })
                })
            });
        self.0.request(&format!("create veth {}", veth.name), message)
    }

    /// Lets a port of a bridge send a packet back to its origin.
    pub(crate) fn set_hairpin(&mut self, link: u32) -> Result<(), NetlinkError> {
        let mut header = link_header(link, 0);
        header[0] = AF_BRIDGE;
        let message = Message::new(RTM_SETLINK, 0, &header)
            .nested(IFLA_PROTINFO, |info| info.bytes(IFLA_BRPORT_MODE, &[1]));
        self.0.request("set hairpin mode", message)
    }

    /// Makes an interface a port of a bridge.
    pub(crate) fn set_master(&mut self, link: u32, master: u32) -> Result<(), NetlinkError> {
        let message = Message::new(RTM_NEWLINK, 0, &link_header(link, 0)).number(IFLA_MASTER, master);
        self.0.request("attach a link to the bridge", message)
    }

    pub(crate) fn set_up(&mut self, link: u32) -> Result<(), NetlinkError> {
        self.0.request("bring a link up", Message::new(RTM_NEWLINK, 0, &link_header(link, IFF_UP)))
    }

    /// Removes an interface; a missing one is no error.
    pub(crate) fn delete_link(&mut self, name: &str) -> Result<(), NetlinkError> {
        let message = Message::new(RTM_DELLINK, 0, &link_header(0, 0)).text(IFLA_IFNAME, name);
        gone_is_fine(self.0.request(&format!("remove link {name}"), message))
    }

    pub(crate) fn addresses(&mut self) -> Result<Vec<Address>, NetlinkError> {
        let mut found = Vec::new();
        let message = Message::new(RTM_GETADDR, DUMP, &[0; 8]);
        self.0.query("list addresses", message, |kind, body| {
            found.extend((kind == RTM_NEWADDR).then(|| parse_address(body)).flatten());
        })?;
        Ok(found)
    }

    /// Adds an address to an interface, usable at once (no duplicate address detection). An existing one is
    /// fine.
    pub(crate) fn add_address(&mut self, address: Address) -> Result<(), NetlinkError> {
        let message = address_message(RTM_NEWADDR, CREATE | EXCLUSIVE, address);
        match self.0.request(&format!("add address {}/{}", address.ip, address.prefix), message) {
            Err(error) if error.is_exists() => Ok(()),
            other => other,
        }
    }

    /// Removes an address; a missing one is no error.
    pub(crate) fn delete_address(&mut self, address: Address) -> Result<(), NetlinkError> {
        let message = address_message(RTM_DELADDR, 0, address);
        gone_is_fine(self.0.request(&format!("remove address {}", address.ip), message))
    }

    /// Unicast routes of the main table, both families.
    pub(crate) fn routes(&mut self) -> Result<Vec<Route>, NetlinkError> {
        let mut found = Vec::new();
        for family in [AF_INET, AF_INET6] {
            let message = Message::new(RTM_GETROUTE, DUMP, &[family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            let answer = self.0.query("list routes", message, |kind, body| {
                found.extend((kind == RTM_NEWROUTE).then(|| parse_route(body)).flatten());
            });
            match answer {
                // A kernel without IPv6.
                Err(error) if family == AF_INET6 && error.is_unsupported() => {}
                other => other?,
            }
        }
        Ok(found)
    }

    /// Adds a route to neighbours on a link; an existing one is no error.
    pub(crate) fn add_route(
        &mut self,
        link: u32,
        destination: IpAddr,
        prefix: u8,
    ) -> Result<(), NetlinkError> {
        let scope = if destination.is_ipv4() { RT_SCOPE_LINK } else { 0 };
        let header = [family(destination), prefix, 0, 0, 254, RTPROT_STATIC, scope, RTN_UNICAST, 0, 0, 0, 0];
        let message = Message::new(RTM_NEWROUTE, CREATE | EXCLUSIVE, &header)
            .bytes(RTA_DST, &octets(destination))
            .number(RTA_OIF, link);
        match self.0.request(&format!("add route to {destination}/{prefix}"), message) {
            Err(error) if error.is_exists() => Ok(()),
            other => other,
        }
    }

    /// Adds a default route through a gateway; an existing one is no error.
    pub(crate) fn add_default_route(&mut self, link: u32, gateway: IpAddr) -> Result<(), NetlinkError> {
        let header = [family(gateway), 0, 0, 0, 254, RTPROT_STATIC, 0, RTN_UNICAST, 0, 0, 0, 0];
        let message = Message::new(RTM_NEWROUTE, CREATE | EXCLUSIVE, &header)
            .number(RTA_OIF, link)
            .bytes(RTA_GATEWAY, &octets(gateway));
        match self.0.request(&format!("add default route by {gateway}"), message) {
            Err(error) if error.is_exists() => Ok(()),
            other => other,
        }
    }
}

fn gone_is_fine(answer: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    match answer {
        Err(error) if error.is_gone() => Ok(()),
        other => other,
    }
}

/// `struct ifinfomsg`; the flags in `on` are set.
fn link_header(index: u32, on: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&on.to_ne_bytes());
    header[12..16].copy_from_slice(&on.to_ne_bytes());
    header
}

fn address_message(kind: u16, flags: u16, address: Address) -> Message {
    let no_detection = if address.ip.is_ipv6() { IFA_F_NODAD } else { 0 };
    let mut header = [family(address.ip), address.prefix, no_detection, 0, 0, 0, 0, 0];
    header[4..8].copy_from_slice(&address.link.to_ne_bytes());
    let bytes = octets(address.ip);
    Message::new(kind, flags, &header)
        .bytes(IFA_LOCAL, &bytes)
        .bytes(IFA_ADDRESS, &bytes)
        .number(IFA_FLAGS, u32::from(no_detection))
}

/// The address family's number.
pub(super) fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { AF_INET } else { AF_INET6 }
}

/// The address in network order.
pub(super) fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

pub(super) fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        _ => None,
    }
}

fn parse_link(body: &[u8]) -> Option<Link> {
    let mut link =
        Link { index: number(body.get(4..)?)?, up: number(body.get(8..)?)? & IFF_UP != 0, ..Link::default() };
    for (kind, value) in NetlinkAttributes(body.get(16..)?) {
        match kind {
            IFLA_IFNAME => link.name = text(value),
            IFLA_MTU => link.mtu = number(value)?,
            IFLA_MASTER => link.master = number(value),
            IFLA_LINKINFO => {
                link.kind = NetlinkAttributes(value).find(IFLA_INFO_KIND).map(text).unwrap_or_default();
            }
            _ => {}
        }
    }
    Some(link)
}

fn parse_address(body: &[u8]) -> Option<Address> {
    let attributes = NetlinkAttributes(body.get(8..)?);
    let ip = attributes.find(IFA_LOCAL).or_else(|| attributes.find(IFA_ADDRESS)).and_then(address)?;
    Some(Address { link: number(body.get(4..)?)?, ip, prefix: *body.get(1)? })
}

fn parse_route(body: &[u8]) -> Option<Route> {
    let attributes = NetlinkAttributes(body.get(12..)?);
    let table = attributes.find(RTA_TABLE).and_then(number).unwrap_or_else(|| u32::from(body[4]));
    if table != RT_TABLE_MAIN || body[7] != RTN_UNICAST {
        return None;
    }
    let everything: IpAddr = match body[0] {
        AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    Some(Route {
        destination: attributes.find(RTA_DST).and_then(address).unwrap_or(everything),
        prefix: body[1],
        link: attributes.find(RTA_OIF).and_then(number).unwrap_or(0),
        gateway: attributes.find(RTA_GATEWAY).and_then(address),
        metric: attributes.find(RTA_PRIORITY).and_then(number).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::namespace;
    use super::*;

    #[test]
    fn links_addresses_and_routes_are_made_seen_and_removed() {
        let (host, pod) = (namespace::create().unwrap(), namespace::create().unwrap());
        namespace::inside(&host, || {
            let mut network = Network::open().unwrap();
            network.add_bridge("br0", [2, 0, 0, 0, 0, 1], 1400).unwrap();
            let bridge = network.link("br0").unwrap().unwrap();
            assert_eq!((bridge.kind.as_str(), bridge.mtu, bridge.up), ("bridge", 1400, false));
            network.set_up(bridge.index).unwrap();
            let gateway: IpAddr = "10.9.0.1".parse().unwrap();
            let address = Address { link: bridge.index, ip: gateway, prefix: 24 };
            network.add_address(address).unwrap();
            network.add_address(address).unwrap();
            assert!(network.addresses().unwrap().contains(&address));
            let veth = Veth {
                name: "veth0",
                master: bridge.index,
                peer: "eth0",
                peer_namespace: &pod,
                peer_mac: [2, 0, 0, 0, 0, 2],
                mtu: 1400,
            };
            network.add_veth(&veth).unwrap();
            assert!(network.add_veth(&veth).unwrap_err().is_exists());
            let port = network.link("veth0").unwrap().unwrap();
            assert_eq!((port.kind.as_str(), port.master, port.up), ("veth", Some(bridge.index), false));
            network.set_hairpin(port.index).unwrap();
            network.set_up(port.index).unwrap();
            assert!(network.link("veth0").unwrap().unwrap().up);
            namespace::inside(&pod, || {
                let mut network = Network::open().unwrap();
                let link = network.link("eth0").unwrap().unwrap();
                network.set_up(link.index).unwrap();
                let ip = "10.9.0.2".parse().unwrap();
                network.add_address(Address { link: link.index, ip, prefix: 24 }).unwrap();
                network.add_default_route(link.index, gateway).unwrap();
                network.add_default_route(link.index, gateway).unwrap();
                let routes = network.routes().unwrap();
                assert!(routes.iter().any(|route| route.prefix == 0 && route.gateway == Some(gateway)));
                assert!(routes.iter().any(|route| route.prefix == 24 && route.gateway.is_none()));
            })
            .unwrap();
            network.delete_link("veth0").unwrap();
            network.delete_link("veth0").unwrap();
            network.delete_address(address).unwrap();
            network.delete_address(address).unwrap();
            network.delete_link("br0").unwrap();
            assert_eq!(network.link("br0").unwrap(), None);
            assert_eq!(network.links().unwrap().len(), 1, "loopback is left");
        })
        .unwrap();
    }

    proptest! {
        #[test]
        fn nothing_the_kernel_could_send_breaks_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (parse_link(&bytes), parse_address(&bytes), parse_route(&bytes));
        }
    }
}
