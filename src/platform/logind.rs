//! Machine shutdown as systemd reports it: logind's announcement, the inhibitor lock that delays it, and
//! whether it has begun.
//!
//! Owns the calls to logind and its settings. Blocking: for a thread of its own.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::platform::dbus::{Body, DbusConnection, DbusError, Message, Peer, Value};
use crate::platform::logging::chain;
use crate::platform::sys::node;

/// The system bus's default socket, without `DBUS_SYSTEM_BUS_ADDRESS`.
const BUS_SOCKET: &str = "/run/dbus/system_bus_socket";
/// systemd's own socket, for root alone; a small system may have no bus, or the bus may have stopped already.
const SYSTEMD_SOCKET: &str = "/run/systemd/private";
/// On a tmpfs: logind reads it like the one on disk, and nothing is written to flash. Upstream's name.
pub(crate) const DROP_IN: &str = "/run/systemd/logind.conf.d/99-kubelet.conf";
/// The first line of a file that the agent wrote.
pub(crate) const DROP_IN_HEADER: &str = "# Written by the agent for shutdownGracePeriod.\n";
/// The first call may have to start logind, on a machine that is still booting.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often logind is queried for its reloaded settings, and the delay before the first query; doubles
/// (upstream).
const CHECKS: u32 = 5;
const FIRST_CHECK: Duration = Duration::from_millis(100);

const LOGIND: &str = "org.freedesktop.login1";
const LOGIND_MANAGER: &str = "org.freedesktop.login1.Manager";
const LOGIND_PATH: &str = "/org/freedesktop/login1";
const SYSTEMD_MANAGER: &str = "org.freedesktop.systemd1.Manager";
const SYSTEMD: Peer<'static> = Peer {
    destination: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: SYSTEMD_MANAGER,
};
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const SIGHUP: i32 = 1;

/// What logind does.
#[derive(Debug)]
pub(crate) enum News {
    /// The inhibitor lock: the shutdown waits until it is closed.
    Locked(OwnedFd),
    /// The shutdown begins, or was cancelled.
    Preparing(bool),
}

/// The parameters of the inhibitor lock.
#[derive(Clone, Debug)]
pub(crate) struct LogindConfig {
    /// `DBUS_SYSTEM_BUS_ADDRESS`, if it is set.
    pub bus_address: Option<String>,
    /// The longest delay of the shutdown.
    pub delay: Duration,
}

/// The system bus's socket. Of an address only a path is supported.
fn bus_socket(address: Option<&str>) -> PathBuf {
    let path = address.and_then(|address| address.strip_prefix("unix:path="));
    let path = path.and_then(|path| path.split([',', ';']).next());
    PathBuf::from(path.unwrap_or(BUS_SOCKET))
}

/// Takes the lock and reports logind's signals, until the receiver is dropped or the bus is gone. If logind
/// is not running, or restarts, the lock is taken when it appears on the bus.
pub(crate) fn follow(config: &LogindConfig, tell: impl Fn(News) -> bool) -> Result<(), DbusError> {
    let mut bus = DbusConnection::bus_with_descriptors(
        &bus_socket(config.bus_address.as_deref()),
        node::user_id(),
        PATIENCE,
    )?;
    bus.listen("type='signal',interface='org.freedesktop.login1.Manager',member='PrepareForShutdown'")?;
    bus.listen(
        "type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='org.freedesktop.login1'",
    )?;
    loop {
        match lock(&mut bus, config.delay) {
            Ok(lock) => {
                if !tell(News::Locked(lock)) {
                    return Ok(());
                }
            }
            Err(error) if error.is_unreachable() => return Err(error),
            Err(error) => {
                log::warn!(err = chain(&error); "Failed to acquire logind inhibitor lock, shutdown will not \
                     wait for pods");
            }
        }
        loop {
            let Some(signal) = bus.next_signal(None)? else { continue };
            match signal.member.as_str() {
                "PrepareForShutdown" => {
                    let begins = signal.value() == Some(Value::Flag(true));
                    if !tell(News::Preparing(begins)) {
                        return Ok(());
                    }
                    if !begins {
                        break;
                    }
                }
                // With an owner: a new logind, which holds no lock.
                "NameOwnerChanged" if is_new_logind(&signal) => break,
                _ => {}
            }
        }
    }
}

fn is_new_logind(signal: &Message) -> bool {
    let texts = signal.texts();
    texts.first().is_some_and(|name| name == LOGIND) && texts.get(2).is_some_and(|owner| !owner.is_empty())
}

/// Takes the inhibitor lock, after raising logind's maximum delay if necessary.
fn lock(bus: &mut DbusConnection, delay: Duration) -> Result<OwnedFd, DbusError> {
    if let Err(error) = request_delay(bus, delay) {
        if error.is_unreachable() {
            return Err(error);
        }
        log::warn!(err = chain(&error); "Failed to read logind InhibitDelayMaxSec");
    }
    let manager = Peer { destination: LOGIND, path: LOGIND_PATH, interface: LOGIND_MANAGER };
    let why = "Kubelet needs time to handle node shutdown";
    let body = Body::default().text("shutdown").text("kubelet").text(why).text("delay");
    bus.call(manager, "Inhibit", &body)?;
    bus.take_descriptor().ok_or_else(|| DbusError::Answer {
        method: "Inhibit".to_owned(),
        name: LOGIND_MANAGER.to_owned(),
        message: "the reply contains no file descriptor".to_owned(),
    })
}

/// Raises `InhibitDelayMaxSec`, if it is too short. If it stays too short, a warning is logged: the pods that
/// have not ended by then end when systemd ends the agent.
fn request_delay(bus: &mut DbusConnection, delay: Duration) -> Result<(), DbusError> {
    if longest_delay(bus)? >= delay {
        return Ok(());
    }
    if let Err(error) = write_drop_in(Path::new(DROP_IN), delay) {
        log::warn!(path = DROP_IN, err:% = error; "Failed to write logind InhibitDelayMaxSec drop-in");
        return Ok(());
    }
    let body = Body::default().text("systemd-logind.service").text("all").number(SIGHUP);
    if let Err(error) = bus.call(SYSTEMD, "KillUnit", &body) {
        if error.is_unreachable() {
            return Err(error);
        }
        log::warn!(err = chain(&error); "Failed to reload logind configuration");
    }
    for check in 0..CHECKS {
        // logind does not report when it has read them. A signal that arrives meanwhile is kept.
        bus.pause(FIRST_CHECK * 2_u32.pow(check))?;
        if longest_delay(bus)? >= delay {
            return Ok(());
        }
    }
    log::warn!(wantedSeconds = delay.as_secs(); "logind inhibit delay is shorter than shutdownGracePeriod, \
         set InhibitDelayMaxSec in logind.conf(5)");
    Ok(())
}

fn write_drop_in(path: &Path, delay: Duration) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(directory)?;
    // Rounded up: logind counts in whole seconds.
    let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
    std::fs::write(path, format!("{DROP_IN_HEADER}[Login]\nInhibitDelayMaxSec={seconds}\n"))
}

fn longest_delay(bus: &mut DbusConnection) -> Result<Duration, DbusError> {
    let peer = Peer { destination: LOGIND, path: LOGIND_PATH, interface: PROPERTIES };
    match property(bus, peer, LOGIND_MANAGER, "InhibitDelayMaxUSec")? {
        Some(Value::Number(micros)) => Ok(Duration::from_micros(micros)),
        _ => Ok(Duration::ZERO),
    }
}

fn property(
    bus: &mut DbusConnection,
    peer: Peer<'_>,
    interface: &str,
    name: &str,
) -> Result<Option<Value>, DbusError> {
    Ok(bus.call(peer, "Get", &Body::default().text(interface).text(name))?.value())
}

/// Whether systemd is taking the machine down, as opposed to the agent alone. False if systemd cannot be
/// reached.
#[must_use]
pub(crate) fn machine_goes_down(bus_address: Option<&str>) -> bool {
    let user = node::user_id();
    let direct =
        || DbusConnection::direct(Path::new(SYSTEMD_SOCKET), user).ok().filter(|_| bus_address.is_none());
    let connection = direct().map_or_else(|| DbusConnection::bus(&bus_socket(bus_address), user), Ok);
    let state = connection.and_then(|mut systemd| {
        let peer = Peer { interface: PROPERTIES, ..SYSTEMD };
        property(&mut systemd, peer, SYSTEMD_MANAGER, "SystemState")
    });
    match state {
        Ok(state) => state == Some(Value::Text("stopping".to_owned())),
        Err(error) => {
            log::debug!(err = chain(&error); "Failed to watch logind for shutdown");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_address_uses_its_path_or_the_default_socket() {
        for (address, path) in [
            (Some("unix:path=/x/bus"), "/x/bus"),
            (Some("unix:path=/x/bus,guid=0123;tcp:host=a"), "/x/bus"),
            (Some("tcp:host=a"), BUS_SOCKET),
            (None, BUS_SOCKET),
        ] {
            assert_eq!(bus_socket(address), Path::new(path), "{address:?}");
        }
    }

    #[test]
    fn inhibit_delay_is_rounded_up_to_whole_seconds() {
        let directory = std::env::temp_dir().join(format!("edge-agent-logind-{}", std::process::id()));
        let path = directory.join("logind.conf.d/99-kubelet.conf");
        write_drop_in(&path, Duration::from_millis(30_001)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.ends_with("[Login]\nInhibitDelayMaxSec=31\n"), "{text}");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn unreachable_logind_never_reports_a_shutdown() {
        assert!(!machine_goes_down(Some("unix:path=/nonexistent/bus")));
        let config =
            LogindConfig { bus_address: Some("unix:path=/nonexistent/bus".to_owned()), delay: PATIENCE };
        assert!(follow(&config, |_| true).unwrap_err().is_unreachable());
    }
}
