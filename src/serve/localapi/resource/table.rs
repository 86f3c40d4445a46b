//! The table of resources: what a node alone serves, and what a node of a cluster does.
//!
//! Owns the rows. Pure.

use super::{Resource, Store, Subresource, Verb};
use crate::model::objects::ObjectKind;

const READ: &[Verb] = &[Verb::Get, Verb::List, Verb::Watch];
const MEASURED: &[Verb] = &[Verb::Get, Verb::List];
pub(super) const ALL: &[Verb] = &[
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

const fn status(kind: &'static str) -> Subresource {
    part("status", kind, CHANGE)
}

const SCALE: Subresource = Subresource { name: "scale", kind: ("autoscaling", "v1", "Scale"), verbs: CHANGE };

/// The subresources that a definition asks for.
pub(super) fn custom_parts(kind: &'static str, has_status: bool, has_scale: bool) -> Vec<Subresource> {
    let scale = has_scale.then_some(SCALE);
    scale.into_iter().chain(has_status.then(|| status(kind))).collect()
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
    singular: &'static str,
    short_names: &'static [&'static str],
    subresources: &'static [Subresource],
) -> Resource {
    Resource {
        group: kind.group(),
        version: kind.version(),
        plural: kind.plural(),
        singular,
        kind: kind.as_str(),
        short_names,
        namespaced: kind.is_namespaced(),
        subresources,
        store: Store::Objects(kind),
        ..NONE
    }
}

/// As [`stored`], and shown by `kubectl get all`.
const fn in_all(
    kind: ObjectKind,
    singular: &'static str,
    short_names: &'static [&'static str],
    subresources: &'static [Subresource],
) -> Resource {
    Resource { categories: &["all"], ..stored(kind, singular, short_names, subresources) }
}

/// As [`stored`], and shown by `kubectl get api-extensions`.
const fn extension(
    kind: ObjectKind,
    singular: &'static str,
    subresources: &'static [Subresource],
) -> Resource {
    Resource { categories: &["api-extensions"], ..stored(kind, singular, &[], subresources) }
}

/// A request and its answer.
const fn review(
    group: &'static str,
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    namespaced: bool,
) -> Resource {
    Resource { group, plural, singular, kind, namespaced, verbs: CREATE, ..NONE }
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

const LEASES: Resource = Resource {
    group: "coordination.k8s.io",
    plural: "leases",
    singular: "lease",
    kind: "Lease",
    store: Store::Leases,
    ..NONE
};

const DEFINITIONS: Resource = Resource {
    short_names: &["crd", "crds"],
    ..extension(
        ObjectKind::CustomResourceDefinition,
        "customresourcedefinition",
        &[status("CustomResourceDefinition")],
    )
};

/// What every node serves.
pub(super) const COMMON: &[Resource] = &[
    stored(ObjectKind::ConfigMap, "configmap", &["cm"], &[]),
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
    stored(
        ObjectKind::PersistentVolumeClaim,
        "persistentvolumeclaim",
        &["pvc"],
        &[part("status", "PersistentVolumeClaim", &[Verb::Get])],
    ),
    stored(ObjectKind::PersistentVolume, "persistentvolume", &["pv"], &[status("PersistentVolume")]),
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
    stored(ObjectKind::Secret, "secret", &[], &[]),
    review("authentication.k8s.io", "selfsubjectreviews", "selfsubjectreview", "SelfSubjectReview", false),
    review(
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        "SelfSubjectAccessReview",
        false,
    ),
    review(
        "authorization.k8s.io",
        "selfsubjectrulesreviews",
        "selfsubjectrulesreview",
        "SelfSubjectRulesReview",
        false,
    ),
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
    stored(ObjectKind::RuntimeClass, "runtimeclass", &[], &[]),
];

/// What only a node of a cluster serves.
pub(super) const JOINED: &[Resource] = &[
    // kubectl queries this resource before it reports an unknown kind.
    Resource { verbs: READ, store: Store::Definitions, subresources: &[], ..DEFINITIONS },
    Resource { verbs: READ, ..EVENTS },
    Resource { group: "events.k8s.io", verbs: READ, ..EVENTS },
    Resource { verbs: READ, ..LEASES },
];

/// What only a node alone serves: in a cluster these kinds are the cluster's.
pub(super) const ALONE: &[Resource] = &[
    stored(ObjectKind::Endpoints, "endpoints", &["ep"], &[]),
    stored(ObjectKind::LimitRange, "limitrange", &["limits"], &[]),
    stored(ObjectKind::ResourceQuota, "resourcequota", &["quota"], &[status("ResourceQuota")]),
    in_all(ObjectKind::Service, "service", &["svc"], &[status("Service")]),
    stored(
        ObjectKind::ServiceAccount,
        "serviceaccount",
        &["sa"],
        &[Subresource {
            name: "token",
            kind: ("authentication.k8s.io", "v1", "TokenRequest"),
            verbs: CREATE,
        }],
    ),
    extension(ObjectKind::MutatingWebhookConfiguration, "mutatingwebhookconfiguration", &[]),
    extension(
        ObjectKind::ValidatingAdmissionPolicy,
        "validatingadmissionpolicy",
        &[status("ValidatingAdmissionPolicy")],
    ),
    extension(ObjectKind::ValidatingAdmissionPolicyBinding, "validatingadmissionpolicybinding", &[]),
    extension(ObjectKind::ValidatingWebhookConfiguration, "validatingwebhookconfiguration", &[]),
    DEFINITIONS,
    extension(ObjectKind::APIService, "apiservice", &[status("APIService")]),
    stored(ObjectKind::ControllerRevision, "controllerrevision", &[], &[]),
    in_all(ObjectKind::DaemonSet, "daemonset", &["ds"], &[status("DaemonSet")]),
    in_all(ObjectKind::Deployment, "deployment", &["deploy"], &[SCALE, status("Deployment")]),
    in_all(ObjectKind::ReplicaSet, "replicaset", &["rs"], &[SCALE, status("ReplicaSet")]),
    in_all(ObjectKind::StatefulSet, "statefulset", &["sts"], &[SCALE, status("StatefulSet")]),
    in_all(
        ObjectKind::HorizontalPodAutoscaler,
        "horizontalpodautoscaler",
        &["hpa"],
        &[status("HorizontalPodAutoscaler")],
    ),
    Resource {
        version: "v1",
        ..in_all(
            ObjectKind::HorizontalPodAutoscaler,
            "horizontalpodautoscaler",
            &["hpa"],
            &[status("HorizontalPodAutoscaler")],
        )
    },
    review("authentication.k8s.io", "tokenreviews", "tokenreview", "TokenReview", false),
    review(
        "authorization.k8s.io",
        "localsubjectaccessreviews",
        "localsubjectaccessreview",
        "LocalSubjectAccessReview",
        true,
    ),
    review(
        "authorization.k8s.io",
        "subjectaccessreviews",
        "subjectaccessreview",
        "SubjectAccessReview",
        false,
    ),
    in_all(ObjectKind::CronJob, "cronjob", &["cj"], &[status("CronJob")]),
    in_all(ObjectKind::Job, "job", &[], &[status("Job")]),
    EVENTS,
    Resource { group: "events.k8s.io", ..EVENTS },
    LEASES,
    stored(ObjectKind::EndpointSlice, "endpointslice", &[], &[]),
    stored(ObjectKind::FlowSchema, "flowschema", &[], &[status("FlowSchema")]),
    stored(
        ObjectKind::PriorityLevelConfiguration,
        "prioritylevelconfiguration",
        &[],
        &[status("PriorityLevelConfiguration")],
    ),
    stored(ObjectKind::Ingress, "ingress", &["ing"], &[status("Ingress")]),
    stored(ObjectKind::IngressClass, "ingressclass", &[], &[]),
    stored(ObjectKind::NetworkPolicy, "networkpolicy", &["netpol"], &[]),
    stored(
        ObjectKind::PodDisruptionBudget,
        "poddisruptionbudget",
        &["pdb"],
        &[status("PodDisruptionBudget")],
    ),
    stored(ObjectKind::ClusterRole, "clusterrole", &[], &[]),
    stored(ObjectKind::ClusterRoleBinding, "clusterrolebinding", &[], &[]),
    stored(ObjectKind::Role, "role", &[], &[]),
    stored(ObjectKind::RoleBinding, "rolebinding", &[], &[]),
    stored(ObjectKind::PriorityClass, "priorityclass", &["pc"], &[]),
    stored(ObjectKind::CSIDriver, "csidriver", &[], &[]),
    stored(ObjectKind::StorageClass, "storageclass", &["sc"], &[]),
    stored(ObjectKind::VolumeAttachment, "volumeattachment", &[], &[status("VolumeAttachment")]),
];
