//! What must be true once trouble is over and the agent had time.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use edge_agent::model::api::pod::Pod;
use edge_agent::model::objects::{ConfigMapData, ObjectContent};
use edge_agent::model::observed::{ContainerStateKind, ObservedContainer};
use edge_agent::model::types::PodUid;
use edge_agent::runtime::fake::World;
use edge_agent::store::StoredSource;

use super::node::Node;
use super::pods::{CONFIG, Fate, Manifest};
use super::watcher::Wanted;

/// Every wanted pod is what it should be, and nothing else is there.
pub fn check(node: &Node, wanted: &Wanted, harmed: &BTreeSet<PodUid>) {
    let world = node.fake.world();
    let statuses = node.agent.as_ref().expect("the agent runs").statuses.snapshot();
    check_strangers(node, &world, wanted);
    let shown: BTreeSet<&PodUid> = statuses.iter().map(|pod| &pod.metadata.uid).collect();
    assert!(shown.iter().all(|uid| wanted.contains_key(uid)), "statuses of pods that are gone: {shown:?}");
    for (uid, manifest) in wanted {
        let Some(pod) = statuses.iter().find(|pod| pod.metadata.uid == *uid) else {
            panic!("{manifest:?} ({uid}) has no status");
        };
        // How a pod that is never run again ends depends on what the world did to it.
        let exact = manifest.policy != "Never" || !harmed.contains(uid);
        let manifest = manifest.after(|name| newest(&world, uid, name).map_or(0, |record| record.attempt));
        PodCheck { world: &world, uid, manifest: &manifest, pod }.run(exact);
        let runs = |record: &ObservedContainer| {
            record.pod.uid == *uid && record.state == ContainerStateKind::Running
        };
        if world.containers.values().any(|container| runs(&container.observed)) {
            check_config(node, uid);
        }
    }
}

/// What counts of the objects that the sources define: the first source's, if it has one.
fn config(node: &Node) -> Option<ConfigMapData> {
    let object = node.defined.values().flatten().next()?;
    assert_eq!(object.object.key.name, CONFIG);
    match &object.object.content {
        ObjectContent::ConfigMap { data, .. } => Some(data.clone()),
        other => panic!("{other:?}"),
    }
}

fn check_config(node: &Node, uid: &PodUid) {
    let path = node.path("pods").join(uid.as_str()).join("volumes/kubernetes.io~configmap/conf/k");
    let wanted = config(node).map(|config| config.data["k"].clone());
    assert_eq!(std::fs::read(&path).ok(), wanted, "{} is not what its ConfigMap says", path.display());
}

fn check_strangers(node: &Node, world: &World, wanted: &Wanted) {
    for sandbox in world.sandboxes.values() {
        let pod = &sandbox.observed.pod;
        assert!(wanted.contains_key(&pod.uid), "sandbox of {pod}, which nobody wants\n{}", world.describe());
    }
    for uid in names(&node.path("pods")) {
        assert!(
            wanted.contains_key(&PodUid::from(uid.as_str())),
            "directory of pod {uid}, which nobody wants"
        );
    }
    for name in names(&node.path("logs")) {
        let uid = name.rsplit('_').next().unwrap_or_default();
        assert!(wanted.contains_key(&PodUid::from(uid)), "logs {name} of a pod that nobody wants");
    }
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    entries.map(|entry| entry.expect("read a directory").file_name().to_string_lossy().into_owned()).collect()
}

fn newest<'a>(world: &'a World, uid: &PodUid, name: &str) -> Option<&'a ObservedContainer> {
    let mut records = world.containers.values().map(|container| &container.observed);
    records.rfind(|record| record.pod.uid == *uid && record.name.as_str() == name)
}

struct PodCheck<'a> {
    world: &'a World,
    uid: &'a PodUid,
    manifest: &'a Manifest,
    pod: &'a Pod,
}

impl PodCheck<'_> {
    fn run(&self, exact: bool) {
        let reason = self.pod.status.reason.as_str();
        self.ensure(reason != "ContainerRuntimeDown", "speaks of trouble that is over");
        let containers: Vec<String> = (0..self.manifest.containers.len()).map(|n| format!("c{n}")).collect();
        for name in &containers {
            self.check_status(name);
        }
        if !exact {
            return;
        }
        let phase = self.pod.status.phase.as_str();
        match self.manifest.init_fate() {
            Fate::Ends(0) => self.check_containers(&containers),
            Fate::Ends(_) => {
                self.ensure(phase == "Failed", "should have failed with its init container");
                self.ensure(self.running().is_empty(), "has failed, nothing of it may run");
            }
            Fate::Runs | Fate::Loops | Fate::Waits => {
                self.ensure(phase == "Pending", "should be pending for its init container");
                let started = containers.iter().any(|name| self.newest(name).is_some());
                self.ensure(!started, "must not start containers before its init containers are through");
            }
        }
    }

    fn check_containers(&self, containers: &[String]) {
        let phase = self.pod.status.phase.as_str();
        let fates: Vec<Fate> =
            self.manifest.containers.iter().map(|act| act.fate(self.manifest.policy)).collect();
        let is_over = fates.iter().all(|fate| matches!(fate, Fate::Ends(_)));
        for (name, fate) in containers.iter().zip(&fates) {
            let newest = self.newest(name);
            let state = newest.map(|record| record.state);
            match fate {
                Fate::Runs => {
                    self.ensure(state == Some(ContainerStateKind::Running), &format!("{name} should run"));
                }
                Fate::Ends(code) => {
                    let right = newest.is_some_and(|record| {
                        record.state == ContainerStateKind::Exited && record.exit_code == *code
                    });
                    self.ensure(right, &format!("{name} should have ended with {code}"));
                }
                Fate::Loops => {
                    let right = newest.is_some_and(|record| record.attempt > 0);
                    self.ensure(right, &format!("{name} should have been restarted"));
                }
                Fate::Waits => {
                    let right = state.is_none_or(|state| state != ContainerStateKind::Running);
                    self.ensure(right, &format!("{name} cannot run"));
                }
            }
        }
        for position in 0..self.manifest.init.len() {
            if self.manifest.init[position].1 {
                let name = format!("i{position}");
                let runs =
                    self.newest(&name).is_some_and(|record| record.state == ContainerStateKind::Running);
                self.ensure(runs != is_over, &format!("sidecar {name} should run as long as the pod"));
            }
        }
        if is_over {
            let failed = fates.iter().any(|fate| *fate != Fate::Ends(0));
            let expected = if failed { "Failed" } else { "Succeeded" };
            self.ensure(phase == expected, &format!("should be {expected}"));
            self.ensure(self.running().is_empty(), "is over, nothing of it may run");
            let ready = self
                .world
                .sandboxes
                .values()
                .any(|sandbox| sandbox.observed.pod.uid == *self.uid && sandbox.observed.ready);
            self.ensure(!ready, "is over, its sandbox should be stopped");
        } else if fates.iter().all(|fate| *fate == Fate::Runs) {
            self.ensure(phase == "Running", "should be Running");
        } else {
            self.ensure(matches!(phase, "Running" | "Pending"), "is neither over nor at rest");
        }
    }

    /// What the status says of a container is what the runtime has; one that is being restarted may be a step ahead.
    fn check_status(&self, name: &str) {
        let Some(status) = self.pod.status.container_statuses.iter().find(|status| status.name == name)
        else {
            self.ensure(false, &format!("says nothing about {name}"));
            return;
        };
        let Some(newest) = self.newest(name) else {
            self.ensure(status.state.running.is_none(), &format!("says that {name} runs"));
            return;
        };
        if self.manifest.act(name).fate(self.manifest.policy) == Fate::Loops {
            return;
        }
        let runs = newest.state == ContainerStateKind::Running;
        self.ensure(status.state.running.is_some() == runs, &format!("tells wrongly whether {name} runs"));
        if runs || newest.state == ContainerStateKind::Exited {
            self.ensure(
                status.container_id == format!("fake://{}", newest.id),
                &format!("names another container {name}"),
            );
            let count = i32::try_from(newest.attempt).expect("small");
            self.ensure(
                status.restart_count == count,
                &format!("tells wrongly how often {name} was restarted"),
            );
        }
    }

    fn newest(&self, name: &str) -> Option<&ObservedContainer> {
        newest(self.world, self.uid, name)
    }

    fn running(&self) -> Vec<&ObservedContainer> {
        let records = self.world.containers.values().map(|container| &container.observed);
        records
            .filter(|record| record.pod.uid == *self.uid && record.state == ContainerStateKind::Running)
            .collect()
    }

    fn ensure(&self, holds: bool, what: &str) {
        assert!(
            holds,
            "{what}: {:?} ({})\nstatus: {}\n{}",
            self.manifest,
            self.uid,
            serde_json::to_string(&self.pod.status).expect("a status is JSON"),
            self.world.describe()
        );
    }
}

/// Ten minutes in which nothing happens: the agent looks once a minute, writes nothing and asks nothing else.
pub async fn check_rest(node: &mut Node) {
    node.fake.clear_calls();
    let before = disk(node);
    node.wait(Duration::from_secs(600)).await;
    let calls = node.fake.calls();
    let relist = |call: &str| matches!(call, "ListPodSandbox" | "ListContainers");
    let busy = calls.iter().find(|call| !relist(call.call) || !call.subject.is_empty());
    assert!(busy.is_none(), "a node at rest is busy: {busy:?}, one of {} calls", calls.len());
    assert!(calls.len() <= 22, "{} looks in ten minutes", calls.len());
    assert!(before == disk(node), "a node at rest writes to its store");
}

/// The bytes of the store.
fn disk(node: &Node) -> Vec<Option<Vec<u8>>> {
    let path = node.store_path();
    let wal = path.with_extension("db-wal");
    [path, wal].iter().map(|file| std::fs::read(file).ok()).collect()
}

/// With the agent stopped: the store remembers what is wanted and nothing else.
pub async fn check_store(node: &Node, wanted: &Wanted) {
    let stored = node.stored().await;
    let desired: BTreeSet<&PodUid> =
        stored.desired.iter().flat_map(|source| &source.pods).map(|pod| &pod.pod.metadata.uid).collect();
    assert_eq!(desired, wanted.keys().collect(), "the stored desired pods");
    let defined = |source: &StoredSource| source.objects.clone();
    let objects: Vec<_> = stored.desired.iter().flat_map(defined).collect();
    assert_eq!(objects, node.defined.values().flatten().cloned().collect::<Vec<_>>(), "the stored objects");
    assert!(stored.terminating.is_empty(), "left-over terminating pods: {:?}", stored.terminating);
    let known = |uid: &PodUid| wanted.contains_key(uid);
    assert!(
        stored.container_state.keys().all(known),
        "left-over container states: {:?}",
        stored.container_state
    );
    assert!(stored.statuses.keys().all(known), "left-over statuses: {:?}", stored.statuses.keys());
}
