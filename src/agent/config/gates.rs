//! Feature gates of Kubernetes 1.36 for a kubelet.
//!
//! Owns names, stages and defaults.

use std::collections::BTreeMap;

use super::error::Findings;
use super::suggest::nearest;

use crate::model::ordered::Ordered as _;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Alpha,
    Beta,
    Stable,
    /// Stable, and no longer switchable.
    Locked,
    Deprecated,
}

struct Gate {
    name: &'static str,
    on: bool,
    stage: Stage,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<&'static str, bool>);

impl FeatureGates {
    /// Whether the gate is on. An unknown name is off.
    #[must_use]
    pub(in crate::agent) fn enabled(&self, name: &str) -> bool {
        self.0.get(name).copied().unwrap_or(false)
    }

    /// The defaults, then `AllAlpha` and `AllBeta`, then each named gate.
    pub(super) fn resolve(given: &BTreeMap<String, bool>) -> Result<Self, Findings> {
        let mut findings = Findings::default();
        let mut states: BTreeMap<&'static str, bool> =
            GATES.iter().map(|gate| (gate.name, gate.on)).into_map();
        for (group, stage) in GROUPS {
            let Some(&on) = given.get(group) else { continue };
            for gate in GATES.iter().filter(|gate| gate.stage == stage) {
                states.insert(gate.name, on);
            }
        }
        for (name, &on) in given {
            if GROUPS.iter().any(|(group, _)| group == name) {
                continue;
            }
            let field = format!("featureGates.{name}");
            match GATES.iter().find(|gate| gate.name == name) {
                None => {
                    let hint = nearest(name, GATES.iter().map(|gate| gate.name));
                    let hint = hint.map_or(String::new(), |name| format!("; did you mean {name}?"));
                    findings.add(field, format!("unrecognized feature gate: {name}{hint}"));
                }
                Some(gate) if gate.stage == Stage::Locked && gate.on != on => {
                    let problem =
                        format!("cannot set feature gate {name} to {on}, feature is locked to {}", gate.on);
                    findings.add(field, problem);
                }
                Some(gate) => drop(states.insert(gate.name, on)),
            }
        }
        if findings.0.is_empty() { Ok(Self(states)) } else { Err(findings) }
    }
}

/// Warnings about named gates that will be removed soon.
pub(super) fn warnings(given: &BTreeMap<String, bool>) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, on) in given {
        let stage = GATES.iter().find(|gate| gate.name == name).map(|gate| gate.stage);
        match stage {
            Some(Stage::Stable | Stage::Locked) => {
                lines.push(format!(
                    "Setting GA feature gate {name}={on}. It will be removed in a future release."
                ));
            }
            Some(Stage::Deprecated) => {
                lines.push(format!(
                    "Setting deprecated feature gate {name}={on}. It will be removed in a future release."
                ));
            }
            _ => {}
        }
    }
    lines
}

/// The gates that have an effect here. All others are accepted: such a feature is either always on, or not
/// part of this version.
const ACTED_ON: [&str; 7] = [
    "GracefulNodeShutdown",
    "GracefulNodeShutdownBasedOnPodPriority",
    "NodeLogQuery",
    "CPUManagerPolicyAlphaOptions",
    "CPUManagerPolicyBetaOptions",
    "DisableCPUQuotaWithExclusiveCPUs",
    "MemoryQoS",
];

/// Whether a gate, or a group of them, has an effect here.
pub(super) fn is_implemented(name: &str) -> bool {
    ACTED_ON.contains(&name) || name == "AllBeta"
}

/// The named gates that differ from their default and have no effect here.
pub(super) fn without_effect(given: &BTreeMap<String, bool>) -> impl Iterator<Item = (&str, bool)> {
    let is_default = |name: &str, on: bool| {
        let gate = GATES.iter().find(|gate| gate.name == name);
        gate.map_or(!on, |gate| gate.on == on)
    };
    let named = given.iter().map(|(name, on)| (name.as_str(), *on));
    named.filter(move |(name, on)| !is_implemented(name) && !is_default(name, *on))
}

const GROUPS: [(&str, Stage); 2] = [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)];

const fn alpha(name: &'static str) -> Gate {
    Gate { name, on: false, stage: Stage::Alpha }
}

const fn beta(name: &'static str) -> Gate {
    Gate { name, on: true, stage: Stage::Beta }
}

const fn beta_off(name: &'static str) -> Gate {
    Gate { name, on: false, stage: Stage::Beta }
}

const fn stable(name: &'static str) -> Gate {
    Gate { name, on: true, stage: Stage::Stable }
}

const fn locked(name: &'static str) -> Gate {
    Gate { name, on: true, stage: Stage::Locked }
}

const fn deprecated(name: &'static str) -> Gate {
    Gate { name, on: false, stage: Stage::Deprecated }
}

static GATES: &[Gate] = &[
    beta("ContainerCheckpoint"),
    beta("ContainerRestartRules"),
    beta("RestartAllContainersOnContainerExits"),
    beta("CPUManagerPolicyBetaOptions"),
    beta("DisableCPUQuotaWithExclusiveCPUs"),
    stable("DynamicResourceAllocation"),
    beta("EnvFiles"),
    stable("ExecProbeTimeout"),
    beta("ExtendWebSocketsToKubelet"),
    beta("GracefulNodeShutdown"),
    beta("GracefulNodeShutdownBasedOnPodPriority"),
    beta("HostnameOverride"),
    stable("ImageMaximumGCAge"),
    stable("ImageVolume"),
    stable("InPlacePodVerticalScaling"),
    beta("InPlacePodLevelResourcesVerticalScaling"),
    beta("InPlacePodVerticalScalingInitContainers"),
    stable("KubeletCgroupDriverFromCRI"),
    beta("KubeletCrashLoopBackOffMax"),
    beta("KubeletEnsureSecretPulledImages"),
    stable("KubeletFineGrainedAuthz"),
    stable("KubeletPSI"),
    stable("KubeletPodResourcesDynamicResources"),
    stable("KubeletPodResourcesGet"),
    stable("KubeletPodResourcesListUseActivePods"),
    stable("KubeletSeparateDiskGC"),
    beta("KubeletServiceAccountTokenForCredentialProviders"),
    locked("KubeletTracing"),
    beta("LoggingBetaOptions"),
    beta("ContextualLogging"),
    beta("NodeDeclaredFeatures"),
    stable("NodeLogQuery"),
    locked("NodeSwap"),
    beta("PLEGOnDemandRelist"),
    beta("PodLevelResources"),
    locked("PodLifecycleSleepAction"),
    stable("PodObservedGenerationTracking"),
    stable("PodReadyToStartContainersCondition"),
    stable("PortForwardWebsockets"),
    stable("PreventStaticPodAPIReferences"),
    stable("ProcMountType"),
    locked("RecursiveReadOnlyMounts"),
    beta("ReloadKubeletClientCAFile"),
    beta("ReloadKubeletServerCertificateFile"),
    beta("ResourceHealthStatus"),
    beta("RotateKubeletServerCertificate"),
    stable("SELinuxMountReadWriteOncePod"),
    locked("SidecarContainers"),
    stable("SupplementalGroupsPolicy"),
    stable("SystemdWatchdog"),
    stable("UserNamespacesSupport"),
    beta("ComponentFlagz"),
    beta("ComponentStatusz"),
    stable("DisableNodeKubeProxyVersion"),
    stable("TopologyManagerPolicyOptions"),
    beta("TopologyManagerPolicyBetaOptions"),
    stable("CPUManagerPolicyOptions"),
    deprecated("ChangeContainerStatusOnKubeletRestart"),
    beta_off("ClusterTrustBundle"),
    beta_off("ClusterTrustBundleProjection"),
    alpha("ContainerStopSignals"),
    alpha("CRIListStreaming"),
    alpha("CPUManagerPolicyAlphaOptions"),
    alpha("CSIVolumeHealth"),
    alpha("EventedPLEG"),
    deprecated("GitRepoVolumeDriver"),
    alpha("ImageVolumeWithDigest"),
    alpha("KubeletInUserNamespace"),
    beta_off("LocalStorageCapacityIsolationFSQuotaMonitoring"),
    alpha("LoggingAlphaOptions"),
    alpha("MemoryQoS"),
    alpha("PodAndContainerStatsFromCRI"),
    beta_off("PodCertificateRequest"),
    alpha("PodLevelResourceManagers"),
    alpha("PodLogsQuerySplitStreams"),
    alpha("PodsAPI"),
    alpha("QOSReserved"),
    alpha("ReduceDefaultCrashLoopBackOffDecay"),
    alpha("RuntimeClassInImageCriAPI"),
    beta_off("SELinuxMount"),
    alpha("TopologyManagerPolicyAlphaOptions"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn given(pairs: &[(&str, bool)]) -> BTreeMap<String, bool> {
        pairs.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect()
    }

    #[test]
    fn named_gate_overrides_its_group_and_others_keep_defaults() {
        let gates = FeatureGates::resolve(&BTreeMap::new()).unwrap();
        assert!(gates.enabled("GracefulNodeShutdown") && !gates.enabled("MemoryQoS"));
        assert!(!gates.enabled("NoSuchGate"));
        let gates = FeatureGates::resolve(&given(&[("AllAlpha", true), ("MemoryQoS", false)])).unwrap();
        assert!(gates.enabled("EventedPLEG") && !gates.enabled("MemoryQoS"));
        let gates = FeatureGates::resolve(&given(&[("AllBeta", false), ("EnvFiles", true)])).unwrap();
        assert!(gates.enabled("EnvFiles") && !gates.enabled("GracefulNodeShutdown"));
        assert!(gates.enabled("SidecarContainers"), "a stable gate is in no group");
    }

    #[test]
    fn unknown_and_locked_gates_are_refused_with_a_suggestion() {
        let findings =
            FeatureGates::resolve(&given(&[("MemoryQos", true), ("SidecarContainers", false)])).unwrap_err();
        let text = findings.to_string();
        assert!(text.contains("unrecognized feature gate: MemoryQos; did you mean MemoryQoS?"), "{text}");
        assert!(text.contains("feature is locked to true"), "{text}");
        assert!(FeatureGates::resolve(&given(&[("SidecarContainers", true)])).is_ok());
        assert_eq!(warnings(&given(&[("SidecarContainers", true), ("MemoryQoS", true)])).len(), 1);
    }

    #[test]
    fn gates_that_switch_nothing_are_named_when_they_are_set() {
        let given = given(&[
            ("EnvFiles", false),
            ("MemoryQoS", true),
            ("ImageVolume", true),
            ("GracefulNodeShutdown", false),
            ("AllAlpha", true),
            ("AllBeta", false),
        ]);
        let named: Vec<_> = without_effect(&given).collect();
        assert_eq!(named, [("AllAlpha", true), ("EnvFiles", false), ("MemoryQoS", true)]);
        assert!(ACTED_ON.iter().all(|name| GATES.iter().any(|gate| gate.name == *name)));
    }

    #[test]
    fn no_gate_is_listed_twice() {
        let names: std::collections::BTreeSet<_> = GATES.iter().map(|gate| gate.name).collect();
        assert_eq!(names.len(), GATES.len());
    }
}
