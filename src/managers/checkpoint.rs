//! The state as text: our record in the store, and the files that a kubelet leaves, `cpu_manager_state` and
//! `memory_manager_state`.
//!
//! A kubelet's checksum is over a dump of its memory and cannot be verified; a truncated file is not JSON.
//!
//! Pure: what it returns depends on its arguments alone.

use serde_json::{Value, json};

use super::cpu_set::{CpuSet, NodeMask};
use super::ledger::ExclusiveEntry;
use super::memory::Block;
use crate::model::types::PodUid;

/// Our record.
#[must_use]
pub(super) fn write(policy: &str, entries: &[ExclusiveEntry]) -> String {
    let block = |block: &Block| json!([block.nodes.0, block.kind, block.size]);
    let entry = |entry: &ExclusiveEntry| {
        let memory: Vec<Value> = entry.memory.iter().map(block).collect();
        json!([entry.pod.as_str(), entry.container, entry.cpus.to_string(), memory])
    };
    let entries: Vec<Value> = entries.iter().map(entry).collect();
    json!({ "cpuManagerPolicy": policy, "entries": entries }).to_string()
}

/// The policy and the entries of our record; what cannot be read of it is left out.
#[must_use]
pub(super) fn read(text: &str) -> (String, Vec<ExclusiveEntry>) {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let policy = value["cpuManagerPolicy"].as_str().unwrap_or("none").to_owned();
    let block = |block: &Value| {
        let nodes = NodeMask(block[0].as_u64()?);
        Some(Block { nodes, kind: block[1].as_str()?.to_owned(), size: block[2].as_u64()? })
    };
    let entry = |entry: &Value| {
        Some(ExclusiveEntry {
            pod: PodUid::from(entry[0].as_str()?),
            container: entry[1].as_str()?.to_owned(),
            cpus: CpuSet::parse(entry[2].as_str()?)?,
            memory: entry[3].as_array()?.iter().filter_map(block).collect(),
        })
    };
    let entries = value["entries"].as_array().into_iter().flatten().filter_map(entry).collect();
    (policy, entries)
}

fn entry_of<'a>(entries: &'a mut Vec<ExclusiveEntry>, pod: &str, container: &str) -> &'a mut ExclusiveEntry {
    let is_it = |entry: &ExclusiveEntry| entry.pod.as_str() == pod && entry.container == container;
    let at = entries.iter().position(is_it).unwrap_or(entries.len());
    if at == entries.len() {
        let container = container.to_owned();
        entries.push(ExclusiveEntry {
            pod: PodUid::from(pod),
            container,
            cpus: CpuSet::default(),
            memory: Vec::new(),
        });
    }
    &mut entries[at]
}

/// Each container of `entries: {uid: {container: value}}`.
fn each<'a>(value: &'a Value) -> impl Iterator<Item = (&'a str, &'a str, &'a Value)> {
    let pods = value["entries"].as_object().into_iter().flatten();
    pods.flat_map(|(pod, containers)| {
        let containers = containers.as_object().into_iter().flatten();
        containers.map(|(container, value)| (pod.as_str(), container.as_str(), value))
    })
}

/// Adds the entries of a kubelet's `cpu_manager_state`, and returns its policy.
///
/// # Errors
/// Why the file cannot be read.
pub(super) fn add_cpu_state(text: &str, entries: &mut Vec<ExclusiveEntry>) -> Result<String, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    for (pod, container, cpus) in each(&value) {
        let cpus = cpus.as_str().and_then(CpuSet::parse);
        let wrong = || format!("entries.{pod}.{container}: not a CPU list");
        entry_of(entries, pod, container).cpus = cpus.ok_or_else(wrong)?;
    }
    Ok(value["policyName"].as_str().unwrap_or("none").to_owned())
}

/// Adds the entries of a kubelet's `memory_manager_state`.
///
/// # Errors
/// Why the file cannot be read.
pub(super) fn add_memory_state(text: &str, entries: &mut Vec<ExclusiveEntry>) -> Result<(), String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    for (pod, container, blocks) in each(&value) {
        for block in blocks.as_array().into_iter().flatten() {
            let nodes = block["numaAffinity"].as_array().into_iter().flatten().filter_map(Value::as_u64);
            let node = |node: u64| NodeMask::of(u32::try_from(node).unwrap_or(u32::MAX));
            let nodes = nodes.fold(NodeMask::default(), |mask, number| mask.or(node(number)));
            let (Some(kind), Some(size)) = (block["type"].as_str(), block["size"].as_u64()) else {
                return Err(format!("entries.{pod}.{container}: not a memory block"));
            };
            entry_of(entries, pod, container).memory.push(Block { nodes, kind: kind.to_owned(), size });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<ExclusiveEntry> {
        let memory = vec![Block { nodes: NodeMask(0b11), kind: "memory".to_owned(), size: 1 << 40 }];
        let one = ExclusiveEntry {
            pod: PodUid::from("u1"),
            container: "a".to_owned(),
            cpus: CpuSet::of(3),
            memory,
        };
        let two = ExclusiveEntry {
            pod: PodUid::from("u2"),
            container: "b".to_owned(),
            cpus: CpuSet::default(),
            memory: Vec::new(),
        };
        vec![one, two]
    }

    #[test]
    fn the_record_is_read_as_written() {
        let text = write("static", &entries());
        assert_eq!(read(&text), ("static".to_owned(), entries()));
        assert_eq!(read("{"), ("none".to_owned(), Vec::new()));
        assert_eq!(read(r#"{"entries":[["u","c","x",[]],1]}"#).1, []);
    }

    #[test]
    fn a_kubelets_files_are_read() {
        let mut entries = Vec::new();
        let cpu = r#"{"policyName":"static","defaultCpuSet":"0,2","entries":{"u1":{"a":"1,3"}},"checksum":1353318690}"#;
        assert_eq!(add_cpu_state(cpu, &mut entries), Ok("static".to_owned()));
        let memory = r#"{"policyName":"Static","machineState":{},"entries":{"u1":{"a":[{"numaAffinity":[0,1],
            "type":"memory","size":1024}]}},"checksum":1}"#;
        assert_eq!(add_memory_state(memory, &mut entries), Ok(()));
        assert_eq!(entries.len(), 1);
        assert_eq!(
            (entries[0].cpus.to_string(), entries[0].memory[0].nodes),
            ("1,3".to_owned(), NodeMask(0b11))
        );
        assert!(add_cpu_state("{\"entries\":", &mut entries).is_err());
        assert!(add_cpu_state(r#"{"entries":{"u":{"c":"x"}}}"#, &mut entries).is_err());
        let oldest =
            r#"{"policyName":"static","defaultCpuSet":"0","entries":{"a-container-id":"1"},"checksum":1}"#;
        assert_eq!(
            add_cpu_state(oldest, &mut Vec::new()),
            Ok("static".to_owned()),
            "ids of containers are no pods"
        );
    }
}
