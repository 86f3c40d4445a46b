//! Rollouts on real files: what is read back, what is written, and that no secret of a good set is left in the
//! clear.

use std::fs;

use serde_json::json;

use super::*;
use crate::model::api::decode::decode;
use crate::platform::testing::TempDir;
use crate::store::open::with_suffix;
use crate::store::{FILE_NAME, Loaded, Mode, OpenOptions, ReadOnlyStore, SealingKey, StoreHandle};

const VALUE: &str = "correct-horse-battery-staple";
const HTTP: PodSource = PodSource::Http;

struct Directory(TempDir);

impl Directory {
    fn new() -> Self {
        Self(TempDir::new())
    }

    fn open(&self, key: &StoreKey) -> StoreHandle {
        let options = OpenOptions { mode: Mode::Inline, key: key.clone(), ..OpenOptions::default() };
        StoreHandle::open(&self.0.join(FILE_NAME), options).unwrap().0
    }

    fn bytes(&self) -> Vec<u8> {
        let path = self.0.join(FILE_NAME);
        let read = |suffix: &&str| fs::read(with_suffix(&path, suffix)).unwrap_or_default();
        ["", "-wal", "-shm"].iter().flat_map(read).collect()
    }

    fn holds_the_secret(&self) -> bool {
        let bytes = self.bytes();
        let encoded = crate::codec::base64::encode(VALUE.as_bytes());
        [VALUE, &encoded].iter().any(|text| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(future)
}

fn key(byte: u8) -> StoreKey {
    StoreKey::Sealed(Box::new(SealingKey::parse(&[byte; 32]).unwrap()))
}

fn read(pod: Value) -> Result<Pod, String> {
    decode(pod).map(|decoded| decoded.object).map_err(|error| error.to_string())
}

fn progressing(parts_left: u8) -> RolloutPhase {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u1"},
        "spec": {"containers": [{"name": "main", "image": "i"}]},
    });
    let secret = json!({"metadata": {"name": "db"}, "stringData": {"password": VALUE}});
    let secret = wire::from_value(ObjectKind::Secret, secret).unwrap();
    let last_good = SourceSet {
        pods: vec![super::pod(Item { origin: "http://a".to_owned(), pod }, &mut read).unwrap()],
        objects: vec![SourceObject { object: Rc::new(secret), origin: "http://a".to_owned() }],
    };
    RolloutPhase::Progressing { last_good, digest: "d".to_owned(), parts_left }
}

fn rolled_back() -> RolloutPhase {
    RolloutPhase::RolledBack {
        digest: "d".to_owned(),
        why: "pod x".to_owned(),
        since: Timestamp::from_nanos(1_234),
    }
}

fn load(store: &StoreHandle) -> Loaded {
    run(store.load()).unwrap()
}

fn put(store: &StoreHandle, phase: &RolloutPhase) -> usize {
    run(store.commit_rollout(HTTP, &[], &[], None, phase)).unwrap().written
}

#[test]
fn every_stage_round_trips_and_unchanged_ones_are_not_written() {
    for key in [StoreKey::None, key(1)] {
        let directory = Directory::new();
        let store = directory.open(&key);
        put(&store, &RolloutPhase::Good);
        assert!(load(&store).rollouts.is_empty());
        for phase in [RolloutPhase::Unproven, progressing(4), progressing(3), rolled_back()] {
            assert_eq!(put(&store, &phase), 1, "{phase:?}");
            assert_eq!(load(&store).rollouts.get(&HTTP), Some(&phase));
            let before = directory.bytes();
            assert_eq!(put(&store, &phase), 0);
            run(store.put_rollout(HTTP, &phase)).unwrap();
            run(store.commit_source(HTTP, &[], &[], None)).unwrap();
            assert!(directory.bytes() == before, "nothing new, nothing written");
            assert_eq!(load(&store).rollouts.get(&HTTP), Some(&phase), "a commit without a phase keeps it");
        }
        run(store.put_rollout(HTTP, &RolloutPhase::Good)).unwrap();
        assert!(load(&store).rollouts.is_empty());
    }
}

#[test]
fn a_good_set_is_sealed_like_the_one_that_runs() {
    let directory = Directory::new();
    let store = directory.open(&key(1));
    put(&store, &progressing(4));
    assert!(!directory.holds_the_secret());
    drop(store);
    let store = directory.open(&key(2));
    let loaded = load(&store);
    assert!(loaded.rollouts.is_empty());
    assert_eq!(loaded.unreadable.len(), 1, "another key: {:?}", loaded.unreadable);
    drop(store);
    let read = ReadOnlyStore::open(&directory.0.join(FILE_NAME)).unwrap().load().unwrap();
    assert_eq!(read.unreadable, [], "the command line reads no rollouts");

    let directory = Directory::new();
    let store = directory.open(&StoreKey::None);
    put(&store, &progressing(4));
    drop(store);
    assert!(directory.holds_the_secret(), "the test would see it");
    let store = directory.open(&key(1));
    assert_eq!(load(&store).rollouts.get(&HTTP), Some(&progressing(4)));
    assert!(!directory.holds_the_secret());

    let directory = Directory::new();
    let store = directory.open(&StoreKey::Unusable { reason: "gone".to_owned() });
    put(&store, &progressing(4));
    assert!(load(&store).rollouts.is_empty() && !directory.holds_the_secret());
}

#[test]
fn invalid_trial_row_is_refused() {
    let row =
        |record: &[u8]| RawRollout { source: "http".to_owned(), parts_left: 1, record: Ok(record.to_vec()) };
    for record in [
        &b"{}"[..],
        b"x",
        br#"{"stage":"other"}"#,
        br#"{"stage":"trial","digest":"d","pods":[{"origin":"a","pod":7}],"objects":[]}"#,
    ] {
        assert!(decode_row(row(record), read).is_err(), "{}", String::from_utf8_lossy(record));
    }
    let odd =
        RawRollout { parts_left: -3, ..row(br#"{"stage":"trial","digest":"d","pods":[],"objects":[]}"#) };
    assert!(matches!(decode_row(odd, read), Ok(RolloutPhase::Progressing { parts_left: 0, .. })));
}
