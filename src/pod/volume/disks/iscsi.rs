//! `iscsi`: log-in, the device of a LUN, log-out.
//!
//! Owns the calls of `iscsiadm`. The kernel knows which sessions there are, and is asked before each log-in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::block::BlockHost;
use crate::model::api::pod::StringMap;
use crate::model::objects::volumes::texts;

/// Upstream's: attempts for all paths of a volume, those after which two are enough, and seconds of waiting for the
/// device of a path and for that of multipath.
const MOST_ATTEMPTS: usize = 5;
const LEAST_ATTEMPTS: usize = 2;
const ENOUGH_PATHS: usize = 2;
const DEVICE_LOOKS: usize = 30;
const MULTIPATH_LOOKS: usize = 10;
/// Exit statuses of `iscsiadm`.
const SESSION_NOT_FOUND: i32 = 2;
const SESSION_EXISTS: i32 = 15;
const NOTHING_FOUND: i32 = 21;

pub(super) struct IscsiDisk {
    /// The name of its PersistentVolume, or of the pod's volume.
    volume: String,
    pub(super) portals: Vec<String>,
    pub(super) iqn: String,
    lun: String,
    /// The interface that the volume names, and the one in use.
    base_iface: String,
    iface: String,
    initiator: String,
    is_chap: [bool; 2],
}

/// A session with a target.
struct Session {
    host: String,
    /// Below the root.
    path: String,
    portals: Vec<String>,
}

impl IscsiDisk {
    pub(super) fn of(volume: &str, source: &Value) -> Result<Self, String> {
        let text = |field: &str| source[field].as_str().unwrap_or_default();
        let mut portals: Vec<String> = Vec::new();
        for portal in [text("targetPortal")].into_iter().chain(texts(&source["portals"])) {
            let port = if portal.contains(':') { "" } else { ":3260" };
            let portal = format!("{portal}{port}");
            if !portals.contains(&portal) {
                portals.push(portal);
            }
        }
        let base_iface = Some(text("iscsiInterface")).filter(|name| !name.is_empty()).unwrap_or("default");
        let initiator = text("initiatorName").to_owned();
        let iface =
            if initiator.is_empty() { base_iface.to_owned() } else { format!("{}:{volume}", portals[0]) };
        let names = portals.iter().chain([&iface]).map(String::as_str).chain([text("iqn"), base_iface]);
        // They become names of directories.
        if let Some(name) = names.into_iter().find(|name| name.contains('/')) {
            return Err(format!("iscsi: {name:?} must not contain '/'"));
        }
        Ok(Self {
            volume: volume.to_owned(),
            portals,
            iqn: text("iqn").to_owned(),
            lun: source["lun"].as_i64().unwrap_or_default().to_string(),
            base_iface: base_iface.to_owned(),
            iface,
            initiator,
            is_chap: ["chapAuthDiscovery", "chapAuthSession"].map(|field| source[field] == true),
        })
    }

    /// What upstream keeps as `iscsi.json`.
    pub(super) fn record(&self) -> Value {
        json!({"VolName": self.volume, "Portals": self.portals, "Iqn": self.iqn, "Lun": self.lun,
            "InitIface": self.base_iface, "Iface": self.iface, "InitiatorName": self.initiator})
    }

    /// From a record; without one, from the names of the place.
    pub(super) fn of_record(record: &Value, place: &Path) -> Option<Self> {
        let text = |field: &str| record[field].as_str().unwrap_or_default().to_owned();
        let mut disk = Self {
            volume: text("VolName"),
            portals: texts(&record["Portals"]).map(str::to_owned).collect(),
            iqn: text("Iqn"),
            lun: text("Lun"),
            base_iface: text("InitIface"),
            iface: text("Iface"),
            initiator: text("InitiatorName"),
            is_chap: [false; 2],
        };
        if disk.portals.is_empty() {
            let (portal, iqn, lun) = names_of(place.file_name()?.to_str()?)?;
            (disk.portals, disk.iqn, disk.lun) = (vec![portal.to_owned()], iqn.to_owned(), lun.to_owned());
            let iface = place.parent()?.file_name()?.to_str()?;
            iface.strip_prefix("iface-")?.clone_into(&mut disk.iface);
        }
        Some(disk)
    }

    /// Below `plugins/kubernetes.io`.
    pub(super) fn place(&self) -> PathBuf {
        format!("iscsi/iface-{}/{}{}", self.iface, self.prefix(), self.lun).into()
    }

    fn prefix(&self) -> String {
        format!("{}-{}-lun-", self.portals[0], self.iqn)
    }

    /// The device of the LUN, after logging in where there is no session yet.
    pub(super) fn attach(&self, host: &BlockHost, secret: &StringMap) -> Result<PathBuf, String> {
        let shown = host.must("iscsiadm", &["-m", "iface", "-I", &self.base_iface, "-o", "show"])?;
        let transport = shown.lines().find_map(|line| line.strip_prefix("iface.transport_name = "));
        let is_tcp = match transport {
            Some("tcp" | "<empty>") => true,
            Some(_) => false,
            None => return Err(format!("could not parse iface file for {}", self.base_iface)),
        };
        if !self.initiator.is_empty() {
            self.clone_iface(host, &shown)?;
        }
        let (mut found, mut last) = (BTreeMap::new(), String::new());
        for attempt in 1..=MOST_ATTEMPTS {
            for portal in &self.portals {
                if found.contains_key(portal) {
                    continue;
                }
                match self.path(host, portal, is_tcp, secret) {
                    Ok(device) => drop(found.insert(portal, device)),
                    Err(why) => last = why,
                }
            }
            let is_enough = found.len() >= ENOUGH_PATHS && attempt >= LEAST_ATTEMPTS;
            if found.is_empty() || found.len() == self.portals.len() || is_enough {
                break;
            }
        }
        let Some(first) = found.values().next() else {
            if !self.initiator.is_empty() {
                let _ = host.run("iscsiadm", &["-m", "iface", "-I", &self.iface, "-o", "delete"])?;
            }
            return Err(format!("failed to get any path for iscsi disk, last err seen: {last}"));
        };
        let looks = if self.portals.len() > 1 { MULTIPATH_LOOKS } else { 1 };
        for look in 1..=looks {
            let map = |device: &PathBuf| host.multipath(&BlockHost::disk(device)?);
            if let Some(map) = found.values().find_map(map) {
                return Ok(host.device(&map));
            }
            if look < looks {
                host.wait();
            }
        }
        Ok(first.clone())
    }

    /// An interface with the initiator's name, and else what the volume's interface has.
    fn clone_iface(&self, host: &BlockHost, shown: &str) -> Result<(), String> {
        let iface = ["-m", "iface", "-I", &self.iface, "-o"];
        match host.run("iscsiadm", &[&iface[..], &["new"]].concat())? {
            (0 | SESSION_EXISTS, _) => {}
            (code, text) => {
                return Err(format!("iscsi: failed to create new iface: exit status {code}: {text}"));
            }
        }
        let members = shown.lines().filter_map(|line| line.strip_prefix("iface.")?.split_once(" = "));
        let mut members: BTreeMap<&str, &str> = members.filter(|(_, value)| *value != "<empty>").collect();
        members.remove("iscsi_ifacename");
        members.insert("initiatorname", &self.initiator);
        for (name, value) in members {
            let update = ["update", "-n", &format!("iface.{name}"), "-v", value];
            if let Err(why) = host.must("iscsiadm", &[&iface[..], &update].concat()) {
                let _ = host.run("iscsiadm", &[&iface[..], &["delete"]].concat())?;
                return Err(format!("iscsi: failed to update iface records: {why}"));
            }
        }
        Ok(())
    }

    /// The device of the LUN by one portal.
    fn path(
        &self,
        host: &BlockHost,
        portal: &String,
        is_tcp: bool,
        secret: &StringMap,
    ) -> Result<PathBuf, String> {
        let number = || {
            let session = sessions(host, &self.iqn).into_iter().find(|each| each.portals.contains(portal));
            session.map(|session| session.host)
        };
        let number = if let Some(number) = number() {
            number
        } else {
            self.log_in(host, portal, secret)?;
            number().ok_or_else(|| {
                format!("Could not get SCSI host number for portal {portal} after logging in")
            })?
        };
        // Only the LUN of the volume: the others are not this pod's.
        host.write(&format!("sys/class/scsi_host/host{number}/scan"), &format!("0 0 {}", self.lun))
            .map_err(|error| format!("scan SCSI host {number}: {error}"))?;
        let address = portal.replace(['[', ']'], "");
        let name = format!("ip-{address}-iscsi-{}-lun-{}", self.iqn, self.lun);
        let of_card = format!("-{name}");
        let by_path = "dev/disk/by-path";
        for look in 1..=DEVICE_LOOKS {
            let is_it = |link: &String| {
                if is_tcp { *link == name } else { link.starts_with("pci-") && link.ends_with(&of_card) }
            };
            if let Some(link) = host.names(by_path).into_iter().find(is_it) {
                return Ok(host.root.join(by_path).join(link));
            }
            if look < DEVICE_LOOKS {
                host.wait();
            }
        }
        Err(format!("Timed out waiting for device at path /{by_path}/{name} after {DEVICE_LOOKS}s"))
    }

    fn log_in(&self, host: &BlockHost, portal: &str, secret: &StringMap) -> Result<(), String> {
        let iscsiadm = |words: &[&str], action: &[&str]| host.must("iscsiadm", &[words, action].concat());
        let discovery = ["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", &self.iface];
        let _ = iscsiadm(&discovery, &["-o", "new"]);
        let [chap_discovery, chap_session] = self.is_chap;
        if chap_discovery {
            chap(host, &discovery, "discovery.sendtargets.auth", secret)?;
        }
        if let Err(why) = iscsiadm(&discovery, &["--discover"]) {
            let _ = iscsiadm(&discovery, &["-o", "delete"]);
            return Err(format!("iscsi: failed to sendtargets to portal {portal}: {why}"));
        }
        let node = ["-m", "node", "-p", portal, "-T", &self.iqn, "-I", &self.iface];
        // Older versions have no such setting.
        let _ = iscsiadm(&node, &["-o", "update", "-n", "node.session.scan", "-v", "manual"]);
        if chap_session {
            chap(host, &node, "node.session.auth", secret)?;
        }
        match host.run("iscsiadm", &[&node[..], &["--login"]].concat())? {
            // One that began before the agent was killed has ended meanwhile.
            (0 | SESSION_EXISTS, _) => {}
            (code, text) => {
                let _ = iscsiadm(&node, &["-o", "delete"]);
                return Err(format!(
                    "iscsi: failed to log in to portal {portal}: exit status {code}: {text}"
                ));
            }
        }
        // A boot must not wait for the target.
        let _ = iscsiadm(&node[..6], &["-o", "update", "-n", "node.startup", "-v", "manual"]);
        log::info!(portal, target = self.iqn; "Logged in to iSCSI target");
        Ok(())
    }

    /// Removes the LUN's devices. After the last LUN of the target, logs out; `others` are the places of the node's
    /// other LUNs.
    pub(super) fn detach(&self, host: &BlockHost, others: &[PathBuf]) -> Result<(), String> {
        let found = sessions(host, &self.iqn);
        let disks = |session: &Session, lun: Option<&str>| -> Vec<String> {
            let target = format!("{}/target{}:0:0", session.path, session.host);
            let wanted = lun.map(|lun| format!("{}:0:0:{lun}", session.host));
            let units = host.names(&target).into_iter();
            let units = units.filter(|unit| wanted.as_ref().is_none_or(|wanted| wanted == unit));
            units.flat_map(|unit| host.names(&format!("{target}/{unit}/block"))).collect()
        };
        let own: Vec<String> = found.iter().flat_map(|session| disks(session, Some(&self.lun))).collect();
        host.remove(&own)?;
        let prefix = self.prefix();
        let is_same = |place: &PathBuf| {
            place.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        };
        // The node may have mounted other LUNs of the target itself.
        let mut left = found.iter().flat_map(|session| disks(session, None));
        if others.iter().any(is_same) || left.any(|disk| !host.is_free(&disk)) {
            return Ok(());
        }
        let gone = |arguments: &[&str]| match host.run("iscsiadm", arguments)? {
            (0 | SESSION_NOT_FOUND | NOTHING_FOUND, _) => Ok(()),
            (code, text) => Err(format!("iscsiadm {}: exit status {code}: {text}", arguments.join(" "))),
        };
        for portal in &self.portals {
            let node = ["-m", "node", "-p", portal, "-T", &self.iqn, "-I", &self.iface];
            gone(&[&node[..], &["--logout"]].concat())?;
            gone(&[&node[..], &["-o", "delete"]].concat())?;
        }
        if !self.initiator.is_empty() && self.iface == format!("{}:{}", self.portals[0], self.volume) {
            gone(&["-m", "iface", "-I", &self.iface, "-o", "delete"])?;
        }
        log::info!(target = self.iqn; "Logged out of iSCSI target");
        Ok(())
    }
}

/// Portal, name of the target and LUN of a place.
pub(super) fn names_of(place: &str) -> Option<(&str, &str, &str)> {
    let (target, lun) = place.rsplit_once("-lun-")?;
    let at = ["-iqn.", "-eui.", "-naa."].iter().find_map(|prefix| target.find(prefix))?;
    Some((&target[..at], &target[at + 1..], lun))
}

/// The values are arguments, as `iscsiadm` wants it; no message may show one.
fn chap(host: &BlockHost, of: &[&str], prefix: &str, secret: &StringMap) -> Result<(), String> {
    let names = ["username", "password", "username_in", "password_in"].map(|name| format!("{prefix}.{name}"));
    let method = (format!("{prefix}.authmethod"), "CHAP");
    let values = names.into_iter().filter_map(|name| {
        let value = secret.get(&name).map(String::as_str).filter(|value| !value.is_empty())?;
        Some((name, value))
    });
    for (name, value) in [method].into_iter().chain(values) {
        let update = ["-o", "update", "-n", &name, "-v", value];
        let (code, _) = host.run("iscsiadm", &[of, &update].concat())?;
        if code != 0 {
            return Err(format!("iscsi: failed to update {name}: iscsiadm: exit status {code}"));
        }
    }
    Ok(())
}

fn sessions(host: &BlockHost, iqn: &str) -> Vec<Session> {
    let read =
        |path: String| std::fs::read_to_string(host.root.join(path)).unwrap_or_default().trim().to_owned();
    let mut found = Vec::new();
    let hosts = "sys/class/iscsi_host";
    for name in host.names(hosts) {
        let Some(number) = name.strip_prefix("host") else { continue };
        let device = format!("{hosts}/{name}/device");
        for session in host.names(&device).into_iter().filter(|name| name.starts_with("session")) {
            let path = format!("{device}/{session}");
            if read(format!("{path}/iscsi_session/{session}/targetname")) != iqn {
                continue;
            }
            let mut portals = Vec::new();
            for connection in host.names(&path).into_iter().filter(|name| name.starts_with("connection")) {
                let at = format!("{path}/{connection}/iscsi_connection/{connection}");
                for prefix in ["", "persistent_"] {
                    let address = read(format!("{at}/{prefix}address"));
                    let port = read(format!("{at}/{prefix}port"));
                    let is_v6 = address.contains(':');
                    portals.push(if is_v6 {
                        format!("[{address}]:{port}")
                    } else {
                        format!("{address}:{port}")
                    });
                }
            }
            found.push(Session { host: number.to_owned(), path, portals });
        }
    }
    found
}

#[cfg(test)]
mod tests;
