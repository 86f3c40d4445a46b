//! Random histories of a directory against a model of "last good".

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::desired::source::testing::written_name;

#[derive(Clone, Debug)]
enum Step {
    Good(u8, u8),
    TwoPods(u8, u8),
    HalfBroken(u8, u8),
    Broken(u8),
    Empty(u8),
    Delete(u8),
    Dangling(u8),
    RemoveDirectory,
    Restart,
    Scan,
}

fn step() -> impl Strategy<Value = Step> {
    let file = 0..4_u8;
    let version = 0..3_u8;
    prop_oneof![
        3 => (file.clone(), version.clone()).prop_map(|(file, version)| Step::Good(file, version)),
        2 => (file.clone(), version.clone()).prop_map(|(file, version)| Step::TwoPods(file, version)),
        2 => (file.clone(), version).prop_map(|(file, version)| Step::HalfBroken(file, version)),
        2 => file.clone().prop_map(Step::Broken),
        1 => file.clone().prop_map(Step::Empty),
        2 => file.clone().prop_map(Step::Delete),
        1 => file.prop_map(Step::Dangling),
        1 => Just(Step::RemoveDirectory),
        1 => Just(Step::Restart),
        4 => Just(Step::Scan),
    ]
}

/// The files on disk: the pods in the content, and whether all of it is valid.
type Disk = BTreeMap<u8, (BTreeMap<String, u8>, bool)>;
/// The pods that should run, per file.
type Good = BTreeMap<u8, BTreeMap<String, u8>>;

fn look(disk: Option<&Disk>, good: &mut Good) {
    let Some(disk) = disk else { return };
    good.retain(|file, _| disk.contains_key(file));
    for (file, (pods, complete)) in disk {
        let entry = good.entry(*file).or_default();
        if *complete {
            entry.clear();
        }
        entry.extend(pods.clone());
    }
}

fn set_of(good: &Good) -> BTreeMap<String, u8> {
    good.values().flatten().map(|(name, version)| (name.clone(), *version)).collect()
}

fn apply(step: &Step, root: &TempDir, disk: &mut Option<Disk>) {
    let directory = root.join("m");
    let mut write = |file: u8, text: &str, pods: Vec<(String, u8)>, complete: bool| {
        fs::create_dir_all(&directory).unwrap();
        fs::write(root.join("new"), manifest(text)).unwrap();
        fs::rename(root.join("new"), directory.join(file.to_string())).unwrap();
        disk.get_or_insert_default().insert(file, (pods.into_iter().collect(), complete));
    };
    match *step {
        Step::Good(file, v) => write(file, &format!("p{file}={v}"), vec![(format!("p{file}"), v)], true),
        Step::TwoPods(file, v) => {
            let pods = vec![(format!("p{file}"), v), (format!("q{file}"), v)];
            write(file, &format!("p{file}={v}\nq{file}={v}"), pods, true);
        }
        Step::HalfBroken(file, v) => {
            write(file, &format!("p{file}={v}\n!q{file}"), vec![(format!("p{file}"), v)], false);
        }
        Step::Broken(file) => write(file, "!", Vec::new(), false),
        Step::Empty(file) => write(file, " \n", Vec::new(), false),
        Step::Delete(file) => {
            let _ = fs::remove_file(directory.join(file.to_string()));
            if let Some(disk) = disk {
                disk.remove(&file);
            }
        }
        Step::Dangling(file) => {
            if let Some(disk) = disk {
                let path = directory.join(file.to_string());
                let _ = fs::remove_file(&path);
                symlink("nowhere", path).unwrap();
                disk.insert(file, (BTreeMap::new(), false));
            }
        }
        Step::RemoveDirectory => {
            // Not deleted: the next one must not get its inode number within one tick of the clock.
            if disk.take().is_some() || directory.exists() {
                let away =
                    (0..1000).map(|number| root.join(format!("away-{number}"))).find(|away| !away.exists());
                fs::rename(&directory, away.unwrap()).unwrap();
            }
        }
        Step::Restart | Step::Scan => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn after_every_scan_the_set_is_what_each_file_last_said_validly(
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let root = TempDir::new();
        let path = root.join("m");
        let mut disk: Option<Disk> = None;
        let mut good = Good::new();
        let mut durable: Vec<SourcePod> = Vec::new();
        let mut spoke: Option<String> = None;
        let mut source = source(&path, Vec::new());
        for step in steps.iter().chain([&Step::Scan]) {
            apply(step, &root, &mut disk);
            if matches!(step, Step::Restart) {
                let good = SourceSet { pods: durable.clone(), ..SourceSet::default() };
                source = source_of(&path, good, spoke.clone());
            }
            if !matches!(step, Step::Scan | Step::Restart) {
                continue;
            }
            // A directory in place of the previous one must not be empty, unless there is nothing to lose.
            let directory = directory_identity(&path).ok();
            let says_something =
                |disk: &&Disk| disk.values().any(|(pods, _)| !pods.is_empty()) || durable.is_empty() || directory == spoke;
            let believed = disk.as_ref().filter(says_something);
            look(believed, &mut good);
            if believed.is_some() {
                spoke = directory;
            }
            let update = source.scan();
            match update.map(|update| update.answer) {
                Some(SourceAnswer::Pods(pods)) => {
                    prop_assert!(believed.is_some());
                    durable = pods;
                }
                Some(SourceAnswer::Unknown) => prop_assert!(believed.is_none()),
                None => {}
            }
            let told: BTreeMap<String, u8> = durable
                .iter()
                .map(|pod| (written_name(pod).to_owned(), pod.pod.spec.hostname.parse().unwrap()))
                .collect();
            prop_assert_eq!(told, set_of(&good));
        }
    }
}
