//! A CRI runtime's report of resource usage.

use crate::platform::proto::runtime as cri;
use crate::runtime::{RuntimeError, RuntimeUse, convert};

use super::CriRuntime;

impl CriRuntime {
    /// Containers' figures; with `disks` also the use of disks by images and writable layers.
    ///
    /// # Errors
    /// When the runtime does not report containers. Missing disk figures are left out.
    pub(crate) async fn usage(&self, disks: bool) -> Result<RuntimeUse, RuntimeError> {
        let request = cri::ListContainerStatsRequest::default();
        let mut client = self.runtime();
        let answer = self.query("ListContainerStats", client.list_container_stats(request)).await?;
        let containers = answer.stats.into_iter().filter_map(convert::figures_from_message).collect();
        let mut found = RuntimeUse { containers, ..RuntimeUse::default() };
        if disks {
            let request = cri::ImageFsInfoRequest {};
            let mut client = self.images.clone();
            match self.query("ImageFsInfo", client.image_fs_info(request)).await {
                Ok(answer) => {
                    let first = |all: Vec<cri::FilesystemUsage>| {
                        all.into_iter().next().map(convert::disk_from_message)
                    };
                    found.images = first(answer.image_filesystems);
                    found.all_layers = first(answer.container_filesystems);
                }
                Err(error) => log::debug!(err:% = error; "Failed to get image usage from runtime"),
            }
        }
        Ok(found)
    }
}
