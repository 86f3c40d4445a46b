//! Objects on real files: what is read back, what is written, and that no secret can be found on the disk.

use std::fs;
use std::path::PathBuf;
use std::rc::Rc;

use crate::model::objects::{LocalObject, ObjectContent, ObjectKind, wire};
use crate::model::types::PodSource;
use crate::platform::testing::TempDir;
use crate::store::open::with_suffix;
use crate::store::{
    FILE_NAME, Loaded, OpenOptions, ReadOnlyStore, SealingKey, SourceObject, StoreHandle, StoreKey,
};
use serde_json::{Value, json};

const VALUE: &str = "correct-horse-battery-staple";

struct Directory(TempDir);

impl Directory {
    fn new() -> Self {
        Self(TempDir::new())
    }

    fn db(&self) -> PathBuf {
        self.0.join(FILE_NAME)
    }

    fn open(&self, key: &StoreKey) -> StoreHandle {
        let options =
            OpenOptions { mode: crate::store::Mode::Inline, key: key.clone(), ..OpenOptions::default() };
        StoreHandle::open(&self.db(), options).unwrap().0
    }

    /// All bytes of the database, its log and its index.
    fn bytes(&self) -> Vec<u8> {
        ["", "-wal", "-shm"]
            .iter()
            .flat_map(|suffix| fs::read(with_suffix(&self.db(), suffix)).unwrap_or_default())
            .collect()
    }

    fn holds(&self, text: &str) -> bool {
        self.bytes().windows(text.len()).any(|part| part == text.as_bytes())
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(future)
}

fn key(byte: u8) -> StoreKey {
    StoreKey::Sealed(Box::new(SealingKey::parse(&[byte; 32]).unwrap()))
}

fn object(kind: ObjectKind, value: Value) -> SourceObject {
    SourceObject { object: Rc::new(wire::from_value(kind, value).unwrap()), origin: "/m/a.yaml".to_owned() }
}

fn secret(name: &str, value: &str) -> SourceObject {
    object(
        ObjectKind::Secret,
        json!({"metadata": {"name": name}, "stringData": {"user": "me", "password": value}}),
    )
}

fn everything() -> Vec<SourceObject> {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    vec![
        object(
            ObjectKind::ConfigMap,
            json!({"metadata": {"name": "m"}, "data": {"a": "b"}, "binaryData": {"c": "AP8="}}),
        ),
        secret("s", VALUE),
        object(ObjectKind::PersistentVolumeClaim, json!({"metadata": {"name": "c"}, "spec": spec})),
        object(
            ObjectKind::RuntimeClass,
            json!({"metadata": {"name": "r"}, "handler": "kata", "overhead": {"podFixed": {"cpu": "1"}},
                "scheduling": {"tolerations": [{"key": "a", "operator": "Exists"}]}}),
        ),
    ]
}

fn put(store: &StoreHandle, objects: &[SourceObject]) -> usize {
    run(store.commit_source(PodSource::File, &[], objects, None)).unwrap().written
}

fn load(store: &StoreHandle) -> Loaded {
    run(store.load()).unwrap()
}

fn objects(loaded: &Loaded) -> Vec<SourceObject> {
    loaded.desired.iter().flat_map(|source| source.objects.clone()).collect()
}

fn password(object: &LocalObject) -> String {
    match &object.content {
        ObjectContent::Secret { data, .. } => String::from_utf8(data["password"].clone()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn objects_round_trip_and_unchanged_ones_are_not_written() {
    for key in [StoreKey::None, key(1)] {
        let directory = Directory::new();
        let store = directory.open(&key);
        assert!(put(&store, &everything()) > 0);
        drop(store);
        let store = directory.open(&key);
        assert_eq!(objects(&load(&store)), everything());
        let before = directory.bytes();
        assert_eq!(put(&store, &everything()), 0);
        assert!(directory.bytes() == before, "nothing new, nothing written");
        assert_eq!(put(&store, &[secret("s", "new")]), 4, "one value, and three objects that go");
        assert_eq!(password(&objects(&load(&store))[0].object), "new");
        assert!(put(&store, &[]) > 0);
        assert!(objects(&load(&store)).is_empty());
    }
}

#[test]
fn with_a_key_no_byte_of_a_secret_is_in_the_files() {
    let directory = Directory::new();
    let store = directory.open(&key(1));
    put(&store, &everything());
    assert!(!directory.holds(VALUE) && directory.holds("password"), "keys are no secret, values are");
    put(&store, &[secret("s", "another-long-secret-value")]);
    put(&store, &[]);
    assert!(!directory.holds(VALUE) && !directory.holds("another-long-secret-value"));
}

#[test]
fn enabling_encryption_leaves_no_plaintext_in_the_file() {
    let directory = Directory::new();
    let many: Vec<_> =
        (0..50).map(|number| secret(&format!("s{number}"), &format!("{VALUE}-{number}"))).collect();
    let store = directory.open(&StoreKey::None);
    put(&store, &many);
    // Half of them are replaced: their bytes must not be left in free pages either.
    put(&store, &many[..25]);
    put(&store, &many[10..]);
    assert!(directory.holds(VALUE));
    drop(store);
    let store = directory.open(&key(1));
    assert!(!directory.holds(VALUE));
    assert_eq!(objects(&load(&store)).len(), 40);
    assert!(load(&store).unreadable.is_empty());
    drop(store);
    assert!(!directory.holds(VALUE));
}

#[test]
fn a_rewrite_that_was_cut_short_is_done_by_the_next_start() {
    let directory = Directory::new();
    drop(directory.open(&key(1)));
    let store = directory.open(&StoreKey::None);
    put(&store, &[secret("s", VALUE)]);
    // A reader in the middle of a transaction: the log cannot be truncated.
    let reader = rusqlite::Connection::open(directory.db()).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM secret_value").unwrap();
    drop(store);
    let store = directory.open(&key(1));
    assert!(load(&store).meta.contains_key("rewrite-after-encryption"));
    drop(store);
    drop(reader);
    let store = directory.open(&key(1));
    assert!(!load(&store).meta.contains_key("rewrite-after-encryption"));
    assert!(!directory.holds(VALUE));
    assert_eq!(password(&objects(&load(&store))[0].object), VALUE);
}

#[test]
fn a_wrong_or_missing_key_costs_the_secrets_only_and_says_so() {
    let directory = Directory::new();
    put(&directory.open(&key(1)), &everything());
    let unusable = StoreKey::Unusable { reason: "the file is gone".to_owned() };
    for (other, words) in [
        (StoreKey::None, "set --store-key-file"),
        (key(2), "but the configured key is"),
        (unusable.clone(), "the file is gone"),
    ] {
        let store = directory.open(&other);
        let loaded = load(&store);
        let kinds: Vec<_> = objects(&loaded).iter().map(|object| object.object.key.kind).collect();
        assert_eq!(
            kinds,
            [ObjectKind::ConfigMap, ObjectKind::PersistentVolumeClaim, ObjectKind::RuntimeClass]
        );
        let [row] = &loaded.unreadable[..] else { panic!("{:?}", loaded.unreadable) };
        assert_eq!((row.table, row.key.as_str()), ("object", "Secret default/s"));
        assert!(row.message.contains(words), "{}", row.message);
    }
    // Nothing is written in the clear, and the existing values stay until the key is back.
    let store = directory.open(&unusable);
    put(&store, &[secret("s", "changed-in-the-dark"), secret("new", "new-in-the-dark")]);
    drop(store);
    assert!(!directory.holds("in-the-dark"));
    let store = directory.open(&key(1));
    assert_eq!(
        password(&objects(&load(&store)).iter().find(|object| object.object.key.name == "s").unwrap().object),
        VALUE
    );
    // With another key the source's values are used from now on.
    drop(store);
    let store = directory.open(&key(2));
    put(&store, &everything());
    assert_eq!(objects(&load(&store)), everything());
}

#[test]
fn another_process_reads_all_but_encrypted_secrets() {
    let directory = Directory::new();
    let store = directory.open(&key(1));
    put(&store, &everything());
    let loaded = ReadOnlyStore::open(&directory.db()).unwrap().load().unwrap();
    assert_eq!(objects(&loaded).len(), 3);
    assert!(loaded.unreadable[0].message.contains("encrypted"));
    drop(store);
}

/// kubectl keeps a copy of the whole manifest in an annotation of what it applies.
#[test]
fn last_applied_copy_of_a_secret_is_encrypted_too() {
    for key in [StoreKey::None, key(1)] {
        let directory = Directory::new();
        let copy = format!("{{\"stringData\":{{\"password\":\"{VALUE}\"}}}}");
        let annotations = json!({wire::LAST_APPLIED: copy, "plain": "text"});
        let applied = object(
            ObjectKind::Secret,
            json!({"metadata": {"name": "s", "annotations": annotations}, "stringData": {"password": VALUE}}),
        );
        let store = directory.open(&key);
        assert!(put(&store, std::slice::from_ref(&applied)) > 0);
        assert_eq!(put(&store, std::slice::from_ref(&applied)), 0, "nothing has changed");
        assert_eq!(objects(&load(&store)), [applied]);
        assert_eq!(directory.holds(VALUE), matches!(key, StoreKey::None));
    }
}
