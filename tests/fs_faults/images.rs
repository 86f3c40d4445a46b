//! Images on a disk that fails: what is listed is whole, whatever happens, and the next try succeeds.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use edge_agent::runtime::embedded::images::{ImageStore, digest_of};
use serde_json::json;

use super::cut::{Names, Remains};
use super::disk::{Disk, Fault, KINDS};
use super::log::Record;
use super::tree::{Tree, differences, tree};
use super::{Die, program, rounds, seed};
use crate::support::image;
use crate::support::scratch::Scratch;

/// An image of two layers with everything that a layer has.
const LAYERED: &str = "docker.io/library/layered:1";
const PAUSE: &str = "localhost/agent/pause:1";

/// Archives, and what each layer holds when it is whole.
pub struct Images {
    pub layered: PathBuf,
    pub pause: PathBuf,
    layers: BTreeMap<String, Tree>,
}

impl Images {
    /// Made below the scratch directory.
    pub fn new(scratch: &Scratch) -> Self {
        let layered = layered(&scratch.dir("layered"));
        let pause = image::archives().into_iter().find(|path| path.ends_with("pause.tar"));
        let pause = pause.expect("it is among them");
        let root = scratch.dir("reference");
        for archive in [&layered, &pause] {
            let answer = run(&mut import(&root, archive));
            assert!(answer.status.success(), "{answer:?}");
        }
        let mut layers = BTreeMap::new();
        for entry in fs::read_dir(store_of(&root).join("layers")).expect("list layers").flatten() {
            if entry.path().is_dir() {
                let name = entry.file_name().to_string_lossy().into_owned();
                layers.insert(name, tree(&entry.path(), |_| false));
            }
        }
        assert_eq!(layers.len(), 4, "an empty one, two and one");
        Self { layered, pause, layers }
    }

    /// The names of the images that are listed; each must be whole.
    pub fn check(&self, store: &Path) -> Result<Vec<String>, String> {
        let say = |error: &dyn std::error::Error| format!("{error}: {:?}", error.source());
        let store = ImageStore::open(store).map_err(|error| say(&error))?;
        let mut names = Vec::new();
        for image in store.list().map_err(|error| say(&error))? {
            for layer in &image.layers {
                let name = layer.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let whole = self.layers.get(&name).ok_or_else(|| format!("nobody knows layer {name}"))?;
                let wrong = differences(whole, &tree(layer, |_| false));
                if !wrong.is_empty() {
                    return Err(format!("{:?} is listed and broken: {wrong:#?}", image.repo_tags));
                }
            }
            names.extend(image.repo_tags);
        }
        Ok(names)
    }
}

/// Where a root directory has its images.
pub fn store_of(root: &Path) -> PathBuf {
    root.join("runtime/images")
}

/// A docker archive of two layers.
fn layered(at: &Path) -> PathBuf {
    let (lower, upper, image) = (at.join("lower"), at.join("upper"), at.join("image"));
    for directory in [&lower.join("etc/deep"), &lower.join("gone"), &upper.join("etc"), &image] {
        fs::create_dir_all(directory).expect("make a directory");
    }
    let write = |path: PathBuf, length: usize, byte: u8| {
        // No page is like another.
        let content: Vec<u8> = (byte..=u8::MAX).cycle().flat_map(|byte| [byte; 1000]).take(length).collect();
        fs::write(path, content).expect("write a file");
    };
    write(lower.join("etc/passwd"), 60, b'p');
    write(lower.join("etc/deep/large"), 70_000, b'l');
    write(lower.join("gone/file"), 5000, b'g');
    write(upper.join("etc/passwd"), 90, b'q');
    write(upper.join("etc/.wh.deep"), 0, 0);
    write(upper.join("second"), 9000, b's');
    fs::hard_link(lower.join("etc/deep/large"), lower.join("same")).expect("make a second name");
    symlink("etc/passwd", lower.join("users")).expect("make a link");
    let mut digests = Vec::new();
    for (layer, name) in [(&lower, "lower.tar"), (&upper, "upper.tar")] {
        pack(layer, &image.join(name));
        digests.push(digest_of(&fs::read(image.join(name)).expect("read a layer")));
    }
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": {"Cmd": ["sh"]},
        "rootfs": {"type": "layers", "diff_ids": digests},
    });
    let manifest =
        json!([{"Config": "config.json", "RepoTags": [LAYERED], "Layers": ["lower.tar", "upper.tar"]}]);
    fs::write(image.join("config.json"), config.to_string()).expect("write the configuration");
    fs::write(image.join("manifest.json"), manifest.to_string()).expect("write the manifest");
    let archive = at.join("layered.tar");
    pack(&image, &archive);
    archive
}

fn pack(directory: &Path, archive: &Path) {
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(directory).args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "-cf"]);
    let status = tar.arg(archive).arg(".").status().expect("start tar");
    assert!(status.success(), "{tar:?}");
}

fn command(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.arg("image").args(arguments).arg("--root-dir").arg(root).stdin(Stdio::null());
    command
}

fn import(root: &Path, archive: &Path) -> Command {
    command(root, &["import", &archive.display().to_string()])
}

fn run(command: &mut Command) -> Output {
    command.output().expect("start the agent")
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}: {}{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// A disk for images.
struct Store {
    // Before the scratch directory, which it lies in.
    disk: Disk,
    scratch: Scratch,
    images: Images,
}

impl Store {
    fn new() -> Self {
        let scratch = Scratch::new();
        let images = Images::new(&scratch);
        let disk = Disk::mount(&scratch, &scratch.path().join("disk"));
        Self { disk, scratch, images }
    }

    /// `agent image` on the disk that fails.
    fn agent(&self, arguments: &[&str]) -> Output {
        run(command(self.disk.root(), arguments).envs(self.disk.environment()))
    }

    fn import(&self, archive: &Path) -> Output {
        self.agent(&["import", &archive.display().to_string()])
    }

    fn check(&self) -> Result<Vec<String>, String> {
        self.images.check(&store_of(self.disk.root()))
    }

    fn clear(&self) {
        for entry in fs::read_dir(self.disk.root()).expect("list the disk").flatten() {
            fs::remove_dir_all(entry.path()).expect("empty the disk");
        }
    }
}

/// Each call of an import fails, once or from then on, in each way that disks fail: all of them when there are rounds enough.
#[test]
fn failed_import_leaves_only_complete_images() {
    let (store, rounds, seed) = (Store::new(), rounds(), seed());
    let mut die = Die::new(seed, 1);
    store.disk.stop_recording();
    let mut fell = 0;
    for round in 0..rounds {
        let (kind, classes, error) = KINDS[usize::try_from(round).expect("few") % KINDS.len()];
        store.clear();
        store.disk.mend();
        let base = store.import(&store.images.pause);
        assert!(base.status.success(), "{}", said(&base));

        // How many there are, and then one of them.
        store.disk.arm(Fault { classes, from: u64::MAX, until: u64::MAX, error });
        if round % 2 == 0 {
            store.import(&store.images.layered);
            let most = store.disk.count();
            store.agent(&["rm", LAYERED]);
            assert!(most > 1, "{kind}: {most} calls");
            let from = 1 + die.below(most);
            let until = if die.below(2) == 0 { from + 1 } else { u64::MAX };
            store.disk.arm(Fault { classes, from, until, error });
        } else {
            // Also on the way of removing.
            let first = store.import(&store.images.layered);
            assert!(first.status.success(), "{}", said(&first));
            let from = 1 + die.below(24);
            store.disk.arm(Fault { classes, from, until: from + 1 + die.below(3), error });
            store.agent(&["rm", LAYERED]);
        }
        let answer = store.import(&store.images.layered);
        let context = || {
            format!("seed {seed}, round {round}, {kind}, {} failed: {}", store.disk.failed(), said(&answer))
        };
        fell += u64::from(store.disk.failed() > 0);
        store.disk.mend();
        let listed = store.check().unwrap_or_else(|wrong| panic!("{wrong}; {}", context()));
        assert!(listed.contains(&PAUSE.to_owned()), "the other one is gone: {}", context());
        if answer.status.success() {
            assert!(listed.contains(&LAYERED.to_owned()), "{listed:?}; {}", context());
        } else {
            let text = String::from_utf8_lossy(&answer.stderr).into_owned();
            assert!(text.starts_with("error: ") && text.contains("(os error"), "{}", context());
        }
        let again = store.import(&store.images.layered);
        assert!(again.status.success(), "it did not heal: {}; first: {}", said(&again), context());
        let healed = store.check().unwrap_or_else(|wrong| panic!("{wrong}; {}", context()));
        assert!(healed.contains(&LAYERED.to_owned()), "{healed:?}; {}", context());
        let left: Vec<_> = fs::read_dir(store_of(store.disk.root()).join("tmp")).unwrap().flatten().collect();
        assert!(left.is_empty(), "{left:?}; {}", context());
    }
    assert!(fell * 2 > rounds, "only {fell} of {rounds} rounds had a fault");
    println!("{rounds} rounds, {fell} with faults, seed {seed}");
}

/// The power goes at random moments of a store's life; what is remembered is whole, and what was said to be there is.
#[test]
fn whatever_a_power_cut_leaves_every_listed_image_is_whole() {
    let (store, rounds, seed) = (Store::new(), rounds() * 5, seed());
    let root = fs::metadata(store.disk.root()).map(|at| at.ino());
    let root = root.expect("look at the disk");
    // A sync that fails loses what it was to write: whoever goes on must write it again.
    let failing_sync =
        |from| Fault { classes: super::disk::SYNC, from, until: from + 1, error: super::disk::EIO };
    let (layered, pause) = (&store.images.layered, &store.images.pause);
    let done = |output: &Output, mark: &str| {
        if output.status.success() {
            store.disk.mark(mark);
        }
        output.status.success()
    };
    for life in 0..4_u64 {
        assert!(done(&store.import(pause), "pause"));
        for from in 1..=life * 3 {
            store.disk.arm(failing_sync(from));
            done(&store.import(layered), "layered");
            store.disk.mend();
        }
        assert!(done(&store.import(layered), "layered"));
        store.disk.mark("removing");
        assert!(store.agent(&["rm", LAYERED]).status.success());
        assert!(store.agent(&["rm", "--force", PAUSE]).status.success());
    }
    let records = store.disk.records();
    let mut whole = 0;
    let mut die = Die::new(seed, 2);
    let place = store.scratch.path().join("after");
    for round in 0..rounds {
        let names = if round % 2 == 0 { Names::InOrder } else { Names::ByDirectory };
        let moment = die.between(1, records.len());
        fs::create_dir(&place).expect("make a directory");
        Remains::of_cut(&records[..moment], root, names, &mut die).write_to(&place);
        let context =
            format!("seed {seed}, round {round}, {names:?}, cut after {moment} of {}", records.len());
        let at = store_of(&place);
        if at.exists() {
            let listed = store.images.check(&at).unwrap_or_else(|wrong| panic!("{wrong}; {context}"));
            whole += listed.len();
            if names == Names::InOrder {
                let said = said_at(&records[..moment]);
                let missing: Vec<_> = said.iter().filter(|name| !listed.contains(name)).collect();
                assert!(missing.is_empty(), "{missing:?} had been imported, {listed:?} are there; {context}");
            }
        }
        // What is left is a store like any other.
        if round % 20 == 0 {
            let answer = run(&mut import(&place, layered));
            assert!(answer.status.success(), "{}; {context}", said(&answer));
            let listed = store.images.check(&at).unwrap_or_else(|wrong| panic!("{wrong}; {context}"));
            assert!(listed.contains(&LAYERED.to_owned()), "{listed:?}; {context}");
        }
        fs::remove_dir_all(&place).expect("remove a directory");
    }
    assert!(whole as u64 > rounds / 4, "only {whole} images were there to be looked at");
    println!("{rounds} cuts in {} changes, {whole} images found whole, seed {seed}", records.len());
}

/// The names that had been announced and not been asked to go.
fn said_at(records: &[Record]) -> Vec<String> {
    let mut said = Vec::new();
    for record in records {
        match record {
            Record::Mark(text) if text == "removing" => said.clear(),
            Record::Mark(text) => said.push(if text == "pause" { PAUSE } else { LAYERED }.to_owned()),
            _ => {}
        }
    }
    said
}
