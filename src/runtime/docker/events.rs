//! Hints that a container has changed, from the engine's stream of events.
//!
//! Owns the stream and its back-off. A hint follows every event, every loss and every new start of the stream.

use std::rc::{Rc, Weak};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Method;
use tokio::time::Instant;

use super::Engine;
use super::client::{Payload, escaped};
use crate::model::back_off::Retry;

/// First wait before the stream is opened again.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// Longest wait before the stream is opened again.
const LONGEST_RETRY: Duration = Duration::from_secs(3);
/// A stream that held this long was a good one.
const GOOD_STREAM: Duration = Duration::from_secs(10);
/// Of the events of containers those that change a list: commands in containers have events, too.
const FILTER: &str =
    r#"{"type":["container"],"event":["create","start","die","oom","destroy","pause","unpause"]}"#;

/// Follows until the engine is dropped.
pub(super) async fn follow(engine: Weak<Engine>) {
    let mut retry = Retry::new(FIRST_RETRY, LONGEST_RETRY);
    loop {
        let started = Instant::now();
        let Some(held) = engine.upgrade() else { return };
        stream(held).await;
        let Some(held) = engine.upgrade() else { return };
        held.changed.notify_one();
        drop(held);
        if started.elapsed() >= GOOD_STREAM {
            retry.reset();
        }
        let delay = retry.delay();
        log::debug!(delay:? = delay; "Docker event stream ended, reconnecting after a delay");
        tokio::time::sleep(delay).await;
    }
}

/// Returns when the stream has ended.
async fn stream(engine: Rc<Engine>) {
    let path = format!("/events?filters={}", escaped(FILTER));
    let call = "GetContainerEvents";
    let opened = engine.client.open(call, Method::GET, &path, Payload::None).await;
    let mut events = match opened {
        Ok(response) => response.into_body(),
        Err(error) => return log::debug!(err:% = error; "Failed to open Docker event stream"),
    };
    engine.changed.notify_one();
    let changed = Rc::downgrade(&engine);
    // The stream does not keep the engine.
    drop(engine);
    while let Some(Ok(_)) = events.frame().await {
        let Some(engine) = changed.upgrade() else { return };
        engine.changed.notify_one();
    }
}
