//! Accepts connections, serves their requests and closes them.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use super::super::init;
use super::super::protocol::{MAX_MESSAGE, Reply, Request, Started};
use super::connection::{ClientConnection, Role};
use super::exec::Wishes;
use super::{Monitor, PAUSE, TokenKind, log_error, token};
use crate::platform::clock::Clock;
use crate::platform::sys::epoll::Readiness;
use crate::platform::sys::packets::{self, Descriptors};
use crate::platform::sys::streams;

const MAX_CONNECTIONS: usize = 64;

/// What happens to a connection after its request.
enum Outcome {
    /// It gets this reply and is closed.
    Finished(Reply),
    /// It stays, as this.
    KeepOpen(Role),
}

impl Monitor {
    /// Accepts waiting connections.
    pub(super) fn accept(&mut self) {
        loop {
            let socket = match packets::accept(self.listener.as_fd()) {
                Ok(socket) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    // Out of descriptors: close a connection without a request; if there is none, wait until
                    // another is closed.
                    if !self.drop_oldest_idle() {
                        log_error(&format_args!("accept a connection: {error}"));
                        self.epoll.remove(self.listener.as_fd());
                        self.paused_until = Some(Instant::now() + PAUSE);
                        return;
                    }
                    continue;
                }
            };
            let serial = self.serial();
            let connection = ClientConnection { socket, serial, role: Role::Idle };
            if self.connections.len() >= MAX_CONNECTIONS && !self.drop_oldest_idle() {
                connection.reply(&Reply::Failed {
                    message: "the pod's monitor has too many connections".to_owned(),
                });
                continue;
            }
            let added = self.epoll.add(
                connection.socket.as_fd(),
                Readiness::Read,
                token(TokenKind::Connection, serial),
            );
            if added.is_ok() {
                self.connections.push(connection);
            }
        }
    }

    /// Connections are in the order in which they came.
    fn drop_oldest_idle(&mut self) -> bool {
        let idle = self.connections.iter().position(|connection| matches!(connection.role, Role::Idle));
        idle.map(|at| self.connections.remove(at)).is_some()
    }

    /// A connection has a request, or was closed.
    pub(super) fn receive(&mut self, serial: u32) {
        let Some(at) = self.connections.iter().position(|connection| connection.serial == serial) else {
            return;
        };
        let mut bytes = [0; MAX_MESSAGE];
        let mut descriptors = Descriptors::default();
        let connection = &self.connections[at];
        let length = match packets::receive(connection.socket.as_fd(), &mut bytes, &mut descriptors) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return,
            // One request per connection: any further message ends it, as closing it does.
            Ok(length @ 1..) if matches!(connection.role, Role::Idle) => length,
            _ => return self.drop_connection(at),
        };
        let outcome = match Request::decode(&bytes[..length]) {
            Ok(request) => self.carry_out(serial, request, &mut descriptors),
            Err(error) => Outcome::Finished(Reply::Failed { message: error.to_string() }),
        };
        // The request may have closed other connections.
        let Some(at) = self.connections.iter().position(|connection| connection.serial == serial) else {
            return;
        };
        match outcome {
            Outcome::Finished(reply) => {
                self.connections[at].reply(&reply);
                self.connections.remove(at);
            }
            Outcome::KeepOpen(role) => self.connections[at].role = role,
        }
    }

    fn drop_connection(&mut self, at: usize) {
        match self.connections.remove(at).role {
            Role::Exec(exec) => self.abandon_exec(exec),
            Role::Attach(attach) => self.end_attach(&attach),
            Role::Idle | Role::Watch | Role::WaitingWatch | Role::Start(_) | Role::Shutdown => {}
        }
    }

    fn carry_out(&mut self, connection: u32, request: Request, descriptors: &mut Descriptors) -> Outcome {
        let done = |result: Result<(), String>| {
            Outcome::Finished(result.map_or_else(|message| Reply::Failed { message }, |()| Reply::Done))
        };
        let stays = |result: Result<Role, String>| match result {
            Ok(role) => Outcome::KeepOpen(role),
            Err(message) => Outcome::Finished(Reply::Failed { message }),
        };
        match request {
            Request::Watch => self.watch(connection),
            Request::Start { container } => stays(self.begin(&container).map(Role::Start)),
            Request::Signal { container, signal, all } => done(self.signal(&container, signal, all)),
            Request::Exec { container, stdin, stdout, stderr, terminal } => {
                let wishes = Wishes { stdin, stdout, stderr, terminal };
                stays(self.begin_exec(&container, wishes, descriptors).map(Role::Exec))
            }
            Request::Attach { container, stdin, stdout, stderr } => {
                let wishes = Wishes { stdin, stdout, stderr, terminal: false };
                let begun = self.begin_attach(&container, wishes, descriptors);
                if begun.is_ok() {
                    self.reply_to(connection, &Reply::Done);
                }
                stays(begun.map(Role::Attach))
            }
            Request::Resize { container, width, height } => done(self.resize(&container, width, height)),
            Request::ReopenLog { container } => done(match self.container_named(&container) {
                Some(at) => {
                    self.containers[at].log.reopen().map_err(|error| format!("reopen the log: {error}"))
                }
                None => Ok(()),
            }),
            Request::Forget { container } => done(self.forget(&container)),
            Request::Shutdown => {
                self.stopping = true;
                Outcome::KeepOpen(Role::Shutdown)
            }
            Request::SharePids => Outcome::Finished(self.share_pids()),
        }
    }

    fn share_pids(&mut self) -> Reply {
        if self.stopping {
            return Reply::Failed { message: "the pod is ending".to_owned() };
        }
        match init::share_pids(&mut self.pod) {
            Ok(pid) => {
                let started = Started { pid, at: Clock::System.now() };
                Reply::Running { container: String::new(), started }
            }
            Err(error) => Reply::Failed { message: crate::platform::logging::chain(&error) },
        }
    }

    /// True when the connection took the reply.
    fn reply_to(&self, serial: u32, reply: &Reply) -> bool {
        let mut all = self.connections.iter();
        all.find(|connection| connection.serial == serial).is_some_and(|connection| connection.reply(reply))
    }

    /// The client that asked for a start may be gone: a container is shown when it is known whether it runs.
    fn watch(&self, serial: u32) -> Outcome {
        if self.containers.iter().any(super::Container::is_starting) {
            return Outcome::KeepOpen(Role::WaitingWatch);
        }
        let states = self.containers.iter().filter_map(super::Container::state);
        for state in states {
            if !self.reply_to(serial, &state) {
                return Outcome::Finished(state);
            }
        }
        self.reply_to(serial, &Reply::Done);
        Outcome::KeepOpen(Role::Watch)
    }

    /// Answers watches that came while a container was being started.
    pub(super) fn answer_waiting_watches(&mut self) {
        for at in (0..self.connections.len()).rev() {
            if !matches!(self.connections[at].role, Role::WaitingWatch) {
                continue;
            }
            match self.watch(self.connections[at].serial) {
                Outcome::KeepOpen(role) => self.connections[at].role = role,
                Outcome::Finished(_) => drop(self.connections.remove(at)),
            }
        }
    }

    fn signal(&self, id: &str, signal: i32, all: bool) -> Result<(), String> {
        let Some(at) = self.container_named(id) else { return Ok(()) };
        let container = &self.containers[at];
        if all {
            container.kill();
            return Ok(());
        }
        container.signal(signal).map_err(|error| format!("send signal {signal}: {error}"))
    }

    fn resize(&self, id: &str, width: u16, height: u16) -> Result<(), String> {
        let found = self.container_named(id).map(|at| &self.containers[at]);
        let console = found.and_then(|container| container.console.as_ref());
        let console = console.ok_or_else(|| format!("container {id} has no terminal"))?;
        streams::resize_terminal(console.as_fd(), width, height).map_err(|error| format!("resize: {error}"))
    }

    fn forget(&mut self, id: &str) -> Result<(), String> {
        let Some(at) = self.container_named(id) else { return Ok(()) };
        if !self.containers[at].has_ended() {
            return Err(format!("container {id} has not exited"));
        }
        self.containers.remove(at);
        Ok(())
    }
}
