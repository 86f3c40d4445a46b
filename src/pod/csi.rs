//! The node's side of CSI: drivers that register, and the volumes that they mount for pods.
//!
//! Owns the order of the calls of one volume. What is mounted is on disk (`pod::volume::csi`, and
//! `plugins/kubernetes.io/csi` of the root directory for staged volumes), so that a later process can unmount it. What
//! CSIDrivers, Secrets and attachments say comes from a [`CsiServer`]: the API server of a cluster, or the objects of a
//! node without one.
//!
//! | file | what |
//! |---|---|
//! | `calls` | the calls of a driver |
//! | `drivers` | registration, volumes in use, unmounting |
//! | `local` | a node without a cluster |
//! | `rules` | pure |

pub(crate) mod calls;
pub(crate) mod drivers;
pub(crate) mod local;
pub(crate) mod rules;
#[cfg(test)]
pub(crate) mod testing;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::future::{Future, ready};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::devices::client::PluginError;
use crate::model::api::pod::StringMap;
use crate::model::back_off::Retry;
use crate::model::objects::TokenRequest;
use crate::model::types::Timestamp;
use crate::platform::dice::Dice;
use crate::platform::rt;
use crate::platform::sys::node::FileSystemFacts;
use crate::pod::volume::csi::{CsiAnswer, CsiPublished, CsiRecord, CsiVolume, CsiVolumes};

use calls::CsiCall;
use drivers::{CsiDrivers, save};
use rules::{MOUNT_GROUP, MULTI_WRITER, STAGE_UNSTAGE, VOLUME_STATS};

/// As often as upstream's kubelet syncs a pod, volumes are published again whose driver asks for it.
pub(crate) const AGAIN: Duration = Duration::from_secs(60);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(300);

/// What has to be known to mount a volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct CsiFacts {
    /// The CSIDriver object; null without one.
    pub driver: Value,
    pub publish_context: StringMap,
    pub stage_secrets: StringMap,
    pub publish_secrets: StringMap,
}

/// Whether the last round did all, and when there is a next one at the latest.
pub(crate) type CsiRound = Pin<Box<dyn Future<Output = (Result<(), String>, Option<Duration>)>>>;

/// Who knows CSIDrivers, Secrets and attachments.
pub(crate) trait CsiServer {
    /// # Errors
    /// Why the volume cannot be mounted, or not yet.
    fn facts(self: Rc<Self>, volume: CsiVolume) -> CsiAnswer<CsiFacts>;
    /// A volume of a disk may be attached: what its Secret has.
    fn attach(self: Rc<Self>, volume: CsiVolume) -> CsiAnswer<StringMap>;
    /// A token of a service account, and its end.
    fn token(self: Rc<Self>, request: TokenRequest) -> CsiAnswer<(Rc<str>, Timestamp)>;
    /// The driver asks for its volumes to be published again from time to time.
    fn republishes(&self, driver: &str) -> bool;
    /// The pod of this uid is gone.
    fn forget(&self, uid: &OsStr);
    /// Something of the drivers or of the volumes in use may have changed.
    fn round(self: Rc<Self>) -> CsiRound;
}

/// What mounts the volumes of pods.
pub(crate) struct CsiNode {
    drivers: Rc<CsiDrivers>,
    server: Rc<dyn CsiServer>,
    /// Places in pods with an attempt under way.
    mounting: RefCell<BTreeSet<PathBuf>>,
}

impl CsiNode {
    pub(crate) fn new(drivers: &Rc<CsiDrivers>, server: Rc<dyn CsiServer>) -> Rc<Self> {
        Rc::new(Self { drivers: Rc::clone(drivers), server, mounting: RefCell::default() })
    }

    pub(crate) fn drivers(&self) -> Rc<CsiDrivers> {
        Rc::clone(&self.drivers)
    }

    /// Starts the task that keeps what is shown of the drivers right, and unstages volumes that no pod uses.
    pub(crate) fn start(self: &Rc<Self>, dice: Dice) -> JoinHandle<()> {
        rt::spawn("csi", run(Rc::clone(self), dice))
    }

    async fn mount(&self, volume: CsiVolume) -> Result<CsiPublished, String> {
        let name = volume.source["driver"].as_str().unwrap_or_default().to_owned();
        let (handle, is_claimed) = (handle(&volume), volume.claimed.is_some());
        let drivers = &self.drivers;
        let client = drivers.driver(&name)?;
        let facts = Rc::clone(&self.server).facts(volume.clone()).await?;
        let object = facts.driver;
        let can = calls::capabilities(&client).await.map_err(|error: PluginError| error.message)?;
        let can = |capability| can.contains(&capability);
        let mut call = CsiCall {
            handle: handle.clone(),
            publish_context: facts.publish_context,
            capability: calls::capability(&volume, can(MULTI_WRITER), can(MOUNT_GROUP)),
            context: rules::string_map(&volume.source["volumeAttributes"]),
            read_only: volume.read_only,
            secrets: facts.stage_secrets,
            ..CsiCall::default()
        };
        if is_claimed && can(STAGE_UNSTAGE) {
            let staging = drivers.staging(&name, &handle);
            call.staging = staging.display().to_string();
            if !volume.is_again {
                drivers.stage(&client, call.clone(), &name, &staging).await?;
            }
        }
        call.context = rules::volume_context(&object, &volume);
        call.secrets = facts.publish_secrets;
        self.add_tokens(&object, &volume, &mut call).await?;
        let apply_group = !can(MOUNT_GROUP) && rules::applies_group(&object, &volume);
        let record = CsiRecord {
            volume: volume.claimed.as_ref().map_or(&volume.name, |claimed| &claimed.name).clone(),
            attachment: rules::attachment_name(&handle, &name, &drivers.node_name),
            node: drivers.node_name.clone(),
            is_ephemeral: !is_claimed,
            is_published: volume.is_again,
            driver: name.clone(),
            handle,
        };
        save(record, &volume.target, false).await?;
        if let Err(error) = calls::publish(&client, call, &volume.target).await {
            drivers.clean(&volume.target, error.code).await;
            return Err(error.message);
        }
        drivers.published.borrow_mut().insert(volume.target.clone(), (volume, Instant::now()));
        drivers.has_new.set(true);
        drivers.wake.notify_one();
        Ok(CsiPublished { apply_group })
    }

    /// Tokens that the driver asks for by `tokenRequests`.
    async fn add_tokens(&self, object: &Value, volume: &CsiVolume, call: &mut CsiCall) -> Result<(), String> {
        let wanted = object["spec"]["tokenRequests"].as_array().into_iter().flatten();
        let mut tokens = Map::new();
        for each in wanted {
            let request = TokenRequest {
                namespace: volume.pod.namespace.clone(),
                account: volume.account.clone(),
                pod: volume.pod.clone(),
                audience: each["audience"].as_str().unwrap_or_default().to_owned(),
                seconds: each["expirationSeconds"].as_i64().unwrap_or(3600),
            };
            let audience = request.audience.clone();
            let answer = Rc::clone(&self.server).token(request).await;
            let (token, expires) =
                answer.map_err(|why| format!("failed to get service account token: {why}"))?;
            let token = json!({"token": *token, "expirationTimestamp": expires.to_rfc3339()});
            tokens.insert(audience, token);
        }
        if !tokens.is_empty() {
            let into = if object["spec"]["serviceAccountTokenInSecrets"] == true {
                &mut call.secrets
            } else {
                &mut call.context
            };
            let key = "csi.storage.k8s.io/serviceAccount.tokens".to_owned();
            into.insert(key, Value::from(tokens).to_string());
        }
        Ok(())
    }
}

impl CsiVolumes for CsiNode {
    fn publish(self: Rc<Self>, volume: CsiVolume) -> CsiAnswer<CsiPublished> {
        let driver = volume.source["driver"].as_str().unwrap_or_default().to_owned();
        let key = match &volume.claimed {
            None => volume.target.display().to_string(),
            Some(claimed) => {
                let key = rules::unique_name(&driver, &handle(&volume));
                let staging = self.drivers.staging(&driver, &handle(&volume));
                let others = |places: &BTreeSet<PathBuf>| {
                    places.iter().any(|place| *place != volume.target && *place != staging)
                };
                if claimed.single_pod && self.drivers.in_use.borrow().get(&key).is_some_and(others) {
                    let why =
                        "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
                    return Box::pin(ready(Err(why.to_owned())));
                }
                // Before it is attached: the controller attaches what the node says it uses.
                self.drivers.hold(&key, &volume.target);
                key
            }
        };
        let node = Rc::clone(&self);
        self.drivers.attempt(key, async move {
            let target = volume.target.clone();
            node.mounting.borrow_mut().insert(target.clone());
            let mounted = node.mount(volume).await;
            node.mounting.borrow_mut().remove(&target);
            mounted
        })
    }

    fn attach(self: Rc<Self>, volume: CsiVolume) -> CsiAnswer<StringMap> {
        let text = |member: &str| volume.source[member].as_str().unwrap_or_default();
        self.drivers.hold(&rules::unique_name(text("driver"), text("volumeHandle")), &volume.target);
        if volume.is_again {
            return Box::pin(ready(Ok(StringMap::new())));
        }
        Rc::clone(&self.server).attach(volume)
    }

    fn unpublish(self: Rc<Self>, record: CsiRecord, target: PathBuf) -> CsiAnswer<()> {
        let key = if record.is_ephemeral {
            target.display().to_string()
        } else {
            rules::unique_name(&record.driver, &record.handle)
        };
        let drivers = Rc::clone(&self.drivers);
        self.drivers.attempt(key, async move { drivers.unmount(record, target).await })
    }

    fn usage(self: Rc<Self>, target: PathBuf) -> CsiAnswer<Option<FileSystemFacts>> {
        Box::pin(async move {
            let directory = target.parent().unwrap_or(&target).to_owned();
            let loaded = rt::blocking("read CSI volume", move || CsiRecord::load(&directory)).await;
            let record = loaded.map_err(|error| error.to_string())?.filter(|record| record.is_published);
            let record = record.ok_or_else(|| "the volume is not mounted".to_owned())?;
            let client = self.drivers.driver(&record.driver)?;
            let usage = async {
                let can = calls::capabilities(&client).await?;
                if !can.contains(&VOLUME_STATS) {
                    return Ok(None);
                }
                calls::usage(&client, &record.handle, &target).await.map(Some)
            };
            usage.await.map_err(|error: PluginError| error.message)
        })
    }

    fn generation(&self) -> u64 {
        *self.drivers.changed.borrow()
    }

    fn is_due(&self, volume: &CsiVolume) -> bool {
        let mut published = self.drivers.published.borrow_mut();
        let now = Instant::now();
        let last = published.get(&volume.target).map(|(_, last)| *last);
        let driver = volume.source["driver"].as_str().unwrap_or_default();
        let is_due = last.is_none_or(|last| now.duration_since(last) >= AGAIN / 2)
            && self.server.republishes(driver)
            && self.drivers.driver(driver).is_ok();
        if is_due || last.is_none() {
            // Also when it fails: the next time is as far.
            published.insert(volume.target.clone(), (volume.clone(), now));
            self.drivers.wake.notify_one();
        }
        is_due
    }

    fn mounting(&self, pod_dir: &Path) -> Option<PathBuf> {
        self.mounting.borrow().iter().find(|place| place.starts_with(pod_dir)).cloned()
    }

    fn forget(&self, pod_dir: &Path) {
        self.server.forget(pod_dir.file_name().unwrap_or_default());
        self.drivers.published.borrow_mut().retain(|place, _| !place.starts_with(pod_dir));
        if self.drivers.release_all(|place| place.starts_with(pod_dir)) {
            // It may have been staged for this pod, and not published.
            self.drivers.wake.notify_one();
        }
    }
}

#[must_use]
pub(crate) fn handle(volume: &CsiVolume) -> String {
    match &volume.claimed {
        Some(_) => volume.source["volumeHandle"].as_str().unwrap_or_default().to_owned(),
        None => rules::inline_handle(volume.pod.uid.as_str(), &volume.name),
    }
}

/// Runs until it is dropped.
async fn run(node: Rc<CsiNode>, dice: Dice) {
    let mut retry = Retry::new(FIRST_RETRY, LONGEST_RETRY);
    let mut reported = String::new();
    loop {
        let swept = node.drivers.sweep().await;
        let (shown, next) = Rc::clone(&node.server).round().await;
        let republishes = |(volume, _): &(CsiVolume, _)| {
            node.server.republishes(volume.source["driver"].as_str().unwrap_or_default())
        };
        let again = node.drivers.published.borrow().values().any(republishes).then_some(AGAIN);
        let failed = match shown.and(swept) {
            Ok(()) => {
                retry = Retry::new(FIRST_RETRY, LONGEST_RETRY);
                reported.clear();
                None
            }
            Err(why) => {
                if why != reported {
                    log::warn!(err = why; "Failed to bring the CSI drivers of the node up to date, will retry");
                    reported = why;
                }
                Some(retry.delay_with(dice.unit()))
            }
        };
        let pause = failed.into_iter().chain(again).chain(next).min();
        // Losing the sleep is safe: the next round begins.
        tokio::select! {
            biased;
            () = node.drivers.wake.notified() => {}
            () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
        }
        if again.is_some() {
            // Pods publish what is due.
            node.drivers.note_change();
        }
    }
}
