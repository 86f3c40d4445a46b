use super::*;
use crate::managers::cpus::CpuOptions;
use crate::managers::ledger::CpuPolicy;
use crate::managers::topology::{Cpu, Topology};
use crate::model::api::decode::decode;
use crate::platform::rt;
use crate::platform::testing::TempDir;
use crate::store::{Mode, OpenOptions};
use serde_json::json;

#[test]
fn another_request_of_a_pod_gives_other_cpus_and_is_recorded() {
    let cpu = |id| Cpu { id, core: id, socket: 0, node: 0, cache: 0 };
    let topology = Topology { cpus: (0..4).map(cpu).collect(), ..Topology::default() };
    let policy = CpuPolicy { options: CpuOptions::default(), reserved: CpuSet::of(0) };
    let ledger = RefCell::new(Ledger { topology, cpu: Some(policy), ..Ledger::default() });
    let managers = ResourceManagers(Rc::new(ManagersInner { ledger, ..ManagersInner::default() }));
    let directory = TempDir::new();
    let devices = DeviceManager::open(&directory);
    let pod = |cpus: &str| {
        let limits = json!({"limits": {"cpu": cpus, "memory": "1Gi"}});
        let raw = json!({"metadata": {"name": "p", "uid": "u"},
            "spec": {"containers": [{"name": "a", "resources": limits}]}});
        decode::<Pod>(raw).unwrap().object
    };
    rt::run(async {
        for (cpus, given, is_new) in [("1", "1", true), ("1", "1", false), ("2", "1-2", true)] {
            managers.set_settled(true);
            managers.admit(&pod(cpus), true, &devices).await.unwrap();
            assert_eq!(managers.exclusive(&PodUid::from("u"), "a").to_string(), given);
            assert_eq!(managers.is_settled(), !is_new, "others have to leave them, {cpus}");
        }
    })
    .unwrap();
}

#[test]
fn an_earlier_policy_is_recorded_until_containers_are_widened() {
    let directory = TempDir::new();
    let config = ManagersConfig {
        root_dir: &directory,
        memory: 1 << 30,
        cpu_policy: "none",
        cpu_options: BTreeSet::new(),
        reserved_cpus: "",
        reserved_milli: 0,
        memory_policy: "None",
        reserved_memory: Vec::new(),
        node_reserves: 0,
        topology_policy: "best-effort",
        topology_scope: "container",
        closest: false,
        most_nodes: 8,
        no_quota: true,
    };
    let store = StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..OpenOptions::default() });
    let record = checkpoint::write("static", &[]);
    let opened = ResourceManagers::open(&config, &directory, Some(&record), store.unwrap());
    let (managers, _) = opened.unwrap();
    let policy = || checkpoint::read(&managers.0.saved.borrow()).0;
    rt::run(async {
        managers.save().await;
        assert_eq!(policy(), "static", "the next process has to widen them if this one is killed");
        managers.settled().await;
        assert_eq!(policy(), "static", "one was not reached");
        managers.set_settled(true);
        managers.save().await;
        assert_eq!(policy(), "static", "they are being gone through");
        managers.settled().await;
        assert_eq!(policy(), "none");
    })
    .unwrap();
}
