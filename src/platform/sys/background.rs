//! Low priority for background work.

use nix::libc;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigHandler, Signal, signal};

/// Lower priority for processor time than other programs.
const NICE: libc::c_int = 10;
/// `IOPRIO_WHO_PROCESS`.
const WHO_PROCESS: libc::c_int = 1;
/// Best effort, the last of its eight levels: the idle class would starve beside a busy SD card.
const IO_PRIORITY: libc::c_int = 2 << 13 | 7;
/// The OOM killer takes it before any pod with a usual score.
const OOM_SCORE_ADJ: &str = "900";

/// Lowers the priority of this process, from its first thread on, and makes it end with its parent. Errors of
/// the kernel are ignored: the priority is a courtesy.
pub(crate) fn lower_priority() {
    // SAFETY: nice takes a plain integer and only lowers this process's priority.
    unsafe {
        libc::nice(NICE);
    }
    // SAFETY: ioprio_set takes three plain integers; 0 means the caller itself.
    unsafe {
        libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, IO_PRIORITY);
    }
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    let _ = set_pdeathsig(Signal::SIGKILL);
    // Ctrl-C is for the parent, which ends its children and reports it.
    // SAFETY: no handler is installed, the signal is ignored.
    let _ = unsafe { signal(Signal::SIGINT, SigHandler::SigIgn) };
}
