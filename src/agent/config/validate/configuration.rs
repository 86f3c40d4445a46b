//! Rules about `KubeletConfiguration`: serving, node, images, pods. Resources and eviction are in
//! `resources`.
//!
//! Owns those rules and the helpers that all rules share.

use std::path::Path;

use super::check::Check;
use super::node::parse_sloppy;
use super::{resources, tls};
use crate::agent::config::error::Findings;
use crate::agent::config::fields::{ConfigTaint, KubeletConfiguration};
use crate::agent::config::gates::FeatureGates;
use crate::agent::config::load::clean;
use crate::model::api::quantity::Quantity;
use crate::model::duration::GoDuration;

/// Checks the whole configuration and reports every mistake.
pub(in crate::agent::config) fn configuration(
    config: &KubeletConfiguration,
    gates: &FeatureGates,
) -> Result<(), Findings> {
    let mut check = Check { config, gates, findings: Findings::default() };
    check.serving();
    check.logging();
    check.node();
    check.images();
    check.pods();
    check.shutdown();
    resources::check(&mut check);
    if check.findings.0.is_empty() { Ok(()) } else { Err(check.findings) }
}

/// Dubious values that are not errors.
pub(in crate::agent::config) fn soft_warnings(config: &KubeletConfiguration) -> Vec<String> {
    let mut lines = Vec::new();
    let (own, reserved) = (&config.kubelet_cgroups, &config.kube_reserved_cgroup);
    if !own.is_empty() && !reserved.is_empty() && !own.starts_with(reserved.as_str()) {
        lines.push(format!("kubeletCgroups {own:?} is not below kubeReservedCgroup {reserved:?}"));
    }
    let policy = [
        (
            "reservedMemory",
            !config.reserved_memory.is_empty(),
            "memoryManagerPolicy",
            &config.memory_manager_policy,
        ),
        (
            "topologyManagerPolicyOptions",
            !config.topology_manager_policy_options.is_empty(),
            "topologyManagerPolicy",
            &config.topology_manager_policy,
        ),
        (
            "topologyManagerScope",
            config.topology_manager_scope == "pod",
            "topologyManagerPolicy",
            &config.topology_manager_policy,
        ),
    ];
    for (field, is_set, policy, value) in policy {
        if is_set && value.eq_ignore_ascii_case("none") {
            lines.push(format!("{field} has no effect: {policy} is {value}"));
        }
    }
    for suite in config.tls_cipher_suites.iter().filter(|suite| tls::is_weak(suite)) {
        lines.push(format!("Use of insecure cipher {suite:?} detected"));
    }
    let version = &config.tls_min_version;
    if matches!(version.as_str(), "VersionTLS10" | "VersionTLS11") {
        lines.push(format!("tlsMinVersion {version} is not served; the lowest version is VersionTLS12"));
    }
    for server in &config.cluster_dns {
        if parse_sloppy(server).is_none() {
            lines.push(format!("clusterDNS {server:?} is not an IP address; ignored"));
        }
    }
    lines
}

impl Check<'_> {
    fn serving(&mut self) {
        let config = self.config;
        self.ip("address", &config.address);
        self.ip("healthzBindAddress", &config.healthz_bind_address);
        self.range("port", config.port, 1, 65_535);
        self.range("readOnlyPort", config.read_only_port, 0, 65_535);
        self.range("healthzPort", config.healthz_port, 0, 65_535);
        self.range("eventRecordQPS", config.event_record_qps, 0, i64::MAX);
        self.range("eventBurst", config.event_burst, 0, i64::MAX);
        self.range("kubeAPIQPS", config.kube_api_qps, 0, i64::MAX);
        self.range("kubeAPIBurst", config.kube_api_burst, 0, i64::MAX);
        self.one_of("authorization.mode", &config.authorization_mode, &["AlwaysAllow", "Local", "Webhook"]);
        tls::check(self);
        if config.server_tls_bootstrap && !self.gates.enabled("RotateKubeletServerCertificate") {
            let problem =
                "requires feature gate RotateKubeletServerCertificate; enable it or set this to false";
            self.findings.add("serverTLSBootstrap", problem);
        }
        if config.enable_system_log_query {
            if !self.gates.enabled("NodeLogQuery") {
                self.findings.add("enableSystemLogQuery", "requires feature gate NodeLogQuery");
            }
            if !config.enable_system_log_handler {
                self.findings.add("enableSystemLogQuery", "requires enableSystemLogHandler: true");
            }
        }
        if !matches!(config.show_hidden_metrics_for_version.as_str(), "" | "1.35") {
            let problem = format!(
                "{:?} cannot be shown; only the previous minor version, 1.35",
                config.show_hidden_metrics_for_version
            );
            self.findings.add("showHiddenMetricsForVersion", problem);
        }
        if let Some(rate) = config.tracing_sampling_rate_per_million {
            self.range("tracing.samplingRatePerMillion", rate, 0, 1_000_000);
        }
        for (field, value) in [
            ("syncFrequency", config.sync_frequency),
            ("fileCheckFrequency", config.file_check_frequency),
            ("httpCheckFrequency", config.http_check_frequency),
        ] {
            if value <= GoDuration::default() {
                self.findings.add(field, format!("{value} must be more than zero"));
            }
        }
    }

    fn logging(&mut self) {
        let config = self.config;
        self.one_of("logging.format", &config.logging_format, &["text", "json"]);
        if config.logging_format != "text" && !config.logging_vmodule.is_empty() {
            self.findings
                .add("logging.vmodule", "only supported with logging.format text; remove one of the two");
        }
        for (index, item) in config.logging_vmodule.iter().enumerate() {
            if item.file_pattern.is_empty() || item.file_pattern.contains(['=', ',']) {
                let problem =
                    format!("{:?} is not a valid pattern; use a file name with * and ?", item.file_pattern);
                self.findings.add(format!("logging.vmodule[{index}].filePattern"), problem);
            }
        }
        let (text, json) =
            (config.logging_options_text_info_buffer_size, config.logging_options_json_info_buffer_size);
        for (name, splits, buffer) in [
            ("text", config.logging_options_text_split_stream, text),
            ("json", config.logging_options_json_split_stream, json),
        ] {
            if (splits || buffer != Quantity::default()) && !self.gates.enabled("LoggingAlphaOptions") {
                let field = format!("logging.options.{name}");
                self.findings.add(field, "requires feature gate LoggingAlphaOptions");
            }
        }
    }

    fn node(&mut self) {
        let config = self.config;
        self.range("oomScoreAdj", config.oom_score_adj, -1000, 1000);
        self.range("nodeLeaseDurationSeconds", config.node_lease_duration_seconds, 1, i64::MAX);
        self.range("nodeStatusMaxImages", config.node_status_max_images, -1, i64::MAX);
        self.range("maxPods", config.max_pods, 0, i64::MAX);
        self.range("podsPerCore", config.pods_per_core, 0, i64::MAX);
        self.range("maxOpenFiles", config.max_open_files, 0, i64::MAX);
        let modes = ["promiscuous-bridge", "hairpin-veth", "none"];
        self.one_of("hairpinMode", &config.hairpin_mode, &modes);
        self.range("iptablesMasqueradeBit", config.iptables_masquerade_bit, 0, 31);
        self.range("iptablesDropBit", config.iptables_drop_bit, 0, 31);
        for (index, taint) in config.register_with_taints.iter().enumerate() {
            self.taint(&format!("registerWithTaints[{index}]"), taint);
        }
        if let Some(ids) = config.user_namespaces_ids_per_pod
            && (ids < 65_536 || ids % 65_536 != 0 || u32::try_from(ids).is_err())
        {
            let problem = format!("{ids} must be a multiple of 65536 that fits in 32 bits");
            self.findings.add("userNamespaces.idsPerPod", problem);
        }
    }

    fn taint(&mut self, field: &str, taint: &ConfigTaint) {
        if !super::node::is_qualified_name(&taint.key) {
            self.findings.add(
                format!("{field}.key"),
                format!("{:?} is not a valid taint key; use [prefix/]name", taint.key),
            );
        }
        if !taint.value.is_empty() && !super::node::is_name(&taint.value) {
            let problem = format!(
                "{:?} is not a valid taint value; use letters, digits, '-', '_' and '.'",
                taint.value
            );
            self.findings.add(format!("{field}.value"), problem);
        }
        self.one_of(
            &format!("{field}.effect"),
            &taint.effect,
            &["NoSchedule", "PreferNoSchedule", "NoExecute"],
        );
        if taint.time_added.is_some() {
            self.findings.add(format!("{field}.timeAdded"), "must not be set; remove it");
        }
    }

    fn images(&mut self) {
        let config = self.config;
        self.range("registryPullQPS", config.registry_pull_qps, 0, i64::MAX);
        self.range("registryBurst", config.registry_burst, 0, i64::MAX);
        if let Some(parallel) = config.max_parallel_image_pulls {
            self.range("maxParallelImagePulls", parallel, 1, i64::MAX);
            if parallel > 1 && config.serialize_image_pulls {
                let problem = "cannot be larger than 1 unless serializeImagePulls is false";
                self.findings.add("maxParallelImagePulls", problem);
            }
        }
        self.range("imageGCHighThresholdPercent", config.image_gc_high_threshold_percent, 0, 100);
        self.range("imageGCLowThresholdPercent", config.image_gc_low_threshold_percent, 0, 100);
        if config.image_gc_low_threshold_percent >= config.image_gc_high_threshold_percent {
            let problem = format!(
                "{} must be less than imageGCHighThresholdPercent {}",
                config.image_gc_low_threshold_percent, config.image_gc_high_threshold_percent
            );
            self.findings.add("imageGCLowThresholdPercent", problem);
        }
        let (least, most) = (config.image_minimum_gc_age, config.image_maximum_gc_age);
        for (field, age) in [("imageMinimumGCAge", least), ("imageMaximumGCAge", most)] {
            if age.is_negative() {
                self.findings.add(field, format!("{age} must not be negative"));
            }
        }
        if !most.is_zero() && most <= least {
            let problem = format!("{most} must be more than imageMinimumGCAge {least}, or 0s");
            self.findings.add("imageMaximumGCAge", problem);
        }
        self.pull_verification();
    }

    fn pull_verification(&mut self) {
        const ALLOWLISTED: &str = "NeverVerifyAllowlistedImages";
        let policy = &self.config.image_pull_credentials_verification_policy;
        let words = ["NeverVerify", "NeverVerifyPreloadedImages", ALLOWLISTED, "AlwaysVerify"];
        self.one_of("imagePullCredentialsVerificationPolicy", policy, &words);
        let images = &self.config.preloaded_images_verification_allowlist;
        if !images.is_empty() && policy != ALLOWLISTED {
            let problem = format!("only with imagePullCredentialsVerificationPolicy: {ALLOWLISTED}");
            self.findings.add("preloadedImagesVerificationAllowlist", problem);
        }
        for (index, image) in images.iter().enumerate() {
            let stem = image.strip_suffix("/*").unwrap_or(image);
            let last = stem.rsplit('/').next().unwrap_or_default();
            // A colon before the last slash is a registry's port.
            if stem.is_empty() || stem.contains(['*', '@']) || (stem.contains('/') && last.contains(':')) {
                let problem = format!("{image:?} must be an image without tag or digest, or end with /*");
                self.findings.add(format!("preloadedImagesVerificationAllowlist[{index}]"), problem);
            }
        }
    }

    fn pods(&mut self) {
        let config = self.config;
        self.pod_logs_dir();
        match Quantity::parse(&config.container_log_max_size) {
            Ok(_) => {}
            Err(error) => self.findings.add("containerLogMaxSize", error.to_string()),
        }
        self.range("containerLogMaxFiles", config.container_log_max_files, 2, i64::MAX);
        self.range("containerLogMaxWorkers", config.container_log_max_workers, 1, i64::MAX);
        if config.container_log_monitor_interval < GoDuration::from_secs(3) {
            let problem = format!("{} is too short; use 3s or more", config.container_log_monitor_interval);
            self.findings.add("containerLogMonitorInterval", problem);
        }
        let restart = config.crash_loop_back_off_max_container_restart_period;
        let field = "crashLoopBackOff.maxContainerRestartPeriod";
        self.duration_range(field, restart, GoDuration::from_secs(1), GoDuration::from_secs(300));
        if restart != GoDuration::from_secs(300) && !self.gates.enabled("KubeletCrashLoopBackOffMax") {
            self.findings.add(field, "requires feature gate KubeletCrashLoopBackOffMax");
        }
        let (field, period) = ("cpuCFSQuotaPeriod", config.cpu_cfs_quota_period);
        if self.gates.enabled("CustomCPUCFSQuotaPeriod") {
            self.duration_range(field, period, GoDuration::from_nanos(1_000_000), GoDuration::from_secs(1));
        } else if period != GoDuration::from_nanos(100_000_000) {
            self.findings.add(field, format!("{period} requires feature gate CustomCPUCFSQuotaPeriod"));
        }
        let strategy = &config.config_map_and_secret_change_detection_strategy;
        self.one_of("configMapAndSecretChangeDetectionStrategy", strategy, &["Get", "Cache", "Watch"]);
        for (index, sysctl) in config.allowed_unsafe_sysctls.iter().enumerate() {
            if !is_allowed_sysctl(sysctl) {
                let problem = format!(
                    "{sysctl:?} is not a namespaced sysctl; allowed are kernel.shm*, kernel.msg*, kernel.sem, \
                     fs.mqueue.*, net.*"
                );
                self.findings.add(format!("allowedUnsafeSysctls[{index}]"), problem);
            }
        }
    }

    fn pod_logs_dir(&mut self) {
        let directory = &self.config.pod_logs_dir;
        if !directory.is_ascii() {
            self.findings.add("podLogsDir", format!("{directory:?} must contain only ASCII characters"));
        } else if !Path::new(directory).is_absolute() {
            self.findings.add("podLogsDir", format!("{directory:?} must be an absolute path"));
        } else if clean(Path::new(directory)) != *directory {
            let problem = format!("{directory:?} must not contain '..', '//' or a trailing slash");
            self.findings.add("podLogsDir", problem);
        }
    }

    fn shutdown(&mut self) {
        let config = self.config;
        let (total, critical) = (config.shutdown_grace_period, config.shutdown_grace_period_critical_pods);
        let by_priority = &config.shutdown_grace_period_by_pod_priority;
        if !self.gates.enabled("GracefulNodeShutdown") {
            if !total.is_zero() || !critical.is_zero() {
                let problem = "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate \
                               GracefulNodeShutdown; set both to 0s or the gate to true";
                self.findings.add("shutdownGracePeriod", problem);
            }
            if !by_priority.is_empty() {
                let problem = "requires feature gate GracefulNodeShutdown; remove it or set the gate to true";
                self.findings.add("shutdownGracePeriodByPodPriority", problem);
            }
            return;
        }
        for (field, value) in [("shutdownGracePeriod", total), ("shutdownGracePeriodCriticalPods", critical)]
        {
            if !value.is_zero() && value < GoDuration::from_secs(1) {
                self.findings.add(field, format!("{value} must be 0s or at least 1s"));
            }
        }
        if critical > total {
            let problem = format!("{critical} must not be more than shutdownGracePeriod {total}");
            self.findings.add("shutdownGracePeriodCriticalPods", problem);
        }
        if !by_priority.is_empty() && (!total.is_zero() || !critical.is_zero()) {
            let problem = "cannot be used together with shutdownGracePeriod; remove one of the two";
            self.findings.add("shutdownGracePeriodByPodPriority", problem);
        }
        if !by_priority.is_empty() && !self.gates.enabled("GracefulNodeShutdownBasedOnPodPriority") {
            let problem = "requires feature gate GracefulNodeShutdownBasedOnPodPriority";
            self.findings.add("shutdownGracePeriodByPodPriority", problem);
        }
        for (index, entry) in by_priority.iter().enumerate() {
            let field = format!("shutdownGracePeriodByPodPriority[{index}].shutdownGracePeriodSeconds");
            self.range(&field, entry.shutdown_grace_period_seconds, 0, i64::MAX);
        }
    }
}

fn is_allowed_sysctl(pattern: &str) -> bool {
    let name = pattern.strip_suffix('*').unwrap_or(pattern).replace('/', ".");
    let well_formed = !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte));
    let namespaced =
        ["kernel.shm", "kernel.msg", "fs.mqueue.", "net."].iter().any(|group| name.starts_with(group));
    well_formed && (namespaced || pattern == "kernel.sem")
}
