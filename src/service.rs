//! Services of the lone box: which pods and addresses are behind each, the kernel's rules that lead there, and their
//! names.
//!
//! One task ([`driver`]) wakes up when an object or a pod's status changes, computes the endpoints, keeps them for
//! readers, and replaces one nftables table and one link when their content has changed. Nothing of it runs on a node
//! that has joined a cluster, or with an empty `--service-cidr`.
//!
//! Endpoints are not stored: they follow from Services and pods. Addresses and node ports are; they are chosen in
//! `desired/kinds`, in the edit that creates the Service.

mod claims;
pub mod dns;
pub mod driver;
pub mod endpoints;
pub mod kernel;
pub mod slices;
pub mod spec;
pub mod table;
