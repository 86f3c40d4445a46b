//! From a pod's spec to what the runtime is asked for: sandbox and container configuration, and the files they mount.
//!
//! The values come from pure functions in `reconcile`; here they are brought together with what only the node knows.

use std::collections::BTreeMap;
use std::path::Path;

use crate::api::pod::{Container, Pod, VolumeMount};
use crate::events::EventType;
use crate::executor::files::{log_directory, log_file_name, make_dir, termination_log_name, write_file};
use crate::executor::{Executor, RETRY_AFTER, Run};
use crate::image::StartFailure as Failure;
use crate::observed::ObservedSandbox;
use crate::reconcile::containers::container_hash;
use crate::reconcile::env::{EnvContext, expand_words, make_environment};
use crate::reconcile::network::{DnsContext, DnsProblem, ResolvConfSource, parse_resolv_conf, pod_dns};
use crate::reconcile::network::{
    host_network_hosts_file, hostname_and_domain, hosts_file, port_mappings, sandbox_hostname,
};
use crate::reconcile::plan::StartContainer;
use crate::reconcile::resources::{container_resources, pod_cgroup_parent, qos_class, sandbox_resources};
use crate::reconcile::security::{
    SecurityDefaults, check_run_as_non_root, container_security, namespaces, pod_is_privileged,
    supplemental_groups,
};
use crate::rt;
use crate::runtime::{ContainerConfig, ImageStatus, Mount, MountPropagation, Runtime, SandboxConfig, labels};
use crate::volume::{self, MountedVolumes};

/// A resolv.conf larger than this is refused (upstream).
const MAX_RESOLV_CONF: u64 = 10 << 20;
/// Where the kubelet manages the hosts file, unless the container mounts something there itself.
const HOSTS_PATH: &str = "/etc/hosts";

impl<R: Runtime> Executor<R> {
    /// What `RunPodSandbox` is asked for, and what about it the user should know.
    pub(super) fn sandbox_config(
        &self,
        pod: &Pod,
        attempt: u32,
    ) -> Result<(SandboxConfig, Vec<DnsProblem>), String> {
        let spec = &pod.spec;
        let host = self.resolv_conf()?;
        let (dns, problems) = pod_dns(
            pod,
            &DnsContext {
                host: &host,
                cluster_dns: &self.config.cluster_dns,
                cluster_domain: &self.config.cluster_domain,
                node_ips: &self.config.node_ips,
            },
        );
        let hostname = if spec.host_network {
            String::new()
        } else {
            sandbox_hostname(pod, &self.config.cluster_domain).map_err(|error| error.to_string())?
        };
        let mut labels = pod.metadata.labels.clone();
        labels.extend(pod_labels(pod));
        let security = spec.security_context.clone().unwrap_or_default();
        let config = SandboxConfig {
            pod: pod.pod_ref(),
            attempt,
            hostname,
            log_directory: log_directory(&self.config.pod_logs_dir, pod).display().to_string(),
            dns: Some(dns),
            port_mappings: port_mappings(pod),
            labels,
            annotations: pod.metadata.annotations.clone(),
            cgroup_parent: pod_cgroup_parent(&pod.metadata.uid, qos_class(pod), &self.cgroup_layout()),
            sysctls: security
                .sysctls
                .iter()
                .map(|sysctl| (sysctl.name.clone(), sysctl.value.clone()))
                .collect(),
            namespaces: namespaces(pod),
            privileged: pod_is_privileged(pod),
            run_as_user: security.run_as_user,
            run_as_group: security.run_as_group,
            supplemental_groups: supplemental_groups(pod),
            resources: sandbox_resources(pod, &self.config.resources),
            runtime_handler: String::new(),
        };
        Ok((config, problems))
    }

    fn resolv_conf(&self) -> Result<ResolvConfSource, String> {
        let Some(path) = &self.config.resolv_conf else { return Ok(ResolvConfSource::Disabled) };
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.len() > MAX_RESOLV_CONF => {
                return Err(format!("{} is larger than {MAX_RESOLV_CONF} bytes", path.display()));
            }
            // A box without a resolver is a box without a network: its pods run all the same.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(ResolvConfSource::Parsed(parse_resolv_conf("")));
            }
            _ => {}
        }
        let text =
            std::fs::read_to_string(path).map_err(|error| format!("read {}: {error}", path.display()))?;
        Ok(ResolvConfSource::Parsed(parse_resolv_conf(&text)))
    }

    /// What `CreateContainer` is asked for; makes the files it mounts.
    pub(super) async fn prepare_container(
        &self,
        run: &Run<'_>,
        container: &Container,
        start: &StartContainer,
        sandbox: &ObservedSandbox,
        image: &ImageStatus,
    ) -> Result<ContainerConfig, Failure> {
        let pod = run.pod;
        let config_error = |message: String| Failure {
            reason: "CreateContainerConfigError",
            message,
            retry_after: Some(RETRY_AFTER),
        };
        check_run_as_non_root(pod, container, image).map_err(|error| config_error(error.to_string()))?;
        let pod_ips = if pod.spec.host_network { &self.config.node_ips } else { &sandbox.ips };
        let context = EnvContext {
            node_name: &self.config.node_name,
            host_ips: &self.config.node_ips,
            pod_ips,
            allocatable: &self.config.capacity,
            objects: &*self.config.objects,
        };
        let envs =
            make_environment(pod, container, &context).map_err(|error| config_error(error.to_string()))?;
        let volumes = run.volumes.clone().unwrap_or_default();
        let mut mounts = volume_mounts(container, &volumes).map_err(config_error)?;
        let hosts = (!mounts.iter().any(|mount| mount.container_path == HOSTS_PATH))
            .then(|| self.hosts_content(pod, &sandbox.ips))
            .flatten();
        let files =
            self.make_container_files(pod, container, start, hosts, &run.sandbox_config.log_directory).await;
        mounts.extend(files.map_err(config_error)?);
        let defaults = SecurityDefaults {
            seccomp_default: self.config.seccomp_default,
            seccomp_root: self.config.seccomp_dir.display().to_string(),
        };
        Ok(ContainerConfig {
            name: container.name.clone(),
            attempt: start.attempt,
            image: image.id.clone(),
            user_specified_image: container.image.clone(),
            command: expand_words(&container.command, &envs),
            args: expand_words(&container.args, &envs),
            working_dir: container.working_dir.clone(),
            envs,
            mounts,
            log_path: format!("{}/{}", container.name, log_file_name(start.attempt)),
            stdin: container.stdin,
            stdin_once: container.stdin_once,
            tty: container.tty,
            labels: container_labels(pod, container),
            annotations: container_annotations(pod, container, start.attempt),
            resources: container_resources(pod, container, &self.config.capacity, &self.config.resources),
            security: container_security(pod, container, image, &defaults),
        })
    }

    /// The hosts file of a pod, once its address is known.
    fn hosts_content(&self, pod: &Pod, ips: &[String]) -> Option<String> {
        if pod.spec.host_network {
            let node_hosts = std::fs::read_to_string(HOSTS_PATH).unwrap_or_default();
            return Some(host_network_hosts_file(&node_hosts, &pod.spec.host_aliases));
        }
        let name = hostname_and_domain(pod, &self.config.cluster_domain);
        (!ips.is_empty()).then(|| hosts_file(ips, &name, &pod.spec.host_aliases))
    }

    async fn make_container_files(
        &self,
        pod: &Pod,
        container: &Container,
        start: &StartContainer,
        hosts: Option<String>,
        log_directory: &str,
    ) -> Result<Vec<Mount>, String> {
        let pod_dir = volume::pod_dir(&self.config.volumes, &pod.metadata.uid);
        let container_dir = pod_dir.join("containers").join(&container.name);
        let log_dir = Path::new(log_directory).join(&container.name);
        let hosts_path = pod_dir.join("etc-hosts");
        let termination_log = container_dir.join(termination_log_name(start.attempt));
        let termination_path = container.termination_message_path.clone();
        let make = move || -> Result<Vec<Mount>, (std::path::PathBuf, std::io::Error)> {
            let at = |path: &Path| {
                let path = path.to_owned();
                move |error| (path, error)
            };
            let mut mounts = Vec::new();
            make_dir(&log_dir, 0o755).map_err(at(&log_dir))?;
            if let Some(content) = hosts {
                write_file(&hosts_path, &content, 0o644).map_err(at(&hosts_path))?;
                mounts.push(bind(HOSTS_PATH, &hosts_path));
            }
            if !termination_path.is_empty() {
                make_dir(&container_dir, 0o750).map_err(at(&container_dir))?;
                write_file(&termination_log, "", 0o666).map_err(at(&termination_log))?;
                mounts.push(bind(&termination_path, &termination_log));
            }
            Ok(mounts)
        };
        rt::blocking("make container files", make)
            .await
            .map_err(|(path, error)| format!("write {}: {error}", path.display()))
    }

    /// Tells what of the pod's DNS had to be left out.
    pub(super) fn report_dns(&self, pod: &Pod, problems: &[DnsProblem]) {
        for problem in problems {
            self.pod_event(pod, EventType::Warning, problem.reason, &problem.message);
        }
    }
}

fn bind(container_path: &str, host_path: &Path) -> Mount {
    Mount {
        container_path: absolute(container_path),
        host_path: host_path.display().to_string(),
        ..Mount::default()
    }
}

/// Relative mount paths start at the root (upstream).
fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

fn volume_mounts(container: &Container, volumes: &MountedVolumes) -> Result<Vec<Mount>, String> {
    container.volume_mounts.iter().map(|mount| volume_mount(container, mount, volumes)).collect()
}

fn volume_mount(
    container: &Container,
    mount: &VolumeMount,
    volumes: &MountedVolumes,
) -> Result<Mount, String> {
    let Some(volume) = volumes.get(&mount.name) else {
        return Err(format!(
            "cannot find volume {:?} to mount into container {:?}",
            mount.name, container.name
        ));
    };
    if !mount.sub_path.is_empty() || !mount.sub_path_expr.is_empty() {
        return Err(format!(
            "volume mount {:?}: subPath is not supported by this version of agent",
            mount.name
        ));
    }
    if mount.recursive_read_only.as_deref() == Some("Enabled") {
        return Err(format!(
            "volume mount {:?}: recursiveReadOnly Enabled is not supported by this version of agent; use IfPossible",
            mount.name
        ));
    }
    Ok(Mount {
        container_path: absolute(&mount.mount_path),
        host_path: volume.host_path.display().to_string(),
        readonly: mount.read_only || volume.read_only,
        propagation: match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => MountPropagation::HostToContainer,
            Some("Bidirectional") => MountPropagation::Bidirectional,
            _ => MountPropagation::Private,
        },
        selinux_relabel: false,
    })
}

fn pod_labels(pod: &Pod) -> BTreeMap<String, String> {
    let metadata = &pod.metadata;
    [
        (labels::POD_NAME, metadata.name.clone()),
        (labels::POD_NAMESPACE, metadata.namespace.clone()),
        (labels::POD_UID, metadata.uid.to_string()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

fn container_labels(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    let mut all = pod_labels(pod);
    all.insert(labels::CONTAINER_NAME.to_owned(), container.name.clone());
    all
}

/// The contract by which a later agent, or a kubelet, knows what this container is.
fn container_annotations(pod: &Pod, container: &Container, attempt: u32) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut add = |key: &str, value: String| all.insert(key.to_owned(), value);
    add(labels::CONTAINER_HASH, container_hash(container));
    add(labels::RESTART_COUNT, attempt.to_string());
    add(labels::TERMINATION_MESSAGE_PATH, container.termination_message_path.clone());
    add(labels::TERMINATION_MESSAGE_POLICY, container.termination_message_policy.clone());
    add(labels::POD_TERMINATION_GRACE_PERIOD, pod.termination_grace_period_seconds().to_string());
    if let Some(seconds) = pod.metadata.deletion_grace_period_seconds {
        add(labels::POD_DELETION_GRACE_PERIOD, seconds.to_string());
    }
    let pre_stop = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    if let Some(json) = pre_stop.and_then(|handler| serde_json::to_string(handler).ok()) {
        add(labels::PRE_STOP_HANDLER, json);
    }
    if !container.ports.is_empty()
        && let Ok(json) = serde_json::to_string(&container.ports)
    {
        add(labels::CONTAINER_PORTS, json);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::MountedVolume;

    fn mount(name: &str, path: &str) -> VolumeMount {
        VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
    }

    #[test]
    fn volume_mounts_become_bind_mounts_and_unknown_volumes_are_named() {
        let volumes: MountedVolumes =
            [("data".to_owned(), MountedVolume { host_path: "/srv/data".into(), read_only: false })].into();
        let container = Container { name: "web".to_owned(), ..Container::default() };
        let made =
            volume_mount(&container, &VolumeMount { read_only: true, ..mount("data", "var/data") }, &volumes);
        let made = made.unwrap();
        assert_eq!(
            (made.container_path.as_str(), made.host_path.as_str(), made.readonly),
            ("/var/data", "/srv/data", true)
        );
        assert_eq!(
            volume_mount(&container, &mount("nope", "/x"), &volumes).unwrap_err(),
            "cannot find volume \"nope\" to mount into container \"web\""
        );
    }

    #[test]
    fn container_annotations_follow_the_adoption_contract() {
        let container = Container {
            name: "test_container".to_owned(),
            image: "foo/image:v1".to_owned(),
            ..Container::default()
        };
        let annotations = container_annotations(&Pod::default(), &container, 3);
        assert_eq!(annotations["io.kubernetes.container.hash"], "8e45cbd0");
        assert_eq!(annotations["io.kubernetes.container.restartCount"], "3");
        assert_eq!(annotations["io.kubernetes.pod.terminationGracePeriod"], "30");
        assert!(!annotations.contains_key("io.kubernetes.container.ports"));
    }
}
