//! The configuration of each part, from the resolved configuration.
//!
//! Owns the translation: only here and in `setup` itself both the settings and the parts are known.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::agent::config::{KubeletConfiguration, Origin, Resolved, parse_sloppy, tls_settings};
use crate::agent::kubelet::embedded::subnets;
use crate::agent::kubelet::previous_runtimes::RuntimesConfig;
use crate::agent::kubelet::resources::ResourcesConfig;
use crate::agent::kubelet::services::{cluster_domain, name_servers};
use crate::agent::kubelet::serving::{
    self, ApiConfig, PodsAddress, ServingConfig, address, names_for_pods, server_url, serving_names,
};
use crate::agent::kubelet::setup::node_facts::node_ips;
use crate::agent::kubelet::{plugins, resources};
use crate::cluster::review::Reviews;
use crate::desired::kinds::addresses::{ServiceRanges, cidrs};
use crate::desired::rollout::RolloutConfig;
use crate::desired::source::Remembered;
use crate::desired::source::url::UrlConfig;
use crate::devices::cdi;
use crate::managers::ResourceManagers;
use crate::model::api::pod::ResourceList;
use crate::model::api::quantity::Quantity;
use crate::model::back_off::BackOffLimits;
use crate::model::cidr::Cidr;
use crate::model::duration::GoDuration;
use crate::model::objects::NodeObjects;
use crate::model::ordered::Ordered as _;
use crate::model::runtime_config::CgroupDriver;
use crate::model::source::SourceSet;
use crate::model::types::PodSource;
use crate::node::NodeConfig;
use crate::node::allocatable::{Reserved, memory_of_pods};
use crate::node::eviction::{EvictionConfig, ThresholdTexts, thresholds};
use crate::node::image_gc::ImageLimits;
use crate::node::shutdown::rules::{Period, periods};
use crate::node::stats::StatsConfig;
use crate::platform::cgroup::{CgroupConfig, MOUNT_POINT};
use crate::platform::http::{ClientFiles, shown_url};
use crate::platform::logging;
use crate::platform::rt::live::Live;
use crate::platform::sys::node;
use crate::pod::container_logs::LogConfig;
use crate::pod::executor::{ExecutorConfig, PodSettings};
use crate::pod::image::pull_records::Verification;
use crate::pod::image::{CredentialsConfig, ImageConfig};
use crate::pod::log_rotation::LogLimits;
use crate::pod::resources::{CgroupLayout, ResourceFlags};
use crate::pod::users::NodeIds;
use crate::pod::volume::VolumeConfig;
use crate::pod::workers::{DeadLimits, PodWorkerConfig};
use crate::runtime::docker::{DockerConfig, DockerLogs};
use crate::runtime::embedded::layout::Layout;
use crate::runtime::embedded::network::NetworkConfig;
use crate::runtime::embedded::network::subnet::SubnetError;
use crate::runtime::embedded::runtime::{EmbeddedConfig, OWN_PROGRAM};
use crate::serve::accounts::AccountsConfig;
use crate::serve::server::answer::SystemLogs;
use crate::serve::server::report::ApiReport;
use crate::serve::server::tls::Source;
use crate::store::{Loaded, meta};

/// Upstream's initial back-off of a crash-looping container.
const FIRST_BACK_OFF: Duration = Duration::from_secs(10);
/// The first and the longest one with `ReduceDefaultCrashLoopBackOffDecay`.
const REDUCED_BACK_OFFS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
const MAX_BACK_OFF: &str = "crashLoopBackOff.maxContainerRestartPeriod";

/// The configured runtime and the embedded one, which may be an earlier one.
pub(crate) fn runtimes(resolved: &Resolved) -> RuntimesConfig {
    RuntimesConfig {
        endpoint: resolved.kubelet.container_runtime_endpoint.clone(),
        request_timeout: resolved.kubelet.runtime_request_timeout.to_std(),
        embedded: embedded(resolved),
        docker: docker(resolved, Live::new(docker_logs(resolved))),
    }
}

/// The embedded runtime's paths and settings.
pub(crate) fn embedded(resolved: &Resolved) -> Result<EmbeddedConfig, SubnetError> {
    let flags = &resolved.flags;
    let layout = Layout::new(&flags.root_dir.join("runtime"), &flags.runtime_state_dir);
    let v2 = node::cgroup_v2();
    let chosen = resolved.provenance.get("cgroupDriver").is_some_and(Origin::is_explicit);
    let chosen = chosen.then_some(resolved.kubelet.cgroup_driver.as_str());
    let driver = driver(chosen, v2, node::systemd_is_running());
    let handlers = flags.runtime_handlers.iter().filter(|(name, _)| !name.is_empty());
    Ok(EmbeddedConfig {
        network: NetworkConfig {
            bridge: flags.bridge_name.clone(),
            subnets: subnets(&resolved.kubelet.pod_cidr)?,
            mtu: None,
            state: layout.network(),
            cni_conf_dir: flags.cni_conf_dir.clone(),
            cni_bin_dirs: flags.cni_bin_dirs.clone(),
        },
        layout,
        program: PathBuf::from(OWN_PROGRAM),
        cgroup: CgroupConfig { mount: PathBuf::from(MOUNT_POINT), v2, driver },
        handlers: handlers.map(|(name, program)| (name.clone(), program.clone())).into_map(),
        registry_hosts_dirs: flags.registry_hosts_dirs.clone(),
        image_policy: flags.image_policy.clone(),
        image_keep_free: resolved.kubelet.eviction_hard.get("imagefs.available").cloned().unwrap_or_default(),
    })
}

/// What a Docker Engine gets from the agent.
pub(super) fn docker(resolved: &Resolved, log: Live<DockerLogs>) -> DockerConfig {
    DockerConfig { network: embedded(resolved).ok().map(|embedded| embedded.network), log }
}

pub(super) fn docker_logs(resolved: &Resolved) -> DockerLogs {
    let LogLimits { max_bytes, max_files } = log_rotation(resolved).limits;
    (max_bytes > 0).then_some((max_bytes, max_files))
}

/// The configured cgroup driver, otherwise the one that suits the machine: a unified tree has a single
/// manager, and under systemd that is systemd. The kubelet's own default, `cgroupfs`, is for a runtime that
/// reports its driver; here the agent is the runtime.
fn driver(chosen: Option<&str>, v2: bool, systemd: bool) -> CgroupDriver {
    match chosen {
        Some("systemd") => CgroupDriver::Systemd,
        None if v2 && systemd => CgroupDriver::Systemd,
        Some(_) | None => CgroupDriver::Cgroupfs,
    }
}

/// The names and the location of pod cgroups as configured; the runtime may report another driver.
pub(crate) fn cgroups(kubelet: &KubeletConfiguration) -> (CgroupLayout, CgroupConfig) {
    let driver = match kubelet.cgroup_driver.as_str() {
        "systemd" => CgroupDriver::Systemd,
        _ => CgroupDriver::Cgroupfs,
    };
    let root = if kubelet.cgroup_root.is_empty() { "/" } else { kubelet.cgroup_root.as_str() };
    let layout = CgroupLayout { driver, root: root.to_owned(), per_qos: kubelet.cgroups_per_qos };
    (layout, CgroupConfig { mount: PathBuf::from(MOUNT_POINT), v2: node::cgroup_v2(), driver })
}

/// How resources are translated to cgroup values.
fn resource_flags(resolved: &Resolved, cgroup_v2: bool, memory: i64) -> ResourceFlags {
    let kubelet = &resolved.kubelet;
    #[expect(clippy::cast_possible_truncation, reason = "at most a million")]
    let throttling = (kubelet.memory_throttling_factor * 1e6) as i64;
    let period = kubelet.cpu_cfs_quota_period.to_std().as_micros();
    ResourceFlags {
        cpu_cfs_quota: kubelet.cpu_cfs_quota,
        cpu_cfs_quota_period: i64::try_from(period).unwrap_or(100_000),
        single_process_oom_kill: kubelet.single_process_oom_kill.unwrap_or(!cgroup_v2),
        limited_swap: kubelet.memory_swap_swap_behavior == "LimitedSwap",
        pod_pids_limit: Some(kubelet.pod_pids_limit).filter(|limit| *limit > 0),
        memory_qos: resolved.feature_gates.enabled("MemoryQoS").then_some((throttling, memory)),
    }
}

fn reservations(resolved: &Resolved) -> ResourcesConfig<'_> {
    let kubelet = &resolved.kubelet;
    let mut reserved = Reserved {
        system: amounts(&kubelet.system_reserved),
        kube: amounts(&kubelet.kube_reserved),
        eviction: ResourceList::new(),
    };
    if !kubelet.reserved_system_cpus.is_empty() {
        // Reserved CPUs by number replace both reservations (upstream).
        reserved.kube.remove("cpu");
        let cpus = Quantity::from_units(node::count_cpus(&kubelet.reserved_system_cpus));
        reserved.system.insert("cpu".to_owned(), cpus);
    }
    let ignores_eviction = resolved.flags.experimental_allocatable_ignore_eviction;
    ResourcesConfig {
        root_dir: &resolved.flags.root_dir,
        isolates_storage: kubelet.local_storage_capacity_isolation,
        max_pods: i64::from(kubelet.max_pods),
        pods_per_core: i64::from(kubelet.pods_per_core),
        reserved,
        eviction_hard: (!ignores_eviction).then_some(&kubelet.eviction_hard),
        enforced: &kubelet.enforce_node_allocatable,
        system_cgroup: &kubelet.system_reserved_cgroup,
        kube_cgroup: &kubelet.kube_reserved_cgroup,
    }
}

/// Strings already validated with the configuration.
fn amounts(texts: &BTreeMap<String, String>) -> ResourceList {
    texts.iter().filter_map(|(name, text)| Some((name.clone(), Quantity::parse(text).ok()?))).into_map()
}

/// Addresses of pods and Services.
fn own_ranges(resolved: &Resolved) -> Vec<Cidr> {
    let pods = subnets(&resolved.kubelet.pod_cidr).unwrap_or_default();
    let pods = pods.iter().filter_map(|subnet| subnet.to_string().parse().ok());
    pods.chain(cidrs(&resolved.flags.service_cidr).unwrap_or_default()).collect()
}

/// What the executor works with, from the settings and the measured node.
pub(super) fn executor(
    resolved: &Resolved,
    user_ids: NodeIds,
    objects: &Rc<NodeObjects>,
    services: Option<&ServiceRanges>,
) -> Result<ExecutorConfig, String> {
    let kubelet = &resolved.kubelet;
    let root = &resolved.flags.root_dir;
    let pod_logs_dir = PathBuf::from(&kubelet.pod_logs_dir);
    let resources = resources::measure(reservations(resolved))?;
    let memory = memory_of_pods(&resources.capacity, &reservations(resolved).reserved);
    let (layout, cgroup) = cgroups(kubelet);
    let reads_cdi = resolved.owns_pod_network();
    Ok(ExecutorConfig {
        volumes: VolumeConfig { pods_dir: root.join("pods"), capacity: resources.allocatable.clone() },
        container_logs_dir: container_logs_dir(&pod_logs_dir),
        pod_logs_dir,
        seccomp_dir: root.join("seccomp"),
        node_name: resolved.node_name.clone(),
        node_ips: node_ips(resolved.node_ips.clone(), &own_ranges(resolved)),
        resources: resource_flags(resolved, cgroup.v2, memory),
        capacity: resources.capacity,
        allocatable: resources.allocatable,
        layout,
        cgroup,
        node_cgroups: resources.node_cgroups,
        cluster_domain: cluster_domain(resolved, services),
        pods: Live::new(pods(resolved, services)),
        user_ids,
        objects: Rc::<NodeObjects>::clone(objects),
        devices: plugins::manager(root),
        managers: ResourceManagers::default(),
        // Otherwise the runtime reads the specifications.
        cdi_directories: if reads_cdi { cdi::DIRECTORIES.map(PathBuf::from).to_vec() } else { Vec::new() },
    })
}

/// Settings of pods that a running agent takes over.
pub(super) fn pods(resolved: &Resolved, services: Option<&ServiceRanges>) -> PodSettings {
    let kubelet = &resolved.kubelet;
    let addresses = kubelet.cluster_dns.iter().filter_map(|server| parse_sloppy(server));
    let mut cluster_dns = addresses.map(|ip| ip.to_string()).collect();
    name_servers(&mut cluster_dns, resolved, services);
    PodSettings {
        cluster_dns,
        resolv_conf: file(&kubelet.resolv_conf),
        seccomp_default: resolved.seccomp_default(),
    }
}

/// Limits and credentials of image pulls.
pub(super) fn images(resolved: &Resolved) -> ImageConfig {
    let kubelet = &resolved.kubelet;
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    ImageConfig {
        serialize: kubelet.serialize_image_pulls,
        max_parallel: kubelet.max_parallel_image_pulls.and_then(|most| usize::try_from(most).ok()),
        qps: count(kubelet.registry_pull_qps),
        burst: count(kubelet.registry_burst),
        verification: Verification::from_config(
            &kubelet.image_pull_credentials_verification_policy,
            &kubelet.preloaded_images_verification_allowlist,
        ),
        records_root: Some(resolved.flags.root_dir.clone()),
        credentials: CredentialsConfig {
            root_dir: Some(resolved.flags.root_dir.clone()),
            provider_config: file(&resolved.flags.image_credential_provider_config),
            provider_bin_dir: PathBuf::from(&resolved.flags.image_credential_provider_bin_dir),
        },
    }
}

/// The path of a setting that may be empty.
fn file(path: &str) -> Option<PathBuf> {
    (!path.is_empty()).then(|| PathBuf::from(path))
}

/// The limits of the back-offs, and the history of dead containers.
pub(super) fn workers(resolved: &Resolved, node_ips: Vec<String>) -> PodWorkerConfig {
    let (first, longest) = back_offs(resolved);
    PodWorkerConfig {
        // Upstream: a maximum below the initial back-off is also the initial one.
        limits: BackOffLimits { initial: first.min(longest), max: longest },
        dead: DeadLimits {
            // As upstream, a negative number is no limit.
            per_container: usize::try_from(resolved.flags.maximum_dead_containers_per_container)
                .unwrap_or(usize::MAX),
            of_node: usize::try_from(resolved.flags.maximum_dead_containers).ok(),
            minimum_age: resolved.flags.minimum_container_ttl_duration.to_std(),
        },
        node_ips,
    }
}

/// The first and the longest back-off of a crash-looping container.
fn back_offs(resolved: &Resolved) -> (Duration, Duration) {
    let decays_less = resolved.feature_gates.enabled("ReduceDefaultCrashLoopBackOffDecay");
    let (first, longest) =
        if decays_less { REDUCED_BACK_OFFS } else { (FIRST_BACK_OFF, Duration::from_secs(300)) };
    let is_set = resolved.provenance.get(MAX_BACK_OFF).is_some_and(Origin::is_explicit);
    let set = resolved.kubelet.crash_loop_back_off_max_container_restart_period.to_std();
    (first, if is_set { set } else { longest })
}

/// The path or URL of each configured source of manifests.
pub(super) fn origins(kubelet: &KubeletConfiguration) -> BTreeMap<PodSource, String> {
    let url =
        if kubelet.static_pod_url.is_empty() { String::new() } else { shown_url(&kubelet.static_pod_url) };
    [(PodSource::File, kubelet.static_pod_path.clone()), (PodSource::Http, url)]
        .into_iter()
        .filter(|(_, origin)| !origin.is_empty())
        .into_map()
}

/// The source whose new sets are rolled out, if configured.
pub(super) fn rollout(resolved: &Resolved) -> Option<RolloutConfig> {
    let after = resolved.flags.manifest_url_rollback_after.to_std();
    let origin = origins(&resolved.kubelet).remove(&PodSource::Http)?;
    (!after.is_zero()).then_some(RolloutConfig { source: PodSource::Http, origin, after })
}

/// The stored state that a source resumes from.
pub(super) fn restored_state(loaded: &Loaded, source: PodSource) -> Remembered {
    let found = loaded.desired.iter().find(|stored| stored.source == source);
    let (good, validator) = found
        .map(|stored| {
            let good = SourceSet { pods: stored.pods.clone(), objects: stored.objects.clone() };
            (good, stored.validator.clone())
        })
        .unwrap_or_default();
    Remembered { good, validator, signed: loaded.meta.get(meta::NEWEST_SIGNATURE).cloned() }
}

pub(super) fn url_source(resolved: &Resolved) -> UrlConfig {
    let (kubelet, flags) = (&resolved.kubelet, &resolved.flags);
    UrlConfig {
        url: kubelet.static_pod_url.clone(),
        headers: kubelet
            .static_pod_url_header
            .iter()
            .flat_map(|(name, values)| values.iter().map(|value| (name.clone(), value.clone())))
            .collect(),
        check_frequency: kubelet.http_check_frequency.to_std(),
        ca_file: flags.manifest_url_ca_file.clone(),
        client: flags
            .manifest_url_client_cert_file
            .clone()
            .map(|certificate| ClientFiles { certificate, key: flags.manifest_url_client_key_file.clone() }),
        token_file: flags.manifest_url_token_file.clone(),
        verify_key_file: flags.manifest_url_verify_key_file.clone(),
        node_name: resolved.node_name.clone(),
    }
}

/// The format and the verbosity of the agent's log.
#[must_use]
pub fn logging(kubelet: &KubeletConfiguration) -> logging::LogConfig {
    let number = |verbosity: u32| i32::try_from(verbosity).unwrap_or(i32::MAX);
    let format =
        if kubelet.logging_format == "json" { logging::LogFormat::Json } else { logging::LogFormat::Text };
    let listed = kubelet.logging_vmodule.iter();
    logging::LogConfig {
        format,
        verbosity: number(kubelet.logging_verbosity),
        vmodule: listed.map(|item| (item.file_pattern.clone(), number(item.verbosity))).collect(),
    }
}

/// `/var/log/containers` for the default log directory, otherwise a sibling of the configured one.
fn container_logs_dir(pod_logs_dir: &Path) -> PathBuf {
    pod_logs_dir.parent().unwrap_or(Path::new("/var/log")).join("containers")
}

pub(super) fn log_rotation(resolved: &Resolved) -> LogConfig {
    let kubelet = &resolved.kubelet;
    let pod_logs_dir = PathBuf::from(&kubelet.pod_logs_dir);
    let size = Quantity::parse(&kubelet.container_log_max_size).map_or(0, Quantity::value);
    LogConfig {
        links_dir: container_logs_dir(&pod_logs_dir),
        pod_logs_dir,
        limits: LogLimits {
            // As upstream, a negative size turns rotation off.
            max_bytes: u64::try_from(size).unwrap_or_default(),
            max_files: usize::try_from(kubelet.container_log_max_files).unwrap_or_default(),
        },
        workers: usize::try_from(kubelet.container_log_max_workers).unwrap_or(1),
        interval: kubelet.container_log_monitor_interval.to_std(),
        in_memory: resolved.flags.container_log_ram.is_some(),
    }
}

pub(super) fn stats(resolved: &Resolved) -> StatsConfig {
    let (layout, cgroup) = cgroups(&resolved.kubelet);
    StatsConfig {
        node_name: resolved.node_name.clone(),
        cgroup,
        layout,
        proc: PathBuf::from("/proc"),
        root_dir: resolved.flags.root_dir.clone(),
        runtime_cgroup: resolved.flags.runtime_cgroups.clone(),
        pod_logs_dir: PathBuf::from(&resolved.kubelet.pod_logs_dir),
        walk_period: {
            let period = resolved.kubelet.volume_stats_agg_period;
            (!period.is_negative()).then(|| period.to_std())
        },
    }
}

/// Eviction and image garbage collection.
pub(super) fn node_manager(resolved: &Resolved) -> NodeConfig {
    let kubelet = &resolved.kubelet;
    let percent = |percent: i32| u64::try_from(percent).unwrap_or(100);
    NodeConfig {
        eviction: eviction(kubelet),
        images: ImageLimits {
            high_percent: percent(kubelet.image_gc_high_threshold_percent),
            low_percent: percent(kubelet.image_gc_low_threshold_percent),
            minimum_age: kubelet.image_minimum_gc_age.to_std(),
            maximum_age: kubelet.image_maximum_gc_age.to_std(),
        },
        kernel_notification: kubelet.kernel_memcg_notification,
        isolates_storage: kubelet.local_storage_capacity_isolation,
        root_dir: resolved.flags.root_dir.clone(),
    }
}

fn eviction(kubelet: &KubeletConfiguration) -> EvictionConfig {
    let texts = ThresholdTexts {
        hard: kubelet.eviction_hard.clone(),
        soft: kubelet.eviction_soft.clone(),
        grace: graces(&kubelet.eviction_soft_grace_period),
        minimum_reclaim: kubelet.eviction_minimum_reclaim.clone(),
        pods_are_limited: kubelet.enforce_node_allocatable.iter().any(|word| word == "pods"),
    };
    EvictionConfig {
        thresholds: thresholds(&texts),
        transition: kubelet.eviction_pressure_transition_period.to_std(),
        max_pod_grace_seconds: i64::from(kubelet.eviction_max_pod_grace_period),
    }
}

/// Strings already validated with the configuration.
fn graces(texts: &BTreeMap<String, String>) -> BTreeMap<String, Duration> {
    let of = |(name, text): (&String, &String)| Some((name.clone(), GoDuration::parse(text).ok()?.to_std()));
    texts.iter().filter_map(of).into_map()
}

/// How long pods have to end when the machine shuts down.
pub(super) fn grace_periods(resolved: &Resolved) -> Vec<Period> {
    let kubelet = &resolved.kubelet;
    if !resolved.feature_gates.enabled("GracefulNodeShutdown") {
        return Vec::new();
    }
    let seconds = |duration: GoDuration| i64::try_from(duration.to_std().as_secs()).unwrap_or(i64::MAX);
    let listed = kubelet.shutdown_grace_period_by_pod_priority.iter();
    let listed: Vec<Period> = listed
        .map(|entry| Period { priority: entry.priority, seconds: entry.shutdown_grace_period_seconds })
        .collect();
    let (all, critical) = (kubelet.shutdown_grace_period, kubelet.shutdown_grace_period_critical_pods);
    periods(seconds(all), seconds(critical), &listed)
}

/// Whose tokens the node signs, and where its keys are.
pub(super) fn accounts(resolved: &Resolved) -> AccountsConfig {
    AccountsConfig {
        cert_dir: resolved.flags.cert_dir.clone(),
        node_name: resolved.node_name.clone(),
        cluster_domain: resolved.kubelet.cluster_domain.clone(),
    }
}

/// The servers that the configuration enables.
pub(super) fn serving(resolved: &Resolved, reviews: Option<&Rc<Reviews>>) -> ServingConfig {
    let kubelet = &resolved.kubelet;
    let at = |host: &str, port: i32| (port > 0).then(|| address(host, port));
    let api_at = address(&kubelet.address, kubelet.port);
    ServingConfig {
        health: at(&kubelet.healthz_bind_address, kubelet.healthz_port),
        // As upstream, whether `enableServer` is set or not.
        read_only: at(&kubelet.address, kubelet.read_only_port),
        api: kubelet.enable_server.then(|| api(resolved, api_at, reviews)),
        pods: pods_address(resolved),
    }
}

/// Where pods of the built-in network reach the API, unless they do at its own address.
pub(super) fn pods_address(resolved: &Resolved) -> Option<PodsAddress> {
    let kubelet = &resolved.kubelet;
    let own = address(&kubelet.address, kubelet.port);
    if !resolved.owns_pod_network() || own.ip().is_unspecified() || !resolved.flags.kubeconfig.is_empty() {
        return None;
    }
    let subnets = subnets(&kubelet.pod_cidr).ok()?;
    let gateway = subnets.first()?.gateway();
    let at = SocketAddr::new(gateway, own.port());
    (gateway != own.ip()).then_some(PodsAddress { at, subnets })
}

fn api(resolved: &Resolved, at: SocketAddr, reviews: Option<&Rc<Reviews>>) -> ApiConfig {
    let kubelet = &resolved.kubelet;
    let (directory, node_name) = (resolved.flags.cert_dir.clone(), resolved.node_name.clone());
    let source = match file(&kubelet.tls_cert_file) {
        Some(certificate) => Source::Files { certificate, key: kubelet.tls_private_key_file.as_str().into() },
        None => Source::Own {
            directory: directory.clone(),
            node_name: node_name.clone(),
            names: serving_names(
                node_name.clone(),
                resolved.node_ips.clone(),
                &kubelet.address,
                names_for_pods(resolved),
            ),
        },
    };
    ApiConfig {
        at,
        access: serving::access(kubelet, reviews),
        anonymous: kubelet.authentication_anonymous_enabled,
        debugging: kubelet.enable_debugging_handlers,
        system_logs: match (kubelet.enable_system_log_handler, kubelet.enable_system_log_query) {
            (false, _) => SystemLogs::Off,
            (true, false) => SystemLogs::Files,
            (true, true) => SystemLogs::Queries,
        },
        cert_dir: directory,
        node_name,
        client_ca: file(&kubelet.authentication_x509_client_ca_file),
        tokens: resolved.flags.token_auth_file.clone(),
        source: serving::cluster_source(resolved, source),
        settings: tls_settings(kubelet),
    }
}

/// The address of the API for clients on this machine, and the directory of its authority.
pub(super) fn api_report(resolved: &Resolved) -> ApiReport {
    let (kubelet, directory) = (&resolved.kubelet, &resolved.flags.cert_dir);
    // Without a working directory a relative path is left unchanged.
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.clone());
    let server =
        if kubelet.enable_server { server_url(&kubelet.address, kubelet.port) } else { String::new() };
    ApiReport { server, cert_dir: directory.display().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::config::{Environment, Invocation, parse};

    fn resolved(words: &[&str]) -> Resolved {
        let words: Vec<_> = words.iter().map(Into::into).collect();
        match parse(&words, &Environment { hostname: "edge".to_owned() }) {
            Ok(Invocation::Run(resolved)) => *resolved,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_addresses_become_dns_servers_of_pods() {
        let given = resolved(&["--cluster-dns=nope,10.0.0.10,010.1.0.10,fd00::a"]);
        assert_eq!(pods(&given, None).cluster_dns, ["10.0.0.10", "10.1.0.10", "fd00::a"]);
    }

    #[test]
    fn read_only_port_is_open_without_the_server() {
        let given = resolved(&["--enable-server=false", "--read-only-port=10255"]);
        let config = serving(&given, None);
        assert!(config.api.is_none());
        assert_eq!(config.read_only, Some("127.0.0.1:10255".parse().unwrap()));
    }

    #[test]
    fn negative_number_of_dead_containers_is_no_limit() {
        let of = |flag: &str| workers(&resolved(&[flag]), Vec::new()).dead.per_container;
        let flag = "--maximum-dead-containers-per-container";
        assert_eq!((of(&format!("{flag}=0")), of(&format!("{flag}=-1"))), (0, usize::MAX));
    }

    #[test]
    fn log_limits_are_for_docker_as_configured_now() {
        let given = resolved(&["--container-log-max-size=1Mi", "--container-log-max-files=3"]);
        assert_eq!(docker_logs(&given), Some((1 << 20, 3)));
    }

    #[test]
    fn cgroup_driver_is_the_configured_one_or_detected() {
        for (chosen, v2, systemd, expected) in [
            (None, true, true, CgroupDriver::Systemd),
            (None, true, false, CgroupDriver::Cgroupfs),
            (None, false, true, CgroupDriver::Cgroupfs),
            (Some("cgroupfs"), true, true, CgroupDriver::Cgroupfs),
            (Some("systemd"), false, false, CgroupDriver::Systemd),
        ] {
            assert_eq!(driver(chosen, v2, systemd), expected, "{chosen:?} {v2} {systemd}");
        }
    }
}
