//! Address ranges, and which of their addresses are free. Pure.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use sha2::Digest;

/// The default range of pods' addresses (`podCIDR`).
///
/// Private, and away from what else is often found on a box: home and office routers (192.168, 10.0, 10.1),
/// Docker (172.17 and up), Podman (10.88), k3s (10.42, 10.43), flannel and kubeadm's examples (10.244,
/// 10.96). A /24 has room for twice the 110 pods of a node and hides as little as possible of a 10.0.0.0/8
/// that is in use.
#[cfg(test)]
pub(crate) const DEFAULT_SUBNET: &str = "10.86.0.0/24";

/// A range of addresses for pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Subnet {
    network: IpAddr,
    prefix: u8,
}

/// The range cannot be used for pods.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("podCIDR {text:?}: {problem}")]
pub struct SubnetError {
    text: String,
    problem: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no free IP address in {0}: all are used by pods; set a larger podCIDR")]
pub(crate) struct Exhausted(pub Subnet);

impl fmt::Display for Subnet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.network, self.prefix)
    }
}

impl FromStr for Subnet {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Self, SubnetError> {
        let error = |problem| SubnetError { text: text.to_owned(), problem };
        let (ip, prefix) = text.split_once('/').ok_or_else(|| error("must be address/length"))?;
        let ip: IpAddr = ip.parse().map_err(|_| error("invalid address before the slash"))?;
        let prefix: u8 = prefix.parse().map_err(|_| error("invalid length after the slash"))?;
        // Network, gateway and one pod at least; and at least 8 bits of prefix to tell ranges apart.
        let longest = if ip.is_ipv4() { 30 } else { 126 };
        if !(8..=longest).contains(&prefix) {
            return Err(error("the length must be 8 to 30 (IPv4) or 8 to 126 (IPv6)"));
        }
        if ip.is_loopback() || ip.is_multicast() {
            return Err(error("must be routable unicast addresses"));
        }
        let network = from_number(to_number(ip) & mask(ip, prefix), ip);
        Ok(Self { network, prefix })
    }
}

impl Subnet {
    /// A range of unique local IPv6 addresses (RFC 4193) for this machine alone: `seed` is unique to the
    /// machine, for example its machine id.
    #[must_use]
    pub(in crate::runtime) fn unique_local(seed: &[u8]) -> Self {
        let mut hash = sha2::Sha256::new();
        hash.update(b"pod network ");
        hash.update(seed);
        let digest = hash.finalize();
        let mut octets = [0; 16];
        octets[0] = 0xfd;
        octets[1..6].copy_from_slice(&digest[..5]);
        Self { network: Ipv6Addr::from(octets).into(), prefix: 64 }
    }

    /// First address of the range.
    #[must_use]
    pub(crate) fn network(self) -> IpAddr {
        self.network
    }

    #[must_use]
    pub(crate) fn prefix(self) -> u8 {
        self.prefix
    }

    /// The node's own address in the range: the first after the network's.
    #[must_use]
    pub(crate) fn gateway(self) -> IpAddr {
        from_number(to_number(self.network) + 1, self.network)
    }

    /// The prefix as an address.
    #[must_use]
    pub(crate) fn mask(self) -> IpAddr {
        from_number(mask(self.network, self.prefix), self.network)
    }

    #[must_use]
    pub(crate) fn contains(self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.network.is_ipv4()
            && to_number(ip) & mask(ip, self.prefix) == to_number(self.network)
    }

    /// Whether the two ranges have addresses in common.
    #[must_use]
    pub(crate) fn overlaps(self, network: IpAddr, prefix: u8) -> bool {
        let common = mask(network, prefix.min(self.prefix));
        network.is_ipv4() == self.network.is_ipv4()
            && to_number(network) & common == to_number(self.network) & common
    }

    /// The next free address after `last`, cyclically: an address rests as long as possible before another
    /// pod gets it, so that peers with old state do not reach the wrong pod.
    pub(in crate::runtime) fn next_free(
        self,
        used: &BTreeSet<IpAddr>,
        last: Option<IpAddr>,
    ) -> Result<IpAddr, Exhausted> {
        let network = to_number(self.network);
        let first = network + 2;
        // IPv4 has a broadcast address at the end; IPv6 has none, but leaving it out does no harm.
        let end = (network | !mask_number(self.network.is_ipv4(), self.prefix)) - 1;
        let start = match last {
            Some(ip) if self.contains(ip) && (first..end).contains(&to_number(ip)) => to_number(ip) + 1,
            _ => first,
        };
        let (mut candidate, mut tries) = (start, end - first + 1);
        while tries > 0 {
            let ip = from_number(candidate, self.network);
            if !used.contains(&ip) {
                return Ok(ip);
            }
            candidate = if candidate == end { first } else { candidate + 1 };
            tries -= 1;
        }
        Err(Exhausted(self))
    }
}

/// The default subnets of a node: one of IPv4, and one of IPv6 where the node has IPv6.
#[must_use]
pub(crate) fn default_subnets(machine_id: &[u8], ipv6: bool) -> Vec<Subnet> {
    let ipv4 = Subnet { network: Ipv4Addr::new(10, 86, 0, 0).into(), prefix: 24 };
    [Some(ipv4), ipv6.then(|| Subnet::unique_local(machine_id))].into_iter().flatten().collect()
}

fn to_number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn from_number(number: u128, like: IpAddr) -> IpAddr {
    if like.is_ipv4() {
        Ipv4Addr::from_bits(u32::try_from(number & u128::from(u32::MAX)).unwrap_or(0)).into()
    } else {
        Ipv6Addr::from_bits(number).into()
    }
}

fn mask(like: IpAddr, prefix: u8) -> u128 {
    mask_number(like.is_ipv4(), prefix)
}

/// For IPv4 the mask is in the lower 32 bits, with every bit above set, so that the complement is the host
/// part.
fn mask_number(ipv4: bool, prefix: u8) -> u128 {
    let width = if ipv4 { 32 } else { 128 };
    let host = width - u32::from(prefix).min(width);
    let all = if ipv4 { u128::from(u32::MAX) } else { u128::MAX };
    let hosts = u128::MAX.checked_shr(128 - host).unwrap_or(0);
    if ipv4 { (all & !hosts) | !all } else { !hosts }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn subnet(text: &str) -> Subnet {
        text.parse().unwrap()
    }

    #[test]
    fn a_range_is_read_and_knows_its_parts() {
        let range = subnet("10.86.3.7/24");
        assert_eq!(range.to_string(), "10.86.3.0/24");
        assert_eq!(range.gateway().to_string(), "10.86.3.1");
        assert_eq!(range.mask().to_string(), "255.255.255.0");
        assert!(
            range.contains("10.86.3.255".parse().unwrap()) && !range.contains("10.86.4.0".parse().unwrap())
        );
        assert!(!range.contains("::10.86.3.1".parse().unwrap()));
        let ula = Subnet::unique_local(b"a");
        assert!(ula.to_string().starts_with("fd") && ula.to_string().ends_with("::/64"), "{ula}");
        assert_ne!(ula, Subnet::unique_local(b"b"));
        assert_eq!(default_subnets(b"a", true), [subnet(DEFAULT_SUBNET), ula]);
        assert_eq!(ula.mask().to_string(), "ffff:ffff:ffff:ffff::");
    }

    #[test]
    fn what_is_no_range_for_pods_is_refused() {
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/31",
            "10.0.0.0/7",
            "x/8",
            "10.0.0.0/-1",
            "127.0.0.0/8",
            "ff00::/8",
            "fd00::/127",
        ] {
            let error = text.parse::<Subnet>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("podCIDR {text:?}: ")), "{error}");
        }
    }

    #[test]
    fn overlap_is_seen_whichever_is_larger() {
        let range = subnet("10.86.0.0/16");
        let overlaps = |ip: &str, prefix| range.overlaps(ip.parse().unwrap(), prefix);
        assert!(overlaps("10.86.4.0", 24) && overlaps("10.0.0.0", 8) && overlaps("10.86.0.0", 16));
        assert!(!overlaps("10.87.0.0", 16) && !overlaps("192.168.0.0", 24) && !overlaps("fd00::", 8));
        assert!(overlaps("0.0.0.0", 0));
    }

    #[test]
    fn a_full_range_says_how_to_get_more() {
        let range = subnet("10.0.0.0/30");
        let only = range.next_free(&BTreeSet::new(), None).unwrap();
        assert_eq!(only.to_string(), "10.0.0.2");
        let error = range.next_free(&BTreeSet::from([only]), Some(only)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no free IP address in 10.0.0.0/30: all are used by pods; set a larger podCIDR"
        );
    }

    proptest! {
        #[test]
        fn an_address_is_free_inside_and_nobodys(
            six in any::<bool>(),
            prefix in 24_u8..=30,
            host in any::<u32>(),
            taken in proptest::collection::vec(0_u32..300, 0..40),
            last in proptest::option::of(0_u32..300),
        ) {
            let range: Subnet = if six {
                format!("fd00::{:x}:0/{}", host >> 16, prefix + 96).parse().unwrap()
            } else {
                format!("{}/{prefix}", Ipv4Addr::from_bits(host | 0x0a00_0000 & 0x0aff_ffff)).parse::<Subnet>().unwrap_or(subnet(DEFAULT_SUBNET))
            };
            let at = |offset: u32| from_number(to_number(range.network()) + u128::from(offset), range.network());
            let used: BTreeSet<IpAddr> = taken.iter().map(|offset| at(*offset)).collect();
            let room = (1_u32 << (32 - range.prefix().min(if six { range.prefix() - 96 } else { 32 }))) - 3;
            match range.next_free(&used, last.map(at)) {
                Ok(ip) => {
                    prop_assert!(range.contains(ip) && !used.contains(&ip));
                    prop_assert!(ip != range.network() && ip != range.gateway());
                    prop_assert!(ip != at(room + 2), "the broadcast address");
                }
                Err(_) => prop_assert!((2..room + 2).all(|offset| used.contains(&at(offset)))),
            }
        }

        #[test]
        fn addresses_go_round(prefix in 25_u8..=30) {
            let range: Subnet = format!("10.1.2.0/{prefix}").parse().unwrap();
            let room = (1_usize << (32 - prefix)) - 3;
            let (mut last, mut seen) = (None, Vec::new());
            for _ in 0..room * 2 {
                last = Some(range.next_free(&BTreeSet::new(), last).unwrap());
                seen.push(last.unwrap());
            }
            prop_assert_eq!(&seen[..room], &seen[room..]);
            prop_assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), room);
        }
    }
}
