//! Text and byte formats that several modules read or write.
//!
//! | module | format |
//! |---|---|
//! | `base64` | RFC 4648, with padding |
//! | `cri_log` | lines of container logs |
//! | `hex` | bytes as digits |
//! | `json`, `yaml` | Kubernetes manifests: JSON with duplicates reported, YAML 1.1 |
//! | `packed` | texts that the build has packed |
//! | `signature` | minisign |
//! | `tiny_program` | ELF and tar, of a program of a few instructions |

pub mod base64;
pub mod cri_log;
pub(crate) mod hex;
pub mod json;
pub(crate) mod packed;
pub mod signature;
pub(crate) mod tiny_program;
pub mod yaml;
