//! Programs that run beside a container's own, each bound to the connection that asked for it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use super::super::init::{self, Report};
use super::super::protocol::{Exited, Reply, Started};
use super::connection::Role;
use super::{Monitor, START_DEADLINE, TokenKind, cgroup, exited, token};
use crate::platform::clock::Clock;
use crate::platform::sys::children::{self, ChildExit};
use crate::platform::sys::epoll::Readiness;
use crate::platform::sys::packets::{self, Descriptors};

/// Including those whose end is still awaited.
const MAX_EXECS: usize = 128;

#[derive(Debug)]
pub(super) struct Exec {
    serial: u32,
    /// Serial number of the container.
    container: u32,
    helper: Option<i32>,
    /// 0 before it is known.
    pid: i32,
    process: Option<OwnedFd>,
    /// `None` once the program runs.
    report: Option<OwnedFd>,
    until: Instant,
    wants_terminal: bool,
    terminal: Option<OwnedFd>,
    exited: Option<Exited>,
    /// Its client is gone, and it is being killed.
    abandoned: bool,
}

impl Exec {
    pub(super) fn waits_for_pid(&self) -> bool {
        self.report.is_some() && self.pid == 0
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.report.is_some().then_some(self.until)
    }
}

/// Which of the three streams the request carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wishes {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    /// A terminal is made instead of them.
    pub(super) terminal: bool,
}

impl Wishes {
    /// The streams' descriptors, in order after the first `skip`.
    pub(super) fn take(
        self,
        descriptors: &mut Descriptors,
        skip: usize,
    ) -> Result<[Option<OwnedFd>; 3], String> {
        let mut given = descriptors.iter_mut().skip(skip);
        let mut taken = [None, None, None];
        for (place, wanted) in taken.iter_mut().zip([self.stdin, self.stdout, self.stderr]) {
            if wanted {
                let fd = given.next().and_then(Option::take);
                *place = Some(fd.ok_or("a descriptor is missing")?);
            }
        }
        Ok(taken)
    }
}

impl Monitor {
    fn exec_at(&self, serial: u32) -> Option<usize> {
        self.execs.iter().position(|exec| exec.serial == serial)
    }

    /// Begins a program's start; its report completes it. Returns the program's serial number.
    ///
    /// # Errors
    /// Why it cannot be started; nothing is left behind then.
    pub(super) fn begin_exec(
        &mut self,
        id: &str,
        wishes: Wishes,
        descriptors: &mut Descriptors,
    ) -> Result<u32, String> {
        fn context(doing: &str) -> impl Fn(io::Error) -> String + '_ {
            move |error| format!("{doing}: {error}")
        }
        let found = self.container_named(id).filter(|at| self.containers[*at].is_running());
        let at = found.ok_or_else(|| format!("container {id} is not running"))?;
        if self.execs.len() >= MAX_EXECS || self.stopping {
            return Err("too many exec sessions in this pod, or it is being terminated".to_owned());
        }
        let (container, target) = (self.containers[at].serial, self.containers[at].pid);
        let [stdin, stdout, stderr] = wishes.take(descriptors, 1)?;
        let spec = File::from(descriptors[0].take().ok_or("the specification is missing")?);
        let null =
            File::options().read(true).write(true).open("/dev/null").map_err(context("open /dev/null"))?;
        let (report, childs_report) = packets::pair().map_err(context("create a socket pair"))?;
        packets::set_nonblocking(report.as_fd()).map_err(context("create a socket pair"))?;
        let serial = self.serial();
        self.epoll
            .add(report.as_fd(), Readiness::Read, token(TokenKind::ExecReport, serial))
            .map_err(context("wait for the program's start"))?;
        let (pod, facts) = (&self.pod, &self.containers[at].facts);
        let helper = children::fork(facts.unified(), move || {
            let [stdin, stdout, stderr] =
                [&stdin, &stdout, &stderr].map(|fd| fd.as_ref().map_or(null.as_fd(), AsFd::as_fd));
            match children::set_stdio(stdin, stdout, stderr) {
                Ok(()) => init::exec(spec, target, pod, childs_report),
                Err(error) => {
                    Report::Failed(format!("set up streams: {error}")).send(childs_report.as_fd());
                    1
                }
            }
        })
        .map_err(context("fork"))?;
        self.execs.push(Exec {
            serial,
            container,
            helper: Some(helper),
            pid: 0,
            process: None,
            report: Some(report),
            until: Instant::now() + START_DEADLINE,
            wants_terminal: wishes.terminal,
            terminal: None,
            exited: None,
            abandoned: false,
        });
        Ok(serial)
    }

    /// Handles a report of a child on its program.
    pub(super) fn exec_report(&mut self, serial: u32) {
        loop {
            let Some(at) = self.exec_at(serial) else { return };
            let Some(report) = &self.execs[at].report else { return };
            match Report::receive(report.as_fd()) {
                // As for containers: the last process to hold the other end may be traced.
                Ok(Some(Report::Pid(_))) if self.execs[at].pid != 0 => {
                    return self.fail_exec(at, "a second process was reported for the program");
                }
                Ok(Some(Report::Pid(pid))) => {
                    let stray = self.take_unclaimed_exit(pid);
                    let exec = &mut self.execs[at];
                    exec.pid = pid;
                    match stray {
                        Some(exit) => exec.exited = Some(exited(exit)),
                        None => match children::pidfd_open(pid) {
                            Ok(process) => exec.process = Some(process),
                            Err(error) => {
                                return self.fail_exec(at, &format!("the program's process {pid}: {error}"));
                            }
                        },
                    }
                    if self.execs[at].abandoned {
                        self.kill_exec(at);
                    }
                }
                Ok(Some(Report::Terminal(_)))
                    if !self.execs[at].wants_terminal || self.execs[at].terminal.is_some() =>
                {
                    return self.fail_exec(at, "a terminal was reported that the program does not have");
                }
                Ok(Some(Report::Terminal(master))) => self.execs[at].terminal = Some(master),
                Ok(Some(Report::Failed(message))) => return self.fail_exec(at, &message),
                Ok(None) if self.execs[at].pid == 0 => {
                    return self.fail_exec(at, "the child that starts the program exited early");
                }
                Ok(None) => return self.exec_runs(at),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return self.fail_exec(at, &format!("a report of the program's start: {error}"));
                }
            }
        }
    }

    fn fail_exec(&mut self, at: usize, message: &str) {
        self.kill_exec(at);
        let exec = self.execs.swap_remove(at);
        self.answer_exec(exec.serial, &Reply::Failed { message: message.to_owned() }, None, true);
    }

    /// Sends a reply to the program's client. A connection that does not read, or is not needed any more, is
    /// closed.
    fn answer_exec(&mut self, serial: u32, reply: &Reply, terminal: Option<&OwnedFd>, last: bool) -> bool {
        let mut heard = false;
        self.connections.retain(|connection| match connection.role {
            Role::Exec(exec) if exec == serial => {
                let fds: Vec<_> = terminal.into_iter().map(AsFd::as_fd).collect();
                heard = connection.reply_with(reply, &fds);
                heard && !last
            }
            _ => true,
        });
        heard
    }

    fn exec_runs(&mut self, at: usize) {
        let exec = &mut self.execs[at];
        exec.report = None;
        let (serial, started) = (exec.serial, Started { pid: exec.pid, at: Clock::System.now() });
        let terminal = exec.terminal.take();
        // The client shares the open file description, and with it this flag.
        if let Some(Err(error)) = terminal.as_ref().map(|master| packets::set_nonblocking(master.as_fd())) {
            super::log_error(&format_args!("set a terminal non-blocking: {error}"));
        }
        let reply = Reply::Running { container: String::new(), started };
        if !self.answer_exec(serial, &reply, terminal.as_ref(), false) {
            self.abandon_exec(serial);
        }
        self.exec_ended(serial);
    }

    /// True when the process was an exec's.
    pub(super) fn exec_process_ended(&mut self, exit: ChildExit) -> bool {
        let found = self
            .execs
            .iter_mut()
            .find(|exec| exec.helper == Some(exit.pid) || exec.pid == exit.pid && exec.exited.is_none());
        let Some(exec) = found else { return false };
        if exec.pid == exit.pid {
            exec.exited = Some(exited(exit));
            exec.process = None;
            let serial = exec.serial;
            self.exec_ended(serial);
        } else {
            exec.helper = None;
        }
        true
    }

    /// Reports its end once it has both run and ended.
    fn exec_ended(&mut self, serial: u32) {
        let Some(at) = self.exec_at(serial) else { return };
        let exec = &self.execs[at];
        let Some(exited) = exec.exited.filter(|_| exec.report.is_none()) else { return };
        self.execs.swap_remove(at);
        self.answer_exec(serial, &Reply::Exited { container: String::new(), exited }, None, true);
    }

    /// Kills a program whose client is gone.
    pub(super) fn abandon_exec(&mut self, serial: u32) {
        if let Some(at) = self.exec_at(serial) {
            self.execs[at].abandoned = true;
            // An exec whose process is not reported yet is killed when it is: its helper may have made the
            // process already.
            if self.execs[at].pid != 0 {
                self.kill_exec(at);
            }
        }
    }

    fn kill_exec(&self, at: usize) {
        let exec = &self.execs[at];
        if let Some(process) = &exec.process {
            if let Some(container) = self.container_at(exec.container) {
                // The process is not reaped yet: its id, which is also its session's, is not reused.
                cgroup::kill_session(&self.containers[container].facts.cgroups, exec.pid);
            }
            // Cannot fail: SIGKILL is a valid signal.
            let _ = children::pidfd_signal(process.as_fd(), 9);
        } else if let Some(helper) = exec.helper {
            children::kill_by_id(helper);
        }
    }

    pub(super) fn exec_deadlines(&mut self, now: Instant) {
        let is_late = |exec: &Exec| exec.deadline().is_some_and(|until| until <= now);
        while let Some(at) = self.execs.iter().position(is_late) {
            self.fail_exec(at, "the program did not start within a minute");
        }
    }

    pub(super) fn kill_execs(&mut self) {
        for at in 0..self.execs.len() {
            self.kill_exec(at);
        }
    }
}
