//! What `agent reset` finds of a control plane on this machine, and kubeadm's configuration of the command.
//!
//! Owns which files are a control plane's. Only what `init` and `join` make counts: other files in the same directories
//! are the user's.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::InitError;
use super::super::args::{InitOptions, UsageError};
use super::super::{install, join};
use crate::agent::control_plane::certificates::{CERTS, CONFS};
use crate::cmd::control_plane::config::fields::DocumentField;
use crate::cmd::control_plane::config::read::single;
use crate::cmd::control_plane::etcd::{LocalMember, argument, component_of};
use crate::model::duration::GoDuration;
use crate::platform::sys::dir;

const CERT_DIR: &str = "/etc/kubernetes/pki";
const TEMPORARY: &str = "/etc/kubernetes/tmp";
/// Of the kubelet of a control plane or of a node of kubeadm.
const ENVIRONMENT: &str = "/var/lib/kubelet/kubeadm-flags.env";
const COMPONENTS: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
/// Of the flags that a control plane adds to the service: the others are in [`ENVIRONMENT`].
const RENEWAL: &str = "--control-plane-cert-validity-period=";
/// kubeadm's `timeouts.etcdAPICall`.
const ETCD_CALL: GoDuration = GoDuration::from_secs(120);

/// What the end of a reset leaves to the user, in kubeadm's words.
pub(super) const NOT_CLEANED: &str = "
The reset process does not perform cleanup of CNI plugin configuration,
network traffic filtering rules and kubeconfig files.

For information on how to perform this cleanup manually, please see:
    https://k8s.io/docs/reference/setup-tools/kubeadm/kubeadm-reset/

";

/// A control plane, what an interrupted `init` has made of one, or a node of kubeadm. Paths are those of the target system.
pub(super) struct PlaneFacts {
    pub(super) is_there: bool,
    pub(super) cert_dir: PathBuf,
    /// `None`: no etcd of kubeadm runs here.
    pub(super) etcd: Option<LocalMember>,
    manifests: Vec<PathBuf>,
}

impl PlaneFacts {
    pub(super) fn of(options: &InitOptions) -> Self {
        let mut found = Self {
            is_there: false,
            cert_dir: options.cert_dir.clone().unwrap_or_else(|| CERT_DIR.into()),
            etcd: None,
            manifests: Vec::new(),
        };
        for component in COMPONENTS {
            let path = options.rooted(install::MANIFESTS).join([component, ".yaml"].concat());
            let Some(pod) = component_of(&path, component) else { continue };
            if component == "etcd" {
                found.etcd = Some(LocalMember::of(&pod));
            }
            let authority = Path::new(argument(&pod, "client-ca-file"));
            if let (Some(parent), None, "kube-apiserver") = (authority.parent(), &options.cert_dir, component)
            {
                parent.clone_into(&mut found.cert_dir);
            }
            found.manifests.push(path);
        }
        let marks = ["ca.key", "apiserver.crt", "sa.key"].map(|name| found.cert_dir.join(name));
        let confs = ["super-admin", "controller-manager", "scheduler"];
        let marks = marks.into_iter().chain(confs.map(|name| conf(name, "conf"))).chain([ENVIRONMENT.into()]);
        found.is_there =
            !found.manifests.is_empty() || marks.into_iter().any(|path| options.rooted(path).exists());
        found
    }

    /// Whether static pods of a control plane run here.
    pub(super) fn has_static_pods(&self) -> bool {
        !self.manifests.is_empty()
    }

    /// Its files that are there: manifests, certificates, keys, requests and kubeconfigs.
    pub(super) fn files(&self, options: &InitOptions) -> Vec<PathBuf> {
        if !self.is_there {
            return Vec::new();
        }
        let certificate = |base: &str, extension: &str| self.cert_dir.join(format!("{base}.{extension}"));
        let bases = CERTS.iter().map(|spec| spec.base);
        let mut paths: Vec<PathBuf> = bases
            .flat_map(|base| ["crt", "key", "csr"].map(|extension| certificate(base, extension)))
            .chain([certificate("sa", "key"), certificate("sa", "pub")])
            .collect();
        paths.extend(
            CONFS.iter().flat_map(|spec| ["conf", "conf.csr"].map(|extension| conf(spec.phase, extension))),
        );
        let mut files: Vec<PathBuf> = paths.iter().map(|path| options.rooted(path)).collect();
        files.extend(self.manifests.iter().cloned());
        files.retain(|path| path.symlink_metadata().is_ok());
        files
    }

    /// Directories that are removed if nothing of the user's is in them, the inner ones first.
    pub(super) fn directories(&self, options: &InitOptions) -> Vec<PathBuf> {
        let data = self.etcd.as_ref().and_then(|etcd| etcd.data_dir.clone());
        let own = [self.cert_dir.join("etcd"), self.cert_dir.clone()];
        if self.is_there {
            own.into_iter().chain(data).map(|path| options.rooted(path)).collect()
        } else {
            Vec::new()
        }
    }

    pub(super) fn data_dir(&self, options: &InitOptions) -> Option<PathBuf> {
        let path = self.etcd.as_ref()?.data_dir.as_ref()?;
        Some(options.rooted(path))
    }
}

fn conf(name: &str, extension: &str) -> PathBuf {
    PathBuf::from(format!("/etc/kubernetes/{name}.{extension}"))
}

/// Of `--cleanup-tmp-dir`.
pub(super) fn temporary(options: &InitOptions) -> PathBuf {
    options.rooted(TEMPORARY)
}

/// The service's file without the flags of a cluster; `None`: it has none.
pub(super) fn defaults_alone(options: &InitOptions, text: &str) -> Option<String> {
    let environment = fs::read_to_string(options.rooted(ENVIRONMENT)).unwrap_or_default();
    let alone = join::without_cluster(text);
    let added =
        environment.trim().strip_prefix("KUBELET_KUBEADM_ARGS=").unwrap_or_default().trim_matches('"');
    let is_added =
        |flag: &str| flag.starts_with(RENEWAL) || added.split_whitespace().any(|given| given == flag);
    let without = join::without_flags(alone.as_deref().unwrap_or(text), &is_added).or(alone);
    without.map(|without| join::unmarked(text, without))
}

/// A missing directory is empty.
pub(super) fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none())
}

pub(super) fn empty(directory: &Path) -> Result<(), String> {
    let said =
        |error: dir::RemoveError| format!("{}: {}", directory.join(error.path).display(), error.source);
    dir::remove_contents(directory).map_err(said)
}

/// What a ResetConfiguration has beside the options of the command line.
pub(super) struct ResetExtras {
    pub(super) etcd_call: Duration,
    /// `unmountFlags` with `MNT_FORCE`.
    pub(super) forces_unmount: bool,
    pub(super) warnings: Vec<String>,
}

/// The options with those of `--config`, and what only the file can say.
pub(super) fn with_config(given: &InitOptions) -> Result<(InitOptions, ResetExtras), InitError> {
    let mut extras =
        ResetExtras { etcd_call: ETCD_CALL.to_std(), forces_unmount: false, warnings: Vec::new() };
    let mut options = given.clone();
    let Some(file) = options.config.take() else { return Ok((options, extras)) };
    let failed = |source| InitError::File { action: "read", path: file.clone(), source };
    let text = fs::read_to_string(&file).map_err(failed)?;
    let wrong = |why: String| InitError::ControlPlane(format!("{}: {why}", file.display()));
    read(&text, &mut options, &mut extras).map_err(wrong)?;
    Ok((options, extras))
}

fn read(text: &str, options: &mut InitOptions, extras: &mut ResetExtras) -> Result<(), String> {
    let (document, warnings) = single(text, "ResetConfiguration")?;
    extras.warnings = warnings;
    let root = DocumentField::of(&document);
    let directory = PathBuf::from(root.at("certificatesDir").text_or(CERT_DIR)?);
    if !directory.is_absolute() {
        let shown = directory.display();
        return Err(format!("certificatesDir: Invalid value: \"{shown}\": path is not absolute"));
    }
    options.cert_dir = root.at("certificatesDir").is_set().then_some(directory);
    let socket = root.at("criSocket").text()?;
    options.endpoint = (!socket.is_empty()).then(|| super::super::args::endpoint(&socket));
    options.force |= root.at("force").flag(false)?;
    options.dry_run |= root.at("dryRun").flag(false)?;
    options.cleans_temporary |= root.at("cleanupTmpDir").flag(false)?;
    for name in root.at("ignorePreflightErrors").texts()? {
        options.ignored.add(&name)?;
    }
    if options.skip_phases.is_empty() {
        options.skip_phases = root.at("skipPhases").texts()?;
        let known = |name: &String| super::PHASES.iter().any(|phase| phase.name == name);
        if let Some(name) = options.skip_phases.iter().find(|name| !known(name)) {
            return Err(format!("skipPhases: {}", UsageError::Phase(name.clone())));
        }
    }
    let times = root.at("timeouts");
    for name in times.members()?.keys() {
        let time = times.at(name).duration(ETCD_CALL)?;
        if name == "etcdAPICall" {
            extras.etcd_call = time.to_std();
        }
    }
    for flag in root.at("unmountFlags").texts()? {
        match flag.as_str() {
            "MNT_FORCE" => extras.forces_unmount = true,
            // What is always done.
            "MNT_DETACH" | "UMOUNT_NOFOLLOW" => {}
            "MNT_EXPIRE" => extras.warnings.push(
                "unmountFlags: MNT_EXPIRE has no effect: mounts are detached at once, whether they are used or not"
                    .to_owned(),
            ),
            other => return Err(format!("unmountFlags: Invalid value: {other:?}: unknown unmount flag")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;

    fn config(lines: &str) -> Result<(InitOptions, ResetExtras), String> {
        let text = format!("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ResetConfiguration\n{lines}");
        let (mut options, mut extras) = (
            InitOptions::default(),
            ResetExtras { etcd_call: ETCD_CALL.to_std(), forces_unmount: false, warnings: Vec::new() },
        );
        read(&text, &mut options, &mut extras).map(|()| (options, extras))
    }

    #[test]
    fn every_field_of_a_reset_configuration_counts() {
        let (options, extras) = config(
            "certificatesDir: /pki\ncriSocket: /run/c.sock\nforce: true\ndryRun: true\ncleanupTmpDir: true\n\
             ignorePreflightErrors: [IsPrivilegedUser]\nskipPhases: [pods]\nunmountFlags: [MNT_FORCE, MNT_EXPIRE]\n\
             timeouts: {etcdAPICall: 9s, discovery: 1m}\nother: 1\n",
        )
        .unwrap();
        assert_eq!(options.cert_dir, Some("/pki".into()));
        assert_eq!(options.endpoint.as_deref(), Some("unix:///run/c.sock"));
        assert!(options.force && options.dry_run && options.cleans_temporary);
        assert!(!options.has_phase("pods") && options.has_phase("stop"));
        assert_eq!((extras.etcd_call.as_secs(), extras.forces_unmount), (9, true));
        assert!(extras.warnings.iter().any(|warning| warning.contains("unknown field \"other\"")));
        assert!(extras.warnings.iter().any(|warning| warning.contains("MNT_EXPIRE has no effect")));
        for (lines, expected) in [
            ("certificatesDir: pki", "certificatesDir: Invalid value: \"pki\": path is not absolute"),
            ("skipPhases: [x]", "skipPhases: invalid phase name: x"),
            ("unmountFlags: [MNT_X]", "unknown unmount flag"),
            ("timeouts: {etcdAPICall: x}", "timeouts.etcdAPICall"),
            ("force: maybe", "force: Invalid value"),
        ] {
            let why = config(lines).err().unwrap();
            assert!(why.contains(expected), "{lines}: {why}");
        }
        assert!(single("a: b", "ResetConfiguration").unwrap_err().contains("no ResetConfiguration"));
    }

    #[test]
    fn only_files_of_a_control_plane_are_taken() {
        let directory = TempDir::new();
        let options = InitOptions { rootfs: directory.path().to_owned(), ..InitOptions::default() };
        let put = |path: &str, text: &str| {
            let path = options.rooted(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("/etc/kubernetes/manifests/etcd.yaml", "metadata: {name: etcd, labels: {app: mine}}\n");
        put("/etc/kubernetes/pki/ca.crt", "of a cluster");
        put("/etc/kubernetes/admin.conf", "its own");
        let alone = PlaneFacts::of(&options);
        assert!(!alone.is_there && alone.files(&options).is_empty() && alone.data_dir(&options).is_none());
        put(
            "/etc/kubernetes/manifests/kube-apiserver.yaml",
            "metadata: {labels: {component: kube-apiserver, tier: control-plane}}\n\
             spec: {containers: [{command: [kube-apiserver, --client-ca-file=/pki/ca.crt]}]}\n",
        );
        put("/pki/etcd/ca.key", "");
        put("/pki/sa.pub", "");
        put("/pki/mine.crt", "");
        put("/etc/kubernetes/scheduler.conf", "");
        let plane = PlaneFacts::of(&options);
        assert!(plane.is_there);
        let found: Vec<_> = plane.files(&options);
        let expected = [
            "/pki/etcd/ca.key",
            "/pki/sa.pub",
            "/etc/kubernetes/admin.conf",
            "/etc/kubernetes/scheduler.conf",
            "/etc/kubernetes/manifests/kube-apiserver.yaml",
        ];
        assert_eq!(found, expected.map(|path| options.rooted(path)));
        let other = InitOptions { cert_dir: Some("/other".into()), ..options.clone() };
        assert_eq!(PlaneFacts::of(&other).cert_dir, Path::new("/other"));
    }

    #[test]
    fn the_services_file_loses_what_a_control_plane_added() {
        let directory = TempDir::new();
        let options = InitOptions { rootfs: directory.path().to_owned(), ..InitOptions::default() };
        fs::create_dir_all(options.rooted("/var/lib/kubelet")).unwrap();
        fs::write(options.rooted(ENVIRONMENT), "KUBELET_KUBEADM_ARGS=\"--hostname-override=cp1 --v=4\"\n")
            .unwrap();
        let text = "A=b\nAGENT_ARGS=\"--images-dir=/i --kubeconfig=/k --hostname-override=cp1 --v=4 \
                    --control-plane-cert-validity-period=20h\"\n";
        assert_eq!(defaults_alone(&options, text).as_deref(), Some("A=b\nAGENT_ARGS=\"--images-dir=/i\"\n"));
        let own = "AGENT_ARGS=\"--images-dir=/i\"\n";
        assert_eq!(defaults_alone(&options, own), None);
        let flags = ["--hostname-override=cp1", "--v=4"].map(str::to_owned);
        let changed = join::with_cluster_flags(own, &flags);
        assert_eq!(defaults_alone(&options, &changed).as_deref(), Some(own));
        // One that is `init`'s stays known as such.
        let made = join::with_cluster_flags("", &flags);
        let alone = defaults_alone(&options, &made).unwrap();
        assert!(
            alone.starts_with(install::DEFAULTS_HEADER) && alone.ends_with("AGENT_ARGS=\"\"\n"),
            "{alone}"
        );
    }
}
