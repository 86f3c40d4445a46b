//! Ending processes.

use std::process::Child;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Sends SIGKILL to one process; no error when it has ended. Never to init, to this process or to a whole
/// group.
pub(crate) fn kill_process(pid: i32) -> std::io::Result<()> {
    if pid <= 1 || Pid::this().as_raw() == pid {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    match kill(Pid::from_raw(pid), Signal::SIGKILL) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Sends SIGKILL to a child that leads a process group, and to its descendants in the group. The child may have ended, but
/// must not have been waited for: until then the number is its own.
pub(crate) fn kill_group(leader: &Child) {
    if let Ok(group) = i32::try_from(leader.id()) {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_other_process_can_be_meant() {
        for pid in [-1, 0, 1, Pid::this().as_raw()] {
            assert_eq!(kill_process(pid).unwrap_err().kind(), std::io::ErrorKind::InvalidInput, "{pid}");
        }
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        kill_process(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(!child.wait().unwrap().success());
    }
}
