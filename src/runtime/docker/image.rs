//! Images of the engine.
//!
//! Owns the calls. The engine stays the owner of its images: those that containers of others use are never removed.

use std::collections::BTreeSet;
use std::path::PathBuf;

use http_body_util::BodyExt;
use hyper::Method;
use serde_json::{Value, json};

use super::Engine;
use super::client::{Payload, escaped, forgive_not_found, last_line};
use super::observed::{image_status, is_of_pod, listed_image, text};
use super::request::PAUSE_IMAGE;
use crate::codec::base64;
use crate::model::image_name::split_reference;
use crate::model::ordered::Ordered as _;
use crate::platform::rt;
use crate::runtime::metered::Operation;
use crate::runtime::{DiskFigures, ErrorKind, ImageAuth, ImageStatus, RuntimeError, RuntimeImage};

/// What the engine calls its store of images when that is containerd's.
const CONTAINERD_STORE: &str = "io.containerd.snapshotter.v1";
/// A containerd that is not the engine's own.
const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
const CONTAINERD_ROOT: &str = "/var/lib/containerd";
/// The longest line of progress.
const MAX_LINE: usize = 64 << 10;

pub(super) async fn status(engine: &Engine, image: &str) -> Result<Option<ImageStatus>, RuntimeError> {
    match engine.client.get("ImageStatus", &format!("/images/{}/json", escaped(image))).await {
        Ok(found) => Ok(Some(image_status(&found))),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// As with CRI, a pull has no time limit: dropping the future ends it.
pub(super) async fn pull(
    engine: &Engine,
    image: &str,
    auth: Option<&ImageAuth>,
) -> Result<String, RuntimeError> {
    let call = "PullImage";
    let (name, tag, digest) = split_reference(image);
    let version = digest.or(tag).unwrap_or("latest");
    let path = format!("/images/create?fromImage={}&tag={}", escaped(name), escaped(version));
    let operation = Operation::begin(call);
    let content = auth.map_or(Payload::None, |auth| Payload::Auth(header(auth)));
    let pulled = Box::pin(follow_pull(engine, call, &path, content)).await;
    operation.end(pulled.is_err());
    pulled?;
    let exact = digest.map_or_else(|| image.to_owned(), |digest| format!("{name}@{digest}"));
    let found = engine.client.get(call, &format!("/images/{}/json", escaped(&exact))).await?;
    Ok(text(&found["Id"]))
}

/// Reads progress to its end, keeping the line that has not ended.
async fn follow_pull(
    engine: &Engine,
    call: &'static str,
    path: &str,
    content: Payload<'_>,
) -> Result<(), RuntimeError> {
    let mut progress = engine.client.open(call, Method::POST, path, content).await?.into_body();
    let mut held: Vec<u8> = Vec::new();
    while let Some(frame) = progress.frame().await {
        let frame = frame.map_err(|error| RuntimeError::new(call, ErrorKind::Timeout, error.to_string()))?;
        held.extend_from_slice(frame.data_ref().map(AsRef::as_ref).unwrap_or_default());
        if let Some(end) = held.iter().rposition(|byte| *byte == b'\n') {
            last_line(call, &held[..end])?;
            held.drain(..=end);
        }
        if held.len() > MAX_LINE {
            held.clear();
        }
    }
    last_line(call, &held).map(drop)
}

/// `X-Registry-Auth`: JSON in base64's alphabet for URLs, with padding.
fn header(auth: &ImageAuth) -> String {
    let value = json!({
        "username": auth.username, "password": auth.password, "serveraddress": auth.server_address,
        "identitytoken": auth.identity_token, "registrytoken": auth.registry_token,
    });
    base64::encode(value.to_string().as_bytes()).replace('+', "-").replace('/', "_")
}

/// All images; pinned are the sandboxes' and those from which containers of others were made.
pub(super) async fn list(engine: &Engine) -> Result<Vec<RuntimeImage>, RuntimeError> {
    let images = listed(engine).await?;
    let containers = engine.client.get("ListImages", "/containers/json?all=1").await?;
    let foreign = containers.as_array().into_iter().flatten().filter(|item| !is_of_pod(item));
    let foreign: BTreeSet<String> = foreign.map(|item| text(&item["ImageID"])).into_set();
    let pinned =
        |id: &str, names: &[String]| foreign.contains(id) || names.iter().any(|name| name == PAUSE_IMAGE);
    Ok(images.as_array().into_iter().flatten().map(|image| listed_image(image, pinned)).collect())
}

async fn listed(engine: &Engine) -> Result<Value, RuntimeError> {
    engine.client.get("ListImages", "/images/json").await
}

/// Removes an image with all its names, of which one that cannot be removed loses none.
pub(super) async fn remove(engine: &Engine, id: &str) -> Result<(), RuntimeError> {
    let call = "RemoveImage";
    let found = match engine.client.get(call, &format!("/images/{}/json", escaped(id))).await {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let delete = async |name: &str| {
        forgive_not_found(engine.client.delete(call, &format!("/images/{}", escaped(name))).await)
    };
    let own = text(&found["Id"]);
    let by_id = delete(&own).await;
    if by_id.as_ref().is_err_and(|error| has_several_names(&error.message)) {
        let (tags, digests) = (&found["RepoTags"], &found["RepoDigests"]);
        let names = tags.as_array().into_iter().chain(digests.as_array()).flatten().map(text);
        for name in names.chain([own]) {
            delete(&name).await?;
        }
    } else {
        by_id?;
    }
    engine.image_names.borrow_mut().retain(|(known, _)| known != id);
    Ok(())
}

/// Docker's words, and Podman's.
fn has_several_names(message: &str) -> bool {
    message.contains("multiple repositories") || message.contains("more than one tag")
}

/// Where the engine has images and layers.
pub(super) async fn place(engine: &Engine, call: &'static str) -> Result<Option<PathBuf>, RuntimeError> {
    let info = engine.info(call).await?;
    Ok(rt::blocking("find Docker's disk", move || place_in(&info)).await)
}

/// With containerd's store the engine still reports its own directory.
fn place_in(info: &Value) -> Option<PathBuf> {
    let root = info["DockerRootDir"].as_str().map(PathBuf::from)?;
    if !info["DriverStatus"].as_array().into_iter().flatten().any(|row| row[1] == CONTAINERD_STORE) {
        return Some(root);
    }
    let own = root.join("containerd/daemon");
    let is_own = info["Containerd"]["Address"] != CONTAINERD_SOCKET && own.is_dir();
    Some(if is_own { own } else { CONTAINERD_ROOT.into() })
}

/// The disk of images, and their sizes; what they share counts for each.
pub(super) async fn usage(engine: &Engine) -> Result<DiskFigures, RuntimeError> {
    let place = place(engine, "ImageFsInfo").await?.unwrap_or_default();
    let images = listed(engine).await?;
    let sizes = images.as_array().into_iter().flatten().filter_map(|image| image["Size"].as_u64());
    Ok(DiskFigures { place, bytes: Some(sizes.sum()), inodes: None })
}

#[cfg(test)]
mod tests {
    #[expect(clippy::disallowed_types, reason = "the engine of a test is another thread")]
    use std::sync::Mutex;
    use std::time::Duration;

    use super::super::testing::{refusal, response, socket};
    use super::super::{DockerConfig, DockerRuntime};
    use super::*;
    use crate::platform::testing::TempDir;

    #[expect(clippy::disallowed_types, reason = "see the import")]
    static DELETED: Mutex<Vec<String>> = Mutex::new(Vec::new());

    #[test]
    fn only_an_image_that_can_be_removed_loses_its_names() {
        rt::run(async {
            let path = socket(|request| {
                let mut words = request.split(' ');
                let (method, path) = (words.next(), words.next().unwrap_or_default());
                let name = path.trim_start_matches("/v1.41/images/");
                if method == Some("GET") {
                    let id = name.trim_end_matches("/json");
                    let (tags, digests) = (["a:1", "b:1"], ["a@sha256:0"]);
                    let image = json!({ "Id": id, "RepoTags": tags, "RepoDigests": digests });
                    return response("1.41", &image.to_string());
                }
                DELETED.lock().expect("whole").push(name.to_owned());
                match name {
                    "sha256:1" => refusal(409, "conflict: image has dependent child images"),
                    "sha256:2" if DELETED.lock().expect("whole").len() == 1 => {
                        refusal(409, "conflict: image is referenced in multiple repositories")
                    }
                    "a@sha256:0" | "sha256:2" => refusal(404, "No such image"),
                    _ => response("1.41", "[]"),
                }
            });
            let limit = Duration::from_secs(10);
            let runtime = DockerRuntime::new(path.clone(), 41, limit, DockerConfig::default());
            let deleted = || std::mem::take(&mut *DELETED.lock().expect("whole"));
            assert_eq!(remove(&runtime.engine, "sha256:1").await.unwrap_err().kind, ErrorKind::AlreadyExists);
            assert_eq!(deleted(), ["sha256:1"], "it has all its names");
            remove(&runtime.engine, "sha256:2").await.expect("by its names");
            assert_eq!(deleted(), ["sha256:2", "a:1", "b:1", "a@sha256:0", "sha256:2"]);
            remove(&runtime.engine, "sha256:3").await.expect("at once");
            assert_eq!(deleted(), ["sha256:3"]);
            std::fs::remove_file(path).expect("remove the socket");
        })
        .expect("run");
    }

    #[test]
    fn the_disk_of_containerds_store_is_containerds() {
        let directory = TempDir::new();
        let root = directory.path();
        let mut info = json!({ "DockerRootDir": root, "DriverStatus": [["Backing Filesystem", "extfs"]] });
        assert_eq!(place_in(&info), Some(root.to_owned()));
        info["DriverStatus"] = json!([["driver-type", CONTAINERD_STORE]]);
        assert_eq!(place_in(&info), Some(CONTAINERD_ROOT.into()));
        let own = root.join("containerd/daemon");
        std::fs::create_dir_all(&own).expect("make it");
        assert_eq!(place_in(&info), Some(own));
        info["Containerd"] = json!({ "Address": CONTAINERD_SOCKET });
        assert_eq!(place_in(&info), Some(CONTAINERD_ROOT.into()), "its own one is of an earlier time");
    }

    #[test]
    fn credentials_are_json_in_urls_base64() {
        let auth = ImageAuth::of_user("u".to_owned(), "~~~???".to_owned());
        let decoded = base64::decode(&header(&auth).replace('-', "+").replace('_', "/")).expect("base64");
        let value: Value = serde_json::from_slice(&decoded).expect("JSON");
        assert_eq!((value["username"].as_str(), value["password"].as_str()), (Some("u"), Some("~~~???")));
        assert!(!header(&auth).contains(['+', '/']));
    }
}
