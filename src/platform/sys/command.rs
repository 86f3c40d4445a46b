//! Running a program for its output: with a deadline, and independent of other runs.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::kill::kill_group;

/// A program's output and exit status.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub status: ExitStatus,
    /// Standard output, cut at the requested length.
    pub output: Vec<u8>,
    /// Standard error, cut at the requested length.
    pub errors: Vec<u8>,
}

/// Runs `command` with `input`. The standard streams are files in memory: neither side waits for the other to
/// read, and a descendant that keeps them open blocks nothing. Of each output `longest` bytes are read.
///
/// # Errors
/// When it cannot be started; `TimedOut` when it did not end in time: it and its descendants are killed.
pub(crate) fn run(
    command: &mut Command,
    input: &[u8],
    longest: u64,
    timeout: Duration,
) -> io::Result<CommandOutput> {
    let (mut stdin, mut stdout, mut stderr) = (memory()?, memory()?, memory()?);
    stdin.write_all(input)?;
    stdin.rewind()?;
    let mut child = command
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::from(stdout.try_clone()?))
        .stderr(Stdio::from(stderr.try_clone()?))
        .process_group(0)
        .spawn()?;
    let status = match wait(&mut child, timeout) {
        Ok(Some(status)) => status,
        ended => {
            // Its own process group, so that its descendants end with it.
            kill_group(&child);
            child.wait()?;
            ended?;
            return Err(io::ErrorKind::TimedOut.into());
        }
    };
    Ok(CommandOutput { status, output: read(&mut stdout, longest)?, errors: read(&mut stderr, longest)? })
}

fn memory() -> io::Result<File> {
    Ok(File::from(memfd_create(c"command", MFdFlags::MFD_CLOEXEC)?))
}

fn read(file: &mut File, longest: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(longest).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// `None` when it has not ended in time. A kernel before 5.3 has no descriptor to wait with; it waits without
/// a deadline.
fn wait(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    let descriptor = match open_process(child.id()) {
        Err(error) if error.raw_os_error() == Some(Errno::ENOSYS as i32) => return child.wait().map(Some),
        other => other?,
    };
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)], left) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(0) => return Ok(None),
            Ok(_) => return child.wait().map(Some),
        }
    }
}

fn open_process(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: two plain numbers; the answer is a descriptor or an error.
    let answer = unsafe { nix::libc::syscall(nix::libc::SYS_pidfd_open, pid, 0) };
    match i32::try_from(answer) {
        // SAFETY: the kernel has just made this descriptor for this call, and nothing else owns it.
        Ok(number) if number >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, timeout: Duration) -> io::Result<CommandOutput> {
        run(Command::new("sh").arg("-c").arg(script), b"question", 16, timeout)
    }

    #[test]
    fn it_is_asked_and_answers() {
        let answer = sh("cat; echo no >&2; exit 3", Duration::from_secs(30)).unwrap();
        assert_eq!(
            (answer.status.code(), &answer.output[..], &answer.errors[..]),
            (Some(3), &b"question"[..], &b"no\n"[..])
        );
        let answer = sh("yes | head -c 100000", Duration::from_secs(30)).unwrap();
        assert_eq!(answer.output.len(), 16);
    }

    #[test]
    fn one_that_does_not_end_is_killed_with_what_it_started() {
        let started = Instant::now();
        let error = sh("sleep 1000 & echo $! ; sleep 1000", Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn command_leaving_a_background_process_returns_at_once() {
        let started = Instant::now();
        let answer = sh("sleep 20 & echo $!", Duration::from_secs(60)).unwrap();
        assert!(answer.status.success() && started.elapsed() < Duration::from_secs(15));
        let left: i32 = String::from_utf8(answer.output).unwrap().trim().parse().unwrap();
        crate::platform::sys::kill::kill_process(left).unwrap();
    }
}
