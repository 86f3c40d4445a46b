//! The node's certificates: asked for, waited for, kept and renewed in time. One task for each: the identity at the
//! API server, and with `serverTLSBootstrap` the serving certificate.
//!
//! Expected flow: while there is no usable pair, and when the pair is due, a request is created under a name that
//! follows from its key, which is on disk until the certificate is. So whatever is interrupted goes on where it was:
//! the key is found again, with it the name, with it the request. A request that is denied costs its key.
//!
//! Guarantees: the earlier pair stays until the next one is durable; nothing here ends the agent or a pod; without a
//! certificate, an identity to ask with or an address the task waits. A nudge (a new bootstrap kubeconfig, another
//! address) is acted on at once.

pub(crate) mod deadline;
pub(crate) mod files;
pub(crate) mod request;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use rcgen::PublicKeyData as _;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::cluster::client::Client;
use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::request::{ResourcePath, WatchQuery};
use crate::cluster::client::transport::{Accept, Lane, Transport};
use crate::cluster::watch::frames::WatchEvent;
use crate::model::back_off::Retry;
use crate::model::types::Timestamp;
use crate::node::object::NodeState;
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::sys::dir::make_dir;
use crate::platform::sys::durable::write_durably;
use crate::platform::sys::inotify::{Change, InotifyEvent, Interest, Watcher};
use deadline::{Beginning, NamedPair, Usability, usable, validity};
use files::{ClusterEntry, PairError, PairFiles, kubeconfig_of_pair};
use request::{CertificateSigner, RequestOutcome, RequestTemplate};

/// As upstream: then the request is looked up again.
const LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);
/// As upstream: 2 s, doubled, then every 32 s.
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LAST_RETRY: Duration = Duration::from_secs(32);
/// Of a watch; the request itself is given up after [`LONGEST_WAIT`].
const WATCH_SECONDS: u32 = 600;
/// After a watch that broke.
const NEXT_LOOK: Duration = Duration::from_secs(1);
/// The wall clock may jump while the task sleeps.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// Until a directory can be watched.
const NEXT_WATCH: Duration = Duration::from_secs(60);

/// What others see of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CertificateState {
    pub stage: CertificateStage,
    /// Why there is no new one, empty when all is well.
    pub trouble: String,
}

/// Where a certificate is in its life. A pair that is being renewed is `Current` until it expires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum CertificateStage {
    /// There is none.
    #[default]
    Unsigned,
    /// There is none, and the request of this name waits.
    Requested { name: String },
    /// Valid until, renewed at.
    Current { until: Timestamp, renews: Timestamp },
    /// It was valid until then.
    Expired { until: Timestamp },
}

/// Why a request brought no certificate.
#[derive(Debug, thiserror::Error)]
enum NoCertificate {
    #[error(transparent)]
    Files(#[from] PairError),
    #[error("generate a certificate request")]
    Make(#[source] rcgen::Error),
    /// Only a nudge helps, or a clock that is set.
    #[error("there is neither a valid client certificate nor a bootstrap kubeconfig to ask for one with")]
    NoIdentity,
    #[error("cannot create certificate signing request")]
    Create(#[source] ApiError),
    #[error("cannot retrieve certificate signing request")]
    Get(#[source] ApiError),
    /// It is asked for again, under the same name.
    #[error("csr {0:?} was deleted")]
    Deleted(String),
    /// No certificate will come of it: the next request has another name.
    #[error("{0}")]
    Ended(String),
    #[error("certificate signing request {0:?} was not signed within 15 minutes")]
    NotSigned(String),
}

/// Writes what the node begins with. True: the pair is to be renewed at once.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn prepare(
    beginning: Beginning,
    named: Option<&NamedPair>,
    files: &PairFiles,
    kubeconfig: &Path,
    cluster: &ClusterEntry,
    now: Timestamp,
) -> Result<bool, PairError> {
    let fail = |action| move |source| PairError::File { action, path: kubeconfig.to_owned(), source };
    match (beginning, named) {
        (Beginning::Primed, Some(pair)) => files.update(&pair.certificate, &pair.key, now).map(|()| true),
        (Beginning::Bootstrap, _) => {
            let directory = kubeconfig.parent().unwrap_or(Path::new("/"));
            make_dir(directory, 0o755).map_err(fail("create the directory of"))?;
            let text = kubeconfig_of_pair(cluster, &files.current_path());
            write_durably(kubeconfig, text.as_bytes(), 0o600).map_err(fail("write"))?;
            Ok(false)
        }
        _ => Ok(false),
    }
}

/// Keeps one certificate.
pub(crate) struct Keeper<T> {
    pub signer: CertificateSigner,
    pub node_name: String,
    pub files: PairFiles,
    /// Types and values of the node's addresses.
    pub addresses: Rc<dyn Fn() -> Vec<(String, String)>>,
    /// Who asks, given whether the node's own certificate can be used: the node, else the bootstrap credentials, if
    /// there are any.
    pub identity: Rc<dyn Fn(bool) -> Option<Rc<Client<T>>>>,
    /// `rotateCertificates`; without it a certificate is asked for only when there is none that can be used.
    pub rotate: bool,
    /// What [`prepare`] said.
    pub renew_now: bool,
    pub clock: Clock,
    pub dice: Dice,
    /// The time without a link in the life of the client certificate.
    pub offline: Rc<dyn Fn() -> Duration>,
    /// Wakes the task: addresses or bootstrap credentials have changed.
    pub nudge: Rc<Notify>,
    pub state: watch::Sender<CertificateState>,
}

impl<T: Transport> Keeper<T> {
    pub(crate) async fn run(mut self) {
        let mut retry = Retry::new(FIRST_RETRY, LAST_RETRY);
        let mut unit = self.dice.unit();
        loop {
            let (is_usable, due) = self.observe(unit).await;
            let now = self.clock.now();
            let due = if self.renew_now { now } else { due };
            if due > now {
                self.pause(due.saturating_since(now).min(LONGEST_SLEEP)).await;
                continue;
            }
            let asked = match self.template() {
                // Without an address nothing is asked for.
                None => {
                    self.pause(LONGEST_SLEEP).await;
                    continue;
                }
                Some(template) => {
                    let nudge = Rc::clone(&self.nudge);
                    tokio::select! {
                        biased;
                        // Dropping the request is safe: its key is on disk, and its name follows from it.
                        () = nudge.notified() => continue,
                        asked = self.ask(&template, is_usable) => asked,
                    }
                }
            };
            match asked {
                Ok(()) => {
                    log::info!(signer = self.signer.name(); "Certificate signing request is issued");
                    self.renew_now = false;
                    retry.reset();
                    unit = self.dice.unit();
                    self.state.send_modify(|state| state.trouble.clear());
                }
                Err(error) => {
                    if matches!(error, NoCertificate::Ended(_)) {
                        let files = self.files.clone();
                        rt::blocking("drop private key", move || files.drop_pending_key()).await;
                    }
                    self.report(chain(&error));
                    let wait = match error {
                        NoCertificate::NoIdentity => LONGEST_SLEEP,
                        _ => retry.delay_with(self.dice.unit() / 10.0),
                    };
                    self.pause(wait).await;
                }
            }
        }
    }

    /// Publishes the stage. Whether the current pair can be used, and when the next one is to be asked for.
    async fn observe(&self, unit: f64) -> (bool, Timestamp) {
        let files = self.files.clone();
        let read = rt::blocking("read certificate", move || files.current()).await;
        let pair = read.unwrap_or_else(|error| {
            self.report(chain(&error));
            None
        });
        let now = self.clock.now();
        let Some((pair, validity)) = pair.as_deref().and_then(|pair| Some((pair, validity(pair)?))) else {
            self.publish(CertificateStage::Unsigned);
            return (false, now);
        };
        if usable(validity, now) == Usability::Expired {
            self.publish(CertificateStage::Expired { until: validity.not_after });
            return (false, now);
        }
        let renews = deadline::next(validity, unit, (self.offline)(), now);
        self.publish(CertificateStage::Current { until: validity.not_after, renews });
        if !self.rotate {
            return (true, validity.not_after.saturating_add(Duration::from_secs(1)));
        }
        let is_other = self.template().is_some_and(|template| !request::satisfies(pair, &template));
        (true, if is_other { now } else { renews })
    }

    fn template(&self) -> Option<RequestTemplate> {
        match self.signer {
            CertificateSigner::Client => Some(request::client_template(&self.node_name)),
            CertificateSigner::Serving => request::serving_template(&self.node_name, &(self.addresses)()),
        }
    }

    async fn ask(&self, template: &RequestTemplate, is_usable: bool) -> Result<(), NoCertificate> {
        let client = (self.identity)(is_usable).ok_or(NoCertificate::NoIdentity)?;
        let files = self.files.clone();
        let key = rt::blocking("read private key", move || files.pending_key()).await?;
        let public_key = key.subject_public_key_info();
        let name = request::request_name(template, &public_key);
        let request = request::request_pem(template, &key).map_err(NoCertificate::Make)?;
        let body = request::body(&name, self.signer, &request);
        let object = match client.create(Lane::Main, &resource(""), &body).await {
            Ok(object) => object,
            Err(error) if error.kind == ApiErrorKind::AlreadyExists => {
                let found = client.get(Lane::Main, &resource(&name), Accept::Json).await;
                let found = found.map_err(NoCertificate::Get)?;
                let checked = request::check_found(&found, template, &public_key, self.clock.now());
                checked.map_err(NoCertificate::Ended)?;
                found
            }
            Err(error) => return Err(NoCertificate::Create(error)),
        };
        if !is_usable {
            self.publish(CertificateStage::Requested { name: name.clone() });
        }
        let waited = timeout(LONGEST_WAIT, issued(&client, &name, object)).await;
        let certificate = waited.map_err(|_| NoCertificate::NotSigned(name))??;
        let (files, now) = (self.files.clone(), self.clock.now());
        match rt::blocking("store certificate", move || files.complete(&certificate, now)).await {
            Err(error @ PairError::OtherKey) => Err(NoCertificate::Ended(error.to_string())),
            other => Ok(other?),
        }
    }

    /// Until then, or until a nudge.
    async fn pause(&self, time: Duration) {
        tokio::select! {
            biased;
            // Dropping it is safe: a nudge that nothing waits for is kept.
            () = self.nudge.notified() => {}
            () = sleep(time) => {}
        }
    }

    fn publish(&self, stage: CertificateStage) {
        self.state.send_if_modified(|state| {
            let is_news = state.stage != stage;
            state.stage = stage;
            is_news
        });
    }

    /// Logs a trouble once, until it is another one.
    fn report(&self, trouble: String) {
        if self.state.borrow().trouble != trouble {
            log::warn!(signer = self.signer.name(), err = trouble.as_str(); "No certificate yet, will retry");
            self.state.send_modify(|state| state.trouble = trouble);
        }
    }
}

/// Where the certificate is that the cluster signs for the node's API, with its key.
#[must_use]
pub(crate) fn serving_pair_file(directory: &Path) -> PathBuf {
    directory.join(format!("{}-current.pem", CertificateSigner::Serving.file_prefix()))
}

/// Keeps the serving certificate (`serverTLSBootstrap`) in `--cert-dir`, for the addresses that the node has now. As
/// upstream, it is always renewed, and only the node itself asks for it. `nudge` says that addresses have changed.
///
/// # Errors
/// An update that was interrupted cannot be completed.
pub(crate) fn keep_serving<T: Transport>(
    client: Rc<Client<T>>,
    directory: &Path,
    node: Rc<dyn Fn() -> NodeState>,
    (clock, dice): (Clock, Dice),
    offline: Rc<dyn Fn() -> Duration>,
    nudge: Rc<Notify>,
) -> Result<(JoinHandle<()>, watch::Receiver<CertificateState>), PairError> {
    let (state, shown) = watch::channel(CertificateState::default());
    let keeper = Keeper {
        signer: CertificateSigner::Serving,
        node_name: node().name,
        files: PairFiles::open(directory, CertificateSigner::Serving.file_prefix())?,
        addresses: Rc::new(move || {
            let node = node();
            let named = |kind: &str, address: String| (kind.to_owned(), address);
            let internal = node.addresses.into_iter().map(|address| named("InternalIP", address));
            internal.chain([named("Hostname", node.hostname)]).collect()
        }),
        identity: Rc::new(move |_| Some(Rc::clone(&client))),
        rotate: true,
        renew_now: false,
        clock,
        dice,
        offline,
        nudge,
        state,
    };
    Ok((rt::spawn("cluster serving certificate", keeper.run()), shown))
}

fn resource(name: &str) -> ResourcePath {
    ResourcePath::whole("certificates.k8s.io", "certificatesigningrequests", name)
}

/// Waits for the certificate (PEM) of a request. After a watch that broke, and while the link is down, the request
/// is looked up again.
async fn issued<T: Transport>(
    client: &Client<T>,
    name: &str,
    mut object: Value,
) -> Result<String, NoCertificate> {
    let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    loop {
        match request::outcome(&object, &uid) {
            RequestOutcome::Issued(certificate) => return Ok(certificate),
            RequestOutcome::Ended(why) => return Err(NoCertificate::Ended(why)),
            RequestOutcome::Waiting => {}
        }
        match changed(client, name, &object).await {
            Some(Ok(next)) => object = next,
            Some(Err(error)) => return Err(error),
            None => {
                sleep(NEXT_LOOK).await;
                match client.get(Lane::Main, &resource(name), Accept::Json).await {
                    Ok(next) => object = next,
                    Err(error) if error.kind == ApiErrorKind::NotFound => {
                        return Err(NoCertificate::Deleted(name.to_owned()));
                    }
                    Err(_) => {}
                }
            }
        }
    }
}

/// The object's next state; `None` when the watch ends without one.
async fn changed<T: Transport>(
    client: &Client<T>,
    name: &str,
    object: &Value,
) -> Option<Result<Value, NoCertificate>> {
    let query = WatchQuery {
        fields: format!("metadata.name={name}"),
        version: object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned(),
        initial: false,
        bookmarks: false,
        seconds: WATCH_SECONDS,
    };
    let mut frames = client.watch(&resource(""), &query).await.ok()?;
    loop {
        match frames.next().await? {
            Ok(WatchEvent::Put(item)) => return Some(Ok(item.value)),
            Ok(WatchEvent::Deleted(_)) => return Some(Err(NoCertificate::Deleted(name.to_owned()))),
            Ok(WatchEvent::Bookmark { .. }) => {}
            Ok(WatchEvent::Failed(_)) | Err(_) => return None,
        }
    }
}

/// Nudges whenever a file (the bootstrap kubeconfig) is written or put in place. Never ends.
pub(crate) async fn watch_file(path: PathBuf, nudge: Rc<Notify>) {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut events = Vec::new();
    loop {
        let watcher = Watcher::new().and_then(|watcher| {
            watcher.watch(directory, Interest::Contents)?;
            Ok(watcher)
        });
        if let Ok(watcher) = watcher {
            // It may have been written before it was watched.
            if path.exists() {
                nudge.notify_one();
            }
            let mut is_there = true;
            while is_there && watcher.read(&mut events).await.is_ok() {
                for event in events.drain(..) {
                    match event {
                        InotifyEvent::Entry { name, change: Change::Written | Change::MovedIn, .. }
                            if Some(name.as_os_str()) == path.file_name() =>
                        {
                            nudge.notify_one();
                        }
                        InotifyEvent::Overflow => nudge.notify_one(),
                        InotifyEvent::Directory { ended: true, .. } => is_there = false,
                        _ => {}
                    }
                }
            }
        }
        // No directory yet, or it is gone.
        sleep(NEXT_WATCH).await;
    }
}

#[cfg(test)]
mod tests;
