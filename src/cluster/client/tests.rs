use std::cell::Cell;

use super::error::LinkError;
use super::transport::Bytes;
use super::*;
use crate::cluster::fake::{FakeApiserver, FakeTransport};
use crate::model::types::Timestamp;
use crate::platform::clock::Clock;

const SECOND: Duration = Duration::from_secs(1);

fn config(qps: i32, burst: i32) -> ClientConfig {
    ClientConfig { limit: Limit { qps, burst }, timeout: SECOND * 30, heartbeat_timeout: SECOND * 10 }
}

fn fake() -> (FakeApiserver, Client<FakeTransport>) {
    let server = FakeApiserver::new(Clock::manual(Timestamp::from_secs(1_800_000_000)), 1);
    let transport = Rc::new(server.transport("kubernetes-admin"));
    (server, Client::new(transport, config(50, 100), Dice::seeded(1)))
}

fn node() -> ResourcePath {
    ResourcePath::whole("", "nodes", "n1")
}

#[test]
fn paths_name_group_namespace_name_and_part() {
    for (path, text) in [
        (node(), "/api/v1/nodes/n1"),
        (node().with_part("status"), "/api/v1/nodes/n1/status"),
        (ResourcePath::whole("node.k8s.io", "runtimeclasses", ""), "/apis/node.k8s.io/v1/runtimeclasses"),
        (
            ResourcePath::namespaced("coordination.k8s.io", "leases", "kube-node-lease", "n1"),
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1",
        ),
        (
            ResourcePath::namespaced("certificates.k8s.io/v1beta1", "bundles", "a b", ""),
            "/apis/certificates.k8s.io/v1beta1/namespaces/a%20b/bundles",
        ),
    ] {
        assert_eq!(path.path(), text);
    }
}

#[test]
fn a_plain_list_never_asks_for_version_0() {
    let pods = ResourcePath::whole("", "pods", "");
    let first = pods.page("spec.nodeName=n1", "", 50);
    assert_eq!(first, "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&limit=50");
    assert_eq!(pods.page("", "t=", 50), "/api/v1/pods?limit=50&continue=t%3D");
    let mut query = WatchQuery {
        fields: "metadata.name=n1".to_owned(),
        version: String::new(),
        initial: true,
        bookmarks: true,
        seconds: 300,
    };
    let initial = node().watch(&query);
    assert!(initial.starts_with("/api/v1/nodes?watch=true&fieldSelector=metadata.name%3Dn1&"), "{initial}");
    assert!(
        initial.contains("resourceVersionMatch=NotOlderThan&sendInitialEvents=true&allowWatchBookmarks=true")
    );
    assert!(!initial.contains("resourceVersion="), "{initial}");
    query = WatchQuery { version: "7".to_owned(), initial: false, bookmarks: false, ..query };
    assert!(node().watch(&query).ends_with("&resourceVersion=7&timeoutSeconds=300"));
}

#[test]
fn an_answer_in_html_is_no_apiserver() {
    use ApiErrorKind::{
        Conflict, Forbidden, Gone, Invalid, NotAnApiserver, NotFound, Server, TooMany, Unauthorized,
    };
    let status = |reason: &str| format!(r#"{{"kind":"Status","reason":"{reason}","message":"m"}}"#);
    for (code, body, kind) in [
        (404, "<html>".to_owned(), NotAnApiserver),
        (302, String::new(), NotAnApiserver),
        (403, "<html>".to_owned(), NotAnApiserver),
        (401, status("Unauthorized"), Unauthorized),
        (403, status("Forbidden"), Forbidden),
        (404, status("NotFound"), NotFound),
        (404, "404 page not found\n".to_owned(), Invalid),
        (409, status("AlreadyExists"), ApiErrorKind::AlreadyExists),
        (409, status("Conflict"), Conflict),
        (410, status("Expired"), Gone),
        (400, status("BadRequest"), Invalid),
        (422, status("Invalid"), Invalid),
        (429, "Too many requests".to_owned(), TooMany),
        (500, status("InternalError"), Server),
        (502, "<html>".to_owned(), Server),
    ] {
        let error = ApiError::of_answer(code, None, body.as_bytes());
        assert_eq!(error.kind, kind, "{code} {body}");
        let offline = matches!(kind, NotAnApiserver | Unauthorized | Server);
        assert_eq!(error.is_offline(), offline, "{code} {body}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_of_a_portal_is_no_object() {
    let (server, client) = fake();
    server.faults().html = true;
    let error = client.get(Lane::Main, &node(), Accept::Json).await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::NotAnApiserver);
    assert!(error.to_string().contains("text/html"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_obeyed_up_to_a_minute() {
    let (server, client) = fake();
    for (asked, longest) in [(SECOND * 5, 18), (SECOND * 600, 216), (Duration::ZERO, 4)] {
        server.faults().too_many = Some(asked);
        let (start, calls) = (Instant::now(), server.calls().len());
        let error = client.get(Lane::Main, &node(), Accept::Json).await.unwrap_err();
        assert_eq!((error.kind, server.calls().len() - calls), (ApiErrorKind::TooMany, 4));
        let waited = start.elapsed();
        let least = asked.clamp(SECOND, SECOND * 60) * 3;
        assert!(waited >= least && waited <= SECOND * longest, "{asked:?}: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_takes_no_turn_and_is_not_repeated() {
    let server = FakeApiserver::new(Clock::manual(Timestamp::from_secs(1_800_000_000)), 1);
    let client = Client::new(Rc::new(server.transport("system:node:n1")), config(1, 1), Dice::seeded(1));
    server.put(json!({"kind": "Node", "metadata": {"name": "n1"}}));
    client.get(Lane::Main, &node(), Accept::Json).await.unwrap();
    let start = Instant::now();
    for _ in 0..20 {
        client.get(Lane::Heartbeat, &node(), Accept::Json).await.unwrap();
    }
    server.faults().too_many = Some(SECOND);
    client.get(Lane::Heartbeat, &node(), Accept::Json).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(server.calls().len(), 22);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_turn_fails_in_30_seconds() {
    let server = FakeApiserver::new(Clock::manual(Timestamp::from_secs(1_800_000_000)), 1);
    let client = Rc::new(Client::new(Rc::new(server.transport("a")), config(1, 1), Dice::seeded(1)));
    let start = Instant::now();
    let calls = (0..40).map(|_| {
        let client = Rc::clone(&client);
        async move { client.get(Lane::Main, &node(), Accept::Json).await.unwrap_err().kind }
    });
    let tasks = tokio::task::LocalSet::new();
    let kinds = tasks
        .run_until(async {
            let tasks: Vec<_> = calls.map(tokio::task::spawn_local).collect();
            let mut kinds = Vec::new();
            for task in tasks {
                kinds.push(task.await.unwrap());
            }
            kinds
        })
        .await;
    let answered = kinds.iter().filter(|kind| **kind == ApiErrorKind::NotFound).count();
    let refused = kinds.iter().filter(|kind| **kind == ApiErrorKind::NoTurn).count();
    assert_eq!((answered, refused), (31, 9), "the first at once, one a second after it");
    assert!(start.elapsed() <= SECOND * 31);
}

#[test]
fn turns_come_in_order_and_without_a_limit_at_once() {
    let mut bucket = TokenBucket::new(Limit { qps: 2, burst: 3 });
    let millis = |bucket: &mut TokenBucket, at| bucket.take(at).map(|wait| wait.as_millis());
    let at_once: Vec<_> = (0..5).map(|_| millis(&mut bucket, SECOND)).collect();
    assert_eq!(at_once, [Some(0), Some(0), Some(0), Some(500), Some(1000)]);
    assert_eq!(millis(&mut bucket, SECOND * 60), Some(0), "it fills up, to three");
    assert_eq!(millis(&mut bucket, SECOND * 10), Some(0), "time never goes back");
    let mut open = TokenBucket::new(Limit { qps: 0, burst: 0 });
    assert!((0..500).all(|_| open.take(SECOND) == Some(Duration::ZERO)));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_is_unreachable_in_time() {
    let (server, client) = fake();
    server.faults().hang = true;
    for (lane, seconds) in [(Lane::Main, 30), (Lane::Heartbeat, 10)] {
        let start = Instant::now();
        let error = client.get(lane, &node(), Accept::Json).await.unwrap_err();
        assert_eq!((error.kind, start.elapsed().as_secs()), (ApiErrorKind::Unreachable, seconds));
    }
}

#[tokio::test(start_paused = true)]
async fn writes_reach_the_object_and_no_later_one_of_its_name() {
    let (server, client) = fake();
    let path = ResourcePath::namespaced("", "configmaps", "default", "c");
    let of = ResourcePath::namespaced("", "configmaps", "default", "");
    let made = client
        .create(Lane::Main, &of, &json!({"metadata": {"name": "c"}, "data": {"a": "1"}}))
        .await
        .unwrap();
    let again = client.create(Lane::Main, &of, &json!({"metadata": {"name": "c"}})).await.unwrap_err();
    assert_eq!(again.kind, ApiErrorKind::AlreadyExists);
    let change = json!({"data": {"a": null, "b": "2"}});
    let answer =
        client.patch(Lane::Main, &path, Content::MergePatch, &change, Accept::Metadata).await.unwrap();
    assert_eq!(answer["kind"], "PartialObjectMetadata");
    let stale = client.replace(Lane::Main, &path, &made).await.unwrap_err();
    assert_eq!(stale.kind, ApiErrorKind::Conflict);
    assert_eq!(server.object("/api/v1/namespaces/default/configmaps/c").unwrap()["data"], json!({"b": "2"}));
    let other = client.delete(Lane::Main, &path, None, "another").await.unwrap_err();
    assert_eq!(other.kind, ApiErrorKind::Conflict);
    client.delete(Lane::Main, &path, None, made["metadata"]["uid"].as_str().unwrap()).await.unwrap();
    assert_eq!(client.get(Lane::Main, &path, Accept::Json).await.unwrap_err().kind, ApiErrorKind::NotFound);
}

/// Answers everything with one body, in parts.
struct Parts(Cell<Option<Vec<&'static str>>>, &'static str);

impl Transport for Parts {
    type Body = std::vec::IntoIter<&'static str>;

    async fn send(&self, _: Lane, _: ApiRequest) -> Result<ApiResponse<Self::Body>, LinkError> {
        let body = self.0.take().unwrap_or_default().into_iter();
        Ok(ApiResponse { status: 200, retry_after: None, content_type: self.1.to_owned(), body })
    }
}

impl Chunks for std::vec::IntoIter<&'static str> {
    async fn next(&mut self) -> Option<Result<Bytes, LinkError>> {
        Iterator::next(self).map(|text| Ok(Bytes::from_static(text.as_bytes())))
    }
}

#[tokio::test]
async fn answers_are_read_whole_and_lists_need_a_version() {
    let ask = async |parts: Vec<&'static str>| {
        let transport = Parts(Cell::new(Some(parts)), "application/json; charset=utf-8");
        let client = Client::new(Rc::new(transport), config(0, 0), Dice::System);
        client.page(&ResourcePath::whole("", "pods", ""), "", "").await
    };
    let page = ask(vec![r#"{"metadata":{"resourceVer"#, r#"sion":"5"},"items":null}"#]).await.unwrap();
    assert_eq!(page, Page { version: "5".to_owned(), ..Page::default() });
    for body in [
        r#"{"metadata":{},"items":[]}"#,
        r#"{"metadata":{"resourceVersion":"5"},"items":{}}"#,
        "{",
        "x",
        "[]",
        "",
    ] {
        assert_eq!(ask(vec![body]).await.unwrap_err().kind, ApiErrorKind::NotAnApiserver, "{body}");
    }
}
