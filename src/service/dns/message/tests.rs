use proptest::prelude::*;

use super::*;

fn query(name: &str, kind: u16, edns: bool) -> Vec<u8> {
    let mut bytes = Query::new(0x1234, name, kind).to_bytes();
    if !edns {
        bytes[11] = 0;
        bytes.truncate(bytes.len() - 11);
    }
    bytes
}

fn address(name: &str, last: u8) -> Record {
    Record { name: name.to_owned(), ttl: 5, data: RecordData::Address(IpAddr::from([10, 96, 1, last])) }
}

fn answer(records: Vec<Record>) -> Answer {
    Answer {
        rcode: Rcode::NoError,
        is_authoritative: true,
        records,
        zone: Some(("cluster.local".to_owned(), 5)),
    }
}

#[test]
fn a_query_is_read_and_answered_in_the_clients_letters() {
    let bytes = query("Web.Shop.svc.cluster.LOCAL", A, true);
    let read = read_query(&bytes).unwrap();
    assert_eq!((read.id, read.name.as_str(), read.kind), (0x1234, "web.shop.svc.cluster.local", A));
    assert_eq!(read.most_bytes(), 1232);
    let reply = read.answer(&answer(vec![address("web.shop.svc.cluster.local", 7)]), 512);
    assert!(read.is_answered_by(&reply));
    assert_eq!(reply[HEADER..HEADER + 4], *b"\x03Web");
    assert_eq!(
        u16::from_be_bytes([reply[2], reply[3]]),
        0x8580,
        "an authoritative answer, recursion available"
    );
    let found = read_answer(&reply).unwrap();
    assert_eq!(found.records, [address("web.shop.svc.cluster.local", 7)]);
    assert_eq!((found.rcode, found.ttl), (0, Some(5)));
}

#[test]
fn an_empty_answer_names_the_zone() {
    let read = read_query(&query("web.shop.svc.cluster.local", AAAA, false)).unwrap();
    assert_eq!(read.most_bytes(), 512);
    let reply = read.answer(&answer(Vec::new()), 512);
    assert_eq!(reply[4..12], [0, 1, 0, 0, 0, 1, 0, 0], "one authority, no additional record");
    let found = read_answer(&reply).unwrap();
    assert_eq!((found.records.len(), found.ttl), (0, Some(5)));
}

#[test]
fn what_does_not_fit_is_cut_and_all_types_are_written() {
    let read = read_query(&query("db.shop.svc.cluster.local", A, false)).unwrap();
    let many: Vec<Record> = (0..40).map(|last| address("db.shop.svc.cluster.local", last)).collect();
    let cut_short = read.answer(&answer(many.clone()), 512);
    assert!(cut_short.len() < 100 && read_answer(&cut_short).unwrap().is_cut);
    assert_eq!(read_answer(&read.answer(&answer(many), 65_535)).unwrap().records.len(), 40);
    let record = |data| Record { name: "other.name".to_owned(), ttl: 30, data };
    let all = vec![
        record(RecordData::Alias("db.example.com".to_owned())),
        record(RecordData::Pointer("a.b".to_owned())),
        record(RecordData::Service(53, "a.b".to_owned())),
        record(RecordData::Text("1.1.0")),
        record(RecordData::Address("fd00::7".parse().unwrap())),
    ];
    let reply = read.answer(&answer(all), 512);
    let found = read_answer(&reply).unwrap();
    assert_eq!(found.records.len(), 3, "an alias, a pointer and an address");
    assert_eq!(found.records[0].data, RecordData::Alias("db.example.com".to_owned()));
    assert_eq!(found.ttls.len(), 5);
    assert!(reply.windows(10).any(|bytes| bytes == [0, 0, 0, 100, 0, 53, 1, b'a', 1, b'b']), "SRV");
    assert!(reply.windows(6).any(|bytes| bytes == *b"\x051.1.0"), "TXT");
}

#[test]
fn what_is_no_query_gets_a_refusal_or_nothing() {
    let good = query("a.b", A, true);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        read_query(&bytes).map(|query| query.name).map_err(|refusal| refusal.map(|bytes| bytes[3] & 15))
    };
    assert_eq!(with(0, 9), Ok("a.b".to_owned()));
    assert_eq!(with(2, 0x81), Err(None), "an answer");
    assert_eq!(with(2, 0x29), Err(Some(4)), "an update");
    assert_eq!(with(5, 2), Err(Some(1)), "two questions");
    assert_eq!(with(5, 0), Err(Some(1)), "none");
    assert_eq!(with(7, 1), Err(Some(1)), "with an answer");
    assert_eq!(with(12, 0xc0), Err(Some(1)), "a pointer");
    assert_eq!(with(12, 0x41), Err(Some(1)), "an unknown kind of label");
    assert_eq!(read_query(&good[..11]), Err(None));
    assert_eq!(read_query(&good[..20]).unwrap_err().map(|bytes| bytes[3] & 15), Some(1));
    assert_eq!(with(13, b'.').unwrap(), "?.b", "a dot within a label is none");
    assert_eq!(read_query(&query("", A, true)).unwrap().name, "");
    let long = vec!["abcdefgh"; 31].join(".");
    assert!(read_query(&query(&long, A, true)).is_err() || long.len() < 254);
}

#[test]
fn names_with_loops_and_lies_end() {
    let mut bytes = query("a", A, false);
    let record = bytes.len();
    bytes[2] = 0x80;
    bytes[7] = 1;
    // A name that points at itself, forward, and past the end.
    for pointer in [record, record + 2, 0x3fff] {
        let pointer = u16::try_from(pointer).unwrap() | 0xc000;
        let mut bytes = bytes.clone();
        bytes.extend(pointer.to_be_bytes());
        bytes.extend([0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 1, 2, 3, 4]);
        assert_eq!(read_answer(&bytes), None);
    }
    bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0xff, 0xff, 1, 2, 3, 4]);
    assert_eq!(read_answer(&bytes), None, "longer than the message");
}

#[test]
fn an_answer_is_passed_on_with_the_clients_id_and_age() {
    let client = read_query(&query("Example.COM", A, true)).unwrap();
    let asked = client.with_id(7);
    let reply = asked.answer(&answer(vec![address("example.com", 1)]), 512);
    let found = read_answer(&reply).unwrap();
    let passed = client.pass_on(&reply, &found.ttls, 3);
    assert!(client.is_answered_by(&passed) && !asked.is_answered_by(&passed));
    assert_eq!(read_answer(&passed).unwrap().ttl, Some(2));
    assert_eq!(read_answer(&client.pass_on(&reply, &found.ttls, 300)).unwrap().ttl, Some(1));
    let cut = cut(&reply, &client);
    assert!(client.is_answered_by(&cut) && read_answer(&cut).unwrap().is_cut);
}

#[test]
fn servers_are_asked_for_recursion_whatever_the_client_wants() {
    let mut bytes = query("example.com", A, true);
    bytes[2] = 0;
    let client = read_query(&bytes).unwrap();
    assert_eq!(client.to_bytes()[2], 1);
    let asked = Query::new(7, "example.com", A);
    let reply = asked.answer(&answer(vec![address("example.com", 1)]), 512);
    assert_eq!((reply[2] & 1, client.pass_on(&reply, &[], 0)[2] & 1), (1, 0), "the client's own bit");
    assert_eq!(asked.pass_on(&reply, &[], 0)[2] & 1, 1);
}

#[test]
fn other_answers_are_not_taken() {
    let asked = Query::new(7, "example.com", A);
    let good = asked.answer(&answer(Vec::new()), 512);
    assert!(asked.is_answered_by(&good));
    for other in
        [Query::new(8, "example.com", A), Query::new(7, "example.org", A), Query::new(7, "example.com", AAAA)]
    {
        assert!(!other.is_answered_by(&good));
    }
    assert!(!asked.is_answered_by(&asked.to_bytes()), "a question");
    assert!(!asked.is_answered_by(&good[..14]));
}

proptest! {
    #[test]
    fn nothing_that_arrives_breaks_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(query) = read_query(&bytes) {
            let reply = query.answer(&answer(vec![address(&query.name, 1)]), query.most_bytes());
            prop_assert!(query.is_answered_by(&reply));
            prop_assert!(reply.len() <= query.most_bytes());
        }
        if let Some(found) = read_answer(&bytes) {
            let query = Query::new(1, "a.b", A);
            let passed = query.pass_on(&bytes, &found.ttls, 9);
            prop_assert_eq!(passed.len(), bytes.len());
        }
    }

    #[test]
    fn names_are_read_as_they_are_written(labels in proptest::collection::vec("[a-z0-9_-]{1,20}", 0..8)) {
        let name = labels.join(".");
        let read = read_query(&query(&name, SRV, true)).unwrap();
        prop_assert_eq!(read.name, name);
    }
}
