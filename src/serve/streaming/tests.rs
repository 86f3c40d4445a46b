//! Clients against the server, on loopback: every dialect, half-closes, slow and vanished clients.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::LocalSet;

use super::server::{Announcer, Server, StreamUrlKind};
use super::spdy::dictionary::dictionary;
use super::*;

mod client;

use client::{Spdy, WebSocket, data_frame};

const ALL: Streams = Streams { stdin: true, stdout: true, stderr: true, tty: false };

/// Runs `test` with a server.
async fn with_server<F: Future<Output = ()>>(test: impl FnOnce(Announcer) -> F) {
    let server = Server::bind(([127, 0, 0, 1], 0).into()).expect("loopback has ports");
    let announcer = server.announcer();
    let local = LocalSet::new();
    local
        .run_until(async move {
            tokio::select! {
                () = test(announcer) => {}
                () = server.serve() => panic!("the server ended"),
            }
        })
        .await;
}

/// Copies stdin to stdout, writes to stderr at its end, and exits with `code`.
fn cat(code: i32) -> Session {
    let (stdin, mut program_in) = tokio::io::duplex(1000);
    let (mut program_out, stdout) = tokio::io::duplex(1000);
    let (mut program_err, stderr) = tokio::io::duplex(1000);
    let program = async move {
        tokio::io::copy(&mut program_in, &mut program_out).await.map_err(|error| error.to_string())?;
        // The write may fail: the client may have closed its side.
        let _ = program_err.write_all(b"that was all").await;
        Ok(code)
    };
    let program = tokio::task::spawn_local(program);
    Session {
        stdin: Some(Box::new(stdin)),
        stdout: Some(Box::new(stdout)),
        stderr: Some(Box::new(stderr)),
        resize: None,
        exit: Box::pin(async move { program.await.map_err(|error| error.to_string())? }),
    }
}

fn announce(
    announcer: &Announcer,
    streams: Streams,
    session: impl FnOnce() -> Result<Session, String> + 'static,
) -> String {
    let open = move || Action::Command { streams, open: Box::pin(async { session() }) };
    announcer.announce(StreamUrlKind::Exec, open).expect("there is room")
}

async fn open_streams(client: &mut Spdy, kinds: &[&str]) -> Vec<u32> {
    let mut ids = Vec::new();
    for kind in kinds {
        ids.push(client.open(&[("streamtype", kind)]).await);
    }
    ids
}

#[tokio::test]
async fn spdy_client_exchanges_data_and_receives_the_exit_code() {
    with_server(|announcer| async move {
        let url = announce(&announcer, ALL, || Ok(cat(3)));
        let offered = ["v5.channel.k8s.io", "v4.channel.k8s.io", "v3.channel.k8s.io"];
        let mut client = Spdy::connect(&url, &offered, &dictionary()).await.expect("it is accepted");
        assert!(client.head.to_lowercase().contains("x-stream-protocol-version: v4.channel.k8s.io"));
        let ids = open_streams(&mut client, &["error", "stdin", "stdout", "stderr"]).await;
        let [error, stdin, stdout, stderr] = ids[..] else { panic!("four streams") };
        client.ping(1).await;
        let sent: Vec<u8> = (0..200_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        for piece in sent.chunks(50_000) {
            client.send(stdin, piece, false).await;
            let total = client.data.get(&stdout).map_or(0, Vec::len) + piece.len();
            client.until(|client| client.data.get(&stdout).map_or(0, Vec::len) >= total).await;
        }
        client.send(stdin, b"", true).await;
        client.until(|client| client.finished.contains(&error)).await;
        assert_eq!(client.data.get(&stdout), Some(&sent));
        assert_eq!(client.text(stderr), "that was all");
        let status: Value = serde_json::from_str(&client.text(error)).expect("a status");
        assert_eq!(status["details"]["causes"][0], json!({"reason": "ExitCode", "message": "3"}));
        assert!(client.finished.is_superset(&[stdout, stderr, error].into()));
        assert!(client.replied.is_superset(&ids.into_iter().collect()) && client.pings.contains(&1));
        assert!(client.credit[&stdin] > 150_000, "the window is given back");
        client.until(|client| client.closed).await;
    })
    .await;
}

#[tokio::test]
async fn old_protocol_reports_failure_as_text_and_success_as_empty() {
    with_server(|announcer| async move {
        for (session, said) in [
            (Box::new(|| Ok(cat(0))) as Box<dyn FnOnce() -> Result<Session, String>>, ""),
            (Box::new(|| Ok(cat(3))), "command terminated with non-zero exit code: exit status 3"),
            (Box::new(|| Err("no".to_owned())), "error executing command in container: no"),
        ] {
            let url = announce(&announcer, Streams { stderr: false, ..ALL }, session);
            let mut client = Spdy::connect(&url, &["channel.k8s.io"], &dictionary()).await.expect("accepted");
            let ids = open_streams(&mut client, &["error", "stdin", "stdout"]).await;
            client.send(ids[1], b"", true).await;
            client.until(|client| client.finished.contains(&ids[0])).await;
            assert_eq!(client.text(ids[0]), said);
        }
    })
    .await;
}

#[tokio::test]
async fn a_request_works_once_and_only_in_a_language_that_is_spoken() {
    with_server(|announcer| async move {
        let refused = |answer: Result<Spdy, (u16, String)>| answer.err().expect("it is refused");
        let url = announce(&announcer, ALL, || Ok(cat(0)));
        let (status, head) = refused(Spdy::connect(&url, &["v9.channel.k8s.io"], &dictionary()).await);
        assert_eq!(status, 403);
        assert!(head.contains("x-accepted-stream-protocol-versions: v4.channel.k8s.io"), "{head}");
        let (status, _) = refused(Spdy::connect(&url, &["v4.channel.k8s.io"], &dictionary()).await);
        assert_eq!(status, 404, "it was used");
        let wrong = url.replace("/exec/", "/attach/");
        assert_eq!(refused(Spdy::connect(&wrong, &[], &dictionary()).await).0, 404);
        let url = announce(&announcer, ALL, || Ok(cat(0)));
        let answer = WebSocket::connect(&url, "v9.channel.k8s.io").await;
        assert_eq!(answer.err().map(|refusal| refusal.0), Some(403));
    })
    .await;
}

#[tokio::test]
async fn a_terminal_follows_the_clients_size() {
    with_server(|announcer| async move {
        let sizes = Rc::new(RefCell::new(Vec::new()));
        let streams = Streams { stderr: false, tty: true, ..ALL };
        let seen = Rc::clone(&sizes);
        let url = announce(&announcer, streams, move || {
            let resize = move |size: TerminalSize| seen.borrow_mut().push((size.width, size.height));
            Ok(Session { stderr: None, resize: Some(Box::new(resize)), ..cat(0) })
        });
        let mut client = Spdy::connect(&url, &["v4.channel.k8s.io"], &dictionary()).await.expect("accepted");
        let ids = open_streams(&mut client, &["error", "stdin", "stdout", "resize"]).await;
        client.send(ids[3], br#"{"Width":120,"Height":40}"#, false).await;
        client.send(ids[1], b"x", false).await;
        client.until(|client| client.text(ids[2]) == "x").await;
        assert_eq!(*sizes.borrow(), [(120, 40)]);
    })
    .await;
}

#[tokio::test]
async fn a_program_talks_with_a_client_over_websocket() {
    with_server(|announcer| async move {
        let url = announce(&announcer, ALL, || Ok(cat(7)));
        let mut client =
            WebSocket::connect(&url, "v5.channel.k8s.io, v4.channel.k8s.io").await.expect("accepted");
        assert!(client.head.to_lowercase().contains("sec-websocket-protocol: v5.channel.k8s.io"));
        client.until(|client| !client.messages.is_empty()).await;
        assert_eq!(client.messages[0], [1], "an empty message comes first");
        let sent = vec![b'a'; 100_000];
        for piece in sent.chunks(30_000) {
            client.send(2, &[&[0], piece].concat()).await;
            let total = client.channel(1).len() + piece.len();
            client.until(|client| client.channel(1).len() >= total).await;
        }
        client.send(9, b"here?").await;
        client.send(2, &[255, 0]).await;
        client.until(|client| client.closed).await;
        assert_eq!((client.channel(1), client.channel(2)), (sent, b"that was all".to_vec()));
        let status: Value = serde_json::from_slice(&client.channel(3)).expect("a status");
        assert_eq!(status["details"]["causes"][0]["message"], "7");
        assert_eq!(client.pongs, [b"here?"]);
        assert!(client.channel(255).is_empty(), "closing channels is for clients");
    })
    .await;
}

#[tokio::test]
async fn base64_websocket_carries_output_and_exit_status() {
    with_server(|announcer| async move {
        let url = announce(&announcer, Streams { stdin: true, stdout: true, ..ALL }, || {
            // This program ends by itself.
            let mut session = cat(0);
            session.stdin = None;
            session.stdout = Some(Box::new(&b"hello"[..]));
            Ok(session)
        });
        let mut client = WebSocket::connect(&url, "v4.base64.channel.k8s.io").await.expect("accepted");
        client.until(|client| client.closed).await;
        assert_eq!(client.channel(b'1'), b"aGVsbG8=");
        assert_eq!(client.channel(b'2'), b"dGhhdCB3YXMgYWxs");
        assert!(client.channel(b'3').starts_with(b"eyJtZXRhZGF0YSI6e30sInN0YXR1cyI6IlN1Y2Nlc3Mi"));
    })
    .await;
}

fn announce_log(announcer: &Announcer, pieces: Vec<io::Result<Bytes>>) -> String {
    let open = move || {
        let (sender, receiver) = mpsc::channel(pieces.len().max(1));
        for piece in pieces {
            sender.try_send(piece).expect("there is room");
        }
        Action::Output(receiver)
    };
    announcer.announce(StreamUrlKind::Attach, open).expect("there is room")
}

#[tokio::test]
async fn a_log_goes_over_websocket_as_bytes_or_base64() {
    with_server(|announcer| async move {
        let lines = || vec![Ok(Bytes::from_static(b"one\n")), Ok(Bytes::from_static(b"two\n"))];
        for (offered, expected) in [
            ("binary.k8s.io", [&b""[..], b"one\n", b"two\n"]),
            ("v4.channel.k8s.io, base64.binary.k8s.io", [&b""[..], b"b25lCg==", b"dHdvCg=="]),
        ] {
            let url = announce_log(&announcer, lines());
            let mut client = WebSocket::connect(&url, offered).await.expect("accepted");
            client.until(|client| client.closed).await;
            assert_eq!(client.messages, expected, "{offered}");
        }
        let url = announce_log(&announcer, lines());
        assert_eq!(
            WebSocket::connect(&url, "v4.channel.k8s.io").await.err().map(|refusal| refusal.0),
            Some(403)
        );
        let url = announce_log(&announcer, lines());
        let spdy = Spdy::connect(&url, &["v4.channel.k8s.io"], &dictionary()).await;
        assert_eq!(spdy.err().map(|refusal| refusal.0), Some(400));
    })
    .await;
}

/// Records whether the client's session still exists.
struct Guard(Rc<Cell<bool>>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Writes forever, until it is dropped.
fn chatterbox(alive: Rc<Cell<bool>>) -> Session {
    alive.set(true);
    let guard = Guard(alive);
    let exit = async move {
        std::future::pending::<()>().await;
        drop(guard);
        Ok(0)
    };
    Session {
        stdin: None,
        stdout: Some(Box::new(tokio::io::repeat(b'y'))),
        stderr: None,
        resize: None,
        exit: Box::pin(exit),
    }
}

#[tokio::test]
async fn stalled_client_blocks_no_other_and_lost_one_ends_its_exec() {
    with_server(|announcer| async move {
        let alive = Rc::new(Cell::new(false));
        let flag = Rc::clone(&alive);
        let streams = Streams { stdout: true, ..Streams::default() };
        let url = announce(&announcer, streams, move || Ok(chatterbox(flag)));
        let mut slow = Spdy::connect(&url, &["v4.channel.k8s.io"], &dictionary()).await.expect("accepted");
        let ids = open_streams(&mut slow, &["error", "stdout"]).await;
        slow.until(|client| client.data.get(&ids[1]).map_or(0, Vec::len) > 100_000).await;

        let url = announce(&announcer, Streams { stderr: false, ..ALL }, || Ok(cat(0)));
        let mut quick = Spdy::connect(&url, &["v4.channel.k8s.io"], &dictionary()).await.expect("accepted");
        let ids = open_streams(&mut quick, &["error", "stdin", "stdout"]).await;
        quick.send(ids[1], b"quick", true).await;
        quick.until(|client| client.closed).await;
        assert_eq!(quick.text(ids[2]), "quick");

        assert!(alive.get());
        drop(slow);
        let gone = async {
            while alive.get() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone).await.expect("the program is dropped");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn slow_client_gets_all_output_of_an_ended_program() {
    let (servers, mut near) = tokio::io::duplex(1000);
    let (mut far, clients) = tokio::io::duplex(1000);
    // A second for each 1000 bytes: much longer than a closed connection stays open.
    let relay = async move {
        let ((mut from, mut back), (mut asked, mut to)) =
            (tokio::io::split(&mut near), tokio::io::split(&mut far));
        let slowly = async {
            let mut block = [0; 1000];
            while let Ok(count @ 1..) = from.read(&mut block).await {
                tokio::time::sleep(Duration::from_secs(1)).await;
                to.write_all(&block[..count]).await.expect("the client reads");
            }
        };
        tokio::join!(slowly, tokio::io::copy(&mut asked, &mut back)).1.expect("the server reads");
    };
    let streams = Streams { stdout: true, ..Streams::default() };
    let session = Session {
        stdin: None,
        stdout: Some(Box::new(std::io::Cursor::new(vec![7; 100_000]))),
        stderr: None,
        resize: None,
        exit: Box::pin(async { Ok(0) }),
    };
    let dialect = Dialect { structured: true, resizes: true };
    let open = Box::pin(async { Ok(session) });
    let mut received = 0;
    let write = |_, piece: &[u8]| {
        received += piece.len();
        Ok(())
    };
    let talk = async {
        let (no_input, no_sizes) = (mpsc::channel(1).1, mpsc::channel(1).1);
        let ended = super::client::command(clients, streams, no_input, no_sizes, write).await;
        assert_eq!(ended.expect("it is taken"), super::client::Ended::Code(0));
    };
    let serve = command::over_spdy(servers, dialect, streams, open, Activity::new());
    let local = LocalSet::new();
    Box::pin(local.run_until(async { tokio::join!(talk, serve, relay) })).await;
    assert_eq!(received, 100_000);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_open_its_streams_is_cut_off() {
    let test = async {
        let (mut client, server) = tokio::io::duplex(1000);
        let dialect = Dialect { structured: true, resizes: true };
        let begin = tokio::time::Instant::now();
        let open = Box::pin(async { panic!("nothing is started") });
        command::over_spdy(server, dialect, ALL, open, Activity::new()).await;
        assert_eq!(begin.elapsed(), CREATION_TIMEOUT);
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.expect("the connection is closed");
    };
    LocalSet::new().run_until(test).await;
}

/// Echoes its input, then closes. Returns its port.
async fn echo_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
    let port = listener.local_addr().expect("it is bound").port();
    tokio::task::spawn_local(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::task::spawn_local(async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    port
}

fn loopback() -> Dialer {
    Rc::new(|port| {
        Box::pin(async move {
            let connected = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
            connected.map(|stream| Box::new(stream) as Box<dyn Duplex>).map_err(|error| error.to_string())
        })
    })
}

fn announce_forward(announcer: &Announcer, ports: Vec<u16>) -> String {
    let begin = move || Action::Forward { ports, dial: loopback() };
    announcer.announce(StreamUrlKind::PortForward, begin).expect("there is room")
}

/// A port without a listener.
async fn shut_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
    listener.local_addr().expect("it is bound").port()
}

#[tokio::test]
async fn ports_are_forwarded_over_spdy_many_at_a_time() {
    with_server(|announcer| async move {
        let (port, shut) = (echo_server().await.to_string(), shut_port().await.to_string());
        let url = announce_forward(&announcer, Vec::new());
        let mut client = Spdy::connect(&url, &["portforward.k8s.io"], &dictionary()).await.expect("accepted");
        let mut data = Vec::new();
        for (id, port) in [("0", &port), ("1", &port), ("2", &shut)] {
            let error = client.open(&[("streamtype", "error"), ("port", port), ("requestid", id)]).await;
            client.send(error, b"", true).await;
            data.push(client.open(&[("streamtype", "data"), ("port", port), ("requestid", id)]).await);
        }
        // Both pairs work at the same time.
        client.send(data[0], b"first ", false).await;
        client.send(data[1], &vec![b'x'; 100_000], false).await;
        client.until(|client| client.data.get(&data[1]).map_or(0, Vec::len) == 100_000).await;
        client.send(data[0], b"still", true).await;
        client.until(|client| client.finished.contains(&data[0])).await;
        assert_eq!(client.text(data[0]), "first still");
        let error = data[2] - 2;
        client.until(|client| client.finished.contains(&error)).await;
        assert!(client.text(error).contains("Connection refused"), "{}", client.text(error));
        client.cancel(data[1]).await;
        let odd = client.open(&[("streamtype", "data"), ("port", "none")]).await;
        client.until(|client| client.reset.contains(&odd)).await;
    })
    .await;
}

/// A server that sends first and closes, while its client sends nothing: the end of the stream reaches the
/// client.
#[tokio::test]
async fn port_forward_passes_eof_while_the_client_side_is_open() {
    with_server(|announcer| async move {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((mut io, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let _ = io.write_all(b"good bye").await;
                    let _ = io.shutdown().await;
                    // It waits for the client's end, as HTTP servers do.
                    let _ = io.read_to_end(&mut Vec::new()).await;
                });
            }
        });
        let url = announce_forward(&announcer, Vec::new());
        let mut client = Spdy::connect(&url, &["portforward.k8s.io"], &dictionary()).await.expect("accepted");
        let name = port.to_string();
        client.open(&[("streamtype", "error"), ("port", &name), ("requestid", "0")]).await;
        let data = client.open(&[("streamtype", "data"), ("port", &name), ("requestid", "0")]).await;
        client.until(|client| client.finished.contains(&data)).await;
        assert_eq!(client.text(data), "good bye");
        let url = announce_forward(&announcer, vec![port]);
        let mut client = WebSocket::connect(&url, "v4.channel.k8s.io").await.expect("accepted");
        client.until(|client| client.closed).await;
        assert!(client.channel(0).ends_with(b"good bye"));
    })
    .await;
}

#[tokio::test]
async fn ports_are_forwarded_over_websocket() {
    with_server(|announcer| async move {
        let (port, shut) = (echo_server().await, shut_port().await);
        let url = announce_forward(&announcer, vec![port, shut]);
        let mut client = WebSocket::connect(&url, "v4.channel.k8s.io").await.expect("accepted");
        client.send(2, b"\0over and out").await;
        client.until(|client| client.channel(0).len() == 14 && client.channel(3).len() > 2).await;
        assert_eq!(client.channel(0), [&port.to_le_bytes()[..], b"over and out"].concat());
        assert_eq!(client.channel(2), shut.to_le_bytes());
        let error = String::from_utf8(client.channel(3)[2..].to_vec()).expect("text");
        assert!(error.contains("Connection refused"), "{error}");
        let url = announce_forward(&announcer, Vec::new());
        let answer = WebSocket::connect(&url, "v4.channel.k8s.io").await;
        assert_eq!(answer.err().map(|refusal| refusal.0), Some(400));
    })
    .await;
}

#[tokio::test]
async fn ports_are_forwarded_through_a_tunnel() {
    with_server(|announcer| async move {
        let port = echo_server().await.to_string();
        let url = announce_forward(&announcer, Vec::new());
        let mut outer = WebSocket::connect(&url, "SPDY/3.1+portforward.k8s.io").await.expect("accepted");
        // Only its compressor is used.
        let url = announce_forward(&announcer, Vec::new());
        let mut inner = Spdy::connect(&url, &["portforward.k8s.io"], &dictionary()).await.expect("accepted");
        let headers = |kind| [("streamtype", kind), ("port", port.as_str()), ("requestid", "0")];
        let (error_frame, _) = inner.open_frame(&headers("error"));
        let (data_open, data) = inner.open_frame(&headers("data"));
        let all = [error_frame, data_open, data_frame(data, b"through", true)].concat();
        for piece in all.chunks(7) {
            outer.send(2, piece).await;
        }
        let wanted = data_frame(data, b"through", false);
        let has = |client: &WebSocket| {
            client.messages.concat().windows(wanted.len()).any(|window| window == wanted)
        };
        outer.until(has).await;
        assert!(has(&outer));
    })
    .await;
}
