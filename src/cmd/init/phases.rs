//! The phases of `agent init`, as in kubeadm: named steps in a table, which can be skipped or run alone.
//!
//! Expected flow: everything is decided and checked first (the configuration is read as the agent will read
//! it), then one phase after the other writes its part. Each may be repeated: files that exist and are valid
//! stay.
//!
//! Owns the order and the output. Nothing is written in a dry run.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::args::InitOptions;
use super::facts::InitSystem;
use super::install::{self, File};
use super::preflight::Purpose;
use super::{CONFIG_FILE, DEFAULTS_FILE, InitError, InitSession, machine_of, resolve, service};
use crate::agent::config::Resolved;
use crate::agent::kubelet::serving::{names_for_pods, server_url, serving_names};
use crate::cmd::cli::kubeconfig;
use crate::codec::base64;
use crate::platform::rt;
use crate::platform::sys::{dir, durable};
use crate::serve::server::access::MASTERS;
use crate::serve::server::pki::{self, Authority};

/// The time limit for the agent to become healthy: kubeadm's `[kubelet-check]`.
const PATIENCE: Duration = Duration::from_secs(240);
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The lifetime of a kubeconfig's certificate, kubeadm's.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// The user name in the kubeconfig of an administrator, kubeadm's.
const ADMIN: &str = "kubernetes-admin";

pub(super) struct InitPhase {
    /// The name for `--skip-phases`.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    run: fn(&mut InitRun<'_, '_>) -> Result<(), InitError>,
}

/// In the order of execution.
pub(super) const PHASES: &[InitPhase] = &[
    InitPhase { name: "preflight", help: "Check this machine", run: |run| run.preflight() },
    InitPhase {
        name: "certs",
        help: "Generate the node's certificate authority and serving certificate",
        run: |run| run.certs(),
    },
    InitPhase { name: "kubeconfig", help: "Write /etc/kubernetes/admin.conf", run: |run| run.kubeconfig() },
    InitPhase {
        name: "kubelet-config",
        help: "Write /var/lib/kubelet/config.yaml",
        run: |run| run.kubelet_config(),
    },
    InitPhase {
        name: "manifests",
        help: "Create /etc/kubernetes/manifests and /var/lib/kubelet/images; --example writes a pod",
        run: |run| run.manifests(),
    },
    InitPhase {
        name: "program",
        help: "With --rootfs: install the program, unless a package did",
        run: |run| run.program(),
    },
    InitPhase {
        name: "systemd",
        help: "Write and enable the systemd or OpenRC service, and list the kernel modules to load at boot",
        run: |run| run.service(),
    },
    InitPhase { name: "start", help: "(Re)start the service", run: |run| run.start() },
    InitPhase { name: "wait", help: "Wait until the agent is healthy", run: |run| run.wait() },
    InitPhase { name: "show-next-steps", help: "Print the next steps", run: |run| run.next_steps() },
];

struct InitRun<'a, 'b> {
    session: &'a mut InitSession<'b>,
    options: &'a InitOptions,
    resolved: Resolved,
    /// The text of the given configuration.
    given: Option<String>,
    init_system: InitSystem,
    is_started: bool,
    /// Directories that a dry run has already printed.
    named: BTreeSet<PathBuf>,
}

pub(super) fn run(session: &mut InitSession<'_>, options: &InitOptions) -> Result<(), InitError> {
    let resolved = resolve(options)?;
    let read = |file: &PathBuf| {
        fs::read_to_string(file).map_err(|source| InitError::File {
            action: "read",
            path: file.clone(),
            source,
        })
    };
    let given = options.config.as_ref().map(read).transpose()?;
    let init_system = match machine_of(options, session) {
        // The init system of an offline system is determined by its programs.
        InitSystem::Other if !options.is_live() && options.rooted("/usr/bin/systemctl").exists() => {
            InitSystem::Systemd
        }
        other => other,
    };
    let mut run =
        InitRun { session, options, resolved, given, init_system, is_started: false, named: BTreeSet::new() };
    if options.phase.is_none() {
        let version = env!("CARGO_PKG_VERSION");
        run.session.print(&format!("[init] Using agent version: v{version} (Kubernetes v1.36)\n"))?;
    }
    for phase in PHASES.iter().filter(|phase| options.has_phase(phase.name)) {
        (phase.run)(&mut run)
            .map_err(|error| InitError::Phase { phase: phase.name, source: Box::new(error) })?;
    }
    Ok(())
}

impl InitRun<'_, '_> {
    fn print(&mut self, text: &str) -> Result<(), InitError> {
        self.session.print(text)
    }

    fn preflight(&mut self) -> Result<(), InitError> {
        if !self.options.is_live() {
            return self.print("[preflight] Skipped: --rootfs sets up another system\n");
        }
        self.print("[preflight] Running pre-flight checks\n")?;
        let wanted = Purpose::of(&self.resolved);
        let findings = self.session.check(self.options, &self.resolved, &wanted);
        self.session.judge(&findings)
    }

    fn cert_dir(&self) -> PathBuf {
        self.options.rooted(&self.resolved.flags.cert_dir)
    }

    fn certs(&mut self) -> Result<(), InitError> {
        if self.leaves_certificates() {
            return self.print(
                "[certs] Skipped: --rootfs is set, the agent generates its certificates at its first boot\n",
            );
        }
        let directory = self.cert_dir();
        // With their own modes, before files are created in them.
        self.directories("certs")?;
        self.print(&format!("[certs] Using certificateDir folder {:?}\n", directory.display().to_string()))?;
        let there = pki::authority_file(&directory).exists();
        let serves = self.resolved.kubelet.tls_cert_file.is_empty();
        if self.options.dry_run {
            let would = |is_there: bool, what: &str| {
                if is_there {
                    format!("[certs] Using existing {what}\n")
                } else {
                    format!("[dryrun] Would generate {what}\n")
                }
            };
            self.print(&would(there, "\"agent-ca\" certificate authority"))?;
            let is_there = directory.join("kubelet.crt").exists();
            return if serves {
                self.print(&would(is_there, "\"kubelet\" serving certificate and key"))
            } else {
                Ok(())
            };
        }
        if !self.options.is_live() {
            self.session.print_error(
                "\t[WARNING certs]: all devices created from this image will share one certificate \
                 authority: skip this phase to have each generate its own at its first boot\n",
            );
        }
        let authority = Authority::open(&directory, &self.resolved.node_name)?;
        self.print(if there {
            "[certs] Using existing \"agent-ca\" certificate authority\n"
        } else {
            "[certs] Generating \"agent-ca\" certificate and key\n"
        })?;
        if !serves {
            let file = self.resolved.kubelet.tls_cert_file.clone();
            return self.print(&format!("[certs] Using the configured serving certificate {file}\n"));
        }
        let file = directory.join("kubelet.crt");
        let before = fs::read(&file).ok();
        let resolved = &self.resolved;
        let names = serving_names(
            resolved.node_name.clone(),
            resolved.node_ips.clone(),
            &resolved.kubelet.address,
            names_for_pods(resolved),
        )();
        let now = self.session.environment.now;
        pki::serving_pair(&directory, &authority, &self.resolved.node_name, &names, now)?;
        if before.is_some() && before == fs::read(&file).ok() {
            return self.print("[certs] Using existing \"kubelet\" certificate and key on disk\n");
        }
        self.print(&format!(
            "[certs] Generating \"kubelet\" certificate and key\n[certs] kubelet serving cert is signed for {}\n",
            names.join(", ")
        ))
    }

    fn kubeconfig(&mut self) -> Result<(), InitError> {
        if self.leaves_certificates() {
            return self.print(
                "[kubeconfig] Skipped: no certificate authority yet; run \"agent init phase kubeconfig\" on \
                 that system once it is running\n",
            );
        }
        self.directories("kubeconfig")?;
        let path = self.options.rooted(install::ADMIN_CONF);
        let shown = path.display().to_string();
        if self.options.dry_run {
            let is_there = path.exists();
            return self.print(&if is_there {
                format!("[kubeconfig] Using existing kubeconfig file: {shown:?}\n")
            } else {
                format!("[dryrun] Would write {shown:?} kubeconfig file\n")
            });
        }
        let authority = Authority::open(&self.cert_dir(), &self.resolved.node_name)?;
        let now = self.session.environment.now;
        match fs::read_to_string(&path) {
            Ok(text) => match kubeconfig_state(&text, &authority, now) {
                Standing::Valid => {
                    return self.print(&format!("[kubeconfig] Using existing kubeconfig file: {shown:?}\n"));
                }
                Standing::Expiring => {}
                Standing::OtherCa => return Err(InitError::WrongAuthority(path)),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(InitError::File { action: "read", path, source }),
        }
        let pair = authority.client(ADMIN, MASTERS, YEAR, now)?;
        let server = server_url(&self.resolved.kubelet.address, self.resolved.kubelet.port);
        let text = kubeconfig::file(&self.resolved.node_name, &server, &authority, ADMIN, &pair);
        write(&File::new(path, 0o600, text))?;
        self.print(&format!("[kubeconfig] Writing {shown:?} kubeconfig file\n"))
    }

    fn kubelet_config(&mut self) -> Result<(), InitError> {
        self.directories("kubelet-config")?;
        let endpoint = self.options.endpoint.as_deref();
        let content = self.given.clone().unwrap_or_else(|| install::configuration(endpoint));
        let kept = self.ensure("kubelet-config", &File::new(CONFIG_FILE, 0o644, content))?;
        if let (true, Some(endpoint)) = (kept, endpoint) {
            self.session.print_error(&format!(
                "\t[WARNING kubelet-config]: the existing configuration is kept: add \
                 containerRuntimeEndpoint: {endpoint} to it\n"
            ));
        }
        if self.options.agent_flags.is_empty() {
            return Ok(());
        }
        let content = install::defaults(&self.options.agent_flags);
        self.ensure("kubelet-config", &File::new(DEFAULTS_FILE, 0o644, content)).map(drop)
    }

    fn manifests(&mut self) -> Result<(), InitError> {
        self.directories("manifests")?;
        if self.options.example {
            self.ensure("manifests", &File::new(install::EXAMPLE_FILE, 0o644, install::EXAMPLE))?;
        }
        Ok(())
    }

    fn program(&mut self) -> Result<(), InitError> {
        if self.options.is_live() {
            return Ok(());
        }
        let place = service::program(self.options);
        if service::is_packaged(self.options) && self.options.program.is_none() {
            return self.print(&format!("[program] Using the program of the package: {}\n", place.display()));
        }
        let source = self.options.program.clone().unwrap_or_else(|| service::OWN.into());
        let bytes = fs::read(&source).map_err(|error| InitError::File {
            action: "read",
            path: source,
            source: error,
        })?;
        if !service::fits(self.options, &bytes) {
            let there = self.options.rootfs.display();
            let text = format!(
                "\t[WARNING program]: the programs in {there} are for another architecture: specify a \
                 matching agent program with --program FILE\n"
            );
            self.session.print_error(&text);
        }
        let path = self.options.rooted(&place);
        let shown = path.display().to_string();
        match fs::read(&path) {
            Ok(there) if there == bytes => {
                return self.print(&format!("[program] Using existing file {shown:?}\n"));
            }
            Ok(_) => {
                return self.print(&format!(
                    "[program] Keeping existing file {shown:?}, which differs: remove it to install this \
                     program\n"
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(InitError::File { action: "read", path, source }),
        }
        if self.options.dry_run {
            return self.print(&format!("[dryrun] Would copy the program to {shown:?}\n"));
        }
        let failed = |source| InitError::File { action: "write", path: path.clone(), source };
        dir::make_dir(path.parent().unwrap_or(Path::new("/")), 0o755).map_err(failed)?;
        durable::write_durably(&path, &bytes, 0o755).map_err(failed)?;
        self.print(&format!("[program] Copied the program to {shown:?}\n"))
    }

    /// Certificates of an offline system are created when it boots: every device gets its own.
    fn leaves_certificates(&self) -> bool {
        !self.options.is_live() && self.options.phase.is_none()
    }

    fn service(&mut self) -> Result<(), InitError> {
        let program = service::program(self.options);
        let Some(service) = service::plan(self.options, self.init_system, &program) else {
            return self.print("[systemd] No supported init system found: no service is created\n");
        };
        let label = if self.init_system == InitSystem::OpenRc { "openrc" } else { "systemd" };
        if let Some(file) = &service.file {
            self.ensure(label, file)?;
        } else {
            let text = format!("[systemd] Using the unit of the package: {}\n", service.link.1.display());
            self.print(&text)?;
        }
        self.modules(label)?;
        let (link, target) = service.link;
        let path = self.options.rooted(&link);
        if path.symlink_metadata().is_ok() {
            return Ok(());
        }
        if self.options.dry_run {
            return self.print(&format!("[dryrun] Would enable the service: {}\n", link.display()));
        }
        let failed = |source| InitError::File { action: "create the link", path: path.clone(), source };
        if let Some(parent) = path.parent() {
            dir::make_dir(parent, 0o755).map_err(failed)?;
        }
        symlink(&target, &path).map_err(failed)?;
        self.print(&["[", label, "] Enabled the service: it will start at boot\n"].concat())
    }

    /// The embedded runtime's kernel modules, unless the package lists them.
    fn modules(&mut self, label: &str) -> Result<(), InitError> {
        let is_embedded = self.resolved.kubelet.container_runtime_endpoint == "embedded";
        if !is_embedded || self.options.rooted(install::PACKAGED_MODULES).exists() {
            return Ok(());
        }
        self.ensure(label, &File::new(install::MODULES, 0o644, install::MODULES_TEXT)).map(drop)
    }

    fn start(&mut self) -> Result<(), InitError> {
        let commands = service::start(self.init_system);
        if !self.options.is_live() {
            return self.print("[start] Skipped: --rootfs is set, the agent starts when that system boots\n");
        }
        if self.options.dry_run {
            let lines = commands.iter().map(|words| format!("[dryrun] Would run {:?}\n", words.join(" ")));
            return self.print(&lines.collect::<String>());
        }
        if commands.is_empty() {
            let text = format!(
                "[start] Start the agent manually: {}\n",
                install::command(&self.options.agent_flags)
            );
            return self.print(&text);
        }
        self.print("[start] Starting the agent\n")?;
        service::call(self.init_system, commands)?;
        self.is_started = true;
        Ok(())
    }

    fn wait(&mut self) -> Result<(), InitError> {
        let kubelet = &self.resolved.kubelet;
        // Run alone, the phase waits for an agent that was started otherwise.
        let is_wanted = self.is_started || self.options.phase.is_some();
        if self.options.dry_run || !is_wanted || kubelet.healthz_port <= 0 {
            return Ok(());
        }
        let address: IpAddr = kubelet.healthz_bind_address.parse().unwrap_or(IpAddr::from([127, 0, 0, 1]));
        let address = if address.is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { address };
        let at = SocketAddr::new(address, u16::try_from(kubelet.healthz_port).unwrap_or_default());
        let url = format!("http://{at}/healthz");
        self.print(&format!("[wait] Waiting for a healthy agent at {url}. This can take up to 4m0s\n"))?;
        let waited = rt::run(async { tokio::time::timeout(PATIENCE, wait_until_healthy(at)).await });
        match waited {
            Ok(Ok(())) => self.print("[wait] The agent is healthy\n"),
            Ok(Err(_)) => {
                Err(InitError::Unhealthy { at: url, why: service::log_hint(self.init_system).to_owned() })
            }
            Err(error) => Err(InitError::Unhealthy { at: url, why: error.to_string() }),
        }
    }

    fn next_steps(&mut self) -> Result<(), InitError> {
        if self.options.dry_run {
            return Ok(());
        }
        if !self.options.is_live() {
            return self.print(&install::next_steps_elsewhere(&self.options.rootfs));
        }
        let text =
            install::next_steps(self.resolved.kubelet.port, self.is_started, &self.options.agent_flags);
        self.print(&text)
    }

    /// Those of the packages, and the configured ones for manifests and image archives.
    fn directories(&mut self, phase: &str) -> Result<(), InitError> {
        let wanted = match phase {
            "manifests" => {
                // The embedded runtime's images may be part of an image of the system.
                let is_embedded = self.resolved.kubelet.container_runtime_endpoint == "embedded";
                let images = is_embedded.then(|| (self.resolved.flags.images_dir.clone(), 0o755));
                let manifests = (PathBuf::from(&self.resolved.kubelet.static_pod_path), 0o755);
                images.into_iter().chain([manifests]).collect()
            }
            _ => install::directories(),
        };
        for (path, mode) in wanted {
            let real = self.options.rooted(&path);
            // /run is recreated at every boot.
            let is_kept = self.options.is_live() || !path.starts_with("/run");
            if path.as_os_str().is_empty() || real.exists() || !is_kept {
                continue;
            }
            if self.options.dry_run {
                if self.named.insert(path) {
                    self.print(&format!(
                        "[dryrun] Would create directory {:?}\n",
                        real.display().to_string()
                    ))?;
                }
                continue;
            }
            dir::make_dir(&real, mode).map_err(|source| InitError::File {
                action: "create directory",
                path: real,
                source,
            })?;
        }
        Ok(())
    }

    /// Writes a file unless it exists. An existing one that differs is kept and listed; then it returns true.
    fn ensure(&mut self, phase: &str, file: &File) -> Result<bool, InitError> {
        let path = self.options.rooted(&file.path);
        let shown = path.display().to_string();
        match fs::read_to_string(&path) {
            Ok(text) if text == file.content => {
                self.print(&format!("[{phase}] Using existing file {shown:?}\n"))?;
                return Ok(false);
            }
            Ok(_) => {
                self.print(&format!(
                    "[{phase}] Keeping existing file {shown:?}, which differs from what would be written\n"
                ))?;
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(InitError::File { action: "read", path, source }),
        }
        if self.options.dry_run {
            let content: String = file.content.lines().map(|line| ["\t", line, "\n"].concat()).collect();
            self.print(&format!("[dryrun] Would write file {shown:?} with content:\n{content}"))?;
            return Ok(false);
        }
        write(&File { path, ..file.clone() })?;
        self.print(&format!("[{phase}] Writing file {shown:?}\n"))?;
        Ok(false)
    }
}

/// Writes the file durably.
pub(in crate::cmd) fn write(file: &File) -> Result<(), InitError> {
    let failed = |source| InitError::File { action: "write", path: file.path.clone(), source };
    dir::make_dir(file.path.parent().unwrap_or(Path::new("/")), 0o755).map_err(failed)?;
    durable::write_durably(&file.path, file.content.as_bytes(), file.mode).map_err(failed)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Valid,
    /// It expires soon, or has expired.
    Expiring,
    /// Of another authority, or not a kubeconfig written by the agent.
    OtherCa,
}

fn kubeconfig_state(text: &str, authority: &Authority, now: crate::model::types::Timestamp) -> Standing {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(':'));
        line.map(|value| value.trim().trim_matches('"').to_owned()).unwrap_or_default()
    };
    if value("certificate-authority-data") != base64::encode(authority.certificate().as_bytes()) {
        return Standing::OtherCa;
    }
    let certificate = base64::decode(&value("client-certificate-data")).unwrap_or_default();
    let certificate = String::from_utf8_lossy(&certificate);
    if authority.is_client_valid(&certificate, now) { Standing::Valid } else { Standing::Expiring }
}

/// Polls until the answer is 200.
pub(in crate::cmd) async fn wait_until_healthy(at: SocketAddr) {
    while !is_healthy(at).await.unwrap_or(false) {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn is_healthy(at: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect(at).await?;
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await?;
    Ok(&answer[9..] == b"200")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::types::Timestamp;

    #[test]
    fn a_kubeconfig_is_kept_while_it_holds_and_is_of_this_authority() {
        const NOW: Timestamp = Timestamp::from_secs(1_795_305_600);
        let directory = std::env::temp_dir().join(format!("edge-agent-phases-{}", std::process::id()));
        let authority = Authority::open(&directory.join("a"), "edge").unwrap();
        let other = Authority::open(&directory.join("b"), "edge").unwrap();
        let made = |lifetime| {
            let pair = authority.client(ADMIN, MASTERS, lifetime, NOW).unwrap();
            kubeconfig::file("edge", "https://127.0.0.1:10250", &authority, ADMIN, &pair)
        };
        let day = Duration::from_secs(24 * 3600);
        let text = made(YEAR);
        for (text, authority, at, expected) in [
            (text.as_str(), &authority, NOW, Standing::Valid),
            (&text, &authority, NOW.saturating_add(day * 280), Standing::Valid),
            (&text, &authority, NOW.saturating_add(day * 300), Standing::Expiring),
            (&made(day), &authority, NOW, Standing::Expiring),
            (&text, &other, NOW, Standing::OtherCa),
            ("", &authority, NOW, Standing::OtherCa),
        ] {
            assert_eq!(kubeconfig_state(text, authority, at), expected, "{at}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
