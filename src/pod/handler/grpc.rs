//! One call of gRPC's health service.
//!
//! Owns the connection for it and the messages of its failures, which are the kubelet's.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout_at;
use tonic::transport::{Endpoint, Uri};
use tonic::{Code, Status};

use super::{HandlerError, PROBE_USER_AGENT, ServingStatus, authority, deadline, dial};
use crate::model::types::go_duration;
use crate::platform::proto::health::HealthCheckRequest;
use crate::platform::proto::health::health_check_response::ServingStatus as Known;
use crate::platform::proto::health::health_client::HealthClient;

/// The response is one number; a larger one is invalid.
const MAX_ANSWER_BYTES: usize = 4096;

pub(super) async fn check(
    host: &str,
    port: u16,
    service: &str,
    timeout: Duration,
) -> Result<ServingStatus, HandlerError> {
    let deadline = deadline(timeout);
    let address = authority(host, port);
    let failed = |text| Err(HandlerError::Failed(text));
    let stream = match timeout_at(deadline, dial::connect(host, port)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            let cause = format!("connection error: desc = \"transport: Error while dialing: {error}\"");
            return failed(format!("error: failed to connect service at {address:?}: {cause}"));
        }
        Err(_) => return failed(not_connected(&address, timeout)),
    };
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .and_then(|endpoint| endpoint.user_agent(PROBE_USER_AGENT));
    let endpoint = match endpoint {
        Ok(endpoint) => endpoint,
        Err(error) => return failed(format!("error: failed to connect service at {address:?}: {error}")),
    };
    let channel = match timeout_at(deadline, endpoint.connect_with_connector(Once(Some(stream)))).await {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) => return failed(format!("error: failed to connect service at {address:?}: {error}")),
        Err(_) => return failed(not_connected(&address, timeout)),
    };
    let mut client = HealthClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
    let request = HealthCheckRequest { service: service.to_owned() };
    match timeout_at(deadline, client.check(request)).await {
        Ok(Ok(answer)) => Ok(answer.into_inner().status),
        Ok(Err(status)) => failed(explain(&status)),
        Err(_) => failed(format!("timeout: health rpc did not complete within {}", go_duration(timeout))),
    }
}

/// As protobuf prints it: an unknown status is its number.
pub(super) fn status_name(status: ServingStatus) -> String {
    Known::try_from(status).map_or_else(|_| status.to_string(), |known| known.as_str_name().to_owned())
}

fn not_connected(address: &str, timeout: Duration) -> String {
    let timeout = go_duration(timeout);
    format!("timeout: failed to connect service {address:?} within {timeout}: context deadline exceeded")
}

fn explain(status: &Status) -> String {
    let message = status.message();
    match status.code() {
        Code::Unimplemented => format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
        ),
        code => format!("error: health rpc probe failed: rpc error: code = {code:?} desc = {message}"),
    }
}

/// Hands out the connection that is there already.
struct Once(Option<TcpStream>);

impl tower_service::Service<Uri> for Once {
    type Response = TokioIo<TcpStream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, std::io::Error>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), std::io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let stream = self.0.take().map(TokioIo::new);
        Box::pin(async move { stream.ok_or_else(|| std::io::ErrorKind::NotConnected.into()) })
    }
}
