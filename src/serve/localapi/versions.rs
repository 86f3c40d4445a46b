//! What clients have been shown of each store, for watches: what has changed since a version.
//!
//! Owns the last version of every object that was shown. Pods and objects are stamped with theirs where they
//! are changed ([`Revisions`]); all others get theirs here, when they are observed to differ. Nothing is
//! computed without a list, get or watch. Pure but for its own memory.
//!
//! What happened between two observations is one step; an object that came and went between them was never
//! there.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::rc::Rc;

use serde_json::{Value, json};

use super::resource::Store;
use super::status::{self, Failure};
use super::written::{Retained, Written};

use crate::model::ordered::Sortable as _;
use crate::model::revisions::Revisions;

/// Deletions that are remembered per store. A client that was away for longer has to list again.
const MAX_GONE: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectChange {
    Added,
    Modified,
    Deleted,
}

impl ObjectChange {
    /// The `type` of a watch's event.
    #[must_use]
    pub(in crate::serve) fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub step: ObjectChange,
    pub name: Name,
    /// The object, with its version; for a deletion its last state, as far as it is known.
    pub state: Rc<Written>,
    /// The previous state, as far as it is known.
    pub before: Option<Rc<Written>>,
    pub version: u64,
}

/// How much of an object is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The whole object: there are watches, which need it for the deletion event.
    Whole,
    /// Only what identifies and selects it.
    Shadow,
}

/// Instead of a version: the object was shown by itself, and no watch knows it.
const ALONE: u64 = 0;

/// Namespace and name.
pub(crate) type Name = (String, String);

struct VersionEntry {
    /// The stamped version, or else a hash of the object; [`ALONE`] until the store was observed with it.
    mark: u64,
    uid: String,
    /// The version at which it was first observed.
    added: u64,
    version: u64,
    /// With its version if it is whole.
    state: Rc<Written>,
    whole: bool,
}

/// An object as it is now.
pub(in crate::serve) struct Observed {
    pub name: Name,
    pub uid: String,
    /// The version that it was stamped with.
    pub version: Option<u64>,
    /// The object, unless it is rendered on demand; always of one without a version.
    pub object: Option<Value>,
}

impl Observed {
    pub(in crate::serve) fn whole(object: Value) -> Self {
        let (name, uid, version) = (name_of(&object), uid_of(&object).to_owned(), stamped(&object));
        Self { name, uid, version, object: Some(object) }
    }
}

struct Gone {
    added: u64,
    version: u64,
    name: Name,
    state: Box<[u8]>,
}

struct Seen {
    entries: BTreeMap<Name, VersionEntry>,
    gone: VecDeque<Gone>,
    /// All deletions after this version are known.
    since: u64,
    /// The newest version in this store.
    changed: u64,
    /// The newest version of all at the last observation of the whole store.
    looked: u64,
}

impl Seen {
    fn new(base: u64) -> Self {
        Self { entries: BTreeMap::new(), gone: VecDeque::new(), since: base, changed: base, looked: base }
    }

    /// The entries of the last observation of the whole store.
    fn observed(&self) -> impl Iterator<Item = (&Name, &VersionEntry)> {
        self.entries.iter().filter(|(_, entry)| entry.mark != ALONE)
    }
}

pub(in crate::serve) struct Versions {
    revisions: Revisions,
    stores: BTreeMap<Store, Seen>,
    retained: Retained,
}

impl Versions {
    /// `retained` counts the bytes that only slow clients keep alive.
    #[must_use]
    pub(in crate::serve) fn new(revisions: Revisions, retained: Retained) -> Self {
        Self { revisions, stores: BTreeMap::new(), retained }
    }

    /// The first version of this process.
    #[must_use]
    pub(in crate::serve) fn base(&self) -> u64 {
        self.revisions.first()
    }

    #[must_use]
    pub(in crate::serve) fn current(&self) -> u64 {
        self.revisions.newest()
    }

    /// The newest version of any object of this store, deleted ones included.
    #[must_use]
    pub(in crate::serve) fn changed(&self, store: Store) -> u64 {
        self.stores.get(&store).map_or(self.base(), |seen| seen.changed)
    }

    /// The version up to which all changes of this store have been reported.
    #[must_use]
    pub(in crate::serve) fn looked(&self, store: Store) -> u64 {
        self.stores.get(&store).map_or(self.base(), |seen| seen.looked)
    }

    /// Compares all objects of a store with the previous observation, and writes its version into each.
    /// Returns the changes in order, with the objects if they are kept whole.
    pub(in crate::serve) fn refresh(
        &mut self,
        store: Store,
        objects: &mut [Value],
        keep: Keep,
    ) -> Vec<Change> {
        let mut observed: Vec<Observed> =
            objects.iter_mut().map(|object| Observed::whole(object.take())).collect();
        let changes = self.observe(store, &mut observed, keep, &|_| Value::Null);
        for (object, observed) in objects.iter_mut().zip(observed) {
            *object = observed.object.unwrap_or_default();
        }
        changes
    }

    /// As [`Self::refresh`], of objects that are rendered only where they have changed: `render` gives the one at an
    /// index.
    #[expect(clippy::too_many_lines, reason = "one loop over what has changed")]
    pub(in crate::serve) fn observe(
        &mut self,
        store: Store,
        objects: &mut [Observed],
        keep: Keep,
        render: &dyn Fn(usize) -> Value,
    ) -> Vec<Change> {
        let (base, retained) = (self.base(), &self.retained);
        let seen = self.stores.entry(store).or_insert_with(|| Seen::new(base));
        let mut changes = Vec::new();
        // Of several pods with one name the known one counts, else the first.
        let mut names: BTreeMap<Name, (String, Option<u64>)> = BTreeMap::new();
        for Observed { name, uid, version, .. } in objects.iter() {
            let is_known = seen.entries.get(name).is_some_and(|entry| entry.uid == *uid);
            if is_known || !names.contains_key(name) {
                names.insert(name.clone(), (uid.clone(), *version));
            }
        }
        // A different uid is a different object.
        let is_over = |(name, entry): &(&Name, &VersionEntry)| {
            names.get(*name).is_none_or(|(uid, _)| *uid != entry.uid)
        };
        let over: Vec<Name> = seen.entries.iter().filter(is_over).map(|(name, _)| name.clone()).collect();
        for name in over {
            let Some(entry) = seen.entries.remove(&name) else { continue };
            let successor = names.get(&name).and_then(|(_, version)| *version);
            let current = successor.map_or_else(|| self.revisions.next(), |version| version - 1);
            seen.changed = seen.changed.max(current);
            entry.state.supersede();
            let shadow =
                if entry.whole { written(&shadow(&entry.state.parse())) } else { entry.state.json().into() };
            seen.gone.push_back(Gone {
                added: entry.added,
                version: current,
                name: name.clone(),
                state: shadow,
            });
            if keep == Keep::Whole && entry.mark != ALONE {
                let mut object = entry.state.parse();
                stamp(&mut object, current);
                changes.push(Change {
                    step: ObjectChange::Deleted,
                    name,
                    state: Written::unsent(written(&object), retained),
                    before: Some(entry.state),
                    version: current,
                });
            }
            if seen.gone.len() > MAX_GONE
                && let Some(forgotten) = seen.gone.pop_front()
            {
                seen.since = forgotten.version;
            }
        }
        let whole = keep == Keep::Whole;
        for (at, Observed { name, uid, version, object }) in objects.iter_mut().enumerate() {
            if names.get(name).is_some_and(|(found, _)| found != uid) {
                continue;
            }
            let (name, version) = (name.clone(), *version);
            let mark = version.unwrap_or_else(|| hash_of(object.get_or_insert_with(|| render(at))));
            let state = |object: &Value| {
                let json = if whole { written(object) } else { written(&shadow(object)) };
                Written::current(json, retained)
            };
            if let Some(entry) = seen.entries.get_mut(&name).filter(|entry| entry.mark == mark) {
                if let Some(object) = object {
                    stamp(object, entry.version);
                }
                if entry.whole != whole {
                    let object = object.get_or_insert_with(|| render(at));
                    stamp(object, entry.version);
                    entry.state.supersede();
                    (entry.state, entry.whole) = (state(object), whole);
                }
                continue;
            }
            let current = version.unwrap_or_else(|| self.revisions.next());
            seen.changed = seen.changed.max(current);
            let object = object.get_or_insert_with(|| render(at));
            stamp(object, current);
            let Some(entry) = seen.entries.get_mut(&name) else {
                let (uid, state) = (uid_of(object).to_owned(), state(object));
                if whole {
                    let (name, state) = (name.clone(), Rc::clone(&state));
                    changes.push(Change {
                        step: ObjectChange::Added,
                        name,
                        state,
                        before: None,
                        version: current,
                    });
                }
                let entry = VersionEntry { mark, uid, added: current, version: current, state, whole };
                seen.entries.insert(name, entry);
                continue;
            };
            let before = std::mem::replace(&mut entry.state, state(object));
            before.supersede();
            let known = (entry.mark != ALONE).then_some(before);
            (entry.mark, entry.version, entry.whole) = (mark, current, whole);
            if whole {
                let step = if known.is_some() { ObjectChange::Modified } else { ObjectChange::Added };
                let state = Rc::clone(&entry.state);
                changes.push(Change { step, name, state, before: known, version: current });
            }
        }
        seen.looked = self.revisions.newest();
        changes.order_by_key(|change| change.version);
        changes
    }

    /// A client was shown this object alone, with the version that it was stamped with: a watch from there reports
    /// its deletion.
    pub(in crate::serve) fn remember(&mut self, store: Store, object: &Value) {
        let base = self.base();
        let seen = self.stores.entry(store).or_insert_with(|| Seen::new(base));
        let (Some(version), name) = (stamped(object), name_of(object)) else { return };
        seen.entries.entry(name).or_insert_with(|| VersionEntry {
            mark: ALONE,
            uid: uid_of(object).to_owned(),
            added: version,
            version,
            state: Written::current(written(&shadow(object)), &self.retained),
            whole: false,
        });
    }

    /// Drops the states after the last watch of a store has ended.
    pub(in crate::serve) fn forget_states(&mut self, store: Store) {
        for entry in self.stores.get_mut(&store).into_iter().flat_map(|seen| seen.entries.values_mut()) {
            if entry.whole {
                entry.state.supersede();
                let shadow = written(&shadow(&entry.state.parse()));
                (entry.state, entry.whole) = (Written::current(shadow, &self.retained), false);
            }
        }
    }

    /// All objects of the last observation, as additions.
    #[must_use]
    pub(in crate::serve) fn all(&self, store: Store) -> Vec<Change> {
        let entries = self.stores.get(&store).into_iter().flat_map(Seen::observed);
        let added = |(name, entry): (&Name, &VersionEntry)| Change {
            step: ObjectChange::Added,
            name: name.clone(),
            state: Rc::clone(&entry.state),
            before: None,
            version: entry.version,
        };
        entries.map(added).collect()
    }

    /// The changes between a version and the last observation.
    ///
    /// # Errors
    /// 410 when the history does not reach back that far, 504 when the version is in the future.
    pub(in crate::serve) fn since(&self, store: Store, version: u64) -> Result<Vec<Change>, Failure> {
        let Some(seen) = self.stores.get(&store) else { return Ok(Vec::new()) };
        if version > self.current() {
            return Err(status::too_large_version(version, self.current()));
        }
        if version < seen.since {
            return Err(status::expired(format!("too old resource version: {version} ({})", seen.since)));
        }
        let mut changes: Vec<Change> = Vec::new();
        for (name, entry) in seen.observed().filter(|(_, entry)| entry.version > version) {
            changes.push(Change {
                step: if entry.added > version { ObjectChange::Added } else { ObjectChange::Modified },
                name: name.clone(),
                state: Rc::clone(&entry.state),
                before: None,
                version: entry.version,
            });
        }
        // An object that was created and deleted since that version needs no event.
        for gone in seen.gone.iter().filter(|gone| gone.version > version && gone.added <= version) {
            let mut object = parse(&gone.state);
            stamp(&mut object, gone.version);
            changes.push(Change {
                step: ObjectChange::Deleted,
                name: gone.name.clone(),
                state: Written::unsent(written(&object), &self.retained),
                before: None,
                version: gone.version,
            });
        }
        changes.order_by_key(|change| change.version);
        Ok(changes)
    }
}

/// Parses a `resourceVersion`. Empty is `None`.
pub(in crate::serve) fn parse_version(text: &str) -> Result<Option<u64>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    let failure = |_| {
        let message = format!(
            "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
        );
        status::bad_request(message)
    };
    text.parse().map(Some).map_err(failure)
}

fn name_of(object: &Value) -> Name {
    (super::text(object, "/metadata/namespace").to_owned(), super::text(object, "/metadata/name").to_owned())
}

fn uid_of(object: &Value) -> &str {
    super::text(object, "/metadata/uid")
}

/// The version that the object has already.
fn stamped(object: &Value) -> Option<u64> {
    super::text(object, "/metadata/resourceVersion").parse().ok()
}

fn stamp(object: &mut Value, version: u64) {
    object["metadata"]["resourceVersion"] = json!(version.to_string());
}

/// The part of a deleted object that identifies and selects it.
fn shadow(object: &Value) -> Value {
    let mut shadow = json!({});
    for pointer in ["apiVersion", "kind", "type", "reason", "involvedObject", "source"] {
        if let Some(part) = object.get(pointer) {
            shadow[pointer] = part.clone();
        }
    }
    for (parent, fields) in [
        ("metadata", &["name", "namespace", "uid", "creationTimestamp", "labels"][..]),
        ("spec", &["nodeName"][..]),
        ("status", &["phase"][..]),
    ] {
        for field in fields {
            if let Some(part) = object.get(parent).and_then(|parent| parent.get(field)) {
                shadow[parent][*field] = part.clone();
            }
        }
    }
    shadow
}

fn written(object: &Value) -> Box<[u8]> {
    object.to_string().into_bytes().into_boxed_slice()
}

/// Parses what this module has serialized.
fn parse(state: &[u8]) -> Value {
    serde_json::from_slice(state).unwrap_or_default()
}

struct Digest(DefaultHasher);

impl io::Write for Digest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The hash of an object that nothing has stamped.
fn hash_of(object: &Value) -> u64 {
    let mut digest = Digest(DefaultHasher::new());
    // Writing to the digest cannot fail.
    let _ = serde_json::to_writer(&mut digest, object);
    digest.0.finish()
}

#[cfg(test)]
mod tests;
