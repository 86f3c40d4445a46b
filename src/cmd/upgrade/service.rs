//! The service manager that starts the agent and its watch: systemd, OpenRC, or a command.
//!
//! Owns the calls and the files of the watch's service, which exists only during an upgrade.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{fs, io};

use crate::platform::sys::{command, durable, node};

/// OpenRC waits until a service has stopped.
const PATIENCE: Duration = Duration::from_secs(120);
const LONGEST_ANSWER: u64 = 4096;

const UNIT: &str = "/etc/systemd/system/agent-upgrade.service";
const WANTS: &str = "/etc/systemd/system/multi-user.target.wants/agent-upgrade.service";
const SCRIPT: &str = "/etc/init.d/agent-upgrade";
const RUNLEVEL: &str = "/etc/runlevels/default/agent-upgrade";
const RC_SERVICE: &str = "/sbin/rc-service";
/// OpenRC forgets that the watch was started; its process keeps running.
const ZAP: &[&str] = &["rc-service", "agent-upgrade", "zap"];

/// Started manually and at boot, and restarted when it is killed. It removes itself.
const UNIT_TEXT: &str = "\
# Written by agent upgrade; removed when the upgrade ends.
[Unit]
Description=agent upgrade: watch the new program, roll back on failure
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=\"@PROGRAM@\" upgrade watch --root-dir \"@ROOT@\"
Restart=on-failure
RestartSec=5
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
";
const SCRIPT_TEXT: &str = "\
#!/sbin/openrc-run
# Written by agent upgrade; removed when the upgrade ends.
description=\"agent upgrade: watch the new program, roll back on failure\"
command=\"@PROGRAM@\"
command_args=\"upgrade watch --root-dir @ROOT@\"
command_background=\"yes\"
pidfile=\"/run/agent-upgrade.pid\"
# Stopped before the agent: pods end when the machine shuts down.
depend() { after agent; }
";

/// How the agent is restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Service {
    Systemd,
    OpenRc,
    /// A shell command; the watch does not survive a reboot.
    Command(String),
    None,
}

impl Service {
    /// The service manager that started the agent with this process id.
    pub(super) fn find(pid: &str) -> Result<Self, String> {
        let help = "use --restart-command, or --no-restart and restart it manually";
        if node::systemd_is_running() {
            let groups = fs::read_to_string(["/proc/", pid, "/cgroup"].concat()).unwrap_or_default();
            return if groups.contains("/agent.service") {
                Ok(Self::Systemd)
            } else {
                Err(["the agent was not started by agent.service: ", help].concat())
            };
        }
        if Path::new(RC_SERVICE).exists() && Path::new("/etc/init.d/agent").exists() {
            return Ok(Self::OpenRc);
        }
        Err(["the agent is not a systemd or OpenRC service: ", help].concat())
    }

    pub(super) fn to_text(&self) -> String {
        match self {
            Self::Systemd => "systemd".to_owned(),
            Self::OpenRc => "openrc".to_owned(),
            Self::Command(command) => ["command ", command].concat(),
            Self::None => "none".to_owned(),
        }
    }

    pub(super) fn parse(text: &str) -> Self {
        match (text, text.strip_prefix("command ")) {
            (_, Some(command)) => Self::Command(command.to_owned()),
            ("systemd", _) => Self::Systemd,
            ("openrc", _) => Self::OpenRc,
            _ => Self::None,
        }
    }

    /// Restarts the agent's service. Does not wait for systemd: a program that hangs at its start would block
    /// the watch that has to detect it.
    pub(super) fn restart(&self) -> Result<(), String> {
        match self {
            Self::Systemd => call(&[&["systemctl", "--no-block", "restart", "agent.service"]]),
            Self::OpenRc => call(&[&["rc-service", "agent", "restart"]]),
            Self::Command(line) => call(&[&["sh", "-c", line]]),
            Self::None => Ok(()),
        }
    }

    /// The commands that start the watch, where it is a service.
    pub(super) fn start_watch(&self) -> Option<&'static [&'static [&'static str]]> {
        match self {
            Self::Systemd => Some(&[&["systemctl", "start", "agent-upgrade.service"]]),
            // OpenRC would not start a killed service that it still counts as started.
            Self::OpenRc => Some(&[ZAP, &["rc-service", "agent-upgrade", "start"]]),
            Self::Command(_) | Self::None => None,
        }
    }

    fn files(&self) -> Option<(&'static str, &'static str, &'static str, u32)> {
        match self {
            Self::Systemd => Some((UNIT, UNIT_TEXT, WANTS, 0o644)),
            Self::OpenRc => Some((SCRIPT, SCRIPT_TEXT, RUNLEVEL, 0o755)),
            Self::Command(_) | Self::None => None,
        }
    }

    /// Enables the watch at boot from now on, also after a power cut.
    pub(super) fn guard(&self, program: &Path, root_dir: &Path) -> io::Result<()> {
        let Some((file, text, link, mode)) = self.files() else { return Ok(()) };
        let text = text.replace("@PROGRAM@", &program.display().to_string());
        let text = text.replace("@ROOT@", &root_dir.display().to_string());
        durable::write_durably(Path::new(file), text.as_bytes(), mode)?;
        let link = Path::new(link);
        remove(link)?;
        let parent = link.parent().unwrap_or(link);
        fs::create_dir_all(parent)?;
        symlink(file, link)?;
        durable::sync_dir(parent)?;
        self.reload()
    }

    pub(super) fn unguard(&self) -> io::Result<()> {
        let Some((file, _, link, _)) = self.files() else { return Ok(()) };
        if *self == Self::OpenRc && Path::new(file).exists() {
            // OpenRC remembers services whose script is gone. A failure does not matter.
            let _ = call(&[ZAP]);
        }
        for path in [link, file] {
            remove(Path::new(path))?;
        }
        self.reload()
    }

    fn reload(&self) -> io::Result<()> {
        match self {
            Self::Systemd => call(&[&["systemctl", "daemon-reload"]]).map_err(io::Error::other),
            _ => Ok(()),
        }
    }
}

/// Removes a file; a missing one is not an error.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Runs the commands up to the first that fails; the error is its message.
pub(super) fn call(commands: &[&[&str]]) -> Result<(), String> {
    for words in commands {
        let Some((program, arguments)) = words.split_first() else { continue };
        let failed = |why: &str| [&words.join(" "), ": ", why].concat();
        let answer = command::run(Command::new(program).args(arguments), &[], LONGEST_ANSWER, PATIENCE);
        let answer = answer.map_err(|error| failed(&error.to_string()))?;
        if !answer.status.success() {
            let said = String::from_utf8_lossy(&answer.errors).trim().to_owned();
            return Err(failed(if said.is_empty() { "it failed" } else { &said }));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openrc_starts_a_watch_that_it_still_counts_as_started() {
        let commands = Service::OpenRc.start_watch().unwrap();
        let words: Vec<_> = commands.iter().map(|words| words[2]).collect();
        assert_eq!(words, ["zap", "start"]);
        assert!(commands.iter().all(|words| words[..2] == ["rc-service", "agent-upgrade"]));
    }
}
