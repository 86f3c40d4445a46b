//! The set-ups: made for a box of 512 MB, as tight as they can be, each with a head that says how to use it.

use std::collections::BTreeSet;

use edge_agent::model::api::pod::{Container, Pod, ResourceList};
use edge_agent::model::api::quantity::Quantity;
use edge_agent::pod::admission::rules::{NodeFacts, admit, node_labels};

use super::{Example, containers, examples};

/// The machine a set-up must fit beside the system and the agent.
const BOX_BYTES: i64 = 512 << 20;
/// What the kernel, the system, the agent and `evictionHard` keep of it.
const KEPT_BYTES: i64 = 160 << 20;

/// Set-up, container, field: what is not as tight as it could be, and why.
const LOOSE: &[(&str, &str, &str, &str)] = &[
    ("vpn-sidecar.yaml", "tunnel", "runAsNonRoot", "an interface is made by root of the container"),
    ("vpn-sidecar.yaml", "tunnel", "capabilities", "NET_ADMIN makes the interface"),
    ("dns-filter.yaml", "coredns", "capabilities", "the program's file has NET_BIND_SERVICE"),
    ("kiosk.yaml", "weston", "runAsNonRoot", "the image's start script is root's"),
    ("kiosk.yaml", "weston", "capabilities", "it hands a terminal over"),
    ("kiosk.yaml", "weston", "readOnlyRootFilesystem", "it writes its settings into the image"),
    ("kiosk.yaml", "browser", "readOnlyRootFilesystem", "its profile is in the user's home"),
    ("kiosk.yaml", "browser", "seccompProfile", "it makes sandboxes of its own"),
];

fn setups() -> Vec<Example> {
    let found: Vec<Example> = examples().into_iter().filter(|example| !example.name.contains('/')).collect();
    assert!(found.len() >= 10, "only {} set-ups found", found.len());
    found
}

fn node(memory: i64, cpu: i64) -> NodeFacts {
    let amounts = [
        ("cpu", Quantity::from_units(cpu)),
        ("memory", Quantity::from_bytes(memory)),
        ("pods", Quantity::from_units(110)),
    ];
    let mut allocatable = ResourceList::new();
    for (name, amount) in amounts {
        allocatable.insert(name.to_owned(), amount);
    }
    NodeFacts {
        name: super::NODE.to_owned(),
        allowed_devices: vec!["*".to_owned()],
        labels: node_labels(super::NODE, "arm64", &std::collections::BTreeMap::new()),
        allocatable,
        kernel: (6, 1),
        ..NodeFacts::default()
    }
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// What is not tight about a container.
fn loose(pod: &Pod, container: &Container) -> Vec<&'static str> {
    let context = container.security_context.clone().unwrap_or_default();
    let of_pod = pod.spec.security_context.clone().unwrap_or_default();
    let capabilities = context.capabilities.unwrap_or_default();
    let seccomp = context.seccomp_profile.or(of_pod.seccomp_profile);
    let rows = [
        ("runAsNonRoot", context.run_as_non_root.or(of_pod.run_as_non_root) == Some(true)),
        ("runAsUser", context.run_as_user.or(of_pod.run_as_user).is_some()),
        ("privileged", context.privileged != Some(true)),
        ("allowPrivilegeEscalation", context.allow_privilege_escalation == Some(false)),
        ("readOnlyRootFilesystem", context.read_only_root_filesystem == Some(true)),
        ("capabilities", capabilities.drop == ["ALL"] && capabilities.add.is_empty()),
        ("seccompProfile", seccomp.is_some_and(|profile| profile.type_ == "RuntimeDefault")),
        ("hostNetwork", !pod.spec.host_network),
        ("hostPID", !pod.spec.host_pid),
    ];
    rows.into_iter().filter(|(_, is_tight)| !is_tight).map(|(field, _)| field).collect()
}

/// What is missing of a container.
fn missing(pod: &Pod, container: &Container) -> Vec<String> {
    let mut found = Vec::new();
    for resource in ["cpu", "memory"] {
        if !container.resources.limits.contains_key(resource) {
            found.push(format!("no limit of {resource}"));
        }
    }
    let probes = [&container.startup_probe, &container.readiness_probe, &container.liveness_probe];
    let stays = is_sidecar(container) || pod.spec.containers.iter().any(|one| one.name == container.name);
    if stays && probes.iter().all(|probe| probe.is_none()) {
        found.push("no probe".to_owned());
    }
    let (registry, rest) = container.image.split_once('/').unwrap_or_default();
    let tag = rest.rsplit_once(':').map(|(_, tag)| tag);
    if !registry.contains('.') || tag.is_none_or(|tag| tag == "latest" || tag.is_empty()) {
        found.push(format!("{} is not an image in full with a tag that stays", container.image));
    }
    found
}

#[test]
fn every_setup_says_what_it_is_what_to_change_and_how_to_try_it() {
    for setup in setups() {
        let head: Vec<&str> = setup.text.lines().take_while(|line| line.starts_with('#')).collect();
        for begin in ["# What it is: ", "# Change: ", "# Try: "] {
            assert!(head.iter().any(|line| line.starts_with(begin)), "{}: no line {begin:?}", setup.name);
        }
    }
}

#[test]
fn setup_containers_have_limits_probes_and_fixed_tags() {
    for setup in setups() {
        for pod in &setup.written {
            for container in containers(pod) {
                assert_eq!(
                    missing(pod, container),
                    Vec::<String>::new(),
                    "{} {}",
                    setup.name,
                    container.name
                );
            }
        }
    }
}

#[test]
fn setups_are_as_tight_as_they_can_be() {
    let mut excused = BTreeSet::new();
    for setup in setups() {
        for pod in &setup.pods {
            for container in containers(pod) {
                for field in loose(pod, container) {
                    let row = LOOSE
                        .iter()
                        .find(|row| (row.0, row.1, row.2) == (&setup.name, &container.name, field));
                    let row = row.unwrap_or_else(|| panic!("{} {}: {field}", setup.name, container.name));
                    excused.insert(row);
                }
            }
        }
    }
    assert_eq!(excused.len(), LOOSE.len(), "a row for what is tight by now: {LOOSE:?}");
}

#[test]
fn each_setup_fits_a_small_box_with_all_it_may_use() {
    let free = BOX_BYTES - KEPT_BYTES;
    for setup in setups() {
        let memory = |container: &Container| {
            container.resources.limits.get("memory").map_or(0, |amount| amount.value())
        };
        for pod in &setup.pods {
            admit(pod, &[], &node(free, 1)).unwrap_or_else(|why| panic!("{}: {why:?}", setup.name));
            let sidecars = pod.spec.init_containers.iter().filter(|container| is_sidecar(container));
            let most: i64 = pod.spec.containers.iter().chain(sidecars).map(memory).sum();
            assert!(most <= free, "{} may use {} MiB", setup.name, most >> 20);
        }
    }
}

#[test]
fn all_setups_may_be_on_one_box_that_is_large_enough() {
    let setups = setups();
    let pods: Vec<&Pod> = setups.iter().flat_map(|setup| &setup.pods).collect();
    for (number, pod) in pods.iter().enumerate() {
        admit(pod, &pods[..number], &node(2 << 30, 4))
            .unwrap_or_else(|why| panic!("{}: {why:?}", pod.metadata.name));
    }
    let names: BTreeSet<String> =
        setups.iter().flat_map(|setup| &setup.objects).map(|object| object.key.to_string()).collect();
    let objects: usize = setups.iter().map(|setup| setup.objects.len()).sum();
    assert_eq!(names.len(), objects, "two set-ups define an object of one name");
}
