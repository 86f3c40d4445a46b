//! How long starts and execs take, compared with other runtimes, from one bundle:
//! `cargo nextest run --lib --run-ignored only -E 'test(timing_of)' --no-capture`, or, where there is no
//! toolchain, the test program itself: `<program> --ignored --nocapture timing_of`. Needs a static busybox;
//! `crun` and `runc` where they are installed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

/// How often each is measured.
const ROUNDS: usize = 30;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn times(mut one: impl FnMut(usize)) -> Duration {
    let round = |number| {
        let began = Instant::now();
        one(number);
        began.elapsed()
    };
    median((0..ROUNDS).map(round).collect())
}

/// Create and start of `true` to its end, then `true` in a running container, by this runtime.
fn own(sample: &mut Sample) -> (Duration, Duration) {
    let mut process = sample.bundle.oci.process.clone();
    let start = times(|_| assert_eq!(sample.run().failed, None));
    sample.bundle.oci.process.args = words(&["/bin/busybox", "sleep", "1000"]);
    let running = sample.start();
    process.args = words(&["/bin/busybox", "true"]);
    let exec =
        times(|_| assert_eq!(run_exec(&running, &PodHandles::default(), process.clone()).failed, None));
    crate::platform::sys::kill::kill_process(running.pid).unwrap();
    running.end();
    (start, exec)
}

fn command(runtime: &str, arguments: &[&str]) {
    let mut command = Command::new(runtime);
    let status = command.args(arguments).stdin(Stdio::null()).status().unwrap();
    assert!(status.success(), "{runtime} {arguments:?}: {status}");
}

/// Whether it starts anything at all: crun does not where cgroup v1 and v2 are mixed.
fn works(runtime: &str, bundle: &Path, oci: &OciSpec) -> bool {
    std::fs::write(bundle.join("config.json"), serde_json::to_vec(oci).unwrap()).unwrap();
    let mut command = Command::new(runtime);
    command.args(["run", "--bundle"]).arg(bundle).arg("edge-agent-timing-try").stdin(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The same by a runtime's command line, from the same specification. It gets a plain directory: the cost of
/// an overlay is not counted.
fn other(runtime: &str, bundle: &Path, oci: &OciSpec) -> (Duration, Duration) {
    let write = |oci: &OciSpec| {
        std::fs::write(bundle.join("config.json"), serde_json::to_vec(oci).unwrap()).unwrap();
    };
    write(oci);
    let path = bundle.to_str().unwrap();
    let start =
        times(|number| command(runtime, &["run", "--bundle", path, &format!("edge-agent-timing-{number}")]));
    let mut waiting = oci.clone();
    waiting.process.args = words(&["/bin/busybox", "sleep", "1000"]);
    write(&waiting);
    let name = "edge-agent-timing-exec";
    command(runtime, &["run", "--detach", "--bundle", path, name]);
    let exec = times(|_| command(runtime, &["exec", name, "/bin/busybox", "true"]));
    command(runtime, &["delete", "--force", name]);
    (start, exec)
}

#[test]
#[ignore = "a measurement: it cannot fail, and needs a quiet machine"]
fn timing_of_a_start_and_an_exec_beside_other_runtimes() {
    let mut sample = Sample::new("timing", "");
    sample.bundle.oci.process.args = words(&["/bin/busybox", "true"]);
    let mut oci = sample.bundle.oci.clone();
    let say = |name: &str, (start, exec): (Duration, Duration)| {
        println!("{name}: create, start, end of `true` {start:?}; exec of `true` {exec:?}");
    };
    say("own", own(&mut sample));
    let bundle = sample.base.join("other");
    std::fs::create_dir(&bundle).unwrap();
    oci.root.path = sample.layer();
    for dir in ["proc", "dev", "sys"] {
        std::fs::create_dir_all(sample.layer().join(dir)).unwrap();
    }
    for runtime in ["crun", "runc"] {
        if !works(runtime, &bundle, &oci) {
            println!("{runtime}: not here, or it refuses this machine");
            continue;
        }
        say(runtime, other(runtime, &bundle, &oci));
    }
}
