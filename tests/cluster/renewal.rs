//! The agent renews the certificates of a control plane that is on its node: what reads files again goes on with them, what
//! does not is restarted.

use std::fs;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::control_plane::{ADDRESS, SERVER, said};
use super::machine::{Host, NAME, wait};
use super::whole::{deploy, get, host, init_with, kubectl, static_pods, wait_for_pods, wait_until_ready};
use crate::support::wait::wait_for;

const FLAG: &str = "--control-plane-cert-validity-period";
/// Of what the control plane starts with; some of it passes until all is ready.
const LIFE: Duration = Duration::from_secs(300);
const FILES: [&str; 7] = [
    "apiserver",
    "apiserver-etcd-client",
    "apiserver-kubelet-client",
    "etcd/healthcheck-client",
    "etcd/peer",
    "etcd/server",
    "front-proxy-client",
];
const CONFS: [&str; 4] = ["admin", "controller-manager", "scheduler", "super-admin"];

fn set_flag(from: &str, to: &str) {
    let file = "/etc/default/agent";
    let text = fs::read_to_string(file).expect("read the flags");
    fs::write(file, text.replace(from, to)).expect("write the flags");
}

fn run(host: &Host, program: &str, words: &[&str]) -> String {
    host.run(program, words).unwrap_or_else(|error| panic!("{error}"))
}

/// All files that renewals write, as texts.
fn files() -> Vec<String> {
    let certs = FILES.iter().map(|name| format!("/etc/kubernetes/pki/{name}.crt"));
    let confs = CONFS.iter().map(|name| format!("/etc/kubernetes/{name}.conf"));
    certs.chain(confs).map(|path| fs::read_to_string(&path).expect("read")).collect()
}

/// The certificate that the API server shows.
fn served() -> Result<String, String> {
    let line = format!("openssl s_client -connect {SERVER} </dev/null 2>/dev/null | openssl x509");
    said(Command::new("sh").args(["-c", &line]))
}

fn file(name: &str) -> String {
    let text = fs::read_to_string(format!("/etc/kubernetes/pki/{name}.crt")).expect("read");
    text.trim().to_owned()
}

fn process(host: &Host, pod: &str) -> u32 {
    let found = static_pods(host).into_iter().find(|(name, _)| name.starts_with(pod));
    found.unwrap_or_else(|| panic!("{pod} runs")).1
}

#[test]
fn a_control_planes_certificates_are_renewed_and_used() {
    let host = host();
    // Not until the components have read those that end soon.
    set_flag("AGENT_ARGS=\"", &format!("AGENT_ARGS=\"{FLAG}=0 "));
    init_with(&host, &format!("certificateValidityPeriod: {}s\n", LIFE.as_secs()));
    let began = std::time::Instant::now();
    wait_until_ready(&host, NAME);
    deploy(&host, "web", 1);
    wait_for_pods(&host, "web", 1);
    let (before, processes) = (files(), static_pods(&host));
    assert_eq!(served().expect("a certificate").trim(), file("apiserver"));

    set_flag(&format!("{FLAG}=0"), &format!("{FLAG}=8760h"));
    run(&host, "systemctl", &["restart", "agent"]);
    wait("all certificates to be new", || {
        let now = files();
        let same = before.iter().zip(&now).filter(|(old, new)| old == new).count();
        if same == 0 { Ok(()) } else { Err(format!("{same} are as before")) }
    });
    let of = |processes: &[(String, u32)], name: &str| {
        processes.iter().find(|(pod, _)| pod.starts_with(name)).map(|(_, pid)| *pid)
    };
    wait("a restart of what reads its kubeconfig once", || {
        let now = static_pods(&host);
        let is_new = |name| of(&now, name).is_some_and(|pid| Some(pid) != of(&processes, name));
        let are_new = is_new("kube-controller-manager") && is_new("kube-scheduler");
        if are_new { Ok(()) } else { Err(format!("{processes:?}, now {now:?}")) }
    });
    wait("the API server to serve with the new certificate", || {
        let shown = served()?;
        if shown.trim() == file("apiserver") { Ok(()) } else { Err(shown) }
    });
    let renewed = files();
    let text =
        kubectl(&host, &["get", "events", "-A", "-o", "jsonpath={.items[*].message}"]).expect("events");
    assert!(text.contains("Renewed certificates of the control plane: admin.conf, apiserver, "), "{text}");
    let said = run(&host, "kubeadm", &["certs", "check-expiration"]);
    assert!(said.contains("364d") && !said.contains("MISSING"), "{said}");
    assert!(said.contains("\"kubeadm-config\"") && !said.contains("Falling back"), "{said}");

    // The API server and etcd still run with what they have read, which ends.
    wait_for("the end of the first certificates", LIFE, || {
        if began.elapsed() > LIFE { Ok(()) } else { Err(String::new()) }
    });
    for name in ["etcd", "kube-apiserver"] {
        assert_eq!(process(&host, name), of(&processes, name).expect("it ran"), "{name} was restarted");
    }
    let log = || kubectl(&host, &["exec", "deployment/web", "--", "echo", "hello"]);
    assert_eq!(wait("the API server to reach the node", log), "hello\n");
    // It connects to etcd again.
    let etcd = i32::try_from(process(&host, "etcd")).expect("a process");
    kill(Pid::from_raw(etcd), Signal::SIGTERM).expect("end etcd");
    wait("another etcd", || {
        let found = static_pods(&host).into_iter().find(|(name, _)| name.starts_with("etcd"));
        match found {
            Some((_, pid)) if i32::try_from(pid) != Ok(etcd) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    wait("the API server to be ready", || {
        let text = kubectl(&host, &["get", "--raw", "/readyz"])?;
        if text.trim() == "ok" { Ok(()) } else { Err(text) }
    });
    // The controller manager and the scheduler work with new certificates.
    deploy(&host, "late", 1);
    assert_eq!(wait_for_pods(&host, "late", 1), [NAME]);
    assert_eq!(
        get(&host, &format!("/api/v1/nodes/{NAME}")).expect("a node")["status"]["addresses"][0]["address"],
        ADDRESS
    );

    // Nothing is renewed twice.
    let processes = static_pods(&host);
    run(&host, "systemctl", &["restart", "agent"]);
    wait_until_ready(&host, NAME);
    wait("the agent's report", || host.status());
    assert!(files() == renewed, "certificates were renewed again");
    assert_eq!(static_pods(&host), processes);
}
