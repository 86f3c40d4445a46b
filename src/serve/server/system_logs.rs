//! `/logs`: the machine's own log files, and with `query=` the journal's.
//!
//! Owns the path lookup, in which no symbolic link and no `..` leads out of `/var/log`, and upstream's rules
//! for queries.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Response, StatusCode};

use super::body::{Body, Pieces, failure, response, text};
use super::route::Parameters;
use crate::model::ordered::Sortable as _;
use crate::model::types::Timestamp;
use crate::platform::rt;
use crate::platform::rt::child::TalkingChild;
use crate::platform::sys::dir::{Handle, Mounts};
use crate::platform::sys::open::open_file_below;

pub(super) const ROOT: &str = "/var/log";
const CHUNK: usize = 32 * 1024;
/// The time limit of `journalctl`.
const JOURNAL_PATIENCE: Duration = Duration::from_secs(30);
/// Larger directories are listed in part.
const MOST_ENTRIES: usize = 10_000;
const PLAIN: &str = "text/plain; charset=utf-8";

type Failed = (StatusCode, String);

/// Whether the request is a log query and not for a file.
pub(super) fn is_log_query(parameters: &Parameters) -> bool {
    parameters.iter().any(|(name, _)| name == "query")
}

/// Serves a file, or lists a directory.
pub(super) async fn file(root: &Path, path: &str) -> Response<Body> {
    let (root, path) = (root.to_owned(), path.to_owned());
    let found = rt::blocking("open a system log", move || open(&root, &path)).await;
    match found {
        Ok(LogLocation::File(file)) => send(file),
        Ok(LogLocation::Directory(page)) => {
            response(StatusCode::OK, "text/html; charset=utf-8", Body::Whole(Full::new(Bytes::from(page))))
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            failure(StatusCode::FORBIDDEN, "Forbidden", "the file cannot be read")
        }
        Err(_) => failure(StatusCode::NOT_FOUND, "NotFound", "404 page not found"),
    }
}

enum LogLocation {
    File(File),
    Directory(String),
}

fn open(root: &Path, path: &str) -> io::Result<LogLocation> {
    let path = path.trim_matches('/');
    let handle = Handle::open(root)?;
    let handle = if path.is_empty() { handle } else { handle.below(Path::new(path), Mounts::Cross)? };
    if !handle.metadata()?.is_dir() {
        return open_file_below(root, Path::new(path)).map(LogLocation::File);
    }
    let mut entries = Vec::new();
    for name in handle.names()?.take(MOST_ENTRIES) {
        let name = name?;
        let is_dir = handle.entry(&name).and_then(|entry| entry.metadata()).is_ok_and(|entry| entry.is_dir());
        entries.push((name.to_string_lossy().into_owned(), is_dir));
    }
    entries.order_by(Ord::cmp);
    Ok(LogLocation::Directory(listing(&entries)))
}

/// The HTML of Go's file server, which clients parse.
fn listing(entries: &[(String, bool)]) -> String {
    let mut page =
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n".to_owned();
    for (name, is_dir) in entries {
        let slash = if *is_dir { "/" } else { "" };
        // A relative path with a colon in its first segment would be parsed as a scheme.
        let link = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
        let shown =
            name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;");
        page.extend(["<a href=\"", &link.to_string(), slash, "\">", &shown, slash, "</a>\n"]);
    }
    page + "</pre>\n"
}

/// Sends a file up to its current length.
fn send(file: File) -> Response<Body> {
    let (pieces, body) = Body::in_pieces();
    rt::spawn("system log", send_file(file, pieces));
    response(StatusCode::OK, PLAIN, body)
}

async fn send_file(mut file: File, pieces: Pieces) {
    let mut left = file.metadata().map_or(0, |metadata| metadata.len());
    while left > 0 {
        let length = CHUNK.min(usize::try_from(left).unwrap_or(CHUNK));
        let piece;
        (file, piece) = rt::blocking("read a system log", move || {
            let mut chunk = vec![0; length];
            let read = file.read(&mut chunk);
            let piece = read.map(|length| {
                chunk.truncate(length);
                Bytes::from(chunk)
            });
            (file, piece)
        })
        .await;
        left = match &piece {
            Ok(bytes) if !bytes.is_empty() => left.saturating_sub(u64::try_from(bytes.len()).unwrap_or(left)),
            // The file was truncated meanwhile.
            Ok(_) => return,
            Err(_) => 0,
        };
        if pieces.send(piece).await.is_err() {
            return;
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Query {
    services: Vec<String>,
    file: Option<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    tail: Option<u32>,
    pattern: Option<String>,
    boot: Option<i32>,
}

impl Query {
    /// Parses and validates it by upstream's rules: 400 for a malformed value, 406 for a contradiction.
    fn of(parameters: &Parameters) -> Result<Self, Failed> {
        let only = |name: &str| {
            let mut found =
                parameters.iter().filter(|(found, _)| found == name).map(|(_, value)| value.as_str());
            found.next().filter(|value| !value.is_empty())
        };
        let bad =
            |name: &str, value: &str| (StatusCode::BAD_REQUEST, format!("{name}: invalid value {value:?}"));
        let unacceptable = |message: &str| (StatusCode::NOT_ACCEPTABLE, message.to_owned());
        let time = |name: &str| -> Result<Option<Timestamp>, Failed> {
            let read = |value| Timestamp::parse_rfc3339(value).ok_or_else(|| bad(name, value));
            only(name).map(read).transpose()
        };
        let mut query = Self {
            since: time("sinceTime")?,
            until: time("untilTime")?,
            tail: only("tailLines")
                .map(|value| value.parse().map_err(|_| bad("tailLines", value)))
                .transpose()?,
            pattern: only("pattern").map(str::to_owned),
            boot: only("boot").map(|value| value.parse().map_err(|_| bad("boot", value))).transpose()?,
            ..Self::default()
        };
        for (_, asked) in parameters.iter().filter(|(name, _)| name == "query") {
            let asked = asked.trim();
            if asked.is_empty() {
                return Err(unacceptable("query: Required value: query cannot be empty"));
            }
            if asked.contains(['/', '\\']) {
                if query.file.replace(asked.trim_start_matches('/').to_owned()).is_some() {
                    return Err(unacceptable("query: Invalid value: specify only one file"));
                }
            } else if is_service(asked) {
                query.services.push(asked.to_owned());
            } else {
                return Err(unacceptable(
                    "query: Invalid value: service names may only contain letters, digits and -_.:@",
                ));
            }
        }
        if query.services.len() > 4 {
            return Err(unacceptable("query: Invalid value: at most 4 services"));
        }
        if query.file.is_some() && !query.services.is_empty() {
            return Err(unacceptable("query: Invalid value: specify services or a file, not both"));
        }
        if query.file.is_some() && query.has_options() {
            return Err(unacceptable("query: Invalid value: no other options are allowed with a file"));
        }
        if query.tail.is_some_and(|lines| lines > 100_000) {
            return Err(unacceptable("tailLines: Invalid value: must be between 0 and 100000, inclusive"));
        }
        if query.since.zip(query.until).is_some_and(|(since, until)| until <= since) {
            return Err(unacceptable("untilTime: Invalid value: must be after `sinceTime`"));
        }
        if query.boot.is_some_and(|boot| boot > 0) {
            return Err(unacceptable("boot: Invalid value: must be less than or equal to 0"));
        }
        Ok(query)
    }

    fn has_options(&self) -> bool {
        let Self { since, until, tail, pattern, boot, .. } = self;
        since.is_some() || until.is_some() || tail.is_some() || pattern.is_some() || boot.is_some()
    }

    /// The arguments of `journalctl`.
    fn arguments(&self, services: &[String]) -> Vec<String> {
        let mut arguments =
            vec!["--utc".to_owned(), "--no-pager".to_owned(), "--output=short-precise".to_owned()];
        let time = |at: Timestamp| at.to_rfc3339().replace('T', " ").replace('Z', " UTC");
        arguments.extend(self.since.map(|at| format!("--since={}", time(at))));
        arguments.extend(self.until.map(|at| format!("--until={}", time(at))));
        arguments.extend(self.tail.map(|lines| format!("--lines={lines}")));
        arguments.extend(services.iter().map(|service| format!("--unit={service}")));
        arguments.extend(self.pattern.as_ref().map(|pattern| format!("--grep={pattern}")));
        arguments.extend(self.boot.map(|boot| format!("--boot={boot}")));
        arguments
    }
}

fn is_service(name: &str) -> bool {
    name.len() <= 256
        && !name.starts_with('-')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte))
}

pub(super) async fn query(parameters: &Parameters) -> Result<Response<Body>, Failed> {
    let query = Query::of(parameters)?;
    if let Some(path) = &query.file {
        return Ok(file(Path::new(ROOT), path).await);
    }
    let (mut known, mut files) = (Vec::new(), Vec::new());
    for service in &query.services {
        if journal_has(service).await {
            known.push(service.clone());
        } else if !query.has_options()
            && let Some(file) = file_of_service(service).await
        {
            files.push(file);
        }
    }
    if known.is_empty() && files.is_empty() {
        let message = format!("no logs of {} in the journal or {ROOT}", query.services.join(", "));
        return Ok(text(StatusCode::NOT_FOUND, format!("{message}\n")));
    }
    let (pieces, body) = Body::in_pieces();
    rt::spawn("log query", async move {
        if !known.is_empty() {
            send_journal(&query.arguments(&known), &pieces).await;
        }
        for file in files {
            send_file(file, pieces.clone()).await;
        }
    });
    Ok(response(StatusCode::OK, PLAIN, body))
}

fn journal(arguments: &[String]) -> io::Result<TalkingChild> {
    TalkingChild::start(Command::new("journalctl").args(arguments).stderr(Stdio::null()), &[])
}

async fn journal_has(service: &str) -> bool {
    let words = ["--quiet", "--no-pager", "--lines=1", "--output=cat"].map(str::to_owned);
    let arguments = [&words[..], &[format!("--unit={service}")]].concat();
    let Ok(child) = journal(&arguments) else { return false };
    let mut buffer = [0; 64];
    let read = tokio::time::timeout(JOURNAL_PATIENCE, child.read(&mut buffer)).await;
    child.end().await;
    matches!(read, Ok(Ok(read)) if read > 0)
}

async fn send_journal(arguments: &[String], pieces: &Pieces) {
    let child = match journal(arguments) {
        Ok(child) => child,
        Err(error) => {
            let _ = pieces.send(Err(error)).await;
            return;
        }
    };
    let send = async {
        let mut buffer = vec![0; CHUNK];
        loop {
            match child.read(&mut buffer).await {
                Ok(0) => return,
                Ok(read) => {
                    if pieces.send(Ok(Bytes::copy_from_slice(&buffer[..read]))).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    let _ = pieces.send(Err(error)).await;
                    return;
                }
            }
        }
    };
    let _ = tokio::time::timeout(JOURNAL_PATIENCE, send).await;
    child.end().await;
}

/// The log file of a service without journal entries: the first of the usual paths that exists.
async fn file_of_service(service: &str) -> Option<File> {
    let names = [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")];
    rt::blocking("open a service log", move || {
        names.iter().find_map(|name| open_file_below(Path::new(ROOT), Path::new(name)).ok())
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::serve::server::route::parameters;

    #[test]
    fn files_and_listings_stay_below_the_directory() {
        let root = std::env::temp_dir().join(format!("edge-agent-logs-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("log/sub")).unwrap();
        fs::write(root.join("log/a<b>.log"), "inside").unwrap();
        fs::write(root.join("secret"), "outside").unwrap();
        std::os::unix::fs::symlink("../secret", root.join("log/link")).unwrap();
        std::os::unix::fs::symlink("..", root.join("log/up")).unwrap();
        let log = root.join("log");
        let Ok(LogLocation::Directory(page)) = open(&log, "") else { panic!("a directory") };
        assert!(page.contains("<a href=\"a%3Cb%3E%2Elog\">a&lt;b&gt;.log</a>\n"), "{page}");
        assert!(page.contains("<a href=\"sub/\">sub/</a>\n"), "{page}");
        match open(&log, "a<b>.log") {
            Ok(LogLocation::File(mut file)) => assert_eq!(io::read_to_string(&mut file).unwrap(), "inside"),
            _ => panic!("a file"),
        }
        for path in ["../secret", "link", "up/secret", "up", "sub/../../secret", "none", "./../secret", ".."]
        {
            assert!(open(&log, path).is_err(), "{path}");
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn queries_are_checked_as_upstream_does() {
        let of = |query: &str| Query::of(&parameters(query)).map_err(|(code, _)| code.as_u16());
        let whole =
            of("query=kubelet&query=docker&tailLines=10&sinceTime=2026-01-02T03:04:05Z&boot=-1&pattern=a+b");
        let whole = whole.unwrap();
        assert_eq!(
            whole.arguments(&whole.services).join("|"),
            "--utc|--no-pager|--output=short-precise|--since=2026-01-02 03:04:05 UTC|--lines=10|--unit=kubelet|--unit=docker|--grep=a b|--boot=-1"
        );
        assert_eq!(of("query=/a/b.log").unwrap().file.as_deref(), Some("a/b.log"));
        for (query, code) in [
            ("query=a&tailLines=x", 400),
            ("query=a&sinceTime=yesterday", 400),
            ("query=a&boot=one", 400),
            ("query=", 406),
            ("query=%20", 406),
            ("query=a%3Bb", 406),
            ("query=--system", 406),
            ("query=a&query=b&query=c&query=d&query=e", 406),
            ("query=a&query=b/c", 406),
            ("query=a/b&query=b/c", 406),
            ("query=a/b&tailLines=1", 406),
            ("query=a&tailLines=100001", 406),
            ("query=a&boot=1", 406),
            ("query=a&sinceTime=2026-01-02T03:04:05Z&untilTime=2026-01-02T03:04:05Z", 406),
        ] {
            assert_eq!(of(query), Err(code), "{query}");
        }
    }
}
