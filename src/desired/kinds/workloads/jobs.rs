//! Jobs and CronJobs.

use serde_json::{Value, json};

use super::{KindRules, counts, default_template, immutable, selector, set, spec_of, template};
use crate::model::cron::Schedule;
use crate::model::field_error::{Errors, Path};
use crate::model::objects::LocalObject;

const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_PARALLEL_INDEXED: i64 = 100_000;
const MAX_COMPLETIONS_PER_INDEX: i64 = 100_000;
/// The time of the run is added to the name of a CronJob.
const MAX_CRON_NAME: usize = 52;
const NO_LIMIT: i64 = 2_147_483_647;

pub(crate) const JOB: KindRules = KindRules {
    defaults: |body| {
        let spec = spec_of(body);
        if spec["completions"].is_null() && spec["parallelism"].is_null() {
            spec["completions"] = json!(1);
        }
        set(spec, "parallelism", json!(1));
        let limit = if spec["backoffLimitPerIndex"].is_null() { 6 } else { NO_LIMIT };
        set(spec, "backoffLimit", json!(limit));
        set(spec, "completionMode", json!("NonIndexed"));
        set(spec, "suspend", json!(false));
        set(spec, "manualSelector", json!(false));
        let has_policy = spec["podFailurePolicy"].is_object();
        let replacement = if has_policy { "Failed" } else { "TerminatingOrFailed" };
        set(spec, "podReplacementPolicy", json!(replacement));
        let rules = spec.pointer_mut("/podFailurePolicy/rules").and_then(Value::as_array_mut);
        for rule in rules.into_iter().flatten() {
            let patterns = rule.get_mut("onPodConditions").and_then(Value::as_array_mut);
            patterns.into_iter().flatten().for_each(|pattern| set(pattern, "status", json!("True")));
        }
        default_template(&mut spec["template"]);
    },
    validate: |_, body, errors| {
        job(&body["spec"], &Path::Root("spec"), errors);
        own_selector(&body["spec"], errors);
    },
    validate_update: job_update,
};

pub(crate) const CRON_JOB: KindRules = KindRules {
    defaults: |body| {
        let spec = spec_of(body);
        set(spec, "concurrencyPolicy", json!("Allow"));
        set(spec, "suspend", json!(false));
        set(spec, "successfulJobsHistoryLimit", json!(3));
        set(spec, "failedJobsHistoryLimit", json!(1));
        if let Some(template) = spec.pointer_mut("/jobTemplate/spec/template") {
            default_template(template);
        }
    },
    validate: cron_job,
    validate_update: |_, _, _| {},
};

fn job(spec: &Value, at: &Path<'_>, errors: &mut Errors) {
    let fields = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    counts(spec, at, &fields, errors);
    let mode = spec["completionMode"].as_str();
    errors.optional_of(&at.child("completionMode"), mode, &["Indexed", "NonIndexed"]);
    let is_indexed = mode == Some("Indexed");
    if is_indexed {
        if spec["completions"].is_null() {
            let detail = "when completion mode is Indexed";
            errors.required(&at.child("completions"), detail);
        }
        let parallelism = spec["parallelism"].as_i64().unwrap_or_default();
        if parallelism > MAX_PARALLEL_INDEXED {
            let detail = format!(
                "must be less than or equal to {MAX_PARALLEL_INDEXED} when completion mode is Indexed"
            );
            errors.invalid_number(&at.child("parallelism"), parallelism, detail);
        }
    }
    per_index(spec, at, is_indexed, errors);
    let replacement = spec["podReplacementPolicy"].as_str();
    let policies: &[&str] =
        if spec["podFailurePolicy"].is_object() { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    errors.optional_of(&at.child("podReplacementPolicy"), replacement, policies);
    selector(&spec["selector"], &at.child("selector"), errors);
    // The labels of the template are added with the selector.
    let wanted = if spec["manualSelector"] == true { &spec["selector"] } else { &Value::Null };
    template(&spec["template"], wanted, at, errors);
    let template_at = at.child("template");
    let spec_at = template_at.child("spec");
    let restart_at = spec_at.child("restartPolicy");
    let restart = spec["template"]["spec"]["restartPolicy"].as_str().unwrap_or_default();
    if !matches!(restart, "OnFailure" | "Never") {
        errors.not_supported(&restart_at, restart, &["OnFailure", "Never"]);
    }
    if spec["podFailurePolicy"].is_object() {
        if restart != "Never" {
            let detail = "only \"Never\" is supported when podFailurePolicy is specified";
            errors.invalid(&restart_at, restart, detail);
        }
        failure_policy(spec, &at.child("podFailurePolicy"), errors);
    }
    if spec["successPolicy"].is_object() {
        success_policy(spec, &at.child("successPolicy"), is_indexed, errors);
    }
}

fn per_index(spec: &Value, at: &Path<'_>, is_indexed: bool, errors: &mut Errors) {
    let limit = &spec["backoffLimitPerIndex"];
    if !limit.is_null() && !is_indexed {
        errors.invalid_number(&at.child("backoffLimitPerIndex"), limit, "requires indexed completion mode");
    }
    if !spec["maxFailedIndexes"].is_null() && limit.is_null() {
        let detail = "when maxFailedIndexes is specified";
        errors.required(&at.child("backoffLimitPerIndex"), detail);
    }
    let completions = spec["completions"].as_i64().unwrap_or_default();
    if !limit.is_null() && completions > MAX_COMPLETIONS_PER_INDEX && spec["maxFailedIndexes"].is_null() {
        let detail = "must be specified when completions is above 100000";
        errors.required(&at.child("maxFailedIndexes"), detail);
    }
}

fn failure_policy(spec: &Value, at: &Path<'_>, errors: &mut Errors) {
    let rules = spec["podFailurePolicy"]["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rules_at = at.child("rules");
    if rules.len() > MAX_RULES {
        errors.too_many(&rules_at, rules.len(), MAX_RULES);
    }
    for (index, rule) in rules.iter().enumerate() {
        let at = rules_at.index(index);
        let mut actions = vec!["Count", "FailJob", "Ignore"];
        if !spec["backoffLimitPerIndex"].is_null() {
            actions.push("FailIndex");
        }
        errors.one_of(&at.child("action"), rule["action"].as_str().unwrap_or_default(), &actions);
        let conditions = rule["onPodConditions"].as_array().is_some_and(|patterns| !patterns.is_empty());
        if conditions == rule["onExitCodes"].is_object() {
            let detail = if conditions {
                "specifying both OnExitCodes and OnPodConditions is not supported"
            } else {
                "specifying one of OnExitCodes and OnPodConditions is required"
            };
            errors.invalid_number(&at, rule, detail);
        }
        if rule["onExitCodes"].is_object() {
            exit_codes(&rule["onExitCodes"], spec, &at.child("onExitCodes"), errors);
        }
    }
}

fn exit_codes(wanted: &Value, spec: &Value, at: &Path<'_>, errors: &mut Errors) {
    let operator = wanted["operator"].as_str().unwrap_or_default();
    errors.one_of(&at.child("operator"), operator, &["In", "NotIn"]);
    if let Some(name) = wanted["containerName"].as_str() {
        let containers =
            ["containers", "initContainers"].map(|list| spec["template"]["spec"][list].as_array());
        let is_there = containers.into_iter().flatten().flatten().any(|container| container["name"] == name);
        if !is_there {
            let detail = "must be one of the container or initContainer names in the pod template";
            errors.invalid(&at.child("containerName"), name, detail);
        }
    }
    let values_at = at.child("values");
    let values: Vec<i64> =
        wanted["values"].as_array().into_iter().flatten().filter_map(Value::as_i64).collect();
    if values.is_empty() {
        errors.invalid_number(&values_at, &wanted["values"], "at least one value is required");
    } else if values.len() > MAX_EXIT_CODES {
        errors.too_many(&values_at, values.len(), MAX_EXIT_CODES);
    }
    if !values.is_sorted() {
        errors.invalid_number(&values_at, &wanted["values"], "must be ordered");
    }
    for (index, value) in values.iter().enumerate() {
        if *value == 0 && operator == "In" {
            errors.invalid_number(&values_at.index(index), value, "must not be 0 for the In operator");
        }
        if index > 0 && values[index - 1] == *value {
            errors.duplicate(&values_at.index(index), &value.to_string());
        }
    }
}

fn success_policy(spec: &Value, at: &Path<'_>, is_indexed: bool, errors: &mut Errors) {
    if !is_indexed {
        errors.invalid_number(at, &spec["successPolicy"], "requires indexed completion mode");
    }
    let rules = spec["successPolicy"]["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rules_at = at.child("rules");
    if rules.is_empty() {
        errors
            .required(&rules_at, "at least one rules must be specified when the successPolicy is specified");
    }
    if rules.len() > MAX_RULES {
        errors.too_many(&rules_at, rules.len(), MAX_RULES);
    }
    let completions = spec["completions"].as_i64().unwrap_or_default();
    for (index, rule) in rules.iter().enumerate() {
        let at = rules_at.index(index);
        let (indexes, count) = (rule["succeededIndexes"].as_str(), rule["succeededCount"].as_i64());
        if indexes.is_none() && count.is_none() {
            errors.required(&at, "at least one of succeededCount or succeededIndexes must be specified");
        }
        if let Some(count) = count {
            counts(rule, &at, &["succeededCount"], errors);
            if count > completions {
                let detail = format!(
                    "must be less than or equal to {completions} (the number of specified completions)"
                );
                errors.invalid_number(&at.child("succeededCount"), count, detail);
            }
        }
        if let Some(text) = indexes {
            let is_good = text.split(',').all(|part| {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                let pair = first.parse::<i64>().ok().zip(last.parse::<i64>().ok());
                pair.is_some_and(|(first, last)| 0 <= first && first <= last && last < completions)
            });
            if !is_good {
                let detail = "error parsing succeededIndexes: expected indexes below completions, for example \"0,2-4\"";
                errors.invalid(&at.child("succeededIndexes"), text, detail);
            }
        }
    }
}

/// A selector that the user wrote, without saying so.
fn own_selector(spec: &Value, errors: &mut Errors) {
    let at = Path::Root("spec");
    let at = at.child("selector");
    let selector = &spec["selector"];
    if spec["manualSelector"] == true {
        if selector.is_null() {
            errors.required(&at, "");
        }
        return;
    }
    let labels = &selector["matchLabels"];
    let is_generated = ["batch.kubernetes.io/controller-uid", "controller-uid"]
        .iter()
        .any(|label| labels[*label].as_str().is_some_and(|uid| !uid.is_empty()));
    if selector.is_object() && !is_generated {
        errors.invalid_number(&at, selector, "`selector` not auto-generated");
    }
}

fn job_update(old: &Value, new: &Value, errors: &mut Errors) {
    let (was, is) = (&old["spec"], &new["spec"]);
    let is_elastic = is["completionMode"] == "Indexed" && is["completions"] == is["parallelism"];
    if was["completions"] != is["completions"] && !is_elastic {
        let at = Path::Root("spec");
        if is["completionMode"] == "Indexed" && was["completions"] != was["parallelism"] {
            errors.invalid_number(&at.child("completions"), &is["completions"], super::IMMUTABLE);
        } else {
            let detail = if is["completionMode"] == "Indexed" {
                "can only be modified in tandem with spec.parallelism"
            } else {
                super::IMMUTABLE
            };
            errors.invalid_number(&at.child("completions"), &is["completions"], detail);
        }
    }
    for field in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"]
    {
        immutable(old, new, field, errors);
    }
    // The controller adds the selector and its labels to a new Job.
    if !was["selector"].is_null() {
        immutable(old, new, "selector", errors);
    }
    let has_begun = !old["status"]["startTime"].is_null();
    let may_change = was["suspend"] == true && !has_begun;
    if fixed(&was["template"], may_change) != fixed(&is["template"], may_change) {
        let at = Path::Root("spec");
        errors.invalid_number(&at.child("template"), &is["template"], super::IMMUTABLE);
    }
}

/// The part of a template that may not change; less of one that waits for its start.
fn fixed(template: &Value, may_change: bool) -> Value {
    let mut template = template.clone();
    if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.retain(|name, _| !name.ends_with("controller-uid") && !name.ends_with("job-name"));
        if labels.is_empty()
            && let Some(metadata) = template["metadata"].as_object_mut()
        {
            metadata.remove("labels");
        }
    }
    if !may_change {
        return template;
    }
    if let Some(metadata) = template["metadata"].as_object_mut() {
        metadata.retain(|field, _| !matches!(field.as_str(), "labels" | "annotations"));
    }
    if let Some(spec) = template["spec"].as_object_mut() {
        let scheduling = ["nodeSelector", "tolerations", "affinity", "schedulingGates"];
        spec.retain(|field, _| !scheduling.contains(&field.as_str()));
        for list in ["containers", "initContainers"] {
            let containers = spec.get_mut(list).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
                container.remove("resources");
            }
        }
    }
    template
}

fn cron_job(object: &LocalObject, body: &Value, errors: &mut Errors) {
    let name = &object.key.name;
    if name.len() > MAX_CRON_NAME {
        let detail = format!("must be no more than {MAX_CRON_NAME} characters");
        errors.invalid(&Path::Root("metadata").child("name"), name, detail);
    }
    let (spec, at) = (&body["spec"], Path::Root("spec"));
    let fields = ["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"];
    counts(spec, &at, &fields, errors);
    let (line, line_at) = (spec["schedule"].as_str().unwrap_or_default(), at.child("schedule"));
    if line.is_empty() {
        errors.required(&line_at, "");
    } else if line.contains("TZ") {
        let detail = if spec["timeZone"].is_null() {
            "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        } else {
            "cannot use both timeZone field and TZ or CRON_TZ in schedule"
        };
        errors.invalid(&line_at, line, detail);
    } else if let Err(why) = Schedule::parse(line) {
        errors.invalid(&line_at, line, why);
    }
    let policy = spec["concurrencyPolicy"].as_str().unwrap_or_default();
    errors.one_of(&at.child("concurrencyPolicy"), policy, &["Allow", "Forbid", "Replace"]);
    if let Some(zone) = spec["timeZone"].as_str() {
        let zone_at = at.child("timeZone");
        if zone.is_empty() {
            errors.invalid(&zone_at, zone, "timeZone must be nil or non-empty string");
        } else if zone.eq_ignore_ascii_case("local") || !is_zone_name(zone) {
            let detail =
                "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
            errors.invalid(&zone_at, zone, detail);
        }
    }
    let template_at = at.child("jobTemplate");
    job(&spec["jobTemplate"]["spec"], &template_at.child("spec"), errors);
    if spec["jobTemplate"]["spec"]["manualSelector"] == true {
        let detail = "supported values: nil, false";
        let spec_at = template_at.child("spec");
        errors.invalid_number(&spec_at.child("manualSelector"), true, detail);
    }
}

/// A name, and no path to another file.
fn is_zone_name(zone: &str) -> bool {
    let is_part = |part: &str| {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'+');
        !part.is_empty() && part.bytes().all(is_good)
    };
    zone.len() <= 64 && zone.split('/').all(is_part)
}
