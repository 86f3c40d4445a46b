//! Decisions about requests that write.
