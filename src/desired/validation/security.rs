//! Rules of security contexts, host namespaces and sysctls.

use std::collections::BTreeSet;

use crate::model::api::pod::{PodSecurityContext, PodSpec, SeccompProfile, SecurityContext, Sysctl};
use crate::model::field_error::{Errors, Path};
use crate::model::names;

const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

/// The pod's own context and the namespaces it shares with the node.
pub(super) fn pod(spec: &PodSpec, at: &Path<'_>, errors: &mut Errors) {
    let context_at = at.child("securityContext");
    if let Some(context) = &spec.security_context {
        pod_context(context, spec, &context_at, errors);
    }
    if spec.host_pid && spec.share_process_namespace == Some(true) {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.invalid_number(&at.child("shareProcessNamespace"), true, detail);
    }
    if spec.host_users == Some(false) {
        for (field, is_set) in
            [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)]
        {
            if is_set {
                errors.forbidden(&at.child(field), "when `hostUsers` is false");
            }
        }
    }
}

fn pod_context(context: &PodSecurityContext, spec: &PodSpec, at: &Path<'_>, errors: &mut Errors) {
    ids(
        &[
            ("fsGroup", context.fs_group),
            ("runAsUser", context.run_as_user),
            ("runAsGroup", context.run_as_group),
        ],
        at,
        errors,
    );
    let groups_at = at.child("supplementalGroups");
    for (index, group) in context.supplemental_groups.iter().enumerate() {
        errors.all_number(&groups_at.index(index), group, names::id(*group));
    }
    for (field, value, supported) in [
        ("fsGroupChangePolicy", &context.fs_group_change_policy, ["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", &context.supplemental_groups_policy, ["Merge", "Strict"]),
        ("seLinuxChangePolicy", &context.se_linux_change_policy, ["MountOption", "Recursive"]),
    ] {
        errors.optional_of(&at.child(field), value.as_deref(), &supported);
    }
    profiles(context.seccomp_profile.as_ref(), context.app_armor_profile.as_ref(), at, errors);
    sysctls(&context.sysctls, spec, &at.child("sysctls"), errors);
}

fn ids(ids: &[(&str, Option<i64>)], at: &Path<'_>, errors: &mut Errors) {
    for (field, id) in ids {
        if let Some(id) = id {
            errors.all_number(&at.child(field), id, names::id(*id));
        }
    }
}

fn profiles(
    seccomp: Option<&SeccompProfile>,
    app_armor: Option<&SeccompProfile>,
    at: &Path<'_>,
    errors: &mut Errors,
) {
    for (field, words, profile) in
        [("seccompProfile", "seccomp", seccomp), ("appArmorProfile", "AppArmor", app_armor)]
    {
        let Some(profile) = profile else { continue };
        let profile_at = at.child(field);
        errors.one_of(&profile_at.child("type"), &profile.type_, &PROFILE_TYPES);
        let name_at = profile_at.child("localhostProfile");
        let name = profile.localhost_profile.as_deref();
        match (profile.type_.as_str(), name) {
            ("Localhost", None | Some("")) => {
                errors.required(&name_at, &format!("must be set when {words} type is Localhost"));
            }
            // AppArmor's name is that of a loaded profile; seccomp's is a file below the node's profile
            // directory.
            ("Localhost", Some(name)) if field == "seccompProfile" => {
                errors.all(&name_at, name, names::descending_path(name));
            }
            ("Localhost", Some(name)) => {
                if name.trim() != name {
                    errors.invalid(&name_at, name, "must not be padded with whitespace");
                }
            }
            (_, Some(name)) => {
                errors.invalid(&name_at, name, format!("can only be set when {words} type is Localhost"));
            }
            (_, None) => {}
        }
    }
}

fn sysctls(sysctls: &[Sysctl], spec: &PodSpec, at: &Path<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, sysctl) in sysctls.iter().enumerate() {
        let sysctl_at = at.index(index);
        let name_at = sysctl_at.child("name");
        errors.name(&name_at, &sysctl.name, names::sysctl);
        let name = sysctl.name.replace('/', ".");
        if spec.host_network && name.starts_with("net.") {
            errors.invalid(&name_at, &sysctl.name, "may not be specified when 'hostNetwork' is true");
        }
        let is_ipc = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];
        if spec.host_ipc && is_ipc.iter().any(|prefix| name.starts_with(prefix)) {
            errors.invalid(&name_at, &sysctl.name, "may not be specified when 'hostIPC' is true");
        }
        if !sysctl.name.is_empty() && !seen.insert(name) {
            errors.duplicate(&name_at, &sysctl.name);
        }
    }
}

pub(super) fn container(
    context: &SecurityContext,
    host_users: Option<bool>,
    at: &Path<'_>,
    errors: &mut Errors,
) {
    ids(&[("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group)], at, errors);
    profiles(context.seccomp_profile.as_ref(), context.app_armor_profile.as_ref(), at, errors);
    let mount_at = at.child("procMount");
    errors.optional_of(&mount_at, context.proc_mount.as_deref(), &["Default", "Unmasked"]);
    if context.proc_mount.as_deref() == Some("Unmasked") && host_users != Some(false) {
        errors.forbidden(&mount_at, "`hostUsers` must be false to use `Unmasked`");
    }
    if context.allow_privilege_escalation == Some(false) {
        if context.privileged == Some(true) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.invalid_number(at, "{}", detail);
        }
        let adds_admin =
            context.capabilities.iter().flat_map(|set| &set.add).any(|name| name == "CAP_SYS_ADMIN");
        if adds_admin {
            let detail =
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.invalid_number(at, "{}", detail);
        }
    }
}
