use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::LocalSet;
use tokio::time::{Instant, advance, timeout};

use super::frames::{FrameBuffer, ItemKey, WatchEvent, WatchItem};
use super::rules::{Reopen, WatchProgress, WatchState};
use super::*;
use crate::cluster::client::ClientConfig;
use crate::cluster::client::limits::Limit;
use crate::cluster::fake::{FakeApiserver, Removal};
use crate::model::types::Timestamp;

const SECOND: Duration = Duration::from_secs(1);

fn pod(name: &str, version: u64) -> Value {
    json!({"metadata": {"namespace": "default", "name": name, "uid": format!("u-{name}"),
        "resourceVersion": version.to_string()}, "spec": {}})
}

fn item(name: &str, version: u64) -> WatchItem {
    WatchItem::of(pod(name, version)).unwrap()
}

fn key(name: &str) -> ItemKey {
    ItemKey { namespace: "default".to_owned(), name: name.to_owned(), uid: format!("u-{name}") }
}

fn failed(kind: ApiErrorKind) -> WatchInput {
    WatchInput::Failed(ApiError::new(kind, "why"))
}

fn put(name: &str, version: u64) -> WatchInput {
    WatchInput::Event(WatchEvent::Put(item(name, version)))
}

fn bookmark(version: &str, is_initial_end: bool) -> WatchInput {
    WatchInput::Event(WatchEvent::Bookmark { version: version.to_owned(), is_initial_end })
}

fn open(version: &str, initial: bool) -> WatchOutput {
    WatchOutput::OpenWatch { version: version.to_owned(), initial }
}

fn set(names: &[&str]) -> WatchOutput {
    let items = names.iter().map(|name| item(name, 1)).collect();
    WatchOutput::Set { items, went_back: false }
}

fn version(version: &str) -> WatchInput {
    WatchInput::Version(version.to_owned())
}

fn wait(millis: u64) -> WatchOutput {
    WatchOutput::WaitFor(Duration::from_millis(millis))
}

fn lost(kind: ApiErrorKind) -> WatchOutput {
    WatchOutput::Lost(ApiError::new(kind, "why"))
}

/// Steps at these seconds, each with the outputs it must have.
fn check(
    style: WatchStyle,
    first: &[WatchOutput],
    steps: Vec<(u64, WatchInput, Vec<WatchOutput>)>,
) -> WatchProgress {
    let (mut progress, outputs) = begin(style);
    assert_eq!(outputs, first);
    for (number, (second, input, expected)) in steps.into_iter().enumerate() {
        let context = WatchContext { style, now: SECOND * u32::try_from(second).unwrap(), unit: 0.0 };
        let shown = format!("step {number}: {input:?}");
        let (next, outputs) = step(progress, input, &context);
        assert_eq!(outputs, expected, "{shown}");
        progress = next;
    }
    progress
}

#[test]
fn a_streaming_list_is_a_set_at_its_bookmark() {
    let end = check(
        WatchStyle::List,
        &[open("", true)],
        vec![
            (0, WatchInput::Opened, vec![WatchOutput::Current]),
            (0, put("a", 1), vec![]),
            (0, put("b", 1), vec![]),
            (0, put("c", 1), vec![]),
            (0, WatchInput::Event(WatchEvent::Deleted(item("b", 1))), vec![]),
            (0, put("a", 1), vec![]),
            (0, bookmark("6", false), vec![]),
            (0, bookmark("7", true), vec![set(&["a", "c"])]),
            (9, put("d", 8), vec![WatchOutput::Put(item("d", 8))]),
            (9, WatchInput::Event(WatchEvent::Deleted(item("a", 9))), vec![WatchOutput::Gone(key("a"))]),
            (9, bookmark("12", false), vec![]),
            (400, WatchInput::Ended, vec![open("12", false)]),
        ],
    );
    assert_eq!(end.state, WatchState::Live { version: "12".to_owned() });
}

#[test]
fn a_server_without_watch_lists_is_paged() {
    let page = |names: &[&str], go_on: &str| {
        let items = names.iter().map(|name| pod(name, 1)).collect();
        WatchInput::Page(Page { items, version: "5".to_owned(), go_on: go_on.to_owned() })
    };
    let list = |go_on: &str| WatchOutput::OpenList { go_on: go_on.to_owned() };
    check(
        WatchStyle::List,
        &[open("", true)],
        vec![
            (0, failed(ApiErrorKind::Invalid), vec![list("")]),
            (0, page(&["a"], "t"), vec![list("t")]),
            (0, page(&["b"], ""), vec![set(&["a", "b"]), open("5", false)]),
            (1, WatchInput::Opened, vec![WatchOutput::Current]),
            // A token that has expired: from the beginning, and by pages again.
            (9, failed(ApiErrorKind::Gone), vec![wait(800)]),
            (10, WatchInput::Due, vec![list("")]),
            (10, page(&["a"], "t"), vec![list("t")]),
            (10, failed(ApiErrorKind::Gone), vec![wait(1600)]),
            (12, WatchInput::Due, vec![list("")]),
        ],
    );
    // An old server sends objects and never the bookmark.
    let end = check(
        WatchStyle::List,
        &[open("", true)],
        vec![
            (0, WatchInput::Opened, vec![WatchOutput::Current]),
            (0, put("a", 1), vec![]),
            (300, WatchInput::Ended, vec![wait(800)]),
        ],
    );
    assert_eq!(end.state, WatchState::Waiting { then: Reopen::Pages });
}

#[test]
fn gone_lists_again_with_an_empty_version() {
    check(
        WatchStyle::List,
        &[open("", true)],
        vec![
            (0, WatchInput::Opened, vec![WatchOutput::Current]),
            (0, bookmark("7", true), vec![set(&[])]),
            (5, failed(ApiErrorKind::Gone), vec![wait(800)]),
            (6, WatchInput::Due, vec![open("", true)]),
            (6, WatchInput::Opened, vec![WatchOutput::Current]),
            (6, bookmark("9", true), vec![set(&[])]),
        ],
    );
}

#[test]
fn a_short_interruption_resumes_and_a_long_one_lists() {
    let mut steps =
        vec![(0, WatchInput::Opened, vec![WatchOutput::Current]), (0, bookmark("7", true), vec![set(&[])])];
    // Every failure doubles the delay; the version stays.
    for (second, millis) in [(100, 800), (110, 1600), (120, 3200), (130, 6400)] {
        let outputs = vec![lost(ApiErrorKind::Unreachable), wait(millis)];
        steps.push((second, failed(ApiErrorKind::Unreachable), outputs));
        steps.push((second + 5, WatchInput::Due, vec![WatchOutput::AskVersion]));
        steps.push((second + 5, version("7"), vec![open("7", false)]));
    }
    // Accepted: the next interruption is a new one, and after two minutes its delay is the first again.
    steps.push((136, WatchInput::Opened, vec![WatchOutput::Current]));
    steps.push((300, failed(ApiErrorKind::Server), vec![lost(ApiErrorKind::Server), wait(800)]));
    steps.push((360, WatchInput::Due, vec![WatchOutput::AskVersion]));
    steps.push((360, version("8"), vec![open("7", false)]));
    steps.push((361, failed(ApiErrorKind::Server), vec![lost(ApiErrorKind::Server), wait(1600)]));
    steps.push((363, WatchInput::Due, vec![open("", true)]));
    check(WatchStyle::List, &[open("", true)], steps);
}

#[test]
fn a_server_behind_its_own_version_is_listed_again() {
    let broken = |millis| vec![lost(ApiErrorKind::Unreachable), wait(millis)];
    let list = WatchOutput::Set { items: vec![], went_back: true };
    check(
        WatchStyle::List,
        &[open("", true)],
        vec![
            (0, WatchInput::Opened, vec![WatchOutput::Current]),
            (0, bookmark("7", true), vec![set(&[])]),
            (9, bookmark("90", false), vec![]),
            (100, failed(ApiErrorKind::Unreachable), broken(800)),
            (101, WatchInput::Due, vec![WatchOutput::AskVersion]),
            // The question itself fails: the version is kept.
            (101, failed(ApiErrorKind::Unreachable), broken(1600)),
            (103, WatchInput::Due, vec![WatchOutput::AskVersion]),
            (103, version("80"), vec![open("", true)]),
            (103, WatchInput::Opened, vec![WatchOutput::Current]),
            (103, bookmark("80", true), vec![list]),
            (104, failed(ApiErrorKind::Gone), vec![wait(3200)]),
            (110, WatchInput::Due, vec![open("", true)]),
            // Behind the list before, not behind one that was listed since.
            (110, bookmark("81", true), vec![set(&[])]),
        ],
    );
}

#[test]
fn a_watch_that_ends_at_once_waits() {
    check(
        WatchStyle::List,
        &[open("", true)],
        vec![
            (0, WatchInput::Opened, vec![WatchOutput::Current]),
            (0, bookmark("7", true), vec![set(&[])]),
            (0, WatchInput::Ended, vec![wait(800)]),
            (1, WatchInput::Due, vec![open("7", false)]),
        ],
    );
}

#[test]
fn one_object_is_read_and_then_watched() {
    let list = WatchOutput::OpenList { go_on: String::new() };
    let page = Page { items: vec![pod("a", 1)], version: "1".to_owned(), go_on: String::new() };
    check(
        WatchStyle::Single,
        &[WatchOutput::OpenList { go_on: String::new() }],
        vec![
            (0, failed(ApiErrorKind::Forbidden), vec![lost(ApiErrorKind::Forbidden), wait(800)]),
            (1, WatchInput::Due, vec![list.clone()]),
            (1, WatchInput::Page(Page::default()), vec![set(&[]), open("", false)]),
            (1, WatchInput::Opened, vec![WatchOutput::Current]),
            (5, put("a", 3), vec![WatchOutput::Put(item("a", 3))]),
            (6, failed(ApiErrorKind::Gone), vec![wait(1600)]),
            (8, WatchInput::Due, vec![list]),
            (8, WatchInput::Page(page), vec![set(&["a"]), open("1", false)]),
        ],
    );
}

fn frame(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn read(buffer: &mut FrameBuffer) -> Vec<WatchEvent> {
    std::iter::from_fn(|| buffer.next()).map(Result::unwrap).collect()
}

#[test]
fn events_are_the_same_however_the_bytes_arrive() {
    let mark =
        json!({"metadata": {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}});
    let text = [
        frame("ADDED", &pod("a", 1)),
        frame("MODIFIED", &pod("ä", 2)),
        "\n\r\n".to_owned(),
        frame("DELETED", &pod("a", 3)),
        frame("BOOKMARK", &mark),
        frame("ERROR", &json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})),
    ]
    .concat();
    let mut whole = FrameBuffer::default();
    whole.push(text.as_bytes());
    let expected = read(&mut whole);
    let [WatchEvent::Put(_), WatchEvent::Put(_), WatchEvent::Deleted(_), mark, WatchEvent::Failed(error)] =
        &expected[..]
    else {
        panic!("{expected:?}");
    };
    assert_eq!(*mark, WatchEvent::Bookmark { version: "9".to_owned(), is_initial_end: true });
    assert_eq!((error.kind, error.message.as_str()), (ApiErrorKind::Gone, "too old"));
    for size in [1, 2, 3, 7, 64] {
        let mut buffer = FrameBuffer::default();
        let mut events = Vec::new();
        for part in text.as_bytes().chunks(size) {
            buffer.push(part);
            events.extend(read(&mut buffer));
        }
        assert_eq!(events, expected, "in parts of {size}");
        assert!(!buffer.is_inside());
    }
}

#[test]
fn an_unknown_event_type_is_ignored() {
    let mut buffer = FrameBuffer::default();
    buffer.push(frame("POLISHED", &json!({})).as_bytes());
    buffer.push(frame("ADDED", &pod("a", 1)).as_bytes());
    assert_eq!(read(&mut buffer), [WatchEvent::Put(item("a", 1))]);
    for odd in ["<html>\n", "{}\n", "{\"type\":\"ADDED\",\"object\":{\"metadata\":{}}}\n", "[]\n"] {
        let mut buffer = FrameBuffer::default();
        buffer.push(odd.as_bytes());
        assert_eq!(buffer.next().unwrap().unwrap_err().kind, ApiErrorKind::NotAnApiserver, "{odd}");
    }
}

#[test]
fn managed_fields_cost_no_memory() {
    let mut object = pod("a", 1);
    object["metadata"]["managedFields"] = json!([{"manager": "m", "fieldsV1": {"f:spec": {"f:x": {}}}}]);
    object["metadata"]["annotations"] = json!({"managedFields": "of no object"});
    let mut buffer = FrameBuffer::default();
    buffer.push(frame("ADDED", &object).as_bytes());
    let events = read(&mut buffer);
    let [WatchEvent::Put(item)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(item.value["metadata"].get("managedFields"), None);
    assert_eq!(item.value["metadata"]["annotations"]["managedFields"], "of no object");
}

#[test]
fn a_frame_over_4_mib_reopens_the_watch() {
    let mut buffer = FrameBuffer::default();
    for _ in 0..65 {
        buffer.push(&vec![b' '; 64 << 10]);
    }
    let error = buffer.next().unwrap().unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Gone);
    let (progress, _) = begin(WatchStyle::List);
    let context = WatchContext { style: WatchStyle::List, now: SECOND, unit: 0.0 };
    let (progress, outputs) = step(progress, WatchInput::Failed(error), &context);
    assert_eq!(outputs, [wait(800)]);
    assert_eq!(step(progress, WatchInput::Due, &context).1, [open("", true)]);
}

/// A watch of the pods of node `n1` on a fake apiserver, with what its owner reads.
struct WatchRun {
    server: FakeApiserver,
    outputs: Outputs,
}

impl WatchRun {
    fn start(server: FakeApiserver, spec: WatchSpec, clock: Clock) -> Self {
        let config = ClientConfig {
            limit: Limit { qps: 50, burst: 100 },
            timeout: SECOND * 30,
            heartbeat_timeout: SECOND * 10,
        };
        let transport = Rc::new(server.transport("system:node:n1"));
        let client = Rc::new(Client::new(transport, config, Dice::seeded(1)));
        let (into, outputs) = channel();
        drop(spawn(client, spec, into, clock, Dice::seeded(2)));
        Self { server, outputs }
    }

    /// Of pods, with these pods there at the start.
    fn pods(names: &[&str]) -> Self {
        let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
        let server = FakeApiserver::new(clock.clone(), 1);
        for name in names {
            server.bind(plain(name), "n1");
        }
        let path = ResourcePath::whole("", "pods", "");
        Self::start(server, WatchSpec::list(path, "spec.nodeName=n1".to_owned()), clock)
    }

    /// What the owner reads within this time, in short.
    async fn shown(&mut self, time: Duration) -> Vec<String> {
        let until = Instant::now() + time;
        let mut shown = Vec::new();
        while let Ok(Some(output)) = timeout(until - Instant::now(), self.outputs.recv()).await {
            shown.push(match *output {
                WatchOutput::Set { items, .. } => {
                    let names: Vec<String> = items.into_iter().map(|item| item.key.name).collect();
                    format!("set {}", names.join(" "))
                }
                WatchOutput::Put(item) => format!("put {}", item.key.name),
                WatchOutput::Gone(key) => format!("gone {}", key.name),
                WatchOutput::Current => "current".to_owned(),
                WatchOutput::Lost(error) => format!("lost {:?}", error.kind),
                other => panic!("{other:?}"),
            });
        }
        shown
    }
}

fn plain(name: &str) -> Value {
    json!({"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [{"name": "c"}]}})
}

async fn local<F: Future<Output = ()>>(test: F) {
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_this_node_are_followed() {
    local(async {
        let mut watched = WatchRun::pods(&["a", "b"]);
        assert_eq!(watched.shown(SECOND).await, ["current", "set a b"]);
        watched.server.bind(plain("c"), "n1");
        watched.server.bind(plain("d"), "n2");
        watched.server.bind(json!({"kind": "Pod", "metadata": {"name": "a"}, "spec": {"x": 1}}), "n1");
        watched.server.remove("/api/v1/namespaces/default/pods/b", Removal::Force);
        assert_eq!(watched.shown(SECOND).await, ["put c", "put a", "gone b"]);
        // The server ends watches after 5 to 10 minutes; they go on without a list.
        let calls = watched.server.calls().len();
        let shown = watched.shown(SECOND * 1000).await;
        assert!(!shown.is_empty() && shown.iter().all(|line| line == "current"), "{shown:?}");
        let call = watched.server.calls().swap_remove(calls);
        assert!(!call.path.contains("sendInitialEvents"), "{}", call.path);
        assert!(call.path.contains("resourceVersion=1"), "{}", call.path);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_list_of_more_than_one_page_is_one_set() {
    local(async {
        let names: Vec<String> = (0..120).map(|number| format!("p{number:03}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut watched = WatchRun::pods(&names);
        watched.server.faults().no_watch_list = true;
        let expected = format!("set {}", names.join(" "));
        assert_eq!(watched.shown(SECOND).await, [expected.as_str(), "current"]);
        let calls = watched.server.calls();
        assert_eq!(calls.iter().filter(|call| call.path.contains("limit=50")).count(), 3);
        assert!(calls.iter().all(|call| !call.path.contains("resourceVersion=0")));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_401_keeps_every_pod() {
    local(async {
        let mut watched = WatchRun::pods(&["a"]);
        assert_eq!(watched.shown(SECOND).await, ["current", "set a"]);
        watched.server.faults().refuse = true;
        watched.shown(SECOND).await;
        *watched.server.faults() =
            crate::cluster::fake::ApiFaults { status: Some(401), ..Default::default() };
        let shown = watched.shown(SECOND * 600).await;
        assert!(shown.len() > 8, "{shown:?}");
        assert!(shown.iter().all(|line| line.starts_with("lost ")), "{shown:?}");
        watched.server.faults().status = None;
        assert_eq!(watched.shown(SECOND * 90).await, ["current", "set a"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_cut_line_is_no_event() {
    local(async {
        let mut watched = WatchRun::pods(&["a"]);
        assert_eq!(watched.shown(SECOND).await, ["current", "set a"]);
        {
            let mut faults = watched.server.faults();
            (faults.cut_after, faults.cut_inside_a_line) = (Some(0), true);
        }
        watched.server.bind(plain("b"), "n1");
        let shown = watched.shown(SECOND * 10).await;
        assert!(shown.iter().all(|line| !line.starts_with("put")), "{shown:?}");
        assert!(shown.contains(&"lost Unreachable".to_owned()), "{shown:?}");
        watched.server.faults().cut_after = None;
        let shown = watched.shown(SECOND * 60).await;
        assert_eq!(shown.last().map(String::as_str), Some("put b"), "{shown:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_object_that_appears_later_is_shown() {
    local(async {
        let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
        let server = FakeApiserver::new(clock.clone(), 1);
        let mut pod = plain("a");
        pod["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": "c"}}]);
        let path = ResourcePath::namespaced("", "configmaps", "default", "c");
        let mut watched = WatchRun::start(server, WatchSpec::single(path), clock);
        // The authorizer has not seen the pod yet.
        assert_eq!(watched.shown(SECOND / 2).await, ["lost Forbidden"]);
        watched.server.bind(pod, "n1");
        assert_eq!(watched.shown(SECOND * 5).await, ["set ", "current"]);
        let object = json!({"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}});
        watched.server.put(object);
        watched.server.put(json!({"kind": "ConfigMap", "metadata": {"name": "other"}}));
        assert_eq!(watched.shown(SECOND).await, ["put c"]);
        let calls = watched.server.calls();
        assert!(calls.iter().all(|call| !call.path.contains("allowWatchBookmarks")));
        watched.server.remove("/api/v1/namespaces/default/configmaps/c", Removal::Force);
        assert_eq!(watched.shown(SECOND).await, ["gone c"]);
    })
    .await;
}

/// A node has one for each ConfigMap and Secret of its pods.
#[test]
fn a_watch_that_waits_is_small() {
    let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
    let transport = FakeApiserver::new(clock.clone(), 1).transport("system:node:n1");
    let limit = Limit { qps: 50, burst: 100 };
    let config = ClientConfig { limit, timeout: SECOND, heartbeat_timeout: SECOND };
    let client = Rc::new(Client::new(Rc::new(transport), config, Dice::seeded(1)));
    let spec = WatchSpec::single(ResourcePath::namespaced("", "configmaps", "default", "c"));
    let (into, _outputs) = channel();
    let watch = follow(Task { client, spec, clock, dice: Dice::seeded(2), frames: None }, into);
    assert!(size_of_val(&watch) <= 1800, "{} bytes", size_of_val(&watch));
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_with_its_owner() {
    local(async {
        let mut watched = WatchRun::pods(&["a"]);
        watched.shown(SECOND).await;
        let calls = watched.server.calls().len();
        drop(watched.outputs);
        advance(SECOND * 2000).await;
        assert_eq!(watched.server.calls().len(), calls);
    })
    .await;
}
