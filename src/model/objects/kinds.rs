//! The kinds of objects of this node: one table.
//!
//! Owns group, version, plural and scope of each kind, and the kinds that CustomResourceDefinitions add.

use std::cell::RefCell;

/// Kinds of definitions that one process has known: each costs some hundred bytes until it ends.
const MAX_CUSTOM: usize = 2_000;

#[derive(Clone, Copy)]
struct KindFacts {
    name: &'static str,
    plural: &'static str,
    group: &'static str,
    version: &'static str,
    is_namespaced: bool,
    has_generation: bool,
}

/// A kind that a CustomResourceDefinition defines. Its objects name the version they were written in.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CustomKind {
    group: &'static str,
    name: &'static str,
    plural: &'static str,
    is_namespaced: bool,
    /// `KIND.GROUP PLURAL`, for a kind of objects in no namespace with a slash before it.
    stored: &'static str,
}

const NAMESPACED: bool = true;
const CLUSTER: bool = false;
/// Changes of the spec are counted in `metadata.generation`.
const COUNTED: bool = true;
const UNCOUNTED: bool = false;

macro_rules! kinds {
    ($($name:ident $plural:literal $group:literal $version:literal $scope:ident $counted:ident;)*) => {
        /// Kinds of objects, in the order they are shown.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum ObjectKind {
            $($name,)*
            Custom(&'static CustomKind),
        }

        impl ObjectKind {
            /// All kinds but those of definitions.
            pub const BUILT_IN: &'static [Self] = &[$(Self::$name),*];

            const fn facts(self) -> KindFacts {
                match self {
                    $(Self::$name => KindFacts {
                        name: stringify!($name),
                        plural: $plural,
                        group: $group,
                        version: $version,
                        is_namespaced: $scope,
                        has_generation: $counted,
                    },)*
                    Self::Custom(CustomKind { group, name, plural, is_namespaced, .. }) => KindFacts {
                        name,
                        plural,
                        group,
                        version: "",
                        is_namespaced: *is_namespaced,
                        has_generation: true,
                    },
                }
            }
        }
    };
}

kinds! {
    ConfigMap "configmaps" "" "v1" NAMESPACED UNCOUNTED;
    Secret "secrets" "" "v1" NAMESPACED UNCOUNTED;
    PersistentVolumeClaim "persistentvolumeclaims" "" "v1" NAMESPACED UNCOUNTED;
    Namespace "namespaces" "" "v1" CLUSTER UNCOUNTED;
    RuntimeClass "runtimeclasses" "node.k8s.io" "v1" CLUSTER UNCOUNTED;
    Endpoints "endpoints" "" "v1" NAMESPACED UNCOUNTED;
    LimitRange "limitranges" "" "v1" NAMESPACED UNCOUNTED;
    PersistentVolume "persistentvolumes" "" "v1" CLUSTER UNCOUNTED;
    ResourceQuota "resourcequotas" "" "v1" NAMESPACED UNCOUNTED;
    Service "services" "" "v1" NAMESPACED UNCOUNTED;
    ServiceAccount "serviceaccounts" "" "v1" NAMESPACED UNCOUNTED;
    MutatingWebhookConfiguration "mutatingwebhookconfigurations" "admissionregistration.k8s.io" "v1" CLUSTER COUNTED;
    ValidatingAdmissionPolicy "validatingadmissionpolicies" "admissionregistration.k8s.io" "v1" CLUSTER COUNTED;
    ValidatingAdmissionPolicyBinding "validatingadmissionpolicybindings" "admissionregistration.k8s.io" "v1" CLUSTER COUNTED;
    ValidatingWebhookConfiguration "validatingwebhookconfigurations" "admissionregistration.k8s.io" "v1" CLUSTER COUNTED;
    CustomResourceDefinition "customresourcedefinitions" "apiextensions.k8s.io" "v1" CLUSTER COUNTED;
    APIService "apiservices" "apiregistration.k8s.io" "v1" CLUSTER UNCOUNTED;
    ControllerRevision "controllerrevisions" "apps" "v1" NAMESPACED UNCOUNTED;
    DaemonSet "daemonsets" "apps" "v1" NAMESPACED COUNTED;
    Deployment "deployments" "apps" "v1" NAMESPACED COUNTED;
    ReplicaSet "replicasets" "apps" "v1" NAMESPACED COUNTED;
    StatefulSet "statefulsets" "apps" "v1" NAMESPACED COUNTED;
    HorizontalPodAutoscaler "horizontalpodautoscalers" "autoscaling" "v2" NAMESPACED UNCOUNTED;
    CronJob "cronjobs" "batch" "v1" NAMESPACED COUNTED;
    Job "jobs" "batch" "v1" NAMESPACED COUNTED;
    Lease "leases" "coordination.k8s.io" "v1" NAMESPACED UNCOUNTED;
    EndpointSlice "endpointslices" "discovery.k8s.io" "v1" NAMESPACED COUNTED;
    FlowSchema "flowschemas" "flowcontrol.apiserver.k8s.io" "v1" CLUSTER COUNTED;
    PriorityLevelConfiguration "prioritylevelconfigurations" "flowcontrol.apiserver.k8s.io" "v1" CLUSTER COUNTED;
    Ingress "ingresses" "networking.k8s.io" "v1" NAMESPACED COUNTED;
    IngressClass "ingressclasses" "networking.k8s.io" "v1" CLUSTER COUNTED;
    NetworkPolicy "networkpolicies" "networking.k8s.io" "v1" NAMESPACED COUNTED;
    PodDisruptionBudget "poddisruptionbudgets" "policy" "v1" NAMESPACED COUNTED;
    ClusterRole "clusterroles" "rbac.authorization.k8s.io" "v1" CLUSTER UNCOUNTED;
    ClusterRoleBinding "clusterrolebindings" "rbac.authorization.k8s.io" "v1" CLUSTER UNCOUNTED;
    Role "roles" "rbac.authorization.k8s.io" "v1" NAMESPACED UNCOUNTED;
    RoleBinding "rolebindings" "rbac.authorization.k8s.io" "v1" NAMESPACED UNCOUNTED;
    PriorityClass "priorityclasses" "scheduling.k8s.io" "v1" CLUSTER COUNTED;
    CSIDriver "csidrivers" "storage.k8s.io" "v1" CLUSTER COUNTED;
    StorageClass "storageclasses" "storage.k8s.io" "v1" CLUSTER UNCOUNTED;
    VolumeAttachment "volumeattachments" "storage.k8s.io" "v1" CLUSTER UNCOUNTED;
}

thread_local! {
    static CUSTOM: RefCell<Vec<&'static CustomKind>> = const { RefCell::new(Vec::new()) };
}

impl ObjectKind {
    /// The word of `kind`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.facts().name
    }

    /// As in paths.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        self.facts().plural
    }

    /// The API group, empty for the core.
    #[must_use]
    pub const fn group(self) -> &'static str {
        self.facts().group
    }

    /// Empty for a kind of a definition.
    #[must_use]
    pub const fn version(self) -> &'static str {
        self.facts().version
    }

    #[must_use]
    pub const fn is_namespaced(self) -> bool {
        self.facts().is_namespaced
    }

    /// Whether changes of the spec are counted in `metadata.generation`.
    #[must_use]
    pub(crate) const fn has_generation(self) -> bool {
        self.facts().has_generation
    }

    #[must_use]
    pub(crate) const fn is_custom(self) -> bool {
        matches!(self, Self::Custom(_))
    }

    /// A manifest may define such objects.
    #[must_use]
    pub(crate) const fn is_in_manifests(self) -> bool {
        !self.is_custom()
    }

    /// A change of such an object may change what a running pod sees.
    #[must_use]
    pub(crate) const fn is_read_by_pods(self) -> bool {
        matches!(
            self,
            Self::ConfigMap
                | Self::Secret
                | Self::PersistentVolumeClaim
                | Self::PersistentVolume
                | Self::CSIDriver
                | Self::StorageClass
                | Self::RuntimeClass
                | Self::ServiceAccount
        )
    }

    /// `v1`, `node.k8s.io/v1`: the value of `apiVersion`.
    #[must_use]
    pub fn api_version(self) -> String {
        let KindFacts { group, version, .. } = self.facts();
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
    }

    /// A built-in kind by its word.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::BUILT_IN.iter().copied().find(|kind| kind.as_str() == name)
    }

    /// A known kind by its group and word.
    #[must_use]
    pub(crate) fn find(group: &str, name: &str) -> Option<Self> {
        let is_it = |kind: &Self| kind.group() == group && kind.as_str() == name;
        let custom = || CUSTOM.with_borrow(|known| known.iter().map(|kind| Self::Custom(kind)).find(is_it));
        Self::BUILT_IN.iter().copied().find(is_it).or_else(custom)
    }

    /// The name in the store.
    #[must_use]
    pub(crate) fn stored_name(self) -> &'static str {
        match self {
            Self::Custom(custom) => custom.stored,
            built_in => built_in.as_str(),
        }
    }

    /// The kind by its name in the store; `None` for an unknown one.
    #[must_use]
    pub(crate) fn from_stored(name: &str) -> Option<Self> {
        let Some((kind, plural)) = name.split_once(' ') else { return Self::from_name(name) };
        let (kind, group) = kind.split_once('.')?;
        let (kind, is_namespaced) = match kind.strip_prefix('/') {
            Some(kind) => (kind, CLUSTER),
            None => (kind, NAMESPACED),
        };
        Self::custom(group, kind, plural, is_namespaced)
    }

    /// The kind of a definition. `None`: there were too many.
    #[must_use]
    pub(crate) fn custom(group: &str, name: &str, plural: &str, is_namespaced: bool) -> Option<Self> {
        CUSTOM.with_borrow_mut(|known| {
            let is_same = |kind: &&&'static CustomKind| {
                (kind.group, kind.name, kind.plural, kind.is_namespaced)
                    == (group, name, plural, is_namespaced)
            };
            if let Some(kind) = known.iter().find(is_same) {
                return Some(Self::Custom(kind));
            }
            if known.len() >= MAX_CUSTOM {
                return None;
            }
            let scope = if is_namespaced { "" } else { "/" };
            let kept = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
            let kind: &'static CustomKind = Box::leak(Box::new(CustomKind {
                group: kept(group.to_owned()),
                name: kept(name.to_owned()),
                plural: kept(plural.to_owned()),
                is_namespaced,
                stored: kept(format!("{scope}{name}.{group} {plural}")),
            }));
            known.push(kind);
            Some(Self::Custom(kind))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_name_in_the_store() {
        for kind in ObjectKind::BUILT_IN {
            assert_eq!(ObjectKind::from_stored(kind.stored_name()), Some(*kind));
            assert_eq!(kind.plural(), kind.plural().to_ascii_lowercase());
        }
        for is_namespaced in [true, false] {
            let kind = ObjectKind::custom("edge.example", "Gauge", "gauges", is_namespaced).unwrap();
            assert_eq!(ObjectKind::from_stored(kind.stored_name()), Some(kind));
            assert_eq!(
                (kind.group(), kind.as_str(), kind.is_namespaced()),
                ("edge.example", "Gauge", is_namespaced)
            );
        }
        assert_eq!(ObjectKind::from_stored("Gauge"), None);
        assert_ne!(
            ObjectKind::custom("edge.example", "Gauge", "gauges", true),
            ObjectKind::custom("edge.example", "Gauge", "gauges", false)
        );
    }

    #[test]
    fn kinds_of_definitions_are_bounded() {
        let made = (0..=MAX_CUSTOM)
            .map(|number| ObjectKind::custom("bound.example", "K", &number.to_string(), true));
        assert_eq!(made.filter(Option::is_none).count(), 1);
    }
}
