//! Compiles seccomp profiles to BPF programs: libseccomp's job in other runtimes, without the library.
//!
//! Owns the compiler and the default profile. Pure. A filter covers the node's ABI and those of its profile's
//! architectures that this kernel also runs; a call by any other ABI kills the process. Where several rules
//! match, the first in the profile wins. Unknown system calls are skipped, as in runc, so that profiles may
//! be newer than this program.

mod compile;
mod default;
mod profile;
mod table;

pub(crate) use compile::compile;
pub(crate) use default::default_profile;
pub(crate) use profile::{Subject, parse_profile, to_oci};

use table::Abi;

const EPERM: u16 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arch {
    /// Including x86 and x32.
    X86_64,
    Aarch64,
    Arm,
}

impl Arch {
    /// The architecture of this build; `None` without a table of system calls.
    #[must_use]
    pub(in crate::runtime) fn node() -> Option<Self> {
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

    /// The ABIs that its kernels support, the native one first.
    fn abis(self) -> impl Iterator<Item = Abi> {
        let all: &[Abi] = match self {
            Self::X86_64 => &[Abi::X86_64, Abi::X86, Abi::X32],
            Self::Aarch64 => &[Abi::Aarch64, Abi::Arm],
            Self::Arm => &[Abi::Arm],
        };
        all.iter().copied()
    }

    /// Its names in conditions of Docker's profiles.
    fn is_named(self, name: &str) -> bool {
        match self {
            Self::X86_64 => matches!(name, "amd64" | "x86_64"),
            Self::Aarch64 => matches!(name, "arm64" | "aarch64"),
            Self::Arm => name == "arm",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    KillProcess,
    KillThread,
    Trap,
    /// The call fails with this error number.
    Errno(u16),
    /// A tracer decides, and gets this number; without a tracer the call fails.
    Trace(u16),
    /// The call is allowed and logged.
    Log,
    Allow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
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
pub(crate) struct Condition {
    /// 0..6
    pub index: u8,
    pub value: u64,
    /// For `MaskedEqual`.
    pub value_two: u64,
    pub operator: Operator,
}

/// The action for some calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub names: Vec<String>,
    pub action: Action,
    /// All must hold, each for an argument of its own; when several concern the same argument, one is enough,
    /// as in runc.
    pub args: Vec<Condition>,
}

/// A profile without the rules that do not apply to its container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    pub default_action: Action,
    /// `SCMP_ARCH_…`; empty for the node's own.
    pub architectures: Vec<String>,
    /// `SECCOMP_FILTER_FLAG_…`, for external runtimes.
    pub flags: Vec<String>,
    /// The first that matches wins.
    pub rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SeccompError {
    #[error("seccomp profile {file}: {field}: {why}")]
    Field {
        /// Of the profile.
        file: String,
        /// For example `syscalls[2].args[0].op`.
        field: String,
        why: String,
    },
    #[error(
        "the compiled filter has {0} instructions, more than the kernel limit of 4096: use fewer rules with \
         arguments"
    )]
    TooLong(usize),
}

#[cfg(test)]
mod tests;
