//! Calls to a plugin over its socket.
//!
//! Owns the connection. Messages pass as bytes, so that one client serves all calls.

use std::path::PathBuf;
use std::time::Duration;

use prost::bytes::{Buf, BufMut};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder, Streaming};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};

use crate::platform::grpc::Channel;

/// As Go prints a call that was not answered in time.
const LATE: &str = "rpc error: code = DeadlineExceeded desc = context deadline exceeded";

#[derive(Clone)]
pub struct PluginClient {
    channel: Channel,
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PluginError {
    /// gRPC's status code.
    pub code: i32,
    /// As Go prints it.
    pub message: String,
}

/// Messages of one call, as they come.
pub(crate) struct Messages(Streaming<Vec<u8>>);

impl PluginClient {
    /// A client for the server on this socket. Connects on the first call.
    #[must_use]
    pub fn new(socket: PathBuf) -> Self {
        Self { channel: Channel::unix(socket) }
    }

    /// Sends a request and waits for the response.
    ///
    /// # Errors
    /// The plugin's, in the words of gRPC, or that there is no response within the limit.
    pub async fn call(
        &self,
        path: &'static str,
        message: Vec<u8>,
        limit: Duration,
    ) -> Result<Vec<u8>, String> {
        self.try_call(path, message, limit).await.map_err(|error| error.message)
    }

    /// The same with the code of an error. No connection is `Unavailable`, no answer `DeadlineExceeded`.
    ///
    /// # Errors
    /// As [`PluginClient::call`].
    pub(crate) async fn try_call(
        &self,
        path: &'static str,
        message: Vec<u8>,
        limit: Duration,
    ) -> Result<Vec<u8>, PluginError> {
        let call = async {
            let mut grpc = Grpc::new(self.channel.clone());
            let answer = grpc.unary(Request::new(message), PathAndQuery::from_static(path), Raw).await;
            answer.map(tonic::Response::into_inner).map_err(|status| PluginError {
                code: i32::from(status.code()),
                message: status_message(&status),
            })
        };
        let late = |_| PluginError { code: i32::from(Code::DeadlineExceeded), message: LATE.to_owned() };
        tokio::time::timeout(limit, call).await.map_err(late)?
    }

    pub(crate) async fn stream(&self, path: &'static str, limit: Duration) -> Result<Messages, String> {
        let call = async {
            let mut grpc = Grpc::new(self.channel.clone());
            let answer =
                grpc.server_streaming(Request::new(Vec::new()), PathAndQuery::from_static(path), Raw).await;
            answer.map(tonic::Response::into_inner).map_err(|status| status_message(&status))
        };
        tokio::time::timeout(limit, call).await.map_err(|_| LATE.to_owned())?.map(Messages)
    }
}

impl Messages {
    /// The next message; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
        self.0.message().await.map_err(|status| status_message(&status))
    }
}

/// As Go prints it.
fn status_message(status: &Status) -> String {
    format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}

struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut message = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut message);
        Ok(Some(message))
    }
}
