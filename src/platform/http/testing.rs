//! A test server with configurable faults.
//!
//! Owns sockets on the loopback.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Serves until the test ends.
pub(crate) struct Server {
    port: u16,
    requests: mpsc::Receiver<String>,
}

impl Server {
    /// One request per connection: `answer` gets its head and the connection.
    pub(crate) fn start(answer: impl FnMut(&str, &mut TcpStream) + Send + 'static) -> Self {
        Self::over(answer, |stream, answer| {
            let head = read_head(stream);
            answer(&head, stream);
            head
        })
    }

    /// Answers each request with the next of these texts, the last one again and again.
    pub(crate) fn answers(texts: Vec<String>) -> Self {
        let mut texts = texts.into_iter().peekable();
        let mut last = String::new();
        Self::start(move |_, stream| {
            last = texts.next().unwrap_or_else(|| last.clone());
            stream.write_all(last.as_bytes()).unwrap();
        })
    }

    /// HTTPS with this certificate and key.
    pub(crate) fn tls(config: rustls::ServerConfig, answer: String) -> Self {
        let config = Arc::new(config);
        Self::over(
            move |_: &str, _: &mut TcpStream| (),
            move |stream, _| {
                let mut session = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
                let mut tls = rustls::Stream::new(&mut session, stream);
                let head = read_head(&mut tls);
                let _ = tls.write_all(answer.as_bytes());
                tls.conn.send_close_notify();
                let _ = tls.flush();
                head
            },
        )
    }

    fn over<A: Send + 'static>(
        mut answer: A,
        mut serve: impl FnMut(&mut TcpStream, &mut A) -> String + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (seen, requests) = mpsc::channel();
        let work = move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let head = serve(&mut stream, &mut answer);
                if seen.send(head).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("test-server".to_owned()).spawn(work).unwrap();
        Self { port, requests }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The head of the next request, in lower case.
    pub(crate) fn request(&self) -> String {
        self.requests.recv_timeout(Duration::from_secs(60)).unwrap().to_lowercase()
    }
}

fn read_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// A whole answer.
pub(crate) fn answer(status: &str, headers: &[&str], body: &str) -> String {
    let length = format!("Content-Length: {}", body.len());
    let head = [&[status][..], headers, &[length.as_str(), "Connection: close"]].concat().join("\r\n");
    format!("HTTP/1.1 {head}\r\n\r\n{body}")
}

/// Waits on the server's own thread.
pub(crate) fn pause(duration: Duration) {
    let (_keep, never) = mpsc::channel::<()>();
    let _ = never.recv_timeout(duration);
}
