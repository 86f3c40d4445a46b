//! A container's rights: capabilities, devices, and its resources in the specification's form.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Input;
use super::mounts::clean;
use crate::model::runtime_config::LinuxResources;
use crate::platform::cgroup::devices::{self, DeviceKind};
use crate::runtime::embedded::spec::{Capabilities, Device, DeviceRule, Resources};

/// The default capabilities, as in Docker and containerd.
const DEFAULT: [&str; 14] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

/// `ALL` is applied first in both lists, so that single capabilities can be removed from it and added back.
/// Nothing is ambient or inheritable, because Kubernetes does not define that.
pub(super) fn capabilities(input: &Input<'_>) -> Capabilities {
    let all = &input.node.capabilities;
    let set = effective(input, all);
    Capabilities { bounding: set.clone(), effective: set.clone(), permitted: set, ..Capabilities::default() }
}

/// The names of a container's effective capabilities, for the choice of its seccomp profile.
pub(super) fn effective(input: &Input<'_>, all: &[String]) -> Vec<String> {
    let security = &input.container.security;
    if security.privileged {
        return all.to_vec();
    }
    let names = |list: &[String]| -> Vec<String> { list.iter().map(|name| full_name(name)).collect() };
    let (add, drop) = (names(&security.add_capabilities), names(&security.drop_capabilities));
    let is_all = |list: &[String]| list.iter().any(|name| name == "CAP_ALL");
    let mut set: Vec<String> = DEFAULT.iter().map(|&name| name.to_owned()).collect();
    if is_all(&add) {
        set = all.to_vec();
    }
    if is_all(&drop) {
        set.clear();
    }
    for name in add {
        if name != "CAP_ALL" && !set.contains(&name) {
            set.push(name);
        }
    }
    set.retain(|name| !drop.contains(name));
    set
}

fn full_name(name: &str) -> String {
    let name = name.to_ascii_uppercase();
    if name.starts_with("CAP_") { name } else { format!("CAP_{name}") }
}

/// Harmless devices: null, zero, full, random, urandom, tty, console, ptmx, pseudo terminals. Any node may be
/// made, because opening it is checked separately.
pub(super) fn device_rules(privileged: bool) -> Vec<DeviceRule> {
    let rule = |allow: bool, kind: &str, major: Option<i64>, minor: Option<i64>, access: &str| DeviceRule {
        allow,
        kind: kind.to_owned(),
        major,
        minor,
        access: access.to_owned(),
    };
    if privileged {
        return vec![rule(true, "a", None, None, "rwm")];
    }
    let mut rules = vec![
        rule(false, "a", None, None, "rwm"),
        rule(true, "c", None, None, "m"),
        rule(true, "b", None, None, "m"),
    ];
    for (major, minor) in [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)] {
        rules.push(rule(true, "c", Some(major), Some(minor), "rwm"));
    }
    rules.push(rule(true, "c", Some(136), None, "rwm"));
    rules
}

/// The rules as `cgroup` takes them. A number that no device has matches nothing and is left out.
#[must_use]
pub(crate) fn cgroup_rules(rules: &[DeviceRule]) -> Vec<devices::DeviceRule> {
    let number = |number: Option<i64>| match number {
        None | Some(-1) => Some(None),
        Some(number) => u32::try_from(number).ok().map(Some),
    };
    let convert = |rule: &DeviceRule| {
        Some(devices::DeviceRule {
            allow: rule.allow,
            kind: match rule.kind.as_str() {
                "" | "a" => DeviceKind::All,
                "b" => DeviceKind::Block,
                "c" | "u" => DeviceKind::Char,
                _ => return None,
            },
            major: number(rule.major)?,
            minor: number(rule.minor)?,
            read: rule.access.contains('r'),
            write: rule.access.contains('w'),
            mknod: rule.access.contains('m'),
        })
    };
    rules.iter().filter_map(convert).collect()
}

/// `linux.devices`: all of the node's for a privileged container, and the requested ones, except those whose
/// path is a mount.
pub(super) fn devices(input: &Input<'_>) -> Vec<Device> {
    let privileged = input.container.security.privileged;
    let mut all = if privileged { input.node.host_devices.clone() } else { Vec::new() };
    let is_mounted =
        |path: &str| input.container.mounts.iter().any(|mount| clean(&mount.container_path) == clean(path));
    for (device, _) in &input.node.requested_devices {
        if !is_mounted(&device.path) {
            all.retain(|other| other.path != device.path);
            all.push(device.clone());
        }
    }
    all
}

/// A container's device rules: the ones of every container, and the requested ones.
fn all_rules(input: &Input<'_>) -> Vec<DeviceRule> {
    let privileged = input.container.security.privileged;
    let mut rules = device_rules(privileged);
    if !privileged {
        for (device, access) in &input.node.requested_devices {
            rules.push(DeviceRule {
                allow: true,
                kind: device.kind.clone(),
                major: Some(i64::from(device.major)),
                minor: Some(i64::from(device.minor)),
                access: access.clone(),
            });
        }
    }
    rules
}

/// `linux.resources`.
pub(super) fn resources(input: &Input<'_>) -> Resources {
    Resources { devices: all_rules(input), others: others(&input.container.resources, has_huge_pages(input)) }
}

/// Whether an external runtime can limit huge pages: without the controller in a hierarchy of the node's own
/// version, it fails the container.
fn has_huge_pages(input: &Input<'_>) -> bool {
    let is_theirs = |part: std::path::Component<'_>| part.as_os_str() == "hugetlb";
    input.node.cgroup_v2 || input.cgroups.iter().any(|directory| directory.components().any(is_theirs))
}

fn others(resources: &LinuxResources, huge_pages: bool) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let mut put = |name: &str, fields: Vec<(&str, Value)>| {
        if !fields.is_empty() {
            let object = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            all.insert(name.to_owned(), Value::Object(object));
        }
    };
    let number = |name, value: i64| (value != 0).then(|| (name, json!(value)));
    let text = |name, value: &String| (!value.is_empty()).then(|| (name, json!(value)));
    let cpu = [
        number("shares", resources.cpu_shares),
        number("quota", resources.cpu_quota),
        number("period", resources.cpu_period),
        text("cpus", &resources.cpuset_cpus),
        text("mems", &resources.cpuset_mems),
    ];
    put("cpu", cpu.into_iter().flatten().collect());
    // A container with a memory limit does not swap by default.
    let swap = match resources.memory_swap_limit_bytes {
        0 => resources.memory_limit_bytes,
        swap => swap,
    };
    let memory = [number("limit", resources.memory_limit_bytes), number("swap", swap)];
    put("memory", memory.into_iter().flatten().collect());
    put("unified", resources.unified.iter().map(|(file, value)| (file.as_str(), json!(value))).collect());
    if huge_pages && !resources.hugepage_limits.is_empty() {
        let limit = |(size, bytes): &(String, u64)| json!({"pageSize": size, "limit": bytes});
        all.insert("hugepageLimits".to_owned(), resources.hugepage_limits.iter().map(limit).collect());
    }
    all
}
