//! What pods use, as the API shows it: statistics, metrics, and the machine's logs.

use std::fs;

use serde_json::{Value, json};

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::api::{Api, Person};
use crate::support::dashboard;
use crate::support::prometheus::Page;
use crate::support::runtime::on_every_runtime;
use crate::support::wait::wait_for;

const MIB: u64 = 1 << 20;

fn number(value: &Value, path: &str) -> u64 {
    value.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path}: {value}"))
}

fn summary(api: &Api, who: &Person, query: &str) -> Value {
    let (code, body) = api.curl(Some(who), &format!("/stats/summary{query}"), &[]);
    assert_eq!(code, 200, "{body}");
    serde_json::from_str(&body).expect("JSON")
}

fn page(api: &Api, who: &Person, path: &str) -> Page {
    let (code, body) = api.curl(Some(who), path, &[]);
    assert_eq!(code, 200, "{path}: {body}");
    Page::parse(&body).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn what_pods_use_is_measured() {
    let mut node = Node::new();
    let api = Api::of(&mut node.agent, node.runtime.scratch().path());
    let script = "until [ -e /out/go ]; do sleep 0.1; done; dd if=/dev/zero of=/layer bs=1M count=6; \
                  dd if=/dev/zero of=/cache/file bs=1M count=3; dd if=/dev/zero of=/ram/file bs=1M count=24; \
                  while :; do :; done";
    let mut pod = node.pod("burner", script);
    pod["spec"]["hostNetwork"] = json!(false);
    let main = &mut pod["spec"]["containers"][0];
    main["resources"] = json!({"limits": {"cpu": "300m", "memory": "128Mi"}});
    for (name, path) in [("cache", "/cache"), ("ram", "/ram")] {
        main["volumeMounts"].as_array_mut().expect("mounts").push(json!({"name": name, "mountPath": path}));
    }
    main["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let volumes = pod["spec"]["volumes"].as_array_mut().expect("volumes");
    volumes.push(json!({"name": "cache", "emptyDir": {}}));
    volumes.push(json!({"name": "ram", "emptyDir": {"medium": "Memory"}}));
    node.apply(&pod);
    node.agent.start();
    api.wait(&mut node.agent);
    node.running("burner");
    let admin = api.person(&node.agent, "admin", &[]);
    let viewer = api.person(&node.agent, "viewer", &["--view"]);

    let little = "?only_cpu_and_memory=true";
    let main = |summary: &Value| summary.pointer("/pods/0/containers/0").cloned().unwrap_or_default();
    let idle = main(&summary(&api, &viewer, little));
    assert_eq!(idle["name"], "main", "{idle}");
    assert!(idle.get("rootfs").is_none(), "{idle}");
    let (before, cpu_before) =
        (number(&idle, "/memory/workingSetBytes"), number(&idle, "/cpu/usageCoreNanoSeconds"));
    assert!(before < 20 * MIB, "{idle}");

    std::fs::write(node.out("go"), "").expect("write");
    let busy = wait_for("memory and CPU to be used", PATIENCE, || {
        let busy = main(&summary(&api, &viewer, little));
        let grown = number(&busy, "/memory/workingSetBytes") >= before + 20 * MIB;
        let burns = busy.pointer("/cpu/usageNanoCores").and_then(Value::as_u64) > Some(50_000_000);
        if grown && burns { Ok(busy) } else { Err(busy.to_string()) }
    });
    assert!(number(&busy, "/cpu/usageCoreNanoSeconds") > cpu_before, "{busy}");
    assert!(number(&busy, "/cpu/usageNanoCores") < 600_000_000, "it may have 300m: {busy}");
    assert!(number(&busy, "/memory/availableBytes") <= 108 * MIB, "of 128Mi: {busy}");

    // containerd measures layers every ten seconds.
    let whole = wait_for("the writable layer to be measured", PATIENCE, || {
        let whole = summary(&api, &viewer, "");
        let layer = whole.pointer("/pods/0/containers/0/rootfs/usedBytes").and_then(Value::as_u64);
        if layer >= Some(6 * MIB) { Ok(whole) } else { Err(whole["pods"].to_string()) }
    });
    let pod = &whole["pods"][0];
    assert_eq!(pod["podRef"]["name"], "burner-edge", "{pod}");
    assert_eq!(
        (pod["network"]["name"].as_str(), pod["network"]["rxErrors"].as_u64()),
        (Some("eth0"), Some(0))
    );
    let volume = |name: &str| {
        let mut volumes = pod["volume"].as_array().expect("volumes").iter();
        number(volumes.find(|volume| volume["name"] == name).expect(name), "/usedBytes")
    };
    assert!((3 * MIB..4 * MIB).contains(&volume("cache")), "{pod}");
    assert!((24 * MIB..25 * MIB).contains(&volume("ram")), "{pod}");
    assert!(number(pod, "/ephemeral-storage/usedBytes") >= 9 * MIB, "{pod}");
    assert!(number(pod, "/process_stats/process_count") >= 1, "{pod}");
    assert!(number(pod, "/memory/workingSetBytes") >= 20 * MIB, "{pod}");
    for path in ["/fs/usedBytes", "/runtime/imageFs/usedBytes", "/rlimit/curproc", "/memory/workingSetBytes"]
    {
        assert!(number(&whole["node"], path) > 0, "{path}");
    }

    pages_say_the_same(&api, &viewer);

    // The pod's numbers go with it.
    node.delete("burner");
    wait_for("the pod's probes to be forgotten", PATIENCE, || {
        let left = page(&api, &viewer, "/metrics/probes").values("prober_probe_total", &[]);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    logs_of_the_machine_are_guarded(&api, &admin, &viewer);
}

/// All five pages can be read, and show the pod `burner`.
fn pages_say_the_same(api: &Api, viewer: &Person) {
    let of_main = [("container", "main"), ("namespace", "default"), ("pod", "burner-edge")];
    let resource = page(api, viewer, "/metrics/resource");
    assert!(resource.values("container_cpu_usage_seconds_total", &of_main)[0] > 0.0);
    assert!(resource.values("pod_memory_working_set_bytes", &of_main[1..])[0] > 2e7);
    assert_eq!(resource.values("resource_scrape_error", &[]), [0.0]);
    let cadvisor = wait_for("the kernel to have throttled it", PATIENCE, || {
        let cadvisor = page(api, viewer, "/metrics/cadvisor");
        match cadvisor.values("container_cpu_cfs_throttled_periods_total", &of_main)[0] {
            periods if periods > 0.0 => Ok(cadvisor),
            periods => Err(periods.to_string()),
        }
    });
    assert_eq!(cadvisor.values("container_spec_memory_limit_bytes", &of_main), [134_217_728.0]);
    assert_eq!(
        cadvisor
            .values("container_network_receive_bytes_total", &[("pod", "burner-edge"), ("interface", "eth0")])
            .len(),
        1
    );
    assert_eq!(cadvisor.values("machine_memory_bytes", &[]).len(), 1);
    assert!(cadvisor.values("container_processes", &of_main)[0] >= 1.0);
    assert!(cadvisor.values("container_file_descriptors", &of_main)[0] >= 3.0);
    assert!(cadvisor.values("container_ulimits_soft", &of_main)[0] >= 1.0);
    assert_eq!(cadvisor.values("container_memory_failcnt", &of_main).len(), 1);
    assert_eq!(cadvisor.values("container_spec_memory_reservation_limit_bytes", &of_main), [0.0]);
    // What enters for a probe may have one for a moment.
    wait_for("no socket", PATIENCE, || {
        match page(api, viewer, "/metrics/cadvisor").values("container_sockets", &of_main).as_slice() {
            [0.0] => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    let kernel_counts = std::path::Path::new("/proc/pressure/cpu").exists();
    let waited = cadvisor.values("container_pressure_cpu_waiting_seconds_total", &of_main);
    assert!(waited.is_empty() || (kernel_counts && waited[0] > 0.0), "it is throttled: {waited:?}");
    let own = page(api, viewer, "/metrics");
    assert_eq!(own.values("kubelet_node_name", &[("node", "edge")]), [1.0]);
    assert_eq!(own.values("kubernetes_build_info", &[("major", "1"), ("minor", "36")]), [1.0]);
    assert_eq!(own.values("kubelet_pod_start_duration_seconds_count", &[]), [1.0]);
    assert!(own.values("kubelet_pleg_last_seen_seconds", &[])[0] > 1e9);
    assert_eq!(own.values("kubelet_running_pods", &[]), [1.0]);
    assert_eq!(own.values("kubelet_started_containers_total", &[("container_type", "container")]), [1.0]);
    for operation in ["run_podsandbox", "create_container", "start_container", "exec_sync"] {
        let counted = own.values("kubelet_runtime_operations_total", &[("operation_type", operation)]);
        assert!(counted[0] >= 1.0, "{operation}");
    }
    assert!(own.values("process_resident_memory_bytes", &[])[0] > 1e6);
    assert!(own.values("kubelet_http_requests_total", &[("path", "stats")])[0] >= 3.0);
    let probes = page(api, viewer, "/metrics/probes");
    assert!(
        probes.values("prober_probe_total", &[("result", "successful"), ("pod", "burner-edge")])[0] >= 1.0
    );
    let health = page(api, viewer, "/metrics/slis");
    assert_eq!(health.values("kubernetes_healthcheck", &[("name", "syncloop")]), [1.0]);
}

/// The machine's logs are for masters, and nothing leads out of them.
fn logs_of_the_machine_are_guarded(api: &Api, admin: &Person, viewer: &Person) {
    assert_eq!(api.curl(Some(viewer), "/logs/", &[]).0, 403);
    let (code, listing) = api.curl(Some(admin), "/logs/", &[]);
    assert!(code == 200 && listing.contains("<pre>"), "{code} {listing}");
    for path in
        ["/logs/../etc/passwd", "/logs/%2e%2e/etc/passwd", "/logs/..%2fetc%2fpasswd", "/logs//etc/passwd"]
    {
        let (code, body) = api.curl(Some(admin), path, &["--path-as-is"]);
        assert!(code == 404 && !body.contains("root:"), "{path}: {code} {body}");
    }
    let (code, body) = api.curl(Some(admin), "/logs/?query=kubelet", &[]);
    assert!(
        code == 200 && body.contains("<pre>"),
        "queries are off unless they are turned on: {code} {body}"
    );
}

/// With cgroup v1 some kernels count no bytes of disks, of no process: then there is nothing that a panel could show.
fn kernel_counts_no_disk() -> bool {
    fs::read_to_string("/sys/fs/cgroup/blkio/blkio.throttle.io_service_bytes")
        .is_ok_and(|counted| counted.trim() == "Total 0")
}

/// Every panel of the dashboard shows something on a node that has what the panel is about.
fn every_panel_of_the_dashboard_is_fed() {
    let mut node = Node::new();
    let api = Api::of(&mut node.agent, node.runtime.scratch().path());
    let script = "while :; do echo line; dd if=/dev/zero of=/data/file bs=64k count=4 conv=fsync 2>/dev/null; sleep 0.2; done";
    let mut pod = node.pod("shown", script);
    pod["spec"]["hostNetwork"] = json!(false);
    let main = &mut pod["spec"]["containers"][0];
    main["resources"] = json!({"limits": {"cpu": "300m", "memory": "128Mi"}});
    main["volumeMounts"].as_array_mut().expect("mounts").push(json!({"name": "data", "mountPath": "/data"}));
    main["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let volumes = pod["spec"]["volumes"].as_array_mut().expect("volumes");
    volumes.push(json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}}));
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}});
    node.agent.write_manifest("claim.yaml", &claim.to_string());
    node.apply(&pod);
    node.agent.start();
    api.wait(&mut node.agent);
    node.running("shown");
    let viewer = api.person(&node.agent, "viewer", &["--view"]);
    let text = include_str!("../../packaging/grafana/dashboard.json");
    let dashboard: Value = serde_json::from_str(text).expect("JSON");
    let mut queries = dashboard::queries(&dashboard);
    assert!(queries.len() > 20, "{queries:?}");
    if kernel_counts_no_disk() {
        queries.retain(|query| !query.expression.contains("container_fs_writes_bytes_total"));
    }
    // Measurements of disks come a moment later.
    wait_for("every panel to have its series", PATIENCE, || {
        let pages = ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes"];
        let samples: Vec<_> =
            pages.iter().flat_map(|path| page(&api, &viewer, path).samples().to_vec()).collect();
        let empty: Vec<String> = queries
            .iter()
            .filter_map(|query| Some(format!("{}: {}", query.panel, query.trouble(&samples)?)))
            .collect();
        if empty.is_empty() { Ok(()) } else { Err(empty.join("\n")) }
    });
}

on_every_runtime! {
    every_panel_of_the_dashboard_is_fed,
    what_pods_use_is_measured,
}
