//! Ranges of IP addresses, and positions in them.
//!
//! Owns their text and arithmetic.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range: all addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid CIDR address: {0}")]
pub struct CidrError(String);

impl fmt::Display for Cidr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.network, self.prefix)
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    /// Bits after the prefix are cleared.
    fn from_str(text: &str) -> Result<Self, CidrError> {
        let parse = || {
            let (ip, prefix) = text.split_once('/')?;
            let (ip, prefix): (IpAddr, u8) = (ip.parse().ok()?, prefix.parse().ok()?);
            (u32::from(prefix) <= width(ip)).then(|| Self::new(ip, prefix))
        };
        parse().ok_or_else(|| CidrError(text.to_owned()))
    }
}

impl Cidr {
    fn new(ip: IpAddr, prefix: u8) -> Self {
        let hosts = hosts(ip, prefix);
        Self { network: address(number(ip) & !hosts, ip), prefix }
    }

    /// The range of this address alone.
    #[must_use]
    pub fn single(ip: IpAddr) -> Self {
        Self { network: ip, prefix: if ip.is_ipv4() { 32 } else { 128 } }
    }

    /// The first address.
    #[must_use]
    pub fn network(self) -> IpAddr {
        self.network
    }

    #[must_use]
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// The prefix as an address.
    #[must_use]
    pub fn mask(self) -> IpAddr {
        address(!hosts(self.network, self.prefix), self.network)
    }

    #[must_use]
    pub fn contains(self, ip: IpAddr) -> bool {
        self.position(ip).is_some()
    }

    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.network) || other.contains(self.network)
    }

    /// The number of addresses, at most `u64::MAX`.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub fn len(self) -> u64 {
        u64::try_from(hosts(self.network, self.prefix)).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// The address at this position, from zero.
    #[must_use]
    pub fn at(self, position: u64) -> Option<IpAddr> {
        let position = u128::from(position);
        (position <= hosts(self.network, self.prefix))
            .then(|| address(number(self.network) | position, self.network))
    }

    /// The position of an address, from zero.
    fn position(self, ip: IpAddr) -> Option<u128> {
        let hosts = hosts(self.network, self.prefix);
        let is_within = ip.is_ipv4() == self.network.is_ipv4() && number(ip) & !hosts == number(self.network);
        is_within.then(|| number(ip) & hosts)
    }
}

fn width(ip: IpAddr) -> u32 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// The bits after the prefix.
fn hosts(like: IpAddr, prefix: u8) -> u128 {
    u128::MAX.checked_shr(128 - (width(like) - u32::from(prefix))).unwrap_or(0)
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn address(number: u128, like: IpAddr) -> IpAddr {
    match like {
        // The lower half of the lower half.
        IpAddr::V4(_) => {
            Ipv4Addr::from_bits(u32::try_from(number & u128::from(u32::MAX)).unwrap_or(0)).into()
        }
        IpAddr::V6(_) => Ipv6Addr::from_bits(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_know_their_parts() {
        let range = cidr("10.96.1.2/16");
        assert_eq!((range.to_string().as_str(), range.mask()), ("10.96.0.0/16", ip("255.255.0.0")));
        assert_eq!((range.at(0), range.at(65_535)), (Some(ip("10.96.0.0")), Some(ip("10.96.255.255"))));
        assert_eq!((range.at(65_536), range.len()), (None, 65_536));
        assert!(
            range.contains(ip("10.96.9.9"))
                && !range.contains(ip("10.97.0.0"))
                && !range.contains(ip("::a60:1"))
        );
        let six = cidr("fd00:10:96::/112");
        assert_eq!(
            (six.at(10), six.mask()),
            (Some(ip("fd00:10:96::a")), ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:0"))
        );
        assert_eq!((cidr("::/0").len(), cidr("::/0").mask()), (u64::MAX, ip("::")));
        assert_eq!((cidr("0.0.0.0/0").len(), cidr("0.0.0.0/0").mask()), (1 << 32, ip("0.0.0.0")));
        assert_eq!(cidr("10.0.0.5/32"), Cidr::single(ip("10.0.0.5")));
        assert!(cidr("10.0.0.0/8").overlaps(range) && range.overlaps(cidr("10.0.0.0/8")));
        assert!(!range.overlaps(cidr("10.97.0.0/16")) && !range.overlaps(six));
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in ["", "10.0.0.0", "10.0.0.0/33", "::/129", "x/8", "10.0.0.0/-1", "10.0.0.0/"] {
            let error = text.parse::<Cidr>().unwrap_err().to_string();
            assert_eq!(error, format!("invalid CIDR address: {text}"));
        }
    }
}
