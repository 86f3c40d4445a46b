//! What only the engine knows of usage: writable layers, and the disk of images. Cgroups are read elsewhere.
//!
//! Owns the figures of layers, which are measured again when they are old.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::Engine;
use super::image;
use super::observed::{process_of, text};
use crate::model::types::ContainerId;
use crate::platform::rt;
use crate::platform::sys::disk_usage::disk_usage;
use crate::runtime::{ContainerFigures, DiskFigures, ErrorKind, RuntimeError, RuntimeUse};

/// Walking a layer costs reading all its directories.
const FIGURES_HOLD: Duration = Duration::from_secs(60);
const CALL: &str = "ListContainerStats";

/// The writable layer of a container: where it is, and how large it was.
#[derive(Clone)]
pub(super) struct MeasuredLayer {
    /// `None` where the engine's store does not say; then only the engine can measure.
    place: Option<PathBuf>,
    measured: Option<(Instant, DiskFigures)>,
}

pub(super) async fn usage(engine: &Engine, disks: bool) -> Result<RuntimeUse, RuntimeError> {
    let mut found = RuntimeUse::default();
    if !disks {
        return Ok(found);
    }
    let listed = engine.list(CALL, super::request::CONTAINER, None).await?;
    let ids: Vec<String> = listed.iter().map(|item| text(&item["Id"])).collect();
    engine.layers.borrow_mut().retain(|(id, _)| ids.contains(id));
    for id in ids {
        if let Some(layer) = layer(engine, &id).await? {
            let figures = ContainerFigures { layer: Some(layer), ..ContainerFigures::default() };
            found.containers.push((ContainerId::from(id), figures));
        }
    }
    found.images = image::usage(engine).await.ok();
    Ok(found)
}

async fn layer(engine: &Engine, id: &str) -> Result<Option<DiskFigures>, RuntimeError> {
    let known = engine.layers.borrow().iter().find(|(known, _)| known == id).map(|(_, layer)| layer.clone());
    let place = match known {
        Some(MeasuredLayer { measured: Some((at, figures)), .. }) if at.elapsed() < FIGURES_HOLD => {
            return Ok(Some(figures));
        }
        Some(layer) => layer.place,
        None => {
            let Some(object) = unless_gone(engine.inspect(CALL, id).await)? else { return Ok(None) };
            let upper = PathBuf::from(text(&object["GraphDriver"]["Data"]["UpperDir"]));
            match process_of(&object) {
                _ if upper.is_absolute() => Some(upper),
                Some(pid) => rt::blocking("find writable layer", move || upper_of(pid)).await,
                None => None,
            }
        }
    };
    let figures = if let Some(place) = place.clone() {
        rt::blocking("measure writable layer", move || {
            let (bytes, inodes) = disk_usage(&place).unwrap_or_default();
            DiskFigures { place, bytes: Some(bytes), inodes: Some(inodes) }
        })
        .await
    } else {
        let sized = engine.client.get(CALL, &format!("/containers/{id}/json?size=1")).await;
        let Some(object) = unless_gone(sized)? else { return Ok(None) };
        let place = image::place(engine, CALL).await?.unwrap_or_default();
        DiskFigures { place, bytes: object["SizeRw"].as_u64(), inodes: None }
    };
    let measured = Some((Instant::now(), figures.clone()));
    let mut layers = engine.layers.borrow_mut();
    layers.retain(|(known, _)| known != id);
    layers.push((id.to_owned(), MeasuredLayer { place, measured }));
    Ok(Some(figures))
}

/// `None` for a container that has gone since it was listed, or whose layer has: the engine's 404, or 500. The figures
/// of the others count even so.
fn unless_gone(answer: Result<Value, RuntimeError>) -> Result<Option<Value>, RuntimeError> {
    match answer {
        Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Refused) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Where the kernel writes what a process changes below its root directory.
fn upper_of(pid: i32) -> Option<PathBuf> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok()?;
    upper_in(&table).filter(|path| path.is_dir())
}

fn upper_in(mountinfo: &str) -> Option<PathBuf> {
    let root = mountinfo.lines().find(|line| line.split(' ').nth(4) == Some("/"))?;
    let mut options = root.rsplit(' ').next()?.split(',');
    options.find_map(|option| option.strip_prefix("upperdir=")).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{refusal, response, socket};
    use super::super::{DockerConfig, DockerRuntime};
    use super::*;

    #[test]
    fn the_writable_layer_is_the_upper_directory_of_the_root() {
        let table = "600 500 0:55 / / rw - overlay overlay rw,lowerdir=/c/1/fs:/c/2/fs,upperdir=/c/7/fs,workdir=/w\n\
                     601 600 0:58 / /proc rw - proc proc rw\n";
        assert_eq!(upper_in(table), Some("/c/7/fs".into()));
        assert_eq!(upper_in("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"), None);
    }

    #[test]
    fn a_container_whose_layer_is_gone_hides_no_others() {
        rt::run(async {
            let path = socket(|request| match request.split(' ').nth(1).unwrap_or_default() {
                "/v1.41/info" => response("1.41", r#"{"DockerRootDir":"/d"}"#),
                "/v1.41/containers/gone/json" => refusal(404, "No such container: gone"),
                "/v1.41/containers/bare/json?size=1" => refusal(404, "snapshot bare does not exist"),
                "/v1.41/containers/broken/json?size=1" => refusal(500, "RWLayer is unexpectedly nil"),
                "/v1.41/containers/whole/json?size=1" => response("1.41", r#"{"SizeRw":5}"#),
                path if path.starts_with("/v1.41/containers/json") => {
                    response("1.41", r#"[{"Id":"gone"},{"Id":"bare"},{"Id":"broken"},{"Id":"whole"}]"#)
                }
                _ => response("1.41", "{}"),
            });
            let limit = Duration::from_secs(10);
            let runtime = DockerRuntime::new(path.clone(), 41, limit, DockerConfig::default());
            let found = runtime.usage(true).await.expect("figures").containers;
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].0.as_str(), "whole");
            let layer = found[0].1.layer.clone().expect("measured");
            assert_eq!((layer.place, layer.bytes), ("/d".into(), Some(5)));
            std::fs::remove_file(path).expect("remove the socket");
        })
        .expect("run");
    }
}
