//! Seccomp profiles to BPF programs.
