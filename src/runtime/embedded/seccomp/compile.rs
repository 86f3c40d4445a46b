//! From rules to instructions: for each ABI a binary search over the call numbers, whose leaves are the
//! conditions.

use std::collections::BTreeMap;

use super::table::{Abi, Table, X32_BIT};
use super::{Action, Arch, Condition, Operator, Profile, Rule, SeccompError};
use crate::platform::sys::seccomp::{AND, JUMP, JUMP_EQUAL, JUMP_GREATER, JUMP_GREATER_EQUAL, LOAD, RETURN};

/// `BPF_MAXINSNS`.
const MAX: usize = 4096;

/// Offsets in `seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

/// `sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u16,
    yes: u8,
    no: u8,
    k: u32,
}

const fn op(code: u16, k: u32) -> Instruction {
    Instruction { code, yes: 0, no: 0, k }
}

/// The result for a call by an ABI that the filter does not cover.
const FOREIGN: u32 = 0x8000_0000;

fn verdict(action: Action) -> u32 {
    match action {
        Action::KillProcess => 0x8000_0000,
        Action::KillThread => 0,
        Action::Trap => 0x0003_0000,
        Action::Errno(number) => 0x0005_0000 | u32::from(number),
        Action::Trace(number) => 0x7ff0_0000 | u32::from(number),
        Action::Log => 0x7ffc_0000,
        Action::Allow => 0x7fff_0000,
    }
}

/// The compiled form of a call's rules: conditions checked in order, and the verdict when none holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Leaf {
    guarded: Vec<(Vec<Condition>, u32)>,
    otherwise: Option<u32>,
}

/// The program: an array of `sock_filter` as the kernel takes it.
pub(crate) fn compile(profile: &Profile, arch: Arch) -> Result<Vec<u8>, SeccompError> {
    let table = Table::new();
    let wanted = |abi: Abi| profile.architectures.iter().any(|name| name == abi.name());
    let own = arch.abis().next();
    let covered: Vec<Abi> = arch.abis().filter(|abi| Some(*abi) == own || wanted(*abi)).collect();
    let mut program = vec![op(LOAD, ARCH)];
    for abi in covered.iter().filter(|abi| **abi != Abi::X32) {
        let mut leaves = leaves(profile, *abi, &table);
        if *abi == Abi::X86_64 {
            if covered.contains(&Abi::X32) {
                leaves.extend(self::leaves(profile, Abi::X32, &table));
            } else {
                // All its numbers, except the one that a tracer writes to skip a call.
                let foreign = Leaf { otherwise: Some(FOREIGN), ..Leaf::default() };
                leaves.insert(X32_BIT, foreign);
            }
        }
        let body = search(&segments(profile, *abi, &covered, leaves), abi.is_wide());
        // Jumps on a condition reach 255 instructions; bodies are longer.
        program.push(Instruction { code: JUMP_EQUAL, yes: 1, no: 0, k: abi.audit() });
        program.push(op(JUMP, length(body.len() + 1)));
        program.push(op(LOAD, NUMBER));
        program.extend(body);
    }
    program.push(op(RETURN, FOREIGN));
    if program.len() > MAX {
        return Err(SeccompError::TooLong(program.len()));
    }
    Ok(program.into_iter().flat_map(encode).collect())
}

fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// The rules by call number. The rules of one call keep their order; those after a rule without conditions
/// have no effect.
fn leaves(profile: &Profile, abi: Abi, table: &Table) -> BTreeMap<u32, Leaf> {
    let mut all: BTreeMap<u32, Leaf> = BTreeMap::new();
    for rule in &profile.rules {
        for number in rule.names.iter().filter_map(|name| table.number(name, abi)) {
            let leaf = all.entry(number).or_default();
            if leaf.otherwise.is_some() {
                continue;
            }
            for conditions in alternatives(rule) {
                if conditions.is_empty() {
                    leaf.otherwise = Some(verdict(rule.action));
                } else {
                    leaf.guarded.push((conditions, verdict(rule.action)));
                }
            }
        }
    }
    all
}

/// Conditions are alternatives as soon as one argument has several, as in runc.
fn alternatives(rule: &Rule) -> Vec<Vec<Condition>> {
    let mut seen = [false; 6];
    let is_again = |condition: &Condition| {
        seen.get_mut(usize::from(condition.index)).is_some_and(|seen| std::mem::replace(seen, true))
    };
    if rule.args.iter().any(is_again) {
        return rule.args.iter().map(|condition| vec![*condition]).collect();
    }
    vec![rule.args.clone()]
}

/// Ranges of neighbouring numbers with the same leaf, each as its first number; the first range begins at 0.
fn segments(profile: &Profile, abi: Abi, covered: &[Abi], leaves: BTreeMap<u32, Leaf>) -> Vec<(u32, Leaf)> {
    let default = Leaf { otherwise: Some(verdict(profile.default_action)), ..Leaf::default() };
    let closed = abi == Abi::X86_64 && !covered.contains(&Abi::X32);
    let mut all: Vec<(u32, Leaf)> = vec![(0, default.clone())];
    let mut put = |start: u32, mut leaf: Leaf| {
        leaf.otherwise = leaf.otherwise.or(default.otherwise);
        // Removes trailing conditions whose verdict equals the default one.
        while leaf.guarded.last().is_some_and(|(_, verdict)| Some(*verdict) == leaf.otherwise) {
            leaf.guarded.pop();
        }
        match all.last_mut() {
            Some((at, last)) if *at == start => *last = leaf,
            Some((_, last)) if *last == leaf => {}
            _ => all.push((start, leaf)),
        }
    };
    let mut next = 0;
    for (number, leaf) in leaves {
        if number > next {
            put(next, default.clone());
        }
        put(number, leaf);
        next = number.saturating_add(1);
        if closed && number == X32_BIT {
            next = u32::MAX;
        }
    }
    put(next, default.clone());
    // Two ranges with the same leaf may be neighbours where one began at 0.
    all.dedup_by(|later, earlier| later.1 == earlier.1);
    all
}

/// A balanced tree of comparisons with the starts of the ranges.
fn search(segments: &[(u32, Leaf)], wide: bool) -> Vec<Instruction> {
    let Some((middle, _)) = segments.get(segments.len() / 2).filter(|_| segments.len() > 1) else {
        return segments.first().map(|(_, leaf)| leaf_code(leaf, wide)).unwrap_or_default();
    };
    let (left, right) = segments.split_at(segments.len() / 2);
    let (below, above) = (search(left, wide), search(right, wide));
    let mut code = match u8::try_from(below.len()) {
        Ok(far) => vec![Instruction { code: JUMP_GREATER_EQUAL, yes: far, no: 0, k: *middle }],
        Err(_) => vec![
            Instruction { code: JUMP_GREATER_EQUAL, yes: 0, no: 1, k: *middle },
            op(JUMP, length(below.len())),
        ],
    };
    code.extend(below);
    code.extend(above);
    code
}

fn leaf_code(leaf: &Leaf, wide: bool) -> Vec<Instruction> {
    let mut code = Vec::new();
    for (conditions, verdict) in &leaf.guarded {
        let mut block: Vec<(Instruction, JumpTarget, JumpTarget)> = Vec::new();
        for condition in conditions {
            let mut steps = condition_code(condition, wide);
            // Jumps within a condition go to its end at most, whatever follows.
            let end = block.len() + steps.len();
            for (_, yes, no) in &mut steps {
                for target in [yes, no] {
                    if *target == JumpTarget::Holds {
                        *target = JumpTarget::At(end);
                    }
                }
            }
            block.extend(steps);
        }
        block.push((op(RETURN, *verdict), JumpTarget::Next, JumpTarget::Next));
        let end = block.len();
        for (at, (instruction, yes, no)) in block.into_iter().enumerate() {
            let reach = |target: JumpTarget| {
                let to = match target {
                    JumpTarget::Next | JumpTarget::Holds => at + 1,
                    JumpTarget::At(to) => to,
                    JumpTarget::Fails => end,
                };
                // Six conditions of at most seven instructions: always within reach.
                u8::try_from(to - at - 1).unwrap_or(u8::MAX)
            };
            code.push(Instruction { yes: reach(yes), no: reach(no), ..instruction });
        }
    }
    code.push(op(RETURN, leaf.otherwise.unwrap_or(FOREIGN)));
    code
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JumpTarget {
    Next,
    /// The condition holds: jump after it.
    Holds,
    /// It does not hold: jump after its rule.
    Fails,
    At(usize),
}

/// One comparison of 64 bits in steps of 32, the upper half first.
fn condition_code(condition: &Condition, wide: bool) -> Vec<(Instruction, JumpTarget, JumpTarget)> {
    use JumpTarget::{Fails, Holds, Next};
    let Condition { index, value, value_two, operator } = *condition;
    let half = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap_or_default();
    let halves = |value: u64| (half(value >> 32), half(value));
    let ((high, low), (high_two, low_two)) = (halves(value), halves(value_two & value));
    let at = ARGUMENTS + 8 * u32::from(index);
    let (low_at, high_at) = if cfg!(target_endian = "little") { (at, at + 4) } else { (at + 4, at) };
    let step = |code, k, yes, no| (op(code, k), yes, no);
    let load = |offset| step(LOAD, offset, Next, Next);
    let mut code = Vec::new();
    if wide {
        code.push(load(high_at));
        match operator {
            Operator::Equal => code.push(step(JUMP_EQUAL, high, Next, Fails)),
            Operator::NotEqual => code.push(step(JUMP_EQUAL, high, Next, Holds)),
            Operator::Greater | Operator::GreaterEqual => {
                code.push(step(JUMP_GREATER, high, Holds, Next));
                code.push(step(JUMP_EQUAL, high, Next, Fails));
            }
            Operator::Less | Operator::LessEqual => {
                code.push(step(JUMP_GREATER, high, Fails, Next));
                code.push(step(JUMP_EQUAL, high, Next, Holds));
            }
            Operator::MaskedEqual => {
                code.push(step(AND, high, Next, Next));
                code.push(step(JUMP_EQUAL, high_two, Next, Fails));
            }
        }
    }
    code.push(load(low_at));
    if operator == Operator::MaskedEqual {
        code.push(step(AND, low, Next, Next));
    }
    code.push(match operator {
        Operator::Equal => step(JUMP_EQUAL, low, Holds, Fails),
        Operator::NotEqual => step(JUMP_EQUAL, low, Fails, Holds),
        Operator::Greater => step(JUMP_GREATER, low, Holds, Fails),
        Operator::GreaterEqual => step(JUMP_GREATER_EQUAL, low, Holds, Fails),
        Operator::Less => step(JUMP_GREATER_EQUAL, low, Fails, Holds),
        Operator::LessEqual => step(JUMP_GREATER, low, Fails, Holds),
        Operator::MaskedEqual => step(JUMP_EQUAL, low_two, Holds, Fails),
    });
    code
}

fn encode(instruction: Instruction) -> [u8; 8] {
    let Instruction { code, yes, no, k } = instruction;
    let mut bytes = [0; 8];
    bytes[..2].copy_from_slice(&code.to_ne_bytes());
    bytes[2..4].copy_from_slice(&[yes, no]);
    bytes[4..].copy_from_slice(&k.to_ne_bytes());
    bytes
}
