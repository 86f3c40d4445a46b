//! The replacement of static pods, one after the other, and the way back.
//!
//! Owns the order of steps. At every moment a manifest is the one before or the new one, whole; before a manifest is replaced, its
//! backup and the record that names it are on disk. What is done is up to [`UpgradeWorld`].

use std::path::PathBuf;

use super::record::ReplacementRecord;
use crate::cmd::control_plane::manifests::{API_SERVER, ETCD};
use crate::cmd::init::InitError;
use crate::platform::logging::chain;

/// Which mirror pod is waited for, by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitedHash<'a> {
    /// Another than that before.
    Not(&'a str),
    /// That before; empty: any.
    Is(&'a str),
}

/// The machine, and the cluster as it shows the machine's pods.
pub(super) trait UpgradeWorld {
    fn say(&mut self, text: &str) -> Result<(), InitError>;
    /// A file's text, if there is one.
    fn read(&self, path: PathBuf) -> Result<Option<String>, InitError>;
    fn manifest(&self, component: &str) -> PathBuf;
    /// Replaces a file, all of it or nothing, also after a power cut.
    fn write(&mut self, path: PathBuf, text: &str) -> Result<(), InitError>;
    fn save(&mut self, record: &ReplacementRecord) -> Result<(), InitError>;
    /// Removes the record.
    fn forget(&mut self) -> Result<(), InitError>;
    /// Of the component's mirror pod.
    fn hash(&mut self, component: &str) -> Result<String, InitError>;
    /// Waits until the component's mirror pod has this hash, and is ready. Returns what is wrong when the time is up.
    fn wait(&mut self, component: &str, hash: WaitedHash<'_>) -> Result<(), String>;
    /// Renews the certificates of a component.
    fn renew(&mut self, component: &str) -> Result<(), InitError>;
    /// Copies etcd's data; `None`: it is not copied, and why has been said.
    fn back_up_etcd(&mut self) -> Result<Option<PathBuf>, InitError>;
    /// Whether two manifests mean the same.
    fn is_same(&self, one: &str, other: &str) -> bool;
}

/// What a whole replacement is to do.
pub(super) struct Replacement {
    /// Components in their order, with their new manifests.
    pub wanted: Vec<(&'static str, String)>,
    pub record: ReplacementRecord,
    pub renews: bool,
    pub backs_up_etcd: bool,
    /// For the output.
    pub limit: String,
}

/// Replaces all manifests that differ. Returns the components that were replaced.
///
/// # Errors
/// What could not be done; the manifests before are back then, or the error says that they are not.
pub(super) fn replace(world: &mut dyn UpgradeWorld, task: Replacement) -> Result<Vec<String>, InitError> {
    let Replacement { wanted, mut record, renews, backs_up_etcd, limit } = task;
    let mut changed = Vec::new();
    for (component, new) in &wanted {
        let old = world.read(world.manifest(component))?;
        if !old.as_deref().is_some_and(|old| world.is_same(old, new)) {
            changed.push(*component);
        }
    }
    if backs_up_etcd && !changed.is_empty() && record.etcd_backup.is_none() {
        record.etcd_backup = world.back_up_etcd()?;
    }
    let has_apiserver = changed.contains(&API_SERVER);
    let mut done = Vec::new();
    for (component, new) in &wanted {
        world.say(&format!("[upgrade/staticpods] Preparing for {component:?} upgrade\n"))?;
        if !changed.contains(component) {
            world.say(&format!(
                "[upgrade/staticpods] Current and new manifests of {component} are equal, skipping upgrade\n"
            ))?;
            // The API server's new certificates are checked by it; it reads its own again by itself.
            if *component == ETCD && has_apiserver && renews {
                world.renew(component)?;
            }
            continue;
        }
        if renews {
            world.renew(component)?;
        }
        let path = world.manifest(component);
        let backup = record.manifest(component);
        if !record.hashes.contains_key(*component) {
            record.hashes.insert((*component).to_owned(), world.hash(component)?);
        }
        // After an interruption, the one there is that of the time before.
        if world.read(backup.clone())?.is_none() {
            let old = world.read(path.clone())?.unwrap_or_default();
            world.write(backup.clone(), &old)?;
        }
        record.replacing = Some((*component).to_owned());
        world.save(&record)?;
        world.say(&format!(
            "[upgrade/staticpods] Moving new manifest to {:?} and backing up old manifest to {:?}\n",
            path.display().to_string(),
            backup.display().to_string()
        ))?;
        let written = world.write(path, new);
        world.say("[upgrade/staticpods] Waiting for the kubelet to restart the component\n")?;
        world.say(&format!("[upgrade/staticpods] This can take up to {limit}\n"))?;
        if let Err(why) = arrived(world, &record, component, written) {
            return Err(roll_back(world, &record, component, &why));
        }
        record.has_replaced(component);
        world.save(&record)?;
        world.say(&format!("[upgrade/staticpods] Component {component:?} upgraded successfully!\n"))?;
        done.push((*component).to_owned());
    }
    world.forget()?;
    Ok(done)
}

fn arrived(
    world: &mut dyn UpgradeWorld,
    record: &ReplacementRecord,
    component: &str,
    written: Result<(), InitError>,
) -> Result<(), String> {
    written.map_err(|error| chain(&error))?;
    world.wait(component, WaitedHash::Not(record.hash(component)))
}

/// What an interrupted upgrade left is brought to an end: the component in the middle has become healthy, or all manifests
/// before are put back. Returns the record to go on with.
///
/// # Errors
/// The component is not healthy, and the manifests before are back; or they could not be put back.
pub(super) fn resume(
    world: &mut dyn UpgradeWorld,
    mut record: ReplacementRecord,
) -> Result<ReplacementRecord, InitError> {
    let (version, began) = (record.version.clone(), record.began.clone());
    let interrupted =
        format!("[upgrade/staticpods] The upgrade to {version} that began at {began} was interrupted");
    let Some(component) = record.replacing.clone() else {
        world.say(&format!("{interrupted} between two components: going on\n"))?;
        return Ok(record);
    };
    let now = world.read(world.manifest(&component))?;
    let before = world.read(record.manifest(&component))?;
    if now.is_some() && now == before {
        world.say(&format!("{interrupted} before the manifest of {component} was replaced: going on\n"))?;
    } else {
        world.say(&format!("{interrupted} while {component} was replaced: waiting for it\n"))?;
        let waited = match now {
            Some(_) => world.wait(&component, WaitedHash::Not(record.hash(&component))),
            None => Err("its manifest is gone".to_owned()),
        };
        if let Err(why) = waited {
            return Err(roll_back(world, &record, &component, &why));
        }
        world.say(&format!("[upgrade/staticpods] Component {component:?} is healthy: going on\n"))?;
        record.has_replaced(&component);
    }
    record.replacing = None;
    world.save(&record)?;
    Ok(record)
}

/// Puts manifests back and waits for their pods. Returns the error of the whole upgrade.
fn roll_back(
    world: &mut dyn UpgradeWorld,
    record: &ReplacementRecord,
    component: &str,
    why: &str,
) -> InitError {
    let components = record.to_put_back();
    let backup = record.backup.display().to_string();
    let said = world.say(&format!(
        "[upgrade/staticpods] {component} failed: {why}\n[upgrade/staticpods] Putting the earlier manifests back: {}\n",
        components.join(", ")
    ));
    let mut troubles: Vec<String> = said.err().map(|error| error.to_string()).into_iter().collect();
    for component in &components {
        let put = match world.read(record.manifest(component)) {
            Ok(Some(old)) => world.write(world.manifest(component), &old),
            Ok(None) => Err(InitError::ControlPlane(format!("{component}: there is no backup"))),
            Err(error) => Err(error),
        };
        troubles.extend(put.err().map(|error| chain(&error)));
    }
    // What others need comes first.
    for component in components.iter().rev() {
        if let Err(why) = world.wait(component, WaitedHash::Is(record.hash(component))) {
            troubles.push(format!("{component} is not healthy again: {why}"));
        }
    }
    let failed = format!("couldn't upgrade control plane: {component}: {why}.");
    if troubles.is_empty() {
        troubles.extend(world.forget().err().map(|error| chain(&error)));
    }
    if troubles.is_empty() {
        return InitError::ControlPlane(format!(
            "{failed} The earlier manifests are back, and their components are healthy. Backups are in {backup}"
        ));
    }
    let data = record.etcd_backup.as_ref().map_or_else(String::new, |path| {
        format!(
            "; etcd's data of the time before is in {}: if etcd cannot start with the present data, move its manifest out \
             of the directory, exchange the data, and move the manifest back",
            path.display()
        )
    });
    InitError::ControlPlane(format!(
        "{failed} The earlier manifests were put back, but: {}. Backups are in {backup}{data}",
        troubles.join("; ")
    ))
}

#[cfg(test)]
mod tests;
