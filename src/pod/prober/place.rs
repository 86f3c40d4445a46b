//! Types shared by the parts of the prober: the address of a probe, an observation of a pod, the queue.
//!
//! Owns nothing.

use std::collections::BTreeSet;
use std::rc::Rc;

use tokio::time::Instant;

use crate::model::api::pod::{Pod, PodStatus};
use crate::model::observed::ObservedPod;
use crate::model::types::{ContainerName, PodUid, Timestamp};
use crate::pod::inbox::Inbox;
use crate::pod::prober::rules::ProbeKind;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProbeAddress {
    pub uid: PodUid,
    pub container: ContainerName,
    pub kind: ProbeKind,
}

/// An observation of a pod, for updating its probes.
pub(super) struct Sight<'a> {
    pub pod: &'a Rc<Pod>,
    pub observed: &'a ObservedPod,
    pub remembered: Option<&'a PodStatus>,
    pub wake: &'a Rc<Inbox>,
    pub pod_ip: &'a str,
    pub now: Instant,
    pub wall: Timestamp,
    pub agent_since: Timestamp,
}

/// How long a probe's runs take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Speed {
    #[default]
    Quick,
    Slow,
}

/// Due times of probes, earliest first.
pub(super) type Queue = BTreeSet<(Instant, Rc<ProbeAddress>)>;
