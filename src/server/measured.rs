//! Statistics and metrics: what is asked for each page, and the page.
//!
//! Owns which page needs which figures, and what is counted only when somebody looks. Must not know where figures come from.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Response, StatusCode};

use super::body::{Body, object, response};
use super::node::SharedNode;
use super::route::Page;
use crate::metrics::{self, Text};
use crate::stats::pages::{MachineNames, cadvisor, resource};
use crate::stats::{Ask, Summary, wire};

/// `/stats/summary`; `whole` with network and disks.
pub(super) async fn summary(node: &SharedNode, whole: bool) -> Result<Response<Body>, (StatusCode, String)> {
    let ask = if whole { Ask::SUMMARY } else { Ask::CPU_AND_MEMORY };
    let found = node.stats(ask).await.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error))?;
    Ok(object(StatusCode::OK, &wire::summary(&found, whole)))
}

/// A page of Prometheus'.
pub(super) async fn page(node: &SharedNode, page: Page) -> Response<Body> {
    let page = match page {
        Page::Resource => resource(asked(node, Ask::default()).await.as_ref()),
        Page::Cadvisor => {
            let ask = Ask { network: true, details: true, ..Ask::default() };
            cadvisor(asked(node, ask).await.as_ref(), &machine_names())
        }
        Page::Agent => agent(node),
        Page::Probes => recorded(&["prober_"]),
        Page::Slis => health(node),
    };
    response(StatusCode::OK, metrics::CONTENT_TYPE, Body::Whole(Full::new(Bytes::from(page))))
}

async fn asked(node: &SharedNode, ask: Ask) -> Option<Summary> {
    match node.stats(ask).await {
        Ok(summary) => Some(summary),
        Err(error) => {
            log::warn!(err = error; "Failed to measure for metrics");
            None
        }
    }
}

fn machine_names() -> MachineNames {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    MachineNames {
        boot_id: read("/proc/sys/kernel/random/boot_id"),
        machine_id: read("/etc/machine-id"),
        system_uuid: read("/sys/class/dmi/id/product_uuid"),
    }
}

fn recorded(prefixes: &[&str]) -> String {
    let mut text = Text::default();
    metrics::write_recorded(&mut text, prefixes);
    text.finish()
}

fn agent(_: &SharedNode) -> String {
    recorded(&["kubelet_"])
}

fn health(_: &SharedNode) -> String {
    recorded(&["kubernetes_"])
}
