//! Which certificates and kubeconfigs a control plane has, with kubeadm's names.
//!
//! Pure: tables.

use super::sign::Leaf;

/// The directory of etcd's certificates below the others.
pub(crate) const ETCD: &str = "etcd/";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    None,
    ApiServer,
    EtcdServer,
    EtcdPeer,
}

/// A certificate. An authority has no signer.
pub(crate) struct CertSpec {
    /// The name of its phase.
    pub phase: &'static str,
    /// The file without its extension.
    pub base: &'static str,
    /// Empty: the node's name.
    pub common_name: &'static str,
    /// The file of its authority.
    pub signer: &'static str,
    pub is_server: bool,
    pub is_client: bool,
    pub names: Names,
}

const fn authority(phase: &'static str, base: &'static str, common_name: &'static str) -> CertSpec {
    CertSpec { phase, base, common_name, signer: "", is_server: false, is_client: false, names: Names::None }
}

const fn client(
    phase: &'static str,
    base: &'static str,
    common_name: &'static str,
    signer: &'static str,
) -> CertSpec {
    CertSpec { phase, base, common_name, signer, is_server: false, is_client: true, names: Names::None }
}

const fn server(
    (phase, base): (&'static str, &'static str),
    common_name: &'static str,
    signer: &'static str,
    is_client: bool,
    names: Names,
) -> CertSpec {
    CertSpec { phase, base, common_name, signer, is_server: true, is_client, names }
}

/// In the order in which they are made.
pub(crate) const CERTS: [CertSpec; 10] = [
    authority("ca", "ca", "kubernetes"),
    server(("apiserver", "apiserver"), "kube-apiserver", "ca", false, Names::ApiServer),
    client("apiserver-kubelet-client", "apiserver-kubelet-client", "kube-apiserver-kubelet-client", "ca"),
    authority("front-proxy-ca", "front-proxy-ca", "front-proxy-ca"),
    client("front-proxy-client", "front-proxy-client", "front-proxy-client", "front-proxy-ca"),
    authority("etcd-ca", "etcd/ca", "etcd-ca"),
    server(("etcd-server", "etcd/server"), "", "etcd/ca", true, Names::EtcdServer),
    server(("etcd-peer", "etcd/peer"), "", "etcd/ca", true, Names::EtcdPeer),
    client("etcd-healthcheck-client", "etcd/healthcheck-client", "kube-etcd-healthcheck-client", "etcd/ca"),
    client("apiserver-etcd-client", "apiserver-etcd-client", "kube-apiserver-etcd-client", "etcd/ca"),
];

impl CertSpec {
    pub(crate) fn is_of_etcd(&self) -> bool {
        self.signer.starts_with(ETCD) || self.base.starts_with(ETCD)
    }
}

pub(crate) struct ConfSpec {
    /// The name of its phase, and of the file without `.conf`.
    pub phase: &'static str,
    /// `system:node:` is completed by the node's name.
    pub user: &'static str,
    pub group: &'static str,
    /// Through the address of the whole cluster, instead of this node's.
    pub is_for_cluster: bool,
}

const fn conf(
    phase: &'static str,
    user: &'static str,
    group: &'static str,
    is_for_cluster: bool,
) -> ConfSpec {
    ConfSpec { phase, user, group, is_for_cluster }
}

/// In the order in which they are made.
pub(crate) const CONFS: [ConfSpec; 5] = [
    conf("admin", "kubernetes-admin", "kubeadm:cluster-admins", true),
    conf("super-admin", "kubernetes-super-admin", "system:masters", true),
    conf("kubelet", "system:node:", "system:nodes", false),
    conf("controller-manager", "system:kube-controller-manager", "", false),
    conf("scheduler", "system:kube-scheduler", "", false),
];

impl ConfSpec {
    pub(crate) fn file(&self) -> String {
        format!("{}.conf", self.phase)
    }

    pub(crate) fn leaf(&self, node: &str) -> Leaf {
        let user = if self.user.ends_with(':') { [self.user, node].concat() } else { self.user.to_owned() };
        let organizations = if self.group.is_empty() { Vec::new() } else { vec![self.group.to_owned()] };
        Leaf { common_name: user, organizations, is_client: true, ..Leaf::default() }
    }
}
