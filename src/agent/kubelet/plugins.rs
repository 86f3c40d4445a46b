//! Device plugins and CSI drivers of this node: their checkpoint, and their sockets once the pod workers exist.
//!
//! Owns the fallback when the sockets cannot be created: the node runs without plugins.

use std::path::Path;
use std::rc::Rc;

use tokio::task::JoinHandle;

use super::report::LoopView;
use crate::devices::DeviceManager;
use crate::devices::plugins::{self, CsiPlugins};
use crate::model::types::PodUid;
use crate::platform::dice::Dice;
use crate::platform::logging::chain;
use crate::pod::csi::CsiNode;
use crate::pod::status::StatusManager;
use crate::pod::workers::PodWorkers;
use crate::runtime::Runtime;

/// The allocation of devices, restored from the checkpoint.
pub(super) fn manager(root: &Path) -> DeviceManager {
    DeviceManager::open(&plugins::directory(root))
}

/// Pods get volumes of CSI drivers from now on. Returns what registers the drivers.
pub(super) fn start_csi<R: Runtime>(csi: &Rc<CsiNode>, workers: &PodWorkers<R>) -> Rc<dyn CsiPlugins> {
    let drivers = csi.drivers();
    workers.volumes().set_csi(Rc::<CsiNode>::clone(csi));
    workers.follow_volumes(drivers.changed());
    csi.start(Dice::System);
    drivers
}

/// Accepts plugin registrations from now on and notifies the pods affected by device changes. Not used by
/// run-once.
pub(super) async fn start<R: Runtime>(
    root: &Path,
    workers: &PodWorkers<R>,
    view: &Rc<LoopView>,
    statuses: &Rc<StatusManager>,
    csi: Rc<dyn CsiPlugins>,
) -> Vec<JoinHandle<()>> {
    let mut tasks = vec![workers.follow_devices()];
    let statuses = Rc::clone(statuses);
    let pods = Rc::new(move || statuses.active_pods());
    let managers = workers.managers();
    let owned = Rc::new(move |of: Option<(&PodUid, &str)>| managers.owned(of));
    match plugins::start(root, &workers.devices(), pods, owned, Some(csi)).await {
        Ok(sockets) => tasks.extend(sockets),
        Err(error) => {
            let why = chain(&error);
            log::error!(err = why; "Failed to listen for device plugins, continuing without");
            view.set_plugin_trouble(why);
        }
    }
    tasks
}
