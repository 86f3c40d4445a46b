//! An HTTP server that answers as badly as it is told to, and changes its mind while it runs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
#[expect(clippy::disallowed_types, reason = "tests reach into a server that runs on another thread")]
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::wait::pause;

/// What a request gets.
#[derive(Clone, Debug)]
pub enum Answer {
    /// These bytes, and the end of the connection.
    Raw(Vec<u8>),
    /// A good head and then a byte now and then, for ever.
    Drip,
    /// A good head and then as much as is taken, for ever.
    Endless,
    /// A redirect to itself.
    Circle,
}

impl Answer {
    /// A whole answer with a status line and a content type.
    pub fn text(status: &str, content_type: &str, body: &str) -> Self {
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        Self::Raw([head.as_bytes(), body.as_bytes()].concat())
    }

    /// A manifest as a server should answer it.
    pub fn manifest(body: &str) -> Self {
        Self::text("200 OK", "application/yaml", body)
    }
}

/// The server; it ends with the value.
pub struct HttpServer {
    port: u16,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    #[expect(clippy::disallowed_types, reason = "see the import")]
    answer: Mutex<Answer>,
    requests: AtomicUsize,
    ends: AtomicBool,
}

impl HttpServer {
    /// Answers every request with this until told otherwise.
    pub fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen on the loopback");
        let port = listener.local_addr().expect("it is bound").port();
        #[expect(clippy::disallowed_types, reason = "see the import")]
        let answer = Mutex::new(answer);
        let shared = Arc::new(Shared { answer, requests: AtomicUsize::new(0), ends: AtomicBool::new(false) });
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("http-server".into())
            .spawn(move || serve(&listener, &served))
            .expect("start the server's thread");
        Self { port, shared, thread: Some(thread) }
    }

    /// What to answer from now on.
    pub fn answer(&self, answer: Answer) {
        *self.shared.answer.lock().expect("nobody panics with it") = answer;
    }

    /// Where it is.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Requests so far.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn drips(&self) -> bool {
        matches!(*self.answer.lock().expect("nobody panics with it"), Answer::Drip)
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, shared: &Shared) {
    for stream in listener.incoming() {
        if shared.ends.load(Ordering::SeqCst) {
            return;
        }
        let Ok(mut stream) = stream else { continue };
        // A client that hangs up is no business of the server's.
        let _ = exchange(&mut stream, shared);
    }
}

fn exchange(stream: &mut TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < 16_384 {
        if stream.read(&mut byte)? == 0 {
            return Ok(());
        }
        head.push(byte[0]);
        // A greeting of TLS has no lines; answer as a plain server does.
        if head.len() == 1 && byte[0] == 0x16 {
            return stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    }
    shared.requests.fetch_add(1, Ordering::SeqCst);
    let answer = shared.answer.lock().expect("nobody panics with it").clone();
    let begin = b"HTTP/1.1 200 OK\r\nContent-Type: application/yaml\r\n\r\n";
    match answer {
        Answer::Raw(bytes) => stream.write_all(&bytes),
        Answer::Circle => {
            stream.write_all(b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n")
        }
        Answer::Drip => {
            stream.write_all(begin)?;
            while !shared.ends.load(Ordering::SeqCst) && shared.drips() {
                stream.write_all(b"#")?;
                pause(Duration::from_millis(100));
            }
            Ok(())
        }
        Answer::Endless => {
            stream.write_all(begin)?;
            let chunk = vec![b'#'; 65_536];
            while !shared.ends.load(Ordering::SeqCst) {
                stream.write_all(&chunk)?;
            }
            Ok(())
        }
    }
}
