//! The runtime behind a socket: whatever answers there, CRI or a Docker Engine.
//!
//! Owns the choice, which is made when something answers for the first time and then holds for the life of the process. Until
//! then every call fails as one to an absent runtime does, and what must be decided before goes by the socket's name.

use std::cell::Cell;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;

use tokio::sync::OnceCell;

use super::cri::{CriConfig, CriRuntime, EndpointError, socket_path};
use super::docker::{DockerConfig, DockerRuntime, ask};
use crate::platform::rt;
use crate::runtime::{ErrorKind, RuntimeError};

/// The runtime that was found.
#[derive(Clone)]
pub(crate) enum FoundRuntime {
    Cri(Rc<CriRuntime>),
    Docker(Rc<DockerRuntime>),
}

pub(crate) struct SocketRuntime {
    config: CriConfig,
    docker: DockerConfig,
    socket: PathBuf,
    found: OnceCell<FoundRuntime>,
    /// Set once something was decided by the name: whether it is Docker's.
    assumed: Cell<Option<bool>>,
}

impl SocketRuntime {
    /// Nothing is connected yet, so the runtime may be absent.
    ///
    /// # Errors
    /// An endpoint that is no Unix socket.
    pub(crate) fn new(config: CriConfig, docker: DockerConfig) -> Result<Self, EndpointError> {
        let socket = socket_path("containerRuntimeEndpoint", &config.endpoint)?;
        if !config.image_endpoint.is_empty() {
            socket_path("imageServiceEndpoint", &config.image_endpoint)?;
        }
        Ok(Self { config, docker, socket, found: OnceCell::new(), assumed: Cell::default() })
    }

    /// Boxed: each verb's future would hold it otherwise.
    ///
    /// # Errors
    /// Nothing answers, or it is no runtime.
    pub(crate) fn found(&self) -> Pin<Box<dyn Future<Output = Result<&FoundRuntime, RuntimeError>> + '_>> {
        Box::pin(self.found.get_or_try_init(|| self.find()))
    }

    /// Whether it will be a Docker Engine, while nothing answers.
    pub(crate) fn assume(&self) -> bool {
        let is_docker = ask::is_named_docker(&self.socket);
        self.assumed.set(Some(is_docker));
        is_docker
    }

    async fn find(&self) -> Result<FoundRuntime, RuntimeError> {
        let refused = |message| RuntimeError::new("Version", ErrorKind::Refused, message);
        let version = ask::engine_version(&self.socket).await?;
        if self.assumed.take().is_some_and(|is_docker| is_docker != version.is_some()) {
            log::warn!("The runtime is another one than its socket's name says, restart the agent");
        }
        let Some(version) = version else {
            let runtime = CriRuntime::connect(&self.config).map_err(|error| refused(error.to_string()))?;
            return Ok(FoundRuntime::Cri(Rc::new(runtime)));
        };
        let images = &self.config.image_endpoint;
        if !images.is_empty() && *images != self.config.endpoint {
            return Err(refused(format!(
                "imageServiceEndpoint {images:?} cannot be used with Docker, which has its own images: remove it"
            )));
        }
        let (limit, docker) = (self.config.request_timeout, self.docker.clone());
        let runtime = Rc::new(DockerRuntime::new(self.socket.clone(), version, limit, docker));
        log::info!(endpoint:% = self.socket.display(), apiVersion = format!("1.{version}"); "Using Docker Engine");
        // In a task of its own: an engine may take minutes for it, and the first call waits here.
        let asked = Rc::clone(&runtime);
        rt::spawn("settings of Docker", async move { asked.warn_of_settings().await });
        Ok(FoundRuntime::Docker(runtime))
    }
}
