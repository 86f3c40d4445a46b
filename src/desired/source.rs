//! Where pods and objects come from. A source always sends its whole set, never a delta, and never a set it is not sure of: silence
//! keeps what runs.
//!
//! Owns reading manifests.

pub mod file;
pub mod manifest;
pub mod parser;
#[cfg(test)]
pub(crate) mod testing;
pub mod url;

use std::collections::BTreeSet;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::desired::local_objects::carry;
use crate::desired::merge::is_semantically_different;
use crate::model::api::pod::Pod;
use crate::model::objects::{LocalObject, ObjectKey};
use crate::model::ordered::Ordered as _;
use crate::model::provenance::mark_first_seen;
pub use crate::model::source::{SourceAnswer, SourceObject, SourcePod, SourceProblem, SourceUpdate};
use crate::model::types::{PodFullName, PodSource, Timestamp};

/// Upstream's event reason for a manifest that cannot become a pod.
pub const REASON_INVALID_MANIFEST: &str = "FailedValidation";
/// The reason of a manifest that is taken, but for a field that is unknown or written twice.
pub const REASON_IGNORED: &str = "FieldIgnored";
/// The reason of a source that gives no answer: a missing directory, an unreachable server.
pub const REASON_UNAVAILABLE: &str = "SourceUnavailable";
/// The reason of an answer that would remove everything, until it is confirmed.
pub const REASON_EMPTY: &str = "EmptyUnconfirmed";
/// The reason of an answer that is not signed as it must be.
pub const REASON_UNTRUSTED: &str = "SignatureInvalid";
/// Upstream's bound on one manifest file or one answer of a URL.
pub const MAX_MANIFEST_BYTES: usize = 10 * 1024 * 1024;

/// A period of zero in a configuration must not become a busy loop.
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);

/// Where a manifest was written: what its defaulting, uid and messages depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The kind of source.
    pub source: PodSource,
    /// Path of the file or the URL.
    pub location: String,
}

/// What became of one manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParsedManifest {
    /// The pods of every good document, ready to run.
    pub pods: Vec<Pod>,
    /// ConfigMaps, Secrets and claims of every good document.
    pub objects: Vec<LocalObject>,
    /// What is wrong, one entry per document: names the document, the field and the fix.
    pub problems: Vec<String>,
    /// What has no effect in pods and objects that are taken all the same.
    pub ignored: Vec<Ignored>,
    /// What was accepted but is doubtful, for the log.
    pub warnings: Vec<String>,
    /// No document was broken: a pod that is not in `pods` is not wanted any more, nor an object that is not in `objects`.
    pub complete: bool,
}

/// A field that has no effect: unknown, or written twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    /// `NAMESPACE/NAME` of the pod that it was written for; empty for objects.
    pub pod: String,
    /// Names the document and the field.
    pub message: String,
}

/// What a source wanted last, from before a restart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LastGood {
    /// Pods with their origins.
    pub pods: Vec<SourcePod>,
    /// Objects with theirs.
    pub objects: Vec<SourceObject>,
}

/// Everything that a source resumes from after a restart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Remembered {
    /// Its last good set.
    pub good: LastGood,
    /// [`SourceUpdate::validator`] beside it.
    pub validator: Option<String>,
    /// The newest [`SourceUpdate::signed`].
    pub signed: Option<String>,
}

impl Remembered {
    /// An empty answer would remove something.
    fn holds_something(&self) -> bool {
        !(self.good.pods.is_empty() && self.good.objects.is_empty())
    }
}

/// Asks a source to look again and to take an empty answer at its word, this once; told whether the source has a valid
/// answer now.
pub type Accept = oneshot::Sender<bool>;

/// `None` for a source that cannot be asked.
type Accepts = Option<mpsc::Receiver<Accept>>;

/// The next one. Cancel safe.
async fn next_accept(accepts: &mut Accepts) -> Accept {
    match accepts {
        Some(accepts) => match accepts.recv().await {
            Some(accept) => accept,
            None => pending().await,
        },
        None => pending().await,
    }
}

/// An empty answer removes all that ran. A deliberate one comes from where the pods came from; an empty directory that
/// is another one than theirs, or a server that says nothing else since the start, is as likely a mount that is missing or
/// a database that is not loaded yet.
fn is_believed(is_empty: bool, would_remove: bool, same_speaker: bool) -> bool {
    !is_empty || !would_remove || same_speaker
}

/// Turns bytes into pods and objects. The sources bring bytes and remember what was good; what a manifest means is not their business.
pub trait ManifestParser {
    /// Reads a whole file or body.
    fn parse(&self, bytes: &[u8], origin: &Origin) -> ParsedManifest;
}

/// Reads a manifest on top of what its origin said before. An empty one is never an answer: writers truncate files and
/// broken servers send nothing.
fn parse_manifest<P: ManifestParser>(parser: &P, bytes: &[u8], origin: &Origin) -> ParsedManifest {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        let location = &origin.location;
        let problem = match origin.source {
            PodSource::File => format!(
                "{location}: the file is empty; write a v1 Pod into it, or delete it if its pods are not wanted"
            ),
            PodSource::Http | PodSource::Api => format!(
                "zero-length data received from {location}; serve a v1 Pod, or a PodList with no items to say none"
            ),
        };
        return ParsedManifest { problems: vec![problem], ..ParsedManifest::default() };
    }
    parser.parse(bytes, origin)
}

/// The pods an origin stands for: the newest good ones, and while a document is broken also the last good version of
/// every pod that the newest manifest does not show, because it may be the one that is broken. A pod that has not changed
/// stays the very same object: the desired set and its worker share it.
fn keep_last_good(
    parsed: Vec<Pod>,
    complete: bool,
    last_good: &[SourcePod],
    origin: &Origin,
    now: Timestamp,
) -> Vec<SourcePod> {
    let known = |pod: &Pod| {
        let same = |old: &&SourcePod| {
            old.pod.metadata.uid == pod.metadata.uid
                && old.pod.metadata.name == pod.metadata.name
                && old.pod.metadata.namespace == pod.metadata.namespace
                && !is_semantically_different(&old.pod, pod)
        };
        last_good.iter().find(same).map(|old| Rc::clone(&old.pod))
    };
    let own = |mut pod: Pod| {
        let pod = known(&pod).unwrap_or_else(|| {
            mark_first_seen(&mut pod, origin.source, now);
            Rc::new(pod)
        });
        SourcePod { pod, origin: origin.location.clone() }
    };
    // Not a plain `collect`, which would keep the parsed pods' allocation, 2 kB each, for what takes 40 bytes.
    let mut pods = Vec::with_capacity(parsed.len());
    pods.extend(parsed.into_iter().map(own));
    if !complete {
        let fresh: BTreeSet<_> = pods.iter().map(full_name).into_set();
        let stale: Vec<_> =
            last_good.iter().filter(|old| !fresh.contains(&full_name(old))).cloned().collect();
        pods.extend(stale);
    }
    pods
}

/// The same for objects.
fn keep_last_good_objects(
    parsed: Vec<LocalObject>,
    complete: bool,
    last_good: &[SourceObject],
    origin: &Origin,
    now: Timestamp,
) -> Vec<SourceObject> {
    let known = |key: &ObjectKey| last_good.iter().find(|old| old.object.key == *key);
    let mut objects: Vec<SourceObject> = parsed
        .into_iter()
        .map(|object| {
            let known = known(&object.key).map(|old| &old.object);
            SourceObject { object: carry(known, object, now), origin: origin.location.clone() }
        })
        .collect();
    if !complete {
        let fresh: BTreeSet<_> = objects.iter().map(|object| object.object.key.clone()).into_set();
        objects.extend(last_good.iter().filter(|old| !fresh.contains(&old.object.key)).cloned());
    }
    objects
}

/// What makes two pods the same one to a user.
fn full_name(pod: &SourcePod) -> PodFullName {
    pod.pod.pod_ref().full_name()
}

/// Problems of what was ignored, as [`carry_since`] makes them.
fn carry_ignored(
    ignored: Vec<Ignored>,
    origin: &str,
    before: &[SourceProblem],
    now: Timestamp,
) -> Vec<SourceProblem> {
    let (pods, messages): (Vec<_>, Vec<_>) = ignored.into_iter().map(|one| (one.pod, one.message)).unzip();
    let problems = carry_since(messages, REASON_IGNORED, origin, before, now);
    problems.into_iter().zip(pods).map(|(problem, pod)| SourceProblem { pod, ..problem }).collect()
}

/// Today's problems of one origin; one that was there before keeps its `since`.
fn carry_since(
    messages: Vec<String>,
    reason: &str,
    origin: &str,
    before: &[SourceProblem],
    now: Timestamp,
) -> Vec<SourceProblem> {
    // The display adds the origin; it must not appear twice.
    let without_origin = |message: String| {
        let rest = message.strip_prefix(origin).and_then(|rest| rest.strip_prefix(": "));
        rest.map(str::to_owned).unwrap_or(message)
    };
    let since =
        |message: &str| before.iter().find(|known| known.message == message).map_or(now, |known| known.since);
    messages
        .into_iter()
        .map(without_origin)
        .map(|message| SourceProblem {
            origin: origin.to_owned(),
            reason: reason.to_owned(),
            since: since(&message),
            message,
            pod: String::new(),
        })
        .collect()
}
