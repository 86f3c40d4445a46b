//! Tables for security contexts: settings of container, pod, image and node, and their result.

use super::*;
use crate::model::api::decode::decode;
use crate::model::observed::ObservedContainer;
use serde_json::{Value, json};

fn pod(shared: &Value, own: &Value) -> Pod {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
        "spec": {"securityContext": shared, "containers": [{"name": "c", "securityContext": own}]},
    });
    decode::<Pod>(pod).unwrap().object
}

fn security(shared: &Value, own: &Value, image: &ImageStatus) -> ContainerSecurity {
    let pod = pod(shared, own);
    let defaults = SecurityDefaults { seccomp_default: true, seccomp_root: "/r/seccomp".into() };
    container_security(&pod, &pod.spec.containers[0], image, &[8], &defaults, SecurityIds::default())
}

#[test]
fn the_containers_choice_comes_before_the_pods_and_the_images() {
    let image = ImageStatus { uid: Some(7), ..Default::default() };
    let none = json!({});
    let shared = json!({"runAsUser": 1, "runAsGroup": 2, "fsGroup": 9, "supplementalGroups": [3],
        "seccompProfile": {"type": "Unconfined"}});
    let own = json!({"runAsUser": 5, "allowPrivilegeEscalation": false,
        "seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"}});
    let both = security(&shared, &own, &image);
    assert_eq!((both.run_as_user, both.run_as_group), (Some(5), Some(2)));
    assert_eq!(both.supplemental_groups, [9, 8, 3]);
    assert_eq!(both.seccomp, SeccompChoice::Localhost("/r/seccomp/p.json".into()));
    assert!(both.no_new_privs);
    let by_pod = security(&shared, &none, &image);
    assert_eq!((by_pod.run_as_user, by_pod.seccomp), (Some(1), SeccompChoice::Unconfined));
    let by_image = security(&none, &none, &image);
    assert_eq!((by_image.run_as_user, by_image.seccomp), (Some(7), SeccompChoice::RuntimeDefault));
    let named = ImageStatus { username: "www".into(), ..Default::default() };
    let by_name = security(&none, &none, &named);
    assert_eq!((by_name.run_as_user, by_name.run_as_username.as_str()), (None, "www"));
    assert!(by_name.masked_paths.contains(&"/proc/kcore".to_owned()));
    assert!(security(&none, &json!({"procMount": "Unmasked"}), &named).masked_paths.is_empty());
}

#[test]
fn run_as_non_root_refuses_root_like_upstream() {
    let check = |own: Value, uid: Option<i64>, username: &str| {
        let pod = pod(&json!({"runAsNonRoot": true}), &own);
        let image = ImageStatus { uid, username: username.into(), ..Default::default() };
        let checked = check_run_as_non_root(&pod, &pod.spec.containers[0], &image);
        checked.map_err(|error| error.to_string())
    };
    assert_eq!(check(json!({"runAsUser": 5}), Some(0), ""), Ok(()));
    assert_eq!(check(json!({"runAsNonRoot": false}), Some(0), ""), Ok(()));
    assert_eq!(check(json!({}), Some(33), ""), Ok(()));
    let end = "(pod: \"web_ns(u)\", container: c)";
    let refused = |words: &str| Err(format!("{words} {end}"));
    assert_eq!(
        check(json!({"runAsUser": 0}), Some(33), ""),
        refused("container's runAsUser breaks non-root policy")
    );
    for uid in [Some(0), None] {
        assert_eq!(
            check(json!({}), uid, ""),
            refused("container has runAsNonRoot and image will run as root")
        );
    }
    assert_eq!(
        check(json!({}), None, "www"),
        refused(
            "container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root"
        )
    );
}

fn own_and_shared(field: &str, shared: &Value, own: &Value) -> ContainerSecurity {
    let set = |value: &Value| if value.is_null() { json!({}) } else { json!({ field: value }) };
    security(&set(shared), &set(own), &ImageStatus::default())
}

#[test]
fn apparmor_profile_is_container_then_pod_then_runtime_default() {
    let localhost = json!({"type": "Localhost", "localhostProfile": "web"});
    let (default, unconfined) = (json!({"type": "RuntimeDefault"}), json!({"type": "Unconfined"}));
    for (shared, own, expected) in [
        (Value::Null, Value::Null, None),
        (default.clone(), Value::Null, Some(AppArmorChoice::RuntimeDefault)),
        (default, localhost, Some(AppArmorChoice::Localhost("web".into()))),
        (Value::Null, unconfined, Some(AppArmorChoice::Unconfined)),
    ] {
        assert_eq!(own_and_shared("appArmorProfile", &shared, &own).apparmor, expected, "{shared} {own}");
    }
}

#[test]
fn apparmor_annotation_ranks_between_container_and_pod() {
    for (annotation, own, expected) in [
        ("runtime/default", json!({}), Some(AppArmorChoice::RuntimeDefault)),
        ("localhost/web", json!({}), Some(AppArmorChoice::Localhost("web".into()))),
        (
            "unconfined",
            json!({"appArmorProfile": {"type": "RuntimeDefault"}}),
            Some(AppArmorChoice::RuntimeDefault),
        ),
        ("nonsense", json!({}), Some(AppArmorChoice::Unconfined)),
    ] {
        let mut pod = pod(&json!({"appArmorProfile": {"type": "Unconfined"}}), &own);
        let key = "container.apparmor.security.beta.kubernetes.io/c".to_owned();
        pod.metadata.annotations.insert(key, annotation.to_owned());
        assert_eq!(apparmor(&pod, &pod.spec.containers[0]), expected, "{annotation}");
    }
}

#[test]
fn a_containers_selinux_label_replaces_the_pods_as_a_whole() {
    let label = |level: &str, type_: &str| {
        Some(SelinuxLabel { level: level.into(), type_: type_.into(), ..SelinuxLabel::default() })
    };
    for (shared, own, expected) in [
        (Value::Null, Value::Null, None),
        (json!({"level": "s0:c1"}), Value::Null, label("s0:c1", "")),
        (json!({"level": "s0:c1"}), json!({"type": "spc_t"}), label("", "spc_t")),
        (Value::Null, json!({}), label("", "")),
    ] {
        assert_eq!(own_and_shared("seLinuxOptions", &shared, &own).selinux, expected, "{shared} {own}");
    }
}

#[test]
fn seccomp_is_the_containers_then_the_pods_then_the_nodes() {
    let (default, unconfined) = (json!({"type": "RuntimeDefault"}), json!({"type": "Unconfined"}));
    for (node, shared, own, expected) in [
        (false, Value::Null, Value::Null, SeccompChoice::Unconfined),
        (true, Value::Null, Value::Null, SeccompChoice::RuntimeDefault),
        (false, default.clone(), Value::Null, SeccompChoice::RuntimeDefault),
        (true, unconfined.clone(), Value::Null, SeccompChoice::Unconfined),
        (false, unconfined, default, SeccompChoice::RuntimeDefault),
    ] {
        let set = |value: &Value| json!({"seccompProfile": value});
        let pod = pod(&set(&shared), &set(&own));
        let defaults = SecurityDefaults { seccomp_default: node, seccomp_root: "/r/seccomp".into() };
        assert_eq!(seccomp(&pod, &pod.spec.containers[0], &defaults), expected, "{node} {shared} {own}");
    }
}

#[test]
fn what_only_a_container_may_say_is_taken_from_it_alone() {
    let said = security(
        &json!({}),
        &json!({"privileged": true, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": true,
            "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}}),
        &ImageStatus::default(),
    );
    assert!(said.privileged && said.readonly_rootfs && !said.no_new_privs);
    assert_eq!(
        (said.add_capabilities, said.drop_capabilities),
        (vec!["NET_ADMIN".into()], vec!["ALL".into()])
    );
    let silent = security(&json!({}), &json!({}), &ImageStatus::default());
    assert!(!silent.privileged && !silent.readonly_rootfs && !silent.no_new_privs);
    assert_eq!((silent.masked_paths.len(), silent.readonly_paths.len()), (12, 5));
    assert!(own_and_shared("procMount", &Value::Null, &json!("Unmasked")).readonly_paths.is_empty());
    assert_eq!(own_and_shared("procMount", &Value::Null, &json!("Default")).readonly_paths.len(), 5);
}

#[test]
fn groups_come_from_the_pod_with_their_policy() {
    for (policy, expected) in [
        (Value::Null, SupplementalGroupsPolicy::Merge),
        (json!("Merge"), SupplementalGroupsPolicy::Merge),
        (json!("Strict"), SupplementalGroupsPolicy::Strict),
    ] {
        let made = own_and_shared("supplementalGroupsPolicy", &policy, &Value::Null);
        assert_eq!(made.supplemental_groups_policy, expected);
    }
}

#[test]
fn namespaces_are_the_nodes_only_when_asked_for() {
    use NamespaceMode::{Container, Node};
    for (spec, network, pid, ipc) in [
        (json!({}), NamespaceMode::Pod, Container, NamespaceMode::Pod),
        (json!({"shareProcessNamespace": true}), NamespaceMode::Pod, NamespaceMode::Pod, NamespaceMode::Pod),
        (json!({"hostNetwork": true}), Node, Container, NamespaceMode::Pod),
        (json!({"hostPID": true, "hostIPC": true}), NamespaceMode::Pod, Node, Node),
    ] {
        let pod = decode::<crate::model::api::pod::Pod>(json!({"spec": spec})).unwrap().object;
        assert_eq!(namespaces(&pod), NamespaceOptions { network, pid, ipc }, "{spec}");
    }
}

#[test]
fn ids_that_the_spec_does_not_know_are_passed_on() {
    let pod = pod(&json!({}), &json!({}));
    let ids = SecurityIds {
        user_namespace: Some(IdRange { host: 65_536, length: 65_536 }),
        target: Some("c1".into()),
    };
    let image = ImageStatus::default();
    let made = container_security(
        &pod,
        &pod.spec.containers[0],
        &image,
        &[],
        &SecurityDefaults::default(),
        ids.clone(),
    );
    assert_eq!(SecurityIds { user_namespace: made.user_namespace, target: made.target }, ids);
}

#[test]
fn a_target_is_the_newest_record_of_that_name_or_an_error() {
    let record = |id: &str| ObservedContainer { id: id.into(), name: "app".into(), ..Default::default() };
    let observed = ObservedPod { containers: vec![record("new"), record("old")], ..ObservedPod::default() };
    let debugger = |target: &str| Container { target_container_name: target.into(), ..Container::default() };
    assert_eq!(ephemeral_target(&debugger(""), &observed), Ok(None));
    assert_eq!(ephemeral_target(&debugger("app"), &observed), Ok(Some("new".into())));
    assert_eq!(
        ephemeral_target(&debugger("web"), &observed),
        Err("unable to find target container web".to_owned())
    );
}

#[test]
fn what_the_runtime_cannot_do_is_said_before_it_is_asked() {
    let handler = |name: &str, user_namespaces| RuntimeHandler {
        name: name.into(),
        user_namespaces,
        ..RuntimeHandler::default()
    };
    let (old, plain) = (vec![], vec![handler("", false)]);
    let (able, kata) =
        (vec![handler("", true)], vec![handler("", true), handler("kata", false), handler("runc", true)]);
    let users = "can't set `spec.hostUsers: false`,";
    for (spec, handlers, groups_policy, expected) in [
        (json!({}), &old, None, String::new()),
        (json!({"runtimeClassName": "kata"}), &old, None, String::new()),
        (json!({"runtimeClassName": "kata"}), &kata, None, String::new()),
        (
            json!({"runtimeClassName": "gvisor"}),
            &kata,
            None,
            "RuntimeClass \"gvisor\" not found, and the name is not a handler of the container runtime, which supports \
             \"kata\", \"runc\""
                .into(),
        ),
        (
            json!({"runtimeClassName": "gvisor"}),
            &plain,
            None,
            "RuntimeClass \"gvisor\" not found, and the name is not a handler of the container runtime, which supports \
             only the default"
                .into(),
        ),
        (json!({"hostUsers": true}), &plain, None, String::new()),
        (json!({"hostUsers": false}), &able, None, String::new()),
        (
            json!({"hostUsers": false}),
            &plain,
            None,
            format!("{users} runtime does not support user namespaces"),
        ),
        (
            json!({"hostUsers": false}),
            &old,
            None,
            format!("{users} runtime does not support user namespaces: runtime handlers are not set"),
        ),
        (
            json!({"hostUsers": false, "runtimeClassName": "kata"}),
            &kata,
            None,
            format!("{users} RuntimeClass handler \"kata\" does not support user namespaces"),
        ),
        (json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}}), &old, Some(true), String::new()),
        (
            json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}}),
            &able,
            None,
            "SupplementalGroupsPolicy=Strict is not supported in this node".into(),
        ),
    ] {
        let pod = decode::<Pod>(json!({"spec": spec})).unwrap().object;
        let checked = check_runtime(&pod, None, handlers, groups_policy);
        assert_eq!(checked.err().unwrap_or_default(), expected, "{spec}");
    }
    let pod = decode::<Pod>(json!({"spec": {"runtimeClassName": "sandboxed"}})).unwrap().object;
    let class =
        |handler: &str| RuntimeClassSpec { handler: handler.to_owned(), ..RuntimeClassSpec::default() };
    assert_eq!(
        check_runtime(&pod, Some(&class("gvisor")), &kata, None).unwrap_err(),
        "handler \"gvisor\" of its RuntimeClass is not a handler of the container runtime, which supports \"kata\", \"runc\""
    );
    assert_eq!(check_runtime(&pod, Some(&class("kata")), &kata, None), Ok(()));
}
