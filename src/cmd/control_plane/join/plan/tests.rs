use super::*;

const PIN: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
const FILE: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\n\
    nodeRegistration: {name: CP2, taints: [], ignorePreflightErrors: [Swap]}\ncaCertPath: /pki/ca.crt\n\
    discovery: {bootstrapToken: {token: abcdef.0123456789abcdef, apiServerEndpoint: 'api:6443', \
    unsafeSkipCAVerification: true}, tlsBootstrapToken: bbbbbb.0123456789abcdef}\n\
    controlPlane: {certificateKey: '00', localAPIEndpoint: {advertiseAddress: 192.0.2.11, bindPort: 7443}}\n\
    skipPhases: [preflight]\npatches: {directory: /p}\ndryRun: true\n\
    timeouts: {discovery: 9s, etcdAPICall: 20m, tlsBootstrap: 30m}\n";

fn plan(line: &str, file: Option<&str>) -> Result<JoinPlan, String> {
    let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let given = words(&arguments).map_err(|error| error.to_string())?.expect("no help");
    JoinPlan::of(&given, file).map_err(|error| error.to_string())
}

#[test]
fn flags_and_a_file_say_the_same() {
    let flags = plan(
        &format!(
            "api:6443 --control-plane --discovery-token abcdef.0123456789abcdef --tls-bootstrap-token \
             bbbbbb.0123456789abcdef --discovery-token-ca-cert-hash {PIN} --certificate-key 00 \
             --apiserver-advertise-address 192.0.2.11 --apiserver-bind-port 7443 --node-name CP2 --patches /p --dry-run \
             --skip-phases preflight --timeout 1m"
        ),
        None,
    )
    .unwrap();
    let file = plan("--config f", Some(FILE)).unwrap();
    for plan in [&flags, &file] {
        assert_eq!(plan.discovery.endpoint.as_deref(), Some("api:6443"));
        assert_eq!(plan.discovery.token.as_ref().unwrap().id, "abcdef");
        assert_eq!(plan.discovery.tls_token.as_ref().unwrap().id, "bbbbbb");
        assert_eq!(
            plan.init["localAPIEndpoint"],
            json!({ "advertiseAddress": "192.0.2.11", "bindPort": 7443 })
        );
        assert_eq!(
            (&plan.init["certificateKey"], &plan.init["patches"]),
            (&json!("00"), &json!({ "directory": "/p" }))
        );
        assert_eq!(plan.node_name.as_deref(), Some("cp2"));
        assert!(plan.dry_run && !plan.chosen.contains(&"preflight") && plan.chosen.contains(&"etcd-join"));
    }
    assert_eq!((flags.discovery.pins.len(), flags.patience.as_secs()), (1, 60));
    assert_eq!((file.authority.as_str(), file.patience.as_secs()), ("/pki/ca.crt", 1200));
    assert_eq!(file.discovery.limit, Some(Duration::from_secs(9)));
    assert_eq!(file.tls_bootstrap.as_secs(), 1800);
    assert_eq!(file.init["nodeRegistration"]["taints"], json!([]));
    let other = plan("--config f --skip-phases etcd-join --node-name cp3", Some(FILE)).unwrap();
    assert!(other.chosen.contains(&"preflight") && !other.chosen.contains(&"etcd-join"));
    assert_eq!(other.node_name.as_deref(), Some("cp3"));
}

#[test]
fn a_phase_may_be_followed_by_the_api_server() {
    let one = plan("phase control-plane-prepare certs", None).unwrap();
    assert_eq!(one.chosen, ["control-plane-prepare/certs"]);
    assert!(one.discovery.endpoint.is_none());
    let one = plan("phase kubelet-start api:6443 --token abcdef.0123456789abcdef", None).unwrap();
    assert_eq!((one.phase, one.discovery.endpoint.as_deref()), (Some("kubelet-start"), Some("api:6443")));
    assert_eq!(plan("phase control-plane-join all", None).unwrap().chosen.len(), 2);
}

#[test]
fn what_cannot_be_meant_is_named() {
    let without = FILE.split("controlPlane").next().unwrap();
    for (line, file, expected) in [
        (
            "--config f --token a.b --patches p",
            Some(FILE),
            "can not mix '--config' with arguments [patches token]",
        ),
        ("--config f", Some(without), "controlPlane is not set in the JoinConfiguration"),
        (
            "--config f --node-name x",
            Some(
                "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\ncontrolPlane: {}\nnodeRegistration: foo\n",
            ),
            "nodeRegistration: Invalid value: \"foo\": must be an object",
        ),
        ("--config f", Some("a: b"), "no JoinConfiguration kind was found"),
        ("a:1 --token short", None, "discovery.bootstrapToken.token: Invalid value: "),
        ("a:1 --discovery-token-ca-cert-hash md5:0", None, "caCertHashes: "),
        ("a:1 --apiserver-bind-port x", None, "--apiserver-bind-port \"x\": must be a number"),
        ("a:1 --skip-phases certs", None, "invalid phase name: certs"),
        ("a:1 b:2", None, "unexpected argument \"b:2\""),
        ("phase", None, "subcommand is required"),
        ("phase upload-certs", None, "invalid phase name: upload-certs"),
        ("--volumes", None, "--volumes"),
        ("a:1 --timeout soon", None, "--timeout"),
    ] {
        let why = plan(line, file).err().unwrap();
        assert!(why.contains(expected), "{line}: {why}");
    }
    let why = plan("--config f", Some(&FILE.replace("/pki/ca.crt", "ca.pem"))).err().unwrap();
    assert!(why.contains("caCertPath"), "{why}");
}

#[test]
fn a_control_plane_is_joined_by_its_flag_a_file_or_a_phase() {
    let wanted = |line: &str| is_wanted(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    assert!(
        wanted("a:1 --control-plane") && wanted("--config f") && wanted("--config=f") && wanted("phase x")
    );
    assert!(!wanted("a:1 --token x --discovery-file config"));
}
