//! Which of an image's variants runs on this machine.
//!
//! Owns the order of preference among variants.

use crate::model::api::record::record;

record! {
    /// A platform as image indexes name it.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Platform as snake_case {
        /// `linux`.
        pub os: String,
        /// `amd64`, `arm`, `arm64`…
        pub architecture: String,
        /// `v6`, `v7`, `v8`; empty where there is none.
        pub variant: String,
    }
}

impl Platform {
    #[must_use]
    pub(crate) fn current() -> Self {
        Self::of(std::env::consts::ARCH, &std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
    }

    /// The platform of a machine, from Rust's name for its architecture and the kernel's description of its
    /// CPU.
    fn of(arch: &str, cpuinfo: &str) -> Self {
        let (architecture, variant) = match arch {
            "x86_64" => ("amd64", ""),
            "x86" => ("386", ""),
            "aarch64" => ("arm64", "v8"),
            "arm" => ("arm", arm_variant(cpuinfo)),
            "powerpc64" => ("ppc64le", ""),
            other => (other, ""),
        };
        Self { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: variant.to_owned() }
    }

    /// How well the offered platform runs here: `None` not at all, otherwise smaller is better.
    #[must_use]
    pub(crate) fn rank(&self, offered: &Self) -> Option<u8> {
        // An image without a declared platform fits every machine.
        let same_os = offered.os.is_empty() || offered.os == self.os;
        if !same_os {
            return None;
        }
        let level = |variant: &str, absent: u8| {
            variant.strip_prefix('v').map_or(absent, |v| v.parse().unwrap_or(absent))
        };
        match (self.architecture.as_str(), offered.architecture.as_str()) {
            (_, "") => Some(50),
            ("arm", "arm") => {
                // One without a variant is for v7, as containerd reads it.
                let (here, there) = (level(&self.variant, 7), level(&offered.variant, 7));
                here.checked_sub(there)
            }
            // A 64-bit kernel usually runs programs for ARMv7 and v8; better than nothing to offer.
            ("arm64", "arm") => Some(40 + 8_u8.saturating_sub(level(&offered.variant, 7))),
            ("arm64", "arm64") => Some(u8::from(level(&offered.variant, 8) != 8)),
            // amd64/v2 and v3 may need instructions that this CPU lacks.
            ("amd64", "amd64") if matches!(offered.variant.as_str(), "v2" | "v3" | "v4") => None,
            (here, there) => (here == there).then_some(0),
        }
    }
}

impl Platform {
    /// Whether a program for the platform that an image's own configuration names may run here. Only a clear difference
    /// counts: configurations lack the platform or its variant, and name architectures as `uname` and Debian do.
    #[must_use]
    pub(in crate::runtime) fn may_run(&self, configured: &Self) -> bool {
        let there = configured.architecture.to_ascii_lowercase();
        let there = match there.as_str() {
            "x86_64" | "x86-64" => "amd64",
            "aarch64" => "arm64",
            "i386" | "i686" | "x86" => "386",
            other if other.starts_with("arm") && other != "arm64" => "arm",
            other => other,
        };
        let is_same = there == self.architecture
            || there.is_empty()
            || matches!((self.architecture.as_str(), there), ("arm64", "arm") | ("amd64", "386"));
        is_same && (configured.os.is_empty() || configured.os.eq_ignore_ascii_case(&self.os))
    }
}

/// The text is not a platform's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid platform {0:?}: use a form such as linux/arm64 or linux/arm/v7")]
pub(crate) struct PlatformError(String);

impl std::str::FromStr for Platform {
    type Err = PlatformError;

    fn from_str(text: &str) -> Result<Self, PlatformError> {
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match parts[..] {
            [os, architecture] => (os, architecture, ""),
            [os, architecture, variant] if !variant.is_empty() => (os, architecture, variant),
            _ => return Err(PlatformError(text.to_owned())),
        };
        if os.is_empty() || architecture.is_empty() {
            return Err(PlatformError(text.to_owned()));
        }
        Ok(Self { os: os.to_owned(), architecture: architecture.to_owned(), variant: variant.to_owned() })
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.os, self.architecture)?;
        if self.variant.is_empty() { Ok(()) } else { write!(formatter, "/{}", self.variant) }
    }
}

fn arm_variant(cpuinfo: &str) -> &'static str {
    let field = |name: &str| {
        cpuinfo.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim())
        })
    };
    // The Raspberry Pi 1's kernel reports architecture 7 for an ARMv6 CPU; its model name is correct.
    if field("model name").is_some_and(|model| model.contains("ARMv6")) {
        return "v6";
    }
    match field("CPU architecture") {
        Some("5TE" | "5TEJ" | "5") => "v5",
        Some("6" | "6TEJ") => "v6",
        Some("8" | "AArch64") => "v8",
        _ => "v7",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        text.parse().unwrap()
    }

    #[test]
    fn platform_has_two_or_three_parts() {
        assert_eq!(platform("linux/arm/v7").to_string(), "linux/arm/v7");
        for text in ["", "linux", "linux/", "/arm", "linux/arm/", "linux/arm/v7/x"] {
            assert_eq!(text.parse::<Platform>(), Err(PlatformError(text.to_owned())));
        }
    }

    #[test]
    fn the_best_of_what_runs_is_chosen() {
        for (here, offered, expected) in [
            ("linux/arm/v7", "linux/arm/v5 linux/arm/v6 linux/arm/v7 linux/arm64", Some("linux/arm/v7")),
            ("linux/arm/v6", "linux/arm/v5 linux/arm/v7 linux/arm/v6", Some("linux/arm/v6")),
            ("linux/arm/v6", "linux/arm/v7 linux/arm/v5", Some("linux/arm/v5")),
            ("linux/arm/v6", "linux/arm", None),
            ("linux/arm64/v8", "linux/arm/v7 linux/arm64", Some("linux/arm64")),
            ("linux/arm64/v8", "linux/amd64 linux/arm/v6 linux/arm/v7", Some("linux/arm/v7")),
            ("linux/amd64", "linux/amd64/v3 linux/amd64", Some("linux/amd64")),
            ("linux/amd64", "windows/amd64 unknown/unknown", None),
        ] {
            let here = platform(here);
            let best = offered
                .split(' ')
                .filter_map(|text| Some((here.rank(&platform(text))?, text)))
                .min_by_key(|(rank, _)| *rank);
            assert_eq!(best.map(|(_, text)| text), expected, "{here}: {offered}");
        }
    }

    #[test]
    fn configurations_with_odd_names_may_run() {
        for (here, configured) in [
            ("linux/amd64", "linux/amd64 linux/x86_64 linux/386 linux/i386 Linux/AMD64 linux/amd64/v3"),
            ("linux/arm64/v8", "linux/arm64 linux/aarch64 linux/arm64/8 linux/arm/v7 linux/armhf linux/arm"),
            ("linux/arm/v7", "linux/arm linux/arm/v7 linux/armv7 linux/armv7l linux/armhf linux/arm/v6"),
            ("linux/arm/v6", "linux/arm linux/arm/v7 linux/armel"),
        ] {
            for text in configured.split(' ') {
                assert!(platform(here).may_run(&platform(text)), "{text} on {here}");
            }
            assert!(platform(here).may_run(&Platform::default()));
        }
        for (here, configured) in [
            ("linux/amd64", "linux/arm64 linux/arm/v7 windows/amd64 linux/riscv64"),
            ("linux/arm64/v8", "linux/amd64 linux/x86_64 linux/386 windows/arm64"),
            ("linux/arm/v7", "linux/arm64 linux/aarch64 linux/amd64"),
            ("linux/riscv64", "linux/riscv32 linux/arm64"),
        ] {
            for text in configured.split(' ') {
                assert!(!platform(here).may_run(&platform(text)), "{text} on {here}");
            }
        }
    }

    #[test]
    fn variants_are_read_from_the_cpu() {
        let pi_zero = "model name\t: ARMv6-compatible processor rev 7 (v6l)\nCPU architecture: 7\n";
        assert_eq!(Platform::of("arm", pi_zero).to_string(), "linux/arm/v6");
        assert_eq!(Platform::of("arm", "CPU architecture: 7\n").to_string(), "linux/arm/v7");
        assert_eq!(Platform::of("aarch64", "").to_string(), "linux/arm64/v8");
        assert_eq!(Platform::of("x86_64", "").to_string(), "linux/amd64");
    }
}
