//! Every rule about values has a case that breaks it.

use super::*;

#[test]
#[expect(clippy::too_many_lines, reason = "one flat table")]
fn each_broken_rule_of_the_file_is_reported_at_its_field() {
    let scratch = Scratch::new();
    for (body, path) in [
        ("port: 70000", "port"),
        ("readOnlyPort: -1", "readOnlyPort"),
        ("healthzPort: 65536", "healthzPort"),
        ("address: here", "address"),
        ("healthzBindAddress: 1.2.3", "healthzBindAddress"),
        ("syncFrequency: -1s", "syncFrequency"),
        ("eventRecordQPS: -1", "eventRecordQPS"),
        ("eventBurst: -1", "eventBurst"),
        ("kubeAPIQPS: -1", "kubeAPIQPS"),
        ("kubeAPIBurst: -1", "kubeAPIBurst"),
        ("authorization: {mode: ABAC}", "authorization.mode"),
        ("tlsCipherSuites: [TLS_AES_128_GCM_SHA257]", "tlsCipherSuites[0]"),
        ("tlsMinVersion: TLS12", "tlsMinVersion"),
        ("tlsCurvePreferences: [1]", "tlsCurvePreferences[0]"),
        ("tlsCertFile: /c", "tlsCertFile"),
        (
            "serverTLSBootstrap: true\nfeatureGates: {RotateKubeletServerCertificate: false}",
            "serverTLSBootstrap",
        ),
        ("enableSystemLogQuery: true\nenableSystemLogHandler: false", "enableSystemLogQuery"),
        ("showHiddenMetricsForVersion: '1.20'", "showHiddenMetricsForVersion"),
        ("tracing: {samplingRatePerMillion: 1000001}", "tracing.samplingRatePerMillion"),
        ("logging: {format: xml}", "logging.format"),
        ("logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}", "logging.vmodule"),
        ("logging: {options: {json: {splitStream: true}}}", "logging.options.json"),
        ("oomScoreAdj: -1001", "oomScoreAdj"),
        ("nodeLeaseDurationSeconds: -1", "nodeLeaseDurationSeconds"),
        ("nodeStatusMaxImages: -2", "nodeStatusMaxImages"),
        ("registerWithTaints: [{key: a, effect: Never}]", "registerWithTaints[0].effect"),
        ("registerWithTaints: [{key: '-', effect: NoExecute}]", "registerWithTaints[0].key"),
        (
            "registerWithTaints: [{key: a, effect: NoExecute, timeAdded: x}]",
            "registerWithTaints[0].timeAdded",
        ),
        ("maxPods: -1", "maxPods"),
        ("podsPerCore: -1", "podsPerCore"),
        ("hairpinMode: loop", "hairpinMode"),
        ("maxOpenFiles: -1", "maxOpenFiles"),
        ("registryPullQPS: -1", "registryPullQPS"),
        ("registryBurst: -1", "registryBurst"),
        ("maxParallelImagePulls: 0", "maxParallelImagePulls"),
        ("maxParallelImagePulls: 2\nserializeImagePulls: true", "maxParallelImagePulls"),
        ("imagePullCredentialsVerificationPolicy: Sometimes", "imagePullCredentialsVerificationPolicy"),
        ("preloadedImagesVerificationAllowlist: [a]", "preloadedImagesVerificationAllowlist"),
        ("imageMinimumGCAge: -1s", "imageMinimumGCAge"),
        ("imageMaximumGCAge: 1m", "imageMaximumGCAge"),
        ("imageGCHighThresholdPercent: 101", "imageGCHighThresholdPercent"),
        ("imageGCLowThresholdPercent: 85", "imageGCLowThresholdPercent"),
        ("containerLogMaxSize: big", "containerLogMaxSize"),
        ("containerLogMaxFiles: 1", "containerLogMaxFiles"),
        ("containerLogMaxWorkers: 0", "containerLogMaxWorkers"),
        ("containerLogMonitorInterval: 2s", "containerLogMonitorInterval"),
        ("crashLoopBackOff: {maxContainerRestartPeriod: 301s}", "crashLoopBackOff.maxContainerRestartPeriod"),
        ("crashLoopBackOff: {maxContainerRestartPeriod: 10ms}", "crashLoopBackOff.maxContainerRestartPeriod"),
        ("configMapAndSecretChangeDetectionStrategy: Poll", "configMapAndSecretChangeDetectionStrategy"),
        ("podLogsDir: /a/../b", "podLogsDir"),
        ("podLogsDir: /a/", "podLogsDir"),
        ("podLogsDir: /\u{e4}", "podLogsDir"),
        ("allowedUnsafeSysctls: [vm.swappiness]", "allowedUnsafeSysctls[0]"),
        ("shutdownGracePeriod: 10ms", "shutdownGracePeriod"),
        ("shutdownGracePeriodCriticalPods: 5s", "shutdownGracePeriodCriticalPods"),
        (
            "shutdownGracePeriod: 5s\nshutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 1}]",
            "shutdownGracePeriodByPodPriority",
        ),
        ("featureGates: {GracefulNodeShutdown: false}\nshutdownGracePeriod: 30s", "shutdownGracePeriod"),
        (
            "featureGates: {GracefulNodeShutdown: false}\nshutdownGracePeriodCriticalPods: 5s",
            "shutdownGracePeriod",
        ),
        (
            "featureGates: {GracefulNodeShutdown: false}\n\
             shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 1}]",
            "shutdownGracePeriodByPodPriority",
        ),
        (
            "featureGates: {GracefulNodeShutdownBasedOnPodPriority: false}\n\
             shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 1}]",
            "shutdownGracePeriodByPodPriority",
        ),
        ("userNamespaces: {idsPerPod: 65537}", "userNamespaces.idsPerPod"),
        ("cgroupDriver: openrc", "cgroupDriver"),
        ("systemCgroups: /sys", "systemCgroups"),
        ("cpuManagerPolicy: dynamic", "cpuManagerPolicy"),
        ("cpuManagerPolicy: static\ncpuManagerPolicyOptions: {fast: 'true'}", "cpuManagerPolicyOptions.fast"),
        ("memoryManagerPolicy: static", "memoryManagerPolicy"),
        ("topologyManagerPolicy: best", "topologyManagerPolicy"),
        ("topologyManagerScope: node", "topologyManagerScope"),
        (
            "topologyManagerPolicyOptions: {max-allowable-numa-nodes: '7'}",
            "topologyManagerPolicyOptions.max-allowable-numa-nodes",
        ),
        ("reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]", "reservedMemory[0].limits.cpu"),
        ("reservedMemory: [{numaNode: 0, limits: {memory: 0}}]", "reservedMemory[0].limits.memory"),
        (
            "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}, {numaNode: 0, limits: {memory: 1Gi}}]",
            "reservedMemory[1].limits.memory",
        ),
        ("qosReserved: {memory: 50%}", "qosReserved"),
        (
            "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: 'yes'}",
            "cpuManagerPolicyOptions.full-pcpus-only",
        ),
        (
            "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {align-by-socket: 'true'}",
            "cpuManagerPolicyOptions.align-by-socket",
        ),
        (
            "cpuManagerPolicy: static\n\
             cpuManagerPolicyOptions: {distribute-cpus-across-numa: 't', prefer-align-cpus-by-uncorecache: '1'}",
            "cpuManagerPolicyOptions",
        ),
        (
            "featureGates: {CPUManagerPolicyAlphaOptions: true}\ncpuManagerPolicy: static\n\
             cpuManagerPolicyOptions: {full-pcpus-only: 'true', distribute-cpus-across-cores: 'true'}",
            "cpuManagerPolicyOptions",
        ),
        (
            "featureGates: {CPUManagerPolicyBetaOptions: false}\ncpuManagerPolicy: static\n\
             cpuManagerPolicyOptions: {distribute-cpus-across-numa: 'true'}",
            "cpuManagerPolicyOptions.distribute-cpus-across-numa",
        ),
        ("cpuManagerPolicyOptions: {full-pcpus-only: 'true'}", "cpuManagerPolicyOptions"),
        ("cpuManagerReconcilePeriod: -1s", "cpuManagerReconcilePeriod"),
        ("cpuCFSQuotaPeriod: 2s", "cpuCFSQuotaPeriod"),
        ("featureGates: {CustomCPUCFSQuotaPeriod: false}\ncpuCFSQuotaPeriod: 50ms", "cpuCFSQuotaPeriod"),
        ("memoryThrottlingFactor: 1.5", "memoryThrottlingFactor"),
        ("memoryReservationPolicy: TieredReservation", "memoryReservationPolicy"),
        ("memorySwap: {swapBehavior: UnlimitedSwap}", "memorySwap.swapBehavior"),
        ("systemReserved: {gpu: '1'}", "systemReserved.gpu"),
        ("kubeReserved: {cpu: '-1'}", "kubeReserved.cpu"),
        ("reservedSystemCPUs: 3-1", "reservedSystemCPUs"),
        ("reservedSystemCPUs: '0'\nkubeReservedCgroup: /k", "reservedSystemCPUs"),
        ("enforceNodeAllocatable: [all]", "enforceNodeAllocatable[0]"),
        ("enforceNodeAllocatable: [pods, pods]", "enforceNodeAllocatable[1]"),
        ("enforceNodeAllocatable: [none, pods]", "enforceNodeAllocatable[0]"),
        ("enforceNodeAllocatable: [kube-reserved]", "enforceNodeAllocatable[0]"),
        (
            "enforceNodeAllocatable: [kube-reserved, kube-reserved-compressible]\nkubeReservedCgroup: /k",
            "enforceNodeAllocatable",
        ),
        ("cgroupsPerQOS: false", "enforceNodeAllocatable[0]"),
        ("evictionHard: {disk.available: 1Gi}", "evictionHard.disk.available"),
        ("evictionHard: {memory.available: 101%}", "evictionHard.memory.available"),
        ("evictionHard: {memory.available: -1Gi}", "evictionHard.memory.available"),
        ("evictionSoft: {memory.available: 1Gi}", "evictionSoft.memory.available"),
        ("evictionSoftGracePeriod: {memory.available: 0s}", "evictionSoftGracePeriod.memory.available"),
        ("evictionMinimumReclaim: {memory.available: x}", "evictionMinimumReclaim.memory.available"),
        ("iptablesDropBit: 32", "iptablesDropBit"),
    ] {
        let file = scratch.config("c", &format!("{body}\n"));
        match parse_words(&["--config", &file]) {
            Err(ConfigError::Configuration(findings)) => {
                assert_eq!(findings.0.len(), 1, "{body}: {findings}");
                assert_eq!(findings.0[0].field, path, "{body}: {findings}");
            }
            other => panic!("{body}: {other:?}"),
        }
    }
}

#[test]
fn what_a_start_refuses_a_reload_does_too() {
    let scratch = Scratch::new();
    let cluster = scratch.config("kubeconfig", "");
    let good = scratch.config("good", "");
    for (body, expected) in [
        ("authorization: {mode: Webhook}", "authorization.mode: Webhook requires a cluster"),
        (
            "authentication: {webhook: {enabled: true}}",
            "authentication.webhook.enabled: true requires a cluster",
        ),
        ("tlsCipherSuites: [TLS_RSA_WITH_AES_128_CBC_SHA]", "tlsCipherSuites: none of"),
        ("tlsCurvePreferences: [25]", "tlsCurvePreferences: none of"),
        ("podCIDR: 10.0.0.0", "podCIDR: \"10.0.0.0\": must be address/length"),
        (
            "imageServiceEndpoint: unix:///run/i.sock",
            "imageServiceEndpoint: \"unix:///run/i.sock\" cannot be used",
        ),
    ] {
        let file = scratch.config("c", &format!("{body}\n"));
        let checked = |more: &[&str]| {
            let checked = resolved(&[&["--config", &file], more].concat()).check_start();
            checked.map_err(|error| error.to_string())
        };
        let text = checked(&[]).unwrap_err();
        assert!(text.contains(expected), "{text}");
        // A running agent reads it again.
        std::fs::copy(&good, &file).unwrap();
        let read = resolved(&["--config", &file]).reader();
        scratch.config("c", &format!("{body}\n"));
        assert_eq!(read().unwrap_err(), text);
        if text.contains("requires a cluster") {
            assert_eq!(checked(&["--kubeconfig", &cluster]), Ok(()));
        }
        let without = if text.contains("podCIDR") || text.contains("imageServiceEndpoint") {
            "--container-runtime-endpoint=unix:///run/containerd/containerd.sock"
        } else {
            "--enable-server=false"
        };
        assert_eq!(checked(&[without]), Ok(()));
    }
}

#[test]
fn what_the_rules_allow_passes() {
    let scratch = Scratch::new();
    let file = scratch.config(
        "c",
        "allowedUnsafeSysctls: ['kernel.shm*', net.core.somaxconn, kernel.sem, 'fs.mqueue.*']\n\
         evictionSoft: {memory.available: 5%}\nevictionSoftGracePeriod: {memory.available: 1m30s}\n\
         cgroupsPerQOS: false\nenforceNodeAllocatable: [none]\n\
         reservedSystemCPUs: 0-1,3\nsystemReserved: {cpu: 500m, pid: '100'}\n\
         shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n\
         memorySwap: {swapBehavior: LimitedSwap}\nsingleProcessOOMKill: true\n\
         reservedMemory: [{numaNode: 0, limits: {memory: 1Gi, hugepages-2Mi: 64Mi}}]\n\
         cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: 'true', strict-cpu-reservation: 'T'}\n\
         topologyManagerPolicy: restricted\ntopologyManagerPolicyOptions: {prefer-closest-numa-nodes: '1'}\n\
         userNamespaces: {idsPerPod: 131072}\nimageMaximumGCAge: 12h\n\
         logging: {format: json}\ntlsCipherSuites: [TLS_AES_128_GCM_SHA256]\ntlsMinVersion: VersionTLS13\n",
    );
    let without_policy = "reservedMemory has no effect: memoryManagerPolicy is None";
    assert_eq!(resolved(&["--config", &file]).warnings, [without_policy]);
    let reservation = "systemReserved: {memory: 1Gi}";
    let file = scratch.config("d", &format!("memoryManagerPolicy: Static\n{reservation}\nreservedMemory: [{{numaNode: 0, limits: {{memory: 1Gi}}}}]\n"));
    assert_eq!(resolved(&["--config", &file]).warnings, Vec::<String>::new());
}

#[test]
fn all_mistakes_are_reported_together() {
    let text = refusal(&["--port=0", "--max-pods=-1", "--cgroup-driver=x", "--image-gc-high-threshold=10"]);
    assert!(text.starts_with("failed to validate kubelet configuration, error: ["), "{text}");
    for part in
        ["port: 0 is out of range; use between 1 and 65535", "maxPods: ", "cgroupDriver: ", "imageGCLow"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = refusal(&["--cloud-provider=aws", "--exit-on-lock-contention", "--node-labels=-=x"]);
    assert!(text.starts_with("failed to validate kubelet flags: ["), "{text}");
    for part in ["--cloud-provider: ", "no lock file specified", "--node-labels: "] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn node_labels_in_kubernetes_own_domains_need_the_allow_lists() {
    for label in [
        "a=b",
        "example.com/role=x",
        "kubernetes.io/hostname=h",
        "topology.kubernetes.io/zone=z",
        "node.kubernetes.io/x=",
        "my.kubelet.kubernetes.io/x=1",
        "notkubernetes.io/x=1",
    ] {
        assert_eq!(resolved(&["--node-labels", label]).flags.node_labels.len(), 1, "{label}");
    }
    let text =
        refusal(&["--node-labels=kubernetes.io/role=a,x.k8s.io/b=1,node-role.kubernetes.io/master=,good=1"]);
    assert!(text.contains("[kubernetes.io/role node-role.kubernetes.io/master x.k8s.io/b]"), "{text}");
    assert!(
        text.contains("kubelet.kubernetes.io, node.kubernetes.io")
            && text.contains("beta.kubernetes.io/arch")
    );
    for bad in ["a b=c", "x/=1", "/x=1", "a=b c", "a=-"] {
        assert!(refusal(&["--node-labels", bad]).contains("--node-labels"), "{bad}");
    }
}

#[test]
fn node_addresses_are_one_or_a_pair_of_families() {
    let addresses = |text: &str| {
        let given = resolved(&["--node-ip", text]);
        given.node_ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(addresses(""), "");
    assert_eq!(addresses("192.0.2.1"), "192.0.2.1");
    assert_eq!(addresses("192.000.002.001"), "192.0.2.1");
    assert_eq!(addresses("2001:db8::1,192.0.2.1"), "2001:db8::1 192.0.2.1");
    assert_eq!(addresses("::"), "::");
    assert_eq!(addresses("0.0.0.0"), "0.0.0.0");
    assert_eq!(addresses("what,192.0.2.1"), "192.0.2.1");
    assert!(resolved(&["--node-ip=what"]).warnings[0].contains("what"));
    for bad in [
        "192.0.2.1,192.0.2.2",
        "192.0.2.1,::1,192.0.2.2",
        "::,192.0.2.1",
        "127.0.0.1",
        "224.0.0.1",
        "fe80::1",
        "192.0.2.1,fe80::1",
    ] {
        assert!(refusal(&["--node-ip", bad]).contains("--node-ip"), "{bad}");
    }
}

#[test]
fn the_nodes_name_is_trimmed_lowered_and_never_empty() {
    assert_eq!(resolved(&["--hostname-override=  Box-7 "]).node_name, "box-7");
    let nameless = Environment::default();
    let error = parse(&[], &nameless).unwrap_err().to_string();
    assert!(error.contains("empty hostname is invalid"), "{error}");
    let odd = resolved(&["--hostname-override=a_b"]);
    assert!(
        odd.node_name == "a_b" && odd.warnings[0].contains("not a valid node name"),
        "{:?}",
        odd.warnings
    );
    assert!(refusal(&["--root-dir="]).contains("--root-dir: must not be empty"));
}

#[test]
fn credential_provider_flags_come_in_pairs_that_exist() {
    let scratch = Scratch::new();
    let directory = scratch.path().to_str().unwrap().to_owned();
    let config = scratch.write("c.yaml", "x");
    let (dir_flag, file_flag) = ("--image-credential-provider-bin-dir", "--image-credential-provider-config");
    assert!(refusal(&[dir_flag, &directory]).contains("must be set with"));
    assert!(refusal(&[file_flag, &config]).contains("must be set with"));
    assert!(refusal(&[file_flag, &config, dir_flag, "/no/dir"]).contains("is not a directory"));
    assert_eq!(
        resolved(&[file_flag, &config, dir_flag, &directory]).flags.image_credential_provider_config,
        config
    );
}

#[test]
fn dubious_values_warn_and_start() {
    let given = resolved(&[
        "--kubelet-cgroups=/a",
        "--kube-reserved-cgroup=/b",
        "--cluster-dns=nope",
        "--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "--feature-gates=NodeSwap=true",
        "--tls-min-version=VersionTLS11",
    ]);
    for part in [
        "kubeletCgroups",
        "nope",
        "insecure cipher \"TLS_RSA_WITH_RC4_128_SHA\"",
        "GA feature gate NodeSwap",
        "tlsMinVersion VersionTLS11 is not served",
        "Flag --kubelet-cgroups has been deprecated",
    ] {
        assert!(given.warnings.iter().any(|line| line.contains(part)), "{part}: {:?}", given.warnings);
    }
    assert!(!given.warnings.iter().any(|line| line.contains("CHACHA20")), "{:?}", given.warnings);
}
