//! Blocking HTTP on its own thread: one GET at a time, bounded in time, size, redirects and queue.
//!
//! Owns the ureq agent, TLS roots and the messages of connection errors. Redirects are followed here and not
//! by ureq, which would send the configured headers to every host and downgrade https to http.

pub mod error;
pub mod h1;
pub mod h2;
mod proxy;
mod redirect;
pub mod stream;
pub mod tls;
pub mod url;

use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use ureq::Agent;
use ureq::config::AutoHeaderValue;
use ureq::http::HeaderMap;

pub(crate) use error::{HttpError, TlsError, shown_url};
pub(crate) use proxy::named as named_proxy;
use redirect::Hop;
pub(crate) use tls::ClientFiles;
use tls::Trust;

/// Requests waiting for the thread; each caller waits for its own answer, so more means that something is
/// stuck.
const QUEUE: usize = 16;
/// As in other clients; it ends a redirect loop.
const MAX_REDIRECTS: u32 = 10;
/// Deep call chains of TLS in unoptimised builds; musl's default would be 128 KiB. Only touched pages cost.
const STACK_BYTES: usize = 1024 * 1024;
/// Read buffer of a body of unknown length.
const CHUNK_BYTES: usize = 16 * 1024;

#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// `http://` or `https://`.
    pub url: String,
    /// Added unchanged; a name may repeat. They are not sent to another origin after a redirect.
    pub headers: Vec<(String, String)>,
    /// From the DNS lookup to the last byte.
    pub timeout_total: Duration,
    /// A longer body is an error.
    pub max_body: usize,
    /// Trust these authorities instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The client certificate, for servers that request one. Sent only to the origin of `url`.
    pub client: Option<ClientFiles>,
    /// An ETag: the server answers 304 while it is current.
    pub if_none_match: Option<String>,
    /// A Last-Modified: the server answers 304 while it is current.
    pub if_modified_since: Option<String>,
}

impl Request {
    /// A plain GET with the kubelet's bounds: 10 seconds, 10 MiB.
    #[must_use]
    pub(crate) fn get(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            headers: Vec::new(),
            timeout_total: Duration::from_secs(10),
            max_body: 10 * 1024 * 1024,
            ca_file: None,
            client: None,
            if_none_match: None,
            if_modified_since: None,
        }
    }
}

/// The server's answer, after redirects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub status: u16,
    /// `404 Not Found`.
    pub status_line: String,
    pub etag: Option<String>,
    pub last_modified: Option<String>,
    pub content_type: Option<String>,
    pub body: Vec<u8>,
    /// The other origin that answered after a redirect: it was sent neither headers nor client certificate.
    pub other_origin: Option<String>,
}

/// Sends requests to the owner thread, which ends with the last handle.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient {
    jobs: mpsc::Sender<Job>,
}

#[derive(Debug)]
struct Job {
    request: Request,
    reply: oneshot::Sender<Result<Response, HttpError>>,
}

impl HttpClient {
    /// Starts the thread. It reads no certificates and opens nothing before the first request.
    pub(crate) fn start() -> Result<Self, HttpError> {
        let (jobs, queue) = mpsc::channel(QUEUE);
        spawn_thread("http", move || serve(queue)).map_err(|source| HttpError::Thread { source })?;
        Ok(Self { jobs })
    }

    /// Waits for a place in the queue, then for the answer. Dropping the future abandons the request; the
    /// thread finishes it within its time limit.
    pub(crate) async fn get(&self, request: Request) -> Result<Response, HttpError> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job { request, reply }).await.map_err(|_| HttpError::Stopped)?;
        answer.await.map_err(|_| HttpError::Stopped)?
    }
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(work).map(drop)
}

fn serve(mut queue: mpsc::Receiver<Job>) {
    let mut fetcher = Fetcher::default();
    while let Some(job) = queue.blocking_recv() {
        if job.reply.is_closed() {
            continue;
        }
        let answer = fetcher.fetch(&job.request);
        if job.reply.send(answer).is_err() {
            log::debug!(url = shown_url(&job.request.url).as_str(); "Discarding HTTP response, the request \
                 was cancelled");
        }
    }
}

/// The last agent and its trust: certificates are parsed again only when their file changes.
#[derive(Default)]
struct Fetcher {
    agent: Option<(Agent, Trust)>,
}

/// The result of one hop.
enum Answered {
    Response(Response),
    /// To this `Location`.
    Redirect(String),
}

impl Fetcher {
    fn fetch(&mut self, request: &Request) -> Result<Response, HttpError> {
        let deadline = Instant::now() + request.timeout_total;
        let mut hop = Hop::first(&request.url)?;
        for _ in 0..=MAX_REDIRECTS {
            match self.fetch_once(request, &hop, deadline)? {
                Answered::Response(response) => return Ok(response),
                Answered::Redirect(location) => hop = hop.follow(&location)?,
            }
        }
        Err(HttpError::TooManyRedirects { url: shown_url(&request.url) })
    }

    fn fetch_once(&mut self, request: &Request, hop: &Hop, deadline: Instant) -> Result<Answered, HttpError> {
        let agent = self.agent_for(request, hop)?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(error::timeout(request));
        }
        let mut call = agent.get(hop.text()).config().timeout_global(Some(left));
        if hop.url().is_loopback() {
            // As Go: no proxy can reach this machine's own loopback.
            call = call.proxy(None);
        }
        let mut call = call.build();
        for (name, value) in request.headers.iter().filter(|_| hop.is_own()) {
            call = call.header(name, value);
        }
        if let Some(etag) = &request.if_none_match {
            call = call.header("If-None-Match", etag);
        }
        if let Some(moment) = &request.if_modified_since {
            call = call.header("If-Modified-Since", moment);
        }
        let mut response = call.call().map_err(|error| error::explain(error, request))?;
        let status = response.status();
        if let (301 | 302 | 303 | 307 | 308, Some(location)) =
            (status.as_u16(), header(response.headers(), "location"))
        {
            return Ok(Answered::Redirect(location));
        }
        refuse_encoded(response.headers(), request)?;
        let body = read_body(response.body_mut().as_reader(), request)?;
        let reason = status.canonical_reason().unwrap_or_default();
        Ok(Answered::Response(Response {
            status: status.as_u16(),
            status_line: format!("{} {reason}", status.as_u16()).trim_end().to_owned(),
            etag: header(response.headers(), "etag"),
            last_modified: header(response.headers(), "last-modified"),
            content_type: header(response.headers(), "content-type"),
            body,
            other_origin: (!hop.is_own()).then(|| hop.url().shown()),
        }))
    }

    fn agent_for(&mut self, request: &Request, hop: &Hop) -> Result<Agent, HttpError> {
        let encrypted = hop.url().is_encrypted();
        let client = request.client.as_ref().filter(|_| hop.is_own());
        // The system's certificates take a third of a megabyte: they are loaded only when an https URL, or a
        // redirect to one, needs them.
        let trust = Trust::find(encrypted, request.ca_file.as_deref(), client)?;
        if let Some((agent, known)) = &self.agent
            && (*known == trust || !encrypted)
        {
            return Ok(agent.clone());
        }
        let config = Agent::config_builder()
            .tls_config(trust.load()?)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("agent/", env!("CARGO_PKG_VERSION")))
            .accept_encoding(AutoHeaderValue::None)
            // Polls are far apart: a kept connection would always be closed by then.
            .max_idle_connections(0)
            .max_idle_connections_per_host(0)
            .build();
        let agent = Agent::new_with_config(config);
        self.agent = Some((agent.clone(), trust));
        Ok(agent)
    }
}

fn read_body(mut reader: impl Read, request: &Request) -> Result<Vec<u8>, HttpError> {
    let mut body = Vec::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = match reader.read(&mut chunk) {
            Ok(0) => return Ok(body),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error::explain_body(error, request)),
        };
        if body.len() + count > request.max_body {
            return Err(HttpError::TooLong { url: shown_url(&request.url), limit: request.max_body });
        }
        body.extend_from_slice(&chunk[..count]);
    }
}

/// No compression is requested; a server that compresses anyway would look like a broken manifest.
fn refuse_encoded(headers: &HeaderMap, request: &Request) -> Result<(), HttpError> {
    match header(headers, "content-encoding") {
        Some(encoding) if !encoding.eq_ignore_ascii_case("identity") => {
            Err(HttpError::Encoded { url: shown_url(&request.url), encoding })
        }
        _ => Ok(()),
    }
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;
