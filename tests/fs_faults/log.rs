//! What was done to the disk, read from the shim's log.
//!
//! Owns the log's layout. Must not know what a power cut is.

/// One change, in the order in which they were made. Files and directories are inode numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A new file, directory, link or device, with its kind and mode, and the target of a symbolic link.
    Create { parent: u64, name: Vec<u8>, node: u64, mode: u32, target: Vec<u8> },
    /// A second name.
    Link { parent: u64, name: Vec<u8>, node: u64 },
    /// Another name.
    Rename { from: u64, name: Vec<u8>, to: u64, new: Vec<u8> },
    /// A name is gone.
    Unlink { parent: u64, name: Vec<u8> },
    /// Content.
    Write { node: u64, offset: usize, bytes: Vec<u8> },
    /// Another length.
    Cut { node: u64, length: usize },
    /// A file or directory was synced, or failed to be.
    Sync { node: u64, failed: bool },
    /// The whole file system was.
    SyncAll { failed: bool },
    /// Another mode.
    Mode { node: u64, mode: u32 },
    /// The test has seen something.
    Mark(String),
}

/// The shim's `struct record`.
const HEADER: usize = 40;
const MARK: u32 = 100;

/// A record of a moment, as the log has it.
pub fn mark(text: &str) -> Vec<u8> {
    let mut bytes = MARK.to_ne_bytes().to_vec();
    bytes.resize(32, 0);
    bytes.extend(u32::try_from(text.len()).expect("marks are short").to_ne_bytes());
    bytes.resize(HEADER, 0);
    bytes.extend(text.as_bytes());
    bytes
}

/// All of it; panics when it is not whole.
pub fn read(mut bytes: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let (header, rest) = bytes.split_at_checked(HEADER).expect("the log ends with a whole record");
        let small =
            |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("four bytes were taken"));
        let large =
            |at: usize| u64::from_ne_bytes(header[at..at + 8].try_into().expect("eight bytes were taken"));
        let size = |value: u64| usize::try_from(value).expect("files of tests are small");
        let (first, rest) = rest.split_at_checked(small(32) as usize).expect("the record is whole");
        let (second, rest) = rest.split_at_checked(small(36) as usize).expect("the record is whole");
        bytes = rest;
        let (a, b, c, failed) = (large(8), large(16), large(24), small(4) != 0);
        let mode = || u32::try_from(c).expect("modes are small");
        let (name, other) = (first.to_vec(), second.to_vec());
        records.push(match small(0) {
            1 => Record::Create { parent: a, name, node: b, mode: mode(), target: other },
            2 => Record::Link { parent: a, name, node: b },
            3 => {
                assert_eq!(c & !1, 0, "only plain renames are understood");
                Record::Rename { from: a, name, to: b, new: other }
            }
            4 => Record::Unlink { parent: a, name },
            5 => Record::Write { node: a, offset: size(b), bytes: other },
            6 => Record::Cut { node: a, length: size(b) },
            7 => Record::Sync { node: a, failed },
            8 => Record::SyncAll { failed },
            9 => Record::Mode { node: a, mode: mode() },
            MARK => Record::Mark(String::from_utf8(name).expect("marks are text")),
            other => panic!("record of kind {other}"),
        });
    }
    records
}
