//! `RestartAllContainers`: an exit that restarts the whole pod in place, with its sandbox and volumes kept.
//!
//! Owns its triggers and the order in which records are removed.

use crate::model::api::pod::{Container, Pod};
use crate::model::containers::{ContainerKind, all_containers};
use crate::model::observed::{ContainerStateKind, ObservedContainer, ObservedPod};
use crate::model::ordered::Sortable as _;
use crate::pod::restart::restarts_all;

/// The containers whose newest instance triggers the restart, with that instance.
pub(crate) fn triggers<'a>(
    pod: &'a Pod,
    observed: &'a ObservedPod,
) -> impl Iterator<Item = (&'a Container, &'a ObservedContainer)> {
    all_containers(pod).filter_map(|(container, _)| {
        let record = observed.containers.iter().find(|record| record.name.as_str() == container.name)?;
        let ended = record.state == ContainerStateKind::Exited;
        (ended && restarts_all(container, record.exit_code)).then_some((container, record))
    })
}

/// Every record of the pod's init and regular containers in the order of removal: regular before init, and
/// those that triggered the restart last, so that an agent that dies in between continues. Records of
/// ephemeral containers stay: those never run again.
pub(super) fn records_to_remove<'a>(pod: &'a Pod, observed: &'a ObservedPod) -> Vec<&'a ObservedContainer> {
    let causes: Vec<_> = triggers(pod, observed).map(|(_, record)| &record.id).collect();
    let mut records: Vec<_> = all_containers(pod)
        .flat_map(|(container, kind)| {
            let of_container =
                observed.containers.iter().filter(|record| record.name.as_str() == container.name);
            of_container.map(move |record| (record, kind))
        })
        .collect();
    records.order_by_key(|(record, kind)| (causes.contains(&&record.id), *kind != ContainerKind::Regular));
    records.into_iter().map(|(record, _)| record).collect()
}
