//! The mounts of one container: the result of the pure part, with paths, sub-paths and images of the pod's
//! ready volumes.
//!
//! Owns nothing.

use std::path::Path;

use crate::model::api::pod::{Container, VolumeMount};
use crate::platform::logging::chain;
use crate::pod::executor::{Executor, Run};
use crate::pod::mounts::{MountError, asks_for_recursive_read_only, make_mount, sub_path};
use crate::pod::volume::{MountedVolume, SubPath};
use crate::runtime::{ImageMount, Mount, Runtime};

impl<R: Runtime> Executor<R> {
    /// Mounts of the container's volumes, in the order of the spec. `environment` is for `subPathExpr`.
    pub(super) async fn volume_mounts(
        &self,
        run: &Run<'_>,
        container: &Container,
        environment: &[(String, String)],
    ) -> Result<Vec<Mount>, String> {
        let recursive = asks_for_recursive_read_only(container)
            && self.can_mount_recursively_read_only(&run.sandbox_config.runtime_handler).await?;
        let mut mounts = Vec::with_capacity(container.volume_mounts.len());
        for (index, mount) in container.volume_mounts.iter().enumerate() {
            let volume = run.volumes.as_ref().and_then(|volumes| volumes.get(&mount.name));
            let volume = volume.ok_or_else(|| missing(mount, container).to_string())?;
            let path = sub_path(mount, environment).map_err(|error| error.to_string())?;
            let made = make_mount(mount, recursive).map_err(|error| error.to_string())?;
            mounts.push(match &volume.image {
                Some(image) => of_image(made, image, path),
                None if path.is_empty() => of_path(made, volume, &volume.host_path),
                None => {
                    let wanted = SubPath {
                        volume_path: volume.host_path.clone(),
                        path,
                        volume: mount.name.clone(),
                        container: container.name.clone(),
                        index,
                    };
                    of_path(made, volume, &self.bind_sub_path(run, volume, wanted).await?)
                }
            });
        }
        Ok(mounts)
    }

    async fn bind_sub_path(
        &self,
        run: &Run<'_>,
        volume: &MountedVolume,
        wanted: SubPath,
    ) -> Result<std::path::PathBuf, String> {
        let bound = self.volumes.ensure_sub_path(&run.pod.metadata.uid, volume, wanted).await;
        bound.map_err(|error| {
            // The status shows only upstream's message: it must not expose the node's paths to the container.
            log::warn!(pod:% = run.pod.pod_ref(), err:% = chain(&error); "Failed to bind subPath");
            error.to_string()
        })
    }

    /// Whether the pod's runtime handler reports the feature.
    async fn can_mount_recursively_read_only(&self, handler: &str) -> Result<bool, String> {
        let status = self.runtime.status().await.map_err(|error| error.to_string())?;
        let named = status.handlers.iter().find(|known| known.name == handler);
        Ok(named.is_some_and(|known| known.recursive_read_only_mounts))
    }
}

fn missing(mount: &VolumeMount, container: &Container) -> MountError {
    MountError::NoVolume { volume: mount.name.clone(), container: container.name.clone() }
}

fn of_path(mount: Mount, volume: &MountedVolume, path: &Path) -> Mount {
    Mount {
        host_path: path.display().to_string(),
        readonly: mount.readonly || volume.read_only,
        selinux_relabel: volume.selinux_relabel,
        ..mount
    }
}

fn of_image(mount: Mount, image: &ImageMount, sub_path: String) -> Mount {
    Mount { readonly: true, image: Some(ImageMount { sub_path, ..image.clone() }), ..mount }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_sets_readonly_and_relabel_and_images_are_readonly() {
        let volume = MountedVolume { read_only: true, selinux_relabel: true, ..MountedVolume::default() };
        let made = of_path(Mount::default(), &volume, Path::new("/srv/data"));
        assert_eq!(made.host_path, "/srv/data");
        assert!(made.readonly && made.selinux_relabel);
        let writable = of_path(Mount::default(), &MountedVolume::default(), Path::new("/srv/data"));
        assert!(!writable.readonly && !writable.selinux_relabel);
        let image = ImageMount { image: "sha256:1".to_owned(), ..ImageMount::default() };
        let made = of_image(Mount::default(), &image, "docs".to_owned());
        assert!(made.readonly && made.host_path.is_empty());
        assert_eq!(
            made.image.map(|image| (image.image, image.sub_path)),
            Some(("sha256:1".into(), "docs".into()))
        );
    }
}
