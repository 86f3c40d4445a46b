//! The fixture itself: what the other tests rely on.

use std::time::Duration;

use crate::support::containerd::Containerd;
use crate::support::image::BUSYBOX;
use crate::support::scratch::is_gone;
use crate::support::wait::wait_for;

#[test]
fn containerd_fixture_survives_restarts_and_cleans_up() {
    let containerd = Containerd::start();
    let root = containerd.scratch().path().to_owned();
    let runc_root = root.join("runc");
    containerd.ctr(&[
        "run",
        "--detach",
        "--net-host",
        "--runc-root",
        &runc_root.to_string_lossy(),
        "--label",
        "io.kubernetes.pod.name=p",
        "--label",
        "io.kubernetes.container.name=c",
        BUSYBOX,
        "one",
        "sleep",
        "1000",
    ]);
    let before = containerd.running("p");
    assert_eq!(before.len(), 1, "{before:?}");
    assert_eq!(containerd.exec(&before[0], &["echo", "hello"]), "hello\n");

    containerd.end_daemon(nix::sys::signal::Signal::SIGTERM);
    containerd.start_daemon();
    let after = wait_for("the container to be seen again", Duration::from_secs(10), || {
        let running = containerd.running("p");
        if running.is_empty() { Err(format!("{:?}", containerd.instances())) } else { Ok(running) }
    });
    assert_eq!(after, before);

    let pid = before[0].pid.expect("it runs");
    let pid = i32::try_from(pid).expect("process ids are small");
    assert!(!is_gone(pid));
    drop(containerd);
    assert!(!root.exists(), "{} is still there", root.display());
    assert!(is_gone(pid), "the container's process outlived the fixture");
}
