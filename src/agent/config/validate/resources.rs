//! Rules about cgroups, reservations, resource managers, swap and eviction.
//!
//! Owns those rules.

use std::collections::{BTreeMap, BTreeSet};

use super::check::Check;
use crate::agent::config::value::parse_bool;
use crate::model::api::quantity::Quantity;
use crate::model::duration::GoDuration;

pub(super) fn check(check: &mut Check<'_>) {
    check.runtime();
    check.managers();
    check.memory();
    check.reservations();
    check.enforcement();
    check.eviction();
}

impl Check<'_> {
    fn runtime(&mut self) {
        let config = self.config;
        if config.container_runtime_endpoint.is_empty() {
            let problem =
                "must not be empty; use embedded or a socket such as unix:///run/containerd/containerd.sock";
            self.findings.add("containerRuntimeEndpoint", problem);
        }
        self.one_of("cgroupDriver", &config.cgroup_driver, &["cgroupfs", "systemd"]);
        if !config.system_cgroups.is_empty() && config.cgroup_root.is_empty() {
            self.findings.add("systemCgroups", "requires cgroupRoot; set it, for example to /");
        }
    }

    fn managers(&mut self) {
        let config = self.config;
        self.one_of("cpuManagerPolicy", &config.cpu_manager_policy, &["none", "static"]);
        let cpu_options = [
            "full-pcpus-only",
            "strict-cpu-reservation",
            "prefer-align-cpus-by-uncorecache",
            "distribute-cpus-across-numa",
            "align-by-socket",
            "distribute-cpus-across-cores",
        ];
        let is_on = |name: &str| {
            config.cpu_manager_policy_options.get(name).is_some_and(|value| parse_bool(value) == Ok(true))
        };
        for (name, value) in &config.cpu_manager_policy_options {
            let field = format!("cpuManagerPolicyOptions.{name}");
            self.one_of(&field, name, &cpu_options);
            if parse_bool(value).is_err() {
                self.findings.add(&field, format!("{value:?} is not supported; use true or false"));
            }
            let stage = match cpu_options.iter().position(|known| known == name) {
                Some(3) => ("Beta", "CPUManagerPolicyBetaOptions"),
                Some(4 | 5) => ("Alpha", "CPUManagerPolicyAlphaOptions"),
                _ => continue,
            };
            if !self.gates.enabled(stage.1) {
                let problem = format!(
                    "CPU Manager Policy {}-level Options not enabled, but option {name:?} provided; set feature gate {}",
                    stage.0, stage.1
                );
                self.findings.add(field, problem);
            }
        }
        if config.cpu_manager_policy == "none" && !config.cpu_manager_policy_options.is_empty() {
            self.findings
                .add("cpuManagerPolicyOptions", "cpuManagerPolicy none has no options; set it to static");
        }
        let exclusive = [
            ("full-pcpus-only", "distribute-cpus-across-cores"),
            ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
            ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
            ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
        ];
        for (one, other) in exclusive.into_iter().filter(|(one, other)| is_on(one) && is_on(other)) {
            let problem = format!("static policy options {one} and {other} can not be used at the same time");
            self.findings.add("cpuManagerPolicyOptions", problem);
        }
        if config.cpu_manager_reconcile_period <= GoDuration::default() {
            self.findings.add("cpuManagerReconcilePeriod", "must be more than zero");
        }
        self.one_of("memoryManagerPolicy", &config.memory_manager_policy, &["None", "Static"]);
        let policies = ["none", "best-effort", "restricted", "single-numa-node"];
        self.one_of("topologyManagerPolicy", &config.topology_manager_policy, &policies);
        self.one_of("topologyManagerScope", &config.topology_manager_scope, &["container", "pod"]);
        for (name, value) in &config.topology_manager_policy_options {
            let field = format!("topologyManagerPolicyOptions.{name}");
            match name.as_str() {
                "prefer-closest-numa-nodes" => {
                    if parse_bool(value).is_err() {
                        self.findings.add(field, format!("{value:?} is not supported; use true or false"));
                    }
                }
                "max-allowable-numa-nodes" => {
                    if !value.parse::<u32>().is_ok_and(|nodes| nodes >= 8) {
                        self.findings.add(field, format!("{value:?} must be a number of at least 8"));
                    }
                }
                _ => self.one_of(&field, name, &["prefer-closest-numa-nodes", "max-allowable-numa-nodes"]),
            }
        }
        let mut seen = BTreeSet::new();
        for (index, node) in config.reserved_memory.iter().enumerate() {
            self.range(&format!("reservedMemory[{index}].numaNode"), node.numa_node, 0, i64::MAX);
            for (resource, quantity) in &node.limits {
                let field = format!("reservedMemory[{index}].limits.{resource}");
                if resource != "memory" && !resource.starts_with("hugepages-") {
                    self.findings.add(&field, "only memory and hugepages-<size> can be reserved");
                }
                if quantity.is_zero() || quantity.is_negative() {
                    self.findings.add(&field, format!("{quantity} must be more than zero"));
                }
                if !seen.insert((node.numa_node, resource.as_str())) {
                    self.findings.add(field, format!("reserved twice on NUMA node {}", node.numa_node));
                }
            }
        }
    }

    fn memory(&mut self) {
        let config = self.config;
        if !(config.memory_throttling_factor > 0.0 && config.memory_throttling_factor <= 1.0) {
            let problem = format!("{} must be above 0 and at most 1", config.memory_throttling_factor);
            self.findings.add("memoryThrottlingFactor", problem);
        }
        let field = "memoryReservationPolicy";
        self.one_of(field, &config.memory_reservation_policy, &["None", "TieredReservation"]);
        if config.memory_reservation_policy == "TieredReservation" && !self.gates.enabled("MemoryQoS") {
            self.findings.add(field, "TieredReservation requires feature gate MemoryQoS");
        }
        let behaviours = ["", "NoSwap", "LimitedSwap"];
        self.one_of("memorySwap.swapBehavior", &config.memory_swap_swap_behavior, &behaviours);
        if !config.memory_swap_swap_behavior.is_empty() && !self.gates.enabled("NodeSwap") {
            self.findings.add("memorySwap.swapBehavior", "requires feature gate NodeSwap");
        }
    }

    fn reservations(&mut self) {
        let config = self.config;
        let maps = [("systemReserved", &config.system_reserved), ("kubeReserved", &config.kube_reserved)];
        for (name, reserved) in maps {
            for (resource, text) in reserved {
                let field = format!("{name}.{resource}");
                self.one_of(&field, resource, &["cpu", "memory", "ephemeral-storage", "pid"]);
                match Quantity::parse(text) {
                    Ok(quantity) if quantity.is_negative() => {
                        self.findings.add(field, format!("{text} must not be negative"));
                    }
                    Ok(_) => {}
                    Err(error) => self.findings.add(field, error.to_string()),
                }
            }
        }
        if !config.qos_reserved.is_empty() && !self.gates.enabled("QOSReserved") {
            self.findings.add("qosReserved", "requires feature gate QOSReserved");
        }
        for (resource, share) in &config.qos_reserved {
            let field = format!("qosReserved.{resource}");
            self.one_of(&field, resource, &["memory"]);
            if percentage(share).is_none_or(|share| share > 100.0) {
                self.findings.add(field, format!("{share:?} must be a percentage from 0% to 100%"));
            }
        }
        if config.reserved_system_cpus.is_empty() {
            return;
        }
        if !is_cpu_set(&config.reserved_system_cpus) {
            let problem = format!("{:?} is not a valid CPU list, such as 0-1,4", config.reserved_system_cpus);
            self.findings.add("reservedSystemCPUs", problem);
        }
        if !config.system_reserved_cgroup.is_empty() || !config.kube_reserved_cgroup.is_empty() {
            let problem =
                "cannot be used with systemReservedCgroup or kubeReservedCgroup; remove one of the two";
            self.findings.add("reservedSystemCPUs", problem);
        }
    }

    fn enforcement(&mut self) {
        let config = self.config;
        let all = &config.enforce_node_allocatable;
        let has = |word: &str| all.iter().any(|item| item == word);
        let mut seen = BTreeSet::new();
        for (index, word) in all.iter().enumerate() {
            let field = format!("enforceNodeAllocatable[{index}]");
            if !seen.insert(word) {
                self.findings.add(&field, format!("{word:?} is listed twice"));
            }
            let cgroup = match word.as_str() {
                "system-reserved" | "system-reserved-compressible" => {
                    Some(("systemReservedCgroup", &config.system_reserved_cgroup))
                }
                "kube-reserved" | "kube-reserved-compressible" => {
                    Some(("kubeReservedCgroup", &config.kube_reserved_cgroup))
                }
                "none" | "pods" => None,
                _ => {
                    let problem = format!(
                        "{word:?} is not supported; use none, pods, or system-reserved or kube-reserved with or \
                         without -compressible"
                    );
                    self.findings.add(&field, problem);
                    continue;
                }
            };
            if let Some((name, "")) = cgroup.map(|(name, value)| (name, value.as_str())) {
                self.findings.add(&field, format!("{word} requires {name}"));
            }
            if word != "none" && !config.cgroups_per_qos {
                let problem = format!(
                    "{word} requires cgroupsPerQOS: true; otherwise set enforceNodeAllocatable: [none]"
                );
                self.findings.add(&field, problem);
            }
            if word == "none" && all.len() > 1 {
                self.findings.add(field, "none cannot be combined with other values");
            }
        }
        for word in ["system-reserved", "kube-reserved"] {
            if has(word) && has(&format!("{word}-compressible")) {
                let problem = format!("{word} and {word}-compressible cannot be used together");
                self.findings.add("enforceNodeAllocatable", problem);
            }
        }
    }

    fn eviction(&mut self) {
        let config = self.config;
        self.thresholds("evictionHard", &config.eviction_hard);
        self.thresholds("evictionSoft", &config.eviction_soft);
        self.thresholds("evictionMinimumReclaim", &config.eviction_minimum_reclaim);
        for (signal, grace) in &config.eviction_soft_grace_period {
            let field = format!("evictionSoftGracePeriod.{signal}");
            self.signal(&field, signal);
            match GoDuration::parse(grace) {
                Ok(grace) if grace <= GoDuration::default() => {
                    self.findings.add(field, format!("{grace} must be more than zero"));
                }
                Ok(_) => {}
                Err(error) => self.findings.add(field, error.to_string()),
            }
        }
        for signal in config.eviction_soft.keys() {
            if !config.eviction_soft_grace_period.contains_key(signal) {
                let problem = "grace period must be specified; add it to evictionSoftGracePeriod";
                self.findings.add(format!("evictionSoft.{signal}"), problem);
            }
        }
        if config.eviction_pressure_transition_period.is_negative() {
            self.findings.add("evictionPressureTransitionPeriod", "must not be negative");
        }
    }

    fn signal(&mut self, field: &str, signal: &str) {
        const SIGNALS: [&str; 9] = [
            "memory.available",
            "nodefs.available",
            "nodefs.inodesFree",
            "imagefs.available",
            "imagefs.inodesFree",
            "containerfs.available",
            "containerfs.inodesFree",
            "allocatableMemory.available",
            "pid.available",
        ];
        if !SIGNALS.contains(&signal) {
            let problem = format!("unsupported eviction signal {signal}; use one of: {}", SIGNALS.join(", "));
            self.findings.add(field, problem);
        }
    }

    fn thresholds(&mut self, name: &str, thresholds: &BTreeMap<String, String>) {
        for (signal, text) in thresholds {
            let field = format!("{name}.{signal}");
            self.signal(&field, signal);
            let good = if text.ends_with('%') {
                percentage(text).is_some_and(|share| share <= 100.0)
            } else {
                Quantity::parse(text).is_ok_and(|quantity| !quantity.is_negative())
            };
            if !good {
                let problem =
                    format!("{text:?} must be a quantity like 100Mi or a percentage from 0% to 100%");
                self.findings.add(field, problem);
            }
        }
    }
}

fn percentage(text: &str) -> Option<f32> {
    text.strip_suffix('%')?.parse::<f32>().ok().filter(|share| share.is_finite() && *share >= 0.0)
}

/// The kernel's list format, `0-2,7`.
fn is_cpu_set(text: &str) -> bool {
    text.split(',').all(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            (Ok(first), Ok(last)) => first <= last,
            _ => false,
        }
    })
}
