//! Flags that are not fields of the configuration file: the kubelet's own, the agent's own, cAdvisor's
//! leftovers, and those that upstream has removed. Finds the setting behind a spelling.
//!
//! Owns the tables and the lookup.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use super::cri::OWN_CRI_SOCKET;
use super::fields::{FIELDS, SettingField};
use super::value::ValueKind::{Bool, Duration, Int32, List, Map, Text, Version};
use super::value::{FromFlag, ValueKind};
use crate::model::duration::GoDuration;
use crate::runtime::embedded::registry::DEFAULT_HOSTS_DIRS;

/// The origin of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Kubelet,
    Agent,
    /// Accepted for compatibility with cAdvisor's flags; without effect.
    Cadvisor,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunOnceWait {
    /// Until pods with `restartPolicy: Always` run, and the others have ended.
    #[default]
    Running,
    /// Until every pod has ended.
    Completed,
}

impl FromFlag for RunOnceWait {
    fn from_flag(value: &Value) -> Self {
        if value == "completed" { Self::Completed } else { Self::Running }
    }
}

/// One flag that is not a field of the file.
#[derive(Debug)]
pub(super) struct Flag {
    /// Its name, with dashes.
    pub(super) name: &'static str,
    pub(super) kind: ValueKind,
    /// In flag syntax.
    pub(super) default: &'static str,
    pub(super) family: Family,
    pub(super) deprecated: Option<&'static str>,
    /// One line for `--help`.
    pub(super) help: &'static str,
}

/// A flag upstream has removed.
#[derive(Debug)]
pub(super) struct Removed {
    /// Its name; a trailing `*` matches every name with that prefix.
    pub(super) name: &'static str,
    /// It takes no detached value.
    pub(super) value_is_optional: bool,
    /// What to use instead, or why nothing is needed.
    pub(super) advice: &'static str,
    /// Ignoring it would change the node's behaviour, so it is refused.
    pub(super) fatal: bool,
}

/// The meaning of a spelling on the command line.
#[derive(Clone, Copy, Debug)]
pub(super) enum FlagTarget {
    Field(&'static SettingField),
    /// Any other flag.
    Flag(&'static Flag),
    Removed(&'static Removed),
}

impl FlagTarget {
    /// Whether it may be used without a value.
    pub(super) fn value_is_optional(self) -> bool {
        match self {
            Self::Field(field) => field.kind.value_is_optional(),
            Self::Flag(flag) => flag.kind.value_is_optional(),
            Self::Removed(removed) => removed.value_is_optional,
        }
    }
}

/// The agent's spelling and the kubelet's name of the same flag.
pub(super) const ALIASES: [(&str, &str); 1] = [("manifest-dir", "pod-manifest-path")];

/// Finds a flag by its normalised name.
pub(super) fn find(name: &str) -> Option<FlagTarget> {
    let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, flag)| flag);
    if name.is_empty() {
        return None;
    }
    if let Some(field) = FIELDS.iter().find(|field| field.flag == name) {
        return Some(FlagTarget::Field(field));
    }
    if let Some(flag) = FLAGS.iter().find(|flag| flag.name == name) {
        return Some(FlagTarget::Flag(flag));
    }
    let matches = |removed: &&Removed| match removed.name.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => removed.name == name,
    };
    REMOVED.iter().find(matches).map(FlagTarget::Removed)
}

/// Every valid name, for suggestions.
pub(super) fn known_names() -> impl Iterator<Item = &'static str> {
    let fields = FIELDS.iter().map(|field| field.flag).filter(|flag| !flag.is_empty());
    fields.chain(FLAGS.iter().map(|flag| flag.name)).chain(ALIASES.iter().map(|(alias, _)| *alias))
}

const fn kubelet(name: &'static str, kind: ValueKind, default: &'static str, help: &'static str) -> Flag {
    Flag { name, kind, default, family: Family::Kubelet, deprecated: None, help }
}

const fn deprecated(name: &'static str, kind: ValueKind, default: &'static str, why: &'static str) -> Flag {
    Flag { name, kind, default, family: Family::Kubelet, deprecated: Some(why), help: "" }
}

const fn agent(name: &'static str, kind: ValueKind, default: &'static str, help: &'static str) -> Flag {
    Flag { name, kind, default, family: Family::Agent, deprecated: None, help }
}

const fn cadvisor(name: &'static str, kind: ValueKind, default: &'static str) -> Flag {
    let deprecated = Some("this is a cAdvisor flag and has no effect; it will be removed.");
    Flag { name, kind, default, family: Family::Cadvisor, deprecated, help: "" }
}

const EVICTION_REPLACES: &str =
    "use --eviction-hard or --eviction-soft instead. Will be removed in a future version.";
const WILL_BE_REMOVED: &str = "will be removed in a future version.";

/// From each row: an entry of [`FLAGS`] and, if it has a name and a type, a member of [`AgentFlags`].
macro_rules! flags {
    ($($family:ident $($member:ident: $type:ty =)? ($name:literal, $($entry:tt)*);)*) => {
        pub(super) static FLAGS: &[Flag] = &[$($family($name, $($entry)*)),*];

        /// The flags that are not fields of the file and have an effect.
        #[derive(Debug)]
        pub struct AgentFlags {$($(pub $member: $type,)?)*}

        impl AgentFlags {
            /// From the value of each flag in its JSON form.
            pub(super) fn read(value: &dyn Fn(&str) -> Value) -> Self {
                Self {$($($member: FromFlag::from_flag(&value($name)),)?)*}
            }
        }
    };
}

flags! {
    kubelet("config", Text, "",
        "KubeletConfiguration file (YAML or JSON); command line flags override its values");
    kubelet("config-dir", Text, "", "directory of drop-in files (*.conf) merged over --config in lexical order");
    kubelet kubeconfig: String =
        ("kubeconfig", Text, "", "kubeconfig for the API server; if empty, standalone mode is used");
    kubelet bootstrap_kubeconfig: String =
        ("bootstrap-kubeconfig", Text, "", "kubeconfig used to request the first client certificate");
    kubelet hostname_override: String =
        ("hostname-override", Text, "", "node name to use instead of the host name");
    kubelet node_ip: String = ("node-ip", Text, "", "IP address of the node, or a dual-stack pair (IPv4,IPv6)");
    kubelet cert_dir: PathBuf = ("cert-dir", Text, "", "directory of TLS certificates (default <root-dir>/pki)");
    kubelet cloud_provider: String = ("cloud-provider", Text, "", "empty or \"external\"");
    kubelet root_dir: PathBuf =
        ("root-dir", Text, "/var/lib/kubelet", "directory for pods, volumes and agent.db");
    kubelet seccomp_default: bool = ("seccomp-default", Bool, "false",
        "use RuntimeDefault as the default seccomp profile for all workloads");
    kubelet node_labels: BTreeMap<String, String> = ("node-labels", Map, "", "labels to add to this node");
    kubelet lock_file: String =
        ("lock-file", Text, "", "lock file, held while running; a second instance waits for it");
    kubelet exit_on_lock_contention: bool =
        ("exit-on-lock-contention", Bool, "false", "exit when another process contends for the lock file");
    kubelet runtime_cgroups: String =
        ("runtime-cgroups", Text, "", "cgroup of the container runtime, for usage statistics");
    kubelet image_credential_provider_config: String =
        ("image-credential-provider-config", Text, "", "credential provider configuration, a file or directory");
    kubelet image_credential_provider_bin_dir: String =
        ("image-credential-provider-bin-dir", Text, "", "directory of credential provider plugin binaries");
    deprecated minimum_container_ttl_duration: GoDuration =
        ("minimum-container-ttl-duration", Duration, "0s", EVICTION_REPLACES);
    deprecated maximum_dead_containers_per_container: i32 =
        ("maximum-dead-containers-per-container", Int32, "1", EVICTION_REPLACES);
    deprecated maximum_dead_containers: i32 =
        ("maximum-dead-containers", Int32, "-1", EVICTION_REPLACES);
    deprecated("experimental-mounter-path", Text, "", WILL_BE_REMOVED);
    deprecated experimental_allocatable_ignore_eviction: bool =
        ("experimental-allocatable-ignore-eviction", Bool, "false", WILL_BE_REMOVED);
    kubelet("version", Version, "false",
        "print the version and exit; =raw prints full version information, =vX.Y.Z sets the reported \
         version");
    kubelet("help", Bool, "false", "print this help and exit");
    agent cluster_reset_grace: GoDuration = ("cluster-reset-grace", Duration, "10m",
        "time during which the pods of a replaced cluster keep running before its answers are believed; 0 disables");
    agent link_profile: String = ("link-profile", Text, "",
        "\"metered\": fewer and later messages to the API server");
    agent control_plane_cert_validity_period: GoDuration = ("control-plane-cert-validity-period", Duration, "8760h",
        "how long certificates of a control plane on this node are valid that the agent renews in place when less than 30 \
         percent of their life is left, at least 1h; 0: it renews none");
    agent offline_max_age: GoDuration = ("offline-max-age", Duration, "0s",
        "end pods of StatefulSets when the API server has not answered for this long; 0 disables");
    agent manifest_url_ca_file: Option<PathBuf> = ("manifest-url-ca-file", Text, "",
        "PEM file of certificate authorities trusted for --manifest-url; defaults to the system's");
    agent manifest_url_client_cert_file: Option<PathBuf> =
        ("manifest-url-client-cert-file", Text, "", "PEM file of the client certificate for --manifest-url");
    agent manifest_url_client_key_file: Option<PathBuf> =
        ("manifest-url-client-key-file", Text, "", "PEM file of its private key; defaults to the certificate file");
    agent manifest_url_token_file: Option<PathBuf> =
        ("manifest-url-token-file", Text, "", "bearer token file for --manifest-url; read for each request");
    agent manifest_url_verify_key_file: Option<PathBuf> = ("manifest-url-verify-key-file", Text, "",
        "minisign public key; manifests of the URL must have a valid signature at the URL plus .minisig");
    agent manifest_url_rollback_after: GoDuration = ("manifest-url-rollback-after", Duration, "0s",
        "roll back to the last good pod set when a set from --manifest-url has not started within this \
         time; 0 disables");
    agent token_auth_file: Option<PathBuf> = ("token-auth-file", Text, "",
        "bearer token file for the API on port 10250, one per line: token,user,uid,\"group,group\"");
    agent store_key_file: Option<PathBuf> = ("store-key-file", Text, "",
        "key (32 bytes, base64 or hex) to encrypt Secrets in agent.db; defaults to the systemd credential \
         agent-store-key, if set; /dev/null stops encrypting");
    agent run_once_timeout: GoDuration =
        ("runonce-timeout", Duration, "5m", "maximum time --runonce waits for the pods");
    agent run_once_wait: RunOnceWait =
        ("runonce-wait", Text, "running", "pod state --runonce waits for: running or completed");
    agent images_dir: PathBuf =
        ("images-dir", Text, "",
            "embedded runtime: image archives to import at start (default <root-dir>/images)");
    agent image_update_interval: GoDuration = ("image-update-interval", Duration, "1h",
        "time between questions to registries about the images of Deployments that follow their tags, at least 10s; 0 \
         disables");
    agent unacted_kinds: String = ("unacted-kinds", Text, "keep",
        "objects of kinds that this node does not act on, such as Ingress: keep (with a warning) or refuse");
    agent container_log_ram: Option<u64> = ("container-log-ram", Text, "",
        "keep container logs in memory only, with this total limit (such as 64Mi); they are lost at reboot");
    agent agent_socket: PathBuf =
        ("agent-socket", Text, "/run/agent/agent.sock", "Unix socket for agent status and other commands");
    agent runtime_state_dir: PathBuf =
        ("runtime-state-dir", Text, "/run/agent/runtime", "embedded runtime: state directory, on a tmpfs");
    agent cri_socket: String = ("cri-socket", Text, OWN_CRI_SOCKET,
        "embedded runtime: on a node of a cluster, Unix socket at which CRI is served beside the kubelet; empty: none");
    agent bridge_name: String = ("bridge-name", Text, "agent0",
        "name after which the link and nftables table of Services are called; embedded runtime: also name of the pod \
         network bridge and its nftables table");
    agent service_cidr: String = ("service-cidr", Text, "10.96.0.0/16",
        "addresses of Services: one range, or one of each address family separated by a comma; empty: no Services, and \
         no DNS for pods");
    agent service_node_port_range: String = ("service-node-port-range", Text, "30000-32767",
        "ports for Services of type NodePort and LoadBalancer: the first and the last");
    agent cni_conf_dir: PathBuf = ("cni-conf-dir", Text, "/etc/cni/net.d",
        "embedded runtime: CNI configuration directory; a configuration in it replaces the built-in network");
    agent cni_bin_dirs: Vec<PathBuf> = ("cni-bin-dir", Text, "/opt/cni/bin:/usr/lib/cni",
        "embedded runtime: CNI plugin directories, separated by colons");
    agent registry_hosts_dirs: Vec<PathBuf> = ("registry-hosts-dir", Text, DEFAULT_HOSTS_DIRS,
        "registry mirrors and certificates, in containerd's hosts.toml format, for the embedded runtime and for image \
         updates");
    agent image_policy: Option<PathBuf> = ("image-policy", Text, "",
        "embedded runtime: image policy file, allowed images and required signatures (JSON; defaults to \
         /etc/agent/image-policy.json if it exists)");
    agent allowed_devices: Vec<String> = ("allowed-devices", List, "*",
        "devices that pods may request by annotation or volume: paths and CDI names, with * as a wildcard");
    agent runtime_handlers: BTreeMap<String, String> = ("runtime-handlers", Map, "",
        "embedded runtime: OCI runtimes by runtimeClassName, such as crun=/usr/bin/crun");
    cadvisor("housekeeping-interval", Duration, "10s");
    cadvisor("max-housekeeping-interval", Duration, "15s");
    cadvisor("application-metrics-count-limit", Int32, "100");
    cadvisor("boot-id-file", Text, "/proc/sys/kernel/random/boot_id");
    cadvisor("container-hints", Text, "/etc/cadvisor/container_hints.json");
    cadvisor("containerd", Text, "/run/containerd/containerd.sock");
    cadvisor("containerd-namespace", Text, "k8s.io");
    cadvisor("enable-load-reader", Bool, "false");
    cadvisor("event-storage-age-limit", Text, "default=0");
    cadvisor("event-storage-event-limit", Text, "default=0");
    cadvisor("global-housekeeping-interval", Duration, "1m");
    cadvisor("log-cadvisor-usage", Bool, "false");
    cadvisor("machine-id-file", Text, "/etc/machine-id,/var/lib/dbus/machine-id");
    cadvisor("storage-driver-user", Text, "root");
    cadvisor("storage-driver-password", Text, "root");
    cadvisor("storage-driver-host", Text, "localhost:8086");
    cadvisor("storage-driver-db", Text, "cadvisor");
    cadvisor("storage-driver-table", Text, "stats");
    cadvisor("storage-driver-secure", Bool, "false");
    cadvisor("storage-driver-buffer-duration", Duration, "1m");
}

const fn removed(name: &'static str, advice: &'static str) -> Removed {
    Removed { name, value_is_optional: false, advice, fatal: false }
}

const fn removed_bool(name: &'static str, advice: &'static str) -> Removed {
    Removed { name, value_is_optional: true, advice, fatal: false }
}

const fn refused(name: &'static str, advice: &'static str) -> Removed {
    Removed { name, value_is_optional: false, advice, fatal: true }
}

const RUNTIME_OWNS_NETWORK: &str = "the container runtime sets up pod networks, configure CNI there; on Docker the agent does: use --cni-conf-dir";
const RUNTIME_ENDPOINT: &str =
    "use --container-runtime-endpoint; for Docker with its socket, such as unix:///run/docker.sock";
const DOCKER_ITSELF: &str = "set it in Docker itself; the agent needs --container-runtime-endpoint alone";
const LOGS_TO_STDERR: &str = "logs go to stderr; have the service manager store them";
const ALWAYS: &str = "this is no longer optional";

#[rustfmt::skip]
pub(super) static REMOVED: &[Removed] = &[
    removed("network-plugin", RUNTIME_OWNS_NETWORK),
    removed("cni-cache-dir", RUNTIME_OWNS_NETWORK),
    removed("network-plugin-mtu", RUNTIME_OWNS_NETWORK),
    removed("pod-infra-container-image", "the container runtime owns the sandbox image, set it there; on Docker the agent makes it"),
    removed("container-runtime", RUNTIME_ENDPOINT),
    removed("docker", RUNTIME_ENDPOINT),
    removed("docker-endpoint", RUNTIME_ENDPOINT),
    removed_bool("docker-only", DOCKER_ITSELF),
    removed_bool("docker-tls", DOCKER_ITSELF),
    removed("docker-*", DOCKER_ITSELF),
    removed_bool("redirect-container-streaming", "streams always pass through the agent"),
    removed("image-pull-progress-deadline", "set a pull timeout in the container runtime"),
    removed("dynamic-config-dir", "use --config and --config-dir"),
    removed_bool("experimental-dockershim", RUNTIME_ENDPOINT),
    removed("experimental-dockershim*", RUNTIME_ENDPOINT),
    removed("cloud-config", "run a cloud controller manager and use --cloud-provider=external"),
    removed_bool("keep-terminated-pod-volumes", "volumes of terminated pods are always unmounted"),
    removed("non-masquerade-cidr", RUNTIME_OWNS_NETWORK),
    removed_bool("register-schedulable", "use --register-with-taints"),
    removed_bool("allow-privileged", "privileged containers are always allowed"),
    removed("cadvisor-port", "use /metrics/cadvisor of the kubelet's port"),
    refused("api-servers", "use --kubeconfig"),
    refused("experimental-bootstrap-kubeconfig", "use --bootstrap-kubeconfig"),
    removed_bool("experimental-check-node-capabilities-before-mount", ALWAYS),
    removed_bool("really-crash-for-testing", "a panic always ends the process"),
    removed("chaos-chance", "fault injection is not supported"),
    removed_bool("experimental-kernel-memcg-notification", "use --kernel-memcg-notification"),
    removed_bool("add-dir-header", LOGS_TO_STDERR),
    removed_bool("alsologtostderr", LOGS_TO_STDERR),
    removed("log-backtrace-at", LOGS_TO_STDERR),
    removed("log-dir", LOGS_TO_STDERR),
    removed("log-file", LOGS_TO_STDERR),
    removed("log-file-max-size", LOGS_TO_STDERR),
    removed_bool("logtostderr", LOGS_TO_STDERR),
    removed_bool("one-output", LOGS_TO_STDERR),
    removed_bool("skip-headers", LOGS_TO_STDERR),
    removed_bool("skip-log-headers", LOGS_TO_STDERR),
    removed("stderrthreshold", LOGS_TO_STDERR),
];
