//! Both ends of the child that pulls: it gets the request through a socket, and writes lines of progress to
//! it.
//!
//! Owns the child. Dropping the future kills the child; so does the end of the agent.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::error::invalid;
use super::fetch::resolve;
use super::{LayerState, Progress, PullError, PullErrorKind, PullRequest, Pulled, pull};
use crate::model::api::decode::decode;
use crate::platform::rt::child::TalkingChild;
use crate::platform::sys::{background, memory};
use crate::runtime::embedded::images::ImageStore;

const SUBCOMMAND: &str = "pull-helper";
/// A request with credentials and a few directories.
const MAX_REQUEST_BYTES: u64 = 1024 * 1024;
/// A line of progress holds a few names; an error message may be long.
const MAX_LINE_BYTES: usize = 256 * 1024;
/// A killed process ends at once, unless the kernel still works for it.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// A slow card may need minutes to write a large layer, without any progress reports.
const DISK_PATIENCE: Duration = Duration::from_secs(600);

/// `agent pull-helper`: the child. Its exit code carries no more information than its last line.
#[must_use]
pub fn helper_main() -> u8 {
    memory::limit_arenas(1);
    background::lower_priority();
    let mut stdout = std::io::stdout();
    let mut tell = |progress: Progress| {
        if let Ok(value) = serde_json::to_value(&progress) {
            // A write fails only when the agent is gone, and then this process is killed, too.
            let _ = stdout.write_all(format!("{value}\n").as_bytes()).and_then(|()| stdout.flush());
        }
    };
    match serve(&mut tell) {
        Ok(()) => 0,
        Err(error) => {
            tell(Progress::Failed { kind: error.kind(), message: crate::platform::logging::chain(&error) });
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
    if request.only_digest {
        return resolve(&request, tell);
    }
    let store = ImageStore::open(&request.store).map_err(PullError::Store)?;
    pull(&store, &request, tell).map(drop)
}

/// Pulls in a child process, so that this process keeps its memory small.
///
/// Dropping the future kills the child. `program` is this program, `/proc/self/exe`.
///
/// # Errors
/// The child's error, or no progress for as long as the request allows.
pub async fn pull_in_child(
    program: &Path,
    request: &PullRequest,
    progress: impl FnMut(Progress),
) -> Result<Pulled, PullError> {
    pull_until(program, request, progress, std::future::pending()).await
}

/// The digest that a reference has at its registry now, asked by a child process.
///
/// # Errors
/// The child's error.
pub async fn digest_in_child(program: &Path, request: PullRequest) -> Result<String, PullError> {
    let request = PullRequest { only_digest: true, ..request };
    let resolved = pull_in_child(program, &request, |_| ()).await?;
    let digest = resolved.repo_digest.rsplit_once('@').map(|(_, digest)| digest.to_owned());
    digest.ok_or_else(|| invalid("answer about a digest", resolved.repo_digest))
}

/// As [`pull_in_child`], cancelled as soon as `stop` completes. When it returns the child is gone, unless it
/// cannot be killed.
///
/// # Errors
/// As [`pull_in_child`], and [`PullError::Interrupted`].
pub async fn pull_until(
    program: &Path,
    request: &PullRequest,
    mut progress: impl FnMut(Progress),
    stop: impl Future<Output = ()>,
) -> Result<Pulled, PullError> {
    let mut stop = std::pin::pin!(stop);
    let value = serde_json::to_value(request).map_err(|error| invalid("pull request", error.to_string()))?;
    let child = TalkingChild::start(Command::new(program).arg(SUBCOMMAND), value.to_string().as_bytes())
        .map_err(|source| PullError::System { what: "start the pull helper", source })?;
    let mut lines = Vec::new();
    let mut buffer = vec![0; 16 * 1024];
    let mut extracting = BTreeSet::new();
    let mut outcome = None;
    loop {
        let deadline = request.progress_deadline();
        let patience = if extracting.is_empty() { deadline } else { DISK_PATIENCE.max(deadline) };
        let heard = tokio::select! {
            biased;
            () = &mut stop => {
                // A child that hangs in the kernel's file system ends later by itself.
                let _ = tokio::time::timeout(END_PATIENCE, child.end()).await;
                return Err(PullError::Interrupted);
            }
            // Cancel-safe: bytes that were read stay in the buffer when the other branch wins.
            heard = tokio::time::timeout(patience, child.read(&mut buffer)) => heard,
        };
        let count = heard
            .map_err(|_| PullError::Stuck { seconds: patience.as_secs() })?
            .map_err(|source| PullError::System { what: "read from the pull helper", source })?;
        if count == 0 {
            break;
        }
        lines.extend_from_slice(&buffer[..count]);
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
                message: "the pull helper sent an unterminated line".to_owned(),
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
