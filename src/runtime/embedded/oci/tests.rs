//! Compared with what containerd's CRI plugin passes to runc for the same request.

use serde_json::json;

use super::*;
use crate::model::runtime_config::{
    ContainerSecurity, IdRange, LinuxResources, Mount, MountPropagation, NamespaceOptions,
};
use crate::model::types::PodRef;
use crate::runtime::embedded::spec::OciMount;

/// Owned values, so that a test can change its subject.
#[derive(Default)]
struct Case {
    sandbox: SandboxConfig,
    container: ContainerConfig,
    image: ImageDefaults,
    user: ResolvedUser,
    node: NodeFacts,
    init: Option<i32>,
    target: Option<i32>,
    volumes: Vec<(String, PathBuf)>,
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|&text| text.to_owned()).collect()
}

fn case() -> Case {
    let namespaces = NamespaceOptions { pid: NamespaceMode::Container, ..NamespaceOptions::default() };
    Case {
        sandbox: SandboxConfig {
            pod: PodRef { namespace: "default".into(), name: "web".into(), uid: "u1".into() },
            hostname: "web".into(),
            log_directory: "/var/log/pods/x".into(),
            cgroup_parent: "/kubepods/podu1".into(),
            namespaces,
            ..SandboxConfig::default()
        },
        container: ContainerConfig {
            name: "c".into(),
            log_path: "c/0.log".into(),
            image: "sha256:1".into(),
            user_specified_image: "busybox:1".into(),
            security: ContainerSecurity { namespaces, ..ContainerSecurity::default() },
            ..ContainerConfig::default()
        },
        image: ImageDefaults { cmd: texts(&["sh"]), ..ImageDefaults::default() },
        node: NodeFacts {
            cgroup_v2: true,
            capabilities: texts(&["CAP_CHOWN", "CAP_SYS_ADMIN", "CAP_BPF"]),
            hostname: "edge".into(),
            recursive_read_only: true,
            ..NodeFacts::default()
        },
        ..Case::default()
    }
}

impl Case {
    fn run(&self) -> Result<Bundle, OciError> {
        self.run_in(&SandboxDir("/run/s1".into()), 10, &json!({"defaultAction": "SCMP_ACT_ERRNO"}))
    }

    fn run_in(
        &self,
        sandbox_dir: &SandboxDir,
        monitor_pid: i32,
        profile: &Value,
    ) -> Result<Bundle, OciError> {
        bundle(&Input {
            sandbox: &self.sandbox,
            sandbox_id: &"s1".into(),
            container: &self.container,
            id: &"c1".into(),
            image: &self.image,
            layers: &["/l/2".into(), "/l/1".into()],
            sandbox_dir,
            writable_layer: Path::new("/w/c1"),
            image_volumes: &self.volumes,
            monitor_pid,
            pod_init: self.init,
            target_pid: self.target,
            user: &self.user,
            node: &self.node,
            cgroup_parent: &self.sandbox.cgroup_parent,
            cgroups: &["/cg/c1".into()],
            seccomp_filter: Some(Path::new("/f")),
            seccomp_profile: Some(profile),
            external_runtime: &[],
        })
    }

    fn process(&self) -> Process {
        self.run().unwrap().oci.process
    }
}

fn line(mount: &OciMount) -> String {
    format!("{} {} {} {}", mount.kind, mount.source, mount.destination, mount.options.join(","))
}

#[test]
fn a_plain_container() {
    let bundle = case().run().unwrap();
    let lines: Vec<String> = bundle.oci.mounts.iter().map(line).collect();
    assert_eq!(
        lines,
        [
            "proc proc /proc nosuid,noexec,nodev",
            "tmpfs tmpfs /dev nosuid,strictatime,mode=755,size=65536k",
            "devpts devpts /dev/pts nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5",
            "mqueue mqueue /dev/mqueue nosuid,noexec,nodev",
            "sysfs sysfs /sys nosuid,noexec,nodev,ro",
            "cgroup cgroup /sys/fs/cgroup nosuid,noexec,nodev,relatime,ro",
            "bind /run/s1/hostname /etc/hostname rbind,rprivate,rw",
            "bind /run/s1/hosts /etc/hosts rbind,rprivate,rw",
            "bind /run/s1/resolv.conf /etc/resolv.conf rbind,rprivate,rw",
            "bind /run/s1/shm /dev/shm rbind,rprivate,rw",
        ]
    );
    let process = &bundle.oci.process;
    assert_eq!(process.args, ["sh"]);
    assert_eq!(process.env, [DEFAULT_PATH, "HOSTNAME=web", "HOME=/"]);
    assert_eq!((process.cwd.as_str(), process.terminal, process.oom_score_adj), ("/", false, Some(0)));
    assert_eq!(process.capabilities.bounding.len(), 14);
    assert_eq!(process.capabilities.bounding, process.capabilities.permitted);
    assert!(process.capabilities.ambient.is_empty() && process.capabilities.inheritable.is_empty());
    assert!(process.rlimits.is_empty());
    let kinds: Vec<String> =
        bundle.oci.linux.namespaces.iter().map(|one| format!("{}={}", one.kind, one.path)).collect();
    assert_eq!(
        kinds,
        [
            "pid=",
            "ipc=/proc/10/ns/ipc",
            "uts=/proc/10/ns/uts",
            "network=/proc/10/ns/net",
            "mount=",
            "cgroup=",
        ]
    );
    assert_eq!(bundle.oci.linux.cgroups_path, "/kubepods/podu1/c1");
    assert_eq!(bundle.oci.oci_version, "1.1.0", "the latest that crun 1.8 takes");
    assert_eq!(bundle.oci.root, Root { path: "/run/s1/containers/c1/rootfs".into(), readonly: false });
    assert_eq!(bundle.overlay.upper, Path::new("/w/c1/upper"));
    assert_eq!(bundle.log_path, Path::new("/var/log/pods/x/c/0.log"));
    assert!(bundle.seccomp_filter.is_some() && bundle.oci.linux.seccomp.is_some());
    assert_eq!(bundle.oci.annotations["io.kubernetes.cri.image-name"], "busybox:1");
    assert_eq!(bundle.oci.annotations["io.kubernetes.cri.sandbox-id"], "s1");
    let rules = cgroup_rules(&bundle.oci.linux.resources.devices);
    assert_eq!(
        (rules.len(), rules[0].allow, rules[0].kind),
        (12, false, crate::platform::cgroup::devices::DeviceKind::All)
    );
}

#[test]
fn pod_command_and_args_override_the_image_entrypoint() {
    let run = |command: &[&str], args: &[&str], entrypoint: &[&str], cmd: &[&str]| {
        let mut case = case();
        (case.container.command, case.container.args) = (texts(command), texts(args));
        (case.image.entrypoint, case.image.cmd) = (texts(entrypoint), texts(cmd));
        case.run().map(|bundle| bundle.oci.process.args.join(" ")).map_err(|error| error.to_string())
    };
    assert_eq!(run(&[], &[], &["e"], &["c"]), Ok("e c".into()));
    assert_eq!(run(&[], &["a"], &["e"], &["c"]), Ok("e a".into()));
    assert_eq!(run(&["x"], &[], &["e"], &["c"]), Ok("x".into()));
    assert_eq!(run(&["x"], &["a"], &["e"], &["c"]), Ok("x a".into()));
    assert_eq!(run(&[], &[], &[""], &["c"]), Ok("c".into()));
    assert_eq!(run(&[], &[], &[], &[]), Err("no command specified".into()));
    assert_eq!(run(&["a\0"], &[], &[], &[]), Err("command contains a zero byte".into()));
}

#[test]
fn the_environment_is_merged_by_name() {
    let mut case = case();
    case.container.tty = true;
    case.image.env = texts(&["PATH=/bin", "A=1", "B=x=y", "TERM"]);
    case.container.envs =
        vec![("A".into(), "2".into()), ("HOME".into(), "/h".into()), ("A".into(), "3".into())];
    case.user.home = "/web".into();
    assert_eq!(case.process().env, ["PATH=/bin", "HOSTNAME=web", "A=3", "B=x=y", "HOME=/h"]);
    case.container.envs.clear();
    case.image.env.clear();
    case.sandbox.hostname = String::new();
    assert_eq!(case.process().env, [DEFAULT_PATH, "TERM=xterm", "HOSTNAME=edge", "HOME=/web"]);
    let exec = exec_spec(&case.run().unwrap(), &texts(&["ls"]), false);
    assert_eq!((exec.process.args.as_slice(), exec.process.terminal), (["ls".to_owned()].as_slice(), false));
    assert!(exec.seccomp_filter.is_some() && exec.cgroups == [Path::new("/cg/c1")]);
}

#[test]
fn pod_mounts_are_sorted_by_depth_and_override_defaults() {
    let mut case = case();
    let mount =
        |path: &str| Mount { container_path: path.into(), host_path: "/h".into(), ..Mount::default() };
    case.container.mounts = vec![
        mount("/data/deep/er"),
        Mount { readonly: true, ..mount("/data") },
        Mount { readonly: true, recursive_read_only: true, ..mount("/x") },
        Mount { propagation: MountPropagation::HostToContainer, ..mount("/slave") },
        mount("/etc/hosts/"),
        mount("/dev"),
    ];
    case.volumes = vec![("vol".into(), "/v".into()), ("/data".into(), "/never".into())];
    case.container.security.readonly_rootfs = true;
    let bundle = case.run().unwrap();
    let lines: Vec<String> = bundle.oci.mounts.iter().skip(1).map(line).collect();
    assert_eq!(
        lines,
        [
            "sysfs sysfs /sys nosuid,noexec,nodev,ro",
            "cgroup cgroup /sys/fs/cgroup nosuid,noexec,nodev,relatime,ro",
            "bind /h /data rbind,rprivate,ro",
            "bind /h /x rbind,rprivate,rro",
            "bind /h /slave rbind,rslave,rw",
            "bind /h /dev rbind,rprivate,rw",
            "bind /v /vol rbind,rprivate,rw",
            "bind /h /etc/hosts/ rbind,rprivate,rw",
            "bind /run/s1/hostname /etc/hostname rbind,rprivate,ro",
            "bind /run/s1/resolv.conf /etc/resolv.conf rbind,rprivate,ro",
            "bind /run/s1/shm /dev/shm rbind,rprivate,rw",
            "bind /h /data/deep/er rbind,rprivate,rw",
        ]
    );
    assert_eq!(bundle.oci.linux.rootfs_propagation, "rslave");
    assert!(bundle.oci.root.readonly);
    case.container.mounts = vec![Mount { propagation: MountPropagation::Bidirectional, ..mount("/a") }];
    assert_eq!(case.run().unwrap().oci.linux.rootfs_propagation, "rshared");
    let rro = Mount { readonly: true, recursive_read_only: true, ..mount("/a") };
    for bad in [
        mount("a"),
        Mount { host_path: "x".into(), ..mount("/a") },
        Mount { readonly: false, ..rro.clone() },
        Mount { propagation: MountPropagation::HostToContainer, ..rro.clone() },
    ] {
        case.container.mounts = vec![bad];
        assert!(matches!(case.run(), Err(OciError::Mount { .. })), "{:?}", case.container.mounts);
    }
    case.node.recursive_read_only = false;
    case.container.mounts = vec![rro];
    assert!(matches!(case.run(), Err(OciError::Mount { .. })));
}

#[test]
fn the_nodes_namespaces_are_not_joined() {
    let mut case = case();
    let node =
        NamespaceOptions { network: NamespaceMode::Node, pid: NamespaceMode::Node, ipc: NamespaceMode::Node };
    (case.container.security.namespaces, case.sandbox.namespaces, case.node.cgroup_v2) = (node, node, false);
    let bundle = case.run().unwrap();
    assert_eq!(bundle.oci.linux.namespaces, [Namespace { kind: "mount".into(), path: String::new() }]);
    assert!(bundle.oci.mounts.iter().any(|mount| line(mount) == "bind /dev/shm /dev/shm rbind,rprivate,rw"));
    let spec = pod_spec(&case.sandbox, &[]);
    assert!(
        !spec.own_network && !spec.own_ipc && !spec.own_uts && !spec.shared_pid && spec.hostname.is_empty()
    );
    // With a user namespace, sysfs is the node's.
    let range = Some(IdRange { host: 65536, length: 65536 });
    (case.container.security.user_namespace, case.sandbox.user_namespace) = (range, range);
    let bundle = case.run().unwrap();
    assert!(
        bundle.oci.mounts.iter().any(|mount| line(mount) == "bind /sys /sys rbind,rro,nosuid,nodev,noexec")
    );
    assert_eq!(bundle.oci.linux.namespaces[0].path, "/proc/10/ns/user");
    assert_eq!(bundle.oci.linux.uid_mappings[0], IdMapping { container_id: 0, host_id: 65536, size: 65536 });
    case.sandbox.user_namespace = None;
    assert_eq!(case.run(), Err(OciError::Users));
}

#[test]
fn process_namespaces_are_shared_with_whom_the_pod_says() {
    let mut case = case();
    let pid = |case: &Case| case.run().map(|bundle| bundle.oci.linux.namespaces[0].path.clone());
    case.container.security.namespaces.pid = NamespaceMode::Pod;
    assert_eq!(pid(&case), Err(OciError::NoPidNamespace("the pod's init process")));
    case.sandbox.namespaces.pid = NamespaceMode::Node;
    assert_eq!(pid(&case).as_deref(), Ok("/proc/10/ns/ipc"), "the node's, as with containerd");
    case.sandbox.namespaces.pid = NamespaceMode::Pod;
    assert_eq!(pid(&case), Err(OciError::NoPidNamespace("the pod's init process")));
    case.init = Some(11);
    assert_eq!(pid(&case), Ok("/proc/11/ns/pid".into()));
    case.container.security.target = Some("c0".into());
    assert_eq!(pid(&case), Err(OciError::NoPidNamespace("the target container")));
    case.target = Some(12);
    assert_eq!(pid(&case), Ok("/proc/12/ns/pid".into()));
}

#[test]
fn only_the_given_devices_are_created_and_allowed() {
    let mut case = case();
    let tty =
        Device { kind: "c".into(), path: "/dev/modem".into(), major: 188, minor: 0, ..Device::default() };
    let disk = Device { kind: "b".into(), path: "/dev/disk".into(), major: 8, minor: 0, ..Device::default() };
    case.node.requested_devices = vec![(tty.clone(), "rw".to_owned()), (disk, "r".to_owned())];
    case.container.mounts =
        vec![Mount { container_path: "/dev/disk/".into(), host_path: "/dev/sda".into(), ..Mount::default() }];
    let linux = case.run().unwrap().oci.linux;
    assert_eq!(linux.devices, [tty], "the other is mounted already");
    let rules = cgroup_rules(&linux.resources.devices);
    let added: Vec<_> =
        rules[12..].iter().map(|rule| (rule.major, rule.minor, rule.read, rule.write)).collect();
    assert_eq!(added, [(Some(188), Some(0), true, true), (Some(8), Some(0), true, false)]);
}

#[test]
fn privileged_opens_every_door_of_a_sandbox_that_is_made_for_it() {
    let mut case = case();
    case.container.security.privileged = true;
    case.container.security.masked_paths = texts(&["/proc/kcore"]);
    case.node.host_devices = vec![Device { path: "/dev/kvm".into(), ..Device::default() }];
    assert_eq!(case.run(), Err(OciError::Privileged));
    case.sandbox.privileged = true;
    let bundle = case.run().unwrap();
    let linux = &bundle.oci.linux;
    assert_eq!(bundle.oci.process.capabilities.effective, case.node.capabilities);
    assert!(linux.masked_paths.is_empty() && linux.seccomp.is_none() && bundle.seccomp_filter.is_none());
    assert_eq!(linux.devices.len(), 1);
    assert!(linux.resources.devices.len() == 1 && linux.resources.devices[0].allow);
    assert!(linux.namespaces.iter().all(|namespace| namespace.kind != "cgroup"));
    let rw = bundle.oci.mounts.iter().filter(|mount| mount.destination.starts_with("/sys"));
    assert!(rw.map(|mount| mount.options.last().unwrap()).all(|option| option == "rw"));
}

#[test]
fn capabilities_are_added_and_dropped_one_by_one_or_all() {
    let run = |add: &[&str], drop: &[&str]| {
        let mut case = case();
        case.container.security.add_capabilities = texts(add);
        case.container.security.drop_capabilities = texts(drop);
        case.process().capabilities.effective
    };
    assert!(run(&["net_admin"], &[]).contains(&"CAP_NET_ADMIN".to_owned()));
    assert_eq!(run(&["NET_BIND_SERVICE"], &["ALL"]), ["CAP_NET_BIND_SERVICE"]);
    assert_eq!(run(&["ALL"], &["CHOWN"]), ["CAP_SYS_ADMIN", "CAP_BPF"]);
    assert_eq!(run(&[], &["CAP_CHOWN", "kill"]).len(), 12);
    assert!(run(&[], &["ALL"]).is_empty());
}

#[test]
fn profiles_and_labels_are_for_nodes_that_have_them() {
    let mut case = case();
    case.container.security.apparmor = Some(AppArmorChoice::Localhost("own".into()));
    assert_eq!(case.run(), Err(OciError::AppArmor("own".into())));
    (case.node.apparmor, case.node.apparmor_default) = (true, "default".into());
    assert_eq!(case.process().apparmor_profile, "own");
    case.container.security.apparmor = None;
    assert_eq!(case.process().apparmor_profile, "default");
    case.container.security.apparmor = Some(AppArmorChoice::RuntimeDefault);
    assert_eq!(case.process().apparmor_profile, "default");
    case.container.security.apparmor = Some(AppArmorChoice::Unconfined);
    assert_eq!(case.process().apparmor_profile, "");
    (case.container.security.privileged, case.sandbox.privileged) = (true, true);
    for (choice, profile) in [
        (None, ""),
        (Some(AppArmorChoice::RuntimeDefault), ""),
        (Some(AppArmorChoice::Localhost("own".into())), "own"),
    ] {
        case.container.security.apparmor = choice;
        assert_eq!(case.process().apparmor_profile, profile, "privileged");
    }
    (case.container.security.privileged, case.sandbox.privileged) = (false, false);
    case.sandbox.selinux = Some(SelinuxLabel { level: "s0:c1".into(), ..SelinuxLabel::default() });
    assert_eq!(case.process().selinux_label, "");
    case.node.selinux = true;
    let labels = |case: &Case| {
        let oci = case.run().unwrap().oci;
        [oci.process.selinux_label, oci.linux.mount_label]
    };
    assert_eq!(labels(&case), ["system_u:system_r:container_t:s0:c1", ""], "the policy has no containers");
    case.node.selinux_containers = true;
    let both = ["system_u:system_r:container_t:s0:c1", "system_u:object_r:container_file_t:s0:c1"];
    assert_eq!(labels(&case), both);
    case.sandbox.selinux = None;
    assert_eq!(labels(&case), SELINUX_LABELS);
    case.node.selinux_containers = false;
    assert_eq!(labels(&case), ["", ""], "nothing is asked for, and there is nothing for it");
}

#[test]
fn missing_default_apparmor_profile_fails_explicit_requests() {
    let mut security = ContainerSecurity::default();
    assert_eq!(may_lack_default_profile(&security, "no parser"), Ok(()));
    security.apparmor = Some(AppArmorChoice::RuntimeDefault);
    let why = may_lack_default_profile(&security, "no parser").unwrap_err().to_string();
    assert_eq!(why, "apparmor profile RuntimeDefault is asked for and cannot be loaded: no parser");
}

/// A part of a label.
type Part = fn(&mut SelinuxLabel) -> &mut String;

#[test]
fn an_selinux_label_cannot_become_options_of_a_mount() {
    let mut case = case();
    (case.node.selinux, case.node.selinux_containers) = (true, true);
    let mut refused = |field: Part, value: &str| {
        let mut label = SelinuxLabel::default();
        value.clone_into(field(&mut label));
        case.container.security.selinux = Some(label);
        case.run().map(|bundle| bundle.oci.linux.mount_label).map_err(|error| error.to_string())
    };
    let fields: [(&str, Part); 4] = [
        ("user", |label| &mut label.user),
        ("role", |label| &mut label.role),
        ("type", |label| &mut label.type_),
        ("level", |label| &mut label.level),
    ];
    for (name, field) in fields {
        for value in ["s0\",upperdir=/", "s0 ", "s0\n", "s0\0", "s0\\", "s0=", "s\u{e9}"] {
            let why = refused(field, value).unwrap_err();
            assert!(why.starts_with(&format!("selinux_options.{name}: ")), "{why}");
        }
    }
    assert!(refused(fields[2].1, "a:b").is_err(), "a type is one part");
    let label = refused(fields[3].1, "s0-s0:c0.c1023,c7").unwrap();
    assert_eq!(label, "system_u:object_r:container_file_t:s0-s0:c0.c1023,c7");
}

#[test]
fn resources_have_the_specifications_form() {
    let mut case = case();
    case.container.resources = LinuxResources {
        cpu_shares: 512,
        memory_limit_bytes: 100,
        oom_score_adj: 5000,
        hugepage_limits: vec![("2MB".into(), 7)],
        ..LinuxResources::default()
    };
    case.node.cgroup_v2 = false;
    let without = serde_json::to_value(&case.run().unwrap().oci.linux.resources).unwrap();
    assert_eq!(without["hugepageLimits"], json!(null), "there is no such hierarchy");
    case.node.cgroup_v2 = true;
    let bundle = case.run().unwrap();
    let value = serde_json::to_value(&bundle.oci.linux.resources).unwrap();
    assert_eq!(value["cpu"], json!({"shares": 512}));
    assert_eq!(value["memory"], json!({"limit": 100, "swap": 100}));
    assert_eq!(value["hugepageLimits"], json!([{"pageSize": "2MB", "limit": 7}]));
    assert_eq!(value["devices"][0], json!({"allow": false, "type": "a", "access": "rwm"}));
    assert_eq!(bundle.oci.linux.cgroups_path, "/kubepods/podu1/c1");
    assert_eq!(bundle.oci.process.oom_score_adj, Some(1000));
}

#[test]
fn a_bundle_is_read_back_as_it_was_written() {
    let bundle = case().run().unwrap();
    let value = serde_json::to_value(&bundle).unwrap();
    assert_eq!(serde_json::from_value::<Bundle>(value).unwrap(), bundle);
}

/// Ends a process that a test has started.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The guarantee for external runtimes, where one is installed: runc takes the specification, and the
/// container runs as specified.
#[test]
fn runc_runs_it() {
    use std::fs;
    use std::process::Command;

    use crate::runtime::embedded::seccomp::{Arch, default_profile, to_oci};

    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let (Some(arch), true) = (Arch::node(), has("runc") && Path::new("/bin/busybox").exists()) else {
        return;
    };
    let home = std::env::temp_dir().join(format!("edge-agent-oci-{}", std::process::id()));
    let sandbox_dir = SandboxDir(home.join("s1"));
    let rootfs = sandbox_dir.container("c1").rootfs();
    fs::create_dir_all(rootfs.join("bin")).unwrap();
    fs::create_dir_all(sandbox_dir.shm()).unwrap();
    fs::copy("/bin/busybox", rootfs.join("bin/busybox")).unwrap();
    for file in [sandbox_dir.hostname(), sandbox_dir.hosts(), sandbox_dir.resolv_conf()] {
        fs::write(file, "of the pod\n").unwrap();
    }
    // Takes the place of the monitor.
    let monitor = Child(Command::new("unshare").args(["-n", "-i", "-u", "sleep", "1000"]).spawn().unwrap());
    let monitor_pid = i32::try_from(monitor.0.id()).unwrap();
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while fs::read_link(format!("/proc/{monitor_pid}/ns/net")).unwrap() == own {
        assert!(std::time::Instant::now() < deadline, "no namespaces");
        std::thread::yield_now();
    }
    let mut case = case();
    case.node.cgroup_v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    case.sandbox.cgroup_parent = format!("/edge-agent-oci-{}", std::process::id());
    case.container.security.masked_paths = texts(&["/proc/kcore"]);
    case.container.security.readonly_rootfs = true;
    case.container.security.no_new_privs = true;
    case.container.resources =
        LinuxResources { memory_limit_bytes: 64 << 20, oom_score_adj: 900, ..LinuxResources::default() };
    case.user = ResolvedUser { uid: 7, gid: 8, additional_gids: vec![8, 9], home: String::new() };
    case.container.command = texts(&[
        "/bin/busybox",
        "sh",
        "-c",
        "cd /bin; ./busybox id -u; ./busybox id -G; ./busybox grep -E 'Seccomp:|NoNewPrivs|CapEff|CapBnd' /proc/self/status; \
         ./busybox cat /etc/hosts /proc/self/oom_score_adj; ./busybox touch /x; ./busybox unshare -U true; echo $HOSTNAME",
    ]);
    let profile = to_oci(&default_profile(&[], arch));
    let bundle = case.run_in(&sandbox_dir, monitor_pid, &profile).unwrap();
    let json = serde_json::to_vec(&bundle.oci).unwrap();
    fs::write(home.join("config.json"), json).unwrap();
    let name = format!("edge-agent-oci-{}", std::process::id());
    let outcome = Command::new("runc")
        .args([
            "--root".as_ref(),
            home.join("runc").as_os_str(),
            "run".as_ref(),
            "--bundle".as_ref(),
            home.as_os_str(),
        ])
        .arg(name)
        .output()
        .unwrap();
    drop(monitor);
    fs::remove_dir_all(&home).unwrap();
    let config = crate::platform::cgroup::CgroupConfig {
        mount: "/sys/fs/cgroup".into(),
        v2: case.node.cgroup_v2,
        driver: crate::model::runtime_config::CgroupDriver::Cgroupfs,
    };
    let _ = crate::platform::cgroup::remove(&config, &case.sandbox.cgroup_parent);
    let (said, complained) =
        (String::from_utf8_lossy(&outcome.stdout), String::from_utf8_lossy(&outcome.stderr));
    let words: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(
        words,
        [
            "7",
            "8",
            "9",
            "CapEff:",
            "0000000000000000",
            "CapBnd:",
            "00000000a80425fb",
            "NoNewPrivs:",
            "1",
            "Seccomp:",
            "2",
            "of",
            "the",
            "pod",
            "900",
            "web",
        ],
        "{complained}"
    );
    assert!(
        complained.contains("Read-only file system") && complained.contains("Operation not permitted"),
        "{complained}"
    );
}
