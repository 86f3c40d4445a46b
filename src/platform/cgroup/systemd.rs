//! Slices and scopes: cgroups that systemd makes and removes on request, so that it knows them.
//!
//! Owns the calls to systemd's manager and the units' properties. What systemd has no property for, and what
//! a v1 hierarchy of its does not hold, is written to files afterwards, as libcontainer does.

use std::path::Path;

use super::tree::{self, Relative};
use super::{CgroupConfig, CgroupError, Skipped, v2};
use crate::model::runtime_config::CgroupValues;
use crate::platform::dbus::{Body, DbusConnection, DbusError, Peer, Value};
use crate::platform::sys::node;

/// systemd's own socket, for root alone; a small system may have no bus.
const PRIVATE_SOCKET: &str = "/run/systemd/private";
const BUS_SOCKET: &str = "/run/dbus/system_bus_socket";
const MANAGER: Peer<'static> = Peer {
    destination: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};
const DEFAULT_PERIOD: i64 = 100_000;
/// Microseconds for a scope to stop before systemd kills its processes: longer than its monitor takes to do
/// that.
const STOP_PATIENCE: u64 = 15_000_000;
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// Starts the slice, or sets its properties when it exists. When systemd does not answer, the runtime has to
/// make it.
pub(super) fn ensure_slice(
    config: &CgroupConfig,
    path: &Relative,
    values: &CgroupValues,
) -> Result<Vec<Skipped>, CgroupError> {
    let unit = path.name();
    let outcome = connect().and_then(|mut systemd| {
        let limits = properties(values, config.v2);
        if tree::exists(config, path) {
            return set_properties(&mut systemd, &unit, &limits);
        }
        start(&mut systemd, &unit, config.v2, &limits)
    });
    match outcome {
        Ok(()) => Ok(Vec::new()),
        Err(error) if error.is_unreachable() => {
            let why = crate::platform::logging::chain(&error);
            Ok(vec![Skipped { what: "systemd".to_owned(), why }])
        }
        Err(source) => Err(CgroupError::Systemd { unit, source }),
    }
}

/// Stops a slice or scope, with everything in it; no error when systemd does not know it.
pub(super) fn stop(unit: &str) -> Result<(), DbusError> {
    let mut systemd = connect()?;
    let body = Body::default().text(unit).text("replace");
    match run_job(&mut systemd, "StopUnit", &body) {
        Err(DbusError::Answer { name, .. }) if name == NO_SUCH_UNIT => Ok(()),
        other => other,
    }
}

/// Makes a scope with its first processes in it. Its owner may create cgroups in it.
pub(super) fn start_scope(unit: &str, slice: &str, processes: &[u32]) -> Result<(), DbusError> {
    let mut all = scope(unit, slice, processes);
    // At machine shutdown the agent must stop first: it ends pods with their hooks and in order, and does not
    // restart them.
    if let Some(own) = own_service(&std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default()) {
        all.push(("Before", Value::Texts(vec![own])));
    }
    let body = Body::default().text(unit).text("replace").properties(&all).no_units();
    run_job(&mut connect()?, "StartTransientUnit", &body)
}

fn scope(unit: &str, slice: &str, processes: &[u32]) -> Vec<(&'static str, Value)> {
    let mut all = vec![
        ("Description", Value::Text(format!("pod, {unit}"))),
        ("Slice", Value::Text(slice.to_owned())),
        ("PIDs", Value::Numbers32(processes.to_vec())),
        ("Delegate", Value::Flag(true)),
        // systemd's own default is a share of the machine; the pod's slice limits its tasks.
        ("TasksMax", Value::Number(u64::MAX)),
        // systemd would otherwise keep a failed unit loaded.
        ("CollectMode", Value::Text("inactive-or-failed".to_owned())),
    ];
    for accounting in ["MemoryAccounting", "CPUAccounting", "TasksAccounting"] {
        all.push((accounting, Value::Flag(true)));
    }
    // With the default dependencies it is stopped before the final shutdown steps, and does not delay them.
    all.push(("TimeoutStopUSec", Value::Number(STOP_PATIENCE)));
    all
}

/// The service of systemd that a process is in, from its `/proc/PID/cgroup`.
fn own_service(cgroups: &str) -> Option<String> {
    let mut parts = cgroups.lines().flat_map(|line| line.split('/'));
    parts.rfind(|part| part.ends_with(".service")).map(str::to_owned)
}

fn connect() -> Result<DbusConnection, DbusError> {
    let user = node::user_id();
    if let Ok(connection) = DbusConnection::direct(Path::new(PRIVATE_SOCKET), user) {
        return Ok(connection);
    }
    let mut connection = DbusConnection::bus(Path::new(BUS_SOCKET), user)?;
    connection.listen("type='signal',interface='org.freedesktop.systemd1.Manager',member='JobRemoved'")?;
    connection.call(MANAGER, "Subscribe", &Body::default())?;
    Ok(connection)
}

fn start(
    systemd: &mut DbusConnection,
    unit: &str,
    v2: bool,
    limits: &[(&str, Value)],
) -> Result<(), DbusError> {
    let mut all = description(unit, v2);
    all.extend(limits.iter().cloned());
    let body = Body::default().text(unit).text("replace").properties(&all).no_units();
    match run_job(systemd, "StartTransientUnit", &body) {
        Err(DbusError::Answer { name, .. }) if name == UNIT_EXISTS => {
            // Left by an earlier process, or made by a runtime and not running now.
            set_properties(systemd, unit, limits)?;
            run_job(systemd, "StartUnit", &Body::default().text(unit).text("replace"))
        }
        other => other,
    }
}

fn set_properties(
    systemd: &mut DbusConnection,
    unit: &str,
    limits: &[(&str, Value)],
) -> Result<(), DbusError> {
    let body = Body::default().text(unit).flag(true).properties(limits);
    systemd.call(MANAGER, "SetUnitProperties", &body).map(|_| ())
}

/// Calls a method that answers with a job, and waits for the job's end.
fn run_job(systemd: &mut DbusConnection, method: &str, body: &Body) -> Result<(), DbusError> {
    let answer = systemd.call(MANAGER, method, body)?;
    let job = answer.texts().into_iter().next().unwrap_or_default();
    let removed = systemd.wait_for_signal("JobRemoved", |signal| signal.texts().first() == Some(&job))?;
    match removed.texts().last().map(String::as_str) {
        Some("done" | "skipped") => Ok(()),
        result => Err(DbusError::Answer {
            method: method.to_owned(),
            name: "JobRemoved".to_owned(),
            message: format!("the job finished with result {:?}", result.unwrap_or_default()),
        }),
    }
}

/// A slice's properties besides its limits. Accounting is what makes systemd enable controllers.
fn description(unit: &str, v2: bool) -> Vec<(&'static str, Value)> {
    let mut all = vec![("Description", Value::Text(format!("pods, {unit}")))];
    if let Some(parent) = parent_slice(unit) {
        // A slice's place follows from its name; the dependency on its parent keeps the parent alive.
        all.push(("Wants", Value::Texts(vec![parent])));
    }
    let io = if v2 { "IOAccounting" } else { "BlockIOAccounting" };
    for accounting in ["MemoryAccounting", "CPUAccounting", io, "TasksAccounting"] {
        all.push((accounting, Value::Flag(true)));
    }
    all.push(("DefaultDependencies", Value::Flag(false)));
    all
}

/// `kubepods-burstable.slice` is in `kubepods.slice`.
fn parent_slice(unit: &str) -> Option<String> {
    let (parent, _) = unit.strip_suffix(".slice")?.rsplit_once('-')?;
    Some(format!("{parent}.slice"))
}

/// Limits as properties of systemd. It has none for huge pages.
fn properties(values: &CgroupValues, v2: bool) -> Vec<(&'static str, Value)> {
    let number = |value: i64| Value::Number(u64::try_from(value).unwrap_or(u64::MAX));
    let mut all = Vec::new();
    if let Some(shares) = values.cpu_shares {
        all.push(if v2 {
            ("CPUWeight", number(v2::cpu_weight(shares)))
        } else {
            ("CPUShares", number(shares))
        });
    }
    if let Some(quota) = values.cpu_quota {
        let period = values.cpu_period.unwrap_or(DEFAULT_PERIOD).max(1);
        // systemd before 242 has no such property.
        if quota > 0 && period != DEFAULT_PERIOD {
            all.push(("CPUQuotaPeriodUSec", number(period)));
        }
        all.push(("CPUQuotaPerSecUSec", number(quota_per_second(quota, period))));
    }
    if let Some(bytes) = values.memory_bytes {
        all.push((if v2 { "MemoryMax" } else { "MemoryLimit" }, number(bytes)));
    }
    if let Some(pids) = values.pids {
        all.push(("TasksMax", number(pids)));
    }
    all
}

/// Microseconds of CPU per second, -1 for no limit. Rounded up to 10 ms, which is how systemd counts:
/// rounding down would take a container's whole share of a CPU below its limit.
fn quota_per_second(quota: i64, period: i64) -> i64 {
    if quota <= 0 {
        return -1;
    }
    let exact = quota.saturating_mul(1_000_000) / period;
    exact.saturating_add(9_999) / 10_000 * 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_become_properties_of_either_version() {
        let values = CgroupValues {
            cpu_shares: Some(1024),
            cpu_quota: Some(16_667),
            cpu_period: Some(50_000),
            memory_bytes: Some(64 << 20),
            pids: Some(100),
            huge_pages: vec![("2MB".to_owned(), Some(0))],
        };
        let quota =
            [("CPUQuotaPeriodUSec", Value::Number(50_000)), ("CPUQuotaPerSecUSec", Value::Number(340_000))];
        let [period, per_second] = quota.clone();
        let expected = [("CPUWeight", 39), ("MemoryMax", 64 << 20), ("TasksMax", 100)]
            .map(|(name, n)| (name, Value::Number(n)));
        let [weight, memory, tasks] = expected;
        assert_eq!(properties(&values, true), [weight, period, per_second, memory, tasks.clone()]);
        let [period, per_second] = quota;
        let v1 = [("CPUShares", 1024), ("MemoryLimit", 64 << 20)].map(|(name, n)| (name, Value::Number(n)));
        let [shares, memory] = v1;
        assert_eq!(properties(&values, false), [shares, period, per_second, memory, tasks]);
        let usual =
            CgroupValues { cpu_quota: Some(50_000), cpu_period: Some(100_000), ..CgroupValues::default() };
        assert_eq!(properties(&usual, true), [("CPUQuotaPerSecUSec", Value::Number(500_000))]);
        let open = CgroupValues { cpu_quota: Some(-1), ..CgroupValues::default() };
        assert_eq!(properties(&open, true), [("CPUQuotaPerSecUSec", Value::Number(u64::MAX))]);
        assert!(properties(&CgroupValues::default(), true).is_empty());
    }

    #[test]
    fn scope_properties_set_slice_first_pids_and_delegation() {
        let all = scope("agent-s1.scope", "kubepods-podA.slice", &[4711, 4712]);
        assert!(all.contains(&("Slice", Value::Text("kubepods-podA.slice".to_owned()))));
        assert!(all.contains(&("PIDs", Value::Numbers32(vec![4711, 4712]))));
        assert!(all.contains(&("Delegate", Value::Flag(true))));
        assert!(all.contains(&("TasksMax", Value::Number(u64::MAX))));
        assert!(all.contains(&("TimeoutStopUSec", Value::Number(15_000_000))));
        assert!(all.iter().all(|(name, _)| *name != "DefaultDependencies"), "{all:?}");
    }

    #[test]
    fn the_agents_own_service_is_found_in_either_version() {
        for (cgroups, service) in [
            ("0::/system.slice/agent.service\n", Some("agent.service")),
            ("0::/system.slice/agent.service/inner\n", Some("agent.service")),
            ("3:cpu:/\n1:name=systemd:/system.slice/x.service\n", Some("x.service")),
            ("0::/user.slice/user-0.slice/session-1.scope\n", None),
            ("", None),
        ] {
            assert_eq!(own_service(cgroups).as_deref(), service, "{cgroups:?}");
        }
    }

    #[test]
    fn a_slice_wants_the_one_above_it() {
        for (unit, parent) in [
            ("kubepods-burstable-poda_b.slice", Some("kubepods-burstable.slice")),
            ("kubepods-burstable.slice", Some("kubepods.slice")),
            ("kubepods.slice", None),
        ] {
            assert_eq!(parent_slice(unit).as_deref(), parent);
        }
        let all = description("kubepods-burstable.slice", false);
        assert!(all.contains(&("Wants", Value::Texts(vec!["kubepods.slice".to_owned()]))));
        assert!(all.contains(&("BlockIOAccounting", Value::Flag(true))));
        assert!(all.contains(&("DefaultDependencies", Value::Flag(false))));
    }
}
