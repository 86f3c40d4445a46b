//! The static pods of a control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.
//!
//! Pure: settings and facts of the host in, pods out.

use crate::model::ordered::Sortable as _;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Paths;
use super::config::{Argument, Component, Etcd, InitSettings, LocalEtcd, path};

pub(crate) const API_SERVER: &str = "kube-apiserver";
pub(crate) const CONTROLLER_MANAGER: &str = "kube-controller-manager";
pub(crate) const SCHEDULER: &str = "kube-scheduler";
pub(crate) const ETCD: &str = "etcd";
/// Where distributions keep the certificates that everybody trusts; those that exist are mounted.
pub(crate) const TRUST: [&str; 5] = [
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
];

/// What the pods take over from the host.
#[derive(Default)]
pub(crate) struct PodFacts {
    /// Those of [`TRUST`] that exist.
    pub trust: Vec<&'static str>,
    /// Variables that name a proxy.
    pub proxies: Vec<(String, String)>,
    /// The key of the cluster's authority is elsewhere.
    pub is_external_ca: bool,
}

/// A volume of the host at the same place in the container, unless the user says otherwise.
struct PodMount {
    name: String,
    host_path: String,
    place: String,
    kind: String,
    read_only: bool,
}

/// What differs between the pods.
struct PodSpec<'a> {
    name: &'a str,
    image: String,
    arguments: Vec<Argument>,
    mounts: Vec<PodMount>,
    env: BTreeMap<String, Value>,
    annotation: Option<(&'a str, String)>,
    cpu: &'a str,
    memory: &'a str,
    scheme: &'a str,
    host: String,
    port: u16,
    /// Paths of the probes: startup, liveness, readiness.
    probes: (&'a str, &'a str, &'a str),
}

/// The pod of a component.
pub(crate) fn pod(
    component: &str,
    settings: &InitSettings,
    paths: &Paths,
    facts: &PodFacts,
) -> Option<Value> {
    let spec = match component {
        API_SERVER => api_server(settings, facts),
        CONTROLLER_MANAGER => controller_manager(settings, paths, facts),
        SCHEDULER => scheduler(settings, paths, facts),
        _ => match &settings.cluster.etcd {
            Etcd::Local(local) => etcd(settings, local),
            Etcd::External(_) => return None,
        },
    };
    Some(render(&spec, settings))
}

/// Defaults in the order of their names, without those that the user sets, then the user's.
fn arguments(mut defaults: Vec<(&str, String)>, extra: &[Argument]) -> Vec<Argument> {
    defaults.order_by(Ord::cmp);
    let is_replaced = |name: &str| extra.iter().any(|(given, _)| given == name);
    let kept = defaults.into_iter().filter(|(name, _)| !is_replaced(name));
    kept.map(|(name, value)| (name.to_owned(), value)).chain(extra.iter().cloned()).collect()
}

/// The proxies of the host, and what the user adds.
fn variables(proxies: &[(String, String)], extra: &[Value]) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (name, value) in proxies {
        all.insert(name.clone(), json!({ "name": name, "value": value }));
    }
    for variable in extra {
        all.insert(variable["name"].as_str().unwrap_or_default().to_owned(), variable.clone());
    }
    all
}

fn same_place(name: &str, place: String, kind: &str, read_only: bool) -> PodMount {
    PodMount {
        name: name.to_owned(),
        place: place.clone(),
        host_path: place,
        kind: kind.to_owned(),
        read_only,
    }
}

/// Certificates of the cluster and of the system.
fn certificates(settings: &InitSettings, facts: &PodFacts) -> Vec<PodMount> {
    let mut mounts = vec![
        same_place("k8s-certs", path(&settings.cluster.cert_dir), "DirectoryOrCreate", true),
        same_place("ca-certs", "/etc/ssl/certs".to_owned(), "DirectoryOrCreate", true),
    ];
    for place in &facts.trust {
        let name = place.trim_start_matches('/').replace('/', "-");
        mounts.push(same_place(&name, (*place).to_owned(), "DirectoryOrCreate", true));
    }
    mounts
}

/// Adds the user's volumes: one of the same name replaces another.
fn add_volumes(mounts: &mut Vec<PodMount>, component: &Component) {
    for extra in &component.volumes {
        mounts.retain(|mount| mount.name != extra.name);
        mounts.push(PodMount {
            name: extra.name.clone(),
            host_path: extra.host_path.clone(),
            place: extra.mount_path.clone(),
            kind: extra.path_type.clone(),
            read_only: extra.read_only,
        });
    }
}

fn api_server<'a>(settings: &InitSettings, facts: &PodFacts) -> PodSpec<'a> {
    let (cluster, endpoint) = (&settings.cluster, &settings.endpoint);
    let file = |base: &str, extension: &str| path(&cluster.cert(base, extension));
    let mut defaults = vec![
        ("advertise-address", endpoint.advertise_address.to_string()),
        ("allow-privileged", "true".to_owned()),
        ("client-ca-file", file("ca", "crt")),
        ("enable-admission-plugins", "NodeRestriction".to_owned()),
        ("enable-bootstrap-token-auth", "true".to_owned()),
        ("kubelet-client-certificate", file("apiserver-kubelet-client", "crt")),
        ("kubelet-client-key", file("apiserver-kubelet-client", "key")),
        ("kubelet-preferred-address-types", "InternalIP,ExternalIP,Hostname".to_owned()),
        ("proxy-client-cert-file", file("front-proxy-client", "crt")),
        ("proxy-client-key-file", file("front-proxy-client", "key")),
        ("requestheader-allowed-names", "front-proxy-client".to_owned()),
        ("requestheader-client-ca-file", file("front-proxy-ca", "crt")),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-".to_owned()),
        ("requestheader-group-headers", "X-Remote-Group".to_owned()),
        ("requestheader-username-headers", "X-Remote-User".to_owned()),
        ("secure-port", endpoint.bind_port.to_string()),
        ("service-account-issuer", format!("https://kubernetes.default.svc.{}", cluster.dns_domain)),
        ("service-account-key-file", file("sa", "pub")),
        ("service-account-signing-key-file", file("sa", "key")),
        ("service-cluster-ip-range", cluster.service_subnet.clone()),
        ("tls-cert-file", file("apiserver", "crt")),
        ("tls-private-key-file", file("apiserver", "key")),
    ];
    if cluster.api_server.argument("authorization-config").is_none() {
        defaults.push(("authorization-mode", "Node,RBAC".to_owned()));
    }
    let mut mounts = certificates(settings, facts);
    match &cluster.etcd {
        Etcd::Local(local) => {
            let own = if endpoint.advertise_address.is_ipv6() {
                "https://[::1]:2379"
            } else {
                "https://127.0.0.1:2379"
            };
            let servers = local.component.argument("advertise-client-urls").unwrap_or(own);
            defaults.push(("etcd-servers", servers.to_owned()));
            defaults.push(("etcd-cafile", file("etcd/ca", "crt")));
            defaults.push(("etcd-certfile", file("apiserver-etcd-client", "crt")));
            defaults.push(("etcd-keyfile", file("apiserver-etcd-client", "key")));
        }
        Etcd::External(external) => {
            defaults.push(("etcd-servers", external.endpoints.join(",")));
            let files = [
                ("etcd-cafile", &external.ca_file),
                ("etcd-certfile", &external.cert_file),
                ("etcd-keyfile", &external.key_file),
            ];
            let files = files.into_iter().filter(|(_, file)| !file.is_empty());
            let mut parents: Vec<PathBuf> = Vec::new();
            for (name, file) in files {
                defaults.push((name, file.clone()));
                let parent = Path::new(file).parent().unwrap_or(Path::new("/")).to_owned();
                let is_mounted = mounts.iter().any(|mount| parent.starts_with(&mount.host_path));
                if !is_mounted && !parents.contains(&parent) {
                    parents.push(parent);
                }
            }
            for (index, parent) in parents.iter().enumerate() {
                let name = format!("etcd-certs-{index}");
                mounts.push(same_place(&name, path(parent), "DirectoryOrCreate", true));
            }
        }
    }
    add_volumes(&mut mounts, &cluster.api_server);
    PodSpec {
        name: API_SERVER,
        image: cluster.image(API_SERVER),
        arguments: arguments(defaults, &cluster.api_server.args),
        mounts,
        env: variables(&facts.proxies, &cluster.api_server.envs),
        annotation: Some((
            "kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint",
            endpoint.authority(),
        )),
        cpu: "250m",
        memory: "",
        scheme: "HTTPS",
        host: probe_host(&endpoint.advertise_address.to_string()),
        port: endpoint.bind_port,
        probes: ("/livez", "/livez", "/readyz"),
    }
}

/// The unspecified addresses are left out: the kubelet takes the pod's then.
fn probe_host(address: &str) -> String {
    let is_any = address.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
    if is_any { String::new() } else { address.to_owned() }
}

fn controller_manager<'a>(settings: &InitSettings, paths: &Paths, facts: &PodFacts) -> PodSpec<'a> {
    let cluster = &settings.cluster;
    let component = &cluster.controller_manager;
    let kubeconfig = path(&paths.conf("controller-manager.conf"));
    let file = |base: &str, extension: &str| path(&cluster.cert(base, extension));
    let signs = |file: String| if facts.is_external_ca { String::new() } else { file };
    let mut defaults = vec![
        ("authentication-kubeconfig", kubeconfig.clone()),
        ("authorization-kubeconfig", kubeconfig.clone()),
        ("bind-address", "127.0.0.1".to_owned()),
        ("client-ca-file", file("ca", "crt")),
        ("cluster-name", cluster.name.clone()),
        ("cluster-signing-cert-file", signs(file("ca", "crt"))),
        ("cluster-signing-key-file", signs(file("ca", "key"))),
        ("controllers", "*,bootstrapsigner,tokencleaner".to_owned()),
        ("kubeconfig", kubeconfig.clone()),
        ("leader-elect", "true".to_owned()),
        ("requestheader-client-ca-file", file("front-proxy-ca", "crt")),
        ("root-ca-file", file("ca", "crt")),
        ("service-account-private-key-file", file("sa", "key")),
        ("use-service-account-credentials", "true".to_owned()),
    ];
    if !cluster.pod_subnet.is_empty() {
        defaults.push(("allocate-node-cidrs", "true".to_owned()));
        defaults.push(("cluster-cidr", cluster.pod_subnet.clone()));
        defaults.push(("service-cluster-ip-range", cluster.service_subnet.clone()));
    }
    let mut mounts = certificates(settings, facts);
    mounts.push(same_place("kubeconfig", kubeconfig, "FileOrCreate", true));
    add_volumes(&mut mounts, component);
    PodSpec {
        name: CONTROLLER_MANAGER,
        image: cluster.image(CONTROLLER_MANAGER),
        arguments: arguments(defaults, &component.args),
        mounts,
        env: variables(&facts.proxies, &component.envs),
        annotation: None,
        cpu: "200m",
        memory: "",
        scheme: "HTTPS",
        host: probe_host(component.argument("bind-address").unwrap_or("127.0.0.1")),
        port: 10257,
        probes: ("/healthz", "/healthz", ""),
    }
}

fn scheduler<'a>(settings: &InitSettings, paths: &Paths, facts: &PodFacts) -> PodSpec<'a> {
    let component = &settings.cluster.scheduler;
    let kubeconfig = path(&paths.conf("scheduler.conf"));
    let defaults = vec![
        ("authentication-kubeconfig", kubeconfig.clone()),
        ("authorization-kubeconfig", kubeconfig.clone()),
        ("bind-address", "127.0.0.1".to_owned()),
        ("kubeconfig", kubeconfig.clone()),
        ("leader-elect", "true".to_owned()),
    ];
    let mut mounts = vec![same_place("kubeconfig", kubeconfig, "FileOrCreate", true)];
    add_volumes(&mut mounts, component);
    PodSpec {
        name: SCHEDULER,
        image: settings.cluster.image(SCHEDULER),
        arguments: arguments(defaults, &component.args),
        mounts,
        env: variables(&facts.proxies, &component.envs),
        annotation: None,
        cpu: "100m",
        memory: "",
        scheme: "HTTPS",
        host: probe_host(component.argument("bind-address").unwrap_or("127.0.0.1")),
        port: 10259,
        probes: ("/livez", "/livez", "/readyz"),
    }
}

fn etcd<'a>(settings: &InitSettings, local: &LocalEtcd) -> PodSpec<'a> {
    let (cluster, node) = (&settings.cluster, &settings.node.name);
    let advertised = settings.endpoint.advertise_address;
    let url = |port: u16| format!("https://{}", std::net::SocketAddr::new(advertised, port));
    let loopback = if advertised.is_ipv6() { "[::1]" } else { "127.0.0.1" };
    let file = |base: &str, extension: &str| path(&cluster.cert(base, extension));
    let joins = !local.initial_cluster.is_empty();
    let own = format!("{node}={}", url(2380));
    let mut defaults = vec![
        ("advertise-client-urls", url(2379)),
        ("cert-file", file("etcd/server", "crt")),
        ("client-cert-auth", "true".to_owned()),
        ("data-dir", path(&local.data_dir)),
        ("feature-gates", "InitialCorruptCheck=true".to_owned()),
        ("initial-advertise-peer-urls", url(2380)),
        ("initial-cluster", if joins { local.initial_cluster.clone() } else { own }),
        ("key-file", file("etcd/server", "key")),
        ("listen-client-urls", format!("https://{loopback}:2379,{}", url(2379))),
        ("listen-metrics-urls", format!("http://{loopback}:2381")),
        ("listen-peer-urls", url(2380)),
        ("name", node.clone()),
        ("peer-cert-file", file("etcd/peer", "crt")),
        ("peer-client-cert-auth", "true".to_owned()),
        ("peer-key-file", file("etcd/peer", "key")),
        ("peer-trusted-ca-file", file("etcd/ca", "crt")),
        ("snapshot-count", "10000".to_owned()),
        ("trusted-ca-file", file("etcd/ca", "crt")),
        ("watch-progress-notify-interval", "5s".to_owned()),
    ];
    if joins {
        defaults.push(("initial-cluster-state", "existing".to_owned()));
    }
    let metrics = local.component.argument("listen-metrics-urls").and_then(|urls| urls.split(',').next());
    let (host, port) =
        metrics.and_then(probed).unwrap_or((loopback.trim_matches(['[', ']']).to_owned(), 2381));
    PodSpec {
        name: ETCD,
        image: cluster.etcd_image(),
        arguments: arguments(defaults, &local.component.args),
        mounts: vec![
            same_place("etcd-data", path(&local.data_dir), "DirectoryOrCreate", false),
            same_place("etcd-certs", path(&cluster.cert_dir.join("etcd")), "DirectoryOrCreate", false),
        ],
        env: variables(&[], &local.component.envs),
        annotation: Some(("kubeadm.kubernetes.io/etcd.advertise-client-urls", url(2379))),
        cpu: "100m",
        memory: "100Mi",
        scheme: "HTTP",
        host,
        port,
        probes: ("/readyz", "/livez", "/readyz"),
    }
}

/// Host and port of a URL.
fn probed(url: &str) -> Option<(String, u16)> {
    let (_, authority) = url.split_once("://")?;
    let (host, port) = super::config::checks::host_and_port(authority.split('/').next()?)?;
    Some((probe_host(host), port?))
}

fn render(spec: &PodSpec<'_>, settings: &InitSettings) -> Value {
    let mut command = vec![spec.name.to_owned()];
    command.extend(spec.arguments.iter().map(|(name, value)| format!("--{name}={value}")));
    // etcd's keep their order, as kubeadm's do.
    let mut mounts: Vec<&PodMount> = spec.mounts.iter().collect();
    let mount = |mount: &&PodMount| {
        let mut made = json!({ "mountPath": mount.place, "name": mount.name });
        if mount.read_only {
            made["readOnly"] = json!(true);
        }
        made
    };
    let in_order: Vec<Value> = mounts.iter().map(mount).collect();
    mounts.order_by(|one, other| one.name.cmp(&other.name));
    let volume = |mount: &&PodMount| json!({ "hostPath": { "path": mount.host_path, "type": mount.kind }, "name": mount.name });
    let by_name: Vec<Value> = mounts.iter().map(mount).collect();
    let mut requests = json!({ "cpu": spec.cpu });
    if !spec.memory.is_empty() {
        requests["memory"] = json!(spec.memory);
    }
    let mut container = json!({
        "command": command,
        "image": spec.image,
        "imagePullPolicy": "IfNotPresent",
        "name": spec.name,
        "ports": [{ "containerPort": spec.port, "name": "probe-port", "protocol": "TCP" }],
        "resources": { "requests": requests },
        "volumeMounts": if spec.name == ETCD { in_order } else { by_name },
    });
    let (startup, liveness, readiness) = spec.probes;
    let waits = settings.timeouts.control_plane.as_nanos();
    let tries = waits.div_euclid(10_000_000_000) + i64::from(waits.rem_euclid(10_000_000_000) > 0);
    for (kind, path, delay, period, threshold) in [
        ("startupProbe", startup, 10, 10, tries),
        ("livenessProbe", liveness, 10, 10, 8),
        ("readinessProbe", readiness, 0, 1, 3),
    ] {
        if !path.is_empty() {
            container[kind] = probe(spec, path, (delay, period, threshold));
        }
    }
    if !spec.env.is_empty() {
        container["env"] = spec.env.values().cloned().collect();
    }
    let mut metadata = json!({
        "labels": { "component": spec.name, "tier": "control-plane" },
        "name": spec.name,
        "namespace": "kube-system",
    });
    if let Some((name, value)) = &spec.annotation {
        metadata["annotations"] = json!({ *name: value });
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "containers": [container],
            "hostNetwork": true,
            "priority": 2_000_001_000,
            "priorityClassName": "system-node-critical",
            "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
            "volumes": mounts.iter().map(volume).collect::<Vec<_>>(),
        },
        "status": {},
    })
}

fn probe(spec: &PodSpec<'_>, path: &str, (delay, period, threshold): (i64, i64, i64)) -> Value {
    let mut get = json!({ "path": path, "port": "probe-port", "scheme": spec.scheme });
    if !spec.host.is_empty() {
        get["host"] = json!(spec.host);
    }
    let mut made = json!({
        "failureThreshold": threshold,
        "httpGet": get,
        "periodSeconds": period,
        "timeoutSeconds": 15,
    });
    if delay > 0 {
        made["initialDelaySeconds"] = json!(delay);
    }
    made
}

#[cfg(test)]
mod tests;
