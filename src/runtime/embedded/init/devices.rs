//! `/dev` of a container: nodes, links and the console.
//!
//! Owns what it makes there.

use std::os::fd::AsFd;
use std::path::Path;

use super::error::{Doing, InitError};
use super::rootfs::{Rootfs, Users};
use crate::platform::sys::console::{Console, make_console};
use crate::platform::sys::container_root::{DeviceNode, NodeKind, clean, point_at};
use crate::platform::sys::mount_tree::Mount;
use crate::runtime::embedded::spec::{Device, OciSpec};

/// What every container has: name, major and minor number.
const NODES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Fills `/dev`, unless it is the node's.
pub(in crate::runtime) fn make(
    rootfs: &Rootfs,
    spec: &OciSpec,
    users: Option<Users<'_>>,
) -> Result<(), InitError> {
    let is_bound = spec.mounts.iter().any(|mount| {
        let is_bind =
            mount.kind == "bind" || mount.options.iter().any(|option| option == "bind" || option == "rbind");
        clean(Path::new(&mount.destination)) == Path::new("/dev") && is_bind
    });
    if is_bound {
        return Ok(());
    }
    for (name, major, minor) in NODES {
        let path = format!("/dev/{name}");
        let is_asked_for =
            spec.linux.devices.iter().any(|device| clean(Path::new(&device.path)) == Path::new(&path));
        if !is_asked_for {
            let kind = "c".to_owned();
            let device = Device { kind, path, major, minor, file_mode: 0o666, ..Device::default() };
            make_device(rootfs, &device, users)?;
        }
    }
    for device in &spec.linux.devices {
        make_device(rootfs, device, users)?;
    }
    for (name, content) in LINKS {
        let path = Path::new("/dev").join(name);
        rootfs.root.ensure_link(&path, content).doing("make", path.display())?;
    }
    Ok(())
}

fn make_device(rootfs: &Rootfs, device: &Device, users: Option<Users<'_>>) -> Result<(), InitError> {
    let kind = match device.kind.as_str() {
        "c" | "u" => NodeKind::Character,
        "b" => NodeKind::Block,
        "p" => NodeKind::Pipe,
        _ => {
            return Err(InitError::Invalid {
                field: format!("linux.devices: {}: type {:?}", device.path, device.kind),
                problem: "must be c, u, b or p",
            });
        }
    };
    let (uid, gid) = users.map_or((0, 0), |users| (users.root_uid, users.root_gid));
    let node = DeviceNode {
        kind,
        major: device.major,
        minor: device.minor,
        mode: device.file_mode,
        uid: uid.saturating_add(device.uid),
        gid: gid.saturating_add(device.gid),
    };
    let path = clean(Path::new(&device.path));
    match rootfs.root.make_node(&path, node) {
        Err(error) if crate::platform::sys::container_root::is_refused(&error) => {
            let source = if device.host_path.is_empty() { &device.path } else { &device.host_path };
            bind_device(rootfs, Path::new(source), &path)
        }
        other => other.doing("create device", path.display()),
    }
}

/// Where this process may not create devices (it is in a container itself) the node's are bound.
fn bind_device(rootfs: &Rootfs, source: &Path, path: &Path) -> Result<(), InitError> {
    let shown = path.display().to_string();
    let source = point_at(source).doing("open device", source.display())?;
    let target = rootfs.root.ensure_file(path).doing("make", &shown)?;
    let copy = Mount::copy_of_descriptor(source.as_fd(), false).doing("bind device", &shown)?;
    copy.attach(target.as_fd()).doing("bind device", &shown)
}

/// A terminal from the container's own devpts, bound to `/dev/console`.
pub(in crate::runtime) fn make_terminal(rootfs: &Rootfs) -> Result<Console, InitError> {
    let console = make_console(&rootfs.root).doing("make", "a terminal")?;
    let target = rootfs.root.ensure_file(Path::new("/dev/console")).doing("make", "/dev/console")?;
    let copy = Mount::copy_of_descriptor(console.terminal.as_fd(), false).doing("bind", "the terminal")?;
    copy.attach(target.as_fd()).doing("mount", "/dev/console")?;
    Ok(console)
}
