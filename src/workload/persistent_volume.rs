//! The step of a PersistentVolume: the claim that it is for (upstream: the PersistentVolume controller, without
//! provisioning and reclaiming).
//!
//! Pure: what it returns depends on its arguments alone.

use std::rc::Rc;

use serde_json::{Map, Value, json};

use super::fields::text;
use super::item::Item;
use super::world::World;
use crate::model::api::quantity::Quantity;
use crate::model::objects::volumes::{
    BIND_COMPLETED, claim_spec, claimant, class_of, is_bound, mismatch, size_of,
};
use crate::model::objects::wire::claim_reference;
use crate::model::objects::{LocalObject, ObjectContent, ObjectKey, ObjectKind};
use crate::model::ordered::Sortable as _;

const CHOSEN: &str = "pv.kubernetes.io/bound-by-controller";

pub(super) fn step(world: &mut World<'_>, item: &mut Item) {
    let mut claims: Vec<Rc<LocalObject>> =
        world.of_all(ObjectKind::PersistentVolumeClaim).map(|claim| Rc::clone(&claim.object)).collect();
    claims.order_by(|one, other| one.created.cmp(&other.created));
    let claims: Vec<&LocalObject> = claims.iter().map(|claim| &**claim).collect();
    let mut spec = item.at("/spec").clone();
    let keeps_directory = |claim: &&LocalObject| {
        let names = claim_spec(claim).is_some_and(|own| own.volume_name == item.name());
        !names && !is_bound(&spec) && world.env.has_directory(claim)
    };
    let found = claimant(item.name(), &spec, &claims).filter(|claim| !keeps_directory(claim));
    let chosen = found.or_else(|| best(world, item, &spec, &claims));
    let bound_to = &spec["claimRef"];
    let phase = match &chosen {
        Some(_) => "Bound",
        None if !bound_to["uid"].is_string() => "Available",
        // Its provisioner deletes what is released: a pod of the deleted claim may still write to it.
        None if is_used(world, bound_to) => "Bound",
        None => "Released",
    };
    if let Some(claim) = chosen {
        let is_new = spec["claimRef"]["uid"] != claim.uid.as_str();
        if is_new && !item.is_read_only {
            if !spec["claimRef"].is_object() {
                item.annotate(CHOSEN, Some("yes"));
            }
            spec["claimRef"] = claim_reference(claim);
            item.set("spec", spec);
        }
        let name = item.name().to_owned();
        let is_unaware = |claim: &Item| {
            !claim.is_read_only && claim_spec(&claim.object).is_some_and(|own| own.volume_name != name)
        };
        if world.item(&claim.key).is_some_and(is_unaware) {
            world.change(&claim.key, |claim| {
                if let ObjectContent::Claim(own) = &mut claim.meta_mut().content {
                    own.volume_name.clone_from(&name);
                }
                claim.annotate(BIND_COMPLETED, Some("yes"));
            });
        }
    }
    if item.text("/status/phase") != phase {
        let mut status = Map::new();
        status.insert("phase".to_owned(), json!(phase));
        status.insert("lastPhaseTransitionTime".to_owned(), json!(world.now.to_rfc3339()));
        item.set_status(status);
        // What is free has changed for the others.
        let others: Vec<ObjectKey> =
            world.of_all(ObjectKind::PersistentVolume).map(|other| other.object.key.clone()).collect();
        for other in &others {
            world.mark(other);
        }
    }
}

/// A pod is there that may have the volume of this deleted claim. One that was created after another claim of that name
/// has that one's.
fn is_used(world: &World<'_>, claim: &Value) -> bool {
    let (namespace, name) = (text(claim, "/namespace"), text(claim, "/name"));
    let next = world.get(ObjectKind::PersistentVolumeClaim, namespace, name).map(|next| next.object.created);
    world.env.is_claim_used(namespace, name, next)
}

/// The oldest claim that has no volume yet, asks for the class of this one, and is suited by no smaller one.
fn best<'c>(
    world: &World<'_>,
    item: &Item,
    spec: &Value,
    claims: &[&'c LocalObject],
) -> Option<&'c LocalObject> {
    if item.is_deleted() || spec["claimRef"].is_object() {
        return None;
    }
    let others: Vec<&Item> = world.of_all(ObjectKind::PersistentVolume).collect();
    let rank = |item: &Item, spec: &Value| -> (Quantity, String) { (size_of(spec), item.name().to_owned()) };
    let own = rank(item, spec);
    let is_for = |claim: &&&LocalObject| {
        let Some(wanted) = claim_spec(claim) else { return false };
        let suits = |spec: &Value| {
            wanted.storage_class.as_deref() == Some(class_of(spec)) && mismatch(spec, wanted).is_none()
        };
        let has_better = |other: &&Item| {
            let spec = other.at("/spec");
            match claimant(other.name(), spec, claims) {
                Some(owner) => owner.key == claim.key,
                None => {
                    !spec["claimRef"].is_object()
                        && !other.is_deleted()
                        && suits(spec)
                        && rank(other, spec) < own
                }
            }
        };
        // One of the two keeps the choice.
        let is_kept = !item.is_read_only || world.item(&claim.key).is_some_and(|claim| !claim.is_read_only);
        wanted.volume_name.is_empty()
            && claim.deleted.is_none()
            && is_kept
            && suits(spec)
            && !others.iter().any(has_better)
            && !world.env.has_directory(claim)
    };
    claims.iter().find(is_for).copied()
}

#[cfg(test)]
mod tests;
