//! Netlink: messages to the kernel's network and its answers.
//!
//! Owns the wire format, sockets and the kernel's error texts. The protocols are below: `route` (links,
//! addresses, routes), `nftables` (rules), `conntrack` (connections), `namespace` (network namespaces).

pub mod conntrack;
pub mod namespace;
pub mod nftables;
pub mod route;

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;

const HEADER: usize = 16;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
/// `NLM_F_ROOT | NLM_F_MATCH`.
pub(crate) const DUMP: u16 = 0x300;
/// `NLM_F_EXCL`: an error when it exists.
pub(crate) const EXCLUSIVE: u16 = 0x200;
/// `NLM_F_CREATE`.
pub(crate) const CREATE: u16 = 0x400;
/// `NLM_F_CAPPED`: the refused message is not repeated in the answer.
const CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: the answer ends with attributes.
const ACK_ATTRIBUTES: u16 = 0x200;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NLA_F_NESTED`; with it `NLA_F_NET_BYTEORDER` is masked when reading.
const NESTED: u16 = 0x8000;
const KIND_MASK: u16 = 0x3fff;
/// The kernel answers at once or never.
const TIMEOUT_SECONDS: i64 = 10;
/// The kernel fills at most 32 KiB per datagram of a dump.
const RECEIVE_BYTES: usize = 64 * 1024;
/// More replies than any real machine has; it bounds the time spent.
const MAX_REPLIES: usize = 200_000;

#[derive(Debug, thiserror::Error)]
pub(crate) enum NetlinkError {
    #[error("{what}{}", if .detail.is_empty() { String::new() } else { format!(": {detail}") })]
    Refused {
        what: String,
        /// The kernel's text (extended acknowledgement), may be empty.
        detail: String,
        source: std::io::Error,
    },
    #[error("netlink socket, {call}")]
    Socket { call: &'static str, source: std::io::Error },
    /// The answer is malformed, or the request would not fit.
    #[error("{what}: {problem}")]
    Malformed { what: String, problem: &'static str },
}

impl NetlinkError {
    fn errno(&self) -> i32 {
        match self {
            Self::Refused { source, .. } | Self::Socket { source, .. } => source.raw_os_error().unwrap_or(0),
            Self::Malformed { .. } => 0,
        }
    }

    #[must_use]
    pub(in crate::platform) fn is_exists(&self) -> bool {
        self.errno() == Errno::EEXIST as i32
    }

    /// The object to remove or change does not exist.
    #[must_use]
    pub(crate) fn is_gone(&self) -> bool {
        [Errno::ENODEV, Errno::ENOENT, Errno::ESRCH, Errno::EADDRNOTAVAIL]
            .iter()
            .any(|errno| self.errno() == *errno as i32)
    }

    /// The kernel was built without this feature.
    #[must_use]
    pub(crate) fn is_unsupported(&self) -> bool {
        [Errno::EOPNOTSUPP, Errno::EPROTONOSUPPORT, Errno::EAFNOSUPPORT, Errno::EINVAL, Errno::ENOENT]
            .iter()
            .any(|errno| self.errno() == *errno as i32)
    }
}

/// A message, or attributes that go into one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    bytes: Vec<u8>,
    oversized: bool,
}

impl Message {
    /// A request of `kind`; `header` is the family's header before the attributes.
    pub(crate) fn new(kind: u16, flags: u16, header: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | REQUEST).to_ne_bytes());
        bytes.extend_from_slice(header);
        Self { bytes, oversized: false }
    }

    pub(crate) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        let Ok(length) = u16::try_from(value.len() + 4) else {
            self.oversized = true;
            return self;
        };
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    /// A number in the machine's order.
    pub(crate) fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// A number in network order, as netfilter requires.
    pub(crate) fn big(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Text that ends with a zero.
    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    /// Attributes in an attribute.
    pub(crate) fn nested(mut self, kind: u16, inside: impl FnOnce(Self) -> Self) -> Self {
        self = self.nested_with(kind, &[], inside);
        self
    }

    /// The same, with a header before the attributes.
    pub(crate) fn nested_with(mut self, kind: u16, header: &[u8], inside: impl FnOnce(Self) -> Self) -> Self {
        let inner = inside(Self { bytes: header.to_vec(), oversized: false });
        self.oversized |= inner.oversized;
        self.bytes(kind | NESTED, &inner.bytes)
    }

    fn seal(&mut self, sequence: u32, flags: u16, what: &str) -> Result<(), NetlinkError> {
        let length = u32::try_from(self.bytes.len()).ok().filter(|_| !self.oversized).ok_or_else(|| {
            NetlinkError::Malformed { what: what.to_owned(), problem: "does not fit into a message" }
        })?;
        let flags = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]) | flags;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        Ok(())
    }
}

/// Attributes one after another; stops at the first that does not fit.
#[derive(Debug)]
pub(crate) struct NetlinkAttributes<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for NetlinkAttributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16::from_ne_bytes(self.0.get(0..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(self.0.get(2..4)?.try_into().ok()?) & KIND_MASK;
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

impl<'a> NetlinkAttributes<'a> {
    /// The value of the first attribute of `kind`.
    pub(crate) fn find(&self, kind: u16) -> Option<&'a [u8]> {
        Self(self.0).find_map(|(found, value)| (found == kind).then_some(value))
    }
}

/// A number in the machine's order at the start of `bytes`.
pub(crate) fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(0..4)?.try_into().ok()?))
}

/// Text up to its zero.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// One message of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reply<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

/// The first message in `bytes`, and the rest.
fn split(bytes: &[u8]) -> Option<(Reply<'_>, &[u8])> {
    let length = usize::try_from(number(bytes)?).ok()?;
    let body = bytes.get(HEADER..length)?;
    let short = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let reply = Reply { kind: short(4)?, flags: short(6)?, sequence: number(&bytes[8..])?, body };
    Some((reply, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// `NLMSG_ERROR`: the error number and the kernel's text.
fn verdict(reply: Reply<'_>) -> Option<(i32, String)> {
    let code = i32::from_ne_bytes(reply.body.get(0..4)?.try_into().ok()?);
    let mut detail = String::new();
    if reply.flags & ACK_ATTRIBUTES != 0 {
        let repeated = if reply.flags & CAPPED == 0 {
            usize::try_from(number(reply.body.get(4..)?)?).ok()?.max(HEADER)
        } else {
            HEADER
        };
        let attributes = reply.body.get(4 + repeated.next_multiple_of(4)..).unwrap_or_default();
        detail = NetlinkAttributes(attributes).find(1).map(text).unwrap_or_default();
    }
    Some((code, detail))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// `NETLINK_ROUTE`.
    Route,
    /// `NETLINK_NETFILTER`.
    Netfilter,
}

/// A socket of the network namespace of the thread that opened it, whichever thread uses it.
#[derive(Debug)]
pub(crate) struct Socket {
    descriptor: OwnedFd,
    sequence: u32,
}

impl Socket {
    pub(crate) fn open(protocol: Protocol) -> Result<Self, NetlinkError> {
        let failed = |call| move |errno: Errno| NetlinkError::Socket { call, source: errno.into() };
        let protocol = match protocol {
            Protocol::Route => SockProtocol::NetlinkRoute,
            Protocol::Netfilter => SockProtocol::NetlinkNetFilter,
        };
        let descriptor = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
            .map_err(failed("socket"))?;
        bind(descriptor.as_raw_fd(), &NetlinkAddr::new(0, 0)).map_err(failed("bind"))?;
        let timeout = TimeVal::new(TIMEOUT_SECONDS as _, 0);
        setsockopt(&descriptor, sockopt::ReceiveTimeout, &timeout).map_err(failed("setsockopt"))?;
        // Error texts (4.12) and short error messages (4.3) are optional: a kernel without them works as
        // well.
        for option in [nix::libc::NETLINK_EXT_ACK, nix::libc::NETLINK_CAP_ACK] {
            set_option(&descriptor, option);
        }
        Ok(Self { descriptor, sequence: 0 })
    }

    /// Sends a request that changes something, and waits for its acknowledgement.
    pub(crate) fn request(&mut self, what: &str, message: Message) -> Result<(), NetlinkError> {
        self.exchange(what, message, ACK, |_, _| {})
    }

    /// Sends a query; `each` gets type and body of every answer.
    pub(crate) fn query(
        &mut self,
        what: &str,
        message: Message,
        each: impl FnMut(u16, &[u8]),
    ) -> Result<(), NetlinkError> {
        // A dump ends with a separate message.
        let flags =
            if u16::from_ne_bytes([message.bytes[6], message.bytes[7]]) & DUMP == DUMP { 0 } else { ACK };
        self.exchange(what, message, flags, each)
    }

    fn exchange(
        &mut self,
        what: &str,
        mut message: Message,
        flags: u16,
        each: impl FnMut(u16, &[u8]),
    ) -> Result<(), NetlinkError> {
        self.sequence += 1;
        message.seal(self.sequence, flags, what)?;
        self.send(&message.bytes)?;
        self.receive(what, self.sequence, self.sequence, each)
    }

    /// Sends several messages as one datagram, which the kernel accepts or refuses as a whole. The last but
    /// one (the last is the end mark) is acknowledged.
    pub(crate) fn batch(&mut self, what: &str, messages: Vec<Message>) -> Result<(), NetlinkError> {
        let first = self.sequence + 1;
        let acknowledged = messages.len().saturating_sub(2);
        let (mut bytes, mut last) = (Vec::new(), first);
        for (position, mut message) in messages.into_iter().enumerate() {
            self.sequence += 1;
            let flags = if position == acknowledged { ACK } else { 0 };
            message.seal(self.sequence, flags, what)?;
            bytes.append(&mut message.bytes);
            if position == acknowledged {
                last = self.sequence;
            }
        }
        // Many host ports need more than the default; if the kernel refuses, sending fails later.
        let _ = setsockopt(&self.descriptor, sockopt::SndBufForce, &(bytes.len() * 2 + 64 * 1024));
        self.send(&bytes)?;
        self.receive(what, first, last, |_, _| {})
    }

    fn send(&self, bytes: &[u8]) -> Result<(), NetlinkError> {
        let failed = |errno: Errno| NetlinkError::Socket { call: "send", source: errno.into() };
        send(self.descriptor.as_raw_fd(), bytes, MsgFlags::empty()).map(drop).map_err(failed)
    }

    /// Reads until the message numbered `last` is answered. The first refusal of any from `first` on is the
    /// answer.
    fn receive(
        &self,
        what: &str,
        first: u32,
        last: u32,
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<(), NetlinkError> {
        let malformed = |problem| NetlinkError::Malformed { what: what.to_owned(), problem };
        let mut buffer = vec![0; RECEIVE_BYTES];
        let mut count = 0;
        loop {
            let length = match recv(self.descriptor.as_raw_fd(), &mut buffer, MsgFlags::MSG_TRUNC) {
                Ok(length) => length,
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(NetlinkError::Socket { call: "recv", source: errno.into() }),
            };
            let mut rest = buffer.get(..length).ok_or_else(|| malformed("the reply is too long"))?;
            while !rest.is_empty() {
                let (reply, next) = split(rest).ok_or_else(|| malformed("the reply is truncated"))?;
                rest = next;
                count += 1;
                if count > MAX_REPLIES {
                    return Err(malformed("the reply has no end"));
                }
                if !(first..=last).contains(&reply.sequence) {
                    continue;
                }
                match reply.kind {
                    NLMSG_ERROR => {
                        let (code, detail) =
                            verdict(reply).ok_or_else(|| malformed("the reply is truncated"))?;
                        if code != 0 {
                            let source = std::io::Error::from_raw_os_error(code.saturating_neg());
                            return Err(NetlinkError::Refused { what: what.to_owned(), detail, source });
                        }
                        if reply.sequence == last {
                            return Ok(());
                        }
                    }
                    NLMSG_DONE => return Ok(()),
                    kind => each(kind, reply.body),
                }
            }
        }
    }
}

thread_local! {
    static NETFILTER: RefCell<Option<Socket>> = const { RefCell::new(None) };
}

/// Calls the kernel's netfilter over a socket that this thread keeps. Closing one waits until the kernel has freed what
/// earlier changes of rules removed: a grace period of RCU, often more than 10 ms.
///
/// For threads that stay in their network namespace.
pub(crate) fn netfilter<T>(
    call: impl FnOnce(&mut Socket) -> Result<T, NetlinkError>,
) -> Result<T, NetlinkError> {
    let mut socket = NETFILTER.take().map_or_else(|| Socket::open(Protocol::Netfilter), Ok)?;
    let answer = call(&mut socket);
    // After other errors an answer may still be on its way.
    if matches!(answer, Ok(_) | Err(NetlinkError::Refused { .. })) {
        NETFILTER.set(Some(socket));
    }
    answer
}

fn set_option(descriptor: &OwnedFd, option: i32) {
    let on: nix::libc::c_int = 1;
    // SAFETY: the descriptor is open, the value is an int that lives over the call, and its size is passed.
    unsafe {
        nix::libc::setsockopt(
            descriptor.as_raw_fd(),
            nix::libc::SOL_NETLINK,
            option,
            (&raw const on).cast(),
            nix::libc::socklen_t::try_from(size_of_val(&on)).unwrap_or(4),
        );
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn attributes_arrive_as_they_were_put() {
        let message = Message::new(16, 0, &[7; 4])
            .text(1, "agent0")
            .nested(2, |inside| inside.number(3, 9).bytes(4, &[1, 2, 3, 4, 5]));
        let attributes = NetlinkAttributes(&message.bytes[HEADER + 4..]);
        assert_eq!(attributes.find(1).map(text).as_deref(), Some("agent0"));
        let inside = NetlinkAttributes(attributes.find(2).unwrap());
        assert_eq!(inside.find(3).and_then(number), Some(9));
        assert_eq!(inside.find(4), Some(&[1, 2, 3, 4, 5][..]));
        assert_eq!(inside.find(5), None);
    }

    #[test]
    fn what_does_not_fit_is_refused_before_it_is_sent() {
        let mut message = Message::new(16, 0, &[]).nested(1, |inside| inside.bytes(2, &vec![0; 70_000]));
        assert!(message.seal(1, 0, "try").unwrap_err().to_string().contains("does not fit"));
    }

    #[test]
    fn netlink_error_carries_the_kernel_message() {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        // RTM_NEWLINK of an unknown kind of link.
        let message = Message::new(16, CREATE | EXCLUSIVE, &[0; 16])
            .nested(18, |inside| inside.text(1, "no-such-kind"));
        let error = socket.request("make a link", message).unwrap_err();
        assert!(error.is_unsupported(), "{error}");
        assert_eq!(error.to_string(), "make a link: Unknown device type");
    }

    #[test]
    fn the_socket_of_netfilter_is_kept_after_answers_and_refusals() {
        let file = namespace::create().unwrap();
        namespace::inside(&file, || {
            let descriptor = || NETFILTER.with_borrow(|socket| Some(socket.as_ref()?.descriptor.as_raw_fd()));
            assert_eq!(descriptor(), None);
            nftables::probe().unwrap();
            let kept = descriptor();
            assert!(kept.is_some());
            // NFT_MSG_DELTABLE of a table that does not exist, twice: the second refusal is still on its way.
            let gone = || Message::new(10 << 8 | 2, 0, &[2, 0, 0, 0]).text(1, "missing");
            let mark = |kind| Message::new(kind, 0, &[0, 0, 0, 10]);
            let batch = vec![mark(16), gone(), gone(), mark(17)];
            assert!(netfilter(|socket| socket.batch("try", batch)).unwrap_err().is_gone());
            nftables::probe().unwrap();
            assert_eq!(descriptor(), kept);
            let broken = |_: &mut Socket| -> Result<(), _> {
                Err(NetlinkError::Malformed { what: "try".to_owned(), problem: "no end" })
            };
            netfilter(broken).unwrap_err();
            assert_eq!(descriptor(), None, "an answer may follow");
        })
        .unwrap();
    }

    proptest! {
        #[test]
        fn nothing_the_kernel_could_send_breaks_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut rest = &bytes[..];
            while let Some((reply, next)) = split(rest) {
                prop_assert!(next.len() < rest.len());
                let _ = verdict(reply);
                rest = next;
            }
            prop_assert!(NetlinkAttributes(&bytes).count() <= bytes.len() / 4);
            let _ = (text(&bytes), number(&bytes));
        }

        #[test]
        fn lengths_that_lie_end_the_reading(length in 0_u32..64, body in proptest::collection::vec(any::<u8>(), 12..40)) {
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend(&body);
            if let Some((reply, _)) = split(&bytes) {
                prop_assert!(reply.body.len() + HEADER == usize::try_from(length).unwrap());
                let _ = verdict(reply);
            }
        }
    }
}
