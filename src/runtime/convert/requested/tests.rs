//! What the client side sends arrives unchanged at the server side.

use proptest::prelude::*;

use super::super::{container_config, sandbox_config};
use super::*;

fn text() -> impl Strategy<Value = String> {
    "[a-z]{1,8}"
}

fn map() -> impl Strategy<Value = std::collections::BTreeMap<String, String>> {
    proptest::collection::btree_map(text(), text(), 0..3)
}

fn mode() -> impl Strategy<Value = NamespaceMode> {
    prop_oneof![Just(NamespaceMode::Pod), Just(NamespaceMode::Container), Just(NamespaceMode::Node)]
}

fn namespace_options() -> impl Strategy<Value = NamespaceOptions> {
    (mode(), mode(), mode()).prop_map(|(network, pid, ipc)| NamespaceOptions { network, pid, ipc })
}

fn users() -> impl Strategy<Value = Option<IdRange>> {
    proptest::option::of((any::<u32>(), 1..u32::MAX).prop_map(|(host, length)| IdRange { host, length }))
}

fn policy() -> impl Strategy<Value = SupplementalGroupsPolicy> {
    prop_oneof![Just(SupplementalGroupsPolicy::Merge), Just(SupplementalGroupsPolicy::Strict)]
}

fn linux_resources() -> impl Strategy<Value = LinuxResources> {
    (any::<[i64; 6]>(), proptest::collection::vec((text(), any::<u64>()), 0..2), map(), text(), text())
        .prop_map(|(numbers, hugepage_limits, unified, cpuset_cpus, cpuset_mems)| LinuxResources {
            cpu_period: numbers[0],
            cpu_quota: numbers[1],
            cpu_shares: numbers[2],
            memory_limit_bytes: numbers[3],
            memory_swap_limit_bytes: numbers[4],
            oom_score_adj: numbers[5],
            hugepage_limits,
            unified,
            cpuset_cpus,
            cpuset_mems,
        })
}

fn label() -> impl Strategy<Value = Option<SelinuxLabel>> {
    let label = (text(), text(), text(), text()).prop_map(|(user, role, type_, level)| SelinuxLabel {
        user,
        role,
        type_,
        level,
    });
    proptest::option::of(label)
}

fn port() -> impl Strategy<Value = PortMapping> {
    let protocol = prop_oneof![Just("TCP"), Just("UDP"), Just("SCTP")];
    (protocol, any::<i32>(), any::<i32>(), text()).prop_map(
        |(protocol, container_port, host_port, host_ip)| PortMapping {
            protocol: protocol.to_owned(),
            container_port,
            host_port,
            host_ip,
        },
    )
}

fn sandbox() -> impl Strategy<Value = SandboxConfig> {
    let dns = proptest::option::of(proptest::collection::vec(text(), 3).prop_map(|words| DnsConfig {
        servers: words.clone(),
        searches: words.clone(),
        options: words,
    }));
    (
        (text(), text(), text(), any::<u32>(), text(), text(), dns, proptest::collection::vec(port(), 0..3)),
        (map(), map(), text(), map(), namespace_options(), any::<bool>(), any::<Option<i64>>()),
        (any::<Option<i64>>(), any::<Vec<i64>>(), linux_resources(), policy(), label(), users(), text()),
    )
        .prop_map(|(first, second, third)| SandboxConfig {
            pod: PodRef { namespace: first.0, name: first.1, uid: first.2.into() },
            attempt: first.3,
            hostname: first.4,
            log_directory: first.5,
            dns: first.6,
            port_mappings: first.7,
            labels: second.0,
            annotations: second.1,
            cgroup_parent: second.2,
            sysctls: second.3,
            namespaces: second.4,
            privileged: second.5,
            run_as_user: second.6,
            run_as_group: third.0,
            supplemental_groups: third.1,
            overhead: third.2.clone(),
            resources: third.2,
            supplemental_groups_policy: third.3,
            selinux: third.4,
            user_namespace: third.5,
            runtime_handler: third.6,
        })
}

fn one_mount() -> impl Strategy<Value = Mount> {
    let propagation = prop_oneof![
        Just(MountPropagation::Private),
        Just(MountPropagation::HostToContainer),
        Just(MountPropagation::Bidirectional)
    ];
    (text(), text(), any::<[bool; 4]>(), propagation).prop_map(
        |(container_path, other, [readonly, selinux_relabel, recursive_read_only, image], propagation)| {
            let mounted = ImageMount {
                image: other.clone(),
                user_specified_image: other.clone(),
                sub_path: other.clone(),
            };
            Mount {
                container_path: format!("/{container_path}"),
                host_path: if image { String::new() } else { other },
                readonly: readonly || image,
                propagation,
                selinux_relabel,
                recursive_read_only,
                image: image.then_some(mounted),
            }
        },
    )
}

fn container_security() -> impl Strategy<Value = ContainerSecurity> {
    let seccomp = prop_oneof![
        Just(SeccompChoice::Unconfined),
        Just(SeccompChoice::RuntimeDefault),
        text().prop_map(SeccompChoice::Localhost)
    ];
    let apparmor = proptest::option::of(prop_oneof![
        Just(AppArmorChoice::Unconfined),
        Just(AppArmorChoice::RuntimeDefault),
        text().prop_map(AppArmorChoice::Localhost)
    ]);
    (
        (any::<[bool; 3]>(), proptest::collection::vec(text(), 0..3), any::<[Option<i64>; 2]>(), text()),
        (any::<Vec<i64>>(), namespace_options(), seccomp, policy(), label(), apparmor, users()),
        proptest::option::of(text()),
    )
        .prop_map(|(first, second, target)| ContainerSecurity {
            privileged: first.0[0],
            readonly_rootfs: first.0[1],
            no_new_privs: first.0[2],
            add_capabilities: first.1.clone(),
            drop_capabilities: first.1.clone(),
            masked_paths: first.1.clone(),
            readonly_paths: first.1,
            run_as_user: first.2[0],
            run_as_group: first.2[1],
            run_as_username: first.3,
            supplemental_groups: second.0,
            namespaces: second.1,
            seccomp: second.2,
            supplemental_groups_policy: second.3,
            selinux: second.4,
            apparmor: second.5,
            user_namespace: second.6,
            // Only sent where it matters.
            target: target.filter(|_| second.1.pid == NamespaceMode::Container).map(ContainerId::from),
        })
}

fn one_device() -> impl Strategy<Value = Device> {
    let letters = prop_oneof![Just("r"), Just("rw"), Just("mrw")];
    ("/[a-z]{1,8}", "/[a-z]{1,8}", letters).prop_map(|(host_path, container_path, letters)| Device {
        host_path,
        container_path,
        permissions: letters.to_owned(),
        ..Device::default()
    })
}

fn container() -> impl Strategy<Value = ContainerConfig> {
    let words = || proptest::collection::vec(text(), 0..3);
    let signal =
        prop_oneof![Just(""), Just("SIGTERM"), Just("SIGUSR1"), Just("SIGRTMIN+3"), Just("SIGRTMAX-14")];
    (
        (text(), any::<u32>(), text(), text(), words(), words(), text()),
        (
            proptest::collection::vec((text(), text()), 0..3),
            proptest::collection::vec(one_mount(), 0..3),
            text(),
            any::<[bool; 3]>(),
            proptest::collection::vec(one_device(), 0..3),
            words(),
        ),
        (map(), map(), linux_resources(), container_security(), signal),
    )
        .prop_map(|(first, second, third)| ContainerConfig {
            name: first.0,
            attempt: first.1,
            image: first.2,
            user_specified_image: first.3,
            command: first.4,
            args: first.5,
            working_dir: first.6,
            envs: second.0,
            mounts: second.1,
            devices: second.4,
            cdi_devices: second.5,
            log_path: second.2,
            stdin: second.3[0],
            stdin_once: second.3[1],
            tty: second.3[2],
            labels: third.0,
            annotations: third.1,
            resources: third.2,
            security: third.3,
            stop_signal: third.4.to_owned(),
        })
}

proptest! {
    #[test]
    fn a_sandbox_is_understood_as_it_was_meant(config in sandbox()) {
        let understood = requested_sandbox(sandbox_config(&config), &config.runtime_handler);
        prop_assert_eq!(understood, Ok(config));
    }

    #[test]
    fn a_container_is_understood_as_it_was_meant(config in container()) {
        prop_assert_eq!(requested_container(container_config(&config)), Ok(config));
    }
}

#[test]
fn what_cannot_be_kept_is_refused_by_name() {
    let field = |message: cri::ContainerConfig| requested_container(message).err().map(|error| error.field);
    let good = container_config(&ContainerConfig {
        name: "app".into(),
        image: "busybox".into(),
        ..ContainerConfig::default()
    });
    assert_eq!(field(good.clone()), None);
    assert_eq!(field(cri::ContainerConfig { metadata: None, ..good.clone() }), Some("config.metadata"));
    assert_eq!(field(cri::ContainerConfig { image: None, ..good.clone() }), Some("config.image"));
    let devices = vec![cri::Device::default()];
    assert_eq!(field(cri::ContainerConfig { devices, ..good.clone() }), Some("config.devices.host_path"));
    let path = || "/dev/null".to_owned();
    let devices =
        vec![cri::Device { container_path: path(), host_path: path(), permissions: "x".to_owned() }];
    assert_eq!(field(cri::ContainerConfig { devices, ..good.clone() }), Some("config.devices.permissions"));
    let mount = cri::Mount { host_path: "/a".into(), container_path: "b".into(), ..cri::Mount::default() };
    let mounts = vec![mount.clone()];
    assert_eq!(field(cri::ContainerConfig { mounts, ..good.clone() }), Some("config.mounts.container_path"));
    let image = Some(cri::ImageSpec { image: "busybox".into(), ..cri::ImageSpec::default() });
    let mounts = vec![cri::Mount { host_path: String::new(), container_path: "/b".into(), image, ..mount }];
    assert_eq!(field(cri::ContainerConfig { mounts, ..good.clone() }), Some("config.mounts.readonly"));
    for path in ["/etc/passwd", "../other/0.log", "app/.."] {
        let message = cri::ContainerConfig { log_path: path.to_owned(), ..good.clone() };
        assert_eq!(field(message), Some("config.log_path"), "{path}");
    }
    let metadata = Some(cri::ContainerMetadata { name: "x".repeat(2000), attempt: 0 });
    assert_eq!(field(cri::ContainerConfig { metadata, ..good }), Some("config.metadata.name"));
    assert!(requested_sandbox(cri::PodSandboxConfig::default(), "").is_err());
}

#[test]
#[expect(deprecated, reason = "older clients send the strings alone")]
fn the_strings_of_older_clients_are_understood() {
    for (string, choice) in [
        ("", SeccompChoice::Unconfined),
        ("unconfined", SeccompChoice::Unconfined),
        ("runtime/default", SeccompChoice::RuntimeDefault),
        ("localhost//profiles/a", SeccompChoice::Localhost("/profiles/a".into())),
    ] {
        let context = cri::LinuxContainerSecurityContext {
            seccomp_profile_path: string.into(),
            ..cri::LinuxContainerSecurityContext::default()
        };
        assert_eq!(security(context).map(|security| security.seccomp), Ok(choice));
    }
    let odd = cri::LinuxContainerSecurityContext {
        apparmor_profile: "odd".into(),
        ..cri::LinuxContainerSecurityContext::default()
    };
    assert!(security(odd).is_err());
}
