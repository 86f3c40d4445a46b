//! The same container run by runc, where runc is installed.

use super::*;

#[test]
fn external_runtime_runs_the_same_container() {
    if !Path::new("/usr/sbin/runc").exists() && !Path::new("/usr/bin/runc").exists() {
        println!("no runc here: nothing tested");
        return;
    }
    in_monitor(|| {
        let mut sample = Sample::new("external", "echo $$; cat /etc/name; sleep 100");
        std::fs::write(sample.layer().join("etc/name"), "image\n").unwrap();
        sample.bundle.external_runtime = words(&["runc"]);
        let dir = ContainerDir(sample.base.join(format!("edge-agent-test-{}", std::process::id())));
        std::fs::create_dir(&dir.0).unwrap();
        sample.bundle.oci.root.path = dir.rootfs();
        let start = |sample: &Sample| {
            std::fs::write(dir.bundle(), serde_json::to_vec(&sample.bundle).unwrap()).unwrap();
            launch(|report| container(&dir, &PodHandles::default(), report))
        };
        let mut running = start(&sample);
        assert_eq!(running.failed, None);
        let mut output = [0; 8];
        running.output.read_exact(&mut output).unwrap();
        assert_eq!(&output, b"1\nimage\n");
        let spec = ExecSpec {
            process: default_process("cat /etc/name; exit 3"),
            external_runtime: words(&["runc"]),
            directory: dir.0.clone(),
            ..ExecSpec::default()
        };
        let outcome = launch_exec(&spec, running.pid, &PodHandles::default()).end();
        assert_eq!((outcome.failed.as_deref(), outcome.code, outcome.output.as_str()), (None, 3, "image\n"));
        crate::platform::sys::kill::kill_process(running.pid).unwrap();
        assert_eq!(running.end().code, 137);
        let delete = || match clone::fork(CloneKind::default()).unwrap() {
            Side::Child => super::super::delete_external(&dir),
            Side::Parent(pid) => clone::wait(pid).unwrap(),
        };
        assert_eq!(delete(), 0);
        assert_eq!(std::fs::read_dir(dir.0.join("oci")).unwrap().count(), 0, "runc has forgotten it");
        sample.bundle.oci.process.args = words(&["nope"]);
        let failed = start(&sample).failed.unwrap();
        assert!(failed.contains("executable file not found in $PATH"), "{failed}");
    });
}
