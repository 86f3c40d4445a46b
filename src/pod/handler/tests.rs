//! Against real sockets of the loopback.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use super::http::RequestTarget;
use super::*;
use crate::platform::http::testing::{Server, answer, pause};

mod grpc;
mod tls;

const SOON: Duration = Duration::from_secs(30);

/// The request with another target.
fn aimed(mut request: HttpGet, change: impl FnOnce(&mut HttpTarget)) -> HttpGet {
    change(&mut request.target);
    request
}

fn request(port: u16, path: &str) -> HttpGet {
    let (host, path) = ("127.0.0.1".to_owned(), path.to_owned());
    let target = HttpTarget { host, port, path, ..HttpTarget::default() };
    HttpGet { target, user_agent: PROBE_USER_AGENT }
}

/// Headers of a manifest, what the request then has, and what not.
type HeaderCase = (&'static [(&'static str, &'static str)], &'static [&'static str], &'static [&'static str]);

/// A port without a listener.
fn closed_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn owned(headers: &[(&str, &str)]) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn http_get_sends_kubelet_headers_and_returns_the_response() {
    let server = Server::answers(vec![answer("200 OK", &[], "fine")]);
    let got = http_get(&request(server.port(), "/healthz?full=1"), SOON).await.unwrap();
    assert_eq!(got, HttpAnswer { status: 200, body: "fine".to_owned(), redirected_to: None });
    let port = server.port();
    assert_eq!(
        server.request(),
        format!(
            "get /healthz?full=1 http/1.1\r\nhost: 127.0.0.1:{port}\r\nuser-agent: kube-probe/1.36\r\naccept: */*\r\n\
             connection: close\r\n\r\n"
        )
    );
}

#[tokio::test]
async fn manifest_headers_override_defaults_and_empty_ones_drop_them() {
    let server = Server::answers(vec![answer("204 No Content", &[], "")]);
    let cases: [HeaderCase; 4] = [
        (&[("Host", "web.example")], &["host: web.example\r\n"], &["127.0.0.1"]),
        (&[("user-agent", "mine/1")], &["user-agent: mine/1\r\n"], &["kube-probe"]),
        (&[("User-Agent", ""), ("Accept", "")], &[], &["user-agent", "accept"]),
        (
            &[("X-One", "a"), ("X-One", "b"), ("Content-Length", "7")],
            &["x-one: a\r\nx-one: b\r\n", "accept: */*\r\n"],
            &["content-length"],
        ),
    ];
    for (headers, present, absent) in cases {
        let sent = aimed(request(server.port(), "/"), |target| target.headers = owned(headers));
        assert_eq!(http_get(&sent, SOON).await.unwrap().status, 204);
        let head = server.request();
        for line in present {
            assert!(head.contains(line), "{headers:?}: {line:?} is missing from {head}");
        }
        for line in absent {
            assert!(!head.contains(line), "{headers:?}: {line:?} is in {head}");
        }
    }
    let bad = aimed(request(server.port(), "/"), |target| target.headers = owned(&[("X", "a\r\nY: b")]));
    let error = http_get(&bad, SOON).await.unwrap_err();
    assert_eq!(error, HandlerError::Failed("invalid header field value for \"X\"".to_owned()));
}

#[test]
fn paths_become_request_targets() {
    for (path, target) in [
        ("", "/"),
        ("healthz", "/healthz"),
        ("/a?b=c&d#part", "/a?b=c&d"),
        ("/with space/é", "/with%20space/%C3%A9"),
        ("/already%20escaped", "/already%20escaped"),
    ] {
        assert_eq!(request(80, path).url(), format!("http://127.0.0.1:80{target}"), "{path:?}");
    }
    let secure = aimed(request(8443, "/"), |target| {
        target.host = "fd00::1".to_owned();
        target.https = true;
    });
    assert_eq!(secure.url(), "https://[fd00::1]:8443/");
}

#[test]
fn locations_are_resolved_as_browsers_do() {
    let base = RequestTarget::of(&request(8080, "/a/b?c"));
    for (location, url) in [
        ("/x", "http://127.0.0.1:8080/x"),
        ("x?y", "http://127.0.0.1:8080/a/x?y"),
        ("../x/./y/..", "http://127.0.0.1:8080/x/"),
        ("?d", "http://127.0.0.1:8080/a/b?d"),
        ("http://127.0.0.1/", "http://127.0.0.1:80/"),
        ("HTTPS://127.0.0.1#x", "https://127.0.0.1:443/"),
        ("//other.example:81/p", "http://other.example:81/p"),
        ("https://user@[::1]:9/", "https://[::1]:9/"),
        ("/go?to=http://other.example/", "http://127.0.0.1:8080/go?to=http://other.example/"),
    ] {
        assert_eq!(base.follow(location).map(|target| target.url()), Some(url.to_owned()), "{location}");
    }
    for location in ["ftp://127.0.0.1/", "http://127.0.0.1:port/"] {
        assert_eq!(base.follow(location), None, "{location}");
    }
}

#[tokio::test]
async fn same_host_redirects_are_followed_and_others_reported() {
    let moved = |location: &str| answer("302 Found", &[&format!("Location: {location}")], "moved");
    let server = Server::answers(vec![moved("/two?x"), answer("200 OK", &[], "there")]);
    let headers = owned(&[("Host", "web.example")]);
    let sent = aimed(request(server.port(), "/one"), |target| target.headers = headers);
    assert_eq!(http_get(&sent, SOON).await.unwrap().body, "there");
    assert!(server.request().starts_with("get /one "));
    let second = server.request();
    assert!(second.starts_with("get /two?x ") && second.contains("host: web.example\r\n"), "{second}");

    let server = Server::answers(vec![moved("http://other.example:81/x")]);
    let got = http_get(&request(server.port(), "/"), SOON).await.unwrap();
    let redirected_to = Some("http://other.example:81/x".to_owned());
    assert_eq!(got, HttpAnswer { status: 302, body: "moved".to_owned(), redirected_to });

    let server = Server::answers(vec![answer("304 Not Modified", &[], "")]);
    let got = http_get(&request(server.port(), "/"), SOON).await.unwrap();
    assert_eq!((got.status, got.redirected_to), (304, None), "not every 3xx is a redirect");
}

#[tokio::test]
async fn a_redirect_loop_ends_after_ten_requests() {
    let server = Server::answers(vec![answer("301 Moved Permanently", &["Location: /again"], "")]);
    let sent = request(server.port(), "/");
    let error = http_get(&sent, SOON).await.unwrap_err();
    assert!(sent.explain(&error).ends_with("/\": stopped after 10 redirects"), "{error}");
    for _ in 0..10 {
        server.request();
    }
}

#[tokio::test]
async fn a_huge_body_is_cut_and_not_waited_for() {
    let server = Server::start(|_, stream: &mut TcpStream| {
        // More than any buffer on the way: this write ends when the client hangs up.
        let _ = stream.write_all(b"HTTP/1.1 500 Oops\r\n\r\n");
        while stream.write_all(&[b'x'; 8192]).is_ok() {}
    });
    let got = http_get(&request(server.port(), "/"), SOON).await.unwrap();
    assert_eq!((got.status, got.body.len()), (500, 10 * 1024));
}

#[tokio::test]
async fn silent_server_times_out_and_cut_response_is_a_body_error() {
    let server = Server::start(|_, _| pause(Duration::from_secs(2)));
    let sent = request(server.port(), "/slow");
    let error = http_get(&sent, Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(error, HandlerError::Timeout);
    let words = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    assert_eq!(sent.explain(&error), format!("Get \"http://127.0.0.1:{}/slow\": {words}", server.port()));

    let server = Server::start(|_, stream: &mut TcpStream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").unwrap();
        pause(Duration::from_secs(2));
    });
    let sent = request(server.port(), "/");
    let error = http_get(&sent, Duration::from_millis(100)).await.unwrap_err();
    assert!(
        matches!(&error, HandlerError::Body(words) if words.ends_with("while reading body)")),
        "{error:?}"
    );

    let cut = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf".to_owned();
    let error = http_get(&request(Server::answers(vec![cut]).port(), "/"), SOON).await.unwrap_err();
    assert!(matches!(&error, HandlerError::Body(_)), "{error:?}");
}

#[tokio::test]
async fn failures_read_as_in_the_kubelets_events() {
    let port = closed_port();
    let sent = request(port, "/");
    let error = http_get(&sent, SOON).await.unwrap_err();
    let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(sent.explain(&error), format!("Get \"http://127.0.0.1:{port}/\": {refused}"));
    assert_eq!(tcp_connect("127.0.0.1", port, SOON).await, Err(HandlerError::Failed(refused)));
    assert_eq!(
        tcp_connect("::1", port, SOON).await.unwrap_err().to_string(),
        format!("dial tcp [::1]:{port}: connect: connection refused")
    );

    let silent = Server::start(|_, _| ());
    let error = http_get(&request(silent.port(), "/"), SOON).await.unwrap_err();
    assert_eq!(error.to_string(), "EOF");
    let chatty = Server::answers(vec!["220 mail.example ESMTP\r\n".to_owned()]);
    let error = http_get(&request(chatty.port(), "/"), SOON).await.unwrap_err().to_string();
    assert!(error.contains("malformed HTTP response"), "{error}");
}

#[tokio::test]
async fn a_tcp_connection_needs_a_listener_only() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    assert_eq!(tcp_connect("127.0.0.1", port, SOON).await, Ok(()));
    assert_eq!(tcp_connect("", port, SOON).await, Ok(()), "an unknown pod address is this machine");
    assert_eq!(tcp_connect("localhost", port, SOON).await, Ok(()));
}

#[tokio::test]
async fn a_peer_that_does_not_answer_is_a_timeout() {
    // A listener whose queue is full drops further connections.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut full = Vec::new();
    let short = Duration::from_millis(50);
    while let Ok(Ok(stream)) =
        tokio::time::timeout(short, tokio::net::TcpStream::connect(("127.0.0.1", port))).await
    {
        full.push(stream);
        assert!(full.len() < 100, "the queue does not fill");
    }
    assert_eq!(tcp_connect("127.0.0.1", port, short).await, Err(HandlerError::Timeout));
    let error = http_get(&request(port, "/"), short).await.unwrap_err();
    assert_eq!(error, HandlerError::Timeout);
}
