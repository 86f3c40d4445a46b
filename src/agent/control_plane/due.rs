//! When certificates of a control plane are renewed, and which static pods have to be restarted then.
//!
//! Pure: lifetimes and times in, decisions out.

use std::time::Duration;

use crate::cluster::pki::deadline::Validity;
use crate::model::types::Timestamp;
use crate::serve::server::pki::FLOOR;

/// Files that are read once, and the component that has to be restarted for them. kube-apiserver reads the files of its
/// flags again by itself, with each connection or within minutes; so does etcd. The other kubeconfigs are for people.
pub(super) const READ_AT_START: [(&str, &str); 2] =
    [("controller-manager.conf", "kube-controller-manager"), ("scheduler.conf", "kube-scheduler")];

pub(super) const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// When less than 30 % of its life is left. What this program and kubeadm sign may begin to be valid years before it was
/// signed, so a life counts as no longer than `period`, for which certificates are signed.
#[must_use]
pub(super) fn renews_at(validity: Validity, period: Duration) -> Timestamp {
    let life = validity.not_after.saturating_since(validity.not_before).min(period);
    validity.not_after.saturating_sub(life * 3 / 10)
}

/// A clock before [`FLOOR`] is wrong: nothing is due by it.
#[must_use]
pub(super) fn is_due(validity: Validity, period: Duration, now: Timestamp) -> bool {
    now >= FLOOR.max(renews_at(validity, period))
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookOutcome {
    Quiet,
    /// Something was renewed, or the agent has just started: static pods may have to be restarted once they run.
    Changed,
    Failed,
}

/// When to look again, with the next time at which a certificate is due.
#[must_use]
pub(super) fn next_look(due: Option<Timestamp>, outcome: LookOutcome, now: Timestamp) -> Timestamp {
    let latest = now.saturating_add(match outcome {
        LookOutcome::Quiet => DAY,
        LookOutcome::Changed => MINUTE,
        LookOutcome::Failed => HOUR,
    });
    due.filter(|due| *due > now).map_or(latest, |due| due.min(latest))
}

/// Whether a container that started then may have read an earlier version of a file. Both are whole seconds: one that started
/// in the second of the change may have, and is not restarted before that second is over.
#[must_use]
pub(super) fn is_outdated(started: Timestamp, modified: Timestamp, now: Timestamp) -> bool {
    started >= FLOOR && started <= modified && modified.saturating_add(SECOND) <= now
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNED: Timestamp = Timestamp::from_secs(1_795_305_600);
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

    fn after(days: u64) -> Timestamp {
        SIGNED.saturating_add(DAY * u32::try_from(days).unwrap())
    }

    fn lasting(not_before: Timestamp, days: u64) -> Validity {
        Validity { not_before, not_after: after(days) }
    }

    #[test]
    fn a_certificate_is_due_when_less_than_30_percent_are_left() {
        // Signed by kubeadm; by this program; in a kubeconfig of kubeadm, which begins with its authority.
        for not_before in [SIGNED, FLOOR, Timestamp::from_secs(1_500_000_000)] {
            let year = lasting(not_before, 365);
            assert!(!is_due(year, YEAR, after(255)) && is_due(year, YEAR, after(256)), "{not_before:?}");
            assert!(is_due(year, YEAR, after(400)), "expired");
        }
        let month = lasting(SIGNED, 30);
        assert!(!is_due(month, YEAR, after(20)) && is_due(month, YEAR, after(21)));
        let begins_earlier = lasting(FLOOR, 30);
        assert!(is_due(begins_earlier, YEAR, SIGNED), "its life is not known, so it is renewed for a year");
        assert!(!is_due(begins_earlier, DAY * 30, after(20)) && is_due(begins_earlier, DAY * 30, after(21)));
        assert!(
            !is_due(lasting(SIGNED, 3650), YEAR, after(3000)),
            "what is signed for longer is kept for longer"
        );
    }

    #[test]
    fn a_clock_that_is_behind_renews_nothing() {
        let expired = Validity { not_before: Timestamp::from_secs(0), not_after: Timestamp::from_secs(10) };
        for now in [0, 11, 1_767_225_599] {
            assert!(!is_due(expired, YEAR, Timestamp::from_secs(now)), "{now}");
        }
        assert!(is_due(expired, YEAR, FLOOR));
    }

    #[test]
    fn what_was_renewed_is_not_due_and_looks_are_in_the_future() {
        for seconds in (0..20_000).step_by(7) {
            let period = Duration::from_secs(3600 + seconds);
            let renewed = Validity { not_before: FLOOR, not_after: SIGNED.saturating_add(period) };
            assert!(!is_due(renewed, period, SIGNED), "{seconds}");
            let due = renews_at(renewed, period);
            let next = next_look(Some(due), LookOutcome::Quiet, SIGNED);
            assert!(next > SIGNED && next <= due && due < renewed.not_after);
        }
    }

    #[test]
    fn looks_are_rare_unless_something_happened() {
        assert_eq!(next_look(None, LookOutcome::Quiet, SIGNED), after(1));
        assert_eq!(next_look(Some(after(300)), LookOutcome::Quiet, SIGNED), after(1));
        assert_eq!(next_look(Some(SIGNED), LookOutcome::Failed, SIGNED), SIGNED.saturating_add(HOUR));
        assert_eq!(next_look(Some(after(300)), LookOutcome::Changed, SIGNED), SIGNED.saturating_add(MINUTE));
    }

    #[test]
    fn a_component_is_outdated_until_it_has_started_after_the_file() {
        let (start, written, later) = (after(1), after(2), after(3));
        assert!(is_outdated(start, written, later));
        assert!(is_outdated(written, written, later), "in the same second");
        assert!(!is_outdated(later, written, later), "restarted");
        assert!(!is_outdated(start, later, written), "a file of the future");
        assert!(!is_outdated(start, written, written), "a start now would be in the same second");
        assert!(!is_outdated(Timestamp::from_secs(9), written, later), "a start that has no time");
    }
}
