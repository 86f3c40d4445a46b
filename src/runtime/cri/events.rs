//! Hints that something changed, from whichever stream of events the runtime has.
//!
//! Owns the stream and its back-off.
//!
//! Expected flow: CRI's `GetContainerEvents` if the runtime has it (containerd since 1.7, CRI-O when
//! enabled), else containerd's own events, else none until the runtime may have been upgraded.
//!
//! Guarantees: a hint follows every event, every loss and every new start of the stream, so nothing is missed
//! for longer than a reconnect. Caveats: containerd publishes its own events before CRI shows their effect,
//! and nothing reports that a stream is open. Hints are therefore given several times, at growing intervals:
//! a box with a slow card takes seconds for what a fast one does in milliseconds.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prost::Message;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status, Streaming};

use crate::model::back_off::Retry;
use crate::platform::grpc::Channel;
use crate::platform::proto::containerd_events::events_client::EventsClient;
use crate::platform::proto::containerd_events::{Envelope, SubscribeRequest, TaskExit};
use crate::platform::proto::runtime::runtime_service_client::RuntimeServiceClient;
use crate::platform::proto::runtime::{ContainerEventResponse, GetEventsRequest};
use crate::runtime::{ErrorKind, RuntimeError};

use super::MAX_MESSAGE_BYTES;

/// First wait before the stream is opened again.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// Longest wait before the stream is opened again.
const LONGEST_RETRY: Duration = Duration::from_secs(3);
/// A stream that held this long was a good one: the next back-off starts over.
const GOOD_STREAM: Duration = Duration::from_secs(10);
/// A Go server sends its response headers only with the first event. A call that has not failed by now is a
/// stream.
const SETTLED: Duration = Duration::from_millis(500);
/// How long after its own event containerd's CRI usually shows the change (it deletes the task in between)...
const FIRST_LOOK: Duration = Duration::from_millis(25);
/// ...and later ones, measured from the last event: containerd syncs a container's state to disk before CRI
/// shows it. The last is over when the loop, after five quiet seconds, frees the memory that relisting uses.
const LATER_LOOKS: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(3)];
/// When to ask a runtime without events again: it may have been upgraded.
const ASK_AGAIN: Duration = Duration::from_secs(300);
/// containerd's events of CRI's tasks and sandboxes, as far as they change what CRI lists.
const CONTAINERD_FILTERS: [&str; 6] = [
    r#"namespace=="k8s.io",topic=="/tasks/start""#,
    r#"namespace=="k8s.io",topic=="/tasks/exit""#,
    r#"namespace=="k8s.io",topic=="/tasks/oom""#,
    r#"namespace=="k8s.io",topic=="/tasks/delete""#,
    r#"namespace=="k8s.io",topic=="/containers/delete""#,
    r#"namespace=="k8s.io",topic=="/sandboxes/exit""#,
];

/// The receiving end; the stream starts with the first wait.
pub(super) struct ChangeHints {
    channel: Channel,
    shared: Arc<EventStreamInner>,
    task: RefCell<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct EventStreamInner {
    /// Holds one hint for later; more than one is as good as one.
    hint: Notify,
    unimplemented: AtomicBool,
}

impl ChangeHints {
    pub(super) fn new(channel: Channel) -> Self {
        Self { channel, shared: Arc::default(), task: RefCell::default() }
    }

    /// Waits for a hint. Dropping the wait loses nothing.
    pub(super) async fn next(&self) -> Result<(), RuntimeError> {
        self.ensure_started();
        self.shared.hint.notified().await;
        if self.shared.unimplemented.load(Ordering::Relaxed) {
            // Left for the next caller too.
            self.shared.hint.notify_one();
            let message = "the runtime does not support container events";
            return Err(RuntimeError::new("GetContainerEvents", ErrorKind::Unimplemented, message));
        }
        Ok(())
    }

    fn ensure_started(&self) {
        let mut task = self.task.borrow_mut();
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(follow(self.channel.clone(), Arc::clone(&self.shared))));
        }
    }
}

impl Drop for ChangeHints {
    fn drop(&mut self) {
        if let Some(task) = self.task.borrow_mut().take() {
            task.abort();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    /// The runtime does not have it.
    NotOffered,
    /// The connection or the runtime is gone, or the runtime closed the stream.
    Lost,
}

/// Never returns: follows the best stream there is.
async fn follow(channel: Channel, shared: Arc<EventStreamInner>) {
    let mut retry = Retry::new(FIRST_RETRY, LONGEST_RETRY);
    loop {
        let started = Instant::now();
        let mut end = follow_cri(&channel, &shared).await;
        if end == StreamEnd::NotOffered {
            end = follow_containerd(&channel, &shared).await;
        }
        if end == StreamEnd::NotOffered {
            if !shared.unimplemented.swap(true, Ordering::Relaxed) {
                log::info!("Container runtime does not support events; polling instead");
            }
            shared.hint.notify_one();
            sleep(ASK_AGAIN).await;
            continue;
        }
        // The runtime may have changed something when the stream broke: relist.
        if !shared.unimplemented.load(Ordering::Relaxed) {
            shared.hint.notify_one();
        }
        if started.elapsed() >= GOOD_STREAM {
            retry.reset();
        }
        let delay = retry.delay();
        log::debug!(delay:? = delay; "Runtime event stream ended, reconnecting after a delay");
        sleep(delay).await;
    }
}

async fn follow_cri(channel: &Channel, shared: &EventStreamInner) -> StreamEnd {
    let mut client = RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let opened = open(shared, client.get_container_events(GetEventsRequest {})).await;
    let mut stream: Streaming<ContainerEventResponse> = match opened {
        Ok(stream) => stream,
        Err(end) => return end,
    };
    let mut looks = Looks::default();
    looks.plan(Instant::now());
    loop {
        match looks.or(shared, stream.message()).await {
            Ok(Some(_)) => shared.hint.notify_one(),
            Ok(None) => return StreamEnd::Lost,
            Err(status) => return end_of(&status),
        }
    }
}

async fn follow_containerd(channel: &Channel, shared: &EventStreamInner) -> StreamEnd {
    let mut client = EventsClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let request = SubscribeRequest { filters: CONTAINERD_FILTERS.map(str::to_owned).to_vec() };
    let mut stream: Streaming<Envelope> = match open(shared, client.subscribe(request)).await {
        Ok(stream) => stream,
        Err(end) => return end,
    };
    let mut looks = Looks::default();
    looks.plan(Instant::now());
    loop {
        match looks.or(shared, stream.message()).await {
            Ok(Some(envelope)) if is_end_of_command(&envelope) => {}
            Ok(Some(_)) => looks.plan(Instant::now()),
            Ok(None) => return StreamEnd::Lost,
            Err(status) => return end_of(&status),
        }
    }
}

/// Commands in containers end all the time (exec probes), which does not change what CRI lists.
fn is_end_of_command(envelope: &Envelope) -> bool {
    let Some(packed) = envelope.event.as_ref().filter(|_| envelope.topic == "/tasks/exit") else {
        return false;
    };
    // An event that cannot be decoded may be anything: relist.
    TaskExit::decode(packed.value.as_slice()).is_ok_and(|exit| exit.id != exit.container_id)
}

/// When to give hints after containerd's own events. A burst of events counts as one change.
#[derive(Debug, Default)]
struct Looks {
    first: Option<Instant>,
    last_event: Option<Instant>,
    /// How many of [`LATER_LOOKS`] were given since the last event.
    had: usize,
}

impl Looks {
    /// Further events do not delay the first relist, but they delay the later ones.
    fn plan(&mut self, now: Instant) {
        self.first.get_or_insert(now + FIRST_LOOK);
        self.last_event = Some(now);
        self.had = 0;
    }

    fn next(&self) -> Option<Instant> {
        let later = self.last_event.zip(LATER_LOOKS.get(self.had)).map(|(event, after)| event + *after);
        self.first.into_iter().chain(later).min()
    }

    fn drop_due(&mut self, now: Instant) {
        self.first = self.first.filter(|at| *at > now);
        if let Some(event) = self.last_event {
            self.had = LATER_LOOKS.iter().take_while(|after| event + **after <= now).count();
        }
    }

    /// Waits for the next message of a stream, and gives the hints that are due until then.
    async fn or<T>(&mut self, shared: &EventStreamInner, message: impl Future<Output = T>) -> T {
        let mut message = std::pin::pin!(message);
        loop {
            let wait = self.next().map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            if let Ok(message) = timeout(wait, &mut message).await {
                return message;
            }
            self.drop_due(Instant::now());
            shared.hint.notify_one();
        }
    }
}

/// Waits for the stream, and gives the hint of a new start as soon as the stream can be assumed open.
async fn open<T>(
    shared: &EventStreamInner,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, StreamEnd> {
    let mut call = std::pin::pin!(call);
    let early = timeout(SETTLED, &mut call).await;
    if !matches!(early, Ok(Err(_))) {
        shared.started();
    }
    let answer = match early {
        Ok(answer) => answer,
        Err(_) => call.await,
    };
    answer.map(tonic::Response::into_inner).map_err(|status| end_of(&status))
}

impl EventStreamInner {
    fn started(&self) {
        self.unimplemented.store(false, Ordering::Relaxed);
        self.hint.notify_one();
    }
}

/// A runtime with events switched off reports that in an error of its own, which is treated as not having
/// them. A transport error is a loss.
fn end_of(status: &Status) -> StreamEnd {
    let lost = std::error::Error::source(status).is_some()
        || matches!(
            status.code(),
            Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded | Code::Internal
        );
    if lost { StreamEnd::Lost } else { StreamEnd::NotOffered }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::proto::containerd_events::Packed;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn event_burst_schedules_one_early_and_few_later_relists() {
        let mut looks = Looks::default();
        assert_eq!(looks.next(), None);
        let start = Instant::now();
        looks.plan(start);
        let end = start + Duration::from_millis(10);
        looks.plan(end);
        assert_eq!(looks.next(), Some(start + FIRST_LOOK));
        looks.drop_due(start + FIRST_LOOK);
        for after in LATER_LOOKS {
            assert_eq!(looks.next(), Some(end + after));
            looks.drop_due(end + after);
        }
        assert_eq!(looks.next(), None);
        looks.plan(end + MINUTE);
        assert_eq!(looks.next(), Some(end + MINUTE + FIRST_LOOK), "a new event begins anew");
        looks.drop_due(end + MINUTE * 2);
        assert_eq!(looks.next(), None, "looks that were missed are one look");
    }

    #[tokio::test(start_paused = true)]
    async fn hints_go_on_for_seconds_after_the_last_event_and_then_end() {
        let shared = EventStreamInner::default();
        let start = Instant::now();
        let mut looks = Looks::default();
        looks.plan(start);
        let mut silence = std::pin::pin!(looks.or(&shared, std::future::pending::<()>()));
        let mut given = Vec::new();
        loop {
            let hint = timeout(MINUTE, shared.hint.notified());
            tokio::select! {
                () = &mut silence => panic!("no message came"),
                hint = hint => match hint {
                    Ok(()) => given.push(start.elapsed()),
                    Err(_) => break,
                },
            }
        }
        assert_eq!(given, [&[FIRST_LOOK][..], &LATER_LOOKS].concat());
    }

    #[test]
    fn exec_exit_event_is_ignored_and_container_exit_is_not() {
        let envelope = |topic: &str, container: &str, id: &str| {
            let exit = TaskExit { container_id: container.into(), id: id.into() };
            let event = Some(Packed { value: exit.encode_to_vec() });
            Envelope { namespace: "k8s.io".into(), topic: topic.into(), event }
        };
        assert!(is_end_of_command(&envelope("/tasks/exit", "c1", "exec-7")));
        assert!(!is_end_of_command(&envelope("/tasks/exit", "c1", "c1")));
        assert!(!is_end_of_command(&envelope("/tasks/oom", "c1", "")));
        let garbage = Packed { value: vec![0xff; 3] };
        let garbage = Envelope { topic: "/tasks/exit".into(), event: Some(garbage), ..Envelope::default() };
        assert!(!is_end_of_command(&garbage));
        assert!(!is_end_of_command(&Envelope { topic: "/tasks/exit".into(), ..Envelope::default() }));
    }

    #[test]
    fn a_refusal_is_no_offer_and_a_broken_connection_is_a_loss() {
        assert_eq!(end_of(&Status::unimplemented("unknown method")), StreamEnd::NotOffered);
        assert_eq!(end_of(&Status::unknown("events are disabled")), StreamEnd::NotOffered);
        assert_eq!(end_of(&Status::unavailable("shutting down")), StreamEnd::Lost);
    }
}
