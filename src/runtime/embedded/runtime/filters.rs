//! Compiled seccomp filters as files, each compiled once.
//!
//! Owns their names. `seccomp` interprets profiles.

use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::super::layout::Layout;
use super::super::seccomp::{self, Arch, Profile, Subject};
use super::record::write_whole;
use super::{Failure, fault};
use crate::codec::hex;
use crate::runtime::SeccompChoice;

/// No real profile is larger.
const MAX_PROFILE: u64 = 4 << 20;

pub(super) struct Filter {
    /// Instructions as the kernel takes them.
    pub(super) path: PathBuf,
    /// The profile in the specification's form, if requested.
    pub(super) profile: Option<Value>,
}

/// The filter of a container with these capabilities. `None` for an unconfined container.
pub(super) fn of(
    layout: &Layout,
    choice: &SeccompChoice,
    capabilities: &[String],
    wants_profile: bool,
) -> Result<Option<Filter>, Failure> {
    if *choice == SeccompChoice::Unconfined {
        return Ok(None);
    }
    let arch = Arch::node().ok_or_else(|| {
        Failure::refused("seccomp is not supported on this architecture; use profile Unconfined")
    })?;
    let subject = Subject { capabilities, kernel: crate::platform::sys::node::kernel_version(), arch };
    let (digest, profile): (Sha256, Box<dyn FnOnce() -> Result<Profile, Failure>>) = match choice {
        SeccompChoice::Unconfined | SeccompChoice::RuntimeDefault => (
            Sha256::new().chain_update("default"),
            Box::new(|| Ok(seccomp::default_profile(capabilities, arch))),
        ),
        SeccompChoice::Localhost(path) => {
            let text = read(Path::new(path))?;
            let digest = Sha256::new().chain_update("localhost\0").chain_update(&text);
            (digest, Box::new(move || parse(path, &text, &subject)))
        }
    };
    // Another version of this program may compile a different filter.
    let digest = digest.chain_update("\0").chain_update(capabilities.join(" "));
    let digest = digest.chain_update("\0").chain_update(env!("CARGO_PKG_VERSION")).finalize();
    let path = layout.seccomp().join(hex::encode(&digest));
    let is_there = path.exists();
    if is_there && !wants_profile {
        return Ok(Some(Filter { path, profile: None }));
    }
    let profile = profile()?;
    if !is_there {
        let program = seccomp::compile(&profile, arch)
            .map_err(|error| Failure::because("failed to compile the seccomp profile", &error))?;
        write_whole(&path, &program).map_err(|error| Failure::because("write seccomp filter", &error))?;
        fault::point("create:filter")?;
    }
    Ok(Some(Filter { path, profile: wants_profile.then(|| seccomp::to_oci(&profile)) }))
}

fn read(path: &Path) -> Result<String, Failure> {
    use std::io::Read as _;
    let mut text = String::new();
    let read = crate::platform::sys::open::open_without_waiting(path)
        .and_then(|file| file.take(MAX_PROFILE).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(text),
        Err(error) => {
            Err(Failure::because(&format!("cannot load seccomp profile {:?}", path.display()), &error))
        }
    }
}

fn parse(path: &str, text: &str, subject: &Subject<'_>) -> Result<Profile, Failure> {
    let failed = |error: &dyn std::error::Error| {
        Failure::because(&format!("cannot load seccomp profile {path:?}"), error)
    };
    let value = serde_json::from_str(text).map_err(|error| failed(&error))?;
    seccomp::parse_profile(path, &value, subject).map_err(|error| failed(&error))
}
