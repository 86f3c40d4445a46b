//! The store against real files: durability, coalescing, and the retention of pods.

mod disk;
mod model;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use proptest::prelude::*;
use rusqlite::Connection;

use super::*;
use crate::model::api::pod::{Container, Pod, PodCondition};
use crate::model::back_off::BackOff;
use crate::platform::testing::TempDir;

/// A directory that is removed with the test.
struct Directory(TempDir);

impl Directory {
    fn new() -> Self {
        Self(TempDir::new())
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
            pod: String::new(),
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
        // Even when this process has lost its record of the last write.
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
fn removed_pod_is_terminating_until_forgotten() {
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
fn forgetting_a_pod_removes_its_state_but_not_its_spec() {
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
        // The same status is written again.
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
        // Its pod appears after all, and the same status is written.
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
fn events_are_bounded_and_repetitions_counted() {
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
fn terminal_status_is_synced_also_after_a_failed_write() {
    let mut pending = pending::Pending::default();
    let (web, job) = (PodUid::from("web"), PodUid::from("job"));
    pending.put_status(&web, &status("Running"));
    assert!(!pending.take().unwrap().ends);
    pending.put_status(&job, &status("Succeeded"));
    pending.put_status(&web, &status("Pending"));
    let batch = pending.take().unwrap();
    assert!(batch.ends);
    pending.requeue(batch);
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
            pod: String::new(),
        };
        store.put_problems(PodSource::File, &[problem("b"), problem("a")]).await.unwrap();
        store.put_problems(PodSource::Http, &[problem("u")]).await.unwrap();
        store.put_problems(PodSource::File, &[problem("a")]).await.unwrap();
        let expected =
            BTreeMap::from([(PodSource::File, vec![problem("a")]), (PodSource::Http, vec![problem("u")])]);
        assert_eq!(store.load().await.unwrap().problems, expected);
    });
}
