//! A registry of our own: good by default, and as bad as a test wants for the paths it names.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use super::image::{Blob, INDEX, MANIFEST, TestImage};

/// A request: path with query, and the head in lower case.
pub struct Asked {
    pub path: String,
    pub head: String,
    /// How many came before it.
    pub number: usize,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// `bytes=N-`
    pub fn offset(&self) -> usize {
        let range = self.header("range").and_then(|range| range.strip_prefix("bytes="));
        range.and_then(|range| range.trim_end_matches('-').parse().ok()).unwrap_or(0)
    }
}

/// What a test's answer does: `true` when it has answered.
type Fault = Arc<dyn Fn(&Asked, &mut TcpStream) -> bool + Send + Sync>;

/// The server; it ends with the value.
pub struct FakeRegistry {
    pub port: u16,
    pub heads: mpsc::Receiver<String>,
    ends: Arc<AtomicBool>,
}

impl FakeRegistry {
    /// Serves this image as `a/b:v1`, once `fault` has had its turn.
    pub fn start(
        image: &TestImage,
        fault: impl Fn(&Asked, &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::serving(image, &image.manifest, fault)
    }

    /// The same, with this document behind the tag.
    pub fn serving(
        image: &TestImage,
        tag: &Blob,
        fault: impl Fn(&Asked, &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen on the loopback");
        let port = listener.local_addr().expect("it is bound").port();
        let (said, heads) = mpsc::channel();
        let ends = Arc::new(AtomicBool::new(false));
        let (image, tag, fault, ended) =
            (image.clone(), tag.clone(), Arc::new(fault) as Fault, Arc::clone(&ends));
        let count = Arc::new(AtomicUsize::new(0));
        let serve = move || {
            for stream in listener.incoming().flatten() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let (image, tag, fault) = (image.clone(), tag.clone(), Arc::clone(&fault));
                let (said, count) = (said.clone(), Arc::clone(&count));
                let one = move || exchange(stream, &image, &tag, &fault, &said, &count);
                std::thread::Builder::new().spawn(one).expect("start a thread");
            }
        };
        std::thread::Builder::new().name("registry".into()).spawn(serve).expect("start a thread");
        Self { port, heads, ends }
    }

    pub fn reference(&self) -> String {
        format!("127.0.0.1:{}/a/b:v1", self.port)
    }

    /// Paths asked for so far.
    pub fn asked(&self) -> Vec<String> {
        self.heads.try_iter().collect()
    }
}

impl Drop for FakeRegistry {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn exchange(
    mut stream: TcpStream,
    image: &TestImage,
    tag: &Blob,
    fault: &Fault,
    said: &mpsc::Sender<String>,
    count: &AtomicUsize,
) {
    let Some(head) = read_head(&mut stream) else { return };
    let mut words = head.split(' ');
    let path = words.nth(1).unwrap_or_default();
    let asked = Asked {
        path: path.to_owned(),
        head: head.replace("\r\n", "\n").to_ascii_lowercase(),
        number: count.fetch_add(1, Ordering::SeqCst),
    };
    let _ = said.send(asked.head.clone());
    if fault(&asked, &mut stream) {
        return;
    }
    let bare = path.split('?').next().unwrap_or_default();
    if head.starts_with("HEAD ") {
        let digest = format!("Docker-Content-Digest: {}", tag.digest);
        answer_head(&mut stream, "200 OK", &[&digest], tag.bytes.len());
    } else if bare == "/v2/a/b/manifests/v1" {
        let index = tag.digest != image.manifest.digest;
        answer(
            &mut stream,
            "200 OK",
            &[&format!("Content-Type: {}", if index { INDEX } else { MANIFEST })],
            &tag.bytes,
        );
    } else if let Some(digest) = bare.strip_prefix("/v2/a/b/manifests/") {
        let known = [&image.manifest, tag].into_iter().find(|blob| blob.digest == digest);
        serve_blob(&mut stream, known, &asked);
    } else if let Some(digest) = bare.strip_prefix("/v2/a/b/blobs/") {
        serve_blob(&mut stream, image.blobs().find(|blob| blob.digest == digest), &asked);
    } else {
        answer(&mut stream, "404 Not Found", &[], b"{\"errors\":[{\"code\":\"NAME_UNKNOWN\"}]}");
    }
}

fn serve_blob(stream: &mut TcpStream, blob: Option<&Blob>, asked: &Asked) {
    let Some(blob) = blob else { return answer(stream, "404 Not Found", &[], b"") };
    let offset = asked.offset().min(blob.bytes.len());
    if offset == 0 {
        return answer(stream, "200 OK", &[], &blob.bytes);
    }
    let range = format!("Content-Range: bytes {offset}-{}/{}", blob.bytes.len() - 1, blob.bytes.len());
    answer(stream, "206 Partial Content", &[&range], &blob.bytes[offset..]);
}

fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > 65_536 || stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

/// The head of an answer to HEAD.
pub fn answer_head(stream: &mut TcpStream, status: &str, headers: &[&str], length: usize) {
    let length = format!("Content-Length: {length}");
    let head = [headers, &[length.as_str(), "Connection: close"]].concat().join("\r\n");
    let _ = stream.write_all(format!("HTTP/1.1 {status}\r\n{head}\r\n\r\n").as_bytes());
}

/// A whole answer and the end of the connection. A client that hangs up is no business of ours.
pub fn answer(stream: &mut TcpStream, status: &str, headers: &[&str], body: &[u8]) {
    let length = format!("Content-Length: {}", body.len());
    let head = [headers, &[length.as_str(), "Connection: close"]].concat().join("\r\n");
    let _ = stream.write_all(format!("HTTP/1.1 {status}\r\n{head}\r\n\r\n").as_bytes());
    let _ = stream.write_all(body);
}
