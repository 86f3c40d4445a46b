//! Images of Deployments that follow their tags: which ones a registry is asked about, and what changes when a tag has
//! another digest.
//!
//! Owns the annotations that the digests are in.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use super::fields::{at, list, text};
use super::item::Item;
use super::pods::PodView;
use crate::desired::local_objects::REVISION;
use crate::model::api::pod::Pod;
use crate::model::image_name::repository_of;
use crate::model::objects::{LocalObject, ObjectKey, ObjectKind};

/// Asks for updates, with the value `registry`.
const UPDATE: &str = "workloads.agent.edge/image-update";
/// On a template or a ReplicaSet: what its pods get instead of its images, `name:tag@digest`, separated by commas.
pub(super) const DIGESTS: &str = "workloads.agent.edge/image-digests";
/// On a Deployment, in the same form: the digests that were last rolled out, or found running. They are not tried again.
pub(super) const SEEN: &str = "workloads.agent.edge/image-digests-seen";

/// A Deployment that asks for updates, with its ReplicaSets and the pods of these that are not ending.
pub(super) struct Follower {
    pub item: Item,
    sets: Vec<Item>,
    pods: Vec<PodView>,
}

/// What a container of an image is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Running {
    /// It has not been created.
    Nothing,
    /// An image without a digest of its registry, such as one from an archive.
    Unnamed,
    Digest(String),
}

/// What is done about a Deployment.
#[derive(Debug, Default, PartialEq, Eq)]
struct Update {
    seen: String,
    /// The digests of the template, if they change: this is a rollout.
    template: Option<String>,
    /// Those of the current ReplicaSet, if they change: its pods stay.
    set: Option<String>,
    /// What is rolled out.
    rolled: Vec<String>,
}

/// New versions of objects, and what is said of the Deployment.
#[derive(Debug, Default)]
pub(super) struct Updated {
    pub objects: Vec<Rc<LocalObject>>,
    pub message: String,
}

/// Whether an object asks for updates, rightly or not.
pub(super) fn asks(object: &LocalObject) -> bool {
    let kind = object.key.kind;
    matches!(kind, ObjectKind::Deployment | ObjectKind::StatefulSet | ObjectKind::DaemonSet)
        && object.annotations.contains_key(UPDATE)
        && object.deleted.is_none()
}

/// Whether it follows its tags.
pub(super) fn follows(item: &Item) -> bool {
    item.annotation(UPDATE) == Some("registry")
}

/// How long after the start of the agent, or after the first annotation, registries are first asked: from a twelfth to a
/// quarter of the interval. Nodes that were set up alike do not ask at the same time, because uids differ.
pub(super) fn first_delay(uid: &str, interval: Duration) -> Duration {
    let sum = uid.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    interval / 12 + interval / 6 * (sum % 1000) / 1000
}

/// The entry of this image in a list of digests.
fn entry<'l>(digests: &'l str, image: &str) -> Option<&'l str> {
    let is_it = |entry: &&str| entry.strip_prefix(image).is_some_and(|rest| rest.starts_with('@'));
    digests.split(',').find(is_it)
}

fn digest_of(reference: &str) -> Option<&str> {
    reference.rsplit_once('@').map(|(_, digest)| digest)
}

fn of_template(template: &Value) -> &str {
    template["metadata"]["annotations"][DIGESTS].as_str().unwrap_or_default()
}

/// Gives a new pod the images with the digests that its template has, or else the ReplicaSet that makes it.
pub(super) fn pin_images(pod: &mut Value, owner: &Item) {
    let of_pod = of_template(pod).to_owned();
    let of_owner = owner.annotation(DIGESTS).unwrap_or_default();
    if of_pod.is_empty() && of_owner.is_empty() {
        return;
    }
    for containers in ["/spec/initContainers", "/spec/containers"] {
        for container in pod.pointer_mut(containers).and_then(Value::as_array_mut).into_iter().flatten() {
            let image = text(container, "/image");
            let pinned = entry(&of_pod, image).or_else(|| entry(of_owner, image));
            if let Some(pinned) = pinned.map(str::to_owned) {
                container["image"] = json!(pinned);
            }
        }
    }
}

/// Whether two templates differ in nothing but digests.
pub(super) fn differ_in_digests(one: &Value, other: &Value) -> bool {
    let bare = |template: &Value| {
        let mut template = template.clone();
        if let Some(annotations) =
            template.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
        {
            annotations.remove(DIGESTS);
            if annotations.is_empty() {
                template["metadata"]["annotations"] = Value::Null;
            }
        }
        if template["metadata"]["annotations"].is_null()
            && let Some(metadata) = template["metadata"].as_object_mut()
        {
            metadata.remove("annotations");
        }
        template
    };
    of_template(one) != of_template(other) && bare(one) == bare(other)
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    list(spec, "/initContainers").iter().chain(list(spec, "/containers"))
}

/// The images of a template whose tags are followed, and why others are not.
fn images(template: &Value) -> (Vec<&str>, Vec<String>) {
    let (mut asked, mut skipped) = (Vec::new(), Vec::new());
    for container in containers(at(template, "/spec")) {
        let image = text(container, "/image");
        if image.contains('@') {
            skipped.push(format!("image {image} has a digest and is not updated"));
        } else if container["imagePullPolicy"] == "Never" {
            skipped.push(format!("image {image} has the pull policy Never and is not updated"));
        } else if !asked.contains(&image) {
            asked.push(image);
        }
    }
    (asked, skipped)
}

/// All objects that ask for updates.
pub(super) fn followers(items: &[Item], pods: &[PodView]) -> Vec<Follower> {
    let asking = items.iter().filter(|item| asks(&item.object));
    let follower = |item: &Item| {
        let uid = item.object.uid.as_str();
        let sets = items.iter().filter(|set| {
            set.object.key.kind == ObjectKind::ReplicaSet && set.owner() == Some(uid) && !set.is_deleted()
        });
        let sets: Vec<Item> = sets.cloned().collect();
        let is_its = |pod: &&PodView| {
            pod.is_active() && pod.owner().is_some_and(|uid| sets.iter().any(|set| set.object.uid == uid))
        };
        let pods = pods.iter().filter(is_its).cloned().collect();
        Follower { item: item.clone(), pods, sets }
    };
    asking.map(follower).collect()
}

impl Follower {
    /// Why it, or an image of it, is not updated.
    pub(super) fn objections(&self) -> Vec<String> {
        let kind = self.item.object.key.kind;
        if kind != ObjectKind::Deployment {
            return vec![format!(
                "images of a {} are not updated, only those of a Deployment",
                kind.as_str()
            )];
        }
        if !follows(&self.item) {
            let value = self.item.annotation(UPDATE).unwrap_or_default();
            return vec![format!("annotation {UPDATE}: {value:?} is not supported; use \"registry\"")];
        }
        if self.item.is_read_only {
            return vec![
                "images of a Deployment of a manifest are not updated: change the manifest".to_owned(),
            ];
        }
        images(self.item.at("/spec/template")).1
    }

    /// The images that a registry is asked about, with a pod whose credentials count. None without a pod: there is
    /// nothing to update.
    pub(super) fn questions(&self) -> Vec<(String, Rc<Pod>)> {
        let is_asked = self.item.object.key.kind == ObjectKind::Deployment
            && follows(&self.item)
            && !self.item.is_read_only
            && self.item.at("/spec/paused") != true;
        let Some(pod) = self.pods.first().filter(|_| is_asked) else { return Vec::new() };
        let (images, _) = images(self.item.at("/spec/template"));
        images.into_iter().map(|image| (image.to_owned(), Rc::clone(&pod.pod))).collect()
    }

    /// What its containers of this image are made from.
    fn running(&self, image: &str) -> Vec<Running> {
        let mut found = Vec::new();
        for pod in &self.pods {
            let (spec, status) = (&pod.pod.spec, &pod.status);
            let statuses = || status.init_container_statuses.iter().chain(&status.container_statuses);
            for container in spec.init_containers.iter().chain(&spec.containers) {
                let rest = container.image.strip_prefix(image);
                let status = statuses().find(|status| status.name == container.name);
                let id = status.map_or("", |status| status.image_id.as_str());
                found.push(match rest {
                    Some("") if id.is_empty() => Running::Nothing,
                    Some("") => repository_digest(image, id).map_or(Running::Unnamed, Running::Digest),
                    Some(digest) if digest.starts_with('@') => Running::Digest(digest[1..].to_owned()),
                    _ => continue,
                });
            }
        }
        found
    }

    /// The ReplicaSet of the current template.
    fn current(&self) -> Option<&Item> {
        let revision = self.item.annotation(REVISION)?;
        self.sets.iter().find(|set| set.annotation(REVISION) == Some(revision))
    }

    /// Digests that pods of another ReplicaSet had.
    fn was_rolled_out(&self, reference: &str) -> bool {
        let current = self.current().map(|set| &set.object.key);
        let earlier = self.sets.iter().filter(|set| Some(&set.object.key) != current);
        let mut lists = earlier.flat_map(|set| {
            [of_template(set.at("/spec/template")), set.annotation(DIGESTS).unwrap_or_default()]
        });
        lists.any(|list| list.split(',').any(|known| known == reference))
    }

    /// What the registries' digests, by image, change.
    fn decide(&self, answers: &BTreeMap<String, String>) -> Option<Update> {
        let template = self.item.at("/spec/template");
        let seen = self.item.annotation(SEEN).unwrap_or_default();
        let of_set = self.current().and_then(|set| set.annotation(DIGESTS)).unwrap_or_default();
        let (mut now_seen, mut pins, mut of_pods) = (Vec::new(), Vec::new(), Vec::new());
        let mut rolled = Vec::new();
        for image in images(template).0 {
            let known = entry(seen, image);
            let (pin, of_pod) = (entry(of_template(template), image), entry(of_set, image));
            pins.extend(pin.map(str::to_owned));
            of_pods.extend(of_pod.map(str::to_owned));
            let Some(digest) = answers.get(image).filter(|digest| known.and_then(digest_of) != Some(digest))
            else {
                now_seen.extend(known.map(str::to_owned));
                continue;
            };
            let running = self.running(image);
            if known.is_none() && (running.is_empty() || running.contains(&Running::Nothing)) {
                // What runs is not known yet.
                continue;
            }
            let reference = format!("{image}@{digest}");
            now_seen.push(reference.clone());
            if let (None, None, Some(Running::Digest(first))) = (pin, of_pod, running.first())
                && running.iter().all(|one| *one == Running::Digest(first.clone()))
            {
                // The way back, whatever the tag names by then.
                of_pods.push(format!("{image}@{first}"));
            }
            let runs =
                !running.is_empty() && running.iter().all(|one| *one == Running::Digest(digest.clone()));
            // Left by `kubectl rollout undo`, which takes the annotations of the revision.
            let is_left = known.is_none() && self.was_rolled_out(&reference);
            if !runs && !is_left {
                pins.retain(|known| entry(known, image).is_none());
                pins.push(reference.clone());
                rolled.push(reference);
            }
        }
        let (now_seen, of_pods) = (now_seen.join(","), of_pods.join(","));
        if now_seen == seen && rolled.is_empty() {
            return None;
        }
        Some(Update {
            seen: now_seen,
            template: (!rolled.is_empty()).then(|| pins.join(",")),
            set: (of_pods != of_set).then_some(of_pods),
            rolled,
        })
    }

    /// The new versions of the Deployment and its ReplicaSet. `None` while nothing changes.
    pub(super) fn update(mut self, answers: &BTreeMap<String, String>) -> Option<Updated> {
        if self.questions().is_empty() {
            return None;
        }
        let update = self.decide(answers)?;
        let mut updated = Updated::default();
        if let (Some(digests), Some(set)) = (update.set, self.current()) {
            let mut set = set.clone();
            set.annotate(DIGESTS, Some(&digests));
            updated.objects.push(set.into_object());
        }
        self.item.annotate(SEEN, Some(&update.seen));
        if let Some(digests) = update.template {
            let mut template = self.item.at("/spec/template").clone();
            template["metadata"]["annotations"][DIGESTS] = json!(digests);
            self.item.set_spec("template", template);
            let rolled = update.rolled.join(", ");
            updated.message = format!("Registry has another digest, rolling out {rolled}");
        }
        updated.objects.push(self.item.into_object());
        Some(updated)
    }

    pub(super) fn key(&self) -> &ObjectKey {
        &self.item.object.key
    }

    pub(super) fn uid(&self) -> &str {
        &self.item.object.uid
    }
}

/// The digest in a container's `imageID`, if it is of the repository of `image`.
fn repository_digest(image: &str, id: &str) -> Option<String> {
    let (name, digest) = id.rsplit_once('@')?;
    let name = name.rsplit_once("://").map_or(name, |(_, name)| name);
    (repository_of(name) == repository_of(image)).then(|| digest.to_owned())
}

#[cfg(test)]
mod tests;
