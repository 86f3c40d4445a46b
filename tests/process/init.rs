//! `agent preflight`, `agent init`, `agent reset`: on this machine, and in a root directory of one test.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use edge_agent::runtime::fake::{FakeImage, RemoteImage};
use serde_json::Value;

use crate::support::agent::binary;
use crate::support::api::free_port;
use crate::support::fake_cri::FakeCri;
use crate::support::scratch::Scratch;

fn agent(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).stdin(Stdio::null()).output().expect("run the agent")
}

#[track_caller]
fn said(arguments: &[&str], code: i32) -> (String, String) {
    let output = agent(arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {out}{err}");
    (out, err)
}

/// What `sh` says to the script of OpenRC's service followed by these words, with stand-ins for what OpenRC gives it.
fn openrc_script(words: &str) -> String {
    const STAND_INS: &str = "
        need() { echo \"need $*\"; }; use() { :; }; after() { echo \"after $*\"; }; keyword() { :; }
        service_set_value() { echo \"set $*\"; return 1; }\n";
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/openrc/agent");
    let line = format!("{STAND_INS} {words}");
    let output = Command::new("sh").args(["-c", &line, script]).output().expect("run sh");
    assert!(output.status.success(), "{words}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn openrc_script_detects_a_debian_shutdown() {
    for (runlevel, marks) in
        [("2 6", true), ("2 0", true), ("2 1", false), ("N 2", false), ("unknown", false)]
    {
        let said = openrc_script(&format!("runlevel() {{ echo {runlevel}; }}; . \"$0\"; stop_pre"));
        assert_eq!(said, if marks { "set goes_down yes\n" } else { "" }, "{runlevel}");
    }
    // Other systems have no such command.
    assert_eq!(openrc_script("runlevel() { return 127; }; . \"$0\"; stop_pre"), "");
    assert_eq!(openrc_script(". \"$0\"; echo $retry $respawn_max"), "SIGTERM/75/SIGKILL/5 0\n");
    assert_eq!(
        openrc_script("retry=SIGTERM/300; . \"$0\"; echo $retry"),
        "SIGTERM/300\n",
        "/etc/conf.d/agent"
    );
    let dependencies = openrc_script(". \"$0\"; depend");
    assert!(!dependencies.contains("need"), "Debian does not have what others have: {dependencies}");
}

/// Every path below a directory with its mode, and what files hold.
fn snapshot(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let (mut all, mut open) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let (path, metadata) = (entry.path(), entry.metadata().expect("look at a file"));
            if metadata.is_dir() {
                open.push(path.clone());
            }
            let held = fs::read(&path).unwrap_or_default();
            all.insert(path, (metadata.permissions().mode() & 0o7777, held));
        }
    }
    all
}

/// Nothing of a test container is left anywhere.
fn leftovers() -> Vec<String> {
    let places = ["/run", "/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu"];
    let names = places.iter().flat_map(|place| fs::read_dir(place).into_iter().flatten().flatten());
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("agent-preflight") || name.contains("agentpreflight")).collect()
}

/// Flags that keep this test's checks away from what else the machine does.
fn own_flags(scratch: &Scratch) -> Vec<String> {
    vec![
        "--".to_owned(),
        format!("--root-dir={}", scratch.path().join("kubelet").display()),
        format!("--port={}", free_port()),
        format!("--healthz-port={}", free_port()),
    ]
}

#[test]
fn preflight_runs_a_container_for_real_and_leaves_nothing() {
    let scratch = Scratch::new();
    let flags = own_flags(&scratch);
    let mut arguments = vec!["preflight", "-o", "json"];
    arguments.extend(flags.iter().map(String::as_str));
    let output = agent(&arguments);
    let report: Value = serde_json::from_slice(&output.stdout).expect("the report is JSON");
    let passed = report["passed"].as_bool().expect("it says whether it passed");
    assert_eq!(output.status.code(), Some(i32::from(!passed)), "{report:#}");
    let finding = |name: &str| {
        let checks = report["checks"].as_array().expect("checks");
        checks
            .iter()
            .find(|check| check["name"] == name)
            .unwrap_or_else(|| panic!("{name}: {report:#}"))
            .clone()
    };
    let container = finding("CRI");
    assert_eq!(container["severity"], "ok", "{container:#}");
    assert!(
        container["seen"].as_str().expect("text").contains("ran and removed a test container"),
        "{container:#}"
    );
    for name in ["IsPrivilegedUser", "Mem", "SystemVerification", "OverlayFS", "PodNetwork"] {
        finding(name);
    }
    assert_eq!(fs::read_dir(scratch.path()).expect("the scratch directory").count(), 0);
    assert_eq!(leftovers(), Vec::<String>::new());
}

#[test]
fn errors_end_with_one_and_are_warnings_when_they_are_ignored() {
    let scratch = Scratch::new();
    let flags = own_flags(&scratch);
    let socket = format!("unix://{}", scratch.path().join("none.sock").display());
    let mut arguments = vec!["preflight", "--cri-socket", &socket];
    arguments.extend(flags.iter().map(String::as_str));
    let (out, err) = said(&arguments, 1);
    assert!(out.starts_with("[preflight] Running pre-flight checks\n"), "{out}");
    assert!(err.contains("\t[ERROR CRI]: could not connect to the container runtime"), "{err}");
    assert!(err.contains("\t    fix: ") && err.contains("--ignore-preflight-errors=..."), "{err}");
    assert!(err.ends_with("error: preflight checks failed\n"), "{err}");
    arguments.insert(1, "--ignore-preflight-errors=all");
    let (out, err) = said(&arguments, 0);
    assert!(err.contains("\t[WARNING CRI]: "), "{err}");
    assert!(out.contains("[preflight] This machine can run pods"), "{out}");
}

/// A system in a directory, with systemd by its looks.
fn image(scratch: &Scratch) -> PathBuf {
    let root = scratch.dir("image");
    for program in ["usr/bin/systemctl", "usr/bin/agent"] {
        fs::create_dir_all(root.join("usr/bin")).expect("make a directory");
        fs::write(root.join(program), "").expect("write a program");
    }
    root
}

#[test]
fn a_dry_run_says_what_it_would_write_and_changes_nothing() {
    let scratch = Scratch::new();
    let root = image(&scratch);
    let before = snapshot(&root);
    let rootfs = format!("--rootfs={}", root.display());
    let (out, _) = said(&["init", &rootfs, "--dry-run", "--example"], 0);
    for words in [
        "[certs] Skipped: --rootfs is set, the agent generates its certificates at its first boot",
        "[program] Using the program of the package: /usr/bin/agent",
        "/var/lib/kubelet/config.yaml\" with content:",
        "\tstaticPodPath: /etc/kubernetes/manifests",
        "etc/systemd/system/agent.service\" with content:",
        "[dryrun] Would enable the service",
        "\t  name: hello",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    assert_eq!(snapshot(&root), before);
    let (out, _) = said(&["reset", &rootfs, "--dry-run"], 0);
    assert!(!out.contains("Deleting"), "{out}");
    assert_eq!(snapshot(&root), before);
}

#[test]
fn init_is_idempotent_and_reset_removes_what_it_created() {
    let scratch = Scratch::new();
    let root = image(&scratch);
    let before = snapshot(&root);
    let rootfs = format!("--rootfs={}", root.display());
    let (out, _) = said(&["init", &rootfs, "--example"], 0);
    assert!(
        out.starts_with("[init] Using agent version: v") && out.contains("agent init phase kubeconfig"),
        "{out}"
    );
    assert!(!root.join("var/lib/kubelet/pki").exists(), "every device makes its own at its first boot");
    let (_, err) = said(&["init", "phase", "certs", &rootfs], 0);
    assert!(
        err.contains("all devices created from this image will share one certificate authority"),
        "{err}"
    );
    said(&["init", "phase", "kubeconfig", &rootfs], 0);
    let after = snapshot(&root);
    let mode = |path: &str| after.get(&root.join(path)).unwrap_or_else(|| panic!("{path}: {after:?}")).0;
    for (path, wanted) in [
        ("var/lib/kubelet", 0o750),
        ("var/lib/kubelet/config.yaml", 0o644),
        ("var/lib/kubelet/images", 0o755),
        ("var/lib/kubelet/pki/agent-ca.crt", 0o644),
        ("var/lib/kubelet/pki/agent-ca.key", 0o600),
        ("var/lib/kubelet/pki/kubelet.crt", 0o644),
        ("var/lib/kubelet/pki/kubelet.key", 0o600),
        ("etc/kubernetes/admin.conf", 0o600),
        ("etc/kubernetes/manifests/hello.yaml", 0o644),
        ("etc/systemd/system/agent.service", 0o644),
        ("etc/modules-load.d/agent.conf", 0o644),
    ] {
        assert_eq!(mode(path), wanted, "{path}");
    }
    let modules = fs::read_to_string(root.join("etc/modules-load.d/agent.conf")).expect("the modules");
    assert!(modules.contains("\noverlay\n") && modules.contains("\nnft_masq\n"), "{modules}");
    let unit = fs::read_to_string(root.join("etc/systemd/system/agent.service")).expect("the unit");
    assert!(unit.contains("\nExecStart=/usr/bin/agent --config"), "{unit}");
    // Without it systemd sets the mode of the root directory to 0755 at each start.
    assert!(unit.contains("\nStateDirectoryMode=0750\n"), "{unit}");
    let link =
        fs::read_link(root.join("etc/systemd/system/multi-user.target.wants/agent.service")).expect("a link");
    assert_eq!(link, Path::new("/etc/systemd/system/agent.service"));
    // The agent reads what it wrote.
    let config = root.join("var/lib/kubelet/config.yaml").display().to_string();
    assert!(said(&["config", "--config", &config], 0).0.contains("address: \"127.0.0.1\""));

    said(&["init", &rootfs, "--example"], 0);
    let (out, _) = said(&["init", "phase", "certs", &rootfs], 0);
    assert!(out.contains("[certs] Using existing \"kubelet\" certificate and key on disk"), "{out}");
    let (out, _) = said(&["init", "phase", "kubeconfig", &rootfs], 0);
    assert!(out.contains("[kubeconfig] Using existing kubeconfig file"), "{out}");
    assert_eq!(snapshot(&root), after, "again changes nothing");

    fs::write(&config, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 7\n")
        .expect("edit the configuration");
    let (out, err) = said(&["init", "phase", "kubelet-config", &rootfs, "--cri-socket=/run/c.sock"], 0);
    assert!(out.contains("Keeping existing file") && !out.contains("[certs]"), "{out}");
    assert!(err.contains("add containerRuntimeEndpoint: unix:///run/c.sock to it"), "{err}");
    assert!(fs::read_to_string(&config).expect("the configuration").contains("maxPods: 7"));

    let data = root.join("var/lib/kubelet/volumes/default/data/file");
    fs::create_dir_all(data.parent().expect("it has one")).expect("make a volume");
    fs::write(&data, "precious").expect("write into the volume");
    fs::write(root.join("etc/kubernetes/manifests/mine.yaml"), "kind: Pod\n").expect("write a manifest");
    // What an agent has made since.
    for made in [
        "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
        "var/lib/kubelet/plugins_registry/reg.sock",
        "var/lib/kubelet/pod-resources/kubelet.sock",
        "run/systemd/logind.conf.d/99-kubelet.conf",
    ] {
        let path = root.join(made);
        fs::create_dir_all(path.parent().expect("it has one")).expect("make a directory of the agent's");
        fs::write(&path, "# Written by the agent for shutdownGracePeriod.\n")
            .expect("write a file of the agent's");
    }
    let (_, err) = said(&["reset", &rootfs], 1);
    assert!(err.contains("aborted, nothing was changed"), "{err}");
    let (out, _) = said(&["reset", "--force", &rootfs], 0);
    assert!(
        out.contains("data of claims: use --volumes to delete it") && out.contains("your manifests"),
        "{out}"
    );
    assert_eq!(fs::read_to_string(&data).expect("the data stays"), "precious");
    let left = snapshot(&root);
    assert!(!out.contains("not created by the agent"), "{out}");
    for gone in [
        "config.yaml",
        "admin.conf",
        "hello.yaml",
        "agent.service",
        "modules-load.d/agent.conf",
        "agent-ca.key",
        "device-plugins",
        "plugins_registry",
        "pod-resources",
        "99-kubelet.conf",
    ] {
        assert!(!left.keys().any(|path| path.ends_with(gone)), "{gone}: {:?}", left.keys());
    }
    assert!(left.contains_key(&root.join("etc/kubernetes/manifests/mine.yaml")));
    fs::remove_file(root.join("etc/kubernetes/manifests/mine.yaml")).expect("remove the manifest");
    said(&["reset", "--force", "--volumes", &rootfs], 0);
    let left: Vec<PathBuf> = snapshot(&root).into_keys().filter(|path| path.is_file()).collect();
    let files: Vec<PathBuf> = before.into_keys().filter(|path| path.is_file()).collect();
    assert_eq!(left, files, "no file is left that was not there before");
}

#[test]
fn modules_are_listed_for_the_embedded_runtime_alone() {
    const OWN: &str = "etc/modules-load.d/agent.conf";
    let scratch = Scratch::new();
    let root = image(&scratch);
    let rootfs = format!("--rootfs={}", root.display());
    said(&["init", &rootfs, "--cri-socket=/run/c.sock"], 0);
    assert!(!root.join(OWN).exists(), "containerd has its own");
    said(&["reset", "--force", &rootfs], 0);
    let packaged = root.join("usr/lib/modules-load.d/agent.conf");
    fs::create_dir_all(packaged.parent().expect("it has one")).expect("make the package's directory");
    fs::write(&packaged, "overlay\n").expect("write the package's file");
    said(&["init", &rootfs], 0);
    assert!(!root.join(OWN).exists());
    fs::remove_file(&packaged).expect("remove the package's file");
    said(&["init", &rootfs], 0);
    fs::write(root.join(OWN), "overlay\n").expect("edit it");
    let (out, _) = said(&["reset", "--force", &rootfs], 0);
    assert!(out.contains("modules-load.d/agent.conf (modified since init wrote it)"), "{out}");
    assert!(root.join(OWN).exists(), "the user's");
}

#[test]
fn system_without_a_package_gets_the_program_and_a_unit_for_it() {
    let scratch = Scratch::new();
    let root = image(&scratch);
    fs::remove_file(root.join("usr/bin/agent")).expect("no package");
    let rootfs = format!("--rootfs={}", root.display());
    let (out, _) = said(&["init", &rootfs, "--dry-run"], 0);
    assert!(out.contains("[dryrun] Would copy the program to") && !root.join("usr/local").exists(), "{out}");
    let (out, _) = said(&["init", &rootfs], 0);
    let program = root.join("usr/local/bin/agent");
    assert!(
        out.contains(&format!("[program] Copied the program to {:?}", program.display().to_string())),
        "{out}"
    );
    assert!(out.contains("generates its certificates"), "{out}");
    let version = Command::new(&program).arg("version").output().expect("run the copy");
    assert!(version.status.success());
    let unit = fs::read_to_string(root.join("etc/systemd/system/agent.service")).expect("the unit");
    assert!(unit.contains("\nExecStart=/usr/local/bin/agent --config"), "{unit}");
    let (out, _) = said(&["init", &rootfs], 0);
    assert!(out.contains("[program] Using existing file"), "{out}");
    // A given program is taken as it is, for another processor, too; one that is there and differs is kept.
    fs::write(root.join("usr/bin/env"), [&b"\x7fELF\x02\x01\x01"[..], &[0; 11], &[0xff, 0x7f]].concat())
        .expect("write a program");
    let given = scratch.path().join("given");
    fs::write(&given, "#!/bin/sh\n").expect("write a program");
    let flag = format!("--program={}", given.display());
    let (out, err) = said(&["init", &rootfs, &flag], 0);
    assert!(out.contains("[program] Keeping existing file"), "{out}");
    assert!(err.contains("[WARNING program]") && err.contains("another architecture"), "{err}");
    let (_, err) = said(&["init", &flag], 2);
    assert!(err.contains("--program requires --rootfs DIR"), "{err}");
    let (out, _) = said(&["reset", "--force", &rootfs], 0);
    assert!(!root.join("etc/systemd/system/agent.service").exists());
    assert!(out.contains(&format!("{} (the program)", program.display())), "{out}");
}

#[test]
fn init_passes_flags_to_the_service_and_rejects_another_ca() {
    let scratch = Scratch::new();
    let root = image(&scratch);
    let rootfs = format!("--rootfs={}", root.display());
    said(&["init", &rootfs, "--", "--hostname-override=box-7"], 0);
    said(&["init", "phase", "kubeconfig", &rootfs], 0);
    let defaults = fs::read_to_string(root.join("etc/default/agent")).expect("the service's flags");
    assert!(defaults.ends_with("AGENT_ARGS=\"--hostname-override=box-7\"\n"), "{defaults}");
    let admin = fs::read_to_string(root.join("etc/kubernetes/admin.conf")).expect("the kubeconfig");
    assert!(admin.contains("box-7") && admin.contains("https://127.0.0.1:10250"), "{admin}");
    fs::remove_dir_all(root.join("var/lib/kubelet/pki")).expect("lose the authority");
    let (_, err) = said(&["init", "phase", "kubeconfig", &rootfs], 1);
    assert!(
        err.contains("error: error execution phase kubeconfig")
            && err.contains("another certificate authority"),
        "{err}"
    );
    let (_, err) = said(&["init", &rootfs, "--", "status"], 1);
    assert!(err.contains("error: "), "{err}");
}

#[test]
fn reset_asks_and_takes_yes_for_an_answer() {
    let scratch = Scratch::new();
    let root = image(&scratch);
    let rootfs = format!("--rootfs={}", root.display());
    said(&["init", &rootfs], 0);
    said(&["init", "phase", "kubeconfig", &rootfs], 0);
    let mut child = Command::new(binary())
        .args(["reset", &rootfs])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("run the agent");
    child.stdin.take().expect("its input").write_all(b"yes\n").expect("answer");
    let output = child.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("Are you sure you want to proceed? [y/N]: "), "{said}");
    assert!(!root.join("etc/kubernetes/admin.conf").exists());
}

#[test]
fn reset_keeps_mounted_data_and_the_root_directorys_disk() {
    let scratch = Scratch::new();
    let root = image(&scratch);
    let (disk, share) = (scratch.dir("disk"), scratch.dir("share"));
    let kubelet = root.join("var/lib/kubelet");
    fs::create_dir_all(&kubelet).expect("make the root directory");
    let bind = |source: &Path, target: &Path| {
        let none = None::<&str>;
        nix::mount::mount(Some(source), target, none, nix::mount::MsFlags::MS_BIND, none).expect("bind");
    };
    bind(&disk, &kubelet);
    let volume = kubelet.join("pods/uid/volumes/share");
    fs::create_dir_all(&volume).expect("make a volume");
    fs::create_dir_all(kubelet.join("volumes/default/data")).expect("make a claim");
    fs::write(kubelet.join("volumes/default/data/file"), "precious").expect("write");
    fs::write(share.join("file"), "somebody's").expect("write");
    bind(&share, &volume);
    let rootfs = format!("--rootfs={}", root.display());
    let (out, _) = said(&["reset", "--force", &rootfs], 0);
    assert!(out.contains("Unmounting mounted directories"), "{out}");
    assert_eq!(fs::read_to_string(share.join("file")).expect("it stays"), "somebody's");
    assert_eq!(fs::read_to_string(kubelet.join("volumes/default/data/file")).expect("it stays"), "precious");
    assert!(!disk.join("pods").exists(), "it was removed on the disk, which is still there");
}

/// A configuration of a control plane whose runtime is `cri`; `more`: lines of its InitConfiguration.
fn control_plane(scratch: &Scratch, cri: &FakeCri, more: &str) -> String {
    let at = |name: &str| scratch.path().join(name).display().to_string();
    let text = format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n\
         nodeRegistration: {{name: localhost, criSocket: '{}'}}\n{more}\n---\n\
         apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.36.0\n\
         imageRepository: r.example/x\ncertificatesDir: {}\nproxy: {{disabled: true}}\n\
         etcd: {{local: {{dataDir: {}}}}}\n",
        cri.endpoint(),
        at("pki"),
        at("etcd")
    );
    fs::write(at("config"), text).expect("write the configuration");
    at("config")
}

#[test]
fn a_control_plane_is_checked_as_its_configuration_says() {
    let scratch = Scratch::new();
    let cri = FakeCri::start(&scratch.path().join("cri.sock"));
    let held = TcpListener::bind("127.0.0.1:0").expect("hold a port");
    let port = held.local_addr().expect("its address").port();
    fs::write(scratch.dir("etcd").join("member"), "").expect("leave data");
    let config = control_plane(
        &scratch,
        &cri,
        &format!("localAPIEndpoint: {{advertiseAddress: 192.0.2.10, bindPort: {port}}}"),
    );
    let output = agent(&["preflight", "--control-plane", "--config", &config, "-o", "json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("the report is JSON");
    let severity = |name: &str| {
        let mut checks = report["checks"].as_array().expect("checks").iter();
        let check = checks.find(|check| check["name"] == name);
        check.unwrap_or_else(|| panic!("{name}: {report:#}"))["severity"].clone()
    };
    let etcd = format!("DirAvailable-{}", scratch.path().join("etcd").display()).replace('/', "-");
    for (name, expected) in [
        (format!("Port-{port}").as_str(), "error"),
        (&etcd, "error"),
        ("KubernetesVersion", "ok"),
        ("KubeletVersion", "ok"),
        ("CRI", "ok"),
        ("ContainerRuntimeVersion", "ok"),
        ("ImagePull", "skipped"),
    ] {
        assert_eq!(severity(name), expected, "{name}");
    }
    assert!(!cri.call_names().contains(&"PullImage"), "agent preflight changes nothing");
    // The phase alone says the same, and stops before the images.
    let (out, err) = said(&["init", "phase", "preflight", "--control-plane", "--config", &config], 1);
    assert_eq!(out, "[preflight] Running pre-flight checks\n");
    assert!(err.contains(&format!("\t[ERROR Port-{port}]: Port {port} is in use by ")), "{err}");
    assert!(err.ends_with("error: error execution phase preflight: preflight checks failed\n"), "{err}");
}

#[test]
fn images_that_lack_are_pulled_and_no_others() {
    let pulled = |cri: &FakeCri| {
        let state = cri.state();
        let pulls = state.calls.iter().filter(|call| call.name == "PullImage");
        pulls.map(|call| call.subject.clone()).collect::<Vec<_>>()
    };
    let scratch = Scratch::new();
    let cri = FakeCri::start(&scratch.path().join("cri.sock"));
    let names = ["kube-apiserver:v1.36.0", "kube-controller-manager:v1.36.0", "kube-scheduler:v1.36.0"];
    let images = names.into_iter().chain(["coredns:v1.14.2", "pause:3.10.2", "etcd:3.6.8-0"]);
    let images: Vec<String> = images.map(|name| format!("r.example/x/{name}")).collect();
    let run = |policy: &str, more: &[&str], code| {
        let lines = format!("localAPIEndpoint: {{advertiseAddress: 192.0.2.10, bindPort: {}}}", free_port());
        let config = control_plane(&scratch, &cri, &lines);
        let text = fs::read_to_string(&config).expect("the configuration");
        let text = text.replace("{name: localhost", &format!("{{name: localhost, imagePullPolicy: {policy}"));
        fs::write(&config, text).expect("write the configuration");
        // Whatever this machine lacks is no matter.
        let findings = agent(&["preflight", "--control-plane", "--config", &config, "-o", "json"]);
        let report: Value = serde_json::from_slice(&findings.stdout).expect("the report is JSON");
        let errors = report["checks"].as_array().expect("checks").iter();
        let errors = errors.filter(|check| check["severity"] == "error");
        let errors: Vec<&str> = errors.map(|check| check["name"].as_str().expect("a name")).collect();
        let ignored = format!("--ignore-preflight-errors={}", errors.join(","));
        let line = ["init", "phase", "preflight", "--control-plane", "--config", &config, &ignored];
        said(&[&line, more].concat(), code)
    };
    cri.add_image(&images[0]);
    cri.change(|world, _| {
        for image in &images[..5] {
            let remote =
                RemoteImage { image: FakeImage::named(image), pull_time: Duration::ZERO, auth: None };
            world.registry.insert(image.clone(), remote);
        }
    });
    let (out, _) = run("IfNotPresent", &["--dry-run"], 0);
    assert!(out.contains("[preflight] Would pull the required images"), "{out}");
    let (out, _) = run("Never", &[], 0);
    assert!(out.contains("No image is pulled: imagePullPolicy is Never"), "{out}");
    assert_eq!(pulled(&cri), [""; 0]);
    // The last one is in no registry: five attempts, and an error.
    let (out, err) = run("IfNotPresent", &[], 1);
    assert!(out.contains("[preflight] Pulling images required for setting up a Kubernetes cluster"), "{out}");
    assert!(err.contains(&format!("\t[ERROR ImagePull]: failed to pull image {}: ", images[5])), "{err}");
    let expected: Vec<&String> = images[1..5].iter().chain(std::iter::repeat_n(&images[5], 5)).collect();
    assert_eq!(pulled(&cri).iter().collect::<Vec<_>>(), expected);
    cri.add_image(&images[5]);
    run("IfNotPresent", &[], 0);
    assert_eq!(pulled(&cri).len(), 9, "all are there");
    cri.state().calls.clear();
    cri.change(|world, _| {
        world.registry.insert(
            images[5].clone(),
            RemoteImage { image: FakeImage::named(&images[5]), pull_time: Duration::ZERO, auth: None },
        )
    });
    run("Always", &[], 0);
    assert_eq!(pulled(&cri), images);
}
