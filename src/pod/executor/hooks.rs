//! Running lifecycle hooks: postStart after a start, preStop before a stop.
//!
//! Owns the effects of hooks and their events.
//!
//! postStart runs in the pod's own worker, as upstream: until it ends, the pod's other containers wait for
//! their start or restart; other pods do not. It is not run again for a container that an earlier agent
//! started.

use std::rc::Rc;
use std::time::Duration;

use crate::model::api::pod::{Container, Pod};
use crate::model::observed::{ContainerStateKind, ObservedSandbox};
use crate::model::types::{ContainerId, ContainerName, PodRef};
use crate::pod::events::{EventRecorder, EventType};
use crate::pod::executor::{Executor, Patience, Run};
use crate::pod::handler::{self, HandlerError, HttpGet};
use crate::pod::hooks::{self, Hook, HookCall, HookError};
use crate::pod::image::StartFailure as Failure;
use crate::pod::inbox::Inbox;
use crate::pod::network::pod_address;
use crate::pod::plan::StopContainer;
use crate::pod::target::HttpTarget;
use crate::runtime::{ErrorKind, Runtime};

/// The user agent of upstream's client for lifecycle hooks.
const USER_AGENT: &str = "kube-lifecycle/1.36";
/// Upstream has no limit for a hook's request; the caller's wait bounds it.
const HTTP_LIMIT: Duration = Duration::from_secs(24 * 3600);

pub(super) struct HookRunner<R> {
    runtime: Rc<R>,
    events: EventRecorder,
}

#[derive(Clone)]
pub(super) struct HookSite {
    pub(super) pod: PodRef,
    pub(super) name: ContainerName,
    pub(super) id: ContainerId,
    pub(super) pod_ip: Option<String>,
}

impl<R: Runtime> HookRunner<R> {
    pub(super) fn new(runtime: Rc<R>, events: EventRecorder) -> Self {
        Self { runtime, events }
    }

    /// Runs a hook to its end without a time limit: callers stop waiting by dropping the future. The error is
    /// for a status.
    pub(super) async fn run(&self, site: &HookSite, hook: &Hook) -> Result<(), String> {
        let outcome = match hooks::hook_call(hook, site.pod_ip.as_deref()) {
            Ok(HookCall::Exec(command)) => self.exec(&site.id, &command).await,
            Ok(HookCall::HttpGet(request)) => self.http_get(&site.pod, &request).await,
            Ok(HookCall::Sleep(time)) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            Err(text) => Err(text.into()),
        };
        outcome.map_err(|error| hooks::failure_message(&hook.handler, site.name.as_str(), &site.pod, &error))
    }

    async fn exec(&self, id: &ContainerId, command: &[String]) -> Result<(), HookError> {
        let ended = self
            .runtime
            .exec_sync(id, command, None)
            .await
            .map_err(|error| HookError::from(error.message))?;
        hooks::exec_error(command, ended.exit_code, &ended.output).map_or(Ok(()), Err)
    }

    async fn http_get(&self, pod: &PodRef, request: &HttpTarget) -> Result<(), HookError> {
        let secure = http_get_of(request);
        let failed = match send(&secure).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if failed == HandlerError::PlainHttp && send(&http_get_of(&request.without_tls())).await.is_ok() {
            let message = format!(
                "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
                handler::authority(&request.host, request.port)
            );
            self.events.event(pod, None, EventType::Warning, "LifecycleHTTPFallback", &message);
            return Ok(());
        }
        Err(secure.explain(&failed).into())
    }

    /// Returns when the container is not running any more. Checks after every change of the pod in the
    /// runtime.
    async fn ended(&self, id: &ContainerId, inbox: &Inbox) {
        loop {
            let seen = inbox.observation_requests();
            match self.runtime.container_status(id).await {
                Ok(status) if status.state == ContainerStateKind::Running => {}
                Err(error) if error.kind != ErrorKind::NotFound => {}
                _ => return,
            }
            inbox.observation_requested(seen).await;
        }
    }
}

/// Any answer is a success, also a truncated one: the body is not used.
async fn send(request: &HttpGet) -> Result<(), HandlerError> {
    match handler::http_get(request, HTTP_LIMIT).await {
        Ok(_) | Err(HandlerError::Body(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

fn http_get_of(target: &HttpTarget) -> HttpGet {
    HttpGet { target: target.clone(), user_agent: USER_AGENT }
}

impl<R: Runtime> Executor<R> {
    /// Runs the postStart hook of a new container, if it has one. If it fails, the container is stopped. A
    /// removal of the pod, or the container's own end, ends the wait.
    pub(super) async fn run_post_start(
        &self,
        run: &Run<'_>,
        container: &Container,
        field_path: &str,
        id: &ContainerId,
    ) -> Result<(), Failure> {
        let Some(hook) = hooks::post_start(container) else { return Ok(()) };
        let Patience::UntilRemoval(inbox) = &run.patience else { return Ok(()) };
        let name = ContainerName::from(container.name.as_str());
        let site = HookSite {
            pod: run.pod.pod_ref(),
            name: name.clone(),
            id: id.clone(),
            pod_ip: self.pod_ip(run.pod, run.sandbox.as_ref()),
        };
        let outcome = tokio::select! {
            biased;
            // The container still runs; the plan that takes the pod down stops it.
            () = inbox.removal() => return Err(Failure {
                reason: "PostStartHookError",
                message: "hook cancelled: the pod is being removed".to_owned(),
                retry_after: None,
            }),
            outcome = self.hooks.run(&site, &hook) => outcome,
            // The container's own exit says more than the failed hook of an ended container.
            () = self.hooks.ended(id, inbox) => return Ok(()),
        };
        let Err(message) = outcome else { return Ok(()) };
        log::warn!(pod:% = site.pod, containerName:% = name, err = message; "PostStartHook failed");
        self.event(run.pod, field_path, EventType::Warning, "FailedPostStartHook", "PostStartHook failed");
        let stop = StopContainer {
            id: id.clone(),
            name,
            message: "FailedPostStartHook".to_owned(),
            grace_seconds: None,
        };
        let grace_seconds = run.pod.termination_grace_period_seconds();
        // The next relist shows whether the stop worked.
        let _ = self.stop_containers(run, &[vec![stop]], grace_seconds).await;
        // The crash-loop back-off decides when it is retried.
        Err(Failure { reason: "PostStartHookError", message, retry_after: Some(Duration::ZERO) })
    }

    /// The address for hooks; on the host's network the node's first one.
    pub(super) fn pod_ip(&self, pod: &Pod, sandbox: Option<&ObservedSandbox>) -> Option<String> {
        let on_host = pod.spec.host_network || sandbox.is_some_and(|sandbox| sandbox.host_network);
        let of_sandbox = sandbox.map_or(&[][..], |sandbox| &sandbox.ips);
        pod_address(on_host, of_sandbox, &self.config.node_ips)
    }
}

#[cfg(test)]
mod tests;
