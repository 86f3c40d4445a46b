//! A control plane of Kubernetes' own programs, as processes in a network namespace that ends with the test.
//!
//! `KUBE_BIN` names the directory of the programs. The namespace belongs to the test's thread: everything the test starts is
//! in it, so addresses and ports are fixed and tests may run beside each other.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use edge_agent::codec::base64;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::support::containerd::{pid_of, tail};
use crate::support::wait::{pause, wait_for};

/// The address of the machine: of the API server and of the node.
pub const ADDRESS: &str = "192.0.2.10";
/// Where the API server listens.
pub const SERVER: &str = "192.0.2.10:6443";
/// The service `kubernetes`, which this network leads to the API server: the way of pods, and of the node, so that it can be cut.
pub const SERVICE: &str = "10.96.0.1:443";
/// The bootstrap token, as kubeadm makes it: nodes that join with it get their certificates approved.
pub const TOKEN: &str = "abcdef.0123456789abcdef";
/// How long a step of the control plane may take on a quiet machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// In the order of their starts.
const ALL: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
pub const VERSION: &str = "v1.36.2";
const ETCD: &str = "http://127.0.0.1:2379";
/// Requests of nodes, once each when they have been answered.
const AUDIT_POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
 "omitStages": ["RequestReceived", "ResponseStarted"],
 "rules": [{"level": "Metadata", "userGroups": ["system:nodes"]}, {"level": "None"}]}"#;

/// What a test wants otherwise than usual.
#[derive(Default)]
pub struct Options<'a> {
    /// More flags of kube-apiserver.
    pub apiserver: &'a [&'a str],
    /// More flags of kube-controller-manager.
    pub controller_manager: &'a [&'a str],
}

/// A program of `KUBE_BIN`; etcd may also be elsewhere.
pub fn program(name: &str) -> PathBuf {
    let programs = std::env::var_os("KUBE_BIN")
        .expect("KUBE_BIN names the directory of kube-apiserver and its companions: docs/contributing.md");
    let found = Path::new(&programs).join(name);
    match std::env::var_os("KUBE_ETCD") {
        Some(etcd) if name == "etcd" => etcd.into(),
        _ if name == "etcd" && !found.exists() => "etcd".into(),
        _ => found,
    }
}

/// etcd, kube-apiserver, kube-controller-manager and kube-scheduler, which end with the value.
pub struct ControlPlane {
    directory: PathBuf,
    more: BTreeMap<&'static str, Vec<String>>,
    processes: BTreeMap<&'static str, Child>,
    was_away: Cell<bool>,
}

impl ControlPlane {
    /// Starts one with its files below `directory`; the calling thread is in its network from then on.
    pub fn start(directory: &Path, options: &Options<'_>) -> Self {
        let directory = directory.join("control-plane");
        for name in ["log", "etcd"] {
            fs::create_dir_all(directory.join(name)).expect("make a directory");
        }
        let owned = |flags: &[&str]| flags.iter().map(|flag| (*flag).to_owned()).collect();
        let more = BTreeMap::from([
            ("kube-apiserver", owned(options.apiserver)),
            ("kube-controller-manager", owned(options.controller_manager)),
        ]);
        let mut this = Self { directory, more, processes: BTreeMap::new(), was_away: Cell::new(false) };
        make_network();
        this.make_files();
        this.start_all();
        for phase in [&["upload-config", "all"][..], &["bootstrap-token"]] {
            this.kubeadm(&[phase, &["--kubeconfig", &this.conf("super-admin")]].concat());
        }
        this.wait("the default service account", || {
            this.get("/api/v1/namespaces/default/serviceaccounts/default")
        });
        this
    }

    /// A file of the cluster's keys and certificates, by its name in kubeadm's layout.
    pub fn pki(&self, name: &str) -> String {
        self.directory.join("pki").join(name).display().to_string()
    }

    /// The kubeconfig of `admin`, `super-admin`, `controller-manager` or `scheduler`.
    pub fn conf(&self, name: &str) -> String {
        self.directory.join("conf").join(format!("{name}.conf")).display().to_string()
    }

    /// A kubeconfig with the bootstrap token, as kubeadm writes it for a node that joins.
    pub fn bootstrap_kubeconfig(&self) -> String {
        let authority = fs::read(self.pki("ca.crt")).expect("read the authority");
        let authority = base64::encode(&authority);
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "kubernetes", "cluster": {
                "server": format!("https://{SERVICE}"), "certificate-authority-data": authority,
            } }],
            "users": [{ "name": "bootstrap", "user": { "token": TOKEN } }],
            "contexts": [{ "name": "bootstrap", "context": { "cluster": "kubernetes", "user": "bootstrap" } }],
            "current-context": "bootstrap",
        })
        .to_string()
    }

    /// kubectl as an administrator, not started.
    pub fn kubectl_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("kubectl"));
        command.args(["--kubeconfig", &self.conf("super-admin")]).args(arguments);
        command.env("HOME", &self.directory).stdin(Stdio::null());
        command
    }

    /// What kubectl prints, or its complaint.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        said(&mut self.kubectl_command(arguments))
    }

    /// What kubectl prints when all is well.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Creates or changes objects.
    pub fn apply(&self, objects: &[Value]) {
        let file = self.directory.join("applied.json");
        let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        fs::write(&file, list.to_string()).expect("write the objects");
        self.kubectl(&["apply", "-f", &file.display().to_string()]);
    }

    /// An object or a list, read with as little work as possible: for what is asked again and again.
    pub fn get(&self, path: &str) -> Result<Value, String> {
        let text = self.raw(path)?;
        let value: Value = serde_json::from_str(&text).map_err(|error| format!("{path}: {error}: {text}"))?;
        if value["kind"] == "Status" { Err(format!("{path}: {value}")) } else { Ok(value) }
    }

    /// The answer to a GET of the administrator.
    pub fn raw(&self, path: &str) -> Result<String, String> {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "20", "--cacert", &self.pki("ca.crt")]);
        command.args(["--cert", &self.pki("administrator.crt"), "--key", &self.pki("administrator.key")]);
        said(command.arg(format!("https://{SERVER}{path}")))
    }

    /// The pods of a namespace that have this label, or all.
    pub fn pods(&self, namespace: &str, selector: &str) -> Result<Vec<Value>, String> {
        let list = self.get(&format!("/api/v1/namespaces/{namespace}/pods?labelSelector={selector}"))?;
        list["items"].as_array().cloned().ok_or_else(|| format!("no list: {list}"))
    }

    /// Asks a few times a second until the answer is right.
    pub fn wait<T>(&self, what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
        wait_for(&format!("{what}, with logs in {}", self.directory.display()), PATIENCE, || {
            look().inspect_err(|_| pause(Duration::from_millis(200)))
        })
    }

    /// Starts a program that does not run.
    pub fn start_program(&mut self, name: &'static str) {
        let log = self.directory.join("log").join(name);
        let log = File::options().create(true).append(true).open(log).expect("open a log");
        let mut command = Command::new(program(name));
        command.args(self.flags(name)).args(self.more.get(name).into_iter().flatten());
        if name == "kube-apiserver" {
            // What busybox's TLS needs of a server, for programs in pods. Go 1.27 has no such setting any more.
            command.env("GODEBUG", "tlssha1=1,tlsrsakex=1");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("start {name} of KUBE_BIN: {error}"));
        assert!(self.processes.insert(name, child).is_none(), "{name} runs already");
    }

    /// Sends a signal to one of the programs.
    pub fn signal(&self, name: &str, signal: Signal) {
        self.was_away.set(true);
        kill(pid_of(&self.processes[name]), signal).expect("signal a program of the control plane");
    }

    /// Ends a program at once.
    pub fn kill(&mut self, name: &str) {
        self.was_away.set(true);
        let mut child = self.processes.remove(name).expect("it runs");
        child.kill().expect("kill a program of the control plane");
        child.wait().expect("reap it");
    }

    /// Waits until the API server is ready.
    pub fn wait_until_ready(&self) {
        wait_for("the API server to be ready", PATIENCE, || match self.raw("/readyz") {
            Ok(text) if text == "ok" => Ok(()),
            other => {
                pause(Duration::from_millis(200));
                Err(format!("{other:?}: {}", tail(&self.directory.join("log/kube-apiserver"))))
            }
        });
    }

    /// Ends or restores the way of the node and its pods to the API server, without a word to either end.
    pub fn cut(&self, is_cut: bool) {
        self.was_away.set(true);
        let words = "add rule ip service cut ct original ip daddr 10.96.0.1 drop";
        let mut command = Command::new("nft");
        command.args(if is_cut { words } else { "flush chain ip service cut" }.split(' '));
        said(&mut command).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Starts all four with what etcd had when it was copied to this directory, or copies it there while nothing runs.
    pub fn snapshot(&mut self, name: &str, restores: bool) {
        let (data, copy) = (self.directory.join("etcd"), self.directory.join(name));
        for program in ALL.iter().rev() {
            self.kill(program);
        }
        let (from, to) = if restores { (&copy, &data) } else { (&data, &copy) };
        let _ = fs::remove_dir_all(to);
        said(Command::new("cp").arg("-a").args([from, to])).unwrap_or_else(|error| panic!("{error}"));
        self.start_all();
    }

    fn start_all(&mut self) {
        for program in ALL {
            self.start_program(program);
            if program == "kube-apiserver" {
                self.wait_until_ready();
            }
        }
    }

    /// Requests of nodes that were answered so far, as the audit log has them.
    pub fn requests_of_nodes(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.directory.join("audit.log")).expect("read the audit log");
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Requests of the agent that the API server would not have: each kind once. What a test asked with kubectl is not the agent's,
    /// and who asks for an object of a pod that is gone meanwhile, or that a server has just read again, may be refused. What the
    /// server lets through a moment later is no fault of the agent: its own copy of a pod was older than what it had sent.
    pub fn refusals(&self) -> BTreeSet<String> {
        let requests = self.requests_of_nodes();
        let is_refusal = |request: &Value| {
            let status = &request["responseStatus"];
            [400, 403, 405, 422].iter().any(|code| status["code"] == *code)
        };
        let is_let_through_later = |index: usize| {
            let what = |request: &Value| [request["verb"].clone(), request["requestURI"].clone()];
            let mut later = requests[index..].iter().filter(|later| what(later) == what(&requests[index]));
            later.any(|later| !is_refusal(later))
        };
        let counts = |(index, request): &(usize, &Value)| {
            let text = request["responseStatus"].to_string();
            let is_stale = text.contains("no relationship found between node")
                || text.contains("token bound to a pod scheduled on a different node");
            let is_test = request["userAgent"].as_str().is_some_and(|agent| agent.starts_with("kubectl"));
            let is_excused = is_stale && (self.was_away.get() || is_let_through_later(*index));
            is_refusal(request) && !is_test && !is_excused
        };
        let words = |(_, request): (usize, &Value)| {
            format!("{} {}: {}", request["verb"], request["requestURI"], request["responseStatus"])
        };
        requests.iter().enumerate().filter(counts).map(words).collect()
    }

    fn make_files(&self) {
        let config = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n\
             localAPIEndpoint: {{advertiseAddress: {ADDRESS}, bindPort: 6443}}\nnodeRegistration: {{name: control-plane}}\n\
             bootstrapTokens: [{{token: {TOKEN}, ttl: 0s, usages: [signing, authentication], \
             groups: [\"system:bootstrappers:kubeadm:default-node-token\"]}}]\n---\n\
             apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: {VERSION}\n\
             certificatesDir: {}\ncontrolPlaneEndpoint: {SERVER}\n\
             networking: {{podSubnet: 10.244.0.0/16, serviceSubnet: 10.96.0.0/12}}\n",
            self.directory.join("pki").display(),
        );
        fs::write(self.directory.join("kubeadm.yaml"), config).expect("write kubeadm's configuration");
        fs::write(self.directory.join("audit.json"), AUDIT_POLICY).expect("write the audit policy");
        self.kubeadm(&["certs", "all"]);
        let conf = self.directory.join("conf").display().to_string();
        for name in ["admin", "super-admin", "controller-manager", "scheduler"] {
            self.kubeadm(&["kubeconfig", name, "--kubeconfig-dir", &conf]);
        }
        let text = fs::read_to_string(self.conf("super-admin")).expect("read the administrator's kubeconfig");
        for (field, file) in
            [("client-certificate-data:", "administrator.crt"), ("client-key-data:", "administrator.key")]
        {
            let data = text.lines().find_map(|line| line.trim().strip_prefix(field)).expect(field);
            fs::write(self.pki(file), base64::decode(data.trim()).expect("base64"))
                .expect("write a credential");
        }
    }

    /// The file of kubeadm's configuration.
    pub fn configuration(&self) -> String {
        self.directory.join("kubeadm.yaml").display().to_string()
    }

    /// Runs a phase of `kubeadm init`.
    pub fn kubeadm(&self, phase: &[&str]) {
        let mut command = Command::new(program("kubeadm"));
        command.args(["init", "phase"]).args(phase).arg("--config").arg(self.directory.join("kubeadm.yaml"));
        said(command.stdin(Stdio::null())).unwrap_or_else(|error| panic!("{error}"));
    }

    fn flags(&self, name: &str) -> Vec<String> {
        let file = |name: &str| self.directory.join(name).display().to_string();
        let as_client = |name: &str| {
            let conf = self.conf(name);
            vec![
                format!("--kubeconfig={conf}"),
                format!("--authentication-kubeconfig={conf}"),
                format!("--authorization-kubeconfig={conf}"),
                "--bind-address=127.0.0.1".into(),
                "--leader-elect=false".into(),
            ]
        };
        match name {
            "etcd" => [
                format!("--data-dir={}", file("etcd")),
                format!("--listen-client-urls={ETCD}"),
                format!("--advertise-client-urls={ETCD}"),
                "--listen-peer-urls=http://127.0.0.1:2380".into(),
                "--unsafe-no-fsync".into(),
            ]
            .into(),
            "kube-apiserver" => self.apiserver_flags(),
            "kube-controller-manager" => {
                let mut flags = as_client("controller-manager");
                flags.extend([
                    "--allocate-node-cidrs=true".into(),
                    "--cluster-cidr=10.244.0.0/16".into(),
                    "--service-cluster-ip-range=10.96.0.0/12".into(),
                    format!("--cluster-signing-cert-file={}", self.pki("ca.crt")),
                    format!("--cluster-signing-key-file={}", self.pki("ca.key")),
                    format!("--root-ca-file={}", self.pki("ca.crt")),
                    format!("--service-account-private-key-file={}", self.pki("sa.key")),
                    "--use-service-account-credentials=true".into(),
                    "--controllers=*,bootstrapsigner,tokencleaner".into(),
                ]);
                flags
            }
            _ => as_client("scheduler"),
        }
    }

    fn apiserver_flags(&self) -> Vec<String> {
        let file = |flag: &str, name: &str| format!("--{flag}={}", self.pki(name));
        let mut flags: Vec<String> = [
            "--secure-port=6443",
            "--allow-privileged=true",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--enable-bootstrap-token-auth=true",
            "--kubelet-preferred-address-types=InternalIP,Hostname",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            "--service-cluster-ip-range=10.96.0.0/12",
        ]
        .map(str::to_owned)
        .into();
        flags.extend([
            format!("--etcd-servers={ETCD}"),
            format!("--advertise-address={ADDRESS}"),
            format!("--bind-address={ADDRESS}"),
            format!("--audit-policy-file={}", self.directory.join("audit.json").display()),
            format!("--audit-log-path={}", self.directory.join("audit.log").display()),
            file("client-ca-file", "ca.crt"),
            file("tls-cert-file", "apiserver.crt"),
            file("tls-private-key-file", "apiserver.key"),
            file("kubelet-client-certificate", "apiserver-kubelet-client.crt"),
            file("kubelet-client-key", "apiserver-kubelet-client.key"),
            file("proxy-client-cert-file", "front-proxy-client.crt"),
            file("proxy-client-key-file", "front-proxy-client.key"),
            file("requestheader-client-ca-file", "front-proxy-ca.crt"),
            file("service-account-key-file", "sa.pub"),
            file("service-account-signing-key-file", "sa.key"),
        ]);
        flags
    }
}

impl Drop for ControlPlane {
    #[expect(clippy::print_stderr, reason = "the test runner shows it beside the failure")]
    fn drop(&mut self) {
        for child in self.processes.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for name in ["kube-apiserver", "kube-controller-manager"] {
                eprintln!("--- {name}\n{}", tail(&self.directory.join("log").join(name)));
            }
        }
    }
}

/// A network of the test's own: the machine's address, and the service `kubernetes`, for which there is no kube-proxy here.
pub(super) fn make_network() {
    unshare(CloneFlags::CLONE_NEWNET).expect("make a network namespace: the tests run as root");
    let service = format!("ip daddr 10.96.0.1 tcp dport 443 dnat to {SERVER}");
    for line in [
        "sysctl -q -w net.ipv4.ip_forward=1",
        "ip link set lo up",
        "ip link add uplink type bridge",
        "ip link set uplink up",
        &format!("ip addr add {ADDRESS}/24 dev uplink"),
        "ip route add default dev uplink",
        "nft add table ip service",
        "nft add chain ip service pods { type nat hook prerouting priority dstnat ; }",
        "nft add chain ip service node { type nat hook output priority -100 ; }",
        "nft add chain ip service cut { type filter hook output priority filter ; }",
        &format!("nft add rule ip service pods {service}"),
        &format!("nft add rule ip service node {service}"),
    ] {
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().expect("a program"));
        said(command.args(words)).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// What a program prints, or how it failed.
pub fn said(command: &mut Command) -> Result<String, String> {
    let Output { status, stdout, stderr } =
        command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if status.success() {
        Ok(text(&stdout))
    } else {
        Err(format!("{command:?}: {status}: {}{}", text(&stdout), text(&stderr)))
    }
}
