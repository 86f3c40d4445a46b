//! The task over a directory, with a clock that is set by hand.

use std::cell::RefCell;
use std::fs;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::*;
use crate::agent::control_plane::sign::{Leaf, Signer};
use crate::codec::base64;
use crate::codec::yaml::text;
use crate::codec::yaml::yaml_to_values;
use crate::model::api::decode::decode;
use crate::model::api::pod::{ContainerState, ContainerStateRunning, ContainerStatus, Pod, PodStatus};
use crate::model::revisions::Revisions;
use crate::platform::testing::TempDir;
use crate::platform::x509::{self, CERTIFICATE, pem_blocks};
use crate::store::{Mode, OpenOptions, StoreHandle};

const NOW: Timestamp = Timestamp::from_secs(1_795_305_600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const YEAR: GoDuration = GoDuration::from_secs(365 * 24 * 3600);

struct Scene {
    directory: TempDir,
    clock: Clock,
    events: EventRecorder,
    statuses: Rc<StatusManager>,
    restarts: Rc<RefCell<Vec<String>>>,
}

impl Scene {
    /// A control plane whose certificates were signed at [`NOW`], with a life of `days`.
    fn new(start: Timestamp, days: i64) -> Self {
        rt::run_jobs_inline();
        let directory = TempDir::new();
        let clock = Clock::manual(start);
        let store = StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..OpenOptions::default() });
        let store = store.unwrap();
        let terms = |days| Terms {
            algorithm: "ECDSA-P256",
            validity: GoDuration::from_secs(days * 86_400),
            now: NOW,
        };
        let (authority, key) = Signer::create("kubernetes", terms(3650)).unwrap();
        directory.put("ca.crt", &authority.certificate);
        directory.put("ca.key", &key);
        directory.put("kube-apiserver.yaml", "");
        let leaf = Leaf { common_name: "kube-apiserver".to_owned(), is_server: true, ..Leaf::default() };
        let pair = authority.sign(&leaf, terms(days)).unwrap();
        directory.put("apiserver.crt", &pair.certificate);
        directory.put("apiserver.key", &pair.key);
        let leaf =
            Leaf { common_name: "system:kube-scheduler".to_owned(), is_client: true, ..Leaf::default() };
        let pair = authority.sign(&leaf, terms(days)).unwrap();
        let data = |text: &str| base64::encode(text.as_bytes());
        let credentials = json!({
            "client-certificate-data": data(&pair.certificate), "client-key-data": data(&pair.key),
        });
        let conf = json!({
            "clusters": [{"name": "c", "cluster": {"server": "https://a:6443", "certificate-authority-data": "old"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "s"}}],
            "current-context": "x",
            "users": [{"name": "other", "user": {"token": "t"}}, {"name": "s", "user": credentials}],
        });
        directory.put("scheduler.conf", &text::to_string(&conf));
        Self {
            directory,
            events: EventRecorder::new("edge".to_owned(), clock.clone(), store.clone(), Vec::new()),
            statuses: Rc::new(StatusManager::new(store, [].into(), Revisions::since(NOW))),
            clock,
            restarts: Rc::default(),
        }
    }

    fn keeper(&self) -> CertificateKeeper {
        let restarts = Rc::clone(&self.restarts);
        CertificateKeeper {
            directories: Directories {
                certs: self.directory.path().to_owned(),
                confs: self.directory.path().to_owned(),
            },
            manifest: self.directory.join("kube-apiserver.yaml"),
            period: YEAR,
            clock: self.clock.clone(),
            events: self.events.clone(),
            statuses: Rc::clone(&self.statuses),
            restart: Rc::new(move |_, containers| {
                restarts.borrow_mut().extend(containers.iter().map(ToString::to_string));
                Box::pin(async { Ok(()) })
            }),
        }
    }

    /// Lets the task run.
    async fn pass(&self, time: Duration) {
        let _ = timeout(time, self.keeper().run()).await;
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.directory.join(name)).unwrap()
    }

    fn said(&self) -> Vec<(String, String)> {
        self.events.recent().into_iter().map(|event| (event.key.reason, event.key.message)).collect()
    }

    /// Says when the scheduler's kubeconfig changed last.
    fn touch(&self, at: Timestamp) {
        let file = fs::File::options().append(true).open(self.directory.join("scheduler.conf")).unwrap();
        let seconds = u64::try_from(at.as_nanos() / 1_000_000_000).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    }

    fn scheduler_runs_since(&self, at: Timestamp) {
        let raw: Value = json!({"metadata": {
            "name": "kube-scheduler-edge", "namespace": "kube-system", "uid": "u",
            "labels": {"component": "kube-scheduler", "tier": "control-plane"},
            "annotations": {"kubernetes.io/config.source": "file"},
        }});
        let pod = Rc::new(decode::<Pod>(raw).unwrap().object);
        let running = Some(ContainerStateRunning { started_at: Some(at) });
        let container = ContainerStatus {
            name: "kube-scheduler".to_owned(),
            state: ContainerState { running, ..ContainerState::default() },
            ..ContainerStatus::default()
        };
        self.statuses.expect(&pod);
        self.statuses.set(&pod, PodStatus { container_statuses: vec![container], ..PodStatus::default() });
    }
}

fn ends(pem: &str) -> Timestamp {
    x509::not_after(&pem_blocks(pem, CERTIFICATE).remove(0)).unwrap()
}

fn renewed(names: &str) -> (String, String) {
    let message = format!("Renewed certificates of the control plane: {names}");
    ("CertificatesRenewed".to_owned(), message)
}

#[tokio::test(start_paused = true)]
async fn certificates_are_renewed_in_time_and_written_once() {
    let scene = Scene::new(NOW, 365);
    let before = (scene.text("apiserver.crt"), scene.text("scheduler.conf"));
    scene.pass(DAY * 255).await;
    assert_eq!((scene.text("apiserver.crt"), scene.text("scheduler.conf")), before);
    assert!(scene.said().is_empty(), "{:?}", scene.said());

    scene.pass(DAY).await;
    let after = (scene.text("apiserver.crt"), scene.text("scheduler.conf"));
    assert_eq!(scene.said(), [renewed("apiserver, scheduler.conf")]);
    let left = ends(&after.0).saturating_since(scene.clock.now());
    assert!(left > DAY * 364, "{left:?}");
    let conf = yaml_to_values(&after.1, false).unwrap().remove(0);
    assert_eq!(conf["users"][0]["user"], json!({"token": "t"}));
    let data = |value: &Value| String::from_utf8(base64::decode(value.as_str().unwrap()).unwrap()).unwrap();
    assert!(
        ends(&data(&conf["users"][1]["user"]["client-certificate-data"])) > NOW.saturating_add(DAY * 600)
    );
    assert_eq!(data(&conf["clusters"][0]["cluster"]["certificate-authority-data"]), scene.text("ca.crt"));

    scene.pass(DAY * 250).await;
    assert_eq!((scene.text("apiserver.crt"), scene.text("scheduler.conf")), after);
    assert_eq!(scene.said().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_clock_of_1970_renews_nothing_until_it_is_set() {
    let scene = Scene::new(Timestamp::from_secs(0), 10);
    let before = scene.text("apiserver.crt");
    let sets = async {
        sleep(DAY * 3).await;
        assert_eq!(scene.text("apiserver.crt"), before);
        scene.clock.set(NOW.saturating_add(DAY * 50));
        sleep(Duration::from_secs(1)).await;
    };
    tokio::select! {
        () = scene.keeper().run() => {}
        () = sets => {}
    }
    assert_eq!(scene.said(), [renewed("apiserver, scheduler.conf")]);
    assert!(ends(&scene.text("apiserver.crt")) > NOW.saturating_add(DAY * 400));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_renewed_is_said_once() {
    let scene = Scene::new(NOW, 10);
    let before = scene.text("apiserver.crt");
    scene.directory.remove("ca.key");
    scene.pass(DAY * 5).await;
    let external = "Detected external ca, apiserver can't be renewed; \
                    Detected external ca, scheduler.conf can't be renewed";
    let failed = |why: &str| ("FailedCertificateRenewal".to_owned(), why.to_owned());
    assert_eq!(scene.said(), [failed(external)]);
    scene.directory.put("ca.key", "broken");
    scene.pass(DAY).await;
    assert_eq!(scene.said().len(), 2);
    assert!(scene.said()[1].1.starts_with("failed to renew certificate apiserver: "), "{:?}", scene.said());
    assert_eq!(scene.text("apiserver.crt"), before);
    scene.directory.remove("kube-apiserver.yaml");
    scene.pass(DAY).await;
    assert_eq!(scene.said().len(), 2, "this node has no control plane");
}

#[tokio::test(start_paused = true)]
async fn a_component_that_read_an_earlier_kubeconfig_is_restarted() {
    let scene = Scene::new(NOW.saturating_add(DAY), 365);
    scene.touch(NOW);
    scene.scheduler_runs_since(NOW.saturating_add(DAY / 2));
    scene.pass(DAY).await;
    assert!(scene.restarts.borrow().is_empty());
    // Renewed by a command.
    scene.touch(scene.clock.now());
    // Once for a change, however long it takes.
    scene.pass(Duration::from_secs(300)).await;
    assert_eq!(*scene.restarts.borrow(), ["kube-scheduler"]);
    scene.scheduler_runs_since(scene.clock.now().saturating_add(Duration::from_secs(1)));
    scene.pass(DAY * 9).await;
    assert_eq!(scene.restarts.borrow().len(), 1);
    assert!(scene.said().is_empty(), "{:?}", scene.said());
}
