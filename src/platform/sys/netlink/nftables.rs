//! nf_tables: a table that is replaced as a whole.
//!
//! Owns how tables, chains, maps and expressions are encoded. [`kept`] replaces a table without its dynamic maps.

pub mod kept;

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::{CREATE, Message, NetlinkAttributes, NetlinkError, Socket, netfilter};

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEWTABLE: u16 = SUBSYSTEM << 8;
const GETTABLE: u16 = SUBSYSTEM << 8 | 1;
const DELTABLE: u16 = SUBSYSTEM << 8 | 2;
const NEWCHAIN: u16 = SUBSYSTEM << 8 | 3;
const NEWRULE: u16 = SUBSYSTEM << 8 | 6;
const NEWSET: u16 = SUBSYSTEM << 8 | 9;
const NEWSETELEM: u16 = SUBSYSTEM << 8 | 0x0c;
const GETGEN: u16 = SUBSYSTEM << 8 | 16;

/// `NLM_F_APPEND`: rules in the order they are sent.
const APPEND: u16 = 0x800;
const SET_IS_MAP: u32 = 8;
/// `NFT_SET_TIMEOUT | NFT_SET_EVAL`: rules add elements, which end by themselves.
const SET_IS_DYNAMIC: u32 = 0x30;
/// Clients that a dynamic map remembers, at some hundred bytes each.
const MAX_DYNAMIC: u32 = 16_384;
/// A list of elements is one attribute, which ends at 64 KiB: an element takes at most about 100 bytes.
const ELEMENTS_PER_MESSAGE: usize = 400;

/// `NFT_REG_1`: the first of the registers, 16 bytes wide. A concatenated value starts here, too.
pub(crate) const REGISTER: u32 = 1;
/// The first of the four-byte registers, which overlap the wide ones.
pub(crate) const SHORT_REGISTER: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    /// `ip`
    Ipv4,
    /// `ip6`
    Ipv6,
}

impl Family {
    fn number(self) -> u8 {
        match self {
            Self::Ipv4 => 2,
            Self::Ipv6 => 10,
        }
    }

    /// Bytes of an address.
    #[must_use]
    pub(crate) fn width(self) -> u8 {
        match self {
            Self::Ipv4 => 4,
            Self::Ipv6 => 16,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// All arriving packets, before routing.
    Prerouting,
    /// Packets for the node itself.
    Input,
    /// Packets that the node passes on.
    Forward,
    /// Packets that the node itself sends.
    Output,
    /// All leaving packets, after routing.
    Postrouting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChainKind {
    /// Accepts or drops packets.
    Filter,
    Nat,
}

/// A table: its maps first, then its chains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub family: Family,
    pub name: String,
    pub maps: Vec<Map>,
    pub chains: Vec<Chain>,
}

/// A map from a concatenated key to data, or a set of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Map {
    pub name: Cow<'static, str>,
    /// The types of the key, concatenated.
    pub key: Vec<DataType>,
    /// The types of the data, concatenated; empty for a set.
    pub data: Vec<DataType>,
    /// Keys and data, each value padded to four bytes.
    pub elements: Vec<(Vec<u8>, Vec<u8>)>,
    /// Rules add its elements.
    pub is_dynamic: bool,
}

/// Types as `nft` numbers them; the kernel ignores them, but `nft list` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataType {
    Ipv4Address,
    Ipv6Address,
    Protocol,
    Port,
    /// A number of four bytes in the machine's order.
    Number,
}

impl DataType {
    fn number(self) -> u32 {
        match self {
            Self::Ipv4Address => 7,
            Self::Ipv6Address => 8,
            Self::Protocol => 12,
            Self::Port => 13,
            // A packet's mark: the only such type that `nft` shows.
            Self::Number => 19,
        }
    }

    fn padded(self) -> u32 {
        if self == Self::Ipv6Address { 16 } else { 4 }
    }

    /// Six bits for each.
    fn joined(types: &[Self]) -> (u32, u32) {
        types
            .iter()
            .fold((0, 0), |(number, length), kind| (number << 6 | kind.number(), length + kind.padded()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub name: &'static str,
    pub kind: ChainKind,
    pub hook: Hook,
    /// The order among all chains of the hook: smaller is earlier.
    pub priority: i32,
    pub rules: Vec<Vec<Expression>>,
}

/// A step of a rule: loads something into a register, compares it, or acts. A comparison that does not hold
/// ends the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    /// Loads the name of the incoming interface.
    InputInterface,
    /// Loads the name of the outgoing interface.
    OutputInterface,
    /// Loads the transport protocol's number into this register.
    TransportProtocol(u32),
    /// Loads bytes of the network header: offset, length, register.
    NetworkHeader(u32, u32, u32),
    /// Loads bytes of the transport header: offset, length, register.
    TransportHeader(u32, u32, u32),
    /// Loads the type of the destination address, as seen from this node.
    DestinationKind,
    /// Loads the flags of the connection.
    ConnectionStatus,
    /// Loads a random number below the first into the second, a register.
    Random(u32, u32),
    Mask(Vec<u8>),
    /// Continues if the register holds this.
    Equal(Vec<u8>),
    /// Continues if the register holds something else.
    NotEqual(Vec<u8>),
    /// Looks the key in the first register up, and loads the data of a map into the second; ends the rule when the key
    /// is missing.
    Lookup(Cow<'static, str>, u32, Option<u32>),
    /// Puts key and data of these registers into a dynamic map for so many seconds, again for an existing key, whose
    /// data stays; ends the rule when the map is full.
    Remember(Cow<'static, str>, u32, u32, u32),
    /// Rewrites the destination to the address in the first register and the port in the second.
    DestinationNat(Family, u32, u32),
    /// Rewrites the source to the address of the outgoing interface.
    Masquerade,
    /// The end of the packet.
    Drop,
    /// The same, and the sender learns that the port is unreachable.
    Reject(Family),
    /// The same of a TCP connection: it is reset.
    Reset,
}

/// What [`replace`] has put into force last: a digest of the tables, and the kernel's number of changes right after; 0 for none.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    content: AtomicU64,
    generation: AtomicU32,
}

/// Replaces tables atomically; other tables are not touched. Does nothing when no program has changed any rules since the same
/// tables were put into force.
///
/// # Errors
/// The kernel's answer; nothing has changed then.
pub(crate) fn replace(tables: &[Table], applied: &Applied) -> Result<(), NetlinkError> {
    let mut batch = vec![begin()];
    for table in tables {
        // An empty one first, so that the deletion always succeeds.
        batch.push(table_message(NEWTABLE, CREATE, table.family, &table.name));
        batch.push(table_message(DELTABLE, 0, table.family, &table.name));
        batch.push(table_message(NEWTABLE, CREATE, table.family, &table.name));
        add_content(&mut batch, table, &[]);
    }
    batch.push(end());
    let mut hasher = DefaultHasher::new();
    for message in &batch {
        message.bytes.hash(&mut hasher);
    }
    let content = hasher.finish();
    netfilter(|socket| {
        let before = generation(socket)?;
        let is_same = applied.content.load(Relaxed) == content;
        if is_same && before != 0 && applied.generation.load(Relaxed) == before {
            return Ok(());
        }
        applied.generation.store(0, Relaxed);
        socket.batch("replace nftables table", batch)?;
        // Another program may have removed them again already.
        if generation(socket)? == before.wrapping_add(1) {
            applied.content.store(content, Relaxed);
            applied.generation.store(before.wrapping_add(1), Relaxed);
        }
        Ok(())
    })
}

/// How often rules of this network namespace have changed, as the kernel counts; 0 when it does not say.
fn generation(socket: &mut Socket) -> Result<u32, NetlinkError> {
    let mut found = 0;
    let message = Message::new(GETGEN, 0, &header(0, 0));
    socket.query("query nf_tables", message, |_, body| {
        let number = NetlinkAttributes(body.get(4..).unwrap_or_default()).find(1);
        found = number.and_then(super::number).map_or(found, u32::from_be);
    })?;
    Ok(found)
}

/// Removes a table; a missing one is no error, and is not removed: a change of rules waits for a grace period of RCU.
pub(crate) fn delete(family: Family, name: &str) -> Result<(), NetlinkError> {
    let question = table_message(GETTABLE, 0, family, name);
    let found = netfilter(|socket| socket.query("look up nftables table", question, |_, _| {}));
    if found.is_err_and(|error| error.is_gone()) {
        return Ok(());
    }
    let batch = vec![
        begin(),
        table_message(NEWTABLE, CREATE, family, name),
        table_message(DELTABLE, 0, family, name),
        end(),
    ];
    netfilter(|socket| socket.batch("remove nftables table", batch))
}

/// Whether the kernel has nf_tables.
pub(crate) fn probe() -> Result<(), NetlinkError> {
    netfilter(generation).map(drop)
}

/// `struct nfgenmsg`.
fn header(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

fn begin() -> Message {
    Message::new(BATCH_BEGIN, 0, &header(0, SUBSYSTEM))
}

fn end() -> Message {
    Message::new(BATCH_END, 0, &header(0, SUBSYSTEM))
}

fn table_message(kind: u16, flags: u16, family: Family, name: &str) -> Message {
    Message::new(kind, flags, &header(family.number(), 0)).text(1, name)
}

/// Maps and chains, without the maps that the kernel has.
fn add_content(batch: &mut Vec<Message>, table: &Table, present: &[&str]) {
    for (id, map) in (1..).zip(&table.maps) {
        if !present.contains(&&*map.name) {
            add_map(batch, table, id, map);
        }
    }
    for chain in &table.chains {
        add_chain(batch, table, chain);
    }
}

fn add_map(batch: &mut Vec<Message>, table: &Table, id: u32, map: &Map) {
    let ((key, key_length), (data, data_length)) = (DataType::joined(&map.key), DataType::joined(&map.data));
    let is_map = if map.data.is_empty() { 0 } else { SET_IS_MAP };
    let is_dynamic = if map.is_dynamic { SET_IS_DYNAMIC } else { 0 };
    let mut set = set_message(NEWSET, CREATE, table, &map.name);
    set = set.big(3, is_map | is_dynamic).big(4, key).big(5, key_length);
    if !map.data.is_empty() {
        set = set.big(6, data).big(7, data_length);
    }
    if map.is_dynamic {
        set = set.nested(9, |description| description.big(1, MAX_DYNAMIC));
    }
    batch.push(set.big(10, id));
    for elements in map.elements.chunks(ELEMENTS_PER_MESSAGE) {
        batch.push(elements_message(NEWSETELEM, CREATE, table, &map.name, elements));
    }
}

fn set_message(kind: u16, flags: u16, table: &Table, name: &str) -> Message {
    Message::new(kind, flags, &header(table.family.number(), 0)).text(1, &table.name).text(2, name)
}

fn elements_message(
    kind: u16,
    flags: u16,
    table: &Table,
    name: &str,
    elements: &[(Vec<u8>, Vec<u8>)],
) -> Message {
    set_message(kind, flags, table, name).nested(3, |list| {
        elements.iter().fold(list, |list, (key, data)| {
            list.nested(1, |element| {
                let element = element.nested(1, |value| value.bytes(1, key));
                if data.is_empty() { element } else { element.nested(2, |value| value.bytes(1, data)) }
            })
        })
    })
}

fn add_chain(batch: &mut Vec<Message>, table: &Table, chain: &Chain) {
    let start =
        |kind, flags| Message::new(kind, flags, &header(table.family.number(), 0)).text(1, &table.name);
    let hook = match chain.hook {
        Hook::Prerouting => 0,
        Hook::Input => 1,
        Hook::Forward => 2,
        Hook::Output => 3,
        Hook::Postrouting => 4,
    };
    let kind = match chain.kind {
        ChainKind::Filter => "filter",
        ChainKind::Nat => "nat",
    };
    let message = start(NEWCHAIN, CREATE)
        .text(3, chain.name)
        .nested(4, |place| place.big(1, hook).big(2, chain.priority.cast_unsigned()));
    batch.push(message.text(7, kind));
    for rule in &chain.rules {
        let message = start(NEWRULE, CREATE | APPEND).text(2, chain.name);
        batch.push(message.nested(4, |list| rule.iter().fold(list, encode)));
    }
}

fn encode(list: Message, expression: &Expression) -> Message {
    let (name, data) = expression_data(expression);
    list.nested(1, |entry| entry.text(1, name).nested(2, data))
}

type Data = Box<dyn FnOnce(Message) -> Message>;

fn expression_data(expression: &Expression) -> (&'static str, Data) {
    /// `NFT_META_IIFNAME` and its neighbours.
    fn meta(key: u32, register: u32) -> (&'static str, Data) {
        ("meta", Box::new(move |data| data.big(1, register).big(2, key)))
    }
    fn payload(base: u32, offset: u32, length: u32, register: u32) -> (&'static str, Data) {
        ("payload", Box::new(move |data| data.big(1, register).big(2, base).big(3, offset).big(4, length)))
    }
    fn compare(operation: u32, value: &[u8]) -> (&'static str, Data) {
        let value = value.to_vec();
        let data =
            move |data: Message| data.big(1, REGISTER).big(2, operation).nested(3, |it| it.bytes(1, &value));
        ("cmp", Box::new(data))
    }
    match expression {
        Expression::InputInterface => meta(6, REGISTER),
        Expression::OutputInterface => meta(7, REGISTER),
        Expression::TransportProtocol(register) => meta(16, *register),
        Expression::NetworkHeader(offset, length, register) => payload(1, *offset, *length, *register),
        Expression::TransportHeader(offset, length, register) => payload(2, *offset, *length, *register),
        // NFT_FIB_RESULT_ADDRTYPE of NFTA_FIB_F_DADDR.
        Expression::DestinationKind => ("fib", Box::new(|data| data.big(1, REGISTER).big(2, 3).big(3, 2))),
        // NFT_CT_STATUS.
        Expression::ConnectionStatus => ("ct", Box::new(|data| data.big(1, REGISTER).big(2, 2))),
        Expression::Mask(mask) => {
            let mask = mask.clone();
            let length = u32::try_from(mask.len()).unwrap_or(u32::MAX);
            let data = move |data: Message| {
                data.big(1, REGISTER)
                    .big(2, REGISTER)
                    .big(3, length)
                    .nested(4, |it| it.bytes(1, &mask))
                    .nested(5, |it| it.bytes(1, &vec![0; mask.len()]))
            };
            ("bitwise", Box::new(data))
        }
        Expression::Equal(value) => compare(0, value),
        Expression::NotEqual(value) => compare(1, value),
        Expression::Random(below, register) => {
            let (below, register) = (*below, *register);
            ("numgen", Box::new(move |data| data.big(1, register).big(2, below).big(3, 1)))
        }
        Expression::Lookup(set, key, found) => {
            let (set, key, found) = (set.clone(), *key, *found);
            let lookup = move |data: Message| {
                let data = data.text(1, &set).big(2, key);
                found.into_iter().fold(data, |data, register| data.big(3, register))
            };
            ("lookup", Box::new(lookup))
        }
        Expression::Remember(map, key, value, seconds) => {
            let (map, key, value) = (map.clone(), *key, *value);
            let milliseconds = (u64::from(*seconds) * 1000).to_be_bytes();
            let update = move |data: Message| {
                data.text(1, &map).big(3, 1).big(4, key).big(5, value).bytes(6, &milliseconds)
            };
            ("dynset", Box::new(update))
        }
        Expression::DestinationNat(family, address, port) => {
            let (family, address, port) = (u32::from(family.number()), *address, *port);
            ("nat", Box::new(move |data| data.big(1, 1).big(2, family).big(3, address).big(5, port)))
        }
        // NFT_REJECT_TCP_RST.
        Expression::Reset => ("reject", Box::new(|data| data.big(1, 1))),
        // NFT_REJECT_ICMP_UNREACH and the code of an unreachable port.
        Expression::Reject(family) => {
            let code = if *family == Family::Ipv4 { 3 } else { 4 };
            ("reject", Box::new(move |data| data.big(1, 0).bytes(2, &[code])))
        }
        Expression::Masquerade => ("masq", Box::new(|data| data)),
        // The verdict register, NF_DROP.
        Expression::Drop => {
            ("immediate", Box::new(|data| data.big(1, 0).nested(2, |it| it.nested(2, |it| it.big(1, 0)))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::sys::netlink::namespace;

    #[test]
    fn the_same_rules_are_put_in_force_again_when_others_changed() {
        let count = || netfilter(generation).unwrap();
        let table = |name: &str| Table {
            family: Family::Ipv4,
            name: name.to_owned(),
            maps: Vec::new(),
            chains: vec![Chain {
                name: "guard",
                kind: ChainKind::Filter,
                hook: Hook::Prerouting,
                priority: 0,
                rules: vec![vec![Expression::Drop]],
            }],
        };
        let has = |name: &str| {
            let question = table_message(GETTABLE, 0, Family::Ipv4, name);
            netfilter(|socket| socket.query("look up", question, |_, _| {})).is_ok()
        };
        namespace::inside(&namespace::create().unwrap(), || {
            let applied = Applied::default();
            let first = count();
            delete(Family::Ipv4, "own").unwrap();
            assert_eq!(count(), first, "there is nothing to remove");
            for tables in [["own"], ["own"], ["more"], ["more"]] {
                replace(&tables.map(table), &applied).unwrap();
            }
            assert_eq!(count(), first + 2, "twice it was new");
            delete(Family::Ipv4, "more").unwrap();
            assert!(!has("more"));
            replace(&[table("more")], &applied).unwrap();
            assert!(has("own") && has("more"), "it is back");
            replace(&[table("own")], &Applied::default()).unwrap();
            assert_eq!(count(), first + 5, "another process does not know what is in force");
        })
        .unwrap();
    }
}
