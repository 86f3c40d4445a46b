//! A node of a cluster: what an API server is told and asked.

#![expect(dead_code, reason = "the next slice uses it")]

pub mod discovery;
pub mod objects;
pub mod pki;
pub mod review;
pub mod tokens;
