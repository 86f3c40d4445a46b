//! From the files of a joining node to a connection: which kubeconfig is used, the certificate that it names, and the
//! bootstrap credentials that ask for the first one.
//!
//! Whatever is missing or broken is reported and tried again: pods do not depend on it.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::cluster::client::h2::{H2Config, H2Transport};
use crate::cluster::client::{Client, ClientConfig};
use crate::cluster::credentials::{Credentials, CredentialsError, read_pem};
use crate::cluster::discovery::cluster_of;
use crate::cluster::kubeconfig::{Kubeconfig, PemSource};
use crate::cluster::pki::deadline::{Beginning, NamedPair, beginning};
use crate::cluster::pki::files::{ClusterEntry, PairError, PairFiles};
use crate::cluster::pki::request::CertificateSigner;
use crate::cluster::pki::{CertificateStage, CertificateState, Keeper, prepare, watch_file};
use crate::cluster::{ClusterParts, ClusterState};
use crate::model::types::Timestamp;
use crate::platform::clock::Clock;
use crate::platform::logging::chain;
use crate::platform::rt;

/// Between attempts to use a kubeconfig that is broken.
const RETRY: Duration = Duration::from_secs(10);

#[derive(Clone, Default)]
pub(crate) struct LoginConfig {
    /// `--kubeconfig`.
    pub kubeconfig: PathBuf,
    /// `--bootstrap-kubeconfig`.
    pub bootstrap: Option<PathBuf>,
    /// `--cert-dir`.
    pub cert_dir: PathBuf,
    /// `rotateCertificates`.
    pub rotate: bool,
    pub user_agent: String,
    /// No certificate is judged at an earlier time.
    pub floor: Timestamp,
}

/// How far the node is with its credentials, for reports.
#[derive(Default)]
pub(crate) struct LoginState {
    server: RefCell<String>,
    /// Why the kubeconfig cannot be used.
    pub problem: RefCell<Option<String>>,
    pub certificate: RefCell<CertificateState>,
    /// Verification of the server's certificate is switched off.
    pub is_insecure: Cell<bool>,
}

impl LoginState {
    /// URL of the apiserver; empty until the kubeconfig has been read.
    pub(crate) fn server(&self) -> String {
        self.server.borrow().clone()
    }
}

#[derive(Debug, thiserror::Error)]
enum LoginError {
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error(transparent)]
    Files(#[from] PairError),
    #[error("bootstrap kubeconfig: {0}")]
    Bootstrap(String),
    #[error("read the bootstrap kubeconfig")]
    Read(#[source] std::io::Error),
}

/// How the node begins.
struct Start {
    beginning: Beginning,
    renew_now: bool,
}

/// Returns once there is a kubeconfig that can be used; certificates may still be missing.
pub(super) async fn open(
    config: &LoginConfig,
    client: ClientConfig,
    parts: &ClusterParts,
    state: &Rc<ClusterState>,
) -> Rc<H2Transport> {
    loop {
        match try_open(config, client, parts, state).await {
            Ok(transport) => {
                *state.login.problem.borrow_mut() = None;
                return transport;
            }
            Err(error) => {
                let why = chain(&error);
                let known = state.login.problem.borrow().clone();
                if known.as_ref() != Some(&why) {
                    log::error!(err = why.as_str(); "Cannot join the cluster, retrying; pods keep running");
                    *state.login.problem.borrow_mut() = Some(why);
                    state.change();
                }
            }
        }
        sleep(RETRY).await;
    }
}

async fn try_open(
    config: &LoginConfig,
    client: ClientConfig,
    parts: &ClusterParts,
    state: &Rc<ClusterState>,
) -> Result<Rc<H2Transport>, LoginError> {
    let (files, clock) = (config.clone(), parts.clock.clone());
    let now = clock.now();
    let start = rt::blocking("certificates", move || begin(&files, now)).await?;
    let credentials = Rc::new(Credentials::open(&config.kubeconfig, clock.clone()).await?);
    let (server, is_insecure) = credentials.server().await;
    state.login.server.borrow_mut().clone_from(&server);
    state.login.is_insecure.set(is_insecure);
    state.identity.borrow_mut().server = server;
    let last_contact = state.identity.borrow().last_contact;
    let transport = Rc::new(transport(config, Rc::clone(&credentials), &clock));
    transport.not_before(last_contact);
    let keeps = match start.beginning {
        Beginning::AsItIs | Beginning::Expired => false,
        Beginning::Bootstrap => true,
        Beginning::Stored | Beginning::Primed => config.rotate,
    };
    if keeps || config.bootstrap.is_some() {
        let own = Rc::new(Client::new(Rc::clone(&transport), client, parts.dice.clone()));
        keep_certificate(config, client, (own, credentials), start.renew_now, parts, state)?;
    }
    if start.beginning == Beginning::Bootstrap {
        // Without a certificate nothing can be asked: what is wrong is that there is none.
        let mut changed = state.watch();
        while !matches!(state.login.certificate.borrow().stage, CertificateStage::Current { .. }) {
            // The sender is in `state`.
            let _ = changed.changed().await;
        }
    }
    Ok(transport)
}

fn transport(config: &LoginConfig, credentials: Rc<Credentials>, clock: &Clock) -> H2Transport {
    let h2 = H2Config { user_agent: config.user_agent.clone(), floor: config.floor };
    H2Transport::new(h2, credentials, clock.clone())
}

/// Decides how the node begins, and writes what that needs. Blocks.
fn begin(config: &LoginConfig, now: Timestamp) -> Result<Start, LoginError> {
    let files = PairFiles::open(&config.cert_dir, CertificateSigner::Client.file_prefix())?;
    let named = match Credentials::read(&config.kubeconfig) {
        Ok(kubeconfig) => named_pair(&kubeconfig),
        Err(_) => None,
    };
    let bootstrap = config.bootstrap.as_ref().filter(|path| path.is_file());
    let stored = files.current()?;
    let has_bootstrap = bootstrap.is_some();
    let beginning = beginning(named.as_ref(), stored.as_deref(), has_bootstrap, config.rotate, now);
    let cluster = match (beginning, bootstrap) {
        (Beginning::Bootstrap, Some(path)) => {
            let text = std::fs::read_to_string(path).map_err(LoginError::Read)?;
            cluster_of(&text).map_err(LoginError::Bootstrap)?
        }
        _ => ClusterEntry::default(),
    };
    let renew_now = prepare(beginning, named.as_ref(), &files, &config.kubeconfig, &cluster, now)?;
    Ok(Start { beginning, renew_now })
}

/// A pair that cannot be read is named all the same, and counts as expired.
fn named_pair(kubeconfig: &Kubeconfig) -> Option<NamedPair> {
    let (certificate, key) = kubeconfig.client.as_ref()?;
    let text = |source: &PemSource| {
        let bytes = read_pem(source).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let is_embedded = matches!(certificate, PemSource::Data(_));
    Some(NamedPair { certificate: text(certificate), key: text(key), is_embedded })
}

/// Starts the task that keeps the client certificate, and those that wake it.
fn keep_certificate(
    config: &LoginConfig,
    client: ClientConfig,
    (own, credentials): (Rc<Client<H2Transport>>, Rc<Credentials>),
    renew_now: bool,
    parts: &ClusterParts,
    state: &Rc<ClusterState>,
) -> Result<(), LoginError> {
    let nudge = Rc::new(Notify::new());
    let first: Rc<RefCell<Option<Rc<Client<H2Transport>>>>> = Rc::default();
    let opened = Rc::new(Notify::new());
    if config.bootstrap.is_none() {
        opened.notify_one();
    }
    if let Some(path) = config.bootstrap.clone() {
        let arrived = Rc::new(Notify::new());
        rt::spawn("bootstrap file", watch_file(path.clone(), Rc::clone(&arrived)));
        let (config, clock, dice) = (config.clone(), parts.clock.clone(), parts.dice.clone());
        let (first, nudge, opened) = (Rc::clone(&first), Rc::clone(&nudge), Rc::clone(&opened));
        rt::spawn("bootstrap credentials", async move {
            let mut known = None;
            loop {
                // It may be gone already: kubeadm deletes it as soon as it sees a certificate.
                let text = rt::blocking("bootstrap kubeconfig", {
                    let path = path.clone();
                    move || std::fs::read(path).ok()
                });
                let text = text.await;
                if text.is_some() && text != known {
                    match Credentials::open(&path, clock.clone()).await {
                        Ok(credentials) => {
                            let transport = Rc::new(transport(&config, Rc::new(credentials), &clock));
                            *first.borrow_mut() = Some(Rc::new(Client::new(transport, client, dice.clone())));
                            nudge.notify_one();
                        }
                        Err(error) => log::warn!(err = chain(&error); "Cannot use the bootstrap kubeconfig"),
                    }
                }
                known = text;
                opened.notify_one();
                arrived.notified().await;
            }
        });
    }
    let (sender, mut changed) = watch::channel(CertificateState::default());
    let keeper = Keeper {
        signer: CertificateSigner::Client,
        node_name: state.node_name.clone(),
        files: PairFiles::open(&config.cert_dir, CertificateSigner::Client.file_prefix())?,
        addresses: Rc::new(Vec::new),
        identity: Rc::new(
            move |is_usable| if is_usable { Some(Rc::clone(&own)) } else { first.borrow().clone() },
        ),
        rotate: config.rotate,
        renew_now,
        clock: parts.clock.clone(),
        dice: parts.dice.clone(),
        offline: state.offline(&parts.clock),
        nudge,
        state: sender,
    };
    rt::spawn("client certificate", async move {
        // Without them it would find that there is nothing to ask with.
        opened.notified().await;
        keeper.run().await;
    });
    let state = Rc::clone(state);
    rt::spawn("client certificate state", async move {
        while changed.changed().await.is_ok() {
            let now = changed.borrow_and_update().clone();
            if let CertificateStage::Current { until, .. } = now.stage {
                state.count_offline_for(until);
            }
            *state.login.certificate.borrow_mut() = now;
            credentials.renewed().await;
            state.change();
        }
    });
    Ok(())
}
