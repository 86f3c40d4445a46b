//! What answers at a runtime's socket: a Docker Engine says so itself, everything else is taken for CRI.
//!
//! Owns the question. The name of the socket counts only while there is no answer: Docker's may be anywhere, and Podman's and
//! balenaEngine's have names of their own.

use std::path::Path;
use std::time::Duration;

use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::{HOST, HeaderValue};
use tokio::net::UnixStream;

use super::client::{VERSIONS, send_on};
use crate::platform::logging::chain;
use crate::runtime::{ErrorKind, RuntimeError};

const CALL: &str = "Version";
/// An engine that runs answers at once.
const PATIENCE: Duration = Duration::from_secs(5);
/// An engine that is ending closes connections without an answer.
const TRIES: u32 = 3;
const TRY_AGAIN: Duration = Duration::from_millis(200);

/// Whether the name of a socket is that of a Docker Engine's.
pub(crate) fn is_named_docker(socket: &Path) -> bool {
    let name = socket.file_name().unwrap_or_default().to_string_lossy();
    ["docker", "balena", "podman"].iter().any(|word| name.contains(word))
}

/// The minor number of the version of Docker's API to speak at this socket; `None` when it is no Docker Engine.
///
/// # Errors
/// Nothing answers, or it is an engine of another time.
pub(crate) async fn engine_version(socket: &Path) -> Result<Option<u32>, RuntimeError> {
    let mut tries = 0;
    loop {
        let mut request = Request::new(Full::<Bytes>::default());
        *request.uri_mut() = "/_ping".parse().unwrap_or_default();
        request.headers_mut().insert(HOST, HeaderValue::from_static("docker"));
        let absent = |why: String| {
            RuntimeError::new(CALL, ErrorKind::Unavailable, format!("connect to {}: {why}", socket.display()))
        };
        let stream = UnixStream::connect(socket).await.map_err(|error| absent(error.to_string()))?;
        let answer = tokio::time::timeout(PATIENCE, Box::pin(send_on(stream, request))).await;
        tries += 1;
        match answer {
            Err(_) => return Err(absent(format!("no answer within {PATIENCE:?}"))),
            // gRPC's servers speak first, and not HTTP/1.1.
            Ok(Err(error)) if error.is_parse() => return Ok(None),
            Ok(Err(_)) if tries < TRIES => tokio::time::sleep(TRY_AGAIN).await,
            // The answer holds for the life of the process: an engine must not be taken for CRI because it is ending.
            Ok(Err(error)) if is_named_docker(socket) => return Err(absent(chain(&error))),
            Ok(Err(_)) => return Ok(None),
            Ok(Ok(response)) => {
                let said = response.headers().get("api-version").and_then(|value| value.to_str().ok());
                // CRI-O serves pages of its own over HTTP/1.1 at the socket of CRI.
                return said.map(chosen_version).transpose();
            }
        }
    }
}

fn refused(message: String) -> RuntimeError {
    RuntimeError::new(CALL, ErrorKind::Refused, message)
}

/// The newest version that both sides speak.
pub(super) fn chosen_version(newest: &str) -> Result<u32, RuntimeError> {
    let minor = newest.strip_prefix("1.").and_then(|minor| minor.parse::<u32>().ok());
    match minor {
        Some(minor) if minor >= *VERSIONS.start() => Ok(minor.min(*VERSIONS.end())),
        _ => Err(refused(format!(
            "Docker Engine speaks API version {newest:?}; 1.{} or newer is needed (Docker 19.03)",
            VERSIONS.start()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_says_itself_what_it_speaks() {
        crate::platform::rt::run(async {
            use crate::runtime::docker::testing::{response, socket};
            let docker = socket(|request| {
                assert_eq!(request, "GET /_ping HTTP/1.1");
                response("1.41", "OK")
            });
            assert_eq!(engine_version(&docker).await, Ok(Some(41)));
            // The settings frame with which a server of HTTP/2, and so gRPC, begins.
            let grpc = socket(|_| "\0\0\0\u{4}\0\0\0\0\0".to_owned());
            assert_eq!(engine_version(&grpc).await, Ok(None));
            let closes = socket(|_| String::new());
            assert_eq!(engine_version(&closes).await, Ok(None), "as CRI, whose errors say more");
            let ending = closes.with_extension("docker");
            std::fs::rename(&closes, &ending).expect("name the socket");
            assert_eq!(engine_version(&ending).await.unwrap_err().kind, ErrorKind::Unavailable);
            let crio = socket(|_| "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned());
            assert_eq!(engine_version(&crio).await, Ok(None), "CRI-O has pages, too");
            let old = socket(|_| response("1.39", "OK"));
            assert!(engine_version(&old).await.unwrap_err().message.contains("1.40 or newer"));
            let absent = engine_version(Path::new("/nowhere/docker.sock")).await.unwrap_err();
            assert_eq!(absent.kind, ErrorKind::Unavailable);
            for path in [docker, grpc, ending, crio, old] {
                std::fs::remove_file(path).expect("remove the socket");
            }
        })
        .expect("run");
    }

    #[test]
    fn the_newest_common_version_of_the_api_is_chosen() {
        for (said, chosen) in [("1.40", 40), ("1.41", 41), ("1.51", 51), ("1.99", 51)] {
            assert_eq!(chosen_version(said), Ok(chosen), "{said}");
        }
        for said in ["1.39", "2.0", "", "1.x"] {
            let message = chosen_version(said).unwrap_err().message;
            assert!(message.contains("1.40 or newer is needed"), "{message}");
        }
    }
}
