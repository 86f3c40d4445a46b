//! From layers to the typed, validated result.
//!
//! Owns the order of the checks and the flags' typed form.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::args::{Args, without_effect};
use super::error::{ConfigError, Findings, RunOnceError};
use super::fields::FIELDS;
use super::flags::{FLAGS, find};
use super::gates::{self, FeatureGates};
use super::load::clean;
use super::resolve::{Layered, Origin, layer};
use super::schema::KubeletConfiguration;
use super::{Environment, Resolved, explain, tree, validate};
use crate::agent::config::kubelet_flags::KubeletFlags;
use crate::model::api::decode::decode;
use crate::model::api::quantity::Quantity;
use crate::model::duration::GoDuration;
use crate::model::ordered::Ordered as _;
use crate::platform::http::ClientFiles;

/// A smaller memory limit for logs would be a mistyped unit.
const LEAST_LOG_RAM: u64 = 1 << 20;

/// What run-once waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunOnceWait {
    /// Until pods with `restartPolicy: Always` run, and the others have ended.
    #[default]
    Running,
    /// Until every pod has ended.
    Completed,
}

/// The agent's own flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentFlags {
    /// Start the pods once and exit.
    pub run_once: bool,
    /// The time limit for them.
    pub run_once_timeout: GoDuration,
    pub run_once_wait: RunOnceWait,
    /// The directory of image archives to import.
    pub images_dir: PathBuf,
    /// Authorities trusted for `--manifest-url`; `None` means the system's.
    pub manifest_url_ca_file: Option<PathBuf>,
    /// The client certificate and key for `--manifest-url`.
    pub manifest_url_client: Option<ClientFiles>,
    /// A file with the bearer token for `--manifest-url`.
    pub manifest_url_token_file: Option<PathBuf>,
    /// A file with the public key that manifests from `--manifest-url` must be signed with.
    pub manifest_url_verify_key_file: Option<PathBuf>,
    /// How long a new set from `--manifest-url` may take to start; zero for no limit.
    pub manifest_url_rollback_after: GoDuration,
    /// The file of bearer tokens for the API.
    pub token_auth_file: Option<PathBuf>,
    /// The file with the key for Secrets in the store.
    pub store_key_file: Option<PathBuf>,
    /// The most memory for container logs in bytes; `None`: they are on disk.
    pub container_log_ram: Option<u64>,
    /// The socket of `agent status`.
    pub agent_socket: PathBuf,
    /// The directory of the embedded runtime's records.
    pub runtime_state_dir: PathBuf,
    /// The bridge of the built-in network.
    pub bridge_name: String,
    /// The directory of CNI configurations.
    pub cni_conf_dir: PathBuf,
    /// The directories of CNI plugins.
    pub cni_bin_dirs: Vec<PathBuf>,
    /// Directories of `<host>/hosts.toml`; the first that has one is used.
    pub registry_hosts_dirs: Vec<PathBuf>,
    /// The policy of image signatures; `None` for the default file, if it exists.
    pub image_policy: Option<PathBuf>,
    /// Paths and CDI names that pods may request; `*` matches anything.
    pub allowed_devices: Vec<String>,
    /// OCI runtimes by handler name.
    pub runtime_handlers: BTreeMap<String, String>,
}

/// Given or default values of the flags that are not fields.
struct Values<'a>(&'a Args);

impl Values<'_> {
    fn get(&self, name: &str) -> Value {
        self.0.value(name).cloned().unwrap_or_else(|| {
            let flag = FLAGS.iter().find(|flag| flag.name == name);
            flag.and_then(|flag| flag.kind.parse(flag.default, None).ok()).unwrap_or_default()
        })
    }

    fn text(&self, name: &str) -> String {
        self.get(name).as_str().unwrap_or_default().to_owned()
    }

    fn switch(&self, name: &str) -> bool {
        self.get(name).as_bool().unwrap_or_default()
    }

    fn int(&self, name: &str) -> i32 {
        self.get(name).as_i64().and_then(|number| i32::try_from(number).ok()).unwrap_or_default()
    }

    fn duration(&self, name: &str) -> GoDuration {
        GoDuration::parse(&self.text(name)).unwrap_or_default()
    }

    fn list(&self, name: &str) -> Vec<String> {
        let value = self.get(name);
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    fn map(&self, name: &str) -> BTreeMap<String, String> {
        let value = self.get(name);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        value.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), text(value))).into_map()
    }
}

/// The default of `--cert-dir` in earlier releases, whatever the root directory.
const EARLIER_CERT_DIR: &str = "/var/lib/kubelet/pki";

/// `--cert-dir`, or the one below the root directory. A node that an earlier release set up keeps its
/// authority: another one would invalidate all kubeconfigs.
fn cert_dir(given: &str, root_dir: &Path, earlier: &Path) -> PathBuf {
    let own = root_dir.join("pki");
    let has_authority = |directory: &Path| directory.join("agent-ca.crt").exists();
    if !given.is_empty() {
        PathBuf::from(given)
    } else if root_dir.join(crate::store::FILE_NAME).exists()
        && !has_authority(&own)
        && has_authority(earlier)
    {
        earlier.to_owned()
    } else {
        own
    }
}

/// A path of the command line, made absolute: the kernel, the runtime and pods' monitors accept absolute ones
/// only. An empty path stays empty.
fn absolute(path: impl Into<PathBuf>) -> PathBuf {
    let path = path.into();
    // Without a working directory a relative path is left unchanged.
    std::path::absolute(&path).unwrap_or(path)
}

fn kubelet_flags(values: &Values<'_>) -> KubeletFlags {
    let root_dir = PathBuf::from(clean(&absolute(values.text("root-dir"))));
    let cert_dir = cert_dir(&values.text("cert-dir"), &root_dir, Path::new(EARLIER_CERT_DIR));
    KubeletFlags {
        config: values.text("config"),
        config_dir: values.text("config-dir"),
        kubeconfig: values.text("kubeconfig"),
        bootstrap_kubeconfig: values.text("bootstrap-kubeconfig"),
        hostname_override: values.text("hostname-override"),
        node_ip: values.text("node-ip"),
        cert_dir: absolute(cert_dir),
        cloud_provider: values.text("cloud-provider"),
        root_dir,
        seccomp_default: values.switch("seccomp-default"),
        node_labels: values.map("node-labels"),
        lock_file: values.text("lock-file"),
        exit_on_lock_contention: values.switch("exit-on-lock-contention"),
        runtime_cgroups: values.text("runtime-cgroups"),
        image_credential_provider_config: values.text("image-credential-provider-config"),
        image_credential_provider_bin_dir: values.text("image-credential-provider-bin-dir"),
        minimum_container_ttl_duration: values.duration("minimum-container-ttl-duration"),
        maximum_dead_containers_per_container: values.int("maximum-dead-containers-per-container"),
        maximum_dead_containers: values.int("maximum-dead-containers"),
        experimental_mounter_path: values.text("experimental-mounter-path"),
        experimental_allocatable_ignore_eviction: values.switch("experimental-allocatable-ignore-eviction"),
        reported_version: Some(values.text("version")).filter(|version| version.starts_with('v')),
    }
}

fn container_log_ram(text: &str) -> Result<Option<u64>, ConfigError> {
    if text.is_empty() {
        return Ok(None);
    }
    let bytes = Quantity::parse(text).ok().and_then(|size| u64::try_from(size.value()).ok());
    if let Some(bytes) = bytes.filter(|bytes| *bytes >= LEAST_LOG_RAM) {
        return Ok(Some(bytes));
    }
    let mut findings = Findings::default();
    let problem = format!("{text:?} is not a memory size of at least 1Mi, such as 64Mi");
    findings.add("--container-log-ram", problem);
    Err(ConfigError::Flags(findings))
}

fn agent_flags(values: &Values<'_>, root_dir: &Path, run_once: bool) -> Result<AgentFlags, ConfigError> {
    let path = |name: &str| Some(values.text(name)).filter(|text| !text.is_empty()).map(absolute);
    let run_once_wait = match values.text("runonce-wait").as_str() {
        "running" => RunOnceWait::Running,
        "completed" => RunOnceWait::Completed,
        word => {
            return Err(ConfigError::RunOnce(RunOnceError::Wait { word: word.chars().take(64).collect() }));
        }
    };
    let run_once_timeout = values.duration("runonce-timeout");
    if run_once_timeout.is_zero() || run_once_timeout.is_negative() {
        return Err(ConfigError::RunOnce(RunOnceError::Timeout));
    }
    let certificate = path("manifest-url-client-cert-file");
    let key = path("manifest-url-client-key-file");
    if certificate.is_none() && key.is_some() {
        let mut findings = Findings::default();
        findings.add("--manifest-url-client-key-file", "requires --manifest-url-client-cert-file");
        return Err(ConfigError::Flags(findings));
    }
    let manifest_url_rollback_after = values.duration("manifest-url-rollback-after");
    let trouble = if manifest_url_rollback_after.is_negative() {
        Some("must not be negative; 0 disables")
    } else if run_once && !manifest_url_rollback_after.is_zero() {
        Some("cannot be used with --runonce")
    } else {
        None
    };
    if let Some(trouble) = trouble {
        let mut findings = Findings::default();
        findings.add("--manifest-url-rollback-after", trouble);
        return Err(ConfigError::Flags(findings));
    }
    let container_log_ram = container_log_ram(&values.text("container-log-ram"))?;
    let manifest_url_client = certificate.map(|certificate| ClientFiles { certificate, key });
    Ok(AgentFlags {
        run_once,
        run_once_timeout,
        run_once_wait,
        images_dir: path("images-dir").unwrap_or_else(|| root_dir.join("images")),
        manifest_url_ca_file: path("manifest-url-ca-file"),
        manifest_url_client,
        manifest_url_token_file: path("manifest-url-token-file"),
        manifest_url_verify_key_file: path("manifest-url-verify-key-file"),
        manifest_url_rollback_after,
        token_auth_file: path("token-auth-file"),
        store_key_file: path("store-key-file"),
        container_log_ram,
        agent_socket: absolute(values.text("agent-socket")),
        runtime_state_dir: absolute(values.text("runtime-state-dir")),
        bridge_name: values.text("bridge-name"),
        cni_conf_dir: absolute(values.text("cni-conf-dir")),
        cni_bin_dirs: paths(&values.text("cni-bin-dir")),
        registry_hosts_dirs: paths(&values.text("registry-hosts-dir")),
        image_policy: path("image-policy"),
        allowed_devices: values.list("allowed-devices"),
        runtime_handlers: values.map("runtime-handlers"),
    })
}

/// A request has only one Authorization header.
fn check_authorization(agent: &AgentFlags, kubelet: &KubeletConfiguration) -> Result<(), ConfigError> {
    let mut names = kubelet.static_pod_url_header.keys();
    if agent.manifest_url_token_file.is_none()
        || !names.any(|name| name.eq_ignore_ascii_case("authorization"))
    {
        return Ok(());
    }
    let mut findings = Findings::default();
    findings.add(
        "--manifest-url-token-file",
        "staticPodURLHeader (--manifest-url-header) already sets Authorization; remove one of the two",
    );
    Err(ConfigError::Flags(findings))
}

/// From parsed arguments to a configuration that the agent can start with.
pub(super) fn resolve(args: &Args, environment: &Environment) -> Result<Resolved, ConfigError> {
    let from_flags = gates_of(args.value("feature-gates"));
    FeatureGates::resolve(&from_flags).map_err(ConfigError::FeatureGates)?;
    let values = Values(args);
    let flags = kubelet_flags(&values);
    let mut warnings = args.warnings.clone();
    let node = validate::flags(&flags, args, environment).map_err(ConfigError::Flags)?;
    warnings.extend(node.warnings);

    let mut layered = layer(args)?;
    let run_once = tree::get(&layered.document, "runOnce") == Some(&Value::Bool(true));
    check_run_once(args, &flags, run_once)?;
    validate::kubeconfig(&flags).map_err(ConfigError::Flags)?;
    if run_once {
        stop_server(&mut layered);
    }
    let agent = agent_flags(&values, &flags.root_dir, run_once)?;
    let given_gates = gates_of(tree::get(&layered.document, "featureGates"));
    let feature_gates = FeatureGates::resolve(&given_gates).map_err(ConfigError::FeatureGates)?;
    let kubelet = decode::<KubeletConfiguration>(layered.document.clone()).map_err(|error| {
        // Every file was decoded on its own and every flag in its syntax: conflicts between them show only
        // here.
        let mut findings = Findings::default();
        findings.add(error.path, error.message);
        ConfigError::Configuration(findings)
    })?;
    let kubelet = kubelet.object;
    validate::configuration(&kubelet, &feature_gates).map_err(ConfigError::Configuration)?;
    check_authorization(&agent, &kubelet)?;

    warnings.append(&mut layered.warnings);
    warnings.extend(gates::warnings(&given_gates));
    warnings.extend(validate::soft_warnings(&kubelet));
    Ok(Resolved {
        flag_dump: explain::flag_dump(args),
        not_acted_on: not_acted_on(args, &layered),
        flags,
        kubelet,
        agent,
        feature_gates,
        node_name: node.name,
        node_ips: node.addresses,
        provenance: layered.provenance,
        warnings,
        document: layered.document,
    })
}

fn gates_of(value: Option<&Value>) -> BTreeMap<String, bool> {
    let members = value.and_then(Value::as_object).into_iter().flatten();
    members.filter_map(|(name, on)| Some((name.clone(), on.as_bool()?))).into_map()
}

fn check_run_once(args: &Args, flags: &KubeletFlags, run_once: bool) -> Result<(), ConfigError> {
    let bad = |error| Err(ConfigError::RunOnce(error));
    if !run_once {
        let alone =
            ["runonce-timeout", "runonce-wait"].into_iter().find(|flag| args.given.contains_key(flag));
        return alone.map_or(Ok(()), |flag| bad(RunOnceError::Alone { flag }));
    }
    if !flags.kubeconfig.is_empty() {
        return bad(RunOnceError::WithKubeconfig);
    }
    if args.value("enable-server") == Some(&Value::Bool(true)) {
        return bad(RunOnceError::WithServer);
    }
    Ok(())
}

fn stop_server(layered: &mut Layered) {
    if tree::get(&layered.document, "enableServer") == Some(&Value::Bool(true)) {
        tree::set(&mut layered.document, "enableServer", Value::Bool(false));
        let origin = Origin::AgentDefault("the server is never started with --runonce");
        layered.provenance.insert("enableServer".to_owned(), origin);
    }
}

/// One line for each setting by the user that has no effect yet.
fn not_acted_on(args: &Args, layered: &Layered) -> Vec<String> {
    // The configuration of an agent without any argument; layering neither files nor flags cannot fail.
    let silent = layer(&Args::default()).map(|layered| layered.document).unwrap_or_default();
    let mut lines = Vec::new();
    for field in FIELDS.iter().filter(|field| !field.acted_on()) {
        let Some(origin) = layered.provenance.get(field.path).filter(|origin| origin.is_explicit()) else {
            continue;
        };
        // Setting the value that is in effect anyway needs no warning.
        if tree::get(&silent, field.path) == tree::get(&layered.document, field.path) {
            continue;
        }
        lines.push(format!("{} ({origin}) is accepted but not implemented in this version", field.path));
    }
    let gates = gates_of(tree::get(&layered.document, "featureGates"));
    for (name, on) in gates::without_effect(&gates) {
        lines.push(format!("featureGates.{name}={on} is accepted but not implemented in this version"));
    }
    for (name, given) in &args.given {
        let Some(target @ super::flags::FlagTarget::Flag(_)) = find(name) else { continue };
        if without_effect(target) {
            let name = &given.spelled;
            lines.push(format!("--{name} is accepted but not implemented in this version"));
        }
    }
    lines
}

/// Several directories in one string, as in `PATH`.
fn paths(text: &str) -> Vec<PathBuf> {
    std::env::split_paths(text).filter(|path| !path.as_os_str().is_empty()).map(absolute).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;

    #[test]
    fn certificates_go_with_the_root_but_an_authority_stays() {
        let directory = TempDir::new();
        let (root, earlier) = (directory.join("root"), directory.join("earlier"));
        let found = |given: &str| cert_dir(given, &root, &earlier);
        std::fs::create_dir_all(&earlier).unwrap();
        std::fs::write(earlier.join("agent-ca.crt"), "").unwrap();
        assert_eq!((found(""), found("/c")), (root.join("pki"), PathBuf::from("/c")));
        std::fs::create_dir_all(root.join("pki")).unwrap();
        std::fs::write(root.join(crate::store::FILE_NAME), "").unwrap();
        assert_eq!(
            (found(""), found("/c")),
            (earlier.clone(), PathBuf::from("/c")),
            "an earlier release ran here"
        );
        std::fs::write(root.join("pki/agent-ca.crt"), "").unwrap();
        assert_eq!(found(""), root.join("pki"));
    }
}
