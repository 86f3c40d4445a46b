//! A session with the servers of one repository: credentials, redirects, retries.
//!
//! Owns tokens (for the session's lifetime) and which header may be sent to which host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::PullError;
use super::auth::{authorization, challenges};
use super::error::error_message;
use super::hosts::Host;
use crate::platform::http::stream::{Method, StreamClient, StreamingResponse};
use crate::platform::http::url::{Url, query_escape};
use crate::runtime::ImageAuth;

/// Storage hosts are one or two redirects away.
const MAX_REDIRECTS: usize = 5;
/// Attempts of the same request at one server.
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// A server that demands a longer pause is tried again by the kubelet's own back-off.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// A pull's cancellation, shared by its threads.
#[derive(Clone, Debug, Default)]
pub(super) struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn check(&self) -> Result<(), PullError> {
        if self.0.load(Ordering::Relaxed) { Err(PullError::Cancelled) } else { Ok(()) }
    }

    /// Sleeps in short steps, so that a cancelled pull ends soon.
    pub(super) fn pause(&self, duration: Duration) -> Result<(), PullError> {
        let (_keep, never) = mpsc::channel::<()>();
        let mut left = duration;
        while !left.is_zero() {
            self.check()?;
            let piece = left.min(Duration::from_millis(100));
            let _ = never.recv_timeout(piece);
            left = left.saturating_sub(piece);
        }
        self.check()
    }
}

/// Doubles with every failure, within bounds.
pub(super) fn back_off(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE)
}

/// A server with its current authentication.
#[derive(Clone)]
struct Endpoint {
    host: Host,
    client: StreamClient,
    authorization: Option<String>,
}

/// A session. Clones share connections and start with the tokens known so far.
#[derive(Clone)]
pub(super) struct Session {
    endpoints: Vec<Endpoint>,
    repository: String,
    auth: Option<ImageAuth>,
    pub(super) cancel: Cancel,
}

#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    pub method: Method<'a>,
    /// Below the repository: `manifests/latest`.
    pub path: &'a str,
    pub headers: &'a [(String, String)],
    /// For messages about what is missing.
    pub what: &'a str,
    /// Whether redirects are followed; otherwise a redirect counts as an answer.
    pub follows: bool,
}

impl Session {
    pub(super) fn new(hosts: Vec<Host>, repository: &str, auth: Option<ImageAuth>) -> Self {
        let endpoint = |host: Host| {
            let client = StreamClient::new(host.options.clone());
            Endpoint { host, client, authorization: None }
        };
        Self {
            endpoints: hosts.into_iter().map(endpoint).collect(),
            repository: repository.to_owned(),
            auth,
            cancel: Cancel::default(),
        }
    }

    /// Servers that may be asked, by index, in order.
    pub(super) fn servers(&self, suits: impl Fn(&Host) -> bool) -> Vec<usize> {
        (0..self.endpoints.len()).filter(|index| suits(&self.endpoints[*index].host)).collect()
    }

    pub(super) fn server_name(&self, index: usize) -> &str {
        &self.endpoints[index].host.base.authority
    }

    /// Asks each server in turn until one succeeds.
    pub(super) fn try_servers<T>(
        &mut self,
        servers: &[usize],
        mut ask: impl FnMut(&mut Self, usize) -> Result<T, PullError>,
    ) -> Result<T, PullError> {
        let mut mirrors: Vec<String> = Vec::new();
        for (position, index) in servers.iter().enumerate() {
            match ask(self, *index) {
                Ok(answer) => return Ok(answer),
                Err(PullError::Cancelled) => return Err(PullError::Cancelled),
                Err(error) if position + 1 < servers.len() => {
                    mirrors.push(format!(
                        "{}: {}",
                        self.server_name(*index),
                        crate::platform::logging::chain(&error)
                    ));
                }
                Err(error) if mirrors.is_empty() => return Err(error),
                Err(error) => {
                    return Err(PullError::AfterMirrors {
                        mirrors: mirrors.join("; "),
                        source: Box::new(error),
                    });
                }
            }
        }
        Err(PullError::Hosts {
            path: "hosts.toml".into(),
            problem: "no server has the capabilities \"pull\" and \"resolve\"".to_owned(),
        })
    }

    /// Whether the registry permits access to a blob. A redirect counts as permission and is not followed:
    /// its target is another server, which cannot decide that.
    pub(super) fn has_blob(&mut self, digest: &str) -> Result<bool, PullError> {
        let path = format!("blobs/{digest}");
        let ask = Ask { method: Method::Head, path: &path, headers: &[], what: digest, follows: false };
        let servers = self.servers(|host| host.pulls);
        match self.try_servers(&servers, |session, index| session.ask(index, ask)) {
            Ok(_) => Ok(true),
            Err(PullError::Cancelled) => Err(PullError::Cancelled),
            // Some registries do not support HEAD; a GET returns the reason.
            Err(_) => Ok(false),
        }
    }

    /// Sends a request to one server, with credentials if it demands them, and repeats it where that may
    /// help. The answer is 2xx, or a redirect that is not followed.
    pub(super) fn ask(&mut self, index: usize, ask: Ask<'_>) -> Result<StreamingResponse, PullError> {
        let host = &self.endpoints[index].host;
        let mut url = host.base.clone();
        url.path = format!("{}/{}/{}", url.path, self.repository, ask.path);
        if let Some(namespace) = &host.namespace {
            url.path.push_str("?ns=");
            url.path.push_str(&query_escape(namespace));
        }
        let mut authorised = 0;
        let mut failures = 0;
        loop {
            self.cancel.check()?;
            let sent = self.send_and_follow(index, &url, ask).and_then(|(mut answer, at)| {
                if matches!(answer.status, 200..=299) || is_redirect(answer.status) && !ask.follows {
                    return Ok(Ok(answer));
                }
                if answer.status == 401 && authorised < 2 {
                    return Ok(Err(answer.headers("www-authenticate")));
                }
                let wait = answer.header("retry-after").and_then(|value| value.trim().parse().ok());
                Err((refusal(&mut answer, &at, ask), wait.map(Duration::from_secs)))
            });
            match sent {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(offered)) => {
                    authorised += 1;
                    self.authorise(index, &offered, &url)?;
                }
                Err((error, wait)) => {
                    failures += 1;
                    let pause = wait.unwrap_or_else(|| back_off(failures));
                    if !error.is_transient() || failures >= ATTEMPTS || pause > LONGEST_PAUSE {
                        return Err(error);
                    }
                    self.cancel.pause(pause)?;
                }
            }
        }
    }

    fn authorise(&mut self, index: usize, offered: &[String], url: &Url) -> Result<(), PullError> {
        let found: Vec<_> = offered.iter().flat_map(|header| challenges(header)).collect();
        let scope = format!("repository:{}:pull", self.repository);
        let endpoint = &mut self.endpoints[index];
        let had = endpoint.authorization.take();
        let auth = self.auth.as_ref().filter(|auth| auth.is_for(&endpoint.host.base.authority));
        let value = authorization(&found, auth, &scope, url, &mut endpoint.client)?;
        if had.as_ref() == Some(&value) {
            let reason = found.iter().find_map(|challenge| challenge.parameter("error"));
            let reason = reason.unwrap_or("the registry rejected these credentials").to_owned();
            return Err(PullError::Denied { reason: format!("authorization failed: {reason}") });
        }
        endpoint.authorization = Some(value);
        Ok(())
    }

    /// One request with its redirects, and its final URL.
    fn send_and_follow(
        &mut self,
        index: usize,
        url: &Url,
        ask: Ask<'_>,
    ) -> Result<(StreamingResponse, Url), (PullError, Option<Duration>)> {
        let endpoint = &mut self.endpoints[index];
        let mut at = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut headers = ask.headers.to_vec();
            // Neither credentials nor headers of the configuration may be sent to another host.
            if at.authority == url.authority && at.scheme == url.scheme {
                headers.extend(endpoint.host.headers.iter().cloned());
                if let Some(value) = &endpoint.authorization {
                    headers.push(("Authorization".to_owned(), value.clone()));
                }
            }
            let answer = endpoint
                .client
                .send(ask.method, &at, &headers)
                .map_err(|error| (PullError::from_http(error, &at.authority), None))?;
            if !is_redirect(answer.status) || !ask.follows {
                return Ok((answer, at));
            }
            let refuse = |problem| (PullError::Redirect { url: at.shown(), problem }, None);
            let location = answer.header("location").unwrap_or_default();
            let next = at.join(&location).ok_or_else(|| refuse("redirects to an invalid URL"))?;
            if at.is_encrypted() && !next.is_encrypted() {
                return Err(refuse("redirects from https to http, which is not followed"));
            }
            at = next;
        }
        let problem = "stopped after 5 redirects; check the server for a redirect loop";
        Err((PullError::Redirect { url: url.shown(), problem }, None))
    }

    /// A blob's copy elsewhere, as foreign layers name them: without any credentials.
    pub(super) fn fetch_foreign(
        &mut self,
        index: usize,
        text: &str,
        ask: Ask<'_>,
    ) -> Result<StreamingResponse, PullError> {
        let url = Url::parse(text).filter(Url::is_encrypted).ok_or_else(|| PullError::Redirect {
            url: text.to_owned(),
            problem: "layer URLs must be https://",
        })?;
        let kept = self.endpoints[index].authorization.take();
        let headers = std::mem::take(&mut self.endpoints[index].host.headers);
        let sent = self.send_and_follow(index, &url, ask);
        self.endpoints[index].authorization = kept;
        self.endpoints[index].host.headers = headers;
        let (mut answer, at) = sent.map_err(|(error, _)| error)?;
        if matches!(answer.status, 200..=299) { Ok(answer) } else { Err(refusal(&mut answer, &at, ask)) }
    }
}

fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

fn refusal(answer: &mut StreamingResponse, url: &Url, ask: Ask<'_>) -> PullError {
    let method = match ask.method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Post(_) => "POST",
    };
    let reason = if ask.method == Method::Head { String::new() } else { error_message(&answer.reason()) };
    match answer.status {
        404 => PullError::NotFound { what: ask.what.to_owned() },
        401 | 403 => {
            PullError::Denied { reason: format!("{} says {}{reason}", url.authority, answer.status) }
        }
        status => PullError::Status { method, url: url.shown(), status, reason },
    }
}
