//! The pods' network: bridge, addresses, host ports; or the configured CNI plugins.
//!
//! Expected flow: [`Network::attach`] once a pod's network namespace exists, [`Network::detach`] when the pod
//! is stopped, [`Network::recover`] once after a restart.
//!
//! Guarantees: a record is written before anything is made, so that `detach` and `recover` find all of it
//! wherever the agent was stopped. `attach` of an attached sandbox recreates it; a failed one leaves nothing.
//! `detach` may be repeated and works when the namespace is gone. With the last pod the bridge and the rules
//! are removed, too. Rules of other programs are not touched.
//!
//! Assumptions: callers are threads that may block. Records are on a file system that does not survive a
//! reboot, just as links and rules do not.
//!
//! Caveats: another program's chain that drops forwarded packets still drops them: accepting here cannot
//! override that. Two pods on the bridge can lie to each other about their addresses; the guard sees only
//! packets that pass through the node.

pub mod bridge;
pub(in crate::runtime) mod cni;
pub mod faults;
pub mod records;
pub mod rules;
pub mod subnet;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::bridge::PodLink;
use self::cni::{CniError, CniPod};
use self::faults::Stopped;
use self::records::{CniRecord, HostPort, NetworkRecord, RecordError, Records};
use self::subnet::{Exhausted, Subnet};
use crate::model::ordered::Ordered as _;
use crate::model::runtime_config::{DnsConfig, PortMapping};
use crate::model::types::{PodRef, SandboxId};
use crate::platform::sys::netlink::nftables::{self, Applied, Family};
use crate::platform::sys::netlink::{NetlinkError, conntrack};

#[cfg(test)]
pub(crate) const DEFAULT_BRIDGE: &str = "agent0";
/// How many names for a link are tried: two sandboxes share their first one in one case of billions.
const VETH_SALTS: u32 = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetworkConfig {
    /// Name of the bridge, and of the tables of rules.
    pub bridge: String,
    /// Where pods' addresses come from, one per family; a pod's primary address is of the first.
    pub subnets: Vec<Subnet>,
    /// Largest packet; `None` for that of the default route's interface.
    pub mtu: Option<u32>,
    /// Records ([`super::layout::Layout::network`]).
    pub state: PathBuf,
    /// The directory of CNI configurations; if there is one, it replaces the built-in network.
    pub cni_conf_dir: PathBuf,
    pub cni_bin_dirs: Vec<PathBuf>,
}

/// A pod to connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub sandbox: SandboxId,
    pub pod: PodRef,
    /// Path of its network namespace, `/proc/<pid of the monitor>/ns/net`.
    pub netns: String,
    /// Ports of its containers; those with a host port are opened on the node.
    pub ports: Vec<PortMapping>,
    /// Of the pod; `kubernetes.io/ingress-bandwidth` and `egress-bandwidth` are for CNI plugins.
    pub annotations: BTreeMap<String, String>,
    /// For CNI plugins that ask for it.
    pub dns: Option<DnsConfig>,
}

/// A pod's network could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    NetworkRecord(#[from] RecordError),
    #[error(transparent)]
    Cni(#[from] CniError),
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    #[error(transparent)]
    Stopped(#[from] Stopped),
    #[error("enter network namespace {path:?}")]
    Namespace {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("write {value:?} to {path:?}; set it on the host if the agent is not allowed to")]
    Sysctl {
        path: PathBuf,
        value: String,
        #[source]
        source: io::Error,
    },
    #[error("pod network {subnet} overlaps with {other}; set podCIDR to an unused range")]
    Overlap { subnet: Subnet, other: String },
    #[error("{name} is not a bridge but {}; remove or rename it", if .kind.is_empty() { "a device" } else { .kind })]
    NotABridge { name: String, kind: String },
    #[error(
        "the kernel does not support bridges (CONFIG_BRIDGE): use hostNetwork, or a CNI configuration \
         without a bridge"
    )]
    NoBridges(#[source] NetlinkError),
    #[error(
        "the kernel does not support nf_tables with NAT (CONFIG_NF_TABLES, NF_TABLES_IPV4, NFT_NAT, \
         NFT_MASQ, NFT_FIB_IPV4, NFT_CT; the same with IPV6): use hostNetwork, or a CNI configuration"
    )]
    NoRules(#[source] NetlinkError),
    /// Another program removed it during the operation.
    #[error("link {name} disappeared after it was created")]
    Vanished { name: String },
    /// There is no range of an address family that the node has.
    #[error("no usable podCIDR: this node does not support IPv6")]
    NoSubnet,
    #[error("host port {port} ({protocol}): {problem}")]
    Port {
        /// On the node.
        port: i32,
        protocol: String,
        problem: String,
    },
    #[error("no free link name for sandbox {0}")]
    NoName(SandboxId),
}

impl NetworkError {
    /// True when the pod's own network namespace no longer exists.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn is_namespace_gone(&self) -> bool {
        matches!(self, Self::Namespace { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// A CNI configuration: its file, its length and its modification time. `None` where there is none.
pub(in crate::runtime) type Configured = Option<(PathBuf, u64, Option<std::time::SystemTime>)>;

/// The network of this node's pods. Several threads may use it at once, each for another sandbox: plugins run
/// in parallel, changes of the bridge one at a time.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    config: NetworkConfig,
    records: Records,
    /// The rules in force.
    applied: Arc<Applied>,
}

impl Network {
    /// Changes nothing before the first pod is attached.
    #[must_use]
    pub(crate) fn new(config: NetworkConfig) -> Self {
        let records = Records::new(config.state.clone());
        Self { config, records, applied: Arc::default() }
    }

    /// The same network, with other ranges for new pods. Pods keep their addresses; the bridge and the rules keep an old
    /// range for as long as a pod is in it.
    #[must_use]
    pub(in crate::runtime) fn with_subnets(&self, subnets: Vec<Subnet>) -> Self {
        Self { config: NetworkConfig { subnets, ..self.config.clone() }, ..self.clone() }
    }

    pub(in crate::runtime) fn subnets(&self) -> &[Subnet] {
        &self.config.subnets
    }

    /// The ranges of new pods, then the other ones of these records.
    fn ranges(&self, records: &[NetworkRecord]) -> Vec<Subnet> {
        let mut ranges = self.config.subnets.clone();
        for range in records.iter().flat_map(|record| &record.ranges).filter_map(|range| range.parse().ok()) {
            if !ranges.contains(&range) {
                ranges.push(range);
            }
        }
        bridge::usable(&ranges)
    }

    /// The CNI configuration in force, for callers that check whether it has changed.
    #[must_use]
    pub(crate) fn configured(&self) -> Configured {
        cni::identity(&self.config.cni_conf_dir)
    }

    /// Whether attaching or detaching this sandbox runs plugins.
    #[must_use]
    pub(in crate::runtime) fn runs_plugins(&self, sandbox: &SandboxId) -> bool {
        let recorded = self.records.one(sandbox).ok().flatten();
        recorded.is_some_and(|record| record.cni.is_some()) || self.configured().is_some()
    }

    /// Whether pods can have a network: the runtime's condition `NetworkReady`.
    pub(crate) fn status(&self) -> Result<(), String> {
        let plugins = cni::load(&self.config.cni_conf_dir)
            .and_then(|list| list.map(|list| list.status(&self.config.cni_bin_dirs)).transpose());
        match plugins {
            Ok(Some(())) => return Ok(()),
            Ok(None) => {}
            Err(error) => {
                return Err(format!(
                    "cni plugin not initialized: {}",
                    crate::platform::logging::chain(&error)
                ));
            }
        }
        if bridge::usable(&self.config.subnets).is_empty() {
            return Err(crate::platform::logging::chain(&NetworkError::NoSubnet));
        }
        match nftables::probe() {
            Err(error) if error.is_unsupported() => {
                Err(crate::platform::logging::chain(&NetworkError::NoRules(error)))
            }
            Err(error) => Err(crate::platform::logging::chain(&error)),
            Ok(()) => Ok(()),
        }
    }

    /// Connects a pod; returns its addresses, the primary one first.
    ///
    /// # Errors
    /// The step that failed. Nothing is left then.
    pub(crate) fn attach(&self, attachment: &Attachment) -> Result<Vec<IpAddr>, NetworkError> {
        self.detach(&attachment.sandbox, None)?;
        if let Some(list) = cni::load(&self.config.cni_conf_dir)? {
            return self.attach_by_plugins(attachment, list);
        }
        let _lock = self.records.lock()?;
        self.attach_to_bridge(attachment)
    }

    /// Disconnects a pod. Succeeds when it is already disconnected, or when its namespace is gone.
    ///
    /// # Errors
    /// The step that failed; the call may be repeated.
    pub(in crate::runtime) fn detach(
        &self,
        sandbox: &SandboxId,
        netns: Option<&str>,
    ) -> Result<(), NetworkError> {
        match self.records.one(sandbox)? {
            Some(record) if record.cni.is_some() => self.detach_locked(&record, netns),
            Some(_) => {
                let _lock = self.records.lock()?;
                // Read again under the lock: it may have changed while waiting.
                self.records.one(sandbox)?.map_or(Ok(()), |record| self.detach_locked(&record, netns))
            }
            None => Ok(()),
        }
    }

    /// After a restart: removes sandboxes that are not in `live`, and rebuilds the rules for the others.
    /// Continues after errors.
    pub(in crate::runtime) fn recover(&self, live: &[SandboxId]) -> Vec<NetworkError> {
        let _lock = match self.records.lock() {
            Ok(lock) => lock,
            Err(error) => return vec![error.into()],
        };
        let (mut left, unreadable) = self.records.all();
        self.records.sweep(&unreadable);
        let mut errors: Vec<NetworkError> = unreadable.into_iter().map(Into::into).collect();
        let gone = |record: &&NetworkRecord| !live.contains(&record.sandbox);
        if left.iter().any(|record| gone(&record)) {
            for record in left.iter().filter(gone) {
                errors.extend(self.detach_locked(record, None).err());
            }
            (left, _) = self.records.all();
        }
        let on_bridge: Vec<&str> =
            left.iter().map(|record| record.veth.as_str()).filter(|veth| !veth.is_empty()).collect();
        let rebuilt = if on_bridge.is_empty() {
            self.remove_all()
        } else {
            bridge::ensure_bridge(&self.config, &self.ranges(&left))
                .and_then(|bridge| Ok(bridge::tidy(bridge.index, &on_bridge)?))
                .and_then(|()| self.apply_rules(&left))
        };
        errors.extend(rebuilt.err());
        errors
    }

    /// The addresses of an attached pod, the primary one first. `None` also when they are of a range that is
    /// no longer configured: such addresses get no rules, so the pod has to be recreated.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn addresses(&self, sandbox: &SandboxId) -> Option<Vec<IpAddr>> {
        let record = self.records.one(sandbox).ok()??;
        let is_ours = |ip: &IpAddr| self.config.subnets.iter().any(|subnet| subnet.contains(*ip));
        let valid = record.cni.is_some() || record.addresses.iter().all(is_ours);
        Some(record.addresses).filter(|addresses| valid && !addresses.is_empty())
    }

    /// The recorded addresses of a sandbox, the primary one first; `None` when it is not connected.
    pub(in crate::runtime) fn recorded(&self, sandbox: &SandboxId) -> Option<Vec<IpAddr>> {
        Some(self.records.one(sandbox).ok()??.addresses).filter(|addresses| !addresses.is_empty())
    }

    fn attach_to_bridge(&self, attachment: &Attachment) -> Result<Vec<IpAddr>, NetworkError> {
        let subnets = bridge::usable(&self.config.subnets);
        if subnets.is_empty() {
            return Err(NetworkError::NoSubnet);
        }
        let (mut records, _) = self.records.all();
        let record = self.plan(attachment, &subnets, &records)?;
        faults::step("write the record")?;
        self.records.write(&record)?;
        records.push(record.clone());
        match self.connect(&record, &records, &subnets, Path::new(&attachment.netns)) {
            Err(stopped @ NetworkError::Stopped(_)) => return Err(stopped),
            Err(error) => {
                self.undo(&record, None);
                return Err(error);
            }
            Ok(()) => {}
        }
        Ok(record.addresses)
    }

    fn attach_by_plugins(
        &self,
        attachment: &Attachment,
        list: cni::List,
    ) -> Result<Vec<IpAddr>, NetworkError> {
        let mut cni =
            CniRecord { list: list.into_value(), capabilities: cni::capabilities(attachment)?, result: None };
        let mut record = NetworkRecord {
            sandbox: attachment.sandbox.clone(),
            pod: attachment.pod.clone(),
            ..NetworkRecord::default()
        };
        record.cni = Some(cni.clone());
        self.records.prepare()?;
        faults::step("write the record")?;
        self.records.write(&record)?;
        bridge::loopback(Path::new(&attachment.netns))?;
        let subject =
            CniPod { sandbox: record.sandbox.as_str(), pod: &attachment.pod, netns: &attachment.netns };
        faults::step("run the plugins")?;
        let added = cni::add(&mut cni, subject, &self.config.cni_bin_dirs);
        faults::step("write the result")?;
        record.cni = Some(cni);
        let added = added.map_err(NetworkError::from).and_then(|addresses| {
            record.addresses = addresses;
            Ok(self.records.write(&record)?)
        });
        if let Err(error) = added {
            self.undo(&record, Some(&attachment.netns));
            return Err(error);
        }
        Ok(record.addresses)
    }

    /// Removes what a failed attempt left. What cannot be removed keeps its record.
    fn undo(&self, record: &NetworkRecord, netns: Option<&str>) {
        if let Err(error) = self.detach_locked(record, netns) {
            log::warn!(pod:% = record.pod, err = crate::platform::logging::chain(&error).as_str();
                "Failed to clean up pod network, retrying at the next start");
        }
    }

    /// Chooses addresses, name and ports; makes nothing yet.
    fn plan(
        &self,
        attachment: &Attachment,
        subnets: &[Subnet],
        others: &[NetworkRecord],
    ) -> Result<NetworkRecord, NetworkError> {
        let used: BTreeSet<IpAddr> =
            others.iter().flat_map(|record| record.addresses.iter().copied()).into_set();
        let last = self.records.last();
        let addresses = subnets
            .iter()
            .map(|subnet| subnet.next_free(&used, last.iter().copied().find(|ip| subnet.contains(*ip))))
            .collect::<Result<Vec<_>, _>>()?;
        let ports = host_ports(&attachment.ports)?;
        for port in &ports {
            if let Some(other) = others.iter().find(|record| record.ports.iter().any(|it| clash(it, port))) {
                return Err(port_error(port, format!("already used by pod {}", other.pod)));
            }
        }
        let veth = (0..VETH_SALTS)
            .map(|salt| bridge::veth_name(attachment.sandbox.as_str(), salt))
            .find(|name| others.iter().all(|record| record.veth != *name))
            .ok_or_else(|| NetworkError::NoName(attachment.sandbox.clone()))?;
        Ok(NetworkRecord {
            sandbox: attachment.sandbox.clone(),
            pod: attachment.pod.clone(),
            addresses,
            ranges: subnets.iter().map(ToString::to_string).collect(),
            ports,
            veth,
            cni: None,
        })
    }

    /// `records` are those of all attached pods, with this one.
    fn connect(
        &self,
        record: &NetworkRecord,
        records: &[NetworkRecord],
        subnets: &[Subnet],
        netns: &Path,
    ) -> Result<(), NetworkError> {
        faults::step("store the last address")?;
        self.records.set_last(&record.addresses)?;
        let bridge = bridge::ensure_bridge(&self.config, &self.ranges(records))?;
        let addresses = record.addresses.iter().copied().zip(subnets.iter().copied()).collect();
        bridge::plug(bridge, &PodLink { veth: &record.veth, addresses }, netns)?;
        faults::step("create the rules")?;
        self.apply_rules(records)?;
        faults::step("flush old connections")?;
        forget_connections(record, |replier| !record.addresses.contains(&replier));
        Ok(())
    }

    fn detach_locked(&self, record: &NetworkRecord, netns: Option<&str>) -> Result<(), NetworkError> {
        if let Some(cni) = &record.cni {
            let netns = netns.filter(|path| Path::new(path).exists()).unwrap_or_default();
            let subject = CniPod { sandbox: record.sandbox.as_str(), pod: &record.pod, netns };
            cni::delete(cni, subject, &self.config.cni_bin_dirs)?;
            faults::step("delete the record")?;
            return Ok(self.records.remove(&record.sandbox)?);
        }
        let (mut left, _) = self.records.all();
        left.retain(|other| other.sandbox != record.sandbox && !other.veth.is_empty());
        faults::step("remove the pod's link")?;
        bridge::unplug(&record.veth)?;
        faults::step("remove its rules")?;
        if left.is_empty() {
            self.remove_all()?;
        } else {
            let used = self.ranges(&left);
            let unused = self.ranges(std::slice::from_ref(record));
            let unused: Vec<Subnet> = unused.into_iter().filter(|range| !used.contains(range)).collect();
            if !record.ports.is_empty() || !unused.is_empty() {
                self.apply_rules(&left)?;
            }
            if let (false, Some(bridge)) = (unused.is_empty(), bridge::find_bridge(&self.config.bridge)?) {
                bridge::drop_ranges(bridge, &unused)?;
            }
        }
        faults::step("flush connections to it")?;
        forget_connections(record, |replier| record.addresses.contains(&replier));
        faults::step("delete the record")?;
        Ok(self.records.remove(&record.sandbox)?)
    }

    /// Replaces the rules by those for these records, atomically.
    fn apply_rules(&self, records: &[NetworkRecord]) -> Result<(), NetworkError> {
        let subnets = self.ranges(records);
        let mut tables = rules::tables(&self.config.bridge, &subnets, records);
        let own = tables.len();
        tables.extend(rules::ipv6_guard(&self.config.bridge, &subnets).filter(|_| bridge::kernel_has_ipv6()));
        let mut replaced = nftables::replace(&tables, &self.applied);
        if tables.len() > own && replaced.as_ref().is_err_and(NetlinkError::is_unsupported) {
            // A kernel whose nf_tables lacks IPv6. The node's interfaces to pods have no IPv6 either.
            replaced = nftables::replace(&tables[..own], &self.applied);
        }
        match replaced {
            Err(error) if error.is_unsupported() => Err(NetworkError::NoRules(error)),
            other => Ok(other?),
        }
    }

    /// Removes bridge and rules; called when no pod uses them.
    fn remove_all(&self) -> Result<(), NetworkError> {
        if let Some(bridge) = bridge::find_bridge(&self.config.bridge)? {
            bridge::tidy(bridge, &[])?;
            bridge::remove_bridge(&self.config.bridge)?;
        }
        for family in [Family::Ipv4, Family::Ipv6] {
            match nftables::delete(family, &self.config.bridge) {
                Err(error) if error.is_unsupported() => {}
                other => other?,
            }
        }
        Ok(())
    }
}

/// UDP has no end that the kernel could see: the packets of a peer that keeps sending would continue to go to
/// the previous pod, or nowhere. A failure here is no reason to refuse a pod.
fn forget_connections(record: &NetworkRecord, mut stale: impl FnMut(IpAddr) -> bool) {
    let is_udp = |port: &&HostPort| port.protocol == "UDP";
    let ports: Vec<&HostPort> = record.ports.iter().filter(is_udp).collect();
    if ports.is_empty() {
        return;
    }
    let forgotten = conntrack::forget(|connection| {
        ports.iter().any(|port| {
            Some(connection.protocol) == rules::protocol_number(&port.protocol)
                && connection.port == port.host_port
                && stale(connection.replier)
        })
    });
    if let Err(error) = forgotten {
        log::debug!(pod:% = record.pod, err = crate::platform::logging::chain(&error).as_str();
            "Failed to flush old connections to host ports");
    }
}

/// The host ports in `mappings`, without duplicates.
fn host_ports(mappings: &[PortMapping]) -> Result<Vec<HostPort>, NetworkError> {
    let mut found: Vec<HostPort> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| mapping.host_port != 0) {
        let error = |problem: &str| NetworkError::Port {
            port: mapping.host_port,
            protocol: mapping.protocol.clone(),
            problem: problem.to_owned(),
        };
        let number = |port: i32| u16::try_from(port).ok().filter(|port| *port != 0);
        let host_ip = match mapping.host_ip.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| error(&format!("hostIP {text:?} is not an IP address")))?),
        };
        if host_ip.is_some_and(|ip: IpAddr| ip.is_ipv6() && ip.is_loopback()) {
            return Err(error(
                "hostIP ::1 is not supported, the kernel does not route from it; use 127.0.0.1",
            ));
        }
        if rules::protocol_number(&mapping.protocol).is_none() {
            return Err(error("the protocol must be TCP, UDP or SCTP"));
        }
        let port = HostPort {
            protocol: mapping.protocol.clone(),
            host_ip,
            host_port: number(mapping.host_port).ok_or_else(|| error("it must be 1 to 65535"))?,
            container_port: number(mapping.container_port)
                .ok_or_else(|| error("the container's port must be 1 to 65535"))?,
        };
        match found.iter().find(|other| clash(other, &port)) {
            Some(other) if *other == port => {}
            Some(_) => return Err(error("defined twice in the pod")),
            None => found.push(port),
        }
    }
    Ok(found)
}

/// Whether both would be the same entry of a map.
fn clash(one: &HostPort, other: &HostPort) -> bool {
    let families = |port: &HostPort| match port.host_ip {
        None => (true, true, None),
        Some(ip) if ip.is_unspecified() => (ip.is_ipv4(), ip.is_ipv6(), None),
        Some(ip) => (ip.is_ipv4(), ip.is_ipv6(), Some(ip)),
    };
    let (one_at, other_at) = (families(one), families(other));
    one.protocol == other.protocol
        && one.host_port == other.host_port
        && one_at.2 == other_at.2
        && (one_at.0 && other_at.0 || one_at.1 && other_at.1)
}

fn port_error(port: &HostPort, problem: String) -> NetworkError {
    NetworkError::Port { port: i32::from(port.host_port), protocol: port.protocol.clone(), problem }
}

#[cfg(test)]
pub(crate) mod tests;
