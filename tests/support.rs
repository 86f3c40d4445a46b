//! What tests share: runtimes, processes and patience.

pub mod fake_cri;
