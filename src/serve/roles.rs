//! The roles and bindings of this node, as they are now.
//!
//! Owns them in the form that decisions need, made again when one of them has changed. Nothing is kept before a user asks
//! whose groups do not decide.

use std::cell::RefCell;
use std::rc::Rc;

use crate::model::objects::{LocalObjects, ObjectKind, VersionedObject};
use crate::serve::rbac::built_in::{self, BuiltInRole};
use crate::serve::rbac::{Binding, Rbac, RbacRole};

pub(crate) struct Roles {
    /// `None`: this node has none, because its cluster has them.
    objects: Option<Rc<LocalObjects>>,
    known: RefCell<Option<KnownRoles>>,
}

struct KnownRoles {
    /// How many changes of objects there had been.
    changes: u64,
    /// How many roles and bindings there are, and the newest version among them.
    mark: (usize, u64),
    rbac: Rc<Rbac>,
}

const ROLES: [ObjectKind; 2] = [ObjectKind::ClusterRole, ObjectKind::Role];
const BINDINGS: [ObjectKind; 2] = [ObjectKind::ClusterRoleBinding, ObjectKind::RoleBinding];

impl Roles {
    #[must_use]
    pub(crate) fn new(objects: Option<Rc<LocalObjects>>) -> Self {
        Self { objects, known: RefCell::default() }
    }

    #[must_use]
    pub(crate) fn current(&self) -> Rc<Rbac> {
        let Some(objects) = &self.objects else { return Rc::default() };
        let changes = objects.changes();
        let mut known = self.known.borrow_mut();
        if let Some(known) = known.as_ref().filter(|known| known.changes == changes) {
            return Rc::clone(&known.rbac);
        }
        let [roles, bindings] =
            [ROLES, BINDINGS].map(|[wide, own]| [objects.of_kind(wide), objects.of_kind(own)].concat());
        let newest = roles.iter().chain(&bindings).map(|found| found.version).max();
        let mark = (roles.len() + bindings.len(), newest.unwrap_or_default());
        let rbac = match known.take().filter(|known| known.mark == mark) {
            Some(known) => known.rbac,
            None => Rc::new(read(&roles, &bindings)),
        };
        *known = Some(KnownRoles { changes, mark, rbac: Rc::clone(&rbac) });
        rbac
    }
}

/// What is stored replaces what is built in.
fn read(roles: &[VersionedObject], bindings: &[VersionedObject]) -> Rbac {
    let built_in = built_in::roles();
    let is_stored = |name: &str| {
        let found = bindings.iter().map(|found| &found.object.key);
        found.filter(|key| key.namespace.is_empty()).any(|key| key.name == name)
    };
    let given = |role: &BuiltInRole| !role.groups.is_empty() && !is_stored(&role.role.name);
    let of_built_in = built_in
        .iter()
        .filter(|role| given(role))
        .filter_map(|role| Binding::of("", &built_in::binding_body(role)));
    let stored = bindings
        .iter()
        .filter_map(|found| Binding::of(&found.object.key.namespace, &found.object.content.body()));
    let bindings = of_built_in.chain(stored).collect();
    let stored = roles.iter().map(|found| {
        let object = &found.object;
        RbacRole::of((&object.key.namespace, &object.key.name), &object.labels, &object.content.body())
    });
    Rbac::new(built_in.into_iter().map(|role| role.role).chain(stored), bindings)
}
