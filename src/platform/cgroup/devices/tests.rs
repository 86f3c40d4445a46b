//! The program of version 2, run by an interpreter that follows the kernel's documentation of each
//! instruction.

use std::fs;
use std::process::Command;

use proptest::prelude::*;

use super::*;

fn rule(allow: bool, kind: DeviceKind, major: Option<u32>, minor: Option<u32>, access: &str) -> DeviceRule {
    let has = |letter| access.contains(letter);
    DeviceRule { allow, kind, major, minor, read: has('r'), write: has('w'), mknod: has('m') }
}

/// Runs it over a `bpf_cgroup_dev_ctx`. Panics on what the kernel's verifier would refuse.
fn verdict(program: &[u8], kind: i32, access: i32, major: u32, minor: u32) -> bool {
    let context = [u32::try_from(access << 16 | kind).unwrap(), major, minor];
    let mut registers: [Option<u64>; 6] = [None; 6];
    let mut at = 0;
    loop {
        let bytes = &program[at * 8..at * 8 + 8];
        let (destination, source) = (usize::from(bytes[1] & 15), usize::from(bytes[1] >> 4));
        let offset = i16::from_ne_bytes([bytes[2], bytes[3]]);
        let immediate = i32::from_ne_bytes(bytes[4..8].try_into().unwrap());
        at += 1;
        let read = |register: usize| registers[register].expect("read before it is written");
        let wide = i64::from(immediate).cast_unsigned();
        let narrow = u64::from(immediate.cast_unsigned());
        let jump = match bytes[0] {
            LOAD_WORD => {
                let word = usize::try_from(offset).unwrap();
                assert!(source == 1 && word % 4 == 0, "only the context may be read");
                registers[destination] = Some(u64::from(context[word / 4]));
                false
            }
            MOVE => {
                registers[destination] = Some(read(source) & 0xffff_ffff);
                false
            }
            MOVE_IMMEDIATE => {
                registers[destination] = Some(narrow);
                false
            }
            AND => {
                registers[destination] = Some(read(destination) & narrow);
                false
            }
            SHIFT_RIGHT => {
                registers[destination] = Some(read(destination) >> narrow);
                false
            }
            JUMP_EQUAL => read(destination) == wide,
            JUMP_NOT_EQUAL => read(destination) != wide,
            JUMP_NOT_EQUAL_REGISTER => read(destination) != read(source),
            EXIT => return read(0) == 1,
            other => panic!("instruction {other:#x}"),
        };
        if jump {
            at += usize::try_from(offset).expect("no loops");
        }
    }
}

/// The expected verdict, from the rules.
fn expected(rules: &[DeviceRule], kind: i32, access: i32, major: u32, minor: u32) -> bool {
    let matches = |rule: &&DeviceRule| {
        let of_kind = match rule.kind {
            DeviceKind::All => true,
            DeviceKind::Block => kind == BLOCK,
            DeviceKind::Char => kind == CHAR,
        };
        let enough = if rule.access() == 7 {
            true
        } else if rule.allow {
            access & !rule.access() == 0
        } else {
            access & rule.access() != 0
        };
        let is = |wanted: Option<u32>, number| wanted.is_none_or(|wanted| wanted == number);
        of_kind && enough && is(rule.major, major) && is(rule.minor, minor)
    };
    rules.iter().rev().find(matches).is_some_and(|rule| rule.allow)
}

/// Every instruction is reachable: the kernel refuses other programs.
fn is_reachable(program: &[u8]) -> bool {
    let count = program.len() / 8;
    let mut reached = vec![false; count];
    let mut open = vec![0];
    while let Some(at) = open.pop() {
        if std::mem::replace(&mut reached[at], true) {
            continue;
        }
        let code = program[at * 8];
        let offset = i16::from_ne_bytes([program[at * 8 + 2], program[at * 8 + 3]]);
        if is_jump(code) {
            open.push(at + 1 + usize::try_from(offset).unwrap());
        }
        if code != EXIT {
            open.push(at + 1);
        }
    }
    reached.iter().all(|reached| *reached)
}

fn rules() -> impl Strategy<Value = Vec<DeviceRule>> {
    let kind = prop_oneof![Just(DeviceKind::All), Just(DeviceKind::Block), Just(DeviceKind::Char)];
    let number = || proptest::option::of(0..4_u32);
    let one = (any::<bool>(), kind, number(), number(), "[rwm]{1,3}")
        .prop_map(|(allow, kind, major, minor, access)| rule(allow, kind, major, minor, &access));
    proptest::collection::vec(one, 0..8)
}

proptest! {
    #[test]
    fn the_program_says_what_the_rules_say(rules in rules(), kind in 1..3_i32, access in 1..8_i32, major in 0..4_u32, minor in 0..4_u32) {
        let program = program(&rules);
        prop_assert!(is_reachable(&program));
        prop_assert_eq!(verdict(&program, kind, access, major, minor), expected(&rules, kind, access, major, minor));
    }
}

#[test]
fn v1_has_the_rules_as_lines_and_everything_else_denied() {
    let directory = std::env::temp_dir().join(format!("edge-agent-devices-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    // Plain files in place of the kernel's: they hold the last write.
    for file in ["devices.allow", "devices.deny"] {
        fs::write(directory.join(file), "").unwrap();
    }
    let dirs = [directory.clone()];
    let null = rule(true, DeviceKind::Char, Some(1), Some(3), "rwm");
    allow(&dirs, false, &[rule(false, DeviceKind::All, None, None, "rwm"), null]).unwrap();
    assert_eq!(fs::read_to_string(directory.join("devices.deny")).unwrap(), "a");
    assert_eq!(fs::read_to_string(directory.join("devices.allow")).unwrap(), "c 1:3 rwm");
    allow(&dirs, false, &[null, rule(true, DeviceKind::All, None, None, "rwm")]).unwrap();
    assert_eq!(fs::read_to_string(directory.join("devices.allow")).unwrap(), "a");
    fs::remove_dir_all(&directory).unwrap();
    let skipped = allow(&[std::env::temp_dir()], false, &[null]).unwrap();
    assert_eq!(skipped.len(), 1, "no such hierarchy");
}

/// On a machine with version 2 (alone or beside version 1) and the privileges, the kernel loads the program
/// and obeys it.
#[test]
fn kernel_loads_device_program_and_denies_unlisted_devices() {
    let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    let Some(root) = roots.iter().find(|root| Path::new(root).join("cgroup.controllers").exists()) else {
        return;
    };
    let directory = Path::new(root).join(format!("edge-agent-devices-{}", std::process::id()));
    if fs::create_dir(&directory).is_err() {
        return;
    }
    let null = rule(true, DeviceKind::Char, Some(1), Some(3), "rw");
    let attached = attach(&directory, &[null]);
    let script =
        format!("echo $$ > {}/cgroup.procs && : < /dev/null && ! (: < /dev/zero)", directory.display());
    let outcome = Command::new("sh").args(["-c", &script]).output().unwrap();
    fs::remove_dir(&directory).unwrap();
    match attached {
        Ok(skipped) => assert!(skipped.is_empty() && outcome.status.success(), "{outcome:?}"),
        // Tolerated: a kernel without support, or missing privileges. Any other error means that the program
        // is wrong.
        Err(CgroupError::Devices { source, .. }) => {
            let text = source.to_string();
            assert!(text.contains("CAP_SYS_ADMIN") || text.contains("not implemented"), "{text}");
        }
        Err(other) => panic!("{other}"),
    }
}
