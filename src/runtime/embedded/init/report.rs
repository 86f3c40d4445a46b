//! What a child reports to the monitor between fork and exec. The end of the connection without
//! [`Report::Failed`] means that the program runs.
//!
//! Owns the packets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::platform::sys::packets;

/// Longer reasons are cut.
const MAX_TEXT: usize = 3072;

#[derive(Debug)]
pub(crate) enum Report {
    /// The container's (or exec's) first process, as the node sees it. Once.
    Pid(i32),
    /// The master of the terminal that was asked for. Once, before or after the process.
    Terminal(OwnedFd),
    /// It cannot be started, and why.
    Failed(String),
}

impl Report {
    /// Sends the report. A receiver that is gone does not need it.
    pub(in crate::runtime) fn send(self, socket: BorrowedFd<'_>) {
        // The kernel kills the child with its monitor; an error here can only mean that this is about to
        // happen.
        let _ = match &self {
            Self::Pid(pid) => packets::send(socket, format!("P{pid}").as_bytes(), &[]),
            Self::Terminal(master) => packets::send(socket, b"T", &[master.as_fd()]),
            Self::Failed(text) => {
                let fits = |end: &usize| text.is_char_boundary(*end);
                let end = (0..=MAX_TEXT.min(text.len())).rev().find(fits).unwrap_or_default();
                packets::send(socket, format!("E{}", &text[..end]).as_bytes(), &[])
            }
        };
    }

    /// Takes the next report without waiting; `None` at the end.
    ///
    /// # Errors
    /// `WouldBlock` when there is none yet; the kernel's answer; `InvalidData` for a packet that is no
    /// report.
    pub(in crate::runtime) fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let mut buffer = [0; MAX_TEXT + 1];
        let mut descriptors = packets::Descriptors::default();
        let length = packets::receive(socket, &mut buffer, &mut descriptors)?;
        let [fd, ..] = descriptors;
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let Some((kind, text)) = buffer[..length].split_first() else { return Ok(None) };
        let text = String::from_utf8_lossy(text);
        Ok(Some(match (kind, fd) {
            (b'P', None) => Self::Pid(text.parse().map_err(|_| invalid())?),
            (b'T', Some(master)) => Self::Terminal(master),
            (b'E', None) => Self::Failed(text.into_owned()),
            _ => return Err(invalid()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_round_trip_and_long_text_is_cut_at_a_char() {
        let (here, there) = packets::pair().unwrap();
        Report::Pid(4711).send(here.as_fd());
        Report::Terminal(here.try_clone().unwrap()).send(here.as_fd());
        Report::Failed(format!("x{}", "ä".repeat(MAX_TEXT))).send(here.as_fd());
        drop(here);
        let next = || Report::receive(there.as_fd()).unwrap();
        assert!(matches!(next(), Some(Report::Pid(4711))));
        assert!(matches!(next(), Some(Report::Terminal(_))));
        let Some(Report::Failed(text)) = next() else { panic!("a reason was sent") };
        assert!(text.starts_with('x') && text.ends_with('ä') && text.len() > MAX_TEXT - 2);
        assert!(next().is_none());
    }

    #[test]
    fn malformed_report_packets_are_refused() {
        let (here, there) = packets::pair().unwrap();
        for packet in [&b"P12x"[..], b"T", b"Q"] {
            packets::send(here.as_fd(), packet, &[]).unwrap();
            assert!(Report::receive(there.as_fd()).is_err());
        }
    }
}
