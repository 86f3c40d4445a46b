//! The transport of the program: HTTP/2 connections by lane.
//!
//! Owns the connections, when one is made and when one is replaced. A connection whose credentials were renewed takes
//! no more requests; what is under way on it goes on.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, DATE, HeaderMap, RETRY_AFTER, USER_AGENT};
use hyper::{Request, Response};
use tokio::sync::{Mutex, watch};
use tokio::time::{sleep, timeout};

use crate::cluster::client::error::{LinkError, LinkErrorKind};
use crate::cluster::client::resolve::{Resolver, is_literal};
use crate::cluster::client::transport::{ApiRequest, ApiResponse, Chunks, Lane, Method, Transport};
use crate::cluster::credentials::{Credentials, Login};
use crate::model::back_off::Retry;
use crate::model::types::Timestamp;
use crate::platform::clock::Clock;
use crate::platform::http::h2::dial::{DialRoute, dial};
use crate::platform::http::h2::tls::{DialError, ServerTls};
use crate::platform::http::h2::tunnel::ProxyUrl;
use crate::platform::http::h2::{H2Body, H2Connection, H2Error, H2Settings, H2Stream};
use crate::platform::rt;

/// The apiserver's own limit for a request that is not a watch.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Between attempts to connect, for both lanes together.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Connections without any answer before there is a pause: one of each lane.
const FREE_DIALS: u32 = 2;

pub(crate) struct H2Config {
    /// `kubelet/v1.36.0 (linux/arm64)`: proxies of clusters look for the word.
    pub user_agent: String,
    /// No certificate is judged at an earlier time: a box without a battery starts in 1970.
    pub floor: Timestamp,
}

/// Clones share their connections.
#[derive(Clone)]
pub(crate) struct H2Transport(Rc<Shared>);

struct Shared {
    user_agent: String,
    settings: H2Settings,
    credentials: Rc<Credentials>,
    clock: Clock,
    floor: Cell<Timestamp>,
    resolver: Resolver,
    pools: [RefCell<LanePool>; 2],
    /// Held by the one task that connects.
    turn: Mutex<Retry>,
    /// Attempts to connect since the last answer.
    unanswered: Cell<u32>,
    failure: RefCell<Option<LinkError>>,
    /// `Date` of the last answer.
    server_time: Cell<Option<Timestamp>>,
}

#[derive(Default)]
struct LanePool {
    /// Each with the version of the login that it was made with.
    connections: Vec<(u64, H2Connection)>,
    /// Those who wait for a new connection.
    dialling: Option<watch::Receiver<Option<Result<(), LinkError>>>>,
}

impl H2Transport {
    /// The server's clock, as of its last answer.
    pub(crate) fn server_time(&self) -> Option<Timestamp> {
        self.0.server_time.get()
    }

    /// Opens nothing yet.
    pub(crate) fn new(config: H2Config, credentials: Rc<Credentials>, clock: Clock) -> Self {
        Self(Rc::new(Shared {
            user_agent: config.user_agent,
            settings: H2Settings::of_apiserver(|name| std::env::var(name).ok()),
            credentials,
            clock,
            floor: Cell::new(config.floor),
            resolver: Resolver::default(),
            pools: Default::default(),
            turn: Mutex::new(Retry::new(FIRST_PAUSE, LONGEST_PAUSE)),
            unanswered: Cell::new(0),
            failure: RefCell::default(),
            server_time: Cell::new(None),
        }))
    }

    /// It is at least this late, whatever the clock says: the last contact, the beginning of our own certificate.
    pub(crate) fn not_before(&self, moment: Timestamp) {
        self.0.floor.set(self.0.floor.get().max(moment));
    }
}

impl Transport for H2Transport {
    type Body = H2Chunks;

    async fn send(&self, lane: Lane, request: ApiRequest) -> Result<ApiResponse<H2Chunks>, LinkError> {
        let limit = request.limit.unwrap_or(ANSWER_LIMIT);
        let is_sent = Cell::new(false);
        let answer = timeout(limit, exchange(&self.0, lane, request, &is_sent)).await;
        answer.unwrap_or_else(|_| {
            let message = format!("no answer within {} s", limit.as_secs());
            Err(match self.0.failure.borrow().clone() {
                _ if is_sent.get() => LinkError { kind: LinkErrorKind::TimedOut, message },
                Some(failure) => failure,
                None => LinkError { kind: LinkErrorKind::Dial, message: "not connected yet".to_owned() },
            })
        })
    }
}

/// The body of an answer.
pub(crate) struct H2Chunks(H2Body);

impl Chunks for H2Chunks {
    async fn next(&mut self) -> Option<Result<Bytes, LinkError>> {
        let part = self.0.next().await?;
        Some(part.map_err(|message| LinkError { kind: LinkErrorKind::Lost, message }))
    }
}

/// Sends a request. Once more when the server refuses the login and there is another one, and when the connection ends
/// without an answer and a repetition does no harm.
async fn exchange(
    shared: &Rc<Shared>,
    lane: Lane,
    mut request: ApiRequest,
    is_sent: &Cell<bool>,
) -> Result<ApiResponse<H2Chunks>, LinkError> {
    let body = request.body.take().map(|(content, bytes)| (content.as_str(), Bytes::from(bytes)));
    let may_repeat = is_repeatable(request.method, body.as_ref().map(|(_, bytes)| &bytes[..]));
    let (mut may_resend, mut may_log_in) = (true, true);
    loop {
        let (login, stream) = connected(shared, lane).await?;
        let message = message(&request, body.clone(), &login, &shared.user_agent)?;
        is_sent.set(true);
        match stream.send(message).await {
            Ok(response) => {
                shared.unanswered.set(0);
                if response.status() == 401 && may_log_in && shared.credentials.refused(&login).await {
                    may_log_in = false;
                    continue;
                }
                let date = response.headers().get(DATE).and_then(|date| http_date(date.to_str().ok()?));
                shared.server_time.set(date.or(shared.server_time.get()));
                return Ok(answer(response));
            }
            Err(error) if may_resend && (error.unsent || may_repeat) => {
                log::debug!(err = error.message.as_str(); "Sending again on another connection");
                may_resend = false;
            }
            Err(error) => return Err(lost(error)),
        }
    }
}

/// A request that the server may carry out twice without harm.
fn is_repeatable(method: Method, body: Option<&[u8]>) -> bool {
    const UID: &[u8] = b"\"preconditions\"";
    match method {
        Method::Get | Method::Put | Method::Patch => true,
        // With the uid it cannot meet the next object of that name.
        Method::Delete => body.is_some_and(|body| body.windows(UID.len()).any(|part| part == UID)),
        Method::Post => false,
    }
}

fn lost(error: H2Error) -> LinkError {
    // In TLS 1.3 a server refuses a client certificate after the handshake.
    let is_refusal = error.message.contains("received fatal alert");
    let kind = if is_refusal { LinkErrorKind::Tls } else { LinkErrorKind::Lost };
    LinkError { kind, message: error.message }
}

fn message(
    request: &ApiRequest,
    body: Option<(&'static str, Bytes)>,
    login: &Login,
    user_agent: &str,
) -> Result<Request<Bytes>, LinkError> {
    let config = &login.config;
    let mut message = Request::builder()
        .method(request.method.as_str())
        .uri(format!("https://{}{}{}", config.authority, config.prefix, request.path))
        .header(ACCEPT, request.accept.as_str())
        .header(USER_AGENT, user_agent);
    for (name, value) in &login.headers {
        message = message.header(name, value);
    }
    if let Some((content, _)) = body {
        message = message.header(CONTENT_TYPE, content);
    }
    // Paths are ours; what a header cannot carry comes from a token or a name in the kubeconfig.
    message.body(body.map(|(_, bytes)| bytes).unwrap_or_default()).map_err(|error| LinkError {
        kind: LinkErrorKind::Credentials,
        message: format!("the credentials cannot be sent: {error}"),
    })
}

/// `Tue, 24 Nov 2026 02:46:05 GMT`, the only form that a server may send.
fn http_date(text: &str) -> Option<Timestamp> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let words: Vec<&str> = text.split(' ').collect();
    let [_, day, month, year, time, "GMT"] = words[..] else { return None };
    let month = MONTHS.find(month).filter(|at| at % 3 == 0)? / 3 + 1;
    Timestamp::parse_rfc3339(&format!("{year}-{month:02}-{day}T{time}Z"))
}

fn answer(response: Response<H2Body>) -> ApiResponse<H2Chunks> {
    let (head, body) = response.into_parts();
    let text = |headers: &HeaderMap, name| {
        headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    ApiResponse {
        status: head.status.as_u16(),
        retry_after: text(&head.headers, RETRY_AFTER).trim().parse().ok().map(Duration::from_secs),
        content_type: text(&head.headers, CONTENT_TYPE),
        body: H2Chunks(body),
    }
}

/// The login, and a stream of a connection that was made with it.
async fn connected(shared: &Rc<Shared>, lane: Lane) -> Result<(Rc<Login>, H2Stream), LinkError> {
    loop {
        let login = shared.credentials.current(false).await.map_err(no_credentials)?;
        if let Some(stream) = shared.take(lane, login.version) {
            return Ok((login, stream));
        }
        let mut dialled = dialling(shared, lane);
        let outcome = match dialled.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Ok(())),
            // The task panicked, and with it the process.
            Err(_) => Err(LinkError { kind: LinkErrorKind::Dial, message: "not connected".to_owned() }),
        };
        outcome?;
    }
}

fn no_credentials(message: String) -> LinkError {
    LinkError { kind: LinkErrorKind::Credentials, message }
}

/// The task that makes a connection for this lane. It goes on when those who wait give up: on a slow link connecting
/// may take longer than a lease waits. It ends by itself within the limits of its steps.
fn dialling(shared: &Rc<Shared>, lane: Lane) -> watch::Receiver<Option<Result<(), LinkError>>> {
    let mut pool = shared.pools[lane as usize].borrow_mut();
    if let Some(dialling) = &pool.dialling {
        return dialling.clone();
    }
    let (outcome, dialled) = watch::channel(None);
    pool.dialling = Some(dialled.clone());
    let shared = Rc::clone(shared);
    rt::spawn("dial", async move {
        let made = shared.dial_in_turn().await;
        let mut pool = shared.pools[lane as usize].borrow_mut();
        pool.dialling = None;
        *shared.failure.borrow_mut() = made.as_ref().err().cloned();
        let made = made.map(|connection| pool.connections.push(connection));
        drop(pool);
        // Those who waited may be gone.
        let _ = outcome.send(Some(made));
    });
    dialled
}

impl Shared {
    /// A stream of a connection of this lane. Connections that ended, and those of an older login, are dropped.
    fn take(&self, lane: Lane, version: u64) -> Option<H2Stream> {
        let mut pool = self.pools[lane as usize].borrow_mut();
        pool.connections.retain(|(made_with, connection)| *made_with == version && connection.is_open());
        // More than one idle connection is left from a busier time.
        let idle = pool.connections.iter().filter(|(_, connection)| connection.streams() == 0).count();
        let mut superfluous = idle.saturating_sub(1);
        pool.connections.retain(|(_, connection)| {
            let goes = superfluous > 0 && connection.streams() == 0;
            superfluous -= usize::from(goes);
            !goes
        });
        pool.connections.iter().find_map(|(_, connection)| connection.stream())
    }

    async fn dial_in_turn(&self) -> Result<(u64, H2Connection), LinkError> {
        let mut retry = self.turn.lock().await;
        if self.unanswered.get() < FREE_DIALS {
            retry.reset();
        } else {
            sleep(retry.delay()).await;
        }
        self.unanswered.set(self.unanswered.get().saturating_add(1));
        let login = self.credentials.current(true).await.map_err(no_credentials)?;
        let connection = self.dial(&login).await.map_err(|error| LinkError {
            kind: if error.is_tls { LinkErrorKind::Tls } else { LinkErrorKind::Dial },
            message: error.message,
        })?;
        log::debug!(server = login.config.server.as_str(); "Connected to the apiserver");
        Ok((login.version, connection))
    }

    async fn dial(&self, login: &Login) -> Result<H2Connection, DialError> {
        let config = &login.config;
        let proxy = ProxyUrl::choose(&config.proxy, &config.server);
        let proxy = proxy.map_err(|reason| dial_error(format!("{}: proxy: {reason}", config.server)))?;
        let (host, port) = match &proxy {
            Some(proxy) => (proxy.host.as_str(), proxy.port),
            None => (config.host.as_str(), config.port),
        };
        let server = ServerTls {
            name: config.tls_name.clone(),
            authorities: login.authorities.clone(),
            client: login.client.clone(),
            skip_verify: config.skip_verify,
            now: self.clock.now().max(self.floor.get()),
        };
        let route =
            DialRoute { addresses: &[], proxy: proxy.as_ref(), host: &config.host, port: config.port };
        let known = self.resolver.known(host, port);
        let mut failure = None;
        if !known.is_empty() {
            match dial(&DialRoute { addresses: &known, ..route }, &server, &self.settings).await {
                Err(error) if is_literal(host) => return Err(error),
                // The name may lead elsewhere by now.
                Err(error) => failure = Some(error),
                made => return made,
            }
        }
        let found = match self.resolver.look_up(host, port).await {
            Ok(found) => found,
            Err(reason) => return Err(failure.unwrap_or_else(|| dial_error(reason))),
        };
        let made = dial(&DialRoute { addresses: &found, ..route }, &server, &self.settings).await?;
        self.resolver.keep(host, port, &found);
        Ok(made)
    }
}

fn dial_error(message: String) -> DialError {
    DialError { is_tls: false, message }
}

#[cfg(test)]
mod tests;
