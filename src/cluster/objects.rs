//! The objects that pods of the cluster refer to.

pub(crate) mod references;
pub(crate) mod services;
