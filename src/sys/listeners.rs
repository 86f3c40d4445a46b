//! Who listens on a TCP port: sockets of procfs, and the process that holds one.
//!
//! Owns the reading. Looks into processes only when a port of interest is taken.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use super::address;

/// `TCP_LISTEN` as procfs writes it.
const LISTEN: &str = "0A";

/// Somebody who listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Where.
    pub address: IpAddr,
    /// TCP port.
    pub port: u16,
    /// Name and id of the process, when it can be seen.
    pub process: Option<(String, u32)>,
}

/// Listeners on these ports.
pub(super) fn listeners(root: &Path, ports: &[u16]) -> Vec<Listener> {
    let mut found = Vec::new();
    for table in ["proc/net/tcp", "proc/net/tcp6"] {
        let text = fs::read_to_string(root.join(table)).unwrap_or_default();
        found.extend(text.lines().skip(1).filter_map(listening).filter(|(_, port, _)| ports.contains(port)));
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
fn listening(line: &str) -> Option<(IpAddr, u16, String)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, port) = fields.get(1)?.split_once(':')?;
    let listens = fields.get(3) == Some(&LISTEN);
    let inode = (*fields.get(9)?).to_owned();
    listens.then_some((address(local)?, u16::from_str_radix(port, 16).ok()?, inode))
}

/// Everything that runs.
pub(super) fn process_ids(root: &Path) -> Vec<u32> {
    let entries = fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
    let mut ids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    ids.sort_unstable();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found_with_the_process_that_holds_them() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let found = listeners(Path::new("/"), &[port]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].address, IpAddr::from([127, 0, 0, 1]));
        assert_eq!(found[0].process.as_ref().map(|(_, pid)| *pid), Some(std::process::id()));
        drop(socket);
        assert_eq!(listeners(Path::new("/"), &[port]), []);
    }
}
