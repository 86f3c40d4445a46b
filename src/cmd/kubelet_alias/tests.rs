use std::os::unix::net::UnixStream;

use super::*;
use crate::agent::config::{self, Environment, Invocation};
use crate::platform::testing::TempDir;

/// kubeadm's `^\s*Kubernetes v(N.N.N[-\w.+]*)\s*$`, and what `ParseSemantic` allows behind the numbers.
fn kubeadm_parses(text: &str) -> Option<(String, String)> {
    let version = text.trim().strip_prefix("Kubernetes v")?;
    let end = version.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(version.len());
    let (numbers, extra) = version.split_at(end);
    let parts: Vec<&str> = numbers.split('.').collect();
    let is_number = |part: &&str| part.parse::<u32>().is_ok_and(|number| number.to_string() == **part);
    let build = extra.strip_prefix('+')?;
    let is_identifier = |part: &str| {
        !part.is_empty() && part.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-')
    };
    let valid = parts.len() == 3 && parts.iter().all(is_number) && build.split('.').all(is_identifier);
    valid.then(|| (numbers.to_owned(), build.to_owned()))
}

#[test]
fn kubelet_version_parses_in_kubeadm() {
    let (numbers, build) = kubeadm_parses(&version()).unwrap();
    assert_eq!(numbers, "1.36.0");
    assert_eq!(build, format!("agent-{}", env!("CARGO_PKG_VERSION")));
    assert_eq!(kubeadm_parses("agent v0.1.0 (Kubernetes v1.36)"), None);
    for (program, expected) in
        [("/usr/bin/kubelet", true), ("kubelet", true), ("/usr/bin/agent", false), ("", false)]
    {
        assert_eq!(is_kubelet(OsStr::new(program)), expected, "{program}");
    }
}

#[test]
fn only_the_files_of_kubeadm_are_left_out() {
    let words = |line: &str| line.split_whitespace().map(OsString::from).collect::<Vec<_>>();
    let given =
        words("--kubeconfig=/a --bootstrap_kubeconfig /b --config /c --config-dir=/d -v 2 --root-dir /r");
    assert_eq!(without_files(&given), words("--config-dir=/d -v 2 --root-dir /r"));
}

fn parse(words: &[String]) -> Result<Invocation, ConfigError> {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    config::parse(&words, &Environment { hostname: "edge".to_owned() })
}

#[test]
fn only_a_missing_configuration_is_waited_for() {
    let scratch = TempDir::new();
    let file = scratch.join("config.yaml");
    let said = |file: &Path| parse(&[format!("--config={}", file.display())]).unwrap_err();
    assert_eq!(missing_file(&said(&file)), Some(file.as_path()));
    std::fs::write(&file, "").unwrap();
    assert_eq!(missing_file(&said(&file)), None);
    assert_eq!(missing_file(&parse(&["--nonsense".to_owned()]).unwrap_err()), None);
}

#[test]
fn the_alias_waits_and_serves_cri() {
    let scratch = TempDir::new();
    let at = |name: &str| scratch.join(name).display().to_string();
    let words = [
        format!("--root-dir={}", at("root")),
        format!("--runtime-state-dir={}", at("state")),
        format!("--images-dir={}", at("images")),
        format!("--cri-socket={}", at("cri.sock")),
    ];
    let Invocation::Run(resolved) = parse(&words).unwrap() else { panic!() };
    let (file, socket) = (scratch.join("etc/config.yaml"), scratch.join("cri.sock"));
    let waited = rt::run(async {
        let waiting = wait(&resolved, file.clone(), None);
        let kubeadm = async {
            while UnixStream::connect(&socket).is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            std::fs::create_dir(file.parent().unwrap()).unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            std::fs::write(&file, "kind: KubeletConfiguration\n").unwrap();
        };
        tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(waiting, kubeadm).0 }).await
    });
    assert!(waited.unwrap().expect("in time").unwrap());
    assert!(!socket.exists(), "the next start serves it");
}
