//! The life of a pod worker, as one transition function.
//!
//! Owns `PodWorkerState`. Invariants: the grace period never grows; a finished pod stays finished; nothing is started
//! once termination began.
