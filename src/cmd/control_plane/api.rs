//! The API server as the phases use it: objects are created or updated, again and again until one deadline.
//!
//! Owns what is worth another attempt, the connection of an administrator's kubeconfig, and the output of a dry run.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::objects;
use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::h2::{H2Config, H2Transport};
use crate::cluster::client::limits::Limit;
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, Content, Lane, Transport};
use crate::cluster::client::{Client, ClientConfig};
use crate::cluster::credentials::Credentials;
use crate::cluster::kubeconfig::{Kubeconfig, KubeconfigError};
use crate::cmd::cli::yaml;
use crate::codec::yaml::{YamlError, yaml_to_values};
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::serve::server::pki::FLOOR;

/// kubeadm's: a request, and the time between two.
const REQUEST: Duration = Duration::from_secs(10);
pub(crate) const AGAIN: Duration = Duration::from_millis(500);
/// What a server refuses while it starts, it may allow soon: namespaces and roles are made after it listens.
const REFUSED: Duration = Duration::from_secs(60);

/// A phase that talks to the API server failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiPhaseError {
    #[error("unable to {what}")]
    Refused {
        what: String,
        #[source]
        source: ApiError,
    },
    #[error("{action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("parse {}", path.display())]
    Yaml {
        path: PathBuf,
        #[source]
        source: YamlError,
    },
    #[error("kubeconfig {}", path.display())]
    Kubeconfig {
        path: PathBuf,
        #[source]
        source: KubeconfigError,
    },
    #[error("{0}")]
    Broken(String),
}

impl ApiPhaseError {
    /// Another has changed the object since it was read.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { source, .. } if source.kind == ApiErrorKind::Conflict)
    }
}

/// Prints to standard output.
pub(crate) type Say<'a> = &'a dyn Fn(&str);

/// An administrator's client.
pub(crate) struct Api<'a, T> {
    /// `None`: a dry run. Nothing is asked, and writes are printed.
    client: Option<Client<T>>,
    /// Whether a dry run prints the objects alone.
    pub bare: bool,
    pub say: Say<'a>,
    pub deadline: Instant,
}

enum Act<'a> {
    Get,
    Create(&'a Value),
    Replace(&'a Value),
    Patch(&'a Value),
}

/// How long a request is sent again after this error; `None`: until the deadline.
fn patience(kind: ApiErrorKind) -> Option<Duration> {
    use ApiErrorKind as Kind;
    match kind {
        Kind::Unreachable | Kind::Server | Kind::TooMany | Kind::NoTurn => None,
        Kind::Unauthorized | Kind::Forbidden | Kind::NotFound | Kind::Conflict => Some(REFUSED),
        Kind::Tls | Kind::AlreadyExists | Kind::Gone | Kind::Invalid | Kind::NotAnApiserver => {
            Some(Duration::ZERO)
        }
    }
}

impl<'a, T: Transport> Api<'a, T> {
    pub(crate) fn new(client: Option<Client<T>>, say: Say<'a>, deadline: Instant) -> Self {
        Self { client, bare: false, say, deadline }
    }

    pub(crate) fn is_dry(&self) -> bool {
        self.client.is_none()
    }

    async fn send(&self, act: &Act<'_>, of: &ResourcePath) -> Result<Value, ApiError> {
        let Some(client) = &self.client else { return Ok(self.pretend(act, of)) };
        let begun = Instant::now();
        loop {
            let sent = match act {
                Act::Get => client.get(Lane::Main, of, Accept::Json).await,
                Act::Create(object) => client.create(Lane::Main, &of.clone().without_name(), object).await,
                Act::Replace(object) => client.replace(Lane::Main, of, object).await,
                Act::Patch(patch) => {
                    client.patch(Lane::Main, of, Content::MergePatch, patch, Accept::Json).await
                }
            };
            let error = match (sent, act) {
                (Err(error), Act::Get) if error.kind == ApiErrorKind::NotFound => return Err(error),
                // The version in a patch stays wrong.
                (Err(error), Act::Patch(_)) if error.kind == ApiErrorKind::Conflict => return Err(error),
                (Err(error), _) => error,
                (answer, _) => return answer,
            };
            let until = patience(error.kind).map_or(self.deadline, |time| self.deadline.min(begun + time));
            if Instant::now() + AGAIN > until {
                return Err(error);
            }
            sleep(AGAIN).await;
        }
    }

    /// In kubeadm's words.
    fn pretend(&self, act: &Act<'_>, of: &ResourcePath) -> Value {
        let (verb, object) = match act {
            Act::Get => return json!({"metadata": {"name": of.name(), "uid": ""}}),
            Act::Create(object) => ("CREATE", *object),
            Act::Replace(object) => ("UPDATE", *object),
            Act::Patch(object) => ("PATCH", *object),
        };
        let text = yaml::to_string(object);
        if self.bare {
            (self.say)(&format!("---\n{text}"));
            return (*object).clone();
        }
        let group = match object["apiVersion"].as_str() {
            Some(version) if version.contains('/') => version.to_owned(),
            _ => "core/v1".to_owned(),
        };
        let namespace = match of {
            ResourcePath::Namespaced { namespace, .. } => namespace,
            ResourcePath::Whole { .. } => "",
        };
        let attached: String = text.lines().map(|line| ["\t", line, "\n"].concat()).collect();
        (self.say)(&format!(
            "[dryrun] Would perform action {verb} on resource {:?} in API group {group:?}\n[dryrun] Resource name {:?}, \
             namespace {namespace:?}\n[dryrun] Attached object:\n{attached}",
            of.plural(),
            of.name()
        ));
        (*object).clone()
    }

    /// Creates the object, or makes one that is there equal to it. Returns what the server has stored.
    pub(crate) async fn apply(&self, object: &Value) -> Result<Value, ApiPhaseError> {
        let of = place(object)?;
        match self.send(&Act::Create(object), &of).await {
            // A Service that is there has its address, and that is said before its name.
            Err(error)
                if error.kind == ApiErrorKind::AlreadyExists
                    || error.kind == ApiErrorKind::Invalid && object["kind"] == "Service" =>
            {
                self.send(&Act::Replace(object), &of).await.map_err(refused("update", &of))
            }
            other => other.map_err(refused("create", &of)),
        }
    }

    /// Creates the object unless one of its name is there, which stays as it is. False: it was there.
    pub(crate) async fn create(&self, object: &Value) -> Result<bool, ApiPhaseError> {
        let of = place(object)?;
        match self.send(&Act::Create(object), &of).await {
            Err(error) if error.kind == ApiErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(refused("create", &of)(error)),
            Ok(_) => Ok(true),
        }
    }

    /// Creates the object, or puts what it has into one that is there, whose other keys stay.
    pub(crate) async fn merge(&self, object: &Value) -> Result<(), ApiPhaseError> {
        if self.create(object).await? {
            return Ok(());
        }
        self.patch(&place(object)?, object).await.map(drop)
    }

    pub(crate) async fn patch(&self, of: &ResourcePath, patch: &Value) -> Result<Value, ApiPhaseError> {
        self.send(&Act::Patch(patch), of).await.map_err(refused("patch", of))
    }

    /// `None`: there is none. A dry run finds nothing.
    pub(crate) async fn get(&self, of: &ResourcePath) -> Result<Option<Value>, ApiPhaseError> {
        if self.is_dry() {
            return Ok(None);
        }
        match self.send(&Act::Get, of).await {
            Err(error) if error.kind == ApiErrorKind::NotFound => Ok(None),
            other => other.map(Some).map_err(refused("get", of)),
        }
    }

    /// All objects of a collection that a field selector selects.
    pub(crate) async fn list(&self, of: &ResourcePath, fields: &str) -> Result<Vec<Value>, ApiPhaseError> {
        let (mut found, mut go_on) = (Vec::new(), String::new());
        let Some(client) = &self.client else { return Ok(found) };
        loop {
            let page = client.page(of, fields, &go_on).await.map_err(refused("list", of))?;
            found.extend(page.items);
            go_on = page.go_on;
            if go_on.is_empty() {
                return Ok(found);
            }
        }
    }

    /// False: there was none of this name and uid.
    pub(crate) async fn delete(&self, of: &ResourcePath, uid: &str) -> Result<bool, ApiPhaseError> {
        let Some(client) = &self.client else { return Ok(true) };
        match client.delete(Lane::Main, of, None, uid).await {
            Err(error) if error.kind == ApiErrorKind::NotFound => Ok(false),
            other => other.map(|()| true).map_err(refused("delete", of)),
        }
    }
}

fn place(object: &Value) -> Result<ResourcePath, ApiPhaseError> {
    let unknown = || ApiPhaseError::Broken(format!("{} has no place in the API", object["kind"]));
    objects::path_of(object).ok_or_else(unknown)
}

fn refused(action: &'static str, of: &ResourcePath) -> impl FnOnce(ApiError) -> ApiPhaseError {
    move |source| ApiPhaseError::Refused { what: [action, " ", of.plural(), " ", of.name()].concat(), source }
}

/// Makes `kubeadm:cluster-admins` administrators, so that `admin.conf` can be used, and returns when it can: the first
/// contact with the server. It is waited for until the deadline, not for a minute as in kubeadm.
///
/// # Errors
/// The server did not answer in time, or refuses both.
pub(crate) async fn make_admins<T: Transport>(
    admin: &Client<T>,
    super_admin: Option<&Client<T>>,
    deadline: Instant,
) -> Result<(), ApiPhaseError> {
    let failed = |file: &str, why: String| {
        ApiPhaseError::Broken(format!("could not bootstrap the admin user in file {file}: {why}"))
    };
    let binding = objects::step("admins", &[]).pop().unwrap_or_default();
    let of = place(&binding)?.without_name();
    let (mut file, mut client) = ("admin.conf", admin);
    loop {
        let error = match client.create(Lane::Main, &of, &binding).await {
            Ok(_) => return Ok(()),
            Err(error) if error.kind == ApiErrorKind::AlreadyExists => return Ok(()),
            Err(error) => error,
        };
        let why = || failed(file, format!("unable to create ClusterRoleBinding: {error}"));
        match (error.kind, super_admin) {
            (ApiErrorKind::Forbidden, Some(other)) if file == "admin.conf" => {
                (file, client) = ("super-admin.conf", other);
            }
            (ApiErrorKind::Forbidden, None) => {
                return Err(failed(
                    file,
                    "there is no super-admin.conf, which only the first node has".to_owned(),
                ));
            }
            (ApiErrorKind::Tls | ApiErrorKind::Invalid | ApiErrorKind::NotAnApiserver, _) => {
                return Err(why());
            }
            _ if Instant::now() + AGAIN > deadline => return Err(why()),
            _ => sleep(AGAIN).await,
        }
    }
}

/// A kubeconfig, with another server if one is given: components of a node ask its own API server.
pub(crate) fn kubeconfig(path: &Path, server: Option<&str>) -> Result<Kubeconfig, ApiPhaseError> {
    let text = std::fs::read_to_string(path).map_err(|source| ApiPhaseError::File {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    let yaml = |source| ApiPhaseError::Yaml { path: path.to_owned(), source };
    let mut value = yaml_to_values(&text, false).map_err(yaml)?.into_iter().next().unwrap_or_default();
    if let (Some(server), Some(clusters)) = (server, value["clusters"].as_array_mut()) {
        for cluster in clusters {
            cluster["cluster"]["server"] = server.into();
        }
    }
    let directory = path.parent().unwrap_or(Path::new("/"));
    let parsed = Kubeconfig::parse(&value, directory);
    parsed.map_err(|source| ApiPhaseError::Kubeconfig { path: path.to_owned(), source })
}

pub(crate) fn transport(kubeconfig: Kubeconfig) -> H2Transport {
    let user_agent = format!("agent/{} (linux/{})", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let credentials = Rc::new(Credentials::of(kubeconfig, Clock::System));
    H2Transport::new(H2Config { user_agent, floor: FLOOR }, credentials, Clock::System)
}

pub(crate) fn client<T: Transport>(transport: T) -> Client<T> {
    let limit = Limit { qps: 0, burst: 0 };
    let config = ClientConfig { limit, timeout: REQUEST, heartbeat_timeout: REQUEST };
    Client::new(Rc::new(transport), config, Dice::System)
}

#[cfg(test)]
mod tests;
