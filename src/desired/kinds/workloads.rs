//! Defaults, validation and immutable fields of the kinds that make pods (upstream: `apps/v1` and `batch/v1`, 1.36).
//!
//! Owns them. Pure.

mod jobs;

use serde_json::{Map, Value, json};

use super::KindRules;
use crate::desired::defaults::default_template_spec;
use crate::desired::validation::{labels, template_errors};
use crate::model::api::decode::decode;
use crate::model::api::pod::Pod;
use crate::model::field_error::{Errors, Path};
use crate::model::names;
use crate::model::objects::LocalObject;
use crate::model::selector::{selects, string_map};
pub(super) use jobs::{CRON_JOB, JOB};

const IMMUTABLE: &str = "field is immutable";
const NO_DEADLINE: i64 = 2_147_483_647;

pub(super) const DEPLOYMENT: KindRules = KindRules {
    defaults: |body| {
        let spec = spec_of(body);
        set(spec, "replicas", json!(1));
        set(spec, "revisionHistoryLimit", json!(10));
        set(spec, "progressDeadlineSeconds", json!(600));
        set(spec, "strategy", json!({}));
        let strategy = &mut spec["strategy"];
        set(strategy, "type", json!("RollingUpdate"));
        if strategy["type"] == "RollingUpdate" {
            set(strategy, "rollingUpdate", json!({}));
            set(&mut strategy["rollingUpdate"], "maxUnavailable", json!("25%"));
            set(&mut strategy["rollingUpdate"], "maxSurge", json!("25%"));
        }
        default_template(&mut spec["template"]);
    },
    validate: deployment,
    validate_update: immutable_selector,
};

pub(super) const REPLICA_SET: KindRules = KindRules {
    defaults: |body| {
        let spec = spec_of(body);
        set(spec, "replicas", json!(1));
        default_template(&mut spec["template"]);
    },
    validate: |_, body, errors| {
        let at = Path::Root("spec");
        counts(&body["spec"], &at, &["replicas", "minReadySeconds"], errors);
        selector_and_template(&body["spec"], &at, "ReplicaSet", errors);
    },
    validate_update: immutable_selector,
};

pub(super) const DAEMON_SET: KindRules = KindRules {
    defaults: |body| {
        let spec = spec_of(body);
        set(spec, "revisionHistoryLimit", json!(10));
        set(spec, "updateStrategy", json!({}));
        let strategy = &mut spec["updateStrategy"];
        set(strategy, "type", json!("RollingUpdate"));
        if strategy["type"] == "RollingUpdate" {
            set(strategy, "rollingUpdate", json!({}));
            set(&mut strategy["rollingUpdate"], "maxUnavailable", json!(1));
            set(&mut strategy["rollingUpdate"], "maxSurge", json!(0));
        }
        default_template(&mut spec["template"]);
    },
    validate: |_, body, errors| {
        let (spec, at) = (&body["spec"], Path::Root("spec"));
        counts(spec, &at, &["minReadySeconds", "revisionHistoryLimit"], errors);
        selector_and_template(spec, &at, "DaemonSet", errors);
        let at = at.child("updateStrategy");
        strategy(&spec["updateStrategy"], &at, "OnDelete", errors);
        let rolling = &spec["updateStrategy"]["rollingUpdate"];
        if is_zero(&rolling["maxUnavailable"]) && is_zero(&rolling["maxSurge"]) && rolling.is_object() {
            let at = at.child("rollingUpdate");
            errors.required(&at.child("maxUnavailable"), "cannot be 0 when maxSurge is 0");
        }
    },
    validate_update: immutable_selector,
};

pub(super) const STATEFUL_SET: KindRules = KindRules {
    defaults: |body| {
        let spec = spec_of(body);
        set(spec, "replicas", json!(1));
        set(spec, "revisionHistoryLimit", json!(10));
        set(spec, "podManagementPolicy", json!("OrderedReady"));
        set(spec, "updateStrategy", json!({}));
        set(&mut spec["updateStrategy"], "type", json!("RollingUpdate"));
        if spec["updateStrategy"]["type"] == "RollingUpdate" {
            set(&mut spec["updateStrategy"], "rollingUpdate", json!({}));
            set(&mut spec["updateStrategy"]["rollingUpdate"], "partition", json!(0));
        }
        set(spec, "persistentVolumeClaimRetentionPolicy", json!({}));
        for when in ["whenDeleted", "whenScaled"] {
            set(&mut spec["persistentVolumeClaimRetentionPolicy"], when, json!("Retain"));
        }
        let claims = spec.get_mut("volumeClaimTemplates").and_then(Value::as_array_mut);
        for claim in claims.into_iter().flatten().filter(|claim| claim.is_object()) {
            set(claim, "apiVersion", json!("v1"));
            set(claim, "kind", json!("PersistentVolumeClaim"));
            set(claim, "status", json!({"phase": "Pending"}));
            set(claim, "spec", json!({}));
            set(&mut claim["spec"], "volumeMode", json!("Filesystem"));
        }
        default_template(&mut spec["template"]);
    },
    validate: stateful_set,
    validate_update: |old, new, errors| {
        const MUTABLE: [&str; 7] = [
            "replicas",
            "ordinals",
            "template",
            "updateStrategy",
            "revisionHistoryLimit",
            "persistentVolumeClaimRetentionPolicy",
            "minReadySeconds",
        ];
        let rest = |body: &Value| {
            let mut spec = body["spec"].as_object().cloned().unwrap_or_default();
            spec.retain(|field, _| !MUTABLE.contains(&field.as_str()));
            spec
        };
        if rest(old) != rest(new) {
            let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
            errors.forbidden(&Path::Root("spec"), detail);
        }
    },
};

/// Fills in what the API server's defaulting fills in in the template of a pod. One that does not decode stays as it is:
/// validation reports it.
pub(crate) fn default_template(template: &mut Value) {
    let Ok(mut pod) = decode_template(template) else { return };
    default_template_spec(&mut pod.spec);
    let mut parts = json!({"metadata": pod.metadata, "spec": pod.spec});
    if parts["metadata"].as_object().is_some_and(Map::is_empty) {
        parts["metadata"] = json!({});
    }
    *template = parts;
}

/// The template as a pod without a name.
fn decode_template(template: &Value) -> Result<Pod, String> {
    let parts = json!({"metadata": template["metadata"], "spec": template["spec"]});
    decode::<Pod>(parts).map(|decoded| decoded.object).map_err(|error| error.to_string())
}

/// The spec, which every one of them has.
fn spec_of(body: &mut Value) -> &mut Value {
    if !body["spec"].is_object() {
        body["spec"] = json!({});
    }
    &mut body["spec"]
}

fn set(value: &mut Value, field: &str, default: Value) {
    if let Some(members) = value.as_object_mut() {
        members.entry(field).or_insert(default);
    }
}

fn is_zero(amount: &Value) -> bool {
    amount == 0 || amount == "0%"
}

/// Numbers that are not negative.
fn counts(spec: &Value, at: &Path<'_>, fields: &[&str], errors: &mut Errors) {
    for field in fields {
        if let Some(number) = spec[*field].as_i64() {
            errors.not_negative(&at.child(field), number);
        }
    }
}

/// A number or a percentage, not negative.
fn amount(value: &Value, at: &Path<'_>, errors: &mut Errors) {
    if let Some(number) = value.as_i64() {
        errors.not_negative(at, number);
    } else if let Some(text) = value.as_str() {
        let digits = text.strip_suffix('%').unwrap_or_default();
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            let detail = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
            errors.invalid(at, text, detail);
        }
    }
}

fn strategy(strategy: &Value, at: &Path<'_>, other: &str, errors: &mut Errors) {
    let kind = strategy["type"].as_str().unwrap_or_default();
    errors.one_of(&at.child("type"), kind, &[other, "RollingUpdate"]);
    let rolling = at.child("rollingUpdate");
    for field in ["maxUnavailable", "maxSurge"] {
        let (value, at) = (&strategy["rollingUpdate"][field], rolling.child(field));
        amount(value, &at, errors);
        let percent = value.as_str().and_then(|text| text.strip_suffix('%')?.parse::<i64>().ok());
        if field == "maxUnavailable" && percent.is_some_and(|percent| percent > 100) {
            errors.invalid(&at, value.as_str().unwrap_or_default(), "must not be greater than 100%");
        }
    }
}

fn deployment(_: &LocalObject, body: &Value, errors: &mut Errors) {
    let (spec, at) = (&body["spec"], Path::Root("spec"));
    counts(spec, &at, &["replicas", "minReadySeconds", "revisionHistoryLimit"], errors);
    selector_and_template(spec, &at, "deployment", errors);
    let strategy_at = at.child("strategy");
    strategy(&spec["strategy"], &strategy_at, "Recreate", errors);
    let rolling = &spec["strategy"]["rollingUpdate"];
    let rolling_at = strategy_at.child("rollingUpdate");
    if spec["strategy"]["type"] == "Recreate" && !rolling.is_null() {
        errors.forbidden(&rolling_at, "may not be specified when strategy `type` is 'Recreate'");
    }
    if is_zero(&rolling["maxUnavailable"]) && is_zero(&rolling["maxSurge"]) {
        let unavailable = &rolling["maxUnavailable"];
        errors.invalid_number(
            &rolling_at.child("maxUnavailable"),
            unavailable,
            "may not be 0 when `maxSurge` is 0",
        );
    }
    let (deadline_at, deadline) =
        (at.child("progressDeadlineSeconds"), spec["progressDeadlineSeconds"].as_i64());
    if let Some(deadline) = deadline {
        errors.not_negative(&deadline_at, deadline);
        let ready = spec["minReadySeconds"].as_i64().unwrap_or_default();
        if deadline <= ready && deadline != NO_DEADLINE {
            errors.invalid_number(&deadline_at, deadline, "must be greater than minReadySeconds");
        }
    }
}

fn stateful_set(_: &LocalObject, body: &Value, errors: &mut Errors) {
    let (spec, at) = (&body["spec"], Path::Root("spec"));
    counts(spec, &at, &["replicas", "minReadySeconds", "revisionHistoryLimit"], errors);
    let start = spec["ordinals"]["start"].as_i64().unwrap_or_default();
    errors.not_negative(&at.child("ordinals").child("start"), start);
    let policy = spec["podManagementPolicy"].as_str().unwrap_or_default();
    errors.one_of(&at.child("podManagementPolicy"), policy, &["OrderedReady", "Parallel"]);
    let strategy_at = at.child("updateStrategy");
    strategy(&spec["updateStrategy"], &strategy_at, "OnDelete", errors);
    let rolling_at = strategy_at.child("rollingUpdate");
    if let Some(partition) = spec["updateStrategy"]["rollingUpdate"]["partition"].as_i64() {
        errors.not_negative(&rolling_at.child("partition"), partition);
    }
    let retention_at = at.child("persistentVolumeClaimRetentionPolicy");
    for when in ["whenDeleted", "whenScaled"] {
        let policy = spec["persistentVolumeClaimRetentionPolicy"][when].as_str();
        errors.optional_of(&retention_at.child(when), policy, &["Delete", "Retain"]);
    }
    let claims_at = at.child("volumeClaimTemplates");
    let mut names = Vec::new();
    for (index, claim) in spec["volumeClaimTemplates"].as_array().into_iter().flatten().enumerate() {
        let one = claims_at.index(index);
        let (name, at) = (claim["metadata"]["name"].as_str().unwrap_or_default(), one.child("metadata"));
        errors.name(&at.child("name"), name, names::dns_label);
        if names.contains(&name) {
            errors.duplicate(&at.child("name"), name);
        }
        names.push(name);
    }
    selector_and_template(&with_claims(spec, &names), &at, "statefulset", errors);
}

/// The spec with the volumes that the claims become in its pods: containers may mount them.
fn with_claims(spec: &Value, names: &[&str]) -> Value {
    let mut spec = spec.clone();
    let own = spec.pointer_mut("/template/spec").and_then(Value::as_object_mut);
    let volumes = own.map(|own| own.entry("volumes").or_insert_with(|| json!([])));
    if let Some(volumes) = volumes.and_then(Value::as_array_mut) {
        for name in names {
            volumes.retain(|volume| volume["name"] != *name);
            volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
        }
    }
    spec
}

/// The selector, the template, and that the one selects the other. Pods of these kinds run for ever.
fn selector_and_template(spec: &Value, at: &Path<'_>, kind: &str, errors: &mut Errors) {
    let selector_at = at.child("selector");
    selector(&spec["selector"], &selector_at, errors);
    if spec["selector"].is_null() {
        errors.required(&selector_at, "");
    } else if is_empty(&spec["selector"]) {
        let detail = format!("empty selector is invalid for {kind}");
        errors.invalid_number(&selector_at, &spec["selector"], detail);
    }
    template(&spec["template"], &spec["selector"], at, errors);
    let template_at = at.child("template");
    let spec_at = template_at.child("spec");
    let policy = spec["template"]["spec"]["restartPolicy"].as_str().unwrap_or_default();
    if !matches!(policy, "" | "Always") {
        errors.not_supported(&spec_at.child("restartPolicy"), policy, &["Always"]);
    }
    if !spec["template"]["spec"]["activeDeadlineSeconds"].is_null() {
        let name = match kind {
            "deployment" => "ReplicaSet",
            "statefulset" => "StatefulSet",
            kind => kind,
        };
        let detail = format!("activeDeadlineSeconds in {name} is not Supported");
        errors.forbidden(&spec_at.child("activeDeadlineSeconds"), &detail);
    }
}

fn is_empty(selector: &Value) -> bool {
    let has = |field: &str| match &selector[field] {
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    !has("matchLabels") && !has("matchExpressions")
}

/// The template of a pod, and that the selector selects it.
fn template(template: &Value, selector: &Value, at: &Path<'_>, errors: &mut Errors) {
    let template_at = at.child("template");
    let pod = match decode_template(template) {
        Ok(pod) => pod,
        Err(why) => return errors.invalid(&template_at, "", why),
    };
    let metadata_at = template_at.child("metadata");
    let own = &pod.metadata.labels;
    if selector.is_object() && !is_empty(selector) && !selects(selector, own) {
        let detail = "`selector` does not match template `labels`";
        errors.invalid_number(&metadata_at.child("labels"), json!(own), detail);
    }
    template_errors(&pod, &metadata_at, &template_at.child("spec"), errors);
}

/// Upstream: `ValidateLabelSelector`.
fn selector(selector: &Value, at: &Path<'_>, errors: &mut Errors) {
    let pairs = string_map(&selector["matchLabels"]);
    labels(&pairs, &at.child("matchLabels"), errors);
    let expressions_at = at.child("matchExpressions");
    for (index, requirement) in selector["matchExpressions"].as_array().into_iter().flatten().enumerate() {
        let at = expressions_at.index(index);
        let key = requirement["key"].as_str().unwrap_or_default();
        let operator = requirement["operator"].as_str().unwrap_or_default();
        let values = requirement["values"].as_array().map_or(0, Vec::len);
        match operator {
            "In" | "NotIn" if values == 0 => {
                errors.required(&at.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if values > 0 => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.forbidden(&at.child("values"), detail);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&at.child("operator"), other, "not a valid selector operator"),
        }
        errors.all(&at.child("key"), key, names::qualified_name(key));
    }
}

fn immutable_selector(old: &Value, new: &Value, errors: &mut Errors) {
    immutable(old, new, "selector", errors);
}

fn immutable(old: &Value, new: &Value, field: &str, errors: &mut Errors) {
    let (old, new) = (&old["spec"][field], &new["spec"][field]);
    if old != new {
        errors.invalid_number(&Path::Root("spec").child(field), new, IMMUTABLE);
    }
}

#[cfg(test)]
mod tests;
