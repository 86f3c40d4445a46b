//! Mounts with all their options.

use super::*;
use crate::platform::sys::mount::{ensure_shared, is_mount_point, mount_tmpfs, unmount};

fn directory(sample: &Sample, name: &str) -> String {
    let path = sample.base.join(name);
    std::fs::create_dir_all(&path).unwrap();
    path.display().to_string()
}

#[test]
fn binds_have_their_options_and_their_targets_are_made() {
    let mut sample = Sample::new(
        "binds",
        "mount | grep ' /v/'; cat /v/file; touch /v/ro/x; touch /v/rw/x; cat /v/rro/below/f; touch /v/rro/below/f",
    );
    let source = directory(&sample, "volume");
    let below = directory(&sample, "tree/below");
    let tree = directory(&sample, "tree");
    mount_tmpfs(Path::new(&below), Some(1 << 20)).unwrap();
    std::fs::write(Path::new(&below).join("f"), "deep\n").unwrap();
    std::fs::write(sample.base.join("file"), "text\n").unwrap();
    let file = sample.base.join("file").display().to_string();
    sample.bundle.oci.mounts.extend([
        mount("bind", "/v/ro", &source, &["rbind", "ro", "rprivate", "nosuid", "nodev", "noexec"]),
        mount("bind", "/v/rw", &source, &["rbind", "rw", "rprivate"]),
        mount("", "/v/file", &file, &["bind", "ro"]),
        mount("bind", "/v/rro", &tree, &["rbind", "rro", "rprivate"]),
        mount("bind", "/v/flat", &tree, &["bind", "noatime"]),
    ]);
    let outcome = sample.run();
    unmount(Path::new(&below)).unwrap();
    assert_eq!(outcome.failed, None);
    let options = |point: &str| {
        let line = outcome.output.lines().find(|line| line.contains(&format!(" on {point} ")));
        line.unwrap_or_else(|| panic!("{point} in {}", outcome.output)).rsplit('(').next().unwrap().to_owned()
    };
    assert!(options("/v/ro").starts_with("ro,nosuid,nodev,noexec"));
    assert!(options("/v/rw").starts_with("rw,"));
    assert!(options("/v/file").starts_with("ro,"));
    assert!(options("/v/rro").starts_with("ro,"));
    assert!(options("/v/rro/below").starts_with("ro,"));
    assert!(options("/v/flat").contains("noatime"));
    assert!(!outcome.output.contains("/v/flat/below"), "bind is not rbind");
    assert!(outcome.output.contains("\ntext\n"));
    assert!(outcome.output.contains("touch: /v/ro/x: Read-only file system"));
    assert!(!outcome.output.contains("touch: /v/rw/x"));
    assert!(
        outcome.output.contains("deep\ntouch: /v/rro/below/f: Read-only file system"),
        "{}",
        outcome.output
    );
}

#[test]
fn a_tmpfs_has_its_size_and_the_mode_of_what_it_covers() {
    use std::os::unix::fs::PermissionsExt;
    let mut sample = Sample::new("tmpfs", "mount | grep ' /t'; stat -c %a /tmp /t2; touch /t2/x");
    std::fs::set_permissions(sample.layer().join("tmp"), std::fs::Permissions::from_mode(0o1777)).unwrap();
    sample.bundle.oci.mounts.extend([
        mount("tmpfs", "/tmp", "tmpfs", &["nosuid", "size=1024k"]),
        mount("tmpfs", "/t2", "tmpfs", &["mode=700", "ro"]),
    ]);
    let outcome = sample.run();
    assert_eq!(outcome.failed, None);
    assert!(
        outcome.output.contains("tmpfs on /tmp type tmpfs (rw,nosuid,relatime,size=1024k"),
        "{}",
        outcome.output
    );
    assert!(
        outcome.output.ends_with("1777\n700\ntouch: /t2/x: Read-only file system\n"),
        "{}",
        outcome.output
    );
    sample.bundle.oci.mounts.push(mount("tmpfs", "/t3", "tmpfs", &["colour=red"]));
    let failed = sample.run().failed.unwrap();
    assert!(failed.starts_with("set option colour of tmpfs"), "{failed}");
}

#[test]
fn mount_inside_a_volume_does_not_propagate_to_the_host() {
    let mut sample = Sample::new("inside", "mount | grep -c ' /volume'");
    let volume = directory(&sample, "volume");
    let inside = directory(&sample, "volume/inside");
    ensure_shared(Path::new(&volume)).unwrap();
    sample.bundle.oci.mounts.extend([
        mount("bind", "/volume", &volume, &["rbind"]),
        mount("tmpfs", "/volume/inside", "tmpfs", &[]),
    ]);
    let outcome = sample.run();
    let travelled = is_mount_point(Path::new(&inside)).unwrap();
    for point in [Path::new(&inside), Path::new(&volume)] {
        while is_mount_point(point).unwrap() {
            unmount(point).unwrap();
        }
    }
    assert_eq!((outcome.failed, outcome.output.trim()), (None, "2"));
    assert!(!travelled, "the container's own mount is on the node's directory");
}

#[test]
fn mounts_propagate_as_configured() {
    let mut sample = Sample::new(
        "travel",
        "mount -t tmpfs none /shared/inside && mount -t tmpfs none /slave/inside && echo mounted; sleep 100",
    );
    let volume = directory(&sample, "volume");
    for name in ["inside", "later"] {
        directory(&sample, &format!("volume/{name}"));
    }
    ensure_shared(Path::new(&volume)).unwrap();
    sample.bundle.oci.mounts.extend([
        mount("bind", "/private", &volume, &["rbind", "rprivate"]),
        mount("bind", "/slave", &volume, &["rbind", "rslave"]),
        mount("bind", "/shared", &volume, &["rbind", "rshared"]),
    ]);
    sample.bundle.oci.linux.rootfs_propagation = "rshared".to_owned();
    for set in [
        &mut sample.bundle.oci.process.capabilities.bounding,
        &mut sample.bundle.oci.process.capabilities.permitted,
        &mut sample.bundle.oci.process.capabilities.effective,
    ] {
        set.push("CAP_SYS_ADMIN".to_owned());
    }
    let mut running = sample.start();
    assert_eq!(running.failed, None);
    let mut word = [0; 8];
    running.output.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"mounted\n");
    let inside = Path::new(&volume).join("inside");
    let from_container = is_mount_point(&inside).unwrap();
    let later = Path::new(&volume).join("later");
    mount_tmpfs(&later, Some(1 << 20)).unwrap();
    let seen = run_exec(
        &running,
        &PodHandles::default(),
        default_process("mount | grep later; mount | grep -c inside"),
    );
    crate::platform::sys::kill::kill_process(running.pid).unwrap();
    running.end();
    for point in [&later, &inside, Path::new(&volume)] {
        while is_mount_point(point).unwrap() {
            unmount(point).unwrap();
        }
    }
    assert!(from_container, "what a container mounts on a shared volume reaches the node");
    assert!(
        seen.output.contains(" /slave/later ") && seen.output.contains(" /shared/later "),
        "{}",
        seen.output
    );
    assert!(!seen.output.contains(" /private/later "), "{}", seen.output);
}

#[test]
fn many_layers_fit_one_by_one_and_in_one_page() {
    let mut sample = Sample::new("layers", "cat /etc/name /etc/layer-119; ls /etc | grep -c layer");
    let base = sample.layer();
    let layers: Vec<PathBuf> = (0..120)
        .map(|number| {
            let layer = sample.base.join(format!("{number:0>64}"));
            std::fs::create_dir_all(layer.join("etc")).unwrap();
            std::fs::write(layer.join("etc/name"), format!("{number}\n")).unwrap();
            std::fs::write(layer.join(format!("etc/layer-{number}")), "bottom\n").unwrap();
            layer
        })
        .collect();
    sample.bundle.overlay.lower = layers.into_iter().chain([base]).collect();
    assert_eq!(sample.run().output, "0\nbottom\n120\n");
    in_monitor(|| {
        let own = crate::platform::sys::namespace::Namespaces { mount: true, ..Default::default() };
        crate::platform::sys::namespace::unshare(own).unwrap();
        let slave = crate::platform::sys::mount_tree::Propagation::Slave;
        crate::platform::sys::mount_tree::set_propagation(Path::new("/"), slave, true).unwrap();
        let overlay = &sample.bundle.overlay;
        let target = sample.base.join("container/rootfs");
        let mounted = super::super::rootfs::mount_in_one_page(&target, overlay, "").unwrap();
        drop(mounted);
        assert_eq!(std::fs::read_to_string(target.join("etc/name")).unwrap(), "0\n");
        assert_eq!(std::fs::read_dir(target.join("etc")).unwrap().count(), 121);
    });
}

/// A kernel without SELinux does not know the option: its refusal shows this test where labels are set.
#[test]
fn a_mount_label_is_an_option_of_the_root_and_of_new_mounts() {
    if Path::new("/sys/fs/selinux").exists() {
        return;
    }
    let mut sample = Sample::new("label", "true");
    sample.bundle.oci.linux.mount_label = "system_u:object_r:container_file_t:s0:c1,c2".to_owned();
    let failed = sample.run().failed.expect("the kernel does not know labels");
    assert!(failed.contains("with SELinux context system_u:object_r:container_file_t:s0:c1,c2"), "{failed}");
}
