//! `fc`: the device of a LUN behind a Fibre Channel adapter.
//!
//! Owns nothing: the fabric attaches.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::block::BlockHost;
use crate::model::objects::volumes::texts;

/// One LUN, by any of its paths or names.
pub(super) struct FcDisk {
    wwns: Vec<String>,
    /// With `wwns`.
    lun: String,
    /// Without `wwns`.
    wwids: Vec<String>,
}

impl FcDisk {
    pub(super) fn of(source: &Value) -> Result<Self, String> {
        let names =
            |field: &str| texts(&source[field]).map(|name| name.replace(' ', "_")).collect::<Vec<_>>();
        let (wwns, wwids) = (names("targetWWNs"), names("wwids"));
        let lun = source["lun"].as_i64().map(|lun| lun.to_string());
        if wwns.iter().chain(&wwids).any(|name| name.contains('/')) {
            return Err("fc: targetWWNs and wwids must not contain '/'".to_owned());
        }
        match lun {
            Some(lun) if !wwns.is_empty() => Ok(Self { wwns, lun, wwids: Vec::new() }),
            _ if !wwids.is_empty() => Ok(Self { wwns: Vec::new(), lun: String::new(), wwids }),
            _ => Err("fc: no fc disk information found".to_owned()),
        }
    }

    /// In the form of a volume's source.
    pub(super) fn record(&self) -> Value {
        json!({"targetWWNs": self.wwns, "lun": self.lun.parse::<i64>().ok(), "wwids": self.wwids})
    }

    /// Below `plugins/kubernetes.io`.
    pub(super) fn place(&self) -> PathBuf {
        let name = if self.wwns.is_empty() {
            self.wwids.join("-")
        } else {
            format!("{}-lun-{}", self.wwns.join("-"), self.lun)
        };
        format!("fc/{name}").into()
    }

    /// The disks that are paths to the LUN.
    fn disks(&self, host: &BlockHost) -> Vec<String> {
        let (place, names) = if self.wwns.is_empty() {
            ("dev/disk/by-id", self.wwids.iter().map(|wwid| format!("scsi-{wwid}")).collect())
        } else {
            let name = |wwn: &String| format!("fc-0x{wwn}-lun-{}", self.lun);
            ("dev/disk/by-path", self.wwns.iter().map(name).collect::<Vec<_>>())
        };
        let is_it = |link: &&String| {
            let is_path = |name: &String| {
                let card = link.strip_suffix(name.as_str());
                card.is_some_and(|card| card.is_empty() || card.starts_with("pci-") && card.ends_with('-'))
            };
            names.iter().any(|name| *link == name || !self.wwns.is_empty() && is_path(name))
        };
        let links = host.names(place);
        let disks =
            links.iter().filter(is_it).filter_map(|link| BlockHost::disk(&host.root.join(place).join(link)));
        disks.collect()
    }

    pub(super) fn attach(&self, host: &BlockHost) -> Result<PathBuf, String> {
        let map = |disks: &[String]| disks.iter().find_map(|disk| host.multipath(disk));
        let mut disks = self.disks(host);
        if map(&disks).is_none() {
            for adapter in host.names("sys/class/scsi_host") {
                // Some of them have no such file.
                let _ = host.write(&format!("sys/class/scsi_host/{adapter}/scan"), "- - -");
            }
            disks = self.disks(host);
        }
        let disk = map(&disks).or_else(|| disks.last().cloned()).ok_or("no fc disk found")?;
        Ok(host.device(&disk))
    }

    pub(super) fn detach(&self, host: &BlockHost) -> Result<(), String> {
        let mut disks = self.disks(host);
        if let Some(map) = disks.iter().find_map(|disk| host.multipath(disk)) {
            disks = host.names(&format!("sys/block/{map}/slaves"));
        }
        for disk in &disks {
            // Without it the kernel writes back when the device is removed.
            let _ = host.run("blockdev", &["--flushbufs", &host.device(disk).to_string_lossy()]);
        }
        host.remove(&disks)
    }
}

#[cfg(test)]
mod tests;
