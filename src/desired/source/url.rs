//! Pods from a URL: `http`, `https` or `file`, requested at once and then every `httpCheckFrequency`.
//!
//! Owns the URL's last answer: the good pods, the validators, the problem.

use std::path::PathBuf;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::file::read::{ReadError, read_manifest_file};
use super::manifest::{MAX_MANIFEST_BYTES, parse_manifest};
use super::{
    Accept, Accepts, REASON_EMPTY, REASON_INVALID_MANIFEST, REASON_UNAVAILABLE, REASON_UNTRUSTED, Remembered,
    SHORTEST_PERIOD, ignored_problems, is_trusted_answer, keep_last_good, keep_last_good_objects,
    next_accept, problems_with_since,
};
use crate::codec::signature::{Newest, SignatureError, VerifyKey};
use crate::model::api::record::record;
use crate::model::source::{ManifestOrigin, SourceAnswer, SourceProblem, SourceSet, SourceUpdate};
use crate::model::types::PodSource;
use crate::platform::clock::Clock;
use crate::platform::http::{ClientFiles, HttpClient, HttpError, Request, Response, shown_url};
use crate::platform::logging::chain;

/// Upstream's timeout for one request, body included.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Servers refuse longer headers.
const MAX_TOKEN_BYTES: usize = 8 * 1024;

#[derive(Clone, Debug)]
pub(crate) struct UrlConfig {
    /// `staticPodURL`.
    pub url: String,
    /// `staticPodURLHeader`: name and value; a name with several values is repeated.
    pub headers: Vec<(String, String)>,
    /// `httpCheckFrequency`: the time between two requests.
    pub check_frequency: Duration,
    /// Trust these authorities instead of the system's.
    pub ca_file: Option<PathBuf>,
    pub client: Option<ClientFiles>,
    /// A file with a bearer token, read for each request: it may be renewed at any time.
    pub token_file: Option<PathBuf>,
    /// A file with a public key: an answer that is not signed with it is invalid.
    pub verify_key_file: Option<PathBuf>,
    pub node_name: String,
}

/// The source `http`.
#[derive(Debug)]
pub(crate) struct UrlSource {
    config: UrlConfig,
    http: HttpClient,
    clock: Clock,
    /// The URL without its password: the origin of its pods.
    location: String,
    /// The validator of the good pods.
    validator: Option<Validator>,
    /// The digest of the last body that was valid as a whole.
    digest: Option<[u8; 32]>,
    good: SourceSet,
    /// The last good set is not empty, even if it is from another URL.
    has_content: bool,
    /// The server has sent a non-empty answer since the start: a later empty list is believed.
    has_sent_content: bool,
    /// The user has confirmed that an empty list is intended.
    is_accepted: bool,
    /// The newest signature that was seen.
    newest: Option<Newest>,
    problems: Vec<SourceProblem>,
    /// The ignored fields of the last good body.
    ignored: Vec<SourceProblem>,
    last_sent: Option<Told>,
    accepts: Accepts,
}

/// The last update, as far as it decides whether the next one is sent.
#[derive(Clone, Debug, PartialEq)]
struct Told {
    answered: bool,
    problems: Vec<SourceProblem>,
    newest: Option<Newest>,
}

record! {
    /// Stored with the pods, so that after a restart an unchanged answer need not be sent again.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    struct Validator as camelCase {
        url: String,
        etag: Option<String>,
        last_modified: Option<String>,
        /// The fingerprint of the key that verified the body.
        #[serde(skip_serializing_if = "unset")]
        key: Option<String>,
    }
}

/// Why a request gave no pods.
#[derive(Debug, thiserror::Error)]
enum PollError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("{location}: {source}")]
    File { location: String, source: ReadError },
    #[error("{location}: {status_line}")]
    Status { location: String, status_line: String },
    #[error(
        "{location}: {status_line} from {other_origin} after a redirect: headers, token and client \
         certificate are only sent to the configured origin; configure the redirect target as URL"
    )]
    Elsewhere { location: String, status_line: String, other_origin: String },
    #[error("{location}: 304 Not Modified, but the request was not conditional")]
    UnexpectedNotModified { location: String },
    #[error("{location}: must be file:///absolute/path")]
    FileUrl { location: String },
    #[error("read the bearer token in {}", path.display())]
    ReadToken { path: PathBuf, source: ReadError },
    #[error("{}: a bearer token must be one line of visible ASCII characters", path.display())]
    Token { path: PathBuf },
    #[error("read the signature key in {}", path.display())]
    ReadKey { path: PathBuf, source: ReadError },
    #[error("{}", path.display())]
    Key { path: PathBuf, source: SignatureError },
    #[error("{location}: no signature found at {signature}")]
    Unsigned { location: String, signature: String, source: Box<PollError> },
    #[error("{location}")]
    Signature { location: String, source: SignatureError },
}

impl PollError {
    fn reason(&self) -> &'static str {
        match self {
            Self::ReadKey { .. } | Self::Key { .. } | Self::Unsigned { .. } | Self::Signature { .. } => {
                REASON_UNTRUSTED
            }
            _ => REASON_UNAVAILABLE,
        }
    }
}

/// The result of a successful request.
enum Body {
    Unchanged,
    New { bytes: Vec<u8>, content_type: Option<String>, validator: Option<Validator> },
}

impl UrlSource {
    pub(crate) fn new(config: UrlConfig, remembered: Remembered, http: HttpClient, clock: Clock) -> Self {
        let location = shown_url(&config.url);
        let has_content = remembered.has_content();
        let Remembered { good: mut stored, validator, signed } = remembered;
        stored.pods.retain(|pod| pod.origin == location);
        stored.objects.retain(|object| object.origin == location);
        let validator = validator
            .and_then(|text| serde_json::from_str::<Validator>(&text).ok())
            .filter(|validator| validator.url == location);
        Self {
            config,
            http,
            clock,
            location,
            validator,
            digest: None,
            good: stored,
            has_content,
            has_sent_content: false,
            is_accepted: false,
            newest: signed.as_deref().and_then(Newest::parse),
            problems: Vec::new(),
            ignored: Vec::new(),
            last_sent: None,
            accepts: None,
        }
    }

    /// Accepts confirmations of empty answers.
    #[must_use]
    pub(crate) fn accepting(mut self, accepts: mpsc::Receiver<Accept>) -> Self {
        self.accepts = Some(accepts);
        self
    }

    /// Requests, sends the result, waits. Ends when the receiver is closed. Dropping it at any await is safe.
    pub(crate) async fn run(mut self, updates: mpsc::Sender<SourceUpdate>) {
        let mut timer = interval(self.config.check_frequency.max(SHORTEST_PERIOD));
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accept = tokio::select! {
                biased;
                // The receiver is closed; nothing is pending here.
                () = updates.closed() => return,
                // Dropping it is safe: a request stays in its channel until it is received.
                accept = next_accept(&mut self.accepts) => Some(accept),
                // Dropping it is safe: the timer keeps the tick.
                _ = timer.tick() => None,
            };
            self.is_accepted = accept.is_some();
            if let Some(update) = self.poll().await
                && updates.send(update).await.is_err()
            {
                return;
            }
            if let Some(accept) = accept {
                // The client has disconnected: the answer stays accepted.
                let _ = accept.send(self.last_sent.as_ref().is_some_and(|told| told.answered));
            }
        }
    }

    /// Sends one request; returns the update if something has changed.
    pub(crate) async fn poll(&mut self) -> Option<SourceUpdate> {
        match self.fetch().await {
            Ok(Body::Unchanged) => {
                self.has_sent_content = true;
                self.repeat_update()
            }
            Ok(Body::New { bytes, content_type, validator }) => self.accept(&bytes, content_type, validator),
            Err(error) => {
                let message = chain(&error);
                // A problem is reported once to the user; the debug log has every occurrence.
                log::debug!(url = self.location.as_str(), err = message.as_str(); "No valid response from \
                     static pod URL");
                let problems = self.problems(error.reason(), vec![message]);
                self.next_update(false, problems, false)
            }
        }
    }

    async fn fetch(&mut self) -> Result<Body, PollError> {
        let key = self.verify_key()?;
        let fingerprint = key.as_ref().map(|key| key.fingerprint().to_owned());
        // A body that was verified without a key, or with another one, has to be sent again.
        let known = self.validator.clone().filter(|known| known.key == fingerprint).unwrap_or_default();
        let mut body = self.get(&self.config.url, known).await?;
        if let (Some(key), Body::New { bytes, validator, .. }) = (&key, &mut body) {
            let newest = self.verify(key, bytes).await?;
            self.newest = newest.or(self.newest.take());
            if let Some(validator) = validator {
                validator.key = fingerprint;
            }
        }
        Ok(body)
    }

    async fn get(&self, url: &str, known: Validator) -> Result<Body, PollError> {
        let location = || shown_url(url);
        if let Some(path) = url.strip_prefix("file://") {
            if !path.starts_with('/') {
                return Err(PollError::FileUrl { location: location() });
            }
            let (bytes, _) = read_manifest_file(path.as_ref())
                .map_err(|source| PollError::File { location: location(), source })?;
            return Ok(Body::New { bytes, content_type: None, validator: None });
        }
        let conditional = known.etag.is_some() || known.last_modified.is_some();
        let mut headers = self.config.headers.clone();
        headers.extend(self.authorization()?);
        let request = Request {
            url: url.to_owned(),
            headers,
            timeout_total: TIMEOUT,
            max_body: MAX_MANIFEST_BYTES,
            ca_file: self.config.ca_file.clone(),
            client: self.config.client.clone(),
            if_none_match: known.etag,
            if_modified_since: known.last_modified,
        };
        let response = self.http.get(request).await?;
        match response.status {
            200 => Ok(self.new_body(response)),
            304 if conditional => Ok(Body::Unchanged),
            304 => Err(PollError::UnexpectedNotModified { location: location() }),
            _ => {
                let (location, Response { status_line, other_origin, .. }) = (location(), response);
                Err(match other_origin {
                    Some(other_origin) => PollError::Elsewhere { location, status_line, other_origin },
                    None => PollError::Status { location, status_line },
                })
            }
        }
    }

    fn authorization(&self) -> Result<Option<(String, String)>, PollError> {
        let Some(path) = &self.config.token_file else { return Ok(None) };
        let (bytes, _) =
            read_manifest_file(path).map_err(|source| PollError::ReadToken { path: path.clone(), source })?;
        let token = bytes.trim_ascii();
        let good =
            !token.is_empty() && token.len() <= MAX_TOKEN_BYTES && token.iter().all(u8::is_ascii_graphic);
        if !good {
            return Err(PollError::Token { path: path.clone() });
        }
        Ok(Some(("Authorization".to_owned(), format!("Bearer {}", String::from_utf8_lossy(token)))))
    }

    fn verify_key(&self) -> Result<Option<VerifyKey>, PollError> {
        let Some(path) = &self.config.verify_key_file else { return Ok(None) };
        let (bytes, _) =
            read_manifest_file(path).map_err(|source| PollError::ReadKey { path: path.clone(), source })?;
        let key = VerifyKey::parse(&String::from_utf8_lossy(&bytes))
            .map_err(|source| PollError::Key { path: path.clone(), source })?;
        Ok(Some(key))
    }

    async fn verify(&self, key: &VerifyKey, body: &[u8]) -> Result<Option<Newest>, PollError> {
        let url = signature_url(&self.config.url);
        let location = || self.location.clone();
        let found = self.get(&url, Validator::default()).await.map_err(|error| PollError::Unsigned {
            location: location(),
            signature: shown_url(&url),
            source: Box::new(error),
        })?;
        let Body::New { bytes: signature, .. } = found else {
            return Err(PollError::UnexpectedNotModified { location: shown_url(&url) });
        };
        key.verify_newer(body, &signature, self.newest.as_ref())
            .map_err(|source| PollError::Signature { location: location(), source })
    }

    fn new_body(&self, response: Response) -> Body {
        let Response { etag, last_modified, content_type, body, .. } = response;
        let named = etag.is_some() || last_modified.is_some();
        let validator =
            named.then(|| Validator { url: self.location.clone(), etag, last_modified, key: None });
        Body::New { bytes: body, content_type, validator }
    }

    /// Upstream remembers a body before it has parsed it, and later takes a broken one for unchanged; here
    /// only a body that is valid as a whole is remembered.
    fn accept(
        &mut self,
        bytes: &[u8],
        content_type: Option<String>,
        validator: Option<Validator>,
    ) -> Option<SourceUpdate> {
        let digest: [u8; 32] = Sha256::digest(bytes).into();
        if self.digest == Some(digest) {
            self.validator = validator;
            return self.repeat_update();
        }
        let origin = ManifestOrigin { source: PodSource::Http, location: self.location.clone() };
        let parsed = parse_manifest(bytes, &origin, &self.config.node_name);
        for warning in &parsed.warnings {
            log::warn!(url = self.location.as_str(), warning = warning.as_str(); "Manifest has warnings");
        }
        let (now, whole) = (self.clock.now(), parsed.is_complete());
        let nothing = !whole && parsed.pods.is_empty() && parsed.objects.is_empty();
        let good = SourceSet {
            pods: keep_last_good(parsed.pods, whole, &self.good.pods, &origin, now),
            objects: keep_last_good_objects(parsed.objects, whole, &self.good.objects, &origin, now),
        };
        let is_empty = whole && good.pods.is_empty() && good.objects.is_empty();
        // With a signature that cannot be a replay, an empty answer is deliberate.
        let is_dated = self.config.verify_key_file.is_some() && self.newest.is_some();
        let same_speaker = self.has_sent_content || is_dated || self.is_accepted;
        if !is_trusted_answer(is_empty, self.has_content, same_speaker) {
            let message = format!(
                "{}: the list is empty, and has been since the agent started. Its pods keep running. Serve \
                 the pods, or confirm their removal: agent source accept http",
                self.location
            );
            let problems = self.problems(REASON_EMPTY, vec![message]);
            return self.next_update(false, problems, false);
        }
        if whole {
            self.has_sent_content |= !is_empty;
            self.has_content = !is_empty;
        }
        let changed = good != self.good;
        self.good = good;
        let hint = content_type.filter(|kind| kind.contains("html"));
        let problems = parsed
            .problems
            .into_iter()
            .map(|problem| match &hint {
                Some(kind) => {
                    format!("{problem} (content type {kind}: is this a web page instead of a manifest?)")
                }
                None => problem,
            })
            .collect();
        let mut problems = self.problems(REASON_INVALID_MANIFEST, problems);
        self.ignored = ignored_problems(parsed.ignored, &self.location, &self.problems, now);
        problems.extend(self.ignored.iter().cloned());
        if whole {
            (self.digest, self.validator) = (Some(digest), validator);
        } else {
            // Request the whole body again, also after a restart: otherwise a 304 would hide the problem.
            (self.digest, self.validator) = (None, None);
        }
        self.next_update(!nothing, problems, changed)
    }

    /// The last answer is still in effect, and so are its ignored parts.
    fn repeat_update(&mut self) -> Option<SourceUpdate> {
        self.next_update(true, self.ignored.clone(), false)
    }

    fn problems(&self, reason: &str, messages: Vec<String>) -> Vec<SourceProblem> {
        problems_with_since(messages, reason, &self.location, &self.problems, self.clock.now())
    }

    fn next_update(
        &mut self,
        answered: bool,
        problems: Vec<SourceProblem>,
        changed: bool,
    ) -> Option<SourceUpdate> {
        self.problems = problems;
        let told = Told { answered, problems: self.problems.clone(), newest: self.newest.clone() };
        // A new validator alone is not sent: some servers always report the current time as the modification
        // time.
        if !changed && self.last_sent.as_ref() == Some(&told) {
            return None;
        }
        self.last_sent = Some(told);
        Some(SourceUpdate {
            source: PodSource::Http,
            answer: if answered { SourceAnswer::Pods(self.good.pods.clone()) } else { SourceAnswer::Unknown },
            objects: if answered { self.good.objects.clone() } else { Vec::new() },
            problems: self.problems.clone(),
            validator: self.validator.as_ref().and_then(|validator| serde_json::to_string(validator).ok()),
            signed: self.newest.as_ref().map(Newest::to_text),
        })
    }
}

/// The URL of the signature of `url`: beside it, before any query.
fn signature_url(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let (path, query) = url.split_at(end);
    format!("{path}{}{query}", VerifyKey::EXTENSION)
}

#[cfg(test)]
mod tests;
