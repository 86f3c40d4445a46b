//! The cluster in the agent's report.
//!
//! Owns the shape: every field is always written, so that a program need not know defaults.

use crate::cluster::ClusterState;
use crate::cluster::link::LinkState;
use crate::cluster::pki::CertificateStage;
use crate::cluster::pods::guard::Guard;
use crate::model::api::record::record;
use crate::model::types::Timestamp;

record! {
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ClusterReport as camelCase {
        /// URL of the apiserver; empty until the kubeconfig has been read.
        pub server: String,
        pub link: LinkReport,
        /// Whether the cluster has the Node object of this node.
        pub registered: bool,
        /// Of the Node object; empty until it is known.
        pub node_uid: String,
        /// When the node's lease was last renewed.
        pub lease_renewed: Option<Timestamp>,
        pub certificate: CertificateReport,
        pub waiting: WaitingReport,
        /// Since when the cluster's answers are not believed, because it is another one or an older state of it.
        pub held_since: Option<Timestamp>,
        /// What prevents the node from joining or from posting its status; empty without trouble.
        pub problem: String,
        /// `--link-profile=metered`.
        pub metered: bool,
        /// `insecure-skip-tls-verify` is set in the kubeconfig.
        pub insecure: bool,
    }

    /// Whether the apiserver answers.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct LinkReport as camelCase {
        /// `connecting`, `online`, `offline`, or `refused` when it answers and the answer is not valid.
        pub state: String,
        pub since: Option<Timestamp>,
        /// Why it is not online.
        pub reason: String,
    }

    /// The node's client certificate.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct CertificateReport as camelCase {
        pub until: Option<Timestamp>,
        pub renews: Option<Timestamp>,
        pub expired: bool,
        /// Name of the CertificateSigningRequest that waits for its approval; empty without one.
        pub request: String,
        /// Why there is no new one.
        pub problem: String,
    }

    /// What the apiserver does not have yet.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WaitingReport as camelCase {
        /// Statuses, deletions and mirror pods.
        pub pods: usize,
        pub events: usize,
    }
}

impl ClusterState {
    #[must_use]
    pub(crate) fn report(&self) -> ClusterReport {
        let link = self.link.borrow();
        let (state, since) = match &*link {
            LinkState::Never => ("connecting", None),
            LinkState::Online { since } => ("online", Some(*since)),
            LinkState::Offline { since, .. } => ("offline", Some(*since)),
            LinkState::Refused { since, .. } => ("refused", Some(*since)),
        };
        let post = self.node.problem.borrow().as_ref().filter(|_| link.is_online()).map(ToString::to_string);
        let problem = self.login.problem.borrow().clone().or(post).unwrap_or_default();
        ClusterReport {
            server: self.login.server(),
            link: LinkReport {
                state: state.to_owned(),
                since,
                reason: link.why().map(ToString::to_string).unwrap_or_default(),
            },
            registered: self.node.is_registered.get(),
            node_uid: self.node.uid.borrow().clone(),
            lease_renewed: self.node.renewed.get(),
            certificate: self.certificate(),
            waiting: WaitingReport { pods: self.waiting.get(), events: self.uploads.waiting.get() },
            held_since: match self.identity.borrow().guard {
                Guard::Holding { since, .. } => Some(since),
                Guard::Open => None,
            },
            problem,
            metered: self.is_metered.get(),
            insecure: self.login.is_insecure.get(),
        }
    }

    fn certificate(&self) -> CertificateReport {
        let known = self.login.certificate.borrow();
        let mut report = CertificateReport { problem: known.trouble.clone(), ..CertificateReport::default() };
        match &known.stage {
            CertificateStage::Unsigned => {}
            CertificateStage::Requested { name } => report.request.clone_from(name),
            CertificateStage::Current { until, renews } => {
                (report.until, report.renews) = (Some(*until), Some(*renews));
            }
            CertificateStage::Expired { until } => (report.until, report.expired) = (Some(*until), true),
        }
        report
    }
}
