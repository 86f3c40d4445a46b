//! The service: which files make it one, and the commands that start, stop and enable it.
//!
//! Owns the calls of systemctl and rc-service. Enabling is a link, as these make it: it works in an image, too.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::InitError;
use super::args::Options;
use super::facts::InitSystem;
use super::install::{self, File};
use crate::sys::command;

/// The unit tells systemd when it is ready; a stop lasts as long as the unit allows.
const PATIENCE: Duration = Duration::from_secs(120);
const LONGEST_ANSWER: u64 = 4096;

/// What makes the agent a service of this system.
#[derive(Debug)]
pub(super) struct Service {
    /// The unit or script; `None` when a package has brought it.
    pub(super) file: Option<File>,
    /// Link that enables it, and what it points at.
    pub(super) link: (PathBuf, PathBuf),
}

/// The service's files, with the program as it is called in that system.
pub(super) fn plan(options: &Options, system: InitSystem, program: &Path) -> Option<Service> {
    let packaged = install::PACKAGED_UNITS.into_iter().find(|path| options.rooted(path).exists());
    match (system, packaged) {
        (InitSystem::Systemd, Some(packaged)) => {
            Some(Service { file: None, link: (install::WANTS.into(), packaged.into()) })
        }
        (InitSystem::Systemd, None) => Some(Service {
            file: Some(File::new(install::UNIT, 0o644, install::unit(program))),
            link: (install::WANTS.into(), install::UNIT.into()),
        }),
        (InitSystem::OpenRc, _) => Some(Service {
            file: Some(File::new(install::SCRIPT, 0o755, install::script(program))),
            link: (install::RUNLEVEL.into(), install::SCRIPT.into()),
        }),
        (InitSystem::Other, _) => None,
    }
}

/// Where the program is in the system that is set up: where packages have it, else where this one is.
pub(super) fn program(options: &Options) -> PathBuf {
    let packaged = Path::new("/usr/bin/agent");
    let own = std::fs::read_link("/proc/self/exe").unwrap_or_else(|_| packaged.to_owned());
    if options.is_live() || !options.rooted(packaged).exists() { own } else { packaged.to_owned() }
}

/// Commands that (re)start it.
pub(super) fn start(system: InitSystem) -> &'static [&'static [&'static str]] {
    match system {
        InitSystem::Systemd => &[&["systemctl", "daemon-reload"], &["systemctl", "restart", "agent.service"]],
        InitSystem::OpenRc => &[&["rc-service", "agent", "restart"]],
        InitSystem::Other => &[],
    }
}

/// Commands that stop it; pods stay.
pub(super) fn stop(system: InitSystem) -> &'static [&'static [&'static str]] {
    match system {
        InitSystem::Systemd => &[&["systemctl", "stop", "agent.service"]],
        InitSystem::OpenRc => &[&["rc-service", "agent", "stop"]],
        InitSystem::Other => &[],
    }
}

/// Where the service's last words are.
pub(super) fn log_hint(system: InitSystem) -> &'static str {
    match system {
        InitSystem::OpenRc => "see /var/log/agent.log",
        _ => "see journalctl -u agent -n 20",
    }
}

/// Carries them out.
///
/// # Errors
/// What the first that fails says.
pub(super) fn call(system: InitSystem, commands: &[&[&str]]) -> Result<(), InitError> {
    let hint = log_hint(system);
    for words in commands {
        let line = words.join(" ");
        let failed = |why: String| InitError::Service(format!("{line}: {why} ({hint})"));
        let Some((program, arguments)) = words.split_first() else { continue };
        let answer = command::run(Command::new(program).args(arguments), &[], LONGEST_ANSWER, PATIENCE);
        let answer = answer.map_err(|error| failed(error.to_string()))?;
        if !answer.status.success() {
            return Err(failed(String::from_utf8_lossy(&answer.errors).trim().to_owned()));
        }
    }
    Ok(())
}
