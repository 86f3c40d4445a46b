//! Reports about an agent that is not running, from its store.
//!
//! Owns the choice between agent and store.

use std::path::Path;
use std::rc::Rc;

use super::args::CliOptions;
use super::client::{self, ClientError};
use super::{CliError, Environment};
use crate::desired::local_objects::ObjectSets;
use crate::model::api::pod::Pod;
use crate::model::objects::{LocalObjects, VOLUMES_DIR};
use crate::model::revisions::Revisions;
use crate::model::types::Timestamp;
use crate::serve::server::report::{
    AgentMode, ObjectCounts, RuntimeReport, SourceReport, SourceState, StoreReport,
};
use crate::serve::server::{AgentReport, ObjectDetail};
use crate::store::{self, Loaded, ReadOnlyStore, StoreError, StoredEvent};

/// Asks the agent. When it is not running, reads its store and reports that on standard error.
pub(super) fn report(
    options: &CliOptions,
    detail: ObjectDetail,
    environment: &mut Environment<'_>,
) -> Result<AgentReport, CliError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
    match runtime.block_on(client::fetch_report(&options.socket, detail)) {
        Ok(report) => return Ok(report),
        Err(ClientError::NotRunning { .. }) => {}
        Err(error) => return Err(CliError::Client(error)),
    }
    let path = options.root_dir.join(store::FILE_NAME);
    let report = read(&path, detail, environment.now).map_err(CliError::Store)?;
    // Standard error may be closed; the result matters more.
    let _ = writeln!(environment.err, "agent is not running; showing the last known state");
    Ok(report)
}

fn read(path: &Path, detail: ObjectDetail, now: Timestamp) -> Result<AgentReport, StoreError> {
    let mut store = ReadOnlyStore::open(path)?;
    let loaded = store.load()?;
    let events = store.events()?;
    Ok(from_store(path, loaded, events, detail, now))
}

/// The report from the store: desired and terminating pods with their last statuses.
fn from_store(
    path: &Path,
    loaded: Loaded,
    events: Vec<StoredEvent>,
    detail: ObjectDetail,
    now: Timestamp,
) -> AgentReport {
    let fact = |key: &str| loaded.meta.get(key).cloned().unwrap_or_default();
    let mut problems = loaded.problems;
    let mut sources = Vec::new();
    let mut pods: Vec<Pod> = Vec::new();
    let remembered = loaded.desired.iter().map(|stored| (stored.source, stored.objects.clone()));
    let objects: Vec<_> = ObjectSets::remembered(remembered).winners().into_values().cloned().collect();
    let volumes_dir = path.parent().unwrap_or(path).join(VOLUMES_DIR);
    for stored in loaded.desired {
        sources.push(SourceReport {
            name: stored.source.as_str().to_owned(),
            state: SourceState::Waiting,
            pods: u32::try_from(stored.pods.len()).unwrap_or(u32::MAX),
            objects: u32::try_from(stored.objects.len()).unwrap_or(u32::MAX),
            problems: problems.remove(&stored.source).unwrap_or_default(),
            ..SourceReport::default()
        });
        pods.extend(stored.pods.into_iter().map(|pod| Rc::unwrap_or_clone(pod.pod)));
    }
    // Sources without any valid answer may have problems, too.
    sources.extend(problems.into_iter().map(|(source, problems)| SourceReport {
        name: source.as_str().to_owned(),
        problems,
        ..SourceReport::default()
    }));
    for mut going in loaded.terminating {
        // A terminating pod that is desired again still terminates, and then restarts.
        pods.retain(|pod| pod.metadata.uid != going.metadata.uid);
        going.metadata.deletion_timestamp.get_or_insert(now);
        pods.push(going);
    }
    for pod in &mut pods {
        if let Some(status) = loaded.statuses.get(&pod.metadata.uid) {
            pod.status = status.clone();
        }
    }
    AgentReport {
        mode: AgentMode::NotRunning,
        node_name: fact(store::meta::NODE_NAME),
        runtime: RuntimeReport { endpoint: fact(store::meta::RUNTIME_ENDPOINT), ..RuntimeReport::default() },
        sources,
        pods,
        object_counts: ObjectCounts::of(objects.iter().map(|object| &object.object.key)),
        objects: {
            let known = LocalObjects::new(volumes_dir.clone(), Revisions::since(now));
            known.replace(objects.iter());
            let shown = objects.iter().map(|object| (&*object.object, object.origin.as_str()));
            detail.reports(shown, &volumes_dir, &|claim| known.binding(claim))
        },
        events: events.into_iter().map(Into::into).collect(),
        store: StoreReport {
            path: path.display().to_string(),
            ok: true,
            message: unreadable(&loaded.unreadable),
        },
        ..AgentReport::default()
    }
}

fn unreadable(rows: &[store::UnreadableRow]) -> String {
    match rows {
        [] => String::new(),
        [first, rest @ ..] => {
            let more = if rest.is_empty() { String::new() } else { format!(" (and {} more)", rest.len()) };
            format!("cannot decode row {:?} of table {}: {}{more}", first.key, first.table, first.message)
        }
    }
}
