//! A further machine, beside the one of the test's thread: a thread with namespaces of its own, which runs what it is given.

use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::unistd::{Pid, gettid};

use super::control_plane::said;
use super::machine::Host;
use crate::support::embedded::Embedded;
use crate::support::image;

type Job = Box<dyn FnOnce(&Host) + Send>;

pub struct Another {
    name: &'static str,
    network: Receiver<Pid>,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Another {
    /// Before the calling thread has namespaces of its own, which the machine would share.
    pub fn start(name: &'static str, address: &'static str) -> Self {
        // Both machines offer them, and would build them at the same time.
        image::archives();
        let (network, networks) = channel();
        let (jobs, given) = channel::<Job>();
        let work = move || {
            let runtime = Embedded::new();
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("make a network namespace");
            network.send(gettid()).expect("the first machine waits");
            let Ok(first) = given.recv() else { return };
            for line in [
                "sysctl -q -w net.ipv4.ip_forward=1",
                "ip link set lo up",
                &format!("ip addr add {address}/24 dev eth0"),
                "ip link set eth0 up",
                "ip route add default dev eth0",
            ] {
                shell(line);
            }
            let host = Host::of(runtime);
            shell(&format!("hostname {name}; echo {address} {name} >> /etc/hosts"));
            first(&host);
            while let Ok(job) = given.recv() {
                job(&host);
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work).expect("start a thread");
        Self { name, network: networks, jobs: Some(jobs), thread: Some(thread) }
    }

    /// Plugs it in at the bridge of the calling thread's network.
    pub fn connect(&self) {
        let tid = self.network.recv_timeout(Duration::from_secs(30)).expect("the other machine's network");
        let name = self.name;
        shell(&format!("ip link add to-{name} type veth peer name eth0 netns {tid}"));
        shell(&format!("ip link set to-{name} master uplink up"));
    }

    /// What a job says on that machine.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce(&Host) -> T + Send + 'static) -> T {
        let (answer, answers) = channel();
        let job = move |host: &Host| {
            // The caller may have failed.
            let _ = answer.send(job(host));
        };
        self.jobs.as_ref().expect("it runs").send(Box::new(job)).expect("the other machine runs");
        answers.recv().unwrap_or_else(|_| panic!("a job on the machine {} failed", self.name))
    }
}

impl Drop for Another {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(jobs) = &self.jobs
        {
            // It may have failed itself.
            let _ = jobs.send(Box::new(Host::show_logs));
        }
        drop(self.jobs.take());
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(
            std::thread::panicking() || ended.is_none_or(|ended| ended.is_ok()),
            "the machine {} failed",
            self.name
        );
    }
}

fn shell(line: &str) {
    said(Command::new("sh").args(["-c", line])).unwrap_or_else(|error| panic!("{error}"));
}
