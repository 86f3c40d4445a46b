//! Tables for QoS, sums and cgroup values.
#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use super::*;
use crate::model::api::decode::decode;
use serde_json::{Value, json};

fn pod(spec: Value) -> Pod {
    decode::<Pod>(json!({"metadata": {"uid": "a-b"}, "spec": spec})).unwrap().object
}

fn container(requests: Value, limits: Value) -> Value {
    json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
}

#[test]
fn the_qos_class_depends_on_cpu_and_memory_of_every_container() {
    let both = || json!({"cpu": "1", "memory": "1Gi"});
    let cases = [
        (json!([container(json!({}), json!({}))]), QosClass::BestEffort),
        (json!([container(json!({"cpu": "0"}), json!({"nvidia.com/gpu": 1}))]), QosClass::BestEffort),
        (json!([container(both(), both())]), QosClass::Guaranteed),
        (json!([container(json!({}), both())]), QosClass::Guaranteed),
        (json!([container(json!({"cpu": "1"}), json!({"cpu": "1"}))]), QosClass::Burstable),
        (json!([container(json!({"cpu": "500m", "memory": "1Gi"}), both())]), QosClass::Burstable),
        (json!([container(both(), both()), container(json!({}), json!({}))]), QosClass::Burstable),
    ];
    for (containers, expected) in cases {
        assert_eq!(qos_class(&pod(json!({"containers": containers}))), expected, "{containers}");
    }
    let by_pod = json!({"resources": {"requests": both(), "limits": both()}, "containers": [{"name": "c"}]});
    assert_eq!(qos_class(&pod(by_pod)), QosClass::Guaranteed);
}

#[test]
fn shares_and_quota_keep_the_kernels_bounds() {
    assert_eq!([0, 1, 250, 1000, 1_000_000].map(cpu_shares), [2, 2, 256, 1024, 262_144]);
    assert_eq!([0, 1, 500, 2000].map(|cpu| cpu_quota(cpu, 100_000)), [0, 1000, 50_000, 200_000]);
}

#[test]
fn init_containers_count_by_their_peak_and_sidecars_always() {
    let init = |name: &str, cpu: &str, policy: Option<&str>| json!({"name": name, "restartPolicy": policy, "resources": {"requests": {"cpu": cpu}}});
    let pod = pod(json!({
        "overhead": {"cpu": "10m"},
        "initContainers": [
            init("first", "900m", None),
            init("side", "100m", Some("Always")),
            init("second", "950m", None),
        ],
        "containers": [container(json!({"cpu": "300m"}), json!({}))],
    }));
    assert_eq!(pod_requests(&pod)["cpu"], Quantity::from_milli(1060));
}

#[test]
fn a_burstable_container_gets_its_values() {
    let pod = pod(json!({"containers": [container(
        json!({"cpu": "250m", "memory": "256Mi"}),
        json!({"memory": "512Mi", "hugepages-2Mi": "4Mi"}),
    )]}));
    let node = NodeCapacity {
        memory_bytes: 1 << 30,
        page_sizes: vec![2 << 20, 1 << 30],
        cgroup_v2: true,
        swap_accounting: true,
        ..Default::default()
    };
    let resources = container_resources(&pod, &pod.spec.containers[0], &node, &ResourceFlags::default());
    assert_eq!(
        resources,
        LinuxResources {
            cpu_period: 100_000,
            cpu_quota: 0,
            cpu_shares: 256,
            memory_limit_bytes: 512 << 20,
            memory_swap_limit_bytes: 512 << 20,
            oom_score_adj: 750,
            hugepage_limits: vec![("2MB".into(), 4 << 20), ("1GB".into(), 0)],
            unified: BTreeMap::from([("memory.oom.group".into(), "1".into())]),
            ..LinuxResources::default()
        }
    );
}

#[test]
fn memory_qos_slows_a_container_down_below_its_limit() {
    let node = NodeCapacity { cgroup_v2: true, ..NodeCapacity::default() };
    let high = |requests, limits, memory_qos| {
        let pod = pod(json!({"containers": [container(requests, limits)]}));
        let flags = ResourceFlags { memory_qos, ..ResourceFlags::default() };
        let resources = container_resources(&pod, &pod.spec.containers[0], &node, &flags);
        resources.unified.get(MEMORY_HIGH).cloned()
    };
    let most = Some((900_000, 1_000 << 20));
    let between = json!({"memory": "100Mi"});
    assert_eq!(high(between.clone(), json!({"memory": "200Mi"}), most), Some((190_i64 << 20).to_string()));
    assert_eq!(high(between.clone(), json!({}), most), Some((910_i64 << 20).to_string()));
    assert_eq!(high(between.clone(), json!({"memory": "100Mi"}), most), None, "nothing between them");
    assert_eq!(high(between, json!({"memory": "200Mi"}), None), None);
    assert_eq!(
        high(json!({"memory": "1"}), json!({"memory": "5000"}), most),
        Some("4096".to_owned()),
        "whole pages"
    );
}

#[test]
fn a_pods_cgroup_is_limited_where_all_its_containers_are() {
    let node = NodeCapacity { page_sizes: vec![2 << 20], ..Default::default() };
    let flags = ResourceFlags { pod_pids_limit: Some(100), ..ResourceFlags::default() };
    let limited =
        container(json!({"cpu": "250m"}), json!({"cpu": "500m", "memory": "64Mi", "hugepages-2Mi": "4Mi"}));
    let open = container(json!({"cpu": "1"}), json!({"memory": "64Mi"}));
    let values = |containers: Value, flags: &ResourceFlags| {
        pod_resources(&pod(json!({"containers": containers})), &node, flags)
    };
    let pages = |bytes| vec![("2MB".to_owned(), Some(bytes))];
    assert_eq!(
        values(json!([limited, open]), &flags),
        CgroupValues {
            cpu_shares: Some(1280),
            memory_bytes: Some(128 << 20),
            pids: Some(100),
            huge_pages: pages(4 << 20),
            ..CgroupValues::default()
        }
    );
    let one = values(json!([limited]), &flags);
    assert_eq!((one.cpu_quota, one.cpu_period), (Some(50_000), Some(100_000)));
    let without_quota = values(json!([limited]), &ResourceFlags { cpu_cfs_quota: false, ..flags });
    assert_eq!(without_quota.cpu_quota, Some(-1));
    assert_eq!(
        values(json!([{"name": "c"}]), &ResourceFlags::default()),
        CgroupValues { cpu_shares: Some(2), huge_pages: pages(0), ..CgroupValues::default() }
    );
}

#[test]
fn classes_weigh_what_their_pods_ask_for() {
    let node = NodeCapacity { page_sizes: vec![2 << 20], ..Default::default() };
    let burstable = pod(json!({"containers": [container(json!({"cpu": "500m"}), json!({}))]}));
    let guaranteed = json!({"cpu": "1", "memory": "1Gi"});
    let guaranteed = pod(json!({"containers": [container(guaranteed.clone(), guaranteed)]}));
    assert_eq!([&burstable, &guaranteed].map(burstable_cpu_milli), [500, 0]);
    let values = qos_values(QosClass::Burstable, 1500, &node);
    assert_eq!((values.cpu_shares, values.huge_pages), (Some(1536), vec![("2MB".to_owned(), None)]));
    assert_eq!(qos_values(QosClass::BestEffort, 1500, &node).cpu_shares, Some(2));
    assert_eq!(qos_values(QosClass::Burstable, 0, &node).cpu_shares, Some(2));
}

#[test]
fn oom_scores_stay_between_guaranteed_and_best_effort() {
    let score = |memory: &str, capacity: i64| {
        let pod = pod(json!({"containers": [container(json!({"memory": memory}), json!({}))]}));
        oom_score_adj(&pod, &pod.spec.containers[0], capacity)
    };
    assert_eq!(score("1", 1 << 40), 999);
    assert_eq!(score("1Gi", 1 << 30), 3);
    assert_eq!(score("512Mi", 1 << 30), 500);
}

#[test]
fn cgroup_names_follow_the_driver() {
    let mut layout = CgroupLayout { driver: CgroupDriver::Cgroupfs, root: "/".into(), per_qos: true };
    let uid = PodUid::from("a-b");
    assert_eq!(pod_cgroup_parent(&uid, QosClass::Burstable, &layout), "/kubepods/burstable/poda-b");
    assert_eq!(pod_cgroup_parent(&uid, QosClass::Guaranteed, &layout), "/kubepods/poda-b");
    layout.driver = CgroupDriver::Systemd;
    assert_eq!(pod_cgroup_parent(&uid, QosClass::BestEffort, &layout), "kubepods-besteffort-poda_b.slice");
    assert_eq!(
        pod_cgroup_path(&uid, QosClass::BestEffort, &layout),
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_b.slice"
    );
    assert_eq!(class_cgroup_path(QosClass::Guaranteed, &layout), "/kubepods.slice");
    for name in ["kube-own", "/kube-own.slice", "/kube.slice/kube-own.slice"] {
        assert_eq!(named_cgroup_path(name, CgroupDriver::Systemd), "/kube.slice/kube-own.slice", "{name}");
    }
    assert_eq!(named_cgroup_path("/kube/own", CgroupDriver::Cgroupfs), "/kube/own");
    layout.per_qos = false;
    assert_eq!(pod_cgroup_parent(&uid, QosClass::BestEffort, &layout), "/");
}

#[test]
fn a_critical_pod_gets_no_swap_however_it_says_that_it_is() {
    let node = NodeCapacity {
        memory_bytes: 1 << 30,
        swap_bytes: 1 << 30,
        cgroup_v2: true,
        swap_accounting: true,
        ..Default::default()
    };
    let flags = ResourceFlags { limited_swap: true, ..ResourceFlags::default() };
    let swap = |more: Value, source: &str| {
        let mut spec =
            json!({"containers": [container(json!({"memory": "256Mi"}), json!({"memory": "512Mi"}))]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut pod = pod(spec);
        pod.metadata.annotations.insert("kubernetes.io/config.source".to_owned(), source.to_owned());
        let resources = container_resources(&pod, &pod.spec.containers[0], &node, &flags);
        resources.memory_swap_limit_bytes - resources.memory_limit_bytes
    };
    assert_eq!(swap(json!({}), "api"), 256 << 20);
    assert_eq!(swap(json!({}), "file"), 0);
    assert_eq!(swap(json!({"priority": 2_000_000_000}), "api"), 0);
    assert_eq!(swap(json!({"priorityClassName": "system-cluster-critical"}), "api"), 0);
}
