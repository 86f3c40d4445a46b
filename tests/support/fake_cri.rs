//! A CRI v1 server on a Unix socket, for tests of the real program: the simulated world of `runtime/fake` behind gRPC.
//!
//! It lives on a thread of its own, so that tests may block. It answers at once unless told otherwise, in real time, and
//! is gone when the value is dropped.

#![allow(dead_code, reason = "a kit: not every test uses every switch")]

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::path::{Path, PathBuf};
#[expect(clippy::disallowed_types, reason = "tests reach into a server that runs on another thread")]
use std::sync::Mutex;
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use edge_agent::model::types::Timestamp;
use edge_agent::platform::clock::Clock;
use edge_agent::platform::proto::runtime as cri;
use edge_agent::runtime::fake::{FakeImage, Program, World};
use edge_agent::runtime::{ErrorKind, RuntimeError};
use tokio::sync::{Notify, watch};
use tonic::{Code, Status};

mod messages;
mod serve;
mod services;

/// Longest that the server may take to open or close its socket.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which streams of events the server offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    /// CRI's `GetContainerEvents`.
    Cri,
    /// containerd's own, as containerd 1.6.
    Containerd,
    /// None at all.
    None,
}

/// One call the server got.
#[derive(Clone, Debug)]
pub struct Call {
    /// When it arrived.
    pub at: Instant,
    /// CRI's name.
    pub name: &'static str,
    /// Id, image or name concerned; empty for none.
    pub subject: String,
}

/// A running server.
pub struct FakeCri {
    path: PathBuf,
    shared: Arc<Shared>,
    open: watch::Sender<Wanted>,
    opened: watch::Receiver<bool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Open,
    Closed,
    Gone,
}

struct Shared {
    #[expect(clippy::disallowed_types, reason = "see the import")]
    state: Mutex<State>,
    changed: Notify,
    hand: tokio::sync::Mutex<()>,
}

/// Everything a test may look at or change.
#[derive(Debug)]
pub struct State {
    /// Sandboxes, containers and images.
    pub world: World,
    /// Sandbox configurations as they came over the wire, by sandbox id; kept after removal.
    pub sandbox_configs: BTreeMap<String, cri::PodSandboxConfig>,
    /// Container configurations as they came over the wire, by container id; kept after removal.
    pub container_configs: BTreeMap<String, cri::ContainerConfig>,
    /// `runtime_handler` of sandboxes, by sandbox id; kept after removal.
    pub runtime_handlers: BTreeMap<String, String>,
    /// Commands in containers as they came over the wire, oldest first.
    pub commands: Vec<cri::ExecSyncRequest>,
    /// Changes of resources as they came over the wire, oldest first.
    pub updates: Vec<cri::UpdateContainerResourcesRequest>,
    /// Calls so far, oldest first.
    pub calls: Vec<Call>,
    /// Which events there are. A change closes the streams that are open.
    pub events: Events,
    /// Calls that get no answer.
    pub hang: BTreeSet<&'static str>,
    /// Calls that fail without effect.
    pub fail: BTreeMap<&'static str, (Code, String)>,
    /// Added to every answer.
    pub latency: Duration,
    /// What the server is busy with every call; meanwhile the others wait, as if it had but one hand.
    pub busy: Duration,
}

impl FakeCri {
    /// Serves at `path`, whose directory exists.
    pub fn start(path: &Path) -> Self {
        let state = State {
            world: World::default(),
            sandbox_configs: BTreeMap::new(),
            container_configs: BTreeMap::new(),
            runtime_handlers: BTreeMap::new(),
            commands: Vec::new(),
            updates: Vec::new(),
            calls: Vec::new(),
            events: Events::Cri,
            hang: BTreeSet::new(),
            fail: BTreeMap::new(),
            latency: Duration::ZERO,
            busy: Duration::ZERO,
        };
        #[expect(clippy::disallowed_types, reason = "see the import")]
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Notify::new(),
            hand: tokio::sync::Mutex::default(),
        });
        let (open, wanted) = watch::channel(Wanted::Open);
        let (told, opened) = watch::channel(false);
        let thread = {
            let (path, shared) = (path.to_owned(), Arc::clone(&shared));
            std::thread::Builder::new()
                .name("fake-cri".into())
                .spawn(move || serve::run(&path, &shared, wanted, &told))
        };
        let thread = thread.expect("start the server's thread");
        let server = Self { path: path.to_owned(), shared, open, opened, thread: Some(thread) };
        server.wait_until_opened(true);
        server
    }

    /// What to configure.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// The state, settled and locked while the guard lives; streams of events look again at their next wake-up.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.shared.changed.notify_waiters();
        self.shared.lock()
    }

    /// Changes the world behind the agent's back.
    pub fn change<T>(&self, change: impl FnOnce(&mut World, Timestamp) -> T) -> T {
        let answer = change(&mut self.shared.lock().world, Clock::System.now());
        self.shared.changed.notify_waiters();
        answer
    }

    /// Puts an image on the node.
    pub fn add_image(&self, reference: &str) {
        self.change(|world, _| world.images.insert(reference.to_owned(), FakeImage::named(reference)));
    }

    /// What containers of this name, or of this image, do.
    pub fn script(&self, name_or_image: &str, program: Program) {
        self.change(|world, _| world.set_programs(name_or_image, vec![program]));
    }

    /// Names of the calls so far, oldest first.
    pub fn call_names(&self) -> Vec<&'static str> {
        self.shared.lock().calls.iter().map(|call| call.name).collect()
    }

    /// The runtime goes away: socket and connections; the world stays.
    pub fn close(&self) {
        self.open.send_replace(Wanted::Closed);
        self.wait_until_opened(false);
    }

    /// The runtime comes back.
    pub fn reopen(&self) {
        self.open.send_replace(Wanted::Open);
        self.wait_until_opened(true);
    }

    fn wait_until_opened(&self, wanted: bool) {
        let deadline = Instant::now() + PATIENCE;
        while *self.opened.borrow() != wanted {
            assert!(Instant::now() < deadline, "the fake CRI server did not get to opened={wanted}");
            std::thread::yield_now();
        }
    }
}

impl Drop for FakeCri {
    fn drop(&mut self) {
        self.open.send_replace(Wanted::Gone);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the fake CRI server panicked");
        }
    }
}

impl Shared {
    /// The state as of now. A violated invariant poisons it, and then every later look fails the test too.
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state =
            self.state.lock().expect("an invariant of the simulated runtime was violated, see above");
        state.world.settle(Clock::System.now());
        state
    }

    /// What every call meets first: the log, then the faults.
    async fn arrive(&self, name: &'static str, subject: &str) -> Result<(), Status> {
        let (hangs, failure, latency, busy) = {
            let mut state = self.lock();
            state.calls.push(Call { at: Instant::now(), name, subject: subject.to_owned() });
            (state.hang.contains(name), state.fail.get(name).cloned(), state.latency, state.busy)
        };
        if hangs {
            pending::<()>().await;
        }
        if !busy.is_zero() {
            let _hand = self.hand.lock().await;
            tokio::time::sleep(busy).await;
        }
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        failure.map_or(Ok(()), |(code, message)| Err(Status::new(code, message)))
    }

    /// A call with its effect.
    async fn call<T>(
        &self,
        name: &'static str,
        subject: &str,
        effect: impl FnOnce(&mut State, Timestamp) -> Result<T, RuntimeError> + Send,
    ) -> Result<T, Status> {
        self.arrive(name, subject).await?;
        let answer = effect(&mut self.lock(), Clock::System.now());
        self.changed.notify_waiters();
        answer.map_err(|error| status_of(&error))
    }
}

/// As containerd codes its errors: a reserved name has no code of its own.
fn status_of(error: &RuntimeError) -> Status {
    let code = match error.kind {
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Timeout => Code::DeadlineExceeded,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::Unimplemented => Code::Unimplemented,
        ErrorKind::AlreadyExists | ErrorKind::Refused => Code::Unknown,
    };
    Status::new(code, error.message.clone())
}
