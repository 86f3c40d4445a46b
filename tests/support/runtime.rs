//! The runtime below a test's agent: a real containerd, a real Docker Engine, or the agent's own.

use std::cell::Cell;
use std::path::PathBuf;

use nix::sys::signal::Signal;

use super::agent::AgentProcess;
use super::containerd::{Containerd, Instance};
use super::docker::Docker;
use super::embedded::Embedded;
use super::scratch::Scratch;

/// Which runtime a scenario runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// containerd with runc.
    Containerd,
    /// The agent's own.
    Embedded,
    /// Docker Engine.
    Docker,
}

thread_local! {
    /// Of this test; each has a thread of its own.
    static KIND: Cell<Kind> = const { Cell::new(Kind::Containerd) };
}

/// Runs a scenario on a runtime.
pub fn on(kind: Kind, scenario: fn()) {
    KIND.set(kind);
    scenario();
}

/// A runtime with the test images, and what it runs.
pub enum TestRuntime {
    /// containerd with runc.
    Containerd(Containerd),
    /// The agent's own.
    Embedded(Embedded),
    /// Docker Engine.
    Docker(Docker),
}

impl TestRuntime {
    /// Of the kind that this test runs on.
    pub fn start() -> Self {
        match KIND.get() {
            Kind::Containerd => Self::Containerd(Containerd::start()),
            Kind::Embedded => Self::Embedded(Embedded::new()),
            Kind::Docker => Self::Docker(Docker::start()),
        }
    }

    /// An agent that uses it.
    pub fn agent(&self) -> AgentProcess {
        match self {
            Self::Containerd(containerd) => {
                AgentProcess::new(containerd.scratch().path(), &containerd.endpoint())
            }
            Self::Embedded(embedded) => {
                let mut agent = AgentProcess::new(embedded.scratch().path(), "embedded");
                embedded.configure(&mut agent);
                agent
            }
            Self::Docker(docker) => {
                let mut agent = AgentProcess::new(docker.scratch().path(), &docker.endpoint());
                docker.configure(&mut agent);
                agent
            }
        }
    }

    /// For scenarios about containerd itself.
    pub fn containerd(&self) -> &Containerd {
        match self {
            Self::Containerd(containerd) => containerd,
            Self::Embedded(_) | Self::Docker(_) => panic!("this scenario is about containerd"),
        }
    }

    /// Ends the runtime's daemon; containers stay, as in an upgrade.
    pub fn end_daemon(&self, signal: Signal) {
        match self {
            Self::Containerd(containerd) => containerd.end_daemon(signal),
            Self::Docker(docker) => docker.end_daemon(signal),
            Self::Embedded(_) => panic!("this runtime has no daemon"),
        }
    }

    /// Starts it again.
    pub fn start_daemon(&self) {
        match self {
            Self::Containerd(containerd) => containerd.start_daemon(),
            Self::Docker(docker) => docker.start_daemon(),
            Self::Embedded(_) => panic!("this runtime has no daemon"),
        }
    }

    /// True when the handler `second` made the container.
    pub fn is_second(&self, instance: &Instance) -> bool {
        match self {
            // It keeps its containers in a place of its own.
            Self::Containerd(containerd) => {
                containerd.scratch().path().join("second/k8s.io").join(&instance.id).is_dir()
            }
            Self::Embedded(embedded) => embedded.second_calls().contains(&instance.id),
            Self::Docker(docker) => docker.second_calls().contains(&instance.id),
        }
    }

    /// Places where a runtime keeps something per sandbox or container, which must be empty when there is none.
    pub fn places(&self) -> Vec<PathBuf> {
        let below = |names: &[&str]| names.iter().map(|name| self.scratch().path().join(name)).collect();
        match self {
            Self::Containerd(_) => below(&["leases/test", "state/io.containerd.grpc.v1.cri/netns"]),
            Self::Embedded(_) => {
                below(&["state/sandboxes", "state/network", "agent/kubelet/runtime/containers"])
            }
            Self::Docker(_) => below(&["docker/containers", "state/network"]),
        }
    }

    /// The test's directory, for whatever else the test needs.
    pub fn scratch(&self) -> &Scratch {
        match self {
            Self::Containerd(containerd) => containerd.scratch(),
            Self::Embedded(embedded) => embedded.scratch(),
            Self::Docker(docker) => docker.scratch(),
        }
    }

    /// Every sandbox and container, sorted by pod and name; ended ones have no pid.
    pub fn instances(&self) -> Vec<Instance> {
        match self {
            Self::Containerd(containerd) => containerd.instances(),
            Self::Embedded(embedded) => embedded.instances(),
            Self::Docker(docker) => docker.instances(),
        }
    }

    /// The containers of a pod whose process runs, sandboxes left out.
    pub fn running(&self, pod: &str) -> Vec<Instance> {
        let instances = self.instances().into_iter();
        instances
            .filter(|instance| instance.pod == pod && !instance.is_sandbox() && instance.pid.is_some())
            .collect()
    }

    /// Runs a command in a container and returns what it prints.
    pub fn exec(&self, instance: &Instance, command: &[&str]) -> String {
        match self {
            Self::Containerd(containerd) => containerd.exec(instance, command),
            Self::Embedded(_) | Self::Docker(_) => Embedded::exec(instance, command),
        }
    }
}

/// Makes tests `containerd::…` and `embedded::…` of scenarios.
macro_rules! on_both_runtimes {
    ($($scenario:ident),* $(,)?) => {
        mod containerd {
            use crate::support::runtime::{Kind, on};
            $(#[test] fn $scenario() { on(Kind::Containerd, super::$scenario); })*
        }
        mod embedded {
            use crate::support::runtime::{Kind, on};
            $(#[test] fn $scenario() { on(Kind::Embedded, super::$scenario); })*
        }
    };
}

/// Makes tests `containerd::…`, `embedded::…` and `with_docker::…` of scenarios, and only the first two of those that Docker cannot
/// have, or not on the machines of the tests.
macro_rules! on_every_runtime {
    ($($scenario:ident),* $(,)? $(; without_docker: $($other:ident),* $(,)?)?) => {
        crate::support::runtime::on_both_runtimes! { $($scenario,)* $($($other,)*)? }
        mod with_docker {
            use crate::support::runtime::{Kind, on};
            $(#[test] fn $scenario() { on(Kind::Docker, super::$scenario); })*
        }
    };
}

/// Makes tests `daemon_of_containerd::…` and `daemon_of_docker::…` of scenarios about a runtime with a daemon.
macro_rules! on_every_daemon {
    ($($scenario:ident),* $(,)?) => {
        mod daemon_of_containerd {
            use crate::support::runtime::{Kind, on};
            $(#[test] fn $scenario() { on(Kind::Containerd, super::$scenario); })*
        }
        mod daemon_of_docker {
            use crate::support::runtime::{Kind, on};
            $(#[test] fn $scenario() { on(Kind::Docker, super::$scenario); })*
        }
    };
}

/// Makes tests `embedded::…` of scenarios.
macro_rules! on_the_embedded_runtime {
    ($($scenario:ident),* $(,)?) => {
        mod embedded {
            use crate::support::runtime::{Kind, on};
            $(#[test] fn $scenario() { on(Kind::Embedded, super::$scenario); })*
        }
    };
}
pub(crate) use {on_both_runtimes, on_every_daemon, on_every_runtime, on_the_embedded_runtime};
