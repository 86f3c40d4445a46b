//! Files of other versions, damaged files, full and read-only disks, and reading beside a writer.

use serde_json::json;

use super::*;
use crate::model::objects::ObjectKind;

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
    connection.execute_batch("PRAGMA application_id = 0; PRAGMA user_version = 99").unwrap();
    drop(connection);
    let error = StoreHandle::open(&directory.db(), options(Mode::Inline)).err().unwrap();
    assert!(matches!(error, StoreError::TooNew { found: 99, .. }), "{error:?}");
    assert!(error.to_string().contains("newer agent"), "{error}");
    assert!(matches!(ReadOnlyStore::open(&directory.db()), Err(StoreError::TooNew { .. })));
    assert!(!directory.names().iter().any(|name| name.contains("damaged")));
}

#[test]
fn newer_compatible_store_is_used_and_keeps_its_version() {
    let directory = Directory::new();
    let (store, _) = open_inline(&directory.db());
    run(store.commit_source(PodSource::File, &[pod("a", "1")], &[], None)).unwrap();
    drop(store);
    let connection = Connection::open(directory.db()).unwrap();
    let pragma = |name: &str| -> i64 {
        connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0)).unwrap()
    };
    assert_eq!(
        (pragma("application_id"), pragma("user_version")),
        (schema::READABLE_BY, schema::newest_version())
    );
    // A future release: one more table, and no existing one was changed.
    let tomorrow = schema::newest_version() + 1;
    let statement = format!("CREATE TABLE moon (phase TEXT); PRAGMA user_version = {tomorrow}");
    connection.execute_batch(&statement).unwrap();
    let (store, report) = open_inline(&directory.db());
    assert!(report.damaged.is_none() && !report.created, "{report:?}");
    run(store.commit_source(PodSource::File, &[pod("a", "1"), pod("b", "2")], &[], None)).unwrap();
    run(store.put_meta("x", Some("y"))).unwrap();
    assert_eq!(run(store.load()).unwrap().desired[0].pods.len(), 2);
    drop(store);
    assert!(ReadOnlyStore::open(&directory.db()).unwrap().load().is_ok());
    assert_eq!(pragma("user_version"), tomorrow);
    // A later release, which changed an existing table.
    connection.execute_batch(&format!("PRAGMA application_id = {tomorrow}")).unwrap();
    let error = StoreHandle::open(&directory.db(), options(Mode::Inline)).err().unwrap();
    assert!(matches!(error, StoreError::TooNew { .. }), "{error:?}");
}

#[test]
fn second_agent_on_one_store_is_refused() {
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
    assert!(damaged.moved_to.to_string_lossy().ends_with("agent.db.damaged-20231114T221320Z"), "{damaged:?}");
    assert!(damaged.moved_to.exists() && !damaged.reason.is_empty(), "{what}: {damaged:?}");
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
fn undecodable_row_is_reported_and_the_others_load() {
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

fn with_key() -> OpenOptions {
    let key = StoreKey::Sealed(Box::new(SealingKey::parse(&[1; 32]).unwrap()));
    OpenOptions { key, ..options(Mode::Inline) }
}

/// A store with a row in every table, in pages of the smallest size.
async fn small_store(directory: &Directory) -> Loaded {
    let connection = Connection::open(directory.db()).unwrap();
    let format = "PRAGMA page_size = 512; PRAGMA journal_mode = WAL; PRAGMA application_id = 1";
    connection.execute_batch(format).unwrap();
    drop(connection);
    let (store, report) = StoreHandle::open(&directory.db(), with_key()).unwrap();
    assert!(report.damaged.is_none() && !report.created);
    let object = |kind, value| SourceObject {
        object: Rc::new(wire::from_value(kind, value).unwrap()),
        origin: "/m".to_owned(),
    };
    let objects = [
        object(ObjectKind::ConfigMap, json!({"metadata": {"name": "m"}, "data": {"k": "v"}})),
        object(ObjectKind::Secret, json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}})),
    ];
    let file = PodSource::File;
    store.commit_source(file, &[pod("a", "1"), pod("b", "1")], &objects, Some("v")).await.unwrap();
    store.commit_source(file, &[pod("a", "1")], &objects, Some("v")).await.unwrap();
    let why = "web: too late".to_owned();
    let phase = RolloutPhase::RolledBack { digest: "d".to_owned(), why, since: Timestamp::from_secs(1) };
    store.put_rollout(file, &phase).await.unwrap();
    let back_off = Some(BackOff { delay: Duration::from_secs(40), updated: Timestamp::from_secs(7) });
    let state = StoredContainerState { restart_count: 300, back_off };
    let uid = PodUid::from("uid-a");
    store.put_container_state(&uid, &ContainerName::from("main"), state).await.unwrap();
    store.put_status(&uid, &status("Running"));
    store.put_event(event("Pulled", 5));
    store.put_event(event("Started", 6));
    let [origin, reason, message, pod] = ["/m/x", "Bad", "no", ""].map(str::to_owned);
    let problem = SourceProblem { origin, reason, message, since: Timestamp::from_secs(9), pod };
    store.put_problems(file, &[problem]).await.unwrap();
    store.put_meta(meta::NODE_NAME, Some("box")).await.unwrap();
    store.flush().await.unwrap();
    let loaded = store.load().await.unwrap();
    store.shutdown().await.unwrap();
    assert!(loaded.unreadable.is_empty() && loaded.statuses.len() == 1 && loaded.terminating.len() == 1);
    loaded
}

#[test]
fn flipped_bit_anywhere_costs_rows_at_most_and_never_a_start() {
    run(async {
        // A byte becomes one that no text has, or differs in some other bit. With a step of 1 it takes minutes.
        let step = 13;
        // Each start syncs files, which takes a disk longer than all the rest.
        let directory = Directory(TempDir::below(Path::new("/dev/shm")));
        let expected = small_store(&directory).await;
        let whole = fs::read(directory.db()).unwrap();
        let high = (0..whole.len()).step_by(step).map(|at| (at, 0x80));
        let low = (5..whole.len()).step_by(5 * step).flat_map(|at| [(at, 1), (at, 1 << (at % 6 + 1))]);
        let (mut starts, mut set_aside, mut lost_rows, mut rebuilt) = (0, 0, 0, 0);
        for (at, bit) in high.chain(low) {
            for name in directory.names() {
                fs::remove_file(directory.0.join(name)).unwrap();
            }
            let mut bytes = whole.clone();
            bytes[at] ^= bit;
            fs::write(directory.db(), bytes).unwrap();
            let case = format!("byte {at} of page {}, bit {bit:#x}", at / 512);
            let offline = ReadOnlyStore::open(&directory.db()).and_then(|mut store| {
                store.events()?;
                store.load()
            });
            assert!(offline.as_ref().err().is_none_or(StoreError::is_damage), "{case}: {offline:?}");
            let opened = StoreHandle::open(&directory.db(), with_key());
            let (store, mut report) = opened.unwrap_or_else(|error| panic!("{case}: {error:?}"));
            let opened = store.load_or_set_aside(&directory.db(), with_key(), &mut report).await;
            let (store, mut loaded) = opened.unwrap_or_else(|error| panic!("{case}: {error:?}"));
            let is_reported = report.damaged.is_some() || report.reindexed || !loaded.unreadable.is_empty();
            if bit == 0x80 && !is_reported {
                // Numbers have no invalid form.
                loaded.container_state.clone_from(&expected.container_state);
                loaded.problems.clone_from(&expected.problems);
                assert_eq!(loaded, expected, "{case}");
            }
            store.events().await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
            let commit = store.commit_source(PodSource::File, &[pod("c", "1")], &[], None).await;
            commit.unwrap_or_else(|error| panic!("{case}: {error:?}"));
            starts += 1;
            set_aside += usize::from(report.damaged.is_some());
            rebuilt += usize::from(report.reindexed);
            lost_rows += usize::from(!loaded.unreadable.is_empty());
        }
        assert!(
            starts > set_aside && lost_rows > 0 && rebuilt > 0,
            "{starts} {set_aside} {lost_rows} {rebuilt}"
        );
    });
}

#[test]
fn row_with_a_column_of_the_wrong_type_is_reported_and_replaced() {
    run(async {
        let directory = Directory::new();
        let expected = small_store(&directory).await;
        let connection = Connection::open(directory.db()).unwrap();
        connection
            .execute_batch(
                "UPDATE desired SET uid = CAST(x'ff6100' AS TEXT);
                 UPDATE object SET json = x'00' WHERE kind = 'ConfigMap';
                 UPDATE secret_value SET value = 'text';
                 UPDATE container_state SET restart_count = 'many';
                 UPDATE event SET count = -1 WHERE message = 'Pulled';",
            )
            .unwrap();
        drop(connection);
        let (store, report) = StoreHandle::open(&directory.db(), with_key()).unwrap();
        assert!(report.damaged.is_none(), "{report:?}");
        let loaded = store.load().await.unwrap();
        let keys: Vec<_> = loaded.unreadable.iter().map(|row| (row.table, row.key.as_str())).collect();
        assert_eq!(
            keys,
            [
                ("desired", "file \u{fffd}a\0"),
                ("object", "file ConfigMap default m"),
                ("container_state", "uid-a main"),
                ("object", "Secret default/s"),
            ]
        );
        assert_eq!(store.events().await.unwrap().len(), 1);
        // What the source delivers takes their place.
        let file = &expected.desired[0];
        store.commit_source(PodSource::File, &file.pods, &file.objects, Some("v")).await.unwrap();
        let states = &expected.container_state[&PodUid::from("uid-a")];
        for (name, state) in states {
            store.put_container_state(&PodUid::from("uid-a"), name, *state).await.unwrap();
        }
        assert_eq!(store.load().await.unwrap(), expected);
    });
}

#[test]
fn store_that_cannot_be_read_as_a_whole_is_set_aside() {
    run(async {
        let directory = Directory::new();
        let (store, mut report) = open_inline(&directory.db());
        store.run(|db| db.execute_for_test("DROP TABLE status")).await.unwrap();
        let opened = store.load_or_set_aside(&directory.db(), options(Mode::Inline), &mut report).await;
        let (store, loaded) = opened.unwrap();
        assert!(report.damaged.unwrap().reason.contains("no such table: status"));
        assert_eq!(loaded, Loaded::default());
        store.commit_source(PodSource::File, &[pod("a", "1")], &[], None).await.unwrap();
    });
}

#[test]
fn pod_with_a_raw_field_of_the_wrong_type_is_read_without_it() {
    run(async {
        let directory = Directory::new();
        let (store, _) = open_inline(&directory.db());
        let mut odd = pod("a", "1");
        let spec = &mut Rc::make_mut(&mut odd.pod).spec;
        spec.affinity = Some(json!({"podAffinity": 5, "nodeAffinity": {}}));
        spec.topology_spread_constraints = vec![json!({"maxSkew": "x", "topologyKey": "zone"})];
        store.commit_source(PodSource::File, &[odd], &[], None).await.unwrap();
        let loaded = store.load().await.unwrap();
        assert_eq!(
            (loaded.unreadable.as_slice(), names(&loaded, PodSource::File)),
            (&[][..], vec!["a".to_owned()])
        );
        let read = &loaded.desired[0].pods[0].pod.spec;
        assert_eq!(read.affinity, Some(json!({"nodeAffinity": {}})));
        assert_eq!(read.topology_spread_constraints, [json!({"topologyKey": "zone"})]);
        let dropped: Vec<&str> = loaded.dropped.iter().map(|row| row.message.as_str()).collect();
        assert_eq!(
            dropped,
            [
                "spec.affinity.podAffinity: invalid type: integer `5`, expected a map",
                "spec.topologySpreadConstraints[0].maxSkew: invalid type: string \"x\", expected a 32-bit \
                 integer",
            ]
        );
    });
}

#[test]
fn full_disk_is_reported_and_pending_writes_are_kept() {
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
        assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
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
fn refused_restart_count_is_retried_unless_superseded() {
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
fn unwritable_store_is_reported_and_still_readable() {
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
fn read_only_store_works_beside_the_agent_and_after_it() {
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
