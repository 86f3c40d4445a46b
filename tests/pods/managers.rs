//! The resource managers on the machine's own CPUs: exclusive ones, shared ones, and what survives.
//!
//! CPU 0 is reserved; the first exclusive container gets CPU 1.

use std::fs;

use edge_agent::devices::client::PluginClient;
use edge_agent::platform::proto::pod_resources as wire;
use prost::Message;
use serde_json::{Value, json};

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::containerd::Instance;
use crate::support::device_plugin::{DevicePlugin, RESOURCE};
use crate::support::wait::wait_for;

const STATIC: &str = "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n";

/// All CPUs, and all but CPU 1, in the kernel's list format.
fn cpus() -> (String, String) {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").expect("the kernel's list");
    let all = online.trim().to_owned();
    let last: u32 = all.rsplit('-').next().and_then(|last| last.parse().ok()).expect("a range of CPUs");
    assert!(last >= 1 && all == format!("0-{last}"), "these tests need CPU 0 and CPU 1: {all}");
    let rest = match last {
        1 => "0".to_owned(),
        2 => "0,2".to_owned(),
        last => format!("0,2-{last}"),
    };
    (all, rest)
}

/// A container with the request as its limit: its pod is Guaranteed if all are so.
fn guaranteed(mut container: Value, cpu: &str) -> Value {
    container["resources"] = json!({ "limits": { "cpu": cpu, "memory": "32Mi" } });
    container
}

fn exclusive(node: &Node, name: &str, command: &str) -> Value {
    let mut pod = node.pod(name, command);
    let container = pod["spec"]["containers"][0].take();
    pod["spec"]["containers"][0] = guaranteed(container, "1");
    pod
}

/// Where the kernel lets a process run.
fn allowed(instance: &Instance) -> String {
    let pid = instance.pid.expect("it runs");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.unwrap_or_default().trim().to_owned()
}

fn wait_allowed(node: &Node, instance: &Instance, expected: &str) {
    wait_for(&format!("{} to run on CPUs {expected}", instance.pod), PATIENCE, || match allowed(instance) {
        found if found == expected => Ok(()),
        found => Err(format!("{found}; agent: {}", node.agent.log_tail())),
    });
}

/// A shell command that writes where a process may run.
fn note_cpus(pid: &str, file: &str) -> String {
    format!(
        "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/{pid}/status > /out/{file}.part; \
         mv /out/{file}.part /out/{file}"
    )
}

fn an_exclusive_container_has_its_cpu_alone() {
    let (all, rest) = cpus();
    let mut node = Node::new();
    node.agent.configure(STATIC);
    node.apply(&node.pod("shared", "sleep 1000"));
    node.agent.start();
    let shared = node.running("shared");
    wait_allowed(&node, &shared, &all);
    // The first thing that the exclusive container does is to see where the shared one may run by then.
    let other = shared.pid.expect("it runs").to_string();
    let script = format!("{}; {}; sleep 1000", note_cpus(&other, "other"), note_cpus("self", "own"));
    let mut pod = exclusive(&node, "alone", &script);
    pod["spec"]["hostPID"] = json!(true);
    node.apply(&pod);
    assert_eq!(node.written("own"), "1\n", "{}", node.agent.log_tail());
    assert_eq!(node.written("other"), format!("{rest}\n"), "{}", node.agent.log_tail());
    let alone = node.running("alone");
    let page = node.agent.cli(&["describe", "node"]).expect("the page of the node");
    let owner = format!("default/{} (main)", super::full_name("alone"));
    let line = page.lines().find(|line| line.contains(&owner));
    assert!(line.is_some_and(|line| line.trim().starts_with("1 ")), "{page}");

    node.agent.kill9();
    node.agent.start();
    node.agent.wait_for_phase("alone", "Running");
    assert_eq!((node.running("alone").id, node.running("shared").id), (alone.id.clone(), shared.id.clone()));
    wait_allowed(&node, &alone, "1");
    wait_allowed(&node, &shared, &rest);
    node.apply(&node.pod("late", "sleep 1000"));
    let late = node.running("late");
    assert_eq!(allowed(&late), rest, "from its first instruction on");

    node.delete("alone");
    node.gone("alone");
    for instance in [&shared, &late] {
        wait_allowed(&node, instance, &all);
    }
}

fn exclusive_cpus_have_no_quota() {
    let mut node = Node::new();
    node.agent.configure(STATIC);
    node.apply(&exclusive(&node, "alone", "sleep 1000"));
    node.agent.start();
    let alone = node.running("alone");
    wait_allowed(&node, &alone, "1");
    let quota = |file: &str| {
        let cgroups =
            fs::read_to_string(format!("/proc/{}/cgroup", alone.pid.expect("it runs"))).expect("its cgroups");
        let cpu = cgroups.lines().find(|line| {
            line.split(':').nth(1).is_some_and(|names| names.split(',').any(|name| name == "cpu"))
        });
        let unified = cgroups.lines().find(|line| line.starts_with("0::"));
        let (line, mount) = match cpu {
            Some(line) => (line, "/sys/fs/cgroup/cpu"),
            None => (unified.expect("one of both"), "/sys/fs/cgroup"),
        };
        let path = line.splitn(3, ':').nth(2).expect("a path").to_owned();
        fs::read_to_string(format!("{mount}{path}/{file}")).map(|text| text.trim().to_owned())
    };
    let found = quota("cpu.cfs_quota_us").or_else(|_| quota("cpu.max")).expect("the file of either version");
    assert!(found == "-1" || found.starts_with("max"), "{found}");
}

fn init_containers_lend_their_cpu_and_sidecars_share() {
    let (_, rest) = cpus();
    let mut node = Node::new();
    node.agent.configure("cpuManagerPolicy: static\nkubeReserved: {cpu: 500m}\n");
    let mut pod = exclusive(&node, "staged", &format!("{}; sleep 1000", note_cpus("self", "app")));
    let mut sidecar =
        guaranteed(node.container("side", &format!("{}; sleep 1000", note_cpus("self", "side"))), "100m");
    sidecar["restartPolicy"] = json!("Always");
    let init = guaranteed(node.container("first", &note_cpus("self", "init")), "1");
    pod["spec"]["initContainers"] = json!([sidecar, init]);
    node.apply(&pod);
    node.agent.start();
    assert_eq!(node.written("init"), "1\n", "{}", node.agent.log_tail());
    assert_eq!(node.written("app"), "1\n", "{}", node.agent.log_tail());
    assert_eq!(node.written("side"), format!("{rest}\n"), "{}", node.agent.log_tail());
    let app = wait_for("the app to run", PATIENCE, || {
        let running = node.runtime.running(&super::full_name("staged"));
        running.into_iter().find(|each| each.container == "main").ok_or_else(|| node.agent.log_tail())
    });
    // What a container was given stays its own when it starts again.
    let pid = i32::try_from(app.pid.expect("it runs")).expect("process ids are small");
    fs::remove_file(node.out("app")).expect("forget the first run");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
        .expect("end it");
    assert_eq!(node.written("app"), "1\n", "{}", node.agent.log_tail());
}

fn the_state_of_a_kubelet_is_taken_over_once() {
    let (all, rest) = cpus();
    let mut node = Node::new();
    // Not a whole CPU: only the file says that it has one.
    let mut pod = node.pod("kept", "sleep 1000");
    let container = pod["spec"]["containers"][0].take();
    pod["spec"]["containers"][0] = guaranteed(container, "100m");
    node.apply(&pod);
    node.agent.start();
    let kept = node.running("kept");
    wait_allowed(&node, &kept, &all);
    node.agent.terminate();
    let mut state = json!({ "policyName": "static", "defaultCpuSet": rest, "checksum": 1 });
    state["entries"][kept.uid.as_str()] = json!({ "main": "1" });
    let file = node.agent.root_dir().join("cpu_manager_state");
    fs::write(&file, state.to_string()).expect("leave a kubelet's state");
    node.agent.configure(STATIC);
    node.agent.start();
    wait_allowed(&node, &kept, "1");
    assert!(node.agent.log().contains("Took over the allocations of a kubelet"));
    node.agent.terminate();
    fs::write(&file, "{").expect("what is in it does not count any more");
    node.agent.start();
    node.agent.wait_for_phase("kept", "Running");
    assert_eq!(node.running("kept").id, kept.id);
    wait_allowed(&node, &kept, "1");
    assert!(!node.agent.log().contains("Failed to read the state of a kubelet"), "{}", node.agent.log_tail());
    // Without the policy everything runs everywhere again.
    node.agent.terminate();
    node.agent.configure("cpuManagerPolicy: none\n");
    node.agent.start();
    wait_allowed(&node, &kept, &all);
}

fn what_is_exclusive_is_told_to_monitors() {
    let (all, _) = cpus();
    let mut node = Node::new();
    node.agent.configure(STATIC);
    node.agent.configure("memoryManagerPolicy: Static\nevictionHard: {memory.available: 64Mi}\n");
    node.agent.configure("systemReserved: {memory: 64Mi}\n");
    node.agent.configure("reservedMemory: [{numaNode: 0, limits: {memory: 128Mi}}]\n");
    node.agent.configure("topologyManagerPolicy: single-numa-node\n");
    node.apply(&exclusive(&node, "alone", "sleep 1000"));
    node.agent.start();
    let alone = node.running("alone");
    wait_allowed(&node, &alone, "1");
    let socket = node.agent.root_dir().join("pod-resources/kubelet.sock");
    let client = PluginClient::new(socket);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let call = |path: &'static str| {
        let answer = runtime.block_on(async { client.call(path, Vec::new(), PATIENCE).await });
        answer.expect("an answer of the pod resources API")
    };
    let list = call("/v1.PodResourcesLister/List");
    let list = wire::ListPodResourcesResponse::decode(list.as_slice()).expect("a list");
    let container = &list.pod_resources[0].containers[0];
    assert_eq!((container.name.as_str(), container.cpu_ids.as_slice()), ("main", &[1][..]));
    let memory: Vec<(&str, u64)> =
        container.memory.iter().map(|block| (block.memory_type.as_str(), block.size)).collect();
    assert_eq!(memory, [("memory", 32 << 20)]);
    let able = call("/v1.PodResourcesLister/GetAllocatableResources");
    let able = wire::AllocatableResourcesResponse::decode(able.as_slice()).expect("an answer");
    assert!(able.cpu_ids.contains(&1) && !able.cpu_ids.contains(&0), "{:?} of {all}", able.cpu_ids);
    assert!(able.memory.iter().any(|block| block.memory_type == "memory" && block.size > 0));
}

fn a_pod_without_common_numa_nodes_waits_for_them() {
    let mut node = Node::new();
    node.agent.configure(STATIC);
    node.agent.configure("topologyManagerPolicy: single-numa-node\n");
    // The other device is near a node that this machine has not: no node has two.
    let plugin_dir = node.agent.root_dir().join("device-plugins");
    let mut pod = exclusive(&node, "apart", &format!("{}; sleep 1000", note_cpus("self", "apart")));
    pod["spec"]["containers"][0]["resources"]["limits"][RESOURCE] = json!(2);
    node.apply(&pod);
    node.agent.start();
    node.agent.wait_for_pod("apart", "it to wait for a plugin", |pod| {
        pod["status"]["reason"].as_str().is_some_and(|reason| reason.starts_with("OutOf")).then_some(())
    });
    let plugin = DevicePlugin::start(&plugin_dir, &[("one@0", true), ("two@63", true)]);
    let message = node.agent.wait_for_pod("apart", "it to be turned away", |pod| {
        (pod["status"]["reason"] == "TopologyAffinityError").then(|| pod["status"]["message"].to_string())
    });
    assert!(message.contains("Resources cannot be allocated with Topology locality"), "{message}");
    plugin.set(&[("one@0", true), ("two@0", true)]);
    assert_eq!(node.written("apart"), "1\n", "{}", node.agent.log_tail());
}

super::on_every_runtime! {
    a_pod_without_common_numa_nodes_waits_for_them,
    an_exclusive_container_has_its_cpu_alone,
    exclusive_cpus_have_no_quota,
    init_containers_lend_their_cpu_and_sidecars_share,
    the_state_of_a_kubelet_is_taken_over_once,
    what_is_exclusive_is_told_to_monitors,
}
