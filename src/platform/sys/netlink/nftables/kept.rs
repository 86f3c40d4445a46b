//! A table whose dynamic maps outlive its replacement: what their elements remember stays true.
//!
//! Owns what of a table is removed and what stays.

use super::{
    CREATE, Family, Message, NEWSET, NEWSETELEM, NEWTABLE, NetlinkError, SUBSYSTEM, Table, add_content,
    begin, elements_message, end, header, netfilter, set_message, table_message,
};
use crate::platform::sys::netlink::{DUMP, NetlinkAttributes, text};

const DELRULE: u16 = SUBSYSTEM << 8 | 8;
const GETSET: u16 = SUBSYSTEM << 8 | 0x0a;
const DELSET: u16 = SUBSYSTEM << 8 | 0x0b;
const GETSETELEM: u16 = SUBSYSTEM << 8 | 0x0d;
const DELSETELEM: u16 = SUBSYSTEM << 8 | 0x0e;

/// Key and data of an element.
pub(crate) type Element = (Vec<u8>, Vec<u8>);

/// The names of the sets and maps of a table; none when there is no such table.
pub(crate) fn set_names(family: Family, name: &str) -> Result<Vec<String>, NetlinkError> {
    let message = Message::new(GETSET, DUMP, &header(family.number(), 0)).text(1, name);
    let mut names = Vec::new();
    let each = |kind, body: &[u8]| {
        let attributes = NetlinkAttributes(body.get(4..).unwrap_or_default());
        let of_table = attributes.find(1).map(text).is_some_and(|table| table == name);
        names.extend(attributes.find(2).map(text).filter(|_| kind == NEWSET && of_table));
    };
    let answer = netfilter(|socket| socket.query("list nftables sets", message, each));
    match answer {
        Err(error) if !error.is_gone() => Err(error),
        _ => Ok(names),
    }
}

/// Replaces the content of tables atomically, as [`super::replace`] does; `present` has the sets of each. A dynamic map
/// that a table has and keeps stays with its elements.
///
/// # Errors
/// The kernel's answer; nothing has changed then.
pub(crate) fn replace(tables: &[(Table, Vec<String>)]) -> Result<(), NetlinkError> {
    let mut batch = vec![begin()];
    for (table, present) in tables {
        let is_kept = |name: &&str| table.maps.iter().any(|map| map.is_dynamic && map.name == **name);
        let (kept, gone): (Vec<&str>, Vec<&str>) = present.iter().map(String::as_str).partition(is_kept);
        batch.push(table_message(NEWTABLE, CREATE, table.family, &table.name));
        // All rules of all chains.
        batch.push(table_message(DELRULE, 0, table.family, &table.name));
        batch.extend(gone.into_iter().map(|name| set_message(DELSET, 0, table, name)));
        add_content(&mut batch, table, &kept);
    }
    batch.push(end());
    netfilter(|socket| socket.batch("replace nftables table", batch))
}

/// The elements of a map.
pub(crate) fn elements(table: &Table, map: &str) -> Result<Vec<Element>, NetlinkError> {
    let message = set_message(GETSETELEM, DUMP, table, map);
    let mut found = Vec::new();
    let each = |kind, body: &[u8]| {
        if kind == NEWSETELEM {
            found.extend(parse(body));
        }
    };
    netfilter(|socket| socket.query("list nftables elements", message, each))?;
    Ok(found)
}

/// Removes elements from a map; some may have ended meanwhile.
pub(crate) fn remove(table: &Table, map: &str, gone: Vec<Element>) -> Result<(), NetlinkError> {
    for (key, _) in gone {
        // One at a time: the kernel refuses a list when one of its elements is missing.
        let element = elements_message(DELSETELEM, 0, table, map, &[(key, Vec::new())]);
        let batch = vec![begin(), element, end()];
        match netfilter(|socket| socket.batch("remove an nftables element", batch)) {
            Err(error) if !error.is_gone() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn parse(body: &[u8]) -> Vec<Element> {
    let list = NetlinkAttributes(body.get(4..).unwrap_or_default());
    let elements = NetlinkAttributes(list.find(3).unwrap_or_default());
    let value = |element: &NetlinkAttributes<'_>, kind| {
        NetlinkAttributes(element.find(kind).unwrap_or_default()).find(1).unwrap_or_default().to_vec()
    };
    let read = |(_, element)| {
        let element = NetlinkAttributes(element);
        (value(&element, 1), value(&element, 2))
    };
    elements.map(read).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Chain, ChainKind, DataType, Expression, Hook, Map};
    use super::*;
    use crate::platform::sys::netlink::namespace;

    fn table(port: u16, memory: &str) -> Table {
        let key = vec![DataType::Protocol, DataType::Port];
        let element = |port: u16| [&[6, 0, 0, 0][..], &port.to_be_bytes(), &[0; 2]].concat();
        let data = vec![DataType::Number];
        let fixed = Map {
            name: "ports".into(),
            key: key.clone(),
            data: data.clone(),
            elements: vec![(element(port), vec![7, 0, 0, 0])],
            ..Map::default()
        };
        let set = Map {
            name: "set".into(),
            key: key.clone(),
            elements: vec![(element(port), Vec::new())],
            ..Map::default()
        };
        let dynamic = Map { name: memory.to_owned().into(), key, data, is_dynamic: true, ..Map::default() };
        let rule = vec![
            Expression::TransportProtocol(8),
            Expression::TransportHeader(2, 2, 9),
            Expression::Lookup("set".into(), 8, None),
            Expression::Lookup("ports".into(), 8, Some(10)),
            Expression::Remember(dynamic.name.clone(), 8, 10, 60),
            Expression::Reject(Family::Ipv4),
        ];
        let chain = Chain {
            name: "out",
            kind: ChainKind::Filter,
            hook: Hook::Output,
            priority: 0,
            rules: vec![rule],
        };
        Table {
            family: Family::Ipv4,
            name: "t".to_owned(),
            maps: vec![fixed, set, dynamic],
            chains: vec![chain],
        }
    }

    #[test]
    fn what_rules_remember_outlives_their_replacement() {
        let file = namespace::create().unwrap();
        namespace::inside(&file, || {
            let mut network = crate::platform::sys::netlink::route::Network::open().unwrap();
            let loopback = network.link("lo").unwrap().unwrap();
            network.set_up(loopback.index).unwrap();
            let connect = |port: u16| {
                std::net::TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|error| error.kind())
            };
            assert_eq!(set_names(Family::Ipv4, "t").unwrap(), [] as [&str; 0]);
            replace(&[(table(81, "memory"), Vec::new())]).unwrap();
            assert_eq!(connect(81), Err(std::io::ErrorKind::ConnectionRefused), "by the rule");
            let known = elements(&table(81, "memory"), "memory").unwrap();
            assert_eq!(known, [(vec![6, 0, 0, 0, 0, 81, 0, 0], vec![7, 0, 0, 0])]);
            let mut names = set_names(Family::Ipv4, "t").unwrap();
            names.sort();
            assert_eq!(names, ["memory", "ports", "set"]);
            replace(&[(table(82, "memory"), names.clone())]).unwrap();
            assert_eq!(elements(&table(82, "memory"), "memory").unwrap(), known);
            assert_eq!(elements(&table(82, "memory"), "set").unwrap().len(), 1);
            remove(&table(82, "memory"), "memory", [&known[..], &known[..]].concat()).unwrap();
            assert_eq!(elements(&table(82, "memory"), "memory").unwrap(), []);
            replace(&[(table(82, "other"), names)]).unwrap();
            let mut names = set_names(Family::Ipv4, "t").unwrap();
            names.sort();
            assert_eq!(names, ["other", "ports", "set"]);
            super::super::delete(Family::Ipv4, "t").unwrap();
            assert_eq!(set_names(Family::Ipv4, "t").unwrap(), [] as [&str; 0]);
        })
        .unwrap();
    }

    proptest! {
        #[test]
        fn nothing_the_kernel_could_send_breaks_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
