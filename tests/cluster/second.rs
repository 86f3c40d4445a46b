//! A second machine beside the first one: a thread with namespaces of its own, at the other end of a cable.

use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::unistd::{Pid, gettid};

use super::control_plane::said;
use super::images;
use super::machine::Host;
use crate::support::embedded::Embedded;

type Job = Box<dyn FnOnce(&Host) -> Result<String, String> + Send>;

/// Its name is `second`, its address 192.0.2.11.
pub struct Second {
    jobs: Sender<Job>,
    answers: Receiver<Result<String, String>>,
    thread: JoinHandle<()>,
    network: Pid,
}

fn shell(line: &str) {
    said(Command::new("sh").args(["-c", line])).unwrap_or_else(|error| panic!("{error}"));
}

impl Second {
    /// Before the calling thread has namespaces of its own, which the other would share.
    pub fn start() -> Self {
        let (network, networks) = channel();
        let (jobs, wanted) = channel::<Job>();
        let (answer, answers) = channel();
        let work = move || {
            let runtime = Embedded::new();
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("make a network namespace");
            network.send(gettid()).expect("the first machine waits");
            let Ok(first) = wanted.recv() else { return };
            for line in [
                "ip link set lo up",
                "ip addr add 192.0.2.11/24 dev eth0",
                "ip link set eth0 up",
                "ip route add default dev eth0",
            ] {
                shell(line);
            }
            let host = Host::of(runtime);
            shell("hostname second");
            images::offer(&host.path("images"), &host.path(""));
            for job in std::iter::once(first).chain(wanted) {
                answer.send(job(&host)).expect("the first machine waits");
            }
        };
        let thread = std::thread::Builder::new().name("second".to_owned()).spawn(work);
        let network = networks.recv_timeout(Duration::from_secs(30)).expect("the second machine's network");
        Self { jobs, answers, thread: thread.expect("start a thread"), network }
    }

    /// Connects it with the network of the calling thread.
    pub fn connect(&self) {
        shell(&format!("ip link add to-second type veth peer name eth0 netns {}", self.network));
        shell("ip link set to-second master uplink up");
    }

    /// What the job says, or how it failed.
    pub fn run(&self, job: impl FnOnce(&Host) -> Result<String, String> + Send + 'static) -> Result<String, String> {
        self.jobs.send(Box::new(job)).expect("the second machine runs");
        self.answers.recv().expect("the second machine runs")
    }

    /// The agent with these words.
    pub fn agent(&self, line: &str) -> Result<String, String> {
        let words: Vec<String> =
            line.split_whitespace().filter(|word| *word != "\\").map(str::to_owned).collect();
        self.run(move |host| host.run("agent", &words.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    pub fn finish(self) {
        drop(self.jobs);
        self.thread.join().expect("the second machine");
    }
}
