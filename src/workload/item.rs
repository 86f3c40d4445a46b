//! One object of a pass: its metadata, and its body, parsed on demand.
//!
//! Owns whether it has changed.
//!
//! Pure: what it returns depends on its arguments alone.

use std::cell::OnceCell;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::fields::{at, int, text};
use crate::model::objects::{LocalObject, ObjectContent, OwnerReference, PlainBody};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ItemChange {
    #[default]
    None,
    Status,
    Whole,
    New,
}

/// An object with its body parsed on demand.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// Its content is that of the store; the body is newer.
    pub object: Rc<LocalObject>,
    pub(super) body: OnceCell<Value>,
    /// A manifest defines it: its status and its revision are all that changes.
    pub is_read_only: bool,
    pub(super) change: ItemChange,
    /// How often it was changed.
    pub(super) edits: u32,
}

impl Item {
    pub(super) fn new(object: Rc<LocalObject>, is_read_only: bool) -> Self {
        Self { object, body: OnceCell::new(), is_read_only, change: ItemChange::None, edits: 0 }
    }

    pub(super) fn body(&self) -> &Value {
        self.body.get_or_init(|| self.object.content.body())
    }

    pub(super) fn at(&self, pointer: &str) -> &Value {
        at(self.body(), pointer)
    }

    pub(super) fn int(&self, pointer: &str, default: i64) -> i64 {
        int(self.body(), pointer, default)
    }

    pub(super) fn text(&self, pointer: &str) -> &str {
        text(self.body(), pointer)
    }

    pub(super) fn replicas(&self) -> i64 {
        self.int("/spec/replicas", 1)
    }

    pub(super) fn name(&self) -> &str {
        &self.object.key.name
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.object.deleted.is_some()
    }

    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        self.object.annotations.get(name).map(String::as_str)
    }

    /// A reference to it as the one that manages others.
    pub(super) fn reference(&self) -> OwnerReference {
        let LocalObject { key, uid, .. } = &*self.object;
        OwnerReference {
            api_version: key.kind.api_version(),
            kind: key.kind.as_str().to_owned(),
            name: key.name.clone(),
            uid: uid.clone(),
            controller: true,
            block_owner_deletion: true,
        }
    }

    /// The uid of the object that manages it.
    pub(super) fn owner(&self) -> Option<&str> {
        controller(&self.object).map(|owner| owner.uid.as_str())
    }

    /// Its metadata, to be changed.
    pub(super) fn meta_mut(&mut self) -> &mut LocalObject {
        self.change = self.change.max(ItemChange::Whole);
        self.edits += 1;
        Rc::make_mut(&mut self.object)
    }

    fn body_mut(&mut self) -> &mut Value {
        self.body();
        self.body.get_mut().expect("parsed in the line above")
    }

    /// Sets a member of its spec, and counts the change.
    pub(super) fn set_spec(&mut self, member: &str, value: Value) {
        self.meta_mut().generation += 1;
        self.body_mut()["spec"][member] = value;
    }

    /// Sets a member beside the spec.
    pub(super) fn set(&mut self, member: &str, value: Value) {
        self.meta_mut();
        self.body_mut()[member] = value;
    }

    /// Sets or removes an annotation; false when it was so.
    pub(super) fn annotate(&mut self, name: &str, value: Option<&str>) -> bool {
        if self.annotation(name) == value {
            return false;
        }
        let annotations = &mut self.meta_mut().annotations;
        match value {
            Some(value) => drop(annotations.insert(name.to_owned(), value.to_owned())),
            None => drop(annotations.remove(name)),
        }
        true
    }

    /// False when it was so.
    pub(super) fn set_status(&mut self, status: Map<String, Value>) -> bool {
        let status = Value::Object(status);
        if self.at("/status") == &status {
            return false;
        }
        self.change = self.change.max(ItemChange::Status);
        self.edits += 1;
        self.body_mut()["status"] = status;
        true
    }

    /// Its next version.
    pub(super) fn into_object(self) -> Rc<LocalObject> {
        let mut object = self.object;
        if let Some(body) = self.body.into_inner()
            && matches!(object.content, ObjectContent::Plain(_))
        {
            Rc::make_mut(&mut object).content = ObjectContent::Plain(PlainBody::new(&body));
        }
        object
    }
}

/// The reference to the object that manages this one.
pub(super) fn controller(object: &LocalObject) -> Option<&OwnerReference> {
    object.owner_references.iter().find(|owner| owner.controller)
}
