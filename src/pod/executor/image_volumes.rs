//! Image volumes: pulled like a container's own image, before the first container that mounts them starts.
//!
//! Owns the resolution of a volume's reference to an image.

use crate::model::api::pod::{Container, Pod};
use crate::model::objects::Realm;
use crate::model::provenance::realm;
use crate::pod::events::EventType;
use crate::pod::executor::{Executor, Run};
use crate::pod::image::{ImageRequest, PodSecret, StartFailure as Failure};
use crate::runtime::{ImageStatus, Runtime};

/// Added to the runtime's error for a container that mounts an image: older runtimes do not name the missing
/// feature.
const HINT: &str = "the container mounts an image volume, which requires containerd 2.1 or CRI-O 1.31";

impl<R: Runtime> Executor<R> {
    /// Pulls the images that the container mounts and stores their ids in the pod's volumes.
    pub(super) async fn ensure_image_volumes(
        &self,
        run: &mut Run<'_>,
        container: &Container,
        field_path: &str,
    ) -> Result<(), Failure> {
        for (name, reference, policy) in mounted_images(run.pod, container) {
            let pod = run.pod.pod_ref();
            let request = ImageRequest {
                pod: &pod,
                field_path,
                image: reference,
                policy,
                sandbox: &run.sandbox_config,
                secrets: &[],
                account: "",
            };
            let image = self.pull(run, request).await?;
            let volume = run.volumes.as_mut().and_then(|volumes| volumes.get_mut(name));
            if let Some(mount) = volume.and_then(|volume| volume.image.as_mut()) {
                mount.image = image.id;
            }
        }
        Ok(())
    }

    /// Pulls an image by its policy. A pull may take minutes; the pod's removal cancels it.
    pub(super) async fn pull(
        &self,
        run: &Run<'_>,
        request: ImageRequest<'_>,
    ) -> Result<ImageStatus, Failure> {
        let secrets = self.pull_secrets(run.pod);
        let account = match realm(run.pod) {
            Realm::Cluster => run.pod.spec.service_account_name.as_str(),
            Realm::Node => "",
        };
        let request = ImageRequest { secrets: &secrets, account, ..request };
        tokio::select! {
            biased;
            () = run.patience.over() => Err(Failure {
                reason: "ErrImagePull", message: "pull cancelled: the pod is being \
                     removed".to_owned(), retry_after: None,
            }),
            image = self.images.ensure_image(request) => image,
        }
    }
}

impl<R: Runtime> Executor<R> {
    /// The pod's `imagePullSecrets`. Missing ones are reported and skipped, as upstream.
    fn pull_secrets(&self, pod: &Pod) -> Vec<PodSecret> {
        let namespace = &pod.metadata.namespace;
        let objects = self.config.objects.of(realm(pod));
        let names = pod.spec.image_pull_secrets.iter().map(|reference| reference.name.as_str());
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for name in names.filter(|name| !name.is_empty()) {
            match objects.secret(namespace, name) {
                Some(data) => found.push(PodSecret {
                    namespace: namespace.clone(),
                    name: name.to_owned(),
                    uid: objects.secret_uid(namespace, name).unwrap_or_default(),
                    data,
                }),
                None => missing.push(name),
            }
        }
        if !missing.is_empty() {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            self.pod_event(pod, EventType::Warning, "FailedToRetrieveImagePullSecret", &message);
        }
        found
    }
}

/// Volume, reference and pull policy of each image volume that the container mounts.
fn mounted_images<'a>(
    pod: &'a Pod,
    container: &'a Container,
) -> impl Iterator<Item = (&'a str, &'a str, &'a str)> {
    let is_mounted = |name: &str| container.volume_mounts.iter().any(|mount| mount.name == name);
    pod.spec.volumes.iter().filter(move |volume| is_mounted(&volume.name)).filter_map(|volume| {
        let image = volume.image.as_ref()?;
        Some((volume.name.as_str(), image.reference.as_str(), image.pull_policy.as_str()))
    })
}

/// The runtime's error, with a hint when the container mounts images.
pub(super) fn refusal(message: &str, config: &crate::runtime::ContainerConfig) -> String {
    if config.mounts.iter().any(|mount| mount.image.is_some()) {
        format!("{message} ({HINT})")
    } else {
        message.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::decode::decode;
    use crate::runtime::{ContainerConfig, ImageMount, Mount};
    use serde_json::json;

    #[test]
    fn only_images_that_the_container_mounts_are_pulled_for_it() {
        let pod = json!({"spec": {
            "volumes": [
                {"name": "pic", "image": {"reference": "r/pic:1", "pullPolicy": "Never"}},
                {"name": "other", "image": {"reference": "r/other:1", "pullPolicy": "Always"}},
                {"name": "data", "emptyDir": {}},
            ],
            "containers": [{"name": "a", "volumeMounts": [
                {"name": "data", "mountPath": "/d"}, {"name": "pic", "mountPath": "/p"}, {"name": "pic", "mountPath": "/q"}]}],
        }});
        let pod = decode::<Pod>(pod).unwrap().object;
        let images: Vec<_> = mounted_images(&pod, &pod.spec.containers[0]).collect();
        assert_eq!(images, [("pic", "r/pic:1", "Never")]);
    }

    #[test]
    fn a_refusal_hints_at_image_volumes_only_where_there_are_any() {
        let mut config = ContainerConfig { mounts: vec![Mount::default()], ..ContainerConfig::default() };
        assert_eq!(refusal("no", &config), "no");
        config.mounts[0].image = Some(ImageMount::default());
        assert!(refusal("no", &config).starts_with("no (the container mounts an image"));
    }
}
