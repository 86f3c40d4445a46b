//! The configuration being validated, and checks of single values.

use std::net::IpAddr;

use crate::agent::config::error::Findings;
use crate::agent::config::fields::KubeletConfiguration;
use crate::agent::config::gates::FeatureGates;
use crate::model::duration::GoDuration;

pub(super) struct Check<'a> {
    pub(super) config: &'a KubeletConfiguration,
    pub(super) gates: &'a FeatureGates,
    pub(super) findings: Findings,
}

impl Check<'_> {
    /// The value must lie within both ends.
    pub(super) fn range(&mut self, field: &str, value: impl Into<i64>, low: i64, high: i64) {
        let value = value.into();
        if value < low || value > high {
            let wanted = match (low, high) {
                (low, i64::MAX) => format!("{low} or more"),
                (low, high) => format!("between {low} and {high}"),
            };
            self.findings.add(field, format!("{value} is out of range; use {wanted}"));
        }
    }

    /// The value must be one of the words.
    pub(super) fn one_of(&mut self, field: &str, value: &str, words: &[&str]) {
        if !words.contains(&value) {
            let words = words.iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join(", ");
            self.findings.add(field, format!("{value:?} is not supported; use one of: {words}"));
        }
    }

    pub(super) fn duration_range(
        &mut self,
        field: &str,
        value: GoDuration,
        low: GoDuration,
        high: GoDuration,
    ) {
        if value < low || value > high {
            self.findings.add(field, format!("{value} is out of range; use between {low} and {high}"));
        }
    }

    pub(super) fn ip(&mut self, field: &str, value: &str) {
        if value.parse::<IpAddr>().is_err() {
            self.findings.add(field, format!("{value:?} is not a valid IP address, such as 127.0.0.1 or ::"));
        }
    }
}
