//! Hints that a container has changed, from the engine's stream of events.
//!
//! Owns the stream and its back-off. A hint follows every event, every loss and every new start of the stream. The end of a
//! container is hinted at twice: the engine sends the event before its lists show the end, and the agent may be that quick.

use std::rc::{Rc, Weak};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Method;
use tokio::time::Instant;

use super::Engine;
use super::client::{Payload, escaped};
use super::observed::text;
use crate::codec::json;
use crate::model::back_off::Retry;
use crate::platform::rt;

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
    let mut held: Vec<u8> = Vec::new();
    while let Some(Ok(frame)) = events.frame().await {
        let Some(engine) = changed.upgrade() else { return };
        engine.changed.notify_one();
        held.extend_from_slice(frame.data_ref().map(AsRef::as_ref).unwrap_or_default());
        for id in ended(&mut held) {
            let engine = Rc::clone(&engine);
            rt::spawn("docker event", async move {
                // It waits for the container's lock, which is held until lists show the end.
                let _ = engine.inspect(call, &id).await;
                engine.changed.notify_one();
            });
        }
    }
}

/// Takes whole lines away, and returns the ids of containers that have ended.
fn ended(held: &mut Vec<u8>) -> Vec<String> {
    let whole = held.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let lines: Vec<u8> = held.drain(..whole).collect();
    let events = lines.split(|byte| *byte == b'\n').filter_map(|line| json::parse_lean(line).ok());
    events.filter(|event| event["Action"] == "die").map(|event| text(&event["Actor"]["ID"])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_containers_are_found_however_events_are_cut() {
        let mut held = Vec::new();
        let text = br#"{"status":"start","id":"a","Action":"start","Actor":{"ID":"a"}}
{"status":"die","id":"b","Action":"die","Actor":{"ID":"b","Attributes":{"exitCode":"0"}}}
{"Action":"die","Actor":{"ID":"c"}}
"#;
        let (one, two) = text.split_at(100);
        held.extend_from_slice(one);
        assert!(ended(&mut held).is_empty(), "the second is not whole");
        held.extend_from_slice(two);
        assert_eq!(ended(&mut held), ["b", "c"]);
        assert!(held.is_empty());
    }
}
