//! The sources of a running kubelet: manifest directory and URL.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{AgentParts, SetupError, configs};
use crate::agent::config::Resolved;
use crate::desired::source::file::{FileConfig, FileSource};
use crate::desired::source::url::UrlSource;
use crate::model::source::SourceUpdate;
use crate::model::types::PodSource;
use crate::platform::http::{HttpClient, shown_url};
use crate::platform::rt;
use crate::runtime::Runtime;

impl<R: Runtime> AgentParts<R> {
    pub(super) fn start_sources(
        &mut self,
        resolved: &Resolved,
        updates: &mpsc::Sender<SourceUpdate>,
    ) -> Result<Vec<JoinHandle<()>>, SetupError> {
        let kubelet = &resolved.kubelet;
        let restored_state = |source| configs::restored_state(&self.loaded, source);
        let mut accepts = BTreeMap::new();
        let mut accepting = |source: PodSource| {
            let (sender, receiver) = mpsc::channel(1);
            accepts.insert(source, sender);
            receiver
        };
        let mut tasks = Vec::new();
        if !kubelet.static_pod_path.is_empty() {
            let config = FileConfig {
                path: PathBuf::from(&kubelet.static_pod_path),
                check_frequency: kubelet.file_check_frequency.to_std(),
                node_name: resolved.node_name.clone(),
            };
            log::info!(path = kubelet.static_pod_path; "Adding static pod path");
            let remembered = restored_state(PodSource::File);
            let source =
                FileSource::new(config, remembered, self.clock.clone()).accepting(accepting(PodSource::File));
            tasks.push(rt::spawn("file source", source.run(updates.clone())));
        }
        if !kubelet.static_pod_url.is_empty() {
            let config = configs::url_source(resolved);
            log::info!(url = shown_url(&config.url); "Adding pod URL");
            let http = HttpClient::start().map_err(SetupError::Http)?;
            let source = UrlSource::new(config, restored_state(PodSource::Http), http, self.clock.clone())
                .accepting(accepting(PodSource::Http));
            tasks.push(rt::spawn("URL source", source.run(updates.clone())));
        }
        if let Some(joined) = &mut self.joined {
            joined.accepts = Some(accepting(PodSource::Cluster));
        }
        self.accepts = accepts;
        Ok(tasks)
    }
}
