//! Programs in running containers, and streams into them.
//!
//! Owns collecting a program's output. Monitors own the programs.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::unix::pipe::Receiver;

use super::super::client::{AttachSession, ExecSession, MonitorError, Streams};
use super::super::oci;
use super::super::spec::{Bundle, ExecSpec};
use super::record::read_json;
use super::{Failure, RuntimeInner, container, monitors};
use crate::model::types::ContainerId;
use crate::runtime::{ErrorKind, ExecOutput};

/// Limit of each output stream that is kept, as in containerd; the rest is read and dropped.
const MAX_OUTPUT: usize = 16 << 20;
const CHUNK: usize = 8 << 10;
/// How long descendants of an ended program may keep its streams open.
const DRAIN: Duration = Duration::from_secs(1);

/// Runs a program and collects its output.
pub(super) async fn sync(
    shared: &Rc<RuntimeInner>,
    id: &ContainerId,
    command: &[String],
    timeout: Option<Duration>,
) -> Result<ExecOutput, Failure> {
    let failed = |error: std::io::Error| Failure::because("failed to exec in container", &error);
    let (stdout, far_stdout) = pipe().map_err(failed)?;
    let (stderr, far_stderr) = pipe().map_err(failed)?;
    let streams = Streams { stdin: None, stdout: Some(far_stdout), stderr: Some(far_stderr) };
    let run = async {
        let mut session = begin(shared, id, command, false, streams).await?;
        let mut output = Box::pin(async { tokio::join!(drain(&stdout), drain(&stderr)) });
        let (ended, said) = tokio::select! {
            // Whichever completes first, the other one is still awaited below; both are cancel-safe.
            ended = session.wait() => (Some(ended), None),
            said = &mut output => (None, Some(said)),
        };
        let ended = match ended {
            Some(ended) => ended,
            None => session.wait().await,
        };
        let (stdout, stderr) = match said {
            Some(said) => said,
            // Processes that it left running may hold the streams open; otherwise this is the end of both.
            None => tokio::time::timeout(DRAIN, output).await.unwrap_or_default(),
        };
        let exited = ended.map_err(|error| broken(id, &error))?;
        let mut output = stdout;
        output.extend(stderr);
        Ok(ExecOutput { exit_code: exited.code, output })
    };
    match timeout {
        None => run.await,
        // Dropping the session kills the program.
        Some(timeout) => tokio::time::timeout(timeout, run).await.unwrap_or_else(|_| {
            let words = crate::model::types::go_duration(timeout);
            let message =
                format!("failed to exec in container: timeout {words} exceeded: context deadline exceeded");
            Err(Failure::new(ErrorKind::Timeout, message))
        }),
    }
}

pub(super) async fn begin(
    shared: &Rc<RuntimeInner>,
    id: &ContainerId,
    command: &[String],
    tty: bool,
    streams: Streams,
) -> Result<ExecSession, Failure> {
    let (sandbox, dir) = container::running(shared, id)?;
    let bundle: Bundle =
        read_json(&dir.bundle()).map_err(|error| Failure::because("failed to load container", &error))?;
    let spec = ExecSpec { directory: dir.0, ..oci::exec_spec(&bundle, command, tty) };
    let monitor = monitors::handle(&shared.config.layout.sandbox(&sandbox));
    monitor.exec(id.as_str(), &spec, streams).await.map_err(|error| broken(id, &error))
}

fn broken(id: &ContainerId, error: &MonitorError) -> Failure {
    let words = crate::platform::logging::chain(error);
    Failure::refused(format!("failed to exec in container: container \"{id}\": {words}"))
}

fn pipe() -> std::io::Result<(Receiver, OwnedFd)> {
    let (near, far) = std::io::pipe()?;
    Ok((Receiver::from_owned_fd(near.into())?, far.into()))
}

/// Reads a stream to its end, keeping output up to the limit.
async fn drain(stream: &Receiver) -> Vec<u8> {
    let mut all = Vec::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        if stream.readable().await.is_err() {
            return all;
        }
        match stream.try_read(&mut chunk) {
            Ok(0) => return all,
            Ok(count) => all.extend(&chunk[..count.min(MAX_OUTPUT - all.len())]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return all,
        }
    }
}

/// Couples streams with a container's.
pub(super) async fn attach(
    shared: &Rc<RuntimeInner>,
    id: &ContainerId,
    streams: Streams,
) -> Result<AttachSession, Failure> {
    let (sandbox, _) = container::running(shared, id)?;
    let monitor = monitors::handle(&shared.config.layout.sandbox(&sandbox));
    let attached = monitor.attach(id.as_str(), streams).await;
    attached.map_err(|error| Failure::because("failed to attach container", &error))
}

/// Sets the size of a container's terminal.
pub(super) async fn resize(
    shared: &Rc<RuntimeInner>,
    id: &ContainerId,
    width: u16,
    height: u16,
) -> Result<(), Failure> {
    let (sandbox, _) = container::running(shared, id)?;
    let monitor = monitors::handle(&shared.config.layout.sandbox(&sandbox));
    let resized = monitor.resize(id.as_str(), width, height).await;
    resized.map_err(|error| Failure::because("failed to resize terminal", &error))
}

pub(super) async fn reopen_log(shared: &Rc<RuntimeInner>, id: &ContainerId) -> Result<(), Failure> {
    let (sandbox, _) = container::running(shared, id)?;
    let monitor = monitors::handle(&shared.config.layout.sandbox(&sandbox));
    let reopened = monitor.reopen_log(id.as_str()).await;
    reopened.map_err(|error| Failure::because("failed to reopen container log", &error))
}
