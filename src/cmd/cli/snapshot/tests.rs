//! Claims in a scratch directory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use super::*;
use crate::model::objects::wire;
use crate::platform::sys::mount;
use crate::platform::testing::TempDir;

/// A claim `data` of the default namespace with some files.
fn claim(root: &Path) -> PathBuf {
    let data = root.join(VOLUMES_DIR).join("default/data");
    fs::create_dir_all(data.join("deep")).unwrap();
    fs::write(data.join("deep/file"), "one").unwrap();
    fs::hard_link(data.join("deep/file"), data.join("second")).unwrap();
    symlink("/etc/shadow", data.join("link")).unwrap();
    fs::set_permissions(data.join("deep/file"), Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(data.join("deep"), Permissions::from_mode(0o1777)).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    File::open(data.join("deep")).unwrap().set_modified(time).unwrap();
    data
}

fn places(root: &Path, name: &str) -> Places {
    Places::new(root, "default", "data", name).unwrap()
}

#[test]
fn snapshot_keeps_what_the_claim_had_and_gives_it_back() {
    let root = TempDir::new();
    let data = claim(&root);
    let said = places(&root, "first").create(true).unwrap();
    assert_eq!(said, "snapshot \"first\" of claim \"data\": 1 files, 3 bytes\n");
    fs::write(data.join("deep/file"), "changed").unwrap();
    fs::write(data.join("new"), "new").unwrap();
    assert!(list(&root, "default", None).contains("first"), "{}", list(&root, "default", None));

    places(&root, "first").restore(&AgentReport::default(), true).unwrap();
    assert_eq!(fs::read_to_string(data.join("deep/file")).unwrap(), "one");
    assert!(!data.join("new").exists());
    assert_eq!(fs::read_link(data.join("link")).unwrap(), Path::new("/etc/shadow"));
    let of = |name: &str| fs::metadata(data.join(name)).unwrap();
    assert_eq!(of("second").ino(), of("deep/file").ino());
    assert_eq!((of("deep/file").mode() & 0o7777, of("deep").mode() & 0o7777), (0o4751, 0o1777));
    assert_eq!(of("deep").mtime(), 1000);
    let left = |directory: &Path| fs::read_dir(directory).unwrap().count();
    assert_eq!(left(data.parent().unwrap()), 1, "nothing partial stays");

    places(&root, "first").delete().unwrap();
    assert_eq!(list(&root, "default", Some("data")), "No snapshots found.\n");
    assert_eq!(left(&root.join(SNAPSHOTS_DIR)), 1, "the lock file");
}

#[test]
fn an_interrupted_copy_is_replaced_and_never_listed() {
    let root = TempDir::new();
    claim(&root);
    let partial = root.join(SNAPSHOTS_DIR).join("default/data/.partial-first");
    fs::create_dir_all(&partial).unwrap();
    fs::write(partial.join("half"), "").unwrap();
    assert_eq!(list(&root, "default", None), "No snapshots found.\n");
    places(&root, "first").create(true).unwrap();
    assert!(!root.join(SNAPSHOTS_DIR).join("default/data/first/half").exists());
}

#[test]
fn what_cannot_be_done_is_refused_with_the_reason() {
    let root = TempDir::new();
    let data = claim(&root);
    let refused = |done: Result<String, Refusal>| done.unwrap_err().to_string();
    let none = |name: &str| Places::new(&root, "default", name, "x").map(|_| String::new());
    assert!(refused(none("../x")).contains("../x"));
    assert!(Places::new(&root, "default", "data", "No").is_err());
    assert!(refused(places(&root, "a").restore(&AgentReport::default(), true)).contains("does not exist"));
    places(&root, "a").create(true).unwrap();
    assert!(refused(places(&root, "a").create(true)).contains("exists already"));
    if !layer::shares_blocks(&data).unwrap() {
        assert!(
            refused(places(&root, "b").create(false)).contains("use --copy to copy 3 files"),
            "blocks are not shared"
        );
    }
    fs::remove_dir_all(&data).unwrap();
    assert!(refused(places(&root, "c").create(true)).contains("has no data"));
}

/// The names of copies that are not complete.
fn partials(root: &Path) -> Vec<PathBuf> {
    let directories = [root.join(VOLUMES_DIR).join("default"), root.join(SNAPSHOTS_DIR).join("default/data")];
    let entries =
        directories.into_iter().flat_map(fs::read_dir).flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.to_string_lossy().contains(PARTIAL_PREFIX)).collect()
}

#[test]
fn one_command_at_a_time_works_on_a_claim() {
    let root = TempDir::new();
    claim(&root);
    let held = places(&root, "a").hold().unwrap();
    let error = places(&root, "b").create(true).unwrap_err().to_string();
    assert_eq!(error, "snapshot \"b\": another command works on the claim's snapshots");
    Places::new(&root, "default", "other", "a").unwrap().hold().unwrap();
    drop(held);
    places(&root, "b").create(true).unwrap();
}

#[test]
fn a_copy_that_fails_or_was_interrupted_does_not_stay() {
    let root = TempDir::new();
    let data = claim(&root);
    fs::create_dir_all(root.join(SNAPSHOTS_DIR).join("default/data/.partial-old/deep")).unwrap();
    fs::create_dir_all(beside(&data)).unwrap();
    mount::mount_tmpfs(&data.join("deep"), Some(1 << 20)).unwrap();
    let failed = places(&root, "a").create(true);
    mount::unmount(&data.join("deep")).unwrap();
    assert!(failed.unwrap_err().to_string().starts_with("copy to"));
    assert_eq!(partials(&root), [""; 0].map(PathBuf::from));
}

#[test]
fn files_that_go_while_they_are_copied_are_left_out() {
    let root = TempDir::new();
    let data = claim(&root);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                for number in 0..100 {
                    fs::create_dir(data.join(format!("d{number}"))).unwrap();
                    fs::write(data.join(format!("f{number}")), "x").unwrap();
                }
                for number in 0..100 {
                    fs::remove_dir(data.join(format!("d{number}"))).unwrap();
                    fs::remove_file(data.join(format!("f{number}"))).unwrap();
                }
            }
        });
        let copied: Vec<_> =
            (0..50).map(|number| copy_tree(&data, &root.join(number.to_string())).map(drop)).collect();
        is_done.store(true, Ordering::Relaxed);
        copied.into_iter().for_each(Result::unwrap);
    });
}

#[test]
fn a_pod_that_starts_during_a_restore_keeps_its_data() {
    let root = TempDir::new();
    let (data, places) = (claim(&root), places(&root, "a"));
    let copied = beside(&data);
    fs::write(data.join("old"), "").unwrap();
    fs::create_dir(&copied).unwrap();
    let point =
        root.join("pods/u1/volumes/kubernetes.io~local-volume").join(wire::volume_name(&places.claim));
    fs::create_dir_all(&point).unwrap();
    let used = |tree: &Path, action: &dyn Fn() -> Result<(), Refusal>| {
        mount::bind(tree, &point).unwrap();
        let done = action();
        mount::unmount(&point).unwrap();
        done.map_err(|error| error.to_string())
    };
    let mounted =
        format!("claim \"data\" is still mounted on {point:?}: remove its pod and wait until it is deleted");
    assert_eq!(used(&data, &|| places.swap(&copied)), Err(mounted.clone()));
    assert!(data.join("old").exists());
    // It has mounted the data just before they were exchanged, or just after.
    exchange(&copied, &data).unwrap();
    let back = used(&copied, &|| places.settle(&copied));
    assert_eq!(back, Err(format!("snapshot \"a\": not restored: {mounted}")));
    assert!(data.join("old").exists());
    exchange(&copied, &data).unwrap();
    assert_eq!(used(&data, &|| places.settle(&copied)), Ok(()));
    assert_eq!(used(&copied, &|| places.discard(&copied)), Err(mounted));
    assert!(copied.join("old").exists() && !data.join("old").exists());
    mount::mount_tmpfs(&copied.join("deep"), Some(1 << 20)).unwrap();
    let crossed = remove(&copied);
    mount::unmount(&copied.join("deep")).unwrap();
    crossed.unwrap_err();
    places.discard(&copied).unwrap();
    assert!(!copied.exists());
}
