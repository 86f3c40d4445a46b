//! Tracked connections: those that would outlive a change of the rules are deleted.

use std::net::IpAddr;

use super::{DUMP, Message, NetlinkAttributes, NetlinkError, Socket, netfilter, route};

const SUBSYSTEM: u16 = 1;
const GET: u16 = SUBSYSTEM << 8 | 1;
const DELETE: u16 = SUBSYSTEM << 8 | 2;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
/// At most this many are deleted per call, so that a flood of datagrams does not hold up the node longer.
const MAX_FORGOTTEN: usize = 4096;

/// The relevant parts of one tracked connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrackedConnection {
    /// Transport protocol's number.
    pub protocol: u8,
    /// The destination of the first packet.
    pub destination: IpAddr,
    pub port: u16,
    pub replier: IpAddr,
    /// Where its answers come from.
    pub replier_port: u16,
}

/// Deletes connections that are `stale`, so that their next packet is matched against the rules again.
/// Returns how many.
pub(crate) fn forget(mut stale: impl FnMut(&TrackedConnection) -> bool) -> Result<usize, NetlinkError> {
    netfilter(|socket| forget_over(socket, &mut stale))
}

fn forget_over(
    socket: &mut Socket,
    stale: &mut dyn FnMut(&TrackedConnection) -> bool,
) -> Result<usize, NetlinkError> {
    let mut found: Vec<(u8, Vec<u8>)> = Vec::new();
    // Of all families at once: the kernel goes through its whole table for each list.
    let message = Message::new(GET, DUMP, &[0, 0, 0, 0]);
    let answer = socket.query("list connections", message, |_, body| {
        let (Some(family), Some((connection, original))) = (body.first(), parse(body)) else { return };
        if found.len() < MAX_FORGOTTEN && stale(&connection) {
            found.push((*family, original.to_vec()));
        }
    });
    match answer {
        Err(error) if error.is_unsupported() => {}
        other => other?,
    }
    for (family, original) in &found {
        let message = Message::new(DELETE, 0, &[*family, 0, 0, 0]).bytes(TUPLE_ORIGINAL | 0x8000, original);
        match socket.request("delete a connection", message) {
            Err(error) if error.is_gone() => {}
            other => other?,
        }
    }
    Ok(found.len())
}

/// The connection and its original tuple, which names it.
fn parse(body: &[u8]) -> Option<(TrackedConnection, &[u8])> {
    let attributes = NetlinkAttributes(body.get(4..)?);
    let original = attributes.find(TUPLE_ORIGINAL)?;
    let (tuple, reply) = (NetlinkAttributes(original), NetlinkAttributes(attributes.find(TUPLE_REPLY)?));
    let proto = NetlinkAttributes(tuple.find(TUPLE_PROTO)?);
    let port = |proto: &NetlinkAttributes<'_>, kind| {
        Some(u16::from_be_bytes(proto.find(kind)?.get(0..2)?.try_into().ok()?))
    };
    let protocol = *proto.find(1)?.first()?;
    let ip = |tuple: &NetlinkAttributes<'_>, four, six| {
        let ip = NetlinkAttributes(tuple.find(TUPLE_IP)?);
        ip.find(four).or_else(|| ip.find(six)).and_then(route::address)
    };
    let connection = TrackedConnection {
        protocol,
        destination: ip(&tuple, 2, 4)?,
        port: port(&proto, 3)?,
        replier: ip(&reply, 1, 3)?,
        replier_port: port(&NetlinkAttributes(reply.find(TUPLE_PROTO)?), 2)?,
    };
    Some((connection, original))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nothing_the_kernel_could_send_breaks_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
