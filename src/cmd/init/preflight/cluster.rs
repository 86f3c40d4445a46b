//! What a cluster demands: files that are there or not, programs, versions, etcd.

use std::path::{Path, PathBuf};

use super::{ClusterNeeds, MachineFacts, PreflightFinding, Purpose, path_name};
use crate::cmd::kubelet_alias::KUBERNETES;

/// Of a kubelet, and of one that is about to join.
const KUBECONFIGS: [&str; 2] = ["/etc/kubernetes/kubelet.conf", "/etc/kubernetes/bootstrap-kubelet.conf"];
/// Of the cluster that a node joins.
const AUTHORITY: &str = "/etc/kubernetes/pki/ca.crt";
const STATIC_PODS: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd"];
const PROGRAMS: [&str; 3] = ["losetup", "mount", "cp"];
/// The oldest external etcd of this Kubernetes release.
const OLDEST_ETCD: [u64; 3] = [3, 5, 24];

/// Every file whose existence matters.
pub(super) fn files(needs: &ClusterNeeds) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = KUBECONFIGS.into_iter().chain([AUTHORITY]).map(PathBuf::from).collect();
    files.extend(STATIC_PODS.map(|name| manifest(needs, name)));
    files.extend(needs.external_etcd.iter().flat_map(|etcd| etcd.files().map(PathBuf::from)));
    files
}

fn manifest(needs: &ClusterNeeds, name: &str) -> PathBuf {
    needs.manifests.join([name, ".yaml"].concat())
}

/// kubeadm's check that a file is not there. `what` says what it means, `fix` and `command` what helps.
fn available(
    facts: &MachineFacts,
    path: &Path,
    what: &str,
    (fix, command): (&str, &str),
) -> PreflightFinding {
    let name = path_name("FileAvailable", path);
    if !facts.files.iter().any(|file| file == path) {
        return PreflightFinding::ok(&name, "absent");
    }
    let message = format!("{} already exists{what}", path.display());
    PreflightFinding::error(&name, "there", message).required("absent").fix(fix).command(command)
}

/// This machine belongs to a cluster already.
pub(super) fn kubeconfigs(facts: &MachineFacts, _: &Purpose) -> Vec<PreflightFinding> {
    let fix = "leave the cluster first; a node that kubeadm has joined, or one of a control plane: kubectl drain, then agent reset";
    let what = ": this machine is a node of a cluster";
    KUBECONFIGS.map(|path| available(facts, Path::new(path), what, (fix, "agent leave"))).into()
}

pub(super) fn static_pods(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    let fix =
        ("undo the earlier control plane first, or ignore this check to go on with its files", "agent reset");
    STATIC_PODS.map(|name| available(facts, &manifest(&wanted.needs, name), "", fix)).into()
}

pub(super) fn authority(facts: &MachineFacts, _: &Purpose) -> Vec<PreflightFinding> {
    let fix = "move it away if it is of another cluster; ignore this check if it is of this one";
    vec![available(facts, Path::new(AUTHORITY), "", (fix, &format!("mv {AUTHORITY} {AUTHORITY}.before")))]
}

pub(super) fn programs(facts: &MachineFacts, _: &Purpose) -> Vec<PreflightFinding> {
    let finding = |program: &str| {
        let name = format!("FileExisting-{program}");
        if facts.programs.contains(&program) {
            return PreflightFinding::ok(&name, program);
        }
        PreflightFinding::error(&name, "absent", format!("{program} not found in system path"))
            .required(program)
            .fix("install it; the agent itself does not use it, programs of the cluster may")
            .command("apt-get install mount coreutils")
    };
    PROGRAMS.map(finding).into()
}

/// Major, minor and patch, whatever follows. Numbers that are missing are zero.
fn numbers(version: &str) -> [u64; 3] {
    let plain = version.strip_prefix('v').unwrap_or(version).split(['-', '+']).next().unwrap_or_default();
    let mut parts = plain.split('.').map(|part| part.parse().unwrap_or_default());
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// Whether the first is of a later minor release than the second.
fn is_later(one: &str, other: &str) -> bool {
    numbers(one)[..2] > numbers(other)[..2]
}

pub(super) fn kubernetes_version(_: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "KubernetesVersion";
    let version = wanted.needs.version.trim_start_matches('v');
    vec![if is_later(version, KUBERNETES) {
        let message = format!(
            "Kubernetes version is greater than agent version. Please consider to upgrade the agent. Kubernetes \
             version: {version}. Agent version: {KUBERNETES}"
        );
        PreflightFinding::warning(NAME, version, message)
            .required(KUBERNETES)
            .fix("install a newer agent, or set kubernetesVersion to the agent's release")
    } else {
        PreflightFinding::ok(NAME, version)
    }]
}

/// The kubelet is this program.
pub(super) fn kubelet_version(_: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "KubeletVersion";
    let version = wanted.needs.version.trim_start_matches('v');
    vec![if !version.is_empty() && is_later(KUBERNETES, version) {
        let message = format!(
            "the kubelet version is higher than the control plane version. This is not a supported version skew and may \
             lead to a malfunctional cluster. Kubelet version: {KUBERNETES:?} Control plane version: {version:?}"
        );
        PreflightFinding::error(NAME, KUBERNETES, message)
            .required(format!("at most {version}"))
            .fix("set kubernetesVersion to the agent's release")
    } else {
        PreflightFinding::ok(NAME, KUBERNETES)
    }]
}

pub(super) fn etcd_dir(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    let finding = |path: &PathBuf| {
        let name = path_name("DirAvailable", path);
        if facts.directories.get(path).is_none_or(Vec::is_empty) {
            return PreflightFinding::ok(&name, "absent or empty");
        }
        PreflightFinding::error(&name, "not empty", format!("{} is not empty", path.display()))
            .required("absent or empty")
            .fix("move the data of the previous control plane away")
    };
    wanted.needs.etcd_dir.iter().map(finding).collect()
}

/// Each endpoint of an external etcd is asked.
pub(super) fn etcd_version(facts: &MachineFacts, _: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "ExternalEtcdVersion";
    let oldest = OLDEST_ETCD.map(|number| number.to_string()).join(".");
    let finding = |(url, answer): &(String, Result<String, String>)| {
        let message = match answer {
            Ok(version) if numbers(version) >= OLDEST_ETCD => {
                return PreflightFinding::ok(NAME, format!("{version} at {url}"));
            }
            Ok(version) => format!(
                "this version of kubeadm only supports external etcd version >= {oldest}-0. Current version: {version}"
            ),
            Err(why) => why.clone(),
        };
        PreflightFinding::error(NAME, url.clone(), message)
            .required(format!("etcd {oldest}"))
            .fix("start or update etcd, and check the files of etcd.external")
            .command(format!("curl -k {url}"))
    };
    facts.etcd.iter().map(finding).collect()
}

pub(super) fn etcd_files(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "ExternalEtcdClientCertificates";
    let finding = |path: &str| {
        if facts.files.iter().any(|file| file == Path::new(path)) {
            return PreflightFinding::ok(NAME, path);
        }
        PreflightFinding::error(NAME, "absent", format!("{path} doesn't exist"))
            .required(path)
            .fix("copy the file of etcd's authority or client there")
    };
    wanted.needs.external_etcd.iter().flat_map(|etcd| etcd.files().map(finding)).collect()
}
