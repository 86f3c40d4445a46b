//! Every field of `KubeletConfiguration` v1beta1: its type, path, flag, syntax, default, and whether a
//! running agent takes a new value over. The typed configuration, the decoding of files, flags, `--help` and `agent config
//! --explain` all come from one table.
//!
//! Owns the table. Rules about values are in `validate`.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::value::ValueKind;
use crate::model::api::quantity::Quantity;
use crate::model::duration::GoDuration;

#[derive(Debug)]
pub(super) struct SettingField {
    /// Dotted path in the file.
    pub(super) path: &'static str,
    /// The kubelet's flag for it; empty when there is none.
    pub(super) flag: &'static str,
    pub(super) kind: ValueKind,
    /// The file's default in flag syntax; `None` means unset.
    pub(super) default: Option<&'static str>,
    marks: u8,
}

/// An explicit zero is kept (a pointer in Go); without it zero means "the default".
const P: u8 = 1;
/// A new value takes effect in a running agent; without it, at its next start.
const R: u8 = 2;
/// The flag is not deprecated.
const K: u8 = 4;

impl SettingField {
    /// True when an explicit zero is kept.
    pub(super) fn keeps_zero(&self) -> bool {
        self.marks & P != 0
    }

    /// True when a running agent takes a new value over.
    pub(super) fn is_reloaded(&self) -> bool {
        self.marks & R != 0
    }

    /// True when the flag warns on use.
    pub(super) fn flag_deprecated(&self) -> bool {
        self.marks & K == 0
    }
}

pub(super) fn by_path(path: &str) -> Option<&'static SettingField> {
    FIELDS.iter().find(|field| field.path == path)
}

/// Where the flag baseline (no `--config`) differs from the file defaults.
pub(super) const BASELINE: [(&str, &str); 5] = [
    ("authentication.anonymous.enabled", "true"),
    ("authentication.webhook.enabled", "false"),
    ("authorization.mode", "AlwaysAllow"),
    ("readOnlyPort", "10255"),
    ("evictionHard", ""),
];

/// The hard eviction thresholds of a `--config` file that has none.
pub(super) const EVICTION_DEFAULTS: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// Fields whose relative path in the `--config` file is relative to that file's directory.
pub(super) const RELATIVE_PATHS: [&str; 7] = [
    "staticPodPath",
    "authentication.x509.clientCAFile",
    "tlsCertFile",
    "tlsPrivateKeyFile",
    "resolvConf",
    "volumePluginDir",
    "podLogsDir",
];

/// From each row: a member of the type, the way to read it, and an entry of [`FIELDS`].
macro_rules! fields {
    ($($field:ident: $type:ty = $path:literal, $flag:literal, $kind:ident, $default:tt, $marks:expr;)*) => {
        /// The whole file, resolved.
        #[derive(Debug, Default, PartialEq)]
        #[expect(missing_docs, reason = "the fields are upstream's")]
        pub struct KubeletConfiguration {$(pub $field: $type,)*}

        pub(super) static FIELDS: &[SettingField] = &[$(SettingField {
            path: $path,
            flag: $flag,
            kind: ValueKind::$kind,
            default: default!($default),
            marks: $marks,
        },)*];

        impl KubeletConfiguration {
            /// Reads the next value of `members` into the field of `path`, or into the fields below it.
            fn read<'de, M: MapAccess<'de>>(&mut self, path: &str, members: &mut M) -> Result<(), M::Error> {
                match path {
                    $($path => self.$field = members.next_value()?,)*
                    "apiVersion" | "kind" => drop(members.next_value::<String>()?),
                    section if is_section(section) => {
                        members.next_value_seed(Section { path: section, config: self })?;
                    }
                    _ => drop(members.next_value::<IgnoredAny>()?),
                }
                Ok(())
            }
        }
    };
}

macro_rules! default {
    (UNSET) => {
        None
    };
    ($text:literal) => {
        Some($text)
    };
}

/// Whether there are fields below a path.
fn is_section(path: &str) -> bool {
    FIELDS.iter().any(|field| field.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

/// An object of the file.
struct Section<'a> {
    /// Empty for the whole.
    path: &'a str,
    config: &'a mut KubeletConfiguration,
}

impl<'de> DeserializeSeed<'de> for Section<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Section<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut members: M) -> Result<(), M::Error> {
        while let Some(name) = members.next_key::<String>()? {
            let path = match self.path {
                // No name has a dot; such a member is unknown.
                _ if name.contains('.') => String::new(),
                "" => name,
                above => format!("{above}.{name}"),
            };
            self.config.read(&path, &mut members)?;
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for KubeletConfiguration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut config = Self::default();
        Section { path: "", config: &mut config }.deserialize(deserializer)?;
        Ok(config)
    }
}

/// Objects in lists of the file.
macro_rules! items {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Default, PartialEq, serde::Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        #[expect(missing_docs, reason = "the fields are upstream's")]
        pub struct $name {$(pub $field: $type,)*}
    )*};
}

items! {
    VmoduleItem { file_pattern: String, verbosity: u32, }
    /// A taint the node registers with.
    ConfigTaint { key: String, value: String, effect: String, time_added: Option<String>, }
    /// Grace at node shutdown from a priority up.
    ShutdownGracePeriodByPodPriority { priority: i32, shutdown_grace_period_seconds: i64, }
    /// Memory set aside on a NUMA node.
    MemoryReservation { numa_node: i32, limits: BTreeMap<String, Quantity>, }
}

// Every field, in the order of the reference.
fields! {
    // Serving, authentication, sources.
    enable_server: bool = "enableServer", "enable-server", Bool, "true", P;
    static_pod_path: String = "staticPodPath", "pod-manifest-path", Text, "", 0;
    pod_logs_dir: String = "podLogsDir", "", Text, "/var/log/pods", 0;
    sync_frequency: GoDuration = "syncFrequency", "sync-frequency", Duration, "1m", 0;
    file_check_frequency: GoDuration = "fileCheckFrequency", "file-check-frequency", Duration, "20s", 0;
    http_check_frequency: GoDuration = "httpCheckFrequency", "http-check-frequency", Duration, "20s", 0;
    static_pod_url: String = "staticPodURL", "manifest-url", Text, "", 0;
    static_pod_url_header: BTreeMap<String, Vec<String>> = "staticPodURLHeader", "manifest-url-header", MultiMap, "", 0;
    address: String = "address", "address", Ip, "0.0.0.0", 0;
    port: i32 = "port", "port", Int32, "10250", 0;
    read_only_port: i32 = "readOnlyPort", "read-only-port", Int32, "0", 0;
    tls_cert_file: String = "tlsCertFile", "tls-cert-file", Text, "", 0;
    tls_private_key_file: String = "tlsPrivateKeyFile", "tls-private-key-file", Text, "", 0;
    tls_cipher_suites: Vec<String> = "tlsCipherSuites", "tls-cipher-suites", List, "", 0;
    tls_curve_preferences: Vec<i32> = "tlsCurvePreferences", "", IntList, UNSET, 0;
    tls_min_version: String = "tlsMinVersion", "tls-min-version", Text, "", 0;
    rotate_certificates: bool = "rotateCertificates", "rotate-certificates", Bool, "false", 0;
    server_tls_bootstrap: bool = "serverTLSBootstrap", "rotate-server-certificates", Bool, "false", 0;
    authentication_x509_client_ca_file: String = "authentication.x509.clientCAFile", "client-ca-file", Text, "", 0;
    authentication_webhook_enabled: bool =
        "authentication.webhook.enabled", "authentication-token-webhook", Bool, "true", P;
    authentication_webhook_cache_ttl: GoDuration =
        "authentication.webhook.cacheTTL", "authentication-token-webhook-cache-ttl", Duration, "2m", 0;
    authentication_anonymous_enabled: bool = "authentication.anonymous.enabled", "anonymous-auth", Bool, "false", P;
    authorization_mode: String = "authorization.mode", "authorization-mode", Text, "Webhook", 0;
    authorization_webhook_cache_authorized_ttl: GoDuration =
        "authorization.webhook.cacheAuthorizedTTL", "authorization-webhook-cache-authorized-ttl", Duration, "5m", 0;
    authorization_webhook_cache_unauthorized_ttl: GoDuration =
        "authorization.webhook.cacheUnauthorizedTTL",
        "authorization-webhook-cache-unauthorized-ttl", Duration, "30s", 0;
    enable_debugging_handlers: bool = "enableDebuggingHandlers", "enable-debugging-handlers", Bool, "true", P;
    enable_contention_profiling: bool = "enableContentionProfiling", "contention-profiling", Bool, "false", 0;
    enable_profiling_handler: bool = "enableProfilingHandler", "", Bool, "true", P;
    enable_debug_flags_handler: bool = "enableDebugFlagsHandler", "", Bool, "true", P;
    enable_system_log_handler: bool = "enableSystemLogHandler", "", Bool, "true", P;
    enable_system_log_query: bool = "enableSystemLogQuery", "", Bool, "false", P;
    healthz_port: i32 = "healthzPort", "healthz-port", Int32, "10248", P;
    healthz_bind_address: String = "healthzBindAddress", "healthz-bind-address", Ip, "127.0.0.1", 0;
    streaming_connection_idle_timeout: GoDuration =
        "streamingConnectionIdleTimeout", "streaming-connection-idle-timeout", Duration, "4h", 0;
    event_record_qps: i32 = "eventRecordQPS", "event-qps", Int32, "50", P;
    event_burst: i32 = "eventBurst", "event-burst", Int32, "100", 0;
    content_type: String = "contentType", "kube-api-content-type", Text, "application/vnd.kubernetes.protobuf", 0;
    kube_api_qps: i32 = "kubeAPIQPS", "kube-api-qps", Int32, "50", P;
    kube_api_burst: i32 = "kubeAPIBurst", "kube-api-burst", Int32, "100", 0;
    show_hidden_metrics_for_version: String = "showHiddenMetricsForVersion", "", Text, "", 0;
    tracing_endpoint: Option<String> = "tracing.endpoint", "", Text, UNSET, P;
    tracing_sampling_rate_per_million: Option<i32> = "tracing.samplingRatePerMillion", "", Int32, UNSET, P;
    logging_format: String = "logging.format", "logging-format", Text, "text", 0;
    logging_flush_frequency: GoDuration = "logging.flushFrequency", "log-flush-frequency", Duration, "5s", K;
    logging_verbosity: u32 = "logging.verbosity", "v", Level, "0", R | K;
    logging_vmodule: Vec<VmoduleItem> = "logging.vmodule", "vmodule", Vmodule, "", R | K;
    logging_options_text_split_stream: bool =
        "logging.options.text.splitStream", "log-text-split-stream", Bool, "false", 0;
    logging_options_text_info_buffer_size: Quantity =
        "logging.options.text.infoBufferSize", "log-text-info-buffer-size", Quantity, "0", P;
    logging_options_json_split_stream: bool =
        "logging.options.json.splitStream", "log-json-split-stream", Bool, "false", 0;
    logging_options_json_info_buffer_size: Quantity =
        "logging.options.json.infoBufferSize", "log-json-info-buffer-size", Quantity, "0", P;
    feature_gates: BTreeMap<String, bool> = "featureGates", "feature-gates", Gates, "", 0;
    // Node, images, pods.
    oom_score_adj: i32 = "oomScoreAdj", "oom-score-adj", Int32, "-999", P;
    cluster_domain: String = "clusterDomain", "cluster-domain", Text, "", 0;
    cluster_dns: Vec<String> = "clusterDNS", "cluster-dns", List, "", R;
    resolv_conf: String = "resolvConf", "resolv-conf", Text, "/etc/resolv.conf", P | R;
    node_status_update_frequency: GoDuration =
        "nodeStatusUpdateFrequency", "node-status-update-frequency", Duration, "10s", 0;
    node_status_report_frequency: GoDuration = "nodeStatusReportFrequency", "", Duration, "5m", 0;
    node_lease_duration_seconds: i32 = "nodeLeaseDurationSeconds", "", Int32, "40", 0;
    node_status_max_images: i32 = "nodeStatusMaxImages", "node-status-max-images", Int32, "50", P;
    register_node: bool = "registerNode", "register-node", Bool, "true", P;
    register_with_taints: Vec<ConfigTaint> = "registerWithTaints", "register-with-taints", Taints, "", 0;
    provider_id: String = "providerID", "provider-id", Text, "", K;
    max_pods: i32 = "maxPods", "max-pods", Int32, "110", 0;
    pods_per_core: i32 = "podsPerCore", "pods-per-core", Int32, "0", 0;
    pod_cidr: String = "podCIDR", "pod-cidr", Text, "", 0;
    pod_pids_limit: i64 = "podPidsLimit", "pod-max-pids", Int64, "-1", P;
    hairpin_mode: String = "hairpinMode", "hairpin-mode", Text, "promiscuous-bridge", 0;
    max_open_files: i64 = "maxOpenFiles", "max-open-files", Int64, "1000000", 0;
    registry_pull_qps: i32 = "registryPullQPS", "registry-qps", Int32, "5", P | R;
    registry_burst: i32 = "registryBurst", "registry-burst", Int32, "10", R;
    serialize_image_pulls: bool = "serializeImagePulls", "serialize-image-pulls", Bool, "true", P;
    max_parallel_image_pulls: Option<i32> = "maxParallelImagePulls", "", Int32, UNSET, P;
    image_pull_credentials_verification_policy: String =
        "imagePullCredentialsVerificationPolicy", "", Text, "NeverVerifyPreloadedImages", R;
    preloaded_images_verification_allowlist: Vec<String> = "preloadedImagesVerificationAllowlist", "", List, UNSET, R;
    image_minimum_gc_age: GoDuration = "imageMinimumGCAge", "minimum-image-ttl-duration", Duration, "2m", R;
    image_maximum_gc_age: GoDuration = "imageMaximumGCAge", "", Duration, "0s", R;
    image_gc_high_threshold_percent: i32 = "imageGCHighThresholdPercent", "image-gc-high-threshold", Int32, "85", P | R;
    image_gc_low_threshold_percent: i32 = "imageGCLowThresholdPercent", "image-gc-low-threshold", Int32, "80", P | R;
    container_log_max_size: String = "containerLogMaxSize", "container-log-max-size", Quantity, "10Mi", R;
    container_log_max_files: i32 = "containerLogMaxFiles", "container-log-max-files", Int32, "5", P | R;
    container_log_max_workers: i32 = "containerLogMaxWorkers", "", Int32, "1", P | R;
    container_log_monitor_interval: GoDuration = "containerLogMonitorInterval", "", Duration, "10s", P | R;
    crash_loop_back_off_max_container_restart_period: GoDuration =
        "crashLoopBackOff.maxContainerRestartPeriod", "", Duration, "5m", P | R;
    config_map_and_secret_change_detection_strategy: String =
        "configMapAndSecretChangeDetectionStrategy", "", Text, "Watch", 0;
    enable_controller_attach_detach: bool =
        "enableControllerAttachDetach", "enable-controller-attach-detach", Bool, "true", P;
    volume_plugin_dir: String =
        "volumePluginDir", "volume-plugin-dir", Text, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/", 0;
    volume_stats_agg_period: GoDuration = "volumeStatsAggPeriod", "volume-stats-agg-period", Duration, "1m", 0;
    local_storage_capacity_isolation: bool =
        "localStorageCapacityIsolation", "local-storage-capacity-isolation", Bool, "true", P;
    seccomp_default: bool = "seccompDefault", "", Bool, "false", P | R;
    allowed_unsafe_sysctls: Vec<String> = "allowedUnsafeSysctls", "allowed-unsafe-sysctls", List, "", R;
    shutdown_grace_period: GoDuration = "shutdownGracePeriod", "", Duration, "0s", 0;
    shutdown_grace_period_critical_pods: GoDuration = "shutdownGracePeriodCriticalPods", "", Duration, "0s", 0;
    shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority> =
        "shutdownGracePeriodByPodPriority", "", Objects, UNSET, 0;
    run_once: bool = "runOnce", "runonce", Bool, "false", K;
    user_namespaces_ids_per_pod: Option<i64> = "userNamespaces.idsPerPod", "", Int64, UNSET, P;
    // Resources, cgroups, eviction, runtime.
    container_runtime_endpoint: String =
        "containerRuntimeEndpoint", "container-runtime-endpoint", Text, "unix:///run/containerd/containerd.sock", 0;
    image_service_endpoint: String = "imageServiceEndpoint", "image-service-endpoint", Text, "", 0;
    runtime_request_timeout: GoDuration = "runtimeRequestTimeout", "runtime-request-timeout", Duration, "2m", 0;
    cgroup_root: String = "cgroupRoot", "cgroup-root", Text, "", 0;
    cgroups_per_qos: bool = "cgroupsPerQOS", "cgroups-per-qos", Bool, "true", P;
    cgroup_driver: String = "cgroupDriver", "cgroup-driver", Text, "cgroupfs", 0;
    fail_cgroup_v1: bool = "failCgroupV1", "fail-cgroupv1", Bool, "true", P | K;
    kubelet_cgroups: String = "kubeletCgroups", "kubelet-cgroups", Text, "", 0;
    system_cgroups: String = "systemCgroups", "system-cgroups", Text, "", 0;
    cpu_manager_policy: String = "cpuManagerPolicy", "cpu-manager-policy", Text, "none", 0;
    cpu_manager_policy_options: BTreeMap<String, String> =
        "cpuManagerPolicyOptions", "cpu-manager-policy-options", MapNoSplit, "", 0;
    cpu_manager_reconcile_period: GoDuration =
        "cpuManagerReconcilePeriod", "cpu-manager-reconcile-period", Duration, "10s", 0;
    memory_manager_policy: String = "memoryManagerPolicy", "memory-manager-policy", Text, "None", 0;
    reserved_memory: Vec<MemoryReservation> = "reservedMemory", "reserved-memory", ReservedMemory, "", 0;
    topology_manager_policy: String = "topologyManagerPolicy", "topology-manager-policy", Text, "none", 0;
    topology_manager_scope: String = "topologyManagerScope", "topology-manager-scope", Text, "container", 0;
    topology_manager_policy_options: BTreeMap<String, String> =
        "topologyManagerPolicyOptions", "topology-manager-policy-options", Map, "", 0;
    qos_reserved: BTreeMap<String, String> = "qosReserved", "qos-reserved", Map, "", 0;
    cpu_cfs_quota: bool = "cpuCFSQuota", "cpu-cfs-quota", Bool, "true", P;
    cpu_cfs_quota_period: GoDuration = "cpuCFSQuotaPeriod", "cpu-cfs-quota-period", Duration, "100ms", P;
    single_process_oom_kill: Option<bool> = "singleProcessOOMKill", "", Bool, UNSET, P;
    memory_throttling_factor: f64 = "memoryThrottlingFactor", "", Float, "0.9", P;
    memory_reservation_policy: String = "memoryReservationPolicy", "", Text, "None", 0;
    memory_swap_swap_behavior: String = "memorySwap.swapBehavior", "", Text, "", 0;
    fail_swap_on: bool = "failSwapOn", "fail-swap-on", Bool, "true", P;
    protect_kernel_defaults: bool = "protectKernelDefaults", "protect-kernel-defaults", Bool, "false", 0;
    system_reserved: BTreeMap<String, String> = "systemReserved", "system-reserved", Map, "", 0;
    kube_reserved: BTreeMap<String, String> = "kubeReserved", "kube-reserved", Map, "", 0;
    reserved_system_cpus: String = "reservedSystemCPUs", "reserved-cpus", Text, "", 0;
    system_reserved_cgroup: String = "systemReservedCgroup", "system-reserved-cgroup", Text, "", 0;
    kube_reserved_cgroup: String = "kubeReservedCgroup", "kube-reserved-cgroup", Text, "", 0;
    enforce_node_allocatable: Vec<String> = "enforceNodeAllocatable", "enforce-node-allocatable", List, "pods", 0;
    eviction_hard: BTreeMap<String, String> = "evictionHard", "eviction-hard", LessMap, UNSET, 0;
    eviction_soft: BTreeMap<String, String> = "evictionSoft", "eviction-soft", LessMap, "", R;
    eviction_soft_grace_period: BTreeMap<String, String> =
        "evictionSoftGracePeriod", "eviction-soft-grace-period", Map, "", R;
    eviction_pressure_transition_period: GoDuration =
        "evictionPressureTransitionPeriod", "eviction-pressure-transition-period", Duration, "5m", R;
    eviction_max_pod_grace_period: i32 = "evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", Int32, "0", R;
    eviction_minimum_reclaim: BTreeMap<String, String> =
        "evictionMinimumReclaim", "eviction-minimum-reclaim", Map, "", R;
    merge_default_eviction_settings: bool = "mergeDefaultEvictionSettings", "", Bool, "false", P;
    kernel_memcg_notification: bool = "kernelMemcgNotification", "kernel-memcg-notification", Bool, "false", 0;
    make_iptables_util_chains: bool = "makeIPTablesUtilChains", "make-iptables-util-chains", Bool, "true", P;
    iptables_masquerade_bit: i32 = "iptablesMasqueradeBit", "", Int32, "14", P;
    iptables_drop_bit: i32 = "iptablesDropBit", "", Int32, "15", P;
}
