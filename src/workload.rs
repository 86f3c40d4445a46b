//! The controllers of this node: Deployment, ReplicaSet, Job, CronJob, DaemonSet, StatefulSet, and which claim gets a
//! PersistentVolume.
//!
//! Each kind has a step: a pure function over the objects and pods of the moment that decides what is to be written. The
//! steps change a [`world`] and mark what their changes concern, until all are at rest: a Deployment, its ReplicaSet and
//! their pods come out of one pass. The `driver` is one task. It compares versions when something has changed, and takes
//! the steps of what differs within an edit of the desired state, so that a decision is made over the newest state and
//! is on disk before it is acted on. Without objects of these kinds the task waits for nothing but the first one; on a
//! node of a cluster there is no task. A second task, the `image_updater`, asks registries about the images of Deployments
//! that follow their tags.

mod cron_job;
mod daemon_set;
mod deployment;
mod driver;
mod environment;
mod fields;
mod image_update;
mod image_updater;
mod item;
mod job;
mod names;
mod node;
mod persistent_volume;
mod pods;
mod replica_set;
mod revisions;
mod stateful_set;
mod steps;
mod template;
#[cfg(test)]
mod testing;
mod world;

pub use driver::{WorkloadParts, run};
pub use image_updater::{DigestAnswer, ImageDigests, ImageUpdateParts, update_images};
