//! `SOCK_SEQPACKET` sockets in the file system: whole messages, with descriptors beside them. Only [`wait`]
//! blocks.
//!
//! Owns the layout of ancillary data.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_ptr_alignment,
    clippy::unnecessary_cast,
    reason = "fields of the C library's headers differ in width between platforms; descriptors are written unaligned"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use nix::libc;

/// The most descriptors per message; the kernel closes the rest.
pub const MAX_DESCRIPTORS: usize = 4;

/// The descriptors of a message, in order.
pub type Descriptors = [Option<OwnedFd>; MAX_DESCRIPTORS];

/// Ancillary data with the alignment of its header.
#[repr(C)]
union Ancillary {
    _header: libc::cmsghdr,
    bytes: [u8; 64],
}

fn owned(result: i32) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller passes what a call has just returned as a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: three integers; the descriptor is new.
    owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
}

/// Two connected sockets. Close-on-exec; blocking, unless [`set_nonblocking`] is called.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel writes two descriptors into an array of two.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((owned(ends[0])?, owned(ends[1])?))
}

/// Reads and writes fail with `WouldBlock` from now on, for all holders of this open file description.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: two calls with integers on an open descriptor.
    unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        if flags < 0 || libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// A socket's address holds about a hundred bytes, and paths of sandboxes are longer: the directory is
/// opened, and the address uses its descriptor.
fn with_address<T>(
    path: &Path,
    call: impl FnOnce(*const libc::sockaddr, libc::socklen_t) -> io::Result<T>,
) -> io::Result<T> {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::OpenOptionsExt;
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let (parent, name) = path.parent().zip(path.file_name()).ok_or_else(invalid)?;
    let directory = std::fs::File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC)
        .open(parent)?;
    let mut text = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    text.extend_from_slice(name.as_bytes());
    // SAFETY: an address of zeros is a valid value of this plain structure.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    if text.len() >= address.sun_path.len() || text.contains(&0) {
        return Err(invalid());
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (place, byte) in address.sun_path.iter_mut().zip(&text) {
        *place = *byte as libc::c_char;
    }
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_un>()).unwrap_or(0);
    call((&raw const address).cast(), length)
}

/// Listens at `path`, which only the agent's own user may reach, and replaces any previous file atomically: a
/// client never finds a socket that does not listen yet.
pub(crate) fn listen(path: &Path, backlog: i32) -> io::Result<OwnedFd> {
    use std::os::unix::fs::PermissionsExt;
    let socket = socket()?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let unready = path.with_file_name(name);
    match std::fs::remove_file(&unready) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    with_address(&unready, |address, length| {
        // SAFETY: an open socket and an address of that length.
        match unsafe { libc::bind(socket.as_raw_fd(), address, length) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    })?;
    std::fs::set_permissions(&unready, std::fs::Permissions::from_mode(0o600))?;
    // SAFETY: an open socket and an integer.
    if unsafe { libc::listen(socket.as_raw_fd(), backlog) } != 0 {
        return Err(io::Error::last_os_error());
    }
    std::fs::rename(&unready, path)?;
    Ok(socket)
}

/// Accepts a pending connection.
///
/// # Errors
/// `WouldBlock` when there is none.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the peer's address is not requested; the descriptor is new.
    owned(unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) })
}

/// Connects to the socket at `path`.
///
/// # Errors
/// `WouldBlock` when too many wait to be accepted; `NotFound` or `ConnectionRefused` when nothing listens.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    with_address(path, |address, length| {
        // SAFETY: an open socket and an address of that length.
        match unsafe { libc::connect(socket.as_raw_fd(), address, length) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    })?;
    Ok(socket)
}

fn message(vector: &mut libc::iovec, control: &mut Ancillary, control_length: usize) -> libc::msghdr {
    // SAFETY: a header of zeros is a valid value of this plain structure; its private padding cannot be
    // named.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vector;
    header.msg_iovlen = 1;
    if control_length > 0 {
        header.msg_control = std::ptr::from_mut(control).cast();
        header.msg_controllen = control_length as _;
    }
    header
}

/// Sends one message with descriptors beside it, and never waits.
///
/// # Errors
/// `WouldBlock` when the other side does not read; `BrokenPipe` when it has closed.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut control = Ancillary { bytes: [0; 64] };
    let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let payload = u32::try_from(size_of_val(descriptors)).unwrap_or(0);
    // SAFETY: CMSG_SPACE, CMSG_LEN only calculate.
    let (space, length) = unsafe { (libc::CMSG_SPACE(payload) as usize, libc::CMSG_LEN(payload) as usize) };
    let header = message(&mut vector, &mut control, if descriptors.is_empty() { 0 } else { space });
    // SAFETY: `control` is aligned for a header and larger than one with MAX_DESCRIPTORS descriptors (16 + 16
    // bytes); CMSG_FIRSTHDR is null only without control data. The kernel reads what `header` points to, all
    // of it alive.
    let sent = unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        if !first.is_null() {
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = length as _;
            let data = libc::CMSG_DATA(first).cast::<RawFd>();
            for (place, descriptor) in descriptors.iter().enumerate() {
                data.add(place).write_unaligned(descriptor.as_raw_fd());
            }
        }
        libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits until there is a message, or the end.
pub(crate) fn wait(socket: BorrowedFd<'_>) -> io::Result<()> {
    wait_up_to(socket, None).map(|_| ())
}

/// Waits until there is something to read, or the end; without `patience` there is no timeout. `false` on
/// timeout.
pub(in crate::platform) fn wait_up_to(
    socket: BorrowedFd<'_>,
    patience: Option<Duration>,
) -> io::Result<bool> {
    let mut wanted = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let milliseconds =
        patience.map_or(-1, |patience| i32::try_from(patience.as_millis()).unwrap_or(i32::MAX));
    loop {
        // SAFETY: one entry, a local of this function.
        match unsafe { libc::poll(&raw mut wanted, 1, milliseconds) } {
            -1 => {}
            ready => return Ok(ready > 0),
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Receives one message without waiting. Returns its length, 0 at the end. What does not fit into `bytes` is
/// lost.
///
/// # Errors
/// `WouldBlock` when there is none.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8], descriptors: &mut Descriptors) -> io::Result<usize> {
    receive_with(socket, bytes, descriptors, libc::MSG_DONTWAIT)
}

/// Reads from a stream and takes the descriptors that arrive with it; waits as long as the socket's own
/// timeout allows.
///
/// # Errors
/// `WouldBlock` when the timeout has passed.
pub(crate) fn read(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptors: &mut Descriptors,
) -> io::Result<usize> {
    receive_with(socket, bytes, descriptors, 0)
}

fn receive_with(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptors: &mut Descriptors,
    flags: i32,
) -> io::Result<usize> {
    let mut control = Ancillary { bytes: [0; 64] };
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let room = u32::try_from(size_of::<[RawFd; MAX_DESCRIPTORS]>()).unwrap_or(0);
    // SAFETY: CMSG_SPACE only calculates.
    let space = unsafe { libc::CMSG_SPACE(room) as usize };
    let mut header = message(&mut vector, &mut control, space);
    // SAFETY: the kernel writes at most the two lengths given into memory borrowed here.
    let length =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags | libc::MSG_CMSG_CLOEXEC) };
    let Ok(length) = usize::try_from(length) else { return Err(io::Error::last_os_error()) };
    descriptors.fill_with(|| None);
    // SAFETY: the kernel has filled in valid headers within `control`; every descriptor in them is new and
    // owned only here.
    unsafe {
        let mut place = descriptors.iter_mut();
        let mut next = libc::CMSG_FIRSTHDR(&raw const header);
        while let Some(found) = next.as_ref() {
            if found.cmsg_level == libc::SOL_SOCKET && found.cmsg_type == libc::SCM_RIGHTS {
                let count = (found.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize) / 4;
                let data = libc::CMSG_DATA(next).cast::<RawFd>();
                for index in 0..count {
                    let descriptor = OwnedFd::from_raw_fd(data.add(index).read_unaligned());
                    if let Some(place) = place.next() {
                        *place = Some(descriptor);
                    }
                }
            }
            next = libc::CMSG_NXTHDR(&raw const header, next);
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn packets_and_fds_arrive_whole_through_a_long_socket_path() {
        let directory = std::env::temp_dir().join(format!("edge-agent-packets-{}", std::process::id()));
        let deep = directory.join("d".repeat(120));
        std::fs::create_dir_all(&deep).unwrap();
        let path = deep.join("sock");
        let listener = listen(&path, 4).unwrap();
        assert_eq!(accept(listener.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let client = connect(&path).unwrap();
        let server = accept(listener.as_fd()).unwrap();

        let (mut reader, writer) = std::io::pipe().unwrap();
        let fds = [writer.as_fd(); MAX_DESCRIPTORS];
        send(client.as_fd(), b"one", &fds).unwrap();
        send(client.as_fd(), b"two", &[]).unwrap();
        assert!(send(client.as_fd(), b"", &[writer.as_fd(); MAX_DESCRIPTORS + 1]).is_err());
        drop(writer);
        let (mut bytes, mut fds) = ([0; 16], Descriptors::default());
        assert_eq!(receive(server.as_fd(), &mut bytes, &mut fds).unwrap(), 3);
        assert!(bytes.starts_with(b"one") && fds.iter().all(Option::is_some));
        for fd in &mut fds {
            std::fs::File::from(fd.take().unwrap()).write_all(b"x").unwrap();
        }
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "xxxx");
        assert_eq!(receive(server.as_fd(), &mut bytes, &mut fds).unwrap(), 3);
        assert!(fds.iter().all(Option::is_none));
        let empty = receive(server.as_fd(), &mut bytes, &mut fds).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        drop(client);
        assert_eq!(receive(server.as_fd(), &mut bytes, &mut fds).unwrap(), 0);
        assert_eq!(send(server.as_fd(), b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn send_to_a_full_socket_fails_with_would_block() {
        let (one, _other) = pair().unwrap();
        let full = (0..100_000).find_map(|_| send(one.as_fd(), &[0; 4096], &[]).err()).unwrap();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    }
}
