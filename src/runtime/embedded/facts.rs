//! The few facts of a bundle that the monitor itself needs: which streams there are, where the log is, which
//! cgroups the container has. One line each, so that a process that has to stay small needs no JSON parser.
//!
//! Owns the file's format. The agent writes it beside the bundle; no other user can write there.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::layout::ContainerDir;
use super::spec::Bundle;
use crate::platform::sys::durable::replace_private;

/// No such file is longer: a log path and a directory in each of a dozen hierarchies.
const MAX_BYTES: u64 = 64 * 1024;

/// The directory of version 2 among those of a cgroup, all of which exist.
#[must_use]
pub(in crate::runtime) fn unified(directories: &[PathBuf]) -> Option<&Path> {
    // Beside version 1 it is usually the last one.
    directories.iter().rev().find(|directory| directory.join("cgroup.events").exists()).map(PathBuf::as_path)
}

/// What the monitor knows of a container before it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::runtime) struct ContainerFacts {
    /// As [`Bundle::stdin`].
    pub stdin: bool,
    /// As [`Bundle::stdin_once`].
    pub stdin_once: bool,
    /// As [`super::spec::Process::terminal`].
    pub terminal: bool,
    /// An external OCI runtime made it; its `delete` has to run after the container ends.
    pub external: bool,
    /// As [`Bundle::log_path`]; `None` for no log.
    pub log: Option<PathBuf>,
    /// As [`Bundle::cgroups`].
    pub cgroups: Vec<PathBuf>,
}

impl ContainerFacts {
    #[must_use]
    pub(in crate::runtime) fn of(bundle: &Bundle) -> Self {
        Self {
            stdin: bundle.stdin,
            stdin_once: bundle.stdin_once,
            terminal: bundle.oci.process.terminal,
            external: !bundle.external_runtime.is_empty(),
            log: (!bundle.log_path.as_os_str().is_empty()).then(|| bundle.log_path.clone()),
            cgroups: bundle.cgroups.clone(),
        }
    }

    /// Its cgroup of version 2. An external runtime puts itself where it wants.
    #[must_use]
    pub(in crate::runtime) fn unified(&self) -> Option<&Path> {
        if self.external { None } else { unified(&self.cgroups) }
    }

    fn encode(&self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        let flags = [
            (self.stdin, "stdin"),
            (self.stdin_once, "stdin_once"),
            (self.terminal, "terminal"),
            (self.external, "external"),
        ];
        for (_, name) in flags.iter().filter(|(set, _)| *set) {
            text.extend_from_slice(name.as_bytes());
            text.push(b'\n');
        }
        let log = self.log.iter().map(|path| ("log ", path));
        for (word, path) in log.chain(self.cgroups.iter().map(|path| ("cgroup ", path))) {
            let path = path.as_os_str().as_bytes();
            if path.contains(&b'\n') {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path contains a line break"));
            }
            text.extend_from_slice(word.as_bytes());
            text.extend_from_slice(path);
            text.push(b'\n');
        }
        Ok(text)
    }

    /// Unknown words are from a later agent and are ignored.
    fn decode(text: &[u8]) -> Self {
        let mut facts = Self::default();
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        for line in text.split(|byte| *byte == b'\n') {
            let space = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
            let (word, rest) = line.split_at(space);
            let rest = rest.get(1..).unwrap_or_default();
            match word {
                b"stdin" => facts.stdin = true,
                b"stdin_once" => facts.stdin_once = true,
                b"terminal" => facts.terminal = true,
                b"external" => facts.external = true,
                b"log" => facts.log = Some(path(rest)),
                b"cgroup" => facts.cgroups.push(path(rest)),
                _ => {}
            }
        }
        facts
    }

    /// Writes the file, all at once.
    ///
    /// # Errors
    /// The kernel's answer; a path that holds a line break.
    pub(in crate::runtime) fn write(&self, directory: &ContainerDir) -> io::Result<()> {
        replace_private(&directory.facts(), &self.encode()?)
    }

    pub(in crate::runtime) fn read(directory: &ContainerDir) -> io::Result<Self> {
        let mut text = Vec::new();
        std::fs::File::open(directory.facts())?.take(MAX_BYTES).read_to_end(&mut text)?;
        Ok(Self::decode(&text))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_arrive_as_they_were_sent(
            flags in any::<[bool; 4]>(),
            log in proptest::option::of("/[a-z /]{0,40}"),
            cgroups in proptest::collection::vec("/[a-z .:\\\\-]{0,40}", 0..4),
            garbage in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let facts = ContainerFacts {
                stdin: flags[0],
                stdin_once: flags[1],
                terminal: flags[2],
                external: flags[3],
                log: log.map(PathBuf::from),
                cgroups: cgroups.into_iter().map(PathBuf::from).collect(),
            };
            prop_assert_eq!(ContainerFacts::decode(&facts.encode().unwrap()), facts);
            let _ = ContainerFacts::decode(&garbage);
        }
    }

    #[test]
    fn a_path_cannot_smuggle_in_another_line() {
        let facts = ContainerFacts { log: Some("/log\nstdin".into()), ..ContainerFacts::default() };
        assert_eq!(facts.encode().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
