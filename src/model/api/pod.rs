//! `v1.Pod` and its parts. Names and nesting are upstream's; kinds of volume and scheduling that the agent
//! only passes through or refuses stay raw JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::api::managed_fields::ManagedFields;
use crate::model::api::quantity::Quantity;
use crate::model::api::raw::RawJson;
use crate::model::api::wire;
use crate::model::types::{PodRef, PodUid, Timestamp};

/// `metadata.labels`, `metadata.annotations`, node selectors.
pub type StringMap = BTreeMap<String, String>;
/// Resource name to amount: `cpu`, `memory`, `ephemeral-storage`, `hugepages-2Mi`, extended resources.
pub type ResourceList = BTreeMap<String, Quantity>;

/// A port or percentage given as number or text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    Int(i32),
    /// A name, or a number in quotes.
    String(String),
}

impl Default for IntOrString {
    fn default() -> Self {
        Self::Int(0)
    }
}

wire! {
    /// A pod: the unit of work.
    pub struct Pod {
        pub api_version: String,
        pub kind: String,
        pub metadata: ObjectMeta,
        pub spec: PodSpec,
        pub status: PodStatus,
    }

    /// `metav1.ObjectMeta`.
    pub struct ObjectMeta {
        pub name: String,
        pub generate_name: String,
        pub namespace: String,
        pub self_link: String,
        pub uid: PodUid,
        pub resource_version: String,
        pub generation: i64,
        pub creation_timestamp: Option<Timestamp>,
        pub deletion_timestamp: Option<Timestamp>,
        pub deletion_grace_period_seconds: Option<i64>,
        pub labels: StringMap,
        pub annotations: StringMap,
        pub owner_references: Vec<Value>,
        pub finalizers: Vec<String>,
        pub managed_fields: ManagedFields,
    }

    /// `v1.PodSpec`.
    pub struct PodSpec {
        pub volumes: Vec<Volume>,
        pub init_containers: Vec<Container>,
        pub containers: Vec<Container>,
        pub ephemeral_containers: Vec<Container>,
        pub restart_policy: String,
        pub termination_grace_period_seconds: Option<i64>,
        pub active_deadline_seconds: Option<i64>,
        pub dns_policy: String,
        pub node_selector: StringMap,
        pub service_account_name: String,
        #[wire(rename = "serviceAccount")]
        pub deprecated_service_account: String,
        pub automount_service_account_token: Option<bool>,
        pub node_name: String,
        pub host_network: bool,
        #[wire(rename = "hostPID")]
        pub host_pid: bool,
        #[wire(rename = "hostIPC")]
        pub host_ipc: bool,
        pub share_process_namespace: Option<bool>,
        pub security_context: Option<PodSecurityContext>,
        pub image_pull_secrets: Vec<LocalObjectReference>,
        pub hostname: String,
        pub subdomain: String,
        pub hostname_override: Option<String>,
        pub affinity: Option<Value>,
        pub scheduler_name: String,
        pub tolerations: Vec<Toleration>,
        pub host_aliases: Vec<HostAlias>,
        pub priority_class_name: String,
        pub priority: Option<i32>,
        pub dns_config: Option<PodDnsConfig>,
        pub readiness_gates: Vec<PodReadinessGate>,
        pub runtime_class_name: Option<String>,
        pub enable_service_links: Option<bool>,
        pub preemption_policy: Option<String>,
        pub overhead: ResourceList,
        pub topology_spread_constraints: Vec<Value>,
        #[wire(rename = "setHostnameAsFQDN")]
        pub set_hostname_as_fqdn: Option<bool>,
        pub os: Option<PodOs>,
        pub host_users: Option<bool>,
        pub scheduling_gates: Vec<Value>,
        pub resource_claims: Vec<Value>,
        pub resources: Option<ResourceRequirements>,
        pub workload_ref: Option<Value>,
        pub scheduling_group: Option<Value>,
    }

    /// `v1.Container`; also init containers, and ephemeral ones, which add `targetContainerName`.
    pub struct Container {
        pub name: String,
        pub image: String,
        pub command: Vec<String>,
        pub args: Vec<String>,
        pub working_dir: String,
        pub ports: Vec<ContainerPort>,
        pub env_from: Vec<EnvFromSource>,
        pub env: Vec<EnvVar>,
        pub resources: ResourceRequirements,
        pub resize_policy: Vec<ContainerResizePolicy>,
        pub restart_policy: Option<String>,
        pub restart_policy_rules: Vec<ContainerRestartRule>,
        pub volume_mounts: Vec<VolumeMount>,
        pub volume_devices: Vec<VolumeDevice>,
        pub liveness_probe: Option<Probe>,
        pub readiness_probe: Option<Probe>,
        pub startup_probe: Option<Probe>,
        pub lifecycle: Option<Lifecycle>,
        pub termination_message_path: String,
        pub termination_message_policy: String,
        pub image_pull_policy: String,
        pub security_context: Option<SecurityContext>,
        pub stdin: bool,
        pub stdin_once: bool,
        pub tty: bool,
        pub target_container_name: String,
    }

    /// `v1.ContainerPort`.
    pub struct ContainerPort {
        pub name: String,
        pub host_port: i32,
        pub container_port: i32,
        pub protocol: String,
        #[wire(rename = "hostIP")]
        pub host_ip: String,
    }

    /// `v1.EnvFromSource`.
    pub struct EnvFromSource {
        pub prefix: String,
        pub config_map_ref: Option<OptionalObjectReference>,
        pub secret_ref: Option<OptionalObjectReference>,
    }

    /// A named object that may be allowed to be absent.
    pub struct OptionalObjectReference {
        pub name: String,
        pub optional: Option<bool>,
    }

    /// `v1.LocalObjectReference`.
    pub struct LocalObjectReference {
        pub name: String,
    }

    /// `v1.EnvVar`.
    pub struct EnvVar {
        pub name: String,
        pub value: String,
        pub value_from: Option<EnvVarSource>,
    }

    /// `v1.EnvVarSource`.
    pub struct EnvVarSource {
        pub field_ref: Option<ObjectFieldSelector>,
        pub resource_field_ref: Option<ResourceFieldSelector>,
        pub config_map_key_ref: Option<KeySelector>,
        pub secret_key_ref: Option<KeySelector>,
        pub file_key_ref: Option<FileKeySelector>,
    }

    /// `v1.ObjectFieldSelector`.
    pub struct ObjectFieldSelector {
        pub api_version: String,
        pub field_path: String,
    }

    /// `v1.ResourceFieldSelector`.
    pub struct ResourceFieldSelector {
        pub container_name: String,
        pub resource: String,
        pub divisor: Option<Quantity>,
    }

    /// `v1.ConfigMapKeySelector`, `v1.SecretKeySelector`.
    pub struct KeySelector {
        pub name: String,
        pub key: String,
        pub optional: Option<bool>,
    }

    /// `v1.FileKeySelector`.
    pub struct FileKeySelector {
        pub volume_name: String,
        pub path: String,
        pub key: String,
        pub optional: Option<bool>,
    }

    /// `v1.ResourceRequirements`.
    pub struct ResourceRequirements {
        pub limits: ResourceList,
        pub requests: ResourceList,
        pub claims: Vec<Value>,
    }

    /// `v1.ContainerResizePolicy`.
    pub struct ContainerResizePolicy {
        pub resource_name: String,
        pub restart_policy: String,
    }

    /// `v1.ContainerRestartRule`.
    pub struct ContainerRestartRule {
        pub action: String,
        pub exit_codes: Option<ContainerRestartRuleOnExitCodes>,
    }

    /// `v1.ContainerRestartRuleOnExitCodes`.
    pub struct ContainerRestartRuleOnExitCodes {
        pub operator: String,
        pub values: Vec<i32>,
    }

    /// `v1.VolumeMount`.
    pub struct VolumeMount {
        pub name: String,
        pub read_only: bool,
        pub recursive_read_only: Option<String>,
        pub mount_path: String,
        pub sub_path: String,
        pub sub_path_expr: String,
        pub mount_propagation: Option<String>,
    }

    /// `v1.VolumeDevice`.
    pub struct VolumeDevice {
        pub name: String,
        pub device_path: String,
    }

    /// `v1.Probe`.
    pub struct Probe {
        pub exec: Option<ExecAction>,
        pub http_get: Option<HttpGetAction>,
        pub tcp_socket: Option<TcpSocketAction>,
        pub grpc: Option<GrpcAction>,
        pub initial_delay_seconds: i32,
        pub timeout_seconds: i32,
        pub period_seconds: i32,
        pub success_threshold: i32,
        pub failure_threshold: i32,
        pub termination_grace_period_seconds: Option<i64>,
    }

    /// `v1.Lifecycle`.
    pub struct Lifecycle {
        pub post_start: Option<LifecycleHandler>,
        pub pre_stop: Option<LifecycleHandler>,
        pub stop_signal: Option<String>,
    }

    /// `v1.LifecycleHandler`.
    pub struct LifecycleHandler {
        pub exec: Option<ExecAction>,
        pub http_get: Option<HttpGetAction>,
        pub tcp_socket: Option<TcpSocketAction>,
        pub sleep: Option<SleepAction>,
    }

    /// `v1.ExecAction`.
    pub struct ExecAction {
        pub command: Vec<String>,
    }

    /// `v1.HTTPGetAction`.
    pub struct HttpGetAction {
        pub path: String,
        pub port: IntOrString,
        pub host: String,
        pub scheme: String,
        pub http_headers: Vec<HttpHeader>,
    }

    /// `v1.HTTPHeader`.
    pub struct HttpHeader {
        pub name: String,
        pub value: String,
    }

    /// `v1.TCPSocketAction`.
    pub struct TcpSocketAction {
        pub port: IntOrString,
        pub host: String,
    }

    /// `v1.GRPCAction`.
    pub struct GrpcAction {
        pub port: i32,
        pub service: Option<String>,
    }

    /// `v1.SleepAction`.
    pub struct SleepAction {
        pub seconds: i64,
    }

    /// `v1.SecurityContext`.
    pub struct SecurityContext {
        pub capabilities: Option<Capabilities>,
        pub privileged: Option<bool>,
        pub se_linux_options: Option<SeLinuxOptions>,
        pub windows_options: Option<Value>,
        pub run_as_user: Option<i64>,
        pub run_as_group: Option<i64>,
        pub run_as_non_root: Option<bool>,
        pub read_only_root_filesystem: Option<bool>,
        pub allow_privilege_escalation: Option<bool>,
        pub proc_mount: Option<String>,
        pub seccomp_profile: Option<SeccompProfile>,
        pub app_armor_profile: Option<SeccompProfile>,
    }

    /// `v1.Capabilities`.
    pub struct Capabilities {
        pub add: Vec<String>,
        pub drop: Vec<String>,
    }

    /// `v1.SELinuxOptions`.
    pub struct SeLinuxOptions {
        pub user: String,
        pub role: String,
        #[wire(rename = "type")]
        pub type_: String,
        pub level: String,
    }

    /// `v1.SeccompProfile` and `v1.AppArmorProfile`, which have the same shape.
    pub struct SeccompProfile {
        #[wire(rename = "type")]
        pub type_: String,
        pub localhost_profile: Option<String>,
    }

    /// `v1.PodSecurityContext`.
    pub struct PodSecurityContext {
        pub se_linux_options: Option<SeLinuxOptions>,
        pub windows_options: Option<Value>,
        pub run_as_user: Option<i64>,
        pub run_as_group: Option<i64>,
        pub run_as_non_root: Option<bool>,
        pub supplemental_groups: Vec<i64>,
        pub supplemental_groups_policy: Option<String>,
        pub fs_group: Option<i64>,
        pub sysctls: Vec<Sysctl>,
        pub fs_group_change_policy: Option<String>,
        pub seccomp_profile: Option<SeccompProfile>,
        pub app_armor_profile: Option<SeccompProfile>,
        pub se_linux_change_policy: Option<String>,
    }

    /// `v1.Sysctl`.
    pub struct Sysctl {
        pub name: String,
        pub value: String,
    }

    /// `v1.Toleration`.
    pub struct Toleration {
        pub key: String,
        pub operator: String,
        pub value: String,
        pub effect: String,
        pub toleration_seconds: Option<i64>,
    }

    /// `v1.HostAlias`.
    pub struct HostAlias {
        pub ip: String,
        pub hostnames: Vec<String>,
    }

    /// `v1.PodDNSConfig`.
    pub struct PodDnsConfig {
        pub nameservers: Vec<String>,
        pub searches: Vec<String>,
        pub options: Vec<PodDnsConfigOption>,
    }

    /// `v1.PodDNSConfigOption`.
    pub struct PodDnsConfigOption {
        pub name: String,
        pub value: Option<String>,
    }

    /// `v1.PodReadinessGate`.
    pub struct PodReadinessGate {
        pub condition_type: String,
    }

    /// `v1.PodOS`.
    pub struct PodOs {
        pub name: String,
    }

    /// `v1.Volume`: a name and one source. Seldom used sources are boxed: a pod has three volumes, and a node fifty pods.
    pub struct Volume {
        pub name: String,
        pub host_path: Option<HostPathVolumeSource>,
        pub empty_dir: Option<EmptyDirVolumeSource>,
        pub config_map: Option<ConfigMapVolumeSource>,
        pub secret: Option<SecretVolumeSource>,
        #[wire(rename = "downwardAPI")]
        pub downward_api: Option<DownwardApiVolumeSource>,
        pub projected: Option<ProjectedVolumeSource>,
        pub persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
        pub nfs: Option<NfsVolumeSource>,
        pub image: Option<ImageVolumeSource>,
        pub ephemeral: Option<Box<Value>>,
        pub csi: Option<Box<Value>>,
        pub iscsi: Option<Box<Value>>,
        pub fc: Option<Box<Value>>,
        pub flex_volume: Option<Box<Value>>,
        pub git_repo: Option<Box<Value>>,
        pub cephfs: Option<Box<Value>>,
        pub glusterfs: Option<Box<Value>>,
        pub rbd: Option<Box<Value>>,
        pub cinder: Option<Box<Value>>,
        pub flocker: Option<Box<Value>>,
        pub quobyte: Option<Box<Value>>,
        pub storageos: Option<Box<Value>>,
        pub portworx_volume: Option<Box<Value>>,
        #[wire(rename = "scaleIO")]
        pub scale_io: Option<Box<Value>>,
        pub azure_file: Option<Box<Value>>,
        pub azure_disk: Option<Box<Value>>,
        pub gce_persistent_disk: Option<Box<Value>>,
        pub aws_elastic_block_store: Option<Box<Value>>,
        pub vsphere_volume: Option<Box<Value>>,
        pub photon_persistent_disk: Option<Box<Value>>,
    }

    /// `v1.HostPathVolumeSource`.
    pub struct HostPathVolumeSource {
        pub path: String,
        #[wire(rename = "type")]
        pub type_: String,
    }

    /// `v1.EmptyDirVolumeSource`.
    pub struct EmptyDirVolumeSource {
        pub medium: String,
        pub size_limit: Option<Quantity>,
    }

    /// `v1.KeyToPath`.
    pub struct KeyToPath {
        pub key: String,
        pub path: String,
        pub mode: Option<i32>,
    }

    /// `v1.ConfigMapVolumeSource`; in a projection, `v1.ConfigMapProjection`.
    pub struct ConfigMapVolumeSource {
        pub name: String,
        pub items: Vec<KeyToPath>,
        pub default_mode: Option<i32>,
        pub optional: Option<bool>,
    }

    /// `v1.SecretVolumeSource`.
    pub struct SecretVolumeSource {
        pub secret_name: String,
        pub items: Vec<KeyToPath>,
        pub default_mode: Option<i32>,
        pub optional: Option<bool>,
    }

    /// `v1.SecretProjection`.
    pub struct SecretProjection {
        pub name: String,
        pub items: Vec<KeyToPath>,
        pub optional: Option<bool>,
    }

    /// `v1.DownwardAPIVolumeSource`; in a projection, `v1.DownwardAPIProjection`.
    pub struct DownwardApiVolumeSource {
        pub items: Vec<DownwardApiVolumeFile>,
        pub default_mode: Option<i32>,
    }

    /// `v1.DownwardAPIVolumeFile`.
    pub struct DownwardApiVolumeFile {
        pub path: String,
        pub field_ref: Option<ObjectFieldSelector>,
        pub resource_field_ref: Option<ResourceFieldSelector>,
        pub mode: Option<i32>,
    }

    /// `v1.ProjectedVolumeSource`.
    pub struct ProjectedVolumeSource {
        pub sources: Vec<VolumeProjection>,
        pub default_mode: Option<i32>,
    }

    /// `v1.VolumeProjection`.
    pub struct VolumeProjection {
        pub secret: Option<SecretProjection>,
        #[wire(rename = "downwardAPI")]
        pub downward_api: Option<DownwardApiVolumeSource>,
        pub config_map: Option<ConfigMapVolumeSource>,
        pub service_account_token: Option<ServiceAccountTokenProjection>,
        pub cluster_trust_bundle: Option<Value>,
        pub pod_certificate: Option<Value>,
    }

    /// `v1.ServiceAccountTokenProjection`.
    pub struct ServiceAccountTokenProjection {
        pub audience: String,
        pub expiration_seconds: Option<i64>,
        pub path: String,
    }

    /// `v1.PersistentVolumeClaimVolumeSource`.
    pub struct PersistentVolumeClaimVolumeSource {
        pub claim_name: String,
        pub read_only: bool,
    }

    /// `v1.NFSVolumeSource`.
    pub struct NfsVolumeSource {
        pub server: String,
        pub path: String,
        pub read_only: bool,
    }

    /// `v1.ImageVolumeSource`.
    pub struct ImageVolumeSource {
        pub reference: String,
        pub pull_policy: String,
    }

    /// `v1.PodStatus`.
    pub struct PodStatus {
        pub observed_generation: i64,
        pub phase: String,
        pub conditions: Vec<PodCondition>,
        pub message: String,
        pub reason: String,
        pub nominated_node_name: String,
        #[wire(rename = "hostIP")]
        pub host_ip: String,
        #[wire(rename = "hostIPs")]
        pub host_ips: Vec<IpHolder>,
        #[wire(rename = "podIP")]
        pub pod_ip: String,
        #[wire(rename = "podIPs")]
        pub pod_ips: Vec<IpHolder>,
        pub start_time: Option<Timestamp>,
        pub init_container_statuses: Vec<ContainerStatus>,
        pub container_statuses: Vec<ContainerStatus>,
        pub qos_class: String,
        pub ephemeral_container_statuses: Vec<ContainerStatus>,
        pub resize: String,
        pub resource_claim_statuses: Vec<Value>,
    }

    /// `v1.HostIP`, `v1.PodIP`.
    pub struct IpHolder {
        pub ip: String,
    }

    /// `v1.PodCondition`.
    pub struct PodCondition {
        #[wire(rename = "type")]
        pub type_: String,
        pub status: String,
        pub observed_generation: i64,
        pub last_probe_time: Option<Timestamp>,
        pub last_transition_time: Option<Timestamp>,
        pub reason: String,
        pub message: String,
    }

    /// `v1.ContainerState`: one of three.
    pub struct ContainerState {
        pub waiting: Option<ContainerStateWaiting>,
        pub running: Option<ContainerStateRunning>,
        pub terminated: Option<ContainerStateTerminated>,
    }

    /// `v1.ContainerStateWaiting`.
    pub struct ContainerStateWaiting {
        pub reason: String,
        pub message: String,
    }

    /// `v1.ContainerStateRunning`.
    pub struct ContainerStateRunning {
        pub started_at: Option<Timestamp>,
    }

    /// `v1.ContainerStateTerminated`. `exitCode` is always written: zero is the news.
    pub struct ContainerStateTerminated {
        #[wire(always)]
        pub exit_code: i32,
        pub signal: i32,
        pub reason: String,
        pub message: String,
        pub started_at: Option<Timestamp>,
        pub finished_at: Option<Timestamp>,
        #[wire(rename = "containerID")]
        pub container_id: String,
    }

    /// `v1.ContainerStatus`. The fields without `omitempty` upstream are always written.
    pub struct ContainerStatus {
        #[wire(always)]
        pub name: String,
        pub state: ContainerState,
        pub last_state: ContainerState,
        #[wire(always)]
        pub ready: bool,
        #[wire(always)]
        pub restart_count: i32,
        #[wire(always)]
        pub image: String,
        #[wire(always, rename = "imageID")]
        pub image_id: String,
        #[wire(rename = "containerID")]
        pub container_id: String,
        pub started: Option<bool>,
        pub allocated_resources: ResourceList,
        pub resources: Option<ResourceRequirements>,
        pub volume_mounts: Vec<VolumeMount>,
        pub user: Option<RawJson>,
    }
}

impl Pod {
    /// The pod's namespace, name and uid.
    #[must_use]
    pub fn pod_ref(&self) -> PodRef {
        PodRef {
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
            uid: self.metadata.uid.clone(),
        }
    }

    /// The grace period of its own spec, in seconds; 30 when it is not set (API defaulting).
    #[must_use]
    pub fn termination_grace_period_seconds(&self) -> i64 {
        self.spec.termination_grace_period_seconds.unwrap_or(30)
    }
}

impl PodStatus {
    /// The status of a pod that no worker has synced yet.
    #[must_use]
    pub fn pending() -> Self {
        Self { phase: "Pending".to_owned(), ..Self::default() }
    }
}
