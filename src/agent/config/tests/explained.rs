//! Output of the configuration.

use super::*;

#[test]
fn flag_lines_are_alphabetical_and_complete() {
    let given =
        resolved(&["--pod-manifest-path=/m", "--cluster-dns=a,b", "--manifest-url-header=X:secret", "-v2"]);
    let mut sorted = given.flag_dump.clone();
    sorted.sort_by_key(|line| line.split('=').next().map(str::to_owned));
    assert_eq!(given.flag_dump, sorted);
    for line in [
        r#"FLAG: --pod-manifest-path="/m""#,
        r#"FLAG: --cluster-dns="[a,b]""#,
        r#"FLAG: --manifest-url-header="X:<masked>""#,
        r#"FLAG: --v="2""#,
        r#"FLAG: --sync-frequency="1m0s""#,
        r#"FLAG: --enforce-node-allocatable="[pods]""#,
        // Where the agent's default is not the kubelet's, it is the agent's that is shown.
        r#"FLAG: --address="127.0.0.1""#,
        r#"FLAG: --anonymous-auth="false""#,
        r#"FLAG: --container-runtime-endpoint="embedded""#,
        r#"FLAG: --eviction-hard="""#,
        r#"FLAG: --streaming-connection-idle-timeout="4h0m0s""#,
        r#"FLAG: --root-dir="/var/lib/kubelet""#,
    ] {
        assert!(given.flag_dump.iter().any(|have| have == line), "{line}");
    }
    assert_eq!(given.flag_dump.len(), flags::known_names().count() - flags::ALIASES.len());
}

#[test]
fn the_printed_file_reads_back_to_the_same_configuration() {
    let scratch = Scratch::new();
    let file = scratch.config(
        "c",
        "clusterDNS: ['1.1.1.1', 'on']\nclusterDomain: 'no'\nstaticPodPath: '/a b: #c'\npodLogsDir: /x\n\
         evictionHard: {memory.available: 5%}\n\
         featureGates: {EnvFiles: true}\nproviderID: '0755'\nlogging: {vmodule: [{filePattern: 'a*', verbosity: 3}]}\n",
    );
    let first = resolved(&["--config", &file]);
    let second = resolved(&["--config", &scratch.write("again", &first.to_yaml())]);
    assert_eq!(second.warnings, first.warnings);
    assert_eq!(first.document, second.document, "{}", first.to_yaml());
    let plain = resolved(&["--runonce"]);
    let again = resolved(&["--config", &scratch.write("plain", &plain.to_yaml())]);
    assert_eq!(plain.kubelet, again.kubelet);
}

#[test]
fn a_default_that_stands_for_more_is_not_printed_as_a_value() {
    const PERIOD: &str = "crashLoopBackOff.maxContainerRestartPeriod";
    let scratch = Scratch::new();
    let file = scratch.config("c", "maxPods: 7\n");
    let silent = resolved(&["--config", &file]);
    let text = silent.to_yaml();
    assert!(!text.contains("cgroupDriver") && !text.contains("crashLoopBackOff"), "{text}");
    let again = resolved(&["--config", &scratch.write("again", &text)]);
    assert!(["cgroupDriver", PERIOD].iter().all(|path| !again.provenance[*path].is_explicit()));
    assert_eq!((again.changes_since(&silent.document(), &silent.document())), ConfigChanges::default());

    let body = "maxPods: 7\ncgroupDriver: cgroupfs\ncrashLoopBackOff: {maxContainerRestartPeriod: 5m}\n";
    let given = resolved(&["--config", &scratch.config("given", body)]);
    assert!(given.to_yaml().contains("cgroupDriver: cgroupfs\n"), "{}", given.to_yaml());
    let changes = given.changes_since(&silent.document(), &silent.document());
    assert_eq!((changes.at_once, changes.at_restart), (vec![PERIOD], vec!["cgroupDriver"]));
    let running = given.taken_over(&silent.document());
    assert_eq!(field(&running, "cgroupDriver"), "\"cgroupfs\"", "as /configz shows it");
}

#[test]
fn header_values_are_masked_in_every_configuration_output() {
    let scratch = Scratch::new();
    let file = scratch.config("c", "staticPodURLHeader: {Authorization: [Bearer hunter2]}\n");
    let given = resolved(&["--config", &file]);
    assert_eq!(given.kubelet.static_pod_url_header["Authorization"], ["Bearer hunter2"]);
    for text in [given.to_yaml(), given.config_log(), given.explain(), given.flag_dump.join("\n")] {
        assert!(!text.contains("hunter2"), "{text}");
    }
    assert!(given.config_log().contains(r#""Authorization":["<masked>"]"#));
}

#[test]
fn explaining_names_value_origin_and_effect_of_every_setting() {
    let scratch = Scratch::new();
    let file = scratch.config("c", "maxOpenFiles: 7\n");
    let text = resolved(&["--config", &file, "--cluster-domain=x.y", "--root-dir=/r"]).explain();
    for line in [
        format!("maxOpenFiles = 7  # file {file}"),
        r#"clusterDomain = "x.y"  # flag --cluster-domain"#.to_owned(),
        "maxPods = 110  # default".to_owned(),
        "failSwapOn = false  # agent default (differs from the kubelet): hosts with swap are accepted"
            .to_owned(),
        r#"--root-dir = "/r"  # flag --root-dir"#.to_owned(),
        "maxParallelImagePulls = (unset)  # default".to_owned(),
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
    for field in fields::FIELDS {
        assert!(text.contains(&format!("{} = ", field.path)), "{}", field.path);
    }
}

#[test]
fn settings_without_effect_are_refused_or_explained() {
    let scratch = Scratch::new();
    let file = scratch.config(
        "c",
        "contentType: application/vnd.kubernetes.protobuf\niptablesDropBit: 3\nfailSwapOn: true\n",
    );
    let given = resolved(&["--config", &file]);
    assert_eq!(
        given.warnings,
        [
            format!("contentType (file {file}) has no effect: the agent sends JSON to the API server"),
            format!(
                "iptablesDropBit (file {file}) has no effect: the kubelet has not used this bit since v1.28"
            ),
        ]
    );
    assert_eq!(resolved(&[]).warnings, Vec::<String>::new());
    let file = scratch.config("d", "tracing: {endpoint: 'localhost:4317'}\nhairpinMode: none\n");
    let refused = refusal(&["--config", &file]);
    for words in [
        "hairpinMode: \"none\" is not supported: each port of the built-in bridge",
        "tracing.endpoint: \"localhost:4317\" is not supported: the agent exports no traces; remove it",
    ] {
        assert!(refused.contains(words), "{words}\n{refused}");
    }
    let refused = refusal(&["--experimental-mounter-path=/bin/mounter"]);
    assert!(refused.contains("--experimental-mounter-path: \"/bin/mounter\" is not supported"), "{refused}");
}

#[test]
fn explaining_and_help_name_what_has_no_effect() {
    let text = resolved(&[]).explain();
    for line in [
        "hairpinMode = \"hairpin-veth\"  # agent default (differs from the kubelet): each port of the built-in bridge is in \
         hairpin mode; no other value is supported",
        "tracing.endpoint = (unset)  # default; no other value is supported: the agent exports no traces",
        "iptablesDropBit = 15  # default; no effect: the kubelet has not used this bit since v1.28",
        "syncFrequency = \"1m0s\"  # default",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
    let help = help::text();
    assert!(
        help.contains("contentType in the file (default application/json); no other value is supported"),
        "{help}"
    );
}

#[test]
fn deprecated_flags_warn_once_and_the_five_exceptions_do_not() {
    let given = resolved(&["--port=1", "--port=2", "--maximum-dead-containers=5"]);
    assert_eq!(given.warnings.len(), 2, "{:?}", given.warnings);
    assert!(given.warnings[0].starts_with("Flag --port has been deprecated, "), "{:?}", given.warnings);
    let quiet =
        resolved(&["-v1", "--vmodule=a=1", "--log-flush-frequency=1s", "--provider-id=x", "--fail-cgroupv1"]);
    assert_eq!(quiet.warnings, Vec::<String>::new());
}

#[test]
fn a_complete_configuration_is_accepted_with_warnings() {
    // As `/configz` of a kubelet prints it: every field, with its default.
    let mut document =
        serde_json::json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"});
    for field in fields::FIELDS {
        let default = field.default.and_then(|default| field.kind.parse(default, None).ok());
        if let Some(default) = default {
            tree::set(&mut document, field.path, default);
        }
    }
    // A node without a cluster has none to ask, and no containerd.
    for (path, value) in [("authorization.mode", "Local"), ("containerRuntimeEndpoint", "embedded")] {
        tree::set(&mut document, path, serde_json::json!(value));
    }
    tree::set(&mut document, "authentication.webhook.enabled", serde_json::json!(false));
    tree::set(&mut document, "logging.options.text.infoBufferSize", serde_json::json!(0));
    let scratch = Scratch::new();
    let file = scratch.write("c", &document.to_string());
    let told = resolved(&["--config", &file]).warnings;
    let of = |name: &str| {
        told.iter().filter(|line| line.starts_with(name) && line.contains("has no effect")).count()
    };
    assert_eq!(
        (of("contentType "), of("hairpinMode "), of("makeIPTablesUtilChains ")),
        (1, 1, 1),
        "{told:?}"
    );
    assert_eq!(told.len(), 4, "and of Go's profiles: {told:?}");
}
