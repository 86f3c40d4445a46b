//! The step of each kind.
//!
//! Pure: what it returns depends on its arguments alone.

use super::item::Item;
use super::world::World;
use super::{cron_job, daemon_set, deployment, job, persistent_volume, replica_set, stateful_set};
use crate::model::objects::ObjectKind;

/// Takes the step of an object of one of the kinds that take steps.
pub(super) fn take(world: &mut World<'_>, item: &mut Item) {
    match item.object.key.kind {
        ObjectKind::Deployment => deployment::step(world, item),
        ObjectKind::ReplicaSet => replica_set::step(world, item),
        ObjectKind::DaemonSet => daemon_set::step(world, item),
        ObjectKind::StatefulSet => stateful_set::step(world, item),
        ObjectKind::PersistentVolume => persistent_volume::step(world, item),
        ObjectKind::CronJob => cron_job::step(world, item),
        _ => job::step(world, item),
    }
}
