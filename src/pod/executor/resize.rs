//! Changing the resources of a running container.
//!
//! The steps and their order are planned; here each becomes one call. A memory limit below the current usage
//! is refused: the kernel would kill processes.

use std::path::{Path, PathBuf};

use crate::model::api::pod::{Container, Pod};
use crate::model::containers::find_container;
use crate::model::ordered::Ordered as _;
use crate::model::types::ContainerId;
use crate::platform::rt;
use crate::pod::events::EventType;
use crate::pod::executor::{Executor, RETRY_AFTER, retry_after};
use crate::pod::image::StartFailure as Failure;
use crate::pod::plan::ResizeContainer;
use crate::pod::plan::resize::ResizeNews;
use crate::pod::resources::{MEMORY_HIGH, pod_cgroup_path, qos_class};
use crate::runtime::{LinuxResources, Runtime};

impl<R: Runtime> Executor<R> {
    pub(super) async fn resize_container(&self, pod: &Pod, resize: &ResizeContainer) -> Result<(), Failure> {
        let Some((container, _)) = find_container(pod, &resize.name) else { return Ok(()) };
        let container = Container { resources: resize.resources.clone(), ..container.clone() };
        let all = self.resources_of(pod, &container);
        let change = only(resize.resource, &all);
        if change == LinuxResources::default() {
            // A memory request alone has no cgroup file.
            return Ok(());
        }
        let failed =
            |message: String, after| Failure { reason: "ResizeError", message, retry_after: Some(after) };
        let limit = change.memory_limit_bytes;
        if limit != 0
            && let Some(usage) = self.memory_usage(pod, &resize.id).await.filter(|usage| *usage > limit)
        {
            let message = format!(
                "attempting to set container {:?} memory limit ({limit}) below current usage ({usage})",
                resize.name.as_str()
            );
            return Err(failed(message, RETRY_AFTER));
        }
        let answer = self.runtime.update_container_resources(&resize.id, &change).await;
        answer.map_err(|error| failed(error.message.clone(), retry_after(&error)))
    }

    pub(in crate::pod) fn record_resize(&self, pod: &Pod, news: &ResizeNews) {
        let kind = if news.warning { EventType::Warning } else { EventType::Normal };
        self.pod_event(pod, kind, &news.reason, &news.message);
    }

    /// The memory usage of the container's cgroup in bytes, if it is at the runtimes' usual path.
    async fn memory_usage(&self, pod: &Pod, id: &ContainerId) -> Option<i64> {
        let cgroup = &self.config.cgroup;
        let parent = pod_cgroup_path(&pod.metadata.uid, qos_class(pod), &self.cgroup_layout());
        let (root, file) = if cgroup.v2 {
            (cgroup.mount.clone(), "memory.current")
        } else {
            (cgroup.mount.join("memory"), "memory.usage_in_bytes")
        };
        let (pod, id) = (root.join(parent.trim_start_matches('/')), id.clone());
        rt::blocking("read memory usage", move || usage_below(&pod, &id, file)).await
    }
}

/// containerd and CRI-O name a container's cgroup by its id; with systemd it is a scope with the runtime's
/// prefix.
fn usage_below(pod: &Path, id: &ContainerId, file: &str) -> Option<i64> {
    let scope = |prefix: &str| format!("{prefix}-{id}.scope");
    let names = [id.to_string(), scope("cri-containerd"), scope("crio"), scope("cri-agent")];
    let paths = names.into_iter().map(|name| -> PathBuf { pod.join(name).join(file) });
    paths.into_iter().find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok())
}

/// The values of one resource; zero leaves the others as they are.
fn only(resource: &str, all: &LinuxResources) -> LinuxResources {
    match resource {
        "memory" => LinuxResources {
            memory_limit_bytes: all.memory_limit_bytes,
            memory_swap_limit_bytes: all.memory_swap_limit_bytes,
            unified: all.unified.iter().filter(|(file, _)| *file == MEMORY_HIGH).map(owned).into_map(),
            ..LinuxResources::default()
        },
        _ => LinuxResources {
            cpu_shares: all.cpu_shares,
            cpu_quota: all.cpu_quota,
            cpu_period: if all.cpu_quota == 0 { 0 } else { all.cpu_period },
            ..LinuxResources::default()
        },
    }
}

fn owned((file, value): (&String, &String)) -> (String, String) {
    (file.clone(), value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_resource_changes_and_the_others_are_left_alone() {
        let all = LinuxResources {
            cpu_shares: 512,
            cpu_quota: 50_000,
            cpu_period: 100_000,
            memory_limit_bytes: 1 << 20,
            memory_swap_limit_bytes: 1 << 20,
            oom_score_adj: 900,
            ..LinuxResources::default()
        };
        let memory = only("memory", &all);
        assert_eq!((memory.memory_limit_bytes, memory.memory_swap_limit_bytes), (1 << 20, 1 << 20));
        assert_eq!((memory.cpu_shares, memory.oom_score_adj), (0, 0));
        let cpu = only("cpu", &all);
        assert_eq!((cpu.cpu_shares, cpu.cpu_quota, cpu.cpu_period), (512, 50_000, 100_000));
        assert_eq!(cpu.memory_limit_bytes, 0);
    }

    #[test]
    fn usage_is_found_under_any_runtimes_name() {
        let root = std::env::temp_dir().join(format!("edge-agent-usage-{}", std::process::id()));
        let scope = root.join("cri-containerd-abc.scope");
        std::fs::create_dir_all(&scope).unwrap();
        std::fs::write(scope.join("memory.current"), "4096\n").unwrap();
        assert_eq!(usage_below(&root, &"abc".into(), "memory.current"), Some(4096));
        assert_eq!(usage_below(&root, &"def".into(), "memory.current"), None);
        std::fs::remove_dir_all(root).unwrap();
    }
}
