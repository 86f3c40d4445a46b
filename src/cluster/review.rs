//! Questions to the cluster about users of the kubelet's API: who they are, and what they may do.

pub(crate) mod rules;
