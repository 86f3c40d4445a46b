//! The service: its files, and the commands that start, stop and enable it.
//!
//! Owns the calls of systemctl and rc-service. Enabling creates the same symlink as these do: it works in an
//! image, too.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::InitError;
use super::args::InitOptions;
use super::facts::InitSystem;
use super::install::{self, File};
use crate::platform::sys::command;

/// The unit notifies systemd when it is ready; a stop takes as long as the unit allows.
const PATIENCE: Duration = Duration::from_secs(120);
const LONGEST_ANSWER: u64 = 4096;

#[derive(Debug)]
pub(super) struct Service {
    /// The unit or script; `None` when a package has installed it.
    pub(super) file: Option<File>,
    /// The symlink that enables it, and its target.
    pub(super) link: (PathBuf, PathBuf),
}

/// The service's files, with the program's path in that system.
pub(super) fn plan(options: &InitOptions, system: InitSystem, program: &Path) -> Option<Service> {
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

/// The path of a package's program.
const PACKAGED: &str = "/usr/bin/agent";
/// Where `init` installs it in an offline system.
const COPIED: &str = "/usr/local/bin/agent";

/// The program's path in the target system: this program's path if the system is running; otherwise the
/// package's path, or else that to which `init` copies it.
pub(super) fn program(options: &InitOptions) -> PathBuf {
    if options.is_live() {
        return std::fs::read_link(OWN).unwrap_or_else(|_| PACKAGED.into());
    }
    if is_packaged(options) { PACKAGED.into() } else { COPIED.into() }
}

pub(super) fn is_packaged(options: &InitOptions) -> bool {
    options.rooted(PACKAGED).exists()
}

pub(super) const OWN: &str = "/proc/self/exe";

/// Programs of most systems, none of which is a symlink on all of them.
const PROGRAMS: [&str; 5] =
    ["/usr/lib/systemd/systemd", "/lib/systemd/systemd", "/usr/bin/env", "/bin/busybox", "/sbin/init"];

/// Whether this program would run in the system in `--rootfs`, judging by its own programs.
pub(super) fn fits(options: &InitOptions, program: &[u8]) -> bool {
    let theirs = PROGRAMS.iter().map(|path| options.rooted(path)).find_map(|path| {
        // A symlink may lead out of the system.
        let is_file = path.symlink_metadata().is_ok_and(|about| about.is_file());
        let mut head = [0; 20];
        is_file
            .then(|| std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut head)))
            .transpose()
            .ok()??;
        machine(&head)
    });
    theirs.is_none() || theirs == machine(program)
}

/// Class, byte order and `e_machine` of an ELF program.
fn machine(bytes: &[u8]) -> Option<[u8; 4]> {
    let head = bytes.first_chunk::<20>().filter(|head| head.starts_with(b"\x7fELF"))?;
    Some([head[4], head[5], head[18], head[19]])
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

/// Where the service's last messages are.
pub(super) fn log_hint(system: InitSystem) -> &'static str {
    match system {
        InitSystem::OpenRc => "see /var/log/agent.log",
        _ => "see journalctl -u agent -n 20",
    }
}

/// Runs the commands up to the first that fails; the error is its message.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_for_another_processor_is_recognised() {
        let elf = |machine: u8| [&b"\x7fELF\x02\x01\x01"[..], &[0; 11], &[machine, 0, 9, 9]].concat();
        let root = std::env::temp_dir().join(format!("edge-agent-service-{}", std::process::id()));
        std::fs::create_dir_all(root.join("usr/bin")).unwrap();
        let options = InitOptions { rootfs: root.clone(), ..InitOptions::default() };
        assert!(fits(&options, &elf(62)), "nothing to compare with");
        std::fs::write(root.join("usr/bin/env"), elf(183)).unwrap();
        assert!(fits(&options, &elf(183)) && !fits(&options, &elf(62)) && !fits(&options, b"#!/bin/sh"));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
