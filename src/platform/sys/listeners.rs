//! Listeners on TCP and UDP ports: sockets of procfs, and the process that holds one.
//!
//! Owns reading them, and the option of a listener on an address that is not there yet. Inspects processes only when a port of interest is taken.

use crate::model::ordered::Sortable as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::IpFreebind;

/// Tables of a protocol, and the state of a socket that accepts from any peer, as procfs writes it:
/// `TCP_LISTEN`, and for UDP `TCP_CLOSE`, of a socket that is not connected.
pub(crate) type Tables = ([&'static str; 2], &'static str);
pub(crate) const TCP: Tables = (["proc/net/tcp", "proc/net/tcp6"], "0A");
pub(crate) const UDP: Tables = (["proc/net/udp", "proc/net/udp6"], "07");

/// The socket may be bound to an address that this machine does not have yet.
pub(crate) fn allow_any_address(socket: &impl AsFd) -> std::io::Result<()> {
    setsockopt(socket, IpFreebind, &true).map_err(Into::into)
}

/// Whether this machine has the address.
#[must_use]
pub(crate) fn is_own_address(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// A listening socket, or one that receives datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listener {
    pub address: IpAddr,
    pub port: u16,
    /// Name and id of the process, when it is visible.
    pub process: Option<(String, u32)>,
}

/// Listeners on these ports, in this process's network namespace.
#[must_use]
pub(crate) fn listeners(root: &Path, (tables, state): Tables, ports: &[u16]) -> Vec<Listener> {
    let mut found = Vec::new();
    for table in tables {
        let text = fs::read_to_string(root.join(table)).unwrap_or_default();
        let lines = text.lines().skip(1).filter_map(|line| listening(line, state));
        found.extend(lines.filter(|(_, port, _)| ports.contains(port)));
    }
    let holder = |inode: &str| {
        let wanted = format!("socket:[{inode}]");
        process_ids(root).into_iter().find_map(|pid| {
            let directory = root.join("proc").join(pid.to_string());
            let mut fds = fs::read_dir(directory.join("fd")).ok()?.flatten();
            fds.find(|fd| fs::read_link(fd.path()).is_ok_and(|link| link.as_os_str() == wanted.as_str()))?;
            Some((fs::read_to_string(directory.join("comm")).ok()?.trim().to_owned(), pid))
        })
    };
    let listener =
        |(address, port, inode): (_, _, String)| Listener { address, port, process: holder(&inode) };
    found.into_iter().map(listener).collect()
}

/// Address, port and inode of a line that listens.
fn listening(line: &str, state: &str) -> Option<(IpAddr, u16, String)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, port) = fields.get(1)?.split_once(':')?;
    let listens = fields.get(3) == Some(&state);
    let inode = (*fields.get(9)?).to_owned();
    listens.then_some((address(local)?, u16::from_str_radix(port, 16).ok()?, inode))
}

/// An address as `/proc/net/tcp` and `tcp6` write it: hexadecimal words in the machine's byte order.
#[must_use]
pub(crate) fn address(text: &str) -> Option<IpAddr> {
    let words: Option<Vec<[u8; 4]>> = (0..text.len() / 8)
        .map(|at| Some(u32::from_str_radix(text.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes()))
        .collect();
    match words?.as_slice() {
        [word] => Some(Ipv4Addr::from(*word).into()),
        words @ [_, _, _, _] => {
            let mut bytes = [0; 16];
            bytes.iter_mut().zip(words.concat()).for_each(|(to, from)| *to = from);
            let address = Ipv6Addr::from(bytes);
            Some(address.to_ipv4_mapped().map_or(address.into(), IpAddr::from))
        }
        _ => None,
    }
}

#[must_use]
pub(crate) fn process_ids(root: &Path) -> Vec<u32> {
    let entries = fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
    let mut ids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    ids.order_by(Ord::cmp);
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found_with_the_process_that_holds_them() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let found = listeners(Path::new("/"), TCP, &[port]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].address, IpAddr::from([127, 0, 0, 1]));
        assert_eq!(found[0].process.as_ref().map(|(_, pid)| *pid), Some(std::process::id()));
        drop(socket);
        assert_eq!(listeners(Path::new("/"), TCP, &[port]), []);
        let socket = std::net::UdpSocket::bind("[::1]:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let found = listeners(Path::new("/"), UDP, &[port]);
        assert_eq!(
            found.iter().map(|found| found.address).collect::<Vec<_>>(),
            [IpAddr::from(Ipv6Addr::LOCALHOST)]
        );
        assert_eq!(listeners(Path::new("/"), TCP, &[port]), []);
    }
}
