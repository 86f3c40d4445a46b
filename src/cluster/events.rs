//! Uploads the node's events to the apiserver.
//!
//! Owns which events were accepted. One request at a time: events wait for the link and for their turn, and nothing
//! waits for them. What the recorder has forgotten meanwhile is not uploaded.

pub(crate) mod rules;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;

use crate::cluster::client::Client;
use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, Content, Lane, Transport};
use crate::cluster::events::rules::{Upload, UploadedEvents, uploads};
use crate::model::back_off::Retry;
use crate::model::types::Timestamp;
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::pod::events::EventRecorder;

/// Delays after a failure.
const FIRST_DELAY: Duration = Duration::from_secs(2);
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// What the upload is given.
pub(crate) struct EventUploader<T> {
    /// With the limits of events (`eventRecordQPS`, `eventBurst`).
    pub client: Rc<Client<T>>,
    pub recorder: EventRecorder,
    pub clock: Clock,
    pub dice: Dice,
    /// Events of this time are sent together; repetitions meanwhile cost no request.
    pub gather: Duration,
    pub progress: Rc<UploadProgress>,
}

/// How far the upload is.
#[derive(Debug, Default)]
pub(crate) struct UploadProgress {
    /// All events up to this time were accepted. It is stored with other events and never alone: without it, events are
    /// sent twice.
    pub cursor: Cell<Timestamp>,
    /// Events that the apiserver does not have yet.
    pub waiting: Cell<usize>,
}

/// How a round ended.
enum Round {
    /// There may be more to do at once.
    Done,
    /// No event can be sent now.
    Wait,
}

impl<T: Transport> EventUploader<T> {
    /// Uploads as long as there is a recorder.
    pub(crate) async fn run(self) {
        let mut changed = self.recorder.watch();
        let mut sent = UploadedEvents::restored(&self.recorder.recent(), self.progress.cursor.get());
        let mut retry = Retry::new(FIRST_DELAY, LONGEST_DELAY);
        loop {
            changed.mark_unchanged();
            let ring = self.recorder.recent();
            sent.retain(&ring);
            let uploads = uploads(&ring, &sent, self.recorder.node_name(), self.clock.now());
            self.progress.waiting.set(uploads.len());
            if uploads.is_empty() {
                self.progress.cursor.set(ring.iter().map(|known| known.last).max().unwrap_or_default());
                retry.reset();
                if changed.changed().await.is_err() {
                    return;
                }
                sleep(self.gather).await;
                continue;
            }
            if let Round::Wait = self.send(uploads, &mut sent).await {
                sleep(retry.delay_with(self.dice.unit())).await;
            }
        }
    }

    async fn send(&self, uploads: Vec<Upload>, sent: &mut UploadedEvents) -> Round {
        let mut round = Round::Done;
        for upload in uploads {
            let (answer, event) = match upload {
                Upload::Create(event) => {
                    let path = ResourcePath::namespaced("", "events", &event.namespace, "");
                    (self.client.create(Lane::Main, &path, &event.body).await, event)
                }
                Upload::Patch(event) => {
                    let path = ResourcePath::namespaced("", "events", &event.namespace, &event.name);
                    let (kind, accept) = (Content::StrategicMerge, Accept::Metadata);
                    match self.client.patch(Lane::Main, &path, kind, &event.body, accept).await {
                        Err(error) if error.kind == ApiErrorKind::NotFound => {
                            sent.forget(&event);
                            continue;
                        }
                        answer => (answer, event),
                    }
                }
            };
            match answer {
                Ok(_) => sent.mark(&event, event.count),
                // Sent by an earlier process: its count is patched in the next round.
                Err(error) if error.kind == ApiErrorKind::AlreadyExists => sent.mark(&event, 0),
                // The server cannot store this one now; others may do.
                Err(error) if error.status == 500 => round = Round::Wait,
                Err(error) if waits(&error) => return Round::Wait,
                Err(error) => {
                    log::debug!(name = event.name, namespace = event.namespace, err:% = error; "Event was refused");
                    sent.mark(&event, event.count);
                }
            }
        }
        round
    }
}

/// Nothing was refused: the event can be sent later.
fn waits(error: &ApiError) -> bool {
    error.is_offline() || matches!(error.kind, ApiErrorKind::TooMany | ApiErrorKind::NoTurn)
}

#[cfg(test)]
mod tests;
