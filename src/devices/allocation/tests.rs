//! Tables and a property test: no device has two owners, after any sequence of events and checkpoints.

use super::*;
use crate::model::api::decode::decode;
use proptest::prelude::*;

const R: &str = "acme.com/x";

fn pod(uid: &str, init: i64, main: i64, second: i64) -> Pod {
    let container = |name: &str, count: i64| json!({"name": name, "resources": {"limits": {R: count.to_string(), "cpu": "1"}}});
    decode(json!({
        "metadata": {"name": uid, "namespace": "ns", "uid": uid},
        "spec": {
            "initContainers": [container("init", init)],
            "containers": [container("main", main), container("second", second)],
        },
    }))
    .unwrap()
    .object
}

fn devices(healthy: &[&str], sick: &[&str]) -> Resources {
    let mut all = Devices::new();
    for (ids, healthy) in [(healthy, true), (sick, false)] {
        for id in ids {
            all.insert((*id).to_owned(), PluginDevice { healthy, nodes: Vec::new() });
        }
    }
    [(R.to_owned(), all)].into()
}

/// Allocates all devices that the pod requests, or fails with the reason.
fn allocate(pod: &Pod, resources: &Resources, allocated: &mut Vec<Allocation>) -> Result<(), String> {
    while let Some(need) = next_need(pod, allocated) {
        let ids = choose_devices(&choice(&need, resources, allocated)?, &need, &[]);
        assert_eq!(ids.len(), need.count);
        allocated.push(Allocation {
            pod: pod.metadata.uid.clone(),
            container: need.container,
            devices: by_node(&ids, &resources[&need.resource]),
            resource: need.resource,
            response: Some(b"answer".to_vec()),
        });
    }
    Ok(())
}

fn ids_of(allocated: &[Allocation], container: &str) -> Vec<String> {
    let found = allocated.iter().filter(|allocation| allocation.container == container);
    found.flat_map(Allocation::ids).map(str::to_owned).collect()
}

#[test]
fn an_init_container_lends_what_it_had_and_only_one_borrows() {
    let resources = devices(&["a", "b", "c"], &[]);
    let mut allocated = Vec::new();
    allocate(&pod("u", 2, 1, 2), &resources, &mut allocated).unwrap();
    assert_eq!(ids_of(&allocated, "init"), ["a", "b"]);
    assert_eq!(ids_of(&allocated, "main"), ["a"]);
    assert_eq!(ids_of(&allocated, "second"), ["b", "c"]);
    let need =
        Need { container: "m".into(), resource: R.into(), count: 2, reusable: BTreeSet::new(), near: None };
    let some = Choice { taken: vec!["x".into()], available: vec!["a".into(), "b".into(), "c".into()] };
    assert_eq!(choose_devices(&some, &need, &["z".into(), "c".into()]), ["x", "c"]);
}

#[test]
fn unavailable_devices_are_reported_like_upstream() {
    let why = |resources: &Resources| allocate(&pod("u", 0, 2, 0), resources, &mut Vec::new()).unwrap_err();
    assert_eq!(why(&Resources::new()), "cannot allocate unregistered device acme.com/x");
    assert_eq!(
        why(&devices(&[], &["a", "b"])),
        "no healthy devices present; cannot allocate unhealthy devices acme.com/x"
    );
    assert_eq!(
        why(&devices(&["a"], &["b"])),
        "requested number of devices unavailable for acme.com/x. Requested: 2, Available: 1"
    );
    let (capacity, allocatable) = totals(&devices(&["a"], &["b"]));
    assert_eq!((capacity[R].value(), allocatable[R].value()), (2, 1));
    for (name, extended) in
        [("acme.com/x", true), ("cpu", false), ("kubernetes.io/x", false), ("a.kubernetes.io/x", false)]
    {
        assert_eq!(is_extended(name), extended, "{name}");
    }
}

#[test]
fn the_checkpoint_is_a_kubelets_checksum_included() {
    // Both checksums are from kubelets.
    let id = "GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0";
    let one: Resources =
        [("nvidia.com/gpu".to_owned(), [(id.to_owned(), PluginDevice::default())].into())].into();
    let empty = format!(
        "{{\"Checksum\":3952659280,\"Data\":{{\"PodDeviceEntries\":null,\"RegisteredDevices\":{{\"nvidia.com/gpu\":[\"{id}\"]}}}}}}"
    );
    assert_eq!(checkpoint(&[], &one), empty);
    let response = "CkIKFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSKEdQVS03N2E3MDJkYi1lMzdmLTNhNzQtZDQ2ZC1jNTcxM2Y2NjA1OGMaJAoOL2Rldi9udmlkaWFjdGwSDi9kZXYvbnZpZGlhY3RsGgJydxomCg8vZGV2L252aWRpYS11dm0SDy9kZXYvbnZpZGlhLXV2bRoCcncaMgoVL2Rldi9udmlkaWEtdXZtLXRvb2xzEhUvZGV2L252aWRpYS11dm0tdG9vbHMaAnJ3Gi4KEy9kZXYvbnZpZGlhLW1vZGVzZXQSEy9kZXYvbnZpZGlhLW1vZGVzZXQaAnJ3GiAKDC9kZXYvbnZpZGlhMBIML2Rldi9udmlkaWEwGgJydw==";
    let ids = [
        "GPU-77a702db-e37f-3a74-d46d-c5713f66058c",
        "GPU-9b341c59-f96b-ba85-c137-78c3652fea65",
        "GPU-c1e9f249-b37b-81c2-a8d9-ba5ca0294841",
    ];
    let three: Devices = ids.iter().map(|id| ((*id).to_owned(), PluginDevice::default())).collect();
    let resources: Resources = [("nvidia.com/gpu".to_owned(), three)].into();
    let allocation = Allocation {
        pod: "513cb897-0262-4868-826f-aa943ee45a38".into(),
        container: "app".into(),
        resource: "nvidia.com/gpu".into(),
        devices: [(0, vec![ids[0].to_owned()])].into(),
        response: base64::decode(response),
    };
    let text = checkpoint(std::slice::from_ref(&allocation), &resources);
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["Checksum"], 133_412_836_u32);
    assert_eq!(value["Data"]["PodDeviceEntries"][0]["AllocResp"], response);
    let (found, names) = from_checkpoint(&text).unwrap();
    assert_eq!(found, [allocation]);
    assert_eq!(names, [("nvidia.com/gpu".to_owned(), Devices::new())].into());
    for broken in ["", "{", r#"{"Data":{"PodDeviceEntries":[{}]}}"#] {
        assert!(from_checkpoint(broken).is_err(), "{broken}");
    }
}

#[derive(Clone, Debug)]
enum Happening {
    Comes(u8, i64, i64, i64),
    Goes(u8),
    Health(usize, bool),
    PluginDies,
    PluginReturns,
    AgentRestarts,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => (0_u8..6, 0_i64..3, 0_i64..3, 0_i64..3).prop_map(|(pod, a, b, c)| Happening::Comes(pod, a, b, c)),
        3 => (0_u8..6).prop_map(Happening::Goes),
        2 => (0_usize..5, any::<bool>()).prop_map(|(device, healthy)| Happening::Health(device, healthy)),
        1 => Just(Happening::PluginDies),
        1 => Just(Happening::PluginReturns),
        1 => Just(Happening::AgentRestarts),
    ]
}

proptest! {
    #[test]
    fn no_device_ever_has_two_owners(happenings in proptest::collection::vec(happening(), 1..60)) {
        let names = ["a", "b", "c", "d", "e"];
        let all = devices(&names, &[]);
        let (mut resources, mut allocated) = (all.clone(), Vec::<Allocation>::new());
        for happening in happenings {
            match happening {
                Happening::Comes(number, init, main, second) => {
                    let uid = format!("u{number}");
                    if allocated.iter().any(|allocation| allocation.pod.as_str() == uid) {
                        continue;
                    }
                    let sick: Vec<String> = resources.get(R).into_iter().flatten()
                        .filter(|(_, device)| !device.healthy).map(|(id, _)| id.clone()).collect();
                    let before = allocated.len();
                    let result = allocate(&pod(&uid, init, main, second), &resources, &mut allocated);
                    for allocation in &allocated[before..] {
                        prop_assert!(allocation.ids().all(|id| !sick.contains(&id.to_owned())), "a sick one");
                    }
                    if result.is_err() {
                        allocated.truncate(before);
                    }
                }
                Happening::Goes(number) => allocated.retain(|allocation| allocation.pod.as_str() != format!("u{number}")),
                Happening::Health(number, healthy) => {
                    if let Some(device) = resources.get_mut(R).and_then(|devices| devices.get_mut(names[number])) {
                        device.healthy = healthy;
                    }
                }
                Happening::PluginDies => resources.clear(),
                Happening::PluginReturns => resources = all.clone(),
                Happening::AgentRestarts => {
                    let before = allocated.clone();
                    (allocated, resources) = from_checkpoint(&checkpoint(&allocated, &resources)).unwrap();
                    prop_assert_eq!(&allocated, &before);
                }
            }
            let mut owners: BTreeMap<&str, &PodUid> = BTreeMap::new();
            let mut inside: BTreeSet<(&str, &str)> = BTreeSet::new();
            for allocation in &allocated {
                for id in allocation.ids() {
                    let owner = owners.entry(id).or_insert(&allocation.pod);
                    prop_assert_eq!(*owner, &allocation.pod, "{} has two owners", id);
                    // In one pod a device is shared in time only: by an init container and one that runs
                    // later.
                    if allocation.container != "init" {
                        prop_assert!(inside.insert((allocation.pod.as_str(), id)), "{} twice in a pod", id);
                    }
                }
            }
        }
    }
}

/// A card whose megabytes are devices, and a plugin that prefers all of them, twice: without sets this takes
/// minutes.
#[test]
fn many_devices_and_a_long_preference_are_settled_at_once() {
    let ids: Vec<String> = (0..60_000).map(|number| format!("d{number:05}")).collect();
    let count = 30_000;
    let need =
        Need { container: "m".into(), resource: R.into(), count, reusable: BTreeSet::new(), near: None };
    let choice = Choice { taken: ids[..10].to_vec(), available: ids.clone() };
    let preferred: Vec<String> = ids.iter().rev().chain(&ids).cloned().collect();
    let began = std::time::Instant::now();
    let settled = choose_devices(&choice, &need, &preferred);
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!((settled.len(), settled[10].as_str()), (count, "d59999"));
    assert_eq!(settled.iter().collect::<BTreeSet<_>>().len(), count, "each once");
}

#[test]
fn bytes_are_printed_as_go_prints_them() {
    assert_eq!(numbers(&[]), "");
    assert_eq!(numbers(&[0, 7, 255]), "0 7 255");
}

#[test]
fn devices_near_the_nodes_are_taken_first() {
    let device = |nodes: &[i64]| PluginDevice { healthy: true, nodes: nodes.to_vec() };
    let devices = [("a", device(&[0])), ("b", device(&[])), ("c", device(&[1])), ("d", device(&[0, 1]))];
    let devices: Devices = devices.into_iter().map(|(id, device)| (id.to_owned(), device)).collect();
    let resources = Resources::from([(R.to_owned(), devices)]);
    let available = |count, near| {
        let need = Need { container: "m".into(), resource: R.into(), count, reusable: BTreeSet::new(), near };
        choice(&need, &resources, &[]).unwrap().available.join(" ")
    };
    assert_eq!(available(2, None), "a b c d");
    assert_eq!(available(2, Some(0b10)), "c d", "a plugin may prefer only these");
    assert_eq!(available(3, Some(0b10)), "c d a b", "one near to no node comes last");
}
