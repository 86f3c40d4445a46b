//! The configurations of kubelets and of kube-proxy as kubeadm writes them: the user's document, its own defaults, and
//! every field that their types always have.
//!
//! Pure: documents in, documents out.

use serde_json::{Value, json};

use super::super::Paths;
use super::{ApiEndpoint, ClusterConfig, path};

/// A field of a document, the value that kubeadm wants, and whether another value deserves a warning.
struct Wanted<'a>(&'a [&'a str], Value, bool);

/// Fills in what kubeadm wants. The user's values stay, except those without a warning, which are replaced.
fn apply(document: &mut Value, kind: &str, wanted: Vec<Wanted<'_>>, warnings: &mut Vec<String>) {
    for Wanted(names, value, warns) in wanted {
        let mut place = &mut *document;
        for name in names {
            if !place.is_object() {
                *place = json!({});
            }
            place = &mut place[*name];
        }
        let is_empty = place.is_null() || *place == json!("") || *place == json!([]);
        if is_empty || !warns {
            *place = value;
        } else if *place != value {
            warnings.push(format!(
                "The recommended value for {:?} in {kind:?} is: {value}; the provided value is: {place}",
                names.join(".")
            ));
        }
    }
}

/// KubeletConfiguration for all nodes: what belongs to one node is added on it.
pub(super) fn kubelet(
    given: &Value,
    cluster: &ClusterConfig,
    paths: &Paths,
    warnings: &mut Vec<String>,
) -> Value {
    let mut document = given.clone();
    let dns =
        cluster.service_address(10).map_or_else(|| "10.96.0.10".to_owned(), |address| address.to_string());
    let wanted = vec![
        Wanted(&["staticPodPath"], json!(path(&paths.manifests())), true),
        Wanted(&["clusterDNS"], json!([dns]), true),
        Wanted(&["clusterDomain"], json!(cluster.dns_domain), true),
        Wanted(&["authentication", "x509", "clientCAFile"], json!(path(&cluster.cert("ca", "crt"))), true),
        Wanted(&["authentication", "anonymous", "enabled"], json!(false), true),
        Wanted(&["authentication", "webhook", "enabled"], json!(true), true),
        Wanted(&["authorization", "mode"], json!("Webhook"), true),
        Wanted(&["healthzBindAddress"], json!("127.0.0.1"), true),
        Wanted(&["healthzPort"], json!(10248), true),
        Wanted(&["rotateCertificates"], json!(true), false),
    ];
    apply(&mut document, "KubeletConfiguration", wanted, warnings);
    if document["readOnlyPort"].as_i64().is_some_and(|port| port != 0) {
        warnings.push(format!(
            "The recommended value for \"readOnlyPort\" in \"KubeletConfiguration\" is: 0; the provided value is: {}",
            document["readOnlyPort"]
        ));
    }
    if document["cgroupDriver"].as_str().unwrap_or_default().is_empty() {
        document["cgroupDriver"] = json!("systemd");
    }
    under(&mut document, &kubelet_type());
    document
}

pub(super) fn kube_proxy(
    given: &Value,
    cluster: &ClusterConfig,
    endpoint: &ApiEndpoint,
    warnings: &mut Vec<String>,
) -> Value {
    let mut document = given.clone();
    let any = if endpoint.advertise_address.is_ipv6() { "::" } else { "0.0.0.0" };
    let kubeconfig = json!("/var/lib/kube-proxy/kubeconfig.conf");
    let mut wanted = vec![
        Wanted(&["bindAddress"], json!(any), true),
        Wanted(&["clientConnection", "kubeconfig"], kubeconfig, true),
    ];
    if !cluster.pod_subnet.is_empty() {
        wanted.push(Wanted(&["clusterCIDR"], json!(cluster.pod_subnet), true));
    }
    apply(&mut document, "KubeProxyConfiguration", wanted, warnings);
    under(&mut document, &kube_proxy_type());
    document
}

/// Adds the members of `base` that are missing.
pub(super) fn under(value: &mut Value, base: &Value) {
    let (Value::Object(members), Value::Object(base)) = (value, base) else { return };
    for (name, default) in base {
        under(members.entry(name.as_str()).or_insert_with(|| default.clone()), default);
    }
}

const DURATIONS: &str = "cpuManagerReconcilePeriod evictionPressureTransitionPeriod fileCheckFrequency \
                             httpCheckFrequency imageMaximumGCAge imageMinimumGCAge nodeStatusReportFrequency \
                             nodeStatusUpdateFrequency runtimeRequestTimeout shutdownGracePeriod \
                             shutdownGracePeriodCriticalPods streamingConnectionIdleTimeout syncFrequency \
                             volumeStatsAggPeriod";

/// The fields of the type that are always written, with Go's zero values.
fn kubelet_type() -> Value {
    let mut fields = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": { "webhook": { "cacheTTL": "0s" } },
        "authorization": { "webhook": { "cacheAuthorizedTTL": "0s", "cacheUnauthorizedTTL": "0s" } },
        "containerRuntimeEndpoint": "",
        "crashLoopBackOff": {},
        "logging": logging(),
        "memorySwap": {},
    });
    for name in DURATIONS.split_whitespace() {
        fields[name] = json!("0s");
    }
    fields
}

fn logging() -> Value {
    json!({
        "flushFrequency": 0,
        "options": { "json": { "infoBufferSize": "0" }, "text": { "infoBufferSize": "0" } },
        "verbosity": 0,
    })
}

fn kube_proxy_type() -> Value {
    /// Objects, each with the kinds of its fields: empty text, zero, false, null, no time.
    const FIELDS: [(&str, &str); 8] = [
        (
            "",
            "bindAddressHardFail:f clusterCIDR:t configSyncPeriod:d detectLocalMode:t enableProfiling:f \
             healthzBindAddress:t hostnameOverride:t metricsBindAddress:t mode:t nodePortAddresses:n oomScoreAdj:n \
             portRange:t showHiddenMetricsForVersion:t",
        ),
        ("clientConnection", "acceptContentTypes:t burst:0 contentType:t qps:0"),
        (
            "conntrack",
            "maxPerCore:n min:n tcpBeLiberal:f tcpCloseWaitTimeout:n tcpEstablishedTimeout:n udpStreamTimeout:d \
             udpTimeout:d",
        ),
        ("detectLocal", "bridgeInterface:t interfaceNamePrefix:t"),
        ("iptables", "localhostNodePorts:n masqueradeAll:f masqueradeBit:n minSyncPeriod:d syncPeriod:d"),
        (
            "ipvs",
            "excludeCIDRs:n minSyncPeriod:d scheduler:t strictARP:f syncPeriod:d tcpFinTimeout:d tcpTimeout:d \
             udpTimeout:d",
        ),
        ("nftables", "masqueradeAll:f masqueradeBit:n minSyncPeriod:d syncPeriod:d"),
        ("winkernel", "enableDSR:f forwardHealthCheckVip:f networkName:t rootHnsEndpointName:t sourceVip:t"),
    ];
    let mut made = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "logging": logging(),
    });
    for (object, fields) in FIELDS {
        for (name, kind) in fields.split_whitespace().filter_map(|field| field.split_once(':')) {
            let value = match kind {
                "t" => json!(""),
                "f" => json!(false),
                "0" => json!(0),
                "d" => json!("0s"),
                _ => Value::Null,
            };
            if object.is_empty() {
                made[name] = value;
            } else {
                made[object][name] = value;
            }
        }
    }
    made
}
