//! One call of gRPC's health service.
//!
//! Owns the connection for it and the messages of its failures, which are the kubelet's.

use std::time::Duration;

use hyper::http::uri::Authority;
use tokio::time::timeout_at;
use tonic::{Code, Status};

use super::{HandlerError, PROBE_USER_AGENT, ServingStatus, authority, deadline, dial};
use crate::model::types::go_duration;
use crate::platform::grpc::Channel;
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
    let authority = match Authority::try_from(address.as_str()) {
        Ok(authority) => authority,
        Err(error) => return failed(format!("error: failed to connect service at {address:?}: {error}")),
    };
    let channel = match timeout_at(deadline, Channel::over(stream, authority, PROBE_USER_AGENT)).await {
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
