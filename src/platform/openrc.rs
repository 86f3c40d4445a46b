//! Machine shutdown as OpenRC records it.
//!
//! Owns reading OpenRC's state directory.

use std::fs;
use std::path::Path;

/// OpenRC's default state directory, without `RC_SVCDIR`.
const STATE: &str = "/run/openrc";
/// The runlevel; set to `shutdown` before the first service is stopped, for a reboot, too.
const RUNLEVEL: &str = "softlevel";
/// Written by the agent's init script where the machine goes down by another runlevel (Debian's `off`);
/// OpenRC removes it when the service has stopped.
const MARK: &str = "options/agent/goes_down";

/// Whether OpenRC is shutting the machine down, as opposed to stopping the agent alone.
#[must_use]
pub(crate) fn machine_goes_down(state: Option<&str>) -> bool {
    let state = Path::new(state.unwrap_or(STATE));
    let runlevel = fs::read_to_string(state.join(RUNLEVEL)).unwrap_or_default();
    ends_machine(&runlevel, state.join(MARK).exists())
}

/// Maintenance (`single`) and runlevels that an administrator changes to do not.
fn ends_machine(runlevel: &str, is_marked: bool) -> bool {
    is_marked || runlevel.trim_end() == "shutdown"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_shutdown_runlevel_and_the_mark_end_the_machine() {
        for (runlevel, is_marked, ends) in [
            ("shutdown", false, true),
            ("shutdown\n", false, true),
            ("default", true, true),
            ("default", false, false),
            ("single", false, false),
            ("shutdown-later", false, false),
            ("", false, false),
        ] {
            assert_eq!(ends_machine(runlevel, is_marked), ends, "{runlevel:?} {is_marked}");
        }
        assert!(!machine_goes_down(Some("/nonexistent")));
    }
}
