//! From layers to the typed, validated result.
//!
//! Owns the order of the checks and the flags' typed form.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

use super::args::Args;
use super::error::{ConfigError, Findings, RunOnceError};
use super::fields::KubeletConfiguration;
use super::flags::{AgentFlags, FLAGS};
use super::gates::{self, FeatureGates};
use super::load::clean;
use super::resolve::{EMBEDDED, Layered, Origin, layer};
use super::value::FromFlag as _;
use super::{Environment, Resolved, effects, explain, tree, validate};
use crate::model::api::decode::decode;
use crate::model::ordered::Ordered as _;

/// A smaller memory limit for logs would be a mistyped unit.
const LEAST_LOG_RAM: u64 = 1 << 20;
/// Registries would refuse a node that asks more often.
const LEAST_IMAGE_UPDATE_INTERVAL: Duration = Duration::from_secs(10);
const LEAST_CERT_VALIDITY_PERIOD: Duration = Duration::from_secs(3600);

/// The given or the default value of a flag that is not a field.
fn value(args: &Args, name: &str) -> Value {
    args.value(name).cloned().unwrap_or_else(|| {
        let flag = FLAGS.iter().find(|flag| flag.name == name);
        flag.and_then(|flag| flag.kind.parse(flag.default, None).ok()).unwrap_or_default()
    })
}

/// The default of `--cert-dir` in earlier releases, whatever the root directory.
const EARLIER_CERT_DIR: &str = "/var/lib/kubelet/pki";

/// `--cert-dir`, or the one below the root directory. A node that an earlier release set up keeps its
/// authority: another one would invalidate all kubeconfigs.
fn cert_dir(given: PathBuf, root_dir: &Path, earlier: &Path) -> PathBuf {
    let own = root_dir.join("pki");
    let has_authority = |directory: &Path| directory.join("agent-ca.crt").exists();
    if !given.as_os_str().is_empty() {
        given
    } else if root_dir.join(crate::store::FILE_NAME).exists()
        && !has_authority(&own)
        && has_authority(earlier)
    {
        earlier.to_owned()
    } else {
        own
    }
}

fn flags(args: &Args) -> AgentFlags {
    let mut flags = AgentFlags::read(&|name| value(args, name));
    flags.root_dir = PathBuf::from(clean(&flags.root_dir));
    flags.cert_dir = cert_dir(flags.cert_dir, &flags.root_dir, Path::new(EARLIER_CERT_DIR));
    if flags.images_dir.as_os_str().is_empty() {
        flags.images_dir = flags.root_dir.join("images");
    }
    flags
}

fn bad_flag(flag: &str, problem: impl Into<String>) -> ConfigError {
    let mut findings = Findings::default();
    findings.add(flag, problem);
    ConfigError::Flags(findings)
}

/// The rules of the agent's own flags.
fn check_own(args: &Args, flags: &AgentFlags, run_once: bool) -> Result<(), ConfigError> {
    let text = |name: &str| String::from_flag(&value(args, name));
    let word = text("runonce-wait");
    if !matches!(word.as_str(), "running" | "completed") {
        return Err(ConfigError::RunOnce(RunOnceError::Wait { word: word.chars().take(64).collect() }));
    }
    if flags.run_once_timeout.is_zero() || flags.run_once_timeout.is_negative() {
        return Err(ConfigError::RunOnce(RunOnceError::Timeout));
    }
    if flags.manifest_url_client_cert_file.is_none() && flags.manifest_url_client_key_file.is_some() {
        let problem = "requires --manifest-url-client-cert-file";
        return Err(bad_flag("--manifest-url-client-key-file", problem));
    }
    if flags.manifest_url_rollback_after.is_negative() {
        return Err(bad_flag("--manifest-url-rollback-after", "must not be negative; 0 disables"));
    }
    if run_once && !flags.manifest_url_rollback_after.is_zero() {
        return Err(bad_flag("--manifest-url-rollback-after", "cannot be used with --runonce"));
    }
    let interval = &flags.image_update_interval;
    if interval.is_negative() || !interval.is_zero() && interval.to_std() < LEAST_IMAGE_UPDATE_INTERVAL {
        return Err(bad_flag("--image-update-interval", "must be at least 10s; 0 disables"));
    }
    let period = &flags.control_plane_cert_validity_period;
    if period.is_negative() || !period.is_zero() && period.to_std() < LEAST_CERT_VALIDITY_PERIOD {
        return Err(bad_flag("--control-plane-cert-validity-period", "must be at least 1h; 0 disables"));
    }
    let kinds = text("unacted-kinds");
    if !matches!(kinds.as_str(), "keep" | "refuse") {
        return Err(bad_flag("--unacted-kinds", format!("{kinds:?} is not supported; use keep or refuse")));
    }
    let ram = text("container-log-ram");
    if !ram.is_empty() && flags.container_log_ram.is_none_or(|bytes| bytes < LEAST_LOG_RAM) {
        let problem = format!("{ram:?} is not a memory size of at least 1Mi, such as 64Mi");
        return Err(bad_flag("--container-log-ram", problem));
    }
    Ok(())
}

/// A request has only one Authorization header.
fn check_authorization(flags: &AgentFlags, kubelet: &KubeletConfiguration) -> Result<(), ConfigError> {
    let mut names = kubelet.static_pod_url_header.keys();
    if flags.manifest_url_token_file.is_none()
        || !names.any(|name| name.eq_ignore_ascii_case("authorization"))
    {
        return Ok(());
    }
    Err(bad_flag(
        "--manifest-url-token-file",
        "staticPodURLHeader (--manifest-url-header) already sets Authorization; remove one of the two",
    ))
}

/// Flags of the embedded runtime that another one ignores.
const EMBEDDED_ONLY: [&str; 2] = ["images-dir", "runtime-handlers"];
/// Those that count on Docker, too.
const OWN_NETWORK_ONLY: [&str; 3] = ["cni-bin-dir", "cni-conf-dir", "runtime-state-dir"];

/// What the embedded runtime's flags mean with another runtime: a warning each, but an error for the image policy, which
/// is there to keep images out.
pub(super) fn check_embedded_only(args: &Args, resolved: &mut Resolved) -> Result<(), ConfigError> {
    let endpoint = &resolved.kubelet.container_runtime_endpoint;
    if endpoint == EMBEDDED {
        return Ok(());
    }
    if resolved.flags.image_policy.is_some() {
        let problem = format!(
            "only the embedded runtime applies an image policy, and containerRuntimeEndpoint is {endpoint:?}: remove \
             the flag and verify images with that runtime's own means, or set containerRuntimeEndpoint to {EMBEDDED:?}"
        );
        return Err(bad_flag("--image-policy", problem));
    }
    for flag in EMBEDDED_ONLY.into_iter().filter(|flag| args.given.contains_key(flag)) {
        resolved.warnings.push(format!(
            "--{flag} has no effect: it configures the embedded runtime, and containerRuntimeEndpoint is {endpoint:?}"
        ));
    }
    resolved.without_network =
        OWN_NETWORK_ONLY.into_iter().filter(|flag| args.given.contains_key(flag)).collect();
    Ok(())
}

/// From parsed arguments to a configuration that the agent can start with.
pub(super) fn resolve(args: &Args, environment: &Environment) -> Result<Resolved, ConfigError> {
    let from_flags = gates_of(args.value("feature-gates"));
    FeatureGates::resolve(&from_flags).map_err(ConfigError::FeatureGates)?;
    let flags = flags(args);
    let mut warnings = args.warnings.clone();
    let node = validate::flags(&flags, args, environment).map_err(ConfigError::Flags)?;
    warnings.extend(node.warnings);

    let mut layered = layer(args)?;
    name_own_runtime(&mut layered, &flags);
    let run_once = tree::get(&layered.document, "runOnce") == Some(&Value::Bool(true));
    check_run_once(args, &flags, run_once)?;
    validate::kubeconfig(&flags).map_err(ConfigError::Flags)?;
    if run_once {
        stop_server(&mut layered);
    }
    check_own(args, &flags, run_once)?;
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
    let without_effect = effects::check(args, &layered).map_err(ConfigError::Configuration)?;
    check_authorization(&flags, &kubelet)?;

    warnings.append(&mut layered.warnings);
    warnings.extend(gates::warnings(&given_gates));
    warnings.extend(validate::soft_warnings(&kubelet));
    warnings.extend(without_effect);
    Ok(Resolved {
        flag_dump: explain::flag_dump(args),
        flags,
        kubelet,
        feature_gates,
        node_name: node.name,
        node_ips: node.addresses,
        provenance: layered.provenance,
        warnings,
        document: layered.document,
        is_docker: Rc::default(),
        without_network: Vec::new(),
        args: args.clone(),
        environment: environment.clone(),
    })
}

/// Puts another document in place, each field of which was valid in one of two configurations.
pub(super) fn replace(resolved: &mut Resolved, document: Value) {
    let gates = FeatureGates::resolve(&gates_of(tree::get(&document, "featureGates")));
    if let (Ok(kubelet), Ok(gates)) = (decode::<KubeletConfiguration>(document.clone()), gates) {
        (resolved.kubelet, resolved.feature_gates, resolved.document) = (kubelet.object, gates, document);
    }
}

/// kubeadm writes the socket that it was given into the configuration. When the agent itself serves that socket, the
/// runtime behind it is its own.
fn name_own_runtime(layered: &mut Layered, flags: &AgentFlags) {
    if flags.kubeconfig.is_empty() && flags.bootstrap_kubeconfig.is_empty() {
        return;
    }
    for (path, own) in [("containerRuntimeEndpoint", EMBEDDED), ("imageServiceEndpoint", "")] {
        let named = tree::get(&layered.document, path).and_then(Value::as_str).unwrap_or_default();
        if is_own_socket(named, &flags.cri_socket) {
            tree::set(&mut layered.document, path, Value::from(own));
        }
    }
}

/// Whether an endpoint is the socket in `--cri-socket`, each with or without its scheme. /var/run is /run.
pub(crate) fn is_own_socket(endpoint: &str, own: &str) -> bool {
    let path = |text: &str| {
        let path = clean(Path::new(text.strip_prefix("unix://").unwrap_or(text)));
        path.strip_prefix("/var/run/").map(|rest| ["/run/", rest].concat()).unwrap_or(path)
    };
    !own.is_empty() && !endpoint.is_empty() && path(endpoint) == path(own)
}

fn gates_of(value: Option<&Value>) -> BTreeMap<String, bool> {
    let members = value.and_then(Value::as_object).into_iter().flatten();
    members.filter_map(|(name, on)| Some((name.clone(), on.as_bool()?))).into_map()
}

fn check_run_once(args: &Args, flags: &AgentFlags, run_once: bool) -> Result<(), ConfigError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;

    #[test]
    fn certificates_go_with_the_root_but_an_authority_stays() {
        let directory = TempDir::new();
        let (root, earlier) = (directory.join("root"), directory.join("earlier"));
        let found = |given: &str| cert_dir(PathBuf::from(given), &root, &earlier);
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
