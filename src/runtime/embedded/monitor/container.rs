//! A container's life in the monitor: forked, reported, running, drained, ended.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use super::super::facts::ContainerFacts;
use super::super::init::{self, Report};
use super::super::layout::ContainerDir;
use super::super::protocol::{Exited, Reply, Started};
use super::connection::Role;
use super::log::{Log, LogStream, Splitter};
use super::{DRAIN_DEADLINE, Monitor, START_DEADLINE, TokenKind, cgroup, exited, log_error, token};
use crate::platform::clock::Clock;
use crate::platform::sys::children::{self, ChildExit};
use crate::platform::sys::durable::replace_private;
use crate::platform::sys::epoll::Readiness;
use crate::platform::sys::packets;

/// Chunks of output read at a container's end before others get their turn again.
const DRAIN_READS: usize = 256;
/// Output that is kept for the first client of a container, of each stream: what a pipe holds.
const MAX_UNSEEN: usize = 64 * 1024;
/// Names of containers are components of paths.
const MAX_NAME: usize = 255;

#[derive(Debug)]
pub(super) struct Container {
    pub(super) id: String,
    pub(super) serial: u32,
    directory: ContainerDir,
    pub(super) facts: ContainerFacts,
    phase: ProcessPhase,
    /// The child that makes the container, until it is reaped.
    helper: Option<i32>,
    /// The first process, 0 before it is known.
    pub(super) pid: i32,
    process: Option<OwnedFd>,
    pub(super) started: Started,
    pub(super) exited: Option<Exited>,
    pub(super) stdin: Option<File>,
    /// Waiting until `stdin`, which is full, becomes writable.
    pub(super) stdin_is_full: bool,
    stdout: Option<ContainerOutput>,
    stderr: Option<ContainerOutput>,
    /// What a container for a single client (`stdinOnce`) has written before that client attached: it may well
    /// have ended by the time the client would see its output. `None` when it was too much.
    pub(super) unseen: Option<[Vec<u8>; 2]>,
    pub(super) console: Option<File>,
    pub(super) log: Log,
}

#[derive(Debug)]
enum ProcessPhase {
    Starting { report: OwnedFd, until: Instant },
    Running,
    Draining { until: Instant },
    Ended,
}

#[derive(Debug)]
struct ContainerOutput {
    file: File,
    splitter: Splitter,
}

impl ContainerOutput {
    fn new(file: File) -> Self {
        Self { file, splitter: Splitter::default() }
    }
}

impl Container {
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.phase, ProcessPhase::Ended)
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.phase, ProcessPhase::Running)
    }

    pub(super) fn is_starting(&self) -> bool {
        matches!(self.phase, ProcessPhase::Starting { .. })
    }

    pub(super) fn waits_for_pid(&self) -> bool {
        self.is_starting() && self.pid == 0
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            ProcessPhase::Starting { until, .. } | ProcessPhase::Draining { until } => Some(until),
            ProcessPhase::Running | ProcessPhase::Ended => None,
        }
    }

    /// Its state, as a new watcher gets it.
    pub(super) fn state(&self) -> Option<Reply> {
        let container = self.id.clone();
        match (&self.phase, self.exited) {
            (ProcessPhase::Ended, Some(exited)) => Some(Reply::Exited { container, exited }),
            (ProcessPhase::Running | ProcessPhase::Draining { .. }, _) => {
                Some(Reply::Running { container, started: self.started })
            }
            _ => None,
        }
    }

    pub(super) fn signal(&self, signal: i32) -> io::Result<()> {
        match &self.process {
            Some(process) => children::pidfd_signal(process.as_fd(), signal),
            None => Ok(()),
        }
    }

    /// Kills everything in the container; returns whether anything may be left.
    pub(super) fn kill(&self) -> bool {
        if let Some(helper) = self.helper {
            children::kill_by_id(helper);
        }
        // Cannot fail: SIGKILL is a valid signal.
        let _ = self.signal(9);
        cgroup::kill_all(&self.facts.cgroups)
    }

    /// A terminal stays open: other clients may be attached to it.
    pub(super) fn closes_stdin_with_attach(&self) -> bool {
        self.facts.stdin_once && !self.facts.terminal
    }

    fn output(&mut self, stream: LogStream) -> &mut Option<ContainerOutput> {
        match stream {
            LogStream::Stdout => &mut self.stdout,
            LogStream::Stderr => &mut self.stderr,
        }
    }
}

/// The child's ends of the three streams.
struct ChildStreams {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

fn is_name(id: &str) -> bool {
    !id.is_empty() && id.len() <= MAX_NAME && id != "." && id != ".." && !id.contains(['/', '\0'])
}

fn pipe() -> io::Result<(File, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    packets::set_nonblocking(reader.as_fd())?;
    Ok((File::from(OwnedFd::from(reader)), writer.into()))
}

impl Monitor {
    pub(super) fn container_at(&self, serial: u32) -> Option<usize> {
        self.containers.iter().position(|container| container.serial == serial)
    }

    pub(super) fn container_named(&self, id: &str) -> Option<usize> {
        self.containers.iter().position(|container| container.id == id)
    }

    /// Begins a container's start; its report completes it. Returns the container's serial number.
    ///
    /// # Errors
    /// Why it cannot be started; nothing is left behind then.
    pub(super) fn begin(&mut self, id: &str) -> Result<u32, String> {
        fn context(doing: &str) -> impl Fn(io::Error) -> String + '_ {
            move |error| format!("{doing}: {error}")
        }
        if self.stopping {
            return Err("the pod is being terminated".to_owned());
        }
        if !is_name(id) {
            return Err(format!("{id:?} is not a container id"));
        }
        if let Some(at) = self.container_named(id) {
            let state = if self.containers[at].has_ended() { "has exited" } else { "exists" };
            return Err(format!("container {id} {state} already"));
        }
        let directory = self.directory.container(id);
        let facts = ContainerFacts::read(&directory).map_err(context("read the container's facts"))?;
        let log = Log::open(facts.log.clone()).map_err(|error| {
            format!("open the log {}: {error}", facts.log.clone().unwrap_or_default().display())
        })?;
        let serial = self.serial();
        let mut container = Container {
            id: id.to_owned(),
            serial,
            directory,
            unseen: facts.stdin_once.then(Default::default),
            facts,
            phase: ProcessPhase::Running,
            helper: None,
            pid: 0,
            process: None,
            started: Started::default(),
            exited: None,
            stdin: None,
            stdin_is_full: false,
            stdout: None,
            stderr: None,
            console: None,
            log,
        };
        let streams = container_streams(&mut container).map_err(context("create the container's streams"))?;
        let (report, childs_report) = packets::pair().map_err(context("create a socket pair"))?;
        packets::set_nonblocking(report.as_fd()).map_err(context("create a socket pair"))?;
        self.epoll
            .add(report.as_fd(), Readiness::Read, token(TokenKind::Report, serial))
            .map_err(context("wait for the container's start"))?;
        let (directory, pod) = (&container.directory, &self.pod);
        let helper = children::fork(container.facts.unified(), move || {
            let stdio = (streams.stdin.as_fd(), streams.stdout.as_fd(), streams.stderr.as_fd());
            match children::set_stdio(stdio.0, stdio.1, stdio.2) {
                Ok(()) => init::container(directory, pod, childs_report),
                Err(error) => {
                    Report::Failed(format!("set up streams: {error}")).send(childs_report.as_fd());
                    1
                }
            }
        })
        .map_err(context("fork"))?;
        container.helper = Some(helper);
        container.phase = ProcessPhase::Starting { report, until: Instant::now() + START_DEADLINE };
        self.containers.push(container);
        Ok(serial)
    }

    /// Handles a report of a child on its container.
    pub(super) fn report(&mut self, serial: u32) {
        loop {
            let Some(at) = self.container_at(serial) else { return };
            let ProcessPhase::Starting { report, .. } = &self.containers[at].phase else { return };
            match Report::receive(report.as_fd()) {
                // The last process to hold the other end is in the container's PID namespace, where others
                // may trace it.
                Ok(Some(Report::Pid(_))) if self.containers[at].pid != 0 => {
                    return self.fail(at, "a second process was reported for the container");
                }
                Ok(Some(Report::Pid(pid))) => {
                    let stray = self.take_unclaimed_exit(pid);
                    let container = &mut self.containers[at];
                    container.pid = pid;
                    if let Some(exit) = stray {
                        container.exited = Some(exited(exit));
                        continue;
                    }
                    match children::pidfd_open(pid) {
                        Ok(process) => container.process = Some(process),
                        Err(error) => {
                            return self.fail(at, &format!("the container's first process {pid}: {error}"));
                        }
                    }
                }
                Ok(Some(Report::Terminal(_)))
                    if !self.containers[at].facts.terminal || self.containers[at].console.is_some() =>
                {
                    return self.fail(at, "a terminal was reported that the container does not have");
                }
                Ok(Some(Report::Terminal(master))) => {
                    if let Err(error) = take_terminal(&mut self.containers[at], master.into()) {
                        return self.fail(at, &format!("take over the terminal: {error}"));
                    }
                }
                Ok(Some(Report::Failed(message))) => return self.fail(at, &message),
                Ok(None) if self.containers[at].pid == 0 => {
                    return self.fail(at, "the child that creates the container exited early");
                }
                Ok(None) => return self.runs(at),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.fail(at, &format!("a report of the container's start: {error}")),
            }
        }
    }

    /// Its start has failed: removes what is left of it.
    fn fail(&mut self, at: usize, message: &str) {
        let container = self.containers.swap_remove(at);
        container.kill();
        self.answer_start(container.serial, &Reply::Failed { message: message.to_owned() });
    }

    fn answer_start(&mut self, serial: u32, reply: &Reply) {
        self.connections.retain(|connection| match connection.role {
            Role::Start(container) if container == serial => {
                // A client that does not read learns the state by a watch.
                connection.reply(reply);
                false
            }
            _ => true,
        });
    }

    fn runs(&mut self, at: usize) {
        let container = &mut self.containers[at];
        container.started = Started { pid: container.pid, at: Clock::System.now() };
        container.phase = ProcessPhase::Running;
        if let Err(error) =
            replace_private(&container.directory.started(), container.started.to_line().as_bytes())
        {
            log_error(&format_args!("write start state of {}: {error}", container.id));
        }
        let outputs = [(&container.stdout, TokenKind::Stdout), (&container.stderr, TokenKind::Stderr)];
        for (output, kind) in outputs {
            if let Some(output) = output
                && let Err(error) =
                    self.epoll.add(output.file.as_fd(), Readiness::Read, token(kind, container.serial))
            {
                log_error(&format_args!("wait for output of {}: {error}", container.id));
            }
        }
        let (serial, ended) = (container.serial, container.exited.is_some());
        let reply = Reply::Running { container: container.id.clone(), started: container.started };
        self.answer_start(serial, &reply);
        if ended {
            self.ended(serial);
        }
    }

    /// True when the process was a container's.
    pub(super) fn container_process_ended(&mut self, exit: ChildExit) -> bool {
        let found = self.containers.iter_mut().find(|container| {
            container.helper == Some(exit.pid) || container.pid == exit.pid && container.exited.is_none()
        });
        let Some(container) = found else { return false };
        if container.pid == exit.pid {
            container.exited = Some(exited(exit));
            container.process = None;
            let (serial, is_running) = (container.serial, container.is_running());
            // While the container starts, the report's end comes first.
            if is_running {
                self.ended(serial);
            }
        } else {
            container.helper = None;
        }
        true
    }

    /// The first process has ended: the rest of the container is killed, and its last output is logged.
    fn ended(&mut self, serial: u32) {
        let Some(at) = self.container_at(serial) else { return };
        let container = &mut self.containers[at];
        let exited = container.exited.unwrap_or_default();
        if let Err(error) = replace_private(&container.directory.exited(), exited.to_line().as_bytes()) {
            log_error(&format_args!("write exit state of {}: {error}", container.id));
        }
        container.phase = ProcessPhase::Draining { until: Instant::now() + DRAIN_DEADLINE };
        // With a PID namespace of its own nothing is left; otherwise a container still ends with its first
        // process.
        cgroup::kill_all(&container.facts.cgroups);
        for stream in [LogStream::Stdout, LogStream::Stderr] {
            for _ in 0..DRAIN_READS {
                if !self.read_output(serial, stream) {
                    break;
                }
            }
        }
        self.finish_when_drained(serial);
    }

    pub(super) fn output(&mut self, serial: u32, stream: LogStream) {
        self.read_output(serial, stream);
        self.finish_when_drained(serial);
    }

    /// Reads one chunk of output and passes it to the log and the attached clients. False when there is no
    /// more for now.
    fn read_output(&mut self, serial: u32, stream: LogStream) -> bool {
        let Some(at) = self.container_at(serial) else { return false };
        let container = &mut self.containers[at];
        let Some(mut output) = container.output(stream).take() else { return false };
        let now = Clock::System.now();
        match output.file.read(&mut self.input) {
            Ok(count @ 1..) => {
                let chunk = &self.input[..count];
                if let Some(unseen) = &mut container.unseen {
                    let kept = &mut unseen[usize::from(stream == LogStream::Stderr)];
                    kept.extend_from_slice(chunk);
                    if kept.len() > MAX_UNSEEN {
                        container.unseen = None;
                    }
                }
                self.entries.chunk(&mut container.log, &mut output.splitter, stream, now, chunk);
                for connection in &mut self.connections {
                    if let Role::Attach(attach) = &mut connection.role
                        && attach.container == serial
                    {
                        attach.output(stream == LogStream::Stderr, chunk);
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                *container.output(stream) = Some(output);
                return false;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The end; a terminal reports it as an error.
            Ok(0) | Err(_) => {
                self.epoll.remove(output.file.as_fd());
                self.entries.finish(&mut container.log, &mut output.splitter, stream, now);
                return false;
            }
        }
        *container.output(stream) = Some(output);
        true
    }

    fn finish_when_drained(&mut self, serial: u32) {
        let Some(at) = self.container_at(serial) else { return };
        let container = &self.containers[at];
        let drained = container.stdout.is_none() && container.stderr.is_none();
        if matches!(container.phase, ProcessPhase::Draining { .. }) && drained {
            self.finish(at);
        }
    }

    /// The end of the container: nothing more is read of its streams.
    fn finish(&mut self, at: usize) {
        let container = &mut self.containers[at];
        for stream in [LogStream::Stdout, LogStream::Stderr] {
            if let Some(mut output) = container.output(stream).take() {
                self.epoll.remove(output.file.as_fd());
                let now = Clock::System.now();
                self.entries.finish(&mut container.log, &mut output.splitter, stream, now);
            }
        }
        if let Some(stdin) = container.stdin.take() {
            self.epoll.remove(stdin.as_fd());
        }
        container.console = None;
        container.unseen = None;
        container.log = Log::default();
        container.phase = ProcessPhase::Ended;
        let serial = container.serial;
        let reply =
            Reply::Exited { container: container.id.clone(), exited: container.exited.unwrap_or_default() };
        if container.facts.external {
            let directory = container.directory.clone();
            if let Err(error) = children::fork(None, move || init::delete_external(&directory)) {
                log_error(&format_args!("notify the runtime of {}: {error}", container.id));
            }
        }
        self.connections.retain(|connection| match &connection.role {
            // A watcher that does not take it must make a new watch.
            Role::Watch => connection.reply(&reply),
            Role::Attach(attach) if attach.container == serial => {
                connection.reply(&reply);
                false
            }
            _ => true,
        });
    }

    pub(super) fn container_deadlines(&mut self, now: Instant) {
        let is_late = |container: &Container| container.deadline().is_some_and(|until| until <= now);
        while let Some(at) = self.containers.iter().position(is_late) {
            match self.containers[at].phase {
                ProcessPhase::Starting { .. } => self.fail(at, "the container did not start within a minute"),
                _ => self.finish(at),
            }
        }
    }

    pub(super) fn kill_containers(&mut self) {
        while let Some(at) = self
            .containers
            .iter()
            .position(|container| matches!(container.phase, ProcessPhase::Starting { .. }))
        {
            self.fail(at, "the pod is being terminated");
        }
        for container in self.containers.iter().filter(|container| container.is_running()) {
            container.kill();
        }
    }
}

/// Makes the streams that a container asks for: the monitor's ends go into it, the child's are returned.
fn container_streams(container: &mut Container) -> io::Result<ChildStreams> {
    let null: OwnedFd = File::options().read(true).write(true).open("/dev/null")?.into();
    if container.facts.terminal {
        return Ok(ChildStreams { stdin: null.try_clone()?, stdout: null.try_clone()?, stderr: null });
    }
    let (stdout, childs_stdout) = pipe()?;
    let (stderr, childs_stderr) = pipe()?;
    container.stdout = Some(ContainerOutput::new(stdout));
    container.stderr = Some(ContainerOutput::new(stderr));
    let mut stdin = null;
    if container.facts.stdin {
        let (reader, writer) = io::pipe()?;
        packets::set_nonblocking(writer.as_fd())?;
        container.stdin = Some(File::from(OwnedFd::from(writer)));
        stdin = reader.into();
    }
    Ok(ChildStreams { stdin, stdout: childs_stdout, stderr: childs_stderr })
}

fn take_terminal(container: &mut Container, master: File) -> io::Result<()> {
    packets::set_nonblocking(master.as_fd())?;
    container.console = Some(master.try_clone()?);
    container.stdin = if container.facts.stdin { Some(master.try_clone()?) } else { None };
    container.stdout = Some(ContainerOutput::new(master));
    container.stderr = None;
    Ok(())
}
