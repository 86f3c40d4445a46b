//! Which devices a container may use: a list of rules in version 1, an eBPF program in version 2.
//!
//! Owns the program.

use std::path::{Path, PathBuf};

use super::file::write_file;
use super::{CgroupError, Skipped};
use crate::platform::sys::bpf;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    /// Block and character devices.
    All,
    Block,
    Char,
}

/// One rule. Where several match, the last one applies; where none does, the device is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceRule {
    pub allow: bool,
    pub kind: DeviceKind,
    /// `None` for all.
    pub major: Option<u32>,
    /// `None` for all.
    pub minor: Option<u32>,
    pub read: bool,
    pub write: bool,
    pub mknod: bool,
}

impl DeviceRule {
    /// Bits of the kernel's `BPF_DEVCG_ACC_…`.
    fn access(self) -> i32 {
        i32::from(self.mknod) | i32::from(self.read) << 1 | i32::from(self.write) << 2
    }

    fn is_all(self) -> bool {
        self.kind == DeviceKind::All && self.major.is_none() && self.minor.is_none() && self.access() == 7
    }

    /// The line of `devices.allow` and `devices.deny`.
    fn line(self) -> String {
        let kind = match self.kind {
            DeviceKind::All => "a",
            DeviceKind::Block => "b",
            DeviceKind::Char => "c",
        };
        let number = |number: Option<u32>| number.map_or_else(|| "*".to_owned(), |number| number.to_string());
        let letters = [(self.read, 'r'), (self.write, 'w'), (self.mknod, 'm')];
        let access: String = letters.iter().filter(|(has, _)| *has).map(|(_, letter)| *letter).collect();
        format!("{kind} {}:{} {access}", number(self.major), number(self.minor))
    }
}

/// Applies the rules to a new cgroup.
pub(super) fn allow(dirs: &[PathBuf], v2: bool, rules: &[DeviceRule]) -> Result<Vec<Skipped>, CgroupError> {
    if v2 {
        let Some(directory) = dirs.first() else { return Ok(Vec::new()) };
        return attach(directory, rules);
    }
    if let Some(directory) = dirs.iter().find(|directory| directory.join("devices.allow").exists()) {
        return write_rules(directory, rules).map(|()| Vec::new());
    }
    // Beside version 1 there may be a tree of version 2, where programs work as well.
    if let Some(directory) = dirs.iter().find(|directory| directory.join("cgroup.events").exists()) {
        return attach(directory, rules);
    }
    Ok(vec![Skipped {
        what: "device rules".to_owned(),
        why: "no cgroup v1 hierarchy has the controller \"devices\", and no cgroup v2 hierarchy is mounted"
            .to_owned(),
    }])
}

fn write_rules(directory: &Path, rules: &[DeviceRule]) -> Result<(), CgroupError> {
    let write = |file: &str, value: String| {
        let path = directory.join(file);
        write_file(&path, &value).map_err(|source| CgroupError::Write { path, value, source })
    };
    // A rule for everything overrides those before it; the kernel refuses a useless one to a cgroup with
    // children.
    let last = rules.iter().rposition(|rule| rule.is_all());
    match last.map(|at| rules[at].allow) {
        Some(true) => write("devices.allow", "a".to_owned())?,
        _ => write("devices.deny", "a".to_owned())?,
    }
    for rule in &rules[last.map_or(0, |at| at + 1)..] {
        let kinds: &[DeviceKind] =
            if rule.kind == DeviceKind::All { &[DeviceKind::Block, DeviceKind::Char] } else { &[rule.kind] };
        for kind in kinds {
            // `a` with numbers would be parsed as `a` alone.
            let line = DeviceRule { kind: *kind, ..*rule }.line();
            write(if rule.allow { "devices.allow" } else { "devices.deny" }, line)?;
        }
    }
    Ok(())
}

fn attach(directory: &Path, rules: &[DeviceRule]) -> Result<Vec<Skipped>, CgroupError> {
    if rules.iter().rev().take_while(|rule| rule.allow).any(|rule| rule.is_all()) {
        return Ok(Vec::new());
    }
    bpf::attach_device_program(directory, &program(rules))
        .map_err(|source| CgroupError::Devices { path: directory.to_owned(), source })?;
    Ok(Vec::new())
}

/// One instruction of eBPF, in the kernel's format.
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    destination: u8,
    source: u8,
    offset: i16,
    immediate: i32,
}

const LOAD_WORD: u8 = 0x61;
const MOVE: u8 = 0xbc;
const MOVE_IMMEDIATE: u8 = 0xb4;
const AND: u8 = 0x54;
const SHIFT_RIGHT: u8 = 0x74;
const JUMP_EQUAL: u8 = 0x15;
const JUMP_NOT_EQUAL: u8 = 0x55;
const JUMP_NOT_EQUAL_REGISTER: u8 = 0x5d;
const EXIT: u8 = 0x95;

const BLOCK: i32 = 1;
const CHAR: i32 = 2;

const fn op(code: u8, destination: u8, source: u8, immediate: i32) -> Instruction {
    Instruction { code, destination, source, offset: 0, immediate }
}

/// The program: registers 2 to 5 hold kind, access, major and minor number of the request; the last rule is
/// checked first.
fn program(rules: &[DeviceRule]) -> Vec<u8> {
    let load = |register: u8, offset: i16| Instruction { offset, ..op(LOAD_WORD, register, 1, 0) };
    let mut all = vec![
        load(2, 0),
        op(MOVE, 3, 2, 0),
        op(AND, 2, 0, 0xffff),
        op(SHIFT_RIGHT, 3, 0, 16),
        load(4, 4),
        load(5, 8),
    ];
    let mut ends = false;
    for rule in rules.iter().rev() {
        let checks = checks(*rule);
        let length = checks.len();
        // Code after a rule for everything would be unreachable, and the kernel refuses such programs.
        ends = !checks.iter().any(|check| is_jump(check.code));
        for (at, mut check) in checks.into_iter().enumerate() {
            if is_jump(check.code) {
                // Jumps over the rest of the checks and the verdict's two instructions.
                check.offset = i16::try_from(length - at - 1 + 2).unwrap_or(i16::MAX);
            }
            all.push(check);
        }
        all.extend([op(MOVE_IMMEDIATE, 0, 0, i32::from(rule.allow)), op(EXIT, 0, 0, 0)]);
        if ends {
            break;
        }
    }
    if !ends {
        all.extend([op(MOVE_IMMEDIATE, 0, 0, 0), op(EXIT, 0, 0, 0)]);
    }
    all.iter().flat_map(|instruction| encode(*instruction)).collect()
}

fn is_jump(code: u8) -> bool {
    matches!(code, JUMP_EQUAL | JUMP_NOT_EQUAL | JUMP_NOT_EQUAL_REGISTER)
}

/// Instructions that jump when the rule does not match.
fn checks(rule: DeviceRule) -> Vec<Instruction> {
    let mut checks = Vec::new();
    match rule.kind {
        DeviceKind::All => {}
        DeviceKind::Block => checks.push(op(JUMP_NOT_EQUAL, 2, 0, BLOCK)),
        DeviceKind::Char => checks.push(op(JUMP_NOT_EQUAL, 2, 0, CHAR)),
    }
    if rule.access() != 7 {
        checks.extend([op(MOVE, 1, 3, 0), op(AND, 1, 0, rule.access())]);
        checks.push(if rule.allow {
            // All requested kinds of access must be allowed,
            op(JUMP_NOT_EQUAL_REGISTER, 1, 3, 0)
        } else {
            // but one denied part suffices to deny.
            op(JUMP_EQUAL, 1, 0, 0)
        });
    }
    for (register, number) in [(4, rule.major), (5, rule.minor)] {
        if let Some(number) = number {
            checks.push(op(JUMP_NOT_EQUAL, register, 0, number.cast_signed()));
        }
    }
    checks
}

fn encode(instruction: Instruction) -> [u8; 8] {
    // `dst_reg:4, src_reg:4` is a bit field: its order is that of the bytes.
    let registers = if cfg!(target_endian = "little") {
        instruction.source << 4 | instruction.destination
    } else {
        instruction.destination << 4 | instruction.source
    };
    let [low, high] = instruction.offset.to_ne_bytes();
    let [a, b, c, d] = instruction.immediate.to_ne_bytes();
    [instruction.code, registers, low, high, a, b, c, d]
}

#[cfg(test)]
mod tests;
