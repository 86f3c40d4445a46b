//! Exec, attach and port-forward on Docker: the engine's streams as those of a client.
//!
//! Owns nothing.

use std::rc::Rc;

use crate::model::types::{ContainerId, SandboxId};
use crate::platform::rt;
use crate::runtime::docker::{DockerRuntime, DockerSession};
use crate::serve::streaming::{Dialer, Duplex, Session, Streams, TerminalSize};

/// Starts a program in a container.
pub(crate) async fn exec(
    runtime: Rc<DockerRuntime>,
    container: ContainerId,
    command: Vec<String>,
    wanted: Streams,
) -> Result<Session, String> {
    let begun = runtime.exec(&container, &command, wanted).await;
    Ok(session(runtime, begun.map_err(|error| error.message)?, wanted.tty))
}

/// Attaches to a running container.
pub(crate) async fn attach(
    runtime: Rc<DockerRuntime>,
    container: ContainerId,
    wanted: Streams,
) -> Result<Session, String> {
    let attached = runtime.attach(&container, wanted).await;
    Ok(session(runtime, attached.map_err(|error| error.message)?, wanted.tty))
}

fn session(runtime: Rc<DockerRuntime>, session: DockerSession, tty: bool) -> Session {
    let path = session.resizer();
    let resize = move |size: TerminalSize| {
        let (runtime, path) = (Rc::clone(&runtime), path.clone());
        rt::spawn("resize", async move {
            if let Err(error) = runtime.resize(&path, size.width, size.height).await {
                log::debug!(err:% = error; "Failed to resize terminal");
            }
        });
    };
    let DockerSession { stdin, stdout, stderr, exit, .. } = session;
    Session {
        stdin,
        stdout,
        stderr,
        resize: tty.then(|| Box::new(resize) as Box<dyn Fn(TerminalSize)>),
        exit: Box::pin(async move { exit.await.map_err(|error| error.message) }),
    }
}

/// Connects to ports of a sandbox.
#[must_use]
pub(crate) fn dialer(runtime: Rc<DockerRuntime>, sandbox: SandboxId) -> Dialer {
    Rc::new(move |port| {
        let (runtime, sandbox) = (Rc::clone(&runtime), sandbox.clone());
        Box::pin(async move {
            let connected = runtime.port_stream(&sandbox, port).await;
            connected.map(|stream| Box::new(stream) as Box<dyn Duplex>).map_err(|error| error.message)
        })
    })
}
