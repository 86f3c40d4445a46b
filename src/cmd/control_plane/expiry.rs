//! The report of certificates and when they end.
//!
//! Pure: what was found and the time in, text out. Owns kubeadm's names and form.

use serde_json::{Value, json};

use super::output::Output;
use super::tokens::record::human;
use crate::cmd::cli::columns;
use crate::model::types::Timestamp;

/// A certificate, or the place of one that is not there.
pub(super) struct Found {
    pub name: String,
    /// Empty of an authority.
    pub authority: String,
    /// `None`: it is not there.
    pub expires: Option<Timestamp>,
    pub is_external: bool,
}

const LONG_NAMES: [(&str, &str); 11] = [
    ("admin.conf", "certificate embedded in the kubeconfig file for the admin to use and for kubeadm itself"),
    ("apiserver", "certificate for serving the Kubernetes API"),
    ("apiserver-etcd-client", "certificate the apiserver uses to access etcd"),
    ("apiserver-kubelet-client", "certificate for the API server to connect to kubelet"),
    (
        "controller-manager.conf",
        "certificate embedded in the kubeconfig file for the controller manager to use",
    ),
    ("etcd-healthcheck-client", "certificate for liveness probes to healthcheck etcd"),
    ("etcd-peer", "certificate for etcd nodes to communicate with each other"),
    ("etcd-server", "certificate for serving etcd"),
    ("front-proxy-client", "certificate for the front proxy client"),
    ("scheduler.conf", "certificate embedded in the kubeconfig file for the scheduler manager to use"),
    ("super-admin.conf", "certificate embedded in the kubeconfig file for the super-admin"),
];

#[must_use]
pub(super) fn long_name(name: &str) -> &'static str {
    LONG_NAMES.iter().find(|(known, _)| *known == name).map_or("certificate", |(_, long)| long)
}

#[must_use]
pub(super) fn report(leaves: &[Found], authorities: &[Found], form: Output, now: Timestamp) -> String {
    if form == Output::Text {
        let leaves = table(leaves, true, now);
        return [leaves.as_str(), "\n", &table(authorities, false, now)].concat();
    }
    let list = |found: &[Found]| found.iter().map(|one| shown(one, now)).collect::<Vec<_>>();
    let report = json!({
        "apiVersion": "output.kubeadm.k8s.io/v1alpha3", "kind": "CertificateExpirationInfo",
        "certificates": list(leaves), "certificateAuthorities": list(authorities),
    });
    form.documents(&[report])
}

fn table(found: &[Found], are_leaves: bool, now: Timestamp) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let header = ["CERTIFICATE", "EXPIRES", "RESIDUAL TIME", "CERTIFICATE AUTHORITY", "EXTERNALLY MANAGED"];
    let mut add = |mut cells: Vec<String>| {
        if !are_leaves {
            cells.remove(3);
        }
        rows.push(cells);
    };
    let mut first = header.map(str::to_owned).to_vec();
    if !are_leaves {
        "CERTIFICATE AUTHORITY".clone_into(&mut first[0]);
    }
    add(first);
    for one in found {
        let Some(expires) = one.expires else {
            add([&format!("!MISSING! {}", one.name), "", "", "", ""].map(str::to_owned).to_vec());
            continue;
        };
        let left = expires.saturating_since(now).as_secs();
        let left = if left == 0 { "<invalid>".to_owned() } else { human(left) };
        let is_external = if one.is_external { "yes" } else { "no" };
        add([one.name.as_str(), &date(expires), &left, &one.authority, is_external]
            .map(str::to_owned)
            .to_vec());
    }
    columns(&rows)
}

/// `Nov 27, 2027 04:21 UTC`.
fn date(at: Timestamp) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let text = at.to_rfc3339();
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default();
    let month = part(5, 7).parse::<usize>().ok().and_then(|month| MONTHS.get(month.checked_sub(1)?));
    format!("{} {}, {} {} UTC", month.unwrap_or(&""), part(8, 10), part(0, 4), part(11, 16))
}

fn shown(one: &Found, now: Timestamp) -> Value {
    let mut shown = json!({
        "name": one.name,
        "expirationDate": one.expires.map(Timestamp::to_rfc3339),
        "residualTime": one.expires.map_or(0, |expires| expires.saturating_since(now).as_secs()),
        "externallyManaged": one.is_external,
        "missing": one.expires.is_none(),
    });
    if !one.authority.is_empty() && one.expires.is_some() {
        shown["caName"] = one.authority.clone().into();
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_795_305_600);

    fn found(name: &str, days: Option<u64>) -> Found {
        let expires = days.map(|days| NOW.saturating_add(std::time::Duration::from_secs(days * 86_400)));
        Found { name: name.to_owned(), authority: "ca".to_owned(), expires, is_external: name == "apiserver" }
    }

    #[test]
    fn the_report_is_kubeadms() {
        let leaves = [found("apiserver", Some(364)), found("admin.conf", None), found("etcd-peer", Some(0))];
        let authorities = [Found { authority: String::new(), ..found("ca", Some(3649)) }];
        let text = report(&leaves, &authorities, Output::Text, NOW);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split("   ").map(str::trim).filter(|word| !word.is_empty()).collect())
            .collect();
        assert_eq!(rows[1], ["apiserver", "Nov 21, 2027 00:00 UTC", "364d", "ca", "yes"]);
        assert_eq!(rows[2], ["!MISSING! admin.conf"]);
        assert_eq!(rows[3][2], "<invalid>");
        assert_eq!(rows[5], ["CERTIFICATE AUTHORITY", "EXPIRES", "RESIDUAL TIME", "EXTERNALLY MANAGED"]);
        assert_eq!(rows[6][2..], ["9y", "no"]);
        let json: Value = serde_json::from_str(&report(&leaves, &authorities, Output::Json, NOW)).unwrap();
        assert_eq!(json["certificates"][0]["residualTime"], 364 * 86_400);
        assert_eq!(json["certificates"][1]["missing"], true);
        assert_eq!(json["certificateAuthorities"][0]["caName"], Value::Null);
        assert!(report(&leaves, &authorities, Output::Yaml, NOW).contains("kind: CertificateExpirationInfo"));
    }

    #[test]
    fn every_certificate_has_a_long_name() {
        for (name, long) in LONG_NAMES {
            assert_eq!(long_name(name), long);
        }
        assert_eq!(long_name("other"), "certificate");
    }
}
