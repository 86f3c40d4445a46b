//! When a certificate is renewed, whether it can be used, and with which one a node begins.
//!
//! Pure: validity and the time in, moments and decisions out.

use std::time::Duration;

use crate::model::types::Timestamp;
use crate::platform::x509::{CERTIFICATE, not_after, not_before, pem_blocks};

/// A box that was offline for more of a certificate's life than this renews early: the next window may be the
/// last one.
const MOSTLY_OFFLINE: f64 = 0.5;

/// First and last moment of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

/// The time in which all certificates of a PEM text are valid; `None` when there is none or one is broken.
#[must_use]
pub(crate) fn validity(pem: &str) -> Option<Validity> {
    let mut found: Option<Validity> = None;
    for der in pem_blocks(pem, CERTIFICATE) {
        let one = Validity { not_before: not_before(&der)?, not_after: not_after(&der)? };
        found = Some(found.map_or(one, |all| Validity {
            not_before: all.not_before.max(one.not_before),
            not_after: all.not_after.min(one.not_after),
        }));
    }
    found
}

/// Whether a certificate can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usability {
    /// The clock is behind: it is used, as upstream does, which looks at the end alone.
    NotYet,
    Usable,
    Expired,
}

#[must_use]
pub(crate) fn usable(validity: Validity, now: Timestamp) -> Usability {
    if now > validity.not_after {
        Usability::Expired
    } else if now < validity.not_before {
        Usability::NotYet
    } else {
        Usability::Usable
    }
}

/// When a certificate is renewed: after 70 to 90 percent of its life by `unit` (0 to 1), so that a fleet does not
/// ask all at once; after half of it when the box was `offline` for most of the time that has passed of it.
#[must_use]
pub(crate) fn next(validity: Validity, unit: f64, offline: Duration, now: Timestamp) -> Timestamp {
    let life = validity.not_after.saturating_since(validity.not_before);
    let passed = now.saturating_since(validity.not_before);
    let is_away = offline.as_secs_f64() > passed.as_secs_f64() * MOSTLY_OFFLINE;
    let share = if is_away { 0.5 } else { 0.7 + 0.2 * unit.clamp(0.0, 1.0) };
    validity.not_before.saturating_add(Duration::from_secs_f64(life.as_secs_f64() * share))
}

/// The client certificate that a kubeconfig names, and its key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct NamedPair {
    pub certificate: String,
    /// PEM; may be the same text.
    pub key: String,
    /// In the kubeconfig itself, not in files.
    pub is_embedded: bool,
}

/// What a node begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// The kubeconfig as it is; the node's certificates, if it has any, are its owner's business.
    AsItIs,
    /// The pair in the certificate directory.
    Stored,
    /// The kubeconfig's pair: put into the certificate directory and renewed at once, because others may have
    /// it, too.
    Primed,
    /// The kubeconfig is written so that it names a certificate to come, which the bootstrap credentials ask for.
    Bootstrap,
    /// There is a kubeconfig whose certificate has expired, and nothing to ask for another with.
    Expired,
}

/// Decides by the kubeconfig's pair (`None`: no kubeconfig, or one that names no certificate), the certificate that
/// is stored (PEM), whether there are bootstrap credentials, and `rotateCertificates`.
#[must_use]
pub(crate) fn beginning(
    named: Option<&NamedPair>,
    stored: Option<&str>,
    has_bootstrap: bool,
    rotate: bool,
    now: Timestamp,
) -> Beginning {
    let holds = |pem: &str| validity(pem).is_some_and(|validity| usable(validity, now) != Usability::Expired);
    let Some(named) = named else {
        return if has_bootstrap { Beginning::Bootstrap } else { Beginning::AsItIs };
    };
    if rotate && stored.is_some_and(holds) {
        return Beginning::Stored;
    }
    match (holds(&named.certificate), rotate) {
        (true, true) if named.is_embedded => Beginning::Primed,
        (true, _) => Beginning::AsItIs,
        (false, _) if has_bootstrap => Beginning::Bootstrap,
        (false, _) => Beginning::Expired,
    }
}

#[cfg(test)]
mod tests;
