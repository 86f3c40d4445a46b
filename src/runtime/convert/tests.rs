//! Values survive the mapping, and nonsense from a runtime is harmless.

use proptest::prelude::*;

use super::*;
use crate::model::observed::{ContainerStateKind, ObservedUser};
use crate::model::types::{PodRef, SandboxId};
use crate::runtime::{
    AppArmorChoice, ContainerSecurity, NamespaceMode, NamespaceOptions, RuntimeHandler, SeccompChoice,
    SelinuxLabel, SupplementalGroupsPolicy,
};

fn labelled(uid: &str) -> BTreeMap<String, String> {
    [
        (labels::POD_UID, uid),
        (labels::POD_NAME, "web"),
        (labels::POD_NAMESPACE, "default"),
        (labels::CONTAINER_NAME, "app"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

#[test]
fn a_sandbox_made_from_our_config_is_read_back_as_the_same_pod() {
    let config = SandboxConfig {
        pod: PodRef { namespace: "default".into(), name: "web".into(), uid: "u1".into() },
        attempt: 3,
        labels: labelled("u1"),
        ..SandboxConfig::default()
    };
    let message = sandbox_config(&config);
    let listed = cri::PodSandbox {
        id: "s1".into(),
        metadata: message.metadata,
        labels: message.labels,
        created_at: 5,
        ..cri::PodSandbox::default()
    };
    let observed = sandbox_from_list(listed).unwrap();
    assert_eq!((observed.pod, observed.attempt, observed.ready), (config.pod, 3, true));
    assert_eq!(observed.created_at.as_nanos(), 5);
}

#[test]
fn objects_without_pod_uid_are_ignored() {
    assert_eq!(sandbox_from_list(cri::PodSandbox::default()), None);
    assert_eq!(
        container_from_list(cri::Container { labels: labelled(""), ..cri::Container::default() }),
        None
    );
    let ours = container_from_list(cri::Container { labels: labelled("u1"), ..cri::Container::default() });
    assert_eq!(ours.unwrap().name.as_str(), "app");
}

#[test]
fn path_traversal_in_pod_labels_is_rejected() {
    let with = |key: &str, value: &str| {
        let mut labels = labelled("u1");
        labels.insert(key.to_owned(), value.to_owned());
        let sandbox = cri::PodSandbox { labels: labels.clone(), ..cri::PodSandbox::default() };
        let container = cri::Container { labels, ..cri::Container::default() };
        (sandbox_from_list(sandbox).is_some(), container_from_list(container).is_some())
    };
    for uid in ["..", ".", "/", "/etc", "a/../../b", "a b", &"x".repeat(129)] {
        assert_eq!(with(labels::POD_UID, uid), (false, false), "{uid}");
    }
    assert_eq!(with(labels::POD_UID, &"x".repeat(128)), (true, true));
    assert_eq!(with(labels::POD_NAME, "web/../../../etc"), (false, false));
    assert_eq!(with(labels::POD_NAMESPACE, "x/y"), (false, false));
    for name in ["..", "/etc", "../../x"] {
        assert_eq!(with(labels::CONTAINER_NAME, name), (true, false), "{name}");
    }
}

#[test]
fn states_we_do_not_know_are_unknown_and_not_ready() {
    for (number, wanted) in [
        (0, ContainerStateKind::Created),
        (1, ContainerStateKind::Running),
        (2, ContainerStateKind::Exited),
        (3, ContainerStateKind::Unknown),
        (77, ContainerStateKind::Unknown),
        (-1, ContainerStateKind::Unknown),
    ] {
        let status = cri::ContainerStatus { state: number, ..cri::ContainerStatus::default() };
        assert_eq!(container_from_status(status, SandboxId::default()).state, wanted, "{number}");
    }
    for (number, ready) in [(0, true), (1, false), (9, false)] {
        let status = cri::PodSandboxStatus { state: number, ..cri::PodSandboxStatus::default() };
        assert_eq!(sandbox_from_status(status).ready, ready, "{number}");
    }
}

#[test]
fn host_network_sandbox_has_no_ips_and_others_primary_first() {
    let network = cri::PodSandboxNetworkStatus {
        ip: "10.0.0.1".into(),
        additional_ips: vec![cri::PodIp { ip: "fd00::1".into() }],
    };
    let mut status = cri::PodSandboxStatus { network: Some(network), ..cri::PodSandboxStatus::default() };
    assert_eq!(sandbox_from_status(status.clone()).ips, ["10.0.0.1", "fd00::1"]);
    let options = cri::NamespaceOption { network: cri::NamespaceMode::Node.into(), ..Default::default() };
    status.linux =
        Some(cri::LinuxPodSandboxStatus { namespaces: Some(cri::Namespace { options: Some(options) }) });
    let observed = sandbox_from_status(status);
    assert!(observed.host_network && observed.ips.is_empty());
}

#[test]
fn a_full_container_config_keeps_every_value() {
    let config = ContainerConfig {
        name: "app".into(),
        attempt: 2,
        image: "sha256:1".into(),
        user_specified_image: "busybox:1".into(),
        command: vec!["sh".into()],
        args: vec!["-c".into(), "true".into()],
        working_dir: "/w".into(),
        envs: vec![("B".into(), "2".into()), ("A".into(), "1".into())],
        mounts: vec![Mount {
            container_path: "/data".into(),
            host_path: "/srv".into(),
            readonly: true,
            propagation: MountPropagation::HostToContainer,
            selinux_relabel: true,
            ..Mount::default()
        }],
        log_path: "app/2.log".into(),
        resources: LinuxResources {
            cpu_quota: -1,
            memory_limit_bytes: 1 << 20,
            memory_swap_limit_bytes: 2 << 20,
            oom_score_adj: -997,
            hugepage_limits: vec![("2MB".into(), 4)],
            ..LinuxResources::default()
        },
        security: ContainerSecurity {
            run_as_user: Some(0),
            drop_capabilities: vec!["ALL".into()],
            seccomp: SeccompChoice::Localhost("/profiles/a.json".into()),
            namespaces: NamespaceOptions { network: NamespaceMode::Node, ..NamespaceOptions::default() },
            ..ContainerSecurity::default()
        },
        ..ContainerConfig::default()
    };
    let message = container_config(&config);
    assert_eq!(message.image.unwrap().user_specified_image, "busybox:1");
    let envs: Vec<_> = message.envs.iter().map(|env| format!("{}={}", env.key, env.value)).collect();
    assert_eq!(envs, ["B=2", "A=1"], "order is the spec's");
    assert_eq!(message.mounts[0].propagation(), cri::MountPropagation::PropagationHostToContainer);
    let linux = message.linux.unwrap();
    let resources = linux.resources.unwrap();
    assert_eq!((resources.cpu_quota, resources.oom_score_adj), (-1, -997));
    assert_eq!((resources.memory_limit_in_bytes, resources.memory_swap_limit_in_bytes), (1 << 20, 2 << 20));
    let security = linux.security_context.unwrap();
    assert_eq!(security.run_as_user, Some(cri::Int64Value { value: 0 }), "root is not unset");
    assert_eq!(security.run_as_group, None);
    assert_eq!(security.namespace_options.unwrap().network(), cri::NamespaceMode::Node);
    assert_eq!(security.seccomp.unwrap().localhost_ref, "/profiles/a.json");
}

#[test]
fn conditions_become_reason_and_message() {
    let condition = |kind: &str, status| cri::RuntimeCondition {
        r#type: kind.into(),
        status,
        reason: "NetworkPluginNotReady".into(),
        message: "cni config uninitialized".into(),
    };
    let conditions = vec![condition("RuntimeReady", true), condition("NetworkReady", false)];
    let answer = |status| cri::StatusResponse { status, ..cri::StatusResponse::default() };
    let status = status_from_message(answer(Some(cri::RuntimeStatus { conditions })));
    assert_eq!(status.runtime_ready, Ok(()));
    assert_eq!(status.network_ready, Err("NetworkPluginNotReady: cni config uninitialized".into()));
    assert!(status_from_message(answer(None)).runtime_ready.is_err());
    assert_eq!((status.handlers, status.supplemental_groups_policy), (vec![], None), "an old runtime");
}

#[test]
fn what_handlers_can_do_is_read_and_nothing_is_assumed() {
    let features = cri::RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces: true };
    let handlers = [("", Some(features)), ("kata", None)];
    let answer = cri::StatusResponse {
        runtime_handlers: handlers
            .map(|(name, features)| cri::RuntimeHandler { name: name.into(), features })
            .into(),
        features: Some(cri::RuntimeFeatures { supplemental_groups_policy: true, ..Default::default() }),
        ..cri::StatusResponse::default()
    };
    let status = status_from_message(answer);
    let able =
        RuntimeHandler { name: String::new(), recursive_read_only_mounts: true, user_namespaces: true };
    let kata = RuntimeHandler { name: "kata".into(), ..RuntimeHandler::default() };
    assert_eq!(status.handlers, [able, kata]);
    assert_eq!(status.supplemental_groups_policy, Some(true));
}

#[test]
fn container_user_is_read_when_the_runtime_reports_it() {
    let linux = cri::LinuxContainerUser { uid: 5, gid: 6, supplemental_groups: vec![7] };
    let told =
        |linux| cri::ContainerStatus { user: Some(cri::ContainerUser { linux }), ..Default::default() };
    let user = |status| container_from_status(status, SandboxId::default()).user;
    assert_eq!(user(told(Some(linux))), Some(ObservedUser { uid: 5, gid: 6, supplemental_groups: vec![7] }));
    assert_eq!(user(told(None)), None);
    assert_eq!(user(cri::ContainerStatus::default()), None);
}

const RANGE: IdRange = IdRange { host: 131_072, length: 65_536 };

fn mapped() -> Vec<cri::IdMapping> {
    vec![cri::IdMapping { host_id: 131_072, container_id: 0, length: 65_536 }]
}

#[test]
fn user_namespace_is_sent_for_sandbox_container_and_mounts() {
    let config = SandboxConfig { user_namespace: Some(RANGE), ..SandboxConfig::default() };
    let security = sandbox_config(&config).linux.unwrap().security_context.unwrap();
    let of_sandbox = security.namespace_options.unwrap().userns_options.unwrap();
    let config = ContainerConfig {
        mounts: vec![Mount::default(), Mount { image: Some(ImageMount::default()), ..Mount::default() }],
        security: ContainerSecurity { user_namespace: Some(RANGE), ..ContainerSecurity::default() },
        ..ContainerConfig::default()
    };
    let message = container_config(&config);
    let security = message.linux.unwrap().security_context.unwrap();
    let of_container = security.namespace_options.unwrap().userns_options.unwrap();
    for users in [of_sandbox, of_container] {
        assert_eq!((users.mode(), &users.uids, &users.gids), (cri::NamespaceMode::Pod, &mapped(), &mapped()));
    }
    for mount in message.mounts {
        assert_eq!((mount.uid_mappings, mount.gid_mappings), (mapped(), mapped()));
    }
    let none = container_config(&ContainerConfig { mounts: vec![Mount::default()], ..Default::default() });
    assert!(none.mounts[0].uid_mappings.is_empty());
    let security = none.linux.unwrap().security_context.unwrap();
    let users = security.namespace_options.unwrap().userns_options.unwrap();
    assert_eq!((users.mode(), users.uids.len()), (cri::NamespaceMode::Node, 0), "the node's, and said so");
}

#[test]
fn a_target_is_joined_where_containers_have_pids_of_their_own() {
    for (pid, wanted, id) in [
        (NamespaceMode::Container, cri::NamespaceMode::Target, "c1"),
        (NamespaceMode::Pod, cri::NamespaceMode::Pod, ""),
        (NamespaceMode::Node, cri::NamespaceMode::Node, ""),
    ] {
        let security = ContainerSecurity {
            namespaces: NamespaceOptions { pid, ..NamespaceOptions::default() },
            target: Some("c1".into()),
            ..ContainerSecurity::default()
        };
        let options = security::of_container(&security).namespace_options.unwrap();
        assert_eq!((options.pid(), options.target_id.as_str()), (wanted, id));
    }
}

#[test]
#[expect(deprecated, reason = "the string is for old runtimes")]
fn apparmor_comes_as_profile_and_as_the_old_string() {
    use crate::platform::proto::runtime::security_profile::ProfileType;
    for (choice, profile, name, string) in [
        (AppArmorChoice::Unconfined, ProfileType::Unconfined, "", "unconfined"),
        (AppArmorChoice::RuntimeDefault, ProfileType::RuntimeDefault, "", "runtime/default"),
        (AppArmorChoice::Localhost("web".into()), ProfileType::Localhost, "web", "localhost/web"),
    ] {
        let security = ContainerSecurity { apparmor: Some(choice), ..ContainerSecurity::default() };
        let message = security::of_container(&security);
        assert_eq!(message.apparmor_profile, string);
        let apparmor = message.apparmor.unwrap();
        assert_eq!((apparmor.profile_type(), apparmor.localhost_ref.as_str()), (profile, name));
    }
    let silent = security::of_container(&ContainerSecurity::default());
    assert_eq!((silent.apparmor, silent.apparmor_profile.as_str()), (None, ""), "left to the runtime");
}

#[test]
fn labels_and_group_policies_reach_sandbox_and_container() {
    let label = SelinuxLabel { user: "u".into(), role: "r".into(), type_: "t".into(), level: "s0".into() };
    let wanted =
        cri::SeLinuxOption { user: "u".into(), role: "r".into(), r#type: "t".into(), level: "s0".into() };
    let policy = SupplementalGroupsPolicy::Strict;
    let sandbox = security::of_sandbox(&SandboxConfig {
        selinux: Some(label.clone()),
        supplemental_groups_policy: policy,
        ..SandboxConfig::default()
    });
    let container = security::of_container(&ContainerSecurity {
        selinux: Some(label),
        supplemental_groups_policy: policy,
        ..ContainerSecurity::default()
    });
    assert_eq!(sandbox.supplemental_groups_policy(), cri::SupplementalGroupsPolicy::Strict);
    assert_eq!(container.supplemental_groups_policy(), cri::SupplementalGroupsPolicy::Strict);
    assert_eq!((sandbox.selinux_options, container.selinux_options), (Some(wanted.clone()), Some(wanted)));
}

#[test]
fn stop_signals_have_cris_names() {
    for (name, wanted) in [
        ("", cri::Signal::RuntimeDefault),
        ("SIGUSR1", cri::Signal::Sigusr1),
        ("SIGRTMIN", cri::Signal::Sigrtmin),
        ("SIGRTMIN+3", cri::Signal::Sigrtminplus3),
        ("SIGRTMAX-14", cri::Signal::Sigrtmaxminus14),
        ("SIGNONSENSE", cri::Signal::RuntimeDefault),
    ] {
        let config = ContainerConfig { stop_signal: name.into(), ..ContainerConfig::default() };
        assert_eq!(container_config(&config).stop_signal(), wanted, "{name}");
    }
}

#[test]
fn images_are_mounted_by_reference_and_directory() {
    let image = ImageMount {
        image: "sha256:1".into(),
        user_specified_image: "models:1".into(),
        sub_path: "weights".into(),
    };
    let mount = Mount { readonly: true, recursive_read_only: true, image: Some(image), ..Mount::default() };
    let config = ContainerConfig { mounts: vec![mount], ..ContainerConfig::default() };
    let message = container_config(&config).mounts.remove(0);
    let image = message.image.unwrap();
    assert_eq!((image.image.as_str(), image.user_specified_image.as_str()), ("sha256:1", "models:1"));
    assert_eq!(message.image_sub_path, "weights");
    assert!(message.recursive_read_only);
}

#[test]
fn overhead_and_cpusets_are_passed_on() {
    let overhead = LinuxResources { cpu_shares: 102, memory_limit_bytes: 1 << 20, ..Default::default() };
    let linux = sandbox_config(&SandboxConfig { overhead, ..Default::default() }).linux.unwrap();
    let overhead = linux.overhead.unwrap();
    assert_eq!((overhead.cpu_shares, overhead.memory_limit_in_bytes), (102, 1 << 20));
    let pinned = LinuxResources { cpuset_cpus: "0-1".into(), cpuset_mems: "0".into(), ..Default::default() };
    let message = resources(&pinned);
    assert_eq!((message.cpuset_cpus.as_str(), message.cpuset_mems.as_str()), ("0-1", "0"));
}

#[test]
fn half_a_second_of_grace_is_a_second_and_none_is_none() {
    assert_eq!(grace_seconds(Duration::ZERO), 0);
    assert_eq!(grace_seconds(Duration::from_millis(500)), 1);
    assert_eq!(grace_seconds(Duration::from_secs(30)), 30);
    assert_eq!(grace_seconds(Duration::MAX), i64::MAX);
}

proptest! {
    #[test]
    fn whatever_a_runtime_sends_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        use prost::Message;
        if let Ok(message) = cri::ContainerStatus::decode(bytes.as_slice()) {
            let _ = container_from_status(message, SandboxId::default());
        }
        if let Ok(message) = cri::PodSandboxStatus::decode(bytes.as_slice()) {
            let _ = sandbox_from_status(message);
        }
        if let Ok(message) = cri::Container::decode(bytes.as_slice()) {
            let _ = container_from_list(message);
        }
        if let Ok(message) = cri::StatusResponse::decode(bytes.as_slice()) {
            let _ = status_from_message(message);
        }
    }
}
