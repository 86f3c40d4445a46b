//! The wire format against bytes of systemd's own client, and a conversation with a minimal server.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;

use proptest::prelude::*;

use super::*;

/// What `busctl call ... StartTransientUnit 'ssa(sv)a(sa(sv))' kubepods.slice replace 4 Description s pods
/// Wants as 1 a.slice DefaultDependencies b false CPUWeight t 39 0` sends, but for the flag that allows
/// asking for a password.
const START: &str = "6c010001b000000002000000b600000001016f00190000002f6f72672f667265656465736b746f702f7379737465\
    6d643100000000000000030173001200000053746172745472616e7369656e74556e697400000000000002017300200000006f72672e66\
    7265656465736b746f702e73797374656d64312e4d616e61676572000000000000000006017300180000006f72672e667265656465736b\
    746f702e73797374656d643100000000000000000801670010737361287376296128736128737629290000000e0000006b756265706f64\
    732e736c6963650000070000007265706c6163650080000000000000000b0000004465736372697074696f6e000173000004000000706f\
    6473000000000500000057616e7473000261730000000c00000007000000612e736c69636500130000004465666175\
    6c74446570656e64656e6369657300016200000000000009000000435055576569676874000174000000000000000027000000000000000000\
    000000000000";

const MANAGER: Peer<'static> = Peer {
    destination: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn start_body() -> Body {
    let properties = [
        ("Description", Value::Text("pods".to_owned())),
        ("Wants", Value::Texts(vec!["a.slice".to_owned()])),
        ("DefaultDependencies", Value::Flag(false)),
        ("CPUWeight", Value::Number(39)),
    ];
    Body::default().text("kubepods.slice").text("replace").properties(&properties).no_units()
}

/// An answer or a signal with a body of texts; `kind` is the message's type.
fn answer(kind: u8, serial: u32, fields: &[(u8, &str, &str)], texts: &[&str]) -> Vec<u8> {
    let body = texts.iter().fold(Body::default(), |body, text| body.text(text));
    // A call without a destination has the shape of every message; the differences are filled in below.
    let peer = Peer { destination: "", path: "/x", interface: "" };
    let mut bytes = message::call(7, peer, "", &body);
    let body_length = usize::try_from(u32::from_le_bytes(bytes[4..8].try_into().unwrap())).unwrap();
    let body_bytes = bytes.split_off(bytes.len() - body_length);
    bytes[1] = kind;
    let mut end = 16 + usize::try_from(u32::from_le_bytes(bytes[12..16].try_into().unwrap())).unwrap();
    bytes.truncate(end);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend([5, 1, b'u', 0]);
    bytes.extend(serial.to_le_bytes());
    for (code, signature, text) in fields {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.extend([*code, 1, signature.as_bytes()[0], 0]);
        bytes.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
        bytes.extend(text.bytes().chain([0]));
    }
    end = bytes.len();
    bytes[12..16].copy_from_slice(&u32::try_from(end - 16).unwrap().to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend(body_bytes);
    bytes
}

#[test]
fn a_call_is_what_systemds_own_client_sends() {
    let made = message::call(2, MANAGER, "StartTransientUnit", &start_body());
    assert_eq!(made, bytes(START));
}

#[test]
fn an_answer_of_either_byte_order_is_read() {
    let little = "6c0201010a000000070000000f00000005017500010000000801670001730000050000003a312e343200";
    let big = "420201010000000a000000070000000f05017500000000010801670001730000000000053a312e343200";
    for hex in [little, big] {
        let message = message::parse(&bytes(hex)).unwrap();
        assert_eq!((message.reply_serial, message.is_signal), (Some(1), false));
        assert_eq!(message.texts(), [":1.42"]);
    }
}

#[test]
fn broken_messages_are_refused_not_believed() {
    let whole = bytes(START);
    let mut fixed = [0; message::FIXED];
    fixed.copy_from_slice(&whole[..message::FIXED]);
    assert_eq!(message::remaining_length(&fixed), Some(whole.len() - message::FIXED));
    for length in 0..whole.len() - 176 {
        assert_eq!(message::parse(&whole[..length]), None, "the first {length} bytes");
    }
    fixed[0] = b'x';
    assert_eq!(message::remaining_length(&fixed), None);
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(position in 0_usize..180, value: u8, tail in 0_usize..300) {
        let mut bytes = bytes(START);
        bytes[position] = value;
        bytes.truncate(bytes.len() - tail);
        if let Some(message) = message::parse(&bytes) {
            let _ = message.texts();
        }
    }
}

/// Answers a connection: the authentication, then each call with the next of `answers`.
fn serve(listener: &UnixListener, answers: &[Vec<u8>]) -> Vec<u8> {
    let (mut stream, _) = listener.accept().unwrap();
    let mut heard = Vec::new();
    let mut read_until = |stream: &mut UnixStream, end: &[u8]| {
        let mut chunk = Vec::new();
        while !chunk.ends_with(end) {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            chunk.extend(byte);
        }
        heard.extend(&chunk);
    };
    read_until(&mut stream, b"BEGIN\r\n");
    stream.write_all(b"OK 0123456789abcdef0123456789abcdef\r\n").unwrap();
    for answer in answers {
        let mut fixed = [0; message::FIXED];
        stream.read_exact(&mut fixed).unwrap();
        let mut rest = vec![0; message::remaining_length(&fixed).unwrap()];
        stream.read_exact(&mut rest).unwrap();
        stream.write_all(answer).unwrap();
    }
    heard
}

#[test]
fn calls_signals_and_errors_of_one_conversation() {
    let path = std::env::temp_dir().join(format!("edge-agent-dbus-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let signal = |job: &str, result: &str| answer(4, 0, &[(3, "s", "JobRemoved")], &[job, "a.slice", result]);
    // The signal of an unrelated job, and the awaited one before the answer to the call: neither is lost or
    // mistaken.
    let first =
        [signal("/job/1", "failed"), signal("/job/2", "done"), answer(2, 1, &[], &["/job/2"])].concat();
    let second =
        answer(3, 2, &[(4, "s", "org.freedesktop.systemd1.NoSuchUnit")], &["Unit a.slice not loaded."]);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener, &[first, second]));
        let mut connection = DbusConnection::direct(&path, 1000).unwrap();
        let started = connection.call(MANAGER, "StartTransientUnit", &start_body()).unwrap();
        assert_eq!(started.texts(), ["/job/2"]);
        let removed =
            connection.wait_for_signal("JobRemoved", |signal| signal.texts()[0] == "/job/2").unwrap();
        assert_eq!(removed.texts().last().unwrap(), "done");
        let error = connection.call(MANAGER, "StopUnit", &Body::default().text("a.slice")).unwrap_err();
        assert!(!error.is_unreachable());
        assert_eq!(
            error.to_string(),
            "StopUnit: Unit a.slice not loaded. (org.freedesktop.systemd1.NoSuchUnit)"
        );
        assert_eq!(server.join().unwrap(), b"\0AUTH EXTERNAL 31303030\r\nBEGIN\r\n");
        let gone = connection.call(MANAGER, "StopUnit", &Body::default()).unwrap_err();
        assert!(gone.is_unreachable(), "{gone}");
    });
    std::fs::remove_file(&path).unwrap();
    assert!(DbusConnection::direct(&path, 0).unwrap_err().is_unreachable());
}

#[test]
fn values_are_read_from_variants_in_either_byte_order() {
    let message = |big, signature: &str, body: &str| Message {
        signature: signature.to_owned(),
        body: bytes(body),
        big,
        ..Message::default()
    };
    let five_seconds = Some(Value::Number(5_000_000));
    assert_eq!(message(false, "v", "0174000000000000404b4c0000000000").value(), five_seconds);
    assert_eq!(message(true, "v", "017400000000000000000000004c4b40").value(), five_seconds);
    assert_eq!(message(false, "v", "017300000200000068690000").value(), Some(Value::Text("hi".to_owned())));
    assert_eq!(message(false, "b", "01000000").value(), Some(Value::Flag(true)));
    assert_eq!(message(true, "b", "00000000").value(), Some(Value::Flag(false)));
    for broken in [message(false, "v", "0174"), message(false, "", ""), message(false, "h", "00000000")] {
        assert_eq!(broken.value(), None);
    }
}

#[test]
fn fd_arrives_with_its_reply_and_signals_are_queued() {
    let path = std::env::temp_dir().join(format!("edge-agent-dbus-fd-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let take = |stream: &mut UnixStream| {
                let mut fixed = [0; message::FIXED];
                stream.read_exact(&mut fixed).unwrap();
                let mut rest = vec![0; message::remaining_length(&fixed).unwrap()];
                stream.read_exact(&mut rest).unwrap();
            };
            let mut hello = [0; "\0AUTH EXTERNAL 30\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n".len()];
            stream.read_exact(&mut hello).unwrap();
            assert_eq!(&hello, b"\0AUTH EXTERNAL 30\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n");
            stream.write_all(b"OK 0123\r\nAGREE_UNIX_FD\r\n").unwrap();
            take(&mut stream);
            stream.write_all(&answer(2, 1, &[], &[":1.7"])).unwrap();
            take(&mut stream);
            stream.write_all(&answer(4, 0, &[(3, "s", "PrepareForShutdown")], &[])).unwrap();
            let (reader, writer) = std::io::pipe().unwrap();
            packets::send(stream.as_fd(), &answer(2, 2, &[], &[]), &[writer.as_fd()]).unwrap();
            (reader, stream)
        });
        let patience = Duration::from_secs(20);
        let mut connection = DbusConnection::bus_with_descriptors(&path, 0, patience).unwrap();
        assert!(connection.take_descriptor().is_none());
        connection.call(MANAGER, "Inhibit", &Body::default().number(1)).unwrap();
        let lock = connection.take_descriptor().unwrap();
        let signal = connection.next_signal(None).unwrap().unwrap();
        assert_eq!(signal.member, "PrepareForShutdown");
        assert_eq!(connection.next_signal(Some(Duration::from_millis(10))).unwrap(), None);
        let (mut reader, stream) = server.join().unwrap();
        drop(lock);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "it was the only one");
        drop(stream);
        assert!(connection.next_signal(None).unwrap_err().is_unreachable());
    });
    std::fs::remove_file(&path).unwrap();
}
