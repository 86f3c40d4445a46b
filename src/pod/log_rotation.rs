//! Rotation of long container logs: which file is renamed, and which are removed.
//!
//! Invariant: the file that is being written is never removed, and of the rotated files the oldest are
//! removed first. Names are upstream's (kubelet 1.36): `0.log` becomes `0.log.20261120-100000`. They are not
//! compressed.
//!
//! Pure: what it returns depends on its arguments alone.

use crate::model::ordered::Sortable as _;
use crate::model::types::Timestamp;

/// `containerLogMaxSize` and `containerLogMaxFiles`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogLimits {
    /// A log of this length is rotated; zero disables rotation.
    pub max_bytes: u64,
    /// Files of a container, including the one being written.
    pub max_files: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rotated<K> {
    pub key: K,
    pub written_at: Timestamp,
    pub bytes: u64,
}

/// Whether a log must be rotated now.
#[must_use]
pub(crate) fn is_long(bytes: u64, limits: LogLimits) -> bool {
    limits.max_bytes > 0 && bytes >= limits.max_bytes
}

/// The new name of `log`. It is never a `taken` one, even if the clock stands still.
#[must_use]
pub(super) fn rotated_name(log: &str, now: Timestamp, taken: impl Fn(&str) -> bool) -> String {
    let stamp: String = now.to_rfc3339().chars().filter(|c| !matches!(c, '-' | ':' | 'Z')).collect();
    let stamp = stamp.replace('T', "-");
    let stamp = stamp.split('.').next().unwrap_or_default();
    let plain = format!("{log}.{stamp}");
    let numbered = (2..u32::MAX).map(|number| format!("{plain}-{number}"));
    std::iter::once(plain.clone()).chain(numbered).find(|name| !taken(name)).unwrap_or(plain)
}

/// Whether `name` is a name that [`rotated_name`], or an earlier kubelet, has given to `log`.
#[must_use]
pub(super) fn is_rotated(log: &str, name: &str) -> bool {
    let rest = name.strip_prefix(log).and_then(|rest| rest.strip_prefix('.'));
    rest.is_some_and(|rest| rest.len() >= 15 && rest.as_bytes().iter().take(8).all(u8::is_ascii_digit))
}

/// The files to remove before one more is rotated: with it and the new log there are `max_files`.
#[must_use]
pub(crate) fn excess<K>(mut rotated: Vec<Rotated<K>>, limits: LogLimits) -> Vec<K> {
    rotated.order_by_key(|file| file.written_at);
    let keep = limits.max_files.saturating_sub(2);
    let count = rotated.len().saturating_sub(keep);
    rotated.into_iter().take(count).map(|file| file.key).collect()
}

/// The files to remove, of all containers, so that an eighth of the file system is free. `free` and `total`
/// are in bytes.
#[must_use]
pub(crate) fn room<K>(mut rotated: Vec<Rotated<K>>, free: u64, total: u64) -> Vec<K> {
    rotated.order_by_key(|file| file.written_at);
    let mut free = free;
    let mut goes = Vec::new();
    for file in rotated {
        if !is_tight(free, total) {
            break;
        }
        free = free.saturating_add(file.bytes);
        goes.push(file.key);
    }
    goes
}

/// Less than an eighth is free.
#[must_use]
pub(crate) fn is_tight(free: u64, total: u64) -> bool {
    free < total / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: LogLimits = LogLimits { max_bytes: 1000, max_files: 3 };

    fn rotated(ages: &[(i64, u64)]) -> Vec<Rotated<i64>> {
        let file = |(at, bytes): &(i64, u64)| Rotated {
            key: *at,
            written_at: Timestamp::from_secs(*at),
            bytes: *bytes,
        };
        ages.iter().map(file).collect()
    }

    #[test]
    fn log_is_rotated_at_its_size_limit_and_never_without_one() {
        assert!(!is_long(999, LIMITS) && is_long(1000, LIMITS));
        assert!(!is_long(u64::MAX, LogLimits { max_bytes: 0, ..LIMITS }));
    }

    #[test]
    fn names_are_upstreams_and_no_name_is_given_twice() {
        let now = Timestamp::from_secs(1_700_000_000);
        let name = rotated_name("0.log", now, |_| false);
        assert_eq!(name, "0.log.20231114-221320");
        let second = rotated_name("0.log", now, |taken| taken == name);
        assert_eq!(second, "0.log.20231114-221320-2");
        assert!(is_rotated("0.log", &name) && is_rotated("0.log", &second));
        assert!(is_rotated("0.log", "0.log.20231114-221320.gz"), "a kubelet's");
        for other in ["0.log", "10.log.20231114-221320", "0.log.tmp", "0.log.of-somebody-else"] {
            assert!(!is_rotated("0.log", other), "{other}");
        }
    }

    #[test]
    fn oldest_rotated_logs_are_removed_beyond_max_files() {
        assert_eq!(excess(rotated(&[(3, 1), (1, 1), (2, 1)]), LIMITS), [1, 2]);
        assert_eq!(excess(rotated(&[(3, 1)]), LIMITS), [0; 0]);
        assert_eq!(excess(rotated(&[(3, 1)]), LogLimits { max_files: 2, ..LIMITS }), [3]);
    }

    #[test]
    fn room_is_made_by_the_oldest_of_all_and_no_more_than_needed() {
        let files = || rotated(&[(5, 100), (4, 60), (6, 500)]);
        assert_eq!(room(files(), 100, 800), [0; 0]);
        assert_eq!(room(files(), 99, 800), [4]);
        assert_eq!(room(files(), 0, 800), [4, 5]);
        assert_eq!(room(files(), 0, 80_000), [4, 5, 6]);
    }
}
