//! The writer in real directories: layout, quiet when nothing changes, and stopped before every single step.

use super::*;
use crate::platform::testing::TempDir;
use proptest::prelude::*;

fn file(text: &str, mode: u32) -> ProjectedFile {
    ProjectedFile { data: text.as_bytes().to_vec(), mode, owner: None }
}

fn payload(files: &[(&str, &str)]) -> Payload {
    files.iter().map(|(path, text)| ((*path).to_owned(), file(text, 0o644))).collect()
}

fn write_until(
    root: &Path,
    payload: &Payload,
    before: &mut dyn FnMut() -> io::Result<()>,
) -> Result<bool, WriteError> {
    let now = Timestamp::from_nanos(1_795_190_400_000_000_007);
    AtomicWriter { root, group: None, now, before }.write(payload)
}

fn write(root: &Path, payload: &Payload) -> bool {
    write_until(root, payload, &mut || Ok(())).unwrap()
}

/// Lets so many steps happen and stops there; true when that was enough.
fn write_steps(root: &Path, payload: &Payload, steps: usize) -> bool {
    let mut left = steps;
    let mut before = || {
        left = left.checked_sub(1).ok_or(io::ErrorKind::Interrupted)?;
        Ok(())
    };
    write_until(root, payload, &mut before).is_ok()
}

/// The files a reader finds below a directory, following links.
fn read(dir: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.starts_with("..") {
            continue;
        }
        if path.is_dir() {
            let below = read(&path).into_iter();
            found.extend(below.map(|(path, text)| (format!("{name}/{path}"), text)));
        } else if let Ok(text) = fs::read_to_string(&path) {
            found.insert(name, text);
        }
    }
    found
}

fn texts(payload: &Payload) -> BTreeMap<String, String> {
    let text = |file: &ProjectedFile| String::from_utf8(file.data.clone()).unwrap();
    payload.iter().map(|(path, file)| (path.clone(), text(file))).collect()
}

/// Names in a directory with their inodes, which show any created or replaced entry.
fn entries(dir: &Path) -> BTreeMap<String, u64> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().ino())).collect()
}

fn names(dir: &Path) -> Vec<String> {
    entries(dir).into_keys().collect()
}

#[test]
fn the_layout_is_the_kubelets() {
    let scratch = TempDir::new();
    let root = &scratch.0;
    let mut content = payload(&[("a", "1"), ("dir/b", "2"), ("dir/deep/c", "3")]);
    content.insert("secret".to_owned(), file("x", 0o440));
    assert!(write(root, &content));
    let dir = "..2026_11_20_16_00_00.7";
    assert_eq!(names(root), ["..2026_11_20_16_00_00.7", "..data", "a", "dir", "secret"]);
    let link = |name: &str| fs::read_link(root.join(name)).unwrap().display().to_string();
    assert_eq!(
        (link("..data"), link("a"), link("dir")),
        (dir.into(), "..data/a".into(), "..data/dir".into())
    );
    let mode = |path: &str| fs::metadata(root.join(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode(dir), mode("dir/deep"), mode("a"), mode("secret")), (0o755, 0o755, 0o644, 0o440));
    assert_eq!(read(root), texts(&content));
}

#[test]
fn nothing_is_written_when_nothing_changes() {
    let scratch = TempDir::new();
    let content = payload(&[("a", "1"), ("dir/b", "2")]);
    write(&scratch.0, &content);
    let before = entries(&scratch.0);
    assert!(!write_until(&scratch.0, &content, &mut || panic!("a step")).unwrap());
    assert_eq!(entries(&scratch.0), before);
}

#[test]
fn content_names_and_modes_follow_the_payload() {
    let scratch = TempDir::new();
    let root = &scratch.0;
    write(root, &payload(&[("a", "1"), ("dir/b", "2")]));
    let mut executable = payload(&[("a", "1")]);
    executable.insert("a".to_owned(), file("1", 0o755));
    let steps = [payload(&[("a", "2"), ("dir/c", "2")]), payload(&[("a", "1")]), executable, Payload::new()];
    for content in steps {
        assert!(write(root, &content));
        assert_eq!(read(root), texts(&content));
        assert_eq!(
            names(root).len(),
            2 + content.len(),
            "a link per file, the link to all and the directory"
        );
        assert!(!write(root, &content));
    }
}

#[test]
fn what_others_put_there_stays() {
    let scratch = TempDir::new();
    let root = &scratch.0;
    fs::create_dir(root.join("mounted")).unwrap();
    fs::write(root.join("note"), "mine").unwrap();
    symlink("/etc/hostname", root.join("link")).unwrap();
    write(root, &payload(&[("a", "1"), ("mounted/b", "2")]));
    write(root, &payload(&[("c", "1")]));
    assert!(root.join("mounted").is_dir() && !root.join("a").exists());
    assert_eq!(fs::read_to_string(root.join("note")).unwrap(), "mine");
    assert!(fs::read_link(root.join("link")).is_ok());
}

#[test]
fn data_link_to_elsewhere_is_replaced_and_its_target_kept() {
    let scratch = TempDir::new();
    let root = scratch.0.join("volume");
    let outside = scratch.0.join("outside");
    fs::create_dir_all(&root).unwrap();
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("a"), "1").unwrap();
    symlink("../outside", root.join(DATA)).unwrap();
    let content = payload(&[("a", "1")]);
    assert!(write(&root, &content));
    assert!(root.join("a").canonicalize().unwrap().starts_with(&root));
    assert!(outside.join("a").exists());
}

#[test]
fn the_group_owns_what_is_written() {
    let scratch = TempDir::new();
    let root = &scratch.0;
    let now = Timestamp::from_secs(1);
    let content = payload(&[("dir/a", "1")]);
    let write = |group| AtomicWriter { root, group, now, before: &mut || Ok(()) }.write(&content).unwrap();
    write(None);
    assert!(write(Some(1234)), "another owner is another content");
    assert!(!write(Some(1234)));
    for (path, mode) in [("dir", 0o2755), ("dir/a", 0o644)] {
        let metadata = fs::metadata(root.join(path)).unwrap();
        assert_eq!((metadata.gid(), metadata.mode() & 0o7777), (1234, mode), "{path}");
    }
}

/// Stops the change from `old` to `new` before every step. Readers find one of the two, whole; the next
/// writer repairs the rest.
fn check_every_cut(old: &Payload, new: &Payload) {
    for steps in 0.. {
        let scratch = TempDir::new();
        let root = &scratch.0;
        write(root, old);
        let is_done = write_steps(root, new, steps);
        let data = read(&root.join(DATA));
        assert!(data == texts(old) || data == texts(new), "half a change after {steps} steps: {data:?}");
        for (path, text) in read(root) {
            assert_eq!(data.get(&path), Some(&text), "a name leads elsewhere after {steps} steps");
        }
        // Whatever is wanted next, a writer that is not stopped leaves exactly that.
        for wanted in [if steps % 2 == 0 { new } else { old }, new] {
            write(root, wanted);
            assert_eq!(read(root), texts(wanted), "after {steps} steps");
            let firsts: BTreeSet<&str> = wanted.keys().filter_map(|path| path.split('/').next()).collect();
            assert_eq!(names(root).len(), 2 + firsts.len(), "{:?} after {steps} steps", names(root));
        }
        if is_done {
            assert!(steps > 0 || old == new, "a change takes steps");
            return;
        }
    }
}

#[test]
fn a_stopped_writer_leaves_the_old_or_the_new() {
    let old = payload(&[("a", "1"), ("gone", "x"), ("dir/b", "2")]);
    let new = payload(&[("a", "2"), ("dir/b", "2"), ("dir/c/d", "3"), ("fresh", "y")]);
    check_every_cut(&old, &new);
    check_every_cut(&Payload::new(), &new);
    check_every_cut(&old, &Payload::new());
}

fn payloads() -> impl Strategy<Value = Payload> {
    let files = proptest::collection::btree_map("[ab]{1,2}", ("[xy]{0,2}", any::<bool>()), 0..4);
    files.prop_map(|files| {
        let path = |name: String, nested| if nested { format!("{name}.d/{name}") } else { name };
        files.into_iter().map(|(name, (text, nested))| (path(name, nested), file(&text, 0o644))).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_change_is_whole(old in payloads(), new in payloads()) {
        check_every_cut(&old, &new);
    }
}
