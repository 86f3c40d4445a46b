//! Exec and attach: a client's streams coupled with those of a program.
//!
//! Owns the coupling and the format of the exit status.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use super::Streams;
use super::pipe::{Activity, Gone, Inlet, Outlet};
use super::session::{CREATION_TIMEOUT, OutputReader, Pending, Session, TerminalSize};
use super::spdy::connection::{SpdyConnection, SpdyStream};
use super::websocket::connection::{Messages, WebSocketConnection};

/// The WebSocket channels. A client opens the streams it has asked for within [`CREATION_TIMEOUT`].
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;

/// The size of a read from a program.
const READ: usize = 8 * 1024;
/// Processes that a program leaves running may keep its streams open forever. After its end the rest of the
/// output is sent, until nothing arrives for this time.
const QUIET: Duration = Duration::from_secs(2);
/// A message with a terminal size takes 30 bytes.
const MAX_SIZE: usize = 1024;

/// The versions of `channel.k8s.io`, as far as they differ for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) struct Dialect {
    /// The exit status is sent as a `Status` (v4 and later).
    pub structured: bool,
    /// There is a stream for the terminal's size (v3 and later).
    pub resizes: bool,
}

struct StreamClient {
    stdin: Option<Inlet>,
    resize: Option<Inlet>,
    stdout: Option<Outlet>,
    stderr: Option<Outlet>,
    error: Outlet,
}

/// Serves a SPDY client until it or the program is done.
pub(in crate::serve) async fn over_spdy(
    io: impl AsyncRead + AsyncWrite + 'static,
    dialect: Dialect,
    wanted: Streams,
    open: Pending<Result<Session, String>>,
    activity: Rc<Activity>,
) {
    let mut connection = SpdyConnection::start(io, &activity);
    let opened = tokio::time::timeout(CREATION_TIMEOUT, collect(&mut connection, dialect, wanted)).await;
    let Ok(Some(client)) = opened else {
        log::debug!("Timed out waiting for client streams");
        return;
    };
    tokio::select! {
        biased;
        () = run(client, dialect, open) => {}
        () = refuse_more(&mut connection) => return,
    }
    connection.close().await;
}

/// Waits for the streams that a client opens; `None` if it disconnects first.
async fn collect(connection: &mut SpdyConnection, dialect: Dialect, wanted: Streams) -> Option<StreamClient> {
    let wants_resize = wanted.tty && dialect.resizes;
    let mut missing: BTreeMap<&str, bool> = BTreeMap::from([
        ("stdin", wanted.stdin),
        ("stdout", wanted.stdout),
        ("stderr", wanted.stderr),
        ("resize", wants_resize),
        ("error", true),
    ]);
    let mut found: BTreeMap<String, SpdyStream> = BTreeMap::new();
    while missing.values().any(|missing| *missing) {
        let stream = connection.next().await?;
        let kind = stream.headers.get("streamtype").cloned().unwrap_or_default();
        match missing.get_mut(kind.as_str()) {
            Some(missing) if *missing => {
                *missing = false;
                found.insert(kind, stream);
            }
            _ => connection.refuse(stream).await,
        }
    }
    let error = found.remove("error")?.outlet;
    Some(StreamClient {
        stdin: found.remove("stdin").map(|stream| stream.inlet),
        resize: found.remove("resize").map(|stream| stream.inlet),
        stdout: found.remove("stdout").map(|stream| stream.outlet),
        stderr: found.remove("stderr").map(|stream| stream.outlet),
        error,
    })
}

async fn refuse_more(connection: &mut SpdyConnection) {
    while let Some(stream) = connection.next().await {
        connection.refuse(stream).await;
    }
}

/// Serves a WebSocket client until it or the program is done.
pub(in crate::serve) async fn over_websocket(
    io: impl AsyncRead + AsyncWrite + 'static,
    messages: Messages,
    dialect: Dialect,
    wanted: Streams,
    open: Pending<Result<Session, String>>,
    activity: Rc<Activity>,
) {
    let (mut connection, mut inlets) = WebSocketConnection::start(io, messages, &[STDIN, RESIZE], &activity);
    let mut client = StreamClient {
        stdin: inlets.remove(&STDIN).filter(|_| wanted.stdin),
        resize: inlets.remove(&RESIZE).filter(|_| wanted.tty),
        stdout: wanted.stdout.then(|| connection.outlet(STDOUT)),
        stderr: wanted.stderr.then(|| connection.outlet(STDERR)),
        error: connection.outlet(ERROR),
    };
    // An empty message signals that the server is ready, as upstream's does.
    let first = client.stdout.as_mut().or(client.stderr.as_mut()).unwrap_or(&mut client.error);
    if first.send(&[]).await.is_err() {
        return;
    }
    tokio::select! {
        biased;
        () = run(client, dialect, open) => {}
        () = connection.gone() => return,
    }
    connection.close().await;
}

async fn run(mut client: StreamClient, dialect: Dialect, open: Pending<Result<Session, String>>) {
    let ended = match open.await {
        Ok(session) => couple(&mut client, session).await,
        Err(message) => Ok(Err(message)),
    };
    let Ok(ended) = ended else { return };
    let report = report(&ended, dialect.structured);
    if client.error.write(report.as_bytes()).await.is_ok() {
        client.error.finish().await;
    }
}

/// Runs until the program has ended and all of its output is sent.
async fn couple(client: &mut StreamClient, session: Session) -> Result<Result<i32, String>, Gone> {
    let Session { stdin, stdout, stderr, resize, exit } = session;
    let ended = (Notify::new(), Notify::new());
    let input = async {
        let write = async {
            if let (Some(inlet), Some(mut stdin)) = (client.stdin.take(), stdin) {
                copy_in(inlet, &mut stdin).await;
                // Dropping stdin signals its end to the program.
                let _ = stdin.shutdown().await;
            }
        };
        let sizes = async {
            if let (Some(inlet), Some(resize)) = (client.resize.take(), resize) {
                follow_sizes(inlet, &*resize).await;
            }
        };
        tokio::join!(write, sizes);
        std::future::pending::<()>().await;
    };
    let (out, err) = (client.stdout.take(), client.stderr.take());
    let output = async {
        let exit = async {
            let exit = exit.await;
            ended.0.notify_one();
            ended.1.notify_one();
            Ok(exit)
        };
        let ((), (), exit) =
            tokio::try_join!(copy_out(stdout, out, &ended.0), copy_out(stderr, err, &ended.1), exit)?;
        Ok(exit)
    };
    tokio::select! {
        biased;
        exit = output => exit,
        () = input => Err(Gone),
    }
}

async fn copy_in(mut inlet: Inlet, stdin: &mut (impl AsyncWrite + Unpin)) {
    while let Some(piece) = inlet.next().await {
        // A program that does not read its stdin is not an error.
        if stdin.write_all(&piece).await.is_err() || stdin.flush().await.is_err() {
            return;
        }
    }
}

async fn copy_out(reader: Option<OutputReader>, outlet: Option<Outlet>, ended: &Notify) -> Result<(), Gone> {
    let (Some(mut reader), Some(mut outlet)) = (reader, outlet) else { return Ok(()) };
    let mut block = vec![0_u8; READ];
    let mut has_ended = false;
    loop {
        let quiet = async {
            if !has_ended {
                ended.notified().await;
            }
            has_ended = true;
            tokio::time::sleep(QUIET).await;
        };
        // A terminal whose other side is closed returns a read error: that is its end.
        let count = tokio::select! {
            biased;
            read = reader.read(&mut block) => read.unwrap_or(0),
            () = quiet => 0,
        };
        if count == 0 {
            outlet.finish().await;
            return Ok(());
        }
        outlet.write(&block[..count]).await?;
    }
}

/// Sizes arrive as concatenated JSON objects, split at any byte.
async fn follow_sizes(mut inlet: Inlet, resize: &dyn Fn(TerminalSize)) {
    let mut text = Vec::new();
    while let Some(piece) = inlet.next().await {
        text.extend(piece);
        while let Some(end) = text.iter().position(|byte| *byte == b'}') {
            let object: Vec<u8> = text.drain(..=end).collect();
            match size(&object) {
                Some(size) => resize(size),
                None => return,
            }
        }
        if text.len() > MAX_SIZE {
            return;
        }
    }
}

fn size(object: &[u8]) -> Option<TerminalSize> {
    let object: Value = serde_json::from_slice(object).ok()?;
    let number = |name: &str| u16::try_from(object.get(name)?.as_u64()?).ok();
    Some(TerminalSize { width: number("Width")?, height: number("Height")? })
}

/// The content of the error stream: a `Status` from v4 on; before that text, and nothing on success.
fn report(ended: &Result<i32, String>, structured: bool) -> String {
    let code_text = |code: i32| format!("command terminated with non-zero exit code: exit status {code}");
    if !structured {
        return match ended {
            Ok(0) => String::new(),
            Ok(code) => code_text(*code),
            Err(message) => format!("error executing command in container: {message}"),
        };
    }
    let status = match ended {
        Ok(0) => json!({"metadata": {}, "status": "Success"}),
        Ok(code) => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "message": code_text(*code),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        Err(message) => {
            let message = format!("error executing command in container: {message}");
            json!({
                "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
                "message": format!("Internal error occurred: {message}"),
                "details": {"causes": [{"message": message}]},
            })
        }
    };
    status.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_status_is_reported_in_the_client_protocol_version() {
        assert_eq!(report(&Ok(0), true), r#"{"metadata":{},"status":"Success"}"#);
        assert_eq!(report(&Ok(0), false), "");
        let failed: Value = serde_json::from_str(&report(&Ok(3), true)).expect("it is JSON");
        assert_eq!(failed["reason"], "NonZeroExitCode");
        assert_eq!(failed["details"]["causes"][0], json!({"reason": "ExitCode", "message": "3"}));
        let refused: Value =
            serde_json::from_str(&report(&Err("no such file".to_owned()), true)).expect("JSON");
        assert_eq!(
            refused["message"],
            "Internal error occurred: error executing command in container: no such file"
        );
        assert_eq!(
            report(&Err("no such file".to_owned()), false),
            "error executing command in container: no such file"
        );
    }

    #[tokio::test]
    async fn sizes_are_read_however_they_are_cut_and_nonsense_ends_them() {
        let seen = std::cell::RefCell::new(Vec::new());
        let (pieces, inlet) = Inlet::new(None);
        let feed = async {
            for piece in
                [r#"{"Width":80,"Hei"#, "ght\":24}\n{\"Width\":1,\"Height\":2}", r#"{"Width":-1,"Height":2}"#]
            {
                let _ = pieces.send(piece.as_bytes().to_vec()).await;
            }
            drop(pieces);
        };
        let resize = |size: TerminalSize| seen.borrow_mut().push((size.width, size.height));
        tokio::join!(feed, follow_sizes(inlet, &resize));
        assert_eq!(*seen.borrow(), [(80, 24), (1, 2)]);
    }
}
