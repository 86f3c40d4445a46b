//! Statistics and metrics: the data of each page, and the page.
//!
//! Owns which page needs which data, and which data is measured only on request.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Response, StatusCode};
use tokio::time::Instant;

use super::RELEASE;
use super::body::{Body, object, response};
use super::node::SharedNode;
use super::route::{Page, Refused, Route};
use crate::model::api::pod::Pod;
use crate::model::observed::{ContainerStateKind, ObservedContainer};
use crate::model::ordered::Ordered as _;
use crate::model::provenance::{CONFIG_SOURCE_ANNOTATION, is_from_api};
use crate::node::stats::machine::Process;
use crate::node::stats::pages::{MachineNames, cadvisor, resource};
use crate::node::stats::{Ask, Measured, wire};
use crate::node::usage::{FileSystem, Summary};
use crate::platform::metrics::MetricKind::{Counter, Gauge};
use crate::platform::metrics::{self, Family, Seconds, Text};
use crate::platform::sys::node::cgroup_v2;
use crate::pod::admission::rules::go_arch;

/// `/stats/summary`; `whole` adds network and disks.
pub(super) async fn summary(node: &SharedNode, whole: bool) -> Result<Response<Body>, (StatusCode, String)> {
    let ask = if whole { Ask::SUMMARY } else { Ask { pressure: true, ..Ask::CPU_AND_MEMORY } };
    let found = node.stats(ask).await.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error))?;
    Ok(object(StatusCode::OK, &wire::summary(&found, whole)))
}

pub(super) async fn page(node: &SharedNode, page: Page) -> Response<Body> {
    let page = match page {
        Page::Resource => resource(collect_summary(node, Ask::default()).await.as_ref()),
        Page::Cadvisor => {
            let ask = Ask { network: true, details: true, disks: Measured::Everything, ..Ask::default() };
            cadvisor(collect_summary(node, ask).await.as_ref(), &machine_names())
        }
        Page::Agent => agent(node).await,
        Page::Probes => recorded(&["prober_"]),
        Page::Slis => health(node),
    };
    response(StatusCode::OK, metrics::CONTENT_TYPE, Body::Whole(Full::new(Bytes::from(page))))
}

async fn collect_summary(node: &SharedNode, ask: Ask) -> Option<Summary> {
    match node.stats(ask).await {
        Ok(summary) => Some(summary),
        Err(error) => {
            log::warn!(err = error; "Failed to collect metrics");
            None
        }
    }
}

fn machine_names() -> MachineNames {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    MachineNames {
        boot_id: read("/proc/sys/kernel/random/boot_id"),
        machine_id: read("/etc/machine-id"),
        system_uuid: read("/sys/class/dmi/id/product_uuid"),
    }
}

fn recorded(prefixes: &[&str]) -> String {
    let mut text = Text::default();
    metrics::write_recorded(&mut text, prefixes);
    text.finish()
}

/// The labels of all three metrics.
const OF_REQUESTS: &[&str] = &["method", "path", "server_type", "long_running"];
static REQUESTS: Family =
    Family::counter("kubelet_http_requests_total", "Number of HTTP requests received", OF_REQUESTS);
static DURATION: Family = Family::seconds(
    "kubelet_http_requests_duration_seconds",
    "Duration in seconds to serve HTTP requests, excluding streams",
    OF_REQUESTS,
);
static IN_FLIGHT: Family =
    Family::gauge("kubelet_http_inflight_requests", "Number of inflight HTTP requests", OF_REQUESTS);
static HEALTH_CHECKS: Family = Family::counter(
    "kubernetes_healthchecks_total",
    "Number of health checks, by result",
    &["name", "status", "type"],
);

/// A request in progress. If it is dropped before `end`, the client gave up.
pub(super) struct Counted {
    values: Option<[&'static str; 4]>,
    began: Instant,
}

impl Counted {
    /// Begins one; `server_type` is empty where requests are not counted.
    pub(super) fn begin(method: &Method, route: &Result<Route, Refused>, server_type: &'static str) -> Self {
        let method = match *method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::HEAD => "HEAD",
            _ => "other",
        };
        let (path, is_long) = path(route);
        let long = if is_long { "true" } else { "false" };
        let values = (!server_type.is_empty()).then_some([method, path, server_type, long]);
        if let Some(values) = &values {
            metrics::count(&REQUESTS, values);
            metrics::add(&IN_FLIGHT, values, 1.0);
        }
        Self { values, began: Instant::now() }
    }

    /// The answer has begun; the duration of a stream is up to the client and is not measured.
    pub(super) fn end(self, is_stream: bool) {
        if let Some(values) = self.values.as_ref().filter(|_| !is_stream) {
            metrics::observe(&DURATION, values, self.began.elapsed());
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(values) = &self.values {
            metrics::add(&IN_FLIGHT, values, -1.0);
        }
    }
}

/// Upstream's first segment of the path, and whether such requests are long-running.
fn path(route: &Result<Route, Refused>) -> (&'static str, bool) {
    let Ok(route) = route else { return ("other", false) };
    match route {
        Route::Health(_) => ("healthz", false),
        Route::Pods => ("pods", false),
        Route::RunningPods => ("runningpods", false),
        Route::Verbosity => ("debug", false),
        Route::Configz => ("configz", false),
        Route::Flagz => ("flagz", false),
        Route::Statusz => ("statusz", false),
        Route::Summary { .. } => ("stats", false),
        Route::Metrics(Page::Agent) => ("metrics", false),
        Route::Metrics(Page::Resource) => ("metrics/resource", false),
        Route::Metrics(Page::Cadvisor) => ("metrics/cadvisor", false),
        Route::Metrics(Page::Probes) => ("metrics/probes", false),
        Route::Metrics(Page::Slis) => ("metrics/slis", false),
        Route::SystemLogs { .. } => ("logs", true),
        Route::ContainerLogs(..) => ("containerLogs", true),
        Route::Exec(..) => ("exec", true),
        Route::Attach(..) => ("attach", true),
        Route::PortForward(..) => ("portForward", true),
        Route::Run(..) => ("run", true),
        Route::Checkpoint(..) => ("checkpoint", false),
        Route::AgentStatus(_)
        | Route::AgentRestart(..)
        | Route::AcceptSource(_)
        | Route::LeaveCluster { .. } => ("other", false),
    }
}

/// Counts the result of a health check; `what` is the page that lists it.
pub(super) fn count_health(name: &str, is_well: bool, what: &str) {
    metrics::count(&HEALTH_CHECKS, &[name, if is_well { "success" } else { "error" }, what]);
}

/// `/metrics/slis`: health now, and the results of earlier checks.
fn health(node: &SharedNode) -> String {
    let mut text = Text::default();
    text.family(Gauge, "kubernetes_healthcheck", "Result of the health check, 1 if it passes");
    let (plugins, syncloop) = (node.plugin_health().is_ok(), node.loop_health().is_ok());
    for (name, is_well) in [("device-plugin", plugins), ("log", true), ("ping", true), ("syncloop", syncloop)]
    {
        text.sample(&[("name", name), ("type", "healthz")], &u8::from(is_well));
    }
    metrics::write_recorded(&mut text, &["kubernetes_"]);
    text.finish()
}

/// `/metrics`: the counters of this program, and the current state.
async fn agent(node: &SharedNode) -> String {
    let mut text = Text::default();
    text.family(Gauge, "kubernetes_build_info", "Version information, always 1");
    let platform = format!("linux/{}", go_arch(std::env::consts::ARCH));
    let labels = [
        ("build_date", "1970-01-01T00:00:00Z"),
        ("compiler", "rustc"),
        ("git_commit", ""),
        ("git_tree_state", ""),
        ("git_version", RELEASE),
        ("go_version", ""),
        ("major", "1"),
        ("minor", "36"),
        ("platform", &platform),
    ];
    text.sample(&labels, &1);
    text.family(Gauge, "kubelet_node_name", "Name of the node, always 1");
    text.sample(&[("node", node.name())], &1);
    text.family(Gauge, "kubelet_cgroup_version", "cgroup version of the host");
    text.sample(&[], &(if cgroup_v2() { 2 } else { 1 }));
    let containers = node.containers(None).await.ok();
    pods(&mut text, &node.pods(), containers.as_deref().unwrap_or_default());
    if let Some(containers) = &containers {
        running(&mut text, containers);
    }
    // Walks the directories of claims only.
    let ask = Ask { disks: Measured::Claims, ..Ask::default() };
    if let Some(summary) = collect_summary(node, ask).await {
        volumes(&mut text, &summary);
    }
    metrics::write_recorded(&mut text, &["kubelet_", super::tls::SHOWN]);
    process(&mut text);
    text.finish()
}

/// Upstream's label for the lifecycle of a pod.
fn lifecycle(pod: &Pod) -> &'static str {
    match pod.status.phase.as_str() {
        "Succeeded" | "Failed" => "terminated",
        _ if pod.metadata.deletion_timestamp.is_some() => "terminating",
        _ => "sync",
    }
}

/// Pods by origin and lifecycle, with upstream's labels: `static` is `true` for all but those of the API.
/// Each combination is present, even with zero.
fn pods(text: &mut Text, known: &[Pod], containers: &[ObservedContainer]) {
    type Is<'a> = &'a dyn Fn(&Pod) -> bool;
    // A terminating pod of a file or URL was removed there: an orphan. One of the API is desired until it is
    // gone.
    let config = |pod: &Pod| match (is_static(pod), pod.metadata.deletion_timestamp.is_some()) {
        (true, true) => "orphan",
        _ => "desired",
    };
    let label = |is_static: bool| if is_static { "true" } else { "" };
    let count = |of: bool, is_it: &dyn Fn(&Pod) -> bool| {
        known.iter().filter(|pod| is_static(pod) == of && is_it(pod)).count()
    };
    let wanted = |pod: &Pod| config(pod) == "desired";
    let active = |pod: &Pod| wanted(pod) && lifecycle(pod) != "terminated";
    let families: [(&'static str, &str, Is<'_>); 2] = [
        ("kubelet_desired_pods", "Number of desired pods", &wanted),
        ("kubelet_active_pods", "Number of active pods", &active),
    ];
    for (name, help, is_it) in families {
        text.family(Gauge, name, help);
        for of in [false, true] {
            text.sample(&[("static", label(of))], &count(of, is_it));
        }
    }
    text.family(Gauge, "kubelet_mirror_pods", "Number of mirror pods, one per admitted static pod");
    text.sample(&[], &count(true, &active));
    text.family(
        Gauge,
        "kubelet_working_pods",
        "Number of pods, by lifecycle phase and whether they are desired or orphaned",
    );
    for phase in ["sync", "terminating", "terminated"] {
        for place in ["desired", "orphan"] {
            for of in [false, true] {
                let number = count(of, &|pod| lifecycle(pod) == phase && config(pod) == place);
                text.sample(&[("lifecycle", phase), ("config", place), ("static", label(of))], &number);
            }
        }
        let labels = [("lifecycle", phase), ("config", "runtime_only"), ("static", "unknown")];
        text.sample(&labels, &if phase == "terminating" { runtime_only(known, containers) } else { 0 });
    }
}

/// Pods that only the runtime has, and that still run.
fn runtime_only(known: &[Pod], containers: &[ObservedContainer]) -> usize {
    let uids: BTreeSet<_> = known.iter().map(|pod| &pod.metadata.uid).into_set();
    let running = containers.iter().filter(|found| found.state == ContainerStateKind::Running);
    running.map(|found| &found.pod.uid).filter(|uid| !uids.contains(uid)).into_set().len()
}

fn is_static(pod: &Pod) -> bool {
    pod.metadata.annotations.contains_key(CONFIG_SOURCE_ANNOTATION) && !is_from_api(pod)
}

fn running(text: &mut Text, containers: &[ObservedContainer]) {
    let is_running = |found: &&ObservedContainer| found.state == ContainerStateKind::Running;
    let pods: BTreeSet<_> = containers.iter().filter(is_running).map(|found| &found.pod.uid).into_set();
    text.family(Gauge, "kubelet_running_pods", "Number of pods with a running container");
    text.sample(&[], &pods.len());
    text.family(Gauge, "kubelet_running_containers", "Number of containers, by state");
    for (name, state) in [
        ("created", ContainerStateKind::Created),
        ("exited", ContainerStateKind::Exited),
        ("running", ContainerStateKind::Running),
        ("unknown", ContainerStateKind::Unknown),
    ] {
        let number = containers.iter().filter(|found| found.state == state).count();
        text.sample(&[("container_state", name)], &number);
    }
}

fn volumes(text: &mut Text, summary: &Summary) {
    type Of = fn(&FileSystem) -> Option<u64>;
    let families: [(&'static str, &str, Of); 6] = [
        ("kubelet_volume_stats_capacity_bytes", "Capacity in bytes of the volume", |fs| {
            Some(fs.facts.capacity)
        }),
        ("kubelet_volume_stats_available_bytes", "Available bytes in the volume", |fs| {
            Some(fs.facts.available)
        }),
        ("kubelet_volume_stats_used_bytes", "Used bytes in the volume", |fs| fs.used),
        ("kubelet_volume_stats_inodes", "Maximum number of inodes in the volume", |fs| Some(fs.facts.inodes)),
        ("kubelet_volume_stats_inodes_free", "Free inodes in the volume", |fs| Some(fs.facts.inodes_free)),
        ("kubelet_volume_stats_inodes_used", "Used inodes in the volume", |fs| fs.inodes_used),
    ];
    // Pods may share a claim; it is shown once.
    let mut claims = BTreeMap::new();
    for pod in &summary.pods {
        for volume in &pod.volumes {
            if let Some(claim) = &volume.claim {
                claims.insert((pod.pod.namespace.as_str(), claim.as_str()), volume.fs);
            }
        }
    }
    for (name, help, of) in families {
        text.family(Gauge, name, help);
        for ((namespace, claim), fs) in &claims {
            if let Some(number) = of(fs) {
                text.sample(&[("namespace", namespace), ("persistentvolumeclaim", claim)], &number);
            }
        }
    }
    text.family(Gauge, "kubelet_container_log_filesystem_used_bytes", "Bytes used by the container's logs");
    for pod in &summary.pods {
        for container in &pod.containers {
            if let Some(used) = container.logs.and_then(|logs| logs.used) {
                let labels = [
                    ("uid", pod.pod.uid.as_str()),
                    ("namespace", &pod.pod.namespace),
                    ("pod", &pod.pod.name),
                    ("container", &container.name),
                ];
                text.sample(&labels, &used);
            }
        }
    }
}

/// This process's metrics, as Prometheus' client libraries export them.
fn process(text: &mut Text) {
    let process = Process::read(Path::new("/proc"));
    let cpu = process.cpu_ns.map(Seconds);
    let numbers = [
        ("process_open_fds", "Number of open file descriptors", process.open_files),
        ("process_max_fds", "Maximum number of open file descriptors", process.max_files),
        ("process_resident_memory_bytes", "Resident memory size in bytes", process.resident),
        ("process_virtual_memory_bytes", "Virtual memory size in bytes", process.address_space),
        ("process_start_time_seconds", "Start time since unix epoch in seconds", process.started_at),
    ];
    text.family(Counter, "process_cpu_seconds_total", "Total CPU time spent in seconds");
    if let Some(cpu) = cpu {
        text.sample(&[], &cpu);
    }
    for (name, help, number) in numbers {
        text.family(Gauge, name, help);
        if let Some(number) = number {
            text.sample(&[], &number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::types::Timestamp;

    #[test]
    fn pods_are_counted_by_source_and_place_in_life() {
        let pod = |name: &str, source: &str, phase: &str, goes: bool| {
            let mut pod = Pod::default();
            pod.metadata.uid = name.into();
            pod.metadata.annotations.insert(CONFIG_SOURCE_ANNOTATION.to_owned(), source.to_owned());
            pod.metadata.deletion_timestamp = goes.then(Timestamp::default);
            pod.status.phase = phase.to_owned();
            pod
        };
        let known = [
            pod("a", "file", "Running", false),
            pod("b", "http", "Succeeded", false),
            pod("c", "file", "Running", true),
            pod("d", "api", "Running", false),
            pod("e", "api", "Running", true),
        ];
        let mut text = Text::default();
        pods(&mut text, &known, &[]);
        let text = text.finish();
        let shown: Vec<&str> =
            text.lines().filter(|line| !line.starts_with('#') && !line.ends_with(" 0")).collect();
        assert_eq!(
            shown,
            [
                "kubelet_desired_pods{static=\"\"} 2",
                "kubelet_desired_pods{static=\"true\"} 2",
                "kubelet_active_pods{static=\"\"} 2",
                "kubelet_active_pods{static=\"true\"} 1",
                "kubelet_mirror_pods 1",
                "kubelet_working_pods{lifecycle=\"sync\",config=\"desired\",static=\"\"} 1",
                "kubelet_working_pods{lifecycle=\"sync\",config=\"desired\",static=\"true\"} 1",
                "kubelet_working_pods{lifecycle=\"terminating\",config=\"desired\",static=\"\"} 1",
                "kubelet_working_pods{lifecycle=\"terminating\",config=\"orphan\",static=\"true\"} 1",
                "kubelet_working_pods{lifecycle=\"terminated\",config=\"desired\",static=\"true\"} 1",
            ]
        );
        assert_eq!(text.lines().filter(|line| line.starts_with("kubelet_working_pods")).count(), 15);
    }

    #[test]
    fn requests_are_in_flight_until_they_are_answered_or_given_up() {
        let shown = || recorded(&["kubelet_http_"]);
        let begun = Counted::begin(&Method::GET, &Ok(Route::Pods), "readwrite");
        let labels = "{method=\"GET\",path=\"pods\",server_type=\"readwrite\",long_running=\"false\"}";
        assert!(shown().contains(&format!("kubelet_http_inflight_requests{labels} 1\n")), "{}", shown());
        begun.end(false);
        drop(Counted::begin(&Method::GET, &Ok(Route::Pods), "readwrite"));
        assert!(shown().contains(&format!("kubelet_http_inflight_requests{labels} 0\n")), "{}", shown());
        assert!(shown().contains(&format!("kubelet_http_requests_total{labels} 2\n")), "{}", shown());
        assert!(shown().contains(&format!("kubelet_http_requests_duration_seconds_count{labels} 1\n")));
        let before = shown();
        Counted::begin(&Method::GET, &Err(Refused::NotFound), "").end(false);
        assert_eq!(shown(), before, "the local socket is not counted");
    }
}
