//! The image of sandboxes: one program of a few instructions that waits, so that a pod's namespaces have an owner.
//!
//! Pure. The program is here because an engine without a registry must be able to run pods, and because a larger one would
//! cost each pod its memory. It ignores SIGCHLD, so that the kernel itself reaps the children of a shared PID
//! namespace, and then waits forever; SIGKILL ends it.

use super::request::PAUSE_PROGRAM;
use crate::codec::tiny_program::{self, ElfMachine, elf};

/// `rt_sigaction(SIGCHLD, {SIG_IGN}, NULL, 8)`, then `pause()` in a loop. The structure comes after the code.
#[cfg(target_arch = "x86_64")]
const CODE: [u32; 10] = [
    0x0000_0db8,
    0x0011_bf00,
    0x8d48_0000,
    0x0000_1735,
    0x41d2_3100,
    0x0000_08ba,
    0xb805_0f00,
    0x0000_0022,
    0xf7eb_050f,
    0x0040_1f0f,
];
/// The same; instead of `pause()`, which this machine has not, `ppoll(NULL, 0, NULL, NULL)`.
#[cfg(target_arch = "aarch64")]
const CODE: [u32; 14] = [
    0xd280_10c8,
    0xd280_0220,
    0x1000_0181,
    0xd280_0002,
    0xd280_0103,
    0xd400_0001,
    0xd280_0000,
    0xd280_0001,
    0xd280_0002,
    0xd280_0003,
    0xd280_0928,
    0xd400_0001,
    0x17ff_fffa,
    0xd503_201f,
];
/// As for `x86_64`.
#[cfg(target_arch = "arm")]
const CODE: [u32; 10] = [
    0xe3a0_70ae,
    0xe3a0_0011,
    0xe28f_1018,
    0xe3a0_2000,
    0xe3a0_3008,
    0xef00_0000,
    0xe3a0_701d,
    0xef00_0000,
    0xeaff_fffc,
    0xe1a0_0000,
];
/// `struct sigaction` with `SIG_IGN` and nothing else.
const ACTION: [u32; 8] = [1, 0, 0, 0, 0, 0, 0, 0];

const MACHINE: ElfMachine = if cfg!(target_arch = "x86_64") {
    tiny_program::X86_64
} else if cfg!(target_arch = "aarch64") {
    tiny_program::AARCH64
} else {
    tiny_program::ARM
};

/// A program for this machine that does nothing.
fn program() -> Vec<u8> {
    let words = CODE.iter().chain(&ACTION);
    let code: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
    elf(&MACHINE, &code)
}

/// The root directory of the image, as a tar archive.
pub(super) fn archive() -> Vec<u8> {
    tiny_program::archive(PAUSE_PROGRAM, &program())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_program_of_sandboxes_runs_here_and_waits() {
        let path = std::env::temp_dir().join(format!("agent-pause-{}", std::process::id()));
        std::fs::write(&path, program()).expect("write it");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("make it a program");
        let mut child = Command::new(&path).stdin(Stdio::null()).spawn().expect("start it");
        let ignored = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it lives");
            let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).expect("a line of it");
            u64::from_str_radix(line, 16).expect("hexadecimal digits")
        };
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while ignored() & (1 << 16) == 0 && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        assert_eq!(ignored() & (1 << 16), 1 << 16, "SIGCHLD");
        assert_eq!(child.try_wait().expect("ask"), None, "it waits");
        child.kill().expect("end it");
        child.wait().expect("it has ended");
        std::fs::remove_file(&path).expect("remove it");
    }

    #[test]
    fn its_archive_is_a_tar_of_one_file() {
        let archive = archive();
        assert_eq!(archive.len() % 512, 0);
        let mut tar =
            Command::new("tar").arg("-tv").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("tar");
        std::io::Write::write_all(&mut tar.stdin.take().expect("piped"), &archive).expect("write it");
        let listed = tar.wait_with_output().expect("read it");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(listed.starts_with("-rwxr-xr-x 0/0") && listed.trim_end().ends_with("pause"), "{listed}");
    }
}
