//! The kubelet's argument grammar.

use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;

use super::*;

/// Every flag of the kubelet 1.36, listed by hand from the reference, to detect a row missing from the
/// tables.
const FLAGS: &str = "config config-dir kubeconfig bootstrap-kubeconfig hostname-override node-ip cert-dir \
cloud-provider root-dir seccomp-default node-labels lock-file exit-on-lock-contention runtime-cgroups \
image-credential-provider-config image-credential-provider-bin-dir minimum-container-ttl-duration \
maximum-dead-containers-per-container maximum-dead-containers experimental-mounter-path \
experimental-allocatable-ignore-eviction version help v vmodule \
log-flush-frequency logging-format log-text-split-stream log-text-info-buffer-size log-json-split-stream \
log-json-info-buffer-size housekeeping-interval max-housekeeping-interval application-metrics-count-limit \
boot-id-file container-hints containerd containerd-namespace enable-load-reader event-storage-age-limit \
event-storage-event-limit global-housekeeping-interval log-cadvisor-usage machine-id-file storage-driver-user \
storage-driver-password storage-driver-host storage-driver-db storage-driver-table storage-driver-secure \
storage-driver-buffer-duration enable-server fail-swap-on pod-manifest-path sync-frequency file-check-frequency \
http-check-frequency manifest-url manifest-url-header address port read-only-port fail-cgroupv1 \
container-runtime-endpoint image-service-endpoint anonymous-auth authentication-token-webhook \
authentication-token-webhook-cache-ttl client-ca-file authorization-mode \
authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl tls-cert-file \
tls-private-key-file tls-min-version tls-cipher-suites rotate-certificates rotate-server-certificates registry-qps \
registry-burst event-qps event-burst enable-debugging-handlers contention-profiling healthz-port \
healthz-bind-address control-plane-cert-validity-period offline-max-age link-profile oom-score-adj cluster-domain cluster-dns volume-plugin-dir streaming-connection-idle-timeout \
node-status-update-frequency node-status-max-images minimum-image-ttl-duration image-gc-high-threshold \
image-gc-low-threshold volume-stats-agg-period feature-gates kubelet-cgroups system-cgroups cgroup-root provider-id \
cgroups-per-qos cgroup-driver cpu-manager-policy cpu-manager-reconcile-period cpu-manager-policy-options \
memory-manager-policy reserved-memory topology-manager-policy topology-manager-scope \
topology-manager-policy-options qos-reserved runtime-request-timeout hairpin-mode max-pods pods-per-core pod-cidr \
pod-max-pids resolv-conf runonce cpu-cfs-quota cpu-cfs-quota-period enable-controller-attach-detach \
make-iptables-util-chains container-log-max-size container-log-max-files allowed-unsafe-sysctls \
kernel-memcg-notification local-storage-capacity-isolation max-open-files kube-api-content-type kube-api-qps \
kube-api-burst serialize-image-pulls service-cidr service-node-port-range eviction-hard eviction-soft eviction-soft-grace-period \
eviction-minimum-reclaim eviction-pressure-transition-period eviction-max-pod-grace-period protect-kernel-defaults \
reserved-cpus system-reserved kube-reserved system-reserved-cgroup kube-reserved-cgroup enforce-node-allocatable \
register-node register-with-taints \
manifest-dir manifest-url-ca-file manifest-url-client-cert-file manifest-url-client-key-file manifest-url-token-file \
     manifest-url-verify-key-file manifest-url-rollback-after store-key-file token-auth-file runonce-timeout runonce-wait images-dir image-update-interval unacted-kinds container-log-ram agent-socket \
     runtime-state-dir bridge-name cni-conf-dir cni-bin-dir registry-hosts-dir image-policy allowed-devices runtime-handlers cluster-reset-grace cri-socket";

const REMOVED: &str = "network-plugin cni-cache-dir network-plugin-mtu \
pod-infra-container-image container-runtime docker docker-endpoint docker-only docker-tls docker-root redirect-container-streaming image-pull-progress-deadline dynamic-config-dir \
experimental-dockershim experimental-dockershim-root-directory cloud-config keep-terminated-pod-volumes \
non-masquerade-cidr register-schedulable allow-privileged cadvisor-port \
experimental-check-node-capabilities-before-mount really-crash-for-testing chaos-chance \
experimental-kernel-memcg-notification add-dir-header alsologtostderr log-backtrace-at log-dir log-file \
log-file-max-size logtostderr one-output skip-headers skip-log-headers stderrthreshold";

#[test]
fn every_flag_of_the_reference_is_known_and_no_other() {
    let reference: std::collections::BTreeSet<&str> = FLAGS.split_whitespace().collect();
    let known: std::collections::BTreeSet<&str> = flags::known_names().collect();
    assert_eq!(known, reference);
    assert_eq!(flags::known_names().count(), known.len(), "a flag is in two tables");
}

#[test]
fn every_flag_appears_in_the_help() {
    let Ok(Invocation::Help(help)) = parse_words(&["--help"]) else { panic!("no help") };
    for flag in FLAGS.split_whitespace() {
        assert!(help.contains(&format!("--{flag}")), "{flag}");
    }
    assert!(matches!(parse_words(&["-h", "--port=1"]), Ok(Invocation::Help(_))));
    assert!(matches!(parse_words(&["help"]), Ok(Invocation::Help(_))));
}

#[test]
fn removed_flags_warn_once_with_what_to_use_and_change_nothing() {
    for flag in REMOVED.split_whitespace() {
        let given = resolved(&[&format!("--{flag}=1"), &format!("--{flag}=1")]);
        let [line] = given.warnings.as_slice() else { panic!("{flag}: {:?}", given.warnings) };
        assert!(line.starts_with(&format!("Flag --{flag} was removed")), "{line}");
    }
    assert!(resolved(&["--log-dir", "/tmp", "--logtostderr", "--port", "99"]).kubelet.port == 99);
    assert!(refusal(&["--api-servers=http://x"]).contains("use --kubeconfig"));
    assert!(refusal(&["--experimental-bootstrap-kubeconfig", "x"]).contains("use --bootstrap-kubeconfig"));
}

#[test]
fn flag_underscores_are_dashes_and_manifest_dir_is_an_alias() {
    assert_eq!(resolved(&["--pod_manifest_path=/m"]).kubelet.static_pod_path, "/m");
    assert_eq!(resolved(&["--pod-manifest-path=/a", "--manifest-dir", "/b"]).kubelet.static_pod_path, "/b");
    assert_eq!(
        resolved(&["--manifest_dir", "/b"]).provenance["staticPodPath"].to_string(),
        "flag --manifest-dir"
    );
    assert!(resolved(&["--manifest-dir=/b"]).warnings.is_empty(), "our spelling is not deprecated");
}

#[test]
fn values_attach_and_detach_as_in_pflag() {
    for words in [&["-v", "2"][..], &["-v=2"], &["-v2"], &["--v", "2"], &["--v=2"]] {
        assert_eq!(resolved(words).kubelet.logging_verbosity, 2, "{words:?}");
    }
    for (word, on) in
        [("--seccomp-default", true), ("--seccomp-default=0", false), ("--seccomp-default=T", true)]
    {
        assert_eq!(resolved(&[word]).flags.seccomp_default, on, "{word}");
    }
    assert_eq!(refusal(&["--fail-swap-on", "false"]), "unknown command false: write --fail-swap-on=false");
    assert_eq!(resolved(&["--hostname-override", "--odd", "--hostname-override=b"]).node_name, "b");
    assert_eq!(refusal(&["--port"]), "failed to parse kubelet flag: flag needs an argument: --port");
    assert_eq!(refusal(&["-x"]), "failed to parse kubelet flag: unknown shorthand flag: 'x' in -x");
    assert_eq!(refusal(&["--", "--port=1"]), "unknown command --port=1");
    assert_eq!(resolved(&["--port=1", "--"]).kubelet.port, 1);
}

#[test]
fn mistyped_flags_and_commands_get_the_nearest_name() {
    assert_eq!(
        refusal(&["--pod-manifest-pth=/x"]),
        "failed to parse kubelet flag: unknown flag: --pod-manifest-pth, did you mean --pod-manifest-path?"
    );
    assert_eq!(refusal(&["--zzz"]), "failed to parse kubelet flag: unknown flag: --zzz");
    assert_eq!(refusal(&["staus"]), "unknown command staus, did you mean status?");
    assert_eq!(refusal(&["convoke"]), "unknown command convoke");
    assert!(refusal(&["config", "extra"]).starts_with("unknown command extra"));
}

#[test]
fn commands_take_their_own_arguments() {
    let words =
        |args: &[OsString]| args.iter().map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>();
    match parse_words(&["--agent-socket=/s", "status", "-o", "json", "--help"]) {
        Ok(Invocation::Client { command: "status", args }) => {
            assert_eq!(words(&args), ["--agent-socket=/s", "-o", "json", "--help"]);
        }
        other => panic!("{other:?}"),
    }
    match parse_words(&["get", "pods"]) {
        Ok(Invocation::Client { command: "get", args }) => assert_eq!(words(&args), ["pods"]),
        other => panic!("{other:?}"),
    }
    match parse_words(&["config", "images", "list", "-o", "json"]) {
        Ok(Invocation::Client { command: "config", args }) => {
            assert_eq!(words(&args), ["images", "list", "-o", "json"]);
        }
        other => panic!("{other:?}"),
    }
    match parse_words(&["--v=3", "config", "--explain", "--port=77"]) {
        Ok(Invocation::Config { explain: true, resolved }) => {
            assert_eq!((resolved.kubelet.port, resolved.kubelet.logging_verbosity), (77, 3));
        }
        other => panic!("{other:?}"),
    }
    assert!(refusal(&["--explain"]).contains("unknown flag: --explain"));
    assert!(refusal(&["config", "--explain=perhaps"]).contains("expected true or false"));
}

#[test]
fn versions_are_printed_or_replaced() {
    assert!(matches!(parse_words(&["--version"]), Ok(Invocation::Version(VersionKind::Plain))));
    assert!(matches!(parse_words(&["version"]), Ok(Invocation::Version(VersionKind::Plain))));
    assert!(matches!(parse_words(&["--version=raw", "--port=1"]), Ok(Invocation::Version(VersionKind::Raw))));
    for replaced in ["--version=v9.9.9", "--version=false"] {
        resolved(&[replaced]);
    }
    assert!(refusal(&["--version=what"]).contains("--version"));
}

#[test]
fn each_kind_of_value_is_read_as_upstream_does() {
    for (words, path, expected) in [
        (&["--port=0x10"][..], "port", "16"),
        (&["--oom-score-adj=-017"], "oomScoreAdj", "-15"),
        (&["--max-open-files=1_000"], "maxOpenFiles", "1000"),
        (&["--pod-max-pids=5000000000"], "podPidsLimit", "5000000000"),
        (&["--sync-frequency=90s"], "syncFrequency", r#""1m30s""#),
        (&["--address=::1"], "address", r#""::1""#),
        (&["--cluster-dns=10.0.0.1,10.0.0.2"], "clusterDNS", r#"["10.0.0.1","10.0.0.2"]"#),
        (&["--cluster-dns=1.1.1.1", "--cluster-dns=2.2.2.2"], "clusterDNS", r#"["1.1.1.1","2.2.2.2"]"#),
        (&["--cluster-dns="], "clusterDNS", "[]"),
        (&[r#"--cluster-dns="a,b",c"#], "clusterDNS", r#"["a,b","c"]"#),
        (&["--enforce-node-allocatable=none"], "enforceNodeAllocatable", r#"["none"]"#),
        (&["--kube-reserved=cpu=1, memory=2Gi"], "kubeReserved", r#"{"cpu":"1","memory":"2Gi"}"#),
        (&["--kube-reserved=cpu=1", "--kube-reserved=pid=9"], "kubeReserved", r#"{"cpu":"1","pid":"9"}"#),
        (
            &[
                "--cpu-manager-policy=static",
                "--cpu-manager-policy-options=full-pcpus-only=true",
                "--cpu-manager-policy-options=strict-cpu-reservation=true",
            ],
            "cpuManagerPolicyOptions",
            r#"{"full-pcpus-only":"true","strict-cpu-reservation":"true"}"#,
        ),
        (
            &["--eviction-hard=memory.available<1Gi,nodefs.available<10%"],
            "evictionHard",
            r#"{"memory.available":"1Gi","nodefs.available":"10%"}"#,
        ),
        (&["--eviction-hard="], "evictionHard", "{}"),
        (
            &["--manifest-url-header=A:1,B:x:y", "--manifest-url-header=A:2"],
            "staticPodURLHeader",
            r#"{"A":["1","2"],"B":["x:y"]}"#,
        ),
        (
            &["--feature-gates=NodeLogQuery=true,GracefulNodeShutdown=f"],
            "featureGates",
            r#"{"GracefulNodeShutdown":false,"NodeLogQuery":true}"#,
        ),
        (
            &["--register-with-taints=a/b=c:NoSchedule,d:NoExecute"],
            "registerWithTaints",
            r#"[{"effect":"NoSchedule","key":"a/b","value":"c"},{"effect":"NoExecute","key":"d"}]"#,
        ),
        (
            &[
                "--reserved-memory=0:memory=1Gi,hugepages-1M=2Gi;1:memory=2Gi",
                "--reserved-memory=2:memory=1Gi",
            ],
            "reservedMemory",
            r#"[{"limits":{"hugepages-1M":"2Gi","memory":"1Gi"},"numaNode":0},{"limits":{"memory":"2Gi"},"numaNode":1},{"limits":{"memory":"1Gi"},"numaNode":2}]"#,
        ),
        (
            &["--vmodule=pleg=4,pod*=2"],
            "logging.vmodule",
            r#"[{"filePattern":"pleg","verbosity":4},{"filePattern":"pod*","verbosity":2}]"#,
        ),
    ] {
        assert_eq!(field(&resolved(words), path), expected, "{words:?}");
    }
}

#[test]
fn values_that_do_not_fit_name_flag_value_and_form() {
    for (word, part) in [
        ("--port=http", r#"invalid argument "http" for "--port" flag: expected a 32-bit integer"#),
        ("--port=5000000000", "expected a 32-bit integer"),
        ("--fail-swap-on=maybe", "expected true or false"),
        ("--sync-frequency=20", "expected a duration like 1m30s"),
        ("--address=localhost", "expected an IP address"),
        ("--node-labels=a", "expected pairs like key=value,key2=value2, found \"a\""),
        ("--eviction-hard=memory.available=1Gi", "memory.available<100Mi"),
        ("--feature-gates=EnvFiles", "Gate=true"),
        ("--register-with-taints=a=b", "NoSchedule"),
        ("--register-with-taints=a=b:Never", "PreferNoSchedule"),
        ("--reserved-memory=memory=1Gi", "0:memory=1Gi"),
        ("--vmodule=a", "gopher*=3"),
        ("-v=-1", "expected a non-negative number"),
        ("--reserved-memory=0:memory=lots", "found \"lots\""),
        ("--container-log-max-size=big", "a quantity like 10Mi"),
        ("--log-json-info-buffer-size=", "a quantity like 10Mi"),
        (r#"--cluster-dns="a"#, "closed quotes"),
        ("--max-pods=", "expected a 32-bit integer"),
    ] {
        let text = refusal(&[word]);
        assert!(text.starts_with("failed to parse kubelet flag: invalid argument"), "{text}");
        assert!(text.contains(part), "{word}: {text}");
    }
    let secret = refusal(&["--manifest-url-header=hunter2"]);
    assert!(!secret.contains("hunter2"), "{secret}");
}

#[test]
fn manifest_url_auth_is_unique_and_key_needs_a_certificate() {
    let both = ["--manifest-url-token-file=/t", "--manifest-url-header=authorization:hunter2"];
    let text = refusal(&both);
    assert!(
        text.contains("--manifest-url-token-file: staticPodURLHeader") && !text.contains("hunter2"),
        "{text}"
    );
    let text = refusal(&["--manifest-url-client-key-file=/k"]);
    assert!(text.contains("requires --manifest-url-client-cert-file"), "{text}");
    let flags = resolved(&["--manifest-url-client-cert-file=/c", "--manifest-url-client-key-file=/k"]).flags;
    let files = (flags.manifest_url_client_cert_file, flags.manifest_url_client_key_file);
    assert_eq!(files, (Some("/c".into()), Some("/k".into())));
}

#[test]
fn image_updates_are_off_or_at_least_ten_seconds_apart() {
    let interval = |given: &[&str]| resolved(given).flags.image_update_interval.to_std().as_secs();
    assert_eq!(interval(&[]), 3600);
    assert_eq!(interval(&["--image-update-interval=10s"]), 10);
    assert_eq!(interval(&["--image-update-interval=0"]), 0);
    for bad in ["--image-update-interval=9s", "--image-update-interval=-1h"] {
        let text = refusal(&[bad]);
        assert!(text.contains("--image-update-interval: must be at least 10s; 0 disables"), "{text}");
    }
}

#[test]
fn certificates_are_renewed_for_an_hour_or_longer() {
    let period = |given: &[&str]| resolved(given).flags.control_plane_cert_validity_period.to_std().as_secs();
    assert_eq!(period(&[]), 365 * 24 * 3600);
    assert_eq!(period(&["--control-plane-cert-validity-period=1h"]), 3600);
    assert_eq!(period(&["--control-plane-cert-validity-period=0"]), 0);
    for bad in ["--control-plane-cert-validity-period=59m", "--control-plane-cert-validity-period=-1h"] {
        let text = refusal(&[bad]);
        assert!(
            text.contains("--control-plane-cert-validity-period: must be at least 1h; 0 disables"),
            "{text}"
        );
    }
}

#[test]
fn flags_of_the_embedded_runtime_need_it() {
    let external = "--container-runtime-endpoint=unix:///run/containerd/containerd.sock";
    let text = refusal(&["--image-policy=/p.json", external]);
    for words in ["--image-policy: only the embedded runtime", "containerd.sock\": remove the flag"] {
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(resolved(&["--image-policy=/p.json"]).flags.image_policy, Some("/p.json".into()));
    assert_eq!(resolved(&[external]).flags.image_policy, None);
    let ignored = ["--images-dir=/i", "--runtime-handlers=crun=/usr/bin/crun"];
    let given = resolved(&[&ignored[..], &["--cni-bin-dir=/b", "--bridge-name=b0", external]].concat());
    // What answers at the endpoint may be Docker, for which these count.
    for flag in ["--images-dir", "--runtime-handlers"] {
        let is_named = |line: &String| line.starts_with(&format!("{flag} has no effect: it configures"));
        assert!(given.warnings.iter().any(is_named), "{flag}: {:?}", given.warnings);
    }
    for flag in ["--cni-bin-dir", "--cni-conf-dir", "--bridge-name"] {
        let is_named = |line: &String| line.starts_with(flag);
        assert!(!given.warnings.iter().any(is_named), "{flag}: {:?}", given.warnings);
    }
    assert!(!resolved(&ignored).warnings.iter().any(|line| line.contains("has no effect")));
    let cri = parse_words(&["cri", "--image-policy=/p.json", external]);
    assert!(matches!(cri, Ok(Invocation::Cri { .. })), "its pulls are the embedded runtime's: {cri:?}");
}

#[test]
fn run_once_contradictions_are_bad_usage() {
    for words in [
        &["--runonce", "--kubeconfig=/no/k"][..],
        &["--runonce", "--enable-server"],
        &["--runonce", "--runonce-wait=forever"],
        &["--runonce", "--runonce-timeout=0"],
        &["--runonce", "--runonce-timeout=soon"],
        &["--runonce-timeout=1m"],
        &["--runonce=maybe"],
    ] {
        assert_eq!(parse_words(words).unwrap_err().exit_code(), 2, "{words:?}");
    }
    assert_eq!(parse_words(&["--port=x"]).unwrap_err().exit_code(), 1);
    let once = resolved(&["--runonce", "--runonce-timeout=90s", "--runonce-wait=completed"]);
    assert!(once.kubelet.run_once && !once.kubelet.enable_server);
    assert_eq!(once.flags.run_once_timeout, GoDuration::from_secs(90));
    assert_eq!(once.flags.run_once_wait, RunOnceWait::Completed);
    assert_eq!(resolved(&[]).flags.run_once_timeout, GoDuration::from_secs(300));
}

#[test]
fn an_argument_that_is_no_text_is_an_error() {
    for bytes in [&b"--port=\xff"[..], b"\xff", b"-\xff", b"--\xff=1"] {
        let arguments = [OsString::from_vec(bytes.to_vec())];
        assert!(parse(&arguments, &host()).is_err(), "{bytes:?}");
    }
}

fn any_argument() -> impl Strategy<Value = String> {
    let flags: Vec<&'static str> = flags::known_names().filter(|name| !name.starts_with("config")).collect();
    let name = prop::sample::select(flags);
    prop_oneof![
        name.clone().prop_map(|name| format!("--{name}")),
        (name, "[-a-z0-9.,:;=<>%\"_ ]{0,12}").prop_map(|(name, value)| format!("--{name}={value}")),
        "[-a-z=]{0,6}",
        "\\PC{0,8}",
    ]
}

proptest! {
    #[test]
    fn no_argument_vector_makes_the_parser_panic(words in prop::collection::vec(any_argument(), 0..5)) {
        let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
        if let Err(error) = parse(&arguments, &host()) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 0..4)) {
        let arguments: Vec<OsString> = words.into_iter().map(OsString::from_vec).collect();
        let _ = parse(&arguments, &host());
    }
}
