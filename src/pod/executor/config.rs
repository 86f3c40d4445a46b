//! From a pod's spec to the requests for the runtime: sandbox and container configuration, and the files they
//! mount.
//!
//! The values come from the rules of `pod`; here they are combined with facts that only the node has.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::model::api::pod::{Container, HostAlias, Pod};
use crate::model::containers::container_hash;
use crate::model::objects::{Realm, RuntimeClassSpec};
use crate::model::observed::ObservedSandbox;
use crate::model::ordered::Ordered as _;
use crate::model::runtime_config::absolute;
use crate::platform::rt;
use crate::platform::sys::dir::make_dir;
use crate::pod::env::{EnvContext, EnvFiles, env_files, expand_arguments, make_environment};
use crate::pod::events::EventType;
use crate::pod::executor::files::{
    log_directory, log_file_name, read_file_below, read_text, termination_log_name, write_file,
};
use crate::pod::executor::{Executor, RETRY_AFTER, Run};
use crate::pod::image::StartFailure as Failure;
use crate::pod::network::{
    DnsContext, DnsProblem, ResolvConfSource, host_network_hosts_file, hostname_and_domain, hosts_file,
    parse_resolv_conf, pod_dns, port_mappings, sandbox_hostname, sort_pod_ips,
};
use crate::pod::plan::{StartContainer, resize};
use crate::pod::resources::{overhead_resources, pod_cgroup_parent, qos_class, sandbox_resources};
use crate::pod::runtime_class::{by_class_name, find_class, handler};
use crate::pod::security::{
    SecurityDefaults, SecurityIds, check_run_as_non_root, container_security, ephemeral_target, namespaces,
    pod_is_privileged, pod_selinux, supplemental_groups, supplemental_groups_policy,
};
use crate::pod::volume::rules::claim_groups;
use crate::pod::volume::{self, MountedVolumes};
use crate::runtime::{
    ContainerConfig, IdRange, ImageStatus, Mount, Runtime, RuntimeStatus, SandboxConfig, labels,
};

/// A resolv.conf larger than this is refused (upstream).
const MAX_RESOLV_CONF: u64 = 10 << 20;
/// A hosts file above this size was not written by hand, and each pod on the node's network has a copy.
const MAX_HOSTS: u64 = 10 << 20;
/// The size limit of a ConfigMap; larger data belongs in files.
const MAX_ENV_FILE: u64 = 1 << 20;
/// Where the kubelet manages the hosts file, unless the container mounts something there itself.
const HOSTS_PATH: &str = "/etc/hosts";

impl<R: Runtime> Executor<R> {
    /// The `RunPodSandbox` configuration, and problems that are reported to the user.
    pub(super) async fn sandbox_config(
        &self,
        pod: &Pod,
        attempt: u32,
        user_namespace: Option<IdRange>,
    ) -> Result<(SandboxConfig, Vec<DnsProblem>), String> {
        let spec = &pod.spec;
        let settings = self.config.pods.get();
        let path = settings.resolv_conf.clone();
        let host = rt::blocking("read resolv.conf", move || read_resolv_conf(path.as_deref())).await?;
        let (dns, problems) = pod_dns(
            pod,
            &DnsContext {
                host: &host,
                cluster_dns: &settings.cluster_dns,
                cluster_domain: &self.config.cluster_domain,
                node_ips: &self.config.node_ips,
            },
        );
        let hostname = if spec.host_network {
            String::new()
        } else {
            sandbox_hostname(pod, &self.config.cluster_domain).map_err(|error| error.to_string())?
        };
        let class = self.class(pod)?;
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
                .into_map(),
            namespaces: namespaces(pod),
            privileged: pod_is_privileged(pod),
            run_as_user: security.run_as_user,
            run_as_group: security.run_as_group,
            supplemental_groups: supplemental_groups(pod, &claim_groups(pod, &*self.config.objects)),
            supplemental_groups_policy: supplemental_groups_policy(pod),
            selinux: pod_selinux(pod),
            resources: sandbox_resources(pod, &self.config.resources),
            overhead: overhead_resources(pod, &self.config.resources),
            user_namespace,
            runtime_handler: handler(pod, class.as_ref()).to_owned(),
        };
        Ok((config, problems))
    }

    pub(super) fn class(&self, pod: &Pod) -> Result<Option<RuntimeClassSpec>, String> {
        find_class(pod, &*self.config.objects)
    }

    /// The runtime's features, with its handlers under the names of the RuntimeClasses. Of two classes with one
    /// name, the cluster's.
    pub(in crate::pod) fn by_class_name(&self, status: &RuntimeStatus) -> RuntimeStatus {
        let mut classes = self.config.objects.of(Realm::Node).runtime_classes();
        classes.extend(self.config.objects.of(Realm::Cluster).runtime_classes());
        let handlers = by_class_name(&status.handlers, classes);
        RuntimeStatus { handlers, ..status.clone() }
    }

    /// The `CreateContainer` configuration; creates the files that it mounts.
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
        let volumes = run.volumes.clone().unwrap_or_default();
        let own_ips = sort_pod_ips(&sandbox.ips, &self.config.node_ips);
        let pod_ips = if pod.spec.host_network { &self.config.node_ips } else { &own_ips };
        let context = EnvContext {
            node_name: &self.config.node_name,
            host_ips: &self.config.node_ips,
            pod_ips,
            allocatable: &self.config.allocatable,
            objects: &*self.config.objects,
            files: &read_env_files(pod, container, &volumes).await,
        };
        let envs =
            make_environment(pod, container, &context).map_err(|error| config_error(error.to_string()))?;
        let mut mounts = self.volume_mounts(run, container, &envs).await.map_err(config_error)?;
        let hosts = (!mounts.iter().any(|mount| mount.container_path == HOSTS_PATH))
            .then(|| self.hosts_source(pod, &own_ips))
            .flatten();
        let files =
            self.make_container_files(pod, container, start, hosts, &run.sandbox_config.log_directory).await;
        mounts.extend(files.map_err(config_error)?);
        let ids = SecurityIds {
            user_namespace: run.sandbox_config.user_namespace,
            target: ephemeral_target(container, run.observed).map_err(config_error)?,
        };
        let groups = claim_groups(pod, &*self.config.objects);
        let defaults = SecurityDefaults {
            seccomp_default: self.config.pods.get().seccomp_default,
            seccomp_root: self.config.seccomp_dir.display().to_string(),
        };
        let config = ContainerConfig {
            name: container.name.clone(),
            attempt: start.attempt,
            image: image.id.clone(),
            user_specified_image: container.image.clone(),
            command: expand_arguments(&container.command, &envs),
            args: expand_arguments(&container.args, &envs),
            working_dir: container.working_dir.clone(),
            envs,
            mounts,
            devices: Vec::new(),
            cdi_devices: Vec::new(),
            log_path: format!("{}/{}", container.name, log_file_name(start.attempt)),
            stdin: container.stdin,
            stdin_once: container.stdin_once,
            tty: container.tty,
            labels: container_labels(pod, container),
            annotations: container_annotations(pod, container, start.attempt),
            resources: self.resources_of(pod, container),
            security: container_security(pod, container, image, &groups, &defaults, ids),
            stop_signal: stop_signal(container),
        };
        self.add_devices(run, container, config).await
    }

    /// The inputs of the pod's hosts file, once its address is known.
    fn hosts_source(&self, pod: &Pod, ips: &[String]) -> Option<HostsSource> {
        if pod.spec.host_network {
            return Some(HostsSource::Node(pod.spec.host_aliases.clone()));
        }
        let name = hostname_and_domain(pod, &self.config.cluster_domain);
        (!ips.is_empty()).then(|| HostsSource::Made(hosts_file(ips, &name, &pod.spec.host_aliases)))
    }

    async fn make_container_files(
        &self,
        pod: &Pod,
        container: &Container,
        start: &StartContainer,
        hosts: Option<HostsSource>,
        log_directory: &str,
    ) -> Result<Vec<Mount>, String> {
        let pod_dir = volume::pod_dir(&self.config.volumes, &pod.metadata.uid);
        let container_dir = pod_dir.join("containers").join(&container.name);
        let log_dir = Path::new(log_directory).join(&container.name);
        let hosts_path = pod_dir.join("etc-hosts");
        let termination_log = container_dir.join(termination_log_name(start.attempt));
        let termination_path = container.termination_message_path.clone();
        let make = move || -> Result<Vec<Mount>, (PathBuf, std::io::Error)> {
            let at = |path: &Path| {
                let path = path.to_owned();
                move |error| (path, error)
            };
            let mut mounts = Vec::new();
            make_dir(&log_dir, 0o755).map_err(at(&log_dir))?;
            if let Some(hosts) = hosts {
                let content = hosts.content().map_err(at(Path::new(HOSTS_PATH)))?;
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
        rt::blocking("create container files", make)
            .await
            .map_err(|(path, error)| format!("create {}: {error}", path.display()))
    }

    pub(super) fn report_dns(&self, pod: &Pod, problems: &[DnsProblem]) {
        for problem in problems {
            self.pod_event(pod, EventType::Warning, problem.reason, &problem.message);
        }
    }
}

/// Where the content of a pod's hosts file comes from.
enum HostsSource {
    Made(String),
    /// The node's own, with the pod's aliases.
    Node(Vec<HostAlias>),
}

impl HostsSource {
    fn content(self) -> std::io::Result<String> {
        match self {
            Self::Made(content) => Ok(content),
            Self::Node(aliases) => match read_text(Path::new(HOSTS_PATH), MAX_HOSTS) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    Ok(host_network_hosts_file("", &aliases))
                }
                node_hosts => Ok(host_network_hosts_file(&node_hosts?, &aliases)),
            },
        }
    }
}

/// The node's resolver configuration; `Disabled` without a path.
fn read_resolv_conf(path: Option<&Path>) -> Result<ResolvConfSource, String> {
    let Some(path) = path else { return Ok(ResolvConfSource::Disabled) };
    let text = match read_text(path, MAX_RESOLV_CONF) {
        // A machine without a resolver has no network: its pods run all the same.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) if error.kind() == std::io::ErrorKind::FileTooLarge => {
            return Err(format!("{} is larger than {MAX_RESOLV_CONF} bytes", path.display()));
        }
        text => text.map_err(|error| format!("read {}: {error}", path.display()))?,
    };
    Ok(ResolvConfSource::Parsed(parse_resolv_conf(&text)))
}

fn bind(container_path: &str, host_path: &Path) -> Mount {
    Mount {
        container_path: absolute(container_path),
        host_path: host_path.display().to_string(),
        ..Mount::default()
    }
}

async fn read_env_files(pod: &Pod, container: &Container, volumes: &MountedVolumes) -> EnvFiles {
    let host_path = |volume: &String| Some(volumes.get(volume)?.host_path.clone());
    let wanted: Vec<_> = env_files(pod, container)
        .into_iter()
        .filter_map(|place| Some((host_path(&place.0)?, place)))
        .collect();
    if wanted.is_empty() {
        return EnvFiles::new();
    }
    let read = move |(root, place): (PathBuf, (String, String))| {
        let content = read_file_below(&root, Path::new(&place.1), MAX_ENV_FILE).ok();
        (place, content)
    };
    rt::blocking("read env files", move || wanted.into_iter().map(read).into_map()).await
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
    .into_map()
}

fn container_labels(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    let mut all = pod_labels(pod);
    all.insert(labels::CONTAINER_NAME.to_owned(), container.name.clone());
    all
}

/// Empty for the image's signal. Always honoured when set; upstream has the feature gate
/// ContainerStopSignals.
fn stop_signal(container: &Container) -> String {
    container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.clone()).unwrap_or_default()
}

/// The annotations by which a later agent, or a kubelet, recognises this container.
fn container_annotations(pod: &Pod, container: &Container, attempt: u32) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut add = |key: &str, value: String| all.insert(key.to_owned(), value);
    add(labels::CONTAINER_HASH, container_hash(container));
    add(labels::CONTAINER_RESOURCES, resize::annotation(container));
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

    #[test]
    fn a_resolv_conf_is_read_up_to_a_bound_whatever_its_encoding() {
        let path = std::env::temp_dir().join(format!("edge-agent-resolv-{}", std::process::id()));
        let read = || read_resolv_conf(Some(&path));
        assert_eq!(read_resolv_conf(None), Ok(ResolvConfSource::Disabled));
        assert_eq!(read(), Ok(ResolvConfSource::Parsed(parse_resolv_conf(""))), "none is no network");
        std::fs::write(&path, b"# caf\xe9\nnameserver 10.0.0.1\n").unwrap();
        let readable = read();
        // Its length is reported as zero, as with a device.
        let endless = read_resolv_conf(Some(Path::new("/dev/zero"))).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(readable, Ok(ResolvConfSource::Parsed(parse_resolv_conf("nameserver 10.0.0.1\n"))));
        assert_eq!(endless, "/dev/zero is larger than 10485760 bytes");
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
