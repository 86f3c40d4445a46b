//! The client's side: exec, attach and port-forward over SPDY/3.1.
//!
//! SPDY, not WebSocket: every runtime's server speaks it, and it can signal the end of stdin. Owns the
//! coupling of a server's streams with the local ones.

use std::io;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::Streams;
use super::pipe::{Activity, Inlet, LINGER, Outlet};
use super::session::TerminalSize;
use super::spdy::connection::SpdyConnection;
use super::spdy::headers::Headers;

use crate::model::ordered::Ordered as _;

/// The subprotocol of exec and attach.
pub(crate) const COMMAND: &str = "v4.channel.k8s.io";
/// The subprotocol of port-forward.
pub(crate) const FORWARD: &str = "portforward.k8s.io";

const READ: usize = 8 * 1024;
/// The longest exit status that a server may send, in bytes.
const MAX_WORDS: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputStream {
    /// stdout; with a terminal, all of it.
    Stdout,
    Stderr,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(i32),
    /// It did not run; the server's message.
    Failed(String),
    /// The connection ended before the command did.
    Lost,
}

fn headers(pairs: &[(&str, &str)]) -> Headers {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).into_map()
}

/// Couples a command with the local streams until it ends. `stdin` ends when its sender is dropped; `sizes`
/// are the terminal's. Needs a `LocalSet`.
pub(crate) async fn command(
    io: impl AsyncRead + AsyncWrite + 'static,
    wanted: Streams,
    mut stdin: mpsc::Receiver<Vec<u8>>,
    mut sizes: mpsc::Receiver<TerminalSize>,
    mut write: impl FnMut(OutputStream, &[u8]) -> io::Result<()>,
) -> io::Result<Ended> {
    let kinds = [
        ("error", true),
        ("stdin", wanted.stdin),
        ("stdout", wanted.stdout),
        ("stderr", wanted.stderr && !wanted.tty),
        ("resize", wanted.tty),
    ];
    let asked: Vec<&str> = kinds.iter().filter(|(_, wanted)| *wanted).map(|(kind, _)| *kind).collect();
    let blocks = asked.iter().map(|kind| headers(&[("streamtype", kind)])).collect();
    let (connection, streams) = SpdyConnection::ask(io, blocks, &Activity::new());
    let (mut inlets, mut outlets) = (Vec::new(), Vec::new());
    for (kind, stream) in asked.iter().zip(streams) {
        match *kind {
            "stdin" | "resize" => outlets.push((*kind, stream.outlet)),
            _ => inlets.push((*kind, stream.inlet)),
        }
    }
    let mut outlet = |kind: &str| -> Option<Outlet> {
        let index = outlets.iter().position(|(found, _)| *found == kind)?;
        Some(outlets.swap_remove(index).1)
    };
    let (to_stdin, to_terminal) = (outlet("stdin"), outlet("resize"));
    let input = async {
        let typed = async {
            let Some(mut outlet) = to_stdin else { return };
            while let Some(piece) = stdin.recv().await {
                if outlet.write(&piece).await.is_err() {
                    return;
                }
            }
            outlet.finish().await;
        };
        let resized = async {
            let Some(mut outlet) = to_terminal else { return };
            while let Some(TerminalSize { width, height }) = sizes.recv().await {
                let size = json!({ "Width": width, "Height": height }).to_string();
                if outlet.write(size.as_bytes()).await.is_err() {
                    return;
                }
            }
        };
        tokio::join!(typed, resized);
        std::future::pending::<()>().await;
    };
    let mut inlet = |kind: &str| -> Option<Inlet> {
        let index = inlets.iter().position(|(found, _)| *found == kind)?;
        Some(inlets.swap_remove(index).1)
    };
    let (mut out, mut err, mut error) = (inlet("stdout"), inlet("stderr"), inlet("error"));
    let output = async {
        let mut words = Vec::new();
        while out.is_some() || err.is_some() || error.is_some() {
            // In this order, so that all output is written before the exit status is reported.
            tokio::select! {
                biased;
                piece = next(&mut out) => if let Some(piece) = piece { write(OutputStream::Stdout, &piece)? },
                piece = next(&mut err) => if let Some(piece) = piece { write(OutputStream::Stderr, &piece)? },
                piece = next(&mut error) => if let Some(piece) = piece { words.extend(piece) },
            }
            words.truncate(MAX_WORDS);
        }
        Ok::<_, io::Error>(words)
    };
    let words = tokio::select! {
        biased;
        words = output => words?,
        () = input => Vec::new(),
    };
    connection.close().await;
    Ok(ended(&words))
}

/// The next piece of a stream; pending forever if the stream is absent, which it is after its end.
async fn next(inlet: &mut Option<Inlet>) -> Option<Vec<u8>> {
    let Some(open) = inlet else { return std::future::pending().await };
    let piece = open.next().await;
    if piece.is_none() {
        *inlet = None;
    }
    piece
}

/// Parses the error stream of v4, a `Status`.
fn ended(words: &[u8]) -> Ended {
    if words.is_empty() {
        return Ended::Lost;
    }
    let Ok(status) = serde_json::from_slice::<Value>(words) else {
        return Ended::Failed(String::from_utf8_lossy(words).into_owned());
    };
    if status["status"] == "Success" {
        return Ended::Code(0);
    }
    let causes = status["details"]["causes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let code = causes.iter().find(|cause| cause["reason"] == "ExitCode");
    let code = code.and_then(|cause| cause["message"].as_str()?.parse().ok());
    let message = || Ended::Failed(status["message"].as_str().unwrap_or("no reason given").to_owned());
    code.map_or_else(message, Ended::Code)
}

/// Couples a local connection with a port of a pod until both directions have ended. Needs a `LocalSet`.
pub(crate) async fn forward(
    io: impl AsyncRead + AsyncWrite + 'static,
    port: u16,
    near: impl AsyncRead + AsyncWrite,
) -> Result<(), String> {
    let port = port.to_string();
    let block = |kind| headers(&[("streamtype", kind), ("port", port.as_str()), ("requestid", "0")]);
    let (connection, streams) =
        SpdyConnection::ask(io, vec![block("error"), block("data")], &Activity::new());
    let Ok([error, data]) = <[_; 2]>::try_from(streams) else { return Err("no streams".to_owned()) };
    // This side sends nothing on the error stream.
    error.outlet.finish().await;
    let (mut from_near, mut to_near) = tokio::io::split(near);
    let (mut outlet, mut inlet, mut words) = (data.outlet, data.inlet, error.inlet);
    let out = async {
        let mut block = vec![0; READ];
        loop {
            match from_near.read(&mut block).await {
                Ok(0) | Err(_) => return outlet.finish().await,
                Ok(count) => {
                    if outlet.write(&block[..count]).await.is_err() {
                        return;
                    }
                }
            }
        }
    };
    let back = async {
        while let Some(piece) = inlet.next().await {
            if to_near.write_all(&piece).await.is_err() {
                return;
            }
        }
        let _ = to_near.shutdown().await;
    };
    let trouble = async {
        let mut all = Vec::new();
        while let Some(piece) = words.next().await {
            all.extend(piece);
            all.truncate(MAX_WORDS);
        }
        if all.is_empty() { Ok(()) } else { Err(String::from_utf8_lossy(&all).into_owned()) }
    };
    let coupled = async {
        // The pod's side ends the connection; the end of local input ends only that direction.
        let out = async {
            out.await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = out => {}
            () = back => {}
        }
    };
    tokio::pin!(trouble, coupled);
    let mut has_said = false;
    let result = loop {
        tokio::select! {
            biased;
            said = &mut trouble, if !has_said => {
                has_said = true;
                if said.is_err() {
                    break said;
                }
            }
            () = &mut coupled => {
                // The error may arrive after the end of the data.
                let late = async { if has_said { Ok(()) } else { trouble.await } };
                break tokio::time::timeout(LINGER, late).await.unwrap_or(Ok(()));
            }
        }
    };
    connection.close().await;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_it_ended_is_read_from_a_status() {
        assert_eq!(ended(br#"{"metadata":{},"status":"Success"}"#), Ended::Code(0));
        let failed = br#"{"status":"Failure","reason":"NonZeroExitCode","message":"exit status 3",
            "details":{"causes":[{"reason":"Other","message":"9"},{"reason":"ExitCode","message":"3"}]}}"#;
        assert_eq!(ended(failed), Ended::Code(3));
        let refused =
            br#"{"status":"Failure","message":"no such file","details":{"causes":[{"message":"x"}]}}"#;
        assert_eq!(ended(refused), Ended::Failed("no such file".into()));
        assert_eq!(ended(b"plain words"), Ended::Failed("plain words".into()));
        assert_eq!(ended(b""), Ended::Lost);
    }
}
