//! CRI's ImageService.
//!
//! Owns the meaning of the calls. Images are the store's.

use hyper::body::Bytes;
use prost::Message;

use super::{CriServer, failed, messages, stats, unknown};
use crate::codec::base64;
use crate::platform::clock::Clock;
use crate::platform::grpc::{self, Code, GrpcReply, Status, unary};
use crate::platform::proto::runtime as cri;
use crate::platform::rt;
use crate::runtime::embedded::images::{Image, ImageError, normalise_reference};
use crate::runtime::{DiskFigures, ImageAuth, Runtime, SandboxConfig};

/// Entries in one message of a stream.
const BATCH: usize = 100;

fn image_failed(error: &ImageError) -> Status {
    let code = match error {
        ImageError::NotFound(_) => Code::NotFound,
        _ => Code::Unknown,
    };
    Status::new(code, crate::platform::logging::chain(error))
}

fn reference(image: Option<cri::ImageSpec>) -> Result<String, Status> {
    let image = image.unwrap_or_default().image;
    if image.is_empty() {
        return Err(Status::new(Code::InvalidArgument, "image: Required value"));
    }
    Ok(image)
}

impl CriServer {
    pub(super) async fn image_call(&self, name: &str, message: Bytes) -> Result<GrpcReply, Status> {
        match name {
            "ListImages" => Box::pin(unary(message, |request| self.list_images(request))).await,
            "StreamImages" => Box::pin(self.stream_images(message)).await,
            "ImageStatus" => Box::pin(unary(message, |request| self.image_status(request))).await,
            "PullImage" => Box::pin(unary(message, |request| self.pull_image(request))).await,
            "RemoveImage" => Box::pin(unary(message, |request| self.remove_image(request))).await,
            "ImageFsInfo" => Box::pin(unary(message, |request| self.image_fs_info(request))).await,
            _ => unknown(name),
        }
    }

    async fn found(&self, reference: String) -> Result<Option<Image>, Status> {
        let images = self.runtime.images().clone();
        let found = rt::blocking("image status", move || images.resolve(&reference)).await;
        found.map_err(|error| image_failed(&error))
    }

    async fn matching_images(&self, filter: Option<cri::ImageFilter>) -> Result<Vec<cri::Image>, Status> {
        let wanted = filter.and_then(|filter| filter.image).map(|image| image.image).unwrap_or_default();
        let images = self.runtime.images().clone();
        let all = rt::blocking("list images", move || images.list()).await;
        let mut all = all.map_err(|error| image_failed(&error))?;
        if !wanted.is_empty() {
            let one = self.found(wanted.clone()).await.ok().flatten();
            all.retain(|image| {
                one.as_ref().is_some_and(|one| one.id == image.id) || is_of_repository(image, &wanted)
            });
        }
        Ok(all.iter().map(messages::image).collect())
    }

    async fn list_images(&self, request: cri::ListImagesRequest) -> Result<cri::ListImagesResponse, Status> {
        Ok(cri::ListImagesResponse { images: self.matching_images(request.filter).await? })
    }

    async fn stream_images(&self, message: Bytes) -> Result<GrpcReply, Status> {
        let request: cri::StreamImagesRequest = grpc::decoded(message)?;
        let images = self.matching_images(request.filter).await?;
        let (sink, answer) = grpc::stream();
        rt::spawn("cri images", async move {
            for batch in images.chunks(BATCH) {
                let message = cri::StreamImagesResponse { images: batch.to_vec() };
                if sink.send(Ok(message.encode_to_vec())).await.is_err() {
                    return;
                }
            }
        });
        Ok(answer)
    }

    /// A missing image is not an error: the answer has no image.
    async fn image_status(
        &self,
        request: cri::ImageStatusRequest,
    ) -> Result<cri::ImageStatusResponse, Status> {
        let found = self.found(reference(request.image)?).await?;
        let info = found.as_ref().filter(|_| request.verbose).map(messages::image_info);
        Ok(cri::ImageStatusResponse {
            image: found.as_ref().map(messages::image),
            info: info.unwrap_or_default(),
        })
    }

    async fn pull_image(&self, request: cri::PullImageRequest) -> Result<cri::PullImageResponse, Status> {
        let auth = request.auth.map(auth).transpose()?.flatten();
        let reference = reference(request.image)?;
        let pulled = self.runtime.pull_image(&reference, auth.as_ref(), &SandboxConfig::default()).await;
        Ok(cri::PullImageResponse { image_ref: pulled.map_err(failed)? })
    }

    /// Succeeds if the image is already gone. An image that a container uses is not removed.
    async fn remove_image(
        &self,
        request: cri::RemoveImageRequest,
    ) -> Result<cri::RemoveImageResponse, Status> {
        let reference = reference(request.image)?;
        let Some(image) = self.found(reference.clone()).await? else {
            return Ok(cri::RemoveImageResponse {});
        };
        if self.runtime.images_in_use().contains(&image.id) {
            let message = format!("image {reference} is in use by a container: remove the container first");
            return Err(Status::new(Code::FailedPrecondition, message));
        }
        let images = self.runtime.images().clone();
        // All of its names: CRI means the image.
        let removed = rt::blocking("remove image", move || images.remove(&image.id)).await;
        match removed {
            Ok(_) | Err(ImageError::NotFound(_)) => Ok(cri::RemoveImageResponse {}),
            Err(error) => Err(image_failed(&error)),
        }
    }

    async fn image_fs_info(&self, _: cri::ImageFsInfoRequest) -> Result<cri::ImageFsInfoResponse, Status> {
        let images = self.runtime.image_usage().await.map_err(failed)?;
        let (mut bytes, mut inodes) = (0_u64, 0_u64);
        for view in self.runtime.containers() {
            let figures = self.runtime.stats(&view.id).await;
            if let Some(layer) = figures.ok().and_then(|figures| figures.layer) {
                bytes = bytes.saturating_add(layer.bytes.unwrap_or(0));
                inodes = inodes.saturating_add(layer.inodes.unwrap_or(0));
            }
        }
        let timestamp = Clock::System.now().as_nanos();
        let layers = DiskFigures {
            place: self.runtime.config().layout.writable_layers(),
            bytes: Some(bytes),
            inodes: Some(inodes),
        };
        Ok(cri::ImageFsInfoResponse {
            image_filesystems: vec![stats::disk(timestamp, &images)],
            container_filesystems: vec![stats::disk(timestamp, &layers)],
        })
    }
}

/// Whether a name without tag and digest matches the repository of one of the image's names.
fn is_of_repository(image: &Image, wanted: &str) -> bool {
    let last = wanted.rsplit('/').next().unwrap_or_default();
    let Ok(repository) = normalise_reference(wanted) else { return false };
    let names = image.repo_tags.iter().chain(&image.repo_digests);
    !last.contains([':', '@'])
        && names
            .filter_map(|name| normalise_reference(name).ok())
            .any(|name| name.name() == repository.name())
}

/// The credentials with all of their fields: none is dropped silently.
fn auth(auth: cri::AuthConfig) -> Result<Option<ImageAuth>, Status> {
    let (mut username, mut password) = (auth.username, auth.password);
    if username.is_empty() && auth.identity_token.is_empty() && !auth.auth.is_empty() {
        // As containerd reads it: with its padding.
        let plain = base64::Decoder::default().push(auth.auth.as_bytes(), true).ok();
        let text = plain.and_then(|plain| String::from_utf8(plain).ok());
        // Docker pads some with zero bytes.
        let pair = text.as_deref().and_then(|text| text.trim_end_matches('\0').split_once(':'));
        let Some((user, secret)) = pair else {
            return Err(Status::new(Code::InvalidArgument, "auth: must be base64 of user:password"));
        };
        (username, password) = (user.to_owned(), secret.to_owned());
    }
    let found = ImageAuth {
        username,
        password,
        server_address: auth.server_address,
        identity_token: auth.identity_token,
        registry_token: auth.registry_token,
    };
    let secrets = [&found.username, &found.password, &found.identity_token, &found.registry_token];
    let any = secrets.iter().any(|text| !text.is_empty());
    Ok(any.then_some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_means_all_its_images() {
        let image = Image {
            repo_tags: vec!["docker.io/library/busybox:1.36".into()],
            repo_digests: vec![format!("r.example:5000/team/app@sha256:{}", "1".repeat(64))],
            ..Image::default()
        };
        for (wanted, expected) in [
            ("busybox", true),
            ("docker.io/library/busybox", true),
            ("busybox:1.35", false),
            ("busy", false),
            ("r.example:5000/team/app", true),
            ("r.example:5000/team", false),
            ("team/app", false),
            ("UPPER", false),
        ] {
            assert_eq!(is_of_repository(&image, wanted), expected, "{wanted}");
        }
    }

    #[test]
    fn credentials_come_as_a_pair_in_base64_or_as_a_token() {
        let pair = |username: &str, password: &str| ImageAuth::of_user(username.into(), password.into());
        let with = |auth: cri::AuthConfig| super::auth(auth);
        assert_eq!(with(cri::AuthConfig::default()), Ok(None));
        let given =
            cri::AuthConfig { username: "u".into(), password: "p".into(), ..cri::AuthConfig::default() };
        assert_eq!(with(given), Ok(Some(pair("u", "p"))));
        let encoded = cri::AuthConfig { auth: "dTpwOnE=".into(), ..cri::AuthConfig::default() };
        assert_eq!(with(encoded), Ok(Some(pair("u", "p:q"))));
        let odd = cri::AuthConfig { auth: "dTpwOn".into(), ..cri::AuthConfig::default() };
        assert!(with(odd).is_err());
        let token = cri::AuthConfig {
            identity_token: "t".into(),
            server_address: "https://r.example".into(),
            ..cri::AuthConfig::default()
        };
        let expected = ImageAuth {
            identity_token: "t".into(),
            server_address: "https://r.example".into(),
            ..ImageAuth::default()
        };
        assert_eq!(with(token), Ok(Some(expected)));
    }
}
