//! The file source against real directories. `scan` is the rescan; the watching tests are in
//! `tests/watching.rs`.

mod model;
mod watching;

use std::os::unix::fs::symlink;
use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::desired::source::testing::{NODE, broken, manifest, shown, shown_objects, stored};
use crate::desired::source::{REASON_EMPTY, REASON_INVALID_MANIFEST};
use crate::model::types::Timestamp;
use crate::platform::testing::TempDir;

fn source(path: &Path, stored: Vec<SourcePod>) -> FileSource {
    source_after(path, SourceSet { pods: stored, ..SourceSet::default() })
}

/// As if the directory that exists now had given the stored set.
fn source_after(path: &Path, good: SourceSet) -> FileSource {
    source_of(path, good, directory_identity(path).ok())
}

fn source_of(path: &Path, good: SourceSet, validator: Option<String>) -> FileSource {
    let check_frequency = Duration::from_secs(20);
    let config = FileConfig { path: path.to_owned(), check_frequency, node_name: NODE.to_owned() };
    FileSource::new(config, Remembered { good, validator, signed: None }, Clock::System)
}

fn write(path: impl AsRef<Path>, lines: &str) {
    fs::write(path, manifest(lines)).unwrap();
}

/// From now on the source has the pods of those files only that it parses again.
fn forget_pods(source: &mut FileSource) {
    source.entries.values_mut().for_each(FileEntry::forget_pods);
}

fn problems(update: &SourceUpdate) -> Vec<&str> {
    update.problems.iter().map(|problem| problem.message.as_str()).collect()
}

#[test]
fn table_of_types_is_loaded_once_for_a_scan_and_only_if_needed() {
    use crate::model::api::schema::LOADS;
    let root = TempDir::new();
    let mut source = source(root.path(), Vec::new());
    for name in ["a", "b", "c"] {
        root.put_lines(&format!("{name}.yaml"), &format!("{name}=1\n@{name}=1"));
    }
    for loads in [1, 0] {
        let before = LOADS.get();
        rt::run(source.scan_in_turns(None, false)).unwrap();
        assert_eq!(LOADS.get() - before, loads);
    }
    assert_eq!(shown(&source.take_update().unwrap()), "a=1 b=1 c=1");
}

#[test]
fn objects_keep_last_good_versions_like_pods() {
    let root = TempDir::new();
    let mut source = source(root.path(), Vec::new());
    root.put_lines("a.yaml", "@a=1\n@b=1\nweb=1");
    root.put_lines("c.yaml", "@c=1");
    let update = source.scan().unwrap();
    assert_eq!((shown(&update).as_str(), shown_objects(&update).as_str()), ("web=1", "a=1 b=1 c=1"));
    let first = update.objects[1].object.clone();
    root.put_lines("a.yaml", "@a=2\n!\nweb=1");
    let update = source.scan().unwrap();
    assert_eq!(shown_objects(&update), "a=2 b=1 c=1", "the broken document may be b");
    assert!(Rc::ptr_eq(&first, &update.objects[1].object), "the source and the set share one object");
    root.put_lines("c.yaml", "@c=1\n@b=2");
    assert_eq!(shown_objects(&source.scan().unwrap()), "a=2 c=1 b=2", "a healthy file knows better");
    let told = source.scan();
    assert!(told.is_none(), "{told:?}");
    std::fs::rename(root.join("a.yaml"), root.join(".a.yaml")).unwrap();
    assert_eq!(shown_objects(&source.scan().unwrap()), "c=1 b=2");
    let stored = SourceSet { objects: update.objects, ..SourceSet::default() };
    root.put_lines("c.yaml", "!");
    let mut restarted = source_after(root.path(), stored);
    assert_eq!(shown_objects(&restarted.scan().unwrap()), "c=1", "broken after a restart");
    root.put_lines("c.yaml", "web=1");
    assert_eq!(shown_objects(&restarted.scan().unwrap()), "");
}

#[test]
fn missing_or_recreated_directory_is_unknown_and_keeps_pods() {
    let root = TempDir::new();
    let path = root.join("manifests");
    let mut source = source(&path, vec![stored("web", "1", path.join("web.yaml"))]);
    let update = source.scan().unwrap();
    assert_eq!(update.answer, SourceAnswer::Unknown);
    assert_eq!(update.problems[0].reason, REASON_UNAVAILABLE);
    assert!(update.problems[0].message.contains("does not exist; create it"), "{:?}", update.problems);
    assert_eq!(source.scan(), None, "the same silence is told once");

    fs::create_dir(&path).unwrap();
    write(path.join("web.yaml"), "!half");
    let update = source.scan().unwrap();
    assert_eq!(shown(&update), "unknown", "nothing in it is good, and it may be another directory");
    assert_eq!(update.problems[0].reason, REASON_EMPTY);
    assert_eq!(problems(&update)[1], broken(""));

    fs::remove_dir_all(&path).unwrap();
    assert_eq!(shown(&source.scan().unwrap()), "unknown");
    fs::create_dir(&path).unwrap();
    let update = source.scan().unwrap();
    assert_eq!(shown(&update), "unknown", "another directory, and empty");
    assert_eq!(update.problems[0].reason, REASON_EMPTY);
    write(path.join("other.yaml"), "other=1");
    assert_eq!(shown(&source.scan().unwrap()), "other=1", "a manifest in it makes it the one that counts");
    fs::remove_file(path.join("other.yaml")).unwrap();
    assert_eq!(shown(&source.scan().unwrap()), "", "an empty directory is a valid answer");
}

#[test]
fn an_empty_directory_that_never_spoke_removes_nothing() {
    let root = TempDir::new();
    let path = root.join("manifests");
    fs::create_dir(&path).unwrap();
    let spoke = directory_identity(&path).ok();
    let good = || {
        let (web, db) = (stored("web", "1", path.join("web.yaml")), stored("db", "1", path.join("db.yaml")));
        SourceSet { pods: vec![web, db], ..SourceSet::default() }
    };
    fs::rename(&path, root.join("away")).unwrap();
    fs::create_dir(&path).unwrap();
    for (case, validator) in [("made again", spoke.clone()), ("of an older release", None)] {
        let mut source = source_of(&path, good(), validator);
        let update = source.scan().unwrap();
        assert_eq!(shown(&update), "unknown", "{case}");
        assert_eq!(update.problems[0].reason, REASON_EMPTY);
        assert!(update.problems[0].message.contains("agent source accept file"), "{:?}", update.problems);
        assert_eq!(update.validator, source.trusted_directory, "the store remembers the one that spoke");
        assert_eq!(source.scan(), None, "told once");
        let update = source.scan_and_accept().unwrap();
        assert_eq!((shown(&update).as_str(), update.problems.len()), ("", 0), "confirmed");
        assert_eq!(update.validator, directory_identity(&path).ok());
    }

    let mut source = source_of(&path, good(), spoke.clone());
    fs::create_dir(path.join("lost+found")).unwrap();
    write(path.join("README.md"), "!");
    let update = source.scan().unwrap();
    assert_eq!(shown(&update), "unknown", "nothing of it is a manifest");
    assert_eq!(
        update.problems.len(),
        2,
        "what is wrong with the file is said beside it: {:?}",
        update.problems
    );
    fs::remove_dir_all(&path).unwrap();
    fs::rename(root.join("away"), &path).unwrap();
    write(path.join("web.yaml"), "!");
    assert_eq!(
        shown(&source.scan().unwrap()),
        "web=1",
        "the right one is back, and its broken file keeps its pod"
    );

    let mut source = source_of(&root.join("other"), good(), spoke);
    fs::create_dir(root.join("other")).unwrap();
    assert_eq!(shown(&source.scan().unwrap()), "unknown", "another path in the configuration");
    write(root.join("other/none.yaml"), "@a=1");
    assert_eq!(shown(&source.scan().unwrap()), "", "an object alone is something to say");
}

#[test]
fn empty_directory_is_a_valid_answer_and_removes_stored_pods() {
    let root = TempDir::new();
    let mut source = source(root.path(), vec![stored("web", "1", root.join("web.yaml"))]);
    let update = source.scan().unwrap();
    assert_eq!(update.answer, SourceAnswer::Pods(Vec::new()));
    assert_eq!(update.problems, []);
}

#[test]
fn named_pipe_path_is_unknown_and_never_opened() {
    let root = TempDir::new();
    let pipe = root.join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let update = source(&pipe, Vec::new()).scan().unwrap();
    assert_eq!(shown(&update), "unknown");
    assert!(update.problems[0].message.contains("named pipe"), "{:?}", update.problems);
}

#[test]
fn broken_manifest_keeps_its_last_good_version_until_fixed() {
    let root = TempDir::new();
    root.put_lines("a.yaml", "a=1");
    root.put_lines("b.yaml", "b=1");
    let mut source = source(root.path(), Vec::new());
    assert_eq!(shown(&source.scan().unwrap()), "a=1 b=1");

    root.put_lines("a.yaml", "!oops");
    let update = source.scan().unwrap();
    assert_eq!(shown(&update), "a=1 b=1");
    assert_eq!(update.problems[0].reason, REASON_INVALID_MANIFEST);
    assert_eq!(update.problems[0].origin, root.join("a.yaml").to_str().unwrap());
    assert_eq!(source.scan(), None);

    root.put_lines("a.yaml", "");
    let update = source.scan().unwrap();
    assert_eq!(shown(&update), "a=1 b=1", "an empty file says nothing");
    assert!(update.problems[0].message.contains("the file is empty"), "{:?}", update.problems);

    root.put_lines("a.yaml", "a=2");
    let update = source.scan().unwrap();
    assert_eq!((shown(&update).as_str(), problems(&update).len()), ("a=2 b=1", 0));
}

#[test]
fn a_problem_keeps_its_since_while_its_message_stays() {
    let root = TempDir::new();
    root.put_lines("a.yaml", "!one\n!two");
    let mut source = source(root.path(), Vec::new());
    let first = source.scan().unwrap().problems[0].since;
    root.put_lines("a.yaml", "!one\n!two\n!three");
    let update = source.scan().unwrap();
    assert_eq!(update.problems[0].since, first);
    assert!(update.problems[2].since > first);
    assert!(first > Timestamp::default());
}

#[test]
fn restart_keeps_pods_of_broken_files_and_drops_deleted_ones() {
    let root = TempDir::new();
    root.put_lines("broken.yaml", "!");
    root.put_lines("good.yaml", "good=2");
    let before = vec![
        stored("broken", "1", root.join("broken.yaml")),
        stored("deleted", "1", root.join("deleted.yaml")),
        stored("good", "1", root.join("good.yaml")),
        stored("elsewhere", "1", "/another/path/x.yaml"),
    ];
    assert_eq!(shown(&source(root.path(), before).scan().unwrap()), "broken=1 good=2");
}

#[test]
fn broken_document_keeps_its_pod_while_the_others_update() {
    let root = TempDir::new();
    root.put_lines("all.yaml", "a=1\nb=1");
    let mut source = source(root.path(), Vec::new());
    source.scan().unwrap();
    root.put_lines("all.yaml", "a=2\n!b");
    assert_eq!(shown(&source.scan().unwrap()), "a=2 b=1");
    root.put_lines("all.yaml", "a=3");
    assert_eq!(shown(&source.scan().unwrap()), "a=3", "a healthy file that leaves a pod out removes it");
}

#[test]
fn last_good_version_yields_to_the_pod_in_a_healthy_file() {
    let root = TempDir::new();
    root.put_lines("old.yaml", "web=1");
    let mut source = source(root.path(), Vec::new());
    source.scan().unwrap();
    root.put_lines("old.yaml", "!");
    root.put_lines("new.yaml", "web=2");
    assert_eq!(shown(&source.scan().unwrap()), "web=2");
}

#[test]
fn what_cannot_be_read_keeps_its_last_good_pods_and_is_reported() {
    type Replace = fn(&Path);
    let replace: [(&str, Replace); 5] = [
        ("broken symlink", |path| symlink("nowhere", path).unwrap()),
        ("symlink loop", |path| symlink(path, path).unwrap()),
        ("it is a directory", |path| fs::create_dir(path).unwrap()),
        ("it is a named pipe", |path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap()),
        ("larger than the manifest limit of 10485760 bytes", |path| {
            fs::File::create(path).unwrap().set_len(100 * 1024 * 1024).unwrap();
        }),
    ];
    for (message, replace) in replace {
        let root = TempDir::new();
        root.put_lines("web.yaml", "web=1");
        let mut source = source(root.path(), Vec::new());
        source.scan().unwrap();
        root.remove("web.yaml");
        replace(&root.join("web.yaml"));
        let started = std::time::Instant::now();
        let update = source.scan().unwrap();
        assert!(started.elapsed() < Duration::from_secs(20), "{message}: looking must not block");
        assert_eq!(shown(&update), "web=1", "{message}");
        assert!(problems(&update)[0].contains(message), "{message}: {:?}", update.problems);
        assert_eq!(source.scan(), None, "{message}: told once");
    }
}

#[test]
fn hidden_editor_files_and_subdirectories_are_skipped() {
    let root = TempDir::new();
    for name in ["c.yaml", "a.bak", "b", ".hidden.yaml", "x.yaml~", "#x.yaml#", "4913", "x.swp", "x.swx"] {
        root.put_lines(name, &format!("{}=1", name.trim_matches(['.', '#', '~'])));
    }
    fs::create_dir(root.join("sub")).unwrap();
    write(root.join("sub/d.yaml"), "d=1");
    symlink("sub", root.join("link-to-sub")).unwrap();
    let update = source(root.path(), Vec::new()).scan().unwrap();
    assert_eq!(shown(&update), "a.bak=1 b=1 c.yaml=1");
    assert_eq!(update.problems, []);
}

#[test]
fn a_rescan_of_unchanged_files_parses_nothing_and_tells_nothing() {
    let root = TempDir::new();
    root.put_lines("a.yaml", "a=1");
    root.put_lines("broken.yaml", "!");
    let mut source = source(root.path(), Vec::new());
    source.scan().unwrap();
    forget_pods(&mut source);
    fs::File::options()
        .append(true)
        .open(root.join("a.yaml"))
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH)
        .unwrap();
    assert_eq!(source.scan(), None, "touched, but the same content");
    assert!(source.pods().is_empty(), "not parsed again");
}

#[test]
fn a_single_file_that_is_broken_and_never_was_good_is_no_answer() {
    let root = TempDir::new();
    root.put_lines("only.yaml", "!");
    let update = source(&root.join("only.yaml"), Vec::new()).scan().unwrap();
    assert_eq!((shown(&update), problems(&update)), ("unknown".to_owned(), vec![broken("").as_str()]));
    let before = vec![stored("a", "1", root.join("only.yaml"))];
    assert_eq!(shown(&source(&root.join("only.yaml"), before).scan().unwrap()), "a=1");
}

#[test]
fn a_single_file_that_vanishes_is_silence_too() {
    let root = TempDir::new();
    let path = root.join("only.yaml");
    root.put_lines("only.yaml", "a=1");
    root.put_lines("other.yaml", "other=1");
    let mut source = source(&path, Vec::new());
    let update = source.scan().unwrap();
    assert_eq!(shown(&update), "a=1");
    let SourceAnswer::Pods(pods) = update.answer else { panic!("unknown") };
    assert_eq!(pods[0].origin, path.to_str().unwrap());
    root.remove("only.yaml");
    assert_eq!(shown(&source.scan().unwrap()), "unknown");
    root.put_lines("only.yaml", "!");
    assert_eq!(shown(&source.scan().unwrap()), "a=1");
}

#[test]
fn only_changed_manifests_are_parsed_again() {
    let root = TempDir::new();
    for number in 0..5000 {
        write(root.join(format!("{number:04}.yaml")), &format!("pod-{number}=1"));
    }
    let mut source = source(root.path(), Vec::new());
    let SourceAnswer::Pods(pods) = source.scan().unwrap().answer else { panic!("unknown") };
    assert_eq!(pods.len(), 5000);
    forget_pods(&mut source);
    root.put_lines("2500.yaml", "pod-2500=2");
    assert_eq!(shown(&source.scan().unwrap()), "pod-2500=2");
}

#[test]
fn names_of_stored_origins_are_found_again_only_below_this_path() {
    let within = |origin| name_within(Path::new("/m"), origin).map(|name| name.to_str().unwrap().to_owned());
    assert_eq!(within("/m/web.yaml").as_deref(), Some("web.yaml"));
    assert_eq!(within("/m").as_deref(), Some(""));
    assert_eq!(within("/m/sub/web.yaml"), None);
    assert_eq!(within("http://server/web.yaml"), None);
}
