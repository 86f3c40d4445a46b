//! `emptyDir`: a directory that lives as long as the pod, on disk, in memory or in huge pages.
//!
//! Owns `volumes/kubernetes.io~empty-dir` of a pod, and the markers of those that are complete. `sizeLimit`
//! of one on disk is not enforced: the kubelet does that by eviction, which static pods are exempt from.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{MountedVolume, VolumeError, make_dir, ownership, plugin_dir, set_up_error};
use crate::platform::rt;
use crate::platform::sys::mount;
use crate::pod::volume::rules::EmptyDirMedium;

/// The directory name of the plugin, as the kubelet has it on disk.
const PLUGIN: &str = "kubernetes.io~empty-dir";

/// Creates the directory, or reuses it: the content and mode of a complete one are never touched.
pub(super) async fn ensure(
    pod_dir: &Path,
    name: &str,
    medium: EmptyDirMedium,
    fs_group: Option<u32>,
) -> Result<MountedVolume, VolumeError> {
    let path = plugin_dir(pod_dir, PLUGIN).join(name);
    let marker = pod_dir.join("plugins").join(PLUGIN).join(name).join("ready");
    let (owned_name, made, mark) = (name.to_owned(), path.clone(), marker.clone());
    let complete = rt::blocking("set up emptyDir", move || set_up(&owned_name, &made, &mark, medium)).await?;
    if !complete {
        if let Some(group) = fs_group {
            ownership::apply(name, &path, group, ownership::Policy::Always).await?;
        }
        let (owned_name, marker) = (name.to_owned(), marker);
        rt::blocking("mark emptyDir ready", move || mark_ready(&owned_name, &marker)).await?;
    }
    Ok(MountedVolume { host_path: path, selinux_relabel: true, ..MountedVolume::default() })
}

/// True when it was complete before.
fn set_up(name: &str, path: &Path, marker: &Path, medium: EmptyDirMedium) -> Result<bool, VolumeError> {
    let failed = |action| move |error| set_up_error(name, action, path, error);
    let was_there = path.is_dir();
    make_dir(path, 0o750).map_err(failed("create directory"))?;
    let is_mounted = || mount::is_mount_point(path).map_err(failed("list mounts below"));
    let mounted = medium == EmptyDirMedium::Disk || is_mounted()?;
    if was_there && mounted && marker.exists() {
        return Ok(true);
    }
    match medium {
        EmptyDirMedium::Memory { size_bytes } if !mounted => {
            mount::mount_tmpfs(path, size_bytes).map_err(failed("mount tmpfs on"))?;
        }
        EmptyDirMedium::HugePages { page_bytes } if !mounted => {
            mount::mount_hugetlbfs(path, page_bytes).map_err(failed("mount hugetlbfs on"))?;
        }
        _ => {}
    }
    // Mode by chmod, which ignores the umask. In memory the mode is that of the tmpfs, as in upstream.
    let everybody = if matches!(medium, EmptyDirMedium::Memory { .. }) { 0o1777 } else { 0o777 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(everybody))
        .map_err(failed("set mode of"))?;
    Ok(false)
}

fn mark_ready(name: &str, marker: &Path) -> Result<(), VolumeError> {
    let failed = |error| set_up_error(name, "write marker", marker, error);
    make_dir(marker.parent().unwrap_or(marker), 0o750).map_err(failed)?;
    std::fs::File::create(marker).map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::{run, tear_down_dir};
    use super::*;
    use crate::platform::testing::TempDir;

    fn make(pod_dir: &Path, medium: EmptyDirMedium) -> Result<PathBuf, VolumeError> {
        run(ensure(pod_dir, "cache", medium, None)).map(|volume| volume.host_path)
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn an_empty_dir_is_writable_by_anybody_and_goes_with_the_pod() {
        let scratch = TempDir::new();
        let pod_dir = scratch.0.join("uid");
        let path = make(&pod_dir, EmptyDirMedium::Disk).unwrap();
        assert_eq!(mode(&path), 0o777);
        assert!(pod_dir.join("plugins/kubernetes.io~empty-dir/cache/ready").exists());
        std::fs::write(path.join("kept"), "x").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o1700)).unwrap();
        make(&pod_dir, EmptyDirMedium::Disk).unwrap();
        assert!(path.join("kept").exists(), "ensuring twice must not empty it");
        assert_eq!(mode(&path), 0o1700, "what the pod's containers made of it stays");
        tear_down_dir(&pod_dir).unwrap();
        assert!(!pod_dir.exists());
        tear_down_dir(&pod_dir).unwrap();
    }

    #[test]
    fn one_that_was_interrupted_half_way_is_completed() {
        let scratch = TempDir::new();
        let pod_dir = scratch.0.join("uid");
        let path = make(&pod_dir, EmptyDirMedium::Disk).unwrap();
        std::fs::remove_file(pod_dir.join("plugins/kubernetes.io~empty-dir/cache/ready")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
        make(&pod_dir, EmptyDirMedium::Disk).unwrap();
        assert_eq!(mode(&path), 0o777);
    }

    #[test]
    fn memory_empty_dir_is_a_sized_tmpfs_and_is_unmounted() {
        let scratch = TempDir::new();
        let pod_dir = scratch.0.join("uid");
        let medium = EmptyDirMedium::Memory { size_bytes: Some(1 << 20) };
        let path = make(&pod_dir, medium).unwrap();
        make(&pod_dir, medium).unwrap();
        let count = || mount::mount_points().unwrap().iter().filter(|point| **point == path).count();
        let mounted = count();
        let overfull = std::fs::write(path.join("big"), vec![0; 2 << 20]);
        // As after a reboot: the marker is there, the tmpfs is not.
        mount::unmount(&path).unwrap();
        make(&pod_dir, medium).unwrap();
        let remounted = (count(), mode(&path));
        tear_down_dir(&pod_dir).unwrap();
        assert_eq!(mounted, 1, "one mount, however often it is ensured");
        assert!(overfull.is_err(), "the size limit holds");
        assert_eq!(remounted, (1, 0o1777), "as the kernel makes it, with the sticky bit");
        assert_eq!(count(), 0);
    }

    #[test]
    fn a_memory_volume_with_fs_group_keeps_its_sticky_bit() {
        let scratch = TempDir::new();
        let pod_dir = scratch.0.join("uid");
        let medium = EmptyDirMedium::Memory { size_bytes: None };
        let made = run(ensure(&pod_dir, "cache", medium, Some(54321))).map(|volume| mode(&volume.host_path));
        tear_down_dir(&pod_dir).unwrap();
        assert_eq!(made.unwrap(), 0o3777);
    }

    #[test]
    fn huge_pages_use_hugetlbfs_and_unknown_page_size_fails() {
        let scratch = TempDir::new();
        let pod_dir = scratch.0.join("uid");
        let sizes = std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().count();
        let made = make(&pod_dir, EmptyDirMedium::HugePages { page_bytes: 2 << 20 });
        let kind = made.as_ref().ok().map(|path| {
            let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            let line =
                table.lines().find(|line| line.contains(&path.display().to_string())).unwrap().to_owned();
            line.contains(" - hugetlbfs nodev ") && line.contains("pagesize=2M")
        });
        tear_down_dir(&pod_dir).unwrap();
        assert!(sizes == 0 || kind == Some(true), "{made:?}");
        let odd = make(&pod_dir, EmptyDirMedium::HugePages { page_bytes: 12345 }).unwrap_err();
        tear_down_dir(&pod_dir).unwrap();
        assert!(matches!(odd, VolumeError::SetUp { action: "mount hugetlbfs on", .. }), "{odd:?}");
    }
}
