//! DNS messages: queries of clients, answers of other servers, and answers to write (RFC 1035, 6891).
//!
//! Owns the wire format. What is read comes from anywhere: nothing in it is trusted, and names are followed for a
//! bounded number of steps.
//!
//! Pure: what it returns depends on its arguments alone.

use std::net::IpAddr;

const HEADER: usize = 12;
/// A name on the wire.
const MAX_NAME: usize = 255;
/// A name that needs more pointers is refused.
const MAX_POINTERS: usize = 32;
/// Records of an answer that are read.
const MAX_RECORDS: usize = 512;
/// The largest answer to a client without EDNS.
const PLAIN_SIZE: usize = 512;
/// The largest answer over UDP: it fits into a packet of every network.
pub(crate) const MAX_UDP_SIZE: u16 = 1232;

pub(crate) const A: u16 = 1;
pub(crate) const CNAME: u16 = 5;
const SOA: u16 = 6;
pub(crate) const PTR: u16 = 12;
pub(crate) const TXT: u16 = 16;
pub(crate) const AAAA: u16 = 28;
pub(crate) const SRV: u16 = 33;
const OPT: u16 = 41;
const INTERNET: u16 = 1;

const IS_ANSWER: u16 = 0x8000;
const OPCODE: u16 = 0x7800;
const AUTHORITATIVE: u16 = 0x0400;
const TRUNCATED: u16 = 0x0200;
const RECURSION_DESIRED: u16 = 0x0100;
const RECURSION_AVAILABLE: u16 = 0x0080;
const RCODE: u16 = 0x000f;
/// The question's name, at its place.
const POINTER_TO_QUESTION: [u8; 2] = [0xc0, 12];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rcode {
    NoError = 0,
    FormatError = 1,
    ServerFailure = 2,
    NameError = 3,
    NotImplemented = 4,
}

/// A query with one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    pub(crate) id: u16,
    flags: u16,
    /// Lower case, without the last dot. Bytes that host names do not have are shown as `?`, which no name here has.
    pub(crate) name: String,
    pub(crate) kind: u16,
    class: u16,
    /// As the client wrote it: name, type, class.
    question: Vec<u8>,
    /// The largest answer over UDP that the client takes, with EDNS.
    edns: Option<u16>,
}

/// Reads a query.
///
/// # Errors
/// The answer, or nothing when there is none to give.
pub fn read_query(bytes: &[u8]) -> Result<Query, Option<Vec<u8>>> {
    let (Some(id), Some(flags)) = (short(bytes, 0), short(bytes, 2)) else { return Err(None) };
    if flags & IS_ANSWER != 0 || bytes.len() < HEADER {
        return Err(None);
    }
    let refused = |rcode: Rcode| {
        Some(header(id, flags & (OPCODE | RECURSION_DESIRED) | IS_ANSWER | rcode as u16, [0; 4]))
    };
    if flags & OPCODE != 0 {
        return Err(refused(Rcode::NotImplemented));
    }
    let parse = || {
        let counts = [4, 6, 8, 10].map(|at| short(bytes, at).unwrap_or_default());
        let (name, end) = read_name(bytes, HEADER)?;
        let (kind, class) = (short(bytes, end)?, short(bytes, end + 2)?);
        let question = bytes.get(HEADER..end + 4)?.to_vec();
        // A question refers to nothing before it.
        let is_plain = question.len() == wire_length(&name) + 4;
        let mut edns = None;
        let mut at = end + 4;
        for _ in 0..usize::from(counts[3]).min(MAX_RECORDS) {
            let record = read_record(bytes, at)?;
            if record.kind == OPT {
                edns = Some(record.class);
            }
            at = record.end;
        }
        let is_query = counts[0] == 1 && counts[1] == 0 && counts[2] == 0 && is_plain;
        is_query.then_some(Query { id, flags, name, kind, class, question, edns })
    };
    parse().ok_or_else(|| refused(Rcode::FormatError))
}

impl Query {
    /// A question of the agent's own.
    #[must_use]
    pub(crate) fn new(id: u16, name: &str, kind: u16) -> Self {
        let mut question = write_name(name);
        question.extend(kind.to_be_bytes());
        question.extend(INTERNET.to_be_bytes());
        Self {
            id,
            flags: RECURSION_DESIRED,
            name: name.to_ascii_lowercase(),
            kind,
            class: INTERNET,
            question,
            edns: Some(MAX_UDP_SIZE),
        }
    }

    /// The same question with another id.
    #[must_use]
    pub(crate) fn with_id(&self, id: u16) -> Self {
        Self { id, ..self.clone() }
    }

    #[must_use]
    pub(crate) fn is_internet(&self) -> bool {
        self.class == INTERNET
    }

    /// The bytes that a server gets. It has to find the answer, whatever the client asked for: it is kept for all.
    #[must_use]
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = header(self.id, RECURSION_DESIRED, [1, 0, 0, u16::from(self.edns.is_some())]);
        bytes.extend(&self.question);
        if self.edns.is_some() {
            bytes.extend(opt_record());
        }
        bytes
    }

    /// The bytes that an answer over UDP may have.
    #[must_use]
    pub(crate) fn most_bytes(&self) -> usize {
        self.edns.map_or(PLAIN_SIZE, |size| usize::from(size.min(MAX_UDP_SIZE)).max(PLAIN_SIZE))
    }

    /// An answer of at most so many bytes; of one that does not fit only that it was cut.
    #[must_use]
    pub(crate) fn answer(&self, answer: &Answer, most: usize) -> Vec<u8> {
        let whole = self.written(answer, false);
        if whole.len() <= most {
            whole
        } else {
            self.written(&Answer { records: Vec::new(), ..answer.clone() }, true)
        }
    }

    fn written(&self, answer: &Answer, is_cut: bool) -> Vec<u8> {
        let mut flags =
            IS_ANSWER | RECURSION_AVAILABLE | self.flags & RECURSION_DESIRED | answer.rcode as u16;
        if answer.is_authoritative {
            flags |= AUTHORITATIVE;
        }
        if is_cut {
            flags |= TRUNCATED;
        }
        let count = |length: usize| u16::try_from(length).unwrap_or(u16::MAX);
        let soa = answer.zone.iter().filter(|_| answer.records.is_empty() && !is_cut);
        let (authorities, additional) = (count(soa.clone().count()), u16::from(self.edns.is_some()));
        let mut bytes = header(self.id, flags, [1, count(answer.records.len()), authorities, additional]);
        bytes.extend(&self.question);
        for record in &answer.records {
            let owner = if record.name == self.name {
                POINTER_TO_QUESTION.to_vec()
            } else {
                write_name(&record.name)
            };
            write_record(&mut bytes, &owner, record.kind(), record.ttl, &record.data.to_bytes());
        }
        for (zone, ttl) in soa {
            let names =
                [write_name(&format!("ns.dns.{zone}")), write_name(&format!("hostmaster.{zone}"))].concat();
            let numbers: Vec<u8> =
                [1, 7200, 1800, 86_400, *ttl].iter().flat_map(|it: &u32| it.to_be_bytes()).collect();
            write_record(&mut bytes, &write_name(zone), SOA, *ttl, &[names, numbers].concat());
        }
        if self.edns.is_some() {
            bytes.extend(opt_record());
        }
        bytes
    }

    /// Whether bytes are an answer to this question.
    #[must_use]
    pub(crate) fn is_answered_by(&self, bytes: &[u8]) -> bool {
        let question = bytes.get(HEADER..HEADER + self.question.len());
        short(bytes, 0) == Some(self.id)
            && short(bytes, 2).is_some_and(|flags| flags & IS_ANSWER != 0)
            && short(bytes, 4) == Some(1)
            && question.is_some_and(|question| folded(question) == folded(&self.question))
    }

    /// Another server's answer as that to this query, after so many seconds.
    #[must_use]
    pub(crate) fn pass_on(&self, bytes: &[u8], ttls: &[usize], seconds: u32) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        bytes[0..2].copy_from_slice(&self.id.to_be_bytes());
        let [mask, _] = RECURSION_DESIRED.to_be_bytes();
        let [desired, _] = (self.flags & RECURSION_DESIRED).to_be_bytes();
        if let Some(flags) = bytes.get_mut(2) {
            *flags = *flags & !mask | desired;
        }
        if let Some(question) = bytes.get_mut(HEADER..HEADER + self.question.len()) {
            question.copy_from_slice(&self.question);
        }
        for at in ttls {
            if let Some(ttl) = bytes.get_mut(*at..at + 4) {
                let left = number(ttl).saturating_sub(seconds).max(1);
                ttl.copy_from_slice(&left.to_be_bytes());
            }
        }
        bytes
    }

    /// What of a query decides on the answer. Not the readable name: others may read the same.
    #[must_use]
    pub(crate) fn key(&self) -> (Vec<u8>, bool) {
        (folded(&self.question), self.edns.is_some())
    }
}

/// A question with its name in lower case; type and class are numbers.
fn folded(question: &[u8]) -> Vec<u8> {
    let (name, numbers) = question.split_at(question.len().saturating_sub(4));
    [&name.to_ascii_lowercase()[..], numbers].concat()
}

/// An answer that is cut, without its records.
#[must_use]
pub(crate) fn cut(bytes: &[u8], query: &Query) -> Vec<u8> {
    let rcode = short(bytes, 2).unwrap_or_default() & RCODE;
    let flags = IS_ANSWER | RECURSION_AVAILABLE | TRUNCATED | query.flags & RECURSION_DESIRED | rcode;
    let mut cut = header(query.id, flags, [1, 0, 0, 0]);
    cut.extend(&query.question);
    cut
}

/// What there is to say about a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub rcode: Rcode,
    pub is_authoritative: bool,
    pub records: Vec<Record>,
    /// The zone, and for how many seconds it may be remembered that it has no such record.
    pub zone: Option<(String, u32)>,
}

impl Answer {
    #[must_use]
    pub(crate) fn failure(rcode: Rcode) -> Self {
        Self { rcode, is_authoritative: false, records: Vec::new(), zone: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub name: String,
    pub ttl: u32,
    pub data: RecordData,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordData {
    Address(IpAddr),
    Alias(String),
    Pointer(String),
    /// Port and host.
    Service(u16, String),
    Text(&'static str),
}

impl Record {
    fn kind(&self) -> u16 {
        match &self.data {
            RecordData::Address(IpAddr::V4(_)) => A,
            RecordData::Address(IpAddr::V6(_)) => AAAA,
            RecordData::Alias(_) => CNAME,
            RecordData::Pointer(_) => PTR,
            RecordData::Service(..) => SRV,
            RecordData::Text(_) => TXT,
        }
    }
}

impl RecordData {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Address(IpAddr::V4(ip)) => ip.octets().to_vec(),
            Self::Address(IpAddr::V6(ip)) => ip.octets().to_vec(),
            Self::Alias(name) | Self::Pointer(name) => write_name(name),
            // Priority and weight are the same for all.
            Self::Service(port, host) => {
                let [high, low] = port.to_be_bytes();
                [&[0, 0, 0, 100, high, low][..], &write_name(host)].concat()
            }
            Self::Text(text) => [&[u8::try_from(text.len()).unwrap_or(0)][..], text.as_bytes()].concat(),
        }
    }
}

/// What the agent needs to know of another server's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub(crate) rcode: u16,
    pub(crate) is_cut: bool,
    /// The shortest time to live, of an answer that says that there is nothing the zone's.
    pub(crate) ttl: Option<u32>,
    /// Where times to live are.
    pub(crate) ttls: Vec<usize>,
    /// Aliases and addresses of the answer.
    pub(crate) records: Vec<Record>,
}

/// Reads another server's answer; `None` when it is malformed.
#[must_use]
pub fn read_answer(bytes: &[u8]) -> Option<Found> {
    let flags = short(bytes, 2)?;
    let counts = [4, 6, 8, 10].map(|at| short(bytes, at).map_or(0, usize::from));
    let mut at = HEADER;
    for _ in 0..counts[0].min(MAX_RECORDS) {
        at = read_name(bytes, at)?.1 + 4;
    }
    let mut found = Found { rcode: flags & RCODE, is_cut: flags & TRUNCATED != 0, ..Found::default() };
    let total = counts[1] + counts[2] + counts[3];
    for position in 0..total.min(MAX_RECORDS) {
        let record = read_record(bytes, at)?;
        at = record.end;
        if record.kind == OPT {
            continue;
        }
        found.ttls.push(record.ttl_at);
        let ttl = match record.kind {
            // The last number of a SOA is how long a negative answer may be kept.
            SOA => record.ttl.min(number(bytes.get(record.end.checked_sub(4)?..record.end)?)),
            _ => record.ttl,
        };
        found.ttl = Some(found.ttl.map_or(ttl, |known| known.min(ttl)));
        if position < counts[1] {
            found.records.extend(record.known(bytes));
        }
    }
    Some(found)
}

/// A record at its place.
struct RawRecord {
    name: String,
    kind: u16,
    class: u16,
    ttl: u32,
    ttl_at: usize,
    start: usize,
    end: usize,
}

impl RawRecord {
    fn known(&self, bytes: &[u8]) -> Option<Record> {
        let data = bytes.get(self.start..self.end)?;
        let data = match self.kind {
            A => RecordData::Address(IpAddr::from(<[u8; 4]>::try_from(data).ok()?)),
            AAAA => RecordData::Address(IpAddr::from(<[u8; 16]>::try_from(data).ok()?)),
            CNAME => RecordData::Alias(read_name(bytes, self.start)?.0),
            PTR => RecordData::Pointer(read_name(bytes, self.start)?.0),
            _ => return None,
        };
        Some(Record { name: self.name.clone(), ttl: self.ttl, data })
    }
}

fn read_record(bytes: &[u8], at: usize) -> Option<RawRecord> {
    let (name, at) = read_name(bytes, at)?;
    let (kind, class) = (short(bytes, at)?, short(bytes, at + 2)?);
    let ttl = number(bytes.get(at + 4..at + 8)?);
    let start = at + 10;
    let end = start + usize::from(short(bytes, at + 8)?);
    (end <= bytes.len()).then_some(RawRecord { name, kind, class, ttl, ttl_at: at + 4, start, end })
}

/// The name at a place, in lower case, and where what follows it begins.
fn read_name(bytes: &[u8], start: usize) -> Option<(String, usize)> {
    let mut name = String::new();
    let (mut at, mut end, mut pointers) = (start, None, 0);
    loop {
        let length = *bytes.get(at)?;
        match length {
            0 => return Some((name, end.unwrap_or(at + 1))),
            1..=63 => {
                let label = bytes.get(at + 1..at + 1 + usize::from(length))?;
                if !name.is_empty() {
                    name.push('.');
                }
                name.extend(label.iter().map(|byte| match byte.to_ascii_lowercase() {
                    byte @ (b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'*') => char::from(byte),
                    _ => '?',
                }));
                if name.len() + 2 > MAX_NAME {
                    return None;
                }
                at += 1 + usize::from(length);
            }
            192.. => {
                pointers += 1;
                let to = usize::from(short(bytes, at)? & 0x3fff);
                // Always back, so that there is an end.
                if pointers > MAX_POINTERS || to >= at {
                    return None;
                }
                end = end.or(Some(at + 2));
                at = to;
            }
            _ => return None,
        }
    }
}

fn wire_length(name: &str) -> usize {
    if name.is_empty() { 1 } else { name.len() + 2 }
}

/// Labels that are too long are cut; names of objects never are.
fn write_name(name: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.len() + 2);
    for label in name.split('.').filter(|label| !label.is_empty()) {
        let label = &label.as_bytes()[..label.len().min(63)];
        bytes.push(u8::try_from(label.len()).unwrap_or(63));
        bytes.extend(label);
    }
    bytes.truncate(MAX_NAME - 1);
    bytes.push(0);
    bytes
}

fn write_record(bytes: &mut Vec<u8>, owner: &[u8], kind: u16, ttl: u32, data: &[u8]) {
    bytes.extend(owner);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(INTERNET.to_be_bytes());
    bytes.extend(ttl.to_be_bytes());
    bytes.extend(u16::try_from(data.len()).unwrap_or(0).to_be_bytes());
    bytes.extend(data);
}

fn opt_record() -> Vec<u8> {
    let mut record = vec![0];
    for part in [OPT, MAX_UDP_SIZE, 0, 0, 0] {
        record.extend(part.to_be_bytes());
    }
    record
}

fn header(id: u16, flags: u16, counts: [u16; 4]) -> Vec<u8> {
    [id, flags].into_iter().chain(counts).flat_map(u16::to_be_bytes).collect()
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests;
