//! Names of capabilities to bits. Pure.

use super::error::InitError;
use crate::platform::sys::credentials::CapabilitySets;
use crate::runtime::embedded::spec::{CAPABILITY_NAMES, Capabilities};

/// The sets as bits, as far as `available` (what the kernel has and this process may hand on) goes.
///
/// # Errors
/// A name that no kernel has. One that this kernel lacks is left out, as runc does.
pub(in crate::runtime) fn sets(
    capabilities: &Capabilities,
    available: u64,
) -> Result<CapabilitySets, InitError> {
    let bits = |names: &[String]| {
        names.iter().try_fold(0_u64, |bits, name| {
            let short = name.strip_prefix("CAP_").unwrap_or(name);
            match CAPABILITY_NAMES.iter().position(|known| *known == short) {
                Some(number) => Ok(bits | 1 << number),
                None => Err(InitError::Invalid {
                    field: format!("process.capabilities: {name}"),
                    problem: "no such capability",
                }),
            }
        })
    };
    let bounding = bits(&capabilities.bounding)? & available;
    let permitted = bits(&capabilities.permitted)? & bounding;
    let inheritable = bits(&capabilities.inheritable)? & bounding;
    Ok(CapabilitySets {
        bounding,
        permitted,
        // The kernel demands both: in force only what is permitted, ambient only what is permitted and
        // inheritable.
        effective: bits(&capabilities.effective)? & permitted,
        inheritable,
        ambient: bits(&capabilities.ambient)? & permitted & inheritable,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn no_set_is_larger_than_the_one_that_bounds_it() {
        let asked = Capabilities {
            bounding: names(&["CAP_CHOWN", "CAP_KILL", "CAP_BPF"]),
            permitted: names(&["CAP_CHOWN", "CAP_SYS_ADMIN"]),
            effective: names(&["CAP_CHOWN", "CAP_KILL"]),
            inheritable: names(&["CAP_KILL", "CAP_CHOWN"]),
            ambient: names(&["CAP_CHOWN", "CAP_KILL"]),
        };
        let sets = sets(&asked, (1 << 39) - 1).unwrap();
        let (chown, kill) = (1, 1 << 5);
        assert_eq!(sets.bounding, chown | kill, "CAP_BPF is not to be had here");
        assert_eq!((sets.permitted, sets.effective), (chown, chown));
        assert_eq!((sets.inheritable, sets.ambient), (chown | kill, chown));
    }

    #[test]
    fn an_unknown_name_is_refused_by_name() {
        let asked = Capabilities { bounding: names(&["CAP_ALL"]), ..Capabilities::default() };
        assert_eq!(
            sets(&asked, u64::MAX).unwrap_err().chain(),
            "process.capabilities: CAP_ALL: no such capability"
        );
    }
}
