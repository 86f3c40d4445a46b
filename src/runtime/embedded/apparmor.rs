//! `AppArmor` profiles: which ones the kernel has, and the agent's default one for containers that ask for
//! the runtime's.
//!
//! Owns that profile's name and text. `oci` decides which container gets which profile; `init` applies it.
//! Blocks: for the pool of `rt::blocking`.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub(in crate::runtime) const DEFAULT_PROFILE: &str = "edge-agent-default";

const SECURITYFS: &str = "/sys/kernel/security/apparmor";
/// The package `apparmor` installs it in the first; the second may be only a link.
const PARSERS: [&str; 2] = ["/usr/sbin/apparmor_parser", "/sbin/apparmor_parser"];
/// Longest part of the parser's output that is kept; its first line names the problem.
const MAX_SAID: usize = 400;

/// The default profile cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub(in crate::runtime) enum AppArmorError {
    #[error("apparmor_parser not found (Debian package apparmor)")]
    NoParser,
    #[error("run {path:?}")]
    Run {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path:?} rejected profile {DEFAULT_PROFILE:?}: {said}")]
    Refused { path: PathBuf, said: String },
}

/// The kernel's profiles and the program that loads them.
#[derive(Clone, Debug)]
pub(in crate::runtime) struct AppArmor {
    securityfs: PathBuf,
    parsers: Vec<PathBuf>,
}

impl AppArmor {
    #[must_use]
    pub(in crate::runtime) fn of_node() -> Self {
        Self { securityfs: SECURITYFS.into(), parsers: PARSERS.map(PathBuf::from).to_vec() }
    }

    /// Whether the kernel has a profile of this name, in whatever mode.
    #[must_use]
    pub(in crate::runtime) fn is_loaded(&self, name: &str) -> bool {
        let listed = fs::read_to_string(self.securityfs.join("profiles")).unwrap_or_default();
        // `name (mode)`; a name may hold blanks.
        listed.lines().filter_map(|line| line.rsplit_once(" (")).any(|(profile, _)| profile == name)
    }

    /// Loads the default profile unless the kernel has it. Checked for every container: reloading a machine's
    /// profiles removes those that are in none of its files.
    pub(in crate::runtime) fn ensure_default(&self) -> Result<(), AppArmorError> {
        if self.is_loaded(DEFAULT_PROFILE) {
            return Ok(());
        }
        let path = self.parsers.iter().find(|path| path.exists()).ok_or(AppArmorError::NoParser)?;
        let failed = |source| AppArmorError::Run { path: path.clone(), source };
        // Replace, because another agent may load it at the same time; no cache, because that would be on
        // flash.
        let mut command = Command::new(path);
        command.args(["--skip-cache", "--replace"]).env_clear().env("LC_ALL", "C");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        // A parser that stops reading reports the reason when it ends.
        let _ = child.stdin.take().map(|mut stdin| stdin.write_all(profile(DEFAULT_PROFILE).as_bytes()));
        let output = child.wait_with_output().map_err(failed)?;
        if output.status.success() {
            return Ok(());
        }
        let said: String = String::from_utf8_lossy(&output.stderr).trim().chars().take(MAX_SAID).collect();
        let said = if said.is_empty() { output.status.to_string() } else { said };
        Err(AppArmorError::Refused { path: path.clone(), said })
    }
}

/// Equivalent to containerd's and Docker's default: everything that a container's capabilities allow, but no
/// mounts, no writes to the kernel's files, and no signals to or tracing of processes outside. It includes no
/// file, so that the parser alone is enough.
fn profile(name: &str) -> String {
    format!(
        "profile {name} flags=(attach_disconnected,mediate_deleted) {{
  network,
  capability,
  file,
  umount,

  # The monitor, which ends it, and its own processes.
  signal (receive) peer=unconfined,
  signal (send,receive) peer={name},
  ptrace (trace,read,tracedby,readby) peer={name},

  deny mount,

  # Below /proc numbers are processes; all else is the kernel's, but for the sysctls of shared memory, which are the pod's.
  deny /proc/* w,
  deny /proc/[^1-9s]*/** w,
  deny /proc/s[^y]*/** w,
  deny /proc/sy[^s]*/** w,
  deny /proc/sys?*/** w,
  deny /proc/sys/[^k]** w,
  deny /proc/sys/k[^e]** w,
  deny /proc/sys/kernel/[^s]** w,
  deny /proc/sys/kernel/s[^h]** w,
  deny /proc/sys/kernel/sh[^m]** w,
  deny /proc/{{sysrq-trigger,kcore,kmem,mem}} rwklx,

  # Of /sys only the cgroups, which are mounted read-only where they are to be.
  deny /sys/[^f]*/** wklx,
  deny /sys/f[^s]*/** wklx,
  deny /sys/fs/[^c]*/** wklx,
  deny /sys/fs/c[^g]*/** wklx,
  deny /sys/fs/cg[^r]*/** wklx,
  deny /sys/firmware/** rwklx,
  deny /sys/devices/virtual/powercap/** rwklx,
  deny /sys/kernel/security/** rwklx,
}}
"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Fake(PathBuf, AppArmor);

    impl Fake {
        /// A securityfs with one profile, and a parser that does what `script` says.
        fn new(name: &str, script: Option<&str>) -> Self {
            let base =
                std::env::temp_dir().join(format!("edge-agent-apparmor-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&base);
            fs::create_dir_all(&base).unwrap();
            fs::write(base.join("profiles"), "/usr/bin/man (enforce)\nmy profile//sub (complain)\n").unwrap();
            let parser = base.join("parser");
            if let Some(script) = script {
                fs::write(&parser, format!("#!/bin/sh\ncd {}\n{script}\n", base.display())).unwrap();
                fs::set_permissions(&parser, fs::Permissions::from_mode(0o755)).unwrap();
            }
            let parsers = vec![base.join("elsewhere"), parser];
            Self(base.clone(), AppArmor { securityfs: base, parsers })
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn profiles_are_known_by_their_whole_names_in_any_mode() {
        let fake = Fake::new("names", None);
        for (name, is_there) in [
            ("/usr/bin/man", true),
            ("my profile//sub", true),
            ("my profile", false),
            ("/usr/bin/man (enforce)", false),
            ("", false),
        ] {
            assert_eq!(fake.1.is_loaded(name), is_there, "{name:?}");
        }
        let nowhere = AppArmor { securityfs: "/nonexistent".into(), parsers: Vec::new() };
        assert!(!nowhere.is_loaded("/usr/bin/man"));
    }

    #[test]
    fn default_apparmor_profile_is_reloaded_only_after_removal() {
        let script = "echo \"$@\" >>calls; cat >text; echo 'edge-agent-default (enforce)' >>profiles";
        let fake = Fake::new("load", Some(script));
        let read = |file: &str| fs::read_to_string(fake.0.join(file)).unwrap();
        let before = read("profiles");
        fake.1.ensure_default().unwrap();
        fake.1.ensure_default().unwrap();
        assert_eq!(read("calls"), "--skip-cache --replace\n");
        assert_eq!(read("text"), profile(DEFAULT_PROFILE));
        fs::write(fake.0.join("profiles"), before).unwrap();
        fake.1.ensure_default().unwrap();
        assert_eq!(read("calls").lines().count(), 2);
    }

    #[test]
    fn missing_or_failing_apparmor_parser_is_reported() {
        let error = Fake::new("none", None).1.ensure_default().unwrap_err();
        assert!(matches!(error, AppArmorError::NoParser), "{error:?}");
        let error =
            Fake::new("refuses", Some("echo 'syntax error in line 1' >&2; exit 1")).1.ensure_default();
        let error = error.unwrap_err().to_string();
        assert!(
            error.ends_with("rejected profile \"edge-agent-default\": syntax error in line 1"),
            "{error}"
        );
        let error = Fake::new("dies", Some("kill -9 $$")).1.ensure_default().unwrap_err().to_string();
        assert!(error.contains("signal: 9"), "{error}");
    }
}
