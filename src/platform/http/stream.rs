//! Blocking HTTP for callers in a process or thread of their own: bodies are streamed, and redirects are left
//! to the caller.
//!
//! Owns connections, their certificates and their timeouts.

use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ureq::config::AutoHeaderValue;
use ureq::http::HeaderMap;
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Proxy};

use super::tls::{ClientFiles, Roots, read_certificates, tls_provider};
use super::url::Url;
use super::{CHUNK_BYTES, HttpError, Request, error, header, proxy};

/// Bytes buffered per connection: a network packet's worth many times over, and small beside a megabyte.
const BUFFER_BYTES: usize = 32 * 1024;
/// The longest body of a refusal that is read; a longer one is dropped.
const MAX_REASON_BYTES: usize = 16 * 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamOptions {
    /// Trusted beside the system's authorities.
    pub ca_files: Vec<PathBuf>,
    pub client: Option<ClientFiles>,
    pub skip_verify: bool,
    /// For the DNS lookup and connecting.
    pub connect_timeout: Duration,
    /// The longest time without any data in either direction.
    pub stall_timeout: Duration,
    pub least_rate: Option<LeastRate>,
}

/// The minimum rate of a body, averaged over each window of waiting for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeastRate {
    pub bytes_per_second: u64,
    /// Time spent waiting for the server; the time that the caller spends on the bytes does not count.
    pub window: Duration,
}

/// Checks a body against its [`LeastRate`].
struct Pace {
    rule: LeastRate,
    waited: Duration,
    bytes: u64,
}

impl Pace {
    fn of(rule: LeastRate) -> Self {
        Self { rule, waited: Duration::ZERO, bytes: 0 }
    }

    /// `Err` with the bytes of a whole window when they were too few.
    fn note(&mut self, waited: Duration, bytes: u64) -> Result<(), u64> {
        self.waited += waited;
        self.bytes += bytes;
        if self.waited < self.rule.window {
            return Ok(());
        }
        let least = u128::from(self.rule.bytes_per_second) * self.waited.as_millis() / 1000;
        let came = std::mem::take(&mut self.bytes);
        self.waited = Duration::ZERO;
        if u128::from(came) < least { Err(came) } else { Ok(()) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method<'a> {
    Get,
    Head,
    Post(&'a str),
}

/// An answer whose body has not been read yet.
pub(crate) struct StreamingResponse {
    pub status: u16,
    headers: HeaderMap,
    body: ureq::BodyReader<'static>,
    request: Request,
    pace: Option<Pace>,
}

impl StreamingResponse {
    /// A header's first value.
    #[must_use]
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        header(&self.headers, name)
    }

    /// All values of a header.
    #[must_use]
    pub(crate) fn headers(&self, name: &str) -> Vec<String> {
        let values = self.headers.get_all(name).into_iter();
        values.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect()
    }

    /// The next bytes of the body; 0 at its end.
    ///
    /// # Errors
    /// When the connection broke, stalled for too long, or was too slow.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, HttpError> {
        let began = Instant::now();
        let count = loop {
            match self.body.read(buffer) {
                Ok(count) => break count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error::explain_body(error, &self.request)),
            }
        };
        if let Some(pace) = self.pace.as_mut().filter(|_| count > 0) {
            let LeastRate { bytes_per_second: least, window } = pace.rule;
            pace.note(began.elapsed(), count as u64).map_err(|bytes| {
                let url = self.request.url.clone();
                HttpError::Slow { url, bytes, seconds: window.as_secs(), least }
            })?;
        }
        Ok(count)
    }

    /// The whole body.
    ///
    /// # Errors
    /// As [`StreamingResponse::read`], and when it is longer than `limit`.
    pub(crate) fn read_all(&mut self, limit: usize) -> Result<Vec<u8>, HttpError> {
        let mut body = Vec::new();
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let count = self.read(&mut chunk)?;
            if count == 0 {
                return Ok(body);
            }
            if body.len() + count > limit {
                return Err(HttpError::TooLong { url: self.request.url.clone(), limit });
            }
            body.extend_from_slice(&chunk[..count]);
        }
    }

    /// The server's explanation of a refusal, as far as it can be read.
    #[must_use]
    pub(crate) fn reason(&mut self) -> Vec<u8> {
        self.read_all(MAX_REASON_BYTES).unwrap_or_default()
    }
}

/// A client of one server, and of its redirects' targets. Certificates are read when TLS is first needed.
#[derive(Clone)]
pub(crate) struct StreamClient {
    options: StreamOptions,
    plain: Option<Agent>,
    encrypted: Option<Agent>,
}

impl StreamClient {
    /// Opens nothing yet.
    #[must_use]
    pub(crate) fn new(options: StreamOptions) -> Self {
        Self { options, plain: None, encrypted: None }
    }

    /// Sends one request and waits for the head of its answer, whatever its status.
    pub(crate) fn send(
        &mut self,
        method: Method<'_>,
        url: &Url,
        headers: &[(String, String)],
    ) -> Result<StreamingResponse, HttpError> {
        let request = Request { timeout_total: self.options.stall_timeout, ..Request::get(url.shown()) };
        let agent = self.agent_for(url)?;
        let target = url.text();
        let proxy = proxy_for(url)?;
        // A long body takes long: only a stall is an error, or a server that does not answer at all.
        let answer = match method {
            Method::Get => with_headers(agent.get(&target), headers).config().proxy(proxy).build().call(),
            Method::Head => with_headers(agent.head(&target), headers).config().proxy(proxy).build().call(),
            Method::Post(form) => with_headers(agent.post(&target), headers)
                .content_type("application/x-www-form-urlencoded")
                .config()
                .proxy(proxy)
                .build()
                .send(form),
        };
        let (head, body) = answer.map_err(|error| error::explain(error, &request))?.into_parts();
        let body = body.into_with_config().limit(u64::MAX).reader();
        let pace = self.options.least_rate.map(Pace::of);
        Ok(StreamingResponse { status: head.status.as_u16(), headers: head.headers, body, request, pace })
    }

    fn agent_for(&mut self, url: &Url) -> Result<Agent, HttpError> {
        let encrypted = url.is_encrypted();
        let known = if encrypted { &self.encrypted } else { &self.plain };
        if let Some(agent) = known {
            return Ok(agent.clone());
        }
        let config = Agent::config_builder()
            .tls_config(tls_config(&self.options, encrypted)?)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("agent/", env!("CARGO_PKG_VERSION")))
            .accept_encoding(AutoHeaderValue::None)
            .accept(AutoHeaderValue::None)
            .timeout_connect(Some(self.options.connect_timeout))
            .timeout_recv_response(Some(self.options.stall_timeout))
            .timeout_per_read(Some(self.options.stall_timeout))
            .timeout_per_write(Some(self.options.stall_timeout))
            .input_buffer_size(BUFFER_BYTES)
            .output_buffer_size(BUFFER_BYTES)
            .max_idle_connections(1)
            .max_idle_connections_per_host(1)
            .build();
        let agent = Agent::new_with_config(config);
        *(if encrypted { &mut self.encrypted } else { &mut self.plain }) = Some(agent.clone());
        Ok(agent)
    }
}

fn with_headers<B>(
    mut call: ureq::RequestBuilder<B>,
    headers: &[(String, String)],
) -> ureq::RequestBuilder<B> {
    for (name, value) in headers {
        call = call.header(name, value);
    }
    call
}

fn tls_config(options: &StreamOptions, encrypted: bool) -> Result<TlsConfig, HttpError> {
    let mut authorities = Vec::new();
    if encrypted && !options.skip_verify {
        match Roots::find(true, None) {
            Ok(roots) => authorities = roots.path().map(read_certificates).transpose()?.unwrap_or_default(),
            // Configured authorities are enough.
            Err(_) if !options.ca_files.is_empty() => {}
            Err(error) => return Err(error),
        }
        for path in &options.ca_files {
            authorities.extend(read_certificates(path)?);
        }
    }
    let client = options.client.as_ref().filter(|_| encrypted).map(ClientFiles::load).transpose()?;
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::new_with_certs(&authorities))
        .client_cert(client)
        .disable_verification(options.skip_verify)
        .unversioned_rustls_crypto_provider(tls_provider())
        .build())
}

fn proxy_for(url: &Url) -> Result<Option<Proxy>, HttpError> {
    let failed = |reason: String| HttpError::Proxy { url: url.shown(), reason };
    let chosen = proxy::choose(url, &|name| std::env::var(name).ok());
    match chosen.map_err(|bad| failed(format!("{}: {}", bad.variable, bad.problem)))? {
        // The client's error would contain the password.
        Some(text) => Proxy::new(&text).map(Some).map_err(|_| failed("not a proxy URL".to_owned())),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_below_minimum_over_a_full_window_is_reported() {
        let rule = LeastRate { bytes_per_second: 100, window: Duration::from_secs(60) };
        let mut pace = Pace::of(rule);
        // Half of a window at twice the least rate, then as much silence.
        assert_eq!(pace.note(Duration::from_secs(30), 6000), Ok(()));
        assert_eq!(pace.note(Duration::from_secs(30), 0), Ok(()));
        // A new window: the bytes of the last one do not count.
        assert_eq!(pace.note(Duration::from_secs(59), 1), Ok(()));
        assert_eq!(pace.note(Duration::from_secs(1), 5000), Err(5001));
    }
}
