//! What a watch does next: one machine for all resources.
//!
//! Pure: a state and an input in, a state and outputs out. Owns when a resource is listed, when a watch continues from
//! its version, and how long it waits after a failure (client-go 1.36, `Reflector`).

use std::time::Duration;

use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::request::Page;
use crate::cluster::watch::frames::{ItemKey, WatchEvent, WatchItem};
use crate::model::back_off::Retry;

/// Upstream's delays of a reflector.
const FIRST_DELAY: Duration = Duration::from_millis(800);
const LONGEST_DELAY: Duration = Duration::from_secs(30);
/// After this time without a failure, delays are short again.
const PEACE: Duration = Duration::from_secs(120);
/// A watch that ends sooner than this was refused, whatever its status was.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
/// After a longer interruption everything is listed. After a shorter one the newest version of the server decides: if
/// it was restored from a backup, a watch from a version that it has not reached yet shows nothing and reports no error.
const RESUME_WITHIN: Duration = Duration::from_secs(60);

/// How the objects are first read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchStyle {
    /// A streaming list, or pages where the server has none.
    List,
    /// One object by name: GET, then a watch without bookmarks.
    Single,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WatchState {
    Listing {
        staged: Vec<WatchItem>,
        /// The token of the page that was asked for.
        go_on: String,
    },
    /// Reading the first part of a streaming list.
    Initial {
        staged: Vec<WatchItem>,
    },
    Live {
        version: String,
    },
    Waiting {
        then: Reopen,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reopen {
    List,
    /// A list by pages, although the server may have streaming lists.
    Pages,
    Watch {
        version: String,
    },
}

/// A watch between two steps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WatchProgress {
    pub state: WatchState,
    retry: Retry,
    /// The server has no streaming lists.
    has_pages_only: bool,
    opened: Duration,
    /// The last failure.
    failed: Option<Duration>,
    /// The first failure since the last answer.
    lost: Option<Duration>,
    /// The newest version that the server has shown, where it is a number.
    newest: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum WatchInput {
    Page(Page),
    /// The newest version of the server.
    Version(String),
    /// The server has accepted the watch.
    Opened,
    Event(WatchEvent),
    /// The server ended the watch, between two events.
    Ended,
    Failed(ApiError),
    /// The time of `WaitFor` has passed.
    Due,
}

/// Effects first, then what the owner of the watch reads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WatchOutput {
    OpenList {
        go_on: String,
    },
    OpenWatch {
        version: String,
        initial: bool,
    },
    /// Asks for the newest version of the server.
    AskVersion,
    WaitFor(Duration),
    /// All objects that there are.
    Set {
        items: Vec<WatchItem>,
        /// The version of the list is lower than one that the server has shown: its storage was replaced.
        went_back: bool,
    },
    Put(WatchItem),
    Gone(ItemKey),
    /// The server has accepted the watch: what was shown is current again.
    Current,
    Lost(ApiError),
}

pub(crate) struct WatchContext {
    pub style: WatchStyle,
    /// Since any fixed moment; the time of a suspended machine counts.
    pub now: Duration,
    /// Random, 0 to 1.
    pub unit: f64,
}

/// The first state of a watch, and what to do for it.
pub(crate) fn begin(style: WatchStyle) -> (WatchProgress, Vec<WatchOutput>) {
    let mut progress = WatchProgress {
        state: WatchState::Waiting { then: Reopen::List },
        retry: Retry::new(FIRST_DELAY, LONGEST_DELAY),
        has_pages_only: false,
        opened: Duration::ZERO,
        failed: None,
        lost: None,
        newest: 0,
    };
    let output = progress.list(style, false);
    (progress, vec![output])
}

/// The next state, and what to do in this order.
pub(crate) fn step(
    mut progress: WatchProgress,
    input: WatchInput,
    context: &WatchContext,
) -> (WatchProgress, Vec<WatchOutput>) {
    let outputs = match input {
        WatchInput::Opened => {
            progress.opened = context.now;
            progress.lost = None;
            vec![WatchOutput::Current]
        }
        WatchInput::Page(page) => progress.page(page, context.style),
        WatchInput::Version(version) => vec![progress.resume(&version, context)],
        WatchInput::Event(WatchEvent::Failed(error)) | WatchInput::Failed(error) => {
            progress.fail(error, context)
        }
        WatchInput::Event(event) => progress.event(event).into_iter().collect(),
        WatchInput::Ended => progress.end(context),
        WatchInput::Due => vec![progress.due(context)],
    };
    (progress, outputs)
}

impl WatchProgress {
    /// Begins to read everything.
    fn list(&mut self, style: WatchStyle, by_pages: bool) -> WatchOutput {
        if style == WatchStyle::Single || by_pages || self.has_pages_only {
            self.state = WatchState::Listing { staged: Vec::new(), go_on: String::new() };
            return WatchOutput::OpenList { go_on: String::new() };
        }
        self.state = WatchState::Initial { staged: Vec::new() };
        WatchOutput::OpenWatch { version: String::new(), initial: true }
    }

    fn page(&mut self, page: Page, style: WatchStyle) -> Vec<WatchOutput> {
        let WatchState::Listing { staged, go_on } = &mut self.state else { return Vec::new() };
        self.lost = None;
        staged.extend(page.items.into_iter().filter_map(WatchItem::of));
        if !page.go_on.is_empty() {
            go_on.clone_from(&page.go_on);
            return vec![WatchOutput::OpenList { go_on: page.go_on }];
        }
        let items = std::mem::take(staged);
        // The version of one object is its own, not that of the storage.
        let went_back = self.start_over(&page.version) && style == WatchStyle::List;
        self.state = WatchState::Live { version: page.version.clone() };
        let next = WatchOutput::OpenWatch { version: page.version, initial: false };
        vec![WatchOutput::Set { items, went_back }, next]
    }

    /// A complete list has this version. Whether it is lower than one that was shown.
    fn start_over(&mut self, version: &str) -> bool {
        let Ok(version) = version.parse() else { return false };
        version < std::mem::replace(&mut self.newest, version)
    }

    fn advance(&mut self, version: String) {
        self.newest = self.newest.max(version.parse().unwrap_or_default());
        self.state = WatchState::Live { version };
    }

    fn event(&mut self, event: WatchEvent) -> Option<WatchOutput> {
        match (&mut self.state, event) {
            (WatchState::Initial { staged }, WatchEvent::Put(item)) => {
                match staged.iter_mut().find(|known| known.key == item.key) {
                    Some(known) => *known = item,
                    None => staged.push(item),
                }
                None
            }
            (WatchState::Initial { staged }, WatchEvent::Deleted(item)) => {
                staged.retain(|known| known.key != item.key);
                None
            }
            (WatchState::Initial { staged }, WatchEvent::Bookmark { version, is_initial_end: true }) => {
                let items = std::mem::take(staged);
                let went_back = self.start_over(&version);
                self.state = WatchState::Live { version };
                Some(WatchOutput::Set { items, went_back })
            }
            (WatchState::Live { .. }, WatchEvent::Put(item)) => {
                self.advance(item.version.clone());
                Some(WatchOutput::Put(item))
            }
            (WatchState::Live { .. }, WatchEvent::Deleted(item)) => {
                self.advance(item.version);
                Some(WatchOutput::Gone(item.key))
            }
            (WatchState::Live { .. }, WatchEvent::Bookmark { version, .. }) => {
                self.advance(version);
                None
            }
            _ => None,
        }
    }

    /// The server ended the watch, as it does after the time that was asked for.
    fn end(&mut self, context: &WatchContext) -> Vec<WatchOutput> {
        let then = match &self.state {
            WatchState::Live { version } => Reopen::Watch { version: version.clone() },
            // It sent all objects and no bookmark: it does not know what a streaming list is.
            WatchState::Initial { .. } => Reopen::Pages,
            WatchState::Listing { .. } | WatchState::Waiting { .. } => return Vec::new(),
        };
        match then {
            Reopen::Watch { version } if context.now.saturating_sub(self.opened) >= SHORTEST_WATCH => {
                vec![WatchOutput::OpenWatch { version, initial: false }]
            }
            then => vec![self.wait(then, Duration::ZERO, context)],
        }
    }

    fn fail(&mut self, error: ApiError, context: &WatchContext) -> Vec<WatchOutput> {
        let then = match (&self.state, error.kind) {
            (WatchState::Initial { staged }, ApiErrorKind::Invalid) if staged.is_empty() => {
                self.has_pages_only = true;
                return vec![self.list(context.style, true)];
            }
            // Too old a version, an event that is too long: only a list helps, and nothing is lost.
            (_, ApiErrorKind::Gone) => return vec![self.wait(Reopen::List, Duration::ZERO, context)],
            (_, ApiErrorKind::Invalid | ApiErrorKind::NotAnApiserver) => Reopen::List,
            (WatchState::Live { version } | WatchState::Waiting { then: Reopen::Watch { version } }, _) => {
                Reopen::Watch { version: version.clone() }
            }
            _ => Reopen::List,
        };
        self.lost.get_or_insert(context.now);
        let wait = self.wait(then, error.retry_after.unwrap_or_default(), context);
        vec![WatchOutput::Lost(error), wait]
    }

    fn wait(&mut self, then: Reopen, at_least: Duration, context: &WatchContext) -> WatchOutput {
        if self.failed.is_some_and(|last| context.now.saturating_sub(last) >= PEACE) {
            self.retry.reset();
        }
        self.failed = Some(context.now);
        self.state = WatchState::Waiting { then };
        WatchOutput::WaitFor(self.retry.delay_with(context.unit).max(at_least))
    }

    fn due(&mut self, context: &WatchContext) -> WatchOutput {
        let is_long = self.lost.is_some_and(|lost| context.now.saturating_sub(lost) > RESUME_WITHIN);
        match &self.state {
            WatchState::Waiting { then: Reopen::Watch { .. } }
                if !is_long && self.lost.is_some() && context.style == WatchStyle::List =>
            {
                WatchOutput::AskVersion
            }
            WatchState::Waiting { then: Reopen::Watch { version } } if !is_long => {
                let version = version.clone();
                self.state = WatchState::Live { version: version.clone() };
                WatchOutput::OpenWatch { version, initial: false }
            }
            WatchState::Waiting { then: Reopen::Pages } => self.list(context.style, true),
            _ => self.list(context.style, false),
        }
    }

    /// Goes on where the watch was, unless the server is behind it.
    fn resume(&mut self, newest: &str, context: &WatchContext) -> WatchOutput {
        let is_behind = newest.parse().is_ok_and(|newest: u64| newest < self.newest);
        match &self.state {
            WatchState::Waiting { then: Reopen::Watch { version } } if !is_behind => {
                let version = version.clone();
                self.state = WatchState::Live { version: version.clone() };
                WatchOutput::OpenWatch { version, initial: false }
            }
            _ => self.list(context.style, false),
        }
    }
}
