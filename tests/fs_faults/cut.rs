//! What a disk may hold after a power cut: of everything that was done up to a moment, what was synced, and of the rest
//! whatever a die chooses.
//!
//! Names and content are lost apart from each other: a file may be renamed into place and be empty, torn at a page or full of
//! zeros. A sync that failed has lost what it was to write: the kernel takes the pages for clean and never tries again.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, mknod};

use super::Die;
use super::log::Record;

/// What is written at once or not at all.
const PAGE: usize = 4096;
const KIND: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMBOLIC_LINK: u32 = 0o120_000;

/// In which order names become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// As journals do it: in the order in which they were made, and syncing one takes along all before it.
    InOrder,
    /// As the standard has it: each directory by itself, when it is synced.
    ByDirectory,
}

/// A file or directory on the disk.
#[derive(Clone, Debug, Default)]
struct Node {
    mode: u32,
    target: Vec<u8>,
    content: Vec<u8>,
    /// Written since the last sync, oldest first.
    pending: Vec<Change>,
    names: BTreeMap<Vec<u8>, u64>,
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Cut(usize),
}

/// The disk.
pub struct Remains {
    nodes: BTreeMap<u64, Node>,
    root: u64,
}

impl Remains {
    /// Everything that was done, cut by nothing.
    pub fn of_all(records: &[Record], root: u64) -> Self {
        let mut remains = Self::new(root);
        for (record, renamed) in records.iter().zip(renamed(records, root)) {
            remains.change_name(record, renamed);
            remains.change_content(record, None);
        }
        for node in remains.nodes.values_mut() {
            node.settle();
        }
        remains
    }

    /// What may be left of `records` when the power goes after the last of them.
    pub fn of_cut(records: &[Record], root: u64, names: Names, die: &mut Die) -> Self {
        let mut remains = Self::new(root);
        let keeps = kept_names(records, names, die);
        for ((record, renamed), keeps) in records.iter().zip(renamed(records, root)).zip(keeps) {
            if keeps {
                remains.change_name(record, renamed);
            } else if let Record::Create { node, mode, target, .. } = record {
                remains.nodes.insert(*node, Node::new(*mode, target));
            }
            remains.change_content(record, Some(die));
        }
        for node in remains.nodes.values_mut() {
            node.lose(die);
        }
        remains
    }

    fn new(root: u64) -> Self {
        Self { nodes: BTreeMap::from([(root, Node::new(DIRECTORY | 0o755, &[]))]), root }
    }

    fn names(&mut self, directory: u64) -> &mut BTreeMap<Vec<u8>, u64> {
        &mut self.nodes.entry(directory).or_insert_with(|| Node::new(DIRECTORY | 0o755, &[])).names
    }

    /// A rename is one step: what it moves is at its new name also when the old one never became durable.
    fn change_name(&mut self, record: &Record, renamed: Option<u64>) {
        match record {
            Record::Create { parent, name, node, mode, target } => {
                self.nodes.insert(*node, Node::new(*mode, target));
                self.names(*parent).insert(name.clone(), *node);
            }
            Record::Link { parent, name, node } => {
                self.names(*parent).insert(name.clone(), *node);
            }
            Record::Rename { from, name, to, new } => {
                if let Some(node) = renamed {
                    self.names(*from).remove(name);
                    self.names(*to).insert(new.clone(), node);
                }
            }
            Record::Unlink { parent, name } => {
                self.names(*parent).remove(name);
            }
            Record::Mode { node, mode } => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.mode = node.mode & KIND | mode;
                }
            }
            _ => {}
        }
    }

    /// Without a die nothing is lost.
    fn change_content(&mut self, record: &Record, die: Option<&mut Die>) {
        match record {
            Record::Write { node, offset, bytes } => {
                let change = Change::Write(*offset, bytes.clone());
                self.nodes.entry(*node).or_default().pending.push(change);
            }
            Record::Cut { node, length } => {
                self.nodes.entry(*node).or_default().pending.push(Change::Cut(*length));
            }
            Record::Sync { node, failed } => {
                let Some(node) = self.nodes.get_mut(node) else { return };
                match die {
                    Some(die) if *failed => node.lose(die),
                    _ => node.settle(),
                }
            }
            Record::SyncAll { failed } => match die {
                Some(die) if *failed => self.nodes.values_mut().for_each(|node| node.lose(die)),
                _ => self.nodes.values_mut().for_each(Node::settle),
            },
            _ => {}
        }
    }

    /// Makes it below a directory that is empty.
    pub fn write_to(&self, directory: &Path) {
        let mut written = BTreeMap::new();
        self.write_directory(self.root, directory, &mut written);
    }

    fn write_directory(&self, node: u64, at: &Path, written: &mut BTreeMap<u64, std::path::PathBuf>) {
        for (name, number) in &self.nodes[&node].names {
            let path = at.join(std::ffi::OsStr::from_bytes(name));
            let Some(node) = self.nodes.get(number) else { continue };
            if let Some(first) = written.get(number) {
                fs::hard_link(first, &path).expect("make a second name");
                continue;
            }
            match node.mode & KIND {
                DIRECTORY => {
                    fs::create_dir(&path).expect("make a directory");
                    self.write_directory(*number, &path, written);
                }
                SYMBOLIC_LINK => {
                    let target = std::ffi::OsStr::from_bytes(&node.target);
                    std::os::unix::fs::symlink(target, &path).expect("make a link");
                    continue;
                }
                REGULAR => {
                    let file = fs::File::create(&path).expect("make a file");
                    file.write_all_at(&node.content, 0).expect("fill a file");
                }
                kind => {
                    let kind = SFlag::from_bits_truncate(kind);
                    mknod(&path, kind, Mode::empty(), 0).expect("make a device");
                }
            }
            let mode = Permissions::from_mode(node.mode & 0o7777);
            fs::set_permissions(&path, mode).expect("set the mode");
            if node.mode & KIND != DIRECTORY {
                written.insert(*number, path);
            }
        }
    }
}

impl Node {
    fn new(mode: u32, target: &[u8]) -> Self {
        Self { mode, target: target.to_vec(), ..Self::default() }
    }

    /// All that was written is on the disk.
    fn settle(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            self.apply(change);
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Cut(length) => self.content.resize(length, 0),
            Change::Write(offset, bytes) => {
                let end = offset + bytes.len();
                if self.content.len() < end {
                    self.content.resize(end, 0);
                }
                self.content[offset..end].copy_from_slice(&bytes);
            }
        }
    }

    /// Some of what was written is on the disk: all, nothing, or each page by itself.
    fn lose(&mut self, die: &mut Die) {
        let pending = std::mem::take(&mut self.pending);
        match die.below(4) {
            0 => {}
            1 => pending.into_iter().for_each(|change| self.apply(change)),
            _ => pending.into_iter().for_each(|change| self.lose_some(change, die)),
        }
    }

    fn lose_some(&mut self, change: Change, die: &mut Die) {
        let Change::Write(offset, bytes) = change else {
            if die.below(2) == 0 {
                self.apply(change);
            }
            return;
        };
        let end = offset + bytes.len();
        let mut at = offset;
        while at < end {
            let next = ((at / PAGE + 1) * PAGE).min(end);
            match die.below(4) {
                0 => {}
                // The length is there, the content is not.
                1 => self.content.resize(self.content.len().max(next), 0),
                _ => self.apply(Change::Write(at, bytes[at - offset..next - offset].to_vec())),
            }
            at = next;
        }
    }
}

/// What each rename moves.
fn renamed(records: &[Record], root: u64) -> Vec<Option<u64>> {
    let mut all = Remains::new(root);
    let moves = records.iter().map(|record| {
        let moved = match record {
            Record::Rename { from, name, .. } => all.names(*from).get(name).copied(),
            _ => None,
        };
        all.change_name(record, moved);
        moved
    });
    moves.collect()
}

/// The directories whose names a record changes.
fn directories(record: &Record) -> [Option<u64>; 2] {
    match record {
        Record::Create { parent, .. } | Record::Link { parent, .. } | Record::Unlink { parent, .. } => {
            [Some(*parent), None]
        }
        Record::Rename { from, to, .. } => [Some(*from), Some(*to)],
        _ => [None, None],
    }
}

/// Which changes of names the disk has.
fn kept_names(records: &[Record], names: Names, die: &mut Die) -> Vec<bool> {
    // Of each directory, how many records have to be kept, and how many are.
    let mut synced: BTreeMap<u64, usize> = BTreeMap::new();
    let mut in_order = 0;
    for (at, record) in records.iter().enumerate() {
        match record {
            Record::SyncAll { failed: false } => {
                in_order = at;
                for kept in synced.values_mut() {
                    *kept = at;
                }
            }
            Record::Sync { node, failed: false } => {
                synced.insert(*node, at);
                // A journal takes along what concerns the inode: a directory's names, a file's birth.
                let concerns = |record: &Record| {
                    directories(record).contains(&Some(*node))
                        || matches!(record, Record::Create { node: born, .. } if born == node)
                };
                let last = records[in_order..at].iter().rposition(concerns);
                in_order = last.map_or(in_order, |last| in_order + last + 1);
            }
            record => {
                for directory in directories(record).into_iter().flatten() {
                    synced.entry(directory).or_insert(0);
                }
            }
        }
    }
    match names {
        Names::InOrder => {
            let kept = chosen(in_order, records.len(), die);
            (0..records.len()).map(|at| at < kept).collect()
        }
        Names::ByDirectory => {
            let kept: BTreeMap<u64, usize> = synced
                .into_iter()
                .map(|(directory, least)| (directory, chosen(least, records.len(), die)))
                .collect();
            let keeps = |at: usize, record: &Record| match directories(record) {
                [None, None] => true,
                both => both.into_iter().flatten().any(|directory| at < kept[&directory]),
            };
            records.iter().enumerate().map(|(at, record)| keeps(at, record)).collect()
        }
    }
}

/// The least, the most, or something in between.
fn chosen(least: usize, most: usize, die: &mut Die) -> usize {
    match die.below(3) {
        0 => least,
        1 => most,
        _ => die.between(least, most),
    }
}
