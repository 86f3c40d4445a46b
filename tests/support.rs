//! What tests share: runtimes, processes and patience.

pub mod agent;
pub mod api;
pub mod apiserver;
pub mod containerd;
pub mod csi_driver;
pub mod dashboard;
pub mod device_plugin;
pub mod docker;
pub mod embedded;
pub mod fake_bus;
pub mod fake_cri;
pub mod hostile_plugin;
pub mod http_server;
pub mod image;
pub mod kubectl;
pub mod netns;
pub mod prometheus;
pub mod runtime;
pub mod scratch;
pub mod wait;
