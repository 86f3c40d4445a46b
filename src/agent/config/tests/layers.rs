//! Defaults, file, drop-ins, flags: their precedence, and the base of relative paths.

use proptest::prelude::*;

use super::*;

#[test]
fn every_field_of_the_table_is_a_field_of_the_type() {
    let document = resolve::baseline().document;
    let decoded = crate::model::api::decode::decode::<KubeletConfiguration>(document.clone()).unwrap();
    assert_eq!(decoded.unknown_fields, Vec::<String>::new());
    for field in fields::FIELDS {
        // A default that does not parse in its own syntax would silently be missing.
        assert_eq!(
            tree::get(&document, field.path).is_some(),
            field.default.is_some() || field.path == "evictionHard",
            "{}",
            field.path
        );
    }
    for flag in flags::FLAGS {
        assert!(flag.kind.parse(flag.default, None).is_ok(), "{}", flag.name);
    }
    for path in fields::BASELINE.iter().map(|(path, _)| path).chain(&fields::RELATIVE_PATHS) {
        assert!(fields::by_path(path).is_some(), "{path}");
    }
}

#[test]
fn the_two_default_sets_differ_as_upstream_says() {
    let baseline = resolve::baseline().document;
    for (path, value) in [
        ("authentication.anonymous.enabled", "true"),
        ("authentication.webhook.enabled", "false"),
        ("authorization.mode", r#""AlwaysAllow""#),
        ("readOnlyPort", "10255"),
        ("evictionHard", "{}"),
        ("failCgroupV1", "true"),
        ("address", r#""0.0.0.0""#),
        ("nodeStatusReportFrequency", r#""5m0s""#),
    ] {
        assert_eq!(tree::get(&baseline, path).unwrap().to_string(), value, "{path}");
    }
    let scratch = Scratch::new();
    let given = resolved(&["--config", &scratch.config("config.yaml", "port: 10250\n")]);
    assert_eq!(given.kubelet.eviction_hard.len(), 5);
    assert_eq!(given.kubelet.eviction_hard["imagefs.available"], "15%");
}

#[test]
fn files_open_nothing_that_they_do_not_name() {
    let scratch = Scratch::new();
    let file = scratch.config("config.yaml", "maxPods: 20\n");
    scratch.config("d/1.conf", "maxPods: 30\n");
    let directory = scratch.path().join("d").to_str().unwrap().to_owned();
    for words in [
        &[][..],
        &["--config", &file],
        &["--config-dir", &directory],
        &["--config", &file, "--config-dir", &directory],
    ] {
        let given = resolved(words);
        for (path, value) in [
            ("authentication.anonymous.enabled", "false"),
            ("authentication.webhook.enabled", "false"),
            ("authorization.mode", r#""Local""#),
            ("readOnlyPort", "0"),
            ("address", r#""127.0.0.1""#),
        ] {
            assert_eq!(field(&given, path), value, "{words:?}: {path}");
        }
    }
    let opened = scratch.config("open.yaml", "address: 0.0.0.0\nreadOnlyPort: 10255\n");
    let given = resolved(&["--config", &opened]);
    assert_eq!((given.kubelet.address.as_str(), given.kubelet.read_only_port), ("0.0.0.0", 10255));
}

#[test]
fn kubeconfig_alone_opens_to_the_cluster_only() {
    let scratch = Scratch::new();
    let kubeconfig = scratch.write("kubeconfig", "x");
    let file = scratch.config("config.yaml", "maxPods: 20\n");
    let access = |given: &Resolved| {
        let kubelet = &given.kubelet;
        let (address, port) = (kubelet.address.clone(), kubelet.read_only_port);
        let tokens = kubelet.authentication_webhook_enabled;
        (address, kubelet.authorization_mode.clone(), tokens, kubelet.authentication_anonymous_enabled, port)
    };
    for words in [&["--kubeconfig", &kubeconfig][..], &["--kubeconfig", &kubeconfig, "--config", &file]] {
        let given = resolved(words);
        let expected = ("0.0.0.0".to_owned(), "Webhook".to_owned(), true, false, 0);
        assert_eq!(access(&given), expected, "{words:?}");
    }
    for (words, address, mode, tokens, anonymous, port) in [
        (&["--address=10.0.0.1"][..], "10.0.0.1", "Webhook", true, false, 0),
        (&["--authorization-mode=Local"], "0.0.0.0", "Local", true, false, 0),
        (&["--authorization-mode=AlwaysAllow"], "0.0.0.0", "AlwaysAllow", true, false, 0),
        (&["--authentication-token-webhook=false"], "0.0.0.0", "Webhook", false, false, 0),
        (&["--anonymous-auth", "--read-only-port=10255"], "0.0.0.0", "Webhook", true, true, 10255),
    ] {
        let words = [words, &["--kubeconfig", &kubeconfig]].concat();
        let expected = (address.to_owned(), mode.to_owned(), tokens, anonymous, port);
        assert_eq!(access(&resolved(&words)), expected, "{words:?}");
    }
    // Without one, all of it is closed, and nothing but the two words differs in the table.
    let values =
        |is_joined| resolve::access_defaults(is_joined).map(|(path, value, _)| (path, value.to_string()));
    let (alone, joined) = (values(false), values(true));
    let differ: Vec<_> =
        alone.iter().zip(&joined).filter(|(one, other)| one != other).map(|(one, _)| one.0).collect();
    assert_eq!(differ, ["address", "authentication.webhook.enabled", "authorization.mode"]);
}

#[test]
fn a_kubeconfig_that_is_missing_is_an_error() {
    let scratch = Scratch::new();
    let there = scratch.write("bootstrap", "x");
    let directory = scratch.path().to_str().unwrap().to_owned();
    assert!(refusal(&["--kubeconfig=/no/k"]).contains("--kubeconfig: /no/k does not exist"));
    assert!(refusal(&["--kubeconfig", &directory]).contains("not a regular file"));
    let text = refusal(&["--kubeconfig=/no/k", "--bootstrap-kubeconfig=/no/b"]);
    assert!(text.contains("--bootstrap-kubeconfig: /no/b does not exist"), "{text}");
    resolved(&["--kubeconfig=/no/k", "--bootstrap-kubeconfig", &there]);
}

#[test]
fn defaults_are_closed_and_differences_to_kubelet_are_named() {
    let given = resolved(&[]);
    for (path, value) in [
        ("failCgroupV1", "false"),
        ("failSwapOn", "false"),
        ("address", r#""127.0.0.1""#),
        ("authentication.anonymous.enabled", "false"),
        ("readOnlyPort", "0"),
        ("containerRuntimeEndpoint", r#""embedded""#),
    ] {
        assert_eq!(field(&given, path), value, "{path}");
        let origin = given.provenance[path].to_string();
        assert!(origin.starts_with("agent default (differs from the kubelet): "), "{path}: {origin}");
    }
    assert_eq!(given.kubelet.authorization_mode, "Local");
    assert_eq!(given.node_name, "edge-1");
    assert_eq!(given.flags.images_dir, Path::new("/var/lib/kubelet/images"));
    assert_eq!(given.flags.agent_socket, Path::new("/run/agent/agent.sock"));
}

#[test]
fn what_the_user_says_beats_our_defaults() {
    let given = resolved(&[
        "--address=0.0.0.0",
        "--anonymous-auth",
        "--read-only-port=10255",
        "--fail-swap-on",
        "--fail-cgroupv1=true",
        "--container-runtime-endpoint=unix:///run/crio/crio.sock",
    ]);
    assert_eq!((given.kubelet.address.as_str(), given.kubelet.read_only_port), ("0.0.0.0", 10255));
    assert!(given.kubelet.authentication_anonymous_enabled);
    assert!(given.kubelet.fail_swap_on && given.kubelet.fail_cgroup_v1);
    assert_eq!(given.kubelet.container_runtime_endpoint, "unix:///run/crio/crio.sock");
    let scratch = Scratch::new();
    let file = scratch.config(
        "c",
        "failSwapOn: true\nauthorization: {mode: Webhook}\nauthentication: {webhook: {enabled: true}}\n",
    );
    let given = resolved(&["--config", &file]);
    assert!(given.kubelet.fail_swap_on && given.kubelet.authentication_webhook_enabled);
    assert_eq!(given.kubelet.authorization_mode, "Webhook");
}

#[test]
fn a_plain_zero_means_the_default_and_a_pointers_zero_is_kept() {
    let scratch = Scratch::new();
    let file = scratch.config("c", "port: 0\nsyncFrequency: 0s\nhealthzPort: 0\nresolvConf: ''\nregistryPullQPS: 0\ncgroupsPerQOS: null\n");
    let given = resolved(&["--config", &file]);
    assert_eq!((given.kubelet.port, given.kubelet.sync_frequency), (10250, GoDuration::from_secs(60)));
    assert_eq!((given.kubelet.healthz_port, given.kubelet.registry_pull_qps), (0, 0));
    assert_eq!((given.kubelet.resolv_conf.as_str(), given.kubelet.cgroups_per_qos), ("", true));
    assert_eq!(given.provenance["port"], Origin::Default);
    assert_eq!(given.provenance["healthzPort"].to_string(), format!("file {file}"));
}

#[test]
fn defaults_that_depend_on_other_fields_follow_them() {
    let scratch = Scratch::new();
    let file = scratch.config("c", "nodeStatusUpdateFrequency: 30s\nmaxParallelImagePulls: 3\n");
    let given = resolved(&["--config", &file]);
    assert_eq!(given.kubelet.node_status_report_frequency, GoDuration::from_secs(30));
    assert!(!given.kubelet.serialize_image_pulls);
    let lone = resolved(&["--config", &scratch.config("d", "maxParallelImagePulls: 1\n")]);
    assert!(lone.kubelet.serialize_image_pulls);
    assert_eq!(lone.kubelet.node_status_report_frequency, GoDuration::from_secs(300));
}

#[test]
fn default_hard_eviction_applies_only_when_the_file_omits_it() {
    let scratch = Scratch::new();
    let count = |body: &str| {
        let file = scratch.config("c", body);
        resolved(&["--config", &file]).kubelet.eviction_hard
    };
    assert_eq!(count("").len(), 5);
    assert_eq!(count("evictionHard: {}\n").len(), 0);
    assert_eq!(count("evictionHard: {memory.available: 1Gi}\n").len(), 1);
    let merged = count("evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true\n");
    assert_eq!((merged.len(), merged["memory.available"].as_str()), (5, "1Gi"));
    assert_eq!(resolved(&[]).kubelet.eviction_hard.len(), 0);
}

#[test]
fn drop_ins_merge_in_order_replace_lists_and_null_resets() {
    let scratch = Scratch::new();
    let file = scratch
        .config("main.yaml", "maxPods: 50\nport: 9999\nclusterDNS: [1.1.1.1, 2.2.2.2]\nstaticPodPath: rel\n");
    scratch.config("d/20-b.conf", "maxPods: 70\nevictionHard: {pid.available: 5%}\n");
    scratch.config("d/10-a.conf", "maxPods: 60\nclusterDNS: [3.3.3.3]\nstaticPodPath: here\n");
    scratch.config("d/15/x.conf", "port: null\npodsPerCore: 4\n");
    scratch.write("d/99.yaml", "maxPods: nonsense");
    let directory = scratch.path().join("d");
    let given = resolved(&["--config", &file, "--config-dir", directory.to_str().unwrap()]);
    assert_eq!((given.kubelet.max_pods, given.kubelet.port, given.kubelet.pods_per_core), (70, 10250, 4));
    assert_eq!(given.kubelet.cluster_dns, ["3.3.3.3"]);
    assert_eq!(
        given.kubelet.eviction_hard.len(),
        6,
        "an object merges with what the main file was filled with"
    );
    assert_eq!(given.kubelet.static_pod_path, "here", "drop-ins are relative to the working directory");
    assert!(given.provenance["maxPods"].to_string().ends_with("20-b.conf"));
    assert_eq!(given.provenance["port"], Origin::Default);
    let alone = resolved(&["--config-dir", directory.to_str().unwrap()]);
    assert_eq!(alone.kubelet.eviction_hard.len(), 1, "without a main file the flag baseline is the base");
}

#[test]
fn drop_ins_without_their_kind_are_refused_by_name() {
    let scratch = Scratch::new();
    let directory = scratch.path().to_str().unwrap().to_owned();
    for (text, part) in [
        ("maxPods: 3\n", "no apiVersion/kind"),
        ("apiVersion: v1\nkind: Pod\n", "this is a manifest (kind Pod)"),
        ("", "empty"),
        ("# nothing\n", "empty"),
        ("a: [", "line"),
    ] {
        scratch.write("a.conf", text);
        let error = refusal(&["--config-dir", &directory]);
        assert!(error.contains("a.conf") && error.contains(part), "{text:?}: {error}");
    }
}

#[test]
fn relative_paths_resolve_from_the_file_but_not_in_flags() {
    let scratch = Scratch::new();
    let file = scratch.config(
        "c",
        "staticPodPath: ../m\nauthentication: {x509: {clientCAFile: ca.crt}}\npodLogsDir: /abs\n",
    );
    let given = resolved(&["--config", &file]);
    let parent = scratch.path().parent().unwrap();
    assert_eq!(Path::new(&given.kubelet.static_pod_path), parent.join("m"));
    assert_eq!(Path::new(&given.kubelet.authentication_x509_client_ca_file), scratch.path().join("ca.crt"));
    assert_eq!(given.kubelet.pod_logs_dir, "/abs");
    let given = resolved(&["--config", &file, "--pod-manifest-path=rel"]);
    assert_eq!(given.kubelet.static_pod_path, "rel");
}

#[test]
fn paths_of_flags_are_made_absolute() {
    let here = std::env::current_dir().unwrap();
    assert_eq!(resolved(&["--root-dir=a/../r/"]).flags.root_dir, here.join("r"));
    let given = resolved(&[
        "--root-dir=r",
        "--cert-dir=c",
        "--runtime-state-dir=./s",
        "--agent-socket=a.sock",
        "--cni-conf-dir=n",
        "--cni-bin-dir=b:/opt/b",
        "--image-policy=p.json",
    ]);
    let flags = &given.flags;
    assert_eq!([&flags.root_dir, &flags.cert_dir], [&here.join("r"), &here.join("c")]);
    assert_eq!(flags.images_dir, here.join("r/images"));
    assert_eq!([&flags.runtime_state_dir, &flags.agent_socket], [&here.join("s"), &here.join("a.sock")]);
    assert_eq!(flags.cni_conf_dir, here.join("n"));
    assert_eq!(flags.cni_bin_dirs, [here.join("b"), PathBuf::from("/opt/b")]);
    assert_eq!(flags.image_policy, Some(here.join("p.json")));
    assert_eq!(resolved(&[]).flags.image_policy, None);
}

#[test]
fn unknown_and_duplicate_fields_warn_and_the_rest_counts() {
    let scratch = Scratch::new();
    let file = scratch.config(
        "c",
        "maxPodz: 3\nmaxPods: 4\nmaxPods: 5\nlogging: {colour: red, flushFrequency: 7000000000}\n",
    );
    let given = resolved(&["--config", &file]);
    assert_eq!(given.kubelet.max_pods, 5, "the last one wins");
    assert_eq!(
        given.kubelet.logging_flush_frequency,
        GoDuration::from_secs(7),
        "nanoseconds are accepted here"
    );
    let [line] = given.warnings.as_slice() else { panic!("{:?}", given.warnings) };
    for part in ["Using lenient decoding", "maxPodz", "logging.colour", "duplicate", &file] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let json = scratch.write(
        "j",
        r#"{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration","maxPods":6}"#,
    );
    assert_eq!(resolved(&["--config", &json]).kubelet.max_pods, 6);
}

#[test]
fn files_that_cannot_be_used_are_refused_by_path_and_reason() {
    let scratch = Scratch::new();
    for (body, part) in [
        ("maxPods: many\n", "maxPods: invalid type"),
        ("maxPods: \"5\"\n", "maxPods"),
        ("maxPods: 5000000000\n", "maxPods"),
        ("syncFrequency: 20\n", "syncFrequency"),
        ("syncFrequency: 20x\n", "not a duration like 1m30s"),
        ("authentication: yes\n", "authentication: invalid type: boolean `true`, expected a map"),
        ("authentication: {x509: {clientCAFile: 5}}\n", "authentication.x509.clientCAFile: invalid type"),
        ("---\nkind: Pod\n", "2 YAML documents"),
    ] {
        let file = scratch.config("c", body);
        let error = refusal(&["--config", &file]);
        assert!(
            error.starts_with(&format!("failed to load kubelet config file, path: {file}, error: ")),
            "{error}"
        );
        assert!(error.contains(part), "{body:?}: {error}");
    }
    assert!(refusal(&["--config", &scratch.write("e", " \n")]).contains("empty"));
    assert!(refusal(&["--config", "/no/such/file"]).contains("No such file"));
    let directory = scratch.path().to_str().unwrap();
    assert!(refusal(&["--config", directory]).contains(&format!("use --manifest-dir {directory}")));
    for body in [
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n",
        "apiVersion: v1\nkind: ConfigMap\n---\nkind: Pod\n",
    ] {
        let manifest = scratch.write("pod.yaml", body);
        let said = refusal(&["--config", &manifest]);
        assert!(
            said.contains("this is a manifest") && said.contains(&format!("use --manifest-dir {manifest}")),
            "{said}"
        );
    }
    let huge = scratch.config("h", &"#".repeat(1 << 20));
    assert!(refusal(&["--config", &huge]).contains("larger than"));
    let deep = scratch.config("deep", &format!("a: {}", "[".repeat(5000)));
    assert!(refusal(&["--config", &deep]).contains("error"));
}

#[test]
fn feature_gates_merge_by_name_and_flags_replace_lists() {
    let scratch = Scratch::new();
    let file = scratch.config(
        "c",
        "featureGates: {NodeLogQuery: true, GracefulNodeShutdown: false}\nclusterDNS: [1.1.1.1]\n",
    );
    let given =
        resolved(&["--config", &file, "--feature-gates=GracefulNodeShutdown=true", "--cluster-dns=2.2.2.2"]);
    assert!(
        given.feature_gates.enabled("NodeLogQuery") && given.feature_gates.enabled("GracefulNodeShutdown")
    );
    assert_eq!(given.kubelet.cluster_dns, ["2.2.2.2"]);
    assert!(refusal(&["--feature-gates=Nope=true"]).contains("unrecognized feature gate: Nope"));
    let bad = scratch.config("b", "featureGates: {Nope: true}\n");
    assert!(refusal(&["--config", &bad]).contains("featureGates.Nope"));
}

#[test]
fn our_own_cri_socket_means_embedded() {
    let scratch = Scratch::new();
    let bootstrap = scratch.config("bootstrap", "kind: Config\n");
    let file = scratch.config(
        "c",
        "containerRuntimeEndpoint: unix:///var/run/agent/cri.sock\nimageServiceEndpoint: unix:///run/agent/cri.sock\n",
    );
    let words = ["--config", &file, "--kubeconfig=/nonexistent", "--bootstrap-kubeconfig", &bootstrap];
    let joined = resolved(&words).kubelet;
    assert_eq!(
        (joined.container_runtime_endpoint.as_str(), joined.image_service_endpoint.as_str()),
        ("embedded", "")
    );
    for (more, expected) in [
        ("--cri-socket=", "unix:///var/run/agent/cri.sock"),
        ("--cri-socket=/run/agent/cri.sock", "embedded"),
        ("--cri-socket=/run/other.sock", "unix:///var/run/agent/cri.sock"),
        (
            "--container-runtime-endpoint=unix:///run/containerd/containerd.sock",
            "unix:///run/containerd/containerd.sock",
        ),
    ] {
        let given = resolved(&[&words[..], &[more]].concat());
        assert_eq!(given.kubelet.container_runtime_endpoint, expected, "{more}");
    }
    // Without a cluster the socket is that of another process, `agent cri`.
    let alone = resolved(&["--config", &file]);
    assert_eq!(alone.kubelet.container_runtime_endpoint, "unix:///var/run/agent/cri.sock");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn flag_beats_drop_in_beats_file_beats_default(
        file in prop::option::of(1..1000_i32),
        drop_in in prop::option::of(1..1000_i32),
        flag in prop::option::of(1..1000_i32),
    ) {
        let scratch = Scratch::new();
        let body = |value: Option<i32>| value.map_or(String::new(), |value| format!("maxPods: {value}\n"));
        let main = scratch.config("main", &body(file));
        scratch.config("d/a.conf", &body(drop_in));
        let directory = scratch.path().join("d");
        let mut words = vec!["--config".to_owned(), main, "--config-dir".to_owned(), directory.to_str().unwrap().to_owned()];
        words.extend(flag.map(|value| format!("--max-pods={value}")));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let given = resolved(&words);
        prop_assert_eq!(given.kubelet.max_pods, flag.or(drop_in).or(file).unwrap_or(110));
        let origin = &given.provenance["maxPods"];
        let right = match (flag, drop_in, file) {
            (Some(_), ..) => matches!(origin, Origin::Flag(_)),
            (None, Some(_), _) => matches!(origin, Origin::DropIn(_)),
            (None, None, Some(_)) => matches!(origin, Origin::File(_)),
            _ => *origin == Origin::Default,
        };
        prop_assert!(right, "{:?}", origin);
    }

    #[test]
    fn no_file_makes_the_loader_panic(body in "[-a-zA-Z0-9:{}\\[\\]\"'&*!|>#%@ \n]{0,80}") {
        let scratch = Scratch::new();
        let file = scratch.config("c", &body);
        let _ = parse_words(&["--config", &file]);
    }
}
