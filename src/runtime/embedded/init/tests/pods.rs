//! Pods: namespaces that the monitor holds, a shared PID namespace, users of their own.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use super::super::container::copy_of_procfs;
use super::super::make_pod;
use super::*;
use crate::model::runtime_config::IdRange;
use crate::platform::sys::kill::kill_process;
use crate::runtime::embedded::spec::{IdMapping, PodSpec};

fn sysctls(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn own_pod() -> PodSpec {
    PodSpec {
        own_network: true,
        own_ipc: true,
        own_uts: true,
        hostname: "web-0".to_owned(),
        ..PodSpec::default()
    }
}

fn here(kind: &str) -> PathBuf {
    std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap()
}

#[test]
fn monitor_owns_pod_namespaces_and_containers_share_them() {
    in_monitor(|| {
        let before = ["net", "ipc", "uts", "user", "mnt", "pid"].map(here);
        let node_hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let wanted = [
            ("net.ipv4.ip_unprivileged_port_start", "80"),
            ("kernel.shm_rmid_forced", "1"),
            ("net/ipv4/conf/lo/forwarding", "1"),
        ];
        let pod = make_pod(&PodSpec { sysctls: sysctls(&wanted), ..own_pod() }).unwrap();
        let after = ["net", "ipc", "uts", "user", "mnt", "pid"].map(here);
        for (number, is_own) in [true, true, true, false, false, false].into_iter().enumerate() {
            assert_eq!(before[number] != after[number], is_own, "{number}");
        }
        let mut sample = Sample::new(
            "pod",
            "cat /proc/sys/kernel/hostname /proc/sys/net/ipv4/ip_unprivileged_port_start \
             /proc/sys/kernel/shm_rmid_forced /sys/class/net/lo/carrier; readlink /proc/self/ns/net",
        );
        sample.bundle.oci.linux.namespaces = own_namespaces(&["pid", "mount"]);
        for kind in ["network", "ipc", "uts"] {
            let path =
                format!("/proc/{}/ns/{}", std::process::id(), if kind == "network" { "net" } else { kind });
            sample.bundle.oci.linux.namespaces.push(Namespace { kind: kind.to_owned(), path });
        }
        let outcome = sample.start_in(&pod).end();
        assert_eq!(
            outcome.output,
            format!("web-0\n80\n1\n1\n{}\n", after[0].display()),
            "{:?}",
            outcome.failed
        );
        assert_ne!(node_hostname, "web-0\n");
    });
    assert_ne!(std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), "web-0\n");
}

#[test]
fn sysctls_of_the_node_are_refused() {
    for (name, own_network, own_ipc) in [
        ("kernel.hostname", true, true),
        ("kernel.core_pattern", true, true),
        ("net.ipv4.ip_forward", false, true),
        ("kernel.sem", true, false),
        ("net.../../kernel/core_pattern", true, true),
        ("net/../kernel/core_pattern", true, true),
        ("net", true, true),
        ("", true, true),
        ("vm.swappiness", true, true),
        ("fs.mqueuer", true, true),
    ] {
        let spec = PodSpec { own_network, own_ipc, sysctls: sysctls(&[(name, "1")]), ..PodSpec::default() };
        // The refusal comes before anything is done.
        assert!(make_pod(&spec).unwrap_err().chain().starts_with("sysctls: "), "{name}");
    }
}

#[test]
fn a_shared_pid_namespace_has_a_reaper_that_gives_nothing_away() {
    in_monitor(|| {
        let pod = make_pod(&PodSpec { shared_pid: true, ..own_pod() }).unwrap();
        let init = pod.init.unwrap();
        let script = "ps; for of in root cwd fd; do ls /proc/1/$of/; done; cat /proc/1/exe; kill -9 1; kill -TERM 1; \
                      (sh -c 'echo $$ >/tmp/orphan; exec true' &); while [ ! -s /tmp/orphan ]; do :; done; \
                      i=0; while [ -d /proc/$(cat /tmp/orphan) ] && [ $i -lt 10000 ]; do i=$((i+1)); done; \
                      [ -d /proc/$(cat /tmp/orphan) ] || echo reaped; cat /proc/1/status";
        let mut sample = Sample::new("shared", script);
        for applet in ["kill", "true"] {
            std::os::unix::fs::symlink("busybox", sample.layer().join("bin").join(applet)).unwrap();
        }
        for namespace in &mut sample.bundle.oci.linux.namespaces {
            if namespace.kind == "pid" {
                namespace.path = format!("/proc/{init}/ns/pid");
            }
        }
        let outcome = sample.start_in(&pod).end();
        assert_eq!(outcome.failed, None);
        assert!(outcome.output.contains("1 65535"), "{}", outcome.output);
        // busybox lists none of its descriptors, without an error.
        assert_eq!(outcome.output.matches("Permission denied").count(), 3, "{}", outcome.output);
        assert!(outcome.output.contains("\nreaped\n"), "{}", outcome.output);
        assert!(outcome.output.contains("CapPrm:\t0000000000000000"), "{}", outcome.output);
        assert!(outcome.output.contains("CapBnd:\t0000000000000000"), "{}", outcome.output);
        // Neither container ends the namespace of the other.
        let second = sample.start_in(&pod).end();
        assert_eq!((second.failed, second.code), (None, 0));
        kill_process(init).unwrap();
        clone::wait(init).unwrap();
    });
}

#[test]
fn container_joins_target_pid_namespace_without_its_mounts() {
    in_monitor(|| {
        let target = Sample::new("target", "sleep 100").start();
        let path = format!("/proc/{}/ns/pid", target.pid);
        let mut guest = Sample::new("guest", "ps; stat -c %t:%T /proc/keys; touch /proc/sys/kernel/hostname");
        for namespace in
            guest.bundle.oci.linux.namespaces.iter_mut().filter(|namespace| namespace.kind == "pid")
        {
            namespace.path.clone_from(&path);
        }
        let outcome = guest.run();
        // As on a kernel before 6.17, where nothing makes it from outside.
        let copy = copy_of_procfs(&path).unwrap();
        let masked = std::fs::metadata(format!("/proc/self/fd/{}/keys", copy.as_fd().as_raw_fd())).unwrap();
        kill_process(target.pid).unwrap();
        target.end();
        assert_eq!(outcome.failed, None);
        assert!(
            outcome.output.contains("sleep 100") && outcome.output.contains("\n1:3\n"),
            "{}",
            outcome.output
        );
        assert!(outcome.output.contains("Read-only file system"), "{}", outcome.output);
        assert!(masked.is_file(), "masks are the target's own");
    });
}

#[test]
fn everything_dies_with_the_monitor() {
    let (told, tell) = clone::pipe().unwrap();
    let monitor = match clone::fork(CloneKind::default()).unwrap() {
        Side::Parent(pid) => pid,
        Side::Child => {
            let pod = make_pod(&PodSpec { shared_pid: true, ..own_pod() }).unwrap();
            let plain = Sample::new("dies", "sleep 100 & sleep 100");
            let running = plain.start_in(&pod);
            let mut user = Sample::new("dies-user", "sleep 100 & sleep 100");
            user.bundle.oci.process.user.uid = 1000;
            let other = user.start_in(&pod);
            let session = start_exec(&running, &pod, default_process("sleep 100"));
            let pids = [pod.init.unwrap(), running.pid, other.pid, session.pid];
            let text = pids.map(|pid| pid.to_string()).join(" ");
            File::from(tell).write_all(text.as_bytes()).unwrap();
            loop {
                let _ = told_forever();
            }
        }
    };
    drop(tell);
    let mut text = [0; 256];
    let length = File::from(told).read(&mut text).unwrap();
    let pids: Vec<i32> =
        String::from_utf8_lossy(&text[..length]).split(' ').map(|word| word.parse().unwrap()).collect();
    assert!(pids.len() == 4 && pids.iter().all(|pid| *pid > 0), "{pids:?}");
    kill_process(monitor).unwrap();
    clone::wait(monitor).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let lives = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    };
    while pids.iter().any(lives) {
        assert!(
            std::time::Instant::now() < deadline,
            "{:?}",
            pids.iter().filter(|pid| lives(pid)).collect::<Vec<_>>()
        );
        std::thread::yield_now();
    }
    for name in ["dies", "dies-user"] {
        let base = std::env::temp_dir().join(format!("edge-agent-init-{name}-{monitor}"));
        let _ = std::fs::remove_dir_all(base);
    }
}

/// Waits without end.
fn told_forever() -> std::io::Result<usize> {
    let (never, _held) = clone::pipe()?;
    File::from(never).read(&mut [0])
}

#[test]
fn user_namespace_root_is_unprivileged_on_the_node() {
    in_monitor(|| {
        let range = IdRange { host: 231_072, length: 65_536 };
        let pod = make_pod(&PodSpec { users: Some(range), ..own_pod() }).unwrap();
        let script = "id -u; cat /proc/self/uid_map; touch /made; stat -c %u:%n /bin/busybox / /dev/null /dev /tmp2; echo x >/dev/null; \
                      umount /proc/keys; umount /proc/sys; cat /proc/keys; hostname; touch /tmp2/x && echo writable; echo done; sleep 100";
        let mut sample = Sample::new("users", script);
        for applet in ["umount", "hostname"] {
            std::os::unix::fs::symlink("busybox", sample.layer().join("bin").join(applet)).unwrap();
        }
        sample.bundle.oci.mounts.push(mount("tmpfs", "/tmp2", "tmpfs", &["mode=755"]));
        sample.bundle.oci.linux.namespaces.extend(own_namespaces(&["user"]));
        sample
            .bundle
            .oci
            .linux
            .namespaces
            .retain(|namespace| !["ipc", "uts", "network"].contains(&namespace.kind.as_str()));
        let mapping = IdMapping { container_id: 0, host_id: range.host, size: range.length };
        sample.bundle.oci.linux.uid_mappings = vec![mapping];
        sample.bundle.oci.linux.gid_mappings = vec![mapping];
        for set in [
            &mut sample.bundle.oci.process.capabilities.bounding,
            &mut sample.bundle.oci.process.capabilities.permitted,
            &mut sample.bundle.oci.process.capabilities.effective,
        ] {
            set.push("CAP_SYS_ADMIN".to_owned());
        }
        let mut running = sample.start_in(&pod);
        assert_eq!(running.failed, None);
        let mut seen = String::new();
        while !seen.ends_with("done\n") {
            let mut bytes = [0; 4096];
            let length = running.output.read(&mut bytes).unwrap();
            assert!(length > 0, "it ended early: {seen}");
            seen.push_str(std::str::from_utf8(&bytes[..length]).unwrap());
        }
        let mut process = default_process("id -u; cat /proc/self/uid_map; stat -c %u /made; tty");
        process.terminal = true;
        let mut session = start_exec(&running, &pod, process);
        assert_eq!(session.failed, None);
        let mut output = Vec::new();
        let _ = File::from(session.terminal.take().unwrap()).read_to_end(&mut output);
        let output = String::from_utf8(output).unwrap();
        session.end();
        let node_uid = std::fs::metadata(format!("/proc/{}", running.pid)).unwrap().uid();
        kill_process(running.pid).unwrap();
        running.end();
        assert!(seen.starts_with("0\n         0     231072      65536\n"), "{}", seen);
        for file in ["0:/bin/busybox", "0:/", "0:/dev/null", "0:/dev", "0:/tmp2"] {
            assert!(seen.contains(&format!("\n{file}\n")), "{file}: {seen}");
        }
        assert_eq!(seen.matches("umount: can't unmount").count(), 2, "{seen}");
        assert!(seen.contains("\nweb-0\nwritable\n"), "{}", seen);
        let owner = std::fs::metadata(sample.base.join("upper/made")).unwrap().uid();
        assert_eq!((owner, node_uid), (range.host, range.host));
        assert!(output.contains("231072") && output.contains("/dev/pts/0"), "{output}");
    });
}
