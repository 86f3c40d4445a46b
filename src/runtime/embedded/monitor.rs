//! A pod's monitor: owns its processes, their streams and exits, and outlives the agent.
//!
//! One thread and one epoll loop. It decides nothing and parses nothing large: work that needs memory is done
//! by a child (`init`), whose memory is freed with it. All input is bounded, and no slow client delays
//! another.

mod attach;
mod cgroup;
mod connection;
mod container;
mod exec;
mod fork_server;
mod log;
mod request;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use connection::ClientConnection;
use container::Container;
use exec::Exec;
pub use fork_server::main;
use log::Entries;

use super::client::READY;
use super::init::{self, PodHandles};
use super::layout::SandboxDir;
use super::protocol::{Exited, Reply};
use super::spec::PodSpec;
use crate::model::api::decode;
use crate::platform::clock::Clock;
use crate::platform::sys::children::{self, ChildExit};
use crate::platform::sys::durable::replace_private;
use crate::platform::sys::epoll::{Batch, Epoll, Readiness, Ready};
use crate::platform::sys::{memory, node, packets};

/// A program that has not started by then never will.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// How long to wait for the rest of a container's output after its end: other processes may hold its streams
/// open.
const DRAIN_DEADLINE: Duration = Duration::from_secs(1);
/// How long containers have to end after SIGTERM when there is no agent to apply their grace periods.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How often SIGKILL is sent again to what should be dead.
const KILL_EVERY: Duration = Duration::from_millis(50);
/// How long no connection is accepted after running out of descriptors.
const PAUSE: Duration = Duration::from_secs(1);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Children that ended before the monitor learned that they were its own.
const MAX_STRAYS: usize = 64;
/// Output is read in pieces of this size.
const CHUNK: usize = 16 * 1024;
/// Idle time after which it frees memory that it can allocate again.
const QUIET: Duration = Duration::from_secs(2);

/// The kind of object that an event belongs to: the low byte of a token. The rest is a serial number, which
/// is never used twice, so that an event for a closed object finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum TokenKind {
    Signals,
    Listener,
    Connection,
    Report,
    Stdout,
    Stderr,
    Stdin,
    Source,
    ExecReport,
}

const KINDS: [TokenKind; 9] = [
    TokenKind::Signals,
    TokenKind::Listener,
    TokenKind::Connection,
    TokenKind::Report,
    TokenKind::Stdout,
    TokenKind::Stderr,
    TokenKind::Stdin,
    TokenKind::Source,
    TokenKind::ExecReport,
];

fn token(kind: TokenKind, serial: u32) -> u64 {
    u64::from(serial) << 8 | kind as u64
}

struct Monitor {
    directory: SandboxDir,
    pod: PodHandles,
    epoll: Epoll,
    signals: File,
    listener: OwnedFd,
    /// No connection is accepted before.
    paused_until: Option<Instant>,
    next_serial: u32,
    connections: Vec<ClientConnection>,
    containers: Vec<Container>,
    execs: Vec<Exec>,
    unclaimed_exits: Vec<ChildExit>,
    input: Vec<u8>,
    entries: Entries,
    stopping: bool,
    /// Its scope or the machine is being stopped: what has not ended by then is killed.
    end_at: Option<Instant>,
    /// When to free memory, unless something happens before.
    release_memory_at: Option<Instant>,
}

/// The monitor of the sandbox in this directory. Reports on standard output whether it is ready, and writes nothing more
/// there. Returns its exit code.
fn run(directory: &Path) -> u8 {
    let said = Monitor::set_up(directory);
    let (monitor, word) = match said {
        Ok(monitor) => (Some(monitor), READY),
        Err(ref message) => (None, message.as_bytes()),
    };
    // An error means that the waiting agent is gone; its successor finds the monitor by itself.
    let _ = io::stdout().write_all(word).and_then(|()| io::stdout().flush());
    let Some(monitor) = monitor else { return 1 };
    if let Err(error) = close_stdout() {
        log_error(&format_args!("close standard output: {error}"));
    }
    match monitor.run() {
        Ok(()) => 0,
        Err(error) => {
            log_error(&format_args!("wait for events: {error}"));
            1
        }
    }
}

fn close_stdout() -> io::Result<()> {
    let null = File::open("/dev/null")?;
    children::set_stdio(null.as_fd(), null.as_fd(), io::stderr().as_fd())
}

/// Writes a warning for people who investigate a problem (`monitor.err`).
fn log_error(what: &dyn std::fmt::Display) {
    let _ = writeln!(io::stderr(), "monitor: {what}");
}

impl Monitor {
    /// Not inlined: its stack frame must not become part of the frames that stay.
    #[inline(never)]
    fn set_up(directory: &Path) -> Result<Self, String> {
        fn context(doing: &str) -> impl Fn(io::Error) -> String + '_ {
            move |error| format!("{doing}: {error}")
        }
        let directory = SandboxDir(std::path::absolute(directory).map_err(context("find the directory"))?);
        let signals = children::become_supervisor().map_err(context("become a supervisor"))?;
        std::env::set_current_dir("/").map_err(context("change directory to /"))?;
        let spec = read_spec(&directory)?;
        if let Err(error) = node::set_oom_score_adj(spec.oom_score_adj) {
            log_error(&format_args!("set oom_score_adj to {}: {error}", spec.oom_score_adj));
        }
        let pod = init::make_pod(&spec).map_err(|error| crate::platform::logging::chain(&error))?;
        let epoll = Epoll::new().map_err(context("create an epoll instance"))?;
        let listener = packets::listen(&directory.socket(), BACKLOG).map_err(context("listen"))?;
        for (fd, kind) in [(signals.as_fd(), TokenKind::Signals), (listener.as_fd(), TokenKind::Listener)] {
            epoll
                .add(fd, Readiness::Read, token(kind, 0))
                .map_err(context("wait for signals and connections"))?;
        }
        let pid = std::process::id();
        let started = children::start_time(pid.cast_signed()).map_err(context("read own start time"))?;
        replace_private(&directory.monitor_pid(), format!("{pid} {started}\n").as_bytes())
            .map_err(context("write monitor.pid"))?;
        Ok(Self {
            directory,
            pod,
            epoll,
            signals: signals.into(),
            listener,
            paused_until: None,
            next_serial: 1,
            connections: Vec::new(),
            containers: Vec::new(),
            execs: Vec::new(),
            unclaimed_exits: Vec::new(),
            input: vec![0; CHUNK],
            entries: Entries::new(),
            stopping: false,
            end_at: None,
            release_memory_at: Some(Instant::now() + QUIET),
        })
    }

    fn run(mut self) -> io::Result<()> {
        let mut batch = Batch::default();
        while !self.is_over() {
            let now = Instant::now();
            let timeout = self.next_deadline(now).map(|deadline| deadline.saturating_duration_since(now));
            let count = self.epoll.wait(&mut batch, timeout)?;
            if count > 0 {
                self.release_memory_at = Some(Instant::now() + QUIET);
            }
            for ready in &batch[..count] {
                self.handle(*ready);
            }
            self.handle_deadlines(Instant::now());
            self.answer_waiting_watches();
        }
        for connection in &self.connections {
            if matches!(connection.role, connection::Role::Shutdown) {
                connection.reply(&Reply::Done);
            }
        }
        // From now on a connection attempt fails at once.
        let _ = fs::remove_file(self.directory.socket());
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.stopping
            && self.pod.init.is_none()
            && self.execs.is_empty()
            && self.containers.iter().all(Container::has_ended)
    }

    fn serial(&mut self) -> u32 {
        self.next_serial = self.next_serial.wrapping_add(1).max(1);
        self.next_serial
    }

    fn handle(&mut self, ready: Ready) {
        let Some(kind) = KINDS.get(usize::from(ready.token.to_le_bytes()[0])) else { return };
        let serial = u32::try_from(ready.token >> 8).unwrap_or_default();
        match kind {
            TokenKind::Signals => self.children_ended(),
            TokenKind::Listener => self.accept(),
            TokenKind::Connection => self.receive(serial),
            TokenKind::Report => self.report(serial),
            TokenKind::Stdout => self.output(serial, log::LogStream::Stdout),
            TokenKind::Stderr => self.output(serial, log::LogStream::Stderr),
            TokenKind::Stdin => self.stdin_has_room(serial),
            TokenKind::Source => self.source_is_ready(serial),
            TokenKind::ExecReport => self.exec_report(serial),
        }
    }

    /// Handles every child that has ended, known or not, so that no zombie stays.
    fn children_ended(&mut self) {
        // A stop of the scope or of the machine signals every process in it, so the containers have got the
        // signal, too.
        if children::signals_came(&mut self.signals) {
            self.end_at.get_or_insert_with(|| Instant::now() + END_PATIENCE);
        }
        while let Some(exit) = children::reap() {
            if self.pod.init == Some(exit.pid) {
                self.pod.init = None;
                // The kernel has killed all containers with it, and its namespace takes no more processes:
                // the pod is over, as after the end of a pause container.
                self.stopping = true;
            } else if !self.container_process_ended(exit)
                && !self.exec_process_ended(exit)
                && self.has_pending_start()
            {
                if self.unclaimed_exits.len() == MAX_STRAYS {
                    self.unclaimed_exits.remove(0);
                }
                self.unclaimed_exits.push(exit);
            }
        }
    }

    /// A start may still report its process.
    fn has_pending_start(&self) -> bool {
        self.containers.iter().any(Container::waits_for_pid) || self.execs.iter().any(Exec::waits_for_pid)
    }

    /// The exit of a process that ended before it was reported.
    fn take_unclaimed_exit(&mut self, pid: i32) -> Option<ChildExit> {
        let place = self.unclaimed_exits.iter().position(|stray| stray.pid == pid)?;
        let found = self.unclaimed_exits.swap_remove(place);
        Some(found)
    }

    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let containers = self.containers.iter().filter_map(Container::deadline);
        let execs = self.execs.iter().filter_map(Exec::deadline);
        let killing = self.stopping.then(|| now + KILL_EVERY);
        containers
            .chain(execs)
            .chain(self.paused_until)
            .chain(self.release_memory_at)
            .chain(self.end_at)
            .chain(killing)
            .min()
    }

    fn handle_deadlines(&mut self, now: Instant) {
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            let added = self.epoll.add(self.listener.as_fd(), Readiness::Read, token(TokenKind::Listener, 0));
            if added.is_err() {
                self.paused_until = Some(now + PAUSE);
            }
        }
        if self.release_memory_at.is_some_and(|at| at <= now) {
            self.release_memory_at = None;
            memory::release_memory();
        }
        self.container_deadlines(now);
        self.exec_deadlines(now);
        if self.end_at.is_some_and(|at| at <= now || self.containers.iter().all(Container::has_ended)) {
            self.stopping = true;
            self.end_at = None;
        }
        if self.stopping {
            self.kill_everything();
        }
        if !self.unclaimed_exits.is_empty() && !self.has_pending_start() {
            self.unclaimed_exits = Vec::new();
        }
    }

    fn kill_everything(&mut self) {
        self.kill_containers();
        self.kill_execs();
        // A child of this process and not reaped yet: the id is still its own.
        if let Some(pid) = self.pod.init {
            children::kill_by_id(pid);
        }
    }
}

fn exited(exit: ChildExit) -> Exited {
    Exited { code: exit.code, signal: exit.signal, at: Clock::System.now() }
}

fn read_spec(directory: &SandboxDir) -> Result<PodSpec, String> {
    let path = directory.pod_spec();
    let said = |error: &dyn std::fmt::Display| format!("read {}: {error}", path.display());
    let text = fs::read(&path).map_err(|error| said(&error))?;
    let value = serde_json::from_slice(&text).map_err(|error| said(&error))?;
    decode::decode(value).map(|decoded| decoded.object).map_err(|error| said(&error))
}
