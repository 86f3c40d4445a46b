//! Rules of `spec` itself: policies, DNS, names, tolerations, host namespaces.
//!
//! Owns the order in which the parts of a spec are checked.

use std::collections::BTreeSet;

use super::{container, labels, resources, scheduling, security, volume};
use crate::model::api::pod::{PodDnsConfig, PodSpec, Toleration};
use crate::model::field_error::{Errors, Path};
use crate::model::names;

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCH_DOMAINS: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
const MAX_HOSTNAME: usize = 64;

pub(super) fn validate(spec: &PodSpec, at: &Path<'_>, errors: &mut Errors) {
    let volumes = volume::validate(&spec.volumes, &at.child("volumes"), errors);
    container::validate_all(spec, &volumes, at, errors);
    errors.one_of(&at.child("restartPolicy"), &spec.restart_policy, &["Always", "Never", "OnFailure"]);
    dns(spec, at, errors);
    labels(&spec.node_selector, &at.child("nodeSelector"), errors);
    security::pod(spec, at, errors);
    host_names(spec, at, errors);
    deadlines(spec, at, errors);
    references(spec, at, errors);
    tolerations(&spec.tolerations, &at.child("tolerations"), errors);
    for (index, gate) in spec.readiness_gates.iter().enumerate() {
        let gates = at.child("readinessGates");
        let gate_at = gates.index(index);
        errors.name(&gate_at.child("conditionType"), &gate.condition_type, names::qualified_name);
    }
    if let Some(os) = &spec.os {
        errors.one_of(&at.child("os").child("name"), &os.name, &["linux", "windows"]);
    }
    let policies = ["Never", "PreemptLowerPriority"];
    errors.optional_of(&at.child("preemptionPolicy"), spec.preemption_policy.as_deref(), &policies);
    if let Some(affinity) = &spec.affinity {
        scheduling::affinity(affinity, &at.child("affinity"), errors);
    }
    let spread_at = at.child("topologySpreadConstraints");
    scheduling::topology_spread(&spec.topology_spread_constraints, &spread_at, errors);
    scheduling::gates(&spec.scheduling_gates, &at.child("schedulingGates"), errors);
    if !spec.ephemeral_containers.is_empty() {
        errors.forbidden(&at.child("ephemeralContainers"), "cannot be set on create");
    }
    resources::validate_list(&spec.overhead, &at.child("overhead"), errors);
    resources::validate_pod_level(spec, &at.child("resources"), errors);
}

fn dns(spec: &PodSpec, at: &Path<'_>, errors: &mut Errors) {
    let policies = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
    errors.one_of(&at.child("dnsPolicy"), &spec.dns_policy, &policies);
    let config_at = at.child("dnsConfig");
    let alone = spec.dns_policy == "None";
    match &spec.dns_config {
        None if alone => errors.required(&config_at, "must provide `dnsConfig` when `dnsPolicy` is None"),
        None => {}
        Some(config) => {
            let servers_at = config_at.child("nameservers");
            if alone && config.nameservers.is_empty() {
                let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
                errors.required(&servers_at, detail);
            }
            dns_config(config, &config_at, errors);
        }
    }
}

fn dns_config(config: &PodDnsConfig, at: &Path<'_>, errors: &mut Errors) {
    let servers_at = at.child("nameservers");
    if config.nameservers.len() > MAX_NAMESERVERS {
        let detail = format!("must not have more than {MAX_NAMESERVERS} nameservers");
        errors.invalid_number(&servers_at, format_args!("{:?}", config.nameservers), detail);
    }
    for (index, server) in config.nameservers.iter().enumerate() {
        errors.all(&servers_at.index(index), server, names::ip(server));
    }
    let searches_at = at.child("searches");
    if config.searches.len() > MAX_SEARCH_DOMAINS {
        let detail = format!("must not have more than {MAX_SEARCH_DOMAINS} search paths");
        errors.invalid_number(&searches_at, format_args!("{:?}", config.searches), detail);
    }
    if config.searches.join(" ").len() > MAX_SEARCH_CHARS {
        let detail = format!(
            "must not have more than {MAX_SEARCH_CHARS} characters (including spaces) in the search list"
        );
        errors.invalid_number(&searches_at, format_args!("{:?}", config.searches), detail);
    }
    for (index, search) in config.searches.iter().enumerate() {
        errors.all(&searches_at.index(index), search, names::search_domain(search));
    }
    for (index, option) in config.options.iter().enumerate() {
        if option.name.is_empty() {
            errors.required(&at.child("options").index(index), "must not be empty");
        }
    }
}

fn host_names(spec: &PodSpec, at: &Path<'_>, errors: &mut Errors) {
    for (field, name) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        if !name.is_empty() {
            errors.all(&at.child(field), name, names::dns_label(name));
        }
    }
    if let Some(name) = &spec.hostname_override {
        let name_at = at.child("hostnameOverride");
        errors.all(&name_at, name, names::dns_subdomain(name));
        if name.len() > MAX_HOSTNAME {
            errors.invalid(&name_at, name, format!("must be no more than {MAX_HOSTNAME} characters"));
        }
        if spec.host_network {
            errors.forbidden(&name_at, "must not be set when `hostNetwork` is true");
        }
        if spec.set_hostname_as_fqdn == Some(true) {
            errors.forbidden(&name_at, "must not be set when `setHostnameAsFQDN` is true");
        }
    }
    let aliases_at = at.child("hostAliases");
    for (index, alias) in spec.host_aliases.iter().enumerate() {
        let alias_at = aliases_at.index(index);
        errors.all(&alias_at.child("ip"), &alias.ip, names::ip(&alias.ip));
        for (position, name) in alias.hostnames.iter().enumerate() {
            let names_at = alias_at.child("hostnames");
            errors.all(&names_at.index(position), name, names::dns_subdomain(name));
        }
    }
}

fn deadlines(spec: &PodSpec, at: &Path<'_>, errors: &mut Errors) {
    if let Some(seconds) = spec.active_deadline_seconds
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        let detail = format!("must be between 1 and {}, inclusive", i32::MAX);
        errors.invalid_number(&at.child("activeDeadlineSeconds"), seconds, detail);
    }
    let grace_at = at.child("terminationGracePeriodSeconds");
    errors.not_negative(&grace_at, spec.termination_grace_period_seconds.unwrap_or_default());
}

/// Names of other objects.
fn references(spec: &PodSpec, at: &Path<'_>, errors: &mut Errors) {
    let optional = [
        ("serviceAccountName", spec.service_account_name.as_str()),
        ("nodeName", spec.node_name.as_str()),
        ("priorityClassName", spec.priority_class_name.as_str()),
        ("schedulerName", spec.scheduler_name.as_str()),
    ];
    for (field, name) in optional.into_iter().filter(|(_, name)| !name.is_empty()) {
        errors.all(&at.child(field), name, names::dns_subdomain(name));
    }
    if let Some(name) = &spec.runtime_class_name {
        errors.all(&at.child("runtimeClassName"), name, names::dns_subdomain(name));
    }
    let secrets_at = at.child("imagePullSecrets");
    for (index, secret) in spec.image_pull_secrets.iter().enumerate() {
        errors.name(&secrets_at.index(index).child("name"), &secret.name, names::dns_subdomain);
    }
    let claims_at = at.child("resourceClaims");
    let mut claims = BTreeSet::new();
    for (index, claim) in spec.resource_claims.iter().enumerate() {
        let name = claim.get("name").and_then(serde_json::Value::as_str).unwrap_or_default();
        let name_at = claims_at.index(index);
        errors.name(&name_at.child("name"), name, names::dns_label);
        if !claims.insert(name) {
            errors.duplicate(&name_at.child("name"), name);
        }
    }
}

pub(super) fn tolerations(tolerations: &[Toleration], at: &Path<'_>, errors: &mut Errors) {
    for (index, toleration) in tolerations.iter().enumerate() {
        check_toleration(toleration, &at.index(index), errors);
    }
}

fn check_toleration(toleration: &Toleration, at: &Path<'_>, errors: &mut Errors) {
    let Toleration { key, operator, value, effect, toleration_seconds } = toleration;
    if !key.is_empty() {
        errors.all(&at.child("key"), key, names::qualified_name(key));
    } else if operator != "Exists" {
        let detail =
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.invalid(&at.child("operator"), operator, detail);
    }
    if toleration_seconds.is_some() && effect != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.invalid(&at.child("effect"), effect, detail);
    }
    match operator.as_str() {
        "" | "Equal" => errors.all(&at.child("operator"), value, names::label_value(value)),
        "Exists" => {
            if !value.is_empty() {
                let detail = "value must be empty when `operator` is 'Exists'";
                errors.invalid(&at.child("operator"), value, detail);
            }
        }
        other => errors.not_supported(&at.child("operator"), other, &["Equal", "Exists"]),
    }
    if !effect.is_empty() {
        errors.one_of(&at.child("effect"), effect, &["NoExecute", "NoSchedule", "PreferNoSchedule"]);
    }
}
