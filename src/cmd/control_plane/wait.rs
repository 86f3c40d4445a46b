//! The phase `wait-control-plane`: until the kubelet and the components of this node are healthy.
//!
//! One deadline for all of it: a slow board needs minutes for what others do in seconds.

mod components;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use super::api::{AGAIN, ApiPhaseError, Say, transport};
use crate::cluster::client::transport::{Accept, ApiRequest, Lane, Method, Transport};
use crate::cluster::kubeconfig::Kubeconfig;
use crate::cmd::init::wait_until_healthy;
use crate::model::types::go_duration;

use components::Component;

/// Of one question.
const ANSWER: Duration = Duration::from_secs(10);

/// Waits for the kubelet's health; `None`: it serves none.
pub(crate) async fn kubelet(
    say: Say<'_>,
    at: Option<SocketAddr>,
    deadline: Instant,
) -> Result<(), ApiPhaseError> {
    let Some(at) = at else { return Ok(()) };
    let begun = Instant::now();
    let limit = shown(deadline - begun);
    say(&format!(
        "[kubelet-check] Waiting for a healthy kubelet at http://{at}/healthz. This can take up to {limit}\n"
    ));
    let waited = timeout_at(deadline, wait_until_healthy(at)).await;
    let took = shown(begun.elapsed());
    if waited.is_err() {
        say(&format!("[kubelet-check] The kubelet is not healthy after {took}\n"));
        return Err(ApiPhaseError::Broken(format!(
            "failed while waiting for the kubelet to start: GET http://{at}/healthz does not answer with 200 (see: \
             systemctl status agent; journalctl -u agent)"
        )));
    }
    say(&format!("[kubelet-check] The kubelet is healthy after {took}\n"));
    Ok(())
}

/// Waits for the components of these manifests. `admin` asks the API server.
pub(crate) async fn control_plane(
    say: Say<'_>,
    manifests: &Path,
    admin: &Kubeconfig,
    deadline: Instant,
) -> Result<(), ApiPhaseError> {
    let mut all = Vec::new();
    for name in components::NAMES {
        let path = manifests.join(format!("{name}.yaml"));
        let text = std::fs::read_to_string(&path).map_err(|source| ApiPhaseError::File {
            action: "read",
            path: path.clone(),
            source,
        })?;
        all.push(
            components::of(name, &text)
                .map_err(|why| ApiPhaseError::Broken(format!("{}: {why}", path.display())))?,
        );
    }
    let limit = shown(deadline - Instant::now());
    say(&format!(
        "[control-plane-check] Waiting for healthy control plane components. This can take up to {limit}\n"
    ));
    for Component { name, server, path } in &all {
        say(&format!("[control-plane-check] Checking {name} at {server}{path}\n"));
    }
    let mut asked = Vec::new();
    for component in &all {
        let kubeconfig = if component.name == components::NAMES[0] {
            admin.clone()
        } else {
            // Its certificate is its own; this is its own machine.
            anonymous(&component.server)?
        };
        asked.push((component, transport(kubeconfig)));
    }
    let unhealthy = until_healthy(say, &asked, deadline).await;
    if unhealthy.is_empty() {
        return Ok(());
    }
    Err(ApiPhaseError::Broken(format!(
        "failed while waiting for the control plane to start: {} (see: agent ps; agent logs -n kube-system \
         {}-NODE)",
        unhealthy.join("; "),
        all.iter().map(|it| it.name).find(|name| unhealthy[0].starts_with(name)).unwrap_or_default(),
    )))
}

/// The components that are not healthy in time, and why.
async fn until_healthy<T: Transport>(
    say: Say<'_>,
    all: &[(&Component, T)],
    deadline: Instant,
) -> Vec<String> {
    let begun = Instant::now();
    let mut left: Vec<_> = all.iter().map(|asked| (asked, String::new())).collect();
    loop {
        let mut still = Vec::new();
        for (asked, _) in left {
            match probe(&asked.1, asked.0.path).await {
                Ok(()) => {
                    let took = shown(begun.elapsed());
                    say(&format!("[control-plane-check] {} is healthy after {took}\n", asked.0.name));
                }
                Err(why) => still.push((asked, why)),
            }
        }
        left = still;
        if left.is_empty() || Instant::now() + AGAIN > deadline {
            break;
        }
        sleep(AGAIN).await;
    }
    let took = shown(begun.elapsed());
    let tell = |((component, _), why): (&(&Component, T), String)| {
        say(&format!("[control-plane-check] {} is not healthy after {took}\n", component.name));
        format!("{} check failed at {}{}: {why}", component.name, component.server, component.path)
    };
    left.into_iter().map(tell).collect()
}

async fn probe<T: Transport>(transport: &T, path: &str) -> Result<(), String> {
    let request = ApiRequest {
        method: Method::Get,
        path: path.to_owned(),
        accept: Accept::Json,
        body: None,
        limit: Some(ANSWER),
    };
    match transport.send(Lane::Main, request).await {
        Ok(answer) if answer.status == 200 => Ok(()),
        Ok(answer) => Err(format!("HTTP status {}", answer.status)),
        Err(error) => Err(error.to_string()),
    }
}

fn anonymous(server: &str) -> Result<Kubeconfig, ApiPhaseError> {
    let config: Value = json!({
        "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": true}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    });
    let parsed = Kubeconfig::parse(&config, Path::new("/"));
    parsed.map_err(|source| ApiPhaseError::Kubeconfig { path: server.into(), source })
}

/// To the millisecond.
fn shown(time: Duration) -> String {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    go_duration(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests;
