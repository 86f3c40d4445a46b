//! Sources of pods and objects. A source always sends its whole set, never a delta, and never a set it is not
//! sure of: while it is silent, the last set keeps running.
//!
//! Owns reading manifests.

pub mod file;
pub mod manifest;
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
use crate::desired::source::manifest::Ignored;
use crate::model::api::pod::Pod;
use crate::model::objects::{LocalObject, ObjectKey};
use crate::model::ordered::Ordered as _;
use crate::model::provenance::mark_first_seen;
use crate::model::source::{ManifestOrigin, SourceObject, SourcePod, SourceProblem, SourceSet};
use crate::model::types::{PodFullName, Timestamp};

/// Upstream's event reason for a manifest that is not a valid pod.
pub(super) const REASON_INVALID_MANIFEST: &str = "FailedValidation";
/// The reason for a manifest that is accepted except for a field that is unknown or duplicate.
pub(super) const REASON_IGNORED: &str = "FieldIgnored";
/// The reason for a source without an answer: a missing directory, an unreachable server.
pub(super) const REASON_UNAVAILABLE: &str = "SourceUnavailable";
/// The reason for an answer that would remove everything, until it is confirmed.
pub(crate) const REASON_EMPTY: &str = "EmptyUnconfirmed";
/// The reason for an answer without a valid signature.
pub(super) const REASON_UNTRUSTED: &str = "SignatureInvalid";

/// A period of zero in a configuration must not become a busy loop.
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);

/// Everything that a source resumes from after a restart.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Remembered {
    /// Its last good set.
    pub good: SourceSet,
    /// Its [`SourceUpdate::validator`].
    pub validator: Option<String>,
    /// The newest [`SourceUpdate::signed`].
    pub signed: Option<String>,
}

impl Remembered {
    /// Whether an empty answer would remove something.
    fn has_content(&self) -> bool {
        !(self.good.pods.is_empty() && self.good.objects.is_empty())
    }
}

/// Requests a rescan in which an empty answer is accepted once. Replies whether the source has a valid answer
/// now.
pub(crate) type Accept = oneshot::Sender<bool>;

/// `None` for a source without such requests.
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

/// An empty answer removes all pods. A deliberate one comes from where the pods came from. An empty directory
/// that differs from theirs, or a server that has sent nothing else since the start, may just as well be a
/// missing mount or a database that is not loaded yet.
fn is_trusted_answer(is_empty: bool, would_remove: bool, same_speaker: bool) -> bool {
    !is_empty || !would_remove || same_speaker
}

/// The pods of an origin: the newest good ones and, while a document is broken, also the last good version of
/// every pod missing from the newest manifest, because it may be the one that is broken. An unchanged pod
/// stays the same `Rc`: the desired set and its worker share it.
fn keep_last_good(
    parsed: Vec<Pod>,
    complete: bool,
    last_good: &[SourcePod],
    origin: &ManifestOrigin,
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
    // Not a plain `collect`, which would keep the parsed pods' allocation, 2 kB each, for what takes 40
    // bytes.
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
    origin: &ManifestOrigin,
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

fn full_name(pod: &SourcePod) -> PodFullName {
    pod.pod.pod_ref().full_name()
}

/// Ignored fields as problems, as [`problems_with_since`] creates them.
fn ignored_problems(
    ignored: Vec<Ignored>,
    origin: &str,
    before: &[SourceProblem],
    now: Timestamp,
) -> Vec<SourceProblem> {
    let (pods, messages): (Vec<_>, Vec<_>) = ignored.into_iter().map(|one| (one.pod, one.message)).unzip();
    let problems = problems_with_since(messages, REASON_IGNORED, origin, before, now);
    problems.into_iter().zip(pods).map(|(problem, pod)| SourceProblem { pod, ..problem }).collect()
}

/// The current problems of one origin; a known one keeps its `since`.
fn problems_with_since(
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
