//! The records of pulls, as the kubelet's own files: `<root-dir>/image_manager/pulled` has a file for each
//! image that the agent pulled, `pulling` one for each pull in progress or interrupted. A node that switches
//! between the kubelet and the agent keeps them.
//!
//! Owns the files. What they allow is decided in `pull_records`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::sync::{OnceCell, Semaphore};

use crate::codec::hex;
use crate::model::api::decode::decode;
use crate::model::ordered::Ordered as _;
use crate::model::types::Timestamp;
use crate::platform::rt;
use crate::platform::sys::durable::write_durably;
use crate::pod::image::pull_records::{API_VERSION, Known, Opened, PulledRecord};
use crate::runtime::Runtime;

/// Below the root directory.
const DIRECTORY: &str = "image_manager";
/// Larger files are invalid: this is room for thousands of Secrets.
const MAX_RECORD_BYTES: u64 = 1024 * 1024;

/// The files of one root directory.
#[derive(Clone, Debug)]
struct Files {
    pulled: PathBuf,
    pulling: PathBuf,
}

impl Files {
    fn new(root: &Path) -> Self {
        let directory = root.join(DIRECTORY);
        Self { pulled: directory.join("pulled"), pulling: directory.join("pulling") }
    }

    /// What is known of the image; `image` is the name that the pod uses.
    fn find(&self, image: &str, image_ref: &str) -> Known {
        match read(&self.pulled.join(file_name(image_ref))) {
            Ok(Some(bytes)) => match parse(&bytes).filter(|record| record.image_ref == image_ref) {
                Some(record) => Known::Recorded(record),
                None => Known::Pulled,
            },
            Ok(None) => match fs::symlink_metadata(self.pulling.join(file_name(image))) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Known::Preloaded,
                _ => Known::Pulled,
            },
            Err(_) => Known::Pulled,
        }
    }

    fn write_intent(&self, image: &str) -> io::Result<()> {
        make(&self.pulling)?;
        let intent = json!({"kind": "ImagePullIntent", "apiVersion": API_VERSION, "image": image});
        write_durably(&self.pulling.join(file_name(image)), intent.to_string().as_bytes(), 0o600)
    }

    fn remove_intent(&self, image: &str) -> io::Result<()> {
        match fs::remove_file(self.pulling.join(file_name(image))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Names of images whose pulls did not end.
    fn intents(&self) -> Vec<String> {
        let files = fs::read_dir(&self.pulling).into_iter().flatten().flatten();
        let image = |path: &Path| {
            let value: serde_json::Value = serde_json::from_slice(&read(path).ok()??).ok()?;
            Some(value.get("image")?.as_str()?.to_owned())
        };
        files.filter_map(|file| image(&file.path())).collect()
    }

    /// Adds to the image's record, or creates one.
    fn note(&self, image: &str, image_ref: &str, opened: Option<Opened>, now: Timestamp) -> io::Result<()> {
        let path = self.pulled.join(file_name(image_ref));
        let known =
            read(&path)?.and_then(|bytes| parse(&bytes)).filter(|record| record.image_ref == image_ref);
        let is_new = known.is_none();
        let mut record = known.unwrap_or_else(|| PulledRecord::new(image_ref, now));
        let is_changed = opened.is_some_and(|opened| record.note(image, opened, now));
        if !is_new && !is_changed {
            return Ok(());
        }
        make(&self.pulled)?;
        write_durably(&path, &serde_json::to_vec(&record)?, 0o600)
    }
}

fn parse(bytes: &[u8]) -> Option<PulledRecord> {
    Some(decode(serde_json::from_slice(bytes).ok()?).ok()?.object)
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(found) if found.is_file() && found.len() <= MAX_RECORD_BYTES => fs::read(path).map(Some),
        Ok(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn make(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// As the kubelet names them.
fn file_name(text: &str) -> String {
    format!("sha256-{}", hash(text.as_bytes()))
}

/// SHA-256 in hex.
pub(super) fn hash(bytes: &[u8]) -> String {
    hex::encode(&Sha256::digest(bytes))
}

/// The records of pulls. Without a root directory there are none, and every image counts as preloaded.
pub(super) struct PullRecords {
    files: Option<Files>,
    /// Pulls of this process that have not ended, by image.
    under_way: RefCell<BTreeMap<String, usize>>,
    /// One writer at a time.
    writer: Semaphore,
    /// Pulls that an earlier process began have been recorded.
    adopted: OnceCell<()>,
}

/// A pull in progress; dropped when the pull is cancelled.
pub(super) struct Intent<'a> {
    records: &'a PullRecords,
    image: &'a str,
}

impl Drop for Intent<'_> {
    fn drop(&mut self) {
        let mut under_way = self.records.under_way.borrow_mut();
        if let Some(count) = under_way.get_mut(self.image) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(self.image);
            }
        }
    }
}

impl PullRecords {
    pub(super) fn new(root: Option<&Path>) -> Self {
        Self {
            files: root.map(Files::new),
            under_way: RefCell::default(),
            writer: Semaphore::new(1),
            adopted: OnceCell::new(),
        }
    }

    /// Records the images whose pull was interrupted with an earlier process: their credentials are unknown.
    pub(super) async fn adopt<R: Runtime>(&self, runtime: &R, now: Timestamp) {
        let Some(files) = &self.files else { return };
        let adopt = async {
            let from = files.clone();
            for image in rt::blocking("pull-intents", move || from.intents()).await {
                let Ok(Some(status)) = runtime.image_status(&image).await else { continue };
                let to = files.clone();
                let done = rt::blocking("pull-record", move || {
                    to.note(&image, &status.id, None, now).and_then(|()| to.remove_intent(&image))
                });
                if let Err(error) = done.await {
                    log::warn!(err:% = error; "Failed to record interrupted image pull");
                }
            }
        };
        self.adopted.get_or_init(|| adopt).await;
    }

    pub(super) async fn find(&self, image: &str, image_ref: &str) -> Known {
        let Some(files) = self.files.clone() else { return Known::Preloaded };
        let is_under_way = self.under_way.borrow().contains_key(image);
        let (image, image_ref) = (image.to_owned(), image_ref.to_owned());
        match rt::blocking("pull-record", move || files.find(&image, &image_ref)).await {
            Known::Preloaded if is_under_way => Known::Pulled,
            known => known,
        }
    }

    /// Records durably that a pull begins, so that its image never counts as preloaded.
    pub(super) async fn begin<'a>(&'a self, image: &'a str) -> io::Result<Intent<'a>> {
        *self.under_way.borrow_mut().entry(image.to_owned()).or_default() += 1;
        let intent = Intent { records: self, image };
        if let Some(files) = self.files.clone() {
            // Never closed, so the permit always comes.
            let _writer = self.writer.acquire().await;
            let image = image.to_owned();
            rt::blocking("pull-intent", move || files.write_intent(&image)).await?;
        }
        Ok(intent)
    }

    /// Records the credentials that pulled the image; without `intent`, those that were only compared. If the
    /// record cannot be written, the intent stays, and the registry must be asked again.
    pub(super) async fn note(
        &self,
        intent: Option<Intent<'_>>,
        image: &str,
        image_ref: &str,
        opened: Opened,
        now: Timestamp,
    ) {
        let Some(files) = self.files.clone() else { return };
        let _writer = self.writer.acquire().await;
        let is_last = intent.is_some() && self.under_way.borrow().get(image) == Some(&1);
        let (name, image_ref) = (image.to_owned(), image_ref.to_owned());
        let done = rt::blocking("pull-record", move || {
            files.note(&name, &image_ref, Some(opened), now)?;
            if is_last { files.remove_intent(&name) } else { Ok(()) }
        });
        if let Err(error) = done.await {
            log::warn!(image, err:% = error; "Failed to record image pull, the image will be pulled again");
        }
    }

    pub(super) async fn fail(&self, intent: Intent<'_>) {
        let Some(files) = self.files.clone() else { return };
        let _writer = self.writer.acquire().await;
        if self.under_way.borrow().get(intent.image) != Some(&1) {
            return;
        }
        let image = intent.image.to_owned();
        if let Err(error) = rt::blocking("pull-intent", move || files.remove_intent(&image)).await {
            log::warn!(image = intent.image, err:% = error; "Failed to remove record of failed image pull");
        }
    }
}

/// Records of images, listed before the present images are.
#[derive(Debug, Default)]
pub(crate) struct Prunable(Vec<(PathBuf, Option<SystemTime>)>);

impl Prunable {
    /// All records below the root directory. List the images afterwards. Blocks.
    #[must_use]
    pub(crate) fn list(root: &Path) -> Self {
        let files = fs::read_dir(Files::new(root).pulled).into_iter().flatten().flatten();
        let is_record =
            |path: &Path| path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b"."));
        let paths = files.map(|file| file.path()).filter(|path| is_record(path));
        Self(
            paths
                .map(|path| {
                    let at = modified(&path);
                    (path, at)
                })
                .collect(),
        )
    }

    /// Removes the records of images that do not exist any more, unless they were written since. Blocks.
    pub(crate) fn prune(self, image_refs: &BTreeSet<String>) {
        let kept: BTreeSet<String> = image_refs.iter().map(|image_ref| file_name(image_ref)).into_set();
        for (path, at) in self.0 {
            let is_kept =
                path.file_name().and_then(|name| name.to_str()).is_none_or(|name| kept.contains(name));
            if !is_kept && modified(&path) == at {
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::symlink_metadata(path).and_then(|found| found.modified()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::image::pull_records::{Access, Verification, access};

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn files(name: &str) -> (PathBuf, Files) {
        let root = std::env::temp_dir().join(format!("edge-agent-records-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        let files = Files::new(&root);
        (root, files)
    }

    #[test]
    fn a_damaged_record_of_a_pull_frees_nothing() {
        let (root, files) = files("form");
        assert_eq!(files.find("r.example/a:v1", "sha256:1"), Known::Preloaded);
        files.write_intent("r.example/a:v1").unwrap();
        assert_eq!(files.find("r.example/a:v1", "sha256:1"), Known::Pulled);
        assert_eq!(files.intents(), ["r.example/a:v1"]);
        files.note("r.example/a:v1", "sha256:1", Some(Opened::ByNode), NOW).unwrap();
        files.remove_intent("r.example/a:v1").unwrap();
        let name = "sha256-51ae7fa00c92525c319404a3a6d400e52ff9372c5a39cb415e0486fe425f3165";
        let path = root.join("image_manager/pulled").join(name);
        let known = files.find("r.example/a:v2", "sha256:1");
        assert_eq!(access(&Verification::Always, "r.example/a:v2", &known, &[]), Access::Free);
        // A kubelet's, with members that are not known here.
        let text =
            fs::read_to_string(&path).unwrap().replace("\"imageRef\"", "\"more\":{\"x\":1},\"imageRef\"");
        fs::write(&path, text).unwrap();
        assert_eq!(files.find("r.example/a:v2", "sha256:1"), known);
        for damaged in ["", "{}", "[1]", "{\"imageRef\":\"sha256:2\"}"] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(files.find("r.example/a:v1", "sha256:1"), Known::Pulled, "{damaged}");
        }
        files.note("r.example/a:v1", "sha256:1", Some(Opened::ByNode), NOW).unwrap();
        assert_eq!(files.find("r.example/a:v1", "sha256:1"), known);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn records_of_images_that_are_gone_are_removed() {
        let (root, files) = files("prune");
        for image_ref in ["sha256:1", "sha256:2", "sha256:3"] {
            files.note("r.example/a:v1", image_ref, Some(Opened::ByNode), NOW).unwrap();
        }
        let listed = Prunable::list(&root);
        // Pulled again meanwhile.
        let path = files.pulled.join(file_name("sha256:3"));
        let later = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(5);
        fs::File::options().write(true).open(path).unwrap().set_modified(later).unwrap();
        listed.prune(&BTreeSet::from(["sha256:1".to_owned()]));
        let known = |image_ref: &str| files.find("r.example/a:v1", image_ref) != Known::Preloaded;
        assert_eq!(["sha256:1", "sha256:2", "sha256:3"].map(known), [true, false, true]);
        fs::remove_dir_all(root).unwrap();
    }
}
