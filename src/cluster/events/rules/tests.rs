use super::*;
use crate::store::EventKey;

fn known(name: &str, message: &str, count: u32, at: i64) -> StoredEvent {
    let key = EventKey {
        kind: "Pod".to_owned(),
        namespace: "a".to_owned(),
        name: name.to_owned(),
        message: message.to_owned(),
        ..EventKey::default()
    };
    StoredEvent { key, count, first: Timestamp::from_secs(100), last: Timestamp::from_secs(at) }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn event_of(upload: &Upload) -> &EventUpload {
    match upload {
        Upload::Create(event) | Upload::Patch(event) => event,
    }
}

fn messages(uploads: &[Upload]) -> Vec<&str> {
    uploads.iter().map(|upload| event_of(upload).body["message"].as_str().unwrap()).collect()
}

#[test]
fn repetitions_patch_their_event() {
    let mut sent = UploadedEvents::default();
    let first = uploads(&[known("web", "m", 1, 100)], &sent, "n1", at(200));
    let [Upload::Create(created)] = first.as_slice() else { panic!("{first:?}") };
    assert_eq!(created.body["metadata"], json!({"name": created.name, "namespace": "a"}));
    assert_eq!(
        (&created.body["source"], created.namespace.as_str()),
        (&json!({"component": "kubelet", "host": "n1"}), "a")
    );
    sent.mark(created, 1);
    assert_eq!(uploads(&[known("web", "m", 1, 100)], &sent, "n1", at(200)), []);
    let again = uploads(&[known("web", "m", 3, 150)], &sent, "n1", at(200));
    let [Upload::Patch(patched)] = again.as_slice() else { panic!("{again:?}") };
    assert_eq!(patched.name, created.name);
    assert_eq!(patched.body, json!({"count": 3, "lastTimestamp": "1970-01-01T00:02:30Z", "message": "m"}));
    sent.forget(patched);
    assert!(matches!(uploads(&[known("web", "m", 3, 150)], &sent, "n1", at(200))[..], [Upload::Create(_)]));
    sent.mark(patched, 3);
    sent.retain(&[]);
    assert_eq!(sent, UploadedEvents::default());
}

#[test]
fn an_event_of_an_earlier_process_is_patched() {
    let ring = [known("web", "old", 2, 150), known("web", "new", 1, 160)];
    let sent = UploadedEvents::restored(&ring, at(150));
    assert_eq!(messages(&uploads(&ring, &sent, "n1", at(200))), ["new"]);
    let lost = UploadedEvents::restored(&ring, Timestamp::default());
    let twice = uploads(&ring, &lost, "n1", at(200));
    assert_eq!(messages(&twice), ["old", "new"]);
    // The apiserver has it already.
    let mut lost = lost;
    lost.mark(event_of(&twice[0]), 0);
    assert!(matches!(&uploads(&ring, &lost, "n1", at(200))[0], Upload::Patch(event) if event.count == 2));
}

#[test]
fn an_hour_old_event_stays_here() {
    let mut ring = vec![known("web", "old", 1, 1000), known("web", "young", 1, 1001)];
    let none = UploadedEvents::default();
    assert_eq!(messages(&uploads(&ring, &none, "n1", at(4601))), ["young"]);
    assert_eq!(messages(&uploads(&ring, &none, "n1", at(0))), ["old", "young"], "the clock was set back");
    ring.clear();
    ring.push(known("other", "x", 1, 4000));
    ring.extend((0..30).map(|number| known("web", &number.to_string(), 1, 4000 + number)));
    let sent = uploads(&ring, &none, "n1", at(5000));
    let last: Vec<String> = (10..30).map(|number: i64| number.to_string()).collect();
    assert_eq!(messages(&sent), [vec!["x"], last.iter().map(String::as_str).collect()].concat());
    let mut some = UploadedEvents::default();
    for upload in &sent {
        some.mark(event_of(upload), 1);
    }
    assert_eq!(uploads(&ring, &some, "n1", at(5000)), [], "what was left out stays here");
}
