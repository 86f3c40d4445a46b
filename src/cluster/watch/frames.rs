//! The bytes of a watch to its events.
//!
//! Pure: bytes in, events out. Owns the bound of one event and what an event means.

use serde_json::Value;

use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::codec::json;

/// Longest event. etcd stores 1.5 MiB; managed fields come on top of that in the encoding of the wire.
const LONGEST_FRAME: usize = 4 << 20;

/// The annotation of a bookmark that marks the end of the initial objects of a streaming list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// One event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WatchEvent {
    /// ADDED or MODIFIED.
    Put(WatchItem),
    /// DELETED: the last state.
    Deleted(WatchItem),
    Bookmark {
        version: String,
        /// All objects of a streaming list have been sent.
        is_initial_end: bool,
    },
    /// ERROR: the server ends the watch.
    Failed(ApiError),
}

/// Which object. After a deletion, another one may have the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ItemKey {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// One object, as the server shows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WatchItem {
    pub key: ItemKey,
    pub version: String,
    /// Without `managedFields`.
    pub value: Value,
}

impl WatchItem {
    /// `None` for something without a name.
    pub(crate) fn of(value: Value) -> Option<Self> {
        let metadata = &value["metadata"];
        let text = |name: &str| metadata[name].as_str().unwrap_or_default().to_owned();
        let key = ItemKey { namespace: text("namespace"), name: text("name"), uid: text("uid") };
        let version = text("resourceVersion");
        (!key.name.is_empty()).then_some(Self { key, version, value })
    }
}

/// Splits the answer at line ends. Holds one event that is not complete, and what arrived with its end.
#[derive(Debug, Default)]
pub(crate) struct FrameBuffer {
    bytes: Vec<u8>,
    /// Of `bytes`: taken already.
    taken: usize,
    /// Of `bytes`: no line end before.
    searched: usize,
}

impl FrameBuffer {
    /// Adds what has arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next event that is complete; unknown types of events are left out.
    pub(crate) fn next(&mut self) -> Option<Result<WatchEvent, ApiError>> {
        loop {
            let length = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
            let end = length.map_or(self.bytes.len(), |length| self.searched + length);
            if end - self.taken > LONGEST_FRAME {
                let message = format!("an event is longer than {LONGEST_FRAME} bytes");
                return Some(Err(ApiError::new(ApiErrorKind::Gone, message)));
            }
            if length.is_none() {
                self.searched = end;
                self.shrink();
                return None;
            }
            let line = self.bytes[self.taken..end].trim_ascii();
            let event = if line.is_empty() { Ok(None) } else { event(line) };
            self.taken = end + 1;
            self.searched = self.taken;
            match event {
                Ok(None) => {}
                Ok(Some(event)) => return Some(Ok(event)),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// True inside an event: an answer that ends now was cut off.
    pub(crate) fn is_inside(&self) -> bool {
        self.bytes.len() > self.taken
    }

    /// A quiet watch holds no memory.
    fn shrink(&mut self) {
        self.bytes.drain(..self.taken);
        self.searched -= self.taken;
        self.taken = 0;
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
        }
    }
}

/// What one line says; `None` for an event of an unknown type.
fn event(line: &[u8]) -> Result<Option<WatchEvent>, ApiError> {
    let not_ours = |message: &str| ApiError::not_an_apiserver(200, message);
    let mut frame =
        json::parse_lean(line).map_err(|error| not_ours(&format!("an event is no JSON: {error}")))?;
    let object = frame.get_mut("object").map(Value::take).unwrap_or_default();
    let item = |object| WatchItem::of(object).ok_or_else(|| not_ours("the object of an event has no name"));
    Ok(Some(match frame["type"].as_str() {
        Some("ADDED" | "MODIFIED") => WatchEvent::Put(item(object)?),
        Some("DELETED") => WatchEvent::Deleted(item(object)?),
        Some("BOOKMARK") => {
            let metadata = &object["metadata"];
            WatchEvent::Bookmark {
                version: metadata["resourceVersion"].as_str().unwrap_or_default().to_owned(),
                is_initial_end: metadata["annotations"][INITIAL_EVENTS_END] == "true",
            }
        }
        Some("ERROR") => WatchEvent::Failed(ApiError::of_status(&object, 500, None)),
        Some(_) => return Ok(None),
        None => return Err(not_ours("an event has no type")),
    }))
}
