//! Files of version 2: the unified hierarchy.

use std::path::Path;

use super::Skipped;
use super::file::{ValueFile, write_file};
use crate::model::runtime_config::CgroupValues;

/// The kernel's default period, microseconds.
const DEFAULT_PERIOD: i64 = 100_000;

/// Enables these controllers for the children of a cgroup. Enabled ones cost no write.
pub(super) fn enable_controllers(directory: &Path, wanted: &[String]) -> Vec<Skipped> {
    let file = directory.join("cgroup.subtree_control");
    let Ok(enabled) = std::fs::read_to_string(&file) else { return Vec::new() };
    let enabled: Vec<&str> = enabled.split_whitespace().collect();
    let missing: Vec<String> = wanted
        .iter()
        .filter(|name| !enabled.contains(&name.as_str()))
        .map(|name| format!("+{name}"))
        .collect();
    if missing.is_empty() || write_file(&file, &missing.join(" ")).is_ok() {
        return Vec::new();
    }
    // The kernel enables all or none; one by one shows which it refuses.
    let refused = missing.iter().filter_map(|name| Some((name, write_file(&file, name).err()?)));
    refused
        .map(|(name, error)| Skipped {
            what: format!("cgroup controller {}", name.trim_start_matches('+')),
            why: format!("write {}: {error}", file.display()),
        })
        .collect()
}

/// The files that hold these values.
pub(super) fn files(values: &CgroupValues) -> Vec<ValueFile> {
    let mut files = Vec::new();
    let mut add = |controller, file: &str, value: Option<String>| {
        if let Some(value) = value {
            files.push(ValueFile { controller, file: file.to_owned(), value });
        }
    };
    add("cpu", "cpu.weight", values.cpu_shares.map(|shares| cpu_weight(shares).to_string()));
    let period = values.cpu_period.unwrap_or(DEFAULT_PERIOD);
    add("cpu", "cpu.max", values.cpu_quota.map(|quota| format!("{} {period}", or_max(quota))));
    add("memory", "memory.max", values.memory_bytes.map(or_max));
    add("pids", "pids.max", values.pids.map(or_max));
    for (size, bytes) in &values.huge_pages {
        let value = bytes.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string());
        add("hugetlb", &format!("hugetlb.{size}.max"), Some(value));
    }
    files
}

pub(super) fn or_max(value: i64) -> String {
    if value < 0 { "max".to_owned() } else { value.to_string() }
}

/// `cpu.shares` as `cpu.weight`, as runtimes convert it: 2..262144 to 1..10000.
pub(super) fn cpu_weight(shares: i64) -> i64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}
