//! Options of mounts: words of `mount(8)` and of the OCI runtime specification to attributes and data. Pure.

use crate::platform::sys::mount_tree::{
    ATIME, MountAttributes, NO_ATIME, NO_DEV, NO_DIRATIME, NO_EXEC, NO_SUID, NO_SYMFOLLOW, Propagation,
    READ_ONLY, STRICT_ATIME,
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::runtime) struct MountOptions {
    /// A bind; recursive if true.
    pub bind: Option<bool>,
    /// Of the mount alone.
    pub attributes: MountAttributes,
    /// Of everything mounted below, too.
    pub recursive: MountAttributes,
    /// Propagation types, each with whether it is recursive.
    pub propagation: Vec<(Propagation, bool)>,
    /// Shows owners as the pod's user namespace maps them; of what is below too, if true.
    pub id_map: Option<bool>,
    /// The file system's own: names, and values where they have one.
    pub data: Vec<(String, Option<String>)>,
}

impl MountOptions {
    /// Sorts options. Words that no kernel knows are left for the kernel to refuse.
    #[must_use]
    pub(in crate::runtime) fn parse(options: &[String]) -> Self {
        let mut parsed = Self::default();
        for option in options.iter().flat_map(|option| option.split(',')).filter(|option| !option.is_empty())
        {
            parsed.take(option);
        }
        parsed
    }

    fn take(&mut self, option: &str) {
        if let Some((bits, is_set)) = attribute(option) {
            return apply(&mut self.attributes, bits, is_set);
        }
        // `rro`, `rnosuid`...: the same for everything below.
        if let Some((bits, is_set)) = option.strip_prefix('r').and_then(attribute) {
            return apply(&mut self.recursive, bits, is_set);
        }
        if let Some(kind) = propagation(option) {
            return self.propagation.push((kind, false));
        }
        if let Some(kind) = option.strip_prefix('r').and_then(propagation) {
            return self.propagation.push((kind, true));
        }
        match option {
            "bind" => self.bind = Some(self.bind.unwrap_or(false)),
            "rbind" => self.bind = Some(true),
            "idmap" => self.id_map = Some(self.id_map.unwrap_or(false)),
            "ridmap" => self.id_map = Some(true),
            // A mount that is read-only on the node stays so: `rw` only cancels an earlier `ro`.
            "rw" => self.attributes.set &= !READ_ONLY,
            "rrw" => self.recursive.set &= !READ_ONLY,
            "defaults" | "async" | "relatime" | "rrelatime" | "norelatime" | "remount" | "nomand" => {}
            other => match other.split_once('=') {
                Some((name, value)) => self.data.push((name.to_owned(), Some(value.to_owned()))),
                None => self.data.push((other.to_owned(), None)),
            },
        }
    }

    /// Whether the file system is given a value for `name`.
    #[must_use]
    pub(in crate::runtime) fn has(&self, name: &str) -> bool {
        self.data.iter().any(|(known, _)| known == name)
    }
}

fn apply(attributes: &mut MountAttributes, bits: u64, is_set: bool) {
    // The last word wins.
    let mask = if bits & ATIME != 0 { ATIME } else { bits };
    attributes.set &= !mask;
    attributes.clear &= !mask;
    if is_set {
        attributes.set |= bits;
    } else {
        attributes.clear |= mask;
    }
}

fn attribute(option: &str) -> Option<(u64, bool)> {
    Some(match option {
        "ro" => (READ_ONLY, true),
        "nosuid" => (NO_SUID, true),
        "suid" => (NO_SUID, false),
        "nodev" => (NO_DEV, true),
        "dev" => (NO_DEV, false),
        "noexec" => (NO_EXEC, true),
        "exec" => (NO_EXEC, false),
        "noatime" => (NO_ATIME, true),
        "strictatime" => (STRICT_ATIME, true),
        "atime" | "nostrictatime" => (NO_ATIME, false),
        "nodiratime" => (NO_DIRATIME, true),
        "diratime" => (NO_DIRATIME, false),
        "nosymfollow" => (NO_SYMFOLLOW, true),
        "symfollow" => (NO_SYMFOLLOW, false),
        _ => return None,
    })
}

fn propagation(option: &str) -> Option<Propagation> {
    Some(match option {
        "private" => Propagation::Private,
        "slave" => Propagation::Slave,
        "shared" => Propagation::Shared,
        "unbindable" => Propagation::Unbindable,
        _ => return None,
    })
}
