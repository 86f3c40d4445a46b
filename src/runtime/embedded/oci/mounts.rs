//! A container's mounts, with their order and options.

use std::path::Path;

use super::{Input, OciError};
use crate::model::ordered::Sortable as _;
use crate::model::runtime_config::{Mount, MountPropagation, NamespaceMode};
use crate::runtime::embedded::spec::OciMount;

/// Mounts, and the propagation the root needs for them (empty for the runtime's own).
pub(super) fn mounts(input: &Input<'_>) -> Result<(Vec<OciMount>, String), OciError> {
    let mut binds: Vec<Mount> = input.container.mounts.clone();
    for extra in of_the_pod(input).into_iter().chain(of_the_image(input)) {
        let is_there = |mount: &Mount| clean(&mount.container_path) == clean(&extra.container_path);
        if !binds.iter().any(is_there) {
            binds.push(extra);
        }
    }
    // Shallow ones first, so that none hides another; otherwise in the pod's order.
    binds.order_by_key(|mount| depth(&mount.container_path));
    let covers = |path: &str| binds.iter().any(|mount| clean(&mount.container_path) == path);
    let has_dev = covers("/dev");
    let mut all: Vec<OciMount> = of_the_kernel(input)
        .into_iter()
        .filter(|mount| !covers(&mount.destination))
        .filter(|mount| !(has_dev && mount.destination.starts_with("/dev/")))
        .collect();
    let mut propagation = String::new();
    for mount in &binds {
        all.push(bind(input, mount, &mut propagation)?);
    }
    Ok((all, propagation))
}

fn of_the_kernel(input: &Input<'_>) -> Vec<OciMount> {
    let mode = if input.container.security.privileged { "rw" } else { "ro" };
    let mount = |kind: &str, source: &str, destination: &str, options: &[&str]| OciMount {
        destination: destination.to_owned(),
        kind: kind.to_owned(),
        source: source.to_owned(),
        options: options.iter().map(|&option| option.to_owned()).collect(),
    };
    let in_users = input.container.security.user_namespace.is_some();
    let sys = if in_users && input.container.security.namespaces.network == NamespaceMode::Node {
        // sysfs may be mounted only with a network namespace of the mounting user namespace.
        mount("bind", "/sys", "/sys", &["rbind", "rro", "nosuid", "nodev", "noexec"])
    } else {
        mount("sysfs", "sysfs", "/sys", &["nosuid", "noexec", "nodev", mode])
    };
    let pts = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"];
    vec![
        mount("proc", "proc", "/proc", &["nosuid", "noexec", "nodev"]),
        mount("tmpfs", "tmpfs", "/dev", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount("devpts", "devpts", "/dev/pts", &pts),
        mount("mqueue", "mqueue", "/dev/mqueue", &["nosuid", "noexec", "nodev"]),
        sys,
        mount("cgroup", "cgroup", "/sys/fs/cgroup", &["nosuid", "noexec", "nodev", "relatime", mode]),
    ]
}

fn of_the_pod(input: &Input<'_>) -> Vec<Mount> {
    let security = &input.container.security;
    let mount = |container_path: &str, host_path: &Path, readonly: bool| Mount {
        container_path: container_path.to_owned(),
        host_path: host_path.to_string_lossy().into_owned(),
        readonly,
        selinux_relabel: true,
        ..Mount::default()
    };
    let readonly = security.readonly_rootfs;
    let pod = input.sandbox_dir;
    let shm = match security.namespaces.ipc {
        NamespaceMode::Node => {
            Mount { selinux_relabel: false, ..mount("/dev/shm", Path::new("/dev/shm"), false) }
        }
        _ => mount("/dev/shm", &pod.shm(), false),
    };
    vec![
        mount("/etc/hostname", &pod.hostname(), readonly),
        mount("/etc/hosts", &pod.hosts(), readonly),
        mount("/etc/resolv.conf", &pod.resolv_conf(), readonly),
        shm,
    ]
}

fn of_the_image(input: &Input<'_>) -> Vec<Mount> {
    let mount = |(path, directory): &(String, std::path::PathBuf)| Mount {
        container_path: format!("/{}", path.trim_start_matches('/')),
        host_path: directory.to_string_lossy().into_owned(),
        selinux_relabel: true,
        ..Mount::default()
    };
    input.image_volumes.iter().map(mount).collect()
}

fn bind(input: &Input<'_>, mount: &Mount, root: &mut String) -> Result<OciMount, OciError> {
    let path = &mount.container_path;
    let refuse = |why: &'static str| Err(OciError::Mount { path: path.clone(), why });
    if !path.starts_with('/') || path.contains('\0') {
        return refuse("the path in the container must be absolute");
    }
    if !mount.host_path.starts_with('/') {
        return refuse("the path on the node must be absolute");
    }
    let propagation = match mount.propagation {
        MountPropagation::Private => "rprivate",
        MountPropagation::HostToContainer => {
            if root.is_empty() {
                "rslave".clone_into(root);
            }
            "rslave"
        }
        MountPropagation::Bidirectional => {
            "rshared".clone_into(root);
            "rshared"
        }
    };
    let access = match (mount.readonly, mount.recursive_read_only) {
        (true, true) if !input.node.recursive_read_only => {
            return refuse("this node does not support recursive read-only mounts");
        }
        (true, true) if mount.propagation != MountPropagation::Private => {
            return refuse("a recursive read-only mount needs private propagation");
        }
        (true, true) => "rro",
        (true, false) => "ro",
        (false, true) => return refuse("a recursive read-only mount conflicts with a writable one"),
        (false, false) => "rw",
    };
    Ok(OciMount {
        destination: path.clone(),
        kind: "bind".to_owned(),
        source: mount.host_path.clone(),
        options: ["rbind", propagation, access].map(str::to_owned).to_vec(),
    })
}

/// Without doubled, leading and trailing slashes and dots, as mounts are compared.
pub(super) fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn depth(path: &str) -> usize {
    clean(path).matches('/').count()
}
