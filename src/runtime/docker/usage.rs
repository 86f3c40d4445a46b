//! What only the engine knows of usage: writable layers, and the disk of images. Cgroups are read elsewhere.
//!
//! Owns the figures of layers, which are measured again when they are old.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::Engine;
use super::image;
use super::observed::text;
use crate::model::types::ContainerId;
use crate::platform::rt;
use crate::platform::sys::disk_usage::disk_usage;
use crate::runtime::{ContainerFigures, DiskFigures, RuntimeError, RuntimeUse};

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
            let object = match engine.inspect(CALL, id).await {
                Ok(object) => object,
                // It has gone since it was listed.
                Err(error) if error.kind == crate::runtime::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            let upper = text(&object["GraphDriver"]["Data"]["UpperDir"]);
            Some(PathBuf::from(upper)).filter(|path| path.is_absolute())
        }
    };
    let figures = if let Some(place) = place.clone() {
        rt::blocking("measure writable layer", move || {
            let (bytes, inodes) = disk_usage(&place).unwrap_or_default();
            DiskFigures { place, bytes: Some(bytes), inodes: Some(inodes) }
        })
        .await
    } else {
        let object = engine.client.get(CALL, &format!("/containers/{id}/json?size=1")).await?;
        let place = text(&engine.info(CALL).await?["DockerRootDir"]).into();
        DiskFigures { place, bytes: object["SizeRw"].as_u64(), inodes: None }
    };
    let measured = Some((Instant::now(), figures.clone()));
    let mut layers = engine.layers.borrow_mut();
    layers.retain(|(known, _)| known != id);
    layers.push((id.to_owned(), MeasuredLayer { place, measured }));
    Ok(Some(figures))
}

/// Where the engine has its files.
pub(super) fn root_dir(info: &Value) -> Option<PathBuf> {
    info["DockerRootDir"].as_str().map(PathBuf::from)
}
