//! The checks of each command beside kubeadm's: their names in its order, and their severities.

use super::super::super::facts::etcd::ExternalEtcdAccess;
use super::*;
use crate::platform::sys::listeners::Listener;

const KUBELET_CONF: &str = "FileAvailable--etc-kubernetes-kubelet.conf";
const BOOTSTRAP_CONF: &str = "FileAvailable--etc-kubernetes-bootstrap-kubelet.conf";
const AUTHORITY: &str = "FileAvailable--etc-kubernetes-pki-ca.crt";
const IPV4: &str = "FileContent--proc-sys-net-ipv4-ip_forward";
const IPV6: &str = "FileContent--proc-sys-net-ipv6-conf-default-forwarding";

/// kubeadm's checks of every node. Those of the runtime are elsewhere: they run a container.
const COMMON: [&str; 9] = [
    "Swap",
    "FileExisting-losetup",
    "FileExisting-mount",
    "FileExisting-cp",
    "SystemVerification",
    "Hostname",
    "KubeletVersion",
    "Service-kubelet",
    "Port-10250",
];
/// Of a control plane.
const CONTROL_PLANE: [&str; 15] = [
    "NumCPU",
    "Mem",
    "KubernetesVersion",
    "Firewalld",
    "Port-7443",
    "Port-10259",
    "Port-10257",
    "FileAvailable--etc-kubernetes-manifests-kube-apiserver.yaml",
    "FileAvailable--etc-kubernetes-manifests-kube-controller-manager.yaml",
    "FileAvailable--etc-kubernetes-manifests-kube-scheduler.yaml",
    "FileAvailable--etc-kubernetes-manifests-etcd.yaml",
    "HTTPProxy",
    "HTTPProxyCIDR",
    "HTTPProxyCIDR",
    "HTTPProxyCIDR",
];
const LOCAL_ETCD: [&str; 3] = ["Port-2379", "Port-2380", "DirAvailable--data-etcd"];
const ETCD_FILES: [&str; 3] = ["ExternalEtcdClientCertificates"; 3];
/// Checks that kubeadm does not have.
const OWN: [&str; 14] = [
    "Port-10248",
    "DirAvailable--etc-kubernetes-manifests",
    "OverlayFS",
    "DefaultRoute",
    "PodCIDR",
    "Writable--var-lib-kubelet",
    "Writable--var-log-pods",
    "Writable--etc-kubernetes",
    "Writable--run-agent",
    "DiskSpace",
    "DiskType",
    "Clock",
    "RTC",
    "Entropy",
];

pub(super) fn wanted_by(task: PreflightTask) -> Purpose {
    let needs = match task {
        PreflightTask::Alone => ClusterNeeds::default(),
        PreflightTask::Join | PreflightTask::JoinControlPlane => {
            ClusterNeeds { host: "192.0.2.1".to_owned(), ..ClusterNeeds::default() }
        }
        PreflightTask::Init | PreflightTask::Instance | PreflightTask::Upgrade => ClusterNeeds {
            host: "192.0.2.10".to_owned(),
            version: "v1.36.2".to_owned(),
            bind_port: 7443,
            cidrs: ["10.96.0.0/12", "10.244.0.0/16", "fd00:1::/56"].map(str::to_owned).into(),
            manifests: PathBuf::from("/etc/kubernetes/manifests"),
            etcd_dir: Some(PathBuf::from("/data/etcd")),
            external_etcd: None,
        },
    };
    Purpose { task, needs, node_name: "box-1".to_owned(), ..wanted() }
}

/// With an etcd elsewhere.
fn external(task: PreflightTask) -> Purpose {
    let mut wanted = wanted_by(task);
    wanted.needs.etcd_dir = None;
    wanted.needs.external_etcd = Some(ExternalEtcdAccess {
        endpoints: vec!["https://192.0.2.20:2379".to_owned()],
        ca_file: "/e/ca.crt".to_owned(),
        cert_file: "/e/client.crt".to_owned(),
        key_file: "/e/client.key".to_owned(),
    });
    wanted
}

/// Facts with everything that only clusters demand.
pub(super) fn ready(facts: MachineFacts) -> MachineFacts {
    MachineFacts {
        programs: vec!["losetup", "mount", "cp"],
        ipv4_forwarding: Some(true),
        ipv6_forwarding: Some(true),
        etcd: vec![("https://192.0.2.20:2379/version".to_owned(), Ok("3.5.24".to_owned()))],
        files: ["/e/ca.crt", "/e/client.crt", "/e/client.key"].map(PathBuf::from).into(),
        ..facts
    }
}

fn healthy(name: &str) -> MachineFacts {
    MachineFacts { memory: 4 << 30, cpus: 2, ..ready(Tree::new(name).facts()) }
}

/// Names that are kubeadm's; each once where several findings follow each other.
fn names(facts: &MachineFacts, wanted: &Purpose) -> Vec<String> {
    let mut names: Vec<String> = check(facts, wanted).into_iter().map(|finding| finding.name).collect();
    names.retain(|name| !OWN.contains(&name.as_str()));
    names.dedup_by(|one, other| one == other && one == "SystemVerification");
    names
}

#[test]
fn every_command_has_kubeadms_checks_in_its_order() {
    let facts = healthy("names");
    let conf = [KUBELET_CONF, BOOTSTRAP_CONF];
    let after = ["HTTPProxy", IPV4];
    let both = [IPV4, IPV6];
    let plane = &CONTROL_PLANE;
    for (what, purpose, expected) in [
        ("init", wanted_by(PreflightTask::Init), [&plane[..], &COMMON, &both, &LOCAL_ETCD].concat()),
        (
            "init, external etcd",
            external(PreflightTask::Init),
            [&plane[..], &COMMON, &both, &["ExternalEtcdVersion"], &ETCD_FILES].concat(),
        ),
        ("join", wanted_by(PreflightTask::Join), [&conf[..], &COMMON, &[AUTHORITY], &after].concat()),
        (
            "join --control-plane",
            wanted_by(PreflightTask::JoinControlPlane),
            [&conf[..], &COMMON, &after].concat(),
        ),
        ("upgrade", wanted_by(PreflightTask::Upgrade), vec!["SystemVerification"]),
        ("its instance", wanted_by(PreflightTask::Instance), [&plane[..], &LOCAL_ETCD].concat()),
        (
            "its instance, external etcd",
            external(PreflightTask::Instance),
            [&plane[..], &ETCD_FILES].concat(),
        ),
    ] {
        // An etcd is asked only where it is elsewhere.
        let etcd = facts.etcd.iter().filter(|_| purpose.needs.external_etcd.is_some());
        let facts = MachineFacts { etcd: etcd.cloned().collect(), ..facts.clone() };
        let mut found = names(&facts, &purpose);
        if purpose.task == PreflightTask::Join {
            // Smaller minimums than a control plane's, and the bridge of the pods.
            found.retain(|name| !["NumCPU", "Mem", "Firewalld"].contains(&name.as_str()));
        }
        assert_eq!(found, expected, "{what}");
        assert_eq!(complaints(&facts, &purpose), [], "{what}");
    }
    // By name there is no literal address, and with a file there is no endpoint.
    for host in ["api.example.com", ""] {
        let mut joining = wanted_by(PreflightTask::Join);
        host.clone_into(&mut joining.needs.host);
        assert!(!names(&facts, &joining).iter().any(|name| name == IPV4), "{host}");
    }
    let mut joining = wanted_by(PreflightTask::JoinControlPlane);
    joining.needs.host = "fd00::1".to_owned();
    let last = names(&facts, &joining).pop();
    assert_eq!(last.as_deref(), Some(IPV6));
}

type Break = fn(&mut MachineFacts, &mut Purpose);

fn listener(port: u16) -> Listener {
    let process = Some(("kube-apiserver".to_owned(), 7));
    Listener { address: IpAddr::from([127, 0, 0, 1]), port, process }
}

fn listens(facts: &mut MachineFacts, port: u16) {
    facts.listeners.push(listener(port));
}

fn has_file(facts: &mut MachineFacts, path: &str) {
    facts.files.push(PathBuf::from(path));
}

fn uses_proxy(facts: &mut MachineFacts, exceptions: &str) {
    facts.proxies = vec![
        ("HTTPS_PROXY".to_owned(), "http://me:secret@proxy:3128".to_owned()),
        ("NO_PROXY".to_owned(), exceptions.to_owned()),
    ];
    facts.service_environment = "HTTPS_PROXY=x".to_owned();
}

/// What is broken, and the check that finds it: its name, severity and message.
const BROKEN: &[(PreflightTask, Break, &str, Severity, &str)] = {
    use PreflightTask::{Init, Instance, Join, JoinControlPlane};
    use Severity::{Error, Warning};
    &[
        (
            Join,
            |facts, _| has_file(facts, "/etc/kubernetes/kubelet.conf"),
            KUBELET_CONF,
            Error,
            "already exists",
        ),
        (
            JoinControlPlane,
            |facts, _| has_file(facts, "/etc/kubernetes/bootstrap-kubelet.conf"),
            BOOTSTRAP_CONF,
            Error,
            "/etc/kubernetes/bootstrap-kubelet.conf already exists",
        ),
        (Init, |facts, _| facts.cpus = 1, "NumCPU", Error, "CPUs 1 is less than the required 2"),
        (
            Instance,
            |facts, _| facts.memory = 1699 << 20,
            "Mem",
            Error,
            "(1699 MB) is less than the minimum 1700",
        ),
        (
            Init,
            |_, wanted| wanted.needs.version = "v1.37.0-alpha.1".to_owned(),
            "KubernetesVersion",
            Warning,
            "Kubernetes version: 1.37.0-alpha.1. Agent version: 1.36",
        ),
        (
            Instance,
            |_, wanted| wanted.needs.version = "v2.0.0".to_owned(),
            "KubernetesVersion",
            Warning,
            "Kubernetes version is greater",
        ),
        (
            Init,
            |facts, wanted| {
                let service = Service { installed: true, enabled: true, process: Some(7) };
                facts.services.insert("firewalld", service);
                // The embedded runtime's bridge has a warning of its own.
                wanted.is_embedded = false;
                wanted.endpoint = "unix:///e/ca.crt".to_owned();
            },
            "Firewalld",
            Warning,
            "please ensure ports [7443 10250] are open",
        ),
        (Init, |facts, _| listens(facts, 7443), "Port-7443", Error, "Port 7443 is in use by kube-apiserver"),
        (Init, |facts, _| listens(facts, 10259), "Port-10259", Error, "Port 10259 is in use"),
        (Instance, |facts, _| listens(facts, 10257), "Port-10257", Error, "Port 10257 is in use"),
        (Instance, |facts, _| listens(facts, 2379), "Port-2379", Error, "Port 2379 is in use"),
        (Init, |facts, _| listens(facts, 2380), "Port-2380", Error, "Port 2380 is in use"),
        (JoinControlPlane, |facts, _| listens(facts, 10250), "Port-10250", Error, "Port 10250 is in use"),
        (
            Init,
            |facts, _| {
                let agent = Some(("agent".to_owned(), 7));
                facts.listeners.push(Listener { process: agent, ..listener(7443) });
            },
            "Port-7443",
            Error,
            "in use by agent",
        ),
        (
            Init,
            |facts, _| has_file(facts, "/etc/kubernetes/manifests/kube-apiserver.yaml"),
            "FileAvailable--etc-kubernetes-manifests-kube-apiserver.yaml",
            Error,
            "/etc/kubernetes/manifests/kube-apiserver.yaml already exists",
        ),
        (
            Instance,
            |facts, _| has_file(facts, "/etc/kubernetes/manifests/etcd.yaml"),
            "FileAvailable--etc-kubernetes-manifests-etcd.yaml",
            Error,
            "already exists",
        ),
        (
            Init,
            |facts, _| uses_proxy(facts, "10.96.0.0/12,10.244.0.0/16,fd00:1::/56"),
            "HTTPProxy",
            Warning,
            "Connection to \"https://192.0.2.10\" uses proxy \"http://proxy:3128\". If that is not intended",
        ),
        (
            Join,
            |facts, wanted| {
                wanted.needs.host = "fd00::1".to_owned();
                uses_proxy(facts, "");
            },
            "HTTPProxy",
            Warning,
            "Connection to \"https://[fd00::1]:1234\" uses proxy",
        ),
        (
            Init,
            |facts, _| uses_proxy(facts, "192.0.2.10,10.244.0.0/16,fd00:1::/56"),
            "HTTPProxyCIDR",
            Warning,
            "connection to \"10.96.0.0/12\" uses proxy \"http://proxy:3128\"",
        ),
        (
            Instance,
            |facts, _| uses_proxy(facts, "192.0.2.10,10.0.0.0/8"),
            "HTTPProxyCIDR",
            Warning,
            "connection to \"fd00:1::/56\"",
        ),
        (
            Init,
            |_, wanted| wanted.needs.cidrs[0] = "10.96.0.0".to_owned(),
            "HTTPProxyCIDR",
            Error,
            "error parsing CIDR \"10.96.0.0\"",
        ),
        (
            Join,
            |facts, _| facts.swaps = vec![Swap { name: "/dev/sda2".to_owned(), bytes: 1 << 30 }],
            "Swap",
            Warning,
            "swap is enabled",
        ),
        (
            Init,
            |facts, _| facts.programs.retain(|name| *name != "losetup"),
            "FileExisting-losetup",
            Error,
            "losetup not found in system path",
        ),
        (
            Join,
            |facts, _| facts.programs.retain(|name| *name != "mount"),
            "FileExisting-mount",
            Error,
            "mount not found in system path",
        ),
        (
            JoinControlPlane,
            |facts, _| facts.programs.retain(|name| *name != "cp"),
            "FileExisting-cp",
            Error,
            "cp not found in system path",
        ),
        (
            Join,
            |facts, _| facts.cgroups = Cgroups::None,
            "SystemVerification",
            Error,
            "no cgroup file system",
        ),
        (
            Init,
            |_, wanted| wanted.node_name = "-box".to_owned(),
            "Hostname",
            Warning,
            "invalid node name format \"-box\": name part must consist of",
        ),
        (
            Join,
            |facts, _| facts.lookup_error = Some("no such host".to_owned()),
            "Hostname",
            Warning,
            "hostname \"box-1\" could not be reached: no such host",
        ),
        (
            Init,
            |_, wanted| wanted.needs.version = "v1.35.4".to_owned(),
            "KubeletVersion",
            Error,
            "Control plane version: \"1.35.4\"",
        ),
        (
            Join,
            |facts, _| {
                let service = Service { installed: true, enabled: true, process: None };
                facts.services.insert("kubelet", service);
            },
            "Service-kubelet",
            Error,
            "kubelet is started at boot",
        ),
        (
            Join,
            |facts, _| has_file(facts, "/etc/kubernetes/pki/ca.crt"),
            AUTHORITY,
            Error,
            "/etc/kubernetes/pki/ca.crt already exists",
        ),
        (
            Init,
            |facts, _| facts.ipv4_forwarding = Some(false),
            IPV4,
            Error,
            "/proc/sys/net/ipv4/ip_forward contents are not set to 1",
        ),
        (JoinControlPlane, |facts, _| facts.ipv4_forwarding = None, IPV4, Error, "does not exist"),
        (Init, |facts, _| facts.ipv6_forwarding = Some(false), IPV6, Error, "contents are not set to 1"),
        (
            Init,
            |facts, wanted| {
                *wanted = external(Init);
                facts.etcd[0].1 = Ok("3.5.23".to_owned());
            },
            "ExternalEtcdVersion",
            Error,
            "only supports external etcd version >= 3.5.24-0. Current version: 3.5.23",
        ),
        (
            Init,
            |facts, wanted| {
                *wanted = external(Init);
                facts.etcd[0].1 = Err("connection refused".to_owned());
            },
            "ExternalEtcdVersion",
            Error,
            "connection refused",
        ),
        (
            Instance,
            |facts, wanted| {
                *wanted = external(Instance);
                facts.files.retain(|file| file != Path::new("/e/client.key"));
            },
            "ExternalEtcdClientCertificates",
            Error,
            "/e/client.key doesn't exist",
        ),
        (
            Init,
            |facts, _| drop(facts.directories.insert("/data/etcd".into(), vec!["member".to_owned()])),
            "DirAvailable--data-etcd",
            Error,
            "/data/etcd is not empty",
        ),
    ]
};

#[test]
fn what_is_broken_is_found_by_kubeadms_name_and_severity() {
    let facts = healthy("severities");
    for (task, break_it, name, severity, message) in BROKEN {
        let (mut facts, mut wanted) = (facts.clone(), wanted_by(*task));
        break_it(&mut facts, &mut wanted);
        let finding = only(&facts, &wanted);
        assert_eq!((finding.name.as_str(), finding.severity), (*name, *severity), "{task:?}");
        assert!(finding.message.contains(message), "{task:?} {name}: {}", finding.message);
        assert!(!format!("{finding:?}").contains("secret"), "{finding:?}");
    }
    let broken: Vec<&str> = BROKEN.iter().map(|(_, _, name, ..)| *name).collect();
    let all = [
        &CONTROL_PLANE[..],
        &COMMON,
        &LOCAL_ETCD,
        &ETCD_FILES,
        &[IPV4, IPV6, AUTHORITY, KUBELET_CONF, BOOTSTRAP_CONF],
    ]
    .concat();
    let same = [
        "FileAvailable--etc-kubernetes-manifests-kube-controller-manager.yaml",
        "FileAvailable--etc-kubernetes-manifests-kube-scheduler.yaml",
    ];
    for name in all.iter().filter(|name| !same.contains(name)) {
        assert!(broken.contains(name), "no case breaks {name}");
    }
}

#[test]
fn facts_of_interest_are_read_where_the_settings_say() {
    let tree = Tree::new("interest");
    tree.file("data/etcd/member/wal", "");
    tree.file("k/manifests/etcd.yaml", "");
    tree.file("e/ca.crt", "");
    tree.file("usr/bin/losetup", "");
    tree.file("proc/sys/net/ipv6/conf/default/forwarding", "1\n");
    let mut purpose = external(PreflightTask::Init);
    purpose.needs.manifests = PathBuf::from("/k/manifests");
    purpose.needs.etcd_dir = Some(PathBuf::from("/data/etcd"));
    // Has an address everywhere.
    purpose.node_name = "localhost".to_owned();
    let machine = ProbedMachine { root: tree.0.clone(), uid: 0, now: NOW, cpus: 4, proxies: Vec::new() };
    let facts = machine.gather(&purpose.interest());
    assert_eq!(facts.files, ["/k/manifests/etcd.yaml", "/e/ca.crt"].map(PathBuf::from));
    assert_eq!(facts.directories[Path::new("/data/etcd")], ["member"]);
    assert_eq!(facts.programs, ["losetup"]);
    assert_eq!((facts.ipv6_forwarding, facts.lookup_error), (Some(true), None));
    // The real machine does not have the file.
    assert_eq!(facts.etcd[0].0, "/e/ca.crt");
    let ports = purpose.interest().ports;
    for port in [7443, 10259, 10257, 2379, 2380, 10250] {
        assert!(ports.contains(&port), "{port}");
    }
    purpose.node_name = "no-such-host.invalid".to_owned();
    assert!(machine.gather(&purpose.interest()).lookup_error.is_some());
    assert!(wanted().interest().name.is_empty(), "a node of its own needs no name in DNS");
}
