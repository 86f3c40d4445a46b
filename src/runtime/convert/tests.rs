//! Values survive the mapping, and nonsense from a runtime is harmless.

use proptest::prelude::*;

use super::*;
use crate::observed::ContainerStateKind;
use crate::types::{PodRef, SandboxId};

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
fn what_has_no_pod_uid_is_not_ours() {
    assert_eq!(sandbox_from_list(cri::PodSandbox::default()), None);
    assert_eq!(
        container_from_list(cri::Container { labels: labelled(""), ..cri::Container::default() }),
        None
    );
    let ours = container_from_list(cri::Container { labels: labelled("u1"), ..cri::Container::default() });
    assert_eq!(ours.unwrap().name.as_str(), "app");
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
fn addresses_come_primary_first_and_not_at_all_for_the_host_network() {
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
    let status = status_from_message(Some(cri::RuntimeStatus { conditions }));
    assert_eq!(status.runtime_ready, Ok(()));
    assert_eq!(status.network_ready, Err("NetworkPluginNotReady: cni config uninitialized".into()));
    assert!(status_from_message(None).runtime_ready.is_err());
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
    }
}
