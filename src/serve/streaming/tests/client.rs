//! Clients of exec, attach and port-forward, written against the protocols and not against the server's code.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flate2::{Compress, Compression, FlushCompress};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than any step takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends a request and reads the head of the answer: the connection, the status and the head's text.
async fn request(method: &str, url: &str, headers: &str) -> (TcpStream, u16, String) {
    let (host, path) = url.strip_prefix("http://").expect("an URL").split_once('/').expect("with a path");
    let mut io = TcpStream::connect(host).await.expect("the server listens");
    let text = format!("{method} /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\n{headers}\r\n");
    io.write_all(text.as_bytes()).await.expect("it is sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(io.read_u8().await.expect("an answer"));
    }
    let head = String::from_utf8(head).expect("text");
    let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
    // As Go's clients parse it: a `close` makes them drop the header, and with it the upgrade.
    let upgraded = head.lines().any(|line| line.eq_ignore_ascii_case("connection: upgrade"));
    assert_eq!(upgraded, status == 101, "{head}");
    (io, status, head)
}

/// A client that speaks SPDY/3.1.
pub struct Spdy {
    io: TcpStream,
    compress: Compress,
    next: u32,
    /// The head of the response.
    pub head: String,
    /// Data per stream.
    pub data: BTreeMap<u32, Vec<u8>>,
    /// Streams that the server has finished.
    pub finished: BTreeSet<u32>,
    /// Streams that the server has reset.
    pub reset: BTreeSet<u32>,
    /// Streams that the server has accepted.
    pub replied: BTreeSet<u32>,
    /// Answers to pings.
    pub pings: BTreeSet<u32>,
    /// Window updates of the server.
    pub credit: BTreeMap<u32, u64>,
    /// The server has closed the connection.
    pub closed: bool,
}

impl Spdy {
    /// Connects. The error is the status and head of the refusal.
    pub(crate) async fn connect(
        url: &str,
        protocols: &[&str],
        dictionary: &[u8],
    ) -> Result<Self, (u16, String)> {
        let mut headers = "Upgrade: SPDY/3.1\r\n".to_owned();
        for protocol in protocols {
            headers.push_str("X-Stream-Protocol-Version: ");
            headers.push_str(protocol);
            headers.push_str("\r\n");
        }
        match request("POST", url, &headers).await {
            (io, 101, head) => Ok(Self::over(io, head, dictionary)),
            (_, status, head) => Err((status, head)),
        }
    }

    fn over(io: TcpStream, head: String, dictionary: &[u8]) -> Self {
        let mut compress = Compress::new(Compression::default(), true);
        compress.set_dictionary(dictionary).expect("the stream is new");
        Self {
            io,
            compress,
            next: 1,
            head,
            data: BTreeMap::new(),
            finished: BTreeSet::new(),
            reset: BTreeSet::new(),
            replied: BTreeSet::new(),
            pings: BTreeSet::new(),
            credit: BTreeMap::new(),
            closed: false,
        }
    }

    /// Sends `SYN_STREAM` and returns the stream's id.
    pub(crate) async fn open(&mut self, headers: &[(&str, &str)]) -> u32 {
        let (frame, stream) = self.open_frame(headers);
        self.io.write_all(&frame).await.expect("it is sent");
        stream
    }

    /// The bytes of a `SYN_STREAM`, for tunnels.
    pub(crate) fn open_frame(&mut self, headers: &[(&str, &str)]) -> (Vec<u8>, u32) {
        let mut plain = u32::try_from(headers.len()).expect("few").to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.extend(u32::try_from(text.len()).expect("short").to_be_bytes());
            plain.extend(text.as_bytes());
        }
        let mut block = Vec::with_capacity(plain.len() + 256);
        self.compress.compress_vec(&plain, &mut block, FlushCompress::Sync).expect("there is room");
        let stream = self.next;
        self.next += 2;
        let mut frame = vec![0x80, 3, 0, 1, 0, 0];
        frame.extend(u16::try_from(block.len() + 10).expect("short").to_be_bytes());
        frame.extend(stream.to_be_bytes());
        frame.extend([0; 6]);
        frame.extend(block);
        (frame, stream)
    }

    /// A data frame.
    pub(crate) async fn send(&mut self, stream: u32, bytes: &[u8], fin: bool) {
        self.io.write_all(&data_frame(stream, bytes, fin)).await.expect("it is sent");
    }

    /// `PING`.
    pub(crate) async fn ping(&mut self, id: u32) {
        let frame = [&[0x80, 3, 0, 6, 0, 0, 0, 4][..], &id.to_be_bytes()].concat();
        self.io.write_all(&frame).await.expect("it is sent");
    }

    /// `RST_STREAM`.
    pub(crate) async fn cancel(&mut self, stream: u32) {
        let frame = [&[0x80, 3, 0, 3, 0, 0, 0, 8][..], &stream.to_be_bytes(), &[0, 0, 0, 5]].concat();
        self.io.write_all(&frame).await.expect("it is sent");
    }

    /// Reads until `done`, or the server closes the connection.
    pub(crate) async fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let read = async {
            while !done(self) && !self.closed {
                self.read().await;
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("it comes in time");
    }

    async fn read(&mut self) {
        let mut header = [0; 8];
        if self.io.read_exact(&mut header).await.is_err() {
            self.closed = true;
            return;
        }
        let length = u32::from_be_bytes([0, header[5], header[6], header[7]]);
        let mut payload = vec![0; length as usize];
        self.io.read_exact(&mut payload).await.expect("the frame is whole");
        self.take(header, &payload);
    }

    /// Processes a frame.
    pub(crate) fn take(&mut self, header: [u8; 8], payload: &[u8]) {
        let number = |index: usize| {
            u32::from_be_bytes(payload[index * 4..index * 4 + 4].try_into().expect("four bytes"))
        };
        if header[0] & 0x80 == 0 {
            let stream = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
            self.data.entry(stream).or_default().extend_from_slice(payload);
            if header[4] & 1 != 0 {
                self.finished.insert(stream);
            }
            return;
        }
        assert_eq!(header[..2], [0x80, 3], "SPDY/3");
        match header[3] {
            2 => {
                // Go's clients continue only after zlib's sync flush.
                assert!(payload.ends_with(&[0, 0, 0xff, 0xff]), "{payload:x?}");
                self.replied.insert(number(0));
            }
            3 => _ = self.reset.insert(number(0)),
            6 => _ = self.pings.insert(number(0)),
            7 => {}
            9 => *self.credit.entry(number(0)).or_default() += u64::from(number(1)),
            other => panic!("a frame of type {other}"),
        }
    }

    /// A stream's data, as text.
    pub(crate) fn text(&self, stream: u32) -> String {
        String::from_utf8_lossy(self.data.get(&stream).map_or(&[], Vec::as_slice)).into_owned()
    }
}

/// The bytes of a data frame.
pub(crate) fn data_frame(stream: u32, bytes: &[u8], fin: bool) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("short").to_be_bytes();
    [&stream.to_be_bytes()[..], &[u8::from(fin), length[1], length[2], length[3]], bytes].concat()
}

/// A client that speaks WebSocket.
pub struct WebSocket {
    io: TcpStream,
    /// The head of the response.
    pub head: String,
    /// The received messages, without pongs.
    pub messages: Vec<Vec<u8>>,
    pub pongs: Vec<Vec<u8>>,
    /// The server has sent a close frame or closed the connection.
    pub closed: bool,
}

impl WebSocket {
    /// Connects. The error is the status and head of the refusal.
    pub(crate) async fn connect(url: &str, protocol: &str) -> Result<Self, (u16, String)> {
        let headers = format!(
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: {protocol}\r\n"
        );
        match request("GET", url, &headers).await {
            (io, 101, head) => Ok(Self { io, head, messages: Vec::new(), pongs: Vec::new(), closed: false }),
            (_, status, head) => Err((status, head)),
        }
    }

    /// A masked frame of `kind` (1 text, 2 binary, 9 ping).
    pub(crate) async fn send(&mut self, kind: u8, bytes: &[u8]) {
        let mask = [0x37, 0xfa, 0x21, 0x3d];
        let mut frame = vec![0x80 | kind];
        match u16::try_from(bytes.len()) {
            Ok(short @ ..126) => frame.push(0x80 | u8::try_from(short).expect("short")),
            Ok(middle) => {
                frame.push(0xfe);
                frame.extend(middle.to_be_bytes());
            }
            Err(_) => {
                frame.push(0xff);
                frame.extend((bytes.len() as u64).to_be_bytes());
            }
        }
        frame.extend(mask);
        frame.extend(bytes.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.io.write_all(&frame).await.expect("it is sent");
    }

    /// Reads until `done`, or until the server has closed.
    pub(crate) async fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let read = async {
            while !done(self) && !self.closed {
                self.read().await;
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("it comes in time");
    }

    async fn read(&mut self) {
        let Ok(kind) = self.io.read_u8().await else {
            self.closed = true;
            return;
        };
        let length = match self.io.read_u8().await.expect("a length") {
            126 => self.io.read_u16().await.expect("a length").into(),
            127 => self.io.read_u64().await.expect("a length"),
            short => short.into(),
        };
        let mut payload = vec![0; usize::try_from(length).expect("it fits")];
        self.io.read_exact(&mut payload).await.expect("the frame is whole");
        match kind {
            0x81 | 0x82 => self.messages.push(payload),
            0x88 => self.closed = true,
            0x8a => self.pongs.push(payload),
            other => panic!("a frame of kind {other}"),
        }
    }

    /// All bytes of a channel.
    pub(crate) fn channel(&self, channel: u8) -> Vec<u8> {
        let of_channel = self.messages.iter().filter(|message| message.first() == Some(&channel));
        of_channel.flat_map(|message| message[1..].to_vec()).collect()
    }
}
