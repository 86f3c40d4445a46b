//! The running source: what it notices between two rescans. The rescan is so far in the future that only
//! events can help.

use std::future::Future;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use tokio::task::LocalSet;
use tokio::time::timeout;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

struct Running {
    updates: mpsc::Receiver<SourceUpdate>,
}

impl Running {
    async fn next(&mut self) -> String {
        shown(&timeout(PATIENCE, self.updates.recv()).await.expect("an update in time").unwrap())
    }

    /// Receives updates until one equals this.
    async fn until(&mut self, wanted: &str) {
        let mut last = String::new();
        while last != wanted {
            last = self.next().await;
        }
    }

    async fn nothing_for(&mut self, duration: Duration) {
        if let Ok(update) = timeout(duration, self.updates.recv()).await {
            panic!("unexpected: {:?}", update.map(|update| (shown(&update), update.problems)));
        }
    }
}

fn watched<F: Future>(path: &Path, check: Duration, test: impl FnOnce(Running) -> F) {
    watched_with(path, check, None, test);
}

fn watched_with<F: Future>(
    path: &Path,
    check: Duration,
    accepts: Option<mpsc::Receiver<Accept>>,
    test: impl FnOnce(Running) -> F,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = FileConfig { path: path.to_owned(), check_frequency: check, node_name: NODE.to_owned() };
    let mut source = FileSource::new(config, Remembered::default(), Clock::System);
    if let Some(accepts) = accepts {
        source = source.accepting(accepts);
    }
    let (sender, updates) = mpsc::channel(1);
    runtime.block_on(LocalSet::new().run_until(async move {
        let running = tokio::task::spawn_local(source.run(sender));
        test(Running { updates }).await;
        timeout(PATIENCE, running).await.expect("ends with its listener").unwrap();
    }));
}

const NEVER: Duration = Duration::from_secs(3600);

#[test]
fn manifest_renamed_into_place_is_reported_promptly() {
    let root = TempDir::new();
    watched(root.path(), NEVER, async |mut running| {
        assert_eq!(running.next().await, "");
        let mut times = Vec::new();
        for version in 0..20 {
            let started = std::time::Instant::now();
            root.put_lines("a.yaml", &format!("a={version}"));
            assert_eq!(running.next().await, format!("a={version}"));
            times.push(started.elapsed());
            tokio::time::sleep(2 * BURST).await;
        }
        times.sort();
        println!("median {:?}, worst {:?}", times[10], times[19]);
        assert!(times[10] < Duration::from_secs(1), "{times:?}");
    });
}

#[test]
fn created_changed_and_deleted_files_are_seen_without_rescan() {
    let root = TempDir::new();
    watched(root.path(), NEVER, async |mut running| {
        assert_eq!(running.next().await, "");
        write(root.join("a.yaml"), "a=1");
        assert_eq!(running.next().await, "a=1");
        write(root.join("a.yaml"), "a=2");
        assert_eq!(running.next().await, "a=2");
        symlink("a.yaml", root.join("b.yaml")).unwrap();
        assert_eq!(running.next().await, "a=2 a=2");
        root.remove("b.yaml");
        assert_eq!(running.next().await, "a=2");
        fs::rename(root.join("a.yaml"), root.join(".a.yaml")).unwrap();
        assert_eq!(running.next().await, "");
    });
}

#[test]
fn a_half_written_file_is_left_alone_until_its_writer_closes_it() {
    let root = TempDir::new();
    root.put_lines("a.yaml", "a=1\nb=1");
    watched(root.path(), NEVER, async |mut running| {
        assert_eq!(running.next().await, "a=1 b=1");
        let mut file = fs::File::create(root.join("a.yaml")).unwrap();
        file.write_all(manifest("a=2").as_bytes()).unwrap();
        // A full scan in between, which a change of the directory's own mode causes, must not use the
        // incomplete content either.
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).unwrap();
        running.nothing_for(Duration::from_millis(50)).await;
        root.put_lines("c.yaml", "c=1");
        assert_eq!(running.next().await, "a=1 b=1 c=1");
        file.write_all(manifest("b=2").as_bytes()).unwrap();
        drop(file);
        assert_eq!(running.next().await, "a=2 b=2 c=1");
    });
}

#[test]
fn unclosed_writer_delays_a_file_by_two_rescans_at_most() {
    let root = TempDir::new();
    root.put_lines("a.yaml", "a=1");
    watched(root.path(), Duration::from_millis(50), async |mut running| {
        assert_eq!(running.next().await, "a=1");
        let mut file = fs::File::create(root.join("a.yaml")).unwrap();
        file.write_all(manifest("a=2").as_bytes()).unwrap();
        running.until("a=2").await;
        drop(file);
    });
}

#[test]
fn a_directory_that_is_removed_and_made_again_is_watched_again() {
    let root = TempDir::new();
    let path = root.join("etc/manifests");
    watched(&path, NEVER, async |mut running| {
        assert_eq!(running.next().await, "unknown");
        for version in 1..4 {
            fs::create_dir_all(&path).unwrap();
            // Recreated, it gives no answer before it has content.
            running.until(if version == 1 { "" } else { "unknown" }).await;
            write(path.join("a.yaml"), &format!("a={version}"));
            running.until(&format!("a={version}")).await;
            fs::remove_dir_all(root.join("etc")).unwrap();
            running.until("unknown").await;
        }
    });
}

#[test]
fn replaced_directory_is_watched_at_its_new_inode() {
    let root = TempDir::new();
    let path = root.join("manifests");
    fs::create_dir(&path).unwrap();
    fs::create_dir(root.join("next")).unwrap();
    write(root.join("next/a.yaml"), "a=2");
    write(path.join("a.yaml"), "a=1");
    watched(&path, NEVER, async |mut running| {
        assert_eq!(running.next().await, "a=1");
        fs::rename(&path, root.join("old")).unwrap();
        fs::rename(root.join("next"), &path).unwrap();
        running.until("a=2").await;
        write(path.join("b.yaml"), "b=1");
        running.until("a=2 b=1").await;
        write(root.join("old/c.yaml"), "c=1");
        running.nothing_for(Duration::from_millis(30)).await;
    });
}

#[test]
fn a_symlink_on_the_way_that_is_swapped_is_noticed() {
    let root = TempDir::new();
    for version in ["1", "2"] {
        fs::create_dir_all(root.join(format!("deploy-{version}/manifests"))).unwrap();
        write(root.join(format!("deploy-{version}/manifests/a.yaml")), &format!("a={version}"));
    }
    symlink("deploy-1", root.join("current")).unwrap();
    watched(&root.join("current/manifests"), NEVER, async |mut running| {
        assert_eq!(running.next().await, "a=1");
        symlink("deploy-2", root.join("swap")).unwrap();
        fs::rename(root.join("swap"), root.join("current")).unwrap();
        assert_eq!(running.next().await, "a=2");
        write(root.join("deploy-2/manifests/b.yaml"), "b=1");
        assert_eq!(running.next().await, "a=2 b=1");
    });
}

#[test]
fn manifest_links_through_a_hidden_directory_follow_its_swap() {
    let root = TempDir::new();
    for version in ["1", "2"] {
        fs::create_dir(root.join(format!("..v{version}"))).unwrap();
        write(root.join(format!("..v{version}/a.yaml")), &format!("a={version}"));
    }
    symlink("..v1", root.join("..data")).unwrap();
    symlink("..data/a.yaml", root.join("a.yaml")).unwrap();
    watched(root.path(), NEVER, async |mut running| {
        assert_eq!(running.next().await, "a=1");
        symlink("..v2", root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
        assert_eq!(running.next().await, "a=2");
    });
}

#[test]
fn a_single_file_that_is_replaced_made_or_removed_is_noticed() {
    let root = TempDir::new();
    let path = root.join("only.yaml");
    watched(&path, NEVER, async |mut running| {
        assert_eq!(running.next().await, "unknown");
        write(&path, "a=1");
        running.until("a=1").await;
        root.put_lines("only.yaml", "a=2");
        running.until("a=2").await;
        write(&path, "a=3");
        running.until("a=3").await;
        root.put_lines("other.yaml", "b=1");
        running.nothing_for(Duration::from_millis(30)).await;
        root.remove("only.yaml");
        running.until("unknown").await;
    });
}

#[test]
fn many_files_landing_at_once_make_few_updates() {
    let root = TempDir::new();
    watched(root.path(), NEVER, async |mut running| {
        assert_eq!(running.next().await, "");
        for number in 0..500 {
            root.put_lines(&format!("{number:03}.yaml"), &format!("p{number}=1"));
        }
        let mut updates = 1;
        while running.next().await.split(' ').count() != 500 {
            updates += 1;
        }
        assert!(updates <= 10, "{updates} updates");
    });
}

#[test]
fn an_idle_source_tells_nothing_rescan_after_rescan() {
    let root = TempDir::new();
    root.put_lines("a.yaml", "a=1");
    root.put_lines("b.yaml", "!");
    watched(root.path(), Duration::from_millis(20), async |mut running| {
        assert_eq!(running.next().await, "a=1");
        running.nothing_for(Duration::from_millis(200)).await;
    });
}

#[test]
fn rescan_finds_changes_without_events() {
    let root = TempDir::new();
    let elsewhere = TempDir::new();
    elsewhere.put_lines("a.yaml", "a=1");
    symlink(elsewhere.join("a.yaml"), root.join("a.yaml")).unwrap();
    watched(root.path(), Duration::from_millis(50), async |mut running| {
        assert_eq!(running.next().await, "a=1");
        elsewhere.put_lines("a.yaml", "a=2");
        assert_eq!(running.next().await, "a=2");
    });
}

#[test]
fn editor_backup_rename_removes_no_pod() {
    let root = TempDir::new();
    root.put_lines("a.yaml", "a=1");
    watched(root.path(), NEVER, async |mut running| {
        assert_eq!(running.next().await, "a=1");
        fs::rename(root.join("a.yaml"), root.join("a.yaml~")).unwrap();
        let mut file = fs::File::create(root.join("a.yaml")).unwrap();
        running.nothing_for(Duration::from_millis(30)).await;
        file.write_all(manifest("a=2").as_bytes()).unwrap();
        drop(file);
        root.remove("a.yaml~");
        assert_eq!(running.next().await, "a=2");
    });
}

#[test]
fn quickly_restored_file_or_directory_is_not_reported_gone() {
    let root = TempDir::new();
    let path = root.join("m");
    fs::create_dir(&path).unwrap();
    write(path.join("a.yaml"), "a=1");
    watched(&path, NEVER, async |mut running| {
        assert_eq!(running.next().await, "a=1");
        for version in 2..6 {
            let started = std::time::Instant::now();
            if version % 2 == 0 {
                fs::remove_file(path.join("a.yaml")).unwrap();
            } else {
                fs::remove_dir_all(&path).unwrap();
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
            fs::create_dir_all(&path).unwrap();
            tokio::time::sleep(Duration::from_millis(3)).await;
            write(path.join("a.yaml"), &format!("a={version}"));
            let wanted = format!("a={version}");
            // On a machine that stalled meanwhile the quiet period after the removal was over, and the
            // removal is correctly reported.
            if started.elapsed() < QUIET_AFTER_REMOVAL {
                assert_eq!(running.next().await, wanted);
            } else {
                running.until(&wanted).await;
            }
        }
    });
}

#[test]
fn an_empty_directory_in_the_place_of_another_can_be_accepted() {
    let root = TempDir::new();
    let path = root.join("manifests");
    fs::create_dir(&path).unwrap();
    write(path.join("a.yaml"), "a=1");
    let (accept, accepts) = mpsc::channel(1);
    let accepted = async || {
        let (done, answered) = tokio::sync::oneshot::channel();
        accept.send(done).await.unwrap();
        timeout(PATIENCE, answered).await.unwrap().unwrap()
    };
    watched_with(&path, NEVER, Some(accepts), async |mut running| {
        assert_eq!(running.next().await, "a=1");
        fs::rename(&path, root.join("away")).unwrap();
        running.until("unknown").await;
        assert!(!accepted().await, "there is no directory: nothing to accept");
        fs::create_dir(&path).unwrap();
        assert_eq!(running.next().await, "unknown");
        let (accepted, told) = tokio::join!(accepted(), running.next());
        assert_eq!((accepted, told.as_str()), (true, ""));
    });
}
