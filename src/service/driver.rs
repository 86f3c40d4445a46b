//! Keeps endpoints, rules and names as objects and pods say.
//!
//! Owns the generated objects, what has been put into force, and the DNS server. Woken by changes only; after a failure
//! also by a timer.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::dns::forward::{ForwardConfig, Forwarder};
use super::dns::{DnsServer, Names, PORT, Serving};
use super::kernel::{self, KernelNames, LinkConfig, Rules};
use super::slices::{OwnService, Writer, endpoints_object, own_service, own_slices, slice_objects};
use super::spec::{Protocol, ServiceSpec, ServiceType, Slice, family_of, mirrored, written_slice};
use super::table::{Claim, Conflict, Entry, Frontend, Frontends, NodeNetwork, Place, frontends, table};
use super::{claims, endpoints};
use crate::model::api::pod::{Pod, PodStatus};
use crate::model::cidr::Cidr;
use crate::model::objects::{LocalObject, LocalObjects, ObjectKey, ObjectKind, VersionedObject};
use crate::model::ordered::{Ordered as _, Sortable as _};
use crate::model::types::Timestamp;
use crate::platform::clock::Clock;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::rt::changes::Changes;
use crate::platform::rt::live::Live;
use crate::platform::sys::netlink::nftables::Family;
use crate::pod::events::{EventRecorder, EventType};
use crate::pod::executor::PodSettings;
use crate::pod::status::StatusManager;

/// After a failure of the kernel, or of a socket.
const RETRY: Duration = Duration::from_secs(30);
/// So long the rules of an earlier process stay without news of all its pods.
const INHERITED: Duration = Duration::from_secs(5);
/// Positions of the agent's own Services in their range.
const API: u64 = 1;
const DNS: u64 = 10;

pub struct ServiceConfig {
    pub(crate) names: KernelNames,
    /// Addresses of Services, one range per family.
    pub(crate) ranges: Vec<Cidr>,
    /// `clusterDomain`.
    pub(crate) domain: String,
    pub(crate) node_name: String,
    /// Where pods reach this node's API.
    pub(crate) api: Option<SocketAddr>,
    /// Addresses of pods of the built-in network; empty without one.
    pub(crate) pod_ranges: Vec<Cidr>,
    /// For `resolvConf`.
    pub(crate) pods: Live<PodSettings>,
    /// TCP ports of the agent.
    pub(crate) own_ports: Vec<u16>,
}

impl ServiceConfig {
    /// The address of the Service `kubernetes`. As in a cluster it is of one family.
    #[must_use]
    pub(crate) fn api_addresses(ranges: &[Cidr]) -> Vec<IpAddr> {
        ranges.iter().take(1).filter_map(|range| range.at(API)).collect()
    }

    /// The addresses of the DNS server.
    #[must_use]
    pub(crate) fn dns_addresses(ranges: &[Cidr]) -> Vec<IpAddr> {
        ranges.iter().filter_map(|range| range.at(DNS)).collect()
    }
}

pub struct ServiceParts {
    pub(crate) objects: Rc<LocalObjects>,
    pub(crate) statuses: Rc<StatusManager>,
    pub(crate) events: EventRecorder,
    pub(crate) clock: Clock,
    /// Changes when objects do.
    pub(crate) changed: watch::Receiver<u64>,
    /// To be called when generated objects have changed.
    pub(crate) notify: Rc<dyn Fn()>,
    /// Shows why Services do not work, or that they do. True for news.
    pub(crate) report: Rc<Report>,
}

/// Takes why something does not work, or that it does. True for news.
pub(crate) type Report = dyn Fn(Option<&str>) -> bool;

pub struct Driver {
    config: ServiceConfig,
    parts: ServiceParts,
    started: Timestamp,
    names: Rc<Names>,
    server: Rc<DnsServer>,
    serving: Option<Serving>,
    /// The agent's own Services, which stay the same.
    own: Vec<Rc<Entry>>,
    services: BTreeMap<ObjectKey, (u64, Rc<ServiceSpec>)>,
    shown: BTreeMap<ObjectKey, Shown>,
    /// What is in force; `None` when nothing is, or it is not known.
    in_force: Option<InForce>,
    /// Nothing is there that could be removed.
    is_clear: bool,
    /// Rules of an earlier process are in force.
    inherits: bool,
    /// Networks of the node in the range, as they were last reported.
    overlaps: Vec<String>,
    reported: BTreeSet<Conflict>,
    /// Uids of pods and their host ports.
    reported_pods: BTreeSet<Claim>,
}

/// A Service with its generated objects.
struct Shown {
    entry: Rc<Entry>,
    writer: Option<Writer>,
    objects: BTreeMap<ObjectKey, Rc<LocalObject>>,
}

#[derive(Clone, PartialEq)]
struct InForce {
    frontends: Vec<(Family, Frontends)>,
    node: NodeNetwork,
}

/// What was found at one time.
struct Wanted {
    entries: Vec<(Rc<Entry>, Option<Writer>)>,
    node: NodeNetwork,
    is_used: bool,
}

impl Driver {
    #[must_use]
    pub(crate) fn new(config: ServiceConfig, parts: ServiceParts) -> Self {
        let own = ServiceConfig::dns_addresses(&config.ranges);
        let names = Rc::new(Names {
            domain: config.domain.to_ascii_lowercase(),
            ranges: config.ranges.clone(),
            entries: RefCell::default(),
            foreign_pods: RefCell::default(),
            pod_ranges: config.pod_ranges.clone(),
        });
        let forward = ForwardConfig::new(config.pods.clone(), own);
        let server = DnsServer::new(Rc::clone(&names), Forwarder::new(forward, parts.clock.clone()));
        let mut driver = Self {
            started: parts.clock.now(),
            config,
            parts,
            names,
            server,
            serving: None,
            own: Vec::new(),
            services: BTreeMap::new(),
            shown: BTreeMap::new(),
            in_force: None,
            is_clear: false,
            inherits: false,
            overlaps: Vec::new(),
            reported: BTreeSet::new(),
            reported_pods: BTreeSet::new(),
        };
        driver.own = driver.own_entries();
        driver
    }

    /// Before the first pod starts after a boot: Services have their rules, and refuse connections until they have
    /// endpoints. The rules of an earlier process stay: its pods are not known yet.
    pub(crate) async fn prepare(&mut self, has_pods: bool) {
        let wanted = self.wanted();
        self.publish(&wanted);
        let (names, families) = (self.config.names.clone(), self.families());
        let has_rules =
            rt::blocking("look for rules of Services", move || kernel::has_rules(&names, &families)).await;
        self.inherits = has_rules;
        if !has_rules && (has_pods || wanted.is_used) {
            // A failure is reported by the first sync.
            let _ = self.enforce(wanted.node).await;
        }
    }

    /// Runs from when the pods of earlier processes are known. Cancel safe: what is in force is read from the kernel.
    pub(crate) async fn run(mut self, restored: impl Future<Output = ()>) {
        restored.await;
        let mut changes = Changes(vec![self.parts.changed.clone(), self.parts.statuses.watch()]);
        if self.inherits {
            self.settle(&mut changes).await;
        }
        loop {
            let retry = if self.sync().await { None } else { Some(Instant::now() + RETRY) };
            tokio::select! {
                biased;
                // Dropping these is safe: a change stays until it is read, the time until it has come.
                () = changes.next() => {}
                () = until(retry) => {}
            }
        }
    }

    /// Stored statuses may be older than the rules; with them, pods would lose their connections and clients their pods.
    async fn settle(&self, changes: &mut Changes) {
        let settled = async {
            while self.parts.statuses.is_behind() {
                changes.next().await;
            }
        };
        let _ = tokio::time::timeout(INHERITED, settled).await;
    }

    /// False: it has to be tried again.
    async fn sync(&mut self) -> bool {
        let wanted = self.wanted();
        self.publish(&wanted);
        let result = if wanted.is_used { self.enforce(wanted.node).await } else { self.clear().await };
        let trouble = result.as_ref().err().map(String::as_str);
        let is_news = (self.parts.report)(trouble);
        if let Some(trouble) = trouble.filter(|_| is_news) {
            log::error!(err = trouble; "Failed to set up Services, retrying");
        }
        trouble.is_none()
    }

    fn wanted(&mut self) -> Wanted {
        let kinds = [ObjectKind::Service, ObjectKind::EndpointSlice, ObjectKind::Endpoints];
        let objects: Vec<VersionedObject> =
            kinds.into_iter().flat_map(|kind| self.parts.objects.written(kind)).collect();
        let mut services = self.services_of(&objects);
        services.order_by(|one, other| {
            (one.created, &one.namespace, &one.name).cmp(&(other.created, &other.namespace, &other.name))
        });
        let statuses = Rc::clone(&self.parts.statuses);
        statuses.with_pods(|pods| {
            let mut entries: Vec<(Rc<Entry>, Option<Writer>)> =
                self.own.iter().map(|entry| (Rc::clone(entry), Some(Writer::Agent))).collect();
            let own = entries.len();
            entries.extend(services.iter().map(|service| {
                let (slices, writer) = behind(service, &objects, pods);
                (Rc::new(Entry { service: Rc::clone(service), slices }), writer)
            }));
            let foreign = pods.iter().flat_map(|(pod, status)| self.foreign(pod, status)).into_set();
            let node = NodeNetwork {
                table: self.config.names.table.clone(),
                link: self.config.names.link.clone(),
                ranges: self.config.ranges.clone(),
                claimed: claims::claimed(&services, pods, &self.config.own_ports),
                routes_loopback: foreign.is_empty() && !self.config.pod_ranges.is_empty(),
                foreign_pods: foreign,
            };
            self.report_late_pods(&services, pods);
            let is_used = entries.len() > own || pods.iter().any(|(pod, _)| uses_dns(pod));
            Wanted { entries, node, is_used }
        })
    }

    /// Written Services, without those that have the name of one of the agent's own.
    fn services_of(&mut self, objects: &[VersionedObject]) -> Vec<Rc<ServiceSpec>> {
        let own = self.own_services().map(|own| (own.namespace, own.name));
        let is_written = |key: &ObjectKey| {
            key.kind == ObjectKind::Service && !own.contains(&(key.namespace.as_str(), key.name.as_str()))
        };
        let mut known = std::mem::take(&mut self.services);
        let mut services = Vec::new();
        for found in objects.iter().filter(|found| is_written(&found.object.key)) {
            let service = match known.remove(&found.object.key) {
                Some((version, service)) if version == found.version => service,
                _ => Rc::new(ServiceSpec::read(&found.object)),
            };
            self.services.insert(found.object.key.clone(), (found.version, Rc::clone(&service)));
            services.push(service);
        }
        services
    }

    /// The agent's own Services: the API, and the DNS server.
    fn own_services(&self) -> [OwnService; 2] {
        let ranges = &self.config.ranges;
        let api = OwnService {
            namespace: "default",
            name: "kubernetes",
            labels: &[("component", "apiserver"), ("provider", "kubernetes")],
            addresses: ServiceConfig::api_addresses(ranges),
            created: self.started,
            ports: vec![("https", Protocol::Tcp, 443)],
        };
        let dns = OwnService {
            namespace: "kube-system",
            name: "kube-dns",
            labels: &[
                ("k8s-app", "kube-dns"),
                ("kubernetes.io/cluster-service", "true"),
                ("kubernetes.io/name", "CoreDNS"),
            ],
            addresses: ServiceConfig::dns_addresses(ranges),
            created: self.started,
            ports: vec![("dns", Protocol::Udp, 53), ("dns-tcp", Protocol::Tcp, 53)],
        };
        [api, dns]
    }

    fn own_entries(&self) -> Vec<Rc<Entry>> {
        let entry = |own: &OwnService, targets: &[SocketAddr]| {
            let service = ServiceSpec::read(&own_service(own));
            Rc::new(Entry { slices: own_slices(own, &service, targets), service: Rc::new(service) })
        };
        let [api, dns] = self.own_services();
        let server: Vec<SocketAddr> = dns.addresses.iter().map(|ip| SocketAddr::new(*ip, PORT)).collect();
        let api_targets: Vec<SocketAddr> = self.config.api.into_iter().collect();
        vec![entry(&api, &api_targets), entry(&dns, &server)]
    }

    /// The addresses of a pod that is not in the built-in network.
    fn foreign(&self, pod: &Pod, status: &PodStatus) -> Vec<IpAddr> {
        if pod.spec.host_network {
            return Vec::new();
        }
        let ips = status.pod_ips.iter().filter_map(|ip| ip.ip.parse::<IpAddr>().ok());
        ips.filter(|ip| !self.config.pod_ranges.iter().any(|range| range.contains(*ip))).collect()
    }

    /// Shows readers the endpoints, and the DNS server its names.
    fn publish(&mut self, wanted: &Wanted) {
        let mut before = std::mem::take(&mut self.shown);
        let (mut generated, mut entries) = (BTreeMap::new(), Vec::new());
        let mut changed = false;
        for (entry, writer) in &wanted.entries {
            let ServiceSpec { namespace, name, .. } = &*entry.service;
            let key =
                ObjectKey { kind: ObjectKind::Service, namespace: namespace.clone(), name: name.clone() };
            // A second one would be a change each time.
            if self.shown.contains_key(&key) {
                continue;
            }
            let known = before.remove(&key).filter(|known| known.entry == *entry && known.writer == *writer);
            let shown = known.unwrap_or_else(|| {
                changed = true;
                let objects = self.objects_of(entry, *writer);
                Shown { entry: Rc::clone(entry), writer: *writer, objects }
            });
            generated.extend(shown.objects.iter().map(|(key, object)| (key.clone(), Rc::clone(object))));
            entries.push(Rc::clone(&shown.entry));
            self.shown.insert(key, shown);
        }
        *self.names.foreign_pods.borrow_mut() = Rc::new(wanted.node.foreign_pods.clone());
        if changed || !before.is_empty() {
            *self.names.entries.borrow_mut() = Rc::new(entries);
            self.parts.objects.set_generated(generated);
            (self.parts.notify)();
        }
    }

    fn objects_of(&self, entry: &Entry, writer: Option<Writer>) -> BTreeMap<ObjectKey, Rc<LocalObject>> {
        let Entry { service, slices } = entry;
        let Some(writer) = writer else { return BTreeMap::new() };
        let node = &self.config.node_name;
        let mut objects = slice_objects(service, slices, writer, node);
        if writer == Writer::Agent {
            let own = self
                .own_services()
                .into_iter()
                .find(|own| own.name == service.name)
                .map(|own| own_service(&own));
            objects.extend(own.map(|own| (own.key.clone(), Rc::new(own))));
        }
        if writer != Writer::Mirror {
            objects.extend([endpoints_object(service, slices, node)]);
        }
        objects
    }

    fn families(&self) -> Vec<Family> {
        self.config.ranges.iter().map(|range| family_of(range.network())).collect()
    }

    /// Another program may have removed what is in force.
    async fn forget_what_is_gone(&mut self) {
        if self.in_force.is_none() {
            return;
        }
        let (names, families) = (self.config.names.clone(), self.families());
        let look = move || kernel::is_intact(&names, &families);
        if !rt::blocking("look for link and rules of Services", look).await {
            self.in_force = None;
        }
    }

    async fn enforce(&mut self, node: NodeNetwork) -> Result<(), String> {
        self.is_clear = false;
        self.forget_what_is_gone().await;
        let entries = Rc::clone(&self.names.entries.borrow());
        let families = self.families();
        let of = |family: &Family| (*family, frontends(*family, &entries, &node));
        let wanted = InForce { frontends: families.iter().map(of).collect(), node };
        self.report_conflicts(&wanted.frontends);
        let mut trouble = None;
        if self.in_force.as_ref() != Some(&wanted) {
            let before = self.in_force.take();
            let dns = ServiceConfig::dns_addresses(&self.config.ranges);
            let link = LinkConfig {
                name: self.config.names.link.clone(),
                ranges: self.config.ranges.clone(),
                addresses: dns,
            };
            let rules = wanted.frontends.iter().map(|(family, frontends)| Rules {
                family: *family,
                table: table(*family, frontends, &wanted.node),
                frontends: frontends.clone(),
            });
            let rules: Vec<Rules> = rules.collect();
            let changed = changed_places(before.as_ref(), &wanted);
            let table = self.config.names.table.clone();
            let done = rt::blocking("set up Services", move || put(&link, &table, &rules, &changed)).await?;
            for other in done.overlaps.iter().filter(|other| !self.overlaps.contains(other)) {
                log::warn!(range = shown(&self.config.ranges), other = other.as_str();
                    "The range of Services overlaps with a network of this node; set --service-cidr to a free range");
            }
            self.overlaps = done.overlaps;
            trouble = done.trouble;
            // What has failed is tried again with all that it belongs to.
            self.in_force = Some(wanted).filter(|_| trouble.is_none());
        }
        if self.serving.is_none() {
            let listening = self.server.listen(&ServiceConfig::dns_addresses(&self.config.ranges)).await;
            self.serving = Some(listening.map_err(|(at, error)| format!("DNS server at {at}: {error}"))?);
        }
        trouble.map_or(Ok(()), Err)
    }

    /// Nothing is left when there is neither a Service nor a pod that could use one.
    async fn clear(&mut self) -> Result<(), String> {
        if std::mem::replace(&mut self.is_clear, true) {
            return Ok(());
        }
        self.serving = None;
        self.in_force = None;
        let names = self.config.names.clone();
        let removed = rt::blocking("remove Services", move || remove_if_present(&names)).await;
        self.is_clear = removed.is_ok();
        removed
    }

    fn report_late_pods(&mut self, services: &[Rc<ServiceSpec>], pods: &[(&Pod, &PodStatus)]) {
        let mut late = BTreeSet::new();
        for (pod, protocol, port, service) in claims::late_pods(services, pods) {
            let claim = (pod.metadata.uid.to_string(), protocol, port);
            if !self.reported_pods.contains(&claim) {
                let message = format!(
                    "host port {port} ({}): Service {service} has it, and gets its connections; use another hostPort",
                    protocol.as_str()
                );
                let pod = pod.pod_ref();
                self.parts.events.event(&pod, None, EventType::Warning, "HostPortConflict", &message);
            }
            late.insert(claim);
        }
        self.reported_pods = late;
    }

    fn report_conflicts(&mut self, found: &[(Family, Frontends)]) {
        let conflicts: BTreeSet<Conflict> =
            found.iter().flat_map(|(_, frontends)| frontends.conflicts.iter().cloned()).into_set();
        for conflict in conflicts.difference(&self.reported) {
            let Conflict { namespace, service, uid, protocol, port } = conflict;
            let message = format!(
                "Port {port}/{} of the node is already allocated; free it, or give the Service another port",
                protocol.as_str()
            );
            let key =
                ObjectKey { kind: ObjectKind::Service, namespace: namespace.clone(), name: service.clone() };
            self.parts.events.object_event(&key, uid, EventType::Warning, "PortAlreadyAllocated", &message);
        }
        self.reported = conflicts;
    }
}

/// What is behind a Service, and who writes its slices; `None`: users do.
fn behind(
    service: &ServiceSpec,
    objects: &[VersionedObject],
    pods: &[(&Pod, &PodStatus)],
) -> (Vec<Slice>, Option<Writer>) {
    if service.kind == ServiceType::ExternalName {
        return (Vec::new(), None);
    }
    if service.selector.is_some() {
        return (endpoints::slices(service, pods), Some(Writer::Selector));
    }
    let of_service =
        objects.iter().map(|found| &found.object).filter(|it| it.key.namespace == service.namespace);
    let mut slices = Vec::new();
    let mut by_hand = None;
    for object in of_service {
        match object.key.kind {
            ObjectKind::EndpointSlice => {
                let named = written_slice(object).filter(|(name, _)| *name == service.name);
                slices.extend(named.map(|(_, slice)| slice));
            }
            ObjectKind::Endpoints if object.key.name == service.name => {
                by_hand = Some(mirrored(&object.content.body()));
            }
            _ => {}
        }
    }
    match by_hand {
        Some(mirrored) if slices.is_empty() => (mirrored, Some(Writer::Mirror)),
        _ => (slices, None),
    }
}

/// The pod's resolv.conf names the server.
fn uses_dns(pod: &Pod) -> bool {
    match pod.spec.dns_policy.as_str() {
        "None" | "Default" => false,
        "ClusterFirstWithHostNet" => true,
        _ => !pod.spec.host_network,
    }
}

/// UDP frontends with other targets than before; of the ones that are gone without any.
fn changed_places(before: Option<&InForce>, wanted: &InForce) -> BTreeMap<Place, Frontend> {
    let places = |of: &InForce| -> BTreeMap<Place, Frontend> {
        let all = of.frontends.iter().flat_map(|(_, frontends)| &frontends.places);
        let udp = all.filter(|(place, _)| {
            matches!(place, Place::Address(_, Protocol::Udp, _) | Place::Node(Protocol::Udp, _))
        });
        udp.map(|(place, frontend)| (*place, frontend.clone())).into_map()
    };
    let (was, mut changed) = (before.map(places).unwrap_or_default(), places(wanted));
    for (place, old) in was {
        match changed.get(&place) {
            Some(new) if new.targets == old.targets => drop(changed.remove(&place)),
            Some(_) => {}
            None => drop(changed.insert(place, Frontend::default())),
        }
    }
    changed
}

/// What is known after the rules have been put into force.
struct Done {
    /// Networks of the node in the range.
    overlaps: Vec<String>,
    /// Why connections of earlier rules may still go where those led.
    trouble: Option<String>,
}

fn put(
    link: &LinkConfig,
    table: &str,
    rules: &[Rules],
    changed: &BTreeMap<Place, Frontend>,
) -> Result<Done, String> {
    let error = |error: &dyn std::error::Error| chain(error);
    let overlaps = kernel::ensure_link(link).map_err(|it| error(&it))?;
    let families: Vec<Family> = rules.iter().map(|rules| rules.family).collect();
    kernel::remove_others(table, &families).map_err(|it| error(&it))?;
    let tables = rules.iter().map(|rules| rules.table.clone()).collect();
    kernel::apply(tables).map_err(|it| error(&it))?;
    let remote = rules.iter().filter(|rules| rules.frontends.has_remote()).map(|rules| rules.family);
    kernel::forward(&remote.collect::<Vec<_>>()).map_err(|it| error(&it))?;
    // The rules are in force: what follows concerns connections of earlier ones only.
    let clients = kernel::forget_clients(rules);
    let connections = if changed.is_empty() { Ok(()) } else { kernel::forget_connections(changed) };
    let failure = clients.and(connections).err().filter(|failure| !failure.is_unsupported());
    let trouble = failure.map(|failure| format!("forget connections of earlier rules: {}", error(&failure)));
    Ok(Done { overlaps, trouble })
}

/// What an earlier process, or this one, has left.
pub(crate) fn remove_if_present(names: &KernelNames) -> Result<(), String> {
    if kernel::is_present(names) { kernel::remove_all(names).map_err(|error| chain(&error)) } else { Ok(()) }
}

fn shown(ranges: &[Cidr]) -> String {
    ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
