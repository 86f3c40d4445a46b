//! Every field of `KubeletConfiguration` v1beta1: its path, syntax, default, flag, and whether this version
//! acts on it. Flags, files, `--help` and `agent config --explain` all read this table.
//!
//! Owns the table.

use super::value::ValueKind;
use super::value::ValueKind::{
    Bool, Duration, Float, Gates, Int32, Int64, IntList, Ip, LessMap, Level, List, Map, MapNoSplit, MultiMap,
    Objects, Quantity, ReservedMemory, Taints, Text, Vmodule,
};

/// One setting of the configuration file.
#[derive(Debug)]
pub(super) struct SettingField {
    /// Dotted path in the file.
    pub(super) path: &'static str,
    /// The kubelet's flag for it; empty when there is none.
    pub(super) flag: &'static str,
    /// The syntax of its values.
    pub(super) kind: ValueKind,
    /// The file's default in flag syntax; `None` means unset.
    pub(super) default: Option<&'static str>,
    marks: u8,
}

/// An explicit zero is kept (a pointer in Go); without it zero means "the default".
const P: u8 = 1;
/// This version acts on it.
const A: u8 = 2;
/// The flag is not deprecated.
const K: u8 = 4;

/// The default text for "unset".
const UNSET: &str = "-";

impl SettingField {
    /// True when an explicit zero is kept.
    pub(super) fn keeps_zero(&self) -> bool {
        self.marks & P != 0
    }

    /// True when this version acts on the field.
    pub(super) fn acted_on(&self) -> bool {
        self.marks & A != 0
    }

    /// True when the flag warns on use.
    pub(super) fn flag_deprecated(&self) -> bool {
        self.marks & K == 0
    }
}

const fn f(
    path: &'static str,
    flag: &'static str,
    kind: ValueKind,
    default: &'static str,
    marks: u8,
) -> SettingField {
    let unset = matches!(default.as_bytes(), [b'-']);
    SettingField { path, flag, kind, default: if unset { None } else { Some(default) }, marks }
}

/// The field of a path.
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

/// Every field, in the order of the reference.
#[rustfmt::skip]
pub(super) static FIELDS: &[SettingField] = &[
    // Serving, authentication, sources.
    f("enableServer", "enable-server", Bool, "true", A | P),
    f("staticPodPath", "pod-manifest-path", Text, "", A),
    f("podLogsDir", "", Text, "/var/log/pods", A),
    f("syncFrequency", "sync-frequency", Duration, "1m", 0),
    f("fileCheckFrequency", "file-check-frequency", Duration, "20s", A),
    f("httpCheckFrequency", "http-check-frequency", Duration, "20s", A),
    f("staticPodURL", "manifest-url", Text, "", A),
    f("staticPodURLHeader", "manifest-url-header", MultiMap, "", A),
    f("address", "address", Ip, "0.0.0.0", A),
    f("port", "port", Int32, "10250", A),
    f("readOnlyPort", "read-only-port", Int32, "0", A),
    f("tlsCertFile", "tls-cert-file", Text, "", A),
    f("tlsPrivateKeyFile", "tls-private-key-file", Text, "", A),
    f("tlsCipherSuites", "tls-cipher-suites", List, "", A),
    f("tlsCurvePreferences", "", IntList, UNSET, 0),
    f("tlsMinVersion", "tls-min-version", Text, "", A),
    f("rotateCertificates", "rotate-certificates", Bool, "false", 0),
    f("serverTLSBootstrap", "rotate-server-certificates", Bool, "false", 0),
    f("authentication.x509.clientCAFile", "client-ca-file", Text, "", A),
    f("authentication.webhook.enabled", "authentication-token-webhook", Bool, "true", P),
    f("authentication.webhook.cacheTTL", "authentication-token-webhook-cache-ttl", Duration, "2m", 0),
    f("authentication.anonymous.enabled", "anonymous-auth", Bool, "false", A | P),
    f("authorization.mode", "authorization-mode", Text, "Webhook", A),
    f("authorization.webhook.cacheAuthorizedTTL", "authorization-webhook-cache-authorized-ttl", Duration, "5m", 0),
    f("authorization.webhook.cacheUnauthorizedTTL", "authorization-webhook-cache-unauthorized-ttl", Duration, "30s", 0),
    f("enableDebuggingHandlers", "enable-debugging-handlers", Bool, "true", A | P),
    f("enableContentionProfiling", "contention-profiling", Bool, "false", 0),
    f("enableProfilingHandler", "", Bool, "true", P),
    f("enableDebugFlagsHandler", "", Bool, "true", P),
    f("enableSystemLogHandler", "", Bool, "true", A | P),
    f("enableSystemLogQuery", "", Bool, "false", A | P),
    f("healthzPort", "healthz-port", Int32, "10248", A | P),
    f("healthzBindAddress", "healthz-bind-address", Ip, "127.0.0.1", A),
    f("streamingConnectionIdleTimeout", "streaming-connection-idle-timeout", Duration, "4h", A),
    f("eventRecordQPS", "event-qps", Int32, "50", P),
    f("eventBurst", "event-burst", Int32, "100", 0),
    f("contentType", "kube-api-content-type", Text, "application/vnd.kubernetes.protobuf", 0),
    f("kubeAPIQPS", "kube-api-qps", Int32, "50", P),
    f("kubeAPIBurst", "kube-api-burst", Int32, "100", 0),
    f("showHiddenMetricsForVersion", "", Text, "", 0),
    f("tracing.endpoint", "", Text, UNSET, P),
    f("tracing.samplingRatePerMillion", "", Int32, UNSET, P),
    f("logging.format", "logging-format", Text, "text", A),
    f("logging.flushFrequency", "log-flush-frequency", Duration, "5s", K),
    f("logging.verbosity", "v", Level, "0", A | K),
    f("logging.vmodule", "vmodule", Vmodule, "", A | K),
    f("logging.options.text.splitStream", "log-text-split-stream", Bool, "false", 0),
    f("logging.options.text.infoBufferSize", "log-text-info-buffer-size", Quantity, "0", P),
    f("logging.options.json.splitStream", "log-json-split-stream", Bool, "false", 0),
    f("logging.options.json.infoBufferSize", "log-json-info-buffer-size", Quantity, "0", P),
    f("featureGates", "feature-gates", Gates, "", A),
    // Node, images, pods.
    f("oomScoreAdj", "oom-score-adj", Int32, "-999", P | A),
    f("clusterDomain", "cluster-domain", Text, "", A),
    f("clusterDNS", "cluster-dns", List, "", A),
    f("resolvConf", "resolv-conf", Text, "/etc/resolv.conf", P | A),
    f("nodeStatusUpdateFrequency", "node-status-update-frequency", Duration, "10s", 0),
    f("nodeStatusReportFrequency", "", Duration, "5m", 0),
    f("nodeLeaseDurationSeconds", "", Int32, "40", A),
    f("nodeStatusMaxImages", "node-status-max-images", Int32, "50", P | A),
    f("registerNode", "register-node", Bool, "true", P),
    f("registerWithTaints", "register-with-taints", Taints, "", A),
    f("providerID", "provider-id", Text, "", K),
    f("maxPods", "max-pods", Int32, "110", A),
    f("podsPerCore", "pods-per-core", Int32, "0", A),
    f("podCIDR", "pod-cidr", Text, "", A),
    f("podPidsLimit", "pod-max-pids", Int64, "-1", P | A),
    f("hairpinMode", "hairpin-mode", Text, "promiscuous-bridge", 0),
    f("maxOpenFiles", "max-open-files", Int64, "1000000", A),
    f("registryPullQPS", "registry-qps", Int32, "5", P | A),
    f("registryBurst", "registry-burst", Int32, "10", A),
    f("serializeImagePulls", "serialize-image-pulls", Bool, "true", P | A),
    f("maxParallelImagePulls", "", Int32, UNSET, P | A),
    f("imagePullCredentialsVerificationPolicy", "", Text, "NeverVerifyPreloadedImages", A),
    f("preloadedImagesVerificationAllowlist", "", List, UNSET, A),
    f("imageMinimumGCAge", "minimum-image-ttl-duration", Duration, "2m", A),
    f("imageMaximumGCAge", "", Duration, "0s", A),
    f("imageGCHighThresholdPercent", "image-gc-high-threshold", Int32, "85", P | A),
    f("imageGCLowThresholdPercent", "image-gc-low-threshold", Int32, "80", P | A),
    f("containerLogMaxSize", "container-log-max-size", Quantity, "10Mi", A),
    f("containerLogMaxFiles", "container-log-max-files", Int32, "5", P | A),
    f("containerLogMaxWorkers", "", Int32, "1", P),
    f("containerLogMonitorInterval", "", Duration, "10s", P | A),
    f("crashLoopBackOff.maxContainerRestartPeriod", "", Duration, "5m", P | A),
    f("configMapAndSecretChangeDetectionStrategy", "", Text, "Watch", 0),
    f("enableControllerAttachDetach", "enable-controller-attach-detach", Bool, "true", P),
    f("volumePluginDir", "volume-plugin-dir", Text, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/", 0),
    f("volumeStatsAggPeriod", "volume-stats-agg-period", Duration, "1m", 0),
    f("localStorageCapacityIsolation", "local-storage-capacity-isolation", Bool, "true", P | A),
    f("seccompDefault", "", Bool, "false", P | A),
    f("allowedUnsafeSysctls", "allowed-unsafe-sysctls", List, "", A),
    f("shutdownGracePeriod", "", Duration, "0s", A),
    f("shutdownGracePeriodCriticalPods", "", Duration, "0s", A),
    f("shutdownGracePeriodByPodPriority", "", Objects, UNSET, A),
    f("runOnce", "runonce", Bool, "false", A | K),
    f("userNamespaces.idsPerPod", "", Int64, UNSET, P | A),
    // Resources, cgroups, eviction, runtime.
    f("containerRuntimeEndpoint", "container-runtime-endpoint", Text, "unix:///run/containerd/containerd.sock", A),
    f("imageServiceEndpoint", "image-service-endpoint", Text, "", A),
    f("runtimeRequestTimeout", "runtime-request-timeout", Duration, "2m", A),
    f("cgroupRoot", "cgroup-root", Text, "", A),
    f("cgroupsPerQOS", "cgroups-per-qos", Bool, "true", P | A),
    f("cgroupDriver", "cgroup-driver", Text, "cgroupfs", A),
    f("failCgroupV1", "fail-cgroupv1", Bool, "true", P | K),
    f("kubeletCgroups", "kubelet-cgroups", Text, "", 0),
    f("systemCgroups", "system-cgroups", Text, "", 0),
    f("cpuManagerPolicy", "cpu-manager-policy", Text, "none", 0),
    f("cpuManagerPolicyOptions", "cpu-manager-policy-options", MapNoSplit, "", 0),
    f("cpuManagerReconcilePeriod", "cpu-manager-reconcile-period", Duration, "10s", 0),
    f("memoryManagerPolicy", "memory-manager-policy", Text, "None", 0),
    f("reservedMemory", "reserved-memory", ReservedMemory, "", 0),
    f("topologyManagerPolicy", "topology-manager-policy", Text, "none", 0),
    f("topologyManagerScope", "topology-manager-scope", Text, "container", 0),
    f("topologyManagerPolicyOptions", "topology-manager-policy-options", Map, "", 0),
    f("qosReserved", "qos-reserved", Map, "", 0),
    f("cpuCFSQuota", "cpu-cfs-quota", Bool, "true", P | A),
    f("cpuCFSQuotaPeriod", "cpu-cfs-quota-period", Duration, "100ms", P | A),
    f("singleProcessOOMKill", "", Bool, UNSET, P | A),
    f("memoryThrottlingFactor", "", Float, "0.9", P),
    f("memoryReservationPolicy", "", Text, "None", 0),
    f("memorySwap.swapBehavior", "", Text, "", A),
    f("failSwapOn", "fail-swap-on", Bool, "true", P),
    f("protectKernelDefaults", "protect-kernel-defaults", Bool, "false", 0),
    f("systemReserved", "system-reserved", Map, "", A),
    f("kubeReserved", "kube-reserved", Map, "", A),
    f("reservedSystemCPUs", "reserved-cpus", Text, "", A),
    f("systemReservedCgroup", "system-reserved-cgroup", Text, "", A),
    f("kubeReservedCgroup", "kube-reserved-cgroup", Text, "", A),
    f("enforceNodeAllocatable", "enforce-node-allocatable", List, "pods", A),
    f("evictionHard", "eviction-hard", LessMap, UNSET, A),
    f("evictionSoft", "eviction-soft", LessMap, "", A),
    f("evictionSoftGracePeriod", "eviction-soft-grace-period", Map, "", A),
    f("evictionPressureTransitionPeriod", "eviction-pressure-transition-period", Duration, "5m", A),
    f("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", Int32, "0", A),
    f("evictionMinimumReclaim", "eviction-minimum-reclaim", Map, "", A),
    f("mergeDefaultEvictionSettings", "", Bool, "false", P | A),
    f("kernelMemcgNotification", "kernel-memcg-notification", Bool, "false", 0),
    f("makeIPTablesUtilChains", "make-iptables-util-chains", Bool, "true", P),
    f("iptablesMasqueradeBit", "", Int32, "14", P),
    f("iptablesDropBit", "", Int32, "15", P),
];
