//! The calls of CSI's node service.
//!
//! Owns their messages. Which calls are made, and when, is decided in `csi`, `drivers` and `rules`.

use std::path::Path;
use std::time::Duration;

use prost::Message;

use crate::devices::client::{PluginClient, PluginError};
use crate::model::api::pod::StringMap;
use crate::platform::proto::csi as wire;
use crate::platform::sys::node::FileSystemFacts;
use crate::pod::csi::rules::{self, DriverInfo};
use crate::pod::volume::csi::CsiVolume;

/// Upstream's limit of each call.
const LIMIT: Duration = Duration::from_secs(120);

/// What is sent to stage or publish one volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CsiCall {
    pub handle: String,
    pub publish_context: StringMap,
    /// Empty: the driver does not stage.
    pub staging: String,
    pub capability: wire::VolumeCapability,
    pub secrets: StringMap,
    pub context: StringMap,
    pub read_only: bool,
}

pub(crate) async fn info(client: &PluginClient, limit: Duration) -> Result<DriverInfo, PluginError> {
    let answer: wire::NodeGetInfoResponse = call(client, "/csi.v1.Node/NodeGetInfo", limit).await?;
    Ok(DriverInfo {
        node_id: answer.node_id,
        max_volumes: answer.max_volumes_per_node,
        topology: answer.accessible_topology.unwrap_or_default().segments,
    })
}

/// The node capabilities, by their number.
pub(crate) async fn capabilities(client: &PluginClient) -> Result<Vec<i32>, PluginError> {
    let path = "/csi.v1.Node/NodeGetCapabilities";
    let answer: wire::NodeGetCapabilitiesResponse = call(client, path, LIMIT).await?;
    Ok(answer.capabilities.into_iter().filter_map(|capability| Some(capability.rpc?.r#type)).collect())
}

pub(crate) async fn stage(client: &PluginClient, volume: CsiCall) -> Result<(), PluginError> {
    let request = wire::NodeStageVolumeRequest {
        volume_id: volume.handle,
        publish_context: volume.publish_context,
        staging_target_path: volume.staging,
        volume_capability: Some(volume.capability),
        secrets: volume.secrets,
        volume_context: volume.context,
    };
    send(client, "/csi.v1.Node/NodeStageVolume", request.encode_to_vec()).await
}

pub(crate) async fn publish(
    client: &PluginClient,
    volume: CsiCall,
    target: &Path,
) -> Result<(), PluginError> {
    let request = wire::NodePublishVolumeRequest {
        volume_id: volume.handle,
        publish_context: volume.publish_context,
        staging_target_path: volume.staging,
        target_path: target.display().to_string(),
        volume_capability: Some(volume.capability),
        readonly: volume.read_only,
        secrets: volume.secrets,
        volume_context: volume.context,
    };
    send(client, "/csi.v1.Node/NodePublishVolume", request.encode_to_vec()).await
}

/// Grows the file system to at least so many bytes.
pub(crate) async fn expand(
    client: &PluginClient,
    volume: CsiCall,
    target: &Path,
    bytes: i64,
) -> Result<(), PluginError> {
    let request = wire::NodeExpandVolumeRequest {
        volume_id: volume.handle,
        volume_path: target.display().to_string(),
        capacity_range: Some(wire::CapacityRange { required_bytes: bytes }),
        staging_target_path: volume.staging,
        volume_capability: Some(volume.capability),
        secrets: volume.secrets,
    };
    send(client, "/csi.v1.Node/NodeExpandVolume", request.encode_to_vec()).await
}

/// The file system of a published volume.
pub(crate) async fn usage(
    client: &PluginClient,
    handle: &str,
    target: &Path,
) -> Result<FileSystemFacts, PluginError> {
    let path = "/csi.v1.Node/NodeGetVolumeStats";
    let answer: wire::NodeGetVolumeStatsResponse = ask(client, path, at_path(handle, target), LIMIT).await?;
    let mut facts = FileSystemFacts::default();
    let number = |number: i64| u64::try_from(number).unwrap_or_default();
    for usage in answer.usage {
        let (total, available) = (number(usage.total), number(usage.available));
        match usage.unit {
            1 => (facts.capacity, facts.available, facts.used) = (total, available, number(usage.used)),
            2 => (facts.inodes, facts.inodes_free) = (total, available),
            _ => {}
        }
    }
    Ok(facts)
}

pub(crate) async fn unpublish(client: &PluginClient, handle: &str, target: &Path) -> Result<(), PluginError> {
    send(client, "/csi.v1.Node/NodeUnpublishVolume", at_path(handle, target)).await
}

pub(crate) async fn unstage(client: &PluginClient, handle: &str, staging: &Path) -> Result<(), PluginError> {
    send(client, "/csi.v1.Node/NodeUnstageVolume", at_path(handle, staging)).await
}

/// How a pod's volume is mounted. `multi_writer` and `mount_group` are what the driver can do.
pub(crate) fn capability(
    volume: &CsiVolume,
    multi_writer: bool,
    mount_group: bool,
) -> wire::VolumeCapability {
    let options = volume.claimed.as_ref().map(|claimed| claimed.mount_options.clone());
    let group = volume.fs_group.filter(|_| mount_group).map(|group| group.to_string());
    let modes = rules::modes(volume);
    let mode = modes.first().map_or("ReadWriteOnce", String::as_str);
    wire::VolumeCapability {
        mount: Some(wire::MountVolume {
            fs_type: rules::fs_type(volume).to_owned(),
            mount_flags: options.unwrap_or_default(),
            volume_mount_group: group.unwrap_or_default(),
        }),
        access_mode: Some(wire::AccessMode { mode: rules::access_mode(mode, multi_writer) }),
    }
}

fn at_path(handle: &str, path: &Path) -> Vec<u8> {
    wire::VolumeAtPath { volume_id: handle.to_owned(), path: path.display().to_string() }.encode_to_vec()
}

/// A call whose answer has nothing that is used.
async fn send(client: &PluginClient, path: &'static str, request: Vec<u8>) -> Result<(), PluginError> {
    client.try_call(path, request, LIMIT).await.map(drop)
}

/// A call without members.
async fn call<M: Message + Default>(
    client: &PluginClient,
    path: &'static str,
    limit: Duration,
) -> Result<M, PluginError> {
    ask(client, path, Vec::new(), limit).await
}

async fn ask<M: Message + Default>(
    client: &PluginClient,
    path: &'static str,
    request: Vec<u8>,
    limit: Duration,
) -> Result<M, PluginError> {
    let answer = client.try_call(path, request, limit).await?;
    // gRPC's Internal.
    M::decode(answer.as_slice()).map_err(|error| PluginError { code: 13, message: error.to_string() })
}
