//! Pods for simulations: what their containers do, and what must have become of them in the end.

use std::time::Duration;

use edge_agent::desired::pod_config::edit::API_ORIGIN;
use edge_agent::desired::source::manifest::parse_manifest;
use edge_agent::model::source::{ManifestOrigin, SourceObject, SourcePod};
use edge_agent::model::types::PodSource;
use edge_agent::runtime::fake::{FakeRuntime, OnStop, Program, Run};

/// What a container does; each is an image of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    /// Runs until stopped.
    Forever,
    /// Runs until killed.
    Stubborn,
    /// Runs until stopped, with an image that takes long to come.
    Slow,
    /// Ends well after a while.
    Done,
    /// Ends badly the first time, well from then on.
    FailsOnce,
    /// Ends badly twice, then runs for ever.
    CrashesTwice,
    /// Always ends badly.
    Crashes,
    /// Cannot be started.
    NoStart,
    /// Cannot be created.
    NoCreate,
    /// Its image does not exist.
    NoImage,
}

/// What must become of a container that nothing disturbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Runs.
    Runs,
    /// Has ended for good with this code.
    Ends(i32),
    /// Ends and is run again, with ever longer pauses.
    Loops,
    /// Has never run and cannot.
    Waits,
}

impl Act {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Forever,
        Self::Stubborn,
        Self::Slow,
        Self::Done,
        Self::FailsOnce,
        Self::CrashesTwice,
        Self::Crashes,
        Self::NoStart,
        Self::NoCreate,
        Self::NoImage,
    ];

    /// The image that acts so.
    pub fn image(self) -> String {
        format!("sim/{}:1", format!("{self:?}").to_lowercase())
    }

    /// Left alone, it never ends.
    pub fn is_lasting(self) -> bool {
        matches!(self, Self::Forever | Self::Stubborn | Self::Slow)
    }

    fn programs(self) -> Vec<Program> {
        let seconds = Duration::from_secs;
        let slow_stop = OnStop::Exits { after: seconds(2), code: 143 };
        match self {
            Self::Forever | Self::NoImage => vec![Program { run: Run::Forever, on_stop: slow_stop }],
            Self::Slow => vec![Program::forever()],
            Self::Stubborn => vec![Program::stubborn()],
            Self::Done => vec![Program::exits(seconds(7), 0)],
            Self::FailsOnce => vec![Program::exits(seconds(3), 1), Program::exits(seconds(3), 0)],
            Self::CrashesTwice => {
                vec![Program::exits(seconds(3), 2), Program::exits(seconds(3), 2), Program::forever()]
            }
            Self::Crashes => vec![Program::exits(seconds(4), 3)],
            Self::NoStart => vec![Program::fails_to_start("exec: no such file")],
            Self::NoCreate => {
                let message = "no such device".to_owned();
                vec![Program { run: Run::FailsToCreate { message }, on_stop: OnStop::default() }]
            }
        }
    }

    /// What it does as the instance after `attempt` others: a pod that comes back counts on.
    pub fn after(self, attempt: u32) -> Self {
        match self {
            Self::FailsOnce if attempt > 0 => Self::Done,
            Self::CrashesTwice if attempt > 1 => Self::Forever,
            other => other,
        }
    }

    /// What becomes of it under a restart policy.
    pub fn fate(self, policy: &str) -> Fate {
        let ends = |code| match policy {
            "Always" => Fate::Loops,
            "OnFailure" if code != 0 => Fate::Loops,
            _ => Fate::Ends(code),
        };
        match self {
            Self::Done => ends(0),
            Self::FailsOnce if policy == "OnFailure" => Fate::Ends(0),
            Self::FailsOnce => ends(1),
            Self::CrashesTwice if policy == "Never" => Fate::Ends(2),
            Self::Forever | Self::Stubborn | Self::Slow | Self::CrashesTwice => Fate::Runs,
            Self::Crashes => ends(3),
            Self::NoStart => ends(128),
            Self::NoCreate | Self::NoImage => Fate::Waits,
        }
    }
}

/// Puts the images of all acts where they belong.
pub fn script_images(fake: &FakeRuntime) {
    for act in Act::ALL {
        fake.change(|world, _| world.set_programs(&act.image(), act.programs()));
        match act {
            Act::NoImage => {}
            Act::Slow => fake.add_remote_image(&act.image(), Duration::from_secs(40)),
            _ => fake.add_image(&act.image()),
        }
    }
}

/// A pod as its user wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// `metadata.name`, without the node's.
    pub name: String,
    /// `restartPolicy`.
    pub policy: &'static str,
    /// Init containers `i0`, `i1`...; `true` for a sidecar.
    pub init: Vec<(Act, bool)>,
    /// Containers `c0`, `c1`...
    pub containers: Vec<Act>,
    /// `terminationGracePeriodSeconds`.
    pub grace: u64,
    /// Tells versions apart.
    pub version: u64,
    /// `lifecycle` of every container and sidecar, as JSON; empty for none.
    pub lifecycle: &'static str,
}

impl Manifest {
    /// One container, default grace.
    pub fn new(name: &str, policy: &'static str, act: Act) -> Self {
        let name = name.to_owned();
        Self { name, policy, init: Vec::new(), containers: vec![act], grace: 30, version: 0, lifecycle: "" }
    }

    /// The act of a container by name.
    pub fn act(&self, container: &str) -> Act {
        let position: usize = container[1..].parse().expect("names are a letter and a number");
        if container.starts_with('i') { self.init[position].0 } else { self.containers[position] }
    }

    /// As it is when its containers have these restart counts. It matters where each runs only once.
    pub fn after(&self, attempt: impl Fn(&str) -> u32) -> Self {
        let mut manifest = self.clone();
        if self.policy == "Never" {
            for (position, (act, is_sidecar)) in manifest.init.iter_mut().enumerate() {
                let attempt = if *is_sidecar { 0 } else { attempt(&format!("i{position}")) };
                *act = act.after(attempt);
            }
            for (position, act) in manifest.containers.iter_mut().enumerate() {
                *act = act.after(attempt(&format!("c{position}")));
            }
        }
        manifest
    }

    /// What the init containers come to: `Ends(0)` lets the containers run.
    pub fn init_fate(&self) -> Fate {
        for (act, is_sidecar) in &self.init {
            let fate = if *is_sidecar { act.fate("Always") } else { init_fate(*act, self.policy) };
            match fate {
                Fate::Runs if *is_sidecar => {}
                Fate::Ends(0) if !is_sidecar => {}
                other => return other,
            }
        }
        Fate::Ends(0)
    }

    /// As the agent's own parser reads it.
    pub fn parse(&self, source: PodSource) -> SourcePod {
        parse_text(&self.name, &self.text(), source)
    }

    fn text(&self) -> String {
        let container = |letter: char, (position, act): (usize, Act), extra: &str| {
            format!(
                r#"{{"name": "{letter}{position}", "image": "{}", "imagePullPolicy": "IfNotPresent"{extra},
                    "volumeMounts": [{{"name": "data", "mountPath": "/data"}}, {{"name": "conf", "mountPath": "/conf"}}]}}"#,
                act.image()
            )
        };
        let lifecycle = match self.lifecycle {
            "" => String::new(),
            lifecycle => format!(r#", "lifecycle": {lifecycle}"#),
        };
        let init: Vec<String> = self
            .init
            .iter()
            .enumerate()
            .map(|(position, (act, is_sidecar))| {
                let sidecar = format!(r#", "restartPolicy": "Always"{lifecycle}"#);
                container('i', (position, *act), if *is_sidecar { &sidecar } else { "" })
            })
            .collect();
        let containers: Vec<String> = self
            .containers
            .iter()
            .copied()
            .enumerate()
            .map(|entry| container('c', entry, &lifecycle))
            .collect();
        format!(
            r#"{{"apiVersion": "v1", "kind": "Pod",
              "metadata": {{"name": "{}", "namespace": "default", "labels": {{"version": "{}"}}}},
              "spec": {{"restartPolicy": "{}", "terminationGracePeriodSeconds": {}, "initContainers": [{}],
                "containers": [{}], "volumes": [{{"name": "data", "emptyDir": {{}}}},
                  {{"name": "conf", "configMap": {{"name": "{CONFIG}", "optional": true}}}}]}}}}"#,
            self.name,
            self.version,
            self.policy,
            self.grace,
            init.join(", "),
            containers.join(", ")
        )
    }
}

/// Where the agent says that something comes from.
fn origin(name: &str, source: PodSource) -> ManifestOrigin {
    let file = || format!("/manifests/{name}.yaml");
    let location = if source == PodSource::Api { API_ORIGIN.to_owned() } else { file() };
    ManifestOrigin { source, location }
}

/// The ConfigMap that all pods have mounted; it may be missing.
pub const CONFIG: &str = "shared";

/// A ConfigMap with one key `k`, as the agent's own parser reads it.
pub fn config_map(name: &str, value: &str, source: PodSource) -> SourceObject {
    let text = format!(
        r#"{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {{"name": "{name}"}}, "data": {{"k": "{value}"}}}}"#
    );
    let origin = origin(name, source);
    let mut parsed = parse_manifest(text.as_bytes(), &origin, "node1");
    assert!(parsed.is_complete() && parsed.objects.len() == 1, "{:?}\n{text}", parsed.problems);
    let mut object = parsed.objects.remove(0);
    if source == PodSource::Api {
        // That of a manifest follows from its name.
        object.uid.insert_str(0, "api-");
    }
    SourceObject { object: std::rc::Rc::new(object), origin: origin.location }
}

/// An object as its user wrote it, as the agent's own parser reads it.
pub fn object(text: &str, source: PodSource) -> SourceObject {
    let origin = origin("objects", source);
    let mut parsed = parse_manifest(text.as_bytes(), &origin, "node1");
    assert!(parsed.is_complete() && parsed.objects.len() == 1, "{:?}\n{text}", parsed.problems);
    let mut object = parsed.objects.remove(0);
    if source == PodSource::Api {
        // That of a manifest follows from its name.
        object.uid.insert_str(0, "api-");
    }
    SourceObject { object: std::rc::Rc::new(object), origin: origin.location }
}

/// One pod as its user wrote it in a file of this name, as the agent's own parser reads it.
pub fn parse_text(name: &str, text: &str, source: PodSource) -> SourcePod {
    let origin = origin(name, source);
    let parsed = parse_manifest(text.as_bytes(), &origin, "node1");
    assert!(parsed.is_complete() && parsed.pods.len() == 1, "{:?}\n{text}", parsed.problems);
    SourcePod { pod: std::rc::Rc::new(parsed.pods[0].clone()), origin: origin.location }
}

/// An init container that ends well is not run again, whatever the policy.
fn init_fate(act: Act, policy: &str) -> Fate {
    match (act, policy) {
        (Act::Done, _) | (Act::FailsOnce, "Always" | "OnFailure") => Fate::Ends(0),
        (act, policy) => act.fate(policy),
    }
}
