//! The store against real files: durability, damage, coalescing, and a model.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use proptest::prelude::*;
use rusqlite::Connection;

use super::*;
use crate::api::pod::{Container, Pod, PodCondition};
use crate::reconcile::restart::BackOff;

/// A directory that goes away with the test.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("agent-store-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn db(&self) -> PathBuf {
        self.0.join(FILE_NAME)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The files as a power cut would leave them.
    fn snapshot(&self) -> Self {
        let copy = Self::new();
        for suffix in ["", "-wal"] {
            let _ = fs::copy(open::with_suffix(&self.db(), suffix), open::with_suffix(&copy.db(), suffix));
        }
        copy
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn options(mode: Mode) -> OpenOptions {
    OpenOptions { mode, now: Timestamp::from_secs(1_700_000_000), ..OpenOptions::default() }
}

fn open_inline(path: &Path) -> (StoreHandle, OpenReport) {
    StoreHandle::open(path, options(Mode::Inline)).unwrap()
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(future)
}

fn pod(name: &str, image: &str) -> SourcePod {
    let mut pod = Pod::default();
    pod.metadata.name = name.to_owned();
    pod.metadata.namespace = "default".to_owned();
    pod.metadata.uid = PodUid::from(format!("uid-{name}"));
    pod.spec.containers =
        vec![Container { name: "main".to_owned(), image: image.to_owned(), ..Container::default() }];
    SourcePod { pod: Rc::new(pod), origin: format!("/etc/kubernetes/manifests/{name}.yaml") }
}

fn status(phase: &str) -> PodStatus {
    PodStatus { phase: phase.to_owned(), ..PodStatus::default() }
}

fn event(message: &str, at: i64) -> StoredEvent {
    let key = EventKey {
        kind: "Pod".into(),
        name: "web".into(),
        reason: "Pulled".into(),
        message: message.into(),
        ..EventKey::default()
    };
    StoredEvent { key, count: 1, first: Timestamp::from_secs(at), last: Timestamp::from_secs(at) }
}

fn names(loaded: &Loaded, source: PodSource) -> Vec<String> {
    let stored = loaded.desired.iter().find(|stored| stored.source == source).unwrap();
    stored.pods.iter().map(|pod| pod.pod.metadata.name.clone()).collect()
}

/// Sizes, times and contents of the files: equal when nothing was written.
fn traces(directory: &Directory) -> Vec<(String, u64, std::time::SystemTime, Vec<u8>)> {
    ["", "-wal"]
        .iter()
        .map(|suffix| {
            let path = open::with_suffix(&directory.db(), suffix);
            let metadata = fs::metadata(&path).unwrap();
            ((*suffix).to_owned(), metadata.len(), metadata.modified().unwrap(), fs::read(&path).unwrap())
        })
        .collect()
}

#[test]
fn what_was_committed_survives_a_kill_in_both_modes() {
    for mode in [Mode::Inline, Mode::Threaded] {
        run(async {
            let directory = Directory::new();
            let (store, report) = StoreHandle::open(&directory.db(), options(mode)).unwrap();
            assert!(report.created && report.damaged.is_none(), "{report:?}");
            let (web, db) = (pod("web", "nginx:1"), pod("db", "pg:1"));
            store
                .commit_source(PodSource::File, &[web.clone(), db.clone()], &[], Some("\"etag\""))
                .await
                .unwrap();
            let state = StoredContainerState {
                restart_count: 3,
                back_off: Some(BackOff { delay: Duration::from_secs(40), updated: Timestamp::from_secs(7) }),
            };
            let uid = web.pod.metadata.uid.clone();
            store.put_container_state(&uid, &ContainerName::from("main"), state).await.unwrap();
            store.put_meta(meta::BOOT_ID, Some("b1")).await.unwrap();
            store.put_status(&uid, &status("Running"));

            let after = directory.snapshot();
            let loaded = open_inline(&after.db()).0.load().await.unwrap();
            let file = StoredSource {
                source: PodSource::File,
                pods: vec![db, web],
                objects: vec![],
                validator: Some("\"etag\"".to_owned()),
            };
            assert_eq!(loaded.desired, [file]);
            assert_eq!(loaded.container_state[&uid][&ContainerName::from("main")], state);
            assert_eq!(loaded.meta[meta::BOOT_ID], "b1");
            assert!(loaded.statuses.is_empty(), "statuses are written behind: the last second may be lost");
            assert!(loaded.unreadable.is_empty());

            store.shutdown().await.unwrap();
            let loaded = open_inline(&directory.db()).0.load().await.unwrap();
            assert_eq!(loaded.statuses[&uid], status("Running"), "shutdown writes what waits");
        });
    }
}

#[test]
fn an_empty_answer_of_a_source_is_remembered_as_an_answer() {
    run(async {
        let directory = Directory::new();
        let (store, _) = open_inline(&directory.db());
        assert_eq!(store.load().await.unwrap().desired, []);
        store.commit_source(PodSource::Http, &[], &[], None).await.unwrap();
        let empty = StoredSource { source: PodSource::Http, pods: vec![], objects: vec![], validator: None };
        assert_eq!(store.load().await.unwrap().desired, [empty]);
    });
}

#[test]
fn nothing_is_written_when_nothing_changed() {
    run(async {
        let directory = Directory::new();
        let (store, _) = open_inline(&directory.db());
        let pods = [pod("web", "nginx:1"), pod("db", "pg:1")];
        let uid = pods[0].pod.metadata.uid.clone();
        let state = StoredContainerState { restart_count: 1, back_off: None };
        let problems = [SourceProblem {
            origin: "a.yaml".into(),
            reason: "FailedValidation".into(),
            message: "no containers".into(),
            since: Timestamp::from_secs(5),
        }];
        let write = async || {
            let commit = store.commit_source(PodSource::File, &pods, &[], Some("e")).await.unwrap();
            store.put_container_state(&uid, &ContainerName::from("main"), state).await.unwrap();
            store.put_problems(PodSource::File, &problems).await.unwrap();
            store.put_meta(meta::NODE_NAME, Some("n1")).await.unwrap();
            let mut pending = status("Running");
            pending.conditions =
                vec![PodCondition { last_probe_time: Some(Timestamp::from_secs(1)), ..Default::default() }];
            store.put_status(&uid, &pending);
            store.flush().await.unwrap();
            store.forget_pod(&PodUid::from("unknown")).await.unwrap();
            commit
        };
        assert_eq!(write().await, Commit { written: 3, removed: 0 });
        let before = traces(&directory);
        assert_eq!(write().await, Commit::default());
        // Even when this process has forgotten what it wrote.
        store.shared.pending.borrow_mut().forget(&uid);
        assert_eq!(write().await, Commit::default());
        assert_eq!(traces(&directory), before);
    });
}

#[test]
fn only_rows_that_changed_are_written() {
    run(async {
        let directory = Directory::new();
        let (store, _) = open_inline(&directory.db());
        let mut pods: Vec<_> = (0..20).map(|i| pod(&format!("p{i}"), "a")).collect();
        assert_eq!(store.commit_source(PodSource::File, &pods, &[], None).await.unwrap().written, 21);
        pods[7] = pod("p7", "b");
        let commit = store.commit_source(PodSource::File, &pods, &[], None).await.unwrap();
        assert_eq!(commit, Commit { written: 1, removed: 0 });
    });
}

#[test]
fn a_pod_that_leaves_terminates_until_it_is_forgotten_also_when_it_comes_back() {
    run(async {
        let directory = Directory::new();
        let (store, _) = open_inline(&directory.db());
        let (a, b) = (pod("a", "1"), pod("b", "1"));
        store.commit_source(PodSource::File, &[a.clone(), b.clone()], &[], None).await.unwrap();
        let commit = store.commit_source(PodSource::File, &[], &[], None).await.unwrap();
        assert_eq!(commit.removed, 2);
        let loaded = store.load().await.unwrap();
        assert_eq!(loaded.terminating, [Pod::clone(&a.pod), Pod::clone(&b.pod)]);

        store.commit_source(PodSource::File, std::slice::from_ref(&a), &[], None).await.unwrap();
        store.forget_pod(&b.pod.metadata.uid).await.unwrap();
        let loaded = store.load().await.unwrap();
        assert_eq!(loaded.terminating, std::slice::from_ref(&*a.pod));
        assert_eq!(names(&loaded, PodSource::File), ["a"]);
        store.forget_pod(&a.pod.metadata.uid).await.unwrap();
        let loaded = store.load().await.unwrap();
        assert_eq!(loaded.terminating, []);
        assert_eq!(names(&loaded, PodSource::File), ["a"]);
    });
}

#[test]
fn the_end_of_a_pod_is_remembered_only_while_it_terminates() {
    run(async {
        let store = StoreHandle::open_in_memory(options(Mode::Inline)).unwrap();
        let a = pod("a", "1");
        let mut ending = Pod::clone(&a.pod);
        ending.metadata.deletion_timestamp = Some(Timestamp::from_secs(7));
        store.commit_source(PodSource::File, std::slice::from_ref(&a), &[], None).await.unwrap();
        store.put_terminating(&ending).await.unwrap();
        assert_eq!(store.load().await.unwrap().terminating, []);
        store.commit_source(PodSource::File, &[], &[], None).await.unwrap();
        store.put_terminating(&ending).await.unwrap();
        assert_eq!(store.load().await.unwrap().terminating, [ending]);
    });
}

#[test]
fn a_uid_that_another_source_still_wants_does_not_terminate() {
    run(async {
        let store = StoreHandle::open_in_memory(options(Mode::Inline)).unwrap();
        let a = [pod("a", "1")];
        store.commit_source(PodSource::File, &a, &[], None).await.unwrap();
        store.commit_source(PodSource::Http, &a, &[], None).await.unwrap();
        store.commit_source(PodSource::File, &[], &[], None).await.unwrap();
        let loaded = store.load().await.unwrap();
        assert_eq!(loaded.terminating, []);
        assert_eq!(names(&loaded, PodSource::Http), ["a"]);
    });
}

#[test]
fn forgetting_a_pod_removes_its_state_but_not_what_a_source_wants() {
    run(async {
        let store = StoreHandle::open_in_memory(options(Mode::Inline)).unwrap();
        let a = pod("a", "1");
        let uid = a.pod.metadata.uid.clone();
        store.commit_source(PodSource::File, &[a], &[], None).await.unwrap();
        let state = StoredContainerState { restart_count: 2, back_off: None };
        store.put_container_state(&uid, &ContainerName::from("main"), state).await.unwrap();
        store.put_status(&uid, &status("Running"));
        store.flush().await.unwrap();
        store.put_status(&uid, &status("Failed"));
        store.forget_pod(&uid).await.unwrap();
        store.flush().await.unwrap();
        let loaded = store.load().await.unwrap();
        assert_eq!(names(&loaded, PodSource::File), ["a"]);
        assert!(loaded.container_state.is_empty() && loaded.statuses.is_empty());
        // The same status is news again.
        store.put_status(&uid, &status("Failed"));
        store.flush().await.unwrap();
        assert_eq!(store.load().await.unwrap().statuses[&uid], status("Failed"));
    });
}

#[test]
fn a_status_without_its_pod_is_not_kept() {
    run(async {
        let store = StoreHandle::open_in_memory(options(Mode::Inline)).unwrap();
        store.put_status(&PodUid::from("gone"), &status("Running"));
        store.flush().await.unwrap();
        assert!(store.load().await.unwrap().statuses.is_empty());
        // Its pod comes after all, and the same status is written.
        let mut late = pod("late", "1");
        Rc::make_mut(&mut late.pod).metadata.uid = PodUid::from("gone");
        store.commit_source(PodSource::File, &[late], &[], None).await.unwrap();
        store.put_status(&PodUid::from("gone"), &status("Running"));
        store.flush().await.unwrap();
        assert_eq!(store.load().await.unwrap().statuses.len(), 1);
    });
}

#[test]
fn statuses_and_events_are_written_together_a_second_later() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let store = StoreHandle::open_in_memory(options(Mode::Inline)).unwrap();
        let a = pod("a", "1");
        let uid = a.pod.metadata.uid.clone();
        store.commit_source(PodSource::File, &[a], &[], None).await.unwrap();
        let writer = tokio::task::spawn_local(store.clone().write_behind());
        store.put_status(&uid, &status("Pending"));
        store.put_status(&uid, &status("Running"));
        store.put_event(event("one", 10));
        store.put_event(event("one", 12));
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(store.load().await.unwrap().statuses.is_empty());
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert_eq!(store.load().await.unwrap().statuses[&uid], status("Running"));
        let once = StoredEvent { count: 2, last: Timestamp::from_secs(12), ..event("one", 10) };
        assert_eq!(store.events().await.unwrap(), [once]);
        writer.abort();
    });
}

#[test]
fn the_ring_of_events_is_bounded_by_count_and_by_age_and_adds_up_repetitions() {
    run(async {
        let store = StoreHandle::open_in_memory(options(Mode::Inline)).unwrap();
        for number in 0..i64::from(MAX_EVENTS) + 250 {
            store.put_event(event(&format!("message {number}"), number));
            if number % 100 == 0 {
                store.flush().await.unwrap();
            }
        }
        store.flush().await.unwrap();
        let events = store.events().await.unwrap();
        assert_eq!(events.len(), MAX_EVENTS as usize);
        assert_eq!(events[0].key.message, "message 250");

        store.put_event(event("message 300", 5000));
        store.flush().await.unwrap();
        let events = store.events().await.unwrap();
        let last = events.last().unwrap();
        assert_eq!(
            (last.count, last.first, last.last),
            (2, Timestamp::from_secs(300), Timestamp::from_secs(5000))
        );

        let much_later = i64::try_from(MAX_EVENT_AGE.as_secs()).unwrap() + 4000;
        store.put_event(event("new week", much_later));
        store.flush().await.unwrap();
        let messages: Vec<_> = store.events().await.unwrap().into_iter().map(|e| e.key.message).collect();
        assert_eq!(messages, ["message 300", "new week"]);
    });
}

#[test]
fn events_of_a_clock_that_was_ahead_do_not_keep_newer_ones_out() {
    run(async {
        let store = StoreHandle::open_in_memory(options(Mode::Inline)).unwrap();
        for number in 0..i64::from(MAX_EVENTS) {
            store.put_event(event(&format!("ahead {number}"), 4_000_000_000 + number));
        }
        store.flush().await.unwrap();
        store.put_event(event("now", 1_700_000_000));
        store.flush().await.unwrap();
        let events = store.events().await.unwrap();
        assert_eq!(events.len(), MAX_EVENTS as usize);
        assert_eq!(events[0].key.message, "ahead 1");
        assert_eq!(events.last().unwrap().key.message, "now");
    });
}

#[test]
fn how_a_pod_ended_is_not_lost_with_the_power_and_is_still_not_after_a_failed_try() {
    let mut pending = pending::Pending::default();
    let (web, job) = (PodUid::from("web"), PodUid::from("job"));
    pending.put_status(&web, &status("Running"));
    assert!(!pending.take().unwrap().ends);
    pending.put_status(&job, &status("Succeeded"));
    pending.put_status(&web, &status("Pending"));
    let batch = pending.take().unwrap();
    assert!(batch.ends);
    pending.put_back(batch);
    assert!(pending.take().unwrap().ends);
    pending.put_status(&web, &status("Running"));
    assert!(!pending.take().unwrap().ends);
}

#[test]
fn waiting_events_are_bounded_too() {
    let mut pending = pending::Pending::default();
    for number in 0..i64::from(MAX_EVENTS) + 5 {
        pending.put_event(event(&format!("{number}"), number));
    }
    let batch = pending.take().unwrap();
    assert_eq!(batch.events.len(), MAX_EVENTS as usize);
    assert_eq!(batch.events[0].key.message, "5");
}

#[test]
fn problems_of_a_source_are_replaced_as_a_whole() {
    run(async {
        let store = StoreHandle::open_in_memory(options(Mode::Inline)).unwrap();
        let problem = |origin: &str| SourceProblem {
            origin: origin.into(),
            reason: "FailedValidation".into(),
            message: "m".into(),
            since: Timestamp::from_nanos(1_500_000_001),
        };
        store.put_problems(PodSource::File, &[problem("b"), problem("a")]).await.unwrap();
        store.put_problems(PodSource::Http, &[problem("u")]).await.unwrap();
        store.put_problems(PodSource::File, &[problem("a")]).await.unwrap();
        let expected =
            BTreeMap::from([(PodSource::File, vec![problem("a")]), (PodSource::Http, vec![problem("u")])]);
        assert_eq!(store.load().await.unwrap().problems, expected);
    });
}

#[test]
fn every_older_version_is_brought_up_to_date() {
    for version in 0..=schema::MIGRATIONS.len() {
        let directory = Directory::new();
        let connection = Connection::open(directory.db()).unwrap();
        for statement in &schema::MIGRATIONS[..version] {
            connection.execute_batch(statement).unwrap();
        }
        connection.execute_batch(&format!("PRAGMA journal_mode=WAL; PRAGMA user_version={version}")).unwrap();
        drop(connection);
        let (store, report) = open_inline(&directory.db());
        assert!(!report.created && report.damaged.is_none(), "version {version}: {report:?}");
        run(store.commit_source(PodSource::File, &[pod("a", "1")], &[], None)).unwrap();
    }
}

#[test]
fn a_newer_file_is_refused_and_left_alone() {
    let directory = Directory::new();
    drop(open_inline(&directory.db()));
    let connection = Connection::open(directory.db()).unwrap();
    connection.execute_batch("PRAGMA user_version = 99").unwrap();
    drop(connection);
    let error = StoreHandle::open(&directory.db(), options(Mode::Inline)).err().unwrap();
    assert!(matches!(error, StoreError::TooNew { found: 99, .. }), "{error:?}");
    assert!(error.to_string().contains("newer agent"), "{error}");
    assert!(matches!(ReadOnlyStore::open(&directory.db()), Err(StoreError::TooNew { .. })));
    assert!(!directory.names().iter().any(|name| name.contains("damaged")));
}

#[test]
fn a_second_agent_on_one_file_is_told_so() {
    let directory = Directory::new();
    let (first, _) = open_inline(&directory.db());
    let error = StoreHandle::open(&directory.db(), options(Mode::Inline)).err().unwrap();
    assert!(matches!(error, StoreError::InUse { .. }), "{error:?}");
    drop(first);
    assert!(StoreHandle::open(&directory.db(), options(Mode::Inline)).is_ok());
}

#[test]
fn the_files_are_for_root_alone() {
    let directory = Directory::new();
    fs::write(directory.db(), "").unwrap();
    fs::remove_file(directory.db()).unwrap();
    let (store, _) = open_inline(&directory.db());
    run(store.commit_source(PodSource::File, &[], &[], None)).unwrap();
    for name in directory.names() {
        let mode = fs::metadata(directory.0.join(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

/// Damages a store that holds a pod; it must open afresh and keep the damaged file.
fn check_damage(what: &str, damage: impl FnOnce(&Path)) {
    let directory = Directory::new();
    let (store, _) = open_inline(&directory.db());
    let pods: Vec<_> = (0..50).map(|i| pod(&format!("p{i}"), &"x".repeat(500))).collect();
    run(store.commit_source(PodSource::File, &pods, &[], None)).unwrap();
    run(store.shutdown()).unwrap();
    drop(store);
    damage(&directory.db());
    let (store, report) = open_inline(&directory.db());
    let damaged = report.damaged.unwrap_or_else(|| panic!("{what}: not noticed"));
    assert!(damaged.kept_as.to_string_lossy().ends_with("agent.db.damaged-20231114T221320Z"), "{damaged:?}");
    assert!(damaged.kept_as.exists() && !damaged.reason.is_empty(), "{what}: {damaged:?}");
    run(async {
        assert_eq!(store.load().await.unwrap(), Loaded::default(), "{what}");
        store.commit_source(PodSource::File, &[pod("a", "1")], &[], None).await.unwrap();
    });
}

fn overwrite(path: &Path, range: std::ops::Range<usize>, byte: u8) {
    let mut bytes = fs::read(path).unwrap();
    bytes[range].fill(byte);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_file_is_set_aside_and_a_fresh_one_made() {
    check_damage("zero length", |path| fs::write(path, "").unwrap());
    check_damage("not a database", |path| fs::write(path, "apiVersion: v1\n".repeat(1000)).unwrap());
    check_damage("short", |path| fs::write(path, "x").unwrap());
    check_damage("all zeros", |path| {
        let length = fs::metadata(path).unwrap().len();
        fs::write(path, vec![0; usize::try_from(length).unwrap()]).unwrap();
    });
    check_damage("page one overwritten", |path| overwrite(path, 100..4096, 0xff));
    check_damage("a page of pods overwritten", |path| {
        let pages = fs::metadata(path).unwrap().len() / 4096;
        overwrite(path, 4096..usize::try_from(pages).unwrap() * 4096, 0xa5);
    });
    check_damage("cut short", |path| {
        let length = fs::metadata(path).unwrap().len();
        fs::File::options().write(true).open(path).unwrap().set_len(length / 2).unwrap();
    });
    check_damage("another program's database", |path| {
        fs::remove_file(path).unwrap();
        let connection = Connection::open(path).unwrap();
        connection.execute_batch("CREATE TABLE meta (x); PRAGMA user_version = 0").unwrap();
    });
    check_damage("our version, other tables", |path| {
        fs::remove_file(path).unwrap();
        let connection = Connection::open(path).unwrap();
        connection.execute_batch("CREATE TABLE meta (x); PRAGMA user_version = 1").unwrap();
    });
}

#[test]
fn damaged_files_do_not_pile_up() {
    let directory = Directory::new();
    for _ in 0..6 {
        fs::write(directory.db(), "garbage").unwrap();
        drop(open_inline(&directory.db()));
    }
    let damaged = directory.names().iter().filter(|name| name.contains("damaged")).count();
    assert_eq!(damaged, 3, "{:?}", directory.names());
}

#[test]
fn a_torn_log_costs_its_last_transactions_and_nothing_older() {
    for tear in [0..32, 0..1_000_000, 40..60] {
        let directory = Directory::new();
        let (store, _) = open_inline(&directory.db());
        run(store.commit_source(PodSource::File, &[pod("old", "1")], &[], None)).unwrap();
        run(store.shutdown()).unwrap();
        drop(store);
        let (store, _) = open_inline(&directory.db());
        run(store.commit_source(PodSource::File, &[pod("new", "1")], &[], None)).unwrap();
        let after = directory.snapshot();
        let wal = open::with_suffix(&after.db(), "-wal");
        let length = usize::try_from(fs::metadata(&wal).unwrap().len()).unwrap();
        assert!(length > 0);
        overwrite(&wal, tear.start..tear.end.min(length), 0x5a);
        let (store, report) = open_inline(&after.db());
        assert!(!report.created && report.damaged.is_none(), "{tear:?}: {report:?}");
        let loaded = run(store.load()).unwrap();
        assert_eq!(names(&loaded, PodSource::File), ["old"], "{tear:?}");
    }
}

#[test]
fn a_row_that_does_not_decode_is_reported_and_the_others_are_loaded() {
    run(async {
        let directory = Directory::new();
        let (store, _) = open_inline(&directory.db());
        store.commit_source(PodSource::File, &[pod("a", "1"), pod("b", "1")], &[], None).await.unwrap();
        drop(store);
        let connection = Connection::open(directory.db()).unwrap();
        connection
            .execute_batch(
                "UPDATE desired SET json = '{\"spec\":{\"containers\":7}}' WHERE name = 'a';
                 INSERT INTO terminating VALUES ('t', '{not json');
                 INSERT INTO source VALUES ('carrier-pigeon', NULL);",
            )
            .unwrap();
        drop(connection);
        let loaded = open_inline(&directory.db()).0.load().await.unwrap();
        assert_eq!(names(&loaded, PodSource::File), ["b"]);
        let keys: Vec<_> = loaded.unreadable.iter().map(|row| (row.table, row.key.as_str())).collect();
        assert_eq!(keys, [("source", "carrier-pigeon"), ("desired", "uid-a"), ("terminating", "t")]);
        assert!(loaded.unreadable[1].message.contains("spec.containers"), "{:?}", loaded.unreadable);
    });
}

#[test]
fn a_full_disk_is_told_apart_and_what_waits_stays_waiting() {
    run(async {
        let directory = Directory::new();
        let (store, _) = open_inline(&directory.db());
        store.commit_source(PodSource::File, &[pod("a", "1")], &[], None).await.unwrap();
        let set_limit = async |pages: &'static str| {
            store
                .run(move |db| db.execute_for_test(&format!("PRAGMA max_page_count = {pages}")))
                .await
                .unwrap();
        };
        set_limit("1").await;
        let big = [pod("big", &"x".repeat(100_000))];
        let error = store.commit_source(PodSource::File, &big, &[], None).await.unwrap_err();
        assert!(matches!(error, StoreError::Full { .. }) && error.is_retryable(), "{error:?}");
        assert!(store.trouble().unwrap().contains("the disk is full"));
        store.put_meta("small", Some("fact")).await.unwrap();
        assert!(store.trouble().is_some(), "another write that works does not hide it");
        assert_eq!(names(&store.load().await.unwrap(), PodSource::File), ["a"], "all or nothing");
        let uid = PodUid::from("uid-a");
        let long = PodStatus { message: "y".repeat(100_000), ..status("Failed") };
        store.put_status(&uid, &long);
        assert!(matches!(store.flush().await, Err(StoreError::Full { .. })));
        set_limit("10000").await;
        store.flush().await.unwrap();
        assert_eq!(store.load().await.unwrap().statuses[&uid], long);
        store.commit_source(PodSource::File, &big, &[], None).await.unwrap();
        assert_eq!(store.trouble(), None);
    });
}

#[test]
fn a_restart_count_that_the_disk_refused_is_written_behind_unless_a_later_one_was() {
    run(async {
        let directory = Directory::new();
        let (store, _) = open_inline(&directory.db());
        store.commit_source(PodSource::File, &[pod("a", "1"), pod("b", "1")], &[], None).await.unwrap();
        let main = ContainerName::from("main");
        let count = |restart_count| StoredContainerState { restart_count, back_off: None };
        let [a, b, gone] = ["uid-a", "uid-b", "uid-gone"].map(PodUid::from);
        store.run(|db| db.execute_for_test("PRAGMA query_only = ON")).await.unwrap();
        for (uid, number) in [(&a, 1), (&a, 2), (&b, 1), (&gone, 1)] {
            store.put_container_state(uid, &main, count(number)).await.unwrap_err();
        }
        assert!(store.flush().await.is_err() && store.trouble().is_some());
        store.run(|db| db.execute_for_test("PRAGMA query_only = OFF")).await.unwrap();
        store.put_container_state(&b, &main, count(2)).await.unwrap();
        store.flush().await.unwrap();
        assert_eq!(store.trouble(), None);
        let states = store.load().await.unwrap().container_state;
        let counts: Vec<_> = states.iter().map(|(uid, names)| (uid, names[&main].restart_count)).collect();
        assert_eq!(counts, [(&a, 2), (&b, 2)], "and none of a pod that nobody knows");
    });
}

#[test]
fn a_file_that_cannot_be_written_is_told_apart_and_still_read() {
    run(async {
        let directory = Directory::new();
        let (store, _) = open_inline(&directory.db());
        let a = [pod("a", "1")];
        store.commit_source(PodSource::File, &a, &[], None).await.unwrap();
        store.run(|db| db.execute_for_test("PRAGMA query_only = ON")).await.unwrap();
        let error = store.commit_source(PodSource::File, &[], &[], None).await.unwrap_err();
        assert!(matches!(error, StoreError::ReadOnly { .. }), "{error:?}");
        assert_eq!(names(&store.load().await.unwrap(), PodSource::File), ["a"]);
    });
    let nowhere = StoreHandle::open(Path::new("/proc/agent.db"), options(Mode::Inline)).err().unwrap();
    assert!(matches!(nowhere, StoreError::File { .. }), "{nowhere:?}");
}

#[test]
fn a_closed_store_says_so() {
    for mode in [Mode::Inline, Mode::Threaded] {
        run(async {
            let store = StoreHandle::open_in_memory(options(mode)).unwrap();
            store.clone().shutdown().await.unwrap();
            assert!(matches!(store.load().await, Err(StoreError::Closed)));
            assert!(matches!(store.put_meta("k", None).await, Err(StoreError::Closed)));
        });
    }
}

#[test]
fn the_command_line_reads_while_the_agent_writes_and_after_it_is_gone() {
    run(async {
        let directory = Directory::new();
        let missing = ReadOnlyStore::open(&directory.db()).err().unwrap();
        assert!(matches!(missing, StoreError::Missing { .. }), "{missing:?}");
        assert!(directory.names().is_empty(), "looking creates nothing");

        let (store, _) = open_inline(&directory.db());
        store.commit_source(PodSource::File, &[pod("a", "1")], &[], None).await.unwrap();
        let mut reader = ReadOnlyStore::open(&directory.db()).unwrap();
        assert_eq!(names(&reader.load().unwrap(), PodSource::File), ["a"]);
        store.commit_source(PodSource::File, &[pod("b", "1")], &[], None).await.unwrap();
        assert_eq!(names(&reader.load().unwrap(), PodSource::File), ["b"]);
        drop(reader);

        let killed = directory.snapshot();
        let mut reader = ReadOnlyStore::open(&killed.db()).unwrap();
        assert_eq!(names(&reader.load().unwrap(), PodSource::File), ["b"], "what is only in the log is seen");
        drop(reader);

        store.shutdown().await.unwrap();
        drop(store);
        let before = directory.names();
        let mut reader = ReadOnlyStore::open(&directory.db()).unwrap();
        assert_eq!(names(&reader.load().unwrap(), PodSource::File), ["b"]);
        assert!(reader.events().unwrap().is_empty());
        assert_eq!(directory.names(), before, "reading creates nothing");
    });
}

#[derive(Clone, Debug)]
enum Op {
    Commit(PodSource, Vec<(u8, u8)>, Option<u8>),
    Forget(u8),
    Restart(u8, u32),
    Status(u8, u8),
    Reopen,
}

fn any_op() -> impl Strategy<Value = Op> {
    let source = prop_oneof![Just(PodSource::File), Just(PodSource::Http)];
    let pods = prop::collection::btree_map(0u8..6, 0u8..3, 0..5);
    prop_oneof![
        4 => (source, pods, prop::option::of(0u8..3)).prop_map(|(s, p, v)| Op::Commit(s, p.into_iter().collect(), v)),
        1 => (0u8..6).prop_map(Op::Forget),
        2 => (0u8..6, 0u32..5).prop_map(|(p, c)| Op::Restart(p, c)),
        2 => (0u8..6, 0u8..3).prop_map(|(p, s)| Op::Status(p, s)),
        1 => Just(Op::Reopen),
    ]
}

#[derive(Default)]
struct Model {
    desired: BTreeMap<PodSource, (BTreeMap<PodUid, SourcePod>, Option<String>)>,
    terminating: BTreeMap<PodUid, Pod>,
    counts: BTreeMap<PodUid, u32>,
    statuses: BTreeMap<PodUid, PodStatus>,
}

impl Model {
    fn wants(&self, uid: &PodUid) -> bool {
        self.desired.values().any(|(pods, _)| pods.contains_key(uid))
    }

    fn commit(&mut self, source: PodSource, pods: &[SourcePod], validator: Option<String>) {
        let new: BTreeMap<_, _> = pods.iter().map(|p| (p.pod.metadata.uid.clone(), p.clone())).collect();
        let (old, _) = self.desired.insert(source, (new, validator)).unwrap_or_default();
        for (uid, gone) in old {
            if !self.wants(&uid) {
                self.terminating.insert(uid, Rc::unwrap_or_clone(gone.pod));
            }
        }
    }

    fn check(&self, loaded: &Loaded) {
        let desired: Vec<_> = self
            .desired
            .iter()
            .map(|(source, (pods, validator))| StoredSource {
                source: *source,
                pods: pods.values().cloned().collect(),
                objects: vec![],
                validator: validator.clone(),
            })
            .collect();
        assert_eq!(loaded.desired, desired);
        assert_eq!(loaded.terminating, self.terminating.values().cloned().collect::<Vec<_>>());
        let counts: BTreeMap<_, _> = loaded
            .container_state
            .iter()
            .map(|(uid, s)| (uid.clone(), s.values().next().unwrap().restart_count))
            .collect();
        assert_eq!(counts, self.counts);
        assert_eq!(loaded.statuses, self.statuses);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_store_holds_what_a_model_holds(ops in prop::collection::vec(any_op(), 1..40)) {
        run(async {
            let directory = Directory::new();
            let mut store = open_inline(&directory.db()).0;
            let mut model = Model::default();
            let uid = |number: u8| PodUid::from(format!("uid-p{number}"));
            for op in ops {
                match op {
                    Op::Commit(source, pods, validator) => {
                        let pods: Vec<_> = pods.iter().map(|(n, i)| pod(&format!("p{n}"), &format!("{i}"))).collect();
                        let validator = validator.map(|v| v.to_string());
                        store.commit_source(source, &pods, &[], validator.as_deref()).await.unwrap();
                        model.commit(source, &pods, validator);
                    }
                    Op::Forget(number) => {
                        store.forget_pod(&uid(number)).await.unwrap();
                        model.terminating.remove(&uid(number));
                        model.counts.remove(&uid(number));
                        model.statuses.remove(&uid(number));
                    }
                    Op::Restart(number, restart_count) => {
                        let state = StoredContainerState { restart_count, back_off: None };
                        store.put_container_state(&uid(number), &ContainerName::from("main"), state).await.unwrap();
                        model.counts.insert(uid(number), restart_count);
                    }
                    Op::Status(number, phase) => {
                        store.put_status(&uid(number), &status(&phase.to_string()));
                        store.flush().await.unwrap();
                        if model.wants(&uid(number)) || model.terminating.contains_key(&uid(number)) {
                            model.statuses.insert(uid(number), status(&phase.to_string()));
                        }
                    }
                    Op::Reopen => {
                        drop(store);
                        store = open_inline(&directory.db()).0;
                    }
                }
            }
            model.check(&store.load().await.unwrap());
        });
    }
}
