//! How long a start takes, beside runc: `cargo nextest run --lib --run-ignored only -E 'test(timing_of)' --no-capture`.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
#[ignore = "a measurement: it cannot fail, and needs a quiet machine and runc"]
fn timing_of_a_start_beside_runc() {
    let mut sample = Sample::new("timing", "");
    sample.bundle.oci.process.args = words(&["/bin/busybox", "true"]);
    let mut whole = Vec::new();
    let mut until_exec = Vec::new();
    for _ in 0..50 {
        let began = Instant::now();
        let running = sample.start();
        until_exec.push(began.elapsed());
        assert_eq!(running.end().failed, None);
        whole.push(began.elapsed());
    }
    println!("own: to exec {:?}, to the end of `true` {:?}", median(until_exec), median(whole));
    // runc gets a directory: what the overlay costs it is not counted.
    let bundle = sample.base.join("runc");
    std::fs::create_dir(&bundle).unwrap();
    let mut oci = sample.bundle.oci.clone();
    oci.root.path = sample.layer();
    for dir in ["proc", "dev", "sys"] {
        std::fs::create_dir_all(sample.layer().join(dir)).unwrap();
    }
    std::fs::write(bundle.join("config.json"), serde_json::to_vec(&oci).unwrap()).unwrap();
    let times = (0..50).map(|number| {
        let began = Instant::now();
        let mut runc = Command::new("runc");
        runc.arg("run").arg("--bundle").arg(&bundle).arg(format!("edge-agent-timing-{number}"));
        let status = runc.stdin(Stdio::null()).status().unwrap();
        assert!(status.success());
        began.elapsed()
    });
    println!("runc run of `true`: {:?}", median(times.collect()));
}
