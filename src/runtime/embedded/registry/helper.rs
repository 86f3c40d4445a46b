//! Both ends of the child that pulls: the request goes in through a socket, lines of progress come out of it.
//!
//! Owns the child. Must not know what a pull is made of. A dropped future kills the child; so does the agent's own end.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use tokio::net::UnixStream;

use super::error::invalid;
use super::{LayerState, Progress, PullError, PullErrorKind, PullRequest, Pulled, pull};
use crate::api::decode::decode;
use crate::rt;
use crate::runtime::embedded::images::ImageStore;
use crate::sys::{background, memory};

/// The sub-command of our own program.
const SUBCOMMAND: &str = "pull-helper";
/// A request with credentials and a few directories.
const MAX_REQUEST_BYTES: u64 = 1024 * 1024;
/// A line of progress holds a few names; an error message may be long.
const MAX_LINE_BYTES: usize = 256 * 1024;
/// A slow card may need minutes until a big layer is really on it, and nothing is told meanwhile.
const DISK_PATIENCE: Duration = Duration::from_secs(600);

/// `agent pull-helper`: the child. Its exit code says nothing that its last line does not.
#[must_use]
pub fn helper_main() -> u8 {
    memory::use_one_arena();
    background::be_modest_child();
    let mut stdout = std::io::stdout();
    let mut tell = |progress: Progress| {
        if let Ok(value) = serde_json::to_value(&progress) {
            // Nobody listens only when the agent is gone, and then we are killed, too.
            let _ = stdout.write_all(format!("{value}\n").as_bytes()).and_then(|()| stdout.flush());
        }
    };
    match serve(&mut tell) {
        Ok(()) => 0,
        Err(error) => {
            tell(Progress::Failed { kind: error.kind(), message: crate::logging::chain(&error) });
            1
        }
    }
}

fn serve(tell: &mut dyn FnMut(Progress)) -> Result<(), PullError> {
    let mut text = Vec::new();
    let read = std::io::stdin().take(MAX_REQUEST_BYTES).read_to_end(&mut text);
    read.map_err(|source| PullError::System { what: "read the pull request", source })?;
    let value = serde_json::from_slice(&text).map_err(|error| invalid("pull request", error.to_string()))?;
    let request: PullRequest =
        decode(value).map_err(|error| invalid("pull request", error.to_string()))?.object;
    let store = ImageStore::open(&request.store).map_err(PullError::Store)?;
    pull(&store, &request, tell).map(drop)
}

/// Pulls in a child of its own, so that this process keeps its memory and its peace.
///
/// Dropping the future kills the child. `program` is our own binary, `/proc/self/exe`.
///
/// # Errors
/// What the child says, or that nothing moved for as long as the request allows.
pub async fn pull_in_child(
    program: &Path,
    request: &PullRequest,
    mut progress: impl FnMut(Progress),
) -> Result<Pulled, PullError> {
    let (mut child, socket) = Helper::start(program, request)?;
    let mut lines = Vec::new();
    let mut buffer = vec![0; 16 * 1024];
    let mut extracting = BTreeSet::new();
    let mut outcome = None;
    loop {
        let patience =
            if extracting.is_empty() { request.progress_deadline() } else { DISK_PATIENCE.max(request.progress_deadline()) };
        match tokio::time::timeout(patience, socket.readable()).await {
            Err(_) => return Err(PullError::Stuck { seconds: patience.as_secs() }),
            Ok(Err(source)) => return Err(PullError::System { what: "hear the pull helper", source }),
            Ok(Ok(())) => {}
        }
        match socket.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => lines.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            // A killed child's socket may say so in this way, too.
            Err(_) => break,
        }
        while let Some(end) = lines.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = lines.drain(..=end).collect();
            let Some(heard) = parse_line(&line) else { continue };
            note_extracting(&mut extracting, &heard);
            match &heard {
                Progress::Done { image_id, reference, repo_digest } => {
                    outcome = Some(Ok(Pulled {
                        image_id: image_id.clone(),
                        reference: reference.clone(),
                        repo_digest: repo_digest.clone(),
                    }));
                }
                Progress::Failed { kind, message } => {
                    outcome = Some(Err(PullError::InChild { kind: *kind, message: message.clone() }));
                }
                _ => {}
            }
            progress(heard);
        }
        if lines.len() > MAX_LINE_BYTES {
            return Err(PullError::InChild {
                kind: PullErrorKind::Invalid,
                message: "the pull helper says a line without an end".to_owned(),
            });
        }
    }
    let how = child.wait().await;
    outcome.unwrap_or(Err(PullError::Died { how }))
}

fn parse_line(line: &[u8]) -> Option<Progress> {
    let value = serde_json::from_slice(line).ok()?;
    decode(value).ok().map(|decoded| decoded.object)
}

fn note_extracting(extracting: &mut BTreeSet<String>, heard: &Progress) {
    if let Progress::Layer { digest, state, .. } = heard {
        if *state == LayerState::Extracting {
            extracting.insert(digest.clone());
        } else {
            extracting.remove(digest);
        }
    }
}

/// The child; killed when dropped.
struct Helper {
    child: Option<Child>,
}

impl Helper {
    fn start(program: &Path, request: &PullRequest) -> Result<(Self, UnixStream), PullError> {
        let failed = |what| move |source| PullError::System { what, source };
        let (ours, theirs) = StdStream::pair().map_err(failed("make a socket for the pull helper"))?;
        let input = OwnedFd::from(theirs);
        let output = input.try_clone().map_err(failed("make a socket for the pull helper"))?;
        let child = Command::new(program)
            .arg(SUBCOMMAND)
            .stdin(Stdio::from(input))
            .stdout(Stdio::from(output))
            .spawn()
            .map_err(failed("start the pull helper"))?;
        let helper = Self { child: Some(child) };
        let text = request
            .serialize(serde_json::value::Serializer)
            .map_err(|error| invalid("pull request", error.to_string()))?
            .to_string();
        // A socket's buffer takes far more than a request; a child that is dead already is noticed when it is heard.
        let _ = (&ours).write_all(text.as_bytes());
        let _ = ours.shutdown(std::net::Shutdown::Write);
        ours.set_nonblocking(true).map_err(failed("make a socket for the pull helper"))?;
        let socket = UnixStream::from_std(ours).map_err(failed("make a socket for the pull helper"))?;
        Ok((helper, socket))
    }

    /// Its socket is closed: it has ended, or is about to.
    async fn wait(&mut self) -> String {
        let Some(mut child) = self.child.take() else { return String::new() };
        match rt::blocking("pull-wait", move || child.wait()).await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = child.kill();
        // It may hang in the kernel's file system for a while: not our thread's business.
        let _ = rt::spawn_thread("pull-reap", move || drop(child.wait()));
    }
}
