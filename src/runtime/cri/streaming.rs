//! Streams of a CRI runtime, which returns a URL of its own streaming server.
//!
//! Owns the three calls.

use super::{CriRuntime, RuntimeError};
use crate::model::types::{ContainerId, SandboxId, Streams};
use crate::platform::proto::runtime as cri;

impl CriRuntime {
    /// Where a client runs `command` in a container.
    pub(crate) async fn exec_url(
        &self,
        id: &ContainerId,
        command: &[String],
        wanted: Streams,
    ) -> Result<String, RuntimeError> {
        let Streams { stdin, stdout, stderr, tty } = wanted;
        let request = cri::ExecRequest {
            container_id: id.to_string(),
            cmd: command.to_vec(),
            tty,
            stdin,
            stdout,
            stderr,
        };
        let mut client = self.runtime();
        Ok(self.query("Exec", client.exec(request)).await?.url)
    }

    /// The URL at which a client attaches to a container's program.
    pub(crate) async fn attach_url(&self, id: &ContainerId, wanted: Streams) -> Result<String, RuntimeError> {
        let Streams { stdin, stdout, stderr, tty } = wanted;
        let request = cri::AttachRequest { container_id: id.to_string(), stdin, tty, stdout, stderr };
        let mut client = self.runtime();
        Ok(self.query("Attach", client.attach(request)).await?.url)
    }

    /// Where a client reaches ports of a sandbox.
    pub(crate) async fn port_forward_url(
        &self,
        id: &SandboxId,
        ports: &[u16],
    ) -> Result<String, RuntimeError> {
        let port = ports.iter().copied().map(i32::from).collect();
        let request = cri::PortForwardRequest { pod_sandbox_id: id.to_string(), port };
        let mut client = self.runtime();
        Ok(self.query("PortForward", client.port_forward(request)).await?.url)
    }
}
