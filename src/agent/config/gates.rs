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
            GATES.iter().map(|gate| (gate.name, fixed(gate).unwrap_or(gate.on))).into_map();
        for (group, stage) in GROUPS {
            let Some(&on) = given.get(group) else { continue };
            for gate in GATES.iter().filter(|gate| gate.stage == stage && fixed(gate).is_none()) {
                states.insert(gate.name, on);
            }
        }
        for (name, &on) in given {
            if GROUPS.iter().any(|(group, _)| group == name) {
                continue;
            }
            let field = format!("featureGates.{name}");
            match GATES.iter().find(|gate| gate.name == name) {
                None if is_of_others(name) => {}
                None => {
                    let hint = nearest(name, GATES.iter().map(|gate| gate.name).chain(others()));
                    let hint = hint.map_or(String::new(), |name| format!("; did you mean {name}?"));
                    findings.add(field, format!("unrecognized feature gate: {name}{hint}"));
                }
                Some(gate) => match fixed(gate) {
                    Some(locked) if locked != on => {
                        let problem = format!(
                            "cannot set feature gate {name} to {on}, feature is locked to {locked}; remove it{}",
                            note(name)
                        );
                        findings.add(field, problem);
                    }
                    _ => drop(states.insert(gate.name, on)),
                },
            }
        }
        if findings.0.is_empty() { Ok(Self(states)) } else { Err(findings) }
    }
}

/// Warnings about named gates that will be removed soon, and about those that switch nothing here.
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
            None if is_of_others(name) => lines.push(format!(
                "featureGates.{name}={on} has no effect here: it is not a gate of the kubelet on Linux"
            )),
            _ => {}
        }
    }
    lines.extend(groups(given));
    lines
}

/// The gates that switch something here. All others are locked: the feature is always on, or not part of this version.
const ACTED_ON: [&str; 11] = [
    "CPUManagerPolicyAlphaOptions",
    "CPUManagerPolicyBetaOptions",
    "CustomCPUCFSQuotaPeriod",
    "DisableCPUQuotaWithExclusiveCPUs",
    "GracefulNodeShutdown",
    "GracefulNodeShutdownBasedOnPodPriority",
    "KubeletCrashLoopBackOffMax",
    "MemoryQoS",
    "NodeLogQuery",
    "ReduceDefaultCrashLoopBackOffDecay",
    "RotateKubeletServerCertificate",
];

/// Locked gates whose value here is not upstream's default: parts that this version does not have, and parts that it
/// always has.
const DIFFERENT: [(&str, bool); 12] = [
    ("ContainerStopSignals", true),
    ("ClusterTrustBundle", true),
    ("ClusterTrustBundleProjection", true),
    ("DRAExtendedResource", false),
    ("DynamicResourceAllocation", false),
    ("EventedPLEG", true),
    ("InPlacePodLevelResourcesVerticalScaling", false),
    ("KubeletPodResourcesDynamicResources", false),
    ("MutableCSINodeAllocatableCount", false),
    ("ResourceHealthStatus", false),
    ("ResourceHealthStatusMessage", false),
    ("SELinuxMountReadWriteOncePod", false),
];

/// The value of a gate that cannot be switched.
fn fixed(gate: &Gate) -> Option<bool> {
    let different = DIFFERENT.iter().find(|(name, _)| *name == gate.name);
    (!ACTED_ON.contains(&gate.name)).then(|| different.map_or(gate.on, |(_, on)| *on))
}

pub(super) fn others() -> impl Iterator<Item = &'static str> {
    OTHERS.split(' ')
}

pub(super) fn is_of_others(name: &str) -> bool {
    others().any(|other| other == name)
}

/// Whether a gate cannot be switched here.
pub(super) fn is_fixed(name: &str) -> bool {
    GATES.iter().any(|gate| gate.name == name && fixed(gate).is_some())
}

/// What more there is to say of a locked gate, after a colon; empty for most.
pub(super) fn note(name: &str) -> &'static str {
    match name {
        "SELinuxMount" | "SELinuxMountReadWriteOncePod" => {
            ": volumes are not mounted with a label; without SELinux in the kernel the gate changes nothing"
        }
        "GitRepoVolumeDriver" => ": Kubernetes 1.36 locks it, too",
        _ => "",
    }
}

/// Every gate and its value when nothing is set.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = (&'static str, bool)> {
    GATES.iter().map(|gate| (gate.name, fixed(gate).unwrap_or(gate.on)))
}

/// A line for each group that was set to what it is not, with the gates that follow it.
fn groups(given: &BTreeMap<String, bool>) -> impl Iterator<Item = String> {
    GROUPS.into_iter().filter_map(|(group, stage)| {
        let on = *given.get(group)?;
        let of_stage = || GATES.iter().filter(move |gate| gate.stage == stage);
        if of_stage().all(|gate| fixed(gate).is_none_or(|fixed| fixed == on)) {
            return None;
        }
        let follow: Vec<_> = of_stage().filter(|gate| fixed(gate).is_none()).map(|gate| gate.name).collect();
        Some(format!("featureGates.{group}={on} switches {}; the others are locked", follow.join(", ")))
    })
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

const fn deprecated_on(name: &'static str) -> Gate {
    Gate { name, on: true, stage: Stage::Deprecated }
}

static GATES: &[Gate] = &[
    beta("ContainerCheckpoint"),
    beta("ContainerRestartRules"),
    beta("RestartAllContainersOnContainerExits"),
    beta("CPUManagerPolicyBetaOptions"),
    locked("CSIServiceAccountTokenSecrets"),
    stable("CustomCPUCFSQuotaPeriod"),
    deprecated_on("DisableCPUQuotaWithExclusiveCPUs"),
    beta("DRAExtendedResource"),
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
    deprecated_on("KubeletPodResourcesListUseActivePods"),
    beta("KubeletSeparateDiskGC"),
    beta("KubeletServiceAccountTokenForCredentialProviders"),
    locked("KubeletTracing"),
    beta("LoggingBetaOptions"),
    beta("ContextualLogging"),
    locked("MutableCSINodeAllocatableCount"),
    beta("NodeDeclaredFeatures"),
    stable("NodeLogQuery"),
    locked("NodeSwap"),
    beta("PLEGOnDemandRelist"),
    beta("PodLevelResources"),
    locked("PodLifecycleSleepAction"),
    stable("PodObservedGenerationTracking"),
    beta("PodReadyToStartContainersCondition"),
    beta("PortForwardWebsockets"),
    beta("PreventStaticPodAPIReferences"),
    stable("ProcMountType"),
    locked("RecoverVolumeExpansionFailure"),
    locked("RecursiveReadOnlyMounts"),
    beta("ReloadKubeletClientCAFile"),
    beta("ReloadKubeletServerCertificateFile"),
    beta("ResourceHealthStatus"),
    beta("ResourceHealthStatusMessage"),
    beta("RotateKubeletServerCertificate"),
    locked("SELinuxChangePolicy"),
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
    deprecated("AllowDNSOnlyNodeCSR"),
    deprecated("AllowOverwriteTerminationGracePeriodSeconds"),
    deprecated("ChangeContainerStatusOnKubeletRestart"),
    beta_off("ClusterTrustBundle"),
    beta_off("ClusterTrustBundleProjection"),
    alpha("ContainerStopSignals"),
    alpha("CRIListStreaming"),
    alpha("CPUManagerPolicyAlphaOptions"),
    alpha("CSIVolumeHealth"),
    alpha("DRAWorkloadResourceClaims"),
    alpha("EventedPLEG"),
    deprecated("GitRepoVolumeDriver"),
    alpha("ImageVolumeWithDigest"),
    alpha("InPlacePodVerticalScalingExclusiveCPUs"),
    alpha("InPlacePodVerticalScalingExclusiveMemory"),
    alpha("KubeletInUserNamespace"),
    deprecated("KubeletRegistrationGetOnExistsOnly"),
    beta_off("LocalStorageCapacityIsolationFSQuotaMonitoring"),
    alpha("LoggingAlphaOptions"),
    alpha("MemoryQoS"),
    alpha("NativeHistograms"),
    alpha("PodAndContainerStatsFromCRI"),
    beta_off("PodCertificateRequest"),
    alpha("PodLevelResourceManagers"),
    alpha("PodLogsQuerySplitStreams"),
    alpha("PodsAPI"),
    alpha("QOSReserved"),
    alpha("ReduceDefaultCrashLoopBackOffDecay"),
    alpha("RuntimeClassInImageCriApi"),
    beta_off("SELinuxMount"),
    alpha("TaintTolerationComparisonOperators"),
    alpha("TopologyManagerPolicyAlphaOptions"),
    alpha("UserNamespacesHostNetworkSupport"),
];

/// What else a kubelet accepts: gates of the other components of Kubernetes 1.36, of its client library and of Windows.
const OTHERS: &str = "\
    APIResponseCompression APIServerIdentity APIServerTracing APIServingWithRoutine \
    AggregatedDiscoveryRemoveBetaType AllowInsecureKubeletCertificateSigningRequests AllowParsingUserUIDFromCertAuth \
    AllowServiceExternalIPs AllowUnsafeMalformedObjectDeletion AnonymousAuthConfigurableEndpoints \
    AnyVolumeDataSource AtomicFIFO AuthorizeNodeWithSelectors AuthorizePodWebsocketUpgradeCreatePermission \
    AuthorizeWithSelectors BtreeWatchCache CBORServingAndStorage CRDObservedGenerationTracking \
    CRDValidationRatcheting ClearingNominatedNodeNameAfterBinding ClientsAllowCARotation ClientsAllowCBOR \
    ClientsAllowTLSCacheGC ClientsPreferCBOR CloudControllerManagerWatchBasedRoutesReconciliation \
    CloudControllerManagerWebhook ConcurrentWatchObjectDecode ConsistentListFromCache ConstrainedImpersonation \
    ControllerManagerReleaseLeaderElectionLockOnExit CoordinatedLeaderElection CrossNamespaceVolumeDataSource \
    CustomResourceFieldSelectors DRAAdminAccess DRAConsumableCapacity DRADeviceBindingConditions DRADeviceTaintRules \
    DRADeviceTaints DRAListTypeAttributes DRANodeAllocatableResources DRAPartitionableDevices DRAPrioritizedList \
    DRAResourceClaimDeviceStatus DRAResourceClaimGranularStatusAuthorization DRAResourcePoolStatus \
    DRASchedulerFilterTimeout DeclarativeValidation DeclarativeValidationBeta DeclarativeValidationTakeover \
    DeploymentReplicaSetTerminatingReplicas DetectCacheInconsistency DisableAllocatorDualWrite \
    ExternalServiceAccountTokenSigner GangScheduling GenericWorkload HPAConfigurableTolerance HPAScaleToZero \
    InOrderInformers InOrderInformersBatchProcess InformerResourceVersion JobBackoffLimitPerIndex JobManagedBy \
    JobPodReplacementPolicy JobSuccessPolicy KMSv1 ListFromCacheSnapshot LogarithmicScaleDown \
    ManifestBasedAdmissionControlConfig MatchLabelKeysInPodAffinity MatchLabelKeysInPodTopologySpread \
    MatchLabelKeysInPodTopologySpreadSelectorMerge MaxUnavailableStatefulSet MultiCIDRServiceAllocator \
    MutablePVNodeAffinity MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs \
    MutatingAdmissionPolicy NFTablesProxyMode NodeInclusionPolicyInPodTopologySpread NominatedNodeNameForExpectation \
    OpenAPIEnums OpportunisticBatching OrderedNamespaceDeletion PersistentVolumeClaimUnusedSinceTime PodDeletionCost \
    PodLifecycleSleepActionAllowZero PodSchedulingReadiness PodTopologyLabelsAdmission PreferSameTrafficDistribution \
    RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation RelaxedServiceNameValidation \
    RemoteRequestHeaderUID ResilientWatchCacheInitialization RetryGenerateName SchedulerAsyncAPICalls \
    SchedulerAsyncPreemption SchedulerPopFromBackoffQ SchedulerQueueingHints SeparateCacheWatchRPC \
    SeparateTaintEvictionController ServiceAccountNodeAudienceRestriction ServiceAccountTokenJTI \
    ServiceAccountTokenNodeBinding ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo \
    ServiceCIDRStatusFieldWiping ShardedListAndWatch SizeBasedListCostEstimate StaleControllerConsistencyDaemonSet \
    StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet \
    StatefulSetSemanticRevisionComparison StorageCapacityScoring StorageNamespaceIndex StorageVersionAPI \
    StorageVersionHash StorageVersionMigrator StreamingCollectionEncodingToJSON \
    StreamingCollectionEncodingToProtobuf StrictIPCIDRValidation StructuredAuthenticationConfiguration \
    StructuredAuthenticationConfigurationEgressSelector StructuredAuthenticationConfigurationJWKSMetrics \
    TokenRequestServiceAccountUIDValidation TopologyAwareWorkloadScheduling TranslateStreamCloseWebsocketRequests \
    UnauthenticatedHTTP2DOSMitigation UnknownVersionInteroperabilityProxy UnlockWhileProcessingFIFO \
    VolumeAttributesClass VolumeLimitScaling WatchCacheInitializationPostStartHook WatchList WatchListClient WinDSR \
    WinOverlay WindowsCPUAndMemoryAffinity WindowsGracefulNodeShutdown WindowsHostNetwork WorkloadAwarePreemption \
    WorkloadWithJob";

#[cfg(test)]
mod tests {
    use super::*;

    fn given(pairs: &[(&str, bool)]) -> BTreeMap<String, bool> {
        pairs.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect()
    }

    #[test]
    fn named_gate_overrides_its_group_and_others_keep_defaults() {
        let gates = FeatureGates::resolve(&BTreeMap::new()).unwrap();
        assert!(
            gates.enabled("GracefulNodeShutdown") && !gates.enabled("ReduceDefaultCrashLoopBackOffDecay")
        );
        assert!(!gates.enabled("NoSuchGate"));
        let gates = FeatureGates::resolve(&given(&[("AllAlpha", true)])).unwrap();
        assert!(gates.enabled("ReduceDefaultCrashLoopBackOffDecay") && !gates.enabled("PodsAPI"));
        let given = given(&[("AllBeta", false), ("GracefulNodeShutdown", true)]);
        let gates = FeatureGates::resolve(&given).unwrap();
        assert!(gates.enabled("GracefulNodeShutdown") && !gates.enabled("KubeletCrashLoopBackOffMax"));
        assert!(gates.enabled("SidecarContainers"), "a stable gate is in no group");
        assert!(gates.enabled("EnvFiles"), "a locked gate follows no group");
        let told = warnings(&given);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].starts_with("featureGates.AllBeta=false switches ") && told[0].ends_with("are locked"),
            "{told:?}"
        );
    }

    #[test]
    fn unknown_and_locked_gates_are_refused_with_a_suggestion() {
        let findings =
            FeatureGates::resolve(&given(&[("MemoryQos", true), ("SidecarContainers", false)])).unwrap_err();
        let text = findings.to_string();
        assert!(text.contains("unrecognized feature gate: MemoryQos; did you mean MemoryQoS?"), "{text}");
        assert!(text.contains("feature is locked to true"), "{text}");
        assert!(FeatureGates::resolve(&given(&[("SidecarContainers", true)])).is_ok());
        assert_eq!(warnings(&given(&[("SidecarContainers", true), ("EnvFiles", true)])).len(), 1);
    }

    #[test]
    fn a_gate_that_switches_nothing_is_locked_to_what_is_done() {
        for (name, on) in [
            ("EnvFiles", false),
            ("PodsAPI", true),
            ("EventedPLEG", false),
            ("DynamicResourceAllocation", true),
        ] {
            let refused = FeatureGates::resolve(&given(&[(name, on)])).unwrap_err().to_string();
            let words = format!("cannot set feature gate {name} to {on}, feature is locked to {}", !on);
            assert!(refused.contains(&words), "{refused}");
            let agreed = FeatureGates::resolve(&given(&[(name, !on)])).unwrap();
            assert_eq!(agreed.enabled(name), !on, "{name}");
        }
        let known = |name: &str| GATES.iter().any(|gate| gate.name == name);
        assert!(ACTED_ON.iter().all(|name| known(name)) && DIFFERENT.iter().all(|(name, _)| known(name)));
        assert!(
            DIFFERENT.iter().all(|(name, on)| GATES.iter().any(|gate| gate.name == *name && gate.on != *on))
        );
    }

    #[test]
    fn gates_of_other_components_are_accepted_with_a_warning() {
        let given = given(&[("DRAPartitionableDevices", false), ("JobManagedBy", true), ("WinDSR", true)]);
        let gates = FeatureGates::resolve(&given).unwrap();
        assert_eq!(gates, FeatureGates::resolve(&BTreeMap::new()).unwrap());
        let told = warnings(&given);
        assert_eq!(told.len(), 3, "{told:?}");
        assert_eq!(
            told[1],
            "featureGates.JobManagedBy=true has no effect here: it is not a gate of the kubelet on Linux"
        );
        let typo = BTreeMap::from([("JobManagedBye".to_owned(), true)]);
        let refused = FeatureGates::resolve(&typo).unwrap_err().to_string();
        assert!(refused.contains("unrecognized feature gate: JobManagedBye; did you mean JobManagedBy?"));
    }

    #[test]
    fn gates_of_the_kubelet_in_1_36_are_known() {
        for (name, on) in [
            ("AllowDNSOnlyNodeCSR", false),
            ("CustomCPUCFSQuotaPeriod", true),
            ("DRAExtendedResource", false),
            ("InPlacePodVerticalScalingExclusiveCPUs", false),
            ("KubeletRegistrationGetOnExistsOnly", false),
            ("RecoverVolumeExpansionFailure", true),
            ("RuntimeClassInImageCriApi", false),
        ] {
            let gates = FeatureGates::resolve(&given(&[(name, on)])).unwrap();
            assert_eq!(gates.enabled(name), on, "{name}");
            assert_eq!(FeatureGates::resolve(&BTreeMap::new()).unwrap().enabled(name), on, "{name}");
        }
    }

    #[test]
    fn no_gate_is_listed_twice() {
        let names: std::collections::BTreeSet<_> =
            GATES.iter().map(|gate| gate.name).chain(others()).collect();
        assert_eq!(names.len(), GATES.len() + others().count());
        assert!(others().is_sorted());
    }
}
