//! The images of a control plane, in kubeadm's order.
//!
//! Pure: the configuration in, names out.

use super::config::{ClusterConfig, Etcd};

/// Of the infrastructure container of runtimes that have one.
const PAUSE_TAG: &str = "3.10.2";

pub(crate) fn images(cluster: &ClusterConfig) -> Vec<String> {
    let components = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"];
    let has_proxy = |name: &&str| *name != "kube-proxy" || !cluster.proxy_disabled;
    let mut images: Vec<String> =
        components.into_iter().filter(has_proxy).map(|name| cluster.image(name)).collect();
    if !cluster.dns_disabled {
        images.push(cluster.dns_image());
    }
    images.push(pause_image(cluster));
    if let Etcd::Local(_) = cluster.etcd {
        images.push(cluster.etcd_image());
    }
    images
}

pub(crate) fn pause_image(cluster: &ClusterConfig) -> String {
    format!("{}/pause:{PAUSE_TAG}", cluster.image_repository)
}
