//! A task for each watched resource.
//!
//! Owns the requests of a watch; `rules` decides which, `frames` reads them. The owner of the resource reads whole sets
//! and changes from a bounded channel, and ends the task by dropping its end.

pub(crate) mod frames;
pub(crate) mod rules;

use std::rc::Rc;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::request::{Page, ResourcePath, WatchQuery};
use crate::cluster::client::transport::{Accept, Lane, Transport};
use crate::cluster::client::{Client, Frames};
use crate::cluster::watch::rules::{WatchContext, WatchInput, begin, step};
pub(crate) use crate::cluster::watch::rules::{WatchOutput, WatchStyle};
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::platform::rt;

/// What is not read yet stays in the receive window of the connection.
const CHANNEL: usize = 8;

/// What the owner of a watch reads. Boxed, because an empty channel has memory for 32 outputs, and a node has a hundred
/// channels.
pub(crate) type Outputs = mpsc::Receiver<Box<WatchOutput>>;
pub(crate) type Outlet = mpsc::Sender<Box<WatchOutput>>;

/// The channel of a watch.
pub(crate) fn channel() -> (Outlet, Outputs) {
    mpsc::channel(CHANNEL)
}

/// What is watched.
#[derive(Clone, Debug)]
pub(crate) struct WatchSpec {
    /// The collection; of a single object with its name.
    pub path: ResourcePath,
    /// A field selector. Of a single object the selector of its name.
    pub fields: String,
    pub style: WatchStyle,
    /// Bounds of the time after which the server ends a watch.
    pub seconds: (u32, u32),
}

impl WatchSpec {
    /// Objects of a collection, with the times of upstream's informers.
    pub(crate) fn list(path: ResourcePath, fields: String) -> Self {
        Self { path, fields, style: WatchStyle::List, seconds: (300, 600) }
    }

    /// One object; `path` has its name. Watches of objects that rarely change last longer.
    pub(crate) fn single(path: ResourcePath) -> Self {
        let fields = format!("metadata.name={}", path.name());
        Self { path, fields, style: WatchStyle::Single, seconds: (1800, 3600) }
    }
}

/// Watches until the receiver of `into` is gone.
pub(crate) fn spawn<T: Transport>(
    client: Rc<Client<T>>,
    spec: WatchSpec,
    into: Outlet,
    clock: Clock,
    dice: Dice,
) -> JoinHandle<()> {
    rt::spawn("cluster watch", follow(Task { client, spec, clock, dice, frames: None }, into))
}

async fn follow<T: Transport>(mut task: Task<T>, into: Outlet) {
    tokio::select! {
        biased;
        // The owner is gone: nothing is lost that anyone would read.
        () = into.closed() => {}
        () = task.run(&into) => {}
    }
}

struct Task<T: Transport> {
    client: Rc<Client<T>>,
    spec: WatchSpec,
    clock: Clock,
    dice: Dice,
    frames: Option<Frames<T::Body>>,
}

impl<T: Transport> Task<T> {
    /// Requests are boxed: most of its life a watch waits for the next event, and a hundred of them wait at once.
    async fn run(&mut self, into: &Outlet) {
        let (mut progress, mut outputs) = begin(self.spec.style);
        loop {
            let mut input = None;
            for output in outputs {
                match output {
                    WatchOutput::OpenList { go_on } => {
                        input = Some(Box::pin(self.list(&go_on)).await);
                    }
                    WatchOutput::OpenWatch { version, initial } => {
                        input = Some(Box::pin(self.open(version, initial)).await);
                    }
                    WatchOutput::AskVersion => {
                        let path = &self.spec.path;
                        let newest = Box::pin(self.client.newest_version(path, &self.spec.fields)).await;
                        input = Some(newest.map_or_else(WatchInput::Failed, WatchInput::Version));
                    }
                    WatchOutput::WaitFor(time) => {
                        self.frames = None;
                        Box::pin(sleep(time)).await;
                        input = Some(WatchInput::Due);
                    }
                    shown => {
                        if into.send(Box::new(shown)).await.is_err() {
                            return;
                        }
                    }
                }
            }
            let input = match input {
                Some(input) => input,
                None => self.read().await,
            };
            let context =
                WatchContext { style: self.spec.style, now: self.clock.since_boot(), unit: self.dice.unit() };
            (progress, outputs) = step(progress, input, &context);
        }
    }

    async fn list(&mut self, go_on: &str) -> WatchInput {
        self.frames = None;
        let answer = match self.spec.style {
            WatchStyle::List => self.client.page(&self.spec.path, &self.spec.fields, go_on).await,
            WatchStyle::Single => self.single().await,
        };
        answer.map_or_else(WatchInput::Failed, WatchInput::Page)
    }

    /// One object as a list of it. An object that does not exist is watched for from now on.
    async fn single(&self) -> Result<Page, ApiError> {
        match self.client.get(Lane::Main, &self.spec.path, Accept::Json).await {
            Ok(value) => {
                let version = value["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
                Ok(Page { items: vec![value], version, go_on: String::new() })
            }
            Err(error) if error.kind == ApiErrorKind::NotFound => Ok(Page::default()),
            Err(error) => Err(error),
        }
    }

    async fn open(&mut self, version: String, initial: bool) -> WatchInput {
        self.frames = None;
        let (low, high) = self.spec.seconds;
        let query = WatchQuery {
            fields: self.spec.fields.clone(),
            version,
            initial,
            bookmarks: self.spec.style == WatchStyle::List,
            seconds: self.dice.between(low, high),
        };
        match self.client.watch(&self.spec.path, &query).await {
            Ok(frames) => {
                self.frames = Some(frames);
                WatchInput::Opened
            }
            Err(error) => WatchInput::Failed(error),
        }
    }

    async fn read(&mut self) -> WatchInput {
        let next = match &mut self.frames {
            Some(frames) => frames.next().await,
            None => None,
        };
        match next {
            Some(Ok(event)) => WatchInput::Event(event),
            Some(Err(error)) => WatchInput::Failed(error),
            None => WatchInput::Ended,
        }
    }
}

#[cfg(test)]
mod tests;
