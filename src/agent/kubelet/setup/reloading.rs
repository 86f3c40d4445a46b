//! Which part of a running kubelet gets what of a changed configuration.

use std::rc::Rc;

use super::{AgentParts, configs};
use crate::agent::config::Resolved;
use crate::agent::kubelet::reload::ReloadParts;
use crate::platform::logging;
use crate::platform::rt::live::Live;
use crate::pod::workers::PodWorkers;
use crate::runtime::Runtime;
use crate::runtime::docker::DockerLogs;

impl<R: Runtime> AgentParts<R> {
    /// What a changed configuration is passed to.
    pub(super) fn reloading(
        &self,
        resolved: &Resolved,
        workers: &PodWorkers<R>,
        docker_logs: Live<DockerLogs>,
    ) -> ReloadParts {
        let (images, pods, logs, node) =
            (self.images.clone(), self.pods.clone(), self.logs.clone(), self.node.clone());
        let (running, configuration) = (self.workers.clone(), self.configuration.clone());
        let (services, node_ips) = (self.services.clone(), self.node_ips.clone());
        let set_sysctls = workers.sysctl_setter();
        let [file, drop_ins] = resolved.files();
        ReloadParts {
            start: resolved.document(),
            told: resolved.warnings.clone(),
            read: resolved.reader(),
            apply: Box::new(move |resolved| {
                images.set(configs::images(resolved));
                pods.set(configs::pods(resolved, services.as_ref()));
                logs.set(configs::log_rotation(resolved));
                docker_logs.set(configs::docker_logs(resolved));
                node.set(configs::node_manager(resolved));
                running.set(configs::workers(resolved, node_ips.clone()));
                set_sysctls(resolved.kubelet.allowed_unsafe_sysctls.clone());
                configuration.set(resolved.to_json());
                let log = configs::logging(&resolved.kubelet);
                logging::reconfigure(log.verbosity, log.vmodule);
            }),
            view: Rc::clone(&self.view),
            file,
            drop_ins,
        }
    }
}
