//! The devices of a container: requested by annotation, by volume and as a resource, resolved on the node.
//!
//! Owns the wait of a container for a missing device.

use std::path::{Path, PathBuf};

use crate::devices::allocation::is_extended;
use crate::devices::cdi;
use crate::devices::rules::{DeviceRequest, NOT_FOUND, by_annotation, by_volume, volume_paths};
use crate::managers::AdmissionRefusal;
use crate::model::api::pod::{Container, Pod};
use crate::model::types::PodUid;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::pod::events::EventType;
use crate::pod::executor::{Executor, Patience, RETRY_AFTER, Run};
use crate::pod::image::StartFailure as Failure;
use crate::pod::resources::{QosClass, qos_class};
use crate::pod::volume::MountedVolumes;
use crate::runtime::{ContainerConfig, Device, Runtime};

/// A plugin failed to prepare the pod's devices, or has too few for a running pod (upstream's reason).
const CONFIG_ERROR: &str = "CreateContainerConfigError";

impl<R: Runtime> Executor<R> {
    /// Adds devices to the container configuration: those of plugins with their mounts and variables, of
    /// annotations, of volumes.
    pub(super) async fn add_devices(
        &self,
        run: &Run<'_>,
        container: &Container,
        mut config: ContainerConfig,
    ) -> Result<ContainerConfig, Failure> {
        if container.resources.limits.keys().any(|name| is_extended(name)) {
            config = self.add_plugins_devices(run.pod, container, config).await?;
        }
        if let Some(volumes) = &run.volumes {
            config.devices.extend(volume_devices(run.pod, container, volumes));
        }
        for wanted in by_annotation(run.pod, &container.name) {
            match wanted {
                DeviceRequest::Path(device) => config.devices.push(device),
                DeviceRequest::Cdi(name) => config.cdi_devices.push(name),
            }
        }
        let directories = self.config.cdi_directories.clone();
        let has_names = !config.cdi_devices.is_empty() || !cdi::annotated(&config).is_empty();
        if has_names && !directories.is_empty() {
            let edit = move || cdi::apply(&directories, &mut config).map(|()| config);
            config = rt::blocking("read CDI specifications", edit).await.map_err(|error| Failure {
                reason: CONFIG_ERROR,
                message: format!("CDI device injection failed: {error}"),
                retry_after: Some(RETRY_AFTER),
            })?;
        }
        let paths: Vec<String> = config.devices.iter().map(|device| device.host_path.clone()).collect();
        let found = self.find(run, &paths).await?;
        for (device, path) in config.devices.iter_mut().zip(found) {
            device.host_path = path.display().to_string();
        }
        Ok(config)
    }

    /// Allocates CPUs, memory and plugin devices for all containers of a pod that is about to run. If one allocation
    /// fails, the pod keeps none.
    ///
    /// # Errors
    /// Why the allocation failed, in upstream's words.
    pub(in crate::pod) async fn allocate_devices(&self, pod: &Pod) -> Result<(), AdmissionRefusal> {
        let devices = &self.config.devices;
        let is_guaranteed = qos_class(pod) == QosClass::Guaranteed;
        let allocated = self.config.managers.admit(pod, is_guaranteed, devices).await;
        if allocated.is_err() {
            devices.release(&pod.metadata.uid).await;
        }
        allocated
    }

    /// CPUs, memory and devices may be allocated to other pods from now on.
    pub(in crate::pod) async fn release_devices(&self, uid: &PodUid) {
        self.config.devices.release(uid).await;
        self.config.managers.release(uid).await;
        if !self.config.managers.is_settled() {
            self.settle_cpus().await;
        }
    }

    async fn add_plugins_devices(
        &self,
        pod: &Pod,
        container: &Container,
        mut config: ContainerConfig,
    ) -> Result<ContainerConfig, Failure> {
        let refused = |message| Failure { reason: CONFIG_ERROR, message, retry_after: Some(RETRY_AFTER) };
        let devices = &self.config.devices;
        devices.allocate(pod).await.map_err(refused)?;
        let options = devices.run_options(&pod.metadata.uid, &container.name).await.map_err(refused)?;
        if let Some(path) = options.relative_path() {
            return Err(refused(format!(
                "host path {path:?} from the device plugin is not an absolute path"
            )));
        }
        // As upstream: a variable of the pod's spec wins; a mount of the plugin does not hide one of the pod.
        let is_set = |name: &String| config.envs.iter().any(|(other, _)| other == name);
        let envs: Vec<_> = options.envs.into_iter().filter(|(name, _)| !is_set(name)).collect();
        config.envs.extend(envs);
        config.mounts.extend(options.mounts);
        config.devices.extend(options.devices);
        config.annotations.extend(options.annotations);
        config.cdi_devices.extend(options.cdi);
        Ok(config)
    }

    /// A volume of a device type waits for its device, as a container does.
    pub(super) async fn find_volume_devices(&self, run: &Run<'_>) -> Result<(), Failure> {
        let found = self.find(run, &volume_paths(run.pod)).await;
        found.map(|_| ()).inspect_err(|failure| {
            self.pod_event(run.pod, EventType::Warning, failure.reason, &failure.message);
        })
    }

    /// The targets of these paths. The pod waits for the first one that does not exist.
    async fn find(&self, run: &Run<'_>, paths: &[String]) -> Result<Vec<PathBuf>, Failure> {
        if paths.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = paths.to_vec();
        let look = move || -> Result<Vec<PathBuf>, (String, std::io::Error)> {
            let real = |path: String| std::fs::canonicalize(&path).map_err(|error| (path, error));
            wanted.into_iter().map(real).collect()
        };
        rt::blocking("find devices", look).await.map_err(|(path, error)| {
            let message = format!("device {path:?} is not present ({error}); waiting for it");
            let waits = match run.patience {
                Patience::UntilRemoval(inbox) => self.device_waits.wait(Path::new(&path), inbox),
                Patience::Until(_) => Ok(()),
            };
            // Without inotify the start is retried like any other failure.
            let retry_after = waits.err().map(|error| {
                log::warn!(device = path, err:% = chain(&error); "Failed to watch for device, checking \
                     periodically");
                RETRY_AFTER
            });
            Failure { reason: NOT_FOUND, message, retry_after }
        })
    }
}

/// Devices of the container's volumes, each as it was bound when its type was checked: the path in the manifest
/// may have another file by now.
fn volume_devices(pod: &Pod, container: &Container, volumes: &MountedVolumes) -> Vec<Device> {
    let bound = |(volume, device)| {
        let host_path = volumes.get(volume)?.host_path.display().to_string();
        Some(Device { host_path, ..device })
    };
    by_volume(pod, container).into_iter().filter_map(bound).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::decode::decode;
    use crate::pod::volume::MountedVolume;
    use serde_json::json;

    #[test]
    fn device_of_a_volume_is_the_bound_one_never_the_path() {
        let volume =
            |name: &str| json!({"name": name, "hostPath": {"path": "/dev/tty0", "type": "CharDevice"}});
        let mount = |name: &str| json!({"name": name, "mountPath": format!("/dev/{name}")});
        let spec = json!({
            "volumes": [volume("a"), volume("b")],
            "containers": [{"name": "c", "image": "i", "volumeMounts": [mount("a"), mount("b")]}],
        });
        let pod = decode::<Pod>(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap().object;
        let ready = MountedVolume { host_path: "/pods/u/a".into(), ..MountedVolume::default() };
        let volumes = MountedVolumes::from([("a".to_owned(), ready)]);
        let found = volume_devices(&pod, &pod.spec.containers[0], &volumes);
        let found: Vec<_> = found.iter().map(|one| (&*one.host_path, &*one.container_path)).collect();
        assert_eq!(found, [("/pods/u/a", "/dev/a")], "nothing is allowed for a volume that is not set up");
    }
}
