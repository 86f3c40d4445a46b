//! `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1` as types, with the wire's names.
//!
//! Owns shapes only: every value here is resolved already. Defaults are in `fields`, rules in `validate`.

use std::collections::BTreeMap;

use crate::model::api::quantity::Quantity;
use crate::model::duration::GoDuration;

/// Declares sections of the file: camelCase names unless stated, everything optional on reading.
macro_rules! sections {
    ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        #[expect(missing_docs, reason = "the fields are upstream's; `fields` describes each")]
        pub struct $name {$($(#[$field_meta])* pub $field: $type,)*}
    )*};
}

sections! {
    /// The whole file.
    KubeletConfiguration {
        api_version: String,
        kind: String,
        enable_server: bool,
        static_pod_path: String,
        pod_logs_dir: String,
        sync_frequency: GoDuration,
        file_check_frequency: GoDuration,
        http_check_frequency: GoDuration,
        #[serde(rename = "staticPodURL")]
        static_pod_url: String,
        #[serde(rename = "staticPodURLHeader")]
        static_pod_url_header: BTreeMap<String, Vec<String>>,
        address: String,
        port: i32,
        read_only_port: i32,
        tls_cert_file: String,
        tls_private_key_file: String,
        tls_cipher_suites: Vec<String>,
        tls_curve_preferences: Vec<i32>,
        tls_min_version: String,
        rotate_certificates: bool,
        #[serde(rename = "serverTLSBootstrap")]
        server_tls_bootstrap: bool,
        authentication: Authentication,
        authorization: Authorization,
        enable_debugging_handlers: bool,
        enable_contention_profiling: bool,
        enable_profiling_handler: bool,
        enable_debug_flags_handler: bool,
        enable_system_log_handler: bool,
        enable_system_log_query: bool,
        healthz_port: i32,
        healthz_bind_address: String,
        streaming_connection_idle_timeout: GoDuration,
        #[serde(rename = "eventRecordQPS")]
        event_record_qps: i32,
        event_burst: i32,
        content_type: String,
        #[serde(rename = "kubeAPIQPS")]
        kube_api_qps: i32,
        #[serde(rename = "kubeAPIBurst")]
        kube_api_burst: i32,
        show_hidden_metrics_for_version: String,
        tracing: Tracing,
        logging: Logging,
        feature_gates: BTreeMap<String, bool>,
        oom_score_adj: i32,
        cluster_domain: String,
        #[serde(rename = "clusterDNS")]
        cluster_dns: Vec<String>,
        resolv_conf: String,
        node_status_update_frequency: GoDuration,
        node_status_report_frequency: GoDuration,
        node_lease_duration_seconds: i32,
        node_status_max_images: i32,
        register_node: bool,
        register_with_taints: Vec<ConfigTaint>,
        #[serde(rename = "providerID")]
        provider_id: String,
        max_pods: i32,
        pods_per_core: i32,
        #[serde(rename = "podCIDR")]
        pod_cidr: String,
        pod_pids_limit: i64,
        hairpin_mode: String,
        max_open_files: i64,
        #[serde(rename = "registryPullQPS")]
        registry_pull_qps: i32,
        registry_burst: i32,
        serialize_image_pulls: bool,
        max_parallel_image_pulls: Option<i32>,
        image_pull_credentials_verification_policy: String,
        preloaded_images_verification_allowlist: Vec<String>,
        #[serde(rename = "imageMinimumGCAge")]
        image_minimum_gc_age: GoDuration,
        #[serde(rename = "imageMaximumGCAge")]
        image_maximum_gc_age: GoDuration,
        #[serde(rename = "imageGCHighThresholdPercent")]
        image_gc_high_threshold_percent: i32,
        #[serde(rename = "imageGCLowThresholdPercent")]
        image_gc_low_threshold_percent: i32,
        container_log_max_size: String,
        container_log_max_files: i32,
        container_log_max_workers: i32,
        container_log_monitor_interval: GoDuration,
        crash_loop_back_off: CrashLoopBackOff,
        config_map_and_secret_change_detection_strategy: String,
        enable_controller_attach_detach: bool,
        volume_plugin_dir: String,
        volume_stats_agg_period: GoDuration,
        local_storage_capacity_isolation: bool,
        seccomp_default: bool,
        allowed_unsafe_sysctls: Vec<String>,
        shutdown_grace_period: GoDuration,
        shutdown_grace_period_critical_pods: GoDuration,
        shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority>,
        run_once: bool,
        user_namespaces: UserNamespaces,
        container_runtime_endpoint: String,
        image_service_endpoint: String,
        runtime_request_timeout: GoDuration,
        cgroup_root: String,
        #[serde(rename = "cgroupsPerQOS")]
        cgroups_per_qos: bool,
        cgroup_driver: String,
        fail_cgroup_v1: bool,
        kubelet_cgroups: String,
        system_cgroups: String,
        cpu_manager_policy: String,
        cpu_manager_policy_options: BTreeMap<String, String>,
        cpu_manager_reconcile_period: GoDuration,
        memory_manager_policy: String,
        reserved_memory: Vec<MemoryReservation>,
        topology_manager_policy: String,
        topology_manager_scope: String,
        topology_manager_policy_options: BTreeMap<String, String>,
        qos_reserved: BTreeMap<String, String>,
        #[serde(rename = "cpuCFSQuota")]
        cpu_cfs_quota: bool,
        #[serde(rename = "cpuCFSQuotaPeriod")]
        cpu_cfs_quota_period: GoDuration,
        #[serde(rename = "singleProcessOOMKill")]
        single_process_oom_kill: Option<bool>,
        memory_throttling_factor: f64,
        memory_reservation_policy: String,
        memory_swap: MemorySwap,
        fail_swap_on: bool,
        protect_kernel_defaults: bool,
        system_reserved: BTreeMap<String, String>,
        kube_reserved: BTreeMap<String, String>,
        #[serde(rename = "reservedSystemCPUs")]
        reserved_system_cpus: String,
        system_reserved_cgroup: String,
        kube_reserved_cgroup: String,
        enforce_node_allocatable: Vec<String>,
        eviction_hard: BTreeMap<String, String>,
        eviction_soft: BTreeMap<String, String>,
        eviction_soft_grace_period: BTreeMap<String, String>,
        eviction_pressure_transition_period: GoDuration,
        eviction_max_pod_grace_period: i32,
        eviction_minimum_reclaim: BTreeMap<String, String>,
        merge_default_eviction_settings: bool,
        kernel_memcg_notification: bool,
        #[serde(rename = "makeIPTablesUtilChains")]
        make_iptables_util_chains: bool,
        iptables_masquerade_bit: i32,
        iptables_drop_bit: i32,
    }
    /// Authentication of clients.
    Authentication { x509: X509, webhook: AuthenticationWebhook, anonymous: Anonymous, }
    X509 {
        #[serde(rename = "clientCAFile")]
        client_ca_file: String,
    }
    /// Tokens checked by the apiserver.
    AuthenticationWebhook {
        enabled: bool,
        #[serde(rename = "cacheTTL")]
        cache_ttl: GoDuration,
    }
    /// Requests without credentials.
    Anonymous { enabled: bool, }
    /// Authorization of clients.
    Authorization { mode: String, webhook: AuthorizationWebhook, }
    /// How long the API server's answers are cached.
    AuthorizationWebhook {
        #[serde(rename = "cacheAuthorizedTTL")]
        cache_authorized_ttl: GoDuration,
        #[serde(rename = "cacheUnauthorizedTTL")]
        cache_unauthorized_ttl: GoDuration,
    }
    /// The destination of spans.
    Tracing { endpoint: Option<String>, sampling_rate_per_million: Option<i32>, }
    Logging {
        format: String,
        flush_frequency: GoDuration,
        verbosity: u32,
        vmodule: Vec<VmoduleItem>,
        options: LoggingOptions,
    }
    /// Verbosity of one module.
    VmoduleItem { file_pattern: String, verbosity: u32, }
    LoggingOptions { text: LoggingStreams, json: LoggingStreams, }
    LoggingStreams { split_stream: bool, info_buffer_size: Quantity, }
    /// A taint the node registers with.
    ConfigTaint { key: String, value: String, effect: String, time_added: Option<String>, }
    /// Cap of the restart back-off.
    CrashLoopBackOff { max_container_restart_period: GoDuration, }
    /// Grace at node shutdown from a priority up.
    ShutdownGracePeriodByPodPriority { priority: i32, shutdown_grace_period_seconds: i64, }
    /// User ids for pods.
    UserNamespaces { ids_per_pod: Option<i64>, }
    /// Memory set aside on a NUMA node.
    MemoryReservation { numa_node: i32, limits: BTreeMap<String, Quantity>, }
    /// Swap use of pods.
    MemorySwap { swap_behavior: String, }
}
