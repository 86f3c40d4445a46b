//! The flags of `agent cri` besides the agent's own.
//!
//! Owns their names and defaults.

use std::ffi::OsString;

use super::error::{ConfigError, FlagError};

/// Where the agent serves CRI by default, alone or beside the kubelet.
pub(super) const OWN_CRI_SOCKET: &str = "unix:///run/agent/cri.sock";

const LISTEN: &str = "listen";
const STREAM_ADDRESS: &str = "stream-address";

/// The flags of `agent cri` alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriFlags {
    /// Where CRI is served: `unix:///path`, or an absolute path.
    pub listen: String,
    /// Where streams are served, `address:port`; port 0 for any.
    pub stream_address: String,
}

impl Default for CriFlags {
    fn default() -> Self {
        Self { listen: OWN_CRI_SOCKET.to_owned(), stream_address: "127.0.0.1:0".to_owned() }
    }
}

/// Removes them from the arguments; the others are the agent's.
pub(super) fn own_flags(arguments: Vec<OsString>) -> Result<(CriFlags, Vec<OsString>), ConfigError> {
    let (mut flags, mut others) = (CriFlags::default(), Vec::new());
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_str().unwrap_or_default();
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        let name = name.strip_prefix("--").unwrap_or_default().replace('_', "-");
        let target = match name.as_str() {
            LISTEN => &mut flags.listen,
            STREAM_ADDRESS => &mut flags.stream_address,
            _ => {
                others.push(argument);
                continue;
            }
        };
        let next = || arguments.next().and_then(|value| value.into_string().ok());
        *target = value.or_else(next).ok_or(ConfigError::Flag(FlagError::NoValue { flag: name }))?;
    }
    Ok((flags, others))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(arguments: &[&str]) -> Option<(CriFlags, Vec<OsString>)> {
        own_flags(arguments.iter().map(OsString::from).collect()).ok()
    }

    #[test]
    fn its_own_flags_are_taken_and_the_others_left() {
        let all = ["--root-dir", "/r", "--listen=/a.sock", "-v", "2", "--stream_address", "[::1]:5"];
        let (flags, others) = own(&all).expect("they are complete");
        let wanted = CriFlags { listen: "/a.sock".into(), stream_address: "[::1]:5".into() };
        assert_eq!((flags, others), (wanted, ["--root-dir", "/r", "-v", "2"].map(OsString::from).to_vec()));
        assert_eq!(own(&[]), Some((CriFlags::default(), Vec::new())));
        assert_eq!(own(&["--listen"]), None);
    }
}
