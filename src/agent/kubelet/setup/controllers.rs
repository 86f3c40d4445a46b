//! The controllers and the Services of a node without a cluster.
//!
//! Owns which parts of the agent each gets, and how registries are asked about images.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use tokio::task::JoinHandle;

use super::AgentParts;
use crate::agent::config::Resolved;
use crate::agent::kubelet::report::LoopView;
use crate::agent::kubelet::services;
use crate::model::api::pod::Pod;
use crate::model::objects::{LocalObjects, ObjectLookup as _};
use crate::platform::dice::Dice;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::pod::image::{ImageLogins, PodSecret};
use crate::pod::status::StatusManager;
use crate::runtime::Runtime;
use crate::runtime::embedded::registry::{PullRequest, digest_in_child};
use crate::runtime::embedded::runtime::OWN_PROGRAM;
use crate::workload::{self, DigestAnswer, ImageDigests, ImageUpdateParts, WorkloadParts};

/// Asks registries in a child process, whichever runtime pulls.
struct Registries {
    logins: ImageLogins,
    objects: Rc<LocalObjects>,
    hosts_dirs: Vec<PathBuf>,
}

impl ImageDigests for Rc<Registries> {
    fn digest(&self, image: String, pod: Rc<Pod>) -> DigestAnswer {
        let registries = Rc::clone(self);
        Box::pin(async move {
            let namespace = &pod.metadata.namespace;
            let names = pod.spec.image_pull_secrets.iter().map(|reference| reference.name.clone());
            let secret = |name: String| {
                let data = registries.objects.secret(namespace, &name)?;
                Some(PodSecret { namespace: namespace.clone(), name, uid: String::new(), data })
            };
            let secrets: Vec<PodSecret> = names.filter_map(secret).collect();
            let logins = registries.logins.of(&image, &secrets, &pod.pod_ref()).await;
            // As a pull: one after the other, and without any once without.
            let logins = if logins.is_empty() { vec![None] } else { logins.into_iter().map(Some).collect() };
            let mut answer = Err(String::new());
            for auth in logins {
                let hosts_dirs = registries.hosts_dirs.clone();
                let request =
                    PullRequest { image: image.clone(), auth, hosts_dirs, ..PullRequest::default() };
                answer =
                    digest_in_child(Path::new(OWN_PROGRAM), request).await.map_err(|error| chain(&error));
                if answer.is_ok() {
                    break;
                }
            }
            answer
        })
    }
}

impl<R: Runtime> AgentParts<R> {
    /// The controllers of workloads: those of a node of a cluster are the cluster's.
    pub(super) fn start_controllers(
        &self,
        view: &Rc<LoopView>,
        statuses: &Rc<StatusManager>,
    ) -> Option<JoinHandle<()>> {
        if self.joined.is_some() {
            return None;
        }
        let features = Rc::clone(view);
        let parts = WorkloadParts {
            node_name: self.events.node_name().to_owned(),
            clock: self.clock.clone(),
            editor: self.editor.clone(),
            objects: Rc::clone(&self.objects),
            statuses: Rc::clone(statuses),
            events: self.events.clone(),
            admission: self.admission.clone(),
            desired: view.watch(),
            handlers: Rc::new(move || {
                let handlers = features.features().into_iter().flat_map(|features| features.handlers);
                handlers.map(|handler| handler.name).collect()
            }),
            dice: Dice::System,
        };
        Some(rt::spawn("controllers", workload::run(parts)))
    }

    /// Nothing on a node of a cluster, as its controllers.
    pub(super) fn start_image_updates(
        &self,
        resolved: &Resolved,
        view: &Rc<LoopView>,
        statuses: &Rc<StatusManager>,
    ) -> Option<JoinHandle<()>> {
        let interval = resolved.flags.image_update_interval.to_std();
        if self.joined.is_some() || interval.is_zero() {
            return None;
        }
        let registries = Rc::new(Registries {
            logins: ImageLogins::new(self.images.get().credentials.clone(), self.clock.clone()),
            objects: Rc::clone(&self.objects),
            hosts_dirs: resolved.flags.registry_hosts_dirs.clone(),
        });
        let parts = ImageUpdateParts {
            editor: self.editor.clone(),
            objects: Rc::clone(&self.objects),
            statuses: Rc::clone(statuses),
            events: self.events.clone(),
            desired: view.watch(),
            digests: Rc::new(registries),
            interval,
        };
        Some(rt::spawn("image updates", workload::update_images(parts)))
    }

    /// Before the first pod starts.
    pub(super) async fn start_services(&self, resolved: &Resolved, has_pods: bool) -> Option<JoinHandle<()>> {
        let needs = services::ServiceNeeds {
            objects: &self.objects,
            statuses: &self.statuses,
            events: &self.events,
            clock: &self.clock,
            view: &self.view,
            pods: &self.pods,
            node_ips: &self.node_ips,
            has_pods,
        };
        services::start(resolved, self.services.as_ref(), needs).await
    }
}
