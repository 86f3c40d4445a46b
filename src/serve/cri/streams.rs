//! Exec, attach and port-forward: the runtime's sessions as streams.
//!
//! Owns pipes and terminals between the two.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::unix::pipe;

use crate::model::types::{ContainerId, SandboxId};
use crate::platform::sys::terminal::Terminal;
use crate::runtime::RuntimeError;
use crate::runtime::embedded::runtime::EmbeddedRuntime;
use crate::runtime::embedded::runtime::api::Streams as Descriptors;
use crate::serve::streaming::{Dialer, Duplex, OutputReader, Session, Streams, TerminalSize};

/// The most that is kept of stdout and stderr together: upstream's 16 MiB, which is also the largest message
/// that clients accept.
const MAX_OUTPUT: usize = (16 << 20) - 1024;
const READ: usize = 8 << 10;
/// How long processes that the program left running may keep its streams open.
const DRAIN: Duration = Duration::from_secs(1);

/// The near and far ends of a program's pipes.
struct Pipes {
    stdin: Option<pipe::Sender>,
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
    far: Descriptors,
}

fn pipes(wanted: Streams) -> io::Result<Pipes> {
    let mut pipes = Pipes { stdin: None, stdout: None, stderr: None, far: Descriptors::default() };
    if wanted.stdin {
        let (far, near) = io::pipe()?;
        pipes.stdin = Some(pipe::Sender::from_owned_fd(near.into())?);
        pipes.far.stdin = Some(far.into());
    }
    let out = || {
        let (near, far) = io::pipe()?;
        Ok::<_, io::Error>((pipe::Receiver::from_owned_fd(near.into())?, OwnedFd::from(far)))
    };
    if wanted.stdout {
        let (near, far) = out()?;
        (pipes.stdout, pipes.far.stdout) = (Some(near), Some(far));
    }
    if wanted.stderr {
        let (near, far) = out()?;
        (pipes.stderr, pipes.far.stderr) = (Some(near), Some(far));
    }
    Ok(pipes)
}

fn reader(pipe: Option<pipe::Receiver>) -> Option<OutputReader> {
    pipe.map(|pipe| Box::new(pipe) as OutputReader)
}

/// Starts a program in a container.
pub(crate) async fn exec(
    runtime: EmbeddedRuntime,
    container: ContainerId,
    command: Vec<String>,
    wanted: Streams,
) -> Result<Session, String> {
    let own = Streams { stdin: wanted.stdin && !wanted.tty, ..wanted };
    let own = if wanted.tty { Streams::default() } else { own };
    let Pipes { stdin, stdout, stderr, far } = pipes(own).map_err(|error| error.to_string())?;
    let begun = runtime.exec(&container, &command, wanted.tty, far).await;
    let mut session = begun.map_err(|error| error.message)?;
    let terminal = session.take_terminal().map(Terminal::new).transpose();
    let terminal = terminal.map_err(|error| format!("open terminal: {error}"))?;
    let exit = Box::pin(async move {
        let exited = session.wait().await;
        exited.map(|exited| exited.code).map_err(|error| crate::platform::logging::chain(&error))
    });
    let Some(terminal) = terminal else {
        let stdin = stdin.map(|pipe| Box::new(pipe) as Box<dyn AsyncWrite + Unpin>);
        return Ok(Session { stdin, stdout: reader(stdout), stderr: reader(stderr), resize: None, exit });
    };
    let size = terminal.clone();
    Ok(Session {
        stdin: wanted.stdin.then(|| Box::new(terminal.clone()) as Box<dyn AsyncWrite + Unpin>),
        stdout: wanted.stdout.then(|| Box::new(terminal) as OutputReader),
        stderr: None,
        resize: Some(Box::new(move |new: TerminalSize| {
            if let Err(error) = size.resize(new.width, new.height) {
                log::debug!(err:% = error; "Failed to resize exec terminal");
            }
        })),
        exit,
    })
}

/// Attaches to a running container.
pub(crate) async fn attach(
    runtime: EmbeddedRuntime,
    container: ContainerId,
    wanted: Streams,
) -> Result<Session, String> {
    let Pipes { stdin, stdout, stderr, far } = pipes(wanted).map_err(|error| error.to_string())?;
    let attached = runtime.attach(&container, far).await;
    let mut session = attached.map_err(|error| error.message)?;
    let exit = Box::pin(async move {
        // The exit code of the container is not the result of an attach.
        session.wait().await.map(|_| 0).map_err(|error| crate::platform::logging::chain(&error))
    });
    let resize = move |size: TerminalSize| {
        let (runtime, container) = (runtime.clone(), container.clone());
        crate::platform::rt::spawn("resize", async move {
            if let Err(error) = runtime.resize(&container, size.width, size.height).await {
                log::debug!(err:% = error; "Failed to resize container terminal");
            }
        });
    };
    Ok(Session {
        stdin: stdin.map(|pipe| Box::new(pipe) as Box<dyn AsyncWrite + Unpin>),
        stdout: reader(stdout),
        stderr: reader(stderr),
        resize: wanted.tty.then(|| Box::new(resize) as Box<dyn Fn(TerminalSize)>),
        exit,
    })
}

/// Connects to ports of a sandbox.
#[must_use]
pub(crate) fn dialer(runtime: EmbeddedRuntime, sandbox: SandboxId) -> Dialer {
    Rc::new(move |port| {
        let (runtime, sandbox) = (runtime.clone(), sandbox.clone());
        Box::pin(async move {
            let connected = runtime.port_stream(&sandbox, port).await;
            connected
                .map(|stream| Box::new(stream) as Box<dyn Duplex>)
                .map_err(|error: RuntimeError| error.message)
        })
    })
}

/// A program's output and exit code.
pub(in crate::serve) struct ExecOutput {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub code: i32,
}

/// Waits for a program's end and collects its output; output beyond the bound is read and dropped.
pub(in crate::serve) async fn collect(session: Session) -> Result<ExecOutput, String> {
    let Session { stdin: _, stdout, stderr, resize: _, exit } = session;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = {
        let mut drained = Box::pin(async { tokio::join!(drain(stdout, &mut out), drain(stderr, &mut err)) });
        let mut exit = exit;
        tokio::select! {
            code = &mut exit => {
                // Processes that it left running may keep the streams open; otherwise this is the end of
                // both.
                let _ = tokio::time::timeout(DRAIN, drained).await;
                code
            }
            _ = &mut drained => {
                drop(drained);
                exit.await
            }
        }
    }?;
    err.truncate(MAX_OUTPUT - out.len());
    Ok(ExecOutput { stdout: out, stderr: err, code })
}

async fn drain(reader: Option<OutputReader>, all: &mut Vec<u8>) {
    let Some(mut reader) = reader else { return };
    let mut block = vec![0_u8; READ];
    while let Ok(count @ 1..) = reader.read(&mut block).await {
        all.extend_from_slice(&block[..count.min(MAX_OUTPUT - all.len())]);
    }
}
