//! Image calls of the agent.
//!
//! Owns nothing: the store and the puller do the work.

use std::rc::Rc;

use tokio::sync::oneshot;

use super::super::images::{Image, ImageError};
use super::super::registry::{self, Progress, PullErrorKind, PullRequest};
use super::{Failure, RuntimeInner};
use crate::platform::rt;
use crate::runtime::{ErrorKind, ImageAuth, ImageStatus, RuntimeImage};

/// The image that a reference resolves to.
pub(super) async fn status(shared: &Rc<RuntimeInner>, image: &str) -> Result<Option<ImageStatus>, Failure> {
    let (images, reference) = (shared.images.clone(), image.to_owned());
    let found = rt::blocking("image status", move || images.resolve(&reference)).await;
    let found = found.map_err(|error| Failure::because("image status", &error))?;
    Ok(found.map(|image| {
        let (uid, username) = user(&image.defaults.user);
        ImageStatus { id: image.id, uid, username, size_bytes: image.size_bytes }
    }))
}

/// `User` of an image: a number or a name. The group is not reported.
fn user(text: &str) -> (Option<i64>, String) {
    let name = text.split(':').next().unwrap_or_default();
    match name.parse::<i64>() {
        Ok(uid) => (Some(uid), String::new()),
        Err(_) => (None, name.to_owned()),
    }
}

pub(super) async fn list(shared: &Rc<RuntimeInner>) -> Result<Vec<RuntimeImage>, Failure> {
    let images = shared.images.clone();
    let all = rt::blocking("list images", move || images.list()).await;
    let all = all.map_err(|error| Failure::because("list images", &error))?;
    let listed = |image: Image| RuntimeImage {
        id: image.id,
        names: image.repo_digests.into_iter().chain(image.repo_tags).collect(),
        size_bytes: image.size_bytes,
        pinned: image.pinned,
    };
    Ok(all.into_iter().map(listed).collect())
}

/// Removes an image unless a container was made from it. Returns the bytes of the layers that no other image
/// has.
pub(super) async fn remove(
    shared: &Rc<RuntimeInner>,
    id: &str,
    used: Vec<String>,
) -> Result<Option<u64>, Failure> {
    if used.iter().any(|used| used == id) {
        return Err(Failure::refused(format!("image {id} is in use by a container")));
    }
    let (images, id) = (shared.images.clone(), id.to_owned());
    // Not in the pool, where pods wait for their turn: a disk that discards blocks takes milliseconds for a file.
    let (answer, answered) = oneshot::channel();
    rt::spawn_thread("remove image", move || drop(answer.send(images.remove(&id))))
        .map_err(|error| Failure::because("remove image", &error))?;
    let removed =
        answered.await.map_err(|_| Failure::refused("the thread that removes an image has stopped"))?;
    match removed {
        Ok(pruned) => Ok(Some(pruned.bytes)),
        Err(ImageError::NotFound(_)) => Ok(None),
        Err(error) => Err(Failure::because("remove image", &error)),
    }
}

/// Pulls an image in a child process. Returns the image's id.
pub(super) async fn pull(
    shared: &Rc<RuntimeInner>,
    image: &str,
    auth: Option<&ImageAuth>,
) -> Result<String, Failure> {
    let request = PullRequest {
        image: image.to_owned(),
        auth: auth.cloned(),
        hosts_dirs: shared.config.registry_hosts_dirs.clone(),
        policy: registry::policy_file(shared.config.image_policy.as_deref()),
        keep_free: shared.config.image_keep_free.clone(),
        store: shared.images.root().to_owned(),
        ..PullRequest::default()
    };
    let program = shared.program();
    let pulled = registry::pull_in_child(&program, &request, |progress| match progress {
        Progress::Warning { reference, message } => {
            log::warn!(image = reference, problem = message; "Pulled image may be unsuitable");
        }
        progress => log::debug!(progress:? = progress; "Pulling image"),
    });
    let pulled = pulled.await.map_err(|error| {
        let kind = match error.kind() {
            PullErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Refused,
        };
        Failure::new(kind, crate::platform::logging::chain(&error))
    })?;
    shared.hint();
    Ok(pulled.image_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_an_image_is_a_number_or_a_name() {
        assert_eq!(user(""), (None, String::new()));
        assert_eq!(user("1000"), (Some(1000), String::new()));
        assert_eq!(user("1000:1001"), (Some(1000), String::new()));
        assert_eq!(user("nobody:nogroup"), (None, "nobody".to_owned()));
    }
}
