//! `sd_notify`: tells systemd that the agent is ready, stopping, or alive. Does nothing when not started by
//! systemd.
//!
//! Owns the notification socket and the watchdog's interval (kubelet 1.36, reference 15.4).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// A watchdog at or below this is a configuration mistake: the loop may legitimately be busy for that long.
const SHORTEST_WATCHDOG: Duration = Duration::from_secs(1);

/// The connection to systemd, if there is one.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<UnixDatagram>,
}

/// systemd's request cannot be fulfilled.
#[derive(Debug, thiserror::Error)]
pub enum NotifyError {
    #[error("watchdog interval {0:?} is too short: set WatchdogSec to more than 1s")]
    WatchdogTooShort(Duration),
    #[error("connect to the notification socket {path}")]
    Connect {
        /// The variable's value.
        path: String,
        #[source]
        source: std::io::Error,
    },
}

impl Notifier {
    /// Connects to `NOTIFY_SOCKET`, given as the variable's value; a leading `@` is the abstract namespace.
    pub(crate) fn connect(notify_socket: Option<&str>) -> Result<Self, NotifyError> {
        let Some(path) = notify_socket.filter(|path| !path.is_empty()) else {
            return Ok(Self::default());
        };
        let open = || -> std::io::Result<UnixDatagram> {
            let address = match path.strip_prefix('@') {
                Some(name) => SocketAddr::from_abstract_name(name)?,
                None => SocketAddr::from_pathname(path)?,
            };
            let socket = UnixDatagram::unbound()?;
            socket.connect_addr(&address)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let socket = open().map_err(|source| NotifyError::Connect { path: path.to_owned(), source })?;
        Ok(Self { socket: Some(socket) })
    }

    /// `READY=1`.
    pub(crate) fn ready(&self) {
        self.send("READY=1");
    }

    /// `STOPPING=1`.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// `WATCHDOG=1`.
    pub(crate) fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// Extends the stop timeout by this time from now.
    pub(crate) fn extend(&self, by: Duration) {
        self.send(&format!("EXTEND_TIMEOUT_USEC={}", by.as_micros()));
    }

    fn send(&self, message: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(message.as_bytes())
        {
            log::warn!(err:% = error; "Failed to notify systemd");
        }
    }
}

/// How often to send a keep-alive: half of systemd's watchdog timeout. `None` when it does not watch this
/// process.
pub(crate) fn watchdog_interval(
    watchdog_usec: Option<&str>,
    watchdog_pid: Option<&str>,
    own_pid: u32,
) -> Result<Option<Duration>, NotifyError> {
    let Some(micros) = watchdog_usec.and_then(|text| text.parse::<u64>().ok()).filter(|micros| *micros > 0)
    else {
        return Ok(None);
    };
    if watchdog_pid.is_some_and(|pid| pid.parse() != Ok(own_pid)) {
        return Ok(None);
    }
    let watchdog = Duration::from_micros(micros);
    if watchdog <= SHORTEST_WATCHDOG {
        return Err(NotifyError::WatchdogTooShort(watchdog));
    }
    Ok(Some(watchdog / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_hears_ready_and_stopping_on_an_abstract_socket() {
        let name = format!("edge-agent-notify-{}", std::process::id());
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let notifier = Notifier::connect(Some(&format!("@{name}"))).unwrap();
        notifier.ready();
        notifier.stopping();
        let mut buffer = [0; 64];
        let length = listener.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1");
        let length = listener.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"STOPPING=1");
    }

    #[test]
    fn without_systemd_nothing_is_sent_and_nothing_fails() {
        Notifier::connect(None).unwrap().ready();
        Notifier::connect(Some("")).unwrap().ready();
        assert!(Notifier::connect(Some("/nonexistent/notify")).is_err());
    }

    #[test]
    fn watchdog_interval_is_halved_and_ignored_for_another_pid() {
        let interval = |usec, pid| watchdog_interval(usec, pid, 7);
        assert_eq!(interval(Some("30000000"), Some("7")).unwrap(), Some(Duration::from_secs(15)));
        assert_eq!(interval(Some("30000000"), None).unwrap(), Some(Duration::from_secs(15)));
        assert_eq!(interval(Some("30000000"), Some("8")).unwrap(), None);
        assert_eq!(interval(None, None).unwrap(), None);
        assert!(interval(Some("1000000"), None).is_err());
    }
}
