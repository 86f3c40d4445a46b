//! How the parts of an object are merged: which lists are maps by a key, which are sets, which maps are one value.
//!
//! Owns the one table, for strategic merge patch and server-side apply alike (upstream: `patchMergeKey`, `listType`,
//! `listMapKey` and `structType` of core/v1, 1.36). What it does not name is the rule: objects go member by member, lists
//! are one value.

use serde_json::{Value, json};

/// How one part is merged.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Nothing special below: objects by member, lists as values.
    Free,
    /// One value for whoever owns it. (A strategic merge patch still goes through an object by member.)
    Atomic,
    /// An object with special members.
    Struct(Fields),
    /// A list of different scalars.
    Set,
    /// A list of objects that are told apart by keys.
    Keyed(Keyed),
}

/// The special members of an object.
pub type Fields = &'static [(&'static str, Shape)];

/// See [`Shape::Keyed`].
#[derive(Clone, Copy, Debug)]
pub struct Keyed {
    /// `patchMergeKey`.
    pub merge_key: &'static str,
    /// `listMapKey`, sorted, each with the default of its field ("" for none).
    pub keys: &'static [(&'static str, &'static str)],
    /// An item is one value for whoever owns it.
    pub atomic: bool,
    /// Special members of the items.
    pub fields: Fields,
}

impl Shape {
    /// The shape of a member of an object of this shape.
    #[must_use]
    pub fn member(self, name: &str) -> Self {
        let fields = match self {
            Self::Struct(fields) => fields,
            _ => &[],
        };
        fields.iter().find(|(known, _)| *known == name).map_or(Self::Free, |(_, shape)| *shape)
    }
}

impl Keyed {
    /// The shape of the items.
    #[must_use]
    pub fn item(&self) -> Shape {
        if self.atomic { Shape::Atomic } else { Shape::Struct(self.fields) }
    }

    /// What tells an item apart, as canonical JSON; `None` when the item has not got it.
    #[must_use]
    pub fn key_of(&self, item: &Value) -> Option<String> {
        let members = item.as_object()?;
        let mut key = serde_json::Map::new();
        for (name, default) in self.keys {
            match members.get(*name) {
                Some(value) if !value.is_object() && !value.is_array() && !value.is_null() => {
                    key.insert((*name).to_owned(), value.clone());
                }
                None if !default.is_empty() => drop(key.insert((*name).to_owned(), json!(default))),
                _ => return None,
            }
        }
        Some(Value::Object(key).to_string())
    }
}

const fn by(keys: &'static [(&'static str, &'static str)], fields: Fields) -> Shape {
    Shape::Keyed(Keyed { merge_key: keys[0].0, keys, atomic: false, fields })
}

const fn references(keys: &'static [(&'static str, &'static str)]) -> Shape {
    Shape::Keyed(Keyed { merge_key: keys[0].0, keys, atomic: true, fields: &[] })
}

const NAME: &[(&str, &str)] = &[("name", "")];
const TYPE: &[(&str, &str)] = &[("type", "")];
const IP: &[(&str, &str)] = &[("ip", "")];

const METADATA: Fields = &[("ownerReferences", references(&[("uid", "")])), ("finalizers", Shape::Set)];

const VALUE_FROM: Fields = &[
    ("configMapKeyRef", Shape::Atomic),
    ("fieldRef", Shape::Atomic),
    ("fileKeyRef", Shape::Atomic),
    ("resourceFieldRef", Shape::Atomic),
    ("secretKeyRef", Shape::Atomic),
];

const RESOURCES: Fields = &[("claims", by(NAME, &[]))];

const CONTAINER: Fields = &[
    ("env", by(NAME, &[("valueFrom", Shape::Struct(VALUE_FROM))])),
    ("ports", by(&[("containerPort", ""), ("protocol", "TCP")], &[])),
    ("resources", Shape::Struct(RESOURCES)),
    ("volumeDevices", by(&[("devicePath", "")], &[])),
    ("volumeMounts", by(&[("mountPath", "")], &[])),
];

const AFFINITY: Fields =
    &[("nodeAffinity", Shape::Struct(&[("requiredDuringSchedulingIgnoredDuringExecution", Shape::Atomic)]))];

const POD_SPEC: Fields = &[
    ("affinity", Shape::Struct(AFFINITY)),
    ("containers", by(NAME, CONTAINER)),
    ("ephemeralContainers", by(NAME, CONTAINER)),
    ("hostAliases", by(IP, &[])),
    ("imagePullSecrets", references(NAME)),
    ("initContainers", by(NAME, CONTAINER)),
    ("nodeSelector", Shape::Atomic),
    ("resourceClaims", by(NAME, &[])),
    ("resources", Shape::Struct(RESOURCES)),
    ("schedulingGates", by(NAME, &[])),
    (
        "topologySpreadConstraints",
        by(&[("topologyKey", ""), ("whenUnsatisfiable", "")], &[("labelSelector", Shape::Atomic)]),
    ),
    ("volumes", by(NAME, &[])),
];

const POD_STATUS: Fields =
    &[("conditions", by(TYPE, &[])), ("hostIPs", Shape::Atomic), ("podIPs", by(IP, &[]))];

const CLAIM_SPEC: Fields = &[("dataSource", Shape::Atomic), ("selector", Shape::Atomic)];

const CONDITIONS: Fields = &[("conditions", by(TYPE, &[]))];

const POD: Fields = &[
    ("metadata", Shape::Struct(METADATA)),
    ("spec", Shape::Struct(POD_SPEC)),
    ("status", Shape::Struct(POD_STATUS)),
];

const CLAIM: Fields = &[
    ("metadata", Shape::Struct(METADATA)),
    ("spec", Shape::Struct(CLAIM_SPEC)),
    ("status", Shape::Struct(CONDITIONS)),
];

const OTHER: Fields = &[("metadata", Shape::Struct(METADATA)), ("status", Shape::Struct(CONDITIONS))];

/// The shape of an object of this kind; kinds that are not named have special metadata only.
#[must_use]
pub fn of_kind(kind: &str) -> Shape {
    Shape::Struct(match kind {
        "Pod" => POD,
        "PersistentVolumeClaim" => CLAIM,
        _ => OTHER,
    })
}
