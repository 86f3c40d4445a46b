//! Which cgroups count as a lost pod's.

use super::*;

fn with_pods(driver: CgroupDriver, check: impl FnOnce(&CgroupConfig, &CgroupLayout)) {
    let mount = std::env::temp_dir().join(format!("edge-agent-orphans-{driver:?}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&mount);
    let layout = CgroupLayout { driver, root: "/".to_owned(), per_qos: true };
    let uids = [("a-1", QosClass::Guaranteed), ("b", QosClass::Burstable), ("c", QosClass::BestEffort)];
    for (uid, class) in uids {
        let path = pod_cgroup_path(&PodUid::from(uid), class, &layout);
        std::fs::create_dir_all(mount.join(path.trim_start_matches('/'))).unwrap();
    }
    let foreign = class_cgroup_path(QosClass::Guaranteed, &layout);
    std::fs::create_dir_all(mount.join(foreign.trim_start_matches('/')).join("somebody-else")).unwrap();
    check(&CgroupConfig { mount: mount.clone(), v2: true, driver }, &layout);
    std::fs::remove_dir_all(mount).unwrap();
}

#[test]
fn orphan_cgroup_is_removed_only_when_empty() {
    with_pods(CgroupDriver::Systemd, |tree, layout| {
        let [empty, used] = [("b", QosClass::Burstable), ("c", QosClass::BestEffort)]
            .map(|(uid, class)| pod_cgroup_path(&PodUid::from(uid), class, layout));
        std::fs::write(tree.mount.join("cgroup.controllers"), "memory\n").unwrap();
        let scope = tree.mount.join(&used[1..]).join("agent-s1.scope");
        std::fs::create_dir(&scope).unwrap();
        std::fs::write(scope.join("cgroup.procs"), format!("{}\n", std::process::id())).unwrap();
        assert_eq!(remove_if_empty(tree, &empty), Ok(()));
        assert_eq!(remove_if_empty(tree, &used), Err("it contains processes".to_owned()));
        assert!(!cgroup::exists(tree, &empty) && scope.is_dir());
    });
}

#[test]
fn orphan_pod_cgroups_are_found_in_every_qos_class() {
    for driver in [CgroupDriver::Cgroupfs, CgroupDriver::Systemd] {
        with_pods(driver, |tree, layout| {
            let found = |known: &[&str]| {
                let known = known.iter().map(|uid| PodUid::from(*uid)).collect();
                orphans(tree, layout, &known_cgroup_paths(layout, &known))
            };
            let path = |uid: &str, class| pod_cgroup_path(&PodUid::from(uid), class, layout);
            assert_eq!(
                found(&[]),
                [
                    path("a-1", QosClass::Guaranteed),
                    path("b", QosClass::Burstable),
                    path("c", QosClass::BestEffort)
                ]
            );
            assert_eq!(found(&["a-1", "c"]), [path("b", QosClass::Burstable)]);
            assert!(found(&["a-1", "b", "c"]).is_empty());
        });
    }
}
