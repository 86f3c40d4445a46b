//! The task that asks registries whether tags have other digests, and changes the Deployments that follow them.
//!
//! Owns when registries are asked, and what has been said about it. Without an annotated object it waits for one.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::driver::{items, pods, wait_for};
use super::image_update::{Follower, asks, first_delay, followers};
use super::world::WorldEvent;
use crate::desired::pod_config::edit::{ApiChange, EditError, Editor};
use crate::model::api::pod::Pod;
use crate::model::objects::{LocalObjects, ObjectKey};
use crate::pod::events::{EventRecorder, EventType};
use crate::pod::status::StatusManager;

/// A digest, or why there is none.
pub type DigestAnswer = Pin<Box<dyn Future<Output = Result<String, String>>>>;

/// Asks registries; how depends on the node.
pub trait ImageDigests {
    /// The digest that a reference has at its registry now, asked with the credentials of this pod.
    fn digest(&self, image: String, pod: Rc<Pod>) -> DigestAnswer;
}

/// What the task needs.
pub struct ImageUpdateParts {
    pub editor: Editor,
    pub objects: Rc<LocalObjects>,
    pub statuses: Rc<StatusManager>,
    pub events: EventRecorder,
    /// Changes whenever the desired state does.
    pub desired: watch::Receiver<u64>,
    pub digests: Rc<dyn ImageDigests>,
    /// Between two checks.
    pub interval: Duration,
}

struct Updater {
    editor: Editor,
    objects: Rc<LocalObjects>,
    statuses: Rc<StatusManager>,
    events: EventRecorder,
    digests: Rc<dyn ImageDigests>,
    /// By uid of the object: what was said of it, and images of which a registry says nothing.
    said: BTreeSet<(String, String)>,
}

/// Which credentials: those of pods with the same Secrets in one namespace are the same.
type Question = (String, String, Vec<String>);

/// What the last check found of an object: the digests by image.
type Answers = BTreeMap<ObjectKey, BTreeMap<String, String>>;

/// Runs for as long as the process.
pub async fn update_images(parts: ImageUpdateParts) {
    let ImageUpdateParts { editor, objects, statuses, events, mut desired, digests, interval } = parts;
    let mut updater = Updater { editor, objects, statuses, events, digests, said: BTreeSet::new() };
    let mut next: Option<Instant> = None;
    loop {
        desired.borrow_and_update();
        match updater.first_uid() {
            None => next = None,
            Some(uid) => next = next.or_else(|| Some(Instant::now() + first_delay(&uid, interval))),
        }
        if next.is_some_and(|next| next <= Instant::now()) {
            if let Err(error) = updater.check().await {
                if matches!(error, EditError::Ending) {
                    return;
                }
                log::warn!(err:% = error; "Failed to store image updates, trying again at the next check");
            }
            next = Some(Instant::now() + interval);
        }
        // Losing an arm is safe: objects are read again, and the time of the next check is kept.
        tokio::select! {
            biased;
            changed = desired.changed() => if changed.is_err() { return },
            () = wait_for(next) => {}
        }
    }
}

impl Updater {
    /// Of the objects that ask for updates.
    fn first_uid(&self) -> Option<String> {
        let mut first: Option<String> = None;
        self.objects.each(|object, _| {
            if first.is_none() && asks(object) {
                first = Some(object.uid.clone());
            }
        });
        first
    }

    async fn check(&mut self) -> Result<(), EditError> {
        let (objects, statuses) = (Rc::clone(&self.objects), Rc::clone(&self.statuses));
        let found = self.editor.edit(move |config| {
            let found = followers(&items(config, &objects), &pods(config, &statuses));
            (ApiChange::default(), found)
        });
        let found = found.await?;
        self.said.retain(|(uid, _)| found.iter().any(|follower| follower.uid() == uid));
        let answers = self.ask(&found).await;
        if answers.is_empty() {
            return Ok(());
        }
        let (objects, statuses) = (Rc::clone(&self.objects), Rc::clone(&self.statuses));
        let changes = self.editor.edit(move |config| {
            let mut change = ApiChange::default();
            let mut events = Vec::new();
            for follower in followers(&items(config, &objects), &pods(config, &statuses)) {
                let (key, uid) = (follower.key().clone(), follower.uid().to_owned());
                let Some(updated) = answers.get(&key).and_then(|answers| follower.update(answers)) else {
                    continue;
                };
                change.put_objects.extend(updated.objects);
                if !updated.message.is_empty() {
                    let (event_type, message) = (EventType::Normal, updated.message);
                    events.push(WorldEvent { key, uid, event_type, reason: "ImageUpdate", message });
                }
            }
            (change, events)
        });
        for WorldEvent { key, uid, event_type, reason, message } in changes.await? {
            self.events.object_event(&key, &uid, event_type, reason, &message);
        }
        Ok(())
    }

    /// One question at a time: each is a process.
    async fn ask(&mut self, followers: &[Follower]) -> Answers {
        let mut known: BTreeMap<Question, Result<String, String>> = BTreeMap::new();
        let mut answers = Answers::new();
        for follower in followers {
            for objection in follower.objections() {
                if self.said.insert((follower.uid().to_owned(), objection.clone())) {
                    self.warn(follower, "ImageUpdateSkipped", &objection);
                }
            }
            for (image, pod) in follower.questions() {
                let secrets = pod.spec.image_pull_secrets.iter().map(|secret| secret.name.clone()).collect();
                let question = (image.clone(), pod.metadata.namespace.clone(), secrets);
                let answer = match known.get(&question) {
                    Some(answer) => answer.clone(),
                    None => self.digests.digest(image.clone(), pod).await,
                };
                known.insert(question, answer.clone());
                let subject = (follower.uid().to_owned(), image.clone());
                match answer {
                    Ok(digest) => {
                        self.said.remove(&subject);
                        answers.entry(follower.key().clone()).or_default().insert(image, digest);
                    }
                    Err(why) => {
                        if self.said.insert(subject) {
                            let message = format!(
                                "Failed to get the digest of {image} from its registry, trying again at the next check: {why}"
                            );
                            self.warn(follower, "ImageUpdateFailed", &message);
                            log::warn!(image, err = why; "Failed to get the digest of an image from its registry");
                        }
                    }
                }
            }
        }
        answers
    }

    fn warn(&self, follower: &Follower, reason: &str, message: &str) {
        self.events.object_event(follower.key(), follower.uid(), EventType::Warning, reason, message);
    }
}
