//! A node of a cluster: what the configuration and the store say of it, and the parts that the room `cluster` is given.
//!
//! Owns the wiring; decides nothing.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::agent::config::Resolved;
use crate::agent::control_plane::keeper::CertificateKeeper;
use crate::agent::control_plane::renewal::Directories;
use crate::agent::kubelet::local_node::VolumesInUse;
use crate::agent::kubelet::report::LoopView;
use crate::cluster::accounts::Accounts;
use crate::cluster::client::limits::Limit;
use crate::cluster::csi::{ClusterCsi, CsiParts};
use crate::cluster::facts::{Facts, fact_rows};
use crate::cluster::login::LoginConfig;
use crate::cluster::memory::RestoredCluster;
use crate::cluster::node::ClusterNodeConfig;
use crate::cluster::node::register::{NodeFromServer, RegisterConfig};
use crate::cluster::node::report::StatusTimes;
use crate::cluster::objects::Detection;
use crate::cluster::review::Reviews;
use crate::cluster::{self, ClusterConfig, ClusterParts, ClusterState, JoinedCsi};
use crate::desired::source::Accept;
use crate::model::api::pod::StringMap;
use crate::model::node_changes::Taint;
use crate::model::objects::{LocalObjects, NodeObjects};
use crate::model::source::{SourceObject, SourcePod, SourceUpdate};
use crate::model::types::PodSource;
use crate::node::object::NodeState;
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::platform::rt;
use crate::pod::admission::Admission;
use crate::pod::csi::drivers::CsiDrivers;
use crate::pod::csi::local::LocalCsi;
use crate::pod::csi::{CsiNode, CsiServer};
use crate::pod::events::EventRecorder;
use crate::pod::image::ServiceAccounts;
use crate::pod::status::StatusManager;
use crate::pod::workers::PodPressure;
use crate::runtime::Runtime;
use crate::serve::server::RELEASE;
use crate::serve::server::node::SharedNode;
use crate::serve::server::pki::FLOOR;
use crate::store::{ClusterKey, LEFT, Loaded, StoreHandle};

/// Applies labels, taints and whether the node is cordoned.
pub(super) type NodeSetter = Rc<dyn Fn(StringMap, Vec<Taint>, bool)>;

/// What is known of the cluster before its tasks start.
pub(super) struct Joined {
    config: ClusterConfig,
    restored: RestoredCluster,
    pods: Vec<SourcePod>,
    objects: Vec<SourceObject>,
    facts: Rc<Facts>,
    csi: Rc<JoinedCsi>,
    drivers: Rc<CsiDrivers>,
    /// Service accounts of the cluster, for credential providers.
    accounts: Rc<Accounts>,
    /// Confirmations by an administrator.
    pub(super) accepts: Option<mpsc::Receiver<Accept>>,
}

/// Longest wait for a runtime before the first pod of a start.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(2);

impl Joined {
    pub(super) fn accounts(&self) -> Rc<dyn ServiceAccounts> {
        Rc::<Accounts>::clone(&self.accounts)
    }

    pub(super) fn volumes_in_use(&self) -> VolumesInUse {
        let csi = Rc::clone(&self.csi);
        Rc::new(move || csi.volumes_in_use())
    }
}

/// What mounts volumes of CSI drivers.
pub(super) fn csi(
    joined: Option<&Joined>,
    drivers: &Rc<CsiDrivers>,
    (own, lookup): (&Rc<LocalObjects>, &Rc<NodeObjects>),
) -> Rc<CsiNode> {
    let server: Rc<dyn CsiServer> = match joined {
        Some(joined) => Rc::<JoinedCsi>::clone(&joined.csi),
        None => LocalCsi::new(Rc::clone(own), Rc::clone(lookup)),
    };
    CsiNode::new(drivers, server)
}

/// The parts of this node that the cluster's tasks use.
pub(super) struct JoinedParts<'a, R> {
    pub updates: mpsc::Sender<SourceUpdate>,
    pub statuses: &'a Rc<StatusManager>,
    pub events: &'a EventRecorder,
    pub store: &'a StoreHandle,
    pub clock: &'a Clock,
    pub view: &'a Rc<LoopView>,
    pub node: Rc<dyn Fn() -> NodeState>,
    pub reviews: Option<Rc<Reviews>>,
    pub pressure: Rc<dyn PodPressure>,
    pub set_node: NodeSetter,
    pub runtime: Rc<R>,
}

/// The node has had pods of a cluster, which stay until the node leaves it.
pub(super) fn has_rows(loaded: &Loaded) -> bool {
    !has_left(loaded)
        && (!loaded.cluster.is_empty()
            || loaded.desired.iter().any(|stored| stored.source == PodSource::Cluster))
}

fn has_left(loaded: &Loaded) -> bool {
    loaded.cluster.iter().any(|row| row.key.kind == LEFT)
}

/// A node that has left its cluster knows nothing of it, whatever was written after it left; one that joins again has not
/// left.
pub(super) async fn settle(resolved: &Resolved, loaded: &mut Loaded, store: &StoreHandle) {
    if !has_left(loaded) {
        return;
    }
    // A failure is reported by the store; the next start does it again.
    if is_joined(resolved) {
        loaded.cluster.retain(|row| row.key.kind != LEFT);
        let _ = store.put_cluster(Vec::new(), vec![ClusterKey::new(LEFT, "", "")]).await;
    } else if loaded.cluster.len() > 1 {
        loaded.cluster.retain(|row| row.key.kind == LEFT);
        let _ = store.forget_cluster().await;
    }
}

/// What the store knows of the cluster beside objects; `None` for a node that has never been in one.
pub(super) fn facts(resolved: &Resolved, loaded: &Loaded) -> Option<Rc<Facts>> {
    (is_joined(resolved) || has_rows(loaded)).then(|| Facts::restored(&fact_rows(&loaded.cluster)))
}

pub(super) fn is_joined(resolved: &Resolved) -> bool {
    !resolved.flags.kubeconfig.is_empty() && !resolved.kubelet.run_once
}

/// What the store remembers of the cluster takes effect: pods start by it, whether the server answers or not. `None`
/// without a kubeconfig.
pub(super) async fn restore<R: Runtime>(
    resolved: &Resolved,
    loaded: &Loaded,
    (admission, runtime): (&Admission, &R),
    (facts, objects): (Option<Rc<Facts>>, Rc<NodeObjects>),
    (store, events, clock): (&StoreHandle, &EventRecorder, &Clock),
    drivers: &Rc<CsiDrivers>,
) -> Option<Joined> {
    let restored = RestoredCluster::of(&loaded.cluster);
    if let Some(node) = &restored.node {
        // No pod waits yet.
        drop(admission.set_node(node.labels.clone(), node.taints.clone(), node.unschedulable));
        // A runtime that does not answer gets the ranges when the server shows them.
        let _ = tokio::time::timeout(RUNTIME_PATIENCE, set_pod_cidrs(runtime, &node.pod_cidrs)).await;
    }
    let facts = facts.filter(|_| is_joined(resolved))?;
    let stored = loaded.desired.iter().find(|stored| stored.source == PodSource::Cluster);
    let csi = ClusterCsi::new(
        CsiParts {
            store: store.clone(),
            events: events.clone(),
            clock: clock.clone(),
            dice: Dice::System,
            drivers: Rc::clone(drivers),
            objects,
        },
        &loaded.cluster,
    );
    if let Some(node) = &restored.node {
        csi.set_node(node);
    }
    Some(Joined {
        csi,
        drivers: Rc::clone(drivers),
        accounts: Accounts::new(clock.clone()),
        facts,
        objects: stored.map(|stored| stored.objects.clone()).unwrap_or_default(),
        config: match resolved.flags.link_profile.as_str() {
            "metered" => cluster::metered(config(resolved)),
            _ => config(resolved),
        },
        restored,
        pods: stored.map(|stored| stored.pods.clone()).unwrap_or_default(),
        accepts: None,
    })
}

async fn set_pod_cidrs<R: Runtime>(runtime: &R, ranges: &[String]) {
    if let Err(error) = runtime.set_pod_cidrs(ranges).await {
        log::warn!(ranges:?, err:% = error; "Failed to set the pod CIDRs of the cluster");
    }
}

fn config(resolved: &Resolved) -> ClusterConfig {
    let (kubelet, flags) = (&resolved.kubelet, &resolved.flags);
    let bootstrap = Some(PathBuf::from(&flags.bootstrap_kubeconfig));
    let ips: Vec<String> = resolved.node_ips.iter().map(ToString::to_string).collect();
    ClusterConfig {
        login: LoginConfig {
            kubeconfig: PathBuf::from(&flags.kubeconfig),
            bootstrap: bootstrap.filter(|path| !path.as_os_str().is_empty()),
            cert_dir: flags.cert_dir.clone(),
            rotate: kubelet.rotate_certificates,
            user_agent: format!("kubelet/{RELEASE} (linux/{})", std::env::consts::ARCH),
            floor: FLOOR,
        },
        node: ClusterNodeConfig {
            name: resolved.node_name.clone(),
            register: RegisterConfig {
                creates: kubelet.register_node,
                taints: super::setup::node_facts::configured_taints(kubelet),
                has_cloud: flags.cloud_provider == "external",
                node_ip: ips.join(","),
                controller_attaches: kubelet.enable_controller_attach_detach,
            },
            times: StatusTimes {
                update: kubelet.node_status_update_frequency.to_std(),
                report: kubelet.node_status_report_frequency.to_std(),
            },
            lease_seconds: kubelet.node_lease_duration_seconds,
        },
        limit: Limit { qps: kubelet.kube_api_qps, burst: kubelet.kube_api_burst },
        event_limit: Limit { qps: kubelet.event_record_qps, burst: kubelet.event_burst },
        guard_grace: flags.cluster_reset_grace.to_std(),
        offline_max_age: Some(flags.offline_max_age.to_std()).filter(|limit| !limit.is_zero()),
        detection: Detection::of(&kubelet.config_map_and_secret_change_detection_strategy),
        serving: kubelet.server_tls_bootstrap.then(|| flags.cert_dir.clone()),
        is_metered: false,
    }
}

/// On a control plane, its certificates are renewed in time. kubeadm's configuration of the kubelet says where they are.
pub(super) fn keep_control_plane<R>(resolved: &Resolved, parts: &JoinedParts<'_, R>, node: &SharedNode) {
    let (kubelet, flags) = (&resolved.kubelet, &resolved.flags);
    let directory = |file: &str| Path::new(file).parent().map(Path::to_owned);
    let period = flags.control_plane_cert_validity_period;
    let (Some(certs), Some(confs), false) = (
        directory(&kubelet.authentication_x509_client_ca_file),
        directory(&flags.kubeconfig),
        period.is_zero() || kubelet.static_pod_path.is_empty(),
    ) else {
        return;
    };
    let node = Rc::clone(node);
    let keeper = CertificateKeeper {
        directories: Directories { certs, confs },
        manifest: Path::new(&kubelet.static_pod_path).join("kube-apiserver.yaml"),
        period,
        clock: parts.clock.clone(),
        events: parts.events.clone(),
        statuses: Rc::clone(parts.statuses),
        restart: Rc::new(move |pod, containers| node.restart(pod, containers)),
    };
    rt::spawn("control plane certificates", keeper.run());
}

/// Starts the cluster's tasks.
pub(super) fn start<R: Runtime>(joined: Joined, parts: JoinedParts<'_, R>) -> Rc<ClusterState> {
    let Joined { config, restored, pods, objects, facts, csi, drivers, accounts, accepts } = joined;
    let statuses = Rc::clone(parts.statuses);
    let (set_node, runtime) = (parts.set_node, parts.runtime);
    let no_accepts = || mpsc::channel(1).1;
    let cluster = cluster::start(
        config,
        ClusterParts {
            updates: parts.updates,
            statuses: Rc::clone(parts.statuses),
            events: parts.events.clone(),
            store: parts.store.clone(),
            clock: parts.clock.clone(),
            dice: Dice::System,
            restored,
            pods,
            node: parts.node,
            node_changed: vec![parts.view.watch(), parts.view.health().watch(), drivers.changed()],
            on_node: Rc::new(move |node: &NodeFromServer| {
                set_node(node.labels.clone(), node.taints.clone(), node.unschedulable);
                let (runtime, ranges) = (Rc::clone(&runtime), node.pod_cidrs.clone());
                rt::spawn("pod ranges", async move { set_pod_cidrs(&*runtime, &ranges).await });
            }),
            pressure: parts.pressure,
            facts,
            objects,
            reviews: parts.reviews,
            accounts,
            local_pods: Rc::new(move || statuses.static_pods()),
            accepts: accepts.unwrap_or_else(no_accepts),
        },
        Some(csi),
    );
    parts.view.set_cluster(Rc::clone(&cluster));
    cluster
}
