//! System call numbers by name, for the supported architectures and the other ABIs that their kernels run.
//!
//! Data from the kernel's headers as text (13 kB): parsed when a profile is compiled, once per profile.

/// A system call ABI; a machine may have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Abi {
    X86_64,
    X86,
    X32,
    Arm,
    Aarch64,
}

/// Name, then numbers of x86_64, x86, arm (EABI) and aarch64.
const TABLE: &str = include_str!("syscalls.txt");

/// Calls of x32 whose numbers, from 512 on, differ from x86_64.
const X32_OWN: [&str; 36] = [
    "rt_sigaction",
    "rt_sigreturn",
    "ioctl",
    "readv",
    "writev",
    "recvfrom",
    "sendmsg",
    "recvmsg",
    "execve",
    "ptrace",
    "rt_sigpending",
    "rt_sigtimedwait",
    "rt_sigqueueinfo",
    "sigaltstack",
    "timer_create",
    "mq_notify",
    "kexec_load",
    "waitid",
    "set_robust_list",
    "get_robust_list",
    "vmsplice",
    "move_pages",
    "preadv",
    "pwritev",
    "rt_tgsigqueueinfo",
    "recvmmsg",
    "sendmmsg",
    "process_vm_readv",
    "process_vm_writev",
    "setsockopt",
    "getsockopt",
    "io_setup",
    "io_submit",
    "execveat",
    "preadv2",
    "pwritev2",
];

/// Set in the numbers of x32 calls.
pub(super) const X32_BIT: u32 = 0x4000_0000;

impl Abi {
    /// `AUDIT_ARCH_…`, the kernel's value for the ABI in `seccomp_data`.
    pub(super) fn audit(self) -> u32 {
        match self {
            Self::X86_64 | Self::X32 => 0xc000_003e,
            Self::X86 => 0x4000_0003,
            Self::Arm => 0x4000_0028,
            Self::Aarch64 => 0xc000_00b7,
        }
    }

    /// `SCMP_ARCH_…`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "SCMP_ARCH_X86_64",
            Self::X86 => "SCMP_ARCH_X86",
            Self::X32 => "SCMP_ARCH_X32",
            Self::Arm => "SCMP_ARCH_ARM",
            Self::Aarch64 => "SCMP_ARCH_AARCH64",
        }
    }

    /// Whether arguments have 64 bits.
    pub(super) fn is_wide(self) -> bool {
        !matches!(self, Self::X86 | Self::Arm)
    }

    fn column(self) -> usize {
        match self {
            Self::X86_64 | Self::X32 => 0,
            Self::X86 => 1,
            Self::Arm => 2,
            Self::Aarch64 => 3,
        }
    }
}

pub(super) struct Table(Vec<(&'static str, [Option<u32>; 4])>);

impl Table {
    pub(super) fn new() -> Self {
        let row = |line: &'static str| {
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_default();
            (name, [(); 4].map(|()| words.next().and_then(|word| word.parse().ok())))
        };
        Self(TABLE.lines().map(row).collect())
    }

    /// The number of a call; `None` when this ABI has no such call, or the call is unknown.
    pub(super) fn number(&self, name: &str, abi: Abi) -> Option<u32> {
        if abi == Abi::X32
            && let Some(at) = X32_OWN.iter().position(|own| *own == name)
        {
            return u32::try_from(at).ok().map(|at| X32_BIT + 512 + at);
        }
        let at = self.0.binary_search_by(|row| row.0.cmp(name)).ok()?;
        let number = self.0[at].1[abi.column()]?;
        Some(if abi == Abi::X32 { number | X32_BIT } else { number })
    }

    /// Every number of an ABI.
    #[cfg(test)]
    pub(super) fn numbers(&self, abi: Abi) -> Vec<u32> {
        self.0.iter().filter_map(|row| self.number(row.0, abi)).collect()
    }
}
