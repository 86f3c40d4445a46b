//! From a bundle to a running program: what children of the monitor do between fork and exec.
