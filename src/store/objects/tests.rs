//! Objects on real files: what is read back, what is written, and that no secret can be found on the disk.

use std::fs;
use std::path::PathBuf;
use std::rc::Rc;

use crate::model::objects::{LocalObject, ObjectContent, ObjectKind, wire};
use crate::model::types::PodSource;
use crate::platform::testing::TempDir;
use crate::store::open::with_suffix;
use crate::store::seal::SealContext;
use crate::store::{
    FILE_NAME, Loaded, OpenOptions, OpenReport, ReadOnlyStore, SealingKey, SourceObject, StoreError,
    StoreHandle, StoreKey,
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
        self.open_reporting(key).0
    }

    fn open_reporting(&self, key: &StoreKey) -> (StoreHandle, OpenReport) {
        let options =
            OpenOptions { mode: crate::store::Mode::Inline, key: key.clone(), ..OpenOptions::default() };
        StoreHandle::open(&self.db(), options).unwrap()
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
fn reader_in_the_way_of_encryption_is_reported_and_retried() {
    let directory = Directory::new();
    put(&directory.open(&StoreKey::None), &[secret("s", VALUE)]);
    // A reader in the middle of a transaction: the log cannot be truncated.
    let reader = rusqlite::Connection::open(directory.db()).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM secret_value").unwrap();
    let (store, report) = directory.open_reporting(&key(1));
    assert!(matches!(report.unsealed, Some(StoreError::LogInUse { .. })), "{report:?}");
    drop(store);
    drop(reader);
    let (store, report) = directory.open_reporting(&key(1));
    assert!(report.unsealed.is_none(), "{report:?}");
    assert!(!directory.holds(VALUE));
    assert_eq!(password(&objects(&load(&store))[0].object), VALUE);
}

#[test]
fn damaged_copies_go_when_encryption_begins_and_stay_later() {
    let directory = Directory::new();
    put(&directory.open(&StoreKey::None), &[secret("s", VALUE)]);
    let copies = || {
        let names = fs::read_dir(&directory.0.0).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().contains(".damaged-")).count()
    };
    let damage = || {
        let mut bytes = fs::read(directory.db()).unwrap();
        bytes[0] ^= 1;
        fs::write(directory.db(), bytes).unwrap();
    };
    damage();
    drop(directory.open(&StoreKey::None));
    fs::write(with_suffix(&directory.db(), ".damaged-19700101T000000Z-wal"), VALUE).unwrap();
    assert_eq!(copies(), 2);
    // One that is set aside at this very start may be in the clear, too: it goes with the next.
    damage();
    let (store, report) = directory.open_reporting(&key(1));
    assert_eq!((report.damaged.is_some(), report.removed, copies()), (true, 2, 1));
    drop(store);
    let (store, report) = directory.open_reporting(&key(1));
    assert_eq!((report.removed, copies()), (1, 0));
    put(&store, &[secret("s", VALUE)]);
    drop(store);
    damage();
    for _ in 0..2 {
        let (_, report) = directory.open_reporting(&key(1));
        assert_eq!((report.removed, copies()), (0, 1), "it was encrypted");
    }
}

#[test]
fn encrypted_store_without_a_key_stores_no_secret() {
    for is_damaged in [false, true] {
        let directory = Directory::new();
        put(&directory.open(&key(1)), &everything());
        if is_damaged {
            fs::write(directory.db(), "garbage").unwrap();
        }
        let (store, report) = directory.open_reporting(&StoreKey::None);
        assert!(matches!(report.unsealed, Some(StoreError::NoKey { .. })), "{report:?}");
        let mut changed = everything();
        changed[1] = secret("s", "another-long-secret-value");
        put(&store, &changed);
        // What cannot be read is not what the source has removed.
        put(&store, &[]);
        put(&store, &changed[..1]);
        assert_eq!(objects(&load(&store)), changed[..1]);
        drop(store);
        assert!(!directory.holds("another-long-secret-value"));
        let store = directory.open(&key(1));
        assert_eq!(objects(&load(&store)).len(), if is_damaged { 1 } else { 2 });
        drop(store);
        // On purpose.
        let (store, report) = directory.open_reporting(&StoreKey::Off);
        assert!(report.unsealed.is_none(), "{report:?}");
        put(&store, &changed);
        drop(store);
        assert!(directory.holds("another-long-secret-value"));
        let (store, report) = directory.open_reporting(&StoreKey::None);
        assert!(report.unsealed.is_none(), "{report:?}");
        assert_eq!(objects(&load(&store)), changed);
    }
}

#[test]
fn text_as_a_key_opens_what_it_sealed_and_begins_nothing() {
    let text = b"correct horse battery staple 123";
    let written = crate::codec::base64::encode(text);
    let [text, same] = [&text[..], written.as_bytes()]
        .map(|content| StoreKey::Sealed(Box::new(SealingKey::parse(content).unwrap())));
    let directory = Directory::new();
    let (store, report) = directory.open_reporting(&text);
    assert!(matches!(report.unsealed, Some(StoreError::TextKey)), "{report:?}");
    put(&store, &everything());
    drop(store);
    assert!(!directory.holds(VALUE) && !directory.holds("password"));
    put(&directory.open(&same), &everything());
    let (store, report) = directory.open_reporting(&text);
    assert!(matches!(report.unsealed, Some(StoreError::TextKey)), "{report:?}");
    assert_eq!(objects(&load(&store)), everything());
}

#[test]
fn values_of_an_earlier_program_are_bound_to_their_source() {
    let directory = Directory::new();
    put(&directory.open(&key(1)), &everything());
    let StoreKey::Sealed(sealing) = key(1) else { unreachable!() };
    let place = SealContext { source: "file", namespace: "default", name: "s", key: "password" };
    let (id, sealed) = sealing.seal_without_source(place, VALUE.as_bytes());
    let connection = rusqlite::Connection::open(directory.db()).unwrap();
    let update = "UPDATE secret_value SET key_id = ?1, value = ?2 WHERE key = 'password'";
    assert_eq!(connection.execute(update, rusqlite::params![id, sealed]).unwrap(), 1);
    let store = directory.open(&key(1));
    assert_eq!(objects(&load(&store)), everything());
    let ids = "SELECT count(*) FROM secret_value WHERE key_id = ?1";
    let count = |id: &str| -> i64 { connection.query_row(ids, [id], |row| row.get(0)).unwrap() };
    assert_eq!((count(&id), count(key(1).id())), (0, 2));
    // A copy under another source is not accepted any more.
    connection
        .execute_batch(
            "INSERT INTO source VALUES ('http', NULL);
             INSERT INTO object SELECT 'http', kind, namespace, name, origin, json FROM object;
             INSERT INTO secret_value SELECT 'http', namespace, name, key, key_id, value FROM secret_value;",
        )
        .unwrap();
    let [row] = &load(&store).unreadable[..] else { panic!() };
    assert!(row.message.ends_with("is damaged"), "{}", row.message);
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
