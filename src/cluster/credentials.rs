//! Who this node is to the apiserver, and whom it trusts there: from a kubeconfig, its files and its plugin.
//!
//! Owns the current login and when it is made again. Nothing of it is logged.

mod exec_plugin;
mod files;

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use self::exec_plugin::ExecCredential;
use self::files::{Contents, Stamp};
use crate::cluster::kubeconfig::{Kubeconfig, KubeconfigError, PemSource};
use crate::codec::base64;
use crate::codec::yaml::{YamlError, yaml_to_values};
use crate::platform::clock::Clock;
use crate::platform::rt;

/// How often files are checked while requests are sent; at each new connection in any case.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The same as long as something is missing: a certificate that is being requested.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// A plugin runs again this long before its credentials expire.
const EXPIRY_MARGIN: Duration = Duration::from_secs(10);
/// A plugin whose credentials the server refuses is not asked more often.
const REFUSED_EVERY: Duration = Duration::from_secs(60);

/// A kubeconfig file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialsError {
    #[error("read kubeconfig {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("parse kubeconfig {}", path.display())]
    Yaml { path: PathBuf, source: YamlError },
    #[error("kubeconfig {}", path.display())]
    Content { path: PathBuf, source: KubeconfigError },
}

/// The credentials of one kubeconfig.
pub(crate) struct Credentials {
    /// `None`: made from a value; there is nothing to read again.
    path: Option<PathBuf>,
    clock: Clock,
    state: Mutex<State>,
}

struct State {
    config: Arc<Kubeconfig>,
    config_stamp: Stamp,
    contents: Contents,
    stamps: Vec<Stamp>,
    looked: Option<Instant>,
    /// Why some files cannot be read; logged when it changes.
    failures: Vec<String>,
    exec: Option<ExecCredential>,
    /// When the plugin ran because of a refusal.
    refused: Option<Instant>,
    login: Option<Rc<Login>>,
}

/// What a connection and a request need. Without `Debug`: it contains keys.
pub(crate) struct Login {
    /// Changes with everything that a connection depends on; a new token is not among it.
    pub version: u64,
    pub config: Arc<Kubeconfig>,
    /// PEM; `None`: the system's authorities.
    pub authorities: Option<Vec<u8>>,
    /// PEM: certificate chain and key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Credentials {
    /// Reads a kubeconfig. The files that it names are read with the first request.
    pub(crate) async fn open(path: &Path, clock: Clock) -> Result<Self, CredentialsError> {
        let file = path.to_owned();
        let (config, stamp) = rt::blocking("kubeconfig", move || read_kubeconfig(&file)).await?;
        Ok(Self::new(Some(path.to_owned()), config, stamp, clock))
    }

    /// What a kubeconfig says. Blocks.
    pub(in crate::cluster) fn read(path: &Path) -> Result<Kubeconfig, CredentialsError> {
        read_kubeconfig(path).map(|(config, _)| config)
    }

    /// URL of the server, and whether its certificate is not verified.
    pub(in crate::cluster) async fn server(&self) -> (String, bool) {
        let state = self.state.lock().await;
        (state.config.server.clone(), state.config.skip_verify)
    }

    /// Of a kubeconfig that is in no file.
    pub(crate) fn of(config: Kubeconfig, clock: Clock) -> Self {
        Self::new(None, config, None, clock)
    }

    fn new(path: Option<PathBuf>, config: Kubeconfig, config_stamp: Stamp, clock: Clock) -> Self {
        let state = State {
            config: Arc::new(config),
            config_stamp,
            contents: Contents::default(),
            stamps: Vec::new(),
            looked: None,
            failures: Vec::new(),
            exec: None,
            refused: None,
            login: None,
        };
        Self { path, clock, state: Mutex::new(state) }
    }

    /// The login for a request; for a new connection `fresh`, so that files are checked in any case.
    ///
    /// # Errors
    /// When there is no certificate or token to send, in words.
    pub(crate) async fn current(&self, fresh: bool) -> Result<Rc<Login>, String> {
        let mut state = self.state.lock().await;
        let every = if state.login.is_some() { LOOK_EVERY } else { LOOK_AGAIN };
        if fresh || state.looked.is_none_or(|looked| looked.elapsed() >= every) {
            look(&mut state).await;
        }
        self.login(&mut state, false).await
    }

    /// The server answers 401 to `used`: true when there is another login now.
    pub(crate) async fn refused(&self, used: &Rc<Login>) -> bool {
        let mut state = self.state.lock().await;
        if state.login.as_ref().is_none_or(|login| !Rc::ptr_eq(login, used)) {
            return true;
        }
        self.reread(&mut state).await;
        look(&mut state).await;
        let again = state.refused.is_none_or(|refused| refused.elapsed() >= REFUSED_EVERY);
        if again && state.config.exec.is_some() {
            state.refused = Some(Instant::now());
        }
        match self.login(&mut state, again).await {
            Ok(login) => !Rc::ptr_eq(&login, used),
            Err(reason) => {
                log::warn!(err = reason.as_str(); "No new credentials after the apiserver refused the old ones");
                false
            }
        }
    }

    /// A certificate file was renewed: it is used from the next request on.
    pub(crate) async fn renewed(&self) {
        self.state.lock().await.looked = None;
    }

    /// The kubeconfig itself, when it changed. One that cannot be used is as good as none: the old one stays.
    async fn reread(&self, state: &mut State) {
        let Some(path) = self.path.clone() else { return };
        let known = state.config_stamp;
        let read = move || {
            let is_known = files::stamp(&path) == known;
            (!is_known).then(|| read_kubeconfig(&path))
        };
        match rt::blocking("kubeconfig", read).await {
            None => {}
            Some(Ok((config, stamp))) => {
                state.config_stamp = stamp;
                if *state.config != config {
                    state.config = Arc::new(config);
                    (state.contents, state.stamps, state.exec) = (Contents::default(), Vec::new(), None);
                }
            }
            Some(Err(error)) => {
                log::warn!(err:% = crate::platform::logging::chain(&error); "Keeping the kubeconfig as it was");
            }
        }
    }

    /// The login that follows from the state; the known one, as long as it is the same. `again`: a plugin is run even
    /// though its credentials have not expired.
    async fn login(&self, state: &mut State, again: bool) -> Result<Rc<Login>, String> {
        if let Some(plugin) = &state.config.exec {
            let now = self.clock.now();
            let expires = |margin| {
                let limit = state.exec.as_ref().map(|known| known.expires);
                limit.is_none_or(|limit| limit.is_some_and(|moment| now.saturating_add(margin) >= moment))
            };
            if again || expires(EXPIRY_MARGIN) {
                match exec_plugin::run(plugin, state.contents.authorities.as_deref()).await {
                    Ok(credential) => state.exec = Some(credential),
                    Err(reason) if again || expires(Duration::ZERO) => return Err(reason),
                    Err(reason) => log::warn!(err = reason.as_str(); "Credentials expire soon"),
                }
            }
        }
        let made = make_login(state)?;
        let known = state.login.take();
        let login = match known {
            Some(known) if known.has_same_connection(&made) => {
                if known.headers == made.headers {
                    known
                } else {
                    Rc::new(Login { version: known.version, ..made })
                }
            }
            Some(known) => Rc::new(Login { version: known.version + 1, ..made }),
            None => Rc::new(made),
        };
        state.login = Some(Rc::clone(&login));
        Ok(login)
    }
}

impl Login {
    fn has_same_connection(&self, other: &Self) -> bool {
        self.authorities == other.authorities && self.client == other.client && *self.config == *other.config
    }
}

/// Reads the files again when one of them changed.
async fn look(state: &mut State) {
    state.looked = Some(Instant::now());
    let config = Arc::clone(&state.config);
    let (known, old) = (state.stamps.clone(), state.contents.clone());
    let is_incomplete = !state.failures.is_empty();
    let read = move || {
        let stamps: Vec<Stamp> = files::paths(&config).iter().map(|path| files::stamp(path)).collect();
        // Also the first time without any file: the contents may be in the kubeconfig.
        let is_known = !known.is_empty() && known == stamps && !is_incomplete;
        (!is_known).then(|| (stamps, files::contents(&config, &old)))
    };
    let Some((stamps, (contents, failures))) = rt::blocking("credentials", read).await else { return };
    (state.stamps, state.contents) = (stamps, contents);
    if state.failures != failures {
        for failure in &failures {
            log::warn!(err = failure.as_str(); "Cannot read credentials of the cluster");
        }
        state.failures = failures;
    }
}

fn make_login(state: &State) -> Result<Login, String> {
    let (config, contents) = (&state.config, &state.contents);
    let token = contents.token.clone().unwrap_or_else(|| config.token.clone());
    let lacks = (config.authorities.is_some() && contents.authorities.is_none())
        || (config.client.is_some() && contents.client.is_none())
        || (config.token_file.is_some() && token.is_empty());
    if lacks {
        return Err(state.failures.join("; "));
    }
    let exec = state.exec.as_ref().filter(|_| config.exec.is_some());
    let token = exec.map_or(token, |exec| exec.token.clone());
    let mut headers = Vec::new();
    if !token.is_empty() {
        headers.push(("authorization".to_owned(), format!("Bearer {token}")));
    } else if let Some((user, password)) = &config.basic {
        let login = base64::encode(format!("{user}:{password}").as_bytes());
        headers.push(("authorization".to_owned(), format!("Basic {login}")));
    }
    headers.extend(config.impersonate.iter().cloned());
    Ok(Login {
        version: 1,
        config: Arc::clone(config),
        authorities: contents.authorities.clone(),
        client: contents.client.clone().or_else(|| exec.and_then(|exec| exec.client.clone())),
        headers,
    })
}

/// The bytes of a PEM text of a kubeconfig. Blocks.
pub(in crate::cluster) fn read_pem(source: &PemSource) -> std::io::Result<Vec<u8>> {
    match source {
        PemSource::Data(data) => Ok(data.clone()),
        PemSource::File(path) => files::read(path),
    }
}

fn read_kubeconfig(path: &Path) -> Result<(Kubeconfig, Stamp), CredentialsError> {
    let stamp = files::stamp(path);
    let bytes =
        files::read(path).map_err(|source| CredentialsError::Read { path: path.to_owned(), source })?;
    let values = yaml_to_values(&String::from_utf8_lossy(&bytes), false)
        .map_err(|source| CredentialsError::Yaml { path: path.to_owned(), source })?;
    let value = values.into_iter().next().unwrap_or_default();
    let directory = path.parent().unwrap_or(Path::new("/"));
    Kubeconfig::parse(&value, directory)
        .map(|config| (config, stamp))
        .map_err(|source| CredentialsError::Content { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
