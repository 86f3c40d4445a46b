use serde_json::{Value, json};
use tokio::task::LocalSet;

use super::*;
use crate::cluster::client::ClientConfig;
use crate::cluster::client::limits::Limit;
use crate::cluster::client::transport::Method;
use crate::cluster::fake::FakeApiserver;
use crate::model::types::{PodRef, PodUid};
use crate::pod::events::EventType;
use crate::store::{Mode, OpenOptions, StoreHandle};

fn world() -> (FakeApiserver, EventRecorder, Clock) {
    let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
    let store = StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..Default::default() });
    let recorder = EventRecorder::new("n1".to_owned(), clock.clone(), store.unwrap(), Vec::new());
    (FakeApiserver::new(clock.clone(), 1), recorder, clock)
}

fn start((server, recorder, clock): &(FakeApiserver, EventRecorder, Clock)) -> Rc<UploadProgress> {
    let config = ClientConfig {
        limit: Limit { qps: 50, burst: 100 },
        timeout: Duration::from_secs(30),
        heartbeat_timeout: Duration::from_secs(10),
    };
    let (dice, progress) = (Dice::seeded(1), Rc::new(UploadProgress::default()));
    let uploader = EventUploader {
        client: Rc::new(Client::new(Rc::new(server.transport("system:node:n1")), config, dice.clone())),
        recorder: recorder.clone(),
        clock: clock.clone(),
        dice,
        gather: Duration::from_secs(1),
        progress: Rc::clone(&progress),
    };
    crate::platform::rt::spawn("cluster events", uploader.run());
    progress
}

/// The recorder combines events of one reason.
fn record(recorder: &EventRecorder, message: &str) {
    let pod = PodRef { namespace: "a".to_owned(), name: "web".to_owned(), uid: PodUid::from("u".to_owned()) };
    recorder.event(&pod, None, EventType::Normal, message, message);
}

fn stored(server: &FakeApiserver) -> Vec<Value> {
    let creates =
        server.writes().into_iter().filter(|call| call.method == Method::Post && call.status == 201);
    let path = |call: &Value| {
        let metadata = &call["metadata"];
        let text = |name: &str| metadata[name].as_str().unwrap().to_owned();
        format!("/api/v1/namespaces/{}/events/{}", text("namespace"), text("name"))
    };
    creates.filter_map(|call| server.object(&path(&call.body))).collect()
}

async fn seconds(number: u64) {
    sleep(Duration::from_secs(number)).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_is_created_and_its_repetitions_counted() {
    LocalSet::new()
        .run_until(async {
            let world = world();
            let progress = start(&world);
            seconds(1).await;
            record(&world.1, "one");
            record(&world.1, "one");
            world.1.node_event(EventType::Normal, "Starting", "Starting kubelet.");
            seconds(3).await;
            let events = stored(&world.0);
            assert_eq!(
                (events.len(), &events[0]["count"], &events[1]["metadata"]["namespace"]),
                (2, &json!(2), &json!("default"))
            );
            assert_eq!(events[0]["involvedObject"]["uid"], "u");
            record(&world.1, "one");
            seconds(3).await;
            assert_eq!((stored(&world.0).len(), &stored(&world.0)[0]["count"]), (2, &json!(3)));
            assert_eq!(progress.waiting.get(), 0);
            assert!(progress.cursor.get() >= Timestamp::from_secs(1_800_000_004));
            // The apiserver forgets events after an hour.
            let name = stored(&world.0)[0]["metadata"]["name"].as_str().unwrap().to_owned();
            world
                .0
                .remove(&format!("/api/v1/namespaces/a/events/{name}"), crate::cluster::fake::Removal::Force);
            record(&world.1, "one");
            seconds(3).await;
            assert_eq!(
                stored(&world.0).iter().filter(|event| event["count"] == 4).count(),
                2,
                "one, created twice"
            );
            let writes = world.0.writes().len();
            seconds(7200).await;
            assert_eq!(world.0.writes().len(), writes);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn events_never_block_a_pod() {
    LocalSet::new()
        .run_until(async {
            let world = world();
            world.0.faults().refuse = true;
            let progress = start(&world);
            for number in 0..50 {
                record(&world.1, &format!("{number}"));
                seconds(200).await;
            }
            assert!(progress.waiting.get() > 5 && progress.waiting.get() <= 20, "{}", progress.waiting.get());
            assert_eq!(progress.cursor.get(), Timestamp::default());
            world.0.faults().refuse = false;
            seconds(130).await;
            let now = world.2.now();
            assert_eq!(progress.waiting.get(), 0);
            let events = stored(&world.0);
            assert!((5..=20).contains(&events.len()), "{}", events.len());
            let last =
                |event: &Value| event["lastTimestamp"].as_str().and_then(Timestamp::parse_rfc3339).unwrap();
            assert!(events.iter().all(|event| now.saturating_since(last(event)) < Duration::from_secs(3800)));
            assert!(events.windows(2).all(|pair| last(&pair[0]) <= last(&pair[1])), "oldest first");
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_creates_no_event_twice() {
    LocalSet::new()
        .run_until(async {
            let world = world();
            let first = start(&world);
            record(&world.1, "one");
            seconds(3).await;
            assert_eq!(first.waiting.get(), 0);
            // A second process with the same events, whose cursor is lost.
            let second = start(&world);
            seconds(3).await;
            assert_eq!((stored(&world.0).len(), second.waiting.get()), (1, 0));
            let statuses: Vec<u16> = world.0.writes().iter().map(|call| call.status).collect();
            assert_eq!(statuses, [201, 409, 200]);
        })
        .await;
}
