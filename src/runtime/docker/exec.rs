//! Programs in containers, and their streams: connections that the engine turns into bytes.
//!
//! Owns the frames of streams without a terminal: a byte for the stream, three zeros, the length, then the bytes.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::Engine;
use super::client::Payload;
use super::observed::{process_of, text};
use crate::model::types::{ContainerId, SandboxId, Streams, go_duration};
use crate::platform::rt;
use crate::platform::sys::kill::kill_process;
use crate::runtime::embedded::pod_network;
use crate::runtime::{ErrorKind, ExecOutput, RuntimeError};

/// Limit of each output stream of a command that is kept; the rest is read and dropped.
const MAX_OUTPUT: usize = 16 << 20;
/// What a slow client leaves unread.
const BUFFER: usize = 16 << 10;
/// How often a program is looked for whose streams are open: what it has started may hold them.
const LOOK: Duration = Duration::from_secs(2);
/// How long such descendants may hold the streams in silence after its end.
const DRAIN: Duration = Duration::from_secs(1);
/// The engine may show an ended program as running for a moment.
const SETTLE: Duration = Duration::from_millis(20);
const SETTLE_TRIES: u32 = 250;

type Reader = Box<dyn AsyncRead + Unpin>;

/// Open streams of a program.
pub(crate) struct DockerSession {
    pub stdin: Option<Box<dyn AsyncWrite + Unpin>>,
    /// With a terminal, all output.
    pub stdout: Option<Reader>,
    pub stderr: Option<Reader>,
    /// Its exit code; 0 when an attachment ends. Dropped early, it kills a command.
    pub exit: Pin<Box<dyn Future<Output = Result<i32, RuntimeError>>>>,
    /// Where the size of its terminal is set.
    resize: String,
}

impl DockerSession {
    pub(crate) fn resizer(&self) -> String {
        self.resize.clone()
    }
}

/// Sets the size of a terminal, named by its session.
pub(super) async fn resize(engine: &Engine, path: &str, width: u16, height: u16) -> Result<(), RuntimeError> {
    let path = format!("{path}?h={height}&w={width}");
    engine.client.post("Exec", &path, Payload::None).await.map(drop)
}

/// Streams of a connection; the task ends with the output.
struct Coupled {
    stdin: Option<Box<dyn AsyncWrite + Unpin>>,
    stdout: Option<Reader>,
    stderr: Option<Reader>,
    pump: JoinHandle<()>,
    silence: Silence,
}

/// Since when the engine is waited for; `None` while the client is.
type Silence = Rc<Cell<Option<Instant>>>;

/// The engine's end of the streams.
struct Timed<R> {
    from: R,
    silence: Silence,
}

impl<R: AsyncRead + Unpin> AsyncRead for Timed<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.from).poll_read(context, buffer);
        let since = self.silence.get().unwrap_or_else(Instant::now);
        self.silence.set(read.is_pending().then_some(since));
        read
    }
}

fn couple(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, wanted: Streams) -> Coupled {
    let (from, into) = tokio::io::split(stream);
    let silence = Silence::default();
    let from = Timed { from, silence: Rc::clone(&silence) };
    let stdin = wanted.stdin.then(|| Box::new(into) as Box<dyn AsyncWrite + Unpin>);
    let (out, near_out) = tokio::io::duplex(BUFFER);
    let (err, near_err) = tokio::io::duplex(BUFFER);
    let pump = if wanted.tty {
        drop(err);
        rt::spawn("docker terminal", copy(from, out))
    } else {
        rt::spawn("docker streams", split_frames(from, [out, err]))
    };
    Coupled {
        stdin,
        stdout: wanted.stdout.then(|| Box::new(near_out) as Reader),
        stderr: (wanted.stderr && !wanted.tty).then(|| Box::new(near_err) as Reader),
        pump,
        silence,
    }
}

/// Until either side is gone. Reads only when all is written: the silence is the engine's.
async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    let mut block = vec![0; BUFFER];
    while let Ok(count @ 1..) = from.read(&mut block).await {
        if to.write_all(&block[..count]).await.is_err() {
            return;
        }
    }
}

/// Waits for the rest of the output. Descendants that hold the streams in silence are given up.
async fn rest(pump: &mut JoinHandle<()>, silence: &Silence) {
    while timeout(DRAIN, &mut *pump).await.is_err() {
        if silence.get().is_some_and(|since| since.elapsed() >= DRAIN) {
            return;
        }
    }
}

/// Distributes frames until the connection ends. A reader that is gone loses its part.
async fn split_frames<W: AsyncWrite + Unpin>(mut from: impl AsyncRead + Unpin, mut to: [W; 2]) {
    let mut header = [0; 8];
    let mut block = vec![0; BUFFER];
    while from.read_exact(&mut header).await.is_ok() {
        let [stream, _, _, _, a, b, c, d] = header;
        let mut left = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or_default();
        let to = &mut to[usize::from(stream == 2)];
        while left > 0 {
            let part = left.min(block.len());
            let Ok(count @ 1..) = from.read(&mut block[..part]).await else { return };
            left -= count;
            let _ = to.write_all(&block[..count]).await;
        }
    }
}

/// Kills a command whose client has gone; the engine itself would let it run.
struct Guard {
    engine: Rc<Engine>,
    exec: Option<String>,
    pump: JoinHandle<()>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.pump.abort();
        let Some(exec) = self.exec.take() else { return };
        let engine = Rc::clone(&self.engine);
        rt::spawn("kill command", async move {
            if let Err(error) = kill(&engine, &exec).await {
                log::debug!(err:% = error; "Failed to kill command in Docker container");
            }
        });
    }
}

async fn inspect_exec(engine: &Engine, call: &'static str, exec: &str) -> Result<Value, RuntimeError> {
    engine.client.get(call, &format!("/exec/{exec}/json")).await
}

/// The engine has no call for this, but names the process.
async fn kill(engine: &Engine, exec: &str) -> Result<(), RuntimeError> {
    let call = "ExecSync";
    let found = inspect_exec(engine, call, exec).await?;
    let pid = found["Pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
    if found["Running"] == true && pid > 1 {
        kill_process(pid).map_err(|error| RuntimeError::new(call, ErrorKind::Refused, error.to_string()))?;
    }
    Ok(())
}

/// Starts a program in a container.
pub(super) async fn exec(
    engine: Rc<Engine>,
    call: &'static str,
    id: &ContainerId,
    command: &[String],
    wanted: Streams,
) -> Result<DockerSession, RuntimeError> {
    let request = json!({
        "AttachStdin": wanted.stdin, "AttachStdout": true, "AttachStderr": !wanted.tty, "Tty": wanted.tty,
        "Cmd": command,
    });
    let path = format!("/containers/{id}/exec");
    let made =
        engine.client.post(call, &path, Payload::Json(&request)).await.map_err(|error| match error.kind {
            // A container that does not run is a conflict here.
            ErrorKind::AlreadyExists => RuntimeError { kind: ErrorKind::Refused, ..error },
            _ => error,
        })?;
    let exec = text(&made["Id"]);
    let start = json!({ "Detach": false, "Tty": wanted.tty });
    let stream = engine.client.hijack(call, &format!("/exec/{exec}/start"), Payload::Json(&start)).await?;
    let Coupled { stdin, stdout, stderr, pump, silence } = couple(stream, wanted);
    let guard = Guard { engine: Rc::clone(&engine), exec: Some(exec.clone()), pump };
    let resize = format!("/exec/{exec}/resize");
    let exit = Box::pin(exec_end(engine, call, exec, guard, silence));
    Ok(DockerSession { stdin, stdout, stderr, exit, resize })
}

/// Waits for the end of a command, and returns its code.
async fn exec_end(
    engine: Rc<Engine>,
    call: &'static str,
    exec: String,
    mut guard: Guard,
    silence: Silence,
) -> Result<i32, RuntimeError> {
    let mut found = Value::Null;
    while timeout(LOOK, &mut guard.pump).await.is_err() {
        found = inspect_exec(&engine, call, &exec).await?;
        if found["Running"] == false {
            rest(&mut guard.pump, &silence).await;
            break;
        }
    }
    for _ in 0..SETTLE_TRIES {
        if found["Running"] == false {
            break;
        }
        found = inspect_exec(&engine, call, &exec).await?;
        if found["Running"] != false {
            tokio::time::sleep(SETTLE).await;
        }
    }
    guard.exec = None;
    let code = found["ExitCode"].as_i64().and_then(|code| i32::try_from(code).ok());
    match code {
        // It never had a process: what the engine says of it is its output.
        Some(126 | 127) if found["Pid"] == 0 => Err(RuntimeError::new(
            call,
            ErrorKind::Refused,
            format!(
                "failed to exec in container: {} cannot be started",
                found["ProcessConfig"]["entrypoint"]
            ),
        )),
        Some(code) => Ok(code),
        None => Err(RuntimeError::new(call, ErrorKind::Refused, "the engine does not know the exit code")),
    }
}

/// Runs a command to its end.
pub(super) async fn sync(
    engine: Rc<Engine>,
    id: &ContainerId,
    command: &[String],
    limit: Option<Duration>,
) -> Result<ExecOutput, RuntimeError> {
    let call = "ExecSync";
    let wanted = Streams { stdin: false, stdout: true, stderr: true, tty: false };
    let run = async {
        let DockerSession { stdout, stderr, exit, .. } = exec(engine, call, id, command, wanted).await?;
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let collect = async { tokio::join!(drain(stdout, &mut output), drain(stderr, &mut errors)) };
        let (_, code) = tokio::join!(collect, exit);
        let message = |error: RuntimeError| match String::from_utf8_lossy(&output).trim() {
            "" => error,
            said => RuntimeError { message: format!("failed to exec in container: {said}"), ..error },
        };
        let exit_code = code.map_err(message)?;
        output.extend(errors);
        Ok(ExecOutput { exit_code, output })
    };
    match limit {
        None => run.await,
        // Dropping the session kills the command.
        Some(limit) => timeout(limit, run).await.unwrap_or_else(|_| {
            let words = go_duration(limit);
            let message =
                format!("failed to exec in container: timeout {words} exceeded: context deadline exceeded");
            Err(RuntimeError::new(call, ErrorKind::Timeout, message))
        }),
    }
}

async fn drain(reader: Option<Reader>, all: &mut Vec<u8>) {
    let Some(mut reader) = reader else { return };
    let mut block = vec![0; BUFFER];
    while let Ok(count @ 1..) = reader.read(&mut block).await {
        all.extend_from_slice(&block[..count.min(MAX_OUTPUT - all.len())]);
    }
}

/// Attaches to a container's program; what it has written before stays in its log.
pub(super) async fn attach(
    engine: Rc<Engine>,
    id: &ContainerId,
    wanted: Streams,
) -> Result<DockerSession, RuntimeError> {
    let call = "Attach";
    let object = engine.inspect(call, id.as_str()).await?;
    if object["State"]["Running"] != true {
        let message = format!("container \"{id}\" is not running");
        return Err(RuntimeError::new(call, ErrorKind::Refused, message));
    }
    let tty = object["Config"]["Tty"] == true;
    let Streams { stdin, stdout, stderr, .. } = wanted;
    let number = u8::from;
    let path = format!(
        "/containers/{id}/attach?stream=1&stdin={}&stdout={}&stderr={}",
        number(stdin),
        number(stdout || tty),
        number(stderr && !tty)
    );
    let stream = engine.client.hijack(call, &path, Payload::None).await?;
    let Coupled { stdin, stdout, stderr, pump, .. } = couple(stream, Streams { tty, ..wanted });
    let mut guard = Guard { engine, exec: None, pump };
    let exit = Box::pin(async move {
        // The exit code of the container is not the result of an attachment.
        let _ = (&mut guard.pump).await;
        Ok(0)
    });
    Ok(DockerSession { stdin, stdout, stderr, exit, resize: format!("/containers/{id}/resize") })
}

/// A connection to a port of a pod, made from inside its network.
pub(super) async fn port_stream(
    engine: &Engine,
    id: &SandboxId,
    port: u16,
) -> Result<tokio::net::TcpStream, RuntimeError> {
    let call = "PortForward";
    let object = engine.inspect(call, id.as_str()).await?;
    let refused = |message: String| RuntimeError::new(call, ErrorKind::Refused, message);
    let pid = process_of(&object);
    let pid = pid.ok_or_else(|| refused(format!("sandbox container \"{id}\" is not running")))?;
    let is_on_node = object["HostConfig"]["NetworkMode"] == "host";
    pod_network::port_stream((!is_on_node).then_some(pid), port).await.map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_go_to_their_streams_however_they_are_cut() {
        let mut bytes = Vec::new();
        for (stream, text) in [(1_u8, "one"), (2, "two"), (1, ""), (1, "three")] {
            bytes.extend([stream, 0, 0, 0]);
            bytes.extend(u32::try_from(text.len()).expect("short").to_be_bytes());
            bytes.extend(text.as_bytes());
        }
        // A frame that is cut off: what came of it counts.
        bytes.extend([2, 0, 0, 0, 0, 0, 0, 9, b'e', b'n', b'd']);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        split_frames(bytes.as_slice(), [&mut out, &mut err]).await;
        assert_eq!((out.as_slice(), err.as_slice()), (&b"onethree"[..], &b"twoend"[..]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_gets_all_output_and_silence_is_given_up() {
        let test = async {
            for tty in [true, false] {
                let (mut engine, ours) = tokio::io::duplex(1 << 20);
                let mut streams = couple(ours, Streams { stdin: false, stdout: true, stderr: false, tty });
                let mut bytes = if tty { Vec::new() } else { vec![1, 0, 0, 0, 0, 1, 0, 0] };
                bytes.resize(bytes.len() + (1 << 16), b'x');
                engine.write_all(&bytes).await.expect("it is buffered");
                let mut stdout = streams.stdout.take().expect("wanted");
                let client = rt::spawn("slow client", async move {
                    let (mut all, mut block) = (0, [0; 4096]);
                    while let Ok(count @ 1..) = stdout.read(&mut block).await {
                        all += count;
                        tokio::time::sleep(DRAIN * 3).await;
                    }
                    all
                });
                // The engine's end stays open, as with a descendant that holds the streams.
                rest(&mut streams.pump, &streams.silence).await;
                streams.pump.abort();
                assert_eq!(client.await.expect("it read to the end"), 1 << 16);
                drop(engine);
            }
        };
        tokio::task::LocalSet::new().run_until(test).await;
    }
}
