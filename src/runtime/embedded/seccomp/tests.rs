//! Compiled filters, run by an interpreter and by the kernel, compared with a naive evaluation of the
//! profile.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::table::{Table, X32_BIT};
use super::*;
use crate::platform::sys::seccomp::testing::in_filtered_child;

/// `seccomp_data`, as the kernel has it.
#[derive(Clone, Copy, Debug)]
struct Call {
    number: u32,
    audit: u32,
    args: [u64; 6],
}

/// Runs a filter; panics on what the kernel would refuse to load.
fn run(filter: &[u8], call: &Call) -> u32 {
    let mut data = Vec::new();
    data.extend(call.number.to_ne_bytes());
    data.extend(call.audit.to_ne_bytes());
    data.extend([0; 8]);
    call.args.iter().for_each(|arg| data.extend(arg.to_ne_bytes()));
    let (mut at, mut a) = (0_usize, 0_u32);
    loop {
        let bytes = &filter[at * 8..at * 8 + 8];
        let code = u16::from_ne_bytes([bytes[0], bytes[1]]);
        let (yes, no) = (usize::from(bytes[2]), usize::from(bytes[3]));
        let k = u32::from_ne_bytes(bytes[4..8].try_into().unwrap());
        at += 1;
        let mut jump = |holds: bool| at += if holds { yes } else { no };
        match code {
            0x20 => {
                assert!(k % 4 == 0 && k < 64, "load from {k}");
                let from = usize::try_from(k).unwrap();
                a = u32::from_ne_bytes(data[from..from + 4].try_into().unwrap());
            }
            0x54 => a &= k,
            0x05 => at += usize::try_from(k).unwrap(),
            0x15 => jump(a == k),
            0x25 => jump(a > k),
            0x35 => jump(a >= k),
            0x06 => return k,
            other => panic!("instruction {other:#x}"),
        }
    }
}

fn code(action: Action) -> u32 {
    match action {
        Action::KillProcess => 0x8000_0000,
        Action::KillThread => 0,
        Action::Trap => 0x3_0000,
        Action::Errno(number) => 0x5_0000 + u32::from(number),
        Action::Trace(number) => 0x7ff0_0000 + u32::from(number),
        Action::Log => 0x7ffc_0000,
        Action::Allow => 0x7fff_0000,
    }
}

fn holds(condition: &Condition, args: &[u64; 6], wide: bool) -> bool {
    let cut = |number: u64| if wide { number } else { number & 0xffff_ffff };
    let (arg, value, two) =
        (cut(args[usize::from(condition.index)]), cut(condition.value), cut(condition.value_two));
    match condition.operator {
        Operator::Equal => arg == value,
        Operator::NotEqual => arg != value,
        Operator::Less => arg < value,
        Operator::LessEqual => arg <= value,
        Operator::GreaterEqual => arg >= value,
        Operator::Greater => arg > value,
        Operator::MaskedEqual => arg & value == two & value,
    }
}

/// Numbers of every rule's calls.
fn numbers(profile: &Profile, abi: Abi, table: &Table) -> Vec<BTreeSet<u32>> {
    let of = |rule: &Rule| rule.names.iter().filter_map(|name| table.number(name, abi)).collect();
    profile.rules.iter().map(of).collect()
}

/// The naive evaluation: the first rule that names the call and whose conditions hold.
fn expected(profile: &Profile, named: &[BTreeSet<u32>], abi: Abi, call: &Call) -> u32 {
    for (rule, numbers) in profile.rules.iter().zip(named) {
        let is_named = numbers.contains(&call.number);
        let indexes: BTreeSet<u8> = rule.args.iter().map(|condition| condition.index).collect();
        let hold = |condition: &Condition| holds(condition, &call.args, abi.is_wide());
        let matches = if indexes.len() < rule.args.len() {
            rule.args.iter().any(hold)
        } else {
            rule.args.iter().all(hold)
        };
        if is_named && matches {
            return code(rule.action);
        }
    }
    code(profile.default_action)
}

const ARCHES: [Arch; 3] = [Arch::X86_64, Arch::Aarch64, Arch::Arm];

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        Just(Action::Allow),
        Just(Action::Log),
        Just(Action::KillProcess),
        Just(Action::KillThread),
        Just(Action::Trap),
        (0..4096_u16).prop_map(Action::Errno),
        (0..4096_u16).prop_map(Action::Trace),
    ]
}

fn operator() -> impl Strategy<Value = Operator> {
    prop_oneof![
        Just(Operator::Equal),
        Just(Operator::NotEqual),
        Just(Operator::Less),
        Just(Operator::LessEqual),
        Just(Operator::Greater),
        Just(Operator::GreaterEqual),
        Just(Operator::MaskedEqual),
    ]
}

/// Few values, close to each other and to the boundary between the halves, so that comparisons collide.
fn value() -> impl Strategy<Value = u64> {
    prop_oneof![0..4_u64, Just(0xffff_ffff_u64), 0x1_0000_0000..0x1_0000_0003_u64, any::<u64>()]
}

fn rule() -> impl Strategy<Value = Rule> {
    let names = [
        "read",
        "write",
        "open",
        "socket",
        "clone",
        "clone3",
        "personality",
        "ioctl",
        "futex",
        "mseal",
        "nosuch",
    ];
    let condition = (0..3_u8, value(), value(), operator())
        .prop_map(|(index, value, value_two, operator)| Condition { index, value, value_two, operator });
    (
        proptest::sample::subsequence(names.to_vec(), 1..5),
        action(),
        proptest::collection::vec(condition, 0..3),
    )
        .prop_map(|(names, action, args)| Rule {
            names: names.into_iter().map(str::to_owned).collect(),
            action,
            args,
        })
}

fn profile() -> impl Strategy<Value = Profile> {
    (action(), any::<bool>(), proptest::collection::vec(rule(), 0..8)).prop_map(
        |(default_action, all, rules)| {
            let architectures =
                ["X86_64", "X86", "X32", "ARM", "AARCH64"].map(|name| format!("SCMP_ARCH_{name}"));
            let architectures = if all { architectures.to_vec() } else { Vec::new() };
            Profile { default_action, architectures, flags: Vec::new(), rules }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn a_filter_says_what_its_profile_says(profile in profile(), args in [value(), value(), value()], other in 0..500_u32) {
        let table = Table::new();
        for arch in ARCHES {
            let filter = compile(&profile, arch).unwrap();
            for (at, abi) in arch.abis().enumerate() {
                let by_rule = numbers(&profile, abi, &table);
                let is_covered = at == 0 || !profile.architectures.is_empty();
                let names = profile.rules.iter().flat_map(|rule| &rule.names);
                let named = names.filter_map(|name| table.number(name, abi));
                let bit = if abi == Abi::X32 { X32_BIT } else { 0 };
                for number in named.chain([other | bit, bit, bit | 0x3fff_fffe]) {
                    let [a, b, c] = args.map(|arg| if abi.is_wide() { arg } else { arg & 0xffff_ffff });
                    let call = Call { number, audit: abi.audit(), args: [a, b, c, 0, 0, 0] };
                    let wanted = if is_covered { expected(&profile, &by_rule, abi, &call) } else { 0x8000_0000 };
                    prop_assert_eq!(run(&filter, &call), wanted, "{:?} {:?}", abi, call);
                }
            }
        }
    }

    #[test]
    fn a_profile_in_the_specifications_form_is_read_back(profile in profile()) {
        let subject = Subject { capabilities: &[], kernel: (6, 1), arch: Arch::X86_64 };
        prop_assert_eq!(parse_profile("x", &to_oci(&profile), &subject), Ok(profile));
    }
}

#[test]
fn default_seccomp_filter_matches_its_profile_exhaustively() {
    let table = Table::new();
    let admin = ["CAP_SYS_ADMIN".to_owned(), "CAP_SYSLOG".to_owned()];
    for arch in ARCHES {
        for capabilities in [&[][..], &admin] {
            let profile = default_profile(capabilities, arch);
            let started = std::time::Instant::now();
            let filter = compile(&profile, arch).unwrap();
            println!("{arch:?}: {} instructions in {:?}", filter.len() / 8, started.elapsed());
            assert!(filter.len() / 8 < 1500, "{}", filter.len() / 8);
            let own = numbers(&profile, Abi::X86_64, &table);
            for abi in arch.abis() {
                let by_rule = numbers(&profile, abi, &table);
                for number in table.numbers(abi).into_iter().chain(0..600) {
                    for first in [0, 8, 40, 0x1000_0000, 0xffff_ffff] {
                        let call = Call { number, audit: abi.audit(), args: [first, 0, 0, 0, 0, 0] };
                        // An x32 number without its bit is a call of x86_64.
                        let named = if abi == Abi::X32 && number & X32_BIT == 0 { &own } else { &by_rule };
                        let wanted = expected(&profile, named, abi, &call);
                        assert_eq!(run(&filter, &call), wanted, "{abi:?} {call:?}");
                    }
                }
            }
            let foreign = Call { number: 1, audit: 0x8000_0015, args: [0; 6] };
            assert_eq!(run(&filter, &foreign), 0x8000_0000);
        }
    }
}

#[test]
fn what_the_default_profile_lets_through() {
    let table = Table::new();
    let verdict = |capabilities: &[&str], arch: Arch, name: &str, first: u64| {
        let capabilities: Vec<String> = capabilities.iter().map(|&name| name.to_owned()).collect();
        let filter = compile(&default_profile(&capabilities, arch), arch).unwrap();
        let abi = arch.abis().next().unwrap();
        let number = table.number(name, abi).unwrap();
        run(&filter, &Call { number, audit: abi.audit(), args: [first, 0, 0, 0, 0, 0] })
    };
    let (allow, eperm, enosys) = (0x7fff_0000, 0x5_0001, 0x5_0026);
    for arch in ARCHES {
        assert_eq!(verdict(&[], arch, "read", 0), allow);
        assert_eq!(verdict(&[], arch, "mount", 0), eperm);
        assert_eq!(verdict(&["CAP_SYS_ADMIN"], arch, "mount", 0), allow);
        assert_eq!(verdict(&[], arch, "clone3", 0), enosys);
        assert_eq!(verdict(&["CAP_SYS_ADMIN"], arch, "clone3", 0), allow);
        // A thread, and a user namespace.
        assert_eq!(verdict(&[], arch, "clone", 0x3d_0f00), allow);
        assert_eq!(verdict(&[], arch, "clone", 0x1000_0000), eperm);
        assert_eq!(verdict(&[], arch, "socket", 2), allow);
        // The families next to the two that are refused.
        for family in 0..=64 {
            let wanted = if matches!(family, 38 | 40 | 46..) { eperm } else { allow };
            assert_eq!(verdict(&[], arch, "socket", family), wanted, "{family}");
        }
        // The kernel uses the lower half of the argument as the family.
        for family in [0x1_0000_0026, 0x1_0000_0028, 0xffff_ffff_0000_0028, 0x1_0000_0001] {
            let wanted = if arch == Arch::Arm { None } else { Some(eperm) };
            let found = verdict(&[], arch, "socket", family);
            assert!(wanted.is_none_or(|wanted| found == wanted), "{arch:?} {family:#x}");
        }
        assert_eq!(verdict(&[], arch, "io_uring_setup", 0), eperm);
        assert_eq!(verdict(&[], arch, "syslog", 0), eperm);
        assert_eq!(verdict(&["CAP_SYSLOG"], arch, "syslog", 0), allow);
    }
    assert_eq!(verdict(&[], Arch::X86_64, "arch_prctl", 0), allow);
    assert_eq!(verdict(&[], Arch::Arm, "set_tls", 0), allow);
}

#[test]
fn default_profile_allows_a_call_of_riscv64_alone() {
    let (table, call) = (Table::new(), "riscv_hwprobe");
    for arch in ARCHES {
        let profile = default_profile(&[], arch);
        let allows = |rule: &Rule| {
            rule.action == Action::Allow && rule.args.is_empty() && rule.names.iter().any(|name| name == call)
        };
        assert!(profile.rules.iter().any(allows), "{arch:?}: for external runtimes, which know the call");
        assert!(arch.abis().all(|abi| table.number(call, abi).is_none()), "{arch:?}: it is no call here");
        compile(&profile, arch).unwrap();
    }
}

#[test]
fn the_tables_are_sorted_whole_and_without_doubles() {
    let table = Table::new();
    for abi in [Abi::X86_64, Abi::X86, Abi::X32, Abi::Arm, Abi::Aarch64] {
        let numbers = table.numbers(abi);
        let once: BTreeSet<u32> = numbers.iter().copied().collect();
        assert!(numbers.len() >= 300, "{abi:?}: {}", numbers.len());
        // `sync_file_range2` has two names on arm.
        assert!(numbers.len() - once.len() <= usize::from(abi == Abi::Arm), "{abi:?}");
    }
    let numbers =
        |name| [Abi::X86_64, Abi::X86, Abi::X32, Abi::Arm, Abi::Aarch64].map(|abi| table.number(name, abi));
    assert_eq!(numbers("execve"), [Some(59), Some(11), Some(X32_BIT + 520), Some(11), Some(221)]);
    assert_eq!(numbers("openat2"), [Some(437), Some(437), Some(X32_BIT + 437), Some(437), Some(437)]);
    assert_eq!(numbers("open"), [Some(2), Some(5), Some(X32_BIT + 2), Some(5), None]);
    assert_eq!(numbers("clock_gettime64"), [None, Some(403), None, Some(403), None]);
    assert_eq!(numbers("nosuch"), [None; 5]);
}

fn parse(value: &Value) -> Result<Profile, SeccompError> {
    let subject = Subject { capabilities: &["CAP_SYS_TIME".to_owned()], kernel: (5, 10), arch: Arch::X86_64 };
    parse_profile("p.json", value, &subject)
}

#[test]
fn errors_name_the_file_and_the_field() {
    let arg = |more: Value| json!({"defaultAction": "SCMP_ACT_LOG", "syscalls": [{"names": ["a"], "action": "SCMP_ACT_ALLOW", "args": [more]}]});
    for (value, error) in [
        (json!([]), "p.json: document: must be an object"),
        (json!({}), "p.json: document: defaultAction is missing"),
        (json!({"defaultAction": "ALLOW"}), "p.json: defaultAction: unknown action \"ALLOW\""),
        (json!({"defaultAction": "SCMP_ACT_LOG", "syscalls": {}}), "p.json: syscalls: must be a list"),
        (
            json!({"defaultAction": "SCMP_ACT_LOG", "syscalls": [{"action": "SCMP_ACT_LOG"}]}),
            "p.json: syscalls[0]: names is missing or empty",
        ),
        (
            json!({"defaultAction": "SCMP_ACT_LOG", "syscalls": [{"names": [1], "action": "SCMP_ACT_LOG"}]}),
            "p.json: syscalls[0].names[0]: must be a string",
        ),
        (
            json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 4096}),
            "p.json: defaultErrnoRet: invalid errno 4096, the largest is 4095",
        ),
        (
            json!({"defaultAction": "SCMP_ACT_NOTIFY"}),
            "p.json: defaultAction: user notification is not supported",
        ),
        (
            json!({"defaultAction": "SCMP_ACT_LOG", "architectures": ["amd64"]}),
            "p.json: architectures[0]: unknown architecture \"amd64\", expected SCMP_ARCH_…",
        ),
        (
            arg(json!({"index": 6, "value": 0, "op": "SCMP_CMP_EQ"})),
            "p.json: syscalls[0].args[0].index: argument index must be between 0 and 5",
        ),
        (
            arg(json!({"index": 0, "value": -1, "op": "SCMP_CMP_EQ"})),
            "p.json: syscalls[0].args[0].value: must be an unsigned number",
        ),
        (
            arg(json!({"index": 0, "value": 0, "op": "EQ"})),
            "p.json: syscalls[0].args[0].op: unknown operator \"EQ\"",
        ),
    ] {
        assert_eq!(parse(&value).unwrap_err().to_string(), format!("seccomp profile {error}"));
    }
}

#[test]
fn dockers_conditions_leave_rules_out() {
    let rule = |name: &str, more: Value| {
        let mut rule = json!({"names": [name], "action": "SCMP_ACT_ALLOW"});
        rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        rule
    };
    let profile = parse(&json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 38,
        "archMap": [
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]},
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]},
            {"architecture": "SCMP_ARCH_RISCV64", "subArchitectures": null},
        ],
        "syscalls": [
            rule("a", json!({"includes": {"caps": ["CAP_SYS_TIME"]}})),
            rule("b", json!({"includes": {"caps": ["CAP_SYS_ADMIN"]}})),
            rule("c", json!({"includes": {"arches": ["amd64", "x32"], "minKernel": "4.8"}})),
            rule("d", json!({"includes": {"minKernel": "5.11"}})),
            rule("e", json!({"excludes": {"caps": ["CAP_SYS_TIME"]}})),
            rule("f", json!({"excludes": {"arches": ["s390"], "caps": ["CAP_SYS_ADMIN"]}})),
            rule("g", json!({"includes": {}, "excludes": {}, "args": null, "comment": "x"})),
            {"name": "h", "action": "SCMP_ACT_ERRNO", "errnoRet": 2},
        ],
    }))
    .unwrap();
    let names: Vec<&str> = profile.rules.iter().flat_map(|rule| &rule.names).map(String::as_str).collect();
    assert_eq!(names, ["a", "c", "f", "g", "h"]);
    assert_eq!(profile.architectures, ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"]);
    assert_eq!(profile.default_action, Action::Errno(38));
    assert_eq!(profile.rules[4].action, Action::Errno(2));
}

#[test]
fn a_profile_that_is_too_long_is_refused() {
    let condition = |value| Condition { index: 0, value, value_two: 0, operator: Operator::Equal };
    let rule =
        |value| Rule { names: vec!["read".into()], action: Action::Allow, args: vec![condition(value)] };
    let profile = Profile {
        default_action: Action::Errno(1),
        architectures: Vec::new(),
        flags: Vec::new(),
        rules: (0..2000).map(rule).collect(),
    };
    assert!(matches!(compile(&profile, Arch::Arm), Err(SeccompError::TooLong(_))));
}

/// The kernel's own verdicts.
#[test]
fn the_kernel_takes_the_default_profile_and_obeys_it() {
    use crate::platform::sys::seccomp::testing::calls;
    let Some(arch) = Arch::node() else { return };
    let filter = compile(&default_profile(&[], arch), arch).unwrap();
    let outcome = in_filtered_child(
        &filter,
        &[
            (calls::GETPPID, [0, 0]),
            (calls::UNSHARE, [0, 0]),
            (calls::CLONE3, [0, 0]),
            (calls::SOCKET, [40, 1]),
            #[cfg(target_pointer_width = "64")]
            (calls::SOCKET, [0x1_0000_0028, 1]),
            (calls::SOCKET, [1, 1]),
            (calls::PERSONALITY, [0xffff_ffff, 0]),
            (calls::PERSONALITY, [1, 0]),
        ],
    );
    let wide: &[i32] = if cfg!(target_pointer_width = "64") { &[1] } else { &[] };
    assert_eq!(outcome, [&[0, 1, 38, 1], wide, &[0, 0, 1]].concat());
    let kill = Profile {
        default_action: Action::Allow,
        architectures: Vec::new(),
        flags: Vec::new(),
        rules: vec![Rule { names: vec!["getppid".into()], action: Action::KillProcess, args: Vec::new() }],
    };
    let mut bare = kill.clone();
    bare.rules[0].names.push("setsid".into());
    assert!(!crate::platform::sys::seccomp::permits_start(&compile(&bare, arch).unwrap()));
    assert!(!crate::platform::sys::seccomp::permits_start(&[]));
    assert!(crate::platform::sys::seccomp::permits_start(&filter));
    // SIGSYS.
    assert_eq!(in_filtered_child(&compile(&kill, arch).unwrap(), &[(calls::GETPPID, [0, 0])]), [-31]);
}
