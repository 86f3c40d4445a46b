//! A system bus with systemd and logind on it, of few words: one connection at a time asks, everybody hears signals.

use std::io::{PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use edge_agent::platform::rt;
use edge_agent::platform::sys::packets;

use super::agent::PATIENCE;

/// What the bus tells the test.
enum News {
    Connected(UnixStream),
    /// Somebody has taken a lock: it is open until this reader comes to its end.
    Locked(Vec<String>, PipeReader),
}

/// See the module.
pub struct FakeBus {
    socket: PathBuf,
    news: Receiver<News>,
    streams: Vec<UnixStream>,
    goes_down: Arc<AtomicBool>,
}

/// A lock that somebody holds.
pub struct Lock {
    /// `what`, `who`, `why`, `mode`.
    pub words: Vec<String>,
    reader: PipeReader,
}

impl Lock {
    /// Waits until it is let go.
    pub fn released(mut self) {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest).expect("wait for the end of the lock");
    }
}

impl FakeBus {
    /// A bus that listens below `directory`.
    pub fn start(directory: &Path) -> Self {
        let socket = directory.join("bus.sock");
        let listener = UnixListener::bind(&socket).expect("bind the bus");
        let (tell, news) = mpsc::channel();
        let goes_down = Arc::new(AtomicBool::new(false));
        let state = Arc::clone(&goes_down);
        let serve = move || {
            while let Ok((stream, _)) = listener.accept() {
                let (tell, state) = (tell.clone(), Arc::clone(&state));
                rt::spawn_thread("bus connection", move || drop(converse(stream, &tell, &state)))
                    .expect("start a thread");
            }
        };
        rt::spawn_thread("bus", serve).expect("start a thread");
        Self { socket, news, streams: Vec::new(), goes_down }
    }

    /// For `DBUS_SYSTEM_BUS_ADDRESS`.
    pub fn address(&self) -> String {
        format!("unix:path={}", self.socket.display())
    }

    /// What systemd says of its own state from now on.
    pub fn set_going_down(&self, goes_down: bool) {
        self.goes_down.store(goes_down, Ordering::SeqCst);
    }

    /// Waits until somebody takes a lock.
    pub fn lock(&mut self) -> Lock {
        loop {
            match self.news.recv_timeout(PATIENCE).expect("a lock is taken") {
                News::Connected(stream) => self.streams.push(stream),
                News::Locked(words, reader) => return Lock { words, reader },
            }
        }
    }

    /// logind says that the machine is about to go down, or not after all.
    pub fn prepare_for_shutdown(&mut self, begins: bool) {
        let body = u32::from(begins).to_le_bytes();
        self.signal(
            "/org/freedesktop/login1",
            "org.freedesktop.login1.Manager",
            "PrepareForShutdown",
            "b",
            &body,
        );
    }

    /// The bus says that there is another logind.
    pub fn logind_starts_anew(&mut self) {
        let body = texts(&["org.freedesktop.login1", ":1.1", ":1.2"]);
        self.signal("/org/freedesktop/DBus", "org.freedesktop.DBus", "NameOwnerChanged", "sss", &body);
    }

    /// Breaks every connection.
    pub fn hang_up(&mut self) {
        for stream in self.streams.drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn signal(&mut self, path: &str, interface: &str, member: &str, signature: &str, body: &[u8]) {
        let fields = [(1, 'o', path), (2, 's', interface), (3, 's', member), (8, 'g', signature)];
        let bytes = message(4, &fields, None, body);
        self.streams.retain_mut(|stream| stream.write_all(&bytes).is_ok());
    }
}

fn converse(mut stream: UnixStream, tell: &Sender<News>, goes_down: &AtomicBool) -> std::io::Result<()> {
    let hello = line(&mut stream)?;
    assert!(hello.starts_with("\0AUTH EXTERNAL "), "{hello:?}");
    stream.write_all(b"OK 0123456789abcdef0123456789abcdef\r\n")?;
    if line(&mut stream)? == "NEGOTIATE_UNIX_FD" {
        stream.write_all(b"AGREE_UNIX_FD\r\n")?;
        assert_eq!(line(&mut stream)?, "BEGIN");
        let _ = tell.send(News::Connected(stream.try_clone()?));
    }
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let fields = usize::try_from(number(12)).expect("small").next_multiple_of(8);
        let mut rest = vec![0; fields + usize::try_from(number(4)).expect("small")];
        stream.read_exact(&mut rest)?;
        let (fields, body) = rest.split_at(fields);
        let serial = Some(number(8));
        let answer = |signature: &str, body: &[u8]| message(2, &[(8, 'g', signature)], serial, body);
        match member(fields).as_str() {
            "Hello" => stream.write_all(&answer("s", &texts(&[":1.7"])))?,
            "Get" if read_texts(body)[1] == "SystemState" => {
                let state = if goes_down.load(Ordering::SeqCst) { "stopping" } else { "running" };
                let mut value = vec![1, b's', 0, 0];
                value.extend(texts(&[state]));
                stream.write_all(&answer("v", &value))?;
            }
            "Get" => {
                // An hour, in microseconds, at a multiple of eight.
                let mut value = vec![1, b't', 0, 0, 0, 0, 0, 0];
                value.extend(3_600_000_000_u64.to_le_bytes());
                stream.write_all(&answer("v", &value))?;
            }
            "Inhibit" => {
                let (reader, writer) = std::io::pipe()?;
                let fields = [(8, 'g', "h")];
                let mut bytes = message(2, &fields, serial, &0_u32.to_le_bytes());
                // How many descriptors come with it.
                bytes = with_count(bytes);
                packets::send(stream.as_fd(), &bytes, &[writer.as_fd()])?;
                let _ = tell.send(News::Locked(read_texts(body), reader));
            }
            _ => stream.write_all(&message(2, &[], serial, &[]))?,
        }
    }
}

fn line(stream: &mut UnixStream) -> std::io::Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.extend(byte);
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

fn pad(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

fn texts(all: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for text in all {
        pad(&mut bytes, 4);
        bytes.extend(u32::try_from(text.len()).expect("short").to_le_bytes());
        bytes.extend(text.bytes().chain([0]));
    }
    bytes
}

fn read_texts(body: &[u8]) -> Vec<String> {
    let (mut at, mut all) = (0_usize, Vec::new());
    while at.next_multiple_of(4) + 4 < body.len() {
        at = at.next_multiple_of(4);
        let length = u32::from_le_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
        let end = at + 4 + usize::try_from(length).expect("short");
        all.push(String::from_utf8_lossy(&body[at + 4..end]).into_owned());
        at = end + 1;
    }
    all
}

/// The member among a message's fields.
fn member(fields: &[u8]) -> String {
    let mut at = 0;
    while at < fields.len() {
        at = usize::next_multiple_of(at, 8);
        let (code, kind) = (fields[at], fields[at + 2]);
        let (length, start) = match kind {
            b'g' => (usize::from(fields[at + 4]), at + 5),
            _ => (usize::from(fields[at + 4]) + 256 * usize::from(fields[at + 5]), at + 8),
        };
        if code == 3 {
            return String::from_utf8_lossy(&fields[start..start + length]).into_owned();
        }
        at = start + length + 1;
    }
    String::new()
}

fn message(kind: u8, fields: &[(u8, char, &str)], answers: Option<u32>, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![b'l', kind, 1, 1];
    bytes.extend(u32::try_from(body.len()).expect("short").to_le_bytes());
    bytes.extend(99_u32.to_le_bytes());
    bytes.extend([0; 4]);
    if let Some(serial) = answers {
        bytes.extend([5, 1, b'u', 0]);
        bytes.extend(serial.to_le_bytes());
    }
    for (code, kind, text) in fields {
        pad(&mut bytes, 8);
        bytes.extend([*code, 1, *kind as u8, 0]);
        if *kind == 'g' {
            bytes.push(u8::try_from(text.len()).expect("short"));
        } else {
            bytes.extend(u32::try_from(text.len()).expect("short").to_le_bytes());
        }
        bytes.extend(text.bytes().chain([0]));
    }
    finish(bytes, body)
}

/// The length of the fields is known last.
fn finish(mut bytes: Vec<u8>, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len() - 16).expect("short");
    bytes[12..16].copy_from_slice(&length.to_le_bytes());
    pad(&mut bytes, 8);
    bytes.extend(body);
    bytes
}

/// The same answer, with a descriptor beside its four bytes of body.
fn with_count(mut bytes: Vec<u8>) -> Vec<u8> {
    let body = bytes.split_off(bytes.len() - 4);
    bytes.extend([9, 1, b'u', 0]);
    bytes.extend(1_u32.to_le_bytes());
    finish(bytes, &body)
}
