//! Seccomp profiles to BPF programs: what libseccomp does for other runtimes, without it.
//!
//! Owns the compiler and the default profile. Pure. A filter covers the node's interface and those of its
//! profile's architectures that this kernel also runs; a call by any other kills the process. Where several
//! rules match, the first of the profile counts. Calls that nobody knows are skipped, as runc does, so that
//! profiles may be newer than we are.

mod compile;
mod default;
mod profile;
mod table;

pub use compile::compile;
pub use default::default_profile;
pub use profile::{Subject, parse_profile, to_oci};

use table::Abi;

const EPERM: u16 = 1;

/// What the program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// With x86 and x32.
    X86_64,
    Aarch64,
    Arm,
}

impl Arch {
    /// The one this program is built for; `None` where we know no numbers.
    #[must_use]
    pub fn node() -> Option<Self> {
        if cfg!(all(target_arch = "x86_64", target_pointer_width = "64")) {
            Some(Self::X86_64)
        } else if cfg!(all(target_arch = "aarch64", target_endian = "little")) {
            Some(Self::Aarch64)
        } else if cfg!(all(target_arch = "arm", target_endian = "little")) {
            Some(Self::Arm)
        } else {
            None
        }
    }

    /// Interfaces its kernels have, its own first.
    fn abis(self) -> impl Iterator<Item = Abi> {
        let all: &[Abi] = match self {
            Self::X86_64 => &[Abi::X86_64, Abi::X86, Abi::X32],
            Self::Aarch64 => &[Abi::Aarch64, Abi::Arm],
            Self::Arm => &[Abi::Arm],
        };
        all.iter().copied()
    }

    /// Names in conditions of Docker's profiles.
    fn is_named(self, name: &str) -> bool {
        match self {
            Self::X86_64 => matches!(name, "amd64" | "x86_64"),
            Self::Aarch64 => matches!(name, "arm64" | "aarch64"),
            Self::Arm => name == "arm",
        }
    }
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The process dies.
    KillProcess,
    /// The thread dies.
    KillThread,
    Trap,
    /// The call fails with this number.
    Errno(u16),
    /// A tracer is asked, with this number; without one the call fails.
    Trace(u16),
    /// Goes through, and is logged.
    Log,
    Allow,
}

/// How an argument is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `SCMP_CMP_EQ`
    Equal,
    /// `SCMP_CMP_NE`
    NotEqual,
    /// `SCMP_CMP_LT`
    Less,
    /// `SCMP_CMP_LE`
    LessEqual,
    /// `SCMP_CMP_GE`
    GreaterEqual,
    /// `SCMP_CMP_GT`
    Greater,
    /// `SCMP_CMP_MASKED_EQ`: argument and `value` is `value_two`.
    MaskedEqual,
}

/// One argument of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// 0..6
    pub index: u8,
    pub value: u64,
    /// For `MaskedEqual`.
    pub value_two: u64,
    pub operator: Operator,
}

/// What happens to some calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub names: Vec<String>,
    pub action: Action,
    /// All must hold, each for an argument of its own; when an argument has several, one must, as runc has
    /// it.
    pub args: Vec<Condition>,
}

/// A profile, with what does not concern its container left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// For calls without a rule.
    pub default_action: Action,
    /// `SCMP_ARCH_…`; empty for the node's own.
    pub architectures: Vec<String>,
    /// `SECCOMP_FILTER_FLAG_…`, for external runtimes.
    pub flags: Vec<String>,
    /// The first that matches counts.
    pub rules: Vec<Rule>,
}

/// Why a profile is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SeccompError {
    #[error("seccomp profile {file}: {field}: {why}")]
    Field {
        /// Of the profile.
        file: String,
        /// For example `syscalls[2].args[0].op`.
        field: String,
        /// What is wrong with it.
        why: String,
    },
    /// More than the kernel takes.
    #[error(
        "the compiled filter has {0} instructions, more than the kernel limit of 4096: use fewer rules with \
         arguments"
    )]
    TooLong(usize),
}

#[cfg(test)]
mod tests;
