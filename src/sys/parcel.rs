//! Packets with at most one descriptor, over a connected socket.
//!
//! Owns the control message. Must not know what packets say.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, recvmsg,
    sendmsg, socketpair,
};

/// Two ends of a packet connection; no program inherits them.
///
/// # Errors
/// The kernel's answer.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}

/// Sends one packet.
///
/// # Errors
/// The kernel's answer; `EPIPE` when nobody is there any more.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let fds = fd.map(|fd| [fd.as_raw_fd()]);
    let control: Vec<ControlMessage<'_>> = fds.iter().map(|fds| ControlMessage::ScmRights(fds)).collect();
    loop {
        let flags = MsgFlags::MSG_NOSIGNAL;
        match sendmsg::<UnixAddr>(socket.as_raw_fd(), &[IoSlice::new(bytes)], &control, flags, None) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Takes one packet into `buffer`: its length (0 at the end) and the first descriptor that came along.
///
/// # Errors
/// The kernel's answer.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    loop {
        let mut space = nix::cmsg_space!([std::os::fd::RawFd; 1]);
        let mut slices = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        match recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut slices, Some(&mut space), flags) {
            Ok(message) => {
                let mut first = None;
                for control in message.cmsgs()? {
                    if let ControlMessageOwned::ScmRights(fds) = control {
                        for fd in fds {
                            // SAFETY: the kernel installed it for this message; nobody else owns it. Others than the first
                            // are closed by dropping.
                            let owned = unsafe { OwnedFd::from_raw_fd(fd) };
                            first.get_or_insert(owned);
                        }
                    }
                }
                return Ok((message.bytes, first));
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_packet_arrives_with_its_descriptor_and_the_end_is_seen() {
        let (here, there) = pair().unwrap();
        send(here.as_fd(), b"word", Some(here.as_fd())).unwrap();
        let mut buffer = [0; 16];
        let (length, fd) = receive(there.as_fd(), &mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"word");
        drop((here, fd.expect("one came along")));
        let (length, fd) = receive(there.as_fd(), &mut buffer).unwrap();
        assert!(length == 0 && fd.is_none());
        assert!(send(there.as_fd(), b"word", None).is_err());
    }
}
