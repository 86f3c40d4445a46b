//! Files of version 1: a hierarchy per controller.

use std::io;
use std::path::Path;

use super::file::{ValueFile, write_file};
use crate::model::runtime_config::CgroupValues;

/// A new cpuset has neither CPUs nor memory, and cannot hold processes until both are copied from its parent.
pub(super) fn inherit_cpuset(directory: &Path) -> io::Result<()> {
    let Some(parent) = directory.parent() else { return Ok(()) };
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let Ok(own) = std::fs::read_to_string(directory.join(file)) else { continue };
        if own.trim().is_empty() {
            let inherited = std::fs::read_to_string(parent.join(file))?;
            if inherited.trim().is_empty() {
                return Err(io::Error::other(format!("{file} of the cgroup above is empty")));
            }
            write_file(&directory.join(file), inherited.trim())?;
        }
    }
    Ok(())
}

/// The files that hold these values.
pub(super) fn files(values: &CgroupValues) -> Vec<ValueFile> {
    let mut files = Vec::new();
    let mut add = |controller, file: &str, value: Option<i64>| {
        if let Some(value) = value {
            files.push(ValueFile { controller, file: file.to_owned(), value: value.to_string() });
        }
    };
    add("cpu", "cpu.shares", values.cpu_shares);
    // The period first: the quota is checked against the current period.
    add("cpu", "cpu.cfs_period_us", values.cpu_period);
    add("cpu", "cpu.cfs_quota_us", values.cpu_quota);
    add("memory", "memory.limit_in_bytes", values.memory_bytes);
    add("pids", "pids.max", values.pids);
    for (size, bytes) in &values.huge_pages {
        let bytes = bytes.map_or(-1, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        add("hugetlb", &format!("hugetlb.{size}.limit_in_bytes"), Some(bytes));
    }
    files
}
