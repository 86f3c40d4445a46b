//! The kinds this API serves.
//!
//! Owns one table; discovery, paths, access and tables of columns all read it. Pure.

use crate::model::objects::ObjectKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    Get,
    List,
    /// Many, and their changes.
    Watch,
    /// `POST`.
    Create,
    /// `PUT`.
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }

    #[must_use]
    pub(crate) fn reads(self) -> bool {
        matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// The origin of a kind's objects. Two resources of one store show the same objects in two shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Store {
    Pods,
    /// Written by clients and manifests, and stored unchanged.
    Objects(ObjectKind),
    /// `PersistentVolume`.
    Volumes,
    Events,
    /// `Namespace`: those that clients created, and those in use.
    Namespaces,
    Nodes,
    /// `CustomResourceDefinition`: always empty.
    Definitions,
    /// Measured on request, without versions.
    PodMetrics,
    /// As [`Self::PodMetrics`].
    NodeMetrics,
    /// Nothing is stored: a request and its answer.
    Review,
}

impl Store {
    /// Whether its objects have versions from where they are changed.
    pub(super) fn is_stamped(self) -> bool {
        matches!(self, Self::Pods | Self::Objects(_))
    }
}

/// A subresource with a path of its own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Subresource {
    /// The last part of the path.
    pub name: &'static str,
    /// Group, version and kind of its body, where they are not the object's own.
    pub kind: (&'static str, &'static str, &'static str),
    pub verbs: &'static [Verb],
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    /// API group, empty for the core.
    pub group: &'static str,
    pub version: &'static str,
    /// As in paths.
    pub plural: &'static str,
    /// The singular name, which kubectl accepts as well.
    pub singular: &'static str,
    /// As in `kind`.
    pub kind: &'static str,
    pub short_names: &'static [&'static str],
    /// `kubectl get all`.
    pub categories: &'static [&'static str],
    pub namespaced: bool,
    pub verbs: &'static [Verb],
    pub subresources: &'static [Subresource],
    pub store: Store,
}

impl Resource {
    /// `v1`, `metrics.k8s.io/v1beta1`: as in `apiVersion`.
    #[must_use]
    pub(crate) fn api_version(&self) -> String {
        group_version(self.group, self.version)
    }

    /// `pods`, `pods.metrics.k8s.io`: as messages name it.
    #[must_use]
    pub(in crate::serve) fn qualified(&self) -> String {
        qualified(self.plural, self.group)
    }

    #[must_use]
    pub(in crate::serve) fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        let parts: &'static [Subresource] = self.subresources;
        parts.iter().find(|part| part.name == name)
    }
}

/// `v1`, `metrics.k8s.io/v1beta1`.
#[must_use]
pub(crate) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// `pods`, `pods.metrics.k8s.io`.
#[must_use]
pub(in crate::serve) fn qualified(plural: &str, group: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

const READ: &[Verb] = &[Verb::Get, Verb::List, Verb::Watch];
const MEASURED: &[Verb] = &[Verb::Get, Verb::List];
const ALL: &[Verb] = &[
    Verb::Create,
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Update,
    Verb::Watch,
];
const CHANGE: &[Verb] = &[Verb::Get, Verb::Patch, Verb::Update];
const CONNECT: &[Verb] = &[Verb::Create, Verb::Get];
const CREATE: &[Verb] = &[Verb::Create];

const fn part(name: &'static str, kind: &'static str, verbs: &'static [Verb]) -> Subresource {
    Subresource { name, kind: ("", "", kind), verbs }
}

const NONE: Resource = Resource {
    group: "",
    version: "v1",
    plural: "",
    singular: "",
    kind: "",
    short_names: &[],
    categories: &[],
    namespaced: true,
    verbs: ALL,
    subresources: &[],
    store: Store::Review,
};

/// A kind of objects that the node stores unchanged.
const fn stored(
    kind: ObjectKind,
    plural: &'static str,
    singular: &'static str,
    short_names: &'static [&'static str],
) -> Resource {
    Resource {
        group: kind.group(),
        version: kind.version(),
        plural,
        singular,
        kind: kind.as_str(),
        short_names,
        namespaced: kind.is_namespaced(),
        store: Store::Objects(kind),
        ..NONE
    }
}

/// Served in two groups.
const EVENTS: Resource = Resource {
    plural: "events",
    singular: "event",
    kind: "Event",
    short_names: &["ev"],
    store: Store::Events,
    ..NONE
};

/// All resources, in the order of discovery.
pub(crate) const RESOURCES: &[Resource] = &[
    stored(ObjectKind::ConfigMap, "configmaps", "configmap", &["cm"]),
    EVENTS,
    Resource {
        plural: "namespaces",
        singular: "namespace",
        kind: "Namespace",
        short_names: &["ns"],
        namespaced: false,
        verbs: &[Verb::Create, Verb::Delete, Verb::Get, Verb::List, Verb::Patch, Verb::Update, Verb::Watch],
        subresources: &[part("status", "Namespace", &[Verb::Get])],
        store: Store::Namespaces,
        ..NONE
    },
    Resource {
        plural: "nodes",
        singular: "node",
        kind: "Node",
        short_names: &["no"],
        namespaced: false,
        verbs: &[Verb::Get, Verb::List, Verb::Patch, Verb::Update, Verb::Watch],
        subresources: &[part("proxy", "NodeProxyOptions", CONNECT), part("status", "Node", &[Verb::Get])],
        store: Store::Nodes,
        ..NONE
    },
    Resource {
        subresources: &[part("status", "PersistentVolumeClaim", &[Verb::Get])],
        ..stored(
            ObjectKind::PersistentVolumeClaim,
            "persistentvolumeclaims",
            "persistentvolumeclaim",
            &["pvc"],
        )
    },
    Resource {
        plural: "persistentvolumes",
        singular: "persistentvolume",
        kind: "PersistentVolume",
        short_names: &["pv"],
        namespaced: false,
        verbs: READ,
        subresources: &[part("status", "PersistentVolume", &[Verb::Get])],
        store: Store::Volumes,
        ..NONE
    },
    Resource {
        plural: "pods",
        singular: "pod",
        kind: "Pod",
        short_names: &["po"],
        categories: &["all"],
        subresources: &[
            part("attach", "PodAttachOptions", CONNECT),
            part("ephemeralcontainers", "Pod", CHANGE),
            Subresource { name: "eviction", kind: ("policy", "v1", "Eviction"), verbs: CREATE },
            part("exec", "PodExecOptions", CONNECT),
            part("log", "Pod", &[Verb::Get]),
            part("portforward", "PodPortForwardOptions", CONNECT),
            part("resize", "Pod", CHANGE),
            part("status", "Pod", CHANGE),
        ],
        store: Store::Pods,
        ..NONE
    },
    stored(ObjectKind::Secret, "secrets", "secret", &[]),
    Resource {
        subresources: &[Subresource {
            name: "token",
            kind: ("authentication.k8s.io", "v1", "TokenRequest"),
            verbs: CREATE,
        }],
        ..stored(ObjectKind::ServiceAccount, "serviceaccounts", "serviceaccount", &["sa"])
    },
    // kubectl queries this resource before it reports an unknown kind.
    Resource {
        group: "apiextensions.k8s.io",
        plural: "customresourcedefinitions",
        singular: "customresourcedefinition",
        kind: "CustomResourceDefinition",
        short_names: &["crd", "crds"],
        categories: &["api-extensions"],
        namespaced: false,
        verbs: READ,
        store: Store::Definitions,
        ..NONE
    },
    Resource {
        group: "authentication.k8s.io",
        plural: "selfsubjectreviews",
        singular: "selfsubjectreview",
        kind: "SelfSubjectReview",
        namespaced: false,
        verbs: CREATE,
        ..NONE
    },
    Resource {
        group: "authentication.k8s.io",
        plural: "tokenreviews",
        singular: "tokenreview",
        kind: "TokenReview",
        namespaced: false,
        verbs: CREATE,
        ..NONE
    },
    Resource {
        group: "authorization.k8s.io",
        plural: "localsubjectaccessreviews",
        singular: "localsubjectaccessreview",
        kind: "LocalSubjectAccessReview",
        verbs: CREATE,
        ..NONE
    },
    Resource {
        group: "authorization.k8s.io",
        plural: "selfsubjectaccessreviews",
        singular: "selfsubjectaccessreview",
        kind: "SelfSubjectAccessReview",
        namespaced: false,
        verbs: CREATE,
        ..NONE
    },
    Resource {
        group: "authorization.k8s.io",
        plural: "selfsubjectrulesreviews",
        singular: "selfsubjectrulesreview",
        kind: "SelfSubjectRulesReview",
        namespaced: false,
        verbs: CREATE,
        ..NONE
    },
    Resource {
        group: "authorization.k8s.io",
        plural: "subjectaccessreviews",
        singular: "subjectaccessreview",
        kind: "SubjectAccessReview",
        namespaced: false,
        verbs: CREATE,
        ..NONE
    },
    stored(ObjectKind::Lease, "leases", "lease", &[]),
    Resource { group: "events.k8s.io", ..EVENTS },
    Resource {
        group: "metrics.k8s.io",
        version: "v1beta1",
        plural: "nodes",
        singular: "",
        kind: "NodeMetrics",
        namespaced: false,
        verbs: MEASURED,
        store: Store::NodeMetrics,
        ..NONE
    },
    Resource {
        group: "metrics.k8s.io",
        version: "v1beta1",
        plural: "pods",
        singular: "",
        kind: "PodMetrics",
        verbs: MEASURED,
        store: Store::PodMetrics,
        ..NONE
    },
    stored(ObjectKind::RuntimeClass, "runtimeclasses", "runtimeclass", &[]),
    stored(ObjectKind::ClusterRoleBinding, "clusterrolebindings", "clusterrolebinding", &[]),
    stored(ObjectKind::ClusterRole, "clusterroles", "clusterrole", &[]),
    stored(ObjectKind::RoleBinding, "rolebindings", "rolebinding", &[]),
    stored(ObjectKind::Role, "roles", "role", &[]),
];

#[must_use]
pub(crate) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    let found = |resource: &&Resource| {
        resource.group == group && resource.version == version && resource.plural == plural
    };
    RESOURCES.iter().find(found)
}

/// Groups and their versions, each once, without the core.
#[must_use]
pub(crate) fn groups() -> Vec<(&'static str, &'static str)> {
    let mut groups: Vec<_> = RESOURCES
        .iter()
        .map(|found| (found.group, found.version))
        .filter(|(group, _)| !group.is_empty())
        .collect();
    groups.dedup();
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_is_found_and_groups_are_listed_once() {
        for resource in RESOURCES {
            assert_eq!(find(resource.group, resource.version, resource.plural), Some(resource));
            let mut verbs = resource.verbs.to_vec();
            verbs.dedup();
            assert_eq!(verbs, resource.verbs);
        }
        assert_eq!(find("apps", "v1", "deployments"), None);
        let groups: Vec<_> = groups().into_iter().map(|(group, _)| group).collect();
        assert_eq!(
            groups,
            [
                "apiextensions.k8s.io",
                "authentication.k8s.io",
                "authorization.k8s.io",
                "coordination.k8s.io",
                "events.k8s.io",
                "metrics.k8s.io",
                "node.k8s.io"
            ]
        );
    }
}
