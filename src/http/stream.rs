//! Blocking HTTP for whoever runs in a process or thread of its own: bodies are streamed, every answer is one hop.
//!
//! Owns connections, their certificates and their patience. Must not know what is fetched, nor follow redirects: only the
//! caller knows which secrets may travel on.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use ureq::config::AutoHeaderValue;
use ureq::http::HeaderMap;
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Proxy};

use super::tls::{ClientFiles, Roots, read_certificates, tls_provider};
use super::url::Url;
use super::{CHUNK_BYTES, HttpError, Request, error, header};

/// Bytes buffered per connection: a network packet's worth many times over, and small beside a megabyte.
const BUFFER_BYTES: usize = 32 * 1024;
/// What a request may say in its body: a form of a token request.
const MAX_REASON_BYTES: usize = 16 * 1024;

/// How to reach one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// Trusted beside the system's authorities.
    pub ca_files: Vec<PathBuf>,
    /// Who we are.
    pub client: Option<ClientFiles>,
    /// Trust whoever answers.
    pub skip_verify: bool,
    /// For look-up and connecting.
    pub connect_timeout: Duration,
    /// Nothing at all came or went for so long.
    pub stall_timeout: Duration,
}

/// What to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method<'a> {
    /// GET.
    Get,
    /// HEAD.
    Head,
    /// POST with a form.
    Post(&'a str),
}

/// An answer whose body has not been read yet.
pub struct Answer {
    /// 200, 307, 404.
    pub status: u16,
    headers: HeaderMap,
    body: ureq::BodyReader<'static>,
    request: Request,
}

impl Answer {
    /// A header's first value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        header(&self.headers, name)
    }

    /// All values of a header.
    #[must_use]
    pub fn headers(&self, name: &str) -> Vec<String> {
        let values = self.headers.get_all(name).into_iter();
        values.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect()
    }

    /// The next bytes of the body; 0 at its end.
    ///
    /// # Errors
    /// When the connection broke or nothing came for too long.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, HttpError> {
        loop {
            match self.body.read(buffer) {
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error::explain_body(error, &self.request)),
            }
        }
    }

    /// The whole body.
    ///
    /// # Errors
    /// As [`Answer::read`], and when it is longer than `limit`.
    pub fn read_all(&mut self, limit: usize) -> Result<Vec<u8>, HttpError> {
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

    /// What a server says about a refusal, as far as it can be read.
    #[must_use]
    pub fn reason(&mut self) -> Vec<u8> {
        self.read_all(MAX_REASON_BYTES).unwrap_or_default()
    }
}

/// A client of one server, and of where that server redirects to. Certificates are read when TLS is first needed.
#[derive(Clone)]
pub struct StreamClient {
    options: StreamOptions,
    plain: Option<Agent>,
    encrypted: Option<Agent>,
}

impl StreamClient {
    /// Opens nothing yet.
    #[must_use]
    pub fn new(options: StreamOptions) -> Self {
        Self { options, plain: None, encrypted: None }
    }

    /// Sends one request and waits for the head of its answer, whatever its status.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn send(
        &mut self,
        method: Method<'_>,
        url: &Url,
        headers: &[(String, String)],
    ) -> Result<Answer, HttpError> {
        let request = Request { timeout_total: self.options.stall_timeout, ..Request::get(url.shown()) };
        let agent = self.agent_for(url)?;
        let target = url.text();
        let proxy = if url.is_loopback() { None } else { proxy_for(url) };
        // A body that is long takes long: only silence is an error, and that a server does not even answer.
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
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body, request })
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
            // Authorities of one's own are enough.
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

/// The proxy of the environment for this URL, as curl and Go choose it.
fn proxy_for(url: &Url) -> Option<Proxy> {
    let names: [&str; 4] = if url.is_encrypted() {
        ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]
    } else {
        ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"]
    };
    let value = |names: &[&str]| names.iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default();
    let given = Proxy::new(value(&names).trim()).ok()?;
    let mut proxy = Proxy::builder(given.protocol()).host(given.host()).port(given.port());
    if let Some(name) = given.username() {
        proxy = proxy.username(name);
    }
    if let Some(password) = given.password() {
        proxy = proxy.password(password);
    }
    for entry in value(&["NO_PROXY", "no_proxy"]).split(',').map(str::trim).filter(|entry| !entry.is_empty())
    {
        proxy = proxy.no_proxy(entry);
    }
    proxy.build().ok()
}
