//! Well- and ill-behaved clients at the other end of a pipe, under simulated time.

use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::RETRY_AFTER;
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::*;
use crate::serve::server::AgentReport;
use crate::serve::server::node::testing::Shown;

type Client = SendRequest<Empty<Bytes>>;

#[derive(Clone)]
struct Local;

impl<F: Future + 'static> Executor<F> for Local {
    fn execute(&self, work: F) {
        tokio::task::spawn_local(work);
    }
}

fn paused<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), test)
}

/// The path gives the length of the answer; other paths have special meanings.
fn respond(sent: &Rc<Cell<usize>>) -> Respond {
    let sent = Rc::clone(sent);
    Rc::new(move |request| {
        let sent = Rc::clone(&sent);
        Box::pin(async move {
            match request.uri().path().trim_matches('/') {
                "stranger" => text(StatusCode::UNAUTHORIZED, "who?"),
                "never" => std::future::pending().await,
                "stream" => {
                    let (pieces, body) = Body::in_pieces();
                    tokio::task::spawn_local(async move {
                        while pieces.send(Ok(Bytes::from(vec![7; 1000]))).await.is_ok() {
                            sent.set(sent.get() + 1000);
                        }
                    });
                    Response::new(body)
                }
                length => match length.parse() {
                    Ok(length) => text(StatusCode::OK, vec![7; length]),
                    Err(_) => text(StatusCode::NOT_FOUND, ""),
                },
            }
        })
    })
}

/// A served connection, what it has sent of endless answers, and whether it has ended.
struct Served {
    client: Client,
    sent: Rc<Cell<usize>>,
    serving: tokio::task::JoinHandle<()>,
}

async fn serve_with(streams: Rc<Streams>, window: u32) -> Served {
    let (near, far) = tokio::io::duplex(1024 * 1024);
    let sent = Rc::default();
    let node: SharedNode = Rc::new(Shown(AgentReport::default()));
    let serving = tokio::task::spawn_local(serve(Box::new(far), streams, node, respond(&sent)));
    let mut builder = Builder::new(Local);
    builder.initial_stream_window_size(window).initial_connection_window_size(1024 * 1024);
    let (client, connection) = builder.handshake(TokioIo::new(near)).await.unwrap();
    tokio::task::spawn_local(connection);
    Served { client, sent, serving }
}

async fn ask(client: &mut Client, method: Method, path: &str) -> Response<Incoming> {
    let request = Request::builder().method(method).uri(format!("https://box/{path}"));
    client.send_request(request.body(Empty::new()).unwrap()).await.unwrap()
}

async fn get(client: &mut Client, path: &str) -> Response<Incoming> {
    ask(client, Method::GET, path).await
}

async fn length(response: Response<Incoming>) -> Option<usize> {
    response.into_body().collect().await.ok().map(|body| body.to_bytes().len())
}

#[test]
fn answers_of_any_length_come_whole_and_head_comes_alone() {
    paused(async {
        let mut served = serve_with(Rc::default(), 100_000).await;
        for expected in [0, 1, LAST, 2 * LAST, 2 * LAST + 1, PIECE, PIECE + 1, 5_000_000] {
            let response = get(&mut served.client, &expected.to_string()).await;
            // An answer without a body ends with its head.
            let told =
                response.headers().get(CONTENT_LENGTH).map(|length| length.to_str().unwrap().to_owned());
            assert_eq!(told, (expected > 0).then(|| expected.to_string()));
            assert_eq!(length(response).await, Some(expected));
        }
        let response = ask(&mut served.client, Method::HEAD, "5000").await;
        assert_eq!(response.headers()[CONTENT_LENGTH], "5000");
        assert_eq!(length(response).await, Some(0));
        let response = ask(&mut served.client, Method::HEAD, "stream").await;
        assert_eq!((response.status(), length(response).await), (StatusCode::OK, Some(0)));
        let mut request = Request::new(Empty::new());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = "box:443".parse().unwrap();
        let response = served.client.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "there are no tunnels");
    });
}

#[test]
fn stalled_http2_readers_hold_bounded_memory_and_time_out() {
    paused(async {
        let streams = Rc::<Streams>::default();
        let mut served = serve_with(Rc::clone(&streams), 10_000).await;
        let mut unread = Vec::new();
        for _ in 0..50 {
            unread.push(get(&mut served.client, "stream").await);
            unread.push(get(&mut served.client, "100000").await);
        }
        tokio::time::sleep(PLAIN.saturating_sub(Duration::from_secs(1))).await;
        assert!(served.sent.get() <= 50 * (10_000 + 5 * 1000), "{}", served.sent.get());
        assert_eq!(length(get(&mut served.client, "500000").await).await, Some(500_000));
        assert_eq!(streams.unsent.available_permits(), MAX_UNSENT_KB - 50 * 98);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(streams.unsent.available_permits(), MAX_UNSENT_KB, "whole answers are given up");
        assert_eq!(streams.places.available_permits(), MAX_STREAMS - 50, "logs and watches are not yet");
        assert_eq!(length(unread.remove(1)).await, None, "nobody takes a part for the whole");
        tokio::time::sleep(STREAM).await;
        assert_eq!(streams.places.available_permits(), MAX_STREAMS);
    });
}

#[test]
fn what_is_too_much_is_refused_until_there_is_place_again() {
    paused(async {
        let streams = Rc::new(Streams::new(2, 100));
        let mut served = serve_with(Rc::clone(&streams), 10_000).await;
        let first = get(&mut served.client, "stream").await;
        let second = get(&mut served.client, "80000").await;
        let refused = get(&mut served.client, "1").await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()[RETRY_AFTER], "1");
        drop(first);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(get(&mut served.client, "80000").await.status(), StatusCode::TOO_MANY_REQUESTS, "no room");
        assert_eq!(get(&mut served.client, "10000").await.status(), StatusCode::OK);
        drop(second);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(length(get(&mut served.client, "80000").await).await, Some(80_000));
        assert_eq!(streams.unsent.available_permits(), 100);
    });
}

#[test]
fn idle_connections_are_closed_and_waiting_ones_kept() {
    paused(async {
        let mut served = serve_with(Rc::default(), 10_000).await;
        let mut waits = served.client.clone();
        let waiting = tokio::task::spawn_local(async move { get(&mut waits, "never").await.status() });
        tokio::time::sleep(10 * IDLE).await;
        assert!(!served.serving.is_finished());
        waiting.abort();
        assert_eq!(length(get(&mut served.client, "1").await).await, Some(1));
        let began = Instant::now();
        served.serving.await.unwrap();
        assert!(began.elapsed() >= IDLE && began.elapsed() <= 2 * IDLE, "{:?}", began.elapsed());
        let mut stranger = serve_with(Rc::default(), 10_000).await;
        assert_eq!(get(&mut stranger.client, "stranger").await.status(), StatusCode::UNAUTHORIZED);
        timeout(Duration::from_secs(1), stranger.serving).await.expect("at once").unwrap();
    });
}

#[test]
fn streams_end_with_their_connection_whichever_side_ends_it() {
    paused(async {
        for ours in [true, false] {
            let streams = Rc::<Streams>::default();
            let mut served = serve_with(Rc::clone(&streams), 10_000).await;
            let mut unread = Vec::new();
            for _ in 0..10 {
                unread.push(get(&mut served.client, "stream").await);
            }
            let mut waits = served.client.clone();
            let waiting = tokio::task::spawn_local(async move { get(&mut waits, "never").await });
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(streams.places.available_permits(), MAX_STREAMS - 11);
            if ours {
                served.serving.abort();
            } else {
                waiting.abort();
                drop((served.client, unread));
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(streams.places.available_permits(), MAX_STREAMS, "ours: {ours}");
        }
    });
}
