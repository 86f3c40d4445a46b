//! The kernel's log, line by line, and its memory pressure events.
//!
//! Owns both descriptors.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

use nix::libc;

use super::reactor::Polled;

/// A record is no longer than this (`PRINTK_MESSAGE_MAX` and its header).
const LONGEST: usize = 8192;
/// Stalls on memory of 100 ms within one second.
const STALL: &str = "some 100000 1000000\0";

/// `/dev/kmsg` from now on.
#[derive(Debug)]
pub(crate) struct KernelLog(Polled);

impl KernelLog {
    pub(crate) fn open() -> io::Result<Self> {
        let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg")?;
        file.seek(SeekFrom::End(0))?;
        Polled::readable(OwnedFd::from(file)).map(Self)
    }

    /// The next line, without its header. Lines overwritten before they were read are skipped.
    pub(crate) async fn next(&self) -> io::Result<String> {
        loop {
            let mut record = vec![0; LONGEST];
            let read =
                |fd: std::os::fd::BorrowedFd<'_>| File::from(fd.try_clone_to_owned()?).read(&mut record);
            match self.0.read_with(read).await {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    let text = String::from_utf8_lossy(&record[..length]);
                    let line = text.split_once(';').map_or(&*text, |(_, line)| line);
                    return Ok(line.lines().next().unwrap_or_default().to_owned());
                }
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The kernel's events when memory is short (`/proc/pressure/memory`, 5.2 and later).
#[derive(Debug)]
pub(crate) struct MemoryStalls(Polled);

impl MemoryStalls {
    pub(crate) fn open() -> io::Result<Self> {
        let options = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).to_owned();
        let mut file = options.open("/proc/pressure/memory")?;
        file.write_all(STALL.as_bytes())?;
        Polled::urgent(OwnedFd::from(file)).map(Self)
    }

    pub(crate) async fn next(&self) -> io::Result<()> {
        self.0.wait_urgent().await
    }
}
