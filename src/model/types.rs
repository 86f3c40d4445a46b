//! Names and small values every module shares: ids, the pod's identity, sources, time stamps.
//!
//! Owns nothing.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::model::api::record::{Name, Shown, plain, record};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The id as the wire carries it.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// True for the default value, which stands for an unset id.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        plain! { $name: value => Shown::Text(&value.0); }

        impl Name for $name {
            fn text(&self) -> &str {
                &self.0
            }

            fn from_text(text: String) -> Self {
                Self(text)
            }
        }
    )*};
}

ids! {
    /// `metadata.uid` of a pod. For static pods it is a hash of content, path and node (design 2.9).
    PodUid;
    /// The runtime's id of a pod sandbox.
    SandboxId;
    /// The runtime's id of a container, without the `containerd://` prefix.
    ContainerId;
    /// `name` of a container within its pod; unique over containers, init containers and ephemeral
    /// containers.
    ContainerName;
    /// `name_namespace`: at most one pod of a full name may run at a time.
    PodFullName;
}

impl PodUid {
    /// Longest UID that fits, with the agent's prefixes and suffixes, into the name of a file or of a systemd
    /// unit.
    const MAX: usize = 128;

    /// True when the UID can name directories and cgroups of this node: it must be a single path component,
    /// since users can choose it.
    #[must_use]
    pub(crate) fn is_safe(&self) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        (1..=Self::MAX).contains(&self.0.len()) && !self.0.starts_with('.') && self.0.bytes().all(is_plain)
    }
}

record! {
    /// The identity of a pod in log lines, events and statuses.
    #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub struct PodRef as snake_case {
        /// `metadata.namespace`.
        pub namespace: String,
        /// `metadata.name`.
        pub name: String,
        /// `metadata.uid`.
        pub uid: PodUid,
    }
}

impl PodRef {
    /// The key under which incarnations of a pod wait for each other.
    #[must_use]
    pub(crate) fn full_name(&self) -> PodFullName {
        PodFullName(format!("{}_{}", self.name, self.namespace))
    }
}

/// The kubelet's own form: `name_namespace(uid)`.
impl fmt::Display for PodRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}_{}({})", self.name, self.namespace, self.uid)
    }
}

/// The source of a pod; the value of the annotation `kubernetes.io/config.source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodSource {
    /// `staticPodPath`.
    File,
    /// `staticPodURL`.
    Http,
    /// The node's own API.
    Api,
    /// The apiserver of the cluster that the node has joined.
    Cluster,
}

impl PodSource {
    /// The annotation's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Api => "api",
            Self::Cluster => "cluster",
        }
    }

    /// Upstream's word for it, for clients of the kubelet's API.
    #[must_use]
    pub(crate) fn shown(self) -> &'static str {
        match self {
            Self::Cluster => Self::Api.as_str(),
            other => other.as_str(),
        }
    }

    /// The source that an annotation or a row of the store names; `None` for an unknown name.
    #[must_use]
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "file" => Some(Self::File),
            "http" => Some(Self::Http),
            "api" => Some(Self::Api),
            "cluster" => Some(Self::Cluster),
            _ => None,
        }
    }
}

impl fmt::Display for PodSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Wall-clock time in nanoseconds since the Unix epoch. Serialised as RFC 3339 in UTC with whole seconds, as
/// `metav1.Time` is. Nanoseconds hold the years 1677 to 2262; reading clamps to that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From nanoseconds since the epoch, as CRI carries times.
    #[must_use]
    pub(crate) const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// From whole seconds since the epoch.
    #[must_use]
    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// True for the zero time, which CRI uses for "has not happened".
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Time passed since `earlier`; zero when the clock went backwards.
    #[must_use]
    pub fn saturating_since(self, earlier: Self) -> Duration {
        let nanos = i128::from(self.0) - i128::from(earlier.0);
        Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }

    /// This much later, clamped at the end of time.
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// This much earlier, clamped at the beginning of time.
    #[must_use]
    pub(crate) fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// RFC 3339 with whole seconds, `2026-11-20T16:00:00Z`.
    #[must_use]
    pub(crate) fn to_rfc3339(self) -> String {
        Self(self.0.saturating_sub(self.0.rem_euclid(1_000_000_000))).to_rfc3339_nano()
    }

    /// RFC 3339 with as many fractional digits as the time has.
    #[must_use]
    pub fn to_rfc3339_nano(self) -> String {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0))
            .ok()
            .and_then(|moment| moment.format(&Rfc3339).ok())
            .unwrap_or_default()
    }

    /// Reads RFC 3339 with any offset; `None` when it is not that.
    #[must_use]
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let moment = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        let nanos = moment.unix_timestamp_nanos().clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        Some(Self(i64::try_from(nanos).unwrap_or_default()))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.to_rfc3339())
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_rfc3339())
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse_rfc3339(&text).ok_or_else(|| {
            serde::de::Error::custom(format_args!("{text:?} is not a time such as 2006-01-02T15:04:05Z"))
        })
    }
}

plain! { Timestamp }

/// A duration as Go prints it, which is how Kubernetes' messages show durations: `1.5s`, `5m0s`, `2h45m0s`,
/// `300ms`.
#[must_use]
pub(crate) fn go_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let fraction = |whole: u128, unit: u128, suffix: &str| {
        let digits = unit.to_string().len() - 1;
        let text = format!("{}.{:0digits$}", whole / unit, whole % unit);
        format!("{}{suffix}", text.trim_end_matches('0').trim_end_matches('.'))
    };
    match nanos {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => fraction(nanos, 1_000, "µs"),
        1_000_000..1_000_000_000 => fraction(nanos, 1_000_000, "ms"),
        _ => {
            let seconds = fraction(nanos % 60_000_000_000, 1_000_000_000, "s");
            match (nanos / 3_600_000_000_000, nanos / 60_000_000_000 % 60) {
                (0, 0) => seconds,
                (0, minutes) => format!("{minutes}m{seconds}"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
            }
        }
    }
}

/// The streams of a process that a client attaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Streams {
    /// The client writes to it.
    pub stdin: bool,
    /// The client reads it.
    pub stdout: bool,
    /// The client reads its errors; never with `tty`.
    pub stderr: bool,
    /// The process has a terminal, whose size can change.
    pub tty: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_round_trips_through_rfc3339_nano() {
        let moment = Timestamp::from_nanos(1_700_000_000_123_456_789);
        assert_eq!(moment.to_rfc3339(), "2023-11-14T22:13:20Z");
        assert_eq!(Timestamp::parse_rfc3339(&moment.to_rfc3339_nano()), Some(moment));
        assert_eq!(Timestamp::parse_rfc3339("yesterday"), None);
        assert_eq!(Timestamp::from_nanos(-1).to_rfc3339(), "1969-12-31T23:59:59Z");
    }

    #[test]
    fn a_source_is_stored_by_its_own_name_and_shown_by_upstreams() {
        for (source, shown) in [
            (PodSource::File, "file"),
            (PodSource::Http, "http"),
            (PodSource::Api, "api"),
            (PodSource::Cluster, "api"),
        ] {
            assert_eq!(PodSource::from_name(source.as_str()), Some(source));
            assert_eq!(source.shown(), shown);
        }
    }

    #[test]
    fn durations_print_as_go_prints_them() {
        for (millis, text) in [
            (0, "0s"),
            (300, "300ms"),
            (1500, "1.5s"),
            (10_000, "10s"),
            (300_000, "5m0s"),
            (9_905_250, "2h45m5.25s"),
        ] {
            assert_eq!(go_duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(go_duration(Duration::from_nanos(1_500)), "1.5µs");
    }

    #[test]
    fn time_since_a_later_moment_saturates_to_zero() {
        let late = Timestamp::from_secs(100);
        assert_eq!(Timestamp::from_secs(40).saturating_since(late), Duration::ZERO);
        assert_eq!(late.saturating_since(Timestamp::from_secs(40)), Duration::from_secs(60));
    }
}
