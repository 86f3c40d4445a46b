//! Requests to the apiserver: verbs, one decode path, one rule for sending again.
//!
//! Owns the limits of requests. Which connection is used and who sends are the transport's business.

pub mod error;
pub mod h2;
pub(crate) mod limits;
pub mod request;
mod resolve;
pub mod transport;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::limits::{LONGEST_TURN, Limit, TokenBucket, retry_after};
use crate::cluster::client::request::{Page, ResourcePath, WatchQuery};
use crate::cluster::client::transport::{
    Accept, ApiRequest, ApiResponse, Chunks, Content, Lane, Method, Transport,
};
use crate::cluster::watch::frames::{FrameBuffer, WatchEvent};
use crate::codec::json;
use crate::platform::dice::Dice;

/// Longest answer that is read into memory: a page of the largest objects that etcd stores would be longer.
const LONGEST_BODY: usize = 16 << 20;
/// Longest part of an error that is read.
const LONGEST_ERROR: usize = 64 << 10;
/// Objects of a page; they are all in memory at once.
const PAGE: u32 = 50;

/// The limits of one client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientConfig {
    /// Of `Lane::Main`; heartbeats have none.
    pub limit: Limit,
    /// Longest time of a request on `Lane::Main`, its whole answer included. Of a watch: until it is accepted.
    pub timeout: Duration,
    /// The same on `Lane::Heartbeat`: a late heartbeat is worth less than the next one.
    pub heartbeat_timeout: Duration,
}

/// Sends requests as one user. Dropping the future of a call ends the call; the server may have carried it out.
pub(crate) struct Client<T> {
    transport: Rc<T>,
    config: ClientConfig,
    dice: Dice,
    bucket: RefCell<TokenBucket>,
    made: Instant,
}

/// What a write asks for.
type Body<'a> = Option<(Content, &'a Value)>;

impl<T: Transport> Client<T> {
    pub(crate) fn new(transport: Rc<T>, config: ClientConfig, dice: Dice) -> Self {
        let bucket = RefCell::new(TokenBucket::new(config.limit));
        Self { transport, config, dice, bucket, made: Instant::now() }
    }

    pub(crate) async fn get(&self, lane: Lane, of: &ResourcePath, accept: Accept) -> Result<Value, ApiError> {
        self.call(lane, request(Method::Get, of.path(), accept, None)).await
    }

    /// Returns the object as the server has stored it. POST, also for reviews and tokens.
    pub(crate) async fn create(
        &self,
        lane: Lane,
        of: &ResourcePath,
        body: &Value,
    ) -> Result<Value, ApiError> {
        let body = Some((Content::Json, body));
        self.call(lane, request(Method::Post, of.path(), Accept::Json, body)).await
    }

    pub(crate) async fn replace(
        &self,
        lane: Lane,
        of: &ResourcePath,
        body: &Value,
    ) -> Result<Value, ApiError> {
        let body = Some((Content::Json, body));
        self.call(lane, request(Method::Put, of.path(), Accept::Json, body)).await
    }

    pub(crate) async fn patch(
        &self,
        lane: Lane,
        of: &ResourcePath,
        kind: Content,
        body: &Value,
        accept: Accept,
    ) -> Result<Value, ApiError> {
        self.call(lane, request(Method::Patch, of.path(), accept, Some((kind, body)))).await
    }

    /// Deletes the object with this uid and no later one of its name. `grace` in seconds; `None` for the object's own.
    pub(crate) async fn delete(
        &self,
        lane: Lane,
        of: &ResourcePath,
        grace: Option<i64>,
        uid: &str,
    ) -> Result<(), ApiError> {
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}});
        if let Some(seconds) = grace {
            options["gracePeriodSeconds"] = seconds.into();
        }
        let body = Some((Content::Json, &options));
        self.call(lane, request(Method::Delete, of.path(), Accept::Metadata, body)).await.map(drop)
    }

    /// One page of a list; `go_on` is the token of the page before, empty for the first one.
    pub(crate) async fn page(
        &self,
        of: &ResourcePath,
        selector: &str,
        go_on: &str,
    ) -> Result<Page, ApiError> {
        self.page_of(of.page(selector, go_on, PAGE)).await
    }

    /// The version of the whole storage, for little more than the headers of a list.
    pub(crate) async fn newest_version(&self, of: &ResourcePath, selector: &str) -> Result<String, ApiError> {
        self.page_of(of.page(selector, "", 1)).await.map(|page| page.version)
    }

    async fn page_of(&self, path: String) -> Result<Page, ApiError> {
        let mut list = self.call(Lane::Main, request(Method::Get, path, Accept::Json, None)).await?;
        let text = |name: &str| list["metadata"][name].as_str().unwrap_or_default().to_owned();
        let (version, go_on) = (text("resourceVersion"), text("continue"));
        let items = match list.get_mut("items").map(Value::take).unwrap_or_default() {
            Value::Array(items) => items,
            // Go writes an empty list as null.
            Value::Null => Vec::new(),
            _ => return Err(ApiError::not_an_apiserver(200, "the items of a list are no list")),
        };
        if version.is_empty() {
            return Err(ApiError::not_an_apiserver(200, "a list has no version"));
        }
        Ok(Page { items, version, go_on })
    }

    /// Returns when the server has accepted the watch.
    pub(crate) async fn watch(
        &self,
        of: &ResourcePath,
        query: &WatchQuery,
    ) -> Result<Frames<T::Body>, ApiError> {
        let request = request(Method::Get, of.watch(query), Accept::Json, None);
        let mut sent = 0;
        loop {
            sent += 1;
            self.turn(Lane::Main).await?;
            let opened = match timeout(self.config.timeout, self.head(Lane::Main, request.clone())).await {
                Ok(opened) => opened,
                Err(_) => Err(timed_out(self.config.timeout)),
            };
            match opened {
                Ok(response) => return Ok(Frames { body: response.body, buffer: FrameBuffer::default() }),
                Err(error) => self.wait_after(error, sent).await?,
            }
        }
    }

    /// Sends a request, again when the server asks for it, and reads its whole answer.
    async fn call(&self, lane: Lane, request: ApiRequest) -> Result<Value, ApiError> {
        let limit = match lane {
            Lane::Main => self.config.timeout,
            Lane::Heartbeat => self.config.heartbeat_timeout,
        };
        let mut sent = 0;
        loop {
            sent += 1;
            self.turn(lane).await?;
            let answer = match timeout(limit, self.answer(lane, request.clone())).await {
                Ok(answer) => answer,
                Err(_) => Err(timed_out(limit)),
            };
            match answer {
                // The next heartbeat is due before this one would be sent again.
                Err(error) if lane == Lane::Main => self.wait_after(error, sent).await?,
                answer => return answer,
            }
        }
    }

    /// Waits until this request may be sent.
    async fn turn(&self, lane: Lane) -> Result<(), ApiError> {
        if lane == Lane::Heartbeat {
            return Ok(());
        }
        let turn = self.bucket.borrow_mut().take(self.made.elapsed());
        sleep(turn.unwrap_or(LONGEST_TURN)).await;
        match turn {
            Some(_) => Ok(()),
            None => {
                Err(ApiError::new(ApiErrorKind::NoTurn, "too many requests wait for their turn (kubeAPIQPS)"))
            }
        }
    }

    /// Waits as long as the server asks for; returns the error when it is the answer.
    async fn wait_after(&self, error: ApiError, sent: u32) -> Result<(), ApiError> {
        let Some(wait) = retry_after(&error, sent, self.dice.unit()) else { return Err(error) };
        sleep(wait).await;
        Ok(())
    }

    async fn answer(&self, lane: Lane, request: ApiRequest) -> Result<Value, ApiError> {
        let mut response = self.head(lane, request).await?;
        let (body, is_whole) = read(&mut response.body, LONGEST_BODY).await?;
        if !is_whole {
            return Err(ApiError::not_an_apiserver(response.status, "the answer is too long"));
        }
        json::parse_lean(&body).map_err(|error| {
            ApiError::not_an_apiserver(response.status, &format!("the answer is no JSON: {error}"))
        })
    }

    /// The answer of a server that has accepted the request.
    async fn head(&self, lane: Lane, request: ApiRequest) -> Result<ApiResponse<T::Body>, ApiError> {
        let mut response = self.transport.send(lane, request).await.map_err(ApiError::of_link)?;
        let (status, wait) = (response.status, response.retry_after);
        if !(200..300).contains(&status) {
            // What has arrived of a cut off error is enough.
            let (body, _) = read(&mut response.body, LONGEST_ERROR).await.unwrap_or_default();
            return Err(ApiError::of_answer(status, wait, &body));
        }
        let kind = response.content_type.split(';').next().unwrap_or_default().trim();
        if kind != "application/json" {
            let message = format!("the answer is {kind:?}, not JSON: not a Kubernetes API server's");
            return Err(ApiError::not_an_apiserver(status, &message));
        }
        Ok(response)
    }
}

/// The events of a watch. Dropping it ends the watch.
pub(crate) struct Frames<B> {
    body: B,
    buffer: FrameBuffer,
}

impl<B: Chunks> Frames<B> {
    /// The next event; `None` when the server has ended the watch. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Result<WatchEvent, ApiError>> {
        loop {
            if let Some(event) = self.buffer.next() {
                return Some(event);
            }
            match self.body.next().await {
                Some(Ok(bytes)) => self.buffer.push(&bytes),
                Some(Err(error)) => return Some(Err(ApiError::of_link(error))),
                None if self.buffer.is_inside() => {
                    let message = "the connection ended inside an event";
                    return Some(Err(ApiError::new(ApiErrorKind::Unreachable, message)));
                }
                None => return None,
            }
        }
    }
}

fn request(method: Method, path: String, accept: Accept, body: Body<'_>) -> ApiRequest {
    let body = body.map(|(kind, body)| (kind, body.to_string().into_bytes()));
    ApiRequest { method, path, accept, body, limit: None }
}

/// The body, and whether that is all of it.
async fn read<B: Chunks>(body: &mut B, most: usize) -> Result<(Vec<u8>, bool), ApiError> {
    let mut read = Vec::new();
    while let Some(chunk) = body.next().await {
        read.extend_from_slice(&chunk.map_err(ApiError::of_link)?);
        if read.len() > most {
            return Ok((read, false));
        }
    }
    Ok((read, true))
}

fn timed_out(limit: Duration) -> ApiError {
    ApiError::new(ApiErrorKind::Unreachable, format!("no answer within {}s", limit.as_secs()))
}

#[cfg(test)]
mod tests;
