//! The tables of kinds that are kept as JSON: for each column where its cell comes from.
//!
//! Owns the choice by kind, and the tables of the kinds that no controller of this node acts on. Pure.

use serde_json::{Value, json};

use super::super::{age, text};
use super::cell::{Cell, Table, count, items, or_none, selector, words};
use super::services::{ENDPOINTS, SERVICES, SLICES};
use super::workloads::{CRON_JOBS, DAEMON_SETS, DEPLOYMENTS, JOBS, REPLICA_SETS, REVISIONS, STATEFUL_SETS};
use super::{AGE, Column, NAME};
use crate::model::objects::ObjectKind;
use crate::model::ordered::Sortable as _;
use crate::model::types::Timestamp;

const fn column(name: &'static str, about: &'static str) -> Column {
    (name, about, false)
}

const fn wide(name: &'static str, about: &'static str) -> Column {
    (name, about, true)
}

const PLAIN: Table = &[(NAME, Cell::Name), (AGE, Cell::Age)];

/// The table of a kind.
pub(super) fn table(kind: ObjectKind) -> Table {
    match kind {
        ObjectKind::APIService => API_SERVICES,
        ObjectKind::CSIDriver => CSI_DRIVERS,
        ObjectKind::ClusterRole
        | ObjectKind::CustomResourceDefinition
        | ObjectKind::LimitRange
        | ObjectKind::Role => CREATED,
        ObjectKind::ClusterRoleBinding | ObjectKind::RoleBinding => BINDINGS,
        ObjectKind::ControllerRevision => REVISIONS,
        ObjectKind::CronJob => CRON_JOBS,
        ObjectKind::DaemonSet => DAEMON_SETS,
        ObjectKind::Deployment => DEPLOYMENTS,
        ObjectKind::EndpointSlice => SLICES,
        ObjectKind::Endpoints => ENDPOINTS,
        ObjectKind::FlowSchema => FLOW_SCHEMAS,
        ObjectKind::HorizontalPodAutoscaler => AUTOSCALERS,
        ObjectKind::Ingress => INGRESSES,
        ObjectKind::IngressClass => INGRESS_CLASSES,
        ObjectKind::Lease => LEASES,
        ObjectKind::Job => JOBS,
        ObjectKind::MutatingWebhookConfiguration | ObjectKind::ValidatingWebhookConfiguration => WEBHOOKS,
        ObjectKind::NetworkPolicy => POLICIES,
        ObjectKind::PodDisruptionBudget => BUDGETS,
        ObjectKind::PriorityClass => PRIORITY_CLASSES,
        ObjectKind::PriorityLevelConfiguration => LEVELS,
        ObjectKind::ReplicaSet => REPLICA_SETS,
        ObjectKind::ResourceQuota => QUOTAS,
        ObjectKind::Service => SERVICES,
        ObjectKind::StatefulSet => STATEFUL_SETS,
        ObjectKind::StorageClass => STORAGE_CLASSES,
        ObjectKind::ValidatingAdmissionPolicy => ADMISSION_POLICIES,
        ObjectKind::ValidatingAdmissionPolicyBinding => ADMISSION_BINDINGS,
        ObjectKind::VolumeAttachment => ATTACHMENTS,
        _ => PLAIN,
    }
}

pub(super) fn cells(table: Table, object: &Value, now: Timestamp) -> Vec<Value> {
    let cell = |(_, cell): &(Column, Cell)| match cell {
        Cell::Name => json!(text(object, "/metadata/name")),
        Cell::Age => {
            let created = Timestamp::parse_rfc3339(text(object, "/metadata/creationTimestamp"));
            json!(age::since_or_unknown(created, now))
        }
        Cell::At(place, absent) => match object.pointer(place) {
            None | Some(Value::Null) => json!(absent),
            Some(found) => found.clone(),
        },
        Cell::Of(compute) => compute(object),
        Cell::Timed(compute) => compute(object, now),
    };
    table.iter().map(cell).collect()
}

const CREATED: Table = &[
    (NAME, Cell::Name),
    (column("Created At", "When it was created."), Cell::At("/metadata/creationTimestamp", "")),
];
const LEASES: Table = &[
    (NAME, Cell::Name),
    (column("Holder", "Identity of the lease holder."), Cell::At("/spec/holderIdentity", "")),
    (AGE, Cell::Age),
];
const WEBHOOKS: Table = &[
    (NAME, Cell::Name),
    (column("Webhooks", "Number of webhooks."), Cell::Of(|of| json!(items(of, "/webhooks").count()))),
    (AGE, Cell::Age),
];
const INGRESSES: Table = &[
    (NAME, Cell::Name),
    (column("Class", "Name of the IngressClass."), Cell::At("/spec/ingressClassName", "<none>")),
    (column("Hosts", "Hosts of the rules."), Cell::Of(hosts)),
    (column("Address", "Entry points of the load balancer."), Cell::Of(addresses)),
    (
        column("Ports", "Ports that are open."),
        Cell::Of(|of| json!(if items(of, "/spec/tls").count() == 0 { "80" } else { "80, 443" })),
    ),
    (AGE, Cell::Age),
];
const INGRESS_CLASSES: Table = &[
    (NAME, Cell::Of(|of| json!(named(of, "ingressclass.kubernetes.io/is-default-class")))),
    (column("Controller", "Name of the controller."), Cell::At("/spec/controller", "")),
    (column("Parameters", "Reference to parameters."), Cell::Of(parameters)),
    (AGE, Cell::Age),
];
const POLICIES: Table = &[
    (NAME, Cell::Name),
    (
        column("Pod-Selector", "Pods that it applies to."),
        Cell::Of(|of| json!(selector(&of["spec"]["podSelector"]))),
    ),
    (AGE, Cell::Age),
];
const AUTOSCALERS: Table = &[
    (NAME, Cell::Name),
    (column("Reference", "The object to scale."), Cell::Of(|of| reference(&of["spec"]["scaleTargetRef"]))),
    (column("Targets", "Metrics and the values that are wanted."), Cell::Of(targets)),
    (
        column("MinPods", "The fewest pods."),
        Cell::Of(|of| json!(number(&of["spec"]["minReplicas"]).unwrap_or("<unset>".to_owned()))),
    ),
    (column("MaxPods", "The most pods."), Cell::Of(|of| count(of, "/spec/maxReplicas"))),
    (column("Replicas", "Number of pods."), Cell::Of(|of| count(of, "/status/currentReplicas"))),
    (AGE, Cell::Age),
];
const BUDGETS: Table = &[
    (NAME, Cell::Name),
    (
        column("Min Available", "Pods that must stay available."),
        Cell::Of(|of| or_na(&of["spec"]["minAvailable"])),
    ),
    (
        column("Max Unavailable", "Pods that may be unavailable."),
        Cell::Of(|of| or_na(&of["spec"]["maxUnavailable"])),
    ),
    (
        column("Allowed Disruptions", "Pods that may be evicted now."),
        Cell::Of(|of| count(of, "/status/disruptionsAllowed")),
    ),
    (AGE, Cell::Age),
];
const STORAGE_CLASSES: Table = &[
    (NAME, Cell::Of(|of| json!(named(of, "storageclass.kubernetes.io/is-default-class")))),
    (column("Provisioner", "Name of the provisioner."), Cell::At("/provisioner", "")),
    (column("ReclaimPolicy", "What becomes of released volumes."), Cell::At("/reclaimPolicy", "Delete")),
    (column("VolumeBindingMode", "When claims are bound."), Cell::At("/volumeBindingMode", "Immediate")),
    (
        column("AllowVolumeExpansion", "Whether claims may grow."),
        Cell::Of(|of| json!(of["allowVolumeExpansion"] == true)),
    ),
    (AGE, Cell::Age),
];
const CSI_DRIVERS: Table = &[
    (NAME, Cell::Name),
    (
        column("AttachRequired", "Whether volumes must be attached."),
        Cell::Of(|of| json!(of["spec"]["attachRequired"] != false)),
    ),
    (
        column("PodInfoOnMount", "Whether the driver is given facts about the pod."),
        Cell::Of(|of| json!(of["spec"]["podInfoOnMount"] == true)),
    ),
    (
        column("StorageCapacity", "Whether the driver reports its capacity."),
        Cell::Of(|of| json!(of["spec"]["storageCapacity"] == true)),
    ),
    (column("TokenRequests", "Audiences of tokens that the driver is given."), Cell::Of(token_requests)),
    (
        column("RequiresRepublish", "Whether volumes are published again."),
        Cell::Of(|of| json!(of["spec"]["requiresRepublish"] == true)),
    ),
    (
        column("Modes", "Kinds of volumes."),
        Cell::Of(|of| json!(or_none(words(items(of, "/spec/volumeLifecycleModes"), "").join(",")))),
    ),
    (AGE, Cell::Age),
];
const ATTACHMENTS: Table = &[
    (NAME, Cell::Name),
    (column("Attacher", "Name of the driver."), Cell::At("/spec/attacher", "")),
    (column("PV", "Name of the PersistentVolume."), Cell::At("/spec/source/persistentVolumeName", "")),
    (column("Node", "Name of the node."), Cell::At("/spec/nodeName", "")),
    (column("Attached", "Whether it is attached."), Cell::Of(|of| json!(of["status"]["attached"] == true))),
    (AGE, Cell::Age),
];
const PRIORITY_CLASSES: Table = &[
    (NAME, Cell::Name),
    (column("Value", "Priority of the pods."), Cell::Of(|of| count(of, "/value"))),
    (
        column("Global-Default", "Whether pods that name no class have it."),
        Cell::Of(|of| json!(of["globalDefault"] == true)),
    ),
    (AGE, Cell::Age),
    (
        column("PreemptionPolicy", "Whether pods with a lower priority give way."),
        Cell::At("/preemptionPolicy", ""),
    ),
];
const BINDINGS: Table = &[
    (NAME, Cell::Name),
    (column("Role", "The role that is granted."), Cell::Of(|of| reference(&of["roleRef"]))),
    (AGE, Cell::Age),
    (wide("Users", "Users that get the role."), Cell::Of(|of| subjects(of, "User"))),
    (wide("Groups", "Groups that get the role."), Cell::Of(|of| subjects(of, "Group"))),
    (
        wide("ServiceAccounts", "Service accounts that get the role."),
        Cell::Of(|of| subjects(of, "ServiceAccount")),
    ),
];
const QUOTAS: Table = &[
    (NAME, Cell::Name),
    (column("Request", "Requests in use, and the most."), Cell::Of(|of| quota(of, false))),
    (column("Limit", "Limits in use, and the most."), Cell::Of(|of| quota(of, true))),
    (AGE, Cell::Age),
];
const ADMISSION_POLICIES: Table = &[
    (NAME, Cell::Name),
    (column("Validations", "Number of rules."), Cell::Of(|of| json!(items(of, "/spec/validations").count()))),
    (column("ParamKind", "Kind of the parameters."), Cell::Of(parameter_kind)),
    (AGE, Cell::Age),
];
const ADMISSION_BINDINGS: Table = &[
    (NAME, Cell::Name),
    (column("PolicyName", "Name of the policy."), Cell::At("/spec/policyName", "")),
    (column("ParamRef", "The parameters."), Cell::Of(parameter_reference)),
    (AGE, Cell::Age),
];
const API_SERVICES: Table = &[
    (NAME, Cell::Name),
    (column("Service", "The Service that serves the group."), Cell::Of(api_service)),
    (column("Available", "Whether it is served."), Cell::Of(|of| condition(of, "Available", "Unknown"))),
    (AGE, Cell::Age),
];
const FLOW_SCHEMAS: Table = &[
    (NAME, Cell::Name),
    (
        column("PriorityLevel", "Name of the priority level."),
        Cell::At("/spec/priorityLevelConfiguration/name", ""),
    ),
    (
        column("MatchingPrecedence", "Lower values are tried first."),
        Cell::Of(|of| count(of, "/spec/matchingPrecedence")),
    ),
    (
        column("DistinguisherMethod", "How flows are told apart."),
        Cell::At("/spec/distinguisherMethod/type", "<none>"),
    ),
    (AGE, Cell::Age),
    (
        column("MissingPL", "Whether the priority level is missing."),
        Cell::Of(|of| condition(of, "Dangling", "?")),
    ),
];
const QUEUING: &str = "/spec/limited/limitResponse/queuing";
const LEVELS: Table = &[
    (NAME, Cell::Name),
    (column("Type", "Exempt or Limited."), Cell::At("/spec/type", "")),
    (
        column("NominalConcurrencyShares", "Share of the concurrency."),
        Cell::At("/spec/limited/nominalConcurrencyShares", "<none>"),
    ),
    (column("Queues", "Number of queues."), Cell::Of(|of| queuing(of, "queues"))),
    (column("HandSize", "Queues that a flow may use."), Cell::Of(|of| queuing(of, "handSize"))),
    (column("QueueLengthLimit", "Requests in a queue."), Cell::Of(|of| queuing(of, "queueLengthLimit"))),
    (AGE, Cell::Age),
];

fn number(value: &Value) -> Option<String> {
    value.as_i64().map(|number| number.to_string())
}

/// A number or a percentage.
fn or_na(value: &Value) -> Value {
    match value {
        Value::Null => json!("N/A"),
        Value::String(text) => json!(text),
        other => json!(other.to_string()),
    }
}

fn reference(to: &Value) -> Value {
    json!(format!("{}/{}", text(to, "/kind"), text(to, "/name")))
}

/// The name of a class, and whether it is the default.
fn named(object: &Value, annotation: &str) -> String {
    let name = text(object, "/metadata/name");
    let annotations = object.pointer("/metadata/annotations");
    let is_default = annotations.is_some_and(|annotations| annotations[annotation] == "true");
    format!("{name}{}", if is_default { " (default)" } else { "" })
}

/// Upstream shows three hosts.
fn hosts(ingress: &Value) -> Value {
    const MOST: usize = 3;
    let rules = items(ingress, "/spec/rules").count();
    let hosts = words(items(ingress, "/spec/rules"), "/host");
    let shown: Vec<&str> = hosts.iter().take(MOST).copied().collect();
    json!(match (shown.is_empty(), hosts.len() > MOST) {
        (true, _) => "*".to_owned(),
        (_, true) => format!("{} + {} more...", shown.join(","), rules - MOST),
        _ => shown.join(","),
    })
}

fn addresses(ingress: &Value) -> Value {
    let mut found: Vec<&str> = items(ingress, "/status/loadBalancer/ingress")
        .map(|one| match text(one, "/ip") {
            "" => text(one, "/hostname"),
            ip => ip,
        })
        .collect();
    found.order_by(Ord::cmp);
    json!(found.join(","))
}

fn parameters(class: &Value) -> Value {
    let Some(parameters) = class.pointer("/spec/parameters") else { return json!("<none>") };
    let group = match text(parameters, "/apiGroup") {
        "" => String::new(),
        group => format!(".{group}"),
    };
    json!(format!("{}{group}/{}", text(parameters, "/kind"), text(parameters, "/name")))
}

/// Upstream shows two metrics.
fn targets(autoscaler: &Value) -> Value {
    const MOST: usize = 2;
    let metric = |metric: &Value| {
        let (of, named) = match text(metric, "/type") {
            "Resource" => ("resource", true),
            "ContainerResource" => ("containerResource", true),
            "Pods" => ("pods", false),
            "Object" => ("object", false),
            "External" => ("external", false),
            _ => return "<unknown type>".to_owned(),
        };
        let target = &metric[of]["target"];
        let shown = |field: &str| target[field].as_str().map(str::to_owned);
        let is_average = of == "object" || of == "external";
        let value = match (shown("averageValue"), named) {
            (Some(value), _) if is_average => format!("{value} (avg)"),
            (Some(value), _) => value,
            (None, true) => {
                number(&target["averageUtilization"]).map_or("<auto>".to_owned(), |percent| percent + "%")
            }
            (None, false) => shown("value").unwrap_or_default(),
        };
        let name = if named { format!("{}: ", text(&metric[of], "/name")) } else { String::new() };
        format!("{name}<unknown>/{value}")
    };
    let metrics: Vec<String> = items(autoscaler, "/spec/metrics").map(metric).collect();
    json!(match metrics.len().checked_sub(MOST) {
        None | Some(0) => or_none(metrics.join(", ")),
        Some(more) => format!("{} + {more} more...", metrics[..MOST].join(", ")),
    })
}

fn token_requests(driver: &Value) -> Value {
    match driver.pointer("/spec/tokenRequests") {
        None => json!("<unset>"),
        Some(_) => json!(words(items(driver, "/spec/tokenRequests"), "/audience").join(",")),
    }
}

fn subjects(binding: &Value, kind: &str) -> Value {
    let of_kind = items(binding, "/subjects").filter(|subject| subject["kind"] == kind);
    let name = |subject: &Value| match kind {
        "ServiceAccount" => format!("{}/{}", text(subject, "/namespace"), text(subject, "/name")),
        _ => text(subject, "/name").to_owned(),
    };
    json!(of_kind.map(name).collect::<Vec<_>>().join(", "))
}

fn quota(quota: &Value, limits: bool) -> Value {
    let hard = quota.pointer("/status/hard").and_then(Value::as_object).into_iter().flatten();
    let shown = hard.filter(|(name, _)| name.starts_with("limits.") == limits).map(|(name, hard)| {
        let used = quota["status"]["used"][name.as_str()].as_str().unwrap_or("0");
        format!("{name}: {used}/{}", hard.as_str().unwrap_or_default())
    });
    json!(shown.collect::<Vec<_>>().join(", "))
}

fn parameter_kind(policy: &Value) -> Value {
    let Some(kind) = policy.pointer("/spec/paramKind") else { return json!("<unset>") };
    json!(format!("{}/{}", text(kind, "/apiVersion"), text(kind, "/kind")))
}

fn parameter_reference(binding: &Value) -> Value {
    let Some(reference) = binding.pointer("/spec/paramRef") else { return json!("<unset>") };
    json!(match (text(reference, "/namespace"), text(reference, "/name")) {
        (_, "") => selector(&reference["selector"]),
        ("", name) => format!("*/{name}"),
        (namespace, name) => format!("{namespace}/{name}"),
    })
}

fn api_service(service: &Value) -> Value {
    match service.pointer("/spec/service") {
        None | Some(Value::Null) => json!("Local"),
        Some(to) => json!(format!("{}/{}", text(to, "/namespace"), text(to, "/name"))),
    }
}

fn condition(object: &Value, kind: &str, absent: &str) -> Value {
    let found = items(object, "/status/conditions").find(|condition| condition["type"] == kind);
    json!(found.map_or(absent, |condition| text(condition, "/status")))
}

fn queuing(level: &Value, field: &str) -> Value {
    let queuing = level.pointer(QUEUING).and_then(|queuing| queuing.get(field));
    queuing.cloned().unwrap_or_else(|| json!("<none>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: ObjectKind, object: &Value) -> Vec<String> {
        let cells = cells(table(kind), object, Timestamp::from_secs(1_700_000_000));
        cells.iter().map(|cell| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned)).collect()
    }

    #[test]
    fn rows_read_as_an_apiservers() {
        let rules = json!([{"host": "a"}, {"host": "b"}, {}, {"host": "c"}, {"host": "d"}]);
        for (kind, object, expected) in [
            (
                ObjectKind::Ingress,
                json!({"metadata": {"name": "i"}, "spec": {"rules": rules, "tls": [{}]}}),
                vec!["i", "<none>", "a,b,c + 2 more...", "", "80, 443", "<unknown>"],
            ),
            (
                ObjectKind::IngressClass,
                json!({"metadata": {"name": "c", "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}},
                    "spec": {"controller": "x/y", "parameters": {"apiGroup": "g", "kind": "K", "name": "n"}}}),
                vec!["c (default)", "x/y", "K.g/n", "<unknown>"],
            ),
            (
                ObjectKind::NetworkPolicy,
                json!({"metadata": {"name": "p"}, "spec": {"podSelector": {"matchLabels": {"a": "b"},
                    "matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["e", "d"]}, {"key": "f", "operator": "DoesNotExist"}]}}}),
                vec!["p", "a=b,c notin (d,e),!f", "<unknown>"],
            ),
            (
                ObjectKind::HorizontalPodAutoscaler,
                json!({"metadata": {"name": "h"}, "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 5,
                    "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}},
                        {"type": "Pods", "pods": {"target": {"averageValue": "1k"}}}, {"type": "?"}]}}),
                vec![
                    "h",
                    "Deployment/web",
                    "cpu: <unknown>/80%, <unknown>/1k + 1 more...",
                    "<unset>",
                    "5",
                    "0",
                    "<unknown>",
                ],
            ),
            (
                ObjectKind::PodDisruptionBudget,
                json!({"metadata": {"name": "b"}, "spec": {"maxUnavailable": "50%"}}),
                vec!["b", "N/A", "50%", "0", "<unknown>"],
            ),
            (
                ObjectKind::CSIDriver,
                json!({"metadata": {"name": "d"}, "spec": {"podInfoOnMount": true, "volumeLifecycleModes": ["Ephemeral"]}}),
                vec!["d", "true", "true", "false", "<unset>", "false", "Ephemeral", "<unknown>"],
            ),
            (
                ObjectKind::RoleBinding,
                json!({"metadata": {"name": "b"}, "roleRef": {"kind": "Role", "name": "r"}, "subjects": [
                    {"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s", "namespace": "n"}]}),
                vec!["b", "Role/r", "<unknown>", "u", "", "n/s"],
            ),
            (
                ObjectKind::ResourceQuota,
                json!({"metadata": {"name": "q"}, "status": {"hard": {"cpu": "2", "limits.cpu": "4"}, "used": {"cpu": "1"}}}),
                vec!["q", "cpu: 1/2", "limits.cpu: 0/4", "<unknown>"],
            ),
            (
                ObjectKind::APIService,
                json!({"metadata": {"name": "v1.x"}, "spec": {"service": {"namespace": "n", "name": "s"}}}),
                vec!["v1.x", "n/s", "Unknown", "<unknown>"],
            ),
        ] {
            assert_eq!(row(kind, &object), expected, "{}", kind.as_str());
        }
    }

    #[test]
    fn every_table_has_a_row_for_an_empty_object() {
        for kind in ObjectKind::BUILT_IN {
            let table = table(*kind);
            assert_eq!(cells(table, &json!({}), Timestamp::default()).len(), table.len());
            assert_eq!(table[0].0, NAME);
        }
    }
}
