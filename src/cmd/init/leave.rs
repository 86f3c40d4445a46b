//! `agent leave`: takes the node out of its cluster. Static pods and those of the node's own API stay.
//!
//! Expected flow: the running agent drains the node and forgets the cluster, then the files of `agent join` are undone
//! and the agent starts again; pods of the cluster that are left end then.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lexopt::Arg;

use super::args::{InitOptions, UsageError, text};
use super::install::{self, File};
use super::join::{AUTHORITY, BEFORE, BOOTSTRAP, KUBECONFIG, read, without_cluster};
use super::{CONFIG_FILE, DEFAULTS_FILE, InitError, InitSession, machine_of, phases, resolve, service};
use crate::agent::config::Resolved;
use crate::cmd::cli::{fetch_report, post};
use crate::cmd::help;
use crate::model::duration::GoDuration;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::serve::server::report::ObjectDetail;

/// kubeadm's flags of its kubelet.
const KUBEADM_FLAGS: &str = "/var/lib/kubelet/kubeadm-flags.env";
const LEAVE: &str = "/agent/v1/cluster/leave";
const FORGET: &str = "/agent/v1/cluster/leave?forget=true";
const NEXT_ROUND: Duration = Duration::from_secs(1);

struct LeaveOptions {
    timeout: Duration,
    now: bool,
    force: bool,
    help: bool,
}

fn parse(arguments: &[String]) -> Result<LeaveOptions, UsageError> {
    let mut options =
        LeaveOptions { timeout: Duration::from_secs(300), now: false, force: false, help: false };
    let mut parser = lexopt::Parser::from_args(arguments);
    let bad = |error: lexopt::Error| UsageError::Option(error.to_string());
    while let Some(argument) = parser.next().map_err(bad)? {
        match argument {
            Arg::Long("timeout") => {
                let given = text(&mut parser)?;
                let parsed = GoDuration::parse(&given).ok().filter(|parsed| parsed.as_nanos() >= 0);
                let wrong = || UsageError::Option(format!("--timeout {given:?}: not a duration, such as 5m"));
                options.timeout = parsed.ok_or_else(wrong)?.to_std();
            }
            Arg::Long("now") => options.now = true,
            Arg::Short('f') | Arg::Long("force") => options.force = true,
            Arg::Short('h') | Arg::Long("help") => options.help = true,
            other => return Err(UsageError::Option(other.unexpected().to_string())),
        }
    }
    Ok(options)
}

pub(super) fn run(session: &mut InitSession<'_>, arguments: &[String]) -> Result<(), InitError> {
    let options = parse(arguments)?;
    if options.help {
        return session.print(&help::text("leave"));
    }
    let failed = |why: String| Err(InitError::Join(why));
    if Path::new(KUBEADM_FLAGS).exists() {
        return failed(
            "kubeadm has joined this node, or it has a control plane: \"kubectl drain\" it, then run \"agent reset\" or \
             \"kubeadm reset\""
                .to_owned(),
        );
    }
    let init = InitOptions { rootfs: PathBuf::from("/"), ..InitOptions::default() };
    let resolved = resolve(&init)?;
    let defaults = read(DEFAULTS_FILE)?;
    let alone = without_cluster(&defaults);
    let socket = &resolved.flags.agent_socket;
    let asked = rt::run(fetch_report(socket, ObjectDetail::Counted));
    let asked = asked.map_err(|error| InitError::Join(error.to_string()))?;
    let report = asked.map_err(|error| {
        let why = chain(&error);
        InitError::Join(format!("{why}: leaving needs the running agent (\"agent reset\" does not)"))
    })?;
    let name = &report.node_name;
    let Some(cluster) = &report.cluster else {
        if alone.is_none() && !Path::new(KUBECONFIG).exists() {
            return failed("this machine is not a node of a cluster".to_owned());
        }
        return finish(session, &init, &resolved, alone, name);
    };
    let is_online = cluster.link.state == "online";
    if !is_online && !options.force {
        return failed(format!(
            "the API server does not answer ({}), so the pods of the cluster would end here and be started nowhere else: wait \
             until \"agent status\" shows the cluster online, or leave with --force",
            cluster.link.reason
        ));
    }
    if is_online && !options.now {
        session.print(
            "[leave] Draining the node: pods of the cluster are evicted and get their grace periods\n",
        )?;
        let waits = drain(session, socket, options.timeout)?;
        if !waits.is_empty() && !options.force {
            let seconds = options.timeout.as_secs();
            return failed(format!(
                "pods are not gone after {seconds} s: {}. Nothing else was changed (the node is cordoned); run it again, or with \
                 --force",
                waits.join(", ")
            ));
        }
    }
    finish(session, &init, &resolved, alone, name)
}

/// What is left after this time.
fn drain(session: &mut InitSession<'_>, socket: &Path, limit: Duration) -> Result<Vec<String>, InitError> {
    let (begun, mut said) = (Instant::now(), Vec::new());
    loop {
        let waits = ask(socket, LEAVE)?;
        if waits.is_empty() || begun.elapsed() >= limit {
            return Ok(waits);
        }
        if waits != said {
            session.print(&format!("[leave] Waiting for {}\n", waits.join(", ")))?;
            said = waits;
        }
        rt::run(async { tokio::time::sleep(NEXT_ROUND).await })
            .map_err(|error| InitError::Join(error.to_string()))?;
    }
}

fn ask(socket: &Path, resource: &str) -> Result<Vec<String>, InitError> {
    let answer = rt::run(post(socket, resource)).map_err(|error| InitError::Join(error.to_string()))?;
    let answer = answer.map_err(InitError::Join)?;
    let words = answer.as_array().into_iter().flatten();
    Ok(words.filter_map(|word| word.as_str().map(str::to_owned)).collect())
}

/// Forgets the cluster, first in the store: from then on its pods are not wanted at a start without a kubeconfig.
fn finish(
    session: &mut InitSession<'_>,
    init: &InitOptions,
    resolved: &Resolved,
    alone: Option<String>,
    name: &str,
) -> Result<(), InitError> {
    ask(&resolved.flags.agent_socket, FORGET)?;
    session.print("[leave] The cluster is forgotten\n")?;
    let has_flags = alone.is_some();
    if let Some(text) = alone {
        phases::write(&File::new(DEFAULTS_FILE, 0o644, text))?;
        let before = read(BEFORE)?;
        let endpoint = &resolved.kubelet.container_runtime_endpoint;
        let endpoint = Some(endpoint.as_str()).filter(|endpoint| *endpoint != "embedded");
        let text = if before.is_empty() { install::configuration(endpoint) } else { before };
        // Its own authority of before may be at the same place.
        if !text.contains(AUTHORITY) {
            remove(session, Path::new(AUTHORITY))?;
        }
        phases::write(&File::new(CONFIG_FILE, 0o644, text))?;
        session.print(&format!("[leave] Writing the configuration of a node alone to {CONFIG_FILE:?}\n"))?;
        for path in [BEFORE, KUBECONFIG, BOOTSTRAP] {
            remove(session, Path::new(path))?;
        }
    }
    let pki = fs::read_dir(&resolved.flags.cert_dir).into_iter().flatten().flatten();
    for entry in pki.filter(|entry| is_of_cluster(&entry.file_name().to_string_lossy())) {
        remove(session, &entry.path())?;
    }
    let init_system = machine_of(init, session);
    let commands = service::start(init_system);
    if !has_flags || commands.is_empty() {
        session.print(
            "[leave] Restart the agent without --kubeconfig and --bootstrap-kubeconfig: pods of the cluster end then\n",
        )?;
    } else {
        session.print("[leave] Restarting the agent\n")?;
        service::call(init_system, commands)?;
    }
    session.print(&format!(
        "\nThis node has left the cluster. Static pods keep running. A node may not delete itself: run on the control-plane\n\n  \
         kubectl delete node {name}\n\n"
    ))
}

/// Certificates and keys that a cluster has signed.
fn is_of_cluster(file: &str) -> bool {
    file.starts_with("kubelet-client") || file.starts_with("kubelet-server")
}

fn remove(session: &mut InitSession<'_>, path: &Path) -> Result<(), InitError> {
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    let failed = |source| InitError::File { action: "remove", path: path.to_owned(), source };
    fs::remove_file(path).map_err(failed)?;
    session.print(&format!("[leave] Deleting file: {}\n", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leave_takes_a_time_and_few_words() {
        let parsed = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            parse(&words)
                .map(|it| (it.timeout.as_secs(), it.now, it.force))
                .map_err(|error| error.to_string())
        };
        assert_eq!(parsed(""), Ok((300, false, false)));
        assert_eq!(parsed("--timeout 90s --now -f"), Ok((90, true, true)));
        assert!(parsed("--timeout soon").unwrap_err().contains("soon"));
        assert!(parsed("edge-7").is_err());
    }

    #[test]
    fn the_nodes_own_certificates_are_no_clusters() {
        for file in ["kubelet-client-current.pem", "kubelet-client.key.tmp", "kubelet-server-2026.pem"] {
            assert!(is_of_cluster(file), "{file}");
        }
        for file in ["kubelet.crt", "kubelet.key", "agent-ca.key"] {
            assert!(!is_of_cluster(file), "{file}");
        }
    }
}
