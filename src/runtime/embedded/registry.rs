//! Pulls from registries, in a short-lived child.

/// `agent pull-helper`: the process.
#[must_use]
pub fn helper_main() -> u8 {
    1
}
