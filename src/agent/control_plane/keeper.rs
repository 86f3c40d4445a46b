//! The task that renews the certificates of a control plane on this node, and restarts the static pods that read them once.
//!
//! Owns the times at which it looks.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;

use super::due::{self, LookOutcome, READ_AT_START};
use super::renewal::{Directories, Place, Renewed, authority_name, renew};
use super::sign::Terms;
use crate::cluster::pki::deadline::validity;
use crate::model::duration::GoDuration;
use crate::model::types::{ContainerName, PodUid, Timestamp};
use crate::platform::clock::Clock;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::pod::events::{EventRecorder, EventType};
use crate::pod::status::StatusManager;
use crate::serve::server::pki::FLOOR;

/// Restarts containers of a pod.
pub(crate) type Restart =
    Rc<dyn Fn(PodUid, Vec<ContainerName>) -> Pin<Box<dyn Future<Output = Result<(), String>>>>>;

pub(crate) struct CertificateKeeper {
    pub directories: Directories,
    /// The static pod of kube-apiserver: without it, this node has no control plane.
    pub manifest: PathBuf,
    /// How long certificates are signed for.
    pub period: GoDuration,
    pub clock: Clock,
    pub events: EventRecorder,
    pub statuses: Rc<StatusManager>,
    pub restart: Restart,
}

/// What one look found and did.
#[derive(Default)]
struct Look {
    renewed: Vec<String>,
    troubles: Vec<String>,
    has_failed: bool,
    /// When the next certificate is due.
    due: Option<Timestamp>,
    /// Files of [`READ_AT_START`], with the times of their last change.
    changes: Vec<(&'static str, Timestamp)>,
}

impl CertificateKeeper {
    pub(crate) async fn run(self) {
        let alarm = self.clock.alarm();
        let mut trouble = String::new();
        let mut is_first = true;
        // What has been restarted, for which change: it takes a while until that shows.
        let mut restarted: Vec<(&str, Timestamp)> = Vec::new();
        loop {
            let now = self.clock.now();
            let (directories, manifest, period) =
                (self.directories.clone(), self.manifest.clone(), self.period);
            let look = rt::blocking("control plane certificates", move || {
                if manifest.exists() { look(&directories, period, now) } else { Look::default() }
            })
            .await;
            if !look.renewed.is_empty() {
                let message =
                    format!("Renewed certificates of the control plane: {}", look.renewed.join(", "));
                self.events.node_event(EventType::Normal, "CertificatesRenewed", &message);
                // What starts now is known to have started after the change.
                tokio::time::sleep(due::SECOND).await;
            }
            let found = look.troubles.join("; ");
            if found != trouble {
                trouble = found;
                if !trouble.is_empty() {
                    self.events.node_event(EventType::Warning, "FailedCertificateRenewal", &trouble);
                }
            }
            for change in look.changes.iter().copied() {
                if !restarted.contains(&change) && self.restart_outdated(change.0, change.1).await {
                    restarted.retain(|(component, _)| *component != change.0);
                    restarted.push(change);
                }
            }
            let outcome = match &look {
                look if look.has_failed => LookOutcome::Failed,
                look if is_first || !look.renewed.is_empty() => LookOutcome::Changed,
                _ => LookOutcome::Quiet,
            };
            is_first = false;
            // A clock that is set wakes it, too.
            alarm.wait_until(Some(due::next_look(look.due, outcome, self.clock.now()))).await;
        }
    }

    /// Restarts a component's container if it has started before the file changed. True: it is being restarted.
    async fn restart_outdated(&self, component: &str, modified: Timestamp) -> bool {
        let mut outdated = None;
        let now = self.clock.now();
        self.statuses.each(|pod, status, _| {
            let metadata = &pod.metadata;
            let is = |key: &str, value: &str| metadata.labels.get(key).is_some_and(|found| found == value);
            if metadata.namespace != "kube-system"
                || !is("component", component)
                || !is("tier", "control-plane")
                || metadata.annotations.get("kubernetes.io/config.source").is_none_or(|of| of != "file")
            {
                return;
            }
            let running = status.container_statuses.iter().find(|container| container.name == component);
            let started =
                running.and_then(|container| container.state.running.as_ref()).and_then(|at| at.started_at);
            if started.is_some_and(|started| due::is_outdated(started, modified, now)) {
                outdated = Some((pod.pod_ref(), metadata.uid.clone()));
            }
        });
        let Some((pod, uid)) = outdated else { return false };
        log::info!(pod:% = pod; "Restarting static pod, its kubeconfig has changed");
        let asked = (self.restart)(uid, vec![component.into()]).await;
        if let Err(why) = &asked {
            log::warn!(pod:% = pod, err = why.as_str(); "Failed to restart static pod");
        }
        asked.is_ok()
    }
}

/// Renews what is due; nothing by a clock that is wrong.
fn look(directories: &Directories, period: GoDuration, now: Timestamp) -> Look {
    let mut look = Look::default();
    if now < FLOOR {
        return look;
    }
    let life = period.to_std();
    for entry in &Place::all() {
        let (name, place) = entry;
        let found = place.certificate(directories).map(|found| found.as_deref().map(validity));
        let due = match found {
            Ok(None) => continue,
            Ok(Some(Some(validity))) if !due::is_due(validity, life, now) => due::renews_at(validity, life),
            _ => match renew(entry, directories, Terms { algorithm: "ECDSA-P256", validity: period, now }) {
                Ok(Renewed::Missing) => continue,
                Ok(Renewed::Done) => {
                    look.renewed.push(name.clone());
                    continue;
                }
                Ok(Renewed::External) => {
                    let authority = authority_name(place.authority());
                    look.troubles.push(format!("Detected external {authority}, {name} can't be renewed"));
                    continue;
                }
                Err(error) => {
                    look.has_failed = true;
                    look.troubles.push(chain(&error));
                    continue;
                }
            },
        };
        look.due = Some(look.due.map_or(due, |earlier| earlier.min(due)));
    }
    for (file, component) in READ_AT_START {
        if let Ok(about) = directories.confs.join(file).metadata() {
            look.changes.push((component, Timestamp::from_secs(about.mtime())));
        }
    }
    look
}

#[cfg(test)]
mod tests;
