//! The objects that pods of the cluster refer to.

pub mod references;
pub mod services;
