//! `examples/`: every manifest there is read, admitted and looked through as the agent would, so that none can rot.
//!
//! A set-up is a file right below `examples/`: what somebody puts on a box. For those the bar is higher than for the small ones.

mod setups;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use edge_agent::desired::source::manifest::{ParsedManifest, decode_manifest, parse_manifest};
use edge_agent::model::api::pod::{Container, Pod, PodStatus};
use edge_agent::model::objects::{LocalObject, ObjectContent, ObjectKind};
use edge_agent::model::source::ManifestOrigin;
use edge_agent::model::types::PodSource;

const NODE: &str = "edge";

/// A manifest, read as the agent reads it.
struct Example {
    /// From `examples/` on.
    name: String,
    text: String,
    /// As written.
    written: Vec<Pod>,
    /// Defaulted, named, validated.
    pods: Vec<Pod>,
    objects: Vec<LocalObject>,
    /// What the agent would say of it.
    said: Vec<String>,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("read examples/").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> Example {
    let text = fs::read_to_string(path).expect("read an example");
    let name = path.strip_prefix(directory()).expect("below examples/").display().to_string();
    understand(name, text)
}

fn understand(name: String, text: String) -> Example {
    let written: Vec<Pod> = decode_manifest(text.as_bytes()).pods.into_iter().map(|pod| pod.pod).collect();
    let origin = ManifestOrigin { source: PodSource::File, location: name.clone() };
    let ParsedManifest { pods, objects, problems, ignored, warnings } =
        parse_manifest(text.as_bytes(), &origin, NODE);
    let mut said = problems;
    said.extend(ignored.into_iter().map(|field| field.message));
    said.extend(warnings);
    said.extend(written.iter().flat_map(without_effect));
    Example { name, text, written, pods, objects, said }
}

fn examples() -> Vec<Example> {
    let is_manifest = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "yaml");
    files(&directory()).iter().filter(|path| is_manifest(path)).map(|path| read(path)).collect()
}

/// Fields that are a scheduler's or a cluster's: known, accepted, and nothing comes of them (`docs/manifests.md`).
fn without_effect(pod: &Pod) -> Vec<String> {
    let spec = &pod.spec;
    let rows = [
        ("affinity", spec.affinity.is_some()),
        ("topologySpreadConstraints", !spec.topology_spread_constraints.is_empty()),
        ("schedulerName", !spec.scheduler_name.is_empty()),
        ("schedulingGates", !spec.scheduling_gates.is_empty()),
        ("preemptionPolicy", spec.preemption_policy.is_some()),
        ("enableServiceLinks", spec.enable_service_links.is_some()),
        ("automountServiceAccountToken", spec.automount_service_account_token.is_some()),
        ("nodeName", !spec.node_name.is_empty()),
        ("status", pod.status != PodStatus::default()),
    ];
    let set = rows.into_iter().filter(|(_, is_set)| *is_set);
    set.map(|(field, _)| format!("{}: {field} does nothing here", pod.metadata.name)).collect()
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.init_containers.iter().chain(&pod.spec.containers)
}

/// The objects a pod names, each with a key of it where one is named; those that are optional are left out.
fn wanted(pod: &Pod) -> Vec<(ObjectKind, String, Option<String>)> {
    use ObjectKind::{ConfigMap, PersistentVolumeClaim, Secret};
    let mut wanted = Vec::new();
    for container in containers(pod) {
        for source in container.env.iter().filter_map(|variable| variable.value_from.as_ref()) {
            for (kind, named) in [(ConfigMap, &source.config_map_key_ref), (Secret, &source.secret_key_ref)] {
                let named = named.iter().filter(|named| named.optional != Some(true));
                wanted.extend(named.map(|named| (kind, named.name.clone(), Some(named.key.clone()))));
            }
        }
        for source in &container.env_from {
            for (kind, named) in [(ConfigMap, &source.config_map_ref), (Secret, &source.secret_ref)] {
                let named = named.iter().filter(|named| named.optional != Some(true));
                wanted.extend(named.map(|named| (kind, named.name.clone(), None)));
            }
        }
    }
    for volume in &pod.spec.volumes {
        let config_map = volume.config_map.iter().map(|source| (ConfigMap, &source.name, &source.items));
        let secret = volume.secret.iter().map(|source| (Secret, &source.secret_name, &source.items));
        for (kind, name, items) in config_map.chain(secret) {
            wanted.push((kind, name.clone(), None));
            wanted.extend(items.iter().map(|item| (kind, name.clone(), Some(item.key.clone()))));
        }
        let claim = volume.persistent_volume_claim.iter();
        wanted.extend(claim.map(|claim| (PersistentVolumeClaim, claim.claim_name.clone(), None)));
    }
    wanted
}

fn has_key(object: &LocalObject, key: &str) -> bool {
    match &object.content {
        ObjectContent::ConfigMap { data, .. } => {
            data.data.contains_key(key) || data.binary_data.contains_key(key)
        }
        ObjectContent::Secret { data, .. } => data.contains_key(key),
        _ => false,
    }
}

#[test]
fn every_example_document_is_accepted_without_warnings() {
    let mut documents = 0;
    for example in examples() {
        assert_eq!(example.said, Vec::<String>::new(), "{}", example.name);
        let is_kind = |line: &&str| {
            let kind = line.trim_start_matches("- ").trim_start().strip_prefix("kind: ");
            kind.is_some_and(|kind| {
                ["Pod", "ConfigMap", "Secret", "PersistentVolumeClaim"].contains(&kind.trim())
            })
        };
        let written = example.text.lines().filter(is_kind).count();
        assert_eq!(example.pods.len() + example.objects.len(), written, "{}", example.name);
        assert!(!example.pods.is_empty(), "{} runs nothing", example.name);
        documents += written;
    }
    assert!(documents >= 30, "only {documents} documents found");
}

#[test]
fn what_a_pod_of_an_example_names_is_beside_it() {
    for example in examples() {
        let mut used = Vec::new();
        for pod in &example.pods {
            for (kind, name, key) in wanted(pod) {
                let found = example.objects.iter().find(|object| {
                    object.key.kind == kind
                        && object.key.name == name
                        && object.key.namespace == pod.metadata.namespace
                });
                let found = found.unwrap_or_else(|| panic!("{}: no {} {name}", example.name, kind.as_str()));
                if let Some(key) = key {
                    assert!(has_key(found, &key), "{}: no key {key} in {}", example.name, found.key);
                }
                used.push(&found.key);
            }
        }
        for object in &example.objects {
            assert!(used.contains(&&object.key), "{}: nobody uses {}", example.name, object.key);
        }
    }
}

#[test]
fn the_page_of_the_examples_lists_each_of_them_and_no_other() {
    let page = fs::read_to_string(directory().join("README.md")).expect("read examples/README.md");
    let listed: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| [`")?.split("`](").next()).collect();
    let mut listed_once: BTreeMap<&str, usize> = BTreeMap::new();
    for name in listed {
        *listed_once.entry(name).or_default() += 1;
    }
    let there: Vec<Example> = examples();
    let expected: BTreeMap<&str, usize> = there.iter().map(|example| (example.name.as_str(), 1)).collect();
    assert_eq!(listed_once, expected);
}

#[test]
fn every_example_begins_with_what_it_is() {
    for example in examples() {
        assert!(example.text.starts_with("# "), "{} begins without a comment", example.name);
    }
}

/// Blocks of YAML on the pages for operators that are manifests from their first line on.
fn manifests_of_pages() -> Vec<Example> {
    let docs = directory().parent().expect("examples/ is in the repository").join("docs");
    let is_page = |path: &&PathBuf| path.extension().is_some_and(|ending| ending == "md");
    let mut found = Vec::new();
    for path in files(&docs).iter().filter(is_page) {
        let text = fs::read_to_string(path).expect("read a page");
        let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let whole = blocks.filter(|block| block.starts_with("apiVersion: v1\n"));
        found.extend(whole.map(|block| understand(path.display().to_string(), block.to_owned())));
    }
    found
}

#[test]
fn manifests_in_the_docs_are_accepted_without_warnings() {
    let found = manifests_of_pages();
    assert!(found.len() >= 4, "only {} manifests found", found.len());
    for manifest in found {
        assert_eq!(manifest.said, Vec::<String>::new(), "{}:\n{}", manifest.name, manifest.text);
        assert!(!manifest.objects.is_empty() || !manifest.pods.is_empty(), "{}", manifest.name);
    }
}

#[test]
fn a_field_that_does_nothing_is_found() {
    let text = "{kind: Pod, apiVersion: v1, metadata: {name: a}, spec: {schedulerName: x, containers: []}}";
    let pod = decode_manifest(text.as_bytes()).pods.remove(0).pod;
    assert_eq!(without_effect(&pod), ["a: schedulerName does nothing here"]);
}
