//! Images and a full disk, against a simulated runtime.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::model::api::decode::decode;
use crate::model::api::pod::Pod;
use crate::model::objects::LocalObjects;
use crate::model::revisions::Revisions;
use crate::model::runtime_config::CgroupDriver;
use crate::model::types::{PodUid, Timestamp};
use crate::node::eviction::{ThresholdTexts, thresholds};
use crate::node::stats::StatsConfig;
use crate::platform::cgroup::CgroupConfig;
use crate::pod::inbox::Eviction;
use crate::pod::resources::CgroupLayout;
use crate::runtime::fake::{FakeImage, FakeRuntime};
use crate::runtime::{DiskPlaces, ErrorKind, RuntimeError, RuntimeImage};
use crate::store::{Mode, OpenOptions, StoreHandle};

/// Records the evicted pods.
#[derive(Default)]
struct Notes(RefCell<Vec<String>>);

impl PodPressure for Notes {
    fn evict(&self, uid: &PodUid, _: Eviction) {
        self.0.borrow_mut().push(uid.to_string());
    }

    fn set_pressure(&self, _: BTreeSet<Pressure>) {}

    fn set_short_of_disk(&self, _: bool) {}

    fn set_shutting_down(&self, _: bool) {}
}

struct Bench {
    fake: FakeRuntime,
    keeper: NodeManager,
    events: EventRecorder,
    statuses: Rc<StatusManager>,
    gone: Rc<Notes>,
}

/// A node whose disk of images is too full at 85 %, and whose own disk at 100 % less one byte: it is always
/// short of space.
fn bench(hard: &str) -> Bench {
    let clock = Clock::manual(Timestamp::from_secs(1_795_190_400));
    let fake = FakeRuntime::new(clock.clone(), 1);
    let options = OpenOptions { mode: Mode::Inline, ..OpenOptions::default() };
    let store = StoreHandle::open_in_memory(options).unwrap();
    let events = EventRecorder::new("n".into(), clock.clone(), store.clone(), vec![]);
    let revisions = Revisions::since(clock.now());
    let statuses = Rc::new(StatusManager::new(store, BTreeMap::new(), revisions.clone()));
    let texts = ThresholdTexts {
        hard: [("nodefs.available".to_owned(), hard.to_owned())].into(),
        ..ThresholdTexts::default()
    };
    let config = NodeConfig {
        eviction: EvictionConfig { thresholds: thresholds(&texts), ..EvictionConfig::default() },
        images: ImageLimits { minimum_age: Duration::ZERO, ..ImageLimits::default() },
        root_dir: PathBuf::from("/"),
        ..NodeConfig::default()
    };
    let cgroup = CgroupConfig { mount: PathBuf::from("/nowhere"), v2: true, driver: CgroupDriver::Cgroupfs };
    let stats = StatsConfig {
        node_name: "n".to_owned(),
        cgroup,
        layout: CgroupLayout { driver: CgroupDriver::Cgroupfs, root: "/".to_owned(), per_qos: true },
        proc: PathBuf::from("/nowhere"),
        runtime_cgroup: String::new(),
        root_dir: PathBuf::from("/"),
        pod_logs_dir: PathBuf::from("/nowhere"),
        walk_period: Some(Duration::from_secs(60)),
    };
    let objects = Rc::new(LocalObjects::new(PathBuf::from("/nowhere"), revisions));
    let gone = Rc::new(Notes::default());
    let parts = NodeParts {
        config: Live::new(config),
        clock: clock.clone(),
        events: events.clone(),
        statuses: Rc::clone(&statuses),
        health: Rc::default(),
        pods: Rc::<Notes>::clone(&gone),
        runtime: Rc::new(fake.clone()),
        stats: Stats::new(stats, objects, clock),
        on_checked: Rc::new(|| {}),
        measure: Rc::new(|| Box::pin(async { Ok(Summary::default()) })),
    };
    Bench { fake, keeper: NodeManager::new(parts), events, statuses, gone }
}

impl Bench {
    fn add(&self, name: &str, mib: u64) {
        let image = FakeImage { size_bytes: mib << 20, ..FakeImage::named(name) };
        self.fake.change(|world, _| world.images.insert(name.to_owned(), image));
    }

    fn left(&self) -> Vec<String> {
        self.fake.world().images.keys().cloned().collect()
    }

    /// Desired, and not running yet.
    fn want(&self, name: &str, image: &str, source: &str) {
        let raw = json!({"metadata": {"name": name, "namespace": "default", "uid": name,
            "annotations": {"kubernetes.io/config.source": source}},
            "spec": {"containers": [{"name": "c", "image": image}]}, "status": {"phase": "Running"}});
        let pod: Pod = decode(raw).unwrap().object;
        let pod = Rc::new(pod);
        self.statuses.expect(&pod);
        self.statuses.set(&pod, pod.status.clone());
    }

    async fn look(&mut self, available_mib: u64) -> Option<Duration> {
        let disk = FileSystemFacts {
            capacity: 100 << 20,
            available: available_mib << 20,
            ..FileSystemFacts::default()
        };
        self.keeper.keep_images(Some(disk), true).await
    }

    fn told(&self, reason: &str) -> u32 {
        self.events.recent().iter().filter(|event| event.key.reason == reason).map(|event| event.count).sum()
    }
}

fn run<F: Future>(test: F) -> F::Output {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    rt::run_jobs_inline();
    tokio::task::LocalSet::new().block_on(&runtime, test)
}

#[test]
fn image_gc_frees_only_what_is_needed_and_no_wanted_image() {
    run(async {
        let mut bench = bench("1");
        for (name, mib) in [("a", 3), ("b", 3), ("c", 3), ("wanted", 50)] {
            bench.add(name, mib);
        }
        bench.want("p", "wanted", "file");
        bench.look(20).await;
        assert_eq!(bench.left().len(), 4, "the disk is not too full");
        bench.look(15).await;
        assert_eq!(bench.left(), ["c", "wanted"], "5 MiB were to be freed");
        bench.look(15).await;
        assert_eq!(bench.left(), ["c", "wanted"], "not again within five minutes");
        tokio::time::advance(Duration::from_secs(300)).await;
        bench.look(1).await;
        assert_eq!((bench.left(), bench.told("FreeDiskSpaceFailed")), (vec!["wanted".to_owned()], 1));
        tokio::time::advance(Duration::from_secs(300)).await;
        bench.look(1).await;
        assert_eq!(bench.told("FreeDiskSpaceFailed"), 1, "told once, until there is room");
        bench.look(50).await;
        tokio::time::advance(Duration::from_secs(300)).await;
        bench.look(1).await;
        assert_eq!(bench.told("FreeDiskSpaceFailed"), 2);
    });
}

/// A runtime that keeps one image, and refuses a question about what is no reference.
struct Stubborn {
    fake: Rc<FakeRuntime>,
    keeps: &'static str,
}

impl NodeRuntime for Stubborn {
    fn places(self: Rc<Self>) -> Pending<Result<DiskPlaces, RuntimeError>> {
        Rc::clone(&self.fake).places()
    }

    fn images(self: Rc<Self>) -> Pending<Result<Vec<RuntimeImage>, RuntimeError>> {
        Rc::clone(&self.fake).images()
    }

    fn used_images(self: Rc<Self>) -> Pending<Result<BTreeSet<String>, RuntimeError>> {
        Rc::clone(&self.fake).used_images()
    }

    fn ids_of(
        self: Rc<Self>,
        references: BTreeSet<String>,
    ) -> Pending<Result<BTreeSet<String>, RuntimeError>> {
        if references.iter().any(|name| name.contains(char::is_uppercase)) {
            let error = RuntimeError::new("ImageStatus", ErrorKind::Refused, "invalid reference format");
            return Box::pin(async { Err(error) });
        }
        Rc::clone(&self.fake).ids_of(references)
    }

    fn remove(self: Rc<Self>, id: String) -> Pending<Result<Option<u64>, RuntimeError>> {
        if id == self.keeps {
            let error = RuntimeError::new("RemoveImage", ErrorKind::AlreadyExists, "it has child images");
            return Box::pin(async { Err(error) });
        }
        Rc::clone(&self.fake).remove(id)
    }
}

#[test]
fn one_image_or_name_that_is_refused_stops_no_collection() {
    run(async {
        let mut bench = bench("1");
        let keeps = "sha256:a";
        bench.keeper.parts.runtime = Rc::new(Stubborn { fake: Rc::new(bench.fake.clone()), keeps });
        for name in ["a", "b", "c"] {
            bench.add(name, 3);
        }
        bench.want("p", "Nginx:latest", "file");
        bench.look(15).await;
        assert_eq!(bench.left(), ["a"], "5 MiB were to be freed");
        assert_eq!((bench.told("ImageGCFailed"), bench.told("FreeDiskSpaceFailed")), (1, 0));

        let mut config = NodeConfig::clone(&bench.keeper.parts.config.get());
        config.images.maximum_age = Duration::from_secs(30);
        bench.keeper.parts.config.set(config);
        bench.add("b", 3);
        tokio::time::advance(Duration::from_secs(300)).await;
        bench.look(50).await;
        tokio::time::advance(Duration::from_secs(31)).await;
        bench.look(50).await;
        assert_eq!(bench.left(), ["a"], "b is too old, too");
    });
}

#[test]
fn an_image_that_is_too_young_is_come_back_for() {
    run(async {
        let mut bench = bench("1");
        let mut config = NodeConfig::clone(&bench.keeper.parts.config.get());
        config.images.minimum_age = Duration::from_secs(120);
        bench.keeper.parts.config.set(config);
        bench.look(50).await;
        bench.add("new", 5);
        let again = bench.look(10).await;
        assert_eq!((bench.left().len(), again), (1, Some(Duration::from_secs(120))));
        tokio::time::advance(Duration::from_secs(120)).await;
        bench.look(10).await;
        assert!(bench.left().is_empty());
    });
}

#[test]
fn pods_are_evicted_singly_once_images_are_exhausted() {
    run(async {
        // This machine's disk has more than zero bytes free: one image is enough.
        let mut enough = bench("1");
        enough.add("a", 1);
        enough.add("b", 1);
        enough.want("may-go", "x", "api");
        let threshold = enough.keeper.parts.config.get().eviction.thresholds[0];
        let look = enough.keeper.observe().await;
        assert!(enough.keeper.reclaim(threshold, &look).await, "dead containers first");
        assert_eq!((enough.left().len(), enough.gone.0.borrow().len()), (2, 0));
        assert!(enough.keeper.reclaim(threshold, &look).await);
        assert_eq!((enough.left().len(), enough.gone.0.borrow().len()), (1, 0));

        // No disk has as much: all images are removed, and then pods are evicted.
        let mut short = bench("4Ei");
        short.add("a", 1);
        for (name, source) in [("b-may-go", "api"), ("a-may-go", "api"), ("stays", "file")] {
            short.want(name, "x", source);
        }
        let look = short.keeper.observe().await;
        let threshold = short.keeper.parts.config.get().eviction.thresholds[0];
        assert!(short.keeper.reclaim(threshold, &look).await && short.gone.0.borrow().is_empty());
        assert!(short.keeper.reclaim(threshold, &look).await);
        assert!(short.left().is_empty());
        assert_eq!(short.gone.0.borrow().len(), 1);
        assert_eq!(short.told("EvictionThresholdMet"), 1);
    });
}

#[test]
fn changed_limits_of_images_count_at_the_next_check() {
    run(async {
        let mut bench = bench("1");
        let set = |bench: &Bench, change: fn(&mut ImageLimits)| {
            let mut config = NodeConfig::clone(&bench.keeper.parts.config.get());
            change(&mut config.images);
            bench.keeper.parts.config.set(config);
        };
        let disk = FileSystemFacts { capacity: 100 << 20, available: 10 << 20, ..FileSystemFacts::default() };
        let day = |limits: &mut ImageLimits| limits.minimum_age = Duration::from_secs(86_400);
        set(&bench, day);
        bench.keeper.run_check().await;
        bench.add("new", 5);
        bench.keeper.is_futile = true;
        bench.keeper.keep_images(Some(disk), true).await;
        let again = bench.keeper.keep_images(Some(disk), false).await;
        assert_eq!((bench.left().len(), again), (1, Some(Duration::from_secs(86_400))));
        set(&bench, |limits| limits.minimum_age = Duration::ZERO);
        bench.keeper.run_check().await;
        assert!(!bench.keeper.is_futile);
        bench.keeper.keep_images(Some(disk), false).await;
        assert!(bench.left().is_empty());

        bench.add("old", 5);
        bench.keeper.run_check().await;
        set(&bench, |limits| limits.maximum_age = Duration::from_secs(30));
        assert!(bench.keeper.run_check().await <= Duration::from_secs(30), "the image is known");
        tokio::time::advance(Duration::from_secs(31)).await;
        bench.keeper.run_check().await;
        assert!(bench.left().is_empty());
    });
}
