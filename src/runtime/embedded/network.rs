//! Pods' network: bridge, addresses, host ports; or the CNI plugins that are configured.

pub mod subnet;
