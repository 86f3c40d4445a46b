//! Images and volumes that try to escape. `outside` stands for the node; nothing of it may change.

use std::os::unix::fs::symlink;

use super::super::make_pod;
use super::*;
use crate::platform::sys::mount::mount_points;
use crate::runtime::embedded::spec::PodSpec;

fn outside(sample: &Sample) -> PathBuf {
    let outside = sample.base.join("outside");
    std::fs::create_dir_all(&outside).unwrap();
    outside
}

fn is_untouched(outside: &Path) {
    assert_eq!(std::fs::read_dir(outside).unwrap().count(), 0);
    assert!(!mount_points().unwrap().iter().any(|point| point.starts_with(outside)));
}

#[test]
fn system_directories_that_are_links_lead_nowhere_outside() {
    for (name, refused) in [("proc", true), ("sys", true), ("dev", false), ("data", false)] {
        let mut sample = Sample::new(&format!("link-{name}"), "echo runs");
        let outside = outside(&sample);
        for target in [outside.display().to_string(), format!("../../../../../..{}", outside.display())] {
            let link = sample.layer().join(name);
            let _ = std::fs::remove_file(&link);
            symlink(&target, &link).unwrap();
            sample.bundle.oci.mounts.push(mount("tmpfs", "/data/deep", "tmpfs", &[]));
            let outcome = sample.run();
            is_untouched(&outside);
            match outcome.failed {
                Some(reason) => assert!(refused && reason.contains("regular directory"), "{reason}"),
                None => assert!(!refused && outcome.output == "runs\n", "{name} {outcome:?}"),
            }
        }
    }
}

#[test]
fn destinations_with_dots_and_links_stay_inside() {
    let mut sample = Sample::new("dots", "cat /etc/passed /in/passed /gone/there/file");
    let outside = outside(&sample);
    let file = sample.base.join("file");
    std::fs::write(&file, "x").unwrap();
    let source = file.display().to_string();
    symlink(outside.join("missing"), sample.layer().join("gone")).unwrap();
    symlink("/etc", sample.layer().join("in")).unwrap();
    for destination in ["/../../etc/./passed", "/gone/there/file"] {
        sample.bundle.oci.mounts.push(mount("bind", destination, &source, &["ro"]));
    }
    let outcome = sample.run();
    assert_eq!(outcome.output, "xxx", "{:?}", outcome.failed);
    is_untouched(&outside);
    for wrong in ["relative", "/", "/..", ""] {
        sample.bundle.oci.mounts = vec![mount("bind", wrong, &source, &[])];
        assert!(sample.run().failed.is_some(), "{wrong}");
    }
}

#[test]
fn nothing_is_mounted_into_proc_by_name_or_by_link() {
    let sample = Sample::new("proc", "echo runs");
    let file = sample.base.join("file");
    std::fs::write(&file, "x").unwrap();
    let source = file.display().to_string();
    symlink("/proc/self/attr/exec", sample.layer().join("link")).unwrap();
    symlink("/proc/sys/kernel", sample.layer().join("directory")).unwrap();
    symlink(std::path::Path::new("/proc/self/root").join("etc"), sample.layer().join("magic")).unwrap();
    for destination in [
        "/proc/self/attr/exec",
        "/proc/sys/kernel/core_pattern",
        "/link",
        "/directory/core_pattern",
        "/magic/x",
    ] {
        let mut bundle = sample.bundle.clone();
        bundle.oci.mounts.push(mount("bind", destination, &source, &[]));
        let other = Sample { base: sample.base.clone(), bundle };
        let outcome = other.run();
        std::mem::forget(other);
        assert!(outcome.failed.is_some(), "{destination} {outcome:?}");
    }
    // What system containers need is still allowed.
    let mut sample = Sample::new("proc-allowed", "cat /proc/uptime");
    let file = sample.base.join("file");
    std::fs::write(&file, "x").unwrap();
    sample.bundle.oci.mounts.push(mount("bind", "/proc/uptime", &file.display().to_string(), &["ro"]));
    assert_eq!(sample.run().output, "x");
}

#[test]
fn masked_and_readonly_symlink_paths_do_not_escape_the_rootfs() {
    let mut sample = Sample::new("mask-links", "cat /secret; echo $?");
    let outside = sample.base.join("outside");
    std::fs::create_dir(&outside).unwrap();
    let file = outside.join("file");
    std::fs::write(&file, "node").unwrap();
    symlink(&file, sample.layer().join("secret")).unwrap();
    symlink(std::path::Path::new("/proc/self/root").join("etc"), sample.layer().join("magic")).unwrap();
    let path = file.display().to_string();
    sample.bundle.oci.linux.masked_paths.extend(words(&["/secret", "/../secret", &path]));
    sample.bundle.oci.linux.readonly_paths.extend(words(&["/secret", &path]));
    let outcome = sample.run();
    assert!(outcome.output.ends_with("1\n"), "{outcome:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "node");
    assert!(!mount_points().unwrap().iter().any(|point| point.starts_with(&outside)));
    sample.bundle.oci.linux.masked_paths = words(&["/magic/passwd"]);
    assert!(sample.run().failed.is_some_and(|reason| reason.starts_with("open /magic/passwd")));
}

#[test]
fn image_cannot_replace_mask_source_or_device_nodes() {
    for fake in ["file", "link", "directory"] {
        let mut sample = Sample::new(&format!("null-{fake}"), "stat -c %t:%T /dev/null /proc/keys");
        let outside = outside(&sample);
        let device = sample.layer().join("dev/null");
        std::fs::create_dir(sample.layer().join("dev")).unwrap();
        match fake {
            "file" => std::fs::write(&device, "x").unwrap(),
            "link" => symlink("/proc/sys/kernel/core_pattern", &device).unwrap(),
            _ => std::fs::create_dir(&device).unwrap(),
        }
        // Without a tmpfs on /dev, the image's own directory is used.
        sample.bundle.oci.mounts.retain(|mount| !mount.destination.starts_with("/dev"));
        let outcome = sample.run();
        is_untouched(&outside);
        if fake == "directory" {
            assert!(outcome.failed.is_some_and(|reason| reason.starts_with("create device /dev/null")));
        } else {
            assert_eq!(outcome.output, "1:3\n1:3\n", "{fake} {:?}", outcome.failed);
        }
    }
}

#[test]
fn a_working_directory_is_not_left_through_descriptors() {
    let marker = File::open("/").unwrap();
    let leaked = clone::leak(marker.as_fd());
    for (name, cwd) in [
        ("fd", format!("/proc/self/fd/{leaked}")),
        ("parent", format!("/proc/1/fd/{leaked}/../..")),
        ("cwd", "/proc/self/cwd".to_owned()),
        ("link", "/link".to_owned()),
    ] {
        let mut sample = Sample::new(&format!("cwd-{name}"), "pwd; ls -a");
        symlink(format!("/proc/self/fd/{leaked}"), sample.layer().join("link")).unwrap();
        sample.bundle.oci.process.cwd = cwd;
        let outcome = sample.run();
        assert!(outcome.failed.is_some_and(|reason| reason.starts_with("change directory to")), "{name}");
        assert_eq!(outcome.output, "");
    }
}

/// A volume's directory is changed between directory and link while containers mount below it.
#[test]
fn volume_swapped_during_mount_does_not_escape() {
    let mut sample = Sample::new("swap", "echo runs");
    let outside = outside(&sample);
    let volume = sample.base.join("volume");
    std::fs::create_dir_all(volume.join("directory")).unwrap();
    symlink(&outside, volume.join("link")).unwrap();
    let file = sample.base.join("file");
    std::fs::write(&file, "x").unwrap();
    let source = |path: &Path| path.display().to_string();
    sample.bundle.oci.mounts.push(mount("bind", "/volume", &source(&volume), &["rbind"]));
    sample.bundle.oci.mounts.push(mount("bind", "/volume/place/deep/file", &source(&file), &[]));
    sample.bundle.oci.mounts.push(mount("tmpfs", "/volume/place/deeper", "tmpfs", &[]));
    let swapper = match clone::fork(CloneKind::default()).unwrap() {
        Side::Parent(pid) => pid,
        Side::Child => {
            clone::die_with_parent().unwrap();
            let (place, directory, link) =
                (volume.join("place"), volume.join("directory"), volume.join("link"));
            loop {
                let _ = std::fs::rename(&directory, &place);
                let _ = std::fs::rename(&place, &directory);
                let _ = std::fs::rename(&link, &place);
                let _ = std::fs::rename(&place, &link);
            }
        }
    };
    let mut ran = 0;
    for _ in 0..60 {
        let outcome = sample.run();
        ran += usize::from(outcome.failed.is_none());
        is_untouched(&outside);
    }
    crate::platform::sys::kill::kill_process(swapper).unwrap();
    clone::wait(swapper).unwrap();
    println!("{ran} of 60 started");
}

/// A container that may trace others reads every process of its pod, while programs and containers are
/// started in it.
#[test]
fn a_tracing_container_sees_nothing_of_the_node_in_starts() {
    in_monitor(|| {
        let pod = make_pod(&PodSpec {
            own_network: true,
            own_ipc: true,
            own_uts: true,
            shared_pid: true,
            ..PodSpec::default()
        })
        .unwrap();
        let mut spy = Sample::new("spy", "");
        let secret = spy.base.join("secret");
        std::fs::write(&secret, "of the node").unwrap();
        let place = secret.display();
        let mut set = words(&DEFAULT_CAPABILITIES);
        set.push("CAP_SYS_PTRACE".to_owned());
        let capabilities = Capabilities {
            bounding: set.clone(),
            effective: set.clone(),
            permitted: set,
            ..Capabilities::default()
        };
        let full = "00000000a80c25fb";
        let script = format!(
            "echo spies; while :; do \
               for found in /proc/[0-9]*/root{place} /proc/[0-9]*/cwd{place} /proc/[0-9]*/fd/*{place} /proc/[0-9]*/fd/*/1/root{place}; do \
                 [ -e $found ] && {{ cat $found; echo \" by $found\"; exit 7; }}; done; \
               for process in /proc/[0-9]*; do while read name value; do case $name in CapEff:) case $value in \
                 {full}|0000000000000000) ;; *) echo \"$process may $value\"; exit 7;; esac; break;; esac; done <$process/status; done; \
             done 2>/dev/null"
        );
        spy.bundle.oci.process = default_process(&script);
        spy.bundle.oci.process.capabilities = capabilities.clone();
        let share = |sample: &mut Sample| {
            for namespace in &mut sample.bundle.oci.linux.namespaces {
                if namespace.kind == "pid" {
                    namespace.path = format!("/proc/{}/ns/pid", pod.init.unwrap());
                }
            }
        };
        share(&mut spy);
        let mut spying = spy.start_in(&pod);
        assert_eq!(spying.failed, None);
        let mut word = [0; 64];
        let length = spying.output.read(&mut word).unwrap();
        assert_eq!(&word[..length], b"spies\n");
        let mut other = Sample::new("spied", "exit 3");
        other.bundle.oci.process.capabilities = capabilities.clone();
        share(&mut other);
        for round in 0..60 {
            let mut process = default_process("exit 3");
            process.capabilities = capabilities.clone();
            process.no_new_privileges = round % 2 == 0;
            let exec = run_exec(&spying, &pod, process);
            let started = other.start_in(&pod).end();
            if let (Some(reason), _) | (None, Some(reason)) = (exec.failed, started.failed) {
                panic!("{reason}");
            }
            assert_eq!((exec.code, started.code), (3, 3), "round {round}");
            assert!(is_running(spying.pid), "it found something: {}", spying.end().output);
        }
        for pid in [spying.pid, pod.init.unwrap()] {
            crate::platform::sys::kill::kill_process(pid).unwrap();
        }
        assert_eq!(spying.end().output, "");
        clone::wait(pod.init.unwrap()).unwrap();
    });
}

fn is_running(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}
