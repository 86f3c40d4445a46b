//! What `agent config`, `agent kubeconfig user` and `agent certs generate-csr` print and write beside kubeadm's.

use std::fs;
use std::path::Path;
use std::process::Command;

use edge_agent::codec::base64;
use edge_agent::codec::yaml::yaml_to_values;
use serde_json::{Value, json};

use super::control_plane::program;
use crate::support::agent::binary;
use crate::support::scratch::Scratch;

const INIT: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n\
                    localAPIEndpoint: {advertiseAddress: 192.0.2.10}\nbootstrapTokens: [{token: abcdef.0123456789abcdef}]\n\
                    nodeRegistration: {name: cp1, criSocket: 'unix:///x.sock', taints: [], \
                    kubeletExtraArgs: [{name: v, value: '4'}]}\n\
                    timeouts: {controlPlaneComponentHealthCheck: 3m}\n---\n\
                    apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.36.2\n\
                    encryptionAlgorithm: ECDSA-P256\n";
const RICH: &str = "clusterName: edge\ncontrolPlaneEndpoint: api.example.com\nimageRepository: registry.example.com/x\n\
                    dns: {imageTag: v1.0}\nproxy: {disabled: true}\ncertificateValidityPeriod: 100h\n\
                    apiServer: {certSANs: [a.example.com], extraArgs: [{name: v, value: '4'}]}\n\
                    etcd: {local: {imageTag: 3.6.9-0, extraArgs: [{name: a, value: b}]}}\n---\n\
                    apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 20\n";
const JOIN: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\n\
                    nodeRegistration: {name: w1, criSocket: 'unix:///x.sock'}\n\
                    discovery: {bootstrapToken: {token: abcdef.0123456789abcdef, apiServerEndpoint: 'a:6443', \
                    caCertHashes: ['sha256:0000000000000000000000000000000000000000000000000000000000000000']}}\n";
const RESET: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ResetConfiguration\nforce: true\n\
                     criSocket: 'unix:///x.sock'\n";

struct Both(Scratch);

impl Both {
    fn new() -> Self {
        Self(Scratch::new())
    }

    fn put(&self, name: &str, text: &str) -> String {
        let file = self.at(name);
        fs::write(&file, text).expect("write a file");
        file
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

/// What kubeadm prints, and what the agent does.
fn run(words: &[&str]) -> [Result<String, String>; 2] {
    [program("kubeadm"), binary()].map(|program| output(&program, words))
}

fn documents(words: &[&str]) -> [Vec<Value>; 2] {
    run(words).map(|said| {
        let said = said.unwrap_or_else(|error| panic!("{words:?}: {error}"));
        yaml_to_values(&said, true).expect("YAML")
    })
}

fn output(program: &Path, words: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(words).output().expect("run the program");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// kubeadm drops the others of a file.
fn is_kubeadms(document: &Value) -> bool {
    document["apiVersion"] == "kubeadm.k8s.io/v1beta4"
}

/// Where the two differ: the socket, the algorithm, and a time of which kubeadm loses what the file says.
fn plain(mut document: Value) -> Value {
    let time = "/timeouts/controlPlaneComponentHealthCheck";
    for path in ["/nodeRegistration/criSocket", "/criSocket", "/encryptionAlgorithm", time] {
        if let Some(value) = document.pointer_mut(path) {
            *value = json!("its own");
        }
    }
    document
}

#[test]
fn defaults_are_kubeadms() {
    for words in [
        &["init-defaults"][..],
        &["init-defaults", "--component-configs", "KubeletConfiguration,KubeProxyConfiguration"],
        &["init-defaults", "--component-configs=KubeProxyConfiguration"],
        &["join-defaults"],
        &["reset-defaults"],
        &["upgrade-defaults"],
    ] {
        let words = [&["config", "print"], words].concat();
        let [theirs, ours] = documents(&words).map(|all| all.into_iter().map(plain).collect::<Vec<_>>());
        assert_eq!(theirs, ours, "{words:?}: kubeadm's is on the left");
    }
}

#[test]
fn images_are_kubeadms() {
    let both = Both::new();
    let rich = both.put("rich.yaml", &format!("{INIT}{RICH}"));
    let external = "etcd: {external: {endpoints: ['https://192.0.2.1:2379'], caFile: /a, certFile: /b, keyFile: /c}}\n\
                    dns: {disabled: true}\n";
    let external = both.put("external.yaml", &format!("{INIT}{external}"));
    for more in [
        &["--kubernetes-version=v1.36.2"][..],
        &["--kubernetes-version=v1.36.2", "--image-repository=registry.example.com/y"],
        &["--kubernetes-version=v1.36.2", "-o", "yaml"],
        &["--config", &rich],
        &["--config", &external],
    ] {
        let words = [&["config", "images", "list"], more].concat();
        let [theirs, ours] = run(&words);
        assert_eq!(theirs, ours, "{words:?}: kubeadm's is on the left");
    }
    let [theirs, ours] = documents(&["config", "images", "list", "--config", &rich, "-o", "json"]);
    assert_eq!(theirs, ours);
}

#[test]
fn files_are_completed_and_judged_as_kubeadm_does() {
    let both = Both::new();
    for (name, text) in [
        ("init", INIT.to_owned()),
        ("rich", format!("{INIT}{RICH}")),
        ("join", JOIN.to_owned()),
        ("reset", RESET.to_owned()),
        ("all", format!("{RESET}---\n{JOIN}---\n{INIT}")),
    ] {
        let file = both.put(name, &text);
        let [theirs, ours] = documents(&["config", "migrate", "--old-config", &file])
            .map(|all| all.into_iter().filter(is_kubeadms).map(plain).collect::<Vec<_>>());
        assert_eq!(theirs, ours, "{name}: kubeadm's is on the left");
        assert_eq!(
            run(&["config", "validate", "--config", &file]),
            [Ok("ok\n".to_owned()), Ok("ok\n".to_owned())]
        );
    }
    for (name, text) in [
        ("unknown", format!("{INIT}foo: bar\n")),
        ("subnet", format!("{INIT}networking: {{podSubnet: 10.244.0.0/33, dnsDomain: A_b}}\n")),
        ("discovery", JOIN.replace("bootstrapToken", "file")),
        ("token", JOIN.replace("abcdef.", "abc.")),
        ("endpoint", JOIN.replace("'a:6443'", "a")),
        ("hashes", JOIN.replace("caCertHashes", "unsafeSkipCAVerification: false, x")),
        ("path", format!("{JOIN}caCertPath: ca\n")),
    ] {
        let file = both.put(name, &text);
        let [theirs, ours] = run(&["config", "validate", "--config", &file]).map(Result::unwrap_err);
        let field = |text: &str| {
            let from = text.find(": ").map_or("", |at| &text[at + 2..]);
            from.trim_start_matches('[').split(": Invalid").next().unwrap_or_default().to_owned()
        };
        if theirs.contains(": Invalid value") {
            assert_eq!(
                field(theirs.lines().next().unwrap_or_default()),
                field(&ours),
                "{name}: {theirs} {ours}"
            );
        }
        assert_eq!(
            theirs.contains("unknown field"),
            ours.contains("unknown field"),
            "{name}: {theirs} {ours}"
        );
    }
}

#[test]
fn a_users_kubeconfig_is_kubeadms() {
    let both = Both::new();
    let file = both.put(
        "config",
        &format!("{INIT}{RICH}")
            .replace("clusterName", &format!("certificatesDir: {}\nclusterName", both.at("pki"))),
    );
    output(&program("kubeadm"), &["init", "phase", "certs", "ca", "--config", &file]).expect("an authority");
    for more in [&["--org", "a", "--org=b", "--validity-period=24h"][..], &["--token", "abc"]] {
        let words = [&["kubeconfig", "user", "--client-name", "foo", "--config", &file], more].concat();
        let [theirs, ours] = documents(&words).map(|mut all| {
            let mut conf = all.remove(0);
            if let Some(data) = conf["users"][0]["user"]["client-certificate-data"].as_str() {
                let pem =
                    both.put("one.crt", &String::from_utf8_lossy(&base64::decode(data).expect("base64")));
                let shown = output(
                    Path::new("openssl"),
                    &["x509", "-noout", "-subject", "-ext", "extendedKeyUsage", "-in", &pem],
                );
                conf["users"][0]["user"] =
                    json!({ "certificate": shown.expect("openssl").replace(" + O", ", O"), "key": true });
            }
            conf
        });
        assert_eq!(theirs, ours, "{more:?}: kubeadm's is on the left");
    }
    for said in run(&["kubeconfig", "user", "--config", &file]) {
        assert!(said.unwrap_err().contains("required flag(s) \"client-name\" not set"));
    }
}

#[test]
fn requests_are_for_kubeadms_names() {
    let both = Both::new();
    let file = both.put("config", INIT);
    let made = [program("kubeadm"), binary()].map(|program| {
        let directory = both.at(&program.file_name().expect("a name").display().to_string());
        let words =
            ["certs", "generate-csr", "--config", &file, "--kubeconfig-dir", &directory, "--cert-dir"];
        let pki = format!("{directory}/pki");
        let words = [&words[..], &[&pki]].concat();
        let said = output(&program, &words).unwrap_or_else(|error| panic!("{error}"));
        let mut names: Vec<String> = said.lines().map(|line| line.replace(&directory, "@")).collect();
        names.sort();
        let mut requests = Vec::new();
        for at in [&directory, &pki, &format!("{pki}/etcd")] {
            for entry in fs::read_dir(at).expect("list").flatten().filter(|entry| entry.path().is_file()) {
                let (path, name) = (entry.path(), entry.file_name().display().to_string());
                let mode =
                    std::os::unix::fs::PermissionsExt::mode(&entry.metadata().expect("stat").permissions());
                let shown = match path.extension().and_then(|it| it.to_str()) {
                    Some("csr") => {
                        let path = path.display().to_string();
                        let text = output(Path::new("openssl"), &["req", "-noout", "-text", "-in", &path])
                            .expect("openssl");
                        let lines = text.lines().map(str::trim);
                        let told = lines.filter(|line| line.starts_with("Subject:") || line.contains("DNS:"));
                        told.collect::<Vec<_>>().join("\n")
                    }
                    Some("conf") => {
                        let text = fs::read_to_string(&path).expect("read");
                        let mut conf = yaml_to_values(&text, true).expect("YAML").remove(0);
                        conf["users"][0]["user"]["client-key-data"] = json!("key");
                        conf.to_string()
                    }
                    _ => String::new(),
                };
                requests.push((name, mode, shown));
            }
        }
        requests.sort();
        let again = output(&program, &words).expect_err("the files are there");
        assert!(again.contains("file already exists"), "{again}");
        (names, requests)
    });
    assert_eq!(made[0], made[1], "kubeadm's is on the left");
}
