//! Images for containers: checks for them, pulls them by the pull policy, and backs off after failures
//! (upstream: image manager).
//!
//! Owns pull slots, the pull rate and pull back-off.

pub(super) mod keyring;
pub mod pull_records;

mod credentials;
mod records;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::model::back_off::BackOffLimits;
use crate::model::image_name::{PullDecision, apply_default_tag, decide_pull};
use crate::model::ordered::Sortable as _;
use crate::model::types::{PodRef, PodUid, Timestamp, go_duration};
use crate::platform::clock::Clock;
use crate::platform::metrics::{self, Family};
use crate::platform::rt::live::Live;
use crate::pod::events::{EventRecorder, EventType};
use crate::pod::image::pull_records::{Access, Opened, PullSecret, Verification, access};
use crate::pod::start::Pull;
use crate::runtime::{ErrorKind, ImageStatus, Runtime, SandboxConfig};
use credentials::{Credentials, ImageCredentials, Puller};
use records::PullRecords;

pub(crate) use credentials::{
    AccountAnswer, CredentialsConfig, ImageLogins, PodSecret, ServiceAccounts, node_logins,
};
pub(crate) use records::Prunable;

static PULL_DURATION: Family = Family::seconds(
    "kubelet_image_pull_duration_seconds",
    "Duration in seconds to pull an image, by image size",
    &["image_size_in_bytes"],
)
.with_buckets(&[
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 180.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
]);

/// Upstream's classes of sizes: up to so many MB, and their names.
const SIZES: [(u64, &str); 11] = [
    (10, "0-10MB"),
    (100, "10MB-100MB"),
    (500, "100MB-500MB"),
    (1 << 10, "500MB-1GB"),
    (5 << 10, "1GB-5GB"),
    (10 << 10, "5GB-10GB"),
    (20 << 10, "10GB-20GB"),
    (30 << 10, "20GB-30GB"),
    (40 << 10, "30GB-40GB"),
    (60 << 10, "40GB-60GB"),
    (100 << 10, "60GB-100GB"),
];

fn size_label(bytes: u64) -> &'static str {
    SIZES.iter().find(|(most, _)| bytes < most << 20).map_or("GT100GB", |(_, name)| name)
}

/// Concurrent pulls without a configured limit: enough to keep a slow link busy, few enough for a small
/// machine.
const DEFAULT_PARALLEL_PULLS: usize = 10;
/// A back-off that was not used for this long is forgotten (upstream: twice the longest back-off).
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// How long a status shows `ErrImagePull` before it turns into `ImagePullBackOff`.
const TELL_BACK_OFF_AFTER: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct ImageConfig {
    /// `serializeImagePulls`: one at a time.
    pub serialize: bool,
    /// `maxParallelImagePulls`.
    pub max_parallel: Option<usize>,
    /// `registryPullQPS`; 0 is unlimited.
    pub qps: u32,
    /// `registryBurst`.
    pub burst: u32,
    /// Where the node's own credentials are.
    pub credentials: CredentialsConfig,
    /// `imagePullCredentialsVerificationPolicy` and its list.
    pub verification: Verification,
    /// The kubelet's root directory, where pulls are recorded; without one they are not.
    pub records_root: Option<PathBuf>,
}

impl Default for ImageConfig {
    fn default() -> Self {
        Self {
            serialize: true,
            max_parallel: None,
            qps: 5,
            burst: 10,
            credentials: CredentialsConfig::default(),
            verification: Verification::default(),
            records_root: None,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct ImageRequest<'a> {
    pub pod: &'a PodRef,
    /// For events: `spec.containers{web}`.
    pub field_path: &'a str,
    /// The image as written in the spec.
    pub image: &'a str,
    /// `imagePullPolicy`.
    pub policy: &'a str,
    /// The pod's sandbox, which some runtimes want for pulls.
    pub sandbox: &'a SandboxConfig,
    /// Those of the pod's `imagePullSecrets` that exist.
    pub secrets: &'a [PodSecret],
    /// The pod's service account in the cluster; empty without one.
    pub account: &'a str,
}

impl<'a> ImageRequest<'a> {
    fn puller(&self) -> Puller<'a> {
        Puller { pod: self.pod, account: self.account }
    }
}

/// Why a container, or its pod's sandbox, cannot be started yet, as its status shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartFailure {
    /// A Kubernetes waiting or event reason: `ErrImagePull`, `ImagePullBackOff`, `CreateContainerError`...
    pub reason: &'static str,
    pub message: String,
    /// When to retry; `None` when only a changed manifest can help.
    pub retry_after: Option<Duration>,
}

struct PullBackOff {
    delay: Duration,
    failed_at: Timestamp,
    /// Reason and message.
    last_error: String,
}

/// Failures that a runtime marks by a prefix of its message, with upstream's reason for them
/// (`evalCRIPullErr`).
const NAMED_FAILURES: [(&str, &str); 2] = [
    ("RegistryUnavailable", "because the registry is unavailable"),
    ("SignatureValidationFailed", "because the signature validation failed"),
];

/// The reason and the message of a status for the runtime's pull error.
fn explain_failure(image: &str, message: String) -> (&'static str, String) {
    for (reason, words) in NAMED_FAILURES {
        if let Some(rest) = message.strip_prefix(reason) {
            return (reason, format!("image pull failed for {image} {words}{rest}"));
        }
    }
    ("ErrImagePull", message)
}

/// Tokens refill with time; a pull takes one.
struct Bucket {
    tokens: f64,
    filled_at: Timestamp,
}

pub struct ImagePuller<R> {
    runtime: Rc<R>,
    clock: Clock,
    events: EventRecorder,
    config: Live<ImageConfig>,
    credentials: Credentials,
    records: PullRecords,
    limits: BackOffLimits,
    slots: Semaphore,
    bucket: RefCell<Bucket>,
    back_off: RefCell<BTreeMap<(PodUid, String), PullBackOff>>,
}

impl<R: Runtime> ImagePuller<R> {
    #[must_use]
    pub fn new(runtime: Rc<R>, clock: Clock, events: EventRecorder, live: Live<ImageConfig>) -> Self {
        let config = live.get();
        let slots = if config.serialize { 1 } else { config.max_parallel.unwrap_or(DEFAULT_PARALLEL_PULLS) };
        let bucket = Bucket { tokens: f64::from(config.burst), filled_at: clock.now() };
        let credentials = Credentials::new(config.credentials.clone(), clock.clone());
        let records = PullRecords::new(config.records_root.as_deref());
        Self {
            runtime,
            clock,
            events,
            config: live,
            credentials,
            records,
            limits: BackOffLimits::default(),
            slots: Semaphore::new(slots),
            bucket: RefCell::new(bucket),
            back_off: RefCell::default(),
        }
    }

    /// With the service accounts of the cluster that the node belongs to, for credential providers.
    #[must_use]
    pub(crate) fn with_accounts(mut self, accounts: Option<Rc<dyn ServiceAccounts>>) -> Self {
        self.credentials.set_accounts(accounts);
        self
    }

    /// Makes sure that the image is present, by its policy. Dropping the future cancels the pull.
    pub(super) async fn ensure_image(&self, request: ImageRequest<'_>) -> Result<ImageStatus, StartFailure> {
        let image = apply_default_tag(request.image).map_err(|error| StartFailure {
            reason: "InvalidImageName",
            message: format!(
                "Failed to apply default image tag {:?}: couldn't parse image name: {error}",
                request.image
            ),
            retry_after: None,
        })?;
        self.records.adopt(&*self.runtime, self.clock.now()).await;
        let mut present =
            if request.policy == "Always" { None } else { self.inspect(&request, &image).await? };
        if let Some(status) = &present
            && !self.may_use(&request, &image, &status.id).await
        {
            // This pod may not use the present image without a pull: the registry decides.
            present = None;
        }
        match (decide_pull(request.policy, present.is_some()), present) {
            (PullDecision::UsePresent, Some(status)) => {
                let text = format!(
                    "Container image {:?} already present on machine and can be accessed by the pod",
                    request.image
                );
                self.event(&request, EventType::Normal, "Pulled", &text);
                self.back_off.borrow_mut().remove(&(request.pod.uid.clone(), image));
                Ok(status)
            }
            (PullDecision::Refuse, _) => {
                let message =
                    format!("Container image {:?} is not present with pull policy of Never", request.image);
                self.event(&request, EventType::Warning, "ErrImageNeverPull", &message);
                // The image may be imported at any time. The doubling back-off keeps the pod's wait in
                // proportion to that time.
                let reason = "ErrImageNeverPull";
                let key = (request.pod.uid.clone(), image);
                let retry_after = Some(self.lengthen_back_off(key, format!("{reason}: {message}")));
                Err(StartFailure { reason, message, retry_after })
            }
            _ => self.pull(&request, &image).await,
        }
    }

    /// Drops the pull back-offs of a pod; to be called when the pod has been removed.
    pub(crate) fn forget_pod(&self, uid: &PodUid) {
        self.back_off.borrow_mut().retain(|(owner, _), _| owner != uid);
    }

    /// Whether the pod may use the present image without asking the registry.
    async fn may_use(&self, request: &ImageRequest<'_>, image: &str, image_ref: &str) -> bool {
        let config = self.config.get();
        let policy = &config.verification;
        if *policy == Verification::Never {
            return true;
        }
        let known = self.records.find(image, image_ref).await;
        let secrets: Vec<PullSecret> = credentials::logins_of(image, request.secrets)
            .into_iter()
            .filter_map(|found| match found.opens {
                Opened::BySecret(secret) => Some(secret),
                _ => None,
            })
            .collect();
        match access(policy, image, &known, &secrets) {
            Access::Free => true,
            Access::Record(secret) => {
                let opened = Opened::BySecret(secret);
                self.records.note(None, image, image_ref, opened, self.clock.now()).await;
                true
            }
            Access::Pull => {
                self.credentials.opens_as_before(image, known.accounts(image), request.puller()).await
            }
        }
    }

    async fn inspect(
        &self,
        request: &ImageRequest<'_>,
        image: &str,
    ) -> Result<Option<ImageStatus>, StartFailure> {
        self.runtime.image_status(image).await.map_err(|error| {
            let message = format!("Failed to inspect image {:?}: {}", request.image, error.message);
            self.event(request, EventType::Warning, "InspectFailed", &message);
            StartFailure { reason: "ImageInspectError", message, retry_after: Some(self.limits.initial) }
        })
    }

    async fn pull(&self, request: &ImageRequest<'_>, image: &str) -> Result<ImageStatus, StartFailure> {
        let key = (request.pod.uid.clone(), image.to_owned());
        self.check_back_off(request, &key)?;
        // As upstream, including the wait for a slot.
        let _pull = Pull::begin(&request.pod.uid);
        let asked_at = self.clock.now();
        // The semaphore is never closed, so the permit always comes.
        let _slot = self.slots.acquire().await;
        let started_at = self.clock.now();
        self.event(request, EventType::Normal, "Pulling", &format!("Pulling image {:?}", request.image));
        let pulled = if self.take_token() {
            self.pull_and_record(request, image).await
        } else {
            Err("pull QPS exceeded".to_owned())
        };
        match pulled {
            Ok(status) => {
                let now = self.clock.now();
                self.back_off.borrow_mut().remove(&key);
                let text = format!(
                    "Successfully pulled image {:?} in {} ({} including waiting). Image size: {} bytes.",
                    request.image,
                    go_duration(to_millis(now.saturating_since(started_at))),
                    go_duration(to_millis(now.saturating_since(asked_at))),
                    status.size_bytes
                );
                self.event(request, EventType::Normal, "Pulled", &text);
                Ok(status)
            }
            Err(message) => Err(self.note_failure(request, key, message)),
        }
    }

    async fn pull_and_record(&self, request: &ImageRequest<'_>, image: &str) -> Result<ImageStatus, String> {
        let intent = self.records.begin(image).await;
        let intent = intent.map_err(|error| format!("failed to record image pull intent: {error}"))?;
        match self.pull_and_inspect(request, image).await {
            Ok((status, opened)) => {
                self.records.note(Some(intent), image, &status.id, opened, self.clock.now()).await;
                Ok(status)
            }
            Err(message) => {
                self.records.fail(intent).await;
                Err(message)
            }
        }
    }

    async fn pull_and_inspect(
        &self,
        request: &ImageRequest<'_>,
        image: &str,
    ) -> Result<(ImageStatus, Opened), String> {
        let began = tokio::time::Instant::now();
        let logins = self.credentials.lookup(image, request.secrets, request.puller()).await;
        let pull = async |auth| {
            let pulled = self.runtime.pull_image(image, auth, request.sandbox).await;
            pulled.map_err(|error| match error.kind {
                ErrorKind::Unavailable => format!("container runtime is not responding: {}", error.message),
                _ => error.message,
            })
        };
        // As upstream: credentials are tried one by one until a pull succeeds; without any, one anonymous
        // pull.
        let mut pulled = if logins.is_empty() { pull(None).await } else { Err(String::new()) };
        let mut opened = Opened::ByNode;
        let mut refusals = Vec::new();
        for ImageCredentials { auth, opens } in &logins {
            pulled = pull(Some(auth)).await;
            match &pulled {
                Ok(_) => {
                    opened = opens.clone();
                    break;
                }
                Err(message) => refusals.push(message.clone()),
            }
        }
        let reference = pulled.map_err(|message| match refusals.len() {
            0 | 1 => message,
            // Upstream's aggregate error: each message once.
            _ => {
                refusals.order_by(Ord::cmp);
                refusals.dedup();
                if refusals.len() == 1 { message } else { format!("[{}]", refusals.join(", ")) }
            }
        })?;
        let status = self.runtime.image_status(&reference).await.map_err(|error| error.message)?;
        let size = status.as_ref().map_or(0, |status| status.size_bytes);
        metrics::observe(&PULL_DURATION, &[size_label(size)], began.elapsed());
        Ok((status.unwrap_or(ImageStatus { id: reference, ..ImageStatus::default() }), opened))
    }

    fn check_back_off(&self, request: &ImageRequest<'_>, key: &(PodUid, String)) -> Result<(), StartFailure> {
        let now = self.clock.now();
        let waiting = {
            let mut back_off = self.back_off.borrow_mut();
            back_off.retain(|_, entry| now.saturating_since(entry.failed_at) < entry.delay + FORGET_AFTER);
            back_off.get(key).and_then(|entry| {
                let left = entry.delay.saturating_sub(now.saturating_since(entry.failed_at));
                (!left.is_zero()).then(|| (left, entry.last_error.clone()))
            })
        };
        let Some((left, last_error)) = waiting else { return Ok(()) };
        let text = format!("Back-off pulling image {:?}", request.image);
        self.event(request, EventType::Normal, "BackOff", &text);
        Err(StartFailure {
            reason: "ImagePullBackOff",
            message: format!("{text}: {last_error}"),
            retry_after: Some(left),
        })
    }

    fn note_failure(
        &self,
        request: &ImageRequest<'_>,
        key: (PodUid, String),
        message: String,
    ) -> StartFailure {
        let (reason, message) = explain_failure(request.image, message);
        self.event(
            request,
            EventType::Warning,
            "Failed",
            &format!("Failed to pull image {:?}: {message}", request.image),
        );
        self.lengthen_back_off(key, format!("{reason}: {message}"));
        // Retried at once: the next sync finds the back-off, and the status becomes ImagePullBackOff, as
        // users know it.
        StartFailure { reason, message, retry_after: Some(TELL_BACK_OFF_AFTER) }
    }

    /// The first wait, or twice the last one.
    fn lengthen_back_off(&self, key: (PodUid, String), last_error: String) -> Duration {
        let mut back_off = self.back_off.borrow_mut();
        let delay = self.limits.after(back_off.get(&key).map(|entry| entry.delay));
        back_off.insert(key, PullBackOff { delay, failed_at: self.clock.now(), last_error });
        delay
    }

    fn take_token(&self) -> bool {
        let config = self.config.get();
        if config.qps == 0 {
            return true;
        }
        let now = self.clock.now();
        let mut bucket = self.bucket.borrow_mut();
        let refill = now.saturating_since(bucket.filled_at).as_secs_f64() * f64::from(config.qps);
        bucket.tokens = (bucket.tokens + refill).min(f64::from(config.burst.max(1)));
        bucket.filled_at = now;
        let granted = bucket.tokens >= 1.0;
        if granted {
            bucket.tokens -= 1.0;
        }
        granted
    }

    fn event(&self, request: &ImageRequest<'_>, kind: EventType, reason: &str, message: &str) {
        self.events.event(request.pod, Some(request.field_path.to_owned()), kind, reason, message);
    }
}

/// Pull times are reported in milliseconds.
fn to_millis(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_pull_failures_match_upstream() {
        let told = |message: &str| explain_failure("a:v1", message.to_owned());
        assert_eq!(told("no route"), ("ErrImagePull", "no route".to_owned()));
        let signature = "image pull failed for a:v1 because the signature validation failed: who?";
        assert_eq!(
            told("SignatureValidationFailed: who?"),
            ("SignatureValidationFailed", signature.to_owned())
        );
        let registry = "image pull failed for a:v1 because the registry is unavailable";
        assert_eq!(told("RegistryUnavailable"), ("RegistryUnavailable", registry.to_owned()));
    }
}
