use super::*;
use crate::model::types::PodRef;
use crate::runtime::{ContainerSecurity, Device, IdRange, ImageMount, NamespaceOptions};

fn text(value: &str) -> String {
    value.to_owned()
}

fn pod() -> SandboxConfig {
    SandboxConfig {
        pod: PodRef { namespace: text("ns"), name: text("web"), uid: "u1".into() },
        attempt: 2,
        hostname: text("web"),
        log_directory: text("/var/log/pods/ns_web_u1"),
        labels: BTreeMap::from([(text("app"), text("x"))]),
        annotations: BTreeMap::from([(text("note"), text("y"))]),
        cgroup_parent: text("/kubepods/podu1"),
        ..SandboxConfig::default()
    }
}

fn main_container() -> ContainerConfig {
    ContainerConfig {
        name: text("main"),
        attempt: 1,
        image: text("sha256:1"),
        command: vec![text("sh")],
        args: vec![text("-c"), text("true")],
        envs: vec![(text("A"), text("1=2"))],
        log_path: text("main/1.log"),
        ..ContainerConfig::default()
    }
}

fn made(config: &ContainerConfig, pod: &SandboxConfig, facts: &EngineFacts) -> Value {
    container(&SandboxId::from("s1"), config, pod, None, facts).expect("the engine can do this")
}

fn refused(change: impl FnOnce(&mut ContainerConfig)) -> String {
    let mut config = main_container();
    change(&mut config);
    let facts = EngineFacts { version: 41, ..EngineFacts::default() };
    container(&SandboxId::from("s1"), &config, &pod(), None, &facts).unwrap_err()
}

#[test]
fn a_sandbox_has_the_kubelets_name_labels_and_namespaces() {
    let facts = EngineFacts { lowest_oom_score: Some(-500), ..EngineFacts::default() };
    assert_eq!(sandbox_name(&pod()), "k8s_POD_web_ns_u1_2");
    let body = sandbox(&pod(), &facts).expect("made");
    assert_eq!(body["Image"], PAUSE_IMAGE);
    assert_eq!(body["Hostname"], "web");
    assert_eq!(body["Labels"], json!({ "app": "x", "annotation.note": "y", KIND: "podsandbox" }));
    let host = &body["HostConfig"];
    assert_eq!((&host["NetworkMode"], &host["IpcMode"]), (&json!("none"), &json!("shareable")));
    assert_eq!((&host["OomScoreAdj"], &host["CgroupParent"]), (&json!(-500), &json!("/kubepods/podu1")));
    assert_eq!(host.get("PidMode"), None);
    assert_eq!(host["Init"], false, "whatever daemon.json says");
}

#[test]
fn namespaces_of_the_node_are_the_nodes_and_a_slice_is_named() {
    let on_node = NamespaceMode::Node;
    let namespaces = NamespaceOptions { network: on_node, pid: on_node, ipc: on_node };
    let mut config = SandboxConfig { namespaces, hostname: String::new(), ..pod() };
    config.cgroup_parent = text("/kubepods.slice/kubepods-podu1.slice");
    config.runtime_handler = text("docker");
    let facts = EngineFacts { systemd: true, ..EngineFacts::default() };
    let body = sandbox(&config, &facts).expect("made");
    let host = &body["HostConfig"];
    for mode in ["NetworkMode", "IpcMode", "PidMode", "UTSMode"] {
        assert_eq!(host[mode], "host", "{mode}");
    }
    assert_eq!(host["CgroupParent"], "kubepods-podu1.slice");
    assert_eq!((host.get("Runtime"), body.get("Hostname")), (None, None));
}

#[test]
fn a_container_joins_its_sandbox_and_rotates_its_log() {
    let facts = EngineFacts { version: 41, log: Some((10_485_760, 5)), ..EngineFacts::default() };
    let body = made(&main_container(), &pod(), &facts);
    assert_eq!((&body["Entrypoint"], &body["Cmd"]), (&json!(["sh"]), &json!(["-c", "true"])));
    assert_eq!((&body["Env"], &body["Healthcheck"]), (&json!(["A=1=2"]), &json!({ "Test": ["NONE"] })));
    assert_eq!(body["Labels"][SANDBOX_ID], "s1");
    assert_eq!(body["Labels"][LOG_PATH], "/var/log/pods/ns_web_u1/main/1.log");
    let host = &body["HostConfig"];
    assert_eq!((&host["NetworkMode"], &host["PidMode"]), (&json!("container:s1"), &json!("container:s1")));
    let log = json!({ "Type": "json-file", "Config": { "max-size": "10485760", "max-file": "5" } });
    assert_eq!(host["LogConfig"], log);
    assert_eq!(host["SecurityOpt"], json!(["seccomp=unconfined"]));
    // procMount: Unmasked is an empty list; without one the engine would hide paths.
    assert_eq!(host["MaskedPaths"], json!([]));
    assert_eq!(host["Init"], false, "whatever daemon.json says");
}

#[test]
fn a_privileged_container_sees_the_nodes_cgroups() {
    let facts = |version| EngineFacts { version, ..EngineFacts::default() };
    let mut config = main_container();
    let mode = |config: &ContainerConfig, version| {
        made(config, &pod(), &facts(version))["HostConfig"].get("CgroupnsMode").cloned()
    };
    assert_eq!(mode(&config, 41), None);
    config.security.privileged = true;
    assert_eq!(mode(&config, 41), Some(json!("host")));
    assert_eq!(mode(&config, 40), None, "it does not know this");
}

#[test]
fn users_capabilities_and_profiles_are_the_engines_options() {
    let mut config = main_container();
    config.security = ContainerSecurity {
        run_as_user: Some(1000),
        run_as_group: Some(2000),
        supplemental_groups: vec![3000],
        add_capabilities: vec![text("NET_ADMIN")],
        drop_capabilities: vec![text("ALL")],
        no_new_privs: true,
        seccomp: SeccompChoice::Localhost(text("/p.json")),
        apparmor: Some(AppArmorChoice::Localhost(text("mine"))),
        selinux: Some(SelinuxLabel { level: text("s0:c1"), ..SelinuxLabel::default() }),
        ..ContainerSecurity::default()
    };
    let sandbox = SandboxId::from("s1");
    let body = container(&sandbox, &config, &pod(), Some("{}"), &EngineFacts::default()).expect("made");
    assert_eq!(body["User"], "1000:2000");
    let host = &body["HostConfig"];
    assert_eq!((&host["CapAdd"], &host["CapDrop"]), (&json!(["NET_ADMIN"]), &json!(["ALL"])));
    assert_eq!(host["GroupAdd"], json!(["3000"]));
    let options = json!(["label=level:s0:c1", "no-new-privileges", "seccomp={}", "apparmor=mine"]);
    assert_eq!(host["SecurityOpt"], options);
}

#[test]
fn swap_is_no_more_than_the_memory_unless_it_is_given() {
    let limits = |swap| LinuxResources {
        memory_limit_bytes: 64 << 20,
        memory_swap_limit_bytes: swap,
        cpu_shares: 2,
        cpu_quota: -1,
        ..LinuxResources::default()
    };
    let body = Value::from(resources(&limits(0)));
    assert_eq!((&body["Memory"], &body["MemorySwap"]), (&json!(64 << 20), &json!(64 << 20)));
    assert_eq!((&body["CpuQuota"], body.get("CpuPeriod")), (&json!(-1), None));
    assert_eq!(resources(&limits(-1))["MemorySwap"], -1);
    assert!(resources(&LinuxResources::default()).is_empty(), "nothing is changed");
}

#[test]
fn mounts_say_how_far_they_are_read_only() {
    let mut config = main_container();
    config.mounts = vec![Mount {
        container_path: text("/data"),
        host_path: text("/srv"),
        readonly: true,
        propagation: MountPropagation::HostToContainer,
        ..Mount::default()
    }];
    let old = EngineFacts { version: 43, ..EngineFacts::default() };
    let new = EngineFacts { version: 44, ..EngineFacts::default() };
    let options = |config: &ContainerConfig, facts: &EngineFacts| {
        made(config, &pod(), facts)["HostConfig"]["Mounts"][0]["BindOptions"].clone()
    };
    assert_eq!(options(&config, &old), json!({ "Propagation": "rslave" }));
    assert_eq!(options(&config, &new), json!({ "Propagation": "rslave", "ReadOnlyNonRecursive": true }));
    config.mounts[0].recursive_read_only = true;
    assert_eq!(options(&config, &new)["ReadOnlyForceRecursive"], true);
    config.mounts[0].recursive_read_only = false;
    config.mounts[0].selinux_relabel = true;
    assert_eq!(made(&config, &pod(), &old)["HostConfig"]["Binds"], json!(["/srv:/data:ro,Z,rslave"]));
}

#[test]
fn what_the_engine_cannot_do_is_refused_by_name() {
    let mount = |change: fn(&mut Mount)| {
        let mut mount = Mount {
            container_path: text("/data"),
            host_path: text("/a:b"),
            readonly: true,
            ..Mount::default()
        };
        change(&mut mount);
        refused(|config| config.mounts = vec![mount])
    };
    assert!(mount(|it| it.image = Some(ImageMount::default())).contains("image volumes are not supported"));
    assert!(mount(|it| it.recursive_read_only = true).contains("needs Docker Engine 25"));
    assert!(mount(|it| it.selinux_relabel = true).contains("colon in its path"));
    assert!(refused(|config| config.cdi_devices = vec![text("a.b/c=d")]).contains("a.b/c=d"));
    let device = Device { container_path: text("/dev/x"), uid: Some(1), ..Device::default() };
    assert!(refused(|config| config.devices = vec![device]).contains("/dev/x"));
    let strict = SupplementalGroupsPolicy::Strict;
    assert!(refused(|config| config.security.supplemental_groups_policy = strict).contains("Strict"));
    let users = SandboxConfig { user_namespace: Some(IdRange::default()), ..pod() };
    assert!(sandbox(&users, &EngineFacts::default()).unwrap_err().contains("hostUsers"));
}
