//! Places between effects where tests make the agent die or fail. Empty in a release build.
//!
//! `AGENT_FAULT=<place>` ends the process as SIGKILL would when it reaches the place; `AGENT_FAULT=<place>!`
//! makes the step fail.

/// Passes a place. `Err` only in tests that ask for it.
///
/// # Errors
/// When the environment names this place with `!`.
#[cfg(debug_assertions)]
pub(crate) fn point(place: &str) -> Result<(), String> {
    let Some(wanted) = std::env::var_os("AGENT_FAULT") else { return Ok(()) };
    let Some(wanted) = wanted.to_str() else { return Ok(()) };
    if wanted == place {
        std::process::abort();
    }
    if wanted.strip_suffix('!') == Some(place) {
        return Err(format!("fault at {place}"));
    }
    Ok(())
}

/// Passes a place.
#[cfg(not(debug_assertions))]
#[expect(clippy::unnecessary_wraps, reason = "the shape of the one in debug builds")]
pub(crate) fn point(_place: &str) -> Result<(), String> {
    Ok(())
}
