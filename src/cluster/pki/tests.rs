use std::cell::{Cell, RefCell};
use std::fs;
use std::future::Future;
use std::pin::{Pin, pin};

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::json;

use super::*;
use crate::cluster::client::ClientConfig;
use crate::cluster::client::limits::Limit;
use crate::cluster::fake::{FakeApiserver, FakeTransport, Removal};
use crate::codec::base64;
use crate::codec::yaml::yaml_to_values;
use crate::platform::testing::TempDir;

const DAY: Duration = Duration::from_secs(86_400);

fn start() -> Timestamp {
    Timestamp::parse_rfc3339("2027-01-01T00:00:00Z").unwrap()
}

/// A certificate of this node from 2027-01-01 on, for this many days.
fn signed(key: &KeyPair, days: u64, names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, "system:node:edge-7");
    params.not_before = rcgen::date_time_ymd(2027, 1, 1);
    params.not_after = params.not_before + DAY * u32::try_from(days).unwrap();
    params.self_signed(key).unwrap().pem()
}

/// A cluster whose signer uses the key that it finds on the node's disk.
struct SigningFake {
    key_file: PathBuf,
    server: FakeApiserver,
}

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

impl SigningFake {
    /// Names of all requests to create, also of those that existed.
    fn asked(&self) -> Vec<String> {
        let writes = self.server.writes();
        writes.iter().map(|call| call.body["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Names of the objects that were made.
    fn made(&self) -> usize {
        self.server.writes().iter().filter(|call| call.status == 201).count()
    }

    fn last(&self) -> String {
        self.asked().pop().unwrap()
    }

    fn count(&self) -> usize {
        self.server.writes().len()
    }

    fn update(&self, status: Value) {
        let mut object = self.server.object(&format!("{REQUESTS}/{}", self.last())).unwrap();
        object["status"] = status;
        self.server.put(object);
    }

    fn approve(&self, days: u64, names: &[&str]) {
        let key = KeyPair::from_pem(&fs::read_to_string(&self.key_file).unwrap()).unwrap();
        let certificate = base64::encode(signed(&key, days, names).as_bytes());
        let conditions = json!([{ "type": "Approved", "status": "True" }]);
        self.update(json!({ "conditions": conditions, "certificate": certificate }));
    }

    fn client(&self, user: &str) -> Rc<Client<FakeTransport>> {
        let config = ClientConfig {
            limit: Limit { qps: 50, burst: 100 },
            timeout: Duration::from_secs(30),
            heartbeat_timeout: Duration::from_secs(10),
        };
        Rc::new(Client::new(Rc::new(self.server.transport(user)), config, Dice::seeded(1)))
    }
}

/// A node, its disk and its cluster.
struct Scene {
    directory: TempDir,
    server: Rc<SigningFake>,
    /// What [`Keeper::identity`] was asked for, and whether there are bootstrap credentials.
    identities: Rc<RefCell<Vec<bool>>>,
    has_bootstrap: Rc<Cell<bool>>,
    addresses: Rc<RefCell<Vec<(String, String)>>>,
    nudge: Rc<Notify>,
    state: watch::Receiver<CertificateState>,
    clock: Clock,
}

impl Scene {
    fn new(signer: CertificateSigner) -> Self {
        rt::run_jobs_inline();
        let directory = TempDir::new();
        let key_file = directory.join(format!("{}.key.tmp", signer.file_prefix()));
        let clock = Clock::manual(start());
        let server = FakeApiserver::new(clock.clone(), 7);
        Self {
            directory,
            server: Rc::new(SigningFake { key_file, server }),
            identities: Rc::default(),
            has_bootstrap: Rc::new(Cell::new(true)),
            addresses: Rc::default(),
            nudge: Rc::default(),
            state: watch::channel(CertificateState::default()).1,
            clock,
        }
    }

    fn files(&self, signer: CertificateSigner) -> PairFiles {
        PairFiles::open(self.directory.path(), signer.file_prefix()).unwrap()
    }

    fn keeper(&mut self, signer: CertificateSigner, renew_now: bool) -> Keeper<FakeTransport> {
        let (state, reader) = watch::channel(CertificateState::default());
        self.state = reader;
        let (server, identities) = (Rc::clone(&self.server), Rc::clone(&self.identities));
        let (has_bootstrap, addresses) = (Rc::clone(&self.has_bootstrap), Rc::clone(&self.addresses));
        Keeper {
            signer,
            node_name: "edge-7".to_owned(),
            files: self.files(signer),
            addresses: Rc::new(move || addresses.borrow().clone()),
            identity: Rc::new(move |is_usable| {
                identities.borrow_mut().push(is_usable);
                let user = if is_usable { "system:node:edge-7" } else { "system:bootstrap:abcdef" };
                (is_usable || has_bootstrap.get()).then(|| server.client(user))
            }),
            rotate: true,
            renew_now,
            clock: self.clock.clone(),
            dice: Dice::seeded(1),
            offline: Rc::new(|| Duration::ZERO),
            nudge: Rc::clone(&self.nudge),
            state,
        }
    }

    fn stage(&self) -> CertificateStage {
        self.state.borrow().stage.clone()
    }

    fn is_current(&self) -> bool {
        matches!(self.stage(), CertificateStage::Current { .. })
    }
}

/// Runs the task until something is so, and says how long that took.
async fn until<F: Future>(task: &mut Pin<&mut F>, is_so: impl Fn() -> bool) -> Duration {
    let began = tokio::time::Instant::now();
    for _ in 0..20_000 {
        let step = (Duration::from_millis(100) + began.elapsed() / 50).min(LONGEST_SLEEP);
        tokio::select! {
            biased;
            _ = task.as_mut() => panic!("the task ended"),
            () = sleep(step) => {}
        }
        if is_so() {
            return began.elapsed();
        }
    }
    panic!("it never was so");
}

#[tokio::test(start_paused = true)]
async fn a_serving_certificate_waits_for_an_address() {
    let scene = Scene::new(CertificateSigner::Serving);
    let node = NodeState { name: "edge-7".into(), hostname: "edge-7".into(), ..NodeState::default() };
    let node = Rc::new(RefCell::new(node));
    let shown = Rc::clone(&node);
    let second = Duration::from_secs(1);
    let run = async {
        let (client, clock) = (scene.server.client("system:node:edge-7"), scene.clock.clone());
        let (directory, nudge) = (scene.directory.path(), Rc::clone(&scene.nudge));
        let share = Rc::new(|| Duration::ZERO);
        let node_now = Rc::new(move || shown.borrow().clone());
        let kept = keep_serving(client, directory, node_now, (clock, Dice::seeded(1)), share, nudge);
        let (task, state) = kept.unwrap();
        sleep(second).await;
        assert_eq!(scene.server.count(), 0);
        node.borrow_mut().addresses.push("10.0.0.1".to_owned());
        scene.nudge.notify_one();
        sleep(second).await;
        let asked = scene.server.server.writes().pop().unwrap().body;
        assert_eq!(asked["spec"]["signerName"], "kubernetes.io/kubelet-serving");
        scene.server.approve(365, &["10.0.0.1", "edge-7"]);
        sleep(second).await;
        assert!(matches!(state.borrow().stage, CertificateStage::Current { .. }), "{:?}", state.borrow());
        assert!(fs::read_to_string(serving_pair_file(directory)).unwrap().contains("PRIVATE KEY"));
        task.abort();
    };
    tokio::task::LocalSet::new().run_until(run).await;
}

#[tokio::test(start_paused = true)]
async fn the_kubeconfig_is_written_before_the_certificate() {
    let mut scene = Scene::new(CertificateSigner::Client);
    let files = scene.files(CertificateSigner::Client);
    let kubeconfig = scene.directory.join("etc/kubelet.conf");
    let cluster = ClusterEntry { server: "https://10.0.0.1:6443".into(), ..ClusterEntry::default() };
    let renew = prepare(Beginning::Bootstrap, None, &files, &kubeconfig, &cluster, start()).unwrap();
    assert!(!renew && !files.current_path().exists());
    let written = yaml_to_values(&fs::read_to_string(&kubeconfig).unwrap(), true).unwrap().remove(0);
    let named = &written["users"][0]["user"]["client-certificate"];
    assert_eq!(named.as_str(), files.current_path().to_str());

    let mut task = pin!(scene.keeper(CertificateSigner::Client, renew).run());
    let server = Rc::clone(&scene.server);
    until(&mut task, || server.count() == 1).await;
    assert_eq!(scene.stage(), CertificateStage::Requested { name: server.last() });
    assert_eq!(*scene.identities.borrow(), [false], "the bootstrap credentials ask");
    server.approve(365, &[]);
    until(&mut task, || scene.is_current()).await;
    let CertificateStage::Current { until, renews } = scene.stage() else { panic!() };
    assert_eq!(until.to_rfc3339(), "2028-01-01T00:00:00Z");
    assert!((255..=328).contains(&(renews.saturating_since(start()).as_secs() / 86_400)), "{renews}");
    assert!(files.current().unwrap().unwrap().contains("PRIVATE KEY"));
}

#[tokio::test(start_paused = true)]
async fn a_crash_reuses_key_and_request_name() {
    let mut scene = Scene::new(CertificateSigner::Client);
    let server = Rc::clone(&scene.server);
    {
        let mut task = pin!(scene.keeper(CertificateSigner::Client, false).run());
        until(&mut task, || server.count() == 1).await;
    }
    let mut task = pin!(scene.keeper(CertificateSigner::Client, false).run());
    until(&mut task, || server.count() == 2).await;
    server.approve(365, &[]);
    until(&mut task, || scene.is_current()).await;
    assert_eq!(server.made(), 1);
    // A year later, by another key. It is looked up again every quarter of an hour.
    until(&mut task, || server.count() >= 3).await;
    let asked = server.asked();
    assert!(asked[0] == asked[1] && asked[1] != asked[2], "{asked:?}");
    assert_eq!(scene.identities.borrow().last(), Some(&true), "the node's own identity asks");
    let passed = scene.clock.now().saturating_since(start()).as_secs() / 86_400;
    assert!((255..330).contains(&passed), "{passed}");
    assert!(scene.is_current(), "it is valid while the next one is awaited");
}

#[tokio::test(start_paused = true)]
async fn embedded_certificates_are_rotated_at_once() {
    let mut scene = Scene::new(CertificateSigner::Client);
    let files = scene.files(CertificateSigner::Client);
    let key = KeyPair::generate().unwrap();
    let pair = NamedPair { certificate: signed(&key, 365, &[]), key: key.serialize_pem(), is_embedded: true };
    let kubeconfig = scene.directory.join("kubelet.conf");
    let (cluster, now) = (ClusterEntry::default(), start());
    assert!(prepare(Beginning::Primed, Some(&pair), &files, &kubeconfig, &cluster, now).unwrap());
    assert!(!kubeconfig.exists(), "the owner's file stays as it is");
    let mut task = pin!(scene.keeper(CertificateSigner::Client, true).run());
    let server = Rc::clone(&scene.server);
    until(&mut task, || server.count() == 1).await;
    assert_eq!(*scene.identities.borrow(), [true]);
    server.approve(730, &[]);
    let wanted = "2028-12-31T00:00:00Z";
    let is_new =
        || matches!(scene.stage(), CertificateStage::Current { until, .. } if until.to_rfc3339() == wanted);
    until(&mut task, is_new).await;
    assert_eq!(server.count(), 1, "once");
}

#[tokio::test(start_paused = true)]
async fn a_denied_request_is_made_again() {
    let mut scene = Scene::new(CertificateSigner::Client);
    let server = Rc::clone(&scene.server);
    let mut task = pin!(scene.keeper(CertificateSigner::Client, false).run());
    until(&mut task, || server.count() == 1).await;
    let denied = json!([{ "type": "Denied", "reason": "Nope", "message": "not you" }]);
    server.update(json!({ "conditions": denied }));
    until(&mut task, || !scene.state.borrow().trouble.is_empty()).await;
    let said = scene.state.borrow().trouble.clone();
    assert_eq!(said, "certificate signing request is denied, reason: Nope, message: not you");
    let took = until(&mut task, || server.count() == 2).await;
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert_eq!(server.made(), 2, "of another key, so of another name");
    server.approve(365, &[]);
    until(&mut task, || scene.is_current()).await;
    assert_eq!(scene.state.borrow().trouble, "");
}

#[tokio::test(start_paused = true)]
async fn a_request_is_found_again_after_any_trouble() {
    let mut scene = Scene::new(CertificateSigner::Client);
    let server = Rc::clone(&scene.server);
    server.server.faults().refuse = true;
    let mut task = pin!(scene.keeper(CertificateSigner::Client, false).run());
    until(&mut task, || !scene.state.borrow().trouble.is_empty()).await;
    let said = scene.state.borrow().trouble.clone();
    assert_eq!(said, "cannot create certificate signing request: connect: connection refused");
    server.server.faults().refuse = false;
    until(&mut task, || server.count() == 1).await;
    // It is not signed for a quarter of an hour.
    let took = until(&mut task, || server.count() == 2).await;
    assert!((900..960).contains(&took.as_secs()), "{took:?}");
    // The controller manager has cleaned up.
    server.server.remove(&format!("{REQUESTS}/{}", server.last()), Removal::Force);
    until(&mut task, || server.count() == 3).await;
    // The link is lost while it waits.
    server.server.faults().refuse = true;
    until(&mut task, || true).await;
    server.server.faults().refuse = false;
    server.approve(365, &[]);
    until(&mut task, || scene.is_current()).await;
    let asked = server.asked();
    assert!(asked.iter().all(|name| *name == asked[0]), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_new_bootstrap_file_is_used_at_once() {
    let mut scene = Scene::new(CertificateSigner::Client);
    let (server, files) = (Rc::clone(&scene.server), scene.files(CertificateSigner::Client));
    let key = KeyPair::generate().unwrap();
    files.update(&signed(&key, 10, &[]), &key.serialize_pem(), start()).unwrap();
    scene.has_bootstrap.set(false);
    scene.clock.set(start().saturating_add(DAY * 400));
    let mut task = pin!(scene.keeper(CertificateSigner::Client, false).run());
    until(&mut task, || !scene.state.borrow().trouble.is_empty()).await;
    assert_eq!(scene.stage(), CertificateStage::Expired { until: start().saturating_add(DAY * 10) });
    let said = scene.state.borrow().trouble.clone();
    assert!(said.starts_with("there is neither a valid client certificate"), "{said}");
    scene.has_bootstrap.set(true);
    scene.nudge.notify_one();
    let took = until(&mut task, || server.count() == 1).await;
    assert!(took <= Duration::from_millis(100), "{took:?}");
    server.approve(800, &[]);
    until(&mut task, || scene.is_current()).await;
}

#[tokio::test(start_paused = true)]
async fn a_serving_request_follows_the_addresses() {
    let mut scene = Scene::new(CertificateSigner::Serving);
    let server = Rc::clone(&scene.server);
    let address = |ip: &str| ("InternalIP".to_owned(), ip.to_owned());
    let mut task = pin!(scene.keeper(CertificateSigner::Serving, false).run());
    until(&mut task, || true).await;
    assert_eq!(server.count(), 0, "without an address");
    scene.addresses.borrow_mut().push(address("10.0.0.7"));
    scene.nudge.notify_one();
    until(&mut task, || server.count() == 1).await;
    // Another address while it waits.
    *scene.addresses.borrow_mut() = vec![address("10.0.0.8")];
    scene.nudge.notify_one();
    until(&mut task, || server.count() == 2).await;
    assert_eq!(server.made(), 2, "another request");
    server.approve(365, &["10.0.0.8"]);
    until(&mut task, || scene.is_current()).await;
    scene.addresses.borrow_mut().push(address("10.0.0.9"));
    scene.nudge.notify_one();
    until(&mut task, || server.count() == 3).await;
    server.approve(365, &["10.0.0.8", "10.0.0.9"]);
    until(&mut task, || !server.key_file.exists()).await;
    *scene.addresses.borrow_mut() = vec![address("10.0.0.9")];
    scene.nudge.notify_one();
    until(&mut task, || true).await;
    assert_eq!(server.count(), 3, "a name too many does not matter");
}

#[tokio::test]
async fn a_file_that_is_put_in_place_nudges() {
    let directory = TempDir::new();
    directory.put("other", "");
    let nudge = Rc::new(Notify::new());
    let mut task = pin!(watch_file(directory.join("bootstrap-kubelet.conf"), Rc::clone(&nudge)));
    let mut nudged = async || {
        tokio::select! {
            biased;
            () = task.as_mut() => panic!("the task ended"),
            () = nudge.notified() => true,
            () = sleep(Duration::from_millis(300)) => false,
        }
    };
    assert!(!nudged().await);
    directory.put("other", "changed");
    assert!(!nudged().await);
    directory.put("bootstrap-kubelet.conf", "one");
    assert!(nudged().await);
    fs::write(directory.join("bootstrap-kubelet.conf"), "two").unwrap();
    assert!(nudged().await);
}
