//! The types that all modules share: Kubernetes' wire types, what sources deliver, what a runtime reports.
//!
//! Everything here is a plain value: no file, no clock, no log.

pub mod amount;
pub mod api;
pub mod back_off;
pub mod cidr;
pub mod containers;
pub mod cron;
pub mod disruption;
pub mod duration;
pub mod field_error;
pub mod image_name;
pub mod labels;
pub mod names;
pub mod node_changes;
pub mod objects;
pub mod observed;
pub mod ordered;
pub mod provenance;
pub mod revisions;
pub mod runtime_config;
pub mod selector;
pub mod source;
pub mod types;
