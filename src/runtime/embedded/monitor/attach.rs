//! Attached standard inputs: from a client's pipe to a container's, at the speed of the slower one.

use std::fs::File;
use std::os::fd::AsFd;

use super::connection::{Attach, Pump, Pumped, Role};
use super::exec::Wishes;
use super::{Monitor, TokenKind, token};
use crate::platform::sys::epoll::Readiness;
use crate::platform::sys::packets::{self, Descriptors};

impl Monitor {
    /// Couples descriptors with a running container.
    pub(super) fn begin_attach(
        &mut self,
        id: &str,
        wishes: Wishes,
        descriptors: &mut Descriptors,
    ) -> Result<Attach, String> {
        let found = self.container_named(id).filter(|at| self.containers[*at].is_running());
        let at = found.ok_or_else(|| format!("container {id} is not running"))?;
        let streams = wishes.take(descriptors, 0)?;
        for stream in streams.iter().flatten() {
            packets::set_nonblocking(stream.as_fd())
                .map_err(|error| format!("set a stream non-blocking: {error}"))?;
        }
        let [stdin, stdout, stderr] = streams.map(|stream| stream.map(File::from));
        let serial = self.serial();
        // A container without an open standard input cannot take it: the client's pipe is closed, which its
        // writer sees.
        let stdin = stdin.filter(|_| self.containers[at].stdin.is_some());
        let had_stdin = stdin.is_some();
        let stdin = stdin.map(|source| Pump::new(source, serial));
        if let Some(pump) = &stdin {
            self.epoll
                .add(pump.source.as_fd(), Readiness::Read, token(TokenKind::Source, serial))
                .map_err(|error| format!("wait for standard input: {error}"))?;
        }
        let container = &mut self.containers[at];
        let mut attach = Attach { container: container.serial, stdin, had_stdin, stdout, stderr };
        if let Some([stdout, stderr]) = container.unseen.take() {
            attach.output(false, &stdout);
            attach.output(true, &stderr);
        }
        Ok(attach)
    }

    /// A client has written, or closed, its standard input.
    pub(super) fn source_is_ready(&mut self, serial: u32) {
        let mut attached = self.connections.iter().map(|connection| match &connection.role {
            Role::Attach(attach) => attach.stdin.as_ref().map(|pump| pump.serial),
            _ => None,
        });
        if let Some(at) = attached.position(|pump| pump == Some(serial)) {
            self.pump(at);
        }
    }

    /// A container has read from its standard input: every connection that waited for that gets a turn.
    pub(super) fn stdin_has_room(&mut self, serial: u32) {
        let Some(at) = self.container_at(serial) else { return };
        let container = &mut self.containers[at];
        if let Some(stdin) = &container.stdin {
            self.epoll.remove(stdin.as_fd());
        }
        container.stdin_is_full = false;
        for at in 0..self.connections.len() {
            if matches!(&self.connections[at].role, Role::Attach(attach) if attach.container == serial) {
                self.pump(at);
            }
        }
    }

    /// One turn of the pump of a connection.
    fn pump(&mut self, at: usize) {
        let Role::Attach(attach) = &mut self.connections[at].role else { return };
        let Some(pump) = &mut attach.stdin else { return };
        let Some(container) = self.containers.iter_mut().find(|found| found.serial == attach.container)
        else {
            return;
        };
        let Some(target) = &container.stdin else {
            self.epoll.remove(pump.source.as_fd());
            attach.stdin = None;
            return;
        };
        let wait_for_source = match pump.copy_available(target) {
            Pumped::WaitsForSource => true,
            Pumped::WaitsForTarget => {
                let waited_for = container.stdin_is_full
                    || self
                        .epoll
                        .add(target.as_fd(), Readiness::Write, token(TokenKind::Stdin, container.serial))
                        .is_ok();
                container.stdin_is_full = waited_for;
                // Without a writable event to wait for, the source's next event causes the next try.
                !waited_for
            }
            ended @ (Pumped::SourceEnded | Pumped::TargetGone) => {
                self.epoll.remove(pump.source.as_fd());
                attach.stdin = None;
                if ended == Pumped::TargetGone || container.closes_stdin_with_attach() {
                    self.epoll.remove(target.as_fd());
                    container.stdin = None;
                    container.stdin_is_full = false;
                }
                return;
            }
        };
        let source = pump.source.as_fd();
        // Removed from the set while the target is full: a source whose writer is gone would be reported
        // endlessly.
        self.epoll.remove(source);
        if wait_for_source
            && self.epoll.add(source, Readiness::Read, token(TokenKind::Source, pump.serial)).is_err()
        {
            attach.stdin = None;
        }
    }

    /// Ends the coupling of a closed connection with its container.
    pub(super) fn end_attach(&mut self, attach: &Attach) {
        if let Some(pump) = &attach.stdin {
            // The client shares the open file description, so closing the monitor's copy does not remove it
            // from the set.
            self.epoll.remove(pump.source.as_fd());
        }
        let Some(at) = self.container_at(attach.container) else { return };
        let container = &mut self.containers[at];
        if attach.had_stdin
            && container.closes_stdin_with_attach()
            && let Some(stdin) = container.stdin.take()
        {
            self.epoll.remove(stdin.as_fd());
            container.stdin_is_full = false;
        }
    }
}
