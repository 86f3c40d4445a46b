//! A socket that answers each connection with prepared bytes.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Serves until the process ends. `answer` gets the first line of a request; its text is sent as it is.
pub(crate) fn socket(answer: fn(&str) -> String) -> PathBuf {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("agent-engine-{}-{number}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).expect("listen");
    let serve = move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("accept");
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap_or_default();
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            // The client may have seen enough.
            let _ = stream.write_all(answer(request.lines().next().unwrap_or_default()).as_bytes());
        }
    };
    crate::platform::rt::spawn_thread("docker of a test", serve).expect("start a thread");
    path
}

/// What an engine answers to a request that it refuses.
pub(crate) fn refusal(status: u16, message: &str) -> String {
    let body = serde_json::json!({ "message": message }).to_string();
    response("1.41", &body).replace("200 OK", &format!("{status} No"))
}

/// A response of an engine of this version.
pub(crate) fn response(version: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\nApi-Version: {version}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}
