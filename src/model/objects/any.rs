//! An object between its JSON and its stored form.
//!
//! Owns the choice of the type.

use super::PlainObject;
use crate::model::api::object::{ConfigMap, Namespace, PersistentVolumeClaim, RuntimeClass, Secret};
use crate::model::api::pod::ObjectMeta;

/// Any object, as decoded.
#[derive(Clone, Debug, PartialEq)]
pub enum AnyObject {
    ConfigMap(ConfigMap),
    Secret(Secret),
    Claim(Box<PersistentVolumeClaim>),
    Namespace(Namespace),
    RuntimeClass(Box<RuntimeClass>),
    Plain(Box<PlainObject>),
}

impl AnyObject {
    #[must_use]
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::ConfigMap(object) => &object.metadata,
            Self::Secret(object) => &object.metadata,
            Self::Claim(object) => &object.metadata,
            Self::Namespace(object) => &object.metadata,
            Self::RuntimeClass(object) => &object.metadata,
            Self::Plain(object) => &object.metadata,
        }
    }

    /// `metadata`, to be changed.
    pub fn metadata_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::ConfigMap(object) => &mut object.metadata,
            Self::Secret(object) => &mut object.metadata,
            Self::Claim(object) => &mut object.metadata,
            Self::Namespace(object) => &mut object.metadata,
            Self::RuntimeClass(object) => &mut object.metadata,
            Self::Plain(object) => &mut object.metadata,
        }
    }
}
